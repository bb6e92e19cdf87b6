"""Dims that must change together, and whether padding them with zeros keeps the results. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ..frozen import FrozenValue
from ..generated.enums import DescriptorType, PointwiseMode, ReduceTensorOp
from ..generated.operations import CONVOLUTIONS
from ..graph.ir import BLOCK_SCALES, Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ..graph.replace import iterate_all_ops, make_packed_tensor, replace_tensors, try_to_make_graph
from .relations import NORMS, Axis, AxisGroups, find_dim_relation

__all__ = ["EqualDims", "find_sets_of_equal_dims", "keeps_results_when_padded", "resize_dims"]

_D, _P, _R = DescriptorType, PointwiseMode, ReduceTensorOp


class EqualDims(FrozenValue):
    """Dims of equal size that must change together; ``fixed`` if an unknown relation to other dims forbids a change."""

    size: int
    axes: frozenset[Axis]
    fixed: bool

    def __contains__(self, axis: Axis) -> bool:
        return axis in self.axes


def find_sets_of_equal_dims(graph: Graph) -> dict[Axis, EqualDims]:
    """Return, by (uid, axis) of each dim in the graph, the class of dims that must change together with it."""
    tensors = {tensor.uid: tensor for tensor in graph.tensors}
    groups = AxisGroups(tensors.values())
    fixed: set[Axis] = set()
    for op in iterate_all_ops(graph):
        links = find_dim_relation(op).pair_equal_axes(tensors)
        if links is None:
            fixed |= {(t.uid, axis) for _, t in op.ports() for axis in range(t.rank)}
        for one, other in links or ():
            known = [axis for axis in (one, other) if axis in groups]
            if len({tensors[uid].dims[axis] for uid, axis in known}) == 1 and len(known) > 1:
                groups.merge(one, other)
            else:  # ranks or dims that contradict each other
                fixed |= {*known}
    fixed |= {(t.uid, a) for t in tensors.values() if t.ragged_offset or t.vector_count > 1 for a in range(t.rank)}
    return {
        axis: one
        for members in groups.list_axes_by_group().values()
        for one in (_make_equal_dims(set(members), tensors, fixed),)
        for axis in members
    }


def _make_equal_dims(members: set[Axis], tensors: dict[int, Tensor], fixed: set[Axis]) -> EqualDims:
    size = max(tensors[uid].dims[index] for uid, index in members)
    return EqualDims(size, frozenset(members), bool(members & fixed))


def resize_dims(graph: Graph, classes: Iterable[EqualDims], size: int) -> Graph | None:
    """Return the graph with the dims of these classes set to a size; None if impossible."""
    chosen = list(classes)
    if any(item.fixed for item in chosen):
        return None
    return try_to_make_graph(lambda: _replace_dims(graph, chosen, size))


def _replace_dims(graph: Graph, chosen: list[EqualDims], size: int) -> Graph | None:
    axes = {axis for item in chosen for axis in item.axes}
    new = {}
    for tensor in graph.tensors:
        dims = tuple(size if (tensor.uid, axis) in axes else dim for axis, dim in enumerate(tensor.dims))
        if dims != tensor.dims:
            new[tensor.uid] = make_packed_tensor(tensor, dims)
    for tensor, dims in _iterate_peer_stat_tensors(graph, new):
        new[tensor.uid] = make_packed_tensor(tensor, dims)
    return replace_tensors(graph, new) if new else None


def _iterate_peer_stat_tensors(graph: Graph, new: Mapping[int, Tensor]) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Yield each tensor through which GPUs exchange a norm's statistics, with dims for the new channel count."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in NORMS and op.fields["x"].uid in new:
            dims = op.fields["x"].dims
            if len(dims) < 2:
                continue
            old, channels = dims[1], new[op.fields["x"].uid].dims[1]
            for tensor in op.fields.get("peer_stat", ()):
                if tensor.rank > 1 and tensor.dims[1] % old == 0:
                    yield tensor, (tensor.dims[0], tensor.dims[1] // old * channels, *tensor.dims[2:])


# exactness

_ZERO, _FINITE, _ANY = "zero", "finite", "any"  # what is in the padded part of a tensor
_KEEPS_ZERO = {
    _P.ABS, _P.CEIL, _P.ELU_FWD, _P.ERF, _P.FLOOR, _P.GELU_APPROX_TANH_FWD, _P.GELU_FWD, _P.IDENTITY, _P.NEG,
    _P.RELU_FWD, _P.SIN, _P.SQRT, _P.SWISH_FWD, _P.TAN, _P.TANH_FWD,
}  # fmt: skip
_MAY_BREAK = {_P.LOG, _P.RECIPROCAL, _P.RSQRT, _P.POW, _P.MOD, _P.FLOOR_MOD, _P.SQRT, _P.TAN}
_KEEPS_SUM = {_R.ADD, _R.AMAX, _R.NORM1, _R.NORM2}


class _PaddingAffectsResultsError(Exception):
    """Raised if the padded part of a tensor affects the results."""


def keeps_results_when_padded(graph: Graph, classes: Iterable[EqualDims]) -> bool:
    """Return whether zero-padding the inputs leaves the unpadded part of the outputs unchanged.

    A sum over the padded dim must add zeros only; where a row is normalised over it, it is not exact. A sequence of
    keys may be padded if the graph gets the real lengths.
    """
    axes = {axis for item in classes for axis in item.axes}
    state: dict[int, str] = {}
    try:
        for op in graph.users({uid for uid, _ in axes}):
            _update_padding_content(op, axes, state)
    except _PaddingAffectsResultsError:
        return False
    return True


def _update_padding_content(op: Op, axes: set[Axis], state: dict[int, str]) -> None:
    def has_padded_axis(tensor: Tensor) -> bool:
        return any((tensor.uid, axis) in axes for axis in range(tensor.rank))

    if not any(has_padded_axis(tensor) for _, tensor in op.ports()):
        return
    states = {tensor.uid: state.get(tensor.uid, _ZERO) for tensor in op.inputs().values() if has_padded_axis(tensor)}
    found: str
    if isinstance(op, Matmul):
        found = _find_padding_content_of_matmul_result(op, axes, states)
    elif isinstance(op, Reduction):
        found = states.get(op.x.uid, _FINITE)
        for axis in range(op.x.rank):
            gone = (op.x.uid, axis) in axes and op.y.dims[axis] != op.x.dims[axis]
            if gone and not (op.operator in _KEEPS_SUM and found == _ZERO):
                raise _PaddingAffectsResultsError
    elif isinstance(op, Pointwise):
        found = _find_padding_content_of_pointwise_result(op, states)
    else:
        assert isinstance(op, Operation)
        found = _find_padding_content_of_operation_result(op, axes, states)
    for tensor in op.outputs().values():
        state[tensor.uid] = found


def _find_padding_content_of_matmul_result(op: Matmul, axes: set[Axis], states: dict[int, str]) -> str:
    a, b, last = op.a, op.b, op.a.rank - 1
    sides = [states.get(side.uid) for side in (a, b)]
    if (a.uid, last) in axes:
        masked = op.k_override is not None
        if not masked and (_ZERO not in sides or _ANY in sides):
            raise _PaddingAffectsResultsError
    if _ANY in sides:
        return _ANY
    rows, columns = (a.uid, last - 1) in axes, (b.uid, last) in axes
    zero = (not rows or sides[0] == _ZERO) and (not columns or sides[1] == _ZERO)
    return _ZERO if zero else _FINITE


def _find_padding_content_of_pointwise_result(op: Pointwise, states: dict[int, str]) -> str:
    given = list(states.values())
    if _ANY in given:
        return _ANY
    whole = len(states) == len({tensor.uid for tensor in op.inputs().values()})
    if op.mode is _P.MUL:
        return _ZERO if _ZERO in given else _FINITE
    if op.mode is _P.DIV:
        assert op.x is not None
        assert op.b is not None
        return _ANY if op.b.uid in states else states.get(op.x.uid, _FINITE)
    if op.mode.name.endswith("_BWD"):
        return _ZERO if op.dy is not None and states.get(op.dy.uid) == _ZERO else _FINITE
    if op.mode in (_P.ADD, _P.SUB, _P.MAX, _P.MIN, _P.ADD_SQUARE):
        return _ZERO if whole and set(given) == {_ZERO} else _FINITE
    if op.mode in _KEEPS_ZERO and given == [_ZERO]:
        return _ZERO
    if op.mode is _P.BINARY_SELECT and op.b is not None and op.b.by_value:
        return _ANY
    return _ANY if op.mode in _MAY_BREAK else _FINITE


def _find_padding_content_of_operation_result(op: Operation, axes: set[Axis], states: dict[int, str]) -> str:
    rule = _RULES.get(op.kind)
    return _ANY if rule is None else rule(op, axes, states)


def _find_padding_content_of_conv_result(op: Operation, axes: set[Axis], states: dict[int, str]) -> str:
    image, weights, response = (op.fields[port] for port in CONVOLUTIONS[op.kind])
    if _ANY in states.values():
        raise _PaddingAffectsResultsError
    if op.kind is _D.OPERATION_CONVOLUTION_BACKWARD_FILTER:
        read, summed = (image, response), None
    elif op.kind is _D.OPERATION_CONVOLUTION_FORWARD:
        read, summed = (image, weights), (weights.uid, 1)
    else:
        read, summed = (weights, response), (weights.uid, 0)
    sides = [states.get(tensor.uid) for tensor in read]
    if summed in axes and _ZERO not in sides:
        raise _PaddingAffectsResultsError
    return _ZERO if set(sides) <= {_ZERO, None} else _FINITE


def _find_padding_content_of_softmax_result(op: Operation, axes: set[Axis], states: dict[int, str]) -> str:
    if (op.fields["x"].uid, op.fields["x"].rank - 1) in axes:
        raise _PaddingAffectsResultsError
    return _FINITE


def _find_padding_content_of_attention_result(op: Operation, axes: set[Axis], states: dict[int, str]) -> str:
    if (op.fields["k"].uid, 2) in axes and "seq_len_kv" not in op.fields:
        raise _PaddingAffectsResultsError
    return _FINITE if (op.fields["q"].uid, 2) in axes else _ZERO


def _find_padding_content_of_norm_result(op: Operation, axes: set[Axis], states: dict[int, str]) -> str:
    if not all(axis == 1 for uid, axis in axes if uid == op.fields["x"].uid):
        raise _PaddingAffectsResultsError
    return _FINITE


def _find_padding_content_of_reshape_result(op: Operation, axes: set[Axis], states: dict[int, str]) -> str:
    return next(iter(states.values()), _FINITE)


# What is in the padded part of what an operation writes; any number for operations that are not here.
_RULES: dict[DescriptorType, Callable[[Operation, set[Axis], dict[int, str]], str]] = {
    **dict.fromkeys(CONVOLUTIONS, _find_padding_content_of_conv_result),
    _D.OPERATION_SOFTMAX: _find_padding_content_of_softmax_result,
    **dict.fromkeys((_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD), _find_padding_content_of_attention_result),
    **dict.fromkeys(NORMS, _find_padding_content_of_norm_result),
    **dict.fromkeys((_D.OPERATION_RESHAPE, *BLOCK_SCALES), _find_padding_content_of_reshape_result),
}
