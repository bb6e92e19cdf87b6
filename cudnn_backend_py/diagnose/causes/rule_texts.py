"""Texts of the rules for cuDNN's reasons, read from their docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache

from . import attention  # noqa: F401  # its module registers rules too
from .phrases import PHRASES
from .rules import RULES, WORD_RULES

__all__ = ["BY_STATUS", "RuleText", "find_rule", "plain_roles", "read_rules", "rule_name"]

_ROLE = re.compile(r":\w+:`(~?)([^`]+)`")

#: Statuses that a rule reads whatever the text says.
BY_STATUS = {"CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT": "shared_memory_per_block_insufficient"}


def plain_roles(text: str) -> str:
    """Return a docstring as Markdown: roles as code, names after ``~`` without modules, single backticks."""
    text = _ROLE.sub(lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2].lstrip('.')}`", text)
    return text.replace("``", "`")


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule's name and title, and the sections of its docstring: Problem, Evidence, Remedy, Since."""

    name: str
    title: str
    parts: dict[str, str]

    @property
    def problem(self) -> str:
        """The meaning of the reason."""
        return self.parts.get("Problem", "")

    @property
    def remedy(self) -> str:
        """The remedy."""
        return self.parts.get("Remedy", "")


_DEVICE = RuleText(
    "device",
    "The engine needs a real device",
    {
        "Problem": "The engine needs values that only a device has (the number of clusters that fit, a cuBLASLt "
        "handle), so this refusal is not about the graph: judge on the GPU."
    },
)
_VAGUE = RuleText(
    "vague",
    "The reason is not about the graph",
    {
        "Problem": "The engine is for other architectures or other graphs, and refuses every graph like this one. Read "
        "the other reasons: `explain` prints those about your graph first."
    },
)
_NONE = RuleText(
    "none",
    "Other conditions inside cuDNN",
    {
        "Problem": "No rule of this package reads these conditions. `explain` quotes the most specific one as a "
        "`guess`, judges changes of the graph, and prints a change that helps; `--whatif` judges more changes."
    },
)


def _read(name: str, docstring: str) -> RuleText:
    head, _, rest = plain_roles(inspect.cleandoc(docstring)).partition("\n\n")
    parts = re.findall(r"^(Problem|Evidence|Remedy|Since)\n((?:    .*\n?|\n)+)", f"{rest}\n", re.MULTILINE)
    title = " ".join(head.split()).removesuffix(".")
    return RuleText(name, title, {part: " ".join(text.split()) for part, text in parts})


@cache
def read_rules() -> tuple[RuleText, ...]:
    """Return the texts of all rules in order of application, then those for reasons without a rule."""
    by_status = [function for function in RULES if function.__name__ in BY_STATUS.values()]
    named = dict.fromkeys(phrase.rule for phrase in PHRASES if phrase.rule)
    functions = [*by_status, *(WORD_RULES[name] for name in named)]
    return (
        *(_read(one.__name__, inspect.getdoc(one) or one.__name__) for one in functions),
        _DEVICE,
        _VAGUE,
        _NONE,
    )


def find_rule(name: str) -> RuleText:
    """Return the text of a rule."""
    return next(one for one in read_rules() if one.name == name)


def rule_name(status: str, text: str) -> str:
    """Return the name of the first rule that matches a reason; ``device``, ``vague`` or ``none`` otherwise."""
    if status in BY_STATUS:
        return BY_STATUS[status]
    said = f"{status}: {text}"
    if any(phrase.needs and phrase.pattern in said and phrase.status in status for phrase in PHRASES):
        return _DEVICE.name
    if any(phrase.vague and re.search(phrase.pattern, said) for phrase in PHRASES):
        return _VAGUE.name
    return next((one.rule for one in PHRASES if one.rule and re.search(one.pattern, said)), _NONE.name)
