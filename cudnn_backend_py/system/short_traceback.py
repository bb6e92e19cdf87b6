"""Print tracebacks of a program that this package runs, leaving out frames of the package and of libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceback import TracebackException
    from types import TracebackType

__all__ = ["TRACEBACK_VARIABLE", "shorten_traceback"]

TRACEBACK_VARIABLE = "CUDNN_BACKEND_TRACEBACK"  # with it, nothing is left out
_PACKAGE_FOLDER = os.path.join(Path(__file__).parents[1], "")


def shorten_traceback(error: BaseException, modules: Iterable[str] = ()) -> None:
    """Let Python print an uncaught error without the frames of this package, of runpy and of imported packages.

    Nothing changes if the program has its own ``sys.excepthook``, if ``CUDNN_BACKEND_TRACEBACK`` is set, or if this
    package fails outside the program.

    Parameters
    ----------
    modules
        Names of further packages to leave out.
    """
    import traceback  # for errors alone

    if sys.excepthook is not sys.__excepthook__ or TRACEBACK_VARIABLE in os.environ:
        return
    files = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    hidden = ("<frozen ", _PACKAGE_FOLDER, *(os.path.join(os.path.dirname(file), "") for file in files if file))
    names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if all(name.startswith(hidden) for name in names) and names[-1:] and names[-1].startswith(_PACKAGE_FOLDER):
        return

    def print_short_traceback(kind: type[BaseException], raised: BaseException, at: TracebackType | None) -> None:
        if raised is not error:  # one of the clean-up
            sys.__excepthook__(kind, raised, at)
            return
        shown = traceback.TracebackException(kind, raised, at)
        for part in _list_chained_errors(shown):
            part.stack = traceback.StackSummary.from_list(
                [frame for frame in part.stack if not frame.filename.startswith(hidden)]
            )
        packages = " and ".join(["cudnn_backend_py", *modules])
        print("".join(shown.format()), end="", file=sys.stderr)
        print(f"({TRACEBACK_VARIABLE}=1 also shows the frames of {packages})", file=sys.stderr)

    sys.excepthook = print_short_traceback


def _list_chained_errors(error: TracebackException) -> list[TracebackException]:
    """Return an error and the errors that it was raised from or while handling."""
    found: list[TracebackException] = []
    pending = [error]
    while pending:
        one = pending.pop()
        found.append(one)
        pending += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other is not None]
    return found
