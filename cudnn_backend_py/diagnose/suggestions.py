"""Judge the remedies that rules suggest; a remedy that does not change the graph stays a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..generated.enums import HeurMode
from ..graph import Graph
from ..graph.replace import replace_tensors, try_to_make_graph
from ..target import Target
from .causes.case import is_supported, try_build
from .fork import run_in_fork
from .verdict import NEWER_THAN_LIBRARY_SUFFIX, Cause, RemedyCheck

__all__ = ["judge_remedy"]


def judge_remedy(
    cause: Cause, graph: Graph, target: Target, modes: Sequence[HeurMode], *, build: bool, measure: bool
) -> Cause:
    """Judge the graph changed as a cause's remedy says; drop the remedy if cuDNN refuses that graph too.

    One question, and with `build` one plan, in a forked process; none without `measure`. A remedy that names a newer
    version is worded so that it names none: who has several installed asks them. Others are returned as they are.
    """
    if cause.asked != "not asked":
        return cause
    if cause.code.endswith(NEWER_THAN_LIBRARY_SUFFIX):
        return replace(cause, remedy="use a newer cuDNN (--cudnn); it may refuse the graph for other reasons")
    depth: RemedyCheck = "built" if build else "support check"
    if cause.remedy.startswith("judge for sm_"):  # those were queried when they were looked for
        return replace(cause, asked=depth)
    change = _SUGGESTED_CHANGES.get(cause.remedy)
    if change is None or target.is_live or not measure:
        return cause
    changed = try_to_make_graph(lambda: change(graph))
    if changed is None:
        return replace(cause, remedy="", asked="")
    names = [mode.name for mode in modes]

    def run_query() -> bool:
        return try_build(changed, target, names).found if build else is_supported(changed, target, names)

    helps = run_in_fork(run_query, lambda: False, what="the remedy")
    return replace(cause, asked=depth) if helps else replace(cause, remedy="", asked="")


def _lengthen_ragged_offsets(graph: Graph) -> Graph:
    """Return the graph with ragged offsets of one entry more than the number of sequences."""
    owners = [tensor for tensor in graph.tensors if tensor.ragged_offset is not None]
    offsets = {tensor.ragged_offset.uid: tensor for tensor in owners if tensor.ragged_offset is not None}
    return replace_tensors(
        graph,
        {
            tensor.uid: replace(tensor, dims=(offsets[tensor.uid].dims[0] + 1, *tensor.dims[1:]))
            for tensor in graph.tensors
            if tensor.uid in offsets
        },
    )


_SUGGESTED_CHANGES: dict[str, Callable[[Graph], Graph]] = {
    "one offset more than there are sequences": _lengthen_ragged_offsets
}
