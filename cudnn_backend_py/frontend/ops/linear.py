"""Matmul, reduction, convolution and grouped matmul under cudnn-frontend's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from ...generated.enums import ConvolutionMode, DescriptorType, MoeGroupedMatmulMode, ReduceTensorOp
from ...generated.operations import OUTPUT_PORTS
from ...graph.ir import Matmul, Parameters
from ...graph.shapes import compute_expert_output_dims, infer_convolution_input_dims, infer_convolution_output_dims
from ...graph.strides import make_column_major_strides
from ..arguments import to_int, to_int_list
from ..enums import convolution_mode, data_type, moe_grouped_matmul_mode, reduction_mode
from ..errors import make_attribute_not_set_error, make_invalid_value_error, make_kernel_not_offered_error
from ..tensors import tensor
from .base import OpsBase
from .infer import NOT_SET, OpNode, check_data_type, fill_dims_and_strides, infer_matmul, require_version
from .node import Emitter, pack_strides

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["ConvOps", "MatmulOps", "MoeOps", "ReductionOps"]


class _Matmul(OpNode):
    tag = "MATMUL"
    needs = ("A", "B")

    def __init__(self, name: str, compute: Any, a: tensor, b: tensor, padding: float) -> None:
        super().__init__(name, check_data_type(compute), {"A": a, "B": b}, {})
        if not hasattr(padding, "__float__"):
            raise TypeError(f"padding is {padding!r}, a number is needed")
        self.padding = float(padding)
        for port, item in self.inputs.items():
            if isinstance(item, tensor) and not item.name:
                item.set_name(f"{name}::{port}")
        self.add_output("C")

    def list_parameters(self) -> dict[str, Any]:
        return {"padding_value": self.padding}

    def infer_shapes(self) -> None:
        infer_matmul(self.name, self.inputs, self.outputs["C"])

    def emit(self, to: Emitter) -> None:
        c = to.emit_tensor(self.outputs["C"])
        to.builder.ops.append(
            Matmul(
                name=c.name,
                a=to.emit_tensor(self.inputs["A"]),
                b=to.emit_tensor(self.inputs["B"]),
                c=c,
                compute_type=to.get_compute_type(self),
                padding_value=self.padding or None,
            )
        )


class MatmulOps(OpsBase):
    """Mixin of ``pygraph`` with the method that adds a matmul."""

    def matmul(
        self, A: tensor, B: tensor, compute_data_type: data_type = NOT_SET, padding: float = 0.0, name: str = ""
    ) -> tensor:
        """Return A @ B over the last two dims.

        Parameters
        ----------
        A, B
            [..., M, K] and [..., K, N]; leading dims broadcast.
        padding
            What means elements beyond a ragged or overridden size.

        Returns
        -------
        tensor
            C: [..., M, N], row-major.
        """
        return self._add_node(_Matmul(name, compute_data_type, A, B, padding)).outputs["C"]


class _Reduction(OpNode):
    tag = "REDUCTION"
    needs = ("X",)

    def __init__(
        self, name: str, compute: Any, x: tensor, mode: reduction_mode, group_offset: tensor | None = None
    ) -> None:
        super().__init__(name, check_data_type(compute), {"X": x, "GROUP_OFFSET": group_offset}, {})
        if not isinstance(mode, reduction_mode):
            raise TypeError(f"mode is {mode!r}, a cudnn.reduction_mode is needed")
        self.mode = mode
        self.add_output("Y")

    def list_parameters(self) -> dict[str, Any]:
        return {"mode": self.mode.name, "is_deterministic": False}

    def infer_shapes(self) -> None:
        fill_dims_and_strides(self.outputs["Y"], None)

    def emit(self, to: Emitter) -> None:
        if self.mode is reduction_mode.NOT_SET:
            raise make_invalid_value_error(
                f"reduction {self.name!r} has an invalid mode, NOT_SET", fix="give a mode: ADD, MAX ..."
            )
        deterministic = False if to.context.version >= (9, 11) else None
        if "GROUP_OFFSET" in self.inputs:
            self._emit_group_reduction(to, deterministic)
            return
        to.builder.reduction(
            ReduceTensorOp[self.mode.name],
            to.emit_tensor(self.inputs["X"]),
            tuple(self.outputs["Y"].dim),
            compute_type=to.get_compute_type(self),
            deterministic=deterministic,
            out=to.emit_tensor(self.outputs["Y"]),
        )

    def _emit_group_reduction(self, to: Emitter, deterministic: bool | None) -> None:
        require_version(to, (9, 24), "a reduction of groups")
        y = to.emit_tensor(self.outputs["Y"])
        parameters = {
            "operator": ReduceTensorOp[self.mode.name],
            "comp_type": to.get_compute_type(self),
            "is_deterministic": deterministic,
        }
        to.builder.operation(
            DescriptorType.OPERATION_REDUCTION,
            y.name,
            x=to.emit_tensor(self.inputs["X"]),
            y=y,
            reduction=Parameters(DescriptorType.REDUCTION, parameters),
            group_offset=to.emit_tensor(self.inputs["GROUP_OFFSET"]),
        )


class ReductionOps(OpsBase):
    """Mixin of ``pygraph`` with the method that adds a reduction."""

    def reduction(
        self,
        input: tensor,
        mode: reduction_mode,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
        group_offset: tensor | None = None,
    ) -> tensor:
        """Return `input` reduced to the dims set on the result: 1 where a dim is reduced.

        Its strides are channels last unless set. `group_offset` says where each group of rows begins, which is reduced
        by itself; cuDNN 9.24.
        """
        return self._add_node(_Reduction(name, compute_data_type, input, mode, group_offset)).outputs["Y"]


_DESCRIPTORS_BY_TAG = {
    "CONV_FPROP": DescriptorType.OPERATION_CONVOLUTION_FORWARD,
    "CONV_DGRAD": DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
    "CONV_WGRAD": DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
}
_WINDOW_NAMES = ("pre_padding", "post_padding", "stride", "dilation")
_OTHER_PARAMETERS = ("convolution_mode", "compute_data_type", "name")
_SYMMETRIC_PADDING_PARAMETERS = ("padding", "stride", "dilation", *_OTHER_PARAMETERS)
_TWO_PADDINGS_PARAMETERS = (*_WINDOW_NAMES, *_OTHER_PARAMETERS)
#: What a convolution takes next to its two tensors, in both of its signatures, with the defaults.
WINDOW_PARAMETERS = {
    **dict.fromkeys(("padding", *_WINDOW_NAMES), "[]"),
    "convolution_mode": "convolution_mode.CROSS_CORRELATION",
    "compute_data_type": "data_type.NOT_SET",
    "name": "''",
}


class _Convolution(OpNode):
    def __init__(self, tag: str, inputs: dict[str, Any], options: dict[str, Any]) -> None:
        mode = options.get("convolution_mode", convolution_mode.CROSS_CORRELATION)
        if not isinstance(mode, convolution_mode):
            raise TypeError(f"convolution_mode is {mode!r}, a cudnn.convolution_mode is needed")
        super().__init__(options["name"], check_data_type(options.get("compute_data_type", NOT_SET)), inputs, {})
        self.tag = tag
        self.kind = _DESCRIPTORS_BY_TAG[tag]
        (self.result,) = (port.upper() for port in OUTPUT_PORTS[self.kind])
        self.needs = tuple(inputs)
        self.mode = mode
        self.window = {side: to_int_list(side, options.get(side, ())) for side in _WINDOW_NAMES}
        self.add_output(self.result)

    def list_parameters(self) -> dict[str, Any]:
        return {**self.window, "math_mode": self.mode.name}

    def check(self, context: Context) -> None:
        super().check(context)
        for side, values in self.window.items():
            if not values:
                raise make_attribute_not_set_error(
                    f"{side.replace('_', ' ')} of {self.tag.lower()} {self.name!r} is not set",
                    fix=f"give {side}=[...], one int for each spatial dim",
                )
        if len({len(values) for values in self.window.values()}) > 1:
            raise make_invalid_value_error(
                f"padding, stride and dilation of {self.tag.lower()} {self.name!r} have different lengths",
                where="\n".join(f"{side} {values}" for side, values in self.window.items()),
                fix="give one int for each spatial dim",
            )

    def infer_shapes(self) -> None:
        result, window = self.outputs[self.result], list(self.window.values())
        dims: Sequence[int] | None = None
        if self.tag == "CONV_FPROP":
            if 0 in self.window["stride"]:
                raise make_attribute_not_set_error(
                    f"stride of conv_fprop {self.name!r} is {self.window['stride']}: dims cannot be inferred from it",
                    fix="give at least 1 for each spatial dim",
                )
            dims = infer_convolution_output_dims(*self._check_input_dims(), window)
        elif self.tag == "CONV_DGRAD" and not result.dim:
            dims = infer_convolution_input_dims(*self._check_input_dims(), window, groups=1)
        fill_dims_and_strides(result, dims)

    def _check_input_dims(self) -> tuple[list[int], list[int]]:
        """Return the dims of both inputs, after checking that each has the spatial dims and two more."""
        rank = len(self.window["stride"]) + 2
        one, other = ((port, item.dim) for port, item in self.inputs.items())
        for port, dims in (one, other):
            if len(dims) != rank:
                raise make_invalid_value_error(
                    f"dims of {self.tag.lower()} {self.name!r} mismatch: {port} is {dims}, {rank} dims are needed",
                    where=f"{rank - 2} spatial dims, by the stride",
                    fix=f"give {port} {rank} dims, or padding, stride and dilation {len(dims) - 2} ints each",
                )
            if min(dims) < 1:
                raise make_attribute_not_set_error(
                    f"dims of {self.tag.lower()} {self.name!r} are not positive: {port} is {dims}",
                    fix="give at least 1 for each dim",
                )
        return one[1], other[1]

    def emit(self, to: Emitter) -> None:
        fields = {port.lower(): to.emit_tensor(item) for port, item in self.inputs.items()}
        result = to.emit_tensor(self.outputs[self.result])
        convolution = Parameters(
            DescriptorType.CONVOLUTION,
            {
                "comp_type": to.get_compute_type(self),
                "conv_mode": ConvolutionMode[self.mode.name],
                "spatial_dims": len(self.window["stride"]),
                "pre_paddings": self.window["pre_padding"],
                "post_paddings": self.window["post_padding"],
                "dilations": self.window["dilation"],
                "filter_strides": self.window["stride"],
            },
        )
        to.builder.operation(
            self.kind,
            result.name,
            alpha=1.0,
            beta=0.0,
            convolution=convolution,
            **{**fields, self.result.lower(): result},
        )


def _read_convolution_options(method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return a convolution's options by name, given with one ``padding`` or with pre- and post-padding.

    Raises
    ------
    TypeError
        If they fit neither.
    """
    keywords = {name: value for name, value in keywords.items() if value is not None or name not in WINDOW_PARAMETERS}
    fourth_is_list = len(arguments) > 3 and not isinstance(arguments[3], convolution_mode)
    two = fourth_is_list or not {"pre_padding", "post_padding"}.isdisjoint(keywords)
    names = _TWO_PADDINGS_PARAMETERS if two else _SYMMETRIC_PADDING_PARAMETERS
    given = dict(zip(names, arguments, strict=False))
    wrong = sorted(set(keywords) - set(names)) + sorted(set(keywords) & set(given))
    if wrong or len(arguments) > len(names):
        raise TypeError(
            f"{method}() accepts {', '.join(_SYMMETRIC_PADDING_PARAMETERS)}, "
            "or pre_padding and post_padding instead of padding; "
            f"{', '.join(wrong) or f'{len(arguments)} arguments'} do not fit"
        )
    options = {"name": "", **given, **keywords}
    if not two:
        padding = options.pop("padding", [])
        options |= {"pre_padding": padding, "post_padding": padding}
    return options


class ConvOps(OpsBase):
    """Mixin of ``pygraph`` with the methods that add convolutions and their gradients.

    Dims are n, c and the spatial ones; of a filter k, c and the spatial ones. Each method takes ``padding``, or
    ``pre_padding`` and ``post_padding`` in its place.
    """

    @overload
    def conv_fprop(
        self,
        image: tensor,
        weight: tensor,
        padding: list[int] = ...,
        stride: list[int] = ...,
        dilation: list[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: data_type = ...,
        name: str = ...,
    ) -> tensor: ...

    @overload
    def conv_fprop(
        self,
        image: tensor,
        weight: tensor,
        pre_padding: list[int] = ...,
        post_padding: list[int] = ...,
        stride: list[int] = ...,
        dilation: list[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: data_type = ...,
        name: str = ...,
    ) -> tensor: ...

    def conv_fprop(self, image: tensor, weight: tensor, *arguments: Any, **keywords: Any) -> tensor:
        """Return the convolution of `image` with `weight`: dims n, k and the spatial ones, channels last.

        C: ``CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR``.
        """
        options = _read_convolution_options("conv_fprop", arguments, keywords)
        return self._add_node(_Convolution("CONV_FPROP", {"X": image, "W": weight}, options)).outputs["Y"]

    @overload
    def conv_dgrad(
        self,
        loss: tensor,
        filter: tensor,
        padding: list[int] = ...,
        stride: list[int] = ...,
        dilation: list[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: data_type = ...,
        name: str = ...,
    ) -> tensor: ...

    @overload
    def conv_dgrad(
        self,
        loss: tensor,
        filter: tensor,
        pre_padding: list[int] = ...,
        post_padding: list[int] = ...,
        stride: list[int] = ...,
        dilation: list[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: data_type = ...,
        name: str = ...,
    ) -> tensor: ...

    def conv_dgrad(self, loss: tensor, filter: tensor, *arguments: Any, **keywords: Any) -> tensor:
        """Return the gradient with respect to the image, channels last.

        Without dims set it gets those of the smallest image of one group: a stride leaves others, and groups their
        channels, for the program to set.

        C: ``CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR``.
        """
        options = _read_convolution_options("conv_dgrad", arguments, keywords)
        return self._add_node(_Convolution("CONV_DGRAD", {"DY": loss, "W": filter}, options)).outputs["DX"]

    @overload
    def conv_wgrad(
        self,
        image: tensor,
        loss: tensor,
        padding: list[int] = ...,
        stride: list[int] = ...,
        dilation: list[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: data_type = ...,
        name: str = ...,
    ) -> tensor: ...

    @overload
    def conv_wgrad(
        self,
        image: tensor,
        loss: tensor,
        pre_padding: list[int] = ...,
        post_padding: list[int] = ...,
        stride: list[int] = ...,
        dilation: list[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: data_type = ...,
        name: str = ...,
    ) -> tensor: ...

    def conv_wgrad(self, image: tensor, loss: tensor, *arguments: Any, **keywords: Any) -> tensor:
        """Return the gradient with respect to the filter; its dims must be set, as they cannot be inferred.

        C: ``CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR``.
        """
        options = _read_convolution_options("conv_wgrad", arguments, keywords)
        return self._add_node(_Convolution("CONV_WGRAD", {"X": image, "DY": loss}, options)).outputs["DW"]


class _MoeMatmul(OpNode):
    tag = "MOE_GROUPED_MATMUL"
    needs = ("Token", "Weight", "FirstTokenOffset")

    def __init__(
        self, name: str, compute: Any, inputs: dict[str, Any], mode: moe_grouped_matmul_mode, top_k: int
    ) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        if not isinstance(mode, moe_grouped_matmul_mode):
            raise TypeError(f"mode is {mode!r}, a cudnn.moe_grouped_matmul_mode is needed")
        self.mode = mode
        self.top_k = to_int("top_k", top_k)
        self.add_output("Output")

    def list_parameters(self) -> dict[str, Any]:
        return {"mode": self.mode.name, "top_k": self.top_k}

    def check(self, context: Context) -> None:
        super().check(context)
        if self.mode is moe_grouped_matmul_mode.COMBINE:
            raise make_kernel_not_offered_error(
                "moe_grouped_matmul_mode.COMBINE needs a kernel of cudnn-frontend's own"
            )
        routed = {
            moe_grouped_matmul_mode.GATHER: ("TokenIndex",),
            moe_grouped_matmul_mode.SCATTER: ("TokenIndex", "TokenKs"),
        }
        for port in routed.get(self.mode, ()):
            if port not in self.inputs:
                raise make_attribute_not_set_error(
                    f"moe_grouped_matmul {self.name!r} in mode {self.mode.name} needs {port}"
                )

    def infer_shapes(self) -> None:
        gathered = self.mode is moe_grouped_matmul_mode.GATHER
        out, weight = self.outputs["Output"], self.inputs["Weight"].dim
        index = self.inputs["TokenIndex"].dim if gathered else None
        if not out.dim:
            out.dim = list(compute_expert_output_dims(self.inputs["Token"].dim, weight, index))
        fill_dims_and_strides(out, None, pack_strides(out.dim))

    def emit(self, to: Emitter) -> None:
        require_version(to, (9, 15), "moe grouped matmul")
        out = to.emit_tensor(self.outputs["Output"])
        routed = self.mode is not moe_grouped_matmul_mode.NONE
        scattered = self.mode is moe_grouped_matmul_mode.SCATTER
        to.builder.operation(
            DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
            out.name,
            mode=MoeGroupedMatmulMode[self.mode.name],
            math_prec=to.get_compute_type(self),
            token=to.emit_tensor(self.inputs["Token"]),
            weight=to.emit_tensor(self.inputs["Weight"]),
            first_token_offset=to.emit_tensor(self.inputs["FirstTokenOffset"]),
            output=out,
            token_index=to.emit_tensor(self.inputs["TokenIndex"]) if routed else None,
            token_ks=to.emit_tensor(self.inputs["TokenKs"]) if scattered else None,
            top_k=self.top_k if scattered else None,
        )


class _MoeBackward(OpNode):
    tag = "MOE_GROUPED_MATMUL_BWD"
    needs = ("DOutput", "Token", "FirstTokenOffset")

    def __init__(self, name: str, compute: Any, inputs: dict[str, Any]) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        self.add_output("DWeight")

    def infer_shapes(self) -> None:
        out = self.outputs["DWeight"]
        if not out.dim:
            groups, token, doutput = (self.inputs[port].dim for port in ("FirstTokenOffset", "Token", "DOutput"))
            out.dim = [groups[0], token[2], doutput[2]]
        fill_dims_and_strides(out, None, make_column_major_strides(out.dim))

    def emit(self, to: Emitter) -> None:
        require_version(to, (9, 22), "moe grouped matmul backward")
        out = to.emit_tensor(self.outputs["DWeight"])
        to.builder.operation(
            DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD,
            out.name,
            math_prec=to.get_compute_type(self),
            token=to.emit_tensor(self.inputs["Token"]),
            dweight=out,
            first_token_offset=to.emit_tensor(self.inputs["FirstTokenOffset"]),
            doutput=to.emit_tensor(self.inputs["DOutput"]),
        )


class MoeOps(OpsBase):
    """Mixin of ``pygraph`` with the methods that add grouped matmuls, for mixtures of experts."""

    def moe_grouped_matmul(
        self,
        token: tensor,
        weight: tensor,
        first_token_offset: tensor,
        token_index: tensor | None = None,
        token_ks: tensor | None = None,
        mode: moe_grouped_matmul_mode = moe_grouped_matmul_mode.NONE,
        compute_data_type: data_type = NOT_SET,
        top_k: int = 0,
        name: str = "",
        top_k_scores: tensor | None = None,
    ) -> tensor:
        """Return each token multiplied by the weights of its expert.

        Parameters
        ----------
        token
            [1, tokens, K], those of one expert after those of another.
        weight
            [experts, K, N].
        first_token_offset
            [experts, 1, 1]: where the tokens of each expert begin; with one more, where the last one's end.
        token_index, token_ks, top_k
            How tokens are gathered and scattered, in the modes of these names.
        top_k_scores
            For the mode COMBINE, which only kernels of cudnn-frontend's own have: refused.

        Returns
        -------
        tensor
            [1, tokens, N], row-major.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR``, cuDNN 9.15 or later.
        """
        inputs = {
            "Token": token,
            "Weight": weight,
            "FirstTokenOffset": first_token_offset,
            "TokenIndex": token_index,
            "TokenKs": token_ks,
            "TopKScores": top_k_scores,
        }
        node = _MoeMatmul(name, compute_data_type, inputs, mode, top_k)
        return self._add_node(node).outputs["Output"]

    def moe_grouped_matmul_bwd(
        self,
        doutput: tensor,
        token: tensor,
        first_token_offset: tensor,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Return the gradient with respect to the weights of :meth:`moe_grouped_matmul`: [experts, K, N].

        C: ``CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR``, cuDNN 9.22 or later.
        """
        inputs = {"DOutput": doutput, "Token": token, "FirstTokenOffset": first_token_offset}
        node = _MoeBackward(name, compute_data_type, inputs)
        return self._add_node(node).outputs["DWeight"]
