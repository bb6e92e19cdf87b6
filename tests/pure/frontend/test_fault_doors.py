"""One row in the known issue table is enough: every function that builds or judges a graph checks that table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cudnn_backend_py import DataType, GraphError, attention
from cudnn_backend_py.frontend import FrontendKnownIssueWarning
from cudnn_backend_py.graph.attention.problem import TensorLayout
from cudnn_backend_py.known_issues import FAULTS, KnownIssue, KnownIssueWarning, find, find_known_issues
from cudnn_backend_py.system.version import Window
from cudnn_backend_py.torch_ops.arguments import OperatorOptions
from cudnn_backend_py.torch_ops.graphs import attention_graph
from tests.support.frontend_attention import RecordingGraph, call_attention
from tests.support.issue_warnings import issue_warning_categories

IN, BEFORE = (9, 19, 0), (9, 18, 1)
ROW = KnownIssue(
    "made-up",
    what="s_q of 96",
    effect="nothing",
    fix="use another s_q",
    source="examples/none.py",
    evidence="not measured",
    versions=Window(IN),
    sm=(90,),
    attention=lambda use: use.problem.seq_q == 96,
    refused=True,
)
PROBLEM = attention.Attention(batch=2, heads=2, seq_q=96, head_dim=64)


@pytest.fixture(params=[True, False], ids=["refused", "reported"], autouse=True)
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KnownIssue:
    """Add a row to the table."""
    made = dataclasses.replace(ROW, refused=request.param)
    monkeypatch.setattr(find, "FAULTS", (*FAULTS, made))
    monkeypatch.setattr(find, "_warned", set())
    return made


def refuses(row: KnownIssue, version: tuple[int, int, int], sm: int) -> bool:
    return row.refused and version >= IN and sm == 90


@pytest.mark.parametrize(("version", "sm"), [(IN, 90), (BEFORE, 90), (IN, 100)])
@pytest.mark.parametrize("build", [attention.sdpa_forward, attention.sdpa_backward])
def test_builder_refuses_it(row: KnownIssue, build: Any, version: tuple[int, int, int], sm: int) -> None:
    if refuses(row, version, sm):
        with pytest.raises(GraphError, match="made-up") as caught:
            build(PROBLEM, version=version, sm=sm)
        assert caught.value.code == "attention-hazard"
    else:
        seen = issue_warning_categories(lambda: build(PROBLEM, version=version, sm=sm), "made-up")
        assert seen == [KnownIssueWarning] * (not row.refused and version >= IN and sm == 90)
    assert issue_warning_categories(lambda: build(PROBLEM, version=version, sm=sm, allow_hazards=True), "made-up") == []


@pytest.mark.parametrize(("version", "sm"), [(None, 90), (IN, None)])
def test_builder_warns_only_of_known_issues(row: KnownIssue, version: Any, sm: int | None) -> None:
    """Measured known issues are refused; those listed by NVIDIA give a warning, for version and architecture."""
    if row.refused:
        with pytest.raises(GraphError, match="made-up"):
            attention.sdpa_forward(PROBLEM, version=version, sm=sm)
    else:
        assert (
            issue_warning_categories(lambda: attention.sdpa_forward(PROBLEM, version=version, sm=sm), "made-up") == []
        )


def test_a_known_issue_is_reported_once(row: KnownIssue) -> None:
    if not row.refused:
        seen = [
            issue_warning_categories(lambda: attention.sdpa_forward(PROBLEM, version=IN, sm=90), "made-up")
            for _ in range(2)
        ]
        assert seen == [[KnownIssueWarning], []]


def test_explain_names_it(row: KnownIssue) -> None:
    graph = attention.sdpa_forward(PROBLEM, allow_hazards=True)
    assert row in find_known_issues(graph, 90, IN)
    assert row not in find_known_issues(graph, 90, BEFORE)
    assert row not in find_known_issues(graph, 100, IN)


@pytest.mark.parametrize(("version", "sm"), [(IN, 90), (BEFORE, 90), (IN, 100)])
def test_torch_operators_refuse_it(row: KnownIssue, version: tuple[int, int, int], sm: int) -> None:
    whole = TensorLayout((2, 2, 96, 64), (2 * 96 * 64, 64, 2 * 64, 1), DataType.HALF)
    tensors = dict.fromkeys(("q", "k", "v", "o"), whole)
    options = OperatorOptions(0.125, 0.0, None, None, False, None, False)
    if refuses(row, version, sm):
        with pytest.raises(GraphError, match="made-up"):
            attention_graph(tensors, options, backward=False, version=version, sm=sm)
    else:
        seen = issue_warning_categories(
            lambda: attention_graph(tensors, options, backward=False, version=version, sm=sm), "made-up"
        )
        assert seen == [KnownIssueWarning] * (not row.refused and version >= IN and sm == 90)


@pytest.mark.parametrize(("version", "sm"), [(IN, 90), (BEFORE, 90), (IN, 100)])
def test_frontend_warns_of_it(row: KnownIssue, version: tuple[int, int, int], sm: int) -> None:
    """Even if the builder refuses it: the frontend builds the graphs that cudnn-frontend builds."""
    recorder = RecordingGraph(version, sm)
    call_attention(recorder, PROBLEM, backward=False, unified=False)
    assert issue_warning_categories(recorder.graph, "made-up") == [FrontendKnownIssueWarning] * (
        version >= IN and sm == 90
    )
