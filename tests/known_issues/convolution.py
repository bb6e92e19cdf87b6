"""Examples of known issues of convolutions and their gradients."""

from __future__ import annotations

from typing import Any, Literal

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph
from cudnn_backend_py.graph.strides import channels_last, packed_strides

from .example import Examples

__all__ = ["CONVOLUTION"]


_SCALE_AND_BIAS = [PointwiseMode.MUL, PointwiseMode.ADD]


def one_convolution(
    data_type: DataType, image: tuple[int, ...], weights: tuple[int, ...], *, last: bool = False
) -> Graph:
    """Return one forward convolution, row-major or channels last."""
    g = GraphBuilder("convolution", io_type=data_type)
    x, w = (
        g.tensor(name, dims, strides=channels_last(dims) if last else "packed")
        for name, dims in (("x", image), ("w", weights))
    )
    g.convolution(x, w, padding=weights[2] // 2, name="y", virtual=False)
    return g.graph()


def _volume(data_type: DataType, taps: int, *, last: bool = False) -> Graph:
    return one_convolution(data_type, (2, 32, 8, 16, 16), (32, 32, taps, taps, taps), last=last)


def _int8(*, relu: bool) -> Graph:
    """Return an int8 convolution with scale, residual, bias and, if wanted, ReLU, channels last."""
    g = GraphBuilder("int8 convolution", io_type=DataType.INT8)

    def tensor_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
        return channels_last(dims)

    image, filters, result, channel = (2, 32, 16, 16), (64, 32, 3, 3), (2, 64, 16, 16), (1, 64, 1, 1)
    x, w, z = (
        g.tensor(name, dims, strides=tensor_strides(dims))
        for name, dims in (("x", image), ("w", filters), ("z", result))
    )
    scale, bias = (
        g.tensor(name, channel, DataType.FLOAT, strides=tensor_strides(channel)) for name in ("scale", "bias")
    )
    inner: dict[str, Any] = {"strides": tensor_strides(result)}
    y = g.convolution(x, w, padding=1, compute_type=DataType.INT32, data_type=DataType.INT32, **inner)
    y = g.pointwise(PointwiseMode.MUL, y, scale, **inner)
    y = g.pointwise(PointwiseMode.ADD, y, z, **inner)
    if relu:
        y = g.pointwise(PointwiseMode.ADD, y, bias, **inner)
        g.pointwise(PointwiseMode.RELU_FWD, y, name="y", virtual=False, **inner)
    else:
        g.pointwise(PointwiseMode.ADD, y, bias, name="y", virtual=False, **inner)
    return g.graph()


def _weight_gradient(*modes: PointwiseMode) -> Graph:
    """Return the weight gradient of a convolution of what pointwise operations make of an image, channels last."""
    g = GraphBuilder("weight gradient")
    x, dy = (g.tensor(name, (4, 64, 16, 16), strides="channels_last") for name in ("x", "dy"))
    for mode in modes:
        channels = () if mode is PointwiseMode.RELU_FWD else (g.tensor(mode.name, (1, 64, 1, 1)),)
        x = g.pointwise(mode, x, *channels, data_type=DataType.HALF)
    g.convolution_backward_filter(x, dy, (3, 3), padding=1, name="dw", virtual=False)
    return g.graph()


def _scaled(kind: DataType) -> Graph:
    """Return a convolution times 1000, in a type."""
    g = GraphBuilder("scaled")
    x, w = (
        g.tensor(name, dims, strides="channels_last") for name, dims in (("x", (1, 32, 8, 8)), ("w", (32, 32, 1, 1)))
    )
    y = g.convolution(x, w)
    g.pointwise(
        PointwiseMode.MUL, y, g.scalar(1000.0, rank=4), name="y", virtual=False, data_type=kind, strides=y.strides
    )
    return g.graph()


def _integers(kind: DataType) -> Graph:
    """Return a convolution of INT8 into a type."""
    g = GraphBuilder("integers", io_type=DataType.INT8)
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    g.convolution(x, w, compute_type=DataType.INT32, data_type=kind, virtual=False, name="y")
    return g.graph()


def _convolved(
    form: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    kind: DataType = DataType.HALF,
    strides: Literal["packed", "channels_last"] = "channels_last",
    before: bool = False,
    operand: tuple[int, ...] | None = None,
    **window: Any,
) -> Graph:
    """Return a convolution, or a gradient of one, after a scale or not, before a sum with an operand or not."""
    g = GraphBuilder("convolved", io_type=kind)
    like: dict[str, Any] = {"strides": strides}
    image = g.tensor("x", x, **like)
    y = (x[0], w[0], *(g.convolution(image, g.tensor("w", w, **like), **window).dims[2:]))
    g = GraphBuilder("convolved", io_type=kind)
    result: dict[str, Any] = {"virtual": operand is not None, "name": "out"}
    if form != "forward" or not before:
        result["strides"] = (channels_last if strides == "channels_last" else packed_strides)(
            {"forward": y, "data": x, "filter": w}[form]
        )
    if form == "data":
        z = g.convolution_backward_data(g.tensor("dy", y, **like), g.tensor("w", w, **like), dims=x, **window, **result)
    else:
        image = g.tensor("x", x, **like)
        for mode in (PointwiseMode.MUL, PointwiseMode.ADD) if before else ():
            part = g.tensor(mode.name.lower(), (1, x[1], *[1] * (len(x) - 2)), **like)
            image = g.pointwise(mode, image, part, strides=image.strides, data_type=DataType.FLOAT)
        if before:
            image = g.pointwise(PointwiseMode.RELU_FWD, image, strides=image.strides, data_type=kind)
        if form == "forward":
            z = g.convolution(image, g.tensor("w", w, **like), **window, **result)
        else:
            z = g.convolution_backward_filter(image, g.tensor("dy", y, **like), w[2:], **window, **result)
    if operand is not None:
        g.pointwise(
            PointwiseMode.ADD, z, g.tensor("operand", operand, **like), virtual=False, strides=z.strides, name="sum"
        )
    return g.graph()


def _deep(kind: DataType) -> Graph:
    """Return a convolution over three dims of float16 into a type."""
    g = GraphBuilder("deep", io_type=DataType.HALF)
    x = g.tensor("x", (2, 16, 6, 10, 10), strides="channels_last")
    w = g.tensor("w", (32, 16, 3, 3, 3), strides="channels_last")
    g.convolution(x, w, padding=1, data_type=kind, virtual=False, name="y")
    return g.graph()


def _gradient(**more: Any) -> Graph:
    """Return the gradient of a filter in float32, padded by 1 unless told otherwise."""
    return _convolved("filter", (1, 64, 6, 14), (8, 64, 3, 3), kind=DataType.FLOAT, padding=1, **more)


def _split(kind: DataType) -> Graph:
    """Return the gradient of a filter that sums 96 terms, of which a config of engine 47 sums 64 first."""
    return _convolved("filter", (4, 8, 10, 14), (32, 8, 3, 3), kind=kind, stride=(2, 3), padding=(2, 0))


def _spread(operand: tuple[int, ...]) -> Graph:
    """Return the data gradient of a convolution with a stride of 2, and an operand added to it."""
    return _convolved("data", (1, 32, 14, 14), (32, 32, 3, 3), stride=2, padding=1, operand=operand)


def _weighted(operand: tuple[int, ...]) -> Graph:
    """Return the gradient of a filter of eight channels and 16 results, and an operand added to it."""
    return _convolved("filter", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=operand)


def _normed_convolution(*behind: PointwiseMode) -> Graph:
    """Return the sum of a convolution of a normed image, and of what elementwise operations make of it."""
    g, dims = GraphBuilder("normed", io_type=DataType.HALF), (2, 32, 8, 8)
    x = g.tensor("x", dims, strides="channels_last")
    of_image: dict[str, Any] = {"strides": channels_last(dims)}
    scale, bias = (g.tensor(name, (1, 32, 1, 1), strides="channels_last") for name in ("scale", "bias"))
    normed = g.pointwise(PointwiseMode.ADD, g.pointwise(PointwiseMode.MUL, x, scale, **of_image), bias, **of_image)
    image = g.pointwise(PointwiseMode.RELU_FWD, normed, data_type=DataType.HALF, **of_image)
    y = g.convolution(image, g.tensor("w", (32, 32, 1, 1), strides="channels_last"))
    for mode in behind:
        y = g.pointwise(mode, y, strides=y.strides)
    g.reduction(ReduceTensorOp.ADD, y, dims=(1, 1, 1, 1), data_type=DataType.FLOAT, virtual=False, name="sum")
    return g.graph()


CONVOLUTION: dict[str, Examples] = {
    "convolution-3d-half": Examples(
        reproductions={"bfloat16": lambda: _volume(DataType.BFLOAT16, 3), "half": lambda: _volume(DataType.HALF, 3)},
        unlike=lambda: _volume(DataType.HALF, 1),
        remedy=lambda: _volume(DataType.HALF, 3, last=True),
    ),
    "convolution-3d-tf32": Examples(
        reproductions={"": lambda: _volume(DataType.FLOAT, 3)},
        unlike=lambda: _volume(DataType.HALF, 3, last=True),
    ),
    "convolution-depthwise-large": Examples(
        reproductions={"": lambda: one_convolution(DataType.HALF, (64, 64, 1024, 1024), (64, 1, 1, 1))},
        unlike=lambda: one_convolution(DataType.HALF, (8, 64, 1024, 1024), (64, 1, 1, 1)),
    ),
    "depthwise-sequence-of-shapes": Examples(
        reproductions={"": lambda: one_convolution(DataType.HALF, (4, 64, 56, 56), (64, 1, 3, 3))},
        unlike=lambda: one_convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    "depthwise-not-repeatable": Examples(
        reproductions={"": lambda: one_convolution(DataType.HALF, (4, 64, 56, 56), (64, 1, 3, 3))},
        unlike=lambda: one_convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    "convolution-large-filter": Examples(
        reproductions={"": lambda: one_convolution(DataType.HALF, (1, 16384, 4, 4), (16384, 16384, 3, 3))},
        unlike=lambda: one_convolution(DataType.HALF, (1, 8192, 4, 4), (16384, 8192, 3, 3)),
    ),
    "convolution-int8-relu": Examples(
        reproductions={"": lambda: _int8(relu=True)},
        unlike=lambda: _int8(relu=False),
        remedy=lambda: _int8(relu=False),
    ),
    "weight-gradient-prologue": Examples(
        reproductions={
            "": lambda: _weight_gradient(PointwiseMode.ADD, PointwiseMode.RELU_FWD),
            "relu": lambda: _weight_gradient(PointwiseMode.RELU_FWD),
        },
        unlike=lambda: _weight_gradient(PointwiseMode.MUL, PointwiseMode.ADD),
        remedy=_weight_gradient,
    ),
    "weight-gradient-normed": Examples(
        reproductions={"": lambda: _weight_gradient(*_SCALE_AND_BIAS, PointwiseMode.RELU_FWD)},
        unlike=lambda: _weight_gradient(PointwiseMode.RELU_FWD),
        remedy=_weight_gradient,
    ),
    "fp8-not-held": Examples(
        reproductions={"": lambda: _scaled(DataType.FP8_E4M3)},
        unlike=lambda: _scaled(DataType.BFLOAT16),
        remedy=lambda: _scaled(DataType.BFLOAT16),
    ),
    "convolution-int8-into-int32": Examples(
        reproductions={"": lambda: _integers(DataType.INT32)},
        unlike=lambda: _integers(DataType.FLOAT),
        remedy=lambda: _integers(DataType.FLOAT),
    ),
    "convolution-operand-part-of-rows": Examples(
        reproductions={
            "": lambda: _weighted((1, 8, 1, 1)),
            "forward": lambda: _convolved("forward", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=(1, 1, 7, 5)),
            "data": lambda: _convolved("data", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=(2, 1, 1, 1)),
        },
        unlike=lambda: _weighted((1, 8, 3, 3)),
        remedy=lambda: _weighted((1, 8, 3, 3)),
    ),
    "strided-gradient-operand-of-rows": Examples(
        reproductions={"": lambda: _spread((1, 1, 14, 14))},
        unlike=lambda: _spread((1, 32, 14, 14)),
        remedy=lambda: _spread((1, 32, 14, 14)),
    ),
    "gradient-padded-unevenly": Examples(
        reproductions={"": lambda: _gradient(post_padding=(2, 1))},
        unlike=_gradient,
        remedy=_gradient,
    ),
    "packed-images-unaligned": Examples(
        reproductions={
            "": lambda: _convolved("filter", (3, 8, 10, 5), (16, 8, 1, 1), strides="packed"),
            "data": lambda: _convolved("data", (1, 64, 7, 5), (16, 64, 3, 3), strides="packed", padding=1),
            "many channels": lambda: _convolved("filter", (1, 64, 7, 5), (32, 64, 1, 1), strides="packed"),
        },
        unlike=lambda: _convolved("filter", (3, 8, 8, 8), (16, 8, 1, 1), strides="packed"),
        remedy=lambda: _convolved("filter", (3, 8, 10, 5), (16, 8, 1, 1)),
    ),
    "packed-images-engine-7": Examples(
        reproductions={"": lambda: _convolved("forward", (2, 16, 7, 5), (8, 16, 1, 1), strides="packed")},
        unlike=lambda: _convolved("forward", (2, 16, 7, 5), (8, 16, 1, 1)),
        remedy=lambda: _convolved("forward", (2, 16, 7, 5), (8, 16, 1, 1)),
    ),
    "packed-images-behind": Examples(
        reproductions={
            "": lambda: _convolved("forward", (1, 32, 11, 10), (32, 32, 3, 3), strides="packed", before=True, padding=1)
        },
        unlike=lambda: _convolved("forward", (1, 32, 11, 10), (32, 32, 3, 3), before=True, padding=1),
        remedy=lambda: _convolved("forward", (1, 32, 11, 10), (32, 32, 3, 3), before=True, padding=1),
    ),
    "convolution-minus-infinity": Examples(
        reproductions={"": lambda: _deep(DataType.HALF)},
        unlike=lambda: _convolved("data", (2, 16, 6, 10), (32, 16, 3, 3), padding=1),
        remedy=lambda: _deep(DataType.FLOAT),
    ),
    "filter-gradient-between": Examples(
        reproductions={
            "": lambda: _convolved("filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, before=True, operand=(1, 1, 1, 1))
        },
        unlike=lambda: _convolved("filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, operand=(1, 1, 1, 1)),
        remedy=lambda: _convolved("filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, operand=(1, 1, 1, 1)),
    ),
    "filter-gradient-transformed": Examples(
        reproductions={
            "": lambda: _convolved(
                "filter", (3, 8, 9, 7), (8, 8, 3, 3), kind=DataType.FLOAT, strides="packed", padding=1
            )
        },
        unlike=lambda: _convolved("filter", (3, 8, 9, 7), (8, 8, 1, 1), kind=DataType.FLOAT, strides="packed"),
        remedy=lambda: _convolved("filter", (3, 8, 9, 7), (8, 8, 1, 1), kind=DataType.FLOAT),
    ),
    "filter-gradient-split": Examples(
        reproductions={"": lambda: _split(DataType.BFLOAT16)},
        unlike=lambda: _split(DataType.FLOAT),
        remedy=lambda: _split(DataType.FLOAT),
    ),
    "normed-convolution-reduced": Examples(
        reproductions={"": lambda: _normed_convolution(PointwiseMode.RELU_FWD)},
        unlike=_normed_convolution,
        remedy=_normed_convolution,
    ),
}
