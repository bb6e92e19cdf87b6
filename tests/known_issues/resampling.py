"""Examples of known issues of pooling and interpolation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ResampleMode
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph

from .example import Examples

__all__ = ["RESAMPLING"]


def _upsampling(data_type: DataType) -> Graph:
    """Return an image of twice the size, by bilinear interpolation."""
    g, half = GraphBuilder("upsampling", io_type=data_type), Fraction(1, 2)
    x = g.tensor("x", (4, 32, 28, 28), strides="channels_last")
    window: dict[str, Any] = {"window": 2, "stride": half, "padding": half, "post_padding": 1}
    g.resample(ResampleMode.BILINEAR, x, **window, name="y", virtual=False)
    return g.graph()


def _pool(kind: DataType, *, before: bool = False) -> Graph:
    """Return a pooling, of what a ReLU makes or not."""
    g = GraphBuilder("pool", io_type=kind)
    x = g.tensor("x", (2, 64, 7, 13), strides="channels_last")
    if before:
        x = g.pointwise(PointwiseMode.RELU_FWD, x, strides=x.strides)
    g.resample(ResampleMode.AVGPOOL_INCLUDE_PADDING, x, 2, virtual=False, name="y")
    return g.graph()


def _pool_gradient(sizes: tuple[int, ...]) -> Graph:
    """Return the gradient of an average pool of windows of three, two apart."""
    g = GraphBuilder("pool", io_type=DataType.FLOAT)
    dy = g.tensor("dy", (2, 32, *((size - 3) // 2 + 1 for size in sizes)), strides="channels_last")
    dims = (2, 32, *sizes)
    g.resample_backward(ResampleMode.AVGPOOL_INCLUDE_PADDING, dy, 3, stride=2, dims=dims, virtual=False, name="dx")
    return g.graph()


def _pooled(
    sizes: tuple[int, ...],
    window: int | tuple[int, ...] = 3,
    mode: ResampleMode = ResampleMode.MAXPOOL,
    *,
    strides: Literal["packed", "channels_last"] = "channels_last",
    **sides: Any,
) -> Graph:
    g = GraphBuilder("pooled", io_type=DataType.HALF)
    g.resample(mode, g.tensor("x", (2, 32, *sizes), strides=strides), window, virtual=False, name="y", **sides)
    return g.graph()


def _spread_back(sizes: tuple[int, ...], fewer: tuple[int, ...], **sides: Any) -> Graph:
    """Return the gradient of an average pool of windows of three, two apart, that counts its padding, row-major."""
    g, dims, less = GraphBuilder("spread back", io_type=DataType.HALF), (2, 32, *sizes), (2, 32, *fewer)
    x, y, dy = (g.tensor(name, held, strides="packed") for name, held in (("x", dims), ("y", less), ("dy", less)))
    mode = ResampleMode.AVGPOOL_INCLUDE_PADDING
    g.resample_backward(mode, dy, 3, stride=2, dims=dims, x=x, y=y, **sides, virtual=False, name="dx")
    return g.graph()


def _upsampled(sizes: tuple[int, ...]) -> Graph:
    """Return a bilinear resampling to twice the sizes."""
    g, half = GraphBuilder("upsampled", io_type=DataType.FLOAT), Fraction(1, 2)
    x = g.tensor("x", (2, 8, *sizes), strides="channels_last")
    g.resample(ResampleMode.BILINEAR, x, 2, stride=half, padding=half, post_padding=1, virtual=False, name="y")
    return g.graph()


def _unpooled(*given: str, sizes: tuple[int, ...] = (7, 13)) -> Graph:
    """Return the gradient of a max pool from its index, or its image and its result; a dim of 1 is not pooled."""
    g, dims = GraphBuilder("unpooled", io_type=DataType.HALF), (2, 32, *sizes)
    window, stride = (tuple(most if size > 1 else 1 for size in sizes) for most in (3, 2))
    less = (2, 32, *((size - 1) // 2 or 1 for size in sizes))
    ports = {"idx": (less, DataType.INT8), "x": (dims, DataType.HALF), "y": (less, DataType.HALF)}
    held: dict[str, Any] = {name: g.tensor(name, *ports[name], strides="channels_last") for name in given}
    dy = g.tensor("dy", less, strides="channels_last")
    g.resample_backward(ResampleMode.MAXPOOL, dy, window, stride=stride, dims=dims, **held, virtual=False, name="dx")
    return g.graph()


RESAMPLING: dict[str, Examples] = {
    "bilinear-16-bits": Examples(
        reproductions={
            "": lambda: _upsampling(DataType.HALF),
            "bfloat16": lambda: _upsampling(DataType.BFLOAT16),
        },
        unlike=lambda: _upsampling(DataType.FLOAT),
        remedy=lambda: _upsampling(DataType.FLOAT),
    ),
    "pooling-of-bfloat16": Examples(
        reproductions={"": lambda: _pool(DataType.BFLOAT16)},
        unlike=lambda: _pool(DataType.HALF),
        remedy=lambda: _pool(DataType.HALF),
    ),
    "pooling-behind-elementwise": Examples(
        reproductions={"": lambda: _pool(DataType.HALF, before=True)},
        unlike=lambda: _pool(DataType.HALF),
        remedy=lambda: _pool(DataType.HALF),
    ),
    "pooling-gradient-over-one-dim": Examples(
        reproductions={"": lambda: _pool_gradient((15,))},
        unlike=lambda: _pool_gradient((7, 15)),
        remedy=lambda: _pool_gradient((7, 15)),
    ),
    "pooling-over-one-dim": Examples(
        reproductions={"": lambda: _pooled((13,), stride=2)},
        unlike=lambda: _pooled((1, 13), (1, 3), stride=(1, 2)),
        remedy=lambda: _pooled((1, 13), (1, 3), stride=(1, 2)),
    ),
    "bilinear-three-dims": Examples(
        reproductions={"": lambda: _upsampled((5, 6, 7))},
        unlike=lambda: _upsampled((5, 6)),
        remedy=lambda: _upsampled((5, 6)),
    ),
    "bilinear-one-dim": Examples(
        reproductions={"": lambda: _upsampled((5,))},
        unlike=lambda: _upsampled((1, 5)),
        remedy=lambda: _upsampled((5, 6)),
    ),
    "max-pool-gradient-of-both": Examples(
        reproductions={"": lambda: _unpooled("x", "y")},
        unlike=lambda: _unpooled("idx"),
        remedy=lambda: _unpooled("idx"),
    ),
    "max-pool-gradient-one-dim": Examples(
        reproductions={"": lambda: _unpooled("idx", sizes=(13,))},
        unlike=lambda: _unpooled("idx", sizes=(1, 13)),
        remedy=lambda: _unpooled("idx", sizes=(1, 13)),
    ),
    "average-pool-padded-behind": Examples(
        reproductions={
            "": lambda: _pooled(
                (6, 6), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, strides="packed", stride=2, padding=0, post_padding=1
            ),
            "gradient": lambda: _spread_back((9, 4), (5, 3), padding=1, post_padding=2),
            "gradient, three dims": lambda: _spread_back((7, 4, 4), (3, 1, 2), padding=0, post_padding=(1, 0, 2)),
        },
        unlike=lambda: _pooled(
            (6, 6), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, strides="packed", stride=2, padding=1, post_padding=0
        ),
        remedy=lambda: _pooled((6, 6), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, stride=2, padding=0, post_padding=1),
    ),
}
