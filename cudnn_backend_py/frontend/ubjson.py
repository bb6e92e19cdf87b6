"""Read and write UBJSON, the binary JSON of cudnn-frontend's serialized graphs.

Source: the draft 12 of its specification (ubjson.org), as far as such bytes use it: containers without a type or count.
"""

from __future__ import annotations

import struct
from typing import Any

from ..errors import GraphError
from ..printable import format_repr

__all__ = ["read_ubjson", "write_ubjson"]

MAX_DEPTH = 64  # lists and objects inside each other
_NUMBER_FORMATS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_NUMBER_STRUCTS = {ord(marker): struct.Struct(kind) for marker, kind in _NUMBER_FORMATS.items()}
_INTEGER_MARKERS = b"iUIlL"
_CONSTANT_MARKERS = {ord("Z"): None, ord("T"): True, ord("F"): False}


def read_ubjson(data: bytes) -> Any:
    """Return the value that UBJSON bytes encode.

    Raises
    ------
    GraphError
        ``plan-file`` where they are no UBJSON of this kind, end early, or go on after their value.
    """
    reader = _UbjsonReader(data)
    try:
        value = reader.read_value(reader.read_byte(), 0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise _make_ubjson_error(f"its UBJSON ends early or is damaged at byte {reader.at}: {error}") from None
    if reader.at != len(data):
        raise _make_ubjson_error(f"its UBJSON value ends at byte {reader.at}, but more bytes follow")
    return value


def write_ubjson(value: Any) -> bytes:
    """Return a JSON value (None, boolean, number, text, list or dict) encoded as UBJSON bytes."""
    out = bytearray()
    _write_value(out, value)
    return bytes(out)


def _make_ubjson_error(what: str) -> GraphError:
    return GraphError(f"the data is not a serialized graph: {what}", code="plan-file")


class _UbjsonReader:
    """Reads UBJSON values one after the other; ``at`` is the position in the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read_byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def read_number(self, marker: int) -> int | float:
        kind = _NUMBER_STRUCTS[marker]
        (value,) = kind.unpack_from(self.data, self.at)
        self.at += kind.size
        return value  # type: ignore[no-any-return]

    def read_text(self) -> str:
        marker = self.read_byte()
        if marker not in _INTEGER_MARKERS:
            raise _make_ubjson_error(f"its UBJSON has a text without a length at byte {self.at - 1}")
        size = self.read_number(marker)
        begin, self.at = self.at, self.at + int(size)
        if size < 0 or self.at > len(self.data):
            raise _make_ubjson_error(
                f"its UBJSON has a text of {size} bytes at byte {begin}, "
                f"but only {len(self.data) - begin} bytes are left"
            )
        return self.data[begin : self.at].decode("utf-8")

    def read_value(self, marker: int, depth: int) -> Any:
        if marker in _NUMBER_STRUCTS:
            return self.read_number(marker)
        if marker in _CONSTANT_MARKERS:
            return _CONSTANT_MARKERS[marker]
        if marker == ord("S"):
            return self.read_text()
        if marker not in b"[{" or depth == MAX_DEPTH:
            raise _make_ubjson_error(
                f"its UBJSON has the invalid marker {bytes([marker])!r} at byte {self.at - 1}, "
                f"inside {depth} lists and objects"
            )
        return self.read_items(depth + 1) if marker == ord("[") else self.read_fields(depth + 1)

    def read_items(self, depth: int) -> list[Any]:
        found = []
        while (marker := self.read_byte()) != ord("]"):
            found.append(self.read_value(marker, depth))
        return found

    def read_fields(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at] != ord("}"):
            name = self.read_text()
            found[name] = self.read_value(self.read_byte(), depth)
        self.at += 1
        return found


def _write_value(out: bytearray, value: Any) -> None:
    if isinstance(value, dict):
        out += b"{"
        for name, item in value.items():
            _write_text(out, name)
            _write_value(out, item)
        out += b"}"
    elif isinstance(value, (list, tuple)):
        out += b"["
        for item in value:
            _write_value(out, item)
        out += b"]"
    elif isinstance(value, str):
        out += b"S"
        _write_text(out, value)
    elif value is None or isinstance(value, bool):
        out += {None: b"Z", True: b"T", False: b"F"}[value]
    elif isinstance(value, int):
        _write_integer(out, value)
    else:
        out += b"D" + _NUMBER_STRUCTS[ord("D")].pack(value)


def _write_text(out: bytearray, text: str) -> None:
    data = text.encode()
    _write_integer(out, len(data))
    out += data


def _write_integer(out: bytearray, value: int) -> None:
    for marker in _INTEGER_MARKERS:
        bits = 8 * _NUMBER_STRUCTS[marker].size
        low = 0 if marker == ord("U") else -(1 << bits - 1)
        if low <= value < low + (1 << bits):
            out.append(marker)
            out += _NUMBER_STRUCTS[marker].pack(value)
            return
    raise GraphError(
        f"the integer {format_repr(value)} has more than 64 bits, the most that UBJSON holds", code="plan-file"
    )
