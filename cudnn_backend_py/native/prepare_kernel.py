"""The package's one CUDA kernel: writes lengths, ragged offsets and page tables to where a plan reads them.

It clears the rows that the plan will leave as they are, too.

The driver compiles ``prepare.ptx``, once in each CUDA context; ``prepare.cu`` is its source.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from pathlib import Path

from .cuda import call_driver, get_current_context, load_driver_function, make_driver_error, relax_stream_capture_mode
from .fast_call import Kernel

__all__ = [
    "ARGUMENT_ROW",
    "MAX_CLEARED_TENSORS",
    "MAX_RAGGED_TENSORS",
    "Q_ROWS_READ",
    "THREADS_PER_BLOCK",
    "TOKENS_OF_KV",
    "TOKENS_OF_Q",
    "LengthsAndOffsetsKernel",
]

MAX_RAGGED_TENSORS, MAX_CLEARED_TENSORS = 9, 4  # tensors of one launch, as in prepare.cu
THREADS_PER_BLOCK = 256  # of a block
TOKENS_OF_Q, TOKENS_OF_KV, Q_ROWS_READ = range(3)  # what ragged offsets count, as in prepare.cu

#: ``struct arguments`` of prepare.cu: 12 integers, 3 for each ragged tensor, 6 of the page table, 1 and 8 for each
#: tensor with rows to clear.
ARGUMENT_ROW = struct.Struct(f"{12 + 3 * MAX_RAGGED_TENSORS + 6 + 1 + 8 * MAX_CLEARED_TENSORS}q")

_KERNEL_NAME = b"cudnn_backend_py_prepare"

_lock = threading.Lock()
_kernels_by_context: dict[int, ctypes.c_void_p] = {}  # by context; each lives as long as its context


class LengthsAndOffsetsKernel:
    """The kernel that writes a plan's lengths and offsets, bound to a stream and the current CUDA context.

    For one thread at a time.

    Parameters
    ----------
    stream
        Address of the CUDA stream.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """

    def __init__(self, stream: int) -> None:
        #: Where its arguments are, a :data:`ARGUMENT_ROW`.
        self.row = ctypes.create_string_buffer(ARGUMENT_ROW.size)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.row))
        self._blocks = ctypes.c_uint()
        self._function = _load_kernel(get_current_context())
        sizes = (ctypes.c_uint(size) for size in (1, 1, THREADS_PER_BLOCK, 1, 1, 0))
        stream_of_c = ctypes.c_void_p(stream)
        self._arguments = (self._function, self._blocks, *sizes, stream_of_c, self._pointers, None)
        self._launch = load_driver_function("cuLaunchKernel")

    def make_kernel_data(self, blocks: int) -> Kernel:
        """Return the kernel as a C struct, with which compiled code launches it in this number of blocks."""
        return Kernel(
            ctypes.cast(self._launch, ctypes.c_void_p).value, self._function, self._pointers, blocks, THREADS_PER_BLOCK
        )

    def launch(self, blocks: int, *row: int) -> None:
        """Launch the kernel with these arguments; return before the GPU has finished. C: ``cuLaunchKernel``.

        Any number of blocks is right for the tables; to clear rows there must be as many as there are sequences.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``.
        """
        self._blocks.value = blocks
        ARGUMENT_ROW.pack_into(self.row, 0, *row)
        if status := self._launch(*self._arguments):
            raise make_driver_error("cuLaunchKernel", status)


def _load_kernel(context: int) -> ctypes.c_void_p:
    """Return the kernel in the current context. C: ``cuModuleLoadData``, ``cuModuleGetFunction``."""
    with _lock:
        function = _kernels_by_context.get(context)
        if function is None:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            text = Path(__file__).with_name("prepare.ptx").read_bytes()
            with relax_stream_capture_mode():
                call_driver("cuModuleLoadData", ctypes.byref(module), text)
                call_driver("cuModuleGetFunction", ctypes.byref(function), module, _KERNEL_NAME)
            _kernels_by_context[context] = function
        return function
