"""``python -m cudnn_backend_py.why.cost``: measure how much watching slows down a training step.

The model is a stack of layers with torch's own attention: large steps that the GPU bounds, small ones that the host
bounds, tiny ones that a CPU's host bounds (``--device cpu``), eager and compiled. Both steps of a pair come right after
one another in one process, in turns the one and the other first, so that what drifts over seconds is in both; the
median of their ratios is reported with its 95 % interval. The time of the thread on its CPU is reported next to that of
the clock: it has no part in the work of other programs, but for what caches and cores lose to them. A call of a step
takes longer than one of a loop of calls: what it needs is no longer in the caches. Both are reported.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..command_line import Choice, Command, Seconds
from ..execution.timing import without_garbage_collection

__all__ = [
    "StepTime",
    "find_median_and_confidence_interval",
    "format_overhead",
    "judge_overhead_of_paired_runs",
    "main",
    "measure_step_time",
]

MODEL_SIZES = {"large": (8, 1024, 768), "small": (1, 64, 768), "tiny": (1, 8, 48)}  # sequences, length, width
MAX_OVERHEAD = 0.05  # share of a step that a watch may cost


class StepTime(NamedTuple):
    """Seconds per training step: wall clock, and CPU time of the thread."""

    clock: float
    thread: float


def _make_training_step(
    sequences: int, length: int, width: int, device: str, compiled: bool
) -> tuple[Callable[[], None], list[float]]:
    """Return a training step of eight transformer layers, and a list that collects the times of its attention calls.

    The model has 12 heads, in float32 on a CPU, else in bfloat16. Each call of attention adds its seconds on the host
    to the list, but not in compiled code.
    """
    import torch
    from torch import nn

    calls: list[float] = []

    def run_attention(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def run_timed_attention(q: Any, k: Any, v: Any) -> Any:
        began = time.perf_counter()
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        calls.append(time.perf_counter() - began)
        return out

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.after = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            q, k, v = (
                one.unflatten(2, (12, width // 12)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1)
            )
            out = (run_attention if compiled else run_timed_attention)(q, k, v)
            x = x + self.out(out.transpose(1, 2).flatten(2))
            return x + self.after(x)

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = nn.Sequential(*(Layer() for _ in range(8))).to(device, dtype)
    if compiled:
        for layer in model:
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    x = torch.randn(sequences, length, width, device=device, dtype=dtype)

    def run_training_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()
        optimizer.step()

    return run_training_step, calls


def find_median_and_confidence_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % confidence interval by ranks, without assuming a distribution.

    How many of n values are below the true median is binomial, n / 2 with a deviation of sqrt(n) / 2.
    """
    ranked = sorted(values)
    outside = max(0, math.floor(len(ranked) / 2 - 1.96 * math.sqrt(len(ranked)) / 2))
    return ranked[outside], statistics.median(ranked), ranked[-1 - outside]


def judge_overhead_of_paired_runs(plain: Sequence[StepTime], other: Sequence[StepTime], most: float) -> dict[str, Any]:
    """Judge whether paired runs show an overhead below `most`; return the statistics for a record.

    The verdict is of the clock: ``"passed"`` where all of the interval is less than `most`, ``"failed"`` where nothing
    of it is, else ``"not shown"``.
    """
    found: dict[str, Any] = {"pairs": len(plain)}
    for kind in StepTime._fields:
        low, share, high = (
            ratio - 1
            for ratio in find_median_and_confidence_interval(
                [getattr(y, kind) / getattr(x, kind) for x, y in zip(plain, other, strict=True)]
            )
        )
        more = [getattr(y, kind) - getattr(x, kind) for x, y in zip(plain, other, strict=True)]
        found[kind] = {
            "plain_us": round(1e6 * statistics.median(getattr(one, kind) for one in plain), 3),
            "more_us": [round(1e6 * one, 3) for one in find_median_and_confidence_interval(more)],
            "share": round(share, 5),
            "share_interval": [round(low, 5), round(high, 5)],
        }
    low, high = found["clock"]["share_interval"]
    return {**found, "most": most, "verdict": "passed" if high < most else "failed" if low >= most else "not shown"}


def format_overhead(found: dict[str, Any]) -> str:
    """Return a line with the results of :func:`judge_overhead_of_paired_runs`."""
    shares = [
        f"{100 * found[kind]['share']:+.2f} % ({100 * found[kind]['share_interval'][0]:+.2f} to "
        f"{100 * found[kind]['share_interval'][1]:+.2f}) {where}"
        for kind, where in (("clock", "by the clock"), ("thread", "of the thread's time"))
    ]
    return f"{', '.join(shares)}, {found['pairs']} pairs; under {found['most']:.0%}: {found['verdict']}"


def measure_step_time(step: Callable[[], Any], steps: int, device: str = "cuda") -> StepTime:
    """Return the seconds per step over several steps."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    clock, thread = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        step()
    wait()
    return StepTime((time.perf_counter() - clock) / steps, (time.thread_time() - thread) / steps)


def _measure_watching_overhead_of_model(
    sizes: tuple[int, int, int], compiled: bool, device: str, seconds: float, steps: int
) -> dict[str, Any]:
    """Measure a model for some seconds, in pairs of runs with and without watching; return the statistics."""
    import torch

    from .findings import why_not_cudnn

    place, name = torch.nn.functional, "scaled_dot_product_attention"
    trainer = _make_training_step(*sizes, device, compiled)
    measure_step_time(trainer[0], 3, device)
    functions: dict[str, Any] = {"plain": getattr(place, name)}
    trainers = {"plain": trainer, "watched": trainer}
    with why_not_cudnn(run_query=False) as report:
        functions["watched"] = getattr(place, name)
        if compiled:  # one that the watch has seen being compiled
            trainers["watched"] = _make_training_step(*sizes, device, compiled)
        first = measure_step_time(trainers["watched"][0], 1, device)
        times: dict[str, list[StepTime]] = {"plain": [], "watched": []}
        called: dict[str, list[float]] = {"plain": [], "watched": []}
        with without_garbage_collection():
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline or len(times["plain"]) < 4:
                for way in ("plain", "watched") if len(times["plain"]) % 2 else ("watched", "plain"):
                    setattr(place, name, functions[way])
                    step, calls = trainers[way]
                    measure_step_time(step, 1, device)  # finds caches as the other way left them
                    calls.clear()
                    times[way].append(measure_step_time(step, steps, device))
                    called[way] += calls
        setattr(place, name, functions["watched"])
    found = judge_overhead_of_paired_runs(times["plain"], times["watched"], MAX_OVERHEAD)
    return {
        **found,
        "calls_of_a_step": sum(one.count for one in report.findings) // (1 + (1 + steps) * found["pairs"]),
        "us_of_a_call": {way: round(1e6 * statistics.median(all_of), 3) for way, all_of in called.items() if all_of},
        "first_watched_step_ms": round(1000 * first.clock, 3),
        "backends": sorted({str(one.answer.choice) for one in report.findings}),
    }


def _measure_watching_overhead_per_call(device: str, calls: int = 500, turns: int = 40) -> list[float]:
    """Return how many microseconds of host time watching adds to a call: lower bound, median, upper bound."""
    import torch

    from .findings import why_not_cudnn

    q, k, v = (torch.zeros(1, 12, 64, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def call_attention() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    found = []
    for _ in range(turns):
        plain = measure_step_time(call_attention, calls, device)
        with why_not_cudnn(run_query=False):
            call_attention()
            found.append(measure_step_time(call_attention, calls, device).thread - plain.thread)
    return [round(1e6 * one, 3) for one in find_median_and_confidence_interval(found)]


_HELP = """\
Measure what a watch costs a training step, in pairs of steps with and without one.

Prints a line for each case; the exit code is 1 if a share may be too large.
"""


@click.command(cls=Command, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--output", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
@click.option("--seconds", type=Seconds(), default=30.0, show_default=True, help="Of pairs, for each case.")
@click.option("--steps", default=8, show_default=True, help="Training steps of a turn.")
@click.option(
    "--cases",
    multiple=True,
    type=Choice(tuple(MODEL_SIZES)),
    help="May be repeated; tiny on a CPU, else large and small.",
)
@click.option("--device", default="cuda", show_default=True, type=Choice(("cuda", "cpu")))
@click.option("--compiled", is_flag=True, help="Also with torch.compile.")
def main(output: Path | None, seconds: float, steps: int, cases: tuple[str, ...], device: str, compiled: bool) -> None:
    """Measure, print a line per case, and write the figures; exit code 1 if the overhead may be too large."""
    import torch

    from ..info import make_measurement_record_header, write_record

    if device == "cpu":
        torch.set_num_threads(1)
    record = {**make_measurement_record_header("why-cost"), "torch": torch.__version__, "steps": steps}
    low, note_us, high = record["note_us"] = _measure_watching_overhead_per_call(device)
    print(f"recording a call takes {note_us:.2f} us ({low:.2f} to {high:.2f}) in a loop", flush=True)
    figures: dict[str, Any] = {}
    for is_compiled in (False, True)[: 1 + compiled]:
        for name in cases or (("tiny",) if device == "cpu" else ("large", "small")):
            case = f"{name}, compiled" if is_compiled else name
            found = figures[case] = _measure_watching_overhead_of_model(
                MODEL_SIZES[name], is_compiled, device, seconds, steps
            )
            step = f"a step of {found['clock']['plain_us'] / 1000:.3f} ms with {found['calls_of_a_step']} calls"
            print(f"{case}: {step}, watched {format_overhead(found)}", flush=True)
            if calls := found["us_of_a_call"]:
                print(f"  a call of the step takes {calls['plain']:.1f} us, watched {calls['watched']:.1f}", flush=True)
            write_record({**record, "figures": figures}, output)
            if is_compiled:
                torch._dynamo.reset()
    raise SystemExit(0 if all(found["verdict"] == "passed" for found in figures.values()) else 1)


if __name__ == "__main__":
    main(prog_name="python -m cudnn_backend_py.why.cost")
