"""Attention features that need Blackwell are judged and built without a GPU: deterministic backward and mxfp8."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import DataType, OperationGraph, attention, build_plan, library, open_target
from tests.support.child import make_older_cudnn_environment, run_code

SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 256, "head_dim": 128}
MX: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "mx": True}


def find_backward_config_tag(target: str, options: dict[str, Any]) -> str:
    """Return the tag of the engine config that deterministic backward attention requests."""
    version = library().version
    place = open_target(target)
    question = OperationGraph(attention.sdpa_backward(**SIZES, **options, version=version, sm=place.sm), place)
    chosen = attention.deterministic_config(version, place.sm)
    assert chosen is not None
    return question.config(*chosen).tag


@pytest.mark.parametrize("target", ["sm100", "sm103"])
@pytest.mark.parametrize("options", [{"deterministic": True}, {"deterministic": True, "causal": True}, MX], ids=str)
def test_the_deterministic_backward_config_is_supported(target: str, options: dict[str, Any]) -> None:
    assert find_backward_config_tag(target, options).startswith("eng5_")


@pytest.mark.parametrize("options", [{"deterministic": True}, {"deterministic": True, "causal": True}])
def test_the_deterministic_backward_config_of_9_19_is_supported(options: dict[str, Any]) -> None:
    code = (
        "from tests.library.graph.test_attention_blackwell import find_backward_config_tag\n"
        f"print(find_backward_config_tag('sm100', {options!r}))"
    )
    assert run_code(code, environment=make_older_cudnn_environment()).stdout.startswith("eng5_")


def test_mxfp8_attention_plans_are_built_without_a_gpu() -> None:
    version, place = library().version, open_target("sm100")
    forward = attention.sdpa_forward(**SIZES, **MX, version=version, sm=100, stats=True, implementation="composite")
    backward = OperationGraph(attention.sdpa_backward(**SIZES, **MX, version=version, sm=100), place)
    chosen = attention.deterministic_config(version, 100)
    assert chosen is not None
    plans = [
        build_plan(OperationGraph(forward, place).heuristics("A").configs[0]),
        build_plan(backward.config(*chosen)),
    ]
    assert [plan.tag.split("_")[0] for plan in plans] == ["eng3", "eng5"]


def test_deterministic_backward_config_needs_sm100_and_cudnn_9_18() -> None:
    assert attention.deterministic_config((9, 28, 0), 90) is None
    assert attention.deterministic_config((9, 17, 0), 100) is None
    assert attention.deterministic_config((9, 28, 0), 120) is None
