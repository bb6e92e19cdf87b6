"""A mixture-of-experts layer, from routing to the sum: run on a GPU, or explained without one.

cudnn-backend explain examples/moe_layer.py --target h100 --target b200
python examples/moe_layer.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import CudnnBackendError, DataType, Graph, GraphBuilder
from cudnn_backend_py.generated.enums import MoeGroupedMatmulMode

TOKENS, EXPERTS, TOP_K, CHANNELS, HIDDEN = 256, 8, 2, 128, 256
ROWS = TOKENS * TOP_K


def graph(*, down: bool = False) -> Graph:
    """Return the matmul of the experts' up projection, or with `down` of their down projection."""
    g = GraphBuilder("moe_down" if down else "moe_up", io_type=DataType.HALF)
    rows, k, n = (ROWS, HIDDEN, CHANNELS) if down else (TOKENS, CHANNELS, HIDDEN)
    token = g.tensor("token", (1, rows, k))
    weight = g.tensor("weight", (EXPERTS, k, n), strides=(k * n, 1, k))
    first = g.tensor("first", (EXPERTS, 1, 1), DataType.INT32)
    if down:
        g.moe_grouped_matmul(token, weight, first, name="y", virtual=False)
    else:
        index = g.tensor("index", (1, ROWS, 1), DataType.INT64)
        mode = MoeGroupedMatmulMode.GATHER
        g.moe_grouped_matmul(token, weight, first, mode=mode, token_index=index, name="y", virtual=False)
    return g.graph()


def route_tokens_to_experts(
    scores: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Return the expert and the token of each row, sorted by expert, and the first row of each expert."""
    chosen = np.argsort(-scores, axis=1)[:, :TOP_K].reshape(-1)
    order = np.argsort(chosen, kind="stable")
    first = np.searchsorted(chosen[order], np.arange(EXPERTS))
    return chosen[order], order // TOP_K, first.astype(np.int32)


def main() -> None:
    """Run the layer on this GPU and compare with NumPy; without a GPU, print the verdict for an H100."""
    from cudnn_backend_py import explain, plan

    up, down = graph(), graph(down=True)
    try:
        runs = plan(up), plan(down)
    except CudnnBackendError as error:
        print(error)
        for half in (up, down):
            verdict = explain(half, "h100")
            why = "" if verdict.cause is None else f": {verdict.cause.headline}"
            print(f"{half.name} on {verdict.target_title}, cuDNN {verdict.cudnn}: {verdict.outcome}{why}")
        return
    rng = np.random.default_rng(0)
    x = rng.standard_normal((TOKENS, CHANNELS)).astype(np.float16)
    w_up, w_down = (
        0.1 * rng.standard_normal((EXPERTS, k, n)).astype(np.float16)
        for k, n in ((CHANNELS, HIDDEN), (HIDDEN, CHANNELS))
    )
    scores = rng.standard_normal((TOKENS, EXPERTS))
    expert, index, first = route_tokens_to_experts(scores)
    offsets = first.reshape(-1, 1, 1)
    h, rows = np.empty((1, ROWS, HIDDEN), np.float16), np.empty((1, ROWS, CHANNELS), np.float16)
    runs[0](token=x[None], weight=w_up, first=offsets, index=index.reshape(1, -1, 1), y=h)
    h = np.maximum(h, 0)  # the ReLU between the two matmuls, in NumPy
    runs[1](token=h, weight=w_down, first=offsets, y=rows)
    y, want = np.zeros((TOKENS, CHANNELS)), np.zeros((TOKENS, CHANNELS))
    share = scores[index, expert][:, None]
    np.add.at(y, index, share * rows[0])
    for e in range(EXPERTS):
        mine = expert == e
        exact = np.maximum(x[index[mine]].astype(float) @ w_up[e].astype(float), 0) @ w_down[e].astype(float)
        np.add.at(want, index[mine], share[mine] * exact)
    print(f"{runs[0].plan.tag}: error of y {np.linalg.norm(y - want) / np.linalg.norm(want):.1e} of its size")


if __name__ == "__main__":
    main()
