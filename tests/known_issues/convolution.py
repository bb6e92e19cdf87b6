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


def make_convolution(
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


def _make_3d_convolution_with_filter_size(data_type: DataType, taps: int, *, last: bool = False) -> Graph:
    return make_convolution(data_type, (2, 32, 8, 16, 16), (32, 32, taps, taps, taps), last=last)


def _make_int8_convolution(*, relu: bool) -> Graph:
    """Return an int8 convolution with scale, residual, bias and optionally ReLU, channels last."""
    g = GraphBuilder("int8 convolution", io_type=DataType.INT8)

    def make_channels_last_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
        return channels_last(dims)

    image, filters, result, channel = (2, 32, 16, 16), (64, 32, 3, 3), (2, 64, 16, 16), (1, 64, 1, 1)
    x, w, z = (
        g.tensor(name, dims, strides=make_channels_last_strides(dims))
        for name, dims in (("x", image), ("w", filters), ("z", result))
    )
    scale, bias = (
        g.tensor(name, channel, DataType.FLOAT, strides=make_channels_last_strides(channel))
        for name in ("scale", "bias")
    )
    inner: dict[str, Any] = {"strides": make_channels_last_strides(result)}
    y = g.convolution(x, w, padding=1, compute_type=DataType.INT32, data_type=DataType.INT32, **inner)
    y = g.pointwise(PointwiseMode.MUL, y, scale, **inner)
    y = g.pointwise(PointwiseMode.ADD, y, z, **inner)
    if relu:
        y = g.pointwise(PointwiseMode.ADD, y, bias, **inner)
        g.pointwise(PointwiseMode.RELU_FWD, y, name="y", virtual=False, **inner)
    else:
        g.pointwise(PointwiseMode.ADD, y, bias, name="y", virtual=False, **inner)
    return g.graph()


def _make_weight_gradient_of_changed_image(*modes: PointwiseMode) -> Graph:
    """Return a channels-last weight gradient that applies pointwise operations to its image first."""
    g = GraphBuilder("weight gradient")
    x, dy = (g.tensor(name, (4, 64, 16, 16), strides="channels_last") for name in ("x", "dy"))
    for mode in modes:
        channels = () if mode is PointwiseMode.RELU_FWD else (g.tensor(mode.name, (1, 64, 1, 1)),)
        x = g.pointwise(mode, x, *channels, data_type=DataType.HALF)
    g.convolution_backward_filter(x, dy, (3, 3), padding=1, name="dw", virtual=False)
    return g.graph()


def _make_scaled_convolution(kind: DataType) -> Graph:
    """Return a convolution in a data type, with its result multiplied by 1000."""
    g = GraphBuilder("scaled")
    x, w = (
        g.tensor(name, dims, strides="channels_last") for name, dims in (("x", (1, 32, 8, 8)), ("w", (32, 32, 1, 1)))
    )
    y = g.convolution(x, w)
    g.pointwise(
        PointwiseMode.MUL, y, g.scalar(1000.0, rank=4), name="y", virtual=False, data_type=kind, strides=y.strides
    )
    return g.graph()


def _make_int8_convolution_with_output_type(kind: DataType) -> Graph:
    """Return an INT8 convolution with an output of a data type."""
    g = GraphBuilder("integers", io_type=DataType.INT8)
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    g.convolution(x, w, compute_type=DataType.INT32, data_type=kind, virtual=False, name="y")
    return g.graph()


def _make_convolution_or_gradient(
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
    """Return a convolution or one of its gradients, with an optional scale before it and an optional sum after it."""
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


def _make_3d_convolution(kind: DataType) -> Graph:
    """Return a 3D convolution of float16 tensors, with an output of the given data type."""
    g = GraphBuilder("deep", io_type=DataType.HALF)
    x = g.tensor("x", (2, 16, 6, 10, 10), strides="channels_last")
    w = g.tensor("w", (32, 16, 3, 3, 3), strides="channels_last")
    g.convolution(x, w, padding=1, data_type=kind, virtual=False, name="y")
    return g.graph()


def _make_filter_gradient(**more: Any) -> Graph:
    """Return the gradient of a filter in float32, padded by 1 by default."""
    return _make_convolution_or_gradient(
        "filter", (1, 64, 6, 14), (8, 64, 3, 3), kind=DataType.FLOAT, padding=1, **more
    )


def _make_split_k_filter_gradient(kind: DataType) -> Graph:
    """Return a filter gradient that sums 96 terms per element; a config of engine 47 sums 64 of them first."""
    return _make_convolution_or_gradient(
        "filter", (4, 8, 10, 14), (32, 8, 3, 3), kind=kind, stride=(2, 3), padding=(2, 0)
    )


def _make_data_gradient_with_added_operand(operand: tuple[int, ...]) -> Graph:
    """Return the data gradient of a convolution with a stride of 2, plus an operand."""
    return _make_convolution_or_gradient("data", (1, 32, 14, 14), (32, 32, 3, 3), stride=2, padding=1, operand=operand)


def _make_filter_gradient_with_added_operand(operand: tuple[int, ...]) -> Graph:
    """Return the gradient of a filter with eight channels and 16 outputs, plus an operand."""
    return _make_convolution_or_gradient("filter", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=operand)


def _make_convolution_of_normed_image(*modes: PointwiseMode) -> Graph:
    """Return the sum of all elements of a convolution of a normed image, after elementwise operations on its result."""
    g, dims = GraphBuilder("normed", io_type=DataType.HALF), (2, 32, 8, 8)
    x = g.tensor("x", dims, strides="channels_last")
    of_image: dict[str, Any] = {"strides": channels_last(dims)}
    scale, bias = (g.tensor(name, (1, 32, 1, 1), strides="channels_last") for name in ("scale", "bias"))
    normed = g.pointwise(PointwiseMode.ADD, g.pointwise(PointwiseMode.MUL, x, scale, **of_image), bias, **of_image)
    image = g.pointwise(PointwiseMode.RELU_FWD, normed, data_type=DataType.HALF, **of_image)
    y = g.convolution(image, g.tensor("w", (32, 32, 1, 1), strides="channels_last"))
    for mode in modes:
        y = g.pointwise(mode, y, strides=y.strides)
    g.reduction(ReduceTensorOp.ADD, y, dims=(1, 1, 1, 1), data_type=DataType.FLOAT, virtual=False, name="sum")
    return g.graph()


def _make_weight_gradient_with_relu(alignment: int, *, relu: bool = True) -> Graph:
    g = GraphBuilder("weight gradient", io_type=DataType.HALF)
    image, filters = (4, 64, 16, 16), (64, 64, 3, 3)
    x = g.tensor("x", image, strides=channels_last(image), alignment=alignment)
    dy = g.tensor("dy", image, strides=channels_last(image))
    like: dict[str, Any] = {"strides": channels_last(filters)}
    dw = g.convolution_backward_filter(x, dy, (3, 3), padding=1, name="dw", virtual=relu, **like)
    if relu:
        g.pointwise(PointwiseMode.RELU_FWD, dw, name="y", virtual=False, **like)
    return g.graph()


CONVOLUTION: dict[str, Examples] = {
    "fused-convolution-alignment": Examples(
        reproductions={"": lambda: _make_weight_gradient_with_relu(2)},
        unaffected=lambda: _make_weight_gradient_with_relu(2, relu=False),
        fixed=lambda: _make_weight_gradient_with_relu(4),
    ),
    "convolution-3d-half": Examples(
        reproductions={
            "bfloat16": lambda: _make_3d_convolution_with_filter_size(DataType.BFLOAT16, 3),
            "half": lambda: _make_3d_convolution_with_filter_size(DataType.HALF, 3),
        },
        unaffected=lambda: _make_3d_convolution_with_filter_size(DataType.HALF, 1),
        fixed=lambda: _make_3d_convolution_with_filter_size(DataType.HALF, 3, last=True),
    ),
    "convolution-3d-tf32": Examples(
        reproductions={"": lambda: _make_3d_convolution_with_filter_size(DataType.FLOAT, 3)},
        unaffected=lambda: _make_3d_convolution_with_filter_size(DataType.HALF, 3, last=True),
    ),
    "convolution-depthwise-large": Examples(
        reproductions={"": lambda: make_convolution(DataType.HALF, (64, 64, 1024, 1024), (64, 1, 1, 1))},
        unaffected=lambda: make_convolution(DataType.HALF, (8, 64, 1024, 1024), (64, 1, 1, 1)),
    ),
    "depthwise-sequence-of-shapes": Examples(
        reproductions={"": lambda: make_convolution(DataType.HALF, (4, 64, 56, 56), (64, 1, 3, 3))},
        unaffected=lambda: make_convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    "depthwise-not-repeatable": Examples(
        reproductions={"": lambda: make_convolution(DataType.HALF, (4, 64, 56, 56), (64, 1, 3, 3))},
        unaffected=lambda: make_convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    "convolution-large-filter": Examples(
        reproductions={"": lambda: make_convolution(DataType.HALF, (1, 16384, 4, 4), (16384, 16384, 3, 3))},
        unaffected=lambda: make_convolution(DataType.HALF, (1, 8192, 4, 4), (16384, 8192, 3, 3)),
    ),
    "convolution-int8-relu": Examples(
        reproductions={"": lambda: _make_int8_convolution(relu=True)},
        unaffected=lambda: _make_int8_convolution(relu=False),
        fixed=lambda: _make_int8_convolution(relu=False),
    ),
    "weight-gradient-prologue": Examples(
        reproductions={
            "": lambda: _make_weight_gradient_of_changed_image(PointwiseMode.ADD, PointwiseMode.RELU_FWD),
            "relu": lambda: _make_weight_gradient_of_changed_image(PointwiseMode.RELU_FWD),
        },
        unaffected=lambda: _make_weight_gradient_of_changed_image(PointwiseMode.MUL, PointwiseMode.ADD),
        fixed=_make_weight_gradient_of_changed_image,
    ),
    "weight-gradient-normed": Examples(
        reproductions={"": lambda: _make_weight_gradient_of_changed_image(*_SCALE_AND_BIAS, PointwiseMode.RELU_FWD)},
        unaffected=lambda: _make_weight_gradient_of_changed_image(PointwiseMode.RELU_FWD),
        fixed=_make_weight_gradient_of_changed_image,
    ),
    "fp8-not-held": Examples(
        reproductions={"": lambda: _make_scaled_convolution(DataType.FP8_E4M3)},
        unaffected=lambda: _make_scaled_convolution(DataType.BFLOAT16),
        fixed=lambda: _make_scaled_convolution(DataType.BFLOAT16),
    ),
    "convolution-int8-into-int32": Examples(
        reproductions={"": lambda: _make_int8_convolution_with_output_type(DataType.INT32)},
        unaffected=lambda: _make_int8_convolution_with_output_type(DataType.FLOAT),
        fixed=lambda: _make_int8_convolution_with_output_type(DataType.FLOAT),
    ),
    "convolution-operand-part-of-rows": Examples(
        reproductions={
            "": lambda: _make_filter_gradient_with_added_operand((1, 8, 1, 1)),
            "forward": lambda: _make_convolution_or_gradient(
                "forward", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=(1, 1, 7, 5)
            ),
            "data": lambda: _make_convolution_or_gradient(
                "data", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=(2, 1, 1, 1)
            ),
        },
        unaffected=lambda: _make_filter_gradient_with_added_operand((1, 8, 3, 3)),
        fixed=lambda: _make_filter_gradient_with_added_operand((1, 8, 3, 3)),
    ),
    "strided-gradient-operand-of-rows": Examples(
        reproductions={"": lambda: _make_data_gradient_with_added_operand((1, 1, 14, 14))},
        unaffected=lambda: _make_data_gradient_with_added_operand((1, 32, 14, 14)),
        fixed=lambda: _make_data_gradient_with_added_operand((1, 32, 14, 14)),
    ),
    "gradient-padded-unevenly": Examples(
        reproductions={"": lambda: _make_filter_gradient(post_padding=(2, 1))},
        unaffected=_make_filter_gradient,
        fixed=_make_filter_gradient,
    ),
    "packed-images-unaligned": Examples(
        reproductions={
            "": lambda: _make_convolution_or_gradient("filter", (3, 8, 10, 5), (16, 8, 1, 1), strides="packed"),
            "data": lambda: _make_convolution_or_gradient(
                "data", (1, 64, 7, 5), (16, 64, 3, 3), strides="packed", padding=1
            ),
            "many channels": lambda: _make_convolution_or_gradient(
                "filter", (1, 64, 7, 5), (32, 64, 1, 1), strides="packed"
            ),
        },
        unaffected=lambda: _make_convolution_or_gradient("filter", (3, 8, 8, 8), (16, 8, 1, 1), strides="packed"),
        fixed=lambda: _make_convolution_or_gradient("filter", (3, 8, 10, 5), (16, 8, 1, 1)),
    ),
    "packed-images-engine-7": Examples(
        reproductions={
            "": lambda: _make_convolution_or_gradient("forward", (2, 16, 7, 5), (8, 16, 1, 1), strides="packed")
        },
        unaffected=lambda: _make_convolution_or_gradient("forward", (2, 16, 7, 5), (8, 16, 1, 1)),
        fixed=lambda: _make_convolution_or_gradient("forward", (2, 16, 7, 5), (8, 16, 1, 1)),
    ),
    "packed-images-behind": Examples(
        reproductions={
            "": lambda: _make_convolution_or_gradient(
                "forward", (1, 32, 11, 10), (32, 32, 3, 3), strides="packed", before=True, padding=1
            )
        },
        unaffected=lambda: _make_convolution_or_gradient(
            "forward", (1, 32, 11, 10), (32, 32, 3, 3), before=True, padding=1
        ),
        fixed=lambda: _make_convolution_or_gradient("forward", (1, 32, 11, 10), (32, 32, 3, 3), before=True, padding=1),
    ),
    "convolution-minus-infinity": Examples(
        reproductions={"": lambda: _make_3d_convolution(DataType.HALF)},
        unaffected=lambda: _make_convolution_or_gradient("data", (2, 16, 6, 10), (32, 16, 3, 3), padding=1),
        fixed=lambda: _make_3d_convolution(DataType.FLOAT),
    ),
    "filter-gradient-between": Examples(
        reproductions={
            "": lambda: _make_convolution_or_gradient(
                "filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, before=True, operand=(1, 1, 1, 1)
            )
        },
        unaffected=lambda: _make_convolution_or_gradient(
            "filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, operand=(1, 1, 1, 1)
        ),
        fixed=lambda: _make_convolution_or_gradient(
            "filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, operand=(1, 1, 1, 1)
        ),
    ),
    "filter-gradient-transformed": Examples(
        reproductions={
            "": lambda: _make_convolution_or_gradient(
                "filter", (3, 8, 9, 7), (8, 8, 3, 3), kind=DataType.FLOAT, strides="packed", padding=1
            )
        },
        unaffected=lambda: _make_convolution_or_gradient(
            "filter", (3, 8, 9, 7), (8, 8, 1, 1), kind=DataType.FLOAT, strides="packed"
        ),
        fixed=lambda: _make_convolution_or_gradient("filter", (3, 8, 9, 7), (8, 8, 1, 1), kind=DataType.FLOAT),
    ),
    "filter-gradient-split": Examples(
        reproductions={"": lambda: _make_split_k_filter_gradient(DataType.BFLOAT16)},
        unaffected=lambda: _make_split_k_filter_gradient(DataType.FLOAT),
        fixed=lambda: _make_split_k_filter_gradient(DataType.FLOAT),
    ),
    "normed-convolution-reduced": Examples(
        reproductions={"": lambda: _make_convolution_of_normed_image(PointwiseMode.RELU_FWD)},
        unaffected=_make_convolution_of_normed_image,
        fixed=_make_convolution_of_normed_image,
    ),
}
