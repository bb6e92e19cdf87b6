"""Patterns of cuDNN's refusal reasons: each has one use, and real reasons select the right rules and changes."""

from __future__ import annotations

import re

import pytest

from cudnn_backend_py.diagnose.causes.attention import blame_refused_attention_options
from cudnn_backend_py.diagnose.causes.phrases import (
    DEVICE_NEED_BY_PATTERN,
    REASON_PHRASES,
    find_change_kinds_suggested_by_reason,
    find_queried_device_properties,
    find_rules_for_reason,
    is_about_other_architecture,
    is_vague,
    name_data_types_given_as_numbers,
)
from cudnn_backend_py.diagnose.causes.registry import PHRASE_RULES
from cudnn_backend_py.rewrite.changes import KINDS

NOT_SUPPORTED_STATUS = "CUDNN_STATUS_NOT_SUPPORTED"


def test_patterns_of_refusal_reasons_refer_to_existing_rules_and_kinds_of_change() -> None:
    assert blame_refused_attention_options  # its module registers rules too
    assert {phrase.rule for phrase in REASON_PHRASES if phrase.rule} == set(PHRASE_RULES)
    assert {kind for phrase in REASON_PHRASES for kind in phrase.kinds} <= set(KINDS)


def test_every_refusal_reason_pattern_is_unique_and_has_one_use() -> None:
    for phrase in REASON_PHRASES:
        re.compile(phrase.pattern)
        known = bool(phrase.rule or phrase.kinds), phrase.vague, bool(phrase.needs)
        assert sum(known) == 1, phrase
    assert len({phrase.pattern for phrase in REASON_PHRASES}) == len(REASON_PHRASES)


def test_patterns_of_device_property_reasons_have_no_regex_syntax() -> None:
    assert all(re.escape(words).replace("\\ ", " ") == words for words in DEVICE_NEED_BY_PATTERN)


@pytest.mark.parametrize(
    ("reason", "rules", "kinds"),
    [
        (
            f"{NOT_SUPPORTED_STATUS}: Embedding dim per head for K is not a multiple of 8",
            ("head_dim", "shape"),
            ("pad_head_dim", "pad_channels", "pad_sequence"),
        ),
        (
            f"{NOT_SUPPORTED_STATUS}: MHA only supports FP16/BF16 I/O for selected engine config",
            ("low_precision", "data_type"),
            ("data_type", "intermediate_type"),
        ),
        (
            f"{NOT_SUPPORTED_STATUS}: bias layout should be row major",
            ("layout", "option"),
            ("layout", "drop_bias"),
        ),
        (f"{NOT_SUPPORTED_STATUS}: Block mask is only supported on Blackwell", ("option", "architecture"), ("mask",)),
        (f"{NOT_SUPPORTED_STATUS}: ragged dim should match dim value + 1", ("ragged_offset", "option"), ("layout",)),
        (f"{NOT_SUPPORTED_STATUS}_RUNTIME: nothing known", (), ()),
    ],
)
def test_a_refusal_reason_selects_rules_and_kinds_of_change(
    reason: str, rules: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    assert find_rules_for_reason(reason) == rules
    assert find_change_kinds_suggested_by_reason(reason) == kinds


def test_vague_messages_are_recognized() -> None:
    assert is_vague("the chosen engine does not support sm_80")
    assert is_vague("Engine config with global index -1 was given")
    assert not is_vague("Embedding dim per head for K is not a multiple of 8")
    assert (
        find_queried_device_properties("cluster fits: cga_count == 0 at: x")
        == "how many thread-block clusters fit on the device"
    )
    assert find_queried_device_properties("cga_count == 1") is None


@pytest.mark.parametrize(
    ("text", "sm", "other"),
    [
        ("Only 2 sq broadcasted vectors are supported on SM80", 100, True),
        ("Only 2 sq broadcasted vectors are supported on SM80", 80, False),
        ("Only 2 sq broadcasted vectors are supported on SM80", 120, False),  # runs kernels of sm_8x
        ("Block mask is only supported on Blackwell and Rubin", 80, False),  # has the requirement in its text
        ("Flash Attention with ragged offset can only be run with sm_90 instructions", 89, False),
        ("Backward activations are not supported in Ampere implementation", 90, True),
        ("SM100/SM107 version does not support seed tensor of data type != int64", 103, False),
        ("Unified SDPA bprop currently only supports ARCH_10X at: engine_identity.arch != ARCH_10X", 90, False),
        ("Embedding dim per head is not a multiple of 8 at: target == SM80", 90, False),
    ],
)
def test_messages_about_other_architectures_are_recognized(text: str, sm: int, other: bool) -> None:
    assert is_about_other_architecture(text, sm) is other


def test_data_type_numbers_in_messages_are_explained() -> None:
    assert (
        name_data_types_given_as_numbers("Unsupported convolution compute type 3. Supported: FLOAT")
        == "compute type 3 is INT8"
    )
    assert name_data_types_given_as_numbers("data type 2 and data type 2, math type 77") == "data type 2 is HALF"
    assert name_data_types_given_as_numbers("head dim 3") == ""
