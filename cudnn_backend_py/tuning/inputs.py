"""Random inputs for the tensors of a graph for which the caller gives no data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..generated.enums import DataType
from ..graph import Graph, Tensor
from ..graph.data_types import BOOLEAN_TYPES
from ..graph.formats import encode
from ..interpreter.data import make_nonrandom_values
from .agreement import TOLERANCES, has_numpy_element_per_value

__all__ = ["make_missing_inputs"]


def make_missing_inputs(graph: Graph, seed: int = 0, *, given: Collection[str | int] = ()) -> dict[int, Any]:
    """Return random inputs by uid for tensors without data: an array, or a number for a by-value tensor.

    Floats are normally distributed, single ones (scales) are 1. Integers are made up for attention only, where their
    meaning is known by their names: all sequences have full length, pages are in order.

    Raises
    ------
    UsageError
        ``tuning-input`` for an integer tensor whose meaning is not known: it has to be given.
    """
    rng = np.random.default_rng(seed)
    pool = rng.standard_normal((1 << 20) - 3)  # a prime number of them, so rows do not repeat
    encoded: dict[DataType, NDArray[Any]] = {}
    written = {tensor.uid for tensor in graph.outputs}
    known = make_nonrandom_values(graph)
    found: dict[int, Any] = {}
    for tensor in graph.variant_pack_tensors:
        if (
            tensor.uid in given
            or tensor.uid in written
            or tensor.scratch
            or (tensor.by_value and tensor.value is not None)
        ):
            continue
        value = known[tensor.uid] if tensor.uid in known else _make_input(tensor, pool, encoded)
        if tensor.by_value:
            found[tensor.uid] = 1 if isinstance(value, np.ndarray) else value
        elif isinstance(value, np.ndarray):
            found[tensor.uid] = value
        else:
            found[tensor.uid] = np.full(tensor.span_elements, encode(value, tensor.data_type))
    return found


_BYTE_TYPES = (DataType.INT8, DataType.UINT8)


def _make_input(tensor: Tensor, pool: NDArray[np.float64], encoded: dict[DataType, NDArray[Any]]) -> Any:
    if tensor.span_elements == 1 and tensor.data_type not in (DataType.INT32, DataType.INT64, DataType.UINT32):
        return 1.0
    if not has_numpy_element_per_value(tensor.data_type):
        return np.resize(np.frombuffer(pool.tobytes(), np.uint8), tensor.span_bytes) & 0x33
    if tensor.data_type is DataType.FP8_E8M0 or tensor.data_type in BOOLEAN_TYPES:
        return 1.0
    if tensor.data_type not in TOLERANCES and tensor.data_type not in _BYTE_TYPES:
        raise UsageError(
            f"{tensor.name!r} is {tensor.type_text}, a type for which no random data can be made",
            code="tuning-input",
            fix=f"pass a buffer: autotune(..., buffers={{{tensor.name!r}: ...}})",
        )
    if tensor.data_type not in encoded:
        shift, scale = (4.0, 2.0) if tensor.data_type in _BYTE_TYPES else (0.0, 1.0)
        encoded[tensor.data_type] = encode(pool * scale + shift, tensor.data_type)
    return np.resize(encoded[tensor.data_type], tensor.span_elements)
