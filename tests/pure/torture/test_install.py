"""A short run of the torture test of cuDNN installs, without pip."""

from __future__ import annotations

from collections import Counter

from tests.torture.harness import run_torture_round
from tests.torture.install import FORGERIES


def test_damaged_and_interrupted_installs_are_detected() -> None:
    counts: Counter[str] = Counter()
    for seed in (1,):
        counts += run_torture_round("install", seed)
    assert sum(count for what, count in counts.items() if what.startswith("forged, refused")) == len(FORGERIES)
    assert counts["damaged, refused"] > 30
    assert counts["damaged installations found and repaired"] == 11
    assert counts["unpackings killed"] == 12
    assert counts["unpackings killed with a staging folder"] > 0
