"""Plan files are checked before use; engines, knobs and notes can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import (
    BehaviorNote,
    CudnnBackendError,
    EnvironmentNotReady,
    KnobType,
    NotSupported,
    OperationGraph,
    Plan,
    build_plan,
    execute,
    load_plan,
    open_target,
)
from examples import flash_forward, forum_two_matmul


@pytest.fixture(scope="module")
def question() -> OperationGraph:
    return OperationGraph(flash_forward.graph(), open_target("sm90"))


@pytest.fixture(scope="module")
def plan(question: OperationGraph) -> Plan:
    return build_plan(question.heuristics("A").configs[0])


def test_plan_says_what_it_is(plan: Plan) -> None:
    assert plan.tag.startswith("eng")
    assert plan.workspace_bytes >= 0
    assert json.loads(plan.json())


def change_byte(text: str) -> str:
    place = text.index('"plan": "') + 200
    return text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (change_byte, "plan-file"),
        (lambda text: text[: len(text) // 2], "plan-file"),
        (lambda _: "[]", "plan-file"),
        (lambda text: text.replace('"version": 1', '"version": 99', 1), "plan-file"),
        (lambda text: text.replace('"cudnn": "9.', '"cudnn": "8.', 1), "plan-version-mismatch"),
        (lambda text: text.replace('"sm": 90', '"sm": 80', 1), "plan-architecture-mismatch"),
    ],
    ids=["changed byte", "cut off", "another JSON", "future version", "another cuDNN", "another architecture"],
)
def test_a_plan_file_that_does_not_fit_is_refused(plan: Plan, tmp_path: Path, change: Any, code: str) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(CudnnBackendError) as caught:
        load_plan(path, plan.target)
    assert caught.value.code == code


def test_a_plan_for_a_described_gpu_does_not_run(plan: Plan) -> None:
    with pytest.raises(EnvironmentNotReady, match="plan-without-device"):
        execute(plan, {})


def test_engines_and_knobs_can_be_asked_for(question: OperationGraph) -> None:
    assert question.engine_count > 2
    best = question.heuristics("A").configs[0]
    knobs = {knob.type: knob for knob in question.knobs(best.engine)}
    assert KnobType.KERNEL_CFG in knobs
    assert set(best.knobs) <= set(knobs)
    for kind, value in best.knobs.items():
        assert knobs[kind].minimum <= value <= knobs[kind].maximum


def test_a_config_made_by_hand_equals_the_proposed_one(question: OperationGraph) -> None:
    best = question.heuristics("A").configs[0]
    same = question.config(best.engine, best.knobs)  # type: ignore[arg-type]
    assert same.tag == best.tag
    assert build_plan(same).workspace_bytes == build_plan(best).workspace_bytes
    assert BehaviorNote.RUNTIME_COMPILATION in best.behavior_notes


def test_an_engine_that_does_not_take_the_graph_says_why() -> None:
    question = OperationGraph(forum_two_matmul.graph(), open_target("sm90"))
    with pytest.raises(NotSupported) as caught:
        question.config(1)
    assert 3000 <= int(caught.value.status) < 4000
