"""Run cudnn-frontend's test files, each large one in its own pytest process, and collect one result line per test."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .scope import LARGE_TEST_FILES

__all__ = ["REPOSITORY", "RunOptions", "make_environment", "run_test_files"]

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Test files and options of a run.

    ``module`` is "frontend" (ours) or "cudnn" (in the folder ``path``); ``cudnn`` is a version in the version store or
    the folder of a libcudnn; ``target`` is a described GPU, or None for the GPU of this machine.
    """

    module: str
    tests: Path
    out: Path
    files: tuple[str, ...]
    path: Path | None = None
    target: str | None = None
    cudnn: str | None = None
    mark: str = "L0"
    workers: int = 1
    sample: int = 1
    part: int = 0
    seed: int = 0
    fast: bool = False
    together: bool = False
    limit_s: float = 3600.0
    tests_commit: str = "unknown"
    our_commit: str = "unknown"


def run_test_files(plan: RunOptions, console: Console) -> None:
    """Run every file, and write ``plan.out``: a line about the run, then one line for each test."""
    environment = _make_pytest_environment(plan)
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    alone = () if plan.together else tuple(name for name in plan.files if name in LARGE_TEST_FILES)
    small = tuple(name for name in plan.files if name not in alone)
    for group in (small, *((name,) for name in alone)):
        if not group:
            continue
        ending = _run_pytest(plan, group, environment)
        found, here = _read_results(plan, group, ending)
        about = about or here
        rows += found
        for name in group:
            console.print(_format_summary(name, [row for row in found if row["file"] == name]), highlight=False)
        console.print(f"pytest: {ending}", highlight=False)
        _write_results(plan, about, rows)


def _format_summary(name: str, rows: list[dict[str, Any]]) -> str:
    words = dict.fromkeys(row["outcome"] for row in rows)
    outcomes = ", ".join(f"{sum(row['outcome'] == word for row in rows)} {word}" for word in words)
    return f"{name}: {outcomes or 'no tests'}; {sum(row['executes'] > 0 for row in rows)} reach execute"


def _write_results(plan: RunOptions, about: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    run = {
        **about,
        "module": plan.module,
        "tests commit": plan.tests_commit,
        "our commit": plan.our_commit,
    }
    run.update({"mark": plan.mark, "sample": plan.sample, "part": plan.part, "seed": plan.seed, "fast": plan.fast})
    lines = [json.dumps(line) for line in ({"run": run}, *rows)]
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _make_pytest_environment(plan: RunOptions) -> dict[str, str]:
    environment = make_environment(plan.cudnn, plan.path)
    options = ["-p", "no:cacheprovider", "-p", "tests.compat.plugin", "--compat-module", plan.module]
    options += ["--compat-out", str(_get_partial_results_path(plan)), "--compat-sample", str(plan.sample)]
    options += ["--compat-part", str(plan.part), "--compat-seed", str(plan.seed)]
    options += ["--compat-target", plan.target] if plan.target else []
    environment["PYTEST_ADDOPTS"] = shlex.join(options)
    return environment


def make_environment(cudnn: str | None, path: Path | None) -> dict[str, str]:
    """Return the environment of a child process with a cuDNN (as in ``RunOptions``) and `path` in ``PYTHONPATH``."""
    environment = _make_cudnn_environment(cudnn)
    places = [*([str(path)] if path else []), str(REPOSITORY), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment


def _make_cudnn_environment(cudnn: str | None) -> dict[str, str]:
    """Return environment variables with which cudnn-frontend and this package load the same cuDNN."""
    if cudnn is None:
        return dict(os.environ)
    if Path(cudnn).is_dir():
        folders = [Path(cudnn), *Path(cudnn).resolve().parents[1].glob("*/lib")]
        environment = {**os.environ, "CUDNN_BACKEND_LIBRARY": str(Path(cudnn) / "libcudnn.so.9")}
    else:
        from cudnn_backend_py.versions import store as versions

        installed = versions.require_installed(cudnn)
        environment = versions.make_environment_of_installed_cudnn(installed)
        folders = [installed.library.parent, *([installed.nvrtc.parent] if installed.nvrtc else [])]
    places = [str(folder) for folder in folders] + [environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(place for place in places if place)
    return environment


def _get_partial_results_path(plan: RunOptions) -> Path:
    return plan.out.resolve().with_name(plan.out.name + ".part")


def _run_pytest(plan: RunOptions, files: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run some files in one pytest and return its exit code."""
    part = _get_partial_results_path(plan)
    part.parent.mkdir(parents=True, exist_ok=True)
    for suffix in ("", ".collected", ".about"):
        Path(f"{part}{suffix}").unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        "-m",
        plan.mark,
        "-q",
        "--tb=short",
        "--continue-on-collection-errors",
    ]
    command += ["--compat-fast"] if plan.fast and files[0] in LARGE_TEST_FILES else []
    command += ["-n", str(plan.workers), "--max-worker-restart", "100"] if plan.workers else []
    log = plan.out.with_name(plan.out.name + ".log")
    with log.open("a", encoding="utf-8") as stream:
        child = subprocess.Popen(
            command, cwd=plan.tests, env=dict(environment), stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            return f"exit status {child.wait(timeout=plan.limit_s)}"
        except subprocess.TimeoutExpired:
            return f"ended after {plan.limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _read_results(plan: RunOptions, files: Sequence[str], ending: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of some test files, including tests without a result, and the facts of the run."""
    part = _get_partial_results_path(plan)
    rows: dict[str, dict[str, Any]] = {}
    if part.exists():
        for text in part.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            rows[line["id"]] = line
    collected = Path(f"{part}.collected")
    ids = collected.read_text(encoding="utf-8").splitlines() if collected.exists() else []
    for test in ids:
        if test not in rows:
            rows[test] = make_row_of_test_without_result(test, test.partition("::")[0], ending)
    if not ids and "status 5" not in ending:
        present = {row["file"] for row in rows.values()}
        reason = f"nothing was collected: {ending}"
        rows.update(
            {name: make_row_of_test_without_result(name, name, reason) for name in files if name not in present}
        )
    about = Path(f"{part}.about")
    said = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
    for path in (part, collected, about):
        path.unlink(missing_ok=True)
    return list(rows.values()), said


def make_row_of_test_without_result(test: str, file: str, reason: str, outcome: str = "not run") -> dict[str, Any]:
    """Return the row of a test without a result, with the reason."""
    row = {"id": test, "file": file, "outcome": outcome, "reason": reason, "stage": "", "executes": 0, "graphs": []}
    return {**row, "errors": [], "errors_in_all": 0, "seconds": 0.0}
