"""Measure how work grows with the size of a graph, in function calls instead of seconds."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from cudnn_backend_py import Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.ir import Op, Tensor
from cudnn_backend_py.graph.replace import replace_tensors

__all__ = ["GROWING_GRAPHS", "count_calls", "measure_relative_growth", "repeat_graph"]

Pointwise = PointwiseMode
TENSOR_DIMS = (1, 4, 8)


def count_calls(run: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions in `run`."""
    count = 0

    def count_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_event)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def measure_relative_growth(
    make: Callable[[int], Graph], run: Callable[[Graph], object], small: int, large: int
) -> float:
    """Return the growth of work divided by the growth of the graph: 1 if work is linear."""
    calls = []
    run(make(small))  # do work that a process does only once, so that it is not counted
    for size in (small, large):
        graph = make(size)
        calls.append((len(graph.ops), count_calls(lambda graph=graph: run(graph))))  # type: ignore[misc]
    (few, less), (many, more) = calls
    return (more / less) / (many / few)


def repeat_graph(graph: Graph, count: int) -> Graph:
    """Return one graph with several copies of a graph, each with its own tensors."""
    step = 1 + max(abs(tensor.uid) for tensor in graph.tensors)
    ops: list[Op] = []
    for number in range(count):
        new: dict[int, Tensor] = {}
        for tensor in graph.tensors:
            new[tensor.uid] = dataclasses.replace(
                tensor, uid=tensor.uid + number * step, name=f"{tensor.name}_{number}", ragged_offset=None
            )
        for tensor in graph.tensors:
            if tensor.ragged_offset is not None:
                offset = new[tensor.ragged_offset.uid]
                new[tensor.uid] = dataclasses.replace(new[tensor.uid], ragged_offset=offset)
        ops += [_increase_uids(op, number * step) for op in replace_tensors(graph, new).ops]
    return Graph(tuple(ops), graph.name)


def _increase_uids(op: Op, by: int) -> Op:
    """Return an operation with all uids increased by a number."""
    if not isinstance(op, Operation):
        return op
    uids: dict[str, Any] = {name: value + by for name, value in op.fields.items() if name.endswith("_uid")}
    return Operation(op.type, op.name, {**op.fields, **uids}) if uids else op


def make_pointwise_chain(count: int) -> Graph:
    g = GraphBuilder("chain")
    x = g.tensor("x", TENSOR_DIMS)
    for number in range(count):
        x = g.pointwise(Pointwise.RELU_FWD if number % 2 else Pointwise.TANH_FWD, x, virtual=number < count - 1)
    return g.graph()


def make_independent_matmuls(count: int) -> Graph:
    g = GraphBuilder("products")
    for number in range(count):
        g.matmul(
            g.tensor(f"a{number}", TENSOR_DIMS), g.tensor(f"b{number}", (1, 8, 4)), name=f"c{number}", virtual=False
        )
    return g.graph()


def make_fan_out_graph(count: int) -> Graph:
    g = GraphBuilder("fan out")
    x = g.pointwise(Pointwise.RELU_FWD, g.tensor("x", TENSOR_DIMS))
    for number in range(count - 1):
        g.pointwise(Pointwise.TANH_FWD, x, name=f"y{number}", virtual=False)
    return g.graph()


def make_fan_in_graph(count: int) -> Graph:
    g = GraphBuilder("fan in")
    left = [g.tensor(f"x{number}", TENSOR_DIMS) for number in range(count + 1)]
    while len(left) > 1:
        left.append(g.pointwise(Pointwise.ADD, left.pop(0), left.pop(0), virtual=bool(left)))
    return g.graph()


def make_attention_blocks(count: int) -> Graph:
    """Return attention blocks in series, each written as separate operations."""
    g = GraphBuilder("blocks")
    x = g.tensor("x", (1, 2, 4, 8))
    for number in range(count // 7):
        s = g.matmul(x, g.tensor(f"k{number}", (1, 2, 8, 4)))
        e = g.pointwise(Pointwise.EXP, g.pointwise(Pointwise.SUB, s, g.reduction(ReduceTensorOp.MAX, s, (1, 2, 4, 1))))
        p = g.pointwise(Pointwise.DIV, e, g.reduction(ReduceTensorOp.ADD, e, (1, 2, 4, 1)))
        x = g.matmul(p, g.tensor(f"v{number}", (1, 2, 4, 8)), virtual=number < count // 7 - 1)
    return g.graph()


def make_convolutions(count: int) -> Graph:
    """Return convolutions with groups, uneven padding, and channels that are no multiple of 8."""
    g = GraphBuilder("convolutions")
    x = g.tensor("x", (1, 6, 6, 6))
    for number in range(count // 2):
        weights = g.tensor(f"w{number}", (6, 3, 3, 3))
        y = g.convolution(x, weights, padding=1, post_padding=(1, 2) if number % 2 else 1, virtual=number % 5 > 0)
        x = g.pointwise(Pointwise.ADD, y, g.tensor(f"bias{number}", (1, 6, 1, 1)), virtual=number < count // 2 - 1)
    return g.graph()


def make_graph_with_long_names(count: int) -> Graph:
    g = GraphBuilder("name" * 50)
    x = g.tensor("x" * 300, TENSOR_DIMS)
    for number in range(count):
        bias = g.tensor("bias" * 80 + str(number), (1, 1, 8))
        x = g.pointwise(Pointwise.ADD, x, bias, name="y" * 300 + str(number), virtual=number < count - 1)
    return g.graph()


GROWING_GRAPHS: dict[str, Callable[[int], Graph]] = {
    make.__name__: make
    for make in (
        make_pointwise_chain,
        make_independent_matmuls,
        make_fan_out_graph,
        make_fan_in_graph,
        make_attention_blocks,
        make_convolutions,
        make_graph_with_long_names,
    )
}
