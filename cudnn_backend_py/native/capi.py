"""Every function of ``cudnn_graph.h`` under its C name, with Python values in and out.

Out-parameters are returned, statuses other than success raise, descriptors and handles are
:class:`~cudnn_backend_py.native.descriptor.Descriptor` and :class:`~cudnn_backend_py.native.descriptor.Handle`.
A C program can be followed line by line::

    from cudnn_backend_py import capi
    from cudnn_backend_py import Attr, AttributeType, DescriptorType

    desc = capi.cudnnBackendCreateDescriptor(DescriptorType.MATMUL)
    capi.cudnnBackendSetAttribute(desc, Attr.MATMUL_COMP_TYPE, AttributeType.DATA_TYPE, 1, [DataType.FLOAT])
    capi.cudnnBackendFinalize(desc)
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import EnvironmentNotReady, UsageError
from ..generated.enums import AttributeName, AttributeType, DescriptorType, ErrQueryMode, Status
from .descriptor import MAX_ADDRESS, Descriptor, Handle
from .libcudnn import library
from .values import format_value, format_value_with_type, is_instance, is_one_dimensional, read_number, read_sequence

__all__ = [
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendExecute",
    "cudnnBackendFinalize",
    "cudnnBackendGetAttribute",
    "cudnnBackendInitialize",
    "cudnnBackendPopulateCudaGraph",
    "cudnnBackendSetAttribute",
    "cudnnBackendUpdateCudaGraph",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnGetCallback",
    "cudnnGetCudartVersion",
    "cudnnGetErrorString",
    "cudnnGetExecutionPlanWorkspaceSize",
    "cudnnGetLastErrorString",
    "cudnnGetMaxDeviceVersion",
    "cudnnGetProperty",
    "cudnnGetStream",
    "cudnnGetVersion",
    "cudnnGraphVersionCheck",
    "cudnnQueryRuntimeError",
    "cudnnSetCallback",
    "cudnnSetStream",
]


def _read_address(value: Any, what: str) -> int:
    if value is None or (type(value) is int and value == 0):
        raise UsageError(f"{what} needs an address, got {format_value(value)}", code="null-pointer")
    return read_number(value, what, 1, MAX_ADDRESS)


def _read_int(value: Any, what: str) -> int:
    return read_number(value, what, -(1 << 31), (1 << 32) - 1)


_NativeObject = TypeVar("_NativeObject", Descriptor, Handle)


def _require_native_object(value: Any, kind: type[_NativeObject]) -> _NativeObject:
    """Return `value` if it is a descriptor or handle of this package; refuse other objects."""
    if type(value) is kind:
        return value
    null = value is None or (type(value) is int and value == 0)
    raise UsageError(
        f"a {kind.__name__} is needed, got {format_value_with_type(value)}",
        code="null-pointer" if null else "wrong-argument",
    )


def _get_native_arguments(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> tuple[Any, Any, Any]:
    """Return pointers for the three arguments that every plan execution function takes."""
    for descriptor, kind in (
        (_require_native_object(plan, Descriptor), DescriptorType.EXECUTION_PLAN),
        (_require_native_object(variant_pack, Descriptor), DescriptorType.VARIANT_PACK),
    ):
        descriptor.check_usable(kind)
    return _require_native_object(handle, Handle).pointer, plan.pointer, variant_pack.pointer


def cudnnGetVersion() -> int:
    """Return the version of the loaded library as one number, 92800 for 9.28.0."""
    return int(library().cudnnGetVersion())


def cudnnGetMaxDeviceVersion() -> int:
    """Return the newest compute capability the library knows, 1200 for 12.0."""
    return int(library().cudnnGetMaxDeviceVersion())


def cudnnGetCudartVersion() -> int:
    """Return the CUDA runtime version the library was built with, 12090 for 12.9."""
    return int(library().cudnnGetCudartVersion())


def cudnnGetErrorString(status: Status | int) -> str:
    """Return cuDNN's name of a status."""
    text: bytes = library().cudnnGetErrorString(_read_int(status, "a status"))
    return text.decode()


def cudnnGetLastErrorString() -> str:
    """Return and clear the last-error text of this thread."""
    return library()._read_last_error().text


def cudnnGetProperty(kind: int) -> int:
    """Return one part of the version: 0 major, 1 minor, 2 patch (``libraryPropertyType``)."""
    value = ctypes.c_int()
    library().cudnnGetProperty(_read_int(kind, "libraryPropertyType"), ctypes.byref(value))
    return value.value


def cudnnGraphVersionCheck() -> None:
    """Check that the sub-libraries are of one version."""
    library().cudnnGraphVersionCheck()


def cudnnCreate() -> Handle:
    """Return a new handle on the current device; needs a GPU."""
    return Handle()


def cudnnDestroy(handle: Handle) -> None:
    """Release a handle."""
    _require_native_object(handle, Handle).close()


def cudnnSetStream(handle: Handle, stream: int) -> None:
    """Set the CUDA stream (address; 0 is the default stream)."""
    _require_native_object(handle, Handle).set_stream(stream)


def cudnnGetStream(handle: Handle) -> int:
    """Return the CUDA stream's address."""
    return _require_native_object(handle, Handle).stream


def cudnnQueryRuntimeError(handle: Handle, mode: ErrQueryMode) -> Status:
    """Return the status that a kernel reported after it ran. Deprecated by cuDNN."""
    status, number = ctypes.c_int(), _read_int(mode, "cudnnErrQueryMode_t")
    if number not in library().enumerators[ErrQueryMode]:
        known = ", ".join(f"{item.name} ({int(item)})" for item in ErrQueryMode)
        raise UsageError(
            f"{number} is not an ErrQueryMode", code="unknown-enumerator", fix=f"use one of ErrQueryMode: {known}"
        )
    library().cudnnQueryRuntimeError(_require_native_object(handle, Handle).pointer, ctypes.byref(status), number, None)
    return Status(status.value)


def cudnnSetCallback(
    mask: int, function: Callable[[int, int | None, Any, int], None] | None, user_data: int | None = None
) -> None:
    """Install `function(severity, user_data, debug_info, message_address)` for the severities in `mask`.

    ``capture_log`` is the comfortable way, and goes on hearing next to it. ``None`` gives the log back to the
    environment's destination. What `function` makes cuDNN log itself is not told to it. What it raises is raised by the
    call whose message it was given, when cuDNN has returned.
    """
    if function is not None and not callable(function):
        raise UsageError(
            f"cudnnCallback_t must be a function or None, got {format_value(function)}", code="wrong-argument"
        )
    address = None if user_data is None else _read_address(user_data, "user data")
    from .log import get_log_hub  # few programs set a callback

    get_log_hub(library()).set_listener(_read_int(mask, "a severity mask"), address, function)


def cudnnGetCallback() -> tuple[int, int | None, int | None]:
    """Return (mask, user data, address of the function)."""
    mask, user_data, function = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    library().cudnnGetCallback(ctypes.byref(mask), ctypes.byref(user_data), ctypes.byref(function))
    return mask.value, user_data.value, function.value


def cudnnBackendCreateDescriptor(kind: DescriptorType) -> Descriptor:
    """Return a new descriptor."""
    return Descriptor(kind)


def cudnnBackendDestroyDescriptor(descriptor: Descriptor) -> None:
    """Release a descriptor."""
    _require_native_object(descriptor, Descriptor).close()


def cudnnBackendInitialize(descriptor: Descriptor) -> None:
    """Reset an open descriptor; deprecated by cuDNN, which initializes descriptors on creation."""
    _require_native_object(descriptor, Descriptor).initialize()


def cudnnBackendFinalize(descriptor: Descriptor) -> None:
    """Finalize a descriptor."""
    _require_native_object(descriptor, Descriptor).finalize()


def cudnnBackendSetAttribute(
    descriptor: Descriptor,
    attribute: AttributeName,
    element_type: AttributeType,
    count: int,
    elements: Sequence[Any] | str,
) -> None:
    """Set an attribute of `count` elements."""
    _require_native_object(descriptor, Descriptor)
    number = read_number(count, "the count", -(1 << 63), (1 << 63) - 1)
    if is_instance(elements, str):
        held = len(str.__str__(elements)) + 1
        items: Any = elements
    else:
        if not is_one_dimensional(elements):
            raise UsageError(
                f"the elements must be a sequence, got {format_value_with_type(elements)}", code="wrong-argument"
            )
        items = read_sequence(elements, "elements", 0, None)
        held = len(items)
    if held != number:
        raise UsageError(
            f"{format_value(attribute)}: the count is {number}, but {held} elements were given",
            code="wrong-element-count",
        )
    descriptor.set(attribute, items, type=element_type)


def cudnnBackendGetAttribute(
    descriptor: Descriptor, attribute: AttributeName, element_type: AttributeType, requested: int
) -> tuple[int, Any]:
    """Return (element count, elements); with `requested` 0 only the count, so that a loop can request as many.

    Of text, the count is that of its bytes, and the one element is all of it. What cuDNN answers for a requested count
    of 0 is not for every attribute the count: see :meth:`Descriptor.count`. As in C, a list of engine configs is empty
    where cuDNN cannot judge, because NVRTC is missing, for example: the first such list warns about it.
    """
    _require_native_object(descriptor, Descriptor)
    number = read_number(requested, "the requested count", -(1 << 63), (1 << 63) - 1)
    if number < 0:
        raise UsageError(f"the requested count must be at least 0, got {number}", code="wrong-element-count")
    try:
        if number == 0:
            return descriptor.count(attribute, element_type), ()
        value = descriptor.get(attribute, type=element_type)
    except EnvironmentNotReady as error:
        _warn_about_empty_config_list(error)
        return 0, ()
    if isinstance(value, str):
        return descriptor.count(attribute, element_type), (value,)
    values = value[:number] if isinstance(value, tuple) else (value,)
    return len(values), values


_warned_about: set[str] = set()  # codes of environment problems


def _warn_about_empty_config_list(error: EnvironmentNotReady) -> None:
    """Warn that an environment problem explains an empty list of engine configs, once per process and problem."""
    if error.code not in _warned_about:
        _warned_about.add(error.code)
        text = f"cuDNN lists no engine config for any graph: {error.headline} ({error.code})"
        warnings.warn(f"{text}. Fix: {error.sections['fix']}", RuntimeWarning, stacklevel=3)


def cudnnGetExecutionPlanWorkspaceSize(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> int:
    """Return the workspace in bytes this plan needs with this variant pack. Since cuDNN 9.23."""
    size = ctypes.c_size_t()
    function = library().cudnnGetExecutionPlanWorkspaceSize
    function(*_get_native_arguments(handle, plan, variant_pack), ctypes.byref(size))
    return size.value


def cudnnBackendExecute(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> None:
    """Run a plan on the handle's stream."""
    _get_native_arguments(handle, plan, variant_pack)
    plan.execute(handle, variant_pack)


def cudnnBackendPopulateCudaGraph(handle: Handle, plan: Descriptor, variant_pack: Descriptor, graph: int) -> None:
    """Add the plan's nodes to a ``cudaGraph_t``, given by its address."""
    address = _read_address(graph, "cudaGraph_t")
    library().cudnnBackendPopulateCudaGraph(*_get_native_arguments(handle, plan, variant_pack), address)


def cudnnBackendUpdateCudaGraph(handle: Handle, plan: Descriptor, variant_pack: Descriptor, graph: int) -> None:
    """Give a populated ``cudaGraph_t`` the pointers of another variant pack."""
    address = _read_address(graph, "cudaGraph_t")
    library().cudnnBackendUpdateCudaGraph(*_get_native_arguments(handle, plan, variant_pack), address)
