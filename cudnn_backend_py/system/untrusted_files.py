"""Strict reading of untrusted files: bounded size, UTF-8, JSON without duplicate keys.

All readers of files come here, so that each refuses the same things with an error of this package, under its own code.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import GraphError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NUMBER", "parse_json", "read_json", "read_text"]

MAX_BYTES = 16 << 20  # of a file, where the caller names no other size
MAX_DEPTH = 64  # lists and objects inside each other
MAX_NUMBER = 400  # characters of a number
_SHOWN = 60  # characters of a key in a message


def read_text(path: str | os.PathLike[str], *, code: str, max_bytes: int = MAX_BYTES) -> str:
    """Read a text file, within a size limit and only as UTF-8.

    Raises
    ------
    GraphError
        With the given code: there is no such file, it cannot be read, is larger than `max_bytes`, or is no UTF-8.
    """
    shown = os.fspath(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        said = getattr(error, "strerror", None) or str(error)
        raise GraphError(f"{shown} cannot be read: {said}", code=code) from None
    if len(data) > max_bytes:
        raise GraphError(f"{shown} has more than {max_bytes} bytes, which is the limit", code=code)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GraphError(f"{shown} is not UTF-8: {error}", code=code) from None


def read_json(path: str | os.PathLike[str], *, code: str, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file with the limits of :func:`parse_json`.

    Raises
    ------
    GraphError
        With the given code: what :func:`read_text` and :func:`parse_json` refuse.
    """
    return parse_json(read_text(path, code=code, max_bytes=max_bytes), os.fspath(path), code=code)


def parse_json(text: str, what: str, *, code: str) -> Any:
    """Parse a JSON text with strict limits; error messages call the text `what`.

    Strict: no key twice in an object, no NaN or infinite number, no number of more than ``MAX_NUMBER`` characters, no
    more than ``MAX_DEPTH`` lists and objects inside each other, and no text that UTF-8 cannot hold.

    Raises
    ------
    GraphError
        With the given code.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_make_dict_without_duplicate_keys,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_non_finite_number,
        )
        _check_nesting_depth_and_texts(value)
    except RecursionError:
        raise GraphError(f"{what} is not JSON: {_TOO_DEEP}", code=code) from None
    except ValueError as error:
        raise GraphError(f"{what} is not JSON: {error}", code=code) from None
    return value


_TOO_DEEP = f"it has more than {MAX_DEPTH} lists and objects inside each other"


def _make_dict_without_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {twice[:_SHOWN]!r} twice")
    return made


def _require_short_number(text: str) -> str:
    if len(text) > MAX_NUMBER:
        raise ValueError(f"a number has {len(text)} characters, {MAX_NUMBER} is the limit")
    return text


def _parse_int(text: str) -> int:
    return int(_require_short_number(text))


def _parse_float(text: str) -> float:
    number = float(_require_short_number(text))
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is larger than a float64")
    return number


def _refuse_non_finite_number(word: str) -> None:
    raise ValueError(f"JSON has no number {word}")


def _check_nesting_depth_and_texts(value: Any) -> None:
    """Check nesting depth and texts of a parsed JSON value, level by level without recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii():
                _check_encodable_as_utf8(item)
        if depth > MAX_DEPTH and any(isinstance(item, (dict, list)) for item in level):
            raise ValueError(_TOO_DEEP)
        level = below


def _check_encodable_as_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the text {text[:_SHOWN]!r} has half a surrogate pair") from None
