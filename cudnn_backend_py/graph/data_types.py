"""One table with the properties of each data type: size, names, numeric format and limits."""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeVar

from ..frozen import FrozenValue
from ..generated.enums import USUAL_DATA_TYPES, CudnnEnum, DataType

__all__ = [
    "BOOLEAN_TYPES",
    "DATA_TYPES",
    "ELEMENT_BITS",
    "FP8_TYPES",
    "HALF_TYPES",
    "LOW_PRECISION_TYPES",
    "SHORT_TYPES",
    "DataTypeProperties",
    "FloatFormat",
    "find_member",
    "find_type",
    "get_data_type_word",
    "suggest_enumerator",
]

E = TypeVar("E", bound=CudnnEnum)

_T = DataType


class FloatFormat(FrozenValue):
    """A small float type: its numbers of exponent and mantissa bits, bias, and bit pattern of the largest number."""

    exponent: int
    mantissa: int
    bias: int
    top: int
    infinity: int | None  # code
    nan: int | None  # code written for NaN
    saturates: bool  # numbers beyond the largest become it, else infinity


class DataTypeProperties(FrozenValue):
    """The properties of one data type; None or empty where one does not apply or is unknown.

    Attributes
    ----------
    bits
        Of an element; INT4, UINT4 and FP4 are packed two to a byte, vectorized types count as one element.
    short
        Its name in the text form of a graph.
    word
        What users call it, where that is not its name in lower case.
    kind
        What an element is; ``scale`` is a power of two, ``other`` where the meaning of the bits is not known here.
    storage
        The NumPy type that holds one element, unpacked: its own, or the unsigned integer with its bits.
    array
        The NumPy or ml_dtypes type of host arrays of it; those of `storage` are taken, too.
    dlpack
        DLPack's type code and bits.
    torch
        Its names in torch, the usual one first.
    limits
        Smallest and largest integer.
    form
        How the bits of a small float are read.
    tolerance
        Relative Frobenius norm of a difference that still counts as rounding; integers have to be equal. float32
        results may come from 16-bit products.
    others
        What a tensor of this type could be instead, best first.
    """

    bits: int
    short: str
    word: str = ""
    kind: Literal["float", "integer", "boolean", "scale", "other"] = "other"
    storage: str = ""
    array: str = ""
    dlpack: str = ""
    torch: tuple[str, ...] = ()
    limits: tuple[int, int] | None = None
    form: FloatFormat | None = None
    tolerance: float | None = None
    others: tuple[DataType, ...] = ()


def _make_integer_properties(
    name: str, short: str, *others: DataType, torch: tuple[str, ...] = ()
) -> DataTypeProperties:
    """Return the properties of a whole-byte integer type with the same name in NumPy, DLPack and torch."""
    bits = int(name.lstrip("uint"))
    low, high = (0, (1 << bits) - 1) if name.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return DataTypeProperties(
        bits=bits,
        short=short,
        kind="integer",
        storage=name,
        array=name,
        dlpack=name,
        torch=(name, *torch),
        limits=(low, high),
        others=others,
    )


# E4M3 is the "fn" kind: no infinity, 0x7f and 0xff are NaN. E2M1 has neither infinity nor NaN.
DATA_TYPES: dict[DataType, DataTypeProperties] = {
    _T.FP4_E2M1: DataTypeProperties(
        bits=4,
        short="f4e2m1",
        word="fp4 (e2m1)",
        kind="float",
        storage="uint8",
        torch=("float4_e2m1fn_x2",),
        form=FloatFormat(2, 1, 1, 0x7, None, None, saturates=True),
        tolerance=0.2,
        others=(_T.FP8_E4M3, _T.HALF),
    ),
    _T.FP8_E4M3: DataTypeProperties(
        bits=8,
        short="f8e4m3",
        word="fp8 (e4m3)",
        kind="float",
        storage="uint8",
        array="float8_e4m3fn",
        torch=("float8_e4m3fn",),
        form=FloatFormat(4, 3, 7, 0x7E, None, 0x7F, saturates=True),
        tolerance=0.06,
        others=(_T.HALF, _T.BFLOAT16),
    ),
    _T.FP8_E5M2: DataTypeProperties(
        bits=8,
        short="f8e5m2",
        word="fp8 (e5m2)",
        kind="float",
        storage="uint8",
        array="float8_e5m2",
        torch=("float8_e5m2",),
        form=FloatFormat(5, 2, 15, 0x7B, 0x7C, 0x7F, saturates=True),
        tolerance=0.11,
        others=(_T.BFLOAT16, _T.HALF),
    ),
    _T.FP8_E5M3: DataTypeProperties(bits=8, short="f8e5m3"),
    _T.FP8_E8M0: DataTypeProperties(
        bits=8,
        short="f8e8m0",
        kind="scale",
        storage="uint8",
        array="float8_e8m0fnu",
        torch=("float8_e8m0fnu",),
        tolerance=0.5,
    ),
    _T.FLOAT: DataTypeProperties(
        bits=32,
        short="f32",
        word="float32",
        kind="float",
        storage="float32",
        array="float32",
        dlpack="float32",
        torch=("float32", "float"),
        tolerance=5e-3,
        others=(_T.HALF, _T.BFLOAT16),
    ),
    _T.FAST_FLOAT_FOR_FP8: DataTypeProperties(bits=32, short="fast_f32", kind="float", storage="float32"),
    _T.DOUBLE: DataTypeProperties(
        bits=64,
        short="f64",
        word="double (float64)",
        kind="float",
        storage="float64",
        array="float64",
        dlpack="float64",
        torch=("float64", "double"),
        tolerance=1e-6,
        others=(_T.FLOAT, _T.HALF),
    ),
    _T.BFLOAT16: DataTypeProperties(
        bits=16,
        short="bf16",
        word="bfloat16",
        kind="float",
        storage="uint16",
        array="bfloat16",
        dlpack="bfloat16",
        torch=("bfloat16",),
        form=FloatFormat(8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, saturates=False),
        tolerance=2e-2,
        others=(_T.HALF, _T.FLOAT),
    ),
    _T.HALF: DataTypeProperties(
        bits=16,
        short="f16",
        word="float16",
        kind="float",
        storage="float16",
        array="float16",
        dlpack="float16",
        torch=("float16", "half"),
        tolerance=5e-3,
        others=(_T.BFLOAT16, _T.FLOAT),
    ),
    _T.INT4: DataTypeProperties(bits=4, short="i4", kind="integer", storage="int8", limits=(-8, 7)),
    _T.UINT4: DataTypeProperties(bits=4, short="u4", kind="integer", storage="uint8", limits=(0, 15)),
    _T.INT8: _make_integer_properties("int8", "i8", _T.HALF, _T.INT32),
    _T.UINT8: _make_integer_properties("uint8", "u8", _T.INT8),
    _T.INT8x4: DataTypeProperties(bits=32, short="i8x4"),
    _T.UINT8x4: DataTypeProperties(bits=32, short="u8x4"),
    _T.INT8x32: DataTypeProperties(bits=256, short="i8x32"),
    _T.INT32: _make_integer_properties("int32", "i32", _T.INT64, _T.FLOAT, torch=("int",)),
    _T.UINT32: _make_integer_properties("uint32", "u32"),
    _T.INT64: _make_integer_properties("int64", "i64", _T.INT32, _T.FLOAT, torch=("long",)),
    _T.BOOLEAN: DataTypeProperties(
        bits=1, short="bool", kind="boolean", storage="uint8", dlpack="bool8", torch=("bool",), others=(_T.INT8,)
    ),
    _T.BYTE_BOOLEAN: DataTypeProperties(bits=8, short="byte_bool", kind="boolean", storage="uint8", array="bool"),
    _T.COMPLEX_FP32: DataTypeProperties(bits=64, short="c64"),
    _T.COMPLEX_FP64: DataTypeProperties(bits=128, short="c128"),
}

ELEMENT_BITS = {kind: facts.bits for kind, facts in DATA_TYPES.items()}
SHORT_TYPES = {kind: facts.short for kind, facts in DATA_TYPES.items()}
HALF_TYPES = (_T.HALF, _T.BFLOAT16)
FP8_TYPES = (_T.FP8_E4M3, _T.FP8_E5M2)
LOW_PRECISION_TYPES = (*FP8_TYPES, _T.FP4_E2M1, _T.FP8_E8M0)
BOOLEAN_TYPES = (_T.BOOLEAN, _T.BYTE_BOOLEAN)


@cache
def _map_names_to_data_types() -> dict[str, DataType]:
    found = {usual.lower(): DataType[name] for usual, name in USUAL_DATA_TYPES.items()}
    for kind, facts in DATA_TYPES.items():
        storage = facts.storage if facts.array == facts.storage else ""
        found.update(dict.fromkeys(filter(None, (kind.name.lower(), facts.short, storage, *facts.torch)), kind))
    return found


def find_type(name: str) -> DataType | None:
    """Return the data type by its name in cuDNN, NumPy or torch, or a short name such as ``bf16``; None if unknown."""
    return _map_names_to_data_types().get(name.lower().removeprefix("torch."))


def find_member(enum: type[E], name: str) -> E | None:
    """Return the enumerator with this name or C name, ignoring case; data types also by :func:`find_type`."""
    named = name.upper()
    for short, member in enum.__members__.items():
        if named in (short.upper(), member.c_name.upper()):
            return member
    found = find_type(name) if issubclass(enum, DataType) else None
    return None if found is None else enum(found)


def suggest_enumerator(enum: type[CudnnEnum], name: object, prefix: str = "") -> str:
    """Return the enumerator with the most similar name, to append to an error text; empty if none."""
    near = enum.find_nearest(name)
    return "" if near is None else f"; did you mean {prefix}{near.name}?"


def get_data_type_word(kind: DataType) -> str:
    """Return the usual name of a data type, such as "float16"."""
    return DATA_TYPES[kind].word or kind.name.lower()
