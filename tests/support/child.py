"""Run Python child processes for tests that may crash, or need another cuDNN version or environment variables."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cudnn_backend_py.system.child import describe_exit_status

__all__ = [
    "ROOT",
    "FinishedChild",
    "make_cudnn_environment",
    "make_older_cudnn_environment",
    "measure_children_cpu_s",
    "run_code",
    "run_python",
]

ROOT = Path(__file__).parents[2]
OLDER_VERSION = "9.19.0"


@dataclass(frozen=True)
class FinishedChild:
    """Exit code and output of a child process."""

    code: int
    stdout: str
    stderr: str

    @property
    def ending(self) -> str:
        """Return ``exit code N``, or the name of the signal that ended the child."""
        return describe_exit_status(self.code)


def run_python(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout_s: float = 120,
    check: bool = False,
) -> FinishedChild:
    """Run Python with `arguments` in a child process; `environment` replaces all environment variables."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=dict(os.environ if environment is None else environment),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    finished = FinishedChild(done.returncode, done.stdout, done.stderr)
    if check and finished.code:
        raise AssertionError(f"the child process ended with {finished.ending}\n{finished.stdout}\n{finished.stderr}")
    return finished


def run_code(code: str, **options: object) -> FinishedChild:
    """Run a program given as text in a child process, and require exit code 0."""
    return run_python(["-c", code], check=True, **options)  # type: ignore[arg-type]


def measure_children_cpu_s() -> float:
    """Return the CPU seconds of ended child processes, a measure independent of the load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_cudnn_environment(version: str, *, optional: bool = False) -> dict[str, str]:
    """Return the environment of a child process that loads an installed cuDNN version.

    The test is skipped if there is no version store, or if an optional version is not installed.
    """
    store = pytest.importorskip("cudnn_backend_py.versions.store")
    installed = store.find_installed(version)
    if installed is None and optional:
        pytest.skip(f"did not run: cuDNN {version} is not installed")
    if installed is None:
        raise AssertionError(f"cuDNN {version} is not installed: cudnn-backend cudnn install {version}")
    found: dict[str, str] = store.make_environment_of_installed_cudnn(installed)
    return found


def make_older_cudnn_environment() -> dict[str, str]:
    """Return the environment of a child process that loads cuDNN 9.19.0."""
    return make_cudnn_environment(OLDER_VERSION)
