"""The pytest plugin, run by pytest itself: in this process, and in a child with other plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from cudnn_backend_py import Graph, UsageError, attention, find_profile, library
from cudnn_backend_py.diagnose import control_graph
from cudnn_backend_py.testing.assertions import assert_not_supported, assert_supported

pytest_plugins = "pytester"

PLUGIN = "cudnn_backend_py.testing.pytest_plugin"
PLUGINS = entry_points(group="pytest11")
OTHERS = [point for point in PLUGINS if point.value != PLUGIN]
OURS = () if len(OTHERS) < len(PLUGINS) else ("-p", PLUGIN)

GRAPHS = """
import pytest
from cudnn_backend_py import attention

def flash(head_dim=64):
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=head_dim)
"""


def run_pytest(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    """Run a test module without other plugins, with errors for unknown markers."""
    pytester.makepyfile(test_user=GRAPHS + body)
    return pytester.runpytest_inprocess("-p", PLUGIN, "-ra", "--strict-markers", "-W", "error", *arguments)


@pytest.fixture(autouse=True)
def _disable_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


# The functions


def make_flash_attention_graph(head_dim: int = 64) -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=head_dim)


def test_a_passing_assertion_returns_the_verdict() -> None:
    built = assert_supported(make_flash_attention_graph(), "sm90", build=True)
    assert (built.stage, built.sm, built.cudnn) == ("plan", 90, library().build_text)
    refused = make_flash_attention_graph(20)
    verdict = assert_not_supported(refused, "sm90")
    assert verdict.exit_code == 1
    assert verdict.cause is not None
    assert assert_not_supported(refused, "sm90", cause=verdict.cause.code).cause == verdict.cause


def test_a_failing_assertion_shows_the_verdict() -> None:
    supported = make_flash_attention_graph()
    with pytest.raises(AssertionError, match=r"(?s)^expected: not supported\nSUPPORTED, not built: graph 'sdpa_"):
        assert_not_supported(supported, "sm90")
    refused = make_flash_attention_graph(20)
    with pytest.raises(AssertionError) as caught:
        assert_supported(refused, "sm90")
    text = str(caught.value)
    assert text.startswith("NOT SUPPORTED: graph 'sdpa_forward'")
    assert "cause    " in text
    assert "not a multiple of 8" in text
    with pytest.raises(AssertionError, match=r"^expected cause: pattern-removed, found: [a-z-]+\nNOT SUPPORTED"):
        assert_not_supported(refused, "sm90", cause="pattern-removed")


def test_another_cudnn_version_judges_in_a_separate_process() -> None:
    assert library().version > (9, 19, 0)
    assert assert_supported(make_flash_attention_graph(), "sm90", version="9.19.0").cudnn == "9.19.0+cu12"


def test_an_unjudged_graph_fails_either_support_assertion(tmp_path: Path) -> None:
    """Use a described GPU too old for the engines of a JIT wheel (Pascal); the full wheel's engines are not judged."""
    described = tmp_path / "pascal.json"
    described.write_text(json.dumps({**find_profile("t4").properties, "deviceVer": 600}))
    for check in (assert_supported, assert_not_supported):
        with pytest.raises(AssertionError, match="COULD NOT BE JUDGED"):
            check(control_graph(), str(described), version="9.19.0")


def test_an_unknown_target_raises_a_usage_error() -> None:
    with pytest.raises(UsageError) as caught:
        assert_supported(make_flash_attention_graph(), "sm91")
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
    done = run_pytest(pytester, FIXTURES)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*AssertionError: NOT SUPPORTED: graph 'sdpa_forward' on NVIDIA H100*",
            "*cause    *",
            "*q and k is not a multiple of 8)*",
        ]
    )
    assert "raise AssertionError(_format_verdict(verdict))" not in done.stdout.str()


MARKED = """
@pytest.mark.cudnn_target("sm80", "sm90")
def test_marked(cudnn_target, assert_supported):
    assert assert_supported(flash(), cudnn_target).sm == int(cudnn_target[2:])

def test_queried(cudnn_target):
    assert cudnn_target == "h100"
"""


def test_targets_of_the_marker_and_of_the_option_are_used(pytester: pytest.Pytester) -> None:
    done = run_pytest(pytester, MARKED, "-v", "--cudnn-target", "h100")
    done.assert_outcomes(passed=2, skipped=1)
    done.stdout.fnmatch_lines(["*test_marked?sm90? PASSED*", "*test_queried?h100? PASSED*"])
    done.stdout.fnmatch_lines(["SKIPPED*--cudnn-target leaves sm80 out"])


# As in this package's own suite: a warning is an error, except for those of plugins about themselves.
STRICT = "[pytest]\nfilterwarnings =\n    error\n    ignore:::pytest_\n"


@pytest.mark.parametrize("other", OTHERS, ids=lambda point: point.name)
def test_the_plugin_works_with_each_other_installed_plugin(pytester: pytest.Pytester, other: EntryPoint) -> None:
    """Run with each installed plugin; CI installs the most common ones."""
    pytester.makepyfile(test_user=GRAPHS + MARKED)
    pytester.makeini(STRICT)
    done = pytester.runpytest_subprocess("-p", PLUGIN, "-p", other.value, "-k", "queried", "--cudnn-target", "h100")
    done.assert_outcomes(passed=1, deselected=2)


def test_xdist_runs_every_target_with_all_other_plugins(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(test_user=GRAPHS + MARKED)
    pytester.makeini(STRICT)
    pytester.runpytest_subprocess(*OURS, "-n", "2", "-k", "marked").assert_outcomes(passed=2)


def test_the_target_fixture_without_a_target_reports_a_fix(pytester: pytest.Pytester) -> None:
    done = run_pytest(pytester, MARKED, "-k", "queried")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["test_queried uses the fixture cudnn_target without a target: mark it with*"])


def test_an_unknown_target_on_the_command_line_is_refused(pytester: pytest.Pytester) -> None:
    done = run_pytest(pytester, MARKED, "--cudnn-target=sm91")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --cudnn-target: unknown-target: no target is called 'sm91'"])


NO_NUMBER = "numbers of architectures are needed, such as 90"
NO_VERSION = "minimum or below is needed, a version such as '9.20'"
NO_NAME = "names of targets are needed, such as 'sm90'"
WRONG_MARKERS = {
    "requires_sm('sm90')": f"{NO_NUMBER}; did you mean 90?",
    "requires_sm()": NO_NUMBER,
    "requires_sm(True)": NO_NUMBER,
    "requires_sm('hopper')": NO_NUMBER,
    "requires_sm(sm=90)": f"{NO_NUMBER}; did you mean 90?",
    "requires_sm(9.0)": f"{NO_NUMBER}; did you mean 90?",
    "requires_sm(80, 91)": "no GPU has architecture sm_91; did you mean 90?",
    "requires_sm(900)": "no GPU has architecture sm_900; did you mean 90?",
    "requires_sm(9)": "no GPU has architecture sm_9; did you mean 90?",
    "requires_cudnn('abc')": "minimum must be a version such as '9.20'",
    "requires_cudnn(9.2)": "minimum must be a version such as '9.20'; did you mean '9.2'?",
    "requires_cudnn('9.8', below='v9.20')": "below must be a version such as '9.20'; did you mean '9.20'?",
    "requires_cudnn(92000)": "minimum must be a version such as '9.20'; did you mean '9.20.0'?",
    "requires_cudnn()": NO_VERSION,
    "requires_cudnn(least='9.2')": "least is not one of its arguments, minimum and below",
    "requires_cudnn(minimun='9.2')": "minimun is not one of its arguments, minimum and below; did you mean 'minimum'?",
    "requires_cudnn('9.8', minimum='9.2')": NO_VERSION,
    "requires_cudnn('9.8', '9.9', '9.10')": NO_VERSION,
    "requires_cudnn('9.20', below='9.8')": "no version is at least 9.20 and below 9.8",
    "cudnn_target(90)": f"{NO_NAME}; did you mean 'sm90'?",
    "cudnn_target(name='h100')": f"{NO_NAME}; did you mean 'h100'?",
    "cudnn_target()": NO_NAME,
    "cudnn_target('sm90', 'sm91')": "no target is called 'sm91'; did you mean 'sm90'?",
    "cudnn_target('nothing like it')": "no target is called 'nothing like it'",
}


def test_an_invalid_marker_ends_the_collection(pytester: pytest.Pytester) -> None:
    tests = [
        f"@pytest.mark.{marker}\ndef test_{number}({'cudnn_target' if 'target' in marker else ''}): pass"
        for number, marker in enumerate(WRONG_MARKERS)
    ]
    alone = "@pytest.mark.cudnn_target('sm90')\ndef test_alone(): pass"
    done = run_pytest(pytester, "\n\n".join([*tests, alone]))
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.assert_outcomes(errors=1)
    said = done.stdout.str().splitlines()
    for number, (marker, fault) in enumerate(WRONG_MARKERS.items()):
        assert f"test_{number}: the marker {marker} is wrong: {fault}" in said
    assert "test_alone is marked with cudnn_target and does not take the fixture cudnn_target" in said


RIGHT_MARKERS = ("requires_sm(80, 130)", "requires_cudnn('9')", "requires_cudnn('9.8', '9.20.0.48')")


def test_a_valid_marker_does_not_end_the_collection(pytester: pytest.Pytester) -> None:
    tests = [f"@pytest.mark.{marker}\ndef test_{number}(): pass" for number, marker in enumerate(RIGHT_MARKERS)]
    gpu = "@pytest.mark.cudnn_target('gpu', 'SM_90')\ndef test_gpu(cudnn_target): pass"
    done = run_pytest(pytester, "\n\n".join([*tests, gpu]), "--collect-only", "-q")
    assert done.ret == pytest.ExitCode.OK
    assert [line.partition("::")[2] for line in done.stdout.str().splitlines() if "::" in line] == [
        *(f"test_{number}" for number in range(len(RIGHT_MARKERS))),
        "test_gpu[gpu]",
        "test_gpu[SM_90]",
    ]


def test_markers_of_classes_and_of_the_whole_file_are_checked(pytester: pytest.Pytester) -> None:
    body = """
import unittest

pytestmark = pytest.mark.requires_cudnn(minimun="9.8")

@pytest.mark.requires_sm("sm_90")
class TestIt:
    def test_in_class(self): pass

class Old(unittest.TestCase):
    def test_old(self): pass
"""
    done = run_pytest(pytester, body)
    done.assert_outcomes(errors=2)
    said = done.stdout.str()
    assert f"test_in_class: the marker requires_sm('sm_90') is wrong: {NO_NUMBER}; did you mean 90?" in said
    for name in ("test_in_class", "test_old"):
        assert f"{name}: the marker requires_cudnn(minimun='9.8') is wrong: minimun is not one of" in said


def test_an_invalid_marker_added_after_collection_fails_only_its_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    items[0].add_marker(pytest.mark.requires_sm('sm90'))\n"
    )
    done = run_pytest(pytester, "def test_first(): pass\ndef test_second(): pass")
    done.assert_outcomes(errors=1, passed=1)
    done.stdout.fnmatch_lines([f"test_first: the marker requires_sm('sm90') is wrong: {NO_NUMBER}; did you mean 90?"])


def test_a_misspelt_marker_gives_pytests_unknown_marker_error(pytester: pytest.Pytester) -> None:
    done = run_pytest(pytester, "@pytest.mark.require_sm(90)\ndef test_it(): pass")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*'require_sm' not found in `markers` configuration option"])


def test_markers_and_fixtures_are_listed(pytester: pytest.Pytester) -> None:
    markers = run_pytest(pytester, "", "--markers").stdout.str()
    for name in ("cudnn_target(*names)", "requires_sm(*architectures)", "requires_cudnn(minimum=None, below=None)"):
        assert f"@pytest.mark.{name}: " in markers
    fixtures = run_pytest(pytester, "", "--fixtures").stdout.str()
    for name in ("assert_supported", "assert_not_supported", "cudnn_target"):
        listed = fixtures.partition(f"\n{name} -- ")[2]
        assert listed, name
        assert "no docstring available" not in listed.splitlines()[1], name


REQUIRING = """
@pytest.mark.requires_cudnn("9.8")
def test_new_enough(): pass

@pytest.mark.requires_cudnn("10.0")
def test_too_old(): pass

@pytest.mark.requires_cudnn(below="9.8")
def test_too_new(): pass

@pytest.mark.requires_sm(70, 72)
def test_another_gpu(): pass
"""


def test_unrunnable_tests_are_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    done = run_pytest(pytester, REQUIRING)
    done.assert_outcomes(passed=1, skipped=3)
    here = library().version_text
    lines = done.stdout.str().splitlines()
    reasons = sorted(line.partition("needs ")[2] for line in lines if line.startswith("SKIPPED"))
    other = "or name the file of one in CUDNN_BACKEND_LIBRARY"
    assert reasons[1:] == [
        f"cuDNN at least 10.0: here is {here}; pip install 'nvidia-cudnn-cu12>=10.0', {other}",
        f"cuDNN below 9.8: here is {here}; pip install 'nvidia-cudnn-cu12<9.8', {other}",
    ]
    assert reasons[0].startswith("a GPU of sm_70 or sm_72: th")
    assert reasons[0].endswith("; run it where there is one, such as NVIDIA Tesla V100 SXM2 16GB")


def test_a_skip_without_cudnn_has_the_reason(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", str(pytester.path / "nowhere.so"))
    pytester.makepyfile(test_user="import pytest\n\n@pytest.mark.requires_cudnn('9.8')\ndef test_it(): pass\n")
    done = pytester.runpytest_subprocess("-p", PLUGIN, "-rs")
    done.assert_outcomes(skipped=1)
    needs = "SKIPPED*:3: needs cuDNN at least 9.8: no libcudnn.so.9 can be loaded: *nowhere.so does not exist; *"
    done.stdout.fnmatch_lines([needs])
