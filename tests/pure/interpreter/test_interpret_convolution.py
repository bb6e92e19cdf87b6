"""Convolutions and pooling in the interpreter compared with loops over elements, on random problems."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.generated.enums import (
    ConvolutionMode,
    DataType,
    DescriptorType,
    NanPropagation,
    PaddingMode,
    ResampleMode,
)
from cudnn_backend_py.graph import Graph, GraphBuilder, Operation, Parameters
from cudnn_backend_py.interpreter import interpret
from tests.support.graphs import make_convolution, make_tensor
from tests.support.interpreting import Array, assert_graph_error, make_random_array
from tests.support.numpy_operations import (
    compute_average_pool,
    compute_convolution,
    compute_convolution_gradients,
    compute_max_pool,
    compute_pool_gradient,
)

INF, NAN = np.inf, np.nan


def make_random_convolution(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Return random dims of an image and of weights, and a matching window."""
    r = np.random.default_rng(seed)
    spatial, groups = int(r.integers(1, 4)), int(r.integers(1, 4))
    taps = r.integers(1, 4, spatial)
    dilation, stride = r.integers(1, 3, spatial), r.integers(1, 4, spatial)
    padding, after = r.integers(0, 3, spatial), r.integers(0, 3, spatial)
    sizes = (taps - 1) * dilation + 1 + r.integers(0, 4, spatial)
    per_group, filters = int(r.integers(1, 3)), int(r.integers(1, 3))
    image = (int(r.integers(1, 3)), groups * per_group, *map(int, sizes))
    weights = (groups * filters, per_group, *map(int, taps))
    names = ("padding", "post_padding", "stride", "dilation")
    window = {name: tuple(map(int, side)) for name, side in zip(names, (padding, after, stride, dilation), strict=True)}
    return image, weights, window


@pytest.mark.parametrize("seed", range(300))
def test_convolution_and_its_gradients_equal_loops_over_elements(seed: int) -> None:
    image, weights, window = make_random_convolution(seed)
    mode = ConvolutionMode(seed % 2)
    turned = mode is ConvolutionMode.CONVOLUTION
    x, w = make_random_array(*image, seed=seed), make_random_array(*weights, seed=seed + 1)
    expected = compute_convolution(x, w, window, turned=turned)
    dy = make_random_array(*expected.shape, seed=seed + 2)
    g = GraphBuilder("convolution", io_type=DataType.DOUBLE, compute_type=DataType.DOUBLE)
    tensors = {name: g.tensor(name, value.shape) for name, value in (("x", x), ("w", w), ("dy", dy))}
    options: dict[str, Any] = {**window, "mode": mode, "virtual": False}
    groups = image[1] // weights[1]
    g.convolution(tensors["x"], tensors["w"], **options, name="y")
    g.convolution_backward_data(tensors["dy"], tensors["w"], groups=groups, **options, dims=image, name="dx")
    g.convolution_backward_filter(tensors["x"], tensors["dy"], weights[2:], groups=groups, **options, name="dw")
    got = interpret(g.graph(), {"x": x, "w": w, "dy": dy})
    dx, dw = compute_convolution_gradients(x, w, dy, window, turned=turned)
    for name, value in (("y", expected), ("dx", dx), ("dw", dw)):
        np.testing.assert_allclose(got[name], value, rtol=1e-12, atol=1e-12)


def test_convolution_data_gradient_infers_the_smallest_dx_dims() -> None:
    g = GraphBuilder()
    dy, w = g.tensor("dy", (2, 8, 5, 4), strides="channels_last"), g.tensor("w", (8, 3, 3, 2))
    dx = g.convolution_backward_data(dy, w, groups=2, stride=2, padding=1, dilation=(1, 2))
    assert (dx.dims, dx.strides) == ((2, 6, 9, 7), (378, 1, 42, 6))


def test_a_convolution_rounds_its_sum_once_to_the_compute_type() -> None:
    g = GraphBuilder("rounding", compute_type=DataType.HALF)
    x, w = g.tensor("x", (1, 3, 2), DataType.DOUBLE), g.tensor("w", (1, 3, 1), DataType.DOUBLE)
    g.convolution(x, w, name="y", virtual=False, data_type=DataType.DOUBLE)
    value = np.array([[[1, 1.0], [2.0**-11, 1], [2.0**-11, 1]]])
    assert interpret(g.graph(), {"x": value, "w": np.ones((1, 3, 1))}, rounding=True)["y"].tolist() == [
        [[1 + 2.0**-10, 3]]
    ]


def test_an_infinite_weight_times_padding_is_nan() -> None:
    g = GraphBuilder("edges", io_type=DataType.DOUBLE)
    g.convolution(g.tensor("x", (1, 1, 3)), g.tensor("w", (1, 1, 3)), padding=1, name="y", virtual=False)
    got = interpret(g.graph(), {"x": np.ones((1, 1, 3)), "w": [[[INF, 1, 1]]]})["y"]
    np.testing.assert_array_equal(got, [[[NAN, INF, INF]]])


def test_a_convolution_with_an_output_of_wrong_dims_is_refused() -> None:
    op = make_convolution(y=make_tensor("small", 1, 16, 3, 3))
    inputs = {"image": make_random_array(1, 8, 6, 6), "filter": make_random_array(16, 8, 3, 3)}
    assert_graph_error("interpret-shape", "the response tensor of convolution", lambda: interpret(Graph((op,)), inputs))


# pooling

PADDING_VALUES = {PaddingMode.ZERO_PAD: 0.0, PaddingMode.NEG_INF_PAD: -INF}


def make_random_pooling(seed: int) -> tuple[Array, dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return an input, the reference's options, the post padding, and the output's spatial dims."""
    r = np.random.default_rng(seed)
    spatial = int(r.integers(1, 4))
    window, stride = r.integers(1, 4, spatial), r.integers(1, 4, spatial)
    before, after = (r.integers(0, window) for _ in range(2))
    sizes = window + r.integers(0, 4, spatial)
    out = (sizes + before + after - window) // stride + 1
    x = np.round(make_random_array(2, 3, *map(int, sizes), seed=seed) * 2)  # also equal ones
    sides = {name: tuple(map(int, side)) for name, side in (("window", window), ("stride", stride), ("before", before))}
    return x, sides, tuple(map(int, after)), tuple(map(int, out))


def run_resample(mode: ResampleMode, x: Array, dy: Array, **options: Any) -> dict[str, Any]:
    """Interpret a pooling and its gradient; max pooling passes its index to the gradient."""
    g = GraphBuilder("pool", io_type=DataType.DOUBLE, compute_type=DataType.DOUBLE)
    source, gradient = g.tensor("x", x.shape), g.tensor("dy", dy.shape)
    y, idx = g.resample(mode, source, idx=mode is ResampleMode.MAXPOOL, **options, name="y", virtual=False)
    assert y.dims == dy.shape
    more: dict[str, Any] = {"dims": x.shape}
    if idx is not None:
        more["idx"] = g.tensor("given", y.dims, DataType.INT8)
    g.resample_backward(mode, gradient, **options, **more, name="dx", virtual=False)
    if mode is ResampleMode.MAXPOOL:
        g.resample_backward(mode, gradient, **options, x=source, y=g.tensor("yy", y.dims), name="dx2", virtual=False)
    graph = g.graph()
    given = {name: np.zeros(y.dims) for name in ("given", "yy") if mode is ResampleMode.MAXPOOL}
    first = interpret(graph, {"x": x, "dy": dy, **given})
    return interpret(
        graph, {"x": x, "dy": dy, **given, "given": first["y.idx"]} if idx is not None else {"x": x, "dy": dy}
    )


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("padding_mode", PADDING_VALUES)
def test_max_pooling_and_its_gradient_equal_loops_over_elements(seed: int, padding_mode: PaddingMode) -> None:
    x, sides, after, out = make_random_pooling(seed)
    dy = make_random_array(2, 3, *out, seed=seed)
    options = {"window": sides["window"], "stride": sides["stride"], "padding": sides["before"], "post_padding": after}
    got = run_resample(ResampleMode.MAXPOOL, x, dy, **options, padding_mode=padding_mode)
    y, index = compute_max_pool(x, out, PADDING_VALUES[padding_mode], **sides)
    dx = compute_pool_gradient(x, dy, index, **sides)
    for name, value in (("y", y), ("y.idx", index), ("dx", dx), ("dx2", dx)):
        np.testing.assert_allclose(got[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("mode", [ResampleMode.AVGPOOL_INCLUDE_PADDING, ResampleMode.AVGPOOL_EXCLUDE_PADDING])
def test_average_pooling_and_its_gradient_equal_loops_over_elements(seed: int, mode: ResampleMode) -> None:
    x, sides, after, out = make_random_pooling(seed)
    dy = make_random_array(2, 3, *out, seed=seed)
    options = {"window": sides["window"], "stride": sides["stride"], "padding": sides["before"], "post_padding": after}
    got = run_resample(mode, x, dy, **options)
    exclude = mode is ResampleMode.AVGPOOL_EXCLUDE_PADDING
    np.testing.assert_allclose(got["y"], compute_average_pool(x, out, exclude=exclude, **sides), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        got["dx"], compute_pool_gradient(x, dy, None, exclude=exclude, **sides), rtol=1e-12, atol=1e-12
    )


def run_pooling(x: list[float], mode: ResampleMode, **options: Any) -> list[float]:
    g = GraphBuilder("pool", io_type=DataType.DOUBLE)
    g.resample(mode, g.tensor("x", (1, 1, len(x))), name="y", virtual=False, **options)
    made: list[float] = interpret(g.graph(), {"x": [[x]]})["y"][0, 0].tolist()
    return made


def test_max_pooling_propagates_or_ignores_nan() -> None:
    x = [NAN, 1.0, 2.0, NAN, NAN, NAN]
    assert str(run_pooling(x, ResampleMode.MAXPOOL, window=2)) == "[nan, nan, nan]"
    keep = NanPropagation.NOT_PROPAGATE_NAN
    assert str(run_pooling(x, ResampleMode.MAXPOOL, window=2, nan_propagation=keep)) == "[1.0, 2.0, nan]"


def test_edge_padding_and_bilinear_upsampling_have_the_expected_results() -> None:
    edge = PaddingMode.EDGE_VAL_PAD
    assert run_pooling(
        [1.0, 2.0, 6.0], ResampleMode.AVGPOOL_INCLUDE_PADDING, window=3, stride=1, padding=1, padding_mode=edge
    ) == [
        4 / 3,
        3.0,
        14 / 3,
    ]
    half = Fraction(1, 2)
    got = run_pooling([1.0, 2.0, 6.0], ResampleMode.BILINEAR, window=2, stride=half, padding=half, post_padding=1)
    assert got == [1.0, 1.5, 2.0, 4.0, 6.0, 6.0]  # measured on an H200 with cuDNN 9.19


def test_the_gradient_of_upsampling_is_its_transpose() -> None:
    half = Fraction(1, 2)
    options: dict[str, Any] = {"window": 2, "stride": half, "padding": half, "post_padding": 1}
    x, dy = make_random_array(2, 3, 4, 3), make_random_array(2, 3, 8, 6, seed=1)
    got = run_resample(ResampleMode.BILINEAR, x, dy, **options)
    np.testing.assert_allclose((got["y"] * dy).sum(), (got["dx"] * x).sum())


def test_unsupported_resampling_is_refused() -> None:
    assert_graph_error(
        "interpret-operation", "by NEAREST", lambda: run_pooling([1.0, 2.0], ResampleMode.NEAREST, window=2)
    )
    parts: dict[str, Any] = {"window": Fraction(3, 2), "stride": Fraction(1, 2)}
    assert_graph_error(
        "interpret-operation", "window 3/2", lambda: run_pooling([1.0] * 3, ResampleMode.MAXPOOL, **parts)
    )
    g = GraphBuilder(io_type=DataType.DOUBLE)
    x, y = g.tensor("x", (1, 1, 2)), g.tensor("y", (1, 1, 1))
    facts = {
        "spatial_dims": 1,
        "window_dims": 2,
        "strides": 2,
        "pre_paddings": 0,
        "post_paddings": 0,
        "mode": ResampleMode.MAXPOOL,
    }
    fields = {"x": x, "y": y, "resample": Parameters(DescriptorType.RESAMPLE, facts), "beta": 1.0}
    op = Operation(DescriptorType.OPERATION_RESAMPLE_FWD, "pool", fields)
    assert_graph_error("interpret-operation", "beta", lambda: interpret(Graph((op,)), {"x": [[[1, 2]]]}))
