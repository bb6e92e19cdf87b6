"""Select graphs of ``tests/known_issues`` for the wheel, where ``cudnn-backend target verify`` runs them."""

from __future__ import annotations

import json

from cudnn_backend_py.graph import Graph, graph_to_json
from cudnn_backend_py.known_issues import FAULTS, KnownIssue
from tests.known_issues import EXAMPLES, make_example_graph

__all__ = ["make_known_issue_reproductions_json"]

_OLDEST_VERSION = (9, 14, 0)  # issues that earlier versions fixed are left out
_MAX_TENSOR_BYTES = 256 << 20  # largest total size of a graph's tensors


def make_known_issue_reproductions_json() -> str:
    """Return JSON with one graph for each known issue that random data can show, by code."""
    graphs = {
        row.code: make_example_graph(next(iter(EXAMPLES[row.code].reproductions.values())))
        for row in FAULTS
        if _is_issue_shown_by_random_data(row)
    }
    kept = {code: graph for code, graph in graphs.items() if _count_stored_bytes(graph) <= _MAX_TENSOR_BYTES}
    lines = (f'"{code}": {json.dumps(graph_to_json(graph), separators=(",", ":"))}' for code, graph in kept.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _is_issue_shown_by_random_data(row: KnownIssue) -> bool:
    depends = row.sharing or row.depends_on or row.code not in EXAMPLES
    return row.step == "run" and not depends and (row.until is None or row.until > _OLDEST_VERSION)


def _count_stored_bytes(graph: Graph) -> int:
    return sum(tensor.span_bytes for tensor in graph.tensors if not tensor.virtual)
