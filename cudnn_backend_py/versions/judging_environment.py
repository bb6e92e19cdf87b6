"""The library files and environment variables of a process that judges graphs.

It is read once, when a query is made. A judging process is started with exactly this value, and the files
are compared with it again when a process starts and when it has answered. Only a child process loads a library here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CudnnBackendError, EnvironmentNotReady
from ..native.driver import SONAME, find_driver_stub
from ..native.find import (
    LIBRARY_VARIABLE,
    NVRTC_VARIABLE,
    LibrarySearchResult,
    find_cublaslt_places,
    find_cudnn_places,
    find_nvrtc_places,
    list_environment_wheels,
    list_library_folders,
    make_preference_key,
    read_wheel_of_library,
)
from ..native.variables import LOG_VARIABLES, Variables, list_library_variables
from ..native.version_store import StoredLibrary, VersionRequest, find_version_folder, get_default_root
from ..system.child import make_call_command
from ..system.integrity import (
    FileChangedError,
    Signature,
    compute_file_sha256,
    get_remembered_sha256,
    make_file_signature,
    remember_sha256,
)
from ..system.interruption import reraise_interruption, suppress_errors
from ..system.version import parse_version_numbers

if TYPE_CHECKING:
    from ..system.private_folder import KeyedRecordFolder

__all__ = [
    "JudgingEnvironment",
    "find_library_outside_version_store",
    "list_libraries_outside_version_store",
    "make_version_environment",
    "query_cudnn_version_of_environment",
    "read_judging_environment",
]

Files = tuple[tuple[str, Signature], ...]  # by path, in the order in which the loader searches

_LIBRARIES = ("libcudnn", "libnvrtc", "libcublas", "libcuda.so", "libnvvm", "libnvJitLink")
# They decide which files a process loads, and which GPUs it sees.
_LOADING = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX"),
    *("CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH"),
)
_DRIVER = ("CUDA_", "NVIDIA_")  # prefixes of variables that the CUDA driver and its container runtime read
_CUDA_MAJORS = (12, 13)
_OF_FULL_WHEELS = "libcudnn_engines_precompiled"  # only cuDNN with these engines loads cuBLASLt
_MOST_NAMED = 4  # changed files that an error names


@dataclass(frozen=True, slots=True)
class JudgingEnvironment:
    """The library files and environment variables with which a process judges graphs, for any graph and target.

    Attributes
    ----------
    version
        The version as it was requested, such as ``9.19.0``; None for the cuDNN that this process would load.
    library
        Path of ``libcudnn.so.9``; empty if it is left to the dynamic loader, or none was found.
    nvrtc
        Path of ``libnvrtc``; empty if the process looks for the one that fits its cuDNN.
    variables
        The environment variables that a process needs for this answer.
    files
        Every file of cuDNN, NVRTC, cuBLASLt and the CUDA driver that may be loaded, with its signature.
    """

    version: str | None
    library: str
    nvrtc: str
    variables: Variables
    files: Files

    @property
    def is_known(self) -> bool:
        """Whether the library files to load are known; only then can verdicts be cached."""
        return bool(self.library)

    def key(self) -> list[object]:
        """Return, as plain data, what can change a verdict: file contents and environment variables.

        The first time on a machine every file is read: some seconds for a full cuDNN.
        """
        contents = [(path, _get_file_sha256(path, signature)) for path, signature in self.files]
        return [contents, list_library_variables(dict(self.variables))]

    def environment(self) -> dict[str, str]:
        """Return the environment to start a process that judges graphs: this process's, with these variables set."""
        others = {name: value for name, value in os.environ.items() if not _may_change_cudnn_verdicts(name)}
        return {**others, **dict(self.variables)}

    def check(self) -> None:
        """Check that the library files have not changed since this value was read.

        Raises
        ------
        EnvironmentNotReady
            ``cudnn-files-changed``.
        """
        now = tuple(_list_library_files_with_signatures(self.library, self.nvrtc, dict(self.variables)))
        if now == self.files:
            return
        changed = [
            path for path, _ in dict.fromkeys((*self.files, *now)) if _may_file_have_changed(path, self.files, now)
        ]
        if not changed and [path for path, _ in self.files] == [path for path, _ in now]:
            return
        more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        raise EnvironmentNotReady(
            f"library files changed after the query was made: {', '.join(changed[:_MOST_NAMED])}{more}",
            code="cudnn-files-changed",
            cause="an answer would not belong to the libraries that the question was about",
            fix="repeat the call, which reads the files again",
        )


def _may_file_have_changed(path: str, before: Files, now: Files) -> bool:
    """Return whether a file has another inode, size or time than before, unless its SHA-256 is the same."""
    old, new = dict(before).get(path), dict(now).get(path)
    if old == new:
        return False
    if old is None or new is None:
        return True
    known = _find_cached_file_sha256(path, old)
    return known is None or known != _get_file_sha256(path, new)


def read_judging_environment(version: str | None, environ: Mapping[str, str] | None = None) -> JudgingEnvironment:
    """Return the environment in which a cuDNN version judges graphs; for None, that of this process's cuDNN.

    Parameters
    ----------
    version
        As for :func:`make_version_environment`.
    environ
        A copy of the environment, for setups that are to have the same variables; that of now if not given.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-installed``, ``installed-files-changed``.
    """
    environment = make_version_environment(version, environ)
    library = environment.get(LIBRARY_VARIABLE, "") if version is not None else ""
    if not library:
        place = _find_library_that_loads_first(environment)
        library = str(Path(place).absolute()) if place and os.path.sep in place else ""
        if library:
            environment[LIBRARY_VARIABLE] = library
    nvrtc = environment.get(NVRTC_VARIABLE, "")
    if nvrtc:
        environment[NVRTC_VARIABLE] = nvrtc = str(Path(nvrtc).expanduser().absolute())
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        if value := environment.get(name):
            environment[name] = _make_paths_of_variable_absolute(name, value)
    variables = tuple(sorted((name, value) for name, value in environment.items() if _may_change_cudnn_verdicts(name)))
    return JudgingEnvironment(
        version, library, nvrtc, variables, tuple(_list_library_files_with_signatures(library, nvrtc, environment))
    )


def _find_library_that_loads_first(environ: Mapping[str, str]) -> str:
    """Return the libcudnn that a process with these variables loads first; empty if there is none."""
    return next((place.path for place in find_cudnn_places(environ=environ) if place.path), "")


def make_version_environment(version: str | None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a child process that loads a cuDNN version.

    Parameters
    ----------
    version
        A version of the version store or of this environment, as :func:`find_library_outside_version_store` finds it:
        ``9.28``, ``9.28.0.42``, ``9.28.0+cu13``, ``latest``. The cuDNN that this process would load if None.
    environ
        A copy of the environment; that of now if not given.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``, ``installed-files-changed``.
    """
    environment = dict(os.environ if environ is None else environ)
    if version is None:
        return environment
    own = find_library_outside_version_store(version, environment)
    if own is None:
        from .store import make_environment_of_installed_cudnn, require_installed

        return make_environment_of_installed_cudnn(require_installed(version), environment)
    place = {LIBRARY_VARIABLE: str(own.path)} if own.path.is_absolute() else {}
    return _remove_variables_of_named_version(environment) | place


def find_library_outside_version_store(version: str, environ: Mapping[str, str] | None = None) -> StoredLibrary | None:
    """Return the libcudnn with this version outside the version store: the one loaded by default, else a wheel's.

    None if there is none, or where the version store has a newer one, or an equal one with as many engines.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``.
    """
    from .store import find_installed

    wanted = VersionRequest.parse(version)
    installed = find_installed(version)
    found = (one for one in list_libraries_outside_version_store(environ) if wanted.matches(one))
    own = max(found, key=make_preference_key, default=None)
    if own is None or installed is None:
        return own
    stored = (parse_version_numbers(installed.version)[:3], installed.flavor == "full")
    return own if make_preference_key(own) > stored else None


def list_libraries_outside_version_store(environ: Mapping[str, str] | None = None) -> list[StoredLibrary]:
    """Return the libcudnn that this process would load, unless it is in the version store, and all wheels' ones."""
    loaded = _find_loaded_library(environ)
    return [*([] if loaded is None else [loaded]), *list_environment_wheels()]


def _find_loaded_library(environ: Mapping[str, str] | None) -> StoredLibrary | None:
    """Return the libcudnn outside the version store that this process would load; None if there is none.

    One that is in no wheel is loaded in a child process, which prints its version.
    """
    environment = _remove_variables_of_named_version(os.environ if environ is None else environ)
    path = Path(_find_library_that_loads_first(environment))
    if path.is_absolute() and find_version_folder(path) is not None:
        return None
    if path.is_absolute() and (wheel := read_wheel_of_library(str(path))) is not None:
        return wheel
    if (text := query_cudnn_version_of_environment(read_judging_environment(None, environment))) is None:
        return None
    numbers, _, cuda = text.partition("+cu")
    return StoredLibrary(parse_version_numbers(numbers), path.parts[-3:-2] != ("cudnn_jit",), cuda, path)


def _remove_variables_of_named_version(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables for the version named by ``--cudnn``."""
    library = environ.get(LIBRARY_VARIABLE)
    is_installed = library is not None and find_version_folder(Path(library)) is not None
    named = (LIBRARY_VARIABLE, NVRTC_VARIABLE) if is_installed else ()
    return {name: value for name, value in environ.items() if name not in named}


@cache
def query_cudnn_version_of_environment(setup: JudgingEnvironment) -> str | None:
    """Return the cuDNN version that a process with these files loads, such as ``9.28.0+cu12``; None if none."""
    command = make_call_command(f"{__name__}:_print_loaded_cudnn_version")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=setup.environment())
    return done.stdout.splitlines()[-1] if done.returncode == 0 else None


def _print_loaded_cudnn_version() -> None:
    """Print the version of the cuDNN that this child process loads, after any output of cuDNN."""
    from ..native import library

    print(f"\n{library().build_text}")


def _may_change_cudnn_verdicts(name: str) -> bool:
    """Return whether an environment variable can change which libraries are loaded or what cuDNN answers."""
    if name in _LOADING or name in LOG_VARIABLES or name in (LIBRARY_VARIABLE, NVRTC_VARIABLE):
        return True
    return name.startswith(_DRIVER) or bool(list_library_variables({name: ""}))


def _make_paths_of_variable_absolute(name: str, value: str) -> str:
    """Return a dynamic loader variable with its paths made absolute."""
    if name == "LD_PRELOAD":  # a name without a slash is searched for like any library
        return ":".join(os.path.abspath(one) if "/" in one else one for one in re.split("[: ]", value) if one)
    return ":".join(os.path.abspath(one) for one in re.split("[:;]", value))


def _list_library_files_with_signatures(
    library: str, nvrtc: str, environment: Mapping[str, str]
) -> Iterator[tuple[str, Signature]]:
    """Yield every library file that a process with this environment may load, with its inode, size and times."""
    for path in dict.fromkeys(_list_files(library, nvrtc, environment)):
        with suppress_errors(OSError):
            yield path, make_file_signature(os.stat(path))


def _list_files(library: str, nvrtc: str, environment: Mapping[str, str]) -> Iterator[str]:
    for file in re.split("[: ]", environment.get("LD_PRELOAD", "")):
        if file:
            yield file
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield from _list_libraries(folder)
    beside = tuple(_list_libraries(os.path.dirname(library)))
    is_full = any(_OF_FULL_WHEELS in file for file in beside)
    places = [
        place.path
        for major in _CUDA_MAJORS
        for place in _list_library_search_results(major, library, not nvrtc, is_full)
    ]
    found = [path for path in (library, nvrtc, *places) if path and os.path.sep in path]
    leading = (os.path.dirname(one) for path in found for one in (path, os.path.realpath(path)))
    for folder in dict.fromkeys(leading):
        yield from _list_libraries(folder)
    yield from (str(folder / SONAME) for folder in list_library_folders())
    if (stub := find_driver_stub()) is not None:
        yield str(stub)


def _list_library_search_results(
    major: int, library: str, with_nvrtc: bool, with_cublaslt: bool
) -> Iterable[LibrarySearchResult]:
    if with_nvrtc:
        yield from find_nvrtc_places(major, library or None)
    if with_cublaslt:
        yield from find_cublaslt_places(major, library or None)


def _list_libraries(folder: str) -> Iterator[str]:
    with suppress_errors(OSError):
        names = sorted(name for name in os.listdir(folder) if name.startswith(_LIBRARIES))
        yield from (os.path.join(folder, name) for name in names)


# Content of files


def _get_file_sha256(path: str, signature: Signature) -> str:
    """Return the SHA-256 of a file with this inode, size and times, cached if possible."""
    if (known := _find_cached_file_sha256(path, signature)) is not None:
        return known
    try:
        digest = compute_file_sha256(path, signature)
    except FileChangedError as error:
        raise EnvironmentNotReady(
            str(error), code="cudnn-files-changed", fix="repeat the call when the file exists"
        ) from None
    except OSError as error:
        reraise_interruption(error)
        raise EnvironmentNotReady(f"{path} cannot be read: {error}", code="cudnn-files-changed") from error
    with suppress(CudnnBackendError):
        _open_digest_cache(get_default_root() / "digests").write(_make_digest_key(path, signature), {"sha256": digest})
    return digest


def _find_cached_file_sha256(path: str, signature: Signature) -> str | None:
    """Return the cached SHA-256 of a file with this inode, size and times; None if it is not cached."""
    if (known := get_remembered_sha256(path, signature)) is not None:
        return known
    with suppress(CudnnBackendError):  # a folder that cannot be used costs time only
        record = _open_digest_cache(get_default_root() / "digests").read(_make_digest_key(path, signature))
        if record is not None and isinstance(record.get("sha256"), str):
            return remember_sha256(path, signature, record["sha256"])
    return None


def _make_digest_key(path: str, signature: Signature) -> str:
    import hashlib

    return hashlib.sha256(json.dumps([path, signature]).encode()).hexdigest()


@cache
def _open_digest_cache(folder: Path) -> KeyedRecordFolder:
    from ..system.private_folder import KeyedRecordFolder, PrivateFolder

    private = PrivateFolder(
        folder,
        title="folder of file digests",
        reason="cached answers are looked up by them",
        code="cache-folder-not-private",
    )
    return KeyedRecordFolder(private, schema="cudnn-backend-py/file-digest 1", suffix="digest", max_bytes=None)
