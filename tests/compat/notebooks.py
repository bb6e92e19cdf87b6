"""Run cudnn-frontend's sample notebooks unchanged, with its module or ours, and record the step that each reaches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["read_run_facts", "run_notebooks"]

_FRONTEND_PROGRAM = (
    "import sys; from cudnn_backend_py.frontend.notebooks import run_notebook; run_notebook(sys.argv[1])"
)
_FACTS_PROGRAM = """\
import json, platform, sys
from importlib import import_module
cudnn, torch = import_module(sys.argv[1]), import_module("torch")
gpu = sys.argv[2] if len(sys.argv) > 2 else torch.cuda.get_device_name()
said = {"module version": cudnn.__version__, "cudnn": cudnn.backend_version_string(), "torch": torch.__version__}
print(json.dumps({**said, "python": platform.python_version(), "device": gpu}))
"""
_KNOWN_ISSUE_PATTERN = re.compile(r"FrontendKnownIssueWarning: [^(\n]*\(([a-z0-9-]+)\)")
_KERNEL_PATTERN = re.compile(r"(cudnn\.[a-z_.]+) is a kernel of cudnn-frontend's own")


def run_notebooks(
    folder: Path, module: str, environment: Mapping[str, str], *, target: str | None, limit_s: float, jobs: int
) -> dict[str, dict[str, Any]]:
    """Run every notebook of a folder in its own process; return the step that each reached, and known-issue warnings.

    ``module`` is "frontend" (ours) or "cudnn" (found through the environment's ``PYTHONPATH``). A notebook "ran to its
    end", "reached execute" (with a ``target``), was "refused by name", or "failed" with the last line that it wrote.
    """
    paths = sorted(folder.resolve().glob("*.ipynb"))
    with ThreadPoolExecutor(jobs) as pool:
        run = partial(_run_notebook, module=module, environment=environment, target=target, limit_s=limit_s)
        return {path.name: end for path, end in zip(paths, pool.map(run, paths), strict=True)}


def _run_notebook(
    path: Path, module: str, environment: Mapping[str, str], target: str | None, limit_s: float
) -> dict[str, Any]:
    command = [sys.executable, "-c", _FRONTEND_PROGRAM, str(path)]
    if module == "frontend":
        aim = ["--target", target] if target else []
        command = [sys.executable, "-m", "cudnn_backend_py.frontend", *aim, str(path)]
    try:
        done = subprocess.run(
            command, cwd=path.parent, env=dict(environment), capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"end": f"not ended after {limit_s:.0f} s"}
    warned = sorted(set(_KNOWN_ISSUE_PATTERN.findall(done.stderr)))
    return {"end": _describe_outcome(done.returncode, done.stderr)} | ({"warned of": warned} if warned else {})


def _describe_outcome(status: int, errors: str) -> str:
    last = errors.strip().splitlines()[-1] if errors.strip() else ""
    if status == 0:
        return "reached execute" if last.startswith("reached ") else "ran to its end"
    if status == 1 and (kernel := _KERNEL_PATTERN.search(last)):
        return f"refused by name: {kernel[1]}"
    return f"failed, exit status {status}: {last[:300]}"


def read_run_facts(module: str, environment: Mapping[str, str], target: str | None) -> dict[str, Any]:
    """Return the facts of a run: versions, and the name of the real or described GPU."""
    name = "cudnn_backend_py.frontend" if module == "frontend" else module
    command = [sys.executable, "-c", _FACTS_PROGRAM, name, *([f"described {target}"] if target else [])]
    done = subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said
