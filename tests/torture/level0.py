"""Call the C API (level 0) with hostile arguments in a child process; every fourth round uses several threads."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.child import make_cudnn_environment, run_python
from tests.torture.harness import VERSIONS, BrokenGuarantee

__all__ = ["run_fuzzer", "run_random_round"]

CALLS_PER_TYPE = 300
THREADS = 3


def run_fuzzer(
    seed: int, calls_per_type: int, folder: Path, environment: Mapping[str, str] | None = None, threads: int = 0
) -> dict[str, Any]:
    """Run the fuzzer in a child process and return its counts; fail on a crash, a hang or a wrong exception."""
    log = folder / f"calls-{seed}.log"
    arguments = ["-W", "error", "-m", "tools.fuzz", str(seed), str(calls_per_type), str(log)]
    given = {**(os.environ if environment is None else environment), "FUZZ_THREADS": str(threads)}
    try:
        done = run_python(arguments, environment=given, timeout_s=300)
        ending, said = done.ending, done.stderr[-3000:]
    except subprocess.TimeoutExpired:
        done, ending, said = None, "no end in 300 s", ""
    if done is None or done.code:
        last = log.read_text(encoding="utf-8").splitlines()[-12:] if log.exists() else []
        raise BrokenGuarantee(f"seed {seed} ended with {ending}\n{said}\nthe last calls were\n" + "\n".join(last))
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Run one round of random calls with an installed cuDNN."""
    version = VERSIONS[seed % len(VERSIONS)]
    environment = None
    if version is not None:
        environment = make_cudnn_environment(version)
    threads = THREADS if seed // len(VERSIONS) % 4 == 3 else 0
    counted = run_fuzzer(seed, CALLS_PER_TYPE // max(1, threads), folder, environment, threads)
    calls = sum(counted["calls"].values())
    outcomes: Counter[str] = Counter(counted["outcomes"])
    return Counter(
        {
            "calls": calls,
            f"calls on cuDNN {counted['cudnn']}": calls,
            "calls in threads": calls if threads else 0,
            "calls that cuDNN answered": sum(n for what, n in outcomes.items() if what.endswith((" done", "-status"))),
            "interrupted": sum(n for what, n in outcomes.items() if what.endswith(" interrupted")),
        }
    )
