"""A campaign judges, interprets and counts random graphs for a described GPU, and resumes when a child process ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_backend_py import library
from cudnn_backend_py.system.child import TIMED_OUT
from cudnn_backend_py.target import open_target
from tools.campaign.graphs import GRAPH_FAMILIES, make_random_graph
from tools.campaign.plan_check import build_plan_or_get_refusal
from tools.campaign.runner import RandomGraphCampaignOptions, run_random_graphs_for_a_time

SHORT = RandomGraphCampaignOptions(target="h200", seconds=120, most=12, processes=2, reduce_s=0)
# Engines of Hopper support more than a third of most families.
SUPPORTED = [name for name in GRAPH_FAMILIES if name not in ("block scale", "rope", "sdpa backward")]


@pytest.mark.parametrize("family", SUPPORTED)
def test_cudnn_supports_many_random_graphs_of_each_kind(family: str) -> None:
    target, version = open_target("h200"), library().version
    answers = [
        build_plan_or_get_refusal(make_random_graph(seed, family, version=version), target, build=False)
        for seed in range(20)
    ]
    assert sum(bool(one.engine) for one in answers) >= 6
    assert all(one.engine or one.words for one in answers)  # a refusal has cuDNN's message


def test_a_random_graph_campaign_counts_stores_and_resumes(tmp_path: Path) -> None:
    kept = tmp_path / "graphs.jsonl"
    found = run_random_graphs_for_a_time(SHORT, kept)
    total = found.sum_counts()
    assert total["graphs"] == total["accepted"] + total["refused"] == 12
    assert not found.failures
    assert found.seconds["interpret"] > 0
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert {line["seed"] for line in lines} == set(range(12))
    again = run_random_graphs_for_a_time(
        RandomGraphCampaignOptions(target="h200", seconds=120, most=14, reduce_s=0), kept, resume=kept
    )
    assert again.sum_counts()["graphs"] == 14
    assert len(kept.read_text().splitlines()) == 14


def test_a_random_graph_campaign_continues_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.campaign import runner

    monkeypatch.setattr(runner, "_FIRST_GRAPH_EXTRA_S", 0.0)
    found = run_random_graphs_for_a_time(
        RandomGraphCampaignOptions(target="h200", seconds=60, most=3, reduce_s=0, limit_s=0.01)
    )
    assert found.sum_counts()[TIMED_OUT] == 3
    assert [failure["outcome"] for failure in found.failures] == [TIMED_OUT] * 3
    assert {failure["seed"] for failure in found.failures} == {0, 1, 2}


def test_the_random_graph_campaign_runs_as_a_python_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.campaign", "--target=h200", "--most=4", "--seconds=60"]
    record = tmp_path / "record.json"
    done = subprocess.run(
        [*command, "--families=matmul,norm", f"--record={record}"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "operation: " in done.stdout
    assert json.loads(record.read_text())["outside attention"]["graphs"] == 4
