"""The command ``graph``: draw and lint a graph, without cuDNN."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..command_line import Group
from ..errors import EnvironmentNotReady
from ..printable import printable
from .graph_file import load_graph_file
from .options import GRAPH_FILE_PARAMETER, add_format_options, add_graph_option
from .output import format_json, write_or_print, write_or_print_report

__all__ = ["graph_commands"]


@click.group("graph", cls=Group)
def graph_commands() -> None:
    """Draw GRAPH, or warn about its slow or unsafe parts."""


@graph_commands.command("lint")
@click.argument("graph_file", metavar="GRAPH", type=GRAPH_FILE_PARAMETER)
@add_graph_option()
@add_format_options("text", "json")
def lint_graph(graph_file: str, number: int | None, style: str, output: str | None) -> None:
    """Warn about slow, unsafe or probably unintended parts of GRAPH.

    Such are layouts and types that are legal. Does not call cuDNN. Exit code 0 if there is none, 1 if there is one.
    """
    from ..diagnose import lint as find_warnings

    findings = find_warnings(load_graph_file(graph_file, number))
    if style == "json":
        write_or_print_report(format_json([asdict(finding) for finding in findings]), output)
    else:
        lines = [
            line
            for one in findings
            for line in (f"{one.severity}: {one.headline} [{one.code}]", f"  {one.detail}; {one.fix}")
        ]
        write_or_print("".join(f"{printable(line)}\n" for line in lines), output)
    raise SystemExit(1 if findings else 0)


@graph_commands.command("draw")
@click.argument("graph_file", metavar="GRAPH", type=GRAPH_FILE_PARAMETER)
@add_graph_option()
@add_format_options("svg", "png", "mermaid", "dot")
def draw_graph(graph_file: str, number: int | None, style: str, output: str | None) -> None:
    """Draw GRAPH as SVG, PNG, Mermaid or DOT.

    GRAPH is as for explain. Boxes are operations, rounded ones are tensors in memory; dashed tensors are virtual.
    PNG needs resvg_py and a font. Mermaid is for Markdown pages, DOT for Graphviz. Does not call cuDNN.
    """
    from ..diagnose.report.diagram import to_dot, to_mermaid
    from ..diagnose.report.drawing import MAX_OPERATIONS, draw_svg_file

    drawn = load_graph_file(graph_file, number)
    if style in ("mermaid", "dot"):
        write_or_print_report((to_mermaid if style == "mermaid" else to_dot)(drawn), output)
        return
    if len(drawn.ops) > MAX_OPERATIONS:
        raise click.UsageError(f"{len(drawn.ops)} operations are too many for a drawing, {MAX_OPERATIONS} can be drawn")
    picture = draw_svg_file(drawn)
    write_or_print_report(picture if style == "svg" else _convert_svg_to_png(picture), output)


def _convert_svg_to_png(picture: str) -> bytes:
    """Convert an SVG drawing to PNG at twice its size, with a white background."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise EnvironmentNotReady(
            "a drawing as PNG needs resvg_py, which is not installed",
            code="resvg-missing",
            fix="pip install 'cudnn-backend-py[draw]', or take --format svg",
        ) from None
    return bytes(svg_to_bytes(svg_string=picture, zoom=2, background="#ffffff"))
