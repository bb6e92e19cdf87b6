"""Benchmarks without a GPU: shapes, C loop, acceptance criteria, tables, and some of the measurements."""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from benchmarks.c_calls import compile_program, make_c_program_for_graph
from benchmarks.frontend_graph import build_frontend_attention
from benchmarks.judge import compare_record_with_limits, format_limit_lines
from benchmarks.problems import LARGE_PROBLEMS, QUICK_REPETITIONS, SMALL_PROBLEM
from benchmarks.tables import draw_tflops, make_fresh_process_table, make_gpu_table, make_host_table, make_ragged_table
from cudnn_backend_py import EnvironmentNotReady, OperationGraph, frontend, library, open_target
from cudnn_backend_py.cli.compare.problems import (
    DIRECTIONS,
    build_attention_graph,
    count_flops,
    format_attention_problem,
)
from cudnn_backend_py.frontend.handles import DescribedHandle
from cudnn_backend_py.generated.enums import DataType, Status
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.native.fast_call import load_compiled_library
from cudnn_backend_py.plans.build import build as build_plan
from cudnn_backend_py.plans.choice import EngineChoice
from tests.support.child import run_python
from tests.support.records import read_record


@pytest.fixture(scope="module")
def h100_target() -> Any:
    target = open_target("h100")
    yield target
    target.close()


# shapes


def build_graph_for_target(target: Any, problem: Attention, direction: Any) -> Graph:
    return build_attention_graph(problem, direction, target.library.version, target.sm)


def test_the_20_benchmark_shapes_cover_attention_options() -> None:
    assert len({format_attention_problem(shape) for shape in LARGE_PROBLEMS}) == len(LARGE_PROBLEMS) == 20
    assert {shape.seq_q for shape in LARGE_PROBLEMS} >= {512, 16384}
    types = {DataType.HALF, DataType.BFLOAT16}
    for of, values in {"head_dim": {64, 128}, "causal": {True, False}, "data_type": types}.items():
        assert {getattr(shape, of) for shape in LARGE_PROBLEMS} == values
    assert sum(shape.kv_heads < shape.heads for shape in LARGE_PROBLEMS) >= 3
    assert set(QUICK_REPETITIONS.shapes) <= set(LARGE_PROBLEMS)
    assert any(shape.kv_heads < shape.heads for shape in QUICK_REPETITIONS.shapes)


def test_the_fresh_process_benchmark_builds_the_small_problem(
    h100_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark states its sizes as numbers, so that it imports no module of ours before its clock starts."""
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # only imported here
    fresh_process = importlib.import_module("benchmarks.fresh_process")
    assert Attention(**fresh_process.ATTENTION_SIZES, causal=True) == SMALL_PROBLEM
    steps: list[str] = []
    graph, tensors = fresh_process.build_by_frontend(frontend, DescribedHandle(h100_target), steps.append)
    assert steps == ["validate", "operation graph", "heuristics", "build plans"]
    assert [tuple(one.get_dim()) for one in tensors] == [
        SMALL_PROBLEM.dims(name) for name in ("q", "k", "v", "o", "stats")
    ]
    same, _ = build_frontend_attention(
        frontend, DescribedHandle(h100_target), replace(SMALL_PROBLEM, stats=True), "forward"
    )
    assert graph.get_plan_name_at_index(0) == same.get_plan_name_at_index(0)


def test_attention_flops_equal_the_formula() -> None:
    assert count_flops(SMALL_PROBLEM, "forward") == 4 * 1 * 2 * 128 * 128 * 64 / 2
    assert count_flops(SMALL_PROBLEM, "backward") == 2.5 * count_flops(SMALL_PROBLEM, "forward")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cudnn_supports_every_benchmark_shape(h100_target: Any, direction: Any) -> None:
    refused = [
        format_attention_problem(shape)
        for shape in (SMALL_PROBLEM, *LARGE_PROBLEMS)
        if not OperationGraph(build_graph_for_target(h100_target, shape, direction), h100_target)
        .heuristics("A")
        .configs
    ]
    assert not refused


def test_a_config_tag_gives_engine_and_knobs(h100_target: Any) -> None:
    (config, *_) = (
        OperationGraph(build_graph_for_target(h100_target, SMALL_PROBLEM, "forward"), h100_target)
        .heuristics("A")
        .configs
    )
    choice = EngineChoice.parse(config.tag)
    assert (choice.engine, choice.knobs) == (config.engine, config.knobs)
    with pytest.raises(ValueError, match="engine-tag: 'no plan' is not an engine tag"):
        EngineChoice.parse("no plan")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_our_frontend_builds_the_measured_graphs(h100_target: Any, direction: Any) -> None:
    problem = replace(SMALL_PROBLEM, stats=direction == "forward")
    graph, tensors = build_frontend_attention(frontend, DescribedHandle(h100_target), problem, direction)
    assert set(tensors) == set("qkvo") | {"stats"} | ({"do", "dq", "dk", "dv"} if direction == "backward" else set())
    assert graph.get_workspace_size() >= 0


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_our_frontend_builds_packed_sequences(h100_target: Any, direction: Any) -> None:
    is_forward = direction == "forward"
    size = {"batch": 8, "heads": 12, "seq_q": 512, "head_dim": 64}
    totals = {} if is_forward else {"max_total_seq_q": 1024, "max_total_seq_kv": 1024}
    problem = Attention(**size, causal=True, padding=True, ragged=True, ragged_stats=True, stats=is_forward, **totals)
    _, tensors = build_frontend_attention(frontend, DescribedHandle(h100_target), problem, direction)
    moved = [*"qkvo", "stats", *(() if is_forward else ("do", "dq", "dk", "dv"))]
    for name in moved:
        offset = tensors[name].get_ragged_offset()
        assert offset.get_uid() == tensors[f"ragged_{name.removeprefix('d')}"].get_uid()
        assert tuple(tensors[name].get_dim()) == problem.dims(name)


def test_our_frontend_builds_decoding_with_a_paged_cache(h100_target: Any) -> None:
    size = {"batch": 64, "heads": 12, "seq_q": 1, "seq_kv": 1280, "head_dim": 64}
    problem = Attention(**size, padding=True, page_size=64, pages_k=1280, pages_v=1280)
    graph, tensors = build_frontend_attention(frontend, DescribedHandle(h100_target), problem, "forward")
    assert tuple(tensors["page_table_k"].get_dim()) == (64, 1, 20, 1)
    assert graph.get_workspace_size() >= 0


# the C loop


def test_the_c_timing_loop_repeats_the_call() -> None:
    calls: list[tuple[int, int, int]] = []
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    note = kind(lambda *arguments: calls.append(arguments) or 0)
    assert load_compiled_library().cudnn_backend_py_loop(ctypes.cast(note, ctypes.c_void_p), 1, 2, 3, 5) > 0
    assert calls == [(1, 2, 3)] * 5


def test_the_c_timing_loop_returns_the_status_of_a_failing_call() -> None:
    """The loop passes a null handle, which cuDNN itself refuses with a status."""
    execute = ctypes.cast(library().get_unchecked_function("cudnnBackendExecute"), ctypes.c_void_p)
    status = -load_compiled_library().cudnn_backend_py_loop(execute, None, None, None, 5)
    assert 2000 <= status < 3000  # CUDNN_STATUS_BAD_PARAM*


# acceptance and report


def make_timing_record(median: float, spread: float = 0.0) -> dict[str, float]:
    return {"median_us": median, "low_us": median - spread, "high_us": median + spread, "samples": 9}


def make_benchmark_record(**changes: Any) -> dict[str, Any]:
    host = {
        "C loop": make_timing_record(5.0),
        "same pointers": make_timing_record(5.2),
        "fresh pointers": make_timing_record(9.0),
        "CUDA graph": make_timing_record(3.0),
        "cudnn-frontend, same": make_timing_record(13.0),
        "cudnn-frontend, fresh": make_timing_record(14.0),
        "cudnn-frontend, ordered, same": make_timing_record(12.0),
        "cudnn-frontend, ordered, fresh": make_timing_record(12.5),
    }
    us = {
        "ours": make_timing_record(100.0),
        "ours, autotuned": make_timing_record(90.0),
        "cudnn-frontend": make_timing_record(101.0),
    }
    row = {
        "shape": format_attention_problem(LARGE_PROBLEMS[0]),
        "direction": "forward",
        "flops": 1e9,
        "us": us,
        "plans": {"ours": "eng4_k2=1", "ours, autotuned": "eng4_k2=2"},
        "frontend_plan": "eng4_k2=1",
        "tflops": {name: round(1e9 / found["median_us"] / 1e6, 1) for name, found in us.items()},
    }
    theirs = {"import": 150.0, "open": 50.0, "plan": 500.0, "first run": 100.0, "total": 800.0}
    fresh = {
        "ahead of time": theirs | {"import": 100.0, "total": 200.0},
        "cold": theirs | {"import": 17.0},
        "our frontend": theirs | {"import": 100.0},
        "cudnn-frontend": theirs,
        "C program": theirs,
    }
    made = {"host": {"problem": format_attention_problem(SMALL_PROBLEM), "forward": host, "backward": dict(host)}}
    made["ragged"] = {
        "C loop": make_timing_record(15.0),
        "same pointers": make_timing_record(15.5),
        "fresh pointers": make_timing_record(17.5),
    }
    made["ragged"] |= {
        "cudnn-frontend, same": make_timing_record(26.5),
        "cudnn-frontend, fresh": make_timing_record(27.0),
    }
    made |= {"gpu": [row], "matrix_tflops": 700.0, "fresh": fresh}
    return made | changes


def get_result_of_each_criterion(made: dict[str, Any]) -> dict[str, bool | None]:
    return {item["name"]: item["passed"] for item in compare_record_with_limits(made)}


def test_good_measurements_meet_every_criterion() -> None:
    assert set(get_result_of_each_criterion(make_benchmark_record()).values()) == {True}


def test_a_bad_measurement_fails_only_its_own_criterion() -> None:
    made = make_benchmark_record()
    made["ragged"]["same pointers"] = make_timing_record(16.0)
    assert [name for name, good in get_result_of_each_criterion(made).items() if not good] == [
        "host, ragged: same pointers / C loop"
    ]
    made = make_benchmark_record()
    made["host"]["forward"]["same pointers"] = make_timing_record(5.8)
    assert [name for name, good in get_result_of_each_criterion(made).items() if not good] == [
        "host, forward: same pointers / C loop"
    ]
    made = make_benchmark_record()
    made["gpu"][0]["us"]["ours, autotuned"] = make_timing_record(104.0, 1.0)
    assert [name for name, good in get_result_of_each_criterion(made).items() if not good] == [
        "GPU: shapes where autotuned is slower than the first choice"
    ]
    made["gpu"][0]["us"]["ours, autotuned"] = make_timing_record(104.0, 5.0)
    assert all(get_result_of_each_criterion(made).values()), "within the spread"
    made["fresh"]["ahead of time"]["total"] = 401.0
    assert [name for name, good in get_result_of_each_criterion(made).items() if not good] == [
        "fresh process: ahead of time / cudnn-frontend"
    ]
    made = make_benchmark_record()
    made["fresh"]["cold"] = made["fresh"]["cold"] | {"import": 151.0, "plan": 700.0}
    assert [name for name, good in get_result_of_each_criterion(made).items() if not good] == [
        "fresh process: import, cold / cudnn-frontend",
        "fresh process: after the import, cold / C program",
    ]


def test_gpu_times_of_different_plans_are_not_compared() -> None:
    made = make_benchmark_record()
    made["gpu"][0]["frontend_plan"] = "eng5"
    assert get_result_of_each_criterion(made)["GPU: shapes that differ from cudnn-frontend, same plan"] is None
    made["gpu"][0]["plans"]["ours, frontend's plan"] = "eng5"
    made["gpu"][0]["us"]["ours, frontend's plan"] = make_timing_record(80.0)
    assert get_result_of_each_criterion(made)["GPU: shapes that differ from cudnn-frontend, same plan"] is False


def test_significant_time_differences_are_defined_as_in_tuning() -> None:
    """A difference is significant if it exceeds two percent and the spread of each measurement."""
    name = "GPU: shapes that differ from cudnn-frontend, same plan"
    for median, spread, differs in ((97.5, 0.0, True), (98.5, 0.0, False), (97.5, 1.5, False), (102.5, 0.0, True)):
        made = make_benchmark_record()
        made["gpu"][0]["us"] |= {
            "ours": make_timing_record(median, spread),
            "cudnn-frontend": make_timing_record(100.0, spread),
        }
        assert get_result_of_each_criterion(made)[name] is not differs, (median, spread)


def test_stored_benchmark_shows_no_slower_autotuned_plans() -> None:
    made = read_record("bench-h200-cudnn-9.19.0.json")
    judged = {item["name"]: item["value"] for item in compare_record_with_limits(made)}
    assert judged["GPU: shapes where autotuned is slower than the first choice"] == 0


def test_a_criterion_without_measurements_neither_passes_nor_fails() -> None:
    empty = {
        "problem": format_attention_problem(SMALL_PROBLEM),
        "c loop": "not measured",
        "forward": {},
        "backward": {},
    }
    assert set(
        get_result_of_each_criterion(make_benchmark_record(host=empty, ragged={}, gpu=[], fresh={})).values()
    ) == {None}


def test_printed_tables_show_the_measurements() -> None:
    made = make_benchmark_record()
    made["accepted"] = compare_record_with_limits(made)
    out = io.StringIO()
    console = Console(file=out, width=200)
    for table in (
        make_host_table(made),
        make_ragged_table(made),
        make_gpu_table(made),
        make_fresh_process_table(made),
        make_fresh_process_table({"fresh": {}}),
    ):
        console.print(table)
    text = out.getvalue()
    assert all(words in text for words in ("fresh pointers", "13.00", "100.0 (10)", "+11.1%", "800.0"))
    lines = format_limit_lines(made)
    assert "pass: host, forward: same pointers / C loop: 1.04, at most 1.15" in lines
    assert all(line.startswith("pass: ") for line in lines)


def test_absence_of_matplotlib_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EnvironmentNotReady, match="matplotlib-missing"):
        draw_tflops(make_benchmark_record(), tmp_path / "bench.svg")


# python -m benchmarks


def run_benchmark(tmp_path: Path, name: str, *options: str) -> Any:
    output = tmp_path / "record.json"
    run_python(["-m", "benchmarks", name, "--output", str(output), *options], check=True)
    return json.loads(output.read_text())


def test_a_killed_matrix_benchmark_is_resumed(tmp_path: Path) -> None:
    found = run_benchmark(
        tmp_path, "matrix", "--rounds", "1", "--targets", "sm90", "--versions", library().version_text
    )
    assert found["schema"] == "cudnn-backend-py/matrix"
    assert found["environment"]["cudnn"] == library().build_text
    assert found["letters"] == {"S": 10, "-": 2}
    killed = found["killed_half_way"]
    assert 6 <= killed["answers_when_killed"] <= 12
    assert killed["answers_when_killed"] + killed["asked_when_resumed"] == 12
    assert (killed["answered_twice"], killed["asked_the_third_time"]) == (0, 0)
    assert found["with_a_crashing_graph"] == {"crashes": {"S": 1, "!": 1}, "plain": {"S": 2}}


def test_a_generated_c_program_builds_the_plan_of_python(h100_target: Any, tmp_path: Path) -> None:
    graph = build_graph_for_target(h100_target, SMALL_PROBLEM, "forward")
    text, workspace = make_c_program_for_graph(graph, lambda: open_target("h100"), ("q", "k", "v", "o", "stats"))
    calls = ctypes.CDLL(str(compile_program(text, tmp_path)))
    assert calls.load(h100_target.library.path.encode()) == 0
    calls.plan()
    assert workspace == build_plan(graph, h100_target, cache=False).workspace_bytes
    pointers = (ctypes.c_void_p * 5)(*range(4096, 4096 * 6, 4096))
    not_a_handle = calls.run(pointers, ctypes.c_void_p(4096))  # the plan is for a described GPU
    assert Status(not_a_handle) is Status.BAD_PARAM


def test_the_long_use_benchmark_replays_the_cudnn_calls_of_verdicts(tmp_path: Path) -> None:
    found = run_benchmark(tmp_path, "long-use", "--explains", "22")["without_builds"]
    counts = found["calls"]["calls_of_a_verdict"]
    assert set(counts) == {"sdpa_forward", "two_matmuls"}
    assert min(counts.values()) > 50
    grown = found["growth_per_round_of_package_beyond_calls"]
    assert (grown["open_files"], grown["threads"], grown["python_threads"]) == (0, 0, 0)
