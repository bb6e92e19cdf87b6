"""``AttentionNode``: an attention pass in a graph under construction, emitted by ``graph.attention``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...graph import GraphBuilder
from ...graph.attention.backward import add_composite_backward
from ...graph.attention.builder import SINGLE_OPS_SINCE, AttentionBuilder
from ...graph.attention.forward import add_composite_forward
from ...graph.attention.problem import UncheckedAttention
from ...graph.attention.unified import add_unified_forward
from ...graph.data_types import FP8_TYPES
from ...graph.ir import Tensor
from ...plans.choice import EngineChoice
from ..enums import data_type, diagonal_alignment
from ..errors import make_not_supported_error
from ..recorded import GraphRecord
from ..tensors import tensor, to_float32_hex
from .attention_rules import (
    AttentionRequest,
    Kind,
    check_attention_request,
    check_softmax_outputs,
    choose_engine,
    is_deterministic,
    uses_unified_sdpa,
)
from .base import OpsBase
from .node import Emitter, Node, check_and_infer_properties, pack_strides

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["AttentionNode", "ScoreMod", "get_port_name", "make_alibi_slopes"]

ScoreMod = Callable[[Any, tensor], tensor]

_ROW_STATISTICS = ("stats", "max", "sum_exp")
_OUTPUT_ARGUMENTS = frozenset({"max", "sum_exp", "rng_dump", "dbias", "dsink"})  # outputs that are given as arguments
_NODE_TAGS: dict[tuple[Kind, bool], str] = {
    ("half", False): "SDPA",
    ("fp8", False): "SDPA_FP8_FWD",
    ("mxfp8", False): "SDPA_MXFP8_FWD",
    ("half", True): "SDPA_BWD",
    ("fp8", True): "SDPA_FP8_BWD",
    ("mxfp8", True): "SDPA_MXFP8_BWD",
}
# cudnn-frontend's names of ports, where they are not ours with the first letter capital.
_PORT_NAMES = {
    "do": "dO",
    "dq": "dQ",
    "dk": "dK",
    "dv": "dV",
    "dp": "dP",
    "dbias": "dBias",
    "dsink": "DSINK_TOKEN",
    "sink": "SINK_TOKEN",
    "scale": "Attn_scale",
    "seq_len_q": "SEQ_LEN_Q",
    "seq_len_kv": "SEQ_LEN_KV",
    "cu_seq_len_q": "CU_SEQ_LEN_Q",
    "cu_seq_len_kv": "CU_SEQ_LEN_KV",
    "dropout_seed": "Seed",
    "dropout_offset": "Offset",
    "rng_dump": "RNG_DUMP",
    "page_table_k": "Page_table_K",
    "page_table_v": "Page_table_V",
}


def make_alibi_slopes(heads: int) -> list[float]:
    """Return the ALiBi slopes, one per head, to store with the graph."""
    from ...interpreter.reference import alibi_slopes as slopes

    return [float(slope) for slope in slopes(heads).ravel()]


class AttentionNode(Node):
    """A forward or backward pass of attention, with cudnn-frontend's tensors and options."""

    def __init__(self, request: AttentionRequest, outputs: Iterable[str], graph: OpsBase) -> None:
        self.request = request
        self._context = graph.context
        self.graph = weakref.ref(graph)  # which holds its nodes
        given = {name for name in request.tensors if name in _OUTPUT_ARGUMENTS}
        super().__init__(
            request.name,
            request.compute,
            {get_port_name(name): item for name, item in request.tensors.items() if name not in given},
            {get_port_name(name): request.tensors[name] for name in given},
        )
        for port, item in self.inputs.items():
            if not item.name:
                item.set_name(f"{self.name}::{port}")
        for name in outputs:
            request.tensors[name] = self.add_output(get_port_name(name))
        self.tag = _NODE_TAGS[request.kind, request.backward]

    def list_parameters(self) -> dict[str, Any]:
        r = self.request
        return {
            "alibi_mask": r.alibi,
            "padding_mask": r.padding,
            "dropout_probability": to_float32_hex(r.dropout),
            "attn_scale_value": to_float32_hex(r.scale),
            "max_total_seq_len_q": r.max_total_seq_q,
            "max_total_seq_len_kv": r.max_total_seq_kv,
            "left_bound": r.left_bound,
            "right_bound": r.right_bound,
            "diagonal_alignment": r.alignment.name,
            "is_mxfp8": r.kind == "mxfp8",
            **({"score_mod": True} if r.score_mod or r.score_mod_bprop else {}),
            **(
                {"is_deterministic_algorithm": r.deterministic}
                if r.backward
                else {
                    "generate_stats": r.stats,
                    "max_seq_len_kv": r.max_seq_kv,
                    "implementation": "UNIFIED" if uses_unified_sdpa(r, self._context) else "COMPOSITE",
                    "mma_core_mode": "HALF" if r.kind == "half" else r.tensors["q"].data_type.name,
                    "stats_use_log2": r.stats_log2,
                    "unfuse_fma": r.unfuse_fma,
                }
            ),
        }

    def list_required_ranks(self) -> dict[tensor, int]:
        items = self.request.tensors.items()
        lengths = [item for name, item in items if name.startswith(("seq_len_", "cu_seq_len_"))]
        return dict.fromkeys([*lengths, *(item.ragged_offset for _, item in items if item.ragged_offset)], 4)

    def check(self, context: Context) -> None:
        check_attention_request(self.request, context)

    # what the user need not set

    def infer(self, context: Context) -> None:
        r = self.request
        b, h, s_q, _ = r.tensors["q"].dim
        for name, item in r.tensors.items():
            if name in _ROW_STATISTICS and not (name == "stats" and r.backward):
                _fill_output_properties(item, [b, h, s_q, 1], data_type.FLOAT)
            elif name.startswith("amax_"):
                _fill_output_properties(item, [1, 1, 1, 1], data_type.FLOAT)
            elif name == "rng_dump":
                _fill_output_properties(item, [b, h, s_q, r.s_kv], data_type.FLOAT)
            elif name in ("dq", "dk", "dv", "dbias", "dsink"):
                like = r.tensors.get(name[1:])
                _fill_output_properties(item, item.dim if like is None else like.dim)
        if not r.backward:
            _fill_output_properties(r.tensors["o"], [b, h, s_q, r.size("v", 3)])

    # to the graph

    def emit(self, to: Emitter) -> None:
        r, context = self.request, to.context
        to.get_compute_type(self)
        unified = uses_unified_sdpa(r, context)
        if unified and r.unfuse_fma and context.version < SINGLE_OPS_SINCE:
            raise make_not_supported_error(
                f"unfuse_fma of node {r.name!r} is not supported before cuDNN 9.21.0, the loaded library is "
                f"{context.version}"
            )
        if not unified and not r.backward:
            check_softmax_outputs(r, context)
        problem = self.to_problem(to)
        frame = AttentionBuilder(problem, "sdpa", context.version, to.builder, self._map_graph_tensors(to))
        if r.backward:
            add_composite_backward(frame)
        elif unified:
            add_unified_forward(frame, unfuse_fma=r.unfuse_fma)
        else:
            add_composite_forward(frame)
        if r.alibi:
            to.constants[frame.get_per_head_tensor("alibi_slopes").uid] = make_alibi_slopes(problem.heads)

    def _map_graph_tensors(self, to: Emitter) -> dict[str, Tensor]:
        """Emit the node's tensors; return them by their names in ``graph.attention``, such as ``q`` or ``stats``."""
        r = self.request
        values = {name: to.emit_tensor(item) for name, item in r.tensors.items()}
        if r.kind == "mxfp8" and r.backward:
            values["o_f16"] = values["o"]
            for name in ("q", "k"):
                values[f"descale_{name}_t"] = _set_frontend_scale_strides(
                    values[f"descale_{name}_t"], values[name].dims
                )
        return values

    def to_problem(self, to: Emitter) -> UncheckedAttention:
        """Convert the node to the :class:`UncheckedAttention` from which ``graph.attention`` makes operations."""
        r, context = self.request, to.context
        q, k, v = (r.tensors[name] for name in ("q", "k", "v"))
        kind = to.emit_tensor(q).data_type
        if (kind in FP8_TYPES) != (r.kind != "half"):
            raise make_not_supported_error(
                f"attention node {r.name!r} has Q of {kind.name}, which is not supported by this method",
                fix="use sdpa and sdpa_backward for 16-bit floats, sdpa_fp8 and sdpa_mxfp8 with their backward for fp8",
            )
        paged = next((name for name in ("k", "v") if r.has(f"page_table_{name}")), None)
        bounded = self._uses_total_lengths(context)
        bias = r.get("bias")
        return UncheckedAttention(
            name=r.name,
            batch=q.dim[0],
            heads=q.dim[1],
            seq_q=q.dim[2],
            head_dim=q.dim[3],
            seq_kv=r.s_kv,
            head_dim_v=v.dim[3],
            kv_heads=k.dim[1],
            v_heads=v.dim[1],
            data_type=kind,
            output_type=to.emit_tensor(r.tensors["dq" if r.backward else "o"]).data_type,
            mx=r.kind == "mxfp8",
            layout=self._read_strides_by_name(),
            scale=r.scale if r.scale is not None else "tensor" if r.has("scale") else "none",
            left_bound=r.left_bound,
            right_bound=r.right_bound,
            alignment="top_left" if r.alignment == diagonal_alignment.TOP_LEFT else "bottom_right",
            padding=r.padding,
            ragged=r.is_ragged and r.padding,
            ragged_stats=r.has("stats") and r.tensors["stats"].ragged_offset is not None,
            max_total_seq_q=r.max_total_seq_q if bounded else None,
            max_total_seq_kv=r.max_total_seq_kv if bounded else None,
            page_size=None if paged is None else r.size(paged, 2),
            pages_k=k.dim[0],
            pages_v=v.dim[0],
            bias=None if bias is None else _to_rank_4(bias.dim),
            dbias=r.has("dbias"),
            alibi=r.alibi,
            score_modifier=None if r.score_mod is r.score_mod_bprop is None else _ScoreModifier(self, to),
            dropout=r.dropout or 0.0,
            dropout_mask=r.has("dropout_mask"),
            rng_dump=r.has("rng_dump") and bool(r.dropout),
            sink=r.has("sink"),
            dsink=r.has("dsink"),
            stats=r.stats,
            max=r.has("max"),
            sum_exp=r.has("sum_exp"),
            stats_log2=r.stats_log2,
            block_mask=r.has("block_mask"),
            deterministic=is_deterministic(r, context),
        )

    def _read_strides_by_name(self) -> dict[str, tuple[int, ...]]:
        names = ("q", "k", "v", "o", "do", "dq", "dk", "dv", "stats")
        return {name: tuple(self.request.tensors[name].stride) for name in names if self.request.has(name)}

    def _uses_total_lengths(self, context: Context) -> bool:
        """Return whether ``max_total_seq_len_q`` and ``_kv`` take effect; cudnn-frontend ignores them in some cases."""
        whole = self.request.size("q", 3) % 16 == 0 and self.request.size("v", 3) % 16 == 0
        small = context.version >= (9, 18, 1) and context.sm // 10 in (8, 12)
        return context.version >= (9, 6, 0) and whole and not small

    def choose_engine(self, context: Context) -> EngineChoice | None:
        """Return the engine config that cudnn-frontend hard-codes for this pass, None if it queries the heuristics."""
        return choose_engine(self.request, context)


def get_port_name(name: str) -> str:
    """Return cudnn-frontend's name for the port of a tensor: ``Amax_dQ``, ``Descale_K_T``, ``Stats``."""
    known = _PORT_NAMES.get(name)
    if known is not None:
        return known
    first, _, rest = name.partition("_")
    if first in ("descale", "scale", "amax"):
        return f"{first.capitalize()}_{get_port_name(rest)}"
    if rest in ("t", "f16"):
        return f"{get_port_name(first)}_{rest.replace('t', 'T')}"
    return name.capitalize()


def _to_rank_4(dims: list[int]) -> tuple[int, int, int, int]:
    b, h, s_q, s_kv = dims
    return b, h, s_q, s_kv


def _set_frontend_scale_strides(scales: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return block scales along s with the strides that cudnn-frontend uses, instead of the user's."""
    b, h, s, _ = dims
    blocks = -(-s // 128) * 4 * 128
    return replace(scales, strides=(h * blocks, blocks, b * h * blocks, 1))


def _fill_output_properties(item: tensor, dims: list[int], kind: data_type = data_type.NOT_SET) -> None:
    """Set an output's missing dims, packed strides and type."""
    item.dim = item.dim or list(dims)
    item.stride = item.stride or pack_strides(item.dim)
    if item.data_type == data_type.NOT_SET:
        item.data_type = kind


class _ScoreModifier:
    """Score modifier that runs the user's score_mod or score_mod_bprop and emits the nodes that it adds."""

    def __init__(self, node: AttentionNode, to: Emitter) -> None:
        self._node = node
        self._to = to

    def forward(self, g: GraphBuilder, score: Tensor) -> Tensor:
        return self._emit_score_mod(self._node.request.score_mod, score)

    def backward(self, g: GraphBuilder, d_score: Tensor, score: Tensor) -> Tensor:
        return self._emit_score_mod(self._node.request.score_mod_bprop, d_score)

    def _emit_score_mod(self, modify: ScoreMod | None, value: Tensor) -> Tensor:
        if modify is None:
            return value
        to, context = self._to, self._to.context
        stands_for = tensor(value.dims, value.strides, data_type[value.data_type.name], is_virtual=True)
        stands_for.set_name(value.name)
        to.tensors[stands_for] = value
        inner = copy(self._node.graph())
        assert inner is not None
        inner._nodes, inner.record = [], GraphRecord()
        result = modify(inner, stands_for)
        if not isinstance(result, tensor):
            raise TypeError(f"score_mod of {self._node.name!r} returned {result!r}, a cudnn.tensor is needed")
        for node in inner._nodes:
            check_and_infer_properties(node, context)
            node.emit(to)
        return to.emit_tensor(result)
