"""A matrix product with bias and ReLU by ``cudnn.Graph``: run with torch, or built for an H100.

The torch tensors are arguments of the operations, and the graph is called like a function.

    python examples/frontend_wrapper.py
    cudnn-backend explain examples/frontend_wrapper.py --target sm80 --target sm90
"""

from __future__ import annotations

import importlib.util
from typing import Any

from cudnn_backend_py import Graph, find_profile
from cudnn_backend_py import frontend as cudnn

BATCH, M, N, K = 16, 128, 128, 512


def build_linear_relu_graph(a: Any, b: Any, bias: Any, **where: Any) -> cudnn.Graph:
    """Return the built graph of relu(a @ b + bias), from torch tensors or functions that make a ``cudnn.tensor``."""
    with cudnn.Graph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        inputs=["mm::A", "mm::B", "bias::bias"],
        outputs=["y"],
        **where,
    ) as graph:
        a, b, bias = (item(graph) if callable(item) else item for item in (a, b, bias))
        product = graph.matmul(name="mm", A=a, B=b)
        y = graph.relu(name="relu", input=graph.bias(name="bias", input=product, bias=bias))
        y.set_output(True).set_name("y")
    return graph


def make_graph_for_h100() -> cudnn.Graph:
    """Return the graph built for a described H100 from dims and strides."""

    def make_packed_tensor_maker(*dim: int) -> Any:
        return lambda graph: graph.tensor(dim=dim, stride=(dim[1] * dim[2], dim[2], 1))

    where = cudnn.create_device_properties(find_profile("h100").json())
    return build_linear_relu_graph(
        make_packed_tensor_maker(BATCH, M, K),
        make_packed_tensor_maker(BATCH, K, N),
        make_packed_tensor_maker(1, M, N),
        device_property=where,
    )


def graph() -> Graph:
    """Return the graph of this example, for an H100, as a `cudnn_backend_py.Graph`."""
    value: Graph = make_graph_for_h100().graph()
    return value


def run() -> None:
    """Run the matrix product on the GPU of this process and compare with torch."""
    import torch

    a, b, bias = (
        torch.randn(dim, device="cuda", dtype=torch.half) for dim in ((BATCH, M, K), (BATCH, K, N), (1, M, N))
    )
    layer = build_linear_relu_graph(a, b, bias, handle="auto")
    y = layer(a, b, bias)
    want = torch.relu(a @ b + bias)
    torch.testing.assert_close(y, want, atol=5e-2, rtol=3e-3)
    by_name = layer({"mm::A": a, "mm::B": b, "bias::bias": bias})
    assert torch.equal(by_name["relu::OUT_0"], y)
    print(f"agrees with torch, largest difference {(y - want).abs().max():.2e}")


def main() -> None:
    """Run the matrix product if there are torch and a GPU; otherwise build its plan for an H100."""
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            run()
            return
    print(f"built for an H100, {make_graph_for_h100().get_workspace_size()} bytes of workspace")


if __name__ == "__main__":
    main()
