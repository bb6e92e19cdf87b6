"""Execute the notebook of the docs and store its outputs: ``python -m tools.records.notebook``.

Cells run in this process without a Jupyter kernel, because they have no Jupyter commands.
"""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from cudnn_backend_py import library
from cudnn_backend_py.frontend.notebooks import read_cells

__all__ = ["NOTEBOOK_PATH", "read_outputs", "run_cells"]

NOTEBOOK_PATH = Path(__file__).parents[2] / "docs" / "tutorials" / "notebook.ipynb"
_DISPLAY_METHODS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}

CellOutput = dict[str, Any]


def run_cells(path: Path = NOTEBOOK_PATH) -> list[list[CellOutput]]:
    """Run the cells, and return the outputs of each code cell in notebook format."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run_cell(source, names, number) for number, source in enumerate(read_cells(path), 1)]


def read_outputs(path: Path = NOTEBOOK_PATH) -> list[list[CellOutput]]:
    """Return the stored outputs of each code cell."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code"]


def _run_cell(source: str, names: dict[str, Any], number: int) -> list[CellOutput]:
    *lines, last = ast.parse(source).body
    value = None
    with redirect_stdout(io.StringIO()) as printed:
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(lines, []), f"cell {number}", "exec"), names)
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        else:
            exec(compile(source, f"cell {number}", "exec"), names)
    shown: list[CellOutput] = []
    if text := printed.getvalue():
        shown.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        rich = {kind: getattr(value, name)() for kind, name in _DISPLAY_METHODS.items() if hasattr(value, name)}
        data = {"text/plain": repr(value)} | {kind: text for kind, text in rich.items() if text is not None}
        lines_of = {kind: text.splitlines(keepends=True) for kind, text in data.items()}
        shown.append({"data": lines_of, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return shown


def _write_outputs(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, run_cells(path), strict=True), 1):
        cell |= {"execution_count": number, "outputs": outputs}
    content["metadata"]["cudnn"] = library().version_text
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write_outputs(NOTEBOOK_PATH)
