"""A graph as Mermaid and DOT text, for Markdown pages and Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Graph, Tensor

__all__ = ["to_dot", "to_mermaid"]


def to_mermaid(graph: Graph) -> str:
    """Return a Mermaid flowchart: boxes are operations, rounded nodes tensors in memory, dotted edges virtual ones."""
    lines = ["flowchart TD"]
    for key, label, is_operation in _list_nodes(graph):
        text = label.replace('"', "#quot;").replace("\n", "<br/>")
        lines.append(f'  {key}["{text}"]' if is_operation else f'  {key}(["{text}"])')
    for start, end, label in _list_edges(graph):
        arrow = f'-. "{label.replace(chr(34), "#quot;")}" .->' if label else "-->"
        lines.append(f"  {start} {arrow} {end}")
    return "\n".join(lines) + "\n"


def to_dot(graph: Graph) -> str:
    """Return a Graphviz digraph with the same nodes and edges as :func:`to_mermaid`."""
    lines = [f"digraph {_quote_label(graph.name)} {{", "  node [fontname=monospace]"]
    for key, label, is_operation in _list_nodes(graph):
        lines.append(f"  {key} [shape={'box' if is_operation else 'oval'}, label={_quote_label(label)}]")
    for start, end, label in _list_edges(graph):
        lines.append(f"  {start} -> {end}" + (f" [style=dashed, label={_quote_label(label)}]" if label else ""))
    return "\n".join([*lines, "}"]) + "\n"


def _list_nodes(graph: Graph) -> Iterator[tuple[str, str, bool]]:
    """Yield key, label and whether it is an operation for each node."""
    for tensor in graph.tensors:
        if not tensor.virtual:
            yield _make_node_key(tensor), f"{tensor.name}\n{tensor.type_text}", False
    for number, op in enumerate(graph.ops):
        yield (
            f"op{number}",
            op.display_name() if op.display_name() == op.name else f"{op.display_name()}\n{op.name}",
            True,
        )


def _list_edges(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield start and end of each edge; a virtual tensor's label is its name and type, others have none."""
    written = [{tensor.uid for tensor in op.outputs().values()} for op in graph.ops]
    for tensor in graph.tensors:
        places = graph.uses[tensor.uid]
        writer = next((f"op{place}" for place in places if tensor.uid in written[place]), None)
        readers = [f"op{place}" for place in places if tensor.uid not in written[place]]
        if not tensor.virtual:
            yield from ((writer, _make_node_key(tensor), "") for writer in [writer] if writer)
            yield from ((_make_node_key(tensor), reader, "") for reader in readers)
        elif writer:  # virtual tensors of a sub-graph have no writer outside of it
            yield from ((writer, reader, f"{tensor.name} {tensor.type_text}") for reader in readers)


def _make_node_key(tensor: Tensor) -> str:
    return f"t{tensor.uid}".replace("-", "_")


def _quote_label(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
