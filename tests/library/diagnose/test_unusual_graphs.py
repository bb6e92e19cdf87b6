"""Verdicts on unusual graphs, and with failing cause rules: never an exception."""

from __future__ import annotations

import json

import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, UsageError, explain
from cudnn_backend_py.diagnose import Basis, Outcome, Verdict, render_text
from cudnn_backend_py.diagnose.causes import find as causes_module
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.rewrite.changes import CHANGES
from tests.pure.diagnose.test_odd_graphs import (
    FAILURE_MESSAGE_END,
    LARGEST_INT64,
    make_matmul_with_largest_uids,
)
from tests.support.child import run_code

REFUSED_BY_PACKAGE_MESSAGE = "refused by this package; cuDNN was not called"


def make_concatenation(axis: int) -> Graph:
    g = GraphBuilder(f"concat along {axis}")
    a, b, o = g.tensor("a", (4, 16)), g.tensor("b", (4, 16)), g.tensor("o", (4, 32))
    g.operation(DescriptorType.OPERATION_CONCAT, axis=axis, input=(a, b), output=o)
    return g.graph()


def make_attention_with_head_dim_20(**options: object) -> Graph:
    return sdpa_forward(**{"batch": 2, "heads": 4, "seq_q": 256, "head_dim": 20, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [-1, 9, 1 << 40])
def test_a_refusal_by_this_package_is_not_attributed_to_cudnn(axis: int) -> None:
    verdict = explain(make_concatenation(axis), "sm90")
    assert verdict.cause is not None
    assert (verdict.outcome, verdict.stage, verdict.exit_code) == (Outcome.NOT_SUPPORTED, "graph", 1)
    assert (verdict.cause.code, verdict.cause.basis, verdict.cause.detail) == (
        "axis-out-of-range",
        Basis.RULE,
        REFUSED_BY_PACKAGE_MESSAGE,
    )
    assert verdict.cause.headline == f"axis {axis} is out of range: 0 to 7 is needed, as a tensor has at most 8 dims"
    assert [str(stage) for stage in verdict.stages][:3] == [
        "environment passed", "graph refused", "operation graph not reached",
    ]  # fmt: skip
    assert (verdict.candidates, verdict.reasons) == ((), ())  # cuDNN gave no reason


def test_diagnosis_rules_do_not_fail_on_odd_graphs() -> None:
    verdict = explain(make_matmul_with_largest_uids(), "sm90")
    assert verdict.outcome is not Outcome.NOT_JUDGED
    assert "of this package failed" not in json.dumps(verdict.to_dict())
    assert verdict.supported or verdict.reasons or verdict.candidates


def test_the_cause_of_a_graph_with_the_largest_uids_names_its_tensors() -> None:
    g = GraphBuilder("largest", io_type=DataType.DOUBLE, first_uid=LARGEST_INT64 - 2)
    g.matmul(g.tensor("a", (1, 3, 5)), g.tensor("b", (1, 5, 7)), name="c", virtual=False)
    largest = explain(g.graph(), "sm90", mode="A")
    g = GraphBuilder("largest", io_type=DataType.DOUBLE)
    g.matmul(g.tensor("a", (1, 3, 5)), g.tensor("b", (1, 5, 7)), name="c", virtual=False)
    small = explain(g.graph(), "sm90", mode="A")
    assert largest.cause == small.cause
    assert largest.limits == small.limits


# failing rules


def test_a_failing_rule_is_reported_and_cudnns_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = explain(make_attention_with_head_dim_20(), "sm90")
    assert before.cause is not None
    assert before.cause.code == "head-dim"

    def raise_key_error(*_: object) -> None:
        raise KeyError((3, 2))

    monkeypatch.setattr(causes_module, "PHRASE_RULES", dict.fromkeys(causes_module.PHRASE_RULES, raise_key_error))
    monkeypatch.setattr(causes_module, "RULES", [raise_key_error])
    for name in list(CHANGES):
        monkeypatch.setitem(CHANGES, name, raise_key_error)
    steps = ("_blame_single_change", "_blame_architecture", "_blame_change_and_architecture")
    other = ("explain_pattern_removed", "_blame_change_and_other_cause", "blame_refused_attention_options")
    for step in (*steps, *other):
        monkeypatch.setattr(causes_module, step, raise_key_error)
    verdict = explain(make_attention_with_head_dim_20(), "sm90")
    assert verdict.cause is not None
    assert verdict.cause.basis is Basis.GUESS
    assert (verdict.outcome, verdict.reasons, verdict.candidates) == (before.outcome, before.reasons, before.candidates)
    assert verdict.limits == (*before.limits, f"the rule raise_key_error {FAILURE_MESSAGE_END}")
    assert FAILURE_MESSAGE_END in render_text(verdict)
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


def test_a_failure_of_this_package_gives_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes_module, "find_cause", lambda *_, **__: {}[3, 2])
    verdict = explain(make_attention_with_head_dim_20(), "sm90")
    assert verdict.cause is not None
    assert (verdict.outcome, verdict.exit_code, verdict.cause.code) == (Outcome.NOT_JUDGED, 2, "judging-failed")
    assert verdict.cause.headline == f"the judging {FAILURE_MESSAGE_END}"
    assert verdict.cudnn != "none"


def test_explain_raises_only_on_wrong_arguments() -> None:
    for options in ({"target": "sm1"}, {"target": "sm90", "mode": "C"}):
        with pytest.raises(UsageError, match=r"unknown-target|unknown-enumerator"):
            explain(make_attention_with_head_dim_20(), **options)  # type: ignore[arg-type]


def test_a_timeout_exception_ends_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a signal handler reaches the caller, also if it is raised inside a rule."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError("the caller's")

    monkeypatch.setattr(causes_module, "RULES", [raise_timeout])
    with pytest.raises(TimeoutError, match="the caller's"):
        explain(make_attention_with_head_dim_20(), "sm90")


def test_two_processes_give_the_same_verdict() -> None:
    program = (
        "import json\n"
        "from cudnn_backend_py import explain\n"
        "from tests.support.operations import OPERATION_GRAPHS\n"
        "print(json.dumps([explain(make(), 'sm90').to_dict() for make in OPERATION_GRAPHS.values()]))"
    )
    first, second = (run_code(program).stdout for _ in range(2))
    assert len(json.loads(first)) > 30
    assert first == second
