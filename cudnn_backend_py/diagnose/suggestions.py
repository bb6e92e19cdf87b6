"""Judge the changes that remedies of rules suggest; a remedy without a change of the graph remains only text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..generated.enums import DescriptorType, HeurMode
from ..graph import Graph
from ..graph.ir import Matmul, Tensor
from ..graph.replace import (
    iterate_unused_uids,
    make_packed_tensor,
    replace_tensors,
    replace_tensors_in_ops,
    try_to_make_graph,
)
from ..rewrite.shapes import add_batch_dim
from ..target import Target
from .causes.case import is_supported, try_build
from .fork import run_in_fork
from .verdict import NEWER_THAN_LIBRARY_SUFFIX, Cause, RemedyCheck

__all__ = ["drop_remedy_if_refused"]

_Suggestion = tuple[str, Callable[[], Graph]]
"""A remedy, and what makes the graph it describes."""


def drop_remedy_if_refused(
    cause: Cause, graph: Graph, target: Target, modes: Sequence[HeurMode], *, build: bool, measure: bool
) -> Cause:
    """Judge the graph changed as a cause's remedy says; drop the remedy if cuDNN refuses that graph too.

    One question for each way to change it, and with `build` one plan, in a forked process; none without `measure`. A
    remedy that names a newer version is worded so that it names none: who has several installed asks them. Others are
    returned as they are.
    """
    if cause.asked != "not asked":
        return cause
    if cause.code.endswith(NEWER_THAN_LIBRARY_SUFFIX):
        return replace(cause, remedy="use a newer cuDNN (--cudnn); it may refuse the graph for other reasons")
    depth: RemedyCheck = "built" if build else "support check"
    if cause.remedy.startswith("judge for sm_"):  # those were queried when they were looked for
        return replace(cause, asked=depth)
    find_changes = _SUGGESTED_CHANGES.get(cause.remedy)
    if find_changes is None or target.is_live or not measure:
        return cause
    changes = list(find_changes(graph))
    if not changes:
        note = ", which is not known here" if cause.remedy == _NEXT_TO_PRODUCT else ""
        return replace(cause, remedy=cause.remedy + note)
    names = [mode.name for mode in modes]

    def is_change_supported(changed: Graph) -> bool:
        return try_build(changed, target, names).found if build else is_supported(changed, target, names)

    for remedy, make in changes:
        changed = try_to_make_graph(make)
        if changed is not None and run_in_fork(partial(is_change_supported, changed), lambda: False, what="the remedy"):
            return replace(cause, remedy=remedy, asked=depth)
    end = ", and one alone does not help" if cause.remedy == _NEXT_TO_PRODUCT else ""
    return replace(cause, headline=cause.headline + end, remedy="", asked="")


def _suggest_longer_ragged_offsets(graph: Graph) -> Iterator[_Suggestion]:
    yield _LONGER_OFFSETS, lambda: _lengthen_ragged_offsets(graph)


def _lengthen_ragged_offsets(graph: Graph) -> Graph:
    """Return the graph with ragged offsets of one entry more than the number of sequences."""
    owners = [tensor for tensor in graph.tensors if tensor.ragged_offset is not None]
    offsets = {tensor.ragged_offset.uid: tensor for tensor in owners if tensor.ragged_offset is not None}
    return replace_tensors(
        graph,
        {
            tensor.uid: replace(tensor, dims=(offsets[tensor.uid].dims[0] + 1, *tensor.dims[1:]))
            for tensor in graph.tensors
            if tensor.uid in offsets
        },
    )


_MOVES = (
    *(DescriptorType.OPERATION_SLICE, DescriptorType.OPERATION_TRANSPOSE),
    *(DescriptorType.OPERATION_RESHAPE, DescriptorType.OPERATION_CONCAT),
)


def _suggest_adding_square_matmul(graph: Graph) -> Iterator[_Suggestion]:
    """Yield a graph that only moves elements, together with a square matmul that reads its result or writes its input.

    None for other graphs: whether cuDNN supports them may depend on the product, which is not known.
    """
    if any(op.kind not in _MOVES for op in graph.ops):
        return
    for result in graph.outputs:
        remedy = f"put it into the graph of the matmul that reads {result.name}"
        yield remedy, lambda result=result: _append_matmul_to_result(graph, result, from_left=False)  # type: ignore[misc]
        yield remedy, lambda result=result: _append_matmul_to_result(graph, result, from_left=True)  # type: ignore[misc]
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    for given in (tensor for tensor in graph.tensors if tensor.uid not in written):
        remedy = f"put it into the graph of the matmul that writes {given.name}"
        yield remedy, lambda given=given: _prepend_matmul_that_computes_input(graph, given)  # type: ignore[misc]


def _append_matmul_to_result(graph: Graph, result: Tensor, *, from_left: bool) -> Graph:
    uids = iterate_unused_uids(graph)
    size = result.dims[-2] if from_left else result.dims[-1]
    factor = _make_square_factor(result, size, next(uids))
    product = replace(result, name="product", uid=next(uids))
    virtual = replace(result, virtual=True)
    left, right = (factor, virtual) if from_left else (virtual, factor)
    ops = replace_tensors_in_ops(graph.ops, {result.uid: virtual})
    return Graph((*ops, Matmul(name="product", a=left, b=right, c=product)), graph.name)


def _prepend_matmul_that_computes_input(graph: Graph, given: Tensor) -> Graph:
    uids = iterate_unused_uids(graph)
    left = replace(given, name="left", uid=next(uids))
    right = _make_square_factor(given, given.dims[-1], next(uids))
    virtual = replace(given, virtual=True)
    ops = replace_tensors_in_ops(graph.ops, {given.uid: virtual})
    return Graph((Matmul(name="product", a=left, b=right, c=virtual), *ops), graph.name)


def _make_square_factor(tensor: Tensor, size: int, uid: int) -> Tensor:
    """Return a tensor of square matrices, with the leading dims of `tensor`, to multiply it by."""
    return replace(make_packed_tensor(tensor, (*tensor.dims[:-2], size, size)), name="factor", uid=uid)


def _suggest_leading_dim_of_1(graph: Graph) -> Iterator[_Suggestion]:
    """Yield a graph of matrices with a leading dim of 1 added; nothing if its tensors are not matrices."""
    if (changed := add_batch_dim(graph)) is not None:
        yield _LEADING_DIMS, lambda: changed


_LONGER_OFFSETS = "one offset more than there are sequences"
_LEADING_DIMS = "leading dims of 1"
_NEXT_TO_PRODUCT = "put it into the graph of the matmul before or after it"
_SUGGESTED_CHANGES: dict[str, Callable[[Graph], Iterator[_Suggestion]]] = {
    _LONGER_OFFSETS: _suggest_longer_ragged_offsets,
    _LEADING_DIMS: _suggest_leading_dim_of_1,
    _NEXT_TO_PRODUCT: _suggest_adding_square_matmul,
}
