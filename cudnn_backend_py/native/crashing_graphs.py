"""Graphs that end the process while cuDNN selects engines or builds a plan, on any GPU.

Each condition looks at descriptors as C gets them: set on native descriptors, or lowered from a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..frozen import FrozenValue
from ..generated.enums import AttributeName as Attr
from ..generated.enums import DataType, DescriptorType, NormMode, PointwiseMode, ResampleMode
from ..system.version import VersionRange

__all__ = ["CRASHING_GRAPHS", "AttributeValues", "CrashingGraph", "NestedDescriptor"]

AttributeValues = Mapping[Attr, Sequence[Any]]  # the values of each attribute that was set


class NestedDescriptor:
    """A descriptor inside another one: its type and its attributes."""

    def __init__(self, kind: DescriptorType, given: AttributeValues) -> None:
        self.kind = kind
        self.given = given

    def get_values(self, *path: Attr) -> tuple[Any, ...]:
        """Return the values at a path of attributes through nested descriptors; empty if unknown."""
        values: Sequence[Any] = (self,)
        for attribute in path:
            values = values[0].given.get(attribute, ()) if values and isinstance(values[0], NestedDescriptor) else ()
        return tuple(values)

    def get_first_value(self, *path: Attr) -> Any:
        """Return the first value at a path of attributes through nested descriptors; None if unknown."""
        return next(iter(self.get_values(*path)), None)


_MATMUL, _POINTWISE = DescriptorType.OPERATION_MATMUL, DescriptorType.OPERATION_POINTWISE
_NORM, _EXPERT_MATMUL = DescriptorType.OPERATION_NORM_FORWARD, DescriptorType.OPERATION_MOE_GROUPED_MATMUL
_RESAMPLE, _RESAMPLE_GRADIENT = DescriptorType.OPERATION_RESAMPLE_FWD, DescriptorType.OPERATION_RESAMPLE_BWD

_ROW_NORM_MODES = (NormMode.LAYER_NORM, NormMode.RMS_NORM, NormMode.ADA_LAYER_NORM)
_VECTOR_TYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8)
_POINTWISE_INPUTS = (
    *(Attr.OPERATION_POINTWISE_XDESC, Attr.OPERATION_POINTWISE_BDESC, Attr.OPERATION_POINTWISE_TDESC),
    Attr.OPERATION_POINTWISE_DYDESC,
)
_POINTWISE_GRADIENT_MODES = tuple(mode for mode in PointwiseMode if mode.name.endswith("_BWD"))


def _has_norm_with_activation_gradient(ops: Sequence[NestedDescriptor]) -> bool:
    """Return whether an activation gradient reads the virtual result of a row norm in float32."""
    by_kind = {op.kind: op for op in ops}
    norm, gradient = by_kind[_NORM], by_kind[_POINTWISE]
    return (
        norm.get_first_value(Attr.OPERATION_NORM_FWD_MODE) in _ROW_NORM_MODES
        and norm.get_first_value(Attr.OPERATION_NORM_FWD_XDESC, Attr.TENSOR_DATA_TYPE) == DataType.FLOAT
        and bool(norm.get_first_value(Attr.OPERATION_NORM_FWD_YDESC, Attr.TENSOR_IS_VIRTUAL))
        and gradient.get_first_value(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, Attr.POINTWISE_MODE)
        in _POINTWISE_GRADIENT_MODES
    )


def _has_bilinear_resampling_over_one_dim(ops: Sequence[NestedDescriptor]) -> bool:
    """Return whether there is BILINEAR resampling over one dim."""
    return any(
        op.get_first_value(Attr.OPERATION_RESAMPLE_FWD_DESC, Attr.RESAMPLE_MODE) == ResampleMode.BILINEAR
        and len(op.get_values(Attr.OPERATION_RESAMPLE_FWD_XDESC, Attr.TENSOR_DIMENSIONS)) == 3
        for op in ops
    )


def _find_max_pool_gradients(ops: Sequence[NestedDescriptor]) -> Iterator[NestedDescriptor]:
    """Yield the gradients of max pooling with channels last."""
    for op in ops:
        dy = op.get_first_value(Attr.OPERATION_RESAMPLE_BWD_DYDESC)
        if (
            op.get_first_value(Attr.OPERATION_RESAMPLE_BWD_DESC, Attr.RESAMPLE_MODE) == ResampleMode.MAXPOOL
            and isinstance(dy, NestedDescriptor)
            and _is_channels_last(dy.get_values(Attr.TENSOR_DIMENSIONS), dy.get_values(Attr.TENSOR_STRIDES))
        ):
            yield op


def _has_max_pool_gradient_without_index(ops: Sequence[NestedDescriptor]) -> bool:
    """Return whether a gradient of max pooling, channels last, is computed from image and result, not an index."""
    both = {Attr.OPERATION_RESAMPLE_BWD_XDESC, Attr.OPERATION_RESAMPLE_BWD_YDESC}
    return any(
        both <= op.given.keys() and Attr.OPERATION_RESAMPLE_BWD_IDXDESC not in op.given
        for op in _find_max_pool_gradients(ops)
    )


def _has_max_pool_gradient_over_one_dim(ops: Sequence[NestedDescriptor]) -> bool:
    """Return whether there is a gradient of max pooling over one dim, channels last."""
    return any(
        len(op.get_values(Attr.OPERATION_RESAMPLE_BWD_DYDESC, Attr.TENSOR_DIMENSIONS)) == 3
        for op in _find_max_pool_gradients(ops)
    )


def _has_select_after_matrix_vector_product(ops: Sequence[NestedDescriptor]) -> bool:
    """Return whether BINARY_SELECT with a full-size mask follows a matrix-vector product of tensors in memory.

    The engine for such products has no other operations than elementwise ones, without indices, no parts of tensors,
    and booleans only in multiples of eight.
    """
    product = next(op for op in ops if op.kind is _MATMUL)
    others = [op for op in ops if op is not product]
    whole = product.get_values(Attr.OPERATION_MATMUL_CDESC, Attr.TENSOR_DIMENSIONS)
    sides = [product.get_first_value(side) for side in (Attr.OPERATION_MATMUL_ADESC, Attr.OPERATION_MATMUL_BDESC)]
    modes = [op.get_first_value(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, Attr.POINTWISE_MODE) for op in others]
    read = [
        (item.get_values(Attr.TENSOR_DIMENSIONS), item.get_first_value(Attr.TENSOR_DATA_TYPE))
        for op in others
        for item in map(op.get_first_value, _POINTWISE_INPUTS)
        if isinstance(item, NestedDescriptor) and not item.get_first_value(Attr.TENSOR_IS_VIRTUAL)
    ]
    return (
        1 in whole[-2:]
        and all(side.get_first_value(Attr.TENSOR_DATA_TYPE) in _VECTOR_TYPES for side in sides)
        and not any(side.get_first_value(Attr.TENSOR_IS_VIRTUAL) for side in sides)
        and PointwiseMode.GEN_INDEX not in modes
        and any(
            mode == PointwiseMode.BINARY_SELECT
            and op.get_values(Attr.OPERATION_POINTWISE_TDESC, Attr.TENSOR_DIMENSIONS) == whole
            for op, mode in zip(others, modes, strict=True)
        )
        and all(dims == whole or max(dims) == 1 for dims, _ in read)
        and not any(kind == DataType.BOOLEAN and whole[-1] % 8 for _, kind in read)
    )


def _is_channels_last(dims: Sequence[int], strides: Sequence[int]) -> bool:
    if len(dims) < 3 or len(strides) != len(dims):
        return False
    _, channels, *sizes = dims
    wanted = [channels * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return list(strides) == [channels * math.prod(sizes), 1, *wanted]


class CrashingGraph(FrozenValue):
    """A kind of graph that ends the process, with the affected cuDNN versions.

    ``code`` is also that of the row in the table of known issues. ``kinds`` decides by the kinds of the operations
    alone; ``condition`` is called only for operations that it lets through.
    """

    code: str
    description: str
    fix: str
    versions: VersionRange
    kinds: Callable[[Sequence[DescriptorType]], bool]
    condition: Callable[[Sequence[NestedDescriptor]], bool]

    def matches(self, ops: Sequence[NestedDescriptor]) -> bool:
        """Return whether a graph of these operations ends the process in this way."""
        return self.kinds([op.kind for op in ops]) and self.condition(ops)


CRASHING_GRAPHS: tuple[CrashingGraph, ...] = (
    CrashingGraph(
        "norm-activation-gradient",
        "a row norm in float32 followed by an activation gradient that reads its virtual result",
        "move the gradient to a separate graph",
        VersionRange(until=(9, 24, 0)),  # 9.16.0 to 9.22.0; 9.24.0 refuses it
        lambda kinds: sorted(kinds) == sorted((_NORM, _POINTWISE)),
        _has_norm_with_activation_gradient,
    ),
    CrashingGraph(
        "experts-and-matmul",
        "a grouped matmul of experts together with another matmul",
        "move the other matmul to a separate graph",
        VersionRange(since=(9, 18, 0)),  # to 9.28.0
        lambda kinds: {_EXPERT_MATMUL, _MATMUL} <= set(kinds),
        lambda ops: True,
    ),
    CrashingGraph(
        "bilinear-one-dim",
        "BILINEAR resampling over one dim",
        "describe the tensors with an additional dim of 1",
        VersionRange(),  # 9.16.0 to 9.28.0
        lambda kinds: _RESAMPLE in kinds,
        _has_bilinear_resampling_over_one_dim,
    ),
    CrashingGraph(
        "max-pool-gradient-of-both",
        "the gradient of max pooling, channels last, computed from image and result instead of an index",
        "give it the index tensor that the forward pass writes",
        VersionRange(until=(9, 20, 0)),  # 9.16.0 to 9.19.0; 9.20.0 refuses it
        lambda kinds: _RESAMPLE_GRADIENT in kinds,
        _has_max_pool_gradient_without_index,
    ),
    CrashingGraph(
        "max-pool-gradient-one-dim",
        "the gradient of max pooling over one dim, channels last",
        "describe the tensors with an additional dim of 1",
        VersionRange(),  # 9.14.0 to 9.28.0: divides by the stride of a second dim, which it reads past the one there is
        lambda kinds: _RESAMPLE_GRADIENT in kinds,
        _has_max_pool_gradient_over_one_dim,
    ),
    CrashingGraph(
        "vector-product-select",
        "a matrix-vector product followed by BINARY_SELECT with a full-size mask",
        "use cuDNN 9.28.0 or later, or move the selection to a separate graph",
        VersionRange(since=(9, 21, 0), until=(9, 28, 0)),
        lambda kinds: kinds.count(_MATMUL) == 1 and set(kinds) == {_MATMUL, _POINTWISE},
        _has_select_after_matrix_vector_product,
    ),
)
