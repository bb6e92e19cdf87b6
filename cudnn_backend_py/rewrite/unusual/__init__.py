"""Unusual properties of a graph, each with the change that makes it usual: types, strides, sizes, parameters.

Usual is what the other tensors of the graph are, and what kernels are written for: float32 inside, packed memory at
multiples of 16 bytes, a convolution without groups. Steps go together in any order: each finds its tensor by its uid
and its operation by what that writes, and leaves a graph without them as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...graph.ir import Graph
from ...graph.replace import attempt
from .blocks import odd_orders, odd_scales
from .deviation import Deviation, key_of
from .layout import low_alignments, odd_layouts
from .operations import extra_operations, kept_between
from .parameters import odd_parameters
from .sizes import broadcasts, dims_that_follow, norm_dims, odd_sizes
from .types import odd_computing, odd_types, virtual_types

__all__ = ["Deviation", "deviations", "find_needs", "undo"]


def deviations(graph: Graph) -> list[Deviation]:
    """Return unusual properties of a graph that is not attention, the likeliest to be refused first."""
    found: dict[str, Deviation] = {}
    for look in _LOOKS:
        for one in look(graph):
            found.setdefault(one.key, one)
    return list(found.values())


def find_needs(graph: Graph, found: list[Deviation]) -> dict[str, set[str]]:
    """Return, by key of a deviation, the operations that must be present for it."""
    extra = {key_of(op): f"operation {key_of(op)}" for op in graph.ops}
    known = {one.key for one in found}
    needs: dict[str, set[str]] = {}
    for one in found:
        word, _, place = one.key.rpartition(" ")
        if one.aspect == "operation" or not place.isdigit():
            continue
        touching = {extra[key_of(op)] for op in graph.ops if int(place) in {t.uid for _, t in op.ports()}}
        if one.names[0] in {op.name for op in graph.ops if key_of(op) == int(place)} and word not in _OF_TENSORS:
            needs[one.key] = {extra[int(place)]} & known
        elif word == "memory" or touching <= known:
            needs[one.key] = touching & known
    return needs


_OF_TENSORS = ("type", "strides", "order", "alignment", "dims", "memory", "blocks")


def undo(graph: Graph, chosen: list[Deviation]) -> Graph | None:
    """Return the graph without these deviations; None if it is invalid or empty."""
    for one in chosen:
        changed = attempt(lambda one=one, graph=graph: one.undo(graph))  # type: ignore[misc]
        if changed is None:
            return None
        graph = changed
    return graph


_LOOKS: tuple[Callable[[Graph], Iterator[Deviation]], ...] = (
    norm_dims,
    dims_that_follow,
    odd_types,
    odd_parameters,
    odd_computing,
    odd_scales,
    virtual_types,
    odd_layouts,
    odd_orders,
    low_alignments,
    odd_sizes,
    kept_between,
    broadcasts,
    extra_operations,
)
