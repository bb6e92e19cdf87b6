"""The environment of libcudnn, read from files and libraries: sub-libraries, NVRTC, driver.

Answers that cannot change while the process lives are kept, so each is paid for once.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import lru_cache
from pathlib import Path

from ..frozen import FrozenValue
from ..system.interruption import reraise_interruption
from ..system.version import parse_version_numbers
from .driver import SONAME, load_driver
from .find import find_loaded_libraries

__all__ = [
    "Nvrtc",
    "find_absent_engine_libraries",
    "find_sublibraries",
    "get_loader_error",
    "initialize_driver",
    "list_loader_folders",
    "list_loader_preloads",
    "list_mapped_cudnn_libraries",
    "parse_version_in_file_name",
    "query_nvrtc",
]

# Takes next to no time to compile, and cannot be compiled without the library of builtins.
_EMPTY_KERNEL = b"__global__ void nothing() {}"
_NVRTC_SUCCESS = 0
# Sub-libraries with engines that a libcudnn works without: since which cuDNN, and for which CUDA, they hold any. In
# wheels of CUDA 12 libcudnn_engines_tensor_ir is an empty shell (2 MB, not 250; no engine answers from it).
_ENGINE_LIBRARIES = {"engines_precompiled": ((9, 0, 0), 12), "engines_tensor_ir": ((9, 22, 0), 13)}
_SUBLIBRARY_PATTERN = re.compile(r"libcudnn_(?P<name>[a-z_]+)\.so(?:\.(?P<version>\d+(?:\.\d+)*))?")


class Nvrtc(FrozenValue):
    """Version and architectures of an NVRTC library.

    ``version`` is that of its CUDA, ``architectures`` are those it compiles for (90 for sm_90). ``refusal`` is what
    it said instead of compiling an empty kernel, empty if it compiled; ``builtins`` the file it needs for that.
    """

    path: str
    version: tuple[int, int]
    architectures: tuple[int, ...]
    refusal: str = ""

    @property
    def builtins(self) -> str:
        """File name of the libnvrtc-builtins library of the same version."""
        return "libnvrtc-builtins.so.{}.{}".format(*self.version)


@lru_cache
def query_nvrtc(path: str) -> Nvrtc:
    """Query the libnvrtc at `path` for its version and architectures, and compile an empty kernel with it.

    C: ``nvrtcVersion``, ``nvrtcGetSupportedArchs``, ``nvrtcCompileProgram``. About 30 ms the first time.

    Raises
    ------
    OSError
        It cannot be loaded, or is no NVRTC.
    """
    nvrtc = ctypes.CDLL(path)
    if not hasattr(nvrtc, "nvrtcGetSupportedArchs"):
        raise OSError(f"{path} has no function nvrtcGetSupportedArchs, which NVRTC of CUDA 12 and 13 has")
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    architectures = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(architectures)
    return Nvrtc(path, (major.value, minor.value), tuple(architectures), _compile_empty_kernel(nvrtc))


def _compile_empty_kernel(nvrtc: ctypes.CDLL) -> str:
    """Return NVRTC's error for an empty kernel; empty if it compiles."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), _EMPTY_KERNEL, b"nothing.cu", 0, None, None)
    try:
        status = nvrtc.nvrtcCompileProgram(program, 0, None)
        if status == _NVRTC_SUCCESS:
            return ""
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value + 1)
        nvrtc.nvrtcGetProgramLog(program, log)
        return log.value.decode("utf-8", "replace").strip() or f"NVRTC status {status}"
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@lru_cache(maxsize=1)
def initialize_driver() -> int | None:
    """Return the result of ``cuInit``, 0 for success; None without a driver library.

    C: ``cuInit``. 34 is a stub of the CUDA toolkit, 100 no GPU, 803 a kernel module of another version.
    """
    driver = load_driver()
    if driver.path is None or driver.version is None:
        return None
    return int(ctypes.CDLL(driver.path if driver.kind == "stub" else SONAME).cuInit(0))


@lru_cache
def get_loader_error(path: str) -> str:
    """Load a cuDNN library by its path and return the loader's error, empty if it loads.

    cuDNN loads it anyway sooner or later, so nothing is loaded that would not be.
    """
    try:
        ctypes.CDLL(path)
    except OSError as error:
        reraise_interruption(error)
        return str(error)
    return ""


def find_sublibraries(folder: Path) -> dict[str, list[Path]]:
    """Return the sub-libraries of cuDNN in a folder by name (``graph``, ``engines_precompiled`` ...).

    A name has several files where versions are next to each other, or links with and without the full version.
    """
    found: dict[str, list[Path]] = {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("libcudnn_"))
    except OSError as error:
        reraise_interruption(error)
        return {}
    for name in names:
        match = _SUBLIBRARY_PATTERN.fullmatch(name)
        if match and (folder / name).exists():
            found.setdefault(match["name"], []).append(folder / name)
    return found


@lru_cache
def find_absent_engine_libraries(path: str, version: tuple[int, ...], cuda_major: int) -> tuple[str, ...]:
    """Return the engine sub-libraries missing next to the libcudnn at `path`, by name.

    A jit wheel has ``engines_runtime_compiled`` alone, and so has a full one that lost files: what such a library
    refuses, the absent engines were not judged. Nothing is absent where no sub-library is next to it at all:
    then they are elsewhere.
    """
    present = find_sublibraries(Path(path).parent)
    if not present:
        return ()
    expected = (name for name, (since, cuda) in _ENGINE_LIBRARIES.items() if version >= since and cuda_major >= cuda)
    return tuple(name for name in expected if name not in present)


def list_mapped_cudnn_libraries() -> tuple[list[str], list[str]]:
    """Return the paths of every libcudnn and cuDNN sub-library mapped into this process.

    Source: ``/proc/self/maps``.
    """
    paths = find_loaded_libraries("libcudnn")
    sub = [path for path in paths if _SUBLIBRARY_PATTERN.fullmatch(Path(path).name)]
    return [path for path in paths if Path(path).name.startswith("libcudnn.so")], sub


def parse_version_in_file_name(path: Path) -> tuple[int, ...] | None:
    """Return the full version in the resolved file name of a path, ``(9, 19, 0)``; None without one."""
    match = _SUBLIBRARY_PATTERN.fullmatch(path.resolve().name)
    if match is None or match["version"] is None:
        return None
    version = parse_version_numbers(match["version"])
    return version if len(version) > 1 else None


def list_loader_folders() -> list[Path]:
    """Return the folders of ``LD_LIBRARY_PATH``, which the loader searches before a library's own folder.

    An empty entry is the working folder. The loader reads the variable once, when a process starts.
    """
    value = _read_variable_at_process_start("LD_LIBRARY_PATH")
    return [Path(item).absolute() for item in re.split("[:;]", value)] if value else []


def list_loader_preloads() -> list[Path]:
    """Return the files of ``LD_PRELOAD``, which the loader uses before all others."""
    return [Path(item) for item in re.split("[: ]", _read_variable_at_process_start("LD_PRELOAD")) if item]


@lru_cache
def _read_variable_at_process_start(name: str) -> str:
    """Return an environment variable as of process start; its current value if that is unknown."""
    try:
        variables = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError as error:
        reraise_interruption(error)
        return os.environ.get(name, "")
    found = (value for key, _, value in (item.partition(b"=") for item in variables) if key == os.fsencode(name))
    return os.fsdecode(next(found, b""))
