"""Supported graphs other than attention, each with one or two edits that make cuDNN 9.28 refuse it.

The edit is the known cause, and undoing it the known remedy. The search for causes was developed with the graphs with
even numbers; those with odd numbers only measure its success.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, PointwiseMode
from cudnn_backend_py.generated.enums import ConvolutionMode, ReduceTensorOp, ResampleMode, TensorReordering
from cudnn_backend_py.graph import Parameters, Tensor
from cudnn_backend_py.graph.ir import Op, Operation, Pointwise, Reduction
from cudnn_backend_py.graph.replace import iterate_unused_uids, replace_tensors
from cudnn_backend_py.graph.strides import channels_last, make_column_major_strides, packed_strides
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.typical_graphs import TYPICAL_GRAPHS

__all__ = ["CAUSE_CASES", "GraphEdit", "RefusalCauseCase", "get_supported_graph"]

D, P, R, T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType
GraphEdit = Callable[[Graph], Graph]


@dataclass(frozen=True)
class RefusalCauseCase:
    """A supported graph, edits that make it refused, and texts that the cause's headline must contain.

    The headline must contain each of ``words``; ``|`` separates alternatives.
    """

    base: str
    target: str
    edits: tuple[GraphEdit, ...]
    words: tuple[str, ...]

    def graph(self) -> Graph:
        """Return the graph after all edits."""
        graph = get_supported_graph(self.base)
        for edit in self.edits:
            graph = edit(graph)
        return graph


def get_supported_graph(name: str) -> Graph:
    return (
        TYPICAL_GRAPHS[name.removeprefix("built ")].make()
        if name.startswith("built ")
        else GRAPHS_OF_FULL_CUDNN[name]()
    )


def edit_tensor(name: str, **fields: Any) -> GraphEdit:
    """Return an edit that changes fields of a tensor; strides may be a function of its dims."""

    def edit_graph(graph: Graph) -> Graph:
        one = graph.tensor(name)
        new = {key: value(one.dims) if callable(value) else value for key, value in fields.items()}
        return replace_tensors(graph, {one.uid: replace(one, **new)})

    return edit_graph


def multiply_tensor_strides(name: str, factor: int = 2) -> GraphEdit:
    """Return an edit that multiplies the strides of a tensor by `factor`, which leaves gaps between elements."""
    return lambda graph: edit_tensor(name, strides=tuple(factor * one for one in graph.tensor(name).strides))(graph)


def pad_rows(name: str) -> GraphEdit:
    """Return an edit that adds an element of padding between the rows of a tensor."""

    def edit_graph(graph: Graph) -> Graph:
        one = graph.tensor(name)
        least = min(stride for dim, stride in zip(one.dims, one.strides, strict=True) if dim > 1)
        return edit_tensor(name, strides=tuple(step + (step != least) for step in one.strides))(graph)

    return edit_graph


def edit_operation(name: str, inner: str = "", **fields: Any) -> GraphEdit:
    """Return an edit that changes fields of an operation, or of its parameter object `inner`."""

    def change_operation(op: Op) -> Op:
        if not isinstance(op, Operation):
            return replace(op, **fields)  # type: ignore[type-var]
        if not inner:
            return Operation(op.type, op.name, {**op.fields, **fields})
        given = op.fields[inner]
        return Operation(op.type, op.name, {**op.fields, inner: Parameters(given.kind, {**given.fields, **fields})})

    return lambda graph: Graph(tuple(change_operation(op) if op.name == name else op for op in graph.ops), graph.name)


def remove_port(name: str, port: str) -> GraphEdit:
    """Return an edit that removes one tensor from an operation."""

    def drop_port(op: Op) -> Op:
        if op.name != name or not isinstance(op, Operation):
            return op
        return Operation(op.type, op.name, {key: value for key, value in op.fields.items() if key != port})

    return lambda graph: Graph(tuple(map(drop_port, graph.ops)), graph.name)


def split_convolution_into_groups(weights: str, count: int) -> GraphEdit:
    """Return an edit that splits a convolution into groups."""

    def edit_graph(graph: Graph) -> Graph:
        one = graph.tensor(weights)
        dims = (one.dims[0], one.dims[1] // count, *one.dims[2:])
        return edit_tensor(weights, dims=dims, strides=channels_last(dims))(graph)

    return edit_graph


def append_pointwise(name: str, mode: PointwiseMode) -> GraphEdit:
    """Return an edit that adds a pointwise operation after an output of a graph."""

    def edit_graph(graph: Graph) -> Graph:
        out = graph.tensor(name)
        inside = replace(out, name=f"{name}_in", uid=next(iterate_unused_uids(graph)), virtual=True)
        ops = replace_tensors(graph, {out.uid: inside}).ops
        return Graph((*ops, Pointwise(name="extra", mode=mode, x=inside, y=out)), graph.name)

    return edit_graph


def prepend_pointwise(name: str, mode: PointwiseMode, data_type: DataType | None = None) -> GraphEdit:
    """Return an edit that adds a pointwise operation before an input of a graph."""

    def edit_graph(graph: Graph) -> Graph:
        given = graph.tensor(name)
        inside = replace(given, name=f"{name}_pre", uid=next(iterate_unused_uids(graph)), virtual=True)
        ops = replace_tensors(graph, {given.uid: inside}).ops
        read = replace(given, data_type=data_type or given.data_type)
        return Graph((Pointwise(name="extra", mode=mode, x=read, y=inside), *ops), graph.name)

    return edit_graph


def append_sum_reduction(name: str, keep: tuple[int, ...]) -> GraphEdit:
    """Return an edit that adds the sums of an output, over all axes except `keep`."""

    def edit_graph(graph: Graph) -> Graph:
        one = graph.tensor(name)
        dims = tuple(dim if axis in keep else 1 for axis, dim in enumerate(one.dims))
        strides = channels_last(dims) if one.rank > 3 else packed_strides(dims)
        total = Tensor(
            name="extra", uid=next(iterate_unused_uids(graph)), dims=dims, strides=strides, data_type=T.FLOAT
        )
        return Graph((*graph.ops, Reduction(name="extra", operator=R.ADD, x=one, y=total)), graph.name)

    return edit_graph


def append_transpose(name: str) -> GraphEdit:
    """Return an edit that adds a transpose of an output of a graph."""

    def edit_graph(graph: Graph) -> Graph:
        one = graph.tensor(name)
        order = (*range(one.rank - 2), one.rank - 1, one.rank - 2)
        dims = tuple(one.dims[axis] for axis in order)
        out = replace(one, name="turned", uid=next(iterate_unused_uids(graph)), dims=dims, strides=packed_strides(dims))
        fields = {"x": replace(one, virtual=True), "y": out, "permutation": order}
        ops = replace_tensors(graph, {one.uid: replace(one, virtual=True)}).ops
        return Graph((*ops, Operation(D.OPERATION_TRANSPOSE, "extra", fields)), graph.name)

    return edit_graph


def _make_strides_with_broadcast_dim(dims: tuple[int, ...]) -> tuple[int, ...]:
    largest = max(range(len(dims)), key=dims.__getitem__)
    return tuple(0 if axis == largest else step for axis, step in enumerate(packed_strides(dims)))


def _make_refusal_cause_case(base: str, target: str, *edits: GraphEdit, words: str) -> RefusalCauseCase:
    return RefusalCauseCase(base, target, edits, tuple(words.split()))


_FILTER, _DATA, _CONV = "convolution_backward_filter0", "convolution_backward_data0", "convolution_forward0"
_NORM, _EXPERTS = "norm_forward0", "moe"

CAUSE_CASES: tuple[RefusalCauseCase, ...] = (
    # convolutions
    _make_refusal_cause_case("dgrad nhwc bf16", "b200", edit_tensor("dx", data_type=T.INT64), words="dx int64"),
    _make_refusal_cause_case("wgrad nhwc bf16", "b200", edit_tensor("dw", data_type=T.FP8_E4M3), words="dw fp8"),
    _make_refusal_cause_case("conv nhwc f16", "a100", edit_tensor("w", data_type=T.BFLOAT16), words="w bfloat16"),
    _make_refusal_cause_case(
        "conv nhwc f16 stride 2",
        "a100",
        edit_tensor("w", strides=_make_strides_with_broadcast_dim),
        words="w strides",
    ),
    _make_refusal_cause_case("conv nhwc f16 depthwise", "a100", multiply_tensor_strides("w"), words="w strides"),
    _make_refusal_cause_case("conv nhwc f16 3 channels", "h100", pad_rows("y"), words="y strides"),
    _make_refusal_cause_case("conv fp8", "b200", multiply_tensor_strides("y"), words="y strides"),
    _make_refusal_cause_case("conv f16 stats", "b200", multiply_tensor_strides("out"), words="out strides"),
    _make_refusal_cause_case("conv f16 bias relu", "a100", edit_operation(_CONV, beta=1.0), words="beta"),
    _make_refusal_cause_case("conv f16 bias relu", "h100", edit_operation(_CONV, alpha=0.5), words="alpha 0.5"),
    _make_refusal_cause_case(
        "conv forward relu f16", "b200", edit_operation("out", compute_type=T.INT32), words="out int32 comput"
    ),
    _make_refusal_cause_case(
        "conv f16 stats", "h100", edit_operation(_CONV, "convolution", comp_type=T.DOUBLE), words="double comput"
    ),
    _make_refusal_cause_case(
        "conv f16 stats",
        "h100",
        edit_operation(_CONV, "convolution", conv_mode=ConvolutionMode.CONVOLUTION),
        words="conv mode",
    ),
    _make_refusal_cause_case("conv f16 bias relu", "a100", append_transpose("out"), words="extra transpose"),
    _make_refusal_cause_case(
        "wgrad f16 scale bias relu before", "h100", split_convolution_into_groups("dw", 2), words="group"
    ),
    _make_refusal_cause_case(
        "conv f16 bias relu",
        "h100",
        split_convolution_into_groups("w", 4),
        append_sum_reduction("out", (1,)),
        words="extra",
    ),
    _make_refusal_cause_case("conv f32 nchw bias relu", "h100", edit_tensor("y", data_type=T.HALF), words="y float16"),
    _make_refusal_cause_case(
        "dgrad nchw f32 depthwise", "b200", append_pointwise("dx", P.GELU_FWD), words="extra gelu_fwd"
    ),
    _make_refusal_cause_case("built concat", "b200", split_convolution_into_groups("w", 4), words="group concat"),
    # matmuls
    _make_refusal_cause_case("matmul f16 gelu", "h100", multiply_tensor_strides("a"), words="a strides"),
    _make_refusal_cause_case("matmul f16 gelu", "h100", edit_tensor("a", alignment=1), words="a alignment"),
    _make_refusal_cause_case(
        "matmul f16 gelu", "a100", edit_operation("out", compute_type=T.INT8), words="out int8 comput"
    ),
    _make_refusal_cause_case(
        "matmul f16 gelu", "h100", append_pointwise("out", P.LOGICAL_NOT), words="extra logical_not"
    ),
    _make_refusal_cause_case("matmul f16 gelu", "h100", append_transpose("out"), words="extra transpose"),
    _make_refusal_cause_case("matmul reduction", "h100", edit_tensor("y", data_type=T.INT32), words="y int32"),
    _make_refusal_cause_case("matmul reduction", "b200", append_pointwise("y", P.TAN), words="extra tan"),
    _make_refusal_cause_case("matmul reduction", "b200", edit_operation("y", operator=R.AVG), words="y AVG"),
    _make_refusal_cause_case("built slice", "h100", multiply_tensor_strides("a"), words="a strides"),
    _make_refusal_cause_case("built slice", "h100", edit_tensor("b", data_type=T.INT64), words="b int64"),
    # norms
    _make_refusal_cause_case("layer norm f16 training", "h100", edit_tensor("y", data_type=T.INT64), words="y int64"),
    _make_refusal_cause_case(
        "layer norm f16 training", "a100", edit_tensor("scale", data_type=T.INT8), words="scale int8"
    ),
    _make_refusal_cause_case(
        "layer norm f16 training", "h100", multiply_tensor_strides("scale"), words="scale strides"
    ),
    _make_refusal_cause_case(
        "rms norm bf16 training",
        "a100",
        edit_tensor("x", strides=_make_strides_with_broadcast_dim),
        words="x strides",
    ),
    _make_refusal_cause_case("rms norm bf16 training", "h100", append_transpose("y"), words="extra transpose"),
    _make_refusal_cause_case("batch norm training", "a100", remove_port(_NORM, "epsilon"), words="epsilon"),
    _make_refusal_cause_case("batch norm relu", "b200", edit_tensor("y", virtual=False), words="y memory"),
    _make_refusal_cause_case("batch norm relu", "a100", edit_tensor("y", strides=packed_strides), words="y layout"),
    _make_refusal_cause_case("batch norm training", "h100", pad_rows("y"), words="y strides"),
    _make_refusal_cause_case("batch norm training", "h100", edit_tensor("y", strides=packed_strides), words="y layout"),
    _make_refusal_cause_case(
        "batch norm training nchw",
        "b200",
        edit_tensor("output_running_var", data_type=T.INT64),
        words="output_running_var int64",
    ),
    _make_refusal_cause_case(
        "batch norm backward nchw", "b200", edit_tensor("dx", strides=channels_last), words="dx layout"
    ),
    _make_refusal_cause_case("instance norm backward", "b200", pad_rows("dx"), words="dx strides"),
    _make_refusal_cause_case(
        "built rms norm backward",
        "h100",
        append_pointwise("dnorm", P.ABS),
        edit_tensor("dnorm_in", data_type=T.FLOAT),
        words="dnorm_in float32 extra",
    ),
    _make_refusal_cause_case("batch norm residual relu", "h100", append_transpose("out"), words="extra transpose"),
    _make_refusal_cause_case(
        "batch norm residual relu", "b200", edit_operation("out", compute_type=T.INT64), words="out int64 comput"
    ),
    _make_refusal_cause_case(
        "bn finalize",
        "b200",
        edit_tensor("eq_scale", reordering=TensorReordering.F8_128x4),
        words="eq_scale reordering",
    ),
    # resampling
    _make_refusal_cause_case(
        "max pooling f16", "h100", edit_tensor("y", strides=packed_strides), words="y layout|strides"
    ),
    _make_refusal_cause_case("max pooling f16", "a100", edit_tensor("x", data_type=T.BOOLEAN), words="x boolean"),
    _make_refusal_cause_case(
        "max pooling backward f16", "h100", edit_operation("resample_bwd0", alpha=2.0), words="alpha 2.0"
    ),
    _make_refusal_cause_case("mean pooling f16", "h100", edit_operation("resample_fwd0", beta=1.0), words="beta"),
    _make_refusal_cause_case(
        "resample backward",
        "a100",
        edit_operation("resample_bwd0", "resample", mode=ResampleMode.BILINEAR),
        words="BILINEAR",
    ),
    _make_refusal_cause_case("max pooling f32 nchw", "b200", append_pointwise("y", P.ERF), words="extra erf"),
    # block scales
    _make_refusal_cause_case("built MXFP8 matmul", "b200", pad_rows("scale_b"), words="scale_b strides"),
    _make_refusal_cause_case(
        "built MXFP8 matmul", "b200", edit_tensor("scale_a", data_type=T.FLOAT), words="scale_a float32"
    ),
    _make_refusal_cause_case("built MXFP8 matmul", "b200", edit_tensor("b", data_type=T.BOOLEAN), words="b boolean"),
    _make_refusal_cause_case(
        "built NVFP4 matmul", "b200", edit_tensor("b", strides=_make_strides_with_broadcast_dim), words="b strides"
    ),
    _make_refusal_cause_case(
        "built RMS norm, quantized in plain order", "b200", edit_tensor("x", data_type=T.UINT8), words="x uint8"
    ),
    _make_refusal_cause_case(
        "built RMS norm, quantized in plain order",
        "b200",
        edit_tensor("quantized.scale", reordering=TensorReordering.F8_128x4),
        words="quantized.scale reordering",
    ),
    # mixture of experts, pointwise operations, reductions
    _make_refusal_cause_case(
        "built moe grouped matmul", "h100", edit_tensor("weight", data_type=T.HALF), words="weight float16"
    ),
    _make_refusal_cause_case(
        "built moe grouped matmul",
        "b200",
        edit_tensor("token", strides=make_column_major_strides),
        words="token strides",
    ),
    _make_refusal_cause_case(
        "built moe grouped matmul", "h100", append_pointwise("moe", P.LOGICAL_NOT), words="extra logical_not"
    ),
    _make_refusal_cause_case(
        "built experts, gathered", "a100", edit_operation(_EXPERTS, math_prec=T.DOUBLE), words="comput double"
    ),
    _make_refusal_cause_case("mul f16", "b200", edit_tensor("b", strides=make_column_major_strides), words="b strides"),
    _make_refusal_cause_case("pointwise chain f16", "b200", append_sum_reduction("y", (0, 1)), words="extra"),
    _make_refusal_cause_case(
        "pointwise chain f16", "b200", edit_operation("y", compute_type=T.BOOLEAN), words="y boolean comput"
    ),
    _make_refusal_cause_case("exp f32", "b200", edit_operation("y", compute_type=T.INT32), words="y int32 comput"),
    _make_refusal_cause_case(
        "built reduction", "h100", append_pointwise("reduce_add", P.RELU_FWD), words="extra relu_fwd"
    ),
    # two causes
    _make_refusal_cause_case(
        "conv f16 stats",
        "b200",
        multiply_tensor_strides("out"),
        edit_operation(_CONV, "convolution", comp_type=T.DOUBLE),
        words="out strides double comput",
    ),
    _make_refusal_cause_case(
        "matmul f16 gelu",
        "b200",
        multiply_tensor_strides("a"),
        edit_operation("out", compute_type=T.INT8),
        words="a strides out int8",
    ),
    _make_refusal_cause_case(
        "layer norm f16 training",
        "h100",
        edit_tensor("y", data_type=T.INT64),
        multiply_tensor_strides("scale"),
        words="y int64 scale strides",
    ),
    _make_refusal_cause_case(
        "batch norm training", "h100", pad_rows("y"), edit_tensor("x", data_type=T.INT64), words="y strides x int64"
    ),
)
