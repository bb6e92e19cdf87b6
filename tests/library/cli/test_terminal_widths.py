"""Tests that output and exit code of every command do not depend on the terminal width."""

from __future__ import annotations

import importlib
import json
import os
import pty
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cudnn_backend_py import save_graph
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.cli.graph_file import load_graph_file
from tests.library.cli.test_exit_codes import iterate_commands
from tests.support.child import ROOT
from tests.support.terminals import CommandOutput, run_command_at_width
from tests.support.typical_graphs import TYPICAL_GRAPHS

TERMINAL_WIDTHS = (0, 1, 20, 80, 500)
COMMANDS = dict(iterate_commands(main))
FORUM_LOG = ROOT / "tests/pure/importers/data/logs/forum-9.1.1.log.gz"
BASELINE_TEXT = 'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["sm80"]\n[graphs]\ng = "good.json"\n'

# Output of each command, or an error if an answer needs a GPU, the network or a long time; a new command needs a line.
COMMAND_LINES: dict[str, list[list[str]]] = {
    "explain": [
        ["refused.json", "--target", "l40s", "--here"],
        ["good.json", "--whatif", "--target", "sm80", "--no-build"],
        ["good.json", "--output", "nowhere/r.zip"],
    ],
    "log": [[str(FORUM_LOG)], [str(FORUM_LOG), "--breakdown"]],
    "why": [["--format", "odd", "good.json"]],
    "graph lint": [["slow.json"]],
    "graph draw": [["good.json"]],
    "completion": [["bash"]],
    "frontend": [["--odd", "good.json"]],
    "reasons": [["No valid execution plans built"]],
    "diff": [["nine", "default", "good.json", "--target", "sm80"]],
    "matrix": [
        ["good.json", "refused.json", "--target", "sm80", "--target", "sm90", "--cudnn", "default"],
        ["--since", "good.json", "--target", "sm80", "--cudnn", "default"],
    ],
    "check": [["baseline.toml"]],
    "attention-table": [["--row", "no such row"]],
    "attention-page": [["good.json"]],
    "doctor": [[]],
    "target list": [[]],
    "target show": [["l40s"], ["foreign.json"]],
    "target read": [["--device", "99"]],
    "target verify": [["--target", "h100", "--contribute"]],
    "cudnn install": [["nine"]],
    "cudnn list": [[]],
    "cudnn verify": [["99.99.99"]],
    "cudnn remove": [["99.99.99"]],
    "record": [["records", "--pytest-arguments", "'"]],
    "plan build": [["refused.json", "--target", "sm80", "--output", "nowhere/p.plan"]],
    "cache list": [[]],
    "cache clear": [[]],
    "run": [["cut.json", "--target", "sm80"]],
    "plan tune": [["good.json", "--budget", "-1"]],
    "audit": [["--folder", "cases"]],
    "plan compare": [["good.json", "--grid", "little"]],
}
RUNNABLE_MODULES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "cudnn_backend_py").rglob("__main__.py")
)


@pytest.fixture(scope="module")
def input_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("widths")
    save_graph(TYPICAL_GRAPHS["matmul"].make(), place / "good.json")
    save_graph(load_graph_file(str(ROOT / "examples/forum_two_matmul.py")), place / "refused.json")
    data = json.loads((place / "refused.json").read_text(encoding="utf-8"))
    data["tensors"][0]["strides"] = [one * 3 for one in data["tensors"][0]["strides"]]
    (place / "slow.json").write_text(json.dumps(data))
    profile = json.loads((ROOT / "cudnn_backend_py/target/profiles/l40s.json").read_text(encoding="utf-8"))
    profile |= {"name": "::error::x", "title": "word " * 30 + "::error::y " + "word " * 30, "aliases": []}
    (place / "foreign.json").write_text(json.dumps(profile))
    (place / "cut.json").write_text("{")
    (place / "baseline.toml").write_text(BASELINE_TEXT)
    return place


@pytest.fixture(autouse=True)
def change_to_input_folder(input_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(input_folder)
    for name, place in {"CUDNN_BACKEND_CACHE": "versions", "CUDNN_BACKEND_PLAN_CACHE": "plans"}.items():
        monkeypatch.setenv(name, str(input_folder / place))


def count_visible_characters(text: str) -> Counter[str]:
    """Count the characters of a text, ignoring whitespace and the escaping of colons."""
    return Counter("".join(text.replace("\\x3a", ":").split()))


def check_output_at_all_widths(call: Callable[[], object], *, whole_words: bool) -> None:
    """Check that output and exit code are the same at every width, in a terminal and in a pipe."""
    call_once: CommandOutput = run_command_at_width(call, None, terminal=False)  # caches between runs are filled now
    expected = run_command_at_width(call, None, terminal=False)
    assert expected.code == call_once.code
    assert expected.out.strip() or expected.err.strip()
    for terminal in (False, True):
        for width in TERMINAL_WIDTHS:
            found = run_command_at_width(call, width, terminal=terminal)
            where = f"{'terminal' if terminal else 'pipe'} of {width} columns\n{found.out}\n{found.err}"
            assert found.code == expected.code, where
            assert count_visible_characters(found.out) == count_visible_characters(expected.out), where
            assert not count_visible_characters(expected.err) - count_visible_characters(found.err), (
                where
            )  # progress is for terminals
            if whole_words:
                plain = found.out.replace("\\x3a", ":")
                assert Counter(plain.split()) == Counter(expected.out.split()), where
            for line in (found.out + found.err).splitlines():
                assert not line.lstrip().startswith("::"), where


def test_every_command_has_an_example() -> None:
    assert set(COMMAND_LINES) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_every_command_prints_the_same_text_at_every_width(command: str) -> None:
    for arguments in COMMAND_LINES[command]:
        words = [*command.split(), *arguments]
        check_output_at_all_widths(lambda words=words: main.main(words, prog_name="cudnn-backend"), whole_words=True)  # type: ignore[misc]


def test_every_help_page_has_the_same_text_at_every_width() -> None:
    for words in ["", "target", "cudnn", "cache", *COMMANDS]:
        line = [*words.split(), "--help"]
        check_output_at_all_widths(lambda line=line: main.main(line, prog_name="cudnn-backend"), whole_words=False)  # type: ignore[misc]


@pytest.mark.parametrize("module", RUNNABLE_MODULES)
def test_the_help_of_every_module_has_the_same_text_at_every_width(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    program = importlib.import_module(f"{module}.__main__")
    check_output_at_all_widths(program.main, whole_words=False)


@pytest.mark.parametrize("width", [0, 1, 500])
def test_a_process_in_a_terminal_of_any_width_prints_the_verdict(width: int) -> None:
    command = [sys.executable, "-m", "cudnn_backend_py", "explain", "refused.json", "--target", "l40s"]
    environment = {key: text for key, text in os.environ.items() if key != "COLUMNS"} | {"PYTHONPATH": str(ROOT)}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (25, width))
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as child:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 1 << 16):
                said += piece
        except OSError:  # its end
            pass
    os.close(ours)
    assert child.returncode == 1
    assert b"NOT SUPPORTED" in said
