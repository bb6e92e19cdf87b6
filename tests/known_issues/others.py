"""Examples of known issues of signals and concatenation."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, DescriptorType, SignalMode
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph

from .example import Examples

__all__ = ["OTHERS"]


def _signal(*, wanted: bool) -> Graph:
    """Return a matmul with or without a signal when it is done."""
    g = GraphBuilder("signal")
    result: dict[str, Any] = {"data_type": DataType.HALF, "virtual": wanted}
    c = g.matmul(g.tensor("a", (1, 128, 64)), g.tensor("b", (1, 64, 128)), **result)
    if wanted:
        flag, y = g.tensor("flag", (1, 1, 1), DataType.INT32), g.tensor("y", (1, 128, 128))
        g.operation(DescriptorType.OPERATION_SIGNAL, mode=SignalMode.SET, value=7, flag=flag, x=c, y=y)
    return g.graph()


def _joined(*, behind: bool) -> Graph:
    """Return a convolution whose result is next to a tensor that is there already."""
    g = GraphBuilder("joined")
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    y = g.convolution(x, w, data_type=DataType.HALF)
    z = g.tensor("z", (1, 32, 8, 8), strides="channels_last")
    g.concatenate([z, y] if behind else [y, z], 1, in_place_index=0 if behind else 1, name="whole", virtual=False)
    return g.graph()


OTHERS: dict[str, Examples] = {
    "signal": Examples(
        reproductions={"": lambda: _signal(wanted=True)},
        unlike=lambda: _signal(wanted=False),
        remedy=lambda: _signal(wanted=False),
    ),
    "concatenation-behind": Examples(
        reproductions={"": lambda: _joined(behind=True)},
        unlike=lambda: _joined(behind=False),
        remedy=lambda: _joined(behind=False),
    ),
}
