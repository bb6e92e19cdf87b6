"""Causal flash attention forward with statistics: run on a GPU, or explained without one.

cudnn-backend explain examples/flash_forward.py --target sm80 --target sm90 --build
python examples/flash_forward.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import DataType, Graph, attention
from cudnn_backend_py import reference as float64

BATCH, HEADS, SEQUENCE, HEAD_DIM = 2, 4, 512, 64


def graph(data_type: DataType = DataType.HALF) -> Graph:
    """Return softmax(q @ k^T / 8, causal) @ v with the log-sum-exp per row."""
    return attention.sdpa_forward(
        batch=BATCH,
        heads=HEADS,
        seq_q=SEQUENCE,
        head_dim=HEAD_DIM,
        data_type=data_type,
        causal=True,
        stats=True,
    )


def compute_expected_in_float64(
    q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return output and log-sum-exp in float64; q, k, v are [b, h, s, d]."""
    exact = float64.forward(q, k, v, right_bound=0)
    return exact.o, exact.stats


def main() -> None:
    """Run the graph on this GPU and compare with float64; without a GPU, print the verdict for sm_90."""
    from cudnn_backend_py import EnvironmentNotReady, OperationGraph, build_plan, execute, explain, open_target

    try:
        target = open_target()
    except EnvironmentNotReady as error:
        print(error)
        verdict = explain(graph(), "sm90")
        print(f"on {verdict.target_title}: {verdict.outcome}")
        return
    plan = build_plan(OperationGraph(graph(), target).heuristics("A").configs[0])
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    o = np.full(shape, np.nan, np.float16)
    stats = np.full((*shape[:3], 1), np.nan, np.float32)
    execute(plan, {"q": q, "k": k.swapaxes(2, 3), "v": v, "o": o, "stats": stats})
    want_o, want_stats = compute_expected_in_float64(*(x.astype(np.float64) for x in (q, k, v)))
    print(f"{plan.tag}: max error of o {np.abs(o - want_o).max():.2e}, of stats {np.abs(stats - want_stats).max():.2e}")


if __name__ == "__main__":
    main()
