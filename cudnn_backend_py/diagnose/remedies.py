"""``whatif``: the smallest changes that make cuDNN support a refused graph, each verified by judging it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from ..graph import Graph
from ..graph.ir import check_graph
from ..known_issues import find_known_issues
from ..plans.engine import heur_mode
from ..rewrite.change_sequence import find_change_sequence
from ..rewrite.unusual import OTHER_RESULTS
from ..system.version import Version
from ..versions.judging_environment import read_judging_environment
from .causes.case import format_known_issues
from .causes.claims import compare_results_with_changed_graph
from .engines import WITH_THIS_WHEEL, add_remedy_with_jit_wheel
from .judges import GPU, Judge, Query
from .linting import format_danger_elsewhere
from .other_versions import (
    AND_THERE,
    OtherVersionVerdicts,
    RemedySearchSettings,
    is_timed_out,
    judge_graph_with_few_other_versions,
    judge_graph_with_remaining_versions,
)
from .query import read_target
from .remedy import Remedies, Remedy
from .remedy_search import search_remedies_in_child
from .verdict import ENGINES_MISSING_CODE, STAGES_AFTER_CHECK, RemedyCheck, Verdict

__all__ = ["add_remedy_with_same_cudnn_version", "search_and_add_remedy", "whatif"]

_DEFAULT_MODES = ("A", "FALLBACK")


def whatif(
    graph: Graph,
    target: str = GPU,
    *,
    version: str | None = None,
    modes: Sequence[str] = _DEFAULT_MODES,
    budget_s: float | None = None,
    two_steps: bool = True,
    limit: int = 5,
    build: bool = False,
    judge: Judge | None = None,
) -> Remedies:
    """Return changes that make cuDNN support the graph, smallest first; empty if it is supported unchanged.

    One-step changes are judged first, those that cuDNN's reasons hint at before others, then other architectures,
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
        Seconds after which nothing new is queried, which may be before the search is finished
        (:attr:`Remedies.extent`). Not given: the search is bounded by what it asks, so that its results do not depend
        on how busy the machine is: all changes of one step, the first 150 of two, 6 other versions, and plans of some
        60 changes where every variation is built. With a budget there are no such bounds.
    two_steps
        Whether to look for pairs of changes.
    limit
        How many remedies to return at most.
    build
        Request a plan: of the graph, which is supported only if one can be built, and of each remedy; what cannot be
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
    profile = read_target(target)
    names = tuple(heur_mode(mode).name for mode in modes)
    settings = RemedySearchSettings(target, profile, version, read_judging_environment(version), names, build)
    with Judge() if judge is None else contextlib.nullcontext(judge) as others:
        return _search_remedies(graph, settings, others, budget_s, limit, two_steps=two_steps)


def _search_remedies(
    graph: Graph,
    settings: RemedySearchSettings,
    others: Judge,
    budget_s: float | None,
    limit: int,
    *,
    two_steps: bool = True,
    other_versions: bool = True,
) -> Remedies:
    """Return the remedies of :func:`whatif`; without those that are other versions unless `other_versions`."""
    build = settings.build
    deadline = math.inf if budget_s is None else time.monotonic() + budget_s
    stop = threading.Event()
    versions = OtherVersionVerdicts([], [], [], [], [])
    with ThreadPoolExecutor(1) as pool:
        first = (
            pool.submit(judge_graph_with_few_other_versions, graph, settings, others, stop) if other_versions else None
        )
        try:
            found, extent = search_remedies_in_child(graph, settings, deadline, budget_s, two_steps=two_steps)
        except BaseException:
            stop.set()
            raise
        if found is None:
            stop.set()
            return Remedies(graph, ())
    if first is not None:
        versions = first.result()
    if first is not None and not found and not versions.found:
        versions = judge_graph_with_remaining_versions(graph, settings, versions, others, deadline)
    found = sorted([*found, *versions.found], key=lambda remedy: remedy.size)
    unbuilt: list[str] = []
    built = _drop_unbuildable_remedies(found, settings, others, unbuilt) if build else found
    kept = list(islice(_drop_remedies_with_wrong_results(graph, _drop_duplicate_remedies(graph, built)), limit))
    late = [*([extent.stopped] if extent.stopped else []), *versions.late, *unbuilt]
    return Remedies(graph, kept, replace(extent, stopped="; ".join(late)))


def _drop_duplicate_remedies(graph: Graph, found: Iterable[Remedy]) -> Iterator[Remedy]:
    """Yield at most two remedies of a kind, and skip a remedy that includes all changes of an earlier one."""
    kept: list[Remedy] = []
    for remedy in found:
        alike = sum(one.kinds == remedy.kinds for one in kept)
        padding = any(kind.startswith("pad_") for kind in remedy.kinds)
        if alike < (1 if padding else 2) and not any(
            _is_included_in_other_remedy(one, remedy) or _changes_only_dims_no_further_than_other(graph, one, remedy)
            for one in kept
        ):
            kept.append(remedy)
            yield remedy


def _is_included_in_other_remedy(one: Remedy, other: Remedy) -> bool:
    """Return whether the second remedy includes all changes of the first."""
    where = (one.graphs, one.target, one.version) == (other.graphs, other.target, other.version)
    return where or (len(other.steps) > len(one.steps) and set(one.steps) <= set(other.steps))


def _changes_only_dims_no_further_than_other(graph: Graph, one: Remedy, other: Remedy) -> bool:
    """Return whether the first remedy changes only dims, and the second changes each of them at least as far."""
    if (one.target, one.version) != (other.target, other.version) or len(one.graphs) != 1 or len(other.graphs) != 1:
        return False
    first, second = ({tensor.uid: tensor for tensor in remedy.graphs[0].tensors} for remedy in (one, other))
    before = {tensor.uid: tensor for tensor in graph.tensors}
    if not first.keys() == second.keys() == before.keys() or _list_operation_parameters(
        one.graphs[0]
    ) != _list_operation_parameters(graph):
        return False
    changed = [uid for uid, tensor in before.items() if first[uid].dims != tensor.dims]
    return (
        bool(changed)
        and all(
            tensor == (replace(first[uid], dims=tensor.dims, strides=tensor.strides) if uid in changed else first[uid])
            for uid, tensor in before.items()
        )
        and all(
            min(old, far) <= new <= max(old, far)
            for uid in changed
            for old, new, far in zip(before[uid].dims, first[uid].dims, second[uid].dims, strict=True)
        )
    )


def _list_operation_parameters(graph: Graph) -> list[dict[str, Any]]:
    return [op.parameters() for op in graph.ops]


def _drop_remedies_with_wrong_results(graph: Graph, found: Iterable[Remedy]) -> Iterator[Remedy]:
    """Yield the remedies except those that should preserve the results and do not."""
    for remedy in found:
        if remedy.effect != "exact" or not remedy.members:
            yield remedy
            continue
        solution = find_change_sequence(graph, remedy.kinds, remedy.steps, remedy.members)
        comparison = compare_results_with_changed_graph(graph, solution)
        if comparison is not None:
            yield replace(remedy, comparison=comparison)


_MAX_BUILT_REMEDIES = 16  # of plans, at most


def _drop_unbuildable_remedies(
    found: Iterable[Remedy], asked: RemedySearchSettings, judge: Judge, late: list[str]
) -> Iterator[Remedy]:
    """Yield the remedies with a plan that can be built. Each is built once, when its remedy is requested.

    A line goes into `late` for each whose building took too long.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    turns: list[tuple[int, tuple[int, ...], int, Remedy]] = []
    for remedy in found:
        turns.append((seen[remedy.kinds], remedy.size, len(turns), remedy))  # one of each kind before a second of any
        seen[remedy.kinds] += 1
    for *_, remedy in sorted(turns)[:_MAX_BUILT_REMEDIES]:
        if remedy.verdict is not None and remedy.verdict.stage == "plan" and len(remedy.graphs) == 1:
            yield remedy
            continue
        verdicts = [
            judge.run_query(asked.make_search_query(one, remedy.target, remedy.version)) for one in remedy.graphs
        ]
        if all(verdict.supported for verdict in verdicts):
            yield replace(remedy, verdict=verdicts[0])
        elif any(map(is_timed_out, verdicts)):
            late.append(f"plans of {remedy.title!r} were not built in time")


def search_and_add_remedy(verdict: Verdict, question: Query, judge: Judge) -> Verdict:
    """Add the smallest change of one or two steps that :func:`whatif` finds, if the verdict lacks a good remedy.

    That is where there is none, where it was not judged, and where it computes something else: then only a change that
    computes the same, or that was also built, is added. Where none is found, a line of the verdict says how many were
    checked.
    """
    cause = verdict.cause
    if cause is None or not verdict.lacks_remedy:
        return verdict
    found = _search_remedies_of_verdict(verdict, question, judge, limit=1)
    is_judged = bool(cause.remedy) and cause.asked != "not asked"
    if not found:
        if is_judged:
            return verdict
        stopped = f" ({found.extent.stopped})" if found.extent.stopped else ""
        return replace(verdict, limits=(*verdict.limits, f"{found.extent}, none helps{stopped}"))
    [remedy] = found
    how = _get_remedy_check(remedy)
    is_judged = is_judged and (cause.asked, how) != ("support check", "built")
    if is_judged and remedy.effect == "idea":
        return verdict
    title = _format_remedy(remedy)
    if remedy.target == str(question.target):
        title += format_known_issues(remedy.graph, verdict.sm, Version.from_text(verdict.cudnn))
    elif remedy.target:
        title += format_danger_elsewhere(question.graph, title)
    return replace(
        verdict, cause=replace(cause, remedy=f"{title}; or {cause.remedy}" if is_judged else title, asked=how)
    )


def add_remedy_with_same_cudnn_version(verdict: Verdict, question: Query, judge: Judge) -> Verdict:
    """Put a change with which the used version supports the graph before other versions and other wheels.

    That is where the remedy is a change and another version, which may be needless; and where a JIT wheel lacks
    engines: it cannot show that a graph is refused, but it can show that a changed one is supported.
    """
    cause = verdict.cause
    if cause is None or not verdict.may_differ_by_version:
        return verdict
    is_change = AND_THERE in cause.remedy
    if not is_change and (cause.code != ENGINES_MISSING_CODE or cause.remedy.startswith("use cuDNN")):
        return verdict
    known, with_wheel, _ = cause.remedy.rpartition(WITH_THIS_WHEEL)
    if with_wheel and not replace(cause, remedy=known).has_only_weak_remedies:
        return verdict
    found = _search_remedies_of_verdict(verdict, question, judge, other_versions=False)
    own = [one for one in found if not find_known_issues(one.graph, verdict.sm, Version.from_text(verdict.cudnn))]

    def is_weak(one: Remedy) -> bool:
        return one.target != str(question.target) or one.effect == "idea" or OTHER_RESULTS in one.title

    own.sort(key=is_weak)
    has_other = bool(with_wheel) or (is_change and not cause.has_only_weak_remedies)
    if has_other and (not own or is_weak(own[0])):
        return verdict
    if not own:
        is_line = cause.code == ENGINES_MISSING_CODE and not found
        line = f"{found.extent} with this wheel, none helps"
        return replace(verdict, limits=(*verdict.limits, line)) if is_line else verdict
    text, how = _format_remedy(own[0]), _get_remedy_check(own[0])
    if cause.code == ENGINES_MISSING_CODE:
        text = "; or ".join(filter(None, (text, known)))
        return replace(verdict, cause=add_remedy_with_jit_wheel(cause, text, how))
    return replace(verdict, cause=replace(cause, remedy=text, asked=how))


def _search_remedies_of_verdict(
    verdict: Verdict, question: Query, judge: Judge, limit: int = 5, *, other_versions: bool = True
) -> Remedies:
    """Search changes of a verdict's graph with its version, with plans if the verdict has them."""
    settings = RemedySearchSettings.from_verdict(verdict, question)
    build = bool(question.build) or verdict.stage in STAGES_AFTER_CHECK
    settings = replace(settings, version=question.setup.version, build=build)
    return _search_remedies(question.graph, settings, judge, None, limit, other_versions=other_versions)


def _format_remedy(remedy: Remedy) -> str:
    """Return a remedy's title with its effect, and whether an input of the result is left out."""
    changes = not _KINDS_WITH_OTHER_RESULTS.isdisjoint(remedy.kinds) and OTHER_RESULTS not in remedy.title
    return f"{remedy.title}{f', {OTHER_RESULTS}' if changes else ''} ({remedy.effect})"


_KINDS_WITH_OTHER_RESULTS = frozenset({"mask", "drop_bias", "drop_dropout"})


def _get_remedy_check(remedy: Remedy) -> RemedyCheck:
    return "built" if remedy.verdict is not None and remedy.verdict.built else "support check"
