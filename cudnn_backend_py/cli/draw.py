"""The command ``draw``: a graph as a picture."""

from __future__ import annotations

import click

from ..command_line import Command
from ..errors import EnvironmentNotReady
from .graph_file import load_any_graphs
from .options import GRAPH, with_format
from .output import write_report

__all__ = ["draw"]


@click.command("draw", cls=Command)
@click.argument("graph_file", metavar="GRAPH", type=GRAPH)
@click.option("--graph", "number", type=click.IntRange(min=1), help="Which graph of a log, counted from 1.")
@with_format("svg", "png", "mermaid", "dot")
def draw(graph_file: str, number: int | None, style: str, output: str | None) -> None:
    """Draw GRAPH as SVG, PNG, Mermaid or DOT.

    GRAPH is as for explain. Boxes are operations, rounded ones are tensors in memory; dashed tensors are virtual.
    PNG needs resvg_py and a font. Mermaid is for Markdown pages, DOT for Graphviz. Does not call cuDNN.
    """
    from ..diagnose.report.diagram import to_dot, to_mermaid
    from ..diagnose.report.drawing import MAX_OPERATIONS, draw_file

    graphs = load_any_graphs(graph_file, number)
    if len(graphs) > 1:
        raise click.UsageError(f"{graph_file} has {len(graphs)} graphs: choose one with --graph")
    ((_, graph),) = graphs
    if style in ("mermaid", "dot"):
        write_report((to_mermaid if style == "mermaid" else to_dot)(graph), output)
        return
    if len(graph.ops) > MAX_OPERATIONS:
        raise click.UsageError(f"{len(graph.ops)} operations are too many for a drawing, {MAX_OPERATIONS} can be drawn")
    drawn = draw_file(graph)
    if style == "svg":
        write_report(drawn, output)
    else:
        write_report(_to_png(drawn), output)


def _to_png(drawn: str) -> bytes:
    """Return a drawing as PNG at twice its size, on white."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise EnvironmentNotReady(
            "a drawing as PNG needs resvg_py, which is not installed",
            code="resvg-missing",
            fix="pip install 'cudnn-backend-py[draw]', or take --format svg",
        ) from None
    return bytes(svg_to_bytes(svg_string=drawn, zoom=2, background="#ffffff"))
