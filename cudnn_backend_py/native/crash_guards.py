"""Crash guards: measured inputs that end the process inside cuDNN, each refused here first.

Every row was seen to crash the process or to corrupt its memory; the version it was measured with stands beside it.
The checks look at what C will be given: plain ints, texts and bytes, never an object of the caller; of a descriptor
inside another one, at what that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import UsageError
from ..generated.enums import (
    DIM_MAX,
    DataType,
    DescriptorType,
    NormMode,
    OperationGraphMode,
    PointwiseMode,
    ResampleMode,
)
from ..generated.enums import AttributeName as Attr
from ..system.version import VersionTuple, Window
from .values import show_typed

__all__ = [
    "DEVICE_NAME_BYTES",
    "CrashingGraph",
    "Part",
    "check_before_finalize",
    "check_before_get",
    "check_before_set",
    "check_constant",
]

DEVICE_NAME_BYTES = 255  # 9.28: a deviceName of 256 bytes or more is copied past its buffer

Given = Mapping[Attr, Sequence[Any]]  # what was set


class Part(NamedTuple):
    """A descriptor inside another one: its kind, and what it was given."""

    kind: DescriptorType
    given: Given

    def all(self, *path: Attr) -> tuple[Any, ...]:
        """Return the values of an attribute of a part inside a part; none where that is not known."""
        values: Sequence[Any] = (self,)
        for attribute in path:
            values = values[0].given.get(attribute, ()) if values and isinstance(values[0], Part) else ()
        return tuple(values)

    def one(self, *path: Attr) -> Any:
        """Return the first of these values, None where there is none."""
        return next(iter(self.all(*path)), None)


# 9.28: finalizing without any of these can read through a null pointer.
_NEEDED: dict[DescriptorType, tuple[Attr, ...]] = {
    DescriptorType.ENGINECFG: (Attr.ENGINECFG_ENGINE,),
    DescriptorType.EXECUTION_PLAN: (Attr.EXECUTION_PLAN_ENGINE_CONFIG, Attr.EXECUTION_PLAN_JSON_REPRESENTATION),
    DescriptorType.OPERATIONGRAPH: (Attr.OPERATIONGRAPH_OPS,),
    DescriptorType.OPERATION_CONCAT: (Attr.OPERATION_CONCAT_INPUT_DESCS,),
}


def _refuse_training_mode(_attribute: Attr, values: Sequence[Any]) -> None:
    """9.28: the heuristics of a graph marked so, whose norm is for inference, die."""
    if values[0] == OperationGraphMode.NORM_FWD_TRAIN:
        raise UsageError(
            "CUDNN_OPERATIONGRAPH_MODE_NORM_FWD_TRAIN kills cuDNN on a graph whose norm is for inference",
            code="graph-mode-mismatch",
        )


def _check_concat_axis(_attribute: Attr, values: Sequence[Any]) -> None:
    """9.28: an axis beyond 32 bits is cut to fit, passes the check and is then used whole."""
    if not 0 <= values[0] < DIM_MAX:
        raise UsageError(f"axis {values[0]} is none of the {DIM_MAX} possible dims", code="axis-out-of-range")


def _check_spatial_dims(attribute: Attr, values: Sequence[Any]) -> None:
    """9.14 to 9.28: with its log on, cuDNN prints as many paddings and strides as this says, from a few dims' room."""
    if values[0] > DIM_MAX:
        raise UsageError(
            f"{attribute.c_name} {values[0]}: cuDNN has at most {DIM_MAX} dims", code="spatial-dims-out-of-range"
        )


def _check_block_size(attribute: Attr, values: Sequence[Any]) -> None:
    """9.28: the dims of a scale in the order F8_128x4 are divided by it."""
    if 0 in values:
        raise UsageError(
            f"{attribute.c_name} is {list(values)}: a block has at least 1 element", code="block-size-not-positive"
        )


def _refuse_cpp_object(attribute: Attr, _values: Sequence[Any]) -> None:
    """9.28: the address is read as that of a C++ ``std::vector``, so one of plain numbers is wild memory."""
    raise UsageError(
        f"{attribute.c_name} takes the address of a C++ std::vector, which Python cannot make",
        code="attribute-takes-cpp-object",
    )


def _check_json(attribute: Attr, values: Sequence[Any]) -> None:
    """9.28: text nested some 100,000 deep overflows the stack of cuDNN's parser; Python's stops before."""
    _pairs(attribute, values[0])


def _check_device_json(attribute: Attr, values: Sequence[Any]) -> None:
    for key, name in _pairs(attribute, values[0]):
        size = len(name.encode("utf-8", "surrogatepass")) if isinstance(name, str) else 0
        if key == "deviceName" and size > DEVICE_NAME_BYTES:
            raise UsageError(
                f"the deviceName has {size} bytes, at most {DEVICE_NAME_BYTES} are possible",
                code="device-name-too-long",
            )


def _pairs(attribute: Attr, text: str) -> list[tuple[str, Any]]:
    """Return every key and value of a JSON text, twins included: which of two cuDNN reads is its own affair."""
    import json  # few programs give a descriptor JSON

    pairs: list[tuple[str, Any]] = []
    try:
        json.loads(text, object_pairs_hook=pairs.extend, strict=False)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{attribute.c_name} takes JSON: {error}", code="not-json") from error
    return pairs


_BEFORE_SET: dict[Attr, Callable[[Attr, Sequence[Any]], None]] = {
    Attr.VARIANT_PACK_OVERRIDE_SHAPES: _refuse_cpp_object,
    Attr.VARIANT_PACK_OVERRIDE_STRIDES: _refuse_cpp_object,
    Attr.CONVOLUTION_SPATIAL_DIMS: _check_spatial_dims,
    Attr.RESAMPLE_SPATIAL_DIMS: _check_spatial_dims,
    Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE: _check_block_size,
    Attr.OPERATION_CONCAT_AXIS: _check_concat_axis,
    Attr.OPERATIONGRAPH_MODE: _refuse_training_mode,
    Attr.DEVICEPROP_JSON_REPRESENTATION: _check_device_json,
    Attr.EXECUTION_PLAN_JSON_REPRESENTATION: _check_json,
    Attr.KERNEL_CACHE_JSON_REPRESENTATION: _check_json,
}


def check_before_set(attribute: Attr, values: Sequence[Any]) -> None:
    """Refuse a value known to kill cuDNN when it is set, or later.

    Raises
    ------
    UsageError
        ``attribute-takes-cpp-object``, ``axis-out-of-range``, ``block-size-not-positive``, ``device-name-too-long``,
        ``graph-mode-mismatch``, ``not-json``, ``spatial-dims-out-of-range``.
    """
    check = _BEFORE_SET.get(attribute)
    if check is not None:
        check(attribute, values)


def check_constant(value: Any) -> bytes:
    """Return the element of a constant tensor, which must be given as its bytes.

    9.28 reads as many bytes as the data type has from any address it is given, so addresses are not taken.

    Raises
    ------
    UsageError
        ``constant-not-bytes``.
    """
    if type(value) is not bytes or not 1 <= len(value) <= LARGEST_ELEMENT_BYTES:
        shown = f"{len(value)} bytes" if type(value) is bytes else show_typed(value)
        raise UsageError(
            f"{Attr.TENSOR_CONSTANT_VALUE.c_name} takes the bytes of one element, got {shown}",
            code="constant-not-bytes",
            fix="for example struct.pack('f', 0.5)",
        )
    return value.ljust(LARGEST_ELEMENT_BYTES, b"\0")


LARGEST_ELEMENT_BYTES = 32


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


def _check_plan(given: Given) -> None:
    """9.28: a plan read from JSON asks its device for the architecture, and there is none."""
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
_MODE_NEEDS = {
    OperationGraphMode.CONV_FORWARD: DescriptorType.OPERATION_CONVOLUTION_FORWARD,
    OperationGraphMode.CONV_BWD_DATA: DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
    OperationGraphMode.CONV_BWD_FILTER: DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
    OperationGraphMode.NORM_BWD: DescriptorType.OPERATION_NORM_BACKWARD,
}


def _check_graph_mode(given: Given) -> None:
    for number in given.get(Attr.OPERATIONGRAPH_MODE, ()):
        mode = OperationGraphMode(number)
        needed = _MODE_NEEDS.get(mode)
        if needed is not None and all(op.kind is not needed for op in given[Attr.OPERATIONGRAPH_OPS]):
            raise UsageError(
                f"{mode.c_name} is for a graph with a {needed.c_name}, this one has none",
                code="graph-mode-mismatch",
                fix="leave CUDNN_ATTR_OPERATIONGRAPH_MODE to cuDNN (AUTO)",
            )


# Graphs that end the process while engines are chosen for them or a plan is built, whatever the GPU.


_ROWS = (NormMode.LAYER_NORM, NormMode.RMS_NORM, NormMode.ADA_LAYER_NORM)
_VECTOR_TYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8)
_READ = (
    *(Attr.OPERATION_POINTWISE_XDESC, Attr.OPERATION_POINTWISE_BDESC, Attr.OPERATION_POINTWISE_TDESC),
    Attr.OPERATION_POINTWISE_DYDESC,
)
_GRADIENTS = tuple(mode for mode in PointwiseMode if mode.name.endswith("_BWD"))


def _normed_gradient(ops: Sequence[Part]) -> bool:
    """A norm of rows in float32, and the gradient of an activation that reads its result from no memory."""
    by_kind = {op.kind: op for op in ops}
    norm = by_kind.get(DescriptorType.OPERATION_NORM_FORWARD)
    gradient = by_kind.get(DescriptorType.OPERATION_POINTWISE)
    return (
        norm is not None
        and gradient is not None
        and len(ops) == 2
        and norm.one(Attr.OPERATION_NORM_FWD_MODE) in _ROWS
        and norm.one(Attr.OPERATION_NORM_FWD_XDESC, Attr.TENSOR_DATA_TYPE) == DataType.FLOAT
        and bool(norm.one(Attr.OPERATION_NORM_FWD_YDESC, Attr.TENSOR_IS_VIRTUAL))
        and gradient.one(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, Attr.POINTWISE_MODE) in _GRADIENTS
    )


def _experts_and_matmul(ops: Sequence[Part]) -> bool:
    """A matmul of experts and another matmul."""
    return {op.kind for op in ops} >= {DescriptorType.OPERATION_MOE_GROUPED_MATMUL, DescriptorType.OPERATION_MATMUL}


def _bilinear_line(ops: Sequence[Part]) -> bool:
    """BILINEAR resampling over one dim."""
    return any(
        op.one(Attr.OPERATION_RESAMPLE_FWD_DESC, Attr.RESAMPLE_MODE) == ResampleMode.BILINEAR
        and len(op.all(Attr.OPERATION_RESAMPLE_FWD_XDESC, Attr.TENSOR_DIMENSIONS)) == 3
        for op in ops
    )


def _max_pool_gradients(ops: Sequence[Part]) -> Iterator[Part]:
    """Yield the gradients of max pools, channels last."""
    for op in ops:
        dy = op.one(Attr.OPERATION_RESAMPLE_BWD_DYDESC)
        if (
            op.one(Attr.OPERATION_RESAMPLE_BWD_DESC, Attr.RESAMPLE_MODE) == ResampleMode.MAXPOOL
            and isinstance(dy, Part)
            and _is_channels_last(dy.all(Attr.TENSOR_DIMENSIONS), dy.all(Attr.TENSOR_STRIDES))
        ):
            yield op


def _largest_of_both(ops: Sequence[Part]) -> bool:
    """The gradient of a max pool, channels last, from its image and its result instead of an index."""
    both = {Attr.OPERATION_RESAMPLE_BWD_XDESC, Attr.OPERATION_RESAMPLE_BWD_YDESC}
    return any(
        both <= op.given.keys() and Attr.OPERATION_RESAMPLE_BWD_IDXDESC not in op.given
        for op in _max_pool_gradients(ops)
    )


def _largest_of_line(ops: Sequence[Part]) -> bool:
    """The gradient of a max pool over one dim, channels last."""
    return any(
        len(op.all(Attr.OPERATION_RESAMPLE_BWD_DYDESC, Attr.TENSOR_DIMENSIONS)) == 3 for op in _max_pool_gradients(ops)
    )


def _vector_selected(ops: Sequence[Part]) -> bool:
    """The product of a matrix and a vector in memory, and BINARY_SELECT by a whole mask behind it.

    The engine for such products has no other operations than elementwise ones, without indices, no parts of tensors,
    and booleans by the eight.
    """
    products = [op for op in ops if op.kind is DescriptorType.OPERATION_MATMUL]
    others = [op for op in ops if op.kind is DescriptorType.OPERATION_POINTWISE]
    if len(products) != 1 or len(products) + len(others) != len(ops):
        return False
    whole = products[0].all(Attr.OPERATION_MATMUL_CDESC, Attr.TENSOR_DIMENSIONS)
    sides = [products[0].one(side) for side in (Attr.OPERATION_MATMUL_ADESC, Attr.OPERATION_MATMUL_BDESC)]
    modes = [op.one(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, Attr.POINTWISE_MODE) for op in others]
    read = [
        (item.all(Attr.TENSOR_DIMENSIONS), item.one(Attr.TENSOR_DATA_TYPE))
        for op in others
        for item in map(op.one, _READ)
        if isinstance(item, Part) and not item.one(Attr.TENSOR_IS_VIRTUAL)
    ]
    return (
        1 in whole[-2:]
        and all(side.one(Attr.TENSOR_DATA_TYPE) in _VECTOR_TYPES for side in sides)
        and not any(side.one(Attr.TENSOR_IS_VIRTUAL) for side in sides)
        and PointwiseMode.GEN_INDEX not in modes
        and any(
            mode == PointwiseMode.BINARY_SELECT
            and op.all(Attr.OPERATION_POINTWISE_TDESC, Attr.TENSOR_DIMENSIONS) == whole
            for op, mode in zip(others, modes, strict=True)
        )
        and all(dims == whole or max(dims) == 1 for dims, _ in read)
        and not any(kind == DataType.BOOLEAN and whole[-1] % 8 for _, kind in read)
    )


def _is_channels_last(dims: Sequence[int], strides: Sequence[int]) -> bool:
    if len(dims) < 3 or len(strides) != len(dims):
        return False
    _, channels, *sizes = dims
    wanted = [channels * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return list(strides) == [channels * math.prod(sizes), 1, *wanted]


class CrashingGraph(NamedTuple):
    """A kind of graph that ends the process, by its code in the table of faults; and the versions it does so in."""

    code: str
    what: str
    fix: str
    versions: Window
    found: Callable[[Sequence[Part]], bool]


CRASHING_GRAPHS: tuple[CrashingGraph, ...] = (
    CrashingGraph(
        "norm-activation-gradient",
        "a norm of rows in float32 and an activation's gradient that reads its result from no memory",
        "leave the gradient to a graph of its own",
        Window(until=(9, 24, 0)),  # 9.16.0 to 9.22.0; 9.24.0 refuses it
        _normed_gradient,
    ),
    CrashingGraph(
        "experts-and-matmul",
        "a matmul of experts and another matmul",
        "leave the other matmul to a graph of its own",
        Window(since=(9, 18, 0)),  # to 9.28.0
        _experts_and_matmul,
    ),
    CrashingGraph(
        "bilinear-one-dim",
        "BILINEAR resampling over one dim",
        "describe the tensors with a dim of 1 more",
        Window(),  # 9.16.0 to 9.28.0
        _bilinear_line,
    ),
    CrashingGraph(
        "max-pool-gradient-of-both",
        "the gradient of a max pool, channels last, from its image and its result instead of an index",
        "give the index that the forward pass writes",
        Window(until=(9, 20, 0)),  # 9.16.0 to 9.19.0; 9.20.0 refuses it
        _largest_of_both,
    ),
    CrashingGraph(
        "max-pool-gradient-one-dim",
        "the gradient of a max pool over one dim, channels last",
        "describe the tensors with a dim of 1 more",
        Window(),  # 9.14.0 to 9.28.0: divides by the stride of a second dim, which it reads behind the one there is
        _largest_of_line,
    ),
    CrashingGraph(
        "vector-product-select",
        "the product of a matrix and a vector, and BINARY_SELECT by a whole mask behind it",
        "use cuDNN 9.28.0 or later, or select in a graph of its own",
        Window(since=(9, 21, 0), until=(9, 28, 0)),
        _vector_selected,
    ),
)


def _check_operations(given: Given, version: VersionTuple) -> None:
    for kind in CRASHING_GRAPHS:
        if version in kind.versions and kind.found(given[Attr.OPERATIONGRAPH_OPS]):
            what = f"{kind.what} ends the process inside cuDNN ({kind.code})"
            raise UsageError(what, code="graph-kills-cudnn", fix=kind.fix)


_BEFORE_FINALIZE: dict[DescriptorType, Callable[[Given], None]] = {
    DescriptorType.TENSOR: _check_tensor,
    DescriptorType.EXECUTION_PLAN: _check_plan,
    DescriptorType.OPERATIONGRAPH: _check_graph_mode,
}


def check_before_finalize(kind: DescriptorType, given: Given, version: VersionTuple) -> None:
    """Refuse to finalize a descriptor whose state is known to kill cuDNN.

    Raises
    ------
    UsageError
        ``attribute-missing``, ``tensor-size-overflow``, ``graph-mode-mismatch``, ``graph-kills-cudnn``.
    """
    needed = _NEEDED.get(kind, ())
    if needed and not any(attribute in given for attribute in needed):
        names = " or ".join(attribute.c_name for attribute in needed)
        raise UsageError(f"this {kind.c_name} has no {names}", code="attribute-missing", fix="set it before finalize()")
    check = _BEFORE_FINALIZE.get(kind)
    if check is not None:
        check(given)
    if kind is DescriptorType.OPERATIONGRAPH:
        _check_operations(given, version)


# 9.28: reading it dies, whether it was set or not; asking how many elements it has dies.
_UNREADABLE = {Attr.TENSOR_RAGGED_OFFSET_DESC}
_UNCOUNTABLE = {Attr.OPERATIONGRAPH_IS_SAME_TOPOLOGY, Attr.KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED}


def check_before_get(attribute: Attr, *, count_only: bool = False) -> None:
    """Refuse to read an attribute that is known to kill cuDNN.

    Raises
    ------
    UsageError
        ``attribute-not-readable``.
    """
    if attribute in (_UNCOUNTABLE if count_only else _UNREADABLE):
        raise UsageError(f"reading {attribute.c_name} kills the process in cuDNN", code="attribute-not-readable")
