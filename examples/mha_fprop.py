"""Short-sequence attention (Mha-fprop) with lengths: run on a GPU, or explained without one.

cuDNN 9.25 removed the pattern, so use an older version:

    cudnn-backend explain examples/mha_fprop.py --cudnn 9.19.0 --target sm80 --target sm89 --build
    CUDNN_BACKEND_LIBRARY=.../libcudnn.so.9 python examples/mha_fprop.py
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import Graph
from cudnn_backend_py.graph.attention import mha_fprop

BATCH, HEADS, SEQUENCE, HEAD_DIM = 2, 4, 128, 64
LENGTHS = (128, 77)


def graph() -> Graph:
    """Return the inference graph: softmax(q @ (k / 8)^T, causal, within the lengths) @ v."""
    return mha_fprop(batch=BATCH, heads=HEADS, seq_q=SEQUENCE, padding=True, causal=True)


def compute_expected_in_float64(
    q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the output in float64 for q, k, v [b, h, s, d]; tokens after the end of a sequence are ignored."""
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1])
    row, column = np.ogrid[: q.shape[2], : k.shape[2]]
    inside = np.asarray(LENGTHS).reshape(-1, 1, 1, 1) > column
    scores = np.where((column <= row) & inside, scores, -np.inf)
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    o: NDArray[np.float64] = exp / exp.sum(-1, keepdims=True) @ v
    return o


def main() -> None:
    """Run the graph on this GPU and compare with float64; without a GPU, print the verdict for sm_90."""
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
    plan = build_plan(OperationGraph(graph(), target).heuristics("A").configs[0])
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    o = np.full(shape, np.nan, np.float16)
    lengths = np.array(LENGTHS, np.int32).reshape(-1, 1, 1, 1)
    execute(plan, {"q": q, "k": k.swapaxes(2, 3), "v": v, "o": o, "seq_len_q": lengths, "seq_len_kv": lengths})
    want = compute_expected_in_float64(*(x.astype(np.float64) for x in (q, k, v)))
    worst = max(np.abs(o[b, :, :n] - want[b, :, :n]).max() for b, n in enumerate(LENGTHS))
    print(f"{plan.tag}: max error of o {worst:.2e}")


if __name__ == "__main__":
    main()
