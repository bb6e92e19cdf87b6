"""``known_hazards``: faults of cuDNN that are known for a graph, an architecture and a version.

Two tables: ``known_hazards.toml`` here, of what others reported, and the one of :mod:`..graph.attention.hazards`, of
what was measured for this package. Both are matched on the graph's value, wherever it comes from.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..generated.enums import DataType, DescriptorType
from ..generated.operations import CONVOLUTIONS
from . import Graph
from .attention import HAZARDS
from .attention.hazards import Use
from .attention.recognize import read_attention
from .data_types import FP8_TYPES, HALF_TYPES
from .guard import guarded
from .ir import Operation, packed_strides

__all__ = ["CONDITIONS", "MEASURED", "KnownHazard", "Version", "known_hazards", "reported_hazards"]

Version = tuple[int, int, int]

MEASURED = "examples/attention_hazards.py"  # the source of what was measured, and how to see it

_TABLE = Path(__file__).with_name("known_hazards.toml")
_D = DescriptorType


@dataclass(frozen=True, slots=True)
class KnownHazard:
    """A fault of cuDNN: which graphs, what happens, what to do, who says so, and where it holds.

    ``until`` is the first version known to be right, None if none is; ``sm`` the architectures it was seen on, empty
    if it is not bound to any; ``condition`` the name of its function, empty if it was measured for this package.
    """

    code: str
    what: str
    effect: str
    fix: str
    source: str
    since: Version
    until: Version | None = None
    sm: tuple[int, ...] = ()
    excepted: tuple[Version, ...] = ()
    condition: str = ""

    def holds_in(self, version: Version, sm: int) -> bool:
        """Return whether a version on an architecture is one of those it holds in."""
        if version < self.since or (self.until is not None and version >= self.until) or version in self.excepted:
            return False
        return not self.sm or sm in self.sm

    @property
    def window(self) -> str:
        """The versions in words."""
        since = f"cuDNN {_dotted(self.since)}"
        return f"{since} and later" if self.until is None else f"{since} to before {_dotted(self.until)}"

    def __str__(self) -> str:
        return f"{self.what}: {self.effect} ({self.code}, {self.window}); {self.fix}; {self.source}"


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _version(text: str) -> Version:
    major, minor, patch = map(int, text.split("."))
    return major, minor, patch


@lru_cache(maxsize=1)
def reported_hazards() -> tuple[KnownHazard, ...]:
    """Return the rows of ``known_hazards.toml``."""
    rows: list[dict[str, Any]] = tomllib.loads(_TABLE.read_text(encoding="utf-8"))["hazard"]
    return tuple(
        KnownHazard(
            **{name: row[name] for name in ("code", "what", "effect", "fix", "source", "condition")},
            since=_version(row["since"]),
            until=_version(row["until"]) if "until" in row else None,
            sm=tuple(row.get("sm", ())),
            excepted=tuple(map(_version, row.get("except", ()))),
        )
        for row in rows
    )


def known_hazards(graph: Graph, sm: int, version: Version) -> list[KnownHazard]:
    """Return the known faults that a graph may meet on an architecture with a cuDNN version.

    Parameters
    ----------
    graph
        Any graph; attention is recognised by its data flow, whoever wrote it.
    sm
        90 for sm_90.
    version
        ``(9, 19, 0)``.

    Source: ``known_hazards.toml`` and :data:`~cudnn_backend_py.graph.attention.HAZARDS`. About 2 ms.
    """
    use = read_attention(graph)
    reported = [
        row
        for row in reported_hazards()
        if row.holds_in(version, sm)
        and guarded(f"the condition {row.condition}", False, CONDITIONS[row.condition], graph, use)
    ]
    return _measured(use, sm, version) + reported


def _measured(use: Use | None, sm: int, version: Version) -> list[KnownHazard]:
    if use is None:
        return []
    asked = dataclasses.replace(use, version=version, sm=sm)
    return [
        KnownHazard(row.code, row.what, row.effect, row.fix, MEASURED, row.since, row.until, row.sm)
        for row in HAZARDS
        if guarded(f"the condition {row.code}", False, row.hits, asked)
    ]


# Conditions: what the rows of the table are about

Condition = Callable[[Graph, Use | None], bool]
CONDITIONS: dict[str, Condition] = {}


def _of_graph(function: Callable[[Graph], bool]) -> Callable[[Graph], bool]:
    CONDITIONS[function.__name__] = lambda graph, use: function(graph)
    return function


def _of_attention(function: Callable[[Use], bool]) -> Callable[[Use], bool]:
    CONDITIONS[function.__name__] = lambda graph, use: use is not None and function(use)
    return function


@_of_attention
def half_attention(use: Use) -> bool:
    """Attention in float16 or bfloat16."""
    return use.problem.data_type in HALF_TYPES


@_of_attention
def fp8_attention(use: Use) -> bool:
    """Attention in 8-bit floats."""
    return use.problem.is_fp8


@_of_attention
def block_scaled_attention(use: Use) -> bool:
    """Attention whose blocks of 32 elements share a scale."""
    return use.problem.mx


@_of_attention
def random_dropout(use: Use) -> bool:
    """Dropout by a probability."""
    return use.problem.dropout > 0


@_of_attention
def ragged_attention(use: Use) -> bool:
    """Sequences one after the other."""
    return use.problem.ragged


@_of_attention
def ragged_backward(use: Use) -> bool:
    """The same, backward."""
    return use.backward and use.problem.ragged


@_of_attention
def ragged_sink_gradient(use: Use) -> bool:
    """The gradient of a sink, sequences one after the other."""
    return use.backward and use.problem.ragged and use.problem.dsink


@_of_attention
def paged_attention(use: Use) -> bool:
    """K and V in pages."""
    return use.problem.page_size is not None


@_of_attention
def half_forward_with_stats(use: Use) -> bool:
    """A forward pass in 16 bits that writes the statistics a backward pass reads."""
    return not use.backward and use.problem.stats and half_attention(use)


@_of_attention
def long_window_not_causal(use: Use) -> bool:
    """A left bound without a right one at the diagonal."""
    p = use.problem
    return p.left_bound is not None and p.right_bound != 0 and p.seq_kv > 1024


@_of_attention
def very_long_causal_keys(use: Use) -> bool:
    """A short causal query at the end of very many keys."""
    p = use.problem
    causal = p.right_bound == 0 and p.alignment == "bottom_right"
    return not use.backward and causal and p.seq_kv >= 131072 > p.seq_q and p.head_dim == 128 and half_attention(use)


@_of_attention
def fp8_long_keys_to_bfloat16(use: Use) -> bool:
    """An 8-bit forward pass that may be split over the keys, with bfloat16 results."""
    p = use.problem
    plain = p.left_bound is None and p.right_bound is None and p.page_size is None
    plain = plain and not (p.ragged or p.dropout or p.dropout_mask)
    into_bfloat16 = p.is_fp8 and p.output_type is DataType.BFLOAT16
    return not use.backward and into_bfloat16 and plain and p.seq_q > 1 and p.seq_kv >= 4096


@_of_attention
def decoding(use: Use) -> bool:
    """One query per sequence, forward."""
    return not use.backward and use.problem.seq_q == 1


@_of_attention
def decoding_groups_with_ragged_stats(use: Use) -> bool:
    """One query per sequence, heads that share keys, packed statistics."""
    p = use.problem
    return decoding(use) and p.stats and p.ragged_stats and p.heads > p.kv_heads


@_of_attention
def decoding_causal_groups(use: Use) -> bool:
    """One query per sequence, heads that share keys, a causal mask."""
    return decoding(use) and use.problem.right_bound == 0 and use.problem.heads != use.problem.kv_heads


@_of_attention
def backward_with_key_tail(use: Use) -> bool:
    """A backward pass whose keys do not fill their tiles, and no padding says so."""
    return use.backward and not use.problem.padding and use.problem.seq_kv % 128 != 0


@_of_attention
def backward_with_half_tile_of_keys(use: Use) -> bool:
    """The same, with half a tile, and no causal mask over it."""
    return backward_with_key_tail(use) and use.problem.seq_kv % 128 == 64 and use.problem.right_bound != 0


@_of_attention
def backward_mixed_head_dims(use: Use) -> bool:
    """A backward pass with two large head dims that differ."""
    dims = (use.problem.head_dim, use.problem.head_dim_v)
    return use.backward and dims[0] != dims[1] and max(dims) > 128 and dims != (192, 128)


@_of_attention
def backward_of_one_query(use: Use) -> bool:
    """A backward pass with one query, and no padding."""
    return use.backward and use.problem.seq_q == 1 and not use.problem.padding


@_of_attention
def backward_with_stats_not_packed(use: Use) -> bool:
    """A backward pass with dense statistics in another order than b, h, s."""
    p = use.problem
    dims, strides = p.dims("stats"), p.strides("stats")
    wanted = zip(dims, strides, packed_strides(dims), strict=True)
    return use.backward and not p.ragged_stats and any(dim > 1 and have != need for dim, have, need in wanted)


@_of_graph
def bfloat16_convolution_3d(graph: Graph) -> bool:
    """A forward convolution of [n, c, d, h, w] in bfloat16."""
    return any(
        isinstance(op, Operation)
        and op.kind is _D.OPERATION_CONVOLUTION_FORWARD
        and op.fields["x"].data_type is DataType.BFLOAT16
        and op.fields["x"].rank == 5
        for op in graph.ops
    )


@_of_graph
def large_depthwise_convolution(graph: Graph) -> bool:
    """A convolution of many channels whose filter has one, over 2^31 elements or more."""
    for op in graph.ops:
        if not isinstance(op, Operation) or op.kind not in CONVOLUTIONS:
            continue
        image = op.fields.get("x") or op.fields["dx"]
        weights = op.fields.get("w") or op.fields["dw"]
        if min(image.rank, weights.rank) < 2:
            continue
        if weights.dims[1] == 1 < image.dims[1] and math.prod(image.dims) >= 1 << 31:
            return True
    return False


@_of_graph
def fp8_expert_matmul(graph: Graph) -> bool:
    """A matmul per group of tokens in 8-bit floats."""
    return any(
        isinstance(op, Operation)
        and op.kind is _D.OPERATION_MOE_GROUPED_MATMUL
        and op.fields["token"].data_type in FP8_TYPES
        for op in graph.ops
    )
