"""Notebooks run as programs: which cells run, and how errors are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.frontend import FrontendKnownIssueWarning, data_type, tensor
from cudnn_backend_py.frontend.__main__ import make_program_starter
from cudnn_backend_py.frontend.errors import FrontendUsageError
from cudnn_backend_py.frontend.notebooks import read_cells
from cudnn_backend_py.known_issues import find
from tests.support.child import run_python
from tests.support.frontend_attention import RecordingGraph
from tests.support.issue_warnings import list_issue_warning_categories

PACKED_BOOLEANS_WARNING = r"\(booleans-in-memory\): of 'b', '[^']+' eight elements are in a byte"
FRONTEND_COMMAND = ["-m", "cudnn_backend_py.frontend"]


def write_notebook(folder: Path, *cells: str | list[str], kind: str = "code") -> Path:
    path = folder / "sample.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": kind, "source": cell} for cell in cells]}))
    return path


def test_magics_and_shell_commands_become_comments(tmp_path: Path) -> None:
    path = write_notebook(
        tmp_path,
        "%pip install x\nimport json",
        ["if True:\n", "    !nvidia-smi\n", "a = 7 % 4"],
        "%%bash\nls -l",
        "%%time\nb = 1",
    )
    first, second, third, fourth = read_cells(path)
    assert first == "pass  # %pip install x\nimport json"
    assert second == "if True:\n    pass  # !nvidia-smi\na = 7 % 4"
    assert set(third) == {"#", "\n"}
    assert fourth == "#\nb = 1"


def test_only_lines_that_start_a_statement_are_shell_commands(tmp_path: Path) -> None:
    path = write_notebook(
        tmp_path,
        'a = ("%s"\n     % 3)\nb = """\n!not this\n%d\n"""\n%matplotlib inline',
        "!pip install x \\\n  y\nfound = !ls\na, b = %who\nc?\n?c",
        "%time value = 3\n%timeit -n 10 other()\n%time",
        "%%capture out\n%cd /tmp\nx = 1",
        "print(1\n",
    )
    cells = read_cells(path)
    assert cells[0] == 'a = ("%s"\n     % 3)\nb = """\n!not this\n%d\n"""\npass  # %matplotlib inline'
    assert cells[1].splitlines() == [
        "pass  # !pip install x", "", "found = None  # found = !ls", "a, b = None  # a, b = %who", "pass  # c?",
        "pass  # ?c"
    ]  # fmt: skip
    assert cells[2] == "value = 3\nother()\npass  # %time"
    assert cells[3] == "#\npass  # %cd /tmp\nx = 1"
    assert cells[4] == "print(1"


def test_a_notebook_of_nbformat_3_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.ipynb"
    cells = [{"cell_type": "heading", "source": "a"}, {"cell_type": "code", "input": ["a = 1\n", "b = 2"]}]
    path.write_text("\ufeff" + json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}), encoding="utf-8")
    assert read_cells(path) == ["a = 1\nb = 2"]


def test_a_notebook_runs_in_its_folder_as_in_jupyter(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 3")
    (tmp_path / "data.txt").write_text("data")
    path = write_notebook(
        tmp_path,
        "%%writefile made.py\nvalue = '''\n%d'''",
        "import beside, made\nassert made.value == '\\n%d'\ndisplay(beside.value, open('data.txt').read())",
        "import asyncio\nasync def four():\n    return 4\nawait asyncio.sleep(0)\nprint(await four())",
        "def f(x: int) -> str: ...\nprint(f.__annotations__['x'] is int)",
    )
    done = run_python([*FRONTEND_COMMAND, str(path)], check=True)
    assert done.stdout.split("\n")[:3] == ["3 data", "4", "True"]


def test_cells_share_the_namespace_of_the_main_module(tmp_path: Path) -> None:
    path = write_notebook(
        tmp_path,
        "import cudnn, sys\nvalue = cudnn.data_type.HALF",
        "def read():\n    return value.name",
        "print(read(), __name__, sys.argv[1:], sys.modules['__main__'].value is value)",
    )
    done = run_python([*FRONTEND_COMMAND, str(path), "--epochs", "3"], check=True)
    assert done.stdout.split("\n")[0] == "HALF __main__ ['--epochs', '3'] True"


def test_the_traceback_shows_the_failing_cell(tmp_path: Path) -> None:
    path = write_notebook(tmp_path, "a = 1", "b = 2\nraise ValueError(a + b)")
    done = run_python([*FRONTEND_COMMAND, str(path)])
    assert done.code == 1
    assert f'File "{path}, cell 2", line 2' in done.stderr
    assert "raise ValueError(a + b)" in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: 3")


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '{"cells": [1]}', '{"cells": [{"cell_type": "code"}]}'])
def test_a_file_that_is_not_a_notebook_is_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "sample.ipynb"
    path.write_text(content)
    with pytest.raises((UsageError, Exception)) as caught:
        read_cells(path)
    error: Any = caught.value
    assert error.code == "notebook"
    with pytest.raises(FrontendUsageError):  # before any cell runs
        make_program_starter([str(path)])
    done = run_python([*FRONTEND_COMMAND, str(path)])
    assert done.code == 2
    assert done.stderr.startswith("notebook: ")


def test_markdown_cells_are_not_run(tmp_path: Path) -> None:
    assert read_cells(write_notebook(tmp_path, "# a heading", kind="markdown")) == []


def test_target_option_exits_with_0_if_execute_is_reached(tmp_path: Path) -> None:
    """Other exceptions under ``--target`` exit with their usual status."""
    path = write_notebook(
        tmp_path,
        "from cudnn_backend_py.frontend.errors import FrontendRuntimeError",
        "raise FrontendRuntimeError('here', code=CODE)",
    )
    for code, status, word in (("plan-without-device", 0, "reached execute: here"), ("other", 1, "other: here")):
        shown = path.with_name(f"{code}.ipynb")
        shown.write_text(path.read_text().replace("CODE", repr(code)))
        done = run_python([*FRONTEND_COMMAND, "--target", "h100", str(shown)])
        lines = done.stderr.rstrip().splitlines()
        assert lines[-1 if status else -2].endswith(word), done.stderr
        assert (done.code, "no graph was built" in lines[-1]) == (status, not status)


@pytest.mark.parametrize("version", [(9, 19, 0), (9, 22, 0), (9, 28, 0)])
@pytest.mark.parametrize("kind", [data_type.HALF, data_type.BFLOAT16, data_type.FLOAT])
def test_booleans_in_memory_give_a_warning_with_every_version(
    version: tuple[int, int, int], kind: data_type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is that of a cudnn-frontend notebook: a virtual comparison and a mask in memory, combined by AND.

    Its buffers have a byte for each boolean, so it is wrong with cudnn-frontend and with ours.
    """
    monkeypatch.setattr(find, "_warned", set())
    g = RecordingGraph(version)
    place: dict[str, Any] = {"dim": [4, 8, 16], "stride": [128, 16, 1]}
    x, threshold = (tensor(data_type=each, name=name, **place) for name, each in (("x", kind), ("t", data_type.FLOAT)))
    mask = tensor(data_type=data_type.BOOLEAN, name="b", **place)
    greater = g.cmp_gt(input=x, comparison=threshold, compute_data_type=data_type.FLOAT)
    greater.set_data_type(data_type.BOOLEAN)
    both = g.logical_and(a=greater, b=mask, compute_data_type=data_type.BOOLEAN)
    both.set_output(True).set_data_type(data_type.BOOLEAN)
    with pytest.warns(FrontendKnownIssueWarning, match=PACKED_BOOLEANS_WARNING):
        g.graph()


def test_virtual_booleans_give_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_warned", set())
    g = RecordingGraph((9, 28, 0))
    place: dict[str, Any] = {"dim": [4, 8, 16], "stride": [128, 16, 1], "data_type": data_type.FLOAT}
    x, y = (tensor(name=name, **place) for name in "xy")
    greater = g.cmp_gt(input=x, comparison=y, compute_data_type=data_type.FLOAT).set_data_type(data_type.BOOLEAN)
    g.binary_select(x, y, greater, compute_data_type=data_type.FLOAT).set_output(True).set_data_type(data_type.FLOAT)
    assert list_issue_warning_categories(g.graph, "booleans-in-memory") == []
