"""Attention as operation graphs, forward and backward: as many operations (composite) or as one (unified)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import GraphError
from ...system.lazy_import import make_lazy_getattr
from ...system.version import VersionTuple
from ...system.version import VersionTuple as Version
from ..ir import Graph
from .builder import SINGLE_OPS_SINCE
from .known_issue import AttentionUse, Form, KnownIssue
from .known_issues import HAZARDS, find_measured_issues, refuse_attention_with_known_issue
from .problem import Attention, Implementation, ScoreModifier, make_problem_unless_given
from .unified import build_unified_backward, build_unified_forward, is_unified_tried_first_by_frontend

if TYPE_CHECKING:
    from .modifiers import SoftCap
    from .selections import deterministic_config
    from .small import SmallAttention, mha_bprop, mha_fprop

__all__ = [
    "HAZARDS",
    "Attention",
    "AttentionUse",
    "Implementation",
    "KnownIssue",
    "ScoreModifier",
    "SmallAttention",
    "SoftCap",
    "Version",
    "deterministic_config",
    "find_measured_issues",
    "mha_bprop",
    "mha_fprop",
    "sdpa_backward",
    "sdpa_forward",
]

__getattr__ = make_lazy_getattr(
    __name__,
    SmallAttention="small",
    SoftCap="modifiers",
    deterministic_config="selections",
    mha_bprop="small",
    mha_fprop="small",
)


def sdpa_forward(
    problem: Attention | None = None,
    /,
    *,
    implementation: Implementation = "auto",
    version: VersionTuple | None = None,
    sm: int | None = None,
    allow_hazards: bool = False,
    **options: Any,
) -> Graph:
    """Return the forward pass of an attention problem as a graph.

    Tensors are named as in :class:`Attention`: ``q``, ``k``, ``v``, ``o`` and what its options request. In the
    composite form ``k`` has dims [b, h, d, s_kv] (the same memory, s and d swapped): matmul wants it so.

    Parameters
    ----------
    problem
        The problem, or None and its fields as `options`.
    implementation
        "composite": many operations; "unified": the one SDPA operation of cuDNN 9.13 and later; "auto": as cuDNN's
        frontend chooses for that version, composite if no version is given; unified for a block mask.
    version
        The cuDNN version the graph is for, such as (9, 19, 0): since 9.21 masks and softmax are operations of their
        own. None gives what every version supports.
    sm
        The architecture it is for, such as 90: known issues of others are not looked at.
    allow_hazards
        Build a graph that cuDNN is known to get wrong, see :data:`HAZARDS`.

    Raises
    ------
    GraphError
        What :class:`Attention` refuses, ``attention-implementation``, ``attention-hazard``.
    """
    p = make_problem_unless_given(problem, Attention, options)
    unified = implementation == "unified" or (
        implementation == "auto" and (p.block_mask or is_unified_tried_first_by_frontend(p, version))
    )
    if not unified:
        _check_implementation(p, implementation)
    if not allow_hazards:
        refuse_attention_with_known_issue(AttentionUse(p, False, _choose_graph_form(unified, version), version, sm))
    if unified:
        return build_unified_forward(p, version)
    from .forward import build_composite_forward

    return build_composite_forward(p, version)


def sdpa_backward(
    problem: Attention | None = None,
    /,
    *,
    implementation: Implementation = "auto",
    version: VersionTuple | None = None,
    sm: int | None = None,
    allow_hazards: bool = False,
    **options: Any,
) -> Graph:
    """Return the backward pass: ``dq``, ``dk``, ``dv`` from ``q``, ``k``, ``v``, ``o``, ``do`` and ``stats``.

    Options as for :func:`sdpa_forward`. In the composite form ``k`` and ``v`` have s and d swapped; "auto" is
    composite. ``dsink`` is the true gradient, which is what the kernels write; its operations read literally would
    give the opposite sign.

    Raises
    ------
    GraphError
        What :class:`Attention` refuses, ``attention-implementation``, ``attention-hazard``.
    """
    p = make_problem_unless_given(problem, Attention, options)
    options_of_forward = {
        "paged K and V": p.page_size is not None,
        "a block mask": p.block_mask,
        "a given dropout mask": p.dropout_mask,
    }
    if found := [what for what, given in options_of_forward.items() if given]:
        raise GraphError(f"the backward pass does not support {' or '.join(found)}", code="attention-option")
    if p.is_fp8 and (p.score_modifier is not None or p.dbias):
        raise GraphError("the fp8 backward pass supports neither a score modifier nor dbias", code="attention-option")
    unified = implementation == "unified"
    if not unified:
        _check_implementation(p, implementation)
    if not allow_hazards:
        refuse_attention_with_known_issue(AttentionUse(p, True, _choose_graph_form(unified, version), version, sm))
    if unified:
        return build_unified_backward(p, version)
    from .backward import build_composite_backward

    return build_composite_backward(p, version)


def _choose_graph_form(unified: bool, version: VersionTuple | None) -> Form:
    if unified:
        return "unified"
    return "expanded" if version is None or version < SINGLE_OPS_SINCE else "single operations"


def _check_implementation(p: Attention, implementation: str) -> None:
    if implementation not in ("auto", "composite"):
        raise GraphError(
            f"implementation {implementation!r} is neither auto, composite nor unified", code="attention-implementation"
        )
    if p.block_mask:
        raise GraphError(
            "the composite form has no block mask",
            code="attention-implementation",
            fix="use implementation='unified'",
        )
