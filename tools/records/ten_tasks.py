"""Run ten tasks of a new user, as the website describes them, in a fresh environment with the wheel.

``python -m tools.records.ten_tasks WHEEL`` creates the environment outside the checkout, runs the commands of the pages
there and writes ``logs/ten-tasks.json``. ``--torch FOLDER`` is a folder with torch. One task needs the built site.
With ``--gpu``, only the tasks that need an sm_90 GPU are run, with the torch of this Python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cudnn_backend_py.info import find_git_commit
from tests.support.chromium import Browser
from tests.support.pages import CODE_BLOCKS, REPOSITORY_ROOT

__all__ = ["GPU_TASKS", "RECORD_PATH", "TASKS", "UserTask"]

RECORD_PATH = REPOSITORY_ROOT / "logs" / "ten-tasks.json"
ENVIRONMENT_FACTS = ["cudnn_backend_py", "python", "cudnn", "gpus"]
METHOD_TEXT = (
    "python -m tools.records.ten_tasks [--gpu] WHEEL: a fresh environment outside the checkout, an empty cache; "
    "commands and files are those of the pages. All ten tasks were tried where there is no GPU, and what a GPU is "
    "needed for where there is one, with the torch and the cuDNN of that machine"
)
PASTED_ERROR_TEXT = (
    "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH: only Hopper is supported for this engine at: !(900 <= deviceVer)"
)


@dataclass(frozen=True, kw_only=True)
class UserTask:
    """A task: its page, commands, files and expected output.

    Attributes
    ----------
    files
        Files that the reader writes or copies: a file of the repository, or the text at the start of the page's
        block.
    shows, exit_code
        Expected output and exit code of the last command.
    trouble
        Obstacle at the first attempt, and how it was resolved.
    left
        Part of the task that was not run, and the reason.
    """

    task: str
    page: str
    commands: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    shows: str = ""
    exit_code: int = 0
    trouble: str = ""
    left: str = ""


FORUM_EXAMPLE_FILE = {"examples/forum_two_matmul.py": "examples/forum_two_matmul.py"}
FLASH_EXAMPLE_FILE = {"examples/flash_forward.py": "examples/flash_forward.py"}
TASKS = (
    UserTask(
        task="first verdict",
        page="docs/tutorials/refusal.md",
        commands=("cudnn-backend explain examples/forum_two_matmul.py --cudnn 9.19.0 --target l40s",),
        files=FORUM_EXAMPLE_FILE,
        shows="engine 0 needs 153600 bytes",
        exit_code=1,
        trouble="the examples are not in the wheel, and the page did not give the file: it and the gallery do now",
    ),
    UserTask(
        task="own graph",
        page="docs/tutorials/graph.md",
        commands=("cudnn-backend explain mine.py --target l40s",),
        files={"mine.py": "from cudnn_backend_py import DataType, GraphBuilder, PointwiseMode\n\n\ndef graph"},
        shows="SUPPORTED: graph 'linear_relu'",
        trouble="the file and the command were only told as text: shown now",
    ),
    UserTask(
        task="log of another program",
        page="docs/tutorials/log.md",
        commands=("cudnn-backend log forum-9.1.1.log.gz --target sm89",),
        files={"forum-9.1.1.log.gz": "tests/pure/importers/data/logs/forum-9.1.1.log.gz"},
        shows="the pattern was removed from cuDNN",
        exit_code=1,
        trouble="without a GPU there is no log to try it on: the page gives one",
    ),
    UserTask(
        task="support table lookup from an error text",
        page="docs/tables/reasons.md",
        shows="only Hopper is supported for this engine",
    ),
    UserTask(
        task="pytest in a CI",
        page="docs/tutorials/ci.md",
        commands=("pytest test_ours.py",),
        files={"test_ours.py": "import pytest"},
        shows="2 passed, 1 skipped",
        trouble="the page's test imported a graph that no one has: it makes one now",
        left="the third test needs a GPU, and says so",
    ),
    UserTask(
        task="torch operator",
        page="docs/tutorials/torch.md",
        commands=("python -m cudnn_backend_py.why --target h100 train.py",),
        files={"train.py": "import torch\nfrom torch.nn.functional import scaled_dot_product_attention\n\nq, k, v"},
        shows="by (dtype)",
        trouble="the page had no program to try: it has one now, with what comes",
        left="the operators themselves need a GPU",
    ),
    UserTask(
        task="plan ahead of time",
        page="docs/tutorials/run.md",
        commands=("cudnn-backend plan build examples/flash_forward.py --target h100 --output plan.json",),
        files=FLASH_EXAMPLE_FILE,
        shows="plan.json: eng",
        trouble="the page did not show how the plan is loaded: it does now",
        left="the plan is run where a GPU is",
    ),
    UserTask(
        task="run and compare",
        page="docs/tutorials/run.md",
        commands=("cudnn-backend run examples/flash_forward.py --target h100",),
        files=FLASH_EXAMPLE_FILE,
        shows="262144 of 262144 elements compared",
        exit_code=2,
        left="nothing was run: what would be run, and how far each result may be off, is reported",
    ),
    UserTask(
        task="upgrade question",
        page="docs/tutorials/ci.md",
        commands=(
            "cudnn-backend cudnn install 9.19.0",
            "cudnn-backend cudnn install 9.28.0",
            "cudnn-backend diff 9.19.0 9.28.0 --target h100 attention.py",
        ),
        files={"attention.py": "examples/flash_forward.py"},
        shows="1 asked, 1 changed",
        exit_code=1,
        trouble="the how-to page named neither a target nor that both versions have to be installed: it does now",
    ),
    UserTask(
        task="report a bug",
        page="docs/how-to/report.md",
        commands=("cudnn-backend explain examples/forum_two_matmul.py --target l40s --format archive",),
        files=FORUM_EXAMPLE_FILE,
        shows="forum_two_matmul-l40s.tar.gz",
        trouble="no page said what goes where: there is one now",
    ),
)
GPU_TASKS = (
    UserTask(
        task="pytest in a CI",
        page="docs/tutorials/ci.md",
        commands=("pytest test_ours.py",),
        files={"test_ours.py": "import pytest"},
        shows="3 passed",
    ),
    UserTask(
        task="torch operator",
        page="docs/tutorials/torch.md",
        commands=("python attend.py",),
        files={"attend.py": "import torch\nfrom torch.nn.functional import scaled_dot_product_attention\n\nfrom cudnn"},
        shows="torch's own differs by 0.0",  # from float32: two bfloat16 roundings of values up to 8 are 0.0625
        trouble="the page had the call alone, of tensors that no one has: it has a program now",
    ),
    UserTask(
        task="why torch did not use cuDNN",
        page="docs/tutorials/torch.md",
        commands=("python -m cudnn_backend_py.why train.py",),
        files={"train.py": "import torch\nfrom torch.nn.functional import scaled_dot_product_attention\n\nq, k, v"},
        shows="by (dtype)",
    ),
    UserTask(
        task="plan ahead of time",
        page="docs/tutorials/run.md",
        commands=(
            "cudnn-backend plan build examples/flash_forward.py --target h100 --output plan.json",
            "python load.py",
        ),
        files=FLASH_EXAMPLE_FILE | {"load.py": "import numpy as np\n\nfrom cudnn_backend_py import execute, load_plan"},
        shows="the first query sees the first key alone: True",
        trouble="the page loaded the plan for buffers that no one has: it runs it now",
    ),
    UserTask(
        task="run and compare",
        page="docs/tutorials/run.md",
        commands=("cudnn-backend run examples/flash_forward.py --configs all",),
        files=FLASH_EXAMPLE_FILE,
        shows="configs right",
    ),
)


def write_task_files(task: UserTask, folder: Path) -> None:
    """Write the files that the page describes."""
    for name, source in task.files.items():
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        if (REPOSITORY_ROOT / source.splitlines()[0]).is_file():
            shutil.copy(REPOSITORY_ROOT / source, place)
        else:
            [block] = [one for one in CODE_BLOCKS if one.page == task.page and one.text.startswith(source)]
            place.write_text(block.text, encoding="utf-8")


def look_up_reason_on_built_page(folder: Path) -> str:
    """Paste an error text into the built page of reasons, and return the text of the entry found."""
    with Browser(folder) as browser:
        page = browser.open(REPOSITORY_ROOT / "site" / "tables" / "reasons.html")
        page.evaluate("document.getElementById('reason').focus()")
        page.write(PASTED_ERROR_TEXT)
        found = "document.querySelector('#reason-found').innerText"
        while not (said := page.evaluate(found)):
            time.sleep(0.02)
        return str(said)


def run_task(task: UserTask, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the task's commands, and return the time and the output line."""
    write_task_files(task, folder)
    begun = time.monotonic()
    said, code = (look_up_reason_on_built_page(folder), 0) if not task.commands else ("", 0)
    for command in task.commands:
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=dict(environment), capture_output=True, text=True, check=False
        )
        said, code = done.stdout + done.stderr, done.returncode
    seconds = round(time.monotonic() - begun, 1)
    came = next((line.strip() for line in said.splitlines() if task.shows in line), "")
    if not came or code != task.exit_code:
        raise AssertionError(f"exit code {code}, {task.exit_code} expected, with {task.shows!r}:\n{said}")
    facts = {"page": task.page.removeprefix("docs/"), "commands": list(task.commands), "seconds": seconds}
    result = {"exit_code": code, "came": came, "trouble": task.trouble, "left": task.left}
    return {"task": task.task, **facts, **result}


def main() -> None:
    """Create the environment, do the tasks, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", type=Path, help="folder to import torch from")
    parser.add_argument(
        "--gpu", action="store_true", help="run only the tasks that need an sm_90 GPU, with this Python's torch"
    )
    options = parser.parse_args()
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:  # torch's extension may still be built in it
        home = Path(name)
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
        if options.gpu:
            [site] = home.glob("venv/lib/python*/site-packages")
            (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        begun = time.monotonic()
        extras = "" if options.gpu else "[jit-cu12,test]"
        # If pytest is installed next to torch, its command is outside the environment.
        wanted = [f"{options.wheel.resolve()}{extras}"], *([["--ignore-installed", "pytest"]] if options.gpu else [])
        for words in wanted:
            pip = [str(home / "venv" / "bin" / "pip"), "install", "--quiet", *words]
            # With a checkout in PYTHONPATH, the package would count as installed.
            subprocess.run(pip, check=True, env={**os.environ, "PYTHONPATH": ""})
        installed = round(time.monotonic() - begun, 1)
        environment = {
            **os.environ,
            "CUDNN_BACKEND_COMMIT": find_git_commit(REPOSITORY_ROOT),
            "PATH": f"{home / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(options.torch.resolve() if options.torch else ""),
            "XDG_CACHE_HOME": str(home / "cache"),
        }
        call = f"i.make_measurement_record_header('ten-tasks', {ENVIRONMENT_FACTS})"
        probe = f"import json, cudnn_backend_py.info as i; print(json.dumps({call}))"
        said = subprocess.check_output(["python", "-c", probe], env=environment, cwd=home, text=True)
        tasks, failed = [], []
        for number, task in enumerate(GPU_TASKS if options.gpu else TASKS):
            folder = home / f"task-{number}"
            folder.mkdir()
            try:
                tasks.append(run_task(task, folder, environment))
            except AssertionError as error:
                failed.append(f"{task.task}: {error}")
            else:
                print(f"{tasks[-1]['seconds']:6.1f} s  {task.task}: {tasks[-1]['came']}", flush=True)
    if failed:
        raise SystemExit("\n\n".join(failed))
    tried = json.loads(said)
    head = {name: tried.pop(name) for name in ("schema", "version")}
    wheel = {"wheel": options.wheel.name, "sha256": hashlib.sha256(options.wheel.read_bytes()).hexdigest()}
    tried |= wheel | {"extras": extras.strip("[]"), "installed_s": installed, "tasks": tasks}
    before = json.loads(RECORD_PATH.read_text(encoding="utf-8")) if RECORD_PATH.is_file() else {}
    record = (
        head | {"how": METHOD_TEXT} | {name: before[name] for name in ("tried", "tried_on_a_gpu") if name in before}
    )
    record["tried_on_a_gpu" if options.gpu else "tried"] = tried
    RECORD_PATH.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
