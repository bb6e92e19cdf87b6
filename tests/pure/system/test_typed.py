"""Conversion of JSON data to dataclasses: valid data are converted, invalid data raise an error of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from cudnn_backend_py import GraphError, UsageError
from cudnn_backend_py.system.typed_data import convert_to_type, read_fields
from tests.support.damaged_texts import NONSENSE_VALUES


class SampleEnum(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class InnerSample:
    x: int
    y: float = 0.5


@dataclass(frozen=True)
class OuterSample:
    name: str
    inner: InnerSample | None
    colour: SampleEnum
    word: Literal["a", "b"]
    pair: tuple[int, str]
    many: tuple[InnerSample, ...] = ()
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


def test_valid_data_are_converted_to_dataclasses() -> None:
    read = convert_to_type(OuterSample, GOOD, "it", code="matrix-schema")
    assert read == OuterSample(
        *(
            "n",
            InnerSample(1),
            SampleEnum.RED,
            "a",
            (1, "p"),
            (InnerSample(2, float("inf")),),
            {-3: (1, 2.5)},
            "text",
            True,
        )
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
        ({"more": 1}, "it has the unknown fields more"),
    ],
)
def test_errors_name_the_invalid_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        convert_to_type(OuterSample, GOOD | change, "it", code="matrix-schema")
    assert refused.value.code == "matrix-schema"


def test_arbitrary_values_raise_only_errors_of_this_package() -> None:
    for name in (*GOOD, "more"):
        for value in NONSENSE_VALUES:
            try:
                convert_to_type(OuterSample, GOOD | {name: value}, "it", code="matrix-schema")
            except UsageError as refused:
                said = str(refused)
                assert said.isprintable()
    for value in NONSENSE_VALUES:
        with pytest.raises(GraphError):
            read_fields({"x": int}, value, "it", code="plan-file", error=GraphError)
