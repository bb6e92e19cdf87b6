"""Repeated shapes: the rule by which the adaptive strategy builds exact plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import pytest

from cudnn_backend_py.execution.plan_pool import PlanPool
from cudnn_backend_py.execution.returning import KEPT, LONG, OFTEN, VISITS, RecurringShapes


def back(calls: Iterable[object]) -> dict[object, int]:
    """Return the repeated shapes, and the call after which each is recognized."""
    returning, found, seen = RecurringShapes(), {}, dict[object, int]()
    for shape in calls:
        seen[shape] = seen.get(shape, 0) + 1
        left = returning.calls_left(shape)
        returning.count_call(shape)
        after = returning.calls_left(shape)
        assert (left <= 1) == (after == 0), "it is known a call before"
        if not after:
            found.setdefault(shape, seen[shape])
    return found


def layers(shapes: Iterable[object], count: int = 12) -> Iterator[object]:
    """Yield the calls of a model that uses each shape in all its layers."""
    return chain.from_iterable(repeat(shape, count) for shape in shapes)


def test_a_single_shape_is_recognized_before_its_tenth_call() -> None:
    assert back(repeat("a", 9)) == {"a": OFTEN}
    assert OFTEN < 10


@pytest.mark.parametrize("count", [12, 80])
def test_layers_of_one_step_are_one_visit(count: int) -> None:
    assert set(back(layers(range(100), count))) == {0}, "only the first shape, which might have been the only one"


def test_two_steps_of_one_length_are_not_enough() -> None:
    assert set(back(layers([0, 1, 2, 2, 3, 4]))) == {0}


def test_shapes_in_turns_are_recognized() -> None:
    found = back(list(range(50)) * 9)
    assert found == dict.fromkeys(range(50), VISITS)
    assert VISITS < 10


def test_buckets_of_lengths_are_recognized() -> None:
    assert set(back(layers([1, 2, 3] * VISITS))) == {1, 2, 3}


def test_shapes_with_plans_evicted_before_reuse_are_not_recognized() -> None:
    assert PlanPool()._most >= 2 * KEPT
    assert back(list(range(KEPT)) * VISITS).keys() == set(range(KEPT))
    assert back(list(range(KEPT + 1)) * (VISITS + 2)) == {}


def test_a_program_that_changes_its_single_shape_is_recognized() -> None:
    found = back([*layers(["a"] * 1000), *layers(["b"] * 1000)])
    assert found == {"a": OFTEN, "b": LONG}


def test_the_history_is_bounded_and_drops_the_oldest() -> None:
    returning = RecurringShapes()
    for shape in range(100_000):
        returning.count_call(shape)
    assert len(returning._visits) <= KEPT
    for other in ("b", "c", "d"):
        returning.count_call(99_999)
        returning.count_call(other)
    assert returning.calls_left(99_999) == 0
    assert returning.calls_left(0) > 1


def test_late_reports_of_calls_count_only_during_the_visit() -> None:
    returning = RecurringShapes()
    returning.count_call("a")
    returning.count_late_calls("a", OFTEN - 3)
    assert returning.calls_left("a") == 2
    returning.count_call("b")
    returning.count_late_calls("a", 1000)
    returning.count_late_calls("b", 1)
    assert returning.calls_left("b") > 1, "a's calls are none of b's"
    assert returning.calls_left("a") > 1
