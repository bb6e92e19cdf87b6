"""Which attention is the fastest for a grid of shapes: ours, exact and by class, and torch's backends.

Forward and backward: GPU time with the L2 cache flushed before each call, and host time of calls one after the other
where the GPU is not what they wait for; the contenders take turns. The fastest is marked, and so is what is as fast
within noise. The engine configs of our plans are told; what torch runs is named by its version and by cuDNN's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import torch_ops
from ..errors import CudnnBackendError
from ..execution.any_shape import Shapes
from ..execution.plan_pool import shared_pool
from ..info import start_record, write_record
from ..tuning.statistics import Timing
from .contenders import differentiate, fill_forward, load_operators, make_buffers, torch_calls
from .shapes import DIRECTIONS, Direction, Effort, Shape
from .timing import AHEAD_US, gpu_times, host_times, microseconds, once_within, within

__all__ = ["LITTLE_GRID", "WHOLE_GRID", "add_options", "as_markdown", "fastest", "grid_shapes", "grid_table", "run"]

OURS: tuple[Shapes, ...] = ("exact", "any")
WHOLE_GRID = (1024, 16384)  # tokens of a batch
LITTLE_GRID = (1024,)
SEQUENCES = (128, 512, 2048, 8192)
HOST_BOUND_US = 100.0  # GPU time up to which host time is measured


def grid_shapes(tokens: tuple[int, ...] = WHOLE_GRID, sequences: tuple[int, ...] = SEQUENCES) -> Iterator[Shape]:
    """Yield the shapes: head dims 64 and 128, causal and not, few tokens and many, one with grouped heads."""
    for head_dim in (64, 128):
        heads = 2048 // head_dim
        for causal in (True, False):
            for total in tokens:
                for seq in sequences:
                    if seq <= total:
                        yield Shape(total // seq, heads, seq, head_dim, causal, bf16=True)
    for seq in sequences[1:]:
        if seq <= tokens[-1]:
            yield Shape(tokens[-1] // seq, 16, seq, 128, True, bf16=True, kv_heads=4)


def _contenders(
    shape: Shape, direction: Direction, buffers: Mapping[str, Any], plans: dict[str, str]
) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Yield (name, call, context to make it in) for each attention that takes the problem; note our plans."""
    torch_ops.clear_plans()
    for shapes in OURS:
        q, k, v = (buffers[name].detach().clone() for name in "qkv")
        call: Callable[[], Any] = partial(torch_ops.attention, q, k, v, causal=shape.causal, shapes=shapes)
        try:
            made = differentiate(call, (q, k, v), buffers) if direction == "backward" else call
            made()
        except CudnnBackendError:  # this shape has no class here
            continue
        plans[f"ours, {shapes}"] = _last_plan()
        yield f"ours, {shapes}", made, None
    yield from torch_calls(shape, direction, buffers)


def _last_plan() -> str:
    """Return the engine config of the plan that the operators made last, and the bounds of a class."""
    pool = shared_pool()
    held = pool.find(pool.keys_there()[-1])
    if held is None or held.plan is None:
        return ""
    made = getattr(held.plan, "executable", held.plan)
    bounds = getattr(made, "bounds", None)
    return str(made.plan.tag) + ("" if bounds is None else f" for b, s_q, s_kv up to {', '.join(map(str, bounds))}")


def _row(shape: Shape, direction: Direction, gpu_rounds: int, effort: Effort) -> dict[str, Any]:
    (buffers,) = make_buffers(shape, direction)
    if direction == "backward":
        fill_forward(shape, buffers)
    on_gpu: dict[str, Callable[[], Any]] = {}
    on_host: dict[str, Callable[[int, int], float]] = {}
    plans: dict[str, str] = {}
    for name, call, context in _contenders(shape, direction, buffers, plans):
        on_gpu[name] = call if context is None else once_within(context, call)
        on_host[name] = within(_nothing if context is None else context, call)
    gpu = gpu_times(on_gpu, gpu_rounds, ahead_us=AHEAD_US)
    is_short = all(timing.median_us < HOST_BOUND_US for timing in gpu.values())
    host = host_times(on_host, effort) if is_short else {}
    return {
        "shape": shape.name,
        "direction": direction,
        "plans": plans,
        "gpu": {name: microseconds(timing) for name, timing in gpu.items()},
        "host": {name: microseconds(timing) for name, timing in host.items()},
        "fastest": fastest({name: microseconds(timing) for name, timing in gpu.items()}),
    }


class _nothing:  # noqa: N801  # a context
    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


def fastest(times: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the contender with the smallest median, and those it does not beat beyond noise."""
    if not times:
        return []
    first, *others = sorted(times, key=lambda name: times[name]["median_us"])
    best = Timing(**times[first])
    return [first, *(name for name in others if not best.beats(Timing(**times[name])))]


def _cells(row: Mapping[str, Any], what: str, names: list[str], mark: str) -> list[str]:
    cells = []
    for name in names:
        timing = row[what].get(name)
        text = "" if timing is None else f"{timing['median_us']:.1f}"
        cells.append(mark.format(text) if text and what == "gpu" and name in row["fastest"] else text)
    return cells


def _names(record: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for row in record["rows"] for name in row["gpu"]))


def grid_table(record: Mapping[str, Any], what: str = "gpu") -> Table:
    """Return the table of GPU times, or of host times."""
    names = _names(record)
    table = Table(title=f"{'GPU' if what == 'gpu' else 'Host'} time of attention, microseconds")
    table.add_column("")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in record["rows"]:
        table.add_row(row["shape"], row["direction"], *_cells(row, what, names, "[bold green]{}[/]"))
    return table


def _told_plans(row: Mapping[str, Any]) -> str:
    return ", ".join(f"`{plan}`" for plan in row["plans"].values())


def as_markdown(record: Mapping[str, Any]) -> str:
    """Return both tables as text for a page, with what they were measured on."""
    names = _names(record)
    facts = record["environment"]
    lines = [
        f"{record['gpu_name']}, cuDNN {facts['cudnn']}, torch {record['torch']}, Python {facts['python']}, "
        f"{record['date']}. Microseconds: GPU time, L2 flushed / host time of a call; the fastest on the GPU is bold.",
        "",
        "| shape | direction | " + " | ".join(names) + " | our plans, exact and of the class |",
        "|---|---|" + "---:|" * len(names) + "---|",
    ]
    for row in record["rows"]:
        gpu, host = (_cells(row, what, names, "**{}**") for what in ("gpu", "host"))
        both = [f"{one} / {two}" if two else one for one, two in zip(gpu, host, strict=True)]
        lines.append(f"| {row['shape']} | {row['direction']} | " + " | ".join(both) + f" | {_told_plans(row)} |")
    return "\n".join(lines) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how much, and where the table goes as text."""
    parser.add_argument("--little", action="store_true", help="few shapes")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of GPU times")
    parser.add_argument("--markdown", type=Path, help="write the table here, as Markdown")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no shape is begun")


def run(options: argparse.Namespace) -> None:
    """Measure, print both tables, and write."""
    import torch

    load_operators()
    begin = time.perf_counter()
    console = Console(width=180)
    effort = Effort(host_batches=8, host_calls=40)
    shapes = list(grid_shapes(*((LITTLE_GRID, SEQUENCES[:2]) if options.little else ())))
    rows = []
    for shape in shapes:
        if time.perf_counter() - begin > options.limit:
            break
        rows += [_row(shape, direction, options.rounds, effort) for direction in DIRECTIONS]
    record = {
        **start_record("grid", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shapes": len(shapes),
        "rows": rows,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    for what in ("gpu", "host"):
        console.print(grid_table(record, what))
    if options.markdown is not None:
        options.markdown.write_text(as_markdown(record), encoding="utf-8")
    write_record(record, options.output)
