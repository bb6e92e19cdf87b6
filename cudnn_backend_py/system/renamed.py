"""Former names: what a module called by another name in earlier versions is still found there, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["keep_names"]


def keep_names(module: str, **former: Any) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module in which former names still work.

    Parameters
    ----------
    module
        The module's ``__name__``.
    former
        What is meant, by its former name; the warning names its module and its name of today.

    Warns
    -----
    DeprecationWarning
        When a former name is looked up.
    """

    def find(name: str) -> Any:
        if name not in former:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = former[name]
        message = f"{module}.{name} is now {found.__module__}.{found.__qualname__}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found

    return find
