"""Random graphs of elementwise operations and reductions only, of every mode and type."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.generated.operations import BACKWARD_MODES, BINARY_MODES, TERNARY_MODES
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.strides import channels_last, packed_strides

from ..draw import ARITHMETIC, COMPARISONS, Draw

__all__ = ["mode", "pointwise", "reduction"]

_T, _P = DataType, PointwiseMode
TYPES = {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 5, _T.DOUBLE: 0.2, _T.FP8_E4M3: 0.3}
WHOLE = (_T.INT32, _T.INT8, _T.INT64, _T.UINT8, _T.BOOLEAN)


def _dims(d: Draw) -> tuple[int, ...]:
    """Return the dims of a graph and choose its layout: most engines read rows, or images channels last."""
    rank = d.weighted({3: 4, 4: 4, 5: 1, 2: 0.15})
    d.whole_batch = True
    others = {"permuted": 0.3, "gaps": 0.4}
    d.set_layout({"packed": 9, **others} if rank < 4 else {"last": 9, "packed": 0.7, **others}, rank)
    sizes = {2: (16, 24, 64, 96), 3: (8, 16, 24, 32), 4: (2, 4, 8, 16), 5: (2, 3, 4, 8)}[rank]
    dims = [d.pick(*sizes) for _ in range(rank)]
    if d.chance(0.15):
        dims[d.between(0, rank - 1)] = d.pick(1, 1, 3, 5, 7)
    return tuple(dims)


def pointwise(d: Draw) -> None:
    """Add one to eight elementwise operations in a chain with branches."""
    d.set_types(TYPES)
    dims = _dims(d)
    x = d.tensor("x", dims)
    channel = None if d.chance(0.5) else min(1, len(dims) - 1)
    length = d.weighted({1: 4, 2: 4, 3: 3, 4: 2, 6: 1, 8: 0.5})
    y = d.chain(x, length, channel=channel, kind=d.output_type())
    if d.chance(0.1):
        d.chain(y, 1, channel=channel)


def reduction(d: Draw) -> None:
    """Add a reduction, with elementwise operations before and after it."""
    d.set_types({_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 5})
    dims = _dims(d) if d.chance(0.6) else (d.pick(32, 64, 96), d.pick(16, 32, 64), *d.pick((), (1, 1)))
    if len(dims) == 3:
        dims = dims[1:]  # no engine reduces matrices in batches
    if not d.chance(0.05):
        d.layout = packed_strides if len(dims) < 4 else channels_last
    x = d.tensor("x", dims)
    channel = None if d.chance(0.5) else min(1, len(dims) - 1)
    z = d.chain(x, d.weighted({0: 5, 1: 3, 2: 2}), channel=channel, virtual=True)
    after = d.chance(0.06)
    y = d.reduce(z, virtual=after)
    if after:
        d.chain(y, d.pick(1, 1, 2), channel=channel, kind=d.pick(_T.FLOAT, d.g.io_type))


def mode(d: Draw) -> None:
    """Add one operation of any mode and any types, including integers and booleans."""
    kind = d.weighted({_T.HALF: 4, _T.BFLOAT16: 4, _T.FLOAT: 5, _T.INT32: 2, _T.INT8: 1, _T.INT64: 0.5, _T.UINT8: 0.3})
    d.g.io_type = kind
    dims = _dims(d)
    if d.chance(0.2):
        _one_reduction(d, dims)
        return
    chosen = d.pick(*PointwiseMode)
    out = kind if d.chance(0.7) else d.pick(_T.HALF, _T.BFLOAT16, _T.FLOAT, _T.INT32, _T.INT8)
    result: dict[str, Any] = d.memory(dims, out)
    whole = kind in WHOLE and chosen in ARITHMETIC and d.chance(0.5)
    more: dict[str, Any] = {"compute_type": _T.INT32} if whole else {}
    x = d.tensor("x", dims)
    if chosen is _P.GEN_INDEX:
        index = d.g.pointwise(chosen, x, axis=d.between(0, len(dims) - 1), **d.virtual(dims, _T.INT32))
        d.g.pointwise(_P.ADD, index, x, **result)
        return
    if chosen in COMPARISONS or chosen.name.startswith("LOGICAL"):
        _select(d, chosen, x, result)
        return
    if chosen in TERNARY_MODES:
        _select(d, d.pick(*COMPARISONS), x, result)
        return
    b = d.operand(dims, channel=d.pick(None, 1), earlier=[x]) if chosen in BINARY_MODES else None
    if chosen is _P.POW:
        x = d.g.pointwise(_P.ABS, x, **d.virtual(dims))
    dy = d.tensor("dy", dims) if chosen in BACKWARD_MODES else None
    d.g.pointwise(chosen, x, b, dy=dy, **more, **result, parameters=d.parameters(chosen))


def _select(d: Draw, chosen: PointwiseMode, x: Tensor, result: dict[str, Any]) -> None:
    """Add a comparison, or logic of comparisons, and a selection by it: booleans are not in memory."""
    strides = d.virtual(x.dims)["strides"]
    g = d.g

    def compared(mode: PointwiseMode | None = None) -> Tensor:
        return d.compare(x, d.operand(x.dims, channel=None), strides, mode)

    if chosen is _P.LOGICAL_NOT:
        mask = g.pointwise(chosen, compared(), strides=strides)
    elif chosen.name.startswith("LOGICAL"):
        mask = g.pointwise(chosen, compared(), compared(), strides=strides)
    else:
        mask = compared(chosen)
    if d.chance(0.1):
        g.pointwise(_P.IDENTITY, mask, **{**result, "data_type": d.pick(_T.BOOLEAN, result["data_type"])})
        return
    g.pointwise(_P.BINARY_SELECT, x, d.operand(x.dims, channel=None), mask, **result)


def _one_reduction(d: Draw, dims: tuple[int, ...]) -> None:
    x = d.tensor("x", dims)
    d.reduce(x, virtual=False, operator=d.pick(*ReduceTensorOp))
