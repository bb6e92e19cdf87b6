"""Conditions of the native crash guards, evaluated on the lowered values of a graph.

What they need is imported when one is evaluated first: attention is built without ``ctypes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..generated.descriptors import DescriptorValue
from ..graph.ir import Graph

if TYPE_CHECKING:
    from ..native.crashing_graphs import Part

__all__ = ["crashes"]


def crashes(code: str) -> Callable[[Graph], bool]:
    """Return the condition of the crash guard with this code, as one on graphs."""

    def condition(graph: Graph) -> bool:
        from ..native.crashing_graphs import CRASHING_GRAPHS
        from ..plans.lower import lower

        crash = next(crash for crash in CRASHING_GRAPHS if crash.code == code)
        if not crash.kinds([op.kind for op in graph.ops]):  # which costs less than to lower it
            return False
        made: dict[int, Part] = {}
        return crash.condition([_part(value, made) for value in lower(graph)])

    return condition


def _part(value: DescriptorValue, made: dict[int, Part]) -> Part:
    """Return a descriptor value as crash guards see native descriptors; `made` is by the identity of values."""
    from ..native.crashing_graphs import Part

    if id(value) not in made:
        given = {}
        for facts in value.attributes:
            content = None if facts.role == "output" else getattr(value, facts.field)
            if content is not None:
                given[facts.attribute] = tuple(_element(item, made) for item in _elements(content))
        made[id(value)] = Part(value.kind, given)
    return made[id(value)]


def _elements(content: Any) -> tuple[Any, ...]:
    return content if type(content) is tuple else (content,)


def _element(item: Any, made: dict[int, Part]) -> Any:
    return _part(item, made) if isinstance(item, DescriptorValue) else item
