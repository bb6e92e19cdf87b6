"""The CUDA driver library that this process uses: the real one, the package's stub, or none.

cuDNN's runtime-compiled engines resolve ``libcuda.so.1`` before they judge anything. Where no driver is installed
the stub built from ``driver_stub.c`` takes that SONAME. It is tried only after the loader found no real library, but
in a process that is there to answer as a machine without a GPU does: :func:`load_driver_stub`.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Literal

from ..errors import EnvironmentNotReady
from ..frozen import FrozenValue
from ..system.interruption import reraise_interruption
from .find import find_compiled_libraries, find_loaded_libraries, get_library_path

__all__ = ["Driver", "current_device", "load_driver", "load_driver_stub"]

SONAME = "libcuda.so.1"
STUB_SYMBOL = "cudnn_backend_py_driver_stub"
CUDA_SUCCESS = 0
_REQUIRED_FUNCTIONS = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount")

_lock = threading.Lock()
_driver: Driver | None = None


class Driver(FrozenValue):
    """The library loaded as ``libcuda.so.1``.

    ``path`` is the file that is loaded, of a real one as the system says. ``version`` is ``cuDriverGetVersion``'s
    number (13000 for CUDA 13.0), None where it is no driver, ``devices`` the number of GPUs it sees, ``note`` says why,
    where the answer is not the plain one.
    """

    kind: Literal["real", "stub", "missing"]
    path: str | None
    version: int | None
    devices: int
    note: str = ""


def find_driver_stub() -> Path | None:
    """Return the driver stub built with the package, or None if its build failed."""
    return next(iter(find_compiled_libraries("_driver_stub")), None)


def load_driver() -> Driver:
    """Load the driver library once per process and describe it; a missing library is no error."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = _load_real_driver_or_stub()
        return _driver


def load_driver_stub() -> Driver:
    """Load the package's driver stub in place of a real driver; the process then sees no GPU.

    For a process that loads nothing else of CUDA before, and uses no GPU.

    Raises
    ------
    EnvironmentNotReady
        ``driver-stub-missing``: it was not built, cannot be loaded, or the real driver is in this process already.
    """
    global _driver
    with _lock:
        if _driver is None and not find_loaded_libraries("libcuda.so"):
            _driver = _load_driver_stub_with_reason("a process without GPU was requested")
    driver = load_driver()
    if driver.kind != "stub":
        raise EnvironmentNotReady(
            "this process cannot use the driver stub, which replaces libcuda.so.1"
            + (": the real driver is loaded already" if driver.kind == "real" else ""),
            code="driver-stub-missing",
            where=f"libcuda.so.1: {driver.kind}; {driver.note or driver.path}",
            fix="start a new process, which loads nothing of CUDA before the driver stub"
            if driver.kind == "real"
            else "reinstall this package on a machine with a C compiler, so that the driver stub is built",
        )
    return driver


def _load_real_driver_or_stub() -> Driver:
    try:
        library = ctypes.CDLL(SONAME)
    except OSError as absent:
        reraise_interruption(absent)
        return _load_driver_stub_with_reason(str(absent))
    if hasattr(library, STUB_SYMBOL):
        return Driver("stub", SONAME, _query_driver_cuda_version(library), 0, "found on the loader path")
    path = get_library_path(library) or SONAME
    missing = [name for name in _REQUIRED_FUNCTIONS if not hasattr(library, name)]
    if missing:
        return Driver("real", path, None, 0, f"it has no {', '.join(missing)}")
    version = _query_driver_cuda_version(library)
    note = "cuDriverGetVersion failed" if version is None else ""
    return Driver("real", path, version, _count_devices(library), note)


def _load_driver_stub_with_reason(why: str) -> Driver:
    path = find_driver_stub()
    if path is None:
        note = f"{why}; the driver stub was not built with this installation (it needs a C compiler)"
        return Driver("missing", None, None, 0, note)
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        reraise_interruption(error)
        return Driver("missing", None, None, 0, f"{why}; the driver stub cannot be loaded: {error}")
    return Driver("stub", str(path), _query_driver_cuda_version(library), 0, why)


def _query_driver_cuda_version(library: ctypes.CDLL) -> int | None:
    number = ctypes.c_int()
    return number.value if library.cuDriverGetVersion(ctypes.byref(number)) == CUDA_SUCCESS else None


def _count_devices(library: ctypes.CDLL) -> int:
    count = ctypes.c_int()
    if library.cuInit(0) != CUDA_SUCCESS or library.cuDeviceGetCount(ctypes.byref(count)) != CUDA_SUCCESS:
        return 0
    return count.value


def current_device() -> int:
    """Return the ordinal of the current CUDA device, 0 if no context is current.

    C: ``cuCtxGetDevice``. Only where :func:`load_driver` found the real driver.
    """
    device = ctypes.c_int()
    return device.value if ctypes.CDLL(SONAME).cuCtxGetDevice(ctypes.byref(device)) == CUDA_SUCCESS else 0
