"""Graphs outside attention that cuDNN 9.28 supports, each with one or two edits that make cuDNN refuse it.

The cause is known, because the edit added it; so is the remedy: the graph without the edit. Graphs with even numbers
were examined when the search for causes was written, those with odd numbers were only counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, PointwiseMode
from cudnn_backend_py.generated.enums import ConvolutionMode, ReduceTensorOp, ResampleMode, TensorReordering
from cudnn_backend_py.graph import Parameters, Tensor
from cudnn_backend_py.graph.ir import Op, Operation, Pointwise, Reduction
from cudnn_backend_py.graph.replace import free_uids, replace_tensors
from cudnn_backend_py.graph.strides import channels_last, column_major, packed_strides
from tests.support.built import BUILT
from tests.support.families import FAMILIES

__all__ = ["CAUSE_CASES", "CauseCase", "Edit", "base_of"]

D, P, R, T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType
Edit = Callable[[Graph], Graph]


@dataclass(frozen=True)
class CauseCase:
    """A supported graph, edits of it, and texts that a right headline contains.

    Each of ``words`` has to be in the headline; ``|`` separates alternatives.
    """

    base: str
    target: str
    edits: tuple[Edit, ...]
    words: tuple[str, ...]

    def graph(self) -> Graph:
        """Return the graph after its edits."""
        graph = base_of(self.base)
        for edit in self.edits:
            graph = edit(graph)
        return graph


def base_of(name: str) -> Graph:
    """Return the supported graph."""
    return BUILT[name.removeprefix("built ")].make() if name.startswith("built ") else FAMILIES[name]()


def tensor(name: str, **fields: Any) -> Edit:
    """Return an edit that changes fields of a tensor; strides may be a function of its dims."""

    def edit(graph: Graph) -> Graph:
        one = graph.tensor(name)
        new = {key: value(one.dims) if callable(value) else value for key, value in fields.items()}
        return replace_tensors(graph, {one.uid: replace(one, **new)})

    return edit


def wide(name: str, factor: int = 2) -> Edit:
    """Return an edit that spreads a tensor, so that only every second element is used."""
    return lambda graph: tensor(name, strides=tuple(factor * one for one in graph.tensor(name).strides))(graph)


def gaps(name: str) -> Edit:
    """Return an edit that adds an element of padding between the rows of a tensor."""

    def edit(graph: Graph) -> Graph:
        one = graph.tensor(name)
        least = min(stride for dim, stride in zip(one.dims, one.strides, strict=True) if dim > 1)
        return tensor(name, strides=tuple(step + (step != least) for step in one.strides))(graph)

    return edit


def operation(name: str, inner: str = "", **fields: Any) -> Edit:
    """Return an edit that changes fields of an operation, or of its parameters `inner`."""

    def change(op: Op) -> Op:
        if not isinstance(op, Operation):
            return replace(op, **fields)  # type: ignore[type-var]
        if not inner:
            return Operation(op.type, op.name, {**op.fields, **fields})
        given = op.fields[inner]
        return Operation(op.type, op.name, {**op.fields, inner: Parameters(given.kind, {**given.fields, **fields})})

    return lambda graph: Graph(tuple(change(op) if op.name == name else op for op in graph.ops), graph.name)


def without(name: str, port: str) -> Edit:
    """Return an edit that removes one tensor of an operation."""

    def drop(op: Op) -> Op:
        if op.name != name or not isinstance(op, Operation):
            return op
        return Operation(op.type, op.name, {key: value for key, value in op.fields.items() if key != port})

    return lambda graph: Graph(tuple(map(drop, graph.ops)), graph.name)


def groups(weights: str, count: int) -> Edit:
    """Return an edit that splits a convolution into groups."""

    def edit(graph: Graph) -> Graph:
        one = graph.tensor(weights)
        dims = (one.dims[0], one.dims[1] // count, *one.dims[2:])
        return tensor(weights, dims=dims, strides=channels_last(dims))(graph)

    return edit


def after(name: str, mode: PointwiseMode) -> Edit:
    """Return an edit that adds one operation after an output of a graph."""

    def edit(graph: Graph) -> Graph:
        out = graph.tensor(name)
        inside = replace(out, name=f"{name}_in", uid=next(free_uids(graph)), virtual=True)
        ops = replace_tensors(graph, {out.uid: inside}).ops
        return Graph((*ops, Pointwise(name="extra", mode=mode, x=inside, y=out)), graph.name)

    return edit


def before(name: str, mode: PointwiseMode, data_type: DataType | None = None) -> Edit:
    """Return an edit that adds one operation before an input of a graph."""

    def edit(graph: Graph) -> Graph:
        given = graph.tensor(name)
        inside = replace(given, name=f"{name}_pre", uid=next(free_uids(graph)), virtual=True)
        ops = replace_tensors(graph, {given.uid: inside}).ops
        read = replace(given, data_type=data_type or given.data_type)
        return Graph((Pointwise(name="extra", mode=mode, x=read, y=inside), *ops), graph.name)

    return edit


def summed(name: str, keep: tuple[int, ...]) -> Edit:
    """Return an edit that adds sums of an output of a graph, over all axes except these."""

    def edit(graph: Graph) -> Graph:
        one = graph.tensor(name)
        dims = tuple(dim if axis in keep else 1 for axis, dim in enumerate(one.dims))
        strides = channels_last(dims) if one.rank > 3 else packed_strides(dims)
        total = Tensor(name="extra", uid=next(free_uids(graph)), dims=dims, strides=strides, data_type=T.FLOAT)
        return Graph((*graph.ops, Reduction(name="extra", operator=R.ADD, x=one, y=total)), graph.name)

    return edit


def transposed(name: str) -> Edit:
    """Return an edit that adds a transpose of an output of a graph."""

    def edit(graph: Graph) -> Graph:
        one = graph.tensor(name)
        order = (*range(one.rank - 2), one.rank - 1, one.rank - 2)
        dims = tuple(one.dims[axis] for axis in order)
        out = replace(one, name="turned", uid=next(free_uids(graph)), dims=dims, strides=packed_strides(dims))
        fields = {"x": replace(one, virtual=True), "y": out, "permutation": order}
        ops = replace_tensors(graph, {one.uid: replace(one, virtual=True)}).ops
        return Graph((*ops, Operation(D.OPERATION_TRANSPOSE, "extra", fields)), graph.name)

    return edit


def _last_to_zero(dims: tuple[int, ...]) -> tuple[int, ...]:
    largest = max(range(len(dims)), key=dims.__getitem__)
    return tuple(0 if axis == largest else step for axis, step in enumerate(packed_strides(dims)))


def _case(base: str, target: str, *edits: Edit, words: str) -> CauseCase:
    return CauseCase(base, target, edits, tuple(words.split()))


_FILTER, _DATA, _CONV = "convolution_backward_filter0", "convolution_backward_data0", "convolution_forward0"
_NORM, _EXPERTS = "norm_forward0", "moe"

CAUSE_CASES: tuple[CauseCase, ...] = (
    # convolutions
    _case("dgrad nhwc bf16", "b200", tensor("dx", data_type=T.INT64), words="dx int64"),
    _case("wgrad nhwc bf16", "b200", tensor("dw", data_type=T.FP8_E4M3), words="dw fp8"),
    _case("conv nhwc f16", "a100", tensor("w", data_type=T.BFLOAT16), words="w bfloat16"),
    _case("conv nhwc f16 stride 2", "a100", tensor("w", strides=_last_to_zero), words="w strides"),
    _case("conv nhwc f16 depthwise", "a100", wide("w"), words="w strides"),
    _case("conv nhwc f16 3 channels", "h100", gaps("y"), words="y strides"),
    _case("conv fp8", "b200", wide("y"), words="y strides"),
    _case("conv f16 stats", "b200", wide("out"), words="out strides"),
    _case("conv f16 bias relu", "a100", operation(_CONV, beta=1.0), words="beta"),
    _case("conv f16 bias relu", "h100", operation(_CONV, alpha=0.5), words="alpha 0.5"),
    _case("conv forward relu f16", "b200", operation("out", compute_type=T.INT32), words="out int32 comput"),
    _case("conv f16 stats", "h100", operation(_CONV, "convolution", comp_type=T.DOUBLE), words="double comput"),
    _case(
        "conv f16 stats",
        "h100",
        operation(_CONV, "convolution", conv_mode=ConvolutionMode.CONVOLUTION),
        words="conv mode",
    ),
    _case("conv f16 bias relu", "a100", transposed("out"), words="extra transpose"),
    _case("wgrad f16 scale bias relu before", "h100", groups("dw", 2), words="group"),
    _case("conv f16 bias relu", "h100", groups("w", 4), summed("out", (1,)), words="extra"),
    _case("conv f32 nchw bias relu", "h100", tensor("y", data_type=T.HALF), words="y float16"),
    _case("dgrad nchw f32 depthwise", "b200", after("dx", P.GELU_FWD), words="extra gelu_fwd"),
    _case("built concat", "b200", groups("w", 4), words="group concat"),
    # matmuls
    _case("matmul f16 gelu", "h100", wide("a"), words="a strides"),
    _case("matmul f16 gelu", "h100", tensor("a", alignment=1), words="a alignment"),
    _case("matmul f16 gelu", "a100", operation("out", compute_type=T.INT8), words="out int8 comput"),
    _case("matmul f16 gelu", "h100", after("out", P.LOGICAL_NOT), words="extra logical_not"),
    _case("matmul f16 gelu", "h100", transposed("out"), words="extra transpose"),
    _case("matmul reduction", "h100", tensor("y", data_type=T.INT32), words="y int32"),
    _case("matmul reduction", "b200", after("y", P.TAN), words="extra tan"),
    _case("matmul reduction", "b200", operation("y", operator=R.AVG), words="y AVG"),
    _case("built slice", "h100", wide("a"), words="a strides"),
    _case("built slice", "h100", tensor("b", data_type=T.INT64), words="b int64"),
    # norms
    _case("layer norm f16 training", "h100", tensor("y", data_type=T.INT64), words="y int64"),
    _case("layer norm f16 training", "a100", tensor("scale", data_type=T.INT8), words="scale int8"),
    _case("layer norm f16 training", "h100", wide("scale"), words="scale strides"),
    _case("rms norm bf16 training", "a100", tensor("x", strides=_last_to_zero), words="x strides"),
    _case("rms norm bf16 training", "h100", transposed("y"), words="extra transpose"),
    _case("batch norm training", "a100", without(_NORM, "epsilon"), words="epsilon"),
    _case("batch norm relu", "b200", tensor("y", virtual=False), words="y memory"),
    _case("batch norm relu", "a100", tensor("y", strides=packed_strides), words="y layout"),
    _case("batch norm training", "h100", gaps("y"), words="y strides"),
    _case("batch norm training", "h100", tensor("y", strides=packed_strides), words="y layout"),
    _case(
        "batch norm training nchw",
        "b200",
        tensor("output_running_var", data_type=T.INT64),
        words="output_running_var int64",
    ),
    _case("batch norm backward nchw", "b200", tensor("dx", strides=channels_last), words="dx layout"),
    _case("instance norm backward", "b200", gaps("dx"), words="dx strides"),
    _case(
        "built rms norm backward",
        "h100",
        after("dnorm", P.ABS),
        tensor("dnorm_in", data_type=T.FLOAT),
        words="dnorm_in float32 extra",
    ),
    _case("batch norm residual relu", "h100", transposed("out"), words="extra transpose"),
    _case("batch norm residual relu", "b200", operation("out", compute_type=T.INT64), words="out int64 comput"),
    _case("bn finalize", "b200", tensor("eq_scale", reordering=TensorReordering.F8_128x4), words="eq_scale reordering"),
    # resampling
    _case("max pooling f16", "h100", tensor("y", strides=packed_strides), words="y layout|strides"),
    _case("max pooling f16", "a100", tensor("x", data_type=T.BOOLEAN), words="x boolean"),
    _case("max pooling backward f16", "h100", operation("resample_bwd0", alpha=2.0), words="alpha 2.0"),
    _case("mean pooling f16", "h100", operation("resample_fwd0", beta=1.0), words="beta"),
    _case(
        "resample backward",
        "a100",
        operation("resample_bwd0", "resample", mode=ResampleMode.BILINEAR),
        words="BILINEAR",
    ),
    _case("max pooling f32 nchw", "b200", after("y", P.ERF), words="extra erf"),
    # block scales
    _case("built MXFP8 matmul", "b200", gaps("scale_b"), words="scale_b strides"),
    _case("built MXFP8 matmul", "b200", tensor("scale_a", data_type=T.FLOAT), words="scale_a float32"),
    _case("built MXFP8 matmul", "b200", tensor("b", data_type=T.BOOLEAN), words="b boolean"),
    _case("built NVFP4 matmul", "b200", tensor("b", strides=_last_to_zero), words="b strides"),
    _case("built RMS norm, quantized in plain order", "b200", tensor("x", data_type=T.UINT8), words="x uint8"),
    _case(
        "built RMS norm, quantized in plain order",
        "b200",
        tensor("quantized.scale", reordering=TensorReordering.F8_128x4),
        words="quantized.scale reordering",
    ),
    # experts, pointwise operations, reductions
    _case("built moe grouped matmul", "h100", tensor("weight", data_type=T.HALF), words="weight float16"),
    _case("built moe grouped matmul", "b200", tensor("token", strides=column_major), words="token strides"),
    _case("built moe grouped matmul", "h100", after("moe", P.LOGICAL_NOT), words="extra logical_not"),
    _case("built experts, gathered", "a100", operation(_EXPERTS, math_prec=T.DOUBLE), words="comput double"),
    _case("mul f16", "b200", tensor("b", strides=column_major), words="b strides"),
    _case("pointwise chain f16", "b200", summed("y", (0, 1)), words="extra"),
    _case("pointwise chain f16", "b200", operation("y", compute_type=T.BOOLEAN), words="y boolean comput"),
    _case("exp f32", "b200", operation("y", compute_type=T.INT32), words="y int32 comput"),
    _case("built reduction", "h100", after("reduce_add", P.RELU_FWD), words="extra relu_fwd"),
    # two causes
    _case(
        "conv f16 stats",
        "b200",
        wide("out"),
        operation(_CONV, "convolution", comp_type=T.DOUBLE),
        words="out strides double comput",
    ),
    _case("matmul f16 gelu", "b200", wide("a"), operation("out", compute_type=T.INT8), words="a strides out int8"),
    _case(
        "layer norm f16 training", "h100", tensor("y", data_type=T.INT64), wide("scale"), words="y int64 scale strides"
    ),
    _case("batch norm training", "h100", gaps("y"), tensor("x", data_type=T.INT64), words="y strides x int64"),
)
