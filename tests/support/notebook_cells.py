"""Find notebooks exported as text, and run their code cells for a described GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from cudnn_backend_py.frontend.notebooks import split_exported_cells

__all__ = ["NOTEBOOK_FOLDERS", "find_notebook", "join_cells", "run_notebook_cells"]

ROOT = Path(__file__).parents[2]
NOTEBOOK_FOLDERS = "CUDNN_BACKEND_SEEDS, ../shared/seeds, .seeds"


def find_notebook(number: int) -> Path | None:
    """Return the path of the exported notebook with this number, None if it is missing."""
    given = os.environ.get("CUDNN_BACKEND_SEEDS")
    folders = [*([Path(given)] if given else []), ROOT.parent / "shared" / "seeds", ROOT / ".seeds"]
    return next((path for folder in folders for path in sorted(folder.glob(f"{number:03}_*.txt"))), None)


def join_cells(cells: list[str]) -> str:
    """Return the cells joined to one program."""
    return "\n\n".join(cells) + "\n"


def run_notebook_cells(cells: list[str], target: str) -> list[dict[str, Any]]:
    """Run cells for a described GPU with a substitute for torch; return the execution errors, each with its cell.

    After a cell stopped at an execution, the next cells are run. The cells after the last execution read results and
    are not run. Other exceptions are raised.
    """
    from cudnn_backend_py.frontend import install
    from tests.support import torch_substitute

    torch_substitute.install_as_torch()
    install(target)
    last = max(number for number, cell in enumerate(cells) if ".execute(" in cell)
    names: dict[str, Any] = {"__name__": "__main__"}
    stops = []
    for number, cell in enumerate(cells[: last + 1]):
        try:
            exec(compile(cell, f"cell {number}", "exec"), names)
        except RuntimeError as error:
            if getattr(error, "code", None) != "plan-without-device":
                raise
            stops.append({"cell": number, "type": type(error).__name__, "text": str(error)})
    return stops


if __name__ == "__main__":
    seed, gpu = sys.argv[1:]
    print(json.dumps(run_notebook_cells(split_exported_cells(Path(seed).read_text(encoding="utf-8")), gpu)))
