"""Block torch streams during a test, so that its result does not depend on the speed of the machine."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cudnn_backend_py.native.cuda import load_driver_function

__all__ = ["block_stream"]

_WAIT_FOR_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
_MAX_WAIT_S = 60.0  # time limit, so that a call that waits for the stream ends and the test fails


@contextmanager
def block_stream(torch: Any, stream: Any) -> Iterator[None]:
    """Block all work of a stream until the end of the ``with`` block. C: ``cuStreamWaitValue32``."""
    flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    wait = load_driver_function("cuStreamWaitValue32_v2")
    place = ctypes.c_uint64(flag.data_ptr())
    assert wait(ctypes.c_void_p(stream.cuda_stream), place, ctypes.c_uint32(1), ctypes.c_uint(_WAIT_FOR_AT_LEAST)) == 0
    timer = threading.Timer(_MAX_WAIT_S, flag.fill_, (1,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        flag.fill_(1)
        stream.synchronize()  # wait until the stream has read the flag
