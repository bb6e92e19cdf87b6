"""Graphs as Mermaid and DOT: each operation and each tensor in memory is a connected node; names are escaped."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cudnn_backend_py.diagnose.report.diagram import to_dot, to_mermaid
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.replace import replace_tensors
from tests.support.flash import make_flash_graph
from tests.support.typical_graphs import TYPICAL_GRAPHS


@pytest.mark.parametrize("name", sorted(TYPICAL_GRAPHS))
def test_every_node_of_a_diagram_has_an_edge(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    memory = [tensor for tensor in graph.tensors if not tensor.virtual]
    for text, arrow in ((to_mermaid(graph), "-->|.->"), (to_dot(graph), "->")):
        nodes = set(re.findall(r"^  (t_?\d+|op\d+)(?:\[|\(| \[)", text, re.M))
        assert len(nodes) == len(graph.ops) + len(memory)
        edges = [line for line in text.splitlines() if re.search(arrow, line)]
        assert nodes <= {end for line in edges for end in re.findall(r"\b(?:t_?\d+|op\d+)\b", line)}


def test_a_virtual_tensor_is_a_labelled_edge() -> None:
    graph: Graph = make_flash_graph()
    virtual = [tensor for tensor in graph.tensors if tensor.virtual]
    assert sum(" .-> " in line for line in to_mermaid(graph).splitlines()) >= len(virtual)
    assert sum("style=dashed" in line for line in to_dot(graph).splitlines()) >= len(virtual)


def test_names_in_diagrams_are_escaped() -> None:
    graph = make_flash_graph()
    hostile = replace(graph.tensor("q"), name='q"] --> x\n')
    changed = replace_tensors(graph, {hostile.uid: hostile})
    assert '"q#quot;] --> x<br/><br/>' in to_mermaid(changed)
    assert '"q\\"] --> x\\n\\n' in to_dot(changed)
