"""Notebook views: graphs as drawings, other values as HTML fragments; called by `system/notebook.py`."""

from __future__ import annotations

from functools import singledispatch

from rich.table import Table

from ...execution.executable import Executable
from ...graph import Graph
from ...plans.plan import Plan
from ...rewrite.changes import Change
from ..remedy import Remedies, Remedy
from ..surveys.matrix import Matrix
from ..surveys.since import Since
from ..verdict import Verdict
from .drawing import draw_svg_file
from .html import (
    render_change_html,
    render_plan_html,
    render_remedies_html,
    render_tables_html,
    render_verdict_html,
    render_verdict_matrix_html,
)

__all__ = ["render_for_notebook", "render_tables_for_notebook"]


def render_for_notebook(value: object) -> str | None:
    """Return a value as HTML or SVG for a notebook; None for types that are shown as text."""
    return _render_value(value)


def render_tables_for_notebook(*tables: Table) -> str | None:
    """Return tables for a notebook, None to show them as text."""
    return render_for_notebook(tables)


@singledispatch
def _render_value(value: object) -> str | None:
    return None


_render_value.register(Verdict, render_verdict_html)
_render_value.register(Matrix, render_verdict_matrix_html)
_render_value.register(Plan, render_plan_html)
_render_value.register(Change, render_change_html)
_render_value.register(Remedies, lambda found: render_remedies_html(found, found.graph))
_render_value.register(tuple, render_tables_html)


@_render_value.register
def _render_graph(graph: Graph) -> str | None:
    return draw_svg_file(graph) or None


@_render_value.register
def _render_executable(executable: Executable) -> str:
    return render_plan_html(executable.plan)


@_render_value.register
def _render_remedy(remedy: Remedy) -> str:
    return render_remedies_html([remedy])


@_render_value.register
def _render_supporting_version_range(since: Since) -> str:
    cells = {(since.graph, since.target, version): cell for version, cell in since.asked.items()}
    return render_verdict_matrix_html(Matrix((since.graph,), (since.target,), since.versions, cells))
