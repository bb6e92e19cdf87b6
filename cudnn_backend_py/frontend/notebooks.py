"""Run notebooks as programs: their code cells in order, in one namespace."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import GraphError
from ..system.untrusted_files import parse_json
from .errors import FrontendUsageError

_ALLOW_TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

__all__ = ["is_notebook", "read_cells", "run_notebook", "split_exported_cells"]

_EXPORT_MARK = re.compile(r"^In ?\[(?:None|\d+| )\]:[ ]*\n", re.MULTILINE)  # before each code cell of a text export

_TIME_MAGIC = re.compile(
    r"\s*%time(it)?\s+(-\w+(\s+\d+)?\s+)*(?P<statement>[^-].*)"
)  # what runs a statement and times it
_ASSIGNED_MAGIC_OUTPUT = re.compile(r"(?P<name>[\w, ]+=\s*)[!%].*")
_WRITE_FILE_MAGIC = re.compile(r"%%(writefile|file)\s+(?P<more>-a\s+)?(?P<name>\S.*)")
_MEASURING_MAGICS = ("%%capture", "%%time", "%%timeit", "%%prun")


def is_notebook(path: Path) -> bool:
    """Return whether a file is a notebook: an ``.ipynb`` file, or a ``.txt`` export with code-cell marks."""
    if path.suffix != ".txt":
        return path.suffix == ".ipynb"
    try:
        return bool(_EXPORT_MARK.search(path.read_text(encoding="utf-8-sig")))
    except (OSError, UnicodeError):
        return False


def split_exported_cells(text: str) -> list[str]:
    """Return the code cells of a notebook exported to text, each after a line ``In [1]:``.

    The export does not mark the end of a cell: a cell is the longest run of paragraphs that is Python.
    """
    return [_find_longest_valid_python(part) for part in _EXPORT_MARK.split(text)[1:]]


def _find_longest_valid_python(part: str) -> str:
    paragraphs = part.split("\n\n")
    for count in range(len(paragraphs), 0, -1):
        cell = _to_plain_python("\n\n".join(paragraphs[:count]))
        try:
            compile(cell, "a cell", "exec", _ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        return cell
    return _to_plain_python(part)  # whose error is reported where the cell is run


def read_cells(path: Path) -> list[str]:
    """Return the source of a notebook's code cells; lines for IPython or a shell become comments.

    Raises
    ------
    UsageError
        ``notebook`` if the file is not a notebook.
    """
    try:
        if path.suffix == ".txt":
            return split_exported_cells(path.read_text(encoding="utf-8-sig"))
        content = parse_json(path.read_text(encoding="utf-8-sig"), str(path), code="notebook")
        old = content.get("worksheets", ())  # of format 3
        found = [*content.get("cells", ()), *(cell for sheet in old for cell in sheet["cells"])]
        if not ("cells" in content or old):
            raise LookupError("the file has no list of cells")
        codes = [cell for cell in found if cell["cell_type"] == "code"]
        cells = [_join_source(cell["source"] if "source" in cell else cell["input"]) for cell in codes]
    except (GraphError, OSError, UnicodeError, LookupError, TypeError, AttributeError) as error:
        raise FrontendUsageError(
            f"{path} is not a notebook: {error}", code="notebook", fix="give an .ipynb file, or its export as text"
        ) from None
    return [_to_plain_python(cell) for cell in cells]


def _join_source(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _to_plain_python(cell: str) -> str:
    lines = cell.splitlines()
    if lines and (file := _WRITE_FILE_MAGIC.fullmatch(lines[0].rstrip())):
        text = "".join(f"{line}\n" for line in lines[1:])
        return f"open({file['name']!r}, {'a' if file['more'] else 'w'!r}, encoding='utf-8').write({text!r})"
    if lines and lines[0].startswith("%%"):  # all of the cell is another program's, but for those that only watch it
        lines = ["#", *(lines[1:] if lines[0].split()[0] in _MEASURING_MAGICS else "#" * (len(lines) - 1))]
    for _ in lines:  # only Python knows which lines begin a statement
        try:
            compile("\n".join(lines), "a cell", "exec", _ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            at = (getattr(error, "lineno", None) or 0) - 1
            if not 0 <= at < len(lines) or not _is_magic_or_shell_line(lines[at]):
                break  # told where the cell is run
            end = next((end for end in range(at, len(lines)) if not lines[end].endswith("\\")), len(lines) - 1)
            lines[at : end + 1] = [_to_python_line(lines[at].rstrip("\\")), *[""] * (end - at)]
        else:
            break
    return "\n".join(lines)


def _is_magic_or_shell_line(line: str) -> bool:
    text = line.strip()
    return text.startswith(("%", "!", "?")) or text.endswith("?") or _ASSIGNED_MAGIC_OUTPUT.match(text) is not None


def _to_python_line(line: str) -> str:
    indent, text = line[: len(line) - len(line.lstrip())], line.strip()
    if timed := _TIME_MAGIC.match(text):
        return indent + timed["statement"]
    assigned = _ASSIGNED_MAGIC_OUTPUT.match(text)
    return f"{indent}{assigned['name']}None  # {text}" if assigned else f"{indent}pass  # {text}"


def run_notebook(notebook: str, *arguments: str) -> None:
    """Run a notebook's code cells as the main program, in its folder; exceptions propagate.

    Tracebacks show the lines of the cells, which are called ``NOTEBOOK, cell 3``.
    """
    path = Path(notebook)
    cells = read_cells(path)
    sys.argv = [notebook, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.excepthook = traceback.print_exception  # which reads the lines of the cells, as Python's own does not
    main = ModuleType("__main__")
    vars(main)["display"] = print
    sys.modules["__main__"] = main
    os.chdir(path.resolve().parent)
    for number, cell in enumerate(cells, 1):
        name = f"{notebook}, cell {number}"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        code = compile(cell, name, "exec", _ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        awaited = eval(code, vars(main))
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(awaited)
