"""Entries of the site for cuDNN's reasons, each with the rule that reads it.

``docs/assets/reasons.js`` finds the entry of a text in the browser, from :func:`lookup_table`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose.causes import attention  # noqa: F401  # its module registers rules too
from cudnn_backend_py.diagnose.causes.phrases import PHRASES
from cudnn_backend_py.diagnose.causes.rules import RULES, WORD_RULES
from tools.website.docstrings import plain_roles

__all__ = ["Entry", "Rule", "entries", "key_of", "lookup_table", "rules"]

TABLE = Path(__file__).parents[2] / "docs" / "tables" / "reasons.json"


def key_of(text: str) -> str:
    """Return a key that ignores numbers, spaces and punctuation of a reason."""
    return " ".join("0" if word[0].isdigit() else word for word in re.findall(r"[a-z_]+|\d+", text.lower()))


@dataclass(frozen=True, slots=True)
class Rule:
    """A heading of the page: a rule of diagnosis, or a group of reasons that no rule reads."""

    name: str
    title: str
    text: str

    @property
    def anchor(self) -> str:
        return f"rule-{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A reason, the rule that reads it, and the versions and architectures that gave it."""

    status: str
    text: str
    operations: tuple[str, ...]
    versions: tuple[str, ...]
    sm: tuple[int, ...]
    rule: str
    anchor: str

    @property
    def statement(self) -> str:
        """The text before ``at:``, or the condition if there is no other text."""
        return re.split(r"\sat: ", self.text, maxsplit=1)[0].strip()

    @property
    def expression(self) -> str:
        """The condition in cuDNN's source; empty if the reason has only one part."""
        return "".join(re.split(r"\sat: ", self.text, maxsplit=1)[1:]).strip()


_NEEDS = Rule(
    "device",
    "The engine needs a real device",
    "The engine needs values that only a device has (the number of clusters that fit, a cuBLASLt handle), so this "
    "refusal is not about the graph: judge on the GPU.",
)
_VAGUE = Rule(
    "vague",
    "The reason is not about the graph",
    "The engine is for other architectures or other graphs, and refuses every graph like this one. Read the other "
    "reasons: `explain` prints those about your graph first.",
)
_NONE = Rule(
    "none",
    "Other conditions inside cuDNN",
    "No rule of this package reads these conditions. `explain` quotes the most specific one as a `guess`, judges "
    "changes of the graph, and prints a change that helps; `whatif` judges more changes.",
)
_STATUS = {"CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT": "shared_memory_per_block_insufficient"}


def _title(docstring: str) -> tuple[str, str]:
    """Return the first sentence of a rule's docstring, and its parts as Markdown."""
    head, _, rest = plain_roles(inspect.cleandoc(docstring)).partition("\n\n")
    parts = re.findall(r"^(Problem|Evidence|Remedy|Since)\n((?:    .*\n?|\n)+)", f"{rest}\n", re.MULTILINE)
    described = [f"{name}\n:   {' '.join(text.split())}" for name, text in parts]
    return " ".join(head.split()).removesuffix("."), "\n\n".join(described)


@cache
def rules() -> tuple[Rule, ...]:
    """Return the headings of the page, in the order in which rules are applied."""
    by_status = [function for function in RULES if function.__name__ in _STATUS.values()]
    named = dict.fromkeys(phrase.rule for phrase in PHRASES if phrase.rule)
    functions = [*by_status, *(WORD_RULES[name] for name in named)]
    read = [Rule(one.__name__, *_title(inspect.getdoc(one) or one.__name__)) for one in functions]
    return (*read, _NEEDS, _VAGUE, _NONE)


def rule_of(status: str, text: str) -> str:
    """Return the name of the rule that reads a reason first."""
    if status in _STATUS:
        return _STATUS[status]
    said = f"{status}: {text}"
    if any(phrase.needs and phrase.pattern in said and phrase.status in status for phrase in PHRASES):
        return _NEEDS.name
    if any(phrase.vague and re.search(phrase.pattern, said) for phrase in PHRASES):
        return _VAGUE.name
    return next((one.rule for one in PHRASES if one.rule and re.search(one.pattern, said)), _NONE.name)


@cache
def entries() -> tuple[Entry, ...]:
    """Return an entry for every reason of the table."""
    return tuple(_entries(json.loads(TABLE.read_text(encoding="utf-8"))))


def _entries(table: dict[str, Any]) -> Iterator[Entry]:
    taken: set[str] = set()
    for row in table["reasons"]:
        words = "-".join(re.findall(r"[a-z0-9]+", row["text"].lower())[:10])[:60].strip("-")
        anchor = next(name for n in range(1, 1000) if (name := f"{words}-{n}" if n > 1 else words) not in taken)
        taken.add(anchor)
        more = (tuple(row["operations"]), tuple(row["versions"]), tuple(row["sm"]))
        yield Entry(row["status"], row["text"], *more, rule_of(row["status"], row["text"]), anchor)


def lookup_table() -> dict[str, Any]:
    """Return the data with which the browser finds an entry: keys of reasons, and patterns of rules."""
    by_name = {rule.name: rule for rule in rules()}
    reasons = [
        [key_of(one.text), key_of(one.statement), one.anchor, one.statement, by_name[one.rule].title]
        for one in entries()
    ]
    statuses = [[status, by_name[name].anchor, by_name[name].title] for status, name in _STATUS.items()]
    patterns = [
        [_for_browser(phrase.pattern), by_name[name].anchor, by_name[name].title]
        for phrase in sorted(PHRASES, key=lambda one: bool(one.rule))
        if (name := phrase.rule or (_NEEDS.name if phrase.needs else _VAGUE.name if phrase.vague else ""))
    ]
    return {"reasons": reasons, "statuses": statuses, "patterns": patterns, "none": [_NONE.anchor, _NONE.title]}


def _for_browser(pattern: str) -> str:
    """Return a pattern without inline flags: letters that may be of either case are sets of both."""

    def either(text: str) -> str:
        return re.sub(
            r"\\.|\[[^]]*\]|[A-Za-z]", lambda m: m[0] if len(m[0]) > 1 else f"[{m[0].lower()}{m[0].upper()}]", text
        )

    if pattern.startswith("(?i)"):
        return either(pattern.removeprefix("(?i)"))
    return re.sub(r"\(\?i:([^()]*)\)", lambda match: f"(?:{either(match[1])})", pattern)
