"""How far a right result may lie from the interpreter's, for each element of each output.

The interpreter runs with cuDNN's roundings (``center``), and eight times more with its arithmetic shaken: whatever may
be rounded otherwise, or summed in another order, is moved by a random amount about as large as that can be. How far the
results move is how far a right kernel may be off; no operation needs an error analysis of its own. With u(T) the unit
roundoff of a type (2^-24 for float32, 2^-11 for float16), signs random and sizes between half and whole:

* where a number is not exact in the type of the tensor it is written to, 2 u(T);
* elements read by sums of K products, 2 sqrt(K) u(A), and their results, (4 + K / 16) u(A), with A the type that sums
  are kept in: float32, but of 8-bit operands 14 bits (as measured of Hopper's tensor cores), of engines that say so
  float16. Nothing, if operands are whole numbers and no sum can leave A's exact ones;
* operands of tensor cores that are wider than these take: u(TF32) = 2^-11, or that of the other operand's type; in
  every other run they are cut to TF32, as the hardware reads them that nobody rounded: sums of these are all too
  small; what is beyond the largest number of a narrower type is infinite there;
* functions that are no single rounding (exp, tanh, division): 2^-20 of the result, 2^-22 of the argument, but of
  quotients and roots of the result alone, and what
  :data:`~cudnn_backend_py.graph.interpret.pointwise.APPROXIMATE` says. In two of the runs they are computed in
  float32, step by step: what overflows or vanishes on the way there is not the same in all runs;
* functions as small as their absolute error are 0 in two of the runs: a sigmoid made of a tanh is 0 from about -18 on,
  and dividing it by 0 is NaN; a computed 0 of a maximum, a minimum or a ReLU has either sign, by which an angle and a
  reciprocal are others;
* a computed 0 from which the gradient of a ReLU is taken, to either side: fused kernels have another sum there;
* the angle of sines, and the slope of swish, from 10^6 on, and slopes as small as their error: there they are 0 in two
  of the runs;
* probabilities of attention are rounded as exponentials (``Run.row_sums``); the tile they are over the maximum of has
  64 keys, in every other run 32;
* denormal float32 numbers, which kernels may take for 0, are 0 of their sign in two of the runs, and numbers to divide
  by from 2^126 on infinite: the GPU's fast division has 0 for their reciprocals.

Of these three kinds of "two of the runs" each two meet in one run, so that one of them does not hide another. The runs
come in pairs with opposite signs, so that a comparison near its edge falls to both sides. ``spread`` is four times the
root mean square of the movements, of sums at least half of that of their neighbours along the last axis. A right result
lies between ``center - spread`` and ``center + spread``, each rounded to the type of the output. Where all shaken runs
are NaN, or an infinity of one sign, or finite, so has the result to be. For sums, though, an infinity is as good as
NaN, and of attention only what is finite is compared: kernels leave out what is masked, NaN or not, and what they say
of rows without a key is not agreed. Integers may be cut or rounded. Rows of a product beyond its lengths may be left
unwritten where no value is asked for there.

A fault that moves every element a little (a wrong scale by 1 %) may hide in single elements of short types, and is
found by their number: the root mean square of all errors, each over its own rounding and movement, is below 1.5, and no
factor is common to all (:mod:`~cudnn_backend_py.tuning.trial.common_factor`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, RngDistribution
from ...generated.operations import CONVOLUTIONS
from ...graph import Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ...graph.attention.recognize import read_attention
from ...graph.data_types import BOOLEAN_TYPES, DATA_TYPES, FP8_TYPES, HALF_TYPES
from ...graph.faults import Use
from ...graph.formats import is_integer, largest, round_to
from ...graph.interpret import OPERATIONS
from ...graph.interpret.arithmetic import below
from ...graph.interpret.attention import hidden
from ...graph.interpret.pointwise import APPROXIMATE, BACKWARD, BOUNDS
from ...graph.interpret.run import Run
from ...graph.philox import dropout_mask
from .common_factor import common_factor, lean_of
from .data import is_unordered

__all__ = ["Arithmetic", "Comparison", "Expected", "expect", "in_float32", "roundoff"]

Floats = NDArray[np.float64]
Numbers = NDArray[Any]
_D, _P, _T = DescriptorType, PointwiseMode, DataType

RUNS = 8  # in pairs
POOLED = 0.5  # of what neighbours move, at least: eight runs may miss how far a sum can
WIDTH = 4.0  # spread over the root mean square of movements
ROUNDINGS = 2.0  # how many unit roundoffs a written number moves
DRIFT = 1.5  # root mean square of all errors over what is expected of them
ENOUGH = 64  # elements, for that to mean something
_FAR = 1e6  # there sines lose their angle, and swish its slope
_TINY = 2.0**-126  # below it float32 is denormal


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What an engine may do to numbers beyond float32 arithmetic.

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
    def of(cls, notes: Iterable[str] | None) -> Arithmetic:
        """Return what the names of an engine's numerical notes say; of no engine in particular, None."""
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
    """Return the unit roundoff of a type, 0 of integers."""
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return 2.0 ** -(facts.form.mantissa + 1)
    if facts.kind == "scale":
        return 2.0**-20  # it is rounded up, whatever the distance: only next to a power of two is that in doubt
    return float(np.finfo(facts.storage).eps) / 2 if facts.kind == "float" else 0.0


def _least(data_type: DataType) -> float:
    """Return half the distance of the smallest numbers of a type."""
    facts = DATA_TYPES[data_type]
    if facts.form is not None:
        return 2.0 ** -(facts.form.bias + facts.form.mantissa)
    return 2.0**-25 if data_type is _T.HALF else 2.0**-150 if facts.kind == "float" else 0.0


def _is_float(data_type: DataType) -> bool:
    return data_type not in BOOLEAN_TYPES and not is_integer(data_type)


def _cut_to_tf32(values: Floats) -> Floats:
    """Return float32 numbers without the 13 bits that tensor cores do not read."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return np.asarray(bits.view(np.float32), np.float64).reshape(values.shape)


# what operations do


@dataclass(frozen=True, slots=True)
class _Rule:
    """How an operation is shaken: relative movements of what it reads and writes, and one relative to what it reads."""

    read: float = 0.0
    written: float = 0.0
    absolute: float = 0.0
    narrow: DataType | None = None  # operands of tensor cores become this
    sums: int = 0  # of so many products, 0 if it is none
    kept: float = 2.0**-24  # roundoff of what sums are kept in
    kink: bool = False  # at 0, where a number that is computed may lie to either side


_MOVES = {
    _D.OPERATION_RESHAPE, _D.OPERATION_TRANSPOSE, _D.OPERATION_SLICE, _D.OPERATION_CONCAT, _D.OPERATION_SIGNAL,
    _D.OPERATION_PAGED_CACHE_LOAD, _D.OPERATION_EXPAND_BAND_MATRIX, _D.OPERATION_CONTRACT_BAND_MATRIX,
    _D.OPERATION_DIAGONAL_BAND_MASK, _D.OPERATION_RNG,
}  # fmt: skip
_ROUNDED = {
    _P.ADD, _P.SUB, _P.MUL, _P.MAX, _P.MIN, _P.ABS, _P.NEG, _P.CEIL, _P.FLOOR, _P.IDENTITY, _P.RELU_FWD, _P.RELU_BWD,
    _P.BINARY_SELECT, _P.GEN_INDEX, _P.LOGICAL_AND, _P.LOGICAL_OR, _P.LOGICAL_NOT,
    *(mode for mode in _P if mode.name.startswith("CMP_")),
}  # fmt: skip
_FUNCTION = _Rule(2.0**-22, 2.0**-20, 2.0**-22)
_QUOTIENTS = {
    _P.DIV,
    _P.RECIPROCAL,
    _P.SQRT,
    _P.RSQRT,
}  # of the result alone, however large operands are
_EXTREMES = {ReduceTensorOp.MIN, ReduceTensorOp.MAX}
_EITHER_ZERO = {_P.MAX, _P.MIN, _P.RELU_FWD}  # of -0 and 0 either may be the larger
_SINES = {_P.SIN, _P.COS, _P.TAN}
_BY_TANH = {_P.TANH_FWD, _P.TANH_BWD, _P.SIGMOID_FWD, _P.SIGMOID_BWD, _P.SWISH_FWD, _P.SWISH_BWD}  # 2^-17 was seen


def _pointwise_rule(op: Pointwise) -> _Rule:
    roundings = 2.0**-23 if op.relu_lower_clip_slope else 0.0  # up to three
    if op.mode is _P.RELU_BWD:
        return _Rule(roundings, roundings, kink=True)
    if op.mode is _P.RELU_FWD and roundings:
        return _Rule(roundings, roundings, roundings if op.relu_lower_clip else 0.0)
    if op.mode in _ROUNDED:
        scaled = any(factor not in (None, 1.0) for factor in (op.alpha1, op.alpha2))
        return _Rule(read=2.0**-23) if scaled else _Rule()
    if op.mode in _QUOTIENTS:
        return _Rule(_FUNCTION.read, _FUNCTION.written)
    near, fast = APPROXIMATE.get(op.mode, 0.0), BOUNDS.get(op.mode, 0.0) * 2.0**-23
    written = max(2.0**-15 if op.mode in _BY_TANH else _FUNCTION.written, fast)
    return _Rule(_FUNCTION.read, written + 2 * near, max(_FUNCTION.absolute, fast) + near / 8)


def _terms(op: Op) -> int:
    """Return the most numbers that are added up for one result."""
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
_PRODUCTS = {
    *CONVOLUTIONS, _D.OPERATION_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL_BWD,
    _D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD,
}  # fmt: skip
_FACTORS = {"a", "b", "x", "w", "dy", "token", "weight", "doutput", "q", "k", "v", "o", "d_o"}


def _copied_types(graph: Graph) -> dict[int, DataType]:
    """Return by uid the shorter types of which float32 tensors hold copies: kernels keep them as they were."""
    found: dict[int, DataType] = {}
    for op in graph.ops:
        if op.kind not in _MOVES:
            continue
        kinds = [found.get(tensor.uid, tensor.data_type) for tensor in op.inputs().values()]
        short = [kind for kind in kinds if kind in HALF_TYPES or kind in FP8_TYPES]
        if short:
            found |= {tensor.uid: short[0] for tensor in op.outputs().values() if tensor.data_type is _T.FLOAT}
    return found


def _sum_rule(op: Op, arithmetic: Arithmetic, copied: Mapping[int, DataType]) -> _Rule:
    terms = _terms(op)
    kept, narrow, read = 2.0**-24, None, 0.0
    if op.kind in _PRODUCTS:
        factors = [tensor for port, tensor in op.inputs().items() if port in _FACTORS]
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
    return _Rule(read + 2 * math.sqrt(terms) * kept, written, 0.0, narrow, terms, kept)


def _compute_type(op: Op) -> DataType:
    fields = op.parameters()
    if isinstance(fields.get("math_prec"), DataType):
        return DataType(fields["math_prec"])
    for value in fields.values():
        kind = getattr(value, "fields", {}).get("comp_type")
        if isinstance(kind, DataType):
            return kind
    return _T.FLOAT


def _rule(op: Op, arithmetic: Arithmetic, copied: Mapping[int, DataType]) -> _Rule:
    if isinstance(op, Pointwise):
        return _pointwise_rule(op)
    if op.kind in _MOVES:
        return _Rule()
    if isinstance(op, Reduction) and op.operator in (ReduceTensorOp.MIN, ReduceTensorOp.MAX, ReduceTensorOp.AMAX):
        return _Rule()
    rule = _sum_rule(op, arithmetic, copied)
    if op.kind in _WHOLE or (isinstance(op, Reduction) and op.operator in (ReduceTensorOp.ADD, ReduceTensorOp.NORM1)):
        return rule
    # What takes roots, quotients or exponentials as well; sums alone of whole numbers may be exact.
    return _Rule(rule.read + _FUNCTION.read, rule.written + _FUNCTION.written, 0.0, rule.narrow, 0, rule.kept)


_WHOLE = _PRODUCTS - {_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD}
_WHOLE |= {_D.OPERATION_GEN_STATS}


# shaken runs


@cache
def _pool() -> Floats:
    """Return random numbers between 0.5 and 1, either sign, a prime number of them: drawing them costs the most."""
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (1 << 22) - 3)
    return np.asarray(drawn + np.copysign(0.5, drawn))


class _Shaken(Run):
    """A run that rounds, and moves numbers as much as another right run might; one without noise moves nothing.

    Attributes
    ----------
    written
        What the operations wrote, by uid, before it was rounded to the type of its tensor.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str | int, ArrayLike],
        arithmetic: Arithmetic,
        noise: np.random.Generator | None = None,
        number: int = 0,
    ) -> None:
        super().__init__(graph, inputs, OPERATIONS, rounding=True, rng=dropout_mask)
        self.written: dict[int, Numbers] = {}
        self._arithmetic, self._noise = arithmetic, noise
        self._sign, odd, pair = 1.0 - 2 * (number % 2), number % 2 == 1, number // 2
        self._in_steps = odd and pair in (0, 3)
        self._flushes, self._flat = odd and pair in (0, 1), odd and pair in (0, 2)
        if noise is not None:
            self.tile = 32 if odd else 64
        self._copied = _copied_types(graph)
        self._current = _Rule()
        self._moved: dict[int, Numbers] = {}
        self._factors: set[int] = set()
        self._op: Op | None = None

    def operation(self, op: Op) -> None:
        before = self._current, self._moved, self._factors, self._op
        self._current = _rule(op, self._arithmetic, self._copied) if self._noise is not None else _Rule()
        self._moved, self._op = {}, op
        self._factors = {tensor.uid for port, tensor in op.ports() if port in _FACTORS}
        if self._current.sums and not self._arithmetic.transformed and self._is_exact(op):
            self._current = _Rule(narrow=self._current.narrow)
        super().operation(op)
        self._current, self._moved, self._factors, self._op = before

    def exact(self) -> Run:
        other = super().exact()
        assert isinstance(other, _Shaken)
        other._noise, other._current = None, _Rule()
        return other

    def floats(self, tensor: Tensor) -> Floats:
        values = super().floats(tensor)
        if not self._in_steps or not isinstance(self._op, Pointwise) or self._op.compute_type is not _T.FLOAT:
            return values
        return values.astype(np.float32) if self._current.absolute else values

    def read(self, tensor: Tensor) -> Numbers:
        values = super().read(tensor)
        if self._noise is None or not _is_float(tensor.data_type):
            return values
        if tensor.uid not in self._moved:
            self._moved[tensor.uid] = self._move_read(tensor, values)
        return self._moved[tensor.uid]

    def write(self, tensor: Tensor, values: ArrayLike) -> None:
        given = np.asarray(values)
        if self._sign < 0 and isinstance(self._op, Reduction) and self._op.operator in _EXTREMES:
            given = np.clip(given, -largest(_T.FLOAT), largest(_T.FLOAT))  # these begin with the largest number
        if self._in_steps and isinstance(self._op, Reduction) and self._op.operator is ReduceTensorOp.MUL:
            given = self._product_in_steps(self._op, given)
        if self._noise is not None and _is_float(tensor.data_type) and not isinstance(self._op, Pointwise):
            given = self._move_written(given.astype(np.float64), tensor.data_type)
        self.written[tensor.uid] = given
        kept = tensor.uid in self.row_sums and tensor.virtual
        if self._noise is not None and _is_float(tensor.data_type) and tensor.data_type is not _T.FLOAT and not kept:
            given = self._rounded_otherwise(given, tensor.data_type)
        super().write(tensor, given)

    def _product_in_steps(self, op: Reduction, values: Numbers) -> Numbers:
        """Return products as another order may have them: in float32 some overflow, or vanish, on the way."""
        size = np.abs(self.read(op.x))
        axes = tuple(axis for axis, (many, few) in enumerate(zip(op.x.dims, op.y.dims, strict=True)) if many != few)
        large, small = (limit(size, 1.0).prod(axes, keepdims=True) for limit in (np.maximum, np.minimum))
        return np.where(large > largest(_T.FLOAT), np.nan, np.where(small < _TINY, 0.0, values))

    def round_to_type(self, values: Floats, data_type: DataType) -> Floats:
        if values.dtype == np.float32:
            return values
        if self._noise is not None and self.rounding and _is_float(data_type):
            values = self._rounded_otherwise(np.asarray(values, dtype=np.float64), data_type)
        return super().round_to_type(values, data_type)

    def round_undivided(self, values: Floats, sums: Floats, data_type: DataType) -> Floats:
        """Return them with another rounding: a score that is off by little puts an exponential on the other side."""
        if self._noise is not None:
            sums = np.where(sums > 0, sums, 1.0)
            values = self._rounded_otherwise(values * sums, data_type) / sums
        return super().round_undivided(values, sums, data_type)

    def _is_exact(self, op: Op) -> bool:
        """Return whether all the sums are of whole numbers, none of them beyond what the type of sums has exactly."""
        most = 1.0
        for tensor in op.inputs().values():
            if not _is_float(tensor.data_type):
                continue
            values = Run.read(self, tensor)
            if not np.isfinite(values).all() or (values != np.trunc(values)).any():
                return False
            most *= max(1.0, float(np.abs(values).max(initial=0.0)))
        return most * self._current.sums * self._current.kept <= 0.5

    def _draw(self, shape: tuple[int, ...]) -> Floats:
        """Return random numbers between 0.5 and 1, either sign."""
        assert self._noise is not None
        count = math.prod(shape)
        pool = _pool()
        start = int(self._noise.integers(pool.size))
        drawn = pool[start : start + count]
        if (rest := count - drawn.size) > 0:
            drawn = np.concatenate([drawn, pool[:rest] if rest <= pool.size else np.resize(pool, rest)])
        return np.asarray(self._sign * drawn.reshape(shape))

    def _move_read(self, tensor: Tensor, values: Numbers) -> Numbers:
        rule, op = self._current, self._op
        moved = values.astype(np.float64)
        if rule.narrow is not None and tensor.uid in self._factors and tensor.data_type is _T.FLOAT:
            if rule.narrow is not _T.FLOAT:
                step, held = roundoff(rule.narrow), round_to(values, rule.narrow)
            else:
                step, held = 2.0**-10, _cut_to_tf32(values)
            if rule.narrow is _T.FLOAT and self._sign < 0:
                moved = held
            else:
                moved = np.where(held == values, moved, moved * (1 + step * self._draw(moved.shape)))
            if rule.narrow is not _T.FLOAT and self._sign < 0:
                moved = np.where(np.abs(moved) > largest(rule.narrow), np.copysign(np.inf, moved), moved)
        if rule.read:
            moved = moved * (1 + rule.read * self._draw(moved.shape))
        if self._flushes and tensor.data_type is not _T.DOUBLE:
            moved = np.where(np.abs(moved) < _TINY, np.copysign(0.0, moved), moved)
            if isinstance(op, Pointwise) and op.mode is _P.DIV and op.b is not None and op.b.uid == tensor.uid:
                moved = np.where(np.abs(moved) >= 2.0**126, np.copysign(np.inf, moved), moved)
        if self._flat and isinstance(op, Pointwise) and op.mode in _SINES and tensor.data_type is not _T.DOUBLE:
            moved = np.where((np.abs(moved) > _FAR) & np.isfinite(moved), 0.0, moved)
        if rule.kink and tensor.virtual and isinstance(op, Pointwise) and op.x is not None and op.x.uid == tensor.uid:
            moved = np.where(moved == 0, 2 * _TINY * self._sign, moved)  # all of them alike: a kernel has one rule
        return moved

    def computed(self, op: Op, values: Floats) -> Floats:
        """Return what a pointwise operation computed as another kernel might; exact zeros stay some in every other."""
        if self._noise is None or not isinstance(op, Pointwise) or not _is_float(op.compute_type):
            return values
        values = np.asarray(values, np.float64)
        rule = self._current
        if op.mode in BACKWARD and op.x is not None and op.dy is not None:
            # A slope as small as its error may be 0, of which an infinite dy makes NaN.
            x, dy = (np.asarray(self.read(tensor), np.float64) for tensor in (op.x, op.dy))
            flat = np.abs(BACKWARD[op.mode](x, op)) <= rule.absolute * np.clip(np.abs(x), 1.0, 64.0)
            values = np.where(flat & np.isinf(dy), np.nan if self._flat else dy, values)
            values = np.where(flat & np.isfinite(values) & self._flat, 0.0, values)
            if op.mode is _P.SWISH_BWD and self._flat:
                values = np.where(x * (1.0 if op.swish_beta is None else op.swish_beta) > _FAR, 0.0 * dy, values)
        flushes = self._flushes and op.compute_type is not _T.DOUBLE
        if flushes:  # before it is moved: 0 is no small number
            values = np.where(np.abs(values) < _TINY, np.copysign(0.0, values), values)
        if rule.written or rule.absolute:
            small = rule.absolute * self._size(op, values)
            shift = rule.written * np.abs(values) + small
            moved = values + np.where(np.isfinite(shift), shift, 0.0) * self._draw(np.shape(shift))
            if self._flat:  # a kernel's sigmoid is 0 where its tanh is -1, and its exp(x) - 1 where exp(x) is 1
                moved = np.where(np.abs(values) <= small, np.copysign(0.0, values), moved)
            values = np.where((values == 0) & (self._sign < 0), values, moved)
        if op.mode in _EITHER_ZERO:
            values = np.where(values == 0, np.copysign(0.0, self._sign), values)
        values = self._rounded_to_float(values, op.compute_type)
        if flushes:
            values = np.where(np.abs(values) < _TINY, np.copysign(0.0, values), values)
        return values

    def _size(self, op: Pointwise, values: Floats) -> Floats:
        """Return what the absolute error of a function is relative to, as where these are measured (``BOUNDS``)."""
        assert op.x is not None
        x = np.nan_to_num(np.abs(self.read(op.x)))
        if op.mode in (_P.DIV, _P.POW):
            return np.zeros(1)
        if op.b is not None and op.mode in (_P.MOD, _P.FLOOR_MOD):
            return np.asarray(np.maximum(np.maximum(1.0, x), np.abs(self.read(op.b))))
        size = np.clip(x, 1.0, 64.0)
        if op.dy is not None:
            size = size * np.abs(self.read(op.dy))
        return np.asarray(size * (1 + np.square(values)) if op.mode is _P.TAN else size)

    def _move_written(self, values: Floats, data_type: DataType) -> Floats:
        rule = self._current
        if rule.written:
            values = values * (1 + rule.written * self._draw(values.shape))
        return values if rule.written >= 2.0**-22 else self._rounded_to_float(values, data_type)

    def _rounded_to_float(self, values: Floats, data_type: DataType) -> Floats:
        """Return values moved by about as much as their rounding to float32 may be off."""
        inexact = values.astype(np.float32) != values
        if data_type is _T.DOUBLE or not inexact.any():
            return values
        shift = np.maximum(np.abs(values) * 2.0**-24, 2.0**-150) * ROUNDINGS * self._draw(values.shape)
        return np.where(inexact & np.isfinite(values), values + shift, values)

    def _rounded_otherwise(self, values: Floats, data_type: DataType) -> Floats:
        """Return values moved by about as much as their rounding may be off."""
        inexact = np.isfinite(values) & (round_to(values, data_type) != values)
        if not inexact.any():
            return values
        shift = np.maximum(np.abs(values) * roundoff(data_type), _least(data_type)) * ROUNDINGS
        return np.where(inexact, values + shift * self._draw(values.shape), values)


class _InFloat32(Run):
    """A run whose elementwise operations compute in float32, step by step, and may take denormal numbers for 0."""

    flushes = False

    def floats(self, tensor: Tensor) -> Floats:
        values = super().floats(tensor)
        return values if tensor.data_type is _T.DOUBLE else self._held(values)

    def computed(self, op: Op, values: Floats) -> Floats:
        if not isinstance(op, Pointwise) or op.compute_type is not _T.FLOAT:
            return values
        return np.asarray(self._held(np.asarray(values)), np.float64)

    def _held(self, values: Floats) -> Any:
        held = values.astype(np.float32)
        return np.where(np.abs(held) < _TINY, np.copysign(np.float32(0), held), held) if self.flushes else held


def in_float32(graph: Graph, inputs: Mapping[str | int, ArrayLike]) -> list[dict[str, Floats]]:
    """Return by name what outputs hold if elementwise operations compute in float32, and with 0 for denormals."""
    found = []
    for flushes in (False, True):
        run = _InFloat32(graph, inputs, OPERATIONS, rounding=True, rng=dropout_mask)
        run.flushes = flushes
        with np.errstate(all="ignore"):
            for op in graph.ops:
                run.operation(op)
        found.append({tensor.name: run.result(tensor).astype(np.float64) for tensor in graph.outputs})
    return found


def _run(run: _Shaken) -> dict[int, Floats]:
    """Return what the outputs of a graph would be before they are rounded, by uid, as float64."""
    found: dict[int, Floats] = {}
    with np.errstate(all="ignore"):
        for op in run.graph.ops:
            run.operation(op)
        for tensor in run.graph.outputs:
            if tensor.ragged_offset is not None:
                run._values[tensor.uid] = np.asarray(run.written[tensor.uid], np.float64)
                found[tensor.uid] = run.result(tensor).astype(np.float64)
            else:
                found[tensor.uid] = np.asarray(run.written[tensor.uid], np.float64)
    return found


# what is expected


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output beside what was expected of it.

    Attributes
    ----------
    largest
        The largest error over its bound: up to 1 is right. Infinity where something else than a number is expected.
    where, got, wanted, bound
        The element it is found at, what it holds, what the interpreter says, and how far it may be off.
    drift
        Root mean square of all errors over what is expected of them; None of few elements.
    beyond
        Elements beyond their bounds.
    compared, elements
        Elements that were compared, and all there are: what nothing is defined of is left out.
    factor
        What all elements are off by, None where no factor is common to them.
    """

    output: str
    largest: float
    where: tuple[int, ...]
    got: float
    wanted: float
    bound: float
    drift: float | None
    beyond: int
    compared: int
    elements: int
    factor: float | None = None

    @property
    def right(self) -> bool:
        """Whether nothing is beyond its bound, and all together are no further off than roundings are."""
        return self.beyond == 0 and self.factor is None and (self.drift is None or self.drift <= DRIFT)

    def __str__(self) -> str:
        place = ",".join(map(str, self.where))
        text = f"{self.output}: error {self.largest:.3g} of the bound"
        if self.drift is not None:
            text += f", {self.drift:.2g} of the expected drift"
        if self.beyond:
            text += f"; {self.beyond} of {self.compared} elements beyond it, "
            text += f"[{place}] is {self.got:.9g}, {self.wanted:.9g} +- {self.bound:.3g} is right"
        elif self.factor is not None:
            text += f": all of them are {self.factor:.6g} times what is right"
        elif not self.right:
            text += f": all of them are off, [{place}] is {self.got:.9g}, {self.wanted:.9g} is right"
        return text


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output holds.

    Attributes
    ----------
    center, spread
        The number, give or take, float64.
    defined
        Where anything can be said.
    optional
        Where it may also be left as it was before, NaN.
    summed
        Whether it hangs on sums: then infinities and NaN are not told apart.
    leans, bias
        How much it may be larger as a whole, relatively: in each shaken run, and by sums that are cut.
    """

    tensor: Tensor
    center: Floats
    spread: Floats
    defined: NDArray[np.bool_]
    optional: NDArray[np.bool_]
    summed: bool = False
    leans: tuple[float, ...] = (0.0,)
    bias: float = 0.0

    def bounds(self) -> Floats:
        """Return how far each element may be off, rounding included."""
        return self._limits()[3]

    def _limits(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the center, the least and the largest result as the type holds them, and how far off they may be."""
        kind = self.tensor.data_type
        with np.errstate(all="ignore"):
            least, most = self.center - self.spread, self.center + self.spread
            if is_integer(kind):  # cut or rounded: which of them is not the same in all operations
                least, most = np.floor(least), np.ceil(most)
            if DATA_TYPES[kind].kind == "scale":  # which has no negative numbers
                least = np.maximum(least, 0.0)
            if kind in BOOLEAN_TYPES:  # one of 0 and 1, or the other as well
                least, most = (np.where(self.spread >= 1, bit, self.center) for bit in (0.0, 1.0))
            middle, low, high = (_rounded(value, kind) for value in (self.center, least, most))
            return middle, low, high, np.maximum(np.abs(high - self.center), np.abs(self.center - low))

    def compare(self, got: ArrayLike) -> Comparison:
        """Return how numbers compare with it: those of the output, in its dims, or its flat buffer if it is ragged."""
        found = np.asarray(got, dtype=np.float64)
        if found.ndim == 1 and self.tensor.ragged_offset is not None:
            found = found[: self.center.size]
        middle, low, high, bound = self._limits()
        with np.errstate(all="ignore"):
            off = np.abs(found - self.center)
            inside = ((found >= low) & (found <= high)) | (np.isnan(middle) & np.isnan(found))
            inside |= ~self.defined | (self.optional & np.isnan(found))
            if self.summed:  # overflow and NaN are one: in another order a sum of infinities is the other
                inside |= ~np.isfinite(middle) & ~np.isfinite(found)
            ratio = np.where(inside, np.where(bound > 0, off / bound, 0.0), np.inf)
            ratio = np.where(np.isfinite(off) & (bound > 0), np.where(inside, ratio, off / bound), ratio)
            ratio = np.where(self.defined & ~(np.isnan(ratio) & inside), ratio, 0.0)
            drift, factor = self._together(found, middle)
        flat = int(np.argmax(np.where(np.isnan(ratio), np.inf, ratio))) if ratio.size else 0
        place = tuple(int(index) for index in np.unravel_index(flat, ratio.shape)) if ratio.size else ()
        at = place if ratio.size else ...
        return Comparison(
            self.tensor.name,
            float(ratio[at]) if ratio.size else 0.0,
            place,
            float(found[at]) if ratio.size else 0.0,
            float(middle[at]) if ratio.size else 0.0,
            float(bound[at]) if ratio.size else 0.0,
            drift,
            int(np.count_nonzero(~inside)),
            int(np.count_nonzero(self.defined)),
            int(self.defined.size),
            factor,
        )

    def _together(self, found: Floats, middle: Floats) -> tuple[float | None, float | None]:
        """Return the drift, and the factor that is common to all."""
        kind = self.tensor.data_type
        if DATA_TYPES[kind].kind != "float":  # whole numbers are cut, scales rounded up by far
            return None, None
        size = np.maximum(np.abs(self.center) * roundoff(kind), _least(kind)) + self.spread / WIDTH
        counted = self.defined & np.isfinite(found) & np.isfinite(size) & (size > 0)
        counted &= np.abs(self.center) <= largest(kind)
        if int(np.count_nonzero(counted)) < ENOUGH:
            return None, None
        got, right, exact, sizes = (item[counted] for item in (found, middle, self.center, size))
        drift = float(np.sqrt(np.mean(np.square((got - exact) / sizes))))
        rounding = np.maximum(np.abs(exact) * roundoff(kind), _least(kind))
        return drift, common_factor(got, right, exact, rounding, self.leans, self.bias)


def _rounded(values: Floats, kind: DataType) -> Floats:
    return np.asarray(round_to(values, kind), dtype=np.float64)


def expect(
    graph: Graph,
    inputs: Mapping[str | int, ArrayLike],
    *,
    arithmetic: Arithmetic | None = None,
    seed: int = 0,
) -> dict[str, Expected]:
    """Return what the outputs of a graph may hold, by name; those of which nothing can be said are left out.

    Parameters
    ----------
    inputs
        As for :func:`~cudnn_backend_py.graph.interpret.interpret`.
    arithmetic
        What the engine may do; as much as any if not given.
    seed
        Of the movements.

    Raises
    ------
    GraphError
        What the interpreter refuses.
    """
    unknown, summed, use = _unknown(graph), _summed(graph), read_attention(graph)
    allowed = arithmetic or Arithmetic()
    if use is not None and use.backward and use.problem.deterministic:
        allowed = dataclasses.replace(allowed, stored_sums=True)
    first = _Shaken(graph, inputs, allowed)
    center = _run(first)
    stored = {tensor.uid: _rounded(center[tensor.uid], tensor.data_type) for tensor in graph.outputs}
    leans: dict[int, list[float]] = {uid: [] for uid in center}
    squares = {uid: np.zeros(values.shape) for uid, values in center.items()}
    same = {uid: np.ones(values.shape, np.bool_) for uid, values in center.items()}
    kinds = {tensor.uid: tensor.data_type for tensor in graph.outputs}
    for number in range(RUNS):
        noise = np.random.default_rng([seed, number // 2])
        moved = _run(_Shaken(graph, inputs, allowed, noise, number))
        with np.errstate(all="ignore"):
            for uid, values in moved.items():
                difference = values - center[uid]
                leans[uid].append(lean_of(values, center[uid]))
                squares[uid] += np.where(np.isfinite(difference), np.square(difference), 0.0)
                held = _rounded(values, kinds[uid])
                same[uid] &= _class(held, uid in summed) == _class(stored[uid], uid in summed)
                if is_integer(kinds[uid]):  # what is infinite or NaN before it is held in range
                    same[uid] &= np.isfinite(difference) | (held == stored[uid])
    bias = _bias(graph, allowed) + _bias_of_scores(graph, allowed, use) * _largest_statistic(graph, inputs, stored)
    found = {}
    for tensor in {tensor.uid: tensor for tensor in graph.outputs}.values():
        if tensor.uid in unknown or is_unordered(tensor):
            continue
        spread = WIDTH * np.sqrt(squares[tensor.uid] / RUNS)
        if tensor.uid in summed and tensor.data_type not in BOOLEAN_TYPES:
            spread = np.maximum(spread, POOLED * _of_neighbours(spread))
        if use is not None and use.backward and _is_float(tensor.data_type):
            again = 2 * roundoff(tensor.data_type) * np.abs(center[tensor.uid])  # dQ is rounded once more
            spread = np.hypot(spread, again)
        if use is not None and tensor.name == "max":  # kept in units of log 2: two factors, each rounded, and both ways
            spread = spread + 2.0**-22 * np.abs(center[tensor.uid])
        defined = _defined(graph, tensor, center[tensor.uid], same[tensor.uid])
        if use is not None and _is_float(tensor.data_type):
            defined &= np.isfinite(stored[tensor.uid])
        optional = _beyond_lengths(graph, tensor, inputs) | _not_drawn(first, tensor)
        found[tensor.name] = Expected(
            tensor,
            center[tensor.uid],
            spread,
            defined,
            optional,
            tensor.uid in summed,
            tuple(leans[tensor.uid]),
            bias,
        )
    return found


def _largest_statistic(graph: Graph, inputs: Mapping[str | int, ArrayLike], stored: Mapping[int, Floats]) -> float:
    """Return how large the logarithms are that attention subtracts from its scores: their rounding is a factor of P."""
    found = 0.0
    for tensor in graph.tensors:
        if tensor.name == "stats":
            given = stored.get(tensor.uid, inputs.get(tensor.uid, inputs.get(tensor.name, 0.0)))
            sizes = np.abs(np.asarray(given, dtype=np.float64))
            found = max(found, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return found


def _bias(graph: Graph, arithmetic: Arithmetic) -> float:
    """Return how much all of a result may be off to one side: sums may be cut, and so may operands to TF32."""
    copied = _copied_types(graph)
    rules = [_rule(op, arithmetic, copied) for op in graph.ops]
    found = sum(rule.written for rule in rules)
    for op, rule in zip(graph.ops, rules, strict=True):
        factors = [tensor for port, tensor in op.inputs().items() if port in _FACTORS]
        if rule.narrow is _T.FLOAT:
            found += 2 * 2.0**-10
        elif rule.narrow is not None and any(t.data_type is _T.FLOAT and t.uid not in copied for t in factors):
            found += roundoff(rule.narrow)  # operands that are equal are rounded alike
    return found


def _bias_of_scores(graph: Graph, arithmetic: Arithmetic, use: Use | None) -> float:
    """Return how much all scores may be off to one side, relative to the largest statistic that is subtracted.

    Sums of tensor cores are cut; forward, the maximum is off as the scores are, and nothing of it is left.
    """
    if use is None or not use.backward:
        return 2.0**-22
    return next(_rule(op, arithmetic, {}).written for op in graph.ops if op.kind in _PRODUCTS)  # Q @ K^T is the first


def _defined(graph: Graph, tensor: Tensor, center: Floats, same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where anything can be said: not where runs disagree about NaN, nor where nothing is written."""
    unwritten = tensor.ragged_offset is not None or _leaves_gaps(graph, tensor)
    return np.asarray(same & ~(np.isnan(center) & unwritten))


def _beyond_lengths(graph: Graph, tensor: Tensor, inputs: Mapping[str | int, ArrayLike]) -> NDArray[np.bool_]:
    """Return what may stay as it was: the padding of a product, and what a concatenation has in its place."""
    found = np.zeros(tensor.dims, np.bool_)
    if tensor.ragged_offset is not None:
        return np.zeros(1, np.bool_)
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind is _D.OPERATION_CONCAT and op.fields["output"].uid == tensor.uid:
            place = op.fields.get("inplace_index", -1)
            if place >= 0:  # it has to lie there before
                axis = op.fields["axis"]
                start = sum(item.dims[axis] for item in op.fields["input"][:place])
                part = slice(start, start + op.fields["input"][place].dims[axis])
                found[(slice(None),) * axis + (part,)] = True
        if not isinstance(op, Matmul) or op.c.uid != tensor.uid or op.padding_value is not None:
            continue
        for length, axis in ((op.m_override, -2), (op.n_override, -1)):
            held = None if length is None else inputs.get(length.uid, inputs.get(length.name))
            if held is not None:
                found |= ~below(tensor.dims, tensor.rank + axis, np.asarray(held))
    return found


def _not_drawn(run: _Shaken, tensor: Tensor) -> NDArray[np.bool_]:
    """Return where a random mask may stay as it was: kernels of attention skip tiles in which all scores are masked."""
    none = np.zeros(1, np.bool_)
    for op in run.graph.ops:
        if isinstance(op, Operation) and op.kind is _D.OPERATION_SDPA_FWD:
            dump = op.fields.get("dropout_rng_dump")
            if dump is not None and dump.uid == tensor.uid:
                return hidden(run, op)
    if not any(op.kind is _D.OPERATION_RNG and tensor.uid in _uids(op.outputs()) for op in run.graph.ops):
        return none
    for op in run.graph.ops:
        if isinstance(op, Pointwise) and op.x is not None and op.b is not None:
            pair = {op.x.uid: op.b, op.b.uid: op.x}
            if tensor.uid in pair and pair[tensor.uid].dims == tensor.dims:
                return np.asarray(~(run.read(pair[tensor.uid]) > 0))  # probabilities
    return none


def _uids(tensors: Mapping[str, Tensor]) -> set[int]:
    return {tensor.uid for tensor in tensors.values()}


def _leaves_gaps(graph: Graph, tensor: Tensor) -> bool:
    """Return whether rows of no expert are left as they were: they are NaN in the interpreter."""
    return any(
        op.kind is _D.OPERATION_MOE_GROUPED_MATMUL and tensor.uid in {item.uid for item in op.outputs().values()}
        for op in graph.ops
    )


def _class(values: Floats, summed: bool) -> NDArray[np.int8]:
    """Return 0 for numbers, 1 and 2 for infinities, 3 for NaN; of sums 1 for all that is no finite number."""
    if summed:
        return np.asarray(~np.isfinite(values), np.int8)
    return np.asarray(np.isposinf(values) + 2 * np.isneginf(values) + 3 * np.isnan(values), np.int8)


def _of_neighbours(spread: Floats) -> Floats:
    """Return the root mean square along the last axis of more than one element."""
    axis = max((axis for axis, size in enumerate(spread.shape) if size > 1), default=None)
    if axis is None:
        return spread
    return np.asarray(np.sqrt(np.mean(np.square(spread), axis=axis, keepdims=True)))


def _summed(graph: Graph) -> set[int]:
    """Return the tensors that hang on sums."""
    found: set[int] = set()
    for op in graph.ops:
        is_sum = not isinstance(op, Pointwise) and op.kind not in _MOVES
        if is_sum or any(tensor.uid in found for tensor in op.inputs().values()):
            found |= {tensor.uid for tensor in op.outputs().values()}
    return found


def _unknown(graph: Graph) -> set[int]:
    """Return the tensors that hang on random numbers of which only the distribution is known."""
    found: set[int] = set()
    for op in graph.ops:
        facts = op.parameters().get("rng")
        drawn = facts is not None and facts.fields.get("distribution", RngDistribution.BERNOULLI)
        if (drawn and drawn is not RngDistribution.BERNOULLI) or any(
            tensor.uid in found for tensor in op.inputs().values()
        ):
            found |= {tensor.uid for tensor in op.outputs().values()}
    return found
