"""A convolution with scale, bias and ReLU through cudnn-frontend's API: run with torch, or built for an H100.

python examples/frontend_conv.py
cudnn-backend explain examples/frontend_conv.py --target sm80 --target sm90
"""

from __future__ import annotations

import importlib.util
from typing import Any

from cudnn_backend_py import Graph, find_profile
from cudnn_backend_py import frontend as cudnn

N, C, H, W, FILTERS = 8, 64, 56, 56, 32


def make_channels_last_strides(n: int, c: int, h: int, w: int) -> tuple[int, ...]:
    """Return the strides of [n, c, h, w] with channels last."""
    return (c * h * w, 1, c * w, c)


def make_convolution_pygraph(**where: Any) -> tuple[cudnn.pygraph, dict[str, cudnn.tensor]]:
    """Return relu(conv(x, w) * scale + bias), not yet built, and its tensors."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        **where,
    )
    dims = {"x": (N, C, H, W), "w": (FILTERS, C, 3, 3), "scale": (1, FILTERS, 1, 1), "bias": (1, FILTERS, 1, 1)}
    tensors = {
        name: graph.tensor(name=name, dim=dim, stride=make_channels_last_strides(*dim)) for name, dim in dims.items()
    }
    y = graph.conv_fprop(
        image=tensors["x"], weight=tensors["w"], padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv"
    )
    y = graph.bias(name="bias", input=graph.scale(name="scale", input=y, scale=tensors["scale"]), bias=tensors["bias"])
    tensors["y"] = graph.relu(name="relu", input=y).set_output(True)
    return graph, tensors


def make_device_properties(name: str) -> Any:
    """Return the device properties of a described GPU."""
    return cudnn.create_device_properties(find_profile(name).json())


def graph() -> Graph:
    """Return the graph of this example, for an H100, as a `cudnn_backend_py.Graph`."""
    made, _ = make_convolution_pygraph(device_property=make_device_properties("h100"))
    return made.graph()


def run() -> None:
    """Run the convolution on the GPU of this process and compare with torch."""
    import torch

    handle = cudnn.create_handle()
    made, tensors = make_convolution_pygraph(handle=handle)
    made.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    buffers = {
        name: torch.randn(item.get_dim(), device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
        for name, item in tensors.items()
    }
    workspace = torch.empty(made.get_workspace_size(), device="cuda", dtype=torch.uint8)
    made.execute({tensors[name]: buffer for name, buffer in buffers.items()}, workspace, handle=handle)
    torch.cuda.synchronize()
    product = torch.nn.functional.conv2d(buffers["x"].float(), buffers["w"].float(), padding=1)
    want = torch.relu(product * buffers["scale"].float() + buffers["bias"].float())
    torch.testing.assert_close(buffers["y"].float(), want, atol=5e-2, rtol=5e-3)
    print(f"{made.get_plan_name_at_index(0)}: agrees with torch")


def main() -> None:
    """Run the convolution if there are torch and a GPU; otherwise build its plan for an H100."""
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            run()
            return
    made, _ = make_convolution_pygraph(device_property=make_device_properties("h100"))
    made.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    print(f"{made.get_plan_name_at_index(0)}: built for an H100, {made.get_workspace_size()} bytes of workspace")


if __name__ == "__main__":
    main()
