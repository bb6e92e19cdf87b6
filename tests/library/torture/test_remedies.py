"""A short check that exact remedies are supported and keep results; ``python -m tests.torture remedies`` is longer."""

from __future__ import annotations

from tests.torture.busy_machine import (
    compare_verdicts_of_idle_and_busy_machine,
    explain_in_parallel,
    make_random_queries,
)
from tests.torture.harness import run_torture_round


def test_exact_remedies_compute_the_same_as_the_graph() -> None:
    counts = run_torture_round("remedies", 3)
    assert counts["refused"] > 3
    assert counts["compared again, same"] > 3
    assert counts["exact"] == counts["compared again, same"] + counts["not compared"]


def test_verdicts_judged_in_parallel_equal_serial_verdicts() -> None:
    """``python -m tests.torture.busy_machine`` judges more graphs."""
    queries = make_random_queries(10, seed=1, built=0.1)
    counts, lines = compare_verdicts_of_idle_and_busy_machine(
        explain_in_parallel(queries, 1), explain_in_parallel(queries, 4)
    )
    assert lines == []
    assert counts["not supported"] >= 8
    assert counts["measured"] > 2
