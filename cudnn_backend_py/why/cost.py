"""``python -m cudnn_backend_py.why.cost``: what a watch costs a training step, in pairs of steps with and without one.

The model is a stack of layers with torch's own attention: large steps that the GPU bounds, small ones that the host
bounds, eager and compiled. Both steps of a pair come right after one another in one process, in turns the one and the
other first, so that what drifts over seconds is in both; the median of their ratios is told with its 95 % interval.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["main", "median_interval"]

CASES = {"large": (8, 1024), "small": (1, 64)}  # sequences, length
MOST = 0.05  # share of a step that a watch may cost


def _trainer(sequences: int, length: int, device: str, compiled: bool) -> Callable[[], None]:
    """Return a training step of eight layers of 12 heads of 64, in bfloat16."""
    import torch
    from torch import nn

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(768), nn.Linear(768, 3 * 768), nn.Linear(768, 768)
            self.after = nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))

        def forward(self, x: Any) -> Any:
            q, k, v = (one.unflatten(2, (12, 64)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(out.transpose(1, 2).flatten(2))
            return x + self.after(x)

    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(8))).to(device, torch.bfloat16)
    if compiled:
        for layer in model:
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    x = torch.randn(sequences, length, 768, device=device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of values and its 95 % confidence interval, by their ranks: nothing is taken for normal.

    How many of n values lie below the true median is binomial, n / 2 with a deviation of sqrt(n) / 2.
    """
    ranked = sorted(values)
    outside = max(0, math.floor(len(ranked) / 2 - 1.96 * math.sqrt(len(ranked)) / 2))
    return ranked[outside], statistics.median(ranked), ranked[-1 - outside]


@contextmanager
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _turn(step: Callable[[], None], steps: int, device: str) -> float:
    """Return the seconds of a step."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - started) / steps


def _measure(sizes: tuple[int, int], compiled: bool, device: str, seconds: float, steps: int) -> dict[str, Any]:
    """Return the figures of a case: pairs of turns for so many seconds, the watch's function set in one of each."""
    import torch

    from .look import why_not_cudnn

    place, name = torch.nn.functional, "scaled_dot_product_attention"
    plain = _trainer(*sizes, device, compiled)
    _turn(plain, 3, device)
    functions: dict[str, Any] = {"plain": getattr(place, name)}
    trainers = {"plain": plain, "watched": plain}
    with why_not_cudnn(ask=False) as report:
        functions["watched"] = getattr(place, name)
        if compiled:  # one that the watch has seen being compiled
            trainers["watched"] = _trainer(*sizes, device, compiled)
        first = _turn(trainers["watched"], 1, device)
        _turn(trainers["watched"], 2, device)
        ratios: list[float] = []
        times: dict[str, list[float]] = {"plain": [], "watched": []}
        with _uncollected():
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline or len(ratios) < 4:
                found = {}
                for way in ("plain", "watched") if len(ratios) % 2 else ("watched", "plain"):
                    setattr(place, name, functions[way])
                    found[way] = _turn(trainers[way], steps, device)
                    times[way].append(found[way])
                ratios.append(found["watched"] / found["plain"])
        setattr(place, name, functions["watched"])
    low, share, high = (ratio - 1 for ratio in median_interval(ratios))
    calls = sum(one.count for one in report.findings) // (3 + steps * len(ratios))
    return {
        **{f"{way}_ms": round(1000 * statistics.median(found), 4) for way, found in times.items()},
        "first_watched_step_ms": round(1000 * first, 3),
        "share": round(share, 5),
        "share_interval": [round(low, 5), round(high, 5)],
        "pairs": len(ratios),
        "calls_of_a_step": calls,
        "backends": sorted({str(one.answer.choice) for one in report.findings}),
        "passed": high < MOST,
    }


def _note_us(device: str, calls: int = 500, turns: int = 20) -> float:
    """Return what the watch adds to a call on the host: the median of turns, in microseconds."""
    import torch

    from .look import why_not_cudnn

    q, k, v = (torch.zeros(1, 12, 64, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def turn() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        passed = time.perf_counter() - started
        if device == "cuda":
            torch.cuda.synchronize()
        return passed

    found = []
    for _ in range(turns):
        plain = turn()
        with why_not_cudnn(ask=False):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            found.append(turn() - plain)
    return round(1e6 * statistics.median(found) / calls, 3)


def main() -> None:
    """Measure, print a line for each case, and write the figures. The exit code is 1 if a share may be too large."""
    parser = argparse.ArgumentParser(prog="python -m cudnn_backend_py.why.cost", description=__doc__)
    parser.add_argument("--output", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--seconds", type=float, default=8.0, help="of pairs, for each case")
    parser.add_argument("--steps", type=int, default=2, help="training steps of a turn")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compiled", action="store_true", help="also with torch.compile")
    options = parser.parse_args()
    import torch

    from ..info import start_record, write_record

    record = {**start_record("why-cost"), "torch": torch.__version__, "steps": options.steps}
    record["note_us"] = note_us = _note_us(options.device)
    print(f"noting a call takes {note_us:.2f} us", flush=True)
    figures: dict[str, Any] = {}
    for compiled in (False, True)[: 1 + options.compiled]:
        for name in options.cases:
            case = f"{name}, compiled" if compiled else name
            found = figures[case] = _measure(CASES[name], compiled, options.device, options.seconds, options.steps)
            low, high = (100 * share for share in found["share_interval"])
            told = f"watched {100 * found['share']:+.2f} % ({low:+.2f} to {high:+.2f}, {found['pairs']} pairs)"
            print(f"{case}: a step takes {found['plain_ms']:.3f} ms, {told}", flush=True)
            write_record({**record, "figures": figures}, options.output)
            if compiled:
                torch._dynamo.reset()
    raise SystemExit(0 if all(found["passed"] for found in figures.values()) else 1)


if __name__ == "__main__":
    main()
