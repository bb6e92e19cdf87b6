"""The command ``reasons``: entries of error messages as text and JSON, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.diagnose.framework_messages import Entry


def run(*arguments: str, text: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(main, ["reasons", *arguments], input=text)
    return done.exit_code, done.stdout


def test_command_prints_entries_of_text_file_and_standard_input(tmp_path: Path) -> None:
    message = "cuDNN Frontend error: No valid execution plans built."
    code, printed = run(message)
    assert code == 0
    assert printed.splitlines()[0] == "Heuristics listed engine configs, and no plan of them could be built (torch)"
    file = tmp_path / "error.txt"
    file.write_text(message)
    assert run(str(file)) == run("-", text=message) == run(*message.split()) == (0, printed)
    assert run("all is well")[0] == 1
    code, printed = run(message, "--format", "json")
    [entry] = json.loads(printed)
    assert (code, entry["code"]) == (0, "no-plan-built")
    assert set(entry) == set(Entry.__slots__)
    assert (run("all is well", "--format", "json")) == (1, "[]\n")
