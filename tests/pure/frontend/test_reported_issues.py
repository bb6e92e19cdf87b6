"""The frontend reports each known issue of the table; the attention builder refuses or reports it."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import Graph, GraphError, attention
from cudnn_backend_py.frontend import FrontendKnownIssueWarning
from cudnn_backend_py.frontend.ops.node import Emitter
from cudnn_backend_py.known_issues import FAULTS, KnownIssue, KnownIssueWarning, find, find_known_issues
from tests.known_issues import BASE_OPTIONS, EXAMPLES, Reproduction, make_example_graph
from tests.support.frontend_attention import NodeCheckContext
from tests.support.issue_warnings import list_issue_warning_categories

# Those of shared plans are reported when a graph is finalized, those of some engines only if one of them runs.
ATTENTION_ISSUES = [fault for fault in FAULTS if fault.sharing is None and fault.affects_engine(None)]
ISSUE_CASES = [
    pytest.param(row, made, id=f"{row.code}:{name}")
    for row in ATTENTION_ISSUES
    for name, made in EXAMPLES[row.code].reproductions.items()
]


def find_affected_version_sm_and_graph(row: KnownIssue, made: Any) -> tuple[tuple[int, int, int], int, Graph]:
    """Return a cuDNN version, an architecture and a graph with the known issue."""
    sm = row.sm[0] if row.sm else 86  # few other rows are for it
    for version in [(9, minor, patch) for minor in range(28, -1, -1) for patch in (0, 1)]:
        graph = make_example_graph(made, version)
        if row in find_known_issues(graph, sm, version):
            return version, sm, graph
    raise AssertionError(row.code)


@pytest.mark.parametrize(("row", "made"), ISSUE_CASES)
def test_every_known_issue_is_reported_by_the_frontend_and_the_builder(
    row: KnownIssue, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_warned", set())
    version, sm, graph = find_affected_version_sm_and_graph(row, made)
    emitter = Emitter(NodeCheckContext(version, sm), "any")  # type: ignore[arg-type]
    emitter.builder.ops = list(graph.ops)
    assert list_issue_warning_categories(emitter.make_graph, row.code) == [FrontendKnownIssueWarning]
    if not isinstance(made, Reproduction) or row.attention is None:
        return
    build = attention.sdpa_backward if made.backward else attention.sdpa_forward
    problem = attention.Attention(**{**BASE_OPTIONS, **made.options})

    def build_attention() -> None:
        build(problem, implementation=made.implementation, version=version, sm=sm)

    if row.refused:
        with pytest.raises(GraphError, match=row.code):
            build_attention()
    else:  # an unmeasured issue of values at run time is listed in verdicts only
        is_certain = bool(row.evidence or not row.depends_on)
        assert list_issue_warning_categories(build_attention, row.code) == [KnownIssueWarning] * is_certain
