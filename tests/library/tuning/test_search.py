"""The engine configs that tuning tries, and the calls that tuning refuses, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import EnvironmentNotReady, Graph, OperationGraph, UsageError, autotune, build_plan, open_target
from cudnn_backend_py.graph import attention
from cudnn_backend_py.plans.select import Selection, candidates
from cudnn_backend_py.tuning.search import _gather_candidates
from cudnn_backend_py.tuning.statistics import TimeBudget


def make_forward_graph() -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)


@pytest.fixture(scope="module")
def operation_graph() -> OperationGraph:
    return OperationGraph(make_forward_graph(), open_target("h100"))


def test_engines_beyond_the_heuristics_are_supported_and_built(operation_graph: OperationGraph) -> None:
    tried, refused = _gather_candidates(operation_graph, Selection(modes=("A", "B")), True, 16, TimeBudget(60))
    proposed = len(candidates(operation_graph, Selection(modes=("A", "B"))).configs)
    extra = [item.config for item in tried if item.config.origin == "engine"]
    assert proposed < len(tried) <= 16
    assert len(extra) == len(tried) - proposed
    keys = {(item.config.engine, frozenset(item.config.knobs.items())) for item in tried}
    assert len(keys) == len(tried)
    assert {config.engine for config in extra} > {tried[0].config.engine}
    assert build_plan(extra[0]).tag == extra[0].tag
    assert all(item["state"] == "refused" and item["reason"] for item in refused)


def test_engines_beyond_the_heuristics_satisfy_the_selection(operation_graph: OperationGraph) -> None:
    wanted = Selection(modes=("A",), shared_memory_bytes=50_000)
    tried, _ = _gather_candidates(operation_graph, wanted, True, 16, TimeBudget(60))
    assert any(item.config.origin == "engine" for item in tried)
    assert all(item.config.shared_memory_bytes <= 50_000 for item in tried)


def test_without_time_budget_only_heuristic_configs_are_tried(operation_graph: OperationGraph) -> None:
    tried, _ = _gather_candidates(operation_graph, Selection(modes=("A",)), True, 16, TimeBudget(1e-9))
    assert {item.config.origin for item in tried} == {"A"}


def test_tuning_for_a_described_target_is_refused() -> None:
    with pytest.raises(EnvironmentNotReady, match="tuning-without-device"):
        autotune(make_forward_graph(), "h100")


def test_tuning_without_a_gpu_says_to_tune_on_the_gpu() -> None:
    with pytest.raises(EnvironmentNotReady, match="no-gpu") as caught:
        autotune(make_forward_graph())
    assert caught.value.sections["fix"].startswith("tune on the GPU itself")  # no target would help


@pytest.mark.parametrize("options", [{"max_candidates": 0}, {"budget_s": 0}, {"by": "hot"}])
def test_invalid_tuning_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="tuning-option"):
        autotune(make_forward_graph(), "h100", **options)
