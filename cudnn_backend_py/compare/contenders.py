"""Contenders of this package's plans: cudnn-frontend, our module of its names, torch; and the buffers of all."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .. import torch_ops
from ..errors import CudnnBackendError
from ..execution.executable import Bound
from ..execution.plan_pool import shared_pool
from ..native.fast_call import compiled_library
from ..torch_ops.extension import EXTENSION
from .frontend_graph import build
from .shapes import Direction, Shape

__all__ = [
    "Frontend",
    "c_loop",
    "differentiate",
    "fill_forward",
    "flash_attn_calls",
    "load_operators",
    "make_buffers",
    "open_frontend",
    "settle",
    "torch_calls",
    "torch_varlen",
]


def make_buffers(shape: Shape, direction: Direction, sets: int = 1) -> list[dict[str, Any]]:
    """Return sets of torch tensors by their names in our graphs, none of which share memory; the first has values."""
    import torch

    kind = torch.bfloat16 if shape.bf16 else torch.float16
    heads = dict.fromkeys(("k", "v", "dk", "dv"), shape.kv_heads or shape.heads)
    names = ("q", "k", "v", "o") if direction == "forward" else ("q", "k", "v", "o", "do", "dq", "dk", "dv")
    wholes = {}
    for name in names:
        seq = shape.seq_kv if name in heads and shape.seq_kv else shape.seq
        size = (sets, shape.batch, seq, heads.get(name, shape.heads), shape.head_dim)
        wholes[name] = torch.zeros(size, dtype=kind, device="cuda")
    wholes["stats"] = torch.zeros((sets, shape.batch, shape.heads, shape.seq, 1), device="cuda")
    for name in ("q", "k", "v", "do"):
        if name in wholes:
            wholes[name][0].normal_()
    return [
        {name: whole[index] if name == "stats" else whole[index].transpose(1, 2) for name, whole in wholes.items()}
        for index in range(sets)
    ]


def fill_forward(shape: Shape, buffers: Mapping[str, Any]) -> None:
    """Write ``o`` and ``stats`` for a backward pass by torch's operator of this package."""
    q, k, v = (buffers[name] for name in "qkv")
    o, stats = torch_ops.attention(q, k, v, causal=shape.causal, return_stats=True)
    buffers["o"].copy_(o)
    buffers["stats"].copy_(stats)


class Frontend:
    """cudnn-frontend, or this package under its names: graphs, and calls on them."""

    def __init__(self, cudnn: Any) -> None:
        self.cudnn = cudnn
        self.handle = cudnn.create_handle()

    def build(self, shape: Shape, direction: Direction) -> tuple[Any, dict[str, Any]]:
        """Return a built graph and its tensors, by the names of our graphs."""
        return build(self.cudnn, self.handle, shape, direction)

    def call(self, graph: Any, tensors: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        """Return what makes the arguments of ``graph.execute`` from buffers by name."""
        import torch

        workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
        return lambda buffers: ({made: buffers[name] for name, made in tensors.items()}, workspace, self.handle)


def open_frontend(folder: str | None) -> tuple[Frontend | None, str]:
    """Return cudnn-frontend, or None, and what there is to say of it."""
    try:
        if folder:
            sys.path.insert(0, folder)
        cudnn = importlib.import_module("cudnn")
        if "cudnn_backend_py" in str(cudnn.__file__):
            raise ImportError("the module cudnn is this package's own")
        frontend = Frontend(cudnn)
    except Exception as error:  # whatever its import or its handle raises
        return None, f"not measured: {error}"
    return frontend, f"{frontend.cudnn.__version__}, cuDNN {frontend.cudnn.backend_version()}"


TORCH_BACKENDS = {
    "torch cudnn": "CUDNN_ATTENTION",
    "torch flash": "FLASH_ATTENTION",
    "torch efficient": "EFFICIENT_ATTENTION",
    "torch math": "MATH",
}
FLASH_ATTN = {"flash_attn": "flash-attn", "flash_attn_interface": "flash-attn 3"}
FUSED = tuple(TORCH_BACKENDS)[:3]


def torch_calls(
    shape: Shape, direction: Direction, buffers: Mapping[str, Any], names: Sequence[str] = FUSED
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, call, context to make it in) for each backend of torch that supports the problem."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (buffers[name].detach().clone() for name in "qkv")
    for name in names:
        backend = TORCH_BACKENDS[name]
        if not hasattr(SDPBackend, backend):
            continue
        context = partial(sdpa_kernel, getattr(SDPBackend, backend))
        call = partial(sdpa, q, k, v, is_causal=shape.causal, enable_gqa=bool(shape.kv_heads))
        try:
            with context(), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of torch, why a backend is not for this problem
                made = differentiate(call, (q, k, v), buffers, settled=False) if direction == "backward" else call
                made()
        except RuntimeError:  # that backend does not support the problem, or this GPU
            continue
        yield name, made, context


def flash_attn_calls(
    shape: Shape, direction: Direction, buffers: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (name, call) for each package of flash-attn that is installed and supports the problem."""
    for module, title in FLASH_ATTN.items():
        try:
            made = importlib.import_module(module)
        except ImportError:
            continue
        x = [buffers[name].transpose(1, 2).detach().clone() for name in "qkv"]
        call: Callable[[], Any] = partial(made.flash_attn_func, *x, causal=shape.causal)
        if direction == "backward":
            gradient = {"do": buffers["do"].transpose(1, 2)}
            call = differentiate(call, tuple(x), gradient, settled=False)
        try:
            call()
        except (RuntimeError, TypeError, AssertionError):  # it does not support the problem, or this GPU
            continue
        yield f"{title} {getattr(made, '__version__', '')}".strip(), call


def torch_varlen(**more: Any) -> Callable[..., Any] | None:
    """Return torch's attention of packed tokens, causal with shared heads; None where there is none that can."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    names = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
    grouped = {"enable_gqa": True} if "enable_gqa" in names else {}
    return partial(varlen_attn, **causal, **grouped, **more) if set(more) <= set(names) else None


def load_operators() -> str:
    """Have torch's operators and their compiled step ready, which a first process builds; return its state."""
    import torch

    torch_ops.attention(*(torch.zeros(1, 1, 64, 64, device="cuda", dtype=torch.half) for _ in range(3)))
    EXTENSION.wait()
    return EXTENSION.state


def settle(call: Callable[[], Any]) -> None:
    """Call it until plans that are built in the background have taken over, and the compiled step knows them."""
    for _ in range(2):
        for _ in range(10):
            call()
        shared_pool().wait()


def differentiate(
    call: Callable[[], Any], inputs: tuple[Any, ...], buffers: Mapping[str, Any], *, settled: bool = True
) -> Callable[[], Any]:
    """Return the backward pass of a call, whose forward pass is made now, by default after :func:`settle`."""
    import torch

    for x in inputs:
        x.requires_grad_(True)
    if settled:  # a call of another library builds nothing in the background
        settle(call)
    o = call()
    return partial(torch.autograd.grad, o, inputs, buffers["do"], retain_graph=True)


def c_loop(bound: Bound) -> Callable[[int, int], float]:
    """Return the floor: a C loop over the plan, the handle and the variant pack of a bound call."""
    function, (handle, plan, pack) = bound.native
    execute = ctypes.cast(function, ctypes.c_void_p)

    def run(_batch: int, calls: int) -> float:
        nanoseconds = int(compiled_library().cudnn_backend_py_loop(execute, handle, plan, pack, calls))
        if nanoseconds < 0:
            raise CudnnBackendError(f"cudnnBackendExecute answered {-nanoseconds} in the C loop", code="bench-c-loop")
        return nanoseconds

    return run
