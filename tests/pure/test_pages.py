"""Code blocks on documentation pages use existing languages, commands, options, imports and keys.

tests/library/test_readme.py runs the executable ones.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import BENCHMARKS as BENCHES
from cudnn_backend_py.cli.commands import main
from tests.support.pages import (
    CODE_BLOCKS,
    INLINE_CODE,
    PAGE_TEXTS,
    REPOSITORY_ROOT,
    CodeBlock,
    list_command_lines,
    read_code_blocks,
)
from tools.records.ten_tasks import GPU_TASKS, RECORD_PATH, TASKS, UserTask, write_task_files

from ..support.records import read_record

RUN = {"README.md", "CONTRIBUTING.md"} | {page for page in PAGE_TEXTS if page.startswith("docs/")}
OTHERS = ("pip", "uv", "uvx", "eval", "make", "pytest", "pre-commit", "conda", "./program", "git", "cd")
COMMANDS = dict.fromkeys(list_command_lines("sh", "bash", "console") + INLINE_CODE)


def test_code_blocks_have_a_known_language() -> None:
    languages = {"python", "py", "cpp", "sh", "bash", "console", "text", "json", "toml", "yaml"}
    assert [str(block) for block in CODE_BLOCKS if block.language not in languages] == []
    assert len(CODE_BLOCKS) > 50


def test_text_blocks_contain_no_code() -> None:
    code = re.compile(
        r"^(?:\$ |from \w+ import |import \w|cudnn-backend |python -m |pip install|with \w+\()", re.MULTILINE
    )
    assert [str(block) for block in CODE_BLOCKS if block.language == "text" and code.search(block.text)] == []


def test_console_blocks_begin_with_a_prompt() -> None:
    assert [
        str(block) for block in CODE_BLOCKS if block.language == "console" and not block.text.startswith("$ ")
    ] == []


def find_command(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """Return the click command of a command line, or None, and its remaining arguments."""
    if words[0] != "cudnn-backend":
        spec = importlib.util.find_spec(words[2])
        assert spec is not None, f"there is no module {words[2]}"
        if words[2] == "benchmarks":
            assert words[3] in (*BENCHES, "NAME")
        elif spec.submodule_search_locations and words[2].startswith("cudnn_backend_py."):
            program = vars(importlib.import_module(f"{words[2]}.__main__")).values()
            return next((one for one in program if isinstance(one, click.Command)), None), words[3:]
        return None, []
    found: click.Command = main
    words = words[1:]
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        if words[0] == "COMMAND":  # any
            return None, []
        assert words[0] in found.commands, f"cudnn-backend has no {words[0]!r}"
        found, words = found.commands[words[0]], words[1:]
    return found, words


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_documented_command_and_its_options_exist(page: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0], comments=True)
    while re.match(r"[A-Z][A-Z0-9_]*=", words[0]):
        words = words[1:]
    if words[0] != "cudnn-backend" and words[:2] != ["python", "-m"]:
        assert words[0] in (*OTHERS, "python")
        return
    if words[:2] == ["python", "-m"] and words[2].split(".")[0] not in ("cudnn_backend_py", "tests", "tools"):
        return
    command, arguments = find_command(words)
    if command is None:
        return
    settings = {**main.context_settings, **command.context_settings}  # a command keeps the option of its first help
    _, left, _ = command.make_parser(click.Context(command, info_name=line, **settings)).parse_args([*arguments])
    assert not left
    assert [file for file in arguments if file.startswith("examples/") and not (REPOSITORY_ROOT / file).is_file()] == []


def list_names_imported_from_package(tree: ast.AST) -> list[tuple[str, str]]:
    """Return pairs of module and name that code imports from this package."""
    return [
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cudnn_backend_py"
        for name in node.names
    ]


@pytest.mark.parametrize("block", [block for block in CODE_BLOCKS if block.language == "py"], ids=str)
def test_python_blocks_that_are_not_run_import_existing_names(block: CodeBlock) -> None:
    for module, name in list_names_imported_from_package(ast.parse(block.text)):
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("block", [block for block in CODE_BLOCKS if block.language in ("json", "toml")], ids=str)
def test_json_and_toml_blocks_are_valid(block: CodeBlock) -> None:
    if included := re.fullmatch(r'--8<-- "([^":]+).*"\n', block.text):
        assert (REPOSITORY_ROOT / included[1]).is_file()
        return
    assert (json if block.language == "json" else tomllib).loads(block.text)


@pytest.mark.parametrize("task", [*TASKS, *GPU_TASKS], ids=lambda task: task.task)
def test_commands_of_recorded_user_tasks_are_on_the_documentation_page(task: UserTask, tmp_path: Path) -> None:
    write_task_files(task, tmp_path)
    page = " ".join(PAGE_TEXTS[task.page].split())
    assert [command for command in task.commands if command not in page] == []


@pytest.mark.parametrize(("tried", "tasks"), [("tried", TASKS), ("tried_on_a_gpu", GPU_TASKS)])
def test_recorded_exit_codes_and_output_of_user_tasks_are_current(tried: str, tasks: tuple[UserTask, ...]) -> None:
    record = read_record(RECORD_PATH.name)[tried]
    assert [one["task"] for one in record["tasks"]] == [task.task for task in tasks]
    assert [one["exit_code"] for one in record["tasks"]] == [task.exit_code for task in tasks]
    assert all(task.shows in one["came"] for one, task in zip(record["tasks"], tasks, strict=True))


def test_code_blocks_inside_lists_are_found() -> None:
    [block] = read_code_blocks("page", "1. a\n\n   ```python\n   x = 1\n     # y\n   ```\n")
    assert (block.language, block.text, block.line) == ("python", "x = 1\n  # y\n", 3)
