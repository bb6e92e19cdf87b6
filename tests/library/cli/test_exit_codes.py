"""Tests of exit codes and error output of every command with every kind of invalid input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cudnn_backend_py import attention, save_graph
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.plans.choice import EngineChoice
from tests.support.bad_files import BAD_GRAPHS, EXECUTED_MARKER, list_commands_with_bad_files, write_bad_files
from tests.support.child import OLDER_VERSION, ROOT
from tests.support.damaged_texts import assert_safe_to_print

COMMAND_LINES_WITH_BAD_FILES = list_commands_with_bad_files()
GRAPH_FILE = "examples/forum_two_matmul.py"


def iterate_commands(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command of a group and of its nested groups, with its full name first."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from iterate_commands(command, *before, name)
        else:
            yield " ".join([*before, name]), command


COMMANDS = dict(iterate_commands(main))


@pytest.fixture
def bad_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_bad_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(tmp_path / "versions"))
    monkeypatch.setenv("CUDNN_BACKEND_PLAN_CACHE", str(tmp_path / "plans"))
    return tmp_path


def run_command_line(arguments: list[str]) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="cudnn-backend")


def check_exit_code_and_output(done: Result, arguments: list[str], expected: int | None) -> None:
    """Check what every command line must satisfy: its exit code, no traceback, and safe output."""
    what = f"{arguments}: exit code {done.exit_code}\n{done.output}"
    assert done.exit_code in (0, 1, 2, 130), what
    assert expected in (None, done.exit_code), what
    assert done.exc_info is None or done.exc_info[0] is SystemExit, what
    assert "Traceback" not in done.output, what
    assert_safe_to_print(done.stderr)
    if "json" in arguments and "--format" in arguments and done.stdout:
        json.loads(done.stdout)
    else:
        assert_safe_to_print(done.stdout)
    assert done.output or done.exit_code != 2, what


def test_every_command_is_tested_with_bad_input() -> None:
    assert set(COMMANDS) == set(COMMAND_LINES_WITH_BAD_FILES)
    assert (
        len(BAD_GRAPHS)
        + len({arguments[-1] for lines in COMMAND_LINES_WITH_BAD_FILES.values() for arguments, _ in lines})
        > 40
    )


@pytest.mark.parametrize("command", COMMAND_LINES_WITH_BAD_FILES)
def test_bad_input_gives_the_expected_exit_code(command: str, bad_files_folder: Path) -> None:
    for arguments, code in COMMAND_LINES_WITH_BAD_FILES[command]:
        check_exit_code_and_output(run_command_line(arguments), arguments, code)
        assert not Path(EXECUTED_MARKER).exists(), f"{arguments} must not run a data file"


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


EXIT_CODE_BY_EXCEPTION: dict[BaseException, int] = {
    KeyboardInterrupt(): 130,
    click.Abort(): 130,
    MemoryError(): 2,
    RecursionError("maximum recursion depth exceeded"): 2,
    OSError(28, "No space left on device", "a\x1b[31m"): 2,
    BrokenPipeError(32, "Broken pipe"): 2,
    UnicodeEncodeError("ascii", "\ud800\x1b", 0, 1, "ordinal not in range"): 2,
    ValueError("a\n::error::b\x1b[31m"): 2,
    KeyError("x"): 2,
    AssertionError(): 2,
    EOFError(): 2,
    _UnprintableError(): 2,
    SystemExit(1): 1,
    SystemExit(5): 2,
    SystemExit("words"): 2,
    SystemExit(None): 0,
    GeneratorExit(): 2,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_exception_gives_its_exit_code(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in EXIT_CODE_BY_EXCEPTION.items():

        def raise_error(error: BaseException = error, **_: object) -> None:
            raise error

        monkeypatch.setattr(COMMANDS[command], "callback", raise_error)
        monkeypatch.setattr(COMMANDS[command], "params", [])
        done = run_command_line(command.split())
        assert (done.exit_code, done.exc_info and done.exc_info[0]) == (code, SystemExit), error
        assert "Traceback" not in done.output
        assert_safe_to_print(done.output)
        silent = isinstance(error, (KeyboardInterrupt, click.Abort, SystemExit, BrokenPipeError))
        assert bool(done.stderr) is not silent, error


def test_an_internal_error_is_reported_and_its_traceback_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error() -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(COMMANDS["doctor"], "callback", raise_error)
    monkeypatch.setattr(COMMANDS["doctor"], "params", [])
    said = run_command_line(["doctor"]).stderr
    assert said.startswith("internal-error: the command failed with IndexError: list index out of range\n")
    assert "CUDNN_BACKEND_TRACEBACK=1" in said
    monkeypatch.setenv("CUDNN_BACKEND_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in run_command_line(["doctor"]).stderr


def test_verdicts_and_plan_builds_have_their_exit_codes(bad_files_folder: Path) -> None:
    graph = str(ROOT / GRAPH_FILE)
    assert run_command_line(["explain", graph, "--target", "l40s"]).exit_code == 1
    assert run_command_line(["plan", "build", graph, "--target", "l40s", "--output", "p.plan"]).exit_code == 1
    assert not Path("p.plan").exists()
    flash = str(ROOT / "examples/flash_forward.py")
    assert run_command_line(["plan", "build", flash, "--target", "l40s", "--output", "p.plan"]).exit_code == 0
    assert (
        run_command_line(
            ["plan", "build", flash, "--target", "l40s", "--output", "p.plan", "--engine", "999"]
        ).exit_code
        == 2
    )
    for style in ("html", "github"):
        assert (
            run_command_line(["explain", graph, "--target", "l40s", "--format", style, "--output", "out"]).exit_code
            == 1
        )
        assert Path("out").stat().st_size > 100


def test_error_names_the_failing_line_of_a_graph_file(bad_files_folder: Path) -> None:
    Path("g.py").write_text("import beside\nprint('hello')\n\ndef graph():\n    return beside.make()\n")
    Path("beside.py").write_text("def make():\n    return 1 / 0\n")
    done = run_command_line(["explain", "g.py", "--target", "sm80", "--format", "json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "hello",
        "graph-file: g.py fails with ZeroDivisionError: division by zero",
        "  where:  g.py, line 5, in graph: return beside.make()",
        f"          {bad_files_folder.resolve()}/beside.py, line 2, in make: return 1 / 0",
    ]
    assert "beside" not in sys.modules


def test_modules_next_to_a_graph_file_do_not_shadow_others(tmp_path: Path) -> None:
    for name in ("json", "numpy", "random", "cudnn_backend_py", "colorsys"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')")
    (tmp_path / "g.py").write_text(
        "import colorsys, json, random, numpy\n"
        "from cudnn_backend_py import attention\n"
        "def graph(): return attention.sdpa_forward(batch=1, heads=1, seq_q=64, head_dim=64)\n"
    )
    assert run_command_line(["graph", "lint", str(tmp_path / "g.py")]).exit_code == 0
    assert str(tmp_path) not in sys.path


def test_a_warning_precedes_the_run_of_a_listed_python_file(bad_files_folder: Path) -> None:
    done = run_command_line(["check", "python.toml"])
    assert done.stderr.startswith("warning: python.toml names exit.py, a Python file, which runs now;")
    assert "warning" not in run_command_line(["check", "graph.toml"]).stderr
    Path("python.toml").write_text(Path("python.toml").read_text() + 'other = "none.py"\n')
    warnings = [line for line in run_command_line(["check", "python.toml"]).stderr.splitlines() if "warning" in line]
    assert warnings == [
        "warning: python.toml names exit.py, none.py, Python files, which run now; a graph JSON would not be run"
    ]
    Path("list.txt").write_text("none.py\n")
    done = run_command_line(["run", "--batch", "list.txt", "--target", "sm80"])
    assert done.stderr.startswith("warning: list.txt names none.py, a Python file, which runs now;")


@pytest.mark.parametrize("module", ["frontend", "why", "audit"])
def test_only_python_files_are_run_as_programs(module: str, bad_files_folder: Path) -> None:
    for name in ("evil.txt", "evil.PY", "evil.py ", "evil", "evil.ipynb", "folder.json", "link.py", "to.txt", "-"):
        words = [sys.executable, "-m", f"cudnn_backend_py.{module}", name]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert not Path(EXECUTED_MARKER).exists()


# As processes


def run_in_shell(*arguments: str, shell: str = '"$@"', **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with the command line of ``cudnn_backend_py`` as its ``$@``."""
    whole = ["bash", "-c", shell, "bash", sys.executable, "-m", "cudnn_backend_py", *arguments]
    return subprocess.run(
        whole, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ('"$@" > /dev/full', 2, "system-error: the operating system reports: [Errno 28] No space left on device"),
        ('"$@" | true; exit ${PIPESTATUS[0]}', 2, ""),
        ('"$@" >&-', 0, ""),
        ('"$@" 2>&-', 0, ""),
        ('PYTHONIOENCODING=ascii "$@"', 0, ""),
        ('LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "$@"', 0, ""),
    ],
)
def test_closed_full_and_ascii_output_streams_are_handled(shell: str, code: int, said: str) -> None:
    done = run_in_shell("target", "show", "l40s", shell=shell)
    assert (done.returncode, done.stderr.partition("\n")[0]) == (code, said)


def test_characters_outside_the_locale_are_escaped(tmp_path: Path) -> None:
    graph = tmp_path / "größe.json"
    graph.write_text("[")
    done = run_in_shell("graph", "lint", str(graph), shell='LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "$@"')
    assert done.returncode == 2
    assert "gr\\xf6\\xdfe.json is no JSON" in done.stderr or "gr\\udcc3" in done.stderr


def test_child_process_with_another_cudnn_has_the_same_exit_codes() -> None:
    assert run_in_shell("explain", GRAPH_FILE, "--cudnn", "9.19.0", "--target", "l40s").returncode == 1
    assert run_in_shell("explain", "no such.json", "--cudnn", "9.19.0").returncode == 2
    missing = run_in_shell("explain", GRAPH_FILE, "--cudnn", "9.99.0")
    assert (missing.returncode, missing.stdout) == (2, "")


def test_ctrl_c_gives_exit_code_130(tmp_path: Path) -> None:
    graph = tmp_path / "slow.py"
    graph.write_text("import os, time\ndef graph():\n    os.write(2, b'here\\n')\n    while True: time.sleep(0.05)\n")
    command = [sys.executable, "-m", "cudnn_backend_py", "explain", str(graph)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "here\n"
        child.send_signal(signal.SIGINT)
        rest, said = child.communicate(timeout=60)
    assert (child.returncode, rest, said) == (130, "", "")


@pytest.fixture
def attention_file(tmp_path: Path) -> str:
    path = tmp_path / "attention.json"
    save_graph(attention.sdpa_forward(batch=2, heads=8, seq_q=1024, head_dim=64, causal=True), path)
    return str(path)


def test_explain_judges_one_engine_config_alone(attention_file: str) -> None:
    """Each config of the heuristics passes alone; a refused one has cuDNN's reason, and no search for remedies."""

    def explain(*options: str) -> tuple[int, dict[str, Any]]:
        words = ["explain", attention_file, "--target", "h100", "--format", "json", *options]
        done = CliRunner().invoke(main, words)
        return done.exit_code, json.loads(done.stdout)

    first = next(one for one in explain()[1]["candidates"] if one["state"] == "supported")
    code, alone = explain("--engine", EngineChoice.from_log(first["engine"], first["knobs"]).tag)
    assert (code, alone["outcome"]) == (0, "supported")
    assert [(one["engine"], one["knobs"], one["state"]) for one in alone["candidates"]] == [
        (first["engine"], first["knobs"], "supported")
    ]
    code, refused = explain("--engine", "eng2_k24=5")
    assert (code, refused["outcome"], refused["cause"]["code"]) == (1, "not supported", "engine-config-refused")
    assert refused["candidates"][0]["reasons"][0]["text"] in refused["cause"]["headline"]
    code, unknown = explain("--engine", "99")
    assert (code, unknown["outcome"], unknown["cause"]["code"]) == (1, "not supported", "engine-unknown")
    assert unknown["candidates"] == []
    code, indexed = explain("--engine", str(first["engine"]))
    assert code == 0
    assert {one["engine"] for one in indexed["candidates"]} == {first["engine"]}


@pytest.mark.parametrize("options", [("--engine", "eng2k"), ("--engine", "2", "--every-engine")])
def test_a_malformed_engine_option_is_a_usage_error(attention_file: str, options: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ["explain", attention_file, "--target", "h100", *options]).exit_code == 2


def test_a_plan_of_a_refused_engine_config_is_no_usage_error(attention_file: str, tmp_path: Path) -> None:
    words = ["plan", "build", attention_file, "--target", "h100", "--output", str(tmp_path / "x.plan")]
    done = CliRunner().invoke(main, [*words, "--engine", "eng2_k24=5"])
    assert (done.exit_code, "eng2_k24=5: CUDNN_STATUS_NOT_SUPPORTED" in done.stderr) == (1, True)
    unknown = CliRunner().invoke(main, [*words, "--engine", "99"])
    assert (unknown.exit_code, "has no engine 99" in unknown.stderr) == (2, True)
    assert "is wanted" not in unknown.stderr
    assert not (tmp_path / "x.plan").exists()


def test_the_command_that_lists_other_configs_names_the_chosen_version(attention_file: str, tmp_path: Path) -> None:
    words = ["plan", "build", attention_file, "--target", "h100", "--output", str(tmp_path / "x.plan")]
    done = run_in_shell(*words, "--engine", "eng2_k24=5", "--cudnn", OLDER_VERSION)
    command = re.search(r"cudnn-backend explain .* lists", done.stderr)
    assert command is not None, done.stderr
    assert f"--cudnn={OLDER_VERSION}" in command[0]
