"""A short run of hostile calls of cuDNN's C API; ``python -m tests.torture level0`` is the long run."""

from __future__ import annotations

from collections import Counter

from tests.torture.harness import run_torture_round


def test_hostile_descriptor_calls_raise_only_package_errors() -> None:
    counts: Counter[str] = Counter()
    for seed in (0, 15):  # 9.14.0 alone, the newest in threads
        counts += run_torture_round("level0", seed)
    assert counts["calls on cuDNN 9.14.0"] > 10_000
    assert counts["calls in threads"] > 10_000
    assert counts["calls that cuDNN answered"] > 3_000
    assert counts["interrupted"] > 3
