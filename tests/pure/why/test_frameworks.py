"""One line per framework for an attention graph: conditions of torch and TransformerEngine, rules of cudnn-frontend."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import DataType, attention
from cudnn_backend_py.why.frameworks import describe_framework_decisions
from tests.support.growth import make_pointwise_chain

TORCH, FRONTEND, ENGINE = "torch 2.15", "cudnn-frontend 1.32", "TransformerEngine 2.20"
BASE: dict[str, Any] = {"batch": 2, "heads": 8, "seq_q": 128, "head_dim": 64}


def explain_framework_choices_for_attention(
    sm: int, backward: bool = False, version: tuple[int, int, int] = (9, 24, 0), **options: Any
) -> dict[str, str]:
    build = attention.sdpa_backward if backward else attention.sdpa_forward
    return describe_framework_decisions(build(**{**BASE, **options}, allow_hazards=True), version, sm)


@pytest.mark.parametrize(
    ("sm", "options", "line"),
    [
        (90, {}, "uses cuDNN: all its conditions hold, and cuDNN is its first choice"),
        (80, {}, "does not use cuDNN: torch tries flash, efficient, math, cudnn in this order"),
        (90, {"head_dim": 20}, "does not use cuDNN: head dim 20 (q, k), 20 (v): not a multiple of 8; pad the head dim"),
        (90, {"dropout": 0.1}, "does not use cuDNN: dropout_p=0.1 is not a multiple of 1/16"),
        (100, {"seq_q": 1, "seq_kv": 512}, "does not use cuDNN: q has length 1"),
        (90, {"ragged": True}, "scaled_dot_product_attention has no padded, packed or paged sequences"),
        (90, {"alibi": True, "causal": True}, "scaled_dot_product_attention has no ALiBi slopes"),
    ],
)
def test_torch_explanation_names_the_first_unmet_condition(sm: int, options: dict[str, Any], line: str) -> None:
    assert explain_framework_choices_for_attention(sm, **options)[TORCH].startswith(line)


@pytest.mark.parametrize(("sm", "selected"), [(90, False), (100, True)])
def test_cudnn_frontend_explanation_names_the_selected_engine(sm: int, selected: bool) -> None:
    options = {"head_dim": 192, "head_dim_v": 128, "data_type": DataType.BFLOAT16, "deterministic": True}
    found = explain_framework_choices_for_attention(sm, backward=True, **options)
    assert ("selects eng5_k14=2" in found[FRONTEND]) is selected
    assert "deterministic" in found[TORCH], "torch's deterministic algorithms exclude cuDNN"


WIDE: dict[str, Any] = {"head_dim": 192, "head_dim_v": 128, "data_type": DataType.BFLOAT16}
MX: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "mx": True, "head_dim": 128}


@pytest.mark.parametrize(
    ("sm", "backward", "version", "options", "line"),
    [
        (90, False, (9, 28, 0), {"causal": True, "padding": True}, "queries cuDNN's heuristics"),
        (90, False, (9, 28, 0), {"padding": True, "page_size": 16}, "queries cuDNN's heuristics"),
        (90, False, (9, 24, 0), {"ragged": True, "ragged_stats": True, "stats": True}, "queries cuDNN's heuristics"),
        (75, False, (9, 24, 0), {}, "refuses it: SDPA in FP16/BF16 requires SM80 (Ampere) or newer, sm_75"),
        (90, False, (9, 24, 0), {"head_dim": 20}, "refuses it: hidden_dim should be multiple of 8, got 20 and 20"),
        (90, False, (9, 14, 0), {"left_bound": 4, "seq_q": 2048}, "refuses it: cuDNN 9.14.0 has a known bug"),
        (
            100,
            True,
            (9, 17, 0),
            {**WIDE, "deterministic": True},
            "refuses it: deterministic algorithm is not supported",
        ),
        (100, True, (9, 28, 0), {"head_dim": 256}, "does not query the heuristics: it selects eng5_k14=3"),
        (100, False, (9, 24, 0), {"block_mask": True}, "refuses it: a block mask on sm_100 requires cuDNN 9.26.0"),
        (
            90,
            False,
            (9, 28, 0),
            MX,
            "refuses it: sdpa fp8 with HALF/BFLOAT16 output (o) is only supported on Blackwell",
        ),
        (100, False, (9, 28, 0), MX, "queries cuDNN's heuristics"),
        (100, True, (9, 28, 0), MX, "does not query the heuristics: it selects eng5"),
        (100, True, (9, 17, 0), {"bias": (1, 8, 128, 128), "dropout": 0.1, "sink": True}, "queries cuDNN's heuristics"),
    ],
)
def test_cudnn_frontend_explanation_names_the_refusing_rule(
    sm: int, backward: bool, version: tuple[int, int, int], options: dict[str, Any], line: str
) -> None:
    assert explain_framework_choices_for_attention(sm, backward, version, **options)[FRONTEND].startswith(line)


def test_cudnn_frontend_explanation_mentions_forced_determinism() -> None:
    own = ", with deterministic kernels, which it turns on for this problem"
    assert explain_framework_choices_for_attention(100, True, (9, 28, 0), head_dim=256)[FRONTEND].endswith(own)
    assert not explain_framework_choices_for_attention(100, True, (9, 28, 0), head_dim=256, deterministic=True)[
        FRONTEND
    ].endswith(own)


TAKEN = "uses cuDNN: all its conditions hold"
TRAINING_256: dict[str, Any] = {"head_dim": 256, "data_type": DataType.BFLOAT16}
REFUSED_256 = "does not use cuDNN: no kernel is listed for these head dims above 128 here"


@pytest.mark.parametrize(
    ("sm", "backward", "version", "options", "line"),
    [
        (90, False, (9, 28, 0), {"causal": True}, TAKEN),
        (90, False, (9, 10, 0), {"causal": True}, "does not use cuDNN: cuDNN 9.10.0 and 9.10.1 have known bugs"),
        (80, False, (9, 28, 0), {}, "uses cuDNN where flash-attn is not installed"),
        (75, False, (9, 28, 0), {}, "does not use cuDNN: sm_80 or newer is needed"),
        (90, False, (9, 28, 0), {"head_dim": 20}, "does not use cuDNN: head dims must be multiples of 8"),
        (100, True, (9, 22, 0), TRAINING_256, REFUSED_256),
        (100, True, (9, 23, 0), TRAINING_256, TAKEN),
        (120, True, (9, 23, 0), TRAINING_256, REFUSED_256),
        (90, True, (9, 23, 0), TRAINING_256, TAKEN),
        (100, True, (9, 23, 0), {**TRAINING_256, "ragged": True}, REFUSED_256),
        (100, True, (9, 25, 0), {**TRAINING_256, "ragged": True}, TAKEN),
        (
            100,
            True,
            (9, 17, 0),
            {**WIDE, "deterministic": True},
            "does not use cuDNN: deterministic training on sm_100",
        ),
        (100, True, (9, 19, 0), {**WIDE, "deterministic": True}, TAKEN),
        (120, True, (9, 19, 0), {"deterministic": True}, "does not use cuDNN: deterministic training is not taken"),
        (89, False, (9, 28, 0), {"ragged": True}, "does not use cuDNN: packed sequences need sm_90 or newer"),
        (
            90,
            False,
            (9, 28, 0),
            {"bias": (1, 8, 128, 128), "padding": True},
            "does not use cuDNN: a bias excludes padding",
        ),
        (90, False, (9, 28, 0), {"alibi": True}, "does not use cuDNN: ALiBi needs a causal mask"),
        (90, False, (9, 14, 0), {"left_bound": 4, "seq_kv": 2048}, "does not use cuDNN: cuDNN 9.14.0 gets windows"),
        (90, False, (9, 14, 1), {"left_bound": 4, "seq_kv": 2048}, TAKEN),
        (100, False, (9, 28, 0), {"block_mask": True}, "does not use cuDNN: it has no such option as this graph"),
        (90, False, (9, 28, 0), MX, "does not use cuDNN: MXFP8 needs sm_100"),
        (100, False, (9, 23, 1), MX, "does not use cuDNN: cuDNN 9.23.0 and 9.23.1 have known bugs in MXFP8"),
        (100, False, (9, 28, 0), MX, TAKEN),
        (90, False, (9, 6, 0), {}, "is not known to this package for cuDNN before 9.8.0"),
    ],
)
def test_transformer_engine_explanation_names_first_unmet_condition(
    sm: int, backward: bool, version: tuple[int, int, int], options: dict[str, Any], line: str
) -> None:
    assert explain_framework_choices_for_attention(sm, backward, version, **options)[ENGINE].startswith(line)


def test_graphs_without_attention_have_no_framework_explanation() -> None:
    assert describe_framework_decisions(make_pointwise_chain(2), (9, 24, 0), 90) == {}
