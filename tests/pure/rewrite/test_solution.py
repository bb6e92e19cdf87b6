"""Several changes applied in sequence: all graphs of a split are kept, and their shared tensors stay equal."""

from __future__ import annotations

from dataclasses import replace

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.graph.strides import channels_last
from cudnn_backend_py.interpreter.compare import compare
from cudnn_backend_py.rewrite.change_sequence import ChangeSequence, find_change_sequence
from cudnn_backend_py.rewrite.changes import Change, iterate_changes


def make_graph_of_three_operations() -> Graph:
    """Return a matmul followed by two pointwise operations."""
    g = GraphBuilder("chain", io_type=DataType.HALF)
    c = g.matmul(g.tensor("a", (1, 2, 8, 16)), g.tensor("b", (1, 2, 16, 8)), name="c")
    d = g.pointwise(PointwiseMode.RELU_FWD, c, name="d")
    g.pointwise(PointwiseMode.ADD, d, g.tensor("bias", (1, 2, 8, 8), alignment=2), name="y", virtual=False)
    return g.graph()


def find_change(graph: Graph, kind: str, words: str) -> Change:
    return next(one for one in iterate_changes(graph, (kind,)) if words in one.title)


def test_changing_one_part_of_a_split_graph_keeps_the_other_parts() -> None:
    split = ChangeSequence.from_change(find_change(make_graph_of_three_operations(), "split", "d in memory"))
    assert len(split.graphs) == 2
    for member, kind, words in ((0, "data_type", "a, b"), (1, "alignment", "")):
        both = split.apply_change(member, find_change(split.graphs[member], kind, words))
        assert both is not None
        assert [one.name for one in both.graphs] == ["chain_1", "chain_2"]
        assert both.graphs[1 - member].ops[-1].display_name() == split.graphs[1 - member].ops[-1].display_name()
        found = find_change_sequence(
            make_graph_of_three_operations(), both.kinds, [step.title for step in both.steps], both.members
        )
        assert found is not None
        assert (found.title, found.members, found.graphs) == (both.title, both.members, both.graphs)
    third = both.apply_change(0, find_change(both.graphs[0], "split", "c in memory"))  # type: ignore[union-attr]
    assert third is not None
    assert [len(one.ops) for one in third.graphs] == [1, 1, 1]
    assert third.effect == "exact"
    assert compare(make_graph_of_three_operations(), third).state == "same"


def test_a_change_of_a_shared_tensor_applies_to_both_split_parts() -> None:
    split = ChangeSequence.from_change(find_change(make_graph_of_three_operations(), "split", "d in memory"))
    first = split.graphs[0]
    d = first.tensor("d")
    assert split.graphs[1].tensor("d") == d
    ordered = replace(d, strides=channels_last(d.dims), data_type=DataType.BFLOAT16)
    turned = Change("layout", "d turned", "exact", ("d",), (replace_tensor(first, ordered),))
    both = split.apply_change(0, turned)
    assert both is not None
    assert both.graphs[0].tensor("d") == both.graphs[1].tensor("d") == ordered
    hidden = Change("pad_channels", "d virtual", "exact", ("d",), (replace_tensor(first, replace(d, virtual=True)),))
    assert split.apply_change(0, hidden) is None


def replace_tensor(graph: Graph, tensor: Tensor) -> Graph:
    return replace_tensors(graph, {tensor.uid: tensor})
