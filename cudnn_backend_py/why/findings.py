"""``why_not_cudnn``: watch a program's attention calls and report on them. Imports torch on use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..diagnose.explanation import control_graph
from ..diagnose.judges import Judge, Query
from ..errors import CudnnBackendError, EnvironmentNotReady, UsageError
from ..system.version import parse_version_numbers
from ..target.profiles import Profile, find_profile
from .calls import DEFAULT_ORDER, Machine, TorchBackendChoice, TorchCall
from .conditions import apply_remedy, find_blocker, find_other_blockers, find_releases
from .query_cudnn import CallVerdict, query_cudnn
from .report import Finding, WhyReport

if TYPE_CHECKING:
    from .watch import AttentionCallWatch, CallGroup

__all__ = ["make_described_machine", "make_findings", "why_not_cudnn"]


@contextlib.contextmanager
def why_not_cudnn(
    target: str | None = None, *, run_query: bool = True, measure: bool = False, budget_s: float = 60.0
) -> Iterator[WhyReport]:
    """Watch torch's attention calls during a block; report the chosen backends and what excluded cuDNN.

    Parameters
    ----------
    target
        A described GPU (``"h100"``, ``"sm90"``, a JSON file) that the calls are judged for, wherever their tensors are;
        None: the GPU of this process.
    run_query
        Whether cuDNN judges the graph of each kind of call, in a child process after the block.
    measure
        Whether, after the block and on a GPU, each kind of call is timed with every backend of torch that runs it.
    budget_s
        Seconds for `run_query` and `measure` together; the report names what was left out.

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
        from .watch import AttentionCallWatch
    except ImportError as error:
        raise EnvironmentNotReady(
            "torch cannot be imported",
            code="why-without-torch",
            cause=str(error),
            fix="install torch in this Python environment, or repair its installation",
        ) from error
    report = WhyReport(machine=Machine((0, 0, 0), None, None), findings=(), target=target or "")
    watch = AttentionCallWatch(as_cuda=target is not None)
    watch.start()
    try:
        yield report
    finally:
        watch.stop()
        fill_report(report, watch, profile, run_query=run_query, measure=measure, budget_s=budget_s)


def make_described_machine(machine: Machine, profile: Profile, cudnn: tuple[int, int, int] | None) -> Machine:
    """Return a machine with a described GPU and this process's torch and cuDNN, to judge calls for."""
    return replace(machine, sm=profile.sm, gpu=profile.title, cudnn=machine.cudnn or cudnn, live=False)


_MAX_DIRECT_CALLS = 8  # places that name a backend, which are reported


def fill_report(
    report: WhyReport,
    watch: AttentionCallWatch,
    profile: Profile | None,
    *,
    run_query: bool,
    measure: bool,
    budget_s: float,
) -> None:
    """Fill a report from a watch, including what was not observed; judge calls for `profile` if given."""
    from .query_torch import read_machine

    machine = read_machine()
    unseen = list(watch.unobserved)
    if watch.lost_calls:
        unseen.append(f"{watch.lost_calls} call{'s' * (watch.lost_calls != 1)}: {watch.loss_reason}")
    unseen += [
        f"what torch would choose for {one}, called {count} time{'s' * (count != 1)}: the program names the backend"
        for one, count in watch.direct_calls.most_common(_MAX_DIRECT_CALLS)
    ]
    if (more := len(watch.direct_calls) - _MAX_DIRECT_CALLS) > 0:
        unseen.append(f"{more} more places that name a backend")
    with Judge(limit_s=max(budget_s, 1.0)) as judge:
        if profile is not None:
            machine = make_described_machine(
                machine, profile, _find_judging_cudnn(judge, profile) if machine.cudnn is None else None
            )
            unseen.append(
                "torch's own answers: conditions and order are from this package's table "
                "(--target runs compiled functions as written)"
            )
        elif not machine.live:
            unseen.append("torch's answers for a GPU: there is no GPU here; --target judges for a described GPU")
        if (profile is not None or not machine.live) and len(find_releases(machine.torch)) != 1:
            version = ".".join(map(str, machine.torch))
            unseen.append(f"the conditions of torch {version}: those of the versions before and after it were used")
        report.machine = machine
        report.findings, beyond = make_findings(
            list(watch.groups.values()), machine, judge if run_query else None, profile, measure, budget_s
        )
    report.unseen = (*unseen, *beyond)


def _find_judging_cudnn(judge: Judge, profile: Profile) -> tuple[int, int, int] | None:
    with contextlib.suppress(CudnnBackendError, ValueError, IndexError):
        numbers = parse_version_numbers(judge.run_query(Query(control_graph(), profile)).cudnn)
        return (numbers[0], numbers[1], numbers[2])
    return None


def _merge_call_groups_of_threads(groups: Sequence[CallGroup]) -> list[tuple[CallGroup, int, tuple[str, ...]]]:
    """Merge groups that differ only in their threads; return each with its count and thread names."""
    found: dict[object, list[CallGroup]] = {}
    for group in groups:
        found.setdefault((group.place, group.call, group.compiled, group.answer), []).append(group)
    merged = [
        (same[0], sum(group.count for group in same), tuple(sorted({group.thread for group in same})))
        for same in found.values()
    ]
    return sorted(merged, key=lambda one: -one[1])


def make_findings(
    groups: Sequence[CallGroup],
    machine: Machine,
    judge: Judge | None,
    profile: Profile | None,
    measure: bool,
    budget_s: float,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return a finding for each group of calls, those that use cuDNN last; and texts on what was not observed."""
    where = profile or ("gpu" if machine.live else "")
    if judge is not None and where and groups:
        with contextlib.suppress(CudnnBackendError):
            judge.run_query(Query(control_graph(), where))  # its process starts, and loads cuDNN
    deadline = time.monotonic() + budget_s
    findings = []
    for group, count, threads in _merge_call_groups_of_threads(groups):
        answer = group.answer
        if profile is None and (answer == TorchBackendChoice() or answer.cudnn is False):
            again = _query_torch_with_fake_tensors(group.call)
            answer = again if answer == TorchBackendChoice() else replace(answer, words=again.words)
        call = _drop_unset_backend_order(group.call, machine, answer)
        blocker = find_blocker(call, machine, answer)
        also = () if blocker is None else find_other_blockers(call, machine, blocker)
        findings.append(
            Finding(
                call=call,
                place=group.place,
                count=count,
                threads=threads,
                compiled=group.compiled,
                answer=answer,
                blocker=blocker,
                also=also,
            )
        )
    findings.sort(key=lambda one: one.uses_cudnn)
    sides: dict[TorchCall, CallVerdict] = {}
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
    said = (f"cuDNN's verdict on {kinds}: the time budget was used up",) if left and judge else ()
    return tuple(findings), said


def _query_torch_with_fake_tensors(call: TorchCall) -> TorchBackendChoice:
    from .query_torch import query_backend_choice_with_fake_tensors

    try:
        return query_backend_choice_with_fake_tensors(call)
    except Exception as error:  # of torch, about fake tensors
        return TorchBackendChoice(
            error=f"torch could not be queried: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        )


def _drop_unset_backend_order(call: TorchCall, machine: Machine, answer: TorchBackendChoice) -> TorchCall:
    """Return a call without its backend order if torch had not initialized the order at that time."""
    order = tuple(name for name in call.switches.order or () if name != "overrideable")
    if answer.choice is None and order in ((), DEFAULT_ORDER):
        return replace(call, switches=replace(call.switches, order=None))
    return replace(call, switches=replace(call.switches, order=order or None))
