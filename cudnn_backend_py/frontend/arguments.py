"""Conversion of arguments: a TypeError names the argument and the given value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import copysign, inf
from operator import index
from struct import pack, unpack
from typing import Any, TypeVar, cast

from ..printable import shown

__all__ = ["instance", "integers", "items_of", "number", "single", "whole"]

Kind = TypeVar("Kind")


def instance(name: str, value: Any, kind: type[Kind], needed: str) -> Kind:
    """Return a check for instances of a class; NumPy booleans count as ``bool``."""
    if not isinstance(value, kind) and not (kind is bool and type(value).__name__ in ("bool", "bool_")):
        raise TypeError(f"{name} is {shown(value)}, {needed} is needed")
    return cast(Kind, value)


def items_of(name: str, values: Any, needed: str) -> list[Any]:
    """Return the items of a list, tuple, ``torch.Size`` or array; a list is returned itself."""
    if type(values) is list:
        return values
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {shown(values)}, {needed} is needed")
    try:
        return list(values)
    except TypeError:  # an array of no dims
        raise TypeError(f"{name} is {shown(values)}, {needed} is needed") from None


def integers(name: str, values: Any) -> list[int]:
    """Return a list of integers."""
    items = items_of(name, values, "a list of int")
    try:
        return list(map(index, items))
    except TypeError:
        return [whole(name, item) for item in items]  # one of them says what it is


def whole(name: str, value: Any) -> int:
    """Return an integer, of Python, NumPy or torch."""
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}, an int is needed") from None


def number(name: str, value: Any) -> float:
    """Return a number, of Python, NumPy or torch."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise TypeError(f"{name} is {shown(value)}, a float is needed")


def single(name: str, value: Any) -> float:
    """Return a number rounded to single precision, infinity where it is too large."""
    given = number(name, value)
    try:
        return float(unpack("f", pack("f", given))[0])
    except OverflowError:
        return copysign(inf, given)
