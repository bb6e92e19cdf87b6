"""Tuning on the GPU: timed configs compute the same as the heuristics' first config; the time limit is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, UsageError, build_plan, execute, open_target
from cudnn_backend_py.graph import attention
from cudnn_backend_py.native.cuda import Memory
from cudnn_backend_py.plans.cache import PlanCache, make_plan_key
from cudnn_backend_py.plans.select import Selection, make_cache_key_options_of_tuned_plan
from cudnn_backend_py.target import Target
from cudnn_backend_py.tuning.search import autotune
from cudnn_backend_py.tuning.statistics import MIN_ROUNDS
from tests.support.figures import append_measurement_to_run_record
from tests.support.gpu_requirements import find_first_engine_config


@pytest.fixture(scope="module")
def gpu() -> Iterator[Target]:
    target = open_target()
    yield target
    target.close()


def make_forward_graph(**options: Any) -> Graph:
    shape: dict[str, Any] = {"batch": 2, "heads": 8, "seq_q": 1024, "head_dim": 64, "causal": True, "stats": True}
    return attention.sdpa_forward(**shape | options)


def test_the_tuning_record_is_plain_data_with_the_time_of_the_fastest_config(gpu: Target, tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "plans")
    progress: list[float] = []
    tuned = autotune(
        make_forward_graph(), gpu, budget_s=8, cache=cache, progress=lambda text, done: progress.append(done)
    )
    evidence = tuned.evidence
    assert json.loads(json.dumps(evidence, allow_nan=False)) == evidence
    timed = {item["tag"]: item for item in evidence["candidates"] if item["state"] == "timed"}
    assert {evidence["first"], evidence["winner"]} <= set(timed)
    assert tuned.plan.tag == evidence["winner"]
    assert timed[evidence["first"]]["cold"]["samples"] == evidence["rounds"] >= MIN_ROUNDS
    assert all(item["cold"]["median_us"] > 1 for item in timed.values())
    assert tuned.gain >= 1
    assert evidence["l2_bytes"] > 1 << 20
    assert progress == sorted(progress)
    key = make_plan_key(make_forward_graph(), gpu, make_cache_key_options_of_tuned_plan(None, gpu))
    assert cache.evidence(key) == evidence
    kept = cache.get(key, gpu)
    assert kept is not None
    assert kept.tag == tuned.plan.tag
    append_measurement_to_run_record("autotune forward", gain=tuned.gain, seconds=evidence["seconds"], tried=len(timed))


def test_the_first_config_is_the_first_choice_of_the_heuristics(gpu: Target) -> None:
    tuned = autotune(make_forward_graph(), gpu, budget_s=4, cache=False)
    assert tuned.evidence["first"] == find_first_engine_config(make_forward_graph(), gpu).tag


def test_the_tuned_plan_computes_the_same_as_the_first_choice(gpu: Target) -> None:
    graph = make_forward_graph()
    rng = np.random.default_rng(5)
    arrays = {name: rng.standard_normal((2, 8, 1024, 64)).astype(np.float16) for name in "qkv"}
    arrays["k"] = arrays["k"].swapaxes(2, 3)
    results = []
    plans = build_plan(find_first_engine_config(graph, gpu)), autotune(graph, gpu, cache=False).plan
    for plan in plans:
        o, stats = np.zeros((2, 8, 1024, 64), np.float16), np.zeros((2, 8, 1024, 1), np.float32)
        execute(plan, {**arrays, "o": o, "stats": stats})
        results.append(o.astype(np.float64))
    assert np.linalg.norm(results[0] - results[1]) < 1e-3 * np.linalg.norm(results[0])


def test_without_tolerance_only_configs_with_equal_bits_are_timed(gpu: Target) -> None:
    tuned = autotune(make_forward_graph(data_type=DataType.BFLOAT16), gpu, budget_s=6, tolerance=0.0, cache=False)
    for item in tuned.evidence["candidates"]:
        relative = [difference["relative"] for difference in item.get("differences", {}).values()]
        if item["state"] == "timed":
            assert not any(relative)
        if item["state"] == "different":
            assert any(relative)
            assert "0.00e+00 is allowed" in item["reason"]


@pytest.mark.alone
def test_tuning_beyond_heuristics_keeps_its_time_budget(gpu: Target) -> None:
    graph = attention.sdpa_backward(batch=2, heads=8, seq_q=1024, head_dim=64, causal=True)
    began = time.monotonic()
    tuned = autotune(graph, gpu, engines=True, max_candidates=12, budget_s=15, cache=False)
    seconds = time.monotonic() - began
    states = {item["tag"]: item["state"] for item in tuned.evidence["candidates"] if item["mode"] == "engine"}
    longest = max(item.get("build_s", 0) for item in tuned.evidence["candidates"])
    assert states
    assert seconds < 15 + 2 * longest + 1
    append_measurement_to_run_record("autotune backward", gain=tuned.gain, seconds=seconds, states=states)


def test_tuning_skips_configs_that_the_selection_excludes(gpu: Target) -> None:
    first = find_first_engine_config(make_forward_graph(), gpu)
    wanted = Selection(unwanted_behavior=(), shared_memory_bytes=first.shared_memory_bytes - 1)
    tuned = autotune(make_forward_graph(), gpu, selection=wanted, budget_s=4, cache=False)
    refused = [item for item in tuned.evidence["candidates"] if item["tag"] == first.tag]
    assert [item["state"] for item in refused] == ["refused"]
    assert tuned.plan.tag != first.tag


def test_tuning_uses_given_buffers_and_refuses_wrong_ones(gpu: Target) -> None:
    graph = make_forward_graph(batch=1, heads=2, seq_q=128)
    with Memory(0) as memory:
        o = memory.zeros(2 * 128 * 64 * 2)
        v = memory.zeros(2 * 128 * 64 * 2)
        autotune(graph, gpu, buffers={"o": o, "v": v}, budget_s=2, cache=False)
        image = np.ones(2 * 128 * 64, np.float16)
        memory.copy_to_host(o, image)
        assert not image.any()  # V is zero, so O is
        with pytest.raises(UsageError, match="unknown-buffer"):
            autotune(graph, gpu, buffers={"w": v}, cache=False)
        with pytest.raises(UsageError, match="buffer-not-on-device"):
            autotune(graph, gpu, buffers={"v": image}, cache=False)
