"""Verdicts from child processes: a crash or hang of cuDNN becomes part of the verdict."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self, TypedDict

from ..errors import CudnnBackendError
from ..graph import Graph, graph_from_json
from ..graph.guard import collect_reports
from ..known_issues import find_known_issues
from ..native import loaded_library
from ..plans.refusals import find_furthest_reason
from ..system.child import TIMED_OUT, AnswerWriter, Child, serve
from ..system.version import Version
from ..target import Profile, open_target
from ..target.environment import find_crash_problem
from ..versions.judging_environment import JudgingEnvironment
from .causes.find import list_suspicious_properties
from .explanation import CRASH_CODE, control_graph, explain, make_environment_cause
from .query import GPU, Query, read_device
from .verdict import STAGE_NAMES, Basis, Cause, Outcome, RemedyCheck, Stage, Verdict

__all__ = ["CRASH_SIGNALS", "GPU", "START_FAILURE_CODE", "TIMEOUT_CODE", "Judge", "Query", "judge"]

TIMEOUT_CODE = "cudnn-timed-out"  # codes of causes
START_FAILURE_CODE = "judge-did-not-start"
CRASH_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")  # ends that are cuDNN's doing, not the user's

_MAX_IDLE_PROCESSES = 4  # processes of other setups than the last that a judge keeps
_MAX_PLAN_CRASHES = 8  # plans of one graph that may crash before the rest is given up


@lru_cache(maxsize=256)
def _read_graph_cached(text: str) -> Graph:
    return graph_from_json(json.loads(text))


_HIDE_GPU_VARIABLES = {"CUDA_VISIBLE_DEVICES": ""}  # of children that are queried about described GPUs


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
    """

    def __init__(self, *, limit_s: float = 60.0, step: Callable[[str], object] = str, fresh: bool = False) -> None:
        self._limit_s = limit_s
        self._step = step
        self._fresh = fresh
        self._idle: dict[tuple[JudgingEnvironment, bool], list[Child]] = {}  # by setup, and whether they see a GPU

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child processes; the next query starts new ones."""
        idle, self._idle = self._idle, {}
        for child in [child for children in idle.values() for child in children]:
            child.end()

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
                answer = self.measure_cause(question, answer.verdict, answer.device, limit_s)
            if isinstance(answer, Verdict):
                return _add_crash_reasons(answer, skip)
            if not answer.tag or answer.ending == TIMED_OUT or len(skip) == _MAX_PLAN_CRASHES:
                return _make_verdict_of_ended_process(question, answer, limit_s)
            skip[answer.tag] = answer.ending

    def measure_cause(self, question: Query, verdict: Verdict, device: Mapping[str, Any], limit_s: float) -> Verdict:
        """Search the cause of this GPU's refusal on a described GPU with equal properties, and add it to the verdict.

        Variations are queried in forked processes, which have no GPU: so on the properties that the GPU itself gave.
        The cause is taken only where cuDNN refuses the graph there for the same reason.
        """
        profile = Profile("device", str(device["deviceName"]), (), device, {}, {})
        described = self._query_child_with_limit(replace(question, target=profile, version=question.setup), limit_s)
        cause, own = described.cause, find_furthest_reason(verdict.candidates)
        same = (described.outcome, described.stage) == (verdict.outcome, verdict.stage)
        if cause is None or cause.basis is not Basis.MEASURED or not same or own is None:
            return verdict
        if find_furthest_reason(described.candidates) != own:
            return verdict
        return replace(
            verdict, cause=replace(cause, detail="; ".join(filter(None, [cause.detail, _JUDGED_ON_DESCRIBED_GPU])))
        )

    def _query_idle_child(
        self, question: Query, skip: tuple[str, ...], limit_s: float
    ) -> Verdict | _UnexplainedRefusal | _ProcessEnd:
        """Send the query to an idle process, and return the process to the pool after a complete answer."""
        setup, sees_gpu = question.setup, question.profile is None
        idle = self._idle.setdefault((setup, sees_gpu), [])
        while (
            child := _take_idle_process(idle)
        ) is not None and not child.is_usable:  # died since, or belongs to a forked process
            child.end()
        if child is None:
            setup.check()
            child = Child.start(_SERVER_FUNCTION, {**setup.environment(), **({} if sees_gpu else _HIDE_GPU_VARIABLES)})
        try:
            answer = _query_child(child, question, skip, self._fresh, limit_s, self._step)
            setup.check()  # cuDNN loads some of its libraries when they are needed
        except BaseException:
            child.end()
            raise
        if child.is_usable and not (self._fresh and question.build and sees_gpu):
            idle.append(child)
            self._end_excess_processes(idle)
        else:
            child.end()
        return answer

    def _end_excess_processes(self, used: list[Child]) -> None:
        """Stop idle processes with another cuDNN setup if there are too many, as each has cuDNN in memory."""
        others = [idle for idle in list(self._idle.values()) if idle is not used]
        for idle in others[: max(0, sum(map(len, others)) - _MAX_IDLE_PROCESSES)]:
            if (child := _take_idle_process(idle)) is not None:
                child.end()


_JUDGED_ON_DESCRIBED_GPU = (
    "variations were judged on a described GPU like this one, which refuses the graph for the same reason"
)


def _take_idle_process(idle: list[Child]) -> Child | None:
    try:
        return idle.pop()
    except IndexError:
        return None


_thread_judge = threading.local()


def judge(question: Query, *, limit_s: float = 60.0) -> Verdict:
    """Return the verdict for a query, judged in a child process of this thread; made for use in executors.

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


class _LoadedLibrary(TypedDict):
    """The cuDNN that a child has loaded."""

    version: Sequence[int]
    text: str
    path: str


_NO_LOADED_LIBRARY: _LoadedLibrary = {"version": (0, 0, 0), "text": "not asked", "path": ""}


@dataclass(frozen=True)
class _ProcessEnd:
    """How a child process ended: signal, exit code or ``TIMED_OUT``, with its last step and last output.

    ``step`` is empty where cuDNN was not asked yet.
    """

    ending: str
    step: str
    said: str
    library: _LoadedLibrary

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
) -> Verdict | _UnexplainedRefusal | _ProcessEnd:
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
        return _ProcessEnd(child.ending, step, child.last_words, loaded)
    try:
        found = Verdict.from_dict(verdict or {})
        return found if device is None else _UnexplainedRefusal(found, device)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CudnnBackendError(f"a child process gave no verdict: {error!r}", code="answer-damaged") from None


# in the child process


def serve_judge() -> None:
    """In a child process: answer the queries that the :class:`Judge` sends."""
    serve(_answer_query, _can_answer_in_fork)


_SERVER_FUNCTION = f"{__name__}:{serve_judge.__name__}"


_prepared_libraries: set[str] = (
    set()
)  # devices whose control graph was queried here: forks need not load and ask all that


def _can_answer_in_fork(asked: Mapping[str, Any], say: AnswerWriter) -> bool:
    """Whether a forked process should answer; a fork cannot use the GPU."""
    profile = read_device(asked["device"])
    if not (asked["fresh"] and asked["build"]) or profile is None:
        return False
    if asked["device"] not in _prepared_libraries:
        explain(control_graph(), profile, step=_make_step_reporter(say))
        _prepared_libraries.add(asked["device"])
    return True


def _make_step_reporter(say: AnswerWriter) -> Callable[[str], None]:
    def step(text: str) -> None:
        if (lib := loaded_library()) is None:
            say(step=text)
        else:
            say(step=text, loaded=_LoadedLibrary(version=lib.version, text=lib.build_text, path=lib.path))

    return step


def _answer_query(asked: Mapping[str, Any], say: AnswerWriter) -> None:
    verdict = explain(
        _read_graph_cached(asked["graph"]),
        read_device(asked["device"]),
        mode=asked["modes"],
        build=asked["build"],
        execute=asked["execute"],
        step=_make_step_reporter(say),
        skip=asked["skip"],
        causes=asked["causes"],
        shapes=asked["shapes"],
        every_engine=asked["every_engine"],
    )
    measured = verdict.cause is not None and verdict.cause.basis is Basis.MEASURED
    if verdict.live and verdict.outcome is Outcome.NOT_SUPPORTED and asked["causes"] and not measured:
        with contextlib.suppress(CudnnBackendError), contextlib.closing(open_target()) as target:
            say(device=dict(target.profile.properties))
    say(verdict=verdict.to_dict())


def _add_crash_reasons(verdict: Verdict, skip: Mapping[str, str]) -> Verdict:
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


def _make_verdict_of_ended_process(question: Query, ending: _ProcessEnd, limit_s: float) -> Verdict:
    """Return the verdict for a query if the child process ended before it answered."""
    profile, setup = question.profile, question.setup
    timed_out = ending.ending == TIMED_OUT
    stage = ending.stage
    hazards: tuple[str, ...] = ()
    lines: list[str] = []
    fault = None
    if not timed_out:
        fault = find_crash_problem(setup.library, setup.nvrtc, in_start=stage == "environment")
    if fault is not None:  # what is damaged may die anywhere, whatever it is queried
        stage, cause = "environment", make_environment_cause(fault)
    elif ending.step:
        with collect_reports() as lines:
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


def _explain_failed_start(ending: _ProcessEnd, limit_s: float) -> Cause:
    """Return why cuDNN was not called: the process ended or timed out before the first step."""
    if ending.ending == TIMED_OUT:
        headline = f"the process that queries cuDNN was not ready after {limit_s:g} s"
        return Cause(TIMEOUT_CODE, headline, Basis.MEASURED, ending.said, "give it more time")
    headline = f"the process that queries cuDNN ended with {ending.ending} before it judged anything"
    remedy = "this says nothing about the graph: fix the problem that the process printed, see 'cudnn-backend doctor'"
    return Cause(START_FAILURE_CODE, headline, Basis.MEASURED, ending.said, remedy)


def _explain_crash(graph: Graph, profile: Profile | None, ending: _ProcessEnd) -> tuple[Cause, tuple[str, ...]]:
    """Return a headline that names the stage where cuDNN crashed or hung, and known issues with such a graph."""
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
