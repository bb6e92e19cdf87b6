"""Handles, streams and devices under cudnn-frontend's names, and the GPU for which programs are judged without one."""

from __future__ import annotations

import json
import os
import threading
from functools import cache, cached_property
from typing import Any, Self

from ..errors import GraphError, UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import DescriptorType
from ..known_issues import KnownIssue
from ..native import Descriptor, Handle, Library, current_device, library
from ..printable import format_repr
from ..system.untrusted_files import parse_json
from ..target import Profile, Target, find_profile, open_target, read_device, read_device_profile
from .arguments import check_instance, to_int
from .errors import (
    FrontendRuntimeError,
    FrontendUsageError,
    convert_errors,
    make_invalid_value_error,
    make_wrong_results_error,
)

__all__ = [
    "DescribedHandle",
    "DeviceInfo",
    "FrontendHandle",
    "create_device_properties",
    "create_handle",
    "create_kernel_cache",
    "default_target",
    "destroy_handle",
    "device_properties",
    "find_target",
    "get_cached_handle",
    "get_stream",
    "kernel_cache",
    "make_not_a_handle_error",
    "set_default_target",
    "set_stream",
    "to_backend_handle",
]

_handle_lock = threading.Lock()
_default_target: Profile | None = None
_shared_handles: dict[tuple[int, ...], Handle] = {}  # by process and device


class DeviceInfo(int):
    """The GPU of a handle: its ordinal, and properties that are queried on first use."""

    _known_properties: dict[str, Any] | None = None

    def __new__(cls, ordinal: int) -> Self:
        return super().__new__(cls, ordinal)

    @property
    def ordinal(self) -> int:
        """The CUDA ordinal."""
        return int(self)

    def __repr__(self) -> str:
        return f"DeviceInfo(cuda:{int(self)})"

    @cached_property
    def _properties(self) -> dict[str, Any]:
        if self._known_properties is not None:
            return self._known_properties
        with convert_errors(FrontendRuntimeError, f"GPU {int(self)}"):
            return dict(read_device(int(self)))

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Compute capability as major and minor number, (9, 0) for an H100."""
        major, minor = divmod(int(self._properties["deviceVer"]) // 10, 10)
        return major, minor

    @property
    def sm_version(self) -> int:
        """The architecture, 90 for sm_90."""
        return int(self._properties["deviceVer"]) // 10

    @property
    def sm_count(self) -> int:
        """Number of multiprocessors."""
        return int(self._properties["multiProcessorCount"])

    @property
    def shared_memory_per_block_optin(self) -> int:
        """Bytes of shared memory that a block can request."""
        return int(self._properties["maxSharedMemoryPerBlockOptin"])

    @property
    def oversized_shared_memory_per_block(self) -> int:
        """Bytes of shared memory per block in the oversized mode, 0 if it has none."""
        return int(self._properties.get("oversizedSharedMemoryPerBlock", 0))

    @property
    def l2_cache_bytes(self) -> int:
        """Bytes of the L2 cache."""
        return int(self._properties["l2CacheSize"])

    @property
    def device_name(self) -> str:
        """The GPU's name."""
        return str(self._properties["deviceName"])


class DescribedHandle:
    """A handle of a described GPU, which cannot run plans."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.stream = 0
        self.backend_handle: int | None = None
        self.device = DeviceInfo(0)
        self.device._known_properties = dict(target.profile.properties)

    def __repr__(self) -> str:
        return f"<handle of the described {self.target.name}>"


class _HandleMeta(type):
    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, (Handle, DescribedHandle))


class FrontendHandle(metaclass=_HandleMeta):
    """``cudnn.Handle``: the class for ``isinstance`` checks of the handles that :func:`create_handle` returns.

    ``backend_handle`` is the address of the ``cudnnHandle_t``, ``device`` a :class:`DeviceInfo`, ``stream`` the address
    of the CUDA stream.
    """

    backend_handle: int | None = None
    device: DeviceInfo = DeviceInfo(0)
    stream: int = 0

    def __new__(cls, backend_handle: int | None, ordinal: int | None = None, stream: int | None = None) -> Any:
        """Wrap the address of a handle and its stream; only possible if programs are judged for a described GPU.

        Raises
        ------
        NotImplementedError
            Elsewhere: the handle may be of another cuDNN.
        """
        if _default_target is None:
            raise NotImplementedError(
                "a cudnnHandle_t of another library is not accepted, as it may belong to another cuDNN; "
                "cudnn.create_handle() makes one, and set_stream() gives it the other one's stream"
            )
        made = DescribedHandle(_get_described_target(_default_target))
        made.backend_handle, made.stream = backend_handle, stream or 0
        return made


def set_default_target(name: str | None) -> None:
    """Judge programs for a described GPU (``h100``, ``sm80``, a JSON file); None uses the real GPU again.

    Raises
    ------
    UsageError
        ``unknown-target``.
    """
    global _default_target
    try:
        _default_target = None if name is None else find_profile(name)
    except UsageError as error:
        raise FrontendUsageError(error.headline, code=error.code, **error.sections) from None


def default_target() -> str | None:
    """Return the name of the described GPU that programs are judged for, None if they run on the real GPU."""
    return None if _default_target is None else _default_target.name


def _get_described_target(profile: Profile) -> Target:
    from ..plans.build import shared_target  # only where programs are judged for a described GPU

    return shared_target(profile)


def create_handle() -> Handle | DescribedHandle:
    """Return a handle on the current CUDA device. C: ``cudnnCreate``.

    Raises
    ------
    RuntimeError
        Where there is no GPU, with what to do.
    """
    if _default_target is not None:
        return DescribedHandle(_get_described_target(_default_target))
    lib = library()
    _require_gpu(lib)
    return _new_handle(lib)


def _require_gpu(lib: Library) -> None:
    if lib.driver.kind != "real" or not lib.driver.devices:
        raise FrontendRuntimeError(
            "there is no GPU in this process, so no handle can be made",
            code="no-gpu",
            where=f"libcuda.so.1: {lib.driver.kind}, {lib.driver.devices} devices",
            fix="judge for a described GPU: python -m cudnn_backend_py.frontend --target h100 ..., "
            "or pygraph(device_property=cudnn.create_device_properties(json))",
        )


def _new_handle(lib: Library) -> Handle:
    with convert_errors(FrontendRuntimeError, "no handle could be made"):
        handle = Handle(on=lib)
    handle.device = DeviceInfo(handle.device)
    vars(handle)["backend_handle"] = handle.pointer.value
    return handle


def _require_described_handle(handle: Any) -> DescribedHandle:
    if not isinstance(handle, DescribedHandle):
        raise make_not_a_handle_error(handle)
    return handle


def make_not_a_handle_error(handle: object) -> TypeError:
    """Return the error for a value that is not a handle of this module."""
    return TypeError(f"handle must be a cudnn.Handle from cudnn.create_handle(), got {format_repr(handle)}")


def destroy_handle(handle: Handle | DescribedHandle) -> None:
    """Release a handle. C: ``cudnnDestroy``, called when no graph uses it any longer.

    Raises
    ------
    TypeError
        If it is no handle of this module; so do :func:`set_stream` and :func:`get_stream`.
    """
    if isinstance(handle, Handle):
        handle.close()
        vars(handle)["backend_handle"] = None
    else:
        _require_described_handle(handle).backend_handle = None


def set_stream(handle: Handle | DescribedHandle, stream: int) -> None:
    """Make the handle use a CUDA stream, given by its address. C: ``cudnnSetStream``."""
    if isinstance(handle, Handle):
        handle.set_stream(stream)
    else:
        _require_described_handle(handle).stream = stream


def get_stream(handle: Handle | DescribedHandle) -> int:
    """Return the address of the handle's CUDA stream. C: ``cudnnGetStream``."""
    return handle.stream if isinstance(handle, Handle) else _require_described_handle(handle).stream


def to_backend_handle(handle: Handle | DescribedHandle | None) -> int | None:
    """Return the address of the ``cudnnHandle_t``; None for None and for a handle of a described GPU.

    Raises
    ------
    TypeError
        If `handle` is no handle of this module.
    """
    if handle is None:
        return None
    found: int | None = vars(handle if isinstance(handle, Handle) else _require_described_handle(handle))[
        "backend_handle"
    ]
    return found


def get_shared_handle() -> Handle:
    """Return the handle of all graphs that were created without a handle, one per process and device.

    It is not that of :func:`~cudnn_backend_py.plans.build.shared_target`, whose stream
    :func:`~cudnn_backend_py.execution.execute` may set.
    """
    _require_gpu(library())
    return get_cached_handle(_shared_handles, current_device())


def get_cached_handle(handles: dict[tuple[int, ...], Handle], *key: int) -> Handle:
    """Return the handle for `key` in this process, created if there is none or it is closed.

    Raises
    ------
    RuntimeError
        Where there is no GPU.
    """
    lib = library()
    _require_gpu(lib)
    with _handle_lock:
        handle = handles.get((os.getpid(), *key))
        if handle is None or handle.closed:
            handle = handles[(os.getpid(), *key)] = _new_handle(lib)
        return handle


def _reset_handles_after_fork() -> None:
    global _handle_lock, _shared_handles
    _handle_lock, _shared_handles = threading.Lock(), {}  # as in planning: a thread that is not here may hold the lock


os.register_at_fork(after_in_child=_reset_handles_after_fork)


def find_target(handle: Any, properties: device_properties | None) -> Target:
    """Return the target of a graph: from device properties, its handle's device, or the default.

    Raises
    ------
    TypeError
        If `handle` is no handle of this module.
    """
    own = isinstance(handle, Handle)
    described = None if own or handle is None else _require_described_handle(handle)
    if properties is not None:
        return properties.target
    if described is not None:
        return described.target
    if handle is None and _default_target is not None:
        return _get_described_target(_default_target)
    handle = handle if own else get_shared_handle()
    return Target(_get_device_profile(handle.device), handle=handle, library=library())


@cache
def _get_device_profile(device: int) -> Profile:
    return read_device_profile(device)


class device_properties:
    """Properties of a GPU, from the device or from JSON, to build graphs without that GPU.

    C: ``CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR`` (since 9.8).
    """

    def __init__(self, properties: dict[str, Any], text: str) -> None:
        self._text = text
        known = dict.fromkeys(properties, "given")
        profile = Profile("described", str(properties.get("deviceName", "a GPU")), (), properties, known, {})
        with convert_errors(FrontendRuntimeError, "these device properties"):
            self.target = open_target(profile)

    def serialize(self) -> str:
        """Return the properties as JSON."""
        return self._text


def create_device_properties(source: int | str) -> device_properties:
    """Return the properties of the GPU with this ordinal, or those in a JSON text.

    Raises
    ------
    RuntimeError
        If there is no such GPU, or the text is not what cuDNN wants.
    """
    if isinstance(source, str):
        try:
            properties = parse_json(source, "the text of device properties", code="frontend-value")
        except GraphError as error:
            raise make_invalid_value_error(error.headline) from None
        if not isinstance(properties, dict):
            raise make_invalid_value_error(
                f"the text of device properties is {source[:60]!r}, a JSON object is needed",
                fix="give what serialize() of device properties returned",
            )
        return device_properties(properties, source)
    if _default_target is not None:
        properties = _get_described_target(_default_target).profile.properties
    else:
        with convert_errors(FrontendRuntimeError, f"GPU {source}"):
            properties = read_device(to_int("a GPU, or the text of its properties,", source))
    return device_properties(dict(properties), json.dumps(properties))


class kernel_cache:
    """Kernels compiled once for graphs of one kind with different shapes.

    C: ``CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR`` (since 9.4; JSON since 9.10).
    """

    def __init__(self) -> None:
        self._descriptor: Descriptor | None = None
        self._handle_lock = threading.Lock()
        self._dims: list[Any] | None = None

    def get_or_make_descriptor(self, operation_graph: Descriptor) -> Descriptor:
        """Return the finalized descriptor of this cache; the first graph that uses the cache determines its type."""
        with self._handle_lock:
            lib = operation_graph.library
            made = self._descriptor or Descriptor(DescriptorType.KERNEL_CACHE, on=lib)
            if not made.finalized:
                if lib.version >= (9, 10, 0):
                    made.set(Attr.KERNEL_CACHE_OPERATION_GRAPH, operation_graph)
                self._descriptor = made.finalize()
            return made

    def check_dims(self, dims: list[Any], fault: KnownIssue) -> None:
        """Raise if the dims differ from those of the first graph and cuDNN is known to compute wrong results then.

        Raises
        ------
        cudnnGraphNotSupportedError
            With the fault, and what was measured.
        """
        with self._handle_lock:
            self._dims = dims if self._dims is None else self._dims
            if self._dims != dims:
                raise make_wrong_results_error(fault, f"the kernel cache was made for the dims {self._dims[0]} ...")

    def size(self) -> int:
        """Return cuDNN's count of the compiled kernels; requires cuDNN 9.27.

        Raises
        ------
        RuntimeError
            Before a graph was built with it, and where cuDNN is older.
        """
        return self._read_number(Attr.KERNEL_CACHE_ENTRY_COUNT)

    def revision(self) -> int:
        """Return a number that grows when this process's kernels change; requires cuDNN 9.27."""
        return self._read_number(Attr.KERNEL_CACHE_REVISION)

    def _read_number(self, attribute: Attr) -> int:
        descriptor = self._require_descriptor()
        if descriptor.library.version < (9, 27, 0):
            raise make_invalid_value_error(
                f"{attribute.name} needs cuDNN 9.27, the loaded library is {descriptor.library.version}",
                fix="cudnn-backend cudnn install 9.27.0",
            )
        with convert_errors(FrontendRuntimeError, "the kernel cache"):
            return int(descriptor.get(attribute))

    def _require_descriptor(self) -> Descriptor:
        if self._descriptor is None or not self._descriptor.finalized:
            raise make_invalid_value_error(
                "this kernel cache is empty: no graph was built with it yet",
                fix="build a graph with it first: pygraph(kernel_cache=...)",
            )
        return self._descriptor

    def serialize(self) -> str:
        """Return the compiled kernels as JSON.

        Raises
        ------
        RuntimeError
            If no graph was built with it yet.
        """
        descriptor = self._require_descriptor()
        with convert_errors(FrontendRuntimeError, "the kernel cache"):
            return str(descriptor.get(Attr.KERNEL_CACHE_JSON_REPRESENTATION))

    def deserialize(self, text: str) -> None:
        """Fill a new cache with the result of :meth:`serialize`.

        Raises
        ------
        RuntimeError
            If it holds kernels already, or cuDNN refuses the text.
        TypeError
            If it is no text.
        """
        check_instance("the serialized kernel cache", text, str, "a text")
        with self._handle_lock, convert_errors(FrontendRuntimeError, "the kernel cache"):
            if self._descriptor is not None:
                raise make_invalid_value_error(
                    "this kernel cache is already in use, an empty one is needed",
                    fix="deserialize into a new one: cudnn.create_kernel_cache()",
                )
            made = Descriptor(DescriptorType.KERNEL_CACHE, on=library())
            self._descriptor = made.set(Attr.KERNEL_CACHE_JSON_REPRESENTATION, text)


def create_kernel_cache() -> kernel_cache:
    """Return an empty kernel cache."""
    return kernel_cache()
