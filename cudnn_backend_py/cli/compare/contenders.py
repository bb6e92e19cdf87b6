"""Calls of torch's attention backends and flash-attn for comparisons, and the buffers of all implementations."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ... import torch_ops
from ...execution.plan_pool import get_shared_pool
from ...generated.enums import DataType
from ...graph.attention import Attention
from ...torch_ops.extension import EXTENSION
from .problems import Direction

__all__ = [
    "TORCH_BACKENDS",
    "make_buffers",
    "make_flash_attn_calls",
    "make_torch_calls",
    "prepare_backward_call",
    "prepare_torch_operators",
    "wait_for_background_plans",
]


def make_buffers(p: Attention, direction: Direction, sets: int = 1) -> list[dict[str, Any]]:
    """Return `sets` dicts of torch tensors, keyed by name in the graph; only the first has random values."""
    import torch

    kind = torch.bfloat16 if p.data_type is DataType.BFLOAT16 else torch.float16
    names = ("q", "k", "v", "o") if direction == "forward" else ("q", "k", "v", "o", "do", "dq", "dk", "dv")
    wholes = {}
    for name in names:
        b, h, s, d = p.dims(name)
        wholes[name] = torch.zeros((sets, b, s, h, d), dtype=kind, device="cuda")
    wholes["stats"] = torch.zeros((sets, *p.dims("stats")), device="cuda")
    for name in ("q", "k", "v", "do"):
        if name in wholes:
            wholes[name][0].normal_()
    return [
        {name: whole[index] if name == "stats" else whole[index].transpose(1, 2) for name, whole in wholes.items()}
        for index in range(sets)
    ]


TORCH_BACKENDS = {
    "torch cudnn": "CUDNN_ATTENTION",
    "torch flash": "FLASH_ATTENTION",
    "torch efficient": "EFFICIENT_ATTENTION",
    "torch math": "MATH",
}
FLASH_ATTN_PACKAGES = {"flash_attn": "flash-attn", "flash_attn_interface": "flash-attn 3"}
FUSED_TORCH_BACKENDS = tuple(TORCH_BACKENDS)[:3]


def make_torch_calls(
    p: Attention, direction: Direction, buffers: Mapping[str, Any], names: Sequence[str] = FUSED_TORCH_BACKENDS
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, call, context) for each torch backend that supports the problem."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (buffers[name].detach().clone() for name in "qkv")
    for name in names:
        backend = TORCH_BACKENDS[name]
        if not hasattr(SDPBackend, backend):
            continue
        context = partial(sdpa_kernel, getattr(SDPBackend, backend))
        call = partial(sdpa, q, k, v, is_causal=p.causal, enable_gqa=p.kv_heads != p.heads)
        try:
            with context(), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of torch, why a backend is not for this problem
                made = (
                    prepare_backward_call(call, (q, k, v), buffers, settled=False) if direction == "backward" else call
                )
                made()
        except RuntimeError:  # that backend does not support the problem, or this GPU
            continue
        yield name, made, context


def make_flash_attn_calls(
    p: Attention, direction: Direction, buffers: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (name, call) for each installed flash-attn package that supports the problem."""
    for module, title in FLASH_ATTN_PACKAGES.items():
        try:
            made = importlib.import_module(module)
        except ImportError:
            continue
        x = [buffers[name].transpose(1, 2).detach().clone() for name in "qkv"]
        call: Callable[[], Any] = partial(made.flash_attn_func, *x, causal=p.causal)
        if direction == "backward":
            gradient = {"do": buffers["do"].transpose(1, 2)}
            call = prepare_backward_call(call, tuple(x), gradient, settled=False)
        try:
            call()
        except (RuntimeError, TypeError, AssertionError):  # it does not support the problem, or this GPU
            continue
        yield f"{title} {getattr(made, '__version__', '')}".strip(), call


def prepare_torch_operators() -> str:
    """Prepare this package's torch operators and their compiled extension; return the extension's state as text."""
    import torch

    torch_ops.attention(*(torch.zeros(1, 1, 64, 64, device="cuda", dtype=torch.half) for _ in range(3)))
    EXTENSION.wait()
    return EXTENSION.state


def wait_for_background_plans(call: Callable[[], Any]) -> None:
    """Repeat a call until it uses the plans that a background thread builds for it."""
    for _ in range(2):
        for _ in range(10):
            call()
        get_shared_pool().wait()


def prepare_backward_call(
    call: Callable[[], Any], inputs: tuple[Any, ...], buffers: Mapping[str, Any], *, settled: bool = True
) -> Callable[[], Any]:
    """Run the forward pass of a call, and return a function that runs its backward pass.

    By default the forward pass first waits for plans that are built in the background."""
    import torch

    for x in inputs:
        x.requires_grad_(True)
    if settled:  # a call of another library builds nothing in the background
        wait_for_background_plans(call)
    o = call()
    return partial(torch.autograd.grad, o, inputs, buffers["do"], retain_graph=True)
