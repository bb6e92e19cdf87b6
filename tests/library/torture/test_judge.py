"""A short run of the torture test that interrupts queries to a judge: one round."""

from __future__ import annotations

from tests.torture.harness import run_torture_round


def test_each_query_gets_its_own_verdict_under_interruptions() -> None:
    counts = run_torture_round("judge", 3)
    assert counts["queries"] >= 100
    assert counts["right answers"] >= 90
    assert (
        sum(
            counts[what]
            for what in (
                "interrupted by a signal",
                "short time limits",
                "killed child processes",
                "forks",
                "tasks cancelled",
            )
        )
        >= 3
    )
