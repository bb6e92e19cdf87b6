"""Code blocks of the documentation pages and the README, by language.

``python`` blocks are run and must print the text after ``# ->``; ``sh`` blocks are run. Code that needs a GPU, torch, a
cluster or another program is in ``py`` or ``console`` blocks; tests only check that its names, commands and options
exist. ``text`` blocks are output.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CODE_BLOCKS", "INLINE_CODE", "PAGE_TEXTS", "CodeBlock", "list_command_lines", "read_code_blocks"]

REPOSITORY_ROOT = Path(__file__).parents[2]
PAGE_TEXTS = {
    str(path.relative_to(REPOSITORY_ROOT)): path.read_text(encoding="utf-8")
    for path in (
        *(REPOSITORY_ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted(REPOSITORY_ROOT.glob("docs/**/*.md")),
    )
}


@dataclass(frozen=True)
class CodeBlock:
    """A fenced code block of a page."""

    page: str
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page} line {self.line}"


def read_code_blocks(page: str, text: str) -> list[CodeBlock]:
    """Return the fenced code blocks of a page, including those inside lists."""
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [
        CodeBlock(page, match[2], textwrap.dedent(match[3]), text.count("\n", 0, match.start()) + 1) for match in found
    ]


CODE_BLOCKS = [block for page, text in PAGE_TEXTS.items() for block in read_code_blocks(page, text)]
#: Commands in the running text and tables of pages.
INLINE_CODE = [
    (page, code)
    for page, text in PAGE_TEXTS.items()
    for code in re.findall(
        r"`((?:cudnn-backend|python -m) [^`]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    )
]


def list_command_lines(*languages: str) -> list[tuple[str, str]]:
    """Return page and text of each command in shell blocks, without the prompt."""
    return [
        (block.page, line.removeprefix("$ "))
        for block in CODE_BLOCKS
        if block.language in languages
        for line in block.text.splitlines()
        if line.startswith("$ ") or block.language in ("sh", "bash")
    ]
