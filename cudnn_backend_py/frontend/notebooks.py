"""Notebooks as programs: their cells of code, one after the other, in one namespace."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import GraphError
from ..system.strict import parse_json
from .errors import FrontendUsageError

__all__ = ["read_cells", "run_notebook"]

_OF_THE_SHELL = ("%", "!")


def read_cells(path: Path) -> list[str]:
    """Return the source of each cell of code; lines for IPython or a shell become comments.

    Raises
    ------
    UsageError
        ``notebook`` if the file is no notebook.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"), str(path), code="notebook")
        cells = [_text(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    except (GraphError, OSError, UnicodeError, LookupError, TypeError) as error:
        raise FrontendUsageError(
            f"{path} is no notebook: {error}", code="notebook", fix="give an .ipynb file"
        ) from None
    return [_plain(cell) for cell in cells]


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _plain(cell: str) -> str:
    lines = cell.splitlines()
    if lines and lines[0].startswith("%%"):  # all of the cell is another program's, but for those that only watch it
        watched = lines[0].split()[0] in ("%%capture", "%%time", "%%timeit")
        return "\n".join(["#", *map(_line, lines[1:])]) if watched else "\n".join("#" for _ in lines)
    return "\n".join(map(_line, lines))


def _line(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass  # {line.strip()}" if line.lstrip().startswith(_OF_THE_SHELL) else line


def run_notebook(notebook: str, *arguments: str) -> None:
    """Run the cells of code of a notebook as the main program; what they raise is not caught.

    Tracebacks show the lines of the cells, which are called ``NOTEBOOK, cell 3``.
    """
    path = Path(notebook)
    cells = read_cells(path)
    sys.argv = [notebook, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.excepthook = traceback.print_exception  # which reads the lines of the cells, as Python's own does not
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    for number, cell in enumerate(cells, 1):
        name = f"{notebook}, cell {number}"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), vars(main))
