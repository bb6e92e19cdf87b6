"""``python -m benchmarks run`` on a GPU, little of it: every part measures, and what it measures is in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.run import CHILDREN, run_bench
from cudnn_backend_py.compare.shapes import DIRECTIONS, Effort, Shape

torch = pytest.importorskip("torch", reason="did not run: torch is not installed, and the bench needs it")
pytestmark = pytest.mark.alone
LITTLE = Effort((Shape(2, 8, 1024, 64, True, True, 2),), 7, tuning_s=2.0, host_batches=9, host_calls=50, children=1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("bench") / "bench.json"
    record = run_bench(output, effort=LITTLE)
    assert json.loads(output.read_text()) == json.loads(json.dumps(record))
    return record


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_host_times_are_in_order(measured: Any, direction: str) -> None:
    found = {name: timing["median_us"] for name, timing in measured["host"][direction].items()}
    named = {"C loop", "same pointers", "same buffers, by position", "fresh pointers", "torch operator", "torch flash"}
    assert named | {"our frontend, same", "our frontend, fresh"} <= set(found)
    assert 0.9 * found["C loop"] < found["same pointers"] < 3 * found["C loop"]
    assert found["same pointers"] < found["fresh pointers"] < found["torch operator"] * 3


def test_a_ragged_plan_is_measured_beside_its_floor(measured: Any) -> None:
    found = {name: timing["median_us"] for name, timing in measured["ragged"].items()}
    theirs = {"cudnn-frontend, same", "cudnn-frontend, fresh"}
    assert set(found) - theirs == {"C loop", "same pointers", "same buffers, by position", "fresh pointers"}
    assert 0.9 * found["C loop"] < found["same pointers"] < found["fresh pointers"]


def test_gpu_times_make_sense(measured: Any) -> None:
    assert [row["direction"] for row in measured["gpu"]] == list(DIRECTIONS)
    for row in measured["gpu"]:
        assert {"ours", "ours, autotuned", "torch flash"} <= set(row["us"])
        assert all(0 < rate < measured["matrix_tflops"] for rate in row["tflops"].values())
    assert measured["matrix_tflops"] > 1


def test_fresh_processes_ran(measured: Any) -> None:
    ways = set(measured["fresh"])
    assert ways >= set(CHILDREN) - {"cudnn-frontend"}
    totals = {way: figures["total"] for way, figures in measured["fresh"].items()}
    assert totals["ahead of time"] < totals["cold"]
    ours = measured["fresh"]["our frontend"]
    assert 0 < sum(ms for step, ms in ours.items() if step.startswith("plan: ")) <= ours["plan"] + 0.1  # rounded
    assert 0 < ours["plan again"] < ours["total"]


def test_every_figure_is_judged(measured: Any, tmp_path: Path) -> None:
    judged = {item["name"]: item["passed"] for item in measured["accepted"]}
    assert judged["host, forward: same pointers / C loop"] in (True, False)
    assert judged["GPU: shapes where autotuned is slower than the first choice"] in (True, False)
