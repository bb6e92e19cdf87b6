"""Engine configs beside those the heuristics propose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..errors import CudnnStatusError
from ..generated.enums import KnobType
from ..plans.choice import EngineChoice
from ..plans.engine import EngineConfig, Knob, OperationGraph
from ..plans.select import Selection, refusal
from .statistics import Budget

__all__ = ["neighbours"]

CHECKING = 0.2  # share of the budget at which asking for configs ends


def neighbours(
    knobs: tuple[Knob, ...], seeds: list[Mapping[KnobType | int, int]], values: int = 8
) -> Iterator[dict[KnobType, int]]:
    """Yield knob choices near those of the seeds: none at all, each seed, each seed with one knob changed.

    Parameters
    ----------
    knobs
        The knobs of an engine; those of a seed that it does not have are left out.
    seeds
        Knob choices that work for some engine.
    values
        The most values tried of one knob: those nearest to the seed's.
    """
    yield {}
    fitting = [
        {knob.type: seed[knob.type] for knob in knobs if isinstance(knob.type, KnobType) and knob.type in seed}
        for seed in seeds
    ]
    yield from (seed for seed in fitting if seed)
    for seed in fitting:
        for knob in knobs:
            if not isinstance(knob.type, KnobType):
                continue
            at = seed.get(knob.type, knob.minimum)
            choices = range(knob.minimum, knob.maximum + 1, max(1, knob.stride))
            near = sorted((value for value in choices if seed.get(knob.type) != value), key=lambda v: abs(v - at))
            for value in near[:values]:
                yield {**seed, knob.type: value}


def _find_others(
    question: OperationGraph, taken: list[EngineConfig], selection: Selection, budget: Budget
) -> Iterator[EngineConfig]:
    """Yield configs of all engines that pass the selection and cuDNN's check, engine by engine in turn."""
    seeds: list[Mapping[KnobType | int, int]] = [config.knobs for config in taken]
    seen = {config.choice for config in taken}
    refuse = refusal(question, replace(selection, engine=None, knobs=()))
    waiting = []
    for engine in range(question.engine_count):
        try:
            waiting.append((engine, neighbours(question.knobs(engine), seeds)))
        except CudnnStatusError:
            continue  # the engine does not support the graph
    while waiting:
        for item in list(waiting):
            config = _next_config(question, *item, seen, budget)
            if config is None:
                waiting.remove(item)
            elif refuse(config) is None:
                yield config


def _next_config(
    question: OperationGraph,
    engine: int,
    choices: Iterator[dict[KnobType, int]],
    seen: set[EngineChoice],
    budget: Budget,
) -> EngineConfig | None:
    """Return the next config of an engine that passes cuDNN's check, None if there is none or the time is up."""
    for knobs in choices:
        choice = EngineChoice(engine, knobs)
        if choice in seen:
            continue
        if not budget.allows(0, CHECKING):
            return None
        seen.add(choice)
        try:
            return question.config(engine, knobs, origin="engine")
        except CudnnStatusError:
            continue
    return None
