"""Reference implementations of operations by loops or textbook formulas, independent of the interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "compute_average_pool",
    "compute_batch_norm_gradients",
    "compute_convolution",
    "compute_convolution_gradients",
    "compute_max_pool",
    "compute_numeric_gradient",
    "compute_pool_gradient",
    "normalize",
]

Array = NDArray[np.float64]


def compute_convolution(x: Array, w: Array, window: dict[str, tuple[int, ...]], *, turned: bool = False) -> Array:
    """Return the convolution [n, k, ...]; each element is a sum of products."""
    taps = list(_iterate_convolution_product_indices(x, w, window, turned))
    shape = _compute_convolution_shape(x.shape, w.shape, window)
    y = np.zeros(shape)
    for (n, k, *place), (m, c, *at), (_, d, *tap) in taps:
        y[n, k, *place] += x[m, c, *at] * w[k, d, *tap]
    return y


def compute_convolution_gradients(
    x: Array, w: Array, dy: Array, window: dict[str, tuple[int, ...]], *, turned: bool = False
) -> tuple[Array, Array]:
    """Return dx and dw by scattering: each product of the forward pass adds dy times the other factor."""
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for out, image, weight in _iterate_convolution_product_indices(x, w, window, turned):
        dx[image] += dy[out] * w[weight]
        dw[weight] += dy[out] * x[image]
    return dx, dw


def _compute_convolution_shape(
    x: tuple[int, ...], w: tuple[int, ...], window: dict[str, tuple[int, ...]]
) -> tuple[int, ...]:
    sizes = []
    for axis, (size, taps) in enumerate(zip(x[2:], w[2:], strict=True)):
        before, after, stride, dilation = (
            window[name][axis] for name in ("padding", "post_padding", "stride", "dilation")
        )
        sizes.append((size + before + after - dilation * (taps - 1) - 1) // stride + 1)
    return (x[0], w[0], *sizes)


def _iterate_convolution_product_indices(
    x: Array, w: Array, window: dict[str, tuple[int, ...]], turned: bool
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the indices (in y, x, w) of each product of a convolution inside the image."""
    shape = _compute_convolution_shape(x.shape, w.shape, window)
    per_group, filters = w.shape[1], w.shape[0] // (x.shape[1] // w.shape[1])
    for out in np.ndindex(*shape):
        n, k, *place = out
        for c, *tap in np.ndindex(*w.shape[1:]):
            at = []
            for axis, (p, t) in enumerate(zip(place, tap, strict=True)):
                reached = w.shape[2 + axis] - 1 - t if turned else t
                at.append(p * window["stride"][axis] + reached * window["dilation"][axis] - window["padding"][axis])
            if all(0 <= i < size for i, size in zip(at, x.shape[2:], strict=True)):
                yield out, (n, k // filters * per_group + c, *at), (k, c, *tap)


def normalize(x: Array, axes: tuple[int, ...], epsilon: float, *, centered: bool = True) -> tuple[Array, Array, Array]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean, and 1 / sqrt(variance + epsilon)."""
    mean = (
        x.mean(axis=axes, keepdims=True)
        if centered
        else np.zeros([1 if i in axes else s for i, s in enumerate(x.shape)])
    )
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + epsilon)
    return (x - mean) * inverse, mean, inverse


def compute_numeric_gradient(function: Any, x: Array, dy: Array, step: float = 1e-5) -> Array:
    """Return the gradient of sum(function(x) * dy) by finite differences."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append((function(moved) * dy).sum())
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def compute_batch_norm_gradients(x: Array, dy: Array, scale: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """Return dx, dscale and dbias of batch norm by the chain rule."""
    axes = (0, *range(2, x.ndim))
    members = x.size // x.shape[1]
    mean = x.mean(axis=axes, keepdims=True)
    centered = x - mean
    variance = (centered**2).mean(axis=axes, keepdims=True)
    deviation = np.sqrt(variance + epsilon)
    normal = centered / deviation
    dnormal = dy * scale
    dvariance = (dnormal * centered).sum(axis=axes, keepdims=True) * -0.5 * deviation**-3
    dmean = -(dnormal / deviation).sum(axis=axes, keepdims=True) - 2 * dvariance * centered.mean(
        axis=axes, keepdims=True
    )
    dx = dnormal / deviation + dvariance * 2 * centered / members + dmean / members
    return dx, (dy * normal).sum(axis=axes, keepdims=True), dy.sum(axis=axes, keepdims=True)


def _iterate_pool_windows(
    x: tuple[int, ...], window: tuple[int, ...], stride: tuple[int, ...], before: tuple[int, ...], out: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...] | None]]]:
    """Yield each output position with the input positions of its window, row-major, None for padding."""
    for place in np.ndindex(*out):
        found: list[tuple[int, ...] | None] = []
        for tap in product(*map(range, window)):
            at = tuple(p * s + t - b for p, s, t, b in zip(place, stride, tap, before, strict=True))
            found.append(at if all(0 <= i < size for i, size in zip(at, x[2:], strict=True)) else None)
        yield place, found


def compute_max_pool(x: Array, out: tuple[int, ...], padding: float, **sides: Any) -> tuple[Array, Array]:
    """Return maximum and index in the window for each window; `padding` is the value around `x`."""
    y, index = np.zeros((*x.shape[:2], *out)), np.zeros((*x.shape[:2], *out), int)
    for n, c in np.ndindex(*x.shape[:2]):
        for place, found in _iterate_pool_windows(x.shape, out=out, **sides):
            values = [padding if at is None else x[n, c, *at] for at in found]
            number = max(range(len(values)), key=lambda i: (values[i], -i))
            y[n, c, *place], index[n, c, *place] = values[number], number
    return y, index


def compute_average_pool(x: Array, out: tuple[int, ...], *, exclude: bool, **sides: Any) -> Array:
    """Return the average of each window; `exclude` leaves out padding."""
    y = np.zeros((*x.shape[:2], *out))
    for n, c in np.ndindex(*x.shape[:2]):
        for place, found in _iterate_pool_windows(x.shape, out=out, **sides):
            inside = [x[n, c, *at] for at in found if at is not None]
            y[n, c, *place] = sum(inside) / (len(inside) if exclude else math.prod(sides["window"]))
    return y


def compute_pool_gradient(x: Array, dy: Array, index: Array | None, *, exclude: bool = False, **sides: Any) -> Array:
    """Return dx of pooling: dy is added to the element at the given index, or in equal parts to the window."""
    dx = np.zeros(x.shape)
    for n, c in np.ndindex(*x.shape[:2]):
        for place, found in _iterate_pool_windows(x.shape, out=dy.shape[2:], **sides):
            inside = [at for at in found if at is not None]
            if index is not None:
                at = found[index[n, c, *place]]
                if at is not None:
                    dx[n, c, *at] += dy[n, c, *place]
                continue
            for at in inside:
                dx[n, c, *at] += dy[n, c, *place] / (len(inside) if exclude else math.prod(sides["window"]))
    return dx
