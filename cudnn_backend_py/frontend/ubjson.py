"""Read and write UBJSON, the binary JSON of cudnn-frontend's serialized graphs.

Source: the draft 12 of its specification (ubjson.org), as far as such bytes use it: containers without a type or count.
"""

from __future__ import annotations

import struct
from typing import Any

from ..errors import GraphError

__all__ = ["read_ubjson", "write_ubjson"]

MAX_DEPTH = 64  # lists and objects inside each other
_KINDS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_NUMBERS = {ord(marker): struct.Struct(kind) for marker, kind in _KINDS.items()}
_INTEGERS = b"iUIlL"
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}


def read_ubjson(data: bytes) -> Any:
    """Return the value encoded by the bytes.

    Raises
    ------
    GraphError
        ``plan-file`` where they are no UBJSON of this kind, end early, or go on after their value.
    """
    reader = _Reader(data)
    try:
        value = reader.value(reader.byte(), 0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise _error(f"ends early or is damaged at byte {reader.at}: {error}") from None
    if reader.at != len(data):
        raise _error(f"has data after byte {reader.at}, where its value ends")
    return value


def write_ubjson(value: Any) -> bytes:
    """Return JSON values (None, booleans, numbers, texts, lists, dicts) as bytes."""
    out = bytearray()
    _write(out, value)
    return bytes(out)


def _error(what: str) -> GraphError:
    return GraphError(f"the data is not a serialized graph, as UBJSON it {what}", code="plan-file")


class _Reader:
    """A position in bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self, marker: int) -> int | float:
        kind = _NUMBERS[marker]
        (value,) = kind.unpack_from(self.data, self.at)
        self.at += kind.size
        return value  # type: ignore[no-any-return]

    def text(self) -> str:
        marker = self.byte()
        if marker not in _INTEGERS:
            raise _error(f"has no length of a text at byte {self.at - 1}")
        size = self.number(marker)
        begin, self.at = self.at, self.at + int(size)
        if size < 0 or self.at > len(self.data):
            raise _error(f"has a text of {size} bytes at byte {begin}, {len(self.data) - begin} are left")
        return self.data[begin : self.at].decode("utf-8")

    def value(self, marker: int, depth: int) -> Any:
        if marker in _NUMBERS:
            return self.number(marker)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == ord("S"):
            return self.text()
        if marker not in b"[{" or depth == MAX_DEPTH:
            raise _error(f"has {bytes([marker])!r} at byte {self.at - 1}, {depth} lists and objects deep")
        return self.items(depth + 1) if marker == ord("[") else self.fields(depth + 1)

    def items(self, depth: int) -> list[Any]:
        found = []
        while (marker := self.byte()) != ord("]"):
            found.append(self.value(marker, depth))
        return found

    def fields(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at] != ord("}"):
            name = self.text()
            found[name] = self.value(self.byte(), depth)
        self.at += 1
        return found


def _write(out: bytearray, value: Any) -> None:
    if isinstance(value, dict):
        out += b"{"
        for name, item in value.items():
            _write_text(out, name)
            _write(out, item)
        out += b"}"
    elif isinstance(value, (list, tuple)):
        out += b"["
        for item in value:
            _write(out, item)
        out += b"]"
    elif isinstance(value, str):
        out += b"S"
        _write_text(out, value)
    elif value is None or isinstance(value, bool):
        out += {None: b"Z", True: b"T", False: b"F"}[value]
    elif isinstance(value, int):
        _write_integer(out, value)
    else:
        out += b"D" + _NUMBERS[ord("D")].pack(value)


def _write_text(out: bytearray, text: str) -> None:
    data = text.encode()
    _write_integer(out, len(data))
    out += data


def _write_integer(out: bytearray, value: int) -> None:
    for marker in _INTEGERS:
        bits = 8 * _NUMBERS[marker].size
        low = 0 if marker == ord("U") else -(1 << bits - 1)
        if low <= value < low + (1 << bits):
            out.append(marker)
            out += _NUMBERS[marker].pack(value)
            return
    raise GraphError(f"{value} has more than 64 bits", code="plan-file")
