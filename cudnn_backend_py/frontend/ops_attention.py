"""Attention under cudnn-frontend's names: the arguments become one problem that ``graph.attention`` builds."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any

from .. import reference
from ..generated.enums import KnobType
from ..graph import GraphBuilder
from ..graph.attention import Use, deterministic_config, find_hazards
from ..graph.attention.backward import add_composite_backward
from ..graph.attention.forward import add_composite_forward
from ..graph.attention.frame import SINGLE_OPS_SINCE, Frame, Place
from ..graph.attention.hazards import Form
from ..graph.attention.problem import FP8_TYPES, UncheckedAttention
from ..graph.attention.unified import add_unified_forward
from ..graph.ir import Tensor
from .attention_rules import Kind, Request, check, check_softmax_outputs, is_deterministic, is_unified
from .enums import attention_implementation, data_type, diagonal_alignment
from .errors import invalid_value, not_supported
from .nodes import Emitter, Node, packed, prepare
from .ops_base import OpsBase
from .tensor import tensor

if TYPE_CHECKING:
    from .pygraph import Context

__all__ = ["AttentionOps", "FrontendHazardWarning", "ScoreMod", "alibi_slopes"]

ScoreMod = Callable[[Any, tensor], tensor]

_NOT_SET = data_type.NOT_SET
_TOP_LEFT, _BOTTOM_RIGHT = diagonal_alignment.TOP_LEFT, diagonal_alignment.BOTTOM_RIGHT
_AUTO = attention_implementation.AUTO
_PER_ROW = ("stats", "max", "sum_exp")
_WRITTEN = frozenset({"max", "sum_exp", "rng_dump", "dbias", "dsink"})  # outputs that are given as arguments
_TAGS: dict[tuple[Kind, bool], str] = {
    ("half", False): "SDPA",
    ("fp8", False): "SDPA_FP8_FWD",
    ("mxfp8", False): "SDPA_MXFP8_FWD",
    ("half", True): "SDPA_BWD",
    ("fp8", True): "SDPA_FP8_BWD",
    ("mxfp8", True): "SDPA_MXFP8_BWD",
}
# cudnn-frontend's names of ports, where they are not ours with the first letter capital.
_PORTS = {
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
    "dropout_seed": "Seed",
    "dropout_offset": "Offset",
    "rng_dump": "RNG_DUMP",
    "page_table_k": "Page_table_K",
    "page_table_v": "Page_table_V",
}


class FrontendHazardWarning(UserWarning):
    """The graph is built as cudnn-frontend builds it, and cuDNN is known to get it wrong."""


_warned: set[str] = set()  # codes of hazards


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi, one a head, as numbers that are saved with the graph."""
    return [float(slope) for slope in reference.alibi_slopes(heads).ravel()]


class _Attention(Node):
    """A forward or backward pass."""

    def __init__(self, request: Request, outputs: Iterable[str], graph: AttentionOps) -> None:
        self.request = request
        self.graph = graph
        given = {name for name in request.tensors if name in _WRITTEN}
        super().__init__(
            request.name,
            request.compute,
            {_port(name): item for name, item in request.tensors.items() if name not in given},
            {_port(name): request.tensors[name] for name in given},
        )
        for port, item in self.inputs.items():
            if not item.name:
                item.set_name(f"{self.name}::{port}")
        for name in outputs:
            request.tensors[name] = self.output(_port(name))
        self.tag = _TAGS[request.kind, request.backward]

    def parameters(self) -> dict[str, Any]:
        r = self.request
        return {
            "generate_stats": r.stats,
            "alibi_mask": r.alibi,
            "padding_mask": r.padding,
            "dropout_probability": r.dropout,
            "attn_scale_value": r.scale,
            "max_seq_len_kv": r.max_seq_kv,
            "left_bound": r.left,
            "right_bound": r.right,
            "diagonal_alignment": r.alignment.name,
            "implementation": r.implementation.name,
            "is_deterministic_algorithm": r.deterministic,
            "is_mxfp8": r.kind == "mxfp8",
        }

    def check(self, context: Context) -> None:
        check(self.request, context)

    # what the user need not set

    def infer(self, context: Context) -> None:
        r = self.request
        b, h, s_q, _ = r.tensors["q"].dim
        for name, item in r.tensors.items():
            if name in _PER_ROW and not (name == "stats" and r.backward):
                _fill(item, [b, h, s_q, 1], data_type.FLOAT)
            elif name.startswith("amax_"):
                _fill(item, [1, 1, 1, 1], data_type.FLOAT)
            elif name == "rng_dump":
                _fill(item, [b, h, s_q, r.s_kv], data_type.FLOAT)
            elif name in ("dq", "dk", "dv", "dbias", "dsink"):
                like = r.tensors.get(name[1:])
                if like is not None and not item.dim:
                    item.dim, item.stride = list(like.dim), item.stride or list(like.stride)
                _fill(item, item.dim)
        if not r.backward:
            _fill(r.tensors["o"], [b, h, s_q, r.size("v", 3)])

    # to the graph

    def emit(self, to: Emitter) -> None:
        r, context = self.request, to.context
        to.compute(self)
        unified = is_unified(r, context)
        if unified and r.unfuse_fma and context.version < SINGLE_OPS_SINCE:
            raise not_supported(f"unfuse_fma of node {r.name!r} is not supported before cuDNN 9.21.0")
        if not unified and not r.backward:
            check_softmax_outputs(r, context)
        problem = self.problem(to)
        form: Form = "expanded" if context.version < SINGLE_OPS_SINCE else "single operations"
        self._warn(Use(problem, r.backward, "unified" if unified else form, context.version, context.sm))
        frame = Frame(problem, "sdpa", context.version, Place(to.g, self._values(to)))
        if r.backward:
            add_composite_backward(frame)
        elif unified:
            add_unified_forward(frame, unfuse_fma=r.unfuse_fma)
        else:
            add_composite_forward(frame)
        if r.alibi:
            to.constants[frame.per_head("alibi_slopes").uid] = alibi_slopes(problem.heads)

    def _values(self, to: Emitter) -> dict[str, Tensor]:
        """Return the user's tensors by their names in the problem."""
        r = self.request
        values = {name: to.tensor(item) for name, item in r.tensors.items()}
        if r.kind == "mxfp8" and r.backward:
            values["o_f16"] = values["o"]
            for name in ("q", "k"):
                values[f"descale_{name}_t"] = _rows_first(values[f"descale_{name}_t"], values[name].dims)
        return values

    def problem(self, to: Emitter) -> UncheckedAttention:
        """Return the node as an attention problem; the tensors themselves are those of the user."""
        r, context = self.request, to.context
        q, k, v = (r.tensors[name] for name in ("q", "k", "v"))
        kind = to.tensor(q).data_type
        if (kind in FP8_TYPES) != (r.kind != "half"):
            raise not_supported(
                f"attention node {r.name!r} has Q of {kind.name}, which is not supported by this method",
                fix="use sdpa and sdpa_backward for 16-bit floats, sdpa_fp8 and sdpa_mxfp8 with their backward for fp8",
            )
        paged = next((name for name in ("k", "v") if r.has(f"page_table_{name}")), None)
        bounded = self._takes_totals(context)
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
            output_type=to.tensor(r.tensors["dq" if r.backward else "o"]).data_type,
            mx=r.kind == "mxfp8",
            layout=self._layout(),
            scale=r.scale if r.scale is not None else "tensor" if r.has("scale") else "none",
            left_bound=r.left,
            right_bound=r.right,
            alignment="top_left" if r.alignment == _TOP_LEFT else "bottom_right",
            padding=r.padding,
            ragged=r.is_ragged and r.padding,
            ragged_stats=r.has("stats") and r.tensors["stats"].ragged_offset is not None,
            max_total_seq_q=r.max_total_q if bounded else None,
            max_total_seq_kv=r.max_total_kv if bounded else None,
            page_size=None if paged is None else r.size(paged, 2),
            pages_k=k.dim[0],
            pages_v=v.dim[0],
            bias=None if bias is None else _four(bias.dim),
            dbias=r.has("dbias"),
            alibi=r.alibi,
            score_modifier=None if r.score_mod is r.score_mod_bprop is None else _Modifier(self, to),
            dropout=r.dropout or 0.0,
            dropout_mask=r.has("dropout_mask"),
            rng_dump=r.has("rng_dump") and bool(r.dropout),
            sink=r.has("sink"),
            dsink=r.has("dsink"),
            stats=r.stats,
            max=r.has("max"),
            sum_exp=r.has("sum_exp"),
            block_mask=r.has("block_mask"),
            deterministic=is_deterministic(r, context),
        )

    def _layout(self) -> dict[str, tuple[int, ...]]:
        names = ("q", "k", "v", "o", "do", "dq", "dk", "dv", "stats")
        return {name: tuple(self.request.tensors[name].stride) for name in names if self.request.has(name)}

    def _takes_totals(self, context: Context) -> bool:
        """Return whether bounds of total lengths are used; elsewhere cudnn-frontend drops them, which costs memory."""
        whole = self.request.size("q", 3) % 16 == 0 and self.request.size("v", 3) % 16 == 0
        small = context.version >= (9, 18, 1) and context.sm // 10 in (8, 12)
        return context.version >= (9, 6, 0) and whole and not small

    def _warn(self, use: Use) -> None:
        for hazard in find_hazards(use):
            if hazard.code not in _warned:
                _warned.add(hazard.code)
                warnings.warn(
                    f"cuDNN gets this wrong ({hazard.code}): {hazard.what}. {hazard.effect}; {hazard.evidence}. "
                    f"What helps: {hazard.fix}",
                    FrontendHazardWarning,
                    stacklevel=2,
                )

    def engine_choice(self, context: Context) -> tuple[int, dict[KnobType, int]] | None:
        """Return engine and knobs that heuristics do not propose: deterministic backward passes on sm_10x."""
        r = self.request
        if not r.backward or context.sm // 10 != 10 or not is_deterministic(r, context):
            return None
        return deterministic_config(context.version, context.sm)


def _port(name: str) -> str:
    """Return cudnn-frontend's name of a tensor: ``Amax_dQ``, ``Descale_K_T``, ``Stats``."""
    known = _PORTS.get(name)
    if known is not None:
        return known
    first, _, rest = name.partition("_")
    if first in ("descale", "scale", "amax"):
        return f"{first.capitalize()}_{_port(rest)}"
    if rest in ("t", "f16"):
        return f"{_port(first)}_{rest.replace('t', 'T')}"
    return name.capitalize()


def _four(dims: list[int]) -> tuple[int, int, int, int]:
    b, h, s_q, s_kv = dims
    return b, h, s_q, s_kv


def _rows_first(scales: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return scales of blocks along s with the strides cudnn-frontend gives them, whatever the user's are."""
    b, h, s, _ = dims
    blocks = -(-s // 128) * 4 * 128
    return replace(scales, strides=(h * blocks, blocks, b * h * blocks, 1))


def _fill(item: tensor, dims: list[int], kind: data_type = _NOT_SET) -> None:
    """Give an output dims, packed strides and a type where it has none."""
    item.dim = item.dim or list(dims)
    item.stride = item.stride or packed(item.dim)
    if item.data_type == _NOT_SET:
        item.data_type = kind


class _Modifier:
    """The user's score_mod and score_mod_bprop, called with a graph of their own that is emitted where it belongs."""

    def __init__(self, node: _Attention, to: Emitter) -> None:
        self._node = node
        self._to = to

    def forward(self, g: GraphBuilder, score: Tensor) -> Tensor:
        return self._call(self._node.request.score_mod, score)

    def backward(self, g: GraphBuilder, d_score: Tensor, score: Tensor) -> Tensor:
        return self._call(self._node.request.score_mod_bprop, d_score)

    def _call(self, modify: ScoreMod | None, value: Tensor) -> Tensor:
        if modify is None:
            return value
        to, context = self._to, self._to.context
        stands_for = tensor(value.dims, value.strides, data_type[value.data_type.name], is_virtual=True)
        stands_for.set_name(value.name)
        to.tensors[stands_for] = value
        inner = copy(self._node.graph)
        inner.nodes = []
        result = modify(inner, stands_for)
        if not isinstance(result, tensor):
            raise TypeError(f"score_mod of {self._node.name!r} returned {result!r}, a cudnn.tensor is needed")
        for node in inner.nodes:
            prepare(node, context)
            node.emit(to)
        return to.tensor(result)


# arguments


def _tensors(required: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, tensor]:
    """Return tensors by name; every one that is given, and must be, is a ``cudnn.tensor``."""
    found: dict[str, tensor] = {}
    for name, value in {**required, **optional}.items():
        if value is None and name in optional:
            continue
        if not isinstance(value, tensor):
            raise TypeError(f"{_port(name)} of attention is {value!r}, a cudnn.tensor is needed")
        found[name] = value
    return found


def _int(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int):
        raise invalid_value(f"{name} must be an int (or None), got {value!r}: invalid")
    return int(value)


def _stats(generate_stats: Any, is_inference: Any) -> bool:
    if (generate_stats is None) == (is_inference is None):
        raise invalid_value(
            "exactly one of generate_stats and is_inference must be set", fix="generate_stats=True or False"
        )
    for name, value in (("generate_stats", generate_stats), ("is_inference", is_inference)):
        if value is not None and not isinstance(value, bool):
            raise invalid_value(f"{name} must be a bool, got {value!r}: invalid")
    return bool(generate_stats) if is_inference is None else not is_inference


def _mask(
    causal: bool, corner: bool, alignment: diagonal_alignment, right: Any, name: str
) -> tuple[diagonal_alignment, int | None]:
    """Return alignment and right bound; the older flags of causal masks exclude each other and the bound."""
    if causal and corner:
        raise invalid_value("use_causal_mask and use_causal_mask_bottom_right cannot both be true")
    for flag, wanted in (("use_causal_mask", causal), ("use_causal_mask_bottom_right", corner)):
        if wanted and right is not None:
            raise invalid_value(f"{flag} and {name} cannot be set at the same time")
    if causal or corner:
        return (_BOTTOM_RIGHT if corner else _TOP_LEFT), 0
    return diagonal_alignment(alignment), _int(name, right)


def _left(window: Any, left: Any, name: str) -> int | None:
    if window is not None and left is not None:
        raise invalid_value("sliding window and left_bound cannot be set at the same time")
    return _int(name, left if window is None else window)


def _single(value: float) -> float:
    """Return a number as single precision holds it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _scale(attn_scale: Any) -> tuple[float | None, tensor | None]:
    if isinstance(attn_scale, float):
        return _single(attn_scale), None
    if attn_scale is None or isinstance(attn_scale, tensor):
        return None, attn_scale
    raise invalid_value(f"attn_scale must be a cudnn_tensor or float, got {attn_scale!r}: invalid")


_DROPOUT = (
    "dropout must be a tuple of (float probability, a seed tensor, and an offset tensor) or of mask and scale tensors"
)


def _dropout(dropout: Any, rng_dump: Any, *, backward: bool) -> tuple[float | None, dict[str, Any]]:
    """Return the probability, and the tensors: seed, offset and dump, or mask and scale (backward: its inverse too)."""
    if dropout is None:
        return None, {}
    parts = tuple(dropout) if isinstance(dropout, (tuple, list)) else ()
    probability = _single(parts[0]) if parts and isinstance(parts[0], float) else None
    others = parts if probability is None else parts[1:]
    sizes = (3,) if backward or probability is not None else (2, 3)
    if len(parts) not in sizes or not all(isinstance(item, tensor) for item in others):
        raise invalid_value(f"{_DROPOUT}, got {dropout!r}: invalid")
    if probability is not None:
        return probability, {"dropout_seed": parts[1], "dropout_offset": parts[2], "rng_dump": rng_dump}
    names = ("dropout_mask", "dropout_scale", "dropout_scale_inv") if backward else ("dropout_mask", "dropout_scale")
    return None, dict(zip(names, parts, strict=False))


def _kind(value: Any) -> data_type:
    if not isinstance(value, data_type):
        raise TypeError(f"compute_data_type is {value!r}, a cudnn.data_type is needed")
    return value


class AttentionOps(OpsBase):
    """Attention, with cudnn-frontend's arguments.

    Q, K, V, O and their gradients have dims b, h, s, d, and strides in elements that say how they lie; with
    ``seq_len_q`` and ``seq_len_kv`` [b, 1, 1, 1] int32 and ragged offsets sequences lie one after the other. Bounds
    keep column j of row i where ``j <= i + right`` and ``j + left > i``, counted from the corner of the alignment.

    What cuDNN is known to get wrong is built and named in a :class:`FrontendHazardWarning`, once for each hazard.

    Every method raises ``RuntimeError`` for arguments that exclude each other or are of another type, ``TypeError`` for
    what is no ``cudnn.tensor``; ``validate`` refuses what :mod:`~cudnn_backend_py.frontend.attention_rules` lists.
    """

    def sdpa(
        self,
        q: tensor,
        k: tensor,
        v: tensor,
        is_inference: bool | None = None,
        attn_scale: float | tensor | None = None,
        bias: tensor | None = None,
        block_mask: tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: tensor | None = None,
        seq_len_kv: tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: diagonal_alignment = _TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: tuple[Any, ...] | None = None,
        rng_dump: tensor | None = None,
        paged_attention_k_table: tensor | None = None,
        paged_attention_v_table: tensor | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        compute_data_type: data_type = _NOT_SET,
        name: str = "",
        score_mod: ScoreMod | None = None,
        generate_stats: bool | None = None,
        implementation: attention_implementation = _AUTO,
        score_max: tensor | None = None,
        score_sum_exp: tensor | None = None,
        sink_token: tensor | None = None,
        unfuse_fma: bool = False,
    ) -> list[tensor | None]:
        """Return [O, Stats], Stats None if it is not asked for; 16-bit floats.

        With a page table ``k`` and ``v`` are containers [pages, h, page size, d]. ``dropout`` is (probability, seed,
        offset) or (mask, scale). ``score_mod(graph, score)`` returns the changed score.
        """
        window = _left(sliding_window_length, diagonal_band_left_bound, "diagonal_band_left_bound")
        stats = _stats(generate_stats, is_inference)
        alignment, right = _mask(
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            diagonal_band_right_bound,
            "diagonal_band_right_bound",
        )
        limit = _int("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv)
        scale, scale_tensor = _scale(attn_scale)
        probability, of_dropout = _dropout(dropout, rng_dump, backward=False)
        request = Request(
            name=name,
            kind="half",
            backward=False,
            tensors=_tensors(
                {"q": q, "k": k, "v": v},
                {
                    "scale": scale_tensor,
                    "bias": bias,
                    "block_mask": block_mask,
                    "seq_len_q": seq_len_q,
                    "seq_len_kv": seq_len_kv,
                    "page_table_k": paged_attention_k_table,
                    "page_table_v": paged_attention_v_table,
                    "max": score_max,
                    "sum_exp": score_sum_exp,
                    "sink": sink_token,
                    **of_dropout,
                },
            ),
            scale=scale,
            alibi=bool(use_alibi_mask),
            padding=bool(use_padding_mask),
            alignment=alignment,
            left=window,
            right=right,
            dropout=probability,
            stats=stats,
            max_seq_kv=limit,
            implementation=attention_implementation(implementation),
            compute=_kind(compute_data_type),
            score_mod=score_mod,
            unfuse_fma=bool(unfuse_fma),
        )
        return self._forward(request, ("o", "stats"))

    def _forward(self, request: Request, outputs: tuple[str, ...]) -> list[tensor | None]:
        """Add a forward pass and return its outputs, None for statistics that are not asked for."""
        wanted = [name for name in outputs if name != "stats" or request.stats]
        self._add(_Attention(request, wanted, self))
        return [request.get(name) for name in outputs]

    def sdpa_backward(
        self,
        q: tensor,
        k: tensor,
        v: tensor,
        o: tensor,
        dO: tensor,
        stats: tensor,
        attn_scale: float | tensor | None = None,
        bias: tensor | None = None,
        dBias: tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: tensor | None = None,
        seq_len_kv: tensor | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: diagonal_alignment = _TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: tuple[Any, ...] | None = None,
        rng_dump: tensor | None = None,
        use_deterministic_algorithm: bool = False,
        compute_data_type: data_type = _NOT_SET,
        name: str = "",
        score_mod: ScoreMod | None = None,
        score_mod_bprop: ScoreMod | None = None,
        sink_token: tensor | None = None,
        dSink_token: tensor | None = None,
    ) -> list[tensor | None]:
        """Return [dQ, dK, dV]; 16-bit floats.

        ``dropout`` is (probability, seed, offset) or (mask, scale, inverse of the scale). A bound that is given goes
        before the flags of causal masks, and the left bound before the length of the sliding window.
        """
        alignment, right = _mask_of_flags(use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment)
        right_given = _int("diagonal_band_right_bound", diagonal_band_right_bound)
        window = _int("sliding window", sliding_window_length)
        left = _int("diagonal_band_left_bound", diagonal_band_left_bound)
        scale, scale_tensor = _scale(attn_scale)
        probability, of_dropout = _dropout(dropout, rng_dump, backward=True)
        request = Request(
            name=name,
            kind="half",
            backward=True,
            tensors=_tensors(
                {"q": q, "k": k, "v": v, "o": o, "do": dO, "stats": stats},
                {
                    "scale": scale_tensor,
                    "bias": bias,
                    "dbias": dBias,
                    "seq_len_q": seq_len_q,
                    "seq_len_kv": seq_len_kv,
                    "sink": sink_token,
                    "dsink": dSink_token,
                    **of_dropout,
                },
            ),
            scale=scale,
            alibi=bool(use_alibi_mask),
            padding=bool(use_padding_mask),
            alignment=alignment,
            left=window if left is None else left,
            right=right if right_given is None else right_given,
            dropout=probability,
            max_total_q=None if max_total_seq_len_q is None else index(max_total_seq_len_q),
            max_total_kv=None if max_total_seq_len_kv is None else index(max_total_seq_len_kv),
            deterministic=bool(use_deterministic_algorithm),
            compute=_kind(compute_data_type),
            score_mod=score_mod,
            score_mod_bprop=score_mod_bprop,
        )
        return self._backward(request, ("dq", "dk", "dv"))

    def _backward(self, request: Request, outputs: tuple[str, ...]) -> list[tensor | None]:
        self._add(_Attention(request, outputs, self))
        return [request.get(name) for name in outputs]

    def sdpa_fp8(
        self,
        q: tensor,
        k: tensor,
        v: tensor,
        descale_q: tensor,
        descale_k: tensor,
        descale_v: tensor,
        descale_s: tensor,
        scale_s: tensor,
        scale_o: tensor,
        is_inference: bool | None = None,
        attn_scale: float | tensor | None = None,
        bias: tensor | None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: tensor | None = None,
        seq_len_kv: tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window: int | None = None,
        diagonal_alignment: diagonal_alignment = _TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        dropout: tuple[Any, ...] | None = None,
        rng_dump: tensor | None = None,
        paged_attention_k_table: tensor | None = None,
        paged_attention_v_table: tensor | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        compute_data_type: data_type = _NOT_SET,
        name: str = "",
        fn: ScoreMod | None = None,
        generate_stats: bool | None = None,
        score_max: tensor | None = None,
        score_sum_exp: tensor | None = None,
        sink_token: tensor | None = None,
    ) -> list[tensor | None]:
        """Return [O, Stats, Amax_S, Amax_O]; 8-bit floats, scaled by one number a tensor."""
        window = _left(sliding_window, left_bound, "left_bound")
        stats = _stats(generate_stats, is_inference)
        alignment, right = _mask(
            use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment, right_bound, "diagonal_band_right_bound"
        )
        limit = _int("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv)
        scale, scale_tensor = _scale(attn_scale)
        probability, of_dropout = _dropout(dropout, rng_dump, backward=False)
        request = Request(
            name=name,
            kind="fp8",
            backward=False,
            tensors=_tensors(
                {
                    "q": q,
                    "k": k,
                    "v": v,
                    "descale_q": descale_q,
                    "descale_k": descale_k,
                    "descale_v": descale_v,
                    "descale_s": descale_s,
                    "scale_s": scale_s,
                    "scale_o": scale_o,
                },
                {
                    "scale": scale_tensor,
                    "bias": bias,
                    "seq_len_q": seq_len_q,
                    "seq_len_kv": seq_len_kv,
                    "page_table_k": paged_attention_k_table,
                    "page_table_v": paged_attention_v_table,
                    "max": score_max,
                    "sum_exp": score_sum_exp,
                    "sink": sink_token,
                    **of_dropout,
                },
            ),
            scale=scale,
            alibi=bool(use_alibi_mask),
            padding=bool(use_padding_mask),
            alignment=alignment,
            left=window,
            right=right,
            dropout=probability,
            stats=stats,
            max_seq_kv=limit,
            compute=_kind(compute_data_type),
            score_mod=fn,
        )
        return self._forward(request, ("o", "stats", "amax_s", "amax_o"))

    def sdpa_mxfp8(
        self,
        q: tensor,
        k: tensor,
        v: tensor,
        descale_q: tensor,
        descale_k: tensor,
        descale_v: tensor,
        attn_scale: float | tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: diagonal_alignment = _TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        compute_data_type: data_type = _NOT_SET,
        name: str = "",
        generate_stats: bool | None = None,
        sink_token: tensor | None = None,
        unfuse_fma: bool = False,
    ) -> list[tensor | None]:
        """Return [O, Stats, Amax_O]; 8-bit floats with an E8M0 scale for each 32 elements, in F8_128x4 order."""
        alignment, right = _mask(
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            diagonal_band_right_bound,
            "diagonal_band_right_bound",
        )
        if generate_stats is None:
            raise invalid_value("generate_stats must be provided", fix="generate_stats=True or False")
        stats = _stats(generate_stats, None)
        scale, scale_tensor = _scale(attn_scale)
        request = Request(
            name=name,
            kind="mxfp8",
            backward=False,
            tensors=_tensors(
                {"q": q, "k": k, "v": v, "descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v},
                {"scale": scale_tensor, "sink": sink_token},
            ),
            scale=scale,
            alignment=alignment,
            left=_int("diagonal_band_left_bound", diagonal_band_left_bound),
            right=right,
            stats=stats,
            compute=_kind(compute_data_type),
            unfuse_fma=bool(unfuse_fma),
        )
        return self._forward(request, ("o", "stats", "amax_o"))

    def sdpa_fp8_backward(
        self,
        q: tensor,
        k: tensor,
        v: tensor,
        o: tensor,
        dO: tensor,
        stats: tensor,
        descale_q: tensor,
        descale_k: tensor,
        descale_v: tensor,
        descale_o: tensor,
        descale_dO: tensor,
        descale_s: tensor,
        descale_dP: tensor,
        scale_s: tensor,
        scale_dQ: tensor,
        scale_dK: tensor,
        scale_dV: tensor,
        scale_dP: tensor,
        attn_scale: float | tensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: tensor | None = None,
        seq_len_kv: tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: diagonal_alignment = _TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        use_deterministic_algorithm: bool = False,
        dropout: tuple[Any, ...] | None = None,
        compute_data_type: data_type = _NOT_SET,
        name: str = "",
        sink_token: tensor | None = None,
        dSink_token: tensor | None = None,
    ) -> list[tensor | None]:
        """Return [dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV, Amax_dP]; 8-bit floats, scaled by one number a tensor."""
        required = {
            "q": q,
            "k": k,
            "v": v,
            "o": o,
            "do": dO,
            "stats": stats,
            "descale_q": descale_q,
            "descale_k": descale_k,
            "descale_v": descale_v,
            "descale_o": descale_o,
            "descale_do": descale_dO,
            "descale_s": descale_s,
            "descale_dp": descale_dP,
            "scale_s": scale_s,
            "scale_dq": scale_dQ,
            "scale_dk": scale_dK,
            "scale_dv": scale_dV,
            "scale_dp": scale_dP,
        }
        request = _backward_fp8(
            name,
            "fp8",
            required,
            attn_scale,
            (bool(use_padding_mask), seq_len_q, seq_len_kv),
            _mask(use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment, right_bound, "right_bound"),
            left_bound,
            dropout,
            (sink_token, dSink_token),
            deterministic=bool(use_deterministic_algorithm),
            compute=compute_data_type,
        )
        return self._backward(request, ("dq", "dk", "dv", "amax_dq", "amax_dk", "amax_dv", "amax_dp"))

    def sdpa_mxfp8_backward(
        self,
        q: tensor,
        q_T: tensor,
        k: tensor,
        k_T: tensor,
        v: tensor,
        o_f16: tensor,
        dO_f16: tensor,
        dO: tensor,
        dO_T: tensor,
        stats: tensor,
        descale_q: tensor,
        descale_q_T: tensor,
        descale_k: tensor,
        descale_k_T: tensor,
        descale_v: tensor,
        descale_dO: tensor,
        descale_dO_T: tensor,
        attn_scale: float | tensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: tensor | None = None,
        seq_len_kv: tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        diagonal_alignment: diagonal_alignment = _TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        use_deterministic_algorithm: bool = False,
        dropout: tuple[Any, ...] | None = None,
        compute_data_type: data_type = _NOT_SET,
        name: str = "",
        sink_token: tensor | None = None,
        dSink_token: tensor | None = None,
    ) -> list[tensor | None]:
        """Return [dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV]; 8-bit floats with a scale for each 32 elements.

        Tensors with ``_T`` have their blocks along s; O and dO are there in 16 bits for the row sums.
        """
        required = {
            "q": q,
            "q_t": q_T,
            "k": k,
            "k_t": k_T,
            "v": v,
            "o": o_f16,
            "do_f16": dO_f16,
            "do": dO,
            "do_t": dO_T,
            "stats": stats,
            "descale_q": descale_q,
            "descale_q_t": descale_q_T,
            "descale_k": descale_k,
            "descale_k_t": descale_k_T,
            "descale_v": descale_v,
            "descale_do": descale_dO,
            "descale_do_t": descale_dO_T,
        }
        request = _backward_fp8(
            name,
            "mxfp8",
            required,
            attn_scale,
            (bool(use_padding_mask), seq_len_q, seq_len_kv),
            _mask(use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment, right_bound, "right_bound"),
            left_bound,
            dropout,
            (sink_token, dSink_token),
            deterministic=bool(use_deterministic_algorithm),
            compute=compute_data_type,
        )
        return self._backward(request, ("dq", "dk", "dv", "amax_dq", "amax_dk", "amax_dv"))

    scaled_dot_product_flash_attention = sdpa
    scaled_dot_product_flash_attention_backward = sdpa_backward


def _mask_of_flags(causal: bool, corner: bool, alignment: diagonal_alignment) -> tuple[diagonal_alignment, int | None]:
    """Return alignment and right bound as the flags set them, the later one last."""
    if causal or corner:
        return (_BOTTOM_RIGHT if corner else _TOP_LEFT), 0
    return diagonal_alignment(alignment), None


def _backward_fp8(
    name: str,
    kind: Kind,
    required: dict[str, Any],
    attn_scale: Any,
    padding: tuple[bool, Any, Any],
    mask: tuple[diagonal_alignment, int | None],
    left_bound: Any,
    dropout: Any,
    sinks: tuple[Any, Any],
    *,
    deterministic: bool,
    compute: Any,
) -> Request:
    """Return the request of an 8-bit backward pass."""
    scale, scale_tensor = _scale(attn_scale)
    probability, of_dropout = _dropout(dropout, None, backward=True)
    optional = {
        "scale": scale_tensor,
        "seq_len_q": padding[1],
        "seq_len_kv": padding[2],
        "sink": sinks[0],
        "dsink": sinks[1],
        **of_dropout,
    }
    return Request(
        name=name,
        kind=kind,
        backward=True,
        tensors=_tensors(required, optional),
        scale=scale,
        padding=padding[0],
        alignment=mask[0],
        left=_int("left_bound", left_bound),
        right=mask[1],
        dropout=probability,
        deterministic=deterministic,
        compute=_kind(compute),
    )
