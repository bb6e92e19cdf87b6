"""cuDNN versions side by side in a per-user cache: install, list, find, verify, remove.

A version is the ``nvidia/`` tree of one wheel, in a folder of its own::

    <root>/9.19.0.56-cu12/nvidia/cudnn_jit/lib/libcudnn.so.9
    <root>/9.19.0.56-cu12/installed.json          which wheel, its SHA-256, the SHA-256 of every file
    <root>/nvrtc-cu12/nvidia/cuda_nvrtc/lib/...   only if this environment has no NVRTC of that CUDA major

A folder appears by one rename after every file was checked, so it is whole or absent. Two cuDNN versions
never share a process: give a child :func:`child_environment`. Nothing here loads cuDNN.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NoReturn

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from .errors import EnvironmentNotReady, UsageError

__all__ = [
    "Installed",
    "child_environment",
    "default_cuda",
    "default_root",
    "environment_for",
    "find_installed",
    "install",
    "list_installed",
    "newest",
    "remove",
    "require_installed",
    "verify",
    "version_numbers",
]

Cuda = Literal["12", "13"]
Flavor = Literal["jit", "full"]

_METADATA = "installed.json"
_STAGING = ".staging-"
_STAGING_MAX_AGE_S = 24 * 3600
_CHUNK_BYTES = 1 << 20
_SIZE_UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_CUDNN_FILE = "nvidia/*/lib/libcudnn.so.9"
_NVRTC_REQUIREMENT: dict[Cuda, str] = {
    "12": "nvidia-cuda-nvrtc-cu12",
    "13": "nvidia-cuda-nvrtc>=13,<14",
}
_NVRTC_FILE: dict[Cuda, str] = {
    "12": "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "13": "nvidia/cu13/lib/libnvrtc.so.13",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """One cuDNN in the cache.

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
    def short(self) -> str:
        """Return the first three numbers, ``"9.19.0"``."""
        return self.version.rpartition(".")[0]


def default_root() -> Path:
    """Return the folder of all versions: ``CUDNN_BACKEND_CACHE``, else one in the user's cache folder."""
    if override := os.environ.get("CUDNN_BACKEND_CACHE"):
        return Path(override)
    import platformdirs  # only the cache needs it: judging and running do not

    return platformdirs.user_cache_path("cudnn-backend-py") / "cudnn"


def default_cuda() -> Cuda:
    """Return ``"13"`` if this environment has the NVRTC of CUDA 13 and not that of CUDA 12, else ``"12"``."""
    return "13" if _environment_nvrtc("13") and not _environment_nvrtc("12") else "12"


def install(version: str, *, cuda: Cuda | None = None, root: Path | None = None, progress: bool = True) -> Installed:
    """Install a cuDNN version into the cache, and NVRTC where this environment has none.

    The wheels come through pip, from wherever the user's pip is configured to look. A version given by three
    or four numbers that is installed already is only verified, without network.

    Parameters
    ----------
    version
        ``"9.19.0.56"``, ``"9.19.0"`` (its newest build) or ``"9.19"`` (its newest patch).
    cuda
        CUDA major; default :func:`default_cuda`. The small jit wheel is taken where the version has one.
    root
        Folder of all versions; default :func:`default_root`. Made if missing, with mode 0700.
    progress
        Whether to show bars on standard error.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``.
    EnvironmentNotReady
        ``cudnn-version-not-found``, ``cudnn-index-empty``, ``wheel-download-failed``, ``wheel-damaged``,
        ``installed-files-changed``, ``cache-folder-foreign``, ``cache-not-private``, ``pip-missing``.

    Notes
    -----
    Loads cuDNN: no
    """
    wanted = _parse_request(version)
    cuda = default_cuda() if cuda is None else _check_cuda(cuda)
    root = _absolute(root)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(root)
    _remove_stale_staging(root)

    with _progress(progress) as bars:
        found = find_installed(version, cuda=cuda, root=root) if len(wanted) > 2 else None
        if found is not None:
            folder = found.path
        else:
            lookup = bars.add_task("looking up versions", total=None)
            project, exact = _choose_wheel(wanted, cuda)
            bars.remove_task(lookup)
            folder = root / f"{exact}-cu{cuda}"
            if not folder.exists():
                _install_wheel(f"{project}=={exact}", folder, _CUDNN_FILE, bars)
        if _find_nvrtc(cuda, root) is None:
            nvrtc_folder = root / f"nvrtc-cu{cuda}"
            _install_wheel(_NVRTC_REQUIREMENT[cuda], nvrtc_folder, _NVRTC_FILE[cuda], bars)
            if _find_nvrtc(cuda, root) is None:
                _refuse_foreign(nvrtc_folder, _NVRTC_FILE[cuda])

    installed = _load_installed(folder)
    if installed is None:
        _refuse_foreign(folder, _CUDNN_FILE)
    verify(installed)
    return installed


def list_installed(root: Path | None = None) -> list[Installed]:
    """Return every version in the cache, oldest first; folders that are not ours are passed over.

    Raises
    ------
    EnvironmentNotReady
        ``cache-not-private``.
    """
    root = _absolute(root)
    if not root.is_dir():
        return []
    _check_private(root)
    loaded = (_load_installed(folder) for folder in root.iterdir())
    return sorted((one for one in loaded if one is not None), key=lambda one: (version_numbers(one.version), one.cuda))


def find_installed(version: str, *, cuda: Cuda | None = None, root: Path | None = None) -> Installed | None:
    """Return the newest installed version that starts with these numbers, or None.

    Without ``cuda`` any CUDA major will do; where one version is there for both, :func:`default_cuda` wins.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``.
    EnvironmentNotReady
        ``cache-not-private``.
    """
    return _newest_of(_matches(version, cuda, root))


def require_installed(version: str, *, cuda: Cuda | None = None, root: Path | None = None) -> Installed:
    """Return an installed version.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-installed``, with those that are.
    """
    installed = find_installed(version, cuda=cuda, root=root)
    if installed is None:
        have = ", ".join(item.short for item in list_installed(root)) or "none"
        raise EnvironmentNotReady(
            f"cuDNN {version} is not installed",
            code="cudnn-version-not-installed",
            where=f"installed are: {have}",
            fix=f"cudnn-backend cudnn install {version}",
        )
    return installed


def newest(*, cuda: Cuda | None = None, root: Path | None = None) -> Installed | None:
    """Return the newest installed version, or None; ``cuda`` as in :func:`find_installed`."""
    if cuda is not None:
        _check_cuda(cuda)
    return _newest_of(one for one in list_installed(root) if cuda in (None, one.cuda))


def remove(version: str, *, cuda: Cuda | None = None, root: Path | None = None) -> Installed:
    """Remove one installed version and return what it was.

    With the last version of a CUDA major goes the NVRTC that was installed for it.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``cuda-major-unknown``, ``cudnn-version-ambiguous`` (several match).
    EnvironmentNotReady
        ``cudnn-version-not-installed``, ``cache-not-private``.
    """
    root = _absolute(root)
    matches = _matches(version, cuda, root)
    if not matches:
        raise EnvironmentNotReady(
            f"cuDNN {version}{f' for CUDA {cuda}' if cuda else ''} is not installed, nothing was removed",
            code="cudnn-version-not-installed",
            where=f"cache folder {root}",
            cause=f"installed are: {', '.join(one.path.name for one in list_installed(root)) or 'none'}",
        )
    if len(matches) > 1:
        names = ", ".join(one.path.name for one in matches)
        raise UsageError(
            f"cuDNN {version} names {len(matches)} installed versions, one is needed",
            code="cudnn-version-ambiguous",
            where=f"cache folder {root}",
            fix=f"give all four numbers and the CUDA major; they are {names}",
        )
    [gone] = matches
    _discard(gone.path, root)
    if not any(one.cuda == gone.cuda for one in list_installed(root)):
        _discard(root / f"nvrtc-cu{gone.cuda}", root)
    return gone


def verify(installed: Installed) -> None:
    """Check every file against its SHA-256 of install time, and that no file was added; also a cached NVRTC.

    Raises
    ------
    EnvironmentNotReady
        ``installed-files-changed``.
    """
    folders = [installed.path]
    nvrtc_folder = installed.path.parent / f"nvrtc-cu{installed.cuda}"
    if installed.nvrtc is not None and installed.nvrtc.is_relative_to(nvrtc_folder):
        folders.append(nvrtc_folder)
    for folder in folders:
        _verify_folder(folder)


def child_environment(installed: Installed) -> dict[str, str]:
    """Return a copy of ``os.environ`` with which a child of this package loads this cuDNN and its NVRTC."""
    environment = dict(os.environ)
    environment["CUDNN_BACKEND_LIBRARY"] = str(installed.library)
    environment.pop("CUDNN_BACKEND_NVRTC", None)
    if installed.nvrtc is not None:
        environment["CUDNN_BACKEND_NVRTC"] = str(installed.nvrtc)
    return environment


def environment_for(version: str | None) -> dict[str, str]:
    """Return the environment of a child that judges with an installed version, or, for None, as this process would.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-installed``.
    """
    return dict(os.environ) if version is None else child_environment(require_installed(version))


# Versions and choices


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version text, to compare."""
    return tuple(int(number) for number in version.split("."))


def _parse_request(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", version):
        raise UsageError(
            f"cuDNN version {version!r} is not two, three or four numbers with dots between",
            code="cudnn-version-malformed",
            fix='give for example "9.19", "9.19.0" or "9.19.0.56"',
        )
    return version_numbers(version)


def _check_cuda(cuda: Cuda) -> Cuda:
    if cuda not in _NVRTC_FILE:
        raise UsageError(
            f'CUDA major {cuda!r} is not one cuDNN 9 wheels are made for, needed is "12" or "13"',
            code="cuda-major-unknown",
        )
    return cuda


def _matches(version: str, cuda: Cuda | None, root: Path | None) -> list[Installed]:
    wanted = _parse_request(version)
    if cuda is not None:
        _check_cuda(cuda)
    return [
        one
        for one in list_installed(root)
        if version_numbers(one.version)[: len(wanted)] == wanted and cuda in (None, one.cuda)
    ]


def _newest_of(candidates: Iterable[Installed]) -> Installed | None:
    preferred = default_cuda()
    return max(candidates, key=lambda one: (version_numbers(one.version), one.cuda == preferred), default=None)


def _choose_wheel(wanted: tuple[int, ...], cuda: Cuda) -> tuple[str, str]:
    """Return (project, version) of the newest match; jit before full for the same version."""
    project_of: dict[str, str] = {}
    complaints = []
    for project in (f"nvidia-cudnn-jit-cu{cuda}", f"nvidia-cudnn-cu{cuda}"):
        versions, complaint = _index_versions(project)
        complaints.append(complaint)
        for version in versions:
            project_of.setdefault(version, project)
    asked = ".".join(map(str, wanted))
    if not project_of:
        raise EnvironmentNotReady(
            f"pip finds no cuDNN 9 wheel for CUDA {cuda} at all, so not {asked}",
            code="cudnn-index-empty",
            where=f"{sys.executable} -m pip index versions nvidia-cudnn-jit-cu{cuda}, nvidia-cudnn-cu{cuda}",
            cause="no network, an index without these wheels, or none for this platform; pip said:\n"
            + "\n".join(complaints),
            fix="check pip's index configuration (python -m pip config list), or install where there is a\n"
            "network and point CUDNN_BACKEND_CACHE at a copy of that cache folder",
        )
    matching = [version for version in project_of if version_numbers(version)[: len(wanted)] == wanted]
    if not matching:
        nearest = sorted(project_of, key=lambda version: _distance(wanted, version))
        raise EnvironmentNotReady(
            f"cuDNN {asked} for CUDA {cuda} is not among the {len(nearest)} versions pip finds",
            code="cudnn-version-not-found",
            where=f"wheels nvidia-cudnn-jit-cu{cuda} and nvidia-cudnn-cu{cuda}",
            fix="take one of these, nearest first:\n" + textwrap.fill(", ".join(nearest), width=90),
        )
    exact = max(matching, key=version_numbers)
    return project_of[exact], exact


def _distance(wanted: tuple[int, ...], version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a sort key: nearest first, number by number, the newer of two equally near ones first."""
    have = version_numbers(version)
    return (
        tuple(abs(a - b) for a, b in zip(wanted, have, strict=False)),
        tuple(-number for number in have),
    )


# pip


def _pip(*arguments: str) -> list[str]:
    if importlib.util.find_spec("pip") is None:
        raise EnvironmentNotReady(
            f"{sys.executable} has no pip, which fetches the cuDNN wheels",
            code="pip-missing",
            fix=f"{sys.executable} -m ensurepip (with uv: uv pip install pip)",
        )
    # -P: a pip.py in the working folder is not run.
    return [
        *(sys.executable, "-P", "-m", "pip", *arguments),
        *("--disable-pip-version-check", "--no-input", "--no-color"),
    ]


def _index_versions(project: str) -> tuple[list[str], str]:
    """Return the cuDNN 9 versions that pip finds for this platform, or none and pip's last words."""
    done = subprocess.run(
        _pip("index", "versions", project),
        env={**os.environ, "PIP_QUIET": "0"},  # the list is what it would be quiet about
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if not listed:
        return [], _last_words(done.stderr)
    return [one for one in listed[1].split(", ") if re.fullmatch(r"9(\.[0-9]+){3}", one)], ""


def _last_words(output: str) -> str:
    """Return pip's errors, or its last line where it names none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return "\n".join(errors or lines[-1:]) or "nothing"


def _download(requirement: str, staging: Path, bars: Progress) -> Path:
    """Download one wheel into ``staging``; pip checks the hash that the index gives."""
    destination, temporary, log = staging / "wheel", staging / "tmp", staging / "pip.log"
    destination.mkdir()
    temporary.mkdir()
    command = _pip(
        *("download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"),
        *(f"--dest={destination}", requirement),
    )
    task = bars.add_task(f"downloading {requirement}", total=None)
    # pip writes the growing wheel below TMPDIR: ours, so that it can be watched and is cleaned up.
    environment = {**os.environ, "PIP_QUIET": "0", "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            while process.poll() is None:
                bars.update(task, completed=_largest_wheel_bytes(staging), total=_announced_bytes(_read_log(log)))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.1)
        except BaseException:
            process.kill()
            raise
    wheels = list(destination.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise EnvironmentNotReady(
            f"pip did not download {requirement}, exit status {process.returncode}",
            code="wheel-download-failed",
            where=shlex.join(command),
            cause=f"pip said:\n{_last_words(_read_log(log))}",
        )
    [wheel] = wheels
    size_bytes = wheel.stat().st_size
    bars.update(task, completed=size_bytes, total=size_bytes)
    return wheel


def _read_log(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _largest_wheel_bytes(folder: Path) -> int:
    sizes_bytes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):  # pip moves it meanwhile
                    sizes_bytes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes_bytes)


def _announced_bytes(log: str) -> int | None:
    """Return the size from pip's line ``Downloading NAME.whl (18.5 MB)``, which is rounded."""
    match = re.search(r"\.whl \(([0-9.]+) (bytes|kB|MB|GB)\)", log)
    return round(float(match[1]) * _SIZE_UNITS[match[2]]) if match else None


# Wheels and folders


def _install_wheel(requirement: str, folder: Path, needed: str, bars: Progress) -> None:
    with _staging(folder.parent) as staging:
        _place_wheel(_download(requirement, staging, bars), folder, needed, bars)


def _place_wheel(wheel: Path, folder: Path, needed: str, bars: Progress) -> None:
    """Make ``folder`` from a wheel, whole or not at all; if another process was faster, its folder stays."""
    with _staging(folder.parent) as staging:
        tree = staging / "tree"
        tree.mkdir(mode=0o700)
        _extract(wheel, tree, bars)
        if len(list(tree.glob(needed))) != 1:
            _refuse_wheel(wheel, f"there is not one {needed} in it")
        try:
            tree.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def _extract(wheel: Path, tree: Path, bars: Progress) -> None:
    """Extract ``nvidia/`` of a wheel, every file checked against RECORD, and write the metadata file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _check_members(wheel, archive)
            total_bytes = sum(member.file_size for member, _ in members)
            task = bars.add_task(f"extracting {wheel.name.split('-py3-')[0]}", total=total_bytes)
            files = {}
            for member, recorded in members:
                target = tree / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("xb") as sink:
                    found = _copy_hashed(source, sink, bars, task)
                if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != recorded:
                    _refuse_wheel(wheel, f"the SHA-256 of {member.filename} is not the one in its RECORD")
                files[member.filename] = {"sha256": found.hex(), "size_bytes": member.file_size}
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, csv.Error),
        *(UnicodeDecodeError, NotImplementedError, RuntimeError),
    ) as error:
        _refuse_wheel(wheel, f"{type(error).__name__}: {error}")
    project, version, *_ = wheel.name.split("-")
    with wheel.open("rb") as stream:
        wheel_sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    metadata = {
        "project": project.replace("_", "-"),
        "version": version,
        "wheel": wheel.name,
        "wheel_sha256": wheel_sha256,
        "files": files,
    }
    (tree / _METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


def _copy_hashed(source: IO[bytes], sink: IO[bytes], bars: Progress, task: TaskID) -> bytes:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        sink.write(chunk)
        bars.advance(task, len(chunk))
    return digest.digest()


def _check_members(wheel: Path, archive: zipfile.ZipFile) -> list[tuple[zipfile.ZipInfo, str]]:
    """Return the files below ``nvidia/``, each with the SHA-256 that RECORD gives (base64url, no padding)."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    names = [member.filename for member in archive.infolist()]
    if len(set(names)) != len(names):
        _refuse_wheel(wheel, "it holds two files of the same name")
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            _refuse_wheel(wheel, f"the file name {member.filename!r} leads out of the folder")
        if stat.S_ISLNK(member.external_attr >> 16):
            _refuse_wheel(wheel, f"{member.filename!r} is a symbolic link")
    records = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if len(records) != 1:
        _refuse_wheel(wheel, f"it holds {len(records)} RECORD files, one is needed")
    lines = archive.read(records[0]).decode("utf-8").splitlines()
    recorded = {row[0]: row[1] for row in csv.reader(lines) if len(row) == 3}
    kept = [member for member in members if member.filename.startswith("nvidia/")]
    missing = {name for name in recorded if name.startswith("nvidia/")} - set(names)
    if missing or not kept:
        _refuse_wheel(wheel, f"files are missing: {', '.join(sorted(missing)) or 'there is no nvidia/ tree'}")
    checked = []
    for member in kept:
        algorithm, _, digest = recorded.get(member.filename, "").partition("=")
        if algorithm != "sha256":
            _refuse_wheel(wheel, f"its RECORD has no SHA-256 for {member.filename}")
        checked.append((member, digest))
    return checked


def _refuse_wheel(wheel: Path, cause: str) -> NoReturn:
    raise EnvironmentNotReady(
        f"the wheel {wheel.name} is damaged or forged, nothing was installed",
        code="wheel-damaged",
        where=f"checking the wheel before it enters the cache, {wheel.stat().st_size} bytes",
        cause=cause,
        fix="install again with PIP_NO_CACHE_DIR=1; if it stays, pip's index serves a bad file",
    )


def _refuse_foreign(folder: Path, needed: str) -> NoReturn:
    raise EnvironmentNotReady(
        f"{folder} exists and was not made by install",
        code="cache-folder-foreign",
        cause=f"it has no readable {_METADATA}, or not one {needed}",
        fix="delete or move that folder, then install again",
    )


def _read_metadata(folder: Path) -> tuple[str, str, dict[str, tuple[str, int]]]:
    """Return project, version and {file name: (SHA-256, size in bytes)}, or raise ValueError or OSError."""
    try:
        data = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
        files = {str(name): (str(fact["sha256"]), int(fact["size_bytes"])) for name, fact in data["files"].items()}
        return str(data["project"]), str(data["version"]), files
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / _METADATA}: {error!r}") from error


def _load_installed(folder: Path) -> Installed | None:
    """Return the version in this folder, or None if the folder is not one of ours."""
    name = re.fullmatch(r"9(?:\.[0-9]+){3}-cu(12|13)", folder.name)
    if name is None:
        return None
    cuda: Cuda = "12" if name[1] == "12" else "13"
    try:
        project, version, files = _read_metadata(folder)
    except (OSError, ValueError):
        return None
    flavors: dict[str, Flavor] = {f"nvidia-cudnn-jit-cu{cuda}": "jit", f"nvidia-cudnn-cu{cuda}": "full"}
    libraries = list(folder.glob(_CUDNN_FILE))
    if project not in flavors or folder.name != f"{version}-cu{cuda}" or len(libraries) != 1:
        return None
    return Installed(
        version=version,
        cuda=cuda,
        flavor=flavors[project],
        path=folder,
        library=libraries[0],
        nvrtc=_find_nvrtc(cuda, folder.parent),
        size_bytes=sum(size_bytes for _, size_bytes in files.values()),
    )


def _verify_folder(folder: Path) -> None:
    try:
        expected = _read_metadata(folder)[2]
    except (OSError, ValueError) as error:
        _refuse_changed(folder, [f"{_METADATA} is unreadable: {error}"])
    present = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    changes = [f"added: {name}" for name in sorted(present - set(expected) - {_METADATA})]
    changes += [f"missing: {name}" for name in sorted(set(expected) - present)]
    for name in sorted(present & set(expected)):
        path = folder / name
        if path.is_symlink() or not path.is_file():
            changes.append(f"not a plain file: {name}")
            continue
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != expected[name][0]:
                changes.append(f"changed: {name}")
    if changes:
        _refuse_changed(folder, changes)


def _refuse_changed(folder: Path, changes: list[str]) -> NoReturn:
    raise EnvironmentNotReady(
        f"{folder} is not as it was installed, {len(changes)} difference{'s' * (len(changes) != 1)}",
        code="installed-files-changed",
        where=str(folder),
        cause="\n".join(changes),
        fix="delete that folder, then install again",
    )


# NVRTC


def _environment_nvrtc(cuda: Cuda) -> Path | None:
    candidates = (Path(entry) / _NVRTC_FILE[cuda] for entry in sys.path if os.path.isabs(entry))
    return next((path for path in candidates if path.is_file()), None)


def _find_nvrtc(cuda: Cuda, root: Path) -> Path | None:
    cached = root / f"nvrtc-cu{cuda}" / _NVRTC_FILE[cuda]
    return _environment_nvrtc(cuda) or (cached if cached.is_file() else None)


# The cache folder


def _absolute(root: Path | None) -> Path:
    return (default_root() if root is None else root).expanduser().absolute()


def _check_private(root: Path) -> None:
    """Refuse a folder that someone else can write: code is loaded from it."""
    status = root.stat()
    if status.st_uid != os.getuid():
        fault = f"belongs to user id {status.st_uid}, needed is {os.getuid()}"
        fix = "set CUDNN_BACKEND_CACHE to a folder of this user"
    elif status.st_mode & 0o022:
        fault = f"has mode {stat.S_IMODE(status.st_mode):04o}, needed is 0700"
        fix = f"look at what is in it, then chmod 700 {root}"
    else:
        return
    raise EnvironmentNotReady(
        f"the cuDNN cache folder {root} {fault}",
        code="cache-not-private",
        cause="libraries are loaded from this folder, so only its user may write to it",
        fix=fix,
    )


@contextlib.contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Make a private temporary folder beside the versions, so that a rename is enough."""
    with tempfile.TemporaryDirectory(prefix=_STAGING, dir=root) as name:
        yield Path(name)


def _remove_stale_staging(root: Path) -> None:
    """Remove what a killed install left more than a day ago."""
    for folder in root.glob(f"{_STAGING}*"):
        with contextlib.suppress(FileNotFoundError):  # its owner removes it meanwhile
            if time.time() - folder.stat().st_mtime > _STAGING_MAX_AGE_S:
                shutil.rmtree(folder)


def _discard(folder: Path, root: Path) -> None:
    """Remove a folder of the cache in one step as others see it; harmless if it is gone already."""
    with _staging(root) as staging, contextlib.suppress(FileNotFoundError):
        folder.rename(staging / folder.name)


def _progress(shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        disable=not shown,
    )
