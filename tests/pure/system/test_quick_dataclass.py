"""``dataclass`` of this package does what the standard library's does; only its making differs."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from cudnn_backend_py.system import quick_dataclass

Decorator = Callable[..., Any]
BOTH: tuple[Decorator, Decorator] = (quick_dataclass.dataclass, dataclasses.dataclass)
OPTIONS: tuple[dict[str, bool], ...] = tuple(
    {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for kw_only in (False, True)
    for eq in (False, True)
)


def make(decorator: Decorator, **options: bool) -> Any:
    class Point:
        """A class of every kind of field."""

        x: int
        y: int = 2
        tags: dict[str, int] = field(default_factory=dict, hash=False)
        note: str = field(default="n", compare=False)
        hidden: str = field(default="h", repr=False)
        last: int = field(default=3, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "y", self.y + 1)

    return decorator(**options)(Point)


def values(item: Any) -> list[Any]:
    return [getattr(item, name) for name in ("x", "y", "tags", "note", "hidden", "last")]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(name for name, on in options.items() if on))
def test_it_is_the_other_one(options: dict[str, bool]) -> None:
    ours, theirs = (make(decorator, **options) for decorator in BOTH)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [item.name for item in dataclasses.fields(ours)] == [item.name for item in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    a, b = ours(x=1, last=5), theirs(x=1, last=5)
    assert values(a) == values(b) == [1, 3, {}, "n", "h", 5]
    assert repr(a) == repr(b)
    assert (a == ours(x=1, last=5, note="other")) == (b == theirs(x=1, last=5, note="other")) == options["eq"]
    assert a != ours(x=2, last=5)
    assert a != b
    assert ours(x=1).tags is not ours(x=1).tags
    assert values(dataclasses.replace(a, x=7)) == values(dataclasses.replace(b, x=7))
    assert values(copy.deepcopy(a)) == values(a)
    assert hasattr(a, "__dict__") == hasattr(b, "__dict__")
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


@pytest.mark.parametrize("slots", [False, True])
def test_a_frozen_one_can_be_hashed_and_not_changed(slots: bool) -> None:
    @quick_dataclass.dataclass(frozen=True, slots=slots)
    class Pair:
        """Two numbers."""

        a: int
        b: int = 0

    assert hash(Pair(1)) == hash(Pair(1, 0)) == hash((1, 0))
    assert {Pair(1), Pair(1, 0)} == {Pair(1)}
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        Pair(1).a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del Pair(1).a


def test_its_own_methods_and_those_of_its_base_stay() -> None:
    @quick_dataclass.dataclass(frozen=True)
    class Base:
        """With a hash of its own."""

        a: int

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "base"

    @quick_dataclass.dataclass(frozen=True)
    class More(Base):
        """One field more."""

        b: int = 1

    assert (hash(Base(1)), repr(Base(1))) == (5, "base")
    assert repr(More(1)).endswith("More(a=1, b=1)")
    assert (More(1), More(1, 2)) == (More(1, 1), More(1, b=2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        More(1).b = 2  # type: ignore[misc]


@quick_dataclass.dataclass(frozen=True, slots=True)
class Sent:
    """Crosses processes."""

    a: int
    b: list[int] = field(default_factory=list)


def test_it_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, [2]))) == Sent(1, [2])
    assert copy.copy(Sent(1, [2])) == Sent(1, [2])


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"Sent\.__init__\(\) missing 1 required positional argument: 'a'"):
        Sent()  # type: ignore[call-arg]
