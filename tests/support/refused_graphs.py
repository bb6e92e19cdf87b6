"""Graphs that cuDNN refuses for one reason each, with sizes, types and operations as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.diagnose import Judge, Query, Verdict
from cudnn_backend_py.generated import enums
from cudnn_backend_py.graph import Operation, Parameters
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.graph.strides import channels_last
from tests.support.graphs import CONVOLUTION_FIELDS

__all__ = [
    "judge_and_check_refusal",
    "make_block_scaled_matmul",
    "make_convolution_graph",
    "make_matmul_with_pointwise",
    "make_max_pool",
    "make_norm_backward",
    "make_relu",
    "make_transpose_and_sum",
    "make_weight_gradient_with_fused_input",
    "replace_tensor_fields",
]

D, P, T = DescriptorType, PointwiseMode, DataType


def _add_image_tensor(
    g: GraphBuilder, name: str, dims: Sequence[int], kind: DataType | None = None, **more: Any
) -> Any:
    return g.tensor(name, tuple(dims), kind, strides=channels_last(tuple(dims)), **more)


def _make_convolution_parameters(pad: int = 1, compute: DataType = T.FLOAT) -> Parameters:
    paddings = dict.fromkeys(("pre_paddings", "post_paddings"), (pad, pad))
    return Parameters(D.CONVOLUTION, {**CONVOLUTION_FIELDS, **paddings, "comp_type": compute})


def make_convolution_graph(
    kind: DataType, result: DataType, channels: int = 64, per_group: int = 64, filters: int = 64
) -> Graph:
    """Return one 3 x 3 convolution, grouped if the filter has fewer channels."""
    g = GraphBuilder("convolved", io_type=kind)
    ports = {
        "x": _add_image_tensor(g, "x", (2, channels, 16, 16)),
        "w": _add_image_tensor(g, "w", (filters, per_group, 3, 3)),
    }
    ports["y"] = _add_image_tensor(g, "y", (2, filters, 16, 16), result)
    g.operation(
        D.OPERATION_CONVOLUTION_FORWARD, convolution=_make_convolution_parameters(), alpha=1.0, beta=0.0, **ports
    )
    return g.graph()


def make_convolution_with_statistics(kind: DataType, channels: int = 64) -> Graph:
    """Return a convolution with the sum of its result and the sum of its squares."""
    g = GraphBuilder("with_statistics", io_type=kind)
    ports = {name: _add_image_tensor(g, name, (4, channels, 16, 16)) for name in ("x", "y")}
    ports["w"] = _add_image_tensor(g, "w", (channels, channels, 3, 3))
    g.operation(
        D.OPERATION_CONVOLUTION_FORWARD, convolution=_make_convolution_parameters(), alpha=1.0, beta=0.0, **ports
    )
    sums = {name: _add_image_tensor(g, name, (1, channels, 1, 1), T.FLOAT) for name in ("sum", "sqsum")}
    g.operation(D.OPERATION_GEN_STATS, mode=enums.GenStatsMode.SUM_SQSUM, math_prec=T.FLOAT, x=ports["y"], **sums)
    return g.graph()


def make_weight_gradient_with_fused_input(kind: DataType, before: Sequence[PointwiseMode], channels: int = 64) -> Graph:
    """Return the weight gradient for an image computed by pointwise operations of the same graph."""
    g = GraphBuilder("weight_gradient", io_type=kind, intermediate_type=kind)
    dims = (4, channels, 16, 16)
    value = _add_image_tensor(g, "x", dims)
    for number, mode in enumerate(before):
        out = _add_image_tensor(g, f"v{number}", dims, virtual=True)
        one = () if mode is P.RELU_FWD else (_add_image_tensor(g, f"c{number}", (1, channels, 1, 1)),)
        value = g.pointwise(mode, value, *one, out=out)
    ports = {
        "x": value,
        "dy": _add_image_tensor(g, "dy", dims),
        "dw": _add_image_tensor(g, "dw", (channels, channels, 3, 3)),
    }
    g.operation(
        D.OPERATION_CONVOLUTION_BACKWARD_FILTER,
        convolution=_make_convolution_parameters(),
        alpha=1.0,
        beta=0.0,
        **ports,
    )
    return g.graph()


def make_matmul_with_pointwise(
    kind: DataType, after: Sequence[PointwiseMode], size: int = 128, batch: int = 4
) -> Graph:
    """Return a matmul followed by pointwise operations in float32."""
    g = GraphBuilder("product", io_type=kind)
    value = g.matmul(g.tensor("a", (batch, size, size)), g.tensor("b", (batch, size, size)), name="c")
    for number, mode in enumerate(after):
        last = {"name": "y", "virtual": False, "data_type": kind} if number == len(after) - 1 else {}
        one = (g.tensor("bias", (1, 1, size)),) if mode is P.ADD else ()
        value = g.pointwise(mode, value, *one, **last)
    return g.graph()


def make_block_scaled_matmul(m: int, n: int, k: int, block: int = 32, *, whole: bool = False) -> Graph:
    """Return a matmul of MXFP8 matrices; `whole` pads the scales to whole tiles of 128 x 4."""
    g = GraphBuilder("block_product", io_type=T.FP8_E4M3)
    scales = k // block

    def round_up_dim(dim: int, multiple: int) -> int:
        return -(-dim // multiple) * multiple if whole else dim

    wide = []
    a, b = g.tensor("a", (1, m, k)), g.tensor("b", (1, k, n), strides=(k * n, 1, k))
    ordered = {"data_type": T.FP8_E8M0, "reordering": enums.TensorReordering.F8_128x4}
    of_a = g.tensor("a_scale", (1, round_up_dim(m, 128), round_up_dim(scales, 4)), **ordered)
    dims = (1, round_up_dim(scales, 4), round_up_dim(n, 128))
    of_b = g.tensor("b_scale", dims, strides=(dims[1] * dims[2], 1, dims[1]), **ordered)
    for x, scale, size in ((a, of_a, (1, block)), (b, of_b, (block, 1))):
        y = g.tensor(f"{x.name}_wide", x.dims, T.FLOAT, strides=x.strides, virtual=True)
        g.operation(D.OPERATION_BLOCK_SCALE_DEQUANTIZE, x=x, scale=scale, y=y, math_prec=T.FLOAT, block_size=size)
        wide.append(y)
    g.matmul(*wide, name="c", virtual=False, data_type=T.BFLOAT16)
    return g.graph()


def make_norm_backward(mode: enums.NormMode, *, mean: bool) -> Graph:
    """Return the backward pass of a norm over rows, with or without the saved mean."""
    g = GraphBuilder("norm_backward", io_type=T.BFLOAT16)
    dims = (64, 1024, 1, 1)
    ports = {name: g.tensor(name, dims) for name in ("x", "dy", "dx")}
    ports |= {name: g.tensor(name, (1, *dims[1:]), T.FLOAT) for name in ("scale", "dscale")}
    rows = ("inv_variance", "mean") if mean else ("inv_variance",)
    ports |= {name: g.tensor(name, (64, 1, 1, 1), T.FLOAT) for name in rows}
    g.operation(D.OPERATION_NORM_BACKWARD, mode=mode, **ports)
    return g.graph()


def make_max_pool(size: int, result: int, window: int, stride: int, pad: int) -> Graph:
    """Return max pooling of square images."""
    g = GraphBuilder("pooled", io_type=T.HALF)
    both = {"window_dims": window, "strides": stride, "pre_paddings": pad, "post_paddings": pad}
    fields = {
        **{name: (value, value) for name, value in both.items()},
        "spatial_dims": 2,
        "mode": enums.ResampleMode.MAXPOOL,
        "comp_type": T.FLOAT,
        "nan_propagation": enums.NanPropagation.PROPAGATE_NAN,
        "padding_mode": enums.PaddingMode.NEG_INF_PAD,
    }
    ports = {
        "x": _add_image_tensor(g, "x", (2, 32, size, size)),
        "y": _add_image_tensor(g, "y", (2, 32, result, result)),
    }
    g.operation(D.OPERATION_RESAMPLE_FWD, resample=Parameters(D.RESAMPLE, fields), **ports)
    return g.graph()


def make_transpose_and_sum(dims: tuple[int, int, int], axes: tuple[int, int, int]) -> Graph:
    """Return the sum of a transposed tensor and another tensor."""
    g = GraphBuilder("turned", io_type=T.FLOAT)
    x = g.tensor("x", dims)
    y = g.tensor("turned", tuple(dims[axis] for axis in axes), virtual=True)
    turn = Operation(D.OPERATION_TRANSPOSE, "turn", {"x": x, "y": y, "permutation": axes})
    g.ops.append(turn)
    g.pointwise(P.ADD, y, g.tensor("other", y.dims), name="sum", virtual=False)
    return g.graph()


def replace_tensor_fields(graph: Graph, name: str, **fields: Any) -> Graph:
    """Return the graph with fields of one tensor replaced."""
    tensor = graph.tensor(name)
    return replace_tensors(graph, {tensor.uid: replace(tensor, **fields)})


def make_relu(dims: tuple[int, ...]) -> Graph:
    g = GraphBuilder("relu", io_type=T.FLOAT)
    g.pointwise(P.RELU_FWD, g.tensor("x", dims), name="y", virtual=False)
    return g.graph()


def judge_and_check_refusal(judge: Judge, graph: Graph, target: str, version: str | None = None) -> Verdict:
    """Return the verdict of a graph that cuDNN refuses, with its cause."""
    verdict = judge.run_query(Query(graph, target, version))
    assert not verdict.supported
    assert verdict.cause is not None
    return verdict
