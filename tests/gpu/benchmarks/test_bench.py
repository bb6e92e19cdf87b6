"""A small run of ``python -m benchmarks run`` on a GPU: every part records times; the speed is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.problems import RepetitionCounts
from benchmarks.run import FRESH_PROCESS_MODES, run_all_benchmarks
from cudnn_backend_py.cli.compare.problems import DIRECTIONS
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention import Attention

torch = pytest.importorskip("torch", reason="did not run: torch is not installed, and the bench needs it")
pytestmark = pytest.mark.alone
ATTENTION_PROBLEM = Attention(
    batch=2, heads=8, kv_heads=2, seq_q=1024, head_dim=64, causal=True, data_type=DataType.BFLOAT16
)
SMALL_EFFORT = RepetitionCounts((ATTENTION_PROBLEM,), 7, tuning_s=2.0, host_batches=9, host_calls=50, children=1)


@pytest.fixture(scope="module")
def bench_record(tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("bench") / "bench.json"
    record = run_all_benchmarks(output, effort=SMALL_EFFORT)
    assert json.loads(output.read_text()) == json.loads(json.dumps(record))
    return record


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_method_of_calling_a_plan_is_timed(bench_record: Any, direction: str) -> None:
    found = bench_record["host"][direction]
    named = {"C loop", "same pointers", "same buffers, by position", "fresh pointers", "torch operator", "torch flash"}
    assert named | {"our frontend, same", "our frontend, fresh"} <= set(found)
    assert all(0 < timing["low_us"] <= timing["median_us"] <= timing["high_us"] for timing in found.values())


def test_calls_of_a_ragged_plan_and_a_c_loop_are_timed(bench_record: Any) -> None:
    found = bench_record["ragged"]
    theirs = {"cudnn-frontend, same", "cudnn-frontend, fresh"}
    assert set(found) - theirs == {"C loop", "same pointers", "same buffers, by position", "fresh pointers"}
    assert all(0 < timing["low_us"] <= timing["median_us"] <= timing["high_us"] for timing in found.values())


def test_gpu_times_are_plausible(bench_record: Any) -> None:
    assert [row["direction"] for row in bench_record["gpu"]] == list(DIRECTIONS)
    for row in bench_record["gpu"]:
        assert {"ours", "ours, autotuned", "torch flash"} <= set(row["us"])
        assert all(0 < rate < bench_record["matrix_tflops"] for rate in row["tflops"].values())
    assert bench_record["matrix_tflops"] > 1


def test_first_results_of_new_processes_are_timed(bench_record: Any) -> None:
    ways = set(bench_record["fresh"])
    assert ways >= set(FRESH_PROCESS_MODES) - {"cudnn-frontend"}
    totals = {way: figures["total"] for way, figures in bench_record["fresh"].items()}
    assert totals["ahead of time"] < totals["cold"]
    ours = bench_record["fresh"]["our frontend"]
    assert 0 < sum(ms for step, ms in ours.items() if step.startswith("plan: ")) <= ours["plan"] + 0.1  # rounded
    assert 0 < ours["plan again"] < ours["total"]


def test_every_measurement_has_a_pass_criterion(bench_record: Any, tmp_path: Path) -> None:
    judged = {item["name"]: item["passed"] for item in bench_record["accepted"]}
    assert judged["host, forward: same pointers / C loop"] in (True, False)
    assert judged["GPU: shapes where autotuned is slower than the first choice"] in (True, False)
