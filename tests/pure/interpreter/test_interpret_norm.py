"""Norms in the interpreter compared with textbook formulas and finite differences, on random problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.generated.enums import DataType, DescriptorType, NormFwdPhase, NormMode
from cudnn_backend_py.graph import GraphBuilder
from cudnn_backend_py.interpreter import interpret
from tests.support.interpreting import Array, assert_graph_error, make_random_array
from tests.support.numpy_operations import compute_batch_norm_gradients, compute_numeric_gradient, normalize

EPSILON = 0.01


def make_random_norm(mode: NormMode, seed: int) -> tuple[Array, tuple[int, ...], tuple[int, ...], int | None]:
    """Return an input, the dims of scale and bias, the jointly normalized axes, and the number of groups."""
    r = np.random.default_rng(seed)
    rank = int(r.integers(3, 6))
    dims = tuple(map(int, r.integers(2, 5, rank)))
    groups = None
    if mode in (NormMode.LAYER_NORM, NormMode.RMS_NORM):
        first = int(r.integers(1, rank))
        scale, axes = (*[1] * first, *dims[first:]), tuple(range(first, rank))
    elif mode is NormMode.ADA_LAYER_NORM:
        scale, axes = (dims[0], *[1] * (rank - 2), dims[-1]), (rank - 1,)
    else:
        scale = (1, dims[1], *[1] * (rank - 2))
        axes = (0, *range(2, rank)) if mode is NormMode.BATCH_NORM else tuple(range(2, rank))
        if mode is NormMode.GROUP_NORM:
            groups, dims = 2, (dims[0], 4, *dims[2:])
            scale = (1, 4, *[1] * (rank - 2))
    return make_random_array(*dims, seed=seed) * 3 + 1, scale, axes, groups


def compute_expected_norm(
    mode: NormMode, x: Array, axes: tuple[int, ...], groups: int | None
) -> tuple[Array, Array, Array]:
    """Return the normalized x without scale and bias, the mean, and the inverse standard deviation."""
    centered = mode is not NormMode.RMS_NORM
    if groups is None:
        return normalize(x, axes, EPSILON, centered=centered)
    split = x.reshape(x.shape[0], groups, -1)
    normal, mean, inverse = normalize(split, (2,), EPSILON)
    sets = (x.shape[0], groups, *[1] * (x.ndim - 2))
    return normal.reshape(x.shape), mean.reshape(sets), inverse.reshape(sets)


@pytest.mark.parametrize("mode", NormMode)
@pytest.mark.parametrize("seed", range(50))
def test_norms_equal_formulas_and_their_gradients_finite_differences(mode: NormMode, seed: int) -> None:
    x, scale_dims, axes, groups = make_random_norm(mode, seed)
    scale, bias, dy = (
        make_random_array(*scale_dims, seed=1),
        make_random_array(*scale_dims, seed=2),
        make_random_array(*x.shape, seed=3),
    )
    g = GraphBuilder("norm", io_type=DataType.DOUBLE)
    inputs: dict[str | int, Array] = {"x": x, "scale": scale, "dy": dy}
    if mode is not NormMode.RMS_NORM:
        inputs["bias"] = bias
    tensors = {str(name): g.tensor(str(name), value.shape) for name, value in inputs.items()}
    shift = tensors.get("bias")
    more: dict[str, Any] = {} if groups is None else {"groups": groups}
    made = g.norm_forward(
        mode, tensors["x"], tensors["scale"], shift, epsilon=EPSILON, training=True, **more, name="y", virtual=False
    )
    assert made.inv_variance is not None
    back = g.norm_backward(
        mode,
        *(tensors[name] for name in ("dy", "x", "scale")),
        mean=made.mean,
        inv_variance=made.inv_variance,
        name="dx",
        virtual=False,
    )
    got = interpret(g.graph(), inputs)
    normal, mean, inverse = compute_expected_norm(mode, x, axes, groups)
    wanted = {"y": normal * scale + (0 if shift is None else bias), "y.inv_variance": inverse}
    if made.mean is not None:
        wanted["y.mean"] = mean
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-10, atol=1e-10)
    slope = compute_numeric_gradient(lambda z: compute_expected_norm(mode, z, axes, groups)[0] * scale, x, dy)
    np.testing.assert_allclose(got["dx"], slope, rtol=1e-5, atol=1e-6)
    summed = tuple(axis for axis, dim in enumerate(scale_dims) if dim == 1)
    np.testing.assert_allclose(
        got[back.dscale.name], (dy * normal).sum(axis=summed, keepdims=True), rtol=1e-9, atol=1e-9
    )
    assert (back.dbias is None) == (mode is NormMode.RMS_NORM)
    if back.dbias is not None:
        np.testing.assert_allclose(got[back.dbias.name], dy.sum(axis=summed, keepdims=True), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_inference_reads_statistics_and_instance_norm_computes_them(training: bool) -> None:
    x = make_random_array(2, 3, 4, 5)
    g = GraphBuilder("norm", io_type=DataType.DOUBLE)
    source, scale = g.tensor("x", x.shape), g.tensor("scale", (1, 3, 1, 1))
    given = {name: g.tensor(name, (1, 3, 1, 1)) for name in ("mean", "inv_variance")}
    g.norm_forward(NormMode.BATCH_NORM, source, scale, training=training, **given, name="y", virtual=False)
    inputs = {"x": x, "scale": np.ones((1, 3, 1, 1)), "mean": np.full((1, 3, 1, 1), 0.5)}
    inputs["inv_variance"] = np.full((1, 3, 1, 1), 4.0)
    got = interpret(g.graph(), inputs)
    assert set(got) == ({"y", "mean", "inv_variance"} if training else {"y"})
    want = normalize(x, (0, 2, 3), 1e-5)[0] if training else (x - 0.5) * 4
    np.testing.assert_allclose(got["y"], want, rtol=1e-6)
    alone = GraphBuilder("alone", io_type=DataType.DOUBLE)
    alone.norm_forward(
        NormMode.INSTANCE_NORM, alone.tensor("x", x.shape), alone.tensor("scale", (1, 3, 1, 1)), name="y", virtual=False
    )
    out = interpret(alone.graph(), {"x": x, "scale": np.ones((1, 3, 1, 1))})["y"]
    np.testing.assert_allclose(out, normalize(x, (2, 3), 1e-5)[0], rtol=1e-6)


def test_running_statistics_are_updated_by_the_momentum() -> None:
    x = make_random_array(4, 3, 5)
    g = GraphBuilder("norm", io_type=DataType.DOUBLE)
    one = (1, 3, 1)
    scale, mean, var = (g.tensor(name, one) for name in ("scale", "running_mean", "running_var"))
    made = g.norm_forward(
        NormMode.BATCH_NORM,
        g.tensor("x", x.shape),
        scale,
        training=True,
        running_mean=mean,
        running_var=var,
        momentum=0.25,
    )
    assert made.next_running_var is not None
    got = interpret(
        g.graph(), {"x": x, "scale": np.ones(one), "running_mean": np.full(one, 8.0), "running_var": np.ones(one)}
    )
    np.testing.assert_allclose(got["norm.next_mean"], 6 + 0.25 * x.mean(axis=(0, 2), keepdims=True))
    np.testing.assert_allclose(got["norm.next_var"], 0.75 + 0.25 * x.var(axis=(0, 2), keepdims=True, ddof=1))


@pytest.mark.parametrize("mode", [NormMode.LAYER_NORM, NormMode.RMS_NORM])
def test_a_norm_without_a_scale_equals_a_norm_with_scale_1(mode: NormMode) -> None:
    x, dy = make_random_array(3, 1, 5) + 1, make_random_array(3, 1, 5, seed=1)
    normal, _, inverse = normalize(x, (2,), EPSILON, centered=mode is NormMode.LAYER_NORM)
    g = GraphBuilder("norm", io_type=DataType.DOUBLE)
    source, gradient = g.tensor("x", x.shape), g.tensor("dy", x.shape)
    epsilon = g.scalar(EPSILON, name="epsilon", rank=3)
    kept = {"inv_variance": g.tensor("inv", (3, 1, 1), DataType.FLOAT)}
    if mode is NormMode.LAYER_NORM:
        kept["mean"] = g.tensor("mean", (3, 1, 1), DataType.FLOAT)
    y, dx = g.tensor("y", x.shape), g.tensor("dx", x.shape)
    g.operation(
        DescriptorType.OPERATION_NORM_FORWARD,
        "y",
        mode=mode,
        phase=NormFwdPhase.TRAINING,
        x=source,
        y=y,
        epsilon=epsilon,
        **kept,
    )
    g.operation(DescriptorType.OPERATION_NORM_BACKWARD, "dx", mode=mode, x=source, dy=gradient, dx=dx, **kept)
    got = interpret(g.graph(), {"x": x, "dy": dy})
    np.testing.assert_allclose(got["y"], normal, rtol=1e-6)
    slope = dy - normal * (dy * normal).mean(2, keepdims=True)
    slope -= dy.mean(2, keepdims=True) if mode is NormMode.LAYER_NORM else 0
    np.testing.assert_allclose(got["dx"], inverse * slope, rtol=1e-5)


def test_norm_backward_computes_missing_statistics() -> None:
    x, dy = make_random_array(3, 4, 5), make_random_array(3, 4, 5, seed=1)
    g = GraphBuilder("norm", io_type=DataType.DOUBLE)
    source, gradient, scale = g.tensor("x", x.shape), g.tensor("dy", x.shape), g.tensor("scale", (1, 4, 1))
    g.norm_backward(NormMode.BATCH_NORM, gradient, source, scale, epsilon=0.5, name="dx", virtual=False)
    factors = make_random_array(1, 4, 1, seed=2)
    got = interpret(g.graph(), {"x": x, "dy": dy, "scale": factors})
    for name, value in zip(
        ("dx", "dx.dscale", "dx.dbias"), compute_batch_norm_gradients(x, dy, factors, 0.5), strict=True
    ):
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-12)


def test_gen_stats_and_finalize_equal_a_batch_norm() -> None:
    x, dy = make_random_array(3, 4, 5, 6) + 2, make_random_array(3, 4, 5, 6, seed=1)
    one = (1, 4, 1, 1)
    weights = {name: make_random_array(*one, seed=seed) for seed, name in enumerate(("scale", "bias", "rm"))} | {
        "rv": np.ones(one)
    }
    g = GraphBuilder("parts", io_type=DataType.DOUBLE)
    source, gradient = g.tensor("x", x.shape), g.tensor("dy", x.shape)
    scale, bias, mean, var = (g.tensor(name, one) for name in weights)
    sums = g.gen_stats(source)
    made = g.batch_norm_finalize(
        *sums, scale, bias, accum_count=90, epsilon=EPSILON, momentum=0.5, running_mean=mean, running_var=var, name="bn"
    )
    g.batch_norm_backward_weights(gradient, source, made.saved_mean, made.saved_inv_std, scale, name="w")
    got = interpret(g.graph(), {"x": x, "dy": dy, **weights})
    normal, average, inverse = normalize(x, (0, 2, 3), EPSILON)
    np.testing.assert_allclose(got["stats.sqsum"], (x * x).sum(axis=(0, 2, 3), keepdims=True))
    np.testing.assert_allclose(got["bn.eq_scale"] * x + got["bn.eq_bias"], normal * weights["scale"] + weights["bias"])
    np.testing.assert_allclose(got["bn.saved_mean"], average)
    np.testing.assert_allclose(got["bn.saved_inv_std"], inverse)
    unbiased = x.var(axis=(0, 2, 3), keepdims=True, ddof=1)
    np.testing.assert_allclose(got["bn.updated_running_var"], 0.5 + 0.5 * unbiased)
    np.testing.assert_allclose(got["bn.updated_running_mean"], 0.5 * weights["rm"] + 0.5 * average)
    dx, dscale, dbias = compute_batch_norm_gradients(x, dy, weights["scale"], EPSILON)
    np.testing.assert_allclose(got["w.dbn_scale"], dscale)
    np.testing.assert_allclose(got["w.dbn_bias"], dbias)
    whole = got["w.eq_dy_scale"] * dy + got["w.eq_x_scale"] * x + got["w.eq_bias"]
    np.testing.assert_allclose(whole, dx, rtol=1e-8, atol=1e-12)


def test_finalize_for_inference_uses_the_running_statistics() -> None:
    g = GraphBuilder("infer", io_type=DataType.DOUBLE)
    one = (1, 2, 1, 1)
    names = ("sum", "sqsum", "scale", "bias", "mean", "var")
    total, squares, scale, bias, mean, var = (g.tensor(name, one) for name in names)
    g.batch_norm_finalize(
        total,
        squares,
        scale,
        bias,
        accum_count=7,
        epsilon=1.0,
        running_mean=mean,
        running_var=var,
        training=False,
        name="bn",
    )
    values = {name: np.full(one, number) for name, number in zip(names, (9.0, 99.0, 3.0, 5.0, 2.0, 8.0), strict=True)}
    got = interpret(g.graph(), values)
    assert [got[f"bn.{name}"][0, 0, 0, 0] for name in ("eq_scale", "eq_bias", "updated_running_var")] == [1, 3, 8]


def test_norms_of_constant_and_nonfinite_rows_have_the_expected_results() -> None:
    g = GraphBuilder("edges", io_type=DataType.DOUBLE)
    x = np.array([[2.0, 2, 2], [1, np.nan, 3], [1, np.inf, 3], [0, 0, 0]])
    g.norm_forward(
        NormMode.LAYER_NORM, g.tensor("x", x.shape), g.tensor("scale", (1, 3)), training=True, name="y", virtual=False
    )
    got = interpret(g.graph(), {"x": x, "scale": np.ones((1, 3))})
    np.testing.assert_array_equal(got["y"], [[0] * 3, [np.nan] * 3, [np.nan] * 3, [0] * 3])
    np.testing.assert_allclose(got["y.inv_variance"][[0, 3]], 1e-5**-0.5)
    peers = GraphBuilder("peers", io_type=DataType.DOUBLE)
    source, scale = peers.tensor("x", (2, 3, 4)), peers.tensor("scale", (1, 3, 1))
    peers.norm_forward(NormMode.BATCH_NORM, source, scale, training=True, peer_stats=[peers.tensor("p", (2, 12, 1))])
    inputs = {"x": make_random_array(2, 3, 4), "scale": np.ones((1, 3, 1)), "p": np.ones((2, 12, 1))}
    assert_graph_error("interpret-operation", "several GPUs", lambda: interpret(peers.graph(), inputs))


def test_norm_statistics_are_rounded_before_normalization() -> None:
    g = GraphBuilder("rounding", io_type=DataType.DOUBLE)
    g.norm_forward(
        NormMode.LAYER_NORM, g.tensor("x", (1, 3)), g.tensor("scale", (1, 3)), training=True, name="y", virtual=False
    )
    x = np.array([[0.1, 0.2, 0.4]])
    got = interpret(g.graph(), {"x": x, "scale": np.ones((1, 3))}, rounding=True)
    mean = np.float64(np.float32(x.mean()))
    inverse = np.float64(np.float32(1 / np.sqrt(((x - mean) ** 2).mean() + np.float64(np.float32(1e-5)))))
    np.testing.assert_array_equal(got["y"], (x - mean) * inverse)
