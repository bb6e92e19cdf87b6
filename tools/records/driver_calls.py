"""CUDA driver calls that cuDNN makes on a GPU: ``python -m tools.records.driver_calls FILE`` (needs a C compiler).

The file has a line for each call, below a heading for each step of cuDNN; see ``tools/driver_trace.c``. The graphs are
the first of each family of ``cudnn-backend target verify``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from tools.repository import ROOT, make_child_environment

_TRACE_FILE_VARIABLE = "DRIVER_TRACE"


def trace_driver_calls(file: Path) -> int:
    """Build the graphs in a child process that writes its driver calls to a file; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "driver_trace.so"
        source = ROOT / "tools" / "driver_trace.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        environment = make_child_environment() | {
            _TRACE_FILE_VARIABLE: str(file.absolute()),
            "LD_PRELOAD": str(library),
        }
        return subprocess.run([sys.executable, "-m", __spec__.name], env=environment, check=False).returncode


def build_one_plan_per_graph_family() -> None:
    """Judge one graph of each family on this process's GPU, and build its plan."""
    from cudnn_backend_py import CudnnBackendError, OperationGraph, build_plan, open_target
    from cudnn_backend_py.verification.graphs import FAMILIES, make_verification_graphs

    def record_call(text: str) -> None:
        with Path(os.environ[_TRACE_FILE_VARIABLE]).open("a") as file:
            file.write(f"## {text}\n")

    record_call("load and handle")
    with closing(open_target()) as target:
        for case in make_verification_graphs()[: len(FAMILIES)]:
            with suppress(CudnnBackendError):
                record_call(f"{case.name}: operation graph")
                question = OperationGraph(case.graph, target)
                for mode in ("A", "FALLBACK"):
                    record_call(f"{case.name}: heuristics {mode}")
                    configs = question.heuristics(mode).configs
                    record_call(f"{case.name}: {len(configs)} configs; plan of the first")
                    if configs:
                        build_plan(configs[0]).close()
    record_call("end")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(trace_driver_calls(Path(sys.argv[1])))
    build_one_plan_per_graph_family()
