"""Engine configs that libraries select without querying cuDNN's heuristics, which do not propose them.

cudnn-frontend's nodes of attention name an engine in ``override_heuristics_query``; no other node of it does.
"""

from __future__ import annotations

from collections.abc import Callable

from ...frozen import FrozenValue
from ...generated.enums import KnobType
from ...system.version import VersionRange, VersionTuple
from ..ir import Graph
from .problem import Attention

__all__ = ["SELECTIONS", "EngineSelection", "deterministic_config", "find_engine_selection"]


class EngineSelection(FrozenValue, kw_only=True):
    """An engine config that a library selects without querying cuDNN's heuristics.

    Parameters
    ----------
    by
        The library.
    what
        The graphs for which it does.
    versions, sm
        The cuDNN versions and the architectures for which it does.
    condition
        The condition on a backward pass of attention.
    engine, knobs
        Global index of the engine, and its knob choices; knobs left out are cuDNN's to choose.
    source
        The file that says so.
    """

    by: str
    what: str
    versions: VersionRange
    sm: range
    condition: Callable[[Attention], bool]
    engine: int
    knobs: tuple[tuple[KnobType, int], ...]
    source: str


_WIDE = 256  # head dim of the kernels with 3 stages
_ORDINARY_STAGES, _WIDE_STAGES = 2, 3


def _has_option_without_engine_selection(p: Attention) -> bool:
    return p.dbias or p.dropout > 0 or p.dropout_mask or p.alibi


def _has_head_dim_256(p: Attention) -> bool:
    return p.head_dim == p.head_dim_v == _WIDE


def _is_deterministic_in_16_bits(p: Attention) -> bool:
    return p.deterministic and not p.is_fp8 and not _has_option_without_engine_selection(p) and not _has_head_dim_256(p)


def _is_deterministic_with_head_dim_256(p: Attention) -> bool:
    return p.deterministic and not p.is_fp8 and not _has_option_without_engine_selection(p) and _has_head_dim_256(p)


def _is_fp8_within_head_dim_limits(p: Attention) -> bool:
    return p.is_fp8 and p.head_dim <= 192 and p.head_dim_v <= 128 and not _has_option_without_engine_selection(p)


_HALF = "deterministic backward attention in float16 or bfloat16"
_NODES = "https://pypi.org/project/nvidia-cudnn-frontend/1.32.0: include/cudnn_frontend/node/"
_KINDS: tuple[tuple[str, VersionTuple, Callable[[Attention], bool], int, str], ...] = (
    (_HALF, (9, 18, 0), _is_deterministic_in_16_bits, _ORDINARY_STAGES, "scaled_dot_product_flash_attention.h"),
    (
        f"{_HALF} with head dims of 256",
        (9, 23, 0),
        _is_deterministic_with_head_dim_256,
        _WIDE_STAGES,
        "scaled_dot_product_flash_attention.h",
    ),
    (
        "backward attention in 8-bit floats",
        (9, 19, 0),
        _is_fp8_within_head_dim_limits,
        _ORDINARY_STAGES,
        "sdpa_fp8_bwd.h",
    ),
)
_RENUMBERED = (9, 23, 0)  # the kernel is chosen by other knobs since
_TILES = {KnobType.TILE_M: 3, KnobType.TILE_N: 2, KnobType.TILE_CGA_M: 0, KnobType.KERNEL_CFG: 2, KnobType.STREAM_K: 0}

#: Every engine config that cudnn-frontend 1.32 selects by default.
SELECTIONS = tuple(
    EngineSelection(
        by="cudnn-frontend",
        what=what,
        versions=window,
        sm=sm,
        condition=condition,
        engine=engine,
        knobs=tuple((knobs | {KnobType.STAGES: stages}).items()),
        source=_NODES + file,
    )
    for what, since, condition, stages, file in _KINDS
    for engine, sm in ((5, range(100, 104)), (17, range(104, 110)))
    for window, knobs in (
        (VersionRange(since, _RENUMBERED), {KnobType.KERNEL_CFG: 31}),
        (VersionRange(max(since, _RENUMBERED)), _TILES),
    )
    if window.until is None or window.since < window.until
)


def find_engine_selection(graph: Graph, version: VersionTuple, sm: int) -> EngineSelection | None:
    """Return the engine config that a library selects for a graph; None if the library would query the heuristics."""
    here = [row for row in SELECTIONS if sm in row.sm and version in row.versions]
    if not here:
        return None
    from .recognize import read_attention

    use = read_attention(graph)
    if use is None or not use.backward or use.form == "unified":
        return None
    problem = use.problem
    return next((row for row in here if row.condition(problem)), None)


def deterministic_config(version: VersionTuple, sm: int, head_dim: int = 128) -> tuple[int, dict[KnobType, int]] | None:
    """Return engine and knobs of the deterministic backward kernel; None if no selection is known for the target.

    On sm_8x and sm_90 the graph alone (``deterministic=True``) makes the pass deterministic. On sm_10x the kernel is
    chosen by the knob STAGES; mxfp8 has no other kernel. For :meth:`~cudnn_backend_py.OperationGraph.config`.

    Parameters
    ----------
    version
        The cuDNN version, such as (9, 28, 0); before 9.18 there is no such kernel.
    sm
        The architecture, such as 100.
    head_dim
        Of Q, K and V; 256 is taken since cuDNN 9.23.

    Examples
    --------
    >>> from cudnn_backend_py import attention
    >>> engine, knobs = attention.deterministic_config((9, 28, 0), 100)
    >>> engine, {knob.name: value for knob, value in knobs.items()}["STAGES"]
    (5, 2)
    """
    condition = _is_deterministic_with_head_dim_256 if head_dim == _WIDE else _is_deterministic_in_16_bits
    rows = (row for row in SELECTIONS if row.condition is condition and sm in row.sm and version in row.versions)
    found = next(rows, None)
    return None if found is None else (found.engine, dict(found.knobs))
