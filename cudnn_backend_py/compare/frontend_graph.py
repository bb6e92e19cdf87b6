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


def build_ragged(
    cudnn: Any, handle: Any, problem: Attention, direction: Direction = "forward"
) -> tuple[Any, dict[str, Any]]:
    """Return a built graph of sequences with lengths, ragged or with K and V in pages, and its tensors."""
    p = problem
    graph = cudnn.pygraph(
        io_data_type=getattr(cudnn.data_type, p.data_type.name),
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    tensors: dict[str, Any] = {}

    def add_numbers(name: str, *dims: int) -> Any:
        tensors[name] = graph.tensor(
            name=name, dim=list(dims), stride=[dims[2], 1, 1, 1], data_type=cudnn.data_type.INT32
        )
        return tensors[name]

    def offset_of(name: str) -> Any:
        """Return where the sequences of a tensor begin; a gradient lies like what it is of."""
        owner = f"ragged_{name.removeprefix('d')}"
        return tensors.get(owner) or add_numbers(owner, p.batch + 1, 1, 1, 1)

    def add(name: str) -> None:
        kind = {"data_type": cudnn.data_type.FLOAT} if name == "stats" else {}
        made = graph.tensor(name=name, dim=list(p.dims(name)), stride=list(p.strides(name)), **kind)
        tensors[name] = made.set_ragged_offset(offset_of(name)) if p.ragged else made

    for name in ("seq_len_q", "seq_len_kv"):
        add_numbers(name, p.batch, 1, 1, 1)
    for name in ("q", "k", "v", *(("o", "do", "stats") if direction == "backward" else ())):
        add(name)
    options: dict[str, Any] = {"attn_scale": p.head_dim**-0.5, "use_padding_mask": True, "use_causal_mask": p.causal}
    if p.page_size is not None:
        for name in "kv":
            options[f"paged_attention_{name}_table"] = add_numbers(
                f"page_table_{name}", p.batch, 1, p.pages_per_sequence, 1
            )
        options["paged_attention_max_seq_len_kv"] = p.seq_kv
    given = {
        "dO" if name == "do" else name: x for name, x in tensors.items() if not name.startswith(("ragged", "page"))
    }
    if direction == "forward":
        tensors["o"], stats = graph.sdpa(**given, generate_stats=p.stats, **options)
        outputs = ["o"]
        if p.stats:
            tensors["stats"] = stats.set_data_type(cudnn.data_type.FLOAT)
            outputs.append("stats")
    else:
        for name, size in (("q", p.max_total_seq_q), ("kv", p.max_total_seq_kv)):
            options |= {} if size is None else {f"max_total_seq_len_{name}": size}
        tensors |= zip(("dq", "dk", "dv"), graph.sdpa_backward(**given, **options), strict=True)
        outputs = ["dq", "dk", "dv"]
    for name in outputs:
        tensors[name].set_output(True).set_dim(list(p.dims(name))).set_stride(list(p.strides(name)))
        if p.ragged:
            tensors[name].set_ragged_offset(offset_of(name))
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
