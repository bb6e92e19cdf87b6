"""A built graph as bytes: the plan with cuDNN's own JSON, and where its tensors lie."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..errors import GraphError
from ..graph.ir import Graph
from ..importers.frontend_json import graph_from_frontend_json
from ..plans.plan import Plan, restore_plan
from ..plans.record import PlanRecord
from ..system.strict import parse_json
from ..target import Target
from .runner import Placement

__all__ = ["dump", "graph_of_text", "load", "read_text"]

SCHEMA = "cudnn-backend-py/frontend-graph"
SCHEMA_VERSION = 1
_HASH_BYTES = 32
_AGAIN = "build the graph and serialize() it again"


def dump(plan: Plan, memory: Placement) -> bytes:
    """Return a plan and the layout of its memory, with a SHA-256 in front."""
    content = json.dumps(
        {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            **plan.record().to_dict(),
            "constants": {str(uid): list(values) for uid, values in memory.constants.items()},
            "slices": {str(uid): list(place) for uid, place in memory.slices.items()},
        }
    ).encode()
    return hashlib.sha256(content).digest() + content


def load(data: Any, target: Target) -> tuple[Plan, Placement]:
    """Return the plan, ready on `target`, and its memory.

    Raises
    ------
    GraphError
        ``plan-file`` if it is no such data or was changed.
    EnvironmentNotReady
        ``plan-version-mismatch``, ``plan-architecture-mismatch``.
    """
    try:
        raw = bytes(data)
        content = json.loads(raw[_HASH_BYTES:])
    except (TypeError, ValueError) as error:
        raise GraphError(f"the data is no serialized graph: {error}", code="plan-file", fix=_AGAIN) from None
    if hashlib.sha256(raw[_HASH_BYTES:]).digest() != raw[:_HASH_BYTES]:
        raise GraphError("the data was changed since it was serialized", code="plan-file", fix=_AGAIN)
    if not isinstance(content, dict) or (content.get("schema"), content.get("version")) != (SCHEMA, SCHEMA_VERSION):
        raise GraphError("the data is no serialized graph of this version", code="plan-file", fix=_AGAIN)
    source = "the serialized graph"
    record = PlanRecord.from_dict({"target": "", **content}, source)  # the target's name was not always kept
    graph = record.read_graph()
    plan = restore_plan(record, graph, target, source)
    constants = {int(uid): values for uid, values in content["constants"].items()}
    slices = {int(uid): (int(whole), int(start)) for uid, (whole, start) in content["slices"].items()}
    return plan, Placement(graph, constants, slices)


def read_text(text: str) -> Any:
    """Return cudnn-frontend's JSON of a graph.

    Raises
    ------
    GraphError
        ``frontend-json`` if it is none.
    """
    return parse_json(text, "the JSON of a graph", code="frontend-json")


def graph_of_text(data: Any) -> Graph:
    """Return the graph of what :func:`read_text` returned, where its nodes are of an older kind.

    Raises
    ------
    GraphError
        ``frontend-json`` naming what cannot be read.
    """
    return graph_from_frontend_json(data)
