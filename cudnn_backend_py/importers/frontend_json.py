"""Graphs from cudnn-frontend's JSON, as its ``serialize``, ``print`` and log write it.

Such a graph has nodes of a higher level than operations: one SDPA node becomes the graph cuDNN's frontend would make
of it, as :mod:`cudnn_backend_py.graph.attention` makes it. Types it leaves open are those of its context.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import GraphError
from ..generated.enums import DIM_MAX, DataType, PointwiseMode, ReduceTensorOp, TensorReordering
from ..graph.attention import sdpa_backward, sdpa_forward
from ..graph.ir import ACTIVATION_NUMBERS, Graph, Matmul, Op, Pointwise, Reduction, Tensor, packed_strides
from ..system.version import Version

__all__ = [
    "FrontendTensorRecords",
    "graph_from_frontend_json",
    "make_unsupported_node_error",
    "parse_number",
    "read_nodes",
]

_INPUTS = {"IN_0": "x", "IN_1": "b", "IN_2": "t"}
_NODES = 4096


def _make_frontend_json_error(headline: str, fix: str | None = None) -> GraphError:
    return GraphError(headline, code="frontend-json", fix=fix)


_NO_GRAPH = "the JSON is not a cudnn-frontend graph: it has no nodes or no tensors"


def read_nodes(data: Any) -> list[dict[str, Any]]:
    """Return the nodes in the JSON of a cudnn-frontend graph, after checking that each has a tag.

    Raises
    ------
    GraphError
        ``frontend-json``.
    """
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, list):
        raise _make_frontend_json_error(_NO_GRAPH)
    if not nodes or len(nodes) > _NODES:
        raise _make_frontend_json_error(
            f"the frontend graph has {len(nodes)} nodes; only graphs of 1 to {_NODES} nodes can be read"
        )
    for node in nodes:
        if not isinstance(node, dict) or not isinstance(node.get("tag"), str):
            raise _make_frontend_json_error("a node of the frontend graph has no tag")
    return nodes


class FrontendTensorRecords:
    """The tensors in the JSON of a cudnn-frontend graph: a list of records, or a mapping from names or uids to them.

    Parameters
    ----------
    data
        The JSON of the graph.

    Raises
    ------
    GraphError
        ``frontend-json``.
    """

    def __init__(self, data: Any) -> None:
        tensors = data.get("tensors") if isinstance(data, dict) else None
        listed = [*tensors.values()] if isinstance(tensors, dict) else tensors
        if not isinstance(listed, list) or not all(isinstance(record, dict) for record in listed):
            raise _make_frontend_json_error(_NO_GRAPH)
        self.listed: list[Mapping[str, Any]] = listed
        self._by_key: dict[Any, Mapping[str, Any]] = {}
        for record in listed:
            for key in (record.get("name"), record.get("uid")):
                if isinstance(key, str | int):
                    self._by_key.setdefault(key, record)
        if isinstance(tensors, dict):
            self._by_key |= tensors

    def get(self, key: Any) -> Mapping[str, Any]:
        """Return the record that a node refers to by name or uid.

        Raises
        ------
        GraphError
            ``frontend-json`` where there is none.
        """
        known = (self._by_key.get(one) for one in (key, str(key))) if isinstance(key, str | int) else ()
        found = next((record for record in known if record is not None), None)
        if found is None:
            raise _make_frontend_json_error(f"the frontend graph has no tensor {str(key)[:60]!r}")
        return found


def make_unsupported_node_error(number: int, tag: str, read: str) -> GraphError:
    """Return the error for a node that cannot be read; `read` lists the supported node tags."""
    return _make_frontend_json_error(
        f"node {number} of the frontend graph is {tag[:60]}, which cannot be read", f"use only these nodes: {read}"
    )


def graph_from_frontend_json(data: Any) -> Graph:
    """Return the graph from the JSON of a cudnn-frontend graph.

    Nodes MATMUL, POINTWISE and REDUCTION, or one SDPA_FWD, SDPA_FP8_FWD or SDPA_BWD alone, whose tensors are then
    called as in :class:`~cudnn_backend_py.graph.attention.Attention`, with uids of their own.

    Raises
    ------
    GraphError
        ``frontend-json`` naming the node and its tag, or what is missing; and everything a graph itself can refuse.
    """
    nodes = read_nodes(data)
    reader = _FrontendGraphReader(data)
    if nodes[0]["tag"].startswith("SDPA"):
        if len(nodes) > 1:
            raise _make_frontend_json_error(
                f"the frontend graph has {nodes[0]['tag']} next to {len(nodes) - 1} other nodes; it must be alone"
            )
        return reader.read_attention(nodes[0])
    return reader.read_graph(nodes)


def _reject_ragged_tensor(record: Mapping[str, Any], name: str) -> None:
    given = {key for key, value in record.items() if "ragged" in key and value not in (None, "")}
    if given - {"ragged_offset_multiplier"}:
        raise _make_frontend_json_error(
            f"tensor {name[:60]!r} of the frontend graph is ragged, and graphs with ragged tensors cannot be read"
        )


class _FrontendGraphReader:
    def __init__(self, data: Mapping[str, Any]) -> None:
        context = data.get("context")
        self.context: Mapping[str, Any] = context if isinstance(context, dict) else {}
        self.records = FrontendTensorRecords(data)
        self.version = _read_version(data.get("cudnn_backend_version"))
        self.tensors: dict[int, Tensor] = {}  # by the identity of the record
        given = [record.get("uid") for record in self.records.listed if record.get("uid_assigned")]
        self.taken = {uid for uid in given if isinstance(uid, int)}

    # nodes that are operations

    def read_graph(self, nodes: list[dict[str, Any]]) -> Graph:
        readers: dict[str, Callable[[dict[str, Any], str], Op]] = {
            "MATMUL": self._read_matmul,
            "POINTWISE": self._read_pointwise,
            "REDUCTION": self._read_reduction,
        }
        ops = []
        names: set[str] = set()
        for number, node in enumerate(nodes):
            tag = node["tag"]
            if tag not in readers:
                read = f"{', '.join(readers)}, or one SDPA_FWD, SDPA_FP8_FWD or SDPA_BWD alone"
                raise make_unsupported_node_error(number, tag, read)
            name = node.get("name")
            unique = name if isinstance(name, str) and name and name not in names else f"{tag.lower()}_{number}"
            names.add(unique)
            ops.append(readers[tag](node, unique))
        name = self.context.get("name")
        return Graph(tuple(ops), name if isinstance(name, str) and name else "frontend")

    def _read_matmul(self, node: dict[str, Any], name: str) -> Matmul:
        a, b = self._get_input(node, "A"), self._get_input(node, "B")
        batch = tuple(map(max, a.dims[:-2], b.dims[:-2]))
        dims = (*batch, *a.dims[-2:-1], *b.dims[-1:])
        padding = node.get("padding_value")
        return Matmul(
            name=name,
            a=a,
            b=b,
            c=self._get_output(node, "C", dims, packed_strides(dims)),
            compute_type=self._read_compute_type(node),
            padding_value=padding if padding else None,
            **{f"{size.lower()}_override": self._find_input(node, f"{size}_override") for size in "MNK"},
        )

    def _read_pointwise(self, node: dict[str, Any], name: str) -> Pointwise:
        mode = _find_enum_member(PointwiseMode, node.get("mode"), f"the mode of {name!r}")
        assert isinstance(mode, PointwiseMode)
        given = {port: self._find_input(node, key) for key, port in _INPUTS.items()}
        inputs = [tensor for tensor in given.values() if tensor is not None]
        if not inputs:
            raise _make_frontend_json_error(f"node {name!r} of the frontend graph has no inputs")
        rank = max(tensor.rank for tensor in inputs)
        full = [tensor for tensor in inputs if tensor.rank == rank]
        dims = tuple(max(sizes) for sizes in zip(*(tensor.dims for tensor in full), strict=True))
        strides = next((tensor.strides for tensor in full if tensor.dims == dims), packed_strides(dims))
        output = self._get_output(node, "OUT_0", dims, strides)
        if mode.name.endswith("_BWD"):
            ports: dict[str, Any] = {"dy": given["x"], "x": given["b"], "dx": output}
        else:
            ports = {**given, "y": output}
        numbers: dict[str, Any] = {
            key: _read_float(node[key], key) for key in ACTIVATION_NUMBERS if node.get(key) is not None
        }
        axis = node.get("axis")
        return Pointwise(
            name=name, mode=mode, compute_type=self._read_compute_type(node), axis=axis, **numbers, **ports
        )

    def _read_reduction(self, node: dict[str, Any], name: str) -> Reduction:
        operator = _find_enum_member(ReduceTensorOp, node.get("mode"), f"the mode of {name!r}")
        assert isinstance(operator, ReduceTensorOp)
        return Reduction(
            name=name,
            operator=operator,
            x=self._get_input(node, "X"),
            y=self._get_output(node, "Y"),
            compute_type=self._read_compute_type(node),
            deterministic=True if node.get("is_deterministic") else None,
        )

    def _read_compute_type(self, node: Mapping[str, Any]) -> DataType:
        return self._read_data_type(node.get("compute_data_type"), "compute_data_type")

    # tensors

    def _map_ports_to_tensor_names(self, node: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = node.get(key)
        return found if isinstance(found, dict) else {}

    def _find_input(self, node: Mapping[str, Any], port: str) -> Tensor | None:
        name = self._map_ports_to_tensor_names(node, "inputs").get(port)
        return None if name is None else self._read_tensor(name)

    def _get_input(self, node: Mapping[str, Any], port: str) -> Tensor:
        found = self._find_input(node, port)
        if found is None:
            raise _make_frontend_json_error(f"node {str(node.get('name'))[:60]!r} has no input {port}")
        return found

    def _get_output(
        self, node: Mapping[str, Any], port: str, dims: tuple[int, ...] = (), strides: tuple[int, ...] = ()
    ) -> Tensor:
        name = self._map_ports_to_tensor_names(node, "outputs").get(port)
        if name is None:
            raise _make_frontend_json_error(f"node {str(node.get('name'))[:60]!r} has no output {port}")
        return self._read_tensor(name, dims, strides)

    def _read_tensor(self, name: Any, dims: tuple[int, ...] = (), strides: tuple[int, ...] = ()) -> Tensor:
        """Return the tensor with this name; `dims` and `strides` apply if its record has none."""
        key, record = str(name), self.records.get(name)
        if id(record) in self.tensors:
            return self.tensors[id(record)]
        given, stride = _read_integers(record, "dim", key) or dims, _read_integers(record, "stride", key) or strides
        if not given:
            raise _make_frontend_json_error(
                f"tensor {key[:60]!r} of the frontend graph has no dims yet", "serialize the graph after building it"
            )
        virtual = record.get("is_virtual", False)
        default = "intermediate_data_type" if virtual else "io_data_type"
        called = record.get("name")
        made = Tensor(
            name=called if isinstance(called, str) and called else f"t{key}",
            uid=self._read_or_assign_uid(record),
            dims=given,
            strides=stride or packed_strides(given),
            data_type=self._read_data_type(record.get("data_type"), default),
            virtual=virtual,
            by_value=record.get("is_pass_by_value", False),
            value=parse_number(record.get("pass_by_value")),
            reordering=_read_reordering(record.get("reordering_type")),
        )
        _reject_ragged_tensor(record, key)
        return self.tensors.setdefault(id(record), made)

    def _read_or_assign_uid(self, record: Mapping[str, Any]) -> int:
        uid = record.get("uid")
        if isinstance(uid, int) and record.get("uid_assigned", True):
            return uid
        fresh = max(self.taken, default=0) + 1
        self.taken.add(fresh)
        return fresh

    def _read_data_type(self, value: Any, default: str) -> DataType:
        chosen = value if value is not None else self.context.get(default)
        if chosen is None and default != "io_data_type":
            return DataType.FLOAT
        found = _find_enum_member(DataType, chosen, f"a type ({default})")
        assert isinstance(found, DataType)
        return found

    # attention

    def read_attention(self, node: dict[str, Any]) -> Graph:
        tag = node["tag"]
        if tag not in ("SDPA", "SDPA_FWD", "SDPA_FP8_FWD", "SDPA_BWD"):
            raise _make_frontend_json_error(
                f"the frontend graph has the attention node {tag[:60]}; SDPA, SDPA_FWD, SDPA_FP8_FWD and "
                "SDPA_BWD can be read"
            )
        backward = tag == "SDPA_BWD"
        options = self._read_shapes(node, backward) | self._read_masks(node) | self._read_options(node, backward)
        if backward:
            return sdpa_backward(**options, version=self.version, implementation="composite", allow_hazards=True)
        wanted = str(node.get("implementation") or "COMPOSITE").lower()
        known = {"composite": "composite", "unified": "unified", "auto": "auto"}
        if wanted not in known:
            raise _make_frontend_json_error(
                f"{tag} has the unknown implementation {wanted[:40]!r}; known are {', '.join(known)}"
            )
        return sdpa_forward(**options, version=self.version, implementation=known[wanted], allow_hazards=True)  # type: ignore[arg-type]

    def _read_rank_4_layout(
        self, node: Mapping[str, Any], port: str, key: str = "inputs"
    ) -> tuple[list[int], tuple[int, ...], DataType]:
        """Return dims, strides and data type of a tensor [b, h, s, d]."""
        record = self.records.get(self._map_ports_to_tensor_names(node, key).get(port))
        _reject_ragged_tensor(record, port)
        dims, strides = record.get("dim"), record.get("stride")
        for what in (dims, strides):
            fits = isinstance(what, list) and len(what) == 4 and all(type(item) is int for item in what)
            if not fits:
                raise _make_frontend_json_error(
                    f"dims and strides of {port} of {node['tag']} must be four ints, got {str(what)[:60]}"
                )
        assert isinstance(dims, list)
        assert isinstance(strides, list)
        return dims, tuple(strides), self._read_data_type(record.get("data_type"), "io_data_type")

    def _read_shapes(self, node: Mapping[str, Any], backward: bool) -> dict[str, Any]:
        q, q_strides, data_type = self._read_rank_4_layout(node, "Q")
        k, k_strides, _ = self._read_rank_4_layout(node, "K")
        v, v_strides, _ = self._read_rank_4_layout(node, "V")
        _, o_strides, output_type = self._read_rank_4_layout(node, "O", "inputs" if backward else "outputs")
        layout = {"q": q_strides, "k": k_strides, "v": v_strides, "o": o_strides}
        if backward:
            layout |= {f"d{name}": self._read_rank_4_layout(node, f"d{name.upper()}", "outputs")[1] for name in "qkv"}
            layout["do"] = self._read_rank_4_layout(node, "dO")[1]
        for name, record in (("stats", "Stats"),):
            side = "inputs" if backward else "outputs"
            if self._map_ports_to_tensor_names(node, side).get(record) is not None:
                _, layout[name], _ = self._read_rank_4_layout(node, record, side)
        return {
            "batch": q[0],
            "heads": q[1],
            "seq_q": q[2],
            "head_dim": q[3],
            "kv_heads": k[1],
            "v_heads": v[1],
            "seq_kv": k[2],
            "head_dim_v": v[3],
            "data_type": data_type,
            "output_type": output_type,
            "layout": layout,
        }

    def _read_masks(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mask options from the JSON of any cudnn-frontend version."""
        left, right = node.get("left_bound", node.get("sliding_window_length")), node.get("right_bound")
        bottom = node.get("diagonal_alignment") == "BOTTOM_RIGHT" or node.get("causal_mask_bottom_right") is True
        if node.get("causal_mask") is True or node.get("causal_mask_bottom_right") is True:
            right = 0 if right is None else right
        return {
            "left_bound": _read_integer(left, "left_bound"),
            "right_bound": _read_integer(right, "right_bound"),
            "alignment": "bottom_right" if bottom else "top_left",
            "padding": node.get("padding_mask") is True,
            "alibi": node.get("alibi_mask") is True,
        }

    def _read_options(self, node: Mapping[str, Any], backward: bool) -> dict[str, Any]:
        inputs, outputs = (
            self._map_ports_to_tensor_names(node, "inputs"),
            self._map_ports_to_tensor_names(node, "outputs"),
        )
        unread = [key for key in (*inputs, *outputs) if key in _UNREAD and (inputs.get(key) or outputs.get(key))]
        if unread:
            raise _make_frontend_json_error(
                f"node {node['tag']} uses {', '.join(unread)}, and attention with these tensors cannot be read"
            )
        found: dict[str, Any] = {
            "scale": self._read_scale(node, inputs),
            "sink": inputs.get("SINK_TOKEN") is not None,
        }
        if (probability := node.get("dropout_probability")) is not None:
            found["dropout"] = _read_float(probability, "dropout_probability")
        found["dropout_mask"] = inputs.get("Dropout_mask") is not None
        if inputs.get("Bias") is not None:
            found["bias"] = tuple(self._read_rank_4_layout(node, "Bias")[0])
        if backward:
            found |= {"dbias": outputs.get("dBias") is not None, "dsink": outputs.get("DSINK_TOKEN") is not None}
            found["deterministic"] = node.get("is_deterministic_algorithm") is True
            return found
        inference = node.get("is_inference")
        found["stats"] = (
            outputs.get("Stats") is not None and node.get("generate_stats", inference is not True) is not False
        )
        found |= {"max": outputs.get("Max") is not None, "sum_exp": outputs.get("Sum_exp") is not None}
        found["block_mask"] = inputs.get("Block_mask") is not None
        found["rng_dump"] = outputs.get("RNG_DUMP") is not None
        return found

    def _read_scale(self, node: Mapping[str, Any], inputs: Mapping[str, Any]) -> float | str | None:
        """Return the attention scale: a number, ``"none"``, ``"tensor"``, or None if it is given at execution."""
        if (value := node.get("attn_scale_value")) is not None:
            return _read_float(value, "attn_scale_value")
        if inputs.get("Attn_scale") is None:
            return "none"
        record = self.records.get(inputs["Attn_scale"])
        if not record.get("is_pass_by_value"):
            return "tensor"
        return parse_number(record.get("pass_by_value"))


# Ports of attention this reader does not take over.
_UNREAD = ("Page_table_K", "Page_table_V")


def _read_integers(record: Mapping[str, Any], what: str, name: str) -> tuple[int, ...]:
    """Return the dims or strides of a tensor; empty if its record has none."""
    value = record.get(what) or []
    if not isinstance(value, list) or len(value) > DIM_MAX or not all(type(item) is int for item in value):
        raise _make_frontend_json_error(
            f"{what} of tensor {name[:60]!r} must be at most {DIM_MAX} integers, got {str(value)[:60]}"
        )
    return tuple(value)


def _read_version(text: Any) -> Version | None:
    match = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", text) if isinstance(text, str) else None
    return Version.from_text(match[0]) if match else None


def _find_enum_member(enum: type[PointwiseMode] | type[ReduceTensorOp] | type[DataType], name: Any, where: str) -> Any:
    if not isinstance(name, str) or name not in enum.__members__:
        raise _make_frontend_json_error(f"{where} is {str(name)[:60]!r}, which is not a {enum.__name__}")
    return enum[name]


def _read_reordering(name: Any) -> TensorReordering:
    if name is None:
        return TensorReordering.NONE
    if not isinstance(name, str) or name not in TensorReordering.__members__:
        raise _make_frontend_json_error(
            f"a tensor has the unknown reordering_type {str(name)[:60]!r}; known are "
            f"{', '.join(TensorReordering.__members__)}"
        )
    return TensorReordering[name]


def _read_integer(value: Any, what: str) -> int | None:
    if value is not None and type(value) is not int:
        raise _make_frontend_json_error(f"{what} must be an int, got {str(value)[:60]}")
    return value


def _read_float(value: Any, what: str) -> float:
    number = parse_number(value)
    if number is None:
        raise _make_frontend_json_error(f"{what} must be a number, got {str(value)[:60]}")
    return float(number)


def parse_number(value: Any) -> float | int | None:
    """Return the number in a JSON value, None if it has none.

    It is there as such, as the eight digits of a float32's four bytes, or as ``{"index": ..., "value": ...}`` of
    either, where the index says the kind.
    """
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str) and re.fullmatch("[0-9A-Fa-f]{8}", value):
        value = struct.unpack(">f", bytes.fromhex(value))[0]
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if known else None
