"""The steps of examples/workflow.yml run here, as far as they need neither a network nor a GPU."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from cudnn_backend_py.system.child import make_call_command
from cudnn_backend_py.versions.store import list_installed
from tests.support.child import ROOT, run_python

TEXT = (ROOT / "examples" / "workflow.yml").read_text(encoding="utf-8")
STEPS = [line.partition(" #")[0] for line in re.findall(r"^\s+(?:- )?run: (.+)$", TEXT, re.MULTILINE)]
COMMANDS = list(dict.fromkeys(re.sub(r"^\.venv/bin/", "", step) for step in STEPS))
# What a machine without a GPU says: that it has none, or the same with a described one.
WITHOUT_GPU = {
    "cudnn-backend run graph.py --configs all": (2, "NOT RUN"),
    "cudnn-backend target verify --output verification.json": (0, "300 graphs: "),
}


def test_every_workflow_step_is_run_or_listed_as_skipped() -> None:
    others = [step for step in COMMANDS if not step.startswith("cudnn-backend ")]
    assert others == ["pip install cudnn-backend-py pytest", "pytest tests", "python3 -m venv .venv"]
    assert len(COMMANDS) - len(others) == 5


@pytest.mark.parametrize("command", [step for step in COMMANDS if step.startswith("cudnn-backend ")])
def test_workflow_step_runs(command: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path, dirs_exist_ok=True)
    shutil.copy(ROOT / "examples" / "flash_forward.py", tmp_path / "graph.py")
    words = shlex.split(command.replace("$CUDNN", list_installed()[-1].short_version))[1:]
    code, said = WITHOUT_GPU.get(command, (None, ""))
    if code is not None:
        words += ["--target", "h100"]
    python = make_call_command("cudnn_backend_py.cli.commands:main", *words)[1:]
    done = run_python(python, cwd=tmp_path, timeout_s=300, environment={**os.environ, "GITHUB_ACTIONS": "true"})
    assert done.code == (code or 0), done.stdout + done.stderr
    assert said in done.stdout
