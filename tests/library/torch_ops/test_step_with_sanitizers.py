"""Run the C code that launches torch operators with hostile input, under two sanitizers and without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

from cudnn_backend_py.torch_ops.extension import VARIABLE, Build  # noqa: E402
from tests.support.address_sanitizer import CXX_FLAGS, SANITIZER_MESSAGES, make_sanitizer_environment  # noqa: E402
from tests.support.child import run_python  # noqa: E402


def test_hostile_calls_of_cpp_operators_cause_no_sanitizer_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("did not run: there is no g++")
    monkeypatch.setenv("CXX", f"g++ {CXX_FLAGS}")
    build = Build.for_torch(torch)
    subprocess.run([*build.command, "-o", str(tmp_path / build.file_name)], check=True)
    tmp_path.chmod(0o700)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/library/torch_ops/test_hostile_step.py"]
    done = run_python(command, environment=make_sanitizer_environment() | {VARIABLE: str(tmp_path)}, timeout_s=900)
    said = done.stdout + done.stderr
    assert not any(word in said for word in SANITIZER_MESSAGES), said[-5000:]
    assert done.code == 0, said[-5000:]
