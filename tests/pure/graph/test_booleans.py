"""The warning about packed booleans: it lists the graph's boolean tensors in memory, and is empty without them."""

from __future__ import annotations

import pytest

from cudnn_backend_py import DataType, GraphBuilder, PointwiseMode
from cudnn_backend_py.graph.booleans import describe_boolean_memory_format


@pytest.mark.parametrize(("mask", "result"), [(True, False), (False, True), (True, True), (False, False)])
def test_the_warning_lists_boolean_tensors_in_memory(mask: bool, result: bool) -> None:
    g = GraphBuilder("conjunction", io_type=DataType.FLOAT)
    a, b = g.tensor("a", (8, 64, 64)), g.tensor("b", (8, 64, 64))
    greater = g.pointwise(PointwiseMode.CMP_GT, a, b, compute_type=DataType.FLOAT)
    other = g.tensor("mask", (8, 64, 64), DataType.BOOLEAN) if mask else greater
    both = g.pointwise(PointwiseMode.LOGICAL_AND, greater, other, name="both", virtual=not result)
    if not result:
        g.pointwise(PointwiseMode.BINARY_SELECT, a, b, both, name="y", virtual=False)
    said = describe_boolean_memory_format(g.graph())
    names = ["'mask'"] * mask + ["'both'"] * result
    assert (f"of {', '.join(names)} eight" in said) if names else said == ""
