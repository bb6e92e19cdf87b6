"""GPU time of plans for a class of shapes, compared with plans for one shape.

Plans for a class are called with ``shapes="any"``. The row "any" repeats one shape, as the layers of a model do; "any,
another" alternates shapes, so that the kernel that prepares lengths runs at each call. Exact plans are built first, in
threads. The plan of a shape's class is built before the shape is timed; otherwise a larger class would be used.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np

from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.contenders import make_buffers, prepare_backward_call, prepare_torch_operators
from cudnn_backend_py.cli.compare.problems import DIRECTIONS, Direction, build_attention_graph, format_attention_problem
from cudnn_backend_py.cli.compare.timing import KEEP_BUSY_US, measure_gpu_times, summarize_microseconds
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.execution.any_shape import Shapes
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.execution.plan_pool import get_shared_pool
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.graph.attention.shape_class import choose_shape_class_bounds
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.plans.build import shared_target
from cudnn_backend_py.plans.engine import OperationGraph
from cudnn_backend_py.plans.plan import Plan, build_plan

from .contenders import compute_forward_outputs
from .judge import MeasuredValueLimit, compare_record_with_limits, format_limit_lines

__all__ = ["ACCEPTANCE_LIMITS", "add_options", "make_random_shapes", "run"]

# heads, heads of K and V, head dim, causal
HEAD_CONFIGURATIONS = ((16, 16, 64, True), (16, 4, 128, True))
MAX_TOKENS = 32768
CALLS_BEFORE_EXACT_PLAN = 10  # calls of a shape until the exact plan replaces the class
SHAPES_PER_GROUP = 5  # number of shapes that are repeated in turn
BACKGROUND_BUILD_LIMIT_S = 20.0  # time limit for a plan that is built in the background


def make_random_shapes(count: int, seed: int = 0) -> list[Attention]:
    """Return distinct random shapes: lengths and batch sizes are uniform on a logarithmic scale."""
    rng = random.Random(seed)
    shapes: dict[Attention, None] = {}
    while len(shapes) < count:
        seq = round(math.exp(rng.uniform(math.log(64), math.log(8192))))
        batch = round(math.exp(rng.uniform(0, math.log(max(1, min(64, MAX_TOKENS // seq))))))
        heads, kv_heads, head_dim, causal = rng.choice(HEAD_CONFIGURATIONS)
        size: dict[str, Any] = {
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "seq_q": seq,
            "head_dim": head_dim,
        }
        shapes[Attention(**size, causal=causal, data_type=DataType.BFLOAT16)] = None
    return list(shapes)


def _sort_shapes_by_class(shapes: list[Attention], first: int) -> list[Attention]:
    """Return the shapes, from index ``first`` on grouped by the class that one plan serves, so each is built once."""

    def make_shape_class_key(shape: Attention) -> tuple[Any, ...]:
        return shape.kv_heads, choose_shape_class_bounds(shape.batch, shape.seq_q, shape.seq_q)

    return shapes[:first] + sorted(shapes[first:], key=make_shape_class_key)


def _build_exact_plans(shapes: list[Attention]) -> dict[tuple[Attention, Direction], Plan]:
    target = shared_target()

    def build_one(problem: tuple[Attention, Direction]) -> Plan:
        graph = build_attention_graph(*problem, target.library.version, target.sm)
        return build_plan(OperationGraph(graph, target).heuristics().configs[0])

    problems = [(shape, direction) for shape in shapes for direction in DIRECTIONS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(problems, pool.map(build_one, problems), strict=True))


def _make_operator_call(
    shape: Attention, direction: Direction, buffers: Mapping[str, Any], shapes: Shapes
) -> Callable[[], Any]:
    """Return a function that calls the operator, or its backward pass."""
    if direction == "forward":
        q, k, v = (buffers[name] for name in "qkv")
        return partial(torch_ops.attention, q, k, v, causal=shape.causal, shapes=shapes, return_stats=True)
    q, k, v = (buffers[name].detach().clone() for name in "qkv")
    return prepare_backward_call(
        partial(torch_ops.attention, q, k, v, causal=shape.causal, shapes=shapes), (q, k, v), buffers
    )


class _TimedAttentionCalls:
    """The calls of one shape and direction to time: by its exact plan, and by the plan of its class of shapes."""

    def __init__(self, shape: Attention, direction: Direction, plan: Plan, *, adaptive: bool) -> None:
        (buffers,) = make_buffers(shape, direction)
        if direction == "backward":
            compute_forward_outputs(shape, buffers)
        executable = Executable(plan)
        self.facts: dict[str, Any] = {
            "shape": format_attention_problem(shape),
            "direction": direction,
            "plan": plan.tag,
        }
        self._calls: dict[str, Callable[[], Any]] = {
            "exact": executable.bind(**{name: buffers[name] for name in executable.names}),
            "any": _make_operator_call(shape, direction, buffers, "any"),
            "any, another": _make_call_of_alternating_shapes(shape, direction),
        }
        if adaptive:
            self._calls["exact operator"] = _make_operator_call(shape, direction, buffers, "exact")
            self._calls["adaptive"] = _make_operator_call(shape, direction, buffers, "adaptive")
            self.facts["calls_before"] = CALLS_BEFORE_EXACT_PLAN - 1
        for call in self._calls.values():
            call()

    def time(self, rounds: int) -> dict[str, Any]:
        """Time the calls after every plan is built, and return the row of the record."""
        times = measure_gpu_times(self._calls, rounds, ahead_us=KEEP_BUSY_US)
        return self.facts | {"us": {name: summarize_microseconds(timing) for name, timing in times.items()}}


def _make_call_of_alternating_shapes(shape: Attention, direction: Direction) -> Callable[[], Any]:
    """Return a function that calls attention with this shape and with one token less in turn, by the same plan."""
    calls = []
    for one in (shape, replace(shape, seq_q=shape.seq_q - 1, seq_kv=shape.seq_kv - 1)):
        (buffers,) = make_buffers(one, direction)
        calls.append(_make_operator_call(one, direction, buffers, "any"))
    turns = cycle(calls)
    return lambda: next(turns)()


def _call_shapes_until_plans_are_built(shapes: Sequence[Attention]) -> None:
    """Call each shape nine times and wait for background builds, so that its exact plan serves the tenth call."""
    calls = []
    for shape in shapes:
        for direction in DIRECTIONS:
            (buffers,) = make_buffers(shape, direction)
            calls.append(_make_operator_call(shape, direction, buffers, "adaptive"))
    for _ in range(CALLS_BEFORE_EXACT_PLAN - 1):
        for call in calls:
            call()
    get_shared_pool().wait(BACKGROUND_BUILD_LIMIT_S)


def _compute_time_ratios(record: Mapping[str, Any], direction: str, name: str, other: str) -> list[float]:
    return [
        row["us"][name]["median_us"] / row["us"][other]["median_us"]
        for row in record["rows"]
        if row["direction"] == direction and name in row["us"]
    ]


def _compute_time_ratio_quantile(
    record: Mapping[str, Any], share: float, direction: str, name: str, other: str
) -> float | None:
    found = _compute_time_ratios(record, direction, name, other)
    return float(np.quantile(found, share)) if found else None


def _make_limits() -> tuple[MeasuredValueLimit, ...]:
    accepted = []
    for direction in DIRECTIONS:
        for words, share, limit in (("median", 0.5, 1.2), ("p90", 0.9, 1.5)):
            figure = partial(_compute_time_ratio_quantile, share=share, direction=direction, name="any", other="exact")
            accepted.append(MeasuredValueLimit(f"GPU, {direction}: class / exact, {words}", limit, figure))
        figure = partial(
            _compute_time_ratio_quantile, share=0.5, direction=direction, name="adaptive", other="exact operator"
        )
        accepted.append(
            MeasuredValueLimit(f"GPU, {direction}: adaptive from the tenth call / exact, median", 1.02, figure)
        )
    return tuple(accepted)


ACCEPTANCE_LIMITS = _make_limits()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the number of shapes and the repetitions."""
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--adaptive", type=int, default=20, help='number of shapes also timed with shapes="adaptive"')
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no further shape is started")


def run(options: argparse.Namespace) -> None:
    """Measure the GPU times, print pass or fail lines, and write the record."""
    import torch

    prepare_torch_operators()
    begin = time.perf_counter()
    shapes = _sort_shapes_by_class(make_random_shapes(options.shapes), options.adaptive)
    plans = _build_exact_plans(shapes)
    built_s = round(time.perf_counter() - begin, 1)
    rows, refused, back = [], [], shapes[: options.adaptive]
    for first in range(0, len(shapes), SHAPES_PER_GROUP):
        if time.perf_counter() - begin > options.limit:
            break
        some = shapes[first : first + SHAPES_PER_GROUP]
        _call_shapes_until_plans_are_built([shape for shape in some if shape in back])
        made = []
        for shape, direction in product(some, DIRECTIONS):
            try:
                made.append(_TimedAttentionCalls(shape, direction, plans[shape, direction], adaptive=shape in back))
            except CudnnBackendError as error:
                refused.append(f"{format_attention_problem(shape)} {direction}: {str(error).splitlines()[0]}")
        get_shared_pool().wait(BACKGROUND_BUILD_LIMIT_S)
        rows += [row.time(options.rounds) for row in made]
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "shape-classes", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "exact_plans_built_s": built_s,
        "rows": rows,
        "refused": refused,
    }
    record["seconds"] = round(time.perf_counter() - begin, 1)
    record["accepted"] = compare_record_with_limits(record, ACCEPTANCE_LIMITS)
    for line in format_limit_lines(record):
        print(line)
    write_record(record, options.output)
