"""The structural oracle: is the graph cuDNN says it finalized the graph we wrote, up to renaming?

cuDNN logs every operation graph it finalizes as JSON. Both sides are brought to that form and compared by colour
refinement (Weisfeiler and Leman): tensors and nodes are labelled by what they are, then over and over by what they
touch, so names and order play no part.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from cudnn_backend_py import DescriptorType, Graph, OperationGraph, Target, capture_log
from cudnn_backend_py.generated.enums import CudnnEnum, PointwiseMode
from cudnn_backend_py.graph import Matmul, Operation, Pointwise, Reduction, Tensor
from cudnn_backend_py.graph.ir import Op

__all__ = ["as_logged", "assert_same_graph", "logged_graph"]

D = DescriptorType
_LARGEST = 1.7976931348623157e308

# Port or field of ours -> key in cuDNN's log. A field that maps to None is not logged.
_CONVOLUTION = {
    "comp_type": "mathPrec",
    "conv_mode": "mode",
    "dilations": "dilation",
    "filter_strides": "stride",
    "pre_paddings": "pad",
    "post_paddings": None,
    "spatial_dims": None,
    "alpha": "alpha",
    "beta": "beta",
}
_GENERIC: dict[DescriptorType, dict[str, str | None]] = {
    D.OPERATION_CONVOLUTION_FORWARD: {**_CONVOLUTION, "x": "X", "w": "W", "y": "Y"},
    D.OPERATION_CONVOLUTION_BACKWARD_DATA: {**_CONVOLUTION, "dx": "dX", "w": "W", "dy": "dY"},
    D.OPERATION_CONVOLUTION_BACKWARD_FILTER: {**_CONVOLUTION, "x": "X", "dw": "dW", "dy": "dY"},
    D.OPERATION_NORM_FORWARD: {
        "mode": "mode",
        "phase": "fmode",
        "x": "X",
        "y": "Y",
        "scale": "Scale",
        "bias": "Bias",
        "epsilon": "epsilonDesc",
        "mean": "Mean",
        "inv_variance": "InvVariance",
    },
    D.OPERATION_SDPA_FWD: {
        "q": "Q",
        "k": "K",
        "v": "V",
        "o": "O",
        "stats": "stats",
        "scale": "scale",
        "subgraph": "subgraph",
        "subgraph_input_uid": "subgraphInputUid",
        "subgraph_output_uid": "subgraphOutputUid",
        "softmax": "softmax",
    },
    D.OPERATION_SOFTMAX: {"x": "X", "y": "Y", "stats": "statsDesc", "max": "maxDesc", "sum_exp": "sumExpDesc"},
    D.OPERATION_RNG: {
        "y": "Y",
        "offset": "offset",
        "seed": "seedTensor",
        "distribution": "distribution",
        "bernoulli_dist_probability": "bernoulli_dist_probability",
    },
}


def logged_graph(graph: Graph, target: Target) -> dict[str, Any]:
    """Return what cuDNN logs when it finalizes the graph."""
    with capture_log(this_thread_only=True) as log:
        OperationGraph(graph, target)
    return log.operation_graphs()[-1]


def as_logged(graph: Graph) -> dict[str, Any]:
    """Return our graph in the form of cuDNN's log."""
    return {"tensors": [_tensor(tensor) for tensor in graph.tensors], "nodes": [_node(op) for op in graph.ops]}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": str(tensor.uid),
        "dataType": tensor.data_type.c_name,
        "dim": list(tensor.dims),
        "stride": list(tensor.strides),
        "isVirtual": tensor.virtual,
        "isByValue": tensor.by_value,
        "vectCount": tensor.vector_count,
        "vectDim": tensor.vector_dim,
        "ptrAlignment": tensor.alignment,
        "reordering": tensor.reordering.c_name,
    }
    if tensor.ragged_offset is not None:
        record["isRagged"] = [_tensor(tensor.ragged_offset)]
    return record


def _uid(tensor: Tensor | None) -> str | None:
    return None if tensor is None else str(tensor.uid)


def _node(op: Op) -> dict[str, Any]:
    node: dict[str, Any] = {"operation": op.kind.c_name}
    if isinstance(op, Matmul):
        node |= {"mathPrec": op.compute_type.c_name, "matA": _uid(op.a), "matB": _uid(op.b), "matC": _uid(op.c)}
        node |= {f"{key}Override": _uid(getattr(op, f"{key}_override")) for key in "mnk"}
    elif isinstance(op, Pointwise):
        node |= _pointwise(op)
    elif isinstance(op, Reduction):
        node |= {"reductionOp": op.operator.c_name, "mathPrec": op.compute_type.c_name}
        node |= {"isDeterministic": bool(op.deterministic), "X": _uid(op.x), "Y": _uid(op.y)}
    else:
        assert isinstance(op, Operation)
        names = _GENERIC[op.kind]
        parts: dict[str, Any] = {}
        for field, value in op.fields.items():
            parts |= dict(value.fields) if hasattr(value, "fields") and not isinstance(value, Op) else {field: value}
        node |= {str(names[field]): _value(value) for field, value in parts.items() if names[field] is not None}
    return {key: value for key, value in node.items() if value is not None}


def _pointwise(op: Pointwise) -> dict[str, Any]:
    node: dict[str, Any] = {
        "pointwiseMode": op.mode.c_name,
        "mathPrec": op.compute_type.c_name,
        "alpha1": 1.0 if op.alpha1 is None else op.alpha1,
        "alpha2": 1.0 if op.alpha2 is None else op.alpha2,
        "axis": op.axis,
        **{key: _uid(getattr(op, port)) for port, key in zip(("x", "b", "t", "y"), "XBTY", strict=True)},
        "dX": _uid(op.dx),
        "dY": _uid(op.dy),
    }
    family = op.mode.name.rsplit("_", 1)[0]
    if op.mode in (PointwiseMode.RELU_FWD, PointwiseMode.RELU_BWD):
        node["lowerClip"] = op.relu_lower_clip or 0.0
        node["upperClip"] = _LARGEST if op.relu_upper_clip is None else op.relu_upper_clip
        node["lowerClipSlope"] = op.relu_lower_clip_slope or 0.0
    elif family == "ELU":
        node["alpha"] = 1.0 if op.elu_alpha is None else op.elu_alpha
    elif family in ("SWISH", "SOFTPLUS"):
        beta = op.swish_beta if family == "SWISH" else op.softplus_beta
        node["beta"] = 1.0 if beta is None else beta
    return node


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.uid)
    if isinstance(value, CudnnEnum):
        return value.c_name
    if isinstance(value, Graph):
        return as_logged(value)
    if isinstance(value, Op):
        return _node(value)
    return list(value) if isinstance(value, tuple) else value


def assert_same_graph(graph: Graph, logged: dict[str, Any]) -> None:
    """Fail, naming the first difference, if cuDNN's graph is not ours up to renaming."""
    ours, theirs = as_logged(graph), logged
    _same("tensors", map(_tensor_label, _tensors(ours)), map(_tensor_label, _tensors(theirs)))
    _same("operations", map(_node_label, ours["nodes"]), map(_node_label, theirs["nodes"]))
    _same("links", _refined(ours), _refined(theirs))


def _tensors(logged: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tensors of a graph, those inside ragged links once, those of sub-graphs not."""
    inner = {tensor["name"] for node in logged["nodes"] for tensor in node.get("subgraph", {}).get("tensors", ())}
    offsets = {offset["name"] for tensor in logged["tensors"] for offset in tensor.get("isRagged", ())}
    return [tensor for tensor in logged["tensors"] if tensor["name"] not in offsets | inner]


def _same(what: str, ours: Iterable[str], theirs: Iterable[str]) -> None:
    left, right = Counter(ours), Counter(theirs)
    assert left == right, f"{what} differ; only ours: {list(left - right)[:3]}; only cuDNN's: {list(right - left)[:3]}"


def _plain(value: Any) -> Any:
    """Return a value without names, for labels: tensors inside by what they are, sub-graphs by their structure."""
    if isinstance(value, dict) and "nodes" in value:
        return sorted(_refined(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items()) if key != "name"}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _tensor_label(tensor: dict[str, Any]) -> str:
    return json.dumps(_plain(tensor), sort_keys=True)


def _is_link(key: str, value: Any) -> bool:
    return (isinstance(value, str) and value.isdecimal()) or key.endswith("Uid")


def _links(node: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for key, value in node.items():
        if _is_link(key, value):
            found.append((key, str(value)))
        elif isinstance(value, dict) and "nodes" not in value:
            found += [(f"{key}.{inner}", uid) for inner, uid in _links(value)]
    return found


def _node_label(node: dict[str, Any]) -> str:
    parts = {}
    for key, value in sorted(node.items()):
        if _is_link(key, value):
            parts[key] = "tensor"
        elif isinstance(value, dict) and "nodes" not in value:
            parts[key] = json.loads(_node_label(value))
        else:
            parts[key] = _plain(value)
    return json.dumps(parts, sort_keys=True)


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _refined(logged: dict[str, Any]) -> list[str]:
    tensors = {tensor["name"]: _tensor_label(tensor) for tensor in logged["tensors"]}
    for node in logged["nodes"]:
        for tensor in node.get("subgraph", {}).get("tensors", ()):
            tensors.setdefault(tensor["name"], _tensor_label(tensor))
    nodes = [_node_label(node) for node in logged["nodes"]]
    links = [_links(node) for node in logged["nodes"]]
    for _ in range(len(nodes) + 1):
        nodes = [
            _hash(label, sorted((key, tensors[uid]) for key, uid in link))
            for label, link in zip(nodes, links, strict=True)
        ]
        touched: dict[str, list[tuple[str, str]]] = {name: [] for name in tensors}
        for label, link in zip(nodes, links, strict=True):
            for key, uid in link:
                touched[uid].append((key, label))
        tensors = {name: _hash(label, sorted(touched[name])) for name, label in tensors.items()}
    return nodes
