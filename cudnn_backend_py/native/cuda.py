"""The few functions of the CUDA driver that executing needs: where an address lies, and CUDA graphs.

C: ``cuda.h``, driver API 12 and later. Only where :func:`~cudnn_backend_py.native.driver.load_driver` found the real
driver, and after a handle has made a context current.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ..errors import CudnnBackendError
from .driver import SONAME

__all__ = ["CudaGraphHandle", "PointerFacts", "pointer_facts"]

_MEMORY_TYPE, _DEVICE_ORDINAL = 2, 9  # CU_POINTER_ATTRIBUTE_*
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


class _UpdateResult(ctypes.Structure):
    """``CUgraphExecUpdateResultInfo``."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


class CudaGraphHandle:
    """A ``CUgraph`` and, once :meth:`instantiate` was called, its executable form; destroyed by :meth:`close`."""

    def __init__(self) -> None:
        self._cuda = _driver()
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuGraphCreate", ctypes.byref(self.graph), 0)

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._cuda[name](*arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(text))
            raise CudnnBackendError(f"{name} answered {(text.value or b'?').decode()} ({status})", code="cuda-driver")

    def instantiate(self) -> None:
        """Make the executable form. C: ``cuGraphInstantiateWithFlags``."""
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.graph, ctypes.c_uint64(0))

    def update(self) -> None:
        """Bring changes of the graph into the executable form, or make that anew where CUDA cannot.

        C: ``cuGraphExecUpdate``.
        """
        result = _UpdateResult()
        if self._cuda.cuGraphExecUpdate_v2(self.executable, self.graph, ctypes.byref(result)):
            self._call("cuGraphExecDestroy", self.executable)
            self.instantiate()

    def launch(self, stream: int) -> None:
        """Run it on a CUDA stream. C: ``cuGraphLaunch``."""
        self._call("cuGraphLaunch", self.executable, ctypes.c_void_p(stream))

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
