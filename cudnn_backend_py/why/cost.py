"""``python -m cudnn_backend_py.why.cost``: what a watch costs a training step, with and without one, in turns.

The model is a stack of layers with torch's own attention: large steps that the GPU bounds, small ones that the host
bounds, eager and compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

CASES = {"large": (8, 1024), "small": (1, 64)}  # sequences, length


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
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    x = torch.randn(sequences, length, 768, device=device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        called(x).float().square().mean().backward()
        optimizer.step()

    return step


def _turn(step: Callable[[], None], steps: int, device: str) -> float:
    """Return the seconds of a step."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    step()
    wait()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - started) / steps


def _note_us(device: str, calls: int = 500, turns: int = 20) -> float:
    """Return what the watch adds to a call on the host: the median of turns, in microseconds."""
    import torch

    from .look import why_not_cudnn

    q = torch.zeros(1, 12, 64, 64, device=device, dtype=torch.bfloat16, requires_grad=True)

    def turn() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        passed = time.perf_counter() - started
        if device == "cuda":
            torch.cuda.synchronize()
        return passed

    found = []
    for _ in range(turns):
        plain = turn()
        with why_not_cudnn(ask=False):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            found.append(turn() - plain)
    return round(1e6 * statistics.median(found) / calls, 3)


def main() -> None:
    """Measure, print a line for each case, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m cudnn_backend_py.why.cost", description=__doc__)
    parser.add_argument("--output", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of four turns")
    parser.add_argument("--steps", type=int, default=10, help="training steps of a turn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compiled", action="store_true", help="also with torch.compile")
    options = parser.parse_args()
    import torch

    from ..info import start_record, write_record
    from .look import why_not_cudnn

    note_us = _note_us(options.device)
    print(f"noting a call takes {note_us:.2f} us", flush=True)
    figures: dict[str, Any] = {}
    for name, (sequences, length) in CASES.items():
        for compiled in (False, True)[: 1 + options.compiled]:
            step = _trainer(sequences, length, options.device, compiled)
            _turn(step, 2, options.device)
            times: dict[str, list[float]] = {"plain": [], "watched": []}
            backends: set[str] = set()
            calls = 0
            for number in range(4 * options.rounds):
                watched = number % 4 in (1, 2)
                with why_not_cudnn(ask=False) if watched else contextlib.nullcontext() as report:
                    times["watched" if watched else "plain"].append(_turn(step, options.steps, options.device))
                if report is not None:
                    backends |= {str(one.answer.choice) for one in report.findings}
                    calls = sum(one.count for one in report.findings) // (options.steps + 1)
            pairs = zip(*(zip(found[::2], found[1::2], strict=True) for found in times.values()), strict=True)
            shares = [sum(watched_pair) / sum(plain_pair) - 1 for plain_pair, watched_pair in pairs]
            medians = {way: statistics.median(found) for way, found in times.items()}
            share, noted = statistics.median(shares), 0.0 if compiled else calls * note_us / 1e6 / medians["plain"]
            case = f"{name}, compiled" if compiled else name
            figures[case] = {
                **{f"{way}_ms": round(1000 * median, 4) for way, median in medians.items()},
                "share": round(share, 5),
                "share_quartiles": [round(one, 5) for one in statistics.quantiles(shares)[::2]],
                "calls_of_a_step": calls,
                "share_of_notes": round(noted, 5),
                "backends": sorted(backends),
            }
            told = f"watched {100 * share:+.2f} %, notes {100 * noted:.2f} %"
            print(f"{case}: a step takes {1000 * medians['plain']:.3f} ms, {told}", flush=True)
            if compiled:
                torch._dynamo.reset()
    record = {**start_record("why-cost"), "torch": torch.__version__, "steps": options.steps, "note_us": note_us}
    record["figures"] = figures
    write_record(record, options.output)


if __name__ == "__main__":
    main()
