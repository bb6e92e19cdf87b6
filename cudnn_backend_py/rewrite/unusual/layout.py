"""Unusual places in memory: strides other than those of the other tensors, gaps, low alignments. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...generated.enums import (
    DataType,
    DescriptorType,
    TensorReordering,
)
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import LOW_PRECISION_TYPES
from ...graph.ir import Graph, Matmul, Tensor
from ...graph.replace import repack
from ...graph.strides import channels_last, column_major, packed_strides, preserve_order
from ..relations import BLOCK_SCALES
from .blocks import orders_of_scales
from .deviation import IMAGE, Deviation, differ, in_memory, key_of, of_several, order_word, with_fields

__all__ = ["low_alignments", "odd_layouts"]

_D, _T = DescriptorType, DataType


def odd_layouts(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors that lie in memory otherwise than the others, or not without gaps."""
    reshaped = {t.uid for op in graph.ops if op.kind in (_D.OPERATION_RESHAPE,) for _, t in op.ports()}
    tensors = [t for t in graph.tensors if not t.by_value and t.uid not in reshaped and t.ragged_offset is None]
    scales = {t.uid: wanted for t, wanted in orders_of_scales(graph)}
    words = {t.uid: order_word(t) for t in tensors if t.uid not in scales}
    memory = [t for t in tensors if not t.virtual]
    operands = {op.b.uid for op in graph.ops if isinstance(op, Matmul)} | _dequantized(graph)
    counted = Counter(words[t.uid] for t in (memory or tensors) if words.get(t.uid) and t.uid not in operands)
    if len(counted) > 1:
        counted.pop("other", None)
    usual = max(counted, key=lambda word: (counted[word], word == "NHWC")) if counted else ""
    for tensor in tensors:
        wanted: tuple[int, ...] | None = None
        found, needed = f"{list(tensor.strides)}", ""
        if tensor.uid in scales:
            wanted = scales[tensor.uid]
        elif tensor.reordering is not TensorReordering.NONE:
            continue
        elif tensor.span_elements != math.prod(tensor.dims):
            wanted = repack(tensor, tensor.dims).strides
            if any(stride == 0 for dim, stride in zip(tensor.dims, tensor.strides, strict=True) if dim > 1):
                narrow = tensor.uid in operands and tensor.data_type in LOW_PRECISION_TYPES
                wanted = column_major(tensor.dims) if narrow else packed_strides(tensor.dims)
            order = order_word(replace(tensor, strides=wanted))
            if usual and order not in ("", usual) and tensor.rank >= IMAGE and tensor.uid not in operands:
                wanted = channels_last(tensor.dims) if usual == "NHWC" else packed_strides(tensor.dims)
        elif tensor.uid in operands:
            narrow = tensor.data_type in (*LOW_PRECISION_TYPES, _T.INT8) and not tensor.virtual
            if narrow and words[tensor.uid] == "row-major":
                wanted = column_major(tensor.dims)
            elif words[tensor.uid] == "other" and differ(tensor, column_major(tensor.dims)):
                wanted = packed_strides(tensor.dims)
        elif words[tensor.uid] and words[tensor.uid] != usual and (usual != "other"):
            wanted = channels_last(tensor.dims) if usual == "NHWC" else packed_strides(tensor.dims)
            if not tensor.virtual or words[tensor.uid] == "NCHW":
                found = words[tensor.uid] if words[tensor.uid] in ("NHWC", "NCHW") else found
            needed = usual
        if wanted is None or not differ(tensor, wanted):
            continue
        yield Deviation(
            f"strides {tensor.uid}",
            "layout",
            f"{tensor.name} has {'layout' if needed and found in ('NHWC', 'NCHW') else 'strides'} {found}",
            needed if needed and found in ("NHWC", "NCHW") else f"{list(wanted)}",
            f"{tensor.name}: strides {list(tensor.strides)} -> {list(wanted)}",
            "exact",
            (tensor.name,),
            _restride(tensor, wanted),
        )
    whole = [t for t in tensors if words.get(t.uid) == usual == "NCHW" and t.rank >= IMAGE]
    if whole and any(op.kind in CONVOLUTIONS for op in graph.ops):
        shown = [t for t in whole if not t.virtual] or whole
        one = of_several(
            whole, "strides of all", "layout", "NCHW", "NHWC", "exact", strides=lambda t: channels_last(t.dims)
        )
        names = tuple(t.name for t in shown)
        what = f"{', '.join(names[:6])} {'has' if len(names) == 1 else 'have'} layout NCHW"
        yield replace(one, names=names, what=what, title=f"{', '.join(names[:6])}: strides -> channels last (NHWC)")


def _dequantized(graph: Graph) -> set[int]:
    """Return what a product reads as its second operand once it is dequantized."""
    operands = {op.b.uid for op in graph.ops if isinstance(op, Matmul)}
    return {op.inputs()["x"].uid for op in graph.ops if op.kind in BLOCK_SCALES and key_of(op) in operands}


def _restride(tensor: Tensor, wanted: tuple[int, ...]) -> Callable[[Graph], Graph]:
    like = replace(tensor, strides=wanted)
    return lambda graph: with_fields(graph, tensor.uid, strides=lambda one: _in_order(one, like))


def _in_order(tensor: Tensor, like: Tensor) -> tuple[int, ...]:
    """Return strides for a tensor in the order of another, whose dims may be other."""
    if tensor.dims == like.dims:
        return like.strides
    for order in (channels_last, packed_strides) if order_word(like) != "NCHW" else (packed_strides,):
        if tensor.rank >= IMAGE and order(like.dims) == like.strides:
            return order(tensor.dims)
    return preserve_order(tensor.dims, like.strides)


_ALIGNED_BYTES = 16  # what engines load at once


def low_alignments(graph: Graph) -> Iterator[Deviation]:
    for tensor in in_memory(graph):
        if tensor.alignment < _ALIGNED_BYTES and math.prod(tensor.dims) > 1:
            yield Deviation(
                f"alignment {tensor.uid}",
                "alignment",
                f"{tensor.name} has alignment {tensor.alignment} bytes",
                f"{_ALIGNED_BYTES}",
                f"alignment of {tensor.name} {tensor.alignment} -> {_ALIGNED_BYTES} bytes",
                "exact",
                (tensor.name,),
                lambda g, uid=tensor.uid: with_fields(g, uid, alignment=_ALIGNED_BYTES),  # type: ignore[misc]
            )
