"""``why_not_cudnn``: watch a program and report. Imports torch on use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..diagnose.explanation import control_graph
from ..diagnose.judges import Judge, Query
from ..errors import CudnnBackendError, EnvironmentNotReady, UsageError
from ..system.version import version_numbers
from ..target.profiles import Profile, find_profile
from .calls import ORDER, Answer, Machine, TorchCall
from .gates import apply_remedy, find_blocker, find_others, find_releases
from .query_cudnn import DirectionVerdict, query_cudnn
from .report import Finding, WhyReport

if TYPE_CHECKING:
    from .watch import Row, Watch

__all__ = ["judged_for", "make_findings", "why_not_cudnn"]


@contextlib.contextmanager
def why_not_cudnn(
    target: str | None = None, *, run_query: bool = True, measure: bool = False, budget_s: float = 60.0
) -> Iterator[WhyReport]:
    """Watch torch's attention calls in a block: the chosen backend, and what excluded cuDNN.

    Parameters
    ----------
    target
        A described GPU (``"h100"``, ``"sm90"``, a JSON file) that the calls are judged for, wherever their tensors are;
        None: the GPU of this process.
    run_query
        Whether cuDNN is queried itself, in a child process and after the block, about the graph of each kind of call.
    measure
        Whether, after the block and on a GPU, each kind of call is timed with every backend of torch that runs it.
    budget_s
        Seconds for `run_query` and `measure` together; what they do not suffice for is said.

    Yields
    ------
    WhyReport
        Empty in the block, complete after it, also where the block raises.

    Raises
    ------
    UsageError
        ``unknown-target``, ``why-option`` of a budget that is no number of seconds.
    EnvironmentNotReady
        ``why-without-torch``.
    """
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not budget_s >= 0:
        raise UsageError(f"budget_s is {budget_s!r}, a number of seconds of 0 or more is needed", code="why-option")
    profile = None if target is None else find_profile(target)
    try:
        from .watch import Watch
    except ImportError as error:
        raise EnvironmentNotReady("torch cannot be imported", code="why-without-torch", cause=str(error)) from error
    report = WhyReport(machine=Machine((0, 0, 0), None, None), findings=(), target=target or "")
    watch = Watch(as_cuda=target is not None)
    watch.start()
    try:
        yield report
    finally:
        watch.stop()
        fill_report(report, watch, profile, run_query=run_query, measure=measure, budget_s=budget_s)


def judged_for(machine: Machine, profile: Profile, cudnn: tuple[int, int, int] | None) -> Machine:
    """Return the machine for judging calls on a described GPU, with this process's torch and cuDNN."""
    return replace(machine, sm=profile.sm, gpu=profile.title, cudnn=machine.cudnn or cudnn, live=False)


_MOST_DIRECT = 8  # places that name a backend, which are reported


def fill_report(
    report: WhyReport, watch: Watch, profile: Profile | None, *, run_query: bool, measure: bool, budget_s: float
) -> None:
    """Write a watch's observations into a report, including failures. Calls are judged for `profile` if given."""
    from .query_torch import read_machine

    machine = read_machine()
    unseen = list(watch.unseen)
    if watch.lost:
        unseen.append(f"{watch.lost} call{'s' * (watch.lost != 1)}: {watch.lost_why}")
    unseen += [
        f"what torch would choose for {one}, called {count} time{'s' * (count != 1)}: the program names the backend"
        for one, count in watch.direct.most_common(_MOST_DIRECT)
    ]
    if (more := len(watch.direct) - _MOST_DIRECT) > 0:
        unseen.append(f"{more} more places that name a backend")
    with Judge(limit_s=max(budget_s, 1.0)) as judge:
        if profile is not None:
            machine = judged_for(machine, profile, _find_own_cudnn(judge, profile) if machine.cudnn is None else None)
            unseen.append(
                "torch's own answers: gates and order are the table's (--target runs compiled functions as written)"
            )
        elif not machine.live:
            unseen.append("torch's answers for a GPU: there is none here; --target judges for a described one")
        if (profile is not None or not machine.live) and len(find_releases(machine.torch)) != 1:
            version = ".".join(map(str, machine.torch))
            unseen.append(
                f"the gates of torch {version} themselves: those of the versions before and after it were read"
            )
        report.machine = machine
        report.findings, beyond = make_findings(
            list(watch.rows.values()), machine, judge if run_query else None, profile, measure, budget_s
        )
    report.unseen = (*unseen, *beyond)


def _find_own_cudnn(judge: Judge, profile: Profile) -> tuple[int, int, int] | None:
    with contextlib.suppress(CudnnBackendError, ValueError, IndexError):
        numbers = version_numbers(judge.run_query(Query(control_graph(), profile)).cudnn)
        return (numbers[0], numbers[1], numbers[2])
    return None


def _merge(rows: Sequence[Row]) -> list[tuple[Row, int, tuple[str, ...]]]:
    """Merge rows that differ only in their threads, with counts and thread names."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault((row.place, row.call, row.compiled, row.answer), []).append(row)
    merged = [
        (same[0], sum(row.count for row in same), tuple(sorted({row.thread for row in same})))
        for same in found.values()
    ]
    return sorted(merged, key=lambda one: -one[1])


def make_findings(
    rows: Sequence[Row], machine: Machine, judge: Judge | None, profile: Profile | None, measure: bool, budget_s: float
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings of rows, those that use cuDNN last, and what could not be observed."""
    where = profile or ("gpu" if machine.live else "")
    if judge is not None and where and rows:
        with contextlib.suppress(CudnnBackendError):
            judge.run_query(Query(control_graph(), where))  # its process starts, and loads cuDNN
    deadline = time.monotonic() + budget_s
    findings = []
    for row, count, threads in _merge(rows):
        answer = row.answer
        if profile is None and (answer == Answer() or answer.cudnn is False):
            again = _judge_again(row.call)
            answer = again if answer == Answer() else replace(answer, words=again.words)
        call = _drop_unset_order(row.call, machine, answer)
        blocker = find_blocker(call, machine, answer)
        also = () if blocker is None else find_others(call, machine, blocker)
        findings.append(
            Finding(
                call=call,
                place=row.place,
                count=count,
                threads=threads,
                compiled=row.compiled,
                answer=answer,
                blocker=blocker,
                also=also,
            )
        )
    findings.sort(key=lambda one: one.uses_cudnn)
    sides: dict[TorchCall, DirectionVerdict] = {}
    left = 0
    for at, one in enumerate(findings):
        call, cured = apply_remedy(one.call, one.blocker)
        asked = replace(call, switches=type(call.switches)(), autocast="", note="")
        side, times = sides.get(asked), {}
        if time.monotonic() > deadline:
            left += side is None
        else:
            if judge is not None and where and side is None and call.kind in ("sdpa", "flex"):
                side = sides[asked] = query_cudnn(asked, machine, where, judge)
            if measure and machine.live and profile is None:
                from .query_torch import measure as measure_call

                times = measure_call(asked)
        findings[at] = replace(one, side=side, cured=cured, times=times)
    kinds = f"{left} kind{'s' * (left != 1)} of calls"
    said = (f"cuDNN's own answer to {kinds}: the time for asking was over",) if left and judge else ()
    return tuple(findings), said


def _judge_again(call: TorchCall) -> Answer:
    from .query_torch import query_by_facts

    try:
        return query_by_facts(call)
    except Exception as error:  # of torch, about fake tensors
        return Answer(error=f"torch could not be queried: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _drop_unset_order(call: TorchCall, machine: Machine, answer: Answer) -> TorchCall:
    """Return a call without an order set by the user, as torch reports none before its first choice."""
    order = tuple(name for name in call.switches.order or () if name != "overrideable")
    if answer.choice is None and order in ((), ORDER):
        return replace(call, switches=replace(call.switches, order=None))
    return replace(call, switches=replace(call.switches, order=order or None))
