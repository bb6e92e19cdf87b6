"""Tests of the commands that a new user runs first: explain, log, doctor and cache."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from cudnn_backend_py import GraphBuilder, attention, explain, library, save_graph
from cudnn_backend_py.diagnose.report.summary import MAX_COLUMNS, format_summary
from cudnn_backend_py.generated.enums import DataType, DescriptorType
from examples.forum_two_matmul import graph as forum
from tests.support.child import ROOT, FinishedChild, run_python
from tools.campaign.graphs import make_random_graph

TARGETS = ("a100", "l40s", "h100", "b200", "t4")
GRAPH_FAMILIES = ("fusion", "convolution", "norm", "matmul", "pointwise")


def run_cudnn_backend_command(*arguments: str, **environment: str) -> FinishedChild:
    return run_python(["-m", "cudnn_backend_py", *arguments], environment={**os.environ, **environment})


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_a_short_verdict_has_at_most_eight_lines_of_a_hundred_columns(family: str) -> None:
    for seed in range(15):
        verdict = explain(make_random_graph(seed, family, version=(9, 28, 0)), TARGETS[seed % len(TARGETS)])
        text = format_summary(verdict)
        lines = text.splitlines()
        assert len(lines) <= 8, text
        assert max(map(len, lines)) <= MAX_COLUMNS, text
        assert lines[0].startswith(verdict.outcome.value.upper()), text
        if verdict.cause is not None:
            beginning = " ".join(verdict.cause.headline.split())[:60]
            assert beginning in " ".join(" ".join(line[9:] for line in lines[1:]).split()), text
            assert not verdict.cause.remedy or any(line.startswith(("remedy", "fix")) for line in lines), text


def test_short_verdict_says_that_the_path_in_the_library_variable_does_not_exist() -> None:
    done = run_cudnn_backend_command(
        "explain", str(ROOT / "examples/flash_forward.py"), "--target", "h100", CUDNN_BACKEND_LIBRARY="/nope"
    )
    assert done.code == 2
    text = " ".join(done.stdout.split())
    assert "environment variable CUDNN_BACKEND_LIBRARY: /nope does not exist" in text
    assert "fix set CUDNN_BACKEND_LIBRARY to the path of a libcudnn.so.9 or of its folder, or unset it" in text


def test_short_verdict_reports_environment_problems_and_known_issues() -> None:
    text = format_summary(explain(forum()))
    assert text.startswith("COULD NOT BE JUDGED: graph 'forum_two_matmul'")
    assert "there is no GPU in this process" in text
    assert "name a described target" in text
    g = GraphBuilder("gelu", io_type=DataType.FLOAT)
    x = g.tensor("x", (64, 64))
    g.matmul(x, g.tensor("w", (64, 64)), name="y", virtual=False)
    verdict = explain(g.graph(), "h100")
    assert verdict.hazards
    assert "issue    " in format_summary(verdict)


def test_short_verdict_counts_known_issues_and_shows_the_one_about_the_gpu() -> None:
    graph = attention.sdpa_forward(
        batch=4, heads=8, seq_q=64, seq_kv=512, head_dim=128, ragged=True, page_size=16, allow_hazards=True
    )
    text = format_summary(explain(graph, "l40s", version="9.19.0"))
    assert "issue    1 of 2: attention with paged K and V (paged-attention-on-ada, " in text
    assert "leave the pages out" in text


def test_explain_of_several_graphs_returns_the_largest_exit_code(tmp_path: Path) -> None:
    g = GraphBuilder("good", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False, data_type="f16")
    save_graph(g.graph(), tmp_path / "good.json")
    save_graph(forum(), tmp_path / "refused.json")
    files = [str(tmp_path / name) for name in ("good.json", "refused.json")]
    done = run_cudnn_backend_command("explain", *files, "--target", "l40s")
    assert done.code == 1, done.stderr
    first, second = done.stdout.split("\n\n")
    assert first.startswith("SUPPORTED, not built: graph 'good'")
    assert second.startswith("NOT SUPPORTED: graph 'forum_two_matmul'")
    verdicts = json.loads(run_cudnn_backend_command("explain", *files, "--target", "l40s", "--format", "json").stdout)
    assert [verdict["graph"] for verdict in verdicts] == ["good", "forum_two_matmul"]
    whole = run_cudnn_backend_command("explain", files[1], "--target", "l40s", "-v").stdout
    assert "CUDNN_STATUS_NOT_SUPPORTED" in whole
    assert len(whole.splitlines()) > 30


def test_the_log_command_runs_a_program_with_cudnns_log(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "examples/level0_two_matmul.py"), "--target", "l40s"]
    kept = tmp_path / "kept.log"
    done = run_cudnn_backend_command("log", "--target", "l40s", "--keep", str(kept), "--", *program)
    assert done.code == 1, done.stderr
    assert "candidates" in done.stdout  # the program's own output
    assert "NOT SUPPORTED" in done.stdout
    assert "cudnnBackendFinalize" in kept.read_text()
    missing = run_cudnn_backend_command("log", "--", str(tmp_path / "no program"))
    assert (missing.code, "program-not-started" in missing.stderr) == (2, True)
    failing = run_cudnn_backend_command("log", "--", sys.executable, "-c", "import sys; sys.exit(7)")
    assert (failing.code, "exit code 7" in failing.stderr) == (2, True)
    [command] = re.findall(r"if it did not find libcudnn.so.9: (.*)", failing.stderr)
    folders = shlex.split(command)[0].removeprefix("LD_LIBRARY_PATH=").split(":")
    assert (Path(folders[0]) / "libcudnn.so.9").samefile(library().path)
    assert shlex.split(command)[1:5] == ["cudnn-backend", "log", "--", sys.executable]
    for wrong in (("log",), ("log", str(kept), "--", "true"), ("log", str(kept), "--keep", "x")):
        assert run_cudnn_backend_command(*wrong).code == 2
    forgotten = run_cudnn_backend_command("log", "python", "program.py")
    assert (forgotten.code, "log -- PROGRAM" in forgotten.stderr) == (2, True)


PROGRAM_WITHOUT_DRIVER = """
import ctypes, sys
cudnn, tensor = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
assert cudnn.cudnnBackendCreateDescriptor(int(sys.argv[2]), ctypes.byref(tensor)) == 0
ctypes.CDLL("libcuda.so.1")
"""


def test_a_logged_program_in_any_language_finds_a_driver_library() -> None:
    """cuDNN's runtime-compiled engines look for libcuda.so.1, which a machine without a GPU does not have."""
    path, kind = library().path, str(DescriptorType.TENSOR.value)
    program = [sys.executable, "-c", PROGRAM_WITHOUT_DRIVER, path, kind]
    done = run_cudnn_backend_command("log", "--list", "--", *program)
    assert "ended with" not in done.stderr


def test_a_program_for_cudnn_frontend_or_torch_gets_the_commands_that_run_it(tmp_path: Path) -> None:
    program = tmp_path / "fe.py"
    program.write_text("import cudnn_not_installed\n")
    done = run_cudnn_backend_command("explain", str(program))
    assert done.code == 2
    for command in ("log -- python", "frontend", "why"):
        assert f"cudnn-backend {command} {program}" in done.stderr
    program.write_text("def graph():\n    import cudnn_not_installed\n")
    assert "cudnn-backend why" not in run_cudnn_backend_command("explain", str(program)).stderr


def test_doctor_exits_with_1_if_cudnn_cannot_be_loaded(tmp_path: Path) -> None:
    assert run_cudnn_backend_command("doctor").code == 0
    (tmp_path / "libcudnn.so.9").write_text("no library")
    assert run_cudnn_backend_command("doctor", CUDNN_BACKEND_LIBRARY=str(tmp_path)).code == 1


def test_cache_clear_removes_the_selected_caches(tmp_path: Path) -> None:
    answers = tmp_path / "cudnn-backend-py/answers"
    answers.mkdir(parents=True)
    (answers / "one").write_text("x")
    places = {"XDG_CACHE_HOME": str(tmp_path), "CUDNN_BACKEND_CACHE": str(tmp_path / "store")}
    assert run_cudnn_backend_command("cache", "clear", **places).code == 0
    assert answers.exists()
    done = run_cudnn_backend_command("cache", "clear", "--all", **places)
    assert (done.code, answers.exists()) == (0, False), done.stderr
    assert run_cudnn_backend_command("cache", "clear", "--versions", **places).code == 2


@pytest.mark.parametrize("destination", ["stdout", "stderr"])
@pytest.mark.parametrize("name", ["explain", "matrix", "explain --whatif"])
def test_cudnns_log_is_written_to_stderr_but_not_to_the_report(name: str, destination: str, tmp_path: Path) -> None:
    save_graph(forum(), tmp_path / "g.json")
    options = {"explain": [], "matrix": ["--cudnn", "default", "--fresh"], "explain --whatif": ["--no-build"]}[name]
    done = run_cudnn_backend_command(
        *name.split(),
        str(tmp_path / "g.json"),
        *("--target", "sm80", "--format", "json", *options),
        CUDNN_LOGLEVEL_DBG="2",
        CUDNN_LOGDEST_DBG=destination,
        XDG_CACHE_HOME=str(tmp_path),
    )
    json.loads(done.stdout)
    assert "non-flash composite MHA fprop is no longer supported" in done.stderr
