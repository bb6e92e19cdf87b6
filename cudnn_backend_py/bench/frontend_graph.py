"""Measured graphs, as programs of cudnn-frontend build them, with either module. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .shapes import Direction, Shape

__all__ = ["build"]


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
    graph.validate()
    clock("validate")
    graph.build_operation_graph()
    clock("operation graph")
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    clock("heuristics")
    graph.build_plans()
    clock("build plans")
    return graph, tensors
