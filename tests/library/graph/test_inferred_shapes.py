"""cuDNN finalizes random shapes that the graph builder infers, and refuses shapes that the builder refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import (
    CudnnStatusError,
    DataType,
    Graph,
    GraphBuilder,
    NotSupported,
    OperationGraph,
    open_target,
)
from cudnn_backend_py.generated.enums import MoeGroupedMatmulMode, NormMode, PaddingMode, ResampleMode
from cudnn_backend_py.graph import Operation, Tensor

N, R, T = NormMode, ResampleMode, DataType
OUT: dict[str, Any] = {"virtual": False}
Draw = np.random.Generator


def make_random_ints(r: Draw, low: int, high: int, count: int) -> tuple[int, ...]:
    return tuple(map(int, r.integers(low, high, count)))


def choose_packed_or_channels_last_strides(r: Draw) -> Any:
    return {"strides": ("packed", "channels_last")[int(r.integers(2))]}


def add_convolution(g: GraphBuilder, r: Draw) -> None:
    spatial, groups = int(r.integers(1, 4)), int(r.integers(1, 4))
    taps, dilation = make_random_ints(r, 1, 4, spatial), make_random_ints(r, 1, 3, spatial)
    window: dict[str, Any] = {
        "padding": make_random_ints(r, 0, 3, spatial),
        "post_padding": make_random_ints(r, 0, 3, spatial),
        "stride": make_random_ints(r, 1, 4, spatial),
        "dilation": dilation,
    }
    sizes = [
        (tap - 1) * step + 1 + int(more)
        for tap, step, more in zip(taps, dilation, r.integers(0, 9, spatial), strict=True)
    ]
    per_group, filters = 8 * int(r.integers(1, 3)), 8 * int(r.integers(1, 3))
    form = choose_packed_or_channels_last_strides(r)
    x = g.tensor("x", (2, groups * per_group, *sizes), **form)
    w = g.tensor("w", (groups * filters, per_group, *taps), **form)
    kind = int(r.integers(3))
    if kind == 0:
        g.convolution(x, w, **window, **OUT)
        return
    dy = g.tensor("dy", GraphBuilder("other").convolution(x, w, **window).dims, **form)
    if kind == 1:
        g.convolution_backward_data(dy, w, groups=groups, **window, dims=x.dims, **OUT)
    else:
        g.convolution_backward_filter(x, dy, taps, groups=groups, **window, **OUT)


def add_pooling(g: GraphBuilder, r: Draw) -> None:
    spatial = int(r.integers(2, 4))
    window, stride = make_random_ints(r, 1, 5, spatial), make_random_ints(r, 1, 4, spatial)
    before, after = (tuple(int(r.integers(0, side)) for side in window) for _ in range(2))
    sizes = tuple(side + int(more) for side, more in zip(window, r.integers(0, 9, spatial), strict=True))
    x = g.tensor("x", (2, 16, *sizes), **choose_packed_or_channels_last_strides(r))
    mode = (R.MAXPOOL, R.AVGPOOL_INCLUDE_PADDING, R.AVGPOOL_EXCLUDE_PADDING)[int(r.integers(3))]
    options: dict[str, Any] = {"stride": stride, "padding": before, "post_padding": after}
    if r.integers(2):
        g.resample(mode, x, window, **options, idx=mode is R.MAXPOOL, **OUT)
        return
    dims = GraphBuilder("other").resample(mode, x, window, **options).y.dims
    dy = g.tensor("dy", dims)
    if mode is R.MAXPOOL:
        options |= {"idx": g.tensor("idx", dims, T.INT8), "dims": x.dims}
    g.resample_backward(mode, dy, window, **{"dims": x.dims, **options}, **OUT)


def add_norm(g: GraphBuilder, r: Draw) -> None:
    rank = int(r.integers(3, 6))
    dims = make_random_ints(r, 2, 9, rank)
    mode = (N.LAYER_NORM, N.RMS_NORM, N.INSTANCE_NORM, N.BATCH_NORM, N.ADA_LAYER_NORM)[int(r.integers(5))]
    first = int(r.integers(1, rank))
    scale_dims: tuple[int, ...] = (1, dims[1], *[1] * (rank - 2))
    if mode in (N.LAYER_NORM, N.RMS_NORM):
        scale_dims = (*[1] * first, *dims[first:])
    elif mode is N.ADA_LAYER_NORM:
        scale_dims = (dims[0], *[1] * (rank - 2), dims[-1])
    form = choose_packed_or_channels_last_strides(r)
    x, scale, bias = g.tensor("x", dims, **form), g.tensor("s", scale_dims, T.FLOAT), g.tensor("b", scale_dims, T.FLOAT)
    made = g.norm_forward(mode, x, scale, None if mode is N.RMS_NORM else bias, training=True, **OUT)
    if r.integers(2):
        g.ops.clear()
        dy = g.tensor("dy", dims, **form)
        g.norm_backward(mode, dy, x, scale, mean=made.mean, inv_variance=made.inv_variance, **OUT)


def add_norm_statistics_operation(g: GraphBuilder, r: Draw) -> None:
    dims = make_random_ints(r, 2, 9, int(r.integers(3, 6)))
    one = (1, dims[1], *[1] * (len(dims) - 2))
    x, dy = (g.tensor(name, dims) for name in ("x", "dy"))
    weights = [g.tensor(name, one, T.FLOAT) for name in "abcdef"]
    kind = int(r.integers(3))
    if kind == 0:
        g.gen_stats(x)
    elif kind == 1:
        g.batch_norm_finalize(*weights[:4], accum_count=9, running_mean=weights[4], running_var=weights[5])
    else:
        g.batch_norm_backward_weights(dy, x, *weights[:3])


def add_data_movement_operation(g: GraphBuilder, r: Draw) -> None:
    dims = make_random_ints(r, 2, 9, int(r.integers(2, 6)))
    x = g.tensor("x", dims, **choose_packed_or_channels_last_strides(r))
    kind = int(r.integers(4))
    if kind == 0:
        g.transpose(x, tuple(map(int, r.permutation(len(dims)))), **OUT)
    elif kind == 1:
        starts = [int(r.integers(0, size)) for size in dims]
        g.slice(x, [slice(start, None, int(r.integers(1, 3))) for start in starts], **OUT)
    elif kind == 2:
        axis = int(r.integers(len(dims)))
        other = list(dims)
        other[axis] = int(r.integers(1, 9))
        g.concatenate([x, g.tensor("y", tuple(other))], axis, **OUT)
    else:
        g.reshape(x, (dims[0], int(np.prod(dims[1:]))), **OUT)


def add_quantize_moe_rope_band_or_softmax(g: GraphBuilder, r: Draw) -> None:
    kind = int(r.integers(5))
    if kind == 0:
        batch = make_random_ints(r, 1, 4, int(r.integers(0, 3)))
        x = g.tensor("x", (*batch, 8 * int(r.integers(1, 40)), 32 * int(r.integers(1, 5))), T.FLOAT)
        g.block_scale_quantize(x, (16, 32)[int(r.integers(2))], **OUT)
    elif kind == 1:
        experts, rows, k, n = make_random_ints(r, 2, 40, 4)  # cuDNN refuses one expert
        mode = MoeGroupedMatmulMode(int(r.integers(2)))
        index = {"token_index": g.tensor("i", (1, 2 * rows, 1), T.INT32)} if mode else {}
        token, weight = g.tensor("t", (1, rows, k)), g.tensor("w", (experts, k, n), strides=(k * n, 1, k))
        g.moe_grouped_matmul(token, weight, g.tensor("o", (experts, 1, 1), T.INT32), mode=mode, **index, **OUT)
    elif kind == 2:
        b, h, s, pages = make_random_ints(r, 1, 9, 4)
        d, width = 16, 2 * int(r.integers(1, 9))
        x = g.tensor("x", (b, h, s, d))
        g.rope_forward(x, g.tensor("f", (s + pages, 1, 1, width), T.FLOAT), rope_dim=width, **OUT)
    elif kind == 3:
        rows, lower, upper = make_random_ints(r, 2, 9, 3)
        x = g.tensor("x", (2, 2, rows, lower + upper + 1))
        whole = g.expand_band_matrix(x, rows, lower_bandwidth=lower, upper_bandwidth=upper, **OUT)
        assert whole.dims == (2, 2, rows, rows)
    else:
        g.softmax(g.tensor("x", make_random_ints(r, 1, 9, 4), T.FLOAT), stats=True, max=True, sum_exp=True, **OUT)


FAMILIES: dict[str, Callable[[GraphBuilder, Draw], None]] = {
    make.__name__: make
    for make in (
        add_convolution,
        add_pooling,
        add_norm,
        add_norm_statistics_operation,
        add_data_movement_operation,
        add_quantize_moe_rope_band_or_softmax,
    )
}


@pytest.mark.parametrize("family", FAMILIES)
def test_cudnn_finalizes_shapes_inferred_by_the_builder(family: str) -> None:
    target, accepted = open_target("b200"), 0
    for seed in range(60):
        g = GraphBuilder(f"{family} {seed}")
        FAMILIES[family](g, np.random.default_rng(seed))
        try:
            OperationGraph(g.graph(), target)
            accepted += 1
        except NotSupported:
            continue
        except CudnnStatusError as error:
            pytest.fail(f"seed {seed}: {error}\n{g.graph()}")
    assert accepted >= 40


def enlarge_tensor(graph: Graph, port: str, axis: int) -> Graph:
    """Return the graph with one tensor made one element larger along an axis, which the builder would refuse."""
    (op,) = graph.ops
    assert isinstance(op, Operation)
    old = op.fields[port]
    assert isinstance(old, Tensor)
    dims = tuple(size + (place == axis % old.rank) for place, size in enumerate(old.dims))
    new = replace(old, dims=dims, strides=GraphBuilder().tensor("t", dims).strides)
    return Graph((Operation(op.kind, op.name, {**op.fields, port: new}),))


@pytest.mark.parametrize(
    ("make", "port"),
    [
        (lambda g: g.convolution(g.tensor("x", (2, 8, 9, 9)), g.tensor("w", (8, 8, 3, 3)), **OUT), "y"),
        (
            lambda g: g.resample(R.MAXPOOL, g.tensor("x", (2, 8, 9, 9)), 3, padding_mode=PaddingMode.ZERO_PAD, **OUT),
            "y",
        ),
        (lambda g: g.resample(R.MAXPOOL, g.tensor("x", (2, 8, 9, 9)), 3, idx=True, **OUT), "idx"),
        (lambda g: g.transpose(g.tensor("x", (2, 3, 4)), (2, 0, 1), **OUT), "y"),
        (lambda g: g.slice(g.tensor("x", (2, 3, 4)), [slice(None)] * 2 + [slice(2)], **OUT), "y"),
        (lambda g: g.softmax(g.tensor("x", (2, 3, 4, 5), T.FLOAT), **OUT), "y"),
    ],
)
def test_cudnn_refuses_shapes_that_the_builder_refuses(make: Callable[[GraphBuilder], object], port: str) -> None:
    g = GraphBuilder()
    make(g)
    target = open_target("b200")
    OperationGraph(g.graph(), target)
    with pytest.raises(CudnnStatusError, match="BAD_PARAM"):
        OperationGraph(enlarge_tensor(g.graph(), port, -1), target)
