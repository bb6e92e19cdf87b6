"""cudnn-frontend's enums with its names and numbers, and the corresponding names in cuDNN's backend."""

from __future__ import annotations

from enum import Enum
from typing import Any

from ..generated import enums as backend
from ..graph.data_types import DATA_TYPES
from ..printable import format_repr

__all__ = [
    "FRONTEND_KNOB_TYPE_BASE",
    "NodeType",
    "attention_implementation",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "cuda_graph_retention",
    "data_type",
    "diagonal_alignment",
    "heur_mode",
    "is_frontend_knob_type",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "padding_mode",
    "reduction_mode",
    "resample_mode",
    "reshape_mode",
    "rng_distribution",
    "scalar_type",
    "tensor_reordering",
    "to_data_type",
]


class _Enum(Enum):
    """Base of enums that behave as cudnn-frontend's: truthy, not ints, but convertible with ``int()``."""

    _value_: int

    def __int__(self) -> int:
        return self._value_

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __repr__ = __str__


class data_type(_Enum):
    """Data types of elements; :attr:`backend` is None for NOT_SET.

    cudnn-frontend's Python module has no name for 13, which is BYTE_BOOLEAN in C++.
    """

    NOT_SET = 0
    FLOAT = 1
    DOUBLE = 2
    HALF = 3
    INT8 = 4
    INT32 = 5
    INT8x4 = 6
    UINT8 = 7
    UINT8x4 = 8
    INT8x32 = 9
    BFLOAT16 = 10
    INT64 = 11
    BOOLEAN = 12
    BYTE_BOOLEAN = 13
    FP8_E4M3 = 14
    FP8_E5M2 = 15
    FAST_FLOAT_FOR_FP8 = 16
    FP8_E8M0 = 17
    FP8_E5M3 = 18
    FP4_E2M1 = 19
    INT4 = 20

    @property
    def backend(self) -> backend.DataType | None:
        """The corresponding value of cuDNN's backend."""
        return _BACKEND_DATA_TYPES[self]


_BACKEND_DATA_TYPES = {item: backend.DataType.__members__.get(item.name) for item in data_type}


class heur_mode(_Enum):
    """Heuristics modes, by which cuDNN proposes engine configs for a graph."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3


class NodeType(Enum):
    """Kinds of operations in ``pygraph.nodes``, including those of cudnn-frontend's own kernels."""

    COMPOSITE = 1
    CONV_FPROP = 2
    CONV_DGRAD = 3
    CONV_WGRAD = 4
    GENSTATS = 5
    RESHAPE = 6
    SLICE = 7
    CONCATENATE = 8
    TRANSPOSE = 9
    ROPE = 10
    ROPE_BWD = 11
    MOE_GROUPED_MATMUL_BWD = 12
    MATMUL = 13
    MATMUL_FP8 = 14
    POINTWISE = 15
    REDUCTION = 16
    RMSNORM = 17
    RMSNORM_BWD = 18
    LAYERNORM = 19
    LAYERNORM_BWD = 20
    ADALAYERNORM = 21
    ADALAYERNORM_BWD = 22
    INSTANCENORM = 23
    INSTANCENORM_BWD = 24
    BATCHNORM = 25
    BATCHNORM_INFERENCE = 26
    BATCHNORM_BWD = 27
    SDPA = 28
    SDPA_BWD = 29
    SDPA_FP8 = 30
    SDPA_FP8_BWD = 31
    SDPA_MXFP8 = 32
    SDPA_MXFP8_BWD = 33
    GDN = 34
    GDN_BWD = 35
    KDA = 36
    KDA_BWD = 37
    GDN2 = 38
    GDN2_BWD = 39
    MOE_GROUPED_MATMUL = 40
    BLOCK_SCALE_QUANTIZE = 41
    BLOCK_SCALE_DEQUANTIZE = 42
    GDP = 43
    GDP_BWD = 44
    GDN_SUMMARY = 45
    KDA_SUMMARY = 46
    GDN2_SUMMARY = 47
    GDP_SUMMARY = 48
    GDN_SUMMARY_BWD = 49
    KDA_SUMMARY_BWD = 50
    GDN2_SUMMARY_BWD = 51
    GDP_SUMMARY_BWD = 52
    MAMBA2 = 53
    MAMBA2_BWD = 54
    MAMBA2_SUMMARY = 55
    MAMBA2_SUMMARY_BWD = 56
    RESAMPLE = 101  # in cudnn-frontend's C++ only, as those below
    RNG = 102
    PAGED_CACHE_LOAD = 103
    BN_FINALIZE = 104


class norm_forward_phase(_Enum):
    """Whether a norm stores the statistics for its backward pass."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2


class reduction_mode(_Enum):
    """Operators of reductions."""

    NOT_SET = 0
    ADD = 1
    MUL = 2
    MIN = 3
    MAX = 4
    AMAX = 5
    AVG = 6
    NORM1 = 7
    NORM2 = 8
    MUL_NO_ZEROS = 9


class behavior_note(_Enum):
    """Notes on the behavior of engines, such as compilation at run time."""

    NOT_SET = 0
    RUNTIME_COMPILATION = 1
    REQUIRES_FILTER_INT8x32_REORDER = 2
    REQUIRES_BIAS_INT8x32_REORDER = 3
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 4
    CUBLASLT_DEPENDENCY = 5


class numerical_note(_Enum):
    """Notes on the arithmetic of engines, such as use of tensor cores."""

    NOT_SET = 0
    TENSOR_CORE = 1
    DOWN_CONVERT_INPUTS = 2
    REDUCED_PRECISION_REDUCTION = 3
    FFT = 4
    NONDETERMINISTIC = 5
    WINOGRAD = 6
    WINOGRAD_TILE_4x4 = 7
    WINOGRAD_TILE_6x6 = 8
    WINOGRAD_TILE_13x13 = 9
    STRICT_NAN_PROP = 10


class knob_type(_Enum):
    """Kinds of tuning parameters of engines, such as tile sizes."""

    NOT_SET = 0
    SWIZZLE = 1
    TILE_SIZE = 2
    EDGE = 3
    MULTIPLY = 4
    SPLIT_K_BUF = 5
    TILEK = 6
    STAGES = 7
    REDUCTION_MODE = 8
    SPLIT_K_SLC = 9
    IDX_MODE = 10
    SPECFILT = 11
    KERNEL_CFG = 12
    WORKSPACE = 13
    TILE_CGA_M = 14
    TILE_CGA_N = 15
    BLOCK_SIZE = 16
    OCCUPANCY = 17
    ARRAY_SIZE_PER_THREAD = 18
    SPLIT_COLS = 19
    TILE_ROWS = 20
    TILE_COLS = 21
    LOAD_SIZE = 22
    CTA_COUNT = 23
    STREAM_K = 24
    SPLIT_P_SLC = 25
    TILE_M = 26
    TILE_N = 27
    WARP_SPEC_CFG = 28
    SWAP_AB = 29
    INPUT_TMA_ENABLE = 30
    OUTPUT_TMA_ENABLE = 31
    TILE_CGA = 32
    SCHED_POLICY = 1000
    PACK_GQA = 1001
    SPLIT_KV = 1002
    PIPELINE_ARCH = 1003
    MMA_TILE_M = 1004
    MMA_TILE_N = 1005
    MMA_TILE_K = 1006
    CTA_GROUP = 1007
    WARPS_M = 1008
    WARPS_N = 1009


FRONTEND_KNOB_TYPE_BASE = 1000


def is_frontend_knob_type(knob_type: knob_type) -> bool:
    """Return whether a knob belongs to cudnn-frontend's own kernels, and not to cuDNN's engines."""
    return int(knob_type) >= FRONTEND_KNOB_TYPE_BASE


class cuda_graph_retention(_Enum):
    """Whether CUDA graphs captured from a plan's launches keep its kernels alive."""

    PER_GRAPH = 0
    NONE = 1


class build_plan_policy(_Enum):
    """Which of the proposed plans to build."""

    HEURISTICS_CHOICE = 0
    ALL = 1


class tensor_reordering(_Enum):
    """Orders of elements in memory."""

    NONE = 0
    INT8x32 = 1
    F16x16 = 2
    F8_128x4 = 3


class diagonal_alignment(_Enum):
    """The corner of the scores at which the diagonal of a mask starts."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


class attention_implementation(_Enum):
    """Whether attention is composed of several operations or is a single one."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2


class moe_grouped_matmul_mode(_Enum):
    """How tokens are assigned to experts."""

    NONE = 1
    GATHER = 2
    SCATTER = 3
    COMBINE = 4


class scalar_type(_Enum):
    """Whether a scalar is given at each execution or fixed in the plan."""

    RUNTIME_PARAM = 0
    COMPILE_TIME_CONST = 1


class reshape_mode(_Enum):
    """Whether a reshape changes the view or the order of elements."""

    VIEW_ONLY = 1
    LOGICAL = 2


class convolution_mode(_Enum):
    """Whether the filter is flipped."""

    CONVOLUTION = 1
    CROSS_CORRELATION = 2


class resample_mode(_Enum):
    """How a window is reduced to one element."""

    NOT_SET = 0
    AVGPOOL_EXCLUDE_PADDING = 1
    AVGPOOL_INCLUDE_PADDING = 2
    BILINEAR = 3
    NEAREST = 4
    MAXPOOL = 5


class padding_mode(_Enum):
    """Values that are used for the elements outside of an image."""

    NOT_SET = 0
    EDGE_VAL_PAD = 1
    NEG_INF_PAD = 2
    ZERO_PAD = 3


class rng_distribution(_Enum):
    """Distributions of random numbers."""

    NOT_SET = 0
    BERNOULLI = 1
    UNIFORM = 2
    NORMAL = 3


_DATA_TYPE_PROPERTIES = {item: DATA_TYPES[kind] for item, kind in _BACKEND_DATA_TYPES.items() if kind is not None}
# Types of torch by their names, so that torch need not be imported.
TORCH_NAMES = {item: facts.torch[0] for item, facts in _DATA_TYPE_PROPERTIES.items() if facts.torch}
DLPACK_TYPES = {facts.dlpack: item for item, facts in _DATA_TYPE_PROPERTIES.items() if facts.dlpack}
_TYPES_BY_TORCH_NAME = {f"torch.{name}": item for item, facts in _DATA_TYPE_PROPERTIES.items() for name in facts.torch}


def to_data_type(value: Any) -> data_type:
    """Convert a ``cudnn.data_type`` or a torch dtype to a data type; NOT_SET for None.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if isinstance(value, data_type):
        return value
    if value is None:
        return data_type.NOT_SET
    found = _TYPES_BY_TORCH_NAME.get(str(value))
    if found is None:
        raise TypeError(f"{format_repr(value)} is neither a cudnn.data_type nor a torch dtype that corresponds to one")
    return found
