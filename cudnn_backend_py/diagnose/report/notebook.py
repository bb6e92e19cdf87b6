"""Notebook views: graphs as drawings, other values as HTML fragments; called by `system/notebook.py`."""

from __future__ import annotations

from functools import singledispatch

from rich.table import Table

from ...execution.executable import Executable
from ...graph import Graph
from ...plans.plan import Plan
from ...rewrite.changes import Change
from ..remedies import Remedies, Remedy
from ..surveys.matrix import Matrix
from ..surveys.since import Since
from ..verdict import Verdict
from .drawing import draw_file
from .html import change_html, matrix_html, plan_html, remedies_html, tables_html, verdict_html

__all__ = ["show", "show_tables"]


def show(value: object) -> str | None:
    """Return the view of a value; None for types shown as text."""
    return _render(value)


def show_tables(*tables: Table) -> str | None:
    """Return tables for a notebook, None to show them as text."""
    return show(tables)


@singledispatch
def _render(value: object) -> str | None:
    return None


_render.register(Verdict, verdict_html)
_render.register(Matrix, matrix_html)
_render.register(Plan, plan_html)
_render.register(Change, change_html)
_render.register(Remedies, lambda found: remedies_html(found, found.graph))
_render.register(tuple, tables_html)


@_render.register
def _(graph: Graph) -> str | None:
    return draw_file(graph) or None


@_render.register
def _(executable: Executable) -> str:
    return plan_html(executable.plan)


@_render.register
def _(remedy: Remedy) -> str:
    return remedies_html([remedy])


@_render.register
def _(since: Since) -> str:
    cells = {(since.graph, since.target, version): cell for version, cell in since.asked.items()}
    return matrix_html(Matrix((since.graph,), (since.target,), since.versions, cells))
