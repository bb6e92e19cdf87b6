"""Compare the graph that cuDNN received, according to its log, with the intended graph; uids may be renamed.

cuDNN logs every operation graph that it finalizes (``Log.operation_graphs()``). Both graphs are converted to networks
of tensors and operations with plain attributes. Colour refinement (Weisfeiler-Lehman) spreads attributes along the
links; the first step at which the colours of the two networks differ gives the first difference. If all colours are
equal, a one-to-one mapping of tensors proves equality. Nested operations (the sub-graph and the softmax of fused
attention) are items as well, linked with their parent operation.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cudnn_backend_py import DescriptorType, Graph
from cudnn_backend_py.generated.operations import DEFAULTS
from cudnn_backend_py.graph import Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor

__all__ = [
    "LinkedGraphItem",
    "Network",
    "assert_logged_graph_equals",
    "convert_graph_to_linked_items",
    "convert_logged_graph_to_linked_items",
    "find_difference_from_logged_graph",
    "find_difference_of_linked_items",
    "find_undetected_changes",
    "normalize_port",
]

DEFAULT_UPPER_CLIP = 1.7976931348623157e308  # the value that cuDNN logs for a ReLU without an upper clip
_PORT_NAMES = {
    "matA": "a",
    "matB": "b",
    "matC": "c",
    "mOverride": "m_override",
    "nOverride": "n_override",
    "kOverride": "k_override",
    "InRunningMean": "input_running_mean",
    "InRunningVar": "input_running_var",
    "OutRunningMean": "output_running_mean",
    "OutRunningVar": "output_running_var",
}
_SUB_GRAPH_LINK = "in the sub-graph of"
_VIEW_ONLY = "CUDNN_RESHAPE_VIEW_ONLY"  # the default mode of a reshape, logged since 9.22
_SUB_GRAPH_UID_FIELDS = ("subgraph_input_uid", "subgraph_output_uid")
_COMPARED_FIELDS = (
    *("alpha", "beta", "mode", "phase", "comparison_mode", "dropout_probability", "output_scale", "rope_dim"),
    *("math_prec", "top_k"),
)
_SPATIAL_FIELDS = {"pre_paddings": "pad", "filter_strides": "stride", "dilations": "dilation"}


@dataclass(frozen=True)
class LinkedGraphItem:
    """A tensor or operation: a label for messages, its attributes, and its links to others by port."""

    label: str
    attributes: tuple[tuple[str, Any], ...]
    links: tuple[tuple[str, str], ...]


Network = Mapping[str, LinkedGraphItem]  # by "t:uid" for tensors, "o:number" for operations


def _make_linked_item(label: str, attributes: Mapping[str, Any], links: Iterable[tuple[str, str]]) -> LinkedGraphItem:
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}
    return LinkedGraphItem(label, tuple(sorted(plain.items())), tuple(sorted(links)))


def normalize_port(name: str) -> str:
    """Return the normalized spelling of a port; the log uses several spellings."""
    known = _PORT_NAMES.get(name, name)
    plain = known.replace("_", "").lower().removesuffix("desc")
    return plain.removesuffix("tensor") if plain == "seedtensor" else plain


# The intended graph


def _make_item_of_graph_tensor(tensor: Tensor) -> LinkedGraphItem:
    attributes = {
        "data type": tensor.data_type.c_name,
        "dims": tensor.dims,
        "strides": tensor.strides,
        "virtual": tensor.virtual,
        "by value": tensor.by_value,
        "alignment": tensor.alignment,
        "reordering": tensor.reordering.c_name,
        "vector": (tensor.vector_count, tensor.vector_dim),
    }
    ragged = tensor.ragged_offset
    return _make_linked_item(
        f"tensor {tensor.name!r}", attributes, [("ragged offset", f"t:{ragged.uid}")] if ragged else []
    )


def _find_operation_parameters_to_compare(op: Op) -> dict[str, Any]:
    if isinstance(op, Matmul):
        return {"compute type": op.compute_type.c_name}
    if isinstance(op, Reduction):
        return {
            "compute type": op.compute_type.c_name,
            "operator": op.operator.c_name,
            "deterministic": bool(op.deterministic),
        }
    if isinstance(op, Pointwise):
        return _find_pointwise_parameters(op)
    assert isinstance(op, Operation)
    found = {
        _RENAMED_FIELDS.get(name, name): _get_c_name_or_value(value)
        for name, value in op.fields.items()
        if name in _COMPARED_FIELDS
    }
    if op.kind in (DescriptorType.OPERATION_ROPE_FWD, DescriptorType.OPERATION_ROPE_BWD):
        found = {**DEFAULTS[op.kind], "rope_dim": op.fields["freqs"].dims[-1], **found}
    if op.kind is DescriptorType.OPERATION_RESHAPE:
        found.setdefault("mode", _VIEW_ONLY)
    rng = op.fields.get("rng")
    if isinstance(rng, Parameters):
        found |= {name: _get_c_name_or_value(value) for name, value in rng.fields.items()}
    convolution = op.fields.get("convolution")
    if isinstance(convolution, Parameters):
        fields = convolution.fields
        found |= {log_name: tuple(fields[name]) for name, log_name in _SPATIAL_FIELDS.items()}
        found |= {"mode": fields["conv_mode"].c_name, "compute type": fields["comp_type"].c_name}
    return found


def _get_c_name_or_value(value: Any) -> Any:
    return getattr(value, "c_name", value)


def _find_pointwise_parameters(op: Pointwise) -> dict[str, Any]:
    def get_value_or_default(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else float(value)

    found: dict[str, Any] = {
        "mode": op.mode.c_name,
        "compute type": op.compute_type.c_name,
        "alpha1": get_value_or_default(op.alpha1, 1.0),
        "alpha2": get_value_or_default(op.alpha2, 1.0),
    }
    if op.axis is not None:
        found["axis"] = op.axis
    stem = op.mode.name.removesuffix("_FWD").removesuffix("_BWD")
    if stem == "RELU":
        found["upperClip"] = get_value_or_default(op.relu_upper_clip, DEFAULT_UPPER_CLIP)
        found["lowerClip"] = get_value_or_default(op.relu_lower_clip, 0.0)
        found["lowerClipSlope"] = get_value_or_default(op.relu_lower_clip_slope, 0.0)
    elif stem == "ELU":
        found["alpha"] = get_value_or_default(op.elu_alpha, 1.0)
    elif stem == "SOFTPLUS":
        found["beta"] = get_value_or_default(op.softplus_beta, 1.0)
    elif stem == "SWISH":
        found["beta"] = get_value_or_default(op.swish_beta, 1.0)
    return found


def convert_graph_to_linked_items(graph: Graph) -> Network:
    """Return the tensors and operations of a graph as a network of linked items."""
    network = {f"t:{tensor.uid}": _make_item_of_graph_tensor(tensor) for tensor in graph.tensors}
    _add_items_of_graph_operations(network, graph, "o:", [])
    return network


def _add_items_of_graph_operations(
    network: dict[str, LinkedGraphItem], graph: Graph, stem: str, belongs: list[tuple[str, str]]
) -> None:
    for number, op in enumerate(graph.ops):
        _add_items_of_graph_operation(network, op, f"{stem}{number}", belongs)


def _add_items_of_graph_operation(
    network: dict[str, LinkedGraphItem], op: Op, key: str, belongs: list[tuple[str, str]]
) -> None:
    links = [*belongs, *((normalize_port(port), f"t:{tensor.uid}") for port, tensor in op.ports() if "." not in port)]
    for name, value in op.fields.items() if isinstance(op, Operation) else ():
        if isinstance(value, Graph):
            _add_items_of_graph_operations(network, value, f"{key}.", [(_SUB_GRAPH_LINK, key)])
        elif isinstance(value, Operation):
            _add_items_of_graph_operation(network, value, f"{key}.{name}", [])
            links.append((normalize_port(name), f"{key}.{name}"))
        elif name in _SUB_GRAPH_UID_FIELDS:
            links.append((normalize_port(name), f"t:{value}"))
    network[key] = _make_linked_item(
        f"operation {op.name!r}", {"operation": op.kind.c_name, **_find_operation_parameters_to_compare(op)}, links
    )


# The logged graph


def _make_item_of_logged_tensor(record: Mapping[str, Any]) -> LinkedGraphItem:
    attributes = {
        "data type": record["dataType"],
        "dims": record["dim"],
        "strides": record["stride"],
        "virtual": record["isVirtual"],
        "by value": record["isByValue"],
        "alignment": record["ptrAlignment"],
        "reordering": record["reordering"],
        "vector": (record["vectCount"], record["vectDim"]),
    }
    links = [("ragged offset", f"t:{offset['name']}") for offset in record.get("isRagged", ())]
    return _make_linked_item(f"logged tensor {record['name']}", attributes, links)


_RENAMED_FIELDS = {
    "mathPrec": "compute type",
    "math_prec": "compute type",
    "topK": "top_k",
    "pointwiseMode": "mode",
    "reductionOp": "operator",
    "isDeterministic": "deterministic",
    "fmode": "phase",
    "comparisonMode": "mode",
    "comparison_mode": "mode",
    "dropoutProbability": "dropout_probability",
}


def convert_logged_graph_to_linked_items(data: Mapping[str, Any]) -> Network:
    """Return the tensors and operations of a logged graph as a network of linked items."""
    network: dict[str, LinkedGraphItem] = {}
    _add_logged_items(network, data, "o:", [])
    return network


def _add_logged_items(
    network: dict[str, LinkedGraphItem], data: Mapping[str, Any], stem: str, belongs: list[tuple[str, str]]
) -> None:
    for record in data["tensors"]:
        for one in (record, *record.get("isRagged", ())):
            item = _make_item_of_logged_tensor(one)
            assert network.setdefault(f"t:{one['name']}", item) == item, (
                f"{item.label} is logged twice with different properties"
            )
    for number, record in enumerate(data["nodes"]):
        _add_logged_operation(network, record, f"{stem}{number}", belongs)


def _add_logged_operation(
    network: dict[str, LinkedGraphItem], record: Mapping[str, Any], key: str, belongs: list[tuple[str, str]]
) -> None:
    attributes, links = {}, list(belongs)
    for name, value in record.items():
        if name == "subgraph":
            _add_logged_items(network, value, f"{key}.", [(_SUB_GRAPH_LINK, key)])
        elif isinstance(value, dict):
            _add_logged_operation(network, value, f"{key}.{name}", [])
            links.append((normalize_port(name), f"{key}.{name}"))
        elif normalize_port(name) in map(normalize_port, _SUB_GRAPH_UID_FIELDS) or (
            isinstance(value, str) and f"t:{value}" in network
        ):
            links.append((normalize_port(name), f"t:{value}"))
        else:
            attributes[_RENAMED_FIELDS.get(name, name)] = value
    if record["operation"] == DescriptorType.OPERATION_RESHAPE.c_name:
        attributes.setdefault("mode", _VIEW_ONLY)
    network[key] = _make_linked_item(f"logged operation {key.removeprefix('o:')}", attributes, links)


# Comparing


def _find_neighbours(network: Network) -> dict[str, list[tuple[str, str]]]:
    """Return each item's linked items in both directions, with the port."""
    found: dict[str, list[tuple[str, str]]] = {key: [] for key in network}
    for key, item in network.items():
        for port, other in item.links:
            found[key].append((f"{port} of it", other))
            found[other].append((f"it is {port} of", key))
    return found


def _refine_node_colours(colours: Mapping[str, Any], neighbours: Mapping[str, list[tuple[str, str]]]) -> dict[str, int]:
    return {
        key: hash((colours[key], tuple(sorted((port, colours[other]) for port, other in neighbours[key]))))
        for key in colours
    }


def find_difference_from_logged_graph(graph: Graph, logged: Mapping[str, Any]) -> str | None:
    """Return the first difference between the intended and the logged graph, None if they are equal."""
    return find_difference_of_linked_items(
        convert_graph_to_linked_items(graph), convert_logged_graph_to_linked_items(logged)
    )


def find_difference_of_linked_items(mine: Network, theirs: Network) -> str | None:
    """Return the first difference between two networks, None if a renaming makes them equal."""
    for what in "to":
        counts = [sum(key.startswith(what) for key in side) for side in (mine, theirs)]
        if counts[0] != counts[1]:
            kind = "tensors" if what == "t" else "operations"
            return f"{counts[0]} {kind} are meant, {counts[1]} are logged"
    colours = [{key: hash((key[0], item.attributes)) for key, item in side.items()} for side in (mine, theirs)]
    links = [_find_neighbours(side) for side in (mine, theirs)]
    for step in range(len(mine) + 1):
        odd = _find_most_similar_unmatched_pair(colours, mine, theirs)
        if odd is not None:
            return _describe_difference(mine[odd[0]], theirs[odd[1]], mine, theirs, step)
        if step and len(set(colours[0].values())) == len(mine):
            break
        colours = [_refine_node_colours(side, near) for side, near in zip(colours, links, strict=True)]
    return (
        None
        if _match_graph_items_to_logged_items(mine, theirs, *colours) is not None
        else "no one-to-one mapping of the tensors fits"
    )


def _find_most_similar_unmatched_pair(
    colours: list[dict[str, int]], ours: Network, logs: Network
) -> tuple[str, str] | None:
    """Return the most similar pair of items without a counterpart, one per network; tensors first."""
    counts = [Counter(side.values()) for side in colours]
    if counts[0] == counts[1]:
        return None
    left, right = counts[0] - counts[1], counts[1] - counts[0]
    for kind in "to":
        mine = [key for key, colour in colours[0].items() if key.startswith(kind) and left[colour]]
        theirs = [key for key, colour in colours[1].items() if key.startswith(kind) and right[colour]]
        pairs = [(len(set(ours[a].attributes) ^ set(logs[b].attributes)), a, b) for a in mine for b in theirs]
        if pairs:
            return min(pairs, key=lambda pair: pair[0])[1:]
    raise AssertionError("the sides have equally many items of each kind, so both have an odd one")


def _describe_difference(
    mine: LinkedGraphItem, theirs: LinkedGraphItem, ours: Network, logs: Network, step: int
) -> str:
    wanted, found = dict(mine.attributes), dict(theirs.attributes)
    if wanted != found:
        key = next(key for key in sorted({*wanted, *found}) if wanted.get(key) != found.get(key))
        return f"{mine.label} has {key} {wanted.get(key)}, nothing logged fits: {theirs.label} has {found.get(key)}"
    links = ", ".join(f"{port}={ours[key].label}" for port, key in mine.links) or "as they are"
    other = ", ".join(f"{port}={logs[key].label}" for port, key in theirs.links) or "as they are"
    return f"the links of {mine.label} ({links}) fit nothing logged, {theirs.label} has ({other}); seen at step {step}"


def _match_graph_items_to_logged_items(
    mine: Network, theirs: Network, left: Mapping[str, int], right: Mapping[str, int]
) -> dict[str, str] | None:
    """Return the logged item of each intended item, found by backtracking over items of equal colour."""
    order = sorted(mine, key=lambda key: (key[0] == "t", key))
    choices = {key: [other for other in theirs if right[other] == left[key]] for key in order}

    def extend_item_matching(index: int, known: dict[str, str]) -> dict[str, str] | None:
        if index == len(order):
            return known
        key = order[index]
        for other in choices[key]:
            pairs = {key: other}
            fits = [port for port, _ in mine[key].links] == [port for port, _ in theirs[other].links]
            for (_, child), (_, twin) in zip(mine[key].links, theirs[other].links, strict=False):
                fits = fits and {**known, **pairs}.get(child, twin) == twin
                pairs[child] = twin
            merged = known | pairs
            if fits and len(set(merged.values())) == len(merged) and known.get(key, other) == other:
                done = extend_item_matching(index + 1, merged)
                if done is not None:
                    return done
        return None

    return extend_item_matching(0, {})


def find_undetected_changes(
    logged: Mapping[str, Any], find: Callable[[Mapping[str, Any]], str | None]
) -> list[tuple[Any, ...]]:
    """Change each logged number, flag and name in turn; return the paths of changes that `find` does not detect."""
    missed = []
    for path in _find_leaf_paths(logged):
        other = copy.deepcopy(dict(logged))
        place: Any = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = _change_value(place[path[-1]])
        try:
            found = find(other)
        except (KeyError, AssertionError):
            continue
        if found is None and path[-1] != "finalizeMode":
            missed.append(path)
    return missed


def _find_leaf_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _find_leaf_paths(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in _find_leaf_paths(item, (*path, index))]
    return [path]


def _change_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, (int, float)) else f"{value}0"


def assert_logged_graph_equals(graph: Graph, logged: Mapping[str, Any]) -> None:
    """Fail with the first difference between the intended graph and the one that cuDNN received."""
    found = find_difference_from_logged_graph(graph, logged)
    assert found is None, found
