"""Texts of the rules for cuDNN's reasons, read from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ..verdict import Cause
from . import attention, operations, rules  # noqa: F401  # these modules register rules
from .conditions import INTERNAL_CALL_PATTERN
from .phrases import REASON_PHRASES
from .registry import PHRASE_RULES, RULES, get_rule_name

__all__ = [
    "RULE_BY_STATUS",
    "RuleText",
    "convert_sphinx_roles_to_markdown",
    "find_rule_name_for_reason",
    "find_rule_text",
    "list_rule_patterns",
    "read_rule_texts",
]

_ROLE_PATTERN = re.compile(r":\w+:`(~?)([^`]+)`")

#: Statuses that a rule reads whatever the text says.
RULE_BY_STATUS = {"CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT": "shared_memory_per_block_insufficient"}


def convert_sphinx_roles_to_markdown(text: str) -> str:
    """Return a docstring as Markdown: roles as code, names after ``~`` without modules, single backticks."""
    text = _ROLE_PATTERN.sub(
        lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2].lstrip('.')}`", text
    )
    return text.replace("``", "`")


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule's name and title, and the sections of its docstring: Problem, Evidence, Remedy, Since."""

    name: str
    title: str
    parts: dict[str, str]

    @property
    def problem(self) -> str:
        """The explanation of cuDNN's reason, from the section Problem."""
        return self.parts.get("Problem", "")

    @property
    def remedy(self) -> str:
        """The change that makes the graph supported, from the section Remedy."""
        return self.parts.get("Remedy", "")


_DEVICE_TEXT = RuleText(
    "device",
    "The engine needs a real device",
    {
        "Problem": "The engine needs values that only a device has (the number of clusters that fit, a cuBLASLt "
        "handle), so this refusal is not about the graph: judge on the GPU."
    },
)
_VAGUE_TEXT = RuleText(
    "vague",
    "The reason is not about the graph",
    {
        "Problem": "The engine is for other architectures or other graphs, and refuses every graph like this one. Read "
        "the other reasons: `explain` prints those about your graph first."
    },
)
_STEP_TEXT = RuleText(
    "step",
    "A function inside cuDNN returned the status",
    {
        "Problem": "The text names a function of cuDNN, not a condition. A status such as `NOT_SUPPORTED_LAYOUT` says "
        "what was refused. If the same list has reasons before it, the first of them has the condition: paste the "
        "whole list.",
    },
)
_INVALID_TEXT = RuleText(
    "invalid",
    "An operation, a tensor or an attribute is not valid",
    {
        "Problem": "With `BAD_PARAM`, cuDNN refuses the operation itself, not an engine for it. Dims, strides, a data "
        "type or another value of it are not what the operation needs; the text names them.",
    },
)
# The rules that read why an operation is not valid; others read the same words in reasons of engines.
_RULES_FOR_INVALID = (
    *("convolution_dims", "dims", "missing_tensor", "same_tensors", "ragged_offset", "overlapping", "alignment"),
)
_NO_RULE_TEXT = RuleText(
    "none",
    "Other conditions inside cuDNN",
    {
        "Problem": "No rule of this package reads these conditions. `explain` quotes the most specific one as a "
        "`guess`, judges changes of the graph, and prints a change that helps; `--whatif` judges more changes."
    },
)


def _read_rule_text(name: str, docstring: str) -> RuleText:
    head, _, rest = convert_sphinx_roles_to_markdown(inspect.cleandoc(docstring)).partition("\n\n")
    parts = re.findall(r"^(Problem|Evidence|Remedy|Since)\n((?:    .*\n?|\n)+)", f"{rest}\n", re.MULTILINE)
    title = " ".join(head.split()).removesuffix(".")
    return RuleText(name, title, {part: " ".join(text.split()) for part, text in parts})


@cache
def read_rule_texts() -> tuple[RuleText, ...]:
    """Return the texts of all rules in order of application, then those for reasons without a rule."""
    by_status = [function for function in RULES if get_rule_name(function) in RULE_BY_STATUS.values()]
    named = dict.fromkeys(phrase.rule for phrase in REASON_PHRASES if phrase.rule)
    functions: list[Callable[..., Cause | None]] = [*by_status, *(PHRASE_RULES[name] for name in named)]
    return (
        *(_read_rule_text(get_rule_name(one), inspect.getdoc(one) or get_rule_name(one)) for one in functions),
        _DEVICE_TEXT,
        _VAGUE_TEXT,
        _STEP_TEXT,
        _INVALID_TEXT,
        _NO_RULE_TEXT,
    )


def find_rule_text(name: str) -> RuleText:
    """Return the text of the rule with the given name."""
    return next(one for one in read_rule_texts() if one.name == name)


@cache
def list_rule_patterns() -> tuple[tuple[str, str], ...]:
    """Return regular expressions of reasons ``STATUS: text``, each with the name of its rule; the first counts."""
    device = [(f"{one.status}.*{one.pattern}", _DEVICE_TEXT.name) for one in REASON_PHRASES if one.needs]
    vague = [(one.pattern, _VAGUE_TEXT.name) for one in REASON_PHRASES if one.vague]
    phrase_rules = [(one.pattern, one.rule) for one in REASON_PHRASES if one.rule]
    return (
        *device,
        *vague,
        (INTERNAL_CALL_PATTERN, _STEP_TEXT.name),
        *(row for row in phrase_rules if row[1] in _RULES_FOR_INVALID),
        (r"^CUDNN_STATUS_BAD_PARAM|^: .*(?:must be \d|(?:must|should) match)", _INVALID_TEXT.name),  # or no status
        *phrase_rules,
    )


def find_rule_name_for_reason(status: str, text: str) -> str:
    """Return the name of the first rule that matches a reason, also ``device``, ``vague``, ``step`` or ``invalid``.

    ``none`` if none does.
    """
    if status in RULE_BY_STATUS:
        return RULE_BY_STATUS[status]
    said = f"{status}: {text}"
    return next((name for pattern, name in list_rule_patterns() if re.search(pattern, said)), _NO_RULE_TEXT.name)
