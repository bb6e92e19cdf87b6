"""The picture of the README and the first page: ``python -m tools.website.picture`` draws it from the forum's graph."""

from __future__ import annotations

from pathlib import Path

from cudnn_backend_py.diagnose.report.drawing import draw_file
from examples.forum_two_matmul import graph

__all__ = ["FILE", "draw"]

FILE = Path(__file__).parents[2] / "docs" / "assets" / "forum.svg"


def draw() -> str:
    """Return the drawing as a file that stands alone, in the colours of the reader's system."""
    return draw_file(graph(), {"s"})


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
