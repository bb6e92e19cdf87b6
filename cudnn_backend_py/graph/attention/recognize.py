"""Recognize attention in any graph by its data flow, also in a graph from a log.

Names mean nothing here. Forward: one matmul of tensors in memory (Q and K^T), a softmax, and a matmul of what it
gives with V. Backward: two matmuls of tensors in memory, of which the one that leads to an exponential is Q @ K^T and
the other dO @ V^T; the other three give dV, dK and dQ. Or one SDPA operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, TensorReordering
from .. import Graph
from ..guard import call_and_report_errors
from ..ir import Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ..strides import swap_last_two_axes
from .known_issue import AttentionUse
from .modifiers import SoftCap
from .problem import UncheckedAttention

__all__ = ["read_attention"]

_D, _P = DescriptorType, PointwiseMode
_INTEGERS = (DataType.INT32, DataType.INT64)

# Operations whose result is their input in another order or number format.
_SAME_VALUES = (_D.OPERATION_RESHAPE, _D.OPERATION_TRANSPOSE, _D.OPERATION_SLICE, _D.OPERATION_BLOCK_SCALE_DEQUANTIZE)

# What masks, biases and scales are made of; any other operation on the scores is a modifier.
_PLAIN = frozenset({_P.ADD, _P.SUB, _P.MUL, _P.GEN_INDEX, _P.BINARY_SELECT, _P.IDENTITY, _P.LOGICAL_AND, _P.LOGICAL_OR})


def read_attention(graph: Graph) -> AttentionUse | None:
    """Return the attention that a graph computes, its direction and form (unified, composite); None if it has none.

    Bounds and dropout of unknown size count as 1 and 0.5. Small-sequence graphs, which keep S in F16x16 order, are
    not read.
    """
    return call_and_report_errors("the reading of attention", None, _read_graph, graph)


def _read_graph(graph: Graph) -> AttentionUse | None:
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in (_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD):
            return _read_unified_sdpa(op)
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    if len(matmuls) < 2 or any(len(op.c.dims) != 4 for op in matmuls):
        return None
    if any(tensor.reordering is TensorReordering.F16x16 for tensor in graph.tensors):
        return None
    return _CompositeAttentionReader(graph, matmuls).read()


class _DataFlow:
    """The operations that write and read each tensor of a graph."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = tuple(ops)
        self.writer: dict[int, Op] = {tensor.uid: op for op in self.ops for tensor in op.outputs().values()}
        self.readers: dict[int, list[Op]] = {}
        for op in self.ops:
            for tensor in op.inputs().values():
                self.readers.setdefault(tensor.uid, []).append(op)

    def find_source_in_memory(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor in memory that holds the values of `tensor`; None if they are computed."""
        while tensor.virtual:
            op = self.writer.get(tensor.uid)
            if not isinstance(op, Operation):
                return None
            if op.kind is _D.OPERATION_PAGED_CACHE_LOAD:
                tensor = op.fields["container"]
            elif op.kind in _SAME_VALUES:
                tensor = op.fields["x"]
            else:
                return None
        return None if tensor.uid in self.writer else tensor

    def iterate_operations_after(self, uid: int) -> Iterator[Op]:
        """Yield the operations that depend on a tensor, up to other matmuls."""
        waiting, seen = [uid], set()
        while waiting:
            for op in self.readers.get(waiting.pop(), ()):
                if id(op) in seen or isinstance(op, Matmul):
                    continue
                seen.add(id(op))
                yield op
                waiting += [tensor.uid for tensor in op.outputs().values()]

    def find_index_arithmetic_before(self, tensor: Tensor) -> tuple[list[Pointwise], bool]:
        """Return the integer additions and subtractions before a tensor, and whether they start with GEN_INDEX."""
        found: list[Pointwise] = []
        while True:
            op = self.writer.get(tensor.uid)
            if not isinstance(op, Pointwise):
                return found, False
            if op.mode is _P.GEN_INDEX:
                return found, True
            if op.mode not in (_P.ADD, _P.SUB) or op.x is None:
                return found, False
            found.append(op)
            tensor = op.x


def _read_band_bound(tensor: Tensor | None) -> int:
    """Return a tensor's constant value; 1 if it has none or if it is not finite."""
    known = tensor is not None and tensor.value is not None and math.isfinite(tensor.value)
    return int(tensor.value) if known and tensor is not None and tensor.value is not None else 1


def _read_score_options(flow: _DataFlow, first: int) -> dict[str, Any]:
    """Return the options found in the operations on the scores after tensor `first`: bias, ALiBi, bounds, padding."""
    found: dict[str, Any] = {}
    for op in flow.iterate_operations_after(first):
        if isinstance(op, Pointwise):
            _read_mask_or_bias(flow, op, found)
        elif op.kind is _D.OPERATION_DIAGONAL_BAND_MASK and isinstance(op, Operation):
            _read_band_mask(op, found)
    return found


def _read_mask_or_bias(flow: _DataFlow, op: Pointwise, found: dict[str, Any]) -> None:
    if op.mode is _P.ADD and op.x is not None and op.b is not None:
        for other in (op.x, op.b):
            if other.virtual or other.by_value or other.uid in flow.writer or other.data_type in _INTEGERS:
                continue
            found.setdefault("bias", other.dims)
        found["alibi"] = found.get("alibi", False) or any(_is_alibi(flow, other) for other in (op.x, op.b))
    elif op.mode is _P.BINARY_SELECT and op.t is not None:
        mask = flow.writer.get(op.t.uid)
        if isinstance(mask, Pointwise) and mask.x is not None and mask.b is not None:
            if mask.mode is _P.LOGICAL_AND:
                found["padding"] = True
            elif mask.mode is _P.CMP_GE:
                _read_right_bound(flow, mask.x, found)
            elif mask.mode is _P.CMP_GT:
                _read_left_bound(flow, mask.x, found)


def _is_alibi(flow: _DataFlow, tensor: Tensor) -> bool:
    """Return whether a tensor is a distance of indices times a slope per head."""
    op = flow.writer.get(tensor.uid)
    if not isinstance(op, Pointwise) or op.mode is not _P.MUL or op.x is None:
        return False
    steps, index = flow.find_index_arithmetic_before(op.x)
    return index and len(steps) > 0


def _read_right_bound(flow: _DataFlow, row: Tensor, found: dict[str, Any]) -> None:
    steps, index = flow.find_index_arithmetic_before(row)
    if not index:
        return
    bottom = any(step.mode is _P.SUB for step in steps)
    shifts = [step for step in steps if step.mode is _P.ADD][1 if bottom else 0 :]
    found["right_bound"] = _read_band_bound(shifts[-1].b) if shifts else 0
    if bottom:
        found["alignment"] = "bottom_right"


def _read_left_bound(flow: _DataFlow, column: Tensor, found: dict[str, Any]) -> None:
    steps, index = flow.find_index_arithmetic_before(column)
    if not index or not steps:
        return
    found["left_bound"] = _read_band_bound(steps[-1].b)
    if any(step.mode is _P.SUB for step in steps):
        found["alignment"] = "bottom_right"


def _read_band_mask(op: Operation, found: dict[str, Any]) -> None:
    if op.fields["comparison_mode"] is _P.CMP_GE:
        shift = op.fields.get("shift_right_bound")
        found["right_bound"] = 0 if shift is None else _read_band_bound(shift)
    else:
        found["left_bound"] = _read_band_bound(op.fields.get("left_bound"))
    if "seq_len_kv" in op.fields or "cu_seq_len_kv" in op.fields:
        found["alignment"] = "bottom_right"


def _has_score_modifier(flow: _DataFlow, first: int) -> bool:
    return any(
        isinstance(op, Pointwise) and op.mode not in _PLAIN and not op.mode.name.startswith("CMP_")
        for op in flow.iterate_operations_after(first)
    )


def _has_activation(flow: _DataFlow, first: int) -> bool:
    """Return whether an activation follows the scores; only score modifiers have one."""
    pointwise = (op for op in flow.iterate_operations_after(first) if isinstance(op, Pointwise))
    return any(op.mode.name.endswith(("_FWD", "_BWD")) for op in pointwise)


def _has_rank_other_than_4(layout: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether some tensor has a rank other than 4, as in forms of attention that are not recognized."""
    return any(len(strides) != 4 for strides in layout.values())


def _read_ragged_options(*tensors: Tensor) -> dict[str, Any]:
    """Return whether any of the tensors is ragged, and the type of the offsets: INT64 only if all have it."""
    kinds = {tensor.ragged_offset.data_type for tensor in tensors if tensor.ragged_offset is not None}
    return {"ragged": len(kinds) > 0, "offset_type": DataType.INT64 if kinds == {DataType.INT64} else DataType.INT32}


# One operation


def _read_unified_sdpa(op: Operation) -> AttentionUse | None:
    fields = op.fields
    q, k, v, o = (fields[name] for name in "qkvo")
    if any(len(tensor.dims) != 4 for tensor in (q, k, v, o)):
        return None
    backward = op.kind is _D.OPERATION_SDPA_BWD
    found: dict[str, Any] = {}
    for graph in op.subgraphs():
        flow, first = _DataFlow(graph.ops), fields.get("subgraph_input_uid", -1)
        found |= _read_score_options(flow, first)
        if _has_score_modifier(flow, first):
            found["score_modifier"] = SoftCap(1.0)
    softmax = fields["softmax"].fields if "softmax" in fields else {}
    found |= {name: name in fields or name in softmax for name in ("stats", "max", "sum_exp", "sink", "dsink")}
    stats = fields.get("stats", softmax.get("stats"))
    found["dropout"] = fields.get("dropout_probability", 0.0)
    found["seed_type"] = fields["dropout_seed"].data_type if "dropout_seed" in fields else DataType.INT64
    found["dbias"] = "dbias" in fields
    found["block_mask"] = "block_mask" in fields
    found["dbias"] = "dbias" in fields
    found["rng_dump"] = "dropout_rng_dump" in fields
    found["max_total_seq_q"] = fields.get("max_total_seq_len_q")
    found["max_total_seq_kv"] = fields.get("max_total_seq_len_kv")
    if "seq_len_q" in fields or "cu_seq_len_q" in fields:
        found["padding"] = True
    layout = {"q": q.strides, "k": k.strides, "v": v.strides, "o": o.strides}
    if backward:
        layout |= {"do": fields["d_o"].strides} | {name: fields[name].strides for name in ("dq", "dk", "dv")}
    layout |= {} if stats is None else {"stats": stats.strides}
    if _has_rank_other_than_4(layout):
        return None
    seq_kv = k.dims[2]
    if "page_table_k" in fields:
        found |= {"page_size": k.dims[2], "pages_k": k.dims[0], "pages_v": v.dims[0]}
        table = fields["page_table_k"]
        seq_kv *= table.dims[2] if table.rank > 2 else 1
        if softmax:  # the last page may reach beyond s_kv, which only the scores report
            seq_kv = softmax["x"].dims[3]
        elif "subgraph" in fields:
            seq_kv = fields["subgraph"].tensor(fields["subgraph_input_uid"]).dims[3]
    problem = UncheckedAttention(
        batch=q.dims[0],
        heads=q.dims[1],
        seq_q=q.dims[2],
        head_dim=q.dims[3],
        seq_kv=seq_kv,
        head_dim_v=v.dims[3],
        kv_heads=k.dims[1],
        v_heads=v.dims[1],
        data_type=q.data_type,
        output_type=(fields["dq"] if backward else o).data_type,
        mx="descale_q" in fields and fields["descale_q"].data_type is DataType.FP8_E8M0,
        **_read_ragged_options(q, k, v, o),
        ragged_stats=stats is not None and stats.ragged_offset is not None,
        layout=layout,
        **found,
    )
    return AttentionUse(problem, backward, "unified")


# Many operations


class _CompositeAttentionReader:
    """Reads attention from a graph of many operations."""

    def __init__(self, graph: Graph, matmuls: list[Matmul]) -> None:
        self.graph = graph
        self.flow = _DataFlow(graph.ops)
        self.matmuls = matmuls
        self.single_ops = any(op.kind in (_D.OPERATION_SOFTMAX, _D.OPERATION_DIAGONAL_BAND_MASK) for op in graph.ops)

    def read(self) -> AttentionUse | None:
        roots = [
            op for op in self.matmuls if self.flow.find_source_in_memory(op.a) and self.flow.find_source_in_memory(op.b)
        ]
        scores = [op for op in roots if self._is_followed_by_softmax(op)]
        if len(scores) != 1:
            return None
        if len(self.matmuls) == 2 and len(roots) == 1:
            return self._read_forward(scores[0], next(op for op in self.matmuls if op is not scores[0]))
        others = [op for op in roots if op is not scores[0]]
        if len(self.matmuls) == 5 and len(others) == 1:
            return self._read_backward(scores[0], others[0])
        return None

    def _is_followed_by_softmax(self, matmul: Matmul) -> bool:
        return any(
            op.kind is _D.OPERATION_SOFTMAX or (isinstance(op, Pointwise) and op.mode is _P.EXP)
            for op in self.flow.iterate_operations_after(matmul.c.uid)
        )

    def _read_forward(self, score: Matmul, second: Matmul) -> AttentionUse | None:
        v = self.flow.find_source_in_memory(second.b)
        o = self._find_result_in_memory(second)
        if v is None or o is None:
            return None
        found = self._read_softmax_statistics(score) | {
            "layout": {"v": v.strides, "o": o.strides},
            "output_type": o.data_type,
        }
        return self._make_attention_use(score, second.b, v, found, backward=False)

    def _read_backward(self, score: Matmul, dp: Matmul) -> AttentionUse | None:
        flow = self.flow
        do, v = flow.find_source_in_memory(dp.a), flow.find_source_in_memory(dp.b)
        if do is None or v is None:
            return None
        layout: dict[str, tuple[int, ...]] = {"do": do.strides, "v": swap_last_two_axes(v.strides)}
        for op in self.graph.ops:  # dO * O, of which O comes last where both are copies of another type
            if isinstance(op, Pointwise) and op.mode is _P.MUL and op.x is not None and op.b is not None:
                pair = [
                    tensor
                    for tensor in (op.x, op.b)
                    if flow.find_source_in_memory(tensor) is tensor and tensor.dims == do.dims
                ]
                if len(pair) == 2:
                    layout["o"] = next(tensor for tensor in reversed(pair) if tensor.uid != do.uid).strides
        layout.setdefault("o", do.strides)
        found: dict[str, Any] = {"layout": layout, "stats": True}
        read = {flow.find_source_in_memory(score.a): "dk", do: "dv", flow.find_source_in_memory(score.b): "dq"}
        for op in self.matmuls:
            name = None if op in (score, dp) else read.get(flow.find_source_in_memory(op.b))
            result = self._find_result_in_memory(op)
            if name is None or result is None:
                continue
            layout[name] = result.strides
            if name == "dq":
                found |= {"output_type": result.data_type, "deterministic": op.c is result}
            if not op.c.virtual and op.c.ragged_offset is not None and op.c is not result:
                found["max_total_seq_q" if name == "dq" else "max_total_seq_kv"] = op.c.dims[0] * op.c.dims[2]
        found |= self._read_bias_and_sink_gradients(score)
        found["deterministic"] = found.get("deterministic", False) and not found.get("dbias", False)
        return self._make_attention_use(score, dp.b, v, found, backward=True)

    def _read_bias_and_sink_gradients(self, score: Matmul) -> dict[str, Any]:
        """Return whether the pass writes gradients of the sink and of the bias, and whether its stats are ragged."""
        heads = score.c.dims[1]
        found: dict[str, Any] = {}
        for op in self.graph.ops:
            if isinstance(op, Reduction) and not op.y.virtual and op.operator is ReduceTensorOp.ADD:
                if op.y.dims == (1, heads, 1, 1) and op.x.dims[3] == 1:
                    found |= {"sink": True, "dsink": True}
                elif op.x.dims == score.c.dims:
                    found["dbias"] = True
            elif (
                isinstance(op, Pointwise)
                and op.mode is _P.SUB
                and op.b is not None
                and self.flow.find_source_in_memory(op.b)
            ):
                row = op.b
                if row.dims == (*score.c.dims[:3], 1):
                    found["ragged_stats"] = row.ragged_offset is not None
                    found["stats_strides"] = row.strides
        return found

    def _find_result_in_memory(self, matmul: Matmul) -> Tensor | None:
        """Return the tensor in memory to which a matmul's product is written after scaling, summing or conversion."""
        tensors = [matmul.c]
        for op in self.flow.iterate_operations_after(matmul.c.uid):
            tensors += op.outputs().values()
        fitting = [
            tensor
            for tensor in tensors
            if not tensor.virtual
            and tensor.dims[2:] == matmul.c.dims[2:]
            and tensor.dims[0] == matmul.c.dims[0]
            and tensor.uid not in {read.uid for op in self.matmuls for read in (op.a, op.b)}
        ]
        return fitting[-1] if fitting else None

    def _read_softmax_statistics(self, score: Matmul) -> dict[str, Any]:
        """Return the statistics that a forward pass writes and whether it has a sink."""
        row = (*score.c.dims[:3], 1)
        heads = (1, score.c.dims[1], 1, 1)
        found: dict[str, Any] = {}
        for op in self.flow.iterate_operations_after(score.c.uid):
            if isinstance(op, Operation) and op.kind is _D.OPERATION_SOFTMAX:
                found |= {name: name in op.fields for name in ("stats", "max", "sum_exp", "sink")}
                tensors = [tensor for port, tensor in op.ports() if port == "stats"]
            elif isinstance(op, Pointwise) and op.mode is _P.MAX and op.b is not None and op.b.dims == heads:
                found["sink"] = True
                tensors = []
                found["max"] = not op.y.virtual if op.y is not None else False
            else:
                name, tensors = self._read_softmax_statistic(op, row)
                found |= {name: True} if tensors else {}
                tensors = tensors if name == "stats" else []
            for tensor in tensors:
                found["ragged_stats"] = tensor.ragged_offset is not None
                found["stats_strides"] = tensor.strides
        return found

    def _read_softmax_statistic(self, op: Op, row: tuple[int, ...]) -> tuple[str, list[Tensor]]:
        written = [tensor for tensor in op.outputs().values() if tensor.dims == row and not tensor.virtual]
        if isinstance(op, Reduction):
            names = {ReduceTensorOp.MAX: "max", ReduceTensorOp.ADD: "sum_exp"}
            return names.get(op.operator, ""), written if op.operator in names else []
        if isinstance(op, Pointwise) and op.mode is _P.ADD and op.b is not None:
            log = self.flow.writer.get(op.b.uid)
            is_stats = isinstance(log, Pointwise) and log.mode is _P.LOG
            return "stats" if is_stats else "sum_exp", written
        return "", []

    def _read_dropout(self, score: Matmul) -> dict[str, Any]:
        for op in self.graph.ops:
            if isinstance(op, Operation) and op.kind is _D.OPERATION_RNG:
                keep = op.fields["rng"].fields.get("bernoulli_dist_probability")
                seed = op.inputs().get("seed")
                random = {} if seed is None else {"seed_type": seed.data_type}
                return {"dropout": 0.5 if keep is None else 1 - keep, **random}
            if not isinstance(op, Pointwise) or op.mode is not _P.MUL or op.x is None or op.b is None:
                continue
            given = [factor for factor in (op.x, op.b) if self.flow.find_source_in_memory(factor) is factor]
            # dO * O and the slopes of ALiBi may have these dims too
            if len(given) == 1 and given[0].dims == score.c.dims and given[0].data_type is not DataType.FLOAT:
                return {"dropout_mask": True}
        return {}

    def _read_pages(self, matmul: Matmul) -> dict[str, Any]:
        op = self.flow.writer.get(matmul.b.uid)
        if not (isinstance(op, Operation) and op.kind is _D.OPERATION_PAGED_CACHE_LOAD):
            return {}
        container = op.fields["container"]
        if container.rank != 4:
            return {}
        return {"page_size": container.dims[2], "pages_k": container.dims[0]}

    def _make_attention_use(
        self, score: Matmul, v_side: Tensor, v: Tensor, found: dict[str, Any], *, backward: bool
    ) -> AttentionUse | None:
        """Return the attention problem; `v_side` is V as the matmul reads it: transposed in a backward pass."""
        q, k = self.flow.find_source_in_memory(score.a), self.flow.find_source_in_memory(score.b)
        if q is None or k is None:
            return None
        pages = self._read_pages(score)
        read = _read_score_options(self.flow, score.c.uid) | self._read_dropout(score) | pages | found
        layout = {"q": q.strides, "k": k.strides if pages else swap_last_two_axes(k.strides), **read.pop("layout")}
        if "stats_strides" in read:
            layout["stats"] = read.pop("stats_strides")
        if _has_rank_other_than_4(layout):
            return None
        if pages:
            read["pages_v"] = v.dims[0]
        if _has_activation(self.flow, score.c.uid):
            read["score_modifier"] = SoftCap(1.0)
        read.setdefault("output_type", q.data_type)
        if any(override is not None for op in self.matmuls for override in (op.m_override, op.n_override)):
            read["padding"] = True
        problem = UncheckedAttention(
            batch=score.c.dims[0],
            heads=score.c.dims[1],
            seq_q=score.c.dims[2],
            head_dim=score.a.dims[3],
            seq_kv=score.c.dims[3],
            head_dim_v=v_side.dims[2 if backward else 3],
            kv_heads=score.b.dims[1],
            v_heads=v_side.dims[1],
            data_type=q.data_type,
            mx=any(op.kind is _D.OPERATION_BLOCK_SCALE_DEQUANTIZE for op in self.graph.ops),
            **_read_ragged_options(q, k, v),
            layout=layout,
            **read,
        )
        return AttentionUse(problem, backward, "single operations" if self.single_ops else "expanded")
