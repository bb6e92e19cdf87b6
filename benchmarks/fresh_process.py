"""A fresh process to its first result: imports, cuDNN, plan, launch. ``python -m benchmarks run`` runs it.

PyTorch is imported, has used the GPU and has made the buffers before the clock starts.

    python fresh_process.py WAY --plan FILE --cudnn-frontend FOLDER

WAY is ``plan`` (built, or taken from the cache CUDNN_BACKEND_PLAN_CACHE names), ``load`` (from FILE), ``our-frontend``
(this package under cudnn-frontend's names) or ``cudnn-frontend``. Of the frontends the steps of making a plan are told,
and what the same plan costs when it is made again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from cudnn_backend_py.compare.frontend_graph import build
from cudnn_backend_py.compare.shapes import SMALL

WAYS = ("plan", "load", "our-frontend", "cudnn-frontend")
FRONTENDS = {"our-frontend": "cudnn_backend_py.frontend", "cudnn-frontend": "cudnn"}
Clock = Callable[[str], None]


def start_clock() -> tuple[dict[str, float], Clock]:
    """Return milliseconds by step, and what ends a step."""
    figures: dict[str, float] = {}
    last = time.perf_counter()

    def clock(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        figures[name] = (now - last) * 1e3
        last = now

    return figures, clock


def ours(way: str, plan_file: str, clock: Clock) -> Callable[..., None]:
    """Return what runs the plan of this package on q, k, v, o and stats."""
    from cudnn_backend_py.execution.executable import Executable
    from cudnn_backend_py.plans.plan import load_plan
    from cudnn_backend_py.target import open_target

    if way != "load":
        from cudnn_backend_py.plans.build import build as build_or_find
    clock("import")
    target = open_target()
    clock("open")
    plan = load_plan(plan_file, target) if way == "load" else build_or_find(SMALL.graph("forward", target), target)
    executable = Executable(plan)

    def run(*buffers: Any) -> None:
        executable(**dict(zip(("q", "k", "v", "o", "stats"), buffers, strict=True)))

    return run


def frontend(module: str, clock: Clock) -> tuple[Callable[..., None], Callable[[], dict[str, float]]]:
    """Return what runs the plan of a module with cudnn-frontend's names, and what tells the steps of making it."""
    cudnn = importlib.import_module(module)
    clock("import")
    handle = cudnn.create_handle()
    clock("open")
    steps, step = start_clock()
    graph, tensors = build(cudnn, handle, SMALL, "forward", step)
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)

    def run(*buffers: Any) -> None:
        graph.execute(dict(zip(tensors.values(), buffers, strict=True)), workspace, handle=handle)

    def told() -> dict[str, float]:
        again, clock = start_clock()
        for number in range(5):
            build(cudnn, handle, SMALL, "forward")
            clock(str(number))
        return {f"plan: {name}": ms for name, ms in steps.items()} | {"plan again": statistics.median(again.values())}

    return run, told


def main() -> None:
    """Measure, check the result, print a line of JSON with milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--plan", default="")
    parser.add_argument("--cudnn-frontend", default="")
    options = parser.parse_args()
    rows = SMALL.batch, SMALL.seq, SMALL.heads, SMALL.head_dim
    q, k, v, o = (torch.randn(rows, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(4))
    stats = torch.empty(SMALL.batch, SMALL.heads, SMALL.seq, 1, device="cuda")
    torch.cuda.synchronize()
    if options.way == "cudnn-frontend" and options.cudnn_frontend:
        sys.path.insert(0, options.cudnn_frontend)
    figures, clock = start_clock()
    if options.way in FRONTENDS:
        run, told = frontend(FRONTENDS[options.way], clock)
    else:
        run, told = ours(options.way, options.plan, clock), dict
    clock("plan")
    run(q, k, v, o, stats)
    torch.cuda.synchronize()
    clock("first run")
    figures["total"] = sum(figures.values())
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(o, want, atol=5e-3, rtol=3e-3)
    print(json.dumps(figures | told()))


if __name__ == "__main__":
    main()
