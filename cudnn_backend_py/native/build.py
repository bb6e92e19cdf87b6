"""Descriptor values to native descriptors."""

from __future__ import annotations

from typing import Any

from ..generated.descriptors import DescriptorValue
from .descriptor import Descriptor
from .library import Library

__all__ = ["build"]


def build(value: DescriptorValue, *, on: Library, built: dict[int, Descriptor] | None = None) -> Descriptor:
    """Return the finalized native descriptor of a value and, inside it, of everything it refers to.

    Parameters
    ----------
    built
        What was built before, by identity of the value: one value becomes one descriptor. The values must live as
        long as this table is used.

    Raises
    ------
    UsageError, CudnnStatusError
        From the attribute or descriptor that is wrong.
    """
    built = {} if built is None else built
    made = built.get(id(value))
    if made is not None:
        return made
    made = Descriptor(value.kind, on=on)
    for facts in value.attributes:
        if facts.role == "output":
            continue
        content = getattr(value, facts.field)
        if content is not None:
            made.set(facts.attribute, _native(content, on, built))
    built[id(value)] = made.finalize()
    return made


def _native(content: Any, on: Library, built: dict[int, Descriptor]) -> Any:
    if isinstance(content, DescriptorValue):
        return build(content, on=on, built=built)
    if isinstance(content, tuple) and content and isinstance(content[0], DescriptorValue):
        return tuple(build(item, on=on, built=built) for item in content)
    return content
