"""Check that equal attention calls give bitwise equal results, with calls of other shapes in between.

Problems are drawn from the parameters of flash-attn's tests. Each has two calls: a forward pass with default options,
and a forward and backward pass with ``deterministic``. Every result is compared bit by bit with the first one, on the
GPU. Some problems are also called with ``shapes="adaptive"``, and timed with both shape policies.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.contenders import prepare_torch_operators, wait_for_background_plans
from cudnn_backend_py.cli.compare.timing import (
    KEEP_BUSY_US,
    measure_gpu_times,
    measure_host_times,
    summarize_microseconds,
)
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.execution.any_shape import Shapes
from cudnn_backend_py.execution.timing import make_repeated_batch
from cudnn_backend_py.info import make_measurement_record_header, write_record

from .judge import MeasuredValueLimit, compare_record_with_limits, format_limit_lines

__all__ = ["ACCEPTANCE_LIMITS", "AttentionProblem", "BitComparison", "add_options", "make_random_problems", "run"]

# Parameters of flash-attn's tests: lengths of queries and keys, head dims, dropout.
LENGTHS = (
    *((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512)),
    *((512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)),
)
HEAD_DIMS = (32, 40, 59, 64, 80, 96, 111, 128)
DROPOUT = 0.17
BATCH, HEADS = 60, 4
MAX_TOKENS = 32768  # largest total of all sequences
PROBLEMS_PER_GROUP = 20  # problems that are called in turns
THREAD_COUNT = 8


@dataclass(frozen=True)
class AttentionProblem:
    """An attention problem; `left_bound` is the size of a sliding window, `packed` stores sequences without padding."""

    batch: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool = False
    left_bound: int | None = None
    dropout: float = 0.0
    bfloat16: bool = False
    packed: bool = False

    def __str__(self) -> str:
        options = [
            *(["causal"] if self.causal else []),
            *([f"window {self.left_bound}"] if self.left_bound else []),
            *([f"dropout {self.dropout}"] if self.dropout else []),
            *(["bf16"] if self.bfloat16 else []),
            *(["packed"] if self.packed else []),
        ]
        sizes = f"b{self.batch} h{HEADS}/{self.kv_heads} s{self.seq_q}x{self.seq_kv} d{self.head_dim}"
        return " ".join((sizes, *options))

    def make_smaller_and_larger_problems(self) -> list[AttentionProblem]:
        """Return the problem with smaller and with larger sizes, which other plans (of other shape classes) serve."""
        few, many = max(1, self.batch // 4), self.batch
        smaller = replace(self, batch=few, seq_q=max(1, self.seq_q // 3), seq_kv=max(1, self.seq_kv // 3))
        return [smaller, replace(self, batch=many, seq_q=self.seq_q * 2, seq_kv=self.seq_kv * 2)]


def make_random_problems(count: int, seed: int = 0) -> list[AttentionProblem]:
    """Return distinct random attention problems."""
    rng = random.Random(seed)
    found: dict[AttentionProblem, None] = {}
    while len(found) < count:
        seq_q, seq_kv = rng.choice(LENGTHS)
        causal = rng.random() < 0.5
        batch = min(BATCH, MAX_TOKENS // max(seq_q, seq_kv))
        found[
            AttentionProblem(
                *(batch, rng.choice((HEADS, HEADS, 2, 1)), seq_q, seq_kv, rng.choice(HEAD_DIMS), causal),
                left_bound=rng.choice((None, None, 60)) if causal else None,
                dropout=DROPOUT if rng.random() < 0.2 else 0.0,
                bfloat16=rng.random() < 0.3,
                packed=rng.random() < 0.3,
            )
        ] = None
    return list(found)


class _AttentionProblemCalls:
    """Calls of one problem, with tensors of its own."""

    def __init__(self, problem: AttentionProblem, shapes: Shapes | None = None) -> None:
        import torch

        self._problem, p = problem, problem
        kind = torch.bfloat16 if p.bfloat16 else torch.half
        sides = ((HEADS, p.seq_q), (p.kv_heads, p.seq_kv), (p.kv_heads, p.seq_kv), (HEADS, p.seq_q))
        made = []
        for heads, seq in sides:
            dims = (p.batch * seq, heads, p.head_dim) if p.packed else (p.batch, seq, heads, p.head_dim)
            x = torch.randn(dims, device="cuda", dtype=kind)
            made.append(x if p.packed else x.transpose(1, 2))
        *self.inputs, self._d_o = made
        self._options: dict[str, Any] = {
            "causal": p.causal,
            "left_bound": p.left_bound,
            "alignment": "bottom_right",
            "dropout": p.dropout,
            "shapes": shapes,
        }
        self._starts = [
            torch.arange(0, (p.batch + 1) * seq, seq, device="cuda", dtype=torch.int32) for seq in (p.seq_q, p.seq_kv)
        ]

    def attend(self, inputs: Sequence[Any], **options: Any) -> Any:
        """Return the result of the operator."""
        import torch

        p, (q, k, v), (starts_q, starts_k) = self._problem, inputs, self._starts
        options = self._options | options
        if p.dropout:
            torch.manual_seed(42)
        if p.packed:
            return torch_ops.attention_varlen(q, k, v, starts_q, starts_k, p.seq_q, p.seq_kv, **options)
        return torch_ops.attention(q, k, v, **options)

    def forward(self) -> tuple[Any, ...]:
        """Return the output of the forward pass."""
        return (self.attend(self.inputs),)

    def train(self) -> tuple[Any, ...]:
        """Return the output and gradients of a forward and backward pass with `deterministic`."""
        import torch

        inputs = [x.detach().requires_grad_(True) for x in self.inputs]
        o = self.attend(inputs, deterministic=True)
        return (o.detach(), *torch.autograd.grad(o, inputs, self._d_o))


class BitComparison:
    """Compares each result of a call with the first result; `changed` counts calls with different bits.

    Attributes
    ----------
    calls
        Number of calls made.
    """

    def __init__(self, call: Callable[[], tuple[Any, ...]]) -> None:
        import torch

        self._call, self.calls = call, 1
        self._first = tuple(x.clone() for x in call())
        self._changed = torch.zeros((), device="cuda", dtype=torch.int64)

    def __call__(self) -> None:
        """Make the call once more, and compare on the GPU."""
        import torch

        found = [
            (x.view(torch.int16) != first.view(torch.int16)).any()
            for x, first in zip(self._call(), self._first, strict=True)
        ]
        self._changed += torch.stack(found).any()
        self.calls += 1

    @property
    def count_changed_calls(self) -> int:
        """Return the number of calls with different bits, after waiting for the GPU."""
        return int(self._changed)


def _build_plans_ahead(problems: Iterable[AttentionProblem], shapes: Shapes | None) -> None:
    """Build the plans of all forward passes in several threads."""

    def build(problem: AttentionProblem) -> None:
        import torch

        with suppress(CudnnBackendError), torch.cuda.stream(torch.cuda.Stream()):
            calls = _AttentionProblemCalls(problem, shapes)
            calls.forward()
            if not problem.dropout:
                with torch.no_grad():
                    calls.attend(calls.inputs, deterministic=True, return_stats=True)
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(min(THREAD_COUNT, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(build, problems))


def compare_group_of_problems(
    problems: Sequence[AttentionProblem], calls: int, shapes: Shapes | None = None, seed: int = 0
) -> tuple[list[dict[str, Any]], list[str]]:
    """Call each problem repeatedly, with other shapes in between; return counts of changed bits, and refused calls.

    Returns
    -------
    tuple
        A row for each problem with the number of calls with bits other than the first; and refused calls with reasons.
    """
    rng = random.Random(seed)
    if shapes != "adaptive":  # "adaptive" would use existing larger classes or exact plans for these calls
        _build_plans_ahead(
            [other for problem in problems for other in (problem, *problem.make_smaller_and_larger_problems())], shapes
        )
    rows, refused, checks, others = [], [], [], []
    for problem in problems:
        own = _AttentionProblemCalls(problem, shapes)
        row: dict[str, Any] = {"problem": str(problem)}
        for name, call in (("forward", own.forward), ("training", own.train)):
            try:
                check = BitComparison(call)
            except CudnnBackendError as error:
                refused.append(f"{problem}, {name}: {str(error).splitlines()[0]}")
                continue
            checks.append((row, name, check))
        rows.append(row)
        for other in problem.make_smaller_and_larger_problems():
            neighbour = _AttentionProblemCalls(other, shapes)
            with suppress(CudnnBackendError):
                neighbour.forward()
                others.append(neighbour.forward)
    for _ in range(calls - 1):
        for _, _, check in checks:
            check()
            if others and rng.random() < 0.2:
                rng.choice(others)()
    for row, name, check in checks:
        row[name] = {"calls": check.calls, "changed": check.count_changed_calls}
    return rows, refused


def time_shape_policies(problem: AttentionProblem, rounds: int) -> dict[str, Any]:
    """Return microseconds of a forward pass by a plan for a class of shapes ("any") and by an exact one."""
    compared: tuple[Shapes, ...] = ("any", "adaptive")
    calls: dict[str, Callable[[], Any]] = {
        shapes: _AttentionProblemCalls(problem, shapes).forward for shapes in compared
    }
    for call in calls.values():
        wait_for_background_plans(call)
    on_gpu = measure_gpu_times(calls, rounds, ahead_us=KEEP_BUSY_US)
    on_host = measure_host_times({name: make_repeated_batch(call) for name, call in calls.items()}, rounds, 20)
    return {
        "problem": str(problem),
        "gpu": {name: summarize_microseconds(timing) for name, timing in on_gpu.items()},
        "host": {name: summarize_microseconds(timing) for name, timing in on_host.items()},
    }


def _count_problems_with_changed_bits(
    record: Mapping[str, Any], name: str, *, single_rows: bool = False
) -> float | None:
    """Return the number of problems with changed bits; of those with one query if `single_rows`, else of the others."""
    rows = [row for row in record["rows"] if name in row and (" s1x" in row["problem"]) == single_rows]
    return float(sum(bool(row[name]["changed"]) for row in rows)) if rows else None


ACCEPTANCE_LIMITS = (
    MeasuredValueLimit(
        "problems whose bits changed, forward", 0, partial(_count_problems_with_changed_bits, name="forward")
    ),
    MeasuredValueLimit(
        "problems whose bits changed, deterministic training",
        0,
        partial(_count_problems_with_changed_bits, name="training"),
    ),
    MeasuredValueLimit(
        "problems of single queries whose bits changed, deterministic training",
        0,
        partial(_count_problems_with_changed_bits, name="training", single_rows=True),
    ),
)


def _summarize_changed_bits_and_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return counts of changed bits, and median time ratios of plans for a class of shapes ("any") to exact ones."""
    ratios = {where: _compute_median_time_ratio_of_policies(record["times"], where) for where in ("gpu", "host")}
    return {
        "problems": len(record["rows"]),
        "calls": sum(row[name]["calls"] for row in record["rows"] for name in ("forward", "training") if name in row),
        "changed": sum(_has_changed_bits(row) for row in record["rows"]),
        "single queries changed by default": _count_problems_with_changed_bits(record, "forward", single_rows=True),
        "adaptive, problems": len(record["adaptive"]),
        "adaptive, changed": sum(_has_changed_bits(row) for row in record["adaptive"]),
        "any / adaptive, median": ratios,
    }


def _compute_median_time_ratio_of_policies(times: Sequence[Mapping[str, Any]], where: str) -> float | None:
    found = [row[where]["any"]["median_us"] / row[where]["adaptive"]["median_us"] for row in times]
    return round(float(np.median(found)), 3) if found else None


def _has_changed_bits(row: Mapping[str, Any]) -> bool:
    return any(row[name]["changed"] for name in ("forward", "training") if name in row)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the numbers of problems and calls, and the time limit."""
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--calls", type=int, default=250, help="number of calls of each problem")
    parser.add_argument(
        "--adaptive", type=int, default=20, help='number of problems also called and timed with shapes="adaptive"'
    )
    parser.add_argument("--rounds", type=int, default=9, help="number of timings of each call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=float, default=480.0, help="seconds after which no further group of problems is started"
    )


def run(options: argparse.Namespace) -> None:
    """Compare the bits of repeated calls, print pass or fail lines, and write the record."""
    import torch

    extension = prepare_torch_operators()
    begin = time.perf_counter()
    problems = make_random_problems(options.problems, options.seed)
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "same-bits", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "extension": extension,
        "rows": [],
        "refused": [],
        "adaptive": [],
        "times": [],
    }
    some = problems[: options.adaptive]
    for first in range(0, len(some), PROBLEMS_PER_GROUP):
        rows, _ = compare_group_of_problems(
            some[first : first + PROBLEMS_PER_GROUP], min(options.calls, 50), "adaptive"
        )
        record["adaptive"] += rows
    for problem in some:
        if not problem.dropout:
            with suppress(CudnnBackendError):
                record["times"].append(time_shape_policies(problem, options.rounds))
    torch_ops.clear_plans()
    for first in range(0, len(problems), PROBLEMS_PER_GROUP):
        if time.perf_counter() - begin > options.limit:
            break
        rows, refused = compare_group_of_problems(
            problems[first : first + PROBLEMS_PER_GROUP], options.calls, seed=first
        )
        record["rows"] += rows
        record["refused"] += refused
        print(f"{len(record['rows'])} problems in {time.perf_counter() - begin:.0f} s", flush=True)
    record["seconds"] = round(time.perf_counter() - begin, 1)
    record["summary"] = _summarize_changed_bits_and_times(record)
    record["accepted"] = compare_record_with_limits(record, ACCEPTANCE_LIMITS)
    for name, value in record["summary"].items():
        print(f"{name}: {value}")
    for line in format_limit_lines(record):
        print(line)
    write_record(record, options.output)
