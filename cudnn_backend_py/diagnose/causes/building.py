"""Find why no plan of a graph compiles: build a limited number of variations until one succeeds.

The compiler's own log is not to be had: cuDNN keeps it, and says that NVRTC failed. That is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...frozen import FrozenValue
from ...graph.ir import Graph
from ...rewrite.changes import Change, iterate_changes
from ..verdict import Basis, Cause
from .case import RefusalCase, describe_found_and_needed_values, format_reason_quote, order_reasons
from .registry import format_supporting_targets_remedy
from .together import OPTION_CHANGE_KINDS, format_option_name

__all__ = ["BUILD_CHANGE_KINDS", "explain_build_failure"]


#: Kinds of changes that may compile where a graph does not: what kernels are seldom compiled with comes first.
BUILD_CHANGE_KINDS = (
    "deterministic",
    *OPTION_CHANGE_KINDS,
    "flatten",
    "smaller_head_dim",
    "alignment",
    "layout",
    "virtual",
    "pad_head_dim",
    "pad_sequence",
    "pad_channels",
    "composite",
    "unified",
    "scale",
    "intermediate_type",
    "data_type",
    "drop_operation",
)


def explain_build_failure(case: RefusalCase) -> Cause | None:
    """Engine configs pass their support check, but no plan can be built.

    Problem
        INTERNAL_ERROR_COMPILATION_FAILED and the like from the finalization of every plan.
    Evidence
        The graph without an option, with a smaller head dim, with one change, or on another architecture: the first
        of these of which a plan is built.
    Remedy
        That one.
    Since
        Any version.
    """
    found = _find_buildable_variation(case)
    others = [] if found is not None else case.supporting_architectures
    if found is None and not others:
        return None
    reasons = order_reasons(case.refused)
    quoted = format_reason_quote(reasons[0]) if reasons else ""
    where = f"on sm_{case.target.sm} no plan can be built"
    if found is None:
        headline = f"{where}, for {', '.join(others)} one can{quoted}"
        return Cause(
            "no-plan-builds",
            headline,
            Basis.MEASURED,
            _format_build_detail(case, "there"),
            format_supporting_targets_remedy(others),
        )
    headline = f"{found.headline}: {where}{quoted}"
    return Cause("no-plan-builds", headline, Basis.MEASURED, _format_build_detail(case, found.title), found.remedy)


def _format_build_detail(case: RefusalCase, what: str) -> str:
    passed = f"engine configs passed their support check ({len(case.refused)}), and no plan of them compiles"
    return f"{passed}; {what}, and nothing else changed, a plan is built"


class _GraphVariation(FrozenValue):
    """A change that may make a plan compile, with texts for headline, detail and remedy."""

    change: Change
    headline: str
    title: str
    remedy: str


def _find_buildable_variation(case: RefusalCase) -> _GraphVariation | None:
    for one in _list_graph_variations(case.graph):
        if (
            one.change.title not in case.wrong_claims
            and case.supports(one.change.graph)
            and case.store_result_preserving_change(one.change)
        ):
            return one
    return None


def _list_graph_variations(graph: Graph) -> Iterator[_GraphVariation]:
    for change in iterate_changes(graph, BUILD_CHANGE_KINDS):
        if len(change.graphs) != 1:
            continue
        title, found = f"with {change.title}", describe_found_and_needed_values(graph, change)
        if change.title.startswith("without "):
            title, found = change.title, f"with {format_option_name(change.title)}"
        elif change.kind == "deterministic":
            found = f"{change.tensors[0]} is {'summed in float32' if '=True' in title else 'written by its matmul'}"
        elif change.kind == "smaller_head_dim":
            found = re.sub(r": (\d+) -> \d+", r" is \1", change.title)
        yield _GraphVariation(change, found, title, change.advice)
