"""Find shared libraries: libcudnn, NVRTC, the CUDA driver. Loads nothing.

Each candidate place is visited in order and remembered with what was there, so that a failure can list them all.
The working folder is no place: who runs a program in a folder does not mean to run the libraries that are there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ..frozen import FrozenValue
from ..system.interruption import reraise_interruption
from ..system.version import parse_version_numbers
from .version_store import (
    StoredLibrary,
    VersionRequest,
    find_newest_stored_library,
    find_version_folder,
    get_default_root,
    get_folder_shared_by_cudnn_versions,
    split_folder_name,
)

__all__ = [
    "LibrarySearchResult",
    "find_compiled_libraries",
    "find_cublaslt_places",
    "find_cudnn_places",
    "find_installed_version",
    "find_loaded_libraries",
    "find_nvrtc_places",
    "get_library_path",
    "list_environment_wheels",
    "list_library_folders",
    "list_mapped_files",
    "make_preference_key",
    "read_wheel_of_library",
]

CUDNN_SONAME = "libcudnn.so.9"
LIBRARY_VARIABLE = "CUDNN_BACKEND_LIBRARY"
NVRTC_VARIABLE = "CUDNN_BACKEND_NVRTC"

# Folder of the wheel below site-packages, and the distributions that own it.
CUDNN_WHEELS = (
    ("nvidia/cudnn/lib", "nvidia-cudnn-cu12 / nvidia-cudnn-cu13"),
    ("nvidia/cudnn_jit/lib", "nvidia-cudnn-jit-cu12 / nvidia-cudnn-jit-cu13"),
)
NVRTC_WHEELS = (
    ("nvidia/cuda_nvrtc/lib", "nvidia-cuda-nvrtc-cu12"),
    ("nvidia/cu13/lib", "nvidia-cuda-nvrtc"),
)
CUBLAS_WHEELS = (
    ("nvidia/cublas/lib", "nvidia-cublas-cu12"),
    ("nvidia/cu13/lib", "nvidia-cublas"),
)


class LibrarySearchResult(FrozenValue):
    """The result of searching one place for a library.

    ``path`` is a file to load, or a bare SONAME to leave to the loader; ``None`` if nothing was there.
    """

    how: str
    path: str | None
    found: str

    def __str__(self) -> str:
        return f"{self.how}: {self.found}"


def find_compiled_libraries(stem: str) -> list[Path]:
    """Return the files of the package's own compiled library called `stem`, as setup.py or others built it."""
    named = (Path(__file__).with_name(stem + suffix) for suffix in reversed(EXTENSION_SUFFIXES))
    return [path for path in named if path.exists()]


def list_mapped_files() -> list[str]:
    """Return the paths of the files that this process maps, sorted.

    Source: ``/proc/self/maps``; empty where that does not exist. With PyTorch in the process a reading takes 0.7 ms.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError as error:
        reraise_interruption(error)
        return []
    return sorted({line[at:] for line in lines if (at := line.find("/")) >= 0})


def find_loaded_libraries(stem: str, mapped: list[str] | None = None) -> list[str]:
    """Return the paths of loaded libraries with file names that start with `stem`, among `mapped` files if given."""
    files = list_mapped_files() if mapped is None else mapped
    return [path for path in files if path[path.rfind("/") + 1 :].startswith(stem)]


def get_library_path(library: ctypes.CDLL) -> str:
    """Return the path of a loaded library with symbolic links resolved. C: ``dlinfo``."""
    found = ctypes.POINTER(_LinkMap)()
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if dlinfo(library._handle, _RTLD_DI_LINKMAP, ctypes.byref(found)):
        return ""
    return os.path.realpath(os.fsdecode(found.contents.name))


class _LinkMap(ctypes.Structure):
    """The first fields of glibc's ``struct link_map``."""

    _fields_ = (("base", ctypes.c_void_p), ("name", ctypes.c_char_p))


_RTLD_DI_LINKMAP = 2


def _search_wheels(soname: str, wheels: tuple[tuple[str, str], ...]) -> Iterator[LibrarySearchResult]:
    for folder, owner in wheels:
        hits = [path for base in _list_import_folders() if (path := Path(base) / folder / soname).is_file()]
        if hits:
            yield from (LibrarySearchResult(f"wheel {owner}", str(hit.resolve()), str(hit)) for hit in hits)
        else:
            yield LibrarySearchResult(f"wheel {owner}", None, f"no {folder}/{soname} on sys.path")


def _search_runpath(
    cudnn: str | None, soname: str, wheels: tuple[tuple[str, str], ...]
) -> Iterator[LibrarySearchResult]:
    """Search the folders of a libcudnn's runpath: its own, the wheels next to its wheel, the version store."""
    if cudnn is not None:
        own = Path(cudnn).parent
        beside = [own.parent.parent.joinpath(*Path(folder).parts[1:]) for folder, _ in wheels]
        package = "nvrtc" if wheels is NVRTC_WHEELS else "cublas"
        if (version := find_version_folder(Path(cudnn))) is not None:
            _, cuda, _ = split_folder_name(version)
            beside += [
                get_folder_shared_by_cudnn_versions(version.parent, package, cuda) / folder for folder, _ in wheels
            ]
        for path in (place / soname for place in (own, *beside)):
            if path.is_file():
                yield LibrarySearchResult("beside libcudnn", str(path), str(path))
            else:
                yield LibrarySearchResult("beside libcudnn", None, f"no {path}")


def _list_import_folders() -> list[str]:
    """Return ``sys.path`` without the working folder that ``python -c`` and ``python -m`` add."""
    folders = [entry for entry in sys.path if os.path.isabs(entry)]
    if not sys.flags.safe_path and getattr(sys.modules.get("__main__"), "__spec__", None) is not None:  # python -m
        with contextlib.suppress(ValueError, FileNotFoundError):
            folders.remove(os.getcwd())  # the first; one that is there for another reason stays
    return folders


def find_wheel_program(name: str) -> str | None:
    """Return the path of a program in one of NVIDIA's wheels, such as ``nvdisasm``; None if none has it."""
    places = (path for folder in _list_import_folders() for path in Path(folder).glob(f"nvidia/*/bin/{name}"))
    return next((str(path) for path in places if os.access(path, os.X_OK)), None)


def list_library_folders() -> dict[Path, str]:
    """Return the existing library folders of the system, each with its source, such as an environment variable.

    Relative and empty entries of ``LD_LIBRARY_PATH``, which the loader takes for the working folder, are left out.
    """
    folders = [
        (item, "environment variable LD_LIBRARY_PATH") for item in os.environ.get("LD_LIBRARY_PATH", "").split(":")
    ]
    names = ("CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
    prefixes = [(os.environ.get(name, ""), f"environment variable {name}") for name in names]
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):  # whether it was activated or not, and before another's
        prefixes.insert(-1, (sys.prefix, "conda environment of this Python"))
    folders += [(f"{prefix}/{sub}", how) for prefix, how in prefixes if prefix for sub in ("lib64", "lib")]
    system = (
        "/usr/local/cuda/lib64",
        f"/usr/lib/{os.uname().machine}-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    )
    folders += [(folder, "system") for folder in system]
    found: dict[Path, str] = {}
    for folder, how in folders:
        if os.path.isabs(folder) and os.path.isdir(folder):
            found.setdefault(Path(folder), how)
    return found


def _search_system_folders(soname: str) -> Iterator[LibrarySearchResult]:
    for folder, how in list_library_folders().items():
        path = folder / soname
        if path.is_file():
            yield LibrarySearchResult(how, str(path), str(path))
        else:
            yield LibrarySearchResult(how, None, f"no {path}")
    yield LibrarySearchResult("dynamic loader", soname, f"{soname} left to the loader's own search")


def _find_library_at_given_path(how: str, value: str, soname: str) -> LibrarySearchResult:
    path = Path(value).expanduser()
    if path.is_dir():  # of the libraries, or what `cudnn-backend cudnn list` prints
        path = next((one for one in (path / soname, *path.glob(f"nvidia/*/lib/{soname}")) if one.is_file()), path)
    if path.is_file():
        return LibrarySearchResult(how, str(path.resolve()), str(path))
    return LibrarySearchResult(how, None, f"{value} has no {soname}" if path.exists() else f"{value} does not exist")


def find_installed_version(version: str) -> str | None:
    """Return the libcudnn of a version from the version store or a wheel on ``sys.path``; None if absent.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``.
    """
    wanted = VersionRequest.parse(version)
    stored = find_newest_stored_library(_find_nvrtc_cuda_majors(), wanted)
    wheels = [wheel for wheel in list_environment_wheels() if wanted.matches(wheel)]
    found = [stored, *wheels] if stored is not None else wheels
    best = max(found, key=make_preference_key, default=None)
    return None if best is None else str(best.path)


def list_environment_wheels() -> list[StoredLibrary]:
    """Return the libcudnn of each wheel on ``sys.path``."""
    places = [wheel.path for wheel in _search_wheels(CUDNN_SONAME, CUDNN_WHEELS) if wheel.path is not None]
    return [found for path in places if (found := read_wheel_of_library(path)) is not None]


def make_preference_key(found: StoredLibrary) -> tuple[tuple[int, ...], bool]:
    """Return the sort key that prefers the newer of two libraries, then the full wheel to the JIT wheel."""
    return found.version[:3], found.is_full


def find_cudnn_places(
    explicit: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    mapped: list[str] | None = None,
) -> Iterator[LibrarySearchResult]:
    """Yield the result of searching each place for libcudnn, best place first.

    An explicit path or ``CUDNN_BACKEND_LIBRARY``, in `environ` or this process's environment, ends the search: where
    one library is named, never load another.
    """
    if explicit is not None:
        yield _find_library_at_given_path("explicit path", os.fspath(explicit), CUDNN_SONAME)
        return
    if value := (os.environ if environ is None else environ).get(LIBRARY_VARIABLE):
        yield _find_library_at_given_path(f"environment variable {LIBRARY_VARIABLE}", value, CUDNN_SONAME)
        return
    yield LibrarySearchResult("explicit path", None, "none given")
    yield LibrarySearchResult(f"environment variable {LIBRARY_VARIABLE}", None, "not set")
    loaded = find_loaded_libraries("libcudnn.so", mapped)
    if loaded:
        yield LibrarySearchResult("already loaded in this process", loaded[0], loaded[0])
    else:
        yield LibrarySearchResult("already loaded in this process", None, "no libcudnn.so in /proc/self/maps")
    wheels = list(_search_wheels(CUDNN_SONAME, CUDNN_WHEELS))
    stored = find_newest_stored_library(_find_nvrtc_cuda_majors())
    if stored is None:
        yield from wheels
        yield LibrarySearchResult("version store", None, f"no version in {get_default_root()}")
    else:
        place = LibrarySearchResult("version store", str(stored.path), str(stored.path))
        known = [read_wheel_of_library(wheel.path) for wheel in wheels if wheel.path is not None]
        is_newest = all(wheel is not None and wheel.version < stored.version for wheel in known)
        yield from [place, *wheels] if is_newest else [*wheels, place]
    yield from _search_system_folders(CUDNN_SONAME)


def _find_nvrtc_cuda_majors() -> set[str]:
    """Return the CUDA majors with an NVRTC on ``sys.path``."""
    return {
        major
        for major in ("12", "13")
        if any(place.path for place in _search_wheels(f"libnvrtc.so.{major}", NVRTC_WHEELS))
    }


def read_wheel_of_library(library: str) -> StoredLibrary | None:
    """Return version, kind and CUDA major of the installed wheel that contains a libcudnn; None without metadata."""
    folder = Path(library).parents[1]  # nvidia/cudnn or nvidia/cudnn_jit
    pattern = re.compile(rf"nvidia_{folder.name}_cu(12|13)-([0-9]+(?:\.[0-9]+)+)\.dist-info")
    found = filter(None, map(pattern.fullmatch, os.listdir(folder.parents[1])))
    wheels = (
        StoredLibrary(parse_version_numbers(one[2]), folder.name == "cudnn", one[1], Path(library)) for one in found
    )
    return max(wheels, key=lambda one: one.rank, default=None)


def find_nvrtc_places(
    cuda_major: int, cudnn: str | None = None, mapped: list[str] | None = None
) -> Iterator[LibrarySearchResult]:
    """Yield the result of searching each place for NVRTC of the CUDA version `cuda_major`, best place first.

    `cudnn` is the absolute path of the libcudnn that is loaded, `mapped` as for :func:`find_loaded_libraries`.
    """
    soname = f"libnvrtc.so.{cuda_major}"
    if value := os.environ.get(NVRTC_VARIABLE):
        yield _find_library_at_given_path(f"environment variable {NVRTC_VARIABLE}", value, soname)
    for path in find_loaded_libraries(soname, mapped):
        yield LibrarySearchResult("already loaded in this process", path, path)
    yield from _search_wheels(soname, NVRTC_WHEELS)
    yield from _search_runpath(cudnn, soname, NVRTC_WHEELS)
    yield from _search_system_folders(soname)


def find_cublaslt_places(
    cuda_major: int, cudnn: str | None = None, mapped: list[str] | None = None
) -> Iterator[LibrarySearchResult]:
    """Yield the result of searching each place for cuBLASLt of the CUDA version `cuda_major`, best place first."""
    soname = f"libcublasLt.so.{cuda_major}"
    for path in find_loaded_libraries(soname, mapped):
        yield LibrarySearchResult("already loaded in this process", path, path)
    yield from _search_wheels(soname, CUBLAS_WHEELS)
    yield from _search_runpath(cudnn, soname, CUBLAS_WHEELS)
    yield from _search_system_folders(soname)
