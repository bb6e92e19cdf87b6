"""RoPE and attention in one graph (cuDNN 9.24 or later): run on a GPU, or explained without one.

cudnn-backend explain examples/rope_attention.py --target h100 --target b200
python examples/rope_attention.py
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import CudnnBackendError, DataType, Graph, GraphBuilder, interpret

BATCH, HEADS, SEQUENCE, HEAD_DIM = 2, 4, 256, 64


def graph() -> Graph:
    """Return softmax(rope(q) @ rope(k)^T / 8) @ v for q, k, v [b, h, s, d] stored as b, s, h, d."""
    g = GraphBuilder("rope_attention", io_type=DataType.HALF)
    dims = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
    strides = (SEQUENCE * HEADS * HEAD_DIM, HEAD_DIM, HEADS * HEAD_DIM, 1)
    q, k, v = (g.tensor(name, dims, strides=strides) for name in "qkv")
    angles = g.tensor("angles", (SEQUENCE, 1, 1, HEAD_DIM), DataType.FLOAT)
    q, k = (
        g.rope_forward(
            item, angles, name=f"{item.name}_turned", data_type=DataType.HALF, virtual=False, strides=strides
        )
        for item in (q, k)
    )
    g.sdpa_forward(q, k, v, scale=HEAD_DIM**-0.5, name="o", virtual=False, strides=strides)
    return g.graph()


def main() -> None:
    """Run the graph on this GPU and compare with the interpreter; without a GPU, print the verdict for an H100."""
    from cudnn_backend_py import explain, plan

    try:
        run = plan(graph())
    except CudnnBackendError as error:
        verdict = explain(graph(), "h100")
        why = "" if verdict.cause is None else f": {verdict.cause.headline}"
        print(f"{error}\non {verdict.target_title}, cuDNN {verdict.cudnn}: {verdict.outcome}{why}")
        return
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    half = np.arange(SEQUENCE)[:, None] * 10000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = np.concatenate([half, half], axis=1).reshape(SEQUENCE, 1, 1, HEAD_DIM).astype(np.float32)
    o, q_turned, k_turned = (np.empty(shape, np.float16) for _ in range(3))
    run(q=q, k=k, v=v, angles=angles, q_turned=q_turned, k_turned=k_turned, o=o)
    want = interpret(graph(), {"q": q, "k": k, "v": v, "angles": angles})["o"]
    print(f"{run.plan.tag}: error of o {np.linalg.norm(o - want) / np.linalg.norm(want):.1e} of its size")


if __name__ == "__main__":
    main()
