"""Random pooling, data movement, mixture-of-experts matmuls, block scales and rotary embeddings."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import (
    DataType,
    MoeGroupedMatmulMode,
    PaddingMode,
    PointwiseMode,
    ResampleMode,
    ReshapeMode,
    TensorReordering,
)
from cudnn_backend_py.graph.shapes import compute_pooled_size, compute_scale_dims
from cudnn_backend_py.graph.strides import channels_last, make_column_major_strides, packed_strides

from ..random_builder import RandomGraphBuilder

__all__ = ["add_block_scaled_matmul", "add_data_movement", "add_expert_matmul", "add_resample", "add_rotary_embedding"]

_T, _P, _S, _M = DataType, PointwiseMode, ResampleMode, MoeGroupedMatmulMode
HALF_TYPE_WEIGHTS = {_T.HALF: 5, _T.BFLOAT16: 4}


def add_resample(d: RandomGraphBuilder) -> None:
    """Add a pooling, or the gradient of one, over one to three dims."""
    d.choose_io_type({_T.HALF: 5, _T.BFLOAT16: 3, _T.FLOAT: 4, _T.INT8: 0.3})
    spatial = d.choose_weighted({2: 6, 3: 1.5, 1: 0.3})
    d.choose_layout({"last": 7, "packed": 2}, spatial + 2)
    mode = d.choose_weighted(
        {_S.MAXPOOL: 4, _S.AVGPOOL_INCLUDE_PADDING: 3, _S.AVGPOOL_EXCLUDE_PADDING: 3, _S.BILINEAR: 0.4}
    )
    n, c = d.choose(1, 2, 4), d.choose(8, 16, 32, 64)
    sizes = tuple(d.make_random_int(4, 8) if spatial == 3 else d.make_random_int(4, 16) for _ in range(spatial))
    if mode is _S.BILINEAR:
        half = Fraction(1, 2)
        d.g.resample(
            mode, d.add_tensor("x", (n, c, *sizes)), 2, stride=half, padding=half, post_padding=1, virtual=False
        )
        return
    window = tuple(d.choose(2, 3) for _ in sizes) if d.make_random_bool(0.4) else (d.choose(2, 3),) * spatial
    stride = tuple(d.choose(1, 2) for _ in sizes) if d.make_random_bool(0.3) else (2,) * spatial
    padding = tuple(d.make_random_int(0, part - 1) for part in window) if d.make_random_bool(0.5) else (0,) * spatial
    after = padding if d.make_random_bool(0.8) else tuple(d.make_random_int(0, part - 1) for part in window)
    sides: dict[str, Any] = {"stride": stride, "padding": padding, "post_padding": after}
    usual = PaddingMode.NEG_INF_PAD if mode is _S.MAXPOOL else PaddingMode.ZERO_PAD
    if d.make_random_bool(0.1):
        sides["padding_mode"] = d.choose(*PaddingMode)
    out = tuple(map(compute_pooled_size, sizes, window, stride, padding, after))
    if min(out) < 1:
        raise GraphError("no window fits", code="operation-shape")
    whole, less = (n, c, *sizes), (n, c, *out)
    last = d.layout is not packed_strides
    if d.make_random_bool(0.6):
        wants = mode is _S.MAXPOOL and usual is PaddingMode.NEG_INF_PAD and last and d.make_random_bool(0.6)
        x = d.add_tensor("x", whole)
        if d.make_random_bool(0.25) and not wants:
            x = d.add_elementwise_chain(x, d.choose(1, 2), channel=1, virtual=True)
        length = d.choose(1, 2) if not wants and d.make_random_bool(0.25) else 0
        d.add_operation_with_elementwise_chain(
            lambda o: d.g.resample(mode, x, window, idx=wants, **sides, **o).y, less, length=length, kind=d.g.io_type
        )
        return
    dy = d.add_tensor("dy", less)
    given: dict[str, Any] = {}
    if mode is _S.MAXPOOL and last:
        given = {"idx": d.add_tensor("idx", less, _T.INT8)}
    elif not last:  # without x and y, cuDNN accepts the graph but does not execute it
        given = {"x": d.add_tensor("x", whole), "y": d.add_tensor("y", less)}
    d.g.resample_backward(mode, dy, window, dims=whole, **sides, **given, **d.make_stored_result_options(whole))


def add_data_movement(d: RandomGraphBuilder) -> None:
    """Add a concatenation, slice, reshape or transpose, mostly where cuDNN supports it: next to a matmul."""
    d.choose_io_type({_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 2})
    what = {"concat": 4.0, "reshape": 1.0, "alone": 0.7}
    if d.is_version_at_least(9, 22, 0):
        what |= {"slice": 6.0, "transpose": 1.0}
    chosen = d.choose_weighted(what)
    if chosen == "concat":
        _add_convolution_into_concatenation(d)
        return
    if chosen == "alone":
        _add_single_data_movement(d)
        return
    g, kind = d.g, d.g.io_type
    b, m, n, k = d.choose(1, 2, 4), d.choose(16, 32, 64), d.choose(16, 32, 64), d.choose(16, 32, 64)
    if chosen == "slice":
        whole = tuple(size * d.choose(1, 1, 2) for size in (b, m, k))
        starts = [d.choose(0, big - size) for big, size in zip(whole, (b, m, k), strict=True)]
        a = g.slice(g.tensor("a", whole), [slice(at, at + size) for at, size in zip(starts, (b, m, k), strict=True)])
    elif chosen == "transpose":
        a = g.transpose(g.tensor("a", (b, k, m)), (0, 2, 1))
    else:
        logical = d.is_version_at_least(9, 22, 0) and d.make_random_bool(0.4)
        source = g.tensor("a", (b, m * k)) if d.make_random_bool(0.5) else g.tensor("a", (b * m, k))
        a = g.reshape(source, (b, m, k), **({"mode": ReshapeMode.LOGICAL} if logical else {}))
    right = g.tensor("b", (b, k, n))
    d.add_operation_with_elementwise_chain(
        lambda o: g.matmul(a, right, **o), (b, m, n), length=d.choose(0, 0, 1, 2), channel=None, kind=kind
    )


def _add_convolution_into_concatenation(d: RandomGraphBuilder) -> None:
    """Add a convolution that writes its result into a larger tensor, next to existing data."""
    g = d.g
    d.layout = channels_last
    n, c, k, h, w = (
        d.choose(1, 2),
        d.choose(16, 32),
        d.choose(16, 32),
        d.make_random_int(4, 10),
        d.make_random_int(4, 10),
    )
    y = g.convolution(
        d.add_tensor("x", (n, c, h, w)),
        d.add_tensor("w", (k, c, 1, 1)),
        **d.make_virtual_result_options((n, k, h, w), g.io_type),
    )
    z = d.add_tensor("z", (n, d.choose(16, 32), h, w))
    whole = (n, k + z.dims[1], h, w)
    parts, at = ([y, z], 1) if d.make_random_bool(0.85) else ([z, y], 0)
    g.concatenate(parts, 1, in_place_index=at, **d.make_stored_result_options(whole, g.io_type))


def _add_single_data_movement(d: RandomGraphBuilder) -> None:
    """Add a single data movement of a tensor in memory, without other operations."""
    g = d.g
    dims = tuple(d.choose(2, 4, 8, 16) for _ in range(d.choose(3, 4)))
    x = g.tensor("x", dims)
    what = (
        d.choose("concat", "reshape", "slice", "transpose")
        if d.is_version_at_least(9, 22, 0)
        else d.choose("concat", "reshape")
    )
    if what == "concat":
        g.concatenate([x, g.tensor("part", dims)], d.make_random_int(0, len(dims) - 1), virtual=False)
    elif what == "reshape":
        g.reshape(x, (*dims[:-2], dims[-2] * dims[-1]), virtual=False)
    elif what == "slice":
        g.slice(x, [_make_random_slice(d, size) for size in dims], virtual=False)
    else:
        g.transpose(x, d.random.sample(range(len(dims)), len(dims)), virtual=False)


def _make_random_slice(d: RandomGraphBuilder, size: int) -> slice:
    if d.make_random_bool(0.5) or size < 4:
        return slice(None)
    start = d.make_random_int(0, size // 2)
    return slice(start, d.make_random_int(start + 1, size), d.choose(1, 1, 1, 2))


def add_expert_matmul(d: RandomGraphBuilder) -> None:
    """Add a matmul of each expert with its tokens, optionally gathered or scattered, or its gradient."""
    d.choose_io_type({**HALF_TYPE_WEIGHTS, _T.FP8_E4M3: 0.2})
    count, rows = d.choose(2, 3, 4, 8), d.choose(16, 32, 64, 100)
    k, n = d.choose(32, 64, 128), d.choose(32, 64, 128)
    offset = d.g.tensor("first_token_offset", (count, 1, 1), _T.INT32)
    if d.is_version_at_least(9, 22, 0) and d.make_random_bool(0.2):
        doutput, token = d.add_tensor("doutput", (1, rows, n)), d.add_tensor("token", (1, rows, k))
        d.g.moe_grouped_matmul_backward(doutput, token, offset, virtual=False)
        return
    dims = (count, k, n)
    weight = d.g.tensor("weight", dims, strides=make_column_major_strides(dims))
    mode = d.choose_weighted({_M.NONE: 6, _M.GATHER: 0.4, _M.SCATTER: 2})
    more: dict[str, Any] = {"mode": mode}
    if mode is not _M.NONE:
        more["token_index"] = d.g.tensor("token_index", (1, rows, 1), _T.INT32)
    if mode is _M.SCATTER:
        more |= {"token_ks": d.g.tensor("token_ks", (1, rows, 1), _T.INT32), "top_k": 1}
    tokens = d.choose(rows, rows // 2) if mode is _M.GATHER else rows
    token = d.add_tensor("token", (1, tokens, k))
    d.add_operation_with_elementwise_chain(
        lambda o: d.g.moe_grouped_matmul(token, weight, offset, **more, **o),
        (1, rows, n),
        length=0 if d.make_random_bool(0.8) else 1,
        channel=None,
        kind=d.choose(d.g.io_type, _T.FLOAT) if d.g.io_type is not _T.FP8_E4M3 else _T.FLOAT,
    )


def add_block_scaled_matmul(d: RandomGraphBuilder) -> None:
    """Add a matmul of block-scaled tensors, or a block-scaled result; for Blackwell."""
    four = d.make_random_bool(0.4)
    size, few, exponents = (16, _T.FP4_E2M1, _T.FP8_E4M3) if four else (32, _T.FP8_E4M3, _T.FP8_E8M0)
    g = d.g
    d.choose_io_type(HALF_TYPE_WEIGHTS)
    m, n, k = d.choose(64, 128), d.choose(64, 128), d.choose(64, 128)
    if d.make_random_bool(0.3):
        x = g.tensor("x", (1, m, k))
        g.block_scale_quantize(g.pointwise(_P.RELU_FWD, x), size, virtual=False)
        return
    tiled: dict[str, Any] = {"reordering": TensorReordering.F8_128x4}
    a = g.tensor("a", (1, m, k), few)
    b = g.tensor("b", (1, k, n), few, strides=(k * n, 1, k))
    a_dims, b_dims = (
        compute_scale_dims((1, m, k), (1, 1, size), tiled=True),
        compute_scale_dims((1, k, n), (1, size, 1), tiled=True),
    )
    sa = g.tensor("a_scale", a_dims, exponents, **tiled)
    sb = g.tensor("b_scale", b_dims, exponents, strides=(b_dims[1] * b_dims[2], 1, b_dims[1]), **tiled)
    left = g.block_scale_dequantize(a, sa, (1, size))
    right = g.block_scale_dequantize(b, sb, (size, 1))
    d.add_operation_with_elementwise_chain(
        lambda o: g.matmul(left, right, **o), (1, m, n), length=d.choose(0, 0, 1), channel=None
    )


def add_rotary_embedding(d: RandomGraphBuilder) -> None:
    """Add a rotary embedding of queries and keys before attention, or its gradient after it."""
    d.choose_io_type({_T.BFLOAT16: 5, _T.HALF: 4})
    b, h, s, width = d.choose(1, 2), d.choose(1, 2, 4), d.choose(64, 128), d.choose(64, 128)
    dims = (b, h, s, width)
    layout: dict[str, Any] = {"strides": (h * s * width, width, h * width, 1)}
    placed = layout | {"virtual": False}  # cuDNN requires the tensors between the operations in memory, too
    g, kind = d.g, d.g.io_type
    part = d.choose(None, None, width // 2)
    more: dict[str, Any] = {"rope_dim": part} | ({"output_scale": 0.5} if d.make_random_bool(0.2) else {})
    freqs = g.tensor("freqs", (s, 1, 1, part or width), _T.FLOAT)
    if d.is_version_at_least(9, 25, 0) and d.make_random_bool(0.4):
        q, k, v, o, do = (g.tensor(name, dims, **layout) for name in ("q", "k", "v", "o", "do"))
        stats = g.tensor("stats", (b, h, s, 1), _T.FLOAT)
        made = g.sdpa_backward(q, k, v, o, do, stats, scale=0.125, dq=placed, dk=placed)
        for gradient in (made.dq, made.dk):
            g.rope_backward(gradient, freqs, **more, **placed)
        return
    q, k, v = (g.tensor(name, dims, **layout) for name in ("q", "k", "v"))
    wanted = (q, k) if d.make_random_bool(0.8) else (q,)
    turned = [g.rope_forward(item, freqs, **more, data_type=kind, **placed) for item in wanted]
    g.sdpa_forward(
        turned[0], turned[1] if len(turned) > 1 else k, v, scale=0.125, stats=d.make_random_bool(0.5), virtual=False
    )
