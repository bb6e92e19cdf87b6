"""Complete verdicts of ``explain``: a graph from a forum thread, flash attention, broken environments."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import (
    DataType,
    DescriptorType,
    EnvironmentNotReady,
    Graph,
    GraphBuilder,
    OperationGraph,
    PointwiseMode,
    attention,
    explain,
    library,
    open_target,
)
from cudnn_backend_py.diagnose import Basis, Cause, Judge, Outcome, Query, Verdict, control_graph
from cudnn_backend_py.diagnose.report.summary import format_summary
from cudnn_backend_py.diagnose.report.text import render_text
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.plans.select import select
from tests.support.child import ROOT, FinishedChild, make_older_cudnn_environment, run_code, run_python

FORUM_EXAMPLE = "examples/forum_two_matmul.py"
FLASH_ATTENTION_TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100")
EMPTY_ENVIRONMENT = {"PATH": os.environ.get("PATH", "")}


def run_explain(*arguments: str, environment: dict[str, str] | None = None, cwd: Path = ROOT) -> FinishedChild:
    return run_python(["-m", "cudnn_backend_py", "explain", *arguments], environment=environment, cwd=cwd)


def explain_as_json(*arguments: str, **options: Any) -> tuple[int, dict[str, Any]]:
    done = run_explain(*arguments, "--format", "json", **options)
    verdict: dict[str, Any] = json.loads(done.stdout)
    return done.code, verdict


def make_flash_attention() -> Graph:
    return sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=64, causal=True, stats=True)


# The forum graph: refused on an L40S by 9.19.0, for shared memory; supported by its neighbours; removed later.


def test_text_verdict_on_two_fused_matmuls_names_its_cause_on_sm89() -> None:
    done = run_explain(FORUM_EXAMPLE, "-v", "--cudnn", "9.19.0", "--target", "sm89")
    assert done.code == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("NOT SUPPORTED: graph 'forum_two_matmul' on NVIDIA L40S (sm_89), cuDNN 9.19.0")
    cause = next(line for line in lines if line.startswith("cause:"))
    assert "[measured]" in cause
    assert "engine 0 needs" in cause
    assert "101376" in cause
    assert "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT" in done.stdout
    assert done.stderr == ""


def test_json_verdict_on_two_fused_matmuls_has_its_cause_on_sm89() -> None:
    code, verdict = explain_as_json(FORUM_EXAMPLE, "--cudnn", "9.19.0", "--target", "sm89")
    assert code == 1
    assert (verdict["schema"], verdict["version"]) == ("cudnn-backend-py/verdict", 1)
    assert (verdict["outcome"], verdict["cudnn"], verdict["sm"]) == ("not supported", "9.19.0+cu12", 89)
    engine_0 = [candidate for candidate in verdict["candidates"] if candidate["engine"] == 0]
    assert engine_0
    assert engine_0[0]["state"] == "refused"
    statuses = [reason["status"] for reason in engine_0[0]["reasons"]]
    assert "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT" in statuses
    assert verdict["cause"]["code"] == "shared-memory-per-block-insufficient"
    assert verdict["cause"]["basis"] == "measured"
    assert "101376" in verdict["cause"]["headline"]
    assert verdict["control"]["supported"] is True


@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_9_19_supports_two_fused_matmuls_on_sm80_and_sm90(target: str) -> None:
    code, verdict = explain_as_json(FORUM_EXAMPLE, "--cudnn", "9.19.0", "--target", target)
    assert (code, verdict["outcome"]) == (0, "supported")
    assert any(candidate["engine"] == 0 for candidate in verdict["candidates"] if candidate["state"] == "supported")


def test_several_targets_give_one_verdict_each_and_the_worst_exit_code() -> None:
    done = run_explain(FORUM_EXAMPLE, "--cudnn", "9.19.0", "--target", "sm80", "--target", "sm89", "--format", "json")
    assert done.code == 1
    assert [verdict["outcome"] for verdict in json.loads(done.stdout)] == ["supported", "not supported"]


def test_the_newest_cudnn_no_longer_supports_two_fused_matmuls() -> None:
    code, verdict = explain_as_json(FORUM_EXAMPLE, "--target", "sm80")
    assert (code, verdict["outcome"], verdict["cause"]["code"]) == (1, "not supported", "pattern-removed")
    assert "no longer supported" in verdict["cause"]["headline"]


def test_shared_memory_limit_equals_the_bytes_in_cudnns_message() -> None:
    """With one KiB of shared memory less than cuDNN's message says, the graph is refused."""
    _, verdict = explain_as_json(FORUM_EXAMPLE, "--cudnn", "9.19.0", "--target", "sm89")
    needed = int(re.findall(r"needs (\d+) bytes", verdict["cause"]["headline"])[0])
    code = (
        "import dataclasses\n"
        "from cudnn_backend_py import explain, find_profile\n"
        "from cudnn_backend_py.cli.graph_file import load_graph_file\n"
        f"graph = load_graph_file({FORUM_EXAMPLE!r})\n"
        "base = find_profile('sm89')\n"
        f"for limit in ({needed}, {needed - 1024}):\n"
        "    properties = {**base.properties, 'maxSharedMemoryPerBlockOptin': limit}\n"
        "    print(explain(graph, dataclasses.replace(base, properties=properties)).outcome)"
    )
    assert run_code(code, environment=make_older_cudnn_environment()).stdout.split("\n")[:2] == [
        "supported",
        "not supported",
    ]


# Flash forward, judged, built, saved and loaded

FLASH_PROGRAM = f"""
import json, sys
from dataclasses import replace
from pathlib import Path
from cudnn_backend_py import explain, load_plan, library
from tests.library.diagnose.test_explain import make_flash_attention
folder = Path(sys.argv[1])
found = []
for target in {FLASH_ATTENTION_TARGETS!r}:
    plans = []
    verdict = explain(make_flash_attention(), target, build=True, plans=plans)
    plan = plans[0]
    plan.save(folder / f"{{target}}.json")
    loaded = load_plan(folder / f"{{target}}.json", target)
    built = [candidate.engine for candidate in verdict.candidates if candidate.state == "built"]
    found.append([target, verdict.sm, str(verdict.outcome), verdict.stage, len(built),
                  loaded.workspace_bytes == plan.workspace_bytes, loaded.tag == plan.tag])
print(json.dumps([library().build_text, found]))
"""


@pytest.mark.parametrize("older", [True, False], ids=["9.19.0", "newest"])
def test_flash_attention_is_built_saved_and_loaded_for_every_target(older: bool, tmp_path: Path) -> None:
    environment = make_older_cudnn_environment() if older else None
    done = run_python(["-c", FLASH_PROGRAM, str(tmp_path)], environment=environment, timeout_s=300, check=True)
    version, found = json.loads(done.stdout)
    assert (version == "9.19.0+cu12") is older
    assert found == [
        [target, int(target[2:]), "supported", "plan", 1, True, True] for target in FLASH_ATTENTION_TARGETS
    ]
    for target in FLASH_ATTENTION_TARGETS:
        assert json.loads((tmp_path / f"{target}.json").read_text())["cudnn"] == version


# Exit code 2: could not be judged, never "not supported"


def assert_not_judged(code: int, verdict: dict[str, Any], cause: str) -> None:
    assert (code, verdict["outcome"], verdict["stage"]) == (2, "could not be judged", "environment")
    assert verdict["cause"]["code"] == cause


def test_a_graph_is_not_judged_without_gpu_and_target() -> None:
    assert_not_judged(*explain_as_json(FORUM_EXAMPLE), "no-gpu")
    done = run_explain(FORUM_EXAMPLE)
    assert done.code == 2
    assert done.stdout.startswith("COULD NOT BE JUDGED")
    assert "NOT SUPPORTED" not in done.stdout


def test_a_graph_is_not_judged_with_an_unknown_cudnn_version() -> None:
    done = run_explain(FORUM_EXAMPLE, "--cudnn", "9.3.1", "--target", "sm80")
    assert done.code == 2
    assert "cudnn-version-not-found: there is no cuDNN 9.3.1 for CUDA 12\n" in done.stderr
    assert "take one of the nearest: 9.3.0" in done.stderr


def test_an_unknown_target_gives_a_usage_error() -> None:
    done = run_explain(FORUM_EXAMPLE, "--target", "sm_9000")
    assert done.code == 2
    assert "unknown-target" in done.stderr


def test_a_graph_is_not_judged_with_a_missing_library(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDNN_BACKEND_LIBRARY": str(tmp_path / "nowhere")}
    code, verdict = explain_as_json(FORUM_EXAMPLE, "--target", "sm80", environment=environment)
    assert_not_judged(code, verdict, "cudnn-library-not-found")
    assert str(tmp_path / "nowhere") in verdict["cause"]["detail"]


def test_a_graph_is_not_judged_with_an_invalid_library(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.9").write_bytes(b"not ELF")
    environment = {**os.environ, "CUDNN_BACKEND_LIBRARY": str(tmp_path)}
    code, verdict = explain_as_json(FORUM_EXAMPLE, "--target", "sm80", environment=environment)
    assert_not_judged(code, verdict, "cudnn-library-not-found")
    assert "cannot be loaded" in verdict["cause"]["detail"]


@pytest.fixture(scope="module")
def package_without_driver_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package without the compiled stub that replaces libcuda.so.1 on machines without one."""
    folder = tmp_path_factory.mktemp("package_without_driver_stub")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "cudnn_backend_py", folder / "cudnn_backend_py", ignore=ignored)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
    return folder


@pytest.mark.parametrize("older", [True, False], ids=["9.19.0", "newest"])
@pytest.mark.parametrize("graph", [FORUM_EXAMPLE, "examples/flash_forward.py"])
def test_without_a_driver_library_nothing_is_judged(package_without_driver_stub: Path, older: bool, graph: str) -> None:
    environment = make_older_cudnn_environment() if older else None
    code, verdict = explain_as_json(graph, "--target", "sm80", environment=environment, cwd=package_without_driver_stub)
    assert verdict["driver"] == "missing"
    assert_not_judged(code, verdict, "driver-missing")
    assert "driver stub" in verdict["cause"]["remedy"]


def test_a_refused_environment_check_is_tried_on_another_target() -> None:
    """A Pascal GPU refuses the float16 matmul that checks the environment: this is no environment problem.

    The older cuDNN is a JIT wheel, and its refusal of a matmul differs from the full one's.
    """
    program = (
        "import dataclasses\n"
        "from cudnn_backend_py import explain, find_profile\n"
        "from cudnn_backend_py.diagnose import control_graph\n"
        "base = find_profile('t4')\n"
        "properties = {**base.properties, 'deviceVer': 600}\n"
        "old = dataclasses.replace(base, name='old', properties=properties)\n"
        "verdict = explain(control_graph(), old)\n"
        "print(verdict.outcome, verdict.exit_code, verdict.cause.code, verdict.control.supported, sep='|')"
    )
    outcome = run_code(program, environment=make_older_cudnn_environment()).stdout.strip()
    assert outcome == "could not be judged|2|engines-absent|True"


# Verdicts in this process


def test_the_environment_check_graph_is_supported_everywhere() -> None:
    for target in FLASH_ATTENTION_TARGETS:
        verdict = explain(control_graph(), target)
        assert verdict.supported, target
        assert verdict.control is not None
        assert verdict.control.supported


def test_verdict_names_the_limits_of_judging_without_a_device() -> None:
    verdict = explain(make_flash_attention(), "sm90")
    assert not verdict.live
    assert any("judged without a GPU" in limit for limit in verdict.limits)
    assert any("stub" in line for line in verdict.environment)


def test_an_output_with_overlapping_elements_is_reported_as_dangerous() -> None:
    g = GraphBuilder("shared", io_type=DataType.HALF)
    x, w = g.tensor("x", (1, 128, 64)), g.tensor("w", (1, 64, 256))
    g.matmul(x, w, name="y", virtual=False, strides=(4096, 0, 1))
    verdict = explain(g.graph(), "h100")
    [danger] = verdict.lint
    assert (verdict.outcome, verdict.exit_code) == (Outcome.SUPPORTED, 0)
    assert "elements of the output 'y' share memory" in danger
    assert "\nlint     dangerous: elements of the output 'y' share memory" in format_summary(verdict)
    assert danger in render_text(verdict)


def test_refused_configs_list_reasons_innermost_first() -> None:
    verdict = explain(sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=20), "sm90")
    assert verdict.outcome is Outcome.NOT_SUPPORTED
    assert verdict.exit_code == 1
    texts = [candidate.reasons[0].text for candidate in verdict.candidates if candidate.reasons]
    assert any("multiple of 8" in text for text in texts)
    assert verdict.cause is not None
    assert verdict.cause.basis in (Basis.RULE, Basis.MEASURED, Basis.GUESS)


def make_rope_graph() -> Graph:
    """Return a graph with an operation that cuDNN 9.19 does not know."""
    from cudnn_backend_py.generated.attributes import get_attributes

    g = GraphBuilder("rope")
    fields: dict[str, Any] = {}
    for facts in get_attributes(DescriptorType.OPERATION_ROPE_FWD):
        if facts.role == "output" or not facts.required:
            continue
        fields[facts.field] = g.tensor(facts.field, (2, 4, 128, 64)) if facts.element else 64
    g.operation(DescriptorType.OPERATION_ROPE_FWD, "rope", **fields)
    return g.graph()


def test_graph_newer_than_the_library_is_not_supported() -> None:
    program = (
        "from cudnn_backend_py import explain\n"
        "from tests.library.diagnose.test_explain import make_rope_graph\n"
        "verdict = explain(make_rope_graph(), 'sm90')\n"
        "print(verdict.outcome, verdict.stage, verdict.cause.code, verdict.cause.headline, sep='|')"
    )
    outcome, stage, code, headline = (
        run_code(program, environment=make_older_cudnn_environment()).stdout.strip().split("|")
    )
    assert (outcome, stage, code) == ("not supported", "graph", "descriptor-newer-than-library")
    assert headline == "CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR needs cuDNN 9.24.0, the loaded library is 9.19.0"


def test_attribute_newer_than_the_library_is_not_supported() -> None:
    program = (
        "from cudnn_backend_py import explain\n"
        "from tests.library.diagnose.test_explain import make_graph_with_newer_attribute\n"
        "verdict = explain(make_graph_with_newer_attribute(), 'sm90')\n"
        "print(verdict.outcome, verdict.cause.code, verdict.cause.headline, sep='|')"
    )
    outcome, code, headline = run_code(program, environment=make_older_cudnn_environment()).stdout.strip().split("|")
    assert (outcome, code) == ("not supported", "attribute-newer-than-library")
    assert re.fullmatch(r"CUDNN_ATTR_OPERATION_SDPA_FWD_\w+ needs cuDNN 9\.2\d\.0, .* is 9\.19\.0", headline)


def make_graph_with_newer_attribute() -> Graph:
    """Return unified attention with a tensor that cuDNN 9.19 does not know."""
    from cudnn_backend_py.generated.attributes import get_attributes

    g = GraphBuilder("newer")
    facts = get_attributes(DescriptorType.OPERATION_SDPA_FWD)
    newest = max((item for item in facts if item.element == (DescriptorType.TENSOR,)), key=lambda item: item.since)
    assert newest.since > (9, 19, 0)
    names = [item.field for item in facts if item.required] + [newest.field]
    g.operation(DescriptorType.OPERATION_SDPA_FWD, "sdpa", **{name: g.tensor(name, (2, 4, 128, 64)) for name in names})
    return g.graph()


# One library per process; a missing library


def test_a_second_library_in_the_process_is_refused() -> None:
    other = make_older_cudnn_environment()["CUDNN_BACKEND_LIBRARY"]
    first = library()
    with pytest.raises(EnvironmentNotReady) as caught:
        library(other)
    assert caught.value.code == "cudnn-library-already-loaded"
    assert first.version_text in caught.value.headline
    assert other in caught.value.headline
    assert library(first.path) is library() is first


def read_output_lines(done: FinishedChild) -> Iterable[str]:
    return [line.strip() for line in done.stdout.splitlines()]


LIBRARY_SEARCH_PROGRAM = """
from cudnn_backend_py.native import library
from cudnn_backend_py.errors import EnvironmentNotReady
try:
    library()
except EnvironmentNotReady as error:
    print(error.code)
    print(error.sections["where"])
    print(error.sections["fix"])
"""


def test_the_library_not_found_error_lists_every_searched_path_and_variable() -> None:
    """Without site-packages and environment variables no library is found, and each searched place is listed."""
    done = run_python(["-S", "-c", LIBRARY_SEARCH_PROGRAM], environment=EMPTY_ENVIRONMENT, check=True)
    lines = list(read_output_lines(done))
    assert lines[0] == "cudnn-library-not-found"
    text = "\n".join(lines)
    for place in (
        "explicit path: none given",
        "environment variable CUDNN_BACKEND_LIBRARY: not set",
        "already loaded in this process: no libcudnn.so",
        "wheel nvidia-cudnn-cu12 / nvidia-cudnn-cu13: no nvidia/cudnn/lib/libcudnn.so.9 on sys.path",
        "wheel nvidia-cudnn-jit-cu12 / nvidia-cudnn-jit-cu13: no nvidia/cudnn_jit/lib/libcudnn.so.9 on sys.path",
        "system: no /usr/lib",
        "dynamic loader: libcudnn.so.9 cannot be loaded",
        "CUDNN_BACKEND_LIBRARY to the path of libcudnn.so.9",
    ):
        assert place in text, text


def test_a_missing_library_in_the_variable_is_not_replaced_by_another() -> None:
    done = run_python(
        ["-c", LIBRARY_SEARCH_PROGRAM], environment={**os.environ, "CUDNN_BACKEND_LIBRARY": "/nowhere"}, check=True
    )
    lines = list(read_output_lines(done))
    assert lines[:2] == [
        "cudnn-library-not-found",
        "environment variable CUDNN_BACKEND_LIBRARY: /nowhere does not exist",
    ]


def test_folders_of_the_loader_path_are_searched(tmp_path: Path) -> None:
    done = run_python(
        ["-S", "-c", LIBRARY_SEARCH_PROGRAM],
        environment={**EMPTY_ENVIRONMENT, "LD_LIBRARY_PATH": str(tmp_path)},
        check=True,
    )
    assert f"environment variable LD_LIBRARY_PATH: no {tmp_path}/libcudnn.so.9" in read_output_lines(done)


def test_a_verdict_is_plain_data() -> None:
    verdict = explain(make_flash_attention(), "sm90")
    assert isinstance(verdict, Verdict)
    assert json.loads(json.dumps(verdict.to_dict()))["graph"] == "sdpa_forward"


def test_execution_on_a_described_gpu_is_not_judged() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64)
    verdict = explain(graph, "sm80", execute=True)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.NOT_JUDGED, 2)
    assert verdict.cause is not None
    assert verdict.cause.code == "execute-without-device"
    with Judge() as judge:
        assert judge.run_query(Query(graph, "sm80", execute=True)).cause == verdict.cause


@pytest.mark.parametrize("target", ["a100", "h100", "b200"])
def test_booleans_in_memory_give_a_remark_and_not_a_known_issue(target: str) -> None:
    g = GraphBuilder("comparison", io_type=DataType.FLOAT)
    a, b = g.tensor("a", (8, 64, 64)), g.tensor("b", (8, 64, 64))
    g.pointwise(PointwiseMode.CMP_GT, a, b, compute_type=DataType.FLOAT, name="mask", virtual=False)
    verdict = explain(g.graph(), target)
    assert (verdict.supported, verdict.hazards) == (True, ())
    assert [remark for remark in verdict.remarks if "(booleans-in-memory): of 'mask' eight elements" in remark]


def test_select_and_explain_report_the_same_refused_engine_configs() -> None:
    """Both functions return the same type for an engine config, its source and the reason for its refusal."""
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)
    question = OperationGraph(graph, open_target("h100"))
    verdict = explain(question.graph, question.target, mode="A")
    theirs = [item for item in verdict.candidates if item.state == "refused"]
    assert [item for item in select(question, modes="A").refused if item.refused_by_cudnn] == theirs
    passed = [item.tag for item in verdict.candidates if item.state == "supported"]
    assert passed == [config.tag for config in question.heuristics("A").configs]


def test_heuristics_modes_that_were_left_out_are_the_cause_if_they_support_the_graph() -> None:
    verdict = explain(make_flash_attention(), "h100", mode="FALLBACK")
    assert verdict.outcome is Outcome.NOT_SUPPORTED
    cause = verdict.cause
    assert cause is not None
    assert (cause.code, cause.basis, cause.remedy) == ("heuristics-mode", Basis.MEASURED, "mode A")
    assert cause.headline == "mode FALLBACK lists no engine config that supports the graph, mode A does"


def test_a_verdict_gives_no_warnings_about_graphs_that_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_backend_py.known_issues.find._warned", set())
    done = run_explain(
        "examples/flash_backward.py", "--target", "h100", "--here", environment=make_older_cudnn_environment()
    )
    assert done.code == 0, done.stderr
    assert "KnownIssueWarning" not in done.stderr


def test_a_fix_of_several_lines_is_one_line_in_the_summary() -> None:
    verdict = explain(make_flash_attention(), "h100")
    cause = Cause("environment", "no cuDNN", Basis.RULE, "", "install it;\nor name it")
    assert "fix      install it; or name it\n" in format_summary(replace(verdict, cause=cause))
