"""``lint``: layouts and types that cuDNN supports but that are slow, unsafe or probably unintended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

from ..errors import GraphError
from ..frozen import FrozenValue
from ..generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, TensorReordering
from ..generated.operations import CONVOLUTIONS
from ..graph import Graph
from ..graph.attention.recognize import read_attention
from ..graph.data_types import ELEMENT_BITS, HALF_TYPES
from ..graph.guard import collect_error_reports, iterate_and_report_errors
from ..graph.ir import Matmul, Op, Pointwise, Reduction, Tensor, check_graph_writes_memory
from ..graph.shapes import SCALE_TILE
from ..graph.strides import has_overlapping_elements
from ..known_issues import AttentionUse
from ..known_issues.graph_queries import holds_block_scales_in_partial_tiles

__all__ = ["Finding", "format_danger_elsewhere", "lint"]

Severity = Literal["dangerous", "suspicious", "slow"]

_VECTOR_LOAD_BYTES = 16  # the widest load of a thread
_TENSOR_CORE_OPERATIONS = (  # operations that run on tensor cores
    DescriptorType.OPERATION_MATMUL,
    *CONVOLUTIONS,
    DescriptorType.OPERATION_SDPA_FWD,
    DescriptorType.OPERATION_SDPA_BWD,
)


class Finding(FrozenValue):
    """A legal but probably unintended property of a tensor's layout or type.

    ``severity``: ``dangerous`` where wrong results or crashes were seen, ``suspicious`` where it fits by coincidence,
    ``slow`` where it only costs time.
    """

    code: str
    tensor: str
    severity: Severity
    headline: str
    detail: str
    fix: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.headline} ({self.code}); {self.fix}"


def lint(graph: Graph) -> list[Finding]:
    """Return legal but slow, unsafe or suspicious layouts and types of a graph, the worst first.

    Codes: ``overlapping-strides``, ``stride-not-16-bytes``, ``scales-not-whole-tiles``, ``no-dense-dim``,
    ``keys-not-transposed``, ``alignment-below-16``, ``softmax-in-16-bits``, ``rounded-between-operations``,
    ``grouped-convolution``, ``graph-writes-nothing``, ``result-unused``, and ``lint-failed`` where a look itself fails.
    Strides are looked at where tensor cores read or write; no cuDNN is queried.
    """
    with collect_error_reports() as lines:
        use = read_attention(graph)
        found = [
            item
            for look in _LINT_CHECKS
            for item in iterate_and_report_errors(f"the check {look.__name__}", look, graph, use)
        ]
    found += [Finding("lint-failed", "", "suspicious", line, "the other checks did run", "") for line in lines]
    order = ("dangerous", "suspicious", "slow")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def format_danger_elsewhere(graph: Graph, remedy: str) -> str:
    """Return text to append to a remedy that names other architectures: a danger that it does not change."""
    found = [one.headline for one in lint(graph) if one.severity == "dangerous" and f"{one.tensor} " not in remedy]
    return f" (dangerous there: {found[0]})" if found else ""


LintCheck = Callable[[Graph, AttentionUse | None], Iterator[Finding]]


def _list_operands(graph: Graph) -> list[Tensor]:
    """Return the tensors in memory with more than one element that tensor core operations read or write."""
    tensors = {
        tensor.uid: tensor
        for op in graph.ops
        if op.kind in _TENSOR_CORE_OPERATIONS
        for _, tensor in op.ports()
        if not tensor.virtual and not tensor.by_value and math.prod(tensor.dims) > 1
    }
    return list(tensors.values())


def _list_strided_operands(graph: Graph) -> list[Tensor]:
    """Return the operands in plain strided memory, without a reordering of elements into blocks."""
    return [tensor for tensor in _list_operands(graph) if tensor.reordering is TensorReordering.NONE]


def _count_element_bytes(tensor: Tensor) -> float:
    return ELEMENT_BITS[tensor.data_type] * tensor.vector_count / 8


def _has_dense_dim(tensor: Tensor) -> bool:
    return any(stride == 1 and dim > 1 for dim, stride in zip(tensor.dims, tensor.strides, strict=True))


def _find_overlapping_outputs(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find outputs where an operation writes two elements to one address."""
    for tensor in graph.outputs:
        if tensor.reordering is TensorReordering.NONE and has_overlapping_elements(tensor.dims, tensor.strides):
            yield Finding(
                "overlapping-strides",
                tensor.name,
                "dangerous",
                f"elements of the output {tensor.name!r} share memory: dims {tensor.dims}, strides {tensor.strides}",
                "it is undefined which value remains",
                "give each element its own address",
            )


def _find_misaligned_strides(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find tensors whose rows do not start at a multiple of 16 bytes."""
    for tensor in _list_strided_operands(graph):
        if use is not None and tensor.data_type not in (use.problem.data_type, use.problem.output_type):
            continue  # such as a block mask, whose dims are prescribed
        size = _count_element_bytes(tensor)
        strides = [stride for dim, stride in zip(tensor.dims, tensor.strides, strict=True) if dim > 1 and stride > 1]
        wrong = [stride for stride in strides if stride * size % _VECTOR_LOAD_BYTES]
        if not wrong or size > 2 or not _has_dense_dim(tensor):
            continue
        taken = use is not None and use.problem.head_dim * size % _VECTOR_LOAD_BYTES == 0  # else attention is refused
        yield Finding(
            "stride-not-16-bytes",
            tensor.name,
            "dangerous" if taken else "slow",
            f"{tensor.name!r} has a stride of {wrong[0]} elements ({wrong[0] * size:g} bytes), no multiple of 16 bytes",
            "kernels of attention read and write such tensors wrongly: the known issue unaligned-strides"
            if taken
            else "kernels that load 16 bytes at once are not offered",
            f"pad to multiples of {int(_VECTOR_LOAD_BYTES // size)} elements",
        )


def _find_scales_of_partial_tiles(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find block scales that kernels read in whole tiles, but with dims that are no whole tiles."""
    for tensor in graph.tensors:
        if tensor.virtual or not holds_block_scales_in_partial_tiles(tensor):
            continue
        rows, blocks = SCALE_TILE
        seen = "the known issue block-scales-no-whole-tiles of matmul: the CUDA context ended"
        yield Finding(
            "scales-not-whole-tiles",
            tensor.name,
            "dangerous",
            f"block scales {tensor.name!r} {list(tensor.dims)} (F8_128x4) are no whole tiles of {rows} x {blocks}",
            f"kernels read whole tiles, so memory of these dims is too short: {seen}"
            + ("; of attention it is inferred, not run" if use is not None else ""),
            f"round blocks up to a multiple of {blocks}, and the other of the last two dims to one of {rows}",
        )


def _find_tensors_without_dense_dim(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find tensors in which no dim is contiguous in memory."""
    for tensor in _list_strided_operands(graph):
        if _has_dense_dim(tensor):
            continue
        yield Finding(
            "no-dense-dim",
            tensor.name,
            "slow" if use is None else "dangerous",
            f"no dim of {tensor.name!r} has stride 1: dims {tensor.dims}, strides {tensor.strides}",
            "attention with such a tensor crashes or gives wrong gradients: the known issue inner-stride"
            if use is not None
            else "each element is loaded separately",
            "make one of the last two dims contiguous",
        )


def _find_keys_not_transposed(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find a K with dims [b, h, s, d] where a matmul expects [b, h, d, s], and s equals d."""
    if use is None or use.form == "unified" or use.problem.seq_kv != use.problem.head_dim:
        return
    first = next(op for op in graph.ops if isinstance(op, Matmul))
    keys = first.b
    if not keys.virtual and keys.strides[-1] == 1 != keys.strides[-2]:
        yield Finding(
            "keys-not-transposed",
            keys.name,
            "suspicious",
            f"{keys.name!r} {keys.dims} goes into Q @ K^T and is dense along its last dim",
            f"s and d are both {keys.dims[-1]}, so K [b, h, s, d] fits as well and gives Q @ K",
            "give K^T as dims [b, h, d, s] with the strides of s and d swapped, unless K is stored transposed",
        )


def _find_low_alignment(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find tensors with a declared alignment of less than 16 bytes."""
    for tensor in _list_operands(graph):
        if tensor.alignment < _VECTOR_LOAD_BYTES:
            yield Finding(
                "alignment-below-16",
                tensor.name,
                "slow",
                f"{tensor.name!r} is declared to be aligned to {tensor.alignment} bytes only",
                "kernels that load 16 bytes at once are not offered",
                "declare alignment 16 where the address allows it, as every allocation does",
            )


def _find_grouped_convolutions(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find convolutions that are grouped, with several channels per group, only because of their tensors' dims."""
    for op in graph.ops:
        if op.kind not in CONVOLUTIONS:
            continue
        tensors = dict(op.ports())
        image, weights = (tensors[port] for port in CONVOLUTIONS[op.kind][:2])
        channels, per_group = (math.prod(tensor.dims[1:2]) for tensor in (image, weights))  # 1 for a rank of 1
        if 1 < per_group < channels:
            yield Finding(
                "grouped-convolution",
                weights.name,
                "suspicious",
                f"{image.name!r} has {channels} channels and {weights.name!r} {per_group}: "
                f"a convolution of {channels // per_group} groups",
                "cuDNN takes the number of groups from the channels of both",
                f"give {weights.name!r} {channels} channels, unless it is meant",
            )


def _find_unused_operations(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find operations that affect no tensor in memory."""
    try:
        check_graph_writes_memory(graph)
    except GraphError as error:
        detail = error.sections.get("where", "")
        yield Finding(error.code, "", "dangerous", error.headline, detail, error.sections["fix"])
        return
    needed: set[int] = set()
    lost: list[Op] = []
    for op in reversed(graph.ops):
        results = op.outputs().values()
        inner = [tensor for one in op.subgraphs() for tensor in one.outputs]
        if not results or any(not tensor.virtual or tensor.uid in needed for tensor in (*results, *inner)):
            needed |= {tensor.uid for tensor in op.inputs().values()}
        elif not (use is not None and all(tensor.dims[-1] == 1 for tensor in results)):  # kernels read row statistics
            lost.append(op)
    for op in reversed(lost):
        first = next(iter(op.outputs().values()))
        yield Finding(
            "result-unused",
            first.name,
            "suspicious",
            f"what {op.name!r} ({op.display_name()}) computes reaches no tensor in memory: {first.name!r} is virtual",
            "nothing that the graph writes depends on the operation",
            "give its result virtual=False, or remove the operation",
        )


def _find_softmax_of_rounded_scores(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find attention scores that are rounded to 16 bits before the exponential."""
    if use is None:
        return
    narrow: dict[str, Op] = {}
    for op in graph.ops:
        exponential = isinstance(op, Pointwise) and op.mode in (PointwiseMode.EXP, PointwiseMode.SUB)
        maximum = isinstance(op, Reduction) and op.operator is ReduceTensorOp.MAX
        if exponential or maximum or op.kind is DescriptorType.OPERATION_SOFTMAX:
            for tensor in op.inputs().values():
                if tensor.virtual and tensor.data_type in HALF_TYPES:
                    narrow.setdefault(tensor.name, op)
    for name, op in narrow.items():
        yield Finding(
            "softmax-in-16-bits",
            name,
            "suspicious",
            f"{name!r} is a virtual 16-bit tensor and an input of {op.display_name()} in a softmax",
            "engines that keep it in registers require float32, others round the scores",
            "make virtual tensors between the two matmuls float32",
        )


def _find_narrow_virtual_tensors(graph: Graph, use: AttentionUse | None) -> Iterator[Finding]:
    """Find virtual 16-bit tensors between two operations that compute in float32, except conversions."""
    computes = {tensor.uid: op for op in graph.ops for tensor in op.outputs().values() if _computes_in_float32(op)}
    for op in graph.ops if use is None else ():
        if op.kind in _TENSOR_CORE_OPERATIONS or not _computes_in_float32(op):
            continue
        for tensor in op.inputs().values():
            before = computes.get(tensor.uid)
            if before is None or not tensor.virtual or tensor.data_type not in HALF_TYPES:
                continue
            if isinstance(before, Pointwise) and before.mode is PointwiseMode.IDENTITY:
                continue
            yield Finding(
                "rounded-between-operations",
                tensor.name,
                "suspicious",
                f"{tensor.name!r} is a virtual tensor of 16 bits: {before.display_name()} and {op.display_name()} "
                "compute in float32",
                "the value between them may be rounded to 16 bits, although it is never in memory",
                "make the virtual tensor float32",
            )


def _computes_in_float32(op: Op) -> bool:
    return getattr(op, "compute_type", DataType.FLOAT) is DataType.FLOAT


_LINT_CHECKS: tuple[LintCheck, ...] = (
    _find_overlapping_outputs,
    _find_misaligned_strides,
    _find_scales_of_partial_tiles,
    _find_tensors_without_dense_dim,
    _find_keys_not_transposed,
    _find_low_alignment,
    _find_softmax_of_rounded_scores,
    _find_narrow_virtual_tensors,
    _find_grouped_convolutions,
    _find_unused_operations,
)
