"""Every row of the known issue table is reported by the frontend, and refused or reported by the attention builder."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import Graph, GraphError, attention
from cudnn_backend_py.frontend import FrontendKnownIssueWarning
from cudnn_backend_py.frontend.ops.node import Emitter
from cudnn_backend_py.known_issues import FAULTS, KnownIssue, KnownIssueWarning, find, find_known_issues
from tests.known_issues import BASE, EXAMPLES, Reproduction, graph_of
from tests.support.frontend_attention import CheckContext
from tests.support.issue_warnings import issue_warning_categories

# Those of shared plans are reported when a graph is finalized, those of some engines only if one of them runs.
ROWS = [fault for fault in FAULTS if fault.sharing is None and fault.affects_engine(None)]
CASES = [
    pytest.param(row, made, id=f"{row.code}:{name}")
    for row in ROWS
    for name, made in EXAMPLES[row.code].reproductions.items()
]


def situation(row: KnownIssue, made: Any) -> tuple[tuple[int, int, int], int, Graph]:
    """Return a version and an architecture with the known issue, and the graph built for them."""
    sm = row.sm[0] if row.sm else 86  # few other rows are for it
    for version in [(9, minor, patch) for minor in range(28, -1, -1) for patch in (0, 1)]:
        graph = graph_of(made, version)
        if row in find_known_issues(graph, sm, version):
            return version, sm, graph
    raise AssertionError(row.code)


@pytest.mark.parametrize(("row", "made"), CASES)
def test_every_row_is_reported_by_the_frontend_and_the_builder(
    row: KnownIssue, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_warned", set())
    version, sm, graph = situation(row, made)
    emitter = Emitter(CheckContext(version, sm), "any")  # type: ignore[arg-type]
    emitter.g.ops = list(graph.ops)
    assert issue_warning_categories(emitter.graph, row.code) == [FrontendKnownIssueWarning]
    if not isinstance(made, Reproduction) or row.attention is None:
        return
    build = attention.sdpa_backward if made.backward else attention.sdpa_forward
    problem = attention.Attention(**{**BASE, **made.options})

    def build_with_builder() -> None:
        build(problem, implementation=made.implementation, version=version, sm=sm)

    if row.refused:
        with pytest.raises(GraphError, match=row.code):
            build_with_builder()
    else:  # an unmeasured issue of values at run time is listed in verdicts only
        is_certain = bool(row.evidence or not row.depends_on)
        assert issue_warning_categories(build_with_builder, row.code) == [KnownIssueWarning] * is_certain
