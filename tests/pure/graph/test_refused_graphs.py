"""Error messages for invalid tensors, operations and graphs. Loads no library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphError
from cudnn_backend_py import graph as graph_module
from cudnn_backend_py.generated.enums import (
    ConvolutionMode,
    PointwiseMode,
    ReduceTensorOp,
)
from cudnn_backend_py.graph import Matmul
from cudnn_backend_py.graph.attention import sdpa_forward
from tests.support.graphs import CONVOLUTION_FIELDS, make_convolution, make_relu, make_sdpa, make_tensor

D, P = DescriptorType, PointwiseMode
untyped: Any = graph_module  # wrong types are passed on purpose


X, Y, Z = make_tensor("x", 4, 8), make_tensor("y", 4, 8), make_tensor("z", 4, 8)
V, W = make_tensor("v", 4, 8, virtual=True), make_tensor("w", 4, 8, virtual=True)
A, B, C = make_tensor("a", 2, 4, 8), make_tensor("b", 2, 8, 16), make_tensor("c", 2, 4, 16)


Case = tuple[str, Callable[[], object], str]

TENSORS: list[Case] = [
    (
        "dims-type",
        lambda: make_tensor("t", dims=(2, 4.0), strides=(4, 1)),
        "tensor 't' has dims of float, int is needed",
    ),
    (
        "dims-type",
        lambda: make_tensor("t", dims=(2, True), strides=(4, 1)),
        "tensor 't' has dims of bool, int is needed",
    ),
    ("dims-type", lambda: make_tensor("t", 2, 4, strides=("4", 1)), "tensor 't' has strides of str, int is needed"),
    ("dims-type", lambda: make_tensor("t", dims=8, strides=(1,)), "tensor 't' has dims 8, a tuple of int is needed"),
    (
        "dims-type",
        lambda: make_tensor("t", 8, strides="packed"),
        "tensor 't' has strides 'packed', a tuple of int is needed",
    ),
    ("rank-out-of-range", lambda: make_tensor("t", dims=(), strides=()), "tensor 't' has 0 dims, 1 to 8 are possible"),
    ("rank-out-of-range", lambda: make_tensor("t", *[1] * 9), "tensor 't' has 9 dims, 1 to 8 are possible"),
    ("strides-rank-mismatch", lambda: make_tensor("t", 2, 4, strides=(4,)), "tensor 't' has 2 dims but 1 strides"),
    ("dim-not-positive", lambda: make_tensor("t", 2, 0), "tensor 't' has a dim of 0, at least 1 is needed"),
    (
        "stride-negative",
        lambda: make_tensor("t", 2, 4, strides=(4, -1)),
        "tensor 't' has a stride of -1, 0 or more is needed",
    ),
    (
        "tensor-size-overflow",
        lambda: make_tensor("t", 1 << 30, 1 << 29),
        f"tensor 't' reaches over {1 << 59} elements, its size does not fit 64 bits",
    ),
    ("uid-out-of-range", lambda: make_tensor("t", 8, uid=-1), "tensor 't' has uid -1, an int of 0 or more is needed"),
    (
        "uid-out-of-range",
        lambda: make_tensor("t", 8, uid=1 << 63),
        f"tensor 't' has uid {1 << 63}, an int of 0 or more is needed",
    ),
    ("uid-out-of-range", lambda: make_tensor("t", 8, uid="q"), "tensor 't' has uid 'q', an int of 0 or more is needed"),
    (
        "uid-out-of-range",
        lambda: make_tensor("t", 8, uid=True),
        "tensor 't' has uid True, an int of 0 or more is needed",
    ),
    (
        "alignment-not-power-of-two",
        lambda: make_tensor("t", 8, alignment=12),
        "tensor 't' has alignment 12, a power of two in bytes is needed",
    ),
    (
        "alignment-not-power-of-two",
        lambda: make_tensor("t", 8, alignment=0),
        "tensor 't' has alignment 0, a power of two in bytes is needed",
    ),
    (
        "virtual-by-value",
        lambda: make_tensor("t", 1, virtual=True, by_value=True),
        "tensor 't' is virtual and by value, it can be one of them",
    ),
    ("value-without-by-value", lambda: make_tensor("t", 1, value=0.5), "tensor 't' has a value but is not by value"),
    (
        "value-not-representable",
        lambda: make_tensor("t", 1, value=float("-inf"), by_value=True, data_type=DataType.BOOLEAN),
        "tensor 't' has value -inf, which BOOLEAN cannot represent",
    ),
    (
        "value-not-representable",
        lambda: make_tensor("t", 1, value=0.5, by_value=True, data_type=DataType.INT32),
        "tensor 't' has value 0.5, which INT32 cannot represent",
    ),
    (
        "ragged-offset-multiplier",
        lambda: make_tensor("t", 1, ragged_offset_multiplier=64),
        "tensor 't' has a ragged offset multiplier of 64 without a ragged offset",
    ),
    (
        "ragged-offset-multiplier",
        lambda: make_tensor("t", 1, ragged_offset_multiplier=0),
        "tensor 't' has a ragged offset multiplier of 0 without a ragged offset",
    ),
    ("data-type", lambda: make_tensor("t", 8, data_type=2), "tensor 't' has data type 2, a DataType is needed"),
    (
        "data-type",
        lambda: make_tensor("t", 8, data_type="HALVES"),
        "tensor 't' has data type 'HALVES', a DataType is needed; did you mean HALF?",
    ),
    (
        "wrong-field-type",
        lambda: dataclasses.replace(X, name=7),  # type: ignore[arg-type]
        "tensor 7 has name 7, str is needed",
    ),
    ("wrong-field-type", lambda: make_tensor("t", 8, alignment=16.0), "tensor 't' has alignment 16.0, int is needed"),
    ("wrong-field-type", lambda: make_tensor("t", 8, virtual=1), "tensor 't' has virtual 1, bool is needed"),
    (
        "wrong-field-type",
        lambda: make_tensor("t", 1, by_value=True, value="1"),
        "tensor 't' has value '1', float or int is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_tensor("t", 1, by_value=True, value=True),
        "tensor 't' has value True, float or int is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_tensor("t", 8, reordering=1),
        "tensor 't' has reordering 1, TensorReordering is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_tensor("t", 8, ragged_offset="r"),
        "tensor 't' has ragged_offset 'r', Tensor is needed",
    ),
    (
        "vector-out-of-range",
        lambda: make_tensor("t", 8, data_type=DataType.INT8, vector_count=4),
        "tensor 't' has vectors of 4 along dim -1, 1 or more along one of its 1 dims are needed",
    ),
    (
        "vector-out-of-range",
        lambda: make_tensor("t", 8, vector_count=0),
        "tensor 't' has vectors of 0 along dim -1, 1 or more along one of its 1 dims are needed",
    ),
]

OPS: list[Case] = [
    (
        "matmul-rank-mismatch",
        lambda: untyped.Matmul(name="m", a=A, b=make_tensor("b", 8, 16), c=C),
        "'a' has 3 dims, 'b' 2, 'c' 3: equal ranks of at least 2 are needed",
    ),
    (
        "matmul-rank-mismatch",
        lambda: untyped.Matmul(name="m", a=make_tensor("a", 8), b=make_tensor("b", 8), c=make_tensor("c", 8)),
        "'a' has 1 dims, 'b' 1, 'c' 1: equal ranks of at least 2 are needed",
    ),
    ("matmul-inner-dim-mismatch", lambda: untyped.Matmul(name="m", a=A, b=A, c=C), "K is 8 in 'a' but 4 in 'a'"),
    ("matmul-output-mismatch", lambda: untyped.Matmul(name="m", a=A, b=B, c=A), "'a' is 4 by 8, 4 by 16 is needed"),
    (
        "matmul-batch-mismatch",
        lambda: untyped.Matmul(name="m", a=A, b=make_tensor("b", 3, 8, 16), c=make_tensor("c", 6, 4, 16)),
        "dim 0 is 2 in 'a', 3 in 'b', 6 in 'c'",
    ),
    (
        "matmul-batch-mismatch",
        lambda: untyped.Matmul(name="m", a=A, b=B, c=make_tensor("c", 4, 4, 16)),
        "dim 0 is 2 in 'a', 2 in 'b', 4 in 'c'",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Matmul(name="m", a="a", b=B, c=C),
        "operation 'm' has a 'a', Tensor is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Matmul(name="m", a=A, b=B, c=C, compute_type=0),
        "operation 'm' has compute_type 0, DataType is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Matmul(name="m", a=A, b=B, c=C, padding_value="0"),
        "operation 'm' has padding_value '0', float is needed",
    ),
    ("pointwise-ports", lambda: untyped.Pointwise(name="p", mode=P.ADD, x=X, y=Y), "ADD takes b, x, y, got x, y"),
    ("pointwise-ports", lambda: untyped.Pointwise(name="p", mode=P.EXP, x=X, b=Z, y=Y), "EXP takes x, y, got b, x, y"),
    ("pointwise-ports", lambda: untyped.Pointwise(name="p", mode=P.TANH_BWD), "TANH_BWD takes dx, dy, x, got nothing"),
    (
        "pointwise-not-broadcastable",
        lambda: make_relu(make_tensor("x", 4, 3), Y),
        "'x' (x) does not broadcast to 'y': every dim must be 1 or equal",
    ),
    (
        "pointwise-not-broadcastable",
        lambda: untyped.Pointwise(name="p", mode=P.ADD, x=X, b=make_tensor("b", 8), y=Y),
        "'b' (b) does not broadcast to 'y': every dim must be 1 or equal",
    ),
    (
        "pointwise-axis",
        lambda: untyped.Pointwise(name="p", mode=P.GEN_INDEX, x=X, y=Y),
        "GEN_INDEX has no axis, one is needed",
    ),
    (
        "pointwise-axis",
        lambda: untyped.Pointwise(name="p", mode=P.EXP, x=X, y=Y, axis=1),
        "EXP has axis 1, but only GEN_INDEX has an axis",
    ),
    (
        "pointwise-axis",
        lambda: untyped.Pointwise(name="p", mode=P.GEN_INDEX, x=X, y=Y, axis=2),
        "axis 2 is not one of the 2 dims",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Pointwise(name="p", mode="ADD", x=X, y=Y),
        "operation 'p' has mode 'ADD', PointwiseMode is needed; did you mean PointwiseMode.ADD?",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Pointwise(name="p", mode=0, x=X, y=Y),
        "operation 'p' has mode 0, PointwiseMode is needed",
    ),
    (
        "reduction-shape-mismatch",
        lambda: untyped.Reduction(name="r", operator=ReduceTensorOp.ADD, x=X, y=make_tensor("y", 4, 3)),
        "every dim of 'y' must divide that of 'x': [4, 3] of [4, 8]",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Reduction(name="r", operator="ADD", x=X, y=Y),
        "operation 'r' has operator 'ADD', ReduceTensorOp is needed; did you mean ReduceTensorOp.ADD?",
    ),
    (
        "not-an-operation",
        lambda: untyped.Operation(D.TENSOR, "t"),
        "CUDNN_BACKEND_TENSOR_DESCRIPTOR is not the descriptor type of an operation",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Operation(17, "t"),
        "the type of operation 't' is 17, but a DescriptorType is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Operation(D.OPERATION_RESHAPE, None),
        "an operation has name None, str is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Operation(D.OPERATION_RESHAPE, "r", [("x", X)]),
        f"operation 'r' has fields [('x', {X!r})], a mapping of names to values is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Parameters("CONVOLUTION"),
        "the type of the parameters is 'CONVOLUTION', but a DescriptorType is needed",
    ),
    (
        "unknown-field",
        lambda: make_convolution(bias=X, Alpha=1.0),
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR has no field Alpha, bias",
    ),
    (
        "missing-field",
        lambda: make_convolution(w=None, y=None),
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR needs a value for w, y",
    ),
    (
        "wrong-field-type",
        lambda: make_convolution(x=7),
        "field x of CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR is 7, Tensor is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_convolution(convolution=X),
        "field convolution of CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR is Tensor 'x', "
        "Parameters CONVOLUTION is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_convolution(alpha="1"),
        "field alpha of CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR is '1', float or int is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Parameters(D.CONVOLUTION, CONVOLUTION_FIELDS | {"comp_type": 0}),
        "field comp_type of CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR is 0, DataType is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Parameters(D.CONVOLUTION, CONVOLUTION_FIELDS | {"comp_type": ConvolutionMode.CONVOLUTION}),
        "field comp_type of CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR is <ConvolutionMode.CONVOLUTION: 0>, "
        "DataType is needed",
    ),
    (
        "wrong-field-type",
        lambda: untyped.Parameters(D.CONVOLUTION, CONVOLUTION_FIELDS | {"dilations": (1, 1.5)}),
        "field dilations of CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR is (1, 1.5), int, or a tuple of them, is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_sdpa(softmax=make_relu(X, Y)),
        "field softmax of CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR is Pointwise 'y', "
        "Operation OPERATION_SOFTMAX is needed",
    ),
    (
        "wrong-field-type",
        lambda: make_sdpa(subgraph=make_convolution()),
        "field subgraph of CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR is Operation 'conv', Graph is needed",
    ),
    (
        "attention-heads",
        lambda: sdpa_forward(batch=1, heads=6, kv_heads=4, seq_q=8, head_dim=8),
        "6 query heads cannot share 4 key/value heads (kv_heads): a multiple is needed",
    ),
    (
        "attention-size",
        lambda: sdpa_forward(batch=1, heads=6, kv_heads=0, seq_q=8, head_dim=8),
        "kv_heads is 0, an int of 1 or more is needed",
    ),
    (
        "operation-shape",
        lambda: untyped.Operation(
            D.OPERATION_BLOCK_SCALE_DEQUANTIZE,
            "d",
            {
                "x": X,
                "scale": make_tensor("s", 4, 1),
                "y": make_tensor("y", 4, 9),
                "math_prec": DataType.FLOAT,
                "block_size": 8,
            },
        ),
        "y 'y' has dims [4, 9], [4, 8] is needed: those of x 'x'",
    ),
    (
        "operation-shape",
        lambda: untyped.Operation(
            D.OPERATION_ROPE_BWD,
            "turn",
            {"dy": make_tensor("dq", 2, 4, 8, 16), "dx": make_tensor("dx", 2, 5, 8, 16), "freqs": make_tensor("f", 8)},
        ),
        "dx 'dx' has dims [2, 5, 8, 16], [2, 4, 8, 16] is needed: those of dy 'dq'",
    ),
]

GRAPHS: list[Case] = [
    ("empty-graph", lambda: Graph((), "g"), "graph 'g' has no operations"),
    ("not-an-operation", lambda: Graph((X,), "g"), f"graph 'g' contains {X!r}, an operation is needed"),  # type: ignore[arg-type]
    (
        "uid-twice",
        lambda: Graph((make_relu(X, Y), make_relu(make_tensor("q", 4, 8, uid=X.uid), Z))),
        f"uid {X.uid} belongs to two tensors, 'x' and 'q'",
    ),
    (
        "uid-twice",
        lambda: Graph((make_relu(X, Y), make_relu(dataclasses.replace(X, alignment=4), Z))),
        f"tensor 'x' (uid {X.uid}) is used in two ways, with different alignment",
    ),
    (
        "uid-twice",
        lambda: Graph(
            (make_relu(X, Y), make_relu(make_tensor("q", 4, 8, ragged_offset=make_tensor("r", 5, uid=X.uid)), Z))
        ),
        f"uid {X.uid} belongs to two tensors, 'x' and 'r'",
    ),
    (
        "name-twice",
        lambda: Graph((make_relu(X, Y), make_relu(make_tensor("x", 4, 8, uid=9), Z))),
        f"the name 'x' belongs to two tensors, uids {X.uid} and 9",
    ),
    (
        "tensor-produced-twice",
        lambda: Graph((make_relu(X, Y, "one"), make_relu(Z, Y, "two"))),
        "tensor 'y' is written by 'one' and by 'two'",
    ),
    (
        "missing-producer",
        lambda: Graph((make_relu(V, Y),)),
        "virtual tensor 'v' is read by 'y' (x) but no operation writes it",
    ),
    ("cycle", lambda: Graph((make_relu(X, X, "in place"),)), "the operations 'in place' form a cycle"),
    (
        "cycle",
        lambda: Graph((make_relu(W, Z, "after"), make_relu(W, V), make_relu(V, W), make_relu(X, Y))),
        "the operations 'v', 'w' form a cycle",
    ),
    ("unknown-tensor", lambda: Graph((make_relu(X, Y),), "g").tensor("q"), "graph 'g' has no tensor 'q'"),
    (
        "uid-twice",
        lambda: Graph((make_sdpa(), make_relu(make_tensor("q2", 4, 8, uid=make_tensor("half", 1).uid), Y))),
        f"uid {make_tensor('half', 1).uid} belongs to two tensors, 'half' and 'q2'",
    ),
    (
        "uid-twice",
        lambda: Graph((make_sdpa(), make_relu(make_tensor("q2", 4, 8, uid=make_tensor("in", 1).uid), Y))),
        f"uid {make_tensor('in', 1).uid} belongs to two tensors, 'in' and 'q2'",
    ),
    (
        "tensor-produced-twice",
        lambda: Graph(
            (make_sdpa(), make_relu(make_tensor("r", 1, 2, 128, 1), make_tensor("stats", 1, 2, 128, 1), "again"))
        ),
        "tensor 'stats' is written by 'sdpa' and by 'again'",
    ),
]


@pytest.mark.parametrize(("code", "make", "headline"), [*TENSORS, *OPS, *GRAPHS])
def test_error_message_has_the_code_and_the_wrong_values(code: str, make: Callable[[], object], headline: str) -> None:
    with pytest.raises(GraphError) as raised:
        make()
    assert str(raised.value) == f"{code}: {headline}"


def test_tensor_error_has_its_location_and_a_fix() -> None:
    with pytest.raises(GraphError) as raised:
        make_tensor("k", 2, 4, 512, 64, strides=(131072, 32768, 64))
    assert raised.value.render() == (
        "strides-rank-mismatch: tensor 'k' has 4 dims but 3 strides\n"
        "  where:  tensor 'k', checked before any cuDNN call\n"
        "          dims    (2, 4, 512, 64)\n"
        "          strides (131072, 32768, 64)\n"
        "  fix:    give one stride per dim, in elements; packed strides for these dims are (131072, 32768, 64, 1)"
    )


def test_operation_error_has_its_location() -> None:
    with pytest.raises(GraphError) as raised:
        Matmul(name="m", a=A, b=B, c=A)
    assert raised.value.sections == {
        "where": "matmul 'm', checked before any cuDNN call\na    a [2, 4, 8]\nb    b [2, 8, 16]\nc    a [2, 4, 8]"
    }
