"""Conditions under which graphs end the process inside cuDNN, as functions that take a ``Graph``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..generated.attributes import DescriptorValue, get_attributes
from ..graph.ir import Graph
from ..native.crashing_graphs import CRASHING_GRAPHS, NestedDescriptor
from ..plans.lower import lower
from ..system.version import VersionRange

__all__ = ["get_crash_versions", "make_crash_predicate"]

_BY_CODE = {crash.code: crash for crash in CRASHING_GRAPHS}


def make_crash_predicate(issue: str) -> Callable[[Graph], bool]:
    """Return a function that returns whether a graph meets the condition of this crashing known issue."""
    crash = _BY_CODE[issue]

    def would_crash(graph: Graph) -> bool:
        if not crash.kinds([op.kind for op in graph.ops]):  # which costs less than to lower it
            return False
        made: dict[int, NestedDescriptor] = {}
        return crash.condition([_make_nested_descriptor(value, made) for value in lower(graph)])

    return would_crash


def get_crash_versions(issue: str) -> VersionRange:
    """Return the cuDNN versions in which graphs with this known issue crash the process."""
    return _BY_CODE[issue].versions


def _make_nested_descriptor(value: DescriptorValue, made: dict[int, NestedDescriptor]) -> NestedDescriptor:
    """Convert a descriptor value to a ``NestedDescriptor``; `made` caches the results by the value's ``id``."""
    if id(value) not in made:
        given = {}
        for facts in get_attributes(value.kind):
            content = value.fields.get(facts.field)
            if content is not None:
                given[facts.attribute] = tuple(
                    _convert_descriptor_value_element(item, made) for item in _convert_to_tuple(content)
                )
        made[id(value)] = NestedDescriptor(value.kind, given)
    return made[id(value)]


def _convert_to_tuple(content: Any) -> tuple[Any, ...]:
    return content if type(content) is tuple else (content,)


def _convert_descriptor_value_element(item: Any, made: dict[int, NestedDescriptor]) -> Any:
    return _make_nested_descriptor(item, made) if isinstance(item, DescriptorValue) else item
