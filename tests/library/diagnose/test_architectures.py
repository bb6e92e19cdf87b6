"""Verdicts for architectures that this cuDNN does not support: the architecture is the cause, not the graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cudnn_backend_py import EnvironmentNotReady, attention, build
from cudnn_backend_py.diagnose import Outcome, control_graph, explain, render_text
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph import Graph, GraphBuilder
from cudnn_backend_py.graph.strides import channels_last
from cudnn_backend_py.target import Profile, find_profile
from tests.support.child import make_older_cudnn_environment, run_code


def make_flash_attention() -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)


def make_convolution() -> Graph:
    """Return a convolution that has precompiled kernels on every architecture."""
    g = GraphBuilder("convolution", io_type=DataType.FLOAT)
    image, weights = (8, 64, 32, 32), (64, 64, 3, 3)
    x = g.tensor("x", image, strides=channels_last(image))
    g.convolution(x, g.tensor("w", weights, strides=channels_last(weights)), name="y", virtual=False, padding=1)
    return g.graph()


def make_unknown_gpu(sm: int) -> Profile:
    """Return an unknown GPU: the properties of an RTX 5090, with architecture `sm`."""
    known = find_profile("sm120")
    properties = {**known.properties, "deviceVer": sm * 10, "deviceName": "unknown"}
    return replace(known, name="unknown", title="an unknown GPU", properties=properties)


@pytest.mark.parametrize("target", ["p100", "gtx-1080-ti"])
def test_gpus_before_volta_support_convolutions_but_no_matmuls(target: str) -> None:
    """These GPUs refuse the float16 matmul that usually checks the environment: it is not reported as broken."""
    for whole in (False, True):
        verdict = explain(make_convolution(), target, build=whole)
        assert verdict.outcome is Outcome.SUPPORTED
        assert verdict.control is not None
        assert verdict.control.graph == "control for sm_80"
        assert verdict.environment[0].startswith("cuDNN 9.28.0 is built for sm_75 and later")
    refused = explain(make_flash_attention(), target)
    assert refused.outcome is Outcome.NOT_SUPPORTED
    assert refused.cause is not None
    assert refused.cause.code == "architecture"
    assert f"sm_{refused.sm} does not support the graph" in refused.cause.headline


@pytest.mark.parametrize("target", ["v100", "jetson-xavier"])
def test_volta_is_judged_and_its_end_of_support_is_reported(target: str) -> None:
    verdict = explain(control_graph(), target, build=True)
    assert verdict.outcome is Outcome.SUPPORTED
    assert "9.10 is the last" in verdict.environment[0]
    assert explain(make_flash_attention(), target).outcome is Outcome.NOT_SUPPORTED


def test_turing_and_later_have_no_end_of_support() -> None:
    for target in ("t4", "sm89", "sm121"):
        assert not any(
            "is built for" in line or "older than sm_" in line
            for line in explain(make_flash_attention(), target).environment
        )


def test_an_architecture_newer_than_the_library_is_reported() -> None:
    refused = explain(make_flash_attention(), make_unknown_gpu(130))
    assert refused.outcome is Outcome.NOT_SUPPORTED
    assert refused.cause is not None
    assert refused.cause.code == "architecture-newer-than-library"
    assert refused.cause.headline.startswith("cuDNN 9.28.0 is older than sm_130, and refuses the graph there; ")
    assert "(cuDNN:" not in refused.cause.headline, (
        "a message of an engine for another architecture must not be the cause"
    )
    assert "it has no machine code for it" in refused.environment[0]
    assert "runs from PTX" in render_text(refused)
    assert explain(make_convolution(), make_unknown_gpu(130), build=True).outcome is Outcome.SUPPORTED


@pytest.mark.parametrize(("sm", "repair"), [(110, "use the cuDNN of CUDA 13"), (122, "use a newer CUDA")])
def test_an_architecture_that_nvrtc_lacks_is_not_blamed_on_the_graph(sm: int, repair: str) -> None:
    for planned in (None, True):  # a plan is built either way, as the support check does not need NVRTC
        verdict = explain(make_flash_attention(), make_unknown_gpu(sm), build=planned)
        assert verdict.outcome is Outcome.NOT_JUDGED
        assert f"NVRTC 12.9 does not compile for sm_{sm}" in verdict.environment
        assert verdict.cause is not None
        assert verdict.cause.code == "nvrtc-too-old"
        assert verdict.cause.remedy.startswith(repair)
        compiled = explain(make_convolution(), make_unknown_gpu(sm), build=planned)
        assert (compiled.outcome, compiled.stage) == (Outcome.SUPPORTED, "plan"), "compiled ahead of time"
    with pytest.raises(EnvironmentNotReady) as raised:
        build(make_flash_attention(), make_unknown_gpu(sm), cache=False)
    assert raised.value.code == "nvrtc-too-old"
    assert raised.value.sections["fix"].startswith(repair)


OLDER_VERSION_PROGRAM = """
from dataclasses import replace
from cudnn_backend_py.diagnose import control_graph, explain
from cudnn_backend_py.target import find_profile
known = find_profile("sm120")
unknown = replace(known, properties={**known.properties, "deviceVer": 1300})
for target in ("p100", "v100", unknown):
    verdict = explain(control_graph(), target)
    said = [verdict.outcome.value, verdict.control.graph, verdict.environment[0]]
    print(*said, verdict.cause and verdict.cause.code, sep="|")
"""


def test_an_older_cudnn_reports_the_same_causes_for_architectures() -> None:
    p100, v100, newer = run_code(OLDER_VERSION_PROGRAM, environment=make_older_cudnn_environment()).stdout.splitlines()
    assert p100.split("|")[1] == newer.split("|")[1] == "control for sm_80"
    assert v100.startswith("supported|control|cuDNN 9.19.0 is built for sm_75 and later")
    assert newer.split("|")[2].startswith("cuDNN 9.19.0 is older than sm_130")
    # A JIT wheel: the engines of the full one were not queried.
    assert p100.endswith("|engines-absent")
    assert newer.endswith("|engines-absent")
    assert not p100.startswith("supported")
