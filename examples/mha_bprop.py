"""Attention training for short sequences: Mha-fprop stores S, which Mha-bprop reads.

cuDNN 9.25 removed the patterns, so use an older version:

    cudnn-backend explain examples/mha_bprop.py --cudnn 9.19.0 --target sm80 --target sm89 --build
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import Graph
from cudnn_backend_py.graph.attention import SmallAttention, mha_bprop, mha_fprop

BATCH, HEADS, SEQUENCE, HEAD_DIM = 2, 4, 128, 64
BIAS = (1, HEADS, SEQUENCE, SEQUENCE)
PROBLEM = SmallAttention(batch=BATCH, heads=HEADS, seq_q=SEQUENCE, causal=True, bias=BIAS, dbias=True)


def forward() -> Graph:
    """Return softmax(q @ (k / 8)^T + bias, causal) @ v, which stores the softmax as s."""
    return mha_fprop(PROBLEM, store_s=True)


def graph() -> Graph:
    """Return dq, dk, dv and dbias from q, k, v, do and s."""
    return mha_bprop(PROBLEM)


def compute_expected_in_float64(
    q: NDArray[np.float64],
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    bias: NDArray[np.float64],
    do: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:
    """Return output and gradients in float64; q, k, v and do are [b, h, s, d]."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = scale * q @ k.swapaxes(2, 3) + bias
    scores = np.where(np.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -np.inf)
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    s = exp / exp.sum(-1, keepdims=True)
    dp = do @ v.swapaxes(2, 3)
    ds = s * (dp - (s * dp).sum(-1, keepdims=True))
    return {
        "o": s @ v,
        "dq": scale * ds @ k,
        "dk": scale * ds.swapaxes(2, 3) @ q,
        "dv": s.swapaxes(2, 3) @ do,
        "dbias": ds.sum(0, keepdims=True),
    }


def main() -> None:
    """Run both graphs on the GPU of this process and compare with float64; without one, print the verdict for sm_90."""
    from cudnn_backend_py import EnvironmentNotReady, OperationGraph, build_plan, execute, explain, open_target

    try:
        target = open_target()
    except EnvironmentNotReady as error:
        print(error)
        verdict = explain(graph(), "sm90")
        print(f"on {verdict.target_title}, cuDNN {verdict.cudnn}: {verdict.outcome}")
        if verdict.cause is not None:
            print(verdict.cause.headline)
        return
    verdict = explain(graph(), target)
    if not verdict.supported:
        print(f"{verdict.outcome}: {verdict.cause.headline if verdict.cause else 'cuDNN gave no reason'}")
        raise SystemExit(verdict.exit_code)
    fprop, bprop = (build_plan(OperationGraph(g, target).heuristics("A").configs[0]) for g in (forward(), graph()))
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
    q, k, v, do = (rng.standard_normal(shape).astype(np.float16) for _ in range(4))
    bias = rng.standard_normal(BIAS).astype(np.float16)
    s = np.zeros((BATCH, HEADS, SEQUENCE, SEQUENCE), np.float16)
    results: dict[str | int, NDArray[np.float16]] = {
        name: np.full(shape, np.nan, np.float16) for name in ("o", "dq", "dk", "dv")
    }
    results["dbias"] = np.full(BIAS, np.nan, np.float16)
    execute(fprop, {"q": q, "k": k.swapaxes(2, 3), "v": v, "bias": bias, "s": s, "o": results["o"]})
    gradients = {name: array for name, array in results.items() if name != "o"}
    execute(bprop, {"q": q, "k": k, "v": v.swapaxes(2, 3), "do": do, "s": s, **gradients})
    want = compute_expected_in_float64(*(x.astype(np.float64) for x in (q, k, v, bias, do)))
    for name, array in results.items():
        exact = want[str(name)]
        worst = np.abs(array - exact).max() / np.abs(exact).max()
        print(f"{name}: max error relative to the largest value {worst:.2e}")


if __name__ == "__main__":
    main()
