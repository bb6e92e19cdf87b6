"""Random norms, forward and backward, and parts of batch norm."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, NormMode, PointwiseMode
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.shapes import infer_statistics_dims
from cudnn_backend_py.graph.strides import channels_last, packed_strides

from ..random_builder import RandomGraphBuilder
from .convolutions import add_convolution_prologue

__all__ = ["add_norm", "add_norm_backward", "add_random_part_of_batch_norm"]

_T, _N, _P = DataType, NormMode, PointwiseMode
TYPE_WEIGHTS = {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3}
ROW_NORM_MODES = (_N.LAYER_NORM, _N.RMS_NORM, _N.ADA_LAYER_NORM)
NORM_MODE_WEIGHTS = {
    _N.LAYER_NORM: 5,
    _N.RMS_NORM: 5,
    _N.ADA_LAYER_NORM: 2,
    _N.INSTANCE_NORM: 2,
    _N.BATCH_NORM: 3,
    _N.GROUP_NORM: 0.3,
}


def _choose_dims(d: RandomGraphBuilder, mode: NormMode) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return random dims of x and of the scale, and set the layout."""
    hidden = d.choose(32, 64, 128, 256, 512, 768, 200, 72)
    if mode is _N.ADA_LAYER_NORM:
        n, s = d.choose(1, 2, 4), d.choose(4, 8, 16, 33)
        d.layout = packed_strides
        return (n, s, hidden), (n, 1, hidden)
    if mode in ROW_NORM_MODES:
        rows = d.choose(4, 16, 32, 64, 7)
        form = d.choose_weighted({"columns": 6, "tokens": 2, "many": 1})
        d.layout = packed_strides
        if form == "columns":
            return (rows, hidden, 1, 1), (1, hidden, 1, 1)
        if form == "tokens":
            return (d.choose(1, 2, 3), rows, hidden), (1, 1, hidden)
        return (rows, 8, 4, 4), (1, 8, 4, 4)
    d.layout = channels_last
    c = d.choose(8, 16, 32, 64, 128)
    sizes = (d.make_random_int(2, 8), d.make_random_int(2, 8))
    if d.make_random_bool(0.15):
        sizes = (d.make_random_int(2, 4), *sizes)  # type: ignore[assignment]
    return (d.choose(1, 2, 4, 8), c, *sizes), (1, c, *[1] * len(sizes))


def add_norm(d: RandomGraphBuilder) -> None:
    """Add a norm of any mode, in training or inference, and the operations after it."""
    kind = d.choose_io_type(TYPE_WEIGHTS)
    mode = d.choose_weighted(NORM_MODE_WEIGHTS)
    dims, scale_dims = _choose_dims(d, mode)
    training = mode is _N.BATCH_NORM or d.make_random_bool(0.55)
    if mode is _N.BATCH_NORM and d.make_random_bool(0.5):
        _add_batch_norm_with_running_statistics(d, dims, scale_dims)
        return
    weight = kind if mode is _N.ADA_LAYER_NORM or d.make_random_bool(0.25) else _T.FLOAT
    x, scale = d.add_tensor("x", dims), d.add_tensor("scale", scale_dims, weight)
    bias = None if mode is _N.RMS_NORM and d.make_random_bool(0.8) else d.add_tensor("bias", scale_dims, weight)
    more: dict[str, Any] = {"groups": 4} if mode is _N.GROUP_NORM else {}
    epsilon = d.choose(1e-5, 1e-3, 1e-6)
    length = 0 if d.make_random_bool(0.75) else d.choose(1, 2)

    def add_norm_operation(options: dict[str, Any]) -> Tensor:
        return d.g.norm_forward(mode, x, scale, bias, training=training, epsilon=epsilon, **more, **options).y

    _add_norm_with_epilogue(d, add_norm_operation, dims, length)


def _add_norm_with_epilogue(d: RandomGraphBuilder, add: Any, dims: tuple[int, ...], length: int) -> None:
    """Add a norm, and operations that cuDNN fuses with it: a ReLU, a residual or a scale."""
    if not length:
        add(d.make_stored_result_options(dims, d.g.io_type if d.make_random_bool(0.85) else d.choose_output_type()))
        return
    z = add(d.make_virtual_result_options(dims))
    if length == 2 and d.make_random_bool(0.6):
        z = d.g.pointwise(_P.ADD, z, d.add_tensor("residual", dims), **d.make_virtual_result_options(dims))
        d.g.pointwise(_P.RELU_FWD, z, **d.make_stored_result_options(dims))
        return
    d.add_elementwise_chain(z, length, channel=1, kind=d.g.io_type)


def _add_batch_norm_with_running_statistics(d: RandomGraphBuilder, dims: tuple[int, ...], per: tuple[int, ...]) -> None:
    x = d.add_tensor("x", dims)
    scale, bias, mean, var = (
        d.add_tensor(name, per, _T.FLOAT) for name in ("scale", "bias", "running_mean", "running_var")
    )

    def add_batch_norm_operation(options: dict[str, Any]) -> Tensor:
        return d.g.norm_forward(
            _N.BATCH_NORM,
            x,
            scale,
            bias,
            training=True,
            running_mean=mean,
            running_var=var,
            momentum=d.choose(0.1, 0.9, 0.5),
            epsilon=1e-5,
            **options,
        ).y

    _add_norm_with_epilogue(d, add_batch_norm_operation, dims, 0 if d.make_random_bool(0.6) else d.choose(1, 2))


def add_norm_backward(d: RandomGraphBuilder) -> None:
    """Add the gradient of a norm, for batch norm also after a ReLU."""
    kind = d.choose_io_type(TYPE_WEIGHTS)
    mode = d.choose_weighted({**NORM_MODE_WEIGHTS, _N.GROUP_NORM: 0})
    dims, scale_dims = _choose_dims(d, mode)
    sets = infer_statistics_dims(mode, dims, scale_dims)
    assert sets is not None
    weight = kind if mode is _N.ADA_LAYER_NORM else _T.FLOAT
    x, dy, scale = d.add_tensor("x", dims), d.add_tensor("dy", dims), d.add_tensor("scale", scale_dims, weight)
    mean = None if mode is _N.RMS_NORM else d.add_tensor("mean", sets, _T.FLOAT)
    inverse = d.add_tensor("inv_variance", sets, _T.FLOAT)
    g = d.g
    if mode is _N.BATCH_NORM and d.make_random_bool(0.4):
        bias = d.add_tensor("bias", scale_dims, _T.FLOAT)
        y = g.norm_forward(
            mode, x, scale, bias, mean=mean, inv_variance=inverse, epsilon=None, **d.make_virtual_result_options(dims)
        ).y
        dy = g.pointwise(_P.RELU_BWD, y, dy=dy, data_type=kind, strides=x.strides)
    g.norm_backward(mode, dy, x, scale, mean=mean, inv_variance=inverse, **d.make_stored_result_options(dims))


def add_random_part_of_batch_norm(d: RandomGraphBuilder) -> None:
    """Add a part of a batch norm: statistics after a convolution, finalized scale and bias, or weight gradients."""
    part = d.choose_weighted({"statistics": 4, "finalize": 2, "weights": 2, "pair": 1})
    {
        "statistics": _add_gen_stats,
        "finalize": _add_norm_statistics_finalize,
        "weights": _add_bn_weight_gradients,
        "pair": _add_single_bn_weight_gradients,
    }[part](d)


def _choose_image_dims_and_set_layout(d: RandomGraphBuilder) -> tuple[int, ...]:
    d.layout = channels_last
    return (d.choose(1, 2, 4), d.choose(16, 32, 64), d.make_random_int(4, 12), d.make_random_int(4, 12))


def _add_gen_stats(d: RandomGraphBuilder) -> None:
    d.choose_io_type({_T.HALF: 6, _T.BFLOAT16: 1})
    dims = _choose_image_dims_and_set_layout(d)
    k, tap = d.choose(16, 32, 64), d.choose(1, 3)
    x, w = add_convolution_prologue(d, d.add_tensor("x", dims), 0.4), d.add_tensor("w", (k, dims[1], tap, tap))
    out = (dims[0], k, *dims[2:])
    d.g.gen_stats(d.g.convolution(x, w, padding=tap // 2, **d.make_stored_result_options(out)))


def _add_norm_statistics_finalize(d: RandomGraphBuilder) -> None:
    d.layout = channels_last
    per = (1, d.choose(8, 16, 32, 64, 128, 40), 1, 1)
    names = ("sum", "sqsum", "scale", "bias", "running_mean", "running_var")
    total, squares, scale, bias, mean, var = (d.add_tensor(name, per, _T.FLOAT) for name in names)
    count = d.choose(64, 256, 3136)
    running: dict[str, Any] = {"running_mean": mean, "running_var": var}
    if d.make_random_bool(0.3):
        running |= {name: {"data_type": _T.HALF} for name in ("eq_scale", "eq_bias")}
    d.g.batch_norm_finalize(total, squares, scale, bias, accum_count=count, **running)


def _add_bn_weight_gradients(d: RandomGraphBuilder) -> None:
    """Add the gradient of convolution, ReLU and batch norm as one operation."""
    d.choose_io_type({_T.HALF: 6, _T.BFLOAT16: 1})
    dims, tap, k = _choose_image_dims_and_set_layout(d), d.choose(1, 3), d.choose(16, 32, 64)
    g, per = d.g, (1, dims[1], 1, 1)
    dy, w = d.add_tensor("dy", (dims[0], k, *dims[2:])), d.add_tensor("w", (k, dims[1], tap, tap))
    x = d.add_tensor("x", dims)
    mean, inv, scale, bias = (d.add_tensor(name, per, _T.FLOAT) for name in ("mean", "inv_std", "scale", "bias"))
    gradient = g.convolution_backward_data(dy, w, padding=tap // 2, dims=dims, **d.make_virtual_result_options(dims))
    normal = x
    for mode, factor in ((_P.SUB, mean), (_P.MUL, inv), (_P.MUL, scale), (_P.ADD, bias)):
        normal = g.pointwise(mode, normal, factor, **d.make_virtual_result_options(dims))
    clipped = g.pointwise(_P.RELU_BWD, normal, dy=gradient, **d.make_stored_result_options(dims))
    g.batch_norm_backward_weights(clipped, x, mean, inv, scale)


def _add_single_bn_weight_gradients(d: RandomGraphBuilder) -> None:
    d.choose_io_type({_T.HALF: 6, _T.BFLOAT16: 1})
    dims = _choose_image_dims_and_set_layout(d)
    per = (1, dims[1], 1, 1)
    mean, inv, scale = (d.add_tensor(name, per, _T.FLOAT) for name in ("mean", "inv_std", "scale"))
    d.g.batch_norm_backward_weights(d.add_tensor("dy", dims), d.add_tensor("x", dims), mean, inv, scale)
