"""Graphs as values: order, equality, hashes, text, and the builder. Loads no library."""

from __future__ import annotations

import ast
import copy
import dataclasses
import math
import pickle
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py
from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, GraphError
from cudnn_backend_py.generated.attributes import ENUM_OF_TYPE, get_attributes
from cudnn_backend_py.generated.enums import (
    AttributeType,
    PointwiseMode,
    ReduceTensorOp,
    ReshapeMode,
    TensorReordering,
)
from cudnn_backend_py.generated.operations import OUTPUT_PORTS
from cudnn_backend_py.graph import Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor, packed_strides
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.data_types import ELEMENT_BITS, SHORT_TYPES
from cudnn_backend_py.graph.ir import list_pointwise_ports
from cudnn_backend_py.graph.strides import channels_last
from tests.support.graphs import CONVOLUTION_FIELDS, make_convolution, make_relu, make_sdpa, make_tensor
from tests.support.varied_graphs import VARIED_GRAPHS

PACKAGE = Path(cudnn_backend_py.__file__).parent
GOLDEN = Path(__file__).parent / "golden"
F32, F16, BOOL, I32 = DataType.FLOAT, DataType.HALF, DataType.BOOLEAN, DataType.INT32
D, P = DescriptorType, PointwiseMode
OPERATIONS = sorted(kind for kind in D if kind.name.startswith("OPERATION_"))


X, Y, Z = make_tensor("x", 4, 8), make_tensor("y", 4, 8), make_tensor("z", 4, 8)
V, W = make_tensor("v", 4, 8, virtual=True), make_tensor("w", 4, 8, virtual=True)
A, B, C = make_tensor("a", 2, 4, 8), make_tensor("b", 2, 8, 16), make_tensor("c", 2, 4, 16)


# ------------------------------------------------------------------------------------- tensors, ports


def test_every_data_type_has_a_size_and_a_short_name() -> None:
    assert set(ELEMENT_BITS) == set(SHORT_TYPES) == set(DataType)
    assert len(set(SHORT_TYPES.values())) == len(SHORT_TYPES)


def test_only_one_module_has_tables_of_data_types() -> None:
    """A new data type is one row: no other hand-written file has a dict with data types as keys."""
    types = {f"{word}.{name}" for word in ("DataType", "data_type", "_T") for name in DataType.__members__}
    found = []
    for path in sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "generated"):
        for node in ast.walk(ast.parse(path.read_text())):
            keys = {ast.unparse(key) for key in node.keys if key is not None} if isinstance(node, ast.Dict) else set()
            if len(keys & types) > 1:
                found.append(path.relative_to(PACKAGE).as_posix())
    assert set(found) == {"graph/data_types.py"}


@pytest.mark.parametrize(
    ("made", "elements", "size_bytes"),
    [
        (make_tensor("t", 2, 3), 6, 24),
        (make_tensor("t", 2, 3, strides=(10, 2)), 15, 60),
        (make_tensor("t", 2, 3, strides=(0, 1)), 3, 12),
        (make_tensor("t", 3, 3, data_type=BOOL), 9, 2),
        (make_tensor("t", 3, 3, data_type=DataType.FP4_E2M1), 9, 5),
        (make_tensor("t", 2, 3, data_type=DataType.INT8, vector_count=4, vector_dim=1), 6, 24),
        (make_tensor("t", 2, 3, data_type=DataType.INT8x32), 6, 192),
    ],
)
def test_memory_span_of_a_tensor_ends_after_its_last_element(made: Tensor, elements: int, size_bytes: int) -> None:
    assert (made.span_elements, made.span_bytes) == (elements, size_bytes)


@pytest.mark.parametrize(("dims", "strides"), [((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((1, 1), (1, 1)), ((), (1,))])
def test_packed_strides_are_row_major(dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert packed_strides(dims) == strides


def test_text_of_a_tensor_shows_only_unusual_fields() -> None:
    ragged = make_tensor("offsets", 3, uid=8)
    made = make_tensor(
        "t",
        2,
        32,
        uid=7,
        data_type=DataType.INT8,
        alignment=4,
        reordering=TensorReordering.INT8x32,
        ragged_offset=ragged,
        vector_count=4,
        vector_dim=1,
    )
    assert str(made) == (
        "t : i8[2,32] (uid 7, strides [32, 1], align 4, reordering INT8x32, ragged_offset offsets, vector 4 along 1)"
    )
    assert str(make_tensor("c", 1, uid=1, by_value=True, value=-math.inf)) == (
        "c : f32[1] (uid 1, strides [1], align 16, by_value, value -inf)"
    )


def test_lists_given_for_tensor_fields_become_tuples() -> None:
    made = make_tensor("t", dims=[2, 3], strides=[3, 1])
    assert (made.dims, made.strides) == ((2, 3), (3, 1))
    assert made == make_tensor("t", 2, 3)


UNARY = {"x", "y"}
PORTS = {
    frozenset({"x", "b", "y"}): (
        "ADD ADD_SQUARE SUB MUL DIV MIN MAX MOD FLOOR_MOD POW ATAN2 CMP_EQ CMP_NEQ CMP_GT CMP_GE CMP_LT CMP_LE "
        "LOGICAL_AND LOGICAL_OR"
    ),
    frozenset({"x", "b", "t", "y"}): "BINARY_SELECT",
    frozenset({"dy", "x", "dx"}): (
        "RELU_BWD TANH_BWD SIGMOID_BWD ELU_BWD GELU_BWD GELU_APPROX_TANH_BWD SOFTPLUS_BWD SWISH_BWD"
    ),
    frozenset({"x", "y"}): (
        "RELU_FWD TANH_FWD SIGMOID_FWD ELU_FWD GELU_FWD GELU_APPROX_TANH_FWD SOFTPLUS_FWD SWISH_FWD EXP LOG ABS CEIL "
        "COS FLOOR NEG RSQRT SIN SQRT TAN ERF IDENTITY RECIPROCAL LOGICAL_NOT GEN_INDEX"
    ),
}


def test_every_pointwise_mode_has_its_ports() -> None:
    listed = {P[name]: set(ports) for ports, names in PORTS.items() for name in names.split()}
    assert {mode: list_pointwise_ports(mode) for mode in P} == listed


@pytest.mark.parametrize("mode", P, ids=lambda mode: mode.name)
def test_every_pointwise_mode_can_be_built(mode: PointwiseMode) -> None:
    ports = list_pointwise_ports(mode)
    given = {port: make_tensor(port, 4, 8) for port in ports}
    made = Pointwise(name="p", mode=mode, axis=1 if mode is P.GEN_INDEX else None, **given)  # type: ignore[arg-type]
    assert dict(made.ports()) == given
    assert set(made.outputs()) == ports & {"y", "dx"}
    built = GraphBuilder().pointwise(
        mode,
        given["x"],
        given.get("b"),
        given.get("t"),
        dy=given.get("dy"),
        axis=made.axis,
        out=given.get("y") or given["dx"],
    )
    assert built in made.outputs().values()


def test_every_operation_has_output_ports_that_are_fields() -> None:
    assert sorted(OUTPUT_PORTS) == OPERATIONS
    for kind, ports in OUTPUT_PORTS.items():
        facts = {item.field: item for item in get_attributes(kind)}
        assert ports
        assert ports <= set(facts), kind.name
        assert all(facts[port].element == (D.TENSOR,) for port in ports), kind.name


def test_backward_activation_writes_dx_and_does_not_read_y() -> None:
    made = Pointwise(name="p", mode=P.RELU_BWD, dy=Y, x=X, dx=Z)
    assert (made.inputs(), made.outputs()) == ({"x": X, "dy": Y}, {"dx": Z})


# ------------------------------------------------------------------------------------- any operation


def make_sample_attribute_value(
    types: tuple[AttributeType, ...], element: tuple[DescriptorType, ...], name: str
) -> Any:
    """Return a valid value for an attribute with these types."""
    kind = types[0]
    if kind is AttributeType.BACKEND_DESCRIPTOR:
        if element == (D.TENSOR,):
            return make_tensor(name, 4, 8)
        if element == (D.OPERATIONGRAPH,):
            return Graph((make_relu(X, Y),), is_subgraph=True)
        return (
            Operation(element[0], name, list_required_fields(element[0]))
            if element[0] in OPERATIONS
            else Parameters(element[0], list_required_fields(element[0]))
        )
    plain: dict[AttributeType, Any] = {
        AttributeType.BOOLEAN: True,
        AttributeType.FLOAT: 0.5,
        AttributeType.DOUBLE: 0.5,
        AttributeType.FRACTION: (1, 2),
    }
    return next(iter(ENUM_OF_TYPE[kind])) if kind in ENUM_OF_TYPE else plain.get(kind, 1)


def list_required_fields(kind: DescriptorType) -> dict[str, Any]:
    made = {}
    for facts in get_attributes(kind):
        if facts.required and facts.role != "output":
            value = make_sample_attribute_value(facts.types, facts.element, f"{facts.field}_of_{kind.name}")
            made[facts.field] = value if facts.max_count == 1 else (value,)
    return made


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.name)
def test_every_operation_can_be_created_from_its_required_attributes(kind: DescriptorType) -> None:
    made = Operation(kind, "op", list_required_fields(kind))
    assert list(made.fields) == [item.field for item in get_attributes(kind) if item.field in made.fields]
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(pickle.loads(pickle.dumps(made))) == hash(made)


def test_operation_fields_do_not_change_with_the_given_dict() -> None:
    paddings = [0, 0]
    given = CONVOLUTION_FIELDS | {"pre_paddings": paddings}
    made = Parameters(D.CONVOLUTION, given)
    before = hash(made)
    given["spatial_dims"] = 3
    paddings[0] = 9
    assert made == Parameters(D.CONVOLUTION, CONVOLUTION_FIELDS)
    assert hash(made) == before
    with pytest.raises(TypeError):
        made.fields["spatial_dims"] = 3  # type: ignore[index]
    fields = {"x": X, "y": Y, "mode": ReshapeMode.LOGICAL}
    op = Operation(D.OPERATION_RESHAPE, "r", fields)
    fields["y"] = Z
    assert op.fields["y"] is Y


def test_operation_fields_are_ordered_and_omit_none() -> None:
    forward = Operation(D.OPERATION_RESHAPE, "r", {"x": X, "y": Y, "mode": None})
    backward = Operation(D.OPERATION_RESHAPE, "r", {"y": Y, "x": X})
    assert forward == backward
    assert hash(forward) == hash(backward)
    assert str(forward) == str(backward) == "y = reshape(x) : f32[4,8]"
    assert list(forward.fields) == ["x", "y"]


@pytest.mark.parametrize(
    "changed",
    [
        {"alpha": 2.0},
        {"y": make_tensor("other", 1, 16, 4, 4)},
        {"convolution": Parameters(D.CONVOLUTION, CONVOLUTION_FIELDS | {"spatial_dims": 3})},
    ],
)
def test_operations_with_a_changed_field_are_not_equal(changed: dict[str, Any]) -> None:
    assert make_convolution(**changed) != make_convolution()
    assert hash(make_convolution(**changed)) != hash(make_convolution())
    replaced = dataclasses.replace(make_convolution(), fields={**make_convolution().fields, **changed})
    assert replaced == make_convolution(**changed)


def test_a_set_keeps_one_of_equal_tensors_operations_and_graphs() -> None:
    assert len({make_convolution(), make_convolution(), make_convolution(alpha=2.0)}) == 2
    assert len({make_relu(X, Y), make_relu(X, Y), make_relu(X, Z)}) == 2
    assert len({X, make_tensor("x", 4, 8), Y}) == 2
    assert len({Graph((make_relu(X, Y),)), Graph((make_relu(X, Y),)), Graph((make_relu(X, Y),), "other")}) == 2


@pytest.mark.parametrize("name", VARIED_GRAPHS)
def test_copied_and_pickled_graphs_are_equal_and_have_equal_hashes(name: str) -> None:
    graph = VARIED_GRAPHS[name]()
    for twin in (
        VARIED_GRAPHS[name](),
        copy.deepcopy(graph),
        pickle.loads(pickle.dumps(graph)),
        dataclasses.replace(graph),
    ):
        assert twin == graph
        assert hash(twin) == hash(graph)
        assert str(twin) == str(graph)
    assert dataclasses.replace(graph, name="renamed") != graph


def test_tensors_are_immutable_and_compared_by_value() -> None:
    wider = dataclasses.replace(X, dims=(4, 16), strides=(16, 1))
    assert (wider.dims, wider.uid, wider == X) == ((4, 16), X.uid, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        X.uid = 2  # type: ignore[misc]


# ------------------------------------------------------------------------------------- operation in operation


def test_ports_of_a_nested_operation_are_listed() -> None:
    op = make_sdpa()
    assert list(dict(op.ports())) == ["q", "k", "v", "o", "softmax.x", "softmax.y", "softmax.stats"]
    assert list(op.outputs()) == ["o", "softmax.y", "softmax.stats"]
    assert [graph.name for graph in op.subgraphs()] == ["score_mod"]


def test_a_graph_lists_tensors_of_nested_operations_and_sub_graphs() -> None:
    graph = Graph((make_sdpa(),), "flash")
    assert [item.name for item in graph.tensors] == (
        ["q", "k", "v", "o", "in", "out", "stats", "score", "cap", "half", "squash"]
    )
    assert [item.name for item in graph.outputs] == ["o", "stats"]
    assert [item.name for item in graph.variant_pack_tensors] == ["q", "k", "v", "o", "stats", "cap"]


def test_operation_text_contains_its_sub_graph() -> None:
    assert str(Graph((make_sdpa(),)).ops[0]) == (
        f"o, stats = sdpa_fwd(q=q, k=k, v=v, subgraph={{half = div(score, cap) : f32[1,2,128,128]; "
        f"squash = tanh_fwd(half) : f32[1,2,128,128]}}, subgraph_input_uid={make_tensor('score', 1).uid}, "
        f"subgraph_output_uid={make_tensor('squash', 1).uid}, "
        "softmax={out, stats = softmax(in) : f32[1,2,128,128], f32[1,2,128,1]}) : f16[1,2,128,64], f32[1,2,128,1]"
    )


def test_operation_text_contains_its_parameters() -> None:
    assert str(make_convolution()) == (
        "result = convolution_forward(w=filter, image, alpha=1.0, beta=0.0, convolution=convolution(comp_type=FLOAT, "
        "conv_mode=CROSS_CORRELATION, dilations=[1, 1], filter_strides=[1, 1], post_paddings=[0, 0], "
        "pre_paddings=[0, 0], spatial_dims=2)) : f32[1,16,4,4]"
    )


def test_an_operation_is_sorted_after_the_producer_of_a_sub_graph_input() -> None:
    """A sub-graph may read a tensor of its parent graph, which lists that tensor once."""
    bias = make_tensor("bias", 1, 2, 128, 128, virtual=True)
    score, shifted = (make_tensor(name, 1, 2, 128, 128, virtual=True) for name in ("score", "shifted"))
    inner = Graph((Pointwise(name="add", mode=P.ADD, x=score, b=bias, y=shifted),), is_subgraph=True)
    attention = make_sdpa(subgraph=inner, softmax=None, subgraph_output_uid=shifted.uid)
    source = make_tensor("source", 1, 2, 128, 128)
    graph = Graph((attention, make_relu(source, bias, "make bias")))
    assert [op.name for op in graph.ops] == ["make bias", "sdpa"]
    assert [item.name for item in graph.tensors].count("bias") == 1


def test_only_a_sub_graph_may_read_unwritten_tensors() -> None:
    assert Graph((make_relu(V, W),), is_subgraph=True).ops[0].inputs() == {"x": V}


# ------------------------------------------------------------------------------------- order


def test_a_valid_order_of_operations_is_kept() -> None:
    three = (make_relu(X, Y), make_relu(X, Z), make_relu(X, make_tensor("q", 4, 8)))
    assert Graph(three).ops == three
    assert Graph(three[::-1]).ops == three[::-1]


def test_operations_are_sorted_stably_from_any_order() -> None:
    """The next operation is always the first one in the given order with available inputs."""
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)
    chance = random.Random(7)
    for _ in range(30):
        given = chance.sample(graph.ops, len(graph.ops))
        waiting, made, expected = list(given), set[int](), list[Op]()
        written = {item.uid for op in given for item in op.outputs().values()}
        while waiting:
            ready = next(
                op for op in waiting if all(t.uid in made or t.uid not in written for t in op.inputs().values())
            )
            waiting.remove(ready)
            expected.append(ready)
            made |= {item.uid for item in ready.outputs().values()}
        assert Graph(tuple(given), graph.name).ops == tuple(expected)


def test_a_long_reversed_chain_is_sorted_fast() -> None:
    tensors = [make_tensor(f"t{index}", 4, uid=index, virtual=0 < index < 2000) for index in range(2001)]
    ops = [make_relu(x, y) for x, y in pairwise(tensors)]
    began = time.process_time()
    graph = Graph(tuple(reversed(ops)))
    assert time.process_time() - began < 2
    assert graph.ops == tuple(ops)
    assert len(graph.tensors) == 2001


def test_tensors_and_outputs_of_a_graph_are_listed() -> None:
    offset = make_tensor("r", 5)
    ragged = make_tensor("ragged", 4, 8, ragged_offset=offset)
    graph = Graph((make_relu(ragged, V), make_relu(V, Y)))
    assert graph.tensors == (ragged, offset, V, Y)
    assert graph.variant_pack_tensors == (ragged, offset, Y)
    assert graph.outputs == (Y,)
    assert graph.tensor("r") is graph.tensor(offset.uid) is offset


# ------------------------------------------------------------------------------------- text


def test_text_of_causal_attention_equals_the_golden_file() -> None:
    graph = sdpa_forward(batch=2, heads=4, kv_heads=2, seq_q=128, seq_kv=256, head_dim=64, causal=True, stats=True)
    assert f"{graph}\n" == (GOLDEN / "sdpa_forward_causal.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (
            Matmul(name="m", a=A, b=B, c=C, compute_type=F16, padding_value=0.0),
            "c = matmul(a, b, compute_type=HALF, padding_value=0.0) : f32[2,4,16]",
        ),
        (Matmul(name="m", a=A, b=B, c=C, k_override=X), "c = matmul(a, b, k_override=x) : f32[2,4,16]"),
        (
            Pointwise(name="p", mode=P.RELU_BWD, dy=Y, x=X, dx=Z, relu_lower_clip=0.5),
            "z = relu_bwd(x, dy=y, relu_lower_clip=0.5) : f32[4,8]",
        ),
        (
            Reduction(name="r", operator=ReduceTensorOp.NORM1, x=X, y=make_tensor("y", 4, 1), deterministic=True),
            "y = reduce_norm1(x, deterministic=True) : f32[4,1]",
        ),
    ],
)
def test_operation_text_equals_the_expected_text(op: Op, text: str) -> None:
    assert str(op) == text


# ------------------------------------------------------------------------------------- builder


def test_builder_assigns_uids_and_names_in_order() -> None:
    def build_two_products() -> Graph:
        g = GraphBuilder("two", io_type=F16)
        q, k = g.tensor("q", (1, 8, 64)), g.tensor("k", (1, 64, 16))
        s = g.pointwise(P.MUL, g.matmul(q, k), g.scalar(0.5, rank=3))
        s = g.pointwise(P.MUL, s, g.scalar(2.0, rank=3))
        g.reduction(ReduceTensorOp.MAX, s, (1, 8, 1), virtual=False)
        return g.graph()

    graph = build_two_products()
    assert [(item.name, item.uid) for item in graph.tensors] == [
        ("q", 1),
        ("k", 2),
        ("mm", 3),
        ("c", 4),
        ("mul", 5),
        ("c1", 6),
        ("mul1", 7),
        ("reduce_max", 8),
    ]
    assert [op.name for op in graph.ops] == ["mm", "mul", "mul1", "reduce_max"]
    assert str(build_two_products()) == str(graph)


def test_builder_keeps_explicit_uids_and_does_not_reuse_them() -> None:
    g = GraphBuilder(first_uid=10)
    given = [g.tensor("a", (4,)), g.tensor("b", (4,), uid=11), g.tensor("c", (4,)), g.tensor("d", (4,), uid=3)]
    assert [item.uid for item in given] == [10, 11, 12, 3]
    with pytest.raises(GraphError, match="uid-twice: uid 12 for tensor 'e' belongs to another tensor already"):
        g.tensor("e", (4,), uid=12)
    assert g.tensor("e", (4,)).uid == 13


def test_builder_refuses_a_duplicate_tensor_name() -> None:
    g = GraphBuilder("g")
    x = g.tensor("x", (4,))
    calls: list[Callable[[], object]] = [
        lambda: g.tensor("x", (4,)),
        lambda: g.scalar(1.0, name="x"),
        lambda: g.pointwise(P.EXP, x, name="x"),
    ]
    for again in calls:
        with pytest.raises(GraphError, match="name-twice: graph 'g' already has a tensor 'x'"):
            again()
    assert g.pointwise(P.EXP, x).uid == 2


def test_builder_refuses_output_options_if_out_is_given() -> None:
    g = GraphBuilder()
    a, out = g.tensor("a", (4, 4)), g.tensor("out", (4, 4))
    with pytest.raises(GraphError, match="options-with-out: out= is given, so name, virtual has no effect"):
        g.matmul(a, a, out=out, name="c", virtual=False)
    assert g.matmul(a, a, out=out) is out
    assert g.ops[0].name == "out"


def test_builder_removes_the_result_of_a_refused_operation() -> None:
    g = GraphBuilder()
    a, b = g.tensor("a", (1, 8, 64)), g.tensor("b", (1, 32, 16))
    with pytest.raises(GraphError, match="matmul-inner-dim-mismatch"):
        g.matmul(a, b, name="c")
    c = g.matmul(a, g.tensor("d", (1, 64, 16)), name="c")
    assert (c.uid, len(g.ops)) == (4, 1)


def test_builder_methods_take_every_enumerator_by_its_name() -> None:
    named, given = GraphBuilder("g"), GraphBuilder("g")
    for g, mode, order, operator, kind in (
        (named, "relu_fwd", "F8_128x4", "CUDNN_REDUCE_TENSOR_ADD", "torch.float32"),
        (given, P.RELU_FWD, TensorReordering.F8_128x4, ReduceTensorOp.ADD, DataType.FLOAT),
    ):
        x: Any = g.tensor("x", (1, 4, 8), reordering=order)  # type: ignore[arg-type]
        y = g.pointwise(mode, x, compute_type=kind)  # type: ignore[arg-type]
        g.reduction(operator, x=y, dims=(1, 4, 1), virtual=False)  # type: ignore[arg-type]
    assert named.graph() == given.graph()


@pytest.mark.parametrize(
    ("call", "headline"),
    [
        (lambda g, x: g.pointwise("ADDS", x, x), "mode= is 'ADDS', PointwiseMode is needed; did you mean ADD?"),
        (lambda g, x: g.tensor("t", (1,), reordering="F8"), "reordering= is 'F8', TensorReordering is needed"),
        (lambda g, x: g.pointwise(0, x, x), "mode= is 0, PointwiseMode is needed"),
        (lambda g, x: g.pointwise(P.ADD, x, 1.0), "b= is 1.0, Tensor is needed"),
        (lambda g, x: g.matmul(x, "x"), "b= is 'x', Tensor is needed"),
        (lambda g, x: g.reduction("SUM", x, (4, 1)), "operator= is 'SUM', ReduceTensorOp is needed"),
        (lambda g, x: g.matmul(x, x, out="y"), "out= is 'y', Tensor is needed"),
        (
            lambda g, x: g.matmul(x, x, compute_type="FLOATS"),
            "compute_type= is 'FLOATS', DataType is needed; did you mean FLOAT?",
        ),
    ],
)
def test_builder_refuses_wrong_types(call: Callable[[GraphBuilder, Tensor], object], headline: str) -> None:
    g = GraphBuilder()
    x = g.tensor("x", (4, 4))
    with pytest.raises(GraphError) as raised:
        call(g, x)
    assert str(raised.value) == f"wrong-field-type: {headline}"


def test_builder_sets_data_types() -> None:
    """DataType.FLOAT is 0 and is not treated as missing."""
    g = GraphBuilder(io_type=F16, intermediate_type=DataType.BFLOAT16, compute_type=DataType.DOUBLE)
    x = g.tensor("x", (4, 4))
    assert g.tensor("y", (4, 4), F32).data_type is F32
    assert g.scalar(1).data_type is I32
    assert g.scalar(1, data_type=F32).data_type is F32
    assert g.scalar(1.5).data_type is F32
    assert g.matmul(x, x).data_type is DataType.BFLOAT16
    assert g.matmul(x, x, virtual=False).data_type is F16
    assert g.pointwise(P.GEN_INDEX, x, axis=0).data_type is I32
    assert g.pointwise(P.CMP_LT, x, x).data_type is BOOL
    g.pointwise(P.EXP, x, compute_type=F32)
    g.reduction(ReduceTensorOp.ADD, x, (4, 1), compute_type=F32)
    g.matmul(x, x, compute_type=F32)
    types = [getattr(op, "compute_type", None) for op in g.ops]
    double = DataType.DOUBLE
    assert types == [double, double, double, BOOL, F32, F32, F32]


def test_builder_refuses_a_matmul_of_different_ranks() -> None:
    g = GraphBuilder()
    with pytest.raises(GraphError, match="matmul-rank-mismatch"):
        g.matmul(g.tensor("a", (4,)), g.tensor("b", (4, 4)))
    with pytest.raises(GraphError, match="matmul-rank-mismatch"):
        g.matmul(g.tensor("c", (2, 4, 4)), g.tensor("d", (4, 4)))


def test_builder_convolution_keeps_the_layout_of_its_image() -> None:
    g = GraphBuilder(intermediate_type=F32)
    image, weights = (2, 8, 9, 10), g.tensor("w", (16, 4, 3, 2))
    plain, last = g.tensor("plain", image), g.tensor("last", image, strides=channels_last(image))
    options: dict[str, Any] = {"padding": 1, "post_padding": (0, 2), "stride": 2, "dilation": (2, 1)}
    y, z = (g.convolution(x, weights, **options, virtual=False) for x in (plain, last))
    assert (y.dims, y.strides) == ((2, 16, 3, 6), packed_strides((2, 16, 3, 6)))
    assert (z.dims, z.strides) == (y.dims, channels_last(y.dims))
    op = g.ops[-1]
    assert isinstance(op, Operation)
    assert (op.name, op.inputs()["x"], op.fields["convolution"].fields["pre_paddings"]) == (z.name, last, (1, 1))
    assert g.convolution(plain, weights, **options, out=y) is y
    with pytest.raises(GraphError, match=r"'conv' has dims \[2, 16, 3, 6\], \[2, 16, 7, 9\] is needed"):
        g.convolution(plain, weights, out=y)


@pytest.mark.parametrize("wrong", [{"padding": (1,)}, {"stride": 0}, {"dilation": (1, 1, 1)}], ids=str)
def test_builder_refuses_convolution_options_with_wrong_lengths(wrong: dict[str, Any]) -> None:
    g = GraphBuilder()
    x, w = g.tensor("x", (2, 8, 9, 10)), g.tensor("w", (16, 8, 3, 3))
    with pytest.raises(GraphError, match="2 spatial dims") as caught:
        g.convolution(x, w, **wrong)
    assert caught.value.code == "wrong-argument"
    with pytest.raises(GraphError, match="dim-not-positive"):
        g.convolution(x, w, dilation=5)
    assert not g.ops


def test_builder_adds_an_operation_by_descriptor_type() -> None:
    g = GraphBuilder()
    x, y = g.tensor("x", (4, 8)), g.tensor("y", (8, 4))
    first = g.operation(D.OPERATION_RESHAPE, x=x, y=y)
    assert (first.name, first.fields["x"]) == ("reshape0", x)
    assert g.graph().ops == (first,)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bf16", DataType.BFLOAT16),
        ("fp16", DataType.HALF),
        ("half", DataType.HALF),
        ("float32", DataType.FLOAT),
        ("e4m3", DataType.FP8_E4M3),
        ("torch.float8_e5m2", DataType.FP8_E5M2),
        ("int64", DataType.INT64),
        ("BOOLEAN", DataType.BOOLEAN),
    ],
)
def test_builder_accepts_data_types_by_name(name: str, kind: DataType) -> None:
    g = GraphBuilder("g", io_type=name)
    assert g.tensor("x", (2, 3)).data_type is kind
    assert g.tensor("y", (2, 3), data_type=name).data_type is kind
