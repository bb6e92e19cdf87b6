"""Judge a refused graph with other cuDNN versions, and add their verdicts to its verdict."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from ..graph import Graph
from ..known_issues import find_issues_against_version_change
from ..plans.lower import find_newer_features
from ..system.version import VersionTuple, format_version_numbers, parse_leading_numbers, parse_version_numbers
from ..target import Profile
from ..versions.judging_environment import JudgingEnvironment
from .causes.block_scales import has_block_scales
from .causes.case import KNOWN_ISSUE_MARK, format_known_issues
from .causes.find import DEVICE_NEEDED_CODE
from .causes.rules import PATTERNS_REMOVED_IN
from .engines import (
    WITH_THIS_WHEEL,
    add_remedy_with_jit_wheel,
    format_full_wheel_command,
    format_full_wheel_remedy,
)
from .fork import TIMEOUT_REMARK
from .judges import GPU, TIMEOUT_CODE, Judge, Query
from .remedy import Remedy
from .surveys.inputs import available_versions, read_judging_environments
from .verdict import (
    CRASH_CODE,
    ENGINES_MISSING_CODE,
    NEWER_THAN_LIBRARY_SUFFIX,
    PATTERN_REMOVED_CODE,
    Cause,
    Outcome,
    RemedyCheck,
    Verdict,
)

__all__ = [
    "AND_THERE",
    "OtherVersionVerdicts",
    "RemedySearchSettings",
    "add_newest_version_verdict",
    "add_version_remedy",
    "is_timed_out",
    "judge_graph_with_few_other_versions",
    "judge_graph_with_remaining_versions",
]

_CUDA_TOOLKIT_CODE = "cuda-toolkit"  # of a cause that only a build for another CUDA lifts
AND_THERE = ", and there: "  # between a version to use and a change that helps with it


@dataclass(frozen=True)
class RemedySearchSettings:
    """The target and settings for which a graph and its changes are judged."""

    target: str  # and what was read when it was named
    profile: Profile | None
    version: str | None
    setup: JudgingEnvironment
    modes: tuple[str, ...]
    build: bool | None

    @classmethod
    def from_verdict(cls, verdict: Verdict, question: Query) -> Self:
        """Return the settings of a query, with the version that answered it."""
        target = str(question.target)
        return cls(target, question.profile, verdict.cudnn, question.setup, question.modes, question.build)

    def make_search_query(self, graph: Graph, target: str, version: str | None, *, causes: bool = False) -> Query:
        """Return the query for a graph, target and version; the cause is searched only if `causes`."""
        where = (self.profile or GPU) if target == self.target else target
        setup: JudgingEnvironment | None = self.setup
        if version != self.version:
            setup = None if version is None else read_judging_environments([version])[version]
        return Query(graph, where, setup, self.modes, build=self.build, causes=causes)


def is_timed_out(verdict: Verdict) -> bool:
    return verdict.cause is not None and verdict.cause.code == TIMEOUT_CODE


class OtherVersionVerdicts(NamedTuple):
    """Verdicts of other cuDNN versions on a graph: the remedy found, versions that refuse it, and those not judged.

    ``late`` says of each that did not answer in time; ``unable`` are verdicts of those that could not judge the graph.
    """

    found: list[Remedy]
    refusing: list[str]
    unasked: list[str]
    late: list[str]
    unable: list[Verdict]


def _judge_versions_until_supported(
    graph: Graph,
    asked: RemedySearchSettings,
    used: str,
    names: Sequence[str],
    judge: Judge,
    may_query: Callable[[int], bool],
) -> OtherVersionVerdicts:
    """Judge with cuDNN versions one by one until one supports the graph.

    `may_query` is called with the number of those asked before each.
    """
    answers = OtherVersionVerdicts([], [], [], [], [])
    for number, name in enumerate(names):
        if answers.found or not may_query(number):
            return answers._replace(unasked=list(names[number:]))
        verdict = judge.run_query(asked.make_search_query(graph, asked.target, name))
        if verdict.supported and find_issues_against_version_change(
            graph, verdict.sm, _parse_version(name), _parse_version(used)
        ):
            answers.refusing.append(name)
        elif verdict.supported:
            title = f"cuDNN {name} instead of {used}"
            remedy = Remedy(title, "exact", (title,), graph, asked.target, name, verified=True, verdict=verdict)
            answers.found.append(replace(remedy, graphs=(graph,), kinds=("version",)))
        elif verdict.outcome is Outcome.NOT_SUPPORTED:
            answers.refusing.append(name)
        elif is_timed_out(verdict):
            answers.late.append(f"cuDNN {name} did not answer in time")
        else:
            answers.unable.append(verdict)
    return answers


def _parse_version(name: str) -> VersionTuple:
    major, minor, patch = (*parse_leading_numbers(name), 0, 0, 0)[:3]
    return major, minor, patch


def _find_version_used_for_verdict(graph: Graph, asked: RemedySearchSettings, judge: Judge) -> str:
    """Return the cuDNN version that judges the graph; empty if no cuDNN library is found."""
    used = (
        asked.version or judge.run_query(asked.make_search_query(graph, asked.target, None)).cudnn
    )  # this process loads none
    return used if used[:1].isdigit() else ""


_MIN_JUDGED_VERSIONS = 3  # that are queried whatever else is found


def judge_graph_with_few_other_versions(
    graph: Graph, asked: RemedySearchSettings, judge: Judge, stop: threading.Event
) -> OtherVersionVerdicts:
    """Judge with a few other versions until one supports the graph or the event `stop` is set."""
    used = _find_version_used_for_verdict(graph, asked, judge)
    names = _list_other_versions(used) if used else []
    return _judge_versions_until_supported(
        graph, asked, used, names, judge, lambda number: number < _MIN_JUDGED_VERSIONS and not stop.is_set()
    )


def judge_graph_with_remaining_versions(
    graph: Graph, asked: RemedySearchSettings, before: OtherVersionVerdicts, judge: Judge, deadline: float
) -> OtherVersionVerdicts:
    """Judge with the versions not judged yet: a few more, or all until the deadline."""

    def may_judge_another_version(number: int) -> bool:
        return (
            number < _MAX_JUDGED_VERSIONS - _MIN_JUDGED_VERSIONS
            if deadline == math.inf
            else time.monotonic() <= deadline
        )

    used = _find_version_used_for_verdict(graph, asked, judge)
    more = _judge_versions_until_supported(graph, asked, used, before.unasked, judge, may_judge_another_version)
    late = [*before.late, *more.late]
    if more.unasked and not more.found and deadline != math.inf:
        late.append(f"cuDNN {', '.join(more.unasked)} {'were' if len(more.unasked) > 1 else 'was'} not asked")
    return more._replace(late=late)


_MAX_JUDGED_VERSIONS = 6  # some 0.8 s each, and not so many seconds: the answer is the same on any machine


def add_version_remedy(verdict: Verdict, question: Query, judge: Judge, *, most: int = _MAX_JUDGED_VERSIONS) -> Verdict:
    """Judge a refused graph with other installed cuDNN versions, and add the result to its verdict.

    That is where a pattern was taken out of cuDNN, where something is newer than it, and where it crashed. At most
    `most` are queried, and those that were not are named.

    Notes
    -----
    Loads cuDNN: yes, each version in a child process.
    """
    cause = verdict.cause
    if cause is None or not verdict.may_differ_by_version:
        return verdict
    newer = cause.code.endswith(NEWER_THAN_LIBRARY_SUFFIX)
    asked = RemedySearchSettings.from_verdict(verdict, question)
    used = _find_version_used_for_verdict(question.graph, asked, judge)
    names = _list_other_versions(used) if used else []
    if cause.code == PATTERN_REMOVED_CODE:  # the newest that had such patterns says what else is needed
        names = [name for name in names if _parse_version(name) < PATTERNS_REMOVED_IN]
    if cause.code == ENGINES_MISSING_CODE:
        return _add_verdict_of_version_with_engines(verdict, question, asked, names[:most], judge)
    needed = (0, 0, 0)
    if newer:
        needed = max((one.since for one in find_newer_features(question.graph, _parse_version(used))), default=needed)
        names = [name for name in names if _parse_version(name) >= needed]
    others = _judge_versions_until_supported(question.graph, asked, used, names, judge, lambda number: number < most)
    refusing = others.refusing
    answer: Verdict | None = None
    if refusing and not others.found and cause.code != CRASH_CODE:
        answer = judge.run_query(asked.make_search_query(question.graph, asked.target, refusing[0], causes=True))
    late = (f"{TIMEOUT_REMARK}: {line}" for line in others.late)
    verdict = replace(verdict, limits=(*verdict.limits, *late))
    if others.found:
        checked: RemedyCheck = "built" if question.build else "support check"
        name = others.found[0].version or ""
        cause = replace(cause, remedy=_format_use_of_version(name), asked=checked)
    elif cause.code == PATTERN_REMOVED_CODE and not names:
        major, minor, _ = PATTERNS_REMOVED_IN
        last = f"{major}.{minor - 1}"
        remedy = f"cuDNN {last} supported such patterns, and may support this graph (--cudnn {last} installs it)"
        cause = replace(cause, remedy=remedy)
    elif answer is not None:
        text = f"cuDNN {refusing[0]} {_format_verdict_as_verb_phrase(answer)}"
        if refusing[1:]:
            text += f"; cuDNN {', '.join(refusing[1:])} {'do' if refusing[2:] else 'does'} not help either"
        if others.unasked:
            text += (
                f"; {', '.join(others.unasked)} {'were' if len(others.unasked) > 1 else 'was'} not judged "
                "(see cudnn-backend matrix --since)"
            )
        cause = replace(cause, versions=text, remedy="", asked="")
        other = answer.cause
        if other is not None and other.code == _CUDA_TOOLKIT_CODE:  # its remedy names a version, and cannot be judged
            cause = replace(cause, remedy=other.remedy, asked="not asked")
        elif other is not None and other.has_judged_remedy:
            cause = replace(cause, remedy=_format_remedy_with_version(refusing[0], other), asked=other.asked)
    elif newer and others.unable:
        name = others.unable[0].cudnn
        cause = replace(cause, versions=f"cuDNN {name} cannot judge it here (--cudnn {name} says why)")
    elif newer and not names and needed > (0, 0, 0):
        version = format_version_numbers(needed)
        remedy = f"use cuDNN {version} or newer (--cudnn {version}); it may refuse the graph for other reasons"
        cause = replace(cause, remedy=remedy)
    return replace(verdict, cause=cause)


def _add_verdict_of_version_with_engines(
    verdict: Verdict, question: Query, asked: RemedySearchSettings, names: Sequence[str], judge: Judge
) -> Verdict:
    """If engines were missing for a verdict, add to it the verdict of the newest version that has them."""
    cause = verdict.cause
    assert cause is not None
    for name in names:
        other = judge.run_query(asked.make_search_query(question.graph, asked.target, name, causes=True))
        if other.supported or (other.cause is not None and other.cause.code != ENGINES_MISSING_CODE):
            text = f"cuDNN {name} {_format_verdict_as_verb_phrase(other, alike='')}"
            own, with_wheel, _ = cause.remedy.rpartition(WITH_THIS_WHEEL)
            remedy = _describe_how_to_judge_with_jit_version(verdict, cause, question.graph, other)
            if with_wheel and not other.supported:
                cause = add_remedy_with_jit_wheel(replace(cause, remedy=remedy), own, cause.asked)
                return replace(verdict, cause=replace(cause, versions=text))
            is_known = other.cause is not None and other.cause.code == _CUDA_TOOLKIT_CODE
            checked: RemedyCheck = "not asked" if is_known else ""
            return replace(verdict, cause=replace(cause, versions=text, remedy=remedy, asked=checked))
    return verdict


def _describe_how_to_judge_with_jit_version(verdict: Verdict, cause: Cause, graph: Graph, other: Verdict) -> str:
    """Return how to get a verdict of a JIT wheel that lacks engines, given the verdict `other` of another version."""
    full = format_full_wheel_remedy(verdict.cudnn)
    use = _format_use_of_version(other.cudnn)
    if other.supported:
        return f"{use}; or {full}"
    if other.cause is None:
        return cause.remedy
    if other.cause.code == _CUDA_TOOLKIT_CODE:  # any build for this CUDA lacks that engine
        return other.cause.remedy
    if other.cause.code == DEVICE_NEEDED_CODE:  # the full wheel queries it, too
        return f"judge on a machine with the GPU and the full wheel ({format_full_wheel_command(verdict.cudnn)})"
    # No older version has block scales on an architecture on which the newest has none.
    lacking = rf"sm_{verdict.sm} does not|not supported on sm_{verdict.sm}\b"
    is_futile = has_block_scales(graph) and re.search(lacking, other.cause.headline)
    judged = _format_remedy_with_version(other.cudnn, other.cause) if other.cause.has_judged_remedy else ""
    if is_futile:
        return judged
    return f"{judged}; or {full}" if judged else f"{full}: it may support the graph though {other.cudnn} does not"


def _format_use_of_version(name: str) -> str:
    return f"use cuDNN {name} (--cudnn {name})"


def _format_remedy_with_version(name: str, cause: Cause) -> str:
    """Return a remedy that names a version and the remedy of its cause."""
    return f"{_format_use_of_version(name)}{AND_THERE}{cause.remedy.replace(', with this cuDNN', '')}"


def add_newest_version_verdict(verdict: Verdict, question: Query, judge: Judge) -> Verdict:
    """Add the newest version's verdict to an older version's refusal, if that has no remedy or only a weak one.

    Of the latter the newest version becomes the first remedy if it supports the graph, and is not mentioned if not, or
    if it has a known issue with the graph and not every other remedy has one, too.
    """
    cause = verdict.cause
    if cause is None or cause.versions or not verdict.lacks_good_remedy:
        return verdict
    newer = [
        name for name in available_versions() if parse_version_numbers(name) > parse_version_numbers(verdict.cudnn)
    ]
    if not newer or verdict.outcome is not Outcome.NOT_SUPPORTED:
        return verdict
    settings = RemedySearchSettings.from_verdict(verdict, question)
    query = settings.make_search_query(question.graph, settings.target, newer[-1], causes=not cause.remedy)
    other = judge.run_query(query)
    if not cause.remedy:
        cause = replace(cause, versions=f"cuDNN {newer[-1]} {_format_verdict_as_verb_phrase(other)}")
        if other.cause is not None and other.cause.has_judged_remedy:
            cause = replace(cause, remedy=_format_remedy_with_version(newer[-1], other.cause), asked=other.cause.asked)
        return replace(verdict, cause=cause)
    issues = format_known_issues(question.graph, verdict.sm, _parse_version(other.cudnn)) if other.hazards else ""
    no_worse = bool(issues) and all(KNOWN_ISSUE_MARK in one for one in cause.remedy.split("; or "))
    if not other.supported or (other.hazards and not no_worse):
        return verdict
    remedy = f"{_format_use_of_version(newer[-1])}{issues}; or {cause.remedy}"
    return replace(verdict, cause=replace(cause, remedy=remedy))


def _format_verdict_as_verb_phrase(verdict: Verdict, *, alike: str = " either") -> str:
    """Return a version's answer as a predicate, such as "does not support it either"."""
    reason = "" if verdict.cause is None else f": {verdict.cause.headline}"
    if verdict.outcome is Outcome.NOT_JUDGED:
        return f"cannot judge it either{reason}"
    if not verdict.supported:
        return f"does not support it{alike}{reason}"
    if verdict.hazards:
        return f"has a known issue with it: {verdict.hazards[0]}"
    return "supports it"


def _list_other_versions(used: str) -> list[str]:
    """Return the other available versions, newest first: the first that supports a graph is the remedy."""
    own = parse_leading_numbers(used)[:3]  # 9.19.0.56-full is a name of 9.19.0
    return [name for name in reversed(available_versions()) if parse_version_numbers(name) != own]
