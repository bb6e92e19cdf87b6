"""A graph as SVG: operations with their results and input tensors, in layers from top to bottom.

The layout is the classic one in three steps: an operation's layer is the longest way to it, the order inside a layer
follows the mean place of the neighbours, and each place is the nearest to its neighbours' that keeps the order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from ...generated.enums import TensorReordering
from ...graph.ir import Graph, Op, Tensor, packed_strides
from ...printable import printable

__all__ = ["MAX_OPERATIONS", "draw_graph", "draw_svg_file", "find_named_tensors", "list_nested_graphs"]

MAX_OPERATIONS = 200  # beyond that a drawing helps no one

_LETTER_WIDTH = 7.3  # px, of a monospaced letter at 12 px
_SMALL_LETTER_WIDTH = 6.2  # the same at 10 px
_PADDING = 10.0
_MAX_LABEL_LETTERS = 34  # letters of the longest label
_GAP_X, _GAP_Y = 18.0, 34.0
_HEAD_HEIGHT, _LINE_HEIGHT = 26.0, 15.0
_SORT_SWEEPS = 8

# Of a drawing that is alone, or in a page that knows nothing of it: all text is in a box of its own ground, and
# lines are of a grey that is seen on any ground, as a page can be dark where the system is light.
_STYLE = """<style>
svg.graph { max-width: 100%; height: auto; }
.graph text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #17212b; }
.graph .small { font-size: 10px; fill: #56626e; } .graph .name { font-weight: 700; }
.graph .op rect { fill: #e1eefa; stroke: #0b62a8; }
.graph .tensor rect { fill: #f8fafc; stroke: #768390; stroke-width: 1.4; }
.graph .virtual rect { stroke-dasharray: 4 3; stroke-width: 1; } .graph .value rect { fill: #e4e9ee; stroke-width: 1; }
.graph .named rect { stroke: #d6338f; stroke-width: 2.5; stroke-dasharray: none; }
.graph .edge path { fill: none; stroke: #768390; stroke-width: 1.3; }
.graph .edge .tip { fill: #768390; stroke: none; }
.graph .edge.named path { stroke: #d6338f; } .graph .edge.named .tip { fill: #d6338f; stroke: none; }
@media (prefers-color-scheme: dark) {
.graph text { fill: #e6edf3; } .graph .small { fill: #aab6c2; }
.graph .op rect { fill: #12324a; stroke: #7fc1f5; } .graph .tensor rect { fill: #1b242d; }
.graph .value rect { fill: #2b3640; } }
</style>"""


@dataclass(eq=False, slots=True)
class _Node:
    """A node of the drawing: an operation with its outputs, an input tensor, or a bend of an edge."""

    layer: int
    op: Op | None = None
    tensors: tuple[Tensor, ...] = ()
    width: float = 8.0
    height: float = 0.0
    x: float = 0.0  # of the middle
    y: float = 0.0
    above: list[_Node] = field(default_factory=list)
    below: list[_Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Edge:
    """An edge from a tensor to an operation that reads it, with its bends."""

    tensor: Tensor
    ports: str
    path: tuple[_Node, ...]


def find_named_tensors(texts: Sequence[str], graph: Graph) -> frozenset[str]:
    """Return the names of tensors mentioned in texts: in quotes, or after the word "tensor"."""
    text = "\n".join(texts)

    def is_named(name: str) -> bool:
        word = re.escape(name)
        return re.search(rf"(['\"`]){word}\1|\btensors? {word}(?!\w)", text) is not None

    return frozenset(tensor.name for tensor in graph.tensors if is_named(tensor.name))


def list_nested_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield the graph and its inner graphs."""
    yield graph
    for op in graph.ops:
        for inner in op.subgraphs():
            yield from list_nested_graphs(inner)


def draw_svg_file(graph: Graph, named: Collection[str] = ()) -> str:
    """Draw a graph as a standalone SVG file in the viewer's light or dark scheme."""
    head, mark, rest = draw_graph(graph, named).partition(">")
    return f"{head}{mark}{_STYLE}{rest}\n" if mark else ""


def draw_graph(graph: Graph, named: Collection[str] = ()) -> str:
    """Return `graph` as one SVG element; the tensors in `named` are highlighted.

    Colours come from the CSS classes ``op``, ``tensor``, ``virtual``, ``value``, ``named`` and ``edge``. The text is
    empty for more than ``MAX_OPERATIONS`` operations.
    """
    if len(graph.ops) > MAX_OPERATIONS:
        return ""
    layers, edges = _assign_layers(graph)
    _sort_layers(layers)
    width, height = _place_nodes(layers)
    label = f"graph {_shorten_label(graph.name)}: {len(graph.ops)} operations, {len(graph.tensors)} tensors"
    parts = [
        f'<svg class="graph" role="img" aria-label="{escape(label)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" xmlns="http://www.w3.org/2000/svg">'
    ]
    parts += _draw_edges(edges, named)
    parts += [_draw_node(node, named) for layer in layers for node in layer if node.height]
    return "".join([*parts, "</svg>"])


def _assign_layers(graph: Graph) -> tuple[list[list[_Node]], list[_Edge]]:
    """Return the nodes by layer in graph order, and the edges."""
    maker: dict[int, _Node] = {}
    readers: dict[int, list[tuple[_Node, str]]] = {}
    tensors: dict[int, Tensor] = {}
    nodes = []
    for op in graph.ops:
        inputs = op.inputs()
        before = [maker[tensor.uid].layer for tensor in inputs.values() if tensor.uid in maker]
        node = _make_operation_node(op, 1 + max(before, default=0))
        nodes.append(node)
        maker.update((tensor.uid, node) for tensor in node.tensors)
        for uid in dict.fromkeys(tensor.uid for tensor in inputs.values()):
            ports = [port for port, tensor in inputs.items() if tensor.uid == uid]
            tensors[uid] = inputs[ports[0]]
            readers.setdefault(uid, []).append((node, ", ".join(ports)))
    edges = []
    passed: list[_Node] = []
    for uid, reading in readers.items():
        source = maker.get(uid)
        if source is None:
            source = _make_tensor_node(tensors[uid], min(node.layer for node, _ in reading) - 1)
            nodes.append(source)
        depth = max(node.layer for node, _ in reading)
        way = [source, *(_Node(layer) for layer in range(source.layer + 1, depth))]
        passed += way[1:]
        for upper, lower in pairwise(way):
            _connect_nodes(upper, lower)
        for node, names in reading:
            if node is source:
                continue
            until = way[: node.layer - source.layer]
            _connect_nodes(until[-1], node)
            edges.append(_Edge(tensors[uid], names, (*until, node)))
    every = nodes + passed
    first, last = min(node.layer for node in every), max(node.layer for node in every)
    return [[node for node in every if node.layer == layer] for layer in range(first, last + 1)], edges


def _connect_nodes(upper: _Node, lower: _Node) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _make_operation_node(op: Op, layer: int) -> _Node:
    outputs = tuple({tensor.uid: tensor for tensor in op.outputs().values()}.values())
    head = (
        max(_measure_width(op.display_name(), _LETTER_WIDTH), _measure_width(_make_name_line(op), _SMALL_LETTER_WIDTH))
        + 2 * _PADDING
    )
    chips = sum(_measure_tensor(tensor)[0] for tensor in outputs)
    tall = max((_measure_tensor(tensor)[1] for tensor in outputs), default=0.0)
    return _Node(layer, op, outputs, max(head, chips), _measure_head_height(op) + tall)


def _make_tensor_node(tensor: Tensor, layer: int) -> _Node:
    width, height = _measure_tensor(tensor)
    return _Node(layer, None, (tensor,), width, height)


def _make_name_line(op: Op) -> str:
    """Return the operation's name where it differs from its output's."""
    return "" if any(tensor.name == op.name for tensor in op.outputs().values()) else _shorten_label(op.name)


def _measure_head_height(op: Op) -> float:
    return _HEAD_HEIGHT + (_LINE_HEIGHT - 2 if _make_name_line(op) else 0)


def _format_tensor(tensor: Tensor) -> list[str]:
    """Return the small text lines of a tensor: type, dims, unusual properties."""
    unusual = []
    if tensor.strides != packed_strides(tensor.dims):
        unusual.append(f"strides {','.join(map(str, tensor.strides))}")
    if tensor.alignment != 16:
        unusual.append(f"align {tensor.alignment}")
    if tensor.reordering is not TensorReordering.NONE:
        unusual.append(f"order {tensor.reordering.name}")
    if tensor.ragged_offset is not None:
        unusual.append(f"ragged by {tensor.ragged_offset.name}")
    if tensor.by_value:
        unusual.append("by value" if tensor.value is None else f"value {tensor.value:g}")
    return [_shorten_label(line) for line in (tensor.type_text, *unusual)]


def _measure_tensor(tensor: Tensor) -> tuple[float, float]:
    lines = _format_tensor(tensor)
    width = max(
        _measure_width(_shorten_label(tensor.name), _LETTER_WIDTH),
        *(_measure_width(line, _SMALL_LETTER_WIDTH) for line in lines),
    )
    return width + 2 * _PADDING, _LINE_HEIGHT * (1 + len(lines)) + 8


def _shorten_label(text: str) -> str:
    plain = printable(" ".join(text.split())) or "(no name)"
    return plain if len(plain) <= _MAX_LABEL_LETTERS else f"{plain[: _MAX_LABEL_LETTERS - 1]}…"


def _measure_width(text: str, letter: float) -> float:
    return letter * sum(2 if unicodedata.east_asian_width(item) in "WF" else 1 for item in text)


def _sort_layers(layers: list[list[_Node]]) -> None:
    """Sort every layer by the mean position of its neighbours, alternating down and up."""
    place = {node: float(index) for layer in layers for index, node in enumerate(layer)}
    for sweep in range(_SORT_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = {
                node: _average_positions([place[item] for item in (node.above if down else node.below)], place[node])
                for node in layer
            }
            layer.sort(key=wanted.__getitem__)
            place.update((node, float(index)) for index, node in enumerate(layer))


def _average_positions(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _place_nodes(layers: list[list[_Node]]) -> tuple[float, float]:
    """Assign a position to every node; return the width and height of the drawing."""
    for sweep in range(_SORT_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            near = [node.above + node.below if sweep else node.above for node in layer]
            wanted = [
                _average_positions([item.x for item in items], node.x) for node, items in zip(layer, near, strict=True)
            ]
            for node, x in zip(layer, _fit_node_positions(layer, wanted), strict=True):
                node.x = x
    every = [node for layer in layers for node in layer]
    left = min(node.x - node.width / 2 for node in every) - 4
    y = 4.0
    for layer in layers:
        tallest = max(node.height for node in layer)
        for node in layer:
            node.x -= left
            node.y = y
        y += tallest + _GAP_Y
    return max(node.x + node.width / 2 for node in every) + 4, y - _GAP_Y + 4


def _fit_node_positions(layer: Sequence[_Node], wanted: Sequence[float]) -> list[float]:
    """Return the positions nearest to `wanted` (least squares) that keep the order and distance of the nodes."""
    offset = [0.0]
    for left, right in pairwise(layer):
        offset.append(offset[-1] + (left.width + right.width) / 2 + _GAP_X)
    blocks: list[tuple[float, int]] = []
    for want, start in zip(wanted, offset, strict=True):
        mean, count = want - start, 1
        while blocks and blocks[-1][0] > mean:
            other, size = blocks.pop()
            mean, count = (mean * count + other * size) / (count + size), count + size
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + start for mean, start in zip(means, offset, strict=True)]


def _draw_edges(edges: Sequence[_Edge], named: Collection[str]) -> Iterator[str]:
    arriving: dict[_Node, list[_Edge]] = {}
    for edge in edges:
        arriving.setdefault(edge.path[-1], []).append(edge)
    for node, group in arriving.items():
        group.sort(key=lambda edge: edge.path[-2].x)
        for index, edge in enumerate(group):
            x = node.x - node.width / 2 + node.width * (index + 1) / (len(group) + 1)
            hot = " named" if edge.tensor.name in named else ""
            title = escape(printable(f"{edge.tensor.name} is {edge.ports} of {node.op.name if node.op else ''}"))
            yield (
                f'<g class="edge{hot}"><title>{title}</title><path d="{_draw_curve(edge, x)}"/>'
                f'<path class="tip" d="M{x - 4:.1f} {node.y - 8:.1f}h8l-4 8z"/></g>'
            )


def _draw_curve(edge: _Edge, x: float) -> str:
    """Return the SVG path of an edge, from its tensor to position `x` on top of the operation that reads it."""
    source, *between, target = edge.path
    points = [_find_exit_point(source, edge.tensor)]
    for node, lower in zip(between, edge.path[2:], strict=True):
        points += [(node.x, node.y), (node.x, max(node.y, lower.y - _GAP_Y))]
    points.append((x, target.y - 8))
    text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        text += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return text


def _find_exit_point(node: _Node, tensor: Tensor) -> tuple[float, float]:
    """Return the middle of a tensor's lower edge."""
    for item, x, y, width, height in _place_tensor_boxes(node):
        if item.uid == tensor.uid:
            return x + width / 2, y + height
    return node.x, node.y + node.height


def _place_tensor_boxes(node: _Node) -> Iterator[tuple[Tensor, float, float, float, float]]:
    """Yield (tensor, x, y, width, height) of the tensors of a node."""
    sizes = [_measure_tensor(tensor) for tensor in node.tensors]
    x = node.x - node.width / 2
    y = node.y + (_measure_head_height(node.op) if node.op is not None else 0)
    spare = (node.width - sum(width for width, _ in sizes)) / max(1, len(sizes))
    for tensor, (width, height) in zip(node.tensors, sizes, strict=True):
        yield tensor, x, y, width + spare, height
        x += width + spare


def _draw_node(node: _Node, named: Collection[str]) -> str:
    parts = []
    if node.op is not None:
        left = node.x - node.width / 2
        parts += [
            f'<g class="op"><title>{escape(str(node.op))}</title>',
            f'<rect x="{left:.1f}" y="{node.y:.1f}" width="{node.width:.1f}" '
            f'height="{_measure_head_height(node.op):.1f}" rx="3"/>',
            _draw_text(node.x, node.y + 17, _shorten_label(node.op.display_name()), "verb"),
        ]
        if line := _make_name_line(node.op):
            parts.append(_draw_text(node.x, node.y + 31, line, "small"))
        parts.append("</g>")
    for tensor, x, y, width, height in _place_tensor_boxes(node):
        kinds = [("virtual", tensor.virtual), ("value", tensor.by_value), ("named", tensor.name in named)]
        classes = " ".join(["tensor", *(kind for kind, holds in kinds if holds)])
        radius = 3 if node.op is not None else 12
        parts += [
            f'<g class="{classes}"><title>{escape(str(tensor))}</title>',
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"/>',
            _draw_text(x + width / 2, y + 16, _shorten_label(tensor.name), "name"),
        ]
        for index, line in enumerate(_format_tensor(tensor)):
            parts.append(_draw_text(x + width / 2, y + 30 + index * _LINE_HEIGHT, line, "small"))
        parts.append("</g>")
    return "".join(parts)


def _draw_text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'
