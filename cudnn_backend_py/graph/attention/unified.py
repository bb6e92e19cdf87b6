"""Attention as one operation: SDPA_FWD or SDPA_BWD, with a sub-graph for the changes of the scores."""

from __future__ import annotations

import math
from typing import Any

from ...errors import GraphError
from ...generated.enums import DataType, DescriptorType
from ...system.version import VersionTuple
from ..ir import Graph, Tensor
from .builder import SINGLE_OPS_SINCE, AttentionBuilder
from .problem import Attention

__all__ = [
    "add_unified_forward",
    "build_unified_backward",
    "build_unified_forward",
    "is_unified_tried_first_by_frontend",
]

BLOCK = 128  # rows and columns of a block of the block mask
_MX_FACTORS = ("descale_q", "descale_k", "descale_v", "amax_o")
_FP8_FACTORS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o", "amax_s", "amax_o")


def is_unified_tried_first_by_frontend(p: Attention, version: VersionTuple | None) -> bool:
    """Return whether cudnn-frontend would first try a single SDPA operation for this problem and cuDNN version."""
    if version is None or version < (9, 13, 1) or p.is_fp8 or p.dropout_mask or p.scale == "none":
        return False
    newer = p.bias or p.alibi or p.sink or p.score_modifier or p.max or p.sum_exp
    masked = p.left_bound is not None or p.right_bound is not None or p.alignment == "bottom_right"
    since = (
        ((9, 14, 0), p.block_mask),
        ((9, 15, 0), p.padding or p.page_size is not None),
        ((9, 21, 0), bool(newer) or masked),
        ((9, 22, 0), p.dropout > 0),
    )
    return all(version >= needed for needed, used in since if used) and not (p.dropout and p.stats)


def build_unified_forward(p: Attention, version: VersionTuple | None) -> Graph:
    """Return the graph of one SDPA_FWD operation.

    Since cuDNN 9.21 modifiers, bias, ALiBi and bounds are its sub-graph and the statistics hang on a SOFTMAX
    operation inside it; before, it has statistics of its own and no masks but padding.
    """
    f = _make_builder(p, "sdpa_forward", version)
    add_unified_forward(f)
    return f.g.graph()


def add_unified_forward(f: AttentionBuilder, *, unfuse_fma: bool = False) -> None:
    """Add the forward operation; with `unfuse_fma`, Blackwell kernels multiply and add in two steps."""
    p = f.p
    fields: dict[str, Any] = {name: f.get_io_tensor(name) for name in ("q", "k", "v", "o")}
    fields |= _make_common_sdpa_fields(f)
    fields |= {f"page_table_{name}": f.get_page_table(name) for name in ("k", "v") if f.is_paged(name)}
    if p.block_mask:
        rows, columns = math.ceil(p.seq_q / BLOCK), math.ceil(p.seq_kv / BLOCK)
        fields["block_mask"] = f.get_or_make_tensor(
            "block_mask", (p.batch, p.heads, rows, math.ceil(columns / 8)), DataType.UINT8
        )
    if p.is_fp8:
        fields |= {name: f.get_device_scalar(name) for name in (_MX_FACTORS if p.mx else _FP8_FACTORS)}
    fields |= _make_dropout_fields(f)
    if p.rng_dump:
        fields["dropout_rng_dump"] = f.rng_dump()
    _add_score_subgraph(f, fields)
    if p.stats and not (f.single_ops or p.max or p.sum_exp or p.sink):
        fields["stats"] = f.get_per_row_tensor("stats")
    elif f.make_softmax_fields():
        fields["softmax"] = f.make_softmax_operation(
            _make_score_tensor(f, "softmax_x"), _make_score_tensor(f, "softmax_y")
        )
    if unfuse_fma:
        fields["unfuse_fma"] = True
    f.g.operation(DescriptorType.OPERATION_SDPA_FWD, "sdpa", **fields)


def build_unified_backward(p: Attention, version: VersionTuple | None) -> Graph:
    """Return the graph of one SDPA_BWD operation."""
    f = _make_builder(p, "sdpa_backward", version)
    fields: dict[str, Any] = {name: f.get_io_tensor(name) for name in ("q", "k", "v", "o", "dq", "dk", "dv")}
    fields |= {"d_o": f.get_io_tensor("do"), "stats": f.get_per_row_tensor("stats")}
    fields |= _make_common_sdpa_fields(f) | _make_dropout_fields(f)
    if p.sink:
        fields["sink"] = f.get_per_head_tensor("sink")
    if p.dsink:
        fields["dsink"] = f.get_per_head_tensor("dsink")
    if p.dbias and p.bias is not None:
        fields["dbias"] = f.get_or_make_tensor("dbias", p.bias, p.data_type)
    for name in ("max_total_seq_q", "max_total_seq_kv"):
        if getattr(p, name) is not None:
            fields[name.replace("seq", "seq_len")] = getattr(p, name)
    _add_score_subgraph(f, fields)
    f.g.operation(DescriptorType.OPERATION_SDPA_BWD, "sdpa_backward", **fields)
    return f.g.graph()


def _make_builder(p: Attention, name: str, version: VersionTuple | None) -> AttentionBuilder:
    lacks = {
        "given dropout mask": p.dropout_mask,
        "way to leave the scores unscaled": p.scale == "none",
        "block-scaled fp8": p.mx,
        "deterministic mode": p.deterministic,
    }
    for what, wanted in lacks.items():
        if wanted:
            raise GraphError(
                f"the unified operation has no {what}",
                code="attention-implementation",
                fix="use implementation='composite'",
            )
    return AttentionBuilder(p, name, SINGLE_OPS_SINCE if version is None else version)


def _make_common_sdpa_fields(f: AttentionBuilder) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if f.p.scale == "tensor":
        fields["scale"] = f.get_device_scalar("scale")
    elif f.p.scale != "none":
        fields["scale"] = f.scalar(f.p.scale_value, "scale", rank=1)
    seq_q, seq_kv = f.seq_lens
    return fields | {"seq_len_q": seq_q, "seq_len_kv": seq_kv} | f.cumulative_lengths


def _make_dropout_fields(f: AttentionBuilder) -> dict[str, Any]:
    if not f.p.dropout:
        return {}
    return {
        "dropout_seed": f.get_random_state_tensor("seed"),
        "dropout_offset": f.get_random_state_tensor("offset"),
        "dropout_probability": f.p.dropout,
    }


def _make_score_tensor(f: AttentionBuilder, name: str) -> Tensor:
    return f.tensor(name, f.score_dims, DataType.FLOAT, virtual=True)


def _add_score_subgraph(f: AttentionBuilder, fields: dict[str, Any]) -> None:
    """Add modifier, bias, ALiBi and bounds as a sub-graph, if there are any."""
    source = _make_score_tensor(f, "score")
    with f.collect_subgraph("scores") as made:
        score = f.mask_outside_band(f.add_biases(f.apply_score_modifier(source)))
    if made:
        fields |= {"subgraph": made[0], "subgraph_input_uid": source.uid, "subgraph_output_uid": score.uid}
