"""Run an action on a module as soon as it is imported, before the importing program can use it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["call_after_import"]


def call_after_import(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Call `action` once the module `name` is imported: now if it already is, else right after its code has run.

    What the action raises ends the import. The function that is returned forgets an action that was not called yet.
    """
    if name in sys.modules:
        action()
        return lambda: None
    finder = _ImportFinder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.remove_itself


class _ImportFinder(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name, self._action = name, action

    def remove_itself(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        self.remove_itself()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderCallingAction(spec.loader, self._action)
        return spec


class _LoaderCallingAction(Loader):
    def __init__(self, loader: Any, action: Callable[[], object]) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()
