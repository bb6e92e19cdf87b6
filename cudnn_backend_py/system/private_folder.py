"""Folders that only their user can write, with files written atomically.

Code is loaded from such a folder, or what is in it is believed: so the folder must belong to this user, no one else
may write to it, and all is done through the file descriptor that was checked. Writers take turns by a lock that the
system gives back when a process dies; what a killed one left is removed by the next.

:class:`KeyedRecordFolder` keeps JSON records by key in such a folder: one line with schema and SHA-256, then the JSON.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import EnvironmentNotReady, UsageError
from .interruption import reraise_interruption
from .user_folder import get_user_folder

__all__ = ["CacheWarning", "KeyedRecordFolder", "OpenFolder", "PrivateFolder", "get_user_folder"]

_KEY_DIGITS = 64
LOCK, WRITING = ".lock", ".writing"
_LOCK_WAIT_S = 10.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class CacheWarning(UserWarning):
    """Warns that a cached file was not used or not written, so its content will be computed again."""


class PrivateFolder:
    """A folder that only its user can write; created with mode 0700 on first write.

    Parameters
    ----------
    path
        ``~`` and ``~user`` are expanded.
    title
        What the folder is called in messages, such as ``plan cache``.
    reason
        Why no one else may write to it.
    code
        Of the error if somebody else can write to it.
    otherwise
        What else a user can do about a folder that cannot be used.

    Raises
    ------
    UsageError
        ``cache-folder-name`` if no folder can have that name.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, title: str, reason: str, code: str, otherwise: str = ""
    ) -> None:
        self.title = title
        self.reason = reason
        self.code = code
        self.or_else = otherwise and f", or {otherwise}"
        try:
            self.path = Path(path).expanduser().absolute()
            if b"\0" in os.fsencode(self.path):
                raise ValueError("the path contains a null character")
        except (RuntimeError, ValueError, TypeError, OSError) as error:  # no such user, no such text, no working folder
            reraise_interruption(error)
            raise UsageError(
                f"{path!r} cannot be the {title}: {error}",
                code="cache-folder-name",
                fix=f"give the path of a folder{self.or_else}",
            ) from None

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[OpenFolder]:
        """Open the folder; all later work uses its file descriptor, so the checked folder cannot be replaced.

        Raises
        ------
        EnvironmentNotReady
            The code this folder was given.
        OSError
            ``FileNotFoundError`` if it is not there, and what else keeps it from being opened or made.
        """
        if create and not self.path.exists():
            for folder in (*reversed(self.path.parents), self.path):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
        try:
            descriptor = os.open(self.path, _READ | os.O_DIRECTORY)
        except OSError as error:
            reraise_interruption(error)
            if self.path.is_symlink():
                raise self._make_not_private_error(
                    "is a symbolic link, a folder is needed", "name the folder it points to"
                ) from None
            raise
        try:
            self._check_privacy(os.fstat(descriptor))
            yield OpenFolder(descriptor, self.path)
        finally:
            os.close(descriptor)

    def _check_privacy(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            fault = f"belongs to user id {status.st_uid}, needed is {os.geteuid()}"
            raise self._make_not_private_error(fault, "name another folder")
        if status.st_mode & 0o022:
            fault = f"has mode {stat.S_IMODE(status.st_mode):04o}, needed is 0700"
            raise self._make_not_private_error(fault, f"check its content, then run chmod 700 {self.path}")

    def _make_not_private_error(self, fault: str, fix: str) -> EnvironmentNotReady:
        return EnvironmentNotReady(
            f"the {self.title} {self.path} {fault}",
            code=self.code,
            cause=f"{self.reason}, so only its user may write to this folder",
            fix=f"{fix}{self.or_else}",
        )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """In the block, turn operating system errors about the folder into errors of this package.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-unusable``.
        """
        try:
            yield
        except EnvironmentNotReady:
            raise
        except OSError as error:
            reraise_interruption(error)
            raise EnvironmentNotReady(
                f"the {self.title} {self.path} cannot be used: {error}",
                code="cache-folder-unusable",
                fix=f"check that this user can read and write it and that its disk has space{self.or_else}",
            ) from None


class OpenFolder:
    """An opened folder that was checked to be private; made by :meth:`PrivateFolder.open`."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    def files(self, is_wanted: Callable[[str], object]) -> list[tuple[str, os.stat_result]]:
        """Return the files with wanted names, each with its ``stat`` result."""
        found = []
        with os.scandir(self.descriptor) as items:
            for item in items:
                if is_wanted(item.name) and not item.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        found.append((item.name, item.stat(follow_symlinks=False)))
        return found

    def read(self, name: str, max_bytes: int, *, touch: bool = False) -> bytes:
        """Return the bytes of a regular file that only its user can write; with `touch`, update its time of use.

        Raises
        ------
        ValueError
            It is something else, or larger than `max_bytes`.
        """
        descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=self.descriptor)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("this is not a regular file")
            if status.st_uid != os.geteuid():
                raise ValueError(
                    f"the file belongs to user id {status.st_uid}, but must belong to {os.geteuid()}, the present user"
                )
            if status.st_mode & 0o022:
                raise ValueError(
                    f"other users can write the file: its mode is {stat.S_IMODE(status.st_mode):04o}, 0600 is needed"
                )
            if status.st_size > max_bytes:
                raise ValueError(f"the file has {status.st_size} bytes, at most {max_bytes} are allowed")
            if touch:
                with suppress(OSError):  # a folder that can only be read
                    os.utime(descriptor)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(max_bytes)
        finally:  # open() does not close what turns out to be a folder
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically. The caller holds the lock."""
        self.remove_temporary_files()
        flags = os.O_WRONLY | os.O_EXCL | _CREATE
        try:
            with open(os.open(WRITING, flags, 0o600, dir_fd=self.descriptor), "wb") as file:
                file.write(data)
            os.replace(WRITING, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:  # a full disk, Ctrl-C: nothing half written stays
            with suppress(OSError):
                self.remove(WRITING)
            raise

    def remove(self, name: str) -> bool:
        """Remove a file; return whether it existed."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        return True

    def remove_temporary_files(self) -> None:
        """Remove temporary files of killed writers. The caller has the lock."""
        self.remove(WRITING)

    @contextmanager
    def lock(self, wait_s: float | None = None) -> Iterator[int]:
        """Lock the folder for a block; yield the lock's file descriptor.

        A child process that is given the descriptor holds the lock too, until it ends.

        Raises
        ------
        TimeoutError
            Somebody has it for longer than `wait_s`.
        """
        deadline = time.monotonic() + (_LOCK_WAIT_S if wait_s is None else wait_s)
        while True:
            lock = os.open(LOCK, os.O_RDWR | _CREATE, 0o600, dir_fd=self.descriptor)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current_lock_file(lock):
                    break
            except BlockingIOError:
                pass
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process holds the lock {self.path / LOCK}")
            time.sleep(0.005)
        try:
            yield lock
        finally:
            # A forked child may have the file too: closing alone would not free it.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _is_current_lock_file(self, lock: int) -> bool:
        """Return whether the locked file is still the folder's lock file, which another process may have removed."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(LOCK, dir_fd=self.descriptor, follow_symlinks=False))
        except FileNotFoundError:
            return False


class KeyedRecordFolder:
    """JSON records by key, each in a file of its own in a private folder.

    What is wrong with an entry is a warning, and the entry counts as absent; so is an entry that cannot be written.
    Any number of processes and threads may share a folder. What a power failure damaged is noticed by its hash.

    Parameters
    ----------
    schema
        First words of every entry: another schema, other entries.
    suffix
        Of the file names, which are ``<key>.<suffix>``; keys are 64 hex digits.
    max_bytes
        Before their sizes come to more than this, the entries not used for the longest time are removed.
        None: never.
    warning
        Category of the warnings.
    """

    def __init__(
        self,
        folder: PrivateFolder,
        *,
        schema: str,
        suffix: str,
        max_bytes: int | None,
        warning: type[CacheWarning] = CacheWarning,
    ) -> None:
        self.folder = folder.path
        self.max_bytes = max_bytes
        self._private = folder
        self._schema = schema
        self._suffix = suffix
        self._max_read = (1 << 28) if max_bytes is None else max_bytes
        self._warning = warning

    def create(self) -> None:
        """Create the folder if it does not exist.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-unusable``, and as :meth:`PrivateFolder.open`.
        """
        with self._private.translate_errors(), self._private.open(create=True):
            pass

    def path(self, key: str) -> Path:
        """Return the path of a key's file.

        Raises
        ------
        UsageError
            ``plan-cache-key``.
        """
        return self.folder / self._make_entry_name(key)

    def read(self, key: str) -> dict[str, Any] | None:
        """Return the record of a key if its hash matches, and mark it as just used."""
        name = self._make_entry_name(key)
        try:
            with self._private.open() as folder:
                return self._read_entry(folder, name, touch=True)
        except FileNotFoundError:
            return None
        except EnvironmentNotReady:
            raise
        except OSError as error:
            reraise_interruption(error)
            self.warn(f"{self.folder / name} is ignored: {error}")
        return None

    def read_all(self) -> Iterator[tuple[dict[str, Any], os.stat_result]]:
        """Yield every record with the ``stat`` result of its file, most recently used first.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-unusable``, and as :meth:`PrivateFolder.open`.
        """
        with self._private.translate_errors(), suppress(FileNotFoundError), self._private.open() as folder:
            for name, status in sorted(folder.files(self._is_entry_name), key=lambda item: -item[1].st_mtime_ns):
                if (record := self._read_entry(folder, name, touch=False)) is not None:
                    yield record, status

    def write(self, key: str, record: Mapping[str, Any]) -> None:
        """Remove old records until there is room, then write the record of a key.

        Raises
        ------
        UsageError
            ``plan-cache-key``, ``plan-cache-evidence``.
        EnvironmentNotReady
            As :meth:`PrivateFolder.open`.
        """
        name = self._make_entry_name(key)
        data = self._make_entry_bytes({"key": key, **record})
        if len(data) > self._max_read:
            return self.warn(f"{name} is not cached: it has {len(data)} bytes, the cache at most {self._max_read}")
        try:
            with self._private.open(create=True) as folder, folder.lock():
                folder.remove_temporary_files()
                self._remove_least_recently_used_entries(folder, name, len(data))
                folder.write(name, data)
        except EnvironmentNotReady:
            raise
        except OSError as error:
            reraise_interruption(error)
            self.warn(f"{name} is not kept in {self.folder}: {error}")
        return None

    def clear(self) -> int:
        """Remove every entry and return their number; other files of the folder stay.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-unusable``, and as :meth:`PrivateFolder.open`.
        """
        with (
            self._private.translate_errors(),
            suppress(FileNotFoundError),
            self._private.open() as folder,
            folder.lock(),
        ):
            folder.remove_temporary_files()
            return sum(folder.remove(name) for name, _ in folder.files(self._is_entry_name))
        return 0

    def warn(self, text: str) -> None:
        """Issue a warning that points to the code that called this package."""
        warnings.warn(text, self._warning, stacklevel=4)

    def _is_entry_name(self, name: str) -> bool:
        key, _, suffix = name.partition(".")
        return suffix == self._suffix and len(key) == _KEY_DIGITS and not set(key).difference("0123456789abcdef")

    def _make_entry_name(self, key: str) -> str:
        name = f"{key}.{self._suffix}"
        if not self._is_entry_name(name):
            raise UsageError(f"key {key!r} must be 64 hex digits", code="plan-cache-key")
        return name

    def _make_entry_bytes(self, record: Mapping[str, Any]) -> bytes:
        try:
            body = json.dumps(record).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"the record to store is not plain data for JSON: {error}", code="plan-cache-evidence"
            ) from None
        return self._make_schema_and_hash_line(body) + body

    def _make_schema_and_hash_line(self, body: bytes) -> bytes:
        return f"{self._schema} sha256 {hashlib.sha256(body).hexdigest()}\n".encode()

    def _read_entry(self, folder: OpenFolder, name: str, *, touch: bool) -> dict[str, Any] | None:
        try:
            return self._parse_entry_and_check_hash(folder.read(name, self._max_read, touch=touch), name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.warn(f"{self.folder / name} is ignored: {error}")
        return None

    def _parse_entry_and_check_hash(self, data: bytes, name: str) -> dict[str, Any]:
        """Check the hash of a file's content, then parse the record; raise ValueError if it is damaged."""
        end = data.find(b"\n") + 1
        first, body = data[:end], data[end:]
        if first != self._make_schema_and_hash_line(body):
            ours = first.startswith(f"{self._schema} ".encode())
            raise ValueError(
                "it was changed since it was written" if ours else f"it does not begin with {self._schema!r}"
            )
        record = json.loads(body)
        if not isinstance(record, dict) or f"{record.get('key')}.{self._suffix}" != name:
            raise ValueError("the file name is of one key, but the entry in the file is of another key")
        return record

    def _remove_least_recently_used_entries(self, folder: OpenFolder, name: str, size: int) -> None:
        """Remove the least recently used entries until one more of this size fits.

        Before it is written and not after: a writer that is killed in between leaves too little, never too much.
        """
        if self.max_bytes is None:
            return
        found = sorted(folder.files(self._is_entry_name), key=lambda item: item[1].st_mtime_ns)
        total = size + sum(status.st_size for other, status in found if other != name)
        for other, status in found:
            if total <= self.max_bytes:
                return
            if other != name:
                folder.remove(other)
                total -= status.st_size
