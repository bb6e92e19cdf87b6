"""``cudnn-backend bench``: what calls, kernels and fresh processes cost, beside cudnn-frontend and torch.

Everything is measured in one run, the contenders take turns, and what is told are medians with quartiles. It needs a
GPU and torch; cudnn-frontend and matplotlib are used where they are. Two parts live in the folder ``benchmarks`` of the
repository and are left out where that is not: ``c_loop.c``, the floor of a call, and ``first_result.py``, what a fresh
process does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from . import torch_ops
from .bound import Bound, Executable
from .errors import CudnnBackendError, EnvironmentNotReady
from .generated.enums import DataType, KnobType
from .graph import Graph
from .graph.attention import sdpa_backward, sdpa_forward
from .info import collect_info
from .planning import build, shared_target
from .plans import Plan
from .target import Target
from .tuning import Timing, autotune

__all__ = ["ACCEPTED", "SHAPES", "Shape", "judge", "run_bench"]

ENVIRONMENT = ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/bench", 1
FOLDER = Path(__file__).parents[1] / "benchmarks"
C_SOURCE, FIRST_RESULT = FOLDER / "c_loop.c", FOLDER / "first_result.py"
Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TOKENS = 16384  # batch x s of the shapes whose GPU time is taken
NOISE = 0.02  # a difference of less than this share, or than the quartiles, is none
# What a fresh process does, and the way of first_result.py.
CHILDREN = {"cold": "plan", "disk cache": "plan", "ahead of time": "load", "cudnn-frontend": "cudnn-frontend"}


@dataclass(frozen=True)
class Shape:
    """An attention problem; all tensors lie as b, s, h, d."""

    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: bool = False
    bf16: bool = False
    kv_heads: int = 0

    @property
    def name(self) -> str:
        """Short text such as ``b1 h16/4 s16384 d128 causal bf16``."""
        heads = f"{self.heads}/{self.kv_heads}" if self.kv_heads else str(self.heads)
        kind = "bf16" if self.bf16 else "f16"
        return f"b{self.batch} h{heads} s{self.seq} d{self.head_dim}{' causal' if self.causal else ''} {kind}"

    def flops(self, direction: Direction) -> float:
        """Return the floating-point operations as FlashAttention counts them; masked halves are not counted."""
        one_way = 4.0 * self.batch * self.heads * self.seq**2 * self.head_dim / (2 if self.causal else 1)
        return one_way * (2.5 if direction == "backward" else 1.0)

    def graph(self, direction: Direction, target: Target) -> Graph:
        """Return the graph for the cuDNN version and the architecture of a target."""
        make = sdpa_backward if direction == "backward" else sdpa_forward
        return make(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads or None,
            seq_q=self.seq,
            head_dim=self.head_dim,
            causal=self.causal,
            data_type=DataType.BFLOAT16 if self.bf16 else DataType.HALF,
            stats=direction == "forward",
            version=target.library.version,
            sm=target.sm,
        )


SMALL = Shape(1, 2, 128, 64, causal=True)


def _large(seq: int, head_dim: int, causal: bool, bf16: bool, kv_heads: int = 0) -> Shape:
    return Shape(TOKENS // seq, 2048 // head_dim, seq, head_dim, causal, bf16, kv_heads)


SHAPES: tuple[Shape, ...] = (
    *(
        _large(seq, head_dim, causal, bf16=(head_dim == 128) == causal)
        for head_dim in (64, 128)
        for causal in (True, False)
        for seq in (512, 2048, 4096, 16384)
    ),
    _large(1024, 128, True, True, kv_heads=4),
    _large(8192, 128, True, True, kv_heads=4),
    _large(8192, 128, False, False, kv_heads=2),
    _large(8192, 64, True, False, kv_heads=8),
)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    shapes: tuple[Shape, ...] = SHAPES
    gpu_rounds: int = 21
    tuning_s: float = 3.0
    host_batches: int = 25
    host_calls: int = 100
    children: int = 7


FULL = Effort()
QUICK = Effort((SHAPES[1], SHAPES[12], SHAPES[17]), gpu_rounds=9, tuning_s=1.5, host_batches=13, children=1)


# measuring: contenders take turns


def _microseconds(timing: Timing) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(timing).items()}


def gpu_times(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Return the GPU times between two events, L2 flushed before each, in the order of the contenders."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(3):
            call()
    for number in range(rounds):
        events = {}
        for name in _turned(list(contenders), number):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(2):  # long enough that the host has queued the launch before the GPU comes to it
                flush.zero_()
            start.record()
            contenders[name]()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(start.elapsed_time(end) * 1e3)
    return {name: Timing.of(found) for name, found in times.items()}


def host_times(contenders: Mapping[str, Callable[[int, int], float]], effort: Effort) -> dict[str, Timing]:
    """Return host microseconds per call; a contender gets a batch number and how many calls to make.

    It returns the nanoseconds they took. The first batches warm up.
    """
    import torch

    times: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    try:
        for batch in range(effort.host_batches):
            for name in _turned(list(contenders), batch):
                torch.cuda.synchronize()
                nanoseconds = contenders[name](batch, effort.host_calls)
                if batch >= 3:
                    times[name].append(nanoseconds / effort.host_calls / 1e3)
        torch.cuda.synchronize()
    finally:
        gc.enable()
    return {name: Timing.of(found) for name, found in times.items()}


def _turned(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def same(call: Callable[[], Any]) -> Callable[[int, int], float]:
    """Return a contender that makes the same call again and again."""

    def run(_batch: int, calls: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return time.perf_counter_ns() - start

    return run


def fresh(call: Callable[..., Any], sets: Sequence[Any]) -> Callable[[int, int], float]:
    """Return a contender that makes each call with another set of arguments."""

    def run(batch: int, calls: int) -> float:
        mine = sets[batch * calls : (batch + 1) * calls]
        start = time.perf_counter_ns()
        for arguments in mine:
            call(*arguments)
        return time.perf_counter_ns() - start

    return run


# buffers


def make_buffers(shape: Shape, direction: Direction, sets: int = 1) -> list[dict[str, Any]]:
    """Return sets of torch tensors by their names in our graphs, none of which share memory; the first has values."""
    import torch

    kind = torch.bfloat16 if shape.bf16 else torch.float16
    heads = dict.fromkeys(("k", "v", "dk", "dv"), shape.kv_heads or shape.heads)
    names = ("q", "k", "v", "o") if direction == "forward" else ("q", "k", "v", "o", "do", "dq", "dk", "dv")
    wholes = {}
    for name in names:
        size = (sets, shape.batch, shape.seq, heads.get(name, shape.heads), shape.head_dim)
        wholes[name] = torch.zeros(size, dtype=kind, device="cuda")
    wholes["stats"] = torch.zeros((sets, shape.batch, shape.heads, shape.seq, 1), device="cuda")
    for name in ("q", "k", "v", "do"):
        if name in wholes:
            wholes[name][0].normal_()
    return [
        {name: whole[index] if name == "stats" else whole[index].transpose(1, 2) for name, whole in wholes.items()}
        for index in range(sets)
    ]


def fill_forward(shape: Shape, buffers: Mapping[str, Any]) -> None:
    """Write ``o`` and ``stats`` for a backward pass by torch's operator of this package."""
    q, k, v = (buffers[name] for name in "qkv")
    o, stats = torch_ops.attention(q, k, v, causal=shape.causal, return_stats=True)
    buffers["o"].copy_(o)
    buffers["stats"].copy_(stats)


# contenders


class _Frontend:
    """cudnn-frontend: graphs, and calls on them."""

    def __init__(self, folder: str | None) -> None:
        if folder:
            sys.path.insert(0, folder)
        self.cudnn: Any = importlib.import_module("cudnn")
        if "cudnn_backend_py" in str(self.cudnn.__file__):
            raise ImportError("the module cudnn is this package's own")
        self.handle = self.cudnn.create_handle()

    def build(self, shape: Shape, direction: Direction) -> tuple[Any, dict[str, Any]]:
        """Return a built graph and its tensors, by the names of our graphs."""
        cudnn = self.cudnn
        kind = cudnn.data_type.BFLOAT16 if shape.bf16 else cudnn.data_type.HALF
        graph = cudnn.pygraph(
            io_data_type=kind,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=self.handle,
        )

        def facts(name: str) -> dict[str, list[int]]:
            heads = shape.kv_heads or shape.heads if name in ("k", "v", "dk", "dv") else shape.heads
            s, d = shape.seq, shape.head_dim
            return {"dim": [shape.batch, heads, s, d], "stride": [s * heads * d, d, heads * d, 1]}

        rows = {
            "dim": [shape.batch, shape.heads, shape.seq, 1],
            "stride": [shape.heads * shape.seq, shape.seq, 1, 1],
        }
        tensors = {name: graph.tensor(name=name, **facts(name)) for name in "qkv"}
        options = {"attn_scale": shape.head_dim**-0.5, "use_causal_mask": shape.causal}
        if direction == "forward":
            tensors["o"], tensors["stats"] = graph.sdpa(**tensors, generate_stats=True, **options)
            outputs = {"o": facts("o"), "stats": rows}
        else:
            tensors |= {name: graph.tensor(name=name, **facts(name)) for name in ("o", "do")}
            tensors["stats"] = graph.tensor(name="stats", data_type=cudnn.data_type.FLOAT, **rows)
            given = {"dO" if name == "do" else name: made for name, made in tensors.items()}
            tensors |= zip(("dq", "dk", "dv"), graph.sdpa_backward(**given, **options), strict=True)
            outputs = {name: facts(name) for name in ("dq", "dk", "dv")}
        for name, where in outputs.items():
            tensors[name].set_output(True).set_dim(where["dim"]).set_stride(where["stride"])
            if name == "stats":
                tensors[name].set_data_type(cudnn.data_type.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        return graph, tensors

    def call(self, graph: Any, tensors: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        """Return what makes the arguments of ``graph.execute`` from buffers by name."""
        import torch

        workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
        return lambda buffers: ({made: buffers[name] for name, made in tensors.items()}, workspace, self.handle)


def open_frontend(folder: str | None) -> tuple[_Frontend | None, str]:
    """Return cudnn-frontend, or None, and what there is to say of it."""
    try:
        frontend = _Frontend(folder)
    except Exception as error:  # whatever its import or its handle raises
        return None, f"not measured: {error}"
    return frontend, f"{frontend.cudnn.__version__}, cuDNN {frontend.cudnn.backend_version()}"


TORCH_BACKENDS = {
    "torch cudnn": "CUDNN_ATTENTION",
    "torch flash": "FLASH_ATTENTION",
    "torch efficient": "EFFICIENT_ATTENTION",
}


def torch_calls(
    shape: Shape, direction: Direction, buffers: Mapping[str, Any], names: Sequence[str] = tuple(TORCH_BACKENDS)
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, call, context to make it in) for each backend of torch that takes the problem."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (buffers[name].detach().clone() for name in "qkv")
    for name in names:
        backend = TORCH_BACKENDS[name]
        if not hasattr(SDPBackend, backend):
            continue
        context = partial(sdpa_kernel, getattr(SDPBackend, backend))
        call = partial(sdpa, q, k, v, is_causal=shape.causal, enable_gqa=bool(shape.kv_heads))
        try:
            with context():
                made = _differentiated(call, (q, k, v), buffers) if direction == "backward" else call
                made()
        except RuntimeError:  # that backend does not take the problem, or this GPU
            continue
        yield name, made, context


def _differentiated(call: Callable[[], Any], inputs: tuple[Any, ...], buffers: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the backward pass of a call, whose forward pass is made now."""
    import torch

    for x in inputs:
        x.requires_grad_(True)
    o = call()
    return partial(torch.autograd.grad, o, inputs, buffers["do"], retain_graph=True)


def _within(context: Callable[[], Any], call: Callable[[], Any]) -> Callable[[int, int], float]:
    timed = same(call)

    def run(batch: int, calls: int) -> float:
        with context():
            return timed(batch, calls)

    return run


# host time per call


def load_c_loop(folder: str) -> tuple[Any, str]:
    """Compile ``benchmarks/c_loop.c`` into a folder; return its function, or None, and what there is to say of it."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None or not C_SOURCE.is_file():
        missing = "no C compiler" if compiler is None else f"{C_SOURCE} is not there"
        return None, f"not measured: {missing}"
    made = Path(folder) / "c_loop.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(C_SOURCE)], check=True)
    function = ctypes.CDLL(str(made)).c_loop
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, pointer, pointer, ctypes.POINTER(pointer), number, number]
    function.restype = number
    return function, compiler


def c_loop(function: Any, bound: Bound) -> Callable[[int, int], float]:
    """Return the floor: a C loop over the plan, the handle and the variant pack of a bound call."""
    function_of_cudnn, (handle, plan, pack) = bound.native
    execute = ctypes.cast(function_of_cudnn, ctypes.c_void_p)
    packs = (ctypes.c_void_p * 1)(pack.value)

    def run(_batch: int, calls: int) -> float:
        nanoseconds = int(function(execute, handle, plan, packs, 1, calls))
        if nanoseconds < 0:
            raise CudnnBackendError(f"cudnnBackendExecute answered {-nanoseconds} in the C loop", code="bench-c-loop")
        return nanoseconds

    return run


def bench_host(target: Target, frontend: _Frontend | None, effort: Effort) -> dict[str, Any]:
    """Return host microseconds per call of a small problem, by direction and contender."""
    with tempfile.TemporaryDirectory() as folder:
        function, said = load_c_loop(folder)
        found: dict[str, Any] = {"problem": SMALL.name, "c loop": said}
        for direction in DIRECTIONS:
            contenders = _host_contenders(direction, target, frontend, function, effort)
            times = host_times(contenders, effort)
            found[direction] = {name: _microseconds(timing) for name, timing in times.items()}
    return found


def _host_contenders(
    direction: Direction, target: Target, frontend: _Frontend | None, function: Any, effort: Effort
) -> dict[str, Callable[[int, int], float]]:
    import torch

    sets = make_buffers(SMALL, direction, effort.host_batches * effort.host_calls)
    first = sets[0]
    if direction == "backward":
        fill_forward(SMALL, first)
    executable = Executable(build(SMALL.graph(direction, target), target))
    order = executable.names
    bound = executable.bind(**{name: first[name] for name in order})
    contenders = {} if function is None else {"C loop": c_loop(function, bound)}
    contenders["same pointers"] = same(bound)
    contenders["same buffers, by position"] = same(partial(executable, *(first[name] for name in order)))
    contenders["fresh pointers"] = fresh(executable, [tuple(one[name] for name in order) for one in sets])
    try:
        contenders["CUDA graph"] = same(executable.cuda_graph(**{name: first[name] for name in order}).launch)
    except CudnnBackendError as error:
        print(f"CUDA graph not measured: {error}", file=sys.stderr)
    if frontend is not None:
        graph, tensors = frontend.build(SMALL, direction)
        arguments = frontend.call(graph, tensors)
        contenders["cudnn-frontend, same"] = same(partial(graph.execute, *arguments(first)))
        contenders["cudnn-frontend, fresh"] = fresh(graph.execute, [arguments(one) for one in sets])
    q, k, v = (first[name].detach().clone() for name in "qkv")
    operator: Callable[[], Any] = partial(torch_ops.attention, q, k, v, causal=True)
    if direction == "backward":
        operator = _differentiated(operator, (q, k, v), first)
    contenders["torch operator"] = same(operator)
    for name, call, context in torch_calls(SMALL, direction, first):
        contenders[name] = _within(context, call)
    torch.cuda.synchronize()
    return contenders


# GPU time


def bench_gpu(target: Target, frontend: _Frontend | None, effort: Effort, console: Console) -> list[dict[str, Any]]:
    """Return a row per shape and direction: plans, GPU times by contender."""
    rows = []
    for shape in effort.shapes:
        for direction in DIRECTIONS:
            console.print(f"GPU time: {shape.name} {direction}", style="dim", highlight=False)
            rows.append(_gpu_row(shape, direction, target, frontend, effort))
    return rows


def _gpu_row(
    shape: Shape, direction: Direction, target: Target, frontend: _Frontend | None, effort: Effort
) -> dict[str, Any]:
    (buffers,) = make_buffers(shape, direction)
    if direction == "backward":
        fill_forward(shape, buffers)
    graph = shape.graph(direction, target)
    plans: dict[str, Plan] = {"ours": build(graph, target)}
    # Without the cache: the candidates are timed in this run.
    by_key: dict[str | int, Any] = dict(buffers.items())
    tuned = autotune(graph, target, buffers=by_key, budget_s=effort.tuning_s, cache=False)
    plans["ours, autotuned"] = tuned.plan
    row: dict[str, Any] = {"shape": shape.name, "direction": direction, "flops": shape.flops(direction)}
    contenders: dict[str, Callable[[], Any]] = {}
    if frontend is not None:
        theirs, tensors = frontend.build(shape, direction)
        contenders["cudnn-frontend"] = partial(theirs.execute, *frontend.call(theirs, tensors)(buffers))
        row["frontend_plan"] = theirs.get_plan_name_at_index(0)
        if row["frontend_plan"] != plans["ours"].tag:
            plans |= _plan_of_tag(graph, target, row["frontend_plan"])
    for name, plan in plans.items():
        executable = Executable(plan)
        contenders[name] = executable.bind(**{name: buffers[name] for name in executable.names})
    for name, call, context in torch_calls(shape, direction, buffers, ["torch flash"]):
        contenders[name] = _call_within(context, call)
    times = gpu_times(contenders, effort.gpu_rounds)
    row["plans"] = {name: plan.tag for name, plan in plans.items()}
    row["us"] = {name: _microseconds(timing) for name, timing in times.items()}
    row["tflops"] = {name: round(row["flops"] / timing.median_us / 1e6, 1) for name, timing in times.items()}
    return row


def _call_within(context: Callable[[], Any], call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with context():
            call()

    return run


def parse_tag(tag: str) -> tuple[int, dict[KnobType | int, int]]:
    """Return engine and knobs of a tag such as ``eng4_k24=7``.

    Raises
    ------
    ValueError
        If it is none.
    """
    engine, *knobs = tag.split("_")
    pairs = (knob.removeprefix("k").split("=") for knob in knobs)
    known = set(map(int, KnobType))
    chosen = {(KnobType(int(knob)) if int(knob) in known else int(knob)): int(value) for knob, value in pairs}
    return int(engine.removeprefix("eng")), chosen


def _plan_of_tag(graph: Graph, target: Target, tag: str) -> dict[str, Plan]:
    """Return our plan of cudnn-frontend's engine config, if it can be built."""
    try:
        engine, knobs = parse_tag(tag)
        return {"ours, frontend's plan": build(graph, target, engine=engine, knobs=knobs)}
    except (ValueError, CudnnBackendError):
        return {}


def matrix_tflops() -> float:
    """Return the TFLOP/s of a large bfloat16 matrix product of torch."""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    timing = gpu_times({"matmul": lambda: torch.matmul(a, b, out=out)}, 15)["matmul"]
    return round(2.0 * size**3 / timing.median_us / 1e6, 1)


# fresh processes


def bench_fresh(target: Target, frontend_folder: str | None, effort: Effort) -> dict[str, dict[str, float]]:
    """Return milliseconds from a fresh process to its first result, importing torch left out, by way and step.

    The steps are those of the run in the middle; ``frontend_folder`` None leaves cudnn-frontend out.
    """
    if not FIRST_RESULT.is_file():
        return {}
    ways = [way for way in CHILDREN if frontend_folder is not None or way != "cudnn-frontend"]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        plan, warm = Path(folder) / "ahead.plan", Path(folder) / "warm"
        build(SMALL.graph("forward", target), target, cache=False).save(plan)
        _child("disk cache", plan, warm, frontend_folder)  # fills the cache
        for number in range(effort.children):
            for way in _turned(ways, number):
                cache = warm if way == "disk cache" else Path(folder) / f"empty {way} {number}"
                runs[way].append(_child(way, plan, cache, frontend_folder))
    return {way: _middle(found) for way, found in runs.items()}


def _middle(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the run with the median of the totals, and the spread of these."""
    ordered = sorted(runs, key=lambda run: run["total"])
    figures = ordered[len(ordered) // 2] | {"min": ordered[0]["total"], "max": ordered[-1]["total"]}
    return {name: round(value, 2) for name, value in figures.items()}


def _child(way: str, plan: Path, cache: Path, frontend_folder: str | None) -> dict[str, float]:
    """Run a fresh process with a folder for its cached plans; return its figures."""
    command = [sys.executable, str(FIRST_RESULT), CHILDREN[way], "--plan", str(plan)]
    command += ["--cudnn-frontend", frontend_folder or ""]
    cache.mkdir(exist_ok=True, mode=0o700)
    paths = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, "CUDNN_BACKEND_PLAN_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CudnnBackendError(f"a fresh process ({way}) failed", code="bench-child", more=done.stderr[-4000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# what is accepted


@dataclass(frozen=True)
class Accepted:
    """A figure that must not exceed a limit; None where it was not measured."""

    name: str
    limit: float
    figure: Callable[[Mapping[str, Any]], float | None]


def _host_ratio(record: Mapping[str, Any], direction: str, name: str, other: str) -> float | None:
    found = record["host"].get(direction, {})
    if name not in found or other not in found:
        return None
    return float(found[name]["median_us"] / found[other]["median_us"])


def _slower(record: Mapping[str, Any], name: str, other: str, *, either_way: bool = False) -> float | None:
    """Return how many shapes are slower than `other` beyond noise; either way: or faster."""
    rows = [row["us"] for row in record["gpu"] if name in row["us"] and other in row["us"]]
    if not rows:
        return None
    return float(sum(_differs(row[name], row[other], either_way) for row in rows))


def _differs(mine: Mapping[str, float], other: Mapping[str, float], either_way: bool) -> bool:
    spread = (mine["high_us"] - mine["low_us"] + other["high_us"] - other["low_us"]) / 2
    difference = mine["median_us"] - other["median_us"]
    return (abs(difference) if either_way else difference) > max(spread, NOISE * other["median_us"])


def _against_frontend(record: Mapping[str, Any]) -> float | None:
    """Return how many shapes differ from cudnn-frontend for the same plan."""
    rows = []
    for row in record["gpu"]:
        us, tags = row["us"], row["plans"]
        same_plan = [name for name in tags if name in us and tags[name] == row.get("frontend_plan")]
        if same_plan and "cudnn-frontend" in us:
            rows.append((us[same_plan[0]], us["cudnn-frontend"]))
    return float(sum(_differs(mine, other, True) for mine, other in rows)) if rows else None


def _fresh_ratio(record: Mapping[str, Any], name: str, other: str) -> float | None:
    found = record["fresh"]
    return float(found[name]["total"] / found[other]["total"]) if name in found and other in found else None


def _accepted() -> Iterator[Accepted]:
    ratios = (
        ("same pointers", "C loop", 1.15),
        ("same pointers", "cudnn-frontend, same", 0.55),
        ("fresh pointers", "cudnn-frontend, fresh", 0.75),
        ("CUDA graph", "same pointers", 0.7),
    )
    for direction in DIRECTIONS:
        for name, other, limit in ratios:
            figure = partial(_host_ratio, direction=direction, name=name, other=other)
            yield Accepted(f"host, {direction}: {name} / {other}", limit, figure)
    yield Accepted("GPU: shapes that differ from cudnn-frontend, same plan", 0, _against_frontend)
    yield Accepted(
        "GPU: shapes where autotuned is slower than the first choice",
        0,
        partial(_slower, name="ours, autotuned", other="ours"),
    )
    yield Accepted(
        "fresh process: ahead of time / cudnn-frontend",
        0.5,
        partial(_fresh_ratio, name="ahead of time", other="cudnn-frontend"),
    )


ACCEPTED: tuple[Accepted, ...] = tuple(_accepted())


def judge(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each figure its value, limit and whether it passed; None for what was not measured."""
    found = []
    for item in ACCEPTED:
        value = item.figure(record)
        passed = None if value is None else value <= item.limit
        found.append({"name": item.name, "value": value and round(value, 3), "limit": item.limit, "passed": passed})
    return found


# telling


def host_table(record: Mapping[str, Any]) -> Table:
    """Return the table of host time per call."""
    table = Table(title=f"Host time per call, microseconds ({record['host']['problem']})")
    table.add_column("")
    for direction in DIRECTIONS:
        table.add_column(direction, justify="right")
        table.add_column("quartiles", justify="right", style="dim")
    names = dict.fromkeys(name for direction in DIRECTIONS for name in record["host"][direction])
    for name in names:
        cells = []
        for direction in DIRECTIONS:
            timing = record["host"][direction].get(name)
            cells += ["", ""] if timing is None else [f"{timing['median_us']:.2f}", _quartiles(timing)]
        table.add_row(name, *cells)
    return table


def _quartiles(timing: Mapping[str, float]) -> str:
    return f"{timing['low_us']:.2f} to {timing['high_us']:.2f}"


def gpu_table(record: Mapping[str, Any]) -> Table:
    """Return the table of GPU times."""
    names = list(dict.fromkeys(name for row in record["gpu"] for name in row["us"]))
    table = Table(title=f"GPU time, microseconds (TFLOP/s); matrix product {record['matrix_tflops']} TFLOP/s")
    table.add_column("")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("gain by tuning", justify="right")
    for row in record["gpu"]:
        cells = [
            f"{row['us'][name]['median_us']:.1f} ({row['tflops'][name]:.0f})" if name in row["us"] else ""
            for name in names
        ]
        gain = row["us"]["ours"]["median_us"] / row["us"]["ours, autotuned"]["median_us"] - 1
        table.add_row(row["shape"], row["direction"], *cells, f"{gain:+.1%}")
    return table


def fresh_table(record: Mapping[str, Any]) -> Table:
    """Return the table of fresh processes."""
    table = Table(title="Fresh process to first result, milliseconds, importing torch left out")
    names = list(next(iter(record["fresh"].values()), ()))
    for name in ("", *names):
        table.add_column(name, justify="left" if not name else "right")
    for way, figures in record["fresh"].items():
        table.add_row(way, *(f"{figures[name]:.1f}" for name in names))
    return table


def verdict_lines(record: Mapping[str, Any]) -> list[str]:
    """Return a line per figure that is judged: pass, fail, or not measured."""
    words = {True: "pass", False: "FAIL", None: "not measured"}
    lines = []
    for item in record["accepted"]:
        value = "" if item["value"] is None else f"{item['value']:g}, "
        lines.append(f"{words[item['passed']]}: {item['name']}: {value}at most {item['limit']:g}")
    return lines


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Write a picture of TFLOP/s by shape; the ending of the path says its format.

    Raises
    ------
    EnvironmentNotReady
        ``matplotlib-missing``.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentNotReady(
            "drawing the figures needs matplotlib",
            code="matplotlib-missing",
            cause=str(error),
            fix="pip install matplotlib, or leave --plot out",
        ) from None
    figure = Figure(figsize=(11, 8), layout="constrained")
    for axes, direction in zip(figure.subplots(2, 1), DIRECTIONS, strict=True):
        rows = [row for row in record["gpu"] if row["direction"] == direction]
        names = list(dict.fromkeys(name for row in rows for name in row["tflops"]))
        width = 0.8 / max(1, len(names))
        for number, name in enumerate(names):
            held = [(index, row["tflops"][name]) for index, row in enumerate(rows) if name in row["tflops"]]
            axes.bar([index + number * width for index, _ in held], [y for _, y in held], width, label=name)
        axes.axhline(record["matrix_tflops"], color="black", linewidth=0.8, linestyle="--", label="matrix product")
        axes.set_xticks(range(len(rows)), [row["shape"] for row in rows], rotation=35, ha="right", fontsize=7)
        axes.set_ylabel(f"{direction}, TFLOP/s")
        axes.legend(fontsize=7, ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


# the command


def run_bench(
    output: Path | None = None,
    plot: Path | None = None,
    cudnn_frontend: str | None = None,
    quick: bool = False,
    effort: Effort | None = None,
) -> dict[str, Any]:
    """Measure, print tables and pass or fail lines, write JSON and a picture, return the record.

    Parameters
    ----------
    output, plot
        Files to write; nothing is written where None.
    cudnn_frontend
        Folder that holds its package ``cudnn``; None looks among the installed ones.
    quick
        Fewer shapes and rounds: under a minute on an H100, where the whole takes under eight.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``, ``no-gpu``, ``matplotlib-missing``.
    """
    console = Console()
    effort = effort or (QUICK if quick else FULL)
    torch = torch_ops._ready()
    if plot is not None:
        draw({"gpu": [], "matrix_tflops": 0.0}, plot)  # what is missing shows before the work, not after
    torch.zeros(1, device="cuda")
    target = shared_target()
    frontend, said = open_frontend(cudnn_frontend)
    info = collect_info()
    begin = time.perf_counter()
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": os.environ.get("CUDNN_BACKEND_COMMIT", "unknown"),
        "quick": quick,
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn-frontend": said,
        "environment": {name: info[name] for name in ENVIRONMENT},
        "host": bench_host(target, frontend, effort),
        "matrix_tflops": matrix_tflops(),
        "gpu": bench_gpu(target, frontend, effort, console),
        "fresh": bench_fresh(target, None if frontend is None else cudnn_frontend or "", effort),
    }
    record["seconds"] = round(time.perf_counter() - begin, 1)
    record["accepted"] = judge(record)
    for table in (host_table(record), gpu_table(record), fresh_table(record)):
        console.print(table)
    for line in verdict_lines(record):
        console.print(line, highlight=False, style="red" if line.startswith("FAIL") else None)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        console.print(f"written to {output}", highlight=False)
    if plot is not None:
        draw(record, plot)
    return record
