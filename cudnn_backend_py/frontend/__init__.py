"""cudnn-frontend's Python module, implemented by this package: programs with ``import cudnn`` run unchanged.

Nothing takes the place of ``cudnn`` by itself. Either the program is started with
``python -m cudnn_backend_py.frontend SCRIPT`` (or ``-m pytest ...``), or it calls :func:`install` first::

    import cudnn_backend_py.frontend as cudnn          # under its own name
    cudnn_backend_py.frontend.install()                # or as "cudnn", for modules that import that

Every graph is translated onto this package's graph values; what is refused raises
:class:`cudnnGraphNotSupportedError`, whose ``verdict`` explains itself. CuTe-DSL kernels and other engines that are not
cuDNN's backend are not offered and raise ``NotImplementedError``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..system.gc_pause import pause_garbage_collection

with pause_garbage_collection():
    from .context import GraphContext
    from .enums import (
        FRONTEND_KNOB_TYPE_BASE,
        NodeType,
        attention_implementation,
        behavior_note,
        build_plan_policy,
        convolution_mode,
        cuda_graph_retention,
        data_type,
        diagonal_alignment,
        heur_mode,
        is_frontend_knob_type,
        knob_type,
        moe_grouped_matmul_mode,
        norm_forward_phase,
        numerical_note,
        padding_mode,
        reduction_mode,
        resample_mode,
        reshape_mode,
        rng_distribution,
        scalar_type,
        tensor_reordering,
    )
    from .errors import cudnnGraphNotSupportedError
    from .graphs import pygraph
    from .handles import (
        DeviceInfo,
        create_device_properties,
        create_handle,
        create_kernel_cache,
        destroy_handle,
        get_stream,
        set_stream,
    )
    from .handles import FrontendHandle as Handle
    from .kernels import KERNELS
    from .ops.node import FrontendKnownIssueWarning
    from .plan_list import knob
    from .recorded import Node
    from .tensors import tensor
    from .tensors import tensor as Tensor

if TYPE_CHECKING:
    from .as_cudnn import install, uninstall
    from .decorators import graph, graph_cache, jit
    from .wrapper import Graph

handle = Handle

__all__ = [
    "FRONTEND_KNOB_TYPE_BASE",
    "DeviceInfo",
    "FrontendKnownIssueWarning",
    "Graph",
    "GraphContext",
    "Handle",
    "Node",
    "NodeType",
    "Tensor",
    "attention_implementation",
    "backend_version",
    "backend_version_string",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "create_device_properties",
    "create_handle",
    "create_kernel_cache",
    "cuda_graph_retention",
    "cudnnGraphNotSupportedError",
    "data_type",
    "destroy_handle",
    "diagonal_alignment",
    "get_last_error_string",
    "get_stream",
    "graph",
    "graph_cache",
    "handle",
    "heur_mode",
    "install",
    "is_frontend_knob_type",
    "jit",
    "knob",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "padding_mode",
    "pygraph",
    "reduction_mode",
    "resample_mode",
    "reshape_mode",
    "rng_distribution",
    "scalar_type",
    "sdpa_capabilities",
    "set_stream",
    "tensor",
    "tensor_reordering",
    "uninstall",
]

__version__ = "1.32.0"  # of cudnn-frontend, whose names and behaviour these are


def backend_version() -> int:
    """Return the version of the loaded cuDNN as one number, 91900 for 9.19.0. C: ``cudnnGetVersion``."""
    from ..native import library

    return library().version.number


def backend_version_string() -> str:
    """Return the version of the loaded cuDNN as text, ``9.19.0``."""
    from ..native import library

    return library().version_text


def get_last_error_string() -> str:
    """Return cuDNN's last-error text of this thread and clear it. C: ``cudnnGetLastErrorString``."""
    from ..native import capi

    return str(capi.cudnnGetLastErrorString())


def sdpa_capabilities() -> frozenset[str]:
    """Return the packed layouts of cudnn-frontend's own attention kernels: none, as they are not included here."""
    return frozenset()


class _KernelNotOfferedError(NotImplementedError, AttributeError):
    """Raised on use of a cudnn-frontend kernel that this package lacks; an AttributeError, so ``hasattr`` is False."""


#: What a program that builds graphs need not have is imported when it is first used.
_LAZY_MODULES = {
    "Graph": "wrapper",
    "graph": "decorators",
    "graph_cache": "decorators",
    "install": "as_cudnn",
    "jit": "decorators",
    "uninstall": "as_cudnn",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return getattr(import_module(f".{_LAZY_MODULES[name]}", __name__), name)
    from .as_cudnn import SUBMODULES

    if name in SUBMODULES:
        return import_module(SUBMODULES[name])
    if name == "_pybind_module":  # cudnn-frontend's compiled part: what it has of graphs is here
        return import_module(__name__)
    if name == "backend_graph":  # its name of the graph there
        return pygraph
    if name in KERNELS:
        raise _KernelNotOfferedError(
            f"cudnn.{name} is a kernel of cudnn-frontend's own (CuTe DSL or another engine), not of cuDNN's backend: "
            "this module offers the backend's graphs"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES})
