"""Fixtures for the tests of the torch operators."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cudnn_backend_py.torch_ops import set_shapes
from cudnn_backend_py.torch_ops.extension import Build, get_extension_folder, load_module
from tests.support.gpu_requirements import require_fused_attention


@pytest.fixture(scope="package", autouse=True)
def _require_fused_attention() -> None:
    require_fused_attention()


@pytest.fixture(autouse=True)
def default_shape_policy() -> Iterator[None]:
    """Set the default shape policy at the start of each test."""
    former = set_shapes("any")
    yield
    set_shapes(former)


@pytest.fixture(scope="package")
def step_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the compiled step, loaded from a copy of its file so that it is separate from the package's own."""
    torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
    path, build = tmp_path_factory.mktemp("step") / "step.so", Build.for_torch(torch)
    built = get_extension_folder().path / build.file_name
    if built.exists():
        shutil.copy(built, path)
        return load_module(path)
    done = subprocess.run([*build.command, "-o", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return load_module(path)
