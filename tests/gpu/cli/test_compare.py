"""``plan compare``: cuDNN by version and engine config, and torch's backends, timed on the same shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.cli.compare.comparison import Comparison, format_markdown, format_text, run_comparison
from tests.support.child import run_python
from tests.support.figures import append_measurement_to_run_record
from tests.support.logs import LOG_FOLDER

pytest.importorskip("torch", reason="did not run: torch is not installed, and these measurements need it")


def test_plan_compare_compares_the_graphs_of_a_cudnn_log() -> None:
    """The plan of the graph that torch logged is timed next to torch's backends on the same shape."""
    log = str(LOG_FOLDER / "torch-attention-9.19.0.log.gz")
    wanted = Comparison(log, rounds=7)
    record = run_comparison(wanted)
    assert [row["direction"] for row in record["rows"]] == ["forward", "backward"]
    title = f"cuDNN {record['versions'][0]}"
    for row in record["rows"]:
        assert {title, "torch flash", "torch math"} <= set(row["gpu"]), row["notes"]
        assert row["plans"][title].startswith("eng")
        assert row["gpu"][title]["samples"] == 7
        assert row["host"][title]["median_us"] > 1
        assert set(row["fastest"]) <= set(row["gpu"])
    for text in (format_text(record), format_markdown(record)):
        assert wanted.command in text
        assert record["rows"][0]["plans"][title] in text


def test_plan_compare_records_its_command_line(tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    command = ["-m", "cudnn_backend_py", "plan", "compare", "--grid", "little", "--rounds", "7", "--limit", "60"]
    run_python([*command, "--format", "json", "--output", str(output)], timeout_s=300, check=True)
    record: Any = json.loads(output.read_text())
    rows = record["rows"]
    assert rows
    assert record["command"].startswith("cudnn-backend plan compare --grid=little ")
    title = f"cuDNN {record['versions'][0]}"
    same = [row for row in rows if row["plans"].get(title) == row["plans"].get("ours, exact")]
    ratios = sorted(row["gpu"][title]["median_us"] / row["gpu"]["ours, exact"]["median_us"] for row in same)
    append_measurement_to_run_record("compare: one plan, timed by its own process / by torch's operator", ratios=ratios)
    assert all(row["configs"][title][0]["tag"] == row["plans"][title] for row in rows if title in row["plans"])
