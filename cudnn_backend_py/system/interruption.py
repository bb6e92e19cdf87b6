"""Recognize exceptions raised from outside: by signal handlers, other threads or callbacks.

Code that treats what it calls as fallible (a rule, a value's own methods) must not take such an exception for its
failure: it is the caller's, and passes through.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from opcode import opmap
from types import CodeType, FrameType, TracebackType

__all__ = ["CALLED_BY_C", "is_interruption", "reraise_interruption", "suppress_errors"]

_RAISING = {opmap["RAISE_VARARGS"], opmap["RERAISE"]}
_VARARGS = 0x04  # CO_VARARGS
_PACKAGE = __name__.split(".", maxsplit=1)[0]

#: Code of functions through which the user's code is called while C runs.
CALLED_BY_C: set[CodeType] = set()


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception was raised from outside the running code, as by a signal handler.

    That is known of what is no ``Exception``; of what passed a function that was given a frame, which are the handlers
    of signals and the functions of ``sys.settrace`` and ``sys.setprofile``; of what passed a callback that C called;
    and of an exception of a class of somebody else that nothing raised where it appeared, as
    ``PyThreadState_SetAsyncExc`` makes it. What that makes of a class of Python's own looks like a mistake of ours.
    """
    if not isinstance(error, Exception):
        return True
    last: TracebackType | None = None
    for last in _iterate_traceback_entries(error.__traceback__):
        if last.tb_frame.f_code in CALLED_BY_C or _has_argument_of_frame_type(last.tb_frame):
            return True
    return last is not None and _is_third_party_class(type(error)) and not _is_at_raise_instruction(last)


def reraise_interruption(error: BaseException) -> None:
    """Raise the exception again if it is an interruption, raised from outside the running code."""
    if is_interruption(error):
        raise error


class suppress_errors:  # noqa: N801  # like contextlib.suppress
    """Suppress exceptions of these types like ``contextlib.suppress``, except interruptions."""

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, self._kinds) and not is_interruption(error)


def _iterate_traceback_entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _has_argument_of_frame_type(frame: FrameType) -> bool:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)
    given = frame.f_locals
    arguments = [given.get(name) for name in code.co_varnames[:count]]
    return any(
        type(value) is FrameType or (type(value) is tuple and any(type(item) is FrameType for item in value))
        for value in arguments
    )


def _is_at_raise_instruction(entry: TracebackType) -> bool:
    """Return whether the traceback entry's frame was executing a raise instruction."""
    code = entry.tb_frame.f_code.co_code
    return 0 <= entry.tb_lasti < len(code) and code[entry.tb_lasti] in _RAISING


def _is_third_party_class(kind: type) -> bool:
    """Return whether a class comes neither from Python nor from this package, NumPy or torch."""
    module: object = vars(type)["__module__"].__get__(kind)  # without any code of a metaclass
    if not isinstance(module, str):
        return False
    return (top := module.partition(".")[0]) not in ("numpy", "torch", _PACKAGE) and top not in sys.stdlib_module_names
