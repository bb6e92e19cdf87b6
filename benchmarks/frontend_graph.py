"""Build the measured attention graphs through cudnn-frontend's API, with its module or with ours."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.cli.compare.problems import Direction
from cudnn_backend_py.graph.attention import Attention

__all__ = ["build_frontend_attention"]


def build_frontend_attention(
    cudnn: Any,
    handle: Any,
    problem: Attention,
    direction: Direction,
) -> tuple[Any, dict[str, Any]]:
    """Return a built attention graph and its tensors by the names of our graph; dense, ragged or paged.

    `cudnn` is cudnn-frontend's module or this package's.
    """
    p = problem
    graph = cudnn.pygraph(
        io_data_type=getattr(cudnn.data_type, p.data_type.name),
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    tensors: dict[str, Any] = {}

    def add_int32_tensor(name: str, *dims: int) -> Any:
        tensors[name] = graph.tensor(
            name=name, dim=list(dims), stride=[dims[2], 1, 1, 1], data_type=cudnn.data_type.INT32
        )
        return tensors[name]

    def get_ragged_offsets(name: str) -> Any:
        """Return the ragged offsets of a tensor; a gradient has those of its tensor."""
        owner = f"ragged_{name.removeprefix('d')}"
        return tensors.get(owner) or add_int32_tensor(owner, p.batch + 1, 1, 1, 1)

    def add_tensor(name: str) -> None:
        kind = {"data_type": cudnn.data_type.FLOAT} if name == "stats" else {}
        made = graph.tensor(name=name, dim=list(p.dims(name)), stride=list(p.strides(name)), **kind)
        tensors[name] = made.set_ragged_offset(get_ragged_offsets(name)) if p.ragged else made

    if p.padding:
        for name in ("seq_len_q", "seq_len_kv"):
            add_int32_tensor(name, p.batch, 1, 1, 1)
    for name in ("q", "k", "v", *(("o", "do", "stats") if direction == "backward" else ())):
        add_tensor(name)
    options: dict[str, Any] = {"attn_scale": p.scale_value, "use_causal_mask": p.causal}
    if p.padding:
        options["use_padding_mask"] = True
    if p.page_size is not None:
        for name in "kv":
            options[f"paged_attention_{name}_table"] = add_int32_tensor(
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
            tensors[name].set_ragged_offset(get_ragged_offsets(name))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return graph, tensors
