"""Random convolutions and their gradients, with operations before and after them."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, PointwiseMode
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.ir import convolved_size

from ..draw import Draw

__all__ = ["convolution"]

_T = DataType
TYPES = {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3, _T.INT8: 0.7, _T.FP8_E4M3: 0.7, _T.FP8_E5M2: 0.2, _T.DOUBLE: 0.1}


def convolution(d: Draw) -> None:
    """Add a convolution over one to three dims, or one of its gradients."""
    form = d.weighted({"forward": 5, "data": 2.5, "filter": 2.5})
    kind = d.set_types(TYPES if form == "forward" else {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3})
    spatial = d.weighted({2: 6, 3: 2, 1: 1.5})
    rank = spatial + 2
    d.set_layout({"last": 8, "packed": 1.5}, rank)
    small = kind in (_T.INT8, _T.FP8_E4M3, _T.FP8_E5M2)
    groups = 1 if small or d.chance(0.75) else d.pick(2, 4, 8)
    each = d.pick(16, 32, 64) if small else d.weighted({8: 3, 16: 4, 32: 3, 64: 1, 4: 0.4, 3: 0.2, 5: 0.1})
    more = d.pick(16, 32, 64) if small else d.weighted({8: 3, 16: 4, 32: 3, 64: 1, 4: 0.3, 6: 0.2})
    depthwise = groups > 1 and d.chance(0.3)
    c, k = (groups * 8, groups * 8) if depthwise else (max(each, groups * 8), max(more, groups * 8))
    if groups > 1:
        c, k = groups * max(8, c // groups // 8 * 8), groups * max(8, k // groups // 8 * 8)
    per_group = 1 if depthwise else c // groups
    n = d.pick(1, 1, 2, 3, 4)
    sizes = [
        d.between(3, 6) if spatial == 3 else d.between(4, 14) if spatial == 2 else d.between(8, 40)
        for _ in range(spatial)
    ]
    taps = [d.weighted({1: 3, 3: 5, 2: 1, 5: 0.5 if spatial < 3 else 0}) for _ in range(spatial)]
    if d.chance(0.6):
        taps = [taps[0]] * spatial
    window = _window(d, sizes, taps)
    out = [
        convolved_size(size, tap, before, after, stride, dilation)
        for size, tap, before, after, stride, dilation in zip(
            sizes, taps, window["padding"], window["post_padding"], window["stride"], window["dilation"], strict=True
        )
    ]
    if min(out) < 1:
        window["padding"] = window["post_padding"] = tuple(
            (tap - 1) * step for tap, step in zip(taps, window["dilation"], strict=True)
        )
        out = [
            convolved_size(size, tap, pad, pad, stride, dilation)
            for size, tap, pad, stride, dilation in zip(
                sizes, taps, window["padding"], window["stride"], window["dilation"], strict=True
            )
        ]
    image, weights, response = (n, c, *sizes), (k, per_group, *taps), (n, k, *out)
    compute = _T.INT32 if kind is _T.INT8 else None
    length = d.weighted({0: 4, 1: 3, 2: 3, 3: 2, 4: 1})
    if form == "forward":
        x, w = before(d, d.tensor("x", image), 0.1), d.tensor("w", weights)
        if kind is _T.INT8:
            _integers(d, x, w, response, window, length)
            return
        d.finish(
            lambda o: d.g.convolution(x, w, **window, compute_type=compute, **o),
            response,
            length=length,
            reduce=0.06,
        )
    elif form == "data":
        dy, w = d.tensor("dy", response), d.tensor("w", weights)
        d.finish(
            lambda o: d.g.convolution_backward_data(dy, w, groups=c // per_group, dims=image, **window, **o),
            image,
            length=length if d.chance(0.6) else 0,
        )
    else:
        x, dy = before(d, d.tensor("x", image), 0.1), d.tensor("dy", response)
        d.finish(
            lambda o: d.g.convolution_backward_filter(x, dy, taps, groups=c // per_group, **window, **o),
            weights,
            length=length if d.chance(0.15) else 0,
        )


def _window(d: Draw, sizes: list[int], taps: list[int]) -> dict[str, Any]:
    spatial = len(sizes)
    dilation = (1,) * spatial if d.chance(0.8) else tuple(d.pick(1, 2) for _ in sizes)
    stride = (1,) * spatial if d.chance(0.65) else tuple(d.weighted({1: 1, 2: 3, 3: 0.5}) for _ in sizes)
    padding = tuple(d.pick((tap - 1) // 2, tap // 2, 0, tap - 1) for tap in taps)
    after = padding if d.chance(0.85) else tuple(d.between(0, tap) for tap in taps)
    return {"padding": padding, "post_padding": after, "stride": stride, "dilation": dilation}


def before(d: Draw, x: Tensor, probability: float) -> Tensor:
    """Return x, or x times a scale plus a bias, clipped: a chain that cuDNN fuses before a convolution."""
    if not d.chance(probability):
        return x
    kind = d.g.io_type
    per = (1, x.dims[1], *[1] * (x.rank - 2))
    z = x
    for mode in (PointwiseMode.MUL, PointwiseMode.ADD):
        z = d.g.pointwise(mode, z, d.tensor("factor", per), **d.virtual(x.dims))
    return d.g.pointwise(PointwiseMode.RELU_FWD, z, **d.virtual(x.dims, kind))


def _integers(d: Draw, x: Tensor, w: Tensor, response: tuple[int, ...], window: dict[str, Any], length: int) -> None:
    """Add a convolution of INT8, with a factor and a chain in float32, and optionally a conversion to INT8."""
    if length == 0:
        d.g.convolution(x, w, **window, compute_type=_T.INT32, **d.memory(response, d.pick(_T.INT32, _T.FLOAT)))
        return
    z = d.g.convolution(x, w, **window, compute_type=_T.INT32, **d.virtual(response, _T.INT32))
    z = d.g.pointwise(PointwiseMode.MUL, z, d.number(len(response), 0.0078125), **d.virtual(response, _T.FLOAT))
    d.g.io_type = _T.FLOAT
    d.chain(z, length, channel=1, kind=d.pick(_T.INT8, _T.FLOAT))
