"""Graph files of commands: JSON, which is data, or Python, which is run."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from ..errors import CudnnBackendError, GraphError
from ..graph import Graph, load_graph

__all__ = ["is_python", "load_graph_file"]

_PACKAGE = str(Path(__file__).parents[1])
_SHOWN = 2000  # characters of the message of somebody's exception


def is_python(path: str) -> bool:
    """Return whether reading this file runs it."""
    return Path(path).suffix != ".json"


def load_graph_file(path: str) -> Graph:
    """Return the graph in a JSON file, or the one a Python file's ``graph()`` function returns.

    A Python file is run: name only files you trust. Modules beside it can be imported meanwhile, and what it prints
    goes to standard error.

    Raises
    ------
    GraphError
        ``graph-file`` if the file has neither, or fails; ``graph-json`` and what else reading a graph refuses.
    """
    if not os.path.isfile(path):
        raise GraphError(f"there is no file {path}", code="graph-file")
    if not is_python(path):
        return load_graph(path)
    try:
        with _neighbours(os.path.dirname(os.path.realpath(path))), contextlib.redirect_stdout(sys.stderr):
            function = runpy.run_path(path, run_name="__cudnn_backend__").get("graph")
            graph = function() if callable(function) else None
    except KeyboardInterrupt:
        raise
    except CudnnBackendError as error:
        if places := _places(error):
            error.sections.setdefault("more", places)
        raise
    except BaseException as error:  # whatever a user's file may raise: SystemExit would be an answer
        raise GraphError(f"{path} fails with {_said(error)}", code="graph-file", where=_places(error)) from error
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{path} has no function graph() that returns a Graph",
            code="graph-file",
            fix="define 'def graph() -> Graph', or give a graph JSON",
        )
    return graph


@contextlib.contextmanager
def _neighbours(folder: str) -> Iterator[None]:
    """Let modules of a folder be imported, behind all others: none of them takes the place of an installed one."""
    before = set(sys.modules)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:  # the next file may have neighbours of the same name
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and os.path.realpath(file).startswith(folder + os.sep):
                del sys.modules[name]


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # an exception that cannot be printed
        text = ""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _places(error: BaseException) -> str:
    """Return the frames of an exception that are the user's, the innermost last."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE, "<frozen", "<string>"))
    ]
    lines = [f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}")
    return "\n".join(lines)
