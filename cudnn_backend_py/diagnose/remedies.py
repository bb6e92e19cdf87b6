"""``whatif``: the smallest changes with which cuDNN supports a refused graph, each verified by asking.

The search runs in a child process: a variation that kills cuDNN is left out, and the search goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from ..errors import CudnnBackendError, EnvironmentNotReady
from ..graph import Graph, graph_from_json, graph_to_json
from ..graph.ir import check_graph
from ..plans.engine import OperationGraph, heur_mode
from ..plans.refusals import furthest_reason, read_refusals
from ..printable import brief
from ..rewrite.changes import Change, Effect, changes
from ..system.child import TIMED_OUT, Child, Say, serve
from ..system.notebook import ShownAsHtml
from ..system.version import leading_numbers, version_numbers
from ..target import Target, find_profile, open_target
from ..target.environment import Fault, check_environment
from ..versions.store import environment_for, list_judging
from .advice import NEWER_THAN_LIBRARY
from .causes.building import BUILDING_KINDS
from .causes.case import ARCHITECTURES, known_to_fail
from .causes.find import suspects
from .causes.phrases import kinds_for
from .explanation import CRASHED, explain
from .fork import run_in_fork
from .judges import DID_NOT_START, GPU, Judge, Question
from .verdict import Asked, Outcome, Verdict

__all__ = ["Remedies", "Remedy", "whatif", "with_versions"]

_MODES = ("A", "FALLBACK")
_BUILDING_S = 6.0  # more for the search where every variation is built
_RESTARTS = 8
_LEAST = 0.6  # of the time for the search, however long the child took to start
_GRACE_S = 20.0  # for what a child is doing when its time is over: starting, or one slow question
_RANK: dict[Effect, int] = {"exact": 0, "changes numerics": 1, "idea": 2}


@dataclass(frozen=True, repr=False)
class Remedy(ShownAsHtml):
    """A change, or two, with which cuDNN supports the graph.

    Parameters
    ----------
    title, steps
        What changes, as a whole and step by step: the tensor, the value found, the new value.
    effect
        ``exact``, ``changes numerics`` or ``idea``, as of :class:`~.changes.Change`; the weakest of the steps.
    graph, graphs
        The patched graph; where it is split, the first part, and all of them in the order they run.
    target, version
        What the verdict is for: those asked about, or the change itself.
    kinds
        The kind of each step, one of :data:`~.changes.KINDS`.
    tensors
        Names of the tensors that change.
    verified
        Whether cuDNN was asked, and supports it.
    verdict
        What it said; of several parts, of the first.
    """

    title: str
    effect: Effect
    steps: tuple[str, ...]
    graph: Graph
    target: str
    version: str | None
    verified: bool
    verdict: Verdict | None
    graphs: tuple[Graph, ...] = ()
    kinds: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    def __repr__(self) -> str:
        where = f"{self.target}, cuDNN {self.version}" if self.version else self.target
        return brief(f"Remedy {self.effect}, {'' if self.verified else 'not '}verified on {where}: {self.title}")

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as plain data."""
        return {
            "title": self.title,
            "effect": self.effect,
            "steps": list(self.steps),
            "kinds": list(self.kinds),
            "tensors": list(self.tensors),
            "target": self.target,
            "version": self.version,
            "verified": self.verified,
            "graphs": [graph_to_json(graph) for graph in self.graphs or (self.graph,)],
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }

    @property
    def size(self) -> tuple[int, int, int, int]:
        """What remedies are ordered by, the smallest first: effect, steps, graphs, tensors."""
        elsewhere = {"target": 1, "version": 2}.get(self.kinds[-1], 0) if self.kinds else 0
        return (max(_RANK[self.effect], elsewhere), len(self.steps), len(self.graphs), len(self.tensors))


class Remedies(ShownAsHtml, list[Remedy]):
    """A list of the remedies for one graph, which a notebook shows beside it."""

    def __init__(self, graph: Graph, found: Iterable[Remedy]) -> None:
        super().__init__(found)
        self.graph = graph


def whatif(
    graph: Graph,
    target: str = GPU,
    *,
    version: str | None = None,
    modes: Sequence[str] = _MODES,
    budget_s: float = 1.5,
    two_steps: bool = True,
    limit: int = 5,
    build: bool = False,
    judge: Judge | None = None,
) -> Remedies:
    """Return changes with which cuDNN supports the graph, the smallest first; none if it supports it as it is.

    One-step changes are asked about first, those that cuDNN's reasons hint at before others, then other architectures,
    two-step changes if no one step leaves the results as they are, and other installed versions of cuDNN last.

    Parameters
    ----------
    target
        A described GPU (``sm90``), the path of a device JSON, or ``gpu`` for the one of this machine.
    version
        An installed cuDNN such as ``9.19.0``; None for the library this process would load.
    modes
        Heuristics modes to ask: a remedy is one for a program that asks these.
    budget_s
        Seconds after which nothing new is asked; six more where the graph passes its support check and its plans do
        not compile, as every variation is built then.
    two_steps
        Whether to look for pairs of changes.
    limit
        How many remedies to return at most.
    build
        Ask for a plan: of the graph, which is supported only if one can be built, and of each remedy; what cannot be
        built is left out. Some seconds more.
    judge
        Who asks other versions, and for plans: for many graphs one whose processes live on; None for one of its own.

    Raises
    ------
    UsageError
        ``unknown-target``, ``unknown-enumerator``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``; the code of what is wrong with the environment, such as ``nvrtc-missing``.

    Notes
    -----
    Loads cuDNN: yes, in child processes. A verdict takes some 3 to 15 ms, a child some 0.4 s to start.
    """
    check_graph(graph)
    if target != GPU:
        find_profile(target)
    asked = _Asked(target, version, tuple(heur_mode(mode).name for mode in modes), build)
    deadline = time.monotonic() + budget_s
    stop = threading.Event()

    def may_ask(number: int) -> bool:
        return not stop.is_set() and (number < _LEAST_VERSIONS or time.monotonic() <= deadline)

    with Judge() if judge is None else contextlib.nullcontext(judge) as others:
        with ThreadPoolExecutor(1) as beside:
            elsewhere = beside.submit(_other_versions, graph, asked, may_ask, others)
            try:
                found = _search(graph, asked, deadline, two_steps=two_steps)
                if found is None or any(_RANK[remedy.effect] < 2 for remedy in found):
                    stop.set()
            except BaseException:
                stop.set()
                raise
        if found is None:
            return Remedies(graph, ())
        found = sorted([*found, *elsewhere.result().found], key=lambda remedy: remedy.size)
        return Remedies(graph, islice(_distinct(_built(found, asked, others) if build else found), limit))


@dataclass(frozen=True)
class _Asked:
    """What a graph, and every change of it, is asked for."""

    target: str
    version: str | None
    modes: tuple[str, ...]
    build: bool

    def question(self, graph: Graph, target: str, version: str | None) -> Question:
        """Return the question about a change; only whether it helps counts, not why it does not."""
        return Question(graph, target, version, self.modes, build=self.build, causes=False)


def _distinct(found: Iterable[Remedy]) -> Iterator[Remedy]:
    """Yield the remedies without repetitions: two of one kind at most, and none that contains another."""
    kept: list[Remedy] = []
    for remedy in found:
        alike = sum(one.kinds == remedy.kinds for one in kept)
        padding = any(kind.startswith("pad_") for kind in remedy.kinds)
        if alike < (1 if padding else 2) and not any(_covers(one, remedy) for one in kept):
            kept.append(remedy)
            yield remedy


def _covers(one: Remedy, other: Remedy) -> bool:
    """Return whether the second is the first in other words, or the first and more."""
    where = (one.graphs, one.target, one.version) == (other.graphs, other.target, other.version)
    return where or (len(other.steps) > len(one.steps) and set(one.steps) <= set(other.steps))


_BUILDS = 16  # of plans, at most


def _built(found: Iterable[Remedy], asked: _Asked, judge: Judge) -> Iterator[Remedy]:
    """Yield the remedies whose plans can be built, each when it is asked for; what was built already is not again."""
    seen: Counter[tuple[str, ...]] = Counter()
    turns: list[tuple[int, tuple[int, ...], int, Remedy]] = []
    for remedy in found:
        turns.append((seen[remedy.kinds], remedy.size, len(turns), remedy))  # one of each kind before a second of any
        seen[remedy.kinds] += 1
    for *_, remedy in sorted(turns)[:_BUILDS]:
        if remedy.verdict is not None and remedy.verdict.stage == "plan" and len(remedy.graphs) == 1:
            yield remedy
            continue
        verdicts = [judge.ask(asked.question(one, remedy.target, remedy.version)) for one in remedy.graphs]
        if all(verdict.supported for verdict in verdicts):
            yield replace(remedy, verdict=verdicts[0])


_LEAST_VERSIONS = 3  # that are asked, however late it is, where nothing else was found


class _Versions(NamedTuple):
    """Other installed cuDNN versions: one that supports a graph, those that refuse it, those that were not asked."""

    found: list[Remedy]
    refusing: list[str]
    unasked: list[str]


def _other_versions(
    graph: Graph, asked: _Asked, may_ask: Callable[[int], bool], judge: Judge, *, newer: bool = False
) -> _Versions:
    """Ask other installed cuDNN versions until one supports the graph, the nearest first; with `newer` only newer ones.

    `may_ask` is called with the number of those asked before each.
    """
    found: list[Remedy] = []
    refusing: list[str] = []
    used = asked.version or judge.ask(asked.question(graph, asked.target, None)).cudnn  # this process loads none
    if not used[:1].isdigit():  # no library, or one that never answered
        return _Versions([], [], [])
    names = _order_of_versions(used, newer=newer)
    for number, name in enumerate(names):
        if found or not may_ask(number):
            return _Versions(found, refusing, names[number:])
        verdict = judge.ask(asked.question(graph, asked.target, name))
        if verdict.supported:
            title = f"cuDNN {name} instead of {used}"
            remedy = Remedy(title, "exact", (title,), graph, asked.target, name, verified=True, verdict=verdict)
            found.append(replace(remedy, graphs=(graph,), kinds=("version",)))
        elif verdict.outcome is Outcome.NOT_SUPPORTED:
            refusing.append(name)
    return _Versions(found, refusing, [])


_MOST_VERSIONS = 6  # some 0.8 s each, and not so many seconds: the answer is the same on any machine


def with_versions(verdict: Verdict, question: Question, *, most: int = _MOST_VERSIONS) -> Verdict:
    """Return the verdict on a question with what other installed versions say, where one may have what this one lacks.

    That is where a pattern was taken out of cuDNN, where something is newer than it, and where it crashed. At most
    `most` are asked, and those that were not are named.

    Notes
    -----
    Loads cuDNN: yes, each version in a child process.
    """
    cause = verdict.cause
    newer = cause is not None and cause.code.endswith(NEWER_THAN_LIBRARY)
    if cause is None or not (newer or cause.code in ("pattern-removed", CRASHED)):
        return verdict
    asked = _Asked(question.target, verdict.cudnn, question.modes, question.build)
    with Judge() as judge:
        found, refusing, unasked = _other_versions(
            question.graph, asked, lambda number: number < most, judge, newer=newer
        )
    if found:
        told: Asked = "built" if question.build else "support check"
        cause = replace(cause, remedy=f"use cuDNN {found[0].version} (--cudnn {found[0].version})", asked=told)
    elif refusing and cause.code != CRASHED:
        refusing.sort(key=version_numbers, reverse=True)
        detail = f"{cause.detail}; cuDNN {', '.join(refusing)} {'do' if len(refusing) > 1 else 'does'} not support it"
        if unasked:
            detail += (
                f", {', '.join(unasked)} {'were' if len(unasked) > 1 else 'was'} not asked (see cudnn-backend since)"
            )
        cause = replace(cause, detail=detail, remedy="", asked="")
    return replace(verdict, cause=cause)


def _order_of_versions(used: str, *, newer: bool = False) -> list[str]:
    """Return the other installed versions: the newest, then older ones in growing steps, then the rest."""
    own = leading_numbers(used)[:3]  # 9.19.0.56-full is a name of 9.19.0
    names = {item.short for item in list_judging()}
    others = sorted((name for name in names if version_numbers(name) != own), key=version_numbers, reverse=True)
    older = [name for name in others if version_numbers(name) < own]
    later = [name for name in others if version_numbers(name) > own]
    if newer:
        return later
    steps = [older[(1 << step) - 1] for step in range(len(older).bit_length()) if (1 << step) <= len(older)]
    return list(dict.fromkeys([*later[:1], *steps[:3], *reversed(later), *older]))


# the search, in a child process


def _search(graph: Graph, asked: _Asked, deadline: float, *, two_steps: bool) -> list[Remedy] | None:
    """Return what a child finds, started again without the variation it died of; None if the graph is supported."""
    skip: list[str] = []
    found: dict[str, Remedy] = {}
    building = False
    for _ in range(_RESTARTS):
        question = {
            "graph": graph_to_json(graph),
            "target": asked.target,
            "modes": asked.modes,
            "deadline": deadline,
            "least": _LEAST * (deadline - time.monotonic()),
            "two_steps": two_steps,
            "build": asked.build,
            "skip": [*skip, *(title for title in found if title not in skip)],
            "building": building,
        }
        asking = ""
        with Child.start(_SERVED, environment_for(asked.version)) as child:
            for line in child.ask(question, max(1.0, deadline + _GRACE_S - time.monotonic())):
                building = building or "deadline" in line
                deadline = line.get("deadline", deadline)
                if "supported" in line:
                    return None
                if "fault" in line:
                    raise Fault(**line["fault"]).error()
                asking = line.get("asking", asking)
                if "title" in line:
                    remedy = _read(line, asked.version)
                    found[remedy.title] = remedy
        if not asking and child.ending not in ("", TIMED_OUT):
            raise EnvironmentNotReady(
                f"the process that asks cuDNN ended with {child.ending} before it asked anything",
                code=DID_NOT_START,
                more=child.last_words,
            )
        if not child.ending or not asking or asking in skip or time.monotonic() > deadline:
            break
        skip.append(asking)
    return list(found.values())


def _read(line: Mapping[str, Any], version: str | None) -> Remedy:
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
        tensors=tuple(line["tensors"]),
    )


def serve_search() -> None:
    """In a child process: search."""
    serve(_answer)


_SERVED = f"{__name__}:{serve_search.__name__}"


def _answer(asked: Mapping[str, Any], say: Say) -> None:
    """Say a line for each thing asked and found."""
    faults = check_environment(build=asked["build"])
    if faults and faults[0].blocks:
        say(fault=asdict(faults[0]))
        return
    deadline = max(asked["deadline"], time.monotonic() + asked["least"])  # of one clock for all processes
    graph = graph_from_json(asked["graph"])
    with contextlib.closing(open_target(None if asked["target"] == GPU else asked["target"])) as target:
        search = _Search(graph, target, asked["target"], asked["modes"], deadline, asked["skip"], say)
        search.patient, search.building = asked["build"], asked["building"]
        if search.is_supported():
            say(supported=True)
        else:
            search.run(two_steps=asked["two_steps"])


# What is tried after the kinds that cuDNN's phrases hint at: those that leave the results as they are first; what is
# asked about last is dearest, or says least.
_ORDER = (
    "alignment",
    "reordering",
    "layout",
    "flatten",
    "lengths",
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
_ITSELF = "the graph itself"
_MORE_S = 0.3  # for other remedies of as many steps, after one that leaves the results as they are
_OF_A_KIND = 4  # remedies, after which no more of that kind are looked for
_CUTS = 8  # of one graph that are asked about
_FIRST_STEPS = 12  # whose second steps are looked at


def _kinds_to_try(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*kinds_for(words), *_ORDER]))


class _Search:
    """One graph on one open target, in the process that asks."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        name: str,
        modes: Sequence[str],
        deadline: float,
        skip: Collection[str],
        say: Say,
    ) -> None:
        self.graph = graph
        self.target = target
        self.name = name
        self.modes = modes
        self.deadline = deadline
        self.skip = skip
        self.patient = False  # many changes look well until they are built
        self.building = False  # the graph passes its support check, so a change helps only if its plan can be built
        self.say = say
        self.found: list[tuple[Change, ...]] = []
        self.verdicts: dict[str, Verdict] = {}  # of what was built, by what it is
        self.words = ""

    def is_supported(self) -> bool:
        """Return whether cuDNN supports the graph as it is, which may mean a plan of it, and keep its reason."""
        supported, self.words = self._ask(self.graph, self.target, _ITSELF)
        if _ITSELF in self.skip:
            self.words = " ".join(suspects(self.graph))
        if self.building or not self.patient or not (supported or _ITSELF in self.skip):
            return supported
        self.building = True
        self.deadline += _BUILDING_S
        self.say(deadline=self.deadline)
        return self._ask(self.graph, self.target, _ITSELF)[0]

    def run(self, two_steps: bool) -> None:
        """Say what is found."""
        crashes = _ITSELF in self.skip  # then every target would
        if not crashes and not self.building:
            self._other_targets()
        promising = self._one_step()
        if not crashes and self.building:  # dear, and said by another program than the user's
            self._other_targets()
        enough = bool(self.found) if self.building else any(map(self._leaves_results, self.found))
        if two_steps and not enough:
            self._two_steps(promising)
        if not self.found:
            end = max(self.deadline, time.monotonic() + _MORE_S)
            self._try(((change,) for change in changes(self.graph, ("drop_operation",))), [], end)

    @staticmethod
    def _leaves_results(steps: tuple[Change, ...]) -> bool:
        return all(step.effect != "idea" for step in steps)

    def _one_step(self) -> list[Change]:
        """Try every one-step change; return those that cuDNN refuses for another reason than the graph."""
        promising: list[Change] = []
        end = time.monotonic() + 0.6 * max(0.0, self.deadline - time.monotonic())
        self._try(self._first_steps(), promising, end)
        return promising

    def _first_steps(self) -> Iterator[tuple[Change, ...]]:
        cuts = 0
        kinds = dict.fromkeys([*BUILDING_KINDS, *_ORDER]) if self.building else _kinds_to_try(self.words)
        for change in changes(self.graph, [kind for kind in kinds if kind != "drop_operation"]):
            cuts += change.kind == "split"
            if cuts <= _CUTS:
                yield (change,)

    def _two_steps(self, promising: list[Change]) -> None:
        def pairs() -> Iterator[tuple[Change, ...]]:
            for first in promising[:_FIRST_STEPS]:
                _, words = self._ask(first.graph, self.target, first.title)
                for second in changes(first.graph, _kinds_to_try(words)[:6]):
                    if second.kind != "split":
                        yield first, second

        self._try(pairs(), [])

    def _try(self, candidates: Iterable[tuple[Change, ...]], promising: list[Change], end: float | None = None) -> None:
        found: Counter[tuple[str, ...]] = Counter()
        for steps in candidates:
            kinds = tuple(step.kind for step in steps)
            if found[kinds] >= (1 if self.building else _OF_A_KIND):
                continue
            if time.monotonic() > (self.deadline if end is None else end):
                return
            title = "; then ".join(step.title for step in steps)
            answers = []
            for graph in steps[-1].graphs:
                answers.append(self._ask(graph, self.target, title))
                if not answers[-1][0]:
                    break
            if all(supported for supported, _ in answers):
                self._report(steps, title)
                found[kinds] += 1
                if self._leaves_results(steps) and not self.patient:
                    end = min(end or self.deadline, time.monotonic() + _MORE_S)
            elif len(steps) == 1 and len(answers) == 1 and answers[0][1] not in ("", self.words):
                promising.append(steps[0])

    def _ask(self, graph: Graph, target: Target, what: str) -> tuple[bool, str]:
        """Return whether cuDNN supports the graph, and else the reason of the engine config that came furthest."""
        if what in self.skip:
            return False, ""
        self.say(asking=what)
        words: list[str] = []
        try:
            question = OperationGraph(graph, target)
            for mode in self.modes:
                answer = question.heuristics(mode)
                if answer.configs:
                    if self.building:
                        return self._builds(graph, target, what), ""
                    return what == _ITSELF or not known_to_fail(graph, target), ""
                reason = furthest_reason(read_refusals(answer.answer.text))
                words += [str(reason)] if reason else []
        except CudnnBackendError as error:
            return False, str(error)
        return False, max(words, key=len, default="")

    def _builds(self, graph: Graph, target: Target, what: str) -> bool:
        """Return whether a plan can be built, and keep the verdict; in a forked process where that can use the target.

        Some layouts crash cuDNN while it compiles.
        """

        def ask() -> Verdict | None:
            return explain(graph, target, mode=self.modes, build=True, causes=False)

        verdict = ask() if target.is_live else run_in_fork(ask, lambda: None)
        if verdict is None or not verdict.supported:
            return False
        self.verdicts[what] = verdict
        return True

    def _report(self, steps: tuple[Change, ...], title: str) -> None:
        graphs = steps[-1].graphs
        built = self.verdicts.get(title) if len(graphs) == 1 else None
        verdict = built or explain(graphs[0], self.target, mode=self.modes, causes=False)
        if not verdict.supported:
            return
        self.found.append(steps)
        self.say(
            title=title,
            effect=max((step.effect for step in steps), key=lambda effect: _RANK[effect]),
            steps=[step.title for step in steps],
            kinds=[step.kind for step in steps],
            tensors=list(dict.fromkeys(name for step in steps for name in step.tensors)),
            graphs=[graph_to_json(graph) for graph in graphs],
            target=self.name,
            verdict=replace(verdict, target=self.target.name).to_dict(),
        )

    def _other_targets(self) -> None:
        found = 0
        for name in ARCHITECTURES:
            if time.monotonic() > self.deadline or found == 2:
                return
            with contextlib.closing(open_target(name, on=self.target.library)) as other:
                title = f"sm_{other.sm} ({other.profile.title}) instead of sm_{self.target.sm}"
                if other.sm == self.target.sm or not self._ask(self.graph, other, title)[0]:
                    continue
                found += 1
                self.say(
                    title=title,
                    effect="exact",
                    steps=[title],
                    kinds=["target"],
                    tensors=[],
                    graphs=[graph_to_json(self.graph)],
                    target=name,
                    verdict=(self.verdicts.get(title) or explain(self.graph, other, mode=self.modes)).to_dict(),
                )
