"""The JSON schema of graphs and docs/graph-json.md, compared with the JSON that the package writes and reads."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode, attention, generated
from cudnn_backend_py.generated.enums import ConvolutionMode, ReduceTensorOp, TensorReordering
from cudnn_backend_py.graph import Operation, Parameters, graph_from_json, graph_to_json
from cudnn_backend_py.graph.ir import Matmul, Pointwise, Reduction, Tensor
from cudnn_backend_py.graph.serial import SCHEMA, SCHEMA_VERSION

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA_FILE = json.loads((Path(generated.__file__).parent / "graph.schema.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "graph-json.md").read_text(encoding="utf-8")
VALIDATOR = Draft202012Validator(SCHEMA_FILE)


def make_two_matmuls() -> Graph:
    g = GraphBuilder("make_two_matmuls")
    q, k, v = (g.tensor(name, (1, 16, 16), alignment=2) for name in "qkv")
    g.matmul(g.matmul(q, k, reordering=TensorReordering.F16x16, data_type=DataType.HALF), v, virtual=False)
    return g.graph()


def make_ragged_graph() -> Graph:
    g = GraphBuilder("ragged")
    offset = g.tensor("offset", (3, 1, 1), DataType.INT64)
    x = g.tensor("x", (2, 8, 64), ragged_offset=offset)
    g.reduction(ReduceTensorOp.MAX, x, (2, 8, 1), virtual=False, deterministic=True)
    return g.graph()


def make_matmul_with_overrides() -> Graph:
    g = GraphBuilder("overrides")
    m = g.tensor("m", (2, 1, 1), DataType.INT32)
    g.matmul(g.tensor("a", (2, 8, 8)), g.tensor("b", (2, 8, 8)), m_override=m, virtual=False)
    return g.graph()


def make_clipped_relu() -> Graph:
    g = GraphBuilder("make_clipped_relu")
    clip = {"relu_lower_clip": 0.0, "relu_upper_clip": 6.0}
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, 8, 8)), parameters=clip, virtual=False)
    return g.graph()


def make_convolution() -> Graph:
    g = GraphBuilder("convolution")
    parameters = Parameters(
        DescriptorType.CONVOLUTION,
        {
            "comp_type": DataType.FLOAT,
            "conv_mode": ConvolutionMode.CROSS_CORRELATION,
            "dilations": (1, 1),
            "filter_strides": (1, 1),
            "post_paddings": (1, 1),
            "pre_paddings": (1, 1),
            "spatial_dims": 2,
        },
    )
    x, w, y = g.tensor("x", (1, 8, 16, 16)), g.tensor("w", (8, 8, 3, 3)), g.tensor("y", (1, 8, 16, 16))
    kind = DescriptorType.OPERATION_CONVOLUTION_FORWARD
    g.operation(kind, alpha=1.0, beta=0.0, convolution=parameters, x=x, w=w, y=y)
    return g.graph()


def make_attention_with_subgraph() -> Graph:
    inner = GraphBuilder("inner", first_uid=100)
    scores = inner.tensor("scores", (1, 2, 8, 8), DataType.FLOAT, virtual=True)
    made = inner.pointwise(PointwiseMode.RELU_FWD, scores, name="made")
    g = GraphBuilder("make_attention_with_subgraph")
    q, k, v, o = (g.tensor(name, (1, 2, 8, 16)) for name in "qkvo")
    g.operation(
        DescriptorType.OPERATION_SDPA_FWD,
        q=q,
        k=k,
        v=v,
        o=o,
        subgraph=Graph(tuple(inner.ops), "inner", is_subgraph=True),
        subgraph_input_uid=scores.uid,
        subgraph_output_uid=made.uid,
    )
    return g.graph()


def make_attention_with_softmax() -> Graph:
    g = GraphBuilder("make_attention_with_softmax")
    q, k, v, o = (g.tensor(name, (1, 2, 8, 16)) for name in "qkvo")
    x, y = (g.tensor(name, (1, 2, 8, 8), DataType.FLOAT, virtual=True) for name in "xy")
    softmax = Operation(DescriptorType.OPERATION_SOFTMAX, "softmax", {"x": x, "y": y})
    g.operation(DescriptorType.OPERATION_SDPA_FWD, q=q, k=k, v=v, o=o, softmax=softmax)
    return g.graph()


def make_causal_attention() -> Graph:
    return attention.sdpa_forward(batch=2, heads=4, kv_heads=2, seq_q=32, head_dim=16, causal=True, stats=True)


GRAPHS = [
    make_two_matmuls,
    make_ragged_graph,
    make_matmul_with_overrides,
    make_clipped_relu,
    make_convolution,
    make_attention_with_subgraph,
    make_attention_with_softmax,
    make_causal_attention,
]


def make_graph_json_data(graph: Graph) -> Any:
    return json.loads(json.dumps(graph_to_json(graph), allow_nan=False))


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_written_graph_is_valid_and_read_unchanged(make: Callable[[], Graph]) -> None:
    graph = make()
    data = make_graph_json_data(graph)
    VALIDATOR.validate(data)
    assert graph_from_json(data) == graph


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.update(version=2),
        lambda data: data.update(schema="other"),
        lambda data: data.update(operations=[]),
        lambda data: data.pop("tensors"),
        lambda data: data["tensors"][0].update(dims=[0]),
        lambda data: data["tensors"][0].update(data_type="FLOAT17"),
        lambda data: data["tensors"][0].pop("uid"),
        lambda data: data["tensors"][0].update(color="red"),
        lambda data: data["operations"][0].pop("a"),
        lambda data: data["operations"][0].update(operation="matmull"),
        lambda data: data["operations"][0].update(a="q"),
    ],
)
def test_schema_refuses_invalid_graphs(spoil: Callable[[Any], None]) -> None:
    data = make_graph_json_data(make_two_matmuls())
    spoil(data)
    with pytest.raises(ValidationError):
        VALIDATOR.validate(data)


def test_schema_file_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA_FILE)


def test_schema_has_the_same_field_and_enum_names_as_the_code() -> None:
    parts = SCHEMA_FILE["$defs"]
    assert parts["graph"]["properties"]["schema"]["const"] == SCHEMA
    assert parts["graph"]["properties"]["version"]["const"] == SCHEMA_VERSION
    tensor = parts["tensor"]["properties"]
    assert tensor["data_type"]["enum"] == [kind.name for kind in DataType]
    assert tensor["reordering"]["enum"] == [kind.name for kind in TensorReordering]
    for kind, part in ((Tensor, "tensor"), (Matmul, "matmul"), (Pointwise, "pointwise"), (Reduction, "reduction")):
        properties = set(parts[part]["properties"]) - {"operation"}
        assert properties == {item.name for item in fields(kind)}, part


def test_schema_has_the_tensor_defaults_of_the_code() -> None:
    plain = {item.name: item.default for item in fields(Tensor) if item.default not in (MISSING, None)}
    known = {name: getattr(default, "name", default) for name, default in plain.items()}
    properties = SCHEMA_FILE["$defs"]["tensor"]["properties"]
    assert {name: part["default"] for name, part in properties.items() if "default" in part} == known


def test_documented_example_prints_the_documented_json() -> None:
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/graph-json.md", "exec"), {})
    assert json.loads(example) == json.loads(printed.getvalue())
    VALIDATOR.validate(json.loads(example))
