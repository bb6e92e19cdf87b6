"""An FP8 matmul with one scale per tensor: run on a GPU, or explained without one.

cudnn-backend explain examples/quantized_matmul.py --target h100 --target b200
python examples/quantized_matmul.py
"""

from __future__ import annotations

import numpy as np

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, interpret
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph.formats import decode, encode

M, N, K = 256, 384, 512
LARGEST = 448  # largest number of FP8_E4M3


def graph() -> Graph:
    """Return y = (a * descale_a) @ (b * descale_b) * scale_y in FP8, and amax, which determines the next scale."""
    g = GraphBuilder("quantized_matmul", io_type=DataType.FP8_E4M3)
    a, b = g.tensor("a", (1, M, K)), g.tensor("b", (1, K, N), strides=(K * N, 1, K))
    descale_a, descale_b, scale_y = (
        g.tensor(name, (1, 1, 1), DataType.FLOAT) for name in ("descale_a", "descale_b", "scale_y")
    )
    y = g.pointwise(PointwiseMode.MUL, g.matmul(a, b), descale_a)
    y = g.pointwise(PointwiseMode.MUL, y, descale_b)
    g.reduction(ReduceTensorOp.AMAX, y, (1, 1, 1), name="amax", virtual=False, data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.MUL, y, scale_y, name="y", virtual=False)
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
    inputs, scale = {}, {}
    for name, dims in (("a", (1, M, K)), ("b", (1, K, N))):
        exact = rng.standard_normal(dims)
        scale[name] = LARGEST / np.abs(exact).max()
        inputs[name] = encode(exact * scale[name], DataType.FP8_E4M3)
    factors = {"descale_a": 1 / scale["a"], "descale_b": 1 / scale["b"], "scale_y": 2.0}
    inputs |= {name: np.full((1, 1, 1), factor, np.float32) for name, factor in factors.items()}
    y, amax = encode(np.zeros((1, M, N)), DataType.FP8_E4M3), np.zeros((1, 1, 1), np.float32)
    run.run({**inputs, "y": y, "amax": amax})
    numbers = {name: decode(inputs[name], DataType.FP8_E4M3) for name in "ab"}
    want = interpret(graph(), {**inputs, **numbers})
    for name, got in (("y", decode(y, DataType.FP8_E4M3)), ("amax", amax)):
        error = np.linalg.norm(got - want[name]) / np.linalg.norm(want[name])
        print(f"{run.plan.tag}: error of {name} {error:.1e} of its size")


if __name__ == "__main__":
    main()
