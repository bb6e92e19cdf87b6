"""The measured attention problems, and the number of repetitions."""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention import Attention

__all__ = ["FULL_REPETITIONS", "LARGE_PROBLEMS", "QUICK_REPETITIONS", "SMALL_PROBLEM", "RepetitionCounts"]

TOKENS_PER_BATCH = 16384  # batch size times sequence length of the shapes with measured GPU time
SMALL_PROBLEM = Attention(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)  # fresh_process.py has the same sizes


def _make_large_attention_problem(
    seq: int, head_dim: int, causal: bool, bf16: bool, kv_heads: int | None = None
) -> Attention:
    return Attention(
        batch=TOKENS_PER_BATCH // seq,
        heads=2048 // head_dim,
        kv_heads=kv_heads,  # type: ignore[arg-type]  # as many as heads where it is None
        seq_q=seq,
        head_dim=head_dim,
        causal=causal,
        data_type=DataType.BFLOAT16 if bf16 else DataType.HALF,
    )


LARGE_PROBLEMS: tuple[Attention, ...] = (
    *(
        _make_large_attention_problem(seq, head_dim, causal, bf16=(head_dim == 128) == causal)
        for head_dim in (64, 128)
        for causal in (True, False)
        for seq in (512, 2048, 4096, 16384)
    ),
    _make_large_attention_problem(1024, 128, True, True, kv_heads=4),
    _make_large_attention_problem(8192, 128, True, True, kv_heads=4),
    _make_large_attention_problem(8192, 128, False, False, kv_heads=2),
    _make_large_attention_problem(8192, 64, True, False, kv_heads=8),
)


@dataclass(frozen=True)
class RepetitionCounts:
    """The number of repetitions of each measurement."""

    shapes: tuple[Attention, ...] = LARGE_PROBLEMS
    gpu_rounds: int = 21
    tuning_s: float = 3.0
    host_batches: int = 25
    host_calls: int = 100
    children: int = 7


FULL_REPETITIONS = RepetitionCounts()
QUICK_REPETITIONS = RepetitionCounts(
    (LARGE_PROBLEMS[1], LARGE_PROBLEMS[12], LARGE_PROBLEMS[17]), gpu_rounds=9, tuning_s=1.5, host_batches=13, children=1
)
