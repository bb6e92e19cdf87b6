"""The one CUDA kernel of this package: lengths, ragged offsets and page tables, written where a plan reads them.

The driver compiles ``prepare.ptx``, once in each CUDA context; ``prepare.cu`` is its source.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from pathlib import Path

from .cuda import current_context, driver_error, driver_function, relaxed_capture, run_driver
from .fast_call import Kernel

__all__ = ["MOST_RAGGED", "ROW", "Prepare"]

MOST_RAGGED = 9  # ragged tensors of one launch, as in prepare.cu

#: ``struct arguments`` of prepare.cu: 12 integers, 3 for each ragged tensor, 6 of the page table.
ROW = struct.Struct(f"{12 + 3 * MOST_RAGGED + 6}q")

_NAME = b"cudnn_backend_py_prepare"
_THREADS = 256
_MOST_BLOCKS = 1024

_lock = threading.Lock()
_functions: dict[int, ctypes.c_void_p] = {}  # by context; each lives as long as its context


class Prepare:
    """The kernel on one stream, in the CUDA context that is current when this is made. One thread at a time.

    Parameters
    ----------
    stream
        Address of the CUDA stream.
    elements
        How many the largest of the tables it writes has.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """

    def __init__(self, stream: int, elements: int) -> None:
        #: Where its arguments lie, a :data:`ROW`.
        self.row = ctypes.create_string_buffer(ROW.size)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.row))
        blocks = min(-(-elements // _THREADS), _MOST_BLOCKS)
        sizes = (ctypes.c_uint(size) for size in (blocks, 1, 1, _THREADS, 1, 1, 0))
        function = _load(current_context())
        self._arguments = (function, *sizes, ctypes.c_void_p(stream), self._pointers, None)
        self._launch = driver_function("cuLaunchKernel")
        address = ctypes.cast(self._launch, ctypes.c_void_p).value
        #: The same for the compiled call, which writes the row itself.
        self.kernel = Kernel(address, function, self._pointers, blocks, _THREADS)

    def launch(self, *row: int) -> None:
        """Launch it with a :data:`ROW`; returns before the device has finished. C: ``cuLaunchKernel``.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``.
        """
        ROW.pack_into(self.row, 0, *row)
        if status := self._launch(*self._arguments):
            raise driver_error("cuLaunchKernel", status)


def _load(context: int) -> ctypes.c_void_p:
    """Return the kernel in a context, which is current. C: ``cuModuleLoadData``, ``cuModuleGetFunction``."""
    with _lock:
        function = _functions.get(context)
        if function is None:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            text = Path(__file__).with_name("prepare.ptx").read_bytes()
            with relaxed_capture():
                run_driver("cuModuleLoadData", ctypes.byref(module), text)
                run_driver("cuModuleGetFunction", ctypes.byref(function), module, _NAME)
            _functions[context] = function
        return function
