"""The picture of the README and the first page: ``python -m website.picture`` draws it anew, from the forum's graph."""

from __future__ import annotations

from pathlib import Path

from cudnn_backend_py.diagnose.report.svg import draw_graph
from examples.forum_two_matmul import graph

__all__ = ["FILE", "draw"]

FILE = Path(__file__).parents[1] / "docs" / "assets" / "forum.svg"
_STYLE = """<style>
text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #17212b; }
.small { font-size: 10px; fill: #56626e; } .name { font-weight: 700; }
.op rect { fill: #e1eefa; stroke: #0b62a8; } .tensor rect { fill: #fff; stroke: #56626e; stroke-width: 1.4; }
.virtual rect { stroke-dasharray: 4 3; stroke-width: 1; } .named rect { stroke: #c0267e; stroke-width: 2.5; }
.edge path { fill: none; stroke: #56626e; stroke-width: 1.3; } .edge .tip { fill: #56626e; stroke: none; }
.edge.named path { stroke: #c0267e; } .edge.named .tip { fill: #c0267e; stroke: none; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #aab6c2; } .op rect { fill: #12324a; stroke: #7fc1f5; }
.tensor rect { fill: #1b242d; stroke: #9aa7b4; } .named rect { stroke: #ff7ac2; }
.edge path { stroke: #9aa7b4; } .edge .tip { fill: #9aa7b4; }
.edge.named path { stroke: #ff7ac2; } .edge.named .tip { fill: #ff7ac2; } }
</style>"""


def draw() -> str:
    """Return the drawing as a file that stands alone, in the colours of the reader's system."""
    head, mark, rest = draw_graph(graph(), {"s"}).partition(">")
    return f"{head}{mark}{_STYLE}{rest}\n"


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
