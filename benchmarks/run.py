"""Cost of calls, kernels and fresh processes, compared with cudnn-frontend and torch (``python -m benchmarks run``).

This package is measured through its own plans and through its frontend with cudnn-frontend's names.

The implementations run in one process and take turns; medians with quartiles are reported. A GPU and torch are needed.
cudnn-frontend, matplotlib, and the compiled call with its C loop (the lower bound of a call) are used if available.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from cudnn_backend_py import frontend as our_frontend
from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.contenders import (
    make_buffers,
    make_torch_calls,
    prepare_backward_call,
    wait_for_background_plans,
)
from cudnn_backend_py.cli.compare.figures import RecordTables
from cudnn_backend_py.cli.compare.problems import (
    DIRECTIONS,
    Direction,
    build_attention_graph,
    count_flops,
    format_attention_problem,
)
from cudnn_backend_py.cli.compare.timing import (
    make_batch_in_context,
    make_call_in_context,
    measure_gpu_times,
    measure_host_times,
    summarize_microseconds,
)
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.execution.timing import Batch, make_repeated_batch, rotate_items
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.native.fast_call import load_compiled_library
from cudnn_backend_py.plans.build import build, shared_target
from cudnn_backend_py.plans.choice import EngineChoice
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.system.child import make_script_command
from cudnn_backend_py.target import Target
from cudnn_backend_py.terminal import open_console, progress_bar
from cudnn_backend_py.torch_ops.operators import load_torch
from cudnn_backend_py.tuning.search import autotune

from .c_calls import compile_program, make_c_program_for_graph
from .contenders import (
    FrontendContender,
    compute_forward_outputs,
    load_frontend,
    make_batch_with_new_arguments,
    make_c_execute_loop_batch,
)
from .judge import compare_record_with_limits, format_limit_lines
from .problems import FULL_REPETITIONS, QUICK_REPETITIONS, SMALL_PROBLEM, RepetitionCounts
from .ragged import measure_ragged_calls
from .tables import draw_tflops, make_all_tables

__all__ = ["run_all_benchmarks"]

ENVIRONMENT_FACTS = ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
FRESH_PROCESS_SCRIPT = Path(__file__).with_name("fresh_process.py")
# Implementations measured in a fresh process, and their modes of fresh_process.py.
FRESH_PROCESS_MODES = {
    "cold": "build",
    "cold, filling the cache": "plan",
    "disk cache": "plan",
    "ahead of time": "load",
    "our frontend": "our-frontend",
    "cudnn-frontend": "cudnn-frontend",
    "C program": "c",
}


# host time per call


def measure_host_time(target: Target, frontend: FrontendContender | None, effort: RepetitionCounts) -> dict[str, Any]:
    """Return host microseconds per call for a small problem, by direction and implementation."""
    found: dict[str, Any] = {"problem": format_attention_problem(SMALL_PROBLEM)}
    for direction in DIRECTIONS:
        contenders = _make_batches_for_host_timing(direction, target, frontend, effort)
        times = measure_host_times(contenders, effort.host_batches, effort.host_calls)
        found[direction] = {name: summarize_microseconds(timing) for name, timing in times.items()}
    return found


def _make_batches_for_host_timing(
    direction: Direction, target: Target, frontend: FrontendContender | None, effort: RepetitionCounts
) -> dict[str, Batch]:
    import torch

    sets = make_buffers(SMALL_PROBLEM, direction, effort.host_batches * effort.host_calls)
    first = sets[0]
    if direction == "backward":
        compute_forward_outputs(SMALL_PROBLEM, first)
    executable = Executable(
        build(build_attention_graph(SMALL_PROBLEM, direction, target.library.version, target.sm), target)
    )
    order = executable.names
    bound = executable.bind(**{name: first[name] for name in order})
    contenders = {} if load_compiled_library() is None else {"C loop": make_c_execute_loop_batch(bound)}
    contenders["same pointers"] = make_repeated_batch(bound)
    contenders["same buffers, by position"] = make_repeated_batch(partial(executable, *(first[name] for name in order)))
    contenders["fresh pointers"] = make_batch_with_new_arguments(
        executable, [tuple(one[name] for name in order) for one in sets]
    )
    try:
        contenders["CUDA graph"] = make_repeated_batch(
            executable.cuda_graph(**{name: first[name] for name in order}).launch
        )
    except CudnnBackendError as error:
        print(f"CUDA graph not measured: {error}", file=sys.stderr)
    for name, module in {"our frontend": FrontendContender(our_frontend), "cudnn-frontend": frontend}.items():
        if module is not None:
            graph, tensors = module.build(SMALL_PROBLEM, direction)
            contenders |= module.contenders(name, graph, tensors, sets)
    q, k, v = (first[name].detach().clone() for name in "qkv")
    operator: Callable[[], Any] = partial(torch_ops.attention, q, k, v, causal=True)
    if direction == "backward":
        operator = prepare_backward_call(operator, (q, k, v), first)
    wait_for_background_plans(operator)
    contenders["torch operator"] = make_repeated_batch(operator)
    for name, call, context in make_torch_calls(SMALL_PROBLEM, direction, first):
        contenders[name] = make_batch_in_context(context, call)
    torch.cuda.synchronize()
    return contenders


# GPU time


def measure_gpu_time(
    target: Target, frontend: FrontendContender | None, effort: RepetitionCounts, step: Callable[[int, str], None]
) -> list[dict[str, Any]]:
    """Return a row per shape and direction with plans and GPU times by implementation.

    `step` is called before each row with the number of finished rows and the name of the next one.
    """
    rows: list[dict[str, Any]] = []
    for problem, direction in product(effort.shapes, DIRECTIONS):
        step(len(rows), f"GPU time: {format_attention_problem(problem)} {direction}")
        rows.append(_measure_gpu_times_of_problem(problem, direction, target, frontend, effort))
    return rows


def _measure_gpu_times_of_problem(
    problem: Attention,
    direction: Direction,
    target: Target,
    frontend: FrontendContender | None,
    effort: RepetitionCounts,
) -> dict[str, Any]:
    (buffers,) = make_buffers(problem, direction)
    if direction == "backward":
        compute_forward_outputs(problem, buffers)
    graph = build_attention_graph(problem, direction, target.library.version, target.sm)
    plans: dict[str, Plan] = {"ours": build(graph, target)}
    # Without the cache, tuning times the candidates in this run.
    by_key: dict[str | int, Any] = dict(buffers.items())
    tuned = autotune(graph, target, buffers=by_key, budget_s=effort.tuning_s, cache=False)
    plans["ours, autotuned"] = tuned.plan
    row: dict[str, Any] = {
        "shape": format_attention_problem(problem),
        "direction": direction,
        "flops": count_flops(problem, direction),
    }
    contenders: dict[str, Callable[[], Any]] = {}
    if frontend is not None:
        theirs, tensors = frontend.build(problem, direction)
        contenders["cudnn-frontend"] = partial(theirs.execute, *frontend.call(theirs, tensors)(buffers))
        row["frontend_plan"] = theirs.get_plan_name_at_index(0)
        if EngineChoice.parse(row["frontend_plan"]) != EngineChoice.parse(plans["ours"].tag):
            plans |= _build_plan_by_tag(graph, target, row["frontend_plan"])
    for name, plan in plans.items():
        executable = Executable(plan)
        contenders[name] = executable.bind(**{name: buffers[name] for name in executable.names})
    for name, call, context in make_torch_calls(problem, direction, buffers, ["torch flash"]):
        contenders[name] = make_call_in_context(context, call)
    times = measure_gpu_times(contenders, effort.gpu_rounds)
    row["plans"] = {name: plan.tag for name, plan in plans.items()}
    row["us"] = {name: summarize_microseconds(timing) for name, timing in times.items()}
    row["tflops"] = {name: round(row["flops"] / timing.median_us / 1e6, 1) for name, timing in times.items()}
    return row


def _build_plan_by_tag(graph: Graph, target: Target, tag: str) -> dict[str, Plan]:
    """Return our plan for the engine config that cudnn-frontend chose, under its label; empty if the build fails."""
    try:
        theirs = EngineChoice.parse(tag)
        return {"ours, frontend's plan": build(graph, target, engine=theirs.engine, knobs=theirs.knobs)}
    except CudnnBackendError:
        return {}


def measure_matmul_tflops() -> float:
    """Return the TFLOP/s of a large bfloat16 matrix product of torch."""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    timing = measure_gpu_times({"matmul": lambda: torch.matmul(a, b, out=out)}, 15)["matmul"]
    return round(2.0 * size**3 / timing.median_us / 1e6, 1)


# fresh processes


def measure_times_to_first_result(
    target: Target, frontend_folder: str | None, effort: RepetitionCounts
) -> dict[str, dict[str, float]]:
    """Return milliseconds from a fresh process to its first result, without the import of torch, by mode and step.

    The steps are those of the median run; ``frontend_folder`` None leaves cudnn-frontend out.
    """
    ways = [way for way in FRESH_PROCESS_MODES if frontend_folder is not None or way != "cudnn-frontend"]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        plan, warm = Path(folder) / "ahead.plan", Path(folder) / "warm"
        small = build_attention_graph(SMALL_PROBLEM, "forward", target.library.version, target.sm)
        build(small, target, cache=False).save(plan)
        program, workspace = make_c_program_for_graph(small, lambda: target, ("q", "k", "v", "o", "stats"))
        given = {
            "plan": plan,
            "cudnn-frontend": frontend_folder or "",
            "program": compile_program(program, Path(folder)),
            "library": target.library.path,
            "workspace": workspace,
        }
        options = [f"--{name}={value}" for name, value in given.items()]
        _run_child("disk cache", warm, options)  # fills the plan cache
        for number in range(effort.children):
            for way in rotate_items(ways, number):
                cache = warm if way == "disk cache" else Path(folder) / f"empty {way} {number}"
                runs[way].append(_run_child(way, cache, options))
    return {way: _select_median_run(found) for way, found in runs.items()}


def _select_median_run(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the run with the median total, and the spread of the totals."""
    ordered = sorted(runs, key=lambda run: run["total"])
    figures = ordered[len(ordered) // 2] | {"min": ordered[0]["total"], "max": ordered[-1]["total"]}
    return {name: round(value, 2) for name, value in figures.items()}


def _run_child(way: str, cache: Path, options: Sequence[str]) -> dict[str, float]:
    """Run a fresh process with a plan cache folder, and return its figures."""
    command = make_script_command(FRESH_PROCESS_SCRIPT, FRESH_PROCESS_MODES[way], *options)
    cache.mkdir(exist_ok=True, mode=0o700)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, "CUDNN_BACKEND_PLAN_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CudnnBackendError(f"a fresh process ({way}) failed", code="bench-child", more=done.stderr[-4000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# command line


def run_all_benchmarks(
    output: Path | None = None,
    plot: Path | None = None,
    cudnn_frontend: str | None = None,
    quick: bool = False,
    effort: RepetitionCounts | None = None,
) -> RecordTables:
    """Measure everything, print tables and limits, write the record and a plot, return the record.

    Parameters
    ----------
    output, plot
        Files to write; None writes nothing.
    cudnn_frontend
        Folder with the package ``cudnn`` of cudnn-frontend; None for an installed one.
    quick
        Fewer shapes and rounds: less than a minute on an H100, instead of less than eight.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``, ``no-gpu``, ``matplotlib-missing``.
    """
    console = open_console()
    effort = effort or (QUICK_REPETITIONS if quick else FULL_REPETITIONS)
    torch = load_torch()
    if plot is not None:
        draw_tflops(
            {"gpu": [], "matrix_tflops": 0.0}, plot
        )  # report a missing matplotlib before the measurements, not after them
    torch.zeros(1, device="cuda")
    target = shared_target()
    frontend, said = load_frontend(cudnn_frontend)
    begin = time.perf_counter()
    rows = len(effort.shapes) * len(DIRECTIONS)  # the other steps are calls, ragged batches and processes
    with progress_bar(rows + 3, "host time of calls", still=True) as (step, _):
        host = measure_host_time(target, frontend, effort)
        step(1, "ragged batches")
        ragged = measure_ragged_calls(target, frontend, effort)
        peak = measure_matmul_tflops()
        gpu = measure_gpu_time(target, frontend, effort, lambda done, text: step(2 + done, text))
        step(2 + rows, "fresh processes")
        fresh_processes = measure_times_to_first_result(
            target, None if frontend is None else cudnn_frontend or "", effort
        )
    record: dict[str, Any] = {
        **make_measurement_record_header("bench", ENVIRONMENT_FACTS),
        "quick": quick,
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn-frontend": said,
        "host": host,
        "ragged": ragged,
        "matrix_tflops": peak,
        "gpu": gpu,
        "fresh": fresh_processes,
    }
    record["seconds"] = round(time.perf_counter() - begin, 1)
    record["accepted"] = compare_record_with_limits(record)
    for table in make_all_tables(record):
        console.print(table)
    for line in format_limit_lines(record):
        console.print(line, style="red" if line.startswith("FAIL") else None)
    if output is not None:
        write_record(record, output)
        console.print(f"written to {output}")
    if plot is not None:
        draw_tflops(record, plot)
    return RecordTables(record, make_all_tables)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for a plot, the folder of cudnn-frontend, and a quick run."""
    parser.add_argument("--plot", type=Path, help="file for plots; needs matplotlib")
    parser.add_argument("--cudnn-frontend", metavar="FOLDER", help="folder with the package cudnn of cudnn-frontend")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds; takes less than a minute")


def run(options: argparse.Namespace) -> None:
    """Run all benchmarks, print their tables, and write the record."""
    run_all_benchmarks(options.output, options.plot, options.cudnn_frontend, options.quick)
