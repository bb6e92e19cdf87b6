"""Element formats compared with NumPy's own types, an independent formula, and known values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.formats import (
    decode,
    encode,
    get_largest_finite,
    get_storage_type,
    is_integer,
    round_to_data_type,
)

T = DataType
SMALL = {T.FP8_E4M3: 256, T.FP8_E5M2: 256, T.FP4_E2M1: 16, T.BFLOAT16: 65536, T.HALF: 65536}
UNKNOWN = (T.INT8x4, T.UINT8x4, T.INT8x32, T.COMPLEX_FP32, T.COMPLEX_FP64, T.FP8_E5M3)
NAN, INF = math.nan, math.inf


def list_all_bit_patterns(data_type: DataType) -> np.ndarray[Any, Any]:
    kind = get_storage_type(data_type)
    unsigned = np.arange(SMALL[data_type], dtype=np.uint16 if kind.itemsize == 2 else np.uint8)
    return unsigned.view(kind)


def compute_value_from_bit_fields(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """Return the value of a code from its sign, exponent and mantissa, ignoring infinity and NaN."""
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)


@pytest.mark.parametrize(
    ("data_type", "fields"), [(T.FP8_E4M3, (4, 3, 7)), (T.FP8_E5M2, (5, 2, 15)), (T.FP4_E2M1, (2, 1, 1))]
)
def test_every_finite_bit_pattern_has_the_value_of_its_fields(
    data_type: DataType, fields: tuple[int, int, int]
) -> None:
    values = decode(list_all_bit_patterns(data_type), data_type)
    finite = np.isfinite(values)
    expected = [compute_value_from_bit_fields(code, *fields) for code in range(SMALL[data_type])]
    np.testing.assert_array_equal(values[finite], np.array(expected)[finite])
    np.testing.assert_array_equal(np.signbit(values[finite]), np.signbit(np.array(expected)[finite]))
    not_finite = {T.FP8_E4M3: [0x7F, 0xFF], T.FP8_E5M2: [*range(0x7C, 0x80), *range(0xFC, 0x100)], T.FP4_E2M1: []}
    assert list(np.flatnonzero(~finite)) == not_finite[data_type]


def test_every_bfloat16_bit_pattern_is_the_upper_half_of_float32() -> None:
    bits = list_all_bit_patterns(T.BFLOAT16)
    with np.errstate(invalid="ignore"):  # some of the NaNs are signalling ones
        expected = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    np.testing.assert_array_equal(decode(bits, T.BFLOAT16), expected)


@pytest.mark.parametrize("data_type", SMALL)
def test_every_bit_pattern_is_decoded_and_encoded_unchanged(data_type: DataType) -> None:
    bits = list_all_bit_patterns(data_type)
    values = decode(bits, data_type)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values, data_type)[number], bits[number])
    assert np.isnan(round_to_data_type(values[~number], data_type)).all()


@pytest.mark.parametrize("data_type", SMALL)
def test_values_are_rounded_to_nearest_even(data_type: DataType) -> None:
    top = int(encode(get_largest_finite(data_type), data_type).view(f"u{get_storage_type(data_type).itemsize}"))
    values = decode(list_all_bit_patterns(data_type)[: top + 1], data_type)
    middle = (values[:-1] + values[1:]) / 2
    even = np.where(np.arange(top) % 2 == 0, values[:-1], values[1:])
    for sign in (1, -1):
        np.testing.assert_array_equal(round_to_data_type(sign * middle, data_type), sign * even)
        np.testing.assert_array_equal(round_to_data_type(sign * np.nextafter(middle, 0), data_type), sign * values[:-1])
        np.testing.assert_array_equal(
            round_to_data_type(sign * np.nextafter(middle, np.inf), data_type), sign * values[1:]
        )


@pytest.mark.parametrize("data_type", [*SMALL, T.FLOAT, T.FP8_E8M0, T.INT8])
def test_rounding_is_monotone(data_type: DataType) -> None:
    reach = min(2 * get_largest_finite(data_type), 1e30) if data_type is not T.HALF else get_largest_finite(data_type)
    random = np.random.default_rng(1)
    values = np.sort(np.concatenate([random.uniform(-reach, reach, 4000), random.normal(size=4000)]))
    values = values[values > 0] if data_type is T.FP8_E8M0 else values
    assert (np.diff(round_to_data_type(values, data_type)) >= 0).all()


@pytest.mark.parametrize(
    ("data_type", "value", "rounded"),
    [
        (T.FP8_E4M3, 448.0, 448.0),
        (T.FP8_E4M3, 464.0, 448.0),
        (T.FP8_E4M3, -1e9, -448.0),
        (T.FP8_E4M3, INF, 448.0),
        (T.FP8_E4M3, 2.0**-9, 2.0**-9),
        (T.FP8_E4M3, 2.0**-10, 0.0),
        (T.FP8_E4M3, 1.5 * 2.0**-9, 2.0**-8),
        (T.FP8_E4M3, 17.0, 16.0),
        (T.FP8_E4M3, 19.0, 20.0),
        (T.FP8_E5M2, 57344.0, 57344.0),
        (T.FP8_E5M2, 1e6, 57344.0),
        (T.FP8_E5M2, -INF, -INF),
        (T.FP8_E5M2, 2.0**-16, 2.0**-16),
        (T.FP8_E5M2, 9.0, 8.0),
        (T.FP4_E2M1, 5.0, 4.0),
        (T.FP4_E2M1, 100.0, 6.0),
        (T.FP4_E2M1, 0.25, 0.0),
        (T.FP4_E2M1, NAN, 0.0),
        (T.BFLOAT16, 1 + 2.0**-8, 1.0),
        (T.BFLOAT16, 1 + 3 * 2.0**-8, 1 + 2.0**-6),
        (T.BFLOAT16, 3.4e38, INF),
        (T.BFLOAT16, 3.39e38, 255 * 2.0**120),
        (T.BFLOAT16, -INF, -INF),
        (T.HALF, 65519.0, 65504.0),
        (T.HALF, 65520.0, INF),
        (T.FLOAT, 1e-60, 0.0),
        (T.FLOAT, 0.1, float(np.float32(0.1))),
        (T.DOUBLE, 0.1, 0.1),
        (T.FP8_E8M0, 1.0, 1.0),
        (T.FP8_E8M0, 1.01, 2.0),
        (T.FP8_E8M0, 0.0, 2.0**-127),
        (T.FP8_E8M0, INF, 2.0**127),
        (T.FP8_E8M0, -1.0, NAN),
        (T.FP8_E8M0, NAN, NAN),
        (T.INT8, -2.9, -2.0),
        (T.INT8, 300.0, 127.0),
        (T.INT8, -INF, -128.0),
        (T.UINT8, -1.0, 0.0),
        (T.INT32, NAN, 0.0),
        (T.INT4, -9.0, -8.0),
        (T.UINT4, 15.9, 15.0),
        (T.INT64, 1e30, float((1 << 63) - 1)),
        (T.UINT32, 4e9, 4e9),
        (T.BOOLEAN, -0.5, 1.0),
        (T.BOOLEAN, 0.0, 0.0),
        (T.BYTE_BOOLEAN, 7, 1.0),
    ],
)
def test_known_values_are_rounded_as_expected(data_type: DataType, value: float, rounded: float) -> None:
    np.testing.assert_array_equal(round_to_data_type(value, data_type), rounded)


def test_fp8_types_encode_nan_as_0x7f() -> None:
    assert encode([NAN, -NAN], T.FP8_E4M3).tolist() == [0x7F, 0x7F]
    assert encode([NAN, -NAN], T.FP8_E5M2).tolist() == [0x7F, 0x7F]


def test_bfloat16_is_rounded_directly_from_float64() -> None:
    just_above_half = 1 + 2.0**-8 + 2.0**-40  # float32 would make it the exact half, and that goes down
    assert round_to_data_type(just_above_half, T.BFLOAT16) == 1 + 2.0**-7


def test_every_e8m0_bit_pattern_is_a_power_of_two() -> None:
    bits = np.arange(256, dtype=np.uint8)
    values = decode(bits, T.FP8_E8M0)
    assert values[:-1].tolist() == [math.ldexp(1, code - 127) for code in range(255)]
    assert np.isnan(values[-1])
    np.testing.assert_array_equal(encode(values, T.FP8_E8M0), bits)


def test_large_integers_are_encoded_exactly() -> None:
    seed = (1 << 62) + 1
    assert encode([seed, -seed], T.INT64).tolist() == [seed, -seed]
    assert encode(np.array([1 << 40, -5]), T.INT32).tolist() == [(1 << 31) - 1, -5]
    assert encode(np.array([1 << 63], np.uint64), T.INT64).tolist() == [(1 << 63) - 1]


def test_encoding_keeps_the_shape_and_uses_the_storage_type() -> None:
    for data_type in DataType:
        if data_type in UNKNOWN:
            continue
        element = encode(np.ones((2, 3)), data_type)
        assert element.shape == (2, 3)
        assert element.dtype == get_storage_type(data_type)
        assert decode(element, data_type).dtype == np.float64
        assert (round_to_data_type(np.ones((2, 3)), data_type) == 1).all()
        assert round_to_data_type(get_largest_finite(data_type), data_type) == get_largest_finite(data_type)


def test_is_integer_is_true_only_for_integer_types() -> None:
    assert {kind for kind in DataType if is_integer(kind)} == {
        *(T.INT4, T.UINT4, T.INT8, T.UINT8, T.INT32, T.UINT32, T.INT64)
    }


@pytest.mark.parametrize("data_type", UNKNOWN)
def test_types_of_unknown_format_are_refused(data_type: DataType) -> None:
    for call in (get_storage_type, get_largest_finite):
        with pytest.raises(GraphError, match=data_type.name) as error:
            call(data_type)
        assert error.value.code == "format-unknown"


def test_decoding_an_array_of_a_wrong_storage_type_is_refused() -> None:
    with pytest.raises(GraphError, match="float64, uint8 is needed") as error:
        decode(np.array([1.0]), T.FP8_E4M3)
    assert error.value.code == "format-storage"
    with pytest.raises(GraphError, match="uint8, uint16 is needed"):
        decode(np.array([1], np.uint8), T.BFLOAT16)
