"""Changes to another form of the same computation: new graphs, equal results, and where no change is offered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import ReduceTensorOp, ResampleMode
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.attention import SoftCap, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.ir import Matmul, Parameters, Pointwise, packed_strides
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.graph.strides import channels_last
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.plans.lower import find_newer_features
from cudnn_backend_py.rewrite.changes import Change, iterate_changes
from tests.support.graphs import CONVOLUTION_FIELDS, make_convolution, make_tensor
from tests.support.interpreting import Array, make_random_array
from tests.support.refused_graphs import make_convolution_graph, make_transpose_and_sum

F16, F32, INT8 = DataType.HALF, DataType.FLOAT, DataType.INT8
P, R = PointwiseMode, ReduceTensorOp
SMALL: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 5, "head_dim": 4, "allow_hazards": True}


def make_handwritten_attention(
    *leading: int, scale: str = "mul", statistics: bool = False, strides: Any = "packed"
) -> Graph:
    """Return attention with softmax written as pointwise operations and reductions; `leading` dims precede [s, d]."""
    rank, row = len(leading) + 2, (*leading, 5, 1)
    g = GraphBuilder("by_hand", io_type=F16)
    q, v = g.tensor("q", (*leading, 5, 4), strides=strides), g.tensor("v", (*leading, 5, 3))
    s = g.matmul(q, g.tensor("k", (*leading, 4, 5)), name="s")
    number = g.scalar(0.5 if scale == "mul" else 2.0, name="scale", rank=rank)
    s = g.pointwise(P.MUL if scale == "mul" else P.DIV, s, number)
    top = g.reduction(R.MAX, s, row, name="top")
    exp = g.pointwise(P.EXP, g.pointwise(P.SUB, s, top))
    total = g.reduction(R.ADD, exp, row, name="total")
    if statistics:
        g.pointwise(P.ADD, top, g.pointwise(P.LOG, total), name="stats", virtual=False)
    g.matmul(g.pointwise(P.DIV, exp, total), v, name="o", virtual=False)
    return g.graph()


def make_reduction(dims: tuple[int, ...], out: tuple[int, ...]) -> Graph:
    g = GraphBuilder("reduced", io_type=F32)
    g.reduction(R.ADD, g.pointwise(P.RELU_FWD, g.tensor("x", dims)), out, name="y", virtual=False)
    return g.graph()


def make_unified_attention(**options: Any) -> Graph:
    make = sdpa_backward if options.pop("backward", False) else sdpa_forward
    return make(**{**SMALL, **options}, implementation="unified", version=(9, 28, 0))


def make_padded_convolution(
    before: tuple[int, int], after: tuple[int, int], kind: str = "FORWARD", **options: Any
) -> Graph:
    ports = {"FORWARD": ("x", "w", "y"), "BACKWARD_DATA": ("dx", "w", "dy"), "BACKWARD_FILTER": ("x", "dw", "dy")}[kind]
    height, width = (6 + left + right - 2 for left, right in zip(before, after, strict=True))
    shapes = ((1, 3, 6, 6), (2, 3, 3, 3), (1, 2, height, width))
    operands = {name: make_tensor(name, *dims, **options) for name, dims in zip(ports, shapes, strict=True)}
    fields = {key: make_convolution().fields[key] for key in ("alpha", "beta")}
    parameters = {**CONVOLUTION_FIELDS, "pre_paddings": before, "post_paddings": after}
    inner = Parameters(DescriptorType.CONVOLUTION, parameters)
    op = Operation(
        DescriptorType[f"OPERATION_CONVOLUTION_{kind}"], "conv", {**fields, "convolution": inner, **operands}
    )
    return Graph((op,), "padded")


def set_dims_of_sequence_lengths(graph: Graph, *dims: int) -> Graph:
    lengths = [item for item in graph.tensors if item.name.startswith("seq_len")]
    assert lengths
    return replace_tensors(graph, {t.uid: replace(t, dims=dims, strides=packed_strides(dims)) for t in lengths})


def find_exact_change(graph: Graph, kind: str, words: str = "") -> Change:
    found = [change for change in iterate_changes(graph, (kind,)) if words in change.title]
    assert found, [change.title for change in iterate_changes(graph, (kind,))]
    assert found[0].effect == "exact"
    return found[0]


def make_random_inputs(graph: Graph) -> dict[str, Array]:
    written = {item.uid for item in graph.outputs}
    read = [item for item in graph.variant_pack_tensors if item.uid not in written and not item.scratch]
    read = [item for item in read if not item.by_value]
    return {item.name: make_random_array(*item.dims, seed=index) for index, item in enumerate(read)}


def interpret_by_tensor_name(graph: Graph, given: Mapping[str, Any]) -> dict[str, Array]:
    return {str(name): values for name, values in interpret(graph, dict(given)).items()}


# leading axes, rows and columns


@pytest.mark.parametrize("leading", [(2, 3, 2), (2, 1, 1, 2), (3, 2, 1)])
def test_leading_axes_of_attention_are_merged(leading: tuple[int, ...]) -> None:
    graph = make_handwritten_attention(*leading, statistics=True)
    change = find_exact_change(graph, "flatten")
    assert {item.rank for item in change.graph.tensors} == {4}
    given = make_random_inputs(graph)
    flat = {name: values.reshape(change.graph.tensor(name).dims) for name, values in given.items()}
    expected, got = interpret_by_tensor_name(graph, given), interpret_by_tensor_name(change.graph, flat)
    for name in ("o", "stats"):
        np.testing.assert_allclose(got[name].reshape(expected[name].shape), expected[name], rtol=1e-6)
        strides = graph.tensor(name).strides
        assert change.graph.tensor(name).strides == strides[len(leading) - 2 :]


def test_a_tensor_with_unmergeable_axes_is_copied() -> None:
    graph = make_handwritten_attention(2, 3, 2, strides=(40, 80, 20, 4, 1))
    change = find_exact_change(graph, "flatten")
    assert "(q copied" in change.title
    assert change.graph.tensor("q").strides == (40, 20, 4, 1)
    assert "copied" not in find_exact_change(make_handwritten_attention(2, 3, 2), "flatten").title


@pytest.mark.parametrize("leading", [(2, 3), (2, 1, 2)])
def test_leading_axes_of_a_matmul_are_merged_into_one_batch_axis(leading: tuple[int, ...]) -> None:
    g = GraphBuilder("product", io_type=F32)
    product = g.matmul(g.tensor("a", (*leading, 5, 4)), g.tensor("b", (*leading, 4, 3)))
    g.pointwise(P.ADD, product, g.tensor("bias", (*(1 for _ in leading), 1, 3)), name="y", virtual=False)
    graph = g.graph()
    change = find_exact_change(graph, "flatten")
    assert {item.rank for item in change.graph.tensors} == {3}
    given = make_random_inputs(graph)
    flat = {name: values.reshape(change.graph.tensor(name).dims) for name, values in given.items()}
    expected, got = interpret_by_tensor_name(graph, given)["y"], interpret_by_tensor_name(change.graph, flat)["y"]
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-6)


def test_a_matmul_of_rank_2_gets_a_leading_dim() -> None:
    g = GraphBuilder("matrices", io_type=F32)
    product = g.matmul(g.tensor("a", (5, 4), strides=(1, 5)), g.tensor("b", (4, 3)))
    exp = g.pointwise(P.EXP, g.pointwise(P.ADD, product, g.tensor("bias", (1, 3))))
    g.reduction(R.ADD, exp, (5, 1), name="y", virtual=False)
    graph = g.graph()
    change = find_exact_change(graph, "flatten", "a leading dim of 1: a [5, 4] -> [1, 5, 4]")
    assert {item.rank for item in change.graph.tensors} == {3}
    assert change.graph.tensor("a").strides == (20, 1, 5)
    given = make_random_inputs(graph)
    expected, got = (
        interpret_by_tensor_name(graph, given),
        interpret_by_tensor_name(change.graph, {name: values[None] for name, values in given.items()}),
    )
    np.testing.assert_allclose(got["y"][0], expected["y"], rtol=1e-6)
    batched = make_handwritten_attention(2)
    assert not [one for one in iterate_changes(batched, ("flatten",)) if "a leading dim" in one.title]


@pytest.mark.parametrize(
    ("dims", "out", "needed"),
    [
        ((6, 4), (1, 4), (6, 4, 1, 1)),
        ((2, 3, 4), (2, 3, 1), (6, 4, 1, 1)),
        ((2, 3, 4), (1, 3, 4), (2, 12, 1, 1)),
        ((6, 4, 1, 1), (1, 4, 1, 1), (6, 4, 1, 1)),
    ],
)
def test_tensors_of_a_reduction_are_reshaped_to_rows_and_columns(
    dims: tuple[int, ...], out: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    graph = make_reduction(dims, out)
    change = find_exact_change(graph, "flatten", "rows and columns as 1 x 1 images")
    x = change.graph.tensor("x")
    assert (x.dims, x.strides) == (needed, (needed[1], 1, needed[1], needed[1]))
    values = make_random_array(*dims)
    expected = interpret_by_tensor_name(graph, {"x": values})["y"]
    got = interpret_by_tensor_name(change.graph, {"x": values.reshape(needed)})["y"]
    np.testing.assert_allclose(got.ravel(), expected.ravel())


# lengths, biases


@pytest.mark.parametrize("dims", [(2,), (2, 1), (1, 2, 1, 1), (1, 1, 1, 2)])
def test_sequence_lengths_are_reshaped_to_four_dims(dims: tuple[int, ...]) -> None:
    change = find_exact_change(set_dims_of_sequence_lengths(make_unified_attention(padding=True), *dims), "lengths")
    assert {item.dims for item in change.graph.tensors if item.name.startswith("seq_len")} == {(2, 1, 1, 1)}
    assert change.tensors == ("seq_len_q", "seq_len_kv")
    assert change.graph == make_unified_attention(padding=True)


def test_ragged_offsets_are_reshaped_to_four_dims() -> None:
    graph = sdpa_forward(**SMALL, ragged=True)
    offsets = {item.ragged_offset.uid: item.ragged_offset for item in graph.tensors if item.ragged_offset is not None}
    flat = replace_tensors(graph, {uid: replace(item, dims=(3,), strides=(1,)) for uid, item in offsets.items()})
    assert find_exact_change(flat, "lengths").graph == graph


@pytest.mark.parametrize("form", ["composite", "unified"])
@pytest.mark.parametrize("dims", [(1, 2, 1, 5), (1, 1, 5, 1), (2, 2, 1, 5)])
def test_a_broadcast_bias_is_expanded_and_its_gradient_summed(form: str, dims: tuple[int, int, int, int]) -> None:
    options: dict[str, Any] = {**SMALL, "bias": dims, "dbias": True, "implementation": form}
    graph = sdpa_backward(**options, version=(9, 28, 0) if form == "unified" else None)
    found = list(iterate_changes(graph, ("bias_dims",)))
    assert found[0].graph.tensor("bias").dims == (*dims[:2], 5, 5)
    given = make_random_inputs(graph)
    expected = interpret_by_tensor_name(graph, given)
    for change in found:
        larger = change.graph.tensor("bias").dims
        assert change.graph.tensor("dbias").dims == larger
        got = interpret_by_tensor_name(change.graph, {**given, "bias": np.broadcast_to(given["bias"], larger)})
        axes = tuple(axis for axis, (one, other) in enumerate(zip(dims, larger, strict=True)) if one != other)
        np.testing.assert_allclose(got["dbias"].sum(axis=axes, keepdims=True), expected["dbias"], rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(got["dq"], expected["dq"], rtol=1e-6, atol=1e-9)


# convolutions


def compute_convolution_result(graph: Graph, x: Array, w: Array) -> Array:
    """Return the convolution of x and w with the paddings of the graph."""
    op = graph.ops[0]
    assert isinstance(op, Operation)
    inner = op.fields["convolution"].fields
    sides = list(zip(inner["pre_paddings"], inner["post_paddings"], strict=True))
    x = np.pad(x, [(0, 0), (0, 0), *sides])
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w)


@pytest.mark.parametrize(("before", "after"), [((0, 0), (2, 2)), ((0, 1), (1, 1)), ((2, 1), (0, 1))])
def test_a_convolution_with_uneven_padding_reads_a_padded_image(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    graph = make_padded_convolution(before, after)
    change = find_exact_change(graph, "explicit_padding")
    x, w = make_random_array(1, 3, 6, 6), make_random_array(2, 3, 3, 3)
    larger = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    assert change.graph.tensor("x").dims == larger.shape
    y = compute_convolution_result(change.graph, larger, w)
    assert y.shape == change.graph.tensor("y").dims
    np.testing.assert_allclose(y, compute_convolution_result(graph, x, w))
    np.testing.assert_allclose(interpret_by_tensor_name(change.graph, {"x": larger, "w": w})["y"], y, rtol=1e-6)


@pytest.mark.parametrize(("kind", "port"), [("BACKWARD_DATA", "dx"), ("BACKWARD_FILTER", "x")])
def test_gradients_of_a_convolution_with_uneven_padding_use_a_padded_image(kind: str, port: str) -> None:
    change = find_exact_change(make_padded_convolution((0, 0), (2, 2), kind), "explicit_padding")
    assert change.graph.tensor(port).dims == (1, 3, 8, 8)
    assert ("cut off afterwards" in change.title) == (kind == "BACKWARD_DATA")


def test_the_compute_type_of_an_int8_convolution_is_changed_to_int32() -> None:
    """Some programs declare int8 as the compute type of their int8 convolutions."""
    graph = make_padded_convolution((1, 1), (1, 1), data_type=INT8)
    op = graph.ops[0]
    assert isinstance(op, Operation)
    inner = op.fields["convolution"]
    small = Parameters(inner.kind, {**inner.fields, "comp_type": INT8})
    graph = Graph((Operation(op.type, op.name, {**op.fields, "convolution": small}),), "int8")
    change = find_exact_change(graph, "data_type", "computed in int8 -> computed in int32")
    changed = change.graph.ops[0]
    assert isinstance(changed, Operation)
    assert changed.fields["convolution"].fields["comp_type"] is DataType.INT32
    x, w = np.round(4 * make_random_array(1, 3, 6, 6)), np.round(4 * make_random_array(2, 3, 3, 3))
    np.testing.assert_array_equal(
        interpret_by_tensor_name(change.graph, {"x": x, "w": w})["y"], compute_convolution_result(graph, x, w)
    )


# forms of attention


@pytest.mark.parametrize("scale", ["mul", "div"])
def test_a_handwritten_softmax_is_replaced_by_the_composite_pattern(scale: str) -> None:
    graph = make_handwritten_attention(2, 2, scale=scale)
    change = find_exact_change(graph, "composite", "by hand")
    modes = [op.mode for op in change.graph.ops if isinstance(op, Pointwise)]
    assert modes == [P.MUL, P.SUB, P.EXP, P.LOG, P.ADD, P.DIV]
    assert [item.name for item in change.graph.outputs] == ["o"]
    last = change.graph.ops[-1]
    assert isinstance(last, Matmul)
    assert last.a.data_type is F16
    given = make_random_inputs(graph)
    np.testing.assert_allclose(
        interpret_by_tensor_name(change.graph, given)["o"], interpret_by_tensor_name(graph, given)["o"], rtol=1e-6
    )


BACKWARD: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "left_bound": 3},
    "bias": {"bias": (1, 2, 5, 5), "dbias": True},
    "bias of all": {"bias": (1, 1, 5, 5)},
    "sink": {"sink": True, "dsink": True},
    "grouped heads": {"kv_heads": 1},
    "scale": {"scale": 0.3},
    "scale in a tensor": {"scale": "tensor"},
}


@pytest.mark.parametrize("name", BACKWARD)
def test_unified_attention_backward_is_converted_to_composite(name: str) -> None:
    graph = make_unified_attention(backward=True, **BACKWARD[name])
    change = find_exact_change(graph, "composite", "SDPA_BWD")
    mine = [item for item in graph.variant_pack_tensors if item.value is None or item.name == "scale"]
    kept = {item.name: (item.uid, item.data_type) for item in mine}
    made = {item.name: (item.uid, item.data_type) for item in change.graph.variant_pack_tensors}
    assert {name: made[name] for name in kept} == kept
    given = make_random_inputs(graph)
    swapped = {key: np.swapaxes(values, -1, -2) if key in ("k", "v") else values for key, values in given.items()}
    expected, got = interpret_by_tensor_name(graph, given), interpret_by_tensor_name(change.graph, swapped)
    assert {item.name for item in graph.outputs} <= set(got)
    for item in graph.outputs:
        sign = -1 if item.name == "dsink" else 1  # read literally, the operations give the other sign
        np.testing.assert_allclose(sign * got[item.name], expected[item.name], rtol=1e-5, atol=1e-8, err_msg=item.name)


def test_converted_ragged_attention_backward_keeps_ragged_offsets() -> None:
    graph = make_unified_attention(backward=True, ragged=True, ragged_stats=True)
    made = find_exact_change(graph, "composite", "SDPA_BWD").graph
    for name in ("q", "do", "dq", "stats"):
        assert made.tensor(name).ragged_offset == graph.tensor(name).ragged_offset


def test_a_virtual_integer_tensor_written_from_floats_becomes_float32() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64)
    shifted = graph.tensor("shifted")
    graph = replace_tensors(graph, {shifted.uid: replace(shifted, data_type=DataType.INT32)})
    change = next(iterate_changes(graph, ("intermediate_type",)))
    assert change.tensors == ("shifted",)
    assert change.graph.tensor("shifted").data_type is DataType.FLOAT


def test_alignments_are_first_raised_to_the_element_size() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64)
    low = {one.uid: replace(one, alignment=1) for one in map(graph.tensor, ("q", "shifted"))}
    first, second = iterate_changes(replace_tensors(graph, low), ("alignment",))
    assert (first.graph.tensor("q").alignment, first.graph.tensor("shifted").alignment) == (2, 4)
    assert (second.graph.tensor("q").alignment, second.graph.tensor("shifted").alignment) == (16, 1)


def find_equal_change_to_two_spatial_dims(graph: Graph, shown: str) -> Change:
    """Return the change to two spatial dims, the first of size 1, and check that it gives the same result y."""
    change = find_exact_change(graph, "flatten", f"two spatial dims, the first of them 1: {shown}")
    given = make_random_inputs(graph)
    images = {name: values[:, :, None] for name, values in given.items()}
    np.testing.assert_array_equal(
        interpret_by_tensor_name(change.graph, images)["y"][:, :, 0], interpret_by_tensor_name(graph, given)["y"]
    )
    return change


def test_convolution_over_one_dim_becomes_convolution_over_two_dims() -> None:
    g = GraphBuilder("convolved", io_type=F32)
    x, w = g.tensor("x", (2, 3, 9)), g.tensor("w", (4, 3, 3))
    g.pointwise(P.RELU_FWD, g.convolution(x, w, stride=2, padding=1), name="y", virtual=False)
    change = find_equal_change_to_two_spatial_dims(g.graph(), "w [4, 3, 3] -> [4, 3, 1, 3]")
    assert change.graph.tensor("w").dims == (4, 3, 1, 3)


@pytest.mark.parametrize("mode", [ResampleMode.MAXPOOL, ResampleMode.AVGPOOL_EXCLUDE_PADDING])
def test_pooling_over_one_dim_becomes_pooling_over_two_dims(mode: ResampleMode) -> None:
    g = GraphBuilder("pooled", io_type=F32)
    x = g.tensor("x", (2, 3, 9), strides="channels_last")
    g.pointwise(P.RELU_FWD, g.resample(mode, x, window=3, stride=2, padding=1).y, name="y", virtual=False)
    change = find_equal_change_to_two_spatial_dims(g.graph(), "x [2, 3, 9] -> [2, 3, 1, 9]")
    assert change.graph.tensor("x").strides == (27, 1, 27, 3)


def test_attention_with_a_mask_bound_without_value_is_not_converted() -> None:
    graph = make_unified_attention(backward=True, right_bound=2)
    bound = next(item for item in graph.tensors if item.by_value and item.data_type is DataType.INT32)
    assert find_exact_change(graph, "composite", "SDPA_BWD")
    open_bound = replace_tensors(graph, {bound.uid: replace(bound, value=None)})
    assert list(iterate_changes(open_bound, ("composite",))) == []


NOT_APPLICABLE: list[tuple[str, Callable[[], Graph]]] = [
    ("flatten", lambda: make_handwritten_attention(2, 2)),
    ("flatten", lambda: sdpa_forward(**SMALL, causal=True)),
    ("flatten", lambda: make_reduction((2, 3, 4), (2, 1, 4))),
    ("lengths", lambda: make_unified_attention(padding=True)),
    ("lengths", lambda: sdpa_forward(**SMALL, ragged=True)),
    ("bias_dims", lambda: sdpa_backward(**SMALL, bias=(2, 2, 5, 5), dbias=True)),
    ("bias_dims", lambda: sdpa_forward(**SMALL)),
    ("explicit_padding", lambda: make_padded_convolution((1, 1), (1, 1))),
    ("explicit_padding", lambda: make_handwritten_attention(2, 2)),
    ("composite", lambda: make_handwritten_attention(2, 2, statistics=True)),
    ("composite", lambda: make_unified_attention(backward=True, score_modifier=SoftCap(3.0))),
    ("composite", lambda: make_unified_attention(backward=True, alibi=True, causal=True)),
]


@pytest.mark.parametrize(("kind", "make"), NOT_APPLICABLE)
def test_inapplicable_kinds_of_graph_change_are_not_offered(kind: str, make: Callable[[], Graph]) -> None:
    assert list(iterate_changes(make(), (kind,))) == []


@pytest.mark.parametrize("axes", [(0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1)])
def test_a_transpose_is_replaced_by_other_strides(axes: tuple[int, int, int]) -> None:
    graph = make_transpose_and_sum((2, 3, 4), axes)
    change = find_exact_change(graph, "view")
    assert change.effect == "exact"
    x = np.arange(24.0).reshape(2, 3, 4)
    seen = change.graph.tensor("x")
    view = np.lib.stride_tricks.as_strided(x, seen.dims, [8 * stride for stride in seen.strides])
    assert (view == x.transpose(axes)).all()
    assert [op.name for op in change.graph.ops] == [op.name for op in graph.ops if op.name != "turn"]


@pytest.mark.parametrize("per_group", [1, 2, 3, 5, 6, 7])
def test_channels_of_a_grouped_convolution_are_padded_in_each_group(per_group: int) -> None:
    graph = make_convolution_graph(DataType.HALF, DataType.HALF, 4 * per_group, per_group, 8)
    found = list(iterate_changes(graph, ("pad_channels",)))
    assert {change.effect for change in found} == {"exact"}
    for change in found:
        x, w = change.graph.tensor("x"), change.graph.tensor("w")
        assert x.dims[1] == 4 * w.dims[1] > 4 * per_group
        assert x.strides == channels_last(x.dims)
        assert w.strides == channels_last(w.dims)
        assert change.graph.tensor("y") == graph.tensor("y")


def test_features_newer_than_the_library_are_listed_newest_first() -> None:
    options: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 128, "head_dim": 64, "causal": True}
    graph = sdpa_forward(**options, implementation="unified", version=(9, 28, 0), allow_hazards=True)
    assert find_newer_features(graph, (9, 28, 0)) == []
    found = find_newer_features(graph, (9, 19, 0))
    assert [one.since for one in found] == sorted((one.since for one in found), reverse=True)
    since = {one.c_name: one.since for one in found}
    assert since["CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH"] == (9, 21, 0)
    assert since["CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR"] == (9, 20, 0)
    assert {one.c_name for one in find_newer_features(graph, (9, 20, 0))} < since.keys()


def test_features_of_two_enums_with_one_number_are_both_found() -> None:
    g = GraphBuilder("angle", io_type=DataType.HALF)
    x, w = g.tensor("x", (2, 8, 16)), g.tensor("w", (2, 8, 16))
    assert int(PointwiseMode.ATAN2) == int(DataType.FP8_E5M3)
    g.pointwise(PointwiseMode.ATAN2, x, w, name="y", virtual=False, data_type=DataType.FP8_E5M3)
    found = {one.c_name for one in find_newer_features(g.graph(), (9, 0, 0))}
    assert {"CUDNN_POINTWISE_ATAN2", "CUDNN_DATA_FP8_E5M3"} <= found
