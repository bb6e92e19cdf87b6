"""Where libcudnn is looked for, and what is said of how it was found; the files here are empty, nothing is loaded."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from cudnn_backend_py.native import find


def make_prefix(folder: Path) -> Path:
    """Make a conda environment with a libcudnn and return that file."""
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "lib").mkdir()
    library = folder / "lib" / find.CUDNN_SONAME
    library.touch()
    return library


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing installed and nothing said."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(find, "find_loaded", lambda _: [])
    for name in ("LD_LIBRARY_PATH", "CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(find.LIBRARY_VARIABLE, raising=False)


def first_hit() -> find.Place:
    return next(place for place in find.cudnn_places() if place.path is not None)


def test_the_conda_environment_of_this_python_comes_before_the_activated_one(
    bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = make_prefix(tmp_path / "own"), make_prefix(tmp_path / "other")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "other"))
    assert first_hit() == find.Place("environment variable CONDA_PREFIX", str(other), str(other))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    assert first_hit() == find.Place("conda environment of this Python", str(own), str(own))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "own"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{other.parent}")
    assert first_hit() == find.Place("environment variable LD_LIBRARY_PATH", str(other), str(other))


def test_a_prefix_of_no_conda_is_no_place(bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_prefix(tmp_path)
    (tmp_path / "conda-meta").rmdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert str(tmp_path) not in " ".join(map(str, find.cudnn_places()))


def test_the_folder_of_a_debian_is_of_the_system(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = Path(f"/usr/lib/{platform.machine()}-linux-gnu")
    monkeypatch.setattr(find.os.path, "isdir", lambda path: Path(path) == debian)
    assert find.library_folders() == {debian: "system"}
