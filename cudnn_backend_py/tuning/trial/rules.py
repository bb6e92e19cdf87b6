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
    "FACTORS",
    "MOVES",
    "PRODUCTS",
    "ROUNDINGS",
    "Arithmetic",
    "Floats",
    "PerturbationRule",
    "copied_types",
    "half_smallest_positive",
    "is_float",
    "roundoff",
    "rule_of",
]

Floats = NDArray[np.float64]
_D, _P, _T = DescriptorType, PointwiseMode, DataType

ROUNDINGS = 2.0  # how many unit roundoffs a written number moves


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Properties of an engine's arithmetic that differ from float32's.

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
        """Return the properties from an engine's numerical notes; empty without an engine."""
        if notes is None:
            return cls()
        held = set(notes)
        transformed = max([0.0, *(roundoff for name, roundoff in _TRANSFORMS.items() if name in held)])
        return cls(
            bool(held & {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}), "REDUCED_PRECISION_REDUCTION" in held, transformed
        )


_TRANSFORMS = {
    "FFT": 2.0**-18,
    "WINOGRAD": 2.0**-16,
    "WINOGRAD_TILE_4x4": 2.0**-9,
    "WINOGRAD_TILE_6x6": 2.0**-8,
    "WINOGRAD_TILE_13x13": 2.0**-7,
}


# roundoff


def roundoff(data_type: DataType) -> float:
    """Return the unit roundoff of a type, 0 for integers."""
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return 2.0 ** -(facts.form.mantissa + 1)
    if facts.kind == "scale":
        return 2.0**-20  # it is rounded up, whatever the distance: only next to a power of two is that in doubt
    return float(np.finfo(facts.storage).eps) / 2 if facts.kind == "float" else 0.0


def half_smallest_positive(data_type: DataType) -> float:
    """Return half of the smallest positive number of a type."""
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return 2.0 ** -(facts.form.bias + facts.form.mantissa)
    return 2.0**-25 if data_type is _T.HALF else 2.0**-150 if facts.kind == "float" else 0.0


def is_float(data_type: DataType) -> bool:
    return data_type not in BOOLEAN_TYPES and not is_integer(data_type)


# what operations do


@dataclass(frozen=True, slots=True)
class PerturbationRule:
    """How an operation is perturbed: relative changes of inputs and outputs, and a change relative to an input."""

    read: float = 0.0
    written: float = 0.0
    absolute: float = 0.0
    narrow: DataType | None = None  # operands of tensor cores become this
    sums: int = 0  # of so many products, 0 if it is none
    kept: float = 2.0**-24  # roundoff of what sums are kept in
    kink: bool = False  # at 0, where a number that is computed may be to either side


MOVES = {
    _D.OPERATION_RESHAPE, _D.OPERATION_TRANSPOSE, _D.OPERATION_SLICE, _D.OPERATION_CONCAT, _D.OPERATION_SIGNAL,
    _D.OPERATION_PAGED_CACHE_LOAD, _D.OPERATION_EXPAND_BAND_MATRIX, _D.OPERATION_CONTRACT_BAND_MATRIX,
    _D.OPERATION_DIAGONAL_BAND_MASK, _D.OPERATION_RNG,
}  # fmt: skip
_ROUNDED = {
    _P.ADD, _P.SUB, _P.MUL, _P.MAX, _P.MIN, _P.ABS, _P.NEG, _P.CEIL, _P.FLOOR, _P.IDENTITY, _P.RELU_FWD, _P.RELU_BWD,
    _P.BINARY_SELECT, _P.GEN_INDEX, _P.LOGICAL_AND, _P.LOGICAL_OR, _P.LOGICAL_NOT,
    *(mode for mode in _P if mode.name.startswith("CMP_")),
}  # fmt: skip
_FUNCTION = PerturbationRule(2.0**-22, 2.0**-20, 2.0**-22)
_QUOTIENTS = {_P.DIV, _P.RECIPROCAL, _P.SQRT, _P.RSQRT}  # of the result alone, however large operands are
_BY_TANH = {_P.TANH_FWD, _P.TANH_BWD, _P.SIGMOID_FWD, _P.SIGMOID_BWD, _P.SWISH_FWD, _P.SWISH_BWD}  # 2^-17 was seen


def _pointwise_rule(op: Pointwise) -> PerturbationRule:
    roundings = 2.0**-23 if op.relu_lower_clip_slope else 0.0  # up to three
    if op.mode is _P.RELU_BWD:
        return PerturbationRule(roundings, roundings, kink=True)
    if op.mode is _P.RELU_FWD and roundings:
        return PerturbationRule(roundings, roundings, roundings if op.relu_lower_clip else 0.0)
    if op.mode in _ROUNDED:
        scaled = any(factor not in (None, 1.0) for factor in (op.alpha1, op.alpha2))
        return PerturbationRule(read=2.0**-23) if scaled else PerturbationRule()
    if op.mode in _QUOTIENTS:
        return PerturbationRule(_FUNCTION.read, _FUNCTION.written)
    near, fast = APPROXIMATE.get(op.mode, 0.0), BOUNDS.get(op.mode, 0.0) * 2.0**-23
    written = max(2.0**-15 if op.mode in _BY_TANH else _FUNCTION.written, fast)
    return PerturbationRule(_FUNCTION.read, written + 2 * near, max(_FUNCTION.absolute, fast) + near / 8)


def _count_terms(op: Op) -> int:
    """Return the largest number of terms that are summed into one element of the result."""
    if isinstance(op, Matmul):
        return op.a.dims[-1]
    if isinstance(op, Reduction):
        return math.prod(op.x.dims) // math.prod(op.y.dims)
    assert isinstance(op, Operation)
    fields = op.fields
    if op.kind in CONVOLUTIONS:
        _, weights, response = (fields[port].dims for port in CONVOLUTIONS[op.kind])
        if op.kind is _D.OPERATION_CONVOLUTION_BACKWARD_FILTER:
            return int(math.prod(response) // response[1])
        return int(math.prod(weights) // (weights[0] if op.kind is _D.OPERATION_CONVOLUTION_FORWARD else weights[1]))
    if op.kind is _D.OPERATION_MOE_GROUPED_MATMUL:
        return int(fields["token"].dims[-1])
    if op.kind is _D.OPERATION_MOE_GROUPED_MATMUL_BWD:
        return int(fields["token"].dims[-2])
    if op.kind in (_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD):
        pages = fields["page_table_k"].dims[2] if "page_table_k" in fields else 1
        return int(max(fields["q"].dims[3], fields["q"].dims[2], fields["k"].dims[2] * pages))
    if op.kind is _D.OPERATION_SOFTMAX:
        return int(fields["x"].dims[-1])
    sizes = [math.prod(tensor.dims) for tensor in op.outputs().values()]
    sizes += [math.prod(fields[name].dims) for name in ("mean", "inv_variance") if name in fields]
    read = max((math.prod(tensor.dims) for tensor in op.inputs().values()), default=1)
    if op.kind in _NORMS and "scale" in fields:  # layer norms: what is normalized together has the dims of the scale
        sizes.append(max(1, read // math.prod(fields["scale"].dims)))
    return max(1, read // max(1, min(sizes)))


_NORMS = (_D.OPERATION_NORM_FORWARD, _D.OPERATION_NORM_BACKWARD)
PRODUCTS = {
    *CONVOLUTIONS, _D.OPERATION_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL_BWD,
    _D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD,
}  # fmt: skip
FACTORS = {"a", "b", "x", "w", "dy", "token", "weight", "doutput", "q", "k", "v", "o", "d_o"}


def copied_types(graph: Graph) -> dict[int, DataType]:
    """Return by uid the narrower types of tensors that float32 tensors copy."""
    found: dict[int, DataType] = {}
    for op in graph.ops:
        if op.kind not in MOVES:
            continue
        kinds = [found.get(tensor.uid, tensor.data_type) for tensor in op.inputs().values()]
        short = [kind for kind in kinds if kind in HALF_TYPES or kind in FP8_TYPES]
        if short:
            found |= {tensor.uid: short[0] for tensor in op.outputs().values() if tensor.data_type is _T.FLOAT}
    return found


def _sum_rule(op: Op, arithmetic: Arithmetic, copied: Mapping[int, DataType]) -> PerturbationRule:
    terms = _count_terms(op)
    kept, narrow, read = 2.0**-24, None, 0.0
    if op.kind in PRODUCTS:
        factors = [tensor for port, tensor in op.inputs().items() if port in FACTORS]
        kinds = [copied.get(tensor.uid, tensor.data_type) for tensor in factors]
        short = [kind for kind in kinds if kind in HALF_TYPES or kind in FP8_TYPES]
        if short and all(kind in FP8_TYPES for kind in kinds):
            kept = 2.0**-14
        elif arithmetic.short_sums:
            kept = 2.0**-11
        if short:
            narrow = max(short, key=roundoff)
        elif arithmetic.tensor_cores:
            narrow = _T.FLOAT  # TF32
        read = arithmetic.transformed
    compute = getattr(op, "compute_type", None) or _compute_type(op)
    kept = max(kept, roundoff(compute))
    written = (4 + terms / 16) * kept if kept < 2.0**-20 else (4 + math.sqrt(terms)) * kept
    if arithmetic.stored_sums and isinstance(op, Matmul) and not op.c.virtual:
        written += ROUNDINGS * roundoff(op.c.data_type)
    return PerturbationRule(read + 2 * math.sqrt(terms) * kept, written, 0.0, narrow, terms, kept)


def _compute_type(op: Op) -> DataType:
    fields = op.parameters()
    if isinstance(fields.get("math_prec"), DataType):
        return DataType(fields["math_prec"])
    for value in fields.values():
        kind = getattr(value, "fields", {}).get("comp_type")
        if isinstance(kind, DataType):
            return kind
    return _T.FLOAT


def rule_of(op: Op, arithmetic: Arithmetic, copied: Mapping[int, DataType]) -> PerturbationRule:
    if isinstance(op, Pointwise):
        return _pointwise_rule(op)
    if op.kind in MOVES:
        return PerturbationRule()
    if isinstance(op, Reduction) and op.operator in (ReduceTensorOp.MIN, ReduceTensorOp.MAX, ReduceTensorOp.AMAX):
        return PerturbationRule()
    rule = _sum_rule(op, arithmetic, copied)
    if op.kind in _WHOLE or (isinstance(op, Reduction) and op.operator in (ReduceTensorOp.ADD, ReduceTensorOp.NORM1)):
        return rule
    # What takes roots, quotients or exponentials as well; sums alone of whole numbers may be exact.
    return PerturbationRule(
        rule.read + _FUNCTION.read, rule.written + _FUNCTION.written, 0.0, rule.narrow, 0, rule.kept
    )


_WHOLE = PRODUCTS - {_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD}
_WHOLE |= {_D.OPERATION_GEN_STATS}
