"""Known issues of normalizations."""

from __future__ import annotations

from ..generated.enums import DataType, DescriptorType, NormFwdPhase, NormMode, PointwiseMode
from ..graph.attention.known_issue import KnownIssue
from ..graph.data_types import HALF_TYPES
from ..graph.ir import Graph, Tensor
from ..system.version import VersionRange
from . import graph_queries
from .crashes import get_crash_versions, make_crash_predicate
from .sources import MEASURED_ON_GPU, MEASURED_WITHOUT_GPU

__all__ = ["NORM"]


def _has_block_scale_quantized_norm(graph: Graph) -> bool:
    """Whether the result of a norm is block-scaled in the same graph."""
    written = {
        op.fields["y"].uid for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_NORM_FORWARD)
    }
    quantized = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE)
    return any(op.fields["x"].uid in written for op in quantized)


def _adds_unmatched_operand_after_batch_norm(graph: Graph) -> bool:
    """Whether a training batch norm is followed by the addition of a broadcast, repeated or shorter-type operand."""
    for norm in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_NORM_FORWARD):
        x, y = norm.fields["x"], norm.fields["y"]
        if norm.fields["mode"] is NormMode.BATCH_NORM and norm.fields["phase"] is NormFwdPhase.TRAINING:
            for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.ADD):
                if op.x is not None and op.b is not None and y.uid in (op.x.uid, op.b.uid):
                    operand = op.b if op.x.uid == y.uid else op.x
                    shorter = x.data_type is DataType.FLOAT and operand.data_type in HALF_TYPES
                    if operand is op.x or operand.dims != y.dims or shorter:
                        return True
    return False


_ROWS = (NormMode.LAYER_NORM, NormMode.RMS_NORM, NormMode.ADA_LAYER_NORM)


def _find_row_norm_results(graph: Graph) -> list[Tensor]:
    """Return the results of norms that normalize rows: layer, RMS and adaptive layer norm."""
    norms = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_NORM_FORWARD)
    return [norm.fields["y"] for norm in norms if norm.fields["mode"] in _ROWS]


def _has_row_norm_with_bias_of_other_type(graph: Graph) -> bool:
    """Whether the bias of a layer or RMS norm has another type in memory than the scale, or than what computes it."""
    writers = {tensor.uid: op for op in graph.ops for tensor in op.outputs().values()}
    for norm in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_NORM_FORWARD):
        scale, bias = norm.fields["scale"], norm.fields.get("bias")
        if norm.fields["mode"] not in (NormMode.LAYER_NORM, NormMode.RMS_NORM) or bias is None or bias.virtual:
            continue
        read = [scale] if not scale.virtual else list(writers[scale.uid].inputs().values())
        types = {one.data_type for one in read if one.dims == scale.dims and not (one.virtual or one.by_value)}
        if types and bias.data_type not in types:
            return True
    return False


def _has_row_norm_before_op_with_equal_inputs(graph: Graph) -> bool:
    """Whether a norm of rows is followed by a pointwise operation that reads one tensor twice."""
    return any(
        op.x is not None and op.b is not None and op.x.uid == op.b.uid
        for op in graph_queries.find_dependent_pointwise(graph, _find_row_norm_results(graph))
    )


def _has_row_norm_before_op_with_graph_input(graph: Graph) -> bool:
    """Whether a norm of rows is followed by a pointwise operation with a further input of the graph."""
    following = list(graph_queries.find_dependent_pointwise(graph, _find_row_norm_results(graph)))
    made = {tensor.uid for op in graph.ops for tensor in op.outputs().values()} if following else set()
    return any(tensor.uid not in made for op in following for tensor in op.inputs().values())


NORM: tuple[KnownIssue, ...] = (
    KnownIssue(
        "norm-bias-type",
        what="a layer or RMS norm with a bias of another data type than the scale",
        effect="engines 1, 4 and 6 read the bias as the scale's type, beyond its memory if that is longer: y is wrong",
        fix="give bias and scale one type, or take engine 5",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90, float16, bfloat16 and float32: 36 of 36 mixed pairs wrong by each of these "
            "engines that takes them, right by engine 5, 18 of 18 equal pairs right; with 9.14.0, 9.24.0 and 9.28.0, "
            "and on sm_75 to sm_121, the code of engines 1 and 4 is the same whatever the bias's type"
        ),
        sm=(75, 80, 86, 87, 89, 90, 100, 103, 121),
        engines=(1, 4, 6),
        graph=_has_row_norm_with_bias_of_other_type,
    ),
    KnownIssue(
        "norm-block-scaled",
        what="a layer or RMS norm whose result is block-scaled in the same graph",
        effect="wrong results",
        fix="use 9.10.1 or later, or quantize in a graph of its own",
        source="https://github.com/NVIDIA/TransformerEngine/pull/1700",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=VersionRange(since=(9, 7, 0), until=(9, 10, 0)),
        graph=_has_block_scale_quantized_norm,
    ),
    KnownIssue(
        "batch-norm-operand",
        what=(
            "a batch norm in training, and its sum with an operand that has not all of its dims, or 16 bits where the "
            "image is float32, or is before it"
        ),
        effect=(
            "engine 0, the only one, reads the operand as a whole tensor with the layout of the image: memory "
            "after it is added, and a number by value is an illegal address; one of 16 bits is read as float32; a plan "
            "of a whole operand that is first is refused when it runs"
        ),
        fix="give a whole operand, of float32 for a float32 image, after the norm; or add it in a graph of its own",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90: operands of six dims, over two and three dims of the image, "
            "float16, bfloat16 and float32, ReLU and swish; each element up to the end of the operand's memory is as "
            "if it were whole, 17 of 17 graphs; whole operands and none are right, 10 of 10, also float32 with float16"
        ),
        sm=(90,),
        engines=(0,),
        graph=_adds_unmatched_operand_after_batch_norm,
    ),
    KnownIssue(
        "norm-activation-gradient",
        what="a norm of rows in float32, and the gradient of an activation that reads its result from no memory",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.24.0 or later, which refuses the graph, or move the gradient to a separate graph",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.16.0 to 9.22.0 on sm_90, layer, RMS and ada-layer norms, and on sm_80, sm_89, "
            "sm_100 and sm_120 with 9.19.0; 9.24.0 to 9.28.0 refuse it"
        ),
        versions=get_crash_versions("norm-activation-gradient"),
        graph=make_crash_predicate("norm-activation-gradient"),
        step="check",
    ),
    KnownIssue(
        "norm-operand-twice",
        what="a norm of rows, and after it an elementwise operation that reads one tensor twice, as y + y",
        effect="an illegal address",
        fix="write it with one operand, as 2 y or y^2, or leave it to a graph of its own",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90, engines 4 and 5: layer, RMS and ada-layer norms, ADD, MAX, MIN "
            "and ADD_SQUARE, float32 and float16"
        ),
        sm=(90,),
        graph=_has_row_norm_before_op_with_equal_inputs,
    ),
    KnownIssue(
        "norm-operands-in-turn",
        what="a norm of rows, and after it an elementwise operation with an operand of its own",
        effect=(
            "the second plan of a process takes the kernel of the first where only the dims of the operand differ: "
            "other elements are read, or an illegal address"
        ),
        fix="let such operands have the same dims in all of a process, or leave the operation to a graph of its own",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.28.0 on sm_90, layer, RMS and ada-layer norms: 43 of 84 plans; 9.22.0 to 9.28.0 do not "
            "compile the second, 9.16.0 to 9.21.0 do, and 9.19.0 is right"
        ),
        versions=VersionRange(since=(9, 22, 0)),
        sm=(90,),
        engines=(4, 5),
        depends_on="what was built before",
        graph=_has_row_norm_before_op_with_graph_input,
    ),
)
