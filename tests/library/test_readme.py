"""Pages of the documentation: their Python and commands run, and they show the real output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import CODE_BLOCKS, PAGE_TEXTS, REPOSITORY_ROOT, CodeBlock, list_command_lines

ELSEWHERE = ("docs/graph-json.md",)  # tests/pure/graph/test_graph_schema.py
RUNNABLE = ("explain", "doctor", "target", "matrix")
ANSWERS = ("explain", "matrix")  # may be negative
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


PYTHON = [block for block in CODE_BLOCKS if block.language == "python" and block.page not in ELSEWHERE]


def run_in_checkout(*command: str) -> subprocess.CompletedProcess[str]:
    """Run in the checkout, with this Python's scripts first in the path and every GPU hidden."""
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "200",
    }
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY_ROOT, env=environment, check=False)


def make_pattern_of_shown_line(shown: str) -> str:
    """Return the regular expression of a shown line, with ``...`` for any text."""
    return ".*".join(re.escape(part) for part in shown.split("..."))


def find_unprinted_line(shown: str, printed: str) -> str | None:
    """Return the first shown line missing in the output, None if all appear in order with gaps only at ``...``."""
    lines = printed.splitlines()
    at, gap = 0, False
    for line in shown.splitlines():
        if line.strip() == "...":
            gap = True
            continue
        reach = lines[at:] if gap else lines[at : at + 1]
        hit = next(
            (index for index, text in enumerate(reach) if re.fullmatch(make_pattern_of_shown_line(line), text)), None
        )
        if hit is None:
            return line
        at, gap = at + hit + 1, False
    return None


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_print_the_output_in_their_comments(block: CodeBlock) -> None:
    done = run_in_checkout(sys.executable, "-W", "error", "-c", block.text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"# -> (.*)$", block.text, re.MULTILINE)


@pytest.mark.parametrize("command", dict.fromkeys(line for _, line in list_command_lines("sh")))
def test_shell_commands_of_the_docs_pages_succeed(command: str) -> None:
    arguments = shlex.split(command, comments=True)
    assert arguments[1] in RUNNABLE, f"{command!r} must be in a console block"
    done = run_in_checkout(*arguments)
    assert done.returncode in ((0, 1) if arguments[1] in ANSWERS else (0,)), done.stderr
    assert done.stdout


@pytest.fixture(scope="module")
def demo_output() -> str:
    """Return the last output of `make demo`."""
    [recipe] = re.findall(r"bin/(cudnn-backend explain .*?);", (REPOSITORY_ROOT / "Makefile").read_text())
    [version] = re.findall(r"^CUDNN := (\S+)", (REPOSITORY_ROOT / "Makefile").read_text(), re.MULTILINE)
    done = run_in_checkout(*shlex.split(recipe.replace("$(CUDNN)", version)))
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/refusal.md"])
def test_demo_prints_the_output_shown_in_the_docs(page: str, demo_output: str) -> None:
    [shown] = [block.text for block in CODE_BLOCKS if (block.page, block.language) == (page, "text")]
    assert find_unprinted_line(shown, demo_output) is None


def test_demo_prints_the_lines_shown_on_the_docs_index_page(demo_output: str) -> None:
    [shown] = [block.text for block in CODE_BLOCKS if (block.page, block.language) == ("docs/index.md", "text")]
    lines = [" ".join(line.split()) for line in re.sub(r"\n +", " ", shown).splitlines()]
    assert len(lines) == 3
    printed = " ".join(demo_output.split())
    assert [line for line in lines if line not in printed] == []


def test_shown_output_that_is_not_printed_is_detected() -> None:
    printed = "a\nb 1 c\nd\n"
    assert find_unprinted_line("a\nb ... c\nd\n", printed) is None
    assert find_unprinted_line("a\n...\nd\n", printed) is None
    assert find_unprinted_line("a\nd\n", printed) == "d"
    assert find_unprinted_line("...\nd\na\n", printed) == "a"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY_ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for text in PAGE_TEXTS.values() for name in re.findall(r"(?:`|\$ )make ([a-z-]+)", text)}
    assert {"demo", "test", "docs"} <= named <= targets


@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
        *sorted(str(path.relative_to(REPOSITORY_ROOT)) for path in REPOSITORY_ROOT.glob("docs/**/*.md")),
    ],
)
def test_links_lead_to_existing_files(page: str) -> None:
    path = REPOSITORY_ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    dead = [link for link in LINK.findall(text) if not (path.parent / link).exists()]
    assert not dead
