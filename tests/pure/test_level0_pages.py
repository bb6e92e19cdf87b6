"""The pages about Level 0 show the examples as they are, and each C++ part next to the same calls in Python."""

from __future__ import annotations

import re

import pytest

from tests.support.child import ROOT
from tests.support.pages import CODE_BLOCKS, CodeBlock

PROGRAM_BLOCKS = [block for block in CODE_BLOCKS if block.page == "docs/how-to/cpp-program.md"]
PAIRS = list(zip(PROGRAM_BLOCKS[::2], PROGRAM_BLOCKS[1::2], strict=True))
EXECUTION_BLOCKS = [block for block in CODE_BLOCKS if block.page == "docs/how-to/c-api.md" and block.language == "py"]
ONLY_IN_PYTHON = {"ENGINEHEUR_DEVICEPROP", "EXECUTION_PLAN_DEVICEPROP"}  # for --target


def read_example_program_lines(name: str) -> str:
    """Return the lines of an example without their indents."""
    return "\n".join(line.strip() for line in (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines())


def remove_indents(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


@pytest.mark.parametrize(("cpp", "python"), PAIRS, ids=lambda block: f"line {block.line}")
def test_a_cpp_block_is_followed_by_the_same_calls_in_python(cpp: CodeBlock, python: CodeBlock) -> None:
    assert (cpp.language, python.language) == ("cpp", "py")
    attributes = re.findall(r"\bCUDNN_ATTR_(\w+)", cpp.text)
    assert attributes == [name for name in re.findall(r"\bAttr\.(\w+)", python.text) if name not in ONLY_IN_PYTHON]
    kinds = set(re.findall(r"\bCUDNN_BACKEND_(\w+)_DESCRIPTOR\b", cpp.text)) - {"ENGINECFG"}  # which capi creates
    assert kinds == set(re.findall(r"\bDescriptorType\.(\w+)", python.text))
    functions = set(re.findall(r"\b(cudnn(?:Create|Backend[SGF]\w+))\(", cpp.text))
    assert functions == set(re.findall(r"\bcapi\.(cudnn(?:Create|Backend[SGF]\w+))\(", python.text))


def test_python_blocks_are_parts_of_the_example_and_have_all_its_calls() -> None:
    program = read_example_program_lines("level0_two_matmul.py")
    shown = [remove_indents(part) for _, python in PAIRS for part in python.text.split("\n\n")]
    assert [part for part in shown if part not in program] == []
    calls = [line for line in program.splitlines() if "capi.cudnn" in line and "device" not in line]
    assert [line for line in calls if not any(line in part for part in shown) and "LastError" not in line] == []


def test_documented_execution_code_is_part_of_its_example() -> None:
    [block] = EXECUTION_BLOCKS
    assert remove_indents(block.text).strip() in read_example_program_lines("level0_execute.py")
    assert "capi.cudnnBackendExecute(handle, plan, pack)" in block.text
