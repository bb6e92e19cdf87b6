"""Attention that builders refuse: examples of the rows of `graph/attention/measured.py`."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention.modifiers import SoftCap

from .example import Examples, Reproduction

__all__ = ["ATTENTION_REFUSED"]


_FP8: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "head_dim": 128}
_BIAS = {"bias": (1, 2, 128, 128)}
_DSINK: dict[str, Any] = {"sink": True, "dsink": True}
_BOUNDED: dict[str, Any] = {"ragged": True, "max_total_seq_q": 256, "max_total_seq_kv": 256}
_RAGGED = {"ragged": True, "ragged_stats": True}
_DECODING: dict[str, Any] = {
    "heads": 6,
    "kv_heads": 2,
    "seq_q": 1,
    "padding": True,
    "page_size": 64,
    "sink": True,
    "stats": True,
}
_CAPPED: dict[str, Any] = {"score_modifier": SoftCap(0.5)}


ATTENTION_REFUSED: dict[str, Examples] = {
    "inner-stride": Examples(
        reproductions={
            "": Reproduction(False, {"layout": {"q": (2 * 128 * 128, 128 * 128, 128, 2)}}),
            "backward": Reproduction(True, {"layout": {"dv": (2 * 128 * 128, 128 * 128, 128, 2)}}),
            "dq": Reproduction(True, {"layout": {"dq": (2 * 128 * 128, 128 * 128, 128, 2)}}),
        },
        remedy=Reproduction(False, {}),
    ),
    "backward-of-one-row": Examples(
        reproductions={"": Reproduction(True, {"batch": 1, "heads": 1, "seq_q": 1, "seq_kv": 128})},
        remedy=Reproduction(True, {"batch": 2, "heads": 1, "seq_q": 1, "seq_kv": 128, "padding": True}),
    ),
    "unaligned-strides": Examples(
        reproductions={
            "": Reproduction(False, {"stats": True, "layout": {"q": (2 * 128 * 68, 128 * 68, 68, 1)}}),
            "backward": Reproduction(True, {"layout": {"v": (2 * 128 * 64 + 4, 128 * 64, 64, 1)}}),
            "address": Reproduction(True, {"layout": {"q": (2 * 128 * 64 + 4, 128 * 64, 64, 1)}}),
        },
        remedy=Reproduction(False, {"layout": {"q": (2 * 128 * 72, 128 * 72, 72, 1)}}),
    ),
    "paged-decoding-sink": Examples(
        reproductions={
            "": Reproduction(False, _DECODING | {"seq_kv": 333}),
            "longer": Reproduction(False, _DECODING | {"seq_kv": 1024}),
        },
        remedy=Reproduction(False, _DECODING | {"seq_kv": 333, "page_size": None}),
    ),
    "decoding-dropout": Examples(
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 333, "dropout": 0.5})},
        remedy=Reproduction(False, {"seq_q": 1, "seq_kv": 333}),
    ),
    "alibi-rows": Examples(
        reproductions={"": Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 72, "seq_kv": 384})},
        remedy=Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 72, "seq_kv": 384, "padding": True}),
    ),
    "alibi-columns": Examples(
        reproductions={"": Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 384, "seq_kv": 64})},
        remedy=Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 384, "seq_kv": 64, "padding": True}),
    ),
    "row-statistics-alone": Examples(
        reproductions={
            "": Reproduction(False, {"max": True}),
            "beside-stats": Reproduction(False, {"stats": True, "max": True, "sum_exp": True}),
        },
        remedy=Reproduction(False, {"max": True, "sum_exp": True}),
    ),
    "fp8-row-maximum": Examples(
        reproductions={"": Reproduction(False, _FP8 | {"max": True, "sum_exp": True})},
        remedy=Reproduction(False, _FP8),
    ),
    "fp8-bias": Examples(
        reproductions={"": Reproduction(False, _FP8 | _BIAS), "backward": Reproduction(True, _FP8 | _BIAS)},
        remedy=Reproduction(False, _BIAS),
    ),
    "fp8-alibi": Examples(
        reproductions={
            "": Reproduction(False, _FP8 | {"alibi": True, "stats": True}),
            "backward": Reproduction(True, _FP8 | {"alibi": True}),
        },
        remedy=Reproduction(False, {"alibi": True}),
    ),
    "fp8-dropout-mask": Examples(
        reproductions={"": Reproduction(False, _FP8 | {"dropout_mask": True})},
        remedy=Reproduction(False, {"dropout_mask": True}),
    ),
    "fp8-dropout": Examples(
        reproductions={
            "": Reproduction(False, _FP8 | {"dropout": 0.5}),
            "backward": Reproduction(True, _FP8 | {"dropout": 0.5}),
        },
        remedy=Reproduction(False, {"dropout": 0.5}),
    ),
    "fp8-backward-ragged": Examples(
        reproductions={"": Reproduction(True, _FP8 | {"ragged": True, "kv_heads": 1})},
        remedy=Reproduction(True, _FP8 | {"padding": True, "kv_heads": 1}),
    ),
    "fp8-backward-heads": Examples(
        reproductions={"": Reproduction(True, _FP8 | {"kv_heads": 1, "v_heads": 2})},
        remedy=Reproduction(True, _FP8 | {"kv_heads": 1}),
    ),
    "fp8-backward-tail": Examples(
        reproductions={"": Reproduction(True, _FP8 | {"seq_q": 100, "seq_kv": 128})},
        remedy=Reproduction(True, _FP8 | {"seq_q": 128, "seq_kv": 128}),
    ),
    "fp8-sink-gradient": Examples(
        reproductions={"": Reproduction(True, _FP8 | _DSINK)},
        remedy=Reproduction(True, _DSINK),
    ),
    "bounded-total-head-dim": Examples(
        reproductions={"": Reproduction(True, _BOUNDED | {"head_dim": 40})},
        remedy=Reproduction(True, {"ragged": True, "head_dim": 40}),
    ),
    "dsink-dropout": Examples(
        reproductions={"": Reproduction(True, _DSINK | {"dropout": 0.5})},
    ),
    "dsink-ragged": Examples(
        reproductions={"": Reproduction(True, _DSINK | {"ragged": True})},
        remedy=Reproduction(True, _DSINK | {"padding": True}),
    ),
    "dsink-ragged-stats": Examples(
        reproductions={"": Reproduction(True, _DSINK | _RAGGED | {"batch": 3, "seq_q": 384, "deterministic": True})},
        remedy=Reproduction(True, _DSINK | {"batch": 3, "seq_q": 384, "deterministic": True, "padding": True}),
    ),
    "unified-backward-modifier": Examples(
        reproductions={"": Reproduction(True, _CAPPED, "unified", (9, 21, 0))},
        remedy=Reproduction(True, _CAPPED),
    ),
    "unified-modifier-padding": Examples(
        reproductions={"": Reproduction(False, _CAPPED | {"padding": True}, "unified", (9, 21, 0))},
        remedy=Reproduction(False, _CAPPED | {"padding": True}),
    ),
}
