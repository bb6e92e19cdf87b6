"""Graphs other than attention by family, for which full cuDNN has engines that a JIT wheel lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated import enums
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph import Parameters
from cudnn_backend_py.graph.ir import Tensor, compute_convolved_size, packed_strides
from cudnn_backend_py.graph.strides import channels_last
from tests.support.operations import OPERATION_GRAPHS
from tests.support.varied_graphs import VARIED_GRAPHS

__all__ = ["GRAPHS_OF_FULL_CUDNN"]

D, T, P, R = DescriptorType, DataType, PointwiseMode, ReduceTensorOp
HALF, BF16, FLOAT, INT8, INT32 = T.HALF, T.BFLOAT16, T.FLOAT, T.INT8, T.INT32

GRAPHS_OF_FULL_CUDNN: dict[str, Callable[[], Graph]] = {}


def _register_graph(name: str, make: Callable[..., None], io: DataType = HALF, **options: Any) -> None:
    def make_graph() -> Graph:
        g = GraphBuilder(name, io_type=io)
        make(g, **options)
        return g.graph()

    assert name not in GRAPHS_OF_FULL_CUDNN
    GRAPHS_OF_FULL_CUDNN[name] = make_graph


_CONVOLUTION_PORTS: Mapping[DescriptorType, tuple[str, str, str]] = {
    D.OPERATION_CONVOLUTION_FORWARD: ("x", "w", "y"),
    D.OPERATION_CONVOLUTION_BACKWARD_DATA: ("dx", "w", "dy"),
    D.OPERATION_CONVOLUTION_BACKWARD_FILTER: ("x", "dw", "dy"),
}


def _add_convolution(
    g: GraphBuilder,
    kind: DescriptorType = D.OPERATION_CONVOLUTION_FORWARD,
    *,
    n: int = 4,
    c: int = 32,
    k: int = 64,
    size: tuple[int, ...] = (28, 28),
    taps: tuple[int, ...] = (3, 3),
    groups: int = 1,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 1,
    nhwc: bool = True,
    compute: DataType = FLOAT,
    out: DataType | None = None,
    after: Callable[[GraphBuilder, Tensor], None] | None = None,
    before: Callable[[GraphBuilder, Tensor], Tensor] | None = None,
) -> None:
    sizes = (
        compute_convolved_size(one, tap, padding, padding, stride, dilation)
        for one, tap in zip(size, taps, strict=True)
    )
    shapes = ((n, c, *size), (k, c // groups, *taps), (n, k, *sizes))
    tensors = {}
    for port, dims in zip(_CONVOLUTION_PORTS[kind], shapes, strict=True):
        options: dict[str, Any] = {"strides": channels_last(dims) if nhwc else packed_strides(dims)}
        written = port == {"OPERATION_CONVOLUTION_FORWARD": "y"}.get(kind.name, "")
        if port == "x" and before is not None:
            x = g.tensor("raw", dims, **options)
            tensors[port] = before(g, x)
            continue
        data_type = (FLOAT if compute is FLOAT else compute) if written and after else out if written else None
        if data_type is not None:
            options["data_type"] = data_type
        tensors[port] = g.tensor(port, dims, virtual=written and after is not None, **options)
    rank = len(size)
    parameters = {
        "comp_type": compute,
        "conv_mode": enums.ConvolutionMode.CROSS_CORRELATION,
        "spatial_dims": rank,
        "dilations": (dilation,) * rank,
        "filter_strides": (stride,) * rank,
        "pre_paddings": (padding,) * rank,
        "post_paddings": (padding,) * rank,
    }
    g.operation(kind, convolution=Parameters(D.CONVOLUTION, parameters), alpha=1.0, beta=0.0, **tensors)
    if after is not None:
        after(g, tensors[_CONVOLUTION_PORTS[kind][2]])


def _make_same_stride_option(y: Tensor) -> dict[str, Any]:
    return {"strides": y.strides}


def _add_bias_relu(g: GraphBuilder, y: Tensor) -> None:
    bias = g.tensor("bias", (1, y.dims[1], *[1] * (y.rank - 2)))
    z = g.pointwise(P.ADD, y, bias, data_type=FLOAT, **_make_same_stride_option(y))
    g.pointwise(P.RELU_FWD, z, name="out", virtual=False, **_make_same_stride_option(y))


def _add_bias_sum_relu(g: GraphBuilder, y: Tensor) -> None:
    z = g.pointwise(
        P.ADD, y, g.tensor("residual", y.dims, strides=y.strides), data_type=FLOAT, **_make_same_stride_option(y)
    )
    _add_bias_relu(g, z)


def _add_scaling_and_int8_conversion(g: GraphBuilder, y: Tensor) -> None:
    z = g.pointwise(
        P.MUL, y, g.scalar(0.1, rank=y.rank), compute_type=FLOAT, data_type=FLOAT, **_make_same_stride_option(y)
    )
    g.pointwise(
        P.IDENTITY, z, compute_type=FLOAT, name="out", virtual=False, data_type=INT8, **_make_same_stride_option(y)
    )


def _add_convolution_statistics(g: GraphBuilder, y: Tensor) -> None:
    half = g.pointwise(P.IDENTITY, y, name="out", virtual=False, **_make_same_stride_option(y))
    channel = (1, y.dims[1], 1, 1)
    sums = {name: g.tensor(name, channel, FLOAT, strides=channels_last(channel)) for name in ("sum", "sqsum")}
    g.operation(D.OPERATION_GEN_STATS, x=half, mode=enums.GenStatsMode.SUM_SQSUM, math_prec=FLOAT, **sums)


def _add_scale_bias_relu(g: GraphBuilder, x: Tensor) -> Tensor:
    channel = (1, x.dims[1], 1, 1)
    strides = channels_last(channel)
    z = g.pointwise(
        P.MUL, x, g.tensor("scale", channel, strides=strides), data_type=FLOAT, **_make_same_stride_option(x)
    )
    z = g.pointwise(
        P.ADD, z, g.tensor("shift", channel, strides=strides), data_type=FLOAT, **_make_same_stride_option(x)
    )
    return g.pointwise(P.RELU_FWD, z, data_type=HALF, **_make_same_stride_option(x))


_FWD, _DGRAD, _WGRAD = _CONVOLUTION_PORTS
for _kind, _name in ((_FWD, "conv"), (_DGRAD, "dgrad"), (_WGRAD, "wgrad")):
    _register_graph(f"{_name} nhwc f16", _add_convolution, kind=_kind)
    _register_graph(f"{_name} nhwc bf16", _add_convolution, BF16, kind=_kind)
    _register_graph(f"{_name} nhwc f32", _add_convolution, FLOAT, kind=_kind)
    _register_graph(f"{_name} nchw f16", _add_convolution, kind=_kind, nhwc=False)
    _register_graph(f"{_name} nchw f32", _add_convolution, FLOAT, kind=_kind, nhwc=False)
    _register_graph(
        f"{_name} nchw f32 3 channels",
        _add_convolution,
        FLOAT,
        kind=_kind,
        nhwc=False,
        c=3,
        size=(224, 224),
        taps=(7, 7),
        stride=2,
        padding=3,
    )
    _register_graph(f"{_name} nhwc f16 3 channels", _add_convolution, kind=_kind, c=3, size=(56, 56))
    _register_graph(f"{_name} nhwc f16 odd channels", _add_convolution, kind=_kind, c=30, k=50)
    _register_graph(f"{_name} nhwc f16 1x1", _add_convolution, kind=_kind, taps=(1, 1), padding=0)
    _register_graph(f"{_name} nhwc f16 stride 2", _add_convolution, kind=_kind, stride=2)
    _register_graph(f"{_name} nhwc f16 dilated", _add_convolution, kind=_kind, dilation=2, padding=2)
    _register_graph(f"{_name} nhwc f16 grouped", _add_convolution, kind=_kind, groups=4)
    _register_graph(f"{_name} nhwc f16 depthwise", _add_convolution, kind=_kind, c=64, groups=64)
    _register_graph(f"{_name} nchw f32 depthwise", _add_convolution, FLOAT, kind=_kind, c=64, groups=64, nhwc=False)
    _register_graph(f"{_name} 3d f16", _add_convolution, kind=_kind, size=(8, 14, 14), taps=(3, 3, 3))
    _register_graph(f"{_name} f64", _add_convolution, T.DOUBLE, kind=_kind, compute=T.DOUBLE, nhwc=False)
_register_graph("conv f16 bias relu", _add_convolution, after=_add_bias_relu)
_register_graph("conv f32 nchw bias relu", _add_convolution, FLOAT, after=_add_bias_relu, nhwc=False)
_register_graph("conv f16 bias residual relu", _add_convolution, after=_add_bias_sum_relu)
_register_graph("conv int8", _add_convolution, INT8, compute=INT32, out=INT32)
_register_graph("conv int8 float out", _add_convolution, INT8, compute=INT32, out=FLOAT)
_register_graph("conv int8 scaled", _add_convolution, INT8, compute=INT32, after=_add_scaling_and_int8_conversion)
_register_graph("conv fp8", _add_convolution, T.FP8_E4M3, out=FLOAT)
_register_graph("conv f16 stats", _add_convolution, after=_add_convolution_statistics)
_register_graph("conv f16 scale bias relu before", _add_convolution, before=_add_scale_bias_relu)
_register_graph(
    "conv f16 scale bias relu before, stats",
    _add_convolution,
    before=_add_scale_bias_relu,
    after=_add_convolution_statistics,
)
_register_graph("wgrad f16 scale bias relu before", _add_convolution, kind=_WGRAD, before=_add_scale_bias_relu)


def _add_batch_norm(
    g: GraphBuilder, backward: bool = False, training: bool = True, mode: Any = None, nhwc: bool = True
) -> None:
    mode = mode or enums.NormMode.BATCH_NORM
    dims, channel = (8, 64, 28, 28), (1, 64, 1, 1)
    order: Callable[[tuple[int, ...]], tuple[int, ...]] = channels_last if nhwc else packed_strides
    per = (8, 64, 1, 1) if mode is enums.NormMode.INSTANCE_NORM else channel

    def make_tensors(names: str, dims: tuple[int, ...], kind: DataType | None = None, **options: Any) -> dict[str, Any]:
        return {name: g.tensor(name, dims, kind, strides=order(dims), **options) for name in names.split()}

    if backward:
        fields = (
            make_tensors("x dy dx", dims)
            | make_tensors("scale dscale dbias", channel, FLOAT)
            | make_tensors("mean inv_variance", per, FLOAT)
        )
        g.operation(D.OPERATION_NORM_BACKWARD, mode=mode, **fields)
        return
    fields = make_tensors("x y", dims) | make_tensors("scale bias", channel, FLOAT) | {"epsilon": g.scalar(1e-5)}
    if training or mode is enums.NormMode.BATCH_NORM:
        fields |= make_tensors("mean inv_variance", per, FLOAT)
    if training and mode is enums.NormMode.BATCH_NORM:
        names = "input_running_mean input_running_var output_running_mean output_running_var"
        fields |= make_tensors(names, channel, FLOAT) | {"exp_avg_factor": g.scalar(0.1, name="momentum")}
    phase = enums.NormFwdPhase.TRAINING if training else enums.NormFwdPhase.INFERENCE
    if not training and mode is enums.NormMode.BATCH_NORM:
        del fields["epsilon"]
    g.operation(D.OPERATION_NORM_FORWARD, mode=mode, phase=phase, **fields)


def _add_row_norm(
    g: GraphBuilder, rms: bool, backward: bool = False, training: bool = True, rows: int = 4096, n: int = 1024
) -> None:
    row, column = (1, n, 1, 1), (rows, 1, 1, 1)
    mode = enums.NormMode.RMS_NORM if rms else enums.NormMode.LAYER_NORM
    scale = {"scale": g.tensor("scale", row, FLOAT)}
    if backward:
        x, dy, dx = (g.tensor(name, (rows, n, 1, 1)) for name in ("x", "dy", "dx"))
        more = {"dscale": g.tensor("dscale", row, FLOAT)}
        if not rms:
            more |= {"dbias": g.tensor("dbias", row, FLOAT), "mean": g.tensor("mean", column, FLOAT)}
        more |= {"inv_variance": g.tensor("inv_variance", column, FLOAT)}
        g.operation(D.OPERATION_NORM_BACKWARD, mode=mode, x=x, dy=dy, dx=dx, **scale, **more)
        return
    x, y = (g.tensor(name, (rows, n, 1, 1)) for name in ("x", "y"))
    more = {} if rms else {"bias": g.tensor("bias", row, FLOAT)}
    if training:
        more |= {} if rms else {"mean": g.tensor("mean", column, FLOAT)}
        more |= {"inv_variance": g.tensor("inv_variance", column, FLOAT)}
    phase = enums.NormFwdPhase.TRAINING if training else enums.NormFwdPhase.INFERENCE
    g.operation(D.OPERATION_NORM_FORWARD, mode=mode, phase=phase, x=x, y=y, epsilon=g.scalar(1e-5), **scale, **more)


def _add_norm_relu(g: GraphBuilder, batch: bool, residual: bool = False) -> None:
    dims, per = ((8, 64, 28, 28), (1, 64, 1, 1)) if batch else ((512, 256, 1, 1), (1, 256, 1, 1))
    mean = per if batch else (512, 1, 1, 1)
    x = g.tensor("x", dims, strides=channels_last(dims))
    y = g.tensor("y", dims, virtual=True, strides=channels_last(dims))
    fields: dict[str, Any] = {
        name: g.tensor(name, per, FLOAT, strides=channels_last(per)) for name in ("scale", "bias")
    }
    fields |= {name: g.tensor(name, mean, FLOAT, strides=channels_last(mean)) for name in ("mean", "inv_variance")}
    mode = enums.NormMode.BATCH_NORM if batch else enums.NormMode.LAYER_NORM
    phase = enums.NormFwdPhase.TRAINING
    g.operation(D.OPERATION_NORM_FORWARD, mode=mode, phase=phase, x=x, y=y, epsilon=g.scalar(1e-5), **fields)
    z = y
    if residual:
        z = g.pointwise(
            P.ADD, y, g.tensor("residual", dims, strides=channels_last(dims)), **_make_same_stride_option(y)
        )
    g.pointwise(P.RELU_FWD, z, name="out", virtual=False, **_make_same_stride_option(y))


_register_graph("batch norm relu", _add_norm_relu, batch=True)
_register_graph("batch norm residual relu", _add_norm_relu, batch=True, residual=True)
_register_graph("layer norm relu", _add_norm_relu, batch=False)
_register_graph("batch norm training", _add_batch_norm)
_register_graph("batch norm training nchw", _add_batch_norm, nhwc=False)
_register_graph("batch norm inference", _add_batch_norm, training=False)
_register_graph("batch norm backward", _add_batch_norm, backward=True)
_register_graph("batch norm backward nchw", _add_batch_norm, backward=True, nhwc=False)
_register_graph("instance norm training", _add_batch_norm, mode=enums.NormMode.INSTANCE_NORM)
_register_graph("instance norm backward", _add_batch_norm, backward=True, mode=enums.NormMode.INSTANCE_NORM)
for _rms, _name in ((False, "layer norm"), (True, "rms norm")):
    _register_graph(f"{_name} f16 training", _add_row_norm, rms=_rms)
    _register_graph(f"{_name} bf16 training", _add_row_norm, BF16, rms=_rms)
    _register_graph(f"{_name} f32 training", _add_row_norm, FLOAT, rms=_rms)
    _register_graph(f"{_name} f16 inference", _add_row_norm, rms=_rms, training=False)
    _register_graph(f"{_name} f16 backward", _add_row_norm, rms=_rms, backward=True)
    _register_graph(f"{_name} bf16 odd", _add_row_norm, BF16, rms=_rms, n=1001)


def _add_batch_norm_weight_gradients(g: GraphBuilder) -> None:
    dims, channel = (4, 32, 28, 28), (1, 32, 1, 1)
    images = {name: g.tensor(name, dims, strides=channels_last(dims)) for name in ("x", "dy")}
    names = "mean invstd bn_scale dbn_scale dbn_bias eq_dy_scale eq_x_scale eq_bias"
    per = {name: g.tensor(name, channel, FLOAT, strides=channels_last(channel)) for name in names.split()}
    g.operation(D.OPERATION_BN_BWD_WEIGHTS, math_prec=FLOAT, **images, **per)


_register_graph("batch norm backward weights, channels last", _add_batch_norm_weight_gradients)


def _add_matmul(
    g: GraphBuilder,
    m: int = 128,
    n: int = 128,
    k: int = 64,
    batch: int = 2,
    *,
    order: str = "nn",
    compute: DataType | None = None,
    out: DataType | None = None,
    after: Callable[[GraphBuilder, Tensor], None] | None = None,
    alignment: int | None = None,
) -> None:
    more = {} if alignment is None else {"alignment": alignment}
    a = g.tensor("a", (batch, m, k), strides=(m * k, k, 1) if order[0] == "n" else (m * k, 1, m), **more)
    b = g.tensor("b", (batch, k, n), strides=(n * k, n, 1) if order[1] == "n" else (n * k, 1, k), **more)
    result: dict[str, Any] = {} if after else {"name": "c", "virtual": False, **({"data_type": out} if out else {})}
    c = g.matmul(a, b, **result, **({"compute_type": compute} if compute else {}))
    if after:
        after(g, c)


def _add_bias_gelu(g: GraphBuilder, c: Tensor) -> None:
    z = g.pointwise(P.ADD, c, g.tensor("bias", (1, 1, c.dims[2])))
    g.pointwise(P.GELU_APPROX_TANH_FWD, z, name="out", virtual=False)


def _add_softmax_of_rows(g: GraphBuilder, c: Tensor) -> None:
    row = (*c.dims[:2], 1)
    shifted = g.pointwise(P.SUB, c, g.reduction(R.MAX, c, row))
    e = g.pointwise(P.EXP, shifted)
    g.pointwise(P.DIV, e, g.reduction(R.ADD, e, row), name="out", virtual=False)


def _add_softmax_without_matmul(g: GraphBuilder) -> None:
    _add_softmax_of_rows(g, g.tensor("x", (2, 128, 256)))


def _add_division_by_root_mean_square(g: GraphBuilder) -> None:
    x = g.tensor("x", (4, 64, 128))
    mean = g.reduction(R.AVG, g.pointwise(P.MUL, x, x), (4, 64, 1))
    g.pointwise(P.MUL, x, g.pointwise(P.RSQRT, mean), name="y", virtual=False)


_register_graph("softmax by hand", _add_softmax_without_matmul)
_register_graph("rms norm by hand", _add_division_by_root_mean_square)
for _order in ("nn", "nt", "tn", "tt"):
    _register_graph(f"matmul f16 {_order}", _add_matmul, order=_order)
    _register_graph(f"matmul f32 {_order}", _add_matmul, FLOAT, order=_order)
_register_graph("matmul bf16 odd", _add_matmul, BF16, m=127, n=65, k=33)
_register_graph("matmul f16 odd k", _add_matmul, k=63)
_register_graph("matmul f32 odd", _add_matmul, FLOAT, m=127, n=65, k=33)
_register_graph("matmul f16 alignment 2", _add_matmul, alignment=2)
_register_graph("matmul int8", _add_matmul, INT8, compute=INT32, out=INT32, order="nt")
_register_graph("matmul fp8", _add_matmul, T.FP8_E4M3, out=FLOAT, order="nt")
_register_graph("matmul f64 plain", _add_matmul, T.DOUBLE, compute=T.DOUBLE)
_register_graph("matmul f16 gelu", _add_matmul, after=_add_bias_gelu)
_register_graph("matmul f32 gelu", _add_matmul, FLOAT, after=_add_bias_gelu)
_register_graph("matmul f16 softmax", _add_matmul, after=_add_softmax_of_rows)
_register_graph("matmul vector", _add_matmul, m=1)


def _add_pointwise_chain(
    g: GraphBuilder, *modes: PointwiseMode, dims: tuple[int, ...] = (4, 64, 128), steps: Any = ()
) -> None:
    z = g.tensor("x", dims)
    for index, mode in enumerate(steps):
        last = {"name": "y", "virtual": False} if index == len(steps) - 1 else {}
        b = g.tensor(f"b{index}", dims) if mode in (P.ADD, P.MUL, P.SUB, P.DIV, P.MAX, P.RELU_BWD, P.POW) else None
        if mode is P.RELU_BWD:
            assert b is not None
            z = g.pointwise(mode, b, dy=z, **last)
        else:
            z = g.pointwise(mode, z, b, **last)


_register_graph("pointwise chain f16", _add_pointwise_chain, steps=(P.ADD, P.RELU_FWD, P.MUL))
_register_graph(
    "pointwise chain bf16 rank 4", _add_pointwise_chain, BF16, steps=(P.MUL, P.TANH_FWD), dims=(4, 32, 16, 16)
)
_register_graph("pointwise f32 erf", _add_pointwise_chain, FLOAT, steps=(P.ERF,))
_register_graph("pointwise f64 add", _add_pointwise_chain, T.DOUBLE, steps=(P.ADD,))
_register_graph("pointwise int32 add", _add_pointwise_chain, INT32, steps=(P.ADD,))
_register_graph("pointwise f16 relu backward", _add_pointwise_chain, steps=(P.RELU_BWD,))
_register_graph("pointwise f16 odd", _add_pointwise_chain, steps=(P.ADD, P.SIGMOID_FWD), dims=(3, 7, 129))


def _add_reduction(
    g: GraphBuilder, operator: R, to: tuple[int, ...], dims: tuple[int, ...] = (4, 64, 128), nhwc: bool = False
) -> None:
    x = g.tensor("x", dims, strides=channels_last(dims) if nhwc else packed_strides(dims))
    strides = {"strides": channels_last(to)} if nhwc else {}
    g.reduction(operator, x, to, name="y", virtual=False, data_type=FLOAT, **strides)


_register_graph("reduce f16 add rows", _add_reduction, operator=R.ADD, to=(4, 64, 1))
_register_graph("reduce f32 add columns", _add_reduction, FLOAT, operator=R.ADD, to=(4, 1, 128))
_register_graph("reduce f32 average all", _add_reduction, FLOAT, operator=R.AVG, to=(1, 1, 1))
_register_graph(
    "reduce f16 max image", _add_reduction, operator=R.MAX, dims=(4, 32, 28, 28), to=(4, 32, 1, 1), nhwc=True
)
_register_graph("reduce f16 norm2", _add_reduction, operator=R.NORM2, to=(4, 64, 1))


def _add_pool(g: GraphBuilder, mode: Any, nhwc: bool = True, backward: bool = False, index: bool = False) -> None:
    big, small = (4, 32, 28, 28), (4, 32, 14, 14)
    order: Callable[[tuple[int, ...]], tuple[int, ...]] = channels_last if nhwc else packed_strides
    pad = enums.PaddingMode.NEG_INF_PAD if mode is enums.ResampleMode.MAXPOOL else enums.PaddingMode.ZERO_PAD
    parameters = {
        "spatial_dims": 2,
        "post_paddings": (1, 1),
        "pre_paddings": (0, 0),
        "strides": (2, 2),
        "window_dims": (3, 3),
        "mode": mode,
        "comp_type": FLOAT,
        "nan_propagation": enums.NanPropagation.NOT_PROPAGATE_NAN,
        "padding_mode": pad,
    }
    names = ("dx", "dy") if backward else ("x", "y")
    fields: dict[str, Any] = {
        name: g.tensor(name, dims, strides=order(dims)) for name, dims in zip(names, (big, small), strict=True)
    }
    if index:
        fields["idx"] = g.tensor("idx", small, INT8, strides=order(small))
    kind = D.OPERATION_RESAMPLE_BWD if backward else D.OPERATION_RESAMPLE_FWD
    g.operation(kind, resample=Parameters(D.RESAMPLE, parameters), alpha=1.0, beta=0.0, **fields)


_MAX, _MEAN = enums.ResampleMode.MAXPOOL, enums.ResampleMode.AVGPOOL_INCLUDE_PADDING
_register_graph("max pooling f16", _add_pool, mode=_MAX)
_register_graph("max pooling f16 with index", _add_pool, mode=_MAX, index=True)
_register_graph("max pooling f32 nchw", _add_pool, FLOAT, mode=_MAX, nhwc=False)
_register_graph("mean pooling f16", _add_pool, mode=_MEAN)
_register_graph("mean pooling f32 nchw", _add_pool, FLOAT, mode=_MEAN, nhwc=False)
_register_graph("max pooling backward f16", _add_pool, mode=_MAX, backward=True, index=True)
_register_graph("mean pooling backward f16", _add_pool, mode=_MEAN, backward=True)


def _add_layout_change(g: GraphBuilder, kind: DescriptorType) -> None:
    x = g.tensor("x", (2, 4, 64, 128))
    if kind is D.OPERATION_CONCAT:
        parts = (x, g.tensor("x2", (2, 4, 64, 128)))
        g.operation(kind, axis=2, input=parts, output=g.tensor("y", (2, 4, 128, 128)))
    elif kind is D.OPERATION_SLICE:
        y = g.tensor("y", (2, 4, 32, 128))
        g.operation(kind, x=x, y=y, start_indices=(0, 0, 32, 0), limit_indices=(2, 4, 64, 128), strides=(1, 1, 1, 1))
    elif kind is D.OPERATION_TRANSPOSE:
        g.operation(kind, x=x, y=g.tensor("y", (2, 4, 128, 64)), permutation=(0, 1, 3, 2))
    else:
        g.operation(kind, x=x, y=g.tensor("y", (2, 256, 128)))


for _kind in (D.OPERATION_CONCAT, D.OPERATION_SLICE, D.OPERATION_TRANSPOSE, D.OPERATION_RESHAPE):
    _name = _kind.name.removeprefix("OPERATION_").lower()
    _register_graph(f"{_name} alone f16", _add_layout_change, kind=_kind)
    _register_graph(f"{_name} alone f32", _add_layout_change, FLOAT, kind=_kind)

_ATTENTION_GRAPHS = ("flash", "unified", "sdpa", "two matmul")
GRAPHS_OF_FULL_CUDNN |= {
    name: make
    for name, make in {**VARIED_GRAPHS, **OPERATION_GRAPHS}.items()
    if not name.startswith(_ATTENTION_GRAPHS) and name not in GRAPHS_OF_FULL_CUDNN
}
