"""Table of phrases in cuDNN's reasons, with the rule that explains each."""

from __future__ import annotations

import re

from ...frozen import FrozenValue
from ...generated.enums import DataType

__all__ = [
    "DEVICE_NEED_BY_PATTERN",
    "REASON_PHRASES",
    "ReasonPhrase",
    "find_change_kinds_suggested_by_reason",
    "find_queried_device_properties",
    "find_rules_for_reason",
    "is_about_other_architecture",
    "is_vague",
    "name_data_types_given_as_numbers",
]


class ReasonPhrase(FrozenValue):
    """A pattern in cuDNN's reasons, written ``STATUS: text``, and its explanation.

    Attributes
    ----------
    pattern
        Regular expression.
    rule
        Name of the rule that looks for the cause, in :mod:`.rules` or :mod:`.attention`; of several the first counts.
    kinds
        Kinds of change it hints at, the likeliest first: of :data:`~cudnn_backend_py.rewrite.changes.KINDS`.
    vague
        It says nothing about the graph: of engines of other architectures, and those that were not meant for it.
    needs
        What the engine asks the device itself for, so that a refusal for a described GPU says nothing about the graph.
    status, from_sm
        The status it then answers, if others say the same of the graph; the oldest architecture that it serves.
    """

    pattern: str
    rule: str = ""
    kinds: tuple[str, ...] = ()
    vague: bool = False
    needs: str = ""
    status: str = ""
    from_sm: int = 0


_TYPE_CHANGE_KINDS = ("data_type", "intermediate_type")

#: In the order in which rules are queried, and kinds of change tried.
REASON_PHRASES = (
    ReasonPhrase(r"INCOMPATIBLE_CUDART.*compiled with cuda toolkit", "cuda_toolkit"),
    ReasonPhrase(r"is_valid_spatial_dim|[CK]K?_DIM\] (?:!=|%) |xDimA\[1\] % wDimA\[1\]", "convolution_dims"),
    ReasonPhrase(r"Dim\[\w+\] !=|must be \(.*but found|tensor dimensions must be", "dims", ("dims",)),
    ReasonPhrase(r"!has\w+Desc\(\)|!\w+Used\b", "missing_tensor"),
    ReasonPhrase(r"Port\.tensor\.(?:hasSameShape|isSimilarTo)", "same_tensors"),
    ReasonPhrase(r"ragged dim should match|RAGGED_OFFSET(?!.*datatype)", "ragged_offset"),
    ReasonPhrase(r"getNumElementsWithStride|overlap", "overlapping"),
    ReasonPhrase(r"getConsumerNodes\(.*size\(\) != 0", "read_reduction", ("split",)),
    ReasonPhrase(r"(?:mmaNodeCount|mma_node_count) == 0", "no_product"),
    ReasonPhrase(r"pointer alignment|_ptrAlign", "alignment", ("alignment",)),
    ReasonPhrase(r"ragged \(packed\) Stats", "ragged_stats", ("ragged_stats",)),
    ReasonPhrase(
        r"Embedding dim per head|[Hh]ead dim|hidden dim|Only D=|head_dim|d_qk|d_v\b", "head_dim", ("pad_head_dim",)
    ),
    ReasonPhrase(r"less than equal to|Only D=|d_(?:qk|v) (?:>|<=)", kinds=("smaller_head_dim",)),
    ReasonPhrase(
        r"(?i)fp8|QMMA|e4m3|e5m2|(?<!operation_)block.?scale|mxfp8|nvfp4|FP16/BF16 I/O",
        "low_precision",
        _TYPE_CHANGE_KINDS,
    ),
    ReasonPhrase(
        r"DATA_TYPE|(?i:data ?type|datatype|I/O|dtype)|[ab]Type|yType|compute type", "data_type", _TYPE_CHANGE_KINDS
    ),
    ReasonPhrase(r"seed tensor|mma_shape|MmaShape", "data_type"),
    ReasonPhrase(r"(?i)data_type|compute type", kinds=_TYPE_CHANGE_KINDS),
    ReasonPhrase(r"(?i)layout|stride|row major|nhwc|is_supported$", "layout", ("layout",)),
    ReasonPhrase(r"(?i)contiguous", "layout"),
    ReasonPhrase(r"(?i)interleaved", kinds=("layout",)),
    ReasonPhrase(r"(?i)alignment|aligned", "alignment"),
    ReasonPhrase(r"(?i)align", kinds=("alignment",)),
    ReasonPhrase(r"(?i)virtual", "virtual", ("virtual",)),
    ReasonPhrase(r"(?i)ragged", "option", ("layout",)),
    ReasonPhrase(r"(?i)dropout", "option", ("drop_dropout",)),
    ReasonPhrase(r"(?i)bias", "option", ("drop_bias",)),
    ReasonPhrase(r"(?i)mask", "option", ("mask",)),
    ReasonPhrase(r"(?i)stats", "option", ("drop_stats",)),
    ReasonPhrase(r"(?i)paged|page table|sink|determin|seq_?len|alibi|padding", "option"),
    ReasonPhrase(r"ARCH_MISMATCH|(?i:ampere|hopper|blackwell|sm_?\d\d|architecture)", "architecture"),
    ReasonPhrase(r"(?i:multiples? of)|% \w", "shape", ("pad_channels", "pad_head_dim", "pad_sequence")),
    ReasonPhrase(r"SHAPE", "shape", ("pad_channels", "pad_sequence", "pad_head_dim", "heads")),
    ReasonPhrase(r"(?i)shape|dimension|divisible|GEMV", "shape"),
    ReasonPhrase(r"(?i)node|pattern", "operation", ("virtual", "composite", "unified", "split")),
    ReasonPhrase(r"(?i)operation|Multi-GEMM|activation|children", "operation"),
    ReasonPhrase(r"(?i)buildDAG", kinds=("virtual", "composite", "unified", "split")),
    ReasonPhrase(r"is supported for this engine|the chosen engine does not support", vague=True),
    ReasonPhrase(r"engine does not support this graph|global index -1|fortBackend\.is_", vague=True),
    ReasonPhrase(r"is only supported since|non matching device version", vague=True),
    ReasonPhrase(r"KERNEL_CFG knob|No knob was found|not given", vague=True),
    ReasonPhrase(r"either be an entrance node|mode for fused attention", vague=True),
    ReasonPhrase(r"This tile size|[Tt]his engine config|kcfg\.", vague=True),
    ReasonPhrase(r"engine_iface->getStatus", vague=True),
    # Measured by comparing with the verdicts on an H100.
    ReasonPhrase(r"cga_count == 0", needs="how many thread-block clusters fit on the device"),
    ReasonPhrase(r"create_cublas_handle", needs="a cuBLASLt handle"),
    # Measured with 9.28 for CUDA 13: so it answers for every described GPU and graph. Its users want sm_100.
    ReasonPhrase(
        r"engine_iface",
        needs="facts that no description gives (the memory-bound engine)",
        status="INTERNAL_ERROR",
        from_sm=100,
    ),
)

#: What is queried of the device, by the text that say so, which are no patterns.
DEVICE_NEED_BY_PATTERN = {phrase.pattern: phrase.needs for phrase in REASON_PHRASES if phrase.needs}
_DEVICE_PHRASES = [phrase for phrase in REASON_PHRASES if phrase.needs]


def find_rules_for_reason(text: str) -> tuple[str, ...]:
    """Return the names of the rules for a reason, without duplicates, in the order of application."""
    return tuple(dict.fromkeys(one.rule for one in REASON_PHRASES if one.rule and re.search(one.pattern, text)))


def find_change_kinds_suggested_by_reason(text: str) -> tuple[str, ...]:
    """Return the kinds of change that a reason suggests, the likeliest first."""
    hinted = (one.kinds for one in REASON_PHRASES if one.kinds and re.search(one.pattern, text))
    return tuple(dict.fromkeys(kind for kinds in hinted for kind in kinds))


def is_vague(text: str) -> bool:
    """Return whether a reason contains no information about the graph."""
    return any(one.vague and re.search(one.pattern, text) for one in REASON_PHRASES)


# What cuDNN calls the architectures, by the first digits of theirs. Kernels of sm_8x run on sm_12x too.
_FAMILY_PATTERNS = {
    8: r"ampere|(?:sm|arch)_?8[0-9x]",
    9: r"hopper|(?:sm|arch)_?9[0x]",
    10: r"blackwell|(?:sm|arch)_?10[0-3x]",
    11: r"rubin|(?:sm|arch)_?107",
    12: r"(?:sm|arch)_?12[0-9x]",
}
_OWN_FAMILIES = {12: (12, 8), 8: (8,), 9: (9,), 10: (10,)}
_DEMAND_PATTERN = re.compile(r"(?i)\bonly (?:is |be |been )?(?:supports?|supported|executable|available|run)\b")


def is_about_other_architecture(text: str, sm: int) -> bool:
    """Return whether a reason is about kernels of architectures other than `sm`, such as 90.

    "Only supported on Blackwell" is no such reason: it says what is needed. "On sm12x only supported with ..." is one.
    """
    said = text.partition(" at: ")[0]
    named = _list_named_architecture_families(said)
    demand = _DEMAND_PATTERN.search(said)
    is_demand = re.search(r"(?i)or (?:above|newer|later)", said) or (
        demand is not None and _list_named_architecture_families(said[demand.start() :])
    )
    return bool(named) and not is_demand and not set(named) & set(_OWN_FAMILIES.get(sm // 10, ()))


def _list_named_architecture_families(text: str) -> list[int]:
    return [family for family, pattern in _FAMILY_PATTERNS.items() if re.search(pattern, text, re.IGNORECASE)]


def name_data_types_given_as_numbers(text: str) -> str:
    """Name the data types that cuDNN's message gives as numbers: "compute type 3 is INT8"; empty without numbers."""
    known = {int(kind): kind.name for kind in DataType}
    found = re.findall(r"(?i)((?:compute|data|math|accumulat\w+) ?type) (\d+)\b", text)
    return ", ".join(
        dict.fromkeys(f"{what} {number} is {known[int(number)]}" for what, number in found if int(number) in known)
    )


def find_queried_device_properties(text: str, sm: int = 0) -> str | None:
    """Return the device properties that a refused engine queries, from a reason ``STATUS: text``.

    None where it asks nothing, or serves no such architecture.
    """
    found = (one for one in _DEVICE_PHRASES if one.pattern in text and one.status in text and sm >= one.from_sm)
    return next((one.needs for one in found), None)
