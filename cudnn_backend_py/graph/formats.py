"""Conversion between numbers and the bit patterns of cuDNN's data types, in NumPy.

``HALF``, ``FLOAT`` and ``DOUBLE`` are NumPy's own types. The 4-bit, 8-bit and bfloat16 floats have a table with the
values of all codes, made from their field widths (OCP 8-bit floating point specification, OCP microscaling formats).
Types of fewer than 8 bits (``BOOLEAN``, ``FP4_E2M1``, ``INT4``, ``UINT4``) are unpacked, one element to a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError
from ..generated.enums import DataType
from .data_types import DATA_TYPES, FloatFormat

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "decode",
    "encode",
    "from_f8_128x4_order",
    "get_largest_finite",
    "get_storage_type",
    "is_integer",
    "make_strided_view",
    "round_to_data_type",
    "to_f8_128x4_order",
]


_E8M0_BIAS, _E8M0_TOP, _E8M0_NAN = 127, 0xFE, 0xFF


def make_strided_view(memory: NDArray[Any], dims: Sequence[int], strides: Sequence[int]) -> NDArray[Any]:
    """Return a tensor's memory as an array with its dims; strides are in elements."""
    return np.lib.stride_tricks.as_strided(memory, dims, [stride * memory.itemsize for stride in strides])


def get_storage_type(data_type: DataType) -> np.dtype[Any]:
    """Return the NumPy type of one element: its own type, or an unsigned integer of the same width.

    Raises
    ------
    GraphError
        ``format-unknown`` for vectorized and complex types and ``FP8_E5M3``.
    """
    if name := DATA_TYPES[data_type].storage:
        return np.dtype(name)
    known = (kind for kind, facts in DATA_TYPES.items() if facts.storage)
    raise GraphError(
        f"the element format of {data_type!r} is unknown",
        code="format-unknown",
        where="cudnn_backend_py.graph.formats",
        fix=f"use one of {', '.join(kind.name for kind in known)}",
    )


def is_integer(data_type: DataType) -> bool:
    """Return whether the data type holds integers; BOOLEAN does not count."""
    return DATA_TYPES[data_type].kind == "integer"


def get_largest_finite(data_type: DataType) -> float:
    """Return the largest finite number of the data type.

    Raises
    ------
    GraphError
        ``format-unknown``.
    """
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return float(_list_numbers_by_bit_pattern(data_type)[facts.form.top])
    if facts.kind == "scale":
        return 2.0 ** (_E8M0_TOP - _E8M0_BIAS)
    if facts.limits is not None:
        return float(facts.limits[1])
    kind = get_storage_type(data_type)
    return float(np.finfo(kind).max) if kind.kind == "f" else 1.0


def decode(bits: ArrayLike, data_type: DataType) -> NDArray[np.float64]:
    """Decode the bit patterns of elements in memory to numbers.

    Parameters
    ----------
    bits
        Elements of :func:`get_storage_type`: uint8 codes of 8-bit and unpacked 4-bit floats, uint16 codes of BFLOAT16,
        and otherwise the numbers themselves. Booleans give 0.0 and 1.0.

    Raises
    ------
    GraphError
        ``format-unknown``; ``format-storage`` if `bits` are codes of another type.
    """
    kind = get_storage_type(data_type)
    given = np.asarray(bits)
    facts = DATA_TYPES[data_type]
    if facts.kind == "boolean":
        return np.asarray(given != 0, dtype=np.float64)
    if facts.form is None and facts.kind != "scale":
        return given.astype(np.float64)
    if given.dtype != kind:
        raise GraphError(
            f"codes of {data_type.name} are {given.dtype}, {kind} is needed",
            code="format-storage",
            where="cudnn_backend_py.graph.formats.decode",
            fix=f"numbers become codes by encode(values, DataType.{data_type.name})",
        )
    table = _list_numbers_by_bit_pattern(data_type)
    numbers: NDArray[np.float64] = table[given & (len(table) - 1)]
    return numbers


def encode(values: ArrayLike, data_type: DataType) -> NDArray[Any]:
    """Encode numbers as the bit patterns of elements in memory, with :func:`get_storage_type`.

    Floats round to the nearest, ties to even. Finite numbers beyond the largest one become it in FP8_E4M3, FP8_E5M2
    and FP4_E2M1, and infinity in the other floats. Infinity stays where there is one, else it is the largest number;
    NaN becomes 0x7f in both FP8 types, and 0 in FP4_E2M1, which has none. FP8_E8M0 rounds up to the next power of two,
    so that nothing scaled by it overflows; below 2^-127 (zero included) it is 2^-127, beyond 2^127 it is 2^127, and
    negative numbers are NaN. Integers are cut towards zero and kept in range, NaN is 0. Booleans are 1 unless zero.

    Raises
    ------
    GraphError
        ``format-unknown``.
    """
    kind, facts = get_storage_type(data_type), DATA_TYPES[data_type]
    given = np.asarray(values)
    with np.errstate(all="ignore"):
        if facts.kind == "boolean":
            return np.asarray(given != 0, dtype=kind)
        if facts.kind == "integer":
            return _encode_integers(given, data_type)
        if facts.kind == "scale":
            return _encode_e8m0(given.astype(np.float64))
        if facts.form is not None:
            return _encode_float(given.astype(np.float64), data_type)
        return given.astype(kind)


def round_to_data_type(values: ArrayLike, data_type: DataType) -> NDArray[np.float64]:
    """Round numbers to the data type: :func:`encode`, then :func:`decode`.

    Raises
    ------
    GraphError
        ``format-unknown``.
    """
    return decode(encode(values, data_type), data_type)


def to_f8_128x4_order(scales: ArrayLike) -> NDArray[Any]:
    """Return block scales in the memory order F8_128x4, as one dimension.

    Parameters
    ----------
    scales
        [.., rows, blocks], whole tiles: rows a multiple of 128, blocks along them of 4. Where the blocks are along the
        last axis but one (K^T), swap both first.

    Raises
    ------
    GraphError
        ``operation-shape``.

    Notes
    -----
    A tile of 128 rows and 4 blocks is 512 elements in a row; tiles follow each other along the blocks first. In a tile
    the scale of row r and block c is element (r % 32) * 16 + (r // 32) * 4 + c. From the documentation of cuBLAS; not
    measured.
    """
    given = np.asarray(scales)
    _check_whole_tiles(given.shape)
    *batch, rows, blocks = given.shape
    tiles = given.reshape(*batch, rows // 128, 4, 32, blocks // 4, 4)
    order = [*range(len(batch)), *(len(batch) + axis for axis in (0, 3, 2, 1, 4))]
    return tiles.transpose(order).reshape(-1)


def from_f8_128x4_order(memory: ArrayLike, dims: tuple[int, ...]) -> NDArray[Any]:
    """Return block scales [.., rows, blocks] from memory in F8_128x4 order: the inverse of :func:`to_f8_128x4_order`.

    Raises
    ------
    GraphError
        ``operation-shape``.
    """
    _check_whole_tiles(dims)
    *batch, rows, blocks = dims
    tiles = np.asarray(memory).reshape(*batch, rows // 128, blocks // 4, 32, 4, 4)
    order = [*range(len(batch)), *(len(batch) + axis for axis in (0, 3, 2, 1, 4))]
    return tiles.transpose(order).reshape(dims)


def _check_whole_tiles(dims: tuple[int, ...]) -> None:
    if len(dims) < 2 or dims[-2] % 128 or dims[-1] % 4:
        raise GraphError(
            f"scales have dims {list(dims)}, but the last two must be multiples of 128 and 4",
            code="operation-shape",
            where="cudnn_backend_py.graph.formats",
        )


def _get_float_format(data_type: DataType) -> FloatFormat:
    form = DATA_TYPES[data_type].form
    assert form is not None
    return form


@cache
def _list_numbers_by_bit_pattern(data_type: DataType) -> NDArray[np.float64]:
    """Return an array with the number that each bit pattern of a small float type encodes."""
    if data_type is DataType.FP8_E8M0:
        table = np.ldexp(np.ones(256), np.arange(256) - _E8M0_BIAS)
        table[_E8M0_NAN] = np.nan
        return table
    form = _get_float_format(data_type)
    codes = np.arange(1 << (form.exponent + form.mantissa))
    exponent, mantissa = codes >> form.mantissa, codes & ((1 << form.mantissa) - 1)
    is_normal = exponent > 0
    significand = mantissa / (1 << form.mantissa) + is_normal
    positive = np.ldexp(significand, np.maximum(exponent, 1) - form.bias)
    positive[form.top + 1 :] = np.nan
    if form.infinity is not None:
        positive[form.infinity] = np.inf
    return np.concatenate([positive, -positive])


def _encode_float(values: NDArray[np.float64], data_type: DataType) -> NDArray[Any]:
    form = _get_float_format(data_type)
    size = np.abs(values)
    held = np.where(np.isfinite(size), size, 0.0)
    # The number is this many steps of its exponent; codes count them on from one exponent to the next.
    exponent = np.maximum(np.frexp(np.maximum(held, 2.0**-1074))[1] - 1, 1 - form.bias)  # of 0 the least
    steps = np.rint(np.ldexp(held, form.mantissa - exponent)).astype(np.int64)
    code = steps + ((exponent.astype(np.int64) + form.bias - 1) << form.mantissa)
    beyond = form.top if form.saturates else form.top + 1
    code = np.minimum(code, beyond)
    code = np.where(np.isinf(size), beyond if form.infinity is None else form.infinity, code)
    sign = np.signbit(values).astype(np.int64) << (form.exponent + form.mantissa)
    return np.where(np.isnan(values), form.nan or 0, code | sign).astype(get_storage_type(data_type))


def _encode_e8m0(values: NDArray[np.float64]) -> NDArray[Any]:
    code = np.searchsorted(_list_numbers_by_bit_pattern(DataType.FP8_E8M0)[:_E8M0_NAN], values, side="left")
    code = np.minimum(code, _E8M0_TOP)
    return np.where((values < 0) | np.isnan(values), _E8M0_NAN, code).astype(np.uint8)


def _encode_integers(values: NDArray[Any], data_type: DataType) -> NDArray[Any]:
    limits = DATA_TYPES[data_type].limits
    assert limits is not None
    kind, (low, high) = get_storage_type(data_type).type, limits
    if values.dtype.kind in "biu":
        info = np.iinfo(values.dtype) if values.dtype.kind != "b" else np.iinfo(np.uint8)
        return np.asarray(np.clip(values, max(low, int(info.min)), min(high, int(info.max))), dtype=kind)
    whole = np.trunc(values.astype(np.float64))
    inside = np.where(np.isnan(whole) | (whole >= high) | (whole <= low), 0, whole).astype(kind)
    return np.where(whole >= high, kind(high), np.where(whole <= low, kind(low), inside)).astype(kind)
