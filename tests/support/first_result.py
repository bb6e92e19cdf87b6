"""Print as JSON the needless modules that a process imports to build, and on a GPU to run, a frontend graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: Modules of the package that a program with one graph does not need, by prefix.
UNUSED_MODULES: dict[str, tuple[str, ...]] = {
    "": (
        *("cli", "command_line", "diagnose", "importers", "info", "interpreter", "testing", "torch_ops"),
        *("rewrite", "terminal", "tuning", "versions", "why"),
    ),
    "frontend.": (
        *("as_cudnn", "collect_env", "decorators", "described_torch", "experimental", "from_json", "serialize"),
        *("wrapper", "yarn"),
    ),
    "graph.": ("attention.shape_class", "attention.small", "serial"),
    "native.": ("environment", "environment_problems", "log", "prepare_kernel"),
    "plans.": ("build", "cache", "candidate", "kernels", "record", "refusals", "select"),
    "system.": ("after_import", "child", "private_folder"),
}
UNUSED_MODULE_NAMES = frozenset(room + name for room, names in UNUSED_MODULES.items() for name in names)
#: Slow modules of other packages that it does not need either. NumPy is needed for scalars.
SLOW_MODULES = frozenset(
    ("asyncio", "click", "importlib.metadata", "jinja2", "multiprocessing", "numpy.typing", "rich", "torch")
)


def list_unneeded_modules(modules: set[str]) -> list[str]:
    """Return the imported modules that a program with one graph does not need."""
    ours = [name.split(".")[1:] for name in modules if name.startswith("cudnn_backend_py.")]
    parts = {".".join(name[:depth]) for name in ours for depth in (1, 2, 3)}
    return sorted((parts & UNUSED_MODULE_NAMES) | (modules & SLOW_MODULES))


def main(device: str) -> None:
    """Build an attention graph for the device that a JSON file describes, or run it if `device` is "gpu"."""
    buffers: list[Any] = []
    if device == "gpu":
        import torch

        buffers = [torch.randn(1, 128, 2, 64, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(4)]
        buffers.append(torch.empty(1, 2, 128, 1, device="cuda"))
    before = set(sys.modules)
    import cudnn_backend_py.frontend as cudnn

    imported = set(sys.modules)
    where: dict[str, Any] = (
        {"handle": cudnn.create_handle()}
        if buffers
        else {"device_property": cudnn.create_device_properties(Path(device).read_text(encoding="utf-8"))}
    )
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, **where)
    place = {"dim": [1, 2, 128, 64], "stride": [16384, 64, 128, 1]}
    q, k, v = (graph.tensor(name=name, **place) for name in "qkv")
    o, stats = graph.sdpa(q=q, k=k, v=v, attn_scale=0.125, use_causal_mask=True, generate_stats=True)
    o.set_output(True).set_dim(place["dim"]).set_stride(place["stride"])
    stats.set_output(True).set_dim([1, 2, 128, 1]).set_stride([256, 128, 1, 1]).set_data_type(single)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    workspace = graph.get_workspace_size()
    found: dict[str, Any] = {
        "import": list_unneeded_modules(imported - before),
        "plan": list_unneeded_modules(set(sys.modules) - before),
    }
    if buffers:
        held = torch.empty(max(workspace, 1), device="cuda", dtype=torch.uint8)
        graph.execute(dict(zip((q, k, v, o, stats), buffers, strict=True)), held, handle=where["handle"])
        torch.cuda.synchronize()
        found["result"] = list_unneeded_modules(set(sys.modules) - before)
        want = torch.nn.functional.scaled_dot_product_attention(*buffers[:3], is_causal=True)
        torch.testing.assert_close(buffers[3], want, atol=5e-3, rtol=3e-3)
    print(json.dumps({**found, "workspace": workspace, "modules": len(set(sys.modules) - before)}))


if __name__ == "__main__":
    main(sys.argv[1])
