"""The caveats that a verdict without a GPU lists depend on the graph's engines."""

from __future__ import annotations

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, attention, explain


def make_convolution() -> Graph:
    g = GraphBuilder("convolution", io_type=DataType.HALF)
    g.convolution(g.tensor("x", (1, 16, 8, 8)), g.tensor("w", (16, 16, 1, 1)), virtual=False)
    return g.graph()


def make_matmul_graph() -> Graph:
    g = GraphBuilder("product", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), virtual=False)
    return g.graph()


@pytest.mark.parametrize(
    ("graph", "occupancy", "multiply"),
    [
        (make_convolution(), True, True),
        (make_matmul_graph(), True, False),
        (attention.sdpa_forward(batch=1, heads=1, seq_q=128, head_dim=64), False, False),
    ],
    ids=["convolution", "product", "attention"],
)
def test_limits_of_judging_without_a_gpu_depend_on_engines(graph: Graph, occupancy: bool, multiply: bool) -> None:
    limits = explain(graph, "sm86", causes=False).limits
    assert any("cluster occupancy" in limit for limit in limits) == occupancy
    assert any("engines 3 and 4 of convolutions" in limit for limit in limits) == multiply
    assert "judged without a GPU: problems that only execution shows are unknown" in limits
