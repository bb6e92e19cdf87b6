"""The version store: install, list, find, remove and verify, with tiny wheels and the real pip, without network."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cudnn_backend_py.errors import EnvironmentNotReady, UsageError
from cudnn_backend_py.native.find import find_cublaslt_places
from cudnn_backend_py.native.version_store import find_version_folder, format_install_command
from cudnn_backend_py.versions import pip
from cudnn_backend_py.versions import store as versions
from cudnn_backend_py.versions.pip import list_index_versions, read_download_size_from_pip_log
from tests.support.child import run_python
from tests.support.wheels import (
    FULL_FILES,
    GRAPH_LIBRARY_FILE,
    JIT_FILES,
    LIBRARY_FILE,
    NVRTC_FILES,
    add_to_version_store,
    compute_record_hash,
    make_wheel,
    make_wheel_index,
)


@pytest.fixture
def wheel_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder of wheels, make it the only one that pip searches, and return its path."""
    return make_wheel_index(tmp_path / "index", monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def environment_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_find_environment_nvrtc", lambda cuda: None)


def list_store_content(root: Path) -> set[str]:
    """Return the names of the files and folders in the version store, without its lock."""
    return {path.name for path in root.iterdir()} - {".lock"}


def install_nvrtc_without_pip(root: Path) -> Path:
    """Install the NVRTC of CUDA 12 into the version store without pip, and return its path."""
    wheel = make_wheel(root.parent / "placed", "nvidia-cuda-nvrtc-cu12", "12.9.86", NVRTC_FILES)
    folder = root / "nvrtc-cu12"
    versions._unpack_wheel_atomically(wheel, folder, versions._NVRTC_FILE["12"], versions._make_progress_display(False))
    return folder / versions._NVRTC_FILE["12"]


# install, through the real pip


def test_install_extracts_the_wheel_into_a_private_folder(
    wheel_index: Path,
    root: Path,
    environment_without_nvrtc: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    before = os.umask(0)
    try:
        installed = versions.install("9.19.0", cuda="12", root=root, progress=True)
    finally:
        os.umask(before)
    folder = root / "9.19.0.56-cu12"
    assert installed == versions.InstalledCudnn(
        version="9.19.0.56",
        cuda="12",
        flavor="jit",
        path=folder,
        library=folder / LIBRARY_FILE,
        nvrtc=root / "nvrtc-cu12/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        size_bytes=sum(map(len, JIT_FILES.values())),
    )
    assert installed.short_version == "9.19.0"
    for private in (root, folder, root / "nvrtc-cu12"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700

    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    metadata = json.loads(files.pop("installed.json"))
    assert files == JIT_FILES  # outside nvidia/
    wheel = wheel_index / "nvidia_cudnn_jit_cu12-9.19.0.56-py3-none-any.whl"
    assert metadata["wheel"] == wheel.name
    assert metadata["wheel_sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert list_store_content(root) == {"9.19.0.56-cu12", "nvrtc-cu12"}  # no staging

    assert capfd.readouterr() == ("", "")  # no bars in a pipe
    shutil.rmtree(root)
    monkeypatch.setattr(versions, "is_terminal", lambda stream: True)
    versions.install("9.19.0", cuda="12", root=root)
    out, err = capfd.readouterr()
    assert out == ""
    assert "downloading" in err
    assert "extracting" in err


@pytest.mark.parametrize(
    ("requested", "flavor", "exact"),
    [
        ((9, 19, 0), "jit", "9.19.0.56"),  # the newest build; full has it too
        ((9, 19, 0, 9), "jit", "9.19.0.9"),
        ((9, 19), "full", "9.19.10.2"),  # the newest as numbers, not as text; only full has it
    ],
)
def test_install_prefers_the_newest_match_and_the_jit_wheel(
    wheel_index: Path, monkeypatch: pytest.MonkeyPatch, requested: tuple[int, ...], flavor: str, exact: str
) -> None:
    make_wheel(wheel_index, version="9.19.0.9")
    make_wheel(wheel_index, version="9.19.9.1")
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.10.2", FULL_FILES)
    make_wheel(wheel_index, "nvidia-cudnn-jit-cu13", "9.19.11.1")
    monkeypatch.setenv("PIP_QUIET", "1")  # a user's setting that would hide the list
    request = versions.VersionRequest(requested, None, None)
    index = versions._list_available_versions_by_flavor("12", None)
    assert versions._choose_wheel(request, "12", index) == (exact, flavor)


def test_install_uses_the_full_wheel_without_a_jit_wheel(wheel_index: Path, root: Path) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.8.0.87", FULL_FILES)
    installed = versions.install("9.8.0", cuda="12", root=root, progress=False)
    assert (installed.version, installed.flavor) == ("9.8.0.87", "full")
    assert installed.library.read_bytes() == b"the full library"


def test_jit_and_full_wheels_of_one_version_are_installed(wheel_index: Path, root: Path) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    jit = versions.install("9.19.0", cuda="12", root=root, progress=False)
    full = versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="full")
    assert (jit.flavor, jit.path.name) == ("jit", "9.19.0.56-cu12")
    assert (full.flavor, full.path.name) == ("full", "9.19.0.56-cu12-full")
    assert versions.list_installed(root) == [full, jit]
    assert versions.find_installed("9.19.0", root=root) == full  # it has all the engines
    assert versions.find_installed("9.19.0", root=root, flavor="jit") == jit
    assert versions.require_installed("9.19.0", root=root, flavor="jit") == jit
    assert versions.find_newest(root=root) == full
    assert versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="jit") == jit
    assert [one.name for one in versions.check_installed_versions(["9.19.0"], root=root)] == [
        full.path.name,
        jit.path.name,
    ]
    (jit.path / LIBRARY_FILE).write_bytes(b"another")
    [damaged] = [one for one in versions.check_installed_versions(root=root) if one.state == "damaged"]
    assert damaged.repair == "cudnn-backend cudnn install 9.19.0.56 --cuda 12 --jit"
    (full.path / "nvidia/cudnn/lib/libcudnn.so.9").unlink()
    repairs = {one.name: one.repair for one in versions.check_installed_versions(root=root)}
    assert repairs[full.path.name] == "cudnn-backend cudnn install 9.19.0.56 --cuda 12 --full"
    with pytest.raises(UsageError, match="matches 2 installed versions") as caught:
        versions.remove("9.19.0", root=root)
    assert "--jit or --full" in caught.value.sections["fix"]
    assert versions.remove("9.19.0", root=root, flavor="jit").path == jit.path
    assert list_store_content(root) >= {"9.19.0.56-cu12-full"}
    with pytest.raises(EnvironmentNotReady, match="is not installed as the jit wheel; no version was removed"):
        versions.remove("9.19.0", root=root, flavor="jit")


def test_error_names_the_wheel_flavor_that_is_not_installed(wheel_index: Path, root: Path) -> None:
    versions.install("9.19.0", cuda="12", root=root, progress=False)
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.require_installed("9.19.0", root=root, flavor="full")
    assert caught.value.headline == "cuDNN 9.19.0 is not installed as the full wheel"
    assert caught.value.sections["fix"] == "cudnn-backend cudnn install 9.19.0 --full"
    with pytest.raises(EnvironmentNotReady) as absent:
        versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="full")
    assert absent.value.code == "cudnn-index-empty"  # of full wheels


def test_store_folder_names_of_earlier_releases_are_still_read(wheel_index: Path, root: Path) -> None:
    wheel = make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    old = add_to_version_store(root, wheel=wheel)
    assert (old.flavor, old.path.name) == ("full", "9.19.0.56-cu12")
    assert versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="full") == old
    jit = versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="jit")
    assert (jit.flavor, jit.path.name) == ("jit", "9.19.0.56-cu12-jit")
    assert versions.find_installed("9.19.0", root=root) == old
    jit.path.rename(root / "9.19.0.56-cu12-full")  # different from its record
    assert versions.list_installed(root) == [old]


CUBLAS_FILES = {"nvidia/cublas/lib/libcublasLt.so.12": b"cublas"}


@pytest.fixture
def environment_without_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_find_environment_cublas", lambda cuda: None)
    monkeypatch.setattr(versions, "find_cublaslt_places", lambda cuda, library: iter(()))


def test_download_size_is_known_before_the_download(
    wheel_index: Path,
    root: Path,
    environment_without_nvrtc: None,
    environment_without_cublas: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size is that of all wheels to download, without those that are already installed."""
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(root))
    full = make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES).stat().st_size
    cublas = make_wheel(wheel_index, "nvidia-cublas-cu12", "12.9.1.4", CUBLAS_FILES).stat().st_size
    nvrtc = next(wheel_index.glob("nvidia_cuda_nvrtc*")).stat().st_size
    assert versions.find_download_size("9.19.0", "full", cuda="12") == full + cublas + nvrtc
    root.mkdir(mode=0o700)
    installed = versions.install("9.19.0", cuda="12", flavor="full", progress=False)
    assert versions.find_download_size("9.19", "full", cuda="12") == 0
    assert [folder.name for folder in versions.list_folders(installed)[1:]] == ["nvrtc-cu12", "cublas-cu12"]
    shutil.rmtree(root / "cublas-cu12")
    assert versions.find_download_size("9.19", "full", cuda="12") == cublas
    shutil.rmtree(root)
    with pytest.raises(EnvironmentNotReady, match="cudnn-version-not-found"):
        versions.find_download_size("9.20.0", "full", cuda="12")
    assert not root.exists()


def test_install_of_unknown_version_lists_nearest_first(wheel_index: Path, root: Path) -> None:
    for version in ("9.18.0.77", "9.20.0.48", "9.28.0.42", "8.9.7.29"):
        make_wheel(wheel_index, version=version)
    with pytest.raises(EnvironmentNotReady, match=r"there is no cuDNN 9\.19\.3 for CUDA 12\n") as caught:
        versions.install("9.19.3", cuda="12", root=root, progress=False)
    assert caught.value.code == "cudnn-version-not-found"
    assert caught.value.sections["fix"].startswith("take one of the nearest: 9.19.0, 9.20.0, 9.18.0, 9.28.0\n")
    assert list_store_content(root) == set()


def test_a_wheel_that_cannot_judge_is_not_offered_as_the_nearest(wheel_index: Path, root: Path) -> None:
    for version in ("9.12.0.46", "9.14.0.64"):
        make_wheel(wheel_index, version=version)
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.10.0", cuda="12", flavor="jit", root=root, progress=False)
    assert caught.value.sections["fix"].startswith("take one of the nearest: 9.14.0, 9.19.0\n")


def test_install_without_any_wheel_quotes_pip(wheel_index: Path, root: Path) -> None:
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.19.0", cuda="13", root=root, progress=False)
    assert caught.value.code == "cudnn-index-empty"
    assert "No matching distribution found for nvidia-cudnn-jit-cu13" in caught.value.sections["cause"]


def test_pip_ignores_local_modules_and_unrelated_settings(
    wheel_index: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment_without_nvrtc: None
) -> None:
    """The modules are in the working folder and on PYTHONPATH; the settings are in PIP_* variables and in pip.conf."""
    traps = tmp_path / "traps"
    traps.mkdir()
    for name in ("pip", "json", "random", "zipfile"):
        (traps / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    (traps / "pip.conf").write_text("[global]\nno-such-option = 1\nindex-url = http://localhost:1\n")
    monkeypatch.chdir(traps)
    monkeypatch.setenv("PYTHONPATH", f":{traps}")
    for name in ("TARGET", "USER", "PREFIX", "ROOT", "DEST", "REQUIREMENT", "PYTHON", "QUIET", "PLATFORM", "LOG"):
        monkeypatch.setenv(f"PIP_{name}", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "0")
    installed = versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert installed.library.read_bytes() == b"the library"
    assert not (tmp_path / "sprung").exists()


@pytest.fixture
def environment_without_pip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the environment appear without pip, and clear the cached path of another pip."""
    monkeypatch.setattr(pip, "_has_pip", lambda: False)
    pip._make_pip_folder.cache_clear()
    yield
    pip._make_pip_folder.cache_clear()


@pytest.mark.parametrize(("uv", "said"), [(None, "no uv either"), ("/bin/false", "uv did not get one")])
def test_install_without_pip_reports_a_fix(
    root: Path, environment_without_pip: None, monkeypatch: pytest.MonkeyPatch, uv: str | None, said: str
) -> None:
    monkeypatch.setattr(pip, "_find_bundled_pip", lambda: None)
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setattr(pip.shutil, "which", lambda _: uv)
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.19.0", root=root, progress=False)
    assert caught.value.code == "pip-missing"
    assert said in caught.value.sections["cause"]
    assert "ensurepip" in caught.value.sections["fix"]


def test_without_pip_the_bundled_pip_runs_with_the_settings_of_uv(
    wheel_index: Path, environment_without_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", f"{wheel_index},/nonexistent")
    monkeypatch.setattr(pip.tempfile, "mkdtemp", None)  # it is run where it is
    assert pip._find_bundled_pip() is not None
    assert pip.list_index_versions("nvidia-cudnn-jit-cu12") == (["9.19.0.56"], "")


def test_without_bundled_pip_uv_provides_pip(
    wheel_index: Path, tmp_path: Path, environment_without_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uv of this test is a shell script that links this environment's pip."""
    [ours] = importlib.util.find_spec("pip").submodule_search_locations or ()  # type: ignore[union-attr]
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\nln -s {ours} "$2/pip"\n')
    uv.chmod(0o700)
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setattr(pip, "_find_bundled_pip", lambda: None)
    monkeypatch.setattr(pip.tempfile, "tempdir", str(tmp_path))
    kept, left = tmp_path / f"cudnn-backend-pip-{os.getppid()}-a", tmp_path / "cudnn-backend-pip-99999999-b"
    kept.mkdir()
    left.mkdir()  # of a process that was killed
    assert pip.list_index_versions("nvidia-cudnn-jit-cu12") == (["9.19.0.56"], "")
    assert kept.is_dir()
    assert not left.exists()


@pytest.mark.parametrize(("of_pip", "taken"), [(None, "https://one.example/simple"), ("https://mine.example", None)])
def test_pip_settings_override_uv_settings(
    monkeypatch: pytest.MonkeyPatch, of_pip: str | None, taken: str | None
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "one=https://one.example/simple")
    monkeypatch.setenv("UV_INDEX", "two=https://two.example/?a=b https://three.example")
    if of_pip:
        monkeypatch.setenv("PIP_INDEX_URL", of_pip)
    monkeypatch.setattr(pip, "_has_pip", lambda: True)
    assert pip._make_pip_environment().get("PIP_INDEX_URL") == of_pip
    monkeypatch.setattr(pip, "_has_pip", lambda: False)
    found = pip._make_pip_environment()
    assert found["PIP_INDEX_URL"] == (taken or of_pip)
    assert found["PIP_EXTRA_INDEX_URL"] == "https://two.example/?a=b https://three.example"


def test_install_with_wrong_hash_in_index_leaves_no_files(
    wheel_index: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_index / "nvidia_cudnn_jit_cu12-9.19.0.56-py3-none-any.whl"
    page = tmp_path / "page.html"
    page.write_text(f'<!DOCTYPE html><a href="{wheel.as_uri()}#sha256={"0" * 64}">{wheel.name}</a>')
    monkeypatch.setenv("PIP_FIND_LINKS", str(page))
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert caught.value.code == "wheel-download-failed"
    assert "HASHES" in caught.value.sections["cause"]
    assert list_store_content(root) == set()


def test_install_with_wrong_hash_in_record_leaves_no_files(wheel_index: Path, root: Path) -> None:
    make_wheel(wheel_index, recorded={GRAPH_LIBRARY_FILE: compute_record_hash(b"other")})
    with pytest.raises(EnvironmentNotReady, match="damaged or forged") as caught:
        versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert caught.value.code == "wheel-damaged"
    assert GRAPH_LIBRARY_FILE in caught.value.sections["cause"]
    assert list_store_content(root) == set()


def test_install_refuses_to_replace_a_foreign_folder(wheel_index: Path, root: Path) -> None:
    (root / "9.19.0.56-cu12").mkdir(parents=True)
    root.chmod(0o700)
    (root / "9.19.0.56-cu12/mine.txt").write_text("keep")
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert caught.value.code == "cache-folder-foreign"
    assert (root / "9.19.0.56-cu12/mine.txt").read_text() == "keep"


def test_concurrent_installs_give_one_installed_version(wheel_index: Path, root: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(versions.install, "9.19.0", cuda="12", root=root, progress=False) for _ in range(3)]
        first, second, third = (one.result() for one in running)
    assert first == second == third
    assert versions.list_installed(root) == [first]
    assert list_store_content(root) == {first.path.name}


def test_install_of_an_installed_version_does_not_run_pip(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = add_to_version_store(root)
    install_nvrtc_without_pip(root)
    monkeypatch.setitem(sys.modules, "pip", None)
    installed = versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert installed.library == there.library


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / LIBRARY_FILE).write_bytes(b"the Library"),
        lambda folder: (folder / LIBRARY_FILE).write_bytes(b""),
        lambda folder: (folder / LIBRARY_FILE).unlink(),
        lambda folder: (folder / "installed.json").unlink(),
        lambda folder: (folder / "installed.json").write_text("{"),
        lambda folder: shutil.rmtree(folder / "nvidia"),
    ],
    ids=["changed", "empty", "missing", "no record", "damaged record", "record only"],
)
def test_install_replaces_a_damaged_version(
    wheel_index: Path, root: Path, environment_without_nvrtc: None, damage: Callable[[Path], object]
) -> None:
    damage(add_to_version_store(root).path)
    install_nvrtc_without_pip(root).write_bytes(b"NVRTC")
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.make_environment_of_installed_cudnn(versions.require_installed("9.19.0", root=root))
    assert caught.value.code == "installed-files-changed"
    assert caught.value.sections["fix"].startswith("cudnn-backend cudnn install 9.19.0.56 --cuda 12")
    installed = versions.install("9.19.0", cuda="12", root=root, progress=False)
    versions.verify(installed)
    assert installed.library.read_bytes() == b"the library"
    assert list_store_content(root) == {"9.19.0.56-cu12", "nvrtc-cu12"}


def test_a_failed_replacement_leaves_the_damaged_version_and_reports_it(wheel_index: Path, root: Path) -> None:
    installed = add_to_version_store(root)
    installed.library.write_bytes(b"the Library")
    make_wheel(wheel_index, recorded={LIBRARY_FILE: compute_record_hash(b"other")})
    with pytest.raises(EnvironmentNotReady, match="damaged or forged"):
        versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert installed.library.read_bytes() == b"the Library"
    with pytest.raises(EnvironmentNotReady, match="differs from its state"):
        versions.verify(installed)


def test_install_uses_the_nvrtc_of_the_environment(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = tmp_path / "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    nvrtc.parent.mkdir(parents=True)
    nvrtc.write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    add_to_version_store(root)
    installed = versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert installed.nvrtc == nvrtc
    assert not (root / "nvrtc-cu12").exists()


def test_install_adds_a_missing_nvrtc(
    wheel_index: Path, root: Path, environment_without_nvrtc: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert add_to_version_store(root).nvrtc is None
    installed = versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert installed.nvrtc is not None
    assert installed.nvrtc.read_bytes() == b"nvrtc"
    assert capfd.readouterr() == ("", "")


def test_leftovers_of_killed_installs_are_removed(wheel_index: Path, root: Path) -> None:
    add_to_version_store(root)
    (root / ".staging-old/wheel").mkdir(parents=True)
    (root / ".staging-file").write_text("")
    (root / ".staging-link").symlink_to(wheel_index)
    versions.install("9.19.0", cuda="12", root=root, progress=False)
    assert list_store_content(root) == {"9.19.0.56-cu12"}
    assert list(wheel_index.iterdir())


def test_an_install_waits_for_a_concurrent_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_version_store(root)
    monkeypatch.setattr(versions, "_INSTALL_WAIT_S", 0.05)
    with versions._lock_store(root):
        (root / ".staging-mine").mkdir()
        with pytest.raises(EnvironmentNotReady, match="another process holds") as caught:
            versions.install("9.19.0", cuda="12", root=root, progress=False)
        assert caught.value.code == "cache-folder-unusable"
        assert (root / ".staging-mine").is_dir()


@pytest.mark.parametrize(
    "version", ["", "9", "9.19.0.56.1", "9.19.x", "9.19.0rc1", "9.19.", "../9.19", "9.19\n", "9." + "1" * 5000]
)
def test_malformed_version_is_refused(root: Path, version: str) -> None:
    with pytest.raises(UsageError) as caught:
        versions.install(version, root=root, progress=False)
    assert caught.value.code == "cudnn-version-malformed"
    assert not root.exists()


def test_unknown_cuda_major_is_refused(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        versions.install("9.19.0", cuda="11", root=root, progress=False)  # type: ignore[arg-type]
    assert caught.value.code == "cuda-major-unknown"


# Wheels that must not be installed


def make_truncated_wheel(folder: Path) -> Path:
    wheel = make_wheel(folder)
    wheel.write_bytes(wheel.read_bytes()[:-200])
    return wheel


def make_wheel_with_flipped_byte(folder: Path) -> Path:
    wheel = make_wheel(folder)
    wheel.write_bytes(wheel.read_bytes().replace(b"the graph", b"The graph", 1))
    return wheel


def make_wheel_with_symlink(folder: Path) -> Path:
    wheel = make_wheel(folder)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("nvidia/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc")
    return wheel


def make_wheel_without_record(folder: Path) -> Path:
    wheel = folder / "nvidia_cudnn_jit_cu12-9.19.0.56-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(LIBRARY_FILE, b"the library")
    return wheel


def make_wheel_with_duplicate_file(folder: Path) -> Path:
    wheel = make_wheel(folder)
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(LIBRARY_FILE, b"another library")
    return wheel


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (make_truncated_wheel, "BadZipFile"),
        (make_wheel_with_flipped_byte, "BadZipFile: Bad CRC-32"),
        (make_wheel_with_symlink, "symbolic link"),
        (make_wheel_without_record, "one RECORD file, got 0"),
        (make_wheel_with_duplicate_file, "two files of the same name"),
        (lambda folder: make_wheel(folder, recorded={LIBRARY_FILE: None}), f"no SHA-256 for {LIBRARY_FILE}"),
        (lambda folder: make_wheel(folder, recorded={LIBRARY_FILE: "md5=x"}), f"no SHA-256 for {LIBRARY_FILE}"),
        (
            lambda folder: make_wheel(folder, recorded={LIBRARY_FILE: compute_record_hash(b"")}),
            f"SHA-256 of {LIBRARY_FILE}",
        ),
        (lambda folder: make_wheel(folder, recorded={"nvidia/gone": "sha256=x"}), "missing: nvidia/gone"),
        (lambda folder: make_wheel(folder, files={"other/file": b""}), "no nvidia/ tree"),
        (lambda folder: make_wheel(folder, files={GRAPH_LIBRARY_FILE: b""}), "no nvidia/*/lib/libcudnn.so.9"),
        (lambda folder: make_wheel(folder, files=JIT_FILES | {"nvidia/../../evil": b""}), "leads out"),
        (lambda folder: make_wheel(folder, files=JIT_FILES | {"../evil": b""}), "leads out"),
        (lambda folder: make_wheel(folder, files=JIT_FILES | {"/tmp/evil": b""}), "leads out"),
        (lambda folder: make_wheel(folder, files=JIT_FILES | {"nvidia/..\\evil": b""}), "leads out"),
    ],
)
def test_damaged_wheel_is_refused_and_leaves_no_files(tmp_path: Path, make, cause: str) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = make(wheels)
    with pytest.raises(EnvironmentNotReady) as caught:
        add_to_version_store(tmp_path / "cache", wheel=wheel)
    assert caught.value.code == "wheel-damaged"
    assert cause in caught.value.sections["cause"]
    assert list_store_content(tmp_path / "cache") == set()
    assert {path.name for path in tmp_path.rglob("evil")} == set()


# The folder


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_version_store_writable_by_other_users_is_refused(root: Path, mode: int) -> None:
    add_to_version_store(root)
    root.chmod(mode)
    for action in (
        lambda: versions.install("9.19.0", root=root, progress=False),
        lambda: versions.list_installed(root),
        lambda: versions.find_installed("9.19.0", root=root),
        lambda: versions.find_newest(root=root),
        lambda: versions.remove("9.19.0", root=root),
    ):
        with pytest.raises(EnvironmentNotReady, match=f"has mode {mode:04o}, needed is 0700") as caught:
            action()
        assert caught.value.code == "cache-not-private"


def test_a_version_store_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_version_store(root)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(EnvironmentNotReady, match=f"belongs to user id {me}, needed is {me + 1}") as caught:
        versions.install("9.19.0", root=root, progress=False)
    assert caught.value.code == "cache-not-private"


def test_environment_variables_set_the_default_version_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDNN_BACKEND_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert versions.get_default_root().parts[-2:] == ("cudnn-backend-py", "cudnn")
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(tmp_path / "cache"))
    assert versions.get_default_root() == tmp_path / "cache"
    installed = add_to_version_store(tmp_path / "cache")
    assert versions.list_installed() == [installed]


def test_a_relative_version_store_gives_absolute_paths(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_version_store(root)
    monkeypatch.chdir(root.parent)
    [installed] = versions.list_installed(Path(root.name))
    assert installed.library.is_absolute()


def test_default_cuda_follows_the_nvrtc_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert versions.find_default_cuda() == "12"
    for cuda, name, expected in (
        ("13", "nvidia/cu13/lib/libnvrtc.so.13", "13"),
        ("12", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "12"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
        assert versions.find_default_cuda() == expected, cuda


# list, find, newest, remove, verify


def test_installed_versions_are_sorted_by_number_without_foreign_folders(root: Path) -> None:
    for version in ("9.19.0.56", "9.8.0.87", "9.19.0.9"):
        add_to_version_store(root, version)
    add_to_version_store(root, "9.8.0.87", "13")
    (root / "9.1.0.70-cu12").mkdir()
    (root / "9.2.0.82-cu12").mkdir()
    (root / "9.2.0.82-cu12/installed.json").write_text('{"files": []}')
    (root / "9.3.0.75-cu12").mkdir()
    (root / "9.3.0.75-cu12/installed.json").write_text("{")
    (root / "9.19.0.56-cu12").rename(root / "9.19.0.57-cu12")  # different from its metadata
    (root / "notes.txt").write_text("")
    found = [(one.version, one.cuda) for one in versions.list_installed(root)]
    assert found == [("9.8.0.87", "12"), ("9.8.0.87", "13"), ("9.19.0.9", "12")]


def test_a_missing_version_store_lists_no_versions_and_is_not_created(root: Path) -> None:
    assert versions.list_installed(root) == []
    assert versions.find_newest(root=root) is None
    assert versions.find_installed("9.19", root=root) is None
    assert not root.exists()


def test_find_installed_returns_the_newest_match(root: Path) -> None:
    old, new = add_to_version_store(root, "9.19.0.56"), add_to_version_store(root, "9.19.1.2")
    other = add_to_version_store(root, "9.20.0.48", "13")
    assert versions.find_installed("9.19", root=root) == new
    assert versions.find_installed("9.19.0", root=root) == old
    assert versions.find_installed("9.1", root=root) is None
    assert versions.find_installed("9.20", root=root) == other
    assert versions.find_installed("9.20", cuda="12", root=root) is None
    assert versions.find_newest(root=root) == other
    assert versions.find_newest(cuda="12", root=root) == new


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_find_installed_prefers_the_default_cuda_major(root: Path, monkeypatch: pytest.MonkeyPatch, cuda: str) -> None:
    both = {name: add_to_version_store(root, cuda=name) for name in ("12", "13")}
    monkeypatch.setattr(versions, "find_default_cuda", lambda: cuda)
    assert versions.find_installed("9.19.0", root=root) == both[cuda]


def test_remove_deletes_only_the_named_version(root: Path) -> None:
    old, new = add_to_version_store(root, "9.19.0.56"), add_to_version_store(root, "9.19.1.2")
    with pytest.raises(UsageError, match="matches 2 installed versions") as caught:
        versions.remove("9.19", root=root)
    assert caught.value.code == "cudnn-version-ambiguous"
    assert versions.remove("9.19.0", root=root) == old
    assert sorted(list_store_content(root)) == [new.path.name]
    with pytest.raises(EnvironmentNotReady) as absent:
        versions.remove("9.19.0", root=root)
    assert absent.value.code == "cudnn-version-not-installed"
    assert absent.value.sections["cause"] == f"installed are: {new.name}"
    with pytest.raises(EnvironmentNotReady) as missing:
        versions.require_installed("9.20.0", root=root)
    assert missing.value.sections["where"] == "installed are: 9.19.1+cu12"


def test_remove_of_the_last_version_removes_its_nvrtc(root: Path, environment_without_nvrtc: None) -> None:
    add_to_version_store(root, "9.19.0.56")
    add_to_version_store(root, "9.20.0.48")
    add_to_version_store(root, "9.20.0.48", "13")
    nvrtc = install_nvrtc_without_pip(root)
    versions.remove("9.19.0", root=root)
    assert nvrtc.is_file()
    versions.remove("9.20.0", cuda="12", root=root)
    assert sorted(list_store_content(root)) == ["9.20.0.48-cu13"]


def test_verify_accepts_an_installed_version(root: Path) -> None:
    versions.verify(add_to_version_store(root))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda path: (path / LIBRARY_FILE).write_bytes(b"the Library"), f"changed: {LIBRARY_FILE}"),
        (lambda path: (path / LIBRARY_FILE).unlink(), f"missing: {LIBRARY_FILE}"),
        (lambda path: (path / "nvidia/extra.so").write_bytes(b""), "added: nvidia/extra.so"),
        (lambda path: (path / "nvidia/extra").symlink_to("/"), "added: nvidia/extra"),
        (lambda path: (path / "installed.json").unlink(), "installed.json is unreadable"),
        (lambda path: (path / "installed.json").write_text("[]"), "installed.json is unreadable"),
    ],
)
def test_verify_reports_how_an_installed_version_was_changed(root: Path, change, difference: str) -> None:
    installed = add_to_version_store(root)
    change(installed.path)
    with pytest.raises(EnvironmentNotReady, match="differs from its state after the installation in 1 file") as caught:
        versions.verify(installed)
    assert caught.value.code == "installed-files-changed"
    assert difference in caught.value.sections["cause"]


def test_verify_refuses_a_file_replaced_by_a_link(root: Path, tmp_path: Path) -> None:
    installed = add_to_version_store(root)
    installed.library.rename(tmp_path / "elsewhere")
    installed.library.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.verify(installed)
    assert f"not a plain file: {LIBRARY_FILE}" in caught.value.sections["cause"]


def test_verify_checks_the_cached_nvrtc(root: Path, environment_without_nvrtc: None) -> None:
    add_to_version_store(root)
    nvrtc = install_nvrtc_without_pip(root)
    installed = versions.find_newest(root=root)
    assert installed is not None
    versions.verify(installed)
    nvrtc.write_bytes(b"NVRTC")
    with pytest.raises(EnvironmentNotReady, match="nvrtc-cu12 differs from its state after the installation"):
        versions.verify(installed)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda path: path.write_bytes(b""), f"changed: {LIBRARY_FILE} has 0 bytes, 11 were installed"),
        (lambda path: path.write_bytes(b"the Library"), f"changed: {LIBRARY_FILE} has SHA-256 "),
        (lambda path: path.unlink(), f"missing: {LIBRARY_FILE}"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), f"not a plain file: {LIBRARY_FILE}"),
    ],
)
def test_damaged_library_files_are_reported_at_the_next_use(
    root: Path, change: Callable[[Path], object], difference: str
) -> None:
    installed = add_to_version_store(root)
    change(installed.library)
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.make_environment_of_installed_cudnn(installed)
    assert caught.value.code == "installed-files-changed"
    assert caught.value.sections["cause"].startswith(difference)
    assert caught.value.sections["fix"] == "cudnn-backend cudnn install 9.19.0.56 --cuda 12, which reinstalls it"
    assert versions.list_installed(root) == [installed]


def test_a_copied_store_with_other_file_times_is_accepted(root: Path) -> None:
    for path in add_to_version_store(root).path.rglob("*"):
        os.utime(path, (1, 1))
    versions.make_environment_of_installed_cudnn(versions.require_installed("9.19.0", root=root))


def test_an_incomplete_version_is_reported(root: Path) -> None:
    (add_to_version_store(root).path / "installed.json").unlink()
    with pytest.raises(EnvironmentNotReady, match="differs from its state after the installation") as caught:
        versions.require_installed("9.19.0", root=root)
    assert caught.value.code == "installed-files-changed"
    assert versions.list_installed(root) == []


ODD = ["[", "[" * 100_000, "null", '{"files": {"../x": {}}}', "1" * 5000, '{"files": {"a": {"size_bytes": 1e999}}}']


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:20])
def test_versions_with_invalid_records_are_not_listed(root: Path, text: str) -> None:
    (add_to_version_store(root).path / "installed.json").write_text(text)
    assert versions.list_installed(root) == []


def test_a_named_pipe_as_record_does_not_block(root: Path) -> None:
    record = add_to_version_store(root).path / "installed.json"
    record.unlink()
    os.mkfifo(record)
    assert versions.list_installed(root) == []


def test_a_version_store_that_is_a_file_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.write_text("")
    for use in (versions.list_installed, lambda root: versions.install("9.19.0", root=root, progress=False)):
        with pytest.raises(EnvironmentNotReady, match="Not a directory") as caught:
            use(root)
        assert caught.value.code == "cache-folder-unusable"
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", "~nosuchuser/cudnn")
    with pytest.raises(UsageError) as unknown:
        versions.list_installed()
    assert unknown.value.code == "cache-folder-name"


# verify, the command


def run_verify_command(root: Path, *arguments: str) -> tuple[int, str]:
    done = run_python(
        ["-m", "cudnn_backend_py", "cudnn", "verify", *arguments],
        environment={**os.environ, "CUDNN_BACKEND_CACHE": str(root)},
    )
    assert done.stderr == ""
    return done.code, done.stdout


def test_verify_command_reports_the_state_of_each_version(root: Path) -> None:
    add_to_version_store(root)
    assert run_verify_command(root, "9.19") == (0, f"whole:     9.19.0.56-cu12 {root}/9.19.0.56-cu12\n")
    damaged = add_to_version_store(root, "9.14.0.64")
    damaged.library.write_bytes(b"the Library")
    code, said = run_verify_command(root, "9.19", "9.14", "--format", "json")
    assert code == 1
    states = {one["name"]: one for one in json.loads(said)}
    assert states["9.19.0.56-cu12"]["state"] == "whole"
    assert states["9.14.0.64-cu12"]["state"] == "damaged"
    [difference] = states["9.14.0.64-cu12"]["differences"]
    found, installed = (hashlib.sha256(text).hexdigest() for text in (b"the Library", b"the library"))
    assert difference == f"changed: {LIBRARY_FILE} has SHA-256 {found}, {installed} was installed"
    assert states["9.14.0.64-cu12"]["repair"] == "cudnn-backend cudnn install 9.14.0.64 --cuda 12"
    assert run_verify_command(root, "9.1")[0] == 2


def test_verify_checks_the_wheel_installed_by_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is installed in site-packages with a RECORD, as by pip."""
    wheel = make_wheel(tmp_path, "nvidia-cudnn-cu12", "9.28.0.42", FULL_FILES)
    site = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    record = site / "nvidia_cudnn_cu12-9.28.0.42.dist-info/RECORD"
    name = "nvidia/cudnn/lib/libcudnn.so.9"
    size = len(FULL_FILES[name])
    record.write_text(
        "".join(f"{line}{size}\n" for line in record.read_text().splitlines() if line.startswith("nvidia/"))
    )
    monkeypatch.setattr(sys, "path", [str(site)])
    [whole] = versions.check_installed_versions(environment=True, root=tmp_path / "none")
    assert (whole.state, whole.path) == ("whole", str(site / name))
    (site / name).write_bytes(b"the Full library")
    [damaged] = versions.check_installed_versions(environment=True, root=tmp_path / "none")
    assert damaged.state == "damaged"
    assert damaged.differences[0].startswith(f"changed: {name} has SHA-256")
    assert damaged.repair == "pip install --force-reinstall --no-deps nvidia-cudnn-cu12==9.28.0.42"
    shutil.rmtree(record.parent)
    [unknown] = versions.check_installed_versions(environment=True, root=tmp_path / "none")
    assert unknown.state == "unchecked"


# The environment of a child


def test_child_environment_has_the_paths_of_cudnn_and_nvrtc(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_NVRTC", "stale")
    monkeypatch.setattr(versions, "_find_environment_nvrtc", lambda cuda: Path("/n/libnvrtc.so.12"))
    installed = add_to_version_store(root)
    child = versions.make_environment_of_installed_cudnn(installed)
    expected = {"CUDNN_BACKEND_LIBRARY": str(installed.library), "CUDNN_BACKEND_NVRTC": "/n/libnvrtc.so.12"}
    assert child == {**os.environ, **expected}
    assert os.environ["CUDNN_BACKEND_NVRTC"] == "stale"


def test_child_environment_without_nvrtc_removes_a_stale_path(
    root: Path, monkeypatch: pytest.MonkeyPatch, environment_without_nvrtc: None
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_NVRTC", "stale")
    assert "CUDNN_BACKEND_NVRTC" not in versions.make_environment_of_installed_cudnn(add_to_version_store(root))


@pytest.mark.parametrize(
    ("log", "size_bytes"),
    [
        ("  Downloading a-1-py3-none-any.whl (18.5 MB)\n", 18_500_000),
        ("  Downloading a-1-py3-none-any.whl (340 kB)\n", 340_000),
        ("  Downloading a-1-py3-none-any.whl.metadata (1.9 kB)\n", None),
        ("Processing a-1-py3-none-any.whl\n", None),
    ],
)
def test_download_size_is_read_from_pips_output(log: str, size_bytes: int | None) -> None:
    assert read_download_size_from_pip_log(log) == size_bytes


def test_installing_a_full_wheel_also_installs_cublaslt(
    wheel_index: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    make_wheel(wheel_index, "nvidia-cublas-cu12", "12.9.1.4", {"nvidia/cublas/lib/libcublasLt.so.12": b"cublas"})
    monkeypatch.setattr(versions, "_find_environment_cublas", lambda cuda: None)
    full = versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="full")
    assert (root / "cublas-cu12/nvidia/cublas/lib/libcublasLt.so.12").read_bytes() == b"cublas"
    place = next(place for place in find_cublaslt_places(12, str(full.library)) if "cublas-cu12" in (place.path or ""))
    assert place.how == "beside libcudnn"
    (root / "cublas-cu12/nvidia/cublas/lib/libcublasLt.so.12").write_bytes(b"other!")
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.verify(full)
    assert caught.value.code == "installed-files-changed"
    versions.remove("9.19.0", root=root)
    assert not (root / "cublas-cu12").exists()


def test_a_version_is_not_stored_if_a_required_wheel_is_missing(
    wheel_index: Path, root: Path, environment_without_cublas: None
) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    with pytest.raises(EnvironmentNotReady, match="pip could not download nvidia-cublas-cu12"):
        versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="full")
    assert list_store_content(root) == set()


def test_verify_names_a_missing_cublas_and_the_command_that_adds_it(
    wheel_index: Path, root: Path, environment_without_cublas: None
) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    make_wheel(wheel_index, "nvidia-cublas-cu12", "12.9.1.4", CUBLAS_FILES)
    full = versions.install("9.19.0", cuda="12", root=root, progress=False, flavor="full")
    shutil.rmtree(root / "cublas-cu12")
    [report] = versions.check_installed_versions(["9.19.0"], root=root)
    assert report.state == "damaged"
    assert report.differences == ("missing: libcublasLt.so.12 of nvidia-cublas-cu12, which a full wheel needs",)
    assert report.repair == "cudnn-backend cudnn install 9.19.0.56 --cuda 12 --full"
    assert format_install_command(find_version_folder(full.library) or root) == report.repair
    with pytest.raises(EnvironmentNotReady, match="cublas-cu12 differs"):
        versions.verify(full)


def test_clear_removes_all_versions_and_the_shared_nvrtc(root: Path, environment_without_nvrtc: None) -> None:
    folders = [add_to_version_store(root).path, add_to_version_store(root, "9.20.0.48", "13").path]
    (folders[0] / "installed.json").unlink()  # the rest of an installation
    folders.append(install_nvrtc_without_pip(root).parents[3])
    (root / "notes.txt").write_text("")
    removed = dict(versions.clear(root))
    assert list(removed) == folders
    assert all(removed.values())
    assert list_store_content(root) == {"notes.txt"}


def test_latest_installs_the_newest_version(wheel_index: Path, root: Path) -> None:
    installed = versions.install("latest", cuda="12", root=root, progress=False)
    newest, _ = list_index_versions("nvidia-cudnn-jit-cu12")
    assert installed.version == max(newest, key=versions.parse_version_numbers)


def test_available_versions_name_cuda_major_and_wheels(wheel_index: Path) -> None:
    make_wheel(wheel_index, version="9.12.0.46")  # cannot judge
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.19.0.56", FULL_FILES)
    make_wheel(wheel_index, "nvidia-cudnn-cu13", "9.8.0.87", FULL_FILES)
    assert [(one.version, one.cuda, one.flavors) for one in versions.list_available()] == [
        ("9.8.0.87", "13", ("full",)),
        ("9.19.0.56", "12", ("jit", "full")),
    ]
    assert [one.version for one in versions.list_available(cuda="13")] == ["9.8.0.87"]
    shutil.rmtree(wheel_index)
    wheel_index.mkdir()
    with pytest.raises(EnvironmentNotReady, match="cudnn-index-empty"):
        versions.list_available()


def test_an_older_jit_wheel_is_suggested_if_only_a_full_wheel_exists(wheel_index: Path) -> None:
    make_wheel(wheel_index, version="9.18.0.77")
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.28.0.42", FULL_FILES)
    assert versions.find_newest_version_with_jit_wheel("latest", cuda="12") == "9.19.0"
    assert versions.find_newest_version_with_jit_wheel("9.28", cuda="12") == "9.19.0"
    assert versions.find_newest_version_with_jit_wheel("9.28", "full", cuda="12") is None  # as requested
    assert versions.find_newest_version_with_jit_wheel("9.19", cuda="12") is None  # it is small
