"""Perturbed runs of the interpreter, which vary values within their rounding and summation errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...generated.enums import DataType, PointwiseMode, ReduceTensorOp
from ...graph import Graph, Op, Pointwise, Reduction, Tensor
from ...graph.formats import largest_finite, round_to
from ...interpreter import OPERATIONS
from ...interpreter.philox import dropout_mask
from ...interpreter.pointwise import BACKWARD
from ...interpreter.run import Run
from .rules import (
    FACTORS,
    ROUNDINGS,
    Arithmetic,
    Floats,
    PerturbationRule,
    copied_types,
    half_smallest_positive,
    is_float,
    roundoff,
    rule_of,
)

__all__ = ["PerturbedRun", "run_in_float32", "run_perturbed"]

Numbers = NDArray[Any]
_P, _T = PointwiseMode, DataType

_FAR = 1e6  # there sines lose their angle, and swish its slope
_TINY = 2.0**-126  # below it float32 is denormal
_EXTREMES = {ReduceTensorOp.MIN, ReduceTensorOp.MAX}
_EITHER_ZERO = {_P.MAX, _P.MIN, _P.RELU_FWD}  # of -0 and 0 either may be the larger
_SINES = {_P.SIN, _P.COS, _P.TAN}


def _truncate_to_tf32(values: Floats) -> Floats:
    """Return float32 numbers with the 13 bits that TF32 tensor cores ignore set to 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return np.asarray(bits.view(np.float32), np.float64).reshape(values.shape)


@cache
def _random_pool() -> Floats:
    """Return a pool of random numbers between 0.5 and 1 with random sign, of prime length for reuse."""
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (1 << 22) - 3)
    return np.asarray(drawn + np.copysign(0.5, drawn))


class PerturbedRun(Run):
    """A run that rounds, and perturbs values as another correct run might; without noise it only rounds.

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
        first: PerturbedRun | None = None,
    ) -> None:
        super().__init__(graph, inputs, OPERATIONS, rounding=True, rng=dropout_mask)
        self.written: dict[int, Numbers] = {}
        self._unmoved: dict[int, Numbers] = {}  # what pointwise operations computed, if nothing moves
        self._first = first if number // 2 == 3 else None
        self._still: Numbers | None = None  # where what is rounded next has moved already
        self._arithmetic, self._noise = arithmetic, noise
        self._sign, odd, pair = 1.0 - 2 * (number % 2), number % 2 == 1, number // 2
        self._in_steps = odd and pair in (0, 3)
        self._flushes, self._flat = odd and pair in (0, 1), odd and pair in (0, 2)
        if noise is not None:
            self.tile = 32 if odd else 64
        self._copied = copied_types(graph)
        self._current = PerturbationRule()
        self._moved: dict[int, Numbers] = {}
        self._factors: set[int] = set()
        self._op: Op | None = None

    def run_operation(self, op: Op) -> None:
        before = self._current, self._moved, self._factors, self._op
        self._current = rule_of(op, self._arithmetic, self._copied) if self._noise is not None else PerturbationRule()
        self._moved, self._op = {}, op
        self._factors = {tensor.uid for port, tensor in op.ports() if port in FACTORS}
        if self._current.sums and not self._arithmetic.transformed and self._is_exact(op):
            self._current = PerturbationRule(narrow=self._current.narrow)
        super().run_operation(op)
        self._current, self._moved, self._factors, self._op = before

    def copy_without_rounding(self) -> Run:
        other = super().copy_without_rounding()
        assert isinstance(other, PerturbedRun)
        other._noise, other._current = None, PerturbationRule()
        return other

    def read_floats(self, tensor: Tensor) -> Floats:
        values = super().read_floats(tensor)
        if not self._in_steps or not isinstance(self._op, Pointwise) or self._op.compute_type is not _T.FLOAT:
            return values
        return values.astype(np.float32) if self._current.absolute else values

    def read_value(self, tensor: Tensor) -> Numbers:
        values = super().read_value(tensor)
        if self._noise is None or not is_float(tensor.data_type):
            return values
        if tensor.uid not in self._moved:
            self._moved[tensor.uid] = self._perturb_input(tensor, values)
        return self._moved[tensor.uid]

    def write_value(self, tensor: Tensor, values: ArrayLike) -> None:
        given = np.asarray(values)
        if self._sign < 0 and isinstance(self._op, Reduction) and self._op.operator in _EXTREMES:
            given = np.clip(
                given, -largest_finite(_T.FLOAT), largest_finite(_T.FLOAT)
            )  # these begin with the largest number
        if self._in_steps and isinstance(self._op, Reduction) and self._op.operator is ReduceTensorOp.MUL:
            given = self._reordered_product(self._op, given)
        if self._noise is not None and is_float(tensor.data_type) and not isinstance(self._op, Pointwise):
            given = self._perturb_output(given.astype(np.float64), tensor.data_type)
        self.written[tensor.uid] = given
        kept = tensor.uid in self.row_sums and tensor.virtual
        if self._noise is not None and is_float(tensor.data_type) and tensor.data_type is not _T.FLOAT and not kept:
            given = self._perturb_rounding(given, tensor.data_type)
        super().write_value(tensor, given)

    def _reordered_product(self, op: Reduction, values: Numbers) -> Numbers:
        """Return products computed in another order, which may overflow or underflow in float32."""
        size = np.abs(self.read_value(op.x))
        axes = tuple(axis for axis, (many, few) in enumerate(zip(op.x.dims, op.y.dims, strict=True)) if many != few)
        large, small = (limit(size, 1.0).prod(axes, keepdims=True) for limit in (np.maximum, np.minimum))
        return np.where(large > largest_finite(_T.FLOAT), np.nan, np.where(small < _TINY, 0.0, values))

    def round_to_type(self, values: Floats, data_type: DataType) -> Floats:
        if values.dtype == np.float32:
            return values
        if self._noise is not None and self.rounding and is_float(data_type):
            moved = self._perturb_rounding(np.asarray(values, dtype=np.float64), data_type)
            values, self._still = moved if self._still is None else np.where(self._still, values, moved), None
        return super().round_to_type(values, data_type)

    def round_numerators(self, values: Floats, sums: Floats, data_type: DataType) -> Floats:
        """Return the quotients with another rounding, as small score errors may change an exponential's rounding."""
        if self._noise is not None:
            sums = np.where(sums > 0, sums, 1.0)
            values = self._perturb_rounding(values * sums, data_type) / sums
        return super().round_numerators(values, sums, data_type)

    def _is_exact(self, op: Op) -> bool:
        """Return whether all sums are of integers within the exact range of their type."""
        most = 1.0
        for tensor in op.inputs().values():
            if not is_float(tensor.data_type):
                continue
            values = Run.read_value(self, tensor)
            if not np.isfinite(values).all() or (values != np.trunc(values)).any():
                return False
            most *= max(1.0, float(np.abs(values).max(initial=0.0)))
        return most * self._current.sums * self._current.kept <= 0.5

    def _draw_noise(self, shape: tuple[int, ...]) -> Floats:
        """Return random numbers between 0.5 and 1 with random sign."""
        assert self._noise is not None
        count = math.prod(shape)
        pool = _random_pool()
        start = int(self._noise.integers(pool.size))
        drawn = pool[start : start + count]
        if (rest := count - drawn.size) > 0:
            drawn = np.concatenate([drawn, pool[:rest] if rest <= pool.size else np.resize(pool, rest)])
        return np.asarray(self._sign * drawn.reshape(shape))

    def _perturb_input(self, tensor: Tensor, values: Numbers) -> Numbers:
        rule, op = self._current, self._op
        moved = values.astype(np.float64)
        if rule.narrow is not None and tensor.uid in self._factors and tensor.data_type is _T.FLOAT:
            if rule.narrow is not _T.FLOAT:
                step, held = roundoff(rule.narrow), round_to(values, rule.narrow)
            else:
                step, held = 2.0**-10, _truncate_to_tf32(values)
            if rule.narrow is _T.FLOAT and self._sign < 0:
                moved = held
            else:
                moved = np.where(held == values, moved, moved * (1 + step * self._draw_noise(moved.shape)))
            if rule.narrow is not _T.FLOAT and self._sign < 0:
                moved = np.where(np.abs(moved) > largest_finite(rule.narrow), np.copysign(np.inf, moved), moved)
        if rule.read:
            moved = moved * (1 + rule.read * self._draw_noise(moved.shape))
        if self._flushes and tensor.data_type is not _T.DOUBLE:
            moved = np.where(np.abs(moved) < _TINY, np.copysign(0.0, moved), moved)
            if isinstance(op, Pointwise) and op.mode is _P.DIV and op.b is not None and op.b.uid == tensor.uid:
                moved = np.where(np.abs(moved) >= 2.0**126, np.copysign(np.inf, moved), moved)
        if self._flat and isinstance(op, Pointwise) and op.mode in _SINES and tensor.data_type is not _T.DOUBLE:
            moved = np.where((np.abs(moved) > _FAR) & np.isfinite(moved), 0.0, moved)
        if rule.kink and tensor.virtual and isinstance(op, Pointwise) and op.x is not None and op.x.uid == tensor.uid:
            moved = np.where(moved == 0, 2 * _TINY * self._sign, moved)  # all of them alike: a kernel has one rule
        return moved

    def adjust_result(self, op: Op, values: Floats) -> Floats:
        """Return the result of a pointwise operation as another kernel might round it; some exact zeros stay zero."""
        if self._noise is None and self.rounding:
            self._unmoved |= {tensor.uid: values for tensor in op.outputs().values()}
        if self._noise is None or not isinstance(op, Pointwise) or not is_float(op.compute_type):
            return values
        values = np.asarray(values, np.float64)
        if self._first is not None:
            self._still = values != self._first._unmoved[next(iter(op.outputs().values())).uid]
        rule = self._current
        if op.mode in BACKWARD and op.x is not None and op.dy is not None:
            # A slope as small as its error may be 0, of which an infinite dy makes NaN.
            x, dy = (np.asarray(self.read_value(tensor), np.float64) for tensor in (op.x, op.dy))
            flat = np.abs(BACKWARD[op.mode](x, op)) <= rule.absolute * np.clip(np.abs(x), 1.0, 64.0)
            values = np.where(flat & np.isinf(dy), np.nan if self._flat else dy, values)
            values = np.where(flat & np.isfinite(values) & self._flat, 0.0, values)
            if op.mode is _P.SWISH_BWD and self._flat:
                values = np.where(x * (1.0 if op.swish_beta is None else op.swish_beta) > _FAR, 0.0 * dy, values)
        flushes = self._flushes and op.compute_type is not _T.DOUBLE
        if flushes:  # before it is moved: 0 is no small number
            values = np.where(np.abs(values) < _TINY, np.copysign(0.0, values), values)
        if rule.written or rule.absolute:
            small = rule.absolute * self._error_scale(op, values)
            shift = rule.written * np.abs(values) + small
            moved = values + np.where(np.isfinite(shift), shift, 0.0) * self._draw_noise(np.shape(shift))
            if self._flat:  # a kernel's sigmoid is 0 where its tanh is -1, and its exp(x) - 1 where exp(x) is 1
                moved = np.where(np.abs(values) <= small, np.copysign(0.0, values), moved)
            values = np.where((values == 0) & (self._sign < 0), values, moved)
        if op.mode in _EITHER_ZERO:
            values = np.where(values == 0, np.copysign(0.0, self._sign), values)
        if flushes:
            values = np.where(np.abs(values) < _TINY, np.copysign(0.0, values), values)
        return values  # which is moved where it is rounded

    def _error_scale(self, op: Pointwise, values: Floats) -> Floats:
        """Return the scale of a function's absolute error, as measured (``BOUNDS``)."""
        assert op.x is not None
        x = np.nan_to_num(np.abs(self.read_value(op.x)))
        if op.mode in (_P.DIV, _P.POW):
            return np.zeros(1)
        if op.b is not None and op.mode in (_P.MOD, _P.FLOOR_MOD):
            return np.asarray(np.maximum(np.maximum(1.0, x), np.abs(self.read_value(op.b))))
        size = np.clip(x, 1.0, 64.0)
        if op.dy is not None:
            size = size * np.abs(self.read_value(op.dy))
        return np.asarray(size * (1 + np.square(values)) if op.mode is _P.TAN else size)

    def _perturb_output(self, values: Floats, data_type: DataType) -> Floats:
        rule = self._current
        if rule.written:
            values = values * (1 + rule.written * self._draw_noise(values.shape))
        return values if rule.written >= 2.0**-22 else self._perturb_float32_rounding(values, data_type)

    def _perturb_float32_rounding(self, values: Floats, data_type: DataType) -> Floats:
        """Return values perturbed by about their rounding error in float32."""
        inexact = values.astype(np.float32) != values
        if data_type is _T.DOUBLE or not inexact.any():
            return values
        shift = np.maximum(np.abs(values) * 2.0**-24, 2.0**-150) * ROUNDINGS * self._draw_noise(values.shape)
        return np.where(inexact & np.isfinite(values), values + shift, values)

    def _perturb_rounding(self, values: Floats, data_type: DataType) -> Floats:
        """Return values perturbed by about their rounding error."""
        inexact = np.isfinite(values) & (round_to(values, data_type) != values)
        if not inexact.any():
            return values
        shift = np.maximum(np.abs(values) * roundoff(data_type), half_smallest_positive(data_type)) * ROUNDINGS
        return np.where(inexact, values + shift * self._draw_noise(values.shape), values)


class _Float32Run(Run):
    """A run that computes elementwise operations step by step in float32, optionally flushing denormals."""

    flushes = False

    def read_floats(self, tensor: Tensor) -> Floats:
        values = super().read_floats(tensor)
        return values if tensor.data_type is _T.DOUBLE else self._as_float32(values)

    def adjust_result(self, op: Op, values: Floats) -> Floats:
        if not isinstance(op, Pointwise) or op.compute_type is not _T.FLOAT:
            return values
        return np.asarray(self._as_float32(np.asarray(values)), np.float64)

    def _as_float32(self, values: Floats) -> Any:
        held = values.astype(np.float32)
        return np.where(np.abs(held) < _TINY, np.copysign(np.float32(0), held), held) if self.flushes else held


def run_in_float32(graph: Graph, inputs: Mapping[str | int, ArrayLike]) -> list[dict[str, Floats]]:
    """Return outputs by name as computed with float32 elementwise operations, and with denormals flushed to 0."""
    found = []
    for flushes in (False, True):
        run = _Float32Run(graph, inputs, OPERATIONS, rounding=True, rng=dropout_mask)
        run.flushes = flushes
        with np.errstate(all="ignore"):
            for op in graph.ops:
                run.run_operation(op)
        found.append({tensor.name: run.get_result(tensor).astype(np.float64) for tensor in graph.outputs})
    return found


def run_perturbed(run: PerturbedRun) -> dict[int, Floats]:
    """Return the outputs of a graph before rounding, by uid, as float64."""
    found: dict[int, Floats] = {}
    with np.errstate(all="ignore"):
        for op in run.graph.ops:
            run.run_operation(op)
        for tensor in run.graph.outputs:
            if tensor.ragged_offset is not None:
                run._values[tensor.uid] = np.asarray(run.written[tensor.uid], np.float64)
                found[tensor.uid] = run.get_result(tensor).astype(np.float64)
            else:
                found[tensor.uid] = np.asarray(run.written[tensor.uid], np.float64)
    return found
