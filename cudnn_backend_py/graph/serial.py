"""Graphs as JSON: our own schema, versioned; see docs/graph-json.md."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ..errors import GraphError
from ..generated import enums
from ..generated.enums import CudnnEnum, DescriptorType
from .ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor

__all__ = ["SCHEMA_VERSION", "graph_from_json", "graph_to_json", "load_graph", "save_graph"]

SCHEMA = "cudnn-backend-py/graph"
SCHEMA_VERSION = 1

_FIXED: dict[str, type[Matmul] | type[Pointwise] | type[Reduction]] = {
    "matmul": Matmul,
    "pointwise": Pointwise,
    "reduction": Reduction,
}
_FIXED_NAMES = {kind: name for name, kind in _FIXED.items()}
_ENUMS = {enum.__name__: enum for enum in CudnnEnum.__subclasses__()}


def _encode(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"tensor": value.name}
    if isinstance(value, CudnnEnum):
        return {"enum": type(value).__name__, "value": value.name}
    if isinstance(value, Parameters):
        return {
            "parameters": value.kind.name,
            "fields": {key: _encode(item) for key, item in value.fields.items()},
        }
    if isinstance(value, Graph):
        return {"graph": graph_to_json(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _encode_tensor(tensor: Tensor) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for item in fields(Tensor):
        value = getattr(tensor, item.name)
        if item.default is not MISSING and value == item.default:
            continue
        if item.name == "ragged_offset":
            record[item.name] = value.name
        else:
            record[item.name] = value.name if isinstance(value, CudnnEnum) else value
    record["dims"], record["strides"] = list(tensor.dims), list(tensor.strides)
    return record


def _encode_op(op: Op) -> dict[str, Any]:
    if isinstance(op, Operation):
        record = {"operation": op.kind.name, "name": op.name}
        record.update((key, _encode(value)) for key, value in op.fields.items() if value is not None)
        return record
    assert isinstance(op, (Matmul, Pointwise, Reduction))
    record = {"operation": _FIXED_NAMES[type(op)], "name": op.name}
    for item in fields(op):
        value = getattr(op, item.name)
        if item.name != "name" and value is not None:
            record[item.name] = _encode(value)
    return record


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain data, ready for ``json.dumps``."""
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "name": graph.name,
        "subgraph": graph.is_subgraph,
        "tensors": [_encode_tensor(tensor) for tensor in graph.tensors],
        "operations": [_encode_op(op) for op in graph.ops],
    }


def graph_from_json(data: Any) -> Graph:
    """Return the graph of such data.

    Raises
    ------
    GraphError
        ``graph-json`` naming the part that is wrong, and everything a graph itself can refuse.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise GraphError(f"this is no graph JSON: schema is {found!r}, {SCHEMA!r} is needed", code="graph-json")
    if data.get("version") != SCHEMA_VERSION:
        raise GraphError(
            f"graph JSON of version {data.get('version')!r}, this package reads {SCHEMA_VERSION}",
            code="graph-json",
        )
    try:
        tensors = _decode_tensors(data["tensors"])
        ops = tuple(_decode_op(record, tensors) for record in data["operations"])
        return Graph(ops, data.get("name", "graph"), bool(data.get("subgraph", False)))
    except GraphError:
        raise
    except KeyError as missing:
        raise GraphError(f"graph JSON lacks {missing}", code="graph-json") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise GraphError(f"graph JSON is malformed: {error}", code="graph-json") from None


def _decode_tensors(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    waiting = list(records)
    while waiting:
        ready = [record for record in waiting if record.get("ragged_offset") in (None, *tensors)]
        if not ready:
            raise GraphError(
                f"graph JSON: the ragged offset of {waiting[0]['name']!r} is no tensor of the graph",
                code="graph-json",
            )
        for record in ready:
            waiting.remove(record)
            values = dict(record)
            values["data_type"] = enums.DataType[values["data_type"]]
            if "reordering" in values:
                values["reordering"] = enums.TensorReordering[values["reordering"]]
            if values.get("ragged_offset") is not None:
                values["ragged_offset"] = tensors[values["ragged_offset"]]
            for key in ("dims", "strides"):
                values[key] = tuple(values[key])
            if values["name"] in tensors:
                raise GraphError(f"graph JSON: two tensors are called {values['name']!r}", code="name-twice")
            tensors[values["name"]] = Tensor(**values)
    return tensors


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, tensors) for item in value)
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "enum" in value:
        return _ENUMS[value["enum"]][value["value"]]
    if "graph" in value:
        return graph_from_json(value["graph"])
    parts = {key: _decode(item, tensors) for key, item in value["fields"].items()}
    return Parameters(DescriptorType[value["parameters"]], parts)


def _decode_op(record: dict[str, Any], tensors: dict[str, Tensor]) -> Op:
    kind = record["operation"]
    values = {key: _decode(value, tensors) for key, value in record.items() if key != "operation"}
    if kind in _FIXED:
        return _FIXED[kind](**values)
    return Operation(DescriptorType[kind], values.pop("name"), values)


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write the graph as JSON."""
    Path(path).write_text(json.dumps(graph_to_json(graph), indent=1) + "\n", encoding="utf-8")


def load_graph(path: str | Path) -> Graph:
    """Read a graph from a JSON file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise GraphError(f"{path} is no JSON: {error}", code="graph-json") from None
    return graph_from_json(data)
