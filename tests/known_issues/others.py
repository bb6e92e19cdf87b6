"""Examples of known issues of matmuls with signals, and of concatenation."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, DescriptorType, SignalMode
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph

from .example import Examples

__all__ = ["OTHERS"]


def _make_matmul_with_signal(*, wanted: bool) -> Graph:
    """Return a matmul, optionally with a signal at its end."""
    g = GraphBuilder("signal")
    result: dict[str, Any] = {"data_type": DataType.HALF, "virtual": wanted}
    c = g.matmul(g.tensor("a", (1, 128, 64)), g.tensor("b", (1, 64, 128)), **result)
    if wanted:
        flag, y = g.tensor("flag", (1, 1, 1), DataType.INT32), g.tensor("y", (1, 128, 128))
        g.operation(DescriptorType.OPERATION_SIGNAL, mode=SignalMode.SET, value=7, flag=flag, x=c, y=y)
    return g.graph()


def _make_convolution_with_concatenation(*, existing_first: bool) -> Graph:
    """Return a convolution and the in-place concatenation of its result with an existing tensor."""
    g = GraphBuilder("joined")
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    y = g.convolution(x, w, data_type=DataType.HALF)
    z = g.tensor("z", (1, 32, 8, 8), strides="channels_last")
    g.concatenate(
        [z, y] if existing_first else [y, z], 1, in_place_index=0 if existing_first else 1, name="whole", virtual=False
    )
    return g.graph()


OTHERS: dict[str, Examples] = {
    "signal": Examples(
        reproductions={"": lambda: _make_matmul_with_signal(wanted=True)},
        unaffected=lambda: _make_matmul_with_signal(wanted=False),
        fixed=lambda: _make_matmul_with_signal(wanted=False),
    ),
    "concatenation-behind": Examples(
        reproductions={"": lambda: _make_convolution_with_concatenation(existing_first=True)},
        unaffected=lambda: _make_convolution_with_concatenation(existing_first=False),
        fixed=lambda: _make_convolution_with_concatenation(existing_first=False),
    ),
}
