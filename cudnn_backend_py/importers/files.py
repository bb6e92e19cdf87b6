"""Read graphs from files: the suffix gives the format, otherwise the content."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import GraphError
from ..system.interruption import reraise_interruption, suppress_errors
from ..system.untrusted_files import MAX_BYTES, parse_json, read_text
from .own_json import may_be_graph_or_plan_json, read_graph_from_own_json

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from .graphs import GraphSource

__all__ = ["FORMATS", "STDIN", "open_graph_file", "read_graphs_or_errors_from_file"]

STDIN = "-"
FORMATS = (
    ".json: graph JSON of this package, JSON of cuDNN or of its frontend, a plan file",
    ".plan: a plan file",
    ".log, .txt, .out, .err, .log.1 or no suffix: a log of cuDNN or of its frontend, or any of the above",
    ".gz: any of these, compressed",
)
_STRICT = {".json": MAX_BYTES, ".plan": 64 << 20}  # JSON and nothing else, with the most bytes that are read
_BY_CONTENT = {".log", ".txt", ".out", ".err", ".stdout", ".stderr", ".gz", ""}
_SOURCES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx"}


def read_graphs_or_errors_from_file(path: str, *, also: Iterable[str] = ()) -> list[Graph | GraphError | None]:
    """Return the graphs of a file; for a graph that cannot be rebuilt, its error, or None without an error.

    Parameters
    ----------
    path
        A file of one of ``FORMATS``, or ``-`` for standard input.
    also
        Lines about further formats that the caller reads, for the error.

    Raises
    ------
    GraphError
        As :func:`open_graph_file`.
    UsageError
        ``log-file``.
    """
    text, data = ("", None) if path == STDIN else _read_strict_json(path, also)
    if may_be_graph_or_plan_json(data):
        try:
            return [read_graph_from_own_json(data)]
        except GraphError as error:
            return [error]
    from .graphs import read_graphs

    return [item.graph or item.fault for item in read_graphs(_make_source(path, text))]


def open_graph_file(path: str, *, also: Iterable[str] = ()) -> GraphSource:
    """Check a file given on a command line, and return its path or stream for :func:`read_graphs`.

    Parameters as for :func:`read_graphs_or_errors_from_file`.

    Raises
    ------
    GraphError
        ``graph-file``: there is no such file, or its suffix is none of ``FORMATS``; ``graph-json``: its suffix promises
        JSON, and it has none.
    """
    return _make_source(path, "" if path == STDIN else _read_strict_json(path, also)[0])


def _make_source(path: str, text: str) -> GraphSource:
    """Return a file, standard input, or the text of a JSON file for :func:`read_graphs`."""
    if text:
        from .records import ForeignJson

        return [ForeignJson(text, 1)]
    if path != STDIN:
        return path
    if sys.stdin is None:
        raise GraphError(
            f"{STDIN} means standard input, which is closed", code="graph-file", fix="give the name of a file"
        )
    return sys.stdin.buffer


def _read_strict_json(path: str, also: Iterable[str]) -> tuple[str, Any]:
    """Check a file; return its text and the JSON in it where the suffix promises JSON, else an empty text and None."""
    place = Path(path)
    try:
        exists, is_folder = place.exists(), place.is_dir()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reraise_interruption(error)
        exists = is_folder = False
    if is_folder:
        raise GraphError(
            f"{path} is a folder, but a file is needed", code="graph-file", fix="name a file of the folder"
        )
    if not exists:
        near = [name for suffix in (".py", *_STRICT) if os.path.isfile(name := path + suffix)]
        raise GraphError(
            f"there is no file {path}", code="graph-file", fix=f"did you mean {near[0]}?" if near else None
        )
    suffix = _find_format_suffix(path)
    if suffix == ".py" or (not suffix and _is_executable(place)):
        program = f"python {path}" if suffix else path
        raise GraphError(
            f"{path} is a program, which is not run here",
            code="graph-file",
            fix=f"cudnn-backend log -- {program} runs it, and explains the graphs that it makes"
            + f"\ncudnn-backend explain {path} explains the one that its function graph() returns" * bool(suffix),
        )
    if suffix in _SOURCES:
        raise GraphError(
            f"{path} is C or C++ source code, which cannot be read: a graph exists only while the program runs",
            code="graph-file",
            fix="compile it, and run it: cudnn-backend log -- PROGRAM explains the graphs that it makes\n"
            "or run it with CUDNN_LOGLEVEL_DBG=3 CUDNN_LOGDEST_DBG=cudnn.log in its environment, and give cudnn.log",
        )
    if suffix == ".ipynb":
        raise GraphError(
            f"{path} is a notebook: its graphs exist only while it runs",
            code="graph-file",
            fix=f"cudnn-backend frontend {path} runs one of cudnn-frontend, and explains its graphs",
        )
    if suffix not in _STRICT and suffix not in _BY_CONTENT:
        raise GraphError(
            f"{path} ends in {suffix}, a file type that can be neither read nor run",
            code="graph-file",
            fix="\n".join(["give one of these:", *also, *FORMATS]),
        )
    if (largest := _STRICT.get(suffix)) is None:
        return "", None
    text = read_text(path, code="graph-json", max_bytes=largest)
    return text, parse_json(text, path, code="graph-json")


def _is_executable(place: Path) -> bool:
    """Return whether a file begins as a program or script does."""
    with suppress_errors(OSError), place.open("rb") as file:
        return file.read(4).startswith((b"\x7fELF", b"#!"))
    return False


def _find_format_suffix(path: str) -> str:
    """Return the lower-case suffix; for a rotated log (``cudnn.log.1``) the one before the number."""
    place = Path(path)
    while place.suffix[1:].isdecimal():
        place = place.with_suffix("")
    return place.suffix.lower()
