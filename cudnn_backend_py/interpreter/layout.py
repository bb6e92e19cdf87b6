"""Evaluation of operations that move elements (reshape, slice, concat, pages, signals) or scale blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DescriptorType, ReshapeMode, SignalMode
from ..graph.formats import get_largest_finite
from ..graph.ir import Operation, Tensor, packed_strides
from ..graph.shapes import find_block_size_per_axis
from .arithmetic import append_dims, make_length_mask
from .run import Handler, Numbers, Run, find_memory_positions

__all__ = ["OPERATIONS", "dequantize", "read_pages"]

Floats = NDArray[np.float64]


def run_reshape(run: Run, op: Operation) -> None:
    """Read the memory of x with the dims and strides of y.

    A transpose is written as a reshape whose y has dims and strides swapped: x [b, h, m, n] row-major to y [b, h, n, m]
    with strides (.., 1, n), or K^T back to K's own strides. Both describe the same memory, so x is laid out by its
    strides and read by y's. Where the two do not cover the same places, the strides of x say nothing about y (virtual
    tensors may carry any): then x counts as row-major memory, and where y does not cover that either, or the mode is
    LOGICAL, elements keep their row-major order, as in NumPy's reshape.
    """
    x, y = op.fields["x"], op.fields["y"]
    values = run.read_value(x)
    if values.size != math.prod(y.dims):
        raise GraphError(
            f"reshape {op.name!r} from {x.dims} to {y.dims} changes the number of elements",
            code="interpret-shape",
            where=str(op),
        )
    result = None
    if op.fields.get("mode") is not ReshapeMode.LOGICAL:
        result = _reinterpret_memory(values, x.strides, y)
        if result is None:
            result = _reinterpret_memory(values, packed_strides(x.dims), y)
    run.write_value(y, values.reshape(y.dims) if result is None else result)


def _reinterpret_memory(values: Numbers, strides: tuple[int, ...], y: Tensor) -> Numbers | None:
    """Read values stored with `strides` as the tensor y; None unless both cover the same memory exactly once."""
    same = 0  # leading axes that both have in common take no part
    for left, right in zip(zip(values.shape, strides, strict=True), zip(y.dims, y.strides, strict=True), strict=False):
        if left != right:
            break
        same += 1
    source = find_memory_positions(values.shape[same:], strides[same:]).reshape(-1)
    target = find_memory_positions(y.dims[same:], y.strides[same:]).reshape(-1)
    from_order, to_order = np.argsort(source, kind="stable"), np.argsort(target, kind="stable")
    places = source[from_order]
    if not np.array_equal(places, target[to_order]) or (np.diff(places) == 0).any():
        return None
    flat = values.reshape(-1, source.size)
    result = np.empty_like(flat)
    result[:, to_order] = flat[:, from_order]
    return result.reshape(y.dims)


def run_transpose(run: Run, op: Operation) -> None:
    """Write the transpose: axis i of y is axis permutation[i] of x, as in NumPy."""
    run.write_value(op.fields["y"], run.read_value(op.fields["x"]).transpose(op.fields["permutation"]))


def run_slice(run: Run, op: Operation) -> None:
    parts = (op.fields[name] for name in ("start_indices", "limit_indices", "strides"))
    run.write_value(op.fields["y"], run.read_value(op.fields["x"])[tuple(map(slice, *parts))])


def run_concat(run: Run, op: Operation) -> None:
    run.write_value(
        op.fields["output"], np.concatenate([run.read_value(item) for item in op.fields["input"]], op.fields["axis"])
    )


# signals


def run_signal(run: Run, op: Operation) -> None:
    """Write x to y. SET also writes the flag; WAIT requires that it is already set, as nothing runs concurrently."""
    fields = op.fields
    flag, value = fields["flag"], fields["value"]
    if fields["mode"] is SignalMode.SET:
        run.write_value(flag, np.full(flag.dims, value))
    elif run.read_scalar(flag) != value:
        raise GraphError(
            f"signal {op.name!r} waits until tensor {flag.name!r} is {value}, but its value is "
            f"{run.read_scalar(flag)}, "
            "and no operation changes it before",
            code="interpret-input",
            where=f"graph {run.graph.name!r}",
        )
    if "y" in fields:
        run.write_value(fields["y"], run.read_value(fields["x"]))


# pages


def run_paged_cache_load(run: Run, op: Operation) -> None:
    """Gather y [b, h, s, d] or [b, h, d, s] from pages; y's dims show the order, or its strides if s equals d."""
    y = op.fields["y"]
    container = run.read_floats(op.fields["container"])
    d = container.shape[3]
    is_square = y.dims[2] == y.dims[3]
    transposed = y.strides[2] == 1 < y.strides[3] if is_square else y.dims[2] == d
    seq = y.dims[3] if transposed else y.dims[2]
    values = read_pages(run, op, container, op.fields["page_table"], run.read_value(op.fields["sequence"]), seq)
    run.write_value(y, values.swapaxes(2, 3) if transposed else values)


def read_pages(run: Run, op: Operation, container: Floats, page_table: Tensor, lengths: Numbers, seq: int) -> Floats:
    """Return [b, h, seq, d] from a container [pages, h, page size, d], with 0 beyond an entry's length.

    The page table is [b, 1, pages per sequence, 1].
    """
    count, heads, size, d = container.shape
    table = run.read_value(page_table).reshape(page_table.dims[0], -1)
    batch, per_entry = table.shape
    used = np.arange(per_entry) * size < np.minimum(lengths.reshape(-1, 1), seq)
    table = np.where(used, table, 0)
    if table.min() < 0 or table.max() >= count:
        wrong = table.max() if table.max() >= count else table.min()
        raise GraphError(
            f"page table {page_table.name!r} names page {wrong}, the container has {count}",
            code="interpret-input",
            where=f"operation {op.name!r}",
        )
    gathered = container[table].swapaxes(1, 2).reshape(batch, heads, per_entry * size, d)[:, :, :seq]
    values = np.zeros((batch, heads, seq, d))
    values[:, :, : gathered.shape[2]] = gathered
    return np.where(make_length_mask(values.shape, 2, append_dims(lengths.reshape(-1), 4)), values, 0.0)


# block scales


def _find_block_sizes(op: Operation, dims: tuple[int, ...], scale: Tensor) -> tuple[int, ...]:
    """Return the number of elements along each axis that share a scale; refuse scales with other dims."""
    given = op.fields.get("block_size", 32)
    sizes = given if isinstance(given, tuple) else (given,)
    order = find_block_size_per_axis(dims, sizes, scale.dims)
    if order is None:
        raise GraphError(
            f"scale {scale.name!r} has dims {scale.dims}, which do not fit blocks of {sizes} in {dims}",
            code="interpret-shape",
            where=f"operation {op.name!r}",
        )
    return order


def dequantize(run: Run, op: Operation, x: Floats, scale: Tensor) -> Floats:
    """Multiply x by its block scales, given in logical order."""
    factors = run.read_floats(scale)
    for axis, size in enumerate(_find_block_sizes(op, x.shape, scale)):
        factors = np.repeat(factors, size, axis)
    return np.asarray(x * factors[tuple(map(slice, x.shape))])


def run_block_scale_dequantize(run: Run, op: Operation) -> None:
    """Multiply each element by its block's scale, negative scales included, whether ``neg_scale`` is set or not."""
    run.write_value(op.fields["y"], dequantize(run, op, run.read_floats(op.fields["x"]), op.fields["scale"]))


def run_block_scale_quantize(run: Run, op: Operation) -> None:
    """Scale each block so that its largest absolute value is y's largest number; a zero block stays zero.

    scale = amax / largest finite number of y's type, and y = x / scale. In a run that rounds, an E8M0 scale is the
    next power of two above.
    """
    y, scale = op.fields["y"], op.fields["scale"]
    x = run.read_floats(op.fields["x"])
    blocks = _find_block_sizes(op, x.shape, scale)
    counts = [math.ceil(dim / size) for dim, size in zip(x.shape, blocks, strict=True)]
    whole = np.zeros([count * size for count, size in zip(counts, blocks, strict=True)])
    whole[tuple(map(slice, x.shape))] = np.abs(x)
    split: list[Any] = [part for pair in zip(counts, blocks, strict=True) for part in pair]
    amax = whole.reshape(split).max(axis=tuple(range(1, len(split), 2)))
    factors = np.zeros(scale.dims)
    factors[tuple(map(slice, counts))] = amax / get_largest_finite(y.data_type)
    run.write_value(scale, factors)
    spread = dequantize(run, op, np.ones(x.shape), scale)
    run.write_value(y, np.divide(x, spread, out=np.zeros_like(x), where=spread != 0))


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_RESHAPE: run_reshape,
    DescriptorType.OPERATION_TRANSPOSE: run_transpose,
    DescriptorType.OPERATION_SLICE: run_slice,
    DescriptorType.OPERATION_CONCAT: run_concat,
    DescriptorType.OPERATION_SIGNAL: run_signal,
    DescriptorType.OPERATION_PAGED_CACHE_LOAD: run_paged_cache_load,
    DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE: run_block_scale_dequantize,
    DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE: run_block_scale_quantize,
}
