"""Reading and writing UBJSON, the format of cudnn-frontend's serialized graphs."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from cudnn_backend_py import GraphError
from cudnn_backend_py.frontend.ubjson import read_ubjson, write_ubjson

SAMPLE_VALUE: dict[str, Any] = {
    "": None,
    "flags": [True, False],
    "numbers": [0, -128, 127, 128, 255, 256, -129, 32767, 32768, 2**31 - 1, 2**31, -(2**63), 2**63 - 1, 0.1, -1e300],
    "text": "é" * 200,
    "nested": [{"a": [[], {}]}, []],
}


def test_written_values_are_read_unchanged() -> None:
    assert read_ubjson(write_ubjson(SAMPLE_VALUE)) == SAMPLE_VALUE


def test_written_bytes_follow_the_ubjson_specification() -> None:
    assert write_ubjson({"uid": [1, 200, None, True, "x"]}) == b"{i\x03uid[i\x01U\xc8ZTSi\x01x]}"
    assert read_ubjson(b"[d\x3f\x80\x00\x00I\xff\xfe]") == [1.0, -2]


def test_damaged_bytes_raise_only_graph_errors() -> None:
    data = write_ubjson(SAMPLE_VALUE)
    for end in range(len(data)):
        with pytest.raises(GraphError, match="not a serialized graph"):
            read_ubjson(data[:end])
    rng = random.Random(1)
    for _ in range(2000):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] = rng.randrange(256)
        with suppress(GraphError):
            read_ubjson(bytes(changed))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends early or is damaged"),
        (b"[" * 70, "inside 64 lists and objects"),
        (b"ZZ", "value ends at byte 1, but more bytes follow"),
        (b"SL" + b"\x7f" * 8, "are left"),
        (b"Si\xff", "a text of -1 bytes"),
        (b"Sd\x00\x00\x00\x00", "a text without a length"),
        (b"[$i#i\x02ab", "has the invalid marker b'\\$' at byte 1"),
    ],
)
def test_invalid_bytes_are_refused_with_a_message(data: bytes, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read_ubjson(data)


def test_integers_of_more_than_64_bits_are_refused() -> None:
    with pytest.raises(GraphError, match="more than 64 bits"):
        write_ubjson([2**63])
