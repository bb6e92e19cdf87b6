"""``matrix`` and ``since`` on real cuDNN: verdicts, stored answers, executors, crashes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.diagnose.report.tables import (
    render_as_text,
    render_supporting_version_range,
    render_verdict_matrix,
)
from cudnn_backend_py.diagnose.surveys import matrix as matrix_module
from cudnn_backend_py.diagnose.surveys.inputs import available_versions
from cudnn_backend_py.diagnose.surveys.matrix import Matrix, make_cached_cell_folder, matrix
from cudnn_backend_py.diagnose.surveys.since import since
from cudnn_backend_py.diagnose.verdict import Outcome
from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.system.private_folder import CacheWarning
from examples import forum_two_matmul
from examples.attention_known_issues import make_reproduction_graph
from tests.support.child import OLDER_VERSION, ROOT, run_python

NEWEST_VERSION = available_versions()[-1]
VERSIONS = (OLDER_VERSION, NEWEST_VERSION)
TARGETS = ("sm80", "sm90")
GRAPHS = {
    "plain": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64),
    "odd": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20),
}
CELL_COUNT = 8


def judge_matrix(cache: Path, **options: Any) -> Matrix:
    return matrix(GRAPHS, TARGETS, VERSIONS, cache=cache, progress=False, **options)


@pytest.fixture(scope="module")
def folder_and_matrix(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Matrix]:
    folder = tmp_path_factory.mktemp("answers")
    return folder, judge_matrix(folder)


def map_matrix_cells_to_outcomes(answers: Matrix) -> dict[tuple[str, str, str], str]:
    return {triple: cell.letter for triple, cell in answers.cells.items()}


def test_matrix_has_a_verdict_for_every_graph_target_and_version(folder_and_matrix: tuple[Path, Matrix]) -> None:
    _, answers = folder_and_matrix
    assert map_matrix_cells_to_outcomes(answers) == {
        (graph, target, version): "S" if graph == "plain" else "-"
        for graph in GRAPHS
        for target in TARGETS
        for version in VERSIONS
    }
    assert answers.cells["plain", "sm90", OLDER_VERSION].engines
    assert "multiple of 8" in answers.cells["odd", "sm80", NEWEST_VERSION].headline
    assert answers.judged_count == CELL_COUNT
    assert answers.exit_code == 1


def test_matrix_reads_judged_cells_from_stored_answers(folder_and_matrix: tuple[Path, Matrix]) -> None:
    folder, answers = folder_and_matrix
    again = judge_matrix(folder)
    assert again.judged_count == 0
    assert again == answers
    assert folder.stat().st_mode & 0o777 == 0o700


def test_only_a_new_graph_is_judged_unless_fresh_is_requested(
    folder_and_matrix: tuple[Path, Matrix],
) -> None:
    folder, answers = folder_and_matrix
    more = GRAPHS | {"longer": sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=64)}
    options: dict[str, Any] = {"cache": folder, "progress": False}
    assert matrix(more, TARGETS, [NEWEST_VERSION], **options).judged_count == len(TARGETS)
    fresh = matrix(GRAPHS, ["sm90"], [NEWEST_VERSION], fresh=True, **options)
    assert fresh.judged_count == len(GRAPHS)
    assert fresh.cells["plain", "sm90", NEWEST_VERSION] == answers.cells["plain", "sm90", NEWEST_VERSION]


def test_damaged_or_outdated_stored_verdicts_are_judged_again(tmp_path: Path) -> None:
    graphs = {"plain": GRAPHS["plain"]}
    first = matrix(graphs, TARGETS, [None], cache=tmp_path, progress=False)
    cut, foreign = sorted(tmp_path.glob("*.answer"))
    cut.write_text(cut.read_text()[:-40])
    files = make_cached_cell_folder(tmp_path)
    record = files.read(foreign.stem)
    assert record is not None
    files.write(foreign.stem, record | {"by": "another release"})
    with pytest.warns(CacheWarning, match=f"{cut.name} is ignored: it was changed"):
        second = matrix(graphs, TARGETS, [None], cache=tmp_path, progress=False)
    assert second.judged_count == 2
    assert second == first
    assert second.versions == ("default",)


def test_an_executor_gives_and_stores_the_same_verdicts(folder_and_matrix: tuple[Path, Matrix], tmp_path: Path) -> None:
    _, answers = folder_and_matrix
    with ProcessPoolExecutor(2) as executor:
        found = judge_matrix(tmp_path, executor=executor)
    assert found.judged_count == CELL_COUNT
    assert found == answers
    assert judge_matrix(tmp_path).judged_count == 0


DASK_PROGRAM = """
import json, sys
from pathlib import Path
from dask.distributed import Client, LocalCluster
from tests.library.diagnose.test_matrix import judge_matrix
options = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
with LocalCluster(**options) as cluster, Client(cluster) as client, client.get_executor() as executor:
    found = judge_matrix(Path(sys.argv[1]), executor=executor)
print(json.dumps([found.judged_count, found.to_dict()]))
"""


def test_a_dask_cluster_gives_and_stores_the_same_verdicts(
    folder_and_matrix: tuple[Path, Matrix], tmp_path: Path
) -> None:
    """Dask runs in a child process, as its threads live as long as the process."""
    _, answers = folder_and_matrix
    done = run_python(["-c", DASK_PROGRAM, str(tmp_path)], check=True)
    judged_count, found = json.loads(done.stdout)
    assert judged_count == CELL_COUNT
    assert Matrix.from_dict(found) == answers
    assert judge_matrix(tmp_path).judged_count == 0


def test_a_crash_is_stored_in_its_cell_and_other_cells_are_judged(tmp_path: Path) -> None:
    graphs = {"crash": make_reproduction_graph("inner-stride:backward"), "plain": GRAPHS["plain"]}
    found = matrix(graphs, TARGETS, [OLDER_VERSION], cache=tmp_path, progress=False)
    assert map_matrix_cells_to_outcomes(found) == {
        ("crash", "sm80", OLDER_VERSION): "S",
        ("crash", "sm90", OLDER_VERSION): "!",
        ("plain", "sm80", OLDER_VERSION): "S",
        ("plain", "sm90", OLDER_VERSION): "S",
    }
    assert found.cells["crash", "sm90", OLDER_VERSION].headline.startswith(
        "cuDNN crashed with SIGSEGV in heuristics mode A"
    )
    assert found.exit_code == 2
    assert "!1  cuDNN crashed with SIGSEGV" in render_as_text(render_verdict_matrix(found))
    again = matrix(graphs, TARGETS, [OLDER_VERSION], cache=tmp_path, progress=False)
    assert (again.judged_count, again) == (1, found)  # a crash may be due to the moment: it is not stored


def test_cells_that_timed_out_are_judged_again(tmp_path: Path) -> None:
    graphs = {"plain": GRAPHS["plain"]}
    late = matrix(graphs, ["sm90"], [NEWEST_VERSION], cache=tmp_path, progress=False, limit_s=0.001)
    [cell] = late.cells.values()
    assert (cell.letter, cell.cause) == ("!", "cudnn-timed-out")
    assert list(tmp_path.iterdir()) == []
    assert matrix(graphs, ["sm90"], [NEWEST_VERSION], cache=tmp_path, progress=False).exit_code == 0


LARGE_MATRIX_PROGRAM = """
import os, sys, time
from pathlib import Path
from cudnn_backend_py.system.private_folder import KeyedRecordFolder
from tests.library.diagnose.test_matrix import judge_40_cells

folder, ending, write = Path(sys.argv[1]), int(sys.argv[2]), KeyedRecordFolder.write

def stopped(*arguments):
    write(*arguments)
    if len(list(folder.glob("*.answer"))) == 10:
        os.killpg(0, ending)  # as Ctrl-C does: the processes that judge get the signal too
        time.sleep(0.5)  # the main thread is to be next

KeyedRecordFolder.write = stopped
judge_40_cells(folder)
"""


def judge_40_cells(cache: Path) -> Matrix:
    """Judge 20 graphs on two targets."""
    graphs = {f"s {s}": sdpa_forward(batch=1, heads=2, seq_q=s, head_dim=64) for s in range(64, 64 + 20 * 8, 8)}
    return matrix(graphs, TARGETS, [NEWEST_VERSION], cache=cache, progress=False, workers=1)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_matrix_run_is_resumed(ending: signal.Signals, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", LARGE_MATRIX_PROGRAM, str(tmp_path), str(int(ending))],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = child.communicate(timeout=120)
    assert child.returncode == -ending, errors
    kept = {path: path.read_text() for path in tmp_path.glob("*.answer")}
    assert 10 <= len(kept) < 40
    assert {record["cell"]["outcome"] for record, _ in make_cached_cell_folder(tmp_path).read_all()} == {"supported"}
    resumed = judge_40_cells(tmp_path)
    assert resumed.judged_count == 40 - len(kept)
    assert set(map_matrix_cells_to_outcomes(resumed).values()) == {"S"}
    assert all(path.read_text() == text for path, text in kept.items())


def test_the_since_function_reports_the_first_and_last_supporting_version(tmp_path: Path) -> None:
    found = since(forum_two_matmul.graph(), "sm90", [None, OLDER_VERSION], cache=tmp_path)
    assert (found.first, found.last, found.first_after) == (OLDER_VERSION, OLDER_VERSION, NEWEST_VERSION)
    assert (found.monotone, found.exit_code, found.unjudged, found.inferred_versions) == (True, 0, (), ())
    assert f"refused by {NEWEST_VERSION}, the next version judged" in render_as_text(
        render_supporting_version_range(found)
    )


def test_the_since_function_judges_again_if_fresh_is_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge_cell, judged = matrix_module._judge_cell, []
    monkeypatch.setattr(matrix_module, "_judge_cell", lambda *given: judged.append(given) or judge_cell(*given))
    for fresh, count in ((False, 1), (False, 1), (True, 2), (False, 2)):
        assert since(forum_two_matmul.graph(), "sm90", [None], cache=tmp_path, fresh=fresh).first is None
        assert len(judged) == count, (fresh, count)


def test_the_since_function_skips_a_version_that_crashes(tmp_path: Path) -> None:
    graph = make_reproduction_graph("inner-stride:backward")
    crashed = since(graph, "sm90", [OLDER_VERSION], cache=tmp_path)
    assert (crashed.first, crashed.unjudged, crashed.exit_code) == (None, (OLDER_VERSION,), 2)
    cell = crashed.asked[OLDER_VERSION]
    assert (cell.outcome, cell.cause, cell.stage) == (Outcome.NOT_JUDGED, "cudnn-crashed", "heuristics")


def test_a_version_that_is_not_installed_is_refused_before_judging(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match="cudnn-version-not-installed"):
        matrix(GRAPHS, TARGETS, [NEWEST_VERSION, "9.1.1"], cache=tmp_path / "none")
    assert not (tmp_path / "none").exists()
