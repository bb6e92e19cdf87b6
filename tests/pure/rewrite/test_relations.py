"""The relations between dims that rewrites use are true in valid graphs of every kind of operation."""

from __future__ import annotations

import pytest

from cudnn_backend_py.graph.ir import Graph
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.rewrite.relations import DimRelation, WindowRelation, find_dim_relation
from tests.support.typical_graphs import TYPICAL_GRAPHS

KINDS = sorted(TYPICAL_GRAPHS)


def map_dims_by_uid(graph: Graph) -> dict[int, tuple[int, ...]]:
    return {tensor.uid: tensor.dims for tensor in graph.tensors}


@pytest.mark.parametrize("name", KINDS)
def test_axes_related_by_an_operation_have_equal_sizes(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    tensors, dims = {tensor.uid: tensor for tensor in graph.tensors}, map_dims_by_uid(graph)
    for op in iterate_all_ops(graph):
        relation = find_dim_relation(op)
        for (uid, axis), (other, place) in (
            *(relation.pair_equal_axes(tensors) or ()),
            *relation.pair_likely_equal_axes(),
        ):
            assert dims[uid][axis] == dims[other][place], op.name


@pytest.mark.parametrize("name", KINDS)
def test_inferred_dims_equal_the_dims_of_the_graph(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    dims = map_dims_by_uid(graph)
    for op in iterate_all_ops(graph):
        relation = find_dim_relation(op)
        for found in (relation.compute_dims_from_others(dims), relation.compute_required_dims(dims)):
            assert found == {uid: dims[uid] for uid in found}, op.name
        if isinstance(relation, WindowRelation):
            tensors, spatial = relation.find_window_outputs_and_sizes(dims)
            assert tensors
            assert all(tensor.dims[2:] == spatial for tensor in tensors)


def test_an_unknown_operation_relates_no_dims() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    relation = DimRelation(graph.ops[0])
    assert relation.pair_equal_axes({}) is None
    assert (list(relation.pair_likely_equal_axes()), relation.compute_dims_from_others(map_dims_by_uid(graph))) == (
        [],
        {},
    )
