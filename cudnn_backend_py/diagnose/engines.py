"""Libraries without some engines: which graphs can be judged completely, and remarks about the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..generated.enums import DescriptorType
from ..graph import Graph
from ..native import Library
from ..native.environment import absent_engines
from ..target import Target
from .verdict import Basis, Cause

__all__ = [
    "CUDA_13_LIMIT",
    "ENGINES_ABSENT",
    "cause_of_absence",
    "engines_not_judged",
    "has_engine_in_cuda_13",
    "limit_of_absence",
]

ENGINES_ABSENT = "engines-absent"  # code of a cause

_D = DescriptorType
# Graphs of these operations alone are served by engines_runtime_compiled without engines_precompiled. Measured with
# 9.14, 9.20, 9.24 and 9.28 on sm_75 to sm_120: libraries with and without it offer the same engines by number, and
# support the same graphs. Of convolutions, products, resampling, finalized statistics and grouped products they do not.
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

# For graphs without any of these, cuDNN of CUDA 13 has one engine more, in engines_tensor_ir: the memory-bound one. Its
# users (the samples of cudnn-frontend) want sm_100 and cuDNN 9.22. Measured with 9.28: for a described GPU it answers
# INTERNAL_ERROR whatever the graph, since it asks the driver for the device.
_OTHER_PATTERNS = {
    *(_D.OPERATION_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL_BWD),
    *(_D.OPERATION_CONVOLUTION_FORWARD, _D.OPERATION_CONVOLUTION_BACKWARD_DATA),
    *(_D.OPERATION_CONVOLUTION_BACKWARD_FILTER, _D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD),
    *(_D.OPERATION_NORM_FORWARD, _D.OPERATION_NORM_BACKWARD, _D.OPERATION_BN_FINALIZE_STATISTICS),
    *(_D.OPERATION_RESAMPLE_FWD, _D.OPERATION_RESAMPLE_BWD),
}
_MEMORY_BOUND_SM, _MEMORY_BOUND_SINCE, _MEMORY_BOUND_CUDA = 100, (9, 22, 0), 13
CUDA_13_LIMIT = (
    "cuDNN for CUDA 13 has one more engine for such a graph on sm_100 and later, the memory-bound one (since 9.22); "
    "this cuDNN for CUDA 12 has not, so its refusal does not hold for that one"
)


def engines_not_judged(graph: Graph, target: Target) -> tuple[str, ...]:
    """Return the missing sub-libraries with engines that might support the graph, as JIT wheels lack some."""
    lib = target.library
    absent = absent_engines(lib.path, tuple(lib.version), lib.cuda_version // 1000)
    if not absent:
        return ()
    wanted = {
        "engines_precompiled": not _is_served_alone(graph),
        "engines_tensor_ir": _is_memory_bound(graph, target),
    }
    return tuple(name for name in absent if wanted[name])


def has_engine_in_cuda_13(graph: Graph, target: Target) -> bool:
    """Return whether the library is for CUDA 12 while that for CUDA 13 has an additional engine for such a graph."""
    return target.library.cuda_version // 1000 < _MEMORY_BOUND_CUDA and _is_memory_bound(graph, target)


def _is_served_alone(graph: Graph) -> bool:
    """Return whether cuDNN has only runtime-compiled engines for a graph."""
    kinds = Counter(op.kind for op in graph.ops)
    if kinds[_D.OPERATION_MATMUL] >= _PRODUCTS:
        return kinds.keys() <= _ATTENTION
    return any(kinds.keys() <= served for served in _SERVED)


def _is_memory_bound(graph: Graph, target: Target) -> bool:
    is_new = target.sm >= _MEMORY_BOUND_SM and target.library.version >= _MEMORY_BOUND_SINCE
    return is_new and _OTHER_PATTERNS.isdisjoint(op.kind for op in graph.ops)


def cause_of_absence(said: Cause | None, absent: Sequence[str], on: Library) -> Cause:
    """Return the cause of a refusal by the available engines alone, based on the cause they give."""
    own = said.headline if said is not None else "cuDNN gave no reason"
    detail = f"{on.path} lacks {_list_files(absent)}; engines in a full cuDNN {on.build_text} may support the graph"
    return Cause(
        ENGINES_ABSENT,
        "the runtime-compiled engines of this library (cuDNN JIT) refuse it, and the others are not in it; "
        f"those available: {own}",
        Basis.RULE,
        detail,
        f"cudnn-backend cudnn install {on.build_text} --full, and judge again with --cudnn {on.build_text}",
    )


def limit_of_absence(absent: Sequence[str]) -> str:
    """Return the remark about engines that might support the graph but were not judged."""
    return f"this library lacks {_list_files(absent)}: engines in them, for convolutions among others, were not judged"


def _list_files(absent: Sequence[str]) -> str:
    return " and ".join(f"libcudnn_{name}" for name in absent)
