"""Rules: from a chain of reasons to one headline with the value found and the value needed.

One function each. A rule gets the refused candidates and may ask cuDNN about a variation; then it says measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ..engine import OperationGraph
from ..errors import CudnnBackendError
from ..generated.enums import TensorReordering
from ..graph.ir import Graph
from ..target import Target, open_target
from .verdict import Basis, Candidate, Cause
from .words import Reason

__all__ = ["NEEDS_DEVICE", "RULES", "UNJUDGED", "find_cause"]

# Causes that say nothing about the graph.
UNJUDGED = frozenset({"driver-library-unusable", "device-needed"})

# What cuDNN says where an engine asks the device itself; measured by comparing with the verdicts on an H100.
NEEDS_DEVICE = {
    "cga_count == 0": "how many thread-block clusters fit on the device",
    "create_cublas_handle": "a cuBLASLt handle, which only a device gives",
}

Rule = Callable[[Sequence[Candidate], Graph, Target, Sequence[str]], Cause | None]

RULES: list[Rule] = []


def _rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def find_cause(refused: Sequence[Candidate], graph: Graph, target: Target, modes: Sequence[str]) -> Cause | None:
    """Return the first rule's cause that fits, or what is common to all refusals, or None if cuDNN was silent."""
    for rule in RULES:
        cause = rule(refused, graph, target, modes)
        if cause is not None:
            return cause
    return None


def _first_with(refused: Sequence[Candidate], status: str, words: str = "") -> tuple[Candidate, Reason] | None:
    for candidate in refused:
        for reason in candidate.reasons:
            if reason.status.endswith(status) and words in reason.text:
                return candidate, reason
    return None


def _kib(size_bytes: int) -> str:
    return f"{size_bytes} bytes ({size_bytes / 1024:g} KiB)"


@_rule
def shared_memory_per_block_insufficient(
    refused: Sequence[Candidate], graph: Graph, target: Target, modes: Sequence[str]
) -> Cause | None:
    """A kernel needs more shared memory per thread block than the architecture has.

    Fault
        ``CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT``. It is on-chip shared memory of one block, not the
        GPU's free memory.
    Evidence
        The limit is ``maxSharedMemoryPerBlockOptin`` of the target. On a described target the same graph is asked
        again with higher limits, and nothing else changed, to find what the kernel needs.
    Remedy
        A target with more shared memory per block (163 KiB sm_80, 227 KiB sm_90 and sm_100), or a smaller head
        dimension or tile.
    Since
        The status exists since cuDNN 9.0.
    """
    found = _first_with(refused, "SHARED_MEMORY_INSUFFICIENT")
    if found is None:
        return None
    limit = int(target.profile.properties["maxSharedMemoryPerBlockOptin"])
    engine = found[0].engine
    here = f"sm_{target.sm} has {_kib(limit)} at most"
    remedy = "judge for a GPU with more shared memory per block, such as --target sm80 or sm90"
    needed = None if target.is_live else _needed_shared_memory(graph, target, limit, modes)
    if needed is None:
        headline = f"engine {engine} needs more shared memory per block than the GPU has: {here}"
        return Cause("shared-memory-per-block-insufficient", headline, Basis.RULE, _NOT_FREE_MEMORY, remedy)
    headline = f"engine {engine} needs {_kib(needed)} of shared memory per block, {here}"
    detail = f"{_NOT_FREE_MEMORY}; with that limit alone raised to {needed} bytes, cuDNN supports the graph"
    return Cause("shared-memory-per-block-insufficient", headline, Basis.MEASURED, detail, remedy)


_NOT_FREE_MEMORY = "this is on-chip shared memory of one thread block, not the free memory of the GPU"
_LARGEST_SHARED_MEMORY = 232448  # of any architecture so far: 227 KiB on sm_90 and sm_100
_STEP = 1024


def _needed_shared_memory(graph: Graph, target: Target, limit: int, modes: Sequence[str]) -> int | None:
    """Return the smallest limit, to 1 KiB, at which the graph is supported, everything else unchanged."""

    def supported_with(size_bytes: int) -> bool:
        properties = {**target.profile.properties, "maxSharedMemoryPerBlockOptin": size_bytes}
        varied = open_target(dataclasses.replace(target.profile, properties=properties), on=target.library)
        try:
            question = OperationGraph(graph, varied)
            return any(question.heuristics(mode).configs for mode in modes)
        except CudnnBackendError:
            return False
        finally:
            varied.close()

    low, high = limit // _STEP, _LARGEST_SHARED_MEMORY // _STEP
    if low >= high or not supported_with(high * _STEP):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if supported_with(middle * _STEP):
            high = middle
        else:
            low = middle
    return high * _STEP


_SMALL_SEQUENCES_UNTIL = (9, 25, 0)  # attention that keeps S, with its F16x16 order


@_rule
def pattern_removed(refused: Sequence[Candidate], graph: Graph, target: Target, modes: Sequence[str]) -> Cause | None:
    """A pattern older versions supported was taken out of cuDNN.

    Fault
        A reason that says "no longer supported"; or, where a tensor is stored in F16x16 order, which only the removed
        kernels read, that a pattern of so many matmuls is not known.
    Evidence
        cuDNN's own words, and for its backward pass the tensor's order.
    Remedy
        An older cuDNN, or the pattern's successor.
    Since
        Non-flash fused attention: supported by 9.14 to 9.24, removed in 9.25.
    """
    found, detail = _first_with(refused, "GRAPH_PATTERN", "no longer supported"), "cuDNN says so itself"
    reordered = [tensor.name for tensor in graph.tensors if tensor.reordering is TensorReordering.F16x16]
    if found is None and reordered and target.library.version >= _SMALL_SEQUENCES_UNTIL:
        found = _first_with(refused, "GRAPH_PATTERN", "mha patterns only support")
        detail = f"tensor {reordered[0]!r} is stored in F16x16 order, which only the removed kernels read"
    if found is None:
        return None
    version = target.library.version_text
    headline = f"the pattern was removed from cuDNN and is not in {version}: {found[1].statement}"
    remedy = "use an older cuDNN (cudnn-backend cudnn install 9.19.0, then --cudnn 9.19.0), or the flash pattern"
    return Cause("pattern-removed", headline, Basis.RULE, detail, remedy)


@_rule
def driver_library_unusable(
    refused: Sequence[Candidate], graph: Graph, target: Target, modes: Sequence[str]
) -> Cause | None:
    """cuDNN could not use libcuda.so.1, so its refusal says nothing about the graph.

    Fault
        ``CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING`` with ``libcuda``.
    Evidence
        cuDNN's own words.
    Remedy
        Install the driver, or this package's driver stub for verdicts without a GPU.
    Since
        Seen with 9.19.
    """
    found = _first_with(refused, "RUNTIME_PREREQUISITE_MISSING", "libcuda")
    if found is None:
        return None
    driver = target.library.driver
    headline = f"cuDNN cannot use libcuda.so.1 here ({driver.kind})"
    remedy = "reinstall this package where a C compiler is, so that the driver stub is built"
    return Cause("driver-library-unusable", headline, Basis.RULE, driver.note, remedy)


@_rule
def device_needed(refused: Sequence[Candidate], graph: Graph, target: Target, modes: Sequence[str]) -> Cause | None:
    """An engine was refused only because no device could be asked, so the graph may be supported on the GPU itself.

    Fault
        "No GPC available" or a cuBLASLt handle that cannot be created, for a described target.
    Evidence
        On an H100 with cuDNN 9.19 these engines are offered live and refused so without a device; everything else is
        equal.
    Remedy
        Ask on the GPU.
    Since
        Seen with 9.19 and 9.28.
    """
    if target.is_live:
        return None
    for candidate in refused:
        for reason in candidate.reasons:
            for words, what in NEEDS_DEVICE.items():
                if words in reason.text:
                    headline = f"engine {candidate.engine} asks the device for {what}, and none is here"
                    detail = "so this refusal says nothing about the graph; the other candidates were refused for it"
                    return Cause("device-needed", headline, Basis.RULE, detail, "ask on a machine with the GPU")
    return None


@_rule
def all_candidates_alike(
    refused: Sequence[Candidate], graph: Graph, target: Target, modes: Sequence[str]
) -> Cause | None:
    """What the most specific refusal says, where no better rule fits.

    Fault
        Candidates refused for the architecture say the least about the graph; the first other one says the most.
    Evidence
        The innermost reason of one candidate, quoted.
    Remedy
        None known.
    Since
        Any version.
    """
    innermost = [candidate.reasons[0] for candidate in refused if candidate.reasons]
    if not innermost:
        return None
    about_graph = [reason for reason in innermost if not reason.status.endswith("ARCH_MISMATCH")]
    reason = (about_graph or innermost)[0]
    count = sum(1 for other in innermost if other.text == reason.text)
    headline = f"{count} of {len(refused)} candidates: {reason.statement}"
    return Cause("refused", headline, Basis.GUESS, "the most specific of cuDNN's reasons, quoted")
