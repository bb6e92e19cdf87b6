"""Time to judge a support matrix: 12 graphs, 7 targets and 12 cuDNN versions, without building plans.

Then a child process that judges the same matrix is killed half way, and the matrix is resumed. Finally a graph that
crashes many cuDNN versions is judged together with a supported graph.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cudnn_backend_py.diagnose.surveys.inputs import available_versions
from cudnn_backend_py.diagnose.surveys.matrix import Matrix, matrix
from cudnn_backend_py.generated.enums import DataType, PointwiseMode
from cudnn_backend_py.graph import Graph, GraphBuilder
from cudnn_backend_py.graph.attention import Attention, sdpa_backward, sdpa_forward
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.system.child import make_call_command, poll_process
from tools.repository import make_child_environment

from .graphs import make_two_matmuls

__all__ = ["add_options", "run"]

TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")
ATTENTION_SIZES = {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 64}


def make_attention_forward(**options: object) -> Graph:
    """Return an attention forward graph with these options."""
    return sdpa_forward(Attention(**{**ATTENTION_SIZES, **options}))  # type: ignore[arg-type]


def make_attention_backward(**options: object) -> Graph:
    """Return an attention backward graph with these options."""
    return sdpa_backward(Attention(**{**ATTENTION_SIZES, **options}))  # type: ignore[arg-type]


def make_linear_layer(data_type: DataType) -> Graph:
    """Return a matmul with a bias and a ReLU."""
    g = GraphBuilder("linear", io_type=data_type)
    product = g.matmul(g.tensor("x", (4, 256, 512)), g.tensor("w", (4, 512, 128)))
    biased = g.pointwise(PointwiseMode.ADD, product, g.tensor("bias", (4, 1, 128)))
    g.pointwise(PointwiseMode.RELU_FWD, biased, name="y", virtual=False)
    return g.graph()


def make_graphs_of_matrix_benchmark() -> dict[str, Graph]:
    """Return the twelve graphs of the matrix by name."""
    return {
        "forward, causal": make_attention_forward(causal=True, stats=True),
        "forward, bfloat16, d 128": make_attention_forward(data_type=DataType.BFLOAT16, head_dim=128, stats=True),
        "forward, d 20": make_attention_forward(head_dim=20),
        "forward, d 256": make_attention_forward(head_dim=256),
        "forward, padding, window": make_attention_forward(padding=True, causal=True, left_bound=64),
        "forward, grouped heads, bias": make_attention_forward(kv_heads=2, bias=(1, 4, 512, 512)),
        "forward, paged": make_attention_forward(padding=True, page_size=64),
        "backward, causal": make_attention_backward(causal=True),
        "backward, dropout, d 128": make_attention_backward(dropout=0.1, head_dim=128),
        "two matrix products": make_two_matmuls(),
        "linear, float16": make_linear_layer(DataType.HALF),
        "linear, float32": make_linear_layer(DataType.FLOAT),
    }


def judge_missing_matrix_cells(targets: Sequence[str], versions: Sequence[str], cache: Path) -> Matrix:
    """Judge the cells of the matrix that have no stored answer in the folder ``cache``."""
    return matrix(make_graphs_of_matrix_benchmark(), targets, versions, cache=cache, progress=sys.stderr.isatty())


def measure_cpu_seconds() -> float:
    """Return the CPU time of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def count_cached_verdicts(cache: Path) -> int:
    """Return the number of verdicts stored in a cache folder."""
    return sum(1 for _ in cache.glob("*.answer"))


def measure_killed_and_resumed_run(
    targets: Sequence[str], versions: Sequence[str], total: int
) -> dict[str, int | float]:
    """Kill a child process when half of the cells are answered, resume, and count cells that were answered twice."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        options = ["--targets", *targets, "--versions", *versions, "--into", folder]
        command = make_call_command("benchmarks.__main__:main", "matrix", *options)
        child = subprocess.Popen(command, env=make_child_environment())
        while poll_process(child) is None and count_cached_verdicts(cache) < total // 2:
            time.sleep(0.02)
        child.kill()
        child.wait()
        before = count_cached_verdicts(cache)
        start = time.perf_counter()
        resumed = judge_missing_matrix_cells(targets, versions, cache)
        seconds = time.perf_counter() - start
        again = judge_missing_matrix_cells(targets, versions, cache)
        return {
            "answers_when_killed": before,
            "asked_when_resumed": resumed.judged_count,
            "answered_twice": before + resumed.judged_count - total,
            "asked_the_third_time": again.judged_count,
            "seconds_of_the_rest": round(seconds, 1),
        }


def judge_crashing_and_plain_graph(versions: Sequence[str]) -> dict[str, object]:
    """Judge a graph that crashes many cuDNN versions together with a supported one."""
    inner_stride = Attention(
        batch=2, heads=4, seq_q=512, head_dim=64, layout={"dv": (4 * 512 * 128, 512 * 128, 128, 2)}
    )
    graphs = {
        "crashes": sdpa_backward(inner_stride, allow_hazards=True),
        "plain": make_graphs_of_matrix_benchmark()["forward, causal"],
    }
    with tempfile.TemporaryDirectory() as folder:
        answered = matrix(graphs, ("sm80", "sm90"), versions, cache=Path(folder), progress=False)
    return {name: dict(count_matrix_outcomes(answered, name)) for name in graphs}


def count_matrix_outcomes(answered: Matrix, graph: str | None = None) -> Counter[str]:
    """Count the verdicts of a matrix, or of one graph in it, by outcome letter (as printed in the matrix)."""
    return Counter(cell.letter for (name, _, _), cell in answered.cells.items() if graph in (None, name))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for versions, targets and repetitions."""
    parser.add_argument("--versions", nargs="+", help="cuDNN versions; by default the twelve newest available")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # only judge, and store the answers in this folder


def run(options: argparse.Namespace) -> None:
    """Measure the time to judge the matrix, and write the record."""
    targets, versions = options.targets, options.versions or available_versions()[-12:]
    if options.into is not None:
        judge_missing_matrix_cells(targets, versions, options.into)
        return
    seconds, cpu_seconds = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            start, cpu = time.perf_counter(), measure_cpu_seconds()
            answered = judge_missing_matrix_cells(targets, versions, Path(folder))
            seconds.append(round(time.perf_counter() - start, 1))
            cpu_seconds.append(round(measure_cpu_seconds() - cpu, 1))
    total = len(answered.cells)
    record = {
        **make_measurement_record_header("matrix"),
        "load_1min_at_end": round(os.getloadavg()[0], 1),
        "versions": versions,
        "targets": targets,
        "graphs": list(answered.graphs),
        "questions": total,
        "letters": dict(count_matrix_outcomes(answered)),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "cpu_ms_per_question": round(min(cpu_seconds) / total * 1e3, 1),
        "killed_half_way": measure_killed_and_resumed_run(targets, versions, total),
        "with_a_crashing_graph": judge_crashing_and_plain_graph(versions),
    }
    print(write_record(record, options.output))
