"""Random graphs of several large operations: norms and softmax in elementary form, residual blocks, gated layers."""

from __future__ import annotations

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.strides import channels_last

from ..draw import Draw
from .products import operand

__all__ = ["fusion"]

_T, _P, _R = DataType, PointwiseMode, ReduceTensorOp


def fusion(d: Draw) -> None:
    """Add one of the fusions of this file."""
    d.set_types({_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3})
    made = d.weighted(
        {_softmax: 0.4, _rms: 0.4, _layer_norm: 0.4, _residual: 3, _gated: 3, _statistics: 3, _quantized: 3}
    )
    made(d)


def _rows(d: Draw) -> tuple[Tensor, tuple[int, ...]]:
    """Return rows of numbers, or a product with them, and the dims of one number for each row."""
    dims = (d.pick(1, 2, 4), d.pick(8, 16, 32), d.pick(16, 32, 64, 128))
    if d.chance(0.3):
        a, b = operand(d, "a", (*dims[:2], 32), 0.2), operand(d, "b", (dims[0], 32, dims[2]), 0.4)
        return d.g.matmul(a, b), (*dims[:2], 1)
    return d.g.tensor("x", dims), (*dims[:2], 1)


def _softmax(d: Draw) -> None:
    x, row = _rows(d)
    g = d.g
    e = g.pointwise(_P.EXP, g.pointwise(_P.SUB, x, g.reduction(_R.MAX, x, row)))
    g.pointwise(_P.DIV, e, g.reduction(_R.ADD, e, row), virtual=False)


def _rms(d: Draw) -> None:
    x, row = _rows(d)
    g = d.g
    mean = g.reduction(_R.AVG, g.pointwise(_P.MUL, x, x), row)
    inverse = g.pointwise(_P.RSQRT, g.pointwise(_P.ADD, mean, d.number(3, 1e-3)))
    z = g.pointwise(_P.MUL, x, inverse)
    g.pointwise(_P.MUL, z, g.tensor("scale", (1, 1, x.dims[2])), virtual=False)


def _layer_norm(d: Draw) -> None:
    x, row = _rows(d)
    g = d.g
    centred = g.pointwise(_P.SUB, x, g.reduction(_R.AVG, x, row))
    variance = g.reduction(_R.AVG, g.pointwise(_P.MUL, centred, centred), row)
    inverse = g.pointwise(_P.RSQRT, g.pointwise(_P.ADD, variance, d.number(3, 1e-3)))
    g.pointwise(_P.MUL, centred, inverse, virtual=False)


def _residual(d: Draw) -> None:
    """Add a convolution, scale and bias of its channels, a residual, a ReLU."""
    g = d.g
    d.layout = channels_last
    n, c, k, h, w = d.pick(1, 2), d.pick(16, 32), d.pick(16, 32), d.between(4, 10), d.between(4, 10)
    x, weights = d.tensor("x", (n, c, h, w)), d.tensor("w", (k, c, 3, 3))
    out, per = (n, k, h, w), (1, k, 1, 1)
    z = g.convolution(x, weights, padding=1, **d.virtual(out))
    if d.chance(0.6):
        z = g.pointwise(_P.MUL, z, d.tensor("scale", per), **d.virtual(out))
    z = g.pointwise(_P.ADD, z, d.tensor("bias", per), **d.virtual(out))
    z = g.pointwise(_P.ADD, z, d.tensor("residual", out), **d.virtual(out))
    if d.chance(0.3):
        mask = g.pointwise(
            _P.CMP_GT, d.tensor("leaf", out), d.number(4, 0.0), strides=channels_last(out), compute_type=_T.FLOAT
        )
        z = g.pointwise(_P.BINARY_SELECT, z, d.number(4, 0.0), mask, **d.virtual(out))
    g.pointwise(d.pick(_P.RELU_FWD, _P.GELU_FWD, _P.SWISH_FWD), z, **d.memory(out))


def _gated(d: Draw) -> None:
    """Add a product times an activation of itself, or of another tensor."""
    dims = (d.pick(1, 2), d.pick(16, 32, 64), d.pick(32, 64))
    a, b = operand(d, "a", (*dims[:2], 64), 0.2), operand(d, "b", (dims[0], 64, dims[2]), 0.4)
    g = d.g
    c = g.matmul(a, b)
    gate = g.pointwise(
        d.pick(_P.SIGMOID_FWD, _P.SWISH_FWD, _P.GELU_FWD), c if d.chance(0.5) else g.tensor("gate", dims)
    )
    z = g.pointwise(_P.MUL, c, gate)
    if d.chance(0.4):
        z = g.pointwise(_P.ADD, z, g.tensor("residual", dims))
    g.pointwise(_P.IDENTITY, z, virtual=False)


def _statistics(d: Draw) -> None:
    """Add a product with sums of its columns."""
    dims = (d.pick(1, 2), d.pick(16, 32, 64), d.pick(32, 64))
    a, b = operand(d, "a", (*dims[:2], 64), 0.2), operand(d, "b", (dims[0], 64, dims[2]), 0.4)
    g = d.g
    c = g.matmul(a, b, virtual=not d.chance(0.4))
    z = g.pointwise(_P.ADD, c, g.tensor("bias", (1, 1, dims[2])))
    if dims[0] * dims[1] <= 32 and d.chance(0.3):  # larger products overflow
        g.reduction(_R.MUL, z, (1, 1, dims[2]), virtual=False, data_type=_T.FLOAT)
        return
    z = g.pointwise(_P.RELU_FWD, z, virtual=not d.chance(0.4))
    to = d.pick((1, 1, dims[2]), (dims[0], dims[1], 1), (1, 1, 1))
    g.reduction(d.pick(_R.ADD, _R.AMAX, _R.MAX, _R.MIN), z, to, virtual=False, data_type=_T.FLOAT)


def _quantized(d: Draw) -> None:
    """Add a product of 8-bit floats with its factors, its largest element and an 8-bit result."""
    g = d.g
    g.io_type = d.pick(_T.FP8_E4M3, _T.FP8_E4M3, _T.FP8_E5M2)
    dims = (d.pick(1, 2), d.pick(16, 32, 64), d.pick(32, 64))
    a, b = operand(d, "a", (*dims[:2], 64), 0.0), operand(d, "b", (dims[0], 64, dims[2]), 1.0)
    one = (1, 1, 1)
    z = g.matmul(a, b)
    for name in ("descale_a", "descale_b"):
        z = g.pointwise(_P.MUL, z, g.tensor(name, one, _T.FLOAT))
    if d.chance(0.5):
        z = g.pointwise(_P.ADD, z, g.tensor("bias", (1, 1, dims[2]), _T.BFLOAT16))
    if d.chance(0.5):
        z = g.pointwise(d.pick(_P.RELU_FWD, _P.GELU_FWD), z)
    if d.chance(0.5):
        g.reduction(_R.AMAX, z, one, virtual=False, data_type=_T.FLOAT)
    g.pointwise(
        _P.MUL, z, g.tensor("scale_c", one, _T.FLOAT), virtual=False, data_type=d.pick(_T.FP8_E4M3, _T.BFLOAT16)
    )
