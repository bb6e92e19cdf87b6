"""Plain data as typed values: valid data are read, and all others raise an error of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from cudnn_backend_py import GraphError, UsageError
from cudnn_backend_py.system.typed import read_as, read_fields
from tests.support.mutations import NONSENSE


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner | None
    colour: Colour
    word: Literal["a", "b"]
    pair: tuple[int, str]
    many: tuple[Inner, ...] = ()
    by_uid: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    either: int | str = 0
    on: bool = False


GOOD: dict[str, Any] = {
    "name": "n",
    "inner": {"x": 1},
    "colour": "red",
    "word": "a",
    "pair": [1, "p"],
    "many": [{"x": 2, "y": "inf"}],
    "by_uid": {"-3": [1, 2.5]},
    "either": "text",
    "on": True,
}


def test_valid_data_are_read() -> None:
    read = read_as(Outer, GOOD, "it", code="matrix-schema")
    assert read == Outer(
        *("n", Inner(1), Colour.RED, "a", (1, "p"), (Inner(2, float("inf")),), {-3: (1, 2.5)}, "text", True)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "name is 3, a text is needed"),
        ({"name": None}, "name is None, a text is needed"),
        ({"inner": {"x": True}}, "x is True, an integer of 64 bits is needed"),
        ({"inner": {"x": 2**63}}, "an integer of 64 bits is needed"),
        ({"inner": {"x": float("inf")}}, "x is inf, an integer of 64 bits is needed"),
        ({"inner": {"x": 1, "y": "1.5"}}, "y is '1.5', a number is needed"),
        ({"inner": {}}, "inner lacks x"),
        ({"inner": []}, r"inner is \[\], an object is needed"),
        ({"colour": "blue"}, "colour is 'blue', one of red is needed"),
        ({"word": ["a"]}, "one of a, b is needed"),
        ({"pair": [1]}, "a list of 2 is needed"),
        ({"pair": "1p"}, "a list is needed"),
        ({"many": [{"x": 1}, 3]}, r"many\[1\] is 3, an object is needed"),
        ({"by_uid": {"inf": []}}, "a key of by_uid is 'inf', an integer is needed"),
        ({"by_uid": {"9" * 30: []}}, "a key of by_uid"),
        ({"either": 1.5}, "either is 1.5, a text is needed"),
        ({"on": 1}, "on is 1, true or false is needed"),
        ({"more": 1}, "it has more, which is unknown"),
    ],
)
def test_invalid_data_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read_as(Outer, GOOD | change, "it", code="matrix-schema")
    assert refused.value.code == "matrix-schema"


def test_no_value_in_any_place_raises_another_error() -> None:
    for name in (*GOOD, "more"):
        for value in NONSENSE:
            try:
                read_as(Outer, GOOD | {name: value}, "it", code="matrix-schema")
            except UsageError as refused:
                said = str(refused)
                assert said.isprintable()
    for value in NONSENSE:
        with pytest.raises(GraphError):
            read_fields({"x": int}, value, "it", code="plan-file", error=GraphError)
