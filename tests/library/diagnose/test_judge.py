"""Queries judged in child processes: crashes and time limits appear in the verdict."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from cudnn_backend_py import EnvironmentNotReady, UsageError, library
from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict, explain, judge
from cudnn_backend_py.diagnose.processes import JudgingProcesses
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.known_issues import FAULTS
from examples import flash_forward, forum_two_matmul
from examples.attention_known_issues import make_reproduction_graph
from tests.known_issues import EXAMPLES, make_example_graph
from tests.support.child import OLDER_VERSION


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as one:
        yield one


@pytest.mark.parametrize("target", ["sm89", "sm90"])
def test_the_child_gives_the_same_verdict_as_this_process(shared_judge: Judge, target: str) -> None:
    graph = flash_forward.graph()
    assert shared_judge.run_query(Query(graph, target)) == explain(graph, target)


def test_a_child_judges_with_another_cudnn_version(shared_judge: Judge) -> None:
    graph = forum_two_matmul.graph()
    older, newest = (
        shared_judge.run_query(Query(graph, "sm90", OLDER_VERSION)),
        shared_judge.run_query(Query(graph, "sm90")),
    )
    assert (older.cudnn, older.outcome) == (f"{OLDER_VERSION}+cu12", Outcome.SUPPORTED)
    assert (newest.cudnn, newest.outcome) == (library().build_text, Outcome.NOT_SUPPORTED)


def test_a_crash_on_a_weight_gradient_is_reported_and_this_process_survives(shared_judge: Judge) -> None:
    row = next(row for row in FAULTS if row.code == "weight-gradient-prologue")
    verdict = shared_judge.run_query(Query(make_example_graph(EXAMPLES[row.code].reproductions[""]), "b200"))
    assert (verdict.outcome, verdict.stage, verdict.exit_code) == (Outcome.NOT_JUDGED, "heuristics", 2)
    assert verdict.cause is not None
    assert verdict.cause.headline.endswith(f"as is known of {row.what}")
    assert any(row.code in hazard for hazard in verdict.hazards)


def test_a_crash_in_heuristics_is_reported_in_the_verdict(shared_judge: Judge) -> None:
    verdict = shared_judge.run_query(Query(make_reproduction_graph("inner-stride"), "sm90", OLDER_VERSION))
    assert (verdict.outcome, verdict.stage, verdict.exit_code) == (Outcome.NOT_JUDGED, "heuristics", 2)
    assert verdict.cause is not None
    assert verdict.cause.code == "cudnn-crashed"
    assert verdict.cause.headline.startswith("cuDNN crashed with SIGSEGV in heuristics mode A, as is known of a stride")
    assert verdict.cause.remedy == "lay d out densely"
    assert (verdict.cudnn, len(verdict.hazards)) == (f"{OLDER_VERSION}+cu12", 1)
    assert [stage.state for stage in verdict.stages] == ["passed"] * 3 + ["crashed"] + ["not reached"] * 3
    assert shared_judge.run_query(
        Query(flash_forward.graph(), "sm90", OLDER_VERSION)
    ).supported  # a new process answers


def test_a_crash_is_explained_by_the_known_issue_that_crashes(shared_judge: Judge) -> None:
    """Another known issue matches the graph and is listed first, but it only gives wrong results at execution."""
    row = next(row for row in FAULTS if row.code == "boolean-bias")
    graph = make_example_graph(EXAMPLES[row.code].reproductions["backward"])
    statistics = graph.tensor("stats")
    odd = replace(statistics, strides=(256, 1, 2, 1))
    ended = shared_judge.run_query(Query(replace_tensors(graph, {statistics.uid: odd}), "sm80", OLDER_VERSION))
    codes = [code for words in ended.hazards for code in ("backward-stats-layout", "boolean-bias") if code in words]
    assert codes == ["backward-stats-layout", "boolean-bias"]
    assert ended.cause is not None
    assert "as is known of a bias of booleans" in ended.cause.headline
    assert ended.cause.remedy == row.fix


def test_output_of_the_crashed_process_is_kept(shared_judge: Judge) -> None:
    verdict = shared_judge.run_query(Query(make_reproduction_graph("fp8-bias"), "sm90", OLDER_VERSION))
    assert verdict.cause is not None
    assert "SIGABRT" in verdict.cause.headline
    assert "format_error" in verdict.cause.detail


def test_a_crash_in_one_plan_does_not_stop_the_others(shared_judge: Judge) -> None:
    verdict = shared_judge.run_query(Query(make_reproduction_graph("inner-stride"), "sm90", build=True))
    crashed = [item for item in verdict.candidates if item.state == "crashed"]
    assert crashed
    assert [item.state for item in verdict.candidates].count("built") == 1
    plan = next(stage for stage in verdict.stages if stage.name == "plan")
    assert plan.state == "passed"
    assert f"crashed with SIGSEGV while the plan of eng{crashed[0].engine}" in plan.detail


def test_crashes_of_every_plan_are_reported(shared_judge: Judge) -> None:
    verdict = shared_judge.run_query(Query(make_reproduction_graph("fp8-bias"), "sm90", build=True))
    assert (verdict.outcome, verdict.stage) == (Outcome.NOT_JUDGED, "plan")
    assert {item.state for item in verdict.candidates} == {"crashed", "refused"}
    assert verdict.cause is not None
    assert verdict.cause.code == "cudnn-crashed"
    assert next(stage for stage in verdict.stages if stage.name == "plan").state == "crashed"


def test_after_a_timeout_the_next_query_is_answered() -> None:
    with Judge(limit_s=0.001) as hurried:
        verdict = hurried.run_query(Query(flash_forward.graph(), "sm90"))
        assert verdict.cause is not None
        assert verdict.cause.code == "cudnn-timed-out"
        assert verdict.stages[0].state == "timed out"
    assert judge(Query(flash_forward.graph(), "sm90")).supported


def test_an_invalid_query_raises_an_exception(shared_judge: Judge) -> None:
    with pytest.raises(UsageError, match="unknown-target"):
        shared_judge.run_query(Query(flash_forward.graph(), "sm91"))
    with pytest.raises(UsageError, match="unknown-enumerator"):
        shared_judge.run_query(Query(flash_forward.graph(), "sm90", modes=("Z",)))
    with pytest.raises(EnvironmentNotReady, match="cudnn-version-not-installed"):
        shared_judge.run_query(Query(flash_forward.graph(), "sm90", "9.0.99"))


def test_each_thread_has_its_own_child_process() -> None:
    questions = [Query(flash_forward.graph(), target) for target in ("sm80", "sm89", "sm90", "sm100")]
    with ThreadPoolExecutor(2) as pool:
        assert [verdict.sm for verdict in pool.map(judge, questions)] == [80, 89, 90, 100]


def test_an_unreferenced_judge_ends_its_child_processes() -> None:
    one = Judge()
    one.run_query(Query(flash_forward.graph(), "sm90"))
    [child] = next(iter(one._processes.idle.values()))
    process = child._process
    del child
    assert process.poll() is None
    del one
    gc.collect()
    assert process.returncode is not None


def test_prestarted_processes_answer_and_are_replaced_if_killed() -> None:
    question = Query(flash_forward.graph(), "sm90")
    with JudgingProcesses() as processes:
        processes.start(question.setup, sees_gpu=False)
        [started] = next(iter(processes.idle.values()))
        one = Judge(processes=processes)
        assert one.run_query(question).supported
        assert next(iter(processes.idle.values())) == [started]
        processes.kill()
        assert not started.is_usable
        assert one.run_query(question).supported
        assert started not in next(iter(processes.idle.values()))
    assert processes.idle == {}


def test_verdicts_survive_json_and_queries_survive_pickle() -> None:
    question = Query(forum_two_matmul.graph(), "sm89", build=True)
    assert pickle.loads(pickle.dumps(question)) == question
    assert pickle.loads(pickle.dumps(question)).key() == question.key()
    for verdict in (explain(question.graph, "sm89"), explain(flash_forward.graph(), "sm90", build=True)):
        assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict
    with pytest.raises(UsageError, match="verdict-schema"):
        Verdict.from_dict({"schema": "something"})


def test_the_cache_key_covers_everything_that_affects_the_verdict() -> None:
    base = Query(flash_forward.graph(), "sm90")
    others = [
        Query(forum_two_matmul.graph(), "sm90"),
        Query(flash_forward.graph(), "sm89"),
        Query(flash_forward.graph(), "sm90", OLDER_VERSION),
        Query(flash_forward.graph(), "sm90", build=True),
        Query(flash_forward.graph(), "sm90", execute=True),
        Query(flash_forward.graph(), "sm90", modes=("A",)),
    ]
    assert len({base.key(), *(other.key() for other in others)}) == 7
    assert base.key() == Query(flash_forward.graph(), "h100").key()
