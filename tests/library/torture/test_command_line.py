"""A short run of random command lines; ``python -m tests.torture command_line`` is the long run."""

from __future__ import annotations

from collections import Counter

from tests.torture.harness import run_torture_round


def test_random_command_lines_have_documented_exit_codes() -> None:
    counts: Counter[str] = sum((run_torture_round("command_line", seed) for seed in (0, 1)), Counter())
    assert sum(counts.values()) == 12
    assert counts["exit code 2"] >= 3
