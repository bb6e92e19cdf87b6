"""Shape-class plans of attention: a call uses the plan of its own class, or a larger one only if that is allowed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cudnn_backend_py.errors import CudnnStatusError, EnvironmentNotReady, GraphError, NotSupported
from cudnn_backend_py.execution import plan_pool
from cudnn_backend_py.execution.any_shape import ShapeClassPlanFinder, is_permanent_refusal
from cudnn_backend_py.execution.plan_pool import PlanPool
from cudnn_backend_py.generated.enums import Status
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.graph.attention.shape_class import ShapeClassBounds
from cudnn_backend_py.target import Target

LARGE_CALL, SMALL_CALL = ShapeClassBounds(8, 1000, 1000), ShapeClassBounds(2, 70, 70)


@pytest.fixture
def related_plans(monkeypatch: pytest.MonkeyPatch) -> ShapeClassPlanFinder:
    """Return the shape-class plans of an attention problem; the plans are fakes that have only their bounds."""
    target = cast(Target, SimpleNamespace(handle=SimpleNamespace(device=0)))
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, layout="bshd")
    made = ShapeClassPlanFinder(problem, target, backward=False, pool=PlanPool(8))

    def build_fake_plan(bounds: ShapeClassBounds) -> Any:
        return SimpleNamespace(bounds=bounds, device=0, streams=(), captured=False)

    monkeypatch.setattr(made, "build", build_fake_plan)
    monkeypatch.setattr(plan_pool, "is_capturing", lambda _: False)
    monkeypatch.setattr(plan_pool, "relax_stream_capture_mode", nullcontext)
    monkeypatch.setattr(plan_pool, "on_device", lambda _: nullcontext())
    return made


def test_a_call_uses_the_plan_of_its_own_shape_class_after_a_larger_call(related_plans: ShapeClassPlanFinder) -> None:
    related_plans.find(LARGE_CALL, 0)
    held, key = related_plans.find(SMALL_CALL, 0)
    assert held.plan.bounds == key[1] == ShapeClassBounds(2, 128, 128)


def test_the_plan_of_a_larger_shape_class_is_used_only_if_allowed(related_plans: ShapeClassPlanFinder) -> None:
    related_plans.find(LARGE_CALL, 0)
    held, key = related_plans.find(SMALL_CALL, 0, allow_larger=True)
    assert held.plan.bounds == ShapeClassBounds(8, 1024, 1024)
    assert key[1] == ShapeClassBounds(2, 128, 128)
    pool = related_plans._pool
    assert pool is not None
    assert pool.wait()
    held, _ = related_plans.find(SMALL_CALL, 0, allow_larger=True)
    assert held.plan.bounds == ShapeClassBounds(2, 128, 128)


def make_status_error(status: Status) -> CudnnStatusError:
    return CudnnStatusError("no plan", status=status, function="cudnnBackendFinalize")


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (NotSupported("none", code="nothing-selected"), True),
        (GraphError("no class", code="attention-layout"), True),
        (make_status_error(Status.NOT_SUPPORTED), True),
        (make_status_error(Status.INTERNAL_ERROR_COMPILATION_FAILED), True),
        (make_status_error(Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED), False),
        (EnvironmentNotReady("no GPU", code="no-gpu"), False),
    ],
)
def test_a_lack_of_memory_or_of_a_gpu_is_not_a_permanent_refusal(error: Any, lasts: bool) -> None:
    assert is_permanent_refusal(error) is lasts
