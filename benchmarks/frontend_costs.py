"""Host time of this package's module with cudnn-frontend's API, compared with cudnn-frontend: execute, first result.

Execute is timed in one process with both modules, which alternate. First results are timed in fresh processes, which
alternate as well: before the clock starts, PyTorch is imported, has used the GPU and has allocated the buffers, so that
only steps of the module count: import, handle, graph, plan, launch. Neither module has plans cached on disk. A first
run of each reads the files and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cudnn_backend_py import frontend as our_frontend
from cudnn_backend_py.cli.compare.contenders import make_buffers
from cudnn_backend_py.cli.compare.problems import DIRECTIONS, Direction, format_attention_problem
from cudnn_backend_py.cli.compare.timing import measure_host_times, summarize_microseconds
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.execution.timing import make_repeated_batch, rotate_items
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.terminal import open_console

from .contenders import FrontendContender, load_frontend, make_batch_with_new_arguments
from .problems import SMALL_PROBLEM

__all__ = ["add_options", "run"]

BATCHES, CALLS = 43, 100
FRESH_PROCESS_SCRIPT = Path(__file__).with_name("fresh_process.py")
MODES = ("our-frontend", "cudnn-frontend")
#: The largest accepted ratio of our cost to cudnn-frontend's.
RATIO_LIMITS = {"same": 0.7, "fresh": 0.8, "first result": 0.6}


def measure_execute_times(theirs: FrontendContender, direction: Direction) -> dict[str, dict[str, float]]:
    """Return the host microseconds of ``execute`` for cudnn-frontend and our module, with reused and new buffers."""
    import torch

    sets = make_buffers(SMALL_PROBLEM, direction, BATCHES * CALLS)
    contenders, results = {}, []
    for name, module in {"ours": FrontendContender(our_frontend), "theirs": theirs}.items():
        graph, tensors = module.build(SMALL_PROBLEM, direction)
        arguments = module.call(graph, tensors)
        graph.execute(*arguments(sets[0]))
        torch.cuda.synchronize()
        results.append([sets[0][item].clone() for item in (("o", "stats") if direction == "forward" else ("dq", "dk"))])
        contenders[f"{name}, same"] = make_repeated_batch(partial(graph.execute, *arguments(sets[0])))
        contenders[f"{name}, fresh"] = make_batch_with_new_arguments(graph.execute, [arguments(one) for one in sets])
    torch.testing.assert_close(*results)
    return {
        name: summarize_microseconds(timing) for name, timing in measure_host_times(contenders, BATCHES, CALLS).items()
    }


def measure_times_to_first_result(folder: str | None, count: int) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the medians so far of the time (ms) from import to first result, for cudnn-frontend and our module.

    The result has the median of each step, and all totals.
    """
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in MODES}
    for number in range(-1, count):  # the first run of each module reads files and is not counted
        for way in rotate_items(list(MODES), number):
            figures = _run_fresh_process(way, folder)
            if number >= 0:
                runs[way].append(figures)
        if number >= 0:
            yield _compute_medians(runs)


def _compute_medians(runs: Mapping[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    return {
        way: {
            **{step: round(statistics.median(run[step] for run in found), 2) for step in found[0]},
            "totals": sorted(round(run["total"], 2) for run in found),
        }
        for way, found in runs.items()
    }


def _run_fresh_process(way: str, folder: str | None) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # The script is found by its path, so that neither module is imported before the clock starts.
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FRESH_PROCESS_SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-P", str(FRESH_PROCESS_SCRIPT), way, "--cudnn-frontend", folder or ""]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CudnnBackendError(f"a fresh process ({way}) failed", code="bench-child", more=done.stderr[-4000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compute_cost_ratios(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the ratios of our costs to cudnn-frontend's, by measurement."""
    found = {}
    for direction in DIRECTIONS:
        times = record.get("execute_us", {}).get(direction, {})
        for kind in ("same", "fresh"):
            if times:
                part = times[f"ours, {kind}"]["median_us"] / times[f"theirs, {kind}"]["median_us"]
                found[f"{direction}, {kind}"] = round(part, 3)
    if "first_result_ms" in record:
        ours, theirs = (record["first_result_ms"][way]["total"] for way in MODES)
        found["first result"] = round(ours / theirs, 3)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the folder of cudnn-frontend and the number of processes."""
    parser.add_argument("--cudnn-frontend", metavar="FOLDER", help="folder with the package cudnn of cudnn-frontend")
    parser.add_argument("--children", type=int, default=9, help="number of fresh processes per module; may be 0")


def run(options: argparse.Namespace) -> None:
    """Measure, print each ratio next to its limit, and write the record."""
    import torch

    console = open_console()
    theirs, said = load_frontend(options.cudnn_frontend)
    if theirs is None:
        raise CudnnBackendError(f"cudnn-frontend: {said}", code="bench-frontend", fix="--cudnn-frontend FOLDER")
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "bench-frontend", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "cudnn-frontend": said,
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "problem": format_attention_problem(SMALL_PROBLEM),
        "limits": RATIO_LIMITS,
    }
    record["execute_us"] = {direction: measure_execute_times(theirs, direction) for direction in DIRECTIONS}
    record["ratios"] = compute_cost_ratios(record)
    if options.output is not None:
        write_record(record, options.output)
    for figures in measure_times_to_first_result(options.cudnn_frontend, options.children) if options.children else ():
        record["fresh processes"] = {"each": len(figures[MODES[0]]["totals"]), "plan cache on disk": "neither has one"}
        record["first_result_ms"] = figures
        record["ratios"] = compute_cost_ratios(record)
        if options.output is not None:
            write_record(record, options.output)
    for name, part in record["ratios"].items():
        limit = RATIO_LIMITS[name.partition(", ")[2] or name]
        word = "PASS" if part <= limit else "FAIL"
        console.print(f"{word} {name}: {part} of cudnn-frontend's, limit {limit}")
    print(write_record(record, options.output), file=sys.stderr if options.output else sys.stdout)
