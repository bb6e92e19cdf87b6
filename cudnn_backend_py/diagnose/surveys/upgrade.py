"""``compare_versions``: compare verdicts, engine configs, first plans and known issues of two cuDNN versions."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from ...errors import UsageError
from ...graph import Graph
from ...plans.candidate import Candidate
from ...printable import format_in_angle_brackets
from ...terminal import progress_bar
from ..judges import Judge, Query
from ..report.ci import VerdictTestCase
from ..verdict import Outcome, Verdict
from .inputs import choose_wheels, count_cores, read_graphs, read_judging_environments, read_targets

__all__ = ["SPEED_LIMIT", "Change", "Difference", "Effect", "PlanTimes", "Upgrade", "compare_versions"]

SCHEMA = "cudnn-backend-py/upgrade"
SCHEMA_VERSION = 1

#: What a comparison without times does not say.
SPEED_LIMIT = (
    "speed was not measured: a version can be slower with the same engine configs, and where a kernel is compiled in "
    "cuDNN's libraries its code is not compared"
)
SLOWDOWN_LIMIT = 1.05  # how much longer a kernel has to take to be called slower, or the former one to be called slower
_HEURISTICS_MODES = ("A", "B", "FALLBACK")  # whose lists of engine configs are compared
_SUPPORTED_STATES = ("supported", "built", "build failed", "crashed")


class Effect(StrEnum):
    """The result of a comparison. ``CODE_UNKNOWN``: cuDNN reports no difference, the compiled code is unknown."""

    UNCHANGED = "unchanged"
    CODE_UNKNOWN = "code not told"
    CHANGED = "changed"
    NOT_JUDGED = "could not be judged"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two cuDNN versions.

    ``what`` is ``verdict``, ``reason``, ``configs``, ``first plan``, ``workspace``, ``code`` or ``faults``; where the
    GPU ran both, also ``numbers`` and ``time``.
    """

    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.what}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """GPU times of the first plans in microseconds with a warm L2 cache, and whether their results are right."""

    old_us: float | None
    new_us: float | None
    old_state: str
    new_state: str


@dataclass(frozen=True, slots=True, repr=False)
class Change:
    """The verdicts of two cuDNN versions on one graph and target, and their differences."""

    graph: str
    target: str
    old: Verdict
    new: Verdict
    times: PlanTimes | None = None

    def __repr__(self) -> str:
        return format_in_angle_brackets(
            f"Change {self.effect}: {self.graph!r} on {self.target}, {self.old.cudnn} to {self.new.cudnn}"
        )

    @property
    def plans(self) -> tuple[Candidate | None, Candidate | None]:
        """The engine configs that were built with the old and the new version."""
        return _find_built_candidate(self.old), _find_built_candidate(self.new)

    @property
    def has_same_code(self) -> bool | None:
        """Whether the first plans have the same compiled code; None if unknown."""
        old, new = (
            [(one.sha256, one.registers) for one in plan.kernels] if plan and plan.kernels else None
            for plan in self.plans
        )
        return None if old is None or new is None else old == new

    @property
    def has_same_plan(self) -> bool:
        """Whether the first plans have the same code, knobs and workspace; engine indices may differ."""
        old, new = ((plan.knobs, plan.workspace_bytes) if plan else None for plan in self.plans)
        return bool(self.has_same_code) and old == new

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences, most important first."""
        found = [Difference("verdict", self.old.outcome, self.new.outcome)]
        if not (self.old.supported or self.new.supported):
            found.append(Difference("reason", _format_refusal_reason(self.old), _format_refusal_reason(self.new)))
        if self.old.outcome is self.new.outcome:
            found += [Difference("configs", *_find_differing_configs(self.old, self.new)), *self._compare_plans()]
        found.append(Difference("faults", _format_names(self.old.hazards), _format_names(self.new.hazards)))
        return tuple(item for item in found if item.old != item.new) + self._compare_times()

    def _compare_plans(self) -> list[Difference]:
        old, new = self.plans
        if old is None or new is None:
            return []
        found = [
            Difference("first plan", old.tag, new.tag),
            Difference("workspace", f"{old.workspace_bytes} bytes", f"{new.workspace_bytes} bytes"),
        ]
        if not self.has_same_code:
            found.append(Difference("code", _format_compiled_kernels(old), _format_compiled_kernels(new)))
        return found

    def _compare_times(self) -> tuple[Difference, ...]:
        times = self.times
        if times is None:
            return ()
        found = []
        if times.old_state != times.new_state:
            found.append(Difference("numbers", times.old_state, times.new_state))
        if times.old_us and times.new_us and not 1 / SLOWDOWN_LIMIT <= times.new_us / times.old_us <= SLOWDOWN_LIMIT:
            found.append(Difference("time", f"{times.old_us:.1f} us", f"{times.new_us:.1f} us"))
        return tuple(found)

    @property
    def effect(self) -> Effect:
        """The effect of the new version: not judged, changed, unchanged, or code unknown."""
        if Outcome.NOT_JUDGED in (self.old.outcome, self.new.outcome):
            return Effect.NOT_JUDGED
        if self.differences:
            return Effect.CHANGED
        return Effect.UNCHANGED if self.has_same_code or not self.old.supported else Effect.CODE_UNKNOWN

    @property
    def changes_only_engine_config_lists(self) -> bool:
        """Whether only tags and lists of engine configs changed, and the first plan is the same."""
        named = {item.what for item in self.differences}
        return self.effect is Effect.CHANGED and self.has_same_plan and named <= {"configs", "first plan"}

    @property
    def changes_only_compiled_code(self) -> bool:
        """Whether only the compiled code of the first plan changed, and perhaps its time or results."""
        named = {item.what for item in self.differences}
        return "code" in named and named <= {"code", "time", "numbers"}

    @property
    def new_known_issues(self) -> tuple[str, ...]:
        """Known issues of the graph in the new version but not in the old one."""
        return tuple(name for name in self.new.hazards if name not in self.old.hazards)

    @property
    def removed_known_issues(self) -> tuple[str, ...]:
        """Known issues of the graph in the old version but not in the new one."""
        return tuple(name for name in self.old.hazards if name not in self.new.hazards)

    @property
    def lost_support(self) -> bool:
        """Whether the old version supports the graph and the new one refuses it."""
        return self.old.supported and self.new.outcome is Outcome.NOT_SUPPORTED

    @property
    def is_worse(self) -> bool:
        """Whether something got worse: support, correctness, more than 5 % of time, or a new known issue."""
        times = self.times
        slow = times is not None and times.old_us and times.new_us and times.new_us > SLOWDOWN_LIMIT * times.old_us
        wrong = times is not None and times.old_state == "right" != times.new_state
        return bool(self.lost_support or slow or wrong or self.new_known_issues)

    def make_test_case(self, old: str, new: str) -> VerdictTestCase:
        """Return the change as a test case for JUnit and GitHub annotations; `old` and `new` name the versions."""
        lost = self.effect is Effect.NOT_JUDGED
        return VerdictTestCase(
            graph=self.graph,
            target=self.target,
            version=f"{old} -> {new}",
            state="error" if lost else "failed" if self.effect is Effect.CHANGED else "passed",
            code="" if self.effect in (Effect.UNCHANGED, Effect.CODE_UNKNOWN) else "version-changes-graph",
            message=f"support lost: {_format_refusal_reason(self.new)}"
            if self.lost_support
            else "; ".join(f"{item.what} changed" for item in self.differences),
            text="\n".join(map(str, self.differences)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "graph": self.graph,
            "target": self.target,
            "effect": self.effect.value,
            "worse": self.is_worse,
            "differences": [asdict(item) for item in self.differences],
            "same_code": self.has_same_code,
            "faults_entered": list(self.new_known_issues),
            "faults_left": list(self.removed_known_issues),
            "old": _verdict_to_dict(self.old),
            "new": _verdict_to_dict(self.new),
            "times": None if self.times is None else asdict(self.times),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Upgrade:
    """The changes in a new version: one :class:`Change` per graph and target, in order of judging.

    ``places`` are the versions as a :class:`~cudnn_backend_py.diagnose.Query` takes them. ``unjudged_graphs`` and
    ``untimed_graphs`` name the graphs that there was no time for yet, the latter of those that ``--time`` runs.
    """

    old: str
    new: str
    places: tuple[str | None, str | None]
    changes: tuple[Change, ...]
    unjudged_graphs: tuple[str, ...] = ()
    untimed_graphs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        return format_in_angle_brackets(f"Upgrade from {self.old} to {self.new}: {counts or 'nothing judged'}")

    @property
    def counts(self) -> dict[Effect, int]:
        """The number of changes per effect."""
        found = Counter(one.effect for one in self.changes)
        return {kind: found[kind] for kind in Effect}

    @property
    def exit_code(self) -> int:
        """0 without known changes, 1 with changes, 2 if something was not judged."""
        effects = {one.effect for one in self.changes}
        left = Effect.NOT_JUDGED in effects or self.unjudged_graphs or self.untimed_graphs
        return 1 if Effect.CHANGED in effects else 2 if left else 0

    @property
    def has_times(self) -> bool:
        """Whether changed plans were run and timed."""
        return any(one.times is not None for one in self.changes)

    @property
    def unfinished_work(self) -> list[str]:
        """Work left undone because of the time limit, or because this is an intermediate result."""
        left = (("judged", self.unjudged_graphs), ("timed", self.untimed_graphs))
        counted = (
            (f"{len(names)} graph{'s were' if len(names) > 1 else ' was'}", what) for what, names in left if names
        )
        return [f"{graphs} not {what} within the time limit" for graphs, what in counted]

    @property
    def limits(self) -> list[str]:
        """Limits of the comparison, such as missing times or a wheel with fewer engines."""
        pairs = [pair for one in self.changes for pair in ((one.old, one.new), (one.new, one.old))]
        own = Counter(
            (f"cuDNN {verdict.cudnn}", limit)
            for verdict, other in pairs
            for limit in verdict.limits
            if Outcome.NOT_JUDGED not in (verdict.outcome, other.outcome) and limit not in other.limits
        )
        told = [f"{version} alone, for {count} of the graphs: {limit}" for (version, limit), count in own.items()]
        return [*([] if self.has_times else [SPEED_LIMIT]), *told, *self.unfinished_work]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "old": self.old,
            "new": self.new,
            "counts": {kind.value: count for kind, count in self.counts.items()},
            "limits": self.limits,
            "not_asked": list(self.unjudged_graphs),
            "not_timed": list(self.untimed_graphs),
            "changes": [one.to_dict() for one in self.changes],
        }


def compare_versions(
    graphs: Mapping[str, Graph] | Iterable[Graph],
    targets: Iterable[str],
    old: str,
    new: str,
    *,
    workers: int | None = None,
    progress: bool = True,
    limit_s: float = 60.0,
    wheels: Mapping[str, str] | None = None,
    until: float = math.inf,
    keep: Callable[[Callable[[], Upgrade]], object] = id,
) -> Upgrade:
    """Judge graphs with two cuDNN versions, build the first plan of each, and report the differences.

    Parameters
    ----------
    graphs
        By name; or as they are, and then each goes by its own name.
    targets
        Described GPUs (``sm90``, a device JSON), or ``gpu`` for the one of this machine.
    old, new
        Installed versions such as ``9.19.0``, or ``default`` for the cuDNN this process would load.
    workers
        Questions at a time; the number of cores if not given.
    progress
        Whether to show a bar on standard error.
    limit_s
        Seconds one question may take.
    wheels
        The wheel that is to judge for a version, as of :func:`~cudnn_backend_py.diagnose.surveys.inputs.choose_wheels`.
    until
        The time of ``time.monotonic()`` from which on no question is begun: graphs that were not asked of both versions
        are named in the answer.
    keep
        Called after each question, with a function that returns the answer so far.

    Returns
    -------
    Upgrade
        A version that crashes or runs out of time on a graph could not be judged there; the others go on.

    Raises
    ------
    UsageError
        ``matrix-empty``, ``matrix-graph-names``, ``unknown-target``, ``upgrade-versions`` where both are the same.
    EnvironmentNotReady
        ``cudnn-version-not-installed``.

    Notes
    -----
    Loads cuDNN: in child processes only. Plans are built, so cuDNN compiles: 0.3 s for each graph and version, and more
    for backward passes.
    """
    named, chosen = read_graphs(graphs), read_targets(targets)
    for what, given in (("graphs", named), ("targets", chosen)):
        if not given:
            raise UsageError(
                f"there are no {what} to judge", code="matrix-empty", fix=f"give at least one of the {what}"
            )
    setups = read_judging_environments(choose_wheels((old, new), wheels or {}))
    if len(setups) < 2 or setups[old].files == setups[new].files:
        raise UsageError(
            f"{old} and {new} are the same cuDNN version", code="upgrade-versions", fix="give two different versions"
        )
    places = (setups[old].version, setups[new].version)
    pairs = [(graph, target) for target in chosen for graph in named]
    questions = {
        (graph, target, name): Query(named[graph], chosen[target], setups[name], _HEURISTICS_MODES, build=True)
        for graph, target in pairs
        for name in (old, new)
    }
    answers: dict[_VerdictKey, Verdict] = {}

    def make_upgrade_so_far() -> Upgrade:
        return _make_upgrade(old, new, places, pairs, answers)

    with (
        Judge(limit_s=limit_s, fresh=True) as judge,
        progress_bar(len(questions), "judging", shown=progress) as (step, _),
        closing(_judge_all_queries(judge, questions, workers or count_cores(), until)) as coming,
    ):
        for key, verdict in coming:
            if verdict is not None:
                answers[key] = verdict
                keep(make_upgrade_so_far)
            step(len(answers), "judging")
    return make_upgrade_so_far()


_VerdictKey = tuple[str, str, str]  # graph, target, version


def _make_upgrade(
    old: str,
    new: str,
    places: tuple[str | None, str | None],
    pairs: Iterable[tuple[str, str]],
    answers: Mapping[_VerdictKey, Verdict],
) -> Upgrade:
    """Return a comparison of the graphs that both versions judged; it also lists the other graphs."""
    changes: list[Change] = []
    left: dict[str, None] = {}
    for graph, target in pairs:
        before, after = (answers.get((graph, target, version)) for version in (old, new))
        if before is None or after is None:
            left[graph] = None
        else:
            changes.append(Change(graph, target, before, after))
    return Upgrade(old, new, places, tuple(changes), tuple(left))


def _judge_all_queries(
    judge: Judge, questions: Mapping[_VerdictKey, Query], workers: int, until: float
) -> Generator[tuple[_VerdictKey, Verdict | None], None, None]:
    """Yield verdicts as they complete; None for a query not started before `until`."""

    def judge_before_deadline(question: Query) -> Verdict | None:
        return _judge_without_building_variations(judge.run_query, question) if time.monotonic() < until else None

    with ThreadPoolExecutor(workers) as pool:
        asked = {pool.submit(judge_before_deadline, question): key for key, question in questions.items()}
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        finally:
            for future in asked:
                future.cancel()


def _judge_without_building_variations(run_query: Callable[[Query], Verdict], question: Query) -> Verdict:
    """Return the verdict on a query; the cause of a refusal is searched without building variations of the graph."""
    verdict = run_query(replace(question, causes=False))
    if verdict.outcome is not Outcome.NOT_SUPPORTED:
        return verdict
    return run_query(replace(question, build=verdict.stage == "plan"))


def _find_built_candidate(verdict: Verdict) -> Candidate | None:
    return next((item for item in verdict.candidates if item.state == "built"), None)


def _list_supported_configs_by_mode(verdict: Verdict) -> dict[str, list[str]]:
    """Return the lists of supported engine configs by heuristics mode."""
    found: dict[str, list[str]] = {mode: [] for mode in verdict.modes}
    for item in verdict.candidates:
        if item.state in _SUPPORTED_STATES:
            found.setdefault(item.mode, []).append(item.tag)
    return found


def _find_differing_configs(old: Verdict, new: Verdict) -> tuple[str, str]:
    """Return the old and new engine configs of each heuristics mode with a difference, as two texts."""
    olds, news = _list_supported_configs_by_mode(old), _list_supported_configs_by_mode(new)
    modes: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for mode in olds | news:
        lists = tuple(tuple(side.get(mode, ())) for side in (olds, news))
        if lists[0] != lists[1]:
            modes.setdefault(lists, []).append(mode)
    before, after = (
        ", ".join(f"{'/'.join(names)} {tag}" for lists, names in modes.items() for tag in lists[side])
        for side in (0, 1)
    )
    return before, after


def _format_refusal_reason(verdict: Verdict) -> str:
    return verdict.cause.headline if verdict.cause is not None else ""


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _format_compiled_kernels(plan: Candidate) -> str:
    if plan.kernels is None:
        return "in cuDNN's libraries"
    return "; ".join(map(str, plan.kernels))


def _verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    plan = _find_built_candidate(verdict)
    return {
        "cudnn": verdict.cudnn,
        "outcome": verdict.outcome.value,
        "stage": verdict.stage,
        "headline": _format_refusal_reason(verdict),
        "faults": list(verdict.hazards),
        "configs": _list_supported_configs_by_mode(verdict),
        "plan": plan and plan.tag,
        "workspace_bytes": plan and plan.workspace_bytes,
        "kernels": None if plan is None or plan.kernels is None else [asdict(one) for one in plan.kernels],
        "build_s": plan and plan.build_s and round(plan.build_s, 3),
    }
