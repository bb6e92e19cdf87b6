"""Rounding rules: the unit roundoff of types, and the perturbation of each operation's inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...generated.operations import CONVOLUTIONS
from ...graph import Graph, Matmul, Op, Operation, Pointwise, Reduction
from ...graph.data_types import BOOLEAN_TYPES, DATA_TYPES, FP8_TYPES, HALF_TYPES
from ...graph.formats import is_integer
from ...interpreter.pointwise import APPROXIMATE, BOUNDS

__all__ = [
    "DATA_MOVEMENT_KINDS",
    "FACTOR_PORTS",
    "PRODUCT_KINDS",
    "ROUNDING_FACTOR",
    "Arithmetic",
    "FloatArray",
    "PerturbationRule",
    "compute_half_smallest_positive",
    "find_original_types_of_copied_values",
    "get_unit_roundoff",
    "is_float",
    "make_perturbation_rule",
]

FloatArray = NDArray[np.float64]

ROUNDING_FACTOR = 2.0  # how many unit roundoffs a written number moves


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an engine's arithmetic differs from float32, such as TF32 or float16 accumulation.

    Parameters
    ----------
    tensor_cores
        float32 operands of products may be rounded to TF32.
    short_sums
        Sums may be kept in float16.
    transformed
        Unit roundoff of operands that are transformed first (Winograd, FFT), 0 where they are not.
    stored_sums
        Parts of products in memory may be added up there, in its type: deterministic gradients of attention.
    """

    tensor_cores: bool = True
    short_sums: bool = False
    transformed: float = 0.0
    stored_sums: bool = False

    @classmethod
    def from_notes(cls, notes: Iterable[str] | None) -> Arithmetic:
        """Derive the arithmetic from an engine's numerical notes; return the defaults if there is no engine."""
        if notes is None:
            return cls()
        held = set(notes)
        transformed = max([0.0, *(roundoff for name, roundoff in _TRANSFORM_ROUNDOFFS.items() if name in held)])
        return cls(
            bool(held & {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}), "REDUCED_PRECISION_REDUCTION" in held, transformed
        )


_TRANSFORM_ROUNDOFFS = {
    "FFT": 2.0**-18,
    "WINOGRAD": 2.0**-16,
    "WINOGRAD_TILE_4x4": 2.0**-9,
    "WINOGRAD_TILE_6x6": 2.0**-8,
    "WINOGRAD_TILE_13x13": 2.0**-7,
}


# roundoff


def get_unit_roundoff(data_type: DataType) -> float:
    """Return the unit roundoff of a type, 0 for integers."""
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return 2.0 ** -(facts.form.mantissa + 1)
    if facts.kind == "scale":
        return 2.0**-20  # it is rounded up, whatever the distance: only next to a power of two is that in doubt
    return float(np.finfo(facts.storage).eps) / 2 if facts.kind == "float" else 0.0


def compute_half_smallest_positive(data_type: DataType) -> float:
    """Return half of the smallest positive number of a type."""
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return 2.0 ** -(facts.form.bias + facts.form.mantissa)
    return 2.0**-25 if data_type is DataType.HALF else 2.0**-150 if facts.kind == "float" else 0.0


def is_float(data_type: DataType) -> bool:
    return data_type not in BOOLEAN_TYPES and not is_integer(data_type)


# what operations do


@dataclass(frozen=True, slots=True)
class PerturbationRule:
    """How far the interpreter varies an operation's inputs and outputs, to imitate the rounding of kernels."""

    input_change: float = 0.0
    output_change: float = 0.0
    absolute_change: float = 0.0
    narrow_type: DataType | None = None  # operands of tensor cores become this
    summed_terms: int = 0  # of so many products, 0 if it is none
    accumulator_roundoff: float = 2.0**-24  # roundoff of what sums are kept in
    is_ambiguous_at_zero: bool = False  # at 0, where a number that is computed may be to either side


DATA_MOVEMENT_KINDS = {
    DescriptorType.OPERATION_RESHAPE,
    DescriptorType.OPERATION_TRANSPOSE,
    DescriptorType.OPERATION_SLICE,
    DescriptorType.OPERATION_CONCAT,
    DescriptorType.OPERATION_SIGNAL,
    DescriptorType.OPERATION_PAGED_CACHE_LOAD,
    DescriptorType.OPERATION_EXPAND_BAND_MATRIX,
    DescriptorType.OPERATION_CONTRACT_BAND_MATRIX,
    DescriptorType.OPERATION_DIAGONAL_BAND_MASK,
    DescriptorType.OPERATION_RNG,
}
_EXACT_MODES = {
    PointwiseMode.ADD,
    PointwiseMode.SUB,
    PointwiseMode.MUL,
    PointwiseMode.MAX,
    PointwiseMode.MIN,
    PointwiseMode.ABS,
    PointwiseMode.NEG,
    PointwiseMode.CEIL,
    PointwiseMode.FLOOR,
    PointwiseMode.IDENTITY,
    PointwiseMode.RELU_FWD,
    PointwiseMode.RELU_BWD,
    PointwiseMode.BINARY_SELECT,
    PointwiseMode.GEN_INDEX,
    PointwiseMode.LOGICAL_AND,
    PointwiseMode.LOGICAL_OR,
    PointwiseMode.LOGICAL_NOT,
    *(mode for mode in PointwiseMode if mode.name.startswith("CMP_")),
}
_FUNCTION_RULE = PerturbationRule(2.0**-22, 2.0**-20, 2.0**-22)
_QUOTIENT_MODES = {
    PointwiseMode.DIV,
    PointwiseMode.RECIPROCAL,
    PointwiseMode.SQRT,
    PointwiseMode.RSQRT,
}  # of the result alone, however large operands are
_TANH_BASED_MODES = {
    PointwiseMode.TANH_FWD,
    PointwiseMode.TANH_BWD,
    PointwiseMode.SIGMOID_FWD,
    PointwiseMode.SIGMOID_BWD,
    PointwiseMode.SWISH_FWD,
    PointwiseMode.SWISH_BWD,
}  # 2^-17 was seen


def _make_pointwise_rule(op: Pointwise) -> PerturbationRule:
    roundings = 2.0**-23 if op.relu_lower_clip_slope else 0.0  # up to three
    if op.mode is PointwiseMode.RELU_BWD:
        return PerturbationRule(roundings, roundings, is_ambiguous_at_zero=True)
    if op.mode is PointwiseMode.RELU_FWD and roundings:
        return PerturbationRule(roundings, roundings, roundings if op.relu_lower_clip else 0.0)
    if op.mode in _EXACT_MODES:
        scaled = any(factor not in (None, 1.0) for factor in (op.alpha1, op.alpha2))
        return PerturbationRule(input_change=2.0**-23) if scaled else PerturbationRule()
    if op.mode in _QUOTIENT_MODES:
        return PerturbationRule(_FUNCTION_RULE.input_change, _FUNCTION_RULE.output_change)
    near, fast = APPROXIMATE.get(op.mode, 0.0), BOUNDS.get(op.mode, 0.0) * 2.0**-23
    written = max(2.0**-15 if op.mode in _TANH_BASED_MODES else _FUNCTION_RULE.output_change, fast)
    return PerturbationRule(
        _FUNCTION_RULE.input_change, written + 2 * near, max(_FUNCTION_RULE.absolute_change, fast) + near / 8
    )


def _count_summed_terms(op: Op) -> int:
    """Return the largest number of terms that are summed into one element of the result."""
    if isinstance(op, Matmul):
        return op.a.dims[-1]
    if isinstance(op, Reduction):
        return math.prod(op.x.dims) // math.prod(op.y.dims)
    assert isinstance(op, Operation)
    fields = op.fields
    if op.kind in CONVOLUTIONS:
        _, weights, response = (fields[port].dims for port in CONVOLUTIONS[op.kind])
        if op.kind is DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER:
            return int(math.prod(response) // response[1])
        return int(
            math.prod(weights)
            // (weights[0] if op.kind is DescriptorType.OPERATION_CONVOLUTION_FORWARD else weights[1])
        )
    if op.kind is DescriptorType.OPERATION_MOE_GROUPED_MATMUL:
        return int(fields["token"].dims[-1])
    if op.kind is DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD:
        return int(fields["token"].dims[-2])
    if op.kind in (DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD):
        pages = fields["page_table_k"].dims[2] if "page_table_k" in fields else 1
        return int(max(fields["q"].dims[3], fields["q"].dims[2], fields["k"].dims[2] * pages))
    if op.kind is DescriptorType.OPERATION_SOFTMAX:
        return int(fields["x"].dims[-1])
    sizes = [math.prod(tensor.dims) for tensor in op.outputs().values()]
    sizes += [math.prod(fields[name].dims) for name in ("mean", "inv_variance") if name in fields]
    read = max((math.prod(tensor.dims) for tensor in op.inputs().values()), default=1)
    if (
        op.kind in _NORM_KINDS and "scale" in fields
    ):  # layer norms: what is normalized together has the dims of the scale
        sizes.append(max(1, read // math.prod(fields["scale"].dims)))
    return max(1, read // max(1, min(sizes)))


_NORM_KINDS = (DescriptorType.OPERATION_NORM_FORWARD, DescriptorType.OPERATION_NORM_BACKWARD)
PRODUCT_KINDS = {
    *CONVOLUTIONS,
    DescriptorType.OPERATION_MATMUL,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD,
    DescriptorType.OPERATION_SDPA_FWD,
    DescriptorType.OPERATION_SDPA_BWD,
}
FACTOR_PORTS = {"a", "b", "x", "w", "dy", "token", "weight", "doutput", "q", "k", "v", "o", "d_o"}


def find_original_types_of_copied_values(graph: Graph) -> dict[int, DataType]:
    """Return, by uid, the half or FP8 types of values that were copied unchanged into float32 tensors."""
    found: dict[int, DataType] = {}
    for op in graph.ops:
        if op.kind not in DATA_MOVEMENT_KINDS:
            continue
        kinds = [found.get(tensor.uid, tensor.data_type) for tensor in op.inputs().values()]
        short = [kind for kind in kinds if kind in HALF_TYPES or kind in FP8_TYPES]
        if short:
            found |= {tensor.uid: short[0] for tensor in op.outputs().values() if tensor.data_type is DataType.FLOAT}
    return found


def _make_sum_rule(op: Op, arithmetic: Arithmetic, copied: Mapping[int, DataType]) -> PerturbationRule:
    terms = _count_summed_terms(op)
    kept, narrow, read = 2.0**-24, None, 0.0
    if op.kind in PRODUCT_KINDS:
        factors = [tensor for port, tensor in op.inputs().items() if port in FACTOR_PORTS]
        kinds = [copied.get(tensor.uid, tensor.data_type) for tensor in factors]
        short = [kind for kind in kinds if kind in HALF_TYPES or kind in FP8_TYPES]
        if short and all(kind in FP8_TYPES for kind in kinds):
            kept = 2.0**-14
        elif arithmetic.short_sums:
            kept = 2.0**-11
        if short:
            narrow = max(short, key=get_unit_roundoff)
        elif arithmetic.tensor_cores:
            narrow = DataType.FLOAT  # TF32
        read = arithmetic.transformed
    compute = getattr(op, "compute_type", None) or _get_compute_type(op)
    kept = max(kept, get_unit_roundoff(compute))
    written = (4 + terms / 16) * kept if kept < 2.0**-20 else (4 + math.sqrt(terms)) * kept
    if arithmetic.stored_sums and isinstance(op, Matmul) and not op.c.virtual:
        written += ROUNDING_FACTOR * get_unit_roundoff(op.c.data_type)
    return PerturbationRule(read + 2 * math.sqrt(terms) * kept, written, 0.0, narrow, terms, kept)


def _get_compute_type(op: Op) -> DataType:
    fields = op.parameters()
    if isinstance(fields.get("math_prec"), DataType):
        return DataType(fields["math_prec"])
    for value in fields.values():
        kind = getattr(value, "fields", {}).get("comp_type")
        if isinstance(kind, DataType):
            return kind
    return DataType.FLOAT


def make_perturbation_rule(op: Op, arithmetic: Arithmetic, copied: Mapping[int, DataType]) -> PerturbationRule:
    if isinstance(op, Pointwise):
        return _make_pointwise_rule(op)
    if op.kind in DATA_MOVEMENT_KINDS:
        return PerturbationRule()
    if isinstance(op, Reduction) and op.operator in (ReduceTensorOp.MIN, ReduceTensorOp.MAX, ReduceTensorOp.AMAX):
        return PerturbationRule()
    rule = _make_sum_rule(op, arithmetic, copied)
    if op.kind in _EXACT_INTEGER_SUM_KINDS or (
        isinstance(op, Reduction) and op.operator in (ReduceTensorOp.ADD, ReduceTensorOp.NORM1)
    ):
        return rule
    # What takes roots, quotients or exponentials as well; sums alone of whole numbers may be exact.
    return PerturbationRule(
        rule.input_change + _FUNCTION_RULE.input_change,
        rule.output_change + _FUNCTION_RULE.output_change,
        0.0,
        rule.narrow_type,
        0,
        rule.accumulator_roundoff,
    )


_EXACT_INTEGER_SUM_KINDS = PRODUCT_KINDS - {DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD}
_EXACT_INTEGER_SUM_KINDS |= {DescriptorType.OPERATION_GEN_STATS}
