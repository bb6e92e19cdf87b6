"""Files that a user names, written whole or not at all: where a disk is full, what was there before is still there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file, texts in UTF-8; one that was there keeps its permissions, and its contents until all is written.

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
