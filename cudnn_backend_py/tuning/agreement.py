"""Compare the results of two plans within the tolerance of their data types and reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CudnnBackendError
from ..generated.enums import DataType
from ..graph import Tensor
from ..graph.data_types import DATA_TYPES, ELEMENT_BITS
from ..graph.formats import decode, get_storage_type

__all__ = ["ROW_FACTOR", "TOLERANCES", "Difference", "compare", "get_tolerance", "has_numpy_element_per_value"]


# Relative Frobenius norm of a difference that still counts as rounding; types that are not here have to be equal.
TOLERANCES = {kind: facts.tolerance for kind, facts in DATA_TYPES.items() if facts.tolerance is not None}


ROW_FACTOR = 4  # a row may differ by that many times the tolerance
_CHUNK_ELEMENTS = 1 << 22  # elements compared at once


@dataclass(frozen=True, slots=True)
class Difference:
    """The numerical difference between two results of the same output.

    Parameters
    ----------
    relative
        Frobenius norm of the difference over that of the first.
    worst_row
        Largest norm of the difference in a row, over that of the row, or the root mean square norm of all rows where
        that is larger: a wrong row in a large tensor shows here.
    patterns
        Elements that are infinite or no number in one and not, or otherwise, in the other.
    """

    relative: float
    worst_row: float
    patterns: int

    def describe_excess(self, limit: float) -> str | None:
        """Describe how the difference exceeds the limit; None if it does not."""
        if self.patterns:
            return f"{self.patterns} elements are infinite or NaN in one result only"
        if self.relative > limit:
            return f"the difference is {self.relative:.2e} of the result, {limit:.2e} is allowed"
        if self.worst_row > ROW_FACTOR * limit:
            return f"a row differs by {self.worst_row:.2e} of its size, {ROW_FACTOR * limit:.2e} is allowed"
        return None


def compare(first: NDArray[Any], other: NDArray[Any], data_type: DataType) -> Difference:
    """Compare two results of one output, given as arrays.

    Parameters
    ----------
    first, other
        Elements of :func:`~cudnn_backend_py.graph.formats.get_storage_type`, or bytes of a type that has none; rows are
        along the last dim, or the last two if that is 1.
    data_type
        Type of the elements.
    """
    width = max(1, math.prod(first.shape[-1:] if first.shape[-1:] != (1,) else first.shape[-2:]))
    rows, others = (np.ascontiguousarray(array).reshape(-1, width) for array in (first, other))
    step = max(1, _CHUNK_ELEMENTS // width)
    patterns = 0
    sizes: list[NDArray[np.float64]] = []
    errors: list[NDArray[np.float64]] = []
    for start in range(0, len(rows), step):
        one, two = (_decode_numbers(array[start : start + step], data_type) for array in (rows, others))
        finite = np.isfinite(one) & np.isfinite(two)
        same = (one == two) | (np.isnan(one) & np.isnan(two))
        patterns += int(np.count_nonzero(~finite & ~same))
        one, two = np.where(finite, one, 0.0), np.where(finite, two, 0.0)
        sizes.append(np.square(one).sum(1))
        errors.append(np.square(one - two).sum(1))
    size, error = np.concatenate(sizes), np.concatenate(errors)
    floor = float(size.mean())
    return Difference(
        _compute_relative_norm(float(error.sum()), float(size.sum())),
        _compute_worst_row_ratio(error, np.maximum(size, floor)),
        patterns,
    )


def _compute_worst_row_ratio(error: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    if not size.any():
        return math.inf if error.any() else 0.0
    return math.sqrt(float((error / size).max()))


def _compute_relative_norm(error: float, size: float) -> float:
    return 0.0 if error == 0 else math.inf if size == 0 else math.sqrt(error / size)


def has_numpy_element_per_value(data_type: DataType) -> bool:
    """Return whether NumPy stores each element of this type as one element, unlike packed and vectorized types."""
    try:
        return get_storage_type(data_type).itemsize * 8 == ELEMENT_BITS[data_type]
    except CudnnBackendError:
        return False


def _decode_numbers(array: NDArray[Any], data_type: DataType) -> NDArray[np.float64]:
    if data_type is DataType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return decode(array, data_type) if has_numpy_element_per_value(data_type) else array.astype(np.float64)


def get_tolerance(tensor: Tensor, tolerance: float | Mapping[str, float] | None) -> float:
    """Return the tolerance of a tensor: one given by the caller for all or by name, else that of its data type."""
    if isinstance(tolerance, Mapping):
        tolerance = tolerance.get(tensor.name)
    return TOLERANCES.get(tensor.data_type, 0.0) if tolerance is None else tolerance
