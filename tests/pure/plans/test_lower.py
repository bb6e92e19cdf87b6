"""Lowering a graph to descriptor values: exact values, one value per tensor, only requested attributes set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder
from cudnn_backend_py.generated.attributes import DescriptorValue
from cudnn_backend_py.generated.enums import (
    ConvolutionMode,
    PointwiseMode,
    ReduceTensorOp,
    TensorReordering,
)
from cudnn_backend_py.graph import Matmul, Operation, Pointwise, Reduction
from cudnn_backend_py.plans.lower import lower
from tests.support.graphs import make_convolution, make_relu, make_sdpa, make_tensor
from tests.support.varied_graphs import VARIED_GRAPHS

F32, F16 = DataType.FLOAT, DataType.HALF
P, D = PointwiseMode, DescriptorType


def make_value(kind: D, **fields: Any) -> DescriptorValue:
    return DescriptorValue(kind=kind, fields=fields)


def iterate_descriptor_values(value: Any) -> Iterator[DescriptorValue]:
    """Yield every nested descriptor value, once for each reference to it."""
    if isinstance(value, tuple):
        for item in value:
            yield from iterate_descriptor_values(item)
    elif isinstance(value, DescriptorValue):
        yield value
        for item in value.fields.values():
            yield from iterate_descriptor_values(item)


def test_a_small_graph_is_lowered_to_the_expected_values() -> None:
    g = GraphBuilder("small", io_type=F16)
    a, b = g.tensor("a", (1, 8, 64)), g.tensor("b", (1, 64, 16), strides=(1024, 1, 64), alignment=2)
    s = g.pointwise(P.MUL, g.matmul(a, b), g.scalar(0.5, rank=3))
    g.reduction(ReduceTensorOp.MAX, s, (1, 8, 1), virtual=False, data_type=F32, deterministic=True)

    def make_tensor_value(
        uid: int, dims: tuple[int, ...], strides: tuple[int, ...], kind: DataType, **more: Any
    ) -> DescriptorValue:
        more = {"byte_alignment": 16} | more
        return make_value(D.TENSOR, unique_id=uid, data_type=kind, dimensions=dims, strides=strides, **more)

    product = make_tensor_value(3, (1, 8, 16), (128, 16, 1), F32, is_virtual=True)
    scaled = make_tensor_value(5, (1, 8, 16), (128, 16, 1), F32, is_virtual=True)
    assert lower(g.graph()) == (
        make_value(
            D.OPERATION_MATMUL,
            matmul=make_value(D.MATMUL, comp_type=F32),
            a=make_tensor_value(1, (1, 8, 64), (512, 64, 1), F16),
            b=make_tensor_value(2, (1, 64, 16), (1024, 1, 64), F16, byte_alignment=2),
            c=product,
        ),
        make_value(
            D.OPERATION_POINTWISE,
            pointwise=make_value(D.POINTWISE, mode=P.MUL, math_prec=F32),
            x=product,
            b=make_tensor_value(4, (1, 1, 1), (1, 1, 1), F32, is_by_value=True),
            y=scaled,
        ),
        make_value(
            D.OPERATION_REDUCTION,
            reduction=make_value(D.REDUCTION, operator=ReduceTensorOp.MAX, comp_type=F32, is_deterministic=True),
            x=scaled,
            y=make_tensor_value(6, (1, 8, 1), (8, 1, 1), F32),
        ),
    )


def test_unset_attributes_stay_unset() -> None:
    value = lower(Graph((make_relu(make_tensor("x", 4), make_tensor("y", 4)),)))[0]
    assert value.kind is D.OPERATION_POINTWISE
    assert set(value.fields) == {"pointwise", "x", "y"}
    assert set(value.fields["pointwise"].fields) == {"mode", "math_prec"}
    assert set(value.fields["x"].fields) == {"unique_id", "data_type", "byte_alignment", "dimensions", "strides"}


def test_every_option_of_a_tensor_is_lowered() -> None:
    offset = make_tensor("offset", 3)
    x = make_tensor(
        "x", 2, 32, data_type=DataType.INT8, alignment=4, reordering=TensorReordering.INT8x32, ragged_offset=offset,
        vector_count=4, vector_dim=1, virtual=True,
    )  # fmt: skip
    (value,) = lower(Graph((make_relu(x, make_tensor("y", 2, 32)),), is_subgraph=True))
    assert value.kind is D.OPERATION_POINTWISE
    made = value.fields["x"]
    assert made is not None
    assert made == make_value(
        D.TENSOR,
        unique_id=x.uid,
        data_type=DataType.INT8,
        byte_alignment=4,
        dimensions=(2, 32),
        strides=(32, 1),
        is_virtual=True,
        reordering_mode=TensorReordering.INT8x32,
        ragged_offset=made.fields["ragged_offset"],
        vector_count=4,
        vectorized_dimension=1,
    )
    assert made.fields["ragged_offset"].fields["unique_id"] == offset.uid


def test_every_option_of_the_operations_is_lowered() -> None:
    x, y, b = make_tensor("x", 2, 4, 4), make_tensor("y", 2, 4, 4), make_tensor("b", 2, 4, 4)
    m, n, k = (make_tensor(name, 2, 1, 1, data_type=DataType.INT32) for name in "mnk")
    numbers = {
        "relu_lower_clip": 0.1,
        "relu_upper_clip": 6.0,
        "relu_lower_clip_slope": 0.2,
        "elu_alpha": 0.3,
        "softplus_beta": 0.4,
        "swish_beta": 0.5,
    }
    ops = (
        Matmul(name="m", a=x, b=b, c=y, m_override=m, n_override=n, k_override=k, padding_value=0.0, compute_type=F16),
        Pointwise(
            name="g", mode=P.GEN_INDEX, x=y, y=make_tensor("g", 2, 4, 4), axis=2, alpha1=2.0, alpha2=3.0, **numbers
        ),  # type: ignore[arg-type]
        Pointwise(name="bwd", mode=P.RELU_BWD, dy=b, x=x, dx=make_tensor("dx", 2, 4, 4)),
        Pointwise(name="sel", mode=P.BINARY_SELECT, x=x, b=b, t=make_tensor("t", 2, 4, 4), y=make_tensor("s", 2, 4, 4)),
    )
    product, index, backward, select = lower(Graph(ops))
    assert product.kind is D.OPERATION_MATMUL
    assert product.fields["matmul"] == make_value(D.MATMUL, comp_type=F16, padding_value=0.0)
    overrides = (
        product.fields["gemm_m_override"],
        product.fields["gemm_n_override"],
        product.fields["gemm_k_override"],
    )
    assert [made.fields["unique_id"] for made in overrides] == [m.uid, n.uid, k.uid]
    assert index.kind is D.OPERATION_POINTWISE
    assert index.fields["pointwise"] == make_value(D.POINTWISE, mode=P.GEN_INDEX, math_prec=F32, axis=2, **numbers)  # type: ignore[arg-type]
    assert (index.fields["alpha1"], index.fields["alpha2"]) == (2.0, 3.0)
    assert set(backward.fields) == {"pointwise", "x", "dy", "dx"}
    assert set(select.fields) == {"pointwise", "x", "b", "t", "y"}


@pytest.mark.parametrize("name", VARIED_GRAPHS)
def test_each_tensor_is_lowered_to_one_shared_value(name: str) -> None:
    graph = VARIED_GRAPHS[name]()
    seen: dict[int, DescriptorValue] = {}
    for value in iterate_descriptor_values(lower(graph)):
        if value.kind is D.TENSOR:
            assert seen.setdefault(value.fields["unique_id"], value) is value
    assert set(seen) == {item.uid for item in graph.tensors}
    assert all(seen[item.uid].fields["dimensions"] == item.dims for item in graph.tensors)


def test_operations_are_lowered_in_the_order_of_the_graph() -> None:
    x, v, y = make_tensor("x", 4), make_tensor("v", 4, virtual=True), make_tensor("y", 4)
    first, second = lower(Graph((make_relu(v, y), make_relu(x, v))))
    assert first.kind is D.OPERATION_POINTWISE
    assert second.kind is D.OPERATION_POINTWISE
    assert first.fields["y"] is second.fields["x"]
    assert first.fields["y"].fields["unique_id"] == v.uid


def test_only_matmuls_with_equal_parameters_share_their_descriptor() -> None:
    def make_matmul(name: str, **options: Any) -> Matmul:
        return Matmul(
            name=name, a=make_tensor("a", 4, 4), b=make_tensor("b", 4, 4), c=make_tensor(name, 4, 4), **options
        )

    values = lower(
        Graph(
            (
                make_matmul("c"),
                make_matmul("d"),
                make_matmul("e", compute_type=F16),
                make_matmul("f", padding_value=0.0),
            ),
            "g",
        )
    )
    parameters = [value.fields["matmul"] for value in values if value.kind is D.OPERATION_MATMUL]
    assert parameters[0] is parameters[1]
    assert parameters == [
        make_value(D.MATMUL, comp_type=F32),
        make_value(D.MATMUL, comp_type=F32),
        make_value(D.MATMUL, comp_type=F16),
        make_value(D.MATMUL, comp_type=F32, padding_value=0.0),
    ]


def test_parameters_of_a_generic_operation_are_lowered() -> None:
    (value,) = lower(Graph((make_convolution(),)))
    assert value.kind is D.OPERATION_CONVOLUTION_FORWARD
    assert value.fields["convolution"] == make_value(
        D.CONVOLUTION,
        comp_type=F32,
        conv_mode=ConvolutionMode.CROSS_CORRELATION,
        dilations=(1, 1),
        filter_strides=(1, 1),
        post_paddings=(0, 0),
        pre_paddings=(0, 0),
        spatial_dims=2,
    )
    assert (value.fields["alpha"], value.fields["beta"], value.fields["x"].fields["dimensions"]) == (
        1.0,
        0.0,
        (1, 8, 6, 6),
    )


def test_operations_with_several_input_tensors_are_lowered() -> None:
    a, b, c = make_tensor("a", 2, 4), make_tensor("b", 2, 4), make_tensor("c", 4, 4)
    op = Operation(DescriptorType.OPERATION_CONCAT, "join", {"axis": 0, "input": [a, b], "output": c})
    (value,) = lower(Graph((op,)))
    assert value.kind is D.OPERATION_CONCAT
    assert [item.fields["unique_id"] for item in value.fields["input"]] == [a.uid, b.uid]


def test_sub_graph_and_nested_operation_are_lowered() -> None:
    graph = Graph((make_sdpa(),))
    (value,) = lower(graph)
    assert value.kind is D.OPERATION_SDPA_FWD
    assert value.fields["subgraph"].kind is D.OPERATIONGRAPH
    divide, squash = value.fields["subgraph"].fields["ops"]
    assert divide.kind is D.OPERATION_POINTWISE
    assert squash.kind is D.OPERATION_POINTWISE
    assert divide.fields["y"] is squash.fields["x"]
    assert divide.fields["x"].fields["unique_id"] == value.fields["subgraph_input_uid"]
    assert squash.fields["y"].fields["unique_id"] == value.fields["subgraph_output_uid"]
    assert value.fields["softmax"].kind is D.OPERATION_SOFTMAX
    assert value.fields["softmax"].fields["stats"].fields["unique_id"] == graph.tensor("stats").uid
    assert set(value.fields["subgraph"].fields) == {"ops"}


def test_a_tensor_shared_with_a_sub_graph_is_lowered_to_one_value() -> None:
    score, shifted = (make_tensor(name, 1, 2, 128, 128, virtual=True) for name in ("score", "shifted"))
    bias = make_tensor("bias", 1, 2, 128, 128, virtual=True)
    add = Pointwise(name="add", mode=P.ADD, x=score, b=bias, y=shifted)
    inner = Graph((add,), is_subgraph=True)
    attention = make_sdpa(subgraph=inner, subgraph_output_uid=shifted.uid)
    make, fused = lower(Graph((attention, make_relu(make_tensor("source", 1, 2, 128, 128), bias))))
    assert make.kind is D.OPERATION_POINTWISE
    assert fused.kind is D.OPERATION_SDPA_FWD
    assert fused.fields["subgraph"].fields["ops"][0].kind is D.OPERATION_POINTWISE
    assert fused.fields["subgraph"].fields["ops"][0].fields["b"] is make.fields["y"]


def test_reduction_sets_determinism_only_if_requested() -> None:
    op = Reduction(name="r", operator=ReduceTensorOp.ADD, x=make_tensor("x", 4, 4), y=make_tensor("y", 4, 1))
    (value,) = lower(Graph((op,)))
    assert value.kind is D.OPERATION_REDUCTION
    assert value.fields["reduction"] == make_value(D.REDUCTION, operator=ReduceTensorOp.ADD, comp_type=F32)
    assert set(value.fields) == {"reduction", "x", "y"}
