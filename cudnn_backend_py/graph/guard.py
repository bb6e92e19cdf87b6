"""Isolate bugs in this package's rules: an exception in one rule is reported in the verdict, the others still run.

Rules, causes, changes, known issues and lint also get graphs of a kind never tested. An exception in one of them is a
bug of this package: the verdict names it, so that it can be reported, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ..errors import CudnnBackendError
from ..printable import mask_memory_addresses
from ..system.interruption import reraise_interruption

__all__ = [
    "MISTAKES",
    "call_and_report_errors",
    "collect_error_reports",
    "describe_internal_error",
    "iterate_and_report_errors",
    "report_error_line",
]

# What a mistake in Python code raises. It is none where `is_interruption` says so.
MISTAKES = (
    CudnnBackendError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)

Result = TypeVar("Result")
_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_error_reports() -> Iterator[list[str]]:
    """Yield a list that collects the distinct lines reported within the block; outside any block they are logged."""
    lines: list[str] = []
    token = _collected.set(lines)
    try:
        yield lines
    finally:
        _collected.reset(token)


def report_error_line(line: str) -> None:
    """Report a line to the active :func:`collect_error_reports`, else to this package's log."""
    lines = _collected.get()
    if lines is None:
        import logging  # few lines come here

        logging.getLogger(__name__).warning("%s", line)
    elif line not in lines:
        lines.append(line)


def describe_internal_error(what: str, error: BaseException) -> str:
    """Return the line that reports an exception raised by this package's own code."""
    words = " ".join(str(error).split()) or "no message"
    return (
        f"{what} of this package failed with {type(error).__name__} ({mask_memory_addresses(words)}): please report it"
    )


def call_and_report_errors(what: str, otherwise: Result, function: Callable[..., Result], *given: object) -> Result:
    """Return the function's result, or `otherwise` if it raises; a failure is reported under the name `what`."""
    try:
        return function(*given)
    except MISTAKES as error:
        reraise_interruption(error)
        report_error_line(describe_internal_error(what, error))
        return otherwise


def iterate_and_report_errors(what: str, function: Callable[..., Iterable[Result]], *given: object) -> Iterator[Result]:
    """Yield the items of a generator until it raises; a failure is reported under the name `what`."""
    try:
        yield from function(*given)
    except MISTAKES as error:
        reraise_interruption(error)
        report_error_line(describe_internal_error(what, error))
