"""Normalizations under cudnn-frontend's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...generated.enums import BnFinalizeStatsMode, DataType, DescriptorType, GenStatsMode, NormFwdPhase, NormMode
from ...graph.shapes import infer_statistics_dims, make_per_channel_dims
from ...graph.strides import channels_last, copy_stride_order
from ..enums import data_type, norm_forward_phase
from ..errors import make_attribute_not_set_error, make_invalid_value_error
from ..tensors import tensor
from .base import OpsBase
from .infer import NOT_SET, OpNode, check_data_type, fill_dims_and_strides
from .node import Emitter, pack_strides

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["NormOps"]

# Ports, and the fields of the operations they go to.
_FORWARD_FIELDS = {
    "X": "x",
    "MEAN": "mean",
    "INV_VARIANCE": "inv_variance",
    "SCALE": "scale",
    "BIAS": "bias",
    "EPSILON": "epsilon",
    "MOMENTUM": "exp_avg_factor",
    "PREV_RUNNING_MEAN": "input_running_mean",
    "PREV_RUNNING_VAR": "input_running_var",
    "NEXT_RUNNING_MEAN": "output_running_mean",
    "NEXT_RUNNING_VAR": "output_running_var",
    "Y": "y",
}
_BACKWARD_FIELDS = {
    "X": "x",
    "DY": "dy",
    "SCALE": "scale",
    "MEAN": "mean",
    "INV_VARIANCE": "inv_variance",
    "DSCALE": "dscale",
    "DBIAS": "dbias",
    "DX": "dx",
}
_BN_FINALIZE_FIELDS = {
    "SUM": "y_sum",
    "SQ_SUM": "y_sq_sum",
    "SCALE": "scale",
    "BIAS": "bias",
    "EPSILON": "epsilon",
    "ACCUM_COUNT": "accum_count",
    "PREV_RUNNING_MEAN": "prev_running_mean",
    "PREV_RUNNING_VAR": "prev_running_var",
    "MOMENTUM": "exp_average_factor",
    "EQ_SCALE": "eq_scale",
    "EQ_BIAS": "eq_bias",
    "MEAN": "saved_mean",
    "INV_VARIANCE": "saved_inv_std",
    "NEXT_RUNNING_MEAN": "updated_running_mean",
    "NEXT_RUNNING_VAR": "updated_running_var",
}
_RUNNING_STATISTICS_INPUTS = ("PREV_RUNNING_MEAN", "PREV_RUNNING_VAR", "MOMENTUM")
_RUNNING_STATISTICS_OUTPUTS = ("NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR")
_BATCH_NORM_TAGS = {NormMode.BATCH_NORM: ("BATCHNORM", "DBN")}
_PEER_STATISTICS_PREFIX = "peer_stat"
_STATISTICS_PORTS = ("MEAN", "INV_VARIANCE")
_MODES_WITH_OPTIONAL_SCALE = (NormMode.LAYER_NORM, NormMode.RMS_NORM)  # which they may be


def _get_json_tags(mode: NormMode) -> tuple[str, str]:
    """Return cudnn-frontend's JSON tags of a norm mode's forward node and backward node."""
    return _BATCH_NORM_TAGS.get(mode, (mode.name, f"{mode.name}_BPROP"))


def _map_peer_stats(peer_stats: Sequence[tensor]) -> dict[str, tensor]:
    return {f"{_PEER_STATISTICS_PREFIX}[{number}]": item for number, item in enumerate(peer_stats)}


class _Norm(OpNode):
    """Common base of the forward and backward passes of normalizations."""

    mode: NormMode

    def to_json(self) -> dict[str, Any]:
        """Return the node as plain data; batch norm statistics of peer GPUs are a list under ``peer_stats``."""
        shown = super().to_json()
        if self.tag not in ("BATCHNORM", "DBN"):
            return shown
        own = {port: uid for port, uid in shown["inputs"].items() if not port.startswith(_PEER_STATISTICS_PREFIX)}
        return {**shown, "inputs": own, "peer_stats": [uid for port, uid in shown["inputs"].items() if port not in own]}

    def _emit_operation(
        self, to: Emitter, kind: DescriptorType, ports: dict[str, str], result: str, **more: Any
    ) -> None:
        every = {**self.inputs, **self.outputs}
        fields: dict[str, Any] = {field: to.emit_tensor(every[port]) for port, field in ports.items() if port in every}
        peers = [to.emit_tensor(item) for port, item in self.inputs.items() if port.startswith(_PEER_STATISTICS_PREFIX)]
        to.builder.operation(kind, fields[result].name, **fields, **more, peer_stat=peers or None)


class _NormForward(_Norm):
    def __init__(
        self, name: str, compute: Any, mode: NormMode, phase: norm_forward_phase, inputs: dict[str, Any]
    ) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        if not isinstance(phase, norm_forward_phase):
            raise TypeError(f"norm_forward_phase is {phase!r}, a cudnn.norm_forward_phase is needed")
        self.tag = _get_json_tags(mode)[0]
        self.mode, self.phase = mode, phase
        scale = () if mode in _MODES_WITH_OPTIONAL_SCALE else ("SCALE",)
        bias = ("BIAS",) if mode in (NormMode.BATCH_NORM, NormMode.INSTANCE_NORM) else ()
        self.needs = ("X", *scale, "EPSILON", *bias)
        self.add_output("Y")
        if phase is norm_forward_phase.TRAINING:
            for port in ("INV_VARIANCE",) if mode is NormMode.RMS_NORM else ("MEAN", "INV_VARIANCE"):
                self.add_output(port)

    def list_parameters(self) -> dict[str, Any]:
        return {"forward_phase": self.phase.name}

    def check(self, context: Context) -> None:
        super().check(context)
        if self.phase is norm_forward_phase.NOT_SET:
            raise make_attribute_not_set_error(
                f"the forward phase of {self.tag.lower()} {self.name!r} is not set",
                fix="give norm_forward_phase.TRAINING or norm_forward_phase.INFERENCE",
            )
        if "BIAS" in self.inputs and "SCALE" not in self.inputs:
            raise make_invalid_value_error(
                f"{self.tag.lower()} {self.name!r} has a bias but no scale; a bias needs a scale",
                fix="give a scale of ones",
            )

    def infer_shapes(self) -> None:
        x, y = self.inputs["X"], self.outputs["Y"]
        fill_dims_and_strides(y, x.dim, x.stride)
        if self.mode in (NormMode.LAYER_NORM, NormMode.ADA_LAYER_NORM):
            self._infer_scale_and_bias(x)
        by_channel = self.mode in (NormMode.BATCH_NORM, NormMode.INSTANCE_NORM)
        if self.mode in _MODES_WITH_OPTIONAL_SCALE and "SCALE" not in self.inputs:
            self._check_normalized_dims(x.dim)
        for port in ("MEAN", "INV_VARIANCE", *_RUNNING_STATISTICS_OUTPUTS):
            if port in self.outputs:
                item = self.outputs[port]
                dims = item.dim or self._infer_statistics_dims()
                fill_dims_and_strides(
                    item, dims, channels_last(dims) if by_channel else copy_stride_order(dims, x.stride)
                )

    def _infer_scale_and_bias(self, x: tensor) -> None:
        for port in ("SCALE", "BIAS"):
            if port in self.inputs:
                item = self.inputs[port]
                dims = item.dim or [1, *x.dim[1:]]
                fill_dims_and_strides(item, dims, copy_stride_order(dims, x.stride))
        ones = [1] * len(x.dim)
        fill_dims_and_strides(self.inputs["EPSILON"], ones, ones)

    def _get_given_statistics_dims(self) -> list[int]:
        """Return the dims that the user set for mean or inverse variance, empty if none."""
        return next((item.dim for port in _STATISTICS_PORTS if (item := self.outputs.get(port)) and item.dim), [])

    def _check_normalized_dims(self, x: list[int]) -> None:
        """Raise if neither a scale nor the statistics determine the normalized dims."""
        if sum(size != 1 for size in x[1:]) > 1 and not self._get_given_statistics_dims():
            raise make_invalid_value_error(
                f"{self.tag.lower()} {self.name!r} has no scale, and x has dims {x}: the normalized dims are unknown",
                fix="give a scale, or give x the dims [rows, hidden, 1, 1], or (training) set the statistics dims",
            )

    def _infer_statistics_dims(self) -> tuple[int, ...]:
        """Return the dims of mean and inverse variance: one number per normalized group."""
        known = self._get_given_statistics_dims()
        if "SCALE" not in self.inputs and known:
            return tuple(known)
        x, scale = self.inputs["X"].dim, self.inputs["SCALE"].dim if "SCALE" in self.inputs else []
        dims = infer_statistics_dims(self.mode, x, scale)
        if dims is None:
            raise make_attribute_not_set_error(
                f"statistics of {self.tag.lower()} {self.name!r} cannot be inferred: scale has dims {scale}, x {x}",
                fix=f"give a scale of {len(x)} dims",
            )
        return dims

    def emit(self, to: Emitter) -> None:
        phase = NormFwdPhase[self.phase.name]
        self._emit_operation(
            to, DescriptorType.OPERATION_NORM_FORWARD, _FORWARD_FIELDS, "y", mode=self.mode, phase=phase
        )


class _BatchNormTraining(_NormForward):
    def __init__(self, name: str, compute: Any, inputs: dict[str, Any], running: dict[str, Any]) -> None:
        kept = running if any(running[port] is not None for port in _RUNNING_STATISTICS_INPUTS[:2]) else {}
        super().__init__(name, compute, NormMode.BATCH_NORM, norm_forward_phase.TRAINING, {**inputs, **kept})
        self.needs = (*self.needs, *kept)
        if all(port in self.inputs for port in _RUNNING_STATISTICS_INPUTS):
            for port in _RUNNING_STATISTICS_OUTPUTS:
                self.add_output(port)


class _BatchNormInference(_Norm):
    tag = "BATCHNORM_INFERENCE"
    needs = ("X", "MEAN", "INV_VARIANCE", "SCALE", "BIAS")

    def __init__(self, name: str, compute: Any, inputs: dict[str, Any]) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        self.add_output("Y")

    def infer_shapes(self) -> None:
        x = self.inputs["X"]
        fill_dims_and_strides(self.outputs["Y"], x.dim, x.stride)

    def emit(self, to: Emitter) -> None:
        mode, phase = NormMode.BATCH_NORM, NormFwdPhase.INFERENCE
        self._emit_operation(to, DescriptorType.OPERATION_NORM_FORWARD, _FORWARD_FIELDS, "y", mode=mode, phase=phase)


class _NormBackward(_Norm):
    def __init__(self, name: str, compute: Any, mode: NormMode, inputs: dict[str, Any], has_dbias: bool = True) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        self.tag = _get_json_tags(mode)[1]
        self.mode = mode
        mean = () if mode is NormMode.RMS_NORM else ("MEAN",)
        scale = () if mode in _MODES_WITH_OPTIONAL_SCALE else ("SCALE",)
        self.needs = ("DY", "X", *scale, *mean, "INV_VARIANCE")
        self.add_output("DX")
        self.has_dbias = has_dbias and mode is NormMode.RMS_NORM
        if scale or "SCALE" in self.inputs:
            self.add_output("DSCALE")
            if has_dbias:
                self.add_output("DBIAS")

    def list_gradients(self) -> list[tensor | None]:
        """Return the gradients, None for a missing scale or bias."""
        return [self.outputs["DX"], self.outputs.get("DSCALE"), self.outputs.get("DBIAS")]

    def check(self, context: Context) -> None:
        """Raise if an input is missing, and leave out gradients that are not requested."""
        super().check(context)
        if self.has_dbias and "DBIAS" not in self.outputs:
            raise make_invalid_value_error(
                f"{self.tag.lower()} {self.name!r} has no scale, so there is no DBIAS", fix="give has_dbias=False"
            )
        if self.mode is NormMode.ADA_LAYER_NORM and "DBIAS" in self.outputs and self.outputs["DBIAS"].virtual:
            del self.outputs["DBIAS"]

    def infer_shapes(self) -> None:
        like = {
            **dict.fromkeys(("DY", "DX"), self.inputs["X"]),
            **dict.fromkeys(("DSCALE", "DBIAS"), self.inputs.get("SCALE", self.inputs["X"])),
        }
        every = {**self.inputs, **self.outputs}
        for port, model in like.items():
            if port not in every or (port == "DY" and self.mode is NormMode.BATCH_NORM):
                continue
            item = every[port]
            size = item.dim or (self._get_scale_dims() if port in ("DSCALE", "DBIAS") else model.dim)
            if self.mode in (NormMode.LAYER_NORM, NormMode.RMS_NORM):
                fill_dims_and_strides(
                    item,
                    size,
                    model.stride if len(model.stride) == len(size) else copy_stride_order(size, model.stride),
                )
            else:
                adaptive = self.mode is NormMode.ADA_LAYER_NORM
                fill_dims_and_strides(item, size, pack_strides(size) if adaptive else channels_last(size))

    def _get_scale_dims(self) -> list[int]:
        if self.mode in (NormMode.BATCH_NORM, NormMode.INSTANCE_NORM):
            return list(make_per_channel_dims(self.inputs["X"].dim))
        return self.inputs["SCALE"].dim

    def emit(self, to: Emitter) -> None:
        self._emit_operation(to, DescriptorType.OPERATION_NORM_BACKWARD, _BACKWARD_FIELDS, "dx", mode=self.mode)


class _Genstats(OpNode):
    tag = "GENSTATS"
    needs = ("X",)

    def __init__(self, name: str, compute: Any, x: tensor) -> None:
        super().__init__(name, check_data_type(compute), {"X": x}, {})
        self.add_output("SUM").set_name(f"{name}_sum_output")
        self.add_output("SQ_SUM").set_name(f"{name}_sq_sum_output")

    def infer_shapes(self) -> None:
        for item in self.outputs.values():
            fill_dims_and_strides(item, make_per_channel_dims(self.inputs["X"].dim))

    def emit(self, to: Emitter) -> None:
        x, total = to.emit_tensor(self.inputs["X"]), to.emit_tensor(self.outputs["SUM"])
        to.builder.operation(
            DescriptorType.OPERATION_GEN_STATS,
            total.name,
            mode=GenStatsMode.SUM_SQSUM,
            math_prec=to.get_compute_type(self),
            x=x,
            sum=total,
            sqsum=to.emit_tensor(self.outputs["SQ_SUM"]),
        )


class _BnFinalize(OpNode):
    tag = "BN_FINALIZE"
    needs = ("SUM", "SQ_SUM", "SCALE", "BIAS", "EPSILON", "ACCUM_COUNT", *_RUNNING_STATISTICS_INPUTS)

    def __init__(self, name: str, compute: Any, inputs: dict[str, Any]) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        for port in ("EQ_SCALE", "EQ_BIAS", "MEAN", "INV_VARIANCE", *_RUNNING_STATISTICS_OUTPUTS):
            self.add_output(port)

    def infer_shapes(self) -> None:
        for item in self.outputs.values():
            fill_dims_and_strides(item, self.inputs["SUM"].dim)

    def emit(self, to: Emitter) -> None:
        every = {**self.inputs, **self.outputs}
        fields: dict[str, Any] = {field: to.emit_tensor(every[port]) for port, field in _BN_FINALIZE_FIELDS.items()}
        to.builder.operation(
            DescriptorType.OPERATION_BN_FINALIZE_STATISTICS,
            fields["eq_scale"].name,
            **fields,
            stats_mode=BnFinalizeStatsMode.TRAINING,
            math_prec=DataType.FLOAT,
        )


class NormOps(OpsBase):
    """Mixin of ``pygraph`` with the methods that add normalizations.

    Dims of `input` are n, c and the others. Statistics are a mean and an inverse standard deviation for each group of
    elements that is normalized, kept in the training phase only: inference gives None in their place. `epsilon` and
    `momentum` are by-value tensors of one element.
    """

    def _add_norm(
        self,
        mode: NormMode,
        phase: norm_forward_phase,
        tensors: tuple[tensor, tensor | None, tensor | None, tensor],
        compute: data_type,
        name: str,
    ) -> list[tensor | None]:
        inputs = dict(zip(("X", "SCALE", "BIAS", "EPSILON"), tensors, strict=True))
        node = self._add_node(_NormForward(name, compute, mode, phase, inputs))
        ports = ("Y", "INV_VARIANCE") if mode is NormMode.RMS_NORM else ("Y", "MEAN", "INV_VARIANCE")
        return [node.outputs.get(port) for port in ports]

    def layernorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: tensor,
        scale: tensor | None = None,
        bias: tensor | None = None,
        epsilon: tensor | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Normalize over the dims in which `scale` is not 1; return [Y, mean, inv_variance].

        Scale and bias without dims get [1, c, ...]. Without a scale, over all but n, of which one may have a size.
        """
        tensors = (input, scale, bias, _require_epsilon("layernorm", epsilon))
        return self._add_norm(NormMode.LAYER_NORM, norm_forward_phase, tensors, compute_data_type, name)

    def adalayernorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: tensor,
        scale: tensor,
        bias: tensor | None = None,
        epsilon: tensor | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Normalize as :meth:`layernorm` with a scale and bias for each n; return [Y, mean, inv_variance]."""
        tensors = (input, scale, bias, _require_epsilon("adalayernorm", epsilon))
        return self._add_norm(NormMode.ADA_LAYER_NORM, norm_forward_phase, tensors, compute_data_type, name)

    def rmsnorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: tensor,
        scale: tensor | None = None,
        bias: tensor | None = None,
        epsilon: tensor | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Divide by the root of the mean square over the dims in which `scale` is not 1; return [Y, inv_variance]."""
        tensors = (input, scale, bias, _require_epsilon("rmsnorm", epsilon))
        return self._add_norm(NormMode.RMS_NORM, norm_forward_phase, tensors, compute_data_type, name)

    def instancenorm(
        self,
        norm_forward_phase: norm_forward_phase,
        input: tensor,
        scale: tensor,
        bias: tensor,
        epsilon: tensor,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Normalize each channel of each n; return [Y, mean, inv_variance], statistics [n, c, 1 ...]."""
        tensors = (input, scale, bias, epsilon)
        return self._add_norm(NormMode.INSTANCE_NORM, norm_forward_phase, tensors, compute_data_type, name)

    def batchnorm(
        self,
        input: tensor,
        scale: tensor,
        bias: tensor,
        in_running_mean: tensor | None,
        in_running_var: tensor | None,
        epsilon: tensor,
        momentum: tensor | None,
        peer_stats: Sequence[tensor] = (),
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Normalize each channel in the training phase; return Y, statistics and running statistics.

        Parameters
        ----------
        in_running_mean, in_running_var, momentum
            Statistics over batches and the weight of this one; without them none come out.
        peer_stats
            Buffers of the GPUs that share the batch.

        Returns
        -------
        list
            [Y, mean, inv_variance, next_running_mean, next_running_var], statistics [1, c, 1 ...].
        """
        inputs = {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon, **_map_peer_stats(peer_stats)}
        running = dict(zip(_RUNNING_STATISTICS_INPUTS, (in_running_mean, in_running_var, momentum), strict=True))
        outputs = self._add_node(_BatchNormTraining(name, compute_data_type, inputs, running)).outputs
        return [outputs.get(port) for port in ("Y", "MEAN", "INV_VARIANCE", *_RUNNING_STATISTICS_OUTPUTS)]

    def batchnorm_inference(
        self,
        input: tensor,
        mean: tensor,
        inv_variance: tensor,
        scale: tensor,
        bias: tensor,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Normalize each channel with given statistics; return Y."""
        inputs = {"X": input, "MEAN": mean, "INV_VARIANCE": inv_variance, "SCALE": scale, "BIAS": bias}
        return self._add_node(_BatchNormInference(name, compute_data_type, inputs)).outputs["Y"]

    def _add_norm_backward(
        self,
        mode: NormMode,
        tensors: tuple[tensor | None, ...],
        compute: data_type,
        name: str,
        peer_stats: Sequence[tensor] = (),
        has_dbias: bool = True,
    ) -> list[tensor | None]:
        inputs = dict(zip(("DY", "X", "SCALE", "MEAN", "INV_VARIANCE"), tensors, strict=True))
        return self._add_node(
            _NormBackward(name, compute, mode, {**inputs, **_map_peer_stats(peer_stats)}, has_dbias)
        ).list_gradients()

    def batchnorm_backward(
        self,
        grad: tensor,
        input: tensor,
        scale: tensor,
        mean: tensor,
        inv_variance: tensor,
        peer_stats: Sequence[tensor] = (),
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Return the gradients [DX, DScale, DBias] of :meth:`batchnorm`."""
        tensors = (grad, input, scale, mean, inv_variance)
        return self._add_norm_backward(NormMode.BATCH_NORM, tensors, compute_data_type, name, peer_stats)

    def layernorm_backward(
        self,
        grad: tensor,
        input: tensor,
        scale: tensor | None = None,
        mean: tensor | None = None,
        inv_variance: tensor | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Return the gradients [DX, DScale, DBias] of :meth:`layernorm`."""
        tensors = (grad, input, scale, mean, inv_variance)
        return self._add_norm_backward(NormMode.LAYER_NORM, tensors, compute_data_type, name)

    def adalayernorm_backward(
        self,
        grad: tensor,
        input: tensor,
        scale: tensor,
        mean: tensor,
        inv_variance: tensor,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Return the gradients [DX, DScale, DBias] of :meth:`adalayernorm`; DBias is computed if it is an output."""
        tensors = (grad, input, scale, mean, inv_variance)
        return self._add_norm_backward(NormMode.ADA_LAYER_NORM, tensors, compute_data_type, name)

    def rmsnorm_backward(
        self,
        grad: tensor,
        input: tensor,
        scale: tensor | None = None,
        inv_variance: tensor | None = None,
        has_dbias: bool = True,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Return the gradients [DX, DScale, DBias] of :meth:`rmsnorm`; DBias is None unless `has_dbias`."""
        tensors = (grad, input, scale, None, inv_variance)
        return self._add_norm_backward(NormMode.RMS_NORM, tensors, compute_data_type, name, has_dbias=bool(has_dbias))

    def instancenorm_backward(
        self,
        grad: tensor,
        input: tensor,
        scale: tensor,
        mean: tensor | None = None,
        inv_variance: tensor | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Return the gradients [DX, DScale, DBias] of :meth:`instancenorm`; both statistics are needed."""
        tensors = (grad, input, scale, mean, inv_variance)
        return self._add_norm_backward(NormMode.INSTANCE_NORM, tensors, compute_data_type, name)

    def genstats(self, input: tensor, compute_data_type: data_type = NOT_SET, name: str = "") -> list[tensor]:
        """Return [sum, sum of squares] over each channel: dims [1, c, 1 ...]."""
        return list(self._add_node(_Genstats(name, compute_data_type, input)).outputs.values())

    def bn_finalize(
        self,
        sum: tensor,
        sq_sum: tensor,
        scale: tensor,
        bias: tensor,
        epsilon: tensor,
        accum_count: tensor,
        in_running_mean: tensor,
        in_running_var: tensor,
        momentum: tensor,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor]:
        """Compute batch norm's equivalent scale and bias, and statistics from :meth:`genstats` sums.

        Parameters
        ----------
        sum, sq_sum
            Over each channel, [1, c, 1 ...].
        epsilon, accum_count, momentum
            By-value tensors of one element; `accum_count` is the number of elements of a channel.

        Returns
        -------
        list
            [eq_scale, eq_bias, mean, inv_variance, next_running_mean, next_running_var], in the dims of `sum`.

        Notes
        -----
        cudnn-frontend has it in C++ only, with the running statistics among its attributes.
        """
        tensors = (sum, sq_sum, scale, bias, epsilon, accum_count, in_running_mean, in_running_var, momentum)
        inputs = dict(zip(_BnFinalize.needs, tensors, strict=True))
        return list(self._add_node(_BnFinalize(name, compute_data_type, inputs)).outputs.values())


def _require_epsilon(method: str, epsilon: tensor | None) -> tensor:
    """Return epsilon; raise if it is missing, as Python cannot require an argument that follows an optional one."""
    if epsilon is None:
        raise TypeError(f"{method}() needs epsilon, a cudnn.tensor")
    return epsilon
