"""Edge cases of the interpreter equal results of cuDNN 9.19 on an H200; tests/gpu/interpreter compares more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp, ResampleMode
from cudnn_backend_py.graph import GraphBuilder
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.pointwise import BOUNDS

INF, NAN = math.inf, math.nan
LARGEST_FLOAT = float(np.finfo(np.float32).max)


def run_pointwise(
    mode: PointwiseMode, parameters: dict[str, float] | None = None, **operands: list[float]
) -> list[float]:
    g = GraphBuilder("edge", io_type=DataType.FLOAT)
    tensors = {name: g.tensor(name, (len(values),)) for name, values in operands.items()}
    g.pointwise(mode, tensors.pop("x"), **tensors, parameters=parameters, name="y", virtual=False)
    return list(interpret(g.graph(), dict(operands), rounding=True)["y"].tolist())


def convert_values(values: list[float], source: DataType, kind: DataType) -> list[float]:
    g = GraphBuilder("convert", io_type=source)
    g.pointwise(PointwiseMode.IDENTITY, g.tensor("x", (len(values),)), name="y", virtual=False, data_type=kind)
    return list(interpret(g.graph(), {"x": values}, rounding=True)["y"].tolist())


def run_reduction(mode: ReduceTensorOp, row: list[float]) -> float:
    g = GraphBuilder("reduce", io_type=DataType.FLOAT)
    g.reduction(mode, g.tensor("x", (1, len(row))), (1, 1), name="y", virtual=False)
    return float(interpret(g.graph(), {"x": [row]}, rounding=True)["y"].item())


def test_the_maximum_of_two_zeros_is_positive() -> None:
    zeros = {"x": [0.0, -0.0], "b": [-0.0, 0.0]}
    assert str(run_pointwise(PointwiseMode.MAX, **zeros)) == "[0.0, 0.0]"
    assert str(run_pointwise(PointwiseMode.MIN, **zeros)) == "[-0.0, -0.0]"


def test_a_leaky_relu_with_an_upper_clip_is_the_maximum_of_two_lines() -> None:
    parameters = {"relu_lower_clip": -0.5, "relu_upper_clip": 6.0, "relu_lower_clip_slope": 0.1}
    got = run_pointwise(PointwiseMode.RELU_FWD, parameters, x=[-2.0, 3.0, 10.0, 1e30, INF])
    np.testing.assert_allclose(got, [-0.65, 3.0, 6.0, 1e29, INF], rtol=1e-6)


def test_relu_backward_selects_dy_and_clipped_relu_multiplies_dy() -> None:
    x, dy = [-1.0, -1.0, 1.0, INF, LARGEST_FLOAT], [INF, -1.0, INF, 3.0, 3.0]
    assert str(run_pointwise(PointwiseMode.RELU_BWD, x=x, dy=dy)) == "[0.0, 0.0, inf, 3.0, 3.0]"
    clipped = run_pointwise(
        PointwiseMode.RELU_BWD, {"relu_upper_clip": 6.0}, x=[-1.0, -1.0, 7.0, 5.0], dy=[INF, -1.0, NAN, INF]
    )
    assert str(clipped) == "[nan, -0.0, nan, inf]"
    assert run_pointwise(
        PointwiseMode.RELU_BWD, {"relu_lower_clip_slope": 0.5}, x=[-1.0, 0.0, 1.0, LARGEST_FLOAT], dy=[2.0] * 4
    ) == [
        1,
        1,
        2,
        0,
    ]


def test_elu_backward_at_zero_uses_the_negative_side() -> None:
    assert run_pointwise(PointwiseMode.ELU_BWD, {"elu_alpha": 0.25}, x=[0.0, -0.0, 1.0], dy=[1.0, 1.0, 1.0]) == [
        0.25,
        0.25,
        1.0,
    ]


@pytest.mark.parametrize("kind", [DataType.INT8, DataType.INT32, DataType.INT64])
def test_floats_are_converted_to_integers_by_rounding_to_even(kind: DataType) -> None:
    assert convert_values([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, 2.6], DataType.FLOAT, kind) == [0, 2, 2, 0, -2, 2, 3]


def test_conversion_to_integers_saturates() -> None:
    beyond = [1e30, -1e30, NAN]
    assert convert_values(beyond, DataType.FLOAT, DataType.INT8) == [127, -128, 0]
    assert convert_values(beyond, DataType.FLOAT, DataType.INT32) == [2**31 - 1, -(2**31), 0]
    assert convert_values(beyond, DataType.FLOAT, DataType.INT64) == [2**63 - 1, -(2**63), -(2**63)]


def test_integers_are_converted_through_float32() -> None:
    assert convert_values([2**24 + 1, 2**25 + 2, -(2**24) - 1], DataType.INT32, DataType.INT64) == [
        2**24,
        2**25,
        -(2**24),
    ]


@pytest.mark.parametrize(("kind", "most"), [(DataType.FP8_E4M3, 448.0), (DataType.FP8_E5M2, 57344.0)])
def test_fp8_results_of_a_matmul_graph_saturate(kind: DataType, most: float) -> None:
    g = GraphBuilder("product", io_type=DataType.FLOAT)
    z = g.matmul(g.tensor("a", (1, 1, 8)), g.tensor("b", (1, 8, 4)))
    g.pointwise(PointwiseMode.ADD, z, g.tensor("c", (1, 1, 4)), name="y", virtual=False, data_type=kind)
    given = {"a": np.zeros((1, 1, 8)), "b": np.zeros((1, 8, 4)), "c": np.array([[[INF, -1e9, NAN, 2.0]]])}
    assert str(interpret(g.graph(), given, rounding=True)["y"].tolist()) == f"[[[{most}, -{most}, nan, 2.0]]]"


def test_fp8_results_of_other_graphs_do_not_saturate() -> None:
    e4m3 = convert_values([448.0, 464.0, 465.0, -1e9, INF], DataType.FLOAT, DataType.FP8_E4M3)
    assert str(e4m3) == "[448.0, 448.0, nan, nan, nan]"
    e5m2 = convert_values([61439.0, 61440.0, -73728.0, 74000.0, INF, -INF], DataType.FLOAT, DataType.FP8_E5M2)
    assert str(e5m2) == "[57344.0, inf, -inf, nan, inf, -inf]"


@pytest.mark.parametrize(
    ("mode", "row", "want"),
    [
        (ReduceTensorOp.MAX, [NAN, 1.0, -2.0], 1.0),
        (ReduceTensorOp.MIN, [NAN, 1.0, -2.0], -2.0),
        (ReduceTensorOp.AMAX, [NAN, 1.0, -2.0], 2.0),
        (ReduceTensorOp.MAX, [-INF, -INF], -LARGEST_FLOAT),
        (ReduceTensorOp.MIN, [INF, INF], LARGEST_FLOAT),
        (ReduceTensorOp.MAX, [NAN, NAN], -LARGEST_FLOAT),
        (ReduceTensorOp.MIN, [NAN, NAN], LARGEST_FLOAT),
        (ReduceTensorOp.AMAX, [NAN, NAN], 0.0),
        (ReduceTensorOp.AMAX, [-INF, 0.0], INF),
    ],
)
def test_min_and_max_reductions_ignore_nan_and_start_with_a_finite_value(
    mode: ReduceTensorOp, row: list[float], want: float
) -> None:
    assert run_reduction(mode, row) == want


@pytest.mark.parametrize(("kind", "lowest"), [(DataType.HALF, -65504.0), (DataType.FLOAT, -LARGEST_FLOAT)])
def test_max_pooling_of_minus_infinity_gives_the_lowest_finite_number(kind: DataType, lowest: float) -> None:
    g = GraphBuilder("pool", io_type=kind)
    g.resample(ResampleMode.MAXPOOL, g.tensor("x", (1, 1, 2, 2)), 2, name="y", virtual=False)
    assert interpret(g.graph(), {"x": np.full((1, 1, 2, 2), -INF)}, rounding=True)["y"].item() == lowest


def test_only_approximated_pointwise_modes_have_an_error_bound() -> None:
    words = ("COS", "ELU", "EXP", "LOG", "SIGMOID", "SIN", "SOFTPLUS", "SWISH", "TAN")
    assert all(any(word in mode.name for word in words) and 0 < bound <= 128 for mode, bound in BOUNDS.items())
