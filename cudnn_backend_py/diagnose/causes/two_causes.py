"""Graphs with two causes, of which cuDNN gives one: a change clears its reasons, and cuDNN then gives others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ...graph import Graph
from ...graph.data_types import get_data_type_word
from ...rewrite.changes import Change, iterate_changes
from ..engines import find_missing_engine_libraries
from ..verdict import Basis, Cause
from .case import RefusalCase, describe_found_and_needed_values, is_known_to_fail_building

__all__ = ["blame_change_and_other_cause"]

# Forms, sizes and types of tensors: what cuDNN checks first hides what it would check next.
_FIRST_CHANGE_KINDS = ("flatten", "alignment", "dims", "layout", "data_type")
_MAX_FIRST_CHANGES = 16  # that are judged: some 10 ms each
_MAX_REMEDIES = 2  # of the other cause
_CODES = {"flatten": "shape", "dims": "shape", "data_type": "data-type"}


def blame_change_and_other_cause(case: RefusalCase, find: Callable[[RefusalCase], Cause | None]) -> Cause | None:
    """If a change clears the reasons of an engine, return it as a cause, with the cause why the graph is still refused.

    Problem
        A graph with two causes, each of which is enough, such as tensors of 4 dims and a type that this architecture
        lacks; or strides with which cuDNN refuses an operation before it queries any engine.
    Evidence
        With the change cuDNN gives none of an engine's reasons again, but others, for which `find` searches the cause.
    Remedy
        That change, and the remedy of the other cause.
    Since
        Any version.
    """
    judged: list[Graph] = []
    for change in iterate_changes(case.graph, _FIRST_CHANGE_KINDS) if case.may_have_second_cause else ():
        if len(change.graphs) != 1 or change.graph in judged:
            continue
        if len(judged) == _MAX_FIRST_CHANGES:
            break
        judged.append(change.graph)
        if is_known_to_fail_building(change.graph, case.target) and (cause := _add_change_that_builds(case, change)):
            return cause
        rest = case.judge_changed_graph(change.graph)
        other = find(rest) if rest is not None and case.has_engine_with_other_reasons(rest) else None
        if rest is None or other is None or _is_new_type_named(case.graph, change.graph, other.headline):
            continue
        accepted = case.is_operation_graph_refused and not rest.is_operation_graph_refused
        if other.basis is not Basis.MEASURED and not accepted:  # cuDNN may only check in another order
            continue
        headline = describe_found_and_needed_values(case.graph, change)
        if other.basis is Basis.GUESS and find_missing_engine_libraries(change.graph, case.target):
            headline += "; whether it is supported then, this wheel cannot judge: it lacks engines of the full wheel"
        elif other.basis is Basis.GUESS:
            headline += f", which alone does not help: {other.headline.removeprefix('no cause found; ')}"
        else:
            headline += f"; and also {other.headline}"
        step = change.advice
        remedies = [f"{step}; and {one}" for one in other.remedy.split("; or ")[:_MAX_REMEDIES] if one]
        check = other.asked or (case.remedy_check if other.basis is Basis.MEASURED else "not asked")
        detail = "with this changed, cuDNN refuses the graph for the other cause, and no more for its first reasons"
        code = _CODES.get(change.kind, change.kind)
        return Cause(code, headline, Basis.MEASURED, detail, "; or ".join(remedies), check)
    return None


def _add_change_that_builds(case: RefusalCase, change: Change) -> Cause | None:
    """Return the cause of a graph that passes its support check after a change, and builds after one more."""
    if not case.has_supported_config(change.graph):
        return None
    rest = dataclasses.replace(case, graph=change.graph, is_changed=True, unusual=None)
    second = rest.find_remedy(*_FIRST_CHANGE_KINDS)
    if second is None:
        return None
    said = (describe_found_and_needed_values(*one) for one in ((case.graph, change), (change.graph, second)))
    detail = "with the first change the support check passes, and no plan builds; with both it builds"
    code = _CODES.get(change.kind, change.kind)
    remedy = f"{change.advice}; and {second.advice}"
    return Cause(code, "; and also ".join(said), Basis.MEASURED, detail, remedy, case.remedy_check)


def _is_new_type_named(graph: Graph, changed: Graph, headline: str) -> bool:
    """Return whether a headline names a data type that a change introduced: it is then no cause of the graph itself."""
    old = {tensor.uid: tensor.data_type for tensor in graph.tensors}
    new = {tensor.data_type for tensor in changed.tensors if old.get(tensor.uid, tensor.data_type) != tensor.data_type}
    return any(get_data_type_word(kind) in headline for kind in new)
