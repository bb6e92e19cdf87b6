"""Evaluation of pooling and resampling, forward and backward: one step per window element.

Measured with cuDNN 9.19 on an H200: the index of MAXPOOL counts the elements of a window in row-major order, padding
included, and names the first of equal ones; the largest of a window of -inf is the lowest finite number of y's type, in
a run that rounds. BILINEAR interpolates between the two elements around ``i * stride``: half an element of padding
before moves nothing. A NaN is the largest of all where NaN is propagated, and is left out of the window where it is
not; cuDNN's engines do one or the other whatever is requested (docs/operations.md). AVGPOOL_EXCLUDE_PADDING of padding
alone is NaN, which was not measured. cuDNN refuses a resample descriptor of mode NEAREST.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DataType, DescriptorType, NanPropagation, PaddingMode, ResampleMode
from ..graph.formats import get_largest_finite, is_integer
from ..graph.ir import Operation
from .convolution import read_alpha_requiring_zero_beta
from .run import Handler, Run

__all__ = ["OPERATIONS"]

Floats = NDArray[np.float64]


class _PoolingWindow:
    """A pooling window that slides over an image [n, c, sizes ..]."""

    def __init__(self, op: Operation, image: tuple[int, ...], out: tuple[int, ...]) -> None:
        given = op.fields["resample"].fields
        self.mode = given.get("mode", ResampleMode.NEAREST)
        self.kind = given.get("comp_type", DataType.FLOAT)
        self.padding_mode = given.get("padding_mode", PaddingMode.ZERO_PAD)
        self.propagates = given.get("nan_propagation") is NanPropagation.PROPAGATE_NAN
        names = ("window_dims", "strides", "pre_paddings", "post_paddings")
        self.window, self.strides, self.before, self.after = (
            [Fraction(*part) if isinstance(part, tuple) else Fraction(part) for part in given[name]] for name in names
        )
        self.image, self.out = image[2:], out[2:]
        whole = all(part.denominator == 1 for side in (self.window, self.strides, self.before) for part in side)
        pairs = all(part == 2 for part in self.window)
        if (
            self.mode is ResampleMode.NEAREST
            or not (pairs if self.mode is ResampleMode.BILINEAR else whole)
            or min(self.window) < 1
        ):
            raise GraphError(
                f"resampling by {self.mode.name} of window {_format_fractions_with_x(self.window)}, "
                f"stride {_format_fractions_with_x(self.strides)} cannot be interpreted",
                code="interpret-operation",
                where=f"operation {op.name!r}",
                cause="the interpreter has BILINEAR with a window of 2 in each dim, and pooling "
                "with whole numbers of 1 or more, but no NEAREST",
            )

    def iterate_taps(self) -> Iterator[tuple[int, list[NDArray[np.int64]], Floats | float]]:
        """Yield each tap of the window: its number, its image positions along each spatial dim, and its weight.

        There is a position per output element; in the padding it is below 0 or beyond the size of the image.
        """
        sides = list(zip(self.out, self.strides, self.before, strict=True))
        for number, tap in enumerate(product(*(range(int(size)) for size in self.window))):
            if self.mode is not ResampleMode.BILINEAR:
                yield number, [np.arange(n) * int(s) - int(b) + i for i, (n, s, b) in zip(tap, sides, strict=True)], 1.0
                continue
            starts = [[i * s - int(b) for i in range(n)] for n, s, b in sides]
            places = [np.array([start.__floor__() + i for start in side]) for i, side in zip(tap, starts, strict=True)]
            weight: Any = 1.0
            for axis, (i, side) in enumerate(zip(tap, starts, strict=True)):
                part = np.array([float(start - start.__floor__()) for start in side])
                shape = [1] * len(starts)
                shape[axis] = len(side)
                weight = weight * (part if i else 1 - part).reshape(shape)
            yield number, places, weight

    def find_windows_with_tap_inside(self, places: list[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Return a mask of the output elements for which a tap is inside the image, [sizes ..]."""
        found = np.ones(self.out, np.bool_)
        for axis, (at, size) in enumerate(zip(places, self.image, strict=True)):
            shape = [1] * len(self.out)
            shape[axis] = len(at)
            found &= ((at >= 0) & (at < size)).reshape(shape)
        return found

    def clip_indices(self, places: list[NDArray[np.int64]]) -> tuple[Any, ...]:
        """Return the indices of a tap's elements, clipped to the edge where they are in the padding."""
        return _make_index_for_all_channels(
            np.clip(at, 0, size - 1) for at, size in zip(places, self.image, strict=True)
        )

    def read_tap_values(self, x: Floats, places: list[NDArray[np.int64]]) -> Floats:
        """Return the image elements under one tap, [n, c, sizes of y ..]."""
        found = x[self.clip_indices(places)]
        if self.padding_mode is PaddingMode.EDGE_VAL_PAD:
            return np.asarray(found)
        outside = -np.inf if self.padding_mode is PaddingMode.NEG_INF_PAD else 0.0
        return np.where(self.find_windows_with_tap_inside(places), found, outside)

    def compute_divisor(self) -> Floats | float:
        """Return the divisor of each window's sum."""
        if self.mode is not ResampleMode.AVGPOOL_EXCLUDE_PADDING:
            return 1.0 if self.mode is ResampleMode.BILINEAR else float(prod(self.window))
        count = np.zeros(self.out)
        for _, places, _ in self.iterate_taps():
            count += self.find_windows_with_tap_inside(places)
        return count

    def find_window_maximum(self, x: Floats) -> tuple[Floats, NDArray[np.int64]]:
        """Return the largest element of each window and the number of its tap."""
        best = index = None
        for number, places, _ in self.iterate_taps():
            value = self.read_tap_values(x, places)
            if best is None or index is None:
                best, index = value, np.zeros(value.shape, np.int64)
                continue
            is_better = value > best
            if self.propagates:
                is_better |= np.isnan(value) & ~np.isnan(best)
            else:
                is_better |= np.isnan(best) & ~np.isnan(value)
            best, index = np.where(is_better, value, best), np.where(is_better, number, index)
        assert best is not None
        assert index is not None
        return best, index


def run_resample_forward(run: Run, op: Operation) -> None:
    """Write the maximum or average of each window; AVGPOOL counts padding as elements."""
    alpha, x = read_alpha_requiring_zero_beta(op), run.read_floats(op.fields["x"])
    pool = _PoolingWindow(op, x.shape, op.fields["y"].dims)
    if pool.mode is ResampleMode.MAXPOOL:
        made, index = pool.find_window_maximum(x)
        if run.rounding and not is_integer(op.fields["y"].data_type):
            made = np.maximum(made, -get_largest_finite(op.fields["y"].data_type))
        if "idx" in op.fields:
            run.write_value(op.fields["idx"], index)
    elif "idx" in op.fields:
        raise GraphError(
            f"the output idx of {pool.mode.name} cannot be interpreted: only MAXPOOL has an index",
            code="interpret-operation",
            where=str(op),
        )
    else:
        total = np.zeros(op.fields["y"].dims)
        for _, places, weight in pool.iterate_taps():
            total += pool.read_tap_values(x, places) * weight
        made = total / pool.compute_divisor()
    run.write_value(op.fields["y"], alpha * run.round_to_type(np.asarray(made), pool.kind))


def run_resample_backward(run: Run, op: Operation) -> None:
    """Write dx: dy goes to the maximum of its window, by index or found in x, or is divided among its elements."""
    alpha, dx, dy = read_alpha_requiring_zero_beta(op), op.fields["dx"], run.read_floats(op.fields["dy"])
    pool = _PoolingWindow(op, dx.dims, dy.shape)
    index: NDArray[Any] | None = None
    if pool.mode is ResampleMode.MAXPOOL:
        if "idx" in op.fields:
            index = run.read_value(op.fields["idx"])
        elif "x" in op.fields:
            index = pool.find_window_maximum(run.read_floats(op.fields["x"]))[1]
        else:
            raise GraphError(
                "the gradient of MAXPOOL needs idx, or x", code="interpret-operation", where=f"operation {op.name!r}"
            )
    shares = dy if index is not None else dy / pool.compute_divisor()
    made = np.zeros(dx.dims)
    for number, places, weight in pool.iterate_taps():
        part = shares * weight if index is None else np.where(index == number, dy, 0.0)
        if pool.mode is ResampleMode.BILINEAR or pool.padding_mode is PaddingMode.EDGE_VAL_PAD:
            kept = (
                part
                if pool.padding_mode is PaddingMode.EDGE_VAL_PAD
                else np.where(pool.find_windows_with_tap_inside(places), part, 0.0)
            )
            np.add.at(made, pool.clip_indices(places), kept)  # results share elements
            continue
        found = [(at >= 0) & (at < size) for at, size in zip(places, pool.image, strict=True)]
        made[_make_index_for_all_channels(at[mask] for at, mask in zip(places, found, strict=True))] += part[
            _make_index_for_all_channels(found)
        ]
    run.write_value(dx, alpha * run.round_to_type(made, pool.kind))


def _make_index_for_all_channels(places: Iterable[NDArray[Any]]) -> tuple[Any, ...]:
    """Return a NumPy index of these positions (or masks) along the spatial dims, for all n and c."""
    return (slice(None), slice(None), *np.ix_(*places))


def _format_fractions_with_x(side: list[Fraction]) -> str:
    return "x".join(map(str, side))


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_RESAMPLE_FWD: run_resample_forward,
    DescriptorType.OPERATION_RESAMPLE_BWD: run_resample_backward,
}
