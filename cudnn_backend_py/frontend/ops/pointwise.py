"""Elementwise operations under cudnn-frontend's names."""

from __future__ import annotations

from typing import Any, Protocol, cast

from ...generated.enums import DataType, PointwiseMode
from ...generated.operations import BACKWARD_MODES
from ..arguments import to_float32, to_int
from ..enums import data_type
from ..tensors import tensor, to_float32_hex
from .base import OpsBase
from .infer import NOT_SET, OpNode, check_data_type, infer_pointwise
from .node import Emitter

__all__ = ["PointwiseOps"]

_FLOAT_MAX = 3.4028234663852886e38
_DOUBLE_MAX = 1.7976931348623157e308
_INPUT_PORTS = ("IN_0", "IN_1", "IN_2")


# What cudnn-frontend's JSON calls numbers of activations.
_JSON_NUMBER_NAMES = {
    "lower_clip": "relu_lower_clip",
    "upper_clip": "relu_upper_clip",
    "negative_slope": "relu_lower_clip_slope",
}
#: What cudnn-frontend's text of such a node has, given or not.
_JSON_NUMBERS = dict.fromkeys((*_JSON_NUMBER_NAMES.values(), "elu_alpha", "softplus_beta", "swish_beta"))


class _Pointwise(OpNode):
    tag = "POINTWISE"

    def __init__(
        self,
        name: str,
        compute: Any,
        mode: PointwiseMode,
        inputs: tuple[tensor, ...],
        numbers: dict[str, float | None] | None = None,
        axis: int | None = None,
    ) -> None:
        super().__init__(name, check_data_type(compute), dict(zip(_INPUT_PORTS, inputs, strict=False)), {})
        self.mode = mode
        self.needs = _INPUT_PORTS[: len(inputs)]
        given = (numbers or {}).items()
        self.numbers = {name: None if value is None else to_float32(name, value) for name, value in given}
        self.axis = None if axis is None else to_int("axis", axis)
        for port, item in self.inputs.items():
            if isinstance(item, tensor) and not item.name:
                item.set_name(f"{name}::{port}")
        self.add_output("OUT_0")

    def list_parameters(self) -> dict[str, Any]:
        given = {_JSON_NUMBER_NAMES.get(name, name): to_float32_hex(value) for name, value in self.numbers.items()}
        return {"mode": self.mode.name, **_JSON_NUMBERS, **given, "axis": self.axis}

    def infer_shapes(self) -> None:
        infer_pointwise(self.name, list(self.inputs.values()), self.outputs["OUT_0"])

    def emit(self, to: Emitter) -> None:
        inputs = [to.emit_tensor(item) for item in self.inputs.values()]
        backward = self.mode in BACKWARD_MODES
        compute = to.get_compute_type(self)
        to.builder.pointwise(
            self.mode,
            inputs[1] if backward else inputs[0],
            None if backward or len(inputs) < 2 else inputs[1],
            inputs[2] if len(inputs) > 2 else None,
            dy=inputs[0] if backward else None,
            compute_type=compute,
            axis=self.axis,
            parameters=self._get_activation_parameters(compute),
            out=to.emit_tensor(self.outputs["OUT_0"]),
        )

    def _get_activation_parameters(self, compute: DataType) -> dict[str, float]:
        """Return the activation's parameters; without a value from the user, cuDNN's default applies."""
        family = self.mode.name.rpartition("_")[0]
        if family == "RELU":
            largest = _FLOAT_MAX if compute is DataType.FLOAT else _DOUBLE_MAX
            upper = self.numbers.get("upper_clip")
            numbers = {
                "relu_lower_clip": self.numbers.get("lower_clip"),
                "relu_lower_clip_slope": self.numbers.get("negative_slope"),
            }
            clip = {"relu_upper_clip": largest if upper is None else min(upper, largest)}
        else:
            numbers, clip = ({"swish_beta": self.numbers.get("swish_beta")} if family == "SWISH" else {}), {}
        return clip | {name: value for name, value in numbers.items() if value is not None}


# The signatures of families of methods, as cudnn-frontend's keywords have them.


class _UnaryMethod(Protocol):
    def __call__(self, input: tensor, compute_data_type: data_type = NOT_SET, name: str = "") -> tensor: ...


class _BinaryMethod(Protocol):
    def __call__(self, a: tensor, b: tensor, compute_data_type: data_type = NOT_SET, name: str = "") -> tensor: ...


class _Input0Input1Method(Protocol):
    def __call__(
        self, input0: tensor, input1: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor: ...


class _ComparisonMethod(Protocol):
    def __call__(
        self, input: tensor, comparison: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor: ...


class _BackwardMethod(Protocol):
    def __call__(
        self, loss: tensor, input: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor: ...


def _set_name_and_doc(method: Any, name: str, doc: str) -> Any:
    method.__name__, method.__qualname__ = name, f"PointwiseOps.{name}"
    method.__doc__ = f"""Return {doc}, element by element.

        Operands broadcast where their dim is 1. The result is a virtual tensor.
        """
    return method


def _make_unary_method(name: str, mode: PointwiseMode, doc: str) -> _UnaryMethod:
    def method(self: PointwiseOps, input: tensor, compute_data_type: data_type = NOT_SET, name: str = "") -> tensor:
        return self._add_pointwise(mode, (input,), compute_data_type, name)

    return cast(_UnaryMethod, _set_name_and_doc(method, name, doc))


def _make_binary_method(name: str, mode: PointwiseMode, doc: str) -> _BinaryMethod:
    def method(
        self: PointwiseOps, a: tensor, b: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        return self._add_pointwise(mode, (a, b), compute_data_type, name)

    return cast(_BinaryMethod, _set_name_and_doc(method, name, doc))


def _make_input0_input1_method(name: str, mode: PointwiseMode, doc: str) -> _Input0Input1Method:
    def method(
        self: PointwiseOps, input0: tensor, input1: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        return self._add_pointwise(mode, (input0, input1), compute_data_type, name)

    return cast(_Input0Input1Method, _set_name_and_doc(method, name, doc))


def _make_comparison_method(name: str, mode: PointwiseMode, sign: str) -> _ComparisonMethod:
    def method(
        self: PointwiseOps, input: tensor, comparison: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        return self._add_pointwise(mode, (input, comparison), compute_data_type, name)

    return cast(_ComparisonMethod, _set_name_and_doc(method, name, f"whether `input` {sign} `comparison`"))


def _make_backward_method(name: str, mode: PointwiseMode, function: str) -> _BackwardMethod:
    def method(
        self: PointwiseOps, loss: tensor, input: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        return self._add_pointwise(mode, (loss, input), compute_data_type, name)

    return cast(
        _BackwardMethod, _set_name_and_doc(method, name, f"`loss` times the derivative of {function} at `input`")
    )


class PointwiseOps(OpsBase):
    """Mixin of ``pygraph`` with the methods that add elementwise operations.

    Types of results are the graph's unless set, those of comparisons included. Each method is one
    ``CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR``.
    """

    def _add_pointwise(
        self,
        mode: PointwiseMode,
        inputs: tuple[tensor, ...],
        compute: data_type,
        name: str,
        numbers: dict[str, float | None] | None = None,
        axis: int | None = None,
    ) -> tensor:
        node = _Pointwise(name, compute, mode, inputs, numbers, axis)
        return self._add_node(node).outputs["OUT_0"]

    abs = _make_unary_method("abs", PointwiseMode.ABS, "the absolute value")
    ceil = _make_unary_method("ceil", PointwiseMode.CEIL, "the smallest integer not below")
    cos = _make_unary_method("cos", PointwiseMode.COS, "the cosine")
    elu = _make_unary_method("elu", PointwiseMode.ELU_FWD, "the ELU with alpha 1")
    erf = _make_unary_method("erf", PointwiseMode.ERF, "the error function")
    exp = _make_unary_method("exp", PointwiseMode.EXP, "the exponential")
    floor = _make_unary_method("floor", PointwiseMode.FLOOR, "the largest integer not above")
    gelu = _make_unary_method("gelu", PointwiseMode.GELU_FWD, "the GELU")
    gelu_approx_tanh = _make_unary_method(
        "gelu_approx_tanh", PointwiseMode.GELU_APPROX_TANH_FWD, "the GELU's form with tanh"
    )
    identity = _make_unary_method("identity", PointwiseMode.IDENTITY, "the same, in the type of the result")
    log = _make_unary_method("log", PointwiseMode.LOG, "the natural logarithm")
    logical_not = _make_unary_method("logical_not", PointwiseMode.LOGICAL_NOT, "the negated truth value")
    neg = _make_unary_method("neg", PointwiseMode.NEG, "the negated value")
    reciprocal = _make_unary_method("reciprocal", PointwiseMode.RECIPROCAL, "one divided by the value")
    rsqrt = _make_unary_method("rsqrt", PointwiseMode.RSQRT, "one divided by the square root")
    sigmoid = _make_unary_method("sigmoid", PointwiseMode.SIGMOID_FWD, "the sigmoid")
    sin = _make_unary_method("sin", PointwiseMode.SIN, "the sine")
    softplus = _make_unary_method("softplus", PointwiseMode.SOFTPLUS_FWD, "the softplus with beta 1")
    sqrt = _make_unary_method("sqrt", PointwiseMode.SQRT, "the square root")
    tan = _make_unary_method("tan", PointwiseMode.TAN, "the tangent")
    tanh = _make_unary_method("tanh", PointwiseMode.TANH_FWD, "the hyperbolic tangent")

    add = _make_binary_method("add", PointwiseMode.ADD, "a + b")
    add_square = _make_binary_method("add_square", PointwiseMode.ADD_SQUARE, "a + b * b")
    div = _make_binary_method("div", PointwiseMode.DIV, "a / b")
    logical_and = _make_binary_method("logical_and", PointwiseMode.LOGICAL_AND, "whether a and b")
    logical_or = _make_binary_method("logical_or", PointwiseMode.LOGICAL_OR, "whether a or b")
    mul = _make_binary_method("mul", PointwiseMode.MUL, "a * b")
    sub = _make_binary_method("sub", PointwiseMode.SUB, "a - b")

    max = _make_input0_input1_method("max", PointwiseMode.MAX, "the larger of both")
    min = _make_input0_input1_method("min", PointwiseMode.MIN, "the smaller of both")
    mod = _make_input0_input1_method("mod", PointwiseMode.MOD, "the remainder of `input0` / `input1`")
    pow = _make_input0_input1_method("pow", PointwiseMode.POW, "`input0` to the power of `input1`")

    cmp_eq = _make_comparison_method("cmp_eq", PointwiseMode.CMP_EQ, "=")
    cmp_neq = _make_comparison_method("cmp_neq", PointwiseMode.CMP_NEQ, "is not")
    cmp_gt = _make_comparison_method("cmp_gt", PointwiseMode.CMP_GT, ">")
    cmp_ge = _make_comparison_method("cmp_ge", PointwiseMode.CMP_GE, ">=")
    cmp_lt = _make_comparison_method("cmp_lt", PointwiseMode.CMP_LT, "<")
    cmp_le = _make_comparison_method("cmp_le", PointwiseMode.CMP_LE, "<=")

    elu_backward = _make_backward_method("elu_backward", PointwiseMode.ELU_BWD, "the ELU")
    gelu_approx_tanh_backward = _make_backward_method(
        "gelu_approx_tanh_backward", PointwiseMode.GELU_APPROX_TANH_BWD, "the GELU's form with tanh"
    )
    gelu_backward = _make_backward_method("gelu_backward", PointwiseMode.GELU_BWD, "the GELU")
    sigmoid_backward = _make_backward_method("sigmoid_backward", PointwiseMode.SIGMOID_BWD, "the sigmoid")
    softplus_backward = _make_backward_method("softplus_backward", PointwiseMode.SOFTPLUS_BWD, "the softplus")
    tanh_backward = _make_backward_method("tanh_backward", PointwiseMode.TANH_BWD, "the hyperbolic tangent")

    def bias(self, input: tensor, bias: tensor, compute_data_type: data_type = NOT_SET, name: str = "") -> tensor:
        """Return `input` + `bias`."""
        return self._add_pointwise(PointwiseMode.ADD, (input, bias), compute_data_type, name)

    def scale(self, input: tensor, scale: tensor, compute_data_type: data_type = NOT_SET, name: str = "") -> tensor:
        """Return `input` * `scale`."""
        return self._add_pointwise(PointwiseMode.MUL, (input, scale), compute_data_type, name)

    def binary_select(
        self, input0: tensor, input1: tensor, mask: tensor, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        """Return `input0` where `mask` is true and `input1` elsewhere."""
        return self._add_pointwise(PointwiseMode.BINARY_SELECT, (input0, input1, mask), compute_data_type, name)

    def gen_index(self, input: tensor, axis: int, compute_data_type: data_type = NOT_SET, name: str = "") -> tensor:
        """Return the index of each element along `axis`, in a tensor with the dims of `input`."""
        return self._add_pointwise(PointwiseMode.GEN_INDEX, (input,), compute_data_type, name, axis=axis)

    def relu(
        self,
        input: tensor,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Clip `input` to `lower_clip` (default 0) and `upper_clip`, with `negative_slope` below."""
        numbers = {"negative_slope": negative_slope, "lower_clip": lower_clip, "upper_clip": upper_clip}
        return self._add_pointwise(PointwiseMode.RELU_FWD, (input,), compute_data_type, name, numbers)

    def relu_backward(
        self,
        loss: tensor,
        input: tensor,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Return `loss` times the derivative of :meth:`relu` at `input`."""
        numbers = {"negative_slope": negative_slope, "lower_clip": lower_clip, "upper_clip": upper_clip}
        return self._add_pointwise(PointwiseMode.RELU_BWD, (loss, input), compute_data_type, name, numbers)

    def leaky_relu(
        self, input: tensor, negative_slope: float, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        """Return the ReLU with a slope for negative inputs."""
        return self.relu(input, negative_slope, compute_data_type=compute_data_type, name=name)

    def leaky_relu_backward(
        self, loss: tensor, input: tensor, negative_slope: float, compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        """Return `loss` times the derivative of :meth:`leaky_relu` at `input`."""
        return self.relu_backward(loss, input, negative_slope, compute_data_type=compute_data_type, name=name)

    def swish(
        self,
        input: tensor,
        swish_beta: float | None = None,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Return `input` * sigmoid(`swish_beta` * `input`), with beta 1 by default."""
        numbers = {"swish_beta": swish_beta}
        return self._add_pointwise(PointwiseMode.SWISH_FWD, (input,), compute_data_type, name, numbers)

    def swish_backward(
        self,
        loss: tensor,
        input: tensor,
        compute_data_type: data_type = NOT_SET,
        swish_beta: float | None = None,
        name: str = "",
    ) -> tensor:
        """Return `loss` times the derivative of :meth:`swish` at `input`."""
        numbers = {"swish_beta": swish_beta}
        return self._add_pointwise(PointwiseMode.SWISH_BWD, (loss, input), compute_data_type, name, numbers)
