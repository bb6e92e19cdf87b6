"""Random graphs of any family, reproducible from a seed."""

from __future__ import annotations

from collections.abc import Callable

from cudnn_backend_py.errors import GraphError, UsageError
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.system.version import VersionTuple

from .families.attention import (
    make_composite_attention,
    make_composite_attention_backward,
    make_unified_attention,
    make_unified_attention_backward,
)
from .families.convolutions import add_convolution
from .families.elementwise import add_pointwise_graph, add_pointwise_operation_of_any_mode, add_reduction_graph
from .families.fusions import add_fusion
from .families.norms import add_norm, add_norm_backward, add_random_part_of_batch_norm
from .families.others import (
    add_block_scaled_matmul,
    add_data_movement,
    add_expert_matmul,
    add_resample,
    add_rotary_embedding,
)
from .families.products import add_matmul
from .random_builder import RandomGraphBuilder

__all__ = ["ATTENTION_FAMILIES", "GRAPH_FAMILIES", "make_random_graph"]

GRAPH_FAMILIES: dict[str, Callable[[RandomGraphBuilder], Graph | None]] = {
    "convolution": add_convolution,
    "matmul": add_matmul,
    "pointwise": add_pointwise_graph,
    "mode": add_pointwise_operation_of_any_mode,
    "reduction": add_reduction_graph,
    "norm": add_norm,
    "norm backward": add_norm_backward,
    "batch norm": add_random_part_of_batch_norm,
    "resample": add_resample,
    "moves": add_data_movement,
    "experts": add_expert_matmul,
    "block scale": add_block_scaled_matmul,
    "rope": add_rotary_embedding,
    "fusion": add_fusion,
    "attention": make_composite_attention,
    "attention backward": make_composite_attention_backward,
    "sdpa": make_unified_attention,
    "sdpa backward": make_unified_attention_backward,
}
"""The function of each family, which adds its operations to a builder, or returns a graph."""

ATTENTION_FAMILIES = ("attention", "attention backward", "sdpa", "sdpa backward")
_MAX_TRIES = 100


def make_random_graph(seed: int, family: str | None = None, *, version: VersionTuple | None = None) -> Graph:
    """Return a small random graph that cuDNN may support or refuse; equal arguments give the same graph.

    Parameters
    ----------
    family
        One of :data:`GRAPH_FAMILIES`; any by default.
    version
        The judging cuDNN, such as (9, 19, 0): operations that it lacks are left out, and known issues of
        attention on sm_90 are avoided. None for the newest.

    Raises
    ------
    UsageError
        ``unknown-family``.
    """
    if family is not None and family not in GRAPH_FAMILIES:
        raise UsageError(
            f"no family is called {family!r}, known are {', '.join(GRAPH_FAMILIES)}", code="unknown-family"
        )
    for number in range(_MAX_TRIES):
        builder = RandomGraphBuilder(family or "any", seed if not number else seed + number * 1_000_003, version)
        write = GRAPH_FAMILIES[family or builder.choose(*GRAPH_FAMILIES)]
        try:
            made = write(builder)
            return builder.g.graph() if made is None else made
        except GraphError:  # these random choices are no valid graph; try others
            continue
    raise AssertionError(f"no graph of {family} fits in {_MAX_TRIES} draws from {seed}")
