# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:b37fdf75d094706fd3eb9696cc7adb670f4a9ec0ada91195bded83026d85da01
# Command: python -m tools.codegen
"""One frozen value class per descriptor type, with the facts of its attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from ..frozen import FrozenValue
from .attributes import ATTRIBUTES, AttributeFacts
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

_D = DescriptorType
DESCRIPTORS: dict[DescriptorType, type[DescriptorValue]] = {}


class DescriptorValue(FrozenValue, kw_only=True):
    """Base of the value classes: a descriptor's attributes as plain data, without a C object."""

    kind: ClassVar[DescriptorType]
    attributes: ClassVar[tuple[AttributeFacts, ...]]

    def __init_subclass__(cls, kind: DescriptorType) -> None:
        super().__init_subclass__()
        cls.kind, cls.attributes = kind, ATTRIBUTES[kind]
        DESCRIPTORS[kind] = cls


class Pointwise(DescriptorValue, kind=_D.POINTWISE):
    """CUDNN_BACKEND_POINTWISE_DESCRIPTOR, since cuDNN 9.0.0; 10 attributes."""

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


class Convolution(DescriptorValue, kind=_D.CONVOLUTION):
    """CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, since cuDNN 9.0.0; 7 attributes."""

    comp_type: DataType
    conv_mode: ConvolutionMode
    dilations: tuple[int, ...]
    filter_strides: tuple[int, ...]
    post_paddings: tuple[int, ...]
    pre_paddings: tuple[int, ...]
    spatial_dims: int


class Engine(DescriptorValue, kind=_D.ENGINE):
    """CUDNN_BACKEND_ENGINE_DESCRIPTOR, since cuDNN 9.0.0; 10 attributes."""

    operation_graph: OperationGraph
    global_index: int
    sm_count_target: int | None = None
    deviceprop: DeviceProp | None = None
    disable_cluster_cooperative: bool | None = None
    shared_memory_limit: int | None = None


class EngineCfg(DescriptorValue, kind=_D.ENGINECFG):
    """CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, since cuDNN 9.0.0; 5 attributes."""

    engine: Engine
    knob_choices: tuple[KnobChoice, ...] | None = None
    shared_memory_used: int | None = None


class EngineHeur(DescriptorValue, kind=_D.ENGINEHEUR):
    """CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    mode: HeurMode
    operation_graph: OperationGraph
    sm_count_target: int | None = None
    deviceprop: DeviceProp | None = None
    shared_memory_limit: int | None = None


class ExecutionPlan(DescriptorValue, kind=_D.EXECUTION_PLAN):
    """CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, since cuDNN 9.0.0; 9 attributes."""

    handle: Any = None
    engine_config: EngineCfg | None = None
    computed_intermediate_uids: tuple[int, ...] | None = None
    run_only_intermediate_uids: int | None = None
    json_representation: str | None = None
    kernel_cache: KernelCache | None = None
    deviceprop: DeviceProp | None = None
    cuda_graph_retention: CudaGraphRetention | None = None


class IntermediateInfo(DescriptorValue, kind=_D.INTERMEDIATE_INFO):
    """CUDNN_BACKEND_INTERMEDIATE_INFO_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""


class KnobChoice(DescriptorValue, kind=_D.KNOB_CHOICE):
    """CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, since cuDNN 9.0.0; 2 attributes."""

    knob_type: KnobType
    knob_value: int


class KnobInfo(DescriptorValue, kind=_D.KNOB_INFO):
    """CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""


class LayoutInfo(DescriptorValue, kind=_D.LAYOUT_INFO):
    """CUDNN_BACKEND_LAYOUT_INFO_DESCRIPTOR, since cuDNN 9.0.0; 2 attributes."""


class OperationConvolutionForward(DescriptorValue, kind=_D.OPERATION_CONVOLUTION_FORWARD):
    """CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    alpha: float | int
    beta: float | int
    convolution: Convolution
    w: Tensor
    x: Tensor
    y: Tensor


class OperationConvolutionBackwardFilter(DescriptorValue, kind=_D.OPERATION_CONVOLUTION_BACKWARD_FILTER):
    """CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    alpha: float
    beta: float
    convolution: Convolution
    dw: Tensor
    x: Tensor
    dy: Tensor


class OperationConvolutionBackwardData(DescriptorValue, kind=_D.OPERATION_CONVOLUTION_BACKWARD_DATA):
    """CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    alpha: float
    beta: float
    convolution: Convolution
    w: Tensor
    dx: Tensor
    dy: Tensor


class OperationPointwise(DescriptorValue, kind=_D.OPERATION_POINTWISE):
    """CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, since cuDNN 9.0.0; 9 attributes."""

    pointwise: Pointwise
    x: Tensor | None = None
    b: Tensor | None = None
    y: Tensor | None = None
    alpha1: float | None = None
    alpha2: float | None = None
    dx: Tensor | None = None
    dy: Tensor | None = None
    t: Tensor | None = None


class OperationGenStats(DescriptorValue, kind=_D.OPERATION_GEN_STATS):
    """CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, since cuDNN 9.0.0; 5 attributes."""

    mode: GenStatsMode
    math_prec: DataType
    x: Tensor
    sum: Tensor
    sqsum: Tensor


class OperationGraph(DescriptorValue, kind=_D.OPERATIONGRAPH):
    """CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, since cuDNN 9.0.0; 7 attributes."""

    ops: tuple[DescriptorValue, ...]
    handle: Any = None
    is_dynamic_shape_enabled: bool | None = None
    is_override_shape_enabled: bool | None = None
    mode: OperationGraphMode | None = None


class VariantPack(DescriptorValue, kind=_D.VARIANT_PACK):
    """CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, since cuDNN 9.0.0; 7 attributes."""

    unique_ids: tuple[int, ...]
    data_pointers: tuple[int, ...]
    intermediates: tuple[int, ...] | None = None
    workspace: int | None = None
    override_unique_ids: tuple[int, ...] | None = None
    override_shapes: int | None = None
    override_strides: int | None = None


class Tensor(DescriptorValue, kind=_D.TENSOR):
    """CUDNN_BACKEND_TENSOR_DESCRIPTOR, since cuDNN 9.0.0; 13 attributes."""

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


class Matmul(DescriptorValue, kind=_D.MATMUL):
    """CUDNN_BACKEND_MATMUL_DESCRIPTOR, since cuDNN 9.0.0; 2 attributes."""

    comp_type: DataType
    padding_value: float | int | None = None


class OperationMatmul(DescriptorValue, kind=_D.OPERATION_MATMUL):
    """CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, since cuDNN 9.0.0; 8 attributes."""

    a: Tensor
    b: Tensor
    c: Tensor
    matmul: Matmul
    irregularly_strided_batch_count: int | None = None
    gemm_m_override: Tensor | None = None
    gemm_n_override: Tensor | None = None
    gemm_k_override: Tensor | None = None


class OperationBnFinalizeStatistics(DescriptorValue, kind=_D.OPERATION_BN_FINALIZE_STATISTICS):
    """CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR, since cuDNN 9.0.0; 17 attributes."""

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


class Reduction(DescriptorValue, kind=_D.REDUCTION):
    """CUDNN_BACKEND_REDUCTION_DESCRIPTOR, since cuDNN 9.0.0; 3 attributes."""

    operator: ReduceTensorOp
    comp_type: DataType
    is_deterministic: bool | None = None


class OperationReduction(DescriptorValue, kind=_D.OPERATION_REDUCTION):
    """CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, since cuDNN 9.0.0; 11 attributes."""

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


class OperationBnBwdWeights(DescriptorValue, kind=_D.OPERATION_BN_BWD_WEIGHTS):
    """CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, since cuDNN 9.0.0; 11 attributes."""

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


class Resample(DescriptorValue, kind=_D.RESAMPLE):
    """CUDNN_BACKEND_RESAMPLE_DESCRIPTOR, since cuDNN 9.0.0; 9 attributes."""

    spatial_dims: int
    post_paddings: tuple[int | tuple[int, int], ...]
    pre_paddings: tuple[int | tuple[int, int], ...]
    strides: tuple[int | tuple[int, int], ...]
    window_dims: tuple[int | tuple[int, int], ...]
    mode: ResampleMode | None = None
    comp_type: DataType | None = None
    nan_propagation: NanPropagation | None = None
    padding_mode: PaddingMode | None = None


class OperationResampleFwd(DescriptorValue, kind=_D.OPERATION_RESAMPLE_FWD):
    """CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    x: Tensor
    y: Tensor
    resample: Resample
    idx: Tensor | None = None
    alpha: float | None = None
    beta: float | None = None


class OperationResampleBwd(DescriptorValue, kind=_D.OPERATION_RESAMPLE_BWD):
    """CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, since cuDNN 9.0.0; 8 attributes."""

    dx: Tensor
    dy: Tensor
    resample: Resample
    idx: Tensor | None = None
    alpha: float | None = None
    beta: float | None = None
    x: Tensor | None = None
    y: Tensor | None = None


class OperationConcat(DescriptorValue, kind=_D.OPERATION_CONCAT):
    """CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""

    axis: int
    input: tuple[Tensor, ...]
    output: Tensor
    inplace_index: int | None = None


class OperationSignal(DescriptorValue, kind=_D.OPERATION_SIGNAL):
    """CUDNN_BACKEND_OPERATION_SIGNAL_DESCRIPTOR, since cuDNN 9.0.0; 5 attributes."""

    mode: SignalMode
    flag: Tensor
    value: int
    x: Tensor
    y: Tensor | None = None


class OperationNormForward(DescriptorValue, kind=_D.OPERATION_NORM_FORWARD):
    """CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, since cuDNN 9.0.0; 15 attributes."""

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


class OperationNormBackward(DescriptorValue, kind=_D.OPERATION_NORM_BACKWARD):
    """CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, since cuDNN 9.0.0; 11 attributes."""

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


class OperationReshape(DescriptorValue, kind=_D.OPERATION_RESHAPE):
    """CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, since cuDNN 9.0.0; 3 attributes."""

    x: Tensor
    y: Tensor
    mode: ReshapeMode | None = None


class Rng(DescriptorValue, kind=_D.RNG):
    """CUDNN_BACKEND_RNG_DESCRIPTOR, since cuDNN 9.0.0; 6 attributes."""

    distribution: RngDistribution | None = None
    normal_dist_mean: float | None = None
    normal_dist_standard_deviation: float | None = None
    uniform_dist_maximum: float | None = None
    uniform_dist_minimum: float | None = None
    bernoulli_dist_probability: float | None = None


class OperationRng(DescriptorValue, kind=_D.OPERATION_RNG):
    """CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR, since cuDNN 9.0.0; 4 attributes."""

    y: Tensor
    rng: Rng
    offset: Tensor
    seed: int | Tensor | None = None


class KernelCache(DescriptorValue, kind=_D.KERNEL_CACHE):
    """CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR, since cuDNN 9.4.0; 5 attributes."""

    operation_graph: OperationGraph | None = None
    json_representation: str | None = None


class OperationPagedCacheLoad(DescriptorValue, kind=_D.OPERATION_PAGED_CACHE_LOAD):
    """CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR, since cuDNN 9.4.0; 4 attributes."""

    container: Tensor
    y: Tensor
    sequence: Tensor
    page_table: Tensor


class OperationBlockScaleQuantize(DescriptorValue, kind=_D.OPERATION_BLOCK_SCALE_QUANTIZE):
    """CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR, since cuDNN 9.7.0; 5 attributes."""

    x: Tensor
    y: Tensor
    scale: Tensor
    math_prec: DataType
    block_size: int


class OperationBlockScaleDequantize(DescriptorValue, kind=_D.OPERATION_BLOCK_SCALE_DEQUANTIZE):
    """CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR, since cuDNN 9.7.0; 6 attributes."""

    x: Tensor
    scale: Tensor
    y: Tensor
    math_prec: DataType
    block_size: tuple[int, ...]
    neg_scale: bool | None = None


class DeviceProp(DescriptorValue, kind=_D.DEVICEPROP):
    """CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since cuDNN 9.8.0; 3 attributes."""

    device_id: int | None = None
    handle: Any = None
    json_representation: str | None = None


class OperationExpandBandMatrix(DescriptorValue, kind=_D.OPERATION_EXPAND_BAND_MATRIX):
    """CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR, since cuDNN 9.10.0; 8 attributes."""

    x: Tensor
    y: Tensor
    lower_bandwidth: int
    upper_bandwidth: int
    axis: int
    pad_value: float | None = None
    kv_token_offset: Tensor | None = None
    speculative_mask: Tensor | None = None


class OperationContractBandMatrix(DescriptorValue, kind=_D.OPERATION_CONTRACT_BAND_MATRIX):
    """CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR, since cuDNN 9.10.0; 7 attributes."""

    x: Tensor
    y: Tensor
    lower_bandwidth: int
    upper_bandwidth: int
    axis: int
    pad_value: float | None = None
    max_token_value: int | None = None


class OperationSdpaFwd(DescriptorValue, kind=_D.OPERATION_SDPA_FWD):
    """CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, since cuDNN 9.13.0; 30 attributes."""

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


class OperationMoeGroupedMatmul(DescriptorValue, kind=_D.OPERATION_MOE_GROUPED_MATMUL):
    """CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR, since cuDNN 9.15.0; 9 attributes."""

    mode: MoeGroupedMatmulMode
    math_prec: DataType
    token: Tensor
    weight: Tensor
    first_token_offset: Tensor
    output: Tensor
    token_index: Tensor | None = None
    token_ks: Tensor | None = None
    top_k: int | None = None


class OperationSdpaBwd(DescriptorValue, kind=_D.OPERATION_SDPA_BWD):
    """CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, since cuDNN 9.17.0; 25 attributes."""

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


class OperationDiagonalBandMask(DescriptorValue, kind=_D.OPERATION_DIAGONAL_BAND_MASK):
    """CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, since cuDNN 9.20.0; 10 attributes."""

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


class OperationSoftmax(DescriptorValue, kind=_D.OPERATION_SOFTMAX):
    """CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, since cuDNN 9.20.0; 7 attributes."""

    x: Tensor
    y: Tensor
    stats: Tensor | None = None
    max: Tensor | None = None
    sum_exp: Tensor | None = None
    sink: Tensor | None = None
    stats_log2: bool | None = None


class OperationTranspose(DescriptorValue, kind=_D.OPERATION_TRANSPOSE):
    """CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR, since cuDNN 9.22.0; 3 attributes."""

    x: Tensor
    y: Tensor
    permutation: tuple[int, ...]


class OperationSlice(DescriptorValue, kind=_D.OPERATION_SLICE):
    """CUDNN_BACKEND_OPERATION_SLICE_DESCRIPTOR, since cuDNN 9.22.0; 5 attributes."""

    x: Tensor
    y: Tensor
    start_indices: tuple[int, ...]
    limit_indices: tuple[int, ...]
    strides: tuple[int, ...]


class OperationMoeGroupedMatmulBwd(DescriptorValue, kind=_D.OPERATION_MOE_GROUPED_MATMUL_BWD):
    """CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR, since cuDNN 9.22.0; 5 attributes."""

    math_prec: DataType
    token: Tensor
    dweight: Tensor
    first_token_offset: Tensor
    doutput: Tensor


class OperationRopeFwd(DescriptorValue, kind=_D.OPERATION_ROPE_FWD):
    """CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR, since cuDNN 9.24.0; 5 attributes."""

    x: Tensor
    y: Tensor
    freqs: Tensor
    output_scale: float | None = None
    rope_dim: int | None = None


class OperationRopeBwd(DescriptorValue, kind=_D.OPERATION_ROPE_BWD):
    """CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR, since cuDNN 9.24.0; 5 attributes."""

    dy: Tensor
    dx: Tensor
    freqs: Tensor
    output_scale: float | None = None
    rope_dim: int | None = None
