"""Random graphs of elementwise operations and reductions only, with every mode and type."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.generated.operations import BACKWARD_MODES, BINARY_MODES, TERNARY_MODES
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.strides import channels_last, packed_strides

from ..random_builder import ARITHMETIC_MODES, COMPARISON_MODES, RandomGraphBuilder

__all__ = ["add_pointwise_graph", "add_pointwise_operation_of_any_mode", "add_reduction_graph"]

_T, _P = DataType, PointwiseMode
TYPE_WEIGHTS = {_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 5, _T.DOUBLE: 0.2, _T.FP8_E4M3: 0.3}
INTEGER_TYPES = (_T.INT32, _T.INT8, _T.INT64, _T.UINT8, _T.BOOLEAN)


def _choose_dims(d: RandomGraphBuilder) -> tuple[int, ...]:
    """Return random dims for a graph and set its layout: rows, or images with channels last."""
    rank = d.choose_weighted({3: 4, 4: 4, 5: 1, 2: 0.15})
    d.whole_batch = True
    others = {"permuted": 0.3, "gaps": 0.4}
    d.choose_layout({"packed": 9, **others} if rank < 4 else {"last": 9, "packed": 0.7, **others}, rank)
    sizes = {2: (16, 24, 64, 96), 3: (8, 16, 24, 32), 4: (2, 4, 8, 16), 5: (2, 3, 4, 8)}[rank]
    dims = [d.choose(*sizes) for _ in range(rank)]
    if d.make_random_bool(0.15):
        dims[d.make_random_int(0, rank - 1)] = d.choose(1, 1, 3, 5, 7)
    return tuple(dims)


def add_pointwise_graph(d: RandomGraphBuilder) -> None:
    """Add one to eight elementwise operations in a chain with branches."""
    d.choose_io_type(TYPE_WEIGHTS)
    dims = _choose_dims(d)
    x = d.add_tensor("x", dims)
    channel = None if d.make_random_bool(0.5) else min(1, len(dims) - 1)
    length = d.choose_weighted({1: 4, 2: 4, 3: 3, 4: 2, 6: 1, 8: 0.5})
    y = d.add_elementwise_chain(x, length, channel=channel, kind=d.choose_output_type())
    if d.make_random_bool(0.1):
        d.add_elementwise_chain(y, 1, channel=channel)


def add_reduction_graph(d: RandomGraphBuilder) -> None:
    """Add a reduction, with elementwise operations before and after it."""
    d.choose_io_type({_T.HALF: 5, _T.BFLOAT16: 4, _T.FLOAT: 5})
    dims = (
        _choose_dims(d)
        if d.make_random_bool(0.6)
        else (d.choose(32, 64, 96), d.choose(16, 32, 64), *d.choose((), (1, 1)))
    )
    if len(dims) == 3:
        dims = dims[1:]  # no engine reduces batches of matrices
    if not d.make_random_bool(0.05):
        d.layout = packed_strides if len(dims) < 4 else channels_last
    x = d.add_tensor("x", dims)
    channel = None if d.make_random_bool(0.5) else min(1, len(dims) - 1)
    z = d.add_elementwise_chain(x, d.choose_weighted({0: 5, 1: 3, 2: 2}), channel=channel, virtual=True)
    after = d.make_random_bool(0.06)
    y = d.add_reduction(z, virtual=after)
    if after:
        d.add_elementwise_chain(y, d.choose(1, 1, 2), channel=channel, kind=d.choose(_T.FLOAT, d.g.io_type))


def add_pointwise_operation_of_any_mode(d: RandomGraphBuilder) -> None:
    """Add one operation of any mode and any types, including integers and booleans."""
    kind = d.choose_weighted(
        {_T.HALF: 4, _T.BFLOAT16: 4, _T.FLOAT: 5, _T.INT32: 2, _T.INT8: 1, _T.INT64: 0.5, _T.UINT8: 0.3}
    )
    d.g.io_type = kind
    dims = _choose_dims(d)
    if d.make_random_bool(0.2):
        _add_one_reduction(d, dims)
        return
    chosen = d.choose(*PointwiseMode)
    out = kind if d.make_random_bool(0.7) else d.choose(_T.HALF, _T.BFLOAT16, _T.FLOAT, _T.INT32, _T.INT8)
    result: dict[str, Any] = d.make_stored_result_options(dims, out)
    whole = kind in INTEGER_TYPES and chosen in ARITHMETIC_MODES and d.make_random_bool(0.5)
    more: dict[str, Any] = {"compute_type": _T.INT32} if whole else {}
    x = d.add_tensor("x", dims)
    if chosen is _P.GEN_INDEX:
        index = d.g.pointwise(
            chosen, x, axis=d.make_random_int(0, len(dims) - 1), **d.make_virtual_result_options(dims, _T.INT32)
        )
        d.g.pointwise(_P.ADD, index, x, **result)
        return
    if chosen in COMPARISON_MODES or chosen.name.startswith("LOGICAL"):
        _add_binary_selection(d, chosen, x, result)
        return
    if chosen in TERNARY_MODES:
        _add_binary_selection(d, d.choose(*COMPARISON_MODES), x, result)
        return
    b = d.choose_operand(dims, channel=d.choose(None, 1), earlier=[x]) if chosen in BINARY_MODES else None
    if chosen is _P.POW:
        x = d.g.pointwise(_P.ABS, x, **d.make_virtual_result_options(dims))
    dy = d.add_tensor("dy", dims) if chosen in BACKWARD_MODES else None
    d.g.pointwise(chosen, x, b, dy=dy, **more, **result, parameters=d.choose_activation_parameters(chosen))


def _add_binary_selection(d: RandomGraphBuilder, chosen: PointwiseMode, x: Tensor, result: dict[str, Any]) -> None:
    """Add a BINARY_SELECT with a virtual mask from a comparison, or a logical operation on comparisons."""
    strides = d.make_virtual_result_options(x.dims)["strides"]
    g = d.g

    def add_random_comparison(any_mode: PointwiseMode | None = None) -> Tensor:
        return d.add_comparison(x, d.choose_operand(x.dims, channel=None), strides, any_mode)

    if chosen is _P.LOGICAL_NOT:
        mask = g.pointwise(chosen, add_random_comparison(), strides=strides)
    elif chosen.name.startswith("LOGICAL"):
        mask = g.pointwise(chosen, add_random_comparison(), add_random_comparison(), strides=strides)
    else:
        mask = add_random_comparison(chosen)
    if d.make_random_bool(0.1):
        g.pointwise(_P.IDENTITY, mask, **{**result, "data_type": d.choose(_T.BOOLEAN, result["data_type"])})
        return
    g.pointwise(_P.BINARY_SELECT, x, d.choose_operand(x.dims, channel=None), mask, **result)


def _add_one_reduction(d: RandomGraphBuilder, dims: tuple[int, ...]) -> None:
    x = d.add_tensor("x", dims)
    d.add_reduction(x, virtual=False, operator=d.choose(*ReduceTensorOp))
