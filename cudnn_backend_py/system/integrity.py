"""Integrity of an installed cuDNN: compare its files with the record made at installation.

What was installed is on record: in ``installed.json`` of a version in the cache, in the RECORD of a wheel that pip
installed. Presence, size and time of the files are looked at before each use; their SHA-256 where a time differs, where
something crashed or cannot be loaded, and where it is requested. Nothing here loads a library.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..frozen import FrozenValue
from .interruption import reraise_interruption

__all__ = [
    "METADATA",
    "FileChangedError",
    "FileDamage",
    "InstalledFile",
    "Signature",
    "WheelInstallation",
    "compute_file_sha256",
    "find_damage",
    "find_differences",
    "get_remembered_sha256",
    "make_file_signature",
    "read_installation",
    "read_installations_of_library",
    "remember_sha256",
]

METADATA = "installed.json"

Signature = tuple[int, int, int, int]

_READ_AT_MOST = 16 << 20
_FOLDER = re.compile(r"(?P<version>.+)-cu(?P<cuda>12|13)")


class InstalledFile(FrozenValue):
    """Size and SHA-256 (hex) of a file when it was installed; ``mtime_ns`` is None if not recorded."""

    sha256: str
    size_bytes: int
    mtime_ns: int | None = None


class WheelInstallation(FrozenValue):
    """The record of a wheel's files, made when the wheel was installed.

    Attributes
    ----------
    project, version
        Of the wheel.
    folder
        Where the names of ``files`` begin.
    sealed
        Whether nothing else may be in the folder, and no links: so in the cache.
    repair
        What installs them again.
    """

    project: str
    version: str
    folder: Path
    files: Mapping[str, InstalledFile]
    sealed: bool
    repair: str


class FileDamage(FrozenValue):
    """The changed files of an installation, one line each, and the command that repairs them."""

    headline: str
    differences: tuple[str, ...]
    repair: str


def read_installation(folder: Path) -> WheelInstallation:
    """Read the installation record of a folder in the version store.

    Raises
    ------
    ValueError, OSError
        ``installed.json`` is missing or is none.
    """
    try:
        data = json.loads(_read_small_file(folder / METADATA))
        files = {
            _require_path_inside_folder(name): InstalledFile(
                str(fact["sha256"]), int(fact["size_bytes"]), fact.get("mtime_ns")
            )
            for name, fact in data["files"].items()
        }
        project, version = str(data["project"]), str(data["version"])
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{folder / METADATA} is not a record of an installation: {error!r}") from None
    name = _FOLDER.fullmatch(folder.name)
    wanted = f" {name['version']} --cuda {name['cuda']}" if name else " VERSION"
    if folder.name.startswith("nvrtc-"):
        wanted = f" VERSION --cuda {folder.name.removeprefix('nvrtc-cu')}"
    return WheelInstallation(project, version, folder, files, True, f"cudnn-backend cudnn install{wanted}")


def _read_small_file(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(_READ_AT_MOST + 1)
    finally:  # open() does not close what turns out to be a folder
        os.close(descriptor)
    if len(data) > _READ_AT_MOST:
        raise ValueError(f"{path} has more than {_READ_AT_MOST} bytes")
    return data.decode()


def _require_path_inside_folder(name: str) -> str:
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"{name!r} is not a relative path inside the folder of the version")
    return name


def read_installations_of_library(library: Path) -> list[WheelInstallation]:
    """Return the installation records of the wheels that contain a library; empty if no wheel does.

    There are two where two wheels share a folder, as those of cuDNN for CUDA 12 and 13 do.
    """
    if len(library.parents) < 4 or library.parents[2].name != "nvidia":
        return []
    folder = library.parents[3]
    try:
        if (folder / METADATA).exists():
            return [read_installation(folder)]
        name = library.relative_to(folder).as_posix()
        found = (_read_record(path) for path in folder.glob("nvidia_*.dist-info/RECORD"))
        return [one for one in found if one is not None and name in one.files]
    except (OSError, ValueError) as error:
        reraise_interruption(error)
        return []


def _read_record(path: Path) -> WheelInstallation | None:
    """Return the ``nvidia/`` entries of a wheel's RECORD file; None if it is unreadable."""
    import csv

    project, _, version = path.parent.name.removesuffix(".dist-info").partition("-")
    try:
        files = dict(_parse_record_lines(_read_small_file(path)))
    except (OSError, ValueError, csv.Error) as error:
        reraise_interruption(error)
        return None
    project = project.replace("_", "-")
    repair = f"pip install --force-reinstall --no-deps {project}=={version}"
    return WheelInstallation(project, version, path.parents[1], files, False, repair)


def _parse_record_lines(text: str) -> Iterator[tuple[str, InstalledFile]]:
    import base64
    import binascii
    import csv

    for row in csv.reader(text.splitlines()):
        if len(row) != 3 or not row[0].startswith("nvidia/"):
            continue
        algorithm, _, digest = row[1].partition("=")
        if algorithm == "sha256" and row[2].isdigit():
            try:
                sha256 = base64.urlsafe_b64decode(digest + "==").hex()
            except binascii.Error:
                continue
            yield _require_path_inside_folder(row[0]), InstalledFile(sha256, int(row[2]))


def find_differences(installation: WheelInstallation, *, full: bool, remembered: bool = False) -> tuple[str, ...]:
    """Describe, in one line each, the files that differ from the installation record.

    Parameters
    ----------
    full
        Compare the SHA-256 of every file, and look for files that were added; else presence and size, and the SHA-256
        of files with another time.
    remembered
        Take the SHA-256 that this process has read before from a file whose size and times are the same.
    """
    found = []
    for name, record in installation.files.items():
        difference = _describe_difference(installation, name, record, full, remembered or not full)
        if difference is not None:
            found.append(difference)
    if full and installation.sealed:
        found += [f"added: {name}" for name in _list_files(installation.folder) - set(installation.files) - {METADATA}]
    return tuple(sorted(found))


def _describe_difference(
    installation: WheelInstallation, name: str, record: InstalledFile, full: bool, remembered: bool
) -> str | None:
    path = f"{installation.folder}/{name}"
    try:
        status = os.stat(path, follow_symlinks=not installation.sealed)
        if not stat.S_ISREG(status.st_mode):
            return f"not a plain file: {name}"
        if status.st_size != record.size_bytes:
            return f"changed: {name} has {status.st_size} bytes, {record.size_bytes} were installed"
        if not full and record.mtime_ns in (None, status.st_mtime_ns):
            return None
        signature = make_file_signature(status) if remembered else None
        sha256 = (signature and get_remembered_sha256(path, signature)) or compute_file_sha256(path, signature)
    except FileNotFoundError:
        return f"missing: {name}, {record.size_bytes} bytes were installed"
    except OSError as error:
        reraise_interruption(error)
        return f"unreadable: {name}: {error}"
    if sha256 != record.sha256:
        return f"changed: {name} has SHA-256 {sha256}, {record.sha256} was installed"
    return None


def make_file_signature(status: os.stat_result) -> Signature:
    """Return the signature of a file: inode, size and times, which change with every change of its content.

    No program can set the last, so a file that was replaced is noticed whatever its size and date. A new hard link
    changes it too, and the content is the same.
    """
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class FileChangedError(OSError):
    """Raised if a file's inode, size or times are not as expected, or if the file changed while it was read."""


_remembered: dict[tuple[str, Signature], str] = {}  # SHA-256 of files that this process has read


def get_remembered_sha256(path: str, signature: Signature) -> str | None:
    """Return the SHA-256 that this process computed for a file with this inode, size and times; else None."""
    return _remembered.get((path, signature))


def remember_sha256(path: str, signature: Signature, sha256: str) -> str:
    """Remember a file's SHA-256, by its inode, size and times, for the rest of this process, and return it."""
    _remembered[path, signature] = sha256
    return sha256


def compute_file_sha256(path: str, signature: Signature | None = None) -> str:
    """Compute a file's SHA-256; if inode, size and times are given, check them and cache the SHA-256.

    Raises
    ------
    OSError
        It cannot be read.
    FileChangedError
        It has another signature than the one given.
    """
    import hashlib

    with open(path, "rb") as file:
        before = make_file_signature(os.fstat(file.fileno()))
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        after = make_file_signature(os.fstat(file.fileno()))
    if signature is None:
        return sha256
    if not before == after == signature:
        raise FileChangedError(f"{path} changed while it was read")
    return remember_sha256(path, signature, sha256)


def _list_files(folder: Path) -> set[str]:
    """Return the relative paths of the files below a folder; links are not followed."""
    return {
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, folders, files in os.walk(folder)
        for name in (*files, *(one for one in folders if os.path.islink(os.path.join(parent, one))))
    }


def find_damage(library: str | os.PathLike[str], *, full: bool) -> FileDamage | None:
    """Compare the wheel that contains a library with its installation record; None if equal or not recorded.

    With `full` every byte is read, about a second for each GB, and again only after a file was touched.
    """
    for installation in read_installations_of_library(Path(library)):
        if differences := find_differences(installation, full=full, remembered=True):
            return describe_installation_damage(installation, differences)
    return None


def describe_installation_damage(installation: WheelInstallation, differences: tuple[str, ...]) -> FileDamage:
    """Describe these differences from an installation record as a :class:`FileDamage`."""
    count = f"{len(differences)} difference{'s' * (len(differences) != 1)}"
    headline = f"{installation.project} {installation.version} in {installation.folder} is not as it was installed"
    return FileDamage(f"{headline}, {count}: {differences[0]}", differences, installation.repair)
