"""Attention methods with cudnn-frontend's signatures; each call checks its arguments and adds a node to the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arguments import to_float32
from ..enums import attention_implementation, data_type, diagonal_alignment
from ..errors import make_invalid_value_error
from ..tensors import tensor
from .attention_node import AttentionNode, ScoreMod, get_port_name
from .attention_rules import AttentionRequest, Kind
from .base import OpsBase
from .node import check_data_type

__all__ = ["AttentionOps"]

_TYPE_NOT_SET = data_type.NOT_SET
_TOP_LEFT, _BOTTOM_RIGHT = diagonal_alignment.TOP_LEFT, diagonal_alignment.BOTTOM_RIGHT
_AUTO_IMPLEMENTATION = attention_implementation.AUTO


def _check_tensors(required: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, tensor]:
    """Return tensors by name, checking that each given one is a ``cudnn.tensor``."""
    found: dict[str, tensor] = {}
    for name, value in {**required, **optional}.items():
        if value is None and name in optional:
            continue
        if not isinstance(value, tensor):
            raise TypeError(f"{get_port_name(name)} of attention is {value!r}, a cudnn.tensor is needed")
        found[name] = value
    return found


def _check_int(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int):
        raise make_invalid_value_error(f"{name} must be an int (or None), got {value!r}: invalid")
    return int(value)


def _read_stats(generate_stats: Any, is_inference: Any) -> bool:
    if (generate_stats is None) == (is_inference is None):
        raise make_invalid_value_error(
            "exactly one of generate_stats and is_inference must be set",
            fix="give generate_stats=True or generate_stats=False",
        )
    for name, value in (("generate_stats", generate_stats), ("is_inference", is_inference)):
        if value is not None and not isinstance(value, bool):
            raise make_invalid_value_error(f"{name} must be a bool, got {value!r}: invalid")
    return bool(generate_stats) if is_inference is None else not is_inference


def _read_mask(
    causal: bool, corner: bool, alignment: diagonal_alignment, right: Any, name: str
) -> tuple[diagonal_alignment, int | None]:
    """Return a mask's alignment and right bound, from a causal-mask flag or the explicit values."""
    if causal and corner:
        raise make_invalid_value_error("use_causal_mask and use_causal_mask_bottom_right cannot both be true")
    for flag, wanted in (("use_causal_mask", causal), ("use_causal_mask_bottom_right", corner)):
        if wanted and right is not None:
            raise make_invalid_value_error(f"{flag} and {name} cannot be set at the same time")
    if causal or corner:
        return (_BOTTOM_RIGHT if corner else _TOP_LEFT), 0
    return diagonal_alignment(alignment), _check_int(name, right)


def _read_left_bound(window: Any, left: Any, name: str) -> int | None:
    if window is not None and left is not None:
        raise make_invalid_value_error("sliding window and left_bound cannot be set at the same time")
    return _check_int(name, left if window is None else window)


def _read_scale(attn_scale: Any) -> tuple[float | None, tensor | None]:
    if isinstance(attn_scale, float):
        return to_float32("attn_scale", attn_scale), None
    if attn_scale is None or isinstance(attn_scale, tensor):
        return None, attn_scale
    raise make_invalid_value_error(f"attn_scale must be a cudnn_tensor or float, got {attn_scale!r}: invalid")


_DROPOUT_REQUIREMENT = (
    "dropout must be a tuple of (float probability, a seed tensor, and an offset tensor) or of mask and scale tensors"
)


def _read_dropout(dropout: Any, rng_dump: Any, *, backward: bool) -> tuple[float | None, dict[str, Any]]:
    """Return the dropout probability, and its tensors by name: seed, offset and dump, or mask and scales."""
    _check_tensors({}, {"rng_dump": rng_dump})
    if dropout is None:
        return None, {}
    parts = tuple(dropout) if isinstance(dropout, (tuple, list)) else ()
    probability = to_float32("dropout", parts[0]) if parts and isinstance(parts[0], float) else None
    others = parts if probability is None else parts[1:]
    sizes = (3,) if backward or probability is not None else (2, 3)
    if len(parts) not in sizes or not all(isinstance(item, tensor) for item in others):
        raise make_invalid_value_error(f"{_DROPOUT_REQUIREMENT}, got {dropout!r}: invalid")
    if probability is not None:
        return probability, {"dropout_seed": parts[1], "dropout_offset": parts[2], "rng_dump": rng_dump}
    names = ("dropout_mask", "dropout_scale", "dropout_scale_inv") if backward else ("dropout_mask", "dropout_scale")
    return None, dict(zip(names, parts, strict=False))


class AttentionOps(OpsBase):
    """The attention methods of a ``pygraph``, with cudnn-frontend's arguments.

    Q, K, V, O and their gradients have dims b, h, s, d, and strides in elements that say how they are; with
    ``seq_len_q`` and ``seq_len_kv`` [b, 1, 1, 1] int32 and ragged offsets sequences are one after the other. Bounds
    keep column j of row i where ``j <= i + right`` and ``j + left > i``, counted from the corner of the alignment.

    What cuDNN is known to get wrong is built and named in a
    :class:`~cudnn_backend_py.frontend.FrontendKnownIssueWarning`, once for each known issue.

    Every method raises ``RuntimeError`` for arguments that exclude each other or are of another type, ``TypeError`` for
    what is no ``cudnn.tensor``; ``validate`` refuses what :mod:`~cudnn_backend_py.frontend.ops.attention_rules` lists.
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
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        compute_data_type: data_type = _TYPE_NOT_SET,
        name: str = "",
        score_mod: ScoreMod | None = None,
        generate_stats: bool | None = None,
        implementation: attention_implementation = _AUTO_IMPLEMENTATION,
        score_max: tensor | None = None,
        score_sum_exp: tensor | None = None,
        sink_token: tensor | None = None,
        unfuse_fma: bool = False,
        cu_seq_len_q: tensor | None = None,
        cu_seq_len_kv: tensor | None = None,
        stats_use_log2: bool = False,
    ) -> list[tensor | None]:
        """Add 16-bit attention; return [O, Stats], with None for Stats if not requested.

        With a page table ``k`` and ``v`` are containers [pages, h, page size, d]. ``dropout`` is (probability, seed,
        offset) or (mask, scale). ``score_mod(graph, score)`` returns the changed score. ``cu_seq_len_q`` and
        ``cu_seq_len_kv`` are running sums [b + 1, 1, 1, 1] in place of the lengths (cuDNN 9.24); ``stats_use_log2``
        gives Stats times log2(e) (9.27).
        """
        window = _read_left_bound(sliding_window_length, diagonal_band_left_bound, "diagonal_band_left_bound")
        stats = _read_stats(generate_stats, is_inference)
        alignment, right = _read_mask(
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            diagonal_band_right_bound,
            "diagonal_band_right_bound",
        )
        limit = _check_int("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv)
        request = _make_request(
            *(name, "half", False, {"q": q, "k": k, "v": v}),
            {
                "bias": bias,
                "block_mask": block_mask,
                "seq_len_q": seq_len_q,
                "seq_len_kv": seq_len_kv,
                "cu_seq_len_q": cu_seq_len_q,
                "cu_seq_len_kv": cu_seq_len_kv,
                "page_table_k": paged_attention_k_table,
                "page_table_v": paged_attention_v_table,
                "max": score_max,
                "sum_exp": score_sum_exp,
                "sink": sink_token,
            },
            attn_scale=attn_scale,
            dropout=(dropout, rng_dump),
            totals=(max_total_seq_len_q, max_total_seq_len_kv),
            compute=compute_data_type,
            alibi=bool(use_alibi_mask),
            padding=bool(use_padding_mask),
            alignment=alignment,
            left_bound=window,
            right_bound=right,
            stats=stats,
            max_seq_kv=limit,
            stats_log2=bool(stats_use_log2),
            implementation=attention_implementation(implementation),
            score_mod=score_mod,
            unfuse_fma=bool(unfuse_fma),
        )
        return self._add_forward(request, ("o", "stats"))

    def _add_forward(self, request: AttentionRequest, outputs: tuple[str, ...]) -> list[tensor | None]:
        """Add a forward pass and return its outputs, None for statistics that are not requested."""
        wanted = [name for name in outputs if name != "stats" or request.stats]
        self._add_node(AttentionNode(request, wanted, self))
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
        compute_data_type: data_type = _TYPE_NOT_SET,
        name: str = "",
        score_mod: ScoreMod | None = None,
        score_mod_bprop: ScoreMod | None = None,
        sink_token: tensor | None = None,
        dSink_token: tensor | None = None,
    ) -> list[tensor | None]:
        """Add the backward pass of 16-bit attention; return [dQ, dK, dV].

        ``dropout`` is (probability, seed, offset) or (mask, scale, inverse of the scale). A bound that is given goes
        before the flags of causal masks, and the left bound before the length of the sliding window.
        """
        alignment, right = _read_mask_flags(use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment)
        right_given = _check_int("diagonal_band_right_bound", diagonal_band_right_bound)
        window = _check_int("sliding window", sliding_window_length)
        left = _check_int("diagonal_band_left_bound", diagonal_band_left_bound)
        request = _make_request(
            *(name, "half", True, {"q": q, "k": k, "v": v, "o": o, "do": dO, "stats": stats}),
            {
                "bias": bias,
                "dbias": dBias,
                "seq_len_q": seq_len_q,
                "seq_len_kv": seq_len_kv,
                "sink": sink_token,
                "dsink": dSink_token,
            },
            attn_scale=attn_scale,
            dropout=(dropout, rng_dump),
            totals=(max_total_seq_len_q, max_total_seq_len_kv),
            compute=compute_data_type,
            alibi=bool(use_alibi_mask),
            padding=bool(use_padding_mask),
            alignment=alignment,
            left_bound=window if left is None else left,
            right_bound=right if right_given is None else right_given,
            deterministic=bool(use_deterministic_algorithm),
            score_mod=score_mod,
            score_mod_bprop=score_mod_bprop,
        )
        return self._add_backward(request, ("dq", "dk", "dv"))

    def _add_backward(self, request: AttentionRequest, outputs: tuple[str, ...]) -> list[tensor | None]:
        self._add_node(AttentionNode(request, outputs, self))
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
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        compute_data_type: data_type = _TYPE_NOT_SET,
        name: str = "",
        fn: ScoreMod | None = None,
        generate_stats: bool | None = None,
        score_max: tensor | None = None,
        score_sum_exp: tensor | None = None,
        sink_token: tensor | None = None,
        unfuse_fma: bool = False,
        implementation: attention_implementation = _AUTO_IMPLEMENTATION,
        cu_seq_len_q: tensor | None = None,
        cu_seq_len_kv: tensor | None = None,
        stats_use_log2: bool = False,
    ) -> list[tensor | None]:
        """Add 8-bit attention with one scale per tensor; return [O, Stats, Amax_S, Amax_O]."""
        window = _read_left_bound(sliding_window, left_bound, "left_bound")
        stats = _read_stats(generate_stats, is_inference)
        alignment, right = _read_mask(
            use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment, right_bound, "diagonal_band_right_bound"
        )
        limit = _check_int("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv)
        required = {
            "q": q,
            "k": k,
            "v": v,
            "descale_q": descale_q,
            "descale_k": descale_k,
            "descale_v": descale_v,
            "descale_s": descale_s,
            "scale_s": scale_s,
            "scale_o": scale_o,
        }
        request = _make_request(
            *(name, "fp8", False, required),
            {
                "bias": bias,
                "seq_len_q": seq_len_q,
                "seq_len_kv": seq_len_kv,
                "cu_seq_len_q": cu_seq_len_q,
                "cu_seq_len_kv": cu_seq_len_kv,
                "page_table_k": paged_attention_k_table,
                "page_table_v": paged_attention_v_table,
                "max": score_max,
                "sum_exp": score_sum_exp,
                "sink": sink_token,
            },
            attn_scale=attn_scale,
            dropout=(dropout, rng_dump),
            totals=(max_total_seq_len_q, max_total_seq_len_kv),
            compute=compute_data_type,
            alibi=bool(use_alibi_mask),
            padding=bool(use_padding_mask),
            alignment=alignment,
            left_bound=window,
            right_bound=right,
            stats=stats,
            max_seq_kv=limit,
            stats_log2=bool(stats_use_log2),
            implementation=attention_implementation(implementation),
            unfuse_fma=bool(unfuse_fma),
            score_mod=fn,
        )
        return self._add_forward(request, ("o", "stats", "amax_s", "amax_o"))

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
        compute_data_type: data_type = _TYPE_NOT_SET,
        name: str = "",
        generate_stats: bool | None = None,
        sink_token: tensor | None = None,
        unfuse_fma: bool = False,
        implementation: attention_implementation = _AUTO_IMPLEMENTATION,
        use_padding_mask: bool = False,
        seq_len_q: tensor | None = None,
        seq_len_kv: tensor | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        cu_seq_len_q: tensor | None = None,
        cu_seq_len_kv: tensor | None = None,
        paged_attention_k_table: tensor | None = None,
        paged_attention_v_table: tensor | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
    ) -> list[tensor | None]:
        """Add 8-bit attention with an E8M0 scale per 32 elements; return [O, Stats, Amax_O]."""
        alignment, right = _read_mask(
            use_causal_mask,
            use_causal_mask_bottom_right,
            diagonal_alignment,
            diagonal_band_right_bound,
            "diagonal_band_right_bound",
        )
        if generate_stats is None:
            raise make_invalid_value_error(
                "generate_stats must be provided", fix="give generate_stats=True or generate_stats=False"
            )
        stats = _read_stats(generate_stats, None)
        required = {"q": q, "k": k, "v": v, "descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
        request = _make_request(
            *(name, "mxfp8", False, required),
            {
                "sink": sink_token,
                "seq_len_q": seq_len_q,
                "seq_len_kv": seq_len_kv,
                "cu_seq_len_q": cu_seq_len_q,
                "cu_seq_len_kv": cu_seq_len_kv,
                "page_table_k": paged_attention_k_table,
                "page_table_v": paged_attention_v_table,
            },
            attn_scale=attn_scale,
            totals=(max_total_seq_len_q, max_total_seq_len_kv),
            compute=compute_data_type,
            alignment=alignment,
            left_bound=_check_int("diagonal_band_left_bound", diagonal_band_left_bound),
            right_bound=right,
            stats=stats,
            padding=bool(use_padding_mask),
            max_seq_kv=_check_int("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv),
            implementation=attention_implementation(implementation),
            unfuse_fma=bool(unfuse_fma),
        )
        return self._add_forward(request, ("o", "stats", "amax_o"))

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
        compute_data_type: data_type = _TYPE_NOT_SET,
        name: str = "",
        sink_token: tensor | None = None,
        dSink_token: tensor | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
    ) -> list[tensor | None]:
        """Add the backward pass of :meth:`sdpa_fp8`; return the gradients and their Amax values."""
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
        alignment, right = _read_mask(
            use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment, right_bound, "right_bound"
        )
        request = _make_request(
            *(name, "fp8", True, required),
            {"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv, "sink": sink_token, "dsink": dSink_token},
            attn_scale=attn_scale,
            dropout=(dropout, None),
            totals=(max_total_seq_len_q, max_total_seq_len_kv),
            compute=compute_data_type,
            padding=bool(use_padding_mask),
            alignment=alignment,
            left_bound=_check_int("left_bound", left_bound),
            right_bound=right,
            deterministic=bool(use_deterministic_algorithm),
        )
        return self._add_backward(request, ("dq", "dk", "dv", "amax_dq", "amax_dk", "amax_dv", "amax_dp"))

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
        compute_data_type: data_type = _TYPE_NOT_SET,
        name: str = "",
        sink_token: tensor | None = None,
        dSink_token: tensor | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
    ) -> list[tensor | None]:
        """Add the backward pass of :meth:`sdpa_mxfp8`; return [dQ, dK, dV] and their Amax values.

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
        alignment, right = _read_mask(
            use_causal_mask, use_causal_mask_bottom_right, diagonal_alignment, right_bound, "right_bound"
        )
        request = _make_request(
            *(name, "mxfp8", True, required),
            {"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv, "sink": sink_token, "dsink": dSink_token},
            attn_scale=attn_scale,
            dropout=(dropout, None),
            totals=(max_total_seq_len_q, max_total_seq_len_kv),
            compute=compute_data_type,
            padding=bool(use_padding_mask),
            alignment=alignment,
            left_bound=_check_int("left_bound", left_bound),
            right_bound=right,
            deterministic=bool(use_deterministic_algorithm),
        )
        return self._add_backward(request, ("dq", "dk", "dv", "amax_dq", "amax_dk", "amax_dv"))

    scaled_dot_product_flash_attention = sdpa
    scaled_dot_product_flash_attention_backward = sdpa_backward


def _read_mask_flags(
    causal: bool, corner: bool, alignment: diagonal_alignment
) -> tuple[diagonal_alignment, int | None]:
    """Return alignment and right bound for causal-mask flags; bottom-right wins over top-left."""
    if causal or corner:
        return (_BOTTOM_RIGHT if corner else _TOP_LEFT), 0
    return diagonal_alignment(alignment), None


def _make_request(
    name: str,
    kind: Kind,
    backward: bool,
    required: Mapping[str, Any],
    optional: Mapping[str, Any],
    *,
    attn_scale: Any,
    dropout: tuple[Any, Any] = (None, None),
    totals: tuple[Any, Any],
    compute: Any,
    **options: Any,
) -> AttentionRequest:
    """Collect an attention method's arguments in a request; `options` are fields that need no conversion."""
    scale, scale_tensor = _read_scale(attn_scale)
    probability, of_dropout = _read_dropout(*dropout, backward=backward)
    return AttentionRequest(
        name=name,
        kind=kind,
        backward=backward,
        tensors=_check_tensors(required, {"scale": scale_tensor, **optional, **of_dropout}),
        scale=scale,
        dropout=probability,
        max_total_seq_q=_check_int("max_total_seq_len_q", totals[0]),
        max_total_seq_kv=_check_int("max_total_seq_len_kv", totals[1]),
        compute=check_data_type(compute),
        **options,
    )
