"""Reading of untrusted ``.npz`` files: sizes are checked before memory is allocated."""

from __future__ import annotations

import ast
import io
import math
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CudnnBackendError, UsageError
from ..system.archives import ARCHIVE_ERRORS
from ..system.memory import explain_insufficient_memory

__all__ = ["ArrayHeader", "read_arrays", "read_headers"]

_FILE_KIND = ".npz file of numbers"
_MAX_HEADER_BYTES = 10_000  # bytes, as NumPy itself allows
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}  # bytes of the length of a header, by version of the format
_COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED_FLAG = 0x1
_MAX_MEMBERS = 100_000


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The header of one array: shape, type, and whether its data are compressed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    compressed: bool

    @property
    def size_bytes(self) -> int:
        """Size of the array in memory, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: str | os.PathLike[str], *, code: str) -> dict[str, ArrayHeader]:
    """Return the headers of the arrays in a file by name, without reading the arrays.

    Raises
    ------
    UsageError
        With the given code: the file cannot be read, is no ``.npz`` file, or an array has other bytes than its header
        says.
    """
    with _open_archive(path, code, _FILE_KIND) as file:
        return {name: _read_header(file, info) for name, info in _map_array_names_to_members(file).items()}


def read_arrays(
    path: str | os.PathLike[str],
    *,
    code: str,
    what: str = _FILE_KIND,
    check: Callable[[Mapping[str, ArrayHeader]], object] = id,
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name.

    Parameters
    ----------
    what
        What the file should be, for messages.
    check
        Called with the headers before an array is read; it raises ``ValueError`` or an error of this package for what
        is not wanted.

    Raises
    ------
    UsageError
        As :func:`read_headers`, what `check` raises as ``ValueError``, or more bytes than memory is available.
    """
    with _open_archive(path, code, what) as file:
        members = _map_array_names_to_members(file)
        headers = {name: _read_header(file, info) for name, info in members.items()}
        check(headers)
        if problem := explain_insufficient_memory(
            sum(header.size_bytes for header in headers.values()), "what it holds"
        ):
            raise ValueError(problem)
        return {name: _read_array(file, info) for name, info in members.items()}


@contextmanager
def _open_archive(path: str | os.PathLike[str], code: str, what: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except CudnnBackendError:
        raise
    except (OSError, *ARCHIVE_ERRORS) as error:
        said = str(error) or type(error).__name__
        raise UsageError(f"{os.fspath(path)} is not a {what}: {said}", code=code) from error


def _read_array(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _map_array_names_to_members(file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members = file.infolist()
    names = [info.filename.removesuffix(".npy") for info in members]
    if len(names) > _MAX_MEMBERS:
        raise ValueError(f"the file has {len(names)} arrays, at most {_MAX_MEMBERS} are allowed")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"the file has several arrays with the same name {twice[0]!r}")
    return dict(zip(names, members, strict=True))


def _read_header(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    if info.compress_type not in _COMPRESSION_METHODS or info.flag_bits & _ENCRYPTED_FLAG:
        raise ValueError(f"{info.filename!r} is encrypted, or compressed by unsupported method {info.compress_type}")
    with file.open(info) as stream:
        text, begin = _read_header_text(stream)
    try:
        fields = ast.literal_eval(text.strip())
        shape, dtype, _ = fields["shape"], np.dtype(str(fields["descr"])), bool(fields["fortran_order"])
    except (SyntaxError, TypeError, LookupError) as error:
        raise ValueError(f"the header of {info.filename!r} cannot be read: {error}") from None
    if not isinstance(shape, tuple):
        raise ValueError(f"the header of {info.filename!r} has shape {shape!r}, a tuple is needed")
    header = ArrayHeader(shape, dtype, info.compress_type != zipfile.ZIP_STORED)
    if dtype.hasobject or any(not isinstance(dim, int) or isinstance(dim, bool) or dim < 0 for dim in shape):
        raise ValueError(
            f"{info.filename!r} has type {dtype} and shape {shape}; numbers and dims of 0 or more are needed"
        )
    held = info.file_size - begin
    if header.size_bytes != held:
        raise ValueError(f"{info.filename!r} has {held} bytes, {header.size_bytes} are needed for its shape {shape}")
    return header


def _read_header_text(stream: IO[bytes]) -> tuple[str, int]:
    """Return the header text of an array and the position of its data, after checking the text's length."""
    magic = stream.read(8)
    version = np.lib.format.read_magic(io.BytesIO(magic))
    if version not in _LENGTH_BYTES:
        raise ValueError(f"an array of the file has NumPy format version {version}, (1, 0) or (2, 0) is needed")
    length = stream.read(_LENGTH_BYTES[version])
    size = int.from_bytes(length, "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"the header of an array has {size} bytes, at most {_MAX_HEADER_BYTES} are allowed")
    return stream.read(size).decode("latin1"), len(magic) + len(length) + size
