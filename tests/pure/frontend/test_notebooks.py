"""Notebooks as programs: what of their cells is run, and how it is told where one fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.frontend.notebooks import read_cells
from tests.support.child import run_python

RUNNER = ["-m", "cudnn_backend_py.frontend"]


def notebook(folder: Path, *cells: str | list[str], kind: str = "code") -> Path:
    path = folder / "sample.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": kind, "source": cell} for cell in cells]}))
    return path


def test_lines_that_are_no_python_become_comments(tmp_path: Path) -> None:
    path = notebook(
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


def test_cells_share_a_namespace_and_are_the_main_program(tmp_path: Path) -> None:
    path = notebook(
        tmp_path,
        "import cudnn, sys\nvalue = cudnn.data_type.HALF",
        "def read():\n    return value.name",
        "print(read(), __name__, sys.argv[1:], sys.modules['__main__'].value is value)",
    )
    done = run_python([*RUNNER, str(path), "--epochs", "3"], check=True)
    assert done.stdout.split("\n")[0] == "HALF __main__ ['--epochs', '3'] True"


def test_a_cell_that_fails_is_shown(tmp_path: Path) -> None:
    path = notebook(tmp_path, "a = 1", "b = 2\nraise ValueError(a + b)")
    done = run_python([*RUNNER, str(path)])
    assert done.code == 1
    assert f'File "{path}, cell 2", line 2' in done.stderr
    assert "raise ValueError(a + b)" in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: 3")


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '{"cells": [1]}', '{"cells": [{"cell_type": "code"}]}'])
def test_a_file_that_is_none_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "sample.ipynb"
    path.write_text(content)
    with pytest.raises((UsageError, Exception)) as caught:
        read_cells(path)
    error: Any = caught.value
    assert error.code == "notebook"


def test_text_is_not_run(tmp_path: Path) -> None:
    assert read_cells(notebook(tmp_path, "# a heading", kind="markdown")) == []


def test_only_a_launch_on_a_described_gpu_ends_a_program_well(tmp_path: Path) -> None:
    """What else is raised under ``--target`` comes out as it is."""
    path = notebook(
        tmp_path,
        "from cudnn_backend_py.frontend.errors import FrontendRuntimeError",
        "raise FrontendRuntimeError('here', code=CODE)",
    )
    for code, status, word in (("plan-without-device", 0, "reached execute: here"), ("other", 1, "other: here")):
        shown = path.with_name(f"{code}.ipynb")
        shown.write_text(path.read_text().replace("CODE", repr(code)))
        done = run_python([*RUNNER, "--target", "h100", str(shown)])
        assert (done.code, done.stderr.rstrip().splitlines()[-1].endswith(word)) == (status, True), done.stderr
