"""Warnings that name a known issue."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["issue_warnings"]


def issue_warnings(build: Callable[[], Any], code: str) -> list[type[Warning]]:
    """Return the categories of the warnings that `build` raises for a known issue."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [item.category for item in caught if f"({code})" in str(item.message)]
