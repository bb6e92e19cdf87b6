"""Unpack the ``nvidia/`` files of a wheel into a folder, each checked against RECORD; all or none.

A wheel comes from an index, so nothing in it is believed: names, types, sizes and counts are checked before a file is
written.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import json
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from ..errors import EnvironmentNotReady
from ..system.archives import ARCHIVE_ERRORS
from ..system.integrity import METADATA

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["refuse_wheel", "unpack_wheel"]

_CHUNK_BYTES = 1 << 20
_MAX_FILES = 10_000
_MAX_BYTES = 8 << 30  # cuDNN 9.28 unpacks to 1.1 GB
_MAX_RECORD_BYTES = 4 << 20
_MAX_NAME_BYTES, _MAX_PART_BYTES = 1024, 255
_ENCRYPTED = 0x1


def unpack_wheel(wheel: Path, tree: Path, bars: Progress) -> None:
    """Unpack ``nvidia/`` of a wheel, check every file against RECORD, and write ``installed.json``.

    Raises
    ------
    EnvironmentNotReady
        ``wheel-damaged``.
    OSError
        A file cannot be written.
    """
    project, version = _split_wheel_name(wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = list(_iterate_checked_members(wheel, archive))
            total_bytes = sum(member.file_size for member, _ in members)
            task = bars.add_task(f"extracting {project}-{version}", total=total_bytes)
            files = {}
            for member, recorded in members:
                target = tree / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("xb") as sink:
                    found = _copy_and_hash(source, sink, bars, task)
                if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != recorded:
                    refuse_wheel(wheel, f"the SHA-256 of {member.filename} is not the one in its RECORD")
                status = target.stat()
                if status.st_size != member.file_size:
                    refuse_wheel(
                        wheel, f"{member.filename} has {status.st_size} bytes, its entry names {member.file_size}"
                    )
                files[member.filename] = {
                    "sha256": found.hex(),
                    "size_bytes": status.st_size,
                    "mtime_ns": status.st_mtime_ns,
                }
    except (*ARCHIVE_ERRORS, csv.Error) as error:
        refuse_wheel(wheel, f"{type(error).__name__}: {error}")
    except OSError as error:
        if isinstance(error, EnvironmentNotReady) or error.errno not in (None, errno.EINVAL):
            raise
        refuse_wheel(wheel, f"{type(error).__name__}: {error}")  # it points to places outside of itself
    with wheel.open("rb") as stream:
        wheel_sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    metadata = {
        "project": project.replace("_", "-"),
        "version": version,
        "wheel": wheel.name,
        "wheel_sha256": wheel_sha256,
        "files": files,
    }
    (tree / METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


def refuse_wheel(wheel: Path, cause: str) -> NoReturn:
    """Raise the error for a wheel that is not accepted.

    Raises
    ------
    EnvironmentNotReady
        ``wheel-damaged``.
    """
    raise EnvironmentNotReady(
        f"the wheel {wheel.name} is damaged or forged, nothing was installed",
        code="wheel-damaged",
        where=f"checking the wheel before it enters the cache, {wheel.stat().st_size} bytes",
        cause=cause,
        fix="install again with PIP_NO_CACHE_DIR=1; if it stays, pip's index serves a bad file",
    )


def _split_wheel_name(wheel: Path) -> tuple[str, str]:
    parts = wheel.name.split("-")
    if len(parts) < 5:
        refuse_wheel(wheel, "its name is not PROJECT-VERSION-PYTHON-ABI-PLATFORM.whl")
    return parts[0], parts[1]


def _copy_and_hash(source: IO[bytes], sink: IO[bytes], bars: Progress, task: TaskID) -> bytes:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        sink.write(chunk)
        bars.advance(task, len(chunk))
    return digest.digest()


def _iterate_checked_members(wheel: Path, archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """Yield the files below ``nvidia/``, each with the SHA-256 that RECORD gives (base64url, no padding)."""
    members = archive.infolist()
    if len(members) > _MAX_FILES:
        refuse_wheel(wheel, f"it has {len(members)} files, at most {_MAX_FILES} are allowed")
    for member in members:
        if fault := _find_member_problem(member):
            refuse_wheel(wheel, f"{member.filename[:_MAX_NAME_BYTES]!r} {fault}")
    _check_member_names(wheel, [member.filename for member in members])
    _check_member_sizes(wheel, members)
    recorded = _read_record(wheel, archive)
    files = {member.filename: member for member in members if not member.is_dir()}
    kept = {name: member for name, member in files.items() if name.startswith("nvidia/")}
    missing = {name for name in recorded if name.startswith("nvidia/")} - set(files)
    if missing or not kept:
        refuse_wheel(wheel, f"files are missing: {', '.join(sorted(missing)) or 'there is no nvidia/ tree'}")
    for name, member in kept.items():
        algorithm, _, digest = recorded.get(name, ("", ""))[0].partition("=")
        if algorithm != "sha256":
            refuse_wheel(wheel, f"its RECORD has no SHA-256 for {name}")
        size = recorded[name][1]
        if size and size != str(member.file_size):
            refuse_wheel(wheel, f"{name} has {member.file_size} bytes, its RECORD says {size!r}")
        yield member, digest


def _find_member_problem(member: zipfile.ZipInfo) -> str:
    """Return why a member of the archive must be refused, from its archive entry without reading it."""
    name = member.filename
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or ".." in parts or "\\" in name:
        return "leads out of the folder"
    if not name.isprintable() or "" in parts or "." in parts:
        return "is not a plain file name"
    if len(os.fsencode(name)) > _MAX_NAME_BYTES or max(len(os.fsencode(part)) for part in parts) > _MAX_PART_BYTES:
        return "has too long a name"
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "is a symbolic link"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is neither a file nor a folder"
    if member.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {member.compress_type}, which wheels do not use"
    return ""


def _check_member_names(wheel: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        refuse_wheel(wheel, f"it has two files of the same name: {twice[0]!r}")
    files = {name for name in names if not name.endswith("/")}
    for name in names:
        parts = name.removesuffix("/").split("/")
        for length in range(1, len(parts) + name.endswith("/")):
            if (above := "/".join(parts[:length])) in files:
                refuse_wheel(wheel, f"{above!r} is both a file and a folder")


def _check_member_sizes(wheel: Path, members: list[zipfile.ZipInfo]) -> None:
    packed = sum(member.compress_size for member in members)
    unpacked = sum(member.file_size for member in members)
    if packed > wheel.stat().st_size:
        refuse_wheel(wheel, f"its files overlap: together they have {packed} bytes, more than the wheel")
    if unpacked > _MAX_BYTES:
        refuse_wheel(wheel, f"it unpacks to {unpacked} bytes, at most {_MAX_BYTES} are allowed")


def _read_record(wheel: Path, archive: zipfile.ZipFile) -> dict[str, tuple[str, str]]:
    """Return hash and size of each file by name, from the wheel's RECORD of this project and version."""
    records = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        refuse_wheel(wheel, f"it must have one RECORD file, got {len(records)}")
    [record] = records
    own = "{}-{}.dist-info/RECORD".format(*_split_wheel_name(wheel))
    if record.lower() != own.lower():
        refuse_wheel(wheel, f"its RECORD must be {own}, got {record}")
    if archive.getinfo(record).file_size > _MAX_RECORD_BYTES:
        refuse_wheel(wheel, f"its RECORD is larger than {_MAX_RECORD_BYTES} bytes")
    rows = [row for row in csv.reader(archive.read(record).decode("utf-8").splitlines()) if len(row) == 3]
    twice = [name for name, count in Counter(row[0] for row in rows).items() if count > 1]
    if twice:
        refuse_wheel(wheel, f"its RECORD names {twice[0]!r} twice")
    return {name: (digest, size) for name, digest, size in rows}
