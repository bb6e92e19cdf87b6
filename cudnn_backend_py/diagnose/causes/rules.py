"""Rules that explain cuDNN's reasons: headlines with the value found and the value needed.

One function each. The first ones know a fault by its text alone, and are queried in the order they stand in. The others
are requested the reasons that :mod:`.phrases` names them for, in its order; they find the tensor and check the claim by
querying cuDNN about the graph with one thing changed. Then the cause is measured.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from enum import Enum

from ...generated.enums import DataType, DescriptorType, TensorReordering
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import LOW_PRECISION_TYPES, get_data_type_word
from ...graph.ir import Graph, Matmul, Operation, Tensor
from ...graph.replace import try_to_make_graph
from ...graph.strides import has_interleaved_dims, has_overlapping_elements
from ...plans.refusals import Reason
from ...rewrite.changes import Change, compute_convolution_output_dims, find_attention_dims, iterate_changes, join_names
from ...rewrite.changes.change import ATTENTION
from ...rewrite.changes.layout import align_tensors_to_element_size
from ...rewrite.changes.types import change_scale_types
from ...rewrite.shapes import add_missing_norm_tensors, set_dims
from ...system.version import format_cuda_version_number
from ...target import Target, open_target
from ..engines import find_missing_engine_libraries
from ..verdict import Basis, Candidate, Cause
from .case import (
    SILENT_TEXT,
    RefusalCase,
    blame_change,
    blame_result_preserving_change,
    describe_found_and_needed_values,
    format_reason_quote,
    format_reason_quote_for_cause_code,
    format_reason_statement,
    is_supported,
)
from .phrases import is_about_other_architecture
from .registry import format_architecture_support, format_supporting_targets_remedy, register_phrase_rule, register_rule
from .together import blame_combined_options

__all__ = [
    "PATTERNS_REMOVED_IN",
    "explain_architecture",
    "explain_convolution_dims",
    "explain_pattern_removed",
    "format_head_dim_names",
]


def _find_first_reason_with_status(
    refused: Sequence[Candidate], status: str, words: str = ""
) -> tuple[Candidate, Reason] | None:
    for candidate in refused:
        for reason in candidate.reasons:
            if reason.status.endswith(status) and words in reason.text:
                return candidate, reason
    return None


def _format_kib(size_bytes: int) -> str:
    return f"{size_bytes} bytes ({size_bytes / 1024:g} KiB)"


@register_rule
def explain_shared_memory_per_block_insufficient(case: RefusalCase) -> Cause | None:
    """A kernel needs more shared memory per thread block than the architecture has.

    Problem
        ``CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT``. It is on-chip shared memory of one block, not the
        GPU's free memory.
    Evidence
        The limit is ``maxSharedMemoryPerBlockOptin`` of the target. On a described target the same graph is queried
        again with higher limits, and nothing else changed, to find what the kernel needs.
    Remedy
        A target with more shared memory per block (163 KiB sm_80, 227 KiB sm_90 and sm_100), or a smaller head
        dimension or tile.
    Since
        The status exists since cuDNN 9.0.
    """
    target = case.target
    found = _find_first_reason_with_status(case.refused, "SHARED_MEMORY_INSUFFICIENT")
    if found is None:
        return None
    limit = int(target.profile.properties["maxSharedMemoryPerBlockOptin"])
    engine = found[0].engine
    here = f"sm_{target.sm} has {_format_kib(limit)} at most"
    remedy = format_supporting_targets_remedy(case.supporting_architectures)
    needed = None
    if case.measure and not target.is_live:
        needed = _find_needed_shared_memory(case.graph, target, limit, case.modes)
    if needed is None:
        headline = f"engine {engine} needs more shared memory per block than the GPU has: {here}"
        return Cause("shared-memory-per-block-insufficient", headline, Basis.RULE, _NOT_FREE_MEMORY, remedy)
    headline = f"engine {engine} needs {_format_kib(needed)} of shared memory per block, {here}"
    detail = f"{_NOT_FREE_MEMORY}; with that limit alone raised to {needed} bytes, cuDNN supports the graph"
    return Cause("shared-memory-per-block-insufficient", headline, Basis.MEASURED, detail, remedy)


_NOT_FREE_MEMORY = "this is on-chip shared memory of one thread block, not the free memory of the GPU"
_LARGEST_SHARED_MEMORY = 232448  # of any architecture so far: 227 KiB on sm_90 and sm_100
_SHARED_MEMORY_STEP_BYTES = 1024


def _find_needed_shared_memory(graph: Graph, target: Target, limit: int, modes: Sequence[str]) -> int | None:
    """Return the smallest shared memory limit of the GPU, to 1 KiB, at which cuDNN supports the graph."""

    def is_supported_with_limit(size_bytes: int) -> bool:
        properties = {**target.profile.properties, "maxSharedMemoryPerBlockOptin": size_bytes}
        varied = open_target(dataclasses.replace(target.profile, properties=properties), on=target.library)
        try:
            return is_supported(graph, varied, modes)
        finally:
            varied.close()

    low, high = limit // _SHARED_MEMORY_STEP_BYTES, _LARGEST_SHARED_MEMORY // _SHARED_MEMORY_STEP_BYTES
    if low >= high or not is_supported_with_limit(high * _SHARED_MEMORY_STEP_BYTES):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if is_supported_with_limit(middle * _SHARED_MEMORY_STEP_BYTES):
            high = middle
        else:
            low = middle
    return high * _SHARED_MEMORY_STEP_BYTES


PATTERNS_REMOVED_IN = (9, 25, 0)  # attention that keeps S, with its F16x16 order and the engine of xmma512


def explain_pattern_removed(case: RefusalCase) -> Cause | None:
    """A pattern that older versions supported was removed from cuDNN.

    Problem
        A reason that says "no longer supported"; or, where a tensor is stored in F16x16 order, which only the removed
        kernels read, that a pattern of so many matmuls is not known.
    Evidence
        cuDNN's own message, and for its backward pass the tensor's order. Told where no rule measured a cause and no
        option is refused: the engine that is gone is not why the others refuse it.
    Remedy
        An older cuDNN that supports it, if there is one: not every graph was supported before. Or the successor.
    Since
        Non-flash fused attention: supported by 9.14 to 9.24, removed in 9.25.
    """
    target = case.target
    found, detail = (
        _find_first_reason_with_status(case.refused, "GRAPH_PATTERN", "no longer supported"),
        "stated by cuDNN",
    )
    reordered = [tensor.name for tensor in case.graph.tensors if tensor.reordering is TensorReordering.F16x16]
    if found is None and reordered and target.library.version >= PATTERNS_REMOVED_IN:
        found = _find_first_reason_with_status(case.refused, "GRAPH_PATTERN", "mha patterns only support")
        detail = f"tensor {reordered[0]!r} is stored in F16x16 order, which only the removed kernels read"
    if found is None:
        return None
    version = target.library.version_text
    headline = f"the pattern was removed from cuDNN and is not in {version}: {found[1].statement}"
    remedy = "older versions supported such patterns; 'cudnn-backend explain GRAPH' judges with those installed"
    return Cause("pattern-removed", headline, Basis.RULE, detail, remedy)


@register_rule
def explain_driver_library_unusable(case: RefusalCase) -> Cause | None:
    """cuDNN could not use libcuda.so.1, so its refusal says nothing about the graph.

    Problem
        ``CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING`` with ``libcuda``.
    Evidence
        cuDNN's own message.
    Remedy
        Install the driver, or this package's driver stub for verdicts without a GPU.
    Since
        Seen with 9.19.
    """
    found = _find_first_reason_with_status(case.refused, "RUNTIME_PREREQUISITE_MISSING", "libcuda")
    if found is None:
        return None
    driver = case.target.library.driver
    headline = f"cuDNN cannot use libcuda.so.1 here ({driver.kind})"
    remedy = "reinstall this package on a machine with a C compiler, so that the driver stub is built"
    return Cause("driver-library-unusable", headline, Basis.RULE, driver.note, remedy)


# https://github.com/NVIDIA/cudnn-frontend/pull/271: its tests of that operation skip other architectures.
_SM_OF_MOE_BACKWARD = range(90, 120)


@register_phrase_rule
def explain_cuda_toolkit(case: RefusalCase, reason: Reason) -> Cause | None:
    """The engine is only in builds of cuDNN for a newer CUDA.

    Problem
        ``CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART`` with "is not be compiled with cuda toolkit < 13.1".
    Evidence
        cuDNN's own message, and the CUDA this cuDNN is built for.
    Remedy
        The same cuDNN, built for that CUDA.
    Since
        Seen with 9.28.
    """
    needed = re.search(r"toolkit < ([\d.]*\d)", reason.text)
    if needed is None:
        return None
    library, major = case.target.library, needed[1].partition(".")[0]
    built = format_cuda_version_number(library.cuda_version)
    install = f"cudnn-backend cudnn install {library.version} --cuda {major}"
    remedy, where = f"use its build for CUDA {major} ({install})", ""
    if not case.target.is_live and "cublaslt" in reason.text.lower():
        remedy = f"use the full wheel for CUDA {major} ({install} --full) on a machine with the GPU"
    kinds = {op.kind for op in case.graph.ops}
    if DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD in kinds and case.target.sm not in _SM_OF_MOE_BACKWARD:
        where = ", and a GPU of sm_90 to sm_110, as in NVIDIA's tests"
        remedy = f"use a GPU of sm_90 to sm_110, and the full wheel for CUDA {major} ({install} --full)"
    headline = f"this cuDNN is built for CUDA {built}, {needed[1]} is needed{where}{format_reason_quote(reason)}"
    if wrong := _find_experts_index_of_wrong_type(case.graph):
        kind = get_data_type_word(wrong.data_type)
        headline = f"{wrong.name} has data type {kind}, int32 is needed; and also {headline}"
        remedy = f"{wrong.name}: {kind} -> int32; and {remedy}"
    return Cause("cuda-toolkit", headline, Basis.RULE, "stated by cuDNN", remedy)


def _find_experts_index_of_wrong_type(graph: Graph) -> Tensor | None:
    """Return a tensor of offsets or indices of a grouped matmul that is neither INT32 nor INT64."""
    ports = [(port, tensor) for op in graph.ops for port, tensor in op.ports()]
    indices = (tensor for port, tensor in ports if port in ("first_token_offset", "token_index", "token_ks"))
    return next((one for one in indices if one.data_type not in (DataType.INT32, DataType.INT64)), None)


def _list_dims_that_help(case: RefusalCase, tensor: Tensor, dims: tuple[int, ...]) -> list[str]:
    """Return other dims of a tensor as a remedy; empty if the graph with them is refused."""
    other = try_to_make_graph(lambda: set_dims(case.graph, {tensor.uid: dims})) if case.measure else None
    helps = other is not None and case.passes_support_check(other)
    return [f"{tensor.name}: dims {list(tensor.dims)} -> {list(dims)}"] if helps else []


@register_phrase_rule
def explain_convolution_dims(case: RefusalCase, reason: Reason) -> Cause | None:
    """The dims of a convolution's response do not follow from image, filter, padding and stride, or groups do not fit.

    Problem
        BAD_PARAM with ``is_valid_spatial_dim`` or ``xDimA[1] % wDimA[1]``.
    Evidence
        The dims the convolution gives, and the graph with them.
    Remedy
        Those dims; a gradient that was cut is padded with zeros; filters of as many channels as the image has.
    Since
        Any version.
    """
    for op in case.graph.ops:
        if not isinstance(op, Operation) or op.kind not in CONVOLUTIONS:
            continue
        image, weights, response = (op.fields[port] for port in CONVOLUTIONS[op.kind])
        needed = compute_convolution_output_dims(op)
        if image.rank == weights.rank > 1 and image.dims[1] % weights.dims[1]:
            per_filter = weights.dims[1]
            headline = f"{image.name} has {image.dims[1]} channels, no multiple of the {per_filter} of {weights.name}"
            other = _list_dims_that_help(case, weights, (weights.dims[0], image.dims[1], *weights.dims[2:]))
            basis = Basis.MEASURED if other else Basis.RULE
            return Cause("shape", headline, basis, reason.text, "; or ".join(other))
        if needed is not None and needed != response.dims:
            change = case.find_remedy("pad_sequence")
            remedies = [] if change is None else [change.title]
            headline = (
                f"{response.name} has dims {list(response.dims)}, {list(needed)} is needed: "
                f"what {image.name} {list(image.dims)} and {weights.name} {list(weights.dims)} give with their padding"
            )
            if needed == (response.dims[0], weights.dims[0], *response.dims[2:]):
                headline = f"{response.name} has {response.dims[1]} channels, the filters of {weights.name} give "
                headline += f"{weights.dims[0]}, one each"
                remedies += _list_dims_that_help(case, weights, (response.dims[1], *weights.dims[1:]))
            basis = Basis.MEASURED if remedies else Basis.RULE
            return Cause("shape", headline, basis, reason.text, "; or ".join(remedies))
        if needed is None and image.rank == weights.rank:
            headline = (
                f"{op.name} ({op.display_name()}) has an empty output: {weights.name} {list(weights.dims)} with its "
                f"dilation is larger than {image.name} {list(image.dims)} with its padding"
            )
            return Cause("shape", headline, Basis.RULE, reason.text)
    return None


@register_phrase_rule
def explain_dims(case: RefusalCase, reason: Reason) -> Cause | None:
    """Dims of a tensor do not match those of the other tensors.

    Problem
        BAD_PARAM with "oDim[3] != d_v" and the like; "the scale tensor must be (1, 128, 8) but found (1, 128, 5)".
    Evidence
        The graph with the dims that the operation's other tensors give.
    Remedy
        Those dims.
    Since
        Any version.
    """
    change = case.find_remedy("dims")
    return _blame_dims_and_architecture(case, reason) if change is None else blame_change("shape", case, change, reason)


def _blame_dims_and_architecture(case: RefusalCase, reason: Reason) -> Cause | None:
    """Return the cause if the dims are wrong and, even with right dims, only other architectures support the graph.

    Of block scales the type may be wrong as well.
    """
    change = next((one for one in iterate_changes(case.graph, ("dims",)) if len(one.graphs) == 1), None)
    if change is None:
        return None
    scales = next((one for one in change_scale_types(change.graph) if len(one.graphs) == 1), None)
    for more in (None, scales):
        changed = change.graph if more is None else more.graph
        others = dataclasses.replace(case, graph=changed).supporting_architectures
        if not others:
            continue
        how = " with other dims" if more is None else " with other dims and another type of the scales"
        contrasts = [describe_found_and_needed_values(case.graph, change)]
        contrasts += [] if more is None else [describe_found_and_needed_values(change.graph, more)]
        headline = (
            f"{format_architecture_support(case, others, how=how)}: {'; '.join(contrasts)}{format_reason_quote(reason)}"
        )
        steps = [change.title, *([] if more is None else [more.title])]
        remedy = f"{format_supporting_targets_remedy(others)}; and {'; and '.join(steps)}"
        return Cause("shape", headline, Basis.MEASURED, "the graph with these changes was judged there", remedy)
    return None


@register_phrase_rule
def explain_missing_tensor(case: RefusalCase, reason: Reason) -> Cause | None:
    """An operation lacks a tensor that its mode, or another tensor, requires.

    Problem
        BAD_PARAM with a condition such as "(mode != CUDNN_RMS_NORM) && !hasMeanDesc()"; 9.14 and 9.19: "!epsilonUsed".
    Evidence
        cuDNN's condition, and that no operation of the graph has such a tensor.
    Remedy
        That tensor.
    Since
        Any version.
    """
    conditions = [(sign, one or other) for sign, one, other in _TENSOR_CONDITION.findall(reason.text)]
    lacking = [_find_port_name(name) for without, name in conditions if without]
    given = [_find_port_name(name) for without, name in conditions if not without]
    for op in case.graph.ops:
        ports = dict(op.ports())
        if not isinstance(op, Operation) or any(name in ports for name in lacking) or not set(given) <= ports.keys():
            continue
        mode = op.fields.get("mode")
        what = " with ".join([op.display_name(), *([mode.name] if isinstance(mode, Enum) else [])])
        next_to = f" next to {' and '.join(given)}" if given else ""
        headline = f"{op.name} ({what}) has no {' and no '.join(lacking)}, which it needs{next_to}"
        remedy = f"give it {' and '.join(lacking)}"
        whole = try_to_make_graph(lambda op=op: add_missing_norm_tensors(case.graph, op, lacking))  # type: ignore[misc]
        if whole is not None and case.supports(whole):
            return Cause("operation", headline, Basis.MEASURED, f"with {' and '.join(lacking)} supported", remedy)
        return Cause("operation", headline, Basis.RULE, reason.text, remedy if whole is None else "")
    return None


_TENSOR_CONDITION = re.compile(r"(!?)(?:has(\w+?)Desc\(\)|\b(\w+?)Used\b)")


def _find_port_name(name: str) -> str:
    """Return the graph's name of the port that cuDNN names, such as "inv_variance" for "InvVariance"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@register_phrase_rule
def explain_same_tensors(case: RefusalCase, reason: Reason) -> Cause | None:
    """Two tensors of an operation must have the same dims, strides and type, but do not.

    Problem
        BAD_PARAM with "!xPort.tensor.hasSameShape(&yPort.tensor)", or ``isSimilarTo``.
    Evidence
        cuDNN's condition, and how the two differ.
    Remedy
        None is queried: which of the two is right is for the caller to say.
    Since
        Any version.
    """
    pairs = re.findall(r"(\w+)Port\.tensor\.(?:hasSameShape|isSimilarTo)\(&(\w+)Port\.tensor\)", reason.text)
    for op in case.graph.ops:
        known = {_normalize_port_name(name): tensor for name, tensor in op.ports()}
        for names in pairs:
            found = [known.get(_normalize_port_name(name)) for name in names]
            one, other = found
            if one is None or other is None or not (difference := _describe_tensor_difference(one, other)):
                continue
            headline = (
                f"{one.name} and {other.name} differ in {difference}, "
                f"{op.name} ({op.display_name()}) needs them to be alike"
            )
            return Cause("shape", headline, Basis.RULE, reason.text)
    return None


def _normalize_port_name(name: str) -> str:
    """Return a port's name in a form equal for cuDNN's messages and the graph: "bnEqScale" becomes "eq_scale"."""
    return name.replace("_", "").lower().removeprefix("bn")


def _describe_tensor_difference(one: Tensor, other: Tensor) -> str:
    """Return text about the first property in which two tensors differ, with both values."""
    pairs = {
        "dims": (list(one.dims), list(other.dims)),
        "strides": (list(one.strides), list(other.strides)),
        "data type": (get_data_type_word(one.data_type), get_data_type_word(other.data_type)),
        "reordering": (one.reordering.name, other.reordering.name),
    }
    return next((f"{name}, {a} and {b}" for name, (a, b) in pairs.items() if a != b), "")


@register_phrase_rule
def explain_ragged_offset(case: RefusalCase, reason: Reason) -> Cause | None:
    """A ragged offset does not have one entry more than the number of sequences.

    Problem
        "ragged dim should match dim value + 1 of original tensor".
    Evidence
        The dims of tensor and offset.
    Remedy
        One offset more than the batch.
    Since
        Any version.
    """
    for tensor in case.graph.tensors:
        offset = tensor.ragged_offset
        if offset is None:
            continue
        needed = (tensor.dims[0] + 1, *(1,) * (offset.rank - 1))
        if offset.dims[0] != needed[0]:
            headline = (
                f"{tensor.name} has a batch of {tensor.dims[0]} and its ragged offset {offset.name} {offset.dims[0]} "
                f"entries: {tensor.dims[0] + 1} entries are needed, or a batch of {offset.dims[0] - 1}"
            )
            return Cause("shape", headline, Basis.RULE, reason.text, "one offset more than there are sequences")
        if offset.dims != needed:
            headline = f"dims of the ragged offset {offset.name} are {list(offset.dims)}, {list(needed)} is needed"
            remedy = f"{offset.name}: dims {list(offset.dims)} -> {list(needed)}"
            return Cause("shape", headline, Basis.RULE, reason.text, remedy)
    return None


@register_phrase_rule
def explain_ragged_stats(case: RefusalCase, reason: Reason) -> Cause | None:
    """The queries are ragged and the statistics of the softmax are not.

    Problem
        "Unified SDPA bprop: ragged (THD) layouts require a ragged (packed) Stats tensor".
    Evidence
        The graph with statistics packed as the queries are.
    Remedy
        Such statistics, which the forward pass writes.
    Since
        cuDNN 9.28.
    """
    change = case.find_remedy("ragged_stats")
    return None if change is None else blame_change("layout", case, change, reason)


@register_phrase_rule
def explain_overlapping(case: RefusalCase, reason: Reason) -> Cause | None:
    """Strides make elements overlap or leave gaps where the engines support neither.

    Problem
        ``wDesc.getNumElementsWithStride() != wDesc.getNumElementsWithoutStride()``.
    Evidence
        The graph with the strides changed.
    Remedy
        Packed strides.
    Since
        Any version.
    """
    change = case.find_remedy("layout")
    return None if change is None else blame_change("layout", case, change, reason)


def format_head_dim_names(graph: Graph, classes: Sequence[object]) -> str:
    """Return a phrase such as "head dim of q, k is" for tensors in memory."""
    uids = {uid for one in classes for uid, _ in one.axes}  # type: ignore[attr-defined]
    names = [tensor for tensor in graph.tensors if tensor.uid in uids and not tensor.virtual]
    return f"head dim of {join_names(names)} is"


@register_phrase_rule
def explain_data_type(case: RefusalCase, reason: Reason) -> Cause | None:
    """A tensor has a data type for which this pattern has no kernel.

    Problem
        Reasons with DATA_TYPE, "Data type for Q tensor should be ...", "A and B need to have the same datatype", "does
        not support seed tensor of data type != int64".
    Evidence
        The graph with one tensor, or all of that type, in another type.
    Remedy
        That type.
    Since
        Any version.
    """
    if near := blame_result_preserving_change(case, reason):
        return near
    change = case.find_remedy("data_type")
    if change is None or len(change.tensors) > 1:  # a virtual tensor may be all that does not fit
        inner = case.find_remedy("intermediate_type")
        change = inner if change is None or (inner and len(inner.tensors) < len(change.tensors)) else change
    if change is not None:
        small = any(case.graph.tensor(name).data_type in LOW_PRECISION_TYPES for name in change.tensors)
        return (small and blame_combined_options(case, "data type")) or blame_change("data-type", case, change, reason)
    if "mathPrec" in reason.text and (found := _list_unusual_compute_types(case.graph)):
        return Cause(
            "data-type", f"{found} (cuDNN's condition: {format_reason_statement(reason)})", Basis.RULE, reason.text
        )
    memory = [tensor for tensor in case.graph.tensors if not tensor.virtual and not tensor.by_value]
    kinds: dict[str, list[Tensor]] = {}
    for tensor in memory:
        kinds.setdefault(get_data_type_word(tensor.data_type), []).append(tensor)
    found = "; ".join(f"{join_names(tensors)} {kind}" for kind, tensors in kinds.items())
    if quote := format_reason_quote(reason):
        headline = f"data types are not supported: {found}{quote}"
    else:
        said = format_reason_statement(reason)
        condition = "" if said.endswith(SILENT_TEXT) else f" (cuDNN's condition: {said})"
        headline = f"cuDNN refuses a data type{condition}; in memory: {found}"
    return Cause("data-type", headline, Basis.RULE, reason.text)


def _list_unusual_compute_types(graph: Graph) -> str:
    """Return a phrase that names the operations that compute in another type than float32; empty if all do."""
    kinds: dict[str, list[str]] = {}
    for op in graph.ops:
        kind = getattr(op, "compute_type", DataType.FLOAT)
        if kind is not DataType.FLOAT:
            kinds.setdefault(get_data_type_word(kind), []).append(op.name)
    return ", ".join(
        f"{', '.join(names)} {'compute' if len(names) > 1 else 'computes'} in {kind}" for kind, names in kinds.items()
    ) + (", which the engine does not support" if kinds else "")


@register_phrase_rule
def explain_layout(case: RefusalCase, reason: Reason) -> Cause | None:
    """Strides or a rank that the engines do not support.

    Problem
        "bias layout should be row major", "Epilogue tensors must be row major or N(D)HWC layout", "!is_NHWC".
    Evidence
        The graph with the strides of one tensor, or all, changed.
    Remedy
        Those strides: a copy, or another way to allocate.
    Since
        Any version.
    """
    ranks = _list_tensor_ranks(case.graph)
    change = _find_rank_change(case) or case.find_remedy("layout")
    if change is not None:
        return blame_change("layout", case, change, reason)
    if ranks and ranks[-1] < _MIN_PRODUCT_RANK:
        shown = ", ".join(f"{t.name} {list(t.dims)}" for t in case.graph.tensors[:4] if not t.virtual)
        headline = f"tensors have {ranks[-1]} dims ({shown}), 3 or more are needed"
        return Cause("layout", headline + format_reason_quote(reason), Basis.RULE, reason.text, "leading dims of 1")
    if not format_reason_quote(reason):
        return None  # a bare condition on strides is about other things as well
    strided = [t for t in case.graph.tensors if not t.virtual and not t.by_value and t.rank > 1]
    shown = "; ".join(f"{t.name} {list(t.strides)}" for t in strided[:5])
    return Cause(
        "layout", f"strides or dims are not supported: {shown}{format_reason_quote(reason)}", Basis.RULE, reason.text
    )


_MIN_PRODUCT_RANK = 3  # dims of the factors of a product


def _list_tensor_ranks(graph: Graph) -> list[int]:
    return sorted({tensor.rank for tensor in graph.tensors if not tensor.by_value})


def _find_rank_change(case: RefusalCase) -> Change | None:
    """Return the change of rank that helps: more dims for tensors with fewer than 3, fewer for a matmul."""
    products = any(isinstance(op, Matmul) for op in case.graph.ops) and not case.is_attention
    ranks = _list_tensor_ranks(case.graph)
    wrong = ranks and (ranks[-1] < _MIN_PRODUCT_RANK or (products and ranks[-1] > _MIN_PRODUCT_RANK))
    return case.find_remedy("flatten") if wrong else None


@register_phrase_rule
def explain_alignment(case: RefusalCase, reason: Reason) -> Cause | None:
    """The alignment of a tensor is smaller than the engine requires.

    Problem
        "Tensor pointer alignment (1) must be positive and a multiple of element size".
    Evidence
        The graph with alignments of 16 bytes.
    Remedy
        Buffers that begin at multiples of 16 bytes, and the tensor's alignment set to it.
    Since
        Any version.
    """
    change = case.find_remedy("alignment")
    if change is not None:
        return blame_change("alignment", case, change, reason)
    if (change := next(align_tensors_to_element_size(case.graph), None)) is not None:
        # A tensor of a refused type may have an alignment that is too small for that type alone.
        typed = case.find_remedy("data_type", keep=lambda one: {*one.tensors} <= {*change.tensors})
        if typed is not None:
            return blame_change("data-type", case, typed, reason)
        contrast, remedy = describe_found_and_needed_values(case.graph, change), change.title
        aligned = dataclasses.replace(case, graph=change.graph)
        if more := aligned.find_remedy("layout", "flatten", "data_type", "dims"):
            # A JIT wheel may need what the missing engines of the full wheel do not.
            is_partial = bool(find_missing_engine_libraries(change.graph, case.target))
            also = "and for the engines of this JIT wheel" if is_partial else "and also"
            headline = f"{contrast}; {also} {describe_found_and_needed_values(change.graph, more)}"
            remedy = f"{remedy}; and{' for this JIT wheel' if is_partial else ''} {more.advice}"
            return Cause("alignment", headline, Basis.MEASURED, "with both changed, cuDNN supports the graph", remedy)
        if case.measure:
            headline = f"{contrast}{format_reason_quote(reason)}; with that, cuDNN refuses the graph for another reason"
            remedy += ", and judge again: cuDNN then gives the other reason"
        else:
            headline = f"{contrast}{format_reason_quote(reason)}"
        return Cause("alignment", headline, Basis.RULE, reason.text, remedy)
    low = min(case.graph.tensors, key=lambda tensor: tensor.alignment)
    return Cause(
        "alignment", f"{low.name} has alignment {low.alignment} bytes{format_reason_quote(reason)}", Basis.RULE
    )


def explain_misalignment(case: RefusalCase) -> Cause | None:
    """The alignment of a tensor is no multiple of its element size, which some versions refuse without saying so.

    Problem
        Any reason; cuDNN 9.14 gives none.
    Evidence
        The graph with each such alignment raised to the element size.
    Remedy
        That alignment.
    Since
        Any version.
    """
    change = next(align_tensors_to_element_size(case.graph), None)
    if change is None or not case.supports(change.graph):
        return None
    case.store_result_preserving_change(change)
    said = next((reason for reason in case.specific_reasons if "alignment" in reason.text), None)
    return blame_change("alignment", case, change, said)


def explain_overlap(case: RefusalCase) -> Cause | None:
    """A stride is less than what the inner dims occupy: elements overlap, or cuDNN takes them for overlapping.

    Problem
        ``xDesc.hasOverlappingStrides()``; other engines name the layout.
    Evidence
        The graph with packed strides of that tensor.
    Remedy
        These strides.
    Since
        Any version.
    """
    shared = {
        tensor.name: tensor
        for tensor in case.graph.tensors
        if 0 not in tensor.strides and has_interleaved_dims(tensor.dims, tensor.strides)
    }
    change = case.find_remedy("layout", keep=lambda one: {*one.tensors} <= shared.keys()) if shared else None
    if change is None:
        return None
    [name, *_] = change.tensors
    dims, strides = shared[name].dims, shared[name].strides
    if has_overlapping_elements(dims, strides):
        headline = f"elements of {name} overlap in memory: dims {list(dims)}, strides {list(strides)}"
    else:
        headline = f"strides {list(strides)} of {name} interleave its dims {list(dims)}, which cuDNN takes for overlap"
    return Cause("layout", headline, Basis.MEASURED, "with other strides, cuDNN supports the graph", change.advice)


@register_phrase_rule
def explain_virtual(case: RefusalCase, reason: Reason) -> Cause | None:
    """A tensor is in memory where the engine requires a virtual one, or vice versa.

    Problem
        "matmul node output tensor does not match correct virtualness".
    Evidence
        The graph with that tensor virtual, or in memory.
    Remedy
        Change it.
    Since
        Any version.
    """
    change = case.find_remedy("virtual")
    return None if change is None else blame_change("virtual", case, change, reason)


def _is_tensor_named(tensor: Tensor, text: str) -> bool:
    """Return whether a reason mentions a tensor by its name or role."""
    words = re.findall(r"[a-z]+", text.lower())
    return not tensor.virtual and any(part in words for part in tensor.name.lower().split("_") if len(part) > 3)


@register_phrase_rule
def explain_architecture(case: RefusalCase, reason: Reason) -> Cause | None:
    """The pattern has kernels for other architectures only.

    Problem
        "Block mask is only supported on Blackwell", "Backward activations are not supported in Ampere implementation".
    Evidence
        The same graph on other architectures, with the same cuDNN.
    Remedy
        One of those.
    Since
        Any version.
    """
    others = case.supporting_architectures
    if not others:
        return None
    what = "" if case.is_attention else f" ({_format_pattern(case.graph)})"
    where = format_architecture_support(case, others, graph=f"the graph{what}")
    is_quoted = not is_about_other_architecture(reason.statement, case.target.sm)
    return Cause(
        "architecture",
        where + (format_reason_quote_for_cause_code("architecture", reason) if is_quoted else ""),
        Basis.MEASURED,
        "the same graph was judged there",
        format_supporting_targets_remedy(others),
    )


def _format_attention_dims(graph: Graph) -> str:
    """Return the dims of Q, K, V and O of an SDPA operation, or the sizes in a graph of matmuls; else empty."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in ATTENTION:
            names: dict[tuple[int, ...], list[str]] = {}
            for port in ("q", "k", "v", "o"):
                tensor = op.fields[port]
                names.setdefault(tensor.dims, []).append(tensor.name)
            return ", ".join(f"{', '.join(named)} {list(dims)}" for dims, named in names.items())
    found = find_attention_dims(graph)
    sizes = {"d": found.d, "s_q": found.s_q, "s_kv": found.s_kv}
    return ", ".join(f"{name} {one.size}" for name, one in sizes.items() if one is not None)


@register_phrase_rule
def explain_shape(case: RefusalCase, reason: Reason) -> Cause | None:
    """A dim has a size that the engines do not support.

    Problem
        Reasons with SHAPE, or of multiples.
    Evidence
        The graph with one dim padded to the next multiple.
    Remedy
        Zeros up to it, where that is exact.
    Since
        Any version.
    """
    change = _find_rank_change(case) or case.find_remedy("pad_head_dim", "pad_channels", "pad_sequence", "heads")
    if change is not None:
        return blame_change("shape", case, change, reason)
    if not format_reason_quote(reason):
        return None
    found = _format_attention_dims(case.graph)
    headline = f"the dims are not supported{f': {found}' if found else ''}{format_reason_quote(reason)}"
    return Cause("shape", headline, Basis.RULE, reason.text)


def _format_pattern(graph: Graph) -> str:
    """Return operations and types of a graph, such as "matmul, relu_fwd of float16"."""
    verbs = [op.display_name() for op in graph.ops]
    types = dict.fromkeys(
        get_data_type_word(t.data_type) for op in graph.ops for t in op.inputs().values() if not t.virtual
    )
    more = f" and {len(verbs) - 6} more" if len(verbs) > 6 else ""
    return f"{', '.join(verbs[:6])}{more} of {', '.join(types)}"
