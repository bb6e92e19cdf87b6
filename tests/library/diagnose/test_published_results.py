"""Published results of real GPUs: described GPUs give the same answers in each installed version."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import Graph, GraphBuilder, PointwiseMode, attention, explain
from cudnn_backend_py.diagnose import render_text
from cudnn_backend_py.diagnose.evidence import (
    OPERATION_RUNS_FILE,
    PUBLISHED_RESULTS,
    describe_nearest_published_result,
    make_graph_key_without_sizes,
)
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.plans.choice import EngineChoice
from cudnn_backend_py.target import find_profile
from tests.support.records import read_record
from tools.records.published_results import (
    AGREES,
    DISAGREES,
    NOT_INSTALLED,
    UNJUDGEABLE,
    judge_published_results,
)


@cache
def judge_published_results_once() -> dict[str, tuple[str, str]]:
    return judge_published_results()


EXPECTED_STATES = {
    row.result: DISAGREES if row.disagrees else UNJUDGEABLE if row.unjudgeable else AGREES for row in PUBLISHED_RESULTS
}


@pytest.mark.parametrize("result", EXPECTED_STATES)
def test_described_gpus_give_the_published_result(result: str) -> None:
    state, reason = judge_published_results_once()[result]
    if state == NOT_INSTALLED:
        pytest.skip(f"cuDNN {reason} is not installed")
    assert state == EXPECTED_STATES[result], reason


def test_thirty_of_32_published_results_agree_or_cannot_be_judged_for_a_stated_reason() -> None:
    found = judge_published_results_once()
    assert len(found) == 32
    assert sum(state != DISAGREES for state, _ in found.values()) >= 30
    assert all(reason for state, reason in found.values() if state != AGREES)


def test_the_record_of_published_results_has_the_results_of_all_versions() -> None:
    rows = read_record("published-results-described.json")["all"]
    assert {row["result"]: row["state"] for row in rows} == EXPECTED_STATES


def test_published_results_have_sources_and_targets_of_their_architecture() -> None:
    for row in PUBLISHED_RESULTS:
        assert row.source
        assert row.known_by
        assert row.unjudgeable or find_profile(row.target).sm == row.sm


def test_the_nearest_published_result_is_reported() -> None:
    graph = attention.sdpa_forward(batch=1, heads=4, seq_q=256, head_dim=64, version=(9, 24, 0))
    verdict = explain(graph, "rtx-5090", shapes=True)
    assert verdict.seen.startswith("RTX 5090 with cuDNN 9.24.0, the same graph apart from sizes: it ran there")
    assert f"seen on:     {verdict.seen}" in render_text(verdict)
    rows = [row for row in PUBLISHED_RESULTS if row.sm == 120]
    assert describe_nearest_published_result(graph, 120, (9, 24, 0), verdict.first, rows).endswith("1148)")
    other = attention.sdpa_forward(batch=1, heads=4, seq_q=256, head_dim=96, data_type=DataType.BFLOAT16)
    assert describe_nearest_published_result(other, 120, (9, 24, 0), verdict.first, rows) == ""


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"causal": True},
            {"right_bound": 0},
            {"left_bound": 64, "causal": True},
            {"padding": True},
            {"dropout": 0.1},
        ),
        *({"bias": (1, 1, 256, 256)}, {"alibi": True}, {"stats": True}, {"deterministic": True, "backward": True}),
        *({"page_size": 64, "padding": True}, {"ragged": True, "padding": True}, {"seq_q": 1}, {"kv_heads": 2}),
        {"output_type": DataType.FLOAT},
    ],
    ids=str,
)
def test_a_result_of_attention_with_other_options_is_not_reported(options: dict[str, Any]) -> None:
    options = {"batch": 1, "heads": 4, "seq_q": 256, "head_dim": 64, **options}
    make = attention.sdpa_backward if options.pop("backward", False) else attention.sdpa_forward
    graph = make(**options, version=(9, 24, 0), sm=120, allow_hazards=True)
    assert describe_nearest_published_result(graph, 120, (9, 24, 0), None) == ""


def test_a_result_of_attention_with_other_sizes_is_reported() -> None:
    for options in ({"batch": 3}, {"seq_q": 512}, {"heads": 7}, {"seq_q": 100, "seq_kv": 300}):
        sizes = {"batch": 1, "heads": 4, "seq_q": 256, "head_dim": 64, **options}
        graph = attention.sdpa_forward(**sizes, version=(9, 24, 0))
        assert "1148" in describe_nearest_published_result(graph, 120, (9, 24, 0), None)


def test_a_non_attention_result_is_reported_for_other_sizes() -> None:
    verdict = explain(make_fused_matmul(), "h100", shapes=True, causes=False)
    assert verdict.seen.startswith("NVIDIA H200 with cuDNN ")
    assert ", the same graph apart from sizes: it ran there with right results, " in verdict.seen
    assert "/operations-h200-cudnn-" in verdict.seen
    assert explain(make_fused_matmul(), "b200", shapes=True, causes=False).seen == ""
    first = verdict.first
    assert first is not None
    (near,) = (
        run
        for run in read_operation_runs()
        if (run["form"], run["version"]) == (make_graph_key_without_sizes(make_fused_matmul()), [9, 19, 0])
    )
    seen = describe_nearest_published_result(
        make_fused_matmul(), 90, (9, 18, 0), replace(first, **parse_engine_choice(near["tag"]))
    )
    assert "cuDNN 9.19.0" in seen
    assert "the same first config" in seen


def make_fused_matmul(**changes: Any) -> Graph:
    """Return a matmul with bias and activation (GELU by default), with `changes` of the published graph."""
    kind, mode, bias = (
        changes.get("kind", DataType.HALF),
        changes.get("mode", PointwiseMode.GELU_FWD),
        changes.get("bias"),
    )
    g = GraphBuilder("other name", io_type=kind)
    a = g.tensor("p", (4, 256, 32), strides=changes.get("strides", "packed"))
    y = g.matmul(a, g.tensor("q", (4, 32, 512)))
    y = g.pointwise(PointwiseMode.ADD, y, g.tensor("r", bias or (1, 1, 512)))
    g.pointwise(mode, y, virtual=False)
    return g.graph()


def read_operation_runs() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(OPERATION_RUNS_FILE.read_text(encoding="utf-8"))
    return runs


def parse_engine_choice(tag: str) -> dict[str, Any]:
    choice = EngineChoice.parse(tag)
    return {"engine": choice.engine, "knobs": choice.c_knobs}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": DataType.BFLOAT16},
        {"mode": PointwiseMode.RELU_FWD},
        {"bias": (1, 256, 512)},
        {"strides": (256 * 32, 1, 256)},
    ],
    ids=str,
)
def test_a_result_of_another_type_mode_broadcast_or_layout_is_not_reported(changes: dict[str, Any]) -> None:
    assert make_graph_key_without_sizes(make_fused_matmul(**changes)) != make_graph_key_without_sizes(
        make_fused_matmul()
    )
    assert describe_nearest_published_result(make_fused_matmul(**changes), 90, (9, 28, 0), None) == ""


def test_runs_of_several_operation_kinds_are_recorded() -> None:
    names = {run["source"].partition(", ")[2] for run in read_operation_runs()}
    assert {"matmul", "convolution forward", "convolution backward data", "layer norm, training", "pointwise"} <= names
    assert all(
        (Path(__file__).parents[3] / run["source"].partition(", ")[0]).is_file() for run in read_operation_runs()
    )
