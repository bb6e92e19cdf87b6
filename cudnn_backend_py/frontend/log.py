"""cudnn-frontend's log: the graph as one line of JSON, if its environment variables enable it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any
from warnings import warn

__all__ = ["log_graph"]


def log_graph(to_json: Callable[[], Any]) -> None:
    """Write a graph's JSON, made by `to_json`, to ``CUDNN_FRONTEND_LOG_FILE`` if ``CUDNN_FRONTEND_LOG_INFO`` is 1.

    The file is a path, ``stdout`` or ``stderr``; a path is appended to. One that cannot be written is warned of: the
    graph is built all the same.
    """
    if os.environ.get("CUDNN_FRONTEND_LOG_INFO") != "1":
        return
    place = os.environ.get("CUDNN_FRONTEND_LOG_FILE", "stdout")
    line = json.dumps(to_json()) + "\n"
    stream = {"stdout": sys.stdout, "stderr": sys.stderr}.get(place)
    if stream is not None:
        stream.write(line)
        return
    try:
        with open(place, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        warn(
            f"CUDNN_FRONTEND_LOG_FILE is {place!r}, which cannot be written ({error}): name another file", stacklevel=2
        )
