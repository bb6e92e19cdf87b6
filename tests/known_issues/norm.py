"""Examples of known issues of norms."""

from __future__ import annotations

from cudnn_backend_py.generated.enums import (
    DataType,
    DescriptorType,
    NormFwdPhase,
    NormMode,
    PointwiseMode,
    TensorReordering,
)
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph

from .example import Examples

__all__ = ["NORM"]


def _make_rms_norm(*, quantized: bool) -> Graph:
    """Return an RMS norm, optionally block-scaled."""
    g = GraphBuilder("norm", io_type=DataType.BFLOAT16)
    dims, one = (1024, 512, 1, 1), (1, 512, 1, 1)
    y = g.tensor("y", dims, virtual=quantized)
    g.operation(
        DescriptorType.OPERATION_NORM_FORWARD,
        mode=NormMode.RMS_NORM,
        phase=NormFwdPhase.INFERENCE,
        x=g.tensor("x", dims),
        scale=g.tensor("weight", one, DataType.FLOAT),
        epsilon=g.scalar(1e-5),
        y=y,
    )
    if quantized:
        g.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
            x=y,
            y=g.tensor("quantized", dims, DataType.FP8_E4M3),
            scale=g.tensor("scales", (1024, 16, 1, 1), DataType.FP8_E8M0, reordering=TensorReordering.F8_128x4),
            block_size=32,
            math_prec=DataType.FLOAT,
        )
    return g.graph()


def _make_batch_norm_with_added_operand(operand: tuple[int, ...], kind: DataType = DataType.HALF) -> Graph:
    """Return ReLU(batch norm in training + float16 operand), for images of the given data type."""
    g, per = GraphBuilder("added", io_type=kind), (1, 32, 1, 1)
    x = g.tensor("x", (4, 32, 4, 5), strides="channels_last")
    scale, bias = (g.tensor(name, per, DataType.FLOAT, strides="channels_last") for name in ("scale", "bias"))
    y = g.norm_forward(NormMode.BATCH_NORM, x, scale, bias, training=True).y
    other = g.tensor("operand", operand, DataType.HALF, strides="channels_last")
    y = g.pointwise(PointwiseMode.ADD, y, other, strides=x.strides)
    g.pointwise(PointwiseMode.RELU_FWD, y, virtual=False, name="out", strides=x.strides)
    return g.graph()


def _make_norm_of_types(mode: NormMode, scale: DataType, bias: DataType, *, added: bool = False) -> Graph:
    """Return a norm of float16 rows; with `added`, the scale is a tensor in memory plus 1."""
    g, per = GraphBuilder("normed", io_type=DataType.HALF), (1, 256, 1, 1)
    factor = g.tensor("scale", per, scale)
    if added:
        factor = g.pointwise(PointwiseMode.ADD, factor, g.scalar(1.0), name="factor", data_type=DataType.FLOAT)
    g.norm_forward(mode, g.tensor("x", (32, 256, 1, 1)), factor, g.tensor("bias", per, bias), name="y", virtual=False)
    return g.graph()


def _make_layer_norm_with_pointwise(mode: PointwiseMode) -> Graph:
    """Return a layer norm, then an elementwise operation on its result and a tensor in memory."""
    g = GraphBuilder("normed", io_type=DataType.FLOAT)
    dims, per = (32, 32, 1, 1), (1, 32, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    other = g.tensor("other", dims)
    if mode is PointwiseMode.RELU_BWD:
        g.pointwise(mode, other, dy=y, virtual=False, name="out")
    else:
        g.pointwise(mode, y, other, virtual=False, name="out")
    return g.graph()


def _make_layer_norm_with_added_operand(operand: tuple[int, ...] | None) -> Graph:
    """Return a layer norm, then its sum with an operand, or a ReLU if there is no operand."""
    g = GraphBuilder("shifted", io_type=DataType.FLOAT)
    dims, per = (16, 64, 1, 1), (1, 64, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    if operand is None:
        g.pointwise(PointwiseMode.RELU_FWD, y, virtual=False, name="out")
    else:
        g.pointwise(PointwiseMode.ADD, y, g.tensor("operand", operand), virtual=False, name="out")
    return g.graph()


def _make_layer_norm_added_to_itself(*, twice: bool) -> Graph:
    """Return a layer norm, then the sum of its result and itself (`twice`) or another tensor."""
    g = GraphBuilder("doubled", io_type=DataType.FLOAT)
    dims, per = (16, 64, 1, 1), (1, 64, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    g.pointwise(PointwiseMode.ADD, y, y if twice else g.tensor("other", dims), virtual=False, name="sum")
    return g.graph()


NORM: dict[str, Examples] = {
    "norm-bias-type": Examples(
        reproductions={
            "": lambda: _make_norm_of_types(NormMode.LAYER_NORM, DataType.HALF, DataType.FLOAT),
            "rms": lambda: _make_norm_of_types(NormMode.RMS_NORM, DataType.HALF, DataType.BFLOAT16),
        },
        unaffected=lambda: _make_norm_of_types(NormMode.LAYER_NORM, DataType.HALF, DataType.HALF, added=True),
        fixed=lambda: _make_norm_of_types(NormMode.LAYER_NORM, DataType.HALF, DataType.HALF),
    ),
    "norm-block-scaled": Examples(
        reproductions={"": lambda: _make_rms_norm(quantized=True)},
        unaffected=lambda: _make_rms_norm(quantized=False),
        fixed=lambda: _make_rms_norm(quantized=False),
    ),
    "batch-norm-operand": Examples(
        reproductions={
            "": lambda: _make_batch_norm_with_added_operand((1, 32, 1, 1)),
            "type": lambda: _make_batch_norm_with_added_operand((4, 32, 4, 5), DataType.FLOAT),
        },
        unaffected=lambda: _make_batch_norm_with_added_operand((4, 32, 4, 5)),
        fixed=lambda: _make_batch_norm_with_added_operand((4, 32, 4, 5)),
    ),
    "norm-activation-gradient": Examples(
        reproductions={"": lambda: _make_layer_norm_with_pointwise(PointwiseMode.RELU_BWD)},
        unaffected=lambda: _make_layer_norm_with_pointwise(PointwiseMode.MUL),
        fixed=lambda: _make_layer_norm_with_pointwise(PointwiseMode.MUL),
    ),
    "norm-operand-twice": Examples(
        reproductions={"": lambda: _make_layer_norm_added_to_itself(twice=True)},
        unaffected=lambda: _make_layer_norm_added_to_itself(twice=False),
        fixed=lambda: _make_layer_norm_added_to_itself(twice=False),
    ),
    "norm-operands-in-turn": Examples(
        reproductions={
            "": lambda: _make_layer_norm_with_added_operand((1, 64, 1, 1)),
            "before": lambda: _make_layer_norm_with_added_operand((16, 64, 1, 1)),
        },
        unaffected=lambda: _make_layer_norm_with_added_operand(None),
        fixed=lambda: _make_layer_norm_with_added_operand(None),
    ),
}
