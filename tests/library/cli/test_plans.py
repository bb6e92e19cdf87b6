"""Tests of commands about plans: `cache list` must name each plan on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from click.testing import CliRunner

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.plans.build import build, shared_target
from cudnn_backend_py.plans.cache import VARIABLE, PlanCache, make_plan_key


def test_cache_list_names_each_plan(tmp_path: Path) -> None:
    graph, target, cache = (
        sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64),
        shared_target("h100"),
        PlanCache(tmp_path),
    )
    built = build(graph, target)
    cache.put(make_plan_key(graph, target, {}), built, {"microseconds": {"eng2": 12.5}})
    (entry,) = cache.entries()
    listed = CliRunner().invoke(main, ["cache", "list", "--format", "json"], env={VARIABLE: str(cache.folder)})
    found = json.loads(listed.stdout)
    assert (found["folder"], found["plans"]) == (str(cache.folder), [asdict(entry)])
    assert str(cache.folder) in [one["folder"] for one in found["folders"]]
    shown = CliRunner().invoke(main, ["cache", "list"], env={VARIABLE: str(cache.folder), "COLUMNS": "120"}).stdout
    assert {"sdpa_forward", built.tag, target.name, target.library.build_text} <= set(shown.split())
    assert shown.splitlines()[0].split()[-3:] == ["MB", "last", "used"]
    assert f"1 plan in {cache.folder}\n" in shown
