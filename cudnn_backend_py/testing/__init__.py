"""Assertions on verdicts, the pytest plugin, and records of GPU test runs; imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assertions import assert_not_supported as assert_not_supported
    from .assertions import assert_supported as assert_supported

__all__ = ["assert_not_supported", "assert_supported"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import assertions

    return getattr(assertions, name)
