"""Addresses and sizes of buffers, encoding of scalars, and layout of arrays in device memory; needs no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, UsageError
from cudnn_backend_py.execution.buffers import DeviceBuffer, read_device_buffer, read_dlpack_facts
from cudnn_backend_py.execution.checks import check_buffer, make_scalar_array
from cudnn_backend_py.execution.run import _copy_image_to_array, _make_memory_image
from cudnn_backend_py.graph import Tensor
from tests.support.graphs import make_tensor


class CudaArray:
    """An object with ``__cuda_array_interface__``, like the arrays of frameworks."""

    def __init__(self, ptr: int, shape: tuple[int, ...], typestr: str, strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (ptr, False),
            "strides": strides,
        }


# ------------------------------------------------------------------------------------- where a buffer is


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (4096, DeviceBuffer(4096)),
        (1 << 47, DeviceBuffer(1 << 47)),
        (CudaArray(4096, (4, 8), "<f2"), DeviceBuffer(4096, 64, 16, "<f2")),
        (CudaArray(4096, (4, 8), "<f2", (32, 2)), DeviceBuffer(4096, (3 * 16 + 7 + 1) * 2, 16, "<f2")),
        (CudaArray(4096, (4, 8), "<f4", (0, 4)), DeviceBuffer(4096, 32, 32, "<f4")),
        (CudaArray(4096, (4, 0), "|i1"), DeviceBuffer(4096, 0, 8, "|i1")),
        (CudaArray(4096, (), "<f8"), DeviceBuffer(4096, 8, 64, "<f8")),
        (CudaArray(4096, (2,), "<c16"), DeviceBuffer(4096, 32, 128, "<c16")),
    ],
)
def test_address_and_size_of_a_buffer_are_read(source: object, expected: DeviceBuffer) -> None:
    assert read_device_buffer(source, "q") == expected


def test_dlpack_arrays_are_read_before_their_capsule_is_freed() -> None:
    """The test reads many arrays: memory of a capsule freed too early would be reused."""
    arrays = [np.zeros((4, index + 1), np.float32)[:, ::2] for index in range(200)]
    for array in arrays:
        at = read_device_buffer(array, "seed", host=True)
        assert (at.ptr, at.element_bits, at.device) == (array.ctypes.data, 32, None)
        facts = read_dlpack_facts(array)
        assert facts.dims == array.shape
        assert facts.strides == tuple(stride // 4 for stride in array.strides)
        assert (facts.type_text, facts.on_host) == ("float32", True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            np.zeros((4, 8), np.float16),
            "buffer-not-on-device: buffer 'q' is in host memory (DLPack device 1), CUDA memory is needed",
        ),
        (0, "null-pointer: buffer 'q' has the invalid address 0, one above 0 is needed"),
        (-8, "null-pointer: buffer 'q' has the invalid address -8, one above 0 is needed"),
        (CudaArray(0, (4,), "<f4"), "null-pointer: buffer 'q' has the invalid address 0, one above 0 is needed"),
        *(
            (
                source,
                f"buffer-not-understood: buffer 'q' is a {type(source).__name__}, which has no DLPack and "
                "no __cuda_array_interface__, and is no address",
            )
            for source in (None, True, 1.5, "0x1000", b"", [1.0], object())
        ),
    ],
)
def test_objects_that_are_not_device_buffers_are_refused(source: object, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_device_buffer(source, "q")
    assert str(raised.value) == message


HALF_TENSOR = make_tensor("q", 4, 8, data_type=DataType.HALF, strides=(16, 1))


@pytest.mark.parametrize(
    ("described", "buffer"),
    [
        (HALF_TENSOR, DeviceBuffer(4096)),
        (HALF_TENSOR, DeviceBuffer(4096, 112, 16, "float16")),
        (HALF_TENSOR, DeviceBuffer(4096, 9999, 16, "uint16")),
        (make_tensor("b", 9, data_type=DataType.BOOLEAN), DeviceBuffer(4096, 2, 8, "uint8")),
        (make_tensor("i", 8, data_type=DataType.INT4), DeviceBuffer(4096, 4, 8, "uint8")),
        (make_tensor("a", 8, alignment=2), DeviceBuffer(4098, 32, 32)),
    ],
)
def test_matching_buffers_are_accepted(described: Tensor, buffer: DeviceBuffer) -> None:
    check_buffer(described, buffer)


@pytest.mark.parametrize(
    ("described", "buffer", "message"),
    [
        (
            HALF_TENSOR,
            DeviceBuffer(4098),
            "buffer-misaligned: buffer 'q' is at address 0x1002, but its address must be a multiple of 16",
        ),
        (
            HALF_TENSOR,
            DeviceBuffer(4096, 224, 32, "float32"),
            "buffer-type: buffer 'q' has elements of 32 bits (float32), HALF has 16",
        ),
        (
            HALF_TENSOR,
            DeviceBuffer(4096, 224, 16, "bfloat16"),
            "buffer-type: buffer 'q' holds bfloat16, HALF is needed",
        ),
        (HALF_TENSOR, DeviceBuffer(4096, 224, 16, "<i2"), "buffer-type: buffer 'q' holds <i2, HALF is needed"),
        (
            HALF_TENSOR,
            DeviceBuffer(4096, 111, 16, "float16"),
            "buffer-too-small: buffer 'q' has 111 bytes, 112 are needed for f16[4,8] with strides (16, 1)",
        ),
        (
            make_tensor("b", 9, data_type=DataType.BOOLEAN),
            DeviceBuffer(4096, 1, 8, "uint8"),
            "buffer-too-small: buffer 'b' has 1 bytes, 2 are needed for bool[9] with strides (1,)",
        ),
        (
            make_tensor("b", 8, data_type=DataType.BOOLEAN),
            DeviceBuffer(4096, 8, 8, "bool8"),
            "buffer-type: buffer 'b' holds bool8, BOOLEAN is needed, of which eight are in a byte",
        ),
        (
            make_tensor("b", 8, data_type=DataType.BOOLEAN),
            DeviceBuffer(4096, 8, 8, "|b1"),
            "buffer-type: buffer 'b' holds |b1, BOOLEAN is needed, of which eight are in a byte",
        ),
    ],
)
def test_buffers_that_do_not_match_are_refused(described: Tensor, buffer: DeviceBuffer, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_buffer(described, buffer)
    assert str(raised.value) == message


# ------------------------------------------------------------------------------------- scalars


def make_by_value_tensor(data_type: DataType) -> Tensor:
    return make_tensor("c", 1, 1, data_type=data_type, by_value=True)


@pytest.mark.parametrize(
    ("data_type", "value", "dtype"),
    [
        (DataType.FLOAT, 0.125, np.float32),
        (DataType.FLOAT, 3, np.float32),
        (DataType.FLOAT, -np.inf, np.float32),
        (DataType.FLOAT, np.float64(0.1), np.float32),
        (DataType.HALF, np.array([[0.5]]), np.float16),
        (DataType.HALF, 1e9, np.float16),
        (DataType.DOUBLE, 0.1, np.float64),
        (DataType.INT32, 7, np.int32),
        (DataType.INT32, 7.0, np.int32),
        (DataType.INT64, 1 << 40, np.int64),
        (DataType.UINT8, 255, np.uint8),
        (DataType.INT8, -128, np.int8),
    ],
)
def test_by_value_scalars_are_encoded_in_the_type_of_the_tensor(
    data_type: DataType, value: Any, dtype: type[Any]
) -> None:
    made = make_scalar_array(make_by_value_tensor(data_type), value)
    assert (made.dtype, made.size, made.flags.c_contiguous) == (np.dtype(dtype), 1, True)
    with np.errstate(over="ignore"):
        assert made.item() == np.asarray(value).astype(dtype).item()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1, 0x3F80),
        (-0.125, 0xBE00),
        (np.array([[0.5]]), 0x3F00),
        (0.1, 0x3DCD),
        (1 + 2**-8, 0x3F80),  # half-way, to even
        (1 + 2**-8 + 2**-40, 0x3F81),  # in float32 this would be half-way
        (1e39, 0x7F80),
        (-np.inf, 0xFF80),
    ],
)
def test_bfloat16_scalars_are_rounded_to_their_bits(value: Any, bits: int) -> None:
    made = make_scalar_array(make_by_value_tensor(DataType.BFLOAT16), value)
    assert (made.dtype, made.size, made.flags.c_contiguous) == (np.dtype(np.uint16), 1, True)
    assert hex(made.item()) == hex(bits)


@pytest.mark.parametrize(
    ("data_type", "value", "message"),
    [
        (DataType.FP8_E4M3, 1.0, "by-value-type: by-value tensor 'c' is FP8_E4M3, which cannot be given from the host"),
        (DataType.BFLOAT16, "one", "by-value-type: by-value tensor 'c' is BFLOAT16, which cannot hold 'one'"),
        (DataType.BFLOAT16, [1.0, 2.0], "by-value-size: by-value tensor 'c' takes one number, got 2 numbers"),
        (DataType.FLOAT, [1.0, 2.0], "by-value-size: by-value tensor 'c' takes one number, got 2 numbers"),
        (DataType.FLOAT, [], "by-value-size: by-value tensor 'c' takes one number, got 0 numbers"),
        (DataType.FLOAT, None, "by-value-type: by-value tensor 'c' is FLOAT, which cannot hold None"),
        (DataType.FLOAT, "one", "by-value-type: by-value tensor 'c' is FLOAT, which cannot hold 'one'"),
        (DataType.INT32, 1.5, "by-value-type: by-value tensor 'c' is INT32, which cannot hold 1.5"),
        (DataType.INT32, float("nan"), "by-value-type: by-value tensor 'c' is INT32, which cannot hold nan"),
        (DataType.INT32, 1 << 31, f"by-value-type: by-value tensor 'c' is INT32, which cannot hold {1 << 31}"),
        (DataType.INT64, 1 << 70, f"by-value-type: by-value tensor 'c' is INT64, which cannot hold {1 << 70}"),
        (DataType.UINT8, -1, "by-value-type: by-value tensor 'c' is UINT8, which cannot hold -1"),
        (DataType.INT8, 300, "by-value-type: by-value tensor 'c' is INT8, which cannot hold 300"),
    ],
)
def test_by_value_scalars_that_do_not_fit_the_tensor_are_refused(data_type: DataType, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_scalar_array(make_by_value_tensor(data_type), value)
    assert str(raised.value) == message


# ------------------------------------------------------------------------------------- arrays

STRIDED_LAYOUTS = {
    "packed": make_tensor("t", 2, 3, 4),
    "transposed": make_tensor("t", 2, 3, 4, strides=(12, 1, 3)),
    "with gaps": make_tensor("t", 2, 3, 4, strides=(100, 10, 2)),
    "bshd": make_tensor("t", 2, 3, 5, 4, strides=(60, 4, 12, 1)),
    "one element": make_tensor("t", 1, 1, strides=(7, 7)),
}


@pytest.mark.parametrize("name", STRIDED_LAYOUTS)
@pytest.mark.parametrize("arrange", [np.ascontiguousarray, np.asfortranarray, lambda a: a[::-1][::-1]])
def test_arrays_are_copied_to_a_memory_image_and_back(name: str, arrange: Callable[[Any], Any]) -> None:
    described = STRIDED_LAYOUTS[name]
    size = int(np.prod(described.dims))
    array = arrange(np.arange(1, size + 1, dtype=np.float32).reshape(described.dims))
    image = _make_memory_image(described, array)
    assert image.nbytes == described.span_bytes
    for index in np.ndindex(*described.dims):
        assert image[sum(i * stride for i, stride in zip(index, described.strides, strict=True))] == array[index]
    assert np.count_nonzero(image) == size
    back = arrange(np.full(described.dims, np.nan, np.float32))
    _copy_image_to_array(described, back, image)
    assert np.array_equal(back, array)


def test_a_broadcast_tensor_has_one_element_in_memory() -> None:
    described = make_tensor("t", 3, 4, strides=(0, 1))
    array = np.broadcast_to(np.arange(4, dtype=np.float32), (3, 4))
    image = _make_memory_image(described, array)
    assert image.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [
        (DataType.HALF, np.float16),
        (DataType.BFLOAT16, np.uint16),
        (DataType.DOUBLE, np.float64),
        (DataType.INT64, np.int64),
        (DataType.UINT32, np.uint32),
        (DataType.BYTE_BOOLEAN, np.bool_),
        (DataType.FP8_E4M3, np.uint8),
    ],
)
def test_memory_image_of_an_array_has_the_size_of_the_tensor(data_type: DataType, dtype: type[Any]) -> None:
    described = make_tensor("t", 3, 5, data_type=data_type)
    image = _make_memory_image(described, np.ones((3, 5), dtype))
    assert (image.dtype, image.nbytes) == (np.dtype(dtype), described.span_bytes)


@pytest.mark.parametrize(
    ("described", "array", "message"),
    [
        (make_tensor("t", 4), np.zeros(4), "array-type: array 't' is float64, FLOAT takes float32"),
        (
            make_tensor("t", 4, data_type=DataType.BFLOAT16),
            np.zeros(4, np.float16),
            "array-type: array 't' is float16, BFLOAT16 takes bfloat16 or uint16",
        ),
        (
            make_tensor("t", 4),
            np.zeros(4, np.dtype(np.float32).newbyteorder()),
            "array-type: array 't' is float32 in foreign byte order, FLOAT takes float32",
        ),
        (
            make_tensor("t", 8, data_type=DataType.BOOLEAN),
            np.zeros(8, np.uint8),
            "array-type: array 't' is uint8, BOOLEAN takes no NumPy array",
        ),
        (
            make_tensor("t", 8, data_type=DataType.FP4_E2M1),
            np.zeros(8, np.uint8),
            "array-type: array 't' is uint8, FP4_E2M1 takes no NumPy array",
        ),
        (
            make_tensor("t", 4, 2),
            np.zeros(8, np.float32),
            "array-shape: array 't' has shape (8,), (4, 2) is needed",
        ),
        (
            make_tensor("t", 4, 2),
            np.zeros((2, 4), np.float32),
            "array-shape: array 't' has shape (2, 4), (4, 2) is needed",
        ),
    ],
)
def test_arrays_that_do_not_match_are_refused(described: Tensor, array: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        _make_memory_image(described, array)
    assert str(raised.value) == message
