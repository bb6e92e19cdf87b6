"""What a verdict costs, and what importing the package costs: medians, written as JSON.

python benchmarks/verdict_cost.py --output logs/verdict-cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from cudnn_backend_py import explain, library
from cudnn_backend_py.graph.attention import sdpa_forward

ROUNDS = 30
TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120")


def import_ms(module: str) -> float:
    """Return the median time of importing a module in a fresh interpreter, start-up not counted."""
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(15)
    ]
    return statistics.median(runs)


def verdict_ms(target: str, *, supported: bool) -> list[float]:
    """Return the times of explaining one graph on one target, libraries loaded and the control graph asked."""
    graph = sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=64 if supported else 20, causal=True, stats=True)
    explain(graph, target)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        verdict = explain(graph, target)
        times.append((time.perf_counter() - start) * 1e3)
        assert verdict.supported is supported
    return times


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    numpy_ms, ours_ms = import_ms("numpy"), import_ms("numpy, cudnn_backend_py")
    verdicts = {}
    for target in TARGETS:
        for supported in (True, False):
            times = verdict_ms(target, supported=supported)
            name = f"flash forward, {'supported' if supported else 'refused'}, {target}"
            verdicts[name] = {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
    record = {
        "schema": "cudnn-backend-py/benchmark",
        "cudnn": library().version_text,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "import_numpy_ms": round(numpy_ms, 1),
        "import_with_package_ms": round(ours_ms, 1),
        "rounds": ROUNDS,
        "explain_without_build_ms": verdicts,
        "explain_median_of_all_ms": round(statistics.median(v["median"] for v in verdicts.values()), 2),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
