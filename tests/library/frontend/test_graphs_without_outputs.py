"""A graph without outputs is refused when it is judged or built; the frontend accepts it as cudnn-frontend does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import Graph, GraphBuilder, GraphError, OperationGraph, explain, open_target
from cudnn_backend_py.diagnose import Outcome
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.plans.build import build


def make_graph_without_outputs() -> Graph:
    g = GraphBuilder("forgotten")
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c")
    return g.graph()


def test_a_graph_without_outputs_is_judged_unsupported_with_a_fix() -> None:
    verdict = explain(make_graph_without_outputs(), "h100")
    assert (verdict.outcome, verdict.stage) == (Outcome.NOT_SUPPORTED, "graph")
    assert verdict.cause is not None
    assert verdict.cause.code == "graph-writes-nothing"
    assert "cuDNN was not called" in verdict.cause.detail
    assert "virtual=False" in verdict.cause.remedy


def test_no_plan_or_operation_graph_is_built_without_outputs() -> None:
    for make in (
        lambda: build(make_graph_without_outputs(), "h100"),
        lambda: OperationGraph(make_graph_without_outputs(), open_target("h100")),
    ):
        with pytest.raises(GraphError, match="graph-writes-nothing"):
            make()


def test_cudnn_accepts_a_graph_without_outputs() -> None:
    assert OperationGraph(make_graph_without_outputs(), open_target("h100"), must_write=False).heuristics().configs


@pytest.fixture
def described_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


@pytest.mark.usefixtures("described_h100")
def test_a_graph_of_the_frontend_without_an_output_is_built() -> None:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    g = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single)
    a, b = (g.tensor(name=name, dim=[1, 64, 64], stride=[4096, 64, 1]) for name in "ab")
    g.matmul(a, b)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert g.get_execution_plan_count() > 0
