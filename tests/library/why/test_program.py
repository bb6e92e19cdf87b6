"""Programs under ``python -m cudnn_backend_py.why`` run unchanged, and their report comes after them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.printable import printable
from tests.support.child import ROOT

pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

CALL = """
import torch
import torch.nn.functional as F
def attend(count=1):
    for _ in range(count):
        q = torch.ones(1, 2, 16, 8)
        F.scaled_dot_product_attention(q, q, q)
"""


def run_why(
    tmp_path: Path, program: str, *arguments: str, options: tuple[str, ...] = ("--no-ask",)
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a program under ``why``, and return the ended process and its report."""
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    output = tmp_path / "why.json"
    command = [sys.executable, "-m", "cudnn_backend_py.why", "--output", str(output), *options, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    return done, json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}


def list_call_counts(report: dict[str, Any]) -> list[int]:
    return [one["count"] for one in report["findings"]]


def test_a_program_keeps_its_name_arguments_and_exit_code(tmp_path: Path) -> None:
    program = f"""{CALL}
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--target")
parser.add_argument("rest", nargs="*")
given = parser.parse_args()
attend(3)
print(__name__, given.target, given.rest, sys.argv[0], sys.path[0])
sys.exit(7)
"""
    done, report = run_why(tmp_path, program, "--target", "own", "a", "-b" if False else "b")
    assert done.returncode == 7
    assert done.stdout == f"__main__ own ['a', 'b'] {tmp_path / 'program.py'} {tmp_path}\n"
    assert list_call_counts(report) == [3]
    assert report["findings"][0]["place"]["text"] == f"{tmp_path / 'program.py'}:7 in attend"


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise RuntimeError('its own')", 1, "RuntimeError: its own"),
        ("import sys; sys.exit('a text')", 1, "a text"),
        ("import sys; sys.exit()", 0, ""),
        ("raise KeyboardInterrupt", None, "KeyboardInterrupt"),
    ],
)
def test_why_keeps_exit_code_and_error_output_of_the_program(
    tmp_path: Path, end: str, code: int | None, said: str
) -> None:
    done, report = run_why(tmp_path, f"{CALL}\nattend()\n{end}\n")
    assert done.returncode == code if code is not None else done.returncode != 0
    assert said in done.stderr
    assert list_call_counts(report) == [1]


def test_a_program_may_import_torch_late_or_not_at_all(tmp_path: Path) -> None:
    late = "def work():\n" + "\n".join(f"    {line}" for line in CALL.splitlines()) + "\n    attend(2)\nwork()\n"
    done, report = run_why(tmp_path, late)
    assert (done.returncode, list_call_counts(report)) == (0, [2])
    done, report = run_why(tmp_path, "import sys\nprint('torch' in sys.modules)\n")
    assert (done.stdout, report["findings"]) == ("False\n", [])
    assert report["unseen"] == ["anything: the program did not import torch"]


def test_a_program_may_close_its_standard_error(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys\nprint('said')\nsys.stderr.close()\n")
    done = subprocess.run(
        [sys.executable, "-m", "cudnn_backend_py.why", str(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "said\n")


def test_child_processes_of_the_program_do_not_change_the_report(tmp_path: Path) -> None:
    program = f"""{CALL}
import os, sys
from torch.utils.data import DataLoader
if __name__ == "__main__":
    data = list(range(8))
    torch.set_num_threads(1)  # a forked process has no other threads
    for context in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context)
        assert sum(int(batch.sum()) for batch in loader) == 28
    attend()
    child = os.fork()
    if child == 0:
        attend(5)
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    attend()
"""
    done, report = run_why(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert list_call_counts(report) == [2]
    assert done.stderr.count("why not cuDNN?") == 1


def test_a_training_program_is_judged_for_a_described_gpu(tmp_path: Path) -> None:
    program = """
import torch
from torch import nn
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
    def forward(self, x):
        q, k, v = (one.unflatten(2, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
model = Layer().cuda().bfloat16()
called = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    called(torch.randn(2, 256, 64, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    done, report = run_why(tmp_path, program, options=("--target", "h100", "--no-ask"))
    assert done.returncode == 0, done.stderr
    (one,) = report["findings"]
    assert (one["count"], one["call"]["q"]["device"], one["place"]["function"]) == (3, "cuda", "forward")
    assert (report["target"], report["machine"]["sm"], report["machine"]["live"]) == ("h100", 90, False)


def test_why_module_and_why_command_run_modules_and_write_html(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text(f"{CALL}\nimport sys\nattend()\nprint(sys.argv[1:])\n")
    command = [sys.executable, "-m", "cudnn_backend_py.why", "--no-ask", "-m", "sample.run", "--x"]
    text = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=_make_environment_with_package_path(), timeout=120
    )
    assert text.stdout == "['--x']\n"
    assert text.stderr.startswith("why not cuDNN? 1 call of attention, 0 of them computed by cuDNN")
    page = tmp_path / "why.html"
    command[2:4] = ["cudnn_backend_py", "why", "--no-ask", "--output", str(page)]
    subprocess.run(
        command, check=True, capture_output=True, cwd=tmp_path, env=_make_environment_with_package_path(), timeout=120
    )
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_invalid_command_lines_are_reported(tmp_path: Path) -> None:
    for arguments, said in (
        (["nowhere.py"], "there is no file nowhere.py"),
        (["--target", "nothing", __file__], "nothing"),
        (["--budget", "nan", __file__], "'nan' is not a valid number of seconds"),
        (["--budget=-1", __file__], "-1"),
        (["--output", str(tmp_path / "no" / "why.txt"), __file__], printable(str(tmp_path / "no"))),
    ):
        command = [sys.executable, "-m", "cudnn_backend_py.why", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert done.returncode == 2
        assert said in done.stderr


def _make_environment_with_package_path() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}
