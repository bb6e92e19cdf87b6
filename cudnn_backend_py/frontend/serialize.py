"""A built graph as bytes, which cudnn-frontend reads too: the plan with cuDNN's own JSON, and where its tensors lie.

They are an object in UBJSON with cudnn-frontend 1.32's names. Beside those there is what this package reads of its own:
the graph, and a SHA-256 of that and of the plan. cudnn-frontend's own bytes have neither, so their graph is read off
the plan.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import CudnnBackendError, GraphError
from ..execution.checks import SCRATCH_ALIGNMENT
from ..generated.enums import DataType
from ..graph.ir import Graph
from ..graph.replace import replace_tensors
from ..importers.cudnn_json import graph_from_log_json
from ..importers.frontend_json import graph_from_frontend_json
from ..plans.choice import EngineChoice, read_logged_choice
from ..plans.plan import Plan, restore_plan
from ..plans.record import PlanRecord
from ..system.strict import parse_json
from ..system.version import Version
from ..target import Target
from .runner import Placement
from .tensors import as_bits
from .ubjson import read_ubjson, write_ubjson

__all__ = ["dump", "graph_of_text", "load", "read_text"]

SCHEMA = "cudnn-backend-py/frontend-graph"
SCHEMA_VERSION = 1
JSON_VERSION = "2.0"  # of cudnn-frontend's format
_HASH_BYTES = 32
_OWN, _SEAL, _PLAN = "cudnn_backend_py", "cudnn_backend_py_sha256", "cudnn_backend_data"
_COPIED, _CLEARED = 0, 1  # what cudnn-frontend does to memory in front of the workspace before a launch; 2: nothing
_KINDS = ("INT64", "INT32", "HALF", "FLOAT")  # of scalars, as its C++ counts them; how it writes a HALF is not known


def dump(plan: Plan, memory: Placement, notes: Sequence[str] = ()) -> bytes:
    """Return a plan with the names of its behaviour notes, and the layout of its memory."""
    record = plan.record().to_dict()
    code = record.pop("plan")
    own = json.dumps(
        {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            **record,
            "constants": {str(uid): list(values) for uid, values in memory.constants.items()},
            "slices": {str(uid): list(place) for uid, place in memory.slices.items()},
        }
    )
    seal = _seal(own, code)
    return write_ubjson({**_as_theirs(memory, notes), _PLAN: code, _OWN: own, _SEAL: seal})


def _seal(own: str, code: str) -> str:
    return hashlib.sha256(f"{len(own)} {own}{code}".encode()).hexdigest()


def _as_theirs(memory: Placement, notes: Sequence[str]) -> dict[str, Any]:
    """Return what cudnn-frontend reads; without the version that it wants where it could not run the graph."""
    size = memory.scratch_bytes
    places: dict[str, Any] = {str(uid): [2, offset, []] for uid, offset in memory.offsets.items()}
    for uid, values in memory.constants.items():
        places[str(uid)] = [_COPIED, size, [as_bits(value) for value in values]]
        size += -(-4 * len(values) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    known = [item for item in memory.tensors if item.value is not None]
    runs = all(_is_known(item) for item in known)
    runs = runs and len({whole for whole, _ in memory.slices.values()}) == len(memory.slices)  # one slice of each whole
    return {
        **({"json_version": JSON_VERSION} if runs else {}),
        "gid": 0,
        "tensors": [_tensor_as_theirs(item) for item in memory.tensors],
        "behavior_notes": [list(notes)],
        "variant_pack_uids": [item.uid for item in memory.tensors],
        "pass_by_values": {str(item.uid): _scalar(item) for item in known if _is_known(item)},
        "workspace_modifications": places,
        "aligned_operands": {},
        "variant_pack_replacements": [[whole, [uid, start]] for uid, (whole, start) in memory.slices.items()],
        "fe_workspace_size": size,
        "tensors_to_dump": [],
    }


def _is_known(item: Any) -> bool:
    return item.data_type.name in ("INT64", "INT32", "FLOAT")


def _scalar(item: Any) -> dict[str, Any]:
    floating = item.data_type is DataType.FLOAT
    return {"index": _KINDS.index(item.data_type.name), "value": as_bits(item.value) if floating else int(item.value)}


def _tensor_as_theirs(item: Any) -> dict[str, Any]:
    return {
        "name": item.name,
        "uid": item.uid,
        "dim": item.dims,
        "stride": item.strides,
        "data_type": item.data_type.name,
        "is_virtual": False,
        "is_pass_by_value": item.by_value,
        "pass_by_value": _scalar(item) if item.value is not None and _is_known(item) else None,
        "reordering_type": item.reordering.name,
    }


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
    except (TypeError, ValueError) as error:
        raise GraphError(f"the data is no serialized graph: {error}", code="plan-file") from None
    source = "the serialized graph"
    content = _read(raw)
    if _OWN not in content and _PLAN in content:
        record, memory = _read_theirs(content)
        return restore_plan(record, memory.graph, target, source), memory
    record = PlanRecord.from_dict({"target": "", **content}, source)  # the target's name was not always kept
    graph = record.read_graph()
    plan = restore_plan(record, graph, target, source)
    constants = {int(uid): values for uid, values in content["constants"].items()}
    slices = {int(uid): (int(whole), int(start)) for uid, (whole, start) in content["slices"].items()}
    return plan, Placement(graph, constants, slices)


def _read(raw: bytes) -> dict[str, Any]:
    """Return what this package wrote, checked, or what cudnn-frontend did."""
    if hashlib.sha256(raw[_HASH_BYTES:]).digest() == raw[:_HASH_BYTES]:  # as it was written before
        content = json.loads(raw[_HASH_BYTES:])
    else:
        found = read_ubjson(raw)
        if not isinstance(found, dict) or not isinstance(found.get(_PLAN), str):
            raise GraphError("the data is no serialized graph: it has no plan", code="plan-file")
        if _OWN not in found:
            return found
        if not isinstance(found[_OWN], str) or _seal(found[_OWN], found[_PLAN]) != found.get(_SEAL):
            raise GraphError("the data was changed since it was serialized", code="plan-file")
        content = json.loads(found[_OWN]) | {"plan": found[_PLAN]}
    if not isinstance(content, dict) or (content.get("schema"), content.get("version")) != (SCHEMA, SCHEMA_VERSION):
        raise GraphError("the data is no serialized graph of this version", code="plan-file")
    return content


def _number_of(value: Mapping[str, Any]) -> float | int:
    """Return a scalar of cudnn-frontend's, whose floats are the eight digits of their four bytes."""
    if value["index"] not in (0, 1, 3):
        raise ValueError(f"a scalar is {value}")
    if value["index"] != _KINDS.index("FLOAT"):
        return int(value["value"])
    return _float_of(value["value"])


def _float_of(bits: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(bits))[0])


def _read_theirs(content: Mapping[str, Any]) -> tuple[PlanRecord, Placement]:
    """Return what cudnn-frontend serialized: the graph is the one of cuDNN's plan.

    Raises
    ------
    GraphError
        ``plan-file`` where something is missing, or memory has to be cleared before each launch.
    """
    try:
        plan = parse_json(content[_PLAN], "cuDNN's plan", code="plan-file")
        graph = graph_from_log_json(plan)
        logged = read_logged_choice(plan["engine"])
        if logged is None:
            raise GraphError("cuDNN's plan names no engine", code="plan-file")
        places = {int(uid): place for uid, place in content["workspace_modifications"].items()}
        constants = {
            uid: [_float_of(bits) for bits in values] for uid, (how, _, values) in places.items() if how == _COPIED
        }
        scratch = {uid: int(offset) for uid, (how, offset, _) in places.items() if how not in (_COPIED, _CLEARED)}
        cleared = [uid for uid, (how, *_) in places.items() if how == _CLEARED]
        size = int(content["fe_workspace_size"])
        if not all(0 <= offset < size for offset in scratch.values()):
            raise ValueError(f"scratch lies at {scratch} of {size} bytes")
        numbers = {int(uid): _number_of(value) for uid, value in content["pass_by_values"].items()}
        slices = {int(uid): (int(whole), int(start)) for whole, (uid, start) in content["variant_pack_replacements"]}
        version = Version.from_number(plan["cudnnVersion"])
        sm = int(plan["engine"]["smVersion"]) // 10
    except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
        if isinstance(error, CudnnBackendError):
            raise
        raise GraphError(f"the graph that cudnn-frontend serialized is not whole: {error}", code="plan-file") from None
    if cleared:
        raise GraphError(
            f"the graph that cudnn-frontend serialized clears memory before each launch (uids {cleared}), which is not"
            " done here",
            code="plan-file",
            fix="build the graph here",
        )
    changed = {
        item.uid: replace(item, value=numbers.get(item.uid), scratch=item.uid in scratch)
        for item in graph.variant_pack_tensors
        if item.uid in scratch or item.uid in numbers
    }
    choice = EngineChoice.from_log(*logged)
    record = PlanRecord(str(version), "", sm, choice.tag, {}, content[_PLAN])
    return record, Placement(replace_tensors(graph, changed), constants, slices, (scratch, size))


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
