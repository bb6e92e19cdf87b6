"""Draw the picture of the README and the home page from the example graph of a forum thread."""

from __future__ import annotations

from cudnn_backend_py.diagnose.report.drawing import draw_svg_file
from examples.forum_two_matmul import graph

__all__ = ["draw_readme_picture"]


def draw_readme_picture() -> str:
    """Return the drawing as a stand-alone SVG in the light or dark colours of the reader's system."""
    return draw_svg_file(graph(), {"s"})
