"""Median time of a verdict without builds, of ``explain`` in a fresh process, and of importing the package."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cudnn_backend_py import load_graph, save_graph
from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.info import make_measurement_record_header, write_record

from . import bare_calls

__all__ = ["add_options", "run"]

ROUNDS = 30
PROCESSES = 15  # of each way
TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120")


def measure_import_ms(module: str) -> float:
    """Return the median time of importing a module in a fresh interpreter."""
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(15)
    ]
    return statistics.median(runs)


def measure_verdict_ms(target: str, *, supported: bool) -> list[float]:
    """Return the times (ms) of judging one graph, after a first verdict that loads cuDNN and checks the environment."""
    graph = sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=64 if supported else 20, causal=True, stats=True)
    explain(graph, target)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        verdict = explain(graph, target)
        times.append((time.perf_counter() - start) * 1e3)
        assert verdict.supported is supported
    return times


def write_cudnn_calls_of_verdict(graph: str, target: str, calls: str) -> None:
    """Write the cuDNN calls of a verdict to a file; the process must not have loaded cuDNN before."""
    Path(calls).write_text(json.dumps(bare_calls.record_calls(load_graph(graph), target)), encoding="utf-8")


def measure_verdict_processes_ms(target: str) -> dict[str, list[float]]:
    """Return the milliseconds of processes that judge a graph: by bare calls, and by ``explain``."""
    with tempfile.TemporaryDirectory() as folder:
        graph, calls = f"{folder}/graph.json", f"{folder}/calls.json"
        save_graph(sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=64, causal=True, stats=True), graph)
        code = (
            f"from {__name__} import write_cudnn_calls_of_verdict; "
            f"write_cudnn_calls_of_verdict({graph!r}, {target!r}, {calls!r})"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        explained = ["-m", "cudnn_backend_py", "explain", graph, "--target", target]
        ways = {"bare calls": [bare_calls.__file__, calls], "explain --here": [*explained, "--here"]}
        ways["explain"] = explained
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(PROCESSES):
            for name, arguments in ways.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def add_options(_: argparse.ArgumentParser) -> None:
    """Add no command-line options, as this benchmark has none."""


def run(options: argparse.Namespace) -> None:
    """Measure the times of imports, verdicts and processes, and write the record."""
    numpy_ms, ours_ms = measure_import_ms("numpy"), measure_import_ms("numpy, cudnn_backend_py")
    verdicts = {}
    for target in TARGETS:
        for supported in (True, False):
            times = measure_verdict_ms(target, supported=supported)
            name = f"flash forward, {'supported' if supported else 'refused'}, {target}"
            verdicts[name] = {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
    processes = measure_verdict_processes_ms("sm90")
    record = {
        **make_measurement_record_header("verdict-cost"),
        "import_numpy_ms": round(numpy_ms, 1),
        "import_with_package_ms": round(ours_ms, 1),
        "rounds": ROUNDS,
        "explain_without_build_ms": verdicts,
        "fresh_processes_ms": {
            name: {"min": round(min(times), 1), "median": round(statistics.median(times), 1)}
            for name, times in processes.items()
        },
        "explain_median_of_all_ms": round(statistics.median(v["median"] for v in verdicts.values()), 2),
    }
    print(write_record(record, options.output))
