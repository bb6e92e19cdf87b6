"""Examples of known issues of grouped matrix multiplication of experts (MoE)."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode, PointwiseMode
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph
from cudnn_backend_py.graph.strides import column_major

from .example import Examples

__all__ = ["EXPERTS"]


def _experts_of(data_type: DataType) -> Graph:
    """Return one matmul per group of tokens."""
    g = GraphBuilder("experts", io_type=data_type)
    g.operation(
        DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
        mode=MoeGroupedMatmulMode.NONE,
        math_prec=DataType.FLOAT,
        token=g.tensor("token", (1, 64, 32)),
        weight=g.tensor("weight", (4, 32, 16)),
        first_token_offset=g.tensor("offsets", (4, 1, 1), DataType.INT32),
        output=g.tensor("output", (1, 64, 16), DataType.HALF),
    )
    return g.graph()


def _gathered(index_type: DataType) -> Graph:
    """Return a matmul for each expert over rows that are gathered."""
    g = GraphBuilder("gathered")
    token, weight = g.tensor("token", (1, 64, 32)), g.tensor("weight", (4, 32, 16), strides=(512, 1, 32))
    first, index = g.tensor("first", (4, 1, 1), DataType.INT32), g.tensor("index", (1, 128, 1), index_type)
    mode = MoeGroupedMatmulMode.GATHER
    g.moe_grouped_matmul(token, weight, first, mode=mode, token_index=index, name="y", virtual=False)
    return g.graph()


def _experts(*, matmul: bool = False) -> Graph:
    """Return a matmul of four experts, and another one of its result or not."""
    g = GraphBuilder("experts", io_type=DataType.HALF)
    weight = g.tensor("weight", (4, 64, 64), strides=column_major((4, 64, 64)))
    first = g.tensor("first", (4, 1, 1), DataType.INT32)
    token = g.tensor("token", (1, 32, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=MoeGroupedMatmulMode.NONE, virtual=matmul, name="y")
    if matmul:
        g.matmul(y, g.tensor("b", (1, 64, 32)), virtual=False, name="c")
    return g.graph()


def _routed(
    operand: tuple[int, ...] | None = None, mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE, rows: int = 64
) -> Graph:
    """Return a matmul of two experts, and an operand added to it or not."""
    g = GraphBuilder("routed", io_type=DataType.HALF)
    more: dict[str, Any] = {}
    if mode is MoeGroupedMatmulMode.SCATTER:
        more = {name: g.tensor(name, (1, rows, 1), DataType.INT32) for name in ("token_index", "token_ks")} | {
            "top_k": 1
        }
    weight = g.tensor("weight", (2, 64, 32), strides=column_major((2, 64, 32)))
    first = g.tensor("first_token_offset", (2, 1, 1), DataType.INT32)
    token = g.tensor("token", (1, rows, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=mode, **more, virtual=operand is not None, name="y")
    if operand is not None:
        g.pointwise(PointwiseMode.ADD, y, g.tensor("operand", operand), virtual=False, name="sum")
    return g.graph()


EXPERTS: dict[str, Examples] = {
    "moe-gather-32-bits": Examples(
        reproductions={"": lambda: _gathered(DataType.INT32)},
        unlike=lambda: _gathered(DataType.INT64),
        remedy=lambda: _gathered(DataType.INT64),
    ),
    "moe-matmul-fp8": Examples(
        reproductions={"": lambda: _experts_of(DataType.FP8_E4M3)},
        unlike=lambda: _experts_of(DataType.HALF),
    ),
    "experts-and-matmul": Examples(
        reproductions={"": lambda: _experts(matmul=True)},
        unlike=_experts,
        remedy=_experts,
    ),
    "experts-operand": Examples(
        reproductions={"": lambda: _routed((1, 64, 32))},
        unlike=_routed,
        remedy=_routed,
    ),
    "experts-scatter": Examples(
        reproductions={"": lambda: _routed(mode=MoeGroupedMatmulMode.SCATTER)},
        unlike=_routed,
        remedy=_routed,
    ),
}
