"""Layer norm with the statistics its gradient needs: run on a GPU, or explained without one.

cudnn-backend explain examples/layer_norm.py --target h100
python examples/layer_norm.py
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import DataType, Graph, GraphBuilder, interpret
from cudnn_backend_py.generated.enums import NormMode

TOKENS, CHANNELS = 1024, 768


def graph() -> Graph:
    """Return (x - mean) * inv_variance * scale + bias for each token, and mean and inv_variance."""
    g = GraphBuilder("layer_norm", io_type=DataType.HALF)
    x = g.tensor("x", (TOKENS, CHANNELS, 1, 1))
    scale, bias = (g.tensor(name, (1, CHANNELS, 1, 1), DataType.FLOAT) for name in ("scale", "bias"))
    g.norm_forward(NormMode.LAYER_NORM, x, scale, bias, epsilon=1e-5, training=True, name="y", virtual=False)
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
    inputs = {
        "x": rng.normal(3, 2, (TOKENS, CHANNELS, 1, 1)).astype(np.float16),
        "scale": rng.uniform(0.5, 2, (1, CHANNELS, 1, 1)).astype(np.float32),
        "bias": rng.standard_normal((1, CHANNELS, 1, 1)).astype(np.float32),
    }
    outputs = {
        "y": np.empty((TOKENS, CHANNELS, 1, 1), np.float16),
        "y.mean": np.empty((TOKENS, 1, 1, 1), np.float32),
        "y.inv_variance": np.empty((TOKENS, 1, 1, 1), np.float32),
    }
    run.run({**inputs, **outputs})
    for name, want in interpret(graph(), inputs).items():
        error = np.linalg.norm(outputs[name] - want) / np.linalg.norm(want)
        print(f"{run.plan.tag}: error of {name} {error:.1e} of its size")


if __name__ == "__main__":
    main()
