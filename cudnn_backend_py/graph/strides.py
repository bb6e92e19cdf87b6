"""Strides of packed tensors: row-major, channels last, or with axes in any order."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "channels_last",
    "copy_stride_order",
    "has_interleaved_dims",
    "has_overlapping_elements",
    "make_column_major_strides",
    "make_strides_in_order",
    "packed_strides",
    "swap_last_two_axes",
]


def packed_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of `dims`, in elements."""
    strides = [1]
    for dim in reversed(dims[1:]):
        strides.append(strides[-1] * dim)
    return tuple(reversed(strides))


def is_row_major(dims: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements are packed with the last axis fastest; axes of one element may have any stride."""
    wanted = zip(dims, strides, packed_strides(tuple(dims)), strict=True)
    return all(dim == 1 or have == need for dim, have, need in wanted)


def make_strides_in_order(dims: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return packed strides for `dims` with the axes in `order` from fastest to slowest; missing ones come last."""
    strides = [1] * len(dims)
    step = 1
    for axis in [*order, *(axis for axis in range(len(dims)) if axis not in order)]:
        strides[axis] = step
        step *= dims[axis]
    return tuple(strides)


def channels_last(dims: Sequence[int]) -> tuple[int, ...]:
    """Return packed strides with dim 1 fastest, then the last dim: NHWC for dims n, c, h, w."""
    rank = len(dims)
    return make_strides_in_order(dims, [axis for axis in (1, *range(rank - 1, 1, -1), 0) if axis < rank])


def make_column_major_strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Return packed strides with the second to last dim fastest (column-major); row-major below rank 3."""
    rank = len(dims)
    return make_strides_in_order(
        dims, [rank - 2, rank - 1, *range(rank - 3, -1, -1)] if rank > 2 else range(rank)[::-1]
    )


def copy_stride_order(dims: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """Return packed strides for `dims` in the axis order of `like`; equal strides: first axis fastest."""
    return make_strides_in_order(
        dims, [axis for axis in sorted(range(len(like)), key=like.__getitem__) if axis < len(dims)]
    )


def swap_last_two_axes(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return dims or strides with the last two exchanged, as a transposed matrix has them."""
    return (*values[:-2], values[-1], values[-2])


def has_interleaved_dims(dims: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a stride is less than what the dims with smaller strides occupy, which cuDNN takes for overlap."""
    return _find_interleaved_axes(dims, strides) != []


def has_overlapping_elements(dims: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether several elements of a tensor share an address; False for tensors too large to find out."""
    axes = _find_interleaved_axes(dims, strides)
    if any(stride == 0 for stride, _ in axes):
        return True
    if sum(stride * (dim - 1) for stride, dim in axes) > _MAX_CHECKED_REACH:
        return False
    places = 1  # a bit for each address taken
    for stride, dim in axes:
        copies = _replicate_bitmask_at_stride(places, stride, dim)
        if copies is None:
            return True
        places = copies
    return False


_MAX_CHECKED_REACH = 1 << 26  # elements, in 8 MiB of bits


def _find_interleaved_axes(dims: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return stride and dim of the axes within which elements may overlap, by stride; none if all are nested."""
    axes = sorted((stride, dim) for dim, stride in zip(dims, strides, strict=True) if dim > 1)
    reach = end = 0
    for number, (stride, dim) in enumerate(axes, 1):
        if stride <= reach:
            end = number
        reach += stride * (dim - 1)
    return axes[:end]


def _replicate_bitmask_at_stride(places: int, stride: int, count: int) -> int | None:
    """Return the places together with their copies at multiples of a stride; None if two of them coincide."""
    if count == 1:
        return places
    half = _replicate_bitmask_at_stride(places, stride, count // 2)
    if half is None:
        return None
    whole, shifted = half, half << stride * (count // 2)
    if whole & shifted:
        return None
    whole |= shifted
    if count % 2:
        last = places << stride * (count - 1)
        if whole & last:
            return None
        whole |= last
    return whole
