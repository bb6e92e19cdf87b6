"""Record a test's use of the module ``cudnn``: build steps that it reached, executions, and raised exceptions."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from cudnn_backend_py.frontend.enums import to_data_type

__all__ = ["BUILD_STEPS", "MAX_RECORDED_ERRORS", "Recorder"]

BUILD_STEPS = ("validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans", "build")
EXECUTE_METHODS = ("execute", "execute_plan_at_index", "_execute", "_execute_plan_at_index", "_execute_with_ptrs",
            "_execute_with_raw_ptrs")  # fmt: skip
PRIVATE_METHODS = ("_make_tensor", "_set_data_type", "_prepare_variant_pack_template")
MODULE_FUNCTIONS = ("create_device_properties", "create_kernel_cache")
EXCEPTION_BASES = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    NotImplementedError,
    AssertionError,
    ImportError,
    OSError,
)
MAX_RECORDED_ERRORS = 200
MAX_RECORDED_GRAPHS = 4


class Recorder:
    """Wraps the classes of one ``cudnn`` module and records events since :meth:`reset`.

    Parameters
    ----------
    cudnn
        The module under test.
    instead_of_execute
        Function to call instead of the graph's execute methods; None to execute.
    """

    def __init__(self, cudnn: ModuleType, instead_of_execute: Callable[[], None] | None = None) -> None:
        self.cudnn = cudnn
        self.instead_of_execute = instead_of_execute
        self._thread_state = threading.local()
        self._wrapped_classes: set[type] = set()
        self.reset()
        self._wrap_class(cudnn.pygraph)
        self._wrap_class(getattr(cudnn, "tensor", None))
        self._wrap_class(getattr(getattr(cudnn, "graph_types", None), "Tensor", None))
        lowered = getattr(getattr(cudnn, "_pybind_module", None), "backend_graph", None)
        names = () if lowered is None else tuple(vars(lowered).keys() - set(dir(cudnn.pygraph)))
        self._wrap_methods(lowered, names)  # calls that cudnn-frontend forwards to its compiled graph
        self._wrap_methods(getattr(cudnn, "Graph", None), ("__init__", "__enter__", "__exit__", "__call__"))
        for name in MODULE_FUNCTIONS:
            if hasattr(cudnn, name):
                setattr(cudnn, name, self._wrap_function(getattr(cudnn, name), name))

    def reset(self) -> None:
        """Discard everything recorded for the previous test."""
        self.stage = ""
        self.execution_count = 0
        self.graphs: list[Any] = []
        self.errors: list[dict[str, str]] = []
        self.error_count = 0
        self.errors_since_execute = 0
        self._recorded_exceptions: list[BaseException] = []

    def _wrap_class(self, cls: Any) -> None:
        if not inspect.isclass(cls) or cls in self._wrapped_classes:
            return
        self._wrapped_classes.add(cls)
        names = [name for name in dir(cls) if not name.startswith("_") or name in (*EXECUTE_METHODS, *PRIVATE_METHODS)]
        self._wrap_methods(cls, (*names, "__init__"))

    def _wrap_methods(self, cls: Any, names: tuple[str, ...]) -> None:
        if not inspect.isclass(cls):
            return
        for name in names:
            if isinstance(inspect.getattr_static(cls, name, None), (property, staticmethod, classmethod)):
                continue
            method = getattr(cls, name, None)
            if inspect.isroutine(method):
                setattr(cls, name, self._wrap_function(method, name if cls.__name__ != "Graph" else f"Graph.{name}"))

    def _wrap_function(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call_and_record(*args: Any, **kwargs: Any) -> Any:
            if name in EXECUTE_METHODS:
                return self._record_execution(function, name, args, kwargs)
            return self._call_and_record_errors(function, name, args, kwargs)

        return call_and_record

    def _record_execution(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if getattr(self._thread_state, "executing", False):
            return function(*args, **kwargs)
        self.stage, self.errors_since_execute = "execute", 0
        self.execution_count += 1
        if len(self.graphs) < MAX_RECORDED_GRAPHS:
            self.graphs.append(_inspect_graph(args[0]))
        if self.instead_of_execute is not None:
            return self.instead_of_execute()
        self._thread_state.executing = True
        try:
            return self._call_and_record_errors(function, name, args, kwargs)
        finally:
            self._thread_state.executing = False

    def _call_and_record_errors(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if getattr(self._thread_state, "depth", 0):
            return function(*args, **kwargs)
        if name in BUILD_STEPS:
            self.stage = name
        self._thread_state.depth = 1
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self._record_error(name, error)
            raise
        finally:
            self._thread_state.depth = 0
        self._wrap_tensor_class(result)
        return result

    def _wrap_tensor_class(self, result: Any) -> None:
        """Wrap the class of tensors when a call returns the first tensor."""
        for one in result if isinstance(result, (list, tuple)) else (result,):
            if type(one) not in self._wrapped_classes and hasattr(type(one), "set_output"):
                self._wrap_class(type(one))

    def _record_error(self, call: str, error: Exception) -> None:
        if any(error is known for known in self._recorded_exceptions):
            return
        self._recorded_exceptions.append(error)
        self.error_count += 1
        self.errors_since_execute += 1
        if len(self.errors) < MAX_RECORDED_ERRORS:
            text = str(error).strip().splitlines()
            self.errors.append(
                {
                    "call": call,
                    "type": type(error).__name__,
                    "kind": self.format_exception_base_classes(error),
                    "text": text[0][:300] if text else "",
                }
            )

    def format_exception_base_classes(self, error: BaseException) -> str:
        """Return the names of the built-in base classes by which an error can be caught, joined by ``+``."""
        unsupported = getattr(self.cudnn, "cudnnGraphNotSupportedError", None)
        kinds = ["cudnnGraphNotSupportedError"] if unsupported and isinstance(error, unsupported) else []
        kinds += [base.__name__ for base in EXCEPTION_BASES if isinstance(error, base)]
        if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
            kinds.append("RuntimeError")
        return "+".join(kinds) or "other"


def _inspect_graph(graph: Any) -> Any:
    """Return a graph's nodes, with ports and parameters, and its tensors as plain data."""
    return _to_plain_data(graph.inspect()) if hasattr(graph, "inspect") else None


def _to_plain_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_plain_data(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain_data(one) for one in value]
    text = str(value)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and text.lstrip("-").isdigit():  # also an enum of a test; enums of cudnn have names
        return int(value)
    if text.startswith("torch."):  # cudnn-frontend shows a type as it was given
        return str(to_data_type(text))
    return text if isinstance(value, str) or hasattr(value, "name") else type(value).__name__
