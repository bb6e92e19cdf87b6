"""Small tensors, operations and graphs shared by tests without a library."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph
from cudnn_backend_py.generated.enums import ConvolutionMode, PointwiseMode
from cudnn_backend_py.graph import Operation, Parameters, Pointwise, Tensor, packed_strides

__all__ = [
    "CONVOLUTION_FIELDS",
    "FILTER",
    "IMAGE",
    "RESULT",
    "make_convolution",
    "make_relu",
    "make_sdpa",
    "make_tensor",
]

F32, F16 = DataType.FLOAT, DataType.HALF
D, P = DescriptorType, PointwiseMode


def make_tensor(name: str, *dims: int, uid: Any = None, **options: Any) -> Tensor:
    """Return a packed float32 tensor with a uid derived from its name."""
    number = int.from_bytes(name.encode()[:7], "little") if uid is None else uid
    fields: dict[str, Any] = {"name": name, "uid": number, "dims": dims, "strides": packed_strides(dims)}
    return Tensor(**fields | {"data_type": F32} | options)


def make_relu(x: Tensor, y: Tensor, name: str | None = None) -> Pointwise:
    return Pointwise(name=name or y.name, mode=P.RELU_FWD, x=x, y=y)


CONVOLUTION_FIELDS: dict[str, Any] = {
    "comp_type": F32,
    "conv_mode": ConvolutionMode.CROSS_CORRELATION,
    "dilations": (1, 1),
    "filter_strides": (1, 1),
    "post_paddings": (0, 0),
    "pre_paddings": (0, 0),
    "spatial_dims": 2,
}
IMAGE, FILTER, RESULT = (
    make_tensor("image", 1, 8, 6, 6),
    make_tensor("filter", 16, 8, 3, 3),
    make_tensor("result", 1, 16, 4, 4),
)


def make_convolution(**changed: Any) -> Operation:
    parts = {
        "alpha": 1.0,
        "beta": 0.0,
        "convolution": Parameters(D.CONVOLUTION, CONVOLUTION_FIELDS),
        "w": FILTER,
        "x": IMAGE,
        "y": RESULT,
    }
    return Operation(D.OPERATION_CONVOLUTION_FORWARD, "conv", parts | changed)


def make_sdpa(**changed: Any) -> Operation:
    """Return a fused attention operation with a softmax and with a sub-graph that caps scores by tanh."""
    q, k, v, o = (make_tensor(name, 1, 2, 128, 64, data_type=F16) for name in "qkvo")
    score, half, squashed = (make_tensor(name, 1, 2, 128, 128, virtual=True) for name in ("score", "half", "squash"))
    cap = make_tensor("cap", 1, 1, 1, 1, by_value=True, value=20.0)
    inner = Graph(
        (
            Pointwise(name="squash", mode=P.TANH_FWD, x=half, y=squashed),
            Pointwise(name="half", mode=P.DIV, x=score, b=cap, y=half),
        ),
        "score_mod",
        is_subgraph=True,
    )
    softmax = Operation(
        D.OPERATION_SOFTMAX,
        "softmax",
        {
            "x": make_tensor("in", 1, 2, 128, 128, virtual=True),
            "y": make_tensor("out", 1, 2, 128, 128, virtual=True),
            "stats": make_tensor("stats", 1, 2, 128, 1),
        },
    )
    parts: dict[str, Any] = {"q": q, "k": k, "v": v, "o": o, "subgraph": inner, "softmax": softmax}
    parts |= {"subgraph_input_uid": score.uid, "subgraph_output_uid": squashed.uid}
    return Operation(D.OPERATION_SDPA_FWD, "sdpa", parts | changed)
