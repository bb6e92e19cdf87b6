"""The two-matmul graph of a forum thread: o = (q @ k) @ v with a virtual, reordered s in between.

On an L40S, cuDNN's heuristics listed engine configs, but all were NOT_SUPPORTED, without a reason. To see the reason:

    cudnn-backend explain examples/forum_two_matmul.py --cudnn 9.19.0 --target l40s

On a machine with a GPU this file also runs the graph and compares it with NumPy.
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import DataType, Graph, GraphBuilder, TensorReordering


def graph() -> Graph:
    """Return the thread's graph: the same dims, strides, uids (letters), alignment and reordering."""
    g = GraphBuilder("forum_two_matmul", io_type=DataType.HALF)
    q = g.tensor("q", (1, 1, 10, 64), uid=ord("q"), alignment=2)
    k = g.tensor("k", (1, 1, 64, 10), strides=(640, 640, 1, 64), uid=ord("k"), alignment=2)
    v = g.tensor("v", (1, 1, 10, 64), uid=ord("v"), alignment=2)
    o = g.tensor("o", (1, 1, 10, 64), uid=ord("o"), alignment=2)
    s = g.matmul(
        q,
        k,
        name="s",
        uid=ord("s"),
        data_type=DataType.HALF,
        alignment=2,
        reordering=TensorReordering.F16x16,
    )
    g.matmul(s, v, out=o)
    return g.graph()


def main() -> None:
    """Run the graph on the GPU of this process and print the error against float64."""
    from cudnn_backend_py import OperationGraph, build_plan, execute, explain, open_target

    verdict = explain(graph())
    print(verdict.outcome)
    if not verdict.supported:
        print(verdict.cause.headline if verdict.cause else "cuDNN gave no reason")
        raise SystemExit(verdict.exit_code)
    target = open_target()
    plan = build_plan(OperationGraph(graph(), target).heuristics("A").configs[0])
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 10, 64)).astype(np.float16) for _ in range(3))
    o = np.full((1, 1, 10, 64), np.nan, np.float16)
    execute(plan, {"q": q, "k": k.swapaxes(2, 3), "v": v, "o": o})
    s = (q.astype(np.float64) @ k.swapaxes(2, 3).astype(np.float64)).astype(np.float16)
    reference = s.astype(np.float64) @ v.astype(np.float64)
    error = np.abs(o - reference).max() / np.abs(reference).max()
    print(f"max error relative to the largest value: {error:.2e}")


if __name__ == "__main__":
    main()
