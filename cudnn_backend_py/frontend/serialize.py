"""Serialize a built graph as bytes that cudnn-frontend can read: the plan in cuDNN's JSON, and its memory layout.

They are an object in UBJSON with cudnn-frontend 1.32's names. Next to those there is what this package reads of its
own: the graph, and a SHA-256 of that and of the plan. cudnn-frontend's own bytes have neither, so their graph is read
off the plan.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import GraphError
from ..execution.checks import SCRATCH_ALIGNMENT
from ..generated.enums import DataType
from ..graph.ir import Graph
from ..graph.replace import replace_tensors
from ..importers.cudnn_json import graph_from_log_json
from ..plans.choice import EngineChoice, read_logged_choice
from ..plans.plan import Plan, restore_plan
from ..plans.record import PlanRecord
from ..printable import format_repr
from ..system.typed_data import read_fields
from ..system.untrusted_files import parse_json
from ..system.version import Version
from ..target import Target
from .runner import InternalTensorPlacement
from .tensors import to_float32_hex
from .ubjson import read_ubjson, write_ubjson

__all__ = ["deserialize_plan", "read_graph_json", "serialize_plan"]

SCHEMA = "cudnn-backend-py/frontend-graph"
SCHEMA_VERSION = 1
JSON_VERSION = "2.0"  # of cudnn-frontend's format
_HASH_BYTES = 32
_OWN_KEY, _CHECKSUM_KEY, _PLAN_KEY = "cudnn_backend_py", "cudnn_backend_py_sha256", "cudnn_backend_data"
_COPIED_MEMORY, _CLEARED_MEMORY = (
    0,
    1,
)  # what cudnn-frontend does to memory in front of the workspace before a launch; 2: nothing
_SCALAR_TYPES = (
    "INT64",
    "INT32",
    "HALF",
    "FLOAT",
)  # of scalars, as its C++ counts them; how it writes a HALF is not known


def serialize_plan(plan: Plan, memory: InternalTensorPlacement, notes: Sequence[str] = ()) -> bytes:
    """Return a serialized plan, with the names of its behavior notes and its memory layout."""
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
    seal = _compute_checksum(own, code)
    return write_ubjson(
        {**_placement_to_frontend_json(memory, notes), _PLAN_KEY: code, _OWN_KEY: own, _CHECKSUM_KEY: seal}
    )


def _compute_checksum(own: str, code: str) -> str:
    return hashlib.sha256(f"{len(own)} {own}{code}".encode()).hexdigest()


def _placement_to_frontend_json(memory: InternalTensorPlacement, notes: Sequence[str]) -> dict[str, Any]:
    """Return the JSON that cudnn-frontend reads; it has ``json_version`` only if cudnn-frontend can run the plan."""
    size = memory.scratch_bytes
    places: dict[str, Any] = {str(uid): [2, offset, []] for uid, offset in memory.offsets.items()}
    for uid, values in memory.constants.items():
        places[str(uid)] = [_COPIED_MEMORY, size, [to_float32_hex(value) for value in values]]
        size += -(-4 * len(values) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    known = [item for item in memory.tensors if item.value is not None]
    runs = all(_has_frontend_scalar_type(item) for item in known)
    runs = runs and len({whole for whole, _ in memory.slices.values()}) == len(memory.slices)  # one slice of each whole
    return {
        **({"json_version": JSON_VERSION} if runs else {}),
        "gid": 0,
        "tensors": [_tensor_to_frontend_json(item) for item in memory.tensors],
        "behavior_notes": [list(notes)],
        "variant_pack_uids": [item.uid for item in memory.tensors],
        "pass_by_values": {str(item.uid): _scalar_to_json(item) for item in known if _has_frontend_scalar_type(item)},
        "workspace_modifications": places,
        "aligned_operands": {},
        "variant_pack_replacements": [[whole, [uid, start]] for uid, (whole, start) in memory.slices.items()],
        "fe_workspace_size": size,
        "tensors_to_dump": [],
    }


def _has_frontend_scalar_type(item: Any) -> bool:
    return item.data_type.name in ("INT64", "INT32", "FLOAT")


def _scalar_to_json(item: Any) -> dict[str, Any]:
    floating = item.data_type is DataType.FLOAT
    return {
        "index": _SCALAR_TYPES.index(item.data_type.name),
        "value": to_float32_hex(item.value) if floating else int(item.value),
    }


def _tensor_to_frontend_json(item: Any) -> dict[str, Any]:
    return {
        "name": item.name,
        "uid": item.uid,
        "dim": item.dims,
        "stride": item.strides,
        "data_type": item.data_type.name,
        "is_virtual": False,
        "is_pass_by_value": item.by_value,
        "pass_by_value": _scalar_to_json(item) if item.value is not None and _has_frontend_scalar_type(item) else None,
        "reordering_type": item.reordering.name,
    }


def deserialize_plan(data: Any, target: Target) -> tuple[Plan, InternalTensorPlacement]:
    """Load a serialized plan, ready to run on `target`; return it with its memory layout.

    Raises
    ------
    GraphError
        ``plan-file`` if it is no such data or was changed.
    EnvironmentNotReady
        ``plan-version-mismatch``, ``plan-architecture-mismatch``.
    """
    try:
        if hasattr(data, "__index__"):  # bytes() would make so many zeros of it
            raise TypeError(f"a {type(data).__name__} is not a serialized graph")
        raw = bytes(data)
    except (TypeError, ValueError) as error:
        raise GraphError(f"the data is not a serialized graph: {error}", code="plan-file") from None
    source = "the serialized graph"
    content = _read_verified_serialization(raw)
    if _OWN_KEY not in content and _PLAN_KEY in content:
        record, memory = _read_frontend_serialization(content)
        return restore_plan(record, memory.graph, target, source), memory
    record = PlanRecord.from_dict({"target": "", **content}, source)  # the target's name was not always kept
    parts = _read_checked_fields(_OWN_FIELDS, content)
    memory = _make_checked_placement(record.read_graph(), parts["constants"], parts["slices"])
    return restore_plan(record, memory.graph, target, source), memory


def _read_checked_fields(kinds: Mapping[str, Any], content: Any) -> dict[str, Any]:
    return read_fields(kinds, content, "the data", code="plan-file", error=GraphError)


def _make_checked_placement(
    graph: Graph,
    constants: Mapping[int, Sequence[float]],
    slices: Mapping[int, tuple[int, int]],
    scratch: tuple[dict[int, int], int] | None = None,
) -> InternalTensorPlacement:
    """Return where tensors are stored, after checking that they belong to the graph and are within its memory."""
    memory = InternalTensorPlacement(graph, constants, slices, scratch)
    there = {item.uid: item for item in memory.tensors}
    if unknown := sorted((constants.keys() | memory.offsets.keys()) - there.keys()):
        raise GraphError(
            f"the data stores memory locations for the uids {unknown}, which no tensor of its graph has",
            code="plan-file",
        )
    for uid, offset in memory.offsets.items():
        if not 0 <= offset <= memory.scratch_bytes - there[uid].span_bytes:
            raise GraphError(
                f"tensor uid {uid} has {there[uid].span_bytes} bytes from byte {offset} of the scratch memory, "
                f"but the scratch memory has only {memory.scratch_bytes} bytes",
                code="plan-file",
            )
    if early := sorted(start for _, start in slices.values() if start < 0):
        raise GraphError(
            f"the data has a tensor slice with the start {early[0]}: 0 or more is needed", code="plan-file"
        )
    return memory


def _read_verified_serialization(raw: bytes) -> dict[str, Any]:
    """Return the content of a serialization of this package or of cudnn-frontend, after checking its integrity."""
    if hashlib.sha256(raw[_HASH_BYTES:]).digest() == raw[:_HASH_BYTES]:  # as it was written before
        content = _parse_json_text(raw[_HASH_BYTES:].decode("utf-8", "replace"))
    else:
        found = read_ubjson(raw)
        if not isinstance(found, dict) or not isinstance(found.get(_PLAN_KEY), str):
            raise GraphError(
                "the data is not a serialized graph: it does not contain an execution plan", code="plan-file"
            )
        if _OWN_KEY not in found:
            return found
        if not isinstance(found[_OWN_KEY], str) or _compute_checksum(found[_OWN_KEY], found[_PLAN_KEY]) != found.get(
            _CHECKSUM_KEY
        ):
            raise GraphError("the data was changed since it was serialized", code="plan-file")
        content = _parse_json_text(found[_OWN_KEY])
        if isinstance(content, dict):
            content["plan"] = found[_PLAN_KEY]
    found = (content.get("schema"), content.get("version")) if isinstance(content, dict) else content
    if not isinstance(content, dict) or found != (SCHEMA, SCHEMA_VERSION):
        raise GraphError(
            f"the data is not a serialized graph of this version: schema and version are {format_repr(found)}, "
            f"{(SCHEMA, SCHEMA_VERSION)} is needed",
            code="plan-file",
            fix="serialize the graph again with this version of the package",
        )
    return content


def _parse_json_text(text: str) -> Any:
    return parse_json(text, "the serialized graph", code="plan-file")


@dataclass(frozen=True, slots=True)
class _FrontendScalar:
    """A cudnn-frontend scalar, with floats as eight hex digits."""

    index: int
    value: int | str


_OWN_FIELDS = {"constants": Mapping[int, tuple[float, ...]], "slices": Mapping[int, tuple[int, int]]}
_FRONTEND_FIELDS = {
    "workspace_modifications": Mapping[int, tuple[int, int, tuple[str, ...]]],
    "fe_workspace_size": int,
    "pass_by_values": Mapping[int, _FrontendScalar],
    "variant_pack_replacements": tuple[tuple[int, tuple[int, int]], ...],
}


def _parse_scalar_value(scalar: _FrontendScalar) -> float | int:
    kind = _SCALAR_TYPES[scalar.index] if 0 <= scalar.index < len(_SCALAR_TYPES) else ""
    if kind == "FLOAT" and isinstance(scalar.value, str):
        return _parse_hex_float(scalar.value)
    if kind in ("INT64", "INT32") and isinstance(scalar.value, int):
        return scalar.value
    raise GraphError(
        f"the data has the scalar {scalar.value!r} of type {kind or scalar.index}, "
        "but only INT64 and INT32 with an integer, and FLOAT with its bits as text, can be read",
        code="plan-file",
    )


def _parse_hex_float(bits: str) -> float:
    try:
        return float(struct.unpack(">f", bytes.fromhex(bits))[0])
    except (ValueError, struct.error):
        raise GraphError(
            f"{bits[:20]!r} is not a float: eight hexadecimal digits are needed", code="plan-file"
        ) from None


def _read_frontend_serialization(content: Mapping[str, Any]) -> tuple[PlanRecord, InternalTensorPlacement]:
    """Read a serialization of cudnn-frontend; the graph is rebuilt from cuDNN's plan.

    Raises
    ------
    GraphError
        ``plan-file`` where something is missing, or memory has to be cleared before each launch.
    """
    plan = _read_checked_fields(
        {"engine": Mapping[str, Any], "cudnnVersion": int}, _parse_json_text(content[_PLAN_KEY])
    )
    sm = _read_checked_fields({"smVersion": int}, plan["engine"])["smVersion"] // 10
    graph = graph_from_log_json(_parse_json_text(content[_PLAN_KEY]))
    logged = read_logged_choice(plan["engine"])
    if logged is None:
        raise GraphError("the serialized plan does not contain the number of its cuDNN engine", code="plan-file")
    parts = _read_checked_fields(_FRONTEND_FIELDS, content)
    places = parts["workspace_modifications"]
    constants = {
        uid: [_parse_hex_float(bits) for bits in values]
        for uid, (how, _, values) in places.items()
        if how == _COPIED_MEMORY
    }
    scratch = {uid: offset for uid, (how, offset, _) in places.items() if how not in (_COPIED_MEMORY, _CLEARED_MEMORY)}
    if cleared := [uid for uid, (how, *_) in places.items() if how == _CLEARED_MEMORY]:
        raise GraphError(
            f"the graph that cudnn-frontend serialized clears memory before each launch (uids {cleared}), which this "
            "package does not do",
            code="plan-file",
            fix="build the graph with this package instead",
        )
    numbers = {uid: _parse_scalar_value(value) for uid, value in parts["pass_by_values"].items()}
    slices = {uid: (whole, start) for whole, (uid, start) in parts["variant_pack_replacements"]}
    changed = {
        item.uid: replace(item, value=numbers.get(item.uid), scratch=item.uid in scratch)
        for item in graph.variant_pack_tensors
        if item.uid in scratch or item.uid in numbers
    }
    choice = EngineChoice.from_log(*logged)
    record = PlanRecord(str(Version.from_number(plan["cudnnVersion"])), "", sm, choice.tag, {}, content[_PLAN_KEY])
    return record, _make_checked_placement(
        replace_tensors(graph, changed), constants, slices, (scratch, parts["fe_workspace_size"])
    )


def read_graph_json(text: str) -> Any:
    """Parse cudnn-frontend's JSON of a graph.

    Raises
    ------
    GraphError
        ``frontend-json`` if it is none.
    """
    return parse_json(text, "the JSON of a graph", code="frontend-json")
