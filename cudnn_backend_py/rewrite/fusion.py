"""Fuse attention into one operation or expand it to several, where both compute the same. Pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..frozen import FrozenValue
from ..generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, TensorReordering
from ..graph.attention.backward import build_composite_backward
from ..graph.attention.recognize import read_attention
from ..graph.data_types import BOOLEAN_TYPES, FP8_TYPES, HALF_TYPES
from ..graph.ir import Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor, packed_strides
from ..graph.replace import iterate_all_ops, iterate_unused_uids, replace_tensors_in_ops
from ..graph.strides import swap_last_two_axes

__all__ = [
    "add_softmax_log_sum_exp",
    "expand_softmax",
    "expand_to_composite_attention",
    "expand_to_composite_attention_backward",
    "fuse_to_unified_attention",
    "is_computed_in_float32",
    "move_attention_scale_to_scores",
]

_D, _P, _R = DescriptorType, PointwiseMode, ReduceTensorOp
_STATISTICS = ("stats", "max", "sum_exp")


class _Softmax(FrozenValue):
    """A softmax in a graph: its operations, input, output, and the statistics that it writes to memory."""

    ops: tuple[Op, ...]
    x: Tensor
    y: Tensor
    statistics: dict[str, Tensor]


class _TensorMaker:
    """Makes virtual tensors with uids and names that the graph does not use."""

    def __init__(self, graph: Graph) -> None:
        self._uids = iterate_unused_uids(graph)
        self._names = {tensor.name for tensor in graph.tensors}
        self._numbers: dict[str, int] = {}

    def make_virtual_tensor(self, stem: str, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Tensor:
        number = self._numbers.get(stem, 0)
        while (name := f"{stem}{'_' * (number > 0)}{number if number > 1 else ''}") in self._names:
            number += 1
        self._numbers[stem] = number
        self._names.add(name)
        strides = packed_strides(dims)
        return Tensor(name=name, uid=next(self._uids), dims=dims, strides=strides, data_type=data_type, virtual=True)


def fuse_to_unified_attention(graph: Graph) -> Graph | None:
    """Fuse two matmuls and a softmax into one forward SDPA operation; return None if the graph does not match.

    What happens between the scaled scores and the softmax becomes the sub-graph. Real lengths, pages, dropout and
    8-bit factors are not supported.
    """
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    softmax = _find_softmax(graph)
    if (
        len(matmuls) != 2
        or softmax is None
        or matmuls[1].a.uid != softmax.y.uid
        or any(map(_has_sequence_lengths, matmuls))
    ):
        return None
    first, second = matmuls
    q, k, v, o = first.a, first.b, second.b, second.c
    scaling = _find_score_scaling(graph, first.c)
    fused = [*matmuls, *softmax.ops, *([scaling] if scaling else [])]
    inner = tuple(op for op in graph.ops if not any(op is one for one in fused))
    if (
        any(tensor.virtual for tensor in (q, k, v, o))
        or q.rank != 4
        or _has_non_float_intermediates(fused)
        or not _is_score_modifier(inner)
    ):
        return None
    score = first.c if scaling is None else scaling.y
    assert score is not None
    if not inner and softmax.x.uid != score.uid:
        return None
    names = _TensorMaker(graph)
    fields: dict[str, Any] = {
        "q": q,
        "k": _transpose_last_two_dims(k),
        "v": v,
        "o": o,
        "scale": _get_scale_tensor(scaling, names),
    }
    if inner:
        fields |= {
            "subgraph": Graph(inner, "scores", is_subgraph=True),
            "subgraph_input_uid": score.uid,
            "subgraph_output_uid": softmax.x.uid,
        }
    if softmax.statistics:
        x, y = (
            names.make_virtual_tensor("softmax_x", softmax.x.dims),
            names.make_virtual_tensor("softmax_y", softmax.x.dims),
        )
        fields["softmax"] = Operation(_D.OPERATION_SOFTMAX, "softmax", {"x": x, "y": y, **softmax.statistics})
    return Graph((Operation(_D.OPERATION_SDPA_FWD, "sdpa", fields),), graph.name)


def _has_sequence_lengths(op: Matmul) -> bool:
    return (op.m_override, op.n_override, op.k_override) != (None, None, None)


def _has_non_float_intermediates(ops: list[Op]) -> bool:
    """Return whether intermediate results have types other than float32 and shorter floats."""
    kinds = {tensor.data_type for op in ops for tensor in op.outputs().values() if tensor.virtual}
    kinds |= {op.compute_type for op in ops if isinstance(op, Matmul | Pointwise | Reduction)}
    return not kinds <= {DataType.FLOAT, *HALF_TYPES, *FP8_TYPES}


def _is_score_modifier(ops: Sequence[Op]) -> bool:
    """Return whether operations may be attention's sub-graph: pointwise operations and masks without graph outputs."""
    others = [op for op in ops if isinstance(op, Operation) and op.kind is not _D.OPERATION_DIAGONAL_BAND_MASK]
    return not others and all(tensor.virtual for op in ops for tensor in op.outputs().values())


def is_computed_in_float32(graph: Graph) -> bool:
    """Return whether compute types and intermediates other than matmul operands are all float32, int32 or bool."""
    computed = {op.compute_type for op in graph.ops if isinstance(op, Matmul | Pointwise | Reduction)}
    if not computed <= {DataType.FLOAT, DataType.INT32, *BOOLEAN_TYPES}:
        return False
    operands = {tensor.uid for op in graph.ops if isinstance(op, Matmul) for tensor in (op.a, op.b)}
    virtual = (tensor for tensor in graph.tensors if tensor.virtual and tensor.uid not in operands)
    return all(tensor.data_type in (DataType.FLOAT, DataType.INT32, *BOOLEAN_TYPES) for tensor in virtual)


def _find_score_scaling(graph: Graph, score: Tensor) -> Pointwise | None:
    """Return the operation that multiplies the scores by one number, or None."""
    for op in graph.ops:
        if isinstance(op, Pointwise) and op.mode is _P.MUL and op.x is not None and op.b is not None:
            number = not op.b.virtual and math.prod(op.b.dims) == 1
            if op.x.uid == score.uid and number:
                return op
    return None


def _get_scale_tensor(scaling: Pointwise | None, names: _TensorMaker) -> Tensor:
    if scaling is not None:
        assert scaling.b is not None
        return scaling.b
    return dataclasses.replace(names.make_virtual_tensor("scale", (1,)), virtual=False, by_value=True, value=1.0)


def _transpose_last_two_dims(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, dims=swap_last_two_axes(tensor.dims), strides=swap_last_two_axes(tensor.strides))


def _find_softmax(graph: Graph) -> _Softmax | None:
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind is _D.OPERATION_SOFTMAX:
            if "sink" in op.fields or "stats_log2" in op.fields:
                return None
            found = {name: op.fields[name] for name in _STATISTICS if name in op.fields}
            return _Softmax((op,), op.fields["x"], op.fields["y"], found)
    return _find_softmax_chain(graph)


def _find_softmax_chain(graph: Graph) -> _Softmax | None:
    """Return the softmax that ends in a division of exponentials by their sum."""
    producer = {tensor.uid: op for op in graph.ops for tensor in op.outputs().values()}

    def find_producer(tensor: Tensor | None, mode: PointwiseMode | ReduceTensorOp) -> Any:
        op: Any = producer.get(tensor.uid) if tensor is not None else None
        return op if getattr(op, "mode", getattr(op, "operator", None)) is mode else None

    for op in graph.ops:
        if not (isinstance(op, Pointwise) and op.mode is _P.DIV and op.y is not None):
            continue
        exp: Any = find_producer(op.x, _P.EXP)
        total: Any = find_producer(op.b, _R.ADD)
        shifted: Any = find_producer(exp.x, _P.SUB) if exp else None
        top: Any = find_producer(shifted.b, _R.MAX) if shifted else None
        if not (total and top and total.x.uid == exp.y.uid and top.x.uid == shifted.x.uid):
            continue
        log = [o for o in graph.ops if isinstance(o, Pointwise) and o.mode is _P.LOG and o.x == total.y]
        stats = [
            o for o in graph.ops if log and isinstance(o, Pointwise) and o.mode is _P.ADD and log[0].y in (o.x, o.b)
        ]
        found = {"max": top.y, "sum_exp": total.y} | ({"stats": stats[0].y} if stats else {})
        in_memory = {name: tensor for name, tensor in found.items() if tensor is not None and not tensor.virtual}
        return _Softmax((op, exp, total, shifted, top, *log, *stats), shifted.x, op.y, in_memory)
    return None


def expand_softmax(graph: Graph) -> Graph | None:
    """Return the graph with each SOFTMAX operation expanded to several operations; None if none can be expanded."""
    names = _TensorMaker(graph)
    ops: list[Op] = []
    for op in graph.ops:
        is_softmax = isinstance(op, Operation) and op.kind is _D.OPERATION_SOFTMAX
        if is_softmax and isinstance(op, Operation) and set(op.fields) <= {"x", "y", *_STATISTICS}:
            found = {name: op.fields[name] for name in _STATISTICS if name in op.fields}
            ops += _make_softmax_chain(op.fields["x"], op.fields["y"], found, names)
        else:
            ops.append(op)
    return Graph(tuple(ops), graph.name) if len(ops) > len(graph.ops) else None


def _make_softmax_chain(x: Tensor, y: Tensor, statistics: dict[str, Tensor], names: _TensorMaker) -> list[Op]:
    row = (*x.dims[:-1], 1)

    def find_or_make_tensor(name: str, dims: tuple[int, ...]) -> Tensor:
        return statistics.get(name) or names.make_virtual_tensor(f"row_{name}" if dims == row else name, dims)

    top, total, stats = (
        find_or_make_tensor("max", row),
        find_or_make_tensor("sum_exp", row),
        find_or_make_tensor("stats", row),
    )
    shifted, exp, log = (
        find_or_make_tensor("shifted", x.dims),
        find_or_make_tensor("exp", x.dims),
        find_or_make_tensor("log_sum", row),
    )
    return [
        Reduction(name=top.name, operator=_R.MAX, x=x, y=top),
        Pointwise(name=shifted.name, mode=_P.SUB, x=x, b=top, y=shifted),
        Pointwise(name=exp.name, mode=_P.EXP, x=shifted, y=exp),
        Reduction(name=total.name, operator=_R.ADD, x=exp, y=total),
        Pointwise(name=log.name, mode=_P.LOG, x=total, y=log),
        Pointwise(name=stats.name, mode=_P.ADD, x=top, b=log, y=stats),
        Pointwise(name=y.name, mode=_P.DIV, x=exp, b=total, y=y),
    ]


def move_attention_scale_to_scores(graph: Graph) -> Graph | None:
    """Return attention with the scores scaled after the first matmul, instead of one of its operands before."""
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    if len(matmuls) != 2:
        return None
    first, second = matmuls
    for op in graph.ops:
        number = isinstance(op, Pointwise) and op.b is not None and not op.b.virtual and math.prod(op.b.dims) == 1
        if not (number and isinstance(op, Pointwise) and op.mode is _P.MUL and op.y in (first.a, first.b)):
            continue
        assert op.x is not None
        assert op.b is not None
        raw = _TensorMaker(graph).make_virtual_tensor("raw_scores", first.c.dims)
        a, b = (op.x, first.b) if op.y == first.a else (first.a, op.x)
        product = dataclasses.replace(first, a=a, b=b, c=raw, name=raw.name)
        factor = dataclasses.replace(op.b, data_type=DataType.FLOAT)
        scaled = Pointwise(name=first.c.name, mode=_P.MUL, x=raw, b=factor, y=first.c)
        ops = tuple(one for one in graph.ops if one not in (op, first))
        plain = dataclasses.replace(second.a, virtual=True, scratch=False, reordering=TensorReordering.NONE)
        return Graph(replace_tensors_in_ops((product, scaled, *ops), {plain.uid: plain}), graph.name)
    return None


_TAKEN = {"q", "k", "v", "o", "scale", "stats", "softmax", "subgraph", "subgraph_input_uid", "subgraph_output_uid"}


def expand_to_composite_attention(graph: Graph) -> Graph | None:
    """Expand a forward SDPA operation to several operations; return None if these cannot express it.

    Real lengths, pages, dropout, a block mask, a sink and 8-bit factors are not supported.
    """
    op = graph.ops[0]
    if len(graph.ops) > 1 or not isinstance(op, Operation) or op.kind is not _D.OPERATION_SDPA_FWD:
        return None
    fields: dict[str, Any] = dict(op.fields)
    inner = fields.get("softmax")
    found = dict(inner.fields) if isinstance(inner, Operation) else {}
    if set(fields) - _TAKEN or set(found) - {"x", "y", *_STATISTICS} or "scale" not in fields:
        return None
    q, k, v, o = (fields[name] for name in ("q", "k", "v", "o"))
    if any(tensor.rank != 4 for tensor in (q, k, v, o)):
        return None
    names = _TensorMaker(graph)
    dims = (*q.dims[:3], k.dims[2])
    known = {tensor.uid: tensor for tensor in graph.tensors}
    raw, masked = names.make_virtual_tensor("qk", dims), known.get(fields.get("subgraph_output_uid", -1))
    score = known.get(fields.get("subgraph_input_uid", -1)) or names.make_virtual_tensor("score", dims)
    p = names.make_virtual_tensor("p", dims, v.data_type)
    statistics = {name: found[name] for name in _STATISTICS if name in found}
    if "stats" in fields:
        statistics["stats"] = fields["stats"]
    scale = dataclasses.replace(fields["scale"], dims=(1,) * 4, strides=(1,) * 4)
    ops: list[Op] = [
        Matmul(name=raw.name, a=q, b=_transpose_last_two_dims(k), c=raw),
        Pointwise(name=score.name, mode=_P.MUL, x=raw, b=scale, y=score),
        *(fields["subgraph"].ops if "subgraph" in fields else ()),
        *_make_softmax_chain(masked or score, p, statistics, names),
        Matmul(name=o.name, a=p, b=v, c=o),
    ]
    return Graph(tuple(ops), graph.name)


def add_softmax_log_sum_exp(graph: Graph) -> Graph | None:
    """Add the log-sum-exp of each row to attention with a softmax of several operations, as kernels expect.

    That is with the logarithm of the sums, also where no one reads it; P has the type of V. None where there is no such
    softmax, or it has them.
    """
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    found = _find_softmax_chain(graph)
    if found is None or len(matmuls) != 2 or matmuls[1].a.uid != found.y.uid or not found.y.virtual:
        return None
    if any(isinstance(op, Pointwise) and op.mode is _P.LOG for op in found.ops):
        return None
    p = dataclasses.replace(found.y, data_type=matmuls[1].b.data_type)
    ops: list[Op] = []
    for op in graph.ops:
        if op is found.ops[0]:
            ops += _make_softmax_chain(found.x, p, found.statistics, _TensorMaker(graph))
        elif not any(op is one for one in found.ops):
            ops.append(_replace_division_by_product(op, found.x))
    return Graph(replace_tensors_in_ops(tuple(ops), {p.uid: p}), graph.name)


def _replace_division_by_product(op: Op, scores: Tensor) -> Op:
    """Turn a division of the scores by a known number into a multiplication; return other operations unchanged."""
    if not (isinstance(op, Pointwise) and op.mode is _P.DIV and op.y == scores and op.b is not None):
        return op
    if not op.b.by_value or not op.b.value:
        return op
    return dataclasses.replace(op, mode=_P.MUL, b=dataclasses.replace(op.b, value=1 / op.b.value))


def expand_to_composite_attention_backward(graph: Graph) -> Graph | None:
    """Return an SDPA_BWD operation as several operations; None if its options cannot be read completely.

    Tensors of the caller keep their names, uids and memory; scratch tensors are added.
    """
    op = graph.ops[0]
    if len(graph.ops) > 1 or not isinstance(op, Operation) or op.kind is not _D.OPERATION_SDPA_BWD:
        return None
    if set(op.fields) - _TAKEN_BACKWARD or "scale" not in op.fields:
        return None
    use = read_attention(graph)
    if use is None or use.problem.score_modifier is not None or use.problem.is_fp8 or use.problem.alibi:
        return None
    bias = _read_bias(op, use.problem.bias)
    if bias is None:
        return None
    given = {_OURS.get(name, name): value for name, value in op.fields.items() if isinstance(value, Tensor)}
    return _restore_original_tensors(graph, build_composite_backward(use.problem, None), given | bias)


def _read_bias(op: Operation, dims: tuple[int, ...] | None) -> dict[str, Tensor] | None:
    """Return the bias that attention's sub-graph adds; None if the sub-graph contains other operations."""
    inner = [one for sub in op.subgraphs() for one in iterate_all_ops(sub)]
    read = [tensor for one in inner for tensor in one.inputs().values()]
    if any(tensor.by_value and tensor.value is None for tensor in read):
        return None  # a bound that is not known
    if any(isinstance(one, Operation) and one.kind is not _D.OPERATION_DIAGONAL_BAND_MASK for one in inner):
        return None
    lengths = [op.fields[name].uid for name in ("seq_len_q", "seq_len_kv") if name in op.fields]
    found = [tensor for tensor in read if not (tensor.virtual or tensor.by_value or tensor.uid in lengths)]
    if any(tensor.dims != dims for tensor in found) or bool(found) != (dims is not None):
        return None
    return {"bias": found[0]} if found else {}


_OURS = {"d_o": "do"}
_TAKEN_BACKWARD = {
    "q", "k", "v", "o", "d_o", "dq", "dk", "dv", "stats", "scale", "dbias", "seq_len_q", "seq_len_kv", "sink", "dsink",
    "dropout_seed", "dropout_offset", "dropout_probability", "subgraph", "subgraph_input_uid", "subgraph_output_uid",
}  # fmt: skip


def _restore_original_tensors(graph: Graph, made: Graph, given: dict[str, Tensor]) -> Graph | None:
    """Return the rebuilt graph with the original graph's tensors and layouts, matched by name.

    K and V have s and d swapped, where they are multiplied from the right; what a reshape makes of K is as K is again.
    """
    uids, names = iterate_unused_uids(graph), {tensor.name for tensor in graph.tensors}
    far = 1 + max(tensor.uid for one in (graph, made) for tensor in one.tensors)
    moved = {tensor.uid: dataclasses.replace(tensor, uid=far + tensor.uid) for tensor in made.tensors}
    made = Graph(replace_tensors_in_ops(made.ops, moved), graph.name)  # no uid of one graph is one of the other
    reshapes = [op for op in made.ops if isinstance(op, Operation) and op.kind is _D.OPERATION_RESHAPE]
    turned = {op.fields["y"].uid: given[x.name] for op in reshapes if (x := op.fields["x"]).name in given}
    new: dict[int, Tensor] = {}
    for tensor in made.tensors:
        mine = given.get(tensor.name)
        like = (
            _rename_if_used(tensor, next(uids), names) if mine is None else _reshape_original_to_dims_of(tensor, mine)
        )
        if like is None:
            return None
        if tensor.uid in turned and turned[tensor.uid].dims == tensor.dims:
            like = dataclasses.replace(like, strides=turned[tensor.uid].strides)
        new[tensor.uid] = like
    return Graph(replace_tensors_in_ops(made.ops, new), graph.name)


def _rename_if_used(tensor: Tensor, uid: int, names: set[str]) -> Tensor:
    """Return the tensor with this uid, renamed if its name is in `names`; add the name to `names`."""
    name = tensor.name
    while name in names:
        name += "_"
    names.add(name)
    return dataclasses.replace(tensor, uid=uid, name=name)


def _reshape_original_to_dims_of(tensor: Tensor, mine: Tensor) -> Tensor | None:
    """Return the original tensor `mine` with the dims of `tensor`; None if element counts differ."""
    if mine.by_value:
        return dataclasses.replace(tensor, uid=mine.uid, name=mine.name, value=mine.value)
    kept = _transpose_last_two_dims(mine) if tensor.name in ("k", "v") else mine
    if math.prod(kept.dims) != math.prod(tensor.dims):
        return None
    strides = kept.strides if kept.dims == tensor.dims else tensor.strides
    return dataclasses.replace(mine, dims=tensor.dims, strides=strides)
