"""Runs of the NumPy interpreter with values varied within their rounding and summation errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...generated.enums import DataType, PointwiseMode, ReduceTensorOp
from ...graph import Graph, Op, Pointwise, Reduction, Tensor
from ...graph.formats import get_largest_finite, round_to_data_type
from ...interpreter import OPERATIONS
from ...interpreter.philox import dropout_mask
from ...interpreter.pointwise import BACKWARD
from ...interpreter.run import Run
from .rules import (
    FACTOR_PORTS,
    ROUNDING_FACTOR,
    Arithmetic,
    FloatArray,
    PerturbationRule,
    compute_half_smallest_positive,
    find_original_types_of_copied_values,
    get_unit_roundoff,
    is_float,
    make_perturbation_rule,
)

__all__ = ["PerturbedRun", "run_in_float32", "run_with_perturbations"]

NumberArray = NDArray[Any]

_LARGE_ANGLE = 1e6  # there sines lose their angle, and swish its slope
_SMALLEST_NORMAL_FLOAT32 = 2.0**-126  # below it float32 is denormal
_MIN_AND_MAX = {ReduceTensorOp.MIN, ReduceTensorOp.MAX}
_MODES_WITH_AMBIGUOUS_ZERO_SIGN = {
    PointwiseMode.MAX,
    PointwiseMode.MIN,
    PointwiseMode.RELU_FWD,
}  # of -0 and 0 either may be the larger
_TRIGONOMETRIC_MODES = {PointwiseMode.SIN, PointwiseMode.COS, PointwiseMode.TAN}


def _truncate_to_tf32(values: FloatArray) -> FloatArray:
    """Return float32 numbers with the 13 bits that TF32 tensor cores ignore set to 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return np.asarray(bits.view(np.float32), np.float64).reshape(values.shape)


@cache
def _make_reusable_random_numbers() -> FloatArray:
    """Return random numbers with magnitudes between 0.5 and 1 and random sign; a prime count, to be reused."""
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (1 << 22) - 3)
    return np.asarray(drawn + np.copysign(0.5, drawn))


class PerturbedRun(Run):
    """An interpreter run with rounding, and optionally with random errors such as kernels make.

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
        self.written: dict[int, NumberArray] = {}
        self._unperturbed_results: dict[int, NumberArray] = {}  # what pointwise operations computed, if nothing moves
        self._unperturbed_run = first if number // 2 == 3 else None
        self._already_perturbed: NumberArray | None = None  # where what is rounded next has moved already
        self._arithmetic, self._noise = arithmetic, noise
        self._sign, odd, pair = 1.0 - 2 * (number % 2), number % 2 == 1, number // 2
        self._computes_in_float32 = odd and pair in (0, 3)
        self._flushes_denormals, self._has_zero_slopes = odd and pair in (0, 1), odd and pair in (0, 2)
        if noise is not None:
            self.tile = 32 if odd else 64
        self._copied_types = find_original_types_of_copied_values(graph)
        self._rule = PerturbationRule()
        self._perturbed_inputs: dict[int, NumberArray] = {}
        self._factor_uids: set[int] = set()
        self._op: Op | None = None

    def run_operation(self, op: Op) -> None:
        before = self._rule, self._perturbed_inputs, self._factor_uids, self._op
        self._rule = (
            make_perturbation_rule(op, self._arithmetic, self._copied_types)
            if self._noise is not None
            else PerturbationRule()
        )
        self._perturbed_inputs, self._op = {}, op
        self._factor_uids = {tensor.uid for port, tensor in op.ports() if port in FACTOR_PORTS}
        if self._rule.summed_terms and not self._arithmetic.transformed and self._is_exact(op):
            self._rule = PerturbationRule(narrow_type=self._rule.narrow_type)
        super().run_operation(op)
        self._rule, self._perturbed_inputs, self._factor_uids, self._op = before

    def copy_without_rounding(self) -> Run:
        other = super().copy_without_rounding()
        assert isinstance(other, PerturbedRun)
        other._noise, other._rule = None, PerturbationRule()
        return other

    def read_floats(self, tensor: Tensor) -> FloatArray:
        values = super().read_floats(tensor)
        if (
            not self._computes_in_float32
            or not isinstance(self._op, Pointwise)
            or self._op.compute_type is not DataType.FLOAT
        ):
            return values
        return values.astype(np.float32) if self._rule.absolute_change else values

    def read_value(self, tensor: Tensor) -> NumberArray:
        values = super().read_value(tensor)
        if self._noise is None or not is_float(tensor.data_type):
            return values
        if tensor.uid not in self._perturbed_inputs:
            self._perturbed_inputs[tensor.uid] = self._perturb_input(tensor, values)
        return self._perturbed_inputs[tensor.uid]

    def write_value(self, tensor: Tensor, values: ArrayLike) -> None:
        given = np.asarray(values)
        if self._sign < 0 and isinstance(self._op, Reduction) and self._op.operator in _MIN_AND_MAX:
            given = np.clip(
                given, -get_largest_finite(DataType.FLOAT), get_largest_finite(DataType.FLOAT)
            )  # these begin with the largest number
        if self._computes_in_float32 and isinstance(self._op, Reduction) and self._op.operator is ReduceTensorOp.MUL:
            given = self._compute_reordered_product(self._op, given)
        if self._noise is not None and is_float(tensor.data_type) and not isinstance(self._op, Pointwise):
            given = self._perturb_output(given.astype(np.float64), tensor.data_type)
        self.written[tensor.uid] = given
        kept = tensor.uid in self.row_sums and tensor.virtual
        if (
            self._noise is not None
            and is_float(tensor.data_type)
            and tensor.data_type is not DataType.FLOAT
            and not kept
        ):
            given = self._perturb_rounding(given, tensor.data_type)
        super().write_value(tensor, given)

    def _compute_reordered_product(self, op: Reduction, values: NumberArray) -> NumberArray:
        """Return products computed in another order, which may overflow or underflow in float32."""
        size = np.abs(self.read_value(op.x))
        axes = tuple(axis for axis, (many, few) in enumerate(zip(op.x.dims, op.y.dims, strict=True)) if many != few)
        large, small = (limit(size, 1.0).prod(axes, keepdims=True) for limit in (np.maximum, np.minimum))
        return np.where(
            large > get_largest_finite(DataType.FLOAT), np.nan, np.where(small < _SMALLEST_NORMAL_FLOAT32, 0.0, values)
        )

    def round_to_type(self, values: FloatArray, data_type: DataType) -> FloatArray:
        if values.dtype == np.float32:
            return values
        if self._noise is not None and self.rounding and is_float(data_type):
            moved = self._perturb_rounding(np.asarray(values, dtype=np.float64), data_type)
            values, self._already_perturbed = (
                moved if self._already_perturbed is None else np.where(self._already_perturbed, values, moved),
                None,
            )
        return super().round_to_type(values, data_type)

    def round_numerators(self, values: FloatArray, sums: FloatArray, data_type: DataType) -> FloatArray:
        """Round softmax results as if scores had small errors, which change how exponentials are rounded."""
        if self._noise is not None:
            sums = np.where(sums > 0, sums, 1.0)
            values = self._perturb_rounding(values * sums, data_type) / sums
        return super().round_numerators(values, sums, data_type)

    def _is_exact(self, op: Op) -> bool:
        """Return whether all sums of an operation are of integers within the exact range of their type."""
        most = 1.0
        for tensor in op.inputs().values():
            if not is_float(tensor.data_type):
                continue
            values = Run.read_value(self, tensor)
            if not np.isfinite(values).all() or (values != np.trunc(values)).any():
                return False
            most *= max(1.0, float(np.abs(values).max(initial=0.0)))
        return most * self._rule.summed_terms * self._rule.accumulator_roundoff <= 0.5

    def _make_random_noise(self, shape: tuple[int, ...]) -> FloatArray:
        """Return random numbers between 0.5 and 1 with random sign."""
        assert self._noise is not None
        count = math.prod(shape)
        pool = _make_reusable_random_numbers()
        start = int(self._noise.integers(pool.size))
        drawn = pool[start : start + count]
        if (rest := count - drawn.size) > 0:
            drawn = np.concatenate([drawn, pool[:rest] if rest <= pool.size else np.resize(pool, rest)])
        return np.asarray(self._sign * drawn.reshape(shape))

    def _perturb_input(self, tensor: Tensor, values: NumberArray) -> NumberArray:
        rule, op = self._rule, self._op
        moved = values.astype(np.float64)
        if rule.narrow_type is not None and tensor.uid in self._factor_uids and tensor.data_type is DataType.FLOAT:
            if rule.narrow_type is not DataType.FLOAT:
                step, held = get_unit_roundoff(rule.narrow_type), round_to_data_type(values, rule.narrow_type)
            else:
                step, held = 2.0**-10, _truncate_to_tf32(values)
            if rule.narrow_type is DataType.FLOAT and self._sign < 0:
                moved = held
            else:
                moved = np.where(held == values, moved, moved * (1 + step * self._make_random_noise(moved.shape)))
            if rule.narrow_type is not DataType.FLOAT and self._sign < 0:
                moved = np.where(
                    np.abs(moved) > get_largest_finite(rule.narrow_type), np.copysign(np.inf, moved), moved
                )
        if rule.input_change:
            moved = moved * (1 + rule.input_change * self._make_random_noise(moved.shape))
        if self._flushes_denormals and tensor.data_type is not DataType.DOUBLE:
            moved = np.where(np.abs(moved) < _SMALLEST_NORMAL_FLOAT32, np.copysign(0.0, moved), moved)
            if (
                isinstance(op, Pointwise)
                and op.mode is PointwiseMode.DIV
                and op.b is not None
                and op.b.uid == tensor.uid
            ):
                moved = np.where(np.abs(moved) >= 2.0**126, np.copysign(np.inf, moved), moved)
        if (
            self._has_zero_slopes
            and isinstance(op, Pointwise)
            and op.mode in _TRIGONOMETRIC_MODES
            and tensor.data_type is not DataType.DOUBLE
        ):
            moved = np.where((np.abs(moved) > _LARGE_ANGLE) & np.isfinite(moved), 0.0, moved)
        if (
            rule.is_ambiguous_at_zero
            and tensor.virtual
            and isinstance(op, Pointwise)
            and op.x is not None
            and op.x.uid == tensor.uid
        ):
            moved = np.where(
                moved == 0, 2 * _SMALLEST_NORMAL_FLOAT32 * self._sign, moved
            )  # all of them alike: a kernel has one rule
        return moved

    def adjust_result(self, op: Op, values: FloatArray) -> FloatArray:
        """Return the result of a pointwise operation as another kernel might round it; some exact zeros stay zero."""
        if self._noise is None and self.rounding:
            self._unperturbed_results |= {tensor.uid: values for tensor in op.outputs().values()}
        if self._noise is None or not isinstance(op, Pointwise) or not is_float(op.compute_type):
            return values
        values = np.asarray(values, np.float64)
        if self._unperturbed_run is not None:
            self._already_perturbed = (
                values != self._unperturbed_run._unperturbed_results[next(iter(op.outputs().values())).uid]
            )
        rule = self._rule
        if op.mode in BACKWARD and op.x is not None and op.dy is not None:
            # A slope as small as its error may be 0, of which an infinite dy makes NaN.
            x, dy = (np.asarray(self.read_value(tensor), np.float64) for tensor in (op.x, op.dy))
            flat = np.abs(BACKWARD[op.mode](x, op)) <= rule.absolute_change * np.clip(np.abs(x), 1.0, 64.0)
            values = np.where(flat & np.isinf(dy), np.nan if self._has_zero_slopes else dy, values)
            values = np.where(flat & np.isfinite(values) & self._has_zero_slopes, 0.0, values)
            if op.mode is PointwiseMode.SWISH_BWD and self._has_zero_slopes:
                values = np.where(
                    x * (1.0 if op.swish_beta is None else op.swish_beta) > _LARGE_ANGLE, 0.0 * dy, values
                )
        flushes = self._flushes_denormals and op.compute_type is not DataType.DOUBLE
        if flushes:  # before it is moved: 0 is no small number
            values = np.where(np.abs(values) < _SMALLEST_NORMAL_FLOAT32, np.copysign(0.0, values), values)
        if rule.output_change or rule.absolute_change:
            small = rule.absolute_change * self._compute_error_scale(op, values)
            shift = rule.output_change * np.abs(values) + small
            moved = values + np.where(np.isfinite(shift), shift, 0.0) * self._make_random_noise(np.shape(shift))
            if (
                self._has_zero_slopes
            ):  # a kernel's sigmoid is 0 where its tanh is -1, and its exp(x) - 1 where exp(x) is 1
                moved = np.where(np.abs(values) <= small, np.copysign(0.0, values), moved)
            values = np.where((values == 0) & (self._sign < 0), values, moved)
        if op.mode in _MODES_WITH_AMBIGUOUS_ZERO_SIGN:
            values = np.where(values == 0, np.copysign(0.0, self._sign), values)
        if flushes:
            values = np.where(np.abs(values) < _SMALLEST_NORMAL_FLOAT32, np.copysign(0.0, values), values)
        return values  # which is moved where it is rounded

    def _compute_error_scale(self, op: Pointwise, values: FloatArray) -> FloatArray:
        """Return the scale of a function's absolute error, as measured (``BOUNDS``)."""
        assert op.x is not None
        x = np.nan_to_num(np.abs(self.read_value(op.x)))
        if op.mode in (PointwiseMode.DIV, PointwiseMode.POW):
            return np.zeros(1)
        if op.b is not None and op.mode in (PointwiseMode.MOD, PointwiseMode.FLOOR_MOD):
            return np.asarray(np.maximum(np.maximum(1.0, x), np.abs(self.read_value(op.b))))
        size = np.clip(x, 1.0, 64.0)
        if op.dy is not None:
            size = size * np.abs(self.read_value(op.dy))
        return np.asarray(size * (1 + np.square(values)) if op.mode is PointwiseMode.TAN else size)

    def _perturb_output(self, values: FloatArray, data_type: DataType) -> FloatArray:
        rule = self._rule
        if rule.output_change:
            values = values * (1 + rule.output_change * self._make_random_noise(values.shape))
        return values if rule.output_change >= 2.0**-22 else self._perturb_float32_rounding(values, data_type)

    def _perturb_float32_rounding(self, values: FloatArray, data_type: DataType) -> FloatArray:
        """Change values at random by as much as their float32 rounding error."""
        inexact = values.astype(np.float32) != values
        if data_type is DataType.DOUBLE or not inexact.any():
            return values
        shift = (
            np.maximum(np.abs(values) * 2.0**-24, 2.0**-150) * ROUNDING_FACTOR * self._make_random_noise(values.shape)
        )
        return np.where(inexact & np.isfinite(values), values + shift, values)

    def _perturb_rounding(self, values: FloatArray, data_type: DataType) -> FloatArray:
        """Change values at random by as much as their rounding error in the given type."""
        inexact = np.isfinite(values) & (round_to_data_type(values, data_type) != values)
        if not inexact.any():
            return values
        shift = (
            np.maximum(np.abs(values) * get_unit_roundoff(data_type), compute_half_smallest_positive(data_type))
            * ROUNDING_FACTOR
        )
        return np.where(inexact, values + shift * self._make_random_noise(values.shape), values)


class _Float32Run(Run):
    """A run that computes elementwise operations step by step in float32, optionally flushing denormals."""

    flushes_denormals = False

    def read_floats(self, tensor: Tensor) -> FloatArray:
        values = super().read_floats(tensor)
        return values if tensor.data_type is DataType.DOUBLE else self._round_to_float32(values)

    def adjust_result(self, op: Op, values: FloatArray) -> FloatArray:
        if not isinstance(op, Pointwise) or op.compute_type is not DataType.FLOAT:
            return values
        return np.asarray(self._round_to_float32(np.asarray(values)), np.float64)

    def _round_to_float32(self, values: FloatArray) -> Any:
        held = values.astype(np.float32)
        return (
            np.where(np.abs(held) < _SMALLEST_NORMAL_FLOAT32, np.copysign(np.float32(0), held), held)
            if self.flushes_denormals
            else held
        )


def run_in_float32(graph: Graph, inputs: Mapping[str | int, ArrayLike]) -> list[dict[str, FloatArray]]:
    """Run elementwise operations in float32, once as usual and once with denormals flushed to 0; return the outputs."""
    found = []
    for flushes in (False, True):
        run = _Float32Run(graph, inputs, OPERATIONS, rounding=True, rng=dropout_mask)
        run.flushes_denormals = flushes
        with np.errstate(all="ignore"):
            for op in graph.ops:
                run.run_operation(op)
        found.append({tensor.name: run.get_result(tensor).astype(np.float64) for tensor in graph.outputs})
    return found


def run_with_perturbations(run: PerturbedRun) -> dict[int, FloatArray]:
    """Run the graph with perturbations; return the outputs before rounding, by uid, as float64."""
    found: dict[int, FloatArray] = {}
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
