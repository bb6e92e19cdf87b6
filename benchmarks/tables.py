"""Tables and charts of benchmark records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from cudnn_backend_py.cli.compare.figures import load_figure_class
from cudnn_backend_py.cli.compare.problems import DIRECTIONS
from cudnn_backend_py.terminal import BorderlessTextTable

__all__ = [
    "draw_bar_charts",
    "draw_tflops",
    "make_all_tables",
    "make_fresh_process_table",
    "make_gpu_table",
    "make_host_table",
    "make_ragged_table",
]


def make_all_tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a record of ``python -m benchmarks run``."""
    return [make(record) for make in (make_host_table, make_ragged_table, make_gpu_table, make_fresh_process_table)]


def make_host_table(record: Mapping[str, Any]) -> Table:
    """Return the table of host time per call."""
    table = BorderlessTextTable(title=f"Host time per call, microseconds ({record['host']['problem']})")
    table.add_column("")
    for direction in DIRECTIONS:
        table.add_column(direction, justify="right")
        table.add_column("quartiles", justify="right", style="dim")
    names = dict.fromkeys(name for direction in DIRECTIONS for name in record["host"][direction])
    for name in names:
        cells = []
        for direction in DIRECTIONS:
            timing = record["host"][direction].get(name)
            cells += ["", ""] if timing is None else [f"{timing['median_us']:.2f}", _format_quartiles(timing)]
        table.add_row(name, *cells)
    return table


def _format_quartiles(timing: Mapping[str, float]) -> str:
    return f"{timing['low_us']:.2f} to {timing['high_us']:.2f}"


def make_ragged_table(record: Mapping[str, Any]) -> Table:
    """Return the table of host time per call of a ragged plan."""
    table = BorderlessTextTable(title="Host time per call of a ragged plan, microseconds")
    for name in ("", "median", "quartiles"):
        table.add_column(name, justify="right" if name else "left", style="dim" if name == "quartiles" else "")
    for name, timing in record["ragged"].items():
        table.add_row(name, f"{timing['median_us']:.2f}", _format_quartiles(timing))
    return table


def make_gpu_table(record: Mapping[str, Any]) -> Table:
    names = list(dict.fromkeys(name for row in record["gpu"] for name in row["us"]))
    table = BorderlessTextTable(
        title=f"GPU time, microseconds (TFLOP/s); matrix product {record['matrix_tflops']} TFLOP/s"
    )
    table.add_column("")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("gain by tuning", justify="right")
    for row in record["gpu"]:
        cells = [
            f"{row['us'][name]['median_us']:.1f} ({row['tflops'][name]:.0f})" if name in row["us"] else ""
            for name in names
        ]
        gain = row["us"]["ours"]["median_us"] / row["us"]["ours, autotuned"]["median_us"] - 1
        table.add_row(row["shape"], row["direction"], *cells, f"{gain:+.1%}")
    return table


def make_fresh_process_table(record: Mapping[str, Any]) -> Table:
    table = BorderlessTextTable(title="Fresh process to first result, milliseconds, importing torch left out")
    names = list(next(iter(record["fresh"].values()), ()))
    for name in ("", *names):
        table.add_column(name, justify="left" if not name else "right")
    for way, figures in record["fresh"].items():
        table.add_row(way, *(f"{figures[name]:.1f}" for name in names))
    return table


def draw_tflops(record: Mapping[str, Any], path: Path) -> None:
    """Draw TFLOP/s by shape; the suffix of the path selects the file format.

    Raises
    ------
    EnvironmentNotReady
        ``matplotlib-missing``.
    """
    figure = load_figure_class()(figsize=(11, 8), layout="constrained")
    for axes, direction in zip(figure.subplots(2, 1), DIRECTIONS, strict=True):
        rows = [row for row in record["gpu"] if row["direction"] == direction]
        names = list(dict.fromkeys(name for row in rows for name in row["tflops"]))
        width = 0.8 / max(1, len(names))
        for number, name in enumerate(names):
            held = [(index, row["tflops"][name]) for index, row in enumerate(rows) if name in row["tflops"]]
            axes.bar([index + number * width for index, _ in held], [y for _, y in held], width, label=name)
        axes.axhline(record["matrix_tflops"], color="black", linewidth=0.8, linestyle="--", label="matrix product")
        axes.set_xticks(range(len(rows)), [row["shape"] for row in rows], rotation=35, ha="right", fontsize=7)
        axes.set_ylabel(f"{direction}, TFLOP/s")
        axes.legend(fontsize=7, ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_bar_charts(figures: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Draw bar charts: one chart per title, one group of bars per label in it; the suffix selects the file format.

    Raises
    ------
    EnvironmentNotReady
        ``matplotlib-missing``.
    """
    figure = load_figure_class()(figsize=(11, 4 * len(figures)), layout="constrained")
    for axes, (title, groups) in zip(
        figure.subplots(len(figures), 1, squeeze=False)[:, 0], figures.items(), strict=True
    ):
        names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
        width = 0.8 / max(1, len(names))
        for number, name in enumerate(names):
            held = [(index, bars[name]) for index, bars in enumerate(groups.values()) if name in bars]
            axes.bar([index + number * width for index, _ in held], [y for _, y in held], width, label=name)
        axes.set_xticks([at + (len(names) - 1) * width / 2 for at in range(len(groups))], list(groups), fontsize=7)
        axes.set_ylabel(title)
        axes.legend(fontsize=7, ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
