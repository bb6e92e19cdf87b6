"""Check every engine for one graph with up to a fixed number of knob values, each engine in a forked process."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ..errors import CudnnStatusError
from ..generated.enums import KnobType, Severity
from ..plans.candidate import EVERY_ENGINE
from ..plans.choice import EngineChoice
from ..plans.engine import EngineConfig, Knob, OperationGraph
from ..plans.refusals import Reason, read_error_reasons, read_refusals
from .fork import run_in_fork
from .verdict import EngineCheck

__all__ = ["check_every_engine", "list_knob_choices"]

_MAX_CONFIGS_PER_ENGINE = 2_000  # combinations of knob values of one engine, all of which are checked: some 1 ms each
_CONFIGS_PER_PROCESS = 1_000  # configs that one forked process checks
_MAX_RETURNED_CONFIGS = 4  # configs of one slice that are returned


def list_knob_choices(
    knobs: tuple[Knob, ...], most: int = _MAX_CONFIGS_PER_ENGINE
) -> tuple[Iterator[dict[KnobType | int, int]], int, bool]:
    """Return the knob values to check (first an empty set), their number, and whether they are all combinations.

    Up to `most` combinations, all of them; else each value of each knob alone, the others left to cuDNN.
    """
    values = {knob.type: range(knob.minimum, knob.maximum + 1, max(1, knob.stride)) for knob in knobs}
    count = math.prod(map(len, values.values()))
    if count <= most:
        combined = (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))
        return itertools.chain(({},), combined if values else ()), 1 + count * bool(values), True
    singly = ({knob: value} for knob, allowed in values.items() for value in allowed[:most])
    return itertools.chain(({},), singly), 1 + sum(min(len(allowed), most) for allowed in values.values()), False


def check_every_engine(
    question: OperationGraph, step: Callable[[str], object]
) -> tuple[list[EngineConfig], tuple[EngineCheck, ...], str]:
    """Check all engine configs of a graph; return some that support it, one result per engine, and a text with counts.

    Parameters
    ----------
    step
        Called before each slice of configs.
    """
    engines = question.engine_count
    choices: list[Iterator[dict[KnobType | int, int]]] = []
    checks: list[EngineCheck] = []
    found: list[EngineConfig] = []
    in_part: list[int] = []
    total = checked = 0
    for engine in range(engines):
        try:
            knobs = question.knobs(engine)
        except CudnnStatusError:
            knobs = ()  # it refuses the graph with any knobs
        coming, count, whole = list_knob_choices(knobs)
        choices.append(coming)
        total += count
        in_part += [] if whole else [engine]
    for engine, coming in enumerate(choices):
        passed = unchecked = 0
        reasons: Counter[Reason] = Counter()
        tags: list[str] = []
        while part := list(itertools.islice(coming, _CONFIGS_PER_PROCESS)):
            step(f"engine config of engine {engine} of {engines}, {checked:,} of {total:,} configs checked")
            checked += len(part)
            answer = _check_configs_in_fork(question, engine, part)
            if answer is None:
                unchecked += len(part)
                continue
            passed += len(answer[0])
            reasons += answer[1]
            tags += [EngineChoice(engine, part[number]).tag for number in answer[0]]
            found += [
                question.config(engine, part[number], origin=EVERY_ENGINE)
                for number in answer[0][:_MAX_RETURNED_CONFIGS]
            ]
        reason = next((reason for reason, _ in reasons.most_common(1)), None)
        checks.append(EngineCheck(engine, passed + reasons.total(), passed, unchecked, reason, tuple(tags)))
    return found, tuple(checks), _format_check_counts(checks, in_part)


def _format_check_counts(checks: Sequence[EngineCheck], in_part: Sequence[int]) -> str:
    """Return text with the counts of checked engines and configs; engines `in_part` were checked one knob at a time."""
    configs, passed, unchecked = (
        sum(getattr(check, name) for check in checks) for name in ("configs", "passed", "unchecked")
    )
    every = "" if in_part or unchecked else "all "
    text = f"{every}{configs:,} configs of {len(checks)} engines checked: {passed:,} pass the support check"
    if in_part:
        text += f"; one knob at a time: engine {', '.join(map(str, in_part))}"
    if unchecked:
        text += f"; {unchecked:,} more were not checked, as cuDNN crashed or hung on one of them"
    return text


def _check_configs_in_fork(
    question: OperationGraph, engine: int, choices: list[dict[KnobType | int, int]]
) -> tuple[list[int], Counter[Reason]] | None:
    """Return the indices of the knob values that pass the support check, and how often each reason refused the others.

    None if cuDNN ended the process.
    """

    from ..native import capture_log  # only where every engine is checked

    def check_configs() -> tuple[list[int], Counter[Reason]] | None:
        passed: list[int] = []
        reasons: Counter[Reason] = Counter()
        with capture_log(Severity.WARNING, this_thread_only=True, on=question.target.library) as log:
            for number, knobs in enumerate(choices):
                log.records.clear()
                try:
                    question.config(engine, knobs)
                except CudnnStatusError as error:
                    reasons[_read_reason(error, "\n".join(record.body for record in log.records))] += 1
                    continue
                passed.append(number)
        return passed, reasons

    if question.target.is_live:
        return check_configs()
    return run_in_fork(check_configs, lambda: None, what=f"engine {engine}")


def _read_reason(error: CudnnStatusError, logged: str) -> Reason:
    """Return the innermost reason why a config was refused, from cuDNN's log, as the last-error text is empty here."""
    said = (reason for refusal in read_refusals(logged) for reason in refusal.reasons if reason.status)
    return next(said, None) or read_error_reasons(error)[0]
