"""Implementations compared in the benchmarks: cudnn-frontend, our module with its API, a C loop, torch's attention."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.problems import Direction
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.execution.executable import Bound
from cudnn_backend_py.execution.timing import Batch, make_repeated_batch
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.native.fast_call import load_compiled_library

from .frontend_graph import build_frontend_attention

__all__ = [
    "FrontendContender",
    "compute_forward_outputs",
    "load_frontend",
    "make_batch_with_new_arguments",
    "make_c_execute_loop_batch",
    "make_torch_packed_attention",
]

MakeArguments = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def compute_forward_outputs(p: Attention, buffers: Mapping[str, Any]) -> None:
    """Compute ``o`` and ``stats`` for a backward pass with this package's torch operator."""
    q, k, v = (buffers[name] for name in "qkv")
    o, stats = torch_ops.attention(q, k, v, causal=p.causal, return_stats=True)
    buffers["o"].copy_(o)
    buffers["stats"].copy_(stats)


class FrontendContender:
    """Builds graphs, and calls of them to time, with cudnn-frontend or this package's module with the same API."""

    def __init__(self, cudnn: Any) -> None:
        self.cudnn = cudnn
        self.handle = cudnn.create_handle()

    def build(self, problem: Attention, direction: Direction) -> tuple[Any, dict[str, Any]]:
        """Return a built attention graph, and its tensors by the names that this package's graphs use."""
        problem = replace(problem, stats=direction == "forward")
        return build_frontend_attention(self.cudnn, self.handle, problem, direction)

    def call(self, graph: Any, tensors: Mapping[str, Any]) -> MakeArguments:
        """Return a function that makes the arguments of ``graph.execute`` from buffers by name, passed as a dict."""
        workspace = _make_workspace(graph)
        return lambda buffers: ({made: buffers[name] for name, made in tensors.items()}, workspace, self.handle)

    def make_ordered_arguments_function(self, graph: Any, tensors: Mapping[str, Any]) -> MakeArguments | None:
        """Return a function that makes execute's arguments with buffers as a tuple; None if execute takes no tuple."""
        if "tensor_uids" not in inspect.signature(graph.execute).parameters:
            return None
        workspace, uids = _make_workspace(graph), tuple(made.get_uid() for made in tensors.values())
        unused = (None, None, None)  # overrides of uids, dims and strides
        return lambda buffers: (tuple(buffers[name] for name in tensors), workspace, self.handle, *unused, uids)

    def contenders(
        self, name: str, graph: Any, tensors: Mapping[str, Any], sets: Sequence[Mapping[str, Any]]
    ) -> dict[str, Batch]:
        """Return the calls of a graph to time: buffers as a dict or a tuple, the same or new ones in each call."""
        forms = {
            name: self.call(graph, tensors),
            f"{name}, ordered": self.make_ordered_arguments_function(graph, tensors),
        }
        found: dict[str, Batch] = {}
        for form, arguments in forms.items():
            if arguments is not None:
                found[f"{form}, same"] = make_repeated_batch(partial(graph.execute, *arguments(sets[0])))
                found[f"{form}, fresh"] = make_batch_with_new_arguments(graph.execute, [arguments(one) for one in sets])
        return found


def _make_workspace(graph: Any) -> Any:
    import torch

    return torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)


def load_frontend(folder: str | None) -> tuple[FrontendContender | None, str]:
    """Return cudnn-frontend, or None, and a note on its version or its absence."""
    try:
        if folder:
            sys.path.insert(0, folder)
        cudnn = importlib.import_module("cudnn")
        if "cudnn_backend_py" in str(cudnn.__file__):
            raise ImportError("the module cudnn is this package's own")
        frontend = FrontendContender(cudnn)
    except Exception as error:  # any error of importing it or of creating its handle
        return None, f"not measured: {error}"
    return frontend, f"{frontend.cudnn.__version__}, cuDNN {frontend.cudnn.backend_version()}"


def make_torch_packed_attention(**more: Any) -> Callable[..., Any] | None:
    """Return torch's causal attention of packed tokens with grouped heads (GQA); None if this torch lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    names = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
    grouped = {"enable_gqa": True} if "enable_gqa" in names else {}
    return partial(varlen_attn, **causal, **grouped, **more) if set(more) <= set(names) else None


def make_batch_with_new_arguments(call: Callable[..., Any], sets: Sequence[Any]) -> Batch:
    """Return batches of calls, each with a new set of arguments."""

    def run_batch(batch: int, calls: int) -> float:
        mine = sets[batch * calls : (batch + 1) * calls]
        start = time.perf_counter_ns()
        for arguments in mine:
            call(*arguments)
        return time.perf_counter_ns() - start

    return run_batch


def make_c_execute_loop_batch(bound: Bound) -> Batch:
    """Return a C loop that executes the plan with one variant pack; its time per call is a lower bound for Python."""
    function, (handle, plan, pack) = bound.native
    execute = ctypes.cast(function, ctypes.c_void_p)

    def run_c_loop(_batch: int, calls: int) -> float:
        nanoseconds = int(load_compiled_library().cudnn_backend_py_loop(execute, handle, plan, pack, calls))
        if nanoseconds < 0:
            raise CudnnBackendError(f"cudnnBackendExecute answered {-nanoseconds} in the C loop", code="bench-c-loop")
        return nanoseconds

    return run_c_loop
