"""Calls that the torch operators' C++ code leaves to Python, so that repeated shapes get exact plans."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, cast

import pytest

from cudnn_backend_py.execution.any_shape import ShapeClassPlanFinder
from cudnn_backend_py.execution.plan_pool import PlanPool, PlanPoolEntry
from cudnn_backend_py.execution.recurring_shapes import CALLS_IN_A_ROW, VISITS_OF_RECURRING_SHAPE
from cudnn_backend_py.torch_ops import strategies
from cudnn_backend_py.torch_ops.strategies import (
    _CallsDifferingInLengths,
    _CompiledCallReportHandler,
    _ExactShapeStrategy,
)

Shape = tuple[int, int, int]


class FakeExactShapeStrategy:
    """A fake strategy for an exact plan of one shape, which counts the requests to build the plan."""

    def __init__(self) -> None:
        self.ready = self.unsupported = False
        self.wanted = 0

    def is_built(self) -> bool:
        return self.ready

    def is_unsupported(self) -> bool:
        return self.unsupported

    def request_build(self, call_with_lengths: int) -> None:
        self.wanted += call_with_lengths


class SimulatedCompiledStep:
    """A simulation of the torch operators' C++ code for one shape class, with a Python path for other calls."""

    def __init__(self, notice: _CompiledCallReportHandler, related_calls: _CallsDifferingInLengths) -> None:
        self.notice, self.related_calls = notice, related_calls
        self.notices = self.silent = self.unreported = 0
        self.last: Shape | None = None
        self.exact: dict[Shape, FakeExactShapeStrategy] = {}

    def call(self, shape: Shape) -> bool:
        """Simulate one call of a torch operator; return whether the C++ code ran it, instead of Python."""
        if shape == self.last and self.silent:
            self.silent, self.unreported = self.silent - 1, self.unreported + 1
            return True
        self.notices += 1
        self.silent, self.unreported, self.last = self.notice(self.unreported, shape), 0, shape
        if self.silent >= 0:
            return True
        self.silent = 0
        self.related_calls.recurring_shapes.count_call(shape)
        if not self.related_calls.recurring_shapes.count_calls_until_recurring(shape) and shape not in self.exact:
            self.exact[shape] = FakeExactShapeStrategy()
            self.related_calls.add(shape, cast(_ExactShapeStrategy, self.exact[shape]))
        return False

    def call_with_lengths(self, shapes: Iterable[int]) -> list[bool]:
        return [self.call((2, s, s)) for s in shapes]


@pytest.fixture
def related_calls() -> _CallsDifferingInLengths:
    return _CallsDifferingInLengths(cast(ShapeClassPlanFinder, None))


@pytest.fixture
def simulated_step(related_calls: _CallsDifferingInLengths) -> SimulatedCompiledStep:
    return SimulatedCompiledStep(_CompiledCallReportHandler(None, related_calls), related_calls)


def test_repeated_calls_of_one_shape_are_left_to_python(simulated_step: SimulatedCompiledStep) -> None:
    assert simulated_step.call_with_lengths([100] * CALLS_IN_A_ROW) == [True] * (CALLS_IN_A_ROW - 1) + [False]
    assert list(simulated_step.exact) == [(2, 100, 100)]


def test_same_shape_calls_of_consecutive_layers_rarely_reach_python(
    simulated_step: SimulatedCompiledStep,
) -> None:
    simulated_step.call_with_lengths([64] * 12)
    simulated_step.notices = 0
    ran = simulated_step.call_with_lengths(chain.from_iterable(repeat(s, 12) for s in range(100, 200)))
    assert all(ran)
    assert simulated_step.notices <= 100 * 12 // 3
    assert list(simulated_step.exact) == [(2, 64, 64)]


def test_a_shape_seen_a_third_time_is_left_to_python(simulated_step: SimulatedCompiledStep) -> None:
    assert simulated_step.call_with_lengths([100, 200] * (VISITS_OF_RECURRING_SHAPE - 1)) == [True] * 2 * (
        VISITS_OF_RECURRING_SHAPE - 1
    )
    assert simulated_step.call_with_lengths([100, 200]) == [False, False]
    assert len(simulated_step.exact) == 2


def test_calls_are_left_to_python_after_their_exact_plan_is_built(
    simulated_step: SimulatedCompiledStep,
) -> None:
    simulated_step.call_with_lengths([100] * CALLS_IN_A_ROW)
    exact = simulated_step.exact[2, 100, 100]
    assert simulated_step.call_with_lengths([100] * 5) == [True] * 5
    assert exact.wanted >= 4, "it is requested again, if it had no room"
    exact.ready = True
    assert simulated_step.call_with_lengths([100]) == [False]


def test_calls_with_an_unsupported_exact_plan_stay_in_cpp(simulated_step: SimulatedCompiledStep) -> None:
    simulated_step.call_with_lengths([100] * CALLS_IN_A_ROW)
    simulated_step.exact[2, 100, 100].unsupported = True
    simulated_step.notices = 0
    assert all(simulated_step.call_with_lengths([100] * 1000))
    assert simulated_step.notices == 1


def test_shapes_repeated_in_separate_compiled_steps_get_exact_plans(related_calls: _CallsDifferingInLengths) -> None:
    steps = [SimulatedCompiledStep(_CompiledCallReportHandler(None, related_calls), related_calls) for _ in range(2)]
    for _ in range(9):
        for simulated_step, s in zip(steps, (100, 900), strict=True):
            simulated_step.call_with_lengths([s])
    assert [list(simulated_step.exact) for simulated_step in steps] == [[(2, 100, 100)], [(2, 900, 900)]]


def test_calls_are_left_to_python_when_the_pool_has_a_better_plan(
    monkeypatch: pytest.MonkeyPatch, related_calls: _CallsDifferingInLengths
) -> None:
    pool = PlanPool()
    monkeypatch.setattr(strategies, "get_shared_pool", lambda: pool)
    for notice in (_CompiledCallReportHandler("better", None), _CompiledCallReportHandler("better", related_calls)):
        assert notice(0, (2, 100, 100)) >= 0
        held: Any = PlanPoolEntry("better", None, 0)
        pool._slots["better"] = held
        assert notice(0, (2, 100, 100)) < 0
        pool._slots.clear()
