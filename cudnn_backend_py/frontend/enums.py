"""cudnn-frontend's enumerations: its names and its own integers, and what they are called in cuDNN's backend."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ..generated import enums as backend
from ..graph.data_types import DATA_TYPES

__all__ = [
    "attention_implementation",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "data_type",
    "diagonal_alignment",
    "heur_mode",
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


class _Names(IntEnum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {int(self)}>"


class data_type(_Names):
    """Types of elements; :attr:`backend` is None for NOT_SET."""

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
    FP8_E4M3 = 13
    FP8_E5M2 = 14
    FAST_FLOAT_FOR_FP8 = 15
    FP8_E8M0 = 16
    FP4_E2M1 = 17
    INT4 = 18

    @property
    def backend(self) -> backend.DataType | None:
        """The backend's name of it."""
        return _DATA_TYPES[self]


_DATA_TYPES = {item: backend.DataType.__members__.get(item.name) for item in data_type}


class heur_mode(_Names):
    """Heuristics modes."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3


class norm_forward_phase(_Names):
    """Whether a norm keeps what its backward pass needs."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2


class reduction_mode(_Names):
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


class behavior_note(_Names):
    """What using an engine entails."""

    NOT_SET = 0
    RUNTIME_COMPILATION = 1
    REQUIRES_FILTER_INT8x32_REORDER = 2
    REQUIRES_BIAS_INT8x32_REORDER = 3
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 4
    CUBLASLT_DEPENDENCY = 5


class numerical_note(_Names):
    """Numerical properties of an engine."""

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


class knob_type(_Names):
    """Knobs of engines."""

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


class build_plan_policy(_Names):
    """Which of the proposed plans are built."""

    HEURISTICS_CHOICE = 0
    ALL = 1


class tensor_reordering(_Names):
    """Layouts of elements inside blocks."""

    NONE = 0
    INT8x32 = 1
    F16x16 = 2
    F8_128x4 = 3


class diagonal_alignment(_Names):
    """Which corner of the scores the diagonal of a mask starts from."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


class attention_implementation(_Names):
    """Attention as many operations or as one."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2


class moe_grouped_matmul_mode(_Names):
    """How tokens reach their experts."""

    NONE = 1
    GATHER = 2
    SCATTER = 3


class scalar_type(_Names):
    """Whether a scalar is given at each execution or fixed in the plan."""

    RUNTIME_PARAM = 0
    COMPILE_TIME_CONST = 1


class reshape_mode(_Names):
    """Whether a reshape changes the view or the order of elements."""

    VIEW_ONLY = 1
    LOGICAL = 2


class convolution_mode(_Names):
    """Whether the filter is flipped."""

    CONVOLUTION = 1
    CROSS_CORRELATION = 2


class resample_mode(_Names):
    """How a window becomes one element."""

    NOT_SET = 0
    AVGPOOL_EXCLUDE_PADDING = 1
    AVGPOOL_INCLUDE_PADDING = 2
    BILINEAR = 3
    NEAREST = 4
    MAXPOOL = 5


class padding_mode(_Names):
    """What stands outside of an image."""

    NOT_SET = 0
    EDGE_VAL_PAD = 1
    NEG_INF_PAD = 2
    ZERO_PAD = 3


class rng_distribution(_Names):
    """Distributions of random numbers."""

    NOT_SET = 0
    BERNOULLI = 1
    UNIFORM = 2
    NORMAL = 3


_FACTS = {item: DATA_TYPES[kind] for item, kind in _DATA_TYPES.items() if kind is not None}
# Types of torch by their names, so that torch need not be imported.
TORCH_NAMES = {item: facts.torch[0] for item, facts in _FACTS.items() if facts.torch}
DLPACK_TYPES = {facts.dlpack: item for item, facts in _FACTS.items() if facts.dlpack}
_TORCH_TYPES = {f"torch.{name}": item for item, facts in _FACTS.items() for name in facts.torch}


def to_data_type(value: Any) -> data_type:
    """Return the data type that `value` is, or that a torch dtype is called.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if isinstance(value, data_type):
        return value
    found = _TORCH_TYPES.get(str(value))
    if found is None:
        raise TypeError(f"{value!r} is no cudnn.data_type and no torch dtype with one")
    return found
