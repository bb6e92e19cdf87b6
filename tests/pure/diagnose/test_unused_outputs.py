"""Graphs without outputs in memory, and operations with unused results: refused, or reported by lint."""

from __future__ import annotations

import pytest

from cudnn_backend_py import Graph, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.diagnose.linting import lint
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.ir import check_graph_writes_memory
from cudnn_backend_py.rewrite.changes import iterate_changes
from tests.support.typical_graphs import TYPICAL_GRAPHS


def make_matmul_relu_graph(virtual: bool) -> Graph:
    g = GraphBuilder("product")
    c = g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c")
    g.pointwise(PointwiseMode.RELU_FWD, c, name="y", virtual=virtual)
    return g.graph()


def test_a_graph_with_only_virtual_results_is_refused() -> None:
    check_graph_writes_memory(make_matmul_relu_graph(virtual=False))
    with pytest.raises(GraphError, match="graph-writes-nothing: graph 'product' writes nothing") as caught:
        check_graph_writes_memory(make_matmul_relu_graph(virtual=True))
    assert "no operation reads y" in caught.value.sections["where"]
    assert "virtual=False" in caught.value.sections["fix"]


def test_the_remedy_makes_the_last_result_non_virtual() -> None:
    [change] = iterate_changes(make_matmul_relu_graph(virtual=True), ("virtual",))
    assert (change.title, change.effect) == ("y: virtual -> in memory", "exact")
    assert [tensor.name for tensor in change.graph.outputs if not tensor.virtual] == ["y"]
    titles = [change.title for change in iterate_changes(make_matmul_relu_graph(virtual=False), ("virtual",))]
    assert titles == ["c: virtual -> in memory"]


def test_lint_reports_a_graph_without_outputs() -> None:
    assert [(one.code, one.severity) for one in lint(make_matmul_relu_graph(virtual=True))] == [
        ("graph-writes-nothing", "dangerous")
    ]
    assert lint(make_matmul_relu_graph(virtual=False)) == []


def test_lint_reports_operations_with_unused_results() -> None:
    g = GraphBuilder("part")
    x = g.tensor("x", (1, 64, 64))
    lost = g.pointwise(PointwiseMode.EXP, x, name="lost")
    g.pointwise(PointwiseMode.NEG, lost, name="more")
    g.pointwise(PointwiseMode.RELU_FWD, x, name="y", virtual=False)
    found = lint(g.graph())
    assert [(one.code, one.tensor, one.severity) for one in found] == [
        ("result-unused", "lost", "suspicious"),
        ("result-unused", "more", "suspicious"),
    ]


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_typical_graphs_have_no_unused_results(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    check_graph_writes_memory(graph)
    assert [one for one in lint(graph) if one.code == "result-unused"] == []


@pytest.mark.parametrize("form", ["composite", "unified"])
@pytest.mark.parametrize("stats", [False, True])
def test_attention_has_no_unused_results(form: str, stats: bool) -> None:
    """lint reports no unused row statistics, because kernels use them even if no operation reads them."""
    options = {"batch": 1, "heads": 2, "seq_q": 128, "head_dim": 64, "implementation": form, "version": (9, 28, 0)}
    for graph in (sdpa_forward(**options, stats=stats), sdpa_backward(**options)):  # type: ignore[arg-type]
        assert [str(one) for one in lint(graph) if one.code in ("result-unused", "graph-writes-nothing")] == []
