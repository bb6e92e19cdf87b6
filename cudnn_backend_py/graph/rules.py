"""Rules for graph values: error code, condition and message of each, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Rule", "broken_rule"]

Value = TypeVar("Value")


class Rule(NamedTuple, Generic[Value]):
    """One rule: its error code, its violation condition, and its message."""

    code: str
    is_broken: Callable[[Value], bool]
    message: Callable[[Value], str]
    fix: Callable[[Value], str] | None = None


def broken_rule(rules: Iterable[Rule[Value]], value: Value) -> Rule[Value] | None:
    """Return the first violated rule, or None; conditions may rely on earlier rules."""
    for rule in rules:
        if rule.is_broken(value):
            return rule
    return None
