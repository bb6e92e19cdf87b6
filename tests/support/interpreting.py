"""What the tests of the NumPy interpreter share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph import Tensor, packed_strides

__all__ = ["Array", "lengths", "numbers", "refused", "tensor"]

Array = NDArray[Any]


def numbers(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *dims]).normal(size=dims)


def lengths(*values: int) -> Array:
    return np.array(values).reshape(-1, 1, 1, 1)


def refused(code: str, match: str, call: Callable[[], object]) -> None:
    with pytest.raises(GraphError, match=match) as error:
        call()
    assert error.value.code == code


def tensor(name: str, dims: tuple[int, ...], strides: tuple[int, ...] | None = None, **options: Any) -> Tensor:
    fields: dict[str, Any] = {"name": name, "uid": sum(name.encode()), "dims": dims, "data_type": DataType.DOUBLE}
    return Tensor(**{**fields, "strides": packed_strides(dims) if strides is None else strides, **options})
