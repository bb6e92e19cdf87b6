"""Time from a fresh process to its first result: imports, cuDNN, plan, launch. ``python -m benchmarks run`` runs it.

Before the clock starts, PyTorch is imported, has used the GPU and has allocated the buffers.

    python fresh_process.py WAY --plan FILE --cudnn-frontend FOLDER --program FILE --library FILE --workspace BYTES

WAY is ``build`` (built and kept nowhere, as cudnn-frontend and C do), ``plan`` (built, or read from the cache in
CUDNN_BACKEND_PLAN_CACHE), ``load`` (from FILE), ``our-frontend`` (this package under cudnn-frontend's names),
``cudnn-frontend``, or ``c``: a compiled program, see ``c_calls.py``. For the frontends, the steps of building a plan
are reported, and the time of building the same plan again.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

ATTENTION_SIZES: dict[str, Any] = {
    "batch": 1,
    "heads": 2,
    "seq_q": 128,
    "head_dim": 64,
}  # same as problems.SMALL_PROBLEM, which would need imports
MODES = ("build", "plan", "load", "our-frontend", "cudnn-frontend", "c")
FRONTENDS = {"our-frontend": "cudnn_backend_py.frontend", "cudnn-frontend": "cudnn"}
StepClock = Callable[[str], None]


def start_clock() -> tuple[dict[str, float], StepClock]:
    """Return a dict of milliseconds by step, and a function that records the step that just ended under a name."""
    figures: dict[str, float] = {}
    last = time.perf_counter()

    def record_step_time(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        figures[name] = (now - last) * 1e3
        last = now

    return figures, record_step_time


def prepare_package_call(way: str, plan_file: str, clock: StepClock) -> Callable[..., None]:
    """Return a function that runs this package's plan on q, k, v, o and stats."""
    from cudnn_backend_py.execution.executable import Executable
    from cudnn_backend_py.plans.plan import load_plan
    from cudnn_backend_py.target import open_target

    if way != "load":
        from cudnn_backend_py.graph.attention import sdpa_forward
        from cudnn_backend_py.plans.build import build
    clock("import")
    target = open_target()
    clock("open")
    if way == "load":
        plan = load_plan(plan_file, target)
    else:
        graph = sdpa_forward(**ATTENTION_SIZES, causal=True, stats=True, version=target.library.version, sm=target.sm)
        plan = build(graph, target, cache=way == "plan")
    executable = Executable(plan)

    def run(*buffers: Any) -> None:
        executable(**dict(zip(("q", "k", "v", "o", "stats"), buffers, strict=True)))

    return run


def build_by_frontend(cudnn: Any, handle: Any, clock: StepClock = lambda _: None) -> tuple[Any, list[Any]]:
    """Return the built graph and its tensors q, k, v, o and stats; `clock` is called with the name of each step."""
    b, h, s, d = ATTENTION_SIZES.values()
    memory = {"dim": [b, h, s, d], "stride": [s * h * d, d, h * d, 1]}
    kinds = cudnn.data_type
    graph = cudnn.pygraph(
        io_data_type=kinds.HALF,
        intermediate_data_type=kinds.FLOAT,
        compute_data_type=kinds.FLOAT,
        handle=handle,
    )
    inputs = {name: graph.tensor(name=name, **memory) for name in "qkv"}
    o, stats = graph.sdpa(**inputs, generate_stats=True, attn_scale=d**-0.5, use_causal_mask=True)
    o.set_output(True).set_dim(memory["dim"]).set_stride(memory["stride"])
    stats.set_output(True).set_dim([b, h, s, 1]).set_stride([h * s, s, 1, 1]).set_data_type(kinds.FLOAT)
    graph.validate()
    clock("validate")
    graph.build_operation_graph()
    clock("operation graph")
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    clock("heuristics")
    graph.build_plans()
    clock("build plans")
    return graph, [*inputs.values(), o, stats]


def prepare_frontend_call(module: str, clock: StepClock) -> tuple[Callable[..., None], Callable[[], dict[str, float]]]:
    """Return a function that runs a frontend module's plan, and one that reports the time of each build step."""
    cudnn = importlib.import_module(module)
    clock("import")
    handle = cudnn.create_handle()
    clock("open")
    steps, step = start_clock()
    graph, tensors = build_by_frontend(cudnn, handle, step)
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)

    def run(*buffers: Any) -> None:
        graph.execute(dict(zip(tensors, buffers, strict=True)), workspace, handle=handle)

    def get_build_step_times() -> dict[str, float]:
        again, clock = start_clock()
        for number in range(5):
            build_by_frontend(cudnn, handle)
            clock(str(number))
        return {f"plan: {name}": ms for name, ms in steps.items()} | {"plan again": statistics.median(again.values())}

    return run, get_build_step_times


def prepare_c_program(program: str, library: str, workspace_bytes: int, clock: StepClock) -> Callable[..., None]:
    """Return a function that runs the plan of a C program on q, k, v, o and stats."""
    calls = ctypes.CDLL(program)
    clock("import")
    assert calls.load(library.encode()) == 0
    assert calls.open() == 0
    clock("open")
    calls.plan()
    workspace = torch.empty(max(workspace_bytes, 1), device="cuda", dtype=torch.uint8)

    def run(*buffers: Any) -> None:
        pointers = (ctypes.c_void_p * len(buffers))(*(buffer.data_ptr() for buffer in buffers))
        assert calls.run(pointers, ctypes.c_void_p(workspace.data_ptr())) == 0

    return run


def main() -> None:
    """Measure, check the result, and print milliseconds by step as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=MODES)
    parser.add_argument("--plan", default="")
    parser.add_argument("--cudnn-frontend", default="")
    parser.add_argument("--program", default="")
    parser.add_argument("--library", default="")
    parser.add_argument("--workspace", type=int, default=0)
    options = parser.parse_args()
    b, h, s, d = ATTENTION_SIZES.values()
    q, k, v, o = (torch.randn(b, s, h, d, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(4))
    stats = torch.empty(b, h, s, 1, device="cuda")
    torch.cuda.synchronize()
    if options.way == "cudnn-frontend" and options.cudnn_frontend:
        sys.path.insert(0, options.cudnn_frontend)
    gc.collect()  # of the objects of PyTorch's import: the collection takes longer than an import that would cause it
    figures, clock = start_clock()
    report_steps: Callable[[], dict[str, float]] = dict
    if options.way in FRONTENDS:
        run, report_steps = prepare_frontend_call(FRONTENDS[options.way], clock)
    elif options.way == "c":
        run = prepare_c_program(options.program, options.library, options.workspace, clock)
    else:
        run = prepare_package_call(options.way, options.plan, clock)
    clock("plan")
    run(q, k, v, o, stats)
    torch.cuda.synchronize()
    clock("first run")
    figures["total"] = sum(figures.values())
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(o, want, atol=5e-3, rtol=3e-3)
    print(json.dumps(figures | report_steps()))


if __name__ == "__main__":
    main()
