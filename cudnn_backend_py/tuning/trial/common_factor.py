"""Detect that all elements of a result are off by a common factor, even one smaller than each element's rounding.

A scale wrong by 1 % is less than one rounding to an 8-bit float, but it moves one element in six to the next number,
always away from zero. So the factor is estimated from all elements, by least squares, where roundings, which are
independent, cancel: of n elements with a unit roundoff u it is known up to about u / sqrt(n).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["compute_relative_size_difference", "find_common_error_factor"]

MAX_DEVIATIONS = 4.0  # deviations by which a factor may be estimated wrong, each rounding counted as a whole roundoff
SPREAD_FACTOR = 4.0  # of the root mean square of the factors of shaken runs
MIN_ELEMENTS = 64.0  # elements that matter: fewer large ones say nothing of the others

FloatArray = NDArray[np.float64]


def compute_relative_size_difference(moved: FloatArray, center: FloatArray) -> float:
    """Return by what fraction one result is larger than another, fitted over all elements."""
    with np.errstate(all="ignore"):
        usable = np.isfinite(moved) & np.isfinite(center)
        right = np.where(usable, center, 0.0).reshape(-1)
        known = float(np.dot(right, right))
        lean = float(np.dot(right, np.where(usable, moved - center, 0.0).reshape(-1))) / known if known else 0.0
    return lean if np.isfinite(lean) else np.inf


def find_common_error_factor(
    found: FloatArray,
    right: FloatArray,
    exact: FloatArray,
    rounding: FloatArray,
    relative_excesses: Sequence[float],
    bias: float,
) -> float | None:
    """Return the factor by which all elements are off; None if rounding may explain their errors.

    Parameters
    ----------
    found, right
        What a result holds, and what it should, rounded to its type; finite, and of one dim.
    exact
        What is right before it is rounded: elements that are equal there are rounded alike.
    rounding
        What one rounding to the type may do to an element.
    relative_excesses
        :func:`compute_relative_size_difference` shaken runs: what moves all elements together at random.
    bias
        What may move all of them to one side, relative to them, as sums that are cut.
    """
    with np.errstate(all="ignore"):
        squares = np.square(exact)
        known = squares.sum()  # of NumPy: beyond the largest number it is infinite, and no error
        if not known**2 >= MIN_ELEMENTS * float(np.square(squares).sum()) > 0.0:
            return None
        off = float(np.dot(exact, found - right) / known)
        independent = np.unique(exact).size / exact.size
        chance = float(np.sqrt(np.square(exact * rounding).sum() / independent)) / known
        allowed = SPREAD_FACTOR * float(np.sqrt(np.mean(np.square(relative_excesses)))) + MAX_DEVIATIONS * chance + bias
    return 1.0 + off if abs(off) > allowed else None
