# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:c51267dc99806afa5a503ca7f5846a0710a8bb5c5f597960959c3b17f9776b50
# Command: python -m tools.codegen
"""Element types, counts and direction of every attribute of every descriptor type.

The facts of a descriptor type are made when they are first read: a program reads those of few.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from ..frozen import FrozenValue
from .enums import (
    AttributeName,
    AttributeType,
    BehaviorNote,
    BnFinalizeStatsMode,
    ConvolutionMode,
    CudaGraphRetention,
    CudnnEnum,
    DataType,
    DescriptorType,
    GenStatsMode,
    HeurMode,
    KnobType,
    LayoutType,
    MoeGroupedMatmulMode,
    NanPropagation,
    NormFwdPhase,
    NormMode,
    NumericalNote,
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

_T = AttributeType


class AttributeFacts(FrozenValue):
    """One attribute: its descriptor type, element types (preferred first), counts, direction and history.

    ``max_count`` is ``None`` where the header gives no bound; ``element`` lists the descriptor types that fit
    where the element is a descriptor.
    """

    owner: DescriptorType
    attribute: AttributeName
    field: str
    types: tuple[AttributeType, ...]
    min_count: int
    max_count: int | None
    role: Literal["input", "output", "both"]
    required: bool
    since: tuple[int, int, int]
    element: tuple[DescriptorType, ...]


class DescriptorValue(FrozenValue, kw_only=True):
    """A descriptor's attributes as plain data, without a C object.

    ``fields`` has the values of the attributes that are set, by :attr:`AttributeFacts.field`.
    """

    kind: DescriptorType
    fields: dict[str, Any]


@cache
def get_attributes(kind: DescriptorType) -> tuple[AttributeFacts, ...]:
    """Return the attributes of a descriptor type, in the header's order."""
    return tuple(_make_facts(kind, *row) for row in _ROWS[kind.name])


@cache
def get_attribute_facts(attribute: AttributeName) -> AttributeFacts:
    """Return the facts of an attribute."""
    owner = DescriptorType[_map_attributes_to_owners()[attribute.name]]
    return next(facts for facts in get_attributes(owner) if facts.attribute is attribute)


@cache
def _map_attributes_to_owners() -> dict[str, str]:
    return {row[1]: owner for owner, rows in _ROWS.items() for row in rows}


def _make_facts(
    owner: DescriptorType,
    use: Literal["required", "optional", "output", "both"],
    name: str,
    field: str,
    types: str,
    element: str = "",
    count: tuple[int, int | None] = (1, 1),
) -> AttributeFacts:
    attribute = AttributeName[name]
    kinds = [kind for kind in _ROWS if kind.startswith("OPERATION_")] if element == "OPERATION_*" else element.split()
    return AttributeFacts(
        owner=owner,
        attribute=attribute,
        field=field,
        types=tuple(AttributeType[one] for one in (*types.split(), *["BACKEND_DESCRIPTOR"] * bool(kinds))),
        min_count=count[0],
        max_count=count[1],
        role="input" if use == "required" or use == "optional" else use,
        required=use == "required",
        since=attribute.since,
        element=tuple(DescriptorType[one] for one in kinds),
    )


_ROWS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "POINTWISE": (
        ("required", "POINTWISE_MODE", "mode", "POINTWISE_MODE"),
        ("required", "POINTWISE_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("optional", "POINTWISE_NAN_PROPAGATION", "nan_propagation", "NAN_PROPOGATION"),
        ("optional", "POINTWISE_RELU_LOWER_CLIP", "relu_lower_clip", "DOUBLE FLOAT"),
        ("optional", "POINTWISE_RELU_UPPER_CLIP", "relu_upper_clip", "DOUBLE FLOAT"),
        ("optional", "POINTWISE_RELU_LOWER_CLIP_SLOPE", "relu_lower_clip_slope", "DOUBLE FLOAT"),
        ("optional", "POINTWISE_ELU_ALPHA", "elu_alpha", "DOUBLE FLOAT"),
        ("optional", "POINTWISE_SOFTPLUS_BETA", "softplus_beta", "DOUBLE FLOAT"),
        ("optional", "POINTWISE_SWISH_BETA", "swish_beta", "DOUBLE FLOAT"),
        ("optional", "POINTWISE_AXIS", "axis", "INT64"),
    ),
    "CONVOLUTION": (
        ("required", "CONVOLUTION_COMP_TYPE", "comp_type", "DATA_TYPE"),
        ("required", "CONVOLUTION_CONV_MODE", "conv_mode", "CONVOLUTION_MODE"),
        ("required", "CONVOLUTION_DILATIONS", "dilations", "INT64", "", (1, 8)),
        ("required", "CONVOLUTION_FILTER_STRIDES", "filter_strides", "INT64", "", (1, 8)),
        ("required", "CONVOLUTION_POST_PADDINGS", "post_paddings", "INT64", "", (1, 8)),
        ("required", "CONVOLUTION_PRE_PADDINGS", "pre_paddings", "INT64", "", (1, 8)),
        ("required", "CONVOLUTION_SPATIAL_DIMS", "spatial_dims", "INT64"),
    ),
    "ENGINE": (
        ("required", "ENGINE_OPERATION_GRAPH", "operation_graph", "", "OPERATIONGRAPH"),
        ("required", "ENGINE_GLOBAL_INDEX", "global_index", "INT64"),
        ("output", "ENGINE_KNOB_INFO", "knob_info", "", "KNOB_INFO", (0, None)),
        ("output", "ENGINE_NUMERICAL_NOTE", "numerical_note", "NUMERICAL_NOTE", "", (0, None)),
        ("output", "ENGINE_LAYOUT_INFO", "layout_info", "", "LAYOUT_INFO", (0, None)),
        ("output", "ENGINE_BEHAVIOR_NOTE", "behavior_note", "BEHAVIOR_NOTE", "", (0, None)),
        ("optional", "ENGINE_SM_COUNT_TARGET", "sm_count_target", "INT32"),
        ("optional", "ENGINE_DEVICEPROP", "deviceprop", "", "DEVICEPROP"),
        ("optional", "ENGINE_DISABLE_CLUSTER_COOPERATIVE", "disable_cluster_cooperative", "BOOLEAN"),
        ("optional", "ENGINE_SHARED_MEMORY_LIMIT", "shared_memory_limit", "INT32"),
    ),
    "ENGINECFG": (
        ("required", "ENGINECFG_ENGINE", "engine", "", "ENGINE"),
        ("output", "ENGINECFG_INTERMEDIATE_INFO", "intermediate_info", "", "INTERMEDIATE_INFO"),
        ("optional", "ENGINECFG_KNOB_CHOICES", "knob_choices", "", "KNOB_CHOICE", (0, 46)),
        ("output", "ENGINECFG_WORKSPACE_SIZE", "workspace_size", "INT64"),
        ("both", "ENGINECFG_SHARED_MEMORY_USED", "shared_memory_used", "INT32"),
    ),
    "ENGINEHEUR": (
        ("required", "ENGINEHEUR_MODE", "mode", "HEUR_MODE"),
        ("required", "ENGINEHEUR_OPERATION_GRAPH", "operation_graph", "", "OPERATIONGRAPH"),
        ("output", "ENGINEHEUR_RESULTS", "results", "", "ENGINECFG", (0, None)),
        ("optional", "ENGINEHEUR_SM_COUNT_TARGET", "sm_count_target", "INT32"),
        ("optional", "ENGINEHEUR_DEVICEPROP", "deviceprop", "", "DEVICEPROP"),
        ("optional", "ENGINEHEUR_SHARED_MEMORY_LIMIT", "shared_memory_limit", "INT32"),
    ),
    "EXECUTION_PLAN": (
        ("optional", "EXECUTION_PLAN_HANDLE", "handle", "HANDLE"),
        ("optional", "EXECUTION_PLAN_ENGINE_CONFIG", "engine_config", "", "ENGINECFG"),
        ("output", "EXECUTION_PLAN_WORKSPACE_SIZE", "workspace_size", "INT64"),
        ("optional", "EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS", "computed_intermediate_uids", "INT64", "", (0, None)),
        ("optional", "EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS", "run_only_intermediate_uids", "INT64"),
        ("both", "EXECUTION_PLAN_JSON_REPRESENTATION", "json_representation", "CHAR", "", (1, None)),
        ("optional", "EXECUTION_PLAN_KERNEL_CACHE", "kernel_cache", "", "KERNEL_CACHE"),
        ("optional", "EXECUTION_PLAN_DEVICEPROP", "deviceprop", "", "DEVICEPROP"),
        ("both", "EXECUTION_PLAN_CUDA_GRAPH_RETENTION", "cuda_graph_retention", "CUDA_GRAPH_RETENTION"),
    ),
    "INTERMEDIATE_INFO": (
        ("output", "INTERMEDIATE_INFO_UNIQUE_ID", "unique_id", "INT64"),
        ("output", "INTERMEDIATE_INFO_SIZE", "size", "INT64"),
        ("output", "INTERMEDIATE_INFO_DEPENDENT_DATA_UIDS", "dependent_data_uids", "INT64", "", (0, None)),
        ("output", "INTERMEDIATE_INFO_DEPENDENT_ATTRIBUTES", "dependent_attributes", "ATTRIB_NAME", "", (0, None)),
    ),
    "KNOB_CHOICE": (
        ("required", "KNOB_CHOICE_KNOB_TYPE", "knob_type", "KNOB_TYPE"),
        ("required", "KNOB_CHOICE_KNOB_VALUE", "knob_value", "INT64"),
    ),
    "KNOB_INFO": (
        ("output", "KNOB_INFO_TYPE", "type", "KNOB_TYPE"),
        ("output", "KNOB_INFO_MAXIMUM_VALUE", "maximum_value", "INT64"),
        ("output", "KNOB_INFO_MINIMUM_VALUE", "minimum_value", "INT64"),
        ("output", "KNOB_INFO_STRIDE", "stride", "INT64"),
    ),
    "LAYOUT_INFO": (
        ("output", "LAYOUT_INFO_TENSOR_UID", "tensor_uid", "INT64"),
        ("output", "LAYOUT_INFO_TYPES", "types", "LAYOUT_TYPE", "", (0, None)),
    ),
    "OPERATION_CONVOLUTION_FORWARD": (
        ("required", "OPERATION_CONVOLUTION_FORWARD_ALPHA", "alpha", "FLOAT DOUBLE INT32"),
        ("required", "OPERATION_CONVOLUTION_FORWARD_BETA", "beta", "FLOAT DOUBLE INT32"),
        ("required", "OPERATION_CONVOLUTION_FORWARD_CONV_DESC", "convolution", "", "CONVOLUTION"),
        ("required", "OPERATION_CONVOLUTION_FORWARD_W", "w", "", "TENSOR"),
        ("required", "OPERATION_CONVOLUTION_FORWARD_X", "x", "", "TENSOR"),
        ("required", "OPERATION_CONVOLUTION_FORWARD_Y", "y", "", "TENSOR"),
    ),
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": (
        ("required", "OPERATION_CONVOLUTION_BWD_FILTER_ALPHA", "alpha", "FLOAT DOUBLE"),
        ("required", "OPERATION_CONVOLUTION_BWD_FILTER_BETA", "beta", "FLOAT DOUBLE"),
        ("required", "OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC", "convolution", "", "CONVOLUTION"),
        ("required", "OPERATION_CONVOLUTION_BWD_FILTER_DW", "dw", "", "TENSOR"),
        ("required", "OPERATION_CONVOLUTION_BWD_FILTER_X", "x", "", "TENSOR"),
        ("required", "OPERATION_CONVOLUTION_BWD_FILTER_DY", "dy", "", "TENSOR"),
    ),
    "OPERATION_CONVOLUTION_BACKWARD_DATA": (
        ("required", "OPERATION_CONVOLUTION_BWD_DATA_ALPHA", "alpha", "FLOAT DOUBLE"),
        ("required", "OPERATION_CONVOLUTION_BWD_DATA_BETA", "beta", "FLOAT DOUBLE"),
        ("required", "OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC", "convolution", "", "CONVOLUTION"),
        ("required", "OPERATION_CONVOLUTION_BWD_DATA_W", "w", "", "TENSOR"),
        ("required", "OPERATION_CONVOLUTION_BWD_DATA_DX", "dx", "", "TENSOR"),
        ("required", "OPERATION_CONVOLUTION_BWD_DATA_DY", "dy", "", "TENSOR"),
    ),
    "OPERATION_POINTWISE": (
        ("required", "OPERATION_POINTWISE_PW_DESCRIPTOR", "pointwise", "", "POINTWISE"),
        ("optional", "OPERATION_POINTWISE_XDESC", "x", "", "TENSOR"),
        ("optional", "OPERATION_POINTWISE_BDESC", "b", "", "TENSOR"),
        ("optional", "OPERATION_POINTWISE_YDESC", "y", "", "TENSOR"),
        ("optional", "OPERATION_POINTWISE_ALPHA1", "alpha1", "FLOAT DOUBLE"),
        ("optional", "OPERATION_POINTWISE_ALPHA2", "alpha2", "FLOAT DOUBLE"),
        ("optional", "OPERATION_POINTWISE_DXDESC", "dx", "", "TENSOR"),
        ("optional", "OPERATION_POINTWISE_DYDESC", "dy", "", "TENSOR"),
        ("optional", "OPERATION_POINTWISE_TDESC", "t", "", "TENSOR"),
    ),
    "OPERATION_GEN_STATS": (
        ("required", "OPERATION_GENSTATS_MODE", "mode", "GENSTATS_MODE"),
        ("required", "OPERATION_GENSTATS_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_GENSTATS_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_GENSTATS_SUMDESC", "sum", "", "TENSOR"),
        ("required", "OPERATION_GENSTATS_SQSUMDESC", "sqsum", "", "TENSOR"),
    ),
    "OPERATIONGRAPH": (
        ("optional", "OPERATIONGRAPH_HANDLE", "handle", "HANDLE"),
        ("required", "OPERATIONGRAPH_OPS", "ops", "", "OPERATION_*", (1, None)),
        ("output", "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", "engine_global_count", "INT64"),
        ("optional", "OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED", "is_dynamic_shape_enabled", "BOOLEAN"),
        ("output", "OPERATIONGRAPH_IS_SAME_TOPOLOGY", "is_same_topology", "", "OPERATIONGRAPH"),
        ("optional", "OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED", "is_override_shape_enabled", "BOOLEAN"),
        ("optional", "OPERATIONGRAPH_MODE", "mode", "OPERATIONGRAPH_MODE"),
    ),
    "VARIANT_PACK": (
        ("required", "VARIANT_PACK_UNIQUE_IDS", "unique_ids", "INT64", "", (1, None)),
        ("required", "VARIANT_PACK_DATA_POINTERS", "data_pointers", "VOID_PTR", "", (1, None)),
        ("optional", "VARIANT_PACK_INTERMEDIATES", "intermediates", "VOID_PTR", "", (0, None)),
        ("optional", "VARIANT_PACK_WORKSPACE", "workspace", "VOID_PTR"),
        ("optional", "VARIANT_PACK_OVERRIDE_UNIQUE_IDS", "override_unique_ids", "INT64", "", (1, None)),
        ("optional", "VARIANT_PACK_OVERRIDE_SHAPES", "override_shapes", "VOID_PTR"),
        ("optional", "VARIANT_PACK_OVERRIDE_STRIDES", "override_strides", "VOID_PTR"),
    ),
    "TENSOR": (
        ("required", "TENSOR_BYTE_ALIGNMENT", "byte_alignment", "INT64"),
        ("required", "TENSOR_DATA_TYPE", "data_type", "DATA_TYPE"),
        ("required", "TENSOR_DIMENSIONS", "dimensions", "INT64", "", (1, 8)),
        ("required", "TENSOR_STRIDES", "strides", "INT64", "", (1, 8)),
        ("optional", "TENSOR_VECTOR_COUNT", "vector_count", "INT64"),
        ("optional", "TENSOR_VECTORIZED_DIMENSION", "vectorized_dimension", "INT64"),
        ("required", "TENSOR_UNIQUE_ID", "unique_id", "INT64"),
        ("optional", "TENSOR_IS_VIRTUAL", "is_virtual", "BOOLEAN"),
        ("optional", "TENSOR_IS_BY_VALUE", "is_by_value", "BOOLEAN"),
        ("optional", "TENSOR_REORDERING_MODE", "reordering_mode", "TENSOR_REORDERING_MODE"),
        ("optional", "TENSOR_CONSTANT_VALUE", "constant_value", "VOID_PTR"),
        ("optional", "TENSOR_RAGGED_OFFSET_DESC", "ragged_offset", "", "TENSOR"),
        ("optional", "TENSOR_RAGGED_OFFSET_MULTIPLIER", "ragged_offset_multiplier", "INT64"),
    ),
    "MATMUL": (
        ("required", "MATMUL_COMP_TYPE", "comp_type", "DATA_TYPE"),
        ("optional", "MATMUL_PADDING_VALUE", "padding_value", "DOUBLE FLOAT INT64 INT32"),
    ),
    "OPERATION_MATMUL": (
        ("required", "OPERATION_MATMUL_ADESC", "a", "", "TENSOR"),
        ("required", "OPERATION_MATMUL_BDESC", "b", "", "TENSOR"),
        ("required", "OPERATION_MATMUL_CDESC", "c", "", "TENSOR"),
        ("required", "OPERATION_MATMUL_DESC", "matmul", "", "MATMUL"),
        ("optional", "OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT", "irregularly_strided_batch_count", "INT64"),
        ("optional", "OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC", "gemm_m_override", "", "TENSOR"),
        ("optional", "OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC", "gemm_n_override", "", "TENSOR"),
        ("optional", "OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC", "gemm_k_override", "", "TENSOR"),
    ),
    "OPERATION_BN_FINALIZE_STATISTICS": (
        ("required", "OPERATION_BN_FINALIZE_STATS_MODE", "stats_mode", "BN_FINALIZE_STATS_MODE"),
        ("required", "OPERATION_BN_FINALIZE_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_BN_FINALIZE_Y_SUM_DESC", "y_sum", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC", "y_sq_sum", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_SCALE_DESC", "scale", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_BIAS_DESC", "bias", "", "TENSOR"),
        ("optional", "OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC", "prev_running_mean", "", "TENSOR"),
        ("optional", "OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC", "prev_running_var", "", "TENSOR"),
        ("optional", "OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC", "updated_running_mean", "", "TENSOR"),
        ("optional", "OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC", "updated_running_var", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_SAVED_MEAN_DESC", "saved_mean", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC", "saved_inv_std", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_EQ_SCALE_DESC", "eq_scale", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_EQ_BIAS_DESC", "eq_bias", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC", "accum_count", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_EPSILON_DESC", "epsilon", "", "TENSOR"),
        ("required", "OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC", "exp_average_factor", "", "TENSOR"),
    ),
    "REDUCTION": (
        ("required", "REDUCTION_OPERATOR", "operator", "REDUCTION_OPERATOR_TYPE"),
        ("required", "REDUCTION_COMP_TYPE", "comp_type", "DATA_TYPE"),
        ("optional", "REDUCTION_IS_DETERMINISTIC", "is_deterministic", "BOOLEAN"),
    ),
    "OPERATION_REDUCTION": (
        ("required", "OPERATION_REDUCTION_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_REDUCTION_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_REDUCTION_DESC", "reduction", "", "REDUCTION"),
        ("optional", "OPERATION_REDUCTION_GROUP_OFFSET_DESC", "group_offset", "", "TENSOR"),
        ("optional", "OPERATION_REDUCTION_DIMS", "dims", "INT64", "", (1, None)),
        ("optional", "OPERATION_REDUCTION_INIT_VALUES", "init_values", "VOID_PTR", "", (1, None)),
        ("optional", "OPERATION_REDUCTION_SUBGRAPH", "subgraph", "", "OPERATIONGRAPH"),
        (
            "optional",
            "OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS",
            "subgraph_accumulator_uids",
            "INT64",
            "",
            (1, None),
        ),
        ("optional", "OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS", "subgraph_current_uids", "INT64", "", (1, None)),
        ("optional", "OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS", "subgraph_output_uids", "INT64", "", (1, None)),
        (
            "optional",
            "OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES",
            "subgraph_compute_types",
            "DATA_TYPE",
            "",
            (1, None),
        ),
    ),
    "OPERATION_BN_BWD_WEIGHTS": (
        ("required", "OPERATION_BN_BWD_WEIGHTS_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_MEAN_DESC", "mean", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC", "invstd", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC", "bn_scale", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_X_DESC", "x", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_DY_DESC", "dy", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC", "dbn_scale", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC", "dbn_bias", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC", "eq_dy_scale", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC", "eq_x_scale", "", "TENSOR"),
        ("required", "OPERATION_BN_BWD_WEIGHTS_EQ_BIAS", "eq_bias", "", "TENSOR"),
    ),
    "RESAMPLE": (
        ("optional", "RESAMPLE_MODE", "mode", "RESAMPLE_MODE"),
        ("optional", "RESAMPLE_COMP_TYPE", "comp_type", "DATA_TYPE"),
        ("required", "RESAMPLE_SPATIAL_DIMS", "spatial_dims", "INT64"),
        ("required", "RESAMPLE_POST_PADDINGS", "post_paddings", "INT64 FRACTION", "", (1, 6)),
        ("required", "RESAMPLE_PRE_PADDINGS", "pre_paddings", "INT64 FRACTION", "", (1, 6)),
        ("required", "RESAMPLE_STRIDES", "strides", "INT64 FRACTION", "", (1, 6)),
        ("required", "RESAMPLE_WINDOW_DIMS", "window_dims", "INT64 FRACTION", "", (1, 6)),
        ("optional", "RESAMPLE_NAN_PROPAGATION", "nan_propagation", "NAN_PROPOGATION"),
        ("optional", "RESAMPLE_PADDING_MODE", "padding_mode", "PADDING_MODE"),
    ),
    "OPERATION_RESAMPLE_FWD": (
        ("required", "OPERATION_RESAMPLE_FWD_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_RESAMPLE_FWD_YDESC", "y", "", "TENSOR"),
        ("optional", "OPERATION_RESAMPLE_FWD_IDXDESC", "idx", "", "TENSOR"),
        ("optional", "OPERATION_RESAMPLE_FWD_ALPHA", "alpha", "DOUBLE FLOAT"),
        ("optional", "OPERATION_RESAMPLE_FWD_BETA", "beta", "DOUBLE FLOAT"),
        ("required", "OPERATION_RESAMPLE_FWD_DESC", "resample", "", "RESAMPLE"),
    ),
    "OPERATION_RESAMPLE_BWD": (
        ("required", "OPERATION_RESAMPLE_BWD_DXDESC", "dx", "", "TENSOR"),
        ("required", "OPERATION_RESAMPLE_BWD_DYDESC", "dy", "", "TENSOR"),
        ("optional", "OPERATION_RESAMPLE_BWD_IDXDESC", "idx", "", "TENSOR"),
        ("optional", "OPERATION_RESAMPLE_BWD_ALPHA", "alpha", "DOUBLE FLOAT"),
        ("optional", "OPERATION_RESAMPLE_BWD_BETA", "beta", "DOUBLE FLOAT"),
        ("required", "OPERATION_RESAMPLE_BWD_DESC", "resample", "", "RESAMPLE"),
        ("optional", "OPERATION_RESAMPLE_BWD_XDESC", "x", "", "TENSOR"),
        ("optional", "OPERATION_RESAMPLE_BWD_YDESC", "y", "", "TENSOR"),
    ),
    "OPERATION_CONCAT": (
        ("required", "OPERATION_CONCAT_AXIS", "axis", "INT64"),
        ("required", "OPERATION_CONCAT_INPUT_DESCS", "input", "", "TENSOR", (1, None)),
        ("optional", "OPERATION_CONCAT_INPLACE_INDEX", "inplace_index", "INT64"),
        ("required", "OPERATION_CONCAT_OUTPUT_DESC", "output", "", "TENSOR"),
    ),
    "OPERATION_SIGNAL": (
        ("required", "OPERATION_SIGNAL_MODE", "mode", "SIGNAL_MODE"),
        ("required", "OPERATION_SIGNAL_FLAGDESC", "flag", "", "TENSOR"),
        ("required", "OPERATION_SIGNAL_VALUE", "value", "INT64"),
        ("required", "OPERATION_SIGNAL_XDESC", "x", "", "TENSOR"),
        ("optional", "OPERATION_SIGNAL_YDESC", "y", "", "TENSOR"),
    ),
    "OPERATION_NORM_FORWARD": (
        ("required", "OPERATION_NORM_FWD_MODE", "mode", "NORM_MODE"),
        ("required", "OPERATION_NORM_FWD_PHASE", "phase", "NORM_FWD_PHASE"),
        ("required", "OPERATION_NORM_FWD_XDESC", "x", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_MEAN_DESC", "mean", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_INV_VARIANCE_DESC", "inv_variance", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_SCALE_DESC", "scale", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_BIAS_DESC", "bias", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_EPSILON_DESC", "epsilon", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC", "exp_avg_factor", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC", "input_running_mean", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC", "input_running_var", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC", "output_running_mean", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC", "output_running_var", "", "TENSOR"),
        ("required", "OPERATION_NORM_FWD_YDESC", "y", "", "TENSOR"),
        ("optional", "OPERATION_NORM_FWD_PEER_STAT_DESCS", "peer_stat", "", "TENSOR", (1, None)),
    ),
    "OPERATION_NORM_BACKWARD": (
        ("required", "OPERATION_NORM_BWD_MODE", "mode", "NORM_MODE"),
        ("required", "OPERATION_NORM_BWD_XDESC", "x", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_MEAN_DESC", "mean", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_INV_VARIANCE_DESC", "inv_variance", "", "TENSOR"),
        ("required", "OPERATION_NORM_BWD_DYDESC", "dy", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_SCALE_DESC", "scale", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_EPSILON_DESC", "epsilon", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_DSCALE_DESC", "dscale", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_DBIAS_DESC", "dbias", "", "TENSOR"),
        ("required", "OPERATION_NORM_BWD_DXDESC", "dx", "", "TENSOR"),
        ("optional", "OPERATION_NORM_BWD_PEER_STAT_DESCS", "peer_stat", "", "TENSOR", (1, None)),
    ),
    "OPERATION_RESHAPE": (
        ("required", "OPERATION_RESHAPE_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_RESHAPE_YDESC", "y", "", "TENSOR"),
        ("optional", "OPERATION_RESHAPE_MODE", "mode", "RESHAPE_MODE"),
    ),
    "RNG": (
        ("optional", "RNG_DISTRIBUTION", "distribution", "RNG_DISTRIBUTION"),
        ("optional", "RNG_NORMAL_DIST_MEAN", "normal_dist_mean", "DOUBLE"),
        ("optional", "RNG_NORMAL_DIST_STANDARD_DEVIATION", "normal_dist_standard_deviation", "DOUBLE"),
        ("optional", "RNG_UNIFORM_DIST_MAXIMUM", "uniform_dist_maximum", "DOUBLE"),
        ("optional", "RNG_UNIFORM_DIST_MINIMUM", "uniform_dist_minimum", "DOUBLE"),
        ("optional", "RNG_BERNOULLI_DIST_PROBABILITY", "bernoulli_dist_probability", "DOUBLE"),
    ),
    "OPERATION_RNG": (
        ("required", "OPERATION_RNG_YDESC", "y", "", "TENSOR"),
        ("optional", "OPERATION_RNG_SEED", "seed", "INT64", "TENSOR"),
        ("required", "OPERATION_RNG_DESC", "rng", "", "RNG"),
        ("required", "OPERATION_RNG_OFFSET_DESC", "offset", "", "TENSOR"),
    ),
    "KERNEL_CACHE": (
        ("optional", "KERNEL_CACHE_OPERATION_GRAPH", "operation_graph", "", "OPERATIONGRAPH"),
        ("output", "KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED", "is_enginecfg_kernel_cached", "", "ENGINECFG"),
        ("both", "KERNEL_CACHE_JSON_REPRESENTATION", "json_representation", "CHAR", "", (1, None)),
        ("output", "KERNEL_CACHE_REVISION", "revision", "INT64"),
        ("output", "KERNEL_CACHE_ENTRY_COUNT", "entry_count", "INT64"),
    ),
    "OPERATION_PAGED_CACHE_LOAD": (
        ("required", "OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC", "container", "", "TENSOR"),
        ("required", "OPERATION_PAGED_CACHE_LOAD_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC", "sequence", "", "TENSOR"),
        ("required", "OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC", "page_table", "", "TENSOR"),
    ),
    "OPERATION_BLOCK_SCALE_QUANTIZE": (
        ("required", "OPERATION_BLOCK_SCALE_QUANTIZE_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_BLOCK_SCALE_QUANTIZE_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC", "scale", "", "TENSOR"),
        ("required", "OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE", "block_size", "INT32"),
    ),
    "OPERATION_BLOCK_SCALE_DEQUANTIZE": (
        ("required", "OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC", "scale", "", "TENSOR"),
        ("required", "OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE", "block_size", "INT32", "", (1, 2)),
        ("optional", "OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE", "neg_scale", "BOOLEAN"),
    ),
    "DEVICEPROP": (
        ("optional", "DEVICEPROP_DEVICE_ID", "device_id", "INT32"),
        ("optional", "DEVICEPROP_HANDLE", "handle", "HANDLE"),
        ("both", "DEVICEPROP_JSON_REPRESENTATION", "json_representation", "CHAR", "", (1, None)),
    ),
    "OPERATION_EXPAND_BAND_MATRIX": (
        ("required", "OPERATION_EXPAND_BAND_MATRIX_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_EXPAND_BAND_MATRIX_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_EXPAND_BAND_MATRIX_LOWER_BANDWIDTH", "lower_bandwidth", "INT64"),
        ("required", "OPERATION_EXPAND_BAND_MATRIX_UPPER_BANDWIDTH", "upper_bandwidth", "INT64"),
        ("required", "OPERATION_EXPAND_BAND_MATRIX_AXIS", "axis", "INT64"),
        ("optional", "OPERATION_EXPAND_BAND_MATRIX_PAD_VALUE", "pad_value", "FLOAT"),
        ("optional", "OPERATION_EXPAND_BAND_MATRIX_KV_TOKEN_OFFSET_DESC", "kv_token_offset", "", "TENSOR"),
        ("optional", "OPERATION_EXPAND_BAND_MATRIX_SPECULATIVE_MASK_DESC", "speculative_mask", "", "TENSOR"),
    ),
    "OPERATION_CONTRACT_BAND_MATRIX": (
        ("required", "OPERATION_CONTRACT_BAND_MATRIX_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_CONTRACT_BAND_MATRIX_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_CONTRACT_BAND_MATRIX_LOWER_BANDWIDTH", "lower_bandwidth", "INT64"),
        ("required", "OPERATION_CONTRACT_BAND_MATRIX_UPPER_BANDWIDTH", "upper_bandwidth", "INT64"),
        ("required", "OPERATION_CONTRACT_BAND_MATRIX_AXIS", "axis", "INT64"),
        ("optional", "OPERATION_CONTRACT_BAND_MATRIX_PAD_VALUE", "pad_value", "FLOAT"),
        ("optional", "OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE", "max_token_value", "INT64"),
    ),
    "OPERATION_SDPA_FWD": (
        ("required", "OPERATION_SDPA_FWD_QDESC", "q", "", "TENSOR"),
        ("required", "OPERATION_SDPA_FWD_KDESC", "k", "", "TENSOR"),
        ("required", "OPERATION_SDPA_FWD_VDESC", "v", "", "TENSOR"),
        ("required", "OPERATION_SDPA_FWD_ODESC", "o", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_STATSDESC", "stats", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_SCALEDESC", "scale", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_BLOCK_MASK_DESC", "block_mask", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_PAGE_TABLE_KDESC", "page_table_k", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_PAGE_TABLE_VDESC", "page_table_v", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_SEQ_LEN_QDESC", "seq_len_q", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_SEQ_LEN_KVDESC", "seq_len_kv", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_SUBGRAPH", "subgraph", "", "OPERATIONGRAPH"),
        ("optional", "OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID", "subgraph_input_uid", "INT64"),
        ("optional", "OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID", "subgraph_output_uid", "INT64"),
        ("optional", "OPERATION_SDPA_FWD_SOFTMAX_DESC", "softmax", "", "OPERATION_SOFTMAX"),
        ("optional", "OPERATION_SDPA_FWD_DROPOUT_SEED_DESC", "dropout_seed", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC", "dropout_offset", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DROPOUT_RNG_DUMP_DESC", "dropout_rng_dump", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DROPOUT_PROBABILITY", "dropout_probability", "FLOAT"),
        ("optional", "OPERATION_SDPA_FWD_UNFUSE_FMA", "unfuse_fma", "BOOLEAN"),
        ("optional", "OPERATION_SDPA_FWD_CU_SEQ_LEN_QDESC", "cu_seq_len_q", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_CU_SEQ_LEN_KVDESC", "cu_seq_len_kv", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DESCALE_QDESC", "descale_q", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DESCALE_KDESC", "descale_k", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DESCALE_VDESC", "descale_v", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_DESCALE_SDESC", "descale_s", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_SCALE_SDESC", "scale_s", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_SCALE_ODESC", "scale_o", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_AMAX_SDESC", "amax_s", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_FWD_AMAX_ODESC", "amax_o", "", "TENSOR"),
    ),
    "OPERATION_MOE_GROUPED_MATMUL": (
        ("required", "OPERATION_MOE_GROUPED_MATMUL_MODE", "mode", "MOE_GROUPED_MATMUL_MODE"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC", "token", "", "TENSOR"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC", "weight", "", "TENSOR"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC", "first_token_offset", "", "TENSOR"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC", "output", "", "TENSOR"),
        ("optional", "OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC", "token_index", "", "TENSOR"),
        ("optional", "OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC", "token_ks", "", "TENSOR"),
        ("optional", "OPERATION_MOE_GROUPED_MATMUL_TOP_K", "top_k", "INT32"),
    ),
    "OPERATION_SDPA_BWD": (
        ("required", "OPERATION_SDPA_BWD_QDESC", "q", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_KDESC", "k", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_VDESC", "v", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_ODESC", "o", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_STATSDESC", "stats", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_SCALEDESC", "scale", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_SEQ_LEN_QDESC", "seq_len_q", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_SEQ_LEN_KVDESC", "seq_len_kv", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_DQDESC", "dq", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_DKDESC", "dk", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_DVDESC", "dv", "", "TENSOR"),
        ("required", "OPERATION_SDPA_BWD_DODDESC", "d_o", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_SINK_DESC", "sink", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_DSINK_DESC", "dsink", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q", "max_total_seq_len_q", "INT64"),
        ("optional", "OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV", "max_total_seq_len_kv", "INT64"),
        ("optional", "OPERATION_SDPA_BWD_SUBGRAPH", "subgraph", "", "OPERATIONGRAPH"),
        ("optional", "OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID", "subgraph_input_uid", "INT64"),
        ("optional", "OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID", "subgraph_output_uid", "INT64"),
        ("optional", "OPERATION_SDPA_BWD_CU_SEQ_LEN_QDESC", "cu_seq_len_q", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_CU_SEQ_LEN_KVDESC", "cu_seq_len_kv", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_DROPOUT_SEED_DESC", "dropout_seed", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_DROPOUT_OFFSET_DESC", "dropout_offset", "", "TENSOR"),
        ("optional", "OPERATION_SDPA_BWD_DROPOUT_PROBABILITY", "dropout_probability", "FLOAT"),
        ("optional", "OPERATION_SDPA_BWD_DBIAS_DESC", "dbias", "", "TENSOR"),
    ),
    "OPERATION_DIAGONAL_BAND_MASK": (
        ("required", "OPERATION_DIAGONAL_BAND_MASK_XDESC", "x", "", "TENSOR"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC", "seq_len_kv", "", "TENSOR"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC", "seq_len_q", "", "TENSOR"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC", "left_bound", "", "TENSOR"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC", "shift_right_bound", "", "TENSOR"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_BDESC", "b", "", "TENSOR"),
        ("required", "OPERATION_DIAGONAL_BAND_MASK_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE", "comparison_mode", "POINTWISE_MODE"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_KVDESC", "cu_seq_len_kv", "", "TENSOR"),
        ("optional", "OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_QDESC", "cu_seq_len_q", "", "TENSOR"),
    ),
    "OPERATION_SOFTMAX": (
        ("required", "OPERATION_SOFTMAX_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_SOFTMAX_YDESC", "y", "", "TENSOR"),
        ("optional", "OPERATION_SOFTMAX_STATS_DESC", "stats", "", "TENSOR"),
        ("optional", "OPERATION_SOFTMAX_MAX_DESC", "max", "", "TENSOR"),
        ("optional", "OPERATION_SOFTMAX_SUM_EXP_DESC", "sum_exp", "", "TENSOR"),
        ("optional", "OPERATION_SOFTMAX_SINK_DESC", "sink", "", "TENSOR"),
        ("optional", "OPERATION_SOFTMAX_STATS_LOG2", "stats_log2", "BOOLEAN"),
    ),
    "OPERATION_TRANSPOSE": (
        ("required", "OPERATION_TRANSPOSE_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_TRANSPOSE_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_TRANSPOSE_PERMUTATION", "permutation", "INT64", "", (1, 8)),
    ),
    "OPERATION_SLICE": (
        ("required", "OPERATION_SLICE_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_SLICE_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_SLICE_START_INDICES", "start_indices", "INT64", "", (1, 8)),
        ("required", "OPERATION_SLICE_LIMIT_INDICES", "limit_indices", "INT64", "", (1, 8)),
        ("required", "OPERATION_SLICE_STRIDES", "strides", "INT64", "", (1, 8)),
    ),
    "OPERATION_MOE_GROUPED_MATMUL_BWD": (
        ("required", "OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC", "math_prec", "DATA_TYPE"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC", "token", "", "TENSOR"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC", "dweight", "", "TENSOR"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC", "first_token_offset", "", "TENSOR"),
        ("required", "OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC", "doutput", "", "TENSOR"),
    ),
    "OPERATION_ROPE_FWD": (
        ("required", "OPERATION_ROPE_FWD_XDESC", "x", "", "TENSOR"),
        ("required", "OPERATION_ROPE_FWD_YDESC", "y", "", "TENSOR"),
        ("required", "OPERATION_ROPE_FWD_FREQSDESC", "freqs", "", "TENSOR"),
        ("optional", "OPERATION_ROPE_FWD_OUTPUT_SCALE", "output_scale", "FLOAT"),
        ("optional", "OPERATION_ROPE_FWD_ROPE_DIM", "rope_dim", "INT64"),
    ),
    "OPERATION_ROPE_BWD": (
        ("required", "OPERATION_ROPE_BWD_DYDESC", "dy", "", "TENSOR"),
        ("required", "OPERATION_ROPE_BWD_DXDESC", "dx", "", "TENSOR"),
        ("required", "OPERATION_ROPE_BWD_FREQSDESC", "freqs", "", "TENSOR"),
        ("optional", "OPERATION_ROPE_BWD_OUTPUT_SCALE", "output_scale", "FLOAT"),
        ("optional", "OPERATION_ROPE_BWD_ROPE_DIM", "rope_dim", "INT64"),
    ),
}
ENUM_OF_TYPE: dict[AttributeType, type[CudnnEnum]] = {
    _T.DATA_TYPE: DataType,
    _T.CONVOLUTION_MODE: ConvolutionMode,
    _T.HEUR_MODE: HeurMode,
    _T.KNOB_TYPE: KnobType,
    _T.NAN_PROPOGATION: NanPropagation,
    _T.NUMERICAL_NOTE: NumericalNote,
    _T.LAYOUT_TYPE: LayoutType,
    _T.ATTRIB_NAME: AttributeName,
    _T.POINTWISE_MODE: PointwiseMode,
    _T.GENSTATS_MODE: GenStatsMode,
    _T.BN_FINALIZE_STATS_MODE: BnFinalizeStatsMode,
    _T.REDUCTION_OPERATOR_TYPE: ReduceTensorOp,
    _T.BEHAVIOR_NOTE: BehaviorNote,
    _T.TENSOR_REORDERING_MODE: TensorReordering,
    _T.RESAMPLE_MODE: ResampleMode,
    _T.PADDING_MODE: PaddingMode,
    _T.SIGNAL_MODE: SignalMode,
    _T.NORM_MODE: NormMode,
    _T.NORM_FWD_PHASE: NormFwdPhase,
    _T.RNG_DISTRIBUTION: RngDistribution,
    _T.MOE_GROUPED_MATMUL_MODE: MoeGroupedMatmulMode,
    _T.RESHAPE_MODE: ReshapeMode,
    _T.OPERATIONGRAPH_MODE: OperationGraphMode,
    _T.CUDA_GRAPH_RETENTION: CudaGraphRetention,
}
