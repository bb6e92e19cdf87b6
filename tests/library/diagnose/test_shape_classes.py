"""Support of class plans (one plan for many shapes) by cuDNN version and architecture, judged without a GPU."""

from __future__ import annotations

import json
from functools import cache

import pytest

from cudnn_backend_py import attention, explain
from cudnn_backend_py.diagnose import render_text
from examples import rope_attention
from tests.support.child import make_cudnn_environment, run_python
from tests.support.missing_class_plans import SHAPE_CLASS_CASES

GPU_NAMES = ("h100", "a100", "b200")
VERSIONS = ("9.14.0", "9.19.0", "9.24.0", "own")
FORWARD_CASES = set(SHAPE_CLASS_CASES)
BACKWARD_CASES = {f"{name} backward" for name, options in SHAPE_CLASS_CASES.items() if "page_size" not in options}

# Refusals of cuDNN; all others have a class.
CASES_REFUSED_FOR_RAGGED = set(BACKWARD_CASES)
CASES_REFUSED_ON_AMPERE = {"cap backward", "d256 backward", "deterministic backward"}
REFUSED_CASES = {
    ("9.14.0", "a100"): CASES_REFUSED_FOR_RAGGED,
    ("9.14.0", "b200"): {"d256 backward", "deterministic backward"},
    ("9.19.0", "a100"): CASES_REFUSED_ON_AMPERE,
    ("9.19.0", "b200"): {"d256 backward"},
    ("9.24.0", "a100"): CASES_REFUSED_ON_AMPERE,
    ("own", "a100"): CASES_REFUSED_ON_AMPERE,
}


@cache
def find_refusals_of_shape_class_plans(version: str) -> dict[str, dict[str, str]]:
    environment = None if version == "own" else make_cudnn_environment(version)
    program = ["-W", "ignore", "-m", "tests.support.missing_class_plans", *GPU_NAMES]
    done = run_python(program, environment=environment, check=True, timeout_s=280)
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("gpu", GPU_NAMES)
def test_cudnn_refuses_exactly_the_listed_shape_class_plans(version: str, gpu: str) -> None:
    found = find_refusals_of_shape_class_plans(version)[gpu]
    assert set(found) == FORWARD_CASES | BACKWARD_CASES
    assert {name for name, why in found.items() if why} == REFUSED_CASES.get((version, gpu), set())


def test_an_old_version_refuses_ragged_backward_passes_on_ampere() -> None:
    assert "nothing-selected" in find_refusals_of_shape_class_plans("9.14.0")["a100"]["causal backward"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            "this plan serves only its own dims; a class plan (cudnn_backend_py.plan of the problem) every batch and "
            "length",
        ),
        (
            {"layout": "bhsd"},
            "each plan serves only its own dims (the heads of a token of q are not adjacent",
        ),
        ({"ragged": True}, "this plan serves every batch and length up to its own"),
    ],
)
def test_a_verdict_reports_whether_one_plan_serves_every_shape(options: dict[str, object], said: str) -> None:
    graph = attention.sdpa_forward(batch=2, heads=8, seq_q=128, head_dim=64, causal=True, **options)  # type: ignore[arg-type]
    verdict = explain(graph, "h100", shapes=True)
    assert verdict.shapes.startswith(said)
    assert said in render_text(verdict)


def test_a_verdict_reports_that_cudnn_refuses_the_shape_class() -> None:
    graph = attention.sdpa_backward(batch=2, heads=8, seq_q=128, head_dim=64, deterministic=True)
    assert "cuDNN refuses a class plan" in explain(graph, "a100", shapes=True).shapes


def test_verdicts_on_graphs_without_attention_mention_no_shapes() -> None:
    from cudnn_backend_py.diagnose.explanation import control_graph

    assert explain(control_graph(), "h100", shapes=True).shapes == ""


def test_a_verdict_mentions_shapes_only_on_request() -> None:
    assert explain(attention.sdpa_forward(batch=2, heads=8, seq_q=128, head_dim=64), "h100").shapes == ""


def test_a_verdict_on_attention_with_other_operations_does_not_mention_shapes() -> None:
    assert explain(rope_attention.graph(), "h100", shapes=True).shapes == ""
