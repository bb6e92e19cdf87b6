"""Graph changes: the result of each kind, graphs without a change, and equal results of exact changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.diagnose import attention_rows
from cudnn_backend_py.generated.enums import ReduceTensorOp, TensorReordering
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.attention import SoftCap, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.graph.ir import Matmul, Pointwise, Tensor
from cudnn_backend_py.graph.replace import bypass_ops, replace_tensors
from cudnn_backend_py.graph.strides import has_overlapping_elements
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.compare import compare
from cudnn_backend_py.rewrite.change_sequence import ChangeSequence
from cudnn_backend_py.rewrite.changes import (
    CHANGES,
    KINDS,
    Change,
    compute_convolution_output_dims,
    find_attention_dims,
    iterate_changes,
)
from cudnn_backend_py.rewrite.changes.forms import find_reductions_before_other_operations
from cudnn_backend_py.rewrite.dims import find_sets_of_equal_dims, resize_dims
from cudnn_backend_py.rewrite.unusual import find_unusual_properties
from tests.support import refused_graphs
from tests.support.graphs import CONVOLUTION_FIELDS, make_convolution, make_tensor
from tests.support.interpreting import Array, make_random_array

F16, F32, BF16, FP8 = DataType.HALF, DataType.FLOAT, DataType.BFLOAT16, DataType.FP8_E4M3
P = PointwiseMode
SMALL: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 5, "head_dim": 12, "allow_hazards": True}


def make_sdpa_forward(**options: Any) -> Graph:
    return sdpa_forward(**{**SMALL, **options})


def make_sdpa_backward(**options: Any) -> Graph:
    return sdpa_backward(**{**SMALL, **options})


def make_unified_attention(**options: Any) -> Graph:
    return make_sdpa_forward(implementation="unified", version=(9, 28, 0), **options)


def make_composite_attention(**options: Any) -> Graph:
    return make_sdpa_forward(implementation="composite", version=(9, 28, 0), **options)


def make_matmul_relu(m: int = 6, n: int = 7, k: int = 5, **options: Any) -> Graph:
    """Return the graph of relu(a @ b); the options apply to the tensors a and b."""
    g = GraphBuilder("product", io_type=options.pop("data_type", F16), compute_type=options.pop("compute_type", F32))
    c = g.matmul(g.tensor("a", (2, m, k), **options), g.tensor("b", (2, k, n), **options))
    g.pointwise(P.RELU_FWD, c, name="y", virtual=False)
    return g.graph()


def make_convolution_graph(channels: int = 5, **options: Any) -> Graph:
    x, w, y = (
        make_tensor(name, *dims, data_type=F16, **options)
        for name, dims in (("x", (1, channels, 6, 6)), ("w", (3, channels, 3, 3)), ("y", (1, 3, 4, 4)))
    )
    return Graph((make_convolution(x=x, w=w, y=y),), "image")


def list_changes_of_kind(graph: Graph, kind: str) -> list[Change]:
    return list(iterate_changes(graph, (kind,)))


def find_change(graph: Graph, kind: str, words: str) -> Change:
    found = [change for change in list_changes_of_kind(graph, kind) if words in change.title]
    assert found, (kind, words, [change.title for change in list_changes_of_kind(graph, kind)])
    return found[0]


def get_tensor_field(change: Change, name: str, field: str) -> Any:
    return getattr(change.graph.tensor(name), field)


# changed values

# kind, graph, part of the title, effect, tensor, its field, value afterwards
VALUES: list[tuple[str, Callable[[], Graph], str, str, str, str, Any]] = [
    ("alignment", lambda: make_matmul_relu(alignment=2), "a 2, b 2 -> 16 bytes", "exact", "b", "alignment", 16),
    (
        "layout",
        lambda: make_matmul_relu(strides=(70, 1, 6)),
        "b: strides -> row-major",
        "exact",
        "b",
        "strides",
        (35, 7, 1),
    ),
    ("layout", make_convolution_graph, "x, y: strides -> channels last", "exact", "x", "strides", (180, 1, 30, 5)),
    ("layout", lambda: make_sdpa_backward(layout="packed"), "without gaps", "exact", "q", "strides", (120, 12, 24, 1)),
    ("pad_head_dim", make_sdpa_forward, "head dim of q, k, v, o: 12 -> 16", "exact", "k", "dims", (1, 2, 16, 5)),
    ("pad_head_dim", make_sdpa_backward, "12 -> 32", "exact", "dv", "dims", (1, 2, 5, 32)),
    ("pad_head_dim", make_unified_attention, "12 -> 16 (a multiple of 8)", "exact", "o", "strides", (160, 16, 32, 1)),
    (
        "smaller_head_dim",
        lambda: make_sdpa_forward(head_dim=72),
        "of v, o: 72 -> 64",
        "idea",
        "v",
        "dims",
        (1, 2, 5, 64),
    ),
    (
        "smaller_head_dim",
        lambda: make_sdpa_backward(head_dim=72),
        "-> 64, of do, dv",
        "idea",
        "q",
        "dims",
        (1, 2, 5, 64),
    ),
    ("pad_sequence", make_sdpa_forward, "sequence of q, o: 5 -> 8", "exact", "q", "dims", (1, 2, 8, 12)),
    ("pad_sequence", make_sdpa_forward, "sequence of k, v: 5 -> 8", "idea", "v", "dims", (1, 2, 8, 12)),
    (
        "pad_sequence",
        lambda: make_sdpa_forward(padding=True),
        "sequence of k, v: 5 -> 8",
        "exact",
        "v",
        "dims",
        (1, 2, 8, 12),
    ),
    ("pad_channels", make_matmul_relu, "K of a, b: 5 -> 8", "exact", "a", "dims", (2, 6, 8)),
    ("pad_channels", make_convolution_graph, "input channels of w, x: 5 -> 8", "exact", "w", "dims", (3, 8, 3, 3)),
    ("pad_channels", make_convolution_graph, "output channels of w, y: 3 -> 4", "exact", "y", "dims", (1, 4, 4, 4)),
    (
        "data_type",
        lambda: make_sdpa_forward(data_type=F32),
        ": float32 -> float16",
        "changes numerics",
        "k",
        "data_type",
        F16,
    ),
    (
        "data_type",
        lambda: make_sdpa_forward(data_type=FP8),
        "o: fp8 (e4m3) -> float16",
        "changes numerics",
        "o",
        "data_type",
        F16,
    ),
    (
        "data_type",
        lambda: make_matmul_relu(data_type=DataType.DOUBLE),
        "y: double (float64) -> float32",
        "changes numerics",
        "y",
        "data_type",
        F32,
    ),
    (
        "data_type",
        lambda: make_sdpa_forward(dropout=0.5, seed_type=DataType.INT32),
        "dropout_seed, dropout_offset: int32 -> int64",
        "exact",
        "dropout_offset",
        "data_type",
        DataType.INT64,
    ),
    ("intermediate_type", make_matmul_relu, "-> float16", "changes numerics", "mm", "data_type", F16),
    ("virtual", make_matmul_relu, "mm: virtual -> in memory", "exact", "mm", "virtual", False),
    ("scale", make_sdpa_forward, "scale: by value -> in memory", "exact", "scale", "by_value", False),
    (
        "scale",
        lambda: make_sdpa_forward(scale="tensor"),
        "scale: in memory -> by value",
        "exact",
        "scale",
        "by_value",
        True,
    ),
    ("heads", lambda: make_sdpa_forward(kv_heads=1), "k 1 -> 2, v 1 -> 2", "exact", "v", "dims", (1, 2, 5, 12)),
    ("heads", lambda: make_unified_attention(kv_heads=1), "k 1 -> 2, v 1 -> 2", "exact", "k", "dims", (1, 2, 5, 12)),
]


@pytest.mark.parametrize(
    ("kind", "make", "words", "effect", "name", "field", "value"),
    VALUES,
    ids=[f"{row[0]}-{row[2]}" for row in VALUES],
)
def test_a_change_sets_the_field_of_a_tensor(
    kind: str, make: Callable[[], Graph], words: str, effect: str, name: str, field: str, value: Any
) -> None:
    graph = make()
    change = find_change(graph, kind, words)
    assert (change.kind, change.effect) == (kind, effect)
    assert get_tensor_field(change, name, field) == value
    assert getattr(graph.tensor(name), field) != value
    assert change.graph != graph


def test_a_change_of_several_tensors_narrows_to_some_of_them() -> None:
    graph = make_matmul_relu()
    whole = next(change for change in list_changes_of_kind(graph, "data_type") if change.tensors == ("a", "b", "y"))
    assert whole.narrow is not None
    pair = whole.narrow(("a", "b"))
    assert pair is not None
    assert pair.title == whole.title.replace("a, b, y", "a, b")
    assert {tensor.name for tensor in pair.graph.tensors if tensor != graph.tensor(tensor.name)} == {"a", "b"}
    assert whole.narrow(("a", "y")) is None, "operands of a matmul have the same type"
    assert whole.narrow(()) is None


# kind, graph, part of the title, removed tensors
GONE: list[tuple[str, Callable[[], Graph], str, set[str]]] = [
    ("drop_stats", lambda: make_sdpa_forward(stats=True), "stats", {"stats"}),
    ("drop_stats", lambda: make_unified_attention(stats=True), "statistics", {"stats"}),
    ("drop_stats", lambda: make_composite_attention(stats=True), "stats", {"stats"}),
    (
        "drop_dropout",
        lambda: make_sdpa_forward(dropout=0.5),
        "dropout",
        {"dropout_seed", "dropout_keep", "dropout_scale"},
    ),
    ("drop_dropout", lambda: make_unified_attention(dropout=0.5), "dropout", {"dropout_seed", "dropout_offset"}),
    ("drop_dropout", lambda: make_sdpa_backward(dropout=0.5), "dropout", {"dropout_seed", "dropout_keep"}),
    ("drop_bias", lambda: make_sdpa_forward(bias=(1, 2, 5, 5)), "the bias bias", {"bias"}),
    ("drop_bias", lambda: make_sdpa_backward(bias=(1, 2, 5, 5), dbias=True), "output dbias", {"dbias"}),
    ("drop_bias", lambda: make_unified_attention(bias=(1, 2, 5, 5)), "the bias bias", {"bias"}),
    (
        "mask",
        lambda: make_sdpa_forward(causal=True),
        "masked_right",
        {"masked_right", "row", "column", "minus_infinity"},
    ),
    ("mask", lambda: make_unified_attention(causal=True), "mask", {"masked_right", "minus_infinity"}),
    (
        "mask",
        lambda: make_sdpa_forward(causal=True, left_bound=2),
        "without any mask",
        {"masked_left", "masked_right"},
    ),
    ("drop_operation", make_matmul_relu, "without the operation y (pointwise relu_fwd)", {"mm"}),
    ("deterministic", make_sdpa_backward, "deterministic=True: dq written by its matmul", {"dq_accum"}),
]


@pytest.mark.parametrize(("kind", "make", "words", "gone"), GONE, ids=[f"{row[0]}-{row[2]}" for row in GONE])
def test_a_change_removes_tensors(kind: str, make: Callable[[], Graph], words: str, gone: set[str]) -> None:
    graph = make()
    change = find_change(graph, kind, words)
    before = {item.name for item in graph.tensors}
    assert gone <= before
    assert not gone & {item.name for item in change.graph.tensors}
    assert {item.name for item in change.graph.outputs} == {item.name for item in graph.outputs} - gone


NOT_APPLICABLE: list[tuple[str, Callable[[], Graph]]] = [
    ("alignment", make_matmul_relu),
    ("layout", lambda: make_unified_attention(layout="bhsd", head_dim=16)),
    ("reordering", make_matmul_relu),
    ("pad_head_dim", make_matmul_relu),
    ("smaller_head_dim", make_matmul_relu),
    ("smaller_head_dim", lambda: make_sdpa_forward(head_dim=64)),
    ("pad_head_dim", lambda: make_sdpa_forward(head_dim=128)),
    ("pad_sequence", lambda: make_sdpa_forward(seq_q=128)),
    ("pad_sequence", make_convolution_graph),
    ("pad_channels", lambda: make_matmul_relu(32, 64, 96)),
    ("pad_channels", make_sdpa_forward),
    ("drop_stats", make_matmul_relu),
    ("drop_dropout", make_sdpa_forward),
    ("drop_bias", make_sdpa_forward),
    ("mask", make_sdpa_forward),
    ("heads", make_sdpa_forward),
    ("heads", lambda: make_sdpa_backward(kv_heads=1)),
    ("unified", make_matmul_relu),
    ("unified", make_unified_attention),
    ("unified", lambda: make_sdpa_forward(dropout=0.5)),
    ("composite", make_matmul_relu),
    ("composite", lambda: make_unified_attention(dropout=0.5)),
    ("composite", lambda: make_unified_attention(padding=True)),
    ("split", make_unified_attention),
    ("deterministic", make_sdpa_forward),
]


@pytest.mark.parametrize(("kind", "make"), NOT_APPLICABLE)
def test_inapplicable_kinds_of_graph_change_are_not_offered(kind: str, make: Callable[[], Graph]) -> None:
    assert list_changes_of_kind(make(), kind) == []


@pytest.mark.parametrize("deterministic", [False, True])
def test_toggling_deterministic_backward_keeps_the_results(deterministic: bool) -> None:
    graph = make_sdpa_backward(deterministic=deterministic)
    [change] = list_changes_of_kind(graph, "deterministic")
    assert_same_results(graph, change)
    use = read_attention(change.graph)
    assert use is not None
    assert use.problem.deterministic is not deterministic
    [back] = list_changes_of_kind(change.graph, "deterministic")
    assert {op.kind for op in back.graph.ops} == {op.kind for op in graph.ops}


def test_changes_are_listed_in_the_order_of_the_given_kinds() -> None:
    assert set(KINDS) == {*CHANGES, "target", "version"}
    graph = make_sdpa_forward(causal=True, bias=(1, 1, 5, 5))
    assert [change.kind for change in iterate_changes(graph, ("mask", "target", "drop_bias"))] == ["mask", "drop_bias"]
    titles = [(change.kind, change.title) for change in iterate_changes(graph)]
    assert len(titles) == len(set(titles))


# exactness


def make_random_inputs(graph: Graph, seed: int = 0) -> dict[str | int, Array]:
    """Return random input arrays for a graph; sequence lengths are 4."""
    written = {item.uid for item in graph.outputs}
    found: dict[str | int, Array] = {}
    for index, item in enumerate(graph.variant_pack_tensors):
        if item.uid in written or item.scratch or (item.by_value and item.value is not None):
            continue
        if item.name.startswith("seq_len"):
            found[item.name] = np.full(item.dims, 4)
        else:
            found[item.name] = make_random_array(*item.dims, seed=seed + index)
    return found


def pad_values_to_tensor_dims(values: Array, item: Tensor) -> Array:
    """Return values padded with zeros to a tensor's dims; K and V heads and a bias are repeated."""
    if item.name == "bias":
        dims = zip(values.shape, item.dims, strict=True)
        values = np.broadcast_to(values, [new if old == 1 else old for old, new in dims])
    if values.shape[1] != item.dims[1] and item.rank == 4 and values.shape[2:] == item.dims[2:] and item.name in "kv":
        return np.repeat(values, item.dims[1] // values.shape[1], axis=1)
    return np.pad(values, [(0, new - old) for new, old in zip(item.dims, values.shape, strict=True)])


def run_graphs_in_sequence(graphs: tuple[Graph, ...], inputs: dict[str | int, Array]) -> dict[str, Array]:
    """Run graphs one after the other, each with the outputs of the earlier ones."""
    known: dict[str, Any] = {str(name): value for name, value in inputs.items()}
    for graph in graphs:
        read = {item.name for item in graph.variant_pack_tensors} - {item.name for item in graph.outputs}
        known |= interpret(graph, {name: known[name] for name in read if name in known})
    return known


def assert_same_results(graph: Graph, change: Change) -> None:
    inputs = make_random_inputs(graph)
    shapes: dict[str | int, Tensor] = {item.name: item for part in change.graphs for item in part.tensors}
    changed: dict[str | int, Array] = {}
    for name, values in inputs.items():
        if name in shapes:
            needed = shapes[name]
            swapped = values.shape[-1] != needed.dims[-1] and values.shape[-1] == needed.dims[-2] and name == "k"
            changed[name] = pad_values_to_tensor_dims(np.swapaxes(values, -1, -2) if swapped else values, needed)
    for item in shapes.values():
        if item.by_value is False and item.name in map_host_scalars_by_name(graph):
            changed[item.name] = np.full(item.dims, map_host_scalars_by_name(graph)[item.name])
    expected, got = interpret(graph, inputs), run_graphs_in_sequence(change.graphs, changed)
    compared = 0
    for name, values in expected.items():
        if name in got:
            inside = tuple(slice(size) for size in values.shape)
            np.testing.assert_allclose(got[name][inside], values, rtol=1e-6, atol=1e-9, err_msg=change.title)
            compared += 1
    assert compared, change.title


def map_host_scalars_by_name(graph: Graph) -> dict[str, Any]:
    return {item.name: item.value for item in graph.tensors if item.by_value and item.value is not None}


EXACT: dict[str, Callable[[], Graph]] = {
    "forward": lambda: make_sdpa_forward(stats=True, causal=True),
    "forward, one operation each": lambda: make_composite_attention(stats=True, causal=True),
    "forward, grouped heads": lambda: make_sdpa_forward(kv_heads=1, scale="tensor"),
    "forward, padding": lambda: make_sdpa_forward(padding=True, stats=True),
    "forward, V of its own": lambda: make_sdpa_forward(head_dim_v=20, layout="bhsd"),
    "unified": lambda: make_unified_attention(stats=True, causal=True),
    "unified, bias and soft cap": lambda: make_unified_attention(bias=(1, 1, 5, 5), score_modifier=SoftCap(3.0)),
    "backward": lambda: make_sdpa_backward(causal=True),
    "forward, interleaved": lambda: make_sdpa_forward(layout="packed"),
    "matmul": make_matmul_relu,
    "matmul, misaligned": lambda: make_matmul_relu(alignment=2),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_changes_keep_the_results(name: str) -> None:
    graph = EXACT[name]()
    # A mask of padding leaves rows beyond the real length undefined, and also the sums with them.
    exact = [
        change for change in iterate_changes(graph) if change.effect == "exact" and "o: written" not in change.title
    ]
    if "padding" in name:
        exact = [change for change in exact if change.kind in ("pad_head_dim", "layout", "drop_stats", "scale")]
    assert {change.kind for change in exact} >= {"scale"} if "forward" in name else exact
    for change in exact:
        assert_same_results(graph, change)


def compute_padded_convolution(change: Graph, x: Array, w: Array) -> Array:
    """Return the convolution of x and w, padded with zeros to the dims of the graph's tensors."""
    x, w = pad_values_to_tensor_dims(x, change.tensor("x")), pad_values_to_tensor_dims(w, change.tensor("w"))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w)


@pytest.mark.parametrize("words", ["input channels", "output channels", "channels last"])
def test_padded_channels_do_not_change_a_convolution(words: str) -> None:
    graph = make_convolution_graph()
    x, w = make_random_array(1, 5, 6, 6), make_random_array(3, 5, 3, 3)
    change = find_change(graph, "layout" if "last" in words else "pad_channels", words)
    assert change.effect == "exact"
    y = compute_padded_convolution(change.graph, x, w)
    assert y.shape == change.graph.tensor("y").dims
    np.testing.assert_allclose(y[:, :3], compute_padded_convolution(graph, x, w))


def test_a_layout_change_keeps_the_memory_order_of_a_reshaped_tensor() -> None:
    graph = make_sdpa_backward(layout="packed")
    assert not any(
        "k" in change.tensors and "row-major" in change.title for change in list_changes_of_kind(graph, "layout")
    )
    change = find_change(graph, "layout", "without gaps")
    assert {"k", "k_again"} <= set(change.tensors)  # both describe K's memory
    assert compare(graph, ChangeSequence.from_change(change)).state == "same"


def test_padding_that_reaches_a_softmax_is_not_an_exact_change() -> None:
    graph = make_sdpa_forward()
    change = find_change(graph, "pad_sequence", "sequence of k, v: 5 -> 8")
    with pytest.raises(AssertionError, match="Mismatched"):
        assert_same_results(graph, change)


def test_padding_that_reaches_a_maximum_is_not_an_exact_change() -> None:
    g = GraphBuilder("maximum")
    c = g.matmul(g.tensor("a", (1, 4, 4)), g.tensor("b", (1, 4, 5)))
    g.reduction(ReduceTensorOp.MAX, c, (1, 4, 1), name="y", virtual=False)
    effects = {change.title[0]: change.effect for change in list_changes_of_kind(g.graph(), "pad_channels")}
    assert effects["N"] == "idea"
    assert {
        change.effect for change in list_changes_of_kind(g.graph(), "pad_channels") if change.title.startswith("K")
    } == {"exact"}


def test_a_cropped_gradient_of_a_convolution_is_padded() -> None:
    x, w, y = make_tensor("x", 1, 8, 6, 6), make_tensor("w", 16, 8, 3, 3), make_tensor("y", 1, 16, 3, 4)
    cut = Operation(
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
        "conv",
        {**{key: make_convolution().fields[key] for key in ("alpha", "beta", "convolution")}, "dx": x, "w": w, "dy": y},
    )
    change = list_changes_of_kind(Graph((cut,), "cut"), "pad_sequence")[0]
    assert change.graph.tensor("y").dims == (1, 16, 4, 4)
    assert change.effect == "exact"
    assert CONVOLUTION_FIELDS["pre_paddings"] == (0, 0)


# graphs and their parts


def test_splitting_a_graph_puts_shared_tensors_into_memory() -> None:
    graph = make_sdpa_forward()
    cuts = list_changes_of_kind(graph, "split")
    assert [len(cut.graphs) for cut in cuts] == [3] + [2] * (len(graph.ops) - 1)
    assert not any(find_reductions_before_other_operations(part) for part in cuts[0].graphs)
    first, second = find_change(graph, "split", "two graphs, p in memory").graphs
    assert not first.tensor("p").virtual
    assert not second.tensor("p").virtual
    assert [item.name for item in second.outputs] == ["o"]


def test_composite_and_unified_attention_are_converted_into_each_other() -> None:
    graph = make_sdpa_forward(causal=True, stats=True)
    fused = list_changes_of_kind(graph, "unified")[0].graph
    assert [op.kind for op in fused.ops] == [DescriptorType.OPERATION_SDPA_FWD]
    again = find_change(fused, "composite", "SDPA operation").graph
    assert [op.kind for op in again.ops if isinstance(op, Matmul)] == [DescriptorType.OPERATION_MATMUL] * 2
    assert again.tensor("k").dims == graph.tensor("k").dims


def test_head_dims_are_found_in_every_form_of_attention() -> None:
    sizes = {"seq_q": 5, "seq_kv": 7, "head_dim": 12, "head_dim_v": 20}
    for graph in (make_sdpa_forward(**sizes), make_unified_attention(**sizes), make_sdpa_backward(**sizes)):
        found = find_attention_dims(graph)
        assert [one.size for one in (found.d, found.d_v, found.s_q, found.s_kv) if one] == [12, 20, 5, 7]
    assert find_attention_dims(make_matmul_relu()).d is None


def test_dims_of_paged_keys_are_not_resized() -> None:
    graph = make_sdpa_forward(padding=True, page_size=4)
    paged = find_sets_of_equal_dims(graph)[graph.tensor("k").uid, 3]
    assert paged.fixed
    assert resize_dims(graph, (paged,), 16) is None


def test_a_scale_of_k_is_moved_after_the_matmul() -> None:
    from cudnn_backend_py.graph.attention import mha_fprop

    graph = mha_fprop(batch=1, heads=2, seq_q=5, head_dim=8, store_s=True)
    change = find_change(graph, "composite", "scaled before the matmul")
    assert not [item for item in change.graph.tensors if item.reordering is not TensorReordering.NONE]
    assert_same_results(graph, change)


def test_rewriting_does_not_modify_the_given_graph() -> None:
    graph, text = make_sdpa_forward(causal=True), str(make_sdpa_forward(causal=True))
    for change in iterate_changes(graph):
        assert change.graphs
    assert str(graph) == text
    assert replace_tensors(graph, {}) is graph
    product = next(op for op in graph.ops if op.name == "qk")
    assert bypass_ops(graph, {id(product): graph.tensor("q")}) is None


@pytest.mark.parametrize("form", ["composite", "single operations", "unified"])
def test_changes_of_attention_options_can_be_listed(form: str) -> None:
    """Includes graphs with scratch, ragged, paged and reordered tensors."""
    count = 0
    for row in list(attention_rows().values())[::4]:
        try:
            graph = row.make_graph(form, (9, 28, 0))
        except GraphError:
            continue  # this form does not have the option
        count += sum(1 for _ in iterate_changes(graph))
    assert count > 200


def test_a_change_to_an_invalid_graph_raises_when_its_graph_is_read() -> None:
    """A change that removes a required tensor fails only when its graph is built."""
    change = Change("drop_stats", "without stats", "exact", ("stats",), lambda: None)
    assert change.graphs == ()
    with pytest.raises(GraphError, match=r"change-impossible: .* invalid after the change .without stats"):
        _ = change.graph


def test_a_changed_graph_is_built_once_when_it_is_first_read() -> None:
    made: list[int] = []

    def build_graphs() -> tuple[Graph, ...]:
        made.append(1)
        return (make_matmul_relu(),)

    change = Change("layout", "title", "exact", (), build_graphs)
    assert not made
    assert change.graph is change.graphs[0] is change.graph
    assert made == [1]


def test_convolution_output_dims_equal_the_builders_inference() -> None:
    g = GraphBuilder("convolution")
    x, w = g.tensor("x", (2, 8, 9, 10), strides="channels_last"), g.tensor("w", (16, 4, 3, 2))
    y = g.convolution(x, w, padding=1, post_padding=(0, 2), stride=2, dilation=(2, 1), virtual=False)
    (op,) = g.graph().ops
    assert isinstance(op, Operation)
    assert compute_convolution_output_dims(op) == y.dims == (2, 16, 3, 6)


def make_block_scaled_matmul(scale_type: DataType) -> Graph:
    g = GraphBuilder("block scaled", io_type=FP8)
    scales = {"data_type": scale_type, "reordering": TensorReordering.F8_128x4}
    a = g.block_scale_dequantize(g.tensor("a", (1, 128, 128)), g.tensor("a_scale", (1, 128, 4), **scales), 32)
    b = g.tensor("b", (1, 128, 128), strides=(16384, 1, 128))
    b_scale = g.tensor("b_scale", (1, 4, 128), strides=(512, 1, 4), **scales)
    g.matmul(a, g.block_scale_dequantize(b, b_scale, 32), name="c", virtual=False, data_type=BF16)
    return g.graph()


@pytest.mark.parametrize("kind", ["data_type", "intermediate_type", "usual"])
def test_titles_name_types_as_unusual_properties_do(kind: str) -> None:
    """Else the same change is offered twice, as bf16 and as bfloat16."""
    for graph in (make_sdpa_forward(data_type=F32), make_matmul_relu(), make_block_scaled_matmul(FP8)):
        for change in iterate_changes(graph, (kind,)):
            assert not re.search(r"\b(b?f16|f32|f8e\dm\d)\b", change.title), change.title


@pytest.mark.parametrize("scale_type", [FP8, DataType.FP8_E8M0])
def test_changing_the_type_of_block_scaled_data_removes_its_scales(scale_type: DataType) -> None:
    change = find_change(make_block_scaled_matmul(scale_type), "data_type", "a, b: fp8 (e4m3) -> float16")
    assert change.title == "a, b: fp8 (e4m3) -> float16, without a_scale, b_scale"
    assert {tensor.name for tensor in change.graph.tensors} == {"a", "b", "c"}


def test_changing_the_type_of_scaled_fp8_data_keeps_the_factors_or_names_them() -> None:
    g = GraphBuilder("scaled", io_type=FP8)
    c = g.matmul(g.tensor("a", (1, 32, 32)), g.tensor("b", (1, 32, 32)))
    g.pointwise(P.MUL, c, g.tensor("factor", (1, 1, 1), F32), name="y", virtual=False, data_type=F32)
    titles = {
        change.title: {tensor.name for tensor in change.graph.tensors}
        for change in iterate_changes(g.graph(), ("data_type",))
        if change.title.startswith("a, b: fp8 (e4m3) -> float16")
    }
    assert "factor" in titles["a, b: fp8 (e4m3) -> float16"]
    assert "factor" not in titles["a, b: fp8 (e4m3) -> float16, without factor"]


def test_block_scales_change_to_the_type_that_their_block_size_needs() -> None:
    change = find_change(make_block_scaled_matmul(FP8), "data_type", "block scales")
    assert change.title == "block scales a_scale fp8 (e4m3), b_scale fp8 (e4m3) -> fp8_e8m0"
    standard = iterate_changes(make_block_scaled_matmul(DataType.FP8_E8M0), ("data_type",))
    assert not [change for change in standard if "block scales a_scale" in change.title]


def test_overlapping_elements_are_copied_to_change_the_strides() -> None:
    g = GraphBuilder("broadcast", io_type=F16)
    g.pointwise(P.RELU_FWD, g.tensor("x", (4, 8, 16), strides=(0, 16, 1)), name="y", virtual=False)
    assert find_change(g.graph(), "layout", "x: strides -> without overlap").title.endswith(", with elements copied")


def test_only_the_first_and_last_operations_can_be_moved_out_of_the_graph() -> None:
    g = GraphBuilder("chain", io_type=F16)
    first = g.pointwise(P.ADD, g.tensor("x", (4, 8, 16)), g.tensor("b", (4, 8, 16)), name="first")
    middle = g.pointwise(P.EXP, first, name="middle")
    g.pointwise(P.MUL, middle, g.tensor("c", (4, 8, 16)), name="last", virtual=False)
    titles = {change.title for change in iterate_changes(g.graph(), ("drop_operation",))}
    assert "without the operation first (pointwise add), which is done outside" in titles
    assert "without the operation middle (pointwise exp), which computes something else" in titles
    assert "without the operation last (pointwise mul), which is done outside" in titles


# two properties at once, and replacements with the same results


def test_an_integer_operand_can_take_the_type_of_the_float_operand() -> None:
    g = GraphBuilder("mixed", io_type=DataType.HALF)
    a = g.tensor("a", (1, 8, 8), data_type=DataType.INT32)
    g.matmul(a, g.tensor("b", (1, 8, 8)), name="c", virtual=False)
    titles = [change.title for change in iterate_changes(g.graph(), ("data_type",))]
    assert "a int32 -> float16, as the others" in titles


@pytest.mark.parametrize("operator", [ReduceTensorOp.NORM1, ReduceTensorOp.AMAX])
def test_reductions_of_absolute_values_have_an_exact_replacement(operator: ReduceTensorOp) -> None:
    g = GraphBuilder("reduced", io_type=DataType.FLOAT)
    g.reduction(operator, g.tensor("x", (2, 3, 4)), (2, 1, 4), name="y", virtual=False)
    graph = g.graph()
    [one] = [item for item in find_unusual_properties(graph) if item.aspect == "parameter"]
    assert one.effect == "exact"
    changed = one.undo(graph)
    assert changed is not None
    values = make_random_array(2, 3, 4)
    old, new = (interpret(item, {"x": values})["y"] for item in (graph, changed))
    np.testing.assert_allclose(new, old, rtol=1e-6)


def test_floor_mod_by_other_operations_gives_the_same_results() -> None:
    g = GraphBuilder("rest", io_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.FLOOR_MOD, g.tensor("x", (2, 3, 4)), g.tensor("b", (1, 3, 1)), name="y", virtual=False)
    graph = g.graph()
    [one] = [item for item in find_unusual_properties(graph) if item.aspect == "parameter"]
    changed = one.undo(graph)
    assert changed is not None
    assert PointwiseMode.FLOOR_MOD not in [op.mode for op in changed.ops if isinstance(op, Pointwise)]
    values = {"x": make_random_array(2, 3, 4), "b": make_random_array(1, 3, 1)}
    np.testing.assert_array_equal(interpret(changed, values)["y"], interpret(graph, values)["y"])


def test_replacing_an_integer_io_type_keeps_the_compute_type() -> None:
    g = GraphBuilder("integers", io_type=DataType.INT64, compute_type=DataType.INT32)
    g.pointwise(PointwiseMode.MUL, g.tensor("x", (1, 2, 4)), g.tensor("y", (1, 2, 4)), name="z", virtual=False)
    graph = g.graph()
    found = {one.key.partition(" ")[0]: one for one in find_unusual_properties(graph)}
    undone = found["type"].undo(graph)
    assert undone is not None
    [op] = undone.ops
    assert isinstance(op, Pointwise)
    assert (op.compute_type, undone.tensor("x").data_type) == (DataType.INT32, DataType.FLOAT)


@pytest.mark.parametrize("dims", [(1, 63, 2), (1, 128, 11)])
def test_wrong_dims_of_block_scales_are_changed_to_whole_tiles(dims: tuple[int, ...]) -> None:
    right = refused_graphs.make_block_scaled_matmul(128, 128, 128)
    scale = right.tensor("a_scale")
    wrong = replace_tensors(right, {scale.uid: replace(scale, dims=dims)})
    [change] = [one for one in iterate_changes(wrong, ("dims",)) if "a_scale" in one.tensors]
    assert change.graph.tensor("a_scale").dims == (1, 128, 4)


def test_a_wrong_head_count_is_changed_to_match_other_tensors() -> None:
    graph = sdpa_forward(batch=2, heads=4, seq_q=8, head_dim=8, implementation="unified", version=(9, 28, 0))
    q = graph.tensor("q")
    wrong = replace_tensors(graph, {q.uid: replace(q, dims=(2, 3, 8, 8))})
    assert any(one.graph.tensor("q").dims == (2, 4, 8, 8) for one in iterate_changes(wrong, ("dims",)))


@pytest.mark.parametrize(
    ("dims", "strides", "overlaps"),
    [
        ((2, 3, 4), (12, 4, 1), False),
        ((2, 3, 4), (16, 4, 1), False),
        ((2, 3, 4), (12, 3, 1), True),
        ((2, 3, 4), (12, 0, 1), True),
        ((1, 3, 384, 384), (442368, 1, 1152, 4), True),
        ((2, 2), (2, 3), False),  # 0, 3, 2, 5
        ((3, 2), (3, 6), True),
        ((1, 3, 384, 384), (442368, 2, 1152, 3), False),  # 2 * c + 3 * w hits no place twice
        ((64, 2, 1 << 20), (1 << 21, 2, 1), True),
    ],
)
def test_overlapping_elements_are_found(dims: tuple[int, ...], strides: tuple[int, ...], overlaps: bool) -> None:
    assert has_overlapping_elements(dims, strides) is overlaps


def test_dims_of_size_1_get_the_strides_of_channels_last() -> None:
    g = GraphBuilder("relu", io_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, 32, 1, 1)), name="y", virtual=False)
    [change] = [one for one in iterate_changes(g.graph(), ("layout",)) if "size 1" in one.title]
    assert change.effect == "exact"
    assert {tensor.strides for tensor in change.graph.tensors} == {(32, 1, 32, 32)}


def test_weights_of_one_by_one_change_their_type_with_the_image() -> None:
    g = GraphBuilder("narrow", io_type=F32)
    g.convolution(g.tensor("x", (1, 16, 5, 9)), g.tensor("w", (32, 16, 1, 1)), name="y", virtual=False)
    titles = [change.title for change in iterate_changes(g.graph(), ("data_type",))]
    assert "w, x: float32 -> float16" in titles or "x, w: float32 -> float16" in titles
    assert not any(title.startswith("x: ") for title in titles)


def test_dropping_the_last_operation_names_the_type_that_is_written_then() -> None:
    g = GraphBuilder("scaled", io_type=BF16)
    c = g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c")
    g.pointwise(PointwiseMode.MUL, c, g.tensor("scale", (1, 64, 64)), name="y", virtual=False)
    dropped = next(change for change in iterate_changes(g.graph(), ("drop_operation",)) if change.graphs)
    assert dropped.title.endswith("which is done outside, with c written as bfloat16")
    assert dropped.graph.outputs[0].data_type is BF16
