"""Code cells of notebooks exported to text, and their results on a described GPU."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["PLACES", "cells_of", "find_seed", "judge", "program"]

ROOT = Path(__file__).parents[2]
PLACES = "CUDNN_BACKEND_SEEDS, ../shared/seeds, .seeds"
_MARK = "In [None]:"


def find_seed(number: int) -> Path | None:
    """Return the exported notebook with that number, None if it is not available."""
    given = os.environ.get("CUDNN_BACKEND_SEEDS")
    folders = [*([Path(given)] if given else []), ROOT.parent / "shared" / "seeds", ROOT / ".seeds"]
    return next((path for folder in folders for path in sorted(folder.glob(f"{number:03}_*.txt"))), None)


def cells_of(text: str) -> list[str]:
    """Return the code cells of a notebook that was exported to text.

    The export marks the start of a cell, not its end: a cell is the longest run of paragraphs that is Python.
    """
    return [_code(part) for part in text.split(f"{_MARK}\n")[1:]]


def _code(part: str) -> str:
    paragraphs = part.split("\n\n")
    for count in range(len(paragraphs), 0, -1):
        text = "\n\n".join(paragraphs[:count])
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        return text
    raise ValueError(f"no code after {_MARK!r}: {part[:80]!r}")


def program(cells: list[str]) -> str:
    """Return the cells as one program."""
    return "\n\n".join(cells) + "\n"


def judge(cells: list[str], target: str) -> list[dict[str, Any]]:
    """Run cells for a described GPU, with meta tensors for torch; return the errors of execution, each with its cell.

    The next cells run after one that stopped at an execution. The cells after the last execution read results and are
    not run. Any other exception goes to the caller.
    """
    from cudnn_backend_py.frontend import install
    from tests.support import meta_torch

    meta_torch.install()
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
    print(json.dumps(judge(cells_of(Path(seed).read_text(encoding="utf-8")), gpu)))
