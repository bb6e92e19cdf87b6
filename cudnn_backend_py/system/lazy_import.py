"""Import names of a package on first use: few programs need them, and every import costs time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["make_lazy_getattr"]


def make_lazy_getattr(package: str, **names: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports its names on first use.

    Parameters
    ----------
    package
        The package's ``__name__``.
    names
        The module of the package that has a name, by the name; a name that is its module's own means the module.
    """

    def find_name(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{names[name]}", package)
        value = module if names[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)  # found at once from now on
        return value

    return find_name
