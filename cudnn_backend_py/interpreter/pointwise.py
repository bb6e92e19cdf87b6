"""Evaluation of all pointwise modes, with the header's default parameters and cuDNN's results in edge cases.

Measured on an H200 with cuDNN 9.19, all modes in float16 and float32, and done so here:

* MAX and MIN give the number where one operand is NaN, and NaN where both are; of two zeros +0 and -0.
* RELU_FWD with a slope is the larger of the clipped x and the line. RELU_BWD chooses: where x is clipped the result is
  0, also for a dy that is infinite or NaN; with a slope or an upper clip it multiplies dy by 1, 0 or the slope.
* ELU_BWD is NaN where x is NaN, and alpha times dy where x is 0.
* In a run that rounds: operands and results are rounded to the type of computation first, so integers beyond 2^24 too.
  Conversions are those of :func:`_convert_to_int_or_fp8_like_cudnn`.

Functions such as exp and tanh are the GPU's fast ones in cuDNN, and exact here: :data:`BOUNDS` says by how much they
may differ. Quotients by 2^126 and more are 0, or NaN of infinity. FLOOR_MOD is newer than 9.19.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import GraphError
from ..generated.enums import DataType, DescriptorType, PointwiseMode
from ..generated.operations import CONVOLUTIONS, DEFAULTS
from ..graph.data_types import DATA_TYPES, FP8_TYPES
from ..graph.formats import get_largest_finite, is_integer
from ..graph.ir import Graph, Pointwise, Tensor
from .run import Run, require_operation_class

__all__ = ["APPROXIMATE", "BACKWARD", "BINARY", "BOUNDS", "UNARY", "run_pointwise"]

Floats = NDArray[np.float64]
_ROOT_HALF, _ROOT_2_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715  # GELU_APPROX_TANH


_PRODUCT_OPERATIONS = {*CONVOLUTIONS, DescriptorType.OPERATION_MATMUL}

# What is not set: cuDNN has the largest number of its type as upper clip, which is none at all.
_DEFAULT_PARAMETERS = {
    **DEFAULTS[DescriptorType.OPERATION_POINTWISE],
    **DEFAULTS[DescriptorType.POINTWISE],
    "relu_upper_clip": math.inf,
}


def _get_parameter(op: Pointwise, name: str) -> float:
    """Return a numeric parameter of the operation, or its default."""
    value = getattr(op, name)
    return float(_DEFAULT_PARAMETERS[name] if value is None else value)


def _erf(x: Floats) -> Floats:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), dtype=x.dtype)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _compute_clipped_relu(x: Floats, op: Pointwise) -> ArrayLike:
    """Return ReLU of x with clips and, with a slope, the line below the lower clip."""
    low, slope = _get_parameter(op, "relu_lower_clip"), _get_parameter(op, "relu_lower_clip_slope")
    leak = (low + slope * (x - low) if low else slope * x) if slope else low  # 0 * -inf would be NaN
    clipped = np.minimum(x, _get_parameter(op, "relu_upper_clip"))
    return np.maximum(clipped, leak) if 0 < slope < 1 else np.where(x < low, leak, clipped)


def _compute_relu_gradient(dy: Floats, x: Floats, op: Pointwise) -> ArrayLike:
    """Return the ReLU gradient: dy times 0, 1 or the slope; at a clip the value of the outer side applies."""
    low, high = _get_parameter(op, "relu_lower_clip"), _get_parameter(op, "relu_upper_clip")
    slope = _get_parameter(op, "relu_lower_clip_slope")
    if not slope and math.isinf(high):
        return np.where(x <= low, 0.0, dy)
    high = min(high, _LARGEST_FLOAT32)  # what cuDNN has where none is set
    return dy * np.where(x <= low, slope, np.where(x >= high, 0.0, 1.0))


def _max_without_nan(x: Floats, b: Floats) -> Floats:
    """Return the elementwise maximum, ignoring NaN if the other number is not NaN; +0 is larger than -0."""
    return np.asarray(np.where(x == b, np.where(np.signbit(x), b, x), np.fmax(x, b)))


def _min_without_nan(x: Floats, b: Floats) -> Floats:
    """Return the elementwise minimum, ignoring NaN if the other number is not NaN; -0 is smaller than +0."""
    return np.asarray(-_max_without_nan(-x, -b))


def _elu(x: Floats, op: Pointwise) -> ArrayLike:
    return np.where(x < 0, _get_parameter(op, "elu_alpha") * np.expm1(np.minimum(x, 0)), x)


def _elu_derivative(x: Floats, op: Pointwise) -> ArrayLike:
    return np.where(x > 0, 1.0, _get_parameter(op, "elu_alpha") * np.exp(np.minimum(x, 0)))  # NaN stays NaN


def _softplus(x: Floats, op: Pointwise) -> ArrayLike:
    beta = _get_parameter(op, "softplus_beta")
    return np.asarray(np.logaddexp(0, beta * x) / beta)


def _swish_derivative(x: Floats, op: Pointwise) -> ArrayLike:
    beta = _get_parameter(op, "swish_beta")
    s = _sigmoid(beta * x)
    return s + beta * x * s * (1 - s)


def _gelu_derivative(x: Floats) -> ArrayLike:
    return 0.5 * (1 + _erf(x * _ROOT_HALF)) + x * np.exp(-0.5 * x * x) / _ROOT_2_PI


def _gelu_tanh(x: Floats) -> Floats:
    return np.asarray(np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3)))


def _gelu_tanh_derivative(x: Floats) -> ArrayLike:
    t = _gelu_tanh(x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _TANH_SCALE * (1 + 3 * _TANH_CUBE * x * x)


# x, operation -> y
UNARY: dict[PointwiseMode, Callable[[Floats, Pointwise], ArrayLike]] = {
    PointwiseMode.ABS: lambda x, op: np.abs(x),
    PointwiseMode.CEIL: lambda x, op: np.ceil(x),
    PointwiseMode.COS: lambda x, op: np.cos(x),
    PointwiseMode.ELU_FWD: _elu,
    PointwiseMode.ERF: lambda x, op: _erf(x),
    PointwiseMode.EXP: lambda x, op: np.exp(x),
    PointwiseMode.FLOOR: lambda x, op: np.floor(x),
    PointwiseMode.GELU_APPROX_TANH_FWD: lambda x, op: 0.5 * x * (1 + _gelu_tanh(x)),
    PointwiseMode.GELU_FWD: lambda x, op: 0.5 * x * (1 + _erf(x * _ROOT_HALF)),
    PointwiseMode.IDENTITY: lambda x, op: x,
    PointwiseMode.LOG: lambda x, op: np.log(x),
    PointwiseMode.LOGICAL_NOT: lambda x, op: x == 0,
    PointwiseMode.NEG: lambda x, op: -x,
    PointwiseMode.RECIPROCAL: lambda x, op: 1 / x,
    PointwiseMode.RELU_FWD: _compute_clipped_relu,
    PointwiseMode.RSQRT: lambda x, op: 1 / np.sqrt(x),
    PointwiseMode.SIGMOID_FWD: lambda x, op: _sigmoid(x),
    PointwiseMode.SIN: lambda x, op: np.sin(x),
    PointwiseMode.SOFTPLUS_FWD: _softplus,
    PointwiseMode.SQRT: lambda x, op: np.sqrt(x),
    PointwiseMode.SWISH_FWD: lambda x, op: x * _sigmoid(_get_parameter(op, "swish_beta") * x),
    PointwiseMode.TAN: lambda x, op: np.tan(x),
    PointwiseMode.TANH_FWD: lambda x, op: np.tanh(x),
}

# x, b -> y
BINARY: dict[PointwiseMode, Callable[[Floats, Floats], ArrayLike]] = {
    PointwiseMode.ADD: np.add,
    PointwiseMode.ADD_SQUARE: lambda x, b: x + b * b,
    PointwiseMode.ATAN2: np.arctan2,
    PointwiseMode.CMP_EQ: np.equal,
    PointwiseMode.CMP_GE: np.greater_equal,
    PointwiseMode.CMP_GT: np.greater,
    PointwiseMode.CMP_LE: np.less_equal,
    PointwiseMode.CMP_LT: np.less,
    PointwiseMode.CMP_NEQ: np.not_equal,
    PointwiseMode.DIV: np.divide,
    PointwiseMode.FLOOR_MOD: lambda x, b: x - np.floor(x / b) * b,
    PointwiseMode.LOGICAL_AND: lambda x, b: (x != 0) & (b != 0),
    PointwiseMode.LOGICAL_OR: lambda x, b: (x != 0) | (b != 0),
    PointwiseMode.MAX: _max_without_nan,
    PointwiseMode.MIN: _min_without_nan,
    PointwiseMode.MOD: np.fmod,
    PointwiseMode.MUL: np.multiply,
    PointwiseMode.POW: np.power,
    PointwiseMode.SUB: np.subtract,
}

# forward input x, operation -> dy/dx, a factor of dy
BACKWARD: dict[PointwiseMode, Callable[[Floats, Pointwise], ArrayLike]] = {
    PointwiseMode.ELU_BWD: _elu_derivative,
    PointwiseMode.GELU_APPROX_TANH_BWD: lambda x, op: _gelu_tanh_derivative(x),
    PointwiseMode.GELU_BWD: lambda x, op: _gelu_derivative(x),
    PointwiseMode.SIGMOID_BWD: lambda x, op: _sigmoid(x) * (1 - _sigmoid(x)),
    PointwiseMode.SOFTPLUS_BWD: lambda x, op: _sigmoid(_get_parameter(op, "softplus_beta") * x),
    PointwiseMode.SWISH_BWD: _swish_derivative,
    PointwiseMode.TANH_BWD: lambda x, op: 1 - np.tanh(x) ** 2,
}


APPROXIMATE = dict.fromkeys(
    (PointwiseMode.TANH_BWD, PointwiseMode.GELU_APPROX_TANH_FWD, PointwiseMode.GELU_APPROX_TANH_BWD), 0.007
)
"""Modes that cuDNN approximates most, and the largest relative error of float32 results seen, in small values."""

BOUNDS: dict[PointwiseMode, float] = {
    PointwiseMode.COS: 4,
    PointwiseMode.ELU_BWD: 2,
    PointwiseMode.ELU_FWD: 2,
    PointwiseMode.EXP: 64,
    PointwiseMode.GELU_APPROX_TANH_BWD: 64,
    PointwiseMode.GELU_APPROX_TANH_FWD: 64,
    PointwiseMode.GELU_BWD: 2,
    PointwiseMode.GELU_FWD: 2,
    PointwiseMode.LOG: 2,
    PointwiseMode.SIGMOID_BWD: 2,
    PointwiseMode.SIGMOID_FWD: 2,
    PointwiseMode.SIN: 4,
    PointwiseMode.SOFTPLUS_BWD: 2,
    PointwiseMode.SOFTPLUS_FWD: 2,
    PointwiseMode.SWISH_BWD: 2,
    PointwiseMode.SWISH_FWD: 2,
    PointwiseMode.TAN: 8,
    PointwiseMode.TANH_BWD: 128,
    PointwiseMode.TANH_FWD: 64,
}
"""Modes for which cuDNN uses the GPU's fast functions, and how far their results may be from exact ones.

Next to one rounding to the type of the result: that many times 2^-23 of ``|y| + max(1, |x|) * |dy|``, where x is at
most 64 (dy is 1 in a forward mode; times 1 + y^2 for TAN). Measured on an H200 with cuDNN 9.19: at most two thirds of
it. Small results are less exact than a float32 can be, and what is far below 2^-23 comes out as 0. Beyond 64, sines
lose their angle, which is 0 from somewhere between 10^6 and 10^10 on; from there on SWISH_BWD is 0 as well, for x above
0. GELU_APPROX_TANH_BWD is NaN where x^3 overflows, and what is an infinite or huge gradient times 0 may be NaN.
"""


def run_pointwise(run: Run, op: Pointwise) -> None:
    """Compute a pointwise operation in float64; alpha1 and alpha2 are factors of x and b."""
    require_operation_class(op, Pointwise)
    out = op.y if op.y is not None else op.dx
    assert out is not None
    computed: NDArray[Any]
    if op.mode is PointwiseMode.GEN_INDEX:
        assert op.axis is not None
        computed = np.indices(out.dims, sparse=True)[op.axis]
    else:
        computed = np.asarray(_evaluate_mode(run, op))
    if run.rounding:
        exact = run.adjust_result(op, np.asarray(computed, np.float64))
        computed = _convert_to_int_or_fp8_like_cudnn(
            _round_to_compute_type(run, exact, op), out.data_type, holds=_has_matmul_or_convolution(run.graph)
        )
        _record_softmax_row_sums(run, op, out, computed)
    run.write_value(out, np.broadcast_to(computed, out.dims))


def _record_softmax_row_sums(run: Run, op: Pointwise, out: Tensor, computed: Floats) -> None:
    """Record the row sums by which attention divides its probabilities, also for multiples of probabilities."""
    if op.x is None or op.b is None or not op.x.virtual:
        return
    if op.mode is PointwiseMode.MUL and op.x.uid in run.row_sums:
        run.row_sums[out.uid] = run.row_sums[op.x.uid]
    elif (
        op.mode is PointwiseMode.DIV
        and not op.b.by_value
        and op.b.dims == (*op.x.dims[:-1], 1)
        and _has_matmul_or_convolution(run.graph)
    ):
        run.row_sums[out.uid] = run.compute_softmax_numerator_factors(computed, run.read_floats(op.b))


def _has_matmul_or_convolution(graph: Graph) -> bool:
    """Return whether a graph has a matmul or convolution; other engines then run its pointwise operations."""
    return any(op.kind in _PRODUCT_OPERATIONS for op in graph.ops)


def _convert_to_int_or_fp8_like_cudnn(values: Floats, kind: DataType, *, holds: bool) -> Floats:
    """Return numbers converted to a type as cuDNN does, where that differs from :func:`~..formats.encode`.

    Integers are rounded to the nearest, ties to even, and held in range; NaN is 0, and the least INT64. 8-bit floats
    are held at their largest number where a product `holds` them, infinity too. Without one they are not: beyond it
    FP8_E4M3 has NaN, for infinity too, and FP8_E5M2 has infinity, and NaN for finite numbers beyond 73728.
    """
    if holds and kind in FP8_TYPES:
        return np.clip(values, -get_largest_finite(kind), get_largest_finite(kind))
    size = np.abs(values)
    if kind is DataType.FP8_E4M3:
        return np.where(size > 464, np.nan, values)
    if kind is DataType.FP8_E5M2:
        far = np.where(size > 73728, np.nan, np.copysign(np.inf, values))
        return np.where((size >= 61440) & np.isfinite(values), far, values)
    if is_integer(kind):
        values = np.rint(values)
    return np.where(np.isnan(values), -(2.0**63), values) if kind is DataType.INT64 else values


def _round_to_compute_type(run: Run, values: Floats, op: Pointwise) -> Floats:
    """Return numbers rounded to the operation's compute type, if that is a float type."""
    return run.round_to_type(values, op.compute_type) if DATA_TYPES[op.compute_type].kind == "float" else values


def _evaluate_mode(run: Run, op: Pointwise) -> Any:
    assert op.x is not None
    mode = op.mode
    x = _round_to_compute_type(run, run.read_floats(op.x), op) * _get_parameter(op, "alpha1")
    if mode is PointwiseMode.RELU_BWD:
        assert op.dy is not None
        return _compute_relu_gradient(run.read_floats(op.dy), x, op)
    if mode in BACKWARD:
        assert op.dy is not None
        return run.read_floats(op.dy) * np.asarray(BACKWARD[mode](x, op))
    if mode in UNARY:
        return UNARY[mode](x, op)
    if op.b is None or (mode not in BINARY and mode is not PointwiseMode.BINARY_SELECT):
        raise GraphError(
            f"pointwise mode {mode!r} cannot be interpreted", code="interpret-operation", where=f"operation {op.name!r}"
        )
    b = _round_to_compute_type(run, run.read_floats(op.b), op) * _get_parameter(op, "alpha2")
    if mode is PointwiseMode.BINARY_SELECT:
        assert op.t is not None
        return np.where(run.read_value(op.t) != 0, x, b)
    return BINARY[mode](x, b)
