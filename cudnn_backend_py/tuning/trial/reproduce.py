"""Graphs as one word of a command line: what a line that reproduces a run names where there is no file."""

from __future__ import annotations

import base64
import binascii
import json
import os
import shlex
import zlib

from ...errors import GraphError
from ...graph import Graph, graph_from_json, graph_to_json
from ...system.strict import parse_json

__all__ = ["PREFIX", "as_word", "command_line", "from_word"]

PREFIX = "graph:"
_LIBRARY = "CUDNN_BACKEND_LIBRARY"
_LARGEST = 64 << 20  # bytes of JSON


def as_word(graph: Graph) -> str:
    """Return a graph as ``graph:`` and its JSON, compressed, in letters, digits, ``-`` and ``_``."""
    text = json.dumps(graph_to_json(graph), separators=(",", ":"))
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def from_word(word: str) -> Graph:
    """Return the graph of :func:`as_word`.

    Raises
    ------
    GraphError
        ``graph-json``: it is not whole.
    """
    letters = word.removeprefix(PREFIX)
    try:
        packed = base64.b64decode(letters + "=" * (-len(letters) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, _LARGEST)
        if not unpacking.eof:
            raise ValueError("it is cut off, or too large")
    except (ValueError, zlib.error, binascii.Error) as error:
        raise GraphError(f"{word[:40]!r} holds no whole graph: {error}", code="graph-json") from error
    return graph_from_json(parse_json(text.decode(errors="replace"), word[:40], code="graph-json"))


def command_line(source: str | None, graph: Graph, *options: str) -> str:
    """Return the command that runs a graph: from a file and options, or from one word.

    A library that the environment names is named in the line, unless its options name a version.
    """
    words = [as_word(graph)] if source is None else shlex.split(source)
    named = any(word.startswith("--cudnn") for word in words)
    before = [f"{_LIBRARY}={os.environ[_LIBRARY]}"] if os.environ.get(_LIBRARY) and not named else []
    return shlex.join([*(["env"] if before else []), *before, "cudnn-backend", "run", *words, *options])
