"""Warnings that name a known issue."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["told"]


def told(build: Callable[[], Any], code: str) -> list[type[Warning]]:
    """Return the categories of the warnings that name a fault."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [item.category for item in caught if f"({code})" in str(item.message)]
