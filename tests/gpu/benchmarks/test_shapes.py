"""Small runs of the benchmarks over many shapes: they run with right results; their speed is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import run_python
from tests.support.figures import append_measurement_to_run_record

pytest.importorskip("torch", reason="did not run: torch is not installed, and these measurements need it")


def run_benchmark(folder: Path, name: str, *options: str) -> Any:
    """Run a benchmark in a separate process, and return its record."""
    output = folder / "record.json"
    run_python(["-m", "benchmarks", name, "--output", str(output), *options], timeout_s=300, check=True)
    record = json.loads(output.read_text())
    append_measurement_to_run_record(f"bench {name}", accepted=record.get("accepted", []))
    return record


def run_benchmark_until_memory_is_constant(folder: Path, name: str, *options: str) -> Any:
    """Repeat a benchmark up to three times until GPU memory stays constant; other processes may allocate some."""
    for _ in range(3):
        record = run_benchmark(folder, name, *options)
        if all(right for what, right in map_criteria_to_results(record).items() if what.startswith("GPU memory")):
            break
    return record


def map_criteria_to_results(record: Any) -> dict[str, bool]:
    return {item["name"]: item["passed"] for item in record["accepted"]}


@pytest.mark.alone
def test_every_replay_of_a_cuda_graph_is_right(tmp_path: Path) -> None:
    found = map_criteria_to_results(
        run_benchmark_until_memory_is_constant(tmp_path, "capture-soak", "--replays", "20000")
    )
    assert set(found.values()) == {True}


@pytest.mark.alone
@pytest.mark.parametrize("options", [[], ["--backward"]], ids=["forward", "backward"])
def test_results_of_new_shapes_are_right_and_leak_no_memory(tmp_path: Path, options: list[str]) -> None:
    record = run_benchmark_until_memory_is_constant(tmp_path, "any-shape", "--shapes", "2000", *options)
    found = map_criteria_to_results(record)
    assert record["compared"] == 200
    assert record["largest_relative_error"] > 0
    assert found["largest relative error of calls compared, thousandths"]
    assert found["GPU memory after the first tenth, bytes more"]


def test_shape_class_plans_are_timed_next_to_exact_plans(tmp_path: Path) -> None:
    record = run_benchmark(tmp_path, "shape-classes", "--shapes", "4", "--adaptive", "1")
    assert record["refused"] == []
    assert [{"exact", "any"} <= set(row["us"]) for row in record["rows"]] == [True] * 8
    assert sum("adaptive" in row["us"] for row in record["rows"]) == 2


def test_training_losses_are_similar_with_every_attention(tmp_path: Path) -> None:
    makers = ["torch flash", "ours, adaptive", "ours, any", "ours, exact"]
    record = run_benchmark(tmp_path, "model", "--little", "--makers", *makers)
    found = map_criteria_to_results(record)
    for way in ("packed", "padded", "serving", "serving, captured"):
        assert found[f"{way}: losses apart from those of torch flash"], record["makers"]
