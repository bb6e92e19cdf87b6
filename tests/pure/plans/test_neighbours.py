"""Neighbouring engine choices: proposals of the heuristics with one knob changed."""

from __future__ import annotations

from cudnn_backend_py.generated.enums import KnobType
from cudnn_backend_py.plans.engine import Knob
from cudnn_backend_py.plans.neighbours import iterate_neighbouring_knob_choices

TILE_KNOB = Knob(KnobType.TILE_M, 0, 4, 1)
STAGES_KNOB = Knob(KnobType.STAGES, 0, 8, 4)


def test_neighbouring_knob_choices_try_the_nearest_values_first() -> None:
    seed = {KnobType.TILE_M: 3, KnobType.SWIZZLE: 1}  # the engine has no SWIZZLE
    found = list(iterate_neighbouring_knob_choices((TILE_KNOB, STAGES_KNOB), [seed], values=2))
    assert found[:2] == [{}, {KnobType.TILE_M: 3}]
    assert {choice[KnobType.TILE_M] for choice in found[2:4]} == {2, 4}
    assert found[4:] == [{KnobType.TILE_M: 3, KnobType.STAGES: value} for value in (0, 4)]


def test_without_proposed_knob_choices_cudnn_chooses_the_knobs() -> None:
    assert list(iterate_neighbouring_knob_choices((TILE_KNOB,), [])) == [{}]
