"""Attention of many shapes by plans that each serve a class of shapes: time of first calls, and memory use.

All shapes differ in batch or length; the plans of their classes are built first. Further shapes are compared with torch
in float64 at the end, because float64 matmuls load kernels that would count as memory of the operator. For comparison,
the record has torch's time for such a call, for allocating its output, and for an empty step of its autograd engine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.contenders import prepare_torch_operators
from cudnn_backend_py.execution.any_shape import Shapes
from cudnn_backend_py.execution.plan_pool import get_shared_pool
from cudnn_backend_py.graph.attention.shape_class import choose_shape_class_bounds
from cudnn_backend_py.info import make_measurement_record_header, write_record

from ..judge import MeasuredValueLimit, compare_record_with_limits, format_limit_lines
from .memory import measure_resources

__all__ = ["ACCEPTANCE_LIMITS", "add_options", "find_shape_class_bounds", "make_random_shapes", "run"]

HEADS, HEAD_DIM = 2, 64
BATCHES, LENGTHS = 64, 2048
CHECKPOINTS = 20
COMPARED_SHAPES = 200  # largest number of further shapes that are compared with float64: a tenth of the timed ones
TIME_FIGURES = ("first_call_ms", "first_backward_ms")
REPORTED_SLOWEST_CALLS = 5  # calls that are reported individually
ACCEPTED_GROWTH_BYTES = 8 << 20  # accepted growth after the first tenth of the calls
TORCH_CALLS = 1000  # number of timed calls of torch
# Number of calls before a synchronization: about 130 launches, far fewer than the launch queue holds.
CALLS_BETWEEN_SYNCHRONIZATIONS = 16
TORCH_TIME_FIGURES = ("torch_empty_ms", "torch_flash_ms", "torch_flash_backward_ms", "torch_engine_ms")
_BUILD_TIME_LIMIT_S = 120.0  # time limit for building all plans


def make_random_shapes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return `count` distinct random pairs of batch and length, or all pairs if there are fewer."""
    every = list(product(range(1, BATCHES + 1), range(1, LENGTHS + 1)))
    return random.Random(seed).sample(every, min(count, len(every)))


def find_shape_class_bounds() -> list[tuple[int, int]]:
    """Return the largest batch and length of each class of shapes that one plan serves, the largest first."""
    sequences = {choose_shape_class_bounds(batch, 1, 1).batch for batch in range(1, BATCHES + 1)}
    lengths = {choose_shape_class_bounds(1, seq, seq).q for seq in range(1, LENGTHS + 1)}
    return sorted(product(sequences, lengths), reverse=True)


class _AttentionCallsOfManyShapes:
    """Attention calls of many shapes, on slices of one memory block."""

    def __init__(self, shapes: Shapes, backward: bool) -> None:
        import torch

        self.shapes, self.backward = shapes, backward
        size = BATCHES * LENGTHS * HEADS * HEAD_DIM
        self.memory = [torch.randn(size, device="cuda").to(torch.half) for _ in range(4)]

    def make_tensors(self, batch: int, seq: int) -> list[Any]:
        """Return Q, K, V and dO, [b, h, s, d] stored as b, s, h, d."""
        width = HEADS * HEAD_DIM
        dims, strides = (batch, HEADS, seq, HEAD_DIM), (seq * width, HEAD_DIM, width, 1)
        made = [x.as_strided(dims, strides) for x in self.memory]
        if self.backward:
            for x in made[:3]:
                x.requires_grad_(True)
        return made

    def __call__(self, batch: int, seq: int) -> tuple[tuple[float, ...], Any]:
        """Make a call and return the host time of each pass in milliseconds, and the last pass's result.

        The result of a pass is freed after its time was measured.
        """
        import torch

        q, k, v, d_o = self.make_tensors(batch, seq)
        start = time.perf_counter_ns()
        o = made = torch_ops.attention(q, k, v, causal=True, shapes=self.shapes)
        times = [time.perf_counter_ns() - start]
        if self.backward:
            start = time.perf_counter_ns()
            made = torch.autograd.grad(o, (q, k, v), d_o)
            times.append(time.perf_counter_ns() - start)
        return tuple(spent / 1e6 for spent in times), made

    def time_torch(self, batch: int, seq: int) -> tuple[float, ...]:
        """Return the host time of allocating an output, and of each pass of torch's own flash attention, in ms.

        With a backward pass, also the time of the gradient of a view, which is the cost of torch's autograd engine.
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v, d_o = self.make_tensors(batch, seq)
        times = [time.perf_counter_ns()]
        torch.empty_strided(q.shape, q.stride(), dtype=q.dtype, device=q.device)
        times.append(time.perf_counter_ns())
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            times.append(time.perf_counter_ns())
            made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            times.append(time.perf_counter_ns())
            if self.backward:
                held = [torch.autograd.grad(made, (q, k, v), d_o)]
                times.append(time.perf_counter_ns())
                held.append(torch.autograd.grad(q.view_as(q), q, d_o))
                times.append(time.perf_counter_ns())
        spent = [(end - start) / 1e6 for start, end in pairwise(times)]
        return spent[0], *spent[2:]  # without the time for selecting flash attention

    def compute_error(self, batch: int, seq: int) -> float:
        """Return the relative error of a call compared with float64, in the first, middle and last sequence."""
        import torch

        _, made = self(batch, seq)
        chosen = sorted({0, batch // 2, batch - 1})
        q, k, v, d_o = (x.detach()[chosen].double().requires_grad_(True) for x in self.make_tensors(batch, seq))
        mask = torch.ones(seq, seq, device="cuda", dtype=torch.bool).tril()
        scores = (q @ k.transpose(2, 3) * HEAD_DIM**-0.5).masked_fill(~mask, -torch.inf)
        want = scores.softmax(-1) @ v
        wanted = torch.autograd.grad(want, (q, k, v), d_o) if self.backward else (want,)
        made = made if self.backward else (made,)
        # A gradient may be 0 up to rounding, such as dQ with a single key.
        return max(
            float(torch.linalg.norm((x[chosen] - y).detach()) / torch.linalg.norm(y.detach()).clamp(min=1.0))
            for x, y in zip(made, wanted, strict=True)
        )


def _compute_memory_growth(record: Mapping[str, Any], key: str) -> float | None:
    points = record["points"]
    later = points[max(1, len(points) // 10) :]
    return float(later[-1][key] - later[0][key]) if len(later) > 1 else None


def _find_largest_error(record: Mapping[str, Any]) -> float | None:
    return 1000 * float(record["largest_relative_error"]) if record["compared"] else None


def _read_first_call_value(record: Mapping[str, Any], what: str, name: str) -> float | None:
    return float(record[name][what]) if name in record else None


ACCEPTANCE_LIMITS = (
    *(
        MeasuredValueLimit(
            f"host time of {words} of a shape, {what}, ms",
            limit,
            partial(_read_first_call_value, what=what, name=name),
        )
        for words, name in zip(("the first call", "the first backward pass"), TIME_FIGURES, strict=True)
        for what, limit in (("median", 0.15), ("p99", 1.0))
    ),
    MeasuredValueLimit(
        "host memory after the first tenth, bytes more",
        ACCEPTED_GROWTH_BYTES,
        lambda r: _compute_memory_growth(r, "resident_bytes"),
    ),
    MeasuredValueLimit(
        "GPU memory after the first tenth, bytes more",
        ACCEPTED_GROWTH_BYTES,
        lambda r: _compute_memory_growth(r, "gpu_bytes"),
    ),
    MeasuredValueLimit("largest relative error of calls compared, thousandths", 10.0, _find_largest_error),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the number of shapes, the mode, and the time limit."""
    parser.add_argument("--shapes", type=int, default=100_000)
    parser.add_argument("--way", choices=("any", "adaptive"), default="any")
    parser.add_argument("--backward", action="store_true", help="measure the backward pass as well")
    parser.add_argument("--limit", type=float, default=600.0, help="time limit in seconds")


def _build_shape_classes(calls: _AttentionCallsOfManyShapes) -> None:
    """Build the plan of each class of shapes before the measurement, so that no build is measured."""
    import torch

    for _ in range(4):  # the queue of builds is short, and the first run completes a class
        for batch, seq in find_shape_class_bounds():
            calls(batch, seq)
            torch.cuda.synchronize()
        get_shared_pool().wait(_BUILD_TIME_LIMIT_S)


def _time_torch_at_shapes(
    calls: _AttentionCallsOfManyShapes, shapes: Sequence[tuple[int, int]]
) -> Iterator[tuple[float, ...]]:
    import torch

    for number, shape in enumerate(shapes):
        if number % CALLS_BETWEEN_SYNCHRONIZATIONS == 0:
            torch.cuda.synchronize()
        yield calls.time_torch(*shape)


def _compute_median_max_and_percentiles(spent: Any) -> dict[str, float]:
    found = {"median": np.median(spent), "max": np.max(spent)}
    found |= {f"p{share}": np.percentile(spent, share) for share in (90, 99)}
    return {name: round(float(value), 4) for name, value in found.items()}


def run(options: argparse.Namespace) -> None:
    """Measure the call times and memory use of many shapes, and write the record."""
    import torch

    prepare_torch_operators()
    calls = _AttentionCallsOfManyShapes(options.way, options.backward)
    begin = time.perf_counter()
    _build_shape_classes(calls)
    built_s = round(time.perf_counter() - begin, 1)
    shapes = make_random_shapes(options.shapes + COMPARED_SHAPES)
    others = shapes[len(shapes) - min(COMPARED_SHAPES, len(shapes) // 10) :]
    shapes = shapes[: len(shapes) - len(others)][: options.shapes]
    begin = time.perf_counter()
    spent, points = np.zeros((len(shapes), 1 + options.backward)), []
    done, step = 0, max(1, len(shapes) // CHECKPOINTS)
    for done, shape in enumerate(shapes, 1):
        spent[done - 1] = calls(*shape)[0]
        if done % CALLS_BETWEEN_SYNCHRONIZATIONS == 0:
            torch.cuda.synchronize()
        if done % step == 0:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            mine = torch.cuda.memory_reserved()  # the GPU memory of other processes does not count
            points.append({"shapes": done, "gpu_bytes": total - free, "torch_bytes": mine, **measure_resources()})
        if time.perf_counter() - begin > options.limit:
            break
    torch.cuda.synchronize()
    spent = spent[:done]
    seconds = round(time.perf_counter() - begin, 1)
    errors = [calls.compute_error(*shape) for shape in others]
    time_torch = np.array(list(_time_torch_at_shapes(calls, shapes[:TORCH_CALLS])))
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "any-shape", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "way": options.way,
        "calls_in_a_row": CALLS_BETWEEN_SYNCHRONIZATIONS,
        "backward": options.backward,
        "classes_built_s": built_s,
        "shapes": done,
        "seconds": seconds,
        **{
            name: _compute_median_max_and_percentiles(times) for name, times in zip(TIME_FIGURES, spent.T, strict=False)
        },
        "slowest": [
            {"number": int(at) + 1, "shape": shapes[at], "ms": spent[at].round(3).tolist()}
            for at in np.argsort(-spent.sum(1))[:REPORTED_SLOWEST_CALLS]
        ],
        **{
            name: _compute_median_max_and_percentiles(times)
            for name, times in zip(TORCH_TIME_FIGURES, time_torch.T, strict=False)
        },
        "compared": len(errors),
        "largest_relative_error": max(errors, default=0.0),
        "points": points,
    }
    record["accepted"] = compare_record_with_limits(record, ACCEPTANCE_LIMITS)
    for line in format_limit_lines(record):
        print(line)
    write_record(record, options.output)
