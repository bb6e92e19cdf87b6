"""Edge cases of pooling and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudnn_backend_py import DataType, GraphBuilder
from cudnn_backend_py.generated.enums import (
    NanPropagation,
    PaddingMode,
    ResampleMode,
)
from cudnn_backend_py.interpreter import interpret
from tests.support.edges.case import IMAGE_SHAPE, IN_MEMORY, Array, add_edge_case
from tests.support.edges.numbers import make_image_with_many_ties
from tests.support.typical_graphs import add_bilinear_upsampling

__all__: list[str] = []

S, T = ResampleMode, DataType


def _add_pool_case(
    mode: ResampleMode,
    kind: DataType,
    variant: str,
    *,
    idx: bool = False,
    padding: PaddingMode | None = None,
    nan: NanPropagation = NanPropagation.PROPAGATE_NAN,
    sides: tuple[Any, Any, Any, Any] = (3, 2, 1, 1),
    layout: str = "channels_last",
) -> None:
    window, stride, before, after = sides
    strides: Any = layout

    def build_pool(g: GraphBuilder) -> None:
        g.resample(
            mode,
            g.tensor("x", IMAGE_SHAPE, strides=strides),
            window,
            stride=stride,
            padding=before,
            post_padding=after,
            padding_mode=padding,
            nan_propagation=nan,
            idx=idx,
            data_type=kind,
            **IN_MEMORY,
        )

    words = [mode.name, variant, "idx" if idx else "", "" if padding is None else padding.name, nan.name, layout]
    shown = " ".join([*(word for word in words if word), "window", *map(str, sides)]).replace("/", ":")
    add_edge_case(f"pool/{shown}/{kind.name}", kind, build_pool, x=lambda: make_image_with_many_ties(kind, variant))


_UNEVEN_WINDOW = ((2, 3), (2, 2), (0, 1), (1, 2))
for _kind in (T.HALF, T.FLOAT):
    for _nan in NanPropagation:
        for _variant in ("equal", "hostile"):
            for _with in (True, False):
                _add_pool_case(S.MAXPOOL, _kind, _variant, idx=_with, nan=_nan)
    for _padding in (PaddingMode.NEG_INF_PAD, PaddingMode.ZERO_PAD, PaddingMode.EDGE_VAL_PAD):
        _add_pool_case(S.MAXPOOL, _kind, "negative", idx=True, padding=_padding)
        _add_pool_case(S.MAXPOOL, _kind, "negative", idx=False, padding=_padding, sides=_UNEVEN_WINDOW)
    _add_pool_case(S.MAXPOOL, _kind, "equal", idx=True, sides=_UNEVEN_WINDOW)
    _add_pool_case(S.MAXPOOL, _kind, "hostile", layout="packed")
    for _mode2 in (S.AVGPOOL_INCLUDE_PADDING, S.AVGPOOL_EXCLUDE_PADDING):
        for _sides in ((3, 2, 1, 1), _UNEVEN_WINDOW, (2, 2, 0, 0)):
            _add_pool_case(_mode2, _kind, "equal", sides=_sides)
        _add_pool_case(_mode2, _kind, "hostile")
        _add_pool_case(_mode2, _kind, "hostile", nan=NanPropagation.NOT_PROPAGATE_NAN)
        _add_pool_case(_mode2, _kind, "equal", layout="packed")
_add_pool_case(S.MAXPOOL, T.INT8, "equal")
add_edge_case("pool/BILINEAR up/FLOAT", T.FLOAT, add_bilinear_upsampling)


def _make_increasing_image() -> Array:
    return np.broadcast_to(np.arange(28.0)[:, None] + 32 * np.arange(28.0), (4, 32, 28, 28))


add_edge_case("pool/BILINEAR ramp/FLOAT", T.FLOAT, add_bilinear_upsampling, x=_make_increasing_image)


def _add_pool_backward_case(mode: ResampleMode, kind: DataType, sides: tuple[Any, Any, Any, Any], layout: str) -> None:
    window, stride, before, after = sides
    strides: Any = layout

    def build_pool_backward(g: GraphBuilder) -> None:
        f = GraphBuilder("forward", io_type=kind)
        dims = f.resample(
            mode, f.tensor("x", IMAGE_SHAPE), window, stride=stride, padding=before, post_padding=after
        ).y.dims
        more: dict[str, Any] = {}
        if mode is S.MAXPOOL and layout != "packed":
            more["idx"] = g.tensor("idx", dims, T.INT8, strides=strides)
        elif mode is S.MAXPOOL:
            more |= {"x": g.tensor("x", IMAGE_SHAPE), "y": g.tensor("y", dims)}
        dy = g.tensor("dy", dims, strides=strides)
        more |= {"stride": stride, "padding": before, "post_padding": after, "data_type": kind}
        more |= {} if "x" in more else {"dims": IMAGE_SHAPE}
        g.resample_backward(mode, dy, window, **more, **IN_MEMORY)

    def compute_forward_indices() -> Array:
        g = GraphBuilder("forward", io_type=T.FLOAT)
        x = g.tensor("x", IMAGE_SHAPE)
        made = g.resample(mode, x, window, stride=stride, padding=before, post_padding=after, idx=True, **IN_MEMORY).idx
        assert made is not None
        return interpret(g.graph(), {"x": make_image_with_many_ties(T.FLOAT, "equal")})[made.name]

    given: dict[str, Callable[[], Array]] = {}
    if mode is S.MAXPOOL and layout != "packed":
        given["idx"] = compute_forward_indices
    words = " ".join(["backward", mode.name, layout, "window", *map(str, sides)])
    add_edge_case(f"pool/{words}/{kind.name}", kind, build_pool_backward, **given)


for _kind in (T.HALF, T.FLOAT):
    for _sides in ((3, 2, 1, 1), _UNEVEN_WINDOW, (2, 2, 0, 0)):
        for _mode2 in (S.MAXPOOL, S.AVGPOOL_INCLUDE_PADDING, S.AVGPOOL_EXCLUDE_PADDING):
            for _layout in ("channels_last", "packed"):
                _add_pool_backward_case(_mode2, _kind, _sides, _layout)
