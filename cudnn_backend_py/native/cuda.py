"""The few functions of the CUDA driver that executing needs: where an address lies, and CUDA graphs.

C: ``cuda.h``, driver API 12 and later. Only where :func:`~cudnn_backend_py.native.driver.load_driver` found the real
driver, and after a handle has made a context current.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ..errors import CudnnBackendError
from .driver import SONAME

__all__ = [
    "CudaGraphHandle",
    "Memory",
    "PointerFacts",
    "context_functions",
    "current_context",
    "in_context",
    "on_device",
    "pointer_facts",
    "same_context",
]

_MEMORY_TYPE, _DEVICE_ORDINAL = 2, 9  # CU_POINTER_ATTRIBUTE_*
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_MEMORY_KINDS = {1: "host", 2: "device", 3: "array", 4: "unified"}


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL(SONAME)


@dataclass(frozen=True, slots=True)
class PointerFacts:
    """Where an address lies: ``kind`` is ``device``, ``host`` (pinned) or ``unknown`` to CUDA.

    ``device`` is the GPU's ordinal, ``bytes_left`` the bytes from the address to the end of its allocation; None where
    CUDA does not say.
    """

    kind: str
    device: int | None = None
    bytes_left: int | None = None


def pointer_facts(address: int) -> PointerFacts:
    """Ask CUDA about an address. C: ``cuPointerGetAttribute``, ``cuMemGetAddressRange``."""
    cuda, pointer = _driver(), ctypes.c_uint64(address)
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


def context_functions() -> tuple[Any, Any, Any]:
    """Return ``cuCtxGetCurrent``, ``cuCtxPushCurrent`` and ``cuCtxPopCurrent``."""
    cuda = _driver()
    return cuda.cuCtxGetCurrent, cuda.cuCtxPushCurrent_v2, cuda.cuCtxPopCurrent_v2


def current_context() -> int:
    """Return the address of the CUDA context that is current in this thread, 0 for none. C: ``cuCtxGetCurrent``."""
    context = ctypes.c_void_p()
    return context.value or 0 if not _driver().cuCtxGetCurrent(ctypes.byref(context)) else 0


@contextmanager
def in_context(context: int) -> Iterator[None]:
    """Make a CUDA context current in this thread for a while; 0 leaves what is. C: ``cuCtxPushCurrent``.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    if not context or current_context() == context:
        yield
        return
    _call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@contextmanager
def same_context() -> Iterator[None]:
    """Leave the current CUDA context as it is, whatever is called meanwhile. C: ``cuCtxSetCurrent``."""
    context = current_context()
    try:
        yield
    finally:
        _driver().cuCtxSetCurrent(ctypes.c_void_p(context))


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """Make a GPU's primary context current in this thread for a while, if none of that GPU is.

    C: ``cuDevicePrimaryCtxRetain``, ``cuCtxPushCurrent``.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    device = ctypes.c_int()
    if not _driver().cuCtxGetDevice(ctypes.byref(device)) and device.value == ordinal:
        yield
        return
    context = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    try:
        with in_context(context.value or 0):
            yield
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", ordinal)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    status = _driver()[name](*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(text))
        raise CudnnBackendError(f"{name} answered {(text.value or b'?').decode()} ({status})", code="cuda-driver")


class Memory:
    """Memory of one GPU, freed together. Threads may share it."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._addresses: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory, 0 for no bytes; also while a stream is captured.

        C: ``cuMemAlloc``, ``cuThreadExchangeStreamCaptureMode``.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``.
        """
        if not size_bytes:
            return 0
        address, mode = ctypes.c_uint64(), ctypes.c_int(_CAPTURE_RELAXED)
        with on_device(self._device):
            _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
            finally:
                _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        self._addresses.append(address.value)
        return address.value

    def free(self) -> None:
        """Give all memory back; this waits for the device."""
        with on_device(self._device):
            while self._addresses:
                _call("cuMemFree_v2", ctypes.c_uint64(self._addresses.pop()))


class _UpdateResult(ctypes.Structure):
    """``CUgraphExecUpdateResultInfo``."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


class CudaGraphHandle:
    """A ``CUgraph`` and, once :meth:`instantiate` was called, its executable form; destroyed by :meth:`close`."""

    def __init__(self) -> None:
        self._cuda = _driver()
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuGraphCreate", ctypes.byref(self.graph), 0)

    def instantiate(self) -> None:
        """Make the executable form. C: ``cuGraphInstantiateWithFlags``."""
        _call("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.graph, ctypes.c_uint64(0))

    def update(self) -> None:
        """Bring changes of the graph into the executable form, or make that anew where CUDA cannot.

        C: ``cuGraphExecUpdate``.
        """
        result = _UpdateResult()
        if self._cuda.cuGraphExecUpdate_v2(self.executable, self.graph, ctypes.byref(result)):
            _call("cuGraphExecDestroy", self.executable)
            self.instantiate()

    def launch(self, stream: int) -> None:
        """Run it on a CUDA stream. C: ``cuGraphLaunch``."""
        _call("cuGraphLaunch", self.executable, ctypes.c_void_p(stream))

    def bound(self, stream: int) -> Callable[[], int]:
        """Return a call that launches it on a stream and answers the status: the shortest way."""
        return partial(self._cuda["cuGraphLaunch"], self.executable, ctypes.c_void_p(stream))

    def close(self) -> None:
        """Destroy both forms; harmless when repeated. Work on the device goes on."""
        if self.executable:
            self._cuda.cuGraphExecDestroy(self.executable)
        if self.graph:
            self._cuda.cuGraphDestroy(self.graph)
        self.executable, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
