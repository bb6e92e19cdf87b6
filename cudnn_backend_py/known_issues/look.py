"""Helpers for conditions: operations by kind, convolutions, memory layouts, properties of attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..generated.enums import DescriptorType, PointwiseMode
from ..generated.operations import CONVOLUTIONS
from ..graph.attention.known_issue import AttentionUse
from ..graph.data_types import HALF_TYPES
from ..graph.ir import Graph, Matmul, Operation, Pointwise, Tensor
from ..graph.strides import channels_last, packed_strides

__all__ = [
    "Convolution",
    "convolutions",
    "decoding",
    "half_attention",
    "has_gaps",
    "in_memory",
    "is_row_major",
    "is_row_major_only",
    "matmuls",
    "of_kind",
    "of_mode",
    "pointwise_after",
    "stats_not_packed",
    "the_matmul",
]


class Convolution(NamedTuple):
    """A convolution in any direction, by the roles of its tensors."""

    op: Operation
    image: Tensor
    weights: Tensor

    @property
    def forward(self) -> bool:
        """Whether it is the forward pass."""
        return self.op.kind is DescriptorType.OPERATION_CONVOLUTION_FORWARD

    @property
    def depthwise(self) -> bool:
        """Whether each channel has a filter of its own."""
        return self.weights.dims[1] == 1 < self.image.dims[1]


def convolutions(graph: Graph) -> Iterator[Convolution]:
    """Yield the convolutions of a graph."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            found = Convolution(op, op.fields.get("x") or op.fields["dx"], op.fields.get("w") or op.fields["dw"])
            if min(found.image.rank, found.weights.rank) > 1:
                yield found


def of_kind(graph: Graph, *kinds: DescriptorType) -> Iterator[Operation]:
    """Yield the operations of the given kinds."""
    return (op for op in graph.ops if isinstance(op, Operation) and op.kind in kinds)


def of_mode(graph: Graph, *modes: PointwiseMode) -> Iterator[Pointwise]:
    """Yield the pointwise operations of the given modes."""
    return (op for op in graph.ops if isinstance(op, Pointwise) and op.mode in modes)


def matmuls(graph: Graph) -> list[Matmul]:
    """Return the matmuls of a graph."""
    return [op for op in graph.ops if isinstance(op, Matmul)]


def the_matmul(graph: Graph) -> Matmul | None:
    """Return the only matmul of a graph; None for none or several, as in attention."""
    found = matmuls(graph)
    return found[0] if len(found) == 1 else None


def in_memory(graph: Graph) -> Iterator[Tensor]:
    """Yield the tensors with elements in device memory."""
    return (tensor for tensor in graph.tensors if not (tensor.virtual or tensor.by_value))


def has_gaps(tensor: Tensor) -> bool:
    """Return whether unused memory lies between the elements of a tensor."""
    return tensor.span_elements > math.prod(tensor.dims)


def is_row_major(tensor: Tensor) -> bool:
    """Return whether a tensor is packed with the last axis fastest; axes of one element may have any stride."""
    wanted = zip(tensor.dims, tensor.strides, packed_strides(tensor.dims), strict=True)
    return all(dim == 1 or have == need for dim, have, need in wanted)


def is_row_major_only(tensor: Tensor) -> bool:
    """Return whether a tensor is row-major and not channels last as well."""
    return tensor.strides == packed_strides(tensor.dims) != channels_last(tensor.dims)


def pointwise_after(graph: Graph, tensors: Iterable[Tensor]) -> Iterator[Pointwise]:
    """Yield the elementwise operations that depend on any of the tensors through elementwise operations only."""
    reached = {tensor.uid for tensor in tensors}
    for op in graph.ops:
        if isinstance(op, Pointwise) and any(item.uid in reached for item in op.inputs().values()):
            reached |= {item.uid for item in op.outputs().values()}
            yield op


def half_attention(use: AttentionUse) -> bool:
    """Attention in float16 or bfloat16."""
    return use.problem.data_type in HALF_TYPES


def decoding(use: AttentionUse) -> bool:
    """One query per sequence, forward."""
    return not use.backward and use.problem.seq_q == 1


def stats_not_packed(use: AttentionUse) -> bool:
    """Dense statistics in another order than b, h, s."""
    p = use.problem
    dims, strides = p.dims("stats"), p.strides("stats")
    wanted = zip(dims, strides, packed_strides(dims), strict=True)
    return (
        (use.backward or p.stats) and not p.ragged_stats and any(dim > 1 and have != need for dim, have, need in wanted)
    )
