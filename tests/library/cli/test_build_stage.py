"""Tests of verdicts with built plans: cause of a failed compilation, and remedies that compile."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cudnn_backend_py import DataType, Graph, GraphBuilder, UsageError, library
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.diagnose import Basis, Judge, Outcome, Query, Verdict, explain, render_text, whatif
from cudnn_backend_py.diagnose.causes.case import PlanBuildBudget, RefusalCase, is_supported, try_build
from cudnn_backend_py.graph.guard import collect_error_reports
from cudnn_backend_py.rewrite.changes import iterate_changes
from cudnn_backend_py.target import use_target
from tests.cases import find_case
from tests.library.diagnose.test_rules import make_backward, make_forward
from tests.support.child import measure_children_cpu_s
from tests.support.logs import LOG_FOLDER
from tests.support.varied_graphs import VARIED_GRAPHS

HEURISTICS_MODES = ("A", "FALLBACK")
CPU_LIMIT_S = 40.0  # limit of processor time for any machine, however busy; the time is printed
MXFP8_CASE = find_case("mxfp8 d512")


def make_attention_that_does_not_compile() -> Graph:
    """Return a graph that passes its support check on sm_100, but its only plan does not compile."""
    return make_backward(head_dim=256)


def make_matmul_without_batch_dim() -> Graph:
    """Return a matmul of float32 matrices without a batch dim."""
    g = GraphBuilder("matrices", io_type=DataType.FLOAT)
    g.matmul(g.tensor("a", (64, 32)), g.tensor("b", (32, 48)), name="y", virtual=False)
    return g.graph()


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def run_command_on_graph_file(
    tmp_path: Path, name: str, *arguments: str, graph: str = "make_backward(head_dim=256)"
) -> Result:
    path = tmp_path / "asked.py"
    path.write_text(f"from tests.library.cli.test_build_stage import *\ndef graph():\n    return {graph}\n")
    return CliRunner().invoke(main, [name, str(path), *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("make", "found", "change"),
    [
        (make_attention_that_does_not_compile, ("dq is summed in float32",), "deterministic=True: dq"),
        (MXFP8_CASE.graph, ("q, k is 512",), "512 -> 128"),
        (make_matmul_without_batch_dim, ("2 dims, 3 are needed",), "[64, 32] -> [1, 64, 32]"),
    ],
    ids=["backward", "mxfp8", "matrices"],
)
def test_plan_that_does_not_compile_has_a_cause(
    judge: Judge, make: object, found: tuple[str, ...], change: str
) -> None:
    graph = make()  # type: ignore[operator]
    assert judge.run_query(Query(graph, "sm100")).stage == "plan", "a known issue of builds is built without a request"
    start = measure_children_cpu_s()
    with Judge(limit_s=300) as own:
        verdict = own.run_query(Query(graph, "sm100", build=True))
    took_s = measure_children_cpu_s() - start
    print(f"{took_s:.2f} s: {verdict.cause}")
    assert took_s < CPU_LIMIT_S
    assert (verdict.outcome, verdict.stage) == (Outcome.NOT_SUPPORTED, "plan")
    cause = verdict.cause
    assert cause is not None
    assert (cause.code, cause.basis, cause.asked) == ("no-plan-builds", Basis.MEASURED, "built")
    assert all(words in cause.headline for words in found)
    assert "(cuDNN: Encountered runtime kernel compilation failure)" in cause.headline
    assert change in cause.remedy
    offered = {one.title: one.graph for one in iterate_changes(graph) if one.graphs}
    assert judge.run_query(Query(offered[cause.remedy.removesuffix(" (idea)")], "sm100", build=True)).supported


def test_each_graph_variation_is_reported_before_its_build(judge: Judge) -> None:
    """The progress line shows each variation, and the time limit applies to each of them."""
    steps: list[str] = []
    with Judge(step=steps.append) as judge_with_steps:
        judge_with_steps.run_query(Query(MXFP8_CASE.graph(), "sm100", build=True))
    numbers = [int(step.split()[3]) for step in steps if step.startswith("plan, of variation ")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 1


def test_plans_of_a_remedy_are_built_if_requested(judge: Judge) -> None:
    """Padding to head_dim 256 passes the support check but does not build; a V with head_dim 128 builds."""
    padded = next(one for one in iterate_changes(make_backward(head_dim=192), ("pad_head_dim",)) if "256" in one.title)
    with use_target("sm100") as target:
        assert is_supported(padded.graph, target, HEURISTICS_MODES)
        assert not try_build(padded.graph, target, HEURISTICS_MODES).found
    for build, asked in ((False, "support check"), (True, "built")):
        cause = judge.run_query(Query(make_backward(head_dim=192), "sm100", build=build)).cause
        assert cause is not None
        assert "is 192, at most 128 is supported next to 192 of q, k" in cause.headline
        assert cause.asked == asked
        assert "192 -> 128" in cause.remedy


def test_a_crash_while_building_a_variation_loses_only_that_variation() -> None:
    """cuDNN 9.28 crashes when it compiles this attention with V in row-major order."""
    with use_target("sm100") as target:
        graph = next(
            one.graph
            for one in iterate_changes(make_attention_that_does_not_compile(), ("layout",))
            if one.title.startswith("v: strides -> row-major")
        )
        case = RefusalCase((), graph, target, HEURISTICS_MODES, budget=PlanBuildBudget())
        assert not case.supports(graph)
        assert case.supports(make_forward())


def test_whatif_builds_a_bounded_number_of_variations() -> None:
    """The number of builds is limited by count, not time: a plan that compiles counts as much as seven that fail."""
    with use_target("sm90") as target:
        case = RefusalCase((), make_forward(), target, HEURISTICS_MODES, budget=PlanBuildBudget(8))
        assert [case.judge_variation(make_forward()) for _ in range(3)] == [True, True, None]
    with use_target("sm100") as target:
        case = RefusalCase(
            (), make_attention_that_does_not_compile(), target, HEURISTICS_MODES, budget=PlanBuildBudget(1)
        )
        assert [case.judge_variation(make_attention_that_does_not_compile()) for _ in range(2)] == [False, None]


def test_timeout_of_the_search_for_the_cause_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variation counts as not supported, and a line reports that time ran out."""

    def loop_forever(*_given: object) -> bool:
        while True:
            pass

    monkeypatch.setattr("cudnn_backend_py.diagnose.causes.case.try_build", loop_forever)
    monkeypatch.setattr("cudnn_backend_py.diagnose.fork._CPU_LIMIT_S", 1)
    monkeypatch.setattr("cudnn_backend_py.diagnose.fork._WALL_SECONDS_PER_CPU_SECOND", 600)
    with collect_error_reports() as lines, use_target("sm90") as target:
        assert not RefusalCase((), make_forward(), target, HEURISTICS_MODES, budget=PlanBuildBudget()).supports(
            make_forward()
        )
    assert lines == ["time ran out: a variation of the graph took more than 1 s of the processor"]


# unfinished whatif


def test_an_unfinished_whatif_search_reports_how_to_continue(tmp_path: Path) -> None:
    options, graph = ("--target", "sm90", "--no-build", "--budget=0"), "make_forward(head_dim=100)"
    done = run_command_on_graph_file(tmp_path, "explain", "--whatif", *options, graph=graph)
    assert done.exit_code == 2
    assert "no change was found" not in done.stdout
    stopped, again = done.stdout.splitlines()[-2:]
    assert re.fullmatch(
        r"the search was not finished: the time budget was used up; \d+ of \d+ changes and \d+ pairs .* checked",
        stopped,
    )
    assert again.startswith(
        f"continue with: cudnn-backend explain --whatif {tmp_path / 'asked.py'} --target=sm90 --no-build "
    )
    assert CliRunner().invoke(main, shlex.split(again.partition("cudnn-backend ")[2])[:-1]).exit_code == 0
    done = run_command_on_graph_file(
        tmp_path,
        "explain",
        "--whatif",
        "--target",
        "sm90",
        "--no-build",
        "--budget=0",
        "--format=json",
        graph="make_forward(head_dim=100)",
    )
    search = json.loads(done.stdout)["search"]
    assert not search["finished"]
    assert search["checked"] < search["changes"]
    assert search["continue"] == again.removeprefix("continue with: ")


def test_no_variation_is_built_if_no_cause_is_requested() -> None:
    verdict = explain(make_attention_that_does_not_compile(), "sm100", build=True, causes=False)
    assert verdict.outcome is Outcome.NOT_SUPPORTED
    assert verdict.cause is not None
    assert verdict.cause.headline.startswith("engine configs passed their support check (1), and no plan")
    assert verdict.cause.remedy == ""


# whatif


def test_whatif_finds_remedies_for_a_graph_that_does_not_compile(judge: Judge) -> None:
    found = whatif(make_attention_that_does_not_compile(), "sm100", build=True, judge=judge)
    assert whatif(make_attention_that_does_not_compile(), "sm100") == []
    kinds = {remedy.kinds for remedy in found}
    print([remedy.title for remedy in found])
    assert ("smaller_head_dim",) in kinds
    assert ("target",) in kinds
    for remedy in found:
        assert remedy.verdict is not None
        assert remedy.verdict.stage == "plan"
        assert judge.run_query(Query(remedy.graph, remedy.target, remedy.version, build=True)).supported


def test_whatif_and_explain_begin_with_the_same_verdict(tmp_path: Path) -> None:
    done = run_command_on_graph_file(tmp_path, "explain", "--whatif", "--target", "sm100", "--budget", "0.1")
    explained = run_command_on_graph_file(tmp_path, "explain", "-v", "--build", "--target", "sm100")
    first, cause = done.stdout.splitlines()[:2]
    assert first.startswith("NOT SUPPORTED: graph 'sdpa_backward'")
    assert explained.stdout.startswith("NOT SUPPORTED: graph 'sdpa_backward'")
    assert re.sub(r"^cause: +(\[measured\] )?", "", cause) in explained.stdout.splitlines()[1]


def test_whatif_changes_nothing_in_a_supported_graph(tmp_path: Path) -> None:
    assert whatif(make_forward(), "sm90", build=True) == []
    done = run_command_on_graph_file(tmp_path, "explain", "--whatif", "--target", "sm90", graph="make_forward()")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == ["nothing needs to be changed: a plan of it was built"]
    done = run_command_on_graph_file(
        tmp_path, "explain", "--whatif", "--target", "sm90", "--no-build", graph="make_forward()"
    )
    assert done.stdout.splitlines()[1:] == ["nothing needs to be changed: it passes its support check"]


def test_unbuilt_remedies_are_marked_as_unbuilt(tmp_path: Path) -> None:
    done = run_command_on_graph_file(
        tmp_path,
        "explain",
        "--whatif",
        "--target",
        "sm90",
        "--no-build",
        "--budget",
        "20",
        graph="make_forward(head_dim=100)",
    )
    assert "[exact, compared; passes its support check, not built]" in done.stdout
    assert "built]" not in done.stdout.replace("not built]", "")


def test_whatif_changes_version_and_target_together(tmp_path: Path) -> None:
    """Versions before 9.25 support attention that keeps S, with more shared memory than sm_89 has."""
    if library().version < (9, 25, 0):
        pytest.skip("supports the pattern")
    done = CliRunner().invoke(
        main, ["explain", "--whatif", str(LOG_FOLDER / "forum-9.1.1.log.gz"), "--target", "sm89", "--no-build"]
    )
    assert done.exit_code == 0
    assert re.search(r"^remedy: use cuDNN 9\..* \(--cudnn 9.*\), and there: judge for sm_", done.stdout, re.MULTILINE)
    assert "no other change was found" in done.stdout


def test_whatif_queries_only_the_given_modes(judge: Judge, tmp_path: Path) -> None:
    """FALLBACK alone supports no forward attention; each remedy is judged with the given modes."""
    assert whatif(make_forward(), "sm90", modes=("A",)) == []
    found = whatif(make_forward(head_dim=100), "sm90", modes=("A",), judge=judge)
    assert found
    assert all(remedy.verdict is not None and remedy.verdict.modes == ("A",) for remedy in found)
    done = run_command_on_graph_file(
        tmp_path, "explain", "--whatif", "--target", "sm90", "--mode", "FALLBACK", graph="make_forward()"
    )
    assert done.stdout.startswith("NOT SUPPORTED")
    with pytest.raises(UsageError, match="unknown-enumerator"):
        whatif(make_forward(), "sm90", modes=("C",))


def test_an_unknown_knob_of_an_engine_is_one_error(tmp_path: Path) -> None:
    options = ("explain", "--target", "sm90", "--engine", "eng1_k24=3_k99=2")
    done = run_command_on_graph_file(tmp_path, *options, graph="make_forward()")
    assert done.stderr.splitlines() == ["unknown-enumerator: 99 is not a KnobType, known are 0 to 46"]


# only FALLBACK


def make_float64_convolution() -> Graph:
    """Return a convolution in DOUBLE, which mode A refuses on sm_90."""
    g = GraphBuilder("doubles", io_type=DataType.DOUBLE, compute_type=DataType.DOUBLE)
    g.convolution(g.tensor("x", (2, 16, 16, 16)), g.tensor("w", (32, 16, 5, 5)), padding=1, name="y", virtual=False)
    return g.graph()


@pytest.mark.parametrize("build", [False, True])
def test_explain_reports_a_graph_that_only_fallback_supports(judge: Judge, build: bool) -> None:
    verdict = judge.run_query(Query(make_float64_convolution(), "sm90", build=build))
    assert verdict.supported
    why = verdict.only_fallback
    assert why is not None
    assert (why.basis, why.asked) == (Basis.MEASURED, "built" if build else "support check")
    alone = judge.run_query(Query(make_float64_convolution(), "sm90", modes=("A",)))
    assert alone.outcome is Outcome.NOT_SUPPORTED
    assert alone.cause is not None
    assert why.headline == alone.cause.headline
    first = render_text(verdict).splitlines()[0]
    assert first.startswith(f"SUPPORTED by FALLBACK only, mode A refuses ({why.headline})")
    assert Verdict.from_dict(verdict.to_dict()) == verdict


@pytest.mark.parametrize("modes", [("A", "FALLBACK"), ("A",), ("FALLBACK",)])
def test_verdict_of_a_graph_that_mode_a_supports_does_not_mention_fallback(
    judge: Judge, modes: tuple[str, ...]
) -> None:
    graph = make_forward() if "A" in modes else make_float64_convolution()
    verdict = judge.run_query(Query(graph, "sm90", modes=modes))
    assert verdict.supported
    assert verdict.only_fallback is None


def test_whatif_reports_a_graph_that_only_fallback_supports(tmp_path: Path) -> None:
    done = run_command_on_graph_file(
        tmp_path, "explain", "--whatif", "--target", "sm90", graph="make_float64_convolution()"
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("SUPPORTED by FALLBACK only, mode A refuses (")
    assert second.endswith("for a program without FALLBACK: --mode A")
    assert run_command_on_graph_file(
        tmp_path, "explain", "--whatif", "--target", "sm90", "--mode", "A", graph="make_float64_convolution()"
    ).stdout.startswith("NOT SUPP")


# removed patterns


def test_an_older_version_is_a_remedy_only_if_it_supports_the_graph(tmp_path: Path) -> None:
    """Two chained matmuls in F16x16 order were supported on sm_80, never on sm_89, which has less shared memory."""
    removed = run_command_on_graph_file(
        tmp_path, "explain", "-v", "--target", "sm80", graph="VARIED_GRAPHS['two matmul, reordered, s 10']()"
    )
    said = next(line for line in removed.stdout.splitlines() if line.startswith("remedy:"))
    version = re.search(r"use cuDNN (\S+) ", said)
    assert version is not None
    assert said.endswith("[passes its support check, not built]")
    asked = Query(VARIED_GRAPHS["two matmul, reordered, s 10"](), "sm80", version[1])
    with Judge() as judge:
        assert judge.run_query(asked).supported
    never = run_command_on_graph_file(
        tmp_path, "explain", "-v", "--target", "sm89", graph="VARIED_GRAPHS['two matmul, reordered, s 10']()"
    )
    assert "rule:        pattern-removed" in never.stdout
    said = next(line for line in never.stdout.splitlines() if line.startswith("remedy:"))
    assert re.search(r"use cuDNN \S+ \(--cudnn \S+\), and there: judge for sm_", said)
    assert "not support it" in never.stdout
