"""Measured graphs, as programs of cudnn-frontend build them, with either module. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .shapes import Direction, Shape

if TYPE_CHECKING:
    from ..graph.attention import Attention

__all__ = ["build", "build_ragged"]


def build(
    cudnn: Any, handle: Any, shape: Shape, direction: Direction, clock: Callable[[str], None] = lambda _: None
) -> tuple[Any, dict[str, Any]]:
    """Return a built graph and its tensors, by the names of our graphs.

    `cudnn` is cudnn-frontend's module or this package's; `clock` hears of each step.
    """
    kind = cudnn.data_type.BFLOAT16 if shape.bf16 else cudnn.data_type.HALF
    graph = cudnn.pygraph(
        io_data_type=kind,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )

    def facts(name: str) -> dict[str, list[int]]:
        heads = shape.kv_heads or shape.heads if name in ("k", "v", "dk", "dv") else shape.heads
        s, d = shape.seq, shape.head_dim
        return {"dim": [shape.batch, heads, s, d], "stride": [s * heads * d, d, heads * d, 1]}

    rows = {
        "dim": [shape.batch, shape.heads, shape.seq, 1],
        "stride": [shape.heads * shape.seq, shape.seq, 1, 1],
    }
    tensors = {name: graph.tensor(name=name, **facts(name)) for name in "qkv"}
    options = {"attn_scale": shape.head_dim**-0.5, "use_causal_mask": shape.causal}
    if direction == "forward":
        tensors["o"], tensors["stats"] = graph.sdpa(**tensors, generate_stats=True, **options)
        outputs = {"o": facts("o"), "stats": rows}
    else:
        tensors |= {name: graph.tensor(name=name, **facts(name)) for name in ("o", "do")}
        tensors["stats"] = graph.tensor(name="stats", data_type=cudnn.data_type.FLOAT, **rows)
        given = {"dO" if name == "do" else name: made for name, made in tensors.items()}
        tensors |= zip(("dq", "dk", "dv"), graph.sdpa_backward(**given, **options), strict=True)
        outputs = {name: facts(name) for name in ("dq", "dk", "dv")}
    for name, where in outputs.items():
        tensors[name].set_output(True).set_dim(where["dim"]).set_stride(where["stride"])
        if name == "stats":
            tensors[name].set_data_type(cudnn.data_type.FLOAT)
    _build(cudnn, graph, clock)
    return graph, tensors


def build_ragged(cudnn: Any, handle: Any, problem: Attention) -> tuple[Any, dict[str, Any]]:
    """Return a built graph of a causal forward pass with statistics, all ragged, and its tensors."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    rows = {"stride": [1, 1, 1, 1], "data_type": cudnn.data_type.INT32}
    tensors = {}
    for name in ("seq_len_q", "seq_len_kv"):
        tensors[name] = graph.tensor(name=name, dim=[problem.batch, 1, 1, 1], **rows)
    for name in ("q", "k", "v", "o", "stats"):
        offset = tensors[f"ragged_{name}"] = graph.tensor(
            name=f"ragged_{name}", dim=[problem.batch + 1, 1, 1, 1], **rows
        )
        if name in "qkv":
            dims, strides = list(problem.dims(name)), list(problem.strides(name))
            tensors[name] = graph.tensor(name=name, dim=dims, stride=strides).set_ragged_offset(offset)
    tensors["o"], tensors["stats"] = graph.sdpa(
        **{name: tensors[name] for name in ("q", "k", "v", "seq_len_q", "seq_len_kv")},
        generate_stats=True,
        attn_scale=problem.head_dim**-0.5,
        use_padding_mask=True,
        use_causal_mask=True,
    )
    for name in ("o", "stats"):
        dims, strides = list(problem.dims(name)), list(problem.strides(name))
        tensors[name].set_output(True).set_dim(dims).set_stride(strides)
        tensors[name].set_ragged_offset(tensors[f"ragged_{name}"])
    tensors["stats"].set_data_type(cudnn.data_type.FLOAT)
    _build(cudnn, graph)
    return graph, tensors


def _build(cudnn: Any, graph: Any, clock: Callable[[str], None] = lambda _: None) -> None:
    graph.validate()
    clock("validate")
    graph.build_operation_graph()
    clock("operation graph")
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    clock("heuristics")
    graph.build_plans()
    clock("build plans")
