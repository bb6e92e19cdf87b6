"""Tables and plots of recorded measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ...errors import EnvironmentNotReady
from ...printable import format_in_angle_brackets

__all__ = ["RecordTables", "draw_point_chart", "load_figure_class"]


class RecordTables(dict[str, Any]):
    """A record of measurements as plain data; a notebook shows it as tables."""

    def __init__(self, figures: Mapping[str, Any], tables: Callable[[Mapping[str, Any]], Sequence[Table]]) -> None:
        super().__init__(figures)
        self._tables = tables

    def __repr__(self) -> str:
        where = self.get("gpu_name") or self.get("described", "")
        return format_in_angle_brackets(f"Record {self['schema']} of {self['date']}: {where}, {self['seconds']} s")

    def _repr_html_(self) -> str | None:
        from ...diagnose.report.notebook import render_tables_for_notebook

        return render_tables_for_notebook(*self._tables(self))


def draw_point_chart(figures: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path, title: str = "") -> None:
    """Plot the points in `figures` (axis label -> group on the x axis -> name -> value) into an image file.

    The ending of the path gives the format of the file.

    Raises
    ------
    EnvironmentNotReady
        ``matplotlib-missing``.
    """
    most = max((len(groups) for groups in figures.values()), default=1)
    figure = load_figure_class()(figsize=(max(8, 0.45 * most + 3), 5 * max(1, len(figures))), layout="constrained")
    figure.suptitle(title, fontsize=7)
    names = dict.fromkeys(name for groups in figures.values() for points in groups.values() for name in points)
    for axes, (label, groups) in zip(
        figure.subplots(max(1, len(figures)), 1, squeeze=False)[:, 0], figures.items(), strict=False
    ):
        for number, name in enumerate(names):  # of one colour and marker on every axis
            if held := [(at, points[name]) for at, points in enumerate(groups.values()) if name in points]:
                style = f"C{number % 10}{'os^vD*PXxp'[number % 10]}"
                axes.plot(*zip(*held, strict=True), style, markersize=4, label=name, alpha=0.8)
        axes.set_xticks(range(len(groups)), list(groups), rotation=90, fontsize=5)
        axes.set_ylabel(label)
        axes.grid(axis="y", linewidth=0.3)
        axes.legend(fontsize=6, ncols=6, loc="lower left", bbox_to_anchor=(0, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def load_figure_class() -> Any:
    """Return matplotlib's class of figures.

    Raises
    ------
    EnvironmentNotReady
        ``matplotlib-missing``.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentNotReady(
            "drawing the figures needs matplotlib",
            code="matplotlib-missing",
            cause=str(error),
            fix="pip install matplotlib, or leave --plot out",
        ) from None
    return Figure
