"""Verdicts leak nothing in the process: the numbers of objects, exit functions, files and threads stay the same.

``python -m benchmarks long-use`` measures the same over 100,000 verdicts, compared with a C loop of cuDNN calls.
"""

from __future__ import annotations

import json

import pytest

from tests.support.child import run_code

LEAK_PROGRAM = """
import atexit, collections, gc, json, os, threading
from cudnn_backend_py import explain
from tests.library.diagnose.test_unusual_graphs import make_concatenation
from tests.support.operations import OPERATION_GRAPHS
from tests.support.varied_graphs import VARIED_GRAPHS

MAKERS = [VARIED_GRAPHS[name] for name in {names}]
if not {build}:
    MAKERS += [OPERATION_GRAPHS["rope"], lambda: make_concatenation(9)]

def judge_all(rounds):
    for number in range(rounds):
        explain(MAKERS[number % len(MAKERS)](), "sm90", build={build})

def left():
    gc.collect()
    made = collections.Counter(f"{{type(one).__module__}}.{{type(one).__qualname__}}" for one in gc.get_objects())
    files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    counted = {{"exit functions": atexit._ncallbacks(), "files": files, "threads": threads}}
    return json.dumps({{**made, **counted, "Python threads": threading.active_count()}})  # text: gc does not count it

judge_all({warm})
left()  # itself makes some
before = left()
judge_all({rounds})
print(before)
print(left())
"""


@pytest.mark.parametrize(
    ("build", "names", "warm", "rounds"),
    [
        (False, ["unified f16 d 64", "two matmul, reordered, s 10", "matmul f16 odd k", "reduce max"], 36, 90),
        (True, ["matmul f16 64"], 2, 4),
    ],
    ids=["verdicts", "builds"],
)
def test_verdicts_leak_no_objects_files_or_threads(build: bool, names: list[str], warm: int, rounds: int) -> None:
    program = LEAK_PROGRAM.format(build=build, names=names, warm=warm, rounds=rounds)
    before, after = map(json.loads, run_code(program).stdout.splitlines())
    assert {name: after[name] - before[name] for name in after if after[name] != before.get(name)} == {}
