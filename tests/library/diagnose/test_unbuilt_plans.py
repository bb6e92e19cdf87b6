"""A verdict does not promise plans that cannot be built: it builds them if a failure is known or likely."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from cudnn_backend_py import DataType, GraphBuilder, attention, library
from cudnn_backend_py.diagnose import Judge, Query, explain, render_text
from cudnn_backend_py.diagnose.report.summary import format_summary
from cudnn_backend_py.diagnose.verdict import Outcome
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.versions.store import find_installed
from tests.support.child import make_older_cudnn_environment, run_code


def make_matmul_graph(dims: tuple[int, ...], other: tuple[int, ...]) -> Graph:
    g = GraphBuilder("product", io_type=DataType.FLOAT)
    g.matmul(g.tensor("a", dims), g.tensor("b", other), name="c", virtual=False)
    return g.graph()


def test_a_passed_support_check_is_reported_as_not_built() -> None:
    verdict = explain(make_matmul_graph((1, 32, 256), (1, 256, 16)), "sm89")
    assert verdict.exit_code == 0
    first, *rest = format_summary(verdict).splitlines()
    assert first.startswith("SUPPORTED, not built: graph 'product' on NVIDIA L40S (sm_89), cuDNN ")
    assert any("pass the support check" in line for line in rest)
    built = format_summary(explain(make_matmul_graph((1, 32, 256), (1, 256, 16)), "sm89", build=True))
    assert built.startswith("SUPPORTED: graph")


def test_a_known_issue_of_plans_is_confirmed_by_a_build() -> None:
    if library().version < (9, 21, 0):
        pytest.skip("plans need NVRTC")
    verdict = explain(make_matmul_graph((32, 256), (256, 16)), "sm89")
    assert (verdict.exit_code, verdict.outcome, verdict.stage) == (1, Outcome.NOT_SUPPORTED, "plan")
    assert verdict.cause is not None
    assert verdict.cause.advice.endswith("[a plan of it was built]")
    assert "no plan of them can be built" in format_summary(verdict)


def test_a_built_plan_outweighs_a_known_issue_that_says_there_is_none() -> None:
    """The heads and batches of 8-bit decoding for which plans can be built follow no simple rule."""
    if library().version < (9, 21, 0):
        pytest.skip("plans need NVRTC")
    options = {"batch": 2, "heads": 4, "seq_q": 1, "head_dim": 128, "data_type": DataType.FP8_E4M3}
    long, short = (attention.sdpa_forward(seq_kv=seq_kv, **options) for seq_kv in (4096, 256))
    built, unbuilt = explain(long, "b200"), explain(long, "b200", build=False)
    assert (built.outcome, built.stage) == (Outcome.SUPPORTED, "plan")
    assert (unbuilt.outcome, unbuilt.stage) == (Outcome.SUPPORTED, "heuristics")
    assert "no plan can be built" not in render_text(built)
    assert re.search(r"\(fp8-one-query, .*: the support check passes and no plan can be built", render_text(unbuilt))
    verdicts = [explain(short, "b200", build=build) for build in (None, False)]
    assert [one.outcome for one in verdicts] == [Outcome.NOT_SUPPORTED, Outcome.SUPPORTED]
    assert format_summary(verdicts[1]).startswith("SUPPORTED, not built: ")
    assert verdicts[0].cause is not None
    assert verdicts[0].cause.headline.startswith("with output amax_s: on sm_100 no plan can be built")
    assert verdicts[0].cause.remedy == "without output amax_s (the other outputs are the same)"


EXPLAIN_PROGRAM = """
from cudnn_backend_py import attention
from cudnn_backend_py.diagnose import Judge, Query, explain
verdict = explain(attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64), "sm90")
print(verdict.exit_code, verdict.cause and verdict.cause.code)
"""


def test_a_broken_nvrtc_gives_no_supported_verdict(tmp_path: Path) -> None:
    from cudnn_backend_py.native.find import find_nvrtc_places

    shutil.copy(next(place.path for place in find_nvrtc_places(12) if place.path is not None), tmp_path)
    broken = {**make_older_cudnn_environment(), "CUDNN_BACKEND_NVRTC": str(tmp_path)}
    assert run_code(EXPLAIN_PROGRAM, environment=broken).stdout == "2 nvrtc-builtins-missing\n"
    assert run_code(EXPLAIN_PROGRAM, environment={**os.environ, **make_older_cudnn_environment()}).stdout == "0 None\n"


def test_the_first_config_of_9_10_cannot_be_loaded_on_a_b300() -> None:
    if find_installed("9.10.2") is None:
        pytest.skip("9.10.2 is not installed")
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=256, head_dim=64, version=(9, 10, 2))
    with Judge() as judge:
        verdict = judge.run_query(Query(graph, "b300", "9.10.2"))
    states = [one.state for one in verdict.candidates if one.state in ("cannot load", "built")]
    assert states[0] == "cannot load"
    assert "is for another architecture" in format_summary(verdict)
