"""Short names of data types."""

from __future__ import annotations

from ..generated.enums import DataType

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
