"""Graphs from cuDNN's log: from the JSON of an operation graph, or from dumps of descriptors.

Facts measured with cuDNN 9.1, 9.5, 9.8, 9.14, 9.19 and 9.28: from 9.5 at the latest the log holds the JSON of every
operation graph that is finalized (``cudnnBackendFinalizeGraphVisualize``), and it says everything but the values of
host scalars, which follow when the graph is executed. Before that there are dumps only, without what was set beyond
the common attributes, and with numbers of six digits; the calls that set the rest are in the log as well.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..errors import GraphError
from ..generated.attributes import ENUM_OF_TYPE, AttributeFacts, get_attributes
from ..generated.enums import (
    AttributeType,
    CudnnEnum,
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    RngDistribution,
    TensorReordering,
)
from ..generated.operations import DEFAULTS, FIXED_VALUES, LOGGED_NAMES, UNDUMPED_FIELDS
from ..graph.ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor

__all__ = [
    "DumpEntry",
    "LoggedDescriptor",
    "drop_fields_at_default",
    "find_logged_field",
    "graph_from_descriptors",
    "graph_from_log_json",
    "is_subgraph",
]

_D = DescriptorType
_NODES = 4096
_NESTED = 8  # graphs and operations inside each other

_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _make_log_graph_error(headline: str, fix: str | None = None) -> GraphError:
    return GraphError(headline, code="log-graph", fix=fix)


def _normalize_name(name: str) -> str:
    """Return a normalized spelling of a name, as the log mixes several."""
    plain = name.replace("_", "").lower().removesuffix("desc")
    return plain.removesuffix("tensor") or plain


@cache
def _map_logged_names_to_fields(kind: DescriptorType) -> dict[str, str]:
    fields = {_normalize_name(facts.field): facts.field for facts in get_attributes(kind) if facts.role != "output"}
    return fields | LOGGED_NAMES.get(kind, {})


def find_logged_field(kind: DescriptorType, key: str) -> str:
    """Return the descriptor field for a name in a dump, "" if there is none."""
    return _map_logged_names_to_fields(kind).get(_normalize_name(key), "")


@cache
def _get_attribute_facts(kind: DescriptorType) -> dict[str, AttributeFacts]:
    return {facts.field: facts for facts in get_attributes(kind) if facts.role != "output"}


@cache
def _map_c_names_to_members(enum: type[CudnnEnum]) -> dict[str, CudnnEnum]:
    """Return the enum members by their C names, including aliases."""
    return {
        member.c_name.replace(member.name, name): member for name, member in reversed(list(enum.__members__.items()))
    }


def _format_briefly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# fields, whatever form of log they come from


def _find_shortest_decimal(value: float) -> float:
    """Return the number with the fewest decimal digits that rounds to the same 32-bit float."""
    try:
        exact = struct.unpack("f", struct.pack("f", value))[0]
        if exact == value:
            for digits in range(1, 9):
                short = float(f"{value:.{digits}g}")
                if struct.unpack("f", struct.pack("f", short))[0] == exact:
                    return short
    except (OverflowError, struct.error):
        pass
    return value


def _find_enum_member(enum: type[CudnnEnum], value: Any, where: str) -> CudnnEnum:
    try:
        return _map_c_names_to_members(enum)[value] if isinstance(value, str) else enum(value)
    except (KeyError, ValueError, TypeError):
        raise _make_log_graph_error(
            f"{where} is {_format_briefly(value)}, which is not a known {enum.__name__}"
        ) from None


def _read_attribute_element(facts: AttributeFacts, value: Any, where: str) -> Any:
    """Return one attribute value from its text in the log."""
    for kind in facts.types:
        if kind in ENUM_OF_TYPE:
            return _find_enum_member(ENUM_OF_TYPE[kind], value, where)
        if kind is AttributeType.FRACTION and isinstance(value, list) and len(value) == 2:
            return value[0] if value[1] == 1 else tuple(value)
        if kind is AttributeType.FLOAT and isinstance(value, float) and AttributeType.DOUBLE not in facts.types:
            return _find_shortest_decimal(value)
        if kind in (AttributeType.FLOAT, AttributeType.DOUBLE) and isinstance(value, int):
            return float(value) if not isinstance(value, bool) and abs(value) < 1 << 53 else value
    return value


def _read_attribute(facts: AttributeFacts, value: Any, where: str) -> Any:
    if isinstance(value, list) and facts.max_count != 1:
        return tuple(_read_attribute_element(facts, item, where) for item in value)
    return _read_attribute_element(facts, value, where)


def drop_fields_at_default(kind: DescriptorType, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a descriptor's fields without default values, which the log does not distinguish from absent ones."""
    defaults = DEFAULTS.get(kind, {})
    return {
        name: value for name, value in fields.items() if name not in defaults or not _is_default(value, defaults[name])
    }


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(default, float) and isinstance(value, float):
        return value == default or abs(value - default) <= 1e-5 * abs(default)  # dumps round to 6 digits
    return bool(value == default)


def _make_operation(kind: DescriptorType, name: str, given: Mapping[str, Any]) -> Op:
    """Return the operation with these fields; a parameter descriptor is a dict or :class:`Parameters`."""
    fields = drop_fields_at_default(kind, given)
    for key, value in fields.items():
        if isinstance(value, dict):
            elements = _get_attribute_facts(kind)[key].element
            if len(elements) != 1:
                raise _make_log_graph_error(
                    f"{key} of {name!r} is the object {_format_briefly(value)}, but needs one value"
                )
            fields[key] = _drop_parameters_of_other_distributions(drop_fields_at_default(elements[0], value))
    if kind is _D.OPERATION_MATMUL:
        return _make_matmul(name, fields)
    if kind is _D.OPERATION_POINTWISE:
        return _make_pointwise(name, fields)
    if kind is _D.OPERATION_REDUCTION and set(fields) <= {"x", "y", "reduction"}:
        return _make_reduction(name, fields)
    if kind in (_D.OPERATION_ROPE_FWD, _D.OPERATION_ROPE_BWD):
        _drop_rope_dim_equal_to_last_dim(fields)
    for key, value in fields.items():
        if isinstance(value, dict):
            (element,) = _get_attribute_facts(kind)[key].element
            fields[key] = Parameters(element, value)
    return Operation(kind, name, {**FIXED_VALUES.get(kind, {}), **fields})


def _drop_parameters_of_other_distributions(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a random generator's fields without parameters of other distributions, which dumps show as -1."""
    chosen = fields.get("distribution")
    if not isinstance(chosen, RngDistribution):
        return fields
    word = f"{chosen.name.lower()}_"
    return {name: value for name, value in fields.items() if "_dist_" not in name or name.startswith(word)}


def _drop_rope_dim_equal_to_last_dim(fields: dict[str, Any]) -> None:
    """Drop a ``rope_dim`` equal to the tensor's last dim, which the log prints if none was set."""
    rotated = fields.get("x", fields.get("dy"))
    if isinstance(rotated, Tensor) and fields.get("rope_dim") == rotated.dims[-1]:
        del fields["rope_dim"]


def _require_fields(name: str, fields: Mapping[str, Any], needed: Iterable[str]) -> None:
    missing = [port for port in needed if fields.get(port) is None]
    if missing:
        raise _make_log_graph_error(f"the log does not contain {', '.join(missing)} of {name!r}")


def _read_parameter_fields(name: str, fields: Mapping[str, Any], key: str, needed: Iterable[str]) -> dict[str, Any]:
    found = fields.get(key, {})
    if not isinstance(found, dict):
        raise _make_log_graph_error(
            f"{key} of {name!r} must be an object with parameters, got {_format_briefly(found)}"
        )
    _require_fields(name, found, needed)
    return found


def _make_matmul(name: str, fields: dict[str, Any]) -> Matmul:
    _require_fields(name, fields, "abc")
    found = _read_parameter_fields(name, fields, "matmul", ["comp_type"])
    overrides = {f"{size}_override": fields.get(f"gemm_{size}_override") for size in "mnk"}
    return Matmul(
        name=name,
        a=fields["a"],
        b=fields["b"],
        c=fields["c"],
        compute_type=found["comp_type"],
        padding_value=found.get("padding_value"),
        **overrides,
    )


def _make_pointwise(name: str, fields: dict[str, Any]) -> Pointwise:
    found = dict(_read_parameter_fields(name, fields, "pointwise", ["mode", "math_prec"]))
    if found["mode"] is PointwiseMode.GEN_INDEX and "axis" not in found:
        raise _make_log_graph_error(f"the log does not contain the axis of the GEN_INDEX operation {name!r}")
    if found.pop("nan_propagation", None) is not None:
        raise _make_log_graph_error(
            f"{name!r} propagates NaN, which this package's pointwise operations do not support"
        )
    mode, compute_type = found.pop("mode"), found.pop("math_prec")
    return Pointwise(name=name, mode=mode, compute_type=compute_type, **found, **_drop_field(fields, "pointwise"))


def _make_reduction(name: str, fields: dict[str, Any]) -> Reduction:
    _require_fields(name, fields, "xy")
    found = _read_parameter_fields(name, fields, "reduction", ["operator", "comp_type"])
    return Reduction(
        name=name,
        operator=found["operator"],
        x=fields["x"],
        y=fields["y"],
        compute_type=found["comp_type"],
        deterministic=found.get("is_deterministic"),
    )


def _drop_field(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


def _make_operation_name(kind: DescriptorType, fields: Mapping[str, Any], number: int) -> str:
    """Return a name for an operation, such as ``exp_7``."""
    parameters = fields.get("pointwise", fields.get("reduction"))
    mode = None
    if isinstance(parameters, dict):
        mode = parameters.get("mode", parameters.get("operator"))
    if isinstance(mode, ReduceTensorOp):
        return f"reduce_{mode.name.lower()}_{number}"
    word = mode.name if isinstance(mode, PointwiseMode) else kind.name.removeprefix("OPERATION_")
    return f"{word.lower()}_{number}"


# JSON


def graph_from_log_json(data: Any, subgraph: Any = None) -> Graph:
    """Return the graph from cuDNN's JSON of an operation graph.

    Source: ``apiLog: type=json`` of ``cudnnBackendFinalizeGraphVisualize`` and its kin, cuDNN 9.5 and later. Tensors
    are called ``t`` and their uid, operations by what they do and their number.

    Parameters
    ----------
    data
        The value of ``operationGraph``, or the whole value with that key.
    subgraph
        The same of the sub-graph of its backward attention, which cuDNN logs on its own and not in the graph (9.28).

    Raises
    ------
    GraphError
        ``log-graph`` saying what is missing or unknown, and everything a graph itself can refuse.
    """
    return _JsonReader(_unwrap_operation_graph(subgraph)).read(_unwrap_operation_graph(data), "graph", 0)


def _unwrap_operation_graph(data: Any) -> Any:
    return data["operationGraph"] if isinstance(data, dict) and "operationGraph" in data else data


def is_subgraph(data: Any) -> bool:
    """Return whether cuDNN's JSON is a sub-graph: it reads a virtual tensor that none of its nodes writes."""
    try:
        graph = _JsonReader().read(_unwrap_operation_graph(data), "graph", 0, is_subgraph=True)
    except GraphError:
        return False
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    return any(tensor.virtual and tensor.uid not in written for op in graph.ops for tensor in op.inputs().values())


class _JsonReader:
    """Reads cuDNN's JSON of a graph; its sub-graphs share its tensors."""

    def __init__(self, subgraph: Any = None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.subgraph = subgraph

    def read(self, data: Any, name: str, depth: int, is_subgraph: bool = False) -> Graph:
        if depth > _NESTED:
            raise _make_log_graph_error(f"graphs are nested more than {_NESTED} levels deep")
        nodes = self._get_list(data, "nodes")
        if len(nodes) > _NODES:
            raise _make_log_graph_error(f"the logged graph has {len(nodes)} nodes, at most {_NODES} can be read")
        for record in self._get_list(data, "tensors"):
            self._read_tensor(record, 0)
        ops = tuple(self._read_operation(node, number, depth) for number, node in enumerate(nodes))
        return Graph(ops, name, is_subgraph)

    def _get_list(self, data: Any, key: str) -> list[Any]:
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise _make_log_graph_error(f"the logged graph has no list {key!r}")
        found: list[Any] = data[key]
        return found

    def _read_tensor(self, record: Any, depth: int) -> Tensor:
        if depth > 1:
            raise _make_log_graph_error(
                f"a ragged offset in the log must not have a ragged offset, got {_format_briefly(record)}"
            )
        if not isinstance(record, dict):
            raise _make_log_graph_error(f"a logged tensor must be an object, got {_format_briefly(record)}")
        for key in ("name", "dataType", "dim", "stride"):
            if key not in record:
                raise _make_log_graph_error(f"the logged tensor {_format_briefly(record.get('name'))} lacks {key}")
        uid = _read_uid(record["name"])
        offsets = record.get("isRagged") or []
        if not isinstance(offsets, list) or len(offsets) > 1:
            raise _make_log_graph_error(
                f"tensor {uid} must have at most one ragged offset, got {_format_briefly(offsets)}"
            )
        made = Tensor(
            name=f"t{uid}",
            uid=uid,
            dims=record["dim"],
            strides=record["stride"],
            data_type=_read_data_type(record["dataType"], uid),
            alignment=record.get("ptrAlignment", 16),
            virtual=record.get("isVirtual", False),
            by_value=record.get("isByValue", False),
            value=_WORDS.get(record["value"], record["value"])
            if isinstance(record.get("value"), str)
            else record.get("value"),
            reordering=_read_reordering(record.get("reordering", 0), uid),
            ragged_offset=self._read_tensor(offsets[0], depth + 1) if offsets else None,
            ragged_offset_multiplier=record.get("raggedOffsetMultiplier", 1),
            vector_count=record.get("vectCount", 1),
            vector_dim=record.get("vectDim", -1),
        )
        known = self.tensors.setdefault(str(uid), made)
        if known != made:
            raise _make_log_graph_error(f"tensor {uid} is logged twice with different properties")
        return known

    def _read_operation(self, node: Any, number: int, depth: int) -> Op:
        kind = _find_operation_kind(node.get("operation") if isinstance(node, dict) else node)
        fields = self._read_fields(kind, node, f"node {number}, {kind.c_name}", depth)
        return _make_operation(kind, _make_operation_name(kind, fields, number), fields)

    def _read_fields(self, kind: DescriptorType, node: Mapping[str, Any], where: str, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in node.items():
            if key == "operation":
                continue
            for path in _iterate_fields_of_json_key(kind, key, node, where):
                holder, _, inner = path.rpartition(".")
                at = f"{key} of {where}"
                if holder:
                    (element,) = _get_attribute_facts(kind)[holder].element
                    fields.setdefault(holder, {})[inner] = _read_attribute(
                        _get_attribute_facts(element)[inner], value, at
                    )
                else:
                    fields[path] = self._read_value(_get_attribute_facts(kind)[path], value, at, depth)
        if isinstance(parameters := fields.get("convolution"), dict):
            parameters["spatial_dims"] = len(parameters.get("dilations", ()))
        if kind is _D.OPERATION_SDPA_BWD and self.subgraph is not None and "subgraph" not in fields:
            fields |= self._read_separate_subgraph(depth + 1)
        return fields

    def _read_separate_subgraph(self, depth: int) -> dict[str, Any]:
        inner = self.read(self.subgraph, "subgraph", depth, is_subgraph=True)
        read = {tensor.uid for op in inner.ops for tensor in op.inputs().values() if tensor.virtual}
        written = {tensor.uid for op in inner.ops for tensor in op.outputs().values()}
        sources, results = read - written, written - read
        if len(sources) != 1 or len(results) != 1:
            raise _make_log_graph_error(
                f"a sub-graph must have one input and one output, got {len(sources)} and {len(results)}"
            )
        return {"subgraph": inner, "subgraph_input_uid": sources.pop(), "subgraph_output_uid": results.pop()}

    def _read_value(self, facts: AttributeFacts, value: Any, where: str, depth: int) -> Any:
        if AttributeType.BACKEND_DESCRIPTOR not in facts.types or isinstance(value, (int, float)):
            return _read_attribute(facts, value, where)
        if isinstance(value, dict):
            return self._read_nested_value(facts, value, where, depth + 1)
        if isinstance(value, list):
            return tuple(self._find_tensor(item, where) for item in value)
        return self._find_tensor(value, where)

    def _read_nested_value(self, facts: AttributeFacts, value: dict[str, Any], where: str, depth: int) -> Graph | Op:
        if depth > _NESTED:
            raise _make_log_graph_error(f"{where} is nested more than {_NESTED} levels deep")
        if _D.OPERATIONGRAPH in facts.element:
            return self.read(value, facts.field, depth, is_subgraph=True)
        kind = _find_operation_kind(value.get("operation"))
        return _make_operation(kind, facts.field, self._read_fields(kind, value, where, depth))

    def _find_tensor(self, name: Any, where: str) -> Tensor:
        tensor = self.tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise _make_log_graph_error(
                f"{where} is tensor {_format_briefly(name)}, which the logged graph does not have"
            )
        return tensor


def _read_uid(name: Any) -> int:
    if isinstance(name, bool) or not isinstance(name, (str, int)) or not re.fullmatch(r"-?\d{1,19}", str(name)):
        raise _make_log_graph_error(f"a logged tensor must be named by its uid, got {_format_briefly(name)}")
    return int(name)


def _read_data_type(value: Any, uid: int) -> DataType:
    found = _find_enum_member(DataType, value, f"the data type of tensor {uid}")
    assert isinstance(found, DataType)
    return found


def _read_reordering(value: Any, uid: int) -> TensorReordering:
    found = _find_enum_member(TensorReordering, value, f"the reordering of tensor {uid}")
    assert isinstance(found, TensorReordering)
    return found


def _find_operation_kind(name: Any) -> DescriptorType:
    found = _map_c_names_to_members(DescriptorType).get(name) if isinstance(name, str) else None
    if not isinstance(found, DescriptorType) or not found.name.startswith("OPERATION_"):
        raise _make_log_graph_error(f"a node has the unknown operation {_format_briefly(name)}")
    return found


def _iterate_fields_of_json_key(kind: DescriptorType, key: str, node: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield the descriptor fields of a JSON key: none, one, or both paddings of a convolution."""
    plain = _normalize_name(key)
    if plain == "pad" and "dilation" in node:
        yield from ("convolution.pre_paddings", "convolution.post_paddings")
        return
    if kind is _D.OPERATION_POINTWISE and plain in ("alpha", "beta"):
        swish = "SWISH" in str(node.get("pointwiseMode"))
        yield "pointwise.elu_alpha" if plain == "alpha" else f"pointwise.{'swish' if swish else 'softplus'}_beta"
        return
    path = _map_logged_names_to_fields(kind).get(plain)
    if path is None:
        raise _make_log_graph_error(f"{where} has the unknown attribute {key}: {_format_briefly(node[key])}")
    if path:
        yield path


# dumps of descriptors


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """One entry of a dump: a line ``key: type=...; val=...;`` of the log with the more indented lines below it."""

    key: str
    type: str
    value: str | None
    children: tuple[DumpEntry, ...] = ()

    @property
    def kind(self) -> DescriptorType | None:
        """The type of the dumped descriptor."""
        found = _map_c_names_to_members(DescriptorType).get(self.type)
        return found if isinstance(found, DescriptorType) else None

    @property
    def is_set(self) -> bool:
        """Whether the dump has a value; absent tensors are dumped with -1 dims."""
        if self.kind is _D.TENSOR:
            return any(child.key == "nbDims" and child.value != "-1" for child in self.children)
        return self.value != "NULL_PTR"


@dataclass(slots=True)
class LoggedDescriptor:
    """A descriptor built from logged API calls: its attributes by field, as text or other descriptors."""

    kind: DescriptorType
    attributes: dict[str, list[str | LoggedDescriptor | None]] = field(default_factory=dict)
    whole: bool = True  # False where calls may be missing


def graph_from_descriptors(
    dump: DumpEntry, made: Mapping[int, LoggedDescriptor | None], ops: Iterable[LoggedDescriptor | None] = ()
) -> Graph:
    """Return the graph from the dump of an operation graph descriptor.

    Parameters
    ----------
    dump
        What ``cudnnBackendFinalize`` of the operation graph logged.
    made
        How the tensors were made, by uid, as far as the log has their calls; None where it is not clear.
    ops
        How each operation of the dump was made, in its order; None where the log does not say.

    Raises
    ------
    GraphError
        ``log-graph`` saying what the log does not hold.
    """
    nodes = [child for child in dump.children if child.kind is not None and child.kind.name.startswith("OPERATION_")]
    if not nodes:
        raise _make_log_graph_error(
            "the log does not contain the operations of this graph",
            "log from the start of the program, at level INFO (3)",
        )
    known = list(ops) or [None] * len(nodes)
    if len(known) != len(nodes):
        raise _make_log_graph_error(
            f"the log describes {len(nodes)} operations of this graph, but has the calls that set {len(known)}",
            _FROM_THE_START,
        )
    reader = _DescriptorDumpReader(made)
    return Graph(
        tuple(
            reader.read_operation(node, how, number)
            for number, (node, how) in enumerate(zip(nodes, known, strict=True))
        )
    )


_FROM_THE_START = "log from the start of the program: only the calls that set these attributes show them"


class _DescriptorDumpReader:
    def __init__(self, made: Mapping[int, LoggedDescriptor | None]) -> None:
        self.made = made
        self.tensors: dict[int, Tensor] = {}

    def read_operation(self, node: DumpEntry, how: LoggedDescriptor | None, number: int) -> Op:
        kind = node.kind
        assert kind is not None
        fields = self._list_dumped_fields(kind, node)
        if how is not None:
            self._add_logged_attributes(kind, fields, how, f"operation {number}, {kind.c_name}")
        elif node.value == "NOT_IMPLEMENTED" or any(not child.key for child in node.children):
            raise _make_log_graph_error(
                f"the cuDNN that wrote the log does not log the attributes of {kind.c_name}", _FROM_THE_START
            )
        unknown = [
            port for port in UNDUMPED_FIELDS.get(kind, ()) if port not in fields and (how is None or not how.whole)
        ]
        if unknown:
            raise _make_log_graph_error(
                f"the log does not contain {', '.join(unknown)} of operation {number}, {kind.c_name}",
                _FROM_THE_START,
            )
        return _make_operation(kind, _make_operation_name(kind, fields, number), fields)

    def _list_dumped_fields(self, kind: DescriptorType, node: DumpEntry) -> dict[str, Any]:
        """Return the fields that the dump of a descriptor contains."""
        fields: dict[str, Any] = {}
        for child in node.children:
            where = f"{child.key} of {kind.c_name}"
            path = _map_logged_names_to_fields(kind).get(_normalize_name(child.key))
            if not path or not child.is_set or "." in path:
                continue
            facts = _get_attribute_facts(kind)[path]
            if child.kind is _D.TENSOR:
                self._add_tensor(fields, facts, self._read_tensor(child))
            elif child.kind is not None and child.kind.name.startswith("OPERATION"):
                if any(inner.is_set and inner.children for inner in child.children):
                    raise _make_log_graph_error(
                        f"{where} is a nested graph or operation, but cuDNN's dump in the log does not contain its "
                        "values"
                    )
            elif child.kind is not None:
                fields[path] = self._list_dumped_fields(child.kind, child)
            elif child.value is not None and not _may_dumped_zero_be_tensor(facts, child):
                fields[path] = _read_attribute(facts, _parse_value(child.value, facts), where)
        return fields

    def _add_tensor(self, fields: dict[str, Any], facts: AttributeFacts, tensor: Tensor) -> None:
        if facts.max_count == 1:
            fields[facts.field] = tensor
        else:
            fields[facts.field] = (*fields.get(facts.field, ()), tensor)

    def _read_tensor(self, node: DumpEntry) -> Tensor:
        seen = {child.key: child for child in node.children}
        for key in ("type", "dimA", "strideA", "uid"):
            if key not in seen:
                raise _make_log_graph_error(f"the dump of a tensor is cut off: {key} is missing")
        uid = _read_uid(seen["uid"].value)
        offset = seen.get("raggedOffsetDesc")
        how = self.made.get(uid)
        hidden = how.attributes if how is not None else {}
        made = Tensor(
            name=f"t{uid}",
            uid=uid,
            dims=_read_integers(seen["dimA"].value, uid),
            strides=_read_integers(seen["strideA"].value, uid),
            data_type=_read_data_type(_read_enumerator(seen["type"].value), uid),
            alignment=_read_integer_field(seen, "alignmentInBytes", 16),
            virtual=_read_flag_field(seen, "isVirtual"),
            by_value=_read_flag_field(seen, "isByVal"),
            reordering=_read_reordering(_read_attribute_absent_from_dump(hidden, "reordering_mode", "0"), uid),
            ragged_offset=self._read_tensor(offset)
            if offset is not None
            else self._find_ragged_offset_absent_from_dump(hidden, uid),
            vector_count=_read_integer_field(seen, "vectCount", 1),
            vector_dim=_read_integer_field(seen, "vectDim", -1),
        )
        known = self.tensors.setdefault(uid, made)
        if known != made:
            raise _make_log_graph_error(f"tensor {uid} is logged twice with different properties")
        return known

    def _find_ragged_offset_absent_from_dump(
        self, hidden: Mapping[str, list[str | LoggedDescriptor | None]], uid: int
    ) -> Tensor | None:
        if "ragged_offset" not in hidden:
            return None
        return self._read_tensor_from_calls(hidden["ragged_offset"][0], f"the ragged offset of tensor {uid}", 1)

    def _read_tensor_from_calls(self, how: str | LoggedDescriptor | None, where: str, depth: int = 0) -> Tensor:
        """Return a tensor from the logged API calls that built it, as no dump contains it."""
        if not isinstance(how, LoggedDescriptor) or how.kind is not _D.TENSOR or depth > 2:
            raise _make_log_graph_error(f"the log does not show which tensor is {where}")
        given = {name: [str(item) for item in values] for name, values in how.attributes.items()}
        for name in ("unique_id", "dimensions", "strides", "data_type"):
            if name not in given:
                raise _make_log_graph_error(f"the log does not contain {name} of {where}")
        uid = _read_uid(given["unique_id"][0])
        if uid in self.tensors:
            return self.tensors[uid]
        inner = how.attributes.get("ragged_offset")
        return self.tensors.setdefault(
            uid,
            Tensor(
                name=f"t{uid}",
                uid=uid,
                dims=tuple(map(_read_integer, given["dimensions"])),
                strides=tuple(map(_read_integer, given["strides"])),
                data_type=_read_data_type(_read_enumerator(given["data_type"][0]), uid),
                alignment=_read_integer(given.get("byte_alignment", ["16"])[0]),
                virtual=given.get("is_virtual") == ["true"],
                by_value=given.get("is_by_value") == ["true"],
                reordering=_read_reordering(
                    _read_attribute_absent_from_dump(how.attributes, "reordering_mode", "0"), uid
                ),
                ragged_offset=self._read_tensor_from_calls(inner[0], where, depth + 1) if inner else None,
            ),
        )

    def _add_logged_attributes(
        self, kind: DescriptorType, fields: dict[str, Any], how: LoggedDescriptor, where: str
    ) -> None:
        """Add attributes from logged API calls: exact numbers, and tensors missing in the dump."""
        for name, values in how.attributes.items():
            facts = _get_attribute_facts(kind).get(name)
            if facts is None or not values:
                continue
            first = values[0]
            if isinstance(first, LoggedDescriptor) and first.kind is not _D.TENSOR:
                inner = fields.setdefault(name, {})
                if isinstance(inner, dict):
                    self._add_logged_attributes(first.kind, inner, first, f"{name} of {where}")
            elif _D.TENSOR in facts.element and not _is_number(first):
                if name not in fields:
                    tensors = tuple(self._read_tensor_from_calls(item, f"{name} of {where}") for item in values)
                    fields[name] = tensors[0] if facts.max_count == 1 else tensors
            elif all(isinstance(item, str) for item in values):
                numbers = [_parse_value(str(item), facts) for item in values]
                fields[name] = _read_attribute(facts, numbers if facts.max_count != 1 else numbers[0], where)


def _may_dumped_zero_be_tensor(facts: AttributeFacts, child: DumpEntry) -> bool:
    """Return whether a dumped 0 may be a tensor: attributes such as a seed are a number or a tensor."""
    return AttributeType.BACKEND_DESCRIPTOR in facts.types and child.value == "0"


def _is_number(value: str | LoggedDescriptor | None) -> bool:
    return isinstance(value, str) and not value.startswith("0x")


def _read_attribute_absent_from_dump(
    attributes: Mapping[str, list[str | LoggedDescriptor | None]], name: str, default: str
) -> int | str:
    value = attributes.get(name, [default])[0]
    return _read_enumerator(value) if isinstance(value, str) else default


def _read_enumerator(value: str | None) -> int | str:
    """Return the name in ``CUDNN_DATA_HALF (2)``, or the number if there is no name."""
    word = (value or "").partition(" ")[0]
    return int(word) if re.fullmatch(r"-?\d{1,9}", word) else word


def _read_integer(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise _make_log_graph_error(f"the log contains an invalid number: {_format_briefly(text)}")
    return int(text)


def _read_integers(text: str | None, uid: int) -> tuple[int, ...]:
    match = re.fullmatch(r"\[([-\d,]*)\]", text or "")
    if match is None:
        raise _make_log_graph_error(
            f"the log contains invalid dims or strides of tensor {uid}: {_format_briefly(text)}"
        )
    return tuple(_read_integer(item) for item in match[1].split(",") if item)


def _read_integer_field(seen: Mapping[str, DumpEntry], key: str, default: int) -> int:
    return _read_integer(seen[key].value or "") if key in seen else default


def _read_flag_field(seen: Mapping[str, DumpEntry], key: str) -> bool:
    return key in seen and seen[key].value == "true"


def _parse_value(text: str, facts: AttributeFacts) -> Any:
    """Return a logged value as a Python value: an enum member, number, flag, or list of numbers."""
    if text.startswith("["):
        return [_parse_value(item, facts) for item in text.strip("[]").split(",") if item]
    if text in ("true", "false"):
        return text == "true"
    if any(kind in ENUM_OF_TYPE for kind in facts.types):
        return _read_enumerator(text)
    if match := re.fullmatch(r"(-?\d{1,9})/(\d{1,9})", text):
        return [int(match[1]), int(match[2])]
    try:
        return int(text) if re.fullmatch(r"-?\d{1,19}", text) else float(text)
    except ValueError:
        raise _make_log_graph_error(f"the log contains an invalid number: {_format_briefly(text)}") from None
