"""Changes of one unusual property of a graph other than attention to the usual value."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.ir import Graph, Matmul
from ..unusual import deviations
from .change import ATTENTION, Change, offer, register


@register("usual")
def _usual(graph: Graph) -> Iterator[Change]:
    """Change one property to the usual: a type, strides, a size, a parameter, or one operation fewer."""
    if sum(isinstance(op, Matmul) for op in graph.ops) > 1 or any(op.kind in ATTENTION for op in graph.ops):
        return
    names = {tensor.name for tensor in graph.tensors}
    for one in deviations(graph):
        if one.aspect in _OF_THEIR_OWN or one.key == "strides of all":
            continue
        tensors = [graph.tensor(name) for name in one.names if name in names]
        yield from offer("usual", one.title, one.effect, tensors, lambda one=one: one.undo(graph))  # type: ignore[misc]


_OF_THEIR_OWN = ("operation", "alignment", "memory")  # kinds of changes
