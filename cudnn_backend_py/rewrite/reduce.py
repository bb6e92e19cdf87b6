"""``reduce_failing_graph``: find the smallest graph and simplest data that still fail in the same way.

Delta debugging: one change at a time, those that take most away first, and each that still fails is kept. Outputs and
operations go, then options, dims are halved, windows and layouts become plain. Pure: what fails is queried of the
caller.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import GraphError
from ..generated.attributes import get_attributes
from ..generated.enums import DataType
from ..graph import Graph, Op, Operation, Tensor
from ..graph.data_types import BOOLEAN_TYPES
from ..graph.ir import Parameters
from ..graph.replace import (
    drop_operation_fields,
    iterate_all_ops,
    keep_only_ops,
    replace_tensors,
    replace_tensors_in_ops,
    try_to_make_graph,
)
from ..graph.strides import channels_last, packed_strides
from .changes import iterate_changes
from .dims import find_sets_of_equal_dims
from .relations import WindowRelation, find_dim_relation, name_operation_in_errors
from .shapes import set_dims

__all__ = ["SIMPLER", "Fails", "ReducedFailingGraph", "reduce_failing_graph"]

Fails = Callable[[Graph, str], bool]
"""Whether a graph fails with data of a kind; False also where it cannot be queried."""

SIMPLER = ("integers", "uniform", "hostile")  # kinds of data, the simplest first
_OPTIONS = ("drop_stats", "drop_dropout", "drop_bias", "mask")
_WINDOWS = {
    "pre_paddings": 0, "post_paddings": 0, "filter_strides": 1, "dilations": 1, "strides": 1, "window_dims": 1,
}  # fmt: skip


@dataclass
class ReducedFailingGraph:
    """The smallest graph and simplest data found for a failure, with the steps taken.

    Attributes
    ----------
    graph, data
        The smallest graph that fails, and the kind of its data.
    steps
        What was taken away, in order.
    tried
        How many graphs were judged.
    complete
        Whether no step is left that could be tried; False where the time or the number of tries was used up.
    """

    graph: Graph
    data: str
    steps: list[str] = field(default_factory=list)
    tried: int = 0
    complete: bool = False


def reduce_failing_graph(
    graph: Graph, data: str, fails: Fails, *, budget_s: float = 60.0, most: int = 500
) -> ReducedFailingGraph:
    """Return a smaller graph and simpler data for which `fails` is still true.

    Parameters
    ----------
    data
        The kind of data with which it fails, one of :data:`SIMPLER` or another name.
    fails
        Called once for each change; an exception of it is the caller's to catch.
    budget_s, most
        Seconds, and questions, after which what was found so far is returned.
    """
    found, deadline = ReducedFailingGraph(graph, data), time.monotonic() + budget_s
    refused: set[tuple[Graph, str]] = set()

    def has_same_failure(graph: Graph, data: str) -> bool:
        if (graph, data) in refused:
            return False
        found.tried += 1
        held = fails(graph, data)
        if not held:
            refused.add((graph, data))
        return held

    for kind in SIMPLER[: SIMPLER.index(data)] if data in SIMPLER else ():
        if has_same_failure(graph, kind):
            found.data = kind
            found.steps.append(f"data: {data} -> {kind}")
            break
    while True:
        for title, smaller in _iterate_smaller_graphs(found.graph):
            if time.monotonic() > deadline or found.tried >= most:
                return found
            if _measure_graph_complexity(smaller) < _measure_graph_complexity(found.graph) and has_same_failure(
                smaller, found.data
            ):
                found.graph = smaller
                found.steps.append(title)
                break
        else:
            found.complete = True
            return found


def _measure_graph_complexity(graph: Graph) -> tuple[Any, ...]:
    """Return a measure of a graph's size and complexity, which every step must reduce."""
    ops = list(iterate_all_ops(graph))
    windows = sum(
        abs(float(_convert_fraction_to_float(part)) - plain)
        for op in ops
        for value in op.parameters().values()
        if isinstance(value, Parameters)
        for name, plain in _WINDOWS.items()
        if name in value.fields
        for part in value.fields[name]
    )
    tensors = graph.tensors
    odd = sum(tensor.strides not in (packed_strides(tensor.dims), channels_last(tensor.dims)) for tensor in tensors)
    last = sum(tensor.strides != packed_strides(tensor.dims) for tensor in tensors)
    fields = sum(len(op.parameters()) + len(list(op.ports())) for op in ops)
    elements = sum(math.prod(tensor.dims) for tensor in tensors)
    types = sum(tensor.data_type is not DataType.FLOAT for tensor in tensors)
    return (len(ops), fields, windows, elements, odd, last, types)


def _convert_fraction_to_float(part: Any) -> float:
    return float(part[0] / part[1] if isinstance(part, tuple) else part)


def _iterate_smaller_graphs(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield smaller graphs, each with a title; those with the largest parts removed come first."""
    yield from _iterate_graphs_with_fewer_operations(graph)
    yield from _remove_optional_fields(graph)
    yield from _remove_stats_dropout_bias_or_mask(graph)
    yield from _reduce_dims(graph)
    yield from _reset_window_parameters_to_default(graph)
    yield from _simplify_tensors(graph)


# operations


def _iterate_graphs_with_fewer_operations(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield smaller graphs: one operation alone or with its dependencies, its results as inputs, or without it."""
    found: list[tuple[int, str, Graph]] = []
    for op in graph.ops if len(graph.ops) > 1 else ():
        alone = try_to_make_graph(partial(_make_graph_of_operations, graph, [op]))
        before = try_to_make_graph(partial(_make_graph_of_dependencies, graph, op))
        after = try_to_make_graph(partial(_replace_results_by_inputs, graph, op))
        for title, part in (("only", alone), ("nothing after", before), ("given instead:", after)):
            if part is not None and len(part.ops) < len(graph.ops):
                found.append((len(part.ops), f"{title} {op.name}", part))
    yield from ((title, part) for _, title, part in sorted(found, key=lambda item: item[0]))
    yield from ((change.title, change.graph) for change in iterate_changes(graph, ("drop_operation",)) if change.graphs)


def _make_graph_of_dependencies(graph: Graph, op: Op) -> Graph:
    """Return a graph of an operation and the operations it depends on; its results are in memory."""
    needed, ops = {tensor.uid for tensor in op.inputs().values()}, [op]
    for one in reversed(graph.ops[: graph.ops.index(op)]):
        if any(tensor.uid in needed for tensor in one.outputs().values()):
            ops.insert(0, one)
            needed |= {tensor.uid for tensor in one.inputs().values()}
    return _make_graph_of_operations(graph, ops)


def _replace_results_by_inputs(graph: Graph, op: Op) -> Graph:
    """Return the graph with an operation's results as inputs, without operations that are no longer needed."""
    rest = [one for one in graph.ops if one is not op]
    while True:  # what no one reads any more
        read = {tensor.uid for one in rest for tensor in one.inputs().values()}
        kept = [one for one in rest if any(not t.virtual or t.uid in read for t in one.outputs().values())]
        if len(kept) == len(rest):
            break
        rest = kept
    new = {tensor.uid: _move_to_memory(tensor) for tensor in op.outputs().values()}
    return Graph(replace_tensors_in_ops(tuple(rest), new), graph.name, graph.is_subgraph)


def _make_graph_of_operations(graph: Graph, ops: list[Op]) -> Graph:
    """Return a graph of these operations; tensors shared with the removed operations are in memory."""
    written = {tensor.uid: tensor for op in ops for tensor in op.outputs().values()}
    read = {tensor.uid: tensor for op in ops for tensor in op.inputs().values()}
    ends = {uid for uid in written if uid not in read} | {uid for uid in read if uid not in written}
    tensors = {**read, **written}
    new = {uid: _move_to_memory(tensors[uid]) for uid in ends if tensors[uid].virtual}
    return Graph(replace_tensors_in_ops(tuple(ops), new), graph.name, graph.is_subgraph)


def _move_to_memory(tensor: Tensor) -> Tensor:
    """Return the virtual tensor as one in memory; reject boolean tensors, as their memory format differs."""
    if tensor.data_type in BOOLEAN_TYPES:
        raise GraphError(
            f"the boolean tensor {tensor.name!r} would be written to memory; cuDNN has virtual booleans only",
            code="booleans-in-memory",
        )
    return dataclasses.replace(tensor, virtual=False)


# options


def _remove_optional_fields(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the graph without each optional field of an operation in turn."""
    for op in graph.ops:
        if not isinstance(op, Operation):
            yield from _remove_optional_parameters(graph, op)
            continue
        optional = {facts.field for facts in get_attributes(op.kind) if not facts.required} & set(op.fields)
        groups = [{name for name in optional if name.startswith("subgraph")}, {n for n in optional if "dropout" in n}]
        for names in (*groups, *({name} for name in sorted(optional))):
            made = try_to_make_graph(partial(_replace_operation, graph, op, drop_operation_fields(op, names)))
            if names and made is not None:
                yield f"{op.name} without {', '.join(sorted(names))}", made


def _remove_optional_parameters(graph: Graph, op: Op) -> Iterator[tuple[str, Graph]]:
    keep = ("mode", "operator", "compute_type", "axis")
    for name, value in op.parameters().items():
        if value is not None and name not in keep:
            made = try_to_make_graph(partial(_remove_parameter, graph, op, name))
            if made is not None:
                yield f"{op.name} without {name}", made


def _remove_parameter(graph: Graph, op: Op, name: str) -> Graph:
    return _replace_operation(graph, op, dataclasses.replace(op, **{name: None}))  # type: ignore[type-var]


def _replace_operation(graph: Graph, old: Op, new: Op) -> Graph:
    ops = [new if op is old else op for op in graph.ops]
    return keep_only_ops(Graph(tuple(ops), graph.name, graph.is_subgraph), ops)


def _remove_stats_dropout_bias_or_mask(graph: Graph) -> Iterator[tuple[str, Graph]]:
    yield from ((change.title, change.graph) for change in iterate_changes(graph, _OPTIONS) if change.graphs)


# sizes


def _reduce_dims(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the graph with related dims reduced to a fourth or a half."""
    classes = {item.axes: item for item in find_sets_of_equal_dims(graph).values() if item.size > 1}
    for item in sorted(classes.values(), key=lambda one: -one.size):
        if item.fixed:
            continue
        names = sorted({tensor.name for tensor in graph.tensors for uid, _ in item.axes if uid == tensor.uid})
        for size in _list_smaller_sizes(item.size):
            made = try_to_make_graph(partial(_resize_tensors, graph, dict.fromkeys(item.axes, size)))
            if made is not None:
                yield f"{item.size} -> {size} in {', '.join(names[:4])}", made
    for size in sorted({dim for tensor in graph.tensors for dim in tensor.dims if dim > 1}, reverse=True):
        every = {(t.uid, axis): size for t in graph.tensors for axis, dim in enumerate(t.dims) if dim == size}
        for less in _list_smaller_sizes(size):
            made = try_to_make_graph(partial(_resize_tensors, graph, dict.fromkeys(every, less)))
            if made is not None:
                yield f"{size} -> {less} everywhere", made


def _list_smaller_sizes(size: int) -> list[int]:
    found = [size // 4, size // 2] if size % 2 == 0 else [1 << (size.bit_length() - 2), 1 << (size.bit_length() - 1)]
    return [one for one in dict.fromkeys(found) if 1 <= one < size]


def _resize_tensors(graph: Graph, sizes: Mapping[tuple[int, int], int]) -> Graph | None:
    """Return the graph with other dims, and update the output sizes of convolutions and pooling to match."""
    made = _set_dims(graph, sizes)
    for _ in range(len(graph.ops) + 1):
        follows = {key: size for op in made.ops for key, size in _find_corrected_spatial_sizes(op).items()}
        if not follows:
            return made
        classes = find_sets_of_equal_dims(made)
        spread = {
            axis: size for key, size in follows.items() for axis in (classes[key].axes if key in classes else {key})
        }
        if min(spread.values()) < 1:
            return None
        made = _set_dims(made, spread)
    return None


def _set_dims(graph: Graph, sizes: Mapping[tuple[int, int], int]) -> Graph:
    dims = {
        tensor.uid: tuple(sizes.get((tensor.uid, axis), dim) for axis, dim in enumerate(tensor.dims))
        for tensor in graph.tensors
    }
    changed = {tensor.uid: dims[tensor.uid] for tensor in graph.tensors if dims[tensor.uid] != tensor.dims}
    return set_dims(graph, changed) if changed else graph


def _find_corrected_spatial_sizes(op: Op) -> dict[tuple[int, int], int]:
    """Return the output sizes that a convolution or pooling computes, where the output tensor has others."""
    relation = find_dim_relation(op)
    if not isinstance(relation, WindowRelation):
        return {}
    with name_operation_in_errors(op):
        tensors, sizes = relation.find_window_outputs_and_sizes({tensor.uid: tensor.dims for _, tensor in op.ports()})
    return {
        (tensor.uid, axis + 2): size
        for tensor in tensors
        for axis, size in enumerate(sizes)
        if tensor.dims[axis + 2] != size
    }


# windows and layouts


def _reset_window_parameters_to_default(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the graph with one window parameter of an operation at its default: padding, stride or dilation."""
    for op in graph.ops:
        for key, value in op.parameters().items():
            if not isinstance(op, Operation) or not isinstance(value, Parameters):
                continue
            for name, plain in _WINDOWS.items():
                parts = value.fields.get(name)
                if not parts or all(part == plain for part in parts):
                    continue
                fields = {**value.fields, name: (plain,) * len(parts)}
                new = Operation(op.type, op.name, {**op.fields, key: Parameters(value.kind, fields)})
                made = try_to_make_graph(partial(_replace_windowed_operation, graph, op, new))
                if made is not None:
                    yield f"{op.name} with {name} {plain}", made


def _replace_windowed_operation(graph: Graph, old: Op, new: Op) -> Graph | None:
    return _resize_tensors(_replace_operation(graph, old, new), {})


def _simplify_tensors(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the graph with simpler tensors: row-major or channels last strides, or float32 for half types."""
    wanted: list[tuple[str, list[Tensor], Callable[[Tensor], Tensor]]] = []

    def make_row_major(tensor: Tensor) -> Tensor:
        return dataclasses.replace(tensor, strides=packed_strides(tensor.dims))

    def make_channels_last(tensor: Tensor) -> Tensor:
        return dataclasses.replace(tensor, strides=channels_last(tensor.dims))

    def make_float32(tensor: Tensor) -> Tensor:
        return dataclasses.replace(tensor, data_type=DataType.FLOAT)

    odd = [tensor for tensor in graph.tensors if tensor.strides != packed_strides(tensor.dims)]
    halves = [t for t in graph.tensors if t.data_type in (DataType.HALF, DataType.BFLOAT16)]
    wanted += [
        ("row-major", odd, make_row_major),
        ("channels last", odd, make_channels_last),
        ("float32", halves, make_float32),
    ]
    wanted += [(f"{tensor.name} row-major", [tensor], make_row_major) for tensor in odd]
    for title, tensors, change in wanted:
        made = try_to_make_graph(partial(replace_tensors, graph, {tensor.uid: change(tensor) for tensor in tensors}))
        if tensors and made is not None:
            yield title, made
