"""Exceptions that Python raises for damaged zip archives."""

from __future__ import annotations

import struct
import zipfile
import zlib

__all__ = ["ARCHIVE_ERRORS"]

ARCHIVE_ERRORS = (  # also OSError
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError),
    *(ValueError, LookupError, ArithmeticError, NotImplementedError, RuntimeError, MemoryError),
)
