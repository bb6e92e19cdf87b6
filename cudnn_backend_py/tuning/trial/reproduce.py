"""The command line that repeats a run of a graph."""

from __future__ import annotations

import os
import shlex

from ...graph import Graph
from ...graph.encoded import encode_graph

__all__ = ["make_command_line"]

_LIBRARY_VARIABLE = "CUDNN_BACKEND_LIBRARY"


def make_command_line(source: str | None, graph: Graph, *options: str) -> str:
    """Return the command line that runs a graph again, from its file or from its encoded text.

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
