"""The NumPy interpreter: each operation compared with a formula, a loop, finite differences or an equivalent graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import (
    ConvolutionMode,
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
    ReshapeMode,
    RngDistribution,
    SignalMode,
)
from cudnn_backend_py.generated.operations import BACKWARD_MODES
from cudnn_backend_py.graph import Graph, GraphBuilder, Operation, Parameters, Pointwise, Tensor
from cudnn_backend_py.interpreter import OPERATIONS, interpret
from tests.support.graphs import FILTER, IMAGE, make_convolution
from tests.support.interpreting import (
    Array,
    assert_graph_error,
    make_double_tensor,
    make_random_array,
    make_sequence_length_array,
)

INF, NAN = math.inf, math.nan


# pointwise


def interpret_pointwise(mode: PointwiseMode, *, kind: DataType | None = None, **given: Any) -> Array:
    """Interpret one pointwise operation with the given input arrays and mode parameters."""
    g = GraphBuilder("pointwise")
    ports = {name: np.asarray(given.pop(name), float) for name in ("x", "b", "t", "dy") if name in given}
    tensors = {name: g.tensor(name, value.shape, DataType.DOUBLE) for name, value in ports.items()}
    options = {} if kind is None else {"data_type": kind}
    axis = given.pop("axis", None)
    g.pointwise(mode, tensors.pop("x"), **tensors, axis=axis, parameters=given, name="out", virtual=False, **options)
    return interpret(g.graph(), dict(ports))["out"]


def compute_sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


SAMPLE_X = [-2.5, -1.0, -0.3, 0.0, 0.4, 1.0, 3.7]
SAMPLE_B = [2.0, -1.5, 0.5, 1.0, -3.0, 1.0, 0.25]
POSITIVE_NUMBERS = [0.1, 0.5, 1.0, 2.0, 2.5, 30.0, 0.01]

# mode -> the formula of one element, in plain Python
BINARY_FORMULAS: dict[PointwiseMode, Callable[[float, float], float]] = {
    PointwiseMode.ADD: lambda x, b: x + b,
    PointwiseMode.ADD_SQUARE: lambda x, b: x + b**2,
    PointwiseMode.ATAN2: math.atan2,
    PointwiseMode.DIV: lambda x, b: x / b,
    PointwiseMode.FLOOR_MOD: lambda x, b: x % b,
    PointwiseMode.MAX: max,
    PointwiseMode.MIN: min,
    PointwiseMode.MOD: math.fmod,
    PointwiseMode.MUL: lambda x, b: x * b,
    PointwiseMode.POW: lambda x, b: math.pow(abs(x) + 0.5, b),
    PointwiseMode.SUB: lambda x, b: x - b,
    PointwiseMode.CMP_EQ: lambda x, b: x == b,
    PointwiseMode.CMP_GE: lambda x, b: x >= b,
    PointwiseMode.CMP_GT: lambda x, b: x > b,
    PointwiseMode.CMP_LE: lambda x, b: x <= b,
    PointwiseMode.CMP_LT: lambda x, b: x < b,
    PointwiseMode.CMP_NEQ: lambda x, b: x != b,
    PointwiseMode.LOGICAL_AND: lambda x, b: bool(x) and bool(b),
    PointwiseMode.LOGICAL_OR: lambda x, b: bool(x) or bool(b),
}
UNARY_FORMULAS: dict[PointwiseMode, Callable[[float], float]] = {
    PointwiseMode.LOGICAL_NOT: lambda x: not x,
    PointwiseMode.ABS: abs,
    PointwiseMode.CEIL: math.ceil,
    PointwiseMode.COS: math.cos,
    PointwiseMode.ERF: math.erf,
    PointwiseMode.EXP: math.exp,
    PointwiseMode.FLOOR: math.floor,
    PointwiseMode.IDENTITY: lambda x: x,
    PointwiseMode.LOG: math.log,
    PointwiseMode.NEG: lambda x: -x,
    PointwiseMode.RECIPROCAL: lambda x: 1 / x,
    PointwiseMode.RSQRT: lambda x: 1 / math.sqrt(x),
    PointwiseMode.SIN: math.sin,
    PointwiseMode.SQRT: math.sqrt,
    PointwiseMode.TAN: math.tan,
    PointwiseMode.RELU_FWD: lambda x: max(x, 0.0),
    PointwiseMode.TANH_FWD: math.tanh,
    PointwiseMode.SIGMOID_FWD: compute_sigmoid,
    PointwiseMode.ELU_FWD: lambda x: x if x >= 0 else math.exp(x) - 1,
    PointwiseMode.GELU_FWD: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    PointwiseMode.SOFTPLUS_FWD: lambda x: math.log1p(math.exp(x)),
    PointwiseMode.SWISH_FWD: lambda x: x * compute_sigmoid(x),
    PointwiseMode.GELU_APPROX_TANH_FWD: lambda x: 0.5
    * x
    * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
MODES_OF_POSITIVE_NUMBERS = (PointwiseMode.LOG, PointwiseMode.RECIPROCAL, PointwiseMode.RSQRT, PointwiseMode.SQRT)
MODES_TESTED_SEPARATELY = {PointwiseMode.GEN_INDEX, PointwiseMode.BINARY_SELECT, *BACKWARD_MODES}


def test_every_pointwise_mode_has_an_expected_formula() -> None:
    assert {*UNARY_FORMULAS, *BINARY_FORMULAS, *MODES_TESTED_SEPARATELY} == set(PointwiseMode)


@pytest.mark.parametrize("mode", UNARY_FORMULAS, ids=lambda mode: mode.name)
def test_unary_mode_equals_its_formula(mode: PointwiseMode) -> None:
    x = POSITIVE_NUMBERS if mode in MODES_OF_POSITIVE_NUMBERS else SAMPLE_X
    np.testing.assert_allclose(interpret_pointwise(mode, x=x), [UNARY_FORMULAS[mode](item) for item in x], rtol=1e-14)


@pytest.mark.parametrize("mode", BINARY_FORMULAS, ids=lambda mode: mode.name)
def test_binary_mode_equals_its_formula(mode: PointwiseMode) -> None:
    expected = [BINARY_FORMULAS[mode](*pair) for pair in zip(SAMPLE_X, SAMPLE_B, strict=True)]
    x = [abs(item) + 0.5 for item in SAMPLE_X] if mode is PointwiseMode.POW else SAMPLE_X
    got = interpret_pointwise(mode, x=x, b=SAMPLE_B)
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    assert (got.dtype == bool) == mode.name.startswith(("CMP_", "LOGICAL_"))


@pytest.mark.parametrize(
    ("mode", "parameters", "formula"),
    [
        (PointwiseMode.RELU_FWD, {"relu_lower_clip": -1.0, "relu_upper_clip": 0.4}, lambda x: min(max(x, -1.0), 0.4)),
        (PointwiseMode.RELU_FWD, {"relu_lower_clip_slope": 0.1}, lambda x: x if x > 0 else 0.1 * x),
        (
            PointwiseMode.RELU_FWD,
            {"relu_lower_clip": 0.5, "relu_lower_clip_slope": 0.1},
            lambda x: x if x > 0.5 else 0.5 + 0.1 * (x - 0.5),
        ),
        (PointwiseMode.ELU_FWD, {"elu_alpha": 1.5}, lambda x: x if x > 0 else 1.5 * (math.exp(x) - 1)),
        (PointwiseMode.SOFTPLUS_FWD, {"softplus_beta": 3.0}, lambda x: math.log1p(math.exp(3 * x)) / 3),
        (PointwiseMode.SWISH_FWD, {"swish_beta": 0.5}, lambda x: x * compute_sigmoid(0.5 * x)),
    ],
)
def test_activations_use_parameters(mode: PointwiseMode, parameters: Any, formula: Callable[[float], float]) -> None:
    np.testing.assert_allclose(
        interpret_pointwise(mode, x=SAMPLE_X, **parameters), list(map(formula, SAMPLE_X)), rtol=1e-14
    )


@pytest.mark.parametrize("mode", sorted(BACKWARD_MODES), ids=lambda mode: mode.name)
@pytest.mark.parametrize("changed", [False, True], ids=["default", "parameters"])
def test_backward_mode_equals_finite_differences_of_its_forward_mode(mode: PointwiseMode, changed: bool) -> None:
    forward = PointwiseMode[mode.name.replace("_BWD", "_FWD")]
    parameters: dict[str, float] = (
        {
            PointwiseMode.RELU_BWD: {"relu_lower_clip": -0.5, "relu_upper_clip": 0.7, "relu_lower_clip_slope": 0.2},
            PointwiseMode.ELU_BWD: {"elu_alpha": 1.5},
            PointwiseMode.SOFTPLUS_BWD: {"softplus_beta": 3.0},
            PointwiseMode.SWISH_BWD: {"swish_beta": 0.5},
        }.get(mode, {})
        if changed
        else {}
    )
    x, dy, step = np.array(SAMPLE_X) + 0.11, make_random_array(len(SAMPLE_X)), 1e-5
    ends = [interpret_pointwise(forward, x=x + sign * step, **parameters) for sign in (1, -1)]
    expected = dy * (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(interpret_pointwise(mode, x=x, dy=dy, **parameters), expected, rtol=1e-7, atol=1e-9)


def test_infinite_activations_are_not_nan() -> None:
    ends = [-INF, INF]
    assert interpret_pointwise(PointwiseMode.RELU_FWD, x=ends).tolist() == [0, INF]
    assert interpret_pointwise(PointwiseMode.ELU_FWD, x=ends).tolist() == [-1, INF]
    assert interpret_pointwise(PointwiseMode.SIGMOID_FWD, x=ends).tolist() == [0, 1]
    assert interpret_pointwise(PointwiseMode.SOFTPLUS_FWD, x=[-1000.0, 1000.0]).tolist() == [0, 1000]
    assert interpret_pointwise(PointwiseMode.ERF, x=ends).tolist() == [-1, 1]


def test_gen_index_counts_along_its_axis_and_ignores_its_input() -> None:
    got = interpret_pointwise(PointwiseMode.GEN_INDEX, x=np.full((2, 3, 4), NAN), axis=1)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, np.broadcast_to(np.arange(3).reshape(1, 3, 1), (2, 3, 4)))


def test_binary_select_selects_x_where_t_is_true() -> None:
    assert interpret_pointwise(PointwiseMode.BINARY_SELECT, x=[1, 2, 3], b=[NAN, 5, 6], t=[1, 0, 7]).tolist() == [
        1,
        5,
        3,
    ]


def test_alpha1_and_alpha2_scale_x_and_b() -> None:
    assert interpret_pointwise(PointwiseMode.SUB, x=[1.0], b=[10.0], alpha1=3.0, alpha2=0.5).tolist() == [-2]
    assert interpret_pointwise(PointwiseMode.NEG, x=[1.0], alpha1=3.0).tolist() == [-3]


def test_operands_with_dims_of_1_broadcast() -> None:
    x, b = make_random_array(2, 3, 4), make_random_array(1, 3, 1)
    np.testing.assert_array_equal(interpret_pointwise(PointwiseMode.ADD, x=x, b=b), x + b)


def test_integer_results_are_truncated_towards_zero() -> None:
    got = interpret_pointwise(PointwiseMode.DIV, x=[7.0, -7.0, 1.0], b=[2.0, 2.0, 0.0], kind=DataType.INT32)
    assert got[:2].tolist() == [3, -3]
    assert got.dtype == np.int64


# matmul and reduction


def interpret_matmul(a: Array, b: Array, **options: Any) -> Array:
    """Interpret one matmul; the M, N and K overrides are given as arrays."""
    g = GraphBuilder("matmul", io_type=DataType.DOUBLE)
    inputs: dict[str | int, Any] = {"a": a, "b": b}
    for name in ("m_override", "n_override", "k_override"):
        if name in options:
            inputs[name] = options[name]
            options[name] = g.tensor(name, options[name].shape, DataType.INT32)
    padding = options.pop("padding_value", None)
    g.matmul(g.tensor("a", a.shape), g.tensor("b", b.shape), name="c", virtual=False, **options)
    graph = g.graph()
    if padding is not None:
        (op,) = graph.ops
        graph = Graph((type(op)(**{**dict(op.ports()), "name": "c", "padding_value": padding}),))  # type: ignore[call-arg]
    return interpret(graph, inputs)["c"]


def test_matmul_equals_numpy() -> None:
    a, b = make_random_array(2, 3, 4, 5), make_random_array(2, 3, 5, 6)
    np.testing.assert_allclose(interpret_matmul(a, b), np.einsum("bhmk,bhkn->bhmn", a, b))


@pytest.mark.parametrize(("left", "right"), [(6, 2), (6, 1), (1, 6), (3, 6)])
def test_matmul_broadcasts_heads_in_groups(left: int, right: int) -> None:
    a, b = make_random_array(2, left, 4, 5), make_random_array(2, right, 5, 3)
    c = interpret_matmul(a, b)
    for head in range(6):
        np.testing.assert_allclose(c[:, head], a[:, head * left // 6] @ b[:, head * right // 6])


def convolve_by_loops(x: Array, w: Array, *, turned: bool = False, **window: tuple[int, ...]) -> Array:
    """Return a convolution, computed by a loop over its output elements."""
    spatial = x.ndim - 2
    before, after, stride, dilation = (
        window.get(name, (default,) * spatial)
        for name, default in (("padding", 0), ("post_padding", 0), ("stride", 1), ("dilation", 1))
    )
    x = np.pad(x, ((0, 0), (0, 0), *zip(before, after, strict=True)))
    w = w[(..., *[slice(None, None, -1)] * spatial)] if turned else w
    sizes = [
        (size - (taps - 1) * dilated - 1) // step + 1
        for size, taps, step, dilated in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    y, channels, groups = np.zeros((x.shape[0], w.shape[0], *sizes)), w.shape[1], x.shape[1] // w.shape[1]
    for n, k, *place in np.ndindex(y.shape):
        first = k // (w.shape[0] // groups) * channels
        for c, *tap in np.ndindex(w.shape[1:]):
            at = [p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation, strict=True)]
            y[n, k, *place] += x[n, first + c, *at] * w[k, c, *tap]
    return y


@pytest.mark.parametrize(
    ("image", "weights", "window"),
    [
        ((2, 3, 7), (4, 3, 3), {"padding": (1,), "post_padding": (2,)}),
        ((2, 4, 6, 5), (4, 2, 3, 2), {"padding": (0, 1), "post_padding": (2, 1), "stride": (2, 1)}),
        ((1, 4, 7, 6), (8, 1, 2, 3), {"dilation": (3, 2), "stride": (1, 2)}),
        ((1, 2, 3, 4, 5), (3, 2, 2, 2, 2), {"stride": (1, 2, 3)}),
    ],
    ids=["1d", "groups", "depthwise dilated", "3d"],
)
@pytest.mark.parametrize("mode", ConvolutionMode)
def test_convolution_equals_a_loop_over_its_elements(
    image: tuple[int, ...], weights: tuple[int, ...], window: dict[str, tuple[int, ...]], mode: ConvolutionMode
) -> None:
    g = GraphBuilder()
    x, w = make_random_array(*image), make_random_array(*weights, seed=1)
    options: dict[str, Any] = {"post_padding": (0,) * (len(image) - 2), **window, "mode": mode}
    g.convolution(
        g.tensor("x", image, DataType.DOUBLE),
        g.tensor("w", weights, DataType.DOUBLE),
        **options,
        name="y",
        virtual=False,
    )
    expected = convolve_by_loops(x, w, turned=mode is ConvolutionMode.CONVOLUTION, **window)
    np.testing.assert_allclose(interpret(g.graph(), {"x": x, "w": w})["y"], expected, rtol=1e-12, atol=1e-12)


def test_alpha_scales_a_convolution_and_beta_is_refused() -> None:
    given = {"image": make_random_array(*IMAGE.dims), "filter": make_random_array(*FILTER.dims)}
    once, twice = (interpret(Graph((make_convolution(alpha=alpha),)), given)["result"] for alpha in (1.0, 2.0))
    np.testing.assert_allclose(once, convolve_by_loops(*given.values()), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(twice, 2 * once)
    assert_graph_error("interpret-operation", "beta", lambda: interpret(Graph((make_convolution(beta=1.0),)), given))


def test_matmul_ignores_elements_beyond_its_overrides() -> None:
    a, b = make_random_array(2, 2, 4, 5), make_random_array(2, 1, 5, 6)
    m, n, k = [3, 4], [6, 2], [5, 2]
    expected = np.zeros((2, 2, 4, 6))
    for i in range(2):
        expected[i, :, : m[i], : n[i]] = a[i, :, : m[i], : k[i]] @ b[i, :, : k[i], : n[i]]
        a[i, :, m[i] :], a[i, :, :, k[i] :] = NAN, NAN
        b[i, :, :, n[i] :], b[i, :, k[i] :] = NAN, NAN
    options = {
        "m_override": make_sequence_length_array(*m),
        "n_override": make_sequence_length_array(*n),
        "k_override": make_sequence_length_array(*k),
    }
    np.testing.assert_allclose(interpret_matmul(a, b, **options), expected)
    padded = interpret_matmul(a, b, **options, padding_value=-3.0)
    np.testing.assert_allclose(padded[0, :, 3:], -3)
    np.testing.assert_allclose(padded[1, :, :, 2:], -3)


REDUCTION_FORMULAS: dict[ReduceTensorOp, Callable[[list[float]], float]] = {
    ReduceTensorOp.ADD: sum,
    ReduceTensorOp.MUL: math.prod,
    ReduceTensorOp.MIN: min,
    ReduceTensorOp.MAX: max,
    ReduceTensorOp.AMAX: lambda x: max(map(abs, x)),
    ReduceTensorOp.AVG: lambda x: sum(x) / len(x),
    ReduceTensorOp.NORM1: lambda x: sum(map(abs, x)),
    ReduceTensorOp.NORM2: lambda x: math.hypot(*x),
    ReduceTensorOp.MUL_NO_ZEROS: lambda x: math.prod(filter(None, x)),
}


def interpret_reduction(operator: ReduceTensorOp, x: Array, dims: tuple[int, ...]) -> Array:
    g = GraphBuilder("reduction", io_type=DataType.DOUBLE)
    g.reduction(operator, g.tensor("x", x.shape), dims, name="y", virtual=False)
    return interpret(g.graph(), {"x": x})["y"]


def test_every_reduction_has_an_expected_formula() -> None:
    assert set(REDUCTION_FORMULAS) == set(ReduceTensorOp)


@pytest.mark.parametrize("operator", REDUCTION_FORMULAS, ids=lambda operator: operator.name)
def test_reduction_equals_its_formula(operator: ReduceTensorOp) -> None:
    x = make_random_array(2, 6, 3, 4)
    x[0, 2, 1, 1] = 0
    rows = interpret_reduction(operator, x, (2, 6, 3, 1))
    groups = interpret_reduction(operator, x, (1, 2, 3, 4))
    for h, s in np.ndindex(6, 3):
        np.testing.assert_allclose(rows[0, h, s, 0], REDUCTION_FORMULAS[operator](x[0, h, s].tolist()))
    for h, s, d in np.ndindex(2, 3, 4):
        members = x[:, 3 * h : 3 * h + 3, s, d].ravel().tolist()
        np.testing.assert_allclose(groups[0, h, s, d], REDUCTION_FORMULAS[operator](members))


# elements that move


def interpret_single_operation(kind: DescriptorType, x: Tensor, y: Tensor, value: Array, **fields: Any) -> Array:
    graph = Graph((Operation(kind, "move", {"x": x, "y": y, **fields}),))
    return interpret(graph, {"x": value})["y"]


@pytest.mark.parametrize(
    ("x_strides", "y_dims", "y_strides", "transposed"),
    [
        (None, (2, 3, 5, 4), (60, 20, 1, 5), True),  # scores, read with rows and columns swapped
        ((60, 5, 15, 1), (2, 3, 5, 4), (60, 5, 1, 15), True),  # b, s, h, d in memory
        ((60, 20, 1, 4), (2, 3, 5, 4), (60, 20, 4, 1), True),  # K^T in memory, to plain K
        ((180, 5, 45, 1), (2, 3, 5, 4), (180, 5, 1, 45), True),  # one of three interleaved tensors
        ((240, 80, 20, 4), (2, 3, 5, 4), (60, 20, 1, 5), True),  # virtual x with strides that do not determine y
        (None, (2, 12, 5), (60, 5, 1), False),
        (None, (6, 20), (20, 1), False),
        ((60, 1, 15, 3), (6, 20), (100, 1), False),
    ],
)
def test_reshape_reads_the_same_memory(
    x_strides: tuple[int, ...] | None, y_dims: tuple[int, ...], y_strides: tuple[int, ...], transposed: bool
) -> None:
    value = make_random_array(2, 3, 4, 5)
    got = interpret_single_operation(
        DescriptorType.OPERATION_RESHAPE,
        make_double_tensor("x", value.shape, x_strides),
        make_double_tensor("y", y_dims, y_strides),
        value,
    )
    np.testing.assert_array_equal(got, value.swapaxes(2, 3) if transposed else value.reshape(y_dims))


def test_a_logical_reshape_keeps_the_row_major_order() -> None:
    value = make_random_array(2, 3, 4, 5)
    x, y = make_double_tensor("x", (2, 3, 4, 5), (60, 20, 1, 4)), make_double_tensor("y", (2, 3, 5, 4))
    got = interpret_single_operation(DescriptorType.OPERATION_RESHAPE, x, y, value, mode=ReshapeMode.LOGICAL)
    np.testing.assert_array_equal(got, value.reshape(2, 3, 5, 4))


def test_reshape_to_another_size_is_refused() -> None:
    x, y = make_double_tensor("x", (2, 3)), make_double_tensor("y", (2, 4))
    assert_graph_error(
        "interpret-shape",
        "changes the number",
        lambda: interpret_single_operation(DescriptorType.OPERATION_RESHAPE, x, y, make_random_array(2, 3)),
    )


def test_transpose_slice_and_concat_move_elements() -> None:
    value = make_random_array(2, 3, 6)
    x = make_double_tensor("x", (2, 3, 6))
    got = interpret_single_operation(
        DescriptorType.OPERATION_TRANSPOSE, x, make_double_tensor("y", (6, 2, 3)), value, permutation=(2, 0, 1)
    )
    np.testing.assert_array_equal(got, value.transpose(2, 0, 1))
    limits = {"start_indices": (0, 1, 1), "limit_indices": (2, 3, 6), "strides": (1, 1, 2)}
    got = interpret_single_operation(
        DescriptorType.OPERATION_SLICE, x, make_double_tensor("y", (2, 2, 3)), value, **limits
    )
    np.testing.assert_array_equal(got, value[0:2, 1:3, 1:6:2])
    more = make_double_tensor("more", (2, 1, 6))
    both = Operation(
        DescriptorType.OPERATION_CONCAT,
        "both",
        {"axis": 1, "input": (x, more), "output": make_double_tensor("y", (2, 4, 6))},
    )
    got = interpret(Graph((both,)), {"x": value, "more": make_random_array(2, 1, 6)})["y"]
    np.testing.assert_array_equal(got, np.concatenate([value, make_random_array(2, 1, 6)], 1))


# ragged tensors


def pack_into_ragged_buffer(value: Array, offsets: list[int], strides: tuple[int, ...], tokens: list[int]) -> Array:
    """Copy a tensor [b, h, s, d] into a ragged buffer, element by element."""
    buffer = np.full(offsets[-1], NAN)
    for b, h, s, d in np.ndindex(*value.shape):
        if s < tokens[b]:
            buffer[offsets[b] + h * strides[1] + s * strides[2] + d * strides[3]] = value[b, h, s, d]
    return buffer


def make_ragged_graph(dims: tuple[int, ...], strides: tuple[int, ...]) -> Graph:
    g = GraphBuilder("ragged", io_type=DataType.DOUBLE)
    x_offset, y_offset = (g.tensor(name, (3, 1, 1, 1), DataType.INT64) for name in ("x_offset", "y_offset"))
    x = g.tensor("x", dims, strides=strides, ragged_offset=x_offset)
    plain = g.pointwise(PointwiseMode.IDENTITY, x, name="plain")
    y = g.tensor("y", dims, ragged_offset=y_offset, strides=(0, dims[3], dims[1] * dims[3], 1))
    g.pointwise(PointwiseMode.NEG, plain, out=y)
    return g.graph()


@pytest.mark.parametrize("strides", [(0, 2, 6, 1), (0, 2, 18, 1)], ids=["thd", "interleaved"])
def test_ragged_tensors_are_read_and_written_as_flat_buffers(strides: tuple[int, ...]) -> None:
    value, tokens = make_random_array(2, 3, 4, 2), [4, 1]
    graph = make_ragged_graph(value.shape, strides)
    starts, packed = ([0, 4 * token, 5 * token] for token in (strides[2], 6))
    inputs: dict[str | int, Any] = {
        "x_offset": make_sequence_length_array(*starts),
        "y_offset": make_sequence_length_array(*packed),
    }
    out = interpret(graph, {**inputs, "x": pack_into_ragged_buffer(value, starts, strides, tokens)}, keep=["plain"])
    np.testing.assert_array_equal(out["y"], -pack_into_ragged_buffer(value, packed, (0, 2, 6, 1), tokens))
    value[1, :, 1:] = 0
    np.testing.assert_array_equal(out["plain"], value)


def test_missing_ragged_elements_are_read_as_0_and_gaps_written_as_nan() -> None:
    graph = make_ragged_graph((2, 1, 4, 2), (0, 2, 2, 1))
    # The first entry has space for three and a half tokens: that is three.
    inputs: dict[str | int, Any] = {
        "x_offset": make_sequence_length_array(0, 4, 8),
        "y_offset": make_sequence_length_array(0, 7, 11),
        "x": np.ones(5),
    }
    out = interpret(graph, inputs)["y"]
    np.testing.assert_array_equal(out, [-1, -1, -1, -1, 0, 0, NAN, -1, 0, 0, 0])


def test_ragged_scratch_tensor_with_more_heads_scales_offsets() -> None:
    g = GraphBuilder("groups", io_type=DataType.DOUBLE)
    offset = g.tensor("offset", (3, 1, 1, 1), DataType.INT32)
    x = g.tensor("x", (2, 4, 3, 2))
    full = g.tensor("full", (2, 4, 3, 2), strides=(24, 2, 8, 1), ragged_offset=offset, scratch=True)
    g.pointwise(PointwiseMode.IDENTITY, x, out=full)
    y = g.tensor("y", (2, 2, 3, 2), strides=(12, 2, 4, 1), ragged_offset=offset)
    g.reduction(ReduceTensorOp.ADD, full, (2, 2, 3, 2), out=y)
    g.pointwise(PointwiseMode.IDENTITY, full, name="again")
    value, tokens, starts = make_random_array(2, 4, 3, 2), [2, 3], [0, 8, 20]
    out = interpret(g.graph(), {"x": value, "offset": make_sequence_length_array(*starts)}, keep=["full", "again"])
    assert set(out) == {"y", "full", "again"}
    np.testing.assert_array_equal(out["full"], pack_into_ragged_buffer(value, [0, 16, 40], (24, 2, 8, 1), tokens))
    # A reader of the memory gets 0 beyond the tokens, regardless of the computed values.
    np.testing.assert_array_equal(out["again"][0, :, 2:], 0)
    grouped = value[:, [0, 2]] + value[:, [1, 3]]
    np.testing.assert_allclose(out["y"], pack_into_ragged_buffer(grouped, starts, (12, 2, 4, 1), tokens))


def test_elements_beyond_the_last_offset_are_not_written() -> None:
    g = GraphBuilder("far", io_type=DataType.DOUBLE)
    offset = g.tensor("offset", (3, 1, 1, 1), DataType.INT32)
    y = g.tensor("y", (2, 2, 4, 2), strides=(0, 6, 2, 1), ragged_offset=offset)
    g.pointwise(PointwiseMode.NEG, g.tensor("x", (2, 2, 4, 2)), out=y)
    out = interpret(g.graph(), {"x": np.ones((2, 2, 4, 2)), "offset": make_sequence_length_array(0, 2, 6)})["y"]
    np.testing.assert_array_equal(out, [-1, -1, -1, -1, -1, -1])
    short = replace(y, ragged_offset=make_double_tensor("offset", (2,)))
    graph = Graph((Pointwise(name="short", mode=PointwiseMode.NEG, x=make_double_tensor("x", (2, 2, 4, 2)), y=short),))
    inputs: dict[str | int, Any] = {"x": np.ones((2, 2, 4, 2)), "offset": [0, 6]}
    assert_graph_error("interpret-shape", "has 2 offsets, 3 are needed", lambda: interpret(graph, inputs))


# pages


@pytest.mark.parametrize(
    ("dims", "strides"),
    [
        ((2, 3, 7, 4), None),
        ((2, 3, 4, 7), (84, 28, 1, 4)),
        ((2, 3, 4, 4), None),
        ((2, 3, 4, 4), (48, 16, 1, 4)),
    ],
    ids=["plain", "transposed", "square", "square transposed"],
)
def test_pages_are_gathered_up_to_the_length(dims: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    container, used = make_random_array(6, 3, 2, 4), [3, 6]
    transposed = strides is not None
    seq = dims[3] if transposed else dims[2]
    table = np.array([[5, 0, 1, -7], [2, 3, 4, 99]]).reshape(2, 1, 4, 1)  # the last ones are not used
    g = GraphBuilder("pages", io_type=DataType.DOUBLE)
    y = g.tensor("y", dims, strides=strides or "packed")
    fields = {name: g.tensor(name, value.shape) for name, value in (("container", container), ("page_table", table))}
    fields["page_table"] = g.tensor("table", table.shape, DataType.INT32)
    fields["sequence"] = g.tensor("sequence", (2, 1, 1, 1), DataType.INT32)
    g.operation(DescriptorType.OPERATION_PAGED_CACHE_LOAD, y=y, **fields)
    inputs: dict[str | int, Any] = {
        "container": container,
        "table": table,
        "sequence": make_sequence_length_array(*used),
    }
    got = interpret(g.graph(), inputs)["y"]
    expected = np.zeros((2, 3, seq, 4))
    for b, s in np.ndindex(2, seq):
        if s < used[b]:
            expected[b, :, s] = container[table[b, 0, s // 2, 0], :, s % 2]
    np.testing.assert_array_equal(got, expected.swapaxes(2, 3) if transposed else expected)
    inputs["table"] = np.full_like(table, 6)
    assert_graph_error("interpret-input", "page 6, the container has 6", lambda: interpret(g.graph(), inputs))


# block scales


@pytest.mark.parametrize(
    ("dims", "scale_dims", "block"),
    [
        ((1, 2, 3, 64), (1, 2, 3, 2), (1, 1, 1, 32)),
        ((1, 2, 3, 40), (1, 2, 3, 2), (1, 1, 1, 32)),  # the last block is not full
        ((1, 2, 64, 3), (1, 2, 2, 3), (1, 1, 32, 1)),  # K^T, and V over the sequence
        ((1, 2, 3, 64), (1, 2, 128, 4), (1, 1, 1, 32)),  # scales padded to 128 x 4
    ],
)
def test_dequantize_multiplies_each_block_by_its_scale(
    dims: tuple[int, ...], scale_dims: tuple[int, ...], block: tuple[int, ...]
) -> None:
    value, scale = make_random_array(*dims), np.abs(make_random_array(*scale_dims, seed=1))
    x, y, scales = (
        make_double_tensor("x", dims),
        make_double_tensor("y", dims),
        make_double_tensor("scales", scale_dims),
    )
    fields = {"x": x, "y": y, "scale": scales, "math_prec": DataType.FLOAT, "block_size": (1, 32)}
    op = Operation(DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE, "dequantize", fields)
    got = interpret(Graph((op,)), {"x": value, "scales": scale})["y"]
    for index in np.ndindex(*dims):
        assert got[index] == value[index] * scale[tuple(i // size for i, size in zip(index, block, strict=True))]


def test_scales_that_do_not_match_the_blocks_are_refused() -> None:
    fields = {
        "x": make_double_tensor("x", (2, 64)),
        "y": make_double_tensor("y", (2, 64)),
        "scale": make_double_tensor("scales", (1, 1)),
    }
    fields |= {"math_prec": DataType.FLOAT, "block_size": (1, 32)}  # type: ignore[dict-item]
    graph = Graph((Operation(DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE, "dequantize", fields),))
    assert_graph_error(
        "interpret-shape", "do not fit", lambda: interpret(graph, {"x": make_random_array(2, 64), "scales": [[1.0]]})
    )


def test_dequantizing_a_quantized_tensor_restores_its_values() -> None:
    g = GraphBuilder("mx", io_type=DataType.DOUBLE)
    x = g.tensor("x", (1, 4, 64))
    small, scale = g.tensor("small", (1, 4, 64), DataType.FP8_E4M3), g.tensor("scale", (1, 4, 2), DataType.FP8_E8M0)
    g.operation(
        DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
        x=x,
        y=small,
        scale=scale,
        math_prec=DataType.FLOAT,
        block_size=32,
    )
    again = g.tensor("again", (1, 4, 64))
    g.operation(
        DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
        x=small,
        y=again,
        scale=scale,
        math_prec=DataType.FLOAT,
        block_size=(1, 32),
    )
    value = make_random_array(1, 4, 64)
    value[0, 2] = 0
    exact = interpret(g.graph(), {"x": value})
    np.testing.assert_allclose(exact["again"], value)
    np.testing.assert_allclose(np.abs(exact["small"][0, 0]).reshape(2, 32).max(axis=1), 448)
    rounded = interpret(g.graph(), {"x": value}, rounding=True)
    assert (np.log2(rounded["scale"]) % 1 == 0).all()
    np.testing.assert_allclose(rounded["again"], value, rtol=2**-4, atol=1e-3)
    assert np.abs(rounded["again"] - value).max() > 1e-3


# random masks


def make_dropout_graph(**extra: Any) -> Graph:
    g = GraphBuilder("dropout", io_type=DataType.DOUBLE)
    seed, offset = (g.tensor(name, (1, 1, 1, 1), DataType.INT64) for name in ("seed", "offset"))
    mask = g.tensor("mask", (1, 2, 3, 4), DataType.FLOAT, virtual=True)
    facts = {"distribution": RngDistribution.BERNOULLI, "bernoulli_dist_probability": 0.75, **extra}
    g.operation(
        DescriptorType.OPERATION_RNG, "rng", y=mask, seed=seed, offset=offset, rng=Parameters(DescriptorType.RNG, facts)
    )
    g.pointwise(PointwiseMode.MUL, g.tensor("x", (1, 2, 3, 4)), mask, name="y", virtual=False)
    return g.graph()


def test_a_dropout_mask_is_generated_or_given_as_input() -> None:
    asked = []

    def generate_mask(*question: Any) -> Array:
        asked.append(question)
        return np.arange(24).reshape(1, 2, 3, 4) % 2

    x = make_random_array(1, 2, 3, 4)
    one = np.ones((1, 1, 1, 1), int)
    large = (1 << 62) + 1
    drawn = interpret(make_dropout_graph(), {"x": x, "seed": one * large, "offset": one * 3}, rng=generate_mask)["y"]
    assert asked == [(large, 3, (1, 2, 3, 4), 0.75)]
    given = interpret(make_dropout_graph(), {"x": x, "mask": np.arange(24).reshape(1, 2, 3, 4) % 2})["y"]
    np.testing.assert_array_equal(drawn, given)
    np.testing.assert_array_equal(drawn, x * (np.arange(24).reshape(1, 2, 3, 4) % 2))


def test_rng_output_has_the_requested_distribution_or_is_given_as_input() -> None:
    def generate_random_numbers(distribution: RngDistribution, seed: int = 1, **parameters: float) -> Array:
        g = GraphBuilder("random", io_type=DataType.DOUBLE)
        state = {name: g.tensor(name, (1, 1, 1, 1), DataType.INT64) for name in ("seed", "offset")}
        g.rng((1, 1, 200, 500), **state, distribution=distribution, **parameters, name="y", virtual=False)
        inputs: dict[str | int, Any] = {"seed": [[[[seed]]]], "offset": [[[[0]]]]}
        return interpret(g.graph(), inputs)["y"]

    uniform = generate_random_numbers(RngDistribution.UNIFORM, minimum=-1.0, maximum=3.0)
    assert (uniform.min() >= -1, uniform.max() < 3) == (True, True)
    np.testing.assert_allclose((uniform.mean(), uniform.var()), (1, 16 / 12), rtol=0.02)
    normal = generate_random_numbers(RngDistribution.NORMAL, mean=5.0, standard_deviation=2.0)
    np.testing.assert_allclose((normal.mean(), normal.std()), (5, 2), rtol=0.02)
    assert (normal != generate_random_numbers(RngDistribution.NORMAL, 2, mean=5.0, standard_deviation=2.0)).all()
    given = make_random_array(1, 2, 3, 4)
    inputs: dict[str | int, Any] = {"x": np.ones((1, 2, 3, 4)), "mask": given}
    np.testing.assert_array_equal(
        interpret(make_dropout_graph(distribution=RngDistribution.UNIFORM), inputs)["y"], given
    )
    unsaid = make_dropout_graph(distribution=RngDistribution.NORMAL)
    needed = {"x": make_random_array(1, 2, 3, 4), "seed": [[[[0]]]], "offset": [[[[0]]]]}
    assert_graph_error("interpret-operation", "standard deviation of -1", lambda: interpret(unsaid, needed))


# inputs and outputs


def make_sum_graph() -> Graph:
    g = GraphBuilder("sum", io_type=DataType.DOUBLE)
    x = g.tensor("x", (2, 3), uid=10)
    g.pointwise(
        PointwiseMode.ADD,
        g.pointwise(PointwiseMode.MUL, x, g.scalar(2.0, rank=2, name="two"), name="double"),
        x,
        name="y",
        virtual=False,
    )
    return g.graph()


def test_inputs_are_given_by_name_or_uid_and_scalars_have_defaults() -> None:
    x = make_random_array(2, 3)
    np.testing.assert_allclose(interpret(make_sum_graph(), {10: x})["y"], 3 * x)
    np.testing.assert_allclose(interpret(make_sum_graph(), {"x": x, "two": 4})["y"], 5 * x)
    out = interpret(make_sum_graph(), {"x": x.tolist(), "y": "the output buffer, not read"}, keep=["double", "x"])
    np.testing.assert_allclose(out["double"], 2 * x)
    np.testing.assert_allclose(out["x"], x)
    assert set(interpret(make_sum_graph(), {"x": x})) == {"y"}


def test_wrong_input_arrays_of_a_graph_are_refused() -> None:
    x = make_random_array(2, 3)
    assert_graph_error("interpret-input", "'x' is needed and not given", lambda: interpret(make_sum_graph(), {}))
    assert_graph_error("interpret-input", "no tensor 'z'", lambda: interpret(make_sum_graph(), {"x": x, "z": x}))
    assert_graph_error(
        "interpret-input", "operation 'double' writes it", lambda: interpret(make_sum_graph(), {"x": x, "double": x})
    )
    assert_graph_error(
        "interpret-shape", r"shape \(3, 2\), an array of dims \(2, 3\)", lambda: interpret(make_sum_graph(), {"x": x.T})
    )
    assert_graph_error("unknown-tensor", "'z'", lambda: interpret(make_sum_graph(), {"x": x}, keep=["z"]))
    ragged = make_ragged_graph((2, 1, 4, 2), (0, 2, 2, 1))
    offsets = {"x_offset": make_sequence_length_array(0, 4, 8), "y_offset": make_sequence_length_array(0, 4, 8)}
    assert_graph_error("interpret-shape", "flat buffer", lambda: interpret(ragged, {**offsets, "x": np.ones((2, 4))}))


def test_tensors_that_do_not_match_the_operation_are_refused() -> None:
    x, y = make_double_tensor("x", (2, 3)), make_double_tensor("y", (3, 2))
    wrong = {"permutation": (0, 2)}
    assert_graph_error(
        "interpret-shape",
        "do not fit",
        lambda: interpret_single_operation(DescriptorType.OPERATION_TRANSPOSE, x, y, make_random_array(2, 3), **wrong),
    )
    right = {"permutation": (0, 1)}
    assert_graph_error(
        "interpret-shape",
        "'y' has dims",
        lambda: interpret_single_operation(DescriptorType.OPERATION_TRANSPOSE, x, y, make_random_array(2, 3), **right),
    )


def make_graph_with_changed_fields(make: Callable[[GraphBuilder], object], **odd: Any) -> Graph:
    """Return the graph of the operation that `make` adds, with fields that no builder method would set."""
    g = GraphBuilder()
    make(g)
    (op,) = g.graph().ops
    assert isinstance(op, Operation)
    fields = dict(op.fields)
    for name, value in odd.items():
        holder = next((key for key, held in fields.items() if isinstance(held, Parameters) and name in held.fields), "")
        if holder:
            fields[holder] = Parameters(fields[holder].kind, {**fields[holder].fields, name: value})
        else:
            fields[name] = value
    return Graph((Operation(op.kind, op.name, fields),))


def add_convolution(g: GraphBuilder) -> object:
    return g.convolution(g.tensor("x", (1, 2, 4, 4)), g.tensor("w", (2, 2, 3, 3)), virtual=False)


def add_pooling(g: GraphBuilder) -> object:
    return g.resample(ResampleMode.MAXPOOL, g.tensor("x", (1, 2, 4, 4)), 2, virtual=False)


@pytest.mark.parametrize(
    ("make", "odd"),
    [
        (add_convolution, {"pre_paddings": 1}),
        (add_convolution, {"filter_strides": (0, 0)}),
        (add_convolution, {"w": make_double_tensor("w", (2, 3, 3, 3))}),
        (add_pooling, {"window_dims": (-1, 2)}),
        (add_pooling, {"strides": 0}),
        (lambda g: g.slice(g.tensor("x", (4,)), [slice(2)], virtual=False), {"start_indices": 7, "limit_indices": 9}),
        (
            lambda g: g.expand_band_matrix(
                g.tensor("x", (1, 4, 3)), 4, lower_bandwidth=1, upper_bandwidth=1, virtual=False
            ),
            {"upper_bandwidth": 9},
        ),
        (
            lambda g: g.block_scale_dequantize(g.tensor("x", (4, 64)), g.tensor("s", (4, 2)), 32, virtual=False),
            {"block_size": 0},
        ),
        (
            lambda g: g.paged_cache_load(
                g.tensor("x", (3, 1, 2, 4)),
                g.tensor("t", (1, 1, 2, 1), DataType.INT32),
                g.tensor("n", (1, 1, 1, 1), DataType.INT32),
                virtual=False,
            ),
            {"page_table": make_double_tensor("t", (1, 1, 2, 1))},
        ),
    ],
)
def test_operations_with_invalid_fields_are_refused(
    make: Callable[[GraphBuilder], object], odd: dict[str, Any]
) -> None:
    """Graphs read from files and logs may have such fields: cuDNN itself refuses values that its header allows."""
    graph = make_graph_with_changed_fields(make, **odd)
    with pytest.raises(GraphError) as error:
        interpret(graph, {item.name: np.ones(item.dims) for item in graph.variant_pack_tensors})
    assert error.value.code in ("interpret-shape", "interpret-operation")


def test_scalar_convolution_parameters_become_tuples_for_one_spatial_dim() -> None:
    facts = {"comp_type": DataType.FLOAT, "spatial_dims": 1, "filter_strides": 2, "dilations": (1,)}
    facts |= {"conv_mode": ConvolutionMode.CONVOLUTION, "pre_paddings": 0, "post_paddings": 0}
    given = Parameters(DescriptorType.CONVOLUTION, facts)
    assert given.fields["filter_strides"] == (2,)
    assert given == Parameters(DescriptorType.CONVOLUTION, {**given.fields})


def test_the_error_names_the_unknown_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(
        OPERATIONS, DescriptorType.OPERATION_SIGNAL
    )  # every kind is known; future headers will have others
    x, y = make_double_tensor("x", (2, 8)), make_double_tensor("y", (2, 8))
    signal = {
        "mode": SignalMode.WAIT,
        "value": 1,
        "flag": make_double_tensor("flag", (1, 1), data_type=DataType.INT32),
        "x": x,
        "y": y,
    }
    with pytest.raises(GraphError, match="OPERATION_SIGNAL cannot be interpreted") as error:
        interpret(
            Graph((Operation(DescriptorType.OPERATION_SIGNAL, "signal", signal),)), {"x": make_random_array(2, 8)}
        )
    assert error.value.code == "interpret-operation"
    assert all(kind.name in error.value.render() for kind in OPERATIONS)
