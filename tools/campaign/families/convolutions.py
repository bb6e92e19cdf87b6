"""Random convolutions and their gradients, with operations before and after them."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, PointwiseMode
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.ir import compute_convolved_size

from ..random_builder import RandomGraphBuilder

__all__ = ["add_convolution"]

_T = DataType
TYPE_WEIGHTS = {
    _T.HALF: 5,
    _T.BFLOAT16: 4,
    _T.FLOAT: 3,
    _T.INT8: 0.7,
    _T.FP8_E4M3: 0.7,
    _T.FP8_E5M2: 0.2,
    _T.DOUBLE: 0.1,
}


def add_convolution(d: RandomGraphBuilder) -> None:
    """Add a convolution over one to three dims, or one of its gradients."""
    form = d.choose_weighted({"forward": 5, "data": 2.5, "filter": 2.5})
    kind = d.choose_io_type(TYPE_WEIGHTS if form == "forward" else {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3})
    spatial = d.choose_weighted({2: 6, 3: 2, 1: 1.5})
    rank = spatial + 2
    d.choose_layout({"last": 8, "packed": 1.5}, rank)
    small = kind in (_T.INT8, _T.FP8_E4M3, _T.FP8_E5M2)
    groups = 1 if small or d.make_random_bool(0.75) else d.choose(2, 4, 8)
    each = d.choose(16, 32, 64) if small else d.choose_weighted({8: 3, 16: 4, 32: 3, 64: 1, 4: 0.4, 3: 0.2, 5: 0.1})
    more = d.choose(16, 32, 64) if small else d.choose_weighted({8: 3, 16: 4, 32: 3, 64: 1, 4: 0.3, 6: 0.2})
    depthwise = groups > 1 and d.make_random_bool(0.3)
    c, k = (groups * 8, groups * 8) if depthwise else (max(each, groups * 8), max(more, groups * 8))
    if groups > 1:
        c, k = groups * max(8, c // groups // 8 * 8), groups * max(8, k // groups // 8 * 8)
    per_group = 1 if depthwise else c // groups
    n = d.choose(1, 1, 2, 3, 4)
    sizes = [
        d.make_random_int(3, 6)
        if spatial == 3
        else d.make_random_int(4, 14)
        if spatial == 2
        else d.make_random_int(8, 40)
        for _ in range(spatial)
    ]
    taps = [d.choose_weighted({1: 3, 3: 5, 2: 1, 5: 0.5 if spatial < 3 else 0}) for _ in range(spatial)]
    if d.make_random_bool(0.6):
        taps = [taps[0]] * spatial
    window = _make_random_window(d, sizes, taps)
    out = [
        compute_convolved_size(size, tap, add_prologue, after, stride, dilation)
        for size, tap, add_prologue, after, stride, dilation in zip(
            sizes, taps, window["padding"], window["post_padding"], window["stride"], window["dilation"], strict=True
        )
    ]
    if min(out) < 1:
        window["padding"] = window["post_padding"] = tuple(
            (tap - 1) * step for tap, step in zip(taps, window["dilation"], strict=True)
        )
        out = [
            compute_convolved_size(size, tap, pad, pad, stride, dilation)
            for size, tap, pad, stride, dilation in zip(
                sizes, taps, window["padding"], window["stride"], window["dilation"], strict=True
            )
        ]
    image, weights, response = (n, c, *sizes), (k, per_group, *taps), (n, k, *out)
    compute = _T.INT32 if kind is _T.INT8 else None
    length = d.choose_weighted({0: 4, 1: 3, 2: 3, 3: 2, 4: 1})
    if form == "forward":
        x, w = add_convolution_prologue(d, d.add_tensor("x", image), 0.1), d.add_tensor("w", weights)
        if kind is _T.INT8:
            _add_int8_convolution(d, x, w, response, window, length)
            return
        d.add_operation_with_elementwise_chain(
            lambda o: d.g.convolution(x, w, **window, compute_type=compute, **o),
            response,
            length=length,
            reduce=0.06,
        )
    elif form == "data":
        dy, w = d.add_tensor("dy", response), d.add_tensor("w", weights)
        d.add_operation_with_elementwise_chain(
            lambda o: d.g.convolution_backward_data(dy, w, groups=c // per_group, dims=image, **window, **o),
            image,
            length=length if d.make_random_bool(0.6) else 0,
        )
    else:
        x, dy = add_convolution_prologue(d, d.add_tensor("x", image), 0.1), d.add_tensor("dy", response)
        d.add_operation_with_elementwise_chain(
            lambda o: d.g.convolution_backward_filter(x, dy, taps, groups=c // per_group, **window, **o),
            weights,
            length=length if d.make_random_bool(0.15) else 0,
        )


def _make_random_window(d: RandomGraphBuilder, sizes: list[int], taps: list[int]) -> dict[str, Any]:
    spatial = len(sizes)
    dilation = (1,) * spatial if d.make_random_bool(0.8) else tuple(d.choose(1, 2) for _ in sizes)
    stride = (
        (1,) * spatial if d.make_random_bool(0.65) else tuple(d.choose_weighted({1: 1, 2: 3, 3: 0.5}) for _ in sizes)
    )
    padding = tuple(d.choose((tap - 1) // 2, tap // 2, 0, tap - 1) for tap in taps)
    after = padding if d.make_random_bool(0.85) else tuple(d.make_random_int(0, tap) for tap in taps)
    return {"padding": padding, "post_padding": after, "stride": stride, "dilation": dilation}


def add_convolution_prologue(d: RandomGraphBuilder, x: Tensor, probability: float) -> Tensor:
    """Return x, or x after a scale, bias and clip, which cuDNN fuses before a convolution."""
    if not d.make_random_bool(probability):
        return x
    kind = d.g.io_type
    per = (1, x.dims[1], *[1] * (x.rank - 2))
    z = x
    for mode in (PointwiseMode.MUL, PointwiseMode.ADD):
        z = d.g.pointwise(mode, z, d.add_tensor("factor", per), **d.make_virtual_result_options(x.dims))
    return d.g.pointwise(PointwiseMode.RELU_FWD, z, **d.make_virtual_result_options(x.dims, kind))


def _add_int8_convolution(
    d: RandomGraphBuilder, x: Tensor, w: Tensor, response: tuple[int, ...], window: dict[str, Any], length: int
) -> None:
    """Add an INT8 convolution, a scale and elementwise operations in float32, and optionally a conversion to INT8."""
    if length == 0:
        d.g.convolution(
            x,
            w,
            **window,
            compute_type=_T.INT32,
            **d.make_stored_result_options(response, d.choose(_T.INT32, _T.FLOAT)),
        )
        return
    z = d.g.convolution(x, w, **window, compute_type=_T.INT32, **d.make_virtual_result_options(response, _T.INT32))
    z = d.g.pointwise(
        PointwiseMode.MUL,
        z,
        d.add_scalar(len(response), 0.0078125),
        **d.make_virtual_result_options(response, _T.FLOAT),
    )
    d.g.io_type = _T.FLOAT
    d.add_elementwise_chain(z, length, channel=1, kind=d.choose(_T.INT8, _T.FLOAT))
