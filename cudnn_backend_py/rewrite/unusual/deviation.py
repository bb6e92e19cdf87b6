"""`Deviation`: one unusual property of a graph, with the change that makes it usual."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from ...frozen import FrozenValue
from ...generated.enums import DataType, PointwiseMode
from ...generated.operations import CONVOLUTIONS
from ...graph.ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Tensor
from ...graph.replace import find_tensors, make_packed_tensor, replace_tensors
from ...graph.strides import channels_last, packed_strides

__all__ = [
    "IMAGE",
    "Aspect",
    "Deviation",
    "find_axis_order_name",
    "find_tensors_computed_from_operation_kind",
    "find_tensors_in_memory",
    "get_operation_key",
    "has_layout_unlike_strides",
    "is_integer_product",
    "is_logical_operation",
    "make_graph_change_of_operation",
    "make_unusual_dims_property",
    "make_unusual_property_of_tensors",
    "replace_operation_by_key",
    "set_fields",
    "set_fields_of_tensors",
    "set_tensor_fields",
]

_T = DataType


Aspect = Literal[
    "data type", "layout", "alignment", "order", "compute type", "parameter", "memory", "broadcast", "size", "operation"
]


class Deviation(FrozenValue):
    """One unusual property of a graph, and how to undo it.

    Parameters
    ----------
    key
        Distinguishes it from other deviations of the graph, also after some of them were undone.
    aspect
        Which aspect of the graph it concerns.
    what, usual
        As in a headline: "y has data type int64", and "float16".
    title
        What to do instead, as the title of a change.
    effect
        As of :class:`.changes.Change`.
    names
        Of tensors and operations that it is about.
    undo
        Returns a graph without it; None if that graph would be invalid.
    """

    key: str
    aspect: Aspect
    what: str
    usual: str
    title: str
    effect: Literal["exact", "changes numerics", "idea"]
    names: tuple[str, ...]
    undo: Callable[[Graph], Graph | None]

    def describe_needed_value(self) -> str:
        """Return the property and the usual value, such as ``y has data type int64, float16 is needed``."""
        if self.aspect == "broadcast":  # other dims than the full ones may be supported, too
            return f"{self.what} are not supported, {self.usual} are"
        if self.aspect == "alignment":  # so may be others, and the engine may need that of another tensor
            return f"{self.what}, {self.usual} is supported"
        return f"{self.what}, {self.usual} is needed"

    def format_change_that_undoes_it(self) -> str:
        """Return the text of the change that undoes the deviation, with its effect if the results differ."""
        return self.title if self.effect == "exact" else f"{self.title} ({self.effect})"


def find_tensors_in_memory(graph: Graph) -> list[Tensor]:
    return [tensor for tensor in graph.tensors if not tensor.virtual and not tensor.by_value]


def set_tensor_fields(graph: Graph, uid: int, **fields: Any) -> Graph:
    """Return the graph with fields of one tensor changed; unchanged if the tensor is not in it."""
    return set_fields_of_tensors(graph, [uid], **fields)


def set_fields_of_tensors(graph: Graph, uids: Iterable[int], **fields: Any) -> Graph:
    """Return the graph with fields of several tensors changed; tensors not in the graph are ignored."""
    new = {
        t.uid: replace(t, **{name: value(t) if callable(value) else value for name, value in fields.items()})
        for t in find_tensors(graph, uids)
    }
    return replace_tensors(graph, new) if new else graph


def make_unusual_property_of_tensors(
    tensors: list[Tensor], key: str, aspect: Aspect, old: str, new: str, effect: Any, **fields: Any
) -> Deviation:
    """Return one :class:`Deviation` for several tensors with the same unusual property."""
    names = tuple(tensor.name for tensor in tensors)
    uids = [tensor.uid for tensor in tensors]
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")

    what, title = f"{shown} {'has' if len(names) == 1 else 'have'} {aspect} {old}", f"{shown}: {aspect} {old} -> {new}"
    return Deviation(key, aspect, what, new, title, effect, names, lambda g: set_fields_of_tensors(g, uids, **fields))


def is_integer_product(op: Op) -> bool:
    multiplies = isinstance(op, Matmul) or op.kind in CONVOLUTIONS
    return multiplies and all(tensor.data_type in (_T.INT8, _T.UINT8) for tensor in op.inputs().values())


def is_logical_operation(op: Op) -> bool:
    """Return whether an operation compares, combines booleans, or generates an index."""
    generates = isinstance(op, Pointwise) and op.mode is PointwiseMode.GEN_INDEX
    return generates or (isinstance(op, Pointwise) and op.mode.name.startswith(("CMP_", "LOGICAL_")))


#: What titles say of a replacement or removal after which the results are others, so that it is hardly a remedy.
OTHER_RESULTS = "which computes something else"
IMAGE = 4  # dims from which on there are pixels


def find_axis_order_name(tensor: Tensor) -> str:
    """Return the name of a tensor's axis order, such as NHWC; empty if its dims allow several orders."""
    if sum(dim > 1 for dim in tensor.dims) < 2:
        return ""
    rows = not has_layout_unlike_strides(tensor, packed_strides(tensor.dims))
    if tensor.rank < IMAGE:
        return "row-major" if rows else "other"
    last = not has_layout_unlike_strides(tensor, channels_last(tensor.dims))
    if rows and last:
        return ""
    return "NCHW" if rows else "NHWC" if last else "other"


def has_layout_unlike_strides(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Return whether strides describe a different layout than the tensor's own, ignoring dims of size 1."""
    return any(dim > 1 and one != other for dim, one, other in zip(tensor.dims, tensor.strides, strides, strict=True))


def find_tensors_computed_from_operation_kind(graph: Graph, kind: type[Op]) -> set[int]:
    """Return the uids of tensors that operations of a kind write, or that are computed from these."""
    reached: set[int] = set()
    for op in graph.ops:  # in an order in which nothing is read before it is written
        if isinstance(op, kind) or any(tensor.uid in reached for tensor in op.inputs().values()):
            reached |= {tensor.uid for tensor in op.outputs().values()}
    return reached


def make_unusual_dims_property(
    tensor: Tensor, dims: tuple[int, ...], why: str, effect: Any, strides: tuple[int, ...] | None = None
) -> Deviation:
    last = tensor.rank >= IMAGE and tensor.strides == channels_last(tensor.dims)
    new = strides or (channels_last(dims) if last else make_packed_tensor(tensor, dims).strides)
    order = "" if new == packed_strides(dims) else f" with strides {list(new)}"

    return Deviation(
        f"dims {tensor.uid}",
        "broadcast",
        f"dims of {tensor.name} {list(tensor.dims)}",
        f"{list(dims)}",
        f"{tensor.name}: dims {list(tensor.dims)} -> {list(dims)}{order}, {why}",
        effect,
        (tensor.name,),
        lambda g: set_tensor_fields(g, tensor.uid, dims=dims, strides=new),
    )


def get_operation_key(op: Op) -> int:
    """Return the key of an operation: the uid of its first result, which stays the same when tensors change."""
    return next((tensor.uid for tensor in op.outputs().values()), -1)


def replace_operation_by_key(graph: Graph, key: int, change: Callable[[Any], Op]) -> Graph:
    return Graph(tuple(change(op) if get_operation_key(op) == key else op for op in graph.ops), graph.name)


def make_graph_change_of_operation(op: Op, change: Callable[[Any], Op]) -> Callable[[Graph], Graph]:
    """Return a function that changes this operation in a graph, found by its key."""
    key = get_operation_key(op)
    return lambda graph: replace_operation_by_key(graph, key, change)


def set_fields(op: Operation, inner: str, **fields: Any) -> Op:
    """Return the operation with fields set: its own, or those of its nested parameters named `inner`."""
    if not inner:
        return Operation(op.type, op.name, {**op.fields, **fields})
    given = op.fields[inner]
    return Operation(op.type, op.name, {**op.fields, inner: Parameters(given.kind, {**given.fields, **fields})})
