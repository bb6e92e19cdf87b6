"""A torch program judged for a described GPU: why torch does not use cuDNN, and cuDNN's own verdict."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py.diagnose import Judge
from cudnn_backend_py.why import why_not_cudnn
from cudnn_backend_py.why.calls import Machine, TensorFacts, TorchCall
from cudnn_backend_py.why.query_cudnn import query_cudnn


def make_torch_call(
    head_dim: int, head_dim_v: int | None = None, *, dtype: str = "float16", training: bool = False
) -> TorchCall:
    def make_facts_of_bhsd_tensor(dim: int) -> TensorFacts:
        return TensorFacts((2, 4, 256, dim), (4 * 256 * dim, 256 * dim, dim, 1), dtype, requires_grad=training)

    return TorchCall(
        q=make_facts_of_bhsd_tensor(head_dim),
        k=make_facts_of_bhsd_tensor(head_dim),
        v=make_facts_of_bhsd_tensor(head_dim_v or head_dim),
    )


MACHINE = Machine((2, 11, 0), None, 90)


@pytest.mark.parametrize(
    ("call_facts", "target", "outcome"),
    [
        (make_torch_call(64), "sm90", "supported"),
        (make_torch_call(64, training=True), "sm80", "supported"),
        (make_torch_call(20), "sm90", "not supported"),
        (make_torch_call(64, dtype="float64"), "sm90", "not supported"),
        (make_torch_call(64), "sm75", "not supported"),
    ],
    ids=["usual", "training", "head dim 20", "float64", "Turing"],
)
def test_the_verdict_of_cudnn_is_reported(call_facts: TorchCall, target: str, outcome: str) -> None:
    with Judge() as judge:
        side = query_cudnn(call_facts, MACHINE, target, judge, build=outcome == "supported")
    assert side.outcome == outcome, side
    assert bool(side.why) == (outcome != "supported")
    assert (side.plan_s is not None) == (outcome == "supported")


def test_attention_that_no_cudnn_graph_expresses_is_reported() -> None:
    with Judge() as judge:
        assert query_cudnn(make_torch_call(64, dtype="float8_e8m0fnu"), MACHINE, "sm90", judge).outcome == "no graph"


def test_attention_calls_on_the_cpu_are_judged_for_a_described_gpu() -> None:
    torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
    with why_not_cudnn(target="h100") as report:
        for dtype in (torch.float32, torch.bfloat16):
            q = torch.zeros(2, 4, 256, 64, dtype=dtype)
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert report.machine.sm == 90
    assert report.machine.cudnn is not None
    first, second = report.findings
    assert (first.uses_cudnn, first.blocker and first.blocker.gate, first.cured) == (
        False,
        "dtype",
        "with q, k and v in bfloat16",
    )
    assert first.side is not None
    assert first.side.outcome == "supported"
    assert second.side == first.side
    assert any("torch's own answers" in one for one in report.unseen)
    assert "cuDNN itself: supported on" in str(report)
