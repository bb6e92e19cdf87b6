"""Records of test runs: pytest is needed to write one, and a test without its record is skipped."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_backend_py.cli.commands import main
from tests.support.pages import PAGE_TEXTS
from tests.support.records import RECORD_COMMANDS, RECORD_FOLDER, read_record

ROOT = Path(__file__).parents[2]


def test_without_pytest_no_record_is_written(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from cudnn_backend_py.testing.record import record_test_run\n"
        f"record_test_run(Path({str(tmp_path / 'logs')!r}), [])\n"
    )
    # -S excludes installed packages, and -I additions of the environment.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert "pytest-missing: pytest, which runs the tests, is not installed" in done.stderr
    assert not (tmp_path / "logs").exists()


def test_every_record_is_cited_on_a_page() -> None:
    """The table of all records does not count as a citation."""
    text = "".join(page.partition("<!-- records -->")[0] for page in PAGE_TEXTS.values())
    assert {path.name for path in RECORD_FOLDER.iterdir()} - set(re.findall(r"logs/([\w.-]+\.json)\b", text)) == set()


@pytest.mark.parametrize("start", RECORD_COMMANDS)
def test_missing_record_skips_the_test_and_names_the_recording_command(start: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"no record logs/{start}of-no-gpu.json; ") as skipped:
        read_record(f"{start}of-no-gpu.json")
    program, *words = RECORD_COMMANDS[start].split()
    assert RECORD_COMMANDS[start].replace("NAME", f"{start}of-no-gpu.json") in str(skipped.value)
    found = importlib.util.find_spec(words[1]) if program == "python" else main.commands[words[0]]
    assert found is not None
