"""What watching a program's attention costs a training step: with and without ``why_not_cudnn``, in turns.

The model is the small GPT of ``model``, in PyTorch's own attention, eager: large steps that the GPU bounds, small ones
that the host bounds, and those compiled as well.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

__all__ = ["add_options", "run"]

CASES = {"large": (8, 1024), "small": (1, 64)}  # sequences, length


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--rounds", type=int, default=15, help="turns of each")
    parser.add_argument("--steps", type=int, default=10, help="training steps of a turn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compiled", action="store_true", help="also with torch.compile")


def _trainer(sequences: int, length: int, device: str, compiled: bool) -> Callable[[], None]:
    import torch

    from .model.gpt import Gpt, Sizes, loss_of

    model = Gpt(Sizes(), device=device)

    def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (one.view(sequences, length, *one.shape[1:]).transpose(1, 2) for one in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(0, 1)

    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    tokens = torch.randint(512, (sequences * length,), device=device)
    positions = torch.arange(length, device=device).repeat(sequences)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(called(tokens, positions, attend), tokens).backward()
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


def run(options: argparse.Namespace) -> None:
    """Measure, print a line for each case, and write the figures."""
    import torch

    from ..info import start_record, write_record
    from ..why import why_not_cudnn

    figures = {}
    for name, (sequences, length) in CASES.items():
        for compiled in (False, True)[: 1 + options.compiled]:
            step = _trainer(sequences, length, options.device, compiled)
            _turn(step, 2, options.device)
            times: dict[str, list[float]] = {"plain": [], "watched": []}
            backends: set[str] = set()
            for number in range(2 * options.rounds):
                watched = number % 4 in (1, 2)
                with why_not_cudnn(ask=False) if watched else contextlib.nullcontext() as report:
                    times["watched" if watched else "plain"].append(_turn(step, options.steps, options.device))
                if report is not None:
                    backends |= {str(one.answer.choice) for one in report.findings}
            medians = {way: statistics.median(found) for way, found in times.items()}
            share = medians["watched"] / medians["plain"] - 1
            case = f"{name}, compiled" if compiled else name
            figures[case] = {
                **{f"{way}_ms": round(1000 * median, 4) for way, median in medians.items()},
                "quartiles_ms": {
                    way: [round(1000 * one, 4) for one in statistics.quantiles(found)[::2]]
                    for way, found in times.items()
                },
                "share": round(share, 5),
                "backends": sorted(backends),
            }
            print(f"{case}: a step takes {1000 * medians['plain']:.3f} ms, watched {100 * share:+.2f} %", flush=True)
            if compiled:
                torch._dynamo.reset()
    record = {**start_record("why-cost"), "torch": torch.__version__, "steps": options.steps, "figures": figures}
    write_record(record, options.output)
