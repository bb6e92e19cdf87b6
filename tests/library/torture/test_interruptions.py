"""A short run of exceptions raised at random moments: two rounds, one of them without the compiled library."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.torture import interruptions
from tests.torture.harness import run_torture_round


def test_every_injected_exception_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "INTERRUPTIONS_PER_ROUND", 60)
    counts: Counter[str] = Counter()
    for seed in (2, 3):
        counts += run_torture_round("interruptions", seed)
    assert counts["arrived"] == counts["fired"] > 80
    assert {"lost", "wrong type", "out of order"}.isdisjoint(counts)
