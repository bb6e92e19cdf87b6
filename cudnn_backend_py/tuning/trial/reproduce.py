"""Graphs as one word of a command line, to reproduce a run without a file."""

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

__all__ = ["PREFIX", "decode_graph", "encode_graph", "make_command_line"]

PREFIX = "graph:"
_LIBRARY_VARIABLE = "CUDNN_BACKEND_LIBRARY"
_MAX_JSON_BYTES = 64 << 20  # bytes of JSON


def encode_graph(graph: Graph) -> str:
    """Return a graph as ``graph:`` and its compressed JSON in letters, digits, ``-`` and ``_``."""
    text = json.dumps(graph_to_json(graph), separators=(",", ":"))
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def decode_graph(word: str) -> Graph:
    """Return the graph from :func:`encode_graph`'s text.

    Raises
    ------
    GraphError
        ``graph-json``: it is not whole.
    """
    letters = word.removeprefix(PREFIX)
    try:
        packed = base64.b64decode(letters + "=" * (-len(letters) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, _MAX_JSON_BYTES)
        if not unpacking.eof:
            raise ValueError("it is truncated or too large")
    except (ValueError, zlib.error, binascii.Error) as error:
        raise GraphError(f"{word[:40]!r} is not a complete graph: {error}", code="graph-json") from error
    return graph_from_json(parse_json(text.decode(errors="replace"), word[:40], code="graph-json"))


def make_command_line(source: str | None, graph: Graph, *options: str) -> str:
    """Return the command that runs a graph, from a file with options, or from one word.

    A library that the environment names is named in the line, unless its options name a version.
    """
    words = [encode_graph(graph)] if source is None else shlex.split(source)
    named = any(word.startswith("--cudnn") for word in words)
    before = (
        [f"{_LIBRARY_VARIABLE}={os.environ[_LIBRARY_VARIABLE]}"]
        if os.environ.get(_LIBRARY_VARIABLE) and not named
        else []
    )
    return shlex.join([*(["env"] if before else []), *before, "cudnn-backend", "run", *words, *options])
