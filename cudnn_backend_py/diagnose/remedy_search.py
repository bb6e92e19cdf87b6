"""The search for changes that make cuDNN support a graph, in a child process.

A variation that kills cuDNN is left out, and the search goes on without it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, NamedTuple

from ..errors import CudnnBackendError, EnvironmentNotReady
from ..graph import Graph, graph_from_json, graph_to_json
from ..native.environment_problems import EnvironmentProblem, check_environment
from ..plans.engine import OperationGraph
from ..plans.refusals import find_deepest_reason_among_configs, read_refusals
from ..rewrite.change_sequence import ChangeSequence
from ..rewrite.changes import Change, iterate_changes
from ..system.child import TIMED_OUT, Child
from ..system.serving import AnswerWriter, serve
from ..target import Target, open_target
from .causes.building import BUILD_CHANGE_KINDS
from .causes.case import (
    ARCHITECTURE_TARGETS,
    BuildResult,
    PlanBuildBudget,
    compute_build_attempt_cost,
    is_known_to_fail_building,
)
from .causes.find import list_suspicious_properties
from .causes.phrases import find_change_kinds_suggested_by_reason
from .explanation import explain
from .fork import run_in_fork
from .judges import START_FAILURE_CODE
from .other_versions import RemedySearchSettings
from .query import describe_device, read_device
from .remedy import Remedy, SearchExtent
from .verdict import Verdict

__all__ = ["search_remedies_in_child"]

_MAX_RESTARTS = 8
_MIN_SEARCH_FRACTION = 0.6  # of the time for the search, however long the child took to start
_OVERTIME_S = 20.0  # for what a child is doing when its time is over: starting, or one slow question
_HANG_LIMIT_S = 600.0  # without a budget, after which cuDNN is taken to hang


def search_remedies_in_child(
    graph: Graph, asked: RemedySearchSettings, deadline: float, budget_s: float | None, *, two_steps: bool
) -> tuple[list[Remedy] | None, SearchExtent]:
    """Return the remedies that a child process finds, None if the graph is supported, and the extent of its search.

    A child that dies is followed by another, which knows what the first was reported, and that what it died of kills.
    """
    known: dict[str, Any] = {}
    found: dict[str, Remedy] = {}
    extent = SearchExtent()
    for _ in range(_MAX_RESTARTS):
        question = {
            "graph": graph_to_json(graph),
            "target": asked.target,
            "device": describe_device(asked.profile),
            "modes": asked.modes,
            "deadline": None if budget_s is None else deadline,
            "least": 0.0 if budget_s is None else _MIN_SEARCH_FRACTION * (deadline - time.monotonic()),
            "two_steps": two_steps,
            "build": asked.build,
            "known": known,
            "found": list(found),
        }
        asking = ""
        limit_s = _HANG_LIMIT_S if budget_s is None else max(1.0, deadline + _OVERTIME_S - time.monotonic())
        asked.setup.check()
        with Child.start(_SERVER_FUNCTION, asked.setup.environment()) as child:
            for line in child.run_query(question, limit_s):
                if "supported" in line:
                    return None, extent
                if "fault" in line:
                    raise EnvironmentProblem(**line["fault"]).to_exception()
                if "asking" in line:
                    asking = line["asking"]
                if "answer" in line:
                    known[asking], asking = line["answer"], ""
                if "extent" in line:
                    extent = SearchExtent(**line["extent"])
                if "title" in line:
                    remedy = _read_remedy(line, asked.version)
                    found[remedy.title], asking = remedy, ""
        if not asking and not known and child.ending not in ("", TIMED_OUT):
            raise EnvironmentNotReady(
                f"the process that queries cuDNN ended with {child.ending} before its first verdict",
                code=START_FAILURE_CODE,
                more=child.last_words,
            )
        if child.ending == TIMED_OUT:
            what = f"cuDNN did not answer about {asking!r}" if asking else "nothing was answered"
            return list(found.values()), replace(extent, stopped=f"{what} in {limit_s:.0f} s")
        if not child.ending:
            return list(found.values()), extent
        if not asking or time.monotonic() > deadline:
            break
        known[asking] = _SupportAnswer(killed=True)
    return list(found.values()), replace(extent, stopped=f"the process that queries cuDNN ended with {child.ending}")


def _read_remedy(line: Mapping[str, Any], version: str | None) -> Remedy:
    graphs = tuple(graph_from_json(one) for one in line["graphs"])
    return Remedy(
        title=line["title"],
        effect=line["effect"],
        steps=tuple(line["steps"]),
        graph=graphs[0],
        target=line["target"],
        version=version,
        verified=True,
        verdict=Verdict.from_dict(line["verdict"]),
        graphs=graphs,
        kinds=tuple(line["kinds"]),
        members=tuple(line["members"]),
        tensors=tuple(line["tensors"]),
    )


def serve_remedy_search() -> None:
    """In a child process: search for remedies of the graph that the parent sends, and report them."""
    serve(_search_and_report_remedies)


_SERVER_FUNCTION = f"{__name__}:{serve_remedy_search.__name__}"


def _search_and_report_remedies(asked: Mapping[str, Any], say: AnswerWriter) -> None:
    """Search for remedies, and report one line for each judged change and each remedy."""
    faults = check_environment(build=asked["build"])
    if faults and faults[0].blocks:
        say(fault=asdict(faults[0]))
        return
    deadline = math.inf
    if asked["deadline"] is not None:  # of one clock for all processes
        deadline = max(asked["deadline"], time.monotonic() + asked["least"])
    graph = graph_from_json(asked["graph"])
    with contextlib.closing(open_target(read_device(asked["device"]))) as target:
        search = _RemedySearch(graph, target, asked, deadline, say)
        if search.is_supported():
            say(supported=True)
        else:
            search.run(two_steps=asked["two_steps"])


class _SupportAnswer(NamedTuple):
    """Whether cuDNN supports a graph; if not, the reason of the config that passed most checks.

    ``cost`` is that of the plans that were built for it; ``killed`` says that it ended the process.
    """

    supported: bool = False
    words: str = ""
    cost: int = 0
    killed: bool = False


# What is tried after the kinds that cuDNN's phrases hint at: those that leave the results as they are first; what is
# judged last is dearest, or says least.
_CHANGE_KIND_ORDER = (
    "alignment",
    "reordering",
    "layout",
    "flatten",
    "deterministic",
    "lengths",
    "ragged_stats",
    "bias_dims",
    "explicit_padding",
    "dims",
    "view",
    "pad_head_dim",
    "pad_channels",
    "intermediate_type",
    "data_type",
    "usual",
    "composite",
    "unified",
    "scale",
    "heads",
    "drop_stats",
    "pad_sequence",
    "drop_dropout",
    "mask",
    "drop_bias",
    "smaller_head_dim",
    "virtual",
    "split",
    "whole_pattern",
)
_UNCHANGED_GRAPH = "the graph itself"
_MAX_CHANGES_AFTER_EXACT = 40  # other changes that are checked after one that leaves the results as they are
_MAX_REMEDIES_PER_KIND = 4  # remedies, after which no more of that kind are looked for
_MAX_SPLITS = 8  # of one graph that are judged
_MAX_FIRST_STEPS = 12  # whose second steps are looked at
_MAX_CHANGES, _MAX_PAIRS = 400, 150  # that are checked without a budget; graphs of 14 operations have some 50 changes
_MAX_FAILED_PLANS = 60  # that are compiled without a budget, where every variation is built


def _order_change_kinds_by_reason(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*find_change_kinds_suggested_by_reason(words), *_CHANGE_KIND_ORDER]))


class _RemedySearch:
    """The search for changes of one graph on one target, run in the judging process."""

    def __init__(
        self, graph: Graph, target: Target, asked: Mapping[str, Any], deadline: float, say: AnswerWriter
    ) -> None:
        self.graph = graph
        self.target = target
        self.name: str = asked["target"]
        self.modes: Sequence[str] = asked["modes"]
        self.deadline = deadline
        self.bounded = deadline == math.inf
        self.known = {what: _SupportAnswer(*answer) for what, answer in asked["known"].items()}
        self.reported: Sequence[str] = asked["found"]
        self.patient: bool = asked["build"]  # many changes look well until they are built
        self.building = False  # the graph passes its support check, so a change helps only if its plan can be built
        self.plans = PlanBuildBudget(_MAX_FAILED_PLANS)
        self.extent = SearchExtent()
        self.say = say
        self.found: list[ChangeSequence] = []
        self.verdicts: dict[str, Verdict] = {}  # of what was built, by what it is
        self.words = ""

    def is_supported(self) -> bool:
        """Return whether cuDNN supports the graph unchanged, building a plan if requested; store the reason if not."""
        answer = self._judge_graph_cached(self.graph, self.target, _UNCHANGED_GRAPH)
        self.words = " ".join(list_suspicious_properties(self.graph)) if answer.killed else answer.words
        if not self.patient or not (answer.supported or answer.killed):
            return answer.supported
        self.building = True
        return self._judge_graph_cached(self.graph, self.target, f"a plan of {_UNCHANGED_GRAPH}").supported

    def run(self, two_steps: bool) -> None:
        """Judge all changes, and report those that help."""
        crashes = self.known.get(_UNCHANGED_GRAPH, _SupportAnswer()).killed  # then every target would
        if not crashes and not self.building:
            self._report_supporting_targets()
        promising = self._judge_one_step_changes()
        if not crashes and self.building:  # dear, and said by another program than the user's
            self._report_supporting_targets()
        enough = bool(self.found) if self.building else any(map(self._is_exact, self.found))
        if two_steps and not enough and not self._has_reached_limit():
            self._judge_two_step_changes(promising)
        self._report_extent()

    @staticmethod
    def _is_exact(solution: ChangeSequence) -> bool:
        return solution.effect != "idea"

    def _judge_one_step_changes(self) -> list[tuple[ChangeSequence, int, str]]:
        """Judge every one-step change; return the changes after which cuDNN refuses the graph for another reason.

        With the number of that graph, and the reason.
        """
        promising: list[tuple[ChangeSequence, int, str]] = []
        kinds = (
            dict.fromkeys([*BUILD_CHANGE_KINDS, *_CHANGE_KIND_ORDER])
            if self.building
            else _order_change_kinds_by_reason(self.words)
        )
        wanted = [kind for kind in kinds if kind != "drop_operation"]
        limit = _MAX_CHANGES + 1 if self.bounded else None
        candidates = list(islice(self._find_changes(wanted), limit))
        self._report_change_count(len(candidates))
        self._judge_solutions(
            self._iterate_valid_changes(candidates[:_MAX_CHANGES] if self.bounded else candidates), promising
        )
        if not self.found and not self._has_reached_limit():
            last = list(islice(iterate_changes(self.graph, ("drop_operation",)), limit))
            self._report_change_count(len(candidates) + len(last))
            self._judge_solutions(self._iterate_valid_changes(last), promising)
        if self.bounded and len(candidates) > _MAX_CHANGES and not self.found:
            self._stop_search(
                f"the graph has more than {_MAX_CHANGES} changes, which are too many to check without a budget"
            )
        return promising

    def _report_change_count(self, count: int) -> None:
        self.extent = replace(self.extent, changes=count)
        self._report_extent()

    def _iterate_valid_changes(self, candidates: Iterable[Change]) -> Iterator[ChangeSequence]:
        """Yield the changes that give valid graphs, constructing each graph only when it is needed."""
        for change in candidates:
            if change.graphs:
                yield ChangeSequence.from_change(change)
            else:
                self._count_judged_change(of_two=False)

    def _find_changes(self, kinds: Sequence[str]) -> Iterator[Change]:
        cuts = 0
        for change in iterate_changes(self.graph, kinds):
            cuts += change.kind == "split"
            if cuts <= _MAX_SPLITS or change.kind != "split":
                yield change

    def _judge_two_step_changes(self, promising: list[tuple[ChangeSequence, int, str]]) -> None:
        pairs = [
            pair
            for first, member, words in promising[:_MAX_FIRST_STEPS]
            for second in iterate_changes(first.graphs[member], _order_change_kinds_by_reason(words)[:6])
            if second.kind != "split" and (pair := first.apply_change(member, second)) is not None
        ]
        self.extent = replace(self.extent, pairs=len(pairs))
        self._judge_solutions(pairs[:_MAX_PAIRS] if self.bounded else pairs, None)

    def _judge_solutions(
        self, candidates: Iterable[ChangeSequence], promising: list[tuple[ChangeSequence, int, str]] | None
    ) -> None:
        """Judge changes, and report those that help; collect promising first steps in `promising` unless it is None."""
        found: Counter[tuple[str, ...]] = Counter()
        more = math.inf
        for solution in candidates:
            if found[solution.kinds] >= (1 if self.building else _MAX_REMEDIES_PER_KIND):
                continue
            if more <= 0 or self._has_reached_limit():
                return
            more -= 1
            answers = self._judge_solution_graphs(solution)
            self._count_judged_change(promising is None)
            if all(answer.supported for answer in answers):
                if self._report_solution(solution):
                    found[solution.kinds] += 1
                    if self._is_exact(solution) and not self.patient:
                        more = min(more, _MAX_CHANGES_AFTER_EXACT)
            elif promising is not None and (refused := self._find_sole_refusal_with_new_reason(answers)) is not None:
                promising.append((solution, *refused))

    def _judge_solution_graphs(self, solution: ChangeSequence) -> list[_SupportAnswer]:
        """Judge the graphs of a solution; stop at one that crashes or is refused."""
        answers = []
        for number, graph in enumerate(solution.graphs):
            what = f"{solution.title}, graph {number + 1}" if number else solution.title
            answers.append(self._judge_graph_cached(graph, self.target, what))
            if not answers[-1].supported and (self.building or len(solution.steps) > 1):
                break
        return answers

    def _find_sole_refusal_with_new_reason(self, answers: Sequence[_SupportAnswer]) -> tuple[int, str] | None:
        """Return the number and the new reason of the only refused graph; None if the reason is the original one."""
        refused = [(number, answer.words) for number, answer in enumerate(answers) if not answer.supported]
        return refused[0] if len(refused) == 1 and refused[0][1] not in ("", self.words) else None

    def _count_judged_change(self, of_two: bool) -> None:
        one, two = self.extent.checked + (not of_two), self.extent.checked_pairs + of_two
        self.extent = replace(self.extent, checked=one, checked_pairs=two)

    def _has_reached_limit(self) -> bool:
        """Return whether the limit of judged graphs is reached; if so, store that as the reason for stopping."""
        if time.monotonic() > self.deadline:
            self._stop_search("the time budget was used up")
        elif self.bounded and self.plans.left <= 0:
            self._stop_search("the number of plans that it may compile without a budget was reached")
        else:
            return False
        return True

    def _stop_search(self, why: str) -> None:
        said = self.extent.stopped
        if why not in said:
            self.extent = replace(self.extent, stopped="; ".join(filter(None, (said, why))))

    def _report_extent(self) -> None:
        self.say(extent=asdict(self.extent))

    def _judge_graph_cached(self, graph: Graph, target: Target, what: str) -> _SupportAnswer:
        """Judge a graph, unless its answer is known."""
        if what not in self.known:
            self.say(asking=what)
            self.known[what] = self._judge_graph(graph, target, what)
            self.say(answer=self.known[what], extent=asdict(self.extent))
        self.plans.subtract_build_cost(BuildResult(cost=self.known[what].cost))
        return self.known[what]

    def _judge_graph(self, graph: Graph, target: Target, what: str) -> _SupportAnswer:
        words: list[str] = []
        try:
            question = OperationGraph(graph, target)
            for mode in self.modes:
                answer = question.heuristics(mode, judging=True)
                if answer.configs:
                    return self._check_support(graph, target, what)
                reason = find_deepest_reason_among_configs(read_refusals(answer.answer.text))
                words += [str(reason)] if reason else []
            if any(True for _ in question.configs(())):
                return self._check_support(graph, target, what)
        except CudnnBackendError as error:
            return _SupportAnswer(words=str(error))
        return _SupportAnswer(words=max(words, key=len, default=""))

    def _check_support(self, graph: Graph, target: Target, what: str) -> _SupportAnswer:
        """Return whether a plan can be built for a graph that passes its support check; build it only if requested."""
        if self.building:
            return self._try_build(graph, target, what)
        return _SupportAnswer(what == _UNCHANGED_GRAPH or not is_known_to_fail_building(graph, target))

    def _try_build(self, graph: Graph, target: Target, what: str) -> _SupportAnswer:
        """Build a plan, in a forked process unless the target is a real GPU; store the verdict and return the answer.

        Some layouts crash cuDNN while it compiles.
        """

        def explain_with_build() -> Verdict | None:
            return explain(graph, target, mode=self.modes, build=True, causes=False)

        verdict = (
            explain_with_build()
            if target.is_live
            else run_in_fork(explain_with_build, lambda: None, what=what, late=self._stop_search)
        )
        if verdict is None:
            return _SupportAnswer(cost=1)
        tried = [one for one in verdict.candidates if one.state in ("built", "build failed")]
        cost = (
            compute_build_attempt_cost(built=one.state == "built", behavior_notes=one.behavior_notes) for one in tried
        )
        if verdict.supported:
            self.verdicts[what] = verdict
        return _SupportAnswer(verdict.supported, cost=sum(cost))

    def _report_solution(self, solution: ChangeSequence) -> bool:
        """Judge the graphs of a solution; if all are supported, report the solution and return True."""
        if solution.title not in self.reported:
            self.say(asking=solution.title)
            built = self.verdicts.get(solution.title) if len(solution.graphs) == 1 else None
            judged = (explain(graph, self.target, mode=self.modes, causes=False) for graph in solution.graphs)
            verdicts = [built] if built else list(judged)
            if not all(verdict.supported for verdict in verdicts):
                self.say(answer=_SupportAnswer())
                return False
            self.say(
                title=solution.title,
                effect=solution.effect,
                steps=[step.title for step in solution.steps],
                kinds=solution.kinds,
                members=solution.members,
                tensors=solution.tensors,
                graphs=[graph_to_json(graph) for graph in solution.graphs],
                target=self.name,
                verdict=replace(verdicts[0], target=self.target.name).to_dict(),
            )
        self.found.append(solution)
        return True

    def _report_supporting_targets(self) -> None:
        found = 0
        for name in ARCHITECTURE_TARGETS:
            if found == 2 or time.monotonic() > self.deadline:
                return
            with contextlib.closing(open_target(name, on=self.target.library)) as other:
                title = f"sm_{other.sm} ({other.profile.title}) instead of sm_{self.target.sm}"
                if other.sm == self.target.sm or not self._judge_graph_cached(self.graph, other, title).supported:
                    continue
                if title in self.reported:
                    found += 1
                    continue
                self.say(asking=title)
                verdict = self.verdicts.get(title) or explain(self.graph, other, mode=self.modes, causes=False)
                if not verdict.supported:  # cuDNN answers a second time otherwise: some graphs, in some processes
                    self.say(answer=_SupportAnswer())
                    continue
                found += 1
                self.say(
                    title=title,
                    effect="exact",
                    steps=[title],
                    kinds=["target"],
                    members=[],
                    tensors=[],
                    graphs=[graph_to_json(self.graph)],
                    target=name,
                    verdict=verdict.to_dict(),
                )
