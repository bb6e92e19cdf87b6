"""Graphs from JSON that this package wrote: graph JSON and plan files."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, graph_from_json
from ..graph.serial import SCHEMA

__all__ = ["may_be_graph_or_plan_json", "read_graph_from_own_json"]


def may_be_graph_or_plan_json(data: Any) -> bool:
    """Return whether JSON may be a graph JSON or plan file: it has the key ``schema`` or ``operations``."""
    return isinstance(data, dict) and not {"schema", "operations"}.isdisjoint(data)


def read_graph_from_own_json(data: Any) -> Graph:
    """Return the graph of a graph JSON or a plan file.

    Raises
    ------
    GraphError
        ``graph-json``, ``plan-file``.
    """
    if data.get("schema", SCHEMA) == SCHEMA:
        return graph_from_json(data)
    from ..plans import record  # few files have a plan

    return record.parse_record(data, "the JSON").read_graph() if record.is_plan_file(data) else graph_from_json(data)
