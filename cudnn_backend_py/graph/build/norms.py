"""``GraphBuilder`` methods for normalizations, their gradients and the parts of batch norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import GraphError
from ...generated.enums import BnFinalizeStatsMode, DataType, DescriptorType, GenStatsMode, NormFwdPhase, NormMode
from ..ir import Tensor
from ..shapes import infer_statistics_dims, make_per_channel_dims
from .base import (
    BuilderBase,
    Output,
    check_dims,
    check_equal_ranks,
    check_types,
    make_shape_error,
    make_strides_like,
    require_all_results,
    wrap_public_methods_of_mixin,
)

__all__ = [
    "BatchNormFinalizeOutputs",
    "BatchNormWeightGradients",
    "GenStatsOutputs",
    "NormForwardOutputs",
    "NormGradients",
    "Normalizations",
]

Number = float | int | Tensor
"""A number, or a by-value tensor of one element that gets it at execution."""


class NormForwardOutputs(NamedTuple):
    """The outputs of a normalization; None for those not requested."""

    y: Tensor
    mean: Tensor | None
    inv_variance: Tensor | None
    next_running_mean: Tensor | None
    next_running_var: Tensor | None


class NormGradients(NamedTuple):
    """The gradients of a normalization."""

    dx: Tensor
    dscale: Tensor
    dbias: Tensor | None


class GenStatsOutputs(NamedTuple):
    """The sum and the sum of squares of each channel."""

    sum: Tensor
    sqsum: Tensor


class BatchNormFinalizeOutputs(NamedTuple):
    """The results of batch norm finalization, each [1, c, 1 ..]; y = eq_scale * x + eq_bias."""

    eq_scale: Tensor
    eq_bias: Tensor
    saved_mean: Tensor
    saved_inv_std: Tensor
    updated_running_mean: Tensor | None
    updated_running_var: Tensor | None


class BatchNormWeightGradients(NamedTuple):
    """Gradients of a batch norm's parameters, and the factors of dx = eq_dy_scale * dy + eq_x_scale * x + eq_bias."""

    dbn_scale: Tensor
    dbn_bias: Tensor
    eq_dy_scale: Tensor
    eq_x_scale: Tensor
    eq_bias: Tensor


@wrap_public_methods_of_mixin
class Normalizations(BuilderBase):
    """Normalizations of x [n, c, ..].

    What is normalized together: by LAYER_NORM and RMS_NORM the dims in which `scale` is not 1, by ADA_LAYER_NORM the
    same with scales of their own for each n, by BATCH_NORM each channel, by INSTANCE_NORM each n and c, by GROUP_NORM
    each n and group of channels. Statistics are a mean and ``1 / sqrt(variance + epsilon)`` for each such set, in
    memory and float32 unless told otherwise.
    """

    def norm_forward(
        self,
        mode: NormMode,
        x: Tensor,
        scale: Tensor,
        bias: Tensor | None = None,
        *,
        epsilon: Number | None = 1e-5,
        training: bool = False,
        mean: Output | None = None,
        inv_variance: Output | None = None,
        groups: int | None = None,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        momentum: Number | None = None,
        next_running_mean: Output | None = None,
        next_running_var: Output | None = None,
        peer_stats: Sequence[Tensor] = (),
        **result: Any,
    ) -> NormForwardOutputs:
        """Add y = (x - mean) * inv_variance * scale + bias and return it with the statistics of a training phase.

        Parameters
        ----------
        x
            [n, c, ..]. cuDNN has batch and instance norm for channels last.
        scale, bias
            Dims of 1 and of `x`: [1, c, 1 ..] for batch, instance and group norm.
        epsilon
            Added to the variance, and to the mean square by RMS_NORM.
        training
            Whether mean and inverse variance are written: on by default then, None of RMS_NORM. In inference they are
            read where they are given, as BATCH_NORM needs them, and else computed.
        groups
            Of channels, for GROUP_NORM.
        running_mean, running_var, momentum
            Statistics over batches and the weight of this one: next = (1 - momentum) * running + momentum * this,
            for the variance this one times m / (m - 1). The next ones are written where running ones are given.
        peer_stats
            Buffers of the GPUs that share the batch.

        Raises
        ------
        GraphError
            ``operation-shape``; ``missing-field`` if BATCH_NORM has no statistics to infer with, or one of the running
            statistics is given alone.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR``. cuDNN has no GROUP_NORM, and inference of BATCH_NORM
        only before the gradients of a ReLU and of the batch norm.
        """
        check_types(NormMode, mode=mode)
        inputs = {"x": x, "scale": scale} | ({} if bias is None else {"bias": bias})
        check_equal_ranks(2, **inputs)
        sets = infer_statistics_dims(mode, x.dims, scale.dims, groups)
        _check_norm(mode, x, sets, scale=scale, bias=bias)
        assert sets is not None
        if training:
            mean = (mode is not NormMode.RMS_NORM) if mean is None else mean
            inv_variance = True if inv_variance is None else inv_variance
        elif mode is NormMode.BATCH_NORM and not (isinstance(mean, Tensor) and isinstance(inv_variance, Tensor)):
            raise GraphError("BATCH_NORM inference needs mean= and inv_variance= from training", code="missing-field")
        has_running = running_mean is not None and running_var is not None
        if (running_mean is None) != (running_var is None):
            alone = "running_mean" if running_var is None else "running_var"
            raise GraphError(
                f"{alone}= is given alone, but running mean and variance must be given together", code="missing-field"
            )
        like = make_strides_like(sets, x)
        y = self._get_result_tensor("norm", x.dims, result, strides=x.strides)
        check_dims(y, x.dims, "y", x=x)
        item = NormForwardOutputs(
            y,
            self._make_optional_output(mean, f"{y.name}.mean", sets, strides=like),
            self._make_optional_output(inv_variance, f"{y.name}.inv_variance", sets, strides=like),
            self._make_optional_output(
                has_running if next_running_mean is None else next_running_mean,
                f"{y.name}.next_mean",
                sets,
                strides=like,
            ),
            self._make_optional_output(
                has_running if next_running_var is None else next_running_var,
                f"{y.name}.next_var",
                sets,
                strides=like,
            ),
        )
        check_dims(running_mean, sets, "running mean", x=x)
        check_dims(running_var, sets, "running var", x=x)
        self._append_operation(
            DescriptorType.OPERATION_NORM_FORWARD,
            y.name,
            mode=mode,
            phase=NormFwdPhase.TRAINING if training else NormFwdPhase.INFERENCE,
            x=x,
            scale=scale,
            bias=bias,
            y=y,
            mean=item.mean,
            inv_variance=item.inv_variance,
            epsilon=self._make_scalar_tensor(epsilon, "epsilon", x.rank),
            exp_avg_factor=self._make_scalar_tensor(momentum, "momentum", x.rank),
            input_running_mean=running_mean,
            input_running_var=running_var,
            output_running_mean=item.next_running_mean,
            output_running_var=item.next_running_var,
            peer_stat=tuple(peer_stats) or None,
        )
        return item

    def norm_backward(
        self,
        mode: NormMode,
        dy: Tensor,
        x: Tensor,
        scale: Tensor,
        *,
        mean: Tensor | None = None,
        inv_variance: Tensor | None = None,
        epsilon: Number | None = None,
        dscale: Output = True,
        dbias: Output | None = None,
        peer_stats: Sequence[Tensor] = (),
        **result: Any,
    ) -> NormGradients:
        """Add the gradients of :meth:`norm_forward` and return them.

        Parameters
        ----------
        dy, x, scale
            The gradient of y, and what the forward pass read.
        mean, inv_variance
            What its training phase wrote; RMS_NORM has no mean. Without them `epsilon` is needed.
        dscale, dbias
            Gradients of scale and bias, in the dims and type of `scale`; dbias is on by default but for RMS_NORM.

        Raises
        ------
        GraphError
            ``operation-shape``; ``missing-field`` if there are neither statistics nor an epsilon.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR``.
        """
        check_types(NormMode, mode=mode)
        check_equal_ranks(2, x=x, scale=scale)
        groups = None if inv_variance is None or mode is not NormMode.GROUP_NORM else inv_variance.dims[1]
        sets = infer_statistics_dims(mode, x.dims, scale.dims, groups)
        _check_norm(mode, x, sets, scale=scale)
        assert sets is not None
        if inv_variance is None and epsilon is None:
            raise GraphError(
                "the gradient of a norm needs inv_variance= or epsilon=, but neither is given", code="missing-field"
            )
        check_dims(dy, x.dims, "dy", x=x)
        check_dims(mean, sets, "mean", x=x)
        check_dims(inv_variance, sets, "inverse variance", x=x)
        wants_bias = mode is not NormMode.RMS_NORM if dbias is None else dbias
        dx = self._get_result_tensor("dnorm", x.dims, result, strides=x.strides)
        check_dims(dx, x.dims, "dx", x=x)
        gradient = self._make_optional_output(dscale, f"{dx.name}.dscale", scale.dims, scale.data_type, scale.strides)
        if gradient is None:
            raise GraphError("cuDNN always writes dscale, so dscale=False is not allowed", code="missing-field")
        item = NormGradients(
            dx,
            gradient,
            self._make_optional_output(wants_bias, f"{dx.name}.dbias", scale.dims, scale.data_type, scale.strides),
        )
        self._append_operation(
            DescriptorType.OPERATION_NORM_BACKWARD,
            dx.name,
            mode=mode,
            x=x,
            dy=dy,
            scale=scale,
            mean=mean,
            inv_variance=inv_variance,
            epsilon=self._make_scalar_tensor(epsilon, "epsilon", x.rank),
            dscale=item.dscale,
            dbias=item.dbias,
            dx=dx,
            peer_stat=tuple(peer_stats) or None,
        )
        return item

    def gen_stats(
        self,
        x: Tensor,
        *,
        name: str | None = None,
        sum: Output = True,
        sqsum: Output = True,
        compute_type: DataType | None = None,
    ) -> GenStatsOutputs:
        """Add sum and sum of squares over each channel of x [n, c, ..], and return both, [1, c, 1 ..].

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR``; cuDNN has it after a convolution.
        """
        check_equal_ranks(2, x=x)
        dims = make_per_channel_dims(x.dims)
        stem = name or self.make_unused_name("stats")
        made = [
            self._make_optional_output(wanted, f"{stem}.{port}", dims, strides=make_strides_like(dims, x))
            for port, wanted in (("sum", sum), ("sqsum", sqsum))
        ]
        item = GenStatsOutputs(*require_all_results(made, "gen_stats"))
        self._append_operation(
            DescriptorType.OPERATION_GEN_STATS,
            stem,
            mode=GenStatsMode.SUM_SQSUM,
            math_prec=self._choose_compute_type(compute_type),
            x=x,
            sum=item.sum,
            sqsum=item.sqsum,
        )
        return item

    def batch_norm_finalize(
        self,
        sum: Tensor,
        sqsum: Tensor,
        scale: Tensor,
        bias: Tensor,
        *,
        accum_count: Number,
        epsilon: Number = 1e-5,
        momentum: Number = 0.1,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        training: bool = True,
        name: str | None = None,
        compute_type: DataType | None = None,
        **outputs: Output,
    ) -> BatchNormFinalizeOutputs:
        """Compute statistics and equivalent scale and bias from the sums of :meth:`gen_stats`, and return them.

        Parameters
        ----------
        sum, sqsum, scale, bias, running_mean, running_var
            [1, c, 1 ..].
        accum_count
            Elements of a channel, n times its sizes; a number becomes a by-value INT64.
        training
            Whether the mean and variance are those of this batch, or the running ones.
        outputs
            By the fields of :class:`BatchNormFinalizeOutputs`: a tensor to write, or options of one.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR``.
        """
        check_equal_ranks(2, sum=sum, sqsum=sqsum, scale=scale, bias=bias)
        dims = sum.dims
        for port, item in (("sqsum", sqsum), ("scale", scale), ("bias", bias)):
            check_dims(item, dims, port, sum=sum)
        for port, given in (("running_mean", running_mean), ("running_var", running_var)):
            check_dims(given, dims, port.replace("_", " "), sum=sum)
        has_running = running_mean is not None and running_var is not None
        if (running_mean is None) != (running_var is None):
            alone = "running_mean" if running_var is None else "running_var"
            raise GraphError(
                f"{alone}= is given alone, but running mean and variance must be given together", code="missing-field"
            )
        mode = BnFinalizeStatsMode.TRAINING if training else BnFinalizeStatsMode.INFERENCE
        stem = name or self.make_unused_name("bn_finalize")
        made = {
            port: self._make_optional_output(
                outputs.pop(port, has_running if port.startswith("updated") else True),
                f"{stem}.{port}",
                dims,
                strides=sum.strides,
            )
            for port in BatchNormFinalizeOutputs._fields
        }
        _refuse_unknown_results(outputs, BatchNormFinalizeOutputs._fields)
        require_all_results(
            [item for port, item in made.items() if not port.startswith("updated")], "batch_norm_finalize"
        )
        self._append_operation(
            DescriptorType.OPERATION_BN_FINALIZE_STATISTICS,
            stem,
            stats_mode=mode,
            math_prec=self._choose_compute_type(compute_type),
            y_sum=sum,
            y_sq_sum=sqsum,
            scale=scale,
            bias=bias,
            accum_count=self._make_scalar_tensor(accum_count, "accum_count", len(dims), data_type=DataType.INT64),
            epsilon=self._make_scalar_tensor(epsilon, "epsilon", len(dims)),
            exp_average_factor=self._make_scalar_tensor(momentum, "momentum", len(dims)),
            prev_running_mean=running_mean,
            prev_running_var=running_var,
            **made,
        )
        return BatchNormFinalizeOutputs(**made)  # type: ignore[arg-type]

    def batch_norm_backward_weights(
        self,
        dy: Tensor,
        x: Tensor,
        mean: Tensor,
        inv_std: Tensor,
        scale: Tensor,
        *,
        name: str | None = None,
        compute_type: DataType | None = None,
        **outputs: Output,
    ) -> BatchNormWeightGradients:
        """Add the gradients of batch norm's scale and bias and the factors of dx, and return them.

        Parameters
        ----------
        dy, x
            [n, c, ..], the gradient of y and what was normalized.
        mean, inv_std, scale
            [1, c, 1 ..].
        outputs
            By the fields of :class:`BatchNormWeightGradients`: a tensor to write, or options of one.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR``.
        """
        check_equal_ranks(2, x=x, dy=dy, mean=mean, inv_std=inv_std, scale=scale)
        check_dims(dy, x.dims, "dy", x=x)
        dims = make_per_channel_dims(x.dims)
        for port, item in (("mean", mean), ("inv std", inv_std), ("scale", scale)):
            check_dims(item, dims, port, x=x)
        stem = name or self.make_unused_name("bn_weights")
        made = [
            self._make_optional_output(
                outputs.pop(port, True), f"{stem}.{port}", dims, strides=make_strides_like(dims, x)
            )
            for port in BatchNormWeightGradients._fields
        ]
        _refuse_unknown_results(outputs, BatchNormWeightGradients._fields)
        written = BatchNormWeightGradients(*require_all_results(made, "batch_norm_backward_weights"))
        self._append_operation(
            DescriptorType.OPERATION_BN_BWD_WEIGHTS,
            stem,
            math_prec=self._choose_compute_type(compute_type),
            x=x,
            dy=dy,
            mean=mean,
            invstd=inv_std,
            bn_scale=scale,
            **written._asdict(),
        )
        return written


def _check_norm(mode: NormMode, x: Tensor, sets: tuple[int, ...] | None, **parameters: Tensor | None) -> None:
    """Raise if a parameter does not broadcast to x, or if cuDNN's operation cannot normalize over these axes."""
    if sets is None or any(part < 1 or size % part for size, part in zip(x.dims, sets, strict=True)):
        needed = f"a scale of {x.rank} dims, each of which divides the dim of {x.name!r}"
        if mode is NormMode.GROUP_NORM:
            found = "none" if sets is None else str(sets[1])
            needed = (
                "a number of groups (groups=, or dims of inv_variance= for a gradient) that divides its "
                f"{x.dims[1]} channels, got {found}"
            )
        raise make_shape_error(f"{mode.name} of {x.name!r} needs {needed}", x=x, **parameters)
    by_channel = mode in (NormMode.BATCH_NORM, NormMode.INSTANCE_NORM, NormMode.GROUP_NORM)
    for port, item in parameters.items():
        if item is None:
            continue
        if by_channel:
            check_dims(item, make_per_channel_dims(x.dims), port, x=x)
        if any(part not in (1, size) for part, size in zip(item.dims, x.dims, strict=True)):
            raise make_shape_error(
                f"{port} {item.name!r} does not broadcast to {x.name!r}: dims must be 1 or equal", x=x, **{port: item}
            )


def _refuse_unknown_results(left: dict[str, Any], known: Sequence[str]) -> None:
    if left:
        raise GraphError(
            f"{', '.join(left)} is not a result of this norm; its results are {', '.join(known)}", code="unknown-field"
        )
