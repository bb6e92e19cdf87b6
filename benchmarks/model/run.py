"""Benchmark of a small GPT with the package's attention and others, trained and served with random lengths.

Each attention provider runs in its own process, one process at a time. The measurement starts with the first use of
attention; all other parts of a step have run before. The report has the time to the first step, the first epoch (each
batch has another length), steps with new and with known lengths, tokens per second, and serving: prefill, and decoding
with and without a CUDA graph. All providers train the same weights on the same text. Their losses are compared, and at
the initial weights also losses and gradients, which differ by rounding only.
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

from cudnn_backend_py.cli.compare.contenders import prepare_torch_operators
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.system.child import make_call_command
from cudnn_backend_py.terminal import BorderlessTextTable, open_console
from tools.repository import make_child_environment

from ..judge import MeasuredValueLimit, compare_record_with_limits, format_limit_lines
from ..tables import draw_bar_charts

__all__ = ["ACCEPTANCE_LIMITS", "add_options", "draw_model_throughput", "make_model_table", "run"]

BATCH_LAYOUTS = ("packed", "padded")
# Providers in the order of measurement, with their batch layouts; the last ones run only on request.
PROVIDER_MODES: dict[str, tuple[str, ...]] = {
    "torch flash": BATCH_LAYOUTS,
    "ours, adaptive": BATCH_LAYOUTS,
    "torch cudnn": BATCH_LAYOUTS,
    "ours, any": ("padded",),  # packed tokens have only one plan, as with "adaptive"
    "cudnn-frontend": BATCH_LAYOUTS,
    "ours, exact": BATCH_LAYOUTS,
    "torch plain": BATCH_LAYOUTS,
    "torch cudnn, nested": ("packed",),
}
EXCLUDED_PROVIDERS = {
    "torch cudnn, nested": "it ends the CUDA context with an illegal memory access (torch 2.11.0, H200)"
}
EPOCH_NAMES = ("first epoch", "new lengths", "known lengths")
OUR_PROVIDER, TORCH_FLASH_PROVIDER, TORCH_CUDNN_PROVIDER = "ours, adaptive", "torch flash", "torch cudnn"
READY_MESSAGE = "ready"
COMPARED_FIRST_STEPS = 5  # number of first steps with losses compared one by one
PROCESS_TIME_LIMIT_S = 150.0  # time limit for the measurement of a process
START_TIME_LIMIT_S = 60.0  # time limit until all processes are ready
Figures = Mapping[str, Any]


# acceptance limits


def _get_measured_value(record: Figures, provider: str, *path: str) -> Any:
    """Return a figure of a provider, None if it was not measured."""
    found: Any = record["makers"].get(provider)
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _compute_ratio_to_provider(record: Figures, provider: str, other: str, path: tuple[str, ...]) -> float | None:
    mine, theirs = _get_measured_value(record, provider, *path), _get_measured_value(record, other, *path)
    return None if mine is None or theirs is None else float(mine / theirs)


def _compute_first_epoch_ratio(record: Figures, way: str) -> float | None:
    """Return the ratio of our first epoch's time to torch cuDNN's; an upper bound if the latter hit the time limit."""
    mine, theirs = (
        _get_measured_value(record, provider, way, EPOCH_NAMES[0]) for provider in (OUR_PROVIDER, TORCH_CUDNN_PROVIDER)
    )
    if mine is None or theirs is None or mine["steps"] < theirs["steps"]:
        return None
    return float(mine["seconds"] / theirs["seconds"])


def _compute_loss_difference(record: Figures, way: str) -> float | None:
    """Return the largest relative difference of any provider's losses to those of torch's flash attention.

    The first steps and the means of the last epoch are compared. Training amplifies small differences in between, where
    even two runs of one provider differ as much.
    """
    return _find_largest_relative_difference(
        (_select_compared_losses(record, provider, way), _select_compared_losses(record, TORCH_FLASH_PROVIDER, way))
        for provider in _list_other_providers(record)
    )


def _list_other_providers(record: Figures) -> list[str]:
    return [provider for provider in record["makers"] if provider != TORCH_FLASH_PROVIDER]


def _find_largest_relative_difference(
    found: Iterable[tuple[Sequence[float] | None, Sequence[float] | None]],
) -> float | None:
    """Return the largest relative difference in pairs of numbers; infinite if a number is NaN."""
    pairs = [pair for mine, base in found if mine and base for pair in zip(mine, base, strict=False)]
    apart = [abs(one / two - 1) for one, two in pairs]
    return max((x if math.isfinite(x) else math.inf for x in apart), default=None)


def _select_compared_losses(record: Figures, provider: str, way: str) -> list[float] | None:
    """Return the losses to compare; a provider that did not finish its epochs has only those of the first steps."""
    first, last = (
        _get_measured_value(record, provider, way, epoch, "losses") for epoch in (EPOCH_NAMES[0], EPOCH_NAMES[-1])
    )
    if first is None or last is None:
        return None
    whole = _list_finished_steps_of_epochs(record, provider, way) == _list_finished_steps_of_epochs(
        record, TORCH_FLASH_PROVIDER, way
    )
    return [*first[:COMPARED_FIRST_STEPS], *([statistics.mean(last)] if whole else [])]


def _list_finished_steps_of_epochs(record: Figures, provider: str, way: str) -> list[Any]:
    """Return the number of finished training steps of each epoch; losses are comparable only if these are equal."""
    return [_get_measured_value(record, provider, way, epoch, "steps") for epoch in EPOCH_NAMES]


def _find_largest_difference_at_equal_weights(record: Figures, way: str, what: str) -> float | None:
    """Return the largest relative difference of losses or gradients to torch's flash attention, at equal weights."""

    def get_values(provider: str) -> list[float]:
        found = _get_measured_value(record, provider, way, "same weights", what) or []
        return [x for batch in found for x in batch] if what == "gradients" else found

    return _find_largest_relative_difference(
        (get_values(provider), get_values(TORCH_FLASH_PROVIDER)) for provider in _list_other_providers(record)
    )


def _compute_serving_loss_difference(record: Figures, way: str) -> float | None:
    def get_values(provider: str) -> list[float]:
        loss = _get_measured_value(record, provider, way, "loss")
        whole = _list_finished_steps_of_epochs(record, provider, "packed") == _list_finished_steps_of_epochs(
            record, TORCH_FLASH_PROVIDER, "packed"
        )
        return [loss] if whole and loss is not None else []

    return _find_largest_relative_difference(
        (get_values(provider), get_values(TORCH_FLASH_PROVIDER)) for provider in _list_other_providers(record)
    )


def _make_limits() -> Iterator[MeasuredValueLimit]:
    for way in BATCH_LAYOUTS:
        path = way, "new lengths", "step_ms"
        yield MeasuredValueLimit(
            f"{way}: a step on new lengths, {OUR_PROVIDER} / {TORCH_FLASH_PROVIDER}",
            1.0,
            partial(_compute_ratio_to_provider, provider=OUR_PROVIDER, other=TORCH_FLASH_PROVIDER, path=path),
        )
        yield MeasuredValueLimit(
            f"{way}: first epoch, {OUR_PROVIDER} / {TORCH_CUDNN_PROVIDER}",
            0.3,
            partial(_compute_first_epoch_ratio, way=way),
        )
        yield MeasuredValueLimit(
            f"{way}: losses apart from those of {TORCH_FLASH_PROVIDER}",
            0.01,
            partial(_compute_loss_difference, way=way),
        )
        for what, limit in (("losses", 1e-3), ("gradients", 0.01)):
            figure = partial(_find_largest_difference_at_equal_weights, way=way, what=what)
            yield MeasuredValueLimit(
                f"{way}: {what} at the same weights, apart from those of {TORCH_FLASH_PROVIDER}", limit, figure
            )
    for way in ("serving", "serving, captured"):
        yield MeasuredValueLimit(
            f"{way}: losses apart from those of {TORCH_FLASH_PROVIDER}",
            0.01,
            partial(_compute_serving_loss_difference, way=way),
        )


ACCEPTANCE_LIMITS = tuple(_make_limits())


# tables


def make_model_table(record: Figures) -> Table:
    """Return the table of times of all providers."""
    table = BorderlessTextTable(
        title=f"A GPT of {record['parameters']} parameters: training and serving, milliseconds (tokens/s)"
    )
    table.add_column("")
    for name in record["makers"]:
        table.add_column(name, justify="right")
    rows = [
        (way, epoch, what)
        for way in BATCH_LAYOUTS
        for epoch in EPOCH_NAMES
        for what in _select_table_columns_of_epoch(epoch)
    ]
    for way, epoch, what in rows:
        cells = [_format_cell(record, provider, way, epoch, what) for provider in record["makers"]]
        table.add_row(f"{way}, {epoch}: {what}", *cells)
    for way in ("serving", "serving, captured"):
        for what in ("prefill_ms", "first_decode_ms", "decode_ms")[2 * (way != "serving") :]:
            cells = []
            for provider in record["makers"]:
                value, rate = (
                    _get_measured_value(record, provider, way, what),
                    _get_measured_value(record, provider, way, "tokens_per_second"),
                )
                shown = f" ({rate:,})" if what == "decode_ms" and rate else ""
                cells.append("" if value is None else f"{value:.2f}{shown}")
            table.add_row(f"{way}: {what.removesuffix('_ms').replace('_', ' ')}", *cells)
    return table


def _select_table_columns_of_epoch(epoch: str) -> tuple[str, ...]:
    return ("first step", "whole", "step", "host") if epoch == "first epoch" else ("step", "host")


def _format_cell(record: Figures, provider: str, way: str, epoch: str, what: str) -> str:
    found = _get_measured_value(record, provider, way, epoch)
    if found is None:
        return ""
    if what == "whole":
        return f"{found['seconds'] * 1e3:.0f} in {found['steps']} steps"
    value = found[{"first step": "first_step_ms", "step": "step_ms", "host": "host_ms"}[what]]
    return f"{value:.2f}" + (f" ({found['tokens_per_second']:,})" if what == "step" else "")


def draw_model_throughput(record: Figures, path: Path) -> None:
    """Draw tokens per second for each mode of training and serving."""
    groups = {}
    for way in BATCH_LAYOUTS:
        for epoch in EPOCH_NAMES:
            groups[f"{way},\n{epoch}"] = _compute_tokens_per_second(record, way, epoch)
    bars = {"training, tokens per second": groups}
    bars["serving, tokens per second"] = {
        way: _compute_tokens_per_second(record, way) for way in ("serving", "serving, captured")
    }
    draw_bar_charts(bars, path)


def _compute_tokens_per_second(record: Figures, *path: str) -> dict[str, float]:
    found = {
        provider: _get_measured_value(record, provider, *path, "tokens_per_second") for provider in record["makers"]
    }
    return {provider: rate for provider, rate in found.items() if rate}


# child processes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the providers, the amount of work, and the plot."""
    parser.add_argument("--makers", nargs="+", choices=PROVIDER_MODES, default=list(PROVIDER_MODES)[:5])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no further process is measured")
    parser.add_argument("--plot", type=Path, help="file for a plot of tokens per second")
    parser.add_argument("--contiguous", action="store_true", help="copy q, k and v out of their common tensor")
    parser.add_argument("--little", action="store_true", help="use a tiny model, to test that everything runs")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)


def _measure_in_child(options: argparse.Namespace) -> None:
    """Measure one mode of one provider when the parent sends a line, and print the figures as JSON."""
    from .measure import FULL_WORK, SMALL_WORK, measure_attention_provider

    def report_ready_and_wait_for_parent() -> None:
        print(READY_MESSAGE, flush=True)
        sys.stdin.readline()

    effort = replace(SMALL_WORK if options.little else FULL_WORK, is_contiguous=options.contiguous)
    provider, way = options.child
    print(
        json.dumps(measure_attention_provider(provider, way, effort, options.device, report_ready_and_wait_for_parent)),
        flush=True,
    )


class _ProviderProcess:
    """A child process for one mode of one provider, with a plan cache folder of its own.

    So a kernel that changes the state of its CUDA context does not affect the figures of other providers.
    """

    def __init__(self, provider: str, way: str, options: argparse.Namespace, folder: Path) -> None:
        self.way, self._last, self._is_late = way, "", False
        plans = folder / f"{provider} {way}".replace(" ", "-").replace(",", "")
        plans.mkdir(mode=0o700)
        self._errors = plans.with_suffix(".txt")
        given = ["model", "--child", provider, way, "--device", options.device, *(["--little"] * options.little)]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                make_call_command("benchmarks.__main__:main", *given, *["--contiguous"] * options.contiguous),
                # One thread per process: the work is on the GPU, and more threads would compete for the cores.
                env=make_child_environment(CUDNN_BACKEND_PLAN_CACHE=str(plans), OMP_NUM_THREADS="1"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait(self, limit_s: float) -> None:
        """Wait until the process is ready; kill it after the time limit."""
        self._last = self._read_until_line_begins(READY_MESSAGE, limit_s)

    def result(self, limit_s: float) -> dict[str, Any]:
        """Let the process measure, and return its figures."""
        given = self.process.stdin
        assert given is not None
        if self._last == READY_MESSAGE and limit_s > 0:
            given.write("\n")
            given.flush()
            self._last = self._read_until_line_begins("{", limit_s)
        elif self._last == READY_MESSAGE:
            return {self.way: {"not measured": "there was no time left"}}
        if self._last.startswith("{"):  # the process only has to free memory, which takes seconds
            self.process.kill()
        code = self.process.wait()
        if self._is_late:
            return {self.way: {"not measured": f"it took too long and was ended, its last line: {self._last!r}"}}
        if not self._last.startswith("{"):
            said = self._errors.read_text().strip().splitlines()
            return {self.way: {"not measured": f"the process ended with {code}: {said[-1] if said else ''}"}}
        found: dict[str, Any] = json.loads(self._last)
        return found

    def _read_until_line_begins(self, begin: str, limit_s: float) -> str:
        """Return the first line that starts with ``begin``, or the last line if the process ends."""
        answers = self.process.stdout
        assert answers is not None

        def stop_process() -> None:
            self._is_late = True
            self.process.kill()

        timer = threading.Timer(max(0.0, limit_s), stop_process)
        timer.start()
        line = last = ""
        for line in iter(answers.readline, ""):
            last = line.strip()
            if last.startswith(begin):
                break
        timer.cancel()
        return last


def _warm_up_libraries(makers: Sequence[str]) -> None:
    """Run both passes of all providers once, so that no child process has to read libraries from disk."""
    import torch

    from .attentions import AttentionNotOffered, make_attention_provider

    for provider in makers:
        q, k, v = torch.zeros(3, 2, 64, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with suppress(AttentionNotOffered, RuntimeError):
            make_attention_provider(provider).attend_padded(q, k, v).sum().backward()


def measure_all_providers(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of every mode of every provider.

    All processes are started together; when all are ready, they measure one after the other.
    """
    names: Sequence[str] = options.makers
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        turns = [(provider, way) for provider in names for way in PROVIDER_MODES[provider]]
        started = [(provider, _ProviderProcess(provider, way, options, Path(name))) for provider, way in turns]
        try:
            if options.device == "cuda":
                prepare_torch_operators()  # builds the compiled step before any measurement
                _warm_up_libraries(names)
            loaded = time.perf_counter() - begin
            for _, process in started:
                process.wait(max(10.0, START_TIME_LIMIT_S - (time.perf_counter() - begin)))
            ready = time.perf_counter() - begin
            print(f"operators loaded after {loaded:.1f} s, all processes ready after {ready:.1f} s", flush=True)
            for provider, process in started:
                turn = time.perf_counter()
                figures = process.result(min(PROCESS_TIME_LIMIT_S, options.limit - (turn - begin)))
                figures[process.way]["turn_s"] = round(time.perf_counter() - turn, 1)
                print(f"{provider}, {process.way}: {figures[process.way]['turn_s']} s", flush=True)
                yield provider, figures
        finally:
            for _, process in started:
                process.process.kill()
                process.process.wait()


def run(options: argparse.Namespace) -> None:
    """Measure all providers, print a table, and write the record."""
    if options.child:
        _measure_in_child(options)
        return
    import torch

    from .gpt import Gpt
    from .measure import FULL_WORK, SMALL_WORK

    begin = time.perf_counter()
    effort = replace(SMALL_WORK if options.little else FULL_WORK, is_contiguous=options.contiguous)
    with torch.device("meta"):
        parameters = sum(x.numel() for x in Gpt(effort.sizes, device="meta").parameters())
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "model", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "gpu_name": torch.cuda.get_device_name() if options.device == "cuda" else "none",
        "torch": torch.__version__,
        "parameters": parameters,
        "effort": {name: value for name, value in vars(effort).items() if name != "sizes"} | vars(effort.sizes),
        "makers": {provider: {} for provider in options.makers},
        "left_out": {provider: why for provider, why in EXCLUDED_PROVIDERS.items() if provider not in options.makers},
    }
    for provider, figures in measure_all_providers(options):
        record["makers"][provider] |= figures
        write_record(record, options.output)  # store these figures in case a later process hangs
    record["seconds"] = round(time.perf_counter() - begin, 1)
    record["accepted"] = compare_record_with_limits(record, ACCEPTANCE_LIMITS)
    for provider, ways in record["makers"].items():
        for way, found in ways.items():
            if isinstance(found, Mapping) and "not measured" in found:
                print(f"not measured: {provider}, {way}: {found['not measured']}")
    for provider, why in record["left_out"].items():
        print(f"left out: {provider}: {why}")
    console = open_console()
    console.print(make_model_table(record))
    for line in format_limit_lines(record):
        console.print(line, style="red" if line.startswith("FAIL") else None)
    text = write_record(record, options.output)
    if options.output is None:
        print(text)
    if options.plot is not None:
        draw_model_throughput(record, options.plot)
