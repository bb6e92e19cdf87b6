"""Every example runs as a script, up to the verdict if there is no GPU."""

from __future__ import annotations

import json
import os

import pytest

from cudnn_backend_py import library
from examples.attention_known_issues import REPRODUCTIONS, find_known_issue
from tests.support.child import ROOT, make_older_cudnn_environment, run_python

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
OLDER, NEWEST = True, False
V9_19 = (9, 19, 0)

RUNS = [
    (("forum_two_matmul.py",), NEWEST, 2, "could not be judged\nthere is no GPU in this process"),
    (("flash_forward.py",), NEWEST, 0, "on NVIDIA H100 SXM5 80GB: supported"),
    (("flash_backward.py",), NEWEST, 0, "on NVIDIA H100 SXM5 80GB: supported"),
    (("flash_backward.py",), OLDER, 0, "on NVIDIA H100 SXM5 80GB: supported"),
    (("mha_fprop.py",), OLDER, 0, "on NVIDIA H100 SXM5 80GB, cuDNN 9.19.0+cu12: supported"),
    (("mha_fprop.py",), NEWEST, 0, ": not supported\nthe pattern was removed from cuDNN"),
    (("mha_bprop.py",), OLDER, 0, "on NVIDIA H100 SXM5 80GB, cuDNN 9.19.0+cu12: supported"),
    (("mha_bprop.py",), NEWEST, 0, ": not supported\nthe pattern was removed from cuDNN"),
    (("attention_known_issues.py",), NEWEST, 0, "unified-modifier-padding"),
    (("attention_known_issues.py", "fp8-bias:backward"), NEWEST, 0, "fp8-bias"),
    (("level0_two_matmul.py", "--target", "sm80"), OLDER, 0, "8 candidates, 1 engine configs left\nsuccess"),
    (("level0_two_matmul.py", "--target", "sm89"), OLDER, 0, "SHARED_MEMORY_INSUFFICIENT"),
    (("level0_two_matmul.py", "--target", "sm80"), NEWEST, 0, "non-flash composite MHA fprop is no longer supported"),
    (("frontend_sdpa_forward.py",), NEWEST, 0, "built for an H100"),
    (("frontend_wrapper.py",), NEWEST, 0, "built for an H100"),
    (("frontend_conv.py",), OLDER, 0, "built for an H100"),
    (("conv_bias_relu.py",), NEWEST, 0, "on NVIDIA H100 SXM5 80GB, cuDNN 9.28.0+cu12: supported"),
    (("conv_bias_relu.py",), OLDER, 0, "on NVIDIA H100 SXM5 80GB, cuDNN 9.19.0+cu12: supported"),
    (("layer_norm.py",), NEWEST, 0, "cuDNN 9.28.0+cu12: supported"),
    (("layer_norm.py",), OLDER, 0, "cuDNN 9.19.0+cu12: supported"),
    (("batch_norm.py",), NEWEST, 0, "cuDNN 9.28.0+cu12: supported"),
    (("batch_norm.py",), OLDER, 0, "cuDNN 9.19.0+cu12: supported"),
    (("residual_block.py",), NEWEST, 0, "residual_block on NVIDIA H100 SXM5 80GB, cuDNN 9.28.0+cu12: supported"),
    (("residual_block.py",), OLDER, 0, "residual_block on NVIDIA H100 SXM5 80GB, cuDNN 9.19.0+cu12: supported"),
    (("quantized_matmul.py",), NEWEST, 0, "cuDNN 9.28.0+cu12: supported"),
    (("quantized_matmul.py",), OLDER, 0, "cuDNN 9.19.0+cu12: supported"),
    (("moe_layer.py",), NEWEST, 0, "moe_down on NVIDIA H100 SXM5 80GB, cuDNN 9.28.0+cu12: supported"),
    (("moe_layer.py",), OLDER, 0, "moe_down on NVIDIA H100 SXM5 80GB, cuDNN 9.19.0+cu12: supported"),
    (("level0_execute.py",), NEWEST, 0, "needs torch and a GPU"),
    (("audited_attention.py",), NEWEST, 0, "needs torch and a GPU"),
    (("rope_attention.py",), NEWEST, 0, "cuDNN 9.28.0+cu12: supported"),
    (("rope_attention.py",), OLDER, 0, "not supported: CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR needs cuDNN 9.24.0"),
]

# Output of `cudnn-backend explain` for the examples of operations: architecture, exit code, text.
EXPLAINED = [
    ("conv_bias_relu.py", "h100", 0, "SUPPORTED, not built: graph 'conv_bias_relu'"),
    ("layer_norm.py", "h100", 0, "SUPPORTED, not built: graph 'layer_norm'"),
    ("layer_norm.py", "b200", 0, "SUPPORTED, not built: graph 'layer_norm'"),
    ("batch_norm.py", "h100", 0, "SUPPORTED, not built: graph 'batch_norm'"),
    ("residual_block.py", "h100", 0, "SUPPORTED, not built: graph 'residual_block'"),
    ("quantized_matmul.py", "h100", 0, "SUPPORTED, not built: graph 'quantized_matmul'"),
    ("quantized_matmul.py", "a100", 2, "COULD NOT BE JUDGED: graph 'quantized_matmul'"),  # an engine queries the device
    ("moe_layer.py", "h100", 0, "SUPPORTED, not built: graph 'moe_up'"),
    ("moe_layer.py", "b200", 0, "SUPPORTED, not built: graph 'moe_up'"),
    ("rope_attention.py", "h100", 0, "SUPPORTED, not built: graph 'rope_attention'"),
    ("rope_attention.py", "t4", 1, "NOT SUPPORTED: graph 'rope_attention'"),
    ("batch_norm.py", "t4", 1, "NOT SUPPORTED: graph 'batch_norm'"),
    ("moe_layer.py", "t4", 1, "NOT SUPPORTED: graph 'moe_up'"),
]


@pytest.mark.parametrize(
    ("arguments", "older", "code", "words"),
    RUNS,
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_example_runs_without_a_gpu(arguments: tuple[str, ...], older: bool, code: int, words: str) -> None:
    script, *rest = arguments
    program = (
        ["-m", "examples.attention_known_issues"] if script == "attention_known_issues.py" else [f"examples/{script}"]
    )
    done = run_python([*program, *rest], environment=make_example_environment(older))
    assert done.code == code, done.stderr
    assert words in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("script", "target", "code", "words"), EXPLAINED)
def test_the_command_explains_examples_of_operations(script: str, target: str, code: int, words: str) -> None:
    program = ["-m", "cudnn_backend_py", "explain", str(ROOT / "examples" / script), "--target", target]
    done = run_python(program, environment=make_example_environment(NEWEST))
    assert done.code == code, done.stderr
    assert done.stdout.startswith(words)


def make_example_environment(older: bool) -> dict[str, str]:
    return (make_older_cudnn_environment() if older else dict(os.environ)) | NO_GPU


def test_every_example_is_run() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}
    assert scripts == {script for (script, *_), *_ in RUNS}


# Known issues: cuDNN accepts the graphs

JUDGE = """
import json, sys
from cudnn_backend_py import explain, library
from examples.attention_known_issues import make_reproduction_graph
_, build, *names = sys.argv
verdicts = {name: str(explain(make_reproduction_graph(name), "sm90", build=build == "build").outcome) for name in names}
print(json.dumps([library().version_text, verdicts]))
"""
COMPILED = ("fp8-backward-ragged", "fp8-backward-heads")  # with other numbers of heads no plan of these can be built
ENDS_THE_PROCESS = {  # by signal
    "inner-stride": "SIGSEGV",
    "inner-stride:backward": "SIGSEGV",
    "backward-of-one-row": "SIGSEGV",
    "fp8-bias": "SIGABRT",
    "fp8-dropout-mask": "SIGABRT",
}


def list_known_issue_reproductions(version: tuple[int, int, int]) -> set[str]:
    """Return the reproductions of this version's known issues that use only operations it supports."""
    return {
        name
        for name, made in REPRODUCTIONS.items()
        if find_known_issue(name).since <= version < (find_known_issue(name).until or (99, 0, 0))
        and (made.version is None or made.version <= version)
    }


def test_each_known_issue_reproduction_has_an_available_version() -> None:
    assert list_known_issue_reproductions(V9_19) | list_known_issue_reproductions(library().version) == set(
        REPRODUCTIONS
    )


@pytest.mark.parametrize("older", [OLDER, NEWEST], ids=["9.19.0", "newest"])
def test_cudnn_supports_the_known_issue_reproductions(older: bool) -> None:
    """Judged on sm_90: if cuDNN refused a reproduction, the known issue would be harmless."""
    names = sorted(list_known_issue_reproductions(V9_19 if older else library().version) - set(ENDS_THE_PROCESS))
    for step, selected in (("check", names), ("build", COMPILED)):
        done = run_python(["-c", JUDGE, step, *selected], environment=make_example_environment(older), check=True)
        version, verdicts = json.loads(done.stdout)
        assert (version == "9.19.0") is older
        assert verdicts == dict.fromkeys(selected, "supported")


@pytest.mark.parametrize(
    ("name", "older"),
    [
        (name, older)
        for name in ENDS_THE_PROCESS
        for older in (OLDER, NEWEST)
        if not older or name in list_known_issue_reproductions(V9_19)
    ],
)
def test_some_known_issues_crash_when_a_plan_is_built(name: str, older: bool) -> None:
    """The newest cuDNN crashes when the plan is built, cuDNN 9.19 already in the support check."""
    done = run_python(["-c", JUDGE, "check" if older else "build", name], environment=make_example_environment(older))
    assert done.ending == ENDS_THE_PROCESS[name], done.stdout
    assert done.ending == "SIGSEGV" or "format_error" in done.stderr
