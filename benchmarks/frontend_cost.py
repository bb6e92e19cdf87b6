"""First build and cost per call of an attention graph: this package's frontend beside cudnn-frontend, on a GPU.

Each round is a fresh process per module, the modules take turns. PyTorch is imported and has used the GPU before any
clock starts; cudnn-frontend must be importable as ``cudnn`` (or lie in the folder given).

    python benchmarks/frontend_cost.py --cudnn-frontend FOLDER --output logs/frontend-cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudnn_backend_py.bench.frontend_graph import build
from cudnn_backend_py.bench.shapes import SMALL

B, H, S, D = SMALL.batch, SMALL.heads, SMALL.seq, SMALL.head_dim
CALLS, BATCHES, BUFFERS = 200, 25, 400
MODULES = ("ours", "cudnn-frontend")


def per_call(call: Callable[[int], None], synchronize: Callable[[], None]) -> float:
    """Return the median microseconds of host time per call over batches."""
    times = []
    for batch in range(BATCHES):
        synchronize()
        start = time.perf_counter()
        for index in range(CALLS):
            call(batch * CALLS + index)
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    synchronize()
    return statistics.median(times[3:])


def child(module: str) -> None:
    """Measure one module in this process and print the figures."""
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    figures: dict[str, float] = {}
    start = last = time.perf_counter()

    def clock(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        figures[name] = round((now - last) * 1e3, 3)
        last = now

    if module == "ours":
        import cudnn_backend_py.frontend

        cudnn_backend_py.frontend.install()
    import cudnn

    clock("import")
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    clock("handle")
    graph, named = build(cudnn, handle, SMALL, "forward", clock)
    tensors = list(named.values())

    def buffers() -> list[Any]:
        q, k, v, o = (torch.randn(B, S, H, D, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(4))
        return [q, k, v, o, torch.empty(B, H, S, 1, device="cuda")]

    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    first = dict(zip(tensors, buffers(), strict=True))
    clock("buffers")
    graph.execute(first, workspace, handle=handle)
    torch.cuda.synchronize()
    clock("first execute")
    figures["fresh process to first result"] = round((last - start) * 1e3 - figures["buffers"], 3)
    q, k, v, o, _ = first.values()
    reference = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(o, reference, atol=5e-3, rtol=3e-3)

    packs = [dict(zip(tensors, buffers(), strict=True)) for _ in range(BUFFERS)]
    figures["same pointers"] = per_call(
        lambda _: graph.execute(first, workspace, handle=handle), torch.cuda.synchronize
    )
    figures["fresh pointers"] = per_call(
        lambda index: graph.execute(packs[index % BUFFERS], workspace, handle=handle), torch.cuda.synchronize
    )
    again = []
    for _ in range(5):
        begin = time.perf_counter()
        build(cudnn, handle, SMALL, "forward")
        again.append((time.perf_counter() - begin) * 1e3)
    figures["later build"] = statistics.median(again)
    about = {"version": cudnn.__version__, "cudnn": cudnn.backend_version(), "gpu": torch.cuda.get_device_name()}
    print(json.dumps({"figures": figures, "about": about}))


def measure(module: str, folder: str | None) -> dict[str, Any]:
    """Run a fresh process and return its figures."""
    environment = dict(os.environ)
    if module != "ours" and folder:
        environment["PYTHONPATH"] = os.pathsep.join([folder, environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--child", module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{module} failed\n{done.stdout}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure, print a table, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", choices=MODULES)
    parser.add_argument("--cudnn-frontend", default=None, help="folder that holds its package 'cudnn'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    runs: dict[str, list[dict[str, Any]]] = {module: [] for module in MODULES}
    for index in range(options.rounds):
        for module in MODULES if index % 2 else reversed(MODULES):
            runs[module].append(measure(module, options.cudnn_frontend))
    table = {
        name: {
            module: {
                "median": round(statistics.median(values), 3),
                "min": round(min(values), 3),
                "max": round(max(values), 3),
            }
            for module in MODULES
            if (values := [run["figures"][name] for run in runs[module]])
        }
        for name in runs["ours"][0]["figures"]
    }
    record = {
        "schema": "cudnn-backend-py/frontend-cost",
        "version": 1,
        "problem": f"b{B} h{H} s{S} d{D} f16 causal forward with statistics",
        "units": "milliseconds; microseconds of host time per call for 'same pointers' and 'fresh pointers'",
        "rounds": options.rounds,
        "modules": {module: runs[module][0]["about"] for module in MODULES},
        "commit": os.environ.get("CUDNN_BACKEND_COMMIT", "unknown"),
        "figures": table,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, row in table.items():
        print(f"{name:32}" + "".join(f"{module:>16} {row[module]['median']:9.2f}" for module in MODULES))


if __name__ == "__main__":
    main()
