"""``random_graph``: a graph of any family from a seed."""

from __future__ import annotations

from collections.abc import Callable

from cudnn_backend_py.errors import GraphError, UsageError
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.system.version import VersionTuple

from .families.attention import (
    composite_attention,
    composite_attention_backward,
    unified_attention,
    unified_attention_backward,
)
from .families.convolutions import convolution
from .families.elementwise import any_mode, pointwise, reduction
from .families.fusions import fusion
from .families.norms import batch_norm, norm, norm_backward
from .families.others import block_scale, experts, moves, resample, rope
from .families.products import matmul
from .random_builder import RandomGraphBuilder

__all__ = ["ATTENTION", "FAMILIES", "random_graph"]

FAMILIES: dict[str, Callable[[RandomGraphBuilder], Graph | None]] = {
    "convolution": convolution,
    "matmul": matmul,
    "pointwise": pointwise,
    "mode": any_mode,
    "reduction": reduction,
    "norm": norm,
    "norm backward": norm_backward,
    "batch norm": batch_norm,
    "resample": resample,
    "moves": moves,
    "experts": experts,
    "block scale": block_scale,
    "rope": rope,
    "fusion": fusion,
    "attention": composite_attention,
    "attention backward": composite_attention_backward,
    "sdpa": unified_attention,
    "sdpa backward": unified_attention_backward,
}
"""The function of each family, which adds its operations to a builder, or returns a graph."""

ATTENTION = ("attention", "attention backward", "sdpa", "sdpa backward")
_TRIES = 100


def random_graph(seed: int, family: str | None = None, *, version: VersionTuple | None = None) -> Graph:
    """Return a small random graph that cuDNN may support or refuse; equal arguments give the same graph.

    Parameters
    ----------
    family
        One of :data:`FAMILIES`; any by default.
    version
        The judging cuDNN, such as (9, 19, 0): operations that it lacks are left out, and known issues of
        attention on sm_90 are avoided. None for the newest.

    Raises
    ------
    UsageError
        ``unknown-family``.
    """
    if family is not None and family not in FAMILIES:
        raise UsageError(f"no family is called {family!r}, known are {', '.join(FAMILIES)}", code="unknown-family")
    for number in range(_TRIES):
        builder = RandomGraphBuilder(family or "any", seed if not number else seed + number * 1_000_003, version)
        write = FAMILIES[family or builder.choose(*FAMILIES)]
        try:
            made = write(builder)
            return builder.g.graph() if made is None else made
        except GraphError:  # the random parts do not fit together; try the next
            continue
    raise AssertionError(f"no graph of {family} fits in {_TRIES} draws from {seed}")
