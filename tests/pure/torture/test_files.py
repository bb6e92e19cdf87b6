"""A short run of the torture test of file readers."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.torture.files import FILE_KINDS, FILES_PER_ROUND
from tests.torture.harness import run_torture_round


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_mutated_files_are_read_or_refused(seed: int) -> None:
    counts: Counter[str] = run_torture_round("files", seed)
    assert sum(counts.values()) == FILES_PER_ROUND
    assert {what.partition(":")[0] for what in counts} == set(FILE_KINDS)
    assert sum(count for what, count in counts.items() if what.endswith("refused")) > FILES_PER_ROUND // 4
