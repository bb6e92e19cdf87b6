"""Installs under attack, a few rounds without pip."""

from __future__ import annotations

from collections import Counter

from tests.torture.harness import run_round
from tests.torture.install import FORGERIES


def test_install_under_attack() -> None:
    counts: Counter[str] = Counter()
    for seed in (1, 2):
        counts += run_round("install", seed)
    assert sum(count for what, count in counts.items() if what.startswith("forged, refused")) == 2 * len(FORGERIES)
    assert counts["damaged, refused"] > 60
    assert counts["damaged installations found and repaired"] == 22
    assert counts["unpackings killed"] == 24
    assert counts["of them in the middle"] > 0
