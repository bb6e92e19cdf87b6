"""Compute O and the statistics that a backward graph of attention reads, by the matching forward pass.

Made-up ones would be no softmax: exp(scores - stats) would grow beyond every type. They are computed with the
operations of the backward graph itself, so that every mask, bound and modifier counts as that graph has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DescriptorType, PointwiseMode
from ..graph.ir import Graph, Matmul, Op, Operation, Pointwise, Tensor
from . import OPERATIONS
from .arithmetic import matmul
from .attention import compute_forward_results
from .philox import dropout_mask
from .run import Run

__all__ = ["compute_o_and_stats_of_backward_graph"]

Floats = NDArray[np.float64]
Numbers = NDArray[Any]


def compute_o_and_stats_of_backward_graph(graph: Graph, held: Mapping[str | int, Numbers]) -> dict[int, Numbers]:
    """Return O and the statistics by uid, computed from the other inputs of a backward graph.

    Rows without a key have O and statistics of 0. Empty if the graph is not recognized.
    """
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    if not {"o", "stats"} <= tensors.keys():
        return {}
    o, stats = tensors["o"], tensors["stats"]
    with np.errstate(all="ignore"):
        try:
            found = _compute_o_and_stats_for_sdpa_bwd(graph, held) or _compute_o_and_stats_for_composite_bwd(
                graph, held, stats
            )
        except GraphError:
            return {}
        if found is None or found[0].shape != o.dims or found[1].shape != stats.dims:
            return {}
        run = _make_interpreter_run(graph, held)
        if "descale_o" in tensors:  # of fp8, by which the graph multiplies O
            found = (found[0] / run.read_scalar(tensors["descale_o"]), found[1])
        for tensor, numbers in zip((o, stats), found, strict=True):
            run.write_value(tensor, np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0))
        return {tensor.uid: np.nan_to_num(run.get_result(tensor), nan=0.0) for tensor in (o, stats)}


def _make_interpreter_run(graph: Graph, held: Mapping[str | int, Numbers]) -> Run:
    return Run(graph, held, OPERATIONS, rounding=False, rng=dropout_mask)


def _run_up_to_operation(last: Op, graph: Graph, held: Mapping[str | int, Numbers]) -> Run:
    """Run a graph up to and including one operation; return the run with all values so far."""
    run = _make_interpreter_run(graph, held)
    for op in graph.ops[: graph.ops.index(last) + 1]:
        run.run_operation(op)
    return run


def _compute_o_and_stats_for_sdpa_bwd(graph: Graph, held: Mapping[str | int, Numbers]) -> tuple[Floats, Floats] | None:
    """Return O and the statistics for a graph with an SDPA_BWD operation; None for other graphs."""
    run = _make_interpreter_run(graph, held)
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind is DescriptorType.OPERATION_SDPA_BWD:
            return compute_forward_results(run, op)
        run.run_operation(op)
    return None


def _compute_o_and_stats_for_composite_bwd(
    graph: Graph, held: Mapping[str | int, Numbers], stats: Tensor
) -> tuple[Floats, Floats] | None:
    """Return O and the statistics for a composite graph.

    With statistics of 0, the input of the exponential is the masked scores; with the right statistics, the matmul
    with dO reads the probabilities.
    """
    scores = next((op.c.uid for op in graph.ops if isinstance(op, Matmul)), None)
    reached = {scores}
    exponential = None
    for op in graph.ops:
        if reached & {tensor.uid for tensor in op.inputs().values()}:
            reached |= {tensor.uid for tensor in op.outputs().values()}
            if isinstance(op, Pointwise) and op.mode is PointwiseMode.EXP:
                exponential = op
                break
    products = [op for op in graph.ops if isinstance(op, Matmul)]
    dv = next((op for op in products if op.b.name == "do"), None)
    dp = next((op for op in products if op.a.name == "do"), None)
    if exponential is None or exponential.x is None or exponential.y is None or dv is None or dp is None:
        return None
    run = _run_up_to_operation(exponential, graph, {**held, stats.uid: np.zeros_like(held[stats.uid], np.float64)})
    masked = run.read_floats(exponential.x)
    top = masked.max(axis=3, keepdims=True)
    sums = top + np.log(np.exp(masked - top).sum(axis=3, keepdims=True))
    sink = next((tensor for tensor in graph.tensors if tensor.name == "sink"), None)
    if sink is not None:
        sums = np.logaddexp(np.nan_to_num(sums, nan=-np.inf, posinf=np.inf, neginf=-np.inf), run.read_floats(sink))
    held_sums = np.nan_to_num(sums, nan=0.0, posinf=0.0, neginf=0.0)
    run.write_value(stats, held_sums)
    run = _run_up_to_operation(dv, graph, {**held, stats.uid: run.get_result(stats)})
    values = run.read_floats(dp.b).swapaxes(2, 3)
    descale = next((tensor for tensor in graph.tensors if tensor.name == "descale_v"), None)
    if descale is None:
        return matmul(run.read_floats(dv.a).swapaxes(2, 3), values), sums
    return matmul(run.read_floats(exponential.y), values) * run.read_scalar(descale), sums
