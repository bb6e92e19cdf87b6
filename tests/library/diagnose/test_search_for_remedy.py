"""For a refusal without a remedy, `explain` searches for changes as `--whatif` does."""

from __future__ import annotations

from cudnn_backend_py import attention
from cudnn_backend_py.diagnose import Judge, Query
from cudnn_backend_py.diagnose.remedies import add_searched_remedy


def test_a_refusal_without_a_remedy_gets_the_smallest_change() -> None:
    graph = attention.sdpa_backward(batch=1, heads=2, seq_q=512, head_dim=512, version=(9, 28, 0), allow_hazards=True)
    with Judge() as judge:
        question = Query(graph, "sm90")
        refused = judge.run_query(question)
        assert refused.cause is not None
        assert not refused.cause.remedy
        cause = add_searched_remedy(refused, question, judge).cause
    assert cause is not None
    assert cause.headline == refused.cause.headline
    assert cause.remedy.startswith("head dim of ")
    assert cause.advice.endswith(" [passes its support check, not built]")


def test_a_search_without_success_reports_how_many_changes_were_checked() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=512, head_dim=20)
    with Judge() as judge:
        question = Query(graph, "sm75")
        verdict = add_searched_remedy(judge.run_query(question), question, judge)
    assert verdict.cause is not None
    assert not verdict.cause.remedy
    assert "changes of one step were checked, none helps" in verdict.limits[-1]
