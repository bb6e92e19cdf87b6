"""Changes of graphs: the result of each kind, where it does not apply, and that exact ones keep the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.diagnose import attention_rows
from cudnn_backend_py.generated.enums import ReduceTensorOp, TensorReordering
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.attention import SoftCap, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.ir import Matmul, Tensor
from cudnn_backend_py.graph.replace import bypass, replace_tensors
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.compare import compare
from cudnn_backend_py.rewrite.changes import CHANGES, KINDS, Change, changes, head_dims, response_dims
from cudnn_backend_py.rewrite.dims import dim_classes, resize
from cudnn_backend_py.rewrite.solution import Solution
from tests.support.graphs import CONVOLUTION, convolution, tensor
from tests.support.interpreting import Array, random_array

F16, F32, BF16, FP8 = DataType.HALF, DataType.FLOAT, DataType.BFLOAT16, DataType.FP8_E4M3
P = PointwiseMode
SMALL: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 5, "head_dim": 12, "allow_hazards": True}


def forward(**options: Any) -> Graph:
    return sdpa_forward(**{**SMALL, **options})


def backward(**options: Any) -> Graph:
    return sdpa_backward(**{**SMALL, **options})


def unified(**options: Any) -> Graph:
    return forward(implementation="unified", version=(9, 28, 0), **options)


def single_operations(**options: Any) -> Graph:
    return forward(implementation="composite", version=(9, 28, 0), **options)


def product(m: int = 6, n: int = 7, k: int = 5, **options: Any) -> Graph:
    """Return relu(a @ b), with options of the tensors a and b."""
    g = GraphBuilder("product", io_type=options.pop("data_type", F16), compute_type=options.pop("compute_type", F32))
    c = g.matmul(g.tensor("a", (2, m, k), **options), g.tensor("b", (2, k, n), **options))
    g.pointwise(P.RELU_FWD, c, name="y", virtual=False)
    return g.graph()


def image_graph(channels: int = 5, **options: Any) -> Graph:
    x, w, y = (
        tensor(name, *dims, data_type=F16, **options)
        for name, dims in (("x", (1, channels, 6, 6)), ("w", (3, channels, 3, 3)), ("y", (1, 3, 4, 4)))
    )
    return Graph((convolution(x=x, w=w, y=y),), "image")


def of_kind(graph: Graph, kind: str) -> list[Change]:
    return list(changes(graph, (kind,)))


def titled(graph: Graph, kind: str, words: str) -> Change:
    found = [change for change in of_kind(graph, kind) if words in change.title]
    assert found, (kind, words, [change.title for change in of_kind(graph, kind)])
    return found[0]


def fields_of(change: Change, name: str, field: str) -> Any:
    return getattr(change.graph.tensor(name), field)


# changed values

# kind, graph, part of the title, effect, tensor, its field, value afterwards
VALUES: list[tuple[str, Callable[[], Graph], str, str, str, str, Any]] = [
    ("alignment", lambda: product(alignment=2), "a 2, b 2 -> 16 bytes", "exact", "b", "alignment", 16),
    ("layout", lambda: product(strides=(70, 1, 6)), "b: strides -> row-major", "exact", "b", "strides", (35, 7, 1)),
    ("layout", image_graph, "x, y: strides -> channels last", "exact", "x", "strides", (180, 1, 30, 5)),
    ("layout", lambda: backward(layout="packed"), "without gaps", "exact", "q", "strides", (120, 12, 24, 1)),
    ("pad_head_dim", forward, "head dim of q, k, v, o: 12 -> 16", "exact", "k", "dims", (1, 2, 16, 5)),
    ("pad_head_dim", backward, "12 -> 32", "exact", "dv", "dims", (1, 2, 5, 32)),
    ("pad_head_dim", unified, "12 -> 16 (a multiple of 8)", "exact", "o", "strides", (160, 16, 32, 1)),
    ("smaller_head_dim", lambda: forward(head_dim=72), "of v, o: 72 -> 64", "idea", "v", "dims", (1, 2, 5, 64)),
    ("smaller_head_dim", lambda: backward(head_dim=72), "-> 64, of do, dv", "idea", "q", "dims", (1, 2, 5, 64)),
    ("pad_sequence", forward, "sequence of q, o: 5 -> 8", "exact", "q", "dims", (1, 2, 8, 12)),
    ("pad_sequence", forward, "sequence of k, v: 5 -> 8", "idea", "v", "dims", (1, 2, 8, 12)),
    ("pad_sequence", lambda: forward(padding=True), "sequence of k, v: 5 -> 8", "exact", "v", "dims", (1, 2, 8, 12)),
    ("pad_channels", product, "K of a, b: 5 -> 8", "exact", "a", "dims", (2, 6, 8)),
    ("pad_channels", image_graph, "input channels of w, x: 5 -> 8", "exact", "w", "dims", (3, 8, 3, 3)),
    ("pad_channels", image_graph, "output channels of w, y: 3 -> 4", "exact", "y", "dims", (1, 4, 4, 4)),
    ("data_type", lambda: forward(data_type=F32), "f32 -> f16", "changes numerics", "k", "data_type", F16),
    ("data_type", lambda: forward(data_type=FP8), "f8e4m3 -> f16", "changes numerics", "o", "data_type", F16),
    ("data_type", lambda: product(data_type=DataType.DOUBLE), "f64 -> f32", "changes numerics", "y", "data_type", F32),
    (
        "data_type",
        lambda: forward(dropout=0.5, seed_type=DataType.INT32),
        "dropout_seed, dropout_offset: i32 -> i64",
        "exact",
        "dropout_offset",
        "data_type",
        DataType.INT64,
    ),
    ("intermediate_type", product, "-> f16", "changes numerics", "mm", "data_type", F16),
    ("virtual", product, "mm: virtual -> in memory", "exact", "mm", "virtual", False),
    ("scale", forward, "scale: by value -> in memory", "exact", "scale", "by_value", False),
    ("scale", lambda: forward(scale="tensor"), "scale: in memory -> by value", "exact", "scale", "by_value", True),
    ("heads", lambda: forward(kv_heads=1), "k 1 -> 2, v 1 -> 2", "exact", "v", "dims", (1, 2, 5, 12)),
    ("heads", lambda: unified(kv_heads=1), "k 1 -> 2, v 1 -> 2", "exact", "k", "dims", (1, 2, 5, 12)),
]


@pytest.mark.parametrize(
    ("kind", "make", "words", "effect", "name", "field", "value"),
    VALUES,
    ids=[f"{row[0]}-{row[2]}" for row in VALUES],
)
def test_the_value_is_changed(
    kind: str, make: Callable[[], Graph], words: str, effect: str, name: str, field: str, value: Any
) -> None:
    graph = make()
    change = titled(graph, kind, words)
    assert (change.kind, change.effect) == (kind, effect)
    assert fields_of(change, name, field) == value
    assert getattr(graph.tensor(name), field) != value
    assert change.graph != graph


# kind, graph, part of the title, removed tensors
GONE: list[tuple[str, Callable[[], Graph], str, set[str]]] = [
    ("drop_stats", lambda: forward(stats=True), "stats", {"stats"}),
    ("drop_stats", lambda: unified(stats=True), "statistics", {"stats"}),
    ("drop_stats", lambda: single_operations(stats=True), "stats", {"stats"}),
    ("drop_dropout", lambda: forward(dropout=0.5), "dropout", {"dropout_seed", "dropout_keep", "dropout_scale"}),
    ("drop_dropout", lambda: unified(dropout=0.5), "dropout", {"dropout_seed", "dropout_offset"}),
    ("drop_dropout", lambda: backward(dropout=0.5), "dropout", {"dropout_seed", "dropout_keep"}),
    ("drop_bias", lambda: forward(bias=(1, 2, 5, 5)), "the bias bias", {"bias"}),
    ("drop_bias", lambda: backward(bias=(1, 2, 5, 5), dbias=True), "output dbias", {"dbias"}),
    ("drop_bias", lambda: unified(bias=(1, 2, 5, 5)), "the bias bias", {"bias"}),
    ("mask", lambda: forward(causal=True), "masked_right", {"masked_right", "row", "column", "minus_infinity"}),
    ("mask", lambda: unified(causal=True), "mask", {"masked_right", "minus_infinity"}),
    ("mask", lambda: forward(causal=True, left_bound=2), "without any mask", {"masked_left", "masked_right"}),
    ("drop_operation", product, "without the operation y (pointwise relu_fwd)", {"mm"}),
]


@pytest.mark.parametrize(("kind", "make", "words", "gone"), GONE, ids=[f"{row[0]}-{row[2]}" for row in GONE])
def test_tensors_are_removed(kind: str, make: Callable[[], Graph], words: str, gone: set[str]) -> None:
    graph = make()
    change = titled(graph, kind, words)
    before = {item.name for item in graph.tensors}
    assert gone <= before
    assert not gone & {item.name for item in change.graph.tensors}
    assert {item.name for item in change.graph.outputs} == {item.name for item in graph.outputs} - gone


NOT_APPLICABLE: list[tuple[str, Callable[[], Graph]]] = [
    ("alignment", product),
    ("layout", lambda: unified(layout="bhsd", head_dim=16)),
    ("reordering", product),
    ("pad_head_dim", product),
    ("smaller_head_dim", product),
    ("smaller_head_dim", lambda: forward(head_dim=64)),
    ("pad_head_dim", lambda: forward(head_dim=128)),
    ("pad_sequence", lambda: forward(seq_q=128)),
    ("pad_sequence", image_graph),
    ("pad_channels", lambda: product(32, 64, 96)),
    ("pad_channels", forward),
    ("drop_stats", product),
    ("drop_dropout", forward),
    ("drop_bias", forward),
    ("mask", forward),
    ("heads", forward),
    ("heads", lambda: backward(kv_heads=1)),
    ("unified", product),
    ("unified", unified),
    ("unified", lambda: forward(dropout=0.5)),
    ("composite", product),
    ("composite", lambda: unified(dropout=0.5)),
    ("composite", lambda: unified(padding=True)),
    ("split", unified),
]


@pytest.mark.parametrize(("kind", "make"), NOT_APPLICABLE)
def test_changes_that_do_not_apply_are_not_offered(kind: str, make: Callable[[], Graph]) -> None:
    assert of_kind(make(), kind) == []


def test_kinds_are_complete_and_in_order() -> None:
    assert set(KINDS) == {*CHANGES, "target", "version"}
    graph = forward(causal=True, bias=(1, 1, 5, 5))
    assert [change.kind for change in changes(graph, ("mask", "target", "drop_bias"))] == ["mask", "drop_bias"]
    titles = [(change.kind, change.title) for change in changes(graph)]
    assert len(titles) == len(set(titles))


# exactness


def given(graph: Graph, seed: int = 0) -> dict[str | int, Array]:
    """Return numbers for every input of a graph."""
    written = {item.uid for item in graph.outputs}
    found: dict[str | int, Array] = {}
    for index, item in enumerate(graph.variant_pack_tensors):
        if item.uid in written or item.scratch or (item.by_value and item.value is not None):
            continue
        if item.name.startswith("seq_len"):
            found[item.name] = np.full(item.dims, 4)
        else:
            found[item.name] = random_array(*item.dims, seed=seed + index)
    return found


def grown(values: Array, item: Tensor) -> Array:
    """Return values padded with zeros to a tensor's dims; heads and a bias are repeated."""
    if item.name == "bias":
        dims = zip(values.shape, item.dims, strict=True)
        values = np.broadcast_to(values, [new if old == 1 else old for old, new in dims])
    if values.shape[1] != item.dims[1] and item.rank == 4 and values.shape[2:] == item.dims[2:] and item.name in "kv":
        return np.repeat(values, item.dims[1] // values.shape[1], axis=1)
    return np.pad(values, [(0, new - old) for new, old in zip(item.dims, values.shape, strict=True)])


def run_parts(graphs: tuple[Graph, ...], inputs: dict[str | int, Array]) -> dict[str, Array]:
    """Run graphs one after the other, each with the outputs of the earlier ones."""
    known: dict[str, Any] = {str(name): value for name, value in inputs.items()}
    for graph in graphs:
        read = {item.name for item in graph.variant_pack_tensors} - {item.name for item in graph.outputs}
        known |= interpret(graph, {name: known[name] for name in read if name in known})
    return known


def assert_same_results(graph: Graph, change: Change) -> None:
    inputs = given(graph)
    shapes: dict[str | int, Tensor] = {item.name: item for part in change.graphs for item in part.tensors}
    changed: dict[str | int, Array] = {}
    for name, values in inputs.items():
        if name in shapes:
            needed = shapes[name]
            swapped = values.shape[-1] != needed.dims[-1] and values.shape[-1] == needed.dims[-2] and name == "k"
            changed[name] = grown(np.swapaxes(values, -1, -2) if swapped else values, needed)
    for item in shapes.values():
        if item.by_value is False and item.name in graph_by_value(graph):
            changed[item.name] = np.full(item.dims, graph_by_value(graph)[item.name])
    expected, got = interpret(graph, inputs), run_parts(change.graphs, changed)
    compared = 0
    for name, values in expected.items():
        if name in got:
            inside = tuple(slice(size) for size in values.shape)
            np.testing.assert_allclose(got[name][inside], values, rtol=1e-6, atol=1e-9, err_msg=change.title)
            compared += 1
    assert compared, change.title


def graph_by_value(graph: Graph) -> dict[str, Any]:
    return {item.name: item.value for item in graph.tensors if item.by_value and item.value is not None}


EXACT: dict[str, Callable[[], Graph]] = {
    "forward": lambda: forward(stats=True, causal=True),
    "forward, one operation each": lambda: single_operations(stats=True, causal=True),
    "forward, grouped heads": lambda: forward(kv_heads=1, scale="tensor"),
    "forward, padding": lambda: forward(padding=True, stats=True),
    "forward, V of its own": lambda: forward(head_dim_v=20, layout="bhsd"),
    "unified": lambda: unified(stats=True, causal=True),
    "unified, bias and soft cap": lambda: unified(bias=(1, 1, 5, 5), score_modifier=SoftCap(3.0)),
    "backward": lambda: backward(causal=True),
    "forward, interleaved": lambda: forward(layout="packed"),
    "matmul": product,
    "matmul, misaligned": lambda: product(alignment=2),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_changes_keep_the_results(name: str) -> None:
    graph = EXACT[name]()
    # A mask of padding leaves rows beyond the real length undefined, and also the sums with them.
    exact = [change for change in changes(graph) if change.effect == "exact" and "o: written" not in change.title]
    if "padding" in name:
        exact = [change for change in exact if change.kind in ("pad_head_dim", "layout", "drop_stats", "scale")]
    assert {change.kind for change in exact} >= {"scale"} if "forward" in name else exact
    for change in exact:
        assert_same_results(graph, change)


def convolved(change: Graph, x: Array, w: Array) -> Array:
    """Return the convolution of x and w, padded with zeros to the dims of the graph's tensors."""
    x, w = grown(x, change.tensor("x")), grown(w, change.tensor("w"))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w)


@pytest.mark.parametrize("words", ["input channels", "output channels", "channels last"])
def test_padded_channels_do_not_change_a_convolution(words: str) -> None:
    graph = image_graph()
    x, w = random_array(1, 5, 6, 6), random_array(3, 5, 3, 3)
    change = titled(graph, "layout" if "last" in words else "pad_channels", words)
    assert change.effect == "exact"
    y = convolved(change.graph, x, w)
    assert y.shape == change.graph.tensor("y").dims
    np.testing.assert_allclose(y[:, :3], convolved(graph, x, w))


def test_layout_of_the_input_of_a_reshape_keeps_its_order() -> None:
    graph = backward(layout="packed")
    assert not any("k" in change.tensors and "row-major" in change.title for change in of_kind(graph, "layout"))
    change = titled(graph, "layout", "without gaps")
    assert {"k", "k_again"} <= set(change.tensors)  # both describe K's memory
    assert compare(graph, Solution.of(change)).state == "same"


def test_padding_that_reaches_a_softmax_is_not_an_exact_change() -> None:
    graph = forward()
    change = titled(graph, "pad_sequence", "sequence of k, v: 5 -> 8")
    with pytest.raises(AssertionError, match="Mismatched"):
        assert_same_results(graph, change)


def test_padding_that_reaches_a_maximum_is_not_an_exact_change() -> None:
    g = GraphBuilder("maximum")
    c = g.matmul(g.tensor("a", (1, 4, 4)), g.tensor("b", (1, 4, 5)))
    g.reduction(ReduceTensorOp.MAX, c, (1, 4, 1), name="y", virtual=False)
    effects = {change.title[0]: change.effect for change in of_kind(g.graph(), "pad_channels")}
    assert effects["N"] == "idea"
    assert {change.effect for change in of_kind(g.graph(), "pad_channels") if change.title.startswith("K")} == {"exact"}


def test_gradient_of_a_convolution_that_was_cut_gets_its_columns_back() -> None:
    x, w, y = tensor("x", 1, 8, 6, 6), tensor("w", 16, 8, 3, 3), tensor("y", 1, 16, 3, 4)
    cut = Operation(
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
        "conv",
        {**{key: convolution().fields[key] for key in ("alpha", "beta", "convolution")}, "dx": x, "w": w, "dy": y},
    )
    change = of_kind(Graph((cut,), "cut"), "pad_sequence")[0]
    assert change.graph.tensor("y").dims == (1, 16, 4, 4)
    assert change.effect == "exact"
    assert CONVOLUTION["pre_paddings"] == (0, 0)


# graphs and their parts


def test_split_keeps_shared_tensors_in_memory() -> None:
    graph = forward()
    cuts = of_kind(graph, "split")
    assert len(cuts) == len(graph.ops) - 1
    first, second = titled(graph, "split", "p in memory").graphs
    assert not first.tensor("p").virtual
    assert not second.tensor("p").virtual
    assert [item.name for item in second.outputs] == ["o"]


def test_composite_and_unified_are_converted_into_each_other() -> None:
    graph = forward(causal=True, stats=True)
    fused = of_kind(graph, "unified")[0].graph
    assert [op.kind for op in fused.ops] == [DescriptorType.OPERATION_SDPA_FWD]
    again = titled(fused, "composite", "SDPA operation").graph
    assert [op.kind for op in again.ops if isinstance(op, Matmul)] == [DescriptorType.OPERATION_MATMUL] * 2
    assert again.tensor("k").dims == graph.tensor("k").dims


def test_head_dims_of_every_form_are_padded() -> None:
    sizes = {"seq_q": 5, "seq_kv": 7, "head_dim": 12, "head_dim_v": 20}
    for graph in (forward(**sizes), unified(**sizes), backward(**sizes)):
        found = head_dims(graph)
        assert [one.size for one in (found.d, found.d_v, found.s_q, found.s_kv) if one] == [12, 20, 5, 7]
    assert head_dims(product()).d is None


def test_unknown_operations_are_not_resized() -> None:
    graph = forward(padding=True, page_size=4)
    paged = dim_classes(graph)[graph.tensor("k").uid, 3]
    assert paged.fixed
    assert resize(graph, (paged,), 16) is None


def test_scale_of_k_moves_after_the_matmul() -> None:
    from cudnn_backend_py.graph.attention import mha_fprop

    graph = mha_fprop(batch=1, heads=2, seq_q=5, head_dim=8, store_s=True)
    change = titled(graph, "composite", "scaled before the matmul")
    assert not [item for item in change.graph.tensors if item.reordering is not TensorReordering.NONE]
    assert_same_results(graph, change)


def test_rewriting_does_not_touch_the_graph_it_is_given() -> None:
    graph, text = forward(causal=True), str(forward(causal=True))
    for change in changes(graph):
        assert change.graphs
    assert str(graph) == text
    assert replace_tensors(graph, {}) is graph
    product = next(op for op in graph.ops if op.name == "qk")
    assert bypass(graph, {id(product): graph.tensor("q")}) is None


@pytest.mark.parametrize("form", ["composite", "single operations", "unified"])
def test_changes_of_attention_options_can_be_listed(form: str) -> None:
    """Also if a tensor is scratch, ragged, paged or reordered."""
    count = 0
    for row in list(attention_rows().values())[::4]:
        try:
            graph = row.graph(form, (9, 28, 0))
        except GraphError:
            continue  # this form does not have the option
        count += sum(1 for _ in changes(graph))
    assert count > 200


def test_a_change_without_a_valid_graph_is_reported_when_it_is_read() -> None:
    """Required tensors cannot be left out: that is known only after the graph is built."""
    change = Change("drop_stats", "without stats", "exact", ("stats",), lambda: None)
    assert change.graphs == ()
    with pytest.raises(GraphError, match="change-impossible: the change does not give a valid graph: without stats"):
        _ = change.graph


def test_a_changed_graph_is_made_when_it_is_first_read() -> None:
    made: list[int] = []

    def make() -> tuple[Graph, ...]:
        made.append(1)
        return (product(),)

    change = Change("layout", "title", "exact", (), make)
    assert not made
    assert change.graph is change.graphs[0] is change.graph
    assert made == [1]


def test_the_dims_of_a_response_are_those_that_the_builder_gives_it() -> None:
    g = GraphBuilder("convolution")
    x, w = g.tensor("x", (2, 8, 9, 10), strides="channels_last"), g.tensor("w", (16, 4, 3, 2))
    y = g.convolution(x, w, padding=1, post_padding=(0, 2), stride=2, dilation=(2, 1), virtual=False)
    (op,) = g.graph().ops
    assert isinstance(op, Operation)
    assert response_dims(op) == y.dims == (2, 16, 3, 6)
