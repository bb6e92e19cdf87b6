"""Engine configs outside the heuristics: requested by cudnn-frontend, or found in a check of engines."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import DataType, GraphBuilder, OperationGraph, attention, build, library, open_target
from cudnn_backend_py.diagnose import Judge, Outcome, Query, every_engine, explain, whatif
from cudnn_backend_py.diagnose.every_engine import check_every_engine, list_knob_choices
from cudnn_backend_py.diagnose.report.summary import format_summary
from cudnn_backend_py.diagnose.report.text import render_text
from cudnn_backend_py.generated.enums import KnobType, PointwiseMode
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention.selections import SELECTIONS, find_engine_selection
from cudnn_backend_py.plans import engine
from cudnn_backend_py.plans.engine import Knob
from cudnn_backend_py.versions.store import find_installed
from tests.library.diagnose.test_rules import make_backward

HEAD_DIM_192_OPTIONS: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 192, "head_dim_v": 128}
HEAD_DIM_256_OPTIONS: dict[str, Any] = {**HEAD_DIM_192_OPTIONS, "head_dim": 256, "head_dim_v": 256}
FP8_OPTIONS: dict[str, Any] = {**HEAD_DIM_192_OPTIONS, "data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16}


@pytest.fixture(autouse=True, scope="module")
def skip_if_cudnn_is_older_than_9_23() -> None:
    if library().version < (9, 23, 0):
        pytest.skip("the kernels need cuDNN 9.23 or later")


def make_backward_graph(**options: Any) -> Graph:
    return attention.sdpa_backward(**options, version=library().version, sm=100, allow_hazards=True)


REQUESTED_CONFIG_CASES = (
    pytest.param({**HEAD_DIM_192_OPTIONS, "deterministic": True}, 2, id="192 and 128"),
    pytest.param({**HEAD_DIM_192_OPTIONS, "deterministic": True, "causal": True}, 2, id="192 and 128, causal"),
    pytest.param({**HEAD_DIM_256_OPTIONS, "deterministic": True}, 3, id="256"),
    pytest.param(FP8_OPTIONS, 2, id="8 bits"),
    pytest.param({**FP8_OPTIONS, "mx": True}, 2, id="8 bits, block scales"),
)


@pytest.mark.parametrize("target", ["b200", "b300"])
@pytest.mark.parametrize(("options", "stages"), REQUESTED_CONFIG_CASES)
def test_the_config_that_cudnn_frontend_requests_supports_the_graph(
    options: dict[str, Any], stages: int, target: str
) -> None:
    verdict = explain(make_backward_graph(**options), target)
    assert verdict.supported
    assert verdict.first is not None
    assert (verdict.first.mode, verdict.first.engine) == ("cudnn-frontend", 5)
    assert verdict.first.knobs["CUDNN_KNOB_TYPE_STAGES"] == stages
    assert format_summary(verdict).startswith("SUPPORTED by cudnn-frontend's config")
    assert f"{verdict.first.tag}, a config that cudnn-frontend selects" in render_text(verdict)


def test_child_and_this_process_build_the_requested_config() -> None:
    graph = make_backward_graph(**HEAD_DIM_192_OPTIONS, deterministic=True)
    with Judge() as judge:
        verdict = judge.run_query(Query(graph, "b200", build=True))
    assert verdict.stage == "plan"
    assert verdict.first is not None
    assert verdict.first.tag == build(graph, "b200", cache=False).tag


def test_whatif_needs_no_change_with_the_requested_config() -> None:
    assert whatif(make_backward_graph(**HEAD_DIM_192_OPTIONS, deterministic=True), "b200") == []


@pytest.mark.parametrize("target", ["sm110", "sm120"])
def test_other_architectures_have_no_requested_config(target: str) -> None:
    graph = make_backward_graph(**HEAD_DIM_192_OPTIONS, deterministic=True)
    assert find_engine_selection(graph, library().version, open_target(target).sm) is None
    assert not explain(graph, target, causes=False).supported


def test_no_config_is_requested_for_a_graph_with_dropout() -> None:
    graph = make_backward_graph(**HEAD_DIM_192_OPTIONS, deterministic=True, dropout=0.1)
    assert find_engine_selection(graph, library().version, 100) is None


def test_heuristics_are_tried_before_requested_configs() -> None:
    graph = make_backward_graph(batch=2, heads=4, seq_q=512, head_dim=128, deterministic=True)
    modes = [one.mode for one in explain(graph, "b200").candidates if one.state == "supported"]
    assert modes[0] in ("A", "FALLBACK")
    assert modes[-1] == "cudnn-frontend"


def test_the_table_of_requested_configs_has_no_duplicate_conditions() -> None:
    for version in ((9, 18, 0), (9, 19, 0), (9, 22, 0), (9, 23, 0), (9, 28, 0)):
        for sm in range(90, 122):
            rows = [row for row in SELECTIONS if sm in row.sm and version in row.versions]
            assert len({row.condition for row in rows}) == len(rows)
            assert bool(rows) == (sm // 10 == 10)
    assert min(row.sm.start for row in SELECTIONS) == engine._FIRST_SM_WITH_SELECTIONS


def test_all_knob_combinations_are_checked_or_each_knob_alone() -> None:
    knobs = (Knob(KnobType.STAGES, 0, 2, 1), Knob(KnobType.TILE_M, 0, 4, 2))
    choices, count, whole = list_knob_choices(knobs)
    assert whole
    assert len(list(choices)) == count == 1 + 3 * 3
    choices, count, whole = list_knob_choices(knobs, most=8)
    assert not whole
    tried = list(choices)
    assert len(tried) == count
    assert tried[:4] == [{}, *({KnobType.STAGES: value} for value in range(3))]


def test_a_refusal_reports_how_many_configs_were_checked() -> None:
    g = GraphBuilder("relu")
    x = g.tensor("x", (4, 8), data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.RELU_FWD, x, virtual=False)
    graph = g.graph()
    verdict = explain(graph, "a100-40gb", causes=False, every_engine=True)
    assert not verdict.supported
    engines = OperationGraph(graph, open_target("a100-40gb")).engine_count
    assert f"of {engines} engines checked: 0 pass the support check" in verdict.every_engine
    assert verdict.every_engine.removeprefix("all ")[0].isdigit()
    assert verdict.every_engine in format_summary(verdict)
    assert verdict.every_engine.endswith("; one knob at a time: engine 1")
    assert [check.engine for check in verdict.engines] == list(range(engines))
    assert f"{sum(check.configs for check in verdict.engines):,} configs of" in verdict.every_engine
    assert all(check.reason is not None and check.reason.status for check in verdict.engines)
    assert all(str(check)[:60] in render_text(verdict) for check in verdict.engines)
    assert len({check.reason for check in verdict.engines}) > 1
    assert verdict.to_dict()["engines"][0]["configs"] == verdict.engines[0].configs


def test_configs_that_pass_the_support_check_and_do_not_build_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head dim of 256 passes the check and does not build; two knob settings of each engine are checked."""
    graph = make_backward(head_dim=256)
    (failing,) = OperationGraph(graph, open_target("sm100")).heuristics("A").configs
    monkeypatch.setattr(every_engine, "list_knob_choices", lambda _: (iter([{}, failing.choice.knobs]), 2, True))
    verdict = explain(graph, "sm100", causes=False, build=True, every_engine=True)
    assert (verdict.outcome, verdict.stage) == (Outcome.NOT_SUPPORTED, "plan")
    passed = sum(check.passed for check in verdict.engines)
    assert passed
    failed = {one.tag for one in verdict.candidates if one.state == "build failed"}
    assert f": {passed:,} pass the support check;" in verdict.every_engine
    plans = f"none of {len(failed)} plans" if len(failed) > 1 else "no plan"
    assert verdict.every_engine.endswith(f"; {plans} builds")


def test_progress_of_a_check_of_all_engines_has_a_total() -> None:
    g = GraphBuilder("relu")
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (4, 8), data_type=DataType.FLOAT), virtual=False)
    steps: list[str] = []
    _, checks, _ = check_every_engine(OperationGraph(g.graph(), open_target("a100-40gb")), steps.append)
    total = sum(check.configs + check.unchecked for check in checks)
    assert steps[0] == f"engine config of engine 0 of {len(checks)}, 0 of {total:,} configs checked"


@pytest.mark.parametrize("target", ["b200", "b300"])
def test_9_24_supports_a_unified_backward_that_heuristics_refuse(target: str) -> None:
    if find_installed("9.24.0") is None:
        pytest.skip("cuDNN 9.24.0 is not installed")
    graph = attention.sdpa_backward(
        batch=2, heads=2, seq_q=128, head_dim=64, implementation="unified", version=(9, 24, 0), allow_hazards=True
    )
    with Judge() as judge:
        refused = judge.run_query(Query(graph, target, "9.24.0", causes=False))
        found = judge.run_query(Query(graph, target, "9.24.0", causes=False, build=True, every_engine=True))
        newest = judge.run_query(Query(graph, target, causes=False))
    assert (refused.supported, found.supported) == (False, True)
    assert found.first is not None
    assert (found.first.mode, found.first.state, found.first.engine) == ("every engine", "built", 14)
    assert found.first.knobs == {"CUDNN_KNOB_TYPE_KERNEL_CFG": 31}
    row = "unified-backward-without-knob"
    assert row in render_text(refused)
    assert newest.supported == (library().version >= (9, 28, 0))
    assert (row in render_text(newest)) == (library().version < (9, 28, 0))


def test_the_tags_of_all_engine_configs_that_pass_are_returned() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=512, head_dim=64)
    verdict = explain(graph, "h100", causes=False, every_engine=True)
    assert sum(check.passed for check in verdict.engines) > 8
    for check in verdict.engines:
        assert len(set(check.tags)) == check.passed, check
    several = max(verdict.engines, key=lambda check: check.passed)
    assert f"{several.tags[3]} and {several.passed - 4:,} more in the JSON" in render_text(verdict)
    assert "pass the support check; -v: their tags" in format_summary(verdict)
    assert explain(graph, "h100", causes=False, engine=several.tags[-1]).supported
