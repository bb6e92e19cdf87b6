"""Causal flash attention with grouped heads and its gradients: run on a GPU, or explained without one.

cudnn-backend explain examples/flash_backward.py --target sm80 --target sm90 --build
python examples/flash_backward.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import Graph, attention, reference

PROBLEM = attention.Attention(batch=2, heads=8, kv_heads=2, seq_q=512, head_dim=64, causal=True, stats=True)


def forward() -> Graph:
    """Return softmax(q @ k^T / 8, causal) @ v with the log-sum-exp per row, which the backward pass needs."""
    return attention.sdpa_forward(PROBLEM)


def graph() -> Graph:
    """Return dq, dk and dv from q, k, v, o, do and stats."""
    return attention.sdpa_backward(PROBLEM)


def main() -> None:
    """Run both graphs on the GPU of this process and compare with float64; without one, print the verdict for sm_90."""
    from cudnn_backend_py import EnvironmentNotReady, OperationGraph, build_plan, execute, explain, open_target

    try:
        target = open_target()
    except EnvironmentNotReady as error:
        print(error)
        verdict = explain(graph(), "sm90")
        print(f"on {verdict.target_title}: {verdict.outcome}")
        return
    fprop, bprop = (build_plan(OperationGraph(g, target).heuristics("A").configs[0]) for g in (forward(), graph()))
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal(PROBLEM.dims(name)).astype(np.float16) for name in ("q", "k", "v", "do"))
    o = np.full_like(do, np.nan)
    stats = np.full(PROBLEM.dims("stats"), np.nan, np.float32)
    gradients: dict[str | int, NDArray[np.float16]] = {
        name: np.full(PROBLEM.dims(name), np.nan, np.float16) for name in ("dq", "dk", "dv")
    }
    k_t, v_t = k.swapaxes(2, 3), v.swapaxes(2, 3)
    execute(fprop, {"q": q, "k": k_t, "v": v, "o": o, "stats": stats})
    execute(bprop, {"q": q, "k": k_t, "v": v_t, "o": o, "do": do, "stats": stats, **gradients})
    exact = reference.forward(q, k, v, right_bound=0)
    want = reference.backward(q, k, v, exact.o, do, exact.stats, right_bound=0)
    print(f"forward {fprop.tag}, backward {bprop.tag}")
    for name, array in gradients.items():
        value = getattr(want, str(name))
        worst = np.abs(array - value).max() / np.abs(value).max()
        print(f"{name}: max error relative to the largest value {worst:.2e}")


if __name__ == "__main__":
    main()
