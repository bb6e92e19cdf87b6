"""One line per framework for an attention graph: torch's conditions, and the engine that cudnn-frontend selects."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import DataType, attention
from cudnn_backend_py.why.frameworks import describe_frameworks
from tests.support.growth import make_pointwise_chain

TORCH, FRONTEND = "torch 2.15", "cudnn-frontend 1.32"
BASE: dict[str, Any] = {"batch": 2, "heads": 8, "seq_q": 128, "head_dim": 64}


def describe_attention(sm: int, backward: bool = False, **options: Any) -> dict[str, str]:
    build = attention.sdpa_backward if backward else attention.sdpa_forward
    return describe_frameworks(build(**{**BASE, **options}), (9, 24, 0), sm)


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
def test_torch_line_names_the_first_unmet_condition(sm: int, options: dict[str, Any], line: str) -> None:
    assert describe_attention(sm, **options)[TORCH].startswith(line)


@pytest.mark.parametrize(("sm", "selected"), [(90, False), (100, True)])
def test_cudnn_frontend_line_names_the_selected_engine(sm: int, selected: bool) -> None:
    options = {"head_dim": 192, "head_dim_v": 128, "data_type": DataType.BFLOAT16, "deterministic": True}
    found = describe_attention(sm, backward=True, **options)
    assert ("selects eng5_k14=2" in found[FRONTEND]) is selected
    assert "deterministic" in found[TORCH], "torch's deterministic algorithms exclude cuDNN"


def test_graphs_without_attention_have_no_framework_lines() -> None:
    assert describe_frameworks(make_pointwise_chain(2), (9, 24, 0), 90) == {}
