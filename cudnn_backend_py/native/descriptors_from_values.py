"""Create native descriptors from ``DescriptorValue`` objects, which hold their attributes as Python values."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import UsageError
from ..generated.attributes import DescriptorValue, get_attributes
from ..generated.enums import AttributeType, DataType
from .descriptor import Descriptor
from .libcudnn import Library
from .values import format_value_with_type, is_instance

__all__ = ["build"]


def build(value: DescriptorValue, *, on: Library, built: dict[int, Descriptor] | None = None) -> Descriptor:
    """Return the finalized native descriptor that a ``DescriptorValue`` describes, with all that it refers to.

    Parameters
    ----------
    built
        What was built before, by identity of the value: one value becomes one descriptor. The values must live as
        long as this table is used.

    Raises
    ------
    UsageError, CudnnStatusError
        From the attribute or descriptor that is wrong; ``wrong-argument`` where there is no descriptor value,
        ``unknown-field``, ``value-nested-too-deep``.
    """
    if not is_instance(value, DescriptorValue):
        raise UsageError(f"a DescriptorValue is needed, got {format_value_with_type(value)}", code="wrong-argument")
    built = {} if built is None else built
    made = built.get(id(value))
    if made is not None:
        return made
    attributes = get_attributes(value.kind)
    unknown = value.fields.keys() - {facts.field for facts in attributes}
    if unknown:
        raise UsageError(
            f"{value.kind.c_name} has no field {', '.join(sorted(unknown))}; its fields are "
            f"{', '.join(facts.field for facts in attributes)}",
            code="unknown-field",
        )
    made = Descriptor(value.kind, on=on)
    try:
        for facts in attributes:
            content = value.fields.get(facts.field)
            if content is not None:
                made.set(
                    facts.attribute,
                    _convert_to_native(content, on, built),
                    type=_choose_alpha_beta_type(value, facts.field),
                )
    except RecursionError as error:
        raise UsageError(
            f"this {value.kind.c_name} has more levels of nested descriptors than Python's recursion limit "
            f"({sys.getrecursionlimit()}) allows",
            code="value-nested-too-deep",
        ) from error
    built[id(value)] = made.finalize()
    return made


def _choose_alpha_beta_type(value: DescriptorValue, field: str) -> AttributeType | None:
    """Return the element type of alpha or beta that a convolution's compute type requires; None in other cases.

    The attributes take several, and cuDNN reads the bytes in the type that the convolution computes in: those of a
    float32 taken for a double are next to 0.
    """
    if field not in ("alpha", "beta") or "convolution" not in value.fields:
        return None
    return _FACTOR_TYPES.get(value.fields["convolution"].fields["comp_type"])


_FACTOR_TYPES: dict[DataType, AttributeType] = {DataType.DOUBLE: AttributeType.DOUBLE}


def _convert_to_native(content: Any, on: Library, built: dict[int, Descriptor]) -> Any:
    if is_instance(content, DescriptorValue):
        return build(content, on=on, built=built)
    if type(content) is tuple and content and is_instance(content[0], DescriptorValue):
        return tuple(build(item, on=on, built=built) for item in content)
    return content
