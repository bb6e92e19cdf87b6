"""Run command lines with bad arguments, bad files and Ctrl-C, and check that no process is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.support.bad_files import list_commands_with_bad_files, write_bad_files
from tests.support.child import ROOT
from tests.support.damaged_texts import HOSTILE_TEXTS, assert_safe_to_print
from tests.torture.harness import BrokenGuarantee

COMMANDS_PER_ROUND = 4  # number of commands; half as many are interrupted
COMMAND_LIMIT_S = 120.0
_CHILD_EXIT_LIMIT_S = 20.0  # time limit for a child to end after its parent
_MARK_VARIABLE = "CUDNN_BACKEND_TORTURE"
# Signals the start of the command through a pipe: before that, Python itself handles Ctrl-C.
_START_PROGRAM = """
import os, sys
ready = int(sys.argv.pop(1))
from cudnn_backend_py.__main__ import main
os.write(ready, b"r")
os.close(ready)
main()
"""
_RANDOM_ARGUMENTS = (
    "--help",
    "--format",
    "json",
    "html",
    "--target",
    "sm80",
    "gpu",
    "--",
    "-",
    "",
    "--output",
    "--build",
    "9.14.0",
)


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Run random command lines to their end, and interrupt others with Ctrl-C."""
    rng = random.Random(seed)
    write_bad_files(folder)
    counts: Counter[str] = Counter()
    lines = [
        arguments
        for command in list_commands_with_bad_files().values()
        for arguments, _ in command
        if "attention-table" not in arguments
    ]
    for _ in range(COMMANDS_PER_ROUND):
        arguments = _change_arguments(rng, rng.choice(lines))
        counts[f"exit code {_run_command(arguments, folder, None)}"] += 1
    graph = str(ROOT / "examples" / "flash_forward.py")
    for _ in range(COMMANDS_PER_ROUND // 2):
        slow = rng.choice(
            [
                ["explain", graph, "--target", "sm80", "--target", "sm90", "--build", "--format", "json"],
                ["explain", "--whatif", graph, "--target", "sm90"],
                ["matrix", graph, "--target", "sm80", "--workers", "2", "--fresh", "--format", "json"],
                ["explain", graph, "--target", "sm90", "--cudnn", "9.19.0"],
                ["explain", graph, "--target", "sm90", "--output", "r.zip"],
                ["doctor"],
            ]
        )
        code = _run_command(slow, folder, rng.random() ** 2 * 3)
        counts["interrupted" if code == 130 else f"finished before it was interrupted: {code}"] += 1
    return counts


def _change_arguments(rng: random.Random, arguments: list[str]) -> list[str]:
    """Return a command line with arguments removed, duplicated, replaced or added, none that uses the network."""
    changed = list(arguments)
    for _ in range(rng.randrange(3)):
        at = rng.randrange(1, len(changed) + 1)
        word = rng.choice([*_RANDOM_ARGUMENTS, *HOSTILE_TEXTS]).replace("\x00", "")
        changed[at : at + rng.randrange(2)] = [word] * rng.randrange(1, 3)
    reaches = changed[:1] == ["record"] or changed[:2] == ["cudnn", "install"]
    return list(arguments) if reaches else changed


def _run_command(arguments: list[str], folder: Path, interrupt_after_s: float | None) -> int:
    """Run a command line and return its exit code; check the code, the output, and that no process is left."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    private = {_MARK_VARIABLE: mark, "CUDNN_BACKEND_PLAN_CACHE": str(folder / "plans"), "PYTHONPATH": str(ROOT)}
    reading, writing = os.pipe()
    whole = [sys.executable, "-c", _START_PROGRAM, str(writing), *arguments]
    with subprocess.Popen(
        [os.fsencode(word) for word in whole],
        cwd=folder,
        env={**os.environ, **private, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[writing],
    ) as child:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        if interrupt_after_s is not None:
            try:
                child.wait(interrupt_after_s)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
        try:
            out, err = (stream.decode("utf-8", "replace") for stream in child.communicate(timeout=COMMAND_LIMIT_S))
        except subprocess.TimeoutExpired:
            child.kill()
            raise BrokenGuarantee(f"{arguments} did not end in {COMMAND_LIMIT_S:g} s") from None
    left = _kill_remaining_marked_processes(mark)
    code = child.returncode
    if code == -signal.SIGINT and interrupt_after_s is not None:
        code = 130  # Ctrl-C during Python's exit, after it removed its signal handlers
    what = f"{arguments}, interrupted after {interrupt_after_s}: exit code {code}\n{out}\n{err}"
    if left:
        raise BrokenGuarantee(f"processes still running: {left}\n{what}")
    theirs = arguments[:1] == ["why"]  # `why` runs a user's program; Python prints exceptions of that program
    if code not in (0, 1, 2, 130) or ("Traceback" in err + out and not theirs):
        raise BrokenGuarantee(what)
    assert_safe_to_print(err)
    if not {"html", "junit", "github", "json"} & set(arguments):
        assert_safe_to_print(out)
    return code


def _kill_remaining_marked_processes(mark: str) -> list[str]:
    """Kill the marked processes that still run at the time limit, and return their ids."""
    deadline = time.monotonic() + _CHILD_EXIT_LIMIT_S
    while found := _find_marked_processes(mark):
        if time.monotonic() > deadline:
            for process in found:
                os.kill(process, signal.SIGKILL)
            return [str(process) for process in found]
        time.sleep(0.05)
    return []


def _find_marked_processes(mark: str) -> list[int]:
    wanted = f"{_MARK_VARIABLE}={mark}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found
