"""Categories of the warnings that report a known issue."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["list_issue_warning_categories"]


def list_issue_warning_categories(build: Callable[[], Any], code: str) -> list[type[Warning]]:
    """Return the categories of the warnings that `build` raises for a known issue."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [item.category for item in caught if f"({code})" in str(item.message)]
