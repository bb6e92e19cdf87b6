"""The rules that explain cuDNN's reasons, by name, and texts about other targets that several of them use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...plans.refusals import Reason
from ..verdict import Cause
from .case import MAX_TARGETS_IN_REMEDY, RefusalCase

__all__ = [
    "PHRASE_RULES",
    "RULES",
    "PhraseRule",
    "format_architecture_support",
    "format_supporting_targets_remedy",
    "get_rule_name",
    "register_phrase_rule",
    "register_rule",
]

Rule = Callable[[RefusalCase], Cause | None]
PhraseRule = Callable[[RefusalCase, Reason], Cause | None]

RULES: list[Rule] = []
PHRASE_RULES: dict[str, PhraseRule] = {}


def get_rule_name(rule: Callable[..., Cause | None]) -> str:
    """Return the name of a rule: the name of its function without the prefix ``explain_``."""
    return rule.__name__.removeprefix("explain_")


def register_rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def register_phrase_rule(function: PhraseRule) -> PhraseRule:
    """Register a rule under its name, which :mod:`.phrases` uses to select rules."""
    PHRASE_RULES[get_rule_name(function)] = function
    return function


def format_supporting_targets_remedy(others: Sequence[str]) -> str:
    """Return a remedy text that names the other targets that support the graph; empty if there are none."""
    return f"judge for {' or '.join(others[:MAX_TARGETS_IN_REMEDY])}, with this cuDNN" if others else ""


def format_architecture_support(
    case: RefusalCase, others: Sequence[str], *, graph: str = "the graph", how: str = ""
) -> str:
    """Return text such as "sm_90 does not support the graph, sm_100 does", followed by `how`."""
    do = "do" if len(others) > 1 else "does"
    return f"sm_{case.target.sm} does not support {graph}, {', '.join(others)} {do}{how}"
