"""Check whether a changed graph still computes the original's results, by interpreting both on small data.

What the caller does with the data is taken from the changes: copied, padded with zeros, repeated, cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import CudnnBackendError, GraphError
from ..generated.enums import DescriptorType
from ..generated.operations import CONVOLUTIONS
from ..graph.data_types import DATA_TYPES
from ..graph.formats import is_integer, make_strided_view
from ..graph.ir import Graph, Matmul, Op, Operation, Tensor
from ..graph.replace import iterate_all_ops, make_packed_tensor, replace_tensors
from ..rewrite.change_sequence import ChangeSequence
from ..rewrite.changes import Change
from ..rewrite.shapes import find_equivalent_view
from . import interpret
from .data import make_inputs

__all__ = ["Comparison", "compare"]

Numbers = NDArray[Any]
ValuesByUid = dict[int, Numbers]
GraphSequence = tuple[Graph, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: same, different or not compared, and why.

    Parameters
    ----------
    state
        ``same``, ``different`` or ``not compared``.
    words
        Which output differs and by how much, or why nothing was compared; empty where the results are the same.
    """

    state: Literal["same", "different", "not compared"]
    words: str = ""


class _NotComparableError(Exception):
    """Raised if graphs cannot be compared; the text is the reason."""


#: Kinds of data, and whether every tensor is rounded to its type. Whole numbers are exact in any order; hostile data
#: have zeros, infinities and NaN.
_COMPARISON_RUNS: tuple[tuple[str, bool], ...] = (
    ("integers", False),
    ("uniform", False),
    ("uniform", True),
    ("hostile", False),
)
#: Of the largest finite number of an output: for float64 in another order.
_FLOAT64_TOLERANCE = 1e-9
#: Multiply-adds that are run at once; and at most, where a graph cannot be made smaller.
_CHEAP_COST, _MAX_COST = 1 << 21, 1 << 28


def compare(graph: Graph, solution: ChangeSequence, seed: int = 0, *, shrink: bool = True) -> Comparison:
    """Compare the results of a graph before and after the changes in `solution`, by interpreting both.

    Results are compared without rounding (to 1e-9 of the largest number of an output; whole numbers may differ by 1
    where they are cut off), and with every tensor rounded to its type: then the relative Frobenius norm of the
    difference is at most four times the tolerance of the least precise type in the graph, see
    :data:`~cudnn_backend_py.graph.data_types.DATA_TYPES`. Large dims that the changes leave as they are become small
    ones first.

    Parameters
    ----------
    seed
        Data are drawn from it.
    shrink
        Whether large dims become small ones, where the graph as it is costs more than some milliseconds.
    """
    try:
        states = _list_graphs_after_each_change(graph, solution)
        _refuse_incomparable_random_graphs(states)
        return _compare_at_first_usable_sizes(
            _iterate_graphs_with_smaller_dims(states) if shrink else [states], solution, seed
        )
    except _NotComparableError as error:
        return Comparison("not compared", str(error))
    except CudnnBackendError as error:
        return Comparison("not compared", error.headline)


def _list_graphs_after_each_change(graph: Graph, solution: ChangeSequence) -> list[GraphSequence]:
    """Return the original graph, and the graphs after each change."""
    states: list[GraphSequence] = [(graph,)]
    found = ChangeSequence.from_change(solution.steps[0])
    states.append(found.graphs)
    for member, change in zip(solution.members[1:], solution.steps[1:], strict=True):
        following = found.apply_change(member, change)
        assert following is not None
        found = following
        states.append(found.graphs)
    return states


def _refuse_incomparable_random_graphs(states: list[GraphSequence]) -> None:
    """Refuse graphs with random numbers if dims or operations change: the numbers depend on positions."""
    ops = list(iterate_all_ops(states[0][0]))
    if not any(op.kind is DescriptorType.OPERATION_RNG or "dropout_probability" in dict(op.ports()) for op in ops):
        return
    kinds = [sorted(op.kind.name for graph in state for op in iterate_all_ops(graph)) for state in states]
    described = {(tensor.uid, tensor.dims) for state in states for graph in state for tensor in graph.tensors}
    if kinds[0] != kinds[-1] or len(described) != len({uid for uid, _ in described}):
        raise _NotComparableError("the graph draws random numbers, which depend on the positions of the elements")


def _compare_at_first_usable_sizes(
    sizes: Iterable[list[GraphSequence]], solution: ChangeSequence, seed: int
) -> Comparison:
    """Compare the graphs at the first of these sizes that the interpreter can run."""
    last: GraphError | None = None
    pads = any("zeros" in step.title for step in solution.steps)  # times infinity are NaN
    runs = [(kind, rounding) for kind, rounding in _COMPARISON_RUNS if kind != "hostile" or not pads]
    for small in sizes:
        if (
            sum(_estimate_numpy_cost(op) for graph in (*small[0], *small[-1]) for op in iterate_all_ops(graph))
            > _MAX_COST
        ):
            last = None
            continue
        try:
            wanted = [
                _run_original_graph(small[0][0], kind, rounding, seed + at) for at, (kind, rounding) in enumerate(runs)
            ]
        except GraphError as error:  # these sizes do not fit each other
            last = error
            continue
        for (kind, rounding), (inputs, results) in zip(runs, wanted, strict=True):
            found = _run_changed_graphs(small, solution, inputs, rounding)
            words = _describe_omitted_outputs(solution, results.keys() - found.keys())
            words = words or _describe_output_difference(small[0][0], results, found, kind, rounding)
            if words:
                return Comparison("different", f"{words}, with {kind} data")
        return Comparison("same")
    raise last or _NotComparableError("the graph is too large for the interpreter")


def _run_original_graph(
    graph: Graph, kind: str, rounding: bool, seed: int
) -> tuple[ValuesByUid, Mapping[str, Numbers]]:
    try:
        inputs = make_inputs(graph, kind, seed)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:  # tensors may be anything
        raise _NotComparableError("random data cannot be made for the tensors of the graph") from error
    held = {graph.tensor(key).uid: np.asarray(value) for key, value in inputs.items()}
    return held, interpret(graph, inputs, rounding=rounding)


def _run_changed_graphs(
    states: list[GraphSequence], solution: ChangeSequence, inputs: ValuesByUid, rounding: bool
) -> dict[str, Numbers]:
    """Run the changed graphs; return their results by name, converted to the dims of the original graph."""
    held = inputs | {
        tensor.uid: np.full(tensor.dims, tensor.value)
        for tensor in states[0][0].tensors
        if tensor.by_value and tensor.value is not None
    }
    steps = list(zip(solution.steps, solution.members, states, states[1:], strict=False))
    for change, member, before, after in steps:
        held |= _convert_values(change, before[member], after, held, _convert_input_to_changed_layout)
    results: ValuesByUid = {}
    for graph in states[-1]:
        needed: dict[str | int, ArrayLike] = {
            tensor.uid: held[tensor.uid]
            for tensor in graph.variant_pack_tensors
            if tensor.uid in held
            and tensor.uid not in {one.uid for one in graph.outputs}
            and not (tensor.by_value and tensor.value is not None)
        }
        written = interpret(graph, needed, rounding=rounding)
        found = {tensor.uid: written[tensor.name] for tensor in graph.outputs}
        results |= found
        held |= found
    for change, member, before, after in reversed(steps):
        results |= _convert_values(change, before[member], after, results, _convert_output_to_original_layout)
    names = {tensor.uid: tensor.name for tensor in states[0][0].outputs}
    return {names[uid]: values for uid, values in results.items() if uid in names}


ValueConversion = Callable[[Change, Graph, Tensor, Tensor, Numbers], Numbers]


def _convert_values(
    change: Change, before: Graph, after: GraphSequence, held: ValuesByUid, move: ValueConversion
) -> ValuesByUid:
    """Convert with `move` the values of all tensors that are still in memory after a change."""
    moved: ValuesByUid = {}
    new = {tensor.uid: tensor for graph in after for tensor in graph.tensors}
    for old in before.tensors:
        other = new.get(old.uid)
        if other is not None and old.uid in held and not other.virtual:
            moved[old.uid] = move(change, before, old, other, held[old.uid])
    return moved


def _convert_input_to_changed_layout(
    change: Change, before: Graph, old: Tensor, new: Tensor, values: Numbers
) -> Numbers:
    """Convert the values of an input to the dims and layout of the changed graph."""
    if (start := _find_view_offset(change, before, old, new)) is not None:
        return _read_elements_through_view(old, new, values, start)
    if turned := _find_flipped_axes(change, before, old):
        return np.flip(values, turned)
    if _has_unchanged_layout(change, old, new):
        return values
    if math.prod(old.dims) == math.prod(new.dims):
        return values.reshape(new.dims)
    if len(old.dims) > len(new.dims) and "repeated in memory" in change.title:
        merged = len(old.dims) - len(new.dims) + 1  # leading axes that become one, with the dims of the results
        [whole, *_] = (tensor.dims[:merged] for op in before.ops for tensor in op.outputs().values())
        return np.broadcast_to(values, (*whole, *old.dims[merged:])).reshape(new.dims)
    if len(old.dims) != len(new.dims):
        raise _NotComparableError(
            f"values of {old.name} cannot be converted from dims {list(old.dims)} to {list(new.dims)}"
        )
    if "zeros between groups" in change.title:
        return _expand_grouped_convolution_filter(values, new)
    if "repeated in memory" in change.title:
        for axis, (one, other) in enumerate(zip(old.dims, new.dims, strict=True)):
            values = np.repeat(values, other // one, axis)
        return values
    if (sides := _find_explicit_padding(change, before, old)) is not None:
        return np.pad(values, sides)
    if old.name in change.tensors and "per group" in change.title and old.uid not in _find_filters(before):
        groups = _count_convolution_groups(before)
        wide = values.reshape(old.dims[0], groups, old.dims[1] // groups, *old.dims[2:])
        more = new.dims[1] // groups - wide.shape[2]
        return np.pad(wide, [(0, more if axis == 2 else 0) for axis in range(wide.ndim)]).reshape(new.dims)
    if any(one > other for one, other in zip(old.dims, new.dims, strict=True)):
        raise _NotComparableError(f"values of {old.name} cannot be cut from dims {list(old.dims)} to {list(new.dims)}")
    return np.pad(values, [(0, other - one) for one, other in zip(old.dims, new.dims, strict=True)])


def _convert_output_to_original_layout(
    change: Change, before: Graph, old: Tensor, new: Tensor, values: Numbers
) -> Numbers:
    """Convert the values of an output of the changed graph to those of the original graph."""
    if _find_view_offset(change, before, old, new) is not None:
        return _read_elements_through_view(new, old, values, 0)
    if turned := _find_flipped_axes(change, before, old):
        return np.flip(values, turned)
    if _has_unchanged_layout(change, old, new):
        return values
    if math.prod(old.dims) == math.prod(new.dims):
        return values.reshape(old.dims)
    if len(old.dims) != len(new.dims):
        raise _NotComparableError(
            f"values of {old.name} cannot be converted from dims {list(old.dims)} to {list(new.dims)}"
        )
    if "its gradient summed afterwards" in change.title:
        axes = tuple(axis for axis, (one, other) in enumerate(zip(old.dims, new.dims, strict=True)) if one != other)
        return np.asarray(values.sum(axes, keepdims=True))
    if (sides := _find_explicit_padding(change, before, old)) is not None:
        return values[tuple(slice(low, low + dim) for (low, _), dim in zip(sides, old.dims, strict=True))]
    if any(one > other for one, other in zip(old.dims, new.dims, strict=True)):
        raise _NotComparableError(f"values of {old.name} cannot be cut from dims {list(old.dims)} to {list(new.dims)}")
    return values[tuple(slice(dim) for dim in old.dims)]


# what the titles of changes say


def _has_unchanged_layout(change: Change, old: Tensor, new: Tensor) -> bool:
    """Return whether the values of a tensor stay the same; refuse ragged tensors with other dims or strides."""
    if old.ragged_offset is None and new.ragged_offset is None:
        return old.dims == new.dims
    if (old.dims, old.strides) == (new.dims, new.strides) or change.kind in ("unified", "composite"):
        return True
    raise _NotComparableError(f"values of the ragged tensor {old.name} cannot be converted to other dims or strides")


def _find_view_offset(change: Change, before: Graph, old: Tensor, new: Tensor) -> int | None:
    """Return the element offset at which the changed graph reads a tensor's memory as a view; None if it does not."""
    described = (old.dims, old.strides) != (new.dims, new.strides) and old.ragged_offset is None
    if change.kind in ("unified", "composite") and described and math.prod(old.dims) == math.prod(new.dims):
        return 0
    for op in before.ops if change.kind == "view" else ():
        found = find_equivalent_view(op) if isinstance(op, Operation) else None
        if found is not None and (found[0].uid, found[0].dims) == (new.uid, new.dims) and op not in change.graph.ops:
            return found[1]
    return None


def _read_elements_through_view(old: Tensor, new: Tensor, values: Numbers, start: int) -> Numbers:
    memory = np.zeros(old.span_elements, values.dtype)
    make_strided_view(memory, old.dims, old.strides)[...] = values
    return make_strided_view(memory[start:], new.dims, new.strides).copy()


def _find_flipped_axes(change: Change, before: Graph, old: Tensor) -> tuple[int, ...]:
    """Return the axes along which a change flips a filter."""
    if "the filter turned around" not in change.title or old.uid not in _find_filters(before):
        return ()
    return tuple(range(2, old.rank))


def _find_convolutions(graph: Graph) -> Iterator[Operation]:
    return (op for op in graph.ops if isinstance(op, Operation) and op.kind in CONVOLUTIONS)


def _find_filters(graph: Graph) -> set[int]:
    return {op.fields[CONVOLUTIONS[op.kind][1]].uid for op in _find_convolutions(graph)}


def _count_convolution_groups(graph: Graph) -> int:
    op = next(_find_convolutions(graph))
    image, weights, _ = (op.fields[port] for port in CONVOLUTIONS[op.kind])
    return int(image.dims[1] // weights.dims[1])


def _expand_grouped_convolution_filter(values: Numbers, new: Tensor) -> Numbers:
    """Convert the filter of a grouped convolution to that of an equal ungrouped one, with zeros between groups."""
    filters, depth = values.shape[:2]
    groups = new.dims[1] // depth
    wide = np.zeros(new.dims, values.dtype)
    for number in range(filters):
        first = number // (filters // groups) * depth
        wide[number, first : first + depth] = values[number]
    return wide


def _find_explicit_padding(change: Change, before: Graph, image: Tensor) -> list[tuple[int, int]] | None:
    for op in _find_convolutions(before) if change.kind == "explicit_padding" else ():
        if op.fields[CONVOLUTIONS[op.kind][0]].uid == image.uid:
            given = op.fields["convolution"].fields
            return [(0, 0), (0, 0), *zip(given["pre_paddings"], given["post_paddings"], strict=True)]
    return None


# smaller sizes


def _iterate_graphs_with_smaller_dims(states: list[GraphSequence]) -> Iterator[list[GraphSequence]]:
    """Yield versions of the graphs with large dims reduced, the cheapest first, and finally the graphs unchanged."""
    if (
        sum(_estimate_numpy_cost(op) for graph in (*states[0], *states[-1]) for op in iterate_all_ops(graph))
        <= _CHEAP_COST
    ):
        yield states
        return
    left = _find_large_dims_no_change_affects(states)
    spatial = {dim for graph in states[0] for op in graph.ops for dim in _iterate_spatial_dims(op)}
    for new in (_map_sizes_to_small_distinct_ones, _map_sizes_to_same_remainder_modulo_8):
        for sizes in (left, left - spatial) if left & spatial else (left,):
            made = _replace_sizes_in_graphs(states, new(sorted(sizes), states[0][0]))
            if made is not None:
                yield made
    yield states


def _find_large_dims_no_change_affects(states: list[GraphSequence]) -> set[int]:
    """Return the large dims that no change affects, so that they can be reduced."""
    dims: dict[int, set[tuple[int, ...]]] = {}
    for graph in itertools.chain.from_iterable(states):
        for tensor in graph.tensors:
            dims.setdefault(tensor.uid, set()).add(tensor.dims)
    same = {dim for found in dims.values() for one in found for dim in one if dim > _SMALL_SIZE}
    for found in dims.values():
        ranks = {len(one) for one in found}
        if len(ranks) > 1:
            same -= {dim for one in found for dim in one}
        elif len({tuple(sorted(one)) for one in found}) > 1:
            same -= {dim for column in zip(*found, strict=True) if len(set(column)) > 1 for dim in column}
    return same


_SMALL_SIZE = 8


def _iterate_spatial_dims(op: Op) -> Iterator[int]:
    if op.kind in CONVOLUTIONS or "resample" in op.parameters():
        for _, tensor in op.ports():
            yield from tensor.dims[2:]


def _map_sizes_to_small_distinct_ones(sizes: Sequence[int], graph: Graph) -> dict[int, int]:
    """Map each size to a smaller one, distinct and not used by the graph; no entry for a size if none is left."""
    used = {dim for tensor in graph.tensors for dim in tensor.dims}
    free = [size for size in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31) if size not in used]
    return {size: new for size, new in zip(sizes, free, strict=False) if new < size}


def _map_sizes_to_same_remainder_modulo_8(sizes: Sequence[int], _graph: Graph) -> dict[int, int]:
    """Return a size from 8 to 15 for each size, with the same remainder modulo 8."""
    return {size: _SMALL_SIZE + size % _SMALL_SIZE for size in sizes}


def _replace_sizes_in_graphs(states: list[GraphSequence], sizes: Mapping[int, int]) -> list[GraphSequence] | None:
    """Return the graphs with these sizes replaced in all dims; None without sizes or if a graph is invalid."""

    def resize_graph(graph: Graph) -> Graph:
        new = {}
        for tensor in graph.tensors:
            dims = tuple(sizes.get(dim, dim) for dim in tensor.dims)
            if dims != tensor.dims:
                new[tensor.uid] = make_packed_tensor(tensor, dims)
        return replace_tensors(graph, new) if new else graph

    try:
        return [tuple(map(resize_graph, state)) for state in states] if sizes else None
    except GraphError:
        return None


def _estimate_numpy_cost(op: Op) -> int:
    """Return the approximate number of multiply-adds or elements that an operation takes in NumPy."""
    ports = dict(op.ports())
    elements = max((math.prod(tensor.dims) for tensor in ports.values()), default=1)
    if isinstance(op, Matmul):
        return math.prod(op.c.dims) * op.a.dims[-1]
    if op.kind in CONVOLUTIONS:
        _, weights, response = (ports[port] for port in CONVOLUTIONS[op.kind])
        return math.prod(weights.dims) * math.prod(response.dims) // max(1, response.dims[1])
    if {"q", "k", "v"} <= ports.keys():
        q, k, v = (ports[port].dims for port in ("q", "k", "v"))
        return 4 * math.prod(q) * k[-2] + 4 * math.prod(q[:-1]) * math.prod(v[-2:])
    return 8 * elements


# comparing


_CHANGES_THAT_OMIT_OUTPUTS = (
    "drop_stats",
    "drop_bias",
)  # kinds of changes with titles that say that outputs are no longer written


def _describe_omitted_outputs(solution: ChangeSequence, missing: Collection[str]) -> str:
    """Name the outputs that the changed graph no longer writes; empty if none, or if a change is meant to omit them."""
    if not missing or any(step.kind in _CHANGES_THAT_OMIT_OUTPUTS for step in solution.steps):
        return ""
    return f"{', '.join(sorted(missing))} is not written any more"


def _describe_output_difference(
    graph: Graph, wanted: Mapping[str, Numbers], found: Mapping[str, Numbers], kind: str, rounding: bool
) -> str:
    """Describe the first output that differs, and by how much; empty if none does. Omitted outputs are ignored."""
    for tensor in graph.outputs:
        if tensor.name not in found:
            continue
        one, other = (np.asarray(side[tensor.name], np.float64) for side in (wanted, found))
        if one.shape != other.shape:
            return f"{tensor.name} has dims {one.shape} and {other.shape}"
        finite = np.isfinite(one) & np.isfinite(other)
        near = np.where(finite, one, 0.0)
        apart = np.abs(near - np.where(finite, other, 0.0))
        if rounding:  # which models how kernels store infinities in memory
            size, off = float(np.linalg.norm(near)), float(np.linalg.norm(apart))
            if off > _get_tolerance(graph) * size:
                return f"{tensor.name} differs by {off / max(size, 1e-300):.1e} of its size, rounded"
            continue
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return f"{tensor.name} is infinite or NaN in other places"
        cut = 1.0 if is_integer(tensor.data_type) and kind != "integers" else 0.0
        size, off = float(np.abs(near).max(initial=0.0)), float(apart.max(initial=0.0))
        if off > _FLOAT64_TOLERANCE * size + cut:
            return f"{tensor.name} differs by {off:.1e}, its largest number is {size:.1e}"
    return ""


def _get_tolerance(graph: Graph) -> float:
    """Return the allowed error of a rounded result, as a relative Frobenius norm."""
    given = [DATA_TYPES[tensor.data_type].tolerance for tensor in graph.tensors]
    return 4 * max((tolerance for tolerance in given if tolerance is not None), default=_DEFAULT_TOLERANCE)


_DEFAULT_TOLERANCE = 1e-6  # of types without a tolerance, such as double
