"""Graphs at the edges of what cuDNN takes: batch sizes, tails, head dims, alignments and block scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import DataType, NormMode, PointwiseMode, ReduceTensorOp, TensorReordering
from cudnn_backend_py.graph import Graph, GraphBuilder
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.shapes import compute_scale_dims
from cudnn_backend_py.graph.strides import channels_last
from cudnn_backend_py.system.version import VersionTuple

__all__ = ["make_edge_case_graphs"]

_T, _P = DataType, PointwiseMode
_BATCHES = (65_535, 65_536)
_HEAD_DIMS = (8, 65, 72, 100, 120, 136, 160, 192, 200, 256, 264)
_ALIGNMENTS = (1, 2, 4)
_LENGTHS = (1, 63, 65, 127, 129, 1000)


def make_edge_case_graphs(version: VersionTuple) -> list[tuple[str, Graph]]:
    """Return names and graphs with edge sizes, without those that this package refuses to describe."""
    made = []
    for name, make in _list_edge_case_graph_makers(version):
        try:
            made.append((name, make()))
        except GraphError:
            continue
    return made


def _list_edge_case_graph_makers(version: VersionTuple) -> Iterator[tuple[str, Callable[[], Graph]]]:
    for batch in _BATCHES:
        yield f"matmul, batch {batch}", partial(_make_matmul, batch, 16, 16, 16)
        yield f"row norm, batch {batch}", partial(_make_row_norm, batch, 64)
        yield f"convolution, batch {batch}", partial(_make_convolution, batch, 8, 8)
        yield f"sum of rows, batch {batch}", partial(_make_row_sum, batch, 64)
    for kind, (m, n, k) in product(
        (_T.HALF, _T.BFLOAT16, _T.FLOAT, _T.FP8_E4M3, _T.INT8), ((1, 64, 64), (65, 63, 64), (64, 65, 66), (64, 64, 1))
    ):
        yield f"{kind.name} matmul {m}x{n}x{k}", partial(_make_matmul, 2, m, n, k, kind)
    for kind, (c, k) in product((_T.HALF, _T.FLOAT, _T.INT8, _T.FP8_E4M3), ((1, 8), (3, 16), (12, 20), (16, 1))):
        yield f"{kind.name} convolution of {c} to {k} channels", partial(_make_convolution, 2, c, k, kind)
    for width in (1, 63, 1023, 65_536):
        yield f"row norm of {width}", partial(_make_row_norm, 4, width)
        yield f"sum of rows of {width}", partial(_make_row_sum, 4, width)
    for alignment in _ALIGNMENTS:
        yield f"matmul, alignment {alignment}", partial(_make_matmul, 2, 64, 64, 64, alignment=alignment)
        yield f"convolution, alignment {alignment}", partial(_make_convolution, 2, 16, 16, alignment=alignment)
        yield f"relu, alignment {alignment}", partial(_make_relu, alignment)
    for few, size, reordering, sizes in product(
        (_T.FP8_E4M3, _T.FP4_E2M1),
        (16, 32),
        (TensorReordering.F8_128x4, None),
        ((64, 64, 64), (128, 128, 128), (96, 128, 128), (128, 96, 160), (100, 64, 96)),
    ):
        name = f"{few.name} matmul {'x'.join(map(str, sizes))}, blocks of {size}{', tiled' if reordering else ''}"
        yield name, partial(_make_block_scaled_matmul, few, size, reordering, *sizes)
    yield from _list_attention_graph_makers(version)


def _list_attention_graph_makers(version: VersionTuple) -> Iterator[tuple[str, Callable[[], Graph]]]:
    usual = {"batch": 2, "heads": 2, "seq_q": 128, "head_dim": 64}
    scaled = {"data_type": _T.FP8_E4M3, "head_dim": 128, "mx": True, "output_type": _T.BFLOAT16}
    edges: dict[str, dict[str, Any]] = {
        **{f"head dim {width}": {"head_dim": width} for width in _HEAD_DIMS},
        **{f"head dims {width} and 128": {"head_dim": width, "head_dim_v": 128} for width in (64, 136, 192)},
        **{f"{length} queries": {"seq_q": length, "seq_kv": 128} for length in _LENGTHS},
        **{f"{length} keys": {"seq_kv": length} for length in _LENGTHS},
        **{f"batch {batch}": {"batch": batch, "heads": 1, "seq_q": 16} for batch in _BATCHES},
        "lengths": {"padding": True},
        "ragged": {"ragged": True},
        "ragged with statistics": {"ragged": True, "ragged_stats": True},
        "ragged, head dim 192": {"ragged": True, "ragged_stats": True, "head_dim": 192, "head_dim_v": 128},
        "ragged, one query": {"ragged": True, "seq_q": 1, "seq_kv": 129},
        "ragged, window": {"ragged": True, "causal": True, "left_bound": 16},
        "bottom right, tails": {"seq_q": 65, "seq_kv": 127, "right_bound": 0, "alignment": "bottom_right"},
        "window, one query": {"seq_q": 1, "seq_kv": 129, "left_bound": 16, "right_bound": 0},
        "bias of tails": {"seq_q": 65, "seq_kv": 127, "bias": (1, 1, 65, 127)},
        "dropout of tails": {"seq_q": 65, "seq_kv": 127, "dropout": 0.1},
        "sink": {"sink": True},
        "sink, ragged": {"sink": True, "ragged": True},
        "8 bits": {"data_type": _T.FP8_E4M3, "head_dim": 128},
        "8 bits, tails": {"data_type": _T.FP8_E4M3, "head_dim": 128, "seq_q": 65, "seq_kv": 127},
        "8 bits, head dims 192 and 128": {"data_type": _T.FP8_E4M3, "head_dim": 192, "head_dim_v": 128},
        "8 bits, head dim 256": {"data_type": _T.FP8_E4M3, "head_dim": 256},
        "8 bits, lengths": {"data_type": _T.FP8_E4M3, "head_dim": 128, "padding": True},
        "8 bits, ragged": {"data_type": _T.FP8_E4M3, "head_dim": 128, "ragged": True},
        "block scales": scaled,
        "block scales, tails": {**scaled, "seq_q": 72, "seq_kv": 100},
    }
    forward_only: dict[str, dict[str, Any]] = {
        **{f"pages of {size}": {"padding": True, "page_size": size, "seq_q": 1} for size in (1, 16, 64)},
        "pages, head dim 256": {"padding": True, "page_size": 64, "head_dim": 256},
        "maximum and sum": {"stats": False, "max": True, "sum_exp": True},
        "block mask": {"block_mask": True},
    }
    backward_only: dict[str, dict[str, Any]] = {
        "deterministic": {"deterministic": True},
        "deterministic, head dims 192 and 128": {"deterministic": True, "head_dim": 192, "head_dim_v": 128},
        "deterministic, head dim 256": {"deterministic": True, "head_dim": 256},
        "deterministic, ragged": {"deterministic": True, "ragged": True, "ragged_stats": True},
        "gradient of a bias": {"bias": (1, 2, 128, 128), "dbias": True},
        "gradient of a bias of tails": {"seq_q": 65, "seq_kv": 127, "bias": (1, 2, 65, 127), "dbias": True},
    }
    for form, kind in product(("composite", "unified"), (_T.HALF, _T.BFLOAT16)):
        shared = {"implementation": form, "version": version, "sm": 100, "allow_hazards": True}
        for backward, own in ((False, forward_only), (True, backward_only)):
            for name, options in {**edges, **own}.items():
                if kind is _T.BFLOAT16 and ("data_type" in options or not name.startswith("head dim")):
                    continue
                make = sdpa_backward if backward else sdpa_forward
                given = {**usual, "data_type": kind, **options, **shared}
                direction = "backward" if backward else "forward"
                yield f"{form} attention {direction}, {kind.name}, {name}", partial(make, **given)


def _make_matmul(batch: int, m: int, n: int, k: int, kind: DataType = _T.HALF, alignment: int = 16) -> Graph:
    g = GraphBuilder("matmul", io_type=kind)
    b = g.tensor("b", (batch, k, n), strides=(k * n, 1, k), alignment=alignment)
    out = kind if kind in (_T.HALF, _T.BFLOAT16, _T.FLOAT) else _T.INT32 if kind is _T.INT8 else _T.FLOAT
    more: dict[str, Any] = {"compute_type": _T.INT32} if kind is _T.INT8 else {}
    g.matmul(g.tensor("a", (batch, m, k), alignment=alignment), b, virtual=False, data_type=out, **more)
    return g.graph()


def _make_convolution(batch: int, c: int, k: int, kind: DataType = _T.HALF, alignment: int = 16) -> Graph:
    g = GraphBuilder("convolution", io_type=kind)
    dims, filters, result = (batch, c, 4, 4), (k, c, 1, 1), (batch, k, 4, 4)
    x = g.tensor("x", dims, strides=channels_last(dims), alignment=alignment)
    w = g.tensor("w", filters, strides=channels_last(filters), alignment=alignment)
    out = kind if kind in (_T.HALF, _T.FLOAT) else _T.INT32 if kind is _T.INT8 else _T.FLOAT
    more: dict[str, Any] = {"compute_type": _T.INT32} if kind is _T.INT8 else {}
    g.convolution(x, w, virtual=False, strides=channels_last(result), data_type=out, **more)
    return g.graph()


def _make_row_norm(rows: int, width: int) -> Graph:
    g = GraphBuilder("row norm", io_type=_T.BFLOAT16)
    g.norm_forward(
        NormMode.RMS_NORM, g.tensor("x", (rows, width, 1, 1)), g.tensor("s", (1, width, 1, 1)), virtual=False
    )
    return g.graph()


def _make_row_sum(rows: int, width: int) -> Graph:
    g = GraphBuilder("sum of rows", io_type=_T.FLOAT)
    g.reduction(ReduceTensorOp.ADD, g.tensor("x", (rows, width, 1, 1)), (rows, 1, 1, 1), virtual=False)
    return g.graph()


def _make_relu(alignment: int) -> Graph:
    g = GraphBuilder("relu", io_type=_T.HALF)
    g.pointwise(_P.RELU_FWD, g.tensor("x", (4, 64, 64), alignment=alignment), virtual=False)
    return g.graph()


def _make_block_scaled_matmul(
    few: DataType, size: int, reordering: TensorReordering | None, m: int, n: int, k: int
) -> Graph:
    g = GraphBuilder("block-scaled matmul", io_type=_T.BFLOAT16)
    exponents = _T.FP8_E4M3 if size == 16 else _T.FP8_E8M0
    tiled: dict[str, Any] = {} if reordering is None else {"reordering": reordering}
    a = g.tensor("a", (1, m, k), few)
    b = g.tensor("b", (1, k, n), few, strides=(k * n, 1, k))
    # NVIDIA's samples round the dims up to whole tiles; some users do not
    a_dims = compute_scale_dims((1, m, k), (1, 1, size), tiled=False)
    b_dims = compute_scale_dims((1, k, n), (1, size, 1), tiled=False)
    sa = g.tensor("a_scale", a_dims, exponents, **tiled)
    sb = g.tensor("b_scale", b_dims, exponents, strides=(b_dims[1] * b_dims[2], 1, b_dims[1]), **tiled)
    left = g.block_scale_dequantize(a, sa, (1, size))
    right = g.block_scale_dequantize(b, sb, (size, 1))
    g.matmul(left, right, virtual=False)
    return g.graph()
