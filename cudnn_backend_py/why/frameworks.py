"""What torch, TransformerEngine and cudnn-frontend would do with an attention graph: use cuDNN, refuse, or select."""

from __future__ import annotations

from ..graph import Graph
from ..graph.attention.problem import Attention
from ..graph.attention.recognize import read_attention
from ..graph.data_types import DATA_TYPES, HALF_TYPES
from ..graph.strides import packed_strides
from ..system.version import Version, VersionTuple
from .calls import Machine, TensorFacts, TorchCall, TorchSwitches
from .conditions import RELEASES, find_blocker
from .frontend_rules import describe_frontend_decision
from .transformer_engine_rules import TRANSFORMER_ENGINE, describe_transformer_engine_decision

__all__ = ["describe_framework_decisions"]

_CUDA_OF_TORCH_WHEELS = (13, 0)  # of torch's newest wheels


def describe_framework_decisions(graph: Graph, version: VersionTuple, sm: int) -> dict[str, str]:
    """Describe what the newest known release of each framework would do, as a predicate; empty without attention.

    Parameters
    ----------
    version, sm
        The cuDNN version, and the architecture, such as 90.
    """
    use = read_attention(graph)
    if use is None:
        return {}
    torch = RELEASES[-1].since
    machine = Machine((*torch, 0), version, sm, _CUDA_OF_TORCH_WHEELS)
    return {
        f"torch {'.'.join(map(str, torch))}": _describe_torch_decision(use.problem, use.backward, machine),
        f"TransformerEngine {'.'.join(map(str, TRANSFORMER_ENGINE))}": describe_transformer_engine_decision(
            use.problem, version, sm, backward=use.backward
        ),
        "cudnn-frontend 1.32": describe_frontend_decision(use.problem, Version(*version), sm, backward=use.backward),
    }


def _describe_torch_decision(problem: Attention, backward: bool, machine: Machine) -> str:
    """Return what torch's ``scaled_dot_product_attention`` would do with a problem on a machine."""
    if unknown := _find_unknown_options(problem):
        return f"scaled_dot_product_attention has no {' and no '.join(unknown)}"
    call = _make_torch_call(problem, backward)
    blocker = find_blocker(call, machine)
    if blocker is None:
        return "uses cuDNN: all its conditions hold, and cuDNN is its first choice"
    return f"does not use cuDNN: {blocker}; {blocker.cure}" if blocker.cure else f"does not use cuDNN: {blocker}"


def _find_unknown_options(p: Attention) -> list[str]:
    """Return the options of a problem that torch's function does not have."""
    is_window = p.left_bound is not None or (p.right_bound is not None and p.right_bound != 0)
    found = {
        f"{p.data_type.name} tensors": p.data_type not in HALF_TYPES,
        "padded, packed or paged sequences": p.padding or p.ragged or p.page_size is not None,
        "window": is_window,
        "score modifier": p.score_modifier is not None,
        "ALiBi slopes": p.alibi,
        "attention sinks": p.sink,
        "block mask": p.block_mask,
    }
    return [name for name, is_used in found.items() if is_used]


def _make_torch_call(p: Attention, backward: bool) -> TorchCall:
    """Return torch's attention call for a problem; torch's function must have all its options."""
    dtype = DATA_TYPES[p.data_type].torch[0]
    q, k, v = (
        TensorFacts(p.dims(name), p.strides(name), dtype, requires_grad=backward or p.stats) for name in ("q", "k", "v")
    )
    mask = None
    if p.bias is not None:
        mask = TensorFacts(p.bias, packed_strides(p.bias), dtype, requires_grad=p.dbias)
    return TorchCall(
        q=q,
        k=k,
        v=v,
        mask=mask,
        dropout=p.dropout,
        causal=p.causal or p.right_bound == 0,
        gqa=p.heads != p.kv_heads,
        switches=TorchSwitches(deterministic=p.deterministic),
    )
