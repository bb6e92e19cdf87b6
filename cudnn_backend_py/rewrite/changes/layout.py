"""Changes of tensor layouts: alignment, strides, order of elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, TensorReordering
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import ELEMENT_BITS
from ...graph.ir import Graph, Matmul, Tensor
from ...graph.replace import (
    make_packed_tensor,
)
from ...graph.strides import (
    channels_last,
    has_interleaved_dims,
    has_overlapping_elements,
    make_strides_in_order,
    packed_strides,
)
from ..shapes import compute_scale_dims_of_blocks
from ..unusual.deviation import IMAGE, has_layout_unlike_strides
from .change import (
    ATTENTION,
    Change,
    find_tensors_in_memory,
    join_names,
    register_change_maker,
    yield_field_change,
)

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType
_NEEDED_BYTES = 16  # what engines load at once


@register_change_maker("alignment")
def _increase_tensor_alignment(graph: Graph) -> Iterator[Change]:
    """Yield the graph with tensors aligned to their elements, or to 16 bytes; the caller must align the buffers."""
    yield from align_tensors_to_element_size(graph)
    low = [
        tensor
        for tensor in find_tensors_in_memory(graph)
        if tensor.alignment < _NEEDED_BYTES and math.prod(tensor.dims) > 1
    ]
    found = ", ".join(f"{tensor.name} {tensor.alignment}" for tensor in low[:6])
    title = f"alignment of {found} -> {_NEEDED_BYTES} bytes"
    yield from yield_field_change("alignment", title, "exact", graph, low, alignment=_NEEDED_BYTES)


def align_tensors_to_element_size(graph: Graph) -> Iterator[Change]:
    """Yield the graph where each alignment is a multiple of the element size, which cuDNN requires of every tensor."""
    sizes = {tensor.uid: -(-ELEMENT_BITS[tensor.data_type] // 8) for tensor in graph.tensors}
    low = [tensor for tensor in graph.tensors if tensor.alignment % sizes[tensor.uid] and not tensor.by_value]
    found = ", ".join(f"{tensor.name} {tensor.alignment} -> {sizes[tensor.uid]}" for tensor in low[:6])
    title = f"alignment of {found} bytes, the element size"
    yield from yield_field_change("alignment", title, "exact", graph, low, alignment=lambda tensor: sizes[tensor.uid])


@register_change_maker("layout")
def _change_layout(graph: Graph) -> Iterator[Change]:
    """Yield the graph with other strides: channels last for convolutions, else row-major or innermost contiguous."""
    plain_order = [tensor for tensor in graph.tensors if tensor.reordering is TensorReordering.NONE]
    tensors = [tensor for tensor in plain_order if not tensor.by_value and math.prod(tensor.dims) > 1]
    tensors.sort(key=lambda tensor: not has_interleaved_dims(tensor.dims, tensor.strides))
    # A reshape reads its tensors in the order of their strides: with others it would be another reshape. Ragged offsets
    # count elements, gaps included.
    reshaped = {t.uid for op in graph.ops if op.kind is _D.OPERATION_RESHAPE for _, t in op.ports()}
    same = _find_reshapes_of_same_memory(graph)
    both = [tensor for tensor in tensors if tensor.uid in same]
    tensors = [tensor for tensor in tensors if tensor.uid not in reshaped]
    memory = [tensor for tensor in tensors if not tensor.virtual and tensor.ragged_offset is None]
    for tensor in memory:
        if has_interleaved_dims(tensor.dims, tensor.strides):
            is_overlapping = has_overlapping_elements(tensor.dims, tensor.strides)
            title = f"strides -> {'without overlap' if is_overlapping else 'not interleaved'}"
            yield from _change_strides(graph, [tensor], _make_packed_strides, title)
    yield from _change_strides(graph, [*memory, *both], _make_packed_strides, "strides -> without gaps")
    for tensor in tensors:
        if tensor.virtual:
            yield from _change_strides(graph, [tensor], _make_packed_strides, "strides -> without gaps")
    yield from _change_strides_of_size_1_dims(graph, [*memory, *(t for t in tensors if t.virtual)])
    plain = [tensor for tensor in tensors if tensor.ragged_offset is None]
    if not any(isinstance(op, Matmul) or op.kind in ATTENTION for op in graph.ops):
        title = "strides -> channels last (NHWC)"
        yield from _change_strides(graph, [t for t in plain if t.rank >= 4], lambda t: channels_last(t.dims), title)
    if any(op.kind in CONVOLUTIONS for op in graph.ops):
        return
    memory = [tensor for tensor in plain if not tensor.virtual]
    for tensor in memory:
        yield from _change_strides(graph, [tensor], lambda t: packed_strides(t.dims), "strides -> row-major")
        yield from _change_strides(
            graph, [tensor], _make_innermost_contiguous_strides, "strides -> innermost dim contiguous"
        )
    uids = {tensor.uid for tensor in memory}
    for op in graph.ops:
        if isinstance(op, Matmul) and op.b.uid in uids:
            yield from _change_strides(
                graph, [op.b], _make_column_major_strides, "strides -> contracted dim contiguous"
            )
    yield from _change_strides(graph, memory, lambda t: packed_strides(t.dims), "strides of all -> row-major", least=2)
    rows = [tensor for tensor in memory if tensor.dims[-1] > 1]
    yield from _change_strides(
        graph, rows, _make_strides_with_aligned_rows, "strides -> rows of a multiple of 16 bytes"
    )
    title = "strides, also of virtual tensors, -> row-major"
    yield from _change_strides(graph, plain, lambda t: packed_strides(t.dims), title)


def _change_strides_of_size_1_dims(graph: Graph, tensors: list[Tensor]) -> Iterator[Change]:
    """Yield the graph with channels-last strides also for dims of size 1, which cuDNN 9.14 checks."""
    new = {t.uid: channels_last(t.dims) for t in tensors if t.rank >= IMAGE}
    wrong = [
        t for t in tensors if t.uid in new and t.strides != new[t.uid] and not has_layout_unlike_strides(t, new[t.uid])
    ]
    if wrong:
        shown = ", ".join(f"{t.name} {list(t.strides)} -> {list(new[t.uid])}" for t in wrong[:4])
        title = f"strides of dims of size 1 as in channels last (NHWC): {shown}"
        yield from yield_field_change("layout", title, "exact", graph, wrong, strides=lambda t: new[t.uid])


def _find_reshapes_of_same_memory(graph: Graph) -> set[int]:
    """Return the uids of inputs and outputs of reshapes that only reorder the axes of a tensor."""
    found: set[int] = set()
    for op in graph.ops:
        x, y = (dict(op.ports()).get(port) for port in ("x", "y"))
        if op.kind is not _D.OPERATION_RESHAPE or x is None or y is None or (x.ragged_offset or y.ragged_offset):
            continue
        if not (x.virtual and y.virtual):
            axes = [sorted(zip(tensor.strides, tensor.dims, strict=True)) for tensor in (x, y)]
            if axes[0] == axes[1] and not has_overlapping_elements(x.dims, x.strides):
                found |= {x.uid, y.uid}
    return found


def _make_packed_strides(tensor: Tensor) -> tuple[int, ...]:
    return make_packed_tensor(tensor, tensor.dims).strides


def _change_strides(
    graph: Graph, tensors: list[Tensor], wanted: Callable[[Tensor], tuple[int, ...]], title: str, least: int = 1
) -> Iterator[Change]:
    wrong = [tensor for tensor in tensors if has_layout_unlike_strides(tensor, wanted(tensor))]
    if len(wrong) < least:
        return
    shown = f"{list(wrong[0].strides)} -> {list(wanted(wrong[0]))}" if len(wrong) == 1 else ""
    copied = (
        ", with elements copied"
        if any(has_overlapping_elements(tensor.dims, tensor.strides) for tensor in wrong)
        else ""
    )
    what = f"{join_names(wrong)}: {title}" + (f", {shown}" if shown else "") + copied
    yield from yield_field_change("layout", what, "exact", graph, wrong, strides=wanted)


def _make_innermost_contiguous_strides(tensor: Tensor) -> tuple[int, ...]:
    return _make_strides_with_fastest_axis(tensor, last=tensor.rank - 1)


def _make_column_major_strides(tensor: Tensor) -> tuple[int, ...]:
    return _make_strides_with_fastest_axis(tensor, last=tensor.rank - 2)


def _make_strides_with_fastest_axis(tensor: Tensor, last: int) -> tuple[int, ...]:
    order = sorted(range(tensor.rank), key=lambda axis: (axis != last, tensor.strides[axis], -axis))
    return make_strides_in_order(tensor.dims, order)


def _make_strides_with_aligned_rows(tensor: Tensor) -> tuple[int, ...]:
    order = sorted(range(tensor.rank), key=lambda axis: (-tensor.strides[axis], axis))
    multiple = max(1, _NEEDED_BYTES * 8 // ELEMENT_BITS[tensor.data_type])
    strides, size = [0] * tensor.rank, 1
    for position, axis in enumerate(reversed(order)):
        strides[axis] = size
        size *= tensor.dims[axis]
        if position == 0:
            size = -(-size // multiple) * multiple
    return tuple(strides)


@register_change_maker("reordering")
def _remove_reordering(graph: Graph) -> Iterator[Change]:
    """Yield the graph with elements in plain order, without reordering: of all tensors that have one, or of each."""
    found = [tensor for tensor in graph.tensors if tensor.reordering is not TensorReordering.NONE]
    dims = compute_scale_dims_of_blocks(graph, tiled=False)
    for chosen in dict.fromkeys([tuple(found), *((tensor,) for tensor in found)]):
        orders = " and ".join(dict.fromkeys(tensor.reordering.name for tensor in chosen))
        title = f"{join_names(chosen)}: reordering {orders} -> NONE, elements in another order in memory"
        padded = [tensor for tensor in chosen if tensor.uid in dims]
        for tensor in padded:
            title += f", {tensor.name} without padding to tiles {list(tensor.dims)} -> {list(dims[tensor.uid])}"
        plain = {tensor.uid: make_packed_tensor(tensor, dims[tensor.uid]) for tensor in padded}
        yield from yield_field_change(
            "reordering",
            title,
            "exact",
            graph,
            list(chosen),
            reordering=TensorReordering.NONE,
            dims=lambda tensor, plain=plain: plain.get(tensor.uid, tensor).dims,
            strides=lambda tensor, plain=plain: plain.get(tensor.uid, tensor).strides,
        )
