"""Building a first plan imports only the modules it needs, which keeps a new process fast; its time is not tested."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from cudnn_backend_py.target import find_profile
from tests.support import first_result


def test_a_first_plan_imports_no_unused_module(tmp_path: Path) -> None:
    device = tmp_path / "h100.json"
    device.write_text(find_profile("h100").json(), encoding="utf-8")
    command = [sys.executable, first_result.__file__, str(device)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["import"] == []
    assert found["plan"] == []
    assert found["workspace"] >= 0


def test_modules_that_a_first_plan_must_not_import_exist() -> None:
    """The list of forbidden modules contains no name of a module that was renamed or removed."""
    names = [f"cudnn_backend_py.{name}" for name in first_result.UNUSED_MODULE_NAMES]
    assert [name for name in names if importlib.util.find_spec(name) is None] == []


def test_an_additional_import_would_be_detected() -> None:
    names = {"cudnn_backend_py.diagnose.logs", "cudnn_backend_py.graph.serial", "rich", "cudnn_backend_py.graph.ir"}
    assert first_result.list_unneeded_modules(names) == ["diagnose", "graph.serial", "rich"]
