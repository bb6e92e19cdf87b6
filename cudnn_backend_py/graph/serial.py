"""Graphs as JSON in this package's versioned schema; see docs/graph-json.md."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeVar

from ..errors import GraphError
from ..frozen import FrozenValue
from ..generated import enums
from ..generated.enums import CudnnEnum, DescriptorType
from ..printable import format_repr
from .data_types import find_member, suggest_enumerator
from .ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor, check_graph

__all__ = ["SCHEMA_VERSION", "graph_from_json", "graph_to_json", "load_graph", "save_graph"]

SCHEMA = "cudnn-backend-py/graph"
SCHEMA_VERSION = 1

T = TypeVar("T")
E = TypeVar("E", bound=CudnnEnum)

_FIXED: dict[str, type[Matmul] | type[Pointwise] | type[Reduction]] = {
    "matmul": Matmul,
    "pointwise": Pointwise,
    "reduction": Reduction,
}
_PREFIX = "OPERATION_"  # of the names of other operations
_FIXED_NAMES = {kind: name for name, kind in _FIXED.items()}
_ENUMS = {enum.__name__: enum for enum in CudnnEnum.__subclasses__()}


_JSON_NAMES: dict[type, str] = {list: "a list", dict: "an object", str: "text", bool: "true or false"}
_GRAPH_KEYS = {"schema", "version", "name", "subgraph", "tensors", "operations"}
# Strict JSON has no word for these.
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _encode_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"tensor": value.name}
    if isinstance(value, CudnnEnum):
        return {"enum": type(value).__name__, "value": value.name}
    if isinstance(value, Parameters):
        return {
            "parameters": value.kind.name,
            "fields": {key: _encode_value(item) for key, item in value.fields.items()},
        }
    if isinstance(value, Graph):
        return {"graph": graph_to_json(value)}
    if isinstance(value, Op):
        return {"operation": _encode_op(value)}
    if isinstance(value, tuple):
        return [_encode_value(item) for item in value]
    return _encode_number(value)


def _encode_number(value: Any) -> Any:
    """Return a number; infinite numbers and NaN, which strict JSON lacks, as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _encode_tensor(tensor: Tensor) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name in Tensor.field_names:
        value = getattr(tensor, name)
        if name in Tensor.field_defaults and value == Tensor.field_defaults[name]:
            continue
        if isinstance(value, (CudnnEnum, Tensor)):
            record[name] = value.name
        else:
            record[name] = list(value) if isinstance(value, tuple) else _encode_number(value)
    return record


def _encode_op(op: Op) -> dict[str, Any]:
    if isinstance(op, Operation):
        record = {"operation": op.kind.name, "name": op.name}
        record.update((key, _encode_value(value)) for key, value in op.fields.items())
        return record
    assert isinstance(op, (Matmul, Pointwise, Reduction))
    record = {"operation": _FIXED_NAMES[type(op)], "name": op.name}
    for name in op.field_names:
        value = getattr(op, name)
        if name != "name" and value is not None:
            record[name] = _encode_value(value)
    return record


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain data for ``json.dumps``: strict JSON, infinite numbers and NaN as text."""
    check_graph(graph)
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "name": graph.name,
        "subgraph": graph.is_subgraph,
        "tensors": [_encode_tensor(tensor) for tensor in graph.tensors],
        "operations": [_encode_op(op) for op in graph.ops],
    }


def graph_from_json(data: Any) -> Graph:
    """Return the graph that graph JSON data describe, after checking each key and value.

    Raises
    ------
    GraphError
        ``graph-json`` naming the part that is wrong, and everything a graph itself can refuse.
    """
    try:
        return _decode_graph(data)
    except RecursionError:
        raise _make_error("values are nested more deeply than in any graph") from None


def _decode_graph(data: Any) -> Graph:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = f"it is {format_repr(data)}, an object is needed"
        if isinstance(data, dict):
            found = f"schema is {format_repr(data['schema'])}" if "schema" in data else "the key 'schema' is missing"
            found += f", {SCHEMA!r} is needed"
        raise GraphError(f"this is not a graph JSON: {found}", code="graph-json")
    version = data.get("version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise GraphError(
            f"graph JSON has version {version!r}, but this package reads version {SCHEMA_VERSION}",
            code="graph-json",
        )
    if unknown := sorted(map(str, set(data) - _GRAPH_KEYS)):
        raise _make_error(f"the graph has the unknown keys {', '.join(map(repr, unknown))}")
    tensors = _decode_tensors(_read_checked_value(data, "tensors", list, "the graph"))
    records = _read_checked_value(data, "operations", list, "the graph")
    ops = tuple(_decode_op(record, tensors, f"operation {index}") for index, record in enumerate(records))
    name = _read_checked_value({"name": "graph", **data}, "name", str, "the graph")
    return Graph(ops, name, _read_checked_value({"subgraph": False, **data}, "subgraph", bool, "the graph"))


def _make_error(headline: str) -> GraphError:
    return GraphError(f"graph JSON: {headline}", code="graph-json")


def _read_checked_value(record: Any, key: str, kind: type[T], where: str) -> T:
    """Return ``record[key]`` after checking its type."""
    if not isinstance(record, dict):
        raise _make_error(f"{where} is {record!r}, an object is needed")
    if key not in record:
        raise _make_error(f"{where} lacks {key!r}")
    value = record[key]
    if not isinstance(value, kind):
        raise _make_error(f"{key!r} of {where} is {value!r}, {_JSON_NAMES[kind]} is needed")
    return value


def _decode_enum(enum: type[E], name: Any, where: str) -> E:
    found = find_member(enum, name) if isinstance(name, str) else None
    if found is None:
        raise _make_error(f"{where} is {name!r}, which is not a {enum.__name__}{suggest_enumerator(enum, name)}")
    return found


def _find_tensor(name: Any, tensors: dict[str, Tensor], where: str) -> Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise _make_error(f"{where} is the tensor {name!r}, which the graph does not have")
    return tensors[name]


def _check_keys(record: dict[str, Any], kind: type[FrozenValue], where: str) -> None:
    """Check that a record has only keys that are fields of the class `kind`, and all fields without a default."""
    for key in record:
        if key not in kind.field_names:
            raise _make_error(f"{where} has the unknown field {key!r}; its fields are {', '.join(kind.field_names)}")
    for key in kind.field_names:
        if key not in kind.field_defaults and key not in record:
            raise _make_error(f"{where} lacks {key!r}")


def _decode_tensors(records: list[Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    waiting = {}
    for index, record in enumerate(records):
        name = _read_checked_value(record, "name", str, f"tensor {index}")
        if name in waiting:
            raise GraphError(f"graph JSON: two tensors are called {name!r}", code="name-twice")
        waiting[name] = record
    for name in waiting:
        # A ragged offset may come after the tensor it belongs to, so each tensor is decoded after its own.
        chain = {name: None}  # in order
        last = name
        while last not in tensors and (offset := waiting[last].get("ragged_offset")) is not None:
            if isinstance(offset, str) and offset in chain:
                raise _make_error(
                    f"the ragged offset of {last!r} is {offset!r}, which closes a cycle of ragged offsets"
                )
            if not isinstance(offset, str) or offset not in waiting:
                raise _make_error(f"the ragged offset of {last!r} is {offset!r}, which is not a tensor of the graph")
            last = offset
            chain[last] = None
        for link in reversed(chain):
            if link not in tensors:
                tensors[link] = _decode_tensor(waiting[link], tensors, f"tensor {link!r}")
    return tensors


def _decode_tensor(record: dict[str, Any], tensors: dict[str, Tensor], where: str) -> Tensor:
    _check_keys(record, Tensor, where)
    values = dict(record)
    values["data_type"] = _decode_enum(enums.DataType, values["data_type"], f"data_type of {where}")
    if "reordering" in values:
        values["reordering"] = _decode_enum(enums.TensorReordering, values["reordering"], f"reordering of {where}")
    if values.get("ragged_offset") is not None:
        values["ragged_offset"] = tensors[values["ragged_offset"]]
    if "value" in values:
        values["value"] = _decode_number(values["value"])
    return Tensor(**values)


def _decode_number(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _decode_value(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, list):
        return tuple(_decode_value(item, tensors, f"{where}[{index}]") for index, item in enumerate(value))
    value = _decode_number(value)
    if isinstance(value, str):
        example = '{"tensor": "x"} or {"enum": "PointwiseMode", "value": "ADD"}'
        raise _make_error(f"{where} is the text {value!r}, but a number, {example} is needed")
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return _find_tensor(_require_only_these_keys(value, "tensor", where=where)["tensor"], tensors, where)
    if "enum" in value:
        enum = _ENUMS.get(_read_checked_value(value, "enum", str, where))
        if enum is None:
            raise _make_error(f"{where} is of the enum {value['enum']!r}, which is not known")
        return _decode_enum(enum, _require_only_these_keys(value, "enum", "value", where=where).get("value"), where)
    if "graph" in value:
        return _decode_graph(_require_only_these_keys(value, "graph", where=where)["graph"])
    if "operation" in value:
        return _decode_op(_require_only_these_keys(value, "operation", where=where)["operation"], tensors, where)
    if "parameters" in value:
        kind = _decode_enum(DescriptorType, value["parameters"], where)
        parts = _read_checked_value(
            _require_only_these_keys(value, "parameters", "fields", where=where), "fields", dict, where
        )
        return Parameters(kind, {key: _decode_value(item, tensors, f"{where}.{key}") for key, item in parts.items()})
    raise _make_error(f"{where} is {value!r}; one of tensor, enum, graph, operation and parameters is needed")


def _require_only_these_keys(record: dict[str, Any], *keys: str, where: str) -> dict[str, Any]:
    """Return the record, after checking that it has no keys except `keys`."""
    if unknown := set(record) - set(keys):
        allowed = ", ".join(map(repr, keys))
        raise _make_error(f"{where} has the unknown keys {', '.join(sorted(map(repr, unknown)))}; allowed: {allowed}")
    return record


def _decode_op(record: Any, tensors: dict[str, Tensor], where: str) -> Op:
    word = _read_checked_value(record, "operation", str, where)
    name = _read_checked_value(record, "name", str, where)
    where = f"operation {name!r}"
    values = {
        key: _decode_value(value, tensors, f"{key} of {where}")
        for key, value in record.items()
        if key not in ("operation", "name")
    }
    kind = _FIXED.get(word)
    if kind is None:
        return Operation(_decode_operation_type(word, where), name, values)
    values["name"] = name
    _check_keys(values, kind, where)
    return kind(**values)


def _decode_operation_type(word: str, where: str) -> DescriptorType:
    found = find_member(DescriptorType, word)
    if found is None or not found.name.startswith(_PREFIX):
        known = {name.removeprefix(_PREFIX): name for name in DescriptorType.__members__ if name.startswith(_PREFIX)}
        known |= {name: name for name in _FIXED}
        from ..system.nearest import find_most_similar_name  # for this error alone

        near = find_most_similar_name(word.upper().removeprefix(_PREFIX), known)
        hint = f"; did you mean {known[near]}?" if near else f", known are {', '.join(known.values())}"
        raise _make_error(f"{where} is of the kind {word!r}, which is no operation{hint}")
    return found


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write the graph as JSON."""
    from ..system.atomic_file import write_atomically  # a first plan saves no file

    write_atomically(path, json.dumps(graph_to_json(graph), indent=1, allow_nan=False) + "\n")


def load_graph(path: str | Path) -> Graph:
    """Read a graph from a JSON file.

    Raises
    ------
    GraphError
        As :func:`graph_from_json`; ``graph-json`` too for a file that cannot be read, and for what is no strict JSON.
    """
    from ..system.untrusted_files import read_json  # a plan for the GPU here reads no file

    return graph_from_json(read_json(path, code="graph-json"))
