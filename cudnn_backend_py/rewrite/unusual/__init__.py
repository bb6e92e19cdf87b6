"""Unusual properties of a graph, each with the change that makes it usual: types, strides, sizes, parameters.

Usual is what the other tensors of the graph are, and what kernels are written for: float32 inside, packed memory at
multiples of 16 bytes, a convolution without groups. Steps go together in any order: each finds its tensor by its uid
and its operation by what that writes, and leaves a graph without them as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...graph.ir import Graph
from ...graph.replace import try_to_make_graph
from .blocks import find_unusual_block_scales, find_unusual_tensor_reorderings
from .deviation import OTHER_RESULTS, Deviation, get_operation_key
from .layout import find_low_alignments, find_unusual_layouts
from .operations import find_operations_except_main_one, find_stored_intermediates
from .parameters import find_unusual_parameters
from .sizes import find_broadcast_operands, find_inconsistent_dims, find_unusual_norm_dims, find_unusual_sizes
from .types import find_unusual_compute_types, find_unusual_types, find_unusual_virtual_types

__all__ = [
    "OTHER_RESULTS",
    "Deviation",
    "find_operations_causing_unusual_properties",
    "find_unusual_properties",
    "undo_unusual_properties",
]


def find_unusual_properties(graph: Graph) -> list[Deviation]:
    """Return the unusual properties of a graph without attention; those likeliest to be refused come first."""
    found: dict[str, Deviation] = {}
    for look in _LOOKS:
        for one in look(graph):
            found.setdefault(one.key, one)
    return list(found.values())


def find_operations_causing_unusual_properties(graph: Graph, found: list[Deviation]) -> dict[str, set[str]]:
    """Return, by the key of each unusual property, the operations without which it cannot occur."""
    extra = {get_operation_key(op): f"operation {get_operation_key(op)}" for op in graph.ops}
    known = {one.key for one in found}
    needs: dict[str, set[str]] = {}
    for one in found:
        word, _, place = one.key.rpartition(" ")
        if one.aspect == "operation" or not place.isdigit():
            continue
        touching = {extra[get_operation_key(op)] for op in graph.ops if int(place) in {t.uid for _, t in op.ports()}}
        if (
            one.names[0] in {op.name for op in graph.ops if get_operation_key(op) == int(place)}
            and word not in _OF_TENSORS
        ):
            needs[one.key] = {extra[int(place)]} & known
        elif word == "memory" or touching <= known:
            needs[one.key] = touching & known
    return needs


_OF_TENSORS = ("type", "strides", "order", "alignment", "dims", "memory", "blocks")


def undo_unusual_properties(graph: Graph, chosen: list[Deviation]) -> Graph | None:
    """Return the graph with these unusual properties made usual; None if it would be invalid or empty."""
    for one in chosen:
        changed = try_to_make_graph(lambda one=one, graph=graph: one.undo(graph))  # type: ignore[misc]
        if changed is None:
            return None
        graph = changed
    return graph


_LOOKS: tuple[Callable[[Graph], Iterator[Deviation]], ...] = (
    find_unusual_norm_dims,
    find_inconsistent_dims,
    find_unusual_types,
    find_unusual_parameters,
    find_unusual_compute_types,
    find_unusual_block_scales,
    find_unusual_virtual_types,
    find_unusual_layouts,
    find_unusual_tensor_reorderings,
    find_low_alignments,
    find_broadcast_operands,  # with the dims of now: before sizes, which change these
    find_unusual_sizes,
    find_stored_intermediates,
    find_operations_except_main_one,
)
