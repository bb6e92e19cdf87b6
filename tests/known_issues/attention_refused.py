"""Attention graphs with measured known issues of cuDNN, which the package's builders therefore refuse."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention.modifiers import SoftCap

from .example import Examples, Reproduction

__all__ = ["ATTENTION_REFUSED"]


_FP8_OPTIONS: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "head_dim": 128}
_BIAS_OPTIONS = {"bias": (1, 2, 128, 128)}
_SINK_GRADIENT_OPTIONS: dict[str, Any] = {"sink": True, "dsink": True}
_BOUNDED_TOTAL_OPTIONS: dict[str, Any] = {"ragged": True, "max_total_seq_q": 256, "max_total_seq_kv": 256}
_RAGGED_OPTIONS = {"ragged": True, "ragged_stats": True}
_DECODING_OPTIONS: dict[str, Any] = {
    "heads": 6,
    "kv_heads": 2,
    "seq_q": 1,
    "padding": True,
    "page_size": 64,
    "sink": True,
    "stats": True,
}
_SOFT_CAP_OPTIONS: dict[str, Any] = {"score_modifier": SoftCap(0.5)}


ATTENTION_REFUSED: dict[str, Examples] = {
    "inner-stride": Examples(
        reproductions={
            "": Reproduction(False, {"layout": {"q": (2 * 128 * 128, 128 * 128, 128, 2)}}),
            "backward": Reproduction(True, {"layout": {"dv": (2 * 128 * 128, 128 * 128, 128, 2)}}),
            "dq": Reproduction(True, {"layout": {"dq": (2 * 128 * 128, 128 * 128, 128, 2)}}),
        },
        fixed=Reproduction(False, {}),
    ),
    "backward-of-one-row": Examples(
        reproductions={"": Reproduction(True, {"batch": 1, "heads": 1, "seq_q": 1, "seq_kv": 128})},
        fixed=Reproduction(True, {"batch": 2, "heads": 1, "seq_q": 1, "seq_kv": 128, "padding": True}),
    ),
    "unaligned-strides": Examples(
        reproductions={
            "": Reproduction(False, {"stats": True, "layout": {"q": (2 * 128 * 68, 128 * 68, 68, 1)}}),
            "backward": Reproduction(True, {"layout": {"v": (2 * 128 * 64 + 4, 128 * 64, 64, 1)}}),
            "address": Reproduction(True, {"layout": {"q": (2 * 128 * 64 + 4, 128 * 64, 64, 1)}}),
        },
        fixed=Reproduction(False, {"layout": {"q": (2 * 128 * 72, 128 * 72, 72, 1)}}),
    ),
    "paged-decoding-sink": Examples(
        reproductions={
            "": Reproduction(False, _DECODING_OPTIONS | {"seq_kv": 333}),
            "longer": Reproduction(False, _DECODING_OPTIONS | {"seq_kv": 1024}),
        },
        fixed=Reproduction(False, _DECODING_OPTIONS | {"seq_kv": 333, "page_size": None}),
    ),
    "decoding-dropout": Examples(
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 333, "dropout": 0.5})},
        fixed=Reproduction(False, {"seq_q": 1, "seq_kv": 333}),
    ),
    "alibi-rows": Examples(
        reproductions={"": Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 72, "seq_kv": 384})},
        fixed=Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 72, "seq_kv": 384, "padding": True}),
    ),
    "alibi-columns": Examples(
        reproductions={"": Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 384, "seq_kv": 64})},
        fixed=Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 384, "seq_kv": 64, "padding": True}),
    ),
    "row-statistics-alone": Examples(
        reproductions={
            "": Reproduction(False, {"max": True}),
            "beside-stats": Reproduction(False, {"stats": True, "max": True, "sum_exp": True}),
        },
        fixed=Reproduction(False, {"max": True, "sum_exp": True}),
    ),
    "fp8-row-maximum": Examples(
        reproductions={"": Reproduction(False, _FP8_OPTIONS | {"max": True, "sum_exp": True})},
        fixed=Reproduction(False, _FP8_OPTIONS),
    ),
    "fp8-bias": Examples(
        reproductions={
            "": Reproduction(False, _FP8_OPTIONS | _BIAS_OPTIONS),
            "backward": Reproduction(True, _FP8_OPTIONS | _BIAS_OPTIONS),
        },
        fixed=Reproduction(False, _BIAS_OPTIONS),
    ),
    "fp8-alibi": Examples(
        reproductions={
            "": Reproduction(False, _FP8_OPTIONS | {"alibi": True, "stats": True}),
            "backward": Reproduction(True, _FP8_OPTIONS | {"alibi": True}),
        },
        fixed=Reproduction(False, {"alibi": True}),
    ),
    "fp8-dropout-mask": Examples(
        reproductions={"": Reproduction(False, _FP8_OPTIONS | {"dropout_mask": True})},
        fixed=Reproduction(False, {"dropout_mask": True}),
    ),
    "fp8-dropout": Examples(
        reproductions={
            "": Reproduction(False, _FP8_OPTIONS | {"dropout": 0.5}),
            "backward": Reproduction(True, _FP8_OPTIONS | {"dropout": 0.5}),
        },
        fixed=Reproduction(False, {"dropout": 0.5}),
    ),
    "fp8-backward-ragged": Examples(
        reproductions={"": Reproduction(True, _FP8_OPTIONS | {"ragged": True, "kv_heads": 1})},
        fixed=Reproduction(True, _FP8_OPTIONS | {"padding": True, "kv_heads": 1}),
    ),
    "fp8-backward-heads": Examples(
        reproductions={"": Reproduction(True, _FP8_OPTIONS | {"kv_heads": 1, "v_heads": 2})},
        fixed=Reproduction(True, _FP8_OPTIONS | {"kv_heads": 1}),
    ),
    "fp8-backward-tail": Examples(
        reproductions={"": Reproduction(True, _FP8_OPTIONS | {"seq_q": 100, "seq_kv": 128})},
        fixed=Reproduction(True, _FP8_OPTIONS | {"seq_q": 128, "seq_kv": 128}),
    ),
    "fp8-sink-gradient": Examples(
        reproductions={"": Reproduction(True, _FP8_OPTIONS | _SINK_GRADIENT_OPTIONS)},
        fixed=Reproduction(True, _SINK_GRADIENT_OPTIONS),
    ),
    "bounded-total-head-dim": Examples(
        reproductions={"": Reproduction(True, _BOUNDED_TOTAL_OPTIONS | {"head_dim": 40})},
        fixed=Reproduction(True, {"ragged": True, "head_dim": 40}),
    ),
    "dsink-dropout": Examples(
        reproductions={"": Reproduction(True, _SINK_GRADIENT_OPTIONS | {"dropout": 0.5})},
    ),
    "dsink-ragged": Examples(
        reproductions={"": Reproduction(True, _SINK_GRADIENT_OPTIONS | {"ragged": True})},
        fixed=Reproduction(True, _SINK_GRADIENT_OPTIONS | {"padding": True}),
    ),
    "dsink-ragged-stats": Examples(
        reproductions={
            "": Reproduction(
                True, _SINK_GRADIENT_OPTIONS | _RAGGED_OPTIONS | {"batch": 3, "seq_q": 384, "deterministic": True}
            )
        },
        fixed=Reproduction(
            True, _SINK_GRADIENT_OPTIONS | {"batch": 3, "seq_q": 384, "deterministic": True, "padding": True}
        ),
    ),
    "unified-backward-modifier": Examples(
        reproductions={"": Reproduction(True, _SOFT_CAP_OPTIONS, "unified", (9, 21, 0))},
        fixed=Reproduction(True, _SOFT_CAP_OPTIONS),
    ),
    "unified-modifier-padding": Examples(
        reproductions={"": Reproduction(False, _SOFT_CAP_OPTIONS | {"padding": True}, "unified", (9, 21, 0))},
        fixed=Reproduction(False, _SOFT_CAP_OPTIONS | {"padding": True}),
    ),
}
