"""Engine configs with knob values near those proposed by the heuristics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..errors import CudnnStatusError
from ..generated.enums import KnobType
from .choice import EngineChoice
from .engine import EngineConfig, Knob, OperationGraph
from .select import Selection, make_combined_config_filter

__all__ = ["find_neighbouring_configs", "iterate_neighbouring_knob_choices"]


def iterate_neighbouring_knob_choices(
    knobs: tuple[Knob, ...], seeds: list[Mapping[KnobType | int, int]], values: int = 8
) -> Iterator[dict[KnobType, int]]:
    """Yield knob choices near given ones (seeds): no choice, each seed, and each seed with one knob changed.

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


def find_neighbouring_configs(
    question: OperationGraph, known: list[EngineConfig], selection: Selection, may_go_on: Callable[[], bool]
) -> Iterator[EngineConfig]:
    """Yield configs near the known ones that pass the selection and cuDNN's check, alternating between engines.

    Parameters
    ----------
    may_go_on
        Asked before each config; when it returns false, no further one is looked for.
    """
    seeds: list[Mapping[KnobType | int, int]] = [config.knobs for config in known]
    seen = {config.choice for config in known}
    refuse = make_combined_config_filter(question, replace(selection, engine=None, knobs=()))
    waiting = []
    for engine in range(question.engine_count):
        try:
            waiting.append((engine, iterate_neighbouring_knob_choices(question.knobs(engine), seeds)))
        except CudnnStatusError:
            continue  # the engine does not support the graph
    while waiting:
        for item in list(waiting):
            config = _find_next_supported_config(question, *item, seen, may_go_on)
            if config is None:
                waiting.remove(item)
            elif refuse(config) is None:
                yield config


def _find_next_supported_config(
    question: OperationGraph,
    engine: int,
    choices: Iterator[dict[KnobType, int]],
    seen: set[EngineChoice],
    may_go_on: Callable[[], bool],
) -> EngineConfig | None:
    """Return the next config of an engine that passes cuDNN's check; None at the end or at the time limit."""
    for knobs in choices:
        choice = EngineChoice(engine, knobs)
        if choice in seen:
            continue
        if not may_go_on():
            return None
        seen.add(choice)
        try:
            return question.config(engine, knobs, origin="engine")
        except CudnnStatusError:
            continue
    return None
