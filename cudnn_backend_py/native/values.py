"""Python values to C arrays and back, one entry per attribute element type.

The C element types are those of ``cudnnBackendAttributeType_t``. Every conversion refuses what does not fit before
C sees it: a float for an integer, an integer beyond 64 bits, a number that is no member of the enum.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from ..generated.attributes import ENUM_OF_TYPE
from ..generated.enums import AttributeType, CudnnEnum
from .library import DescriptorPointer, Fraction, HandlePointer

__all__ = ["C_TYPES", "from_c", "matches", "to_c"]

_PLAIN: dict[AttributeType, Any] = {
    AttributeType.HANDLE: HandlePointer,
    AttributeType.BOOLEAN: ctypes.c_bool,
    AttributeType.INT64: ctypes.c_int64,
    AttributeType.INT32: ctypes.c_int32,
    AttributeType.FLOAT: ctypes.c_float,
    AttributeType.DOUBLE: ctypes.c_double,
    AttributeType.VOID_PTR: ctypes.c_void_p,
    AttributeType.CHAR: ctypes.c_char,
    AttributeType.FRACTION: Fraction,
    AttributeType.BACKEND_DESCRIPTOR: DescriptorPointer,
}

C_TYPES: dict[AttributeType, Any] = {kind: _PLAIN.get(kind, ctypes.c_int) for kind in AttributeType}

_BITS = {AttributeType.INT64: 64, AttributeType.INT32: 32}


def _refuse(value: object, kind: AttributeType, needs: str) -> UsageError:
    return UsageError(
        f"{value!r} ({type(value).__name__}) is no {kind.name}, {needs} is needed", code="wrong-element-type"
    )


def _integer(value: Any, kind: AttributeType) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _refuse(value, kind, "an int")
    number = operator.index(value)
    bits = _BITS[kind]
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise UsageError(f"{number} does not fit {bits} bits", code="integer-overflow")
    return number


def _real(value: object, kind: AttributeType) -> float:
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise _refuse(value, kind, "a float")
    return float(value)


def _boolean(value: object, kind: AttributeType) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refuse(value, kind, "True or False")


def _address(value: Any, kind: AttributeType) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _refuse(value, kind, "an address as int, or None")
    number = operator.index(value)
    if not 0 <= number < 1 << 64:
        raise UsageError(f"{number} is no address", code="integer-overflow")
    return number


def _fraction(value: object, kind: AttributeType) -> Fraction:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) != 2:
        raise _refuse(value, kind, "a pair (numerator, denominator)")
    numerator, denominator = (_integer(item, AttributeType.INT64) for item in value)
    return Fraction(numerator, denominator)


def _enumerator(value: Any, kind: AttributeType) -> int:
    enum: type[CudnnEnum] = ENUM_OF_TYPE[kind]
    if isinstance(value, CudnnEnum):
        if not isinstance(value, enum):
            raise _refuse(value, kind, f"a {enum.__name__}")
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _refuse(value, kind, f"a {enum.__name__}")
    number = operator.index(value)
    if number not in enum._value2member_map_:
        raise UsageError(f"{number} is no {enum.__name__}", code="unknown-enumerator")
    return number


_CONVERT: dict[AttributeType, Any] = {
    AttributeType.BOOLEAN: _boolean,
    AttributeType.INT64: _integer,
    AttributeType.INT32: _integer,
    AttributeType.FLOAT: _real,
    AttributeType.DOUBLE: _real,
    AttributeType.VOID_PTR: _address,
    AttributeType.FRACTION: _fraction,
    **dict.fromkeys(ENUM_OF_TYPE, _enumerator),
}


def to_c(values: Sequence[Any], kind: AttributeType) -> ctypes.Array[Any]:
    """Return a C array of `values`, each checked; descriptors and handles are given as their pointers.

    Raises
    ------
    UsageError
        ``wrong-element-type``, ``integer-overflow``, ``unknown-enumerator``.
    """
    c_type = C_TYPES[kind]
    convert = _CONVERT.get(kind)
    if convert is not None:
        values = [convert(value, kind) for value in values]
    return (c_type * len(values))(*values)  # type: ignore[no-any-return]


def matches(value: object, kind: AttributeType) -> bool:
    """Return whether `value` converts to `kind`; how one of several accepted element types is chosen."""
    convert = _CONVERT.get(kind)
    if convert is None:
        return False
    try:
        convert(value, kind)
    except UsageError:
        return False
    return True


def from_c(array: ctypes.Array[Any], count: int, kind: AttributeType) -> tuple[Any, ...]:
    """Return the first `count` elements as Python values; enumerators newer than our header stay plain ints."""
    values = tuple(array[:count])
    enum = ENUM_OF_TYPE.get(kind)
    if enum is not None:
        members = enum._value2member_map_
        return tuple(members.get(value, value) for value in values)
    if kind == AttributeType.FRACTION:
        return tuple((value.numerator, value.denominator) for value in values)
    return values
