"""Calls that the compiled step leaves to Python, so that repeated shapes get exact plans."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, cast

import pytest

from cudnn_backend_py.execution.any_shape import RelatedPlans
from cudnn_backend_py.execution.plan_pool import PlanPool, Slot
from cudnn_backend_py.execution.returning import OFTEN, VISITS
from cudnn_backend_py.torch_ops import strategies
from cudnn_backend_py.torch_ops.strategies import _ExactStrategy, _RelatedCalls, _ReportReceiver

Shape = tuple[int, int, int]


class FakeExact:
    """The exact strategy of a shape, with the properties that a notice reads."""

    def __init__(self) -> None:
        self.ready = self.unsupported = False
        self.wanted = 0

    def is_built(self) -> bool:
        return self.ready

    def is_unsupported(self) -> bool:
        return self.unsupported

    def request_build(self, calls: int) -> None:
        self.wanted += calls


class Step:
    """The compiled step with one recipe, followed by the adaptive strategy."""

    def __init__(self, notice: _ReportReceiver, kind: _RelatedCalls) -> None:
        self.notice, self.kind = notice, kind
        self.notices = self.silent = self.unreported = 0
        self.last: Shape | None = None
        self.exact: dict[Shape, FakeExact] = {}

    def call(self, shape: Shape) -> bool:
        """Return whether the step ran a call instead of Python."""
        if shape == self.last and self.silent:
            self.silent, self.unreported = self.silent - 1, self.unreported + 1
            return True
        self.notices += 1
        self.silent, self.unreported, self.last = self.notice(self.unreported, shape), 0, shape
        if self.silent >= 0:
            return True
        self.silent = 0
        self.kind.returning.count_call(shape)
        if not self.kind.returning.calls_left(shape) and shape not in self.exact:
            self.exact[shape] = FakeExact()
            self.kind.add(shape, cast(_ExactStrategy, self.exact[shape]))
        return False

    def calls(self, shapes: Iterable[int]) -> list[bool]:
        return [self.call((2, s, s)) for s in shapes]


@pytest.fixture
def kind() -> _RelatedCalls:
    return _RelatedCalls(cast(RelatedPlans, None))


@pytest.fixture
def step(kind: _RelatedCalls) -> Step:
    return Step(_ReportReceiver(None, kind), kind)


def test_a_single_shape_is_left_to_python_when_it_repeats(step: Step) -> None:
    assert step.calls([100] * OFTEN) == [True] * (OFTEN - 1) + [False]
    assert list(step.exact) == [(2, 100, 100)]


def test_layers_request_no_plan_and_send_few_notices(step: Step) -> None:
    step.calls([64] * 12)
    step.notices = 0
    ran = step.calls(chain.from_iterable(repeat(s, 12) for s in range(100, 200)))
    assert all(ran)
    assert step.notices <= 100 * 12 // 3
    assert list(step.exact) == [(2, 64, 64)]


def test_the_third_visit_is_left_to_python(step: Step) -> None:
    assert step.calls([100, 200] * (VISITS - 1)) == [True] * 2 * (VISITS - 1)
    assert step.calls([100, 200]) == [False, False]
    assert len(step.exact) == 2


def test_python_takes_over_when_the_exact_plan_is_ready(step: Step) -> None:
    step.calls([100] * OFTEN)
    exact = step.exact[2, 100, 100]
    assert step.calls([100] * 5) == [True] * 5
    assert exact.wanted >= 4, "it is requested again, if it had no room"
    exact.ready = True
    assert step.calls([100]) == [False]


def test_an_unsupported_plan_is_not_waited_for(step: Step) -> None:
    step.calls([100] * OFTEN)
    step.exact[2, 100, 100].unsupported = True
    step.notices = 0
    assert all(step.calls([100] * 1000))
    assert step.notices == 1


def test_shapes_in_turns_are_distinguished_although_each_has_its_recipe(kind: _RelatedCalls) -> None:
    steps = [Step(_ReportReceiver(None, kind), kind) for _ in range(2)]
    for _ in range(9):
        for step, s in zip(steps, (100, 900), strict=True):
            step.calls([s])
    assert [list(step.exact) for step in steps] == [[(2, 100, 100)], [(2, 900, 900)]]


def test_a_temporary_class_is_replaced(monkeypatch: pytest.MonkeyPatch, kind: _RelatedCalls) -> None:
    pool = PlanPool()
    monkeypatch.setattr(strategies, "shared_pool", lambda: pool)
    for notice in (_ReportReceiver("better", None), _ReportReceiver("better", kind)):
        assert notice(0, (2, 100, 100)) >= 0
        held: Any = Slot("better", None, 0)
        pool._held["better"] = held
        assert notice(0, (2, 100, 100)) < 0
        pool._held.clear()
