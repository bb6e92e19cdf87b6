"""Plans of classes of shapes: the plan of a call depends on earlier calls only if larger classes may substitute."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cudnn_backend_py.errors import CudnnStatusError, EnvironmentNotReady, GraphError, NotSupported
from cudnn_backend_py.execution import plan_pool
from cudnn_backend_py.execution.any_shape import RelatedPlans, is_lasting_refusal
from cudnn_backend_py.execution.plan_pool import PlanPool
from cudnn_backend_py.generated.enums import Status
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.graph.attention.shape_class import ClassBounds
from cudnn_backend_py.target import Target

LARGE, SMALL = ClassBounds(8, 1000, 1000), ClassBounds(2, 70, 70)


@pytest.fixture
def related(monkeypatch: pytest.MonkeyPatch) -> RelatedPlans:
    """Return the classes of a problem, with plans that have only their bounds."""
    target = cast(Target, SimpleNamespace(handle=SimpleNamespace(device=0)))
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, layout="bshd")
    made = RelatedPlans(problem, target, backward=False, pool=PlanPool(8))

    def build(bounds: ClassBounds) -> Any:
        return SimpleNamespace(bounds=bounds, device=0, streams=(), captured=False)

    monkeypatch.setattr(made, "build", build)
    monkeypatch.setattr(plan_pool, "is_capturing", lambda _: False)
    monkeypatch.setattr(plan_pool, "relaxed_capture", nullcontext)
    monkeypatch.setattr(plan_pool, "on_device", lambda _: nullcontext())
    return made


def test_a_call_uses_its_own_class_whatever_ran_before(related: RelatedPlans) -> None:
    related.find(LARGE, 0)
    held, key = related.find(SMALL, 0)
    assert held.plan.bounds == key[1] == ClassBounds(2, 128, 128)


def test_a_larger_class_substitutes_only_where_that_is_allowed(related: RelatedPlans) -> None:
    related.find(LARGE, 0)
    held, key = related.find(SMALL, 0, allow_larger=True)
    assert held.plan.bounds == ClassBounds(8, 1024, 1024)
    assert key[1] == ClassBounds(2, 128, 128)
    pool = related._pool
    assert pool is not None
    assert pool.wait()
    held, _ = related.find(SMALL, 0, allow_larger=True)
    assert held.plan.bounds == ClassBounds(2, 128, 128)


def fail(status: Status) -> CudnnStatusError:
    return CudnnStatusError("no plan", status=status, function="cudnnBackendFinalize")


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (NotSupported("none", code="nothing-selected"), True),
        (GraphError("no class", code="attention-layout"), True),
        (fail(Status.NOT_SUPPORTED), True),
        (fail(Status.INTERNAL_ERROR_COMPILATION_FAILED), True),
        (fail(Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED), False),
        (EnvironmentNotReady("no GPU", code="no-gpu"), False),
    ],
)
def test_only_lasting_refusals_lead_to_exact_plans(error: Any, lasts: bool) -> None:
    assert is_lasting_refusal(error) is lasts
