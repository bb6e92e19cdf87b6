"""Random norms, forward and backward, and the parts of a batch norm."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, NormMode, PointwiseMode
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.shapes import statistics_dims
from cudnn_backend_py.graph.strides import channels_last, packed_strides

from ..draw import Draw
from .convolutions import before

__all__ = ["batch_norm", "norm", "norm_backward"]

_T, _N, _P = DataType, NormMode, PointwiseMode
TYPES = {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3}
ROWS = (_N.LAYER_NORM, _N.RMS_NORM, _N.ADA_LAYER_NORM)
MODES = {
    _N.LAYER_NORM: 5,
    _N.RMS_NORM: 5,
    _N.ADA_LAYER_NORM: 2,
    _N.INSTANCE_NORM: 2,
    _N.BATCH_NORM: 3,
    _N.GROUP_NORM: 0.3,
}


def _shape(d: Draw, mode: NormMode) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the dims of x and of the scale, and choose the layout."""
    hidden = d.pick(32, 64, 128, 256, 512, 768, 200, 72)
    if mode is _N.ADA_LAYER_NORM:
        n, s = d.pick(1, 2, 4), d.pick(4, 8, 16, 33)
        d.layout = packed_strides
        return (n, s, hidden), (n, 1, hidden)
    if mode in ROWS:
        rows = d.pick(4, 16, 32, 64, 7)
        form = d.weighted({"columns": 6, "tokens": 2, "many": 1})
        d.layout = packed_strides
        if form == "columns":
            return (rows, hidden, 1, 1), (1, hidden, 1, 1)
        if form == "tokens":
            return (d.pick(1, 2, 3), rows, hidden), (1, 1, hidden)
        return (rows, 8, 4, 4), (1, 8, 4, 4)
    d.layout = channels_last
    c = d.pick(8, 16, 32, 64, 128)
    sizes = (d.between(2, 8), d.between(2, 8))
    if d.chance(0.15):
        sizes = (d.between(2, 4), *sizes)  # type: ignore[assignment]
    return (d.pick(1, 2, 4, 8), c, *sizes), (1, c, *[1] * len(sizes))


def norm(d: Draw) -> None:
    """Add a norm of any mode, training or not, and the operations after it."""
    kind = d.set_types(TYPES)
    mode = d.weighted(MODES)
    dims, scale_dims = _shape(d, mode)
    training = mode is _N.BATCH_NORM or d.chance(0.55)
    if mode is _N.BATCH_NORM and d.chance(0.5):
        _batch_with_running(d, dims, scale_dims)
        return
    weight = kind if mode is _N.ADA_LAYER_NORM or d.chance(0.25) else _T.FLOAT
    x, scale = d.tensor("x", dims), d.tensor("scale", scale_dims, weight)
    bias = None if mode is _N.RMS_NORM and d.chance(0.8) else d.tensor("bias", scale_dims, weight)
    more: dict[str, Any] = {"groups": 4} if mode is _N.GROUP_NORM else {}
    epsilon = d.pick(1e-5, 1e-3, 1e-6)
    length = 0 if d.chance(0.75) else d.pick(1, 2)

    def add(options: dict[str, Any]) -> Tensor:
        return d.g.norm_forward(mode, x, scale, bias, training=training, epsilon=epsilon, **more, **options).y

    _finish(d, add, dims, length)


def _finish(d: Draw, add: Any, dims: tuple[int, ...], length: int) -> None:
    """Add a norm and operations that cuDNN fuses after it: a ReLU, a residual, a factor."""
    if not length:
        add(d.memory(dims, d.g.io_type if d.chance(0.85) else d.output_type()))
        return
    z = add(d.virtual(dims))
    if length == 2 and d.chance(0.6):
        z = d.g.pointwise(_P.ADD, z, d.tensor("residual", dims), **d.virtual(dims))
        d.g.pointwise(_P.RELU_FWD, z, **d.memory(dims))
        return
    d.chain(z, length, channel=1, kind=d.g.io_type)


def _batch_with_running(d: Draw, dims: tuple[int, ...], per: tuple[int, ...]) -> None:
    x = d.tensor("x", dims)
    scale, bias, mean, var = (
        d.tensor(name, per, _T.FLOAT) for name in ("scale", "bias", "running_mean", "running_var")
    )

    def add(options: dict[str, Any]) -> Tensor:
        return d.g.norm_forward(
            _N.BATCH_NORM,
            x,
            scale,
            bias,
            training=True,
            running_mean=mean,
            running_var=var,
            momentum=d.pick(0.1, 0.9, 0.5),
            epsilon=1e-5,
            **options,
        ).y

    _finish(d, add, dims, 0 if d.chance(0.6) else d.pick(1, 2))


def norm_backward(d: Draw) -> None:
    """Add the gradient of a norm, for batch norm also after a ReLU."""
    kind = d.set_types(TYPES)
    mode = d.weighted({**MODES, _N.GROUP_NORM: 0})
    dims, scale_dims = _shape(d, mode)
    sets = statistics_dims(mode, dims, scale_dims)
    assert sets is not None
    weight = kind if mode is _N.ADA_LAYER_NORM else _T.FLOAT
    x, dy, scale = d.tensor("x", dims), d.tensor("dy", dims), d.tensor("scale", scale_dims, weight)
    mean = None if mode is _N.RMS_NORM else d.tensor("mean", sets, _T.FLOAT)
    inverse = d.tensor("inv_variance", sets, _T.FLOAT)
    g = d.g
    if mode is _N.BATCH_NORM and d.chance(0.4):
        bias = d.tensor("bias", scale_dims, _T.FLOAT)
        y = g.norm_forward(mode, x, scale, bias, mean=mean, inv_variance=inverse, epsilon=None, **d.virtual(dims)).y
        dy = g.pointwise(_P.RELU_BWD, y, dy=dy, data_type=kind, strides=x.strides)
    g.norm_backward(mode, dy, x, scale, mean=mean, inv_variance=inverse, **d.memory(dims))


def batch_norm(d: Draw) -> None:
    """Add a part of a batch norm: statistics after a convolution, the factors computed from them, their gradients."""
    part = d.weighted({"statistics": 4, "finalize": 2, "weights": 2, "pair": 1})
    {"statistics": _gen_stats, "finalize": _finalize, "weights": _weights, "pair": _weights_alone}[part](d)


def _image(d: Draw) -> tuple[int, ...]:
    d.layout = channels_last
    return (d.pick(1, 2, 4), d.pick(16, 32, 64), d.between(4, 12), d.between(4, 12))


def _gen_stats(d: Draw) -> None:
    d.set_types({_T.HALF: 6, _T.BFLOAT16: 1})
    dims = _image(d)
    k, tap = d.pick(16, 32, 64), d.pick(1, 3)
    x, w = before(d, d.tensor("x", dims), 0.4), d.tensor("w", (k, dims[1], tap, tap))
    out = (dims[0], k, *dims[2:])
    d.g.gen_stats(d.g.convolution(x, w, padding=tap // 2, **d.memory(out)))


def _finalize(d: Draw) -> None:
    d.layout = channels_last
    per = (1, d.pick(8, 16, 32, 64, 128, 40), 1, 1)
    names = ("sum", "sqsum", "scale", "bias", "running_mean", "running_var")
    total, squares, scale, bias, mean, var = (d.tensor(name, per, _T.FLOAT) for name in names)
    count = d.pick(64, 256, 3136)
    running: dict[str, Any] = {"running_mean": mean, "running_var": var}
    if d.chance(0.3):
        running |= {name: {"data_type": _T.HALF} for name in ("eq_scale", "eq_bias")}
    d.g.batch_norm_finalize(total, squares, scale, bias, accum_count=count, **running)


def _weights(d: Draw) -> None:
    """Add the gradient of convolution, ReLU and batch norm as one operation."""
    d.set_types({_T.HALF: 6, _T.BFLOAT16: 1})
    dims, tap, k = _image(d), d.pick(1, 3), d.pick(16, 32, 64)
    g, per = d.g, (1, dims[1], 1, 1)
    dy, w = d.tensor("dy", (dims[0], k, *dims[2:])), d.tensor("w", (k, dims[1], tap, tap))
    x = d.tensor("x", dims)
    mean, inv, scale, bias = (d.tensor(name, per, _T.FLOAT) for name in ("mean", "inv_std", "scale", "bias"))
    gradient = g.convolution_backward_data(dy, w, padding=tap // 2, dims=dims, **d.virtual(dims))
    normal = x
    for mode, factor in ((_P.SUB, mean), (_P.MUL, inv), (_P.MUL, scale), (_P.ADD, bias)):
        normal = g.pointwise(mode, normal, factor, **d.virtual(dims))
    clipped = g.pointwise(_P.RELU_BWD, normal, dy=gradient, **d.memory(dims))
    g.batch_norm_backward_weights(clipped, x, mean, inv, scale)


def _weights_alone(d: Draw) -> None:
    d.set_types({_T.HALF: 6, _T.BFLOAT16: 1})
    dims = _image(d)
    per = (1, dims[1], 1, 1)
    mean, inv, scale = (d.tensor(name, per, _T.FLOAT) for name in ("mean", "inv_std", "scale"))
    d.g.batch_norm_backward_weights(d.tensor("dy", dims), d.tensor("x", dims), mean, inv, scale)
