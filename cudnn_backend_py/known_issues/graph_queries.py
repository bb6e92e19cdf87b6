"""Helpers for conditions of known issues: find operations and tensors, test layouts and attention options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..frozen import FrozenValue
from ..generated.enums import DescriptorType, PointwiseMode, TensorReordering
from ..generated.operations import CONVOLUTIONS
from ..graph.attention.known_issue import AttentionUse
from ..graph.data_types import HALF_TYPES
from ..graph.ir import Graph, Matmul, Operation, Pointwise, Tensor
from ..graph.shapes import SCALE_TILE
from ..graph.strides import channels_last, packed_strides

__all__ = [
    "Convolution",
    "find_convolutions",
    "find_dependent_pointwise",
    "find_matmuls",
    "find_only_matmul",
    "find_operations_of_kind",
    "find_pointwise_of_mode",
    "has_memory_gaps",
    "has_unpacked_stats",
    "holds_block_scales_in_partial_tiles",
    "is_decoding",
    "is_half_precision_attention",
    "is_row_major_but_not_channels_last",
    "iterate_tensors_in_memory",
]


class Convolution(FrozenValue):
    """A convolution or one of its gradients, with the tensors in the roles of image and weights."""

    op: Operation
    image: Tensor
    weights: Tensor

    @property
    def forward(self) -> bool:
        """Whether the convolution is a forward pass."""
        return self.op.kind is DescriptorType.OPERATION_CONVOLUTION_FORWARD

    @property
    def depthwise(self) -> bool:
        """Whether each channel has its own filter."""
        return self.weights.dims[1] == 1 < self.image.dims[1]


def holds_block_scales_in_partial_tiles(tensor: Tensor) -> bool:
    """Whether a tensor holds block scales in tiles (F8_128x4), but its last two dims, in either order, are no tiles."""
    if tensor.reordering is not TensorReordering.F8_128x4 or tensor.rank < 2:
        return False
    dims = tensor.dims[-2:]
    return not any(
        all(size % tile == 0 for size, tile in zip(one, SCALE_TILE, strict=True)) for one in (dims, dims[::-1])
    )


def find_convolutions(graph: Graph) -> Iterator[Convolution]:
    """Yield the convolutions of a graph, in any direction."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            found = Convolution(op, op.fields.get("x") or op.fields["dx"], op.fields.get("w") or op.fields["dw"])
            if min(found.image.rank, found.weights.rank) > 1:
                yield found


def find_operations_of_kind(graph: Graph, *kinds: DescriptorType) -> Iterator[Operation]:
    """Yield a graph's operations of the given descriptor types."""
    return (op for op in graph.ops if isinstance(op, Operation) and op.kind in kinds)


def find_pointwise_of_mode(graph: Graph, *modes: PointwiseMode) -> Iterator[Pointwise]:
    """Yield a graph's pointwise operations of the given modes."""
    return (op for op in graph.ops if isinstance(op, Pointwise) and op.mode in modes)


def find_matmuls(graph: Graph) -> list[Matmul]:
    """Return the matmuls of a graph."""
    return [op for op in graph.ops if isinstance(op, Matmul)]


def find_only_matmul(graph: Graph) -> Matmul | None:
    """Return the only matmul of a graph; None if there are none or several, as in attention."""
    found = find_matmuls(graph)
    return found[0] if len(found) == 1 else None


def iterate_tensors_in_memory(graph: Graph) -> Iterator[Tensor]:
    """Yield the tensors in device memory: neither virtual nor by value."""
    return (tensor for tensor in graph.tensors if not (tensor.virtual or tensor.by_value))


def has_memory_gaps(tensor: Tensor) -> bool:
    """Return whether a tensor has unused memory between its elements."""
    return tensor.span_elements > math.prod(tensor.dims)


def is_row_major_but_not_channels_last(tensor: Tensor) -> bool:
    """Return whether a tensor is row-major and its strides are not at the same time channels last."""
    return tensor.strides == packed_strides(tensor.dims) != channels_last(tensor.dims)


def find_dependent_pointwise(graph: Graph, tensors: Iterable[Tensor]) -> Iterator[Pointwise]:
    """Yield the pointwise operations that depend on one of the tensors through pointwise operations only."""
    reached = {tensor.uid for tensor in tensors}
    for op in graph.ops:
        if isinstance(op, Pointwise) and any(item.uid in reached for item in op.inputs().values()):
            reached |= {item.uid for item in op.outputs().values()}
            yield op


def is_half_precision_attention(use: AttentionUse) -> bool:
    """Whether attention has inputs in float16 or bfloat16."""
    return use.problem.data_type in HALF_TYPES


def is_decoding(use: AttentionUse) -> bool:
    """Whether a forward pass has one query per sequence."""
    return not use.backward and use.problem.seq_q == 1


def has_unpacked_stats(use: AttentionUse) -> bool:
    """Whether the statistics are dense but not packed in the order b, h, s."""
    p = use.problem
    dims, strides = p.dims("stats"), p.strides("stats")
    wanted = zip(dims, strides, packed_strides(dims), strict=True)
    return (
        (use.backward or p.stats) and not p.ragged_stats and any(dim > 1 and have != need for dim, have, need in wanted)
    )
