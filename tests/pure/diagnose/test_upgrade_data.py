"""Differences between two verdicts on one graph, and their reports; the verdicts are built by the test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.diagnose import Candidate, Outcome, Verdict
from cudnn_backend_py.diagnose.report.ci import make_junit_xml
from cudnn_backend_py.diagnose.report.tables import render_as_text, render_version_comparison
from cudnn_backend_py.diagnose.surveys.upgrade import SLOWDOWN_LIMIT, SPEED_LIMIT, Change, Effect, PlanTimes, Upgrade
from cudnn_backend_py.plans.kernels import Kernel
from tests.support.records import read_record
from tests.support.reporting import make_two_matmuls, make_verdict

REPOSITORY_ROOT = Path(__file__).parents[3]
KERNEL = Kernel("k", "a" * 64, 1024, 168)
PLAN = Candidate("A", 2, {"CUDNN_KNOB_TYPE_TILE_M": 4}, "built", (), 0, kernels=(KERNEL,), build_s=0.3)


def make_verdict_with_candidates(
    outcome: Outcome = Outcome.SUPPORTED, *candidates: Candidate, **changes: Any
) -> Verdict:
    changes = {"hazards": (), "modes": ("A", "B", "FALLBACK"), **changes}
    return make_verdict(make_two_matmuls(), outcome, candidates=candidates or (PLAN,), **changes)


SUPPORTED_ANSWER = make_verdict_with_candidates()
DIFFERENT_ANSWERS = {
    "verdict": make_verdict_with_candidates(Outcome.NOT_SUPPORTED),
    "configs": make_verdict_with_candidates(Outcome.SUPPORTED, PLAN, replace(PLAN, engine=3, state="supported")),
    "first plan": make_verdict_with_candidates(Outcome.SUPPORTED, replace(PLAN, engine=3)),
    "workspace": make_verdict_with_candidates(Outcome.SUPPORTED, replace(PLAN, workspace_bytes=4096)),
    "code": make_verdict_with_candidates(Outcome.SUPPORTED, replace(PLAN, kernels=(replace(KERNEL, sha256="b" * 64),))),
    "faults": make_verdict_with_candidates(hazards=("wrong there: numbers are wrong",)),
}


@pytest.mark.parametrize("what", DIFFERENT_ANSWERS)
def test_each_verdict_difference_is_reported_for_upgrade_and_downgrade(what: str) -> None:
    for pair in ((SUPPORTED_ANSWER, DIFFERENT_ANSWERS[what]), (DIFFERENT_ANSWERS[what], SUPPORTED_ANSWER)):
        change = Change("g", "h100", *pair)
        assert change.effect is Effect.CHANGED
        assert what in {item.what for item in change.differences}


def test_lost_support_is_reported_first_with_its_reason() -> None:
    refused = make_verdict_with_candidates(Outcome.NOT_SUPPORTED)
    assert refused.cause is not None
    pairs = (DIFFERENT_ANSWERS["code"], DIFFERENT_ANSWERS["faults"], refused)
    changes = tuple(Change(f"g{place}", "h100", SUPPORTED_ANSWER, new) for place, new in enumerate(pairs))
    found = Upgrade("9.19.0", "9.28.0", (None, None), changes)
    lines = render_as_text(render_version_comparison(found)).splitlines()
    assert [line.partition(" on ")[0] for line in lines if " on h100: " in line] == ["g2", "g1", "g0"]
    assert lines[0] == f"g2 on h100: support lost: {refused.cause.headline}"
    assert "3 changed (1 lost support)" in render_as_text(render_version_comparison(found))
    assert changes[2].make_test_case("a", "b").message == f"support lost: {refused.cause.headline}"


def test_engine_configs_are_compared_per_mode_and_reported_once() -> None:
    again = replace(PLAN, mode="B", state="supported")
    other, last = replace(again, engine=5), replace(again, engine=5, mode="FALLBACK")
    for pair, expected in (
        (
            (
                make_verdict_with_candidates(Outcome.SUPPORTED, PLAN, again),
                make_verdict_with_candidates(Outcome.SUPPORTED, PLAN),
            ),
            ("B eng2_k40=4", ""),
        ),
        (
            (
                make_verdict_with_candidates(Outcome.SUPPORTED, PLAN, again, other),
                make_verdict_with_candidates(Outcome.SUPPORTED, PLAN, other, again),
            ),
            ("B eng2_k40=4, B eng5_k40=4", "B eng5_k40=4, B eng2_k40=4"),
        ),
        (
            (
                make_verdict_with_candidates(Outcome.SUPPORTED, PLAN, other, last),
                make_verdict_with_candidates(Outcome.SUPPORTED, PLAN),
            ),
            ("B/FALLBACK eng5_k40=4", ""),
        ),
    ):
        change = Change("g", "h100", *pair)
        assert [(one.what, one.old, one.new) for one in change.differences] == [("configs", *expected)]
    assert change.to_dict()["old"]["configs"] == {"A": ["eng2_k40=4"], "B": ["eng5_k40=4"], "FALLBACK": ["eng5_k40=4"]}


def test_engine_configs_are_compared_without_a_buildable_plan() -> None:
    failed = replace(PLAN, state="build failed", kernels=None)
    old = make_verdict_with_candidates(Outcome.NOT_SUPPORTED, failed)
    new = make_verdict_with_candidates(Outcome.NOT_SUPPORTED, failed, replace(failed, engine=7))
    assert [item.what for item in Change("g", "h100", old, new).differences] == ["configs"]


@pytest.mark.parametrize(
    ("changes", "has_same_code", "has_same_plan"),
    [
        ({}, True, True),
        ({"engine": 9}, True, True),
        ({"knobs": {"CUDNN_KNOB_TYPE_SPLIT_K": 2}}, True, False),
        ({"workspace_bytes": 16}, True, False),
        ({"kernels": (replace(KERNEL, name="other"),)}, True, True),
        ({"kernels": (replace(KERNEL, registers=96),)}, False, False),
        ({"kernels": None}, None, False),
    ],
)
def test_a_plan_with_equal_code_but_other_knobs_or_workspace_is_reported_as_changed(
    changes: dict[str, Any], has_same_code: bool | None, has_same_plan: bool
) -> None:
    change = Change(
        "g", "h100", SUPPORTED_ANSWER, make_verdict_with_candidates(Outcome.SUPPORTED, replace(PLAN, **changes))
    )
    assert (change.has_same_code, change.has_same_plan) == (has_same_code, has_same_plan)


def test_the_build_time_is_reported_but_is_not_a_difference() -> None:
    change = Change(
        "g", "h100", SUPPORTED_ANSWER, make_verdict_with_candidates(Outcome.SUPPORTED, replace(PLAN, build_s=9.0))
    )
    assert (change.effect, change.to_dict()["new"]["build_s"]) == (Effect.UNCHANGED, 9.0)


def test_unknown_kernel_code_is_not_reported_as_unchanged() -> None:
    hidden = make_verdict_with_candidates(Outcome.SUPPORTED, replace(PLAN, kernels=None))
    change = Change("g", "h100", hidden, hidden)
    assert (change.effect, change.has_same_code, change.differences) == (Effect.CODE_UNKNOWN, None, ())


def test_an_unjudged_graph_is_not_reported_as_changed() -> None:
    lost = make_verdict_with_candidates(Outcome.NOT_JUDGED)
    assert Change("g", "h100", SUPPORTED_ANSWER, lost).effect is Effect.NOT_JUDGED
    assert Upgrade("1", "2", (None, None), (Change("g", "h100", SUPPORTED_ANSWER, lost),)).exit_code == 2


def test_another_reason_for_a_refusal_is_reported_as_a_change() -> None:
    one, other = (
        make_verdict_with_candidates(Outcome.NOT_SUPPORTED),
        make_verdict_with_candidates(Outcome.NOT_SUPPORTED),
    )
    assert Change("g", "h100", one, other).effect is Effect.UNCHANGED
    assert other.cause is not None
    other = replace(other, cause=replace(other.cause, headline="another"))
    assert [item.what for item in Change("g", "h100", one, other).differences] == ["reason"]


@pytest.mark.parametrize(
    ("times", "named", "worse"),
    [
        (PlanTimes(100.0, 104.0, "right", "right"), [], False),
        (PlanTimes(100.0, 106.0, "right", "right"), ["time"], True),
        (PlanTimes(106.0, 100.0, "right", "right"), ["time"], False),
        (PlanTimes(100.0, None, "right", "wrong"), ["numbers"], True),
        (PlanTimes(None, 100.0, "wrong", "right"), ["numbers"], False),
    ],
)
def test_time_differences_above_five_percent_and_wrong_results_are_reported(
    times: PlanTimes, named: list[str], worse: bool
) -> None:
    change = Change("g", "gpu", SUPPORTED_ANSWER, SUPPORTED_ANSWER, times)
    assert [item.what for item in change.differences] == named
    assert change.is_worse is worse


def test_new_known_issues_are_reported_as_worse_and_removed_ones_are_not() -> None:
    entered, left = (
        Change("g", "h100", SUPPORTED_ANSWER, DIFFERENT_ANSWERS["faults"]),
        Change("g", "h100", DIFFERENT_ANSWERS["faults"], SUPPORTED_ANSWER),
    )
    assert entered.new_known_issues == left.removed_known_issues == ("wrong there: numbers are wrong",)
    assert (entered.is_worse, left.is_worse) == (True, False)


def test_graphs_left_out_by_the_time_limit_are_reported_with_exit_code_2() -> None:
    same = Change("same", "gpu", SUPPORTED_ANSWER, SUPPORTED_ANSWER)
    found = Upgrade("1", "2", (None, None), (same,), unjudged_graphs=("a", "b"), untimed_graphs=("same",))
    assert found.unfinished_work == [
        "2 graphs were not judged within the time limit",
        "1 graph was not timed within the time limit",
    ]
    assert found.exit_code == 2
    assert all(line in render_as_text(render_version_comparison(found)) for line in found.unfinished_work)
    data = found.to_dict()
    assert (data["not_asked"], data["not_timed"], data["limits"][1:]) == (["a", "b"], ["same"], found.unfinished_work)
    assert Upgrade("1", "2", (None, None), (same,)).exit_code == 0


def test_text_json_and_junit_have_the_same_content() -> None:
    changes = [Change(what, "h100", SUPPORTED_ANSWER, other) for what, other in DIFFERENT_ANSWERS.items()]
    found = Upgrade(
        "9.19.0", "9.28.0", ("9.19.0", None), (*changes, Change("same", "h100", SUPPORTED_ANSWER, SUPPORTED_ANSWER))
    )
    text = render_as_text(render_version_comparison(found))
    assert (text.count(": changed"), text.count(": support lost: ")) == (3, 1)
    for what in ("configs", "first plan"):  # the plan's engine got another index
        assert f"{what} on h100: same first plan; listed configs differ" in text
    assert "same on h100" not in text
    assert text.count("  only the compiled code of the first plan differs") == 1
    assert (
        "cuDNN 9.19.0 -> 9.28.0: 7 judged, 1 unchanged, 6 changed (1 lost support, 2 only in the listed configs)"
        in text
    )
    assert "the compiled code of the first plan is the same" in text
    assert "speed was not measured" in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["counts"] == {"unchanged": 1, "code not told": 0, "changed": 6, "could not be judged": 0}
    assert data["limits"] == [SPEED_LIMIT]
    assert data["changes"][0]["old"]["kernels"] == [
        {"name": "k", "sha256": "a" * 64, "code_bytes": 1024, "registers": 168, "architecture": ""}
        | {"shared_bytes": 0, "local_bytes": 0}
    ]
    xml = make_junit_xml(one.make_test_case("9.19.0", "9.28.0") for one in found.changes)
    assert (xml.count("<failure"), xml.count("<testcase")) == (6, 7)
    assert found.exit_code == 1


def test_the_report_names_a_version_without_some_engines() -> None:
    """Engine configs of a JIT wheel and a full wheel differ, but not because of the version."""
    fewer = replace(DIFFERENT_ANSWERS["configs"], limits=("no device", "this library lacks engines"), cudnn="9.27.0")
    one, lost = (
        Change("a", "h100", fewer, replace(SUPPORTED_ANSWER, limits=("no device",))),
        make_verdict_with_candidates(Outcome.NOT_JUDGED),
    )
    found = Upgrade("9.27.0", "default", (None, None), (one, one, Change("b", "h100", fewer, lost)))
    assert found.limits == [SPEED_LIMIT, "cuDNN 9.27.0 alone, for 2 of the graphs: this library lacks engines"]
    assert Upgrade("1", "2", (None, None), (Change("a", "h100", fewer, fewer),)).limits == [SPEED_LIMIT]


def test_the_report_shows_exact_versions_and_rounded_times() -> None:
    times = PlanTimes(14.08000010997057, None, "right", "right")
    found = Upgrade(
        "9.19", "default", (None, None), (Change("g", "gpu", SUPPORTED_ANSWER, DIFFERENT_ANSWERS["workspace"], times),)
    )
    text = render_as_text(render_version_comparison(found))
    assert f"cuDNN 9.19 ({SUPPORTED_ANSWER.cudnn}) -> default ({SUPPORTED_ANSWER.cudnn}): 1 judged, 1 changed" in text
    assert "run by both: right, 14.1 us -> no time" in text


def test_recorded_upgrade_measured_only_graphs_with_changed_code() -> None:
    data = read_record("upgrade-h200-cudnn-9.28.0.json")
    assert len(data["changes"]) == sum(data["counts"].values()) == 56
    timed = {name: one for name, one in data["changes"].items() if one["times"] is not None}
    assert len(timed) == data["timed"] >= 40
    for one in timed.values():
        assert not one["same code"]
        old, new = one["times"]["old_us"], one["times"]["new_us"]
        assert ("time" in one["differs"]) is (
            None not in (old, new) and not 1 / SLOWDOWN_LIMIT <= new / old <= SLOWDOWN_LIMIT
        )
    assert data["flagged"] == [name for name, one in timed.items() if "time" in one["differs"]]
    assert data["same code, timed"] == []
