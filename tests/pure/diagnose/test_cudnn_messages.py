"""The parser of cuDNN's messages, on messages of cuDNN 9.19.0 and 9.28.0 (golden/words) made without a GPU.

The file name has graph, version, architecture and heuristics mode; ``log-`` is the log block instead of the
last-error text. ``forum`` is examples/forum_two_matmul.py, ``flash20`` is sdpa_forward with a head dimension of 20.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_backend_py.diagnose import Basis, Cause, Reason, Refusal, read_refusals

GOLDEN_FOLDER = Path(__file__).parent / "golden" / "words"
GOLDEN_MESSAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(GOLDEN_FOLDER.glob("*.txt"))}
STATUS_PREFIX = "CUDNN_STATUS_"
SHARED_MEMORY_STATEMENT = "Kernel request for shared memory is exceeding the shared memory in the GPU"
ENGINE_CONFIG_JSON = '{"engineId":3,"smVersion":900,"knobChoices":{"CUDNN_KNOB_TYPE_KERNEL_CFG":7}}'


def make_architecture_mismatch_reason(what: str, expression: str) -> tuple[str, str, str]:
    return ("NOT_SUPPORTED_ARCH_MISMATCH", f"only {what} is supported for this engine", expression)


HOPPER_REASON = make_architecture_mismatch_reason("Hopper", "!(900 <= deviceVer && deviceVer < 1000)")
BLACKWELL_REASON = make_architecture_mismatch_reason("Blackwell", "!(1000 <= deviceVer && deviceVer < 1200)")
SM12X_REASON = make_architecture_mismatch_reason("sm12x", "!(900 <= deviceVer)")
RUBIN_REASON = make_architecture_mismatch_reason("Rubin", "!(1070 <= deviceVer && deviceVer < 1100)")
SHARED_MEMORY_REASON = (
    "NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT",
    SHARED_MEMORY_STATEMENT,
    "requested_smem_exceed_arch_limit(this->getDeviceProp(), this->shared_mem_size[kernelNumRunning])",
)
REMOVED_PATTERN_REASON = (
    "NOT_SUPPORTED_GRAPH_PATTERN",
    "non-flash composite MHA fprop is no longer supported (removed with the xmma512 engine)",
    "!is_flash_fprop",
)
HEAD_DIM_REASON = (
    "NOT_SUPPORTED_SHAPE",
    "Embedding dim per head for q and k is not a multiple of 8",
    "d_qk % 8 != 0",
)
ParsedRefusal = tuple[int, int, int, tuple[str, str, str | None]]
# For each text: engine, knobs, reasons, and the innermost reason as status, statement, expression.
EXPECTED_REFUSALS: dict[str, tuple[int, list[ParsedRefusal]]] = {
    "forum-9.19.0-sm89-A": (89, [(0, 1, 5, SHARED_MEMORY_REASON)]),
    "forum-9.19.0-sm89-FALLBACK": (
        89,
        [
            (0, 1, 5, SHARED_MEMORY_REASON),
            (1, 1, 6, ("INTERNAL_ERROR_UNEXPECTED_VALUE", "The mode for fused attention was not found.", None)),
            (2, 1, 4, HOPPER_REASON),
            (3, 1, 4, BLACKWELL_REASON),
            (4, 1, 4, SM12X_REASON),
            (5, 2, 4, BLACKWELL_REASON),
            (6, 2, 4, HOPPER_REASON),
            (
                7,
                2,
                5,
                ("NOT_SUPPORTED_GRAPH_PATTERN", "the chosen engine does not support this graph pattern", "true"),
            ),
        ],
    ),
    "forum-9.28.0-sm89-FALLBACK": (
        89,
        [
            (1, 5, 5, REMOVED_PATTERN_REASON),
            (2, 5, 4, HOPPER_REASON),
            (3, 5, 4, BLACKWELL_REASON),
            (4, 5, 4, SM12X_REASON),
            (16, 5, 4, RUBIN_REASON),
            (5, 6, 4, BLACKWELL_REASON),
            (6, 6, 4, HOPPER_REASON),
            (7, 6, 5, REMOVED_PATTERN_REASON),
            (17, 6, 4, RUBIN_REASON),
            (20, 6, 4, SM12X_REASON),
        ],
    ),
    "forum-9.28.0-sm100-FALLBACK": (
        100,
        [
            (1, 5, 5, REMOVED_PATTERN_REASON),
            (2, 5, 4, HOPPER_REASON),
            (3, 5, 5, REMOVED_PATTERN_REASON),
            (4, 5, 5, REMOVED_PATTERN_REASON),
            (16, 5, 4, RUBIN_REASON),
            (5, 6, 5, REMOVED_PATTERN_REASON),
            (6, 6, 4, HOPPER_REASON),
            (7, 6, 5, REMOVED_PATTERN_REASON),
            (17, 6, 4, RUBIN_REASON),
            (20, 6, 5, REMOVED_PATTERN_REASON),
        ],
    ),
    "flash20-9.19.0-sm90-A": (
        90,
        [(2, 1, 10, HEAD_DIM_REASON), (2, 1, 10, HEAD_DIM_REASON), (1, 1, 10, HEAD_DIM_REASON)],
    ),
}


@pytest.mark.parametrize("name", EXPECTED_REFUSALS)
def test_last_error_messages_are_parsed(name: str) -> None:
    sm, rows = EXPECTED_REFUSALS[name]
    refusals = read_refusals(GOLDEN_MESSAGES[name])
    found = []
    for refusal in refusals:
        assert refusal.sm == sm
        assert refusal.engine is not None
        innermost = refusal.innermost
        assert innermost is not None
        words = (innermost.status.removeprefix(STATUS_PREFIX), innermost.statement, innermost.expression)
        found.append((refusal.engine, len(refusal.knobs), len(refusal.reasons), words))
    assert found == rows


def test_every_golden_message_has_a_test() -> None:
    assert {name for name in GOLDEN_MESSAGES if not name.startswith("log-")} == set(EXPECTED_REFUSALS)


def test_all_fields_of_a_refusal_are_parsed() -> None:
    (refusal,) = read_refusals(GOLDEN_MESSAGES["forum-9.19.0-sm89-A"])
    assert refusal == Refusal(
        engine=0,
        sm=89,
        knobs={"CUDNN_KNOB_TYPE_KERNEL_CFG": 0},
        reasons=(
            Reason(
                f"{STATUS_PREFIX}{SHARED_MEMORY_REASON[0]}", f"{SHARED_MEMORY_STATEMENT} at: {SHARED_MEMORY_REASON[2]}"
            ),
            Reason(f"{STATUS_PREFIX}{SHARED_MEMORY_REASON[0]}", "kernelGeneration()"),
            Reason(
                f"{STATUS_PREFIX}NOT_SUPPORTED",
                "(CUDNN_STATUS_NOT_INITIALIZED == status) || (CUDNN_STATUS_NOT_SUPPORTED == ((status) / 1000 * 1000))",
            ),
            Reason(f"{STATUS_PREFIX}NOT_SUPPORTED", "ptr->isSupported()"),
            Reason(f"{STATUS_PREFIX}NOT_SUPPORTED", "finalize_internal()"),
        ),
    )


def test_log_block_with_prefixes_is_parsed() -> None:
    """Log lines are indented, have a header and stack counts, and write ``engineConfig: type=json; val=``."""
    head, refusal = read_refusals(GOLDEN_MESSAGES["log-forum-9.19.0-sm89-A"])
    assert (head.engine, head.sm, head.knobs) == (None, None, {})
    assert head.reasons[0].text.splitlines() == [
        "CuDNN (v91900 56) function cudnnBackendGetAttribute_CUDNN_ATTR_ENGINEHEUR_RESULTS_"
        "engine_config_support_checks() called:",
        "Warning: No viable engine configs among (1) heuristics result(s).",
    ]
    (same,) = read_refusals(GOLDEN_MESSAGES["forum-9.19.0-sm89-A"])
    assert (refusal.engine, refusal.sm, refusal.knobs) == (same.engine, same.sm, same.knobs)
    assert refusal.reasons[:-1] == same.reasons[:-1]
    last = refusal.reasons[-1].text.splitlines()
    assert last[0] == "finalize_internal()"
    assert [line.split("=")[0].split(":")[0] for line in last[1:]] == ["Time", "Process"]


def test_log_block_without_config_is_parsed() -> None:
    (refusal,) = read_refusals(GOLDEN_MESSAGES["log-forum-9.28.0-sm89-A"])
    assert refusal.engine is None
    assert [reason.status for reason in refusal.reasons] == ["", *[f"{STATUS_PREFIX}NOT_SUPPORTED_GRAPH_PATTERN"] * 2]


def is_line_in_refusals(line: str, refusals: list[Refusal]) -> bool:
    """Return whether the parsed refusals contain a line of the message."""
    words = line.strip()
    for refusal in refusals:
        for reason in refusal.reasons:
            whole = f"Warning: {reason.status}; Reason: {reason.text}" if reason.status else reason.text
            if words in [part.strip() for part in whole.splitlines()]:
                return True
        knobs = ",".join(f'"{key}":{value}' for key, value in refusal.knobs.items())
        config = f'{{"engineId":{refusal.engine},"smVersion":{(refusal.sm or 0) * 10},"knobChoices":{{{knobs}}}}}'
        if words in (config, f"engineConfig: type=json; val={config};"):
            return True
    return False


@pytest.mark.parametrize("name", GOLDEN_MESSAGES)
def test_every_line_of_a_message_is_kept(name: str) -> None:
    refusals = read_refusals(GOLDEN_MESSAGES[name])
    lost = [
        line for line in GOLDEN_MESSAGES[name].splitlines() if line.strip() and not is_line_in_refusals(line, refusals)
    ]
    assert [line for line in lost if "=== error stack (" not in line] == []


@pytest.mark.parametrize("name", EXPECTED_REFUSALS)
def test_every_line_of_a_truncated_message_is_kept(name: str) -> None:
    """cuDNN's buffer is limited: complete lines are parsed as usual, and the truncated rest is kept as text."""
    text = GOLDEN_MESSAGES[name][:1400]
    for end in range(len(text) + 1):
        cut = text[:end]
        refusals = read_refusals(cut)
        lines = [line for line in cut.splitlines() if line.strip()]
        assert all(is_line_in_refusals(line, refusals) for line in lines), end
        whole = read_refusals(GOLDEN_MESSAGES[name])
        assert [item.engine for item in refusals if item.engine is not None] == [
            item.engine for item in whole[: sum(line.startswith("{") and line.endswith("}}") for line in lines)]
        ]


@pytest.mark.parametrize("text", ["", "\n", "  \n\n \t\n"])
def test_blank_messages_have_no_refusals(text: str) -> None:
    assert read_refusals(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("something new", [Refusal(None, None, {}, (Reason("", "something new"),))]),
        ("one\ntwo\n", [Refusal(None, None, {}, (Reason("", "one\ntwo"),))]),
        (
            "Error: CUDNN_STATUS_BAD_PARAM; Reason: dims at: rank > 8",
            [Refusal(None, None, {}, (Reason(f"{STATUS_PREFIX}BAD_PARAM", "dims at: rank > 8"),))],
        ),
        (ENGINE_CONFIG_JSON, [Refusal(3, 90, {"CUDNN_KNOB_TYPE_KERNEL_CFG": 7})]),
        ('{"engineId":3}', [Refusal(3, None)]),
        ('{"smVersion":1210,"engineId":3,"knobChoices":{}}', [Refusal(3, 121)]),
        (
            f"Warning: {STATUS_PREFIX}BAD_PARAM; Reason: alone\n{ENGINE_CONFIG_JSON}\n"
            f"Warning: {STATUS_PREFIX}NOT_SUPPORTED; Reason: x\n  more of x\n",
            [
                Refusal(None, None, {}, (Reason(f"{STATUS_PREFIX}BAD_PARAM", "alone"),)),
                Refusal(
                    3, 90, {"CUDNN_KNOB_TYPE_KERNEL_CFG": 7}, (Reason(f"{STATUS_PREFIX}NOT_SUPPORTED", "x\nmore of x"),)
                ),
            ],
        ),
        (
            f'{ENGINE_CONFIG_JSON}\nWarning: {STATUS_PREFIX}NOT_SUPPORTED; Reason: x\n{{"engineId":4,"smVer',
            [
                Refusal(3, 90, {"CUDNN_KNOB_TYPE_KERNEL_CFG": 7}, (Reason(f"{STATUS_PREFIX}NOT_SUPPORTED", "x"),)),
                Refusal(None, None, {}, (Reason("", '{"engineId":4,"smVer'),)),
            ],
        ),
        (
            '{"engineId":4,"knobChoices":{"K":"many"}}',
            [Refusal(None, None, {}, (Reason("", '{"engineId":4,"knobChoices":{"K":"many"}}'),))],
        ),
        (
            '{"engineId":4,"knobChoices":[1]}',
            [Refusal(None, None, {}, (Reason("", '{"engineId":4,"knobChoices":[1]}'),))],
        ),
        ("=== not a stack ===", [Refusal(None, None, {}, (Reason("", "=== not a stack ==="),))]),
        ("    === error stack (1/2) ===", []),
    ],
)
def test_unusual_lines_of_cudnn_messages_are_parsed(text: str, expected: list[Refusal]) -> None:
    assert read_refusals(text) == expected


@pytest.mark.parametrize(
    ("text", "statement", "expression"),
    [
        ("d is odd at: d % 2 != 0", "d is odd", "d % 2 != 0"),
        ("kernelGeneration()", "kernelGeneration()", None),
        ("a at: b at: c", "a", "b at: c"),
        ("look at the shape", "look at the shape", None),
        ("nothing after at: ", "nothing after", None),
    ],
)
def test_statement_and_condition_of_a_reason_are_separated(text: str, statement: str, expression: str | None) -> None:
    reason = Reason("", text)
    assert (reason.statement, reason.expression) == (statement, expression)


def test_reason_text_contains_the_status() -> None:
    assert str(Reason("STATUS", "why")) == "STATUS: why"
    assert str(Reason("", "why")) == "why"
    assert Refusal(None, None).innermost is None


def test_addresses_in_messages_are_masked_and_other_numbers_kept() -> None:
    said = "tensor 0x7f3a5c0012d0 of 0x55d0c3a4b2a0 at 0x1c3e2a8 has mask 0x1F, 139637976727552 elements"
    reason = Reason("", said)
    assert reason.text == "tensor 0x… of 0x… at 0x… has mask 0x1F, 139637976727552 elements"
    assert Reason("", reason.text) == reason
    assert read_refusals(said)[0].reasons == (reason,)
    cause = Cause("refused", said, Basis.GUESS, said)
    assert (cause.headline, cause.detail) == (reason.text, reason.text)
