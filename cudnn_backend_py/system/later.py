"""Names of a package that are imported when they are first used: few programs need them, and each import costs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["import_later"]


def import_later(package: str, **names: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Parameters
    ----------
    package
        The package's ``__name__``.
    names
        The module of the package that has a name, by the name; a name that is its module's own means the module.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{names[name]}", package)
        value = module if names[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)  # found at once from now on
        return value

    return find
