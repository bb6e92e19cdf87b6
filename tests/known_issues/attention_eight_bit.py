"""Examples of known issues of attention in 8-bit floats."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType

from .example import Examples, Reproduction

__all__ = ["ATTENTION_EIGHT_BIT"]


_HEAD_DIM_128_OPTIONS: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "head_dim": 128}
_MXFP8_OPTIONS: dict[str, Any] = {
    "data_type": DataType.FP8_E4M3,
    "mx": True,
    "output_type": DataType.BFLOAT16,
    "head_dim": 128,
}
_E4M3_OPTIONS: dict[str, Any] = {"data_type": DataType.FP8_E4M3}


ATTENTION_EIGHT_BIT: dict[str, Examples] = {
    "fp8-attention-of-9-10": Examples(
        reproductions={"": Reproduction(False, {"data_type": DataType.FP8_E4M3})},
        unaffected=Reproduction(False, {}),
    ),
    "mxfp8-infinities": Examples(
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "mx": True, "output_type": DataType.BFLOAT16})
        },
        unaffected=Reproduction(False, {"data_type": DataType.FP8_E4M3}),
    ),
    "fp8-split-keys": Examples(
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "seq_kv": 4096})
        },
        unaffected=Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.HALF, "seq_kv": 4096}),
        fixed=Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.HALF, "seq_kv": 4096}),
    ),
    "fp8-window-of-sequences": Examples(
        reproductions={
            "": Reproduction(
                False, {"data_type": DataType.FP8_E4M3, "padding": True, "left_bound": 64, "right_bound": 0}
            )
        },
        unaffected=Reproduction(False, {"data_type": DataType.FP8_E4M3, "padding": True, "right_bound": 0}),
        fixed=Reproduction(False, {"padding": True, "left_bound": 64, "right_bound": 0}),
    ),
    "mxfp8-one-query": Examples(
        reproductions={"": Reproduction(False, _MXFP8_OPTIONS | {"seq_q": 1, "seq_kv": 512})},
        unaffected=Reproduction(False, _MXFP8_OPTIONS | {"seq_q": 2, "seq_kv": 512}),
        fixed=Reproduction(False, _MXFP8_OPTIONS | {"seq_q": 2, "seq_kv": 512}),
    ),
    "mxfp8-wide-heads": Examples(
        reproductions={"": Reproduction(False, _MXFP8_OPTIONS | {"head_dim": 512})},
        unaffected=Reproduction(False, _MXFP8_OPTIONS | {"head_dim": 192, "head_dim_v": 128}),
        fixed=Reproduction(False, _MXFP8_OPTIONS | {"head_dim": 192, "head_dim_v": 128}),
    ),
    "mxfp8-backward": Examples(
        reproductions={"": Reproduction(True, _MXFP8_OPTIONS)},
        unaffected=Reproduction(True, {"head_dim": 128}),
        fixed=Reproduction(True, {"head_dim": 128}),
    ),
    "mxfp8-other-architectures": Examples(
        reproductions={"": Reproduction(True, _MXFP8_OPTIONS)},
        unaffected=Reproduction(True, {"head_dim": 128}),
        fixed=Reproduction(True, {"head_dim": 128}),
    ),
    "fp8-one-query": Examples(
        reproductions={"": Reproduction(False, _HEAD_DIM_128_OPTIONS | {"seq_q": 1, "seq_kv": 512})},
        unaffected=Reproduction(False, _HEAD_DIM_128_OPTIONS | {"seq_q": 1, "seq_kv": 512, "stats": True}),
        fixed=Reproduction(False, _HEAD_DIM_128_OPTIONS | {"seq_q": 1, "seq_kv": 512, "stats": True}),
    ),
    "fp8-paged-prefill": Examples(
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True, "page_size": 64})
        },
        unaffected=Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True}),
        fixed=Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True}),
    ),
    "fp8-ragged-no-query": Examples(
        reproductions={"": Reproduction(False, _E4M3_OPTIONS | {"ragged": True})},
        unaffected=Reproduction(False, _E4M3_OPTIONS | {"padding": True}),
        fixed=Reproduction(False, _E4M3_OPTIONS | {"padding": True}),
    ),
    "fp8-backward-key-tail": Examples(
        reproductions={"": Reproduction(True, _E4M3_OPTIONS | {"head_dim": 128, "seq_kv": 192})},
        unaffected=Reproduction(True, _E4M3_OPTIONS | {"head_dim": 128, "seq_kv": 256}),
        fixed=Reproduction(True, _E4M3_OPTIONS | {"head_dim": 128, "seq_kv": 192, "padding": True}),
    ),
}
