"""Verify exact remedies before they are shown: the interpreter compares their results with the graph's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graph.guard import call_and_report_errors, report_error_line
from ...graph.ir import Graph
from ...rewrite.change_sequence import ChangeSequence
from ...rewrite.changes import Change
from ..verdict import Cause

if TYPE_CHECKING:
    from ...interpreter.compare import Comparison

__all__ = ["compare_results_with_changed_graph", "verify_changes_preserve_results"]


def verify_changes_preserve_results(
    graph: Graph, cause: Cause, claims: Mapping[str, Change]
) -> tuple[Cause, frozenset[str]]:
    """Check that a cause's exact changes preserve the results; return the cause and the titles of those that do not.

    Parameters
    ----------
    claims
        Exact changes by title; those that the remedy names are checked.
    """
    parts, wrong = [], set()
    for part in cause.remedy.split("; or "):
        change = claims.get(part)
        found = (
            None if change is None else compare_results_with_changed_graph(graph, ChangeSequence.from_change(change))
        )
        if change is not None and found is None:
            wrong.add(part)
        unreported = found is not None and found.state == "not compared"
        parts.append(f"{part} (exact, results not compared)" if unreported else part)
    return replace(cause, remedy="; or ".join(parts)), frozenset(wrong)


def compare_results_with_changed_graph(graph: Graph, solution: ChangeSequence | None) -> Comparison | None:
    """Compare the results of the changed and the original graph; if they differ, report that and return None."""
    from ...interpreter.compare import Comparison, compare

    if solution is None:
        return Comparison("not compared", "its steps cannot be repeated")
    failed = Comparison("not compared", "the interpreter failed")
    found = call_and_report_errors("the comparison of results", failed, compare, graph, solution)
    if found.state == "different":
        report_error_line(f"a change is not exact and was left out ({solution.title}; {found.words}): please report it")
        return None
    return found
