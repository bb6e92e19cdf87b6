"""Changes of tensor storage: virtual or in memory, by value or in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...graph.data_types import FP8_TYPES, HALF_TYPES
from ...graph.ir import Graph, Matmul, Pointwise
from ...graph.replace import (
    iterate_unused_uids,
)
from .change import (
    Change,
    Effect,
    find_read_uids,
    find_written_uids,
    join_names,
    register_change_maker,
    yield_change,
    yield_field_change,
)

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType
_FLOATS = (_T.FLOAT, _T.DOUBLE, *HALF_TYPES, *FP8_TYPES)


@register_change_maker("virtual")
def _switch_tensor_between_virtual_and_memory(graph: Graph) -> Iterator[Change]:
    """Yield the graph with a tensor between operations in memory instead of virtual, or vice versa.

    Of a graph that writes nothing, with the results in memory that no operation reads, as others would stay unwritten.
    """
    top = {tensor.uid for op in graph.ops for _, tensor in op.ports()}
    written, read = find_written_uids(graph) & top, find_read_uids(graph)
    last = [tensor for tensor in graph.tensors if tensor.uid in written - read]
    if all(tensor.virtual for tensor in graph.tensors if tensor.uid in written):
        title = f"{join_names(last)}: virtual -> in memory"
        yield from yield_field_change("virtual", title, "exact", graph, last, virtual=False)
        return
    between = written & read
    for tensor in graph.tensors:
        if tensor.uid not in between:
            continue
        if tensor.virtual:
            title = f"{tensor.name}: virtual -> in memory"
            yield from yield_field_change("virtual", title, "exact", graph, [tensor], virtual=False)
        elif tensor.ragged_offset is None:
            title = f"{tensor.name}: in memory -> virtual (no one outside reads it)"
            effect: Effect = "exact" if tensor.scratch else "idea"  # an output, as far as the graph reports
            yield from yield_field_change("virtual", title, effect, graph, [tensor], virtual=True, scratch=False)
    yield from _write_matmul_through_identity(graph)


def _write_matmul_through_identity(graph: Graph) -> Iterator[Change]:
    """Yield the graph where a matmul writes a virtual float32 tensor, and an identity converts it to the output."""
    for op in graph.ops:
        if not isinstance(op, Matmul) or op.c.virtual or op.c.scratch or op.c.by_value or op.c.data_type is _T.FLOAT:
            continue
        title = f"{op.c.name}: written by the matmul -> written by an identity of a virtual f32 tensor"
        yield from yield_change("virtual", title, "exact", [op.c], lambda op=op: _add_identity(graph, op))  # type: ignore[misc]


def _add_identity(graph: Graph, op: Matmul) -> Graph:
    name, uid = f"{op.c.name}_f32", next(iterate_unused_uids(graph))
    middle = dataclasses.replace(op.c, name=name, uid=uid, virtual=True, data_type=_T.FLOAT)
    product = dataclasses.replace(op, c=middle, name=name)
    out = Pointwise(name=op.c.name, mode=_P.IDENTITY, x=middle, y=op.c)
    return Graph((*(product if one is op else one for one in graph.ops), out), graph.name)


@register_change_maker("scale")
def _pass_number_by_value_or_memory(graph: Graph) -> Iterator[Change]:
    """Yield the graph with a number by value instead of in memory, or vice versa."""
    written = find_written_uids(graph)
    for tensor in graph.tensors:
        if math.prod(tensor.dims) != 1 or tensor.virtual or tensor.uid in written:
            continue
        if tensor.by_value:
            title = f"{tensor.name}: by value -> in memory"
            yield from yield_field_change("scale", title, "exact", graph, [tensor], by_value=False, value=None)
        elif tensor.data_type in _FLOATS:
            title = f"{tensor.name}: in memory -> by value"
            yield from yield_field_change("scale", title, "exact", graph, [tensor], by_value=True)
