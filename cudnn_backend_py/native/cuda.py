"""CUDA driver functions to run a plan: addresses, contexts, memory, events, CUDA graphs.

C: ``cuda.h``, driver API 12 and later. Only where :func:`~cudnn_backend_py.native.driver.load_driver` found the real
driver, and after a handle has made a context current.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

from ..errors import CudnnBackendError
from ..frozen import FrozenValue
from .driver import SONAME

__all__ = [
    "CudaGraphHandle",
    "Fence",
    "Memory",
    "PointerFacts",
    "Timer",
    "call_driver",
    "get_captured_graph",
    "get_current_context",
    "in_context",
    "is_capturing",
    "keep_alive_with_cuda_graph",
    "load_context_functions",
    "load_driver_function",
    "make_driver_error",
    "make_stream_context_current",
    "on_device",
    "query_device_limits",
    "query_device_name",
    "query_l2_bytes",
    "query_pointer",
    "query_sm_version",
    "relax_stream_capture_mode",
    "release_objects_of_destroyed_graphs",
    "restore_context",
]

_MEMORY_TYPE, _DEVICE_ORDINAL = 2, 9  # CU_POINTER_ATTRIBUTE_*
_L2_CACHE_SIZE, _MAJOR, _MINOR = 38, 75, 76  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, ..._COMPUTE_CAPABILITY_*
_LIMITS = {  # CU_DEVICE_ATTRIBUTE_*, by cuDNN's name of the property
    "maxThreadsPerBlock": 1,
    "maxSharedMemoryPerBlock": 8,
    "warpSize": 10,
    "regsPerBlock": 12,
    "multiProcessorCount": 16,
    "memoryBusWidth": 37,
    "maxThreadsPerSM": 39,
    "maxRegistersPerSM": 82,
    "maxSharedMemoryPerBlockOptin": 97,
    "maxCtasPerSM": 106,
    "reservedSharedMemoryPerBlock": 111,
}
_EVENT_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_CAPTURE_ERRORS = range(900, 910)  # CUDA_ERROR_STREAM_CAPTURE_*
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_NO_DESTRUCTOR_SYNC, _MOVE_REFERENCE = 1, 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_GRAPH_USER_OBJECT_MOVE
_DEFAULT_STREAMS = (0, 1, 2)  # NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
_SEMAPHORE_BYTES = 64  # a sem_t has 32
_MEMORY_KINDS = {1: "host", 2: "device", 3: "array", 4: "unified"}


@cache
def _load_driver() -> ctypes.CDLL:
    return ctypes.CDLL(SONAME)


class PointerFacts(FrozenValue):
    """CUDA's facts about an address: ``kind`` is ``device``, ``host`` (pinned) or ``unknown``.

    ``device`` is the GPU's ordinal, ``bytes_left`` the bytes from the address to the end of its allocation; None where
    CUDA does not say.
    """

    kind: str
    device: int | None = None
    bytes_left: int | None = None


def query_pointer(address: int) -> PointerFacts:
    """Query CUDA about an address. C: ``cuPointerGetAttribute``, ``cuMemGetAddressRange``."""
    cuda, pointer = _load_driver(), ctypes.c_uint64(address)
    kind, device = ctypes.c_uint(), ctypes.c_int()
    if cuda.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, pointer):
        return PointerFacts("unknown")
    has_device = not cuda.cuPointerGetAttribute(ctypes.byref(device), _DEVICE_ORDINAL, pointer)
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    has_range = not cuda.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), pointer)
    return PointerFacts(
        _MEMORY_KINDS.get(kind.value, "unknown"),
        device.value if has_device else None,
        start.value + size.value - address if has_range else None,
    )


def load_context_functions() -> tuple[Any, Any, Any]:
    """Return ``cuCtxGetCurrent``, ``cuCtxPushCurrent`` and ``cuCtxPopCurrent``."""
    cuda = _load_driver()
    return cuda.cuCtxGetCurrent, cuda.cuCtxPushCurrent_v2, cuda.cuCtxPopCurrent_v2


def get_current_context() -> int:
    """Return the address of the CUDA context that is current in this thread, 0 for none. C: ``cuCtxGetCurrent``."""
    context = ctypes.c_void_p()
    return context.value or 0 if not _load_driver().cuCtxGetCurrent(ctypes.byref(context)) else 0


@contextmanager
def in_context(context: int) -> Iterator[None]:
    """Make a CUDA context current in this thread for a block; 0 keeps the current one. C: ``cuCtxPushCurrent``.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    if not context or get_current_context() == context:
        yield
        return
    call_driver("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
    try:
        yield
    finally:
        call_driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@contextmanager
def restore_context() -> Iterator[None]:
    """Restore this thread's current CUDA context at the end of a block. C: ``cuCtxSetCurrent``."""
    context = get_current_context()
    try:
        yield
    finally:
        _load_driver().cuCtxSetCurrent(ctypes.c_void_p(context))


@cache
def _retain_primary_context(device: int) -> int:
    """Return the address of a GPU's primary context, retained for the process. C: ``cuDevicePrimaryCtxRetain``."""
    context = ctypes.c_void_p()
    call_driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """Make a GPU's primary context current in this thread for a block, unless one of that GPU is current.

    The context is retained for the process, so memory and events of the block outlive it.

    C: ``cuDevicePrimaryCtxRetain``, ``cuCtxPushCurrent``.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    device = ctypes.c_int()
    if not _load_driver().cuCtxGetDevice(ctypes.byref(device)) and device.value == ordinal:
        yield
        return
    with in_context(_retain_primary_context(ordinal)):
        yield


def make_stream_context_current(stream: int, device: int) -> None:
    """Make the CUDA context of a stream current in this thread, as the CUDA runtime would.

    A default stream belongs to the current context: if there is none, or it is another GPU's, the primary context of
    the GPU is made current. C: ``cuStreamGetCtx``, ``cuCtxSetCurrent``.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    here, needed = get_current_context(), ctypes.c_void_p()
    if stream not in _DEFAULT_STREAMS:
        _load_driver().cuStreamGetCtx(ctypes.c_void_p(stream), ctypes.byref(needed))
    if needed.value is None:
        found = ctypes.c_int(-1)
        if here and not _load_driver().cuCtxGetDevice(ctypes.byref(found)) and found.value == device:
            return
        needed.value = _retain_primary_context(device)
    if needed.value != here:
        call_driver("cuCtxSetCurrent", needed)


@contextmanager
def relax_stream_capture_mode() -> Iterator[None]:
    """Allow calls in a block that would otherwise invalidate a stream capture in progress.

    C: ``cuThreadExchangeStreamCaptureMode``.
    """
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    call_driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        call_driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


def load_driver_function(name: str) -> Any:
    """Return a function of the driver, whose status is returned unchecked."""
    return _load_driver()[name]


def call_driver(name: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    if status := _load_driver()[name](*arguments):
        raise make_driver_error(name, status)


def make_driver_error(name: str, status: int) -> CudnnBackendError:
    """Return the error for a status of a driver function."""
    text = ctypes.c_char_p()
    _load_driver().cuGetErrorName(status, ctypes.byref(text))
    return CudnnBackendError(f"{name} answered {(text.value or b'?').decode()} ({status})", code="cuda-driver")


def is_capturing(stream: int) -> bool:
    """Return whether a CUDA stream is being captured, also where the capture has failed. C: ``cuStreamIsCapturing``.

    A thread without a context, such as a fresh one of torch's autograd, captures nothing.
    """
    found = ctypes.c_int()
    status: int = _load_driver().cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(found))
    return bool(found.value) or status in _CAPTURE_ERRORS


def get_captured_graph(stream: int) -> tuple[int, int] | None:
    """Return the id of the stream's capture and the address of its ``CUgraph``; None if it is not captured.

    C: ``cuStreamGetCaptureInfo_v2``.
    """
    state, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    asked = (ctypes.byref(state), ctypes.byref(number), ctypes.byref(graph), None, None)
    if _load_driver().cuStreamGetCaptureInfo_v2(ctypes.c_void_p(stream), *asked) or state.value != _CAPTURING:
        return None
    return number.value, graph.value or 0


# What CUDA graphs keep, by the address of a semaphore that their end raises.
_objects_kept_for_graphs: dict[int, tuple[Any, object]] = {}


def keep_alive_with_cuda_graph(graph: int, what: object) -> None:
    """Keep an object alive as long as a ``CUgraph``, its clones and their executable graphs exist.

    Code that runs when they end must not call CUDA, in any thread, so their end is only signalled, by C's
    ``sem_post``: the object is released when the next one is kept, or by :func:`release_objects_of_destroyed_graphs`.

    C: ``cuUserObjectCreate``, ``cuGraphRetainUserObject``.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    release_objects_of_destroyed_graphs()
    libc, raised = ctypes.CDLL(None), ctypes.create_string_buffer(_SEMAPHORE_BYTES)
    libc.sem_init(raised, 0, 0)
    address = ctypes.addressof(raised)
    made = ctypes.c_void_p()
    call_driver("cuUserObjectCreate", ctypes.byref(made), raised, libc.sem_post, 1, _NO_DESTRUCTOR_SYNC)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(raised))  # CUDA may write it after Python has ended
    _objects_kept_for_graphs[address] = raised, what
    try:
        call_driver("cuGraphRetainUserObject", ctypes.c_void_p(graph), made, 1, _MOVE_REFERENCE)
    except CudnnBackendError:
        _load_driver().cuUserObjectRelease(made, 1)
        raise


def release_objects_of_destroyed_graphs() -> None:
    """Release the objects kept for CUDA graphs that no longer exist."""
    if not _objects_kept_for_graphs:
        return
    count, sem_getvalue = ctypes.c_int(), ctypes.CDLL(None).sem_getvalue
    ended = []
    for address, (raised, _what) in list(_objects_kept_for_graphs.items()):
        sem_getvalue(raised, ctypes.byref(count))
        if count.value > 0:
            ended.append(address)
    if not ended:
        return
    with relax_stream_capture_mode():
        for address in ended:
            if (entry := _objects_kept_for_graphs.pop(address, None)) is not None:  # no other thread was quicker
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(entry[0]))
            del entry


def _forget_parent_process_objects() -> None:
    """Forget, in a forked child, the objects kept for CUDA graphs of the parent."""
    global _objects_kept_for_graphs
    _parent_objects.append(_objects_kept_for_graphs)
    _objects_kept_for_graphs = {}


_parent_objects: list[object] = []
os.register_at_fork(after_in_child=_forget_parent_process_objects)


class Memory:
    """Memory of one GPU, freed together. Threads may share it.

    As a context manager it frees at the end; where an exception ends it, that one is reported and not one of freeing.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._addresses: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        with suppress(*() if kind is None else (CudnnBackendError,)):
            self.free()

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory, 0 for 0 bytes; allowed while a stream is captured.

        C: ``cuMemAlloc``, ``cuThreadExchangeStreamCaptureMode``.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``.
        """
        if not size_bytes:
            return 0
        address = ctypes.c_uint64()
        with on_device(self._device), relax_stream_capture_mode():
            call_driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self._addresses.append(address.value)
        return address.value

    def zeros(self, size_bytes: int) -> int:
        """Return the address of new zeroed memory. C: ``cuMemsetD8``."""
        address = self.allocate(size_bytes)
        if size_bytes:
            with on_device(self._device):
                call_driver("cuMemsetD8_v2", ctypes.c_uint64(address), 0, ctypes.c_size_t(size_bytes))
        return address

    def clear(self, address: int, size_bytes: int, stream: int) -> None:
        """Set memory to zero in stream order. C: ``cuMemsetD8Async``."""
        self.fill(address, size_bytes, 0, stream)

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        """Set every byte of memory in stream order. C: ``cuMemsetD8Async``."""
        value, size = ctypes.c_ubyte(byte), ctypes.c_size_t(size_bytes)
        with on_device(self._device):
            call_driver("cuMemsetD8Async", ctypes.c_uint64(address), value, size, ctypes.c_void_p(stream))

    def copy_to_device(self, array: Any) -> int:
        """Copy a C-contiguous NumPy array into new device memory; return its address. C: ``cuMemcpyHtoD``."""
        address = self.allocate(array.nbytes)
        if array.nbytes:
            host, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            with on_device(self._device):
                call_driver("cuMemcpyHtoD_v2", ctypes.c_uint64(address), host, size)
        return address

    def copy_to_host(self, address: int, array: Any) -> None:
        """Copy device memory at an address into a C-contiguous NumPy array. C: ``cuMemcpyDtoH``."""
        if array.nbytes:
            host, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            with on_device(self._device):
                call_driver("cuMemcpyDtoH_v2", host, ctypes.c_uint64(address), size)

    def synchronize(self, stream: int) -> None:
        """Wait until a stream is idle. C: ``cuStreamSynchronize``.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``: also what a kernel of the stream failed with.
        """
        with on_device(self._device):
            call_driver("cuStreamSynchronize", ctypes.c_void_p(stream))

    def free(self) -> None:
        """Free all the memory, after waiting for the device; allowed while a stream is captured. C: ``cuMemFree``."""
        with on_device(self._device), relax_stream_capture_mode():
            while self._addresses:
                call_driver("cuMemFree_v2", ctypes.c_uint64(self._addresses.pop()))


class Timer:
    """Events in a stream and the GPU time between them. C: ``cuEventCreate``, ``cuEventRecord``.

    Parameters
    ----------
    device
        The GPU's ordinal.
    marks
        How many moments are distinguished, numbered from 0.
    """

    def __init__(self, device: int, marks: int) -> None:
        self._device = device
        self._events = [ctypes.c_void_p() for _ in range(marks)]
        with on_device(device):
            for event in self._events:
                call_driver("cuEventCreate", ctypes.byref(event), 0)

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def record(self, number: int, stream: int) -> None:
        """Record the event with this number in a stream."""
        with on_device(self._device):
            call_driver("cuEventRecord", self._events[number], ctypes.c_void_p(stream))

    def measure_microseconds(self, first: int, last: int) -> float:
        """Return the GPU time between two events, after waiting for the second. C: ``cuEventElapsedTime``."""
        found = ctypes.c_float()
        with on_device(self._device):
            call_driver("cuEventSynchronize", self._events[last])
            call_driver("cuEventElapsedTime", ctypes.byref(found), self._events[first], self._events[last])
        return found.value * 1e3

    def close(self) -> None:
        """Destroy the events; harmless when repeated."""
        with on_device(self._device):
            while self._events:
                _load_driver().cuEventDestroy_v2(self._events.pop())


class Fence:
    """Events recorded in several streams, to query whether the work before them has finished in all streams.

    No stream may be captured. Its methods need the streams' context. C: ``cuEventCreate``, ``cuEventRecord``.
    """

    def __init__(self, streams: Iterable[int]) -> None:
        self._events: list[ctypes.c_void_p] = []
        with relax_stream_capture_mode():
            for stream in streams:
                event = ctypes.c_void_p()
                call_driver("cuEventCreate", ctypes.byref(event), _EVENT_DISABLE_TIMING)
                self._events.append(event)
                call_driver("cuEventRecord", event, ctypes.c_void_p(stream))

    def is_passed(self) -> bool:
        """Return whether all streams have passed their events. C: ``cuEventQuery``."""
        return not any(_load_driver().cuEventQuery(event) == _NOT_READY for event in self._events)

    def close(self) -> None:
        """Destroy the events; harmless when repeated."""
        while self._events:
            _load_driver().cuEventDestroy_v2(self._events.pop())


def query_l2_bytes(device: int) -> int:
    """Return the size of a GPU's L2 cache. C: ``cuDeviceGetAttribute``."""
    return _query_device_attribute(device, _L2_CACHE_SIZE)


def query_sm_version(device: int) -> int:
    """Return the architecture of a GPU, 90 for sm_90. C: ``cuDeviceGetAttribute``."""
    return 10 * _query_device_attribute(device, _MAJOR) + _query_device_attribute(device, _MINOR)


def query_device_limits(device: int) -> dict[str, int]:
    """Return the limits of a GPU that the driver knows, by cuDNN's names. C: ``cuDeviceGetAttribute``."""
    return {name: _query_device_attribute(device, number) for name, number in _LIMITS.items()}


def query_device_name(device: int) -> str:
    """Return the name of a GPU. C: ``cuDeviceGetName``."""
    text = ctypes.create_string_buffer(256)
    call_driver("cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")


def _query_device_attribute(device: int, number: int) -> int:
    found = ctypes.c_int()
    call_driver("cuDeviceGetAttribute", ctypes.byref(found), number, device)
    return found.value


class _UpdateResult(ctypes.Structure):
    """``CUgraphExecUpdateResultInfo``."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


class CudaGraphHandle:
    """A ``CUgraph`` and, once :meth:`instantiate` was called, its executable form; destroyed by :meth:`close`."""

    def __init__(self) -> None:
        self._cuda = _load_driver()
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        call_driver("cuGraphCreate", ctypes.byref(self.graph), 0)

    def instantiate(self) -> None:
        """Create the executable graph. C: ``cuGraphInstantiateWithFlags``."""
        call_driver("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.graph, ctypes.c_uint64(0))

    def update(self) -> None:
        """Apply changes of the graph to the executable graph; instantiate it again where CUDA cannot update it.

        C: ``cuGraphExecUpdate``.
        """
        result = _UpdateResult()
        if self._cuda.cuGraphExecUpdate_v2(self.executable, self.graph, ctypes.byref(result)):
            call_driver("cuGraphExecDestroy", self.executable)
            self.executable.value = None  # what is bound holds the same object
            self.instantiate()

    def launch(self, stream: int) -> None:
        """Launch the executable graph on a CUDA stream. C: ``cuGraphLaunch``."""
        call_driver("cuGraphLaunch", self.executable, ctypes.c_void_p(stream))

    def bind_launch(self, stream: int) -> Callable[[], int]:
        """Return a function that launches the executable graph with the lowest host time and returns the status."""
        return partial(self._cuda["cuGraphLaunch"], self.executable, ctypes.c_void_p(stream))

    def close(self) -> None:
        """Destroy the graph and the executable graph; harmless when repeated. Work on the device continues."""
        if self.executable:
            self._cuda.cuGraphExecDestroy(self.executable)
        if self.graph:
            self._cuda.cuGraphDestroy(self.graph)
        self.executable.value = self.graph.value = None
