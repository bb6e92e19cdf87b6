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
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import UsageError
from ..generated.enums import AttributeName, AttributeType, DescriptorType, ErrQueryMode, Status
from .descriptor import Descriptor, Handle
from .library import LogCallback, library

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

_installed_callback: Any = None  # cuDNN keeps only the address


def _address(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise UsageError(f"{what} needs an address, got {value!r}", code="null-pointer")
    return value


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
    text: bytes = library().cudnnGetErrorString(int(status))
    return text.decode()


def cudnnGetLastErrorString() -> str:
    """Return and clear the last-error text of this thread."""
    return library()._read_last_error().text


def cudnnGetProperty(kind: int) -> int:
    """Return one part of the version: 0 major, 1 minor, 2 patch (``libraryPropertyType``)."""
    value = ctypes.c_int()
    library().cudnnGetProperty(kind, ctypes.byref(value))
    return value.value


def cudnnGraphVersionCheck() -> None:
    """Check that the sub-libraries are of one version."""
    library().cudnnGraphVersionCheck()


def cudnnCreate() -> Handle:
    """Return a new handle on the current device; needs a GPU."""
    return Handle()


def cudnnDestroy(handle: Handle) -> None:
    """Let go of a handle."""
    handle.close()


def cudnnSetStream(handle: Handle, stream: int) -> None:
    """Set the CUDA stream (address; 0 is the default stream)."""
    handle.set_stream(stream)


def cudnnGetStream(handle: Handle) -> int:
    """Return the CUDA stream's address."""
    return handle.stream


def cudnnQueryRuntimeError(handle: Handle, mode: ErrQueryMode) -> Status:
    """Return the status a kernel left behind. Deprecated by cuDNN."""
    status = ctypes.c_int()
    library().cudnnQueryRuntimeError(handle.pointer, ctypes.byref(status), int(mode), None)
    return Status(status.value)


def cudnnSetCallback(
    mask: int, function: Callable[[int, int | None, Any, int], None] | None, user_data: int | None = None
) -> None:
    """Install `function(severity, user_data, debug_info, message_address)` for the severities in `mask`.

    ``capture_log`` is the comfortable way. ``None`` gives the log back to the environment's destination.
    """
    global _installed_callback
    callback = LogCallback(function) if function is not None else LogCallback()
    library().cudnnSetCallback(mask, user_data, callback)
    _installed_callback = callback


def cudnnGetCallback() -> tuple[int, int | None, int | None]:
    """Return (mask, user data, address of the function)."""
    mask, user_data, function = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    library().cudnnGetCallback(ctypes.byref(mask), ctypes.byref(user_data), ctypes.byref(function))
    return mask.value, user_data.value, function.value


def cudnnBackendCreateDescriptor(kind: DescriptorType) -> Descriptor:
    """Return a new descriptor."""
    return Descriptor(kind)


def cudnnBackendDestroyDescriptor(descriptor: Descriptor) -> None:
    """Let go of a descriptor."""
    descriptor.close()


def cudnnBackendInitialize(descriptor: Descriptor) -> None:
    """Make a descriptor ready for use again; deprecated by cuDNN, which does it on creation."""
    library().cudnnBackendInitialize(descriptor.pointer)


def cudnnBackendFinalize(descriptor: Descriptor) -> None:
    """Finalize a descriptor."""
    descriptor.finalize()


def cudnnBackendSetAttribute(
    descriptor: Descriptor,
    attribute: AttributeName,
    element_type: AttributeType,
    count: int,
    elements: Sequence[Any] | str,
) -> None:
    """Set an attribute of `count` elements."""
    held = len(elements) + 1 if isinstance(elements, str) else len(elements)
    if held != count:
        raise UsageError(
            f"{attribute.c_name}: a count of {count} was given with {held} elements",
            code="wrong-element-count",
        )
    descriptor.set(attribute, elements, type=element_type)


def cudnnBackendGetAttribute(
    descriptor: Descriptor, attribute: AttributeName, element_type: AttributeType, requested: int
) -> tuple[int, Any]:
    """Return (element count, elements); with `requested` 0 only the count."""
    if requested == 0:
        return descriptor.count(attribute, element_type), ()
    value = descriptor.get(attribute, type=element_type)
    values = value if isinstance(value, tuple) else (value,)
    return len(values), values[:requested]


def cudnnGetExecutionPlanWorkspaceSize(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> int:
    """Return the workspace in bytes this plan needs with this variant pack. Since cuDNN 9.23."""
    size = ctypes.c_size_t()
    library().cudnnGetExecutionPlanWorkspaceSize(handle.pointer, plan.pointer, variant_pack.pointer, ctypes.byref(size))
    return size.value


def cudnnBackendExecute(handle: Handle, plan: Descriptor, variant_pack: Descriptor) -> None:
    """Run a plan on the handle's stream."""
    plan.execute(handle, variant_pack)


def cudnnBackendPopulateCudaGraph(handle: Handle, plan: Descriptor, variant_pack: Descriptor, graph: int) -> None:
    """Add the plan's nodes to a ``cudaGraph_t``, given by its address."""
    library().cudnnBackendPopulateCudaGraph(
        handle.pointer, plan.pointer, variant_pack.pointer, _address(graph, "cudaGraph_t")
    )


def cudnnBackendUpdateCudaGraph(handle: Handle, plan: Descriptor, variant_pack: Descriptor, graph: int) -> None:
    """Give a populated ``cudaGraph_t`` the pointers of another variant pack."""
    library().cudnnBackendUpdateCudaGraph(
        handle.pointer, plan.pointer, variant_pack.pointer, _address(graph, "cudaGraph_t")
    )
