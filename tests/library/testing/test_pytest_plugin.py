"""The pytest plugin, run by pytest itself in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from cudnn_backend_py import Graph, UsageError, attention, find_profile, library
from cudnn_backend_py.diagnose import control_graph
from cudnn_backend_py.testing.assertions import assert_not_supported, assert_supported

pytest_plugins = "pytester"

PLUGIN = "cudnn_backend_py.testing.pytest_plugin"
INSTALLED = any(point.value == PLUGIN for point in entry_points(group="pytest11"))

GRAPHS = """
import pytest
from cudnn_backend_py import attention

def flash(head_dim=64):
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=head_dim)
"""


def run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    """Run a test module in a child, in which an unknown marker is an error."""
    pytester.makepyfile(test_user=GRAPHS + body)
    plugin = () if INSTALLED else ("-p", PLUGIN)
    return pytester.runpytest_subprocess(*plugin, "-ra", "--strict-markers", "-W", "error", *arguments)


# The functions


def flash(head_dim: int = 64) -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=head_dim)


def test_what_holds_returns_the_verdict() -> None:
    built = assert_supported(flash(), "sm90", build=True)
    assert (built.stage, built.sm, built.cudnn) == ("plan", 90, library().version_text)
    refused = flash(20)
    verdict = assert_not_supported(refused, "sm90")
    assert verdict.exit_code == 1
    assert verdict.cause is not None
    assert assert_not_supported(refused, "sm90", cause=verdict.cause.code).cause == verdict.cause


def test_what_does_not_hold_fails_with_the_verdict() -> None:
    supported = flash()
    with pytest.raises(AssertionError, match=r"(?s)^expected: not supported\nSUPPORTED: graph 'sdpa_forward'"):
        assert_not_supported(supported, "sm90")
    refused = flash(20)
    with pytest.raises(AssertionError) as caught:
        assert_supported(refused, "sm90")
    text = str(caught.value)
    assert text.startswith("NOT SUPPORTED: graph 'sdpa_forward'")
    assert "cause:" in text
    assert "not a multiple of 8" in text
    with pytest.raises(AssertionError, match=r"^expected cause: pattern-removed, found: [a-z-]+\nNOT SUPPORTED"):
        assert_not_supported(refused, "sm90", cause="pattern-removed")


def test_another_version_is_asked_in_its_own_process() -> None:
    assert library().version > (9, 19, 0)
    assert assert_supported(flash(), "sm90", version="9.19.0").cudnn == "9.19.0"


def test_what_could_not_be_judged_is_neither(tmp_path: Path) -> None:
    """A described GPU too old for the engines of a jit wheel (Pascal): those of the full wheel were not asked."""
    described = tmp_path / "pascal.json"
    described.write_text(json.dumps({**find_profile("t4").properties, "deviceVer": 600}))
    for check in (assert_supported, assert_not_supported):
        with pytest.raises(AssertionError, match="COULD NOT BE JUDGED"):
            check(control_graph(), str(described), version="9.19.0")


def test_unknown_target_is_misuse() -> None:
    with pytest.raises(UsageError) as caught:
        assert_supported(flash(), "sm91")
    assert caught.value.code == "unknown-target"


# The plugin


def test_loading_the_plugin_imports_nothing_else_of_the_package() -> None:
    program = (
        "import sys; import cudnn_backend_py.testing.pytest_plugin as p\n"
        "own = (p.__package__, p.__name__)\n"
        "print([m for m in sys.modules if m.startswith('cudnn_backend_py.') and m not in own])\n"
        "print([m for m in ('numpy', 'ctypes', 'rich', 'click') if m in sys.modules])"
    )
    bare = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    base = "import sys, pytest; print([m for m in ('numpy', 'ctypes', 'rich', 'click') if m in sys.modules])"
    pytest_alone = subprocess.run([sys.executable, "-c", base], capture_output=True, text=True, check=True)
    assert bare.stdout.splitlines() == ["[]", pytest_alone.stdout.strip()]


FIXTURES = """
def test_passes(assert_supported, assert_not_supported):
    assert assert_supported(flash(), "sm90").supported
    assert_not_supported(flash(20), "sm90")

def test_fails(assert_supported):
    assert_supported(flash(20), "sm90")
"""


def test_a_failure_shows_the_verdict_and_its_cause(pytester: pytest.Pytester) -> None:
    done = run(pytester, FIXTURES)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*AssertionError: NOT SUPPORTED: graph 'sdpa_forward' on NVIDIA H100*",
            "*cause: *",
            "*Embedding dim per head for q and k is not a multiple of 8*",
        ]
    )
    assert "raise AssertionError(_text(verdict))" not in done.stdout.str()


MARKED = """
@pytest.mark.cudnn_target("sm80", "sm90")
def test_marked(cudnn_target, assert_supported):
    assert assert_supported(flash(), cudnn_target).sm == int(cudnn_target[2:])

def test_asked(cudnn_target):
    assert cudnn_target == "h100"
"""


def test_targets_of_the_marker_and_of_the_option(pytester: pytest.Pytester) -> None:
    done = run(pytester, MARKED, "-v", "--cudnn-target", "h100")
    done.assert_outcomes(passed=2, skipped=1)
    done.stdout.fnmatch_lines(["*test_marked?sm90? PASSED*", "*test_asked?h100? PASSED*"])
    done.stdout.fnmatch_lines(["SKIPPED*--cudnn-target leaves sm80 out"])


def test_xdist_runs_every_target(pytester: pytest.Pytester) -> None:
    run(pytester, MARKED, "-n", "2", "-k", "marked").assert_outcomes(passed=2)


def test_the_fixture_without_a_target_says_what_to_do(pytester: pytest.Pytester) -> None:
    done = run(pytester, MARKED, "-k", "asked")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["test_asked takes the fixture cudnn_target and has no target: mark it with*"])


def test_an_unknown_target(pytester: pytest.Pytester) -> None:
    body = "@pytest.mark.cudnn_target('sm91')\ndef test_it(cudnn_target, assert_supported): {}\n"
    done = run(pytester, body.format("assert_supported(flash(), cudnn_target)"))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*unknown-target: no target is called 'sm91'"])
    option = run(pytester, body.format("pass"), "--cudnn-target=sm91")
    assert option.ret == pytest.ExitCode.USAGE_ERROR
    option.stderr.fnmatch_lines(["ERROR: --cudnn-target: unknown-target: no target is called 'sm91'"])


WRONG_MARKERS = {
    "requires_sm('sm90')": "numbers of architectures are needed, such as 90",
    "requires_sm()": "numbers of architectures are needed, such as 90",
    "requires_sm(True)": "numbers of architectures are needed, such as 90",
    "requires_sm(sm=90)": "numbers of architectures are needed, such as 90",
    "requires_cudnn('abc')": "minimum or below is needed, a version such as '9.20'",
    "requires_cudnn(9.2)": "minimum or below is needed, a version such as '9.20'",
    "requires_cudnn()": "minimum or below is needed, a version such as '9.20'",
    "requires_cudnn(least='9.2')": "minimum or below is needed, a version such as '9.20'",
    "requires_cudnn('9.8', minimum='9.2')": "minimum or below is needed, a version such as '9.20'",
    "cudnn_target(90)": "names of targets are needed, such as 'sm90'",
    "cudnn_target()": "names of targets are needed, such as 'sm90'",
}


def test_a_marker_that_means_nothing_is_an_error_and_no_skip(pytester: pytest.Pytester) -> None:
    tests = [
        f"@pytest.mark.{marker}\ndef test_{number}({'cudnn_target' if 'target' in marker else ''}): pass"
        for number, marker in enumerate(WRONG_MARKERS)
    ]
    alone = "@pytest.mark.cudnn_target('sm90')\ndef test_alone(): pass"
    done = run(pytester, "\n\n".join([*tests, alone]))
    done.assert_outcomes(errors=len(tests) + 1)
    said = done.stdout.str()
    for number, (marker, fault) in enumerate(WRONG_MARKERS.items()):
        assert f"test_{number}: the marker {marker} is wrong: {fault}" in said
    assert "test_alone is marked with cudnn_target and does not take the fixture cudnn_target" in said


REQUIRING = """
@pytest.mark.requires_cudnn("9.8")
def test_new_enough(): pass

@pytest.mark.requires_cudnn("10.0")
def test_too_old(): pass

@pytest.mark.requires_cudnn(below="9.8")
def test_too_new(): pass

@pytest.mark.requires_sm(10, 11)
def test_another_gpu(): pass
"""


def test_what_the_machine_lacks_is_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    done = run(pytester, REQUIRING)
    done.assert_outcomes(passed=1, skipped=3)
    here = library().version_text
    lines = done.stdout.str().splitlines()
    reasons = sorted(line.partition("needs ")[2] for line in lines if line.startswith("SKIPPED"))
    assert reasons[1:] == [f"cuDNN at least 10.0, here is {here}", f"cuDNN below 9.8, here is {here}"]
    assert reasons[0].startswith("a GPU of sm_10 or sm_11")
