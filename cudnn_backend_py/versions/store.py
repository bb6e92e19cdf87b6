"""The version store: install, list, find, verify and remove cuDNN versions in the user's cache.

A version is the ``nvidia/`` tree of one wheel, in a folder of its own::

    <root>/9.19.0.56-cu12/nvidia/cudnn_jit/lib/libcudnn.so.9    the jit wheel
    <root>/9.19.0.56-cu12-full/nvidia/cudnn/lib/...             the full wheel, which is taken where both are there
    <root>/9.19.0.56-cu12/installed.json          which wheel, its SHA-256; SHA-256, size and time of every file
    <root>/nvrtc-cu12/nvidia/cuda_nvrtc/lib/...   only if this environment has no NVRTC of that CUDA major

A folder appears by one rename after every file was checked, so it is whole or absent. Who installs or removes holds
the lock of the cache meanwhile, and so does its pip: what is in a staging folder of no one is removed by the next.
Two cuDNN versions never share a process: give a child :func:`make_environment_of_installed_cudnn`. Nothing here
loads cuDNN.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from ..errors import EnvironmentNotReady, UsageError
from ..native.find import find_cublaslt_places
from ..native.version_store import (
    Cuda,
    Flavor,
    VersionRequest,
    check_cuda_major,
    format_install_command,
    get_default_root,
    get_folder_shared_by_cudnn_versions,
    match_version_folder_name,
    open_store,
)
from ..system.integrity import METADATA, find_differences, read_installation, read_installations_of_library
from ..system.interruption import reraise_interruption
from ..system.streams import is_terminal
from ..system.user_folder import measure_folder_bytes
from ..system.version import JIT_SINCE, format_version_numbers, parse_version_numbers
from .pip import download, find_wheel_size, list_index_versions
from .wheels import refuse_wheel, unpack_wheel

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = [
    "AvailableCudnn",
    "InstalledCudnn",
    "IntegrityReport",
    "check_installed_versions",
    "clear",
    "find_default_cuda",
    "find_download_size",
    "find_installed",
    "find_newest",
    "find_newest_available",
    "find_newest_version_with_jit_wheel",
    "get_default_root",
    "install",
    "list_available",
    "list_folders",
    "list_installed",
    "list_judging_versions",
    "list_nvrtc_and_cublas_folders",
    "make_environment_of_installed_cudnn",
    "parse_version_numbers",
    "remove",
    "require_installed",
    "verify",
]


_STAGING = ".staging-"
_INSTALL_WAIT_S = 3600.0
_CUDNN_FILE = "nvidia/*/lib/libcudnn.so.9"
_PROJECT: dict[Flavor, str] = {"jit": "nvidia-cudnn-jit-cu{}", "full": "nvidia-cudnn-cu{}"}  # in order of preference
_MOST_NEAREST = 5  # versions that an error names
_NO_RECORD = f"there is no readable {METADATA} of this version"
_NVRTC_REQUIREMENT: dict[Cuda, str] = {
    "12": "nvidia-cuda-nvrtc-cu12",
    "13": "nvidia-cuda-nvrtc>=13,<14",
}
_NVRTC_FILE: dict[Cuda, str] = {
    "12": "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "13": "nvidia/cu13/lib/libnvrtc.so.13",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledCudnn:
    """One installed cuDNN version.

    Attributes
    ----------
    version
        Four numbers, ``"9.19.0.56"``.
    cuda
        CUDA major the wheel was built for.
    flavor
        ``"jit"`` holds the graph library and the runtime-compiled engines only, ``"full"`` everything.
    path
        The folder that holds ``nvidia/``.
    library
        ``libcudnn.so.9``.
    nvrtc
        ``libnvrtc`` of the same CUDA major, of this environment or of the cache; None if neither has one.
    size_bytes
        All files of this version, without NVRTC.
    """

    version: str
    cuda: Cuda
    flavor: Flavor
    path: Path
    library: Path
    nvrtc: Path | None
    size_bytes: int

    @property
    def short_version(self) -> str:
        """The first three numbers of the version, ``"9.19.0"``."""
        return self.version.rpartition(".")[0]

    @property
    def version_with_cuda(self) -> str:
        """The first three numbers and the CUDA major, ``"9.19.0+cu12"``."""
        return f"{self.short_version}+cu{self.cuda}"

    @property
    def can_judge(self) -> bool:
        """Whether this cuDNN can judge graphs without a GPU; see ``JIT_SINCE``."""
        return _can_judge_without_gpu(self.flavor, self.version)

    @property
    def full_version_with_cuda(self) -> str:
        """All numbers of the version and the CUDA major, ``"9.19.0.56+cu12"``."""
        return f"{self.version}+cu{self.cuda}"

    @property
    def name(self) -> str:
        """Version, CUDA major and wheel, ``"9.19.0.56+cu12-jit"``, as :func:`find_installed` accepts them."""
        return f"{self.full_version_with_cuda}-{self.flavor}"


def _can_judge_without_gpu(flavor: Flavor, version: str) -> bool:
    return flavor == "full" or parse_version_numbers(version) >= JIT_SINCE


def find_default_cuda() -> Cuda:
    """Return ``"13"`` if this environment has the NVRTC of CUDA 13 and not of CUDA 12, else ``"12"``."""
    return "13" if _find_environment_nvrtc("13") and not _find_environment_nvrtc("12") else "12"


def install(
    version: str,
    *,
    cuda: Cuda | None = None,
    root: Path | None = None,
    progress: bool = True,
    flavor: Flavor | None = None,
) -> InstalledCudnn:
    """Install a cuDNN version into the store, and NVRTC if this environment has none.

    The wheels come through pip, from wherever the user's pip is configured to look. An environment without pip uses
    the one that its Python has for new environments, else one that uv gets, with uv's variables. A version given by
    three or four numbers that is installed already is only verified, without network; one that is damaged is
    replaced. An install in another process is waited for.

    Parameters
    ----------
    version
        ``"9.19.0.56"``, ``"9.19.0"`` (its newest build) or ``"9.19"`` (its newest patch).
    cuda
        CUDA major; default :func:`find_default_cuda`.
    root
        Folder of all versions; default :func:`get_default_root`. Made if missing, with mode 0700.
    progress
        Whether to show bars on standard error, if that is a terminal.
    flavor
        ``"jit"`` for the small wheel, without the engines compiled ahead of time, or ``"full"``, some 1 GB; both may
        be installed next to each other. Not given, what is installed will do, else the jit wheel where there is one; a
        jit wheel that judges nothing (``JIT_SINCE``) is refused.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``, ``cache-folder-name``.
    EnvironmentNotReady
        ``cudnn-version-not-found``, ``jit-wheel-incomplete``, ``cudnn-index-empty``, ``wheel-download-failed``,
        ``wheel-damaged``, ``cache-folder-foreign``, ``cache-not-private``, ``cache-folder-unusable``, ``pip-missing``.

    Notes
    -----
    Loads cuDNN: no
    """
    request = VersionRequest.parse(version, cuda, flavor)
    with _lock_store(root) as (root, lock), _make_progress_display(progress) as bars:
        wheels = _choose_wheels(root, request, bars)
        for wheel in wheels:
            _install_wheel_if_missing_or_damaged(wheel, bars, lock)
        installed = _load_installed(wheels[-1].folder)
        if installed is None:
            _refuse_folder_not_created_by_install(wheels[-1].folder, _CUDNN_FILE)
        return installed


def list_installed(root: Path | None = None) -> list[InstalledCudnn]:
    """Return every installed version, oldest first; folders not made by install are skipped.

    One whose files are damaged is among them: :func:`make_environment_of_installed_cudnn` and :func:`verify` report.

    Raises
    ------
    UsageError
        ``cache-folder-name``.
    EnvironmentNotReady
        ``cache-not-private``, ``cache-folder-unusable``.
    """
    return sorted(_find_installed(open_store(root).path), key=_make_version_sort_key)


def list_judging_versions(root: Path | None = None) -> list[InstalledCudnn]:
    """Return the installed versions that can judge graphs without a GPU, oldest first."""
    return [one for one in list_installed(root) if one.can_judge]


def find_installed(
    version: str, *, cuda: Cuda | None = None, root: Path | None = None, flavor: Flavor | None = None
) -> InstalledCudnn | None:
    """Return the newest installed version that starts with these numbers, or None.

    Without ``cuda`` any CUDA major matches; if the version is installed for both, :func:`find_default_cuda` decides.
    Without ``flavor``, which a name such as ``9.19.0-jit`` has too, a full wheel is preferred to the JIT wheel of the
    same version.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``, ``cache-folder-name``.
    EnvironmentNotReady
        ``cache-not-private``, ``cache-folder-unusable``.
    """
    wanted = VersionRequest.parse(version, cuda, flavor)
    return _choose_newest_version(_find_installed_matching_request(wanted, root))


def require_installed(
    version: str, *, cuda: Cuda | None = None, root: Path | None = None, flavor: Flavor | None = None
) -> InstalledCudnn:
    """Return an installed version like :func:`find_installed`, but raise an error if there is none.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-installed``, with those that are; ``installed-files-changed`` if there is a rest of it.
    """
    wanted = VersionRequest.parse(version, cuda, flavor)
    installed = _choose_newest_version(_find_installed_matching_request(wanted, root))
    if installed is None:
        for rest in _find_version_folders_without_record(open_store(root).path, wanted.numbers, wanted.cuda):
            _refuse_changed_files(rest)
        have = ", ".join(dict.fromkeys(item.version_with_cuda for item in list_installed(root))) or "none"
        raise EnvironmentNotReady(
            f"cuDNN {wanted} is not installed{wanted.requested_wheel_text}",
            code="cudnn-version-not-installed",
            where=f"installed are: {have}",
            fix=f"cudnn-backend cudnn install {wanted.arguments}",
        )
    return installed


def find_newest(*, cuda: Cuda | None = None, root: Path | None = None) -> InstalledCudnn | None:
    """Return the newest installed version, or None; `cuda` is used as in :func:`find_installed`."""
    if cuda is not None:
        check_cuda_major(cuda)
    return _choose_newest_version(one for one in list_installed(root) if cuda in (None, one.cuda))


def remove(
    version: str, *, cuda: Cuda | None = None, root: Path | None = None, flavor: Flavor | None = None
) -> InstalledCudnn:
    """Remove one installed version and return it.

    With the last version of a CUDA major goes the NVRTC that was installed for it.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``, ``cudnn-version-ambiguous`` (several match).
    EnvironmentNotReady
        ``cudnn-version-not-installed``, ``cache-not-private``, ``cache-folder-unusable``.
    """
    wanted = VersionRequest.parse(version, cuda, flavor)
    with _lock_store(root) as (root, _):
        matches = _find_installed_matching_request(wanted, root)
        if not matches:
            raise EnvironmentNotReady(
                f"cuDNN {wanted} is not installed{wanted.requested_wheel_text}; no version was removed",
                code="cudnn-version-not-installed",
                where=f"cache folder {root}",
                cause=f"installed are: {', '.join(one.name for one in list_installed(root)) or 'none'}",
            )
        if len(matches) > 1:
            names = ", ".join(one.name for one in matches)
            raise UsageError(
                f"cuDNN {wanted} matches {len(matches)} installed versions, but must match one",
                code="cudnn-version-ambiguous",
                where=f"cache folder {root}",
                fix=f"give all four numbers, the CUDA major, and --jit or --full; the matching versions are {names}",
            )
        [gone] = matches
        _remove_folder(gone.path)
        left = [one for one in list_installed(root) if one.cuda == gone.cuda]
        if not left:
            _remove_folder(get_folder_shared_by_cudnn_versions(root, "nvrtc", gone.cuda))
        if not any(one.flavor == "full" for one in left):
            _remove_folder(get_folder_shared_by_cudnn_versions(root, "cublas", gone.cuda))
        return gone


def list_nvrtc_and_cublas_folders(root: Path | None = None) -> list[Path]:
    """Return the folders of the store with NVRTC and cuBLAS, which versions for a CUDA major share."""
    root = open_store(root).path
    folders = [
        get_folder_shared_by_cudnn_versions(root, package, cuda)
        for package in ("nvrtc", "cublas")
        for cuda in _NVRTC_FILE
    ]
    return [folder for folder in folders if folder.is_dir()]


def clear(root: Path | None = None) -> list[tuple[Path, int]]:
    """Remove all versions, NVRTC and cuBLAS from the store; return the removed folders with their bytes.

    Raises
    ------
    EnvironmentNotReady
        ``cache-not-private``, ``cache-folder-unusable``.
    """
    with _lock_store(root) as (root, _):
        folders = [*_iterate_version_folders(root, (), None), *list_nvrtc_and_cublas_folders(root)]
        removed = [(folder, measure_folder_bytes(folder)) for folder in folders]
        for folder in folders:
            _remove_folder(folder)
        return removed


def verify(installed: InstalledCudnn) -> None:
    """Compare every file with its SHA-256 from installation, look for added files, and check a cached NVRTC.

    Raises
    ------
    EnvironmentNotReady
        ``installed-files-changed``.
    """
    _check_files(installed, full=True)


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """The result of checking one installed cuDNN.

    Attributes
    ----------
    name, path
        Of the version, or ``environment`` for the one of this environment; where it is.
    state
        ``whole``, ``damaged``, or ``unchecked`` where nothing says what was installed.
    differences
        One line for each file that differs from its state after the installation, or why nothing could be checked.
    repair
        What to do about it.
    """

    name: str
    path: str
    state: Literal["whole", "damaged", "unchecked"]
    differences: tuple[str, ...] = ()
    repair: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if intact, 1 if damaged, 2 if it could not be checked."""
        return ("whole", "damaged", "unchecked").index(self.state)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "differences": list(self.differences)}


def check_installed_versions(
    versions: Sequence[str] = (), *, environment: bool = False, root: Path | None = None
) -> list[IntegrityReport]:
    """Check every file of the named versions, or of all, by its SHA-256.

    Parameters
    ----------
    environment
        Whether to check the cuDNN that pip has installed into this environment too, against the RECORD of its wheel.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cache-folder-name``.
    EnvironmentNotReady
        ``cache-not-private``, ``cache-folder-unusable``.

    Notes
    -----
    Loads cuDNN: no
    """
    cache = open_store(root).path
    checked = []
    for wanted in [VersionRequest.parse(version) for version in versions] or [VersionRequest((), None, None)]:
        found = sorted(_find_installed(cache, wanted.numbers, wanted.cuda, wanted.flavor), key=_make_version_sort_key)
        checked += [_make_integrity_report_of_version(one) for one in found]
        rests = list(_find_version_folders_without_record(cache, wanted.numbers, wanted.cuda))
        checked += [
            IntegrityReport(rest.name, str(rest), "damaged", (_NO_RECORD,), format_install_command(rest))
            for rest in rests
        ]
        if wanted.numbers and not found and not rests:
            repair = f"cudnn-backend cudnn install {wanted.arguments}"
            checked.append(IntegrityReport(str(wanted), "", "unchecked", ("it is not installed",), repair))
    if environment:
        wheels = [Path(entry) / "nvidia" for entry in sys.path if os.path.isabs(entry)]
        libraries = dict.fromkeys(path for wheel in wheels for path in sorted(wheel.glob("*/lib/libcudnn.so.9")))
        checked += [_make_integrity_report_of_environment(library) for library in libraries]
    return checked


def _make_integrity_report_of_version(installed: InstalledCudnn) -> IntegrityReport:
    for _, differences in _find_damage(installed, full=True):
        return IntegrityReport(
            installed.path.name, str(installed.path), "damaged", differences, format_install_command(installed.path)
        )
    return IntegrityReport(installed.path.name, str(installed.path), "whole")


def _make_integrity_report_of_environment(library: Path) -> IntegrityReport:
    installations = read_installations_of_library(library)
    if not installations:
        reason = "no wheel has a RECORD of it"
        return IntegrityReport("environment", str(library), "unchecked", (reason,), "ask whoever installed it")
    for one in installations:
        if differences := find_differences(one, full=True):
            return IntegrityReport("environment", str(library), "damaged", differences, one.repair)
    return IntegrityReport("environment", str(library), "whole")


def make_environment_of_installed_cudnn(
    installed: InstalledCudnn, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a copy of an environment in which a child process loads this cuDNN and its NVRTC.

    The environment is that of this process if not given.

    Its files are looked at, not read: presence, size and time.

    Raises
    ------
    EnvironmentNotReady
        ``installed-files-changed``.
    """
    _check_files(installed, full=False)
    environment = dict(os.environ if environ is None else environ)
    environment["CUDNN_BACKEND_LIBRARY"] = str(installed.library)
    environment.pop("CUDNN_BACKEND_NVRTC", None)
    if installed.nvrtc is not None:
        environment["CUDNN_BACKEND_NVRTC"] = str(installed.nvrtc)
    return environment


# Versions and choices


class _Wheel(NamedTuple):
    """A wheel for pip, the folder of the store that it is unpacked into, and a file that it must have."""

    requirement: str
    folder: Path
    needed: str


def _choose_wheels(root: Path, request: VersionRequest, bars: Progress) -> list[_Wheel]:
    """Return the wheels to install for a requested version: NVRTC and cuBLAS if needed, cuDNN's own last."""
    wanted, cuda, flavor = request.numbers, request.cuda or find_default_cuda(), request.flavor
    there = _find_installed(root, wanted, cuda, flavor) if len(wanted) > 2 else ()
    found = _choose_newest_version(one for one in there if flavor is not None or one.can_judge)
    if found is not None:
        flavor, exact, folder = found.flavor, found.version, found.path
    else:
        lookup = bars.add_task("looking up versions", total=None)
        exact, flavor = _choose_wheel(request, cuda, _list_available_versions_by_flavor(cuda, flavor))
        bars.remove_task(lookup)
        folder = _choose_folder(root, exact, cuda, flavor)
    wheels = []
    if _find_environment_nvrtc(cuda) is None:
        wheels.append(
            _Wheel(
                _NVRTC_REQUIREMENT[cuda], get_folder_shared_by_cudnn_versions(root, "nvrtc", cuda), _NVRTC_FILE[cuda]
            )
        )
    if flavor == "full" and _find_environment_cublas(cuda) is None:
        file, requirement = _CUBLAS[cuda]
        wheels.append(_Wheel(requirement, get_folder_shared_by_cudnn_versions(root, "cublas", cuda), file))
    return [*wheels, _Wheel(f"{_PROJECT[flavor].format(cuda)}=={exact}", folder, _CUDNN_FILE)]


def _find_installed_matching_request(wanted: VersionRequest, root: Path | None) -> list[InstalledCudnn]:
    return _find_installed(open_store(root).path, wanted.numbers, wanted.cuda, wanted.flavor)


def _make_version_sort_key(one: InstalledCudnn) -> tuple[tuple[int, ...], str, str]:
    return parse_version_numbers(one.version), one.cuda, one.flavor


def _choose_newest_version(candidates: Iterable[InstalledCudnn]) -> InstalledCudnn | None:
    preferred = find_default_cuda()

    def make_preference_key(one: InstalledCudnn) -> tuple[tuple[int, ...], bool, bool]:
        return parse_version_numbers(one.version), one.cuda == preferred, one.flavor == "full"

    return max(candidates, key=make_preference_key, default=None)


def _choose_wheel(request: VersionRequest, cuda: Cuda, index: Mapping[Flavor, Sequence[str]]) -> tuple[str, Flavor]:
    """Return version and kind (JIT or full) of the newest matching wheel; JIT comes first for equal versions."""
    flavor_of: dict[str, Flavor] = {}
    for flavor, versions in index.items():
        for version in versions:
            flavor_of.setdefault(version, flavor)
    wanted = request.numbers
    matching = [version for version in flavor_of if parse_version_numbers(version)[: len(wanted)] == wanted]
    if not matching:
        usable = (version for version, flavor in flavor_of.items() if _can_judge_without_gpu(flavor, version))
        nearest = sorted(usable, key=lambda version: _measure_version_distance(wanted, version))
        shown = dict.fromkeys(
            format_version_numbers(parse_version_numbers(one)[: max(3, len(wanted))]) for one in nearest
        )
        fixes = [f"take one of the nearest: {', '.join([*shown][:_MOST_NEAREST])}"] if shown else []
        if (other := _find_other_cuda_major_with_version(request, cuda)) is not None:
            named = VersionRequest(wanted, request.flavor, other)
            install = f"cudnn-backend cudnn install {named.arguments}"
            fixes.insert(0, f"it exists for CUDA {other}: {install}, or --cudnn {named}")
        raise EnvironmentNotReady(
            f"there is no cuDNN {format_version_numbers(wanted)} for CUDA {cuda}{request.requested_wheel_text}",
            code="cudnn-version-not-found",
            where=f"pip finds {len(flavor_of)} others",
            fix="\n".join([*fixes, "all are listed by: cudnn-backend cudnn list --available"]),
        )
    exact = max(matching, key=parse_version_numbers)
    if not _can_judge_without_gpu(flavor_of[exact], exact):
        raise EnvironmentNotReady(
            f"the JIT wheel of {exact} lacks a library without which cuDNN judges no graph",
            code="jit-wheel-incomplete",
            fix=f"full wheel: cudnn-backend cudnn install {VersionRequest(wanted, 'full', cuda).arguments}\n"
            f"or the JIT wheel of {format_version_numbers(JIT_SINCE)} or later",
        )
    return exact, flavor_of[exact]


def _find_other_cuda_major_with_version(request: VersionRequest, cuda: Cuda) -> Cuda | None:
    """Return the other CUDA major, if pip finds wheels of the requested version for it."""
    other: Cuda = "13" if cuda == "12" else "12"
    with contextlib.suppress(EnvironmentNotReady):
        found = set().union(*_list_available_versions_by_flavor(other, request.flavor).values())
        if any(parse_version_numbers(version)[: len(request.numbers)] == request.numbers for version in found):
            return other
    return None


def _list_available_versions_by_flavor(cuda: Cuda, wanted: Flavor | None) -> dict[Flavor, list[str]]:
    """Return by wheel kind the versions that pip finds; JIT wheels too old to work without a GPU only if wanted.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-index-empty``, ``pip-missing``.
    """
    found: dict[Flavor, list[str]] = {}
    complaints = []
    projects = {flavor: project.format(cuda) for flavor, project in _PROJECT.items() if wanted in (None, flavor)}
    for flavor, project in projects.items():
        versions, complaint = list_index_versions(project)
        complaints.append(complaint)
        found[flavor] = [
            version for version in versions if wanted is not None or _can_judge_without_gpu(flavor, version)
        ]
    if not any(found.values()):
        raise EnvironmentNotReady(
            f"pip finds no cuDNN 9 wheel for CUDA {cuda}",
            code="cudnn-index-empty",
            where=f"pip index versions {', '.join(projects.values())}, with {sys.executable}",
            cause="no network, an index without these wheels, or none for this platform; pip said:\n"
            + "\n".join(complaints),
            fix="check pip's index configuration (python -m pip config list), or install where there is a\n"
            "network and point CUDNN_BACKEND_CACHE at a copy of that cache folder",
        )
    return found


def _measure_version_distance(wanted: tuple[int, ...], version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a sort key for the distance of two versions, number by number; if equally near, newer comes first."""
    have = parse_version_numbers(version)
    return (
        tuple(abs(a - b) for a, b in zip(wanted, have, strict=False)),
        tuple(-number for number in have),
    )


def find_download_size(version: str, flavor: Flavor | None = None, *, cuda: Cuda | None = None) -> int | None:
    """Return the bytes that installing a version would download, with NVRTC and cuBLAS; None if unknown.

    A download is begun and ended as soon as its size is known: some seconds for each wheel.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``.
    EnvironmentNotReady
        ``cudnn-version-not-found``, ``cudnn-index-empty``, ``pip-missing``.
    """
    wheels = _choose_wheels(
        open_store().path, VersionRequest.parse(version, cuda, flavor), _make_progress_display(False)
    )
    sizes_bytes = []
    for requirement, folder, needed in wheels:
        if not _is_installation_intact(folder, needed, full=False):
            with tempfile.TemporaryDirectory() as staging:
                sizes_bytes.append(find_wheel_size(requirement, Path(staging)))
    return None if None in sizes_bytes else sum(filter(None, sizes_bytes))


def find_newest_version_with_jit_wheel(
    version: str, flavor: Flavor | None = None, *, cuda: Cuda | None = None
) -> str | None:
    """Return the newest version with a JIT wheel, if the requested version has only a full wheel; else None.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``.
    EnvironmentNotReady
        ``cudnn-version-not-found``, ``cudnn-index-empty``, ``pip-missing``.
    """
    request = VersionRequest.parse(version, cuda, flavor)
    if request.flavor is not None:
        return None
    major = request.cuda or find_default_cuda()
    index = _list_available_versions_by_flavor(major, None)
    _, chosen = _choose_wheel(request, major, index)
    small = max(index["jit"], key=parse_version_numbers, default=None)
    return None if chosen == "jit" or small is None else small.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class AvailableCudnn:
    """A cuDNN version that can be installed.

    Attributes
    ----------
    version
        Four numbers, ``"9.19.0.56"``.
    cuda
        CUDA major.
    flavors
        Its wheels: ``"jit"``, ``"full"``; a JIT wheel that cannot judge graphs is not among them.
    """

    version: str
    cuda: Cuda
    flavors: tuple[Flavor, ...]


def list_available(*, cuda: Cuda | None = None) -> list[AvailableCudnn]:
    """Return the cuDNN 9 versions that pip finds for this platform, oldest first.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-index-empty``, ``pip-missing``.
    """
    found = []
    complaints = []
    for major in _NVRTC_FILE if cuda is None else (check_cuda_major(cuda),):
        try:
            index = _list_available_versions_by_flavor(major, None)
        except EnvironmentNotReady as error:  # an index may have the wheels of one CUDA major
            complaints.append(error)
            continue
        for version in set().union(*index.values()):
            flavors = tuple(flavor for flavor, versions in index.items() if version in versions)
            found.append(AvailableCudnn(version=version, cuda=major, flavors=flavors))
    if not found:
        raise complaints[0]
    return sorted(found, key=lambda one: (parse_version_numbers(one.version), one.cuda))


def find_newest_available(*, flavor: Flavor | None = None, cuda: Cuda | None = None) -> str:
    """Return the newest version that pip finds, with its CUDA major: ``"9.28.0+cu12"``.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-index-empty``, ``pip-missing``.
    """
    major = cuda or find_default_cuda()
    newest = max(set().union(*_list_available_versions_by_flavor(major, flavor).values()), key=parse_version_numbers)
    return f"{newest.rpartition('.')[0]}+cu{major}"


# Folders


def _install_wheel_if_missing_or_damaged(wheel: _Wheel, bars: Progress, lock: int) -> None:
    """Install a wheel into its folder if it is missing there or damaged."""
    requirement, folder, needed = wheel
    if os.path.lexists(folder):
        if _is_installation_intact(folder, needed, full=True):
            return
        _check_folder_is_replaceable(folder, needed)
    with _make_staging_folder(folder.parent) as staging:
        _unpack_wheel_atomically(download(requirement, staging, bars, lock), folder, needed, bars)


def _is_installation_intact(folder: Path, needed: str, *, full: bool) -> bool:
    try:
        installation = read_installation(folder)
    except (OSError, ValueError) as error:
        reraise_interruption(error)
        return False
    return _find_single_match(installation.files, needed) is not None and not find_differences(installation, full=full)


def _check_folder_is_replaceable(folder: Path, needed: str) -> None:
    """Raise an error for a folder that `install` did not make, which must not be replaced."""
    if folder.is_symlink() or not folder.is_dir():
        _refuse_folder_not_created_by_install(folder, needed)
    names = {path.name for path in folder.iterdir()}
    if METADATA not in names and not names <= {"nvidia"}:
        _refuse_folder_not_created_by_install(folder, needed)


def _unpack_wheel_atomically(wheel: Path, folder: Path, needed: str, bars: Progress) -> None:
    """Unpack a wheel into ``folder``, completely or not at all, replacing the old one."""
    with _make_staging_folder(folder.parent) as staging:
        tree = staging / "tree"
        tree.mkdir(mode=0o700)
        unpack_wheel(wheel, tree, bars)
        if len(list(tree.glob(needed))) != 1:
            refuse_wheel(wheel, f"it has no {needed}, or several")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(staging / "damaged")
        tree.rename(folder)


def _refuse_folder_not_created_by_install(folder: Path, needed: str) -> NoReturn:
    raise EnvironmentNotReady(
        f"{folder} exists but was not created by 'cudnn-backend cudnn install'",
        code="cache-folder-foreign",
        cause=f"it has no readable {METADATA}, or not exactly one file {needed}",
        fix="delete or move that folder, then install again",
    )


def _choose_folder(root: Path, exact: str, cuda: Cuda, flavor: Flavor) -> Path:
    """Return the folder for a wheel; its name ends in the kind of wheel, for a full wheel or if the name is taken."""
    plain = root / f"{exact}-cu{cuda}"
    there = _load_installed(plain)
    taken = flavor == "full" or (there is not None and there.flavor != flavor)
    return plain.with_name(f"{plain.name}-{flavor}") if taken else plain


def _find_installed(
    root: Path, wanted: tuple[int, ...] = (), cuda: Cuda | None = None, flavor: Flavor | None = None
) -> list[InstalledCudnn]:
    """Return the installed versions that begin with these numbers, unordered."""
    loaded = (_load_installed(folder) for folder in _iterate_version_folders(root, wanted, cuda))
    return [one for one in loaded if one is not None and flavor in (None, one.flavor)]


def _find_version_folders_without_record(root: Path, wanted: tuple[int, ...], cuda: Cuda | None) -> Iterator[Path]:
    """Yield the folders that are named like a version but have no readable record."""
    return (folder for folder in _iterate_version_folders(root, wanted, cuda) if _load_installed(folder) is None)


def _iterate_version_folders(root: Path, wanted: tuple[int, ...], cuda: Cuda | None) -> list[Path]:
    found = []
    private = open_store(root)
    with private.translate_errors(), contextlib.suppress(FileNotFoundError), private.open() as folder:
        for name in sorted(os.listdir(folder.descriptor)):
            match = match_version_folder_name(name)
            if (
                match
                and cuda in (None, match["cuda"])
                and parse_version_numbers(match["version"])[: len(wanted)] == wanted
            ):
                found.append(root / name)
    return found


def _load_installed(folder: Path) -> InstalledCudnn | None:
    """Return the version recorded in this folder; None if install did not make it."""
    name = match_version_folder_name(folder.name)
    if name is None:
        return None
    cuda: Cuda = "12" if name["cuda"] == "12" else "13"
    try:
        installation = read_installation(folder)
    except (OSError, ValueError) as error:
        reraise_interruption(error)
        return None
    flavors = {project.format(cuda): flavor for flavor, project in _PROJECT.items()}
    library = _find_single_match(installation.files, _CUDNN_FILE)
    flavor = flavors.get(installation.project)
    if flavor is None or installation.version != name["version"] or library is None:
        return None
    if name["flavor"] not in (None, flavor):
        return None
    return InstalledCudnn(
        version=installation.version,
        cuda=cuda,
        flavor=flavor,
        path=folder,
        library=folder / library,
        nvrtc=_find_nvrtc(cuda, folder.parent),
        size_bytes=sum(record.size_bytes for record in installation.files.values()),
    )


def _find_single_match(names: Iterable[str], pattern: str) -> str | None:
    """Return the single file name that matches a pattern; None if there is not exactly one."""
    found = [name for name in names if name.count("/") == pattern.count("/") and fnmatch(name, pattern)]
    return found[0] if len(found) == 1 else None


def list_folders(installed: InstalledCudnn) -> list[Path]:
    """Return the folders of the store that a version uses: its own, and those of NVRTC and cuBLAS."""
    root = installed.path.parent
    nvrtc, cublas = (
        get_folder_shared_by_cudnn_versions(root, package, installed.cuda) for package in ("nvrtc", "cublas")
    )
    folders = [installed.path]
    if installed.nvrtc is not None and installed.nvrtc.is_relative_to(nvrtc):
        folders.append(nvrtc)
    if installed.flavor == "full" and _find_environment_cublas(installed.cuda) is None and cublas.is_dir():
        folders.append(cublas)
    return folders


def _find_damage(installed: InstalledCudnn, *, full: bool) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield each folder of a version with changed files, and the changes; with `full`, also report a missing cuBLAS."""
    for folder in list_folders(installed):
        try:
            differences = find_differences(read_installation(folder), full=full)
        except (OSError, ValueError) as error:
            reraise_interruption(error)
            differences = (f"{METADATA} is unreadable: {error}",)
        if differences:
            yield folder, differences
    if full and installed.flavor == "full":
        places = find_cublaslt_places(int(installed.cuda), str(installed.library))
        if not any(place.path is not None and os.path.isabs(place.path) for place in places):
            file, requirement = _CUBLAS[installed.cuda]
            yield (
                get_folder_shared_by_cudnn_versions(installed.path.parent, "cublas", installed.cuda),
                (f"missing: {Path(file).name} of {requirement}, which a full wheel needs",),
            )


def _check_files(installed: InstalledCudnn, *, full: bool) -> None:
    for folder, differences in _find_damage(installed, full=full):
        _refuse_changed_files(folder, differences, format_install_command(installed.path))


def _refuse_changed_files(folder: Path, differences: Sequence[str] = (_NO_RECORD,), repair: str = "") -> NoReturn:
    raise EnvironmentNotReady(
        f"{folder} differs from its state after the installation in {len(differences)} "
        f"file{'s' * (len(differences) != 1)}",
        code="installed-files-changed",
        where=str(folder),
        cause="\n".join(differences),
        fix=f"{repair or format_install_command(folder)}, which reinstalls it",
    )


# NVRTC


def _find_environment_nvrtc(cuda: Cuda) -> Path | None:
    return _find_file_on_import_path(_NVRTC_FILE[cuda])


def _find_file_on_import_path(file: str) -> Path | None:
    candidates = (Path(entry) / file for entry in sys.path if os.path.isabs(entry))
    return next((path for path in candidates if path.is_file()), None)


def _find_nvrtc(cuda: Cuda, root: Path) -> Path | None:
    cached = get_folder_shared_by_cudnn_versions(root, "nvrtc", cuda) / _NVRTC_FILE[cuda]
    return _find_environment_nvrtc(cuda) or (cached if cached.is_file() else None)


# cuBLASLt


_CUBLAS: dict[Cuda, tuple[str, str]] = {
    "12": ("nvidia/cublas/lib/libcublasLt.so.12", "nvidia-cublas-cu12"),
    "13": ("nvidia/cu13/lib/libcublasLt.so.13", "nvidia-cublas>=13,<14"),
}


def _find_environment_cublas(cuda: Cuda) -> Path | None:
    return _find_file_on_import_path(_CUBLAS[cuda][0])


# The cache folder


@contextlib.contextmanager
def _lock_store(root: Path | None) -> Iterator[tuple[Path, int]]:
    """Lock the store and yield its path and the lock; remnants of killed installs are removed."""
    private = open_store(root)
    with private.translate_errors(), private.open(create=True) as folder, folder.lock(_INSTALL_WAIT_S) as lock:
        for left in private.path.glob(f"{_STAGING}*"):
            _remove_tree(left)
        yield private.path, lock


@contextlib.contextmanager
def _make_staging_folder(root: Path) -> Iterator[Path]:
    """Make a private temporary folder in the store, so that a rename completes an install. The caller has the lock."""
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=root))
    try:
        yield staging
    finally:
        _remove_tree(staging)


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Remove a folder of the store atomically for other processes; harmless if it does not exist."""
    with _make_staging_folder(folder.parent) as staging, contextlib.suppress(FileNotFoundError):
        folder.rename(staging / folder.name)


def _make_progress_display(shown: bool) -> Progress:
    from rich.progress import (  # only installing needs it
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    from ..terminal import open_console

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=open_console(stderr=True, soft_wrap=False),
        disable=not (shown and is_terminal(sys.stderr)),
    )
