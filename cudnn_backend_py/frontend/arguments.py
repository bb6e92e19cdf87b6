"""Check and convert arguments; a TypeError reports the argument's name and value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import copysign, inf
from operator import index
from struct import pack, unpack
from typing import Any, TypeVar, cast

from ..printable import format_repr

__all__ = ["check_instance", "to_float", "to_float32", "to_int", "to_int_list", "to_list"]

Kind = TypeVar("Kind")


def check_instance(name: str, value: Any, kind: type[Kind], needed: str) -> Kind:
    """Return the value if it is an instance of a class, else raise; NumPy booleans count as ``bool``."""
    if not isinstance(value, kind) and not (kind is bool and type(value).__name__ in ("bool", "bool_")):
        raise TypeError(f"{name} is {format_repr(value)}, {needed} is needed")
    return cast(Kind, value)


def to_list(name: str, values: Any, needed: str) -> list[Any]:
    """Return the items of a list, tuple, ``torch.Size`` or array as a list; a list itself is not copied."""
    if type(values) is list:
        return values
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {format_repr(values)}, {needed} is needed")
    try:
        return list(values)
    except TypeError:  # an array of no dims
        raise TypeError(f"{name} is {format_repr(values)}, {needed} is needed") from None


def to_int_list(name: str, values: Any) -> list[int]:
    """Return a sequence of integers as a list of int."""
    items = to_list(name, values, "a list of int")
    try:
        return list(map(index, items))
    except TypeError:
        return [to_int(name, item) for item in items]  # one of them says what it is


def to_int(name: str, value: Any) -> int:
    """Return an integer of Python, NumPy or torch as int."""
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} is {format_repr(value)}, an int is needed") from None


def to_float(name: str, value: Any) -> float:
    """Return a number of Python, NumPy or torch as float."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise TypeError(f"{name} is {format_repr(value)}, a float is needed")


def to_float32(name: str, value: Any) -> float:
    """Return a number rounded to float32, infinity if it is too large."""
    given = to_float(name, value)
    try:
        return float(unpack("f", pack("f", given))[0])
    except OverflowError:
        return copysign(inf, given)
