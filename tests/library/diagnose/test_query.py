"""Target content, library files and environment are read once per query and are part of its key."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cudnn_backend_py import DataType, EnvironmentNotReady, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.diagnose import Judge, Outcome, Query, judge, matrix
from cudnn_backend_py.native.find import LIBRARY_VARIABLE, NVRTC_VARIABLE
from cudnn_backend_py.target import find_profile
from cudnn_backend_py.versions.store import find_installed, get_default_root, require_installed
from examples import forum_two_matmul
from tests.support.child import OLDER_VERSION, run_python

REPOSITORY_ROOT = Path(__file__).parents[3]
FORUM_GRAPH = forum_two_matmul.graph()  # cuDNN 9.19 supports it on sm_90 but not on sm_89, 9.28 on neither


def make_tf32_matmul() -> Graph:
    """Return a float32 matmul and a square root: cuDNN 9.19 supports it on sm_90 in TF32 only."""
    g = GraphBuilder("tf32", io_type=DataType.FLOAT)
    product = g.matmul(g.tensor("a", (2, 16, 3)), g.tensor("b", (2, 3, 17)), name="mm")
    root = g.pointwise(PointwiseMode.SQRT, product)
    g.pointwise(PointwiseMode.IDENTITY, root, virtual=False, data_type=DataType.FLOAT)
    return g.graph()


@pytest.fixture
def folders_with_different_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Make two folders, each with a ``t.json``: one of sm_89, one of sm_90."""
    for name in ("sm89", "sm90"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.json").write_text(find_profile(name).json())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sm89", tmp_path / "sm90"


def test_a_relative_target_file_is_read_from_the_folder_of_the_query(
    folders_with_different_targets: tuple[Path, Path],
) -> None:
    first, second = folders_with_different_targets
    with Judge() as one:
        os.chdir(first)
        before = Query(FORUM_GRAPH, "t.json", OLDER_VERSION)
        assert one.run_query(before).sm == 89
        os.chdir(second)
        assert one.run_query(Query(FORUM_GRAPH, "t.json", OLDER_VERSION)).sm == 90
        assert one.run_query(before).sm == 89


@pytest.mark.parametrize("run_query", ["executor", "children"])
def test_a_matrix_uses_the_target_file_of_its_working_folder(
    folders_with_different_targets: tuple[Path, Path], tmp_path: Path, run_query: str
) -> None:
    """A relative target file is that of the caller's current folder, although an executor's workers keep theirs."""
    found = []
    with ThreadPoolExecutor(1) as pool:
        for folder in (*folders_with_different_targets, *folders_with_different_targets):
            os.chdir(folder)
            executor = pool if run_query == "executor" else None
            answered = matrix(
                [FORUM_GRAPH], ["t.json"], [OLDER_VERSION], executor=executor, cache=tmp_path / "kept", progress=False
            )
            found.append(([cell.outcome for cell in answered.cells.values()], answered.judged_count))
    refused, supported = [Outcome.NOT_SUPPORTED], [Outcome.SUPPORTED]
    assert found == [(refused, 1), (supported, 1), (refused, 0), (supported, 0)]


def test_a_target_file_replaced_after_the_query_changes_no_answer(tmp_path: Path) -> None:
    graphs = [replace(FORUM_GRAPH, name=f"g{number}") for number in range(20)]
    file, other = tmp_path / "live.json", tmp_path / "other.json"
    file.write_text(find_profile("sm90").json())
    other.write_text(find_profile("sm89").json())
    replaced = threading.Timer(0.5, lambda: os.replace(other, file))
    replaced.start()
    during = matrix(graphs, [str(file)], [OLDER_VERSION], workers=1, cache=tmp_path / "kept", progress=False)
    replaced.join()
    assert {cell.outcome for cell in during.cells.values()} == {Outcome.SUPPORTED}
    after = matrix(graphs, [str(file)], [OLDER_VERSION], workers=1, cache=tmp_path / "kept", progress=False)
    assert ({cell.outcome for cell in after.cells.values()}, after.judged_count) == ({Outcome.NOT_SUPPORTED}, 20)


def test_environment_variables_that_cudnn_reads_are_in_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make_tf32_matmul()
    found = []
    with Judge() as one:
        for value in (None, "0", None, "0"):
            if value is None:
                monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
            else:
                monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
            answered = matrix([graph], ["sm90"], [OLDER_VERSION], cache=tmp_path, progress=False)
            [cell] = answered.cells.values()
            question = Query(graph, "sm90", OLDER_VERSION, causes=False)
            assert one.run_query(question).outcome is judge(question).outcome is cell.outcome
            found.append((cell.outcome, answered.judged_count))
    yes, no = Outcome.SUPPORTED, Outcome.NOT_JUDGED  # a JIT wheel lacks the engines that need no TF32
    assert found == [(yes, 1), (no, 1), (yes, 0), (no, 0)]


def test_a_query_keeps_the_environment_of_its_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    without = Query(make_tf32_matmul(), "sm90", OLDER_VERSION, causes=False)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    assert judge(without).outcome is Outcome.NOT_JUDGED
    assert judge(Query(without.graph, "sm90", OLDER_VERSION, causes=False)).outcome is Outcome.SUPPORTED


def link_installed_version(source: str, root: Path, version: str) -> Path:
    """Link the files of an installed version into another version store as version `version`."""
    installed = require_installed(source, root=get_version_store_of_tests())
    folder = root / f"{version}-cu{installed.cuda}"
    shutil.copytree(installed.path, folder, copy_function=os.link)
    record = json.loads((folder / "installed.json").read_text())
    (folder / "installed.json").unlink()
    (folder / "installed.json").write_text(json.dumps(record | {"version": version}))
    return folder


def get_version_store_of_tests() -> Path:
    return Path(os.environ["CUDNN_BACKEND_CACHE_OF_TESTS"])


@pytest.fixture
def separate_version_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDNN_BACKEND_CACHE_OF_TESTS", str(get_default_root()))
    root = tmp_path / "versions"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("CUDNN_BACKEND_CACHE", str(root))
    return root


def test_verdicts_of_a_newly_installed_patch_version_get_a_separate_key(
    separate_version_store: Path, tmp_path: Path
) -> None:
    """Libraries of two versions with different verdicts are installed as patches of one version."""
    run_query = lambda: matrix([FORUM_GRAPH], ["sm90"], ["9.99"], cache=tmp_path / "kept", progress=False)  # noqa: E731
    link_installed_version(OLDER_VERSION, separate_version_store, "9.99.0.1")
    older = Query(FORUM_GRAPH, "sm90", "9.99")
    assert run_query().judged_count == 1
    link_installed_version("9.14.0", separate_version_store, "9.99.1.1")
    newer = Query(FORUM_GRAPH, "sm90", "9.99")
    assert find_installed("9.99").version == "9.99.1.1"  # type: ignore[union-attr]
    assert older.key() != newer.key()
    assert (run_query().judged_count, run_query().judged_count) == (1, 0)
    assert judge(older).cudnn == f"{OLDER_VERSION}+cu12"
    assert judge(newer).cudnn == "9.14.0+cu12"


def test_a_library_replaced_with_equal_size_and_time_is_detected(
    separate_version_store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A running judging process keeps its libraries; a query for the new ones gets a new process."""
    folder = tmp_path / "lib"
    older, newest = (require_installed(one, root=get_version_store_of_tests()) for one in (OLDER_VERSION, "9.14.0"))
    monkeypatch.setenv(LIBRARY_VARIABLE, str(folder))
    monkeypatch.setenv(NVRTC_VARIABLE, str(older.nvrtc))

    def replace_library(source: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source.parent, folder)
        for file in folder.iterdir():
            with file.open("ab") as padded:
                padded.truncate(100 << 20)
            os.utime(file, ns=(0, 0))

    with Judge() as one:
        answers = []
        for source in (older.library, newest.library, older.library):
            replace_library(source)
            question = Query(FORUM_GRAPH, "sm90")
            answers.append((one.run_query(question).cudnn, question.key()))
    assert [cudnn for cudnn, _ in answers] == [f"{OLDER_VERSION}+cu12", "9.14.0+cu12", f"{OLDER_VERSION}+cu12"]
    first, second, third = (key for _, key in answers)
    assert first == third != second


def test_library_files_changed_after_the_query_give_no_verdict(separate_version_store: Path, tmp_path: Path) -> None:
    folder = link_installed_version(OLDER_VERSION, separate_version_store, "9.99.0.1")
    question = Query(FORUM_GRAPH, "sm90", "9.99")
    graph_library = next(folder.rglob("libcudnn_graph.so.9"))
    os.replace(shutil.copy2(graph_library, tmp_path / "copy"), graph_library)
    with Judge() as one, pytest.raises(EnvironmentNotReady, match="cudnn-files-changed") as caught:
        one.run_query(question)
    assert graph_library.name in caught.value.headline
    assert judge(Query(FORUM_GRAPH, "sm90", "9.99")).supported


def test_a_stored_verdict_about_missing_engines_is_not_used_for_changed_files(
    separate_version_store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "lib"
    shutil.copytree(require_installed(OLDER_VERSION, root=get_version_store_of_tests()).library.parent, folder)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(folder))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    answered = []
    for change in (str, os.utime, lambda file: os.truncate(file, file.stat().st_size + 1)):
        for file in folder.iterdir():
            change(file)
        found = matrix([make_tf32_matmul()], ["sm90"], [None], cache=tmp_path / "kept", progress=False)
        assert {cell.cause for cell in found.cells.values()} == {"engines-absent"}
        answered.append(found.judged_count)
    assert answered == [1, 0, 1]


def test_numbers_that_python_compares_equal_give_different_queries() -> None:
    """In Python 0.0 == -0.0 and 1 == 1.0; cuDNN gets different bytes."""

    def make_relu_with_lower_clip(value: float) -> Graph:
        g = GraphBuilder("clip", io_type=DataType.HALF)
        x = g.tensor("x", (1, 64, 64))
        g.pointwise(PointwiseMode.RELU_FWD, x, parameters={"relu_lower_clip": value}, name="y", virtual=False)
        return g.graph()

    below, above = make_relu_with_lower_clip(-0.0), make_relu_with_lower_clip(0.0)
    assert below == above
    assert Query(below, "sm90").key() != Query(above, "sm90").key()


def test_queries_for_the_gpu_of_this_machine_have_no_cache_key() -> None:
    assert Query(FORUM_GRAPH).key() is None


def test_a_child_gets_only_environment_variables_of_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("LD_LIBRARY_PATH", "relative:/absolute")
    setup = Query(FORUM_GRAPH, "sm90", OLDER_VERSION).setup
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("CUDNN_SOMETHING_NEW", "1")
    environment = setup.environment()
    assert environment["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "CUDNN_SOMETHING_NEW" not in environment
    assert environment["LD_LIBRARY_PATH"] == f"{Path.cwd() / 'relative'}:/absolute"


def test_check_detects_a_changed_environment_variable(tmp_path: Path) -> None:
    """A verdict pinned without the variable must fail with the variable, also with stored answers."""
    from cudnn_backend_py import save_graph

    save_graph(make_tf32_matmul(), tmp_path / "g.json")
    (tmp_path / "chk.toml").write_text(
        'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["sm90"]\n'
        f'versions = ["{OLDER_VERSION}"]\n[graphs]\ng = "g.json"\n'
    )
    home = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ["-m", "cudnn_backend_py", "check", str(tmp_path / "chk.toml")]
    assert run_python([*command, "--update"], environment=home).code == 0
    codes = [
        run_python(command, environment=home | more).code
        for more in ({}, {"NVIDIA_TF32_OVERRIDE": "0"}, {}, {"NVIDIA_TF32_OVERRIDE": "0"})
    ]
    assert codes[0] == codes[2] == 0
    assert codes[1] == codes[3] != 0


def test_a_new_hard_link_to_a_file_is_not_a_change(separate_version_store: Path, tmp_path: Path) -> None:
    """A hard link changes only the file's status time (ctime); the content is the one that an earlier process read."""
    library = (
        link_installed_version(OLDER_VERSION, separate_version_store, "9.99.1.1") / "nvidia/cudnn_jit/lib/libcudnn.so.9"
    )
    question = Query(FORUM_GRAPH, "sm90", "9.99.1", causes=False)
    run_python(
        [
            "-c",
            "from cudnn_backend_py.versions.judging_environment import read_judging_environment\n"
            "read_judging_environment('9.99.1').key()",
        ],
        check=True,
    )
    os.link(library, tmp_path / "linked")
    assert judge(question).outcome is Outcome.SUPPORTED


@pytest.mark.parametrize("kind", [TimeoutError, BrokenPipeError, OSError, ValueError], ids=lambda kind: kind.__name__)
def test_an_exception_during_the_comparison_of_files_reaches_the_caller(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TimeoutError is an OSError, but must not be handled like an unreadable folder."""
    before, list_folder = Query(FORUM_GRAPH, "sm90").setup, os.listdir

    def raise_error(_number: int, _frame: object) -> None:
        raise kind("mine")

    def list_folder_with_signal(folder: str) -> list[str]:
        signal.raise_signal(signal.SIGUSR1)
        return list_folder(folder)

    monkeypatch.setattr("cudnn_backend_py.versions.judging_environment.os.listdir", list_folder_with_signal)
    handler = signal.signal(signal.SIGUSR1, raise_error)
    try:
        with pytest.raises(kind, match="mine"):
            before.check()
    finally:
        signal.signal(signal.SIGUSR1, handler)
    monkeypatch.undo()
    before.check()
