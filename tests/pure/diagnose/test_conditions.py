"""Conditions of cuDNN's source in plain English."""

from __future__ import annotations

import re

import pytest

from cudnn_backend_py.diagnose.causes.conditions import CONDITION_REWRITES, describe_condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("head dim is wrong at: d_qk % 8 != 0", "head dim of Q/K is not a multiple of 8"),
        ("operation == CUDNN_POINTWISE_FLOOR_MOD", "pointwise mode is FLOOR_MOD"),
        ("CUDNN_POINTWISE_GEN_INDEX == operation", "pointwise mode is GEN_INDEX"),
        ("!(1 == seedPort.tensor.getDimA()[i])", "dim [i] of seed is not 1"),
        (
            "only Hopper\nat: !(900 <= deviceVer && deviceVer < 1000)",
            "deviceVer (900 is sm_90) is not at least 900 and below 1000",
        ),
        (
            "cfo->getYDescriptorPtr()->getDataType().kern_type != CUDNN_DTYPE_FP16",
            "data type of Y of the forward convolution is not FP16",
        ),
        (
            "resample.getXDesc() && resample.getdXDesc()->getVectCount() != 1",
            "X of the resampling and elements per vector of dX of the resampling is not 1",
        ),
        ("!resample.hasYDesc()", "the resampling has no Y"),
        ("!xPort.tensor.hasSameShape(&yPort.tensor)", "x has other dims than y"),
        ("aType != bType || d_v > 128", "data type of a is not data type of b or head dim of V is more than 128"),
        ("0 != xDimA[1] % wDimA[1]", "dim [1] of x is not a multiple of dim [1] of w"),
        ("kcfg.cta_tile.M != 64", "kcfg.cta_tile.M is not 64"),
        ("hasScaleDesc() != hasDScaleDesc()", "only one of Scale and DScale is given"),
        ("subgraphInputDesc == nullptr", "subgraphInputDesc is missing"),
        ("an unknown_name at: unknown_name >= other", "unknown_name is at least other"),
        ("generate_mha_fort()", ""),
        ("exec_op.init(conv, 2 >= conv.nbSpaceDims)", ""),
        ("Unsupported node in the graph. at: true", ""),
        ("the dims do not match != at all", ""),
    ],
)
def test_conditions_become_plain_english(text: str, words: str) -> None:
    assert describe_condition(text) == words


def test_rewrites_are_also_valid_in_javascript() -> None:
    for pattern, replacement in CONDITION_REWRITES:
        assert not re.search(r"\(\?P|\(\?i|\\[AZ]|\[\^\]|\(\?<[=!][^)]*[*+?{]", pattern), pattern
        assert "$" not in replacement
