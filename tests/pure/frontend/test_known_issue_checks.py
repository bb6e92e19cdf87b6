"""Tests that every function that builds or judges a graph checks the table of known issues."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cudnn_backend_py import DataType, GraphError, attention
from cudnn_backend_py.frontend import FrontendKnownIssueWarning
from cudnn_backend_py.graph.attention.problem import TensorLayout
from cudnn_backend_py.known_issues import FAULTS, KnownIssue, KnownIssueWarning, find, find_known_issues
from cudnn_backend_py.system.version import VersionRange
from cudnn_backend_py.torch_ops.arguments import OperatorOptions
from cudnn_backend_py.torch_ops.graphs import make_attention_graph
from tests.support.frontend_attention import RecordingGraph, call_frontend_attention
from tests.support.issue_warnings import list_issue_warning_categories

AFFECTED_VERSION, UNAFFECTED_VERSION = (9, 19, 0), (9, 18, 1)
MADE_UP_ISSUE = KnownIssue(
    "made-up",
    what="s_q of 96",
    effect="nothing",
    fix="use another s_q",
    source="examples/none.py",
    evidence="not measured",
    versions=VersionRange(AFFECTED_VERSION),
    sm=(90,),
    attention=lambda use: use.problem.seq_q == 96,
    refused=True,
)
ATTENTION_PROBLEM = attention.Attention(batch=2, heads=2, seq_q=96, head_dim=64)


@pytest.fixture(params=[True, False], ids=["refused", "reported"], autouse=True)
def made_up_known_issue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KnownIssue:
    """Add a made-up known issue to the table, once as refused by the builder and once as only reported."""
    made = dataclasses.replace(MADE_UP_ISSUE, refused=request.param)
    monkeypatch.setattr(find, "FAULTS", (*FAULTS, made))
    monkeypatch.setattr(find, "_warned", set())
    return made


def is_graph_refused(made_up_known_issue: KnownIssue, version: tuple[int, int, int], sm: int) -> bool:
    return made_up_known_issue.refused and version >= AFFECTED_VERSION and sm == 90


@pytest.mark.parametrize(("version", "sm"), [(AFFECTED_VERSION, 90), (UNAFFECTED_VERSION, 90), (AFFECTED_VERSION, 100)])
@pytest.mark.parametrize("build", [attention.sdpa_forward, attention.sdpa_backward])
def test_builder_refuses_or_reports_the_known_issue(
    made_up_known_issue: KnownIssue, build: Any, version: tuple[int, int, int], sm: int
) -> None:
    if is_graph_refused(made_up_known_issue, version, sm):
        with pytest.raises(GraphError, match="made-up") as caught:
            build(ATTENTION_PROBLEM, version=version, sm=sm)
        assert caught.value.code == "attention-hazard"
    else:
        seen = list_issue_warning_categories(lambda: build(ATTENTION_PROBLEM, version=version, sm=sm), "made-up")
        assert seen == [KnownIssueWarning] * (
            not made_up_known_issue.refused and version >= AFFECTED_VERSION and sm == 90
        )
    assert (
        list_issue_warning_categories(
            lambda: build(ATTENTION_PROBLEM, version=version, sm=sm, allow_hazards=True), "made-up"
        )
        == []
    )


@pytest.mark.parametrize(("version", "sm"), [(None, 90), (AFFECTED_VERSION, None)])
def test_builder_without_version_or_architecture_refuses_or_does_not_warn(
    made_up_known_issue: KnownIssue, version: Any, sm: int | None
) -> None:
    """Without version or architecture, issues that the builder refuses are still refused, others give no warning."""
    if made_up_known_issue.refused:
        with pytest.raises(GraphError, match="made-up"):
            attention.sdpa_forward(ATTENTION_PROBLEM, version=version, sm=sm)
    else:
        assert (
            list_issue_warning_categories(
                lambda: attention.sdpa_forward(ATTENTION_PROBLEM, version=version, sm=sm), "made-up"
            )
            == []
        )


def test_a_known_issue_is_reported_once(made_up_known_issue: KnownIssue) -> None:
    if not made_up_known_issue.refused:
        seen = [
            list_issue_warning_categories(
                lambda: attention.sdpa_forward(ATTENTION_PROBLEM, version=AFFECTED_VERSION, sm=90), "made-up"
            )
            for _ in range(2)
        ]
        assert seen == [[KnownIssueWarning], []]


def test_find_known_issues_returns_the_known_issue(made_up_known_issue: KnownIssue) -> None:
    graph = attention.sdpa_forward(ATTENTION_PROBLEM, allow_hazards=True)
    assert made_up_known_issue in find_known_issues(graph, 90, AFFECTED_VERSION)
    assert made_up_known_issue not in find_known_issues(graph, 90, UNAFFECTED_VERSION)
    assert made_up_known_issue not in find_known_issues(graph, 100, AFFECTED_VERSION)


@pytest.mark.parametrize(("version", "sm"), [(AFFECTED_VERSION, 90), (UNAFFECTED_VERSION, 90), (AFFECTED_VERSION, 100)])
def test_torch_operators_refuse_or_report_the_known_issue(
    made_up_known_issue: KnownIssue, version: tuple[int, int, int], sm: int
) -> None:
    whole = TensorLayout((2, 2, 96, 64), (2 * 96 * 64, 64, 2 * 64, 1), DataType.HALF)
    tensors = dict.fromkeys(("q", "k", "v", "o"), whole)
    options = OperatorOptions(0.125, 0.0, None, None, False, None, False)
    if is_graph_refused(made_up_known_issue, version, sm):
        with pytest.raises(GraphError, match="made-up"):
            make_attention_graph(tensors, options, backward=False, version=version, sm=sm)
    else:
        seen = list_issue_warning_categories(
            lambda: make_attention_graph(tensors, options, backward=False, version=version, sm=sm), "made-up"
        )
        assert seen == [KnownIssueWarning] * (
            not made_up_known_issue.refused and version >= AFFECTED_VERSION and sm == 90
        )


@pytest.mark.parametrize(("version", "sm"), [(AFFECTED_VERSION, 90), (UNAFFECTED_VERSION, 90), (AFFECTED_VERSION, 100)])
def test_frontend_reports_the_known_issue(
    made_up_known_issue: KnownIssue, version: tuple[int, int, int], sm: int
) -> None:
    """The frontend only warns about graphs that the builder refuses, as cudnn-frontend builds them."""
    recorder = RecordingGraph(version, sm)
    call_frontend_attention(recorder, ATTENTION_PROBLEM, backward=False, unified=False)
    assert list_issue_warning_categories(recorder.graph, "made-up") == [FrontendKnownIssueWarning] * (
        version >= AFFECTED_VERSION and sm == 90
    )
