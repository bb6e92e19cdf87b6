"""Damaged files of an installed cuDNN are reported before loading, after a crash, and in verdicts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.versions.store import InstalledCudnn, require_installed
from tests.library.native.test_environment_problems import (
    find_newest_cudnn_folder,
    find_older_cudnn_folder,
    list_environment_problems_in_child,
    map_codes_to_environment_problems,
)
from tests.support.child import OLDER_VERSION, run_code


@pytest.fixture
def installed_copy(tmp_path: Path) -> InstalledCudnn:
    """Return a copy of the older installed cuDNN in a separate version store."""
    root = tmp_path / "cache"
    root.mkdir(0o700)
    folder = find_older_cudnn_folder().parents[2]
    shutil.copytree(folder, root / folder.name)
    return require_installed(OLDER_VERSION, root=root)


def flip_byte(path: Path, place: int | None = None) -> None:
    """Flip a bit of one byte in a file, and restore the file's times, so that only the content differs."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2 if place is None else place)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


AFTER_CRASH = """
import json
from cudnn_backend_py.native.environment_problems import find_problem_explaining_crash
from cudnn_backend_py.versions.judging_environment import read_judging_environment
setup = read_judging_environment({version!r})
problem = find_problem_explaining_crash(setup.library, setup.nvrtc, in_start={in_start})
names = ("code", "headline", "detail", "repair", "blocks")
print(json.dumps(None if problem is None else [getattr(problem, name) for name in names]))
"""


def find_library_problem_after_crash(
    version: str | None, in_start: bool = False, **environment: str | Path
) -> list[Any] | None:
    variables = {name: str(value) for name, value in (os.environ | environment).items()}
    done = run_code(AFTER_CRASH.format(version=version, in_start=in_start), environment=variables)
    found: list[Any] | None = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"])
def test_a_flipped_byte_is_reported_after_a_crash(installed_copy: InstalledCudnn, name: str) -> None:
    root = installed_copy.path.parent
    assert find_library_problem_after_crash(OLDER_VERSION, CUDNN_BACKEND_CACHE=root) is None
    flip_byte(installed_copy.library.with_name(name))
    for version, environment in ((OLDER_VERSION, {}), (None, {"CUDNN_BACKEND_LIBRARY": installed_copy.library})):
        problem = find_library_problem_after_crash(version, CUDNN_BACKEND_CACHE=root, **environment)
        assert problem is not None
        code, headline, detail, repair, blocks = problem
        assert (code, blocks) == ("installed-files-changed", True)
        assert name in headline
        assert "has SHA-256" in detail
        assert "was installed" in detail
        assert repair == f"cudnn-backend cudnn install {installed_copy.version} --cuda {installed_copy.cuda}"


@pytest.mark.parametrize("size", [0, 100, 100_000])
@pytest.mark.parametrize("name", ["libcudnn.so.9", "libcudnn_graph.so.9"])
def test_a_truncated_library_is_reported_before_it_is_loaded(
    installed_copy: InstalledCudnn, name: str, size: int
) -> None:
    os.truncate(installed_copy.library.with_name(name), size)
    problem = map_codes_to_environment_problems(CUDNN_BACKEND_LIBRARY=installed_copy.library)["installed-files-changed"]
    assert problem["blocks"]
    assert f"{name} has {size} bytes" in problem["headline"]


def test_an_unloadable_library_is_compared_with_its_install_record(installed_copy: InstalledCudnn) -> None:
    flip_byte(installed_copy.library, 0)
    problems = list_environment_problems_in_child(CUDNN_BACKEND_LIBRARY=installed_copy.library)
    assert [problem["code"] for problem in problems[:2]] == ["installed-files-changed", "cudnn-library-not-found"]


def test_explain_cannot_judge_with_damaged_library_files(installed_copy: InstalledCudnn) -> None:
    installed_copy.library.with_name("libcudnn_graph.so.9").unlink()
    code = """
from cudnn_backend_py.diagnose.explanation import control_graph, explain
verdict = explain(control_graph(), "sm90")
print(verdict.outcome.value, verdict.exit_code, verdict.cause.code)
"""
    done = run_code(code, environment={**os.environ, "CUDNN_BACKEND_LIBRARY": str(installed_copy.library)})
    assert done.stdout == "could not be judged 2 installed-files-changed\n"


def test_a_crash_with_a_shadowed_cudnn_is_not_blamed_on_the_graph() -> None:
    problem = find_library_problem_after_crash(OLDER_VERSION, in_start=True, LD_LIBRARY_PATH=find_newest_cudnn_folder())
    assert problem is not None
    assert problem[0] == "loader-path-shadows-cudnn"
    assert find_library_problem_after_crash(OLDER_VERSION, LD_LIBRARY_PATH=find_newest_cudnn_folder()) is None, (
        "after the start, the loaded libraries are known"
    )
