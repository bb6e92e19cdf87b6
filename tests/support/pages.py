"""Code blocks of the documentation pages and the README, by language.

``python`` is run and has to print the text after ``# ->``; ``sh`` is run. Code that needs a GPU, torch, a cluster or
another program is ``py`` or ``console``, and only checked: names, commands and options exist. ``text`` is output.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BLOCKS", "INLINE", "PAGES", "Block", "command_lines", "read_blocks"]

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
    )
}


@dataclass(frozen=True)
class Block:
    """A fenced code block of a page."""

    page: str
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page} line {self.line}"


def read_blocks(page: str, text: str) -> list[Block]:
    """Return the fenced code blocks of a page, including those inside lists."""
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, match[2], textwrap.dedent(match[3]), text.count("\n", 0, match.start()) + 1) for match in found]


BLOCKS = [block for page, text in PAGES.items() for block in read_blocks(page, text)]
#: Commands in the prose and the tables of pages.
INLINE = [
    (page, code)
    for page, text in PAGES.items()
    for code in re.findall(
        r"`((?:cudnn-backend|python -m) [^`]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    )
]


def command_lines(*languages: str) -> list[tuple[str, str]]:
    """Return page and text of each command in shell blocks, without the prompt."""
    return [
        (block.page, line.removeprefix("$ "))
        for block in BLOCKS
        if block.language in languages
        for line in block.text.splitlines()
        if line.startswith("$ ") or block.language in ("sh", "bash")
    ]
