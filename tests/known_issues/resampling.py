"""Examples of known issues of pooling and interpolation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ResampleMode
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph

from .example import Examples

__all__ = ["RESAMPLING"]


def _make_bilinear_upsampling(data_type: DataType) -> Graph:
    """Return a bilinear upsampling to twice the size."""
    g, half = GraphBuilder("upsampling", io_type=data_type), Fraction(1, 2)
    x = g.tensor("x", (4, 32, 28, 28), strides="channels_last")
    window: dict[str, Any] = {"window": 2, "stride": half, "padding": half, "post_padding": 1}
    g.resample(ResampleMode.BILINEAR, x, **window, name="y", virtual=False)
    return g.graph()


def _make_pooling_graph(kind: DataType, *, before: bool = False) -> Graph:
    """Return a pooling of an image, optionally after a ReLU."""
    g = GraphBuilder("pool", io_type=kind)
    x = g.tensor("x", (2, 64, 7, 13), strides="channels_last")
    if before:
        x = g.pointwise(PointwiseMode.RELU_FWD, x, strides=x.strides)
    g.resample(ResampleMode.AVGPOOL_INCLUDE_PADDING, x, 2, virtual=False, name="y")
    return g.graph()


def _make_average_pool_gradient(sizes: tuple[int, ...]) -> Graph:
    """Return the gradient of an average pool with windows of three and a stride of two."""
    g = GraphBuilder("pool", io_type=DataType.FLOAT)
    dy = g.tensor("dy", (2, 32, *((size - 3) // 2 + 1 for size in sizes)), strides="channels_last")
    dims = (2, 32, *sizes)
    g.resample_backward(ResampleMode.AVGPOOL_INCLUDE_PADDING, dy, 3, stride=2, dims=dims, virtual=False, name="dx")
    return g.graph()


def _make_pooling_of_sizes(
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


def _make_padded_average_pool_gradient(sizes: tuple[int, ...], fewer: tuple[int, ...], **sides: Any) -> Graph:
    """Return the gradient of a row-major average pool with windows of three and a stride of two that counts padding."""
    g, dims, less = GraphBuilder("spread back", io_type=DataType.HALF), (2, 32, *sizes), (2, 32, *fewer)
    x, y, dy = (g.tensor(name, held, strides="packed") for name, held in (("x", dims), ("y", less), ("dy", less)))
    mode = ResampleMode.AVGPOOL_INCLUDE_PADDING
    g.resample_backward(mode, dy, 3, stride=2, dims=dims, x=x, y=y, **sides, virtual=False, name="dx")
    return g.graph()


def _make_bilinear_resampling(sizes: tuple[int, ...]) -> Graph:
    """Return a bilinear resampling to twice the size."""
    g, half = GraphBuilder("upsampled", io_type=DataType.FLOAT), Fraction(1, 2)
    x = g.tensor("x", (2, 8, *sizes), strides="channels_last")
    g.resample(ResampleMode.BILINEAR, x, 2, stride=half, padding=half, post_padding=1, virtual=False, name="y")
    return g.graph()


def _make_max_pool_gradient(*given: str, sizes: tuple[int, ...] = (7, 13)) -> Graph:
    """Return the gradient of a max pool, read from its index or from its image and result; a dim of 1 is not pooled."""
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
            "": lambda: _make_bilinear_upsampling(DataType.HALF),
            "bfloat16": lambda: _make_bilinear_upsampling(DataType.BFLOAT16),
        },
        unaffected=lambda: _make_bilinear_upsampling(DataType.FLOAT),
        fixed=lambda: _make_bilinear_upsampling(DataType.FLOAT),
    ),
    "pooling-of-bfloat16": Examples(
        reproductions={"": lambda: _make_pooling_graph(DataType.BFLOAT16)},
        unaffected=lambda: _make_pooling_graph(DataType.HALF),
        fixed=lambda: _make_pooling_graph(DataType.HALF),
    ),
    "pooling-behind-elementwise": Examples(
        reproductions={"": lambda: _make_pooling_graph(DataType.HALF, before=True)},
        unaffected=lambda: _make_pooling_graph(DataType.HALF),
        fixed=lambda: _make_pooling_graph(DataType.HALF),
    ),
    "pooling-gradient-over-one-dim": Examples(
        reproductions={"": lambda: _make_average_pool_gradient((15,))},
        unaffected=lambda: _make_average_pool_gradient((7, 15)),
        fixed=lambda: _make_average_pool_gradient((7, 15)),
    ),
    "pooling-over-one-dim": Examples(
        reproductions={"": lambda: _make_pooling_of_sizes((13,), stride=2)},
        unaffected=lambda: _make_pooling_of_sizes((1, 13), (1, 3), stride=(1, 2)),
        fixed=lambda: _make_pooling_of_sizes((1, 13), (1, 3), stride=(1, 2)),
    ),
    "bilinear-three-dims": Examples(
        reproductions={"": lambda: _make_bilinear_resampling((5, 6, 7))},
        unaffected=lambda: _make_bilinear_resampling((5, 6)),
        fixed=lambda: _make_bilinear_resampling((5, 6)),
    ),
    "bilinear-one-dim": Examples(
        reproductions={"": lambda: _make_bilinear_resampling((5,))},
        unaffected=lambda: _make_bilinear_resampling((1, 5)),
        fixed=lambda: _make_bilinear_resampling((5, 6)),
    ),
    "max-pool-gradient-of-both": Examples(
        reproductions={"": lambda: _make_max_pool_gradient("x", "y")},
        unaffected=lambda: _make_max_pool_gradient("idx"),
        fixed=lambda: _make_max_pool_gradient("idx"),
    ),
    "max-pool-gradient-one-dim": Examples(
        reproductions={"": lambda: _make_max_pool_gradient("idx", sizes=(13,))},
        unaffected=lambda: _make_max_pool_gradient("idx", sizes=(1, 13)),
        fixed=lambda: _make_max_pool_gradient("idx", sizes=(1, 13)),
    ),
    "average-pool-padded-behind": Examples(
        reproductions={
            "": lambda: _make_pooling_of_sizes(
                (6, 6), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, strides="packed", stride=2, padding=0, post_padding=1
            ),
            "gradient": lambda: _make_padded_average_pool_gradient((9, 4), (5, 3), padding=1, post_padding=2),
            "gradient, three dims": lambda: _make_padded_average_pool_gradient(
                (7, 4, 4), (3, 1, 2), padding=0, post_padding=(1, 0, 2)
            ),
        },
        unaffected=lambda: _make_pooling_of_sizes(
            (6, 6), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, strides="packed", stride=2, padding=1, post_padding=0
        ),
        fixed=lambda: _make_pooling_of_sizes(
            (6, 6), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, stride=2, padding=0, post_padding=1
        ),
    ),
}
