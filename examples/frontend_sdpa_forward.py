"""Causal attention, written for cudnn-frontend and run on this package: run with torch, or built for an H100.

    python examples/frontend_sdpa_forward.py
    cudnn-backend explain examples/frontend_sdpa_forward.py --target sm80 --target sm90

A program with ``import cudnn`` runs unchanged: ``python -m cudnn_backend_py.frontend PROGRAM``.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from cudnn_backend_py import Graph, find_profile
from cudnn_backend_py import frontend as cudnn

BATCH, HEADS, SEQUENCE, HEAD_DIM = 4, 12, 1024, 64
DIMS = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
STRIDES = (SEQUENCE * HEADS * HEAD_DIM, HEAD_DIM, HEADS * HEAD_DIM, 1)  # [b, s, h, d] in memory


def make_attention_pygraph(**where: Any) -> tuple[cudnn.pygraph, dict[str, cudnn.tensor]]:
    """Return the graph, not yet built, and its tensors; `where` is its target: a handle or device properties."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        **where,
    )
    q, k, v = (graph.tensor(name=name, dim=DIMS, stride=STRIDES) for name in ("q", "k", "v"))
    o, stats = graph.sdpa(
        name="sdpa",
        q=q,
        k=k,
        v=v,
        attn_scale=1 / math.sqrt(HEAD_DIM),
        generate_stats=True,
        use_causal_mask=True,
    )
    o.set_output(True).set_dim(DIMS).set_stride(STRIDES)
    stats.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    return graph, {"q": q, "k": k, "v": v, "o": o, "stats": stats}


def make_device_properties(name: str) -> Any:
    """Return the device properties of a described GPU."""
    return cudnn.create_device_properties(find_profile(name).json())


def graph() -> Graph:
    """Return the graph of this example, for an H100, as a `cudnn_backend_py.Graph`."""
    made, _ = make_attention_pygraph(device_property=make_device_properties("h100"))
    return made.graph()


def run() -> None:
    """Run the attention on the GPU of this process and compare with torch."""
    import torch

    handle = cudnn.create_handle()
    made, tensors = make_attention_pygraph(handle=handle)
    made.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    q, k, v, o = (torch.randn(BATCH, SEQUENCE, HEADS, HEAD_DIM).half().cuda().transpose(1, 2) for _ in range(4))
    stats = torch.empty(BATCH, HEADS, SEQUENCE, 1, device="cuda")
    workspace = torch.empty(made.get_workspace_size(), device="cuda", dtype=torch.uint8)
    pack = dict(zip(tensors.values(), (q, k, v, o, stats), strict=True))
    made.execute(pack, workspace, handle=handle)
    torch.cuda.synchronize()
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(o, want, atol=5e-3, rtol=3e-3)
    print(f"{made.get_plan_name_at_index(0)}: agrees with torch, largest difference {(o - want).abs().max():.2e}")


def main() -> None:
    """Run the attention if there are torch and a GPU; otherwise build its plan for an H100."""
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            run()
            return
    made, _ = make_attention_pygraph(device_property=make_device_properties("h100"))
    made.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    print(f"{made.get_plan_name_at_index(0)}: built for an H100, {made.get_workspace_size()} bytes of workspace")


if __name__ == "__main__":
    main()
