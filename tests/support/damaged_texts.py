"""Random damage to texts and JSON data, for tests that read damaged files."""

from __future__ import annotations

import copy
import random
from typing import Any

__all__ = ["HOSTILE_TEXTS", "NONSENSE_VALUES", "assert_safe_to_print", "mutate_json", "mutate_text"]

# Characters that must not reach a terminal, or start a new line.
HOSTILE_TEXTS = (
    "\x1b[31mred\x1b]0;title\x07",
    "a\n::error::b",
    "::error::c",
    "##[error]d",
    "\u202eleft\u2066",
    "\x9b31m\x85",
    "\u2028e\u200f\u061c",
    "\r\x08\x7f\x00",
)


def assert_safe_to_print(text: str) -> None:
    """Check that a text has no control characters and no commands of a CI system."""
    for line in text.split("\n"):
        assert line.isprintable(), f"text with control characters: {line!r}"
        assert not line.lstrip().startswith("::"), f"text that a CI system would run as a command: {line!r}"
        assert "##[" not in line, f"text that a CI system would run as a command: {line!r}"


def mutate_text(rng: random.Random, text: str) -> str:
    """Return a random part of a text with a few changes."""
    start = rng.randrange(len(text))
    part = text[start : start + rng.randrange(200, 14_000)]
    for _ in range(rng.randrange(1, 12)):
        at, length = rng.randrange(len(part) + 1), rng.randrange(40)
        new = rng.choice(
            ["", "\n", "{", "}", "[", '"', "-1", "9" * 30, "\x00", "NaN", "1e999", "i! ", part[at : at + 300]]
        )
        part = part[:at] + new + part[at + length :]
    return part


NONSENSE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    10**300,
    1.5,
    float("inf"),
    "",
    "x",
    "CUDNN_DATA_HALF",
    *HOSTILE_TEXTS,
    [],
    [[]],
    [1, 2],
    {},
    {"operation": 1},
)


def mutate_json(rng: random.Random, data: Any) -> Any:
    """Return a copy of JSON data with a few parts replaced, removed or duplicated."""
    data = copy.deepcopy(data)
    for _ in range(rng.randrange(1, 5)):
        place: Any = data
        while isinstance(place, (dict, list)) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = rng.choice(keys)
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.2:
                if rng.random() < 0.2:
                    del place[key]
                else:
                    place[key] = copy.deepcopy(rng.choice((*NONSENSE_VALUES, data if rng.random() < 0.05 else 3)))
                break
            place = inner
    return data
