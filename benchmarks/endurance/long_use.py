"""Memory growth per verdict, compared with a C loop that makes the same cuDNN calls.

The cuDNN calls of one verdict per graph are recorded, written as a C program, compiled with gcc and replayed in a
separate process with the same libraries and without Python code in the loop. The memory that this loop retains is
cuDNN's; growth of the package beyond it is the package's own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph import Graph, GraphBuilder
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.native import library
from cudnn_backend_py.system.child import make_call_command
from tools.repository import make_child_environment

from ..c_calls import compile_program, record_calls
from ..graphs import make_two_matmuls
from .memory import measure_resources

__all__ = ["add_options", "run"]

TARGET = "sm90"
CHECKPOINTS = 20


def make_graphs_to_judge(build: bool) -> list[Graph]:
    """Return the graphs to judge in turn: a small matmul if plans are built, else a supported and a refused graph."""
    if not build:
        return [sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, implementation="unified"), make_two_matmuls()]
    g = GraphBuilder("matmul", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (2, 64, 64)), g.tensor("b", (2, 64, 64)), name="c", virtual=False)
    return [g.graph()]


def measure_memory(rounds: int, warm: int, run: Callable[[int], None]) -> dict[str, Any]:
    """Call `run` for ``rounds`` rounds, and return the memory in use after the warm-up and at checkpoints."""
    run(warm)
    began = time.perf_counter()
    points = [{"rounds": warm, **measure_resources()}]
    step = max(1, (rounds - warm) // CHECKPOINTS)
    while points[-1]["rounds"] < rounds:
        now = min(step, rounds - points[-1]["rounds"])
        run(now)
        points.append({"rounds": points[-1]["rounds"] + now, **measure_resources()})
    first, last = points[0], points[-1]
    made = last["rounds"] - first["rounds"]
    return {
        "milliseconds_each": round((time.perf_counter() - began) * 1e3 / made, 3),
        "growth_per_round": {key: round((last[key] - first[key]) / made, 4) for key in first if key != "rounds"},
        "first": first,
        "last": last,
        "resident_bytes": [point["resident_bytes"] for point in points],
        "malloc_bytes": [point["malloc_bytes"] for point in points],
    }


def measure_package_memory(rounds: int, warm: int, build: bool) -> dict[str, Any]:
    """Measure the memory in use while the package judges graphs."""
    judged = make_graphs_to_judge(build)

    def run(count: int) -> None:
        for number in range(count):
            explain(judged[number % len(judged)], TARGET, build=build)

    return measure_memory(rounds, warm, run)


# the same calls without the package


_C_REPLAY_TEMPLATE = """
{blocks}
static void (*blocks[])(void) = {{{names}}};
void replay(int64_t rounds) {{ for (int64_t i = 0; i < rounds; i++) blocks[i % {count}](); }}
"""


def record_cudnn_calls_of_verdicts(build: bool) -> tuple[str, dict[str, int]]:
    """Return a C program that makes the cuDNN calls of each graph's verdict, and the number of calls by graph."""
    blocks, counts = [], {}
    with record_calls() as recorder:
        for graph in make_graphs_to_judge(build):
            explain(
                graph, TARGET, build=build
            )  # makes the queries that a process makes only once, so that they are not recorded
            gc.collect()
            recorder.lines = []
            explain(graph, TARGET, build=build)
            gc.collect()
            blocks.append("\n".join(recorder.lines))
            counts[graph.name] = len(recorder.lines)
    names = [f"block{number}" for number in range(len(blocks))]
    bodies = [f"static void {name}(void) {{\n{block}\n}}" for name, block in zip(names, blocks, strict=True)]
    functions = _C_REPLAY_TEMPLATE.format(blocks="\n".join(bodies), names=", ".join(names), count=len(blocks))
    return recorder.make_c_program(functions), counts


def measure_c_loop_memory(rounds: int, warm: int, build: bool) -> dict[str, Any]:
    """Measure the memory in use while a C loop makes the calls that another process recorded."""
    with tempfile.TemporaryDirectory() as folder:
        recorded_file = Path(folder, "recorded.c")
        counts = json.loads(_run_child("--record", str(recorded_file), *(["--build"] if build else [])))
        lib = library()
        program = ctypes.CDLL(str(compile_program(recorded_file.read_text(encoding="utf-8"), Path(folder))))
        program.replay.argtypes = [ctypes.c_int64]
        assert program.load(lib.path.encode()) == 0
        measured = measure_memory(rounds, warm, program.replay)
    return {"calls_of_a_verdict": counts, **measured}


def _run_child(*arguments: str) -> str:
    command = make_call_command("benchmarks.__main__:main", "long-use", *arguments)
    done = subprocess.run(command, env=make_child_environment(), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def compare_memory_of_package_and_c_loop(rounds: int, warm: int, build: bool) -> dict[str, Any]:
    """Run the package's loop and the C loop in separate processes; return both memory growths and the difference."""
    options = [str(rounds), str(warm), *(["--build"] if build else [])]
    package, calls = (json.loads(_run_child("--watch", who, *options)) for who in ("package", "calls"))
    ours = {key: round(value - calls["growth_per_round"][key], 4) for key, value in package["growth_per_round"].items()}
    return {
        **make_measurement_record_header("long-use"),
        "rounds": rounds,
        "warm": warm,
        "package": package,
        "calls": calls,
        "growth_per_round_of_package_beyond_calls": ours,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the number of verdicts, and those that only child processes use."""
    parser.add_argument("--explains", type=int, default=0, help="verdicts without builds")
    parser.add_argument("--builds", type=int, default=0, help="verdicts with builds")
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    """Measure and write the record; keep the parts of an existing record that were not measured."""
    if options.record:
        text, counts = record_cudnn_calls_of_verdicts(options.build)
        options.record.write_text(text, encoding="utf-8")
        print(json.dumps(counts))
        return
    if options.watch:
        who, rounds, warm = options.watch
        print(
            json.dumps(
                {"package": measure_package_memory, "calls": measure_c_loop_memory}[who](
                    int(rounds), int(warm), options.build
                )
            )
        )
        return
    record = (
        json.loads(options.output.read_text(encoding="utf-8")) if options.output and options.output.exists() else {}
    )
    if options.explains:
        record["without_builds"] = compare_memory_of_package_and_c_loop(
            options.explains, min(1000, options.explains // 10), build=False
        )
    if options.builds:
        record["with_builds"] = compare_memory_of_package_and_c_loop(
            options.builds, min(100, options.builds // 10), build=True
        )
    print(write_record(record, options.output))
