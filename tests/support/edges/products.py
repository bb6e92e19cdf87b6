"""Edge cases of convolutions, matmuls and mixture-of-experts matmuls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cudnn_backend_py import DataType, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import (
    ConvolutionMode,
    MoeGroupedMatmulMode,
)
from cudnn_backend_py.graph.formats import is_integer, round_to_data_type
from tests.support.edges.case import CHANNELS_LAST, FLOAT_TYPES, IMAGE_SHAPE, IN_MEMORY, Array, add_edge_case
from tests.support.edges.numbers import list_edge_numbers, make_image_with_many_ties

__all__: list[str] = []

C, M, P, T = ConvolutionMode, MoeGroupedMatmulMode, PointwiseMode, DataType


# convolutions


def _add_convolution_case(kind: DataType, turned: bool, hostile: bool) -> None:
    def build_convolution(g: GraphBuilder) -> None:
        to = kind
        x, w = g.tensor("x", IMAGE_SHAPE, **CHANNELS_LAST), g.tensor("w", (64, 32, 3, 3), **CHANNELS_LAST)
        mode = C.CONVOLUTION if turned else C.CROSS_CORRELATION
        g.convolution(x, w, padding=(1, 0), post_padding=(1, 2), mode=mode, data_type=to, **IN_MEMORY)

    def make_random_filter() -> Array:
        w = np.random.default_rng(10).integers(-2, 3, (64, 32, 3, 3)).astype(np.float64)
        if hostile:
            w[0, 0, 0, 0], w[1, 3, 2, 2], w[2, 1, 1, 1] = np.inf, np.nan, -np.inf
        return round_to_data_type(w, kind)

    words = f"{'turned' if turned else 'straight'}{' hostile' if hostile else ''}"
    image = partial(make_image_with_many_ties, kind, "equal")
    add_edge_case(f"convolution/{words}/{kind.name}", kind, build_convolution, x=image, w=make_random_filter)


for _kind in FLOAT_TYPES:
    for _turned in (False, True):
        _add_convolution_case(_kind, _turned, False)
    _add_convolution_case(_kind, False, True)


def _build_integer_convolution(g: GraphBuilder) -> None:
    x, w = g.tensor("x", (2, 32, 12, 12), **CHANNELS_LAST), g.tensor("w", (64, 32, 3, 3), **CHANNELS_LAST)
    g.convolution(x, w, padding=1, compute_type=T.INT32, data_type=T.INT32, **IN_MEMORY)


add_edge_case("convolution/integers/INT8", T.INT8, _build_integer_convolution)


# matmuls


def _add_matmul_case(kind: DataType, to: DataType, compute: DataType, hostile: bool) -> None:
    dims = (2, 64, 64)

    def build_matmul(g: GraphBuilder) -> None:
        a, b = g.tensor("a", dims), g.tensor("b", dims, strides=(64 * 64, 1, 64))
        c = g.matmul(a, b, compute_type=compute, data_type=compute)
        g.pointwise(P.IDENTITY, c, data_type=to, **IN_MEMORY)

    def make_random_matrices(seed: int) -> Array:
        random = np.random.default_rng([13, seed])
        if is_integer(kind):
            return random.integers(-128, 128, dims)
        values = random.normal(size=dims)
        if hostile:
            edges, places = list_edge_numbers(kind), random.permutation(64)[:8]
            for place in places:
                values[0, place, random.integers(64)] = edges[random.integers(len(edges))]
            values[1] = random.permutation(np.resize(edges[np.isfinite(edges)], 64 * 64)).reshape(64, 64)
            values[1, :32] = np.where(np.abs(values[1, :32]) < 1e-3, values[1, :32], 0.0)
        return round_to_data_type(values, kind)

    words = f"matmul/{'hostile ' if hostile else ''}{kind.name} to {to.name}/{compute.name}"
    add_edge_case(words, kind, build_matmul, a=partial(make_random_matrices, 0), b=partial(make_random_matrices, 1))


for _hostile in (False, True):
    for _kind, _to in ((T.HALF, T.HALF), (T.HALF, T.FLOAT), (T.BFLOAT16, T.BFLOAT16), (T.FLOAT, T.FLOAT)):
        if not (_hostile and _kind is T.FLOAT):  # rounded to TF32, the largest float32 becomes infinite
            _add_matmul_case(_kind, _to, T.FLOAT, _hostile)
    for _kind in (T.FP8_E4M3, T.FP8_E5M2):
        if not (_hostile and _kind is T.FP8_E5M2):  # products of FP8_E5M2 exceed the 14 bits of the accumulator
            _add_matmul_case(_kind, T.FLOAT, T.FLOAT, _hostile)
_add_matmul_case(T.INT8, T.INT32, T.INT32, False)
_add_matmul_case(T.INT8, T.FLOAT, T.INT32, False)


# mixture of experts


def _make_moe_first_token_offsets() -> Array:
    return np.array([16, 16, 80, 80, 81, 200, 256, 256]).reshape(8, 1, 1)


def _add_moe_case(mode: str, kind: DataType) -> None:
    def build_moe(g: GraphBuilder) -> None:
        tokens = 128 if mode == "GATHER" else 256
        more: dict[str, Any] = {} if mode == "NONE" else {"mode": M[mode]}
        if mode != "NONE":
            wide = T.INT64 if mode == "GATHER" else T.INT32  # INT32 indices are a known issue
            more["token_index"] = g.tensor("token_index", (1, 256, 1), wide)
        if mode == "SCATTER":
            more |= {"token_ks": g.tensor("token_ks", (1, 256, 1), T.INT32), "top_k": 2}
        g.moe_grouped_matmul(
            token=g.tensor("token", (1, tokens, 64)),
            weight=g.tensor("weight", (8, 64, 128), strides=(64 * 128, 1, 64)),
            first_token_offset=g.tensor("offsets", (8, 1, 1), T.INT32),
            data_type=kind,
            **more,
            **IN_MEMORY,
        )

    random = np.random.default_rng(11)
    given: dict[str, Callable[[], Array]] = {"offsets": _make_moe_first_token_offsets}
    if mode == "GATHER":
        given["token_index"] = lambda: random.integers(0, 128, (1, 256, 1))
    if mode == "SCATTER":
        order = random.permutation(256).reshape(1, 256, 1)
        given |= {"token_index": lambda: order // 2, "token_ks": lambda: order % 2}
    add_edge_case(f"experts/{mode}/{kind.name}", kind, build_moe, **given)


for _kind in (T.HALF, T.BFLOAT16):
    for _name in ("NONE", "GATHER", "SCATTER"):
        _add_moe_case(_name, _kind)
