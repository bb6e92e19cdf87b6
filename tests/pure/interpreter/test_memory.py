"""Data larger than the available memory are refused before they are allocated."""

from __future__ import annotations

import pytest

from cudnn_backend_py import GraphBuilder, GraphError, PointwiseMode, UsageError
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import make_inputs


@pytest.mark.parametrize("strides", ["packed", (1 << 44, 1 << 42, 1)])
def test_inputs_larger_than_memory_are_refused_before_allocation(strides: tuple[int, ...] | str) -> None:
    g = GraphBuilder()
    dims = (1, 1 << 20, 1 << 24) if strides == "packed" else (1, 4, 8)
    x = g.tensor("x", dims, strides=strides)
    g.pointwise(PointwiseMode.RELU_FWD, x, name="y", virtual=False)
    with pytest.raises(UsageError, match=r"data for the graph needs .* GB of memory") as refused:
        make_inputs(g.graph())
    assert refused.value.code == "trial-memory"


def test_results_larger_than_memory_are_refused_before_computation() -> None:
    g = GraphBuilder("wide")
    g.matmul(g.tensor("a", (1 << 22, 1)), g.tensor("b", (1, 1 << 22)), name="c", virtual=False)
    with pytest.raises(GraphError, match="interpreting 'wide' needs") as refused:
        interpret(g.graph(), {"a": [[0.0]], "b": [[0.0]]})
    assert refused.value.code == "interpret-memory"
