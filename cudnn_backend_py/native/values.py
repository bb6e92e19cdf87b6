"""Convert Python values to plain values, plain values to C arrays, and C arrays to Python values.

Whatever a caller gives is first counted, then read once, element by element, into exact ints, floats, bools, texts,
bytes and pairs of these: :func:`read_attribute_elements`. Only such values are used afterwards, by the conversions
to the element types of ``cudnnBackendAttributeType_t`` and by the table of known issues, and they are what C is given.
So an object that answers otherwise when it is judged again, or has code of its own in any of its methods, passes no
check it should not.
"""

from __future__ import annotations

import ctypes
import numbers
import operator
import reprlib
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from ..generated.attributes import ENUM_OF_TYPE, AttributeFacts
from ..generated.enums import AttributeName, AttributeType, CudnnEnum
from ..system.interruption import reraise_interruption
from .libcudnn import DescriptorPointer, Fraction, HandlePointer, Library, NativeObject

__all__ = [
    "C_TYPES",
    "MAX_ELEMENTS",
    "format_value",
    "format_value_with_type",
    "is_convertible",
    "is_instance",
    "is_one_dimensional",
    "read_attribute_elements",
    "read_c_array",
    "read_integers",
    "read_number",
    "read_sequence",
    "to_c_elements",
]

MAX_ELEMENTS = 1 << 16  # where cuDNN gives no bound

_SINGLE_VALUE_TYPES = (int, float, str, bytes, NativeObject)  # one value, though some have items
_OBJECT_TYPES = (AttributeType.BACKEND_DESCRIPTOR, AttributeType.HANDLE)

_PLAIN_C_TYPES: dict[AttributeType, Any] = {
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

C_TYPES: dict[AttributeType, Any] = {kind: _PLAIN_C_TYPES.get(kind, ctypes.c_int) for kind in AttributeType}

_INTEGER_BITS = {AttributeType.INT64: 64, AttributeType.INT32: 32}


def is_instance(value: object, kind: type) -> bool:
    """Return whether the real type of `value`, not its ``__class__``, is `kind` or a subclass."""
    return issubclass(type(value), kind)


# ------------------------------------------------------------------------------------------- messages

_MAX_SHOWN_CHARACTERS = 200
_short_repr = reprlib.Repr()
_short_repr.maxlist = _short_repr.maxtuple = _short_repr.maxarray = _short_repr.maxdict = _short_repr.maxset = (
    _short_repr.maxfrozenset
) = 9
_short_repr.maxlevel = 3
_short_repr.maxlong = _short_repr.maxstring = _short_repr.maxother = _MAX_SHOWN_CHARACTERS


def format_value(value: object) -> str:
    """Return the ``repr`` of a value for a message, in one line of bounded length."""
    if type(value) is int and value.bit_length() > 3 * _MAX_SHOWN_CHARACTERS:
        return f"<int of {value.bit_length()} bits>"
    try:
        text = str.__str__(_short_repr.repr(value))
    except Exception as error:
        reraise_interruption(error)
        text = f"<{_get_type_name(value)}>"
    return _shorten_to_one_line(text)


def format_value_with_type(value: object) -> str:
    """Return a value and the name of its type for a message."""
    return f"{format_value(value)} ({_get_type_name(value)})"


def _get_type_name(value: object) -> str:
    return _shorten_to_one_line(vars(type)["__name__"].__get__(type(value)))


def _shorten_to_one_line(text: str) -> str:
    if len(text) > _MAX_SHOWN_CHARACTERS:
        text = f"{text[: _MAX_SHOWN_CHARACTERS - 50]}...{text[-40:]}"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# -------------------------------------------------------------------------------------------- reading


def read_attribute_elements(value: object, facts: AttributeFacts) -> tuple[Any, ...]:
    """Return the elements of an attribute value: the value itself, or the items of a sequence.

    Descriptors, handles and what is no plain value at all come back as they are.

    Raises
    ------
    UsageError
        ``wrong-element-count``, ``wrong-element-type``.
    """
    types = facts.types
    if types[0] is AttributeType.CHAR:
        return (_read_text(value, facts),)
    low, high, kind = facts.min_count, facts.max_count, type(value)
    pairs = AttributeType.FRACTION in types
    row = (
        kind is tuple
        or kind is list
        or (kind is not int and not issubclass(kind, _SINGLE_VALUE_TYPES) and is_one_dimensional(value))
    )
    if not row or (pairs and high == 1):
        value = (value,)
    elements = read_sequence(value, facts.attribute, low, high)
    if len(types) == 1 and types[0] in _OBJECT_TYPES:
        return elements
    return tuple(
        [(_read_number_or_fraction_pair if pairs else _convert_to_plain_type)(element) for element in elements]
    )


def read_sequence(value: Any, what: AttributeName | str, low: int, high: int | None) -> tuple[Any, ...]:
    """Return the items of a sequence or row of numbers, after checking their count.

    Raises
    ------
    UsageError
        ``wrong-element-count``, ``wrong-element-type``.
    """
    bound = MAX_ELEMENTS if high is None else high
    kind = type(value)
    try:
        count = len(value)
        if low <= count <= bound:
            if kind is tuple:
                return value  # type: ignore[no-any-return]
            row = value.tolist() if kind is not list and hasattr(kind, "tolist") else value
            items = tuple(row[: count + 1] if type(row) is list else [row[index] for index in range(count)])
            if len(items) == count:
                return items
            count = len(items)  # it is another one now
    except Exception as error:
        reraise_interruption(error)
        raise UsageError(
            f"{format_value_with_type(value)} given to {_format_name_for_message(what)} cannot be read: "
            f"{format_value(error)}",
            code="wrong-element-type",
        ) from error
    needed = f"{bound}" if bound == low else f"{low} to {bound}"
    raise UsageError(
        f"{_format_name_for_message(what)} takes {needed} elements, got {count}", code="wrong-element-count"
    )


def _format_name_for_message(what: AttributeName | str) -> str:
    return what.c_name if isinstance(what, AttributeName) else what


def is_one_dimensional(value: Any) -> bool:
    """Return whether a value is a sequence or a one-dimensional array."""
    try:
        return issubclass(type(value), Sequence) or bool(hasattr(type(value), "tolist") and value.ndim == 1)
    except Exception as error:
        reraise_interruption(error)
        return False


def _read_text(value: Any, facts: AttributeFacts) -> str:
    text = str.__str__(value) if is_instance(value, str) else None
    if text is None or "\0" in text or not _is_utf8_encodable(text):
        raise UsageError(
            f"{facts.attribute.c_name} takes text without NUL and lone surrogates, got {format_value_with_type(value)}",
            code="wrong-element-type",
        )
    return text


def _is_utf8_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert_to_plain_type(value: Any) -> Any:
    """Convert an instance of a subclass of int, str or another plain type, or a NumPy number, to the plain type."""
    kind = type(value)
    if kind is int or kind is float or kind is bool or value is None or issubclass(kind, CudnnEnum):
        return value
    try:
        return _to_plain_value(value, kind)
    except Exception as error:
        reraise_interruption(error)
        raise UsageError(
            f"{format_value_with_type(value)} cannot be read: {format_value(error)}", code="wrong-element-type"
        ) from error


def _to_plain_value(value: Any, kind: type) -> Any:
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, bytes):
        return bytes.__getitem__(value, slice(None))
    if issubclass(kind, int):
        return operator.index(value)
    if hasattr(kind, "ndim") and value.ndim != 0:
        return value  # an array is not a number, even if it holds one
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    whole, real = hasattr(kind, "__index__"), hasattr(kind, "__float__")
    if issubclass(kind, numbers.Complex) and not issubclass(kind, numbers.Real):
        return value
    if whole:
        try:
            return operator.index(value)
        except Exception as error:
            reraise_interruption(error)
            if not real:
                raise
    return float(value) if real else value


def _read_number_or_fraction_pair(value: Any) -> Any:
    """Return a value as a plain Python number, or a fraction's pair (numerator, denominator) as two."""
    if issubclass(type(value), _SINGLE_VALUE_TYPES) or not is_one_dimensional(value):
        return _convert_to_plain_type(value)
    try:
        pair = read_sequence(value, "a fraction", 2, 2)
    except UsageError as error:
        raise _make_type_error(value, AttributeType.FRACTION, "a pair (numerator, denominator)") from error.__cause__
    return tuple([_convert_to_plain_type(item) for item in pair])


def read_integers(value: Any, what: str) -> list[int]:
    """Return the items of a sequence as 64-bit integers.

    Raises
    ------
    UsageError
        ``wrong-element-count``, ``wrong-element-type``, ``integer-overflow``.
    """
    return to_c_elements(
        [_convert_to_plain_type(item) for item in read_sequence(value, what, 0, None)], AttributeType.INT64, None
    )


def read_number(value: Any, what: str, low: int, high: int) -> int:
    """Return an argument as an integer from `low` to `high`.

    Raises
    ------
    UsageError
        ``wrong-argument``, ``integer-overflow``.
    """
    number = _convert_argument_to_plain_type(value)
    if type(number) is bool or not is_instance(number, int):
        raise UsageError(f"{what} must be an int, got {format_value_with_type(value)}", code="wrong-argument")
    number = int(number)
    if not low <= number <= high:
        raise UsageError(f"{what} must be from {low} to {high}, got {format_value(number)}", code="integer-overflow")
    return number


def _convert_argument_to_plain_type(value: Any) -> Any:
    try:
        return _convert_to_plain_type(value)
    except UsageError as error:
        raise UsageError(error.headline, code="wrong-argument") from error.__cause__


# --------------------------------------------------------------------------------- plain values to C


def _make_type_error(value: object, kind: AttributeType, needs: str, fix: str | None = None) -> UsageError:
    return UsageError(
        f"{format_value_with_type(value)} is not valid for {kind.name}, which needs {needs}",
        code="wrong-element-type",
        fix=fix,
    )


def _to_integer(value: Any, kind: AttributeType, _library: Library | None) -> int:
    if type(value) is not int:
        if not is_instance(value, CudnnEnum):
            raise _make_type_error(value, kind, "an int")
        value = operator.index(value)
    bits = _INTEGER_BITS[kind]
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise UsageError(f"{format_value(value)} does not fit a signed integer of {bits} bits", code="integer-overflow")
    return value  # type: ignore[no-any-return]


def _to_float(value: Any, kind: AttributeType, _library: Library | None) -> float:
    if type(value) is float:
        return value
    if type(value) is bool or not is_instance(value, int):
        raise _make_type_error(value, kind, "a float")
    try:
        return float(operator.index(value))
    except OverflowError as error:
        raise _make_type_error(value, kind, "a number a double can hold") from error


def _to_boolean(value: Any, kind: AttributeType, _library: Library | None) -> bool:
    if type(value) is bool:
        return value
    raise _make_type_error(value, kind, "True or False")


def _to_address(value: Any, kind: AttributeType, _library: Library | None) -> int | None:
    if value is None:
        return None
    if type(value) is not int:
        raise _make_type_error(value, kind, "an address as int, or None")
    if not 0 <= value < 1 << 64:
        raise UsageError(
            f"an address must be from 0 to {(1 << 64) - 1}, got {format_value(value)}", code="integer-overflow"
        )
    return value


def _to_fraction(value: Any, kind: AttributeType, library: Library | None) -> Fraction:
    if type(value) is not tuple:
        raise _make_type_error(value, kind, "a pair (numerator, denominator)")
    return Fraction(*(_to_integer(item, AttributeType.INT64, library) for item in value))


def _to_enumerator(value: Any, kind: AttributeType, library: Library | None) -> int:
    enum: type[CudnnEnum] = ENUM_OF_TYPE[kind]
    if type(value) is not enum and type(value) is not int:
        near = enum.find_nearest(value)
        raise _make_type_error(value, kind, f"a {enum.__name__}", f"use {enum.__name__}.{near.name}" if near else None)
    number = operator.index(value)
    if library is None or number not in library.enumerators[enum]:
        member: Any = enum._value2member_map_.get(number)
        if member is None:
            raise UsageError(f"{format_value(number)} is not a {enum.__name__}", code="unknown-enumerator")
        if library is not None:
            raise library.make_too_new_error(member)
    return number


_CONVERTERS: dict[AttributeType, Any] = {
    AttributeType.BOOLEAN: _to_boolean,
    AttributeType.INT64: _to_integer,
    AttributeType.INT32: _to_integer,
    AttributeType.FLOAT: _to_float,
    AttributeType.DOUBLE: _to_float,
    AttributeType.VOID_PTR: _to_address,
    AttributeType.FRACTION: _to_fraction,
    **dict.fromkeys(ENUM_OF_TYPE, _to_enumerator),
}


def to_c_elements(values: Sequence[Any], kind: AttributeType, library: Library | None) -> list[Any]:
    """Convert values from :func:`read_attribute_elements` to elements of a C array of type `kind`, checking each.

    An enumerator newer than `library` is refused; without one every enumerator of the header is taken.

    Raises
    ------
    UsageError
        ``wrong-element-type``, ``integer-overflow``, ``unknown-enumerator``, ``enumerator-newer-than-library``.
    """
    one = _CONVERTERS[kind]
    return [one(value, kind, library) for value in values]


def is_convertible(value: object, kind: AttributeType) -> bool:
    """Return whether `value` can be of type `kind`; selects one of several accepted element types."""
    one = _CONVERTERS.get(kind)
    if one is None:
        return False
    try:
        one(_read_number_or_fraction_pair(value), kind, None)
    except UsageError:
        return False
    return True


def read_c_array(array: ctypes.Array[Any], count: int, kind: AttributeType) -> tuple[Any, ...]:
    """Return the first `count` elements as Python values; enum values that are newer than the header stay ints."""
    values = tuple(array[:count])
    enum = ENUM_OF_TYPE.get(kind)
    if enum is not None:
        members = enum._value2member_map_
        return tuple(members.get(value, value) for value in values)
    if kind == AttributeType.FRACTION:
        return tuple((value.numerator, value.denominator) for value in values)
    return values
