"""A plan built ahead of time for a described GPU is found on the GPU, runs there, and is not built again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from cudnn_backend_py import Graph, execute, open_target
from cudnn_backend_py.execution.plan import plan
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.native import current_device
from cudnn_backend_py.plans.build import build, build_plans, forget_plans, shared_target
from cudnn_backend_py.plans.cache import make_plan_key
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.target import list_profiles, read_device
from tests.support.child import run_python
from tests.support.figures import append_measurement_to_run_record
from tests.support.flash import compute_causal_attention
from tests.support.gpu_requirements import find_first_engine_config

pytestmark = pytest.mark.usefixtures("cache")
PLAN_AHEAD_PROGRAM = """
import sys
from tests.gpu.plans.test_planning import *
print(build(make_flash_attention(), sys.argv[1]).tag)
"""


def make_flash_attention() -> Graph:
    return sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)


def check_flash_attention_plan_result(made: Plan) -> None:
    """Run a plan of ``make_flash_attention()`` and compare with float64."""
    graph = made.graph
    rng = np.random.default_rng(1)
    arrays = {
        tensor.name: rng.standard_normal(tensor.dims).astype(np.float16)
        for tensor in graph.variant_pack_tensors
        if not tensor.by_value and tensor not in graph.outputs
    }
    outputs = {tensor.name: np.zeros(tensor.dims, np.float16) for tensor in graph.outputs}
    execute(made, {**arrays, **outputs})
    expected, _ = compute_causal_attention(arrays["q"], arrays["k"].swapaxes(2, 3), arrays["v"])
    np.testing.assert_allclose(outputs["o"].astype(np.float64), expected, atol=4e-3, rtol=4e-3)


def test_a_cached_plan_of_a_described_gpu_is_found_on_the_gpu(tmp_path: Path, builds: list[str]) -> None:
    described = tmp_path / "device.json"
    described.write_text(json.dumps(read_device(current_device())))
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    tag = run_python(["-c", PLAN_AHEAD_PROGRAM, str(described)], environment=no_gpu, check=True).stdout.strip()
    found = build(make_flash_attention())
    assert builds == [], "the plan was built again on the GPU"
    assert found.tag == tag
    assert found.target.is_live
    check_flash_attention_plan_result(found)


def test_the_profile_of_this_gpu_gives_the_same_plan_keys() -> None:
    """The GPU properties that the package has under this GPU's name give the plan-cache keys of the GPU itself."""
    here = shared_target()
    named = [
        profile
        for profile in list_profiles()
        if profile.properties["deviceName"] == here.profile.properties["deviceName"]
    ]
    for profile in named:
        assert make_plan_key(make_flash_attention(), shared_target(profile), {}) == make_plan_key(
            make_flash_attention(), here, {}
        )


def test_gpu_plans_are_shared_and_found_again_in_the_cache(builds: list[str]) -> None:
    assert shared_target() is shared_target("gpu")
    first = build(make_flash_attention())
    assert build(make_flash_attention(), "gpu") is first
    check_flash_attention_plan_result(first)
    forget_plans()
    check_flash_attention_plan_result(build(make_flash_attention()))
    assert len(builds) == 1


def test_a_target_opened_by_the_caller_gets_its_own_plan_object(builds: list[str]) -> None:
    shared = build(make_flash_attention())
    mine = open_target()
    own = build(make_flash_attention(), mine)
    assert own is not shared
    assert own.target is mine
    assert len(builds) == 1, "the second plan was built instead of read from the cache"
    check_flash_attention_plan_result(own)
    mine.close()
    check_flash_attention_plan_result(build(make_flash_attention()))


def test_plan_returns_a_callable_with_the_built_plan() -> None:
    run = plan(make_flash_attention())
    assert run.plan is build(make_flash_attention())
    check_flash_attention_plan_result(run.plan)


def test_plans_can_be_built_in_one_or_four_threads() -> None:
    """Build four plans of new kernels with one and with four threads; the time is recorded, not tested."""
    seconds = {}
    for threads in (1, 4):
        graphs = [sdpa_forward(batch=1, heads=2, seq_q=64 * (threads + 5 * n), head_dim=64) for n in range(1, 5)]
        configs = [find_first_engine_config(graph, shared_target()) for graph in graphs]
        begin = time.perf_counter()
        assert all(isinstance(one, Plan) for one in build_plans(configs, workers=threads))
        seconds[threads] = time.perf_counter() - begin
    processors = len(os.sched_getaffinity(0))
    append_measurement_to_run_record(
        "four attention plans built in 1 and 4 threads", seconds=[*seconds.values()], processors=processors
    )
