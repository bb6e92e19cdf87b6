"""A short run of queries in a changing environment: a few steps of one round."""

from __future__ import annotations

from pathlib import Path

from tests.torture.environment import run_random_round


def test_every_verdict_equals_the_verdict_of_a_fresh_process(tmp_path: Path) -> None:
    counts = run_random_round(5, tmp_path, steps=5)
    assert counts["queries"] >= 12
