"""Convolution with bias and ReLU in one kernel: run on a GPU, or explained without one.

cudnn-backend explain examples/conv_bias_relu.py --target h100
python examples/conv_bias_relu.py
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, interpret

X, W, BIAS, Y = (8, 64, 28, 28), (128, 64, 3, 3), (1, 128, 1, 1), (8, 128, 28, 28)


def graph() -> Graph:
    """Return relu(conv(x, w) + bias) with channels last, the layout that cuDNN's fast engines need."""
    g = GraphBuilder("conv_bias_relu", io_type=DataType.HALF)
    x, w, bias = (g.tensor(name, dims, strides="channels_last") for name, dims in (("x", X), ("w", W), ("bias", BIAS)))
    y = g.pointwise(PointwiseMode.ADD, g.convolution(x, w, padding=1), bias)
    g.pointwise(PointwiseMode.RELU_FWD, y, name="y", virtual=False)
    return g.graph()


def main() -> None:
    """Run the graph on this GPU and compare with the interpreter; without a GPU, print the verdict for an H100."""
    from cudnn_backend_py import EnvironmentNotReady, explain, plan

    try:
        run = plan(graph())
    except EnvironmentNotReady as error:
        verdict = explain(graph(), "h100")
        print(f"{error}\non {verdict.target_title}, cuDNN {verdict.cudnn}: {verdict.outcome}")
        return
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(dims).astype(np.float16) for dims in (X, W, BIAS))
    y = np.empty(Y, np.float16)
    run(x=x, w=w, bias=bias, y=y)
    want = interpret(graph(), {"x": x, "w": w, "bias": bias})["y"]
    print(f"{run.plan.tag}: error of y {np.linalg.norm(y - want) / np.linalg.norm(want):.1e} of its size")


if __name__ == "__main__":
    main()
