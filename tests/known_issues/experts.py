"""Examples of known issues of grouped matrix multiplication of experts (MoE)."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode, PointwiseMode
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph
from cudnn_backend_py.graph.strides import make_column_major_strides

from .example import Examples

__all__ = ["EXPERTS"]


def _make_grouped_matmul(data_type: DataType) -> Graph:
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


def _make_gathered_moe_matmul(index_type: DataType) -> Graph:
    """Return an expert matmul over gathered rows."""
    g = GraphBuilder("gathered")
    token, weight = g.tensor("token", (1, 64, 32)), g.tensor("weight", (4, 32, 16), strides=(512, 1, 32))
    first, index = g.tensor("first", (4, 1, 1), DataType.INT32), g.tensor("index", (1, 128, 1), index_type)
    mode = MoeGroupedMatmulMode.GATHER
    g.moe_grouped_matmul(token, weight, first, mode=mode, token_index=index, name="y", virtual=False)
    return g.graph()


def _make_moe_matmul_of_four_experts(*, matmul: bool = False) -> Graph:
    """Return a matmul of four experts, and optionally a second one on its result."""
    g = GraphBuilder("experts", io_type=DataType.HALF)
    weight = g.tensor("weight", (4, 64, 64), strides=make_column_major_strides((4, 64, 64)))
    first = g.tensor("first", (4, 1, 1), DataType.INT32)
    token = g.tensor("token", (1, 32, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=MoeGroupedMatmulMode.NONE, virtual=matmul, name="y")
    if matmul:
        g.matmul(y, g.tensor("b", (1, 64, 32)), virtual=False, name="c")
    return g.graph()


def _make_moe_matmul_of_two_experts(
    operand: tuple[int, ...] | None = None, mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE, rows: int = 64
) -> Graph:
    """Return a matmul of two experts, and optionally an operand added to it."""
    g = GraphBuilder("routed", io_type=DataType.HALF)
    more: dict[str, Any] = {}
    if mode is MoeGroupedMatmulMode.SCATTER:
        more = {name: g.tensor(name, (1, rows, 1), DataType.INT32) for name in ("token_index", "token_ks")} | {
            "top_k": 1
        }
    weight = g.tensor("weight", (2, 64, 32), strides=make_column_major_strides((2, 64, 32)))
    first = g.tensor("first_token_offset", (2, 1, 1), DataType.INT32)
    token = g.tensor("token", (1, rows, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=mode, **more, virtual=operand is not None, name="y")
    if operand is not None:
        g.pointwise(PointwiseMode.ADD, y, g.tensor("operand", operand), virtual=False, name="sum")
    return g.graph()


EXPERTS: dict[str, Examples] = {
    "moe-gather-32-bits": Examples(
        reproductions={"": lambda: _make_gathered_moe_matmul(DataType.INT32)},
        unaffected=lambda: _make_gathered_moe_matmul(DataType.INT64),
        fixed=lambda: _make_gathered_moe_matmul(DataType.INT64),
    ),
    "moe-matmul-fp8": Examples(
        reproductions={"": lambda: _make_grouped_matmul(DataType.FP8_E4M3)},
        unaffected=lambda: _make_grouped_matmul(DataType.HALF),
    ),
    "experts-and-matmul": Examples(
        reproductions={"": lambda: _make_moe_matmul_of_four_experts(matmul=True)},
        unaffected=_make_moe_matmul_of_four_experts,
        fixed=_make_moe_matmul_of_four_experts,
    ),
    "experts-operand": Examples(
        reproductions={"": lambda: _make_moe_matmul_of_two_experts((1, 64, 32))},
        unaffected=_make_moe_matmul_of_two_experts,
        fixed=_make_moe_matmul_of_two_experts,
    ),
    "experts-scatter": Examples(
        reproductions={"": lambda: _make_moe_matmul_of_two_experts(mode=MoeGroupedMatmulMode.SCATTER)},
        unaffected=_make_moe_matmul_of_two_experts,
        fixed=_make_moe_matmul_of_two_experts,
    ),
}
