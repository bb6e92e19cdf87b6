"""Random fused graphs: norms and softmax written as elementary operations, residual blocks, gated layers."""

from __future__ import annotations

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.strides import channels_last

from ..random_builder import RandomGraphBuilder
from .products import add_matrix

__all__ = ["add_fusion"]

_T, _P, _R = DataType, PointwiseMode, ReduceTensorOp


def add_fusion(d: RandomGraphBuilder) -> None:
    """Add a random one of the fusions in this file."""
    d.choose_io_type({_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3})
    made = d.choose_weighted(
        {
            _add_softmax: 0.4,
            _add_rms_norm: 0.4,
            _add_layer_norm: 0.4,
            _add_residual_block: 3,
            _add_gated_layer: 3,
            _add_matmul_with_column_sums: 3,
            _add_fp8_matmul: 3,
        }
    )
    made(d)


def _add_matrix_and_get_row_tensor_dims(d: RandomGraphBuilder) -> tuple[Tensor, tuple[int, ...]]:
    """Add a matrix or a matmul's result; return it, and the dims of a tensor with one element per row of it."""
    dims = (d.choose(1, 2, 4), d.choose(8, 16, 32), d.choose(16, 32, 64, 128))
    if d.make_random_bool(0.3):
        a, b = add_matrix(d, "a", (*dims[:2], 32), 0.2), add_matrix(d, "b", (dims[0], 32, dims[2]), 0.4)
        return d.g.matmul(a, b), (*dims[:2], 1)
    return d.g.tensor("x", dims), (*dims[:2], 1)


def _add_softmax(d: RandomGraphBuilder) -> None:
    x, row = _add_matrix_and_get_row_tensor_dims(d)
    g = d.g
    e = g.pointwise(_P.EXP, g.pointwise(_P.SUB, x, g.reduction(_R.MAX, x, row)))
    g.pointwise(_P.DIV, e, g.reduction(_R.ADD, e, row), virtual=False)


def _add_rms_norm(d: RandomGraphBuilder) -> None:
    x, row = _add_matrix_and_get_row_tensor_dims(d)
    g = d.g
    mean = g.reduction(_R.AVG, g.pointwise(_P.MUL, x, x), row)
    inverse = g.pointwise(_P.RSQRT, g.pointwise(_P.ADD, mean, d.add_scalar(3, 1e-3)))
    z = g.pointwise(_P.MUL, x, inverse)
    g.pointwise(_P.MUL, z, g.tensor("scale", (1, 1, x.dims[2])), virtual=False)


def _add_layer_norm(d: RandomGraphBuilder) -> None:
    x, row = _add_matrix_and_get_row_tensor_dims(d)
    g = d.g
    centred = g.pointwise(_P.SUB, x, g.reduction(_R.AVG, x, row))
    variance = g.reduction(_R.AVG, g.pointwise(_P.MUL, centred, centred), row)
    inverse = g.pointwise(_P.RSQRT, g.pointwise(_P.ADD, variance, d.add_scalar(3, 1e-3)))
    g.pointwise(_P.MUL, centred, inverse, virtual=False)


def _add_residual_block(d: RandomGraphBuilder) -> None:
    """Add a convolution with a scale and bias per channel, a residual and an activation."""
    g = d.g
    d.layout = channels_last
    n, c, k, h, w = (
        d.choose(1, 2),
        d.choose(16, 32),
        d.choose(16, 32),
        d.make_random_int(4, 10),
        d.make_random_int(4, 10),
    )
    x, weights = d.add_tensor("x", (n, c, h, w)), d.add_tensor("w", (k, c, 3, 3))
    out, per = (n, k, h, w), (1, k, 1, 1)
    z = g.convolution(x, weights, padding=1, **d.make_virtual_result_options(out))
    if d.make_random_bool(0.6):
        z = g.pointwise(_P.MUL, z, d.add_tensor("scale", per), **d.make_virtual_result_options(out))
    z = g.pointwise(_P.ADD, z, d.add_tensor("bias", per), **d.make_virtual_result_options(out))
    z = g.pointwise(_P.ADD, z, d.add_tensor("residual", out), **d.make_virtual_result_options(out))
    if d.make_random_bool(0.3):
        mask = g.pointwise(
            _P.CMP_GT,
            d.add_tensor("leaf", out),
            d.add_scalar(4, 0.0),
            strides=channels_last(out),
            compute_type=_T.FLOAT,
        )
        z = g.pointwise(_P.BINARY_SELECT, z, d.add_scalar(4, 0.0), mask, **d.make_virtual_result_options(out))
    g.pointwise(d.choose(_P.RELU_FWD, _P.GELU_FWD, _P.SWISH_FWD), z, **d.make_stored_result_options(out))


def _add_gated_layer(d: RandomGraphBuilder) -> None:
    """Add a matmul multiplied by an activation of itself or of another tensor."""
    dims = (d.choose(1, 2), d.choose(16, 32, 64), d.choose(32, 64))
    a, b = add_matrix(d, "a", (*dims[:2], 64), 0.2), add_matrix(d, "b", (dims[0], 64, dims[2]), 0.4)
    g = d.g
    c = g.matmul(a, b)
    gate = g.pointwise(
        d.choose(_P.SIGMOID_FWD, _P.SWISH_FWD, _P.GELU_FWD), c if d.make_random_bool(0.5) else g.tensor("gate", dims)
    )
    z = g.pointwise(_P.MUL, c, gate)
    if d.make_random_bool(0.4):
        z = g.pointwise(_P.ADD, z, g.tensor("residual", dims))
    g.pointwise(_P.IDENTITY, z, virtual=False)


def _add_matmul_with_column_sums(d: RandomGraphBuilder) -> None:
    dims = (d.choose(1, 2), d.choose(16, 32, 64), d.choose(32, 64))
    a, b = add_matrix(d, "a", (*dims[:2], 64), 0.2), add_matrix(d, "b", (dims[0], 64, dims[2]), 0.4)
    g = d.g
    c = g.matmul(a, b, virtual=not d.make_random_bool(0.4))
    z = g.pointwise(_P.ADD, c, g.tensor("bias", (1, 1, dims[2])))
    if dims[0] * dims[1] <= 32 and d.make_random_bool(0.3):  # larger products overflow
        g.reduction(_R.MUL, z, (1, 1, dims[2]), virtual=False, data_type=_T.FLOAT)
        return
    z = g.pointwise(_P.RELU_FWD, z, virtual=not d.make_random_bool(0.4))
    to = d.choose((1, 1, dims[2]), (dims[0], dims[1], 1), (1, 1, 1))
    g.reduction(d.choose(_R.ADD, _R.AMAX, _R.MAX, _R.MIN), z, to, virtual=False, data_type=_T.FLOAT)


def _add_fp8_matmul(d: RandomGraphBuilder) -> None:
    """Add a matmul of FP8 tensors with scales, its largest element (amax) and an FP8 result."""
    g = d.g
    g.io_type = d.choose(_T.FP8_E4M3, _T.FP8_E4M3, _T.FP8_E5M2)
    dims = (d.choose(1, 2), d.choose(16, 32, 64), d.choose(32, 64))
    a, b = add_matrix(d, "a", (*dims[:2], 64), 0.0), add_matrix(d, "b", (dims[0], 64, dims[2]), 1.0)
    one = (1, 1, 1)
    z = g.matmul(a, b)
    for name in ("descale_a", "descale_b"):
        z = g.pointwise(_P.MUL, z, g.tensor(name, one, _T.FLOAT))
    if d.make_random_bool(0.5):
        z = g.pointwise(_P.ADD, z, g.tensor("bias", (1, 1, dims[2]), _T.BFLOAT16))
    if d.make_random_bool(0.5):
        z = g.pointwise(d.choose(_P.RELU_FWD, _P.GELU_FWD), z)
    if d.make_random_bool(0.5):
        g.reduction(_R.AMAX, z, one, virtual=False, data_type=_T.FLOAT)
    g.pointwise(
        _P.MUL, z, g.tensor("scale_c", one, _T.FLOAT), virtual=False, data_type=d.choose(_T.FP8_E4M3, _T.BFLOAT16)
    )
