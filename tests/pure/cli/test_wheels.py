"""cuDNN wheels that the commands install and use: tests with tiny wheels and the real pip, without network."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from cudnn_backend_py import attention, save_graph
from cudnn_backend_py.cli import installations, wheels
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.cli.options import InstalledVersionParameter
from cudnn_backend_py.cli.wheels import install_version_and_make_environment, list_available_versions
from cudnn_backend_py.diagnose.surveys import inputs
from cudnn_backend_py.errors import EnvironmentNotReady, UsageError
from cudnn_backend_py.native.find import find_installed_version
from cudnn_backend_py.native.version_store import StoredLibrary
from cudnn_backend_py.system import child as system_child
from cudnn_backend_py.versions import store as versions
from cudnn_backend_py.versions.judging_environment import read_judging_environment
from tests.support.child import run_python
from tests.support.wheels import FULL_FILES, add_to_version_store, make_wheel, make_wheel_index


@pytest.fixture
def wheel_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_wheel_index(tmp_path / "index", monkeypatch)


@pytest.fixture
def version_store(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_jit_wheel_that_cannot_judge_graphs_is_not_installed(
    wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheel_index, version="9.12.0.46")
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.12.0.46", FULL_FILES)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    requested = CliRunner().invoke(main, ["cudnn", "install", "9.12.0", "--cuda", "12", "--jit", "--quiet"])
    assert requested.exit_code == 2, requested.output
    assert "jit-wheel-incomplete: the JIT wheel of 9.12.0.46 lacks a library" in requested.stderr
    assert "full wheel: cudnn-backend cudnn install 9.12.0 --cuda 12 --full\n" in requested.stderr
    assert versions.list_installed() == []
    taken = CliRunner().invoke(main, ["cudnn", "install", "9.12.0", "--cuda", "12", "--quiet"])
    assert "of no use" not in taken.stderr
    [full] = versions.list_judging_versions()
    assert (full.name, full.can_judge) == ("9.12.0.46+cu12-full", True)
    assert len(versions.list_installed()) == 1
    assert versions.install("9.12", cuda="12", progress=False) == full


def test_large_download_is_explained_and_a_jit_wheel_suggested(
    wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu12", "9.30.0.1", FULL_FILES)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    for module in (installations, wheels):
        monkeypatch.setattr(module, "LARGE_DOWNLOAD_BYTES", 0)
    why = (
        " has no JIT wheel for CUDA 12, only the full one; the newest version with a JIT wheel is 9.19.0 "
        "(cudnn-backend cudnn install 9.19.0 --cuda 12)\n"
    )
    explained = CliRunner().invoke(main, ["explain", "none.py", "--cudnn", "9.30+cu12"])
    assert f"cuDNN 9.30+cu12{why}" in explained.stderr
    assert "are not downloaded without asking at a terminal\n" in explained.stderr
    assert versions.list_installed() == []
    done = CliRunner().invoke(main, ["cudnn", "install", "latest", "--cuda", "12"])
    assert f"the newest cuDNN{why}" in done.stderr
    assert [one.short_version for one in versions.list_installed()] == ["9.30.0"]


def test_error_for_a_missing_version_names_the_nearest_version(
    wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    for command in (["explain", "none.py", "--cudnn", "9.99+cu12"], ["cudnn", "install", "9.99+cu12"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2
        assert done.stderr.splitlines()[0] == "cudnn-version-not-found: there is no cuDNN 9.99 for CUDA 12"
        assert "take one of the nearest: 9.19.0\n" in done.stderr


def test_error_names_the_cuda_major_that_has_the_version(
    wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu13", "9.28.1.2", FULL_FILES)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    for command in (["explain", "none.py", "--cudnn", "9.28.1+cu12"], ["cudnn", "install", "9.28.1", "--cuda", "12"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2
        command_line = "cudnn-backend cudnn install 9.28.1 --cuda 13, or --cudnn 9.28.1+cu13"
        assert f"it exists for CUDA 13: {command_line}" in done.stderr


def test_every_version_spelling_finds_the_wheel_on_sys_path(
    version_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "nvidia/cudnn/lib/libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "nvidia_cudnn_cu12-9.88.0.42.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    monkeypatch.delenv("CUDNN_BACKEND_LIBRARY", raising=False)
    add_to_version_store(version_store)
    for name in ("9.88", "9.88.0", "9.88.0.42", "9.88.0.42+cu12", "latest"):
        assert find_installed_version(name) == str(library)
        assert read_judging_environment(name).library == str(library)
        assert install_version_and_make_environment(name)["CUDNN_BACKEND_LIBRARY"] == str(library)
        assert inputs.find_exact_version_name(name) == ("9.88.0.42+cu12" if ".42" in name else "9.88.0+cu12")
    assert read_judging_environment("9.19").library.startswith(str(version_store))
    for name in ("9.88.1", "9.88.0.43", "9.88+cu13", "9.88-jit"):
        assert find_installed_version(name) is None
        with pytest.raises(EnvironmentNotReady, match="is not installed"):
            read_judging_environment(name)


def test_latest_is_the_newest_version(wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    own = [StoredLibrary((9, 18, 0), True, "12", Path("/libcudnn.so.9"))]
    monkeypatch.setattr(inputs, "list_libraries_outside_version_store", lambda: own)
    monkeypatch.setattr(versions, "find_default_cuda", lambda: "12")
    read = InstalledVersionParameter().convert
    assert read("9.19", None, None) == "9.19"
    assert read("latest", None, None) == "9.18.0+cu12"  # of this environment
    add_to_version_store(version_store)
    add_to_version_store(version_store, "9.20.0.48", "13")
    assert read("latest", None, None) == "9.20.0+cu13"
    assert read("latest+cu12", None, None) == "9.19.0+cu12"
    assert read("latest-jit", None, None) == "9.20.0+cu13-jit"
    with pytest.raises(EnvironmentNotReady, match="pip finds no cuDNN 9 wheel"):
        read("latest-full", None, None)
    with pytest.raises(UsageError, match="malformed"):
        read("latest!", None, None)
    own.clear()
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store / "empty"))
    make_wheel(wheel_index, version="9.20.0.48")
    assert read("latest", None, None) == "9.20.0+cu12"
    own.append(StoredLibrary((9, 28, 0), True, "12", Path("/libcudnn.so.9")))
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    removed = CliRunner().invoke(main, ["cudnn", "remove", "latest", "9.19.0"])
    assert removed.stdout.splitlines()[0] == "removed cuDNN 9.20.0.48+cu13 (jit)"
    assert removed.stdout.splitlines()[1].startswith("removed cuDNN 9.19.0.56")


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "none.json", "--cudnn"],
        ["matrix", "none.json", "--cudnn"],
        ["matrix", "none.json", "--since", "--cudnn"],
        ["audit", "none.json", "--cudnn"],
        ["check", "baseline.toml"],
        ["diff"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_installs_a_missing_version_or_says_why_not(
    wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    monkeypatch.setattr(system_child, "run_command", lambda command, environment: SimpleNamespace(returncode=2))
    graph = version_store.parent / "none.json"
    save_graph(attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64), graph)
    words = [str(graph) if word == "none.json" else word for word in arguments]

    def run_with_missing_version(version: str) -> str:
        rest = [version]
        if words == ["diff"]:
            rest += [version, str(graph), "--target", "h100"]
        elif words[0] == "check":
            rest = [str(graph.with_name("baseline.toml"))]
            Path(*rest).write_text(
                f'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["h100"]\nversions = ["{version}"]\n'
                f'[graphs]\nsdpa = "{graph.name}"\n'
            )
        return (
            CliRunner().invoke(main, [*(argument for argument in words if argument != "baseline.toml"), *rest]).stderr
        )

    nearest = "cudnn-version-not-found: there is no cuDNN 9.99 for CUDA 12\n"
    assert run_with_missing_version("9.99+cu12").startswith(nearest)
    assert "installing cuDNN 9.19+cu12 (<0.1 MB)\n" in run_with_missing_version("9.19+cu12")
    assert [one.short_version for one in versions.list_installed()] == ["9.19.0"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(version_store))
    missing = run_with_missing_version("9.20+cu12").splitlines()
    assert missing[0] == "cudnn-version-not-installed: cuDNN 9.20+cu12 is not installed"
    assert missing[-1] == "  fix:    cudnn-backend cudnn install 9.20 --cuda 12"


def test_available_versions_are_listed_with_their_wheels(
    wheel_index: Path, version_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheel_index, "nvidia-cudnn-cu13", "9.28.0.42", FULL_FILES)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    add_to_version_store(version_store)
    listed = CliRunner().invoke(main, ["cudnn", "list", "--available"])
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["version", "CUDA", "wheels"],
        ["9.19.0.56", "12", "jit", "installed"],
        ["9.28.0.42", "13", "full"],
    ]
    data = json.loads(CliRunner().invoke(main, ["cudnn", "list", "--available", "--format", "json"]).stdout)
    assert data[1] == {"version": "9.28.0.42", "cuda": "13", "flavors": ["full"]}


def test_a_jit_wheel_that_cannot_judge_graphs_is_skipped_with_a_notice(
    version_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    add_to_version_store(version_store)
    add_to_version_store(version_store, "9.12.0.46")
    assert "9.12.0+cu12" not in list_available_versions()
    assert "9.19.0+cu12" in list_available_versions()
    assert "9.12.0+cu12 is skipped, as its JIT wheel cannot judge graphs" in capsys.readouterr().err


def test_sigterm_ends_an_install_after_its_files_are_removed(tmp_path: Path) -> None:
    program = """if True:
        import os, signal
        from cudnn_backend_py.cli.wheels import raise_system_exit_on_sigterm
        with raise_system_exit_on_sigterm():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                print("removed", flush=True)
    """
    done = run_python(["-c", program])
    assert (done.code, done.stdout) == (-signal.SIGTERM, "removed\n")


def test_cudnn_list_and_cache_list_print_folder_sizes(version_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(version_store))
    monkeypatch.setenv("XDG_CACHE_HOME", str(version_store.parent / "user"))
    installed = add_to_version_store(version_store)
    (version_store / "nvrtc-cu12").mkdir()
    (version_store / "nvrtc-cu12/file").write_bytes(bytes(2_000_000))
    (version_store / "digests").mkdir()
    listed = CliRunner().invoke(main, ["cudnn", "list"])
    assert f"used by these versions: {version_store}/nvrtc-cu12, 2.0 MB" in listed.stdout
    cached = CliRunner().invoke(main, ["cache", "list"])
    assert cached.stdout.splitlines()[1:] == [
        f"<0.1 MB in {installed.path}, removed by cudnn-backend cudnn remove 9.19.0.56+cu12-jit",
        f"2.0 MB in {version_store}/nvrtc-cu12, removed by cudnn-backend cache clear --all --versions",
    ]  # and no empty folder
    cleared = CliRunner().invoke(main, ["cache", "clear", "--all", "--versions"])
    assert f"2.0 MB removed: {version_store}/nvrtc-cu12" in cleared.stdout
    assert f"MB removed: {installed.path}" in cleared.stdout
