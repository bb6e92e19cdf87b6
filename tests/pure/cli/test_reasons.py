"""The command ``reasons``: explanations of error messages as text and JSON, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.diagnose.framework_messages import MessageExplanation


def run_reasons_command(*arguments: str, text: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(main, ["reasons", *arguments], input=text)
    return done.exit_code, done.stdout


def test_reasons_command_explains_arguments_files_and_standard_input(tmp_path: Path) -> None:
    message = "cuDNN Frontend error: No valid execution plans built."
    code, printed = run_reasons_command(message)
    assert code == 0
    assert printed.splitlines()[0] == "Heuristics listed engine configs, and no plan of them could be built (torch)"
    file = tmp_path / "error.txt"
    file.write_text(message)
    assert (
        run_reasons_command(str(file))
        == run_reasons_command("-", text=message)
        == run_reasons_command(*message.split())
        == (0, printed)
    )
    assert run_reasons_command("all is well")[0] == 1
    code, printed = run_reasons_command(message, "--format", "json")
    [entry] = json.loads(printed)
    assert (code, entry["code"]) == (0, "no-plan-built")
    assert set(entry) == set(MessageExplanation.__slots__)
    assert (run_reasons_command("all is well", "--format", "json")) == (1, "[]\n")
