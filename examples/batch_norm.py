"""Batch norm in training, with running statistics: run on a GPU, or explained without one.

cudnn-backend explain examples/batch_norm.py --target h100
python examples/batch_norm.py
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import DataType, Graph, GraphBuilder, interpret
from cudnn_backend_py.generated.enums import NormMode

IMAGES, CHANNEL = (16, 64, 28, 28), (1, 64, 1, 1)


def graph() -> Graph:
    """Return the normalized x, mean and inv_variance of this batch, and the next running statistics."""
    g = GraphBuilder("batch_norm", io_type=DataType.HALF)
    x = g.tensor("x", IMAGES, strides="channels_last")
    scale, bias, mean, variance = (
        g.tensor(name, CHANNEL, DataType.FLOAT, strides="channels_last")
        for name in ("scale", "bias", "running_mean", "running_var")
    )
    g.norm_forward(
        NormMode.BATCH_NORM,
        x,
        scale,
        bias,
        training=True,
        running_mean=mean,
        running_var=variance,
        momentum=0.1,
        name="y",
        virtual=False,
    )
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
    channels = ("scale", "bias", "running_mean", "running_var")
    inputs = {name: rng.uniform(0.5, 2, CHANNEL).astype(np.float32) for name in channels}
    inputs["x"] = rng.normal(3, 2, IMAGES).astype(np.float16)
    outputs = {
        tensor.name: np.empty(tensor.dims, np.float16 if tensor.name == "y" else np.float32)
        for tensor in graph().outputs
    }
    run.run({**inputs, **outputs})
    for name, want in interpret(graph(), inputs).items():
        error = np.linalg.norm(outputs[name] - want) / np.linalg.norm(want)
        print(f"{run.plan.tag}: error of {name} {error:.1e} of its size")


if __name__ == "__main__":
    main()
