"""The site's entries for cuDNN's reasons, each with the rule that explains it.

In the browser, ``docs/assets/reasons.js`` looks up the entry of a text in the data of :func:`make_reason_lookup_table`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose.causes.conditions import (
    CONDITION_PATTERN,
    CONDITION_REWRITES,
    INTERNAL_CALL_PATTERN,
)
from cudnn_backend_py.diagnose.causes.rule_texts import (
    RULE_BY_STATUS,
    RuleText,
    find_rule_name_for_reason,
    list_rule_patterns,
    read_rule_texts,
)
from cudnn_backend_py.diagnose.framework_messages import MESSAGE_ENTRIES, STATUS_ENTRIES, MessagePattern

__all__ = [
    "ReasonEntry",
    "RuleHeading",
    "list_reason_entries",
    "list_rules",
    "make_message_anchor",
    "make_reason_lookup_table",
    "make_reason_search_key",
]

REASONS_TABLE_PATH = Path(__file__).parents[2] / "docs" / "tables" / "reasons.json"


def make_reason_search_key(text: str) -> str:
    """Return a key of a reason without numbers, spaces and punctuation."""
    return " ".join("0" if word[0].isdigit() else word for word in re.findall(r"[a-z_]+|\d+", text.lower()))


@dataclass(frozen=True, slots=True)
class RuleHeading:
    """A heading of the page: a rule of diagnosis, or a group of reasons without a rule."""

    name: str
    title: str
    text: str

    @property
    def anchor(self) -> str:
        return f"rule-{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class ReasonEntry:
    """A reason of cuDNN, its rule, and the versions and architectures that it was seen with."""

    status: str
    text: str
    operations: tuple[str, ...]
    versions: tuple[str, ...]
    sm: tuple[int, ...]
    rule: str
    anchor: str

    @property
    def statement(self) -> str:
        """The reason without the source condition that follows `` at: ``, or the whole reason if it has none."""
        return re.split(r"\sat: ", self.text, maxsplit=1)[0].strip()

    @property
    def expression(self) -> str:
        """The condition in cuDNN's source that follows `` at: `` in the reason; empty if there is none."""
        return "".join(re.split(r"\sat: ", self.text, maxsplit=1)[1:]).strip()


@cache
def list_rules() -> tuple[RuleHeading, ...]:
    """Return the headings of the page, in the order in which rules are applied."""
    return tuple(
        RuleHeading(one.name, one.title, _convert_rule_docstring_to_markdown(one)) for one in read_rule_texts()
    )


def _convert_rule_docstring_to_markdown(rule: RuleText) -> str:
    """Return a rule's docstring as Markdown: a definition list of its sections, or only the text if it has none."""
    if set(rule.parts) == {"Problem"}:
        return rule.problem
    return "\n\n".join(f"{name}\n:   {text}" for name, text in rule.parts.items())


@cache
def list_reason_entries() -> tuple[ReasonEntry, ...]:
    """Return an entry for every reason of the table."""
    return tuple(_make_reason_entries(json.loads(REASONS_TABLE_PATH.read_text(encoding="utf-8"))))


def _make_reason_entries(table: dict[str, Any]) -> Iterator[ReasonEntry]:
    taken: set[str] = set()
    for row in table["reasons"]:
        words = "-".join(re.findall(r"[a-z0-9]+", row["text"].lower())[:10])[:60].strip("-")
        anchor = next(name for n in range(1, 1000) if (name := f"{words}-{n}" if n > 1 else words) not in taken)
        taken.add(anchor)
        more = (tuple(row["operations"]), tuple(row["versions"]), tuple(row["sm"]))
        yield ReasonEntry(
            row["status"], row["text"], *more, find_rule_name_for_reason(row["status"], row["text"]), anchor
        )


def make_reason_lookup_table() -> dict[str, Any]:
    """Return the browser's search data: keys of reasons, and patterns of rules."""
    by_name = {rule.name: rule for rule in list_rules()}
    reasons = [
        [
            make_reason_search_key(one.text),
            make_reason_search_key(one.statement),
            one.anchor,
            one.statement,
            by_name[one.rule].title,
        ]
        for one in list_reason_entries()
    ]
    statuses = [[status, by_name[name].anchor, by_name[name].title] for status, name in RULE_BY_STATUS.items()]
    none = by_name["none"]
    return {
        "reasons": reasons,
        "statuses": statuses,
        "patterns": [
            [_convert_pattern_for_browser(pattern), by_name[name].anchor, by_name[name].title]
            for pattern, name in list_rule_patterns()
        ],
        "condition": CONDITION_PATTERN,
        "call": INTERNAL_CALL_PATTERN,
        "rewrites": [[pattern, re.sub(r"\\(\d)", r"$\1", text)] for pattern, text in CONDITION_REWRITES],
        "none": [none.anchor, none.title],
        "messages": [_make_message_row(row) for row in MESSAGE_ENTRIES],
        "message_statuses": [_make_message_row(row) for row in STATUS_ENTRIES],
    }


def _make_message_row(row: MessagePattern) -> list[str]:
    return [row.pattern, make_message_anchor(row), row.title, row.program]


def make_message_anchor(row: MessagePattern) -> str:
    """Return the anchor of a program's message on the page."""
    return f"message-{row.code}"


def _convert_pattern_for_browser(pattern: str) -> str:
    """Return a pattern without the inline flag for case: each letter becomes a set of both cases."""

    def join_alternatives(text: str) -> str:
        return re.sub(
            r"\\.|\[[^]]*\]|[A-Za-z]", lambda m: m[0] if len(m[0]) > 1 else f"[{m[0].lower()}{m[0].upper()}]", text
        )

    if pattern.startswith("(?i)"):
        return join_alternatives(pattern.removeprefix("(?i)"))
    return re.sub(r"\(\?i:([^()]*)\)", lambda match: f"(?:{join_alternatives(match[1])})", pattern)
