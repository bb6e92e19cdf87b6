"""cuDNN libraries that lack some engines: which graphs need those engines, and what a verdict then says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..generated.enums import DescriptorType
from ..graph import Graph
from ..native import Library
from ..native.environment import find_absent_engine_libraries
from ..target import Target
from .verdict import ENGINES_MISSING_CODE, Basis, Cause, RemedyCheck

__all__ = [
    "CUDA_13_ENGINE_REMARK",
    "WITH_THIS_WHEEL",
    "add_remedy_with_jit_wheel",
    "describe_missing_engines",
    "explain_missing_engines",
    "find_missing_engine_libraries",
    "format_full_wheel_command",
    "format_full_wheel_remedy",
    "has_extra_engine_in_cuda_13",
]


#: What follows a change of the graph that was judged with a JIT wheel.
WITH_THIS_WHEEL = ", with which this wheel supports the graph"
_INSTALL = "cudnn-backend cudnn install"
_D = DescriptorType
# Graphs of these operations alone are served by engines_runtime_compiled without engines_precompiled. Measured with
# 9.14, 9.20, 9.24 and 9.28 on sm_75 to sm_120: libraries with and without it offer the same engines by number, and
# support the same graphs. Of convolutions, products, resampling, finalized statistics and grouped products they do not.
_RUNTIME_COMPILED_OPERATIONS = (
    {_D.OPERATION_SDPA_FWD},
    {_D.OPERATION_SDPA_BWD},
    {_D.OPERATION_NORM_FORWARD, _D.OPERATION_POINTWISE},
    {_D.OPERATION_NORM_BACKWARD, _D.OPERATION_POINTWISE},
    {_D.OPERATION_POINTWISE, _D.OPERATION_REDUCTION},
)
# So are two products and more with what attention has between them; one alone is not.
_ATTENTION_OPERATIONS = {
    *(_D.OPERATION_MATMUL, _D.OPERATION_POINTWISE, _D.OPERATION_REDUCTION, _D.OPERATION_RNG, _D.OPERATION_RESHAPE),
    *(_D.OPERATION_DIAGONAL_BAND_MASK, _D.OPERATION_SOFTMAX, _D.OPERATION_PAGED_CACHE_LOAD),
    _D.OPERATION_BLOCK_SCALE_DEQUANTIZE,
}
_MIN_ATTENTION_MATMULS = 2

# For graphs without any of these, cuDNN of CUDA 13 has one engine more, in engines_tensor_ir: the memory-bound one. Its
# users (the samples of cudnn-frontend) want sm_100 and cuDNN 9.22. Measured with 9.28: for a described GPU it answers
# INTERNAL_ERROR whatever the graph, since it asks the driver for the device.
_COMPUTE_OPERATIONS = {
    *(_D.OPERATION_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL, _D.OPERATION_MOE_GROUPED_MATMUL_BWD),
    *(_D.OPERATION_CONVOLUTION_FORWARD, _D.OPERATION_CONVOLUTION_BACKWARD_DATA),
    *(_D.OPERATION_CONVOLUTION_BACKWARD_FILTER, _D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD),
    *(_D.OPERATION_NORM_FORWARD, _D.OPERATION_NORM_BACKWARD, _D.OPERATION_BN_FINALIZE_STATISTICS),
    *(_D.OPERATION_RESAMPLE_FWD, _D.OPERATION_RESAMPLE_BWD),
}
_MEMORY_BOUND_SM, _MEMORY_BOUND_SINCE, _MEMORY_BOUND_CUDA = 100, (9, 22, 0), 13
CUDA_13_ENGINE_REMARK = (
    "cuDNN for CUDA 13 has one more engine for such a graph on sm_100 and later, the memory-bound one (since 9.22); "
    "this cuDNN for CUDA 12 has not, so its refusal does not hold for that one"
)


def find_missing_engine_libraries(graph: Graph, target: Target) -> tuple[str, ...]:
    """Return the sub-libraries with engines that might support the graph, and that this wheel lacks."""
    lib = target.library
    absent = find_absent_engine_libraries(lib.path, tuple(lib.version), lib.cuda_version // 1000)
    if not absent:
        return ()
    wanted = {
        "engines_precompiled": not _is_runtime_compiled_only(graph),
        "engines_tensor_ir": _is_memory_bound(graph, target),
    }
    return tuple(name for name in absent if wanted[name])


def has_extra_engine_in_cuda_13(graph: Graph, target: Target) -> bool:
    """Return whether this cuDNN for CUDA 12 lacks an engine for the graph that cuDNN for CUDA 13 has."""
    return target.library.cuda_version // 1000 < _MEMORY_BOUND_CUDA and _is_memory_bound(graph, target)


def _is_runtime_compiled_only(graph: Graph) -> bool:
    """Return whether cuDNN has only runtime-compiled engines for a graph."""
    kinds = Counter(op.kind for op in graph.ops)
    if kinds[_D.OPERATION_MATMUL] >= _MIN_ATTENTION_MATMULS:
        return kinds.keys() <= _ATTENTION_OPERATIONS
    return any(kinds.keys() <= served for served in _RUNTIME_COMPILED_OPERATIONS)


def _is_memory_bound(graph: Graph, target: Target) -> bool:
    is_new = target.sm >= _MEMORY_BOUND_SM and target.library.version >= _MEMORY_BOUND_SINCE
    return is_new and _COMPUTE_OPERATIONS.isdisjoint(op.kind for op in graph.ops)


def explain_missing_engines(
    said: Cause | None, absent: Sequence[str], on: Library, *, is_refused: bool = True
) -> Cause:
    """Return the cause of a refusal by a library that lacks engines; it quotes the cause from the available engines.

    Those refuse the graph, or (`is_refused` False) pass their support check without a plan that can be built.
    """
    what = "refuses the graph" if is_refused else "can build no plan"
    own = said.headline if said is not None else "cuDNN gave no reason"
    detail = (
        f"{on.path} lacks {_format_sub_library_names(absent)}; engines in a full cuDNN {on.build_text} may support the "
        f"graph. Of the available engines: {own}"
    )
    headline = f"the JIT wheel of this cuDNN {what}, and lacks the engines of the full wheel"
    install = format_full_wheel_remedy(on.build_text)
    cause = Cause(ENGINES_MISSING_CODE, headline, Basis.RULE, detail, install)
    return (
        cause
        if said is None or not said.has_judged_remedy
        else add_remedy_with_jit_wheel(cause, said.remedy, said.asked)
    )


def add_remedy_with_jit_wheel(cause: Cause, remedy: str, check: RemedyCheck) -> Cause:
    """Put a change with which a JIT wheel supports the graph before the last remedy of a cause.

    A JIT wheel cannot show that a graph is refused, but it can show that a changed one is supported.
    """
    rest = cause.remedy.rpartition("; or ")[2]
    known = [rest] if _INSTALL in rest else []  # else no wheel helps
    remedy = remedy.replace(", with this cuDNN", "")
    return replace(cause, remedy="; or ".join([f"{remedy}{WITH_THIS_WHEEL}", *known]), asked=check)


def format_full_wheel_command(version: str) -> str:
    """Return the command that installs the full wheel of a version."""
    return f"{_INSTALL} {version} --full"


def format_full_wheel_remedy(version: str) -> str:
    """Return the remedy for a graph that a JIT wheel refuses: the full wheel, and how large it is."""
    return f"{format_full_wheel_command(version)} (1 GB), then explain again"


def describe_missing_engines(absent: Sequence[str]) -> str:
    """Return a remark that names the missing sub-libraries, as their engines were not judged."""
    libraries = _format_sub_library_names(absent)
    return f"this library lacks {libraries}: engines in them, for convolutions among others, were not judged"


def _format_sub_library_names(absent: Sequence[str]) -> str:
    return " and ".join(f"libcudnn_{name}" for name in absent)
