"""Error bounds for correct results, per output element, derived from runs of the NumPy interpreter.

The interpreter runs with cuDNN's roundings (``center``), and eight times more with its arithmetic shaken: whatever may
be rounded otherwise, or summed in another order, is moved by a random amount about as large as that can be. How far the
results move is how far a right kernel may be off; no operation needs an error analysis of its own. With u(T) the unit
roundoff of a type (2^-24 for float32, 2^-11 for float16), signs random and sizes between half and whole:

* where a number is not exact in the type of the tensor it is written to, 2 u(T);
* elements read by sums of K products, 2 sqrt(K) u(A), and their results, (4 + K / 16) u(A), with A the type that sums
  are kept in: float32, but of 8-bit operands 14 bits (as measured of Hopper's tensor cores), of engines that say so
  float16. Nothing, if operands are whole numbers and no sum can leave A's exact ones;
* operands of tensor cores that are wider than these take: u(TF32) = 2^-11, or that of the other operand's type; in
  every other run they are cut to TF32, as the hardware reads them that no one rounded: sums of these are all too
  small; what is beyond the largest number of a narrower type is infinite there;
* functions that are no single rounding (exp, tanh, division): 2^-20 of the result, 2^-22 of the argument, but of
  quotients and roots of the result alone, and what
  :data:`~cudnn_backend_py.interpreter.pointwise.APPROXIMATE` says. In two of the runs they are computed in
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
come in pairs with opposite signs, so that a comparison near its edge falls to both sides. In the last pair the result
of a pointwise operation whose operands have moved it is not moved again, which may take that back: kernels round a
product and a sum once. ``spread`` is four times the
root mean square of the movements, of sums at least half of that of their neighbours along the last axis. A right result
is between ``center - spread`` and ``center + spread``, each rounded to the type of the output. Where all shaken runs
are NaN, or an infinity of one sign, or finite, so has the result to be. For sums, though, an infinity is as good as
NaN, and of attention only what is finite is compared: kernels leave out what is masked, NaN or not, and what they say
of rows without a key is not agreed. Integers may be cut or rounded. Rows of a product beyond its lengths may be left
unwritten where no value is requested there.

A fault that moves every element a little (a wrong scale by 1 %) may hide in single elements of short types, and is
found by their number: the root mean square of all errors, each over its own rounding and movement, is below 1.5, and no
factor is common to all (:mod:`~cudnn_backend_py.tuning.trial.common_factor`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...generated.enums import DataType, DescriptorType, RngDistribution
from ...graph import Graph, Matmul, Operation, Pointwise, Tensor
from ...graph.attention.recognize import read_attention
from ...graph.data_types import BOOLEAN_TYPES, DATA_TYPES
from ...graph.formats import get_largest_finite, is_integer, round_to_data_type
from ...interpreter.arithmetic import make_length_mask
from ...interpreter.attention import find_masked_scores
from ...interpreter.data import has_unknown_element_order
from ...known_issues import AttentionUse
from .common_factor import compute_relative_size_difference, find_common_error_factor
from .perturbed_run import PerturbedRun, run_with_perturbations
from .rules import (
    DATA_MOVEMENT_KINDS,
    FACTOR_PORTS,
    PRODUCT_KINDS,
    Arithmetic,
    FloatArray,
    compute_half_smallest_positive,
    find_original_types_of_copied_values,
    get_unit_roundoff,
    is_float,
    make_perturbation_rule,
)

__all__ = ["Arithmetic", "Comparison", "ExpectedOutput", "compute_expected_outputs"]


PERTURBED_RUN_COUNT = 8  # in pairs
NEIGHBOUR_SPREAD_SHARE = 0.5  # of what neighbours move, at least: eight runs may miss how far a sum can
SPREAD_FACTOR = 4.0  # spread over the root mean square of movements
MAX_DRIFT = 1.5  # root mean square of all errors over what is expected of them
MIN_ELEMENTS = 64  # elements, for that to mean something


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing one output with its expected values.

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
    def is_right(self) -> bool:
        """Whether no element exceeds its error bound, and the errors as a whole are explained by rounding."""
        return self.beyond == 0 and self.factor is None and (self.drift is None or self.drift <= MAX_DRIFT)

    def __str__(self) -> str:
        place = ",".join(map(str, self.where))
        text = f"{self.output}: error {self.largest:.3g} of the bound"
        if self.drift is not None:
            text += f", {self.drift:.2g} of the expected drift"
        if self.beyond:
            text += f"; {self.beyond} of {self.compared} elements beyond it, "
            text += f"[{place}] is {self.got:.9g}, {self.wanted:.9g} +- {self.bound:.3g} is right"
        elif self.factor is not None:
            text += f": all of them are {self.factor:.6g} times the expected values"
        elif not self.is_right:
            text += f": all of them are off, [{place}] is {self.got:.9g}, {self.wanted:.9g} is right"
        return text


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """The expected values of an output, with an error bound for each element.

    Attributes
    ----------
    center, spread
        The number, give or take, float64.
    defined
        Where anything can be said.
    may_be_unwritten
        Where it may also be left as it was before, NaN.
    depends_on_sums
        Whether it hangs on sums: then infinities and NaN are not distinguished.
    relative_excesses, bias
        How much it may be larger as a whole, relatively: in each shaken run, and by sums that are cut.
    """

    tensor: Tensor
    center: FloatArray
    spread: FloatArray
    defined: NDArray[np.bool_]
    may_be_unwritten: NDArray[np.bool_]
    depends_on_sums: bool = False
    relative_excesses: tuple[float, ...] = (0.0,)
    bias: float = 0.0

    def bounds(self) -> FloatArray:
        """Return the error bound of each element, including rounding."""
        return self._compute_value_range()[3]

    def _compute_value_range(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the center, minimum and maximum of the result, rounded to its type, and the allowed error."""
        kind = self.tensor.data_type
        with np.errstate(all="ignore"):
            least, most = self.center - self.spread, self.center + self.spread
            if is_integer(kind):  # cut or rounded: which of them is not the same in all operations
                least, most = np.floor(least), np.ceil(most)
            if DATA_TYPES[kind].kind == "scale":  # which has no negative numbers
                least = np.maximum(least, 0.0)
            if kind in BOOLEAN_TYPES:  # one of 0 and 1, or the other as well
                least, most = (np.where(self.spread >= 1, bit, self.center) for bit in (0.0, 1.0))
            middle, low, high = (_round_values_to_data_type(value, kind) for value in (self.center, least, most))
            return middle, low, high, np.maximum(np.abs(high - self.center), np.abs(self.center - low))

    def compare(self, got: ArrayLike) -> Comparison:
        """Compare an output with the expected values; `got` has its dims, or is flat if the output is ragged."""
        found = np.asarray(got, dtype=np.float64)
        if found.ndim == 1 and self.tensor.ragged_offset is not None:
            found = found[: self.center.size]
        middle, low, high, bound = self._compute_value_range()
        with np.errstate(all="ignore"):
            off = np.abs(found - self.center)
            inside = ((found >= low) & (found <= high)) | (np.isnan(middle) & np.isnan(found))
            inside |= ~self.defined | (self.may_be_unwritten & np.isnan(found))
            if self.depends_on_sums:  # overflow and NaN are one: in another order a sum of infinities is the other
                inside |= ~np.isfinite(middle) & ~np.isfinite(found)
            ratio = np.where(inside, np.where(bound > 0, off / bound, 0.0), np.inf)
            ratio = np.where(np.isfinite(off) & (bound > 0), np.where(inside, ratio, off / bound), ratio)
            ratio = np.where(self.defined & ~(np.isnan(ratio) & inside), ratio, 0.0)
            drift, factor = self._measure_systematic_error_and_factor(found, middle)
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

    def _measure_systematic_error_and_factor(
        self, found: FloatArray, middle: FloatArray
    ) -> tuple[float | None, float | None]:
        """Return the systematic error of an output, and the factor by which all elements are off, if any."""
        kind = self.tensor.data_type
        if DATA_TYPES[kind].kind != "float":  # whole numbers are cut, scales rounded up by far
            return None, None
        size = (
            np.maximum(np.abs(self.center) * get_unit_roundoff(kind), compute_half_smallest_positive(kind))
            + self.spread / SPREAD_FACTOR
        )
        counted = self.defined & np.isfinite(found) & np.isfinite(size) & (size > 0)
        counted &= np.abs(self.center) <= get_largest_finite(kind)
        if int(np.count_nonzero(counted)) < MIN_ELEMENTS:
            return None, None
        got, right, exact, sizes = (item[counted] for item in (found, middle, self.center, size))
        drift = float(np.sqrt(np.mean(np.square((got - exact) / sizes))))
        rounding = np.maximum(np.abs(exact) * get_unit_roundoff(kind), compute_half_smallest_positive(kind))
        return drift, find_common_error_factor(got, right, exact, rounding, self.relative_excesses, self.bias)


def _round_values_to_data_type(values: FloatArray, kind: DataType) -> FloatArray:
    return np.asarray(round_to_data_type(values, kind), dtype=np.float64)


def compute_expected_outputs(
    graph: Graph,
    inputs: Mapping[str | int, ArrayLike],
    *,
    arithmetic: Arithmetic | None = None,
    seed: int = 0,
) -> dict[str, ExpectedOutput]:
    """Return the expected values of a graph's outputs by name, without outputs that have no error bound.

    Parameters
    ----------
    inputs
        As for :func:`~cudnn_backend_py.interpreter.interpret`.
    arithmetic
        What the engine may do; as much as any if not given.
    seed
        Of the movements.

    Raises
    ------
    GraphError
        What the interpreter refuses.
    """
    unknown, summed, use = _find_random_tensors(graph), _find_tensors_depending_on_sums(graph), read_attention(graph)
    allowed = arithmetic or Arithmetic()
    if use is not None and use.backward and use.problem.deterministic:
        allowed = dataclasses.replace(allowed, stored_sums=True)
    first = PerturbedRun(graph, inputs, allowed)
    center = run_with_perturbations(first)
    stored = {tensor.uid: _round_values_to_data_type(center[tensor.uid], tensor.data_type) for tensor in graph.outputs}
    relative_excesses: dict[int, list[float]] = {uid: [] for uid in center}
    squares = {uid: np.zeros(values.shape) for uid, values in center.items()}
    same = {uid: np.ones(values.shape, np.bool_) for uid, values in center.items()}
    kinds = {tensor.uid: tensor.data_type for tensor in graph.outputs}
    for number in range(PERTURBED_RUN_COUNT):
        noise = np.random.default_rng([seed, number // 2])
        moved = run_with_perturbations(PerturbedRun(graph, inputs, allowed, noise, number, first))
        with np.errstate(all="ignore"):
            for uid, values in moved.items():
                difference = values - center[uid]
                relative_excesses[uid].append(compute_relative_size_difference(values, center[uid]))
                squares[uid] += np.where(np.isfinite(difference), np.square(difference), 0.0)
                held = _round_values_to_data_type(values, kinds[uid])
                same[uid] &= _classify_inf_and_nan(held, uid in summed) == _classify_inf_and_nan(
                    stored[uid], uid in summed
                )
                if is_integer(kinds[uid]):  # what is infinite or NaN before it is held in range
                    same[uid] &= np.isfinite(difference) | (held == stored[uid])
    bias = _estimate_systematic_error(graph, allowed) + _estimate_common_score_error(
        graph, allowed, use
    ) * _find_largest_log_sum_exp(graph, inputs, stored)
    found = {}
    for tensor in {tensor.uid: tensor for tensor in graph.outputs}.values():
        if tensor.uid in unknown or has_unknown_element_order(tensor):
            continue
        spread = SPREAD_FACTOR * np.sqrt(squares[tensor.uid] / PERTURBED_RUN_COUNT)
        if tensor.uid in summed and tensor.data_type not in BOOLEAN_TYPES:
            spread = np.maximum(spread, NEIGHBOUR_SPREAD_SHARE * _compute_rms_along_last_axis(spread))
        if use is not None and use.backward and is_float(tensor.data_type):
            again = 2 * get_unit_roundoff(tensor.data_type) * np.abs(center[tensor.uid])  # dQ is rounded once more
            spread = np.hypot(spread, again)
        if use is not None and tensor.name == "max":  # kept in units of log 2: two factors, each rounded, and both ways
            spread = spread + 2.0**-22 * np.abs(center[tensor.uid])
        defined = _find_elements_with_known_value(graph, tensor, center[tensor.uid], same[tensor.uid])
        if use is not None and is_float(tensor.data_type):
            defined &= np.isfinite(stored[tensor.uid])
        optional = _find_unwritten_elements(graph, tensor, inputs) | _find_unwritten_mask_elements(first, tensor)
        found[tensor.name] = ExpectedOutput(
            tensor,
            center[tensor.uid],
            spread,
            defined,
            optional,
            tensor.uid in summed,
            tuple(relative_excesses[tensor.uid]),
            bias,
        )
    return found


def _find_largest_log_sum_exp(
    graph: Graph, inputs: Mapping[str | int, ArrayLike], stored: Mapping[int, FloatArray]
) -> float:
    """Return the largest log-sum-exp of attention, as its rounding error multiplies all probabilities."""
    found = 0.0
    for tensor in graph.tensors:
        if tensor.name == "stats":
            given = stored.get(tensor.uid, inputs.get(tensor.uid, inputs.get(tensor.name, 0.0)))
            sizes = np.abs(np.asarray(given, dtype=np.float64))
            found = max(found, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return found


def _estimate_systematic_error(graph: Graph, arithmetic: Arithmetic) -> float:
    """Return the relative error that a whole result may have, as sums and operands may be truncated (as in TF32)."""
    copied = find_original_types_of_copied_values(graph)
    rules = [make_perturbation_rule(op, arithmetic, copied) for op in graph.ops]
    found = sum(rule.output_change for rule in rules)
    for op, rule in zip(graph.ops, rules, strict=True):
        factors = [tensor for port, tensor in op.inputs().items() if port in FACTOR_PORTS]
        if rule.narrow_type is DataType.FLOAT:
            found += 2 * 2.0**-10
        elif rule.narrow_type is not None and any(
            t.data_type is DataType.FLOAT and t.uid not in copied for t in factors
        ):
            found += get_unit_roundoff(rule.narrow_type)  # operands that are equal are rounded alike
    return found


def _estimate_common_score_error(graph: Graph, arithmetic: Arithmetic, use: AttentionUse | None) -> float:
    """Return the relative error that all attention scores may have in common.

    It is relative to the largest subtracted statistic. Tensor cores truncate sums; in the forward pass the maximum is
    off by as much as the scores, so that nothing of the error is left.
    """
    if use is None or not use.backward:
        return 2.0**-22
    return next(
        make_perturbation_rule(op, arithmetic, {}).output_change for op in graph.ops if op.kind in PRODUCT_KINDS
    )  # Q @ K^T is the first


def _find_elements_with_known_value(
    graph: Graph, tensor: Tensor, center: FloatArray, same: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return a mask of elements with a known expected value: all runs agree about NaN, and kernels write them."""
    unwritten = tensor.ragged_offset is not None or _may_leave_rows_unwritten(graph, tensor)
    return np.asarray(same & ~(np.isnan(center) & unwritten))


def _find_unwritten_elements(graph: Graph, tensor: Tensor, inputs: Mapping[str | int, ArrayLike]) -> NDArray[np.bool_]:
    """Return a mask of elements that may stay unwritten: padding of a product, gaps of an in-place concatenation."""
    found = np.zeros(tensor.dims, np.bool_)
    if tensor.ragged_offset is not None:
        return np.zeros(1, np.bool_)
    for op in graph.ops:
        if (
            isinstance(op, Operation)
            and op.kind is DescriptorType.OPERATION_CONCAT
            and op.fields["output"].uid == tensor.uid
        ):
            place = op.fields.get("inplace_index", -1)
            if place >= 0:  # it has to be there before
                axis = op.fields["axis"]
                start = sum(item.dims[axis] for item in op.fields["input"][:place])
                part = slice(start, start + op.fields["input"][place].dims[axis])
                found[(slice(None),) * axis + (part,)] = True
        if not isinstance(op, Matmul) or op.c.uid != tensor.uid or op.padding_value is not None:
            continue
        for length, axis in ((op.m_override, -2), (op.n_override, -1)):
            held = None if length is None else inputs.get(length.uid, inputs.get(length.name))
            if held is not None:
                found |= ~make_length_mask(tensor.dims, tensor.rank + axis, np.asarray(held))
    return found


def _find_unwritten_mask_elements(run: PerturbedRun, tensor: Tensor) -> NDArray[np.bool_]:
    """Return the elements of a random mask that attention kernels may leave unwritten, as they skip masked tiles."""
    none = np.zeros(1, np.bool_)
    for op in run.graph.ops:
        if isinstance(op, Operation) and op.kind is DescriptorType.OPERATION_SDPA_FWD:
            dump = op.fields.get("dropout_rng_dump")
            if dump is not None and dump.uid == tensor.uid:
                return find_masked_scores(run, op)
    if not any(
        op.kind is DescriptorType.OPERATION_RNG and tensor.uid in _get_uids(op.outputs()) for op in run.graph.ops
    ):
        return none
    for op in run.graph.ops:
        if isinstance(op, Pointwise) and op.x is not None and op.b is not None:
            pair = {op.x.uid: op.b, op.b.uid: op.x}
            if tensor.uid in pair and pair[tensor.uid].dims == tensor.dims:
                return np.asarray(~(run.read_value(pair[tensor.uid]) > 0))  # probabilities
    return none


def _get_uids(tensors: Mapping[str, Tensor]) -> set[int]:
    return {tensor.uid for tensor in tensors.values()}


def _may_leave_rows_unwritten(graph: Graph, tensor: Tensor) -> bool:
    """Return whether rows that belong to no expert may stay unwritten; the interpreter marks these with NaN."""
    return any(
        op.kind is DescriptorType.OPERATION_MOE_GROUPED_MATMUL
        and tensor.uid in {item.uid for item in op.outputs().values()}
        for op in graph.ops
    )


def _classify_inf_and_nan(values: FloatArray, summed: bool) -> NDArray[np.int8]:
    """Return 0 for finite numbers, 1 for inf, 2 for -inf, 3 for NaN; in sums, 1 for anything not finite."""
    if summed:
        return np.asarray(~np.isfinite(values), np.int8)
    return np.asarray(np.isposinf(values) + 2 * np.isneginf(values) + 3 * np.isnan(values), np.int8)


def _compute_rms_along_last_axis(spread: FloatArray) -> FloatArray:
    """Return the root mean square along the last axis longer than one."""
    axis = max((axis for axis, size in enumerate(spread.shape) if size > 1), default=None)
    if axis is None:
        return spread
    return np.asarray(np.sqrt(np.mean(np.square(spread), axis=axis, keepdims=True)))


def _find_tensors_depending_on_sums(graph: Graph) -> set[int]:
    """Return the tensors that depend on sums."""
    found: set[int] = set()
    for op in graph.ops:
        is_sum = not isinstance(op, Pointwise) and op.kind not in DATA_MOVEMENT_KINDS
        if is_sum or any(tensor.uid in found for tensor in op.inputs().values()):
            found |= {tensor.uid for tensor in op.outputs().values()}
    return found


def _find_random_tensors(graph: Graph) -> set[int]:
    """Return the tensors that depend on random numbers known only in distribution."""
    found: set[int] = set()
    for op in graph.ops:
        facts = op.parameters().get("rng")
        drawn = facts is not None and facts.fields.get("distribution", RngDistribution.BERNOULLI)
        if (drawn and drawn is not RngDistribution.BERNOULLI) or any(
            tensor.uid in found for tensor in op.inputs().values()
        ):
            found |= {tensor.uid for tensor in op.outputs().values()}
    return found
