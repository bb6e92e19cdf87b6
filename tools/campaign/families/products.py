"""Random matmuls with their epilogues."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, PointwiseMode
from cudnn_backend_py.graph import Tensor

from ..random_builder import RandomGraphBuilder

__all__ = ["add_matmul"]

_T, _P = DataType, PointwiseMode
TYPE_WEIGHTS = {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 3, _T.FP8_E4M3: 1, _T.FP8_E5M2: 0.5, _T.INT8: 0.8, _T.DOUBLE: 0.1}


def add_matmul(d: RandomGraphBuilder) -> None:
    """Add a matmul with an optional conversion or scale of an operand, and elementwise operations after it."""
    kind = d.choose_io_type(TYPE_WEIGHTS)
    small = kind in (_T.FP8_E4M3, _T.FP8_E5M2, _T.INT8)
    step = 16 if small else 8
    m, n, k = (step * d.choose_weighted({1: 2, 2: 3, 3: 1, 4: 3, 8: 2, 16: 0.5}) for _ in range(3))
    if d.make_random_bool(0.08):
        m, n, k = (d.choose(size, size, size + 1, size - 3) for size in (m, n, k))
    if d.make_random_bool(0.08):
        m = 1
    batch = d.choose_weighted({(1,): 3, (2,): 3, (3,): 1, (4,): 1, (2, 2): 1, (1, 3): 0.5, (2, 1): 0.5})
    other = tuple(1 if d.make_random_bool(0.15) else size for size in batch)
    a = add_matrix(d, "a", (*batch, m, k), 0.0 if small else 0.25)
    b = add_matrix(d, "b", (*other, k, n), 1.0 if small else 0.4)
    a = _add_matmul_prologue(d, a)
    dims = (*batch, m, n)
    length = d.choose_weighted({0: 3, 1: 3, 2: 3, 3: 2, 5: 1})
    if kind is _T.INT8:
        if length == 0:
            d.g.matmul(a, b, compute_type=_T.INT32, **d.make_stored_result_options(dims, d.choose(_T.INT32, _T.FLOAT)))
            return
        c = d.g.matmul(a, b, compute_type=_T.INT32, **d.make_virtual_result_options(dims, _T.INT32))
        c = d.g.pointwise(
            _P.MUL, c, d.add_scalar(len(dims), 0.0078125), **d.make_virtual_result_options(dims, _T.FLOAT)
        )
        d.g.io_type = _T.FLOAT
        d.add_elementwise_chain(c, length, channel=None, kind=d.choose(_T.INT8, _T.FLOAT, _T.HALF))
        return
    d.add_operation_with_elementwise_chain(
        lambda o: d.g.matmul(a, b, **o), dims, length=length, channel=None, reduce=0.08
    )


def add_matrix(
    d: RandomGraphBuilder, name: str, dims: tuple[int, ...], swapped: float, kind: DataType | None = None
) -> Tensor:
    """Add an input matrix, column-major with probability `swapped`; some have gaps between rows."""
    rows, columns = dims[-2:]
    gap = d.choose(16, 32) if d.make_random_bool(0.1) else 0
    inner = (rows + gap) * columns if (turned := d.make_random_bool(swapped)) else rows * (columns + gap)
    strides = [1, rows + gap] if turned else [columns + gap, 1]
    for dim in reversed(dims[1:-2]):
        strides.insert(0, inner)
        inner *= dim
    strides.insert(0, inner)
    return d.g.tensor(name, dims, kind, strides=tuple(strides))


def _add_matmul_prologue(d: RandomGraphBuilder, a: Tensor) -> Tensor:
    """Return a, or the result of an operation on it, in the type of the matmul."""
    if not d.make_random_bool(0.1) or d.g.io_type not in (_T.HALF, _T.BFLOAT16):
        return a
    like: dict[str, Any] = {"virtual": True, "strides": a.strides, "data_type": d.g.io_type}
    mode = d.choose(_P.RELU_FWD, _P.MUL, _P.GELU_FWD, _P.IDENTITY)
    b = d.add_scalar(a.rank) if mode is _P.MUL else None
    return d.g.pointwise(mode, a, b, **like)
