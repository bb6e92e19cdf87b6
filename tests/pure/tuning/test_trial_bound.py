"""The error bound of results: it allows other correct arithmetic, but no wrong scale, shift or missing row."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import ReduceTensorOp, RngDistribution
from cudnn_backend_py.graph import attention
from cudnn_backend_py.graph.formats import round_to_data_type
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import make_inputs
from cudnn_backend_py.tuning.trial.bound import Arithmetic, ExpectedOutput, compute_expected_outputs
from cudnn_backend_py.tuning.trial.common_factor import find_common_error_factor
from tests.support.typical_graphs import TYPICAL_GRAPHS
from tests.support.wrong_scales import (
    SCALE_FACTORS,
    WRONG_MODES,
    WRONG_SCALES,
    use_wrong_pointwise_mode_in_interpreter,
    use_wrong_scale_in_interpreter,
)

LARGE_GRAPHS = {"rope bwd", "rope fwd", "reshape", "bn bwd weights", "rng", "diagonal band mask", "gen stats", "concat"}
# Scales of blocks are rounded up: float64, without rounding, computes another result there.
# The largest are left out: others of their kind are included.
TESTED_GRAPHS = sorted(set(TYPICAL_GRAPHS) - LARGE_GRAPHS - {name for name in TYPICAL_GRAPHS if "quantized" in name})
GRAPHS_FOR_INTEGER_DATA = (
    "convolution forward",
    "matmul",
    "pointwise",
    "reduction",
    "layer norm, training",
    "softmax",
    "sdpa bwd",
)
Array = np.ndarray[Any, Any]


def round_to_stored_type(expected: ExpectedOutput, values: Array) -> Array:
    return round_to_data_type(values, expected.tensor.data_type)


def make_matmul_graph(terms: int = 64, kind: DataType = DataType.HALF, out: DataType | None = None) -> Graph:
    g = GraphBuilder("product", io_type=kind)
    g.matmul(g.tensor("a", (2, 64, terms)), g.tensor("b", (2, terms, 32)), data_type=out or kind, virtual=False)
    return g.graph()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in TESTED_GRAPHS
        for kind in ("uniform", "integers")[: 1 + (name in GRAPHS_FOR_INTEGER_DATA)]
    ],
)
def test_interpreter_results_with_and_without_rounding_are_within_the_bound(name: str, kind: str) -> None:
    graph, inputs, found = make_graph_with_expected_results(name, kind)
    assert found
    for rounding in (False, True):
        results = interpret(graph, inputs, rounding=rounding)
        for output, expected in found.items():
            compared = expected.compare(round_to_stored_type(expected, results[output]))
            assert compared.is_right, str(compared)
            assert compared.compared > 0.9 * compared.elements


@pytest.mark.parametrize("name", TESTED_GRAPHS)
def test_an_error_of_one_percent_is_detected(name: str) -> None:
    """Results of floating-point types are scaled by 1.01; indices, booleans and int8 results are skipped."""
    graph, inputs, found = make_graph_with_expected_results(name, "uniform")
    results = interpret(graph, inputs, rounding=True)
    for output, expected in found.items():
        if expected.tensor.data_type in (DataType.INT8, DataType.INT32, DataType.BOOLEAN):
            continue
        wrong = expected.compare(round_to_stored_type(expected, results[output] * 1.01))
        assert not wrong.is_right, str(wrong)


@cache
def make_graph_with_expected_results(name: str, kind: str) -> tuple[Graph, Any, dict[str, ExpectedOutput]]:
    """Return a typical graph, its inputs, and the expected results with their error bounds."""
    graph = TYPICAL_GRAPHS[name].make()
    inputs = make_inputs(graph, kind, 3)
    return graph, inputs, compute_expected_outputs(graph, inputs)


ARTIFICIAL_ERRORS: dict[str, Callable[[Array], Array]] = {
    "a row of zeros": lambda o: np.where(np.arange(o.shape[2]).reshape(-1, 1) == 7, 0, o),
    "one element NaN": lambda o: np.where(np.arange(o.size).reshape(o.shape) == 99, np.nan, o),
    "heads swapped": lambda o: o[:, ::-1],
    "a shift by one row": lambda o: np.roll(o, 1, axis=2),
}


@pytest.mark.parametrize("fault", sorted(ARTIFICIAL_ERRORS))
def test_artificial_errors_in_attention_output_are_detected(fault: str) -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)
    inputs = make_inputs(graph)
    o = interpret(graph, inputs, rounding=True)["o"]
    expected = compute_expected_outputs(graph, inputs)["o"]
    assert expected.compare(o).is_right
    wrong = expected.compare(ARTIFICIAL_ERRORS[fault](o))
    assert wrong.beyond > 0
    assert not wrong.is_right


def test_attention_with_a_wrong_score_scale_is_detected() -> None:
    """Attention with a scale one percent too large has results outside the bound."""
    options: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 128, "head_dim": 64, "stats": True}
    graph, other = (attention.sdpa_forward(**options, scale=scale) for scale in (0.125, 0.12625))
    inputs = make_inputs(graph)
    results = interpret(other, {tensor: inputs[graph.tensor(tensor).uid] for tensor in "qkv"}, rounding=True)
    found = compute_expected_outputs(graph, inputs)
    assert not all(expected.compare(results[name]).is_right for name, expected in found.items())


@pytest.mark.parametrize("tile", [32, 64, 128])
def test_attention_results_of_any_tile_size_are_within_the_bound(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels round exponentials relative to the largest score so far, for 32, 64 or 128 keys at a time."""
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, seq_kv=320, head_dim=64, scale=2.0)
    inputs = make_inputs(graph)
    expected = compute_expected_outputs(graph, inputs)["o"]
    monkeypatch.setattr("cudnn_backend_py.interpreter.run.Run.tile", tile)
    o = interpret(graph, inputs, rounding=True)["o"]
    assert expected.compare(o).is_right
    assert (o == round_to_data_type(expected.center, DataType.HALF)).all() == (tile == 128)


@pytest.mark.parametrize("terms", [8, 64, 1024])
def test_float32_sums_in_any_order_are_within_the_bound(terms: int) -> None:
    graph = make_matmul_graph(terms, DataType.FLOAT)
    inputs = make_inputs(graph)
    a, b = (inputs[graph.tensor(name).uid].astype(np.float32) for name in "ab")
    order = np.random.default_rng(0).permutation(terms)
    total = np.zeros((2, 64, 32), np.float32)
    for k in order:
        total += a[:, :, k : k + 1] * b[:, k : k + 1]
    exact = Arithmetic(tensor_cores=False)
    assert compute_expected_outputs(graph, inputs, arithmetic=exact)["mm"].compare(total).is_right
    assert compute_expected_outputs(graph, inputs)["mm"].compare(total).is_right


@pytest.mark.parametrize("behind", [[], [PointwiseMode.NEG], [PointwiseMode.ABS, PointwiseMode.RELU_FWD]], ids=len)
def test_a_fused_multiply_add_may_round_once(behind: list[PointwiseMode]) -> None:
    """Kernels may fuse a product and a sum, also where the rounded product makes the sum exact, as in cancellation."""
    g = GraphBuilder("fused", io_type=DataType.FLOAT)
    dims, per = (8, 4, 1024), (8, 4, 1)
    product = g.pointwise(PointwiseMode.MUL, g.tensor("x", dims), g.tensor("scale", per))
    y = g.pointwise(PointwiseMode.ADD, product, g.tensor("bias", per))
    for mode in behind:
        y = g.pointwise(mode, y)
    g.pointwise(PointwiseMode.IDENTITY, y, virtual=False, name="y")
    graph = g.graph()
    inputs = make_inputs(graph, "uniform", 0)
    expected = compute_expected_outputs(graph, inputs, arithmetic=Arithmetic.from_notes([]))["y"]
    once = round_to_stored_type(expected, interpret(graph, inputs)["y"])
    twice = interpret(graph, inputs, rounding=True)["y"]
    assert np.count_nonzero(once != twice) > 1000
    assert np.count_nonzero(expected.spread[once != twice] == 0) == 0
    assert expected.compare(once).is_right


def test_tensor_cores_may_round_float32_and_other_engines_may_not() -> None:
    graph = make_matmul_graph(64, DataType.FLOAT)
    inputs = make_inputs(graph)
    short = {name: round_to_data_type(inputs[graph.tensor(name).uid], DataType.HALF) for name in "ab"}
    total = interpret(graph, short)["mm"]  # float16 has as many bits as TF32
    assert (
        compute_expected_outputs(graph, inputs, arithmetic=Arithmetic.from_notes(["TENSOR_CORE"]))["mm"]
        .compare(total)
        .is_right
    )
    assert (
        not compute_expected_outputs(graph, inputs, arithmetic=Arithmetic.from_notes([]))["mm"].compare(total).is_right
    )


def test_tensor_cores_may_truncate_float32() -> None:
    graph = make_matmul_graph(144, DataType.FLOAT)
    inputs = {name: np.abs(values) for name, values in make_inputs(graph).items()}
    bits = {name: np.float32(values).view(np.uint32) & np.uint32(0xFFFFE000) for name, values in inputs.items()}
    total = interpret(graph, {name: item.view(np.float32) for name, item in bits.items()})["mm"]
    assert (
        compute_expected_outputs(graph, inputs, arithmetic=Arithmetic.from_notes(["TENSOR_CORE"]))["mm"]
        .compare(total)
        .beyond
        == 0
    )
    assert (
        not compute_expected_outputs(graph, inputs, arithmetic=Arithmetic.from_notes([]))["mm"].compare(total).is_right
    )


def compute_expected_pointwise(
    mode: PointwiseMode, x: list[float], other: list[float] | None = None, kind: DataType = DataType.FLOAT
) -> ExpectedOutput:
    """Return the expected results of one pointwise mode on these values, with a gradient or a second operand."""
    g = GraphBuilder("function", io_type=DataType.FLOAT)
    tensors = [g.tensor("x", (1, 1, len(x)))] + ([] if other is None else [g.tensor("b", (1, 1, len(x)))])
    back = {"dy": tensors[1]} if mode.name.endswith("BWD") else {}
    operands = tensors[:1] if back else tensors
    g.pointwise(mode, *operands, **back, name="y", virtual=False, data_type=kind)
    values = {"x": np.array([[x]])} | ({} if other is None else {"b": np.array([[other]])})
    return compute_expected_outputs(g.graph(), values)["y"]


@pytest.mark.parametrize(
    ("mode", "x", "other", "measured"),
    [
        (PointwiseMode.GELU_APPROX_TANH_BWD, 1e29, 0.5, np.nan),  # x^3 overflows
        (PointwiseMode.SWISH_BWD, 1e10, 1.0, 0.0),
        (PointwiseMode.SWISH_BWD, 1e30, np.inf, np.nan),
        (PointwiseMode.TANH_BWD, 9.0, np.inf, np.nan),  # 1 - tanh(x)^2 is 0 in float32
        (PointwiseMode.SIGMOID_BWD, 20.0, np.inf, np.nan),
        (PointwiseMode.DIV, -8e-40, 0.0, np.nan),  # denormals count as 0
        (PointwiseMode.COS, 3e28, None, 1.0),
        (PointwiseMode.SIN, 1e10, None, 0.0),
    ],
)
def test_measured_cudnn_results_for_extreme_arguments_are_in_bound(
    mode: PointwiseMode, x: float, other: float | None, measured: float
) -> None:
    expected = compute_expected_pointwise(mode, [x], None if other is None else [other])
    assert expected.compare([[[measured]]]).is_right


@pytest.mark.parametrize(
    "mode",
    [
        PointwiseMode.SIN,
        PointwiseMode.COS,
        PointwiseMode.TAN,
        PointwiseMode.GELU_FWD,
        PointwiseMode.ELU_BWD,
        PointwiseMode.SWISH_BWD,
    ],
)
def test_errors_of_pointwise_functions_are_allowed_up_to_the_measured_error(mode: PointwiseMode) -> None:
    x = list(np.linspace(-1, 1, 4096))
    expected = compute_expected_pointwise(mode, x, [1.0] * len(x) if mode.name.endswith("BWD") else None)
    ulps = 2.0**-23
    assert expected.spread.min() > 2 * ulps  # no element has almost no tolerance, as where movements cancel
    near = expected.center + 2 * ulps
    assert expected.compare(near).beyond == 0
    assert expected.compare(expected.center * 1.01).beyond > 3000


def test_the_cosine_of_a_huge_angle_may_have_any_value() -> None:
    expected = compute_expected_pointwise(PointwiseMode.COS, [3.2e28], kind=DataType.INT8)
    assert expected.compare([[[1.0]]]).is_right
    assert expected.compare([[[0.0]]]).is_right


def test_integers_have_no_tolerance() -> None:
    graph = make_matmul_graph(64, DataType.HALF, DataType.FLOAT)
    inputs = make_inputs(graph, "integers")
    expected = compute_expected_outputs(graph, inputs)["mm"]
    assert expected.bounds().max() == 0
    right = interpret(graph, inputs)["mm"]
    assert expected.compare(right).is_right
    right[0, 3, 4] += 1
    wrong = expected.compare(right)
    assert (wrong.beyond, wrong.where, wrong.largest) == (1, (0, 3, 4), np.inf)
    assert "[0,3,4]" in str(wrong)


def test_infinities_and_nan_must_be_at_the_expected_elements() -> None:
    g = GraphBuilder("edges", io_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.LOG, g.tensor("x", (1, 4)), name="y", virtual=False)
    graph = g.graph()
    expected = compute_expected_outputs(graph, {"x": np.array([[1.0, 0.0, -1.0, np.inf]])})["y"]
    right = np.array([[0.0, -np.inf, np.nan, np.inf]])
    assert expected.compare(right).is_right
    for place, value in ((1, np.inf), (1, -1e38), (2, 0.0), (0, np.nan), (3, np.nan)):
        wrong = right.copy()
        wrong[0, place] = value
        assert expected.compare(wrong).beyond == 1


def test_error_bound_considers_the_sign_of_a_zero_divisor() -> None:
    """1 / -0 is -inf, so tanh(1 / -0 + huge * huge) is -1, or NaN if the square overflows float32, but not 1."""
    g = GraphBuilder("signs", io_type=DataType.FLOAT)
    x, zero, huge = (g.tensor(name, (1, 4)) for name in ("x", "zero", "huge"))
    total = g.pointwise(PointwiseMode.ADD_SQUARE, g.pointwise(PointwiseMode.DIV, x, zero), huge)
    g.pointwise(PointwiseMode.TANH_FWD, total, name="y", virtual=False)
    values = {"x": np.ones((1, 4)), "zero": np.array([[-0.0, -0.0, 0.0, 0.5]]), "huge": np.array([[1e30, 0, 1e30, 0]])}
    expected = compute_expected_outputs(g.graph(), values)["y"]
    assert expected.defined.tolist() == [[False, True, True, True]]
    assert expected.compare([[np.nan, -1, 1, math.tanh(2)]]).is_right
    assert not expected.compare([[np.nan, 1, 1, math.tanh(2)]]).is_right


def test_error_bound_allows_rounded_scores_to_scale_the_gradient() -> None:
    """P = exp(score - stats): a relative error of 10^-6 in scores of thousands scales all of P."""
    graph = attention.sdpa_backward(batch=1, heads=2, seq_q=64, head_dim=128)
    inputs = make_inputs(graph, "hostile", 1)
    largest = np.abs(inputs[graph.tensor("stats").uid]).max()
    assert largest > 1000
    expected = compute_expected_outputs(graph, inputs)["dv"]
    right = interpret(graph, inputs, rounding=True)["dv"]
    assert expected.compare(round_to_data_type(right * math.exp(5e-7 * largest), DataType.HALF)).is_right
    assert not expected.compare(round_to_data_type(right * math.exp(5e-6 * largest), DataType.HALF)).is_right


def test_a_comparison_of_nearly_equal_values_may_have_either_result() -> None:
    """0.1 + 0.2 - 0.3 in float32 may be just above zero or not, so both results of `> 0` are right."""
    g = GraphBuilder("edge", io_type=DataType.FLOAT)
    total = g.reduction(ReduceTensorOp.ADD, g.tensor("x", (64, 3)), (64, 1))
    g.pointwise(PointwiseMode.CMP_GT, total, g.scalar(0.0, rank=2), name="y", data_type=DataType.BOOLEAN, virtual=False)
    graph = g.graph()
    x = np.tile(np.float32([0.1, 0.2, -0.3]).astype(np.float64), (64, 1))
    x[0] = 1
    expected = compute_expected_outputs(graph, {"x": x})["y"]
    assert expected.compare(np.ones((64, 1))).is_right
    wrong = np.ones((64, 1))
    wrong[0] = 0
    assert expected.compare(wrong).beyond == 1


def make_elementwise_graph(*steps: PointwiseMode, kind: DataType = DataType.FLOAT) -> Graph:
    """Return a graph of consecutive pointwise operations on two tensors."""
    g = GraphBuilder("make_elementwise_graph", io_type=DataType.FLOAT)
    made, other = g.tensor("x", (1, 2)), g.tensor("b", (1, 2))
    for mode in steps[:-1]:
        made = g.pointwise(mode, made, other)
    g.pointwise(steps[-1], made, other, name="y", data_type=kind, virtual=False)
    return g.graph()


@pytest.mark.parametrize(
    ("steps", "kind", "x", "b", "right"),
    [
        ((PointwiseMode.DIV, PointwiseMode.ADD), DataType.FLOAT, 42.0, -0.0, [-np.inf]),
        ((PointwiseMode.CMP_GT, PointwiseMode.MUL), DataType.FLOAT, -3e-40, -4e-40, [-4e-40, 0.0]),
        ((PointwiseMode.CMP_GT,), DataType.BOOLEAN, -3e-40, -4e-40, [0.0, 1.0]),
        ((PointwiseMode.MUL,), DataType.INT32, -1e-39, np.inf, [-(2.0**31), 0.0]),
        ((PointwiseMode.MUL, PointwiseMode.MUL), DataType.FLOAT, 8.0, 3e-39, [8 * 3e-39 * 3e-39, 0.0]),
    ],
    ids=["sign of zero", "selected", "boolean", "integer", "product"],
)
def test_denormal_numbers_may_be_flushed_to_zero_with_their_sign(
    steps: tuple[PointwiseMode, ...], kind: DataType, x: float, b: float, right: list[float]
) -> None:
    expected = compute_expected_outputs(
        make_elementwise_graph(*steps, kind=kind), {"x": np.array([[x, 1.0]]), "b": np.array([[b, 1.0]])}
    )["y"]
    good = expected.center.copy()
    for value in right:
        good[0, 0] = value
        assert expected.compare(good).is_right, value


def test_an_exact_zero_keeps_its_sign() -> None:
    expected = compute_expected_outputs(
        make_elementwise_graph(PointwiseMode.DIV, PointwiseMode.ADD),
        {"x": np.array([[42.0, 1.0]]), "b": np.array([[-0.0, 1.0]])},
    )["y"]
    assert expected.compare([[-np.inf, 2.0]]).is_right
    assert expected.compare([[np.inf, 2.0]]).beyond == 1


def compute_expected_result_for_vectors(
    x: list[float], by: list[float], make: Callable[[GraphBuilder, Any, Any], object]
) -> ExpectedOutput:
    """Return the expected result of the operations that `make` adds, on two vectors."""
    g, dims = GraphBuilder("column", io_type=DataType.FLOAT), (1, 1, len(x))
    make(g, g.tensor("x", dims), g.tensor("by", dims))
    given = {name: np.reshape(np.array(held), dims) for name, held in (("x", x), ("by", by))}
    return compute_expected_outputs(g.graph(), given)["y"]


def test_a_function_value_smaller_than_its_error_may_be_0() -> None:
    """If a kernel's tanh rounds to -1, its swish is 0, so a quotient may be NaN or infinite."""

    def add_quotient(g: GraphBuilder, x: Any, by: Any) -> None:
        g.pointwise(
            PointwiseMode.ERF,
            g.pointwise(PointwiseMode.DIV, g.pointwise(PointwiseMode.SWISH_FWD, x), by),
            name="y",
            virtual=False,
        )

    found = compute_expected_result_for_vectors([-24.0, -24.0, -2.0], [0.0, 0.5, 0.0], add_quotient)
    assert found.defined.ravel().tolist() == [False, True, True]
    assert found.compare([[[np.nan, 0.0, -1.0]]]).is_right
    assert not found.compare([[[np.nan, 0.0, np.nan]]]).is_right
    assert not found.compare([[[np.nan, -0.5, -1.0]]]).is_right


def test_atan2_of_a_value_below_its_error_may_equal_atan2_of_0() -> None:
    """In kernels exp(x) - 1, and thus the ELU, is 0 for the smallest float16 numbers."""

    def add_atan2(g: GraphBuilder, x: Any, by: Any) -> None:
        g.pointwise(
            PointwiseMode.ABS,
            g.pointwise(PointwiseMode.ATAN2, g.pointwise(PointwiseMode.ELU_FWD, x), by),
            name="y",
            virtual=False,
        )

    found = compute_expected_result_for_vectors([-(2.0**-24), -(2.0**-24), -1.0], [-0.0, 0.0, 0.0], add_atan2)
    assert found.compare([[[np.pi, 0.0, np.pi / 2]]]).is_right
    assert not found.compare([[[np.pi, 0.0, np.pi]]]).is_right


@pytest.mark.parametrize("mode", [PointwiseMode.RELU_FWD, PointwiseMode.MAX])
def test_a_maximum_of_zeros_may_have_either_sign(mode: PointwiseMode) -> None:
    """atan2(0, -3) is pi and atan2(-0, -3) is -pi; for a positive maximum there is only one result."""

    def add_atan2(g: GraphBuilder, x: Any, by: Any) -> None:
        zero = g.pointwise(PointwiseMode.SUB, x, x)
        held = g.pointwise(mode, x) if mode is PointwiseMode.RELU_FWD else g.pointwise(mode, x, zero)
        g.pointwise(PointwiseMode.ATAN2, held, by, name="y", virtual=False)

    found = compute_expected_result_for_vectors([-5.0, -5.0, 3.0], [-3.0, 3.0, -3.0], add_atan2)
    assert found.compare([[[np.pi, 0.0, 0.75 * np.pi]]]).is_right
    assert found.compare([[[-np.pi, 0.0, 0.75 * np.pi]]]).is_right
    assert not found.compare([[[np.pi, 0.0, -0.75 * np.pi]]]).is_right
    assert not found.compare([[[np.pi, np.pi, 0.75 * np.pi]]]).is_right


def test_relu_backward_of_a_gradient_flushed_to_0_is_0() -> None:
    """A denormal factor of dy may be flushed to 0, so the bound allows 0, but no result of the other sign."""
    g = GraphBuilder("kink", io_type=DataType.FLOAT)
    dy = g.pointwise(PointwiseMode.MUL, g.tensor("x", (1, 2)), g.tensor("b", (1, 2)))
    g.pointwise(PointwiseMode.RELU_BWD, g.tensor("at", (1, 2)), dy=dy, name="y", virtual=False)
    given = {"x": np.array([[-80.0, 1.0]]), "b": np.array([[-6e-40, 1.0]]), "at": np.ones((1, 2))}
    expected = compute_expected_outputs(g.graph(), given)["y"]
    assert expected.compare([[0.0, 1.0]]).is_right
    assert expected.compare([[4.8e-38, 1.0]]).is_right
    assert expected.compare([[-4.8e-38, 1.0]]).beyond == 1


def test_bound_covers_a_denormal_comparison_and_a_tiny_gelu_slope() -> None:
    """The bound covers a comparison that depends on denormals, and GELU's slope at -6.5, as small as its error."""
    g = GraphBuilder("both", io_type=DataType.FLOAT)
    above = g.pointwise(PointwiseMode.CMP_GT, g.tensor("x", (1, 2)), g.tensor("b", (1, 2)), data_type=DataType.BOOLEAN)
    dy = g.pointwise(PointwiseMode.BINARY_SELECT, g.tensor("small", (1, 2)), g.tensor("large", (1, 2)), t=above)
    g.pointwise(PointwiseMode.GELU_BWD, g.tensor("at", (1, 2)), dy=dy, name="y", virtual=False)
    given = {"x": [[-0.0, 1.0]], "b": [[-8e-40, 0.0]], "small": [[-0.5, 1.0]], "large": [[3.8e29, 1.0]]}
    expected = compute_expected_outputs(g.graph(), given | {"at": [[-6.5, 1.0]]})["y"]
    good = expected.center.copy()
    assert expected.compare(good).is_right
    good[0, 0] = -7e20
    assert expected.compare(good).is_right


def test_a_product_in_another_order_may_overflow_or_underflow() -> None:
    g = GraphBuilder("product", io_type=DataType.FLOAT)
    g.reduction(ReduceTensorOp.MUL, g.tensor("x", (2, 3)), (2, 1), name="y", virtual=False)
    expected = compute_expected_outputs(g.graph(), {"x": [[1e30, 1e30, 1e-30], [1e-30, 1e-30, 1e30]]})["y"]
    assert expected.compare([[1e30], [1e-30]]).is_right
    assert expected.compare([[np.inf], [0.0]]).is_right
    expected = compute_expected_outputs(g.graph(), {"x": [[2.0, 3.0, 4.0], [1.0, 1.0, 1.0]]})["y"]
    assert expected.compare([[24.0], [1.0]]).is_right
    assert expected.compare([[25.0], [1.0]]).beyond == 1


def test_no_common_error_factor_is_found_if_squares_overflow() -> None:
    values = np.full(100, 1e200)
    assert find_common_error_factor(values * 1.01, values, values, values * 2.0**-53, (0.0,), 0.0) is None


def test_results_stored_as_integers_are_rounded_to_nearest() -> None:
    g = GraphBuilder("whole", io_type=DataType.INT32)
    g.pointwise(PointwiseMode.SQRT, g.tensor("x", (1, 4)), name="y", virtual=False)
    expected = compute_expected_outputs(g.graph(), {"x": np.array([[1, 3, 4, 9]])})["y"]
    assert expected.compare([[1, 2, 2, 3]]).is_right
    for second in (1, 3):
        assert not expected.compare([[1, second, 2, 3]]).is_right


def test_random_numbers_of_continuous_distributions_are_not_compared() -> None:
    def make_rng_graph(distribution: RngDistribution) -> Graph:
        g = GraphBuilder("random", io_type=DataType.FLOAT)
        seed, offset = (g.tensor(name, (1, 1, 1, 1), DataType.INT64) for name in ("seed", "offset"))
        options: dict[str, Any] = {"minimum": 0.0, "maximum": 1.0}
        if distribution is RngDistribution.BERNOULLI:
            options = {"probability": 0.5}
        drawn = g.rng((1, 1, 8, 8), seed, offset, distribution=distribution, **options)
        g.pointwise(PointwiseMode.IDENTITY, drawn, name="y", virtual=False)
        return g.graph()

    for distribution, compared in ((RngDistribution.UNIFORM, set()), (RngDistribution.BERNOULLI, {"y"})):
        made = make_rng_graph(distribution)
        assert set(compute_expected_outputs(made, make_inputs(made))) == compared


def test_ragged_memory_between_sequences_is_not_compared() -> None:
    graph = attention.sdpa_forward(batch=3, heads=2, seq_q=64, head_dim=32, ragged=True, stats=True)
    inputs = make_inputs(graph)
    for name, expected in compute_expected_outputs(graph, inputs).items():
        result = interpret(graph, inputs, rounding=True)[name]
        longer = np.concatenate([result.reshape(-1), np.full(100, 7.0)]) if result.ndim == 1 else result
        assert expected.compare(np.nan_to_num(longer, nan=5.0)).is_right


def test_the_seed_changes_the_error_bound_only_a_little() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    inputs = make_inputs(graph)
    bounds = [compute_expected_outputs(graph, inputs, seed=seed)["gelu_fwd"].bounds() for seed in (0, 0, 1)]
    np.testing.assert_array_equal(bounds[0], bounds[1])
    moved = bounds[0] > 0  # GELU is exact where it is zero
    assert moved.any()
    assert 0.5 < np.median(bounds[2][moved] / bounds[0][moved]) < 2


@pytest.mark.parametrize(
    ("family", "kind", "factor"),
    [
        (name, kind, factor)
        for name, (*_, kinds) in WRONG_SCALES.items()
        for kind in kinds
        for factor in SCALE_FACTORS[kind]
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_wrong_scale_is_detected_for_every_operation_and_type(family: str, kind: DataType, factor: float) -> None:
    """Rounded results of the interpreter are within the error bound, except if the expected graph has another scale."""
    make, operation, _ = WRONG_SCALES[family]
    graph = make(kind)
    inputs = make_inputs(graph, seed=1)
    results = interpret(graph, inputs, rounding=True)
    right = compute_expected_outputs(graph, inputs)
    assert all(item.compare(results[name]).is_right for name, item in right.items())
    with use_wrong_scale_in_interpreter(operation, factor):
        wrong = compute_expected_outputs(graph, inputs)
    assert not all(item.compare(results[name]).is_right for name, item in wrong.items())


@pytest.mark.parametrize("name", WRONG_MODES)
def test_a_wrong_pointwise_mode_is_detected(name: str) -> None:
    make, mode, other = WRONG_MODES[name]
    graph = make()
    inputs = make_inputs(graph, seed=1)
    results = interpret(graph, inputs, rounding=True)
    assert all(item.compare(results[name]).is_right for name, item in compute_expected_outputs(graph, inputs).items())
    with use_wrong_pointwise_mode_in_interpreter(mode, other):
        wrong = compute_expected_outputs(graph, inputs)
    assert not all(item.compare(results[name]).is_right for name, item in wrong.items())
