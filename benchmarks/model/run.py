"""Compare a small GPT with our attention and others', trained on random lengths and served from pages.

Each maker of attention runs in a process of its own, one after the other, from the first use of its library on; before,
the process has done all else a step does. Told are the time to the first step, of the first epoch (every batch of
another length), of steps on lengths seen for the first time and again, tokens per second, and serving: prefill, and
decoding with and without a CUDA graph. All train the same numbers on the same text: their losses are compared, and at
the weights they begin with losses and gradients, which differ by rounding alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from cudnn_backend_py.cli.compare.contenders import load_operators
from cudnn_backend_py.info import start_record, write_record
from cudnn_backend_py.system.child import call_command
from cudnn_backend_py.terminal import WordTable, open_console
from tools.repository import child_environment

from ..judge import Accepted, judge, verdict_lines
from ..tables import draw_bars

__all__ = ["ACCEPTED", "add_options", "draw_model", "model_table", "run"]

WAYS = ("packed", "padded")
# Makers, in the order they are measured, and the ways they train; the last ones only where they are requested.
MAKERS: dict[str, tuple[str, ...]] = {
    "torch flash": WAYS,
    "ours, adaptive": WAYS,
    "torch cudnn": WAYS,
    "ours, any": ("padded",),  # of packed tokens there is one plan anyway
    "cudnn-frontend": WAYS,
    "ours, exact": WAYS,
    "torch plain": WAYS,
    "torch cudnn, nested": ("packed",),
}
LEFT_OUT = {"torch cudnn, nested": "it ends the CUDA context with an illegal memory access (torch 2.11.0, H200)"}
EPOCHS = ("first epoch", "new lengths", "known lengths")
OURS, FLASH, CUDNN = "ours, adaptive", "torch flash", "torch cudnn"
READY = "ready"
FIRST_STEPS = 5  # whose losses are compared one by one
TURN_S = 150.0  # of a process: what takes longer is ended
START_S = 60.0  # until all processes are ready
Figures = Mapping[str, Any]


# what is accepted


def _held(record: Figures, maker: str, *path: str) -> Any:
    """Return a figure of an implementation, None where it was not measured."""
    found: Any = record["makers"].get(maker)
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _ratio(record: Figures, maker: str, other: str, path: tuple[str, ...]) -> float | None:
    mine, theirs = _held(record, maker, *path), _held(record, other, *path)
    return None if mine is None or theirs is None else float(mine / theirs)


def _first_epochs(record: Figures, way: str) -> float | None:
    """Return our first epoch relative to torch's cuDNN, with new lengths; an upper bound if that was stopped."""
    mine, theirs = (_held(record, maker, way, EPOCHS[0]) for maker in (OURS, CUDNN))
    if mine is None or theirs is None or mine["steps"] < theirs["steps"]:
        return None
    return float(mine["seconds"] / theirs["seconds"])


def _apart(record: Figures, way: str) -> float | None:
    """Return how far losses are apart from those of torch's flash at most, relatively, over all makers.

    Those of the first steps, and the means of the last epoch: in between training makes much of little, and two runs
    of one maker are apart as far.
    """
    return _most_apart((_learnt(record, maker, way), _learnt(record, FLASH, way)) for maker in _others(record))


def _others(record: Figures) -> list[str]:
    return [maker for maker in record["makers"] if maker != FLASH]


def _most_apart(found: Iterable[tuple[Sequence[float] | None, Sequence[float] | None]]) -> float | None:
    """Return how far numbers are apart from their base at most, relatively: infinitely where one is none."""
    pairs = [pair for mine, base in found if mine and base for pair in zip(mine, base, strict=False)]
    apart = [abs(one / two - 1) for one, two in pairs]
    return max((x if math.isfinite(x) else math.inf for x in apart), default=None)


def _learnt(record: Figures, maker: str, way: str) -> list[float] | None:
    """Return the losses that are compared; a maker that did not end its epochs has those of the first steps alone."""
    first, last = (_held(record, maker, way, epoch, "losses") for epoch in (EPOCHS[0], EPOCHS[-1]))
    if first is None or last is None:
        return None
    whole = _steps(record, maker, way) == _steps(record, FLASH, way)
    return [*first[:FIRST_STEPS], *([statistics.mean(last)] if whole else [])]


def _steps(record: Figures, maker: str, way: str) -> list[Any]:
    """Return how long a maker trained: other weights have other losses."""
    return [_held(record, maker, way, epoch, "steps") for epoch in EPOCHS]


def _rounded_apart(record: Figures, way: str, what: str) -> float | None:
    """Return how far losses, or gradients, at the same weights are apart from those of torch's flash at most."""

    def of(maker: str) -> list[float]:
        found = _held(record, maker, way, "same weights", what) or []
        return [x for batch in found for x in batch] if what == "gradients" else found

    return _most_apart((of(maker), of(FLASH)) for maker in _others(record))


def _served_apart(record: Figures, way: str) -> float | None:
    def of(maker: str) -> list[float]:
        loss = _held(record, maker, way, "loss")
        whole = _steps(record, maker, "packed") == _steps(record, FLASH, "packed")
        return [loss] if whole and loss is not None else []

    return _most_apart((of(maker), of(FLASH)) for maker in _others(record))


def _accepted() -> Iterator[Accepted]:
    for way in WAYS:
        path = way, "new lengths", "step_ms"
        yield Accepted(
            f"{way}: a step on new lengths, {OURS} / {FLASH}", 1.0, partial(_ratio, maker=OURS, other=FLASH, path=path)
        )
        yield Accepted(f"{way}: first epoch, {OURS} / {CUDNN}", 0.3, partial(_first_epochs, way=way))
        yield Accepted(f"{way}: losses apart from those of {FLASH}", 0.01, partial(_apart, way=way))
        for what, limit in (("losses", 1e-3), ("gradients", 0.01)):
            figure = partial(_rounded_apart, way=way, what=what)
            yield Accepted(f"{way}: {what} at the same weights, apart from those of {FLASH}", limit, figure)
    for way in ("serving", "serving, captured"):
        yield Accepted(f"{way}: losses apart from those of {FLASH}", 0.01, partial(_served_apart, way=way))


ACCEPTED = tuple(_accepted())


# tables


def model_table(record: Figures) -> Table:
    """Return the table of all makers."""
    table = WordTable(
        title=f"A GPT of {record['parameters']} parameters: training and serving, milliseconds (tokens/s)"
    )
    table.add_column("")
    for name in record["makers"]:
        table.add_column(name, justify="right")
    rows = [(way, epoch, what) for way in WAYS for epoch in EPOCHS for what in _told(epoch)]
    for way, epoch, what in rows:
        cells = [_cell(record, maker, way, epoch, what) for maker in record["makers"]]
        table.add_row(f"{way}, {epoch}: {what}", *cells)
    for way in ("serving", "serving, captured"):
        for what in ("prefill_ms", "first_decode_ms", "decode_ms")[2 * (way != "serving") :]:
            cells = []
            for maker in record["makers"]:
                value, rate = _held(record, maker, way, what), _held(record, maker, way, "tokens_per_second")
                shown = f" ({rate:,})" if what == "decode_ms" and rate else ""
                cells.append("" if value is None else f"{value:.2f}{shown}")
            table.add_row(f"{way}: {what.removesuffix('_ms').replace('_', ' ')}", *cells)
    return table


def _told(epoch: str) -> tuple[str, ...]:
    return ("first step", "whole", "step", "host") if epoch == "first epoch" else ("step", "host")


def _cell(record: Figures, maker: str, way: str, epoch: str, what: str) -> str:
    found = _held(record, maker, way, epoch)
    if found is None:
        return ""
    if what == "whole":
        return f"{found['seconds'] * 1e3:.0f} in {found['steps']} steps"
    value = found[{"first step": "first_step_ms", "step": "step_ms", "host": "host_ms"}[what]]
    return f"{value:.2f}" + (f" ({found['tokens_per_second']:,})" if what == "step" else "")


def draw_model(record: Figures, path: Path) -> None:
    """Write a picture: tokens per second of each way to train and serve."""
    groups = {}
    for way in WAYS:
        for epoch in EPOCHS:
            groups[f"{way},\n{epoch}"] = _rates(record, way, epoch)
    bars = {"training, tokens per second": groups}
    bars["serving, tokens per second"] = {way: _rates(record, way) for way in ("serving", "serving, captured")}
    draw_bars(bars, path)


def _rates(record: Figures, *path: str) -> dict[str, float]:
    found = {maker: _held(record, maker, *path, "tokens_per_second") for maker in record["makers"]}
    return {maker: rate for maker, rate in found.items() if rate}


# processes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add which makers, how much, and what only a child process is given."""
    parser.add_argument("--makers", nargs="+", choices=MAKERS, default=list(MAKERS)[:5])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no other process has its turn")
    parser.add_argument("--plot", type=Path, help="draw tokens per second into this file")
    parser.add_argument(
        "--contiguous", action="store_true", help="copy q, k and v out of the one tensor they are made in"
    )
    parser.add_argument("--little", action="store_true", help="a tiny model: whether all runs")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)


def _child(options: argparse.Namespace) -> None:
    """Measure one part of one implementation when the parent requests it, and print a line of JSON."""
    from .measure import LITTLE, WHOLE, measure

    def ready() -> None:
        print(READY, flush=True)
        sys.stdin.readline()

    effort = replace(LITTLE if options.little else WHOLE, is_contiguous=options.contiguous)
    maker, way = options.child
    print(json.dumps(measure(maker, way, effort, options.device, ready)), flush=True)


class _Process:
    """A process for one part of one implementation, which waits for its turn; its plan folder is empty.

    What a kernel does to a GPU's context then costs no other way its figures.
    """

    def __init__(self, maker: str, way: str, options: argparse.Namespace, folder: Path) -> None:
        self.way, self._last, self._is_late = way, "", False
        plans = folder / f"{maker} {way}".replace(" ", "-").replace(",", "")
        plans.mkdir(mode=0o700)
        self._errors = plans.with_suffix(".txt")
        given = ["model", "--child", maker, way, "--device", options.device, *(["--little"] * options.little)]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                call_command("benchmarks.__main__:main", *given, *["--contiguous"] * options.contiguous),
                # Threads of several processes would only wait for each other: what they compute is on the GPU.
                env=child_environment(CUDNN_BACKEND_PLAN_CACHE=str(plans), OMP_NUM_THREADS="1"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait(self, limit_s: float) -> None:
        """Wait until it is ready; end it after a time limit."""
        self._last = self._read_until(READY, limit_s)

    def result(self, limit_s: float) -> dict[str, Any]:
        """Run it, and return its figures."""
        given = self.process.stdin
        assert given is not None
        if self._last == READY and limit_s > 0:
            given.write("\n")
            given.flush()
            self._last = self._read_until("{", limit_s)
        elif self._last == READY:
            return {self.way: {"not measured": "there was no time left"}}
        if self._last.startswith("{"):  # nothing is left to do but to give memory back, which takes seconds
            self.process.kill()
        code = self.process.wait()
        if self._is_late:
            return {self.way: {"not measured": f"it took too long and was ended, its last line: {self._last!r}"}}
        if not self._last.startswith("{"):
            said = self._errors.read_text().strip().splitlines()
            return {self.way: {"not measured": f"the process ended with {code}: {said[-1] if said else ''}"}}
        found: dict[str, Any] = json.loads(self._last)
        return found

    def _read_until(self, begin: str, limit_s: float) -> str:
        """Return the line with this prefix, or the last one of an ended process."""
        answers = self.process.stdout
        assert answers is not None

        def end() -> None:
            self._is_late = True
            self.process.kill()

        timer = threading.Timer(max(0.0, limit_s), end)
        timer.start()
        line = last = ""
        for line in iter(answers.readline, ""):
            last = line.strip()
            if last.startswith(begin):
                break
        timer.cancel()
        return last


def _read_libraries(makers: Sequence[str]) -> None:
    """Run both passes of all implementations once, so that the first one does not wait for the disk."""
    import torch

    from .attentions import NotOffered, make_attention

    for maker in makers:
        q, k, v = torch.zeros(3, 2, 64, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with suppress(NotOffered, RuntimeError):
            make_attention(maker).padded(q, k, v).sum().backward()


def run_makers(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of every part of every implementation.

    All processes are started at once, and run one after the other when all are ready.
    """
    names: Sequence[str] = options.makers
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        turns = [(maker, way) for maker in names for way in MAKERS[maker]]
        started = [(maker, _Process(maker, way, options, Path(name))) for maker, way in turns]
        try:
            if options.device == "cuda":
                load_operators()  # their compiled step is built once for a machine, by no maker's first step
                _read_libraries(names)
            loaded = time.perf_counter() - begin
            for _, process in started:
                process.wait(max(10.0, START_S - (time.perf_counter() - begin)))
            ready = time.perf_counter() - begin
            print(f"operators loaded after {loaded:.1f} s, all processes ready after {ready:.1f} s", flush=True)
            for maker, process in started:
                turn = time.perf_counter()
                figures = process.result(min(TURN_S, options.limit - (turn - begin)))
                figures[process.way]["turn_s"] = round(time.perf_counter() - turn, 1)
                print(f"{maker}, {process.way}: {figures[process.way]['turn_s']} s", flush=True)
                yield maker, figures
        finally:
            for _, process in started:
                process.process.kill()
                process.process.wait()


def run(options: argparse.Namespace) -> None:
    """Measure, print a table, and write."""
    if options.child:
        _child(options)
        return
    import torch

    from .gpt import Gpt
    from .measure import LITTLE, WHOLE

    begin = time.perf_counter()
    effort = replace(LITTLE if options.little else WHOLE, is_contiguous=options.contiguous)
    with torch.device("meta"):
        parameters = sum(x.numel() for x in Gpt(effort.sizes, device="meta").parameters())
    record: dict[str, Any] = {
        **start_record("model", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")),
        "gpu_name": torch.cuda.get_device_name() if options.device == "cuda" else "none",
        "torch": torch.__version__,
        "parameters": parameters,
        "effort": {name: value for name, value in vars(effort).items() if name != "sizes"} | vars(effort.sizes),
        "makers": {maker: {} for maker in options.makers},
        "left_out": {maker: why for maker, why in LEFT_OUT.items() if maker not in options.makers},
    }
    for maker, figures in run_makers(options):
        record["makers"][maker] |= figures
        write_record(record, options.output)  # what is known stays, should a later one not end
    record["seconds"] = round(time.perf_counter() - begin, 1)
    record["accepted"] = judge(record, ACCEPTED)
    for maker, ways in record["makers"].items():
        for way, found in ways.items():
            if isinstance(found, Mapping) and "not measured" in found:
                print(f"not measured: {maker}, {way}: {found['not measured']}")
    for maker, why in record["left_out"].items():
        print(f"left out: {maker}: {why}")
    console = open_console()
    console.print(model_table(record))
    for line in verdict_lines(record):
        console.print(line, style="red" if line.startswith("FAIL") else None)
    text = write_record(record, options.output)
    if options.output is None:
        print(text)
    if options.plot is not None:
        draw_model(record, options.plot)
