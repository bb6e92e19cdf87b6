"""A short run of verdicts on random graphs; ``python -m tests.torture graphs`` is the long run."""

from __future__ import annotations

from tests.torture.harness import run_torture_round


def test_every_random_graph_gets_a_verdict() -> None:
    counts = run_torture_round("graphs", 47)
    assert counts["graphs"] == counts["supported"] + counts["not supported"] + counts["could not be judged"] == 60
    assert counts["not supported"] > 20
    assert counts["supported"] > 3
    kinds = [name for name in counts if name.startswith("operation_")]
    assert len(kinds) > 20, kinds
