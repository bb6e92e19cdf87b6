"""Recorder of a test's use of the module ``cudnn``: stages of the calls, executes, and raised exceptions."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from cudnn_backend_py.frontend.enums import to_data_type

__all__ = ["MOST_ERRORS", "STAGES", "Recorder"]

STAGES = ("validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans", "build")
EXECUTES = ("execute", "execute_plan_at_index", "_execute", "_execute_plan_at_index", "_execute_with_ptrs",
            "_execute_with_raw_ptrs")  # fmt: skip
PRIVATE = ("_make_tensor", "_set_data_type", "_prepare_variant_pack_template")
FUNCTIONS = ("create_device_properties", "create_kernel_cache")
BASES = (ValueError, TypeError, AttributeError, LookupError, NotImplementedError, AssertionError, ImportError, OSError)
MOST_ERRORS = 200
MOST_GRAPHS = 4


class Recorder:
    """Wraps the classes of one ``cudnn`` module and records events since :meth:`start`.

    Parameters
    ----------
    cudnn
        The module under test.
    instead_of_execute
        Called instead of every execute of a graph; None to execute.
    """

    def __init__(self, cudnn: ModuleType, instead_of_execute: Callable[[], None] | None = None) -> None:
        self.cudnn = cudnn
        self.instead_of_execute = instead_of_execute
        self._calls = threading.local()
        self._wrapped: set[type] = set()
        self.start()
        self._wrap(cudnn.pygraph)
        self._wrap(getattr(cudnn, "tensor", None))
        self._wrap(getattr(getattr(cudnn, "graph_types", None), "Tensor", None))
        lowered = getattr(getattr(cudnn, "_pybind_module", None), "backend_graph", None)
        names = () if lowered is None else tuple(vars(lowered).keys() - set(dir(cudnn.pygraph)))
        self._wrap_some(lowered, names)  # calls that cudnn-frontend forwards to its compiled graph
        self._wrap_some(getattr(cudnn, "Graph", None), ("__init__", "__enter__", "__exit__", "__call__"))
        for name in FUNCTIONS:
            if hasattr(cudnn, name):
                setattr(cudnn, name, self._watch(getattr(cudnn, name), name))

    def start(self) -> None:
        """Forget the previous test."""
        self.stage = ""
        self.executes = 0
        self.graphs: list[Any] = []
        self.errors: list[dict[str, str]] = []
        self.errors_in_all = 0
        self.errors_since_execute = 0
        self._seen: list[BaseException] = []

    def _wrap(self, cls: Any) -> None:
        if not inspect.isclass(cls) or cls in self._wrapped:
            return
        self._wrapped.add(cls)
        names = [name for name in dir(cls) if not name.startswith("_") or name in (*EXECUTES, *PRIVATE)]
        self._wrap_some(cls, (*names, "__init__"))

    def _wrap_some(self, cls: Any, names: tuple[str, ...]) -> None:
        if not inspect.isclass(cls):
            return
        for name in names:
            if isinstance(inspect.getattr_static(cls, name, None), (property, staticmethod, classmethod)):
                continue
            method = getattr(cls, name, None)
            if inspect.isroutine(method):
                setattr(cls, name, self._watch(method, name if cls.__name__ != "Graph" else f"Graph.{name}"))

    def _watch(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in EXECUTES:
                return self._execute(function, name, args, kwargs)
            return self._call(function, name, args, kwargs)

        return call

    def _execute(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if getattr(self._calls, "executing", False):
            return function(*args, **kwargs)
        self.stage, self.errors_since_execute = "execute", 0
        self.executes += 1
        if len(self.graphs) < MOST_GRAPHS:
            self.graphs.append(_picture(args[0]))
        if self.instead_of_execute is not None:
            return self.instead_of_execute()
        self._calls.executing = True
        try:
            return self._call(function, name, args, kwargs)
        finally:
            self._calls.executing = False

    def _call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if getattr(self._calls, "depth", 0):
            return function(*args, **kwargs)
        if name in STAGES:
            self.stage = name
        self._calls.depth = 1
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self._note(name, error)
            raise
        finally:
            self._calls.depth = 0
        self._wrap_new(result)
        return result

    def _wrap_new(self, result: Any) -> None:
        """Wrap the class of tensors when the first one appears."""
        for one in result if isinstance(result, (list, tuple)) else (result,):
            if type(one) not in self._wrapped and hasattr(type(one), "set_output"):
                self._wrap(type(one))

    def _note(self, call: str, error: Exception) -> None:
        if any(error is known for known in self._seen):
            return
        self._seen.append(error)
        self.errors_in_all += 1
        self.errors_since_execute += 1
        if len(self.errors) < MOST_ERRORS:
            text = str(error).strip().splitlines()
            self.errors.append(
                {
                    "call": call,
                    "type": type(error).__name__,
                    "kind": self.kind(error),
                    "text": text[0][:300] if text else "",
                }
            )

    def kind(self, error: BaseException) -> str:
        """Return the base classes of the error, joined by ``+``, by which ``except`` clauses catch it."""
        unsupported = getattr(self.cudnn, "cudnnGraphNotSupportedError", None)
        kinds = ["cudnnGraphNotSupportedError"] if unsupported and isinstance(error, unsupported) else []
        kinds += [base.__name__ for base in BASES if isinstance(error, base)]
        if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
            kinds.append("RuntimeError")
        return "+".join(kinds) or "other"


def _picture(graph: Any) -> Any:
    """Return a graph's description of itself, as plain data: its nodes with ports and parameters, its tensors."""
    return _plain(graph.inspect()) if hasattr(graph, "inspect") else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    text = str(value)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and text.lstrip("-").isdigit():  # an enum of a program, too; enums of cudnn have names
        return int(value)
    if text.startswith("torch."):  # cudnn-frontend shows a type in its given form
        return str(to_data_type(text))
    return text if isinstance(value, str) or hasattr(value, "name") else type(value).__name__
