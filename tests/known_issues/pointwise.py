"""Examples of known issues of graphs of pointwise operations and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.graph.builder import GraphBuilder
from cudnn_backend_py.graph.ir import Graph
from cudnn_backend_py.graph.strides import channels_last, packed_strides

from .example import Examples

__all__ = ["POINTWISE"]


def _make_relu_graph(dims: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Graph:
    g, like = GraphBuilder("activation"), strides or packed_strides(dims)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dims, strides=like), name="y", virtual=False, strides=like)
    return g.graph()


def _make_bias_graph(dims: tuple[int, ...], bias: tuple[int, ...], strides: Sequence[int] | None = None) -> Graph:
    g = GraphBuilder("sum")
    b = g.tensor("bias", bias, strides=packed_strides(bias) if strides is None else tuple(strides))
    g.pointwise(PointwiseMode.ADD, g.tensor("x", dims), b, name="y", virtual=False)
    return g.graph()


def _make_gen_index_add_graph(axis: int) -> Graph:
    g = GraphBuilder("index", io_type=DataType.FLOAT)
    x = g.tensor("x", (4, 6, 8))
    g.pointwise(PointwiseMode.ADD, g.pointwise(PointwiseMode.GEN_INDEX, x, axis=axis), x, name="y", virtual=False)
    return g.graph()


def _make_sum_reduction_graph(to: tuple[int, ...]) -> Graph:
    g = GraphBuilder("summed")
    x = g.tensor("x", (8, 2, 3, 8, 2), strides="channels_last")
    g.reduction(ReduceTensorOp.ADD, x, to, name="y", virtual=False, data_type=DataType.FLOAT, strides=channels_last(to))
    return g.graph()


def _make_sum_of_types(kind: DataType, result: DataType) -> Graph:
    g, dims = GraphBuilder("sum", io_type=kind, compute_type=DataType.FLOAT), (2, 32, 64)
    x, other = g.tensor("x", dims), g.tensor("other", dims)
    g.pointwise(PointwiseMode.ADD, x, other, name="y", virtual=False, data_type=result)
    return g.graph()


def _make_selection(dims: tuple[int, ...], kind: DataType = DataType.BOOLEAN) -> Graph:
    g = GraphBuilder("selection", io_type=DataType.HALF)
    like = {"strides": channels_last(dims) if len(dims) > 3 else packed_strides(dims)}
    left, right, x, other = (g.tensor(name, dims, **like) for name in ("left", "right", "x", "other"))
    larger = g.pointwise(PointwiseMode.CMP_GT, left, right, data_type=kind, compute_type=DataType.FLOAT, **like)
    g.pointwise(PointwiseMode.BINARY_SELECT, x, other, t=larger, name="y", virtual=False, **like)
    return g.graph()


POINTWISE: dict[str, Examples] = {
    "elementwise-booleans": Examples(
        reproductions={
            "": lambda: _make_selection((4, 8, 6)),
            "image": lambda: _make_selection((2, 3, 8, 4)),
        },
        unaffected=lambda: _make_selection((2, 12, 8, 4)),
        fixed=lambda: _make_selection((4, 8, 6), DataType.FLOAT),
    ),
    "elementwise-64-bits": Examples(
        reproductions={
            "": lambda: _make_sum_of_types(DataType.DOUBLE, DataType.DOUBLE),
            "float": lambda: _make_sum_of_types(DataType.DOUBLE, DataType.FLOAT),
            "int": lambda: _make_sum_of_types(DataType.INT64, DataType.INT32),
        },
        unaffected=lambda: _make_sum_of_types(DataType.FLOAT, DataType.DOUBLE),
        fixed=lambda: _make_sum_of_types(DataType.FLOAT, DataType.FLOAT),
    ),
    "elementwise-two-dims": Examples(
        reproductions={"": lambda: _make_relu_graph((96, 24))},
        unaffected=lambda: _make_relu_graph((1, 96, 24)),
        fixed=lambda: _make_relu_graph((1, 96, 24)),
    ),
    "elementwise-two-dims-column-major": Examples(
        reproductions={"": lambda: _make_relu_graph((32, 24), (1, 32))},
        unaffected=lambda: _make_relu_graph((1, 24, 32)),
        fixed=lambda: _make_relu_graph((1, 24, 32)),
    ),
    "elementwise-broadcast-of-matrices": Examples(
        reproductions={"": lambda: _make_bias_graph((16, 32, 24), (1, 1, 24))},
        unaffected=lambda: _make_bias_graph((16, 32, 24), (1, 32, 24)),
        fixed=lambda: _make_bias_graph((16, 32, 24), (16, 1, 24)),
    ),
    "elementwise-number-for-each-matrix": Examples(
        reproductions={"": lambda: _make_bias_graph((4, 6, 8), (4, 1, 1))},
        unaffected=lambda: _make_bias_graph((4, 6, 8), (4, 6, 1)),
        fixed=lambda: _make_bias_graph((4, 6, 8), (4, 6, 1)),
    ),
    "elementwise-rows-with-strides": Examples(
        reproductions={
            "": lambda: _make_bias_graph((4, 6, 8), (4, 1, 8), (16, 16, 1)),
            "columns": lambda: _make_bias_graph((4, 6, 8), (4, 6, 1), (12, 2, 1)),
        },
        unaffected=lambda: _make_bias_graph((4, 6, 8), (4, 1, 8)),
        fixed=lambda: _make_bias_graph((4, 6, 8), (4, 1, 8)),
    ),
    "elementwise-columns-apart": Examples(
        reproductions={"": lambda: _make_relu_graph((4, 6, 8), (1, 32, 4))},
        unaffected=lambda: _make_relu_graph((4, 6, 8), (8, 32, 1)),
        fixed=lambda: _make_relu_graph((6, 8, 4)),
    ),
    "elementwise-channels-slowest": Examples(
        reproductions={"": lambda: _make_relu_graph((8, 2, 2, 4), (1, 64, 32, 8))},
        unaffected=lambda: _make_relu_graph((8, 2, 2, 4), (16, 1, 8, 2)),
        fixed=lambda: _make_relu_graph((2, 8, 2, 4), (64, 1, 32, 8)),
    ),
    "index-of-matrices": Examples(
        reproductions={"": lambda: _make_gen_index_add_graph(0)},
        unaffected=lambda: _make_gen_index_add_graph(1),
        fixed=lambda: _make_gen_index_add_graph(1),
    ),
    "reduction-of-five-dims": Examples(
        reproductions={
            "": lambda: _make_sum_reduction_graph((8, 1, 3, 8, 1)),
            "others": lambda: _make_sum_reduction_graph((1, 2, 1, 1, 2)),
        },
        unaffected=lambda: _make_sum_reduction_graph((8, 1, 3, 8, 2)),
        fixed=lambda: _make_sum_reduction_graph((8, 1, 3, 8, 2)),
    ),
}
