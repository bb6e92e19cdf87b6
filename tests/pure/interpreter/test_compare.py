"""Exact changes keep the results of a graph; the comparison finds changes that are wrongly called exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.interpreter.compare import compare
from cudnn_backend_py.rewrite.change_sequence import ChangeSequence
from cudnn_backend_py.rewrite.changes import Change, iterate_changes
from tests.support.refused_graphs import make_convolution_graph, make_transpose_and_sum
from tests.support.varied_graphs import VARIED_GRAPHS


def make_matmul_graph() -> Graph:
    g = GraphBuilder("product", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (2, 5, 20)), g.tensor("b", (2, 20, 7)), name="c", virtual=False)
    return g.graph()


def list_exact_changes(graph: Graph, kind: str) -> list[Change]:
    return [change for change in iterate_changes(graph, (kind,)) if change.effect == "exact"]


def make_large_attention() -> Graph:
    return sdpa_forward(batch=2, heads=16, seq_q=4096, head_dim=60, causal=True)


EXACT_CHANGE_CASES: dict[str, tuple[Callable[[], Graph], str]] = {
    "channels": (make_matmul_graph, "pad_channels"),
    "groups": (lambda: make_convolution_graph(DataType.HALF, DataType.HALF, 64, 2), "pad_channels"),
    "groups as one": (lambda: make_convolution_graph(DataType.HALF, DataType.HALF, 64, 2), "usual"),
    "head dim": (lambda: sdpa_forward(batch=1, heads=2, seq_q=16, head_dim=20), "pad_head_dim"),
    "large": (make_large_attention, "pad_head_dim"),
    "one operation": (lambda: sdpa_forward(batch=1, heads=2, seq_q=16, head_dim=32), "unified"),
    "a transpose read in place": (lambda: make_transpose_and_sum((2, 4, 8, 16), (0, 1, 3, 2)), "view"),
    "heads": (lambda: sdpa_forward(batch=1, heads=4, kv_heads=2, seq_q=16, head_dim=32), "heads"),
    "two graphs": (lambda: sdpa_backward(batch=1, heads=2, seq_q=16, head_dim=32), "split"),
}


@pytest.mark.parametrize("name", EXACT_CHANGE_CASES)
def test_exact_changes_keep_the_results(name: str) -> None:
    make, kind = EXACT_CHANGE_CASES[name]
    graph = make()
    found = list_exact_changes(graph, kind)[:4]
    assert found
    assert {(change.title, compare(graph, ChangeSequence.from_change(change)).state) for change in found} == {
        (change.title, "same") for change in found
    }


def test_no_exact_change_of_varied_graphs_changes_the_results() -> None:
    states = [
        (name, change.title, compare(graph, ChangeSequence.from_change(change)))
        for name, make in list(VARIED_GRAPHS.items())[::6]
        for graph in (make(),)
        for change in iterate_changes(graph)
        if change.effect == "exact" and change.kind not in ("split", "virtual")
    ]
    assert [one for one in states if one[2].state == "different"] == []
    assert sum(one[2].state == "same" for one in states) > 0.8 * len(states)


def make_change_sequence_with_changed_fields(graph: Graph, **fields: object) -> ChangeSequence:
    ops = tuple(replace(op, **fields) for op in graph.ops)  # type: ignore[type-var]
    return ChangeSequence.from_change(Change("usual", "something else", "exact", (), (Graph(ops, graph.name),)))


def test_changes_that_alter_the_results_are_reported() -> None:
    g = GraphBuilder("clipped", io_type=DataType.HALF)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, 4, 8, 8)), name="y", virtual=False)
    graph = g.graph()
    for mode in (PointwiseMode.ABS, PointwiseMode.IDENTITY, PointwiseMode.ELU_FWD):
        found = compare(graph, make_change_sequence_with_changed_fields(graph, mode=mode))
        assert found.state == "different"
        assert found.words.startswith("y differs by ")


def test_a_change_sequence_without_an_output_is_reported() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=16, head_dim=32)
    split = list_exact_changes(graph, "split")[0]
    half = replace(split, made=split.graphs[:1])
    assert compare(graph, ChangeSequence.from_change(half)).words.startswith("o is not written any more")


def test_rounding_to_a_shorter_type_is_not_exact() -> None:
    graph = make_matmul_graph()
    c = replace(graph.tensor("c"), data_type=DataType.FP8_E5M2)
    shorter = Change("usual", "c shorter", "exact", ("c",), (replace_tensors(graph, {c.uid: c}),))
    assert "rounded" in compare(graph, ChangeSequence.from_change(shorter)).words


def test_graphs_with_dropout_are_not_compared_if_padded() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=16, head_dim=20, dropout=0.1)
    padded, split = (
        compare(graph, ChangeSequence.from_change(list_exact_changes(graph, kind)[0]))
        for kind in ("pad_head_dim", "split")
    )
    assert padded.state == "not compared"
    assert "random numbers" in padded.words
    assert split.state == "same"


# rules that were not exact


def test_dropping_softmax_stats_keeps_the_attention_sink() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=16, head_dim=32, sink=True, stats=True, implementation="unified")
    found = next(change for change in iterate_changes(graph, ("drop_stats",)) if "softmax statistics" in change.title)
    (op,) = found.graph.ops
    assert isinstance(op, Operation)
    assert "sink" in op.fields["softmax"].fields
    assert "stats" not in op.fields["softmax"].fields
    assert compare(graph, ChangeSequence.from_change(found)).state == "same"


def test_padding_is_not_exact_before_a_non_transposing_reshape() -> None:
    g = GraphBuilder("reshaped", io_type=DataType.HALF)
    p = g.matmul(g.tensor("q", (1, 1, 20, 8)), g.tensor("k", (1, 1, 8, 72)), name="p")
    y = g.tensor("turned", (1, 1, 72, 20), virtual=True)
    g.ops.append(Operation(DescriptorType.OPERATION_RESHAPE, "reshape", {"x": p, "y": y}))
    g.matmul(y, g.tensor("do", (1, 1, 20, 8)), name="dv", virtual=False)
    graph = g.graph()
    assert not [one for one in list_exact_changes(graph, "pad_sequence") if "q" in one.tensors]


def test_converting_integers_to_floats_is_not_exact() -> None:
    g = GraphBuilder("whole", io_type=DataType.INT32)
    g.pointwise(PointwiseMode.ADD, g.tensor("x", (1, 4, 8)), g.tensor("b", (1, 4, 8)), name="y", virtual=False)
    effects = {change.title.rpartition(" ")[2]: change.effect for change in iterate_changes(g.graph(), ("data_type",))}
    assert effects["float32"] == "changes numerics"


def test_composite_backward_attention_keeps_the_strides_of_k() -> None:
    """The composite graph reads K's memory a second time, also if K has gaps between its elements."""
    graph = sdpa_backward(batch=1, heads=2, seq_q=8, seq_kv=12, head_dim=16, implementation="unified")
    k = graph.tensor("k")
    gaps = replace_tensors(graph, {k.uid: replace(k, strides=tuple(2 * stride for stride in k.strides))})
    (change,) = list_exact_changes(gaps, "composite")
    assert change.graph.tensor("k").strides[-2:] == (2, gaps.tensor("k").strides[-2])
    assert compare(gaps, ChangeSequence.from_change(change)).state == "same"
    o = replace(graph.tensor("o"), dims=(1, 1, 8, 16), strides=(128, 128, 16, 1))
    assert not list_exact_changes(replace_tensors(graph, {o.uid: o}), "composite")


def test_no_layout_change_is_exact_for_ragged_tensors() -> None:
    """Ragged offsets count elements, including gaps."""
    graph = sdpa_forward(batch=2, heads=2, seq_q=16, head_dim=32, ragged=True)
    q = graph.tensor("q")
    gaps = replace_tensors(graph, {q.uid: replace(q, strides=tuple(2 * stride for stride in q.strides))})
    assert not [one for one in list_exact_changes(gaps, "layout") if "q" in one.tensors]


def test_a_graph_too_large_to_compare_is_reported_as_too_large() -> None:
    g = GraphBuilder("wide", io_type=DataType.FLOAT)
    w = g.tensor("w", (1, 1, 51, 51), alignment=2)
    g.convolution(g.tensor("x", (75, 1, 572, 572)), w, name="y", virtual=False)
    change = next(one for one in iterate_changes(g.graph(), ("alignment",)) if one.effect == "exact")
    found = compare(g.graph(), ChangeSequence.from_change(change))
    assert (found.state, found.words) == ("not compared", "the graph is too large for the interpreter")
