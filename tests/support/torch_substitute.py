"""A substitute for torch in programs that only build graphs: its tensors have a layout and no data.

It has only those functions that the programs under test use before they read results.
"""

from __future__ import annotations

import math
import sys
from itertools import count
from types import ModuleType
from typing import Any

__all__ = ["Tensor", "install_as_torch"]

_addresses = count(1 << 40, 1 << 20)


class Size(tuple[int, ...]):
    """Sizes of a tensor, like ``torch.Size``."""


class dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class device:
    def __init__(self, name: str | device) -> None:
        self.type = str(name).split(":")[0]

    def __str__(self) -> str:
        return self.type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.type)


DTYPES = {
    name: dtype(name)
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
}


class Tensor:
    """A tensor with a layout, a type, a device, and an invalid address."""

    def __init__(
        self,
        shape: Any,
        strides: Any = None,
        *,
        dtype: dtype,
        device: str | device = "cpu",
        requires_grad: bool = False,
    ) -> None:
        self.shape = Size(shape)
        self._strides = tuple(_compute_packed_strides(self.shape) if strides is None else strides)
        self.dtype = dtype
        self.device = _parse_device(device)
        self.requires_grad = requires_grad
        self._address = next(_addresses)

    def _copy_with_changes(self, **changes: Any) -> Tensor:
        options = {"shape": self.shape, "strides": self._strides, "dtype": self.dtype, "device": self.device}
        return Tensor(**{**options, **changes})

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        return self._strides if dim is None else self._strides[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return 1 if self.dtype.name in ("bool", "uint8") else int("".join(filter(str.isdigit, self.dtype.name))) // 8

    def is_contiguous(self) -> bool:
        strides = zip(self.shape, self._strides, _compute_packed_strides(self.shape), strict=True)
        return all(dim == 1 or stride == packed for dim, stride, packed in strides)

    def t(self) -> Tensor:
        return self.transpose(0, 1)

    def data_ptr(self) -> int:
        return self._address

    def __dlpack__(self, stream: Any = None) -> Any:
        raise BufferError("this tensor has a layout and no elements")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2 if self.is_cuda else 1, 0)

    def permute(self, *order: int) -> Tensor:
        return self._copy_with_changes(shape=[self.shape[i] for i in order], strides=[self._strides[i] for i in order])

    def transpose(self, first: int, second: int) -> Tensor:
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.permute(*order)

    def as_strided(self, size: Any, stride: Any) -> Tensor:
        return self._copy_with_changes(shape=size, strides=stride)

    def half(self) -> Tensor:
        return self._copy_with_changes(dtype=DTYPES["float16"])

    def float(self) -> Tensor:
        return self._copy_with_changes(dtype=DTYPES["float32"])

    def cuda(self) -> Tensor:
        return self._copy_with_changes(device="cuda")

    def detach(self) -> Tensor:
        return self._copy_with_changes()


def _parse_device(given: str | device) -> device:
    return given if isinstance(given, device) else device(given)


def _compute_packed_strides(shape: Any) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _make_tensor(*size: Any, dtype: dtype | None = None, device: Any = "cpu", requires_grad: bool = False) -> Tensor:
    shape = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    return Tensor(shape, dtype=dtype or DTYPES["float32"], device=device, requires_grad=requires_grad)


def _make_strided_tensor(size: Any, stride: Any, *, dtype: dtype, device: Any = "cpu") -> Tensor:
    return Tensor(size, stride, dtype=dtype, device=device)


def _make_tensor_like(other: Tensor, *, dtype: dtype | None = None) -> Tensor:
    return other._copy_with_changes(dtype=dtype or other.dtype)


class _Stream:
    cuda_stream = 0


def install_as_torch() -> ModuleType:
    """Make ``import torch`` import this substitute; call it only in a separate process."""
    assert "torch" not in sys.modules
    torch: Any = ModuleType("torch", __doc__)
    torch.Tensor, torch.Size, torch.device, torch.dtype = Tensor, Size, device, dtype
    for name, kind in DTYPES.items():
        setattr(torch, name, kind)
    torch.half, torch.float = torch.float16, torch.float32
    torch.randn = torch.empty = torch.zeros = torch.ones = _make_tensor
    torch.empty_strided = _make_strided_tensor
    torch.randn_like = torch.empty_like = torch.zeros_like = _make_tensor_like
    torch.manual_seed = lambda seed: None
    torch.cuda = ModuleType("torch.cuda")
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.current_stream = _Stream
    torch.cuda.synchronize = lambda: None
    sys.modules["torch"], sys.modules["torch.cuda"] = torch, torch.cuda
    return torch  # type: ignore[no-any-return]
