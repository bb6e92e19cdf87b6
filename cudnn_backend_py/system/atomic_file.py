"""Atomic writes to files that the user named: if a write fails, the previous content remains."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file atomically, with text encoded as UTF-8; an existing file keeps its permissions.

    What is no file of its own (a device, a pipe, a link) is written where it is, as is one in a folder that takes no
    other.

    Raises
    ------
    OSError
        With the name of the file; nothing half written stays.
    """
    path = Path(path)
    content = data if isinstance(data, bytes) else data.encode("utf-8")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and (not stat.S_ISREG(mode) or not os.access(path.parent, os.W_OK)):
        path.write_bytes(content)
        return
    staged = path.with_name(f".{os.getpid()}.{threading.get_ident()}.writing")
    try:
        staged.write_bytes(content)
        if mode is not None:
            staged.chmod(stat.S_IMODE(mode))
        staged.replace(path)
    except BaseException as error:  # a full disk, Ctrl-C
        staged.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
