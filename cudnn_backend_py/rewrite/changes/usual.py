"""Changes that replace one unusual property of a graph without attention by the usual one."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.ir import Graph, Matmul
from ..unusual import find_unusual_properties
from .change import ATTENTION, Change, register_change_maker, yield_change


@register_change_maker("usual")
def _correct_unusual_property(graph: Graph) -> Iterator[Change]:
    """Yield the graph with one unusual property made usual: type, strides, size, parameter, broadcast."""
    if sum(isinstance(op, Matmul) for op in graph.ops) > 1 or any(op.kind in ATTENTION for op in graph.ops):
        return
    names = {tensor.name for tensor in graph.tensors}
    for one in find_unusual_properties(graph):
        if one.aspect in _OF_THEIR_OWN or one.key == "strides of all":
            continue
        tensors = [graph.tensor(name) for name in one.names if name in names]
        yield from yield_change("usual", one.title, one.effect, tensors, lambda one=one: one.undo(graph))  # type: ignore[misc]


_OF_THEIR_OWN = ("operation", "alignment", "memory")  # kinds of changes
