"""Error messages of public threads are found in the table of messages, and other texts are not."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from cudnn_backend_py.diagnose.framework_messages import (
    LOG_INSTRUCTIONS,
    MESSAGE_ENTRIES,
    STATUS_ENTRIES,
    explain_message,
    find_program_that_printed_message,
    find_titles_of_similar_messages,
)
from cudnn_backend_py.generated.enums import Status
from cudnn_backend_py.graph.attention.selections import SELECTIONS
from cudnn_backend_py.plans.choice import EngineChoice

MESSAGES_FILE = Path(__file__).parents[2] / "cases" / "data" / "framework_messages.toml"
MESSAGE_ROWS = [row for rows in tomllib.loads(MESSAGES_FILE.read_text(encoding="utf-8")).values() for row in rows]
NON_CONTIGUOUS_INPUT_MESSAGE = (
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a {}"
)


def test_messages_cover_all_frameworks_and_have_sources() -> None:
    assert len({row["text"] for row in MESSAGE_ROWS}) >= 100
    programs = Counter(row["program"] for row in MESSAGE_ROWS)
    assert set(programs) == set(LOG_INSTRUCTIONS) - {""}
    assert min(programs.values()) >= 15
    assert all(row["source"].startswith("https://") for row in MESSAGE_ROWS)


def test_messages_are_explained_by_the_expected_entries() -> None:
    lost = [
        row["text"]
        for row in MESSAGE_ROWS
        if next((one.code for one in explain_message(row["text"])), "") != row["entry"]
    ]
    assert len(lost) <= 0.05 * len(MESSAGE_ROWS), lost


def test_every_entry_has_an_example_message() -> None:
    of_statuses = {row.code for row in STATUS_ENTRIES if row.title.startswith("CUDNN_STATUS_")}
    examples = {row["entry"] for row in MESSAGE_ROWS}
    assert {row.code for row in (*MESSAGE_ENTRIES, *STATUS_ENTRIES)} - of_statuses <= examples


@pytest.mark.parametrize("name", sorted(Status.__members__))
def test_the_name_of_a_status_alone_gives_the_meaning_of_that_status(name: str) -> None:
    found = explain_message(f"CUDNN_STATUS_{name}")
    if name == "SUCCESS":
        assert found == ()
        return
    [entry] = found
    own = re.fullmatch(r"(?:NOT_SUPPORTED|BAD_PARAM|EXECUTION_FAILED)_\w+", name) and "ARCH_MISMATCH" not in name
    assert not own or entry.title == f"CUDNN_STATUS_{name}"


def test_a_warning_of_torch_is_not_explained_as_a_failed_step() -> None:
    said = (
        "cuDNN SDPA backward got grad_output.strides() != output.strides(), ... (Triggered internally at MHA.cpp:674.)"
    )
    assert [one.code for one in explain_message(said)] == ["sdpa-gradient-strides"]


def test_conditions_that_torch_checks_before_cudnn_quote_their_line_and_name_no_log_of_cudnn() -> None:
    condition = "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float instead."
    disabled, last = "CuDNN attention has been runtime disabled.", "RuntimeError: No available kernel."
    found = {one.code: one for one in explain_message(f"{condition}\n{disabled}\n{last}\n")}
    assert {code: one.details for code, one in found.items()} == {
        "sdpa-condition": condition,
        "sdpa-gate": disabled,
        "no-sdpa-kernel": last,
    }
    assert {one.reasons for one in found.values()} == {""}
    assert "bfloat16" in found["sdpa-condition"].fix
    [alone] = explain_message(last)
    assert (alone.details, alone.reasons) == ("", "")
    assert "before cuDNN is called" in alone.meaning


def test_shared_memory_is_not_explained_as_gpu_memory() -> None:
    [entry] = explain_message("CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT")
    assert "shared memory per block" in entry.meaning
    assert "smaller batch" not in entry.fix


@pytest.mark.parametrize("text", [row["text"] for row in MESSAGE_ROWS])
def test_an_explanation_has_few_and_short_lines(text: str) -> None:
    for entry in explain_message(text):
        lines = entry.lines()
        assert 4 <= len(lines) <= 8
        assert max(map(len, lines)) <= 100
        assert lines[-1].startswith("command  `cudnn-backend ")


@pytest.mark.parametrize("row", [*MESSAGE_ENTRIES, *STATUS_ENTRIES], ids=lambda row: row.code)
def test_no_line_of_an_explanation_is_truncated(row: object) -> None:
    for one in MESSAGE_ROWS:
        entry = next((found for found in explain_message(one["text"]) if found.code == row.code), None)  # type: ignore[attr-defined]
        if entry is not None:
            assert not any(line.endswith(" ...") for line in entry.lines())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Epoch 3: loss 0.21, 512 samples per second",
        "How do I install the newest cuDNN on Ubuntu?",
        "The mask has the shape (b, h, s, s), and its layout is row major.",
        "We do not support bfloat16 on that machine yet; fp8 is not supported either.",
        "def attend(q, k, v):\n    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False)",
        "CUDNN_STATUS_SUCCESS",
        "graph.check_support() returned, then graph.build_plans()",
        "Loaded cuDNN version 91900",
        "KeyError: 'head_dim'",
    ],
)
def test_unrelated_text_matches_no_message_entry(text: str) -> None:
    assert explain_message(text) == ()


@pytest.mark.parametrize("text", ["No valid execution plans", "no valid execution plan"])
def test_four_words_of_a_message_suffice_to_explain_the_message(text: str) -> None:
    [entry] = explain_message(text)
    assert entry.code == "no-plan-built"
    assert "`cudnn-backend explain GRAPH --build`" in entry.fix


def test_an_unknown_message_gets_titles_of_similar_messages() -> None:
    assert explain_message("execution plans were not valid") == ()
    assert 1 <= len(find_titles_of_similar_messages("execution plans were not valid")) <= 3
    assert find_titles_of_similar_messages("all is well") == []


def test_torchs_hint_at_non_contiguous_input_is_not_explained_as_strides() -> None:
    for ending in ("non-contiguous input.", "non-contiguous\ninput"):
        assert [one.code for one in explain_message(NON_CONTIGUOUS_INPUT_MESSAGE.format(ending))] == [
            "torch-not-supported"
        ]


def test_cudnn_reasons_are_explained_by_their_rules() -> None:
    log = (
        "RuntimeError: cuDNN Frontend error: No valid engine configs for Matmul_MUL_Reduction_SUB_EXP_Matmul_\n"
        "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: Embedding dim per head for q and k is not a multiple of 8 at: x\n"
    )
    assert [one.code for one in explain_message(log)] == ["no-engine-configs", "rule-head-dim"]
    assert explain_message("Embedding dim per head for q and k is not a multiple of 8")[0].code == "rule-head-dim"
    [entry] = explain_message("CUDNN_STATUS_NOT_SUPPORTED: nothing that is known")
    assert entry.code == "rule-none"


def test_a_reason_is_explained_with_its_condition() -> None:
    [entry] = explain_message("CUDNN_STATUS_NOT_SUPPORTED_SHAPE: too large\nat: d_qk > 128")
    assert (entry.code, entry.details) == ("rule-head-dim", "cuDNN refuses where head dim of Q/K is more than 128.")
    assert entry.lines()[1] == "details  cuDNN refuses where head dim of Q/K is more than 128."
    [entry] = explain_message("resample.getXDesc()->getVectCount() != 1")
    assert (entry.code, entry.details) == (
        "rule-none",
        "cuDNN refuses where elements per vector of X of the resampling is not 1.",
    )


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        ("CUDNN_STATUS_BAD_PARAM", "Scale tensor must have a valid data type", "rule-invalid"),
        ("CUDNN_STATUS_BAD_PARAM", "oDim[3] != d_v", "rule-dims"),
        ("CUDNN_STATUS_BAD_PARAM", "CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC should have INT32 datatype", "rule-invalid"),
        ("CUDNN_STATUS_BAD_PARAM", "CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC ragged dim is wrong", "rule-ragged-offset"),
        ("CUDNN_STATUS_NOT_SUPPORTED", "n > 1 && type != CUDNN_OPERATION_BLOCK_SCALE_MATMUL", "rule-operation"),
        ("CUDNN_STATUS_NOT_SUPPORTED", "Block scale needs another tile", "rule-low-precision"),
        ("CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE", "check_conv_support_fort(node)", "rule-step"),
        ("CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE", "Scale tensor must have a valid data type", "rule-data-type"),
    ],
)
def test_status_and_form_of_a_reason_select_its_rule(status: str, text: str, code: str) -> None:
    assert [one.code for one in explain_message(f"{status}: {text}")] == [code]


def test_a_reason_with_a_condition_counts_before_calls_of_the_same_log() -> None:
    log = (
        "Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: generate_mha_fort()\n"
        "Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: d_qk % 8 != 0"
    )
    assert [one.code for one in explain_message(log)] == ["rule-head-dim"]


def test_an_engine_tag_is_explained_with_its_knobs() -> None:
    [entry] = explain_message("eng5_k14=3")
    assert (entry.code, entry.title) == ("engine-tag", "Engine 5 with STAGES = 3")
    assert "norm-operands-in-turn" in entry.details
    assert "plan build --engine eng5_k14=3" in entry.fix
    selection = SELECTIONS[0]
    [entry] = explain_message(EngineChoice(selection.engine, dict(selection.knobs)).tag)
    assert f"Selected by cudnn-frontend for {selection.what}" in entry.details
    assert explain_message("eng5_k14") == ()


def test_a_status_inside_a_reason_is_not_explained_as_the_error() -> None:
    text = "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: (CUDNN_STATUS_NOT_INITIALIZED == status) || (x)"
    assert "did-not-initialize" not in {one.code for one in explain_message(text)}


@pytest.mark.parametrize(("program", "command"), [("torch", "why"), ("cudnn-frontend", "frontend"), ("JAX", "log")])
def test_the_suggested_command_depends_on_the_program(program: str, command: str) -> None:
    row = next(row for row in MESSAGE_ROWS if row["program"] == program and row["entry"] == "no-engine-configs")
    text = row["text"] if program == "JAX" else f"{row['text']} cudnn_frontend" * (program == "cudnn-frontend")
    [entry] = explain_message(text or row["text"])
    assert entry.command.startswith(f"`cudnn-backend {command} ")
    assert find_program_that_printed_message(text or row["text"]) == program


def test_very_long_text_is_searched_quickly() -> None:
    assert explain_message("cudnn " * 400_000) == ()


def test_patterns_are_also_valid_in_javascript() -> None:
    for row in (*MESSAGE_ENTRIES, *STATUS_ENTRIES):
        assert not re.search(r"\(\?[a-zA-Z<#P]|\\[AZ]|[*+?]\+", row.pattern), row.code
