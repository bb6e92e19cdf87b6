"""Evaluation of normalizations, their gradients, and the parts of batch norm.

Everything is computed in float64. In a run that rounds, statistics are rounded to float32 before they are used, as
kernels keep them. A set of equal elements has variance 0, so that ``epsilon`` alone decides; with an epsilon of 0 it is
NaN. A NaN or an infinity makes its whole set NaN. Measured with cuDNN 9.19 on an H200: where epsilon is added, running
variances of m / (m - 1) times the batch's, and equal elements; which results of a set with NaN or an infinity are NaN
and which infinite differs between cuDNN's engines.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import BnFinalizeStatsMode, DataType, DescriptorType, NormFwdPhase, NormMode
from ..graph.ir import Operation, Tensor
from ..graph.shapes import infer_statistics_dims, make_per_channel_dims
from .run import Handler, Run

__all__ = ["OPERATIONS"]

Floats = NDArray[np.float64]
_MODES_NORMALIZED_BY_SCALE = (
    NormMode.LAYER_NORM,
    NormMode.RMS_NORM,
    NormMode.ADA_LAYER_NORM,
)  # whose dims say what is normalized


def _split_axes_by_statistics_dims(x: tuple[int, ...], sets: tuple[int, ...]) -> list[int]:
    """Return dims that split each axis of x in two: normalized sets, and elements per set."""
    return [part for few, all_of in zip(sets, x, strict=True) for part in (few, all_of // few)]


def _compute_mean_to_statistics_dims(x: Floats, sets: tuple[int, ...]) -> Floats:
    """Return the mean of each set of elements that is normalized together."""
    return np.asarray(_compute_sum_to_statistics_dims(x, sets) / (x.size // math.prod(sets)))


def _compute_sum_to_statistics_dims(x: Floats, sets: tuple[int, ...]) -> Floats:
    return np.asarray(x.reshape(_split_axes_by_statistics_dims(x.shape, sets)).sum(axis=tuple(range(1, 2 * x.ndim, 2))))


def _broadcast_statistics(values: Floats, dims: tuple[int, ...]) -> Floats:
    """Repeat one number per normalized set for all elements of the set."""
    for axis, (few, size) in enumerate(zip(values.shape, dims, strict=True)):
        if 1 < few < size:
            values = np.repeat(values, size // few, axis)
    return values


def _find_statistics_dims(op: Operation) -> tuple[int, ...]:
    """Return the dims of the statistics: those of their tensors if given, else those the mode implies."""
    x, scale = op.fields["x"], op.fields.get("scale")
    for name in ("inv_variance", "mean"):
        if name in op.fields:
            return tuple(op.fields[name].dims)
    several = sum(size != 1 for size in x.dims[1:]) > 1
    open_axes = scale is None and several and op.fields["mode"] in _MODES_NORMALIZED_BY_SCALE
    sets = None if open_axes else infer_statistics_dims(op.fields["mode"], x.dims, () if scale is None else scale.dims)
    if sets is None:
        raise GraphError(
            f"{op.fields['mode'].name} cannot be interpreted: without mean and inv_variance, the "
            "normalized dims are unknown",
            code="interpret-operation",
            where=str(op),
        )
    return sets


def _read_scalar(run: Run, op: Operation, name: str) -> float:
    tensor = op.fields.get(name)
    return 0.0 if tensor is None else float(run.read_scalar(tensor))


def _read_scale(run: Run, op: Operation) -> Floats:
    """Return the scale of a norm; 1 if it has none."""
    return run.read_floats(op.fields["scale"]) if "scale" in op.fields else np.ones(())


def _round_to_float32(run: Run, values: Any) -> Floats:
    return run.round_to_type(np.asarray(values, dtype=np.float64), DataType.FLOAT)


def _compute_statistics(
    run: Run, x: Floats, sets: tuple[int, ...], epsilon: float, centered: bool
) -> tuple[Floats, Floats, Floats]:
    """Return mean, variance and 1 / sqrt(variance + epsilon) of each set; the mean is 0 for RMS."""
    mean = _round_to_float32(run, _compute_mean_to_statistics_dims(x, sets)) if centered else np.zeros(sets)
    variance = _compute_mean_to_statistics_dims((x - _broadcast_statistics(mean, x.shape)) ** 2, sets)
    return mean, variance, _round_to_float32(run, 1 / np.sqrt(variance + epsilon))


def run_norm_forward(run: Run, op: Operation) -> None:
    """Write y = (x - mean) * inv_variance * scale + bias, with inv_variance = 1 / sqrt(variance + epsilon).

    RMS_NORM has no mean, and the mean square for the variance. Training writes the statistics, and the running ones:
    (1 - factor) * previous + factor * this batch's, for the variance times m / (m - 1). Inference reads mean and
    inverse variance where the operation has them, else it computes them from x.
    """
    fields, mode = op.fields, op.fields["mode"]
    x, y = run.read_floats(fields["x"]), fields["y"]
    if "peer_stat" in fields:
        raise GraphError(
            "a norm over several GPUs (peer_stat) cannot be interpreted", code="interpret-operation", where=str(op)
        )
    sets, centered = _find_statistics_dims(op), mode is not NormMode.RMS_NORM
    training = fields["phase"] is NormFwdPhase.TRAINING
    if not training and "inv_variance" in fields:
        inverse = run.read_floats(fields["inv_variance"])
        mean = run.read_floats(fields["mean"]) if "mean" in fields else np.zeros(sets)
    else:
        mean, variance, inverse = _compute_statistics(run, x, sets, _read_scalar(run, op, "epsilon"), centered)
    if training:
        _write_if_requested(run, fields.get("mean"), mean)
        _write_if_requested(run, fields.get("inv_variance"), inverse)
        members = x.size // math.prod(sets)
        factor = _read_scalar(run, op, "exp_avg_factor")
        unbiased = variance * members / max(members - 1, 1)
        for name, value in (("mean", mean), ("var", unbiased)):
            if f"output_running_{name}" in fields and f"input_running_{name}" in fields:
                before = run.read_floats(fields[f"input_running_{name}"])
                run.write_value(fields[f"output_running_{name}"], (1 - factor) * before + factor * value)
    normal = (x - _broadcast_statistics(mean, x.shape)) * _broadcast_statistics(inverse, x.shape)
    shift = run.read_floats(fields["bias"]) if "bias" in fields else 0.0
    run.write_value(y, normal * _read_scale(run, op) + shift)


def _write_if_requested(run: Run, tensor: Tensor | None, values: Floats) -> None:
    if tensor is not None:
        run.write_value(tensor, values)


def run_norm_backward(run: Run, op: Operation) -> None:
    """Write dx = inv * (g - mean(g) - n * mean(g * n)) with g = dy * scale and n = (x - mean) * inv.

    RMS_NORM has no mean(g). dscale is the sum of dy * n and dbias that of dy over the dims in which they are 1.
    Without saved statistics they are computed from x and epsilon.
    """
    fields, mode = op.fields, op.fields["mode"]
    if "peer_stat" in fields:
        raise GraphError(
            "a norm over several GPUs (peer_stat) cannot be interpreted", code="interpret-operation", where=str(op)
        )
    x, dy, scale = run.read_floats(fields["x"]), run.read_floats(fields["dy"]), _read_scale(run, op)
    sets, centered = _find_statistics_dims(op), mode is not NormMode.RMS_NORM
    if "inv_variance" in fields:
        inverse = run.read_floats(fields["inv_variance"])
        mean = run.read_floats(fields["mean"]) if "mean" in fields else np.zeros(sets)
    else:
        mean, _, inverse = _compute_statistics(run, x, sets, _read_scalar(run, op, "epsilon"), centered)
    inverse = _broadcast_statistics(inverse, x.shape)
    normal = (x - _broadcast_statistics(mean, x.shape)) * inverse
    g = dy * scale
    slope = g - normal * _broadcast_statistics(_compute_mean_to_statistics_dims(g * normal, sets), x.shape)
    if centered:
        slope = slope - _broadcast_statistics(_compute_mean_to_statistics_dims(g, sets), x.shape)
    run.write_value(fields["dx"], inverse * slope)
    for name, values in (("dscale", dy * normal), ("dbias", dy)):
        if name in fields:
            run.write_value(
                fields[name], _round_to_float32(run, _compute_sum_to_statistics_dims(values, fields[name].dims))
            )


def run_gen_stats(run: Run, op: Operation) -> None:
    """Write the sum and the sum of squares of each channel."""
    x = run.read_floats(op.fields["x"])
    for name, values in (("sum", x), ("sqsum", x * x)):
        y = op.fields[name]
        run.write_value(y, run.round_to_type(_compute_sum_to_statistics_dims(values, y.dims), op.fields["math_prec"]))


def run_bn_finalize(run: Run, op: Operation) -> None:
    """Write mean, inverse deviation, and the factors of y = eq_scale * x + eq_bias, from sums or running statistics.

    TRAINING: mean = sum / count, variance = sqsum / count - mean^2, and running statistics as of a norm's training.
    INFERENCE: the running statistics are the mean and the variance.
    """
    fields, kind = op.fields, op.fields["math_prec"]
    count, epsilon = _read_scalar(run, op, "accum_count"), _read_scalar(run, op, "epsilon")
    if fields["stats_mode"] is BnFinalizeStatsMode.TRAINING:
        mean = run.round_to_type(run.read_floats(fields["y_sum"]) / count, kind)
        variance = run.round_to_type(run.read_floats(fields["y_sq_sum"]) / count - mean * mean, kind)
    else:
        mean, variance = (run.read_floats(fields[f"prev_running_{name}"]) for name in ("mean", "var"))
    inverse = run.round_to_type(1 / np.sqrt(variance + epsilon), kind)
    scale = run.round_to_type(run.read_floats(fields["scale"]) * inverse, kind)
    run.write_value(fields["saved_mean"], mean)
    run.write_value(fields["saved_inv_std"], inverse)
    run.write_value(fields["eq_scale"], scale)
    run.write_value(fields["eq_bias"], run.read_floats(fields["bias"]) - mean * scale)
    factor = _read_scalar(run, op, "exp_average_factor")
    unbiased = variance * count / max(count - 1, 1)
    training = fields["stats_mode"] is BnFinalizeStatsMode.TRAINING
    for name, value in (("mean", mean), ("var", unbiased)):
        if f"updated_running_{name}" in fields:
            before = run.read_floats(fields[f"prev_running_{name}"])
            run.write_value(
                fields[f"updated_running_{name}"], (1 - factor) * before + factor * value if training else before
            )


def run_bn_backward_weights(run: Run, op: Operation) -> None:
    """Write dbn_scale, dbn_bias, and the factors of dx = eq_dy_scale * dy + eq_x_scale * x + eq_bias.

    dbn_bias is the sum of dy over a channel of m elements, dbn_scale that of dy * (x - mean) * invstd; eq_dy_scale =
    scale * invstd, eq_x_scale = -eq_dy_scale * invstd * dbn_scale / m, eq_bias = -eq_dy_scale * dbn_bias / m - mean *
    eq_x_scale: the gradient of a batch norm, sorted by dy and x.
    """
    fields, kind = op.fields, op.fields["math_prec"]
    x, dy, mean, inverse, scale = (run.read_floats(fields[name]) for name in ("x", "dy", "mean", "invstd", "bn_scale"))
    sets = make_per_channel_dims(x.shape)
    members = x.size // math.prod(sets)
    bias = run.round_to_type(_compute_sum_to_statistics_dims(dy, sets), kind)
    slope = run.round_to_type(_compute_sum_to_statistics_dims(dy * (x - mean) * inverse, sets), kind)
    of_dy = run.round_to_type(scale * inverse, kind)
    of_x = run.round_to_type(-of_dy * inverse * slope / members, kind)
    run.write_value(fields["dbn_bias"], bias)
    run.write_value(fields["dbn_scale"], slope)
    run.write_value(fields["eq_dy_scale"], of_dy)
    run.write_value(fields["eq_x_scale"], of_x)
    run.write_value(fields["eq_bias"], -of_dy * bias / members - mean * of_x)


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_NORM_FORWARD: run_norm_forward,
    DescriptorType.OPERATION_NORM_BACKWARD: run_norm_backward,
    DescriptorType.OPERATION_GEN_STATS: run_gen_stats,
    DescriptorType.OPERATION_BN_FINALIZE_STATISTICS: run_bn_finalize,
    DescriptorType.OPERATION_BN_BWD_WEIGHTS: run_bn_backward_weights,
}
