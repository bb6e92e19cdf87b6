"""Graphs to JSON and back: lossless, strict JSON, and errors that name the malformed part. Loads no library."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, GraphError, load_graph, save_graph
from cudnn_backend_py.generated.enums import PointwiseMode, ReduceTensorOp, TensorReordering
from cudnn_backend_py.graph import Matmul, Operation, Pointwise, Reduction, Tensor, graph_from_json, graph_to_json
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.ir import list_pointwise_ports
from tests.support.graphs import make_convolution, make_relu, make_sdpa, make_tensor
from tests.support.varied_graphs import VARIED_GRAPHS

P = PointwiseMode


def convert_to_json_and_back(graph: Graph) -> Graph:
    return graph_from_json(json.loads(json.dumps(graph_to_json(graph), allow_nan=False)))


def make_pointwise_graph(mode: PointwiseMode) -> Graph:
    ports: dict[str, Any] = {port: make_tensor(port, 4, 8) for port in list_pointwise_ports(mode)}
    return Graph((Pointwise(name="p", mode=mode, axis=1 if mode is P.GEN_INDEX else None, **ports),))


def make_ragged_graph() -> Graph:
    offset = make_tensor("offset", 5, 1, data_type=DataType.INT64)
    x, y = (make_tensor(name, 4, 8, ragged_offset=offset) for name in "xy")
    return Graph((make_relu(x, y),), "ragged")


def make_graph_with_unusual_fields() -> Graph:
    x = make_tensor(
        "x", 2, 32, data_type=DataType.INT8, alignment=4, reordering=TensorReordering.INT8x32, vector_count=4,
        vector_dim=1, strides=(0, 1),
    )  # fmt: skip
    b = make_tensor("b", 1, 1, by_value=True, value=-3, data_type=DataType.INT32)
    y = make_tensor("y", 2, 32)
    numbers = {"relu_lower_clip": -math.inf, "relu_upper_clip": math.inf, "swish_beta": 0.1, "alpha1": 2.0, "alpha2": 0}
    op = Pointwise(name="p", mode=P.ADD, x=x, b=b, y=y, compute_type=DataType.INT32, **numbers)  # type: ignore[arg-type]
    return Graph((op,), "unusual")


GRAPHS: dict[str, Callable[[], Graph]] = {
    **VARIED_GRAPHS,
    **{f"mode {mode.name}": lambda mode=mode: make_pointwise_graph(mode) for mode in P},  # type: ignore[misc]
    "causal": lambda: sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64, causal=True, stats=True),
    "convolution": lambda: Graph((make_convolution(),), "conv"),
    "sdpa": lambda: Graph((make_sdpa(),), "flash"),
    "sub-graph": lambda: Graph(
        (make_relu(make_tensor("v", 4, virtual=True), make_tensor("w", 4, virtual=True)),), "s", True
    ),
    "ragged": make_ragged_graph,
    "unusual": make_graph_with_unusual_fields,
    "overrides": lambda: Graph(
        (
            Matmul(
                name="m",
                a=make_tensor("a", 2, 4, 8),
                b=make_tensor("b", 2, 8, 4),
                c=make_tensor("c", 2, 4, 4),
                k_override=make_tensor("k", 2, 1, 1, data_type=DataType.INT32),
                padding_value=-0.0,
            ),
        )
    ),
    "concat": lambda: Graph(
        (
            Operation(
                DescriptorType.OPERATION_CONCAT,
                "join",
                {
                    "axis": 0,
                    "input": (make_tensor("a", 2, 4), make_tensor("b", 2, 4)),
                    "output": make_tensor("c", 4, 4),
                },
            ),
        )
    ),
    "reductions": lambda: Graph(
        tuple(
            Reduction(name=f"r{op.value}", operator=op, x=make_tensor("x", 4, 8), y=make_tensor(f"y{op.value}", 4, 1))
            for op in ReduceTensorOp
        )
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_written_as_json_is_read_unchanged(name: str) -> None:
    graph = GRAPHS[name]()
    twin = convert_to_json_and_back(graph)
    assert twin == graph
    assert str(twin) == str(graph)
    assert twin.tensors == graph.tensors
    assert twin.is_subgraph == graph.is_subgraph


@pytest.mark.parametrize(("value", "written"), [(-math.inf, "-inf"), (math.inf, "inf"), (math.nan, "nan"), (1.5, 1.5)])
def test_infinities_and_nan_are_written_as_strings(value: float, written: object) -> None:
    x, y = make_tensor("x", 1, by_value=True, value=value), make_tensor("y", 1)
    graph = Graph((Pointwise(name="p", mode=P.RELU_FWD, x=x, y=y, relu_upper_clip=value),))
    data = graph_to_json(graph)
    assert data["tensors"][0]["value"] == written
    assert data["operations"][0]["relu_upper_clip"] == written
    twin = convert_to_json_and_back(graph)
    clip = twin.ops[0].parameters()["relu_upper_clip"]
    for number in (twin.tensor("x").value, clip):
        assert isinstance(number, float)
        assert number == value or (math.isnan(number) and math.isnan(value))
    assert graph_to_json(twin) == data


@pytest.mark.parametrize("word", ["HALF", "half", "float16", "f16"])
def test_data_types_are_read_in_every_spelling_that_builders_take(word: str) -> None:
    tensors = (make_tensor(name, 1, 16, 16) for name in "abc")
    data = graph_to_json(Graph((Matmul(name="product", **dict(zip("abc", tensors, strict=True))),), "product"))
    for tensor in data["tensors"]:
        tensor["data_type"] = word
    assert {tensor.data_type for tensor in graph_from_json(data).tensors} == {DataType.HALF}


def test_a_small_graph_is_written_as_the_expected_json() -> None:
    x, y = make_tensor("x", 4, 8, uid=1), make_tensor("y", 4, 8, uid=2, alignment=4)
    assert graph_to_json(Graph((make_relu(x, y),), "small")) == {
        "schema": "cudnn-backend-py/graph",
        "version": 1,
        "name": "small",
        "subgraph": False,
        "tensors": [
            {"name": "x", "uid": 1, "dims": [4, 8], "strides": [8, 1], "data_type": "FLOAT"},
            {"name": "y", "uid": 2, "dims": [4, 8], "strides": [8, 1], "data_type": "FLOAT", "alignment": 4},
        ],
        "operations": [
            {
                "operation": "pointwise",
                "name": "y",
                "mode": {"enum": "PointwiseMode", "value": "RELU_FWD"},
                "x": {"tensor": "x"},
                "y": {"tensor": "y"},
                "compute_type": {"enum": "DataType", "value": "FLOAT"},
            }
        ],
    }


def test_nested_operations_and_parameters_are_written_as_objects() -> None:
    data = graph_to_json(Graph((make_sdpa(), make_convolution())))
    attention, forward = data["operations"]
    assert attention["softmax"]["operation"]["operation"] == "OPERATION_SOFTMAX"
    assert attention["softmax"]["operation"]["stats"] == {"tensor": "stats"}
    assert attention["subgraph"]["graph"]["subgraph"] is True
    assert forward["convolution"]["parameters"] == "CONVOLUTION"
    assert forward["convolution"]["fields"]["dilations"] == [1, 1]


def test_order_of_tensors_in_the_file_does_not_matter() -> None:
    data = graph_to_json(make_ragged_graph())
    data["tensors"].reverse()
    assert graph_from_json(data) == make_ragged_graph()


def test_a_saved_graph_is_loaded_unchanged(tmp_path: Path) -> None:
    graph = GRAPHS["causal"]()
    path = tmp_path / "graph.json"
    save_graph(graph, path)
    assert load_graph(str(path)) == graph
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is no strict JSON"))


@pytest.mark.parametrize(("content", "what"), [(b"{", "JSON"), (b"", "JSON"), (b"\xff\xfe{}", "UTF-8")])
def test_a_file_without_valid_json_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(content)
    with pytest.raises(GraphError) as raised:
        load_graph(path)
    assert raised.value.code == "graph-json"
    assert raised.value.headline.startswith(f"{path} is not {what}: ")


# ------------------------------------------------------------------------------------- malformed

Change = Callable[[dict[str, Any]], object]
WHERE = "operation 'y'"
MALFORMED: list[tuple[str, str, Change]] = [
    (
        "graph-json",
        "this is not a graph JSON: schema is 'x', 'cudnn-backend-py/graph' is needed",
        lambda g: g.update(schema="x"),
    ),
    ("graph-json", "graph JSON has version 2, but this package reads version 1", lambda g: g.update(version=2)),
    ("graph-json", "graph JSON has version None, but this package reads version 1", lambda g: g.pop("version")),
    ("graph-json", "graph JSON: the graph lacks 'tensors'", lambda g: g.pop("tensors")),
    ("graph-json", "graph JSON: the graph lacks 'operations'", lambda g: g.pop("operations")),
    ("graph-json", "graph JSON: 'tensors' of the graph is {}, a list is needed", lambda g: g.update(tensors={})),
    ("graph-json", "graph JSON: 'name' of the graph is 3, text is needed", lambda g: g.update(name=3)),
    (
        "graph-json",
        "graph JSON: 'subgraph' of the graph is 'no', true or false is needed",
        lambda g: g.update(subgraph="no"),
    ),
    ("empty-graph", "graph 'ragged' has no operations", lambda g: g.update(operations=[])),
    ("graph-json", "graph JSON: tensor 1 is 'x', an object is needed", lambda g: g["tensors"].insert(1, "x")),
    ("graph-json", "graph JSON: tensor 0 lacks 'name'", lambda g: g["tensors"][0].pop("name")),
    ("graph-json", "graph JSON: tensor 'x' lacks 'uid'", lambda g: g["tensors"][0].pop("uid")),
    (
        "graph-json",
        f"graph JSON: tensor 'x' has the unknown field 'size'; its fields are {', '.join(Tensor.field_names)}",
        lambda g: g["tensors"][0].update(size=1),
    ),
    ("name-twice", "graph JSON: two tensors are called 'x'", lambda g: g["tensors"].append(g["tensors"][0])),
    (
        "graph-json",
        "graph JSON: data_type of tensor 'x' is 'FP17', which is not a DataType; did you mean HALF?",
        lambda g: g["tensors"][0].update(data_type="FP17"),
    ),
    (
        "graph-json",
        "graph JSON: data_type of tensor 'x' is 0, which is not a DataType",
        lambda g: g["tensors"][0].update(data_type=0),
    ),
    (
        "graph-json",
        "graph JSON: reordering of tensor 'x' is 'F8', which is not a TensorReordering",
        lambda g: g["tensors"][0].update(reordering="F8"),
    ),
    ("dims-type", "tensor 'x' has dims 4, a tuple of int is needed", lambda g: g["tensors"][0].update(dims=4)),
    ("dims-type", "tensor 'x' has dims of float, int is needed", lambda g: g["tensors"][0].update(dims=[4.0, 8])),
    (
        "wrong-field-type",
        "tensor 'x' has value 'four', float or int is needed",
        lambda g: g["tensors"][0].update(value="four", by_value=True),
    ),
    (
        "graph-json",
        "graph JSON: the ragged offset of 'x' is 'gone', which is not a tensor of the graph",
        lambda g: g["tensors"][0].update(ragged_offset="gone"),
    ),
    (
        "graph-json",
        "graph JSON: the ragged offset of 'x' is 'x', which closes a cycle of ragged offsets",
        lambda g: g["tensors"][0].update(ragged_offset="x"),
    ),
    (
        "graph-json",
        "graph JSON: the ragged offset of 'x' is ['y'], which is not a tensor of the graph",
        lambda g: g["tensors"][0].update(ragged_offset=["y"]),
    ),
    ("graph-json", "graph JSON: operation 0 is [], an object is needed", lambda g: g.update(operations=[[]])),
    ("graph-json", "graph JSON: operation 0 lacks 'operation'", lambda g: g["operations"][0].pop("operation")),
    ("graph-json", "graph JSON: operation 0 lacks 'name'", lambda g: g["operations"][0].pop("name")),
    (
        "graph-json",
        f"graph JSON: {WHERE} is of the kind 'matmull', which is no operation; did you mean matmul?",
        lambda g: g["operations"][0].update(operation="matmull"),
    ),
    (
        "graph-json",
        f"graph JSON: {WHERE} is of the kind 'convolution', which is no operation; "
        "did you mean OPERATION_CONVOLUTION_FORWARD?",
        lambda g: g["operations"][0].update(operation="convolution"),
    ),
    (
        "graph-json",
        f"graph JSON: {WHERE} has the unknown field 'w'; its fields are {', '.join(Pointwise.field_names)}",
        lambda g: g["operations"][0].update(w={"tensor": "x"}),
    ),
    ("graph-json", f"graph JSON: {WHERE} lacks 'mode'", lambda g: g["operations"][0].pop("mode")),
    (
        "graph-json",
        f"graph JSON: mode of {WHERE} is 'GELU', which is not a PointwiseMode; did you mean GELU_FWD?",
        lambda g: g["operations"][0]["mode"].update(value="GELU"),
    ),
    (
        "graph-json",
        f"graph JSON: mode of {WHERE} is None, which is not a PointwiseMode",
        lambda g: g["operations"][0]["mode"].pop("value"),
    ),
    (
        "graph-json",
        f"graph JSON: mode of {WHERE} is of the enum 'Mode', which is not known",
        lambda g: g["operations"][0]["mode"].update(enum="Mode"),
    ),
    (
        "wrong-field-type",
        "operation 'y' has mode <DataType.HALF: 2>, PointwiseMode is needed",
        lambda g: g["operations"][0].update(mode={"enum": "DataType", "value": "HALF"}),
    ),
    (
        "graph-json",
        f"graph JSON: x of {WHERE} is the tensor 'q', which the graph does not have",
        lambda g: g["operations"][0].update(x={"tensor": "q"}),
    ),
    (
        "graph-json",
        f"graph JSON: x of {WHERE} is the tensor ['x'], which the graph does not have",
        lambda g: g["operations"][0].update(x={"tensor": ["x"]}),
    ),
    (
        "graph-json",
        f"graph JSON: x of {WHERE} is {{'ten': 'x'}}; one of tensor, enum, graph, operation and parameters is needed",
        lambda g: g["operations"][0].update(x={"ten": "x"}),
    ),
    (
        "graph-json",
        f"graph JSON: x of {WHERE} is 'CONV', which is not a DescriptorType",
        lambda g: g["operations"][0].update(x={"parameters": "CONV"}),
    ),
    (
        "graph-json",
        f"graph JSON: x of {WHERE} lacks 'fields'",
        lambda g: g["operations"][0].update(x={"parameters": "CONVOLUTION"}),
    ),
    (
        "graph-json",
        f"graph JSON: x of {WHERE} is the text 'x', but a number, "
        '{"tensor": "x"} or {"enum": "PointwiseMode", "value": "ADD"} is needed',
        lambda g: g["operations"][0].update(x="x"),
    ),
]


@pytest.mark.parametrize(("code", "headline", "change"), MALFORMED, ids=[headline for _, headline, _ in MALFORMED])
def test_the_error_names_the_malformed_part(code: str, headline: str, change: Change) -> None:
    data = graph_to_json(make_ragged_graph())
    change(data)
    with pytest.raises(GraphError) as raised:
        graph_from_json(data)
    assert str(raised.value) == f"{code}: {headline}"


@pytest.mark.parametrize("data", [None, [], "graph", 3])
def test_json_that_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(GraphError, match=r"graph-json: this is not a graph JSON: it is .*, an object is needed"):
        graph_from_json(data)


def test_the_error_names_the_missing_schema_key() -> None:
    data = graph_to_json(make_ragged_graph())
    del data["schema"]
    with pytest.raises(GraphError, match="the key 'schema' is missing, 'cudnn-backend-py/graph' is needed"):
        graph_from_json(data)


def test_a_convolution_of_tensors_with_different_ranks_is_refused() -> None:
    g = GraphBuilder("conv")
    g.convolution(g.tensor("x", (1, 32, 8, 8)), g.tensor("w", (64, 32, 3, 3)), name="y", virtual=False)
    data = graph_to_json(g.graph())
    [x] = [tensor for tensor in data["tensors"] if tensor["name"] == "x"]
    x |= {"dims": [1, 32, 8], "strides": [256, 8, 1]}
    with pytest.raises(GraphError, match="operation-shape: w 'w' has 4 dims, x 'x' has 3: "):
        graph_from_json(data)


def test_the_error_names_the_malformed_part_of_a_sub_graph() -> None:
    data = graph_to_json(Graph((make_sdpa(),)))
    data["operations"][0]["subgraph"]["graph"]["operations"][0]["mode"]["value"] = "HALVE"
    with pytest.raises(GraphError, match="mode of operation 'half' is 'HALVE', which is not a PointwiseMode"):
        graph_from_json(data)


def iterate_containers_and_keys(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield container and key of every value in nested dicts and lists."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, key
        if isinstance(value, (dict, list)):
            yield from iterate_containers_and_keys(value)


def test_randomly_damaged_json_raises_graph_error_or_is_read() -> None:
    """Two thousand random changes raise only GraphError; every graph read can be written again."""
    chance = random.Random(11)
    whole = [graph_to_json(GRAPHS[name]()) for name in ("sdpa", "convolution", "ragged", "unusual", "concat")]
    junk: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "x", "inf", [], [[]], {}, {"tensor": "x"}, {"enum": 3}, ["x"]]
    refused = 0
    for _ in range(2000):
        data = copy.deepcopy(chance.choice(whole))
        holder, key = chance.choice(list(iterate_containers_and_keys(data)))
        if chance.random() < 0.3:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(junk))
        try:
            graph = graph_from_json(data)
        except GraphError:
            refused += 1
        else:
            assert convert_to_json_and_back(graph) == graph
    assert refused > 1000
