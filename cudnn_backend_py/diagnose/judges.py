"""Verdicts from child processes: a crash or hang of cuDNN becomes part of the verdict."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from ..errors import CudnnBackendError
from ..plans.refusals import find_deepest_reason_among_configs
from ..system.child import TIMED_OUT, Child
from ..system.version import Version
from ..target import Profile
from .processes import JudgingProcesses
from .query import GPU, Query
from .verdict import CRASH_CODE, STAGE_NAMES, Basis, Cause, Outcome, RemedyCheck, Stage, Verdict

if TYPE_CHECKING:
    from ..graph import Graph
    from .judging_answers import LoadedLibrary

__all__ = ["CRASH_SIGNALS", "GPU", "START_FAILURE_CODE", "TIMEOUT_CODE", "Judge", "Query", "judge"]

TIMEOUT_CODE = "cudnn-timed-out"  # codes of causes
START_FAILURE_CODE = "judge-did-not-start"
CRASH_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")  # ends that are cuDNN's doing, not the user's

_MAX_PLAN_CRASHES = 8  # plans of one graph that may crash before the rest is given up


class Judge:
    """Child processes that answer queries, started on demand and restarted after a crash.

    Threads may share one: a question has a process to itself. What interrupts a question (an exception of a signal's
    handler, a time limit, a cancelled task) ends its process, and a forked process starts its own, so an answer can be
    late or missing and is never that to another question. A process that is queried about described GPUs sees no GPU:
    the driver of one takes code for no other, and variations are queried in forked processes, which have none. A
    context manager; closing ends the processes, as letting go of the judge does.

    Parameters
    ----------
    limit_s
        Seconds a question may take.
    step
        Called with what cuDNN is queried next, in the thread that asks.
    fresh
        Whether no process builds plans for two questions, so that code can be compared: what NVRTC has compiled before
        in a process changes the code of some kernels that it compiles later. Costs a fork, or with the GPU of this
        machine a new process.
    processes
        Where processes are taken from, such as one that was started before; its own if not given.
    """

    def __init__(
        self,
        *,
        limit_s: float = 60.0,
        step: Callable[[str], object] = str,
        fresh: bool = False,
        processes: JudgingProcesses | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._step = step
        self._fresh = fresh
        self._processes = JudgingProcesses() if processes is None else processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child processes; the next query starts new ones."""
        self._processes.close()

    def run_query(self, question: Query) -> Verdict:
        """Return the verdict for a query.

        A process that dies or runs out of time is a verdict that could not be judged; where it died while building the
        plan of one engine config, the others are built nevertheless.

        Raises
        ------
        UsageError
            ``child-not-usable`` where a signal's handler forked meanwhile, in the forked process.
        EnvironmentNotReady
            ``cudnn-files-changed`` if library files changed after the question was made; ``child-not-started``.
        CudnnBackendError
            ``judging-failed``, ``answer-damaged``: a bug of this package.
        """
        return self._query_child_with_limit(question, self._limit_s)

    def _query_child_with_limit(self, question: Query, limit_s: float) -> Verdict:
        skip: dict[str, str] = {}
        while True:
            answer = self._query_idle_child(question, tuple(skip), limit_s)
            if isinstance(answer, _UnexplainedRefusal):
                answer = self.add_cause_from_described_gpu(question, answer.verdict, answer.device, limit_s)
            if isinstance(answer, Verdict):
                return _add_lines_of_crashed_configs(answer, skip)
            if not answer.tag or answer.ending == TIMED_OUT or len(skip) == _MAX_PLAN_CRASHES:
                return _make_verdict_of_ended_process(question, answer, limit_s)
            skip[answer.tag] = answer.ending

    def add_cause_from_described_gpu(
        self, question: Query, verdict: Verdict, device: Mapping[str, Any], limit_s: float
    ) -> Verdict:
        """Judge on a described GPU with the real one's properties; add the cause found there to the real GPU's verdict.

        Variations are queried in forked processes, which have no GPU: so on the properties that the GPU itself gave.
        The cause is taken only where cuDNN refuses the graph there for the same reason.
        """
        profile = Profile("device", str(device["deviceName"]), (), device, {}, {})
        described = self._query_child_with_limit(replace(question, target=profile, version=question.setup), limit_s)
        cause, own = described.cause, find_deepest_reason_among_configs(verdict.candidates)
        same = (described.outcome, described.stage) == (verdict.outcome, verdict.stage)
        if cause is None or cause.basis is not Basis.MEASURED or not same or own is None:
            return verdict
        if find_deepest_reason_among_configs(described.candidates) != own:
            return verdict
        return replace(
            verdict, cause=replace(cause, detail="; ".join(filter(None, [cause.detail, _JUDGED_ON_DESCRIBED_GPU])))
        )

    def _query_idle_child(
        self, question: Query, skip: tuple[str, ...], limit_s: float
    ) -> Verdict | _UnexplainedRefusal | _ChildProcessEnd:
        """Send the query to an idle process, and return the process to the pool after a complete answer."""
        setup, sees_gpu = question.setup, question.profile is None
        child = self._processes.take(setup, sees_gpu=sees_gpu)
        try:
            answer = _query_child(child, question, skip, self._fresh, limit_s, self._step)
            setup.check()  # cuDNN loads some of its libraries when they are needed
        except BaseException:
            child.end()
            raise
        if child.is_usable and not (self._fresh and question.build and sees_gpu):
            self._processes.put_back(child, setup, sees_gpu=sees_gpu)
        else:
            child.end()
        return answer


_JUDGED_ON_DESCRIBED_GPU = (
    "variations were judged on a described GPU like this one, which refuses the graph for the same reason"
)


_thread_judge = threading.local()


def judge(question: Query, *, limit_s: float = 60.0) -> Verdict:
    """Return the verdict for a query, judged in a child process that belongs to this thread of an executor.

    It is ended with the thread, so with the executor or the event loop that the thread belongs to.

    Raises
    ------
    UsageError, EnvironmentNotReady, CudnnBackendError
        As :meth:`Judge.ask`.
    """
    if not hasattr(_thread_judge, "judge"):
        _thread_judge.judge = Judge()
    own: Judge = _thread_judge.judge
    return own._query_child_with_limit(question, limit_s)


_NO_LOADED_LIBRARY: LoadedLibrary = {"version": (0, 0, 0), "text": "not asked", "path": ""}


@dataclass(frozen=True)
class _ChildProcessEnd:
    """How a child process ended: signal, exit code or ``TIMED_OUT``, with its last step and last output.

    ``step`` is empty where cuDNN was not asked yet.
    """

    ending: str
    step: str
    said: str
    library: LoadedLibrary

    @property
    def tag(self) -> str:
        """The tag of the engine config that was being built; empty if the process ended in another step."""
        return self.step.removeprefix("plan of ") if self.step.startswith("plan of ") else ""

    @property
    def stage(self) -> str:
        """The stage of judging in which the process ended."""
        first = self.step.partition(" mode")[0].partition(" of")[0].partition(",")[0]
        return first if first in STAGE_NAMES else "environment"


@dataclass(frozen=True)
class _UnexplainedRefusal:
    """A refusal by this machine's GPU without a proven cause, and that GPU's properties."""

    verdict: Verdict
    device: Mapping[str, Any]


def _query_child(
    child: Child,
    question: Query,
    skip: tuple[str, ...],
    fresh: bool,
    limit_s: float,
    report: Callable[[str], object],
) -> Verdict | _UnexplainedRefusal | _ChildProcessEnd:
    asked = {**question.message(), "skip": list(skip), "fresh": fresh}
    step = ""
    loaded = _NO_LOADED_LIBRARY
    verdict = device = None
    for said in child.run_query(asked, limit_s):
        if "step" in said:
            step = said["step"]
            report(step)
        loaded = said.get("loaded", loaded)
        verdict = said.get("verdict", verdict)
        device = said.get("device", device)
    if child.ending:
        return _ChildProcessEnd(child.ending, step, child.last_words, loaded)
    try:
        found = Verdict.from_dict(verdict or {})
        return found if device is None else _UnexplainedRefusal(found, device)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CudnnBackendError(f"a child process gave no verdict: {error!r}", code="answer-damaged") from None


def _add_lines_of_crashed_configs(verdict: Verdict, skip: Mapping[str, str]) -> Verdict:
    """Return the verdict with a line for each engine config that crashed a process during its build."""
    if not skip:
        return verdict
    lines = [f"crashed with {ending} while the plan of {tag} was built" for tag, ending in skip.items()]
    built = any(item.state == "built" for item in verdict.candidates)

    def add_lines(stage: Stage) -> Stage:
        if stage.name != "plan":
            return stage
        return replace(stage, state=stage.state if built else "crashed", detail="; ".join([stage.detail, *lines]))

    return replace(verdict, stages=tuple(map(add_lines, verdict.stages)))


def _make_verdict_of_ended_process(question: Query, ending: _ChildProcessEnd, limit_s: float) -> Verdict:
    """Return the verdict for a query if the child process ended before it answered."""
    from ..graph.guard import collect_error_reports  # a process that answers needs none of these
    from ..native.environment_problems import find_problem_explaining_crash
    from .explanation import convert_environment_problem_to_cause

    profile, setup = question.profile, question.setup
    timed_out = ending.ending == TIMED_OUT
    stage = ending.stage
    hazards: tuple[str, ...] = ()
    lines: list[str] = []
    fault = None
    if not timed_out:
        fault = find_problem_explaining_crash(setup.library, setup.nvrtc, in_start=stage == "environment")
    if fault is not None:  # what is damaged may die anywhere, whatever it is queried
        stage, cause = "environment", convert_environment_problem_to_cause(fault)
    elif ending.step:
        with collect_error_reports() as lines:
            cause, hazards = _explain_crash(question.graph, profile, ending)
    else:
        cause = _explain_failed_start(ending, limit_s)
    state = "timed out" if timed_out else "crashed"
    reached = STAGE_NAMES.index(stage)
    states = ["passed"] * reached + [state] + ["not reached"] * (len(STAGE_NAMES) - reached - 1)
    details = {stage: cause.headline}
    return Verdict(
        outcome=Outcome.NOT_JUDGED,
        stage=stage,
        graph=question.graph.name,
        graph_text=str(question.graph),
        target=profile.name if profile else GPU,
        target_title=profile.title if profile else GPU,
        sm=profile.sm if profile else 0,
        live=profile is None,
        cudnn=ending.library["text"],
        library=ending.library["path"],
        driver="not asked",
        modes=question.modes,
        cause=cause,
        stages=tuple(
            Stage(name, state, details.get(name, "")) for name, state in zip(STAGE_NAMES, states, strict=True)
        ),
        hazards=hazards,
        limits=tuple(lines),
    )


def _explain_failed_start(ending: _ChildProcessEnd, limit_s: float) -> Cause:
    """Return why cuDNN was not called: the process ended or timed out before the first step."""
    if ending.ending == TIMED_OUT:
        headline = f"the process that queries cuDNN was not ready after {limit_s:g} s"
        return Cause(TIMEOUT_CODE, headline, Basis.MEASURED, ending.said, "give it more time")
    headline = f"the process that queries cuDNN ended with {ending.ending} before it judged anything"
    remedy = "this says nothing about the graph: fix the problem that the process printed, see 'cudnn-backend doctor'"
    return Cause(START_FAILURE_CODE, headline, Basis.MEASURED, ending.said, remedy)


def _explain_crash(graph: Graph, profile: Profile | None, ending: _ChildProcessEnd) -> tuple[Cause, tuple[str, ...]]:
    """Return a headline that names the stage where cuDNN crashed or hung, and known issues with such a graph."""
    from ..known_issues import find_known_issues
    from .causes.find import list_suspicious_properties

    version = Version(*ending.library["version"])
    hazards = [] if profile is None else find_known_issues(graph, profile.sm, version)
    timed_out = ending.ending == TIMED_OUT
    if timed_out:
        headline, remedy = "cuDNN did not answer in time", "give it more time"
    else:
        who = "cuDNN crashed" if ending.ending in CRASH_SIGNALS else "the process that queries cuDNN ended"
        headline, remedy = (
            f"{who} with {ending.ending}",
            "another cuDNN version, or a change of the graph, may not crash",
        )
    headline = f"{headline} in {ending.step}"
    ends = [fault for fault in hazards if fault.step != "run"]
    if ends and not timed_out:
        headline, remedy = f"{headline}, as is known of {ends[0].what}", ends[0].fix
    if suspected := list_suspicious_properties(graph):
        headline = f"{headline}; {'; '.join(suspected)}"
    code = TIMEOUT_CODE if timed_out else CRASH_CODE
    asked: RemedyCheck = "" if timed_out else "not asked"
    return Cause(code, headline, Basis.MEASURED, ending.said, remedy, asked), tuple(map(str, hazards))
