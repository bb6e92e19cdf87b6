"""What kills cuDNN instead of being refused by it: a table of measured hazards, each refused here first.

Every row was seen to crash the process or to corrupt its memory; the version it was measured with stands beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import DescriptorType

__all__ = ["DEVICE_NAME_BYTES", "check_before_finalize", "check_before_set"]

DEVICE_NAME_BYTES = 255  # 9.28: a deviceName of 256 bytes or more is copied past its buffer

Given = Mapping[Attr, Sequence[Any]]
ANY_OF = tuple[Attr, ...]

# 9.28: finalizing without any of these reads through a null pointer.
_NEEDED: dict[DescriptorType, ANY_OF] = {
    DescriptorType.ENGINECFG: (Attr.ENGINECFG_ENGINE,),
    DescriptorType.EXECUTION_PLAN: (Attr.EXECUTION_PLAN_ENGINE_CONFIG, Attr.EXECUTION_PLAN_JSON_REPRESENTATION),
}


def _refuse_cpp_object(attribute: Attr, _values: Sequence[Any]) -> None:
    """9.28: the address is read as that of a C++ ``std::vector``, so one of plain numbers is wild memory."""
    raise UsageError(
        f"{attribute.c_name} takes the address of a C++ std::vector, which Python cannot make",
        code="attribute-takes-cpp-object",
    )


def _check_device_json(attribute: Attr, values: Sequence[Any]) -> None:
    for key, name in _pairs(attribute, values[0]):
        if key == "deviceName" and isinstance(name, str) and len(name.encode("utf-8", "replace")) > DEVICE_NAME_BYTES:
            raise UsageError(
                f"the deviceName has {len(name.encode())} bytes, at most {DEVICE_NAME_BYTES} are possible",
                code="device-name-too-long",
            )


def _pairs(attribute: Attr, text: str) -> list[tuple[str, Any]]:
    """Return every key and value of a JSON text, twins included: which of two cuDNN reads is its own affair."""
    pairs: list[tuple[str, Any]] = []
    try:
        json.loads(text, object_pairs_hook=pairs.extend, strict=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{attribute.c_name} takes JSON: {error}", code="not-json") from None
    return pairs


_BEFORE_SET: dict[Attr, Callable[[Attr, Sequence[Any]], None]] = {
    Attr.VARIANT_PACK_OVERRIDE_SHAPES: _refuse_cpp_object,
    Attr.VARIANT_PACK_OVERRIDE_STRIDES: _refuse_cpp_object,
    Attr.DEVICEPROP_JSON_REPRESENTATION: _check_device_json,
}


def check_before_set(attribute: Attr, values: Sequence[Any]) -> None:
    """Refuse a value known to kill cuDNN when it is set, or later.

    Raises
    ------
    UsageError
        ``attribute-takes-cpp-object``, ``device-name-too-long``, ``not-json``.
    """
    check = _BEFORE_SET.get(attribute)
    if check is not None:
        check(attribute, values)


def _check_tensor(given: Given) -> None:
    dims = given.get(Attr.TENSOR_DIMENSIONS, ())
    strides = given.get(Attr.TENSOR_STRIDES, ())
    elements = math.prod(abs(dim) for dim in dims)
    reach = 1 + sum(abs(dim - 1) * abs(stride) for dim, stride in zip(dims, strides, strict=False))
    if max(elements, reach) * LARGEST_ELEMENT_BYTES >= 1 << 63:
        raise UsageError(
            f"dims {tuple(dims)} with strides {tuple(strides)} reach over {max(elements, reach)} elements, "
            "their size does not fit 64 bits",
            code="tensor-size-overflow",
        )


LARGEST_ELEMENT_BYTES = 32

_BEFORE_FINALIZE: dict[DescriptorType, Callable[[Given], None]] = {DescriptorType.TENSOR: _check_tensor}


def check_before_finalize(kind: DescriptorType, given: Given) -> None:
    """Refuse to finalize a descriptor whose state is known to kill cuDNN.

    Raises
    ------
    UsageError
        ``attribute-missing``, ``tensor-size-overflow``.
    """
    needed = _NEEDED.get(kind, ())
    if needed and not any(attribute in given for attribute in needed):
        names = " or ".join(attribute.c_name for attribute in needed)
        raise UsageError(f"this {kind.c_name} has no {names}", code="attribute-missing", fix="set it before finalize()")
    check = _BEFORE_FINALIZE.get(kind)
    if check is not None:
        check(given)
