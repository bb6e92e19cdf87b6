"""Unusual layouts: strides unlike those of other tensors, gaps, low alignments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from ...frozen import FrozenValue
from ...generated.enums import (
    DataType,
    DescriptorType,
    TensorReordering,
)
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import LOW_PRECISION_TYPES
from ...graph.ir import BLOCK_SCALES, Graph, Matmul, Tensor
from ...graph.replace import make_packed_tensor
from ...graph.strides import channels_last, copy_stride_order, make_column_major_strides, packed_strides
from .blocks import find_packed_strides_of_block_scales
from .deviation import (
    IMAGE,
    Deviation,
    find_axis_order_name,
    find_tensors_in_memory,
    get_operation_key,
    has_layout_unlike_strides,
    make_unusual_property_of_tensors,
    set_tensor_fields,
)

__all__ = ["find_low_alignments", "find_unusual_layouts"]

_D, _T = DescriptorType, DataType


Strides = tuple[int, ...]


class _AxisOrders(FrozenValue):
    """Axis orders of tensors, strides of block scales, and second operands of matmuls in a graph."""

    scales: Mapping[int, Strides]
    operands: Collection[int]
    words: Mapping[int, str]
    usual: str

    def make_usual_strides(self, dims: tuple[int, ...]) -> Strides:
        """Return packed strides for these dims in the axis order of most tensors of the graph."""
        return channels_last(dims) if self.usual == "NHWC" else packed_strides(dims)

    def has_unusual_order(self, tensor: Tensor) -> bool:
        """Return whether a tensor has another axis order than most."""
        return self.words[tensor.uid] not in ("", self.usual) and self.usual != "other"


def _find_axis_orders(graph: Graph, tensors: list[Tensor]) -> _AxisOrders:
    scales = {t.uid: wanted for t, wanted in find_packed_strides_of_block_scales(graph)}
    operands = {op.b.uid for op in graph.ops if isinstance(op, Matmul)} | _find_dequantized_operands(graph)
    words = {t.uid: find_axis_order_name(t) for t in tensors if t.uid not in scales}
    memory = [t for t in tensors if not t.virtual] or tensors
    counted = Counter(words[t.uid] for t in memory if words.get(t.uid) and t.uid not in operands)
    if len(counted) > 1:
        counted.pop("other", None)
    usual = max(counted, key=lambda word: (counted[word], word == "NHWC")) if counted else ""
    return _AxisOrders(scales, operands, words, usual)


def _make_packed_strides(tensor: Tensor, orders: _AxisOrders) -> Strides:
    """Return packed strides in the tensor's own axis order or, for images, in the order of most images."""
    operand = tensor.uid in orders.operands
    wanted = make_packed_tensor(tensor, tensor.dims).strides
    if any(stride == 0 for dim, stride in zip(tensor.dims, tensor.strides, strict=True) if dim > 1):
        narrow = operand and tensor.data_type in LOW_PRECISION_TYPES
        wanted = make_column_major_strides(tensor.dims) if narrow else packed_strides(tensor.dims)
    order = find_axis_order_name(replace(tensor, strides=wanted))
    other = orders.usual and order not in ("", orders.usual)
    return orders.make_usual_strides(tensor.dims) if other and tensor.rank >= IMAGE and not operand else wanted


def _make_matmul_strides(tensor: Tensor, orders: _AxisOrders) -> Strides | None:
    """Return the strides that matmul kernels prefer: column-major for narrow types."""
    word = orders.words[tensor.uid]
    if tensor.data_type in (*LOW_PRECISION_TYPES, _T.INT8) and not tensor.virtual and word == "row-major":
        return make_column_major_strides(tensor.dims)
    return (
        packed_strides(tensor.dims)
        if word == "other" and has_layout_unlike_strides(tensor, make_column_major_strides(tensor.dims))
        else None
    )


def _make_strides_in_usual_order(tensor: Tensor, orders: _AxisOrders) -> Strides:
    return orders.make_usual_strides(tensor.dims)


def _accept_any_strides(tensor: Tensor, orders: _AxisOrders) -> None:
    return None


# The first rule that applies gives the strides a tensor should have; None where they are usual.
_RULES: tuple[tuple[Callable[[Tensor, _AxisOrders], object], Callable[[Tensor, _AxisOrders], Strides | None]], ...] = (
    (lambda tensor, orders: tensor.uid in orders.scales, lambda tensor, orders: orders.scales[tensor.uid]),
    (lambda tensor, orders: tensor.reordering is not TensorReordering.NONE, _accept_any_strides),
    (lambda tensor, orders: tensor.span_elements != math.prod(tensor.dims), _make_packed_strides),
    (lambda tensor, orders: tensor.uid in orders.operands, _make_matmul_strides),
    (lambda tensor, orders: orders.has_unusual_order(tensor), _make_strides_in_usual_order),
)


def find_unusual_layouts(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors with gaps or with strides unlike those of most others."""
    reshaped = {t.uid for op in graph.ops if op.kind is _D.OPERATION_RESHAPE for _, t in op.ports()}
    tensors = [t for t in graph.tensors if not t.by_value and t.uid not in reshaped and t.ragged_offset is None]
    orders = _find_axis_orders(graph, tensors)
    for tensor in tensors:
        rule = next((rule for applies, rule in _RULES if applies(tensor, orders)), _accept_any_strides)
        wanted = rule(tensor, orders)
        if wanted is None or not has_layout_unlike_strides(tensor, wanted):
            continue
        copied = ", with elements copied" if 0 in tensor.strides else ""
        word = orders.words[tensor.uid] if rule is _make_strides_in_usual_order and orders.usual else ""
        named = word == "NCHW" or (word == "NHWC" and not tensor.virtual)
        yield Deviation(
            f"strides {tensor.uid}",
            "layout",
            f"{tensor.name} has {f'layout {word}' if named else f'strides {list(tensor.strides)}'}",
            orders.usual if named else f"{list(wanted)}",
            f"{tensor.name}: strides {list(tensor.strides)} -> {list(wanted)}{copied}",
            "exact",
            (tensor.name,),
            _make_stride_change(tensor, wanted),
        )
    if any(op.kind in CONVOLUTIONS for op in graph.ops):
        yield from _find_row_major_images(tensors, orders)


def _find_row_major_images(tensors: list[Tensor], orders: _AxisOrders) -> Iterator[Deviation]:
    """Yield one :class:`Deviation` if a convolution's images are all row-major, as kernels prefer channels last."""
    whole = [t for t in tensors if orders.words.get(t.uid) == orders.usual == "NCHW" and t.rank >= IMAGE]
    if not whole:
        return
    one = make_unusual_property_of_tensors(
        whole, "strides of all", "layout", "NCHW", "NHWC", "exact", strides=lambda t: channels_last(t.dims)
    )
    names = tuple(t.name for t in ([t for t in whole if not t.virtual] or whole))
    what = f"{', '.join(names[:6])} {'has' if len(names) == 1 else 'have'} layout NCHW"
    yield replace(one, names=names, what=what, title=f"{', '.join(names[:6])}: strides -> channels last (NHWC)")


def _find_dequantized_operands(graph: Graph) -> set[int]:
    """Return the uids of block-scaled tensors that are dequantized to the second operand of a matmul."""
    operands = {op.b.uid for op in graph.ops if isinstance(op, Matmul)}
    return {op.inputs()["x"].uid for op in graph.ops if op.kind in BLOCK_SCALES and get_operation_key(op) in operands}


def _make_stride_change(tensor: Tensor, wanted: tuple[int, ...]) -> Callable[[Graph], Graph]:
    like = replace(tensor, strides=wanted)
    return lambda graph: set_tensor_fields(
        graph, tensor.uid, strides=lambda one: _make_strides_in_axis_order_of(one, like)
    )


def _make_strides_in_axis_order_of(tensor: Tensor, like: Tensor) -> tuple[int, ...]:
    """Return strides for a tensor's dims in the axis order of another tensor."""
    if tensor.dims == like.dims:
        return like.strides
    for order in (channels_last, packed_strides) if find_axis_order_name(like) != "NCHW" else (packed_strides,):
        if tensor.rank >= IMAGE and order(like.dims) == like.strides:
            return order(tensor.dims)
    return copy_stride_order(tensor.dims, like.strides)


_ALIGNED_BYTES = 16  # what engines load at once


def find_low_alignments(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors with an alignment below 16 bytes."""
    for tensor in find_tensors_in_memory(graph):
        if tensor.alignment < _ALIGNED_BYTES and math.prod(tensor.dims) > 1:
            yield Deviation(
                f"alignment {tensor.uid}",
                "alignment",
                f"{tensor.name} has alignment {tensor.alignment} byte{'' if tensor.alignment == 1 else 's'}",
                f"{_ALIGNED_BYTES}",
                f"alignment of {tensor.name} {tensor.alignment} -> {_ALIGNED_BYTES} bytes",
                "exact",
                (tensor.name,),
                lambda g, uid=tensor.uid: set_tensor_fields(g, uid, alignment=_ALIGNED_BYTES),  # type: ignore[misc]
            )
