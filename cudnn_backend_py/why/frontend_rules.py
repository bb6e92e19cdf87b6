"""What cudnn-frontend would do with an attention problem: refuse it, select an engine, or query the heuristics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import CudnnBackendError
from ..frontend.context import Context
from ..frontend.enums import data_type, diagonal_alignment, tensor_reordering
from ..frontend.errors import get_headline
from ..frontend.ops.attention_rules import (
    AttentionRequest,
    check_attention_request,
    check_softmax_outputs,
    choose_engine,
    is_deterministic,
    uses_unified_sdpa,
)
from ..frontend.tensors import tensor
from ..graph.attention.problem import Attention
from ..system.version import Version

__all__ = ["describe_frontend_decision", "make_request"]

_MX_BLOCK = 32  # elements that share a scale


def describe_frontend_decision(problem: Attention, version: Version, sm: int, *, backward: bool) -> str:
    """Describe what cudnn-frontend would do with a problem, as a predicate such as ``queries cuDNN's heuristics``.

    Parameters
    ----------
    version, sm
        The cuDNN version, and the architecture, such as 90.
    """
    request, context = make_request(problem, backward=backward), _RuleContextWithoutTarget(version, sm)
    try:
        check_attention_request(request, context)
        if not backward and not uses_unified_sdpa(request, context):
            check_softmax_outputs(request, context)
        choice = choose_engine(request, context)
    except CudnnBackendError as error:
        return f"refuses it: {get_headline(error)}"
    added = is_deterministic(request, context) and not problem.deterministic
    own = ", with deterministic kernels, which it turns on for this problem" if backward and added else ""
    if choice is None:
        return f"queries cuDNN's heuristics{own}"
    return f"does not query the heuristics: it selects {choice.tag} for deterministic backward attention{own}"


@dataclass(kw_only=True, init=False)
class _RuleContextWithoutTarget(Context):
    """The version and the architecture that the rules depend on, without a loaded cuDNN."""

    target: Any = None

    def __init__(self, version: Version, sm: int) -> None:
        super().__init__(target=None)  # type: ignore[arg-type]
        self._version, self.sm_version = version, sm

    @property
    def version(self) -> Version:
        return self._version


def make_request(p: Attention, *, backward: bool) -> AttentionRequest:
    """Return the arguments of cudnn-frontend's attention node for a problem."""
    low = data_type[p.data_type.name]
    high = data_type[(p.output_type or p.data_type).name]
    kinds = {"q": low, "k": low, "v": low, "o": high}
    if backward:
        kinds |= {"do": low, "dq": high, "dk": high, "dv": high}
    tensors = {name: tensor(p.dims(name), p.strides(name), kind) for name, kind in kinds.items()}
    if p.stats or backward:
        tensors["stats"] = tensor(p.dims("stats"), p.strides("stats"), data_type.FLOAT)
    for name, item in tensors.items():
        if p.ragged_stats if name == "stats" else p.ragged:
            item.ragged_offset = tensor((p.batch + 1, 1, 1, 1), (1, 1, 1, 1), data_type[p.offset_type.name])
    row, one = (p.batch, p.heads, p.seq_q, 1), (1, 1, 1, 1)
    others: dict[str, tuple[bool, tuple[int, ...], data_type]] = {
        "max": (p.max, row, data_type.FLOAT),
        "sum_exp": (p.sum_exp, row, data_type.FLOAT),
        "scale": (p.scale == "tensor", one, data_type.FLOAT),
        "seq_len_q": (p.padding, (p.batch, 1, 1, 1), data_type.INT32),
        "seq_len_kv": (p.padding, (p.batch, 1, 1, 1), data_type.INT32),
        "bias": (p.bias is not None, p.bias or one, low),
        "dbias": (p.dbias and backward, p.bias or one, low),
        "sink": (p.sink, (1, p.heads, 1, 1), data_type.FLOAT),
        "dsink": (p.dsink and backward, (1, p.heads, 1, 1), data_type.FLOAT),
        "dropout_seed": (p.dropout > 0, one, data_type[p.seed_type.name]),
        "dropout_offset": (p.dropout > 0, one, data_type[p.seed_type.name]),
        "dropout_mask": (p.dropout_mask, (p.batch, p.heads, p.seq_q, p.seq_kv), low),
        "dropout_scale": (p.dropout_mask, one, data_type.FLOAT),
        "rng_dump": (p.rng_dump, (p.batch, p.heads, p.seq_q, p.seq_kv), data_type.FLOAT),
        "block_mask": (p.block_mask, (p.batch, p.heads, -(-p.seq_q // 128), -(-p.seq_kv // 1024)), data_type.UINT8),
        "descale_q": (p.is_fp8 and not p.mx, one, data_type.FLOAT),
        "amax_o": (p.is_fp8 and not p.mx and not backward, one, data_type.FLOAT),
    }
    if p.page_size is not None:
        table = (p.batch, 1, p.pages_per_sequence, 1)
        others |= {f"page_table_{name}": (True, table, data_type.INT32) for name in ("k", "v")}
    for name, (is_used, dims, kind) in others.items():
        if is_used:
            tensors[name] = tensor(dims, data_type=kind)
    if p.mx:
        _add_block_scales(tensors, backward)
    return AttentionRequest(
        name="sdpa",
        kind="mxfp8" if p.mx else "fp8" if p.is_fp8 else "half",
        backward=backward,
        tensors=tensors,
        scale=p.scale_value,
        alibi=p.alibi,
        padding=p.padding,
        alignment=diagonal_alignment[p.alignment.upper()],
        left_bound=p.left_bound,
        right_bound=p.right_bound,
        dropout=p.dropout or None,
        stats=p.stats,
        max_seq_kv=p.seq_kv if p.page_size is not None else None,
        max_total_seq_q=p.max_total_seq_q,
        max_total_seq_kv=p.max_total_seq_kv,
        deterministic=p.deterministic,
        score_mod=None if p.score_modifier is None else lambda _graph, score: score,
        stats_log2=p.stats_log2,
    )


def _add_block_scales(tensors: dict[str, tensor], backward: bool) -> None:
    """Add the scales of Q, K, V and dO, along the dims that the pass contracts."""
    axes = {"q": (3, 2), "k": (3, 2), "v": (2,), "do": (3, 2)} if backward else {"q": (3,), "k": (3,), "v": (2,)}
    for name, along in axes.items():
        for place, axis in enumerate(along):
            dims = list(tensors[name].dim)
            dims[axis] = -(-dims[axis] // _MX_BLOCK)
            kind, order = data_type.FP8_E8M0, tensor_reordering.F8_128x4
            tensors[f"descale_{name}{'_t' if place else ''}"] = tensor(dims, (1, 1, 1, 1), kind, reordering_type=order)
