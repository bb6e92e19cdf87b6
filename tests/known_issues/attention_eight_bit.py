"""Examples of known issues of attention in 8-bit floats."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType

from .example import Examples, Reproduction

__all__ = ["ATTENTION_EIGHT_BIT"]


_EIGHT: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "head_dim": 128}
_MX: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "mx": True, "output_type": DataType.BFLOAT16, "head_dim": 128}
_E4M3: dict[str, Any] = {"data_type": DataType.FP8_E4M3}


ATTENTION_EIGHT_BIT: dict[str, Examples] = {
    "fp8-attention-of-9-10": Examples(
        reproductions={"": Reproduction(False, {"data_type": DataType.FP8_E4M3})},
        unlike=Reproduction(False, {}),
    ),
    "mxfp8-infinities": Examples(
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "mx": True, "output_type": DataType.BFLOAT16})
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3}),
    ),
    "fp8-split-keys": Examples(
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "seq_kv": 4096})
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.HALF, "seq_kv": 4096}),
        remedy=Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.HALF, "seq_kv": 4096}),
    ),
    "fp8-window-of-sequences": Examples(
        reproductions={
            "": Reproduction(
                False, {"data_type": DataType.FP8_E4M3, "padding": True, "left_bound": 64, "right_bound": 0}
            )
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3, "padding": True, "right_bound": 0}),
        remedy=Reproduction(False, {"padding": True, "left_bound": 64, "right_bound": 0}),
    ),
    "mxfp8-one-query": Examples(
        reproductions={"": Reproduction(False, _MX | {"seq_q": 1, "seq_kv": 512})},
        unlike=Reproduction(False, _MX | {"seq_q": 2, "seq_kv": 512}),
        remedy=Reproduction(False, _MX | {"seq_q": 2, "seq_kv": 512}),
    ),
    "mxfp8-wide-heads": Examples(
        reproductions={"": Reproduction(False, _MX | {"head_dim": 512})},
        unlike=Reproduction(False, _MX | {"head_dim": 192, "head_dim_v": 128}),
        remedy=Reproduction(False, _MX | {"head_dim": 192, "head_dim_v": 128}),
    ),
    "mxfp8-backward": Examples(
        reproductions={"": Reproduction(True, _MX)},
        unlike=Reproduction(True, {"head_dim": 128}),
        remedy=Reproduction(True, {"head_dim": 128}),
    ),
    "fp8-one-query": Examples(
        reproductions={"": Reproduction(False, _EIGHT | {"seq_q": 1, "seq_kv": 512})},
        unlike=Reproduction(False, _EIGHT | {"seq_q": 2, "seq_kv": 512}),
        remedy=Reproduction(False, _EIGHT | {"seq_q": 2, "seq_kv": 512}),
    ),
    "fp8-paged-prefill": Examples(
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True, "page_size": 64})
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True}),
        remedy=Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True}),
    ),
    "fp8-ragged-no-query": Examples(
        reproductions={"": Reproduction(False, _E4M3 | {"ragged": True})},
        unlike=Reproduction(False, _E4M3 | {"padding": True}),
        remedy=Reproduction(False, _E4M3 | {"padding": True}),
    ),
    "fp8-backward-key-tail": Examples(
        reproductions={"": Reproduction(True, _E4M3 | {"head_dim": 128, "seq_kv": 192})},
        unlike=Reproduction(True, _E4M3 | {"head_dim": 128, "seq_kv": 256}),
        remedy=Reproduction(True, _E4M3 | {"head_dim": 128, "seq_kv": 192, "padding": True}),
    ),
}
