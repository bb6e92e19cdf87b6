"""A built graph as bytes: the plan with cuDNN's own JSON, and where its tensors lie."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..errors import GraphError
from ..graph import graph_from_json, graph_to_json
from ..plans.plan import Plan, restore_plan
from ..target import Target
from .runner import Memory

__all__ = ["dump", "load"]

SCHEMA = "cudnn-backend-py/frontend-graph"
SCHEMA_VERSION = 1
_HASH_BYTES = 32


def dump(plan: Plan, memory: Memory) -> bytes:
    """Return a plan and the layout of its memory, with a SHA-256 in front."""
    content = json.dumps(
        {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "cudnn": plan.target.library.version_text,
            "sm": plan.target.sm,
            "tag": plan.tag,
            "graph": graph_to_json(plan.graph),
            "constants": {str(uid): list(values) for uid, values in memory.constants.items()},
            "slices": {str(uid): list(place) for uid, place in memory.slices.items()},
            "plan": plan.json(),
        }
    ).encode()
    return hashlib.sha256(content).digest() + content


def load(data: Any, target: Target) -> tuple[Plan, Memory]:
    """Return the plan, ready on `target`, and its memory.

    Raises
    ------
    GraphError
        ``plan-file`` if it is no such data or was changed.
    EnvironmentNotReady
        ``plan-version-mismatch``, ``plan-architecture-mismatch``.
    """
    if isinstance(data, str):
        raise NotImplementedError("a graph is not rebuilt from cudnn-frontend's JSON text; deserialize a built one")
    try:
        raw = bytes(data)
        record = json.loads(raw[_HASH_BYTES:])
    except (TypeError, ValueError) as error:
        raise GraphError(f"the data is no serialized graph: {error}", code="plan-file") from None
    if hashlib.sha256(raw[_HASH_BYTES:]).digest() != raw[:_HASH_BYTES]:
        raise GraphError("the data was changed since it was serialized", code="plan-file")
    if (record.get("schema"), record.get("version")) != (SCHEMA, SCHEMA_VERSION):
        raise GraphError("the data is no serialized graph of this version", code="plan-file")
    graph = graph_from_json(record["graph"])
    plan = restore_plan(record, graph, target, "the serialized graph")
    constants = {int(uid): values for uid, values in record["constants"].items()}
    slices = {int(uid): (int(whole), int(start)) for uid, (whole, start) in record["slices"].items()}
    return plan, Memory(graph.variant_pack_tensors, constants, slices)
