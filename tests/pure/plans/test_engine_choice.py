"""An engine choice (an engine and its knobs): its tag, and how it is read from cuDNN's log."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.generated.enums import KnobType
from cudnn_backend_py.plans.choice import EngineChoice, read_logged_choice


def make_random_engine_choices(seed: int) -> list[EngineChoice]:
    """Return random engine choices with knobs of the header, and newer knobs given by number or by name."""
    chance = random.Random(seed)
    knobs: list[KnobType | int | str] = [*KnobType, *range(900, 910), "CUDNN_KNOB_TYPE_X", "CUDNN_KNOB_TYPE_X_k2"]
    return [
        EngineChoice(index, {knob: chance.randrange(-9, 99) for knob in chance.sample(knobs, chance.randrange(6))})
        for index in range(300)
    ]


def test_parsing_the_tag_of_a_choice_gives_the_choice() -> None:
    for choice in make_random_engine_choices(1):
        assert EngineChoice.parse(choice.tag) == choice
        assert EngineChoice.parse(choice.tag).tag == choice.tag


def test_choices_with_reordered_knobs_are_equal() -> None:
    for choice in make_random_engine_choices(2):
        other = EngineChoice(choice.engine, dict(reversed(choice.knobs.items())))
        assert other == choice
        assert len({other, choice}) == 1
        assert other.tag == choice.tag


def test_logged_knobs_left_to_cudnn_are_not_part_of_the_choice() -> None:
    for choice in make_random_engine_choices(3):
        knobs = {knob: value for knob, value in choice.knobs.items() if value != -1 and type(knob) is not int}
        logged = EngineChoice(choice.engine, knobs).c_knobs | {"CUDNN_KNOB_TYPE_LEFT": -1}
        assert EngineChoice.from_log(choice.engine, logged) == EngineChoice(choice.engine, knobs)


def test_tags_have_the_format_of_cudnn_frontend() -> None:
    assert EngineChoice(0).tag == "eng0"
    assert EngineChoice(2, {KnobType.KERNEL_CFG: 7, 900: 1}).tag == "eng2_k24=7_k900=1"
    assert EngineChoice.parse("eng2_k24=7") == EngineChoice(2, {KnobType.KERNEL_CFG: 7})


@pytest.mark.parametrize("tag", ["", "eng", "eng2_", "eng2_k24", "eng2_k24=", "eng-1", "2_k24=7", "eng2_k24=7 "])
def test_an_invalid_tag_is_refused(tag: str) -> None:
    with pytest.raises(UsageError, match=r"^engine-tag: .*is not an engine tag such as eng2_k24=7"):
        EngineChoice.parse(tag)


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        {},
        {"engineId": "3"},
        {"engineId": True},
        {"engineId": 3.0},
        {"engineId": 3, "knobChoices": [1]},
        {"engineId": 3, "knobChoices": {"K": 1.5}},
        {"engineId": 3, "knobChoices": {str(index): index for index in range(101)}},
    ],
)
def test_a_malformed_logged_config_is_read_as_none(config: Any) -> None:
    assert read_logged_choice(config) is None


def test_a_valid_logged_config_is_read_unchanged() -> None:
    assert read_logged_choice({"engineId": 3}) == (3, {})
    knobs = {"CUDNN_KNOB_TYPE_STAGES": -1, "CUDNN_KNOB_TYPE_KERNEL_CFG": 7}
    assert read_logged_choice({"engineId": 3, "smVersion": 900, "knobChoices": knobs}) == (3, knobs)
