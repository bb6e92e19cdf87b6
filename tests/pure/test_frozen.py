"""A ``FrozenValue`` behaves like a frozen dataclass, also in functions of ``dataclasses``."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from cudnn_backend_py.frozen import FrozenValue


class Point(FrozenValue, uncompared=("note",)):
    x: int
    y: int = 2
    note: str = ""
    unit: ClassVar[str] = "mm"


class ValueWithName(FrozenValue, kw_only=True):
    name: str


class NamedPoint(ValueWithName):
    x: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", self.x + 1)


NO_LABELS: Mapping[str, int] = {}


class Labelled(FrozenValue):
    name: str
    labels: Mapping[str, int] = NO_LABELS


@dataclasses.dataclass(frozen=True)
class FrozenDataclassPoint:
    x: int
    y: int = 2
    note: str = dataclasses.field(default="", compare=False)


def test_values_are_given_by_position_or_name_and_have_defaults() -> None:
    assert Point(1) == Point(x=1, y=2) == Point(1, 2, note="other")
    assert hash(Point(1)) == hash(Point(1, 2, "other"))
    assert Point(1) != Point(2)
    assert repr(Point(1)) == "Point(x=1, y=2, note='')"
    assert (Point(1) == FrozenDataclassPoint(1)) is False


@pytest.mark.parametrize(
    ("kind", "values", "named", "message"),
    [
        (Point, (), {}, "Point needs x"),
        (Point, (1,), {"z": 3}, "Point has no field z. It has x, y"),
        (Point, (1,), {"x": 3}, "Point got x twice"),
        (Point, (1, 2, "", 4), {}, "Point takes at most 3 values by position, got 4"),
        (ValueWithName, ("a",), {}, "ValueWithName takes at most 0 values by position, got 1"),
        (NamedPoint, (), {"x": 1, "y": 2}, "NamedPoint has no field y. It has name, x"),
        (Point, (1,), {"nte": ""}, r"Point has no field nte; did you mean note\? It has x, y, note"),
    ],
)
def test_the_error_names_the_wrong_fields(
    kind: Any, values: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        kind(*values, **named)


def test_fields_cannot_be_set_or_deleted() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x


@pytest.mark.parametrize("first", ["base", "subclass"])
def test_a_subclass_has_the_fields_of_its_base(first: str) -> None:
    order: list[type[ValueWithName]] = [ValueWithName, NamedPoint] if first == "base" else [NamedPoint, ValueWithName]
    found = {kind: [field.name for field in dataclasses.fields(kind)] for kind in order}
    assert found == {ValueWithName: ["name"], NamedPoint: ["name", "x"]}
    assert NamedPoint(name="a").x == 1


def test_functions_of_dataclasses_accept_a_frozen_value() -> None:
    value = Point(1, note="here")
    assert [(field.name, field.default) for field in dataclasses.fields(Point)] == [
        (field.name, field.default) for field in dataclasses.fields(FrozenDataclassPoint)
    ]
    assert dataclasses.is_dataclass(value)
    assert dataclasses.asdict(value) == {"x": 1, "y": 2, "note": "here"}
    assert dataclasses.replace(value, x=5) == Point(5)
    assert dataclasses.replace(value, x=5).note == "here"


def test_a_frozen_dataclass_can_inherit_from_a_frozen_value() -> None:
    @dataclasses.dataclass(frozen=True)
    class PointWithZ(Point):
        z: int = 3

    assert (PointWithZ(1).x, PointWithZ(1).z) == (1, 3)


def test_copies_and_pickles_have_fields_only() -> None:
    value = Point(1)
    object.__setattr__(value, "remembered", object)
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
        assert not hasattr(other, "remembered")


def test_a_default_that_can_be_changed_works_with_the_functions_of_dataclasses() -> None:
    value = Labelled("a")
    assert dataclasses.asdict(value) == {"name": "a", "labels": {}}
    assert dataclasses.replace(value, labels={"x": 1}) == Labelled("a", {"x": 1}) != value
    assert Labelled("b").labels is NO_LABELS
