"""Crash guards: refuse inputs that were measured to end the process inside cuDNN.

Every row was seen to crash the process or to corrupt its memory; the version it was measured with is next to it.
The checks look at what C will be given: plain ints, texts and bytes, never an object of the caller; of a descriptor
inside another one, at what that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import UsageError
from ..generated.enums import DIM_MAX, DescriptorType, OperationGraphMode
from ..generated.enums import AttributeName as Attr
from ..system.version import VersionTuple
from .crashing_graphs import CRASHING_GRAPHS, AttributeValues
from .values import format_value_with_type

__all__ = [
    "MAX_DEVICE_NAME_BYTES",
    "check_before_finalize",
    "check_before_get",
    "check_before_set",
    "require_constant_bytes",
]

MAX_DEVICE_NAME_BYTES = 255  # 9.28: a deviceName of 256 bytes or more is copied past its buffer

# 9.28: finalizing without any of these can read through a null pointer.
_REQUIRED_ATTRIBUTES: dict[DescriptorType, tuple[Attr, ...]] = {
    DescriptorType.ENGINECFG: (Attr.ENGINECFG_ENGINE,),
    DescriptorType.EXECUTION_PLAN: (Attr.EXECUTION_PLAN_ENGINE_CONFIG, Attr.EXECUTION_PLAN_JSON_REPRESENTATION),
    DescriptorType.OPERATIONGRAPH: (Attr.OPERATIONGRAPH_OPS,),
    DescriptorType.OPERATION_CONCAT: (Attr.OPERATION_CONCAT_INPUT_DESCS,),
}


def _refuse_norm_training_graph_mode(_attribute: Attr, values: Sequence[Any]) -> None:
    """Refuse training mode for a graph with an inference norm: the heuristics of cuDNN 9.28 crash."""
    if values[0] == OperationGraphMode.NORM_FWD_TRAIN:
        raise UsageError(
            "CUDNN_OPERATIONGRAPH_MODE_NORM_FWD_TRAIN is refused: cuDNN crashes if the graph has an inference norm",
            code="graph-mode-mismatch",
            fix="leave CUDNN_ATTR_OPERATIONGRAPH_MODE to cuDNN (AUTO)",
        )


def _check_concat_axis(_attribute: Attr, values: Sequence[Any]) -> None:
    """Check the range of a concatenation axis: cuDNN 9.28 checks only its low 32 bits, and then uses all of it."""
    if not 0 <= values[0] < DIM_MAX:
        raise UsageError(
            f"axis {values[0]} is out of range: 0 to {DIM_MAX - 1} is needed, as a tensor has at most {DIM_MAX} dims",
            code="axis-out-of-range",
        )


def _check_spatial_dims(attribute: Attr, values: Sequence[Any]) -> None:
    """Check the number of spatial dims: to log an array, cuDNN 9.14 to 9.28 reads that many paddings."""
    if values[0] > DIM_MAX:
        raise UsageError(
            f"{attribute.c_name} must be at most {DIM_MAX}, got {values[0]}", code="spatial-dims-out-of-range"
        )


def _check_block_size(attribute: Attr, values: Sequence[Any]) -> None:
    """Check that a block size is not 0: cuDNN 9.28 divides the dims of a F8_128x4 scale by it."""
    if 0 in values:
        raise UsageError(f"{attribute.c_name} must be at least 1, got {list(values)}", code="block-size-not-positive")


def _refuse_attribute_read_as_cpp_vector(attribute: Attr, _values: Sequence[Any]) -> None:
    """Refuse an attribute that cuDNN 9.28 reads as a C++ ``std::vector`` and not as an array of numbers."""
    raise UsageError(
        f"{attribute.c_name} takes the address of a C++ std::vector, which Python cannot create",
        code="attribute-takes-cpp-object",
        fix="launch the plan with a Launcher: its pack() takes overrides as (uids, dims, strides)",
    )


def _check_json_depth(attribute: Attr, values: Sequence[Any]) -> None:
    """Refuse JSON too deep for Python's parser: 100,000 levels overflow the stack of cuDNN 9.28's parser."""
    _read_json_items(attribute, values[0])


def _check_device_name_length(attribute: Attr, values: Sequence[Any]) -> None:
    for key, name in _read_json_items(attribute, values[0]):
        size = len(name.encode("utf-8", "surrogatepass")) if isinstance(name, str) else 0
        if key == "deviceName" and size > MAX_DEVICE_NAME_BYTES:
            raise UsageError(
                f"the deviceName must have at most {MAX_DEVICE_NAME_BYTES} bytes, got {size}",
                code="device-name-too-long",
            )


def _read_json_items(attribute: Attr, text: str) -> list[tuple[str, Any]]:
    """Return all keys and values of a JSON text, also of duplicate keys, of which cuDNN may read any."""
    import json  # few programs give a descriptor JSON

    pairs: list[tuple[str, Any]] = []
    try:
        json.loads(text, object_pairs_hook=pairs.extend, strict=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{attribute.c_name} is not JSON: {error}", code="not-json") from error
    return pairs


_CHECKS_BEFORE_SET: dict[Attr, Callable[[Attr, Sequence[Any]], None]] = {
    Attr.VARIANT_PACK_OVERRIDE_SHAPES: _refuse_attribute_read_as_cpp_vector,
    Attr.VARIANT_PACK_OVERRIDE_STRIDES: _refuse_attribute_read_as_cpp_vector,
    Attr.CONVOLUTION_SPATIAL_DIMS: _check_spatial_dims,
    Attr.RESAMPLE_SPATIAL_DIMS: _check_spatial_dims,
    Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE: _check_block_size,
    Attr.OPERATION_CONCAT_AXIS: _check_concat_axis,
    Attr.OPERATIONGRAPH_MODE: _refuse_norm_training_graph_mode,
    Attr.DEVICEPROP_JSON_REPRESENTATION: _check_device_name_length,
    Attr.EXECUTION_PLAN_JSON_REPRESENTATION: _check_json_depth,
    Attr.KERNEL_CACHE_JSON_REPRESENTATION: _check_json_depth,
}


def check_before_set(attribute: Attr, values: Sequence[Any]) -> None:
    """Refuse a value that is known to crash cuDNN when it is set or later.

    Raises
    ------
    UsageError
        ``attribute-takes-cpp-object``, ``axis-out-of-range``, ``block-size-not-positive``, ``device-name-too-long``,
        ``graph-mode-mismatch``, ``not-json``, ``spatial-dims-out-of-range``.
    """
    check = _CHECKS_BEFORE_SET.get(attribute)
    if check is not None:
        check(attribute, values)


def require_constant_bytes(value: Any) -> bytes:
    """Return the element of a constant tensor, which must be given as bytes.

    9.28 reads as many bytes as the data type has from any address it is given, so addresses are not taken.

    Raises
    ------
    UsageError
        ``constant-not-bytes``.
    """
    if type(value) is not bytes or not 1 <= len(value) <= MAX_ELEMENT_BYTES:
        shown = f"{len(value)} bytes" if type(value) is bytes else format_value_with_type(value)
        raise UsageError(
            f"{Attr.TENSOR_CONSTANT_VALUE.c_name} takes the bytes of one element, "
            f"1 to {MAX_ELEMENT_BYTES}, got {shown}",
            code="constant-not-bytes",
            fix="give bytes, for example struct.pack('f', 0.5)",
        )
    return value.ljust(MAX_ELEMENT_BYTES, b"\0")


MAX_ELEMENT_BYTES = 32


def _check_tensor_size(given: AttributeValues) -> None:
    dims = given.get(Attr.TENSOR_DIMENSIONS, ())
    strides = given.get(Attr.TENSOR_STRIDES, ())
    elements = math.prod(abs(dim) for dim in dims)
    reach = 1 + sum(abs(dim - 1) * abs(stride) for dim, stride in zip(dims, strides, strict=False))
    if max(elements, reach) * MAX_ELEMENT_BYTES >= 1 << 63:
        raise UsageError(
            f"dims {tuple(dims)} with strides {tuple(strides)} reach over {max(elements, reach)} elements, "
            "their size does not fit 64 bits",
            code="tensor-size-overflow",
        )


def _check_plan_device(given: AttributeValues) -> None:
    """Check that a plan from JSON has a device or handle, which cuDNN 9.28 queries for the architecture."""
    if Attr.EXECUTION_PLAN_JSON_REPRESENTATION in given and not (
        Attr.EXECUTION_PLAN_HANDLE in given or Attr.EXECUTION_PLAN_DEVICEPROP in given
    ):
        raise UsageError(
            "this execution plan from JSON has neither CUDNN_ATTR_EXECUTION_PLAN_HANDLE nor "
            "CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP",
            code="attribute-missing",
            fix="set one of them before finalize()",
        )


# 9.28: with a mode set by hand cuDNN takes the graph for one of these operations without looking.
_DESCRIPTOR_NEEDED_BY_MODE = {
    OperationGraphMode.CONV_FORWARD: DescriptorType.OPERATION_CONVOLUTION_FORWARD,
    OperationGraphMode.CONV_BWD_DATA: DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
    OperationGraphMode.CONV_BWD_FILTER: DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
    OperationGraphMode.NORM_BWD: DescriptorType.OPERATION_NORM_BACKWARD,
}


def _check_graph_has_operation_of_mode(given: AttributeValues) -> None:
    for number in given.get(Attr.OPERATIONGRAPH_MODE, ()):
        mode = OperationGraphMode(number)
        needed = _DESCRIPTOR_NEEDED_BY_MODE.get(mode)
        if needed is not None and all(op.kind is not needed for op in given[Attr.OPERATIONGRAPH_OPS]):
            raise UsageError(
                f"{mode.c_name} is for a graph with a {needed.c_name}, but this one has none",
                code="graph-mode-mismatch",
                fix="leave CUDNN_ATTR_OPERATIONGRAPH_MODE to cuDNN (AUTO)",
            )


def _refuse_crashing_graphs(given: AttributeValues, version: VersionTuple) -> None:
    for crash in CRASHING_GRAPHS:
        if version in crash.versions and crash.matches(given[Attr.OPERATIONGRAPH_OPS]):
            what = f"{crash.description} ends the process inside cuDNN ({crash.code})"
            raise UsageError(what, code="graph-kills-cudnn", fix=crash.fix)


_CHECKS_BEFORE_FINALIZE: dict[DescriptorType, Callable[[AttributeValues], None]] = {
    DescriptorType.TENSOR: _check_tensor_size,
    DescriptorType.EXECUTION_PLAN: _check_plan_device,
    DescriptorType.OPERATIONGRAPH: _check_graph_has_operation_of_mode,
}


def check_before_finalize(kind: DescriptorType, given: AttributeValues, version: VersionTuple) -> None:
    """Refuse to finalize a descriptor in a state that is known to crash cuDNN.

    Raises
    ------
    UsageError
        ``attribute-missing``, ``tensor-size-overflow``, ``graph-mode-mismatch``, ``graph-kills-cudnn``.
    """
    needed = _REQUIRED_ATTRIBUTES.get(kind, ())
    if needed and not any(attribute in given for attribute in needed):
        names = " or ".join(attribute.c_name for attribute in needed)
        raise UsageError(f"this {kind.c_name} has no {names}", code="attribute-missing", fix="set it before finalize()")
    check = _CHECKS_BEFORE_FINALIZE.get(kind)
    if check is not None:
        check(given)
    if kind is DescriptorType.OPERATIONGRAPH:
        _refuse_crashing_graphs(given, version)


# 9.28: reading it dies, whether it was set or not; asking how many elements it has dies.
_ATTRIBUTES_THAT_CRASH_GET = {Attr.TENSOR_RAGGED_OFFSET_DESC}
_ATTRIBUTES_THAT_CRASH_COUNT = {Attr.OPERATIONGRAPH_IS_SAME_TOPOLOGY, Attr.KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED}


def check_before_get(attribute: Attr, *, count_only: bool = False) -> None:
    """Refuse to read an attribute that is known to crash cuDNN.

    Raises
    ------
    UsageError
        ``attribute-not-readable``.
    """
    if count_only and attribute in _ATTRIBUTES_THAT_CRASH_COUNT:
        raise UsageError(
            f"counting the elements of {attribute.c_name} crashes the process inside cuDNN",
            code="attribute-not-readable",
        )
    if not count_only and attribute in _ATTRIBUTES_THAT_CRASH_GET:
        raise UsageError(
            f"reading {attribute.c_name} crashes the process inside cuDNN",
            code="attribute-not-readable",
            fix="keep the value that you set",
        )
