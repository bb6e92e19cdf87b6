"""A short run of the plan cache with damaged entries, killed writers and a full disk."""

from __future__ import annotations

from collections import Counter

from tests.torture.harness import run_torture_round


def test_the_plan_cache_survives_damage_kills_and_full_disks() -> None:
    counts: Counter[str] = Counter()
    for seed in (0,):
        counts += run_torture_round("plan_cache", seed)
    assert counts["damaged entries"] == 60
    assert counts["damaged real plans"] == 7
    assert counts["writers killed"] > 0
    assert counts["operations of writers"] > 20
    assert counts["writes refused by a full disk"] > 0
    assert counts["filled up to RLIMIT_FSIZE"] == 1
