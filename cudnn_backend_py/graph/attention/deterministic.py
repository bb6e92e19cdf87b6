"""The engine config of deterministic backward passes on Blackwell, which cuDNN's heuristics do not propose."""

from __future__ import annotations

from ...generated.enums import KnobType
from ...system.version import VersionTuple

__all__ = ["deterministic_config"]


def deterministic_config(version: VersionTuple, sm: int, head_dim: int = 128) -> tuple[int, dict[KnobType, int]] | None:
    """Return engine and knobs of the deterministic backward kernels; None where the heuristics propose them.

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
    if not 100 <= sm < 120 or version < (9, 18, 0):
        return None
    engine = 5 if sm <= 103 else 17
    stages = {KnobType.STAGES: 3 if head_dim == 256 else 2}
    if version < (9, 23, 0):
        return engine, {KnobType.KERNEL_CFG: 31, **stages}
    tiles = {KnobType.TILE_M: 3, KnobType.TILE_N: 2, KnobType.TILE_CGA_M: 0}
    return engine, tiles | {KnobType.KERNEL_CFG: 2, KnobType.STREAM_K: 0, **stages}
