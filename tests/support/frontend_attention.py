"""Attention problems as calls of cudnn-frontend's methods on a graph that works without a library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudnn_backend_py import DataType, Graph
from cudnn_backend_py.frontend import attention_implementation, data_type, diagonal_alignment, tensor
from cudnn_backend_py.frontend.ops.attention import AttentionOps
from cudnn_backend_py.frontend.ops.node import Emitter, Node
from cudnn_backend_py.frontend.ops.pointwise import PointwiseOps
from cudnn_backend_py.graph.attention import Attention, SoftCap

__all__ = ["FLOAT", "HALF", "INT32", "NodeCheckContext", "RecordingGraph", "call_frontend_attention"]

HALF, FLOAT, INT32, INT64 = data_type.HALF, data_type.FLOAT, data_type.INT32, data_type.INT64


@dataclass
class NodeCheckContext:
    """cuDNN version, architecture and types for the checks of frontend nodes, without a library."""

    version: tuple[int, int, int] = (9, 19, 0)
    sm: int = 90
    io_type: data_type = HALF
    intermediate_type: data_type = FLOAT
    compute_type: data_type = FLOAT
    is_dynamic_shape_enabled: bool = False


@dataclass
class RecordingGraph(AttentionOps, PointwiseOps):
    """A frontend graph that records and checks nodes and converts them to a graph, without a library."""

    version: tuple[int, int, int] = (9, 19, 0)
    sm: int = 90
    _nodes: list[Node] = field(default_factory=list)
    situation: NodeCheckContext | None = None
    emitter: Emitter | None = None

    def __post_init__(self) -> None:
        self.context: Any = self.situation or NodeCheckContext(self.version, self.sm)

    def validate(self) -> None:
        context: Any = self.situation or NodeCheckContext(self.version, self.sm)
        for node in self._nodes:
            node.check(context)
            node.infer(context)
            for item in node.iterate_tensors():
                if item.data_type == data_type.NOT_SET:
                    item.data_type = context.intermediate_type if item.virtual else context.io_type

    def graph(self) -> Graph:
        """Return the recorded graph as a `Graph`."""
        self.validate()
        context: Any = self.situation or NodeCheckContext(self.version, self.sm)
        self.emitter = Emitter(context, "recorded", nodes=self._nodes)
        for node in self._nodes:
            node.emit(self.emitter)
        return self.emitter.make_graph()


def _make_scalar_tensor(kind: data_type, rank: int = 4, **options: Any) -> tensor:
    return tensor([1] * rank, [1] * rank, kind, **options)


class _AttentionProblemTensors:
    """The frontend tensors of an attention problem, created as a user creates them."""

    def __init__(self, p: Attention) -> None:
        self.p = p
        self.kind = data_type[p.data_type.name]
        self.offsets: dict[str, tensor] = {}

    def make_input_or_output(self, name: str, kind: data_type | None = None) -> tensor:
        p = self.p
        return self.add_ragged_offset(tensor(p.dims(name), p.strides(name), kind or self.kind, name=name), name)

    def add_ragged_offset(self, item: tensor, name: str) -> tensor:
        of = name.removeprefix("d")
        if self.p.ragged if of != "stats" else self.p.ragged_stats:
            offset = tensor([self.p.batch + 1, 1, 1, 1], [1] * 4, data_type[self.p.offset_type.name])
            item.set_ragged_offset(self.offsets.setdefault(of, offset))
        return item

    def make_packed_tensor(self, dims: tuple[int, ...], kind: data_type) -> tensor:
        strides = [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1]
        return tensor(dims, strides, kind)

    def make_stats_tensor(self, name: str) -> tensor:
        return self.add_ragged_offset(tensor(self.p.dims("stats"), self.p.strides("stats"), FLOAT, name=name), "stats")

    def make_tensor_per_head(self) -> tensor:
        return self.make_packed_tensor((1, self.p.heads, 1, 1), FLOAT)


def _make_common_options(made: _AttentionProblemTensors, *, fp8: bool, backward: bool) -> dict[str, Any]:
    p = made.p
    left, right = ("left_bound", "right_bound") if fp8 else ("diagonal_band_left_bound", "diagonal_band_right_bound")
    corner = diagonal_alignment.BOTTOM_RIGHT if p.alignment == "bottom_right" else diagonal_alignment.TOP_LEFT
    options: dict[str, Any] = {
        "attn_scale": p.scale_value,
        "use_padding_mask": p.padding,
        left: p.left_bound,
        right: p.right_bound,
        "diagonal_alignment": corner,
        "name": "attention",
    }
    if p.padding:
        for name in ("seq_len_q", "seq_len_kv"):
            options[name] = tensor([p.batch, 1, 1, 1], [1] * 4, INT32)
    if p.sink:
        options["sink_token"] = made.make_tensor_per_head()
    if p.dropout:
        options["dropout"] = (p.dropout, _make_scalar_tensor(INT64), _make_scalar_tensor(INT64))
    if p.dropout_mask:
        mask = made.make_packed_tensor((p.batch, p.heads, p.seq_q, p.seq_kv), made.kind)
        scales = [_make_scalar_tensor(FLOAT) for _ in range(2 if backward else 1)]
        options["dropout"] = (mask, *scales)
    if fp8:
        return options
    options["use_alibi_mask"] = p.alibi
    if p.bias is not None:
        options["bias"] = made.make_packed_tensor(p.bias, made.kind)
    if isinstance(p.score_modifier, SoftCap):
        cap = _make_scalar_tensor(FLOAT, is_pass_by_value=True)
        options["score_mod"] = lambda g, score: g.mul(a=g.tanh(input=g.div(a=score, b=cap)), b=cap)
    return options


def call_frontend_attention(
    recorder: RecordingGraph, p: Attention, *, backward: bool, unified: bool
) -> dict[str, tensor]:
    """Call the frontend's attention method for a problem; return the outputs by name, with the problem's layouts."""
    made = _AttentionProblemTensors(p)
    fp8 = p.is_fp8
    options = _make_common_options(made, fp8=fp8, backward=backward)
    inputs = {name: made.make_input_or_output(name) for name in ("q", "k", "v")}
    if backward:
        inputs |= {
            "o": made.make_input_or_output("o"),
            "dO": made.make_input_or_output("do"),
            "stats": made.make_stats_tensor("stats"),
        }
        names = _add_backward_scales(options) if fp8 else _add_backward_options(made, options)
        method = recorder.sdpa_fp8_backward if fp8 else recorder.sdpa_backward
    else:
        names = _add_forward_scales(made, options) if fp8 else _add_forward_options(made, options, unified=unified)
        method = recorder.sdpa_fp8 if fp8 else recorder.sdpa
    found = dict(zip(names, method(**inputs, **options), strict=True))
    for name, item in found.items():
        if item is None:
            continue
        item.set_output(True)
        if name in ("o", "dq", "dk", "dv"):
            item.set_dim(p.dims(name)).set_stride(p.strides(name)).set_data_type(data_type[_choose_output_type(p).name])
            made.add_ragged_offset(item, name)
        elif name == "stats":
            item.set_dim(p.dims("stats")).set_stride(p.strides("stats"))
            made.add_ragged_offset(item, "stats")
    return {name: item for name, item in found.items() if item is not None}


def _choose_output_type(p: Attention) -> DataType:
    assert p.output_type is not None
    return p.output_type


def _add_forward_options(made: _AttentionProblemTensors, options: dict[str, Any], *, unified: bool) -> tuple[str, ...]:
    p = made.p
    kinds = attention_implementation
    options |= {"generate_stats": p.stats, "implementation": kinds.UNIFIED if unified else kinds.COMPOSITE}
    options |= {"score_max": made.make_stats_tensor("max")} if p.max else {}
    options |= {"score_sum_exp": made.make_stats_tensor("sum_exp")} if p.sum_exp else {}
    if p.page_size is not None:
        for name in ("k", "v"):
            options[f"paged_attention_{name}_table"] = made.make_packed_tensor(
                (p.batch, 1, p.pages_per_sequence, 1), INT32
            )
        options["paged_attention_max_seq_len_kv"] = p.seq_kv
    return "o", "stats"


def _add_forward_scales(made: _AttentionProblemTensors, options: dict[str, Any]) -> tuple[str, ...]:
    for name in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o"):
        options[name] = _make_scalar_tensor(FLOAT)
    options["generate_stats"] = made.p.stats
    return "o", "stats", "amax_s", "amax_o"


def _add_backward_options(made: _AttentionProblemTensors, options: dict[str, Any]) -> tuple[str, ...]:
    p = made.p
    options["use_deterministic_algorithm"] = p.deterministic
    options |= {"max_total_seq_len_q": p.max_total_seq_q, "max_total_seq_len_kv": p.max_total_seq_kv}
    if p.dbias and p.bias is not None:
        options["dBias"] = made.make_packed_tensor(p.bias, made.kind)
    if p.dsink:
        options["dSink_token"] = made.make_tensor_per_head()
    return "dq", "dk", "dv"


def _add_backward_scales(options: dict[str, Any]) -> tuple[str, ...]:
    for name in ("q", "k", "v", "o", "dO", "s", "dP"):
        options[f"descale_{name}"] = _make_scalar_tensor(FLOAT)
    for name in ("s", "dQ", "dK", "dV", "dP"):
        options[f"scale_{name}"] = _make_scalar_tensor(FLOAT)
    return "dq", "dk", "dv", "amax_dq", "amax_dk", "amax_dv", "amax_dp"
