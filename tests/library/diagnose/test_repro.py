"""Reproduction archives: written, unpacked, and both programs run with the verdict's result."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cudnn_backend_py import Graph, UsageError, attention, find_profile, library, load_graph
from cudnn_backend_py.diagnose import Verdict
from cudnn_backend_py.diagnose.report import archive as repro
from cudnn_backend_py.diagnose.report.archive import make_archive_name, write_repro
from cudnn_backend_py.system.version import format_cuda_version_number
from cudnn_backend_py.versions.store import find_installed
from examples import forum_two_matmul
from tests.support.child import ROOT, run_python
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.varied_graphs import VARIED_GRAPHS

ARCHIVE_MEMBERS = {
    "Makefile",
    "README.txt",
    "cudnn.log",
    "driver_stub.c",
    "graph.json",
    "reproduce.cpp",
    "reproduce.py",
    "shim/cuda_runtime_api.h",
    "shim/library_types.h",
    "target.json",
    "verdict.json",
    "verdict.txt",
    "versions.json",
}
OLDER_VERSION = "9.19.0"


def make_two_matmul_graph() -> Graph:
    return forum_two_matmul.graph()


def make_backward_graph() -> Graph:
    return attention.sdpa_backward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)


def unpack_archive(archive: Path) -> Path:
    """Unpack an archive into the folder that contains it, and return the unpacked folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(archive.parent, filter="data")
    (folder,) = (path for path in archive.parent.iterdir() if path.is_dir())
    return folder


def compile_cpp_program(folder: Path, version: str | None, *settings: str) -> Path:
    """Compile the C++ program with its Makefile for a cuDNN version, and return the folder of that cuDNN."""
    installed = None if version is None else find_installed(version)
    cudnn = Path(library().path if installed is None else installed.library).parents[1]
    command = ["make", f"CUDNN={cudnn}", "CXXFLAGS=-O0 -Wall -Wextra -Werror", *settings, "reproduce"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return cudnn


def run_cpp_program(folder: Path, cudnn: Path, *flags: str, stub: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the compiled program as described in README.txt, with the archive's driver stub if there is no driver."""
    folders = [cudnn / "lib"]
    folders += [Path(place.path).parent for place in (library().nvrtc, library().cublaslt) if place.path]
    if stub and library().driver.kind != "real":
        subprocess.run(["make", "stub/libcuda.so.1"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        folders.append(folder / "stub")
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    return subprocess.run(
        ["./reproduce", *flags], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


ARCHIVE_CASES: dict[str, tuple[Callable[[], Graph], str, str | None, bool, int]] = {
    "forum on sm89": (make_two_matmul_graph, "sm89", OLDER_VERSION, True, 1),
    "forum on sm90": (make_two_matmul_graph, "sm90", OLDER_VERSION, True, 0),
    "flash forward": (VARIED_GRAPHS["flash f16 causal"], "sm80", None, False, 0),
    "flash backward": (make_backward_graph, "sm90", None, False, 0),
    "convolution": (VARIED_GRAPHS["conv forward relu f16"], "sm90", None, False, 0),
    "norm": (VARIED_GRAPHS["layer norm training"], "sm80", None, False, 0),
    "engines absent": (GRAPHS_OF_FULL_CUDNN["dgrad nchw f32"], "sm80", OLDER_VERSION, False, 2),
}


@pytest.mark.parametrize("case", ARCHIVE_CASES)
def test_python_and_cpp_programs_exit_with_the_verdicts_code(case: str, tmp_path: Path) -> None:
    make, target, version, build, code = ARCHIVE_CASES[case]
    archive = write_repro(make(), target, tmp_path / "case.tar.gz", build=build, version=version)
    folder = unpack_archive(archive)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == ARCHIVE_MEMBERS
    verdict = Verdict.from_dict(json.loads((folder / "verdict.json").read_text()))
    assert (verdict.exit_code, verdict.target) == (code, find_profile(target).name)
    assert (verdict.stage == "plan") == (build and code == 0)
    assert load_graph(folder / "graph.json") == make()
    assert f"'reproduce.py --in-process' ended with exit code {code}." in (folder / "README.txt").read_text()

    in_python = run_python(
        [str(folder / "reproduce.py"), *(["--cudnn", version] if version else ["--in-process"])], cwd=folder
    )
    assert (in_python.code, in_python.stderr) == (code, "")
    assert in_python.stdout.splitlines()[0] == (folder / "verdict.txt").read_text().splitlines()[0]

    in_cpp = run_cpp_program(folder, compile_cpp_program(folder, version), *(["--build"] if build else []))
    assert in_cpp.returncode == code, in_cpp.stdout + in_cpp.stderr
    number = "".join(f"{int(part):02d}" for part in verdict.cudnn.partition("+")[0].split(".")).lstrip("0")
    last = (
        f"{verdict.outcome.upper()}: graph {verdict.graph} on {verdict.target_title} (sm_{verdict.sm}), cuDNN {number}"
    )
    assert in_cpp.stdout.splitlines()[-1] == last
    for candidate in verdict.candidates:
        if candidate.state in ("supported", "built"):
            assert f"supported: eng{candidate.engine}" in in_cpp.stdout
    if code:
        for candidate in verdict.candidates:
            assert all(f"{reason.status}; Reason: {reason.statement}" in in_cpp.stdout for reason in candidate.reasons)


@pytest.fixture(scope="module")
def refused_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked archive of a graph that the newest cuDNN refuses."""
    archive = tmp_path_factory.mktemp("refused") / "refused.tar.gz"
    return unpack_archive(write_repro(make_two_matmul_graph(), "sm89", archive, build=False))


def test_the_archive_contains_no_local_paths(refused_archive: Path) -> None:
    for member in ARCHIVE_MEMBERS:
        text = (refused_archive / member).read_text()
        for place in (str(Path.home()), str(ROOT), os.sep + "tmp" + os.sep):
            assert place not in text, member


def test_the_log_has_the_graph_and_refusals_but_no_process_ids_or_times(refused_archive: Path) -> None:
    log = (refused_archive / "cudnn.log").read_text()
    assert "CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR" in log
    assert "no longer supported" in log
    assert "i! Process=1; Thread=1; GPU=NULL; Handle=NULL; StreamId=NULL." in log.splitlines()
    assert {line.split()[2] for line in log.splitlines() if "! Time: " in line} == {"1980-01-01T00:00:00.000000"}


def test_the_version_file_lists_the_judging_libraries(refused_archive: Path) -> None:
    versions = json.loads((refused_archive / "versions.json").read_text())
    assert versions["cudnn"] == library().build_text
    assert versions["cudnn library"] == "libcudnn.so.9"
    assert versions["driver"] == library().driver.kind
    assert versions["nvrtc"] == f"inside cuDNN, that of CUDA {format_cuda_version_number(library().cuda_version)}"


def test_the_cpp_program_reports_that_it_could_not_judge(refused_archive: Path) -> None:
    """Without libcuda.so.1, cuDNN 9.19 refuses every graph; only the refused control graph reveals the problem."""
    cudnn = compile_cpp_program(refused_archive, OLDER_VERSION, "-B")
    assert run_cpp_program(refused_archive, cudnn).returncode == 1
    if library().driver.kind != "real":
        done = run_cpp_program(refused_archive, cudnn, stub=False)
        assert done.returncode == 2
        assert "the control graph is refused" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("COULD NOT BE JUDGED: graph forum_two_matmul")


def test_the_cpp_program_can_be_built_for_the_gpu(refused_archive: Path) -> None:
    cudnn = compile_cpp_program(refused_archive, None, "-B", "USE_GPU=1")
    done = run_cpp_program(refused_archive, cudnn)
    assert done.returncode == (1 if library().driver.kind == "real" and library().driver.devices else 2)
    assert "graph forum_two_matmul on the GPU of this process, cuDNN" in done.stdout.splitlines()[-1]


def test_the_same_query_gives_the_same_archive_bytes(tmp_path: Path) -> None:
    """The files are made up: another test checks cuDNN's log."""
    files = {"b.txt": "b" * 1000, "a/c.txt": "\u00e4"}
    for suffix in (".tar.gz", ".zip"):
        first, second = tmp_path / "one" / f"same{suffix}", tmp_path / "two" / f"same{suffix}"
        for path, order in ((first, sorted(files)), (second, sorted(files, reverse=True))):
            path.parent.mkdir(exist_ok=True)
            repro._write_archive({name: files[name] for name in order}, path)
        assert first.read_bytes() == second.read_bytes()
        assert [path.name for path in first.parent.glob(f"*{suffix}")] == [first.name]
    with zipfile.ZipFile(tmp_path / "one" / "same.zip") as archive:
        assert archive.namelist() == ["same/a/c.txt", "same/b.txt"]
        assert {item.date_time for item in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with tarfile.open(tmp_path / "one" / "same.tar.gz") as tar:
        assert {(item.mtime, item.uid, item.uname) for item in tar} == {(315532800, 0, "")}


def test_the_middle_of_a_long_log_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repro, "LOG_BYTES", 100)
    messages = [f"I! message {number:02d}\ni! Process=77; Thread={number % 2 + 5}; x" for number in range(50)]
    (tmp_path / "cudnn.log").write_text("\n\n".join(messages))
    log = repro._read_log(tmp_path / "cudnn.log")
    assert len(log) < 300
    assert log.startswith("I! message 00\ni! Process=1; Thread=1; x\n\nI! message 01\ni! Process=1; Thread=2; x")
    assert "characters are left out here" in log
    assert log.endswith("\n\nI! message 49\ni! Process=1; Thread=2; x")


def test_a_missing_log_is_archived_as_an_empty_file(tmp_path: Path) -> None:
    assert repro._read_log(tmp_path / "cudnn.log") == ""


@pytest.mark.parametrize("name", ["repro.rar", "nowhere/repro.zip"])
def test_a_path_that_cannot_be_written_is_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_repro(make_two_matmul_graph(), "sm89", tmp_path / name)
    assert caught.value.code == "repro-path"


def test_write_repro_uses_the_default_archive_name() -> None:
    assert make_archive_name(make_two_matmul_graph(), "sm89") == "forum_two_matmul-l40s.tar.gz"
    odd = Graph(make_two_matmul_graph().ops, "../a b/c")
    assert make_archive_name(odd, "sm90") == "a_b_c-h100-sxm.tar.gz"
