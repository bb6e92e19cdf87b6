"""One typical graph for each kind of operation, built by its builder method, with the verdicts of cuDNN 9.28."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import (
    MoeGroupedMatmulMode,
    NormMode,
    ReduceTensorOp,
    ResampleMode,
    SignalMode,
    TensorReordering,
)
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.strides import channels_last

__all__ = [
    "BLOCK_SCALED_ENGINES",
    "FRONTEND_METHODS",
    "KINDS_FOR_OTHER_GPUS",
    "KINDS_WRITTEN_AS_SEVERAL_OPERATIONS",
    "OPERATION_KINDS",
    "TYPICAL_GRAPHS",
    "TypicalGraph",
    "add_bilinear_upsampling",
]

D, M, N, P, R, T = DescriptorType, MoeGroupedMatmulMode, NormMode, PointwiseMode, ResampleMode, DataType

OPERATION_KINDS = [kind for kind in DescriptorType if kind.name.startswith("OPERATION_")]
CHANNELS_LAST: dict[str, Any] = {"strides": "channels_last"}
IN_MEMORY: dict[str, Any] = {"virtual": False}

# By kind of operation, the methods of cudnn-frontend's pygraph that add it, if there are any.
FRONTEND_METHODS: dict[DescriptorType, tuple[str, ...]] = {
    D.OPERATION_CONVOLUTION_FORWARD: ("conv_fprop",),
    D.OPERATION_CONVOLUTION_BACKWARD_DATA: ("conv_dgrad",),
    D.OPERATION_CONVOLUTION_BACKWARD_FILTER: ("conv_wgrad",),
    D.OPERATION_POINTWISE: ("add", "relu", "gelu", "cmp_eq", "binary_select", "gen_index"),
    D.OPERATION_GEN_STATS: ("genstats",),
    D.OPERATION_MATMUL: ("matmul",),
    D.OPERATION_BN_FINALIZE_STATISTICS: ("bn_finalize",),
    D.OPERATION_REDUCTION: ("reduction",),
    D.OPERATION_RESAMPLE_FWD: ("resample",),
    D.OPERATION_CONCAT: ("concatenate",),
    D.OPERATION_NORM_FORWARD: ("layernorm", "rmsnorm", "adalayernorm", "instancenorm", "batchnorm"),
    D.OPERATION_NORM_BACKWARD: ("layernorm_backward", "rmsnorm_backward", "batchnorm_backward"),
    D.OPERATION_RESHAPE: ("reshape",),
    D.OPERATION_RNG: ("rng",),
    D.OPERATION_PAGED_CACHE_LOAD: ("paged_cache_load",),
    D.OPERATION_BLOCK_SCALE_QUANTIZE: ("block_scale_quantize",),
    D.OPERATION_BLOCK_SCALE_DEQUANTIZE: ("block_scale_dequantize",),
    D.OPERATION_SDPA_FWD: ("sdpa",),
    D.OPERATION_SDPA_BWD: ("sdpa_backward",),
    D.OPERATION_DIAGONAL_BAND_MASK: ("sdpa",),
    D.OPERATION_SOFTMAX: ("sdpa",),
    D.OPERATION_TRANSPOSE: ("transpose",),
    D.OPERATION_SLICE: ("slice",),
    D.OPERATION_ROPE_FWD: ("rope",),
    D.OPERATION_ROPE_BWD: ("rope_backward",),
    D.OPERATION_MOE_GROUPED_MATMUL: ("moe_grouped_matmul",),
    D.OPERATION_MOE_GROUPED_MATMUL_BWD: ("moe_grouped_matmul_bwd",),
}
# Engine configs of cuDNN 9.28 on a described b200 in modes A and FALLBACK, with the numbers of their engines.
BLOCK_SCALED_ENGINES: dict[str, tuple[int, tuple[int, ...]]] = {
    "MXFP8 matmul": (7, (9,)),
    "NVFP4 matmul": (7, (9,)),
    "MXFP8 matmul, quantized": (7, (9,)),
    "NVFP4 matmul, quantized": (7, (9,)),
    "RMS norm, quantized in plain order": (3, (1, 4)),
}
# Kinds of operations that cuDNN supports on no Hopper GPU, and the GPUs on which it supports them.
KINDS_FOR_OTHER_GPUS: dict[DescriptorType, str] = {
    D.OPERATION_SIGNAL: "sm_80",
    D.OPERATION_BLOCK_SCALE_QUANTIZE: "sm_100 and later",
    D.OPERATION_BLOCK_SCALE_DEQUANTIZE: "sm_100 and later",
    D.OPERATION_TRANSPOSE: "sm_100 and later, with CUDA 13",
    D.OPERATION_MOE_GROUPED_MATMUL_BWD: "sm_100 and later, with CUDA 13.1",
}
KINDS_WRITTEN_AS_SEVERAL_OPERATIONS = {D.OPERATION_SDPA_BWD}  # the frontend writes them as several other operations


@dataclass(frozen=True, kw_only=True)
class TypicalGraph:
    """A graph with one kind of operation, and the described GPUs on which cuDNN 9.28 for CUDA 12 supports it."""

    kind: DescriptorType
    method: str
    make: Callable[[], Graph]
    supported: tuple[str, ...] = ("h100", "b200")
    refused: str = ""  # part of cuDNN's message, if no target supports the graph
    note: str = ""


TYPICAL_GRAPHS: dict[str, TypicalGraph] = {}


def _register_graph(
    kind: DescriptorType, method: str, *, name: str | None = None, io: DataType = T.HALF, **facts: Any
) -> Callable[[Callable[[GraphBuilder], object]], None]:
    """Return a decorator that registers a function as one typical graph."""

    def register(write: Callable[[GraphBuilder], object]) -> None:
        title = name or kind.name.removeprefix("OPERATION_").lower().replace("_", " ")

        def make_graph() -> Graph:
            g = GraphBuilder(title, io_type=io)
            write(g)
            return g.graph()

        assert title not in TYPICAL_GRAPHS
        TYPICAL_GRAPHS[title] = TypicalGraph(kind=kind, method=method, make=make_graph, **facts)

    return register


def _add_image_tensors(g: GraphBuilder, *names: str, dims: tuple[int, ...] = (4, 32, 28, 28)) -> list[Tensor]:
    return [g.tensor(name, dims, **CHANNELS_LAST) for name in names]


def _add_per_channel_tensors(g: GraphBuilder, *names: str, kind: DataType = T.FLOAT) -> list[Tensor]:
    return [g.tensor(name, (1, 32, 1, 1), kind, **CHANNELS_LAST) for name in names]


# convolutions


@_register_graph(D.OPERATION_CONVOLUTION_FORWARD, "convolution")
def _add_convolution(g: GraphBuilder) -> None:
    (x,), w = _add_image_tensors(g, "x"), g.tensor("w", (64, 32, 3, 3), **CHANNELS_LAST)
    y = g.convolution(x, w, padding=1, strides=channels_last((4, 64, 28, 28)))
    bias = g.tensor("bias", (1, 64, 1, 1), **CHANNELS_LAST)
    like = {"strides": y.strides}
    g.pointwise(P.RELU_FWD, g.pointwise(P.ADD, y, bias, **like), **like, **IN_MEMORY)


@_register_graph(D.OPERATION_CONVOLUTION_FORWARD, "convolution", name="grouped convolution, padded unevenly")
def _add_grouped_convolution(g: GraphBuilder) -> None:
    (x,), w = _add_image_tensors(g, "x"), g.tensor("w", (64, 8, 3, 3), **CHANNELS_LAST)
    g.convolution(x, w, padding=(0, 1), post_padding=(1, 2), stride=(2, 1), **IN_MEMORY)


@_register_graph(D.OPERATION_CONVOLUTION_FORWARD, "convolution", name="convolution over one dim")
def _add_1d_convolution(g: GraphBuilder) -> None:
    g.convolution(
        g.tensor("x", (4, 32, 56), **CHANNELS_LAST),
        g.tensor("w", (64, 32, 3), **CHANNELS_LAST),
        padding=1,
        dilation=2,
        **IN_MEMORY,
    )


@_register_graph(D.OPERATION_CONVOLUTION_FORWARD, "convolution", name="convolution over three dims")
def _add_3d_convolution(g: GraphBuilder) -> None:
    x, w = g.tensor("x", (2, 16, 6, 10, 10), **CHANNELS_LAST), g.tensor("w", (32, 16, 3, 3, 3), **CHANNELS_LAST)
    g.convolution(x, w, padding=1, **IN_MEMORY)


@_register_graph(D.OPERATION_CONVOLUTION_BACKWARD_DATA, "convolution_backward_data")
def _add_data_gradient(g: GraphBuilder) -> None:
    dy, w = g.tensor("dy", (4, 64, 14, 14), **CHANNELS_LAST), g.tensor("w", (64, 32, 3, 3), **CHANNELS_LAST)
    g.convolution_backward_data(dy, w, padding=1, stride=2, dims=(4, 32, 28, 28), **IN_MEMORY)


@_register_graph(D.OPERATION_CONVOLUTION_BACKWARD_FILTER, "convolution_backward_filter")
def _add_filter_gradient(g: GraphBuilder) -> None:
    (x,), dy = _add_image_tensors(g, "x"), g.tensor("dy", (4, 64, 28, 28), **CHANNELS_LAST)
    g.convolution_backward_filter(x, dy, (3, 3), padding=1, **IN_MEMORY)


# products


@_register_graph(D.OPERATION_MATMUL, "matmul")
def _add_matmul(g: GraphBuilder) -> None:
    c = g.matmul(g.tensor("a", (2, 128, 64)), g.tensor("b", (2, 64, 256)))
    g.pointwise(P.GELU_FWD, g.pointwise(P.ADD, c, g.tensor("bias", (1, 1, 256))), **IN_MEMORY)


@_register_graph(D.OPERATION_POINTWISE, "pointwise", io=T.FLOAT)
def _add_pointwise(g: GraphBuilder) -> None:
    x = g.tensor("x", (4, 64, 128))
    g.pointwise(P.MUL, g.pointwise(P.SIGMOID_FWD, x), x, **IN_MEMORY)


@_register_graph(D.OPERATION_REDUCTION, "reduction")
def _add_reduction(g: GraphBuilder) -> None:
    g.reduction(ReduceTensorOp.ADD, g.tensor("x", (256, 128)), (256, 1), data_type=T.FLOAT, **IN_MEMORY)


# norms


def _register_norm(mode: NormMode, *, training: bool, x: tuple[int, ...], scale: tuple[int, ...], **facts: Any) -> None:
    last = mode in (N.BATCH_NORM, N.INSTANCE_NORM, N.GROUP_NORM)
    layout = CHANNELS_LAST if last else {}
    kind = T.HALF if mode is N.ADA_LAYER_NORM else T.FLOAT
    title = f"{mode.name.lower().replace('_', ' ')}, {'training' if training else 'inference'}"

    @_register_graph(D.OPERATION_NORM_FORWARD, "norm_forward", name=title, **facts)
    def _add_norm(g: GraphBuilder) -> None:
        weights = [g.tensor(name, scale, kind, **layout) for name in ("scale", "bias")]
        bias = None if mode is N.RMS_NORM else weights[1]
        more: dict[str, Any] = {}
        if mode is N.GROUP_NORM:
            more = {"groups": 4}
            if not training:
                more |= {
                    name: g.tensor(name, (8, 4, 1, 1), T.FLOAT, **CHANNELS_LAST) for name in ("mean", "inv_variance")
                }
        g.norm_forward(mode, g.tensor("x", x, **layout), weights[0], bias, training=training, **more, **IN_MEMORY)


IMAGE, CHANNEL = (8, 32, 16, 16), (1, 32, 1, 1)
_GROUPS_REFUSAL = "NOT_SUPPORTED for CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR"
for _training in (True, False):
    _register_norm(N.LAYER_NORM, training=_training, x=(64, 256, 1, 1), scale=(1, 256, 1, 1))
    _register_norm(N.RMS_NORM, training=_training, x=(64, 256, 1, 1), scale=(1, 256, 1, 1))
    _register_norm(N.ADA_LAYER_NORM, training=_training, x=(4, 64, 256), scale=(4, 1, 256))
    _register_norm(N.INSTANCE_NORM, training=_training, x=IMAGE, scale=CHANNEL)
    _register_norm(N.GROUP_NORM, training=_training, x=IMAGE, scale=CHANNEL, supported=(), refused=_GROUPS_REFUSAL)


@_register_graph(D.OPERATION_NORM_FORWARD, "norm_forward", name="batch norm, training")
def _add_batch_norm_training(g: GraphBuilder) -> None:
    (x,), (scale, bias, mean, var) = (
        _add_image_tensors(g, "x"),
        _add_per_channel_tensors(g, "scale", "bias", "running_mean", "running_var"),
    )
    g.norm_forward(
        N.BATCH_NORM, x, scale, bias, training=True, running_mean=mean, running_var=var, momentum=0.1, **IN_MEMORY
    )


@_register_graph(
    D.OPERATION_NORM_FORWARD, "norm_forward", name="batch norm, inference alone", supported=(), refused=_GROUPS_REFUSAL
)
def _add_batch_norm_inference(g: GraphBuilder) -> None:
    (x,), (scale, bias, mean, inv) = (
        _add_image_tensors(g, "x"),
        _add_per_channel_tensors(g, "scale", "bias", "mean", "inv_variance"),
    )
    g.norm_forward(N.BATCH_NORM, x, scale, bias, mean=mean, inv_variance=inv, epsilon=None, **IN_MEMORY)


@_register_graph(D.OPERATION_NORM_FORWARD, "norm_forward", name="batch norm, inference in its gradient")
def _add_batch_norm_recomputation(g: GraphBuilder) -> None:
    """Recompute batch norm in inference mode before the gradient of a clipped ReLU, a pattern that cuDNN supports."""
    (x, dy), (scale, bias, mean, inv) = (
        _add_image_tensors(g, "x", "dy"),
        _add_per_channel_tensors(g, "scale", "bias", "mean", "inv_variance"),
    )
    statistics: dict[str, Any] = {"mean": mean, "inv_variance": inv}
    y = g.norm_forward(N.BATCH_NORM, x, scale, bias, **statistics, epsilon=None).y
    clipped = g.pointwise(P.RELU_BWD, y, dy=dy, data_type=T.HALF, strides=x.strides)
    g.norm_backward(N.BATCH_NORM, clipped, x, scale, **statistics, **IN_MEMORY)


@_register_graph(D.OPERATION_NORM_BACKWARD, "norm_backward")
def _add_layer_norm_backward(g: GraphBuilder) -> None:
    x, dy = (g.tensor(name, (64, 256, 1, 1)) for name in ("x", "dy"))
    mean, inv = (g.tensor(name, (64, 1, 1, 1), T.FLOAT) for name in ("mean", "inv_variance"))
    scale = g.tensor("scale", (1, 256, 1, 1), T.FLOAT)
    g.norm_backward(N.LAYER_NORM, dy, x, scale, mean=mean, inv_variance=inv, **IN_MEMORY)


@_register_graph(D.OPERATION_NORM_BACKWARD, "norm_backward", name="batch norm backward")
def _add_batch_norm_backward(g: GraphBuilder) -> None:
    (x, dy), (scale, mean, inv) = (
        _add_image_tensors(g, "x", "dy"),
        _add_per_channel_tensors(g, "scale", "mean", "inv_variance"),
    )
    g.norm_backward(N.BATCH_NORM, dy, x, scale, mean=mean, inv_variance=inv, **IN_MEMORY)


@_register_graph(D.OPERATION_NORM_BACKWARD, "norm_backward", name="rms norm backward")
def _add_rms_norm_backward(g: GraphBuilder) -> None:
    x, dy = (g.tensor(name, (64, 256, 1, 1)) for name in ("x", "dy"))
    inv, scale = g.tensor("inv_variance", (64, 1, 1, 1), T.FLOAT), g.tensor("scale", (1, 256, 1, 1), T.FLOAT)
    g.norm_backward(N.RMS_NORM, dy, x, scale, inv_variance=inv, **IN_MEMORY)


@_register_graph(D.OPERATION_NORM_BACKWARD, "norm_backward", name="instance norm backward")
def _add_instance_norm_backward(g: GraphBuilder) -> None:
    (x, dy), (scale,) = _add_image_tensors(g, "x", "dy", dims=IMAGE), _add_per_channel_tensors(g, "scale")
    mean, inv = (g.tensor(name, (8, 32, 1, 1), T.FLOAT, **CHANNELS_LAST) for name in ("mean", "inv_variance"))
    g.norm_backward(N.INSTANCE_NORM, dy, x, scale, mean=mean, inv_variance=inv, **IN_MEMORY)


@_register_graph(D.OPERATION_NORM_BACKWARD, "norm_backward", name="ada layer norm backward")
def _add_ada_layer_norm_backward(g: GraphBuilder) -> None:
    x, dy = (g.tensor(name, (4, 64, 256)) for name in ("x", "dy"))
    mean, inv = (g.tensor(name, (4, 64, 1), T.FLOAT) for name in ("mean", "inv_variance"))
    g.norm_backward(N.ADA_LAYER_NORM, dy, x, g.tensor("scale", (4, 1, 256)), mean=mean, inv_variance=inv, **IN_MEMORY)


@_register_graph(D.OPERATION_GEN_STATS, "gen_stats")
def _add_gen_stats(g: GraphBuilder) -> None:
    (x,), w = _add_image_tensors(g, "x"), g.tensor("w", (64, 32, 1, 1), **CHANNELS_LAST)
    g.gen_stats(g.convolution(x, w, **IN_MEMORY))


@_register_graph(D.OPERATION_BN_FINALIZE_STATISTICS, "batch_norm_finalize", io=T.FLOAT)
def _add_batch_norm_finalize(g: GraphBuilder) -> None:
    names = ("sum", "sqsum", "scale", "bias", "running_mean", "running_var")
    total, squares, scale, bias, mean, var = _add_per_channel_tensors(g, *names)
    g.batch_norm_finalize(total, squares, scale, bias, accum_count=3136, running_mean=mean, running_var=var)


@_register_graph(D.OPERATION_BN_BWD_WEIGHTS, "batch_norm_backward_weights", supported=("a100", "h100", "b200"))
def _add_batch_norm_weight_gradients(g: GraphBuilder) -> None:
    """Add the gradient of convolution, ReLU and batch norm, the only graph in which cuDNN supports bn_bwd_weights."""
    dims = (4, 32, 28, 28)
    like = {"strides": channels_last(dims)}
    dy, w = g.tensor("dy", (4, 64, 28, 28), **CHANNELS_LAST), g.tensor("w", (64, 32, 3, 3), **CHANNELS_LAST)
    (x,), (mean, inv, scale, bias) = (
        _add_image_tensors(g, "x"),
        _add_per_channel_tensors(g, "mean", "inv_std", "scale", "bias"),
    )
    gradient = g.convolution_backward_data(dy, w, padding=1, **like)
    normal = x
    for mode, factor in ((P.SUB, mean), (P.MUL, inv), (P.MUL, scale), (P.ADD, bias)):
        normal = g.pointwise(mode, normal, factor, **like)
    clipped = g.pointwise(P.RELU_BWD, normal, dy=gradient, **like, **IN_MEMORY)
    g.batch_norm_backward_weights(clipped, x, mean, inv, scale)


# resampling


@_register_graph(D.OPERATION_RESAMPLE_FWD, "resample")
def _add_max_pool(g: GraphBuilder) -> None:
    g.resample(R.MAXPOOL, *_add_image_tensors(g, "x"), window=3, stride=2, padding=1, idx=True, **IN_MEMORY)


@_register_graph(D.OPERATION_RESAMPLE_FWD, "resample", name="average pool")
def _add_average_pool(g: GraphBuilder) -> None:
    g.resample(
        R.AVGPOOL_INCLUDE_PADDING, *_add_image_tensors(g, "x"), window=(2, 3), stride=2, padding=(0, 1), **IN_MEMORY
    )


@_register_graph(D.OPERATION_RESAMPLE_FWD, "resample", name="average pool without padding")
def _add_average_pool_without_padding(g: GraphBuilder) -> None:
    g.resample(R.AVGPOOL_EXCLUDE_PADDING, *_add_image_tensors(g, "x"), window=3, stride=2, padding=1, **IN_MEMORY)


_NOT_COMPILED_NOTE = "BILINEAR of 16 bits too, but no plan compiles"


@_register_graph(D.OPERATION_RESAMPLE_FWD, "resample", name="bilinear upsampling", io=T.FLOAT, note=_NOT_COMPILED_NOTE)
def _add_bilinear_resample(g: GraphBuilder) -> None:
    add_bilinear_upsampling(g)


def add_bilinear_upsampling(g: GraphBuilder) -> Tensor:
    """Add the only bilinear resampling that cuDNN supports: factor 2, with half an element of padding on each side."""
    half = Fraction(1, 2)
    return g.resample(
        R.BILINEAR, *_add_image_tensors(g, "x"), window=2, stride=half, padding=half, post_padding=1, **IN_MEMORY
    ).y


@_register_graph(D.OPERATION_RESAMPLE_BWD, "resample_backward")
def _add_max_pool_backward(g: GraphBuilder) -> None:
    dy, idx = (
        g.tensor("dy", (4, 32, 14, 14), **CHANNELS_LAST),
        g.tensor("idx", (4, 32, 14, 14), T.INT8, **CHANNELS_LAST),
    )
    g.resample_backward(R.MAXPOOL, dy, 3, stride=2, padding=1, idx=idx, dims=(4, 32, 28, 28), **IN_MEMORY)


@_register_graph(D.OPERATION_RESAMPLE_BWD, "resample_backward", name="max pool backward, row-major")
def _add_row_major_max_pool_backward(g: GraphBuilder) -> None:
    dy, y = (g.tensor(name, (4, 32, 14, 14)) for name in ("dy", "y"))
    g.resample_backward(R.MAXPOOL, dy, 3, stride=2, padding=1, x=g.tensor("x", (4, 32, 28, 28)), y=y, **IN_MEMORY)


@_register_graph(D.OPERATION_RESAMPLE_BWD, "resample_backward", name="average pool backward")
def _add_average_pool_backward(g: GraphBuilder) -> None:
    dy = g.tensor("dy", (4, 32, 14, 14), **CHANNELS_LAST)
    g.resample_backward(R.AVGPOOL_INCLUDE_PADDING, dy, 2, **IN_MEMORY)


# data movement


@_register_graph(D.OPERATION_CONCAT, "concatenate")
def _add_concatenate(g: GraphBuilder) -> None:
    (x,), w = _add_image_tensors(g, "x"), g.tensor("w", (64, 32, 1, 1), **CHANNELS_LAST)
    y = g.convolution(x, w, data_type=T.HALF)
    g.concatenate([y, g.tensor("z", y.dims, **CHANNELS_LAST)], 1, in_place_index=1, **IN_MEMORY)


_NO_SIGNAL_NOTE = "Hopper and Blackwell: `Hopper doesn't support signal yet`"


@_register_graph(D.OPERATION_SIGNAL, "signal", supported=("a100",), note=_NO_SIGNAL_NOTE)
def _add_signal(g: GraphBuilder) -> None:
    y = g.matmul(g.tensor("a", (1, 128, 64)), g.tensor("b", (1, 64, 128)), data_type=T.HALF)
    g.signal(SignalMode.SET, y, g.tensor("flag", (1, 1, 1), T.INT32), 7, **IN_MEMORY)


@_register_graph(D.OPERATION_SLICE, "slice")
def _add_slice(g: GraphBuilder) -> None:
    part = g.slice(g.tensor("a", (4, 64, 64)), [slice(None), slice(0, 32), slice(None)])
    g.matmul(part, g.tensor("b", (4, 64, 64)), **IN_MEMORY)


_MEMORY_BOUND_NOTE = "engines for it are in builds for CUDA 13 only, for sm_100 and later"


@_register_graph(
    D.OPERATION_TRANSPOSE,
    "transpose",
    io=T.FLOAT,
    supported=(),
    refused="is_pointwise_fusion",
    note=_MEMORY_BOUND_NOTE,
)
def _add_transpose(g: GraphBuilder) -> None:
    g.transpose(g.tensor("x", (2, 3, 4)), (2, 0, 1), **IN_MEMORY)


# block scales


def _add_block_scaled_matmul(g: GraphBuilder, block: int) -> Tensor:
    """Return the product of two tensors with block scales along K."""
    small, kind = (T.FP8_E4M3, T.FP8_E8M0) if block == 32 else (T.FP4_E2M1, T.FP8_E4M3)
    size, order = 256, TensorReordering.F8_128x4
    count = size // block
    a, b = g.tensor("a", (1, size, size), small), g.tensor("b", (1, size, size), small, strides=(size**2, 1, size))
    scale_a = g.tensor("scale_a", (1, size, count), kind, reordering=order)
    scale_b = g.tensor("scale_b", (1, count, size), kind, strides=(size * count, 1, count), reordering=order)
    left, right = g.block_scale_dequantize(a, scale_a, (1, block)), g.block_scale_dequantize(b, scale_b, (block, 1))
    return g.matmul(left, right)


_SUPPORTED_ON_BLACKWELL: dict[str, Any] = {"supported": ("b200",)}


@_register_graph(
    D.OPERATION_BLOCK_SCALE_DEQUANTIZE, "block_scale_dequantize", name="MXFP8 matmul", **_SUPPORTED_ON_BLACKWELL
)
def _add_mxfp8_matmul(g: GraphBuilder) -> None:
    g.pointwise(P.IDENTITY, _add_block_scaled_matmul(g, 32), data_type=T.BFLOAT16, **IN_MEMORY)


@_register_graph(
    D.OPERATION_BLOCK_SCALE_DEQUANTIZE, "block_scale_dequantize", name="NVFP4 matmul", **_SUPPORTED_ON_BLACKWELL
)
def _add_nvfp4_matmul(g: GraphBuilder) -> None:
    g.pointwise(P.IDENTITY, _add_block_scaled_matmul(g, 16), data_type=T.BFLOAT16, **IN_MEMORY)


@_register_graph(
    D.OPERATION_BLOCK_SCALE_QUANTIZE, "block_scale_quantize", name="MXFP8 matmul, quantized", **_SUPPORTED_ON_BLACKWELL
)
def _add_matmul_quantized_to_mxfp8(g: GraphBuilder) -> None:
    g.block_scale_quantize(_add_block_scaled_matmul(g, 32), 32, **IN_MEMORY)


@_register_graph(
    D.OPERATION_BLOCK_SCALE_QUANTIZE, "block_scale_quantize", name="NVFP4 matmul, quantized", **_SUPPORTED_ON_BLACKWELL
)
def _add_matmul_quantized_to_nvfp4(g: GraphBuilder) -> None:
    g.block_scale_quantize(_add_block_scaled_matmul(g, 16), 16, **IN_MEMORY)


@_register_graph(
    D.OPERATION_BLOCK_SCALE_QUANTIZE,
    "block_scale_quantize",
    name="RMS norm, quantized in plain order",
    io=T.BFLOAT16,
    **_SUPPORTED_ON_BLACKWELL,
)
def _add_quantized_norm(g: GraphBuilder) -> None:
    x, scale = g.tensor("x", (256, 128, 1, 1)), g.tensor("scale", (1, 128, 1, 1), T.FLOAT)
    y = g.norm_forward(N.RMS_NORM, x, scale, data_type=T.BFLOAT16).y
    g.block_scale_quantize(y, 32, axis=1, **IN_MEMORY)


# mixture of experts


def _add_moe_input_tensors(g: GraphBuilder, rows: int = 256, tokens: int = 256) -> dict[str, Tensor]:
    return {
        "token": g.tensor("token", (1, tokens, 64)),
        "weight": g.tensor("weight", (8, 64, 128), strides=(64 * 128, 1, 64)),
        "first_token_offset": g.tensor("offsets", (8, 1, 1), T.INT32),
    }


@_register_graph(D.OPERATION_MOE_GROUPED_MATMUL, "moe_grouped_matmul", io=T.BFLOAT16)
def _add_moe(g: GraphBuilder) -> None:
    g.moe_grouped_matmul(**_add_moe_input_tensors(g), **IN_MEMORY)


@_register_graph(D.OPERATION_MOE_GROUPED_MATMUL, "moe_grouped_matmul", name="experts, gathered", io=T.BFLOAT16)
def _add_moe_gather(g: GraphBuilder) -> None:
    index = g.tensor("token_index", (1, 256, 1), T.INT64)
    g.moe_grouped_matmul(**_add_moe_input_tensors(g, tokens=128), mode=M.GATHER, token_index=index, **IN_MEMORY)


@_register_graph(D.OPERATION_MOE_GROUPED_MATMUL, "moe_grouped_matmul", name="experts, scattered", io=T.BFLOAT16)
def _add_moe_scatter(g: GraphBuilder) -> None:
    index, ks = (g.tensor(name, (1, 256, 1), T.INT32) for name in ("token_index", "token_ks"))
    g.moe_grouped_matmul(
        **_add_moe_input_tensors(g), mode=M.SCATTER, token_index=index, token_ks=ks, top_k=2, **IN_MEMORY
    )


@_register_graph(
    D.OPERATION_MOE_GROUPED_MATMUL_BWD,
    "moe_grouped_matmul_backward",
    io=T.BFLOAT16,
    supported=(),
    refused="MoE grouped matmul bwd with cublasLt is not be compiled with cuda toolkit < 13.1",
    note="builds for CUDA 13.1 and later only",
)
def _add_moe_backward(g: GraphBuilder) -> None:
    token, doutput = g.tensor("token", (1, 256, 64)), g.tensor("doutput", (1, 256, 128))
    g.moe_grouped_matmul_backward(doutput, token, g.tensor("offsets", (8, 1, 1), T.INT32), **IN_MEMORY)


# attention


HEADS_SHAPE = (2, 4, 128, 64)


def _add_head_tensors(g: GraphBuilder, *names: str) -> list[Tensor]:
    return [g.tensor(name, HEADS_SHAPE) for name in names]


def _add_transposed_keys(g: GraphBuilder, name: str = "k") -> Tensor:
    return g.tensor(name, (2, 4, 64, 128), strides=(4 * 128 * 64, 128 * 64, 1, 64))


def _add_attention_output_matmul(g: GraphBuilder, p: Tensor, v: Tensor) -> None:
    g.matmul(g.pointwise(P.IDENTITY, p, data_type=T.HALF), v, **IN_MEMORY)


@_register_graph(D.OPERATION_SOFTMAX, "softmax")
def _add_softmax(g: GraphBuilder) -> None:
    q, v = _add_head_tensors(g, "q", "v")
    s = g.pointwise(P.MUL, g.matmul(q, _add_transposed_keys(g)), g.scalar(0.125))
    _add_attention_output_matmul(g, g.softmax(s, stats=True).y, v)


@_register_graph(D.OPERATION_DIAGONAL_BAND_MASK, "diagonal_band_mask")
def _add_band_mask(g: GraphBuilder) -> None:
    q, v = _add_head_tensors(g, "q", "v")
    s = g.pointwise(P.MUL, g.matmul(q, _add_transposed_keys(g)), g.scalar(0.125))
    s = g.diagonal_band_mask(s, P.CMP_GE, shift_right_bound=g.scalar(0), fill=float("-inf"))
    _add_attention_output_matmul(g, g.softmax(s, stats=True).y, v)


@_register_graph(D.OPERATION_RNG, "rng")
def _add_rng(g: GraphBuilder) -> None:
    q, v = _add_head_tensors(g, "q", "v")
    s = g.pointwise(P.MUL, g.matmul(q, _add_transposed_keys(g)), g.scalar(0.125))
    seed, offset = (g.tensor(name, (1, 1, 1, 1), T.INT64) for name in ("seed", "offset"))
    kept = g.rng((2, 4, 128, 128), seed, offset, probability=0.9)
    p = g.pointwise(P.MUL, g.softmax(s, stats=True).y, kept)
    _add_attention_output_matmul(g, g.pointwise(P.MUL, p, g.scalar(1 / 0.9)), v)


def _add_softmax_operations(g: GraphBuilder, s: Tensor) -> Tensor:
    top = g.reduction(ReduceTensorOp.MAX, s, (2, 4, 128, 1))
    e = g.pointwise(P.EXP, g.pointwise(P.SUB, s, top))
    total = g.reduction(ReduceTensorOp.ADD, e, (2, 4, 128, 1))
    g.pointwise(P.ADD, top, g.pointwise(P.LOG, total))  # cuDNN requires the statistics output, even if it is not used
    return g.pointwise(P.DIV, e, total, data_type=T.HALF)


@_register_graph(D.OPERATION_PAGED_CACHE_LOAD, "paged_cache_load")
def _add_paged_cache_load(g: GraphBuilder) -> None:
    (q,) = _add_head_tensors(g, "q")
    rows, columns = (g.tensor(name, (2, 1, 1, 1), T.INT32) for name in ("rows", "columns"))
    k, v = (
        g.paged_cache_load(
            g.tensor(f"{name}_pages", (8, 4, 32, 64)),
            g.tensor(f"{name}_table", (2, 1, 4, 1), T.INT32),
            columns,
            transposed=name == "k",
        )
        for name in ("k", "v")
    )
    s = g.pointwise(P.MUL, g.matmul(q, k, m_override=rows, n_override=columns), g.scalar(0.125))
    inside = [
        g.pointwise(P.CMP_LT, g.pointwise(P.GEN_INDEX, s, axis=axis, compute_type=T.INT32), length)
        for axis, length in ((2, rows), (3, columns))
    ]
    s = g.pointwise(P.BINARY_SELECT, s, g.scalar(float("-inf")), g.pointwise(P.LOGICAL_AND, *inside))
    p = _add_softmax_operations(g, s)
    g.matmul(p, v, m_override=rows, k_override=columns, **IN_MEMORY)


@_register_graph(D.OPERATION_ROPE_FWD, "rope_forward", io=T.BFLOAT16)
def _add_rope(g: GraphBuilder) -> None:
    q, k, v = (g.tensor(name, HEADS_SHAPE, strides=(4 * 128 * 64, 64, 4 * 64, 1)) for name in "qkv")
    angles = g.tensor("angles", (128, 1, 1, 64), T.FLOAT)
    turned = (g.rope_forward(item, angles, strides=item.strides, data_type=T.BFLOAT16, **IN_MEMORY) for item in (q, k))
    g.sdpa_forward(*turned, v, scale=0.125, **IN_MEMORY)


@_register_graph(D.OPERATION_ROPE_BWD, "rope_backward", io=T.BFLOAT16)
def _add_rope_backward(g: GraphBuilder) -> None:
    layout = {"strides": (4 * 128 * 64, 64, 4 * 64, 1)}
    q, k, v, o, do = (g.tensor(name, HEADS_SHAPE, **layout) for name in ("q", "k", "v", "o", "do"))  # type: ignore[arg-type]
    stats = g.tensor("stats", (2, 4, 128, 1), T.FLOAT)
    made = g.sdpa_backward(
        q, k, v, o, do, stats, scale=0.125
    )  # all tensors in memory: engines write dQ and dK before the rotation
    angles = g.tensor("angles", (128, 1, 1, 64), T.FLOAT)
    for gradient in (made.dq, made.dk):
        g.rope_backward(gradient, angles, **IN_MEMORY)


@_register_graph(D.OPERATION_SDPA_FWD, "sdpa_forward")
def _add_sdpa(g: GraphBuilder) -> None:
    g.sdpa_forward(*_add_head_tensors(g, "q", "k", "v"), scale=0.125, stats=True, **IN_MEMORY)


@_register_graph(D.OPERATION_SDPA_BWD, "sdpa_backward")
def _add_sdpa_backward(g: GraphBuilder) -> None:
    stats = g.tensor("stats", (2, 4, 128, 1), T.FLOAT)
    g.sdpa_backward(*_add_head_tensors(g, "q", "k", "v", "o", "do"), stats, scale=0.125)


@_register_graph(D.OPERATION_RESHAPE, "reshape")
def _add_reshape(g: GraphBuilder) -> None:
    """Add the gradients of attention, in which reshape operations transpose P and dS."""
    q, o, do = _add_head_tensors(g, "q", "o", "do")
    keys, values = (_add_transposed_keys(g, f"{name}_t") for name in ("k", "v"))
    _add_attention_gradients(g, q, o, do, g.pointwise(P.MUL, g.matmul(q, keys), g.scalar(0.125)), keys, values)


def _add_attention_gradients(
    g: GraphBuilder, q: Tensor, o: Tensor, do: Tensor, scores: Tensor, keys: Tensor, values: Tensor, *, band: int = 0
) -> None:
    """Add the gradients of Q, K, V and, with `band`, of a banded bias."""
    stats = g.tensor("stats", (2, 4, 128, 1), T.FLOAT)
    p = g.pointwise(P.EXP, g.pointwise(P.SUB, scores, stats), data_type=T.HALF)
    turned: dict[str, Any] = {"strides": (4 * 128 * 128, 128 * 128, 1, 128)}
    g.matmul(g.reshape(p, (2, 4, 128, 128), **turned), do, name="dv", **IN_MEMORY)
    rows, total = (
        g.tensor(name, (*HEADS_SHAPE[:3], size), T.FLOAT, scratch=True) for name, size in (("rows", 1), ("sum", 64))
    )
    sums = g.reduction(ReduceTensorOp.ADD, g.pointwise(P.MUL, do, o), rows.dims)
    g.pointwise(P.MUL, sums, g.scalar(1.0), out=rows)  # without this multiplication, cuDNN does not write the rows
    ds = g.pointwise(P.MUL, g.pointwise(P.SUB, g.matmul(do, values), rows), p)
    if band:
        g.contract_band_matrix(
            ds, lower_bandwidth=band, upper_bandwidth=0, pad_value=0.0, name="dband", data_type=T.HALF, **IN_MEMORY
        )
    ds = g.pointwise(P.MUL, ds, g.scalar(0.125), data_type=T.HALF)
    g.matmul(g.reshape(ds, (2, 4, 128, 128), **turned), q, name="dk", **IN_MEMORY)
    g.matmul(ds, g.reshape(keys, HEADS_SHAPE, data_type=T.HALF), out=total)
    g.pointwise(P.IDENTITY, total, name="dq", **IN_MEMORY)


BAND_WIDTH = 16  # number of columns before the diagonal that have a bias


def _add_banded_scores(g: GraphBuilder, q: Tensor, keys: Tensor) -> Tensor:
    """Return attention scores with a bias in a band below the diagonal, as in sliding window attention."""
    band = g.tensor("band", (*HEADS_SHAPE[:3], BAND_WIDTH + 1))
    bias = g.expand_band_matrix(band, HEADS_SHAPE[2], lower_bandwidth=BAND_WIDTH, upper_bandwidth=0, pad_value=0.0)
    return g.pointwise(P.ADD, g.pointwise(P.MUL, g.matmul(q, keys), g.scalar(0.125)), bias)


_BIAS_NOTE = "as the bias of attention"


@_register_graph(
    D.OPERATION_EXPAND_BAND_MATRIX, "expand_band_matrix", supported=("a100", "h100", "b200"), note=_BIAS_NOTE
)
def _add_expand_band_matrix(g: GraphBuilder) -> None:
    q, v = _add_head_tensors(g, "q", "v")
    g.matmul(_add_softmax_operations(g, _add_banded_scores(g, q, _add_transposed_keys(g))), v, **IN_MEMORY)


@_register_graph(D.OPERATION_CONTRACT_BAND_MATRIX, "contract_band_matrix", note=f"{_BIAS_NOTE}, its gradient")
def _add_contract_band_matrix(g: GraphBuilder) -> None:
    q, o, do = _add_head_tensors(g, "q", "o", "do")
    keys, values = (_add_transposed_keys(g, f"{name}_t") for name in ("k", "v"))
    _add_attention_gradients(g, q, o, do, _add_banded_scores(g, q, keys), keys, values, band=BAND_WIDTH)
