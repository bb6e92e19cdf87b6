"""Replay a CUDA graph of paged attention a million times with varying pages and lengths.

The CUDA graph selects the next set of lengths and pages, runs our operator and compares the result with the expected
one, so that every replay is checked on the GPU. A call that would have to build a plan during the capture is refused,
and the capture continues.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.contenders import prepare_torch_operators
from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.info import make_measurement_record_header, write_record

from ..judge import MeasuredValueLimit, compare_record_with_limits, format_limit_lines
from .memory import measure_resources

__all__ = ["ACCEPTANCE_LIMITS", "add_options", "run"]

CHECKPOINTS = 20
INPUT_SETS = 64  # sets of lengths and pages, used in turn
BATCH, HEADS, KV_HEADS, HEAD_DIM = 16, 8, 2, 64
PAGE, PAGES = 64, 8  # tokens of a page, pages of a sequence


class _CapturedAttention:
    """Paged attention to capture in a CUDA graph, with many sets of lengths and pages and their expected outputs."""

    def __init__(self) -> None:
        import torch

        generator = torch.Generator("cuda").manual_seed(0)
        place: dict[str, Any] = {"device": "cuda", "generator": generator}
        count = BATCH * PAGES
        memory = torch.randn(2, count, PAGE, KV_HEADS, HEAD_DIM, **place)
        self.k, self.v = memory.to(torch.half)
        self.q = torch.randn(BATCH, 1, HEADS, HEAD_DIM, **place).to(torch.half)
        lengths = torch.randint(1, PAGES * PAGE + 1, (INPUT_SETS, BATCH, 1), dtype=torch.int32, **place)
        orders = [torch.randperm(count, **place).view(BATCH, PAGES) for _ in range(INPUT_SETS)]
        tables = torch.stack(orders).to(torch.int32)
        # Each row has the lengths and pages of a set, so that one kernel copies them.
        self.all_sets = torch.cat([lengths.flatten(1), tables.flatten(1)], 1)
        self.set = self.all_sets[:1].clone()
        self.lengths = self.set[0, :BATCH]
        self.table = self.set[0, BATCH:].view(BATCH, PAGES)
        self.all_expected = torch.stack(
            [self._compute_expected_output(*one) for one in zip(lengths, tables, strict=True)]
        ).to(torch.half)
        self.right = self.all_expected[:1].clone()
        self.size = float(self.all_expected.abs().max())
        self.number = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.worst = torch.zeros((), device="cuda", dtype=torch.half)
        self.count = torch.zeros(1, dtype=torch.int64, device="cuda")

    def _compute_expected_output(self, lengths: Any, table: Any) -> Any:
        """Return the attention of one set of lengths and pages in float64."""
        import torch

        k, v = (
            x[table.long()].flatten(1, 2).double().repeat_interleave(HEADS // KV_HEADS, 2) for x in (self.k, self.v)
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", self.q.double(), k) * HEAD_DIM**-0.5
        beyond = torch.arange(PAGES * PAGE, device="cuda") >= lengths
        scores = scores.masked_fill(beyond[:, None, None], -torch.inf)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

    def attend(self) -> Any:
        """Run the attention operator on the set of lengths and pages that is selected now."""
        return torch_ops.attention_with_kvcache(self.q, self.k, self.v, self.table, self.lengths)

    def step(self) -> None:
        """Select the next set of lengths and pages, run attention, and update the largest error and the count."""
        import torch

        torch.index_select(self.all_sets, 0, self.number, out=self.set)
        torch.index_select(self.all_expected, 0, self.number, out=self.right)
        error = (self.attend() - self.right[0]).abs().amax()
        torch.maximum(self.worst, error, out=self.worst)
        self.count.add_(1)
        torch.remainder(self.count, INPUT_SETS, out=self.number)

    def compute_largest_error(self) -> float:
        """Return the largest error of an element, relative to the largest element; NaN if one occurred."""
        return float(self.worst) / self.size


def _get_error_code_of_build_in_capture(soak: _CapturedAttention) -> str:
    """Return the error code of a call that would build a plan during a capture, which must be refused."""
    import torch

    x = torch.zeros(2, 64, 2, 2 * HEAD_DIM, device="cuda", dtype=torch.half).transpose(1, 2)
    try:
        torch_ops.attention(x, x, x, causal=True)
    except UsageError as error:
        return str(error.code)
    return "it was built"


def _compute_memory_growth(record: Mapping[str, Any], key: str) -> float:
    points = record["points"]
    return float(points[-1][key] - points[0][key])


ACCEPTANCE_LIMITS = (
    MeasuredValueLimit("largest relative error of all replays", 0.01, lambda record: record["largest_relative_error"]),
    MeasuredValueLimit("replays that did not run", 0, lambda record: record["replays"] - record["counted"]),
    MeasuredValueLimit("replays there was no time for", 0, lambda record: record["asked"] - record["replays"]),
    MeasuredValueLimit(
        "builds inside a capture that were not refused",
        0,
        lambda record: float(record["build_in_capture"] != "plan-in-capture"),
    ),
    MeasuredValueLimit(
        "host memory, bytes more", 8 << 20, lambda record: _compute_memory_growth(record, "resident_bytes")
    ),
    MeasuredValueLimit("GPU memory, bytes more", 8 << 20, lambda record: _compute_memory_growth(record, "gpu_bytes")),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the number of replays and the time limit."""
    parser.add_argument("--replays", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=600.0, help="time limit in seconds")


def run(options: argparse.Namespace) -> None:
    """Capture a CUDA graph, replay it many times, and write the record."""
    import torch

    prepare_torch_operators()
    soak = _CapturedAttention()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            soak.step()
    stream.synchronize()
    for counter in (soak.number, soak.count, soak.worst):
        counter.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        refused = _get_error_code_of_build_in_capture(soak)
        soak.step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    points: list[dict[str, int]] = []
    replays, step = 0, max(1, options.replays // CHECKPOINTS)
    while replays < options.replays and time.perf_counter() - begin < options.limit:
        for _ in range(min(step, options.replays - replays)):
            graph.replay()
            replays += 1
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        points.append({"replays": replays, "gpu_bytes": total - free, **measure_resources()})
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "capture-soak", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "problem": f"b{BATCH} h{HEADS}/{KV_HEADS} d{HEAD_DIM}, one query, up to {PAGE * PAGES} keys in pages of {PAGE}",
        "sets": INPUT_SETS,
        "build_in_capture": refused,
        "asked": options.replays,
        "replays": replays,
        "counted": int(soak.count),
        "seconds": round(time.perf_counter() - begin, 1),
        "largest_relative_error": soak.compute_largest_error(),
        "points": points,
    }
    record["microseconds_each"] = round(record["seconds"] / max(1, replays) * 1e6, 2)
    record["accepted"] = compare_record_with_limits(record, ACCEPTANCE_LIMITS)
    for line in format_limit_lines(record):
        print(line)
    write_record(record, options.output)
