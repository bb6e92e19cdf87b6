"""Evaluation of matmuls and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DescriptorType, ReduceTensorOp
from ..graph.data_types import HALF_TYPES
from ..graph.formats import get_largest_finite
from ..graph.ir import Matmul, Reduction, Tensor
from .pointwise import run_pointwise
from .run import Handler, Numbers, Run, require_operation_class

__all__ = ["OPERATIONS", "REDUCTIONS", "append_dims", "make_length_mask", "matmul"]

Floats = NDArray[np.float64]


def append_dims(values: Numbers, rank: int) -> Numbers:
    """Append dims of size 1 to an array with one value per batch entry, up to the given rank."""
    return values.reshape(*values.shape, *(1,) * (rank - values.ndim))


def make_length_mask(dims: tuple[int, ...], axis: int, lengths: Numbers) -> NDArray[np.bool_]:
    """Return a mask over `dims`: whether the index along an axis is below the batch entry's length."""
    shape = [1] * len(dims)
    shape[axis] = dims[axis]
    return np.arange(dims[axis]).reshape(shape) < append_dims(lengths, len(dims))


def matmul(a: Floats, b: Floats) -> Floats:
    """Return a @ b; where a batch dim is smaller than the other's, each of its matrices is repeated to match."""
    batch = tuple(map(max, a.shape[:-2], b.shape[:-2]))
    product: Floats = _repeat_to_batch(a, batch) @ _repeat_to_batch(b, batch)
    return product


def _repeat_to_batch(x: Floats, batch: tuple[int, ...]) -> Floats:
    for axis, dim in enumerate(batch):
        if 1 < x.shape[axis] < dim:
            x = np.repeat(x, dim // x.shape[axis], axis)
    return x


def run_matmul(run: Run, op: Matmul) -> None:
    require_operation_class(op, Matmul)
    a, b, c = run.read_floats(op.a), run.read_floats(op.b), op.c
    if op.k_override is not None:
        inner = run.read_value(op.k_override)
        # What is beyond K may be anything, NaN too.
        a = np.where(make_length_mask(a.shape, a.ndim - 1, inner), a, 0.0)
        b = np.where(make_length_mask(b.shape, b.ndim - 2, inner), b, 0.0)
    product = run.round_to_type(matmul(a, b), op.compute_type)
    for override, axis in ((op.m_override, c.rank - 2), (op.n_override, c.rank - 1)):
        if override is not None:
            inside = make_length_mask(c.dims, axis, run.read_value(override))
            product = np.where(inside, product, op.padding_value or 0.0)
    run.write_value(c, product)


def _max_without_nan(x: Floats, axes: tuple[int, ...]) -> Any:
    """Return the largest number, ignoring NaN as cuDNN does; -inf where there is none."""
    return np.fmax.reduce(x, axes, initial=-np.inf)


def _min_without_nan(x: Floats, axes: tuple[int, ...]) -> Any:
    return np.fmin.reduce(x, axes, initial=np.inf)


# numbers, axes -> the reduced numbers
REDUCTIONS: dict[ReduceTensorOp, Callable[[Floats, tuple[int, ...]], Any]] = {
    ReduceTensorOp.ADD: lambda x, axes: np.sum(x, axes),
    ReduceTensorOp.MUL: lambda x, axes: np.prod(x, axes),
    ReduceTensorOp.MIN: _min_without_nan,
    ReduceTensorOp.MAX: _max_without_nan,
    ReduceTensorOp.AMAX: lambda x, axes: np.fmax.reduce(np.abs(x), axes, initial=0.0),
    ReduceTensorOp.AVG: lambda x, axes: np.mean(x, axes),
    ReduceTensorOp.NORM1: lambda x, axes: np.sum(np.abs(x), axes),
    ReduceTensorOp.NORM2: lambda x, axes: np.sqrt(np.sum(x * x, axes)),
    ReduceTensorOp.MUL_NO_ZEROS: lambda x, axes: np.prod(np.where(x == 0, 1.0, x), axes),
}


def run_reduction(run: Run, op: Reduction) -> None:
    require_operation_class(op, Reduction)
    x = run.read_floats(op.x)
    if op.x.virtual and op.y.data_type in HALF_TYPES:
        x = run.round_to_type(x, op.y.data_type)  # dbias of fused attention: its terms are in memory before the sum
    reduced = _reduce_to_dims(op.operator, x, op.y)
    if run.rounding and not op.x.virtual and op.operator in (ReduceTensorOp.MAX, ReduceTensorOp.MIN):
        # cuDNN begins with the largest finite number and its negative; fused attention does not
        end = get_largest_finite(op.compute_type)
        is_max = op.operator is ReduceTensorOp.MAX
        reduced = np.maximum(reduced, -end) if is_max else np.minimum(reduced, end)
    run.write_value(op.y, run.round_to_type(reduced, op.compute_type))


def _reduce_to_dims(operator: ReduceTensorOp, x: Floats, y: Tensor) -> Floats:
    """Reduce x to the dims of y; a dim of y may divide that of x, as for the query heads of one key head."""
    split = [part for small, big in zip(y.dims, x.shape, strict=True) for part in (small, big // small)]
    axes = tuple(range(1, len(split), 2))
    if math.prod(split) != x.size or operator not in REDUCTIONS:
        raise GraphError(
            f"a reduction by {operator!r} from {x.shape} to {y.dims} cannot be interpreted",
            code="interpret-operation",
            cause=f"the interpreter has no {operator!r}"
            if operator not in REDUCTIONS
            else "each dim of the result must divide that of the input",
            where=str(y),
        )
    return np.asarray(REDUCTIONS[operator](x.reshape(split), axes), dtype=np.float64)


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_MATMUL: run_matmul,
    DescriptorType.OPERATION_POINTWISE: run_pointwise,
    DescriptorType.OPERATION_REDUCTION: run_reduction,
}
