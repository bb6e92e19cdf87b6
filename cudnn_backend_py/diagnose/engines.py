"""Libraries that lack engines: which graphs those at hand serve alone, and what is said of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..generated.enums import DescriptorType
from ..graph import Graph
from ..native import Library
from ..native.environment import absent_engines
from .verdict import Basis, Cause

__all__ = ["ENGINES_ABSENT", "cause_of_absence", "engines_not_asked", "limit_of_absence"]

ENGINES_ABSENT = "engines-absent"  # code of a cause

# Graphs of these operations alone are served by the runtime-compiled engines alone. Measured with 9.14, 9.20, 9.24 and
# 9.28 on sm_75 to sm_120: the full libraries offer the same engines by number as those without engines_precompiled,
# and support the same graphs of each kind. Convolutions, products, resampling, statistics and grouped products differ.
_D = DescriptorType
_SERVED = (
    {_D.OPERATION_SDPA_FWD},
    {_D.OPERATION_SDPA_BWD},
    {_D.OPERATION_NORM_FORWARD, _D.OPERATION_POINTWISE},
    {_D.OPERATION_NORM_BACKWARD, _D.OPERATION_POINTWISE},
    {_D.OPERATION_POINTWISE, _D.OPERATION_REDUCTION},
)
# So are two products and more with what attention has between them; one alone is not.
_ATTENTION = {
    *(_D.OPERATION_MATMUL, _D.OPERATION_POINTWISE, _D.OPERATION_REDUCTION, _D.OPERATION_RNG, _D.OPERATION_RESHAPE),
    *(_D.OPERATION_DIAGONAL_BAND_MASK, _D.OPERATION_SOFTMAX, _D.OPERATION_PAGED_CACHE_LOAD),
    _D.OPERATION_BLOCK_SCALE_DEQUANTIZE,
}
_PRODUCTS = 2


def engines_not_asked(graph: Graph, on: Library) -> tuple[str, ...]:
    """Return the sub-libraries whose engines might support the graph, and that a library lacks: jit wheels do."""
    absent = absent_engines(on.path, tuple(on.version))
    return absent if absent and not _is_served_alone(graph) else ()


def _is_served_alone(graph: Graph) -> bool:
    """Return whether runtime-compiled engines are all that cuDNN has for a graph."""
    kinds = Counter(op.kind for op in graph.ops)
    if kinds[_D.OPERATION_MATMUL] >= _PRODUCTS:
        return kinds.keys() <= _ATTENTION
    return any(kinds.keys() <= served for served in _SERVED)


def cause_of_absence(said: Cause | None, absent: Sequence[str], on: Library) -> Cause:
    """Return the cause of a refusal by the engines at hand alone; `said` is what they say."""
    own = said.headline if said is not None else "cuDNN gave no reason"
    detail = f"{on.path} lacks {_files(absent)}; engines in a full cuDNN {on.version_text} may support the graph"
    return Cause(
        ENGINES_ABSENT,
        f"the runtime-compiled engines of this library refuse it, and the others are not in it; those at hand: {own}",
        Basis.RULE,
        detail,
        f"cudnn-backend cudnn install {on.version_text} --full, and ask again with --cudnn {on.version_text}",
    )


def limit_of_absence(absent: Sequence[str]) -> str:
    """Return the line that a verdict has where engines were not asked that might have had a say."""
    return f"this library lacks {_files(absent)}: engines in them, for convolutions among others, were not asked"


def _files(absent: Sequence[str]) -> str:
    return " and ".join(f"libcudnn_{name}" for name in absent)
