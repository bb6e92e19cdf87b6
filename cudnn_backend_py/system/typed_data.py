"""Convert plain data to typed values: fields are checked against the annotations of their class.

What reads JSON into values of this package comes here, so that no damaged field reaches code that expects another type.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import CudnnBackendError, UsageError
from ..printable import format_repr

__all__ = ["convert_to_type", "read_fields"]

T = TypeVar("T")

_NOT_FINITE = ("inf", "-inf", "nan")  # how JSON of this package has floats that strict JSON has not
_MOST = 1 << 63  # integers are of 64 bits: others fit no field of cuDNN


class _TypeMismatchError(Exception):
    """Raised if a value does not have the type that its field requires."""


def convert_to_type(
    kind: type[T], data: Any, what: str, *, code: str, error: type[CudnnBackendError] = UsageError, more: bool = False
) -> T:
    """Convert plain data, such as parsed JSON, to a value of type `kind`.

    Parameters
    ----------
    kind
        A dataclass, ``str``, ``int`` (of 64 bits), ``float`` (also ``"inf"``, ``"-inf"``, ``"nan"``), ``bool``,
        ``None``, an enum (by value), ``Literal``, ``X | Y``, ``tuple[X, ...]``, ``tuple[X, Y]`` (both of lists),
        ``Mapping[K, X]`` (with keys that are texts, or texts of integers), or ``Any``.
    what
        What is read, for the message.
    more
        Whether objects may have keys that no field has.

    Raises
    ------
    CudnnBackendError
        Of class `error`, with the given code, for anything that is of another type, missing, or unknown.
    """
    try:
        return _read_value(kind, data, what, more)  # type: ignore[no-any-return]
    except _TypeMismatchError as mismatch:
        raise error(f"{what} is damaged: {mismatch}", code=code) from None


def read_fields(
    hints: Mapping[str, Any], data: Any, what: str, *, code: str, error: type[CudnnBackendError] = UsageError
) -> dict[str, Any]:
    """Return the fields of a mapping that have these names, converted to their types; other fields are ignored.

    Raises
    ------
    CudnnBackendError
        As :func:`convert_to_type`.
    """
    try:
        record = _check_mapping(data, what)
        if missing := [name for name in hints if name not in record]:
            raise _TypeMismatchError(f"{what} lacks {', '.join(missing)}")
        return {name: _read_value(kind, record[name], name, more=True) for name, kind in hints.items()}
    except _TypeMismatchError as mismatch:
        raise error(f"{what} is damaged: {mismatch}", code=code) from None


def _read_value(kind: Any, value: Any, where: str, more: bool) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where, more)
    origin = get_origin(kind)
    if origin is Literal:
        if isinstance(value, str) and value in get_args(kind):
            return value
        raise _make_mismatch_error(where, value, f"one of {', '.join(get_args(kind))}")
    if origin in (Union, types.UnionType):
        return _read_union_value(get_args(kind), value, where, more)
    if origin is tuple:
        return _read_tuple(get_args(kind), value, where, more)
    if origin is not None and issubclass(origin, Mapping):
        key_kind, item_kind = get_args(kind)
        return {
            _read_key(key_kind, key, where): _read_value(item_kind, item, f"{where}.{key}", more)
            for key, item in _check_mapping(value, where).items()
        }
    return _read_scalar_or_enum(kind, value, where)


def _read_union_value(kinds: tuple[Any, ...], value: Any, where: str, more: bool) -> Any:
    if value is None and type(None) in kinds:
        return None
    *first, last = (kind for kind in kinds if kind is not type(None))
    for kind in first:
        with suppress(_TypeMismatchError):
            return _read_value(kind, value, where, more)
    return _read_value(last, value, where, more)


def _read_scalar_or_enum(kind: Any, value: Any, where: str) -> Any:
    if kind is float and (isinstance(value, float) or (isinstance(value, str) and value in _NOT_FINITE)):
        return float(value)
    if kind in (int, float) and type(value) is int and -_MOST <= value < _MOST:
        return value
    if kind in (str, bool) and type(value) is kind:
        return value
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if type(value) in (str, kind) and member.value == value:
                return member
        raise _make_mismatch_error(where, value, f"one of {', '.join(str(member.value) for member in kind)}")
    names = {int: "an integer of 64 bits", float: "a number", str: "a text", bool: "true or false"}
    raise _make_mismatch_error(where, value, names.get(kind, str(kind)))


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str, more: bool) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _make_mismatch_error(where, value, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise _make_mismatch_error(where, value, f"a list of {len(kinds)}")
    return tuple(
        _read_value(kind, item, f"{where}[{at}]", more)
        for at, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _read_key(kind: Any, key: Any, where: str) -> Any:
    if kind is str and isinstance(key, str):
        return key
    text = key.removeprefix("-") if isinstance(key, str) else ""
    if kind is int and text.isascii() and text.isdecimal() and len(text) < 19:
        return int(key)
    raise _make_mismatch_error(f"a key of {where}", key, "a text" if kind is str else "an integer")


def _read_dataclass(kind: Any, value: Any, where: str, more: bool) -> Any:
    record, hints = _check_mapping(value, where), _get_type_hints(kind)
    needed = {item.name: item.default is MISSING and item.default_factory is MISSING for item in fields(kind)}
    if missing := [name for name, always in needed.items() if always and name not in record]:
        raise _TypeMismatchError(f"{where} lacks {', '.join(missing)}")
    if not more and (unknown := [str(name) for name in record if name not in needed]):
        raise _TypeMismatchError(f"{where} has the unknown fields {', '.join(unknown)}")
    return kind(**{name: _read_value(hints[name], record[name], name, more) for name in needed if name in record})


@cache
def _get_type_hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _check_mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _make_mismatch_error(where, value, "an object")
    return value


def _make_mismatch_error(where: str, value: Any, needed: str) -> _TypeMismatchError:
    return _TypeMismatchError(f"{where} is {format_repr(value, 80)}, {needed} is needed")
