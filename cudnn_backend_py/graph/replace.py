"""Pure functions that rewrite graphs without cuDNN: replace tensors, remove operations."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import GraphError
from .ir import Graph, Op, Operation, Tensor
from .strides import make_strides_in_order

__all__ = [
    "bypass_ops",
    "can_bypass_op",
    "drop_operation_fields",
    "find_tensors",
    "iterate_all_ops",
    "iterate_unused_uids",
    "keep_only_ops",
    "make_packed_tensor",
    "replace_tensors",
    "replace_tensors_in_ops",
    "try_to_make_graph",
]

_T = TypeVar("_T")


def try_to_make_graph(make: Callable[[], _T | None]) -> _T | None:
    """Return the result of a function that makes a graph; None if the graph would be invalid."""
    try:
        return make()
    except GraphError:
        return None


def iterate_all_ops(graph: Graph) -> Iterator[Op]:
    """Yield every operation of a graph, including those in sub-graphs and in parameters."""
    for op in graph.ops:
        yield op
        for value in op.parameters().values():
            if isinstance(value, Op):
                yield value
        for inner in op.subgraphs():
            yield from iterate_all_ops(inner)


def find_tensors(graph: Graph, uids: Iterable[int]) -> list[Tensor]:
    """Return the tensors of a graph with these uids, in graph order."""
    return sorted((graph.tensor(uid) for uid in set(uids) if uid in graph.uses), key=graph.get_tensor_index)


def iterate_unused_uids(graph: Graph) -> Iterator[int]:
    """Yield the uids that the graph does not use, in ascending order."""
    used = {tensor.uid for tensor in graph.tensors}
    return (uid for uid in itertools.count(1) if uid not in used)


def replace_tensors(graph: Graph, new: Mapping[int, Tensor]) -> Graph:
    """Return the graph with tensors replaced by those of `new`, which has uids as keys, wherever it is used.

    Raises
    ------
    GraphError
        What the new tensors have wrong in their places.
    """

    return _map_graph_tensors(graph, _make_tensor_replacer(new))


def replace_tensors_in_ops(ops: tuple[Op, ...], new: Mapping[int, Tensor]) -> tuple[Op, ...]:
    """Return the operations with tensors replaced by those of `new`, which has uids as keys."""
    changed: tuple[Op, ...] = _map_tensors(ops, _make_tensor_replacer(new))
    return changed


def _make_tensor_replacer(new: Mapping[int, Tensor]) -> Callable[[Tensor], Tensor]:
    def swap_tensor(tensor: Tensor) -> Tensor:
        tensor = new.get(tensor.uid, tensor)
        offset = tensor.ragged_offset
        if offset is not None and offset.uid in new:
            tensor = dataclasses.replace(tensor, ragged_offset=new[offset.uid])
        return tensor

    return swap_tensor


def _map_graph_tensors(graph: Graph, swap_tensor: Callable[[Tensor], Tensor]) -> Graph:
    ops = _map_tensors(graph.ops, swap_tensor)
    return graph if ops is graph.ops else Graph(ops, graph.name, graph.is_subgraph)


def _map_tensors(value: Any, swap_tensor: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return swap_tensor(value)
    if isinstance(value, tuple):
        items = tuple(_map_tensors(item, swap_tensor) for item in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if isinstance(value, Graph):
        return _map_graph_tensors(value, swap_tensor)
    if isinstance(value, Operation):
        fields = {key: _map_tensors(item, swap_tensor) for key, item in value.fields.items()}
        same = all(fields[key] is item for key, item in value.fields.items())
        return value if same else Operation(value.type, value.name, fields)
    if isinstance(value, Op):
        changed = {port: swap_tensor(tensor) for port, tensor in value.ports()}
        if all(changed[port] is tensor for port, tensor in value.ports()):
            return value
        return dataclasses.replace(value, **changed)  # type: ignore[type-var]
    return value


def make_packed_tensor(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the tensor with other dims, packed, with its axes in the same memory order."""
    order = sorted(range(tensor.rank), key=lambda axis: (tensor.strides[axis], -axis))
    return dataclasses.replace(tensor, dims=dims, strides=make_strides_in_order(dims, order))


def keep_only_ops(graph: Graph, ops: Iterable[Op], needed: Collection[int] = ()) -> Graph:
    """Return a graph of these operations, except those with unused results; uids in `needed` count as used."""
    left = list(ops)
    wanted = {y.uid for op in graph.ops for y in op.outputs().values()} - _find_read_uids(graph.ops) | set(needed)
    reads = [[tensor.uid for tensor in _iterate_read_tensors(op)] for op in left]
    readers = Counter(itertools.chain.from_iterable(reads))
    writers = {y.uid: place for place, op in enumerate(left) for y in op.outputs().values()}
    gone: set[int] = set()
    waiting = list(range(len(left)))
    while waiting:
        place = waiting.pop()
        results = left[place].outputs().values()
        if place in gone or any(not y.virtual or y.uid in wanted or readers[y.uid] for y in results):
            continue
        gone.add(place)
        readers.subtract(reads[place])
        waiting += [writers[uid] for uid in reads[place] if uid in writers]
    return Graph(tuple(op for place, op in enumerate(left) if place not in gone), graph.name, graph.is_subgraph)


def _find_read_uids(ops: Iterable[Op]) -> set[int]:
    return {tensor.uid for op in ops for tensor in _iterate_read_tensors(op)}


def _iterate_read_tensors(op: Op) -> Iterator[Tensor]:
    yield from op.inputs().values()
    for graph in op.subgraphs():
        for inner in graph.ops:
            yield from _iterate_read_tensors(inner)


def bypass_ops(graph: Graph, leave: Mapping[int, Tensor]) -> Graph | None:
    """Return the graph without these operations, each replaced by one of its inputs; None if that is impossible.

    Parameters
    ----------
    leave
        By ``id`` of the operation (names may occur twice), the input that is passed on instead of its result; of the
        same dims.
    """
    return try_to_make_graph(lambda: _try_to_bypass_ops(graph, leave))


def _try_to_bypass_ops(graph: Graph, leave: Mapping[int, Tensor]) -> Graph | None:
    kept = _remove_ops_and_reconnect_readers(graph.ops, leave)
    return keep_only_ops(graph, kept) if kept else None


def _remove_ops_and_reconnect_readers(given: Sequence[Op], leave: Mapping[int, Tensor]) -> list[Op] | None:
    """Remove the operations in `leave`; readers of their results read the mapped input instead. None if impossible."""
    instead: dict[int, Tensor] = {}  # by uid

    def resolve_tensor(tensor: Tensor) -> Tensor:
        path = []
        while tensor.uid in instead:
            path.append(tensor.uid)
            tensor = instead[tensor.uid]
        instead.update(dict.fromkeys(path, tensor))
        return tensor

    for op in given:
        if id(op) not in leave:
            continue
        passed = next(tensor for tensor in op.inputs().values() if tensor.uid == leave[id(op)].uid)
        now, result = resolve_tensor(passed), resolve_tensor(next(iter(op.outputs().values())))
        if not _can_replace_tensor(now, result):
            return None
        if result.uid != now.uid:
            old, new = (result, now) if result.virtual else (now, result)
            instead[old.uid] = new
    ops = (_bypass_op_in_subgraph(op, leave) for op in given if id(op) not in leave)
    return [_map_tensors(op, resolve_tensor) for op in ops]


def can_bypass_op(graph: Graph, op: Op, passed: Tensor) -> bool:
    """Return whether :func:`bypass_ops` can replace an operation by its input `passed`, without building the graph."""
    result = next(iter(op.outputs().values()))
    return len(graph.ops) > 1 and _can_replace_tensor(passed, result)


def _can_replace_tensor(now: Tensor, result: Tensor) -> bool:
    """Return whether one tensor can replace the other: equal dims, and not both in memory."""
    return result.dims == now.dims and (result.virtual or now.virtual)


def _replace_tensor(ops: Iterable[Op], old: Tensor, new: Tensor) -> list[Op]:
    return [_map_tensors(op, lambda tensor: new if tensor.uid == old.uid else tensor) for op in ops]


def _bypass_op_in_subgraph(op: Op, leave: Mapping[int, Tensor]) -> Op:
    inner = op.fields.get("subgraph") if isinstance(op, Operation) else None
    if not isinstance(op, Operation) or not isinstance(inner, Graph) or not any(id(o) in leave for o in inner.ops):
        return op
    if "subgraph_input_uid" not in op.fields or "subgraph_output_uid" not in op.fields:
        return op
    fields: dict[str, Any] = dict(op.fields)
    output = int(fields["subgraph_output_uid"])
    ops = list(inner.ops)
    for index, gone in enumerate(inner.ops):
        if id(gone) not in leave:
            continue
        passed, result = leave[id(gone)], next(iter(gone.outputs().values()))
        port = next(port for port, tensor in gone.inputs().items() if tensor.uid == passed.uid)
        passed = ops[index].inputs()[port]
        ops = _replace_tensor(ops, result, passed)
        output = passed.uid if output == result.uid else output
    ops = [one for one, before in zip(ops, inner.ops, strict=True) if id(before) not in leave]
    if not ops or output == fields["subgraph_input_uid"]:
        return drop_operation_fields(op, ("subgraph", "subgraph_input_uid", "subgraph_output_uid"))
    fields |= {"subgraph": keep_only_ops(inner, ops, {output}), "subgraph_output_uid": output}
    return Operation(op.type, op.name, fields)


def drop_operation_fields(op: Operation, names: Collection[str]) -> Operation:
    """Return the operation without the fields of these names."""
    return Operation(op.type, op.name, {key: value for key, value in op.fields.items() if key not in names})
