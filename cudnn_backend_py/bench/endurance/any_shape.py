"""Attention of ever new shapes by one class: what the first call of a shape costs the host, and that memory stays flat.

Every shape is another batch and length; the class is built before. Some results are compared with torch's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import torch_ops
from ...execution.any_shape import Shapes
from ...info import start_record, write_record
from ..contenders import load_operators
from ..judge import Accepted, judge, verdict_lines
from .memory import in_use

__all__ = ["ACCEPTED", "add_options", "new_shapes", "run"]

HEADS, HEAD_DIM = 2, 64
BATCHES, LENGTHS = 64, 2048
CHECKPOINTS = 20
COMPARED = 200  # shapes between two comparisons
FLAT_BYTES = 8 << 20  # growth after the first tenth that is none


def new_shapes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return `count` different pairs of batch and length, the largest one first: its class serves all."""
    rng = random.Random(seed)
    every = [(batch, seq) for batch in range(1, BATCHES + 1) for seq in range(1, LENGTHS + 1)]
    chosen = rng.sample(every[:-1], min(count, len(every)) - 1)
    return [every[-1], *chosen]


class _Calls:
    """Calls of the operator on slices of one memory."""

    def __init__(self, shapes: Shapes, backward: bool) -> None:
        import torch

        self.shapes, self.backward = shapes, backward
        size = BATCHES * LENGTHS * HEADS * HEAD_DIM
        self.memory = torch.randn(4, size, device="cuda").to(torch.half)

    def tensors(self, batch: int, seq: int) -> list[Any]:
        dims, count = (batch, seq, HEADS, HEAD_DIM), batch * seq * HEADS * HEAD_DIM
        made = [row[:count].view(dims).transpose(1, 2) for row in self.memory]
        if self.backward:
            for x in made[:3]:
                x.requires_grad_(True)
        return made

    def __call__(self, batch: int, seq: int) -> tuple[float, Any]:
        """Make a call and return its host time in milliseconds, and what it returned."""
        import torch

        q, k, v, d_o = self.tensors(batch, seq)
        start = time.perf_counter_ns()
        made = torch_ops.attention(q, k, v, causal=True, shapes=self.shapes)
        if self.backward:
            made = torch.autograd.grad(made, (q, k, v), d_o)
        return (time.perf_counter_ns() - start) / 1e6, made

    def error(self, batch: int, seq: int) -> float:
        """Return the relative error of a call, against torch's in float64 of at most 4 sequences."""
        import torch

        _, made = self(batch, seq)
        q, k, v, d_o = (x[:4].detach().double().requires_grad_(True) for x in self.tensors(batch, seq))
        mask = torch.ones(seq, seq, device="cuda", dtype=torch.bool).tril()
        scores = (q @ k.transpose(2, 3) * HEAD_DIM**-0.5).masked_fill(~mask, -torch.inf)
        want = scores.softmax(-1) @ v
        if self.backward:
            wanted = torch.autograd.grad(want, (q, k, v), d_o)
            made = [x[:4] for x in made]
        else:
            wanted, made = (want,), [made[:4]]
        # A gradient may be 0 but for rounding, as dQ of one key is.
        return max(
            float(torch.linalg.norm((x - y).detach()) / torch.linalg.norm(y.detach()).clamp(min=1.0))
            for x, y in zip(made, wanted, strict=True)
        )


def _growth(record: Mapping[str, Any], key: str) -> float | None:
    points = record["points"]
    later = points[max(1, len(points) // 10) :]
    return float(later[-1][key] - later[0][key]) if len(later) > 1 else None


ACCEPTED = (
    Accepted(
        "host time of the first call of a shape, median, ms", 0.15, lambda record: record["first_call_ms"]["median"]
    ),
    Accepted("host time of the first call of a shape, p99, ms", 1.0, lambda record: record["first_call_ms"]["p99"]),
    Accepted("host memory after the first tenth, bytes more", FLAT_BYTES, lambda r: _growth(r, "resident_bytes")),
    Accepted("GPU memory after the first tenth, bytes more", FLAT_BYTES, lambda r: _growth(r, "gpu_bytes")),
    Accepted("largest relative error", 0.01, lambda record: record["largest_relative_error"]),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how many shapes, of which way, and how long it may take."""
    parser.add_argument("--shapes", type=int, default=100_000)
    parser.add_argument("--way", choices=("any", "adaptive"), default="any")
    parser.add_argument("--backward", action="store_true", help="with the backward pass")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which it stops")


def run(options: argparse.Namespace) -> None:
    """Run, watch memory, write."""
    import torch

    load_operators()
    calls = _Calls(options.way, options.backward)
    shapes = new_shapes(options.shapes)
    for _ in range(3):
        calls(*shapes[0])
    torch.cuda.synchronize()
    begin = time.perf_counter()
    spent: list[float] = []
    points: list[dict[str, int]] = []
    worst, step = 0.0, max(1, len(shapes) // CHECKPOINTS)
    for number, shape in enumerate(shapes[1:], 1):
        spent.append(calls(*shape)[0])
        if number % 256 == 0:
            torch.cuda.synchronize()  # a call is not to wait until the GPU has room for it
        if number % (len(shapes) // COMPARED or 1) == 0:
            worst = max(worst, calls.error(*shape))
        if number % step == 0:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            points.append({"shapes": number, "gpu_bytes": total - free, **in_use()})
        if time.perf_counter() - begin > options.limit:
            break
    torch.cuda.synchronize()
    record: dict[str, Any] = {
        **start_record("any-shape", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "way": options.way,
        "backward": options.backward,
        "shapes": len(spent),
        "seconds": round(time.perf_counter() - begin, 1),
        "first_call_ms": {
            "median": round(float(np.median(spent)), 4),
            **{f"p{share}": round(float(np.percentile(spent, share)), 4) for share in (90, 99)},
            "max": round(max(spent), 4),
        },
        "largest_relative_error": worst,
        "points": points,
    }
    record["accepted"] = judge(record, ACCEPTED)
    for line in verdict_lines(record):
        print(line)
    write_record(record, options.output)
