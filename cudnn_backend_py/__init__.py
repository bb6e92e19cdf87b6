"""Script and understand NVIDIA cuDNN's graph engine from Python.

Level 0 is the C API, one to one: :class:`Descriptor`, :mod:`capi`, the enums. Level 1 is graphs as values:
:class:`GraphBuilder`, :func:`explain`, :func:`build_plan`, :func:`execute`.

Importing this package loads no library; names are imported when first used. Types that a program seldom writes are
imported from their modules, such as :class:`~cudnn_backend_py.graph.Tensor`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# The public surface: name -> (module, name there), None for the module itself. Type checkers read the imports below
# instead, which tests/pure/test_lazy_imports.py holds equal; the rest is derived from this table.
_PUBLIC: dict[str, tuple[str, str | None]] = {
    "__version__": ("system.version", "__version__"),
    "Attr": ("generated.enums", "AttributeName"),
    "AttributeType": ("generated.enums", "AttributeType"),
    "DataType": ("generated.enums", "DataType"),
    "DescriptorType": ("generated.enums", "DescriptorType"),
    "HeurMode": ("generated.enums", "HeurMode"),
    "PointwiseMode": ("generated.enums", "PointwiseMode"),
    "Status": ("generated.enums", "Status"),
    "TensorReordering": ("generated.enums", "TensorReordering"),
    "enums": ("generated.enums", None),
    "CudnnBackendError": ("errors", "CudnnBackendError"),
    "CudnnStatusError": ("errors", "CudnnStatusError"),
    "EnvironmentNotReady": ("errors", "EnvironmentNotReady"),
    "GraphError": ("errors", "GraphError"),
    "NotSupported": ("errors", "NotSupported"),
    "UsageError": ("errors", "UsageError"),
    "Descriptor": ("native", "Descriptor"),
    "Handle": ("native", "Handle"),
    "capi": ("native.capi", None),
    "capture_log": ("native", "capture_log"),
    "library": ("native", "library"),
    "Graph": ("graph", "Graph"),
    "GraphBuilder": ("graph", "GraphBuilder"),
    "attention": ("graph.attention", None),
    "interpret": ("interpreter", "interpret"),
    "reference": ("interpreter.reference", None),
    "load_graph": ("graph", "load_graph"),
    "save_graph": ("graph", "save_graph"),
    "find_profile": ("target", "find_profile"),
    "open_target": ("target", "open_target"),
    "OperationGraph": ("plans.engine", "OperationGraph"),
    "build_plan": ("plans.plan", "build_plan"),
    "load_plan": ("plans.plan", "load_plan"),
    "execute": ("execution.run", "execute"),
    "build": ("plans.build", "build"),
    "plan": ("execution.plan", "plan"),
    "autotune": ("tuning.search", "autotune"),
    "explain": ("diagnose", "explain"),
}

# What is imported with a public name where it is there: it fills a hook of that, as known issues do of attention.
_FILLERS = {"attention": "known_issues"}

__all__ = [*_PUBLIC]

if TYPE_CHECKING:
    from .diagnose import explain as explain
    from .errors import CudnnBackendError as CudnnBackendError
    from .errors import CudnnStatusError as CudnnStatusError
    from .errors import EnvironmentNotReady as EnvironmentNotReady
    from .errors import GraphError as GraphError
    from .errors import NotSupported as NotSupported
    from .errors import UsageError as UsageError
    from .execution.plan import plan as plan
    from .execution.run import execute as execute
    from .generated import enums as enums
    from .generated.enums import AttributeName
    from .generated.enums import AttributeType as AttributeType
    from .generated.enums import DataType as DataType
    from .generated.enums import DescriptorType as DescriptorType
    from .generated.enums import HeurMode as HeurMode
    from .generated.enums import PointwiseMode as PointwiseMode
    from .generated.enums import Status as Status
    from .generated.enums import TensorReordering as TensorReordering
    from .graph import Graph as Graph
    from .graph import GraphBuilder as GraphBuilder
    from .graph import attention as attention
    from .graph import load_graph as load_graph
    from .graph import save_graph as save_graph
    from .interpreter import interpret as interpret
    from .interpreter import reference as reference
    from .native import Descriptor as Descriptor
    from .native import Handle as Handle
    from .native import capi as capi
    from .native import capture_log as capture_log
    from .native import library as library
    from .plans.build import build as build
    from .plans.engine import OperationGraph as OperationGraph
    from .plans.plan import build_plan as build_plan
    from .plans.plan import load_plan as load_plan
    from .system.version import __version__ as __version__
    from .target import find_profile as find_profile
    from .target import open_target as open_target
    from .tuning.search import autotune as autotune

    Attr = AttributeName


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        if name[:1].isupper():
            from .generated import enums

            if hasattr(enums, name):  # an import statement would not print the text of an AttributeError
                raise ImportError(f"import {name} from cudnn_backend_py.generated.enums, or use enums.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    found = import_module(f".{module}", __name__)
    if name in _FILLERS:
        from importlib.util import find_spec  # importing that takes a millisecond

        if find_spec(f".{_FILLERS[name]}", __name__):
            import_module(f".{_FILLERS[name]}", __name__)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def _draw_for_notebook(value: object) -> str | None:
    """Return a value as HTML or SVG for a notebook; None to show it as text (called by ``system/notebook.py``)."""
    try:
        from .diagnose.report.notebook import render_for_notebook
    except ModuleNotFoundError as error:
        if error.name == f"{__name__}.diagnose":  # nothing is there that draws
            return None
        raise
    return render_for_notebook(value)


def __dir__() -> list[str]:
    return sorted(__all__)


if os.environ.get("CUDNN_BACKEND_AUDIT"):  # of a program that is left as it is
    from .audit.look import audit_from_environment

    audit_from_environment()
