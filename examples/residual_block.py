"""A residual block of two convolution kernels: run on a GPU, or explained without one.

cudnn-backend explain examples/residual_block.py --target h100
python examples/residual_block.py
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, interpret

IMAGES, WEIGHTS, BIAS = (8, 64, 28, 28), (64, 64, 3, 3), (1, 64, 1, 1)


def graph(*, residual: bool = True) -> Graph:
    """Return relu(conv(x, w) + bias + residual), the second half of the block; without residual, the first half."""
    g = GraphBuilder("residual_block" if residual else "first_half", io_type=DataType.HALF)
    x = g.tensor("x", IMAGES, strides="channels_last")
    w = g.tensor("w", WEIGHTS, strides="channels_last")
    y = g.convolution(x, w, padding=1)
    y = g.pointwise(PointwiseMode.ADD, y, g.tensor("bias", BIAS, strides="channels_last"))
    if residual:
        y = g.pointwise(PointwiseMode.ADD, y, g.tensor("residual", IMAGES, strides="channels_last"))
    g.pointwise(PointwiseMode.RELU_FWD, y, name="y", virtual=False)
    return g.graph()


def main() -> None:
    """Run the block on this GPU and compare with the interpreter; without a GPU, print the verdict for an H100."""
    from cudnn_backend_py import EnvironmentNotReady, explain, plan

    first, second = graph(residual=False), graph()
    try:
        runs = plan(first), plan(second)
    except EnvironmentNotReady as error:
        print(error)
        for half in (first, second):
            verdict = explain(half, "h100")
            print(f"{half.name} on {verdict.target_title}, cuDNN {verdict.cudnn}: {verdict.outcome}")
        return
    rng = np.random.default_rng(0)
    x = rng.standard_normal(IMAGES).astype(np.float16)
    w1, w2 = (0.05 * rng.standard_normal(WEIGHTS).astype(np.float16) for _ in range(2))
    bias1, bias2 = (rng.standard_normal(BIAS).astype(np.float16) for _ in range(2))
    h, y = np.empty(IMAGES, np.float16), np.empty(IMAGES, np.float16)
    runs[0](x=x, w=w1, bias=bias1, y=h)
    runs[1](x=h, w=w2, bias=bias2, residual=x, y=y)
    inner = interpret(first, {"x": x, "w": w1, "bias": bias1})["y"]
    want = interpret(second, {"x": inner, "w": w2, "bias": bias2, "residual": x})["y"]
    print(f"{runs[1].plan.tag}: error of y {np.linalg.norm(y - want) / np.linalg.norm(want):.1e} of its size")


if __name__ == "__main__":
    main()
