"""Wrap functions of modules and classes temporarily, transparently for callers, and restore them.

Under ``torch.compile`` a wrapper is as if it were not there, as dynamo itself decides while it traces: the graph is the
one it would be without it. A mode of torch would be seen by one thread only, and by every other operation.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import length_hint
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from ..system.after_import import call_after_import
from ..system.interruption import suppress_errors

__all__ = ["FunctionWrapper", "WrapperRegistry", "is_compiling", "measure_wrapper_overhead"]

is_compiling = torch.compiler.is_compiling


@dataclass(slots=True)
class FunctionWrapper:
    """Intercepts the calls of a function, or passes a number of them directly to the original.

    Attributes
    ----------
    intercept
        Called with the original, the arguments and the keywords of a call; what it returns is the call's result.
    pass_iterator
        As many calls as it has items left go directly to the original. An iterator counts without making numbers.
    """

    intercept: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    pass_iterator: Iterator[None] = field(default_factory=partial(repeat, None, 0))

    @property
    def remaining_unrecorded_calls(self) -> int:
        """The number of calls that still go directly to the original."""
        return length_hint(self.pass_iterator)

    @remaining_unrecorded_calls.setter
    def remaining_unrecorded_calls(self, calls: int) -> None:
        self.pass_iterator = repeat(None, calls)


_wrappers: dict[int, tuple[Any, Any]] = {}  # by the id of an original: it and its wrapper


def _make_wrapper(original: Any, around: FunctionWrapper) -> Any:
    """Return the wrapper of a function, always the same object, as dynamo guards on its identity."""
    if id(original) in _wrappers:
        _, known = _wrappers[id(original)]
        known.__closure__[known.__code__.co_freevars.index("_around")].cell_contents = around
        return known
    parameters, passed, given, named = _read_signature(original)
    scope: dict[str, Any] = {}
    source = _WRAPPER_SOURCE.format(parameters=parameters, passed=passed, given=given, named=named)
    exec(compile(source, str(Path(__file__).with_name("<wrapper>")), "exec"), scope)  # a file of this package
    is_traced = getattr(torch.compiler, "is_dynamo_compiling", is_compiling)  # where it is not, the cheapest to ask
    wrapper: Any = functools.wraps(original)(scope["make"](original, around, is_traced))
    if given != "args":
        wrapper.__defaults__ = original.__defaults__
    _wrappers[id(original)] = original, wrapper
    return wrapper


_WRAPPER_SOURCE = """
def make(_original, _around, _is_traced):
    def wrapper({parameters}):
        if _is_traced():
            return _original({passed})
        for _ in _around.pass_iterator:
            return _original({passed})
        return _around.intercept(_original, {given}, {named})
    return wrapper
"""


def _read_signature(original: Any) -> tuple[str, str, str, str]:
    """Return Python source text of a function's parameters, call arguments, argument tuple and keyword dict.

    A function of Python whose arguments all have places is given them one by one: packing and unpacking them takes
    longer than all else. Names of arguments take longer still, where a call gives few of many.
    """
    parameters = []
    if isinstance(original, FunctionType):
        parameters = list(inspect.signature(original, follow_wrapped=False).parameters.values())
    if not parameters or any(one.kind is not one.POSITIONAL_OR_KEYWORD for one in parameters):
        return "*args, **kwargs", "*args, **kwargs", "args", "kwargs"
    passed = ", ".join(one.name for one in parameters)
    return (
        ", ".join(one.name + "=None" * (one.default is not one.empty) for one in parameters),
        passed,
        f"({passed},)",
        "{}",
    )


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing, to measure the time of a call."""


@functools.cache
def measure_wrapper_overhead(calls: int = 500) -> float:
    """Return the seconds that a wrapper adds to a call with keyword arguments that it passes to the original."""
    around = FunctionWrapper(_do_nothing)
    around.remaining_unrecorded_calls = sys.maxsize
    taken = {}
    for function in (_do_nothing, _make_wrapper(_do_nothing, around)):
        turns = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(calls):
                function(0, 0, 0, causal=True)
            turns.append(time.perf_counter() - began)
        taken[function] = min(turns) / calls
    plain, wrapped = taken.values()
    return max(0.0, wrapped - plain)


class WrapperRegistry:
    """Wraps functions, and restores them in :meth:`restore`.

    Parameters
    ----------
    package
        Of whoever wraps: its own modules keep the originals.
    """

    def __init__(self, package: str) -> None:
        self._own_modules = ("torch._C", package, __name__)
        self._cancel_actions: list[Callable[[], None]] = []
        self._replacements: list[tuple[Any, str, Any, Any]] = []  # holder, name, original, wrapper

    def wrap(self, holder: Any, name: str, around: FunctionWrapper, *, everywhere: bool = True) -> None:
        """Wrap a function of a module or class; with `everywhere`, also where other modules imported it."""
        original = getattr(holder, name)
        wrapper = _make_wrapper(original, around)
        if isinstance(holder, ModuleType):
            wrapper.__module__, wrapper.__qualname__ = holder.__name__, name  # by which it is pickled
        with suppress_errors(Exception):  # torch.jit.script finds operators by the identity of their functions
            from torch.jit._builtins import _find_builtin, _register_builtin

            if (operator := _find_builtin(original)) is not None:
                _register_builtin(wrapper, operator)
        self.replace(holder, name, wrapper)
        if everywhere:
            self._replace_imported_names({id(original): wrapper})

    def wrap_after_import(self, module: str, name: str, around: FunctionWrapper) -> None:
        """Wrap a module's function when the module is imported, as importing it now may cost a second."""
        self.run_after_import(module, lambda: self.wrap(sys.modules[module], name, around))

    def run_after_import(self, module: str, action: Callable[[], object]) -> None:
        """Run an action once a module is imported, if that happens before :meth:`restore`."""
        self._cancel_actions.append(call_after_import(module, action))

    def replace(self, holder: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class until :meth:`restore` is called."""
        self._replacements.append((holder, name, getattr(holder, name), value))
        setattr(holder, name, value)

    def restore(self) -> None:
        """Restore the wrapped functions, including names under which the program imported them."""
        for forget in self._cancel_actions:
            forget()
        for holder, name, original, wrapper in reversed(self._replacements):
            if getattr(holder, name, None) is wrapper:
                setattr(holder, name, original)
        self._replace_imported_names({id(wrapper): original for _, _, original, wrapper in self._replacements})
        self._replacements.clear()
        self._cancel_actions.clear()

    def _replace_imported_names(self, changes: Mapping[int, Any]) -> None:
        """Replace a function under all names it was imported by (``from torch.nn.functional import ...``)."""
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or module.__name__.startswith(self._own_modules):
                continue
            for name, value in list(vars(module).items()):
                if id(value) in changes:
                    with suppress_errors(Exception):
                        setattr(module, name, changes[id(value)])
