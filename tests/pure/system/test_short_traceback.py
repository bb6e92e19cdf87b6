"""The traceback of a program that this package runs shows the program's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.child import FinishedChild, run_python

PROGRAM = """
import library

def train():
    library.call(lambda: 1 / 0)

try:
    train()
except ZeroDivisionError as error:
    raise ValueError("no step") from error
"""


def run_program(folder: Path, text: str = PROGRAM) -> FinishedChild:
    """Run a program that calls a library, which calls it back, and hide the library's frames."""
    (folder / "library").mkdir()
    (folder / "library/__init__.py").write_text("def call(function):\n    return function()\n")
    (folder / "program.py").write_text(text)
    runner = folder / "runner.py"
    runner.write_text(
        "import runpy, sys\n"
        "from cudnn_backend_py.system.short_traceback import shorten_traceback\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        "try:\n"
        f"    runpy.run_path({str(folder / 'program.py')!r}, run_name='__main__')\n"
        "except BaseException as error:\n"
        "    shorten_traceback(error, ['library'])\n"
        "    raise\n"
    )
    return run_python([str(runner)])


def list_frames(stderr: str) -> list[str]:
    """Return file name and function of each frame."""
    lines = [line.strip() for line in stderr.splitlines()]
    return [f"{Path(line.split(chr(34))[1]).name} {line.split()[-1]}" for line in lines if line.startswith("File ")]


def test_frames_of_libraries_are_left_out(tmp_path: Path) -> None:
    done = run_program(tmp_path)
    assert done.code == 1
    assert list_frames(done.stderr) == [
        *("program.py <module>", "program.py train", "program.py <lambda>"),
        *("runner.py <module>", "program.py <module>"),
    ]
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert done.stderr.endswith(
        "ValueError: no step\n(CUDNN_BACKEND_TRACEBACK=1 also shows the frames of cudnn_backend_py and library)\n"
    )


def test_an_environment_variable_makes_tracebacks_show_all_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_TRACEBACK", "1")
    assert "__init__.py call" in list_frames(run_program(tmp_path).stderr)


def test_an_excepthook_set_by_the_program_is_kept(tmp_path: Path) -> None:
    text = "import sys\nsys.excepthook = lambda *error: print('mine', file=sys.stderr)\n1 / 0\n"
    assert run_program(tmp_path, text).stderr == "mine\n"


@pytest.mark.parametrize("text", ["1 / 0", "def broken(:"])
def test_the_why_command_shows_only_the_failing_program_line(tmp_path: Path, text: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(text + "\n")
    done = run_python(["-m", "cudnn_backend_py.why", str(program)])
    assert done.code == 1
    assert list_frames(done.stderr)[:1] in (["program.py <module>"], ["program.py 1"])
    assert len(list_frames(done.stderr)) == 1
