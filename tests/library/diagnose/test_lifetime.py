"""A verdict destroys each native object that it created."""

from __future__ import annotations

import gc

from cudnn_backend_py import DataType, Graph, GraphBuilder, explain
from tests.library.native.test_lifetime import assert_no_descriptor_alive, make_attention_graph
from tests.support.descriptor_counts import count_descriptors


def test_a_verdict_destroys_every_descriptor() -> None:
    explain(make_attention_graph(), "sm90")  # fills the caches of the process
    gc.collect()
    with count_descriptors() as live:
        explain(make_attention_graph(), "sm90")
        assert_no_descriptor_alive(live)


def test_a_verdict_on_a_refused_graph_destroys_every_descriptor() -> None:
    def make_refused_graph() -> Graph:
        g = GraphBuilder("odd", io_type=DataType.DOUBLE)
        g.matmul(g.tensor("a", (1, 3, 5)), g.tensor("b", (1, 5, 7)), virtual=False)
        return g.graph()

    explain(make_refused_graph(), "sm90")
    gc.collect()
    with count_descriptors() as live:
        assert not explain(make_refused_graph(), "sm90").supported
        assert_no_descriptor_alive(live)
