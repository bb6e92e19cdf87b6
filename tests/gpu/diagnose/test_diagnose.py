"""Verdicts on a GPU: torch's attention read from its log, plans that fail at execution, queries in another process."""

from __future__ import annotations

import os
from pathlib import Path

from cudnn_backend_py import OperationGraph, open_target
from cudnn_backend_py.diagnose import Basis, Judge, Outcome, Query, explain, read_graphs
from cudnn_backend_py.graph.attention import sdpa_forward
from examples import flash_forward, forum_two_matmul
from examples.attention_known_issues import make_reproduction_graph
from tests.support.child import run_python
from tests.support.figures import append_measurement_to_run_record
from tests.support.gpu_requirements import are_expectations_measured_on_this_gpu

TORCH_ATTENTION_PROGRAM = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
q, k, v = (torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in "qkv")
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
o.backward(torch.randn_like(o))
torch.cuda.synchronize()
"""


def test_logged_torch_attention_is_read_back_with_the_same_verdict(tmp_path: Path) -> None:
    log = tmp_path / "torch.log"
    environment = {**os.environ, "CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(log)}
    run_python(["-c", TORCH_ATTENTION_PROGRAM], environment=environment, check=True)
    seen = [logged for logged in read_graphs(log) if logged.graph is not None]
    assert len(seen) == 2  # forward and backward
    target = open_target()
    for logged, passed in zip(seen, ("forward", "backward"), strict=True):
        assert logged.graph is not None
        wanted = [config.tag for config in logged.configs if config.state != "refused"]
        found = [config.tag for config in OperationGraph(logged.graph, target).heuristics("A").configs]
        candidates = explain(logged.graph, f"sm{target.sm}", mode="A").candidates
        described = [item for item in candidates if item.state == "supported"]
        append_measurement_to_run_record(
            f"torch attention read from its log, {passed}",
            operations=len(logged.graph.ops),
            logged=wanted,
            live=found,
            described=[f"eng{item.engine}" for item in described],
        )
        assert found == wanted
        if are_expectations_measured_on_this_gpu():
            assert [item.engine for item in described] == [int(tag.removeprefix("eng").split("_")[0]) for tag in found]
        verdict = explain(logged.graph, build=True, execute=True)
        assert (verdict.outcome, verdict.stage) == (Outcome.SUPPORTED, "execute")
        assert [stage.state for stage in verdict.stages] == ["passed"] * 7


def test_a_plan_that_fails_at_execution_gives_a_verdict() -> None:
    with Judge() as judge:
        verdict = judge.run_query(Query(make_reproduction_graph("unaligned-strides:address"), execute=True))
        assert (verdict.outcome, verdict.stage) == (Outcome.NOT_SUPPORTED, "execute")
        assert verdict.cause is not None
        assert verdict.cause.code == "execution-fails"
        assert "misaligned" in verdict.cause.headline.lower()
    with Judge() as judge:
        verdict = judge.run_query(Query(flash_forward.graph(), execute=True))
        assert (verdict.live, verdict.outcome, verdict.stage) == (True, Outcome.SUPPORTED, "execute")


def test_the_cause_of_a_refusal_on_this_gpu_is_marked_as_measured() -> None:
    """Judging a description of this GPU gives the same cause as judging the GPU itself, with or without a plan."""
    graph = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20)
    with Judge() as judge:
        for build in (False, True):
            live = judge.run_query(Query(graph, build=build))
            assert (live.outcome, live.live) == (Outcome.NOT_SUPPORTED, True)
            assert live.cause is not None
            assert live.cause.basis is Basis.MEASURED
            assert live.cause.asked == ("built" if build else "support check")
            assert "a described GPU like this one" in live.cause.detail
            described = judge.run_query(Query(graph, f"sm{live.sm}", build=build)).cause
            assert described is not None
            assert described.headline == live.cause.headline


def test_two_matmuls_alone_are_reported_as_removed_since_9_25() -> None:
    target = open_target()
    verdict = explain(forum_two_matmul.graph(), target)
    assert (verdict.outcome is Outcome.SUPPORTED) == (target.library.version < (9, 25, 0))
    assert verdict.cause is None or verdict.cause.code == "pattern-removed"
