"""Measured problems, and how much is measured of each. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..graph import Graph
    from ..target import Target

__all__ = ["DIRECTIONS", "FULL", "QUICK", "SHAPES", "SMALL", "Direction", "Effort", "Shape"]

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TOKENS = 16384  # batch x s of the shapes whose GPU time is taken


@dataclass(frozen=True)
class Shape:
    """An attention problem; all tensors lie as b, s, h, d."""

    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: bool = False
    bf16: bool = False
    kv_heads: int = 0
    seq_kv: int = 0

    @property
    def name(self) -> str:
        """Short text such as ``b1 h16/4 s16384 d128 causal bf16``."""
        heads = f"{self.heads}/{self.kv_heads}" if self.kv_heads else str(self.heads)
        seq = f"{self.seq}/{self.seq_kv}" if self.seq_kv else str(self.seq)
        kind = "bf16" if self.bf16 else "f16"
        return f"b{self.batch} h{heads} s{seq} d{self.head_dim}{' causal' if self.causal else ''} {kind}"

    def flops(self, direction: Direction) -> float:
        """Return the floating-point operations as FlashAttention counts them; masked halves are not counted."""
        scores = self.batch * self.heads * self.seq * (self.seq_kv or self.seq)
        one_way = 4.0 * scores * self.head_dim / (2 if self.causal else 1)
        return one_way * (2.5 if direction == "backward" else 1.0)

    def graph(self, direction: Direction, target: Target) -> Graph:
        """Return the graph for the cuDNN version and the architecture of a target."""
        return self.graph_for(direction, target.library.version, target.sm)

    def graph_for(self, direction: Direction, version: tuple[int, int, int], sm: int) -> Graph:
        """Return the graph for a cuDNN version and an architecture."""
        from ..generated.enums import DataType
        from ..graph.attention import sdpa_backward, sdpa_forward

        make = sdpa_backward if direction == "backward" else sdpa_forward
        return make(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads or None,
            seq_q=self.seq,
            seq_kv=self.seq_kv or self.seq,
            head_dim=self.head_dim,
            causal=self.causal,
            data_type=DataType.BFLOAT16 if self.bf16 else DataType.HALF,
            stats=direction == "forward",
            version=version,
            sm=sm,
        )


SMALL = Shape(1, 2, 128, 64, causal=True)


def _large(seq: int, head_dim: int, causal: bool, bf16: bool, kv_heads: int = 0) -> Shape:
    return Shape(TOKENS // seq, 2048 // head_dim, seq, head_dim, causal, bf16, kv_heads)


SHAPES: tuple[Shape, ...] = (
    *(
        _large(seq, head_dim, causal, bf16=(head_dim == 128) == causal)
        for head_dim in (64, 128)
        for causal in (True, False)
        for seq in (512, 2048, 4096, 16384)
    ),
    _large(1024, 128, True, True, kv_heads=4),
    _large(8192, 128, True, True, kv_heads=4),
    _large(8192, 128, False, False, kv_heads=2),
    _large(8192, 64, True, False, kv_heads=8),
)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    shapes: tuple[Shape, ...] = SHAPES
    gpu_rounds: int = 21
    tuning_s: float = 3.0
    host_batches: int = 25
    host_calls: int = 100
    children: int = 7


FULL = Effort()
QUICK = Effort((SHAPES[1], SHAPES[12], SHAPES[17]), gpu_rounds=9, tuning_s=1.5, host_batches=13, children=1)
