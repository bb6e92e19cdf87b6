"""Raise exceptions during nested calls of Python and C: the caller must get each exception once, unchanged.

Every fourth round runs without the compiled library, where exceptions are not raised at arbitrary lines.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.support.child import run_python
from tests.torture.harness import BrokenGuarantee

__all__ = ["run_random_round"]

INTERRUPTIONS_PER_ROUND = 100
METHODS_IN_PYTHON = "signal,callback,logger,thread"
WORKS_IN_PYTHON = (
    "create_and_release_descriptors,call_c_functions,capture_query_log,"
    "forward_log_to_python_logger,query_refusal_reasons"
)
WITHOUT_COMPILED_PROGRAM = (
    "from cudnn_backend_py.native import compiled\n"
    "compiled.find_compiled_libraries = lambda name: []\n"
    "from tests.support.interruptions import main\n"
    "main()"
)


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Raise exceptions in a child process, and check the outcome of each."""
    if seed % 4 == 3:
        arguments = [
            "-c",
            WITHOUT_COMPILED_PROGRAM,
            str(seed),
            str(INTERRUPTIONS_PER_ROUND),
            METHODS_IN_PYTHON,
            WORKS_IN_PYTHON,
        ]
    else:
        arguments = ["-m", "tests.support.interruptions", str(seed), str(INTERRUPTIONS_PER_ROUND)]
    done = run_python(arguments, timeout_s=600)
    if done.code:
        raise BrokenGuarantee(f"the interrupted child process ended with {done.ending}\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    if found["failures"]:
        raise BrokenGuarantee("\n".join(found["failures"]))
    return Counter(found["counts"])
