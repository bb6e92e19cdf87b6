# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:b1b3cc8f7454d5a313cb308444bf6c5a468e731c3d6194911eb65b84c58887c2
# Command: python -m tools.codegen
"""One frozen value class per descriptor type, with the facts of its attributes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

from .attributes import ATTRIBUTE_FACTS, ATTRIBUTE_OWNER, ATTRIBUTES, ENUM_OF_TYPE, AttributeFacts
from .enums import (
    BnFinalizeStatsMode,
    ConvolutionMode,
    CudaGraphRetention,
    DataType,
    DescriptorType,
    GenStatsMode,
    HeurMode,
    KnobType,
    MoeGroupedMatmulMode,
    NanPropagation,
    NormFwdPhase,
    NormMode,
    OperationGraphMode,
    PaddingMode,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
    ReshapeMode,
    RngDistribution,
    SignalMode,
    TensorReordering,
)

__all__ = [
    "ATTRIBUTES",
    "ATTRIBUTE_FACTS",
    "ATTRIBUTE_OWNER",
    "DESCRIPTORS",
    "ENUM_OF_TYPE",
    "AttributeFacts",
    "Convolution",
    "DescriptorValue",
    "DeviceProp",
    "Engine",
    "EngineCfg",
    "EngineHeur",
    "ExecutionPlan",
    "IntermediateInfo",
    "KernelCache",
    "KnobChoice",
    "KnobInfo",
    "LayoutInfo",
    "Matmul",
    "OperationBlockScaleDequantize",
    "OperationBlockScaleQuantize",
    "OperationBnBwdWeights",
    "OperationBnFinalizeStatistics",
    "OperationConcat",
    "OperationContractBandMatrix",
    "OperationConvolutionBackwardData",
    "OperationConvolutionBackwardFilter",
    "OperationConvolutionForward",
    "OperationDiagonalBandMask",
    "OperationExpandBandMatrix",
    "OperationGenStats",
    "OperationGraph",
    "OperationMatmul",
    "OperationMoeGroupedMatmul",
    "OperationMoeGroupedMatmulBwd",
    "OperationNormBackward",
    "OperationNormForward",
    "OperationPagedCacheLoad",
    "OperationPointwise",
    "OperationReduction",
    "OperationResampleBwd",
    "OperationResampleFwd",
    "OperationReshape",
    "OperationRng",
    "OperationRopeBwd",
    "OperationRopeFwd",
    "OperationSdpaBwd",
    "OperationSdpaFwd",
    "OperationSignal",
    "OperationSlice",
    "OperationSoftmax",
    "OperationTranspose",
    "Pointwise",
    "Reduction",
    "Resample",
    "Rng",
    "Tensor",
    "VariantPack",
]

Value = TypeVar("Value")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _value(cls: type[Value]) -> type[Value]:
    """Make a frozen dataclass whose methods are those of its base: generated ones cost a millisecond each at import."""
    return dataclass(init=False, repr=False, eq=False)(cls)


@_value
class DescriptorValue:
    """A descriptor as a plain value; building the C object is somebody else's work."""

    kind: ClassVar[DescriptorType]
    attributes: ClassVar[tuple[AttributeFacts, ...]]

    def __init__(self, **values: Any) -> None:
        facts = [item for item in self.attributes if item.role != "output"]
        unknown = values.keys() - {item.field for item in facts}
        missing = [item.field for item in facts if item.required and item.field not in values]
        if unknown or missing:
            wrong = f"has no {', '.join(sorted(unknown))}" if unknown else f"needs {', '.join(missing)}"
            raise TypeError(f"{type(self).__name__} {wrong}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DescriptorValue):
            return NotImplemented
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        pairs = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(self))
        return f"{type(self).__name__}({', '.join(pairs)})"


@_value
class Pointwise(DescriptorValue):
    """CUDNN_BACKEND_POINTWISE_DESCRIPTOR, since cuDNN 9.0.0; 10 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.POINTWISE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.POINTWISE]

    mode: PointwiseMode
    math_prec: DataType
    nan_propagation: NanPropagation | None = None
    relu_lower_clip: float | None = None
    relu_upper_clip: float | None = None
    relu_lower_clip_slope: float | None = None
    elu_alpha: float | None = None
    softplus_beta: float | None = None
    swish_beta: float | None = None
    axis: int | None = None


@_value
class Convolution(DescriptorValue):
    """CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, since cuDNN 9.0.0; 7 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.CONVOLUTION
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.CONVOLUTION]

    comp_type: DataType
    conv_mode: ConvolutionMode
    dilations: tuple[int, ...]
    filter_strides: tuple[int, ...]
    post_paddings: tuple[int, ...]
    pre_paddings: tuple[int, ...]
    spatial_dims: int


@_value
class Engine(DescriptorValue):
    """CUDNN_BACKEND_ENGINE_DESCRIPTOR, since cuDNN 9.0.0; 10 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.ENGINE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.ENGINE]

    operation_graph: OperationGraph
    global_index: int
    sm_count_target: int | None = None
    deviceprop: DeviceProp | None = None
    disable_cluster_cooperative: bool | None = None
    shared_memory_limit: int | None = None


@_value
class EngineCfg(DescriptorValue):
    """CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, since cuDNN 9.0.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.ENGINECFG
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.ENGINECFG]

    engine: Engine
    knob_choices: tuple[KnobChoice, ...] | None = None
    shared_memory_used: int | None = None


@_value
class EngineHeur(DescriptorValue):
    """CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.ENGINEHEUR
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.ENGINEHEUR]

    mode: HeurMode
    operation_graph: OperationGraph
    sm_count_target: int | None = None
    deviceprop: DeviceProp | None = None
    shared_memory_limit: int | None = None


@_value
class ExecutionPlan(DescriptorValue):
    """CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, since cuDNN 9.0.0; 9 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.EXECUTION_PLAN
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.EXECUTION_PLAN]

    handle: Any = None
    engine_config: EngineCfg | None = None
    computed_intermediate_uids: tuple[int, ...] | None = None
    run_only_intermediate_uids: int | None = None
    json_representation: str | None = None
    kernel_cache: KernelCache | None = None
    deviceprop: DeviceProp | None = None
    cuda_graph_retention: CudaGraphRetention | None = None


@_value
class IntermediateInfo(DescriptorValue):
    """CUDNN_BACKEND_INTERMEDIATE_INFO_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.INTERMEDIATE_INFO
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.INTERMEDIATE_INFO]


@_value
class KnobChoice(DescriptorValue):
    """CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, since cuDNN 9.0.0; 2 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.KNOB_CHOICE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.KNOB_CHOICE]

    knob_type: KnobType
    knob_value: int


@_value
class KnobInfo(DescriptorValue):
    """CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.KNOB_INFO
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.KNOB_INFO]


@_value
class LayoutInfo(DescriptorValue):
    """CUDNN_BACKEND_LAYOUT_INFO_DESCRIPTOR, since cuDNN 9.0.0; 2 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.LAYOUT_INFO
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.LAYOUT_INFO]


@_value
class OperationConvolutionForward(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_FORWARD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_CONVOLUTION_FORWARD]

    alpha: float | int
    beta: float | int
    convolution: Convolution
    w: Tensor
    x: Tensor
    y: Tensor


@_value
class OperationConvolutionBackwardFilter(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER]

    alpha: float
    beta: float
    convolution: Convolution
    dw: Tensor
    x: Tensor
    dy: Tensor


@_value
class OperationConvolutionBackwardData(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA]

    alpha: float
    beta: float
    convolution: Convolution
    w: Tensor
    dx: Tensor
    dy: Tensor


@_value
class OperationPointwise(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, since cuDNN 9.0.0; 9 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_POINTWISE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_POINTWISE]

    pointwise: Pointwise
    x: Tensor | None = None
    b: Tensor | None = None
    y: Tensor | None = None
    alpha1: float | None = None
    alpha2: float | None = None
    dx: Tensor | None = None
    dy: Tensor | None = None
    t: Tensor | None = None


@_value
class OperationGenStats(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, since cuDNN 9.0.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_GEN_STATS
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_GEN_STATS]

    mode: GenStatsMode
    math_prec: DataType
    x: Tensor
    sum: Tensor
    sqsum: Tensor


@_value
class OperationGraph(DescriptorValue):
    """CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, since cuDNN 9.0.0; 7 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATIONGRAPH
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATIONGRAPH]

    ops: tuple[DescriptorValue, ...]
    handle: Any = None
    is_dynamic_shape_enabled: bool | None = None
    is_override_shape_enabled: bool | None = None
    mode: OperationGraphMode | None = None


@_value
class VariantPack(DescriptorValue):
    """CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, since cuDNN 9.0.0; 7 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.VARIANT_PACK
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.VARIANT_PACK]

    unique_ids: tuple[int, ...]
    data_pointers: tuple[int, ...]
    intermediates: tuple[int, ...] | None = None
    workspace: int | None = None
    override_unique_ids: tuple[int, ...] | None = None
    override_shapes: int | None = None
    override_strides: int | None = None


@_value
class Tensor(DescriptorValue):
    """CUDNN_BACKEND_TENSOR_DESCRIPTOR, since cuDNN 9.0.0; 13 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.TENSOR
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.TENSOR]

    byte_alignment: int
    data_type: DataType
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    unique_id: int
    vector_count: int | None = None
    vectorized_dimension: int | None = None
    is_virtual: bool | None = None
    is_by_value: bool | None = None
    reordering_mode: TensorReordering | None = None
    constant_value: int | None = None
    ragged_offset: Tensor | None = None
    ragged_offset_multiplier: int | None = None


@_value
class Matmul(DescriptorValue):
    """CUDNN_BACKEND_MATMUL_DESCRIPTOR, since cuDNN 9.0.0; 2 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.MATMUL
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.MATMUL]

    comp_type: DataType
    padding_value: float | int | None = None


@_value
class OperationMatmul(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, since cuDNN 9.0.0; 8 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_MATMUL
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_MATMUL]

    a: Tensor
    b: Tensor
    c: Tensor
    matmul: Matmul
    irregularly_strided_batch_count: int | None = None
    gemm_m_override: Tensor | None = None
    gemm_n_override: Tensor | None = None
    gemm_k_override: Tensor | None = None


@_value
class OperationBnFinalizeStatistics(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR, since cuDNN 9.0.0; 17 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_BN_FINALIZE_STATISTICS
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_BN_FINALIZE_STATISTICS]

    stats_mode: BnFinalizeStatsMode
    math_prec: DataType
    y_sum: Tensor
    y_sq_sum: Tensor
    scale: Tensor
    bias: Tensor
    saved_mean: Tensor
    saved_inv_std: Tensor
    eq_scale: Tensor
    eq_bias: Tensor
    accum_count: Tensor
    epsilon: Tensor
    exp_average_factor: Tensor
    prev_running_mean: Tensor | None = None
    prev_running_var: Tensor | None = None
    updated_running_mean: Tensor | None = None
    updated_running_var: Tensor | None = None


@_value
class Reduction(DescriptorValue):
    """CUDNN_BACKEND_REDUCTION_DESCRIPTOR, since cuDNN 9.0.0; 3 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.REDUCTION
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.REDUCTION]

    operator: ReduceTensorOp
    comp_type: DataType
    is_deterministic: bool | None = None


@_value
class OperationReduction(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, since cuDNN 9.0.0; 11 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_REDUCTION
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_REDUCTION]

    x: Tensor
    y: Tensor
    reduction: Reduction
    group_offset: Tensor | None = None
    dims: tuple[int, ...] | None = None
    init_values: tuple[int, ...] | None = None
    subgraph: OperationGraph | None = None
    subgraph_accumulator_uids: tuple[int, ...] | None = None
    subgraph_current_uids: tuple[int, ...] | None = None
    subgraph_output_uids: tuple[int, ...] | None = None
    subgraph_compute_types: tuple[DataType, ...] | None = None


@_value
class OperationBnBwdWeights(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, since cuDNN 9.0.0; 11 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_BN_BWD_WEIGHTS
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_BN_BWD_WEIGHTS]

    math_prec: DataType
    mean: Tensor
    invstd: Tensor
    bn_scale: Tensor
    x: Tensor
    dy: Tensor
    dbn_scale: Tensor
    dbn_bias: Tensor
    eq_dy_scale: Tensor
    eq_x_scale: Tensor
    eq_bias: Tensor


@_value
class Resample(DescriptorValue):
    """CUDNN_BACKEND_RESAMPLE_DESCRIPTOR, since cuDNN 9.0.0; 9 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.RESAMPLE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.RESAMPLE]

    spatial_dims: int
    post_paddings: tuple[int | tuple[int, int], ...]
    pre_paddings: tuple[int | tuple[int, int], ...]
    strides: tuple[int | tuple[int, int], ...]
    window_dims: tuple[int | tuple[int, int], ...]
    mode: ResampleMode | None = None
    comp_type: DataType | None = None
    nan_propagation: NanPropagation | None = None
    padding_mode: PaddingMode | None = None


@_value
class OperationResampleFwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_RESAMPLE_FWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_RESAMPLE_FWD]

    x: Tensor
    y: Tensor
    resample: Resample
    idx: Tensor | None = None
    alpha: float | None = None
    beta: float | None = None


@_value
class OperationResampleBwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, since cuDNN 9.0.0; 8 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_RESAMPLE_BWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_RESAMPLE_BWD]

    dx: Tensor
    dy: Tensor
    resample: Resample
    idx: Tensor | None = None
    alpha: float | None = None
    beta: float | None = None
    x: Tensor | None = None
    y: Tensor | None = None


@_value
class OperationConcat(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONCAT
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_CONCAT]

    axis: int
    input: tuple[Tensor, ...]
    output: Tensor
    inplace_index: int | None = None


@_value
class OperationSignal(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_SIGNAL_DESCRIPTOR, since cuDNN 9.0.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_SIGNAL
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_SIGNAL]

    mode: SignalMode
    flag: Tensor
    value: int
    x: Tensor
    y: Tensor | None = None


@_value
class OperationNormForward(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, since cuDNN 9.0.0; 15 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_NORM_FORWARD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_NORM_FORWARD]

    mode: NormMode
    phase: NormFwdPhase
    x: Tensor
    y: Tensor
    mean: Tensor | None = None
    inv_variance: Tensor | None = None
    scale: Tensor | None = None
    bias: Tensor | None = None
    epsilon: Tensor | None = None
    exp_avg_factor: Tensor | None = None
    input_running_mean: Tensor | None = None
    input_running_var: Tensor | None = None
    output_running_mean: Tensor | None = None
    output_running_var: Tensor | None = None
    peer_stat: tuple[Tensor, ...] | None = None


@_value
class OperationNormBackward(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, since cuDNN 9.0.0; 11 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_NORM_BACKWARD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_NORM_BACKWARD]

    mode: NormMode
    x: Tensor
    dy: Tensor
    dx: Tensor
    mean: Tensor | None = None
    inv_variance: Tensor | None = None
    scale: Tensor | None = None
    epsilon: Tensor | None = None
    dscale: Tensor | None = None
    dbias: Tensor | None = None
    peer_stat: tuple[Tensor, ...] | None = None


@_value
class OperationReshape(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, since cuDNN 9.0.0; 3 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_RESHAPE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_RESHAPE]

    x: Tensor
    y: Tensor
    mode: ReshapeMode | None = None


@_value
class Rng(DescriptorValue):
    """CUDNN_BACKEND_RNG_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.RNG
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.RNG]

    distribution: RngDistribution | None = None
    normal_dist_mean: float | None = None
    normal_dist_standard_deviation: float | None = None
    uniform_dist_maximum: float | None = None
    uniform_dist_minimum: float | None = None
    bernoulli_dist_probability: float | None = None


@_value
class OperationRng(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_RNG
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_RNG]

    y: Tensor
    rng: Rng
    offset: Tensor
    seed: int | Tensor | None = None


@_value
class KernelCache(DescriptorValue):
    """CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR, since cuDNN 9.4.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.KERNEL_CACHE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.KERNEL_CACHE]

    operation_graph: OperationGraph | None = None
    json_representation: str | None = None


@_value
class OperationPagedCacheLoad(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR, since cuDNN 9.4.0; 4 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_PAGED_CACHE_LOAD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_PAGED_CACHE_LOAD]

    container: Tensor
    y: Tensor
    sequence: Tensor
    page_table: Tensor


@_value
class OperationBlockScaleQuantize(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR, since cuDNN 9.7.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE]

    x: Tensor
    y: Tensor
    scale: Tensor
    math_prec: DataType
    block_size: int


@_value
class OperationBlockScaleDequantize(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR, since cuDNN 9.7.0; 6 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE]

    x: Tensor
    scale: Tensor
    y: Tensor
    math_prec: DataType
    block_size: tuple[int, ...]
    neg_scale: bool | None = None


@_value
class DeviceProp(DescriptorValue):
    """CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since cuDNN 9.8.0; 3 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.DEVICEPROP
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.DEVICEPROP]

    device_id: int | None = None
    handle: Any = None
    json_representation: str | None = None


@_value
class OperationExpandBandMatrix(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR, since cuDNN 9.10.0; 8 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_EXPAND_BAND_MATRIX
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_EXPAND_BAND_MATRIX]

    x: Tensor
    y: Tensor
    lower_bandwidth: int
    upper_bandwidth: int
    axis: int
    pad_value: float | None = None
    kv_token_offset: Tensor | None = None
    speculative_mask: Tensor | None = None


@_value
class OperationContractBandMatrix(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR, since cuDNN 9.10.0; 7 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONTRACT_BAND_MATRIX
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_CONTRACT_BAND_MATRIX]

    x: Tensor
    y: Tensor
    lower_bandwidth: int
    upper_bandwidth: int
    axis: int
    pad_value: float | None = None
    max_token_value: int | None = None


@_value
class OperationSdpaFwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, since cuDNN 9.13.0; 30 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_SDPA_FWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_SDPA_FWD]

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    stats: Tensor | None = None
    scale: Tensor | None = None
    block_mask: Tensor | None = None
    page_table_k: Tensor | None = None
    page_table_v: Tensor | None = None
    seq_len_q: Tensor | None = None
    seq_len_kv: Tensor | None = None
    subgraph: OperationGraph | None = None
    subgraph_input_uid: int | None = None
    subgraph_output_uid: int | None = None
    softmax: OperationSoftmax | None = None
    dropout_seed: Tensor | None = None
    dropout_offset: Tensor | None = None
    dropout_rng_dump: Tensor | None = None
    dropout_probability: float | None = None
    unfuse_fma: bool | None = None
    cu_seq_len_q: Tensor | None = None
    cu_seq_len_kv: Tensor | None = None
    descale_q: Tensor | None = None
    descale_k: Tensor | None = None
    descale_v: Tensor | None = None
    descale_s: Tensor | None = None
    scale_s: Tensor | None = None
    scale_o: Tensor | None = None
    amax_s: Tensor | None = None
    amax_o: Tensor | None = None


@_value
class OperationMoeGroupedMatmul(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR, since cuDNN 9.15.0; 9 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_MOE_GROUPED_MATMUL
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_MOE_GROUPED_MATMUL]

    mode: MoeGroupedMatmulMode
    math_prec: DataType
    token: Tensor
    weight: Tensor
    first_token_offset: Tensor
    output: Tensor
    token_index: Tensor | None = None
    token_ks: Tensor | None = None
    top_k: int | None = None


@_value
class OperationSdpaBwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, since cuDNN 9.17.0; 25 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_SDPA_BWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_SDPA_BWD]

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    stats: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    d_o: Tensor
    scale: Tensor | None = None
    seq_len_q: Tensor | None = None
    seq_len_kv: Tensor | None = None
    sink: Tensor | None = None
    dsink: Tensor | None = None
    max_total_seq_len_q: int | None = None
    max_total_seq_len_kv: int | None = None
    subgraph: OperationGraph | None = None
    subgraph_input_uid: int | None = None
    subgraph_output_uid: int | None = None
    cu_seq_len_q: Tensor | None = None
    cu_seq_len_kv: Tensor | None = None
    dropout_seed: Tensor | None = None
    dropout_offset: Tensor | None = None
    dropout_probability: float | None = None
    dbias: Tensor | None = None


@_value
class OperationDiagonalBandMask(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, since cuDNN 9.20.0; 10 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_DIAGONAL_BAND_MASK
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_DIAGONAL_BAND_MASK]

    x: Tensor
    y: Tensor
    comparison_mode: PointwiseMode
    seq_len_kv: Tensor | None = None
    seq_len_q: Tensor | None = None
    left_bound: Tensor | None = None
    shift_right_bound: Tensor | None = None
    b: Tensor | None = None
    cu_seq_len_kv: Tensor | None = None
    cu_seq_len_q: Tensor | None = None


@_value
class OperationSoftmax(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, since cuDNN 9.20.0; 7 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_SOFTMAX
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_SOFTMAX]

    x: Tensor
    y: Tensor
    stats: Tensor | None = None
    max: Tensor | None = None
    sum_exp: Tensor | None = None
    sink: Tensor | None = None
    stats_log2: bool | None = None


@_value
class OperationTranspose(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR, since cuDNN 9.22.0; 3 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_TRANSPOSE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_TRANSPOSE]

    x: Tensor
    y: Tensor
    permutation: tuple[int, ...]


@_value
class OperationSlice(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_SLICE_DESCRIPTOR, since cuDNN 9.22.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_SLICE
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_SLICE]

    x: Tensor
    y: Tensor
    start_indices: tuple[int, ...]
    limit_indices: tuple[int, ...]
    strides: tuple[int, ...]


@_value
class OperationMoeGroupedMatmulBwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR, since cuDNN 9.22.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD]

    math_prec: DataType
    token: Tensor
    dweight: Tensor
    first_token_offset: Tensor
    doutput: Tensor


@_value
class OperationRopeFwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR, since cuDNN 9.24.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_ROPE_FWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_ROPE_FWD]

    x: Tensor
    y: Tensor
    freqs: Tensor
    output_scale: float | None = None
    rope_dim: int | None = None


@_value
class OperationRopeBwd(DescriptorValue):
    """CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR, since cuDNN 9.24.0; 5 attributes."""

    kind: ClassVar[DescriptorType] = DescriptorType.OPERATION_ROPE_BWD
    attributes: ClassVar[tuple[AttributeFacts, ...]] = ATTRIBUTES[DescriptorType.OPERATION_ROPE_BWD]

    dy: Tensor
    dx: Tensor
    freqs: Tensor
    output_scale: float | None = None
    rope_dim: int | None = None


DESCRIPTORS: dict[DescriptorType, type[DescriptorValue]] = {
    DescriptorType.POINTWISE: Pointwise,
    DescriptorType.CONVOLUTION: Convolution,
    DescriptorType.ENGINE: Engine,
    DescriptorType.ENGINECFG: EngineCfg,
    DescriptorType.ENGINEHEUR: EngineHeur,
    DescriptorType.EXECUTION_PLAN: ExecutionPlan,
    DescriptorType.INTERMEDIATE_INFO: IntermediateInfo,
    DescriptorType.KNOB_CHOICE: KnobChoice,
    DescriptorType.KNOB_INFO: KnobInfo,
    DescriptorType.LAYOUT_INFO: LayoutInfo,
    DescriptorType.OPERATION_CONVOLUTION_FORWARD: OperationConvolutionForward,
    DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER: OperationConvolutionBackwardFilter,
    DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA: OperationConvolutionBackwardData,
    DescriptorType.OPERATION_POINTWISE: OperationPointwise,
    DescriptorType.OPERATION_GEN_STATS: OperationGenStats,
    DescriptorType.OPERATIONGRAPH: OperationGraph,
    DescriptorType.VARIANT_PACK: VariantPack,
    DescriptorType.TENSOR: Tensor,
    DescriptorType.MATMUL: Matmul,
    DescriptorType.OPERATION_MATMUL: OperationMatmul,
    DescriptorType.OPERATION_BN_FINALIZE_STATISTICS: OperationBnFinalizeStatistics,
    DescriptorType.REDUCTION: Reduction,
    DescriptorType.OPERATION_REDUCTION: OperationReduction,
    DescriptorType.OPERATION_BN_BWD_WEIGHTS: OperationBnBwdWeights,
    DescriptorType.RESAMPLE: Resample,
    DescriptorType.OPERATION_RESAMPLE_FWD: OperationResampleFwd,
    DescriptorType.OPERATION_RESAMPLE_BWD: OperationResampleBwd,
    DescriptorType.OPERATION_CONCAT: OperationConcat,
    DescriptorType.OPERATION_SIGNAL: OperationSignal,
    DescriptorType.OPERATION_NORM_FORWARD: OperationNormForward,
    DescriptorType.OPERATION_NORM_BACKWARD: OperationNormBackward,
    DescriptorType.OPERATION_RESHAPE: OperationReshape,
    DescriptorType.RNG: Rng,
    DescriptorType.OPERATION_RNG: OperationRng,
    DescriptorType.KERNEL_CACHE: KernelCache,
    DescriptorType.OPERATION_PAGED_CACHE_LOAD: OperationPagedCacheLoad,
    DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE: OperationBlockScaleQuantize,
    DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE: OperationBlockScaleDequantize,
    DescriptorType.DEVICEPROP: DeviceProp,
    DescriptorType.OPERATION_EXPAND_BAND_MATRIX: OperationExpandBandMatrix,
    DescriptorType.OPERATION_CONTRACT_BAND_MATRIX: OperationContractBandMatrix,
    DescriptorType.OPERATION_SDPA_FWD: OperationSdpaFwd,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL: OperationMoeGroupedMatmul,
    DescriptorType.OPERATION_SDPA_BWD: OperationSdpaBwd,
    DescriptorType.OPERATION_DIAGONAL_BAND_MASK: OperationDiagonalBandMask,
    DescriptorType.OPERATION_SOFTMAX: OperationSoftmax,
    DescriptorType.OPERATION_TRANSPOSE: OperationTranspose,
    DescriptorType.OPERATION_SLICE: OperationSlice,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD: OperationMoeGroupedMatmulBwd,
    DescriptorType.OPERATION_ROPE_FWD: OperationRopeFwd,
    DescriptorType.OPERATION_ROPE_BWD: OperationRopeBwd,
}
