"""Changes that remove something: outputs, biases, masks, dropout, operations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from functools import partial

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...graph.attention.recognize import read_attention
from ...graph.ir import Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ...graph.replace import (
    bypass_ops,
    drop_operation_fields,
    iterate_all_ops,
    iterate_unused_uids,
    keep_only_ops,
    replace_tensors_in_ops,
    try_to_make_graph,
)
from ..unusual import find_unusual_properties
from ..unusual.operations import MAIN_OPERATIONS, format_operation_kind, format_operation_removal, is_copy
from .change import (
    ATTENTION,
    Change,
    Effect,
    find_operations,
    find_read_uids,
    find_tensors_in_memory,
    join_names,
    register_change_maker,
    yield_change,
    yield_valid_change,
)

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType


@register_change_maker("drop_stats")
def _drop_stats(graph: Graph) -> Iterator[Change]:
    """Yield the graph without an output of statistics, which only a backward pass or a check of results needs."""
    read, results = find_read_uids(graph), {one.uid for one in graph.outputs}
    for op in graph.ops:
        for port, tensor in op.outputs().items():
            if tensor.virtual or tensor.uid in read or port not in ("y", "c"):
                continue
            if _is_per_row_or_scalar_output(op, tensor):
                yield from _drop_output(graph, op, tensor, "drop_stats", results)
    yield from _drop_attention_fields(
        graph, "drop_stats", ("stats",), "without output stats (the other outputs are the same)"
    )
    for op in graph.ops:
        if isinstance(op, Operation) and isinstance(op.fields.get("softmax"), Operation):
            yield from _remove_statistics(graph, op, op.fields["softmax"])
    for op in find_operations(graph.ops, _D.OPERATION_SOFTMAX):
        names = [name for name in _STATISTICS if name in op.fields]
        if names:
            title = (
                f"without output {', '.join(op.fields[name].name for name in names)} (the other outputs are the same)"
            )
            yield from _remove_fields_of_operation(graph, op, names, "drop_stats", title, "exact")


_STATISTICS = ("stats", "max", "sum_exp")


def _remove_statistics(graph: Graph, op: Operation, softmax: Operation) -> Iterator[Change]:
    """Yield the graph where attention writes no softmax statistics; other softmax tensors, such as a sink, stay."""
    title = "without the softmax statistics"
    if set(softmax.inputs()) <= {"x"}:
        yield from _remove_fields_of_operation(graph, op, ("softmax",), "drop_stats", title, "exact")
    elif left := [softmax.fields[name] for name in _STATISTICS if name in softmax.fields]:
        plain = Operation(op.type, op.name, {**op.fields, "softmax": drop_operation_fields(softmax, _STATISTICS)})
        ops = tuple(plain if one is op else one for one in graph.ops)
        yield from yield_valid_change(
            "drop_stats", title, "exact", left, lambda: Graph(ops, graph.name, graph.is_subgraph)
        )


def _drop_output(graph: Graph, op: Op, tensor: Tensor, kind: str, results: Collection[int]) -> Iterator[Change]:
    """Yield the graph without one output, unless the operation writes all outputs of the graph."""
    if len(results) == sum(one.uid in results for one in op.outputs().values()):
        return
    title = f"without output {tensor.name} (the other outputs are the same)"
    yield from yield_change(
        kind, title, "exact", [tensor], lambda: keep_only_ops(graph, (o for o in graph.ops if o is not op))
    )


def _is_per_row_or_scalar_output(op: Op, tensor: Tensor) -> bool:
    return isinstance(op, Reduction | Pointwise) and (tensor.dims[-1] == 1 or math.prod(tensor.dims) == 1)


def _remove_fields_of_operation(
    graph: Graph, op: Operation, names: Collection[str], kind: str, title: str, effect: Effect
) -> Iterator[Change]:
    """Yield the graph with some optional fields of one operation removed."""
    fields = [op.fields[name] for name in names if name in op.fields]
    tensors = [field for field in fields if isinstance(field, Tensor)]

    def build_graph() -> Graph:
        new = drop_operation_fields(op, names)
        return Graph(tuple(new if one is op else one for one in graph.ops), graph.name, graph.is_subgraph)

    yield from yield_change(kind, title, effect, tensors, build_graph)


def _drop_attention_fields(
    graph: Graph, kind: str, names: tuple[str, ...], title: str, effect: Effect = "exact"
) -> Iterator[Change]:
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in ATTENTION and any(name in op.fields for name in names):
            yield from _remove_fields_of_operation(graph, op, names, kind, title, effect)


@register_change_maker("drop_dropout")
def _drop_dropout(graph: Graph) -> Iterator[Change]:
    """Yield the graph without dropout: for inference, or where the caller does it separately."""
    fields = ("dropout_seed", "dropout_offset", "dropout_probability", "dropout_rng_dump")
    yield from _drop_attention_fields(graph, "drop_dropout", fields, "without dropout", "idea")
    masks = [op.fields["y"] for op in find_operations(graph.ops, _D.OPERATION_RNG)]
    masks += [t for t in find_tensors_in_memory(graph) if "dropout" in t.name and t.rank == 4 and min(t.dims[-2:]) > 1]
    uids = {tensor.uid for tensor in masks}
    leave: dict[int, Tensor] = {}
    for op in graph.ops:
        if not (isinstance(op, Pointwise) and op.mode is _P.MUL and op.x is not None and op.b is not None):
            continue
        if op.b.uid in uids or op.x.uid in uids:
            leave[id(op)] = op.x if op.b.uid in uids else op.b
        elif "dropout" in op.b.name:
            leave[id(op)] = op.x
    if leave and uids:
        yield from yield_valid_change(
            "drop_dropout", "without dropout", "idea", masks, lambda: bypass_ops(graph, leave)
        )


@register_change_maker("drop_bias")
def _drop_bias(graph: Graph) -> Iterator[Change]:
    """Yield the graph without a bias of attention scores or of another result, or without the bias's gradient."""
    results = {one.uid for one in graph.outputs}
    gradients: list[Op] = []
    for op in graph.ops:
        for tensor in op.outputs().values():
            if "bias" in tensor.name and not tensor.virtual:
                gradients.append(op)
                if not isinstance(op, Operation):
                    yield from _drop_output(graph, op, tensor, "drop_bias", results)
    yield from _drop_attention_fields(
        graph, "drop_bias", ("dbias",), "without output dbias (the other outputs are the same)"
    )
    if gradients and (build_rest := try_to_make_graph(lambda: _remove_operations(graph, gradients))) is not None:
        names = [tensor for op in gradients for tensor in op.outputs().values()]
        for change in _drop_bias(build_rest):
            yield dataclasses.replace(change, title=f"{change.title} and its gradient {join_names(names)}")
    for op in iterate_all_ops(graph):
        if isinstance(op, Pointwise) and op.mode is _P.ADD and op.x is not None and op.b is not None:
            for one, other in ((op.b, op.x), (op.x, op.b)):
                if not one.virtual and math.prod(one.dims) > 1:
                    yield from _yield_graph_bypassing_operations(
                        graph, "drop_bias", f"without the bias {one.name}", [one], {id(op): other}
                    )


def _remove_operations(graph: Graph, ops: list[Op]) -> Graph | None:
    """Return the graph without these operations; None if no operation is left."""
    ids = {id(op) for op in ops}
    kept = [op for op in graph.ops if id(op) not in ids]
    return keep_only_ops(graph, kept) if kept else None


def _yield_graph_bypassing_operations(
    graph: Graph,
    kind: str,
    title: str,
    tensors: Collection[Tensor],
    leave: Mapping[int, Tensor],
    effect: Effect = "idea",
) -> Iterator[Change]:
    """Yield the graph without some operations; readers of their outputs read other tensors instead."""
    return yield_change(kind, title, effect, tensors, lambda: bypass_ops(graph, leave))


@register_change_maker("mask")
def _drop_mask(graph: Graph) -> Iterator[Change]:
    """Yield the graph without a mask of the scores, or with a band mask aligned at the top left."""
    found = [(op, x) for op in iterate_all_ops(graph) if (x := _find_masked_scores(op)) is not None]
    for op, x in found:
        yield from _yield_graph_bypassing_operations(graph, "mask", f"without the mask {op.name}", [x], {id(op): x})
    if len(found) > 1:
        every = {id(op): x for op, x in found}
        yield from yield_valid_change(
            "mask", "without any mask", "idea", every.values(), lambda: bypass_ops(graph, every)
        )
    yield from _drop_attention_fields(graph, "mask", ("block_mask",), "without the block mask", "idea")
    for op in find_operations(graph.ops, _D.OPERATION_DIAGONAL_BAND_MASK):
        if "seq_len_kv" in op.fields:
            lengths = ("seq_len_kv", "seq_len_q")
            yield from _remove_fields_of_operation(
                graph, op, lengths, "mask", f"{op.name}: aligned at the top left", "idea"
            )


def _find_masked_scores(op: Op) -> Tensor | None:
    """Return the scores that a mask operation masks; None if the operation is not a mask."""
    if op.kind is _D.OPERATION_DIAGONAL_BAND_MASK:
        return dict(op.ports())["x"]
    selects = isinstance(op, Pointwise) and op.mode is _P.BINARY_SELECT
    return op.x if isinstance(op, Pointwise) and selects and op.b is not None and _is_mask_value(op.b) else None


def _is_mask_value(tensor: Tensor) -> bool:
    return tensor.by_value and (tensor.value is None or tensor.value <= -1e4)


@register_change_maker("deterministic")
def _make_attention_backward_deterministic(graph: Graph) -> Iterator[Change]:
    """Yield attention's backward pass with dQ written by its matmul (deterministic), or summed in float32.

    The first is what ``deterministic=True`` builds.
    """
    use = read_attention(graph)
    if use is None or not use.backward:
        return
    for op in graph.ops:
        if isinstance(op, Pointwise) and op.mode is _P.IDENTITY and op.x is not None and op.x.scratch and op.y:
            title = f"deterministic=True: {op.y.name} written by its matmul, without the sum {op.x.name} in float32"
            rest = tuple(one for one in graph.ops if one is not op)
            ops = replace_tensors_in_ops(rest, {op.x.uid: op.y})
            yield from yield_valid_change("deterministic", title, "exact", [op.y], partial(Graph, ops, graph.name))
    reshaped = {op.fields["y"].uid for op in find_operations(graph.ops, _D.OPERATION_RESHAPE)}
    for op in graph.ops if use.problem.deterministic else ():
        if isinstance(op, Matmul) and not op.c.virtual and op.a.virtual and op.a.uid not in reshaped:
            title = f"deterministic=False: {op.c.name} through a sum in float32"
            uid, name = next(iterate_unused_uids(graph)), f"{op.c.name}_accum"
            total = dataclasses.replace(op.c, name=name, uid=uid, data_type=_T.FLOAT, scratch=True)
            convert = Pointwise(name=f"{op.c.name}_convert", mode=_P.IDENTITY, x=total, y=op.c)
            ops = (*replace_tensors_in_ops(graph.ops, {op.c.uid: total}), convert)
            yield from yield_valid_change("deterministic", title, "exact", [op.c], partial(Graph, ops, graph.name))


@register_change_maker("drop_operation")
def _drop_operation(graph: Graph) -> Iterator[Change]:
    """Yield the graph without one operation, or without all leading ones of a kind, to find the unsupported one."""
    yield from _remove_each_operation(graph)
    if not any(op.kind in ATTENTION for op in graph.ops) and sum(isinstance(op, Matmul) for op in graph.ops) < 2:
        yield from _remove_operations_except_main_one(graph)
    yield from _remove_leading_operations_of_one_kind(graph)


def _is_matmul_conv_norm_or_attention(op: Op) -> bool:
    """Return whether an operation is a main one of a graph, such as a matmul, a convolution, a norm or attention."""
    return op.kind in MAIN_OPERATIONS or op.kind in ATTENTION


def _remove_each_operation(graph: Graph) -> Iterator[Change]:
    """Yield the graph without each operation in turn: bypassed, or moved outside the graph if it is the last."""
    read, top = find_read_uids(graph), {id(op) for op in graph.ops}
    for op in iterate_all_ops(graph):
        outputs = list(op.outputs().values())
        if _is_matmul_conv_norm_or_attention(op) or not outputs:
            continue
        same = [tensor for tensor in op.inputs().values() if tensor.dims == outputs[0].dims]
        if same and len(outputs) == 1 and (outputs[0].virtual or outputs[0].uid not in read):
            first = next((tensor for tensor in same if tensor.virtual), same[0])
            title = format_operation_removal(op, is_bypassed=True)
            leave = {id(op): first}
            effect: Effect = "exact" if is_copy(op) else "idea"
            yield from _yield_graph_bypassing_operations(graph, "drop_operation", title, outputs, leave, effect)
        if id(op) in top and not any(tensor.virtual or tensor.uid in read for tensor in outputs):
            given = [tensor for tensor in op.inputs().values() if tensor.virtual]
            yield from _move_operations_out_of_graph(
                graph, [op], given, format_operation_removal(op, is_bypassed=False)
            )


def _remove_operations_except_main_one(graph: Graph) -> Iterator[Change]:
    """Yield, for each operation except the main one (such as a matmul or convolution), the graph without it."""
    known = {tensor.name for tensor in graph.tensors}
    for one in find_unusual_properties(graph):
        if one.aspect == "operation":
            tensors = [graph.tensor(name) for name in dict.fromkeys(one.names) if name in known]
            yield from yield_change("drop_operation", one.title, one.effect, tensors, lambda one=one: one.undo(graph))  # type: ignore[misc]


def _remove_leading_operations_of_one_kind(graph: Graph) -> Iterator[Change]:
    """Yield the graph without all operations of one kind that read only tensors in memory."""
    first: dict[str, list[Op]] = {}
    for op in graph.ops:
        if not _is_matmul_conv_norm_or_attention(op) and not any(tensor.virtual for tensor in op.inputs().values()):
            first.setdefault(format_operation_kind(op), []).append(op)
    for name, ops in first.items():
        made = [tensor for op in ops for tensor in op.outputs().values()]
        names, several = ", ".join(op.name for op in ops), len(ops) > 1
        what = f"operations {names} ({name}), which are" if several else f"operation {names} ({name}), which is"
        title = f"without the {what} done outside"
        yield from _move_operations_out_of_graph(graph, ops, made, title)


def _move_operations_out_of_graph(graph: Graph, ops: list[Op], shared: list[Tensor], title: str) -> Iterator[Change]:
    new = {tensor.uid: dataclasses.replace(tensor, virtual=False) for tensor in shared}
    ids = {id(op) for op in ops}

    def build_graph_without_moved_ops() -> Graph:
        return keep_only_ops(graph, replace_tensors_in_ops(tuple(op for op in graph.ops if id(op) not in ids), new))

    if len(ids) < len(graph.ops):
        yield from yield_change("drop_operation", title, "idea", shared, build_graph_without_moved_ops)
