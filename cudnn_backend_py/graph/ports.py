"""Which ports operations write, which tensors pointwise modes read, and short names of data types."""

from __future__ import annotations

from ..generated.enums import DataType, DescriptorType, PointwiseMode

_D = DescriptorType

# The fields an operation writes. What cuDNN's header does not say is read off the operation's meaning.
OUTPUT_PORTS: dict[DescriptorType, frozenset[str]] = {
    _D.OPERATION_CONVOLUTION_FORWARD: frozenset({"y"}),
    _D.OPERATION_CONVOLUTION_BACKWARD_FILTER: frozenset({"dw"}),
    _D.OPERATION_CONVOLUTION_BACKWARD_DATA: frozenset({"dx"}),
    _D.OPERATION_POINTWISE: frozenset({"y", "dx"}),
    _D.OPERATION_GEN_STATS: frozenset({"sum", "sqsum"}),
    _D.OPERATION_MATMUL: frozenset({"c"}),
    _D.OPERATION_BN_FINALIZE_STATISTICS: frozenset(
        {"saved_mean", "saved_inv_std", "eq_scale", "eq_bias", "updated_running_mean", "updated_running_var"}
    ),
    _D.OPERATION_REDUCTION: frozenset({"y"}),
    _D.OPERATION_BN_BWD_WEIGHTS: frozenset({"dbn_scale", "dbn_bias", "eq_dy_scale", "eq_x_scale", "eq_bias"}),
    _D.OPERATION_RESAMPLE_FWD: frozenset({"y", "idx"}),
    _D.OPERATION_RESAMPLE_BWD: frozenset({"dx"}),
    _D.OPERATION_CONCAT: frozenset({"output"}),
    _D.OPERATION_SIGNAL: frozenset({"y"}),
    _D.OPERATION_NORM_FORWARD: frozenset({"y", "mean", "inv_variance", "output_running_mean", "output_running_var"}),
    _D.OPERATION_NORM_BACKWARD: frozenset({"dx", "dscale", "dbias"}),
    _D.OPERATION_RESHAPE: frozenset({"y"}),
    _D.OPERATION_RNG: frozenset({"y"}),
    _D.OPERATION_PAGED_CACHE_LOAD: frozenset({"y"}),
    _D.OPERATION_BLOCK_SCALE_QUANTIZE: frozenset({"y", "scale"}),
    _D.OPERATION_BLOCK_SCALE_DEQUANTIZE: frozenset({"y"}),
    _D.OPERATION_EXPAND_BAND_MATRIX: frozenset({"y"}),
    _D.OPERATION_CONTRACT_BAND_MATRIX: frozenset({"y"}),
    _D.OPERATION_SDPA_FWD: frozenset({"o", "stats", "dropout_rng_dump", "amax_s", "amax_o"}),
    _D.OPERATION_MOE_GROUPED_MATMUL: frozenset({"output"}),
    _D.OPERATION_SDPA_BWD: frozenset({"dq", "dk", "dv", "dsink", "dbias"}),
    _D.OPERATION_DIAGONAL_BAND_MASK: frozenset({"y"}),
    _D.OPERATION_SOFTMAX: frozenset({"y", "stats", "max", "sum_exp"}),
    _D.OPERATION_TRANSPOSE: frozenset({"y"}),
    _D.OPERATION_SLICE: frozenset({"y"}),
    _D.OPERATION_MOE_GROUPED_MATMUL_BWD: frozenset({"dweight"}),
    _D.OPERATION_ROPE_FWD: frozenset({"y"}),
    _D.OPERATION_ROPE_BWD: frozenset({"dx"}),
}

_P = PointwiseMode
BINARY_MODES = frozenset(
    {
        *(
            _P.ADD,
            _P.ADD_SQUARE,
            _P.SUB,
            _P.MUL,
            _P.DIV,
            _P.MIN,
            _P.MAX,
            _P.MOD,
            _P.FLOOR_MOD,
            _P.POW,
            _P.ATAN2,
        ),
        *(_P.CMP_EQ, _P.CMP_NEQ, _P.CMP_GT, _P.CMP_GE, _P.CMP_LT, _P.CMP_LE, _P.LOGICAL_AND, _P.LOGICAL_OR),
    }
)
TERNARY_MODES = frozenset({_P.BINARY_SELECT})
BACKWARD_MODES = frozenset(mode for mode in PointwiseMode if mode.name.endswith("_BWD"))

SHORT_TYPES: dict[DataType, str] = {
    DataType.FLOAT: "f32",
    DataType.DOUBLE: "f64",
    DataType.HALF: "f16",
    DataType.BFLOAT16: "bf16",
    DataType.INT8: "i8",
    DataType.UINT8: "u8",
    DataType.INT32: "i32",
    DataType.UINT32: "u32",
    DataType.INT64: "i64",
    DataType.BOOLEAN: "bool",
    DataType.FP8_E4M3: "f8e4m3",
    DataType.FP8_E5M2: "f8e5m2",
    DataType.FP8_E8M0: "f8e8m0",
    DataType.FP8_E5M3: "f8e5m3",
    DataType.FP4_E2M1: "f4e2m1",
    DataType.INT4: "i4",
    DataType.UINT4: "u4",
    DataType.INT8x4: "i8x4",
    DataType.UINT8x4: "u8x4",
    DataType.INT8x32: "i8x32",
    DataType.FAST_FLOAT_FOR_FP8: "fast_f32",
    DataType.COMPLEX_FP32: "c64",
    DataType.COMPLEX_FP64: "c128",
    DataType.BYTE_BOOLEAN: "byte_bool",
}
