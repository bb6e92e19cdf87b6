"""Recognition of shapes that recur in a program's calls, for which strategy "adaptive" builds exact plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import pytest

from cudnn_backend_py.execution.plan_pool import PlanPool
from cudnn_backend_py.execution.recurring_shapes import (
    CALLS_IN_A_ROW,
    LONG_RUN_CALLS,
    MAX_COUNTED_SHAPES,
    VISITS_OF_RECURRING_SHAPE,
    RecurringShapes,
)


def map_shapes_to_calls_until_recognized(calls: Iterable[object]) -> dict[object, int]:
    """Return, by recognized shape, the number of calls with that shape until it was recognized."""
    returning, found, seen = RecurringShapes(), {}, dict[object, int]()
    for shape in calls:
        seen[shape] = seen.get(shape, 0) + 1
        left = returning.count_calls_until_recurring(shape)
        returning.count_call(shape)
        after = returning.count_calls_until_recurring(shape)
        assert (left <= 1) == (after == 0), "it is known a call before"
        if not after:
            found.setdefault(shape, seen[shape])
    return found


def iterate_shapes_of_layer_calls(shapes: Iterable[object], count: int = 12) -> Iterator[object]:
    """Yield each shape once for every layer of a model."""
    return chain.from_iterable(repeat(shape, count) for shape in shapes)


def test_a_single_repeated_shape_is_recognized_as_recurring_before_its_tenth_call() -> None:
    assert map_shapes_to_calls_until_recognized(repeat("a", 9)) == {"a": CALLS_IN_A_ROW}
    assert CALLS_IN_A_ROW < 10


@pytest.mark.parametrize("count", [12, 80])
def test_consecutive_calls_of_one_shape_count_as_one_use(count: int) -> None:
    assert set(map_shapes_to_calls_until_recognized(iterate_shapes_of_layer_calls(range(100), count))) == {0}, (
        "only the first shape, which might have been the only one"
    )


def test_a_shape_of_two_training_steps_is_not_recurring_yet() -> None:
    assert set(map_shapes_to_calls_until_recognized(iterate_shapes_of_layer_calls([0, 1, 2, 2, 3, 4]))) == {0}


def test_alternating_shapes_are_recognized_as_recurring() -> None:
    found = map_shapes_to_calls_until_recognized(list(range(50)) * 9)
    assert found == dict.fromkeys(range(50), VISITS_OF_RECURRING_SHAPE)
    assert VISITS_OF_RECURRING_SHAPE < 10


def test_a_few_repeated_lengths_are_recognized_as_recurring() -> None:
    assert set(
        map_shapes_to_calls_until_recognized(iterate_shapes_of_layer_calls([1, 2, 3] * VISITS_OF_RECURRING_SHAPE))
    ) == {
        1,
        2,
        3,
    }


def test_shapes_with_plans_evicted_first_are_not_recurring() -> None:
    assert PlanPool()._max_plans >= 2 * MAX_COUNTED_SHAPES
    assert map_shapes_to_calls_until_recognized(
        list(range(MAX_COUNTED_SHAPES)) * VISITS_OF_RECURRING_SHAPE
    ).keys() == set(range(MAX_COUNTED_SHAPES))
    assert (
        map_shapes_to_calls_until_recognized(list(range(MAX_COUNTED_SHAPES + 1)) * (VISITS_OF_RECURRING_SHAPE + 2))
        == {}
    )


def test_a_second_shape_called_often_is_recognized_as_recurring() -> None:
    found = map_shapes_to_calls_until_recognized(
        [*iterate_shapes_of_layer_calls(["a"] * 1000), *iterate_shapes_of_layer_calls(["b"] * 1000)]
    )
    assert found == {"a": CALLS_IN_A_ROW, "b": LONG_RUN_CALLS}


def test_the_history_is_bounded_and_drops_the_oldest_shapes() -> None:
    returning = RecurringShapes()
    for shape in range(100_000):
        returning.count_call(shape)
    assert len(returning._visits) <= MAX_COUNTED_SHAPES
    for other in ("b", "c", "d"):
        returning.count_call(99_999)
        returning.count_call(other)
    assert returning.count_calls_until_recurring(99_999) == 0
    assert returning.count_calls_until_recurring(0) > 1


def test_calls_added_afterwards_count_only_for_the_latest_shape() -> None:
    returning = RecurringShapes()
    returning.count_call("a")
    returning.add_calls_of_last_shape("a", CALLS_IN_A_ROW - 3)
    assert returning.count_calls_until_recurring("a") == 2
    returning.count_call("b")
    returning.add_calls_of_last_shape("a", 1000)
    returning.add_calls_of_last_shape("b", 1)
    assert returning.count_calls_until_recurring("b") > 1, "a's calls are none of b's"
    assert returning.count_calls_until_recurring("a") > 1
