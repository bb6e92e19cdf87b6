"""Suggestions for misspelt names: the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["find_most_similar_name", "suggest_most_similar_name"]

_ALIKE = 0.6  # of 1, the letters two names share in order


def find_most_similar_name(word: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `word`, ignoring case; None if none is near."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    found = get_close_matches(word[:100].lower(), names, n=1, cutoff=_ALIKE)
    return names[found[0]] if found else None


def suggest_most_similar_name(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion to append to an error text, after a semicolon; empty if no name is similar."""
    found = find_most_similar_name(word, known)
    return "" if found is None else f"; did you mean {prefix}{found}?"
