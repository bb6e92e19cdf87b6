"""Conditions of the native crash guards, applied to the lowered values of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..generated.descriptors import DescriptorValue
from ..graph.ir import Graph
from ..native.crashing_graphs import CRASHING_GRAPHS, NestedDescriptor
from ..plans.lower import lower
from ..system.version import Window

__all__ = ["crashes", "versions_of_crash"]

_BY_CODE = {crash.code: crash for crash in CRASHING_GRAPHS}


def crashes(issue: str) -> Callable[[Graph], bool]:
    """Return the condition of this known issue's crash guard, as a condition on graphs."""
    crash = _BY_CODE[issue]

    def condition(graph: Graph) -> bool:
        if not crash.kinds([op.kind for op in graph.ops]):  # which costs less than to lower it
            return False
        made: dict[int, NestedDescriptor] = {}
        return crash.condition([_part(value, made) for value in lower(graph)])

    return condition


def versions_of_crash(issue: str) -> Window:
    """Return the versions in which the crash guard of this known issue refuses graphs."""
    return _BY_CODE[issue].versions


def _part(value: DescriptorValue, made: dict[int, NestedDescriptor]) -> NestedDescriptor:
    """Return a descriptor value in the form of crash guards; `made` caches by identity."""
    if id(value) not in made:
        given = {}
        for facts in value.attributes:
            content = None if facts.role == "output" else getattr(value, facts.field)
            if content is not None:
                given[facts.attribute] = tuple(_element(item, made) for item in _elements(content))
        made[id(value)] = NestedDescriptor(value.kind, given)
    return made[id(value)]


def _elements(content: Any) -> tuple[Any, ...]:
    return content if type(content) is tuple else (content,)


def _element(item: Any, made: dict[int, NestedDescriptor]) -> Any:
    return _part(item, made) if isinstance(item, DescriptorValue) else item
