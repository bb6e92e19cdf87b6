"""Shape inference: the dims of an operation's outputs from those of its inputs, which are not checked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from ..generated.enums import NormMode
from .ir import compute_convolved_size

if TYPE_CHECKING:
    from fractions import Fraction  # it imports decimal

__all__ = [
    "SCALE_TILE",
    "compute_concatenated_dims",
    "compute_expert_output_dims",
    "compute_pooled_size",
    "compute_scale_dims",
    "compute_sliced_dims",
    "find_block_size_per_axis",
    "has_offset_of_last_expert_end",
    "infer_convolution_input_dims",
    "infer_convolution_output_dims",
    "infer_statistics_dims",
    "make_per_channel_dims",
    "permute_dims",
]

Dims = tuple[int, ...]
Sides = Sequence[Sequence[int]]
"""Padding before, padding after, stride and dilation, one number for each spatial dim."""

SCALE_TILE = (128, 4)
"""Rows, and blocks along them, of a tile of scales in F8_128x4 order."""

_WITHOUT_BATCH = (NormMode.LAYER_NORM, NormMode.RMS_NORM, NormMode.ADA_LAYER_NORM)


def infer_convolution_output_dims(image: Sequence[int], weights: Sequence[int], window: Sides) -> Dims:
    """Return the output dims [n, k, sizes ..] of a convolution of [n, c, sizes ..] with [k, c / groups, taps ..]."""
    sizes = (compute_convolved_size(*item) for item in zip(image[2:], weights[2:], *window, strict=True))
    return (image[0], weights[0], *sizes)


def infer_convolution_input_dims(response: Sequence[int], weights: Sequence[int], window: Sides, groups: int) -> Dims:
    """Return the dims of the smallest image that a convolution maps to the dims `response`."""
    sizes = (
        (size - 1) * stride + (taps - 1) * dilation + 1 - before - after
        for size, taps, before, after, stride, dilation in zip(response[2:], weights[2:], *window, strict=True)
    )
    return (response[0], weights[1] * groups, *sizes)


def compute_pooled_size(
    size: int, window: Fraction | int, stride: Fraction | int, before: Fraction | int, after: Fraction | int
) -> int:
    """Return the number of pooling windows along one dim: 1 + (x + pre + post - window) / stride."""
    return int(1 + (size + before + after - window) // stride)


def make_per_channel_dims(x: Sequence[int]) -> Dims:
    """Return [1, c, 1 ..], the dims of tensors with one number per channel of [n, c, ..]."""
    return (1, *x[1:2], *[1] * (len(x) - 2))


def infer_statistics_dims(
    mode: NormMode, x: Sequence[int], scale: Sequence[int], groups: int | None = None
) -> Dims | None:
    """Return the dims of mean and inverse variance: one number per set of elements normalized together.

    Layer norms and their kind normalize over the dims in which `scale` is not 1, batch norm over all but c, instance
    norm over all but n and c, group norm over all but n and `groups` parts of c. None where ranks do not fit.
    """
    rest = (1,) * (len(x) - 2)
    if mode is NormMode.BATCH_NORM:
        return make_per_channel_dims(x)
    if mode is NormMode.INSTANCE_NORM:
        return (*x[:2], *rest)
    if mode is NormMode.GROUP_NORM:
        return None if groups is None else (x[0], groups, *rest)
    if not scale:
        return (x[0], *[1] * (len(x) - 1))
    if len(scale) != len(x):
        return None
    dims = tuple(size if one == 1 else 1 for size, one in zip(x, scale, strict=True))
    return (x[0], *dims[1:]) if mode is NormMode.ADA_LAYER_NORM else dims


def permute_dims(dims: Sequence[int], permutation: Sequence[int]) -> Dims:
    """Return transposed dims or strides: dim i of the result is dim ``permutation[i]``."""
    return tuple(dims[axis] for axis in permutation)


def compute_sliced_dims(ranges: Sequence[tuple[int, int, int]]) -> Dims:
    """Return the dims of a slice with the given starts, stops and steps."""
    return tuple((stop - start + step - 1) // step for start, stop, step in ranges)


def compute_concatenated_dims(inputs: Sequence[Sequence[int]], axis: int) -> Dims:
    """Return the dims of tensors concatenated along an axis."""
    dims = list(inputs[0])
    dims[axis] = sum(item[axis] for item in inputs)
    return tuple(dims)


def compute_scale_dims(dims: Sequence[int], sizes: Sequence[int], *, tiled: bool = False) -> Dims:
    """Return the dims of block scales for these block sizes per dim; the last block may be partial.

    Tiled ones are rounded up to whole tiles: to multiples of 4 along the blocks, of 128 along the other of the last
    two dims.
    """
    counts = [ceil(dim / size) for dim, size in zip(dims, sizes, strict=True)]
    if tiled:
        along = next((axis for axis, size in enumerate(sizes) if size > 1), len(counts) - 1)
        other = len(counts) - 1 if along == len(counts) - 2 else len(counts) - 2
        for axis, tile in ((other, SCALE_TILE[0]), (along, SCALE_TILE[1])):
            counts[axis] = -(-counts[axis] // tile) * tile
    return tuple(counts)


def find_block_size_per_axis(dims: Sequence[int], sizes: Sequence[int], scale: Sequence[int]) -> Dims | None:
    """Return the block size along each axis, `sizes` in some order, that gives the dims `scale`; None if none does.

    The block sizes belong to the last axes, in the order given. Where the dims of the scales say otherwise (K^T has its
    blocks along the last axis but one), they belong to the axes that fit: one scale for each block, the last one maybe
    not full; then also axes whose scales are padded to the tile of a layout.
    """
    if len(sizes) > len(dims) or len(dims) != len(scale):
        return None
    orders = list(dict.fromkeys(itertools.permutations((1,) * (len(dims) - len(sizes)) + tuple(sizes))))
    for fits in (int.__eq__, int.__le__):
        for order in orders:
            if all(map(fits, compute_scale_dims(dims, order), scale)):
                return order
    return None


def has_offset_of_last_expert_end(offsets: int, experts: int) -> bool:
    """Return whether a number of expert offsets includes the end of the last expert's rows (allowed since 9.28)."""
    return experts > 1 and offsets % experts == 1


def compute_expert_output_dims(
    token: Sequence[int], weight: Sequence[int], token_index: Sequence[int] | None = None
) -> Dims:
    """Return [1, rows, N] for tokens [1, rows, K] and weights [experts, K, N]; gather indices, if any, set rows."""
    return (1, (token if token_index is None else token_index)[1], weight[2])
