"""Check every engine with its knob values for one graph: a limited number, counted, each engine in a forked process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..errors import CudnnStatusError
from ..generated.enums import KnobType
from ..plans.candidate import EVERY_ENGINE
from ..plans.engine import EngineConfig, Knob, OperationGraph
from .fork import run_in_fork

__all__ = ["check_every_engine", "list_knob_choices"]

_MAX_CONFIGS_PER_ENGINE = 20_000  # combinations of knob values of one engine, all of which are checked: some 1 ms each
_CONFIGS_PER_PROCESS = 1_000  # configs that one forked process checks
_MAX_RETURNED_CONFIGS = 4  # configs of one slice that are returned


@dataclass
class _CheckCounts:
    """How many engines and engine configs were checked."""

    engines: int
    configs: int = 0
    passed: int = 0
    unchecked: int = 0
    in_part: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        every = "" if self.in_part or self.unchecked else "all "
        text = (
            f"{every}{self.configs:,} configs of {self.engines} engines were checked, {self.passed:,} support the graph"
        )
        if self.in_part:
            text += f"; of engine {', '.join(map(str, self.in_part))} one knob at a time"
        if self.unchecked:
            text += f"; {self.unchecked:,} more were not checked, as cuDNN crashed or hung on one of them"
        return text


def list_knob_choices(
    knobs: tuple[Knob, ...], most: int = _MAX_CONFIGS_PER_ENGINE
) -> tuple[Iterator[dict[KnobType | int, int]], bool]:
    """Return the knob values to check, first no values, and whether these are all combinations.

    Up to `most` combinations, all of them; else each value of each knob alone, the others left to cuDNN.
    """
    values = {knob.type: range(knob.minimum, knob.maximum + 1, max(1, knob.stride)) for knob in knobs}
    if math.prod(map(len, values.values())) <= most:
        combined = (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))
        return itertools.chain(({},), combined if values else ()), True
    singly = ({knob: value} for knob, allowed in values.items() for value in allowed[:most])
    return itertools.chain(({},), singly), False


def check_every_engine(question: OperationGraph, step: Callable[[str], object]) -> tuple[list[EngineConfig], str]:
    """Check all engine configs of a graph; return some that support it, and a text with the numbers checked.

    Parameters
    ----------
    step
        Called before each slice of configs.
    """
    count = _CheckCounts(question.engine_count)
    found: list[EngineConfig] = []
    for engine in range(count.engines):
        try:
            choices, whole = list_knob_choices(question.knobs(engine))
        except CudnnStatusError:
            count.configs += 1  # it refuses the graph with any knobs
            continue
        count.in_part += [] if whole else [engine]
        while part := list(itertools.islice(choices, _CONFIGS_PER_PROCESS)):
            step(f"engine config of engine {engine} of {count.engines}, {count.configs:,} configs checked")
            passed = _check_configs_in_fork(question, engine, part)
            if passed is None:
                count.unchecked += len(part)
                continue
            count.configs += len(part)
            count.passed += len(passed)
            found += [
                question.config(engine, part[number], origin=EVERY_ENGINE) for number in passed[:_MAX_RETURNED_CONFIGS]
            ]
    return found, str(count)


def _check_configs_in_fork(
    question: OperationGraph, engine: int, choices: list[dict[KnobType | int, int]]
) -> list[int] | None:
    """Return the indices of the knob values that pass the support check; None if cuDNN ended the process."""

    def run_query() -> list[int] | None:
        passed = []
        for number, knobs in enumerate(choices):
            try:
                question.config(engine, knobs)
            except CudnnStatusError:
                continue
            passed.append(number)
        return passed

    if question.target.is_live:
        return run_query()
    return run_in_fork(run_query, lambda: None, what=f"engine {engine}")
