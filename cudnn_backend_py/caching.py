"""``PlanCache``: plans kept on disk, so that no process builds what another has built.

A plan holds code that runs on the GPU. So the folder is the user's own and nobody else may write to it, and every byte
of an entry is under a SHA-256 that is compared before anything of it is used. Entries are files, ``<key>.plan``: one
line with the schema and the hash, then JSON. A reader sees a whole entry or none; writers take turns by a lock that
the system gives back when a process dies, so what a killed one left is overwritten by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from .errors import CudnnBackendError, CudnnStatusError, UsageError
from .graph import Graph, graph_from_json, graph_to_json
from .plans import Plan, restore_plan
from .target import Target

__all__ = ["CacheEntry", "PlanCache", "PlanCacheWarning", "default_cache", "plan_key"]

VARIABLE = "CUDNN_BACKEND_PLAN_CACHE"
MAX_BYTES = 256 << 20

_SCHEMA = "cudnn-backend-py/cached-plan 1"  # part of every key too: another schema, another entry
_NAME = re.compile(r"([0-9a-f]{64})\.plan")
_LOCK, _WRITING = ".lock", ".writing"
_LOCK_WAIT_S = 10.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

# The properties of a GPU that decide whether and how code for it runs. Its name, clocks, memory size, driver and place
# on the bus are not among them: a description made without the GPU does not know them all.
_LIMITS = (
    "deviceVer",
    "multiProcessorCount",
    "warpSize",
    "regsPerBlock",
    "maxRegistersPerSM",
    "maxSharedMemoryPerBlock",
    "maxSharedMemoryPerBlockOptin",
    "oversizedSharedMemoryPerBlock",
    "reservedSharedMemoryPerBlock",
    "maxCtasPerSM",
    "maxThreadsPerBlock",
    "maxThreadsPerSM",
)
# Plans are bound to the bus width, so that an H200 refuses those of an H100. cuDNN 9.19 does not read it off a GPU.
_BUS_WIDTH_SINCE = (9, 27, 0)


class PlanCacheWarning(UserWarning):
    """A cached plan was not used, or a plan could not be kept; it is built instead."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What a cache holds under one key.

    Attributes
    ----------
    key
        As :func:`plan_key` gives it.
    graph, tag
        Name of the graph; engine and knob choices.
    cudnn, target, sm
        cuDNN version, name of the target and its architecture (90 for sm_90).
    size_bytes
        Of the file.
    used
        When it was last read or written, in seconds since 1970.
    evidence
        What was given with it.
    """

    key: str
    graph: str
    tag: str
    cudnn: str
    target: str
    sm: int
    size_bytes: int
    used: float
    evidence: dict[str, Any] | None


def plan_key(graph: Graph, target: Target, options: Mapping[str, Any]) -> str:
    """Return the key of a plan: a SHA-256 as 64 hex digits.

    It covers the whole graph, names and uids included, because a cached plan is called by them: a plan of a graph that
    differs in names only would be the same kernel and take other buffers. Then the cuDNN version and the CUDA major
    it was built with. Then the target's architecture and limits, and not whether it is described or here, so that
    what was built ahead of time for a description is found on the GPU. Then the options.

    NVRTC's version is not covered: clear the cache to have kernels compiled by another one.

    Parameters
    ----------
    options
        What else decides about the plan: plain values, enumerators, collections and dataclasses of these.

    Raises
    ------
    UsageError
        ``plan-option`` for an option that has no JSON.
    """
    lib = target.library
    names = _LIMITS if lib.version < _BUS_WIDTH_SINCE else (*_LIMITS, "memoryBusWidth")
    limits = {name: target.profile.properties.get(name, 0) for name in names}
    about = [_SCHEMA, lib.version_text, lib.cuda_version // 1000, limits, graph_to_json(graph), options]
    try:
        text = json.dumps(about, sort_keys=True, default=_plain)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the options of a plan cannot be written as JSON: {error}",
            code="plan-option",
            fix="give numbers, text, enumerators, and tuples, mappings, sets or dataclasses of these",
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, asdict(value)]
    raise TypeError(f"{value!r} is a {type(value).__name__}")


class PlanCache:
    """Plans in a folder of the user, each in a file of its own.

    What is wrong with an entry (damaged, of another schema, not readable by this cuDNN) is a
    :class:`PlanCacheWarning`, and the entry counts as absent; so is a plan that cannot be written. Any number of
    processes and threads may share a folder.

    Parameters
    ----------
    folder
        Made with mode 0700 when the first plan is put into it; by default ``plans`` in the user's cache folder.
    max_bytes
        Above this sum of sizes, the entries not used for the longest time are removed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self._files = EntryFolder(default_folder() if folder is None else folder, max_bytes)

    def __repr__(self) -> str:
        return f"<PlanCache {self.folder}, at most {self._files.max_bytes} bytes>"

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._files.folder

    def get(self, key: str, target: Target, *, graph: Graph | None = None) -> Plan | None:
        """Return the plan of a key, ready on `target`; None if there is none that can be used.

        Parameters
        ----------
        graph
            The graph the key was made of, which need not be read from the entry then.

        Raises
        ------
        UsageError
            ``cache-folder-not-private``; ``plan-cache-key`` for what is no key.
        """
        record = self._files.read(key)
        if record is None:
            return None
        source = str(self._files.path(key))
        try:
            return restore_plan(record, graph or graph_from_json(record["graph"]), target, source)
        except (CudnnBackendError, KeyError) as error:
            _warn(f"{source} is ignored: {error!s}")
        return None

    def evidence(self, key: str) -> dict[str, Any] | None:
        """Return what was put beside the plan of a key; None if there is no such entry, or nothing was.

        Raises
        ------
        UsageError
            As :meth:`get`.
        """
        record = self._files.read(key)
        return None if record is None else record.get("evidence")

    def put(self, key: str, plan: Plan, evidence: Mapping[str, Any] | None = None) -> None:
        """Keep a plan, in place of what the key had.

        Parameters
        ----------
        evidence
            Why this plan: data that JSON can hold.

        Raises
        ------
        UsageError
            As :meth:`get`; ``plan-cache-evidence`` if JSON cannot hold it.
        """
        try:
            text = plan.json()
        except CudnnStatusError as error:
            return _warn(f"plan {plan.tag} is not kept, cuDNN does not write it down: {error}")
        record = {
            "cudnn": plan.target.library.version_text,
            "target": plan.target.name,
            "sm": plan.target.sm,
            "tag": plan.tag,
            "evidence": None if evidence is None else dict(evidence),
            "graph": graph_to_json(plan.graph),
            "plan": text,
        }
        return self._files.write(key, record)

    def clear(self) -> int:
        """Remove every entry and return how many there were. Other files of the folder are left alone.

        Raises
        ------
        UsageError
            ``cache-folder-not-private``.
        """
        return self._files.clear()

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return what the cache holds, the last used first; every entry is read and checked.

        Raises
        ------
        UsageError
            ``cache-folder-not-private``.
        """
        found = []
        for record, status in self._files.read_all():
            try:
                found.append(_cache_entry(record, status))
            except (KeyError, TypeError):
                _warn(f"{self._files.path(record['key'])} is ignored: it holds no plan")
        return tuple(found)


def _cache_entry(record: Mapping[str, Any], status: os.stat_result) -> CacheEntry:
    return CacheEntry(
        key=record["key"],
        graph=record["graph"]["name"],
        tag=record["tag"],
        cudnn=record["cudnn"],
        target=record["target"],
        sm=record["sm"],
        size_bytes=status.st_size,
        used=status.st_mtime,
        evidence=record["evidence"],
    )


def default_folder() -> Path:
    """Return the folder of plans: ``CUDNN_BACKEND_PLAN_CACHE``, else one in the user's cache folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    import platformdirs

    return platformdirs.user_cache_path("cudnn-backend-py") / "plans"


def default_cache() -> PlanCache | None:
    """Return the cache of :func:`default_folder`; None if ``CUDNN_BACKEND_PLAN_CACHE`` is set to nothing."""
    return None if os.environ.get(VARIABLE) == "" else PlanCache()


def _warn(text: str) -> None:
    warnings.warn(text, PlanCacheWarning, stacklevel=4)


# Files


class EntryFolder:
    """JSON records by key in a private folder: the files of a :class:`PlanCache`. Knows nothing of plans."""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.max_bytes = max_bytes

    def path(self, key: str) -> Path:
        """Return the file of a key.

        Raises
        ------
        UsageError
            ``plan-cache-key``.
        """
        return self.folder / _name(key)

    def read(self, key: str) -> dict[str, Any] | None:
        """Return the record of a key if all of it is as it was written, and note that it was used."""
        name = _name(key)
        try:
            with self._opened() as folder:
                return self._read_in(folder, name, touch=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn(f"{self.folder / name} is ignored: {error}")
        return None

    def read_all(self) -> Iterator[tuple[dict[str, Any], os.stat_result]]:
        """Yield every record and its file's status, the last used first."""
        with suppress(FileNotFoundError), self._opened() as folder:
            for name, status in sorted(_listed(folder), key=lambda item: -item[1].st_mtime_ns):
                if (record := self._read_in(folder, name, touch=False)) is not None:
                    yield record, status

    def write(self, key: str, record: Mapping[str, Any]) -> None:
        """Write the record of a key, then remove old ones if there is too much.

        Raises
        ------
        UsageError
            ``plan-cache-key``, ``plan-cache-evidence``, ``cache-folder-not-private``.
        """
        name = _name(key)
        data = _entry_bytes({"key": key, **record})
        if len(data) > self.max_bytes:
            return _warn(f"{name} is not kept: {len(data)} bytes, the cache holds at most {self.max_bytes}")
        try:
            with self._opened(create=True) as folder, _locked(folder):
                _write(folder, name, data)
                self._trim(folder, keep=name)
        except OSError as error:
            _warn(f"{name} is not kept in {self.folder}: {error}")
        return None

    def clear(self) -> int:
        """Remove every entry and return how many there were."""
        with suppress(FileNotFoundError), self._opened() as folder, _locked(folder):
            names = [name for name, _ in _listed(folder)]
            for name in names:
                os.unlink(name, dir_fd=folder)
            return len(names)
        return 0

    @contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[int]:
        """Yield the folder's file descriptor, by which all is done: what was checked stays what is used."""
        if create:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
        if self.folder.is_symlink():
            self._refuse("is a symbolic link, a folder is needed", "name the folder it points to")
        folder = os.open(self.folder, _READ | os.O_DIRECTORY)
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid():
                self._refuse(f"belongs to user id {status.st_uid}, needed is {os.geteuid()}", "name another folder")
            if status.st_mode & 0o022:
                self._refuse(
                    f"has mode {stat.S_IMODE(status.st_mode):04o}, needed is 0700",
                    f"look at what is in it, then chmod 700 {self.folder}",
                )
            yield folder
        finally:
            os.close(folder)

    def _refuse(self, fault: str, fix: str) -> None:
        raise UsageError(
            f"the plan cache {self.folder} {fault}",
            code="cache-folder-not-private",
            cause="a plan is code that runs on the GPU, so only its user may write to this folder",
            fix=f"{fix}, or set {VARIABLE} to a folder of this user, or to nothing to have no cache",
        )

    def _read_in(self, folder: int, name: str, *, touch: bool) -> dict[str, Any] | None:
        try:
            return _checked(_read_private(folder, name, self.max_bytes, touch=touch), name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _warn(f"{self.folder / name} is ignored: {error}")
        return None

    def _trim(self, folder: int, keep: str) -> None:
        """Remove the entries not used for the longest time until the sum of sizes is within bounds."""
        found = sorted(_listed(folder), key=lambda item: item[1].st_mtime_ns)
        total = sum(status.st_size for _, status in found)
        for name, status in found:
            if total <= self.max_bytes:
                return
            if name != keep:
                os.unlink(name, dir_fd=folder)
                total -= status.st_size


def _name(key: str) -> str:
    name = f"{key}.plan"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{key!r} is no key of a plan, 64 hex digits are needed", code="plan-cache-key")
    return name


def _entry_bytes(record: Mapping[str, Any]) -> bytes:
    try:
        body = json.dumps(record).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise UsageError(f"the evidence for a plan is no JSON: {error}", code="plan-cache-evidence") from None
    return _first_line(body) + body


def _first_line(body: bytes) -> bytes:
    return f"{_SCHEMA} sha256 {hashlib.sha256(body).hexdigest()}\n".encode()


def _checked(data: bytes, name: str) -> dict[str, Any]:
    """Return the record of an entry, or raise ValueError; nothing is parsed before the hash was compared."""
    end = data.find(b"\n") + 1
    first, body = data[:end], data[end:]
    if first != _first_line(body):
        ours = first.startswith(f"{_SCHEMA} ".encode())
        raise ValueError("it was changed since it was written" if ours else f"it does not begin with {_SCHEMA!r}")
    record = json.loads(body)
    if not isinstance(record, dict) or f"{record.get('key')}.plan" != name:
        raise ValueError("it is the entry of another key")
    return record


def _listed(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as items:
        for item in items:
            if _NAME.fullmatch(item.name):
                with suppress(FileNotFoundError):
                    yield item.name, item.stat(follow_symlinks=False)


def _read_private(folder: int, name: str, max_bytes: int, *, touch: bool) -> bytes:
    """Return a file's bytes if it is a plain file that only its user can write; note that it was used."""
    with open(os.open(name, _READ | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError(f"others can write it: user id {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}")
        if status.st_size > max_bytes:
            raise ValueError(f"it has {status.st_size} bytes, the cache holds at most {max_bytes}")
        if touch:
            with suppress(OSError):  # a folder that can only be read
                os.utime(file.fileno())
        return file.read()


def _write(folder: int, name: str, data: bytes) -> None:
    """Write a file that is whole or absent to everybody else. The caller holds the lock."""
    with suppress(FileNotFoundError):  # what a killed writer left
        os.unlink(_WRITING, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(_WRITING, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(_WRITING, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


@contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Hold the folder's writers' lock; TimeoutError if somebody has it for too long."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
    try:
        _wait_for(lock)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may have the file too: closing alone would not free it
        os.close(lock)


def _wait_for(lock: int) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has held {_LOCK} for {_LOCK_WAIT_S:g} s") from None
            time.sleep(0.005)
