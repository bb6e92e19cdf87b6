"""Graphs as one word of a command line: their JSON, compressed, after ``graph:``."""

from __future__ import annotations

import base64
import binascii
import json
import zlib

from ..errors import GraphError
from ..system.untrusted_files import parse_json
from .ir import Graph
from .serial import graph_from_json, graph_to_json

__all__ = ["GRAPH_PREFIX", "decode_graph", "encode_graph"]

GRAPH_PREFIX = "graph:"
_MAX_JSON_BYTES = 64 << 20


def encode_graph(graph: Graph) -> str:
    """Return a graph as ``graph:`` and its compressed JSON in letters, digits, ``-`` and ``_``."""
    text = json.dumps(graph_to_json(graph), separators=(",", ":"))
    return GRAPH_PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def decode_graph(word: str) -> Graph:
    """Return the graph from :func:`encode_graph`'s text.

    Raises
    ------
    GraphError
        ``graph-json``: it is not whole.
    """
    letters = word.removeprefix(GRAPH_PREFIX)
    try:
        packed = base64.b64decode(letters + "=" * (-len(letters) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, _MAX_JSON_BYTES)
        if not unpacking.eof:
            raise ValueError(f"the text is cut off, or its JSON has more than {_MAX_JSON_BYTES} bytes")
    except (ValueError, zlib.error, binascii.Error) as error:
        raise GraphError(
            f"{word[:40]!r} is not a complete graph: {error}",
            code="graph-json",
            fix=f"copy the whole text that begins with {GRAPH_PREFIX}",
        ) from error
    return graph_from_json(parse_json(text.decode(errors="replace"), word[:40], code="graph-json"))
