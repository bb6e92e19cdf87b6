"""An interpreter of graphs in NumPy, operation by operation, to check cuDNN's results. Does not use cuDNN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import GraphError
from ..graph.ir import Graph, check_graph
from ..system.memory import explain_insufficient_memory
from .arithmetic import OPERATIONS as _ARITHMETIC
from .attention import OPERATIONS as _ATTENTION
from .convolution import OPERATIONS as _CONVOLUTION
from .experts import OPERATIONS as _EXPERTS
from .layout import OPERATIONS as _LAYOUT
from .norm import OPERATIONS as _NORM
from .philox import dropout_mask
from .positions import OPERATIONS as _POSITIONS
from .resample import OPERATIONS as _RESAMPLE
from .run import Numbers, RandomMaskFunction, Run

__all__ = ["OPERATIONS", "RandomMaskFunction", "interpret"]

# What runs each kind of operation. An entry added here is an operation more.
OPERATIONS = {
    **_ARITHMETIC,
    **_CONVOLUTION,
    **_NORM,
    **_RESAMPLE,
    **_LAYOUT,
    **_EXPERTS,
    **_POSITIONS,
    **_ATTENTION,
}


def interpret(
    graph: Graph,
    inputs: Mapping[str | int, ArrayLike],
    *,
    rounding: bool = False,
    keep: Iterable[str] = (),
    rng: RandomMaskFunction = dropout_mask,
) -> dict[str, NDArray[np.float64]]:
    """Evaluate the graph in NumPy with float64 and return its outputs.

    Parameters
    ----------
    graph
        Any graph of the operations in :data:`OPERATIONS`: every kind of the header.
    inputs
        By tensor name or uid: every tensor in memory that the graph reads and does not write, as numbers (decoded),
        with the tensor's dims in their logical order, whatever its strides. A tensor with a ragged offset is a flat
        buffer of elements as they are in memory: element (b, h, s, d) at ``offset[b]`` plus indices times strides,
        where s is below the tokens of entry b, ``(offset[b + 1] - offset[b]) // stride of s``; elsewhere and beyond
        the buffer it reads 0. By-value tensors default to their value. Memory the graph writes is ignored.
    rounding
        Round every tensor to its data type when it is written (inputs too), and matrix products and reductions, which
        are summed in float64, to their compute type. Otherwise numbers are exact and data types only report integers
        (cut towards zero) and booleans from the rest.
    keep
        Names of further tensors to return, such as virtual ones.
    rng
        ``rng(seed, offset, dims, probability)`` returns an array of 1 (with that probability) and 0: what random masks
        are drawn by, as cuDNN's attention kernels do if not given. A mask in `inputs` comes before it, under the name
        of the tensor an RNG operation writes or an attention operation dumps, or ``<operation name>.dropout_mask``.

    Returns
    -------
    dict
        By name: tensors in memory that the graph writes, scratch left out, and those in `keep`. Float64, or int64 and
        bool for tensors of such types. Ragged buffers reach to the largest offset and are NaN where nothing was
        written. Rows that are masked as a whole are NaN where the operations say so.

    Raises
    ------
    GraphError
        ``interpret-operation`` (not known here), ``interpret-input`` (missing, unknown, or of no use),
        ``interpret-shape`` (other dims than the tensor's), ``format-unknown`` (a data type that cannot be rounded to),
        ``unknown-tensor`` (a name in `keep`), ``interpret-memory`` (its results do not fit in memory).

    Examples
    --------
    >>> from cudnn_backend_py import GraphBuilder
    >>> from cudnn_backend_py.interpreter import interpret
    >>> g = GraphBuilder()
    >>> y = g.matmul(g.tensor("a", (1, 1, 2)), g.tensor("b", (1, 2, 1)), name="y", virtual=False)
    >>> interpret(g.graph(), {"a": [[[1, 2]]], "b": [[[3], [4]]]})["y"].item()
    11.0
    """
    check_graph(graph)
    written = {tensor.uid for tensor in graph.outputs}
    computed = [tensor for tensor in graph.tensors if tensor.virtual or tensor.uid in written]
    if problem := explain_insufficient_memory(
        sum(8 * math.prod(tensor.dims) for tensor in computed), f"interpreting {graph.name!r}"
    ):
        raise GraphError(problem, code="interpret-memory", fix="smaller dims")
    run = Run(graph, inputs, OPERATIONS, rounding=rounding, rng=rng)
    wanted = [*graph.outputs, *(graph.tensor(name) for name in keep)]
    with np.errstate(all="ignore"):
        for op in graph.ops:
            run.run_operation(op)
        results: dict[str, Numbers] = {tensor.name: run.get_result(tensor) for tensor in wanted}
    return results
