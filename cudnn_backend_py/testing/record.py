"""Record a run of the GPU tests: machine, driver, cuDNN, commit, test counts, measured figures."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ..errors import EnvironmentNotReady
from ..info import make_measurement_record_header, write_record
from ..system.child import make_module_command

__all__ = ["RecordedTestRun", "record_test_run"]

_KEPT = (
    "cudnn_backend_py",
    "python",
    "cudnn",
    "found by",
    "built for CUDA",
    "driver",
    "driver version",
    "compiled call",
    "gpus",
)
FIGURES_VARIABLE = "CUDNN_BACKEND_FIGURES"


class RecordedTestRun(NamedTuple):
    """A recorded test run: the record's path, pytest's exit code, and how many tests were skipped for each reason."""

    path: Path
    code: int
    not_run: Mapping[str, int]


def record_test_run(folder: Path, arguments: list[str]) -> RecordedTestRun:
    """Run pytest with `arguments`, and write a JSON record of the run into `folder`.

    The folder is made first, so that no run is made without success. Tests add measured figures by appending JSON lines
    to the file named in ``CUDNN_BACKEND_FIGURES``.

    Raises
    ------
    EnvironmentNotReady
        ``pytest-missing``.
    """
    if importlib.util.find_spec("pytest") is None:
        fix = "pip install 'cudnn-backend-py[test]'; the tests are in a checkout"
        raise EnvironmentNotReady("pytest, which runs the tests, is not installed", code="pytest-missing", fix=fix)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        results, figures = Path(scratch) / "junit.xml", Path(scratch) / "figures.jsonl"
        command = make_module_command("pytest", f"--junitxml={results}", *arguments)
        environment = {**os.environ, FIGURES_VARIABLE: str(figures), "CUDNN_BACKEND_REQUIRE": "gpu"}
        run = subprocess.run(command, env=environment, check=False)
        record = {
            **make_measurement_record_header("record", _KEPT),
            "arguments": arguments,
            "counts": _read_test_counts(results),
            "failed": _list_failed_tests(results),
            "not run": _count_skip_reasons(results),
            "figures": _read_measured_values(figures),
        }
    path = folder / f"{_make_record_name(record['environment'])}.json"
    write_record(record, path)
    return RecordedTestRun(path, run.returncode, record["not run"])


def _make_record_name(environment: Any) -> str:
    gpus = environment.get("gpus")
    device = gpus[0] if isinstance(gpus, list) else "no-gpu"
    version = re.split(r"[;+]", str(environment.get("cudnn", "none")))[0]
    return f"{device}-cudnn-{version}".lower().replace(" ", "-")


def _read_test_counts(results: Path) -> dict[str, int]:
    if not results.is_file():
        return {}
    suites = ElementTree.parse(results).getroot().iter("testsuite")
    names = ("tests", "failures", "errors", "skipped")
    counts = dict.fromkeys(names, 0)
    for suite in suites:
        for name in names:
            counts[name] += int(suite.get(name, 0))
    return counts


def _list_failed_tests(results: Path) -> list[str]:
    """Return the names of the tests that failed."""
    if not results.is_file():
        return []
    cases = ElementTree.parse(results).getroot().iter("testcase")
    return [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


def _count_skip_reasons(results: Path) -> dict[str, int]:
    """Return each reason for which tests were skipped, with the number of these tests."""
    if not results.is_file():
        return {}
    skipped = (case.find("skipped") for case in ElementTree.parse(results).getroot().iter("testcase"))
    return dict(Counter(item.get("message", "") for item in skipped if item is not None).most_common())


def _read_measured_values(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
