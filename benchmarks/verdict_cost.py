"""Median time of a verdict without builds, and of importing the package."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.info import start_record, write_record

__all__ = ["add_options", "run"]

ROUNDS = 30
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
    """Return the times of judging one graph on one target, with loaded libraries and a judged control graph."""
    graph = sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=64 if supported else 20, causal=True, stats=True)
    explain(graph, target)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        verdict = explain(graph, target)
        times.append((time.perf_counter() - start) * 1e3)
        assert verdict.supported is supported
    return times


def add_options(_: argparse.ArgumentParser) -> None:
    """Add no options."""


def run(options: argparse.Namespace) -> None:
    """Measure and write."""
    numpy_ms, ours_ms = measure_import_ms("numpy"), measure_import_ms("numpy, cudnn_backend_py")
    verdicts = {}
    for target in TARGETS:
        for supported in (True, False):
            times = measure_verdict_ms(target, supported=supported)
            name = f"flash forward, {'supported' if supported else 'refused'}, {target}"
            verdicts[name] = {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
    record = {
        **start_record("verdict-cost"),
        "import_numpy_ms": round(numpy_ms, 1),
        "import_with_package_ms": round(ours_ms, 1),
        "rounds": ROUNDS,
        "explain_without_build_ms": verdicts,
        "explain_median_of_all_ms": round(statistics.median(v["median"] for v in verdicts.values()), 2),
    }
    print(write_record(record, options.output))
