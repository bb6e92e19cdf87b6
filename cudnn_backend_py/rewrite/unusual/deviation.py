"""`Deviation`: one unusual property of a graph, with the change that makes it usual."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...generated.enums import (
    DataType,
)
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import DATA_TYPES
from ...graph.ir import Graph, Matmul, Op, Operation, Parameters, Tensor
from ...graph.replace import find_tensors, repack, replace_tensors
from ...graph.strides import channels_last, packed_strides

__all__ = [
    "IMAGE",
    "Aspect",
    "Deviation",
    "at_operation",
    "differ",
    "in_memory",
    "key_of",
    "made_of",
    "map_operation",
    "multiplies_integers",
    "of_several",
    "order_word",
    "set_fields",
    "type_word",
    "with_fields",
    "with_fields_of",
    "wrong_dims",
]

_T = DataType


Aspect = Literal[
    "data type", "layout", "alignment", "order", "compute type", "parameter", "memory", "broadcast", "size", "operation"
]


@dataclass(frozen=True)
class Deviation:
    """One unusual property of a graph.

    Parameters
    ----------
    key
        Reports it from the others of the graph, and from those of the graph with others undone.
    aspect
        What it is about.
    what, usual
        As in a headline: "y has data type int64", and "float16".
    title
        What to do instead, as the title of a change.
    effect
        As of :class:`.changes.Change`.
    names
        Of tensors and operations that it is about.
    undo
        Returns a graph without it; None where that is no graph.
    """

    key: str
    aspect: Aspect
    what: str
    usual: str
    title: str
    effect: Literal["exact", "changes numerics", "idea"]
    names: tuple[str, ...]
    undo: Callable[[Graph], Graph | None]


def type_word(kind: DataType) -> str:
    return DATA_TYPES[kind].word or kind.name.lower()


def in_memory(graph: Graph) -> list[Tensor]:
    return [tensor for tensor in graph.tensors if not tensor.virtual and not tensor.by_value]


def with_fields(graph: Graph, uid: int, **fields: Any) -> Graph:
    """Return the graph with some fields of one tensor changed, where it has them."""
    return with_fields_of(graph, [uid], **fields)


def with_fields_of(graph: Graph, uids: Iterable[int], **fields: Any) -> Graph:
    """Return the graph with some fields of several tensors changed, where they have them."""
    new = {
        t.uid: replace(t, **{name: value(t) if callable(value) else value for name, value in fields.items()})
        for t in find_tensors(graph, uids)
    }
    return replace_tensors(graph, new) if new else graph


def of_several(
    tensors: list[Tensor], key: str, aspect: Aspect, old: str, new: str, effect: Any, **fields: Any
) -> Deviation:
    """Return the deviation shared by several tensors."""
    names = tuple(tensor.name for tensor in tensors)
    uids = [tensor.uid for tensor in tensors]
    told = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")

    what, title = f"{told} {'has' if len(names) == 1 else 'have'} {aspect} {old}", f"{told}: {aspect} {old} -> {new}"
    return Deviation(key, aspect, what, new, title, effect, names, lambda g: with_fields_of(g, uids, **fields))


def multiplies_integers(op: Op) -> bool:
    multiplies = isinstance(op, Matmul) or op.kind in CONVOLUTIONS
    return multiplies and all(tensor.data_type in (_T.INT8, _T.UINT8) for tensor in op.inputs().values())


IMAGE = 4  # dims from which on there are pixels


def order_word(tensor: Tensor) -> str:
    """Return the name of a tensor's axis order; empty if it has too few dims."""
    if sum(dim > 1 for dim in tensor.dims) < 2:
        return ""
    rows = not differ(tensor, packed_strides(tensor.dims))
    if tensor.rank < IMAGE:
        return "row-major" if rows else "other"
    last = not differ(tensor, channels_last(tensor.dims))
    if rows and last:
        return ""
    return "NCHW" if rows else "NHWC" if last else "other"


def differ(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    return any(dim > 1 and one != other for dim, one, other in zip(tensor.dims, tensor.strides, strides, strict=True))


def made_of(graph: Graph, kind: type[Op]) -> set[int]:
    """Return the results of operations of a kind, and their consumers, by uid."""
    reached: set[int] = set()
    for op in graph.ops:  # in an order in which nothing is read before it is written
        if isinstance(op, kind) or any(tensor.uid in reached for tensor in op.inputs().values()):
            reached |= {tensor.uid for tensor in op.outputs().values()}
    return reached


def wrong_dims(
    tensor: Tensor, dims: tuple[int, ...], why: str, effect: Any, strides: tuple[int, ...] | None = None
) -> Deviation:
    def resized(old: Tensor) -> Tensor:
        last = tensor.rank >= IMAGE and tensor.strides == channels_last(tensor.dims)
        packed = channels_last(dims) if last else repack(old, dims).strides
        return replace(old, dims=dims, strides=strides or packed)

    return Deviation(
        f"dims {tensor.uid}",
        "broadcast",
        f"dims of {tensor.name} {list(tensor.dims)}",
        f"{list(dims)}",
        f"{tensor.name}: dims {list(tensor.dims)} -> {list(dims)}, {why}",
        effect,
        (tensor.name,),
        lambda g: replace_tensors(g, {t.uid: resized(t) for t in find_tensors(g, [tensor.uid])}),
    )


def key_of(op: Op) -> int:
    """Return the key of an operation that is stable under changes of tensors: the tensors it writes."""
    return next((tensor.uid for tensor in op.outputs().values()), -1)


def map_operation(graph: Graph, key: int, change: Callable[[Any], Op]) -> Graph:
    return Graph(tuple(change(op) if key_of(op) == key else op for op in graph.ops), graph.name)


def at_operation(op: Op, change: Callable[[Any], Op]) -> Callable[[Graph], Graph]:
    """Return a function that changes this operation, whatever its tensors are by then."""
    key = key_of(op)
    return lambda graph: map_operation(graph, key, change)


def set_fields(op: Operation, inner: str, **fields: Any) -> Op:
    """Return the operation with other fields, its own or those of a named parameter."""
    if not inner:
        return Operation(op.type, op.name, {**op.fields, **fields})
    given = op.fields[inner]
    return Operation(op.type, op.name, {**op.fields, inner: Parameters(given.kind, {**given.fields, **fields})})
