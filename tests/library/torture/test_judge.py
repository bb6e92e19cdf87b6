"""A short run of the torture test that interrupts queries to a judge: one round."""

from __future__ import annotations

from tests.torture.harness import run_round


def test_no_verdict_belongs_to_another_query() -> None:
    counts = run_round("judge", 3)
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
