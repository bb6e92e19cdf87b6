"""The part of a case to interpret: for large attention, one key head with its query heads."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Graph, Tensor
from ..graph.attention.recognize import read_attention
from ..graph.replace import replace_tensors, try_to_make_graph
from .case import Case

__all__ = ["MOST_SCORES", "InterpretableCase", "reduce_case_for_interpreter", "select_key_head"]

MOST_SCORES = 1 << 24  # of attention, that are interpreted whole


@dataclass(frozen=True)
class InterpretableCase:
    """A graph to interpret, with its description, and its inputs and the program's results by name."""

    graph: Graph
    given: dict[str, Any]
    results: dict[str, NDArray[Any]]
    what: str = ""


def reduce_case_for_interpreter(case: Case, seed: int = 0) -> InterpretableCase:
    """Return the whole case, or for attention with more scores than :data:`MOST_SCORES` one key head of one batch.

    It is the one where the case says that something is wrong, where a result is not finite, or a drawn one.
    """
    assert case.graph is not None
    whole = InterpretableCase(case.graph, case.given(), case.results())
    use = read_attention(case.graph)
    if use is None or use.problem.ragged or use.problem.page_size:
        return whole
    problem = use.problem
    heads = problem.kv_heads
    if problem.batch * problem.heads * problem.seq_q * problem.seq_kv <= MOST_SCORES or heads != problem.v_heads:
        return whole
    batch, head = case.at or _choose_batch_and_key_head(whole, problem.batch, problem.heads, seed)
    return select_key_head(whole, (problem.batch, problem.heads, heads or 1), batch, head) or whole


def _choose_batch_and_key_head(part: InterpretableCase, batch: int, heads: int, seed: int) -> tuple[int, int]:
    for numbers in part.results.values():
        bad = ~np.isfinite(numbers)
        if numbers.ndim == 4 and numbers.shape[:2] == (batch, heads) and bad.any():
            place = np.unravel_index(int(bad.argmax()), bad.shape)
            return int(place[0]), int(place[1])
    draw = random.Random(seed)
    return draw.randrange(batch), draw.randrange(heads)


def select_key_head(
    whole: InterpretableCase, sizes: tuple[int, int, int], batch: int, head: int
) -> InterpretableCase | None:
    """Return the part of dense attention with one key head; None if the graph is not dense attention.

    Strides stay as they are, so that what hangs on them does.

    Parameters
    ----------
    sizes
        Batch, heads of queries, heads of keys.
    batch, head
        Which batch entry, and a head of queries of the group.
    """
    _, heads, key_heads = sizes
    group = heads // key_heads
    key_head = head // group
    kept = {heads: slice(key_head * group, (key_head + 1) * group), key_heads: slice(key_head, key_head + 1)}

    def find_slices(tensor: Tensor) -> tuple[slice, ...]:
        first = slice(batch, batch + 1) if tensor.dims[0] == sizes[0] else slice(None)
        return (first, slice(None) if tensor.dims[1] == 1 else kept[tensor.dims[1]])

    changed = {}
    for tensor in whole.graph.tensors:
        if tensor.rank != 4 or tensor.dims[0] not in (1, sizes[0]) or tensor.dims[1] not in (1, heads, key_heads):
            return None
        dims = (1, 1 if tensor.dims[1] == 1 else len(range(heads)[find_slices(tensor)[1]]), *tensor.dims[2:])
        changed[tensor.uid] = dataclasses.replace(tensor, dims=dims)
    graph = try_to_make_graph(lambda: replace_tensors(whole.graph, changed))
    if graph is None:
        return None
    tensors = {tensor.name: tensor for tensor in whole.graph.tensors}

    def select_slices(held: dict[str, Any]) -> dict[str, Any]:
        return {name: x if np.ndim(x) != 4 else np.asarray(x)[find_slices(tensors[name])] for name, x in held.items()}

    last = (key_head + 1) * group - 1
    what = f"batch {batch}, heads {key_head * group} to {last}"
    return InterpretableCase(graph, select_slices(whole.given), select_slices(whole.results), what)
