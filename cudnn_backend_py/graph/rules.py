"""Rules for graph values: each is a table row with error code, condition and message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ..frozen import FrozenValue

__all__ = ["Rule", "find_broken_rule"]

Value = TypeVar("Value")


class Rule(FrozenValue, Generic[Value]):
    """One rule: its error code, the condition that violates it, and its message."""

    code: str
    is_broken: Callable[[Value], bool]
    message: Callable[[Value], str]
    fix: Callable[[Value], str] | None = None


def find_broken_rule(rules: Iterable[Rule[Value]], value: Value) -> Rule[Value] | None:
    """Return the first violated rule, or None; a rule's condition may rely on the rules before it."""
    for rule in rules:
        if rule.is_broken(value):
            return rule
    return None
