"""A short run of the stress test of the judge."""

from __future__ import annotations

from tests.torture.harness import run_round


def test_no_answer_is_that_to_another_question() -> None:
    counts = run_round("judge", 3)
    assert counts["questions"] >= 100
    assert counts["answered, rightly"] >= 90
    assert sum(counts[what] for what in ("interrupted by a signal", "limits", "kills", "forks", "tasks cancelled")) >= 3
