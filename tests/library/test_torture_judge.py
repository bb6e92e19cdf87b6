"""The attack on the judge in short: a few seeds."""

from __future__ import annotations

from collections import Counter

from tests.torture.harness import run_round


def test_no_answer_is_that_to_another_question() -> None:
    counts: Counter[str] = Counter()
    for seed in (3, 4):
        counts += run_round("judge", seed)
    assert counts["questions"] >= 120
    assert counts["answered, rightly"] >= 100
    assert sum(counts[what] for what in ("interrupted by a signal", "limits", "kills", "forks", "tasks cancelled")) >= 3
