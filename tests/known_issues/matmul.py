"""Examples of known issues of matrix multiplication."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, DescriptorType, PointwiseMode, TensorReordering
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph
from cudnn_backend_py.graph.strides import make_column_major_strides, packed_strides

from .convolution import make_convolution
from .example import Examples

__all__ = ["MATMUL"]


def _make_batched_matmul(data_type: DataType, *, rows: int = 128, gap: int = 0, relu: bool = False) -> Graph:
    """Return a batch of matmuls, with a gap after each row of the first operand, and optionally a ReLU."""
    g = GraphBuilder("product", io_type=data_type)
    inner, columns = 256, 128
    a = g.tensor("a", (4, rows, inner), strides=(rows * (inner + gap), inner + gap, 1))
    b = g.tensor("b", (4, inner, columns), strides=(inner * columns, 1, inner))
    result: dict[str, Any] = {"name": "y", "virtual": False, "data_type": DataType.HALF}
    if relu:
        g.pointwise(PointwiseMode.RELU_FWD, g.matmul(a, b), **result)
    else:
        g.matmul(a, b, **result)
    return g.graph()


def _make_float_matmul(*batch: int) -> Graph:
    """Return a matmul of float32 matrices with the given batch dims."""
    g = GraphBuilder("float32 product", io_type=DataType.FLOAT)
    g.matmul(g.tensor("a", (*batch, 64, 32)), g.tensor("b", (*batch, 32, 48)), name="y", virtual=False)
    return g.graph()


def _make_block_scaled_matmul(*, factor: bool = False, size: int = 256) -> Graph:
    """Return a matmul of mxfp8 tensors, optionally times one number."""
    g = GraphBuilder("block scaled", io_type=DataType.FP8_E4M3)
    block = 32

    def make_operand(name: str, transposed: bool) -> Any:
        dims, blocks = (1, size, size), [1, size, size // block]
        strides, scale_strides = (size * size, size, 1), (size * size // block, size // block, 1)
        if transposed:
            blocks = [1, size // block, size]
            strides, scale_strides = (size * size, 1, size), (size * size // block, 1, size // block)
        scales = g.tensor(
            f"scale_{name}",
            (blocks[0], blocks[1], blocks[2]),
            DataType.FP8_E8M0,
            strides=scale_strides,
            reordering=TensorReordering.F8_128x4,
        )
        y = g.tensor(f"{name}_float", dims, DataType.FLOAT, virtual=True)
        g.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
            x=g.tensor(name, dims, strides=strides),
            scale=scales,
            y=y,
            block_size=block,
            math_prec=DataType.FLOAT,
        )
        return y

    a, b = make_operand("a", False), make_operand("b", True)
    result: dict[str, Any] = {"name": "y", "virtual": False, "data_type": DataType.BFLOAT16}
    if factor:
        g.pointwise(PointwiseMode.MUL, g.matmul(a, b), g.tensor("factor", (1, 1, 1), DataType.FLOAT), **result)
    else:
        g.matmul(a, b, **result)
    return g.graph()


def _make_matmul_with_relu(**numbers: float) -> Graph:
    """Return a matmul followed by a ReLU, which may have a clip or a slope."""
    g = GraphBuilder("leaky", io_type=DataType.BFLOAT16)
    z = g.matmul(g.tensor("a", (2, 16, 128)), g.tensor("b", (2, 128, 8)))
    g.pointwise(PointwiseMode.RELU_FWD, z, name="y", virtual=False, parameters=numbers)
    return g.graph()


def _make_matmul_with_output_type(
    kind: DataType, result: DataType, *, gelu: bool = False, rows: int = 16, strides: tuple[int, int, int] | None = None
) -> Graph:
    """Return a matmul with an output of a data type, optionally with a GELU."""
    g, b = GraphBuilder("product", io_type=kind), (2, 128, 8)
    left, right = g.tensor("a", (2, rows, 128)), g.tensor("b", b, strides=strides or packed_strides(b))
    if gelu:
        g.pointwise(PointwiseMode.GELU_FWD, g.matmul(left, right), name="y", virtual=False, data_type=result)
    else:
        g.matmul(left, right, name="y", virtual=False, data_type=result)
    return g.graph()


def _make_maximum_of_squared_matmul(*, copied: bool) -> Graph:
    """Return max(z * z, column) for a matmul z; if `copied`, one factor is an identity copy of z."""
    g = GraphBuilder("squared", io_type=DataType.BFLOAT16)
    z = g.matmul(g.tensor("a", (4, 64, 16)), g.tensor("b", (4, 16, 32)))
    square = g.pointwise(PointwiseMode.MUL, g.pointwise(PointwiseMode.IDENTITY, z) if copied else z, z)
    g.pointwise(PointwiseMode.MAX, square, g.tensor("row", (4, 64, 1)), name="y", virtual=False)
    return g.graph()


def _make_matmul_with_binary_select(*, rows: int = 1, select: bool = True, relus: int = 0) -> Graph:
    """Return a matmul with few rows, then a selection by a mask between it and another tensor, then ReLUs."""
    g, whole = GraphBuilder("product", io_type=DataType.HALF), (1, rows, 32)
    c = g.matmul(
        g.tensor("a", (1, rows, 64)), g.tensor("b", (1, 64, 32), strides=make_column_major_strides((1, 64, 32)))
    )
    if select:
        c = g.pointwise(
            PointwiseMode.BINARY_SELECT, c, g.tensor("other", whole), t=g.tensor("t", whole), virtual=relus > 0
        )
    else:
        c = g.pointwise(PointwiseMode.IDENTITY, c, virtual=relus > 0)
    for left in reversed(range(relus)):
        c = g.pointwise(PointwiseMode.RELU_FWD, c, virtual=left > 0)
    return g.graph()


MATMUL: dict[str, Examples] = {
    "float32-matmul-dims": Examples(
        reproductions={"": _make_float_matmul, "batches": lambda: _make_float_matmul(2, 1, 2)},
        unaffected=lambda: _make_float_matmul(1),
        fixed=lambda: _make_float_matmul(4),
    ),
    "bfloat16-product-on-turing": Examples(
        reproductions={"": lambda: _make_matmul_with_output_type(DataType.HALF, DataType.BFLOAT16)},
        unaffected=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF),
        fixed=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.FLOAT),
    ),
    "matmul-on-two-gpus": Examples(
        reproductions={"": lambda: _make_batched_matmul(DataType.HALF)},
        unaffected=lambda: make_convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    "matmul-with-gaps": Examples(
        reproductions={"": lambda: _make_batched_matmul(DataType.HALF, gap=8, relu=True)},
        unaffected=lambda: _make_batched_matmul(DataType.HALF, gap=8),
        fixed=lambda: _make_batched_matmul(DataType.HALF, relu=True),
    ),
    "fp8-matmul-of-few-rows": Examples(
        reproductions={"": lambda: _make_batched_matmul(DataType.FP8_E4M3, rows=16)},
        unaffected=lambda: _make_batched_matmul(DataType.FP8_E4M3),
    ),
    "half-matmul-split-k": Examples(
        reproductions={
            "": lambda: _make_batched_matmul(DataType.BFLOAT16),
            "half": lambda: _make_batched_matmul(DataType.HALF),
        },
        unaffected=lambda: _make_batched_matmul(DataType.FP8_E4M3),
    ),
    "block-scales-no-whole-tiles": Examples(
        reproductions={
            "": lambda: _make_block_scaled_matmul(size=64),
            "rows": lambda: _make_block_scaled_matmul(size=192),
        },
        unaffected=lambda: _make_block_scaled_matmul(size=256),
        fixed=lambda: _make_block_scaled_matmul(size=256),
    ),
    "block-scaled-matmul-factor": Examples(
        reproductions={"": lambda: _make_block_scaled_matmul(factor=True)},
        unaffected=lambda: _make_block_scaled_matmul(factor=False),
        fixed=lambda: _make_block_scaled_matmul(factor=False),
    ),
    "block-scaled-matmul-threads": Examples(
        reproductions={"": lambda: _make_block_scaled_matmul(factor=False)},
        unaffected=lambda: _make_batched_matmul(DataType.HALF),
    ),
    "block-scale-types-of-9-10": Examples(
        reproductions={"": lambda: _make_block_scaled_matmul(factor=False)},
        unaffected=lambda: _make_batched_matmul(DataType.FP8_E4M3),
    ),
    "matmul-of-float32-in-tf32": Examples(
        reproductions={"": lambda: _make_matmul_with_output_type(DataType.FLOAT, DataType.FLOAT)},
        unaffected=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.FLOAT),
        fixed=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.FLOAT),
    ),
    "matmul-of-float32-into-half": Examples(
        reproductions={
            "": lambda: _make_matmul_with_output_type(DataType.FLOAT, DataType.HALF),
            "bfloat16": lambda: _make_matmul_with_output_type(DataType.FLOAT, DataType.BFLOAT16),
        },
        unaffected=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF),
        fixed=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF),
    ),
    "matmul-gelu-by-tanh": Examples(
        reproductions={"": lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF, gelu=True)},
        unaffected=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF),
        fixed=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF),
    ),
    "matmul-relu-without-slope": Examples(
        reproductions={
            "": lambda: _make_matmul_with_relu(relu_lower_clip_slope=0.1),
            "upper": lambda: _make_matmul_with_relu(relu_upper_clip=0.5),
            "lower": lambda: _make_matmul_with_relu(relu_lower_clip=0.25),
        },
        unaffected=_make_matmul_with_relu,
        fixed=_make_matmul_with_relu,
    ),
    "matmul-beside-its-copy": Examples(
        reproductions={"": lambda: _make_maximum_of_squared_matmul(copied=True)},
        unaffected=lambda: _make_maximum_of_squared_matmul(copied=False),
        fixed=lambda: _make_maximum_of_squared_matmul(copied=False),
    ),
    "matmul-of-one-row-with-gaps": Examples(
        reproductions={
            "": lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF, rows=1, strides=(1280, 1, 160))
        },
        unaffected=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF, rows=2, strides=(1280, 1, 160)),
        fixed=lambda: _make_matmul_with_output_type(DataType.HALF, DataType.HALF, rows=1, strides=(1024, 1, 128)),
    ),
    "vector-product-select": Examples(
        reproductions={"": _make_matmul_with_binary_select},
        unaffected=lambda: _make_matmul_with_binary_select(rows=2),
        fixed=lambda: _make_matmul_with_binary_select(select=False),
    ),
    "vector-product-select-among-many": Examples(
        reproductions={"": lambda: _make_matmul_with_binary_select(relus=4)},
        unaffected=lambda: _make_matmul_with_binary_select(select=False, relus=4),
        fixed=lambda: _make_matmul_with_binary_select(select=False, relus=4),
    ),
}
