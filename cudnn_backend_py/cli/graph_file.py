"""Read graph files for all commands: Python files are run, other formats are data."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CudnnBackendError, GraphError
from ..system.python_file import is_python_file

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["load_graph_file", "load_graph_files", "read_graphs_and_errors"]

_PACKAGE_FOLDER = str(Path(__file__).parents[1])
_MAX_MESSAGE_LENGTH = 2000  # characters of the message of somebody's exception
_GRAPH_FUNCTION = "def graph("
_MAX_FRAMES = 10  # shown at either end of a traceback
_PYTHON_FORMAT_TEXT = ".py: Python with a function graph(), which is run; the only files that are"


def load_graph_file(path: str, number: int | None = None) -> Graph:
    """Return the graph in a file, or graph `number` of a cuDNN log; raise if it could not be rebuilt.

    Raises
    ------
    GraphError
        As ``read_graphs_and_errors``; ``graph-file`` too if there are several graphs; why the graph could not be
        rebuilt.
    """
    graphs = read_graphs_and_errors(path, number)
    if len(graphs) != 1:
        raise GraphError(
            f"{path} has {len(graphs)} graphs, one is needed",
            code="graph-file",
            fix=f"choose one with --graph, 1 to {len(graphs)}; 'cudnn-backend log {path}' lists them",
        )
    [(_, graph)] = graphs
    if isinstance(graph, GraphError):
        raise graph
    return graph


def load_graph_files(paths: Sequence[str], number: int | None = None) -> list[tuple[str, Graph]]:
    """Return each path with its graph, as :func:`load_graph_file`; graphs of equal names get the path into theirs."""
    graphs = [load_graph_file(path, number) for path in paths]
    names = [graph.name for graph in graphs]
    return [
        (path, replace(graph, name=f"{path}:{graph.name}") if names.count(graph.name) > 1 else graph)
        for path, graph in zip(paths, graphs, strict=True)
    ]


def read_graphs_and_errors(path: str, number: int | None = None) -> list[tuple[int | None, Graph | GraphError]]:
    """Read the graphs of a Python, JSON or log file; for a graph that could not be rebuilt, return its error.

    Only a file named ``*.py`` is run, and the graph is what its function ``graph()`` returns. Modules next to it can be
    imported meanwhile, and what it and the processes it starts print goes to standard error.

    Parameters
    ----------
    path
        A Python file, a file of one of the ``FORMATS`` of :mod:`~cudnn_backend_py.importers.files`, ``-`` for standard
        input, or ``graph:`` and a graph in one word.
    number
        Which graph of a log, counted from 1; all of them if not given.

    Returns
    -------
    list
        Pairs of the number, where the file holds several, and the graph, or why it could not be rebuilt.

    Raises
    ------
    GraphError
        ``graph-file``: the file is not there, of no known format, has no such graph, or fails; ``graph-json``,
        ``plan-file``.
    UsageError
        ``log-file``.
    """
    from ..graph.encoded import GRAPH_PREFIX, decode_graph
    from ..importers.files import read_graphs_or_errors_from_file

    found: list[Graph | GraphError | None]
    if path.startswith(GRAPH_PREFIX):
        found = [decode_graph(path)]
    elif path.endswith(".py") and os.path.isfile(path):
        found = [_run_graph_file(path)]
    else:
        found = read_graphs_or_errors_from_file(path, also=[_PYTHON_FORMAT_TEXT])
    if not found:
        raise GraphError(
            f"{path} has no graph",
            code="graph-file",
            fix="a log has graphs if CUDNN_LOGLEVEL_DBG=3 was set before the program started\n"
            "or run a program: cudnn-backend log -- PROGRAM, or cudnn-backend frontend PROGRAM.py",
        )
    if number is not None and number > len(found):
        count = f"{len(found)} graphs" if len(found) > 1 else "one graph"
        raise GraphError(f"--graph is {number}, but {path} has only {count}", code="graph-file")
    several = len(found) > 1
    return [
        (place if several else None, graph)
        for place, graph in enumerate(found, 1)
        if graph is not None and number in (None, place)
    ]


def _run_graph_file(path: str) -> Graph:
    import runpy

    from ..graph import Graph

    if not is_python_file(path):
        raise GraphError(
            f"{path} is a link to {os.path.realpath(path)}, which is not run, as its name does not end in .py",
            code="graph-file",
            fix="if it is a Python file, let its name end in .py",
        )
    try:
        with _append_to_import_path(os.path.dirname(os.path.realpath(path))), _redirect_stdout():
            function = runpy.run_path(path, run_name="__cudnn_backend__").get("graph")
            graph = function() if callable(function) else None
    except KeyboardInterrupt:
        raise
    except CudnnBackendError as error:
        if places := _format_user_stack_frames(error):
            error.sections.setdefault("more", places)
        raise
    except BaseException as error:  # whatever a user's file may raise: SystemExit would be an answer
        raise GraphError(
            f"{path} fails with {_format_exception(error)}",
            code="graph-file",
            where=_format_user_stack_frames(error),
            fix=None if _is_written_for_graphs(path, error) else _format_program_commands(path),
        ) from error
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{path} has no function graph() that returns a Graph",
            code="graph-file",
            fix=f"define 'def graph() -> Graph', or give a graph JSON\nor {_format_program_commands(path)}",
        )
    return graph


def _is_written_for_graphs(path: str, error: BaseException) -> bool:
    return isinstance(error, SyntaxError) or _GRAPH_FUNCTION in Path(path).read_text(encoding="utf-8", errors="replace")


def _format_program_commands(path: str) -> str:
    return (
        f"run a program: cudnn-backend log -- python {path} explains the graphs that it makes,\n"
        f"cudnn-backend frontend {path} those of cudnn-frontend, which need not be installed,\n"
        f"cudnn-backend why {path} the attention of torch"
    )


@contextlib.contextmanager
def _append_to_import_path(folder: str) -> Iterator[None]:
    """Make modules in a folder importable after all others, so that they do not replace installed ones."""
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


@contextlib.contextmanager
def _redirect_stdout() -> Iterator[None]:
    """Redirect standard output to standard error in a block, including that of child processes."""
    kept: int | None = None
    with contextlib.suppress(OSError):  # one of them is closed
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _format_exception(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # an exception that cannot be printed
        text = ""
    shown = text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:_MAX_MESSAGE_LENGTH]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _format_user_stack_frames(error: BaseException, depth: int = 2) -> str:
    """Return the stack frames of the user's code in an exception and its causes, innermost last."""
    import traceback

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE_FOLDER, "<frozen", "<string>"))
    ]
    lines = [f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]
    if len(lines) > 2 * _MAX_FRAMES:
        lines[_MAX_FRAMES:-_MAX_FRAMES] = [f"... {len(lines) - 2 * _MAX_FRAMES} more ..."]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}")
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and depth and (places := _format_user_stack_frames(before, depth - 1)):
        lines += [f"after {_format_exception(before)}", places]
    return "\n".join(lines)
