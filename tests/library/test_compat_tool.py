"""The tool that runs cudnn-frontend's tests on this package: its output lines, and which results it calls worse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.compat.__main__ import main
from tests.compat.compare import MAX_LISTED_IDS, compare_runs, find_differences, read_run
from tests.compat.recorder import Recorder
from tests.compat.run import RunOptions, make_row_of_test_without_result, run_test_files
from tests.compat.scope import INTENDED_DIFFERENCES, LARGE_TEST_FILES, TEST_FILES

REPOSITORY = Path(__file__).parents[2]


def make_test_result_row(
    test: str = "test_a.py::test", outcome: str = "skipped", executes: int = 1, *kinds: str
) -> dict[str, Any]:
    errors = [{"call": "validate", "type": kind, "kind": kind, "text": "no"} for kind in kinds]
    made = make_row_of_test_without_result(
        test, test.partition("::")[0], "reached execute" if executes else "not supported", outcome
    )
    return {**made, "executes": executes, "errors": errors, "errors_in_all": len(errors)}


# The comparison


@pytest.mark.parametrize(
    ("theirs", "ours", "ways"),
    [
        (make_test_result_row(), make_test_result_row(), []),
        (make_test_result_row(), None, ["not in our run"]),
        (make_test_result_row(), make_test_result_row(executes=0), ["1 executes with theirs, 0 with ours"]),
        (make_test_result_row(), make_test_result_row(executes=2), []),
        (
            make_test_result_row(outcome="passed"),
            make_test_result_row(outcome="skipped"),
            ["passed with theirs, skipped with ours"],
        ),
        (
            make_test_result_row("t", "failed", 0),
            make_test_result_row("t", "skipped", 0),
            ["failed with theirs, skipped with ours"],
        ),
        (make_test_result_row("t", "failed", 0, "RuntimeError"), make_test_result_row("t", "skipped", 1), []),
        (
            make_test_result_row(outcome="failed"),
            make_test_result_row(outcome="crashed"),
            ["failed with theirs, crashed with ours"],
        ),
        (make_test_result_row(outcome="failed"), make_test_result_row(outcome="passed"), []),
        (make_test_result_row("t", "failed", 0, "RuntimeError"), make_test_result_row("t", "passed", 1), []),
        (
            make_test_result_row("t", "failed", 0, "RuntimeError"),
            make_test_result_row("t", "failed", 0, "ValueError"),
            ["exceptions differ"],
        ),
        (
            make_test_result_row(outcome="skipped"),
            make_test_result_row(outcome="failed"),
            ["skipped with theirs, failed with ours"],
        ),
        (
            make_test_result_row("t", "skipped", 0, "ValueError"),
            make_test_result_row("t", "skipped", 0, "RuntimeError"),
            ["exceptions differ"],
        ),
        (
            make_test_result_row("t", "skipped", 0, "ValueError"),
            make_test_result_row("t", "skipped", 0),
            ["exceptions differ"],
        ),
    ],
)
def test_results_worse_than_those_of_cudnn_frontend_are_listed(
    theirs: dict[str, Any], ours: dict[str, Any] | None, ways: list[str]
) -> None:
    assert find_differences(theirs, ours) == ways


def test_intended_differences_are_counted_separately_with_the_reason() -> None:
    (file, part), why = next(iter(INTENDED_DIFFERENCES.items()))
    test = f"{file}::TestIt::{part}[1]"
    theirs, ours = make_test_result_row(test, "passed", 0), make_test_result_row(test, "failed", 0)
    data = compare_runs(({}, {test: theirs}), ({}, {test: ours}))
    assert (data["total"]["worse"], data["total"]["on purpose"]) == (0, 1)
    assert data["files"][theirs["file"]]["on purpose"] == {test: why}
    assert {file for file, _ in INTENDED_DIFFERENCES} <= set(TEST_FILES)


def test_compare_can_ignore_differences_of_raised_exceptions() -> None:
    assert (
        find_differences(
            make_test_result_row("t", "skipped", 0, "ValueError"),
            make_test_result_row("t", "skipped", 0),
            exceptions=False,
        )
        == []
    )


def test_the_comparison_counts_by_file_and_lists_a_limited_number_of_ids() -> None:
    theirs = {key: make_test_result_row(key) for key in [f"test_a.py::test[{n}]" for n in range(MAX_LISTED_IDS + 10)]}
    theirs["test_b.py::test"] = make_test_result_row("test_b.py::test", "passed")
    ours = {key: {**one, "executes": 0} if one["file"] == "test_a.py" else one for key, one in theirs.items()}
    data = compare_runs(({}, theirs), ({}, ours))
    assert [data["files"][name]["worse"] for name in ("test_a.py", "test_b.py")] == [MAX_LISTED_IDS + 10, 0]
    assert len(data["files"]["test_a.py"]["worse ids"]) == MAX_LISTED_IDS
    assert data["total"]["worse"] == MAX_LISTED_IDS + 10
    assert data["total"]["theirs"]["reach execute"] == MAX_LISTED_IDS + 11
    assert data["total"]["ours"]["reach execute"] == 1


@pytest.mark.parametrize(("executes", "status"), [(1, 0), (0, 1)])
def test_the_compare_command_fails_if_our_results_are_worse(tmp_path: Path, executes: int, status: int) -> None:
    about = {"run": {"module": "cudnn", "cudnn": "9.19.0"}}
    for name, one in (("theirs", make_test_result_row()), ("ours", make_test_result_row(executes=executes))):
        (tmp_path / name).write_text(f"{json.dumps(about)}\n{json.dumps(one)}\n")
    paths = [str(tmp_path / name) for name in ("theirs", "ours")]
    result = CliRunner().invoke(main, ["compare", *paths, "--out", str(tmp_path / "out.json")])
    assert result.exit_code == status
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["theirs"]["cudnn"], written["total"]["worse"]) == ("9.19.0", 1 - executes)


def test_runs_with_different_settings_are_not_compared(tmp_path: Path) -> None:
    about = {"module": "cudnn", "cudnn": "9.19.0", "device": "described h100", "seed": 0}
    for name, value in {"cudnn": "9.28.0", "device": "described a100", "seed": 1}.items():
        with pytest.raises(click.UsageError, match=f"theirs and ours: {name} is .* and {value}, give runs of one"):
            compare_runs((about, {}), ({**about, "module": "frontend", name: value}, {}))
    lines = [json.dumps({"run": {**about, "cudnn": version}}) for version in ("9.19.0", "9.28.0")]
    (tmp_path / "runs").write_text("\n".join(lines))
    with pytest.raises(click.UsageError, match=r"runs: cudnn is 9\.19\.0 and 9\.28\.0"):
        read_run(tmp_path / "runs")


class FakeCompiledGraph:
    def get_knobs_for_engine(self, engine: int) -> None:
        raise RuntimeError(f"no engine {engine}")


class ForwardingGraph:
    def __getattr__(self, name: str) -> Any:
        return getattr(FakeCompiledGraph(), name)


def test_exceptions_of_forwarded_calls_are_recorded() -> None:
    module: Any = SimpleNamespace(
        pygraph=ForwardingGraph, _pybind_module=SimpleNamespace(backend_graph=FakeCompiledGraph)
    )
    recorder = Recorder(module)
    with pytest.raises(RuntimeError, match="no engine 3"):
        ForwardingGraph().get_knobs_for_engine(3)
    assert [(one["call"], one["kind"]) for one in recorder.errors] == [("get_knobs_for_engine", "RuntimeError")]


SHOWN = {"nodes": [{"name": "mm", "type": "MATMUL"}], "tensors": {"a": {"dim": [1, 8, 8], "uid": 1}}}
OTHER = {**SHOWN, "tensors": {"a": {"dim": [1, 4, 8], "uid": 1}}}


@pytest.mark.parametrize(
    ("theirs", "ours", "ways"),
    [
        ([SHOWN], [SHOWN], []),
        ([SHOWN], [OTHER], ["graphs differ"]),
        ([SHOWN], [None], []),
        ([SHOWN, SHOWN], [SHOWN], ["graphs differ"]),
        (None, [SHOWN], []),
    ],
)
def test_differences_of_executed_graphs_are_reported(theirs: Any, ours: Any, ways: list[str]) -> None:
    assert (
        find_differences({**make_test_result_row(), "graphs": theirs}, {**make_test_result_row(), "graphs": ours})
        == ways
    )


def test_the_comparison_lists_the_differences_of_graphs() -> None:
    left, right = ({"test_a.py::test": {**make_test_result_row(), "graphs": [shown]}} for shown in (SHOWN, OTHER))
    data = compare_runs(({}, left), ({}, right))
    assert data["total"]["graphs compared"] == 1
    shown = data["files"]["test_a.py"]["worse ids"][0]["graphs"]
    assert shown == "/0/tensors/a/dim/1: 8 with theirs, 4 with ours"


@pytest.mark.parametrize(
    ("parts", "said"), [([(32, 0)], "1 in 32"), ([(8, 3)], "1 in 8, part 3"), ([(8, 3), (8, 1)], "2 in 8, parts 1, 3")]
)
def test_several_test_runs_in_one_file_are_read_as_one_run(
    tmp_path: Path, parts: list[tuple[int, int]], said: str
) -> None:
    lines = []
    for sample, part in parts:
        one = {**make_test_result_row(f"test_a.py::test[{part}]")}
        lines += [{"run": {"module": "cudnn", "sample": sample, "part": part}}, one]
    (tmp_path / "runs").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about, rows = read_run(tmp_path / "runs")
    assert about == {"module": "cudnn", "sampled": {"test_a.py": said}}
    assert len(rows) == len(parts)


def test_a_merged_run_lists_test_files_run_without_plans(tmp_path: Path) -> None:
    lines: list[object] = []
    for name, fast in (("test_a.py", False), ("test_b.py", True)):
        lines += [{"run": {"module": "cudnn", "fast": fast}}, {**make_test_result_row(f"{name}::test"), "file": name}]
    (tmp_path / "runs").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run(tmp_path / "runs")[0] == {"module": "cudnn", "fast": ["test_b.py"]}


# The plugin, with our module as cudnn and a described GPU

TESTS = """
import os
import random
import pytest
import cudnn
from cudnn_backend_py.target import find_profile

HALF = cudnn.data_type.HALF

def graph():
    described = cudnn.create_device_properties(find_profile("h100").json())
    return cudnn.pygraph(io_data_type=HALF, compute_data_type=cudnn.data_type.FLOAT, device_property=described)

def test_plans():
    made = graph()
    a, b = (made.tensor(dim=[1, 64, 64], stride=[4096, 64, 1]) for _ in "ab")
    made.matmul(a, b).set_output(True)
    made.validate()
    made.build_operation_graph()
    print(random.random())

def test_executes():
    made = graph()
    a, b = (made.tensor(dim=[1, 64, 64], data_type=HALF, name=name) for name in "ab")
    made.matmul(a, b, name="mm").set_output(True)
    with pytest.raises(Exception):
        made.execute({}, 0)

def test_swallows():
    with pytest.raises(TypeError):
        graph().matmul(nonsense=1)

def test_skips():
    pytest.skip("for a reason")

def test_fails():
    assert random.random() == 2, f"drew {random.random()}"

def test_dies():
    os._exit(1)
"""


@pytest.fixture(scope="module")
def run_lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "test_small.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    out = folder / "out.jsonl"
    command = [sys.executable, "-m", "tests.compat", "run", "--module", "frontend", "--tests", str(folder)]
    command += ["--files", "test_small.py", "-m", "", "--limit", "60", "--out", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_the_first_output_line_describes_the_test_run(run_lines: list[dict[str, Any]]) -> None:
    about = run_lines[0]["run"]
    assert (about["module"], about["sample"], about["device"]) == ("frontend", 1, "no GPU")
    assert about["cudnn"].startswith("9.")


def test_every_test_has_one_line_even_one_that_crashes_its_process(run_lines: list[dict[str, Any]]) -> None:
    rows = {line["id"].partition("::")[2]: line for line in run_lines[1:]}
    assert {name: line["outcome"] for name, line in rows.items()} == {
        "test_plans": "passed",
        "test_executes": "passed",
        "test_swallows": "passed",
        "test_skips": "skipped",
        "test_fails": "failed",
        "test_dies": "crashed",
    }
    assert len(run_lines) == 1 + len(rows)
    assert rows["test_skips"]["reason"] == "for a reason"
    assert rows["test_fails"]["reason"].startswith("AssertionError: drew 0.")


def test_a_tests_line_has_its_last_stage_and_caught_exceptions(run_lines: list[dict[str, Any]]) -> None:
    rows = {line["id"].partition("::")[2]: line for line in run_lines[1:]}
    assert (rows["test_plans"]["stage"], rows["test_plans"]["errors"]) == ("build_operation_graph", [])
    caught = rows["test_swallows"]["errors"]
    assert [(error["call"], error["type"], error["kind"]) for error in caught] == [("matmul", "TypeError", "TypeError")]
    assert rows["test_swallows"]["errors_in_all"] == 1


def test_a_tests_output_line_has_its_executed_graphs(run_lines: list[dict[str, Any]]) -> None:
    rows = {line["id"].partition("::")[2]: line for line in run_lines[1:]}
    assert rows["test_plans"]["graphs"] == []
    (shown,) = rows["test_executes"]["graphs"]
    assert shown["nodes"][0]["outputs"] == {"C": "mm::C"}
    assert shown["tensors"]["mm::C"]["dim"] == [1, 64, 64]
    assert shown["tensors"]["a"]["dtype"] == "data_type.HALF"


def test_a_test_file_that_cannot_be_run_gets_a_line(tmp_path: Path) -> None:
    from rich.console import Console

    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.jsonl"
    plan = RunOptions(module="frontend", tests=tmp_path, out=out, files=("test_broken.py",), mark="", limit_s=60)
    run_test_files(plan, Console(quiet=True))
    lines = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [(line["id"], line["outcome"]) for line in lines] == [("test_broken.py", "failed")]
    assert lines[0]["reason"].startswith("ImportError")


def test_large_files_are_a_subset_of_the_frontends_test_files() -> None:
    assert set(LARGE_TEST_FILES) < set(TEST_FILES)
    assert len(set(TEST_FILES)) == len(TEST_FILES)
