"""The search for libcudnn and its order, with empty files; loads no library."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.native import find
from cudnn_backend_py.native.version_store import VersionRequest, list_stored_libraries


def make_conda_environment(folder: Path) -> Path:
    """Create a conda environment with an empty libcudnn, and return the library's path."""
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "lib").mkdir()
    library = folder / "lib" / find.CUDNN_SONAME
    library.touch()
    return library


@pytest.fixture
def no_cudnn_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every installed cuDNN: no sys.path, no variables, an empty version store."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(tmp_path / "store"))
    monkeypatch.setattr(find, "list_mapped_files", list)
    for name in ("LD_LIBRARY_PATH", "CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(find.LIBRARY_VARIABLE, raising=False)


def find_first_search_result_with_cudnn() -> find.LibrarySearchResult:
    return next(place for place in find.find_cudnn_places() if place.path is not None)


def test_the_conda_environment_of_this_python_comes_before_the_activated_one(
    no_cudnn_anywhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = make_conda_environment(tmp_path / "own"), make_conda_environment(tmp_path / "other")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "other"))
    assert find_first_search_result_with_cudnn() == find.LibrarySearchResult(
        "environment variable CONDA_PREFIX", str(other), str(other)
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    assert find_first_search_result_with_cudnn() == find.LibrarySearchResult(
        "conda environment of this Python", str(own), str(own)
    )
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "own"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{other.parent}")
    assert find_first_search_result_with_cudnn() == find.LibrarySearchResult(
        "environment variable LD_LIBRARY_PATH", str(other), str(other)
    )


def test_a_python_prefix_without_conda_is_not_searched(
    no_cudnn_anywhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_conda_environment(tmp_path)
    (tmp_path / "conda-meta").rmdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert str(tmp_path / "lib") not in " ".join(map(str, find.find_cudnn_places()))


def test_debians_library_folder_is_searched_as_system_folder(
    no_cudnn_anywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian = Path(f"/usr/lib/{platform.machine()}-linux-gnu")
    monkeypatch.setattr(find.os.path, "isdir", lambda path: Path(path) == debian)
    assert find.list_library_folders() == {debian: "system"}


def add_library_to_version_store(tmp_path: Path, folder: str, wheel: str = "cudnn_jit") -> Path:
    """Put an empty libcudnn into the version store, and return its path."""
    library = tmp_path / "store" / folder / "nvidia" / wheel / "lib" / find.CUDNN_SONAME
    library.parent.mkdir(parents=True)
    library.touch()
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        path.chmod(0o700)
    return library


def install_wheel(site: Path, version: str) -> Path:
    """Create the files of an installed nvidia-cudnn-cu12 wheel, and return the path of its libcudnn."""
    library = site / "nvidia/cudnn/lib" / find.CUDNN_SONAME
    library.parent.mkdir(parents=True)
    library.touch()
    (site / f"nvidia_cudnn_cu12-{version}.dist-info").mkdir()
    return library


def test_newest_cudnn_of_store_and_wheels_is_found_first(
    no_cudnn_anywhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_library_to_version_store(tmp_path, "9.19.0.56-cu12")
    newest = add_library_to_version_store(tmp_path, "9.27.0.95-cu12")
    make_conda_environment(tmp_path / "conda")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    assert find_first_search_result_with_cudnn() == find.LibrarySearchResult("version store", str(newest), str(newest))
    wheel = install_wheel(tmp_path / "site", "9.26.0.1")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert find_first_search_result_with_cudnn().path == str(newest)
    (tmp_path / "site/nvidia_cudnn_cu12-9.26.0.1.dist-info").rename(
        tmp_path / "site/nvidia_cudnn_cu12-9.28.0.42.dist-info"
    )
    assert find_first_search_result_with_cudnn().path == str(wheel)
    (tmp_path / "site/nvidia_cudnn_cu12-9.28.0.42.dist-info").rmdir()
    assert find_first_search_result_with_cudnn().path == str(wheel), "a wheel of unknown version stays first"
    monkeypatch.setattr(find, "list_mapped_files", lambda: ["/loaded/libcudnn.so.9"])
    assert find_first_search_result_with_cudnn().path == "/loaded/libcudnn.so.9"


def test_unusable_jit_wheels_of_9_12_are_skipped(no_cudnn_anywhere: None, tmp_path: Path) -> None:
    add_library_to_version_store(tmp_path, "9.12.0.46-cu12")
    assert list_stored_libraries() == []
    full = add_library_to_version_store(tmp_path, "9.11.0.98-cu12-full", "cudnn")
    assert [one.path for one in list_stored_libraries()] == [full]


def test_libraries_of_a_world_writable_store_are_not_found(no_cudnn_anywhere: None, tmp_path: Path) -> None:
    library = add_library_to_version_store(tmp_path, "9.27.0.95-cu12")
    assert find_first_search_result_with_cudnn().path == str(library)
    (tmp_path / "store").chmod(0o777)
    assert list_stored_libraries() == []


def test_store_prefers_a_cuda_major_with_nvrtc(no_cudnn_anywhere: None, tmp_path: Path) -> None:
    older, newer = (
        add_library_to_version_store(tmp_path, "9.26.0.1-cu13"),
        add_library_to_version_store(tmp_path, "9.27.0.95-cu12"),
    )
    assert find_first_search_result_with_cudnn().path == str(newer)
    nvrtc = tmp_path / "store/nvrtc-cu13/nvidia/cu13/lib/libnvrtc.so.13"
    nvrtc.parent.mkdir(parents=True)
    nvrtc.touch()
    assert find_first_search_result_with_cudnn().path == str(older)
    found = next(place for place in find.find_nvrtc_places(13, str(older)) if place.path is not None)
    assert found.path == str(nvrtc)


def test_stored_cudnn_is_found_by_version_cuda_and_flavor(
    no_cudnn_anywhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit, other = (
        add_library_to_version_store(tmp_path, "9.27.0.95-cu12"),
        add_library_to_version_store(tmp_path, "9.27.0.95-cu13"),
    )
    full = add_library_to_version_store(tmp_path, "9.27.0.95-cu12-full", "cudnn")
    wheel = install_wheel(tmp_path / "site", "9.28.0.42")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    names = {
        "9.27+cu13": other,
        "9.27.0-jit+cu12": jit,
        "9.27.0+cu12-jit": jit,
        "9.27.0.95-full": full,
        "9.28": wheel,
        "9.28.0+cu12": wheel,
    }
    assert {name: find.find_installed_version(name) for name in names} == {
        name: str(path) for name, path in names.items()
    }
    assert find.find_installed_version("9.28.0+cu13") is None
    assert find.find_installed_version("9.19") is None


def test_cudnn_backend_library_may_name_a_version_store_folder(
    no_cudnn_anywhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = add_library_to_version_store(tmp_path, "9.27.0.95-cu12")
    for folder in (library.parents[3], library.parent, library):
        monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", str(folder))
        assert find_first_search_result_with_cudnn().path == str(library)
    monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", str(tmp_path))
    [place] = find.find_cudnn_places()
    assert place.found == f"{tmp_path} has no libcudnn.so.9"


@pytest.mark.parametrize("name", ["9", "9.27-small", "9.27+cu11", "v9.27", "9.27-jit-full", 9.27])
def test_malformed_versions_are_refused(no_cudnn_anywhere: None, name: object) -> None:
    with pytest.raises(UsageError) as caught:
        VersionRequest.parse(name)  # type: ignore[arg-type]
    assert caught.value.code == "cudnn-version-malformed"


def test_cuda_option_must_agree_with_the_version_name(no_cudnn_anywhere: None) -> None:
    assert VersionRequest.parse("9.27+cu13", "13").cuda == "13"
    with pytest.raises(UsageError, match="require CUDA 12 and CUDA 13 at once"):
        VersionRequest.parse("9.27+cu13", "12")
