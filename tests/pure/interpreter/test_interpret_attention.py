"""The NumPy interpreter: bands, softmax and attention compared with graphs of simple operations; rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import (
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
)
from cudnn_backend_py.graph import Graph, GraphBuilder, Operation, Tensor
from cudnn_backend_py.graph.attention import Attention, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.formats import round_to_data_type
from cudnn_backend_py.interpreter import interpret
from tests.support.interpreting import (
    Array,
    assert_graph_error,
    make_double_tensor,
    make_random_array,
    make_sequence_length_array,
)

INF, NAN = math.inf, math.nan


# rounded values


@pytest.mark.parametrize("form", ["chains", "single operations", "one operation"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_softmax_is_rounded_before_the_division_by_its_sum(form: str, dropout: float) -> None:
    """For 40 equal scores O is the mean of V, although 1 / 40 is not exact in bfloat16."""
    options: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 64, "seq_kv": 40, "head_dim": 32, "dropout": dropout}
    graph = sdpa_forward(
        **options, data_type=DataType.BFLOAT16, implementation="unified" if form == "one operation" else "composite",
        version=None if form == "chains" else (9, 28, 0),
    )  # fmt: skip
    values: dict[str | int, Any] = {name: np.ones(graph.tensor(name).dims) for name in "qk"}
    values["v"] = round_to_data_type(make_random_array(1, 2, 40, 32), DataType.BFLOAT16)
    if dropout:
        values |= {"dropout_seed": np.full((1, 1, 1, 1), 7), "dropout_offset": np.full((1, 1, 1, 1), 1)}
    exact, rounded = (interpret(graph, values, rounding=rounding)["o"] for rounding in (False, True))
    kept = float(round_to_data_type(1 / (1 - dropout), DataType.BFLOAT16)) * (1 - dropout)
    factor = np.vdot(exact, rounded) / np.vdot(exact, exact)
    assert factor == pytest.approx(kept, rel=4e-4)  # for rounded quotients it is 1.001, and 1.004 times this one


# bands and softmax compared with their chains


@pytest.mark.parametrize("diagonal", ["top left", "given lengths", "scalars"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("bound", [0, 2])
def test_a_diagonal_band_mask_equals_comparisons_of_indices(side: str, diagonal: str, bound: int) -> None:
    g = GraphBuilder("band", io_type=DataType.DOUBLE)
    x, hidden, by = g.tensor("x", (2, 2, 5, 7)), g.scalar(-INF), g.scalar(bound)
    seq: dict[str, Tensor] = {}
    if diagonal == "given lengths":
        seq = {name: g.tensor(name, (2, 1, 1, 1), DataType.INT32) for name in ("seq_len_q", "seq_len_kv")}
    elif diagonal == "scalars":
        seq = {"seq_len_q": g.scalar(5), "seq_len_kv": g.scalar(7)}
    row, col = (g.pointwise(PointwiseMode.GEN_INDEX, x, axis=axis) for axis in (2, 3))
    if side == "right":
        left = g.pointwise(PointwiseMode.ADD, row, by, data_type=DataType.INT32)
        steps, compare, right = (PointwiseMode.ADD, PointwiseMode.SUB), PointwiseMode.CMP_GE, col
        fields = {"shift_right_bound": by} if bound else {}
    else:
        left = g.pointwise(PointwiseMode.ADD, col, by, data_type=DataType.INT32)
        steps, compare, right = (PointwiseMode.SUB, PointwiseMode.ADD), PointwiseMode.CMP_GT, row
        fields = {"left_bound": by}
    if seq:
        left = g.pointwise(steps[0], left, seq["seq_len_kv"], data_type=DataType.INT32)
        left = g.pointwise(steps[1], left, seq["seq_len_q"], data_type=DataType.INT32)
    keep = g.pointwise(compare, left, right, name="keep")
    g.pointwise(PointwiseMode.BINARY_SELECT, x, hidden, keep, name="chain", virtual=False)
    y = g.tensor("band", (2, 2, 5, 7))
    g.operation(
        DescriptorType.OPERATION_DIAGONAL_BAND_MASK, x=x, b=hidden, y=y, comparison_mode=compare, **fields, **seq
    )
    inputs: dict[str | int, Any] = {"x": make_random_array(2, 2, 5, 7)}
    if diagonal == "given lengths":
        inputs |= {"seq_len_q": make_sequence_length_array(5, 3), "seq_len_kv": make_sequence_length_array(4, 6)}
    out = interpret(g.graph(), inputs, keep=["keep"])
    np.testing.assert_array_equal(out["band"], out["chain"])
    assert out["keep"].dtype == bool
    assert out["keep"].any()
    assert not out["keep"].all()


@pytest.mark.parametrize("sink", [False, True])
def test_softmax_equals_its_reductions_and_pointwise_operations(sink: bool) -> None:
    g = GraphBuilder("softmax", io_type=DataType.DOUBLE)
    x, row = g.tensor("x", (2, 2, 3, 5)), (2, 2, 3, 1)
    extra = {"sink": g.tensor("sink", (1, 2, 1, 1))} if sink else {}
    top = g.reduction(ReduceTensorOp.MAX, x, row)
    top = g.pointwise(PointwiseMode.MAX, top, extra["sink"], name="top") if sink else top
    exp = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, x, top))
    total = g.reduction(ReduceTensorOp.ADD, exp, row)
    if sink:
        total = g.pointwise(
            PointwiseMode.ADD, total, g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, extra["sink"], top))
        )
    chain = [
        top,
        total,
        g.pointwise(PointwiseMode.ADD, top, g.pointwise(PointwiseMode.LOG, total)),
        g.pointwise(PointwiseMode.DIV, exp, total),
    ]
    rows = {name: g.tensor(name, row) for name in ("max", "sum_exp", "stats")}
    g.operation(DescriptorType.OPERATION_SOFTMAX, x=x, y=g.tensor("y", (2, 2, 3, 5)), **rows, **extra)
    log2 = {"stats": g.tensor("log2", row), "stats_log2": True}
    g.operation(DescriptorType.OPERATION_SOFTMAX, x=x, y=g.tensor("y2", (2, 2, 3, 5)), **log2, **extra)
    inputs: dict[str | int, Any] = {"x": 3 * make_random_array(2, 2, 3, 5)}
    inputs |= {"sink": make_random_array(1, 2, 1, 1)} if sink else {}
    inputs["x"][0, 0, 1, 2:] = -INF
    out = interpret(g.graph(), inputs, keep=[item.name for item in chain])
    for name, item in zip(("max", "sum_exp", "stats", "y"), chain, strict=True):
        np.testing.assert_allclose(out[name], out[item.name], err_msg=name)
    np.testing.assert_allclose(out["log2"], out["stats"] / math.log(2))
    assert (out["y"].sum(axis=3) < 1).all() if sink else np.allclose(out["y"].sum(axis=3), 1)


def test_softmax_of_a_fully_masked_row_is_nan() -> None:
    op = Operation(
        DescriptorType.OPERATION_SOFTMAX,
        "softmax",
        {"x": make_double_tensor("x", (2, 2)), "y": make_double_tensor("y", (2, 2))},
    )
    got = interpret(Graph((op,)), {"x": [[-INF, -INF], [0, 0]]})["y"]
    np.testing.assert_array_equal(got, [[NAN, NAN], [0.5, 0.5]])


# the fused operations


def make_known_and_random_graph_inputs(graph: Graph, known: dict[str, Any]) -> dict[str | int, Any]:
    """Return the inputs of a graph: those in `known`, others random; known K and V are [b, h, s, d]."""
    written = {item.uid for op in graph.ops for item in op.outputs().values()} | {item.uid for item in graph.outputs}
    inputs: dict[str | int, Any] = {}
    for item in graph.variant_pack_tensors:
        if item.uid in written or item.value is not None:
            continue
        value = known.get(item.name)
        value = make_random_array(*item.dims, seed=item.uid) if value is None else value
        transposed = item.name in ("k", "v") and value.shape != item.dims
        inputs[item.name] = value.swapaxes(2, 3) if transposed else value
    return inputs


def generate_dropout_mask(seed: int, offset: int, dims: tuple[int, ...], probability: float) -> Array:
    return np.random.default_rng([seed, offset]).random(dims) < probability


PROBLEM_SIZES = {
    "batch": 2,
    "heads": 4,
    "kv_heads": 2,
    "seq_q": 6,
    "seq_kv": 8,
    "head_dim": 4,
    "head_dim_v": 3,
    "stats": True,
}
ATTENTION_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "band": {"causal": True, "alignment": "bottom_right", "left_bound": 3},
    "padding": {"padding": True},
    "padding, band": {"padding": True, "right_bound": 2, "left_bound": 4, "alignment": "bottom_right"},
    "bias": {"bias": (1, 4, 6, 8), "dbias": True},
    "alibi": {"alibi": True, "causal": True},
    "sink": {"sink": True, "max": True, "sum_exp": True},
    "modifier": {"score_modifier": 2.0},
    "dropout": {"dropout": 0.25},
}


def make_attention_problem(option: str) -> Any:
    from cudnn_backend_py.graph.attention import Attention, SoftCap

    fields = dict(ATTENTION_OPTIONS[option])
    if "score_modifier" in fields:
        fields["score_modifier"] = SoftCap(fields["score_modifier"])
    return Attention(**PROBLEM_SIZES, **fields)


def make_random_attention_inputs(problem: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        name: make_random_array(*problem.dims(name), seed=index) for index, name in enumerate("qkv")
    }
    known |= {
        "seq_len_q": make_sequence_length_array(4, 6),
        "seq_len_kv": make_sequence_length_array(8, 5),
        "do": make_random_array(*problem.dims("o"), seed=9),
    }
    known |= {"dropout_seed": np.full((1, 1, 1, 1), 7), "dropout_offset": np.full((1, 1, 1, 1), 3)}
    known |= {
        "bias": make_random_array(1, 4, 6, 8),
        "sink": make_random_array(1, 4, 1, 1),
        "alibi_slopes": make_random_array(1, 4, 1, 1),
    }
    return known


@pytest.mark.parametrize("option", ATTENTION_OPTIONS)
def test_the_unified_forward_operation_equals_the_composite_graph(option: str) -> None:
    from cudnn_backend_py.graph.attention import sdpa_forward

    problem = make_attention_problem(option)
    known = make_random_attention_inputs(problem)
    forms = [("composite", None), ("composite", (9, 28, 0)), ("unified", (9, 28, 0))]
    graphs = [
        sdpa_forward(problem, implementation=form, version=version, allow_hazards=True) for form, version in forms
    ]  # type: ignore[arg-type]
    first, *others = (
        interpret(graph, make_known_and_random_graph_inputs(graph, known), rng=generate_dropout_mask)
        for graph in graphs
    )
    assert "stats" in first
    assert not np.isnan(first["o"]).any()
    for other in others:
        assert set(other) == set(first)
        for name, value in first.items():
            np.testing.assert_allclose(other[name], value, err_msg=name)


@pytest.mark.parametrize("option", [option for option in ATTENTION_OPTIONS if option != "sink"])
def test_the_unified_backward_operation_equals_the_composite_graph(option: str) -> None:
    from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward

    problem = make_attention_problem(option)
    known = make_random_attention_inputs(problem)
    forward = sdpa_forward(problem, implementation="composite", allow_hazards=True)
    known |= {
        name: np.nan_to_num(value)
        for name, value in interpret(
            forward, make_known_and_random_graph_inputs(forward, known), rng=generate_dropout_mask
        ).items()
    }
    one, many = (
        sdpa_backward(problem, implementation=form, version=(9, 28, 0), allow_hazards=True)
        for form in ("unified", "composite")
    )
    got, expected = (
        interpret(graph, make_known_and_random_graph_inputs(graph, known), rng=generate_dropout_mask)
        for graph in (one, many)
    )
    assert {"dq", "dk", "dv"} <= set(expected) == set(got)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-8, atol=1e-10, err_msg=name)


def test_attention_ignores_values_in_padding() -> None:
    from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward

    problem = make_attention_problem("padding")
    known = make_random_attention_inputs(problem)
    dirty = {name: value.copy() for name, value in known.items()}
    for name, used in (("q", (4, 6)), ("do", (4, 6)), ("k", (8, 5)), ("v", (8, 5))):
        for entry, count in enumerate(used):
            dirty[name][entry, :, count:] = NAN
    for make in (sdpa_forward, sdpa_backward):
        graph = make(problem, implementation="unified", version=(9, 28, 0), allow_hazards=True)
        clean, same = (interpret(graph, make_known_and_random_graph_inputs(graph, values)) for values in (known, dirty))
        for name, value in clean.items():
            np.testing.assert_array_equal(same[name], value)
        known |= clean
        dirty |= clean


def test_a_row_without_unmasked_keys_has_a_zero_gradient() -> None:
    from cudnn_backend_py.graph.attention import sdpa_backward

    problem = replace(make_attention_problem("band"), seq_q=10, right_bound=0)  # the first two rows have no column
    graph = sdpa_backward(problem, implementation="unified", version=(9, 28, 0), allow_hazards=True)
    stats = make_random_array(2, 4, 10, 1)
    stats[:, :, :2] = -INF
    out = interpret(graph, make_known_and_random_graph_inputs(graph, {"stats": stats}))
    assert all(np.isfinite(value).all() for value in out.values())
    np.testing.assert_array_equal(out["dq"][:, :, :2], 0)


@pytest.mark.parametrize("option", ["padding, band", "bias", "sink", "modifier", "dropout"])
def test_sdpa_backward_equals_finite_differences_of_sdpa_forward(option: str) -> None:
    from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward

    problem = replace(make_attention_problem(option), dsink=option == "sink")
    known = make_random_attention_inputs(problem)
    forward = sdpa_forward(problem, implementation="unified", version=(9, 28, 0), allow_hazards=True)
    backward = sdpa_backward(problem, implementation="unified", version=(9, 28, 0), allow_hazards=True)
    inputs = make_known_and_random_graph_inputs(forward, known)

    def compute_loss(name: str, index: tuple[int, ...], step: float) -> float:
        changed = dict(inputs)
        changed[name] = inputs[name].copy()
        changed[name][index] += step
        return float((interpret(forward, changed, rng=generate_dropout_mask)["o"] * known["do"]).sum())

    known |= {
        name: np.nan_to_num(value) for name, value in interpret(forward, inputs, rng=generate_dropout_mask).items()
    }
    gradients = interpret(backward, make_known_and_random_graph_inputs(backward, known), rng=generate_dropout_mask)
    assert len(gradients) >= 3
    for name, gradient in gradients.items():
        for index in [
            (0, 1, 0, 0),
            tuple(dim - 1 for dim in gradient.shape),
            tuple(dim // 2 for dim in gradient.shape),
        ]:
            index = tuple(min(i, dim - 1) for i, dim in zip(index, gradient.shape, strict=True))
            slope = (compute_loss(name[1:], index, 1e-5) - compute_loss(name[1:], index, -1e-5)) / 2e-5
            np.testing.assert_allclose(gradient[index], slope, rtol=1e-6, atol=1e-8, err_msg=f"{name} {index}")


def make_sdpa_graph_and_inputs(**changed: Any) -> tuple[Graph, dict[str | int, Any]]:
    """Return a small SDPA_FWD graph and its inputs: random Q, K and V [1, 1, 4, 2], and the given further tensors."""
    g = GraphBuilder("sdpa", io_type=DataType.DOUBLE)
    dims = {name: changed.pop(f"{name}_dims", (1, 1, 4, 2)) for name in ("q", "k", "v", "o")}
    fields: dict[str, Any] = {name: g.tensor(name, dims[name], changed.pop(f"{name}_type", None)) for name in dims}
    inputs: dict[str | int, Any] = {
        name: make_random_array(*dims[name], seed=index) for index, name in enumerate("qkv")
    }
    for name, value in changed.items():
        kind = None
        if isinstance(value, tuple):
            value, kind = value
        if value is None or isinstance(value, np.ndarray):
            fields[name] = g.tensor(name, (1, 1, 1, 1) if value is None else value.shape, kind)
        else:
            fields[name] = value
        if isinstance(value, np.ndarray):
            inputs[name] = value
    g.operation(DescriptorType.OPERATION_SDPA_FWD, "sdpa", **fields)
    return g.graph(), inputs


def compute_numpy_attention(q: Array, k: Array, v: Array, keep: Array | bool = True) -> Array:
    score = np.where(keep, q @ k.swapaxes(2, 3), -INF)
    exp = np.exp(score - score.max(axis=3, keepdims=True))
    return exp / exp.sum(axis=3, keepdims=True) @ v  # type: ignore[no-any-return]


def test_keys_and_values_are_read_from_pages() -> None:
    pages = {"k_dims": (4, 1, 2, 2), "v_dims": (4, 1, 2, 2)}
    tables = {
        "page_table_k": np.array([2, 0]).reshape(1, 1, 2, 1),
        "page_table_v": np.array([1, 3]).reshape(1, 1, 2, 1),
    }
    typed = {name: (table, DataType.INT32) for name, table in tables.items()}
    typed |= {
        "seq_len_q": (make_sequence_length_array(4), DataType.INT32),
        "seq_len_kv": (make_sequence_length_array(3), DataType.INT32),
    }
    graph, inputs = make_sdpa_graph_and_inputs(**pages, **typed)
    k, v = (inputs[name][tables[f"page_table_{name}"].ravel()].reshape(1, 1, 4, 2)[:, :, :3] for name in "kv")
    np.testing.assert_allclose(interpret(graph, inputs)["o"], compute_numpy_attention(inputs["q"], k, v))


def test_sequence_lengths_may_be_given_as_cumulative_sums() -> None:
    sums = {"cu_seq_len_q": np.array([0, 3]), "cu_seq_len_kv": np.array([0, 2])}
    graph, inputs = make_sdpa_graph_and_inputs(
        **{name: (value.reshape(2, 1, 1, 1), DataType.INT32) for name, value in sums.items()}
    )
    got = interpret(graph, inputs)["o"]
    k, v = inputs["k"][:, :, :2], inputs["v"][:, :, :2]
    np.testing.assert_allclose(got[:, :, :3], compute_numpy_attention(inputs["q"], k, v)[:, :, :3])
    np.testing.assert_array_equal(got[:, :, 3:], 0)


def test_a_block_mask_hides_blocks_of_128() -> None:
    dims = {f"{name}_dims": (1, 1, 200, 2) for name in "qkvo"}
    blocks = np.array([[1, 0], [1, 1]])
    keep = np.repeat(np.repeat(blocks, 128, 0), 128, 1)[:200, :200]
    as_bytes, as_bits = (
        (blocks.reshape(1, 1, 2, 2), DataType.INT8),
        (np.array([1, 3]).reshape(1, 1, 2, 1), DataType.UINT8),
    )
    for mask in (as_bytes, as_bits):
        graph, inputs = make_sdpa_graph_and_inputs(**dims, block_mask=mask)
        expected = compute_numpy_attention(inputs["q"], inputs["k"], inputs["v"], keep)
        np.testing.assert_allclose(interpret(graph, inputs)["o"], expected)


def test_fp8_scales_are_applied_as_in_the_composite_graph() -> None:
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    factors = {name: np.full((1, 1, 1, 1), 0.5 + index) for index, name in enumerate(names)}
    graph, inputs = make_sdpa_graph_and_inputs(**factors, amax_s=None, amax_o=None)
    out = interpret(graph, inputs)
    f = {name: value.item() for name, value in factors.items()}
    q, k, v = inputs["q"] * f["descale_q"], inputs["k"] * f["descale_k"], inputs["v"] * f["descale_v"]
    raw = compute_numpy_attention(q, k, v) * f["scale_s"] * f["descale_s"]
    np.testing.assert_allclose(out["o"], raw * f["scale_o"])
    np.testing.assert_allclose(out["amax_o"].item(), np.abs(raw).max())
    np.testing.assert_allclose(out["amax_s"].item(), compute_numpy_attention(q, k, np.eye(4).reshape(1, 1, 4, 4)).max())


def test_block_scales_of_attention_multiply_their_blocks() -> None:
    dims = {f"{name}_dims": (1, 1, 32, 64) for name in "qkvo"}
    scales = {"descale_q": (1, 1, 32, 2), "descale_k": (1, 1, 32, 2), "descale_v": (1, 1, 1, 64)}
    values = {name: 2.0 ** np.round(make_random_array(*shape)) for name, shape in scales.items()}
    graph, inputs = make_sdpa_graph_and_inputs(
        **dims, **{name: (value, DataType.FP8_E8M0) for name, value in values.items()}
    )
    q, k = (inputs[name] * np.repeat(values[f"descale_{name}"], 32, 3) for name in "qk")
    v = inputs["v"] * np.repeat(values["descale_v"], 32, 2)
    np.testing.assert_allclose(interpret(graph, inputs)["o"], compute_numpy_attention(q, k, v))


def test_attention_uses_a_given_dropout_mask() -> None:
    seed = {name: (np.ones((1, 1, 1, 1), int), DataType.INT64) for name in ("dropout_seed", "dropout_offset")}
    mask = np.arange(16).reshape(1, 1, 4, 4) % 3 != 0
    graph, inputs = make_sdpa_graph_and_inputs(**seed, dropout_probability=0.25)
    got = interpret(graph, {**inputs, "sdpa.dropout_mask": mask})["o"]
    p = compute_numpy_attention(inputs["q"], inputs["k"], np.eye(4).reshape(1, 1, 4, 4))
    np.testing.assert_allclose(got, p * mask / 0.75 @ inputs["v"])
    small = {**inputs, "sdpa.dropout_mask": mask[:, :, :2]}
    assert_graph_error("interpret-shape", "has shape", lambda: interpret(graph, small))


# rounding


def test_interpreted_results_are_rounded_to_their_data_types() -> None:
    g = GraphBuilder("rounding", io_type=DataType.HALF, intermediate_type=DataType.FLOAT)
    a, b = g.tensor("a", (1, 4, 16)), g.tensor("b", (1, 16, 4))
    s = g.matmul(a, b, name="s")
    scaled = g.pointwise(PointwiseMode.MUL, s, g.scalar(0.1, rank=3), name="scaled", data_type=DataType.FP8_E4M3)
    g.reduction(ReduceTensorOp.ADD, scaled, (1, 4, 1), name="y", virtual=False, data_type=DataType.BFLOAT16)
    inputs: dict[str | int, Any] = {"a": make_random_array(1, 4, 16), "b": make_random_array(1, 16, 4)}
    exact, rounded = (interpret(g.graph(), inputs, rounding=way, keep=["s", "scaled"]) for way in (False, True))
    np.testing.assert_allclose(exact["y"], (inputs["a"] @ inputs["b"] * 0.1).sum(axis=2, keepdims=True))
    half = round_to_data_type(inputs["a"], DataType.HALF) @ round_to_data_type(inputs["b"], DataType.HALF)
    np.testing.assert_array_equal(rounded["s"], half.astype(np.float32))
    small = round_to_data_type(rounded["s"] * np.float64(np.float32(0.1)), DataType.FP8_E4M3)
    np.testing.assert_array_equal(rounded["scaled"], small)
    np.testing.assert_array_equal(rounded["y"], round_to_data_type(small.sum(axis=2, keepdims=True), DataType.BFLOAT16))


@pytest.mark.parametrize("option", ["plain", "padding, band", "modifier"])
def test_rounded_attention_is_near_exact_attention(option: str) -> None:
    from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward

    problem = make_attention_problem(option)
    known = make_random_attention_inputs(problem)
    for make in (sdpa_forward, sdpa_backward):
        graph = make(problem, implementation="unified", version=(9, 28, 0), allow_hazards=True)
        inputs = {
            name: round_to_data_type(value, DataType.FLOAT)
            for name, value in make_known_and_random_graph_inputs(graph, known).items()
        }
        exact, rounded = (interpret(graph, inputs, rounding=way) for way in (False, True))
        for name, value in exact.items():
            np.testing.assert_allclose(rounded[name], value, rtol=0.01, atol=0.02, err_msg=name)
            kind = graph.tensor(name).data_type
            np.testing.assert_array_equal(rounded[name], round_to_data_type(rounded[name], kind))
        assert any((rounded[name] != exact[name]).any() for name in exact)
        known |= {name: np.nan_to_num(value) for name, value in exact.items()}


@pytest.mark.parametrize("option", ["plain", "padding, band", "alibi"])
def test_the_unified_operation_rounds_like_the_composite_graph(option: str) -> None:
    from cudnn_backend_py.graph.attention import sdpa_forward

    problem = make_attention_problem(option)
    forms = [("composite", None), ("unified", (9, 28, 0))]
    graphs = [
        sdpa_forward(problem, implementation=form, version=version, allow_hazards=True) for form, version in forms
    ]  # type: ignore[arg-type]
    many, one = (
        interpret(
            graph, make_known_and_random_graph_inputs(graph, make_random_attention_inputs(problem)), rounding=True
        )
        for graph in graphs
    )
    for name, value in many.items():
        np.testing.assert_array_equal(one[name], value, err_msg=name)


def test_the_error_for_k_or_v_that_a_backward_graph_takes_transposed_says_so() -> None:
    problem = Attention(batch=1, heads=2, seq_q=8, seq_kv=9, head_dim=8)
    k, v = (np.ones(problem.dims(name)) for name in "kv")
    q = np.ones(problem.dims("q"))
    graph = sdpa_backward(problem)
    for given, name in (({"k": k, "v": v}, "k"), ({"k": k.swapaxes(2, 3), "v": v}, "v")):
        inputs = {**given, "q": q, "o": q, "do": q, "stats": np.ones((1, 2, 8, 1))}
        with pytest.raises(GraphError) as raised:
            interpret(graph, inputs)
        assert raised.value.sections["fix"] == f"its last two dims are exchanged: give {name}.swapaxes(-1, -2)"
    with pytest.raises(GraphError) as raised:
        interpret(graph, {**inputs, "k": np.ones((1, 2, 3, 3))})
    assert "fix" not in raised.value.sections
