"""Random graphs of every kind of operation, with up to six random changes of their JSON form."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphError
from cudnn_backend_py.generated import enums
from cudnn_backend_py.generated.attributes import get_attributes
from cudnn_backend_py.generated.enums import CudnnEnum
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from tests.support.attention_cases import make_random_attention_problem
from tests.support.operations import OPERATION_GRAPHS
from tests.support.varied_graphs import VARIED_GRAPHS

__all__ = ["iterate_random_mutants"]

Json = dict[str, Any]

_RANDOM_SIZES = (
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    17,
    20,
    33,
    64,
    100,
    127,
    128,
    192,
    256,
    512,
    1000,
    4096,
    1 << 20,
    1 << 31,
    1 << 40,
)
_RANDOM_INTEGERS = (-(1 << 63), -9, -1, 0, 1, 2, 3, 5, 7, 8, 9, 31, 64, 1 << 31, (1 << 32) + 1, 1 << 40, (1 << 63) - 1)
_RANDOM_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, "inf", "-inf", "nan", 1e300)
_RANDOM_UIDS = (0, 1, 2, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 2, (1 << 63) - 1)
_RANDOM_NAMES = ("", "x", "a b", "eng0_k1=2", "ä", "::error", "dropout", "bias", "%s{}", "\u202e", "n" * 300)
_ENUMS_BY_NAME = {enum.__name__: enum for enum in CudnnEnum.__subclasses__()}


def _make_random_attention(rng: random.Random) -> Graph:
    """Return a random attention graph, in composite or unified form."""
    while True:
        backward, unified = rng.random() < 0.4, rng.random() < 0.4
        try:
            problem = make_random_attention_problem(
                np.random.default_rng(rng.randrange(1 << 32)), backward=backward, tiny=rng.random() < 0.3
            )
            make: Callable[..., Graph] = sdpa_backward if backward else sdpa_forward
            version = rng.choice((None, (9, 14, 0), (9, 24, 0), (9, 28, 0)))
            form = "unified" if unified else "composite"
            return make(problem, implementation=form, version=version, allow_hazards=True)
        except GraphError:
            continue


@cache
def _get_json_of_predefined_graph(name: str) -> str:
    return json.dumps(graph_to_json({**VARIED_GRAPHS, **OPERATION_GRAPHS}[name]()))


def _make_random_graph_json(rng: random.Random) -> Json:
    """Return a valid graph as JSON: one of the fixed graphs, or random attention."""
    if rng.random() < 0.2:
        return graph_to_json(_make_random_attention(rng))
    names = list(OPERATION_GRAPHS) if rng.random() < 0.7 else list(VARIED_GRAPHS)
    graph: Json = json.loads(_get_json_of_predefined_graph(rng.choice(names)))
    return graph


def iterate_random_mutants(rng: random.Random) -> Iterator[Graph | GraphError]:
    """Yield random graphs with up to six changes, or the error of an invalid one, endlessly."""
    while True:
        data = _make_random_graph_json(rng)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
            before = copy.deepcopy(data)
            rng.choice(_GRAPH_CHANGES)(data, rng)
            try:
                graph_from_json(data)
            except GraphError as error:
                if rng.random() < 0.1:
                    yield error
                data = before
        yield graph_from_json(data)


# parts of a graph's JSON


def _find_all_dicts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _find_all_dicts(item)


def _iterate_tensor_lists(data: Json) -> Iterator[list[Json]]:
    """Yield the tensor lists of a graph in JSON form and of its sub-graphs."""
    return (item["tensors"] for item in _find_all_dicts(data) if isinstance(item.get("tensors"), list))


def _set_tensor_fields(data: Json, name: str, **values: Any) -> None:
    """Set fields of a tensor in all lists that contain it; None removes a field."""
    for table in _iterate_tensor_lists(data):
        for tensor in table:
            if tensor["name"] == name:
                tensor.update(values)
                for key in [key for key, value in tensor.items() if value is None]:
                    del tensor[key]


def _compute_packed_strides(dims: list[int]) -> list[int]:
    strides = [1]
    for dim in reversed(dims[1:]):
        strides.append(strides[-1] * dim)
    return strides[::-1]


def _choose_random_tensors(data: Json, rng: random.Random) -> list[Json]:
    """Return one random tensor, all tensors, or all tensors of one type."""
    tensors: list[Json] = data["tensors"]
    one = rng.choice(tensors)
    return rng.choice(([one], [one], tensors, [t for t in tensors if t["data_type"] == one["data_type"]]))


# changes

GraphChange = Callable[[Json, random.Random], None]
_GRAPH_CHANGES: list[GraphChange] = []


def _register_change(*, weight: int = 1) -> Callable[[GraphChange], GraphChange]:
    def _register_change(change: GraphChange) -> GraphChange:
        _GRAPH_CHANGES.extend([change] * weight)
        return change

    return _register_change


@_register_change(weight=2)
def _change_size_everywhere(data: Json, rng: random.Random) -> None:
    old, new = rng.choice(rng.choice(data["tensors"])["dims"]), rng.choice(_RANDOM_SIZES)
    for tensor in data["tensors"]:
        if old in tensor["dims"]:
            dims = [new if dim == old else dim for dim in tensor["dims"]]
            _set_tensor_fields(data, tensor["name"], dims=dims, strides=_compute_packed_strides(dims))


@_register_change(weight=2)
def _change_one_size(data: Json, rng: random.Random) -> None:
    tensor = rng.choice(data["tensors"])
    dims = list(tensor["dims"])
    dims[rng.randrange(len(dims))] = rng.choice(_RANDOM_SIZES)
    _set_tensor_fields(data, tensor["name"], dims=dims, strides=_compute_packed_strides(dims))


@_register_change(weight=2)
def _change_rank(data: Json, rng: random.Random) -> None:
    cut, front = rng.random() < 0.5, rng.random() < 0.5
    for tensor in _choose_random_tensors(data, rng):
        dims = list(tensor["dims"])
        if cut:
            dims = (dims[1:] if front else dims[:-1]) or [1]
        else:
            ones = [1] * rng.choice((1, 1, 2, 8 - len(dims)))
            dims = ones + dims if front else dims + ones
        _set_tensor_fields(data, tensor["name"], dims=dims, strides=_compute_packed_strides(dims))


@_register_change(weight=2)
def _change_strides(data: Json, rng: random.Random) -> None:
    kind = rng.randrange(6)
    for tensor in _choose_random_tensors(data, rng):
        dims, strides = tensor["dims"], list(tensor["strides"])
        if kind == 0:
            strides = [0] * len(dims)
        elif kind == 1:
            rng.shuffle(strides)
        elif kind == 2:
            strides[rng.randrange(len(dims))] = rng.choice((0, 1, 3, 1 << 20, 1 << 40))
        elif kind == 3:
            strides = [1] * len(dims)
        elif kind == 4:
            strides = _compute_packed_strides(dims[::-1])[::-1]
        else:
            strides = [2 * stride for stride in strides]
        _set_tensor_fields(data, tensor["name"], strides=strides)


@_register_change(weight=3)
def _change_data_type(data: Json, rng: random.Random) -> None:
    usual = ("HALF", "BFLOAT16", "FLOAT", "DOUBLE", "FP8_E4M3", "INT8", "INT32", "INT64", "BOOLEAN")
    kind = rng.choice((*usual, *DataType.__members__))
    for tensor in _choose_random_tensors(data, rng):
        _set_tensor_fields(data, tensor["name"], data_type=kind)


@_register_change()
def _change_uids(data: Json, rng: random.Random) -> None:
    tensors = data["tensors"]
    new = {rng.choice(tensors)["uid"]: rng.choice(_RANDOM_UIDS)}
    if rng.random() < 0.5:
        new = {tensor["uid"]: (1 << 63) - 1 - index for index, tensor in enumerate(tensors)}
    for item in _find_all_dicts(data):
        for key in ("uid", "subgraph_input_uid", "subgraph_output_uid"):
            if key in item:
                item[key] = new.get(item[key], item[key])


@_register_change(weight=3)
def _change_tensor_flags(data: Json, rng: random.Random) -> None:
    values = rng.choice(
        (
            {"virtual": True, "by_value": None, "value": None, "scratch": None},
            {"virtual": None},
            {"by_value": True, "virtual": None, "scratch": None, "value": rng.choice((None, 1, 0.5, "nan", "inf"))},
            {"by_value": None, "value": None},
            {"scratch": True, "virtual": None, "by_value": None, "value": None},
            {"alignment": 1 << rng.randrange(14)},
            {"reordering": rng.choice(list(enums.TensorReordering.__members__))},
            {"vector_count": rng.choice((4, 32, 3)), "vector_dim": rng.randrange(4)},
        )
    )
    for tensor in _choose_random_tensors(data, rng):
        _set_tensor_fields(data, tensor["name"], **values)


@_register_change()
def _change_ragged_offset(data: Json, rng: random.Random) -> None:
    tensor, offset = rng.choice(data["tensors"]), rng.choice(data["tensors"])
    if rng.random() < 0.6:
        dims = [tensor["dims"][0] + rng.choice((0, 1, 1, 2)), *[1] * rng.choice((0, 2, len(tensor["dims"]) - 1))]
        name, uid = f"{tensor['name']}_starts", max(t["uid"] for t in data["tensors"]) + 1
        offset = {
            "name": name,
            "uid": uid,
            "dims": dims,
            "strides": _compute_packed_strides(dims),
            "data_type": "INT32",
        }
        for table in _iterate_tensor_lists(data):
            table.append(offset)
    _set_tensor_fields(data, tensor["name"], ragged_offset=offset["name"])


@_register_change(weight=2)
def _remove_field(data: Json, rng: random.Random) -> None:
    op = rng.choice(data["operations"])
    keys = [key for key in op if key not in ("operation", "name")]
    if keys:
        del op[rng.choice(keys)]


@_register_change(weight=2)
def _set_operation_field(data: Json, rng: random.Random) -> None:
    """Set a field of an operation to a random tensor or number."""
    op = rng.choice(data["operations"])
    if op["operation"] not in DescriptorType.__members__:
        return
    for facts in rng.sample(get_attributes(DescriptorType[op["operation"]]), 2):
        kind = facts.types[0].name
        if facts.element == (DescriptorType.TENSOR,):
            names = [tensor["name"] for tensor in data["tensors"]]
            ports = [{"tensor": rng.choice(names)} for _ in range(rng.choice((1, 2, 5)))]
            op[facts.field] = ports[0] if facts.max_count == 1 else ports
        elif kind in ("INT64", "INT32"):
            numbers = [rng.choice(_RANDOM_INTEGERS) for _ in range(rng.randrange(9))]
            op[facts.field] = rng.choice(_RANDOM_INTEGERS) if facts.max_count == 1 else numbers
        elif kind in ("FLOAT", "DOUBLE"):
            op[facts.field] = rng.choice(_RANDOM_REALS)
        elif kind == "BOOLEAN":
            op[facts.field] = rng.random() < 0.5


@_register_change(weight=3)
def _change_number_in_operation(data: Json, rng: random.Random) -> None:
    places: list[tuple[Any, Any]] = []
    for op in data["operations"]:
        for item in _find_all_dicts(op):
            if "uid" in item or "strides" in item:
                continue
            for key, value in item.items():
                if (
                    isinstance(value, (int, float))
                    or (isinstance(value, list) and value and type(value[0]) is int)
                    or (key == "value" and item.get("enum") in _ENUMS_BY_NAME)
                ):
                    places.append((item, key))
    if not places:
        return
    item, key = rng.choice(places)
    value = item[key]
    if isinstance(value, bool):
        item[key] = not value
    elif isinstance(value, str):
        item[key] = rng.choice(list(_ENUMS_BY_NAME[item["enum"]].__members__))
    elif isinstance(value, list):
        if rng.random() < 0.3:
            value.append(1) if rng.random() < 0.5 else value.pop()
        else:
            value[rng.randrange(len(value))] = rng.choice(_RANDOM_INTEGERS)
    else:
        item[key] = rng.choice(_RANDOM_INTEGERS if isinstance(value, int) else _RANDOM_REALS)


@_register_change(weight=2)
def _change_port(data: Json, rng: random.Random) -> None:
    ports = [
        item for op in data["operations"] for item in _find_all_dicts(op) if "tensor" in item and "name" not in item
    ]
    if ports:
        rng.choice(ports)["tensor"] = rng.choice(data["tensors"])["name"]


@_register_change()
def _remove_operation(data: Json, rng: random.Random) -> None:
    data["operations"].pop(rng.randrange(len(data["operations"])))


@_register_change()
def _append_pointwise_chain(data: Json, rng: random.Random) -> None:
    """Append a chain of pointwise operations to a tensor."""
    start = rng.choice(data["tensors"])
    uid, x = max(tensor["uid"] for tensor in data["tensors"]), start["name"]
    count = rng.choice((1, 1, 2, 3, 60))
    for number in range(count):
        name, last = f"{start['name']}_p{number}", number == count - 1
        uid = rng.randrange(1 << 62) if uid + 1 >= 1 << 63 else uid + 1
        made = {"name": name, "uid": uid, "dims": start["dims"], "strides": start["strides"], "virtual": not last}
        data["tensors"].append({**made, "data_type": rng.choice(("FLOAT", "HALF"))})
        mode = rng.choice(("RELU_FWD", "EXP", "IDENTITY", "MUL", "ADD", "BINARY_SELECT", "RELU_BWD", "GEN_INDEX"))
        ports = {"BINARY_SELECT": ("x", "b", "t", "y"), "RELU_BWD": ("dy", "x", "dx")}.get(mode, ("x", "y"))
        ports = ("x", "b", "y") if mode in ("MUL", "ADD") else ports
        op: Json = {"operation": "pointwise", "name": name, "mode": {"enum": "PointwiseMode", "value": mode}}
        op |= {port: {"tensor": x} for port in ports[:-1]} | {ports[-1]: {"tensor": name}}
        op |= {"axis": 0} if mode == "GEN_INDEX" else {}
        data["operations"].append(op)
        x = name


@_register_change()
def _change_names(data: Json, rng: random.Random) -> None:
    name = rng.choice(_RANDOM_NAMES)
    if rng.random() < 0.3:
        data["name"] = name
        return
    old = rng.choice(data["tensors"])["name"]
    for item in _find_all_dicts(data):
        if item.get("name") == old and "uid" in item:
            item["name"] = name
        if item.get("tensor") == old:
            item["tensor"] = name
        if item.get("ragged_offset") == old:
            item["ragged_offset"] = name
    for op in data["operations"]:
        if rng.random() < 0.2:
            op["name"] = rng.choice((name, data["operations"][0]["name"]))


@_register_change(weight=3)
def _add_operations_of_another_graph(data: Json, rng: random.Random) -> None:
    """Add the operations of another graph, often with a shared tensor."""
    other: Json = json.loads(_get_json_of_predefined_graph(rng.choice(list(OPERATION_GRAPHS))))
    first = max(tensor["uid"] for tensor in data["tensors"]) + 1
    names = {tensor["name"]: f"{tensor['name']}_2" for tensor in other["tensors"]}
    uids = {tensor["uid"]: first + index for index, tensor in enumerate(other["tensors"])}
    for item in _find_all_dicts(other):
        if "uid" in item:
            item["name"], item["uid"] = names[item["name"]], uids[item["uid"]]
        if item.get("ragged_offset") is not None:
            item["ragged_offset"] = names[item["ragged_offset"]]
        if "tensor" in item:
            item["tensor"] = names[item["tensor"]]
        for key in ("subgraph_input_uid", "subgraph_output_uid"):
            if key in item:
                item[key] = uids.get(item[key], item[key])
    data["tensors"] += other["tensors"]
    data["operations"] += other["operations"]
    if rng.random() < 0.7:  # one graph reads an output of the other
        ports = [item for op in other["operations"] for item in _find_all_dicts(op) if "tensor" in item]
        shared = rng.choice(ports)["tensor"]
        old = next(tensor for tensor in data["tensors"] if tensor["name"] == shared)
        same = [t["name"] for t in data["tensors"] if t["dims"] == old["dims"] and t is not old]
        for port in ports if same else ():
            if port["tensor"] == old["name"]:
                port["tensor"] = same[0]
