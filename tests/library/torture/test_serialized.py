"""A short run that loads damaged serialized graphs."""

from __future__ import annotations

from tests.torture.harness import run_torture_round
from tests.torture.serialized import DAMAGE_BY_NAME


def test_damaged_graph_bytes_are_loaded_or_refused() -> None:
    counts = run_torture_round("serialized", 1)
    assert {what.partition(":")[0] for what in counts} == set(DAMAGE_BY_NAME)
    assert sum(count for what, count in counts.items() if what.endswith("refused")) > 50
