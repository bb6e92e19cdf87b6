"""Host time of the torch operators compared with torch's own attention: dense, packed and paged, both passes.

The implementations take turns, each with a batch of calls; medians with quartiles are reported in microseconds.
The shapes are small, so that the GPU waits for the host. ``in Python`` is our operator without its compiled step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from rich.console import Console

from cudnn_backend_py import torch_ops
from cudnn_backend_py.cli.compare.contenders import TORCH_BACKENDS, prepare_torch_operators, wait_for_background_plans
from cudnn_backend_py.cli.compare.problems import format_attention_problem
from cudnn_backend_py.cli.compare.timing import make_batch_in_context, measure_host_times, summarize_microseconds
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.execution.timing import Batch
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.graph.attention.shape_class import (
    find_best_shape_class_bounds,
    make_shape_class_graph,
    make_shape_class_problem,
)
from cudnn_backend_py.graph.data_types import DATA_TYPES
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.native.fast_call import load_compiled_library
from cudnn_backend_py.plans.build import build, shared_target
from cudnn_backend_py.terminal import BorderlessTextTable, open_console
from cudnn_backend_py.torch_ops.compiled import STEP

from .contenders import make_c_execute_loop_batch, make_torch_packed_attention
from .judge import MeasuredValueLimit, compare_record_with_limits, format_limit_lines
from .problems import SMALL_PROBLEM

__all__ = ["ACCEPTANCE_LIMITS", "add_options", "measure_all_attention_calls", "run"]

ENVIRONMENT_FACTS = ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
BATCH, HEADS, KEY_HEADS, LENGTH, HEAD_DIM = 4, 8, 2, 128, 64  # sizes of the problems
PAGE, PAGES = 16, 32  # tokens of a page, pages of a sequence
PASS_NAMES = ("no gradients", "with gradients", "backward")

TimedCall = Callable[[], Any]
Contenders = dict[str, tuple[Callable[[], Any], TimedCall]]


@contextmanager
def run_operators_without_compiled_code() -> Iterator[None]:
    """In the block, run each call of our torch operators in Python, without the C++ code that launches known plans."""
    kept, STEP.call = STEP.call, None
    try:
        yield
    finally:
        STEP.call = kept


def prepare_timed_calls(
    way: str, tensors: tuple[Any, ...], gradient: Any, calls: dict[str, tuple[Any, Any]]
) -> tuple[Contenders, dict[str, str]]:
    """Return warmed-up calls on q, k and v, each with its context manager, and errors by implementation."""
    import torch

    made: Contenders = {}
    errors: dict[str, str] = {}
    for name, (context, call) in calls.items():
        inputs = [x.detach().clone().requires_grad_(way != PASS_NAMES[0]) for x in tensors]
        run: TimedCall = partial(call, *inputs)
        try:
            with context():
                wait_for_background_plans(run)
                if way == PASS_NAMES[2]:
                    run = partial(torch.autograd.grad, run(), inputs, gradient, retain_graph=True)
                    wait_for_background_plans(run)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            errors[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        else:
            made[name] = (context, run)
    return made, errors


def make_dense_attention_calls() -> dict[str, tuple[Any, Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    operator = partial(torch_ops.attention, causal=True)
    calls: dict[str, tuple[Any, Any]] = {
        "ours": (nullcontext, partial(operator, shapes="exact")),
        "ours, any shape": (nullcontext, partial(operator, shapes="any")),
        "ours, in Python": (run_operators_without_compiled_code, partial(operator, shapes="exact")),
        "ours, torch's name": (nullcontext, partial(torch_ops.scaled_dot_product_attention, is_causal=True)),
    }
    for name, backend in TORCH_BACKENDS.items():
        if hasattr(SDPBackend, backend):
            context = partial(sdpa_kernel, getattr(SDPBackend, backend))
            calls[name] = (context, partial(scaled_dot_product_attention, is_causal=True))
    return calls


def make_packed_attention_c_loop() -> Batch:
    """Return the lower bound for packed tokens: a C loop that executes the operator's plan, without gradients."""
    import torch

    target = shared_target()
    problem = Attention(
        batch=BATCH,
        heads=HEADS,
        kv_heads=KEY_HEADS,
        seq_q=LENGTH,
        head_dim=HEAD_DIM,
        layout="bshd",
        right_bound=0,
        padding=True,
    )
    whole = make_shape_class_problem(problem, find_best_shape_class_bounds(problem), backward=False)
    graph = make_shape_class_graph(whole, False, target.library.version, target.sm)
    executable = Executable(build(graph, target))
    buffers = {}
    for tensor in graph.variant_pack_tensors:
        if tensor.name not in executable.names:
            continue
        kind = getattr(torch, DATA_TYPES[tensor.data_type].torch[0])
        made = torch.zeros(tensor.dims, dtype=kind, device="cuda")
        if tensor.name.startswith("seq_len"):
            made += LENGTH
        elif tensor.name.startswith("ragged"):
            heads = HEADS if tensor.name[7:] in ("q", "o") else KEY_HEADS
            made += torch.arange(len(made), device="cuda").view(made.shape) * LENGTH * heads * HEAD_DIM
        buffers[tensor.name] = made
    bound = executable.bind(**buffers)
    loop = make_c_execute_loop_batch(bound)
    return lambda batch, calls, _held=bound: loop(batch, calls)  # type: ignore[misc]


def make_packed_attention_calls(starts: Any) -> dict[str, tuple[Any, Any]]:
    def call_package(q: Any, k: Any, v: Any) -> Any:
        return torch_ops.attention_varlen(q, k, v, starts, starts, LENGTH, LENGTH, causal=True)

    calls: dict[str, tuple[Any, Any]] = {
        "ours": (nullcontext, call_package),
        "ours, in Python": (run_operators_without_compiled_code, call_package),
    }
    varlen = make_torch_packed_attention()
    if varlen is not None:
        calls["torch varlen"] = (nullcontext, lambda q, k, v: varlen(q, k, v, starts, starts, LENGTH, LENGTH))
    return calls


def make_paged_attention_calls(table: Any, lengths: Any, starts: Any) -> dict[str, tuple[Any, Any]]:
    def call_package(q: Any, k: Any, v: Any) -> Any:
        return torch_ops.attention_with_kvcache(q, k, v, table, lengths, causal=True)

    calls: dict[str, tuple[Any, Any]] = {
        "ours": (nullcontext, call_package),
        "ours, in Python": (run_operators_without_compiled_code, call_package),
    }
    varlen = make_torch_packed_attention(block_table=table, seqused_k=lengths)
    if varlen is not None:
        calls["torch varlen"] = (
            nullcontext,
            lambda q, k, v: varlen(q.flatten(0, 1), k, v, starts, None, 1, PAGE * PAGES),
        )
    return calls


def measure_all_attention_calls(
    batches: int, calls_each: int
) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, dict[str, str]]]:
    """Return microseconds and errors of implementations: by problem and pass, then by implementation."""
    import torch

    def make_random_tensor(*dims: int) -> Any:
        return torch.randn(dims, device="cuda", dtype=torch.float16)

    def make_equal_offsets(step: int) -> Any:
        return torch.arange(0, (BATCH + 1) * step, step, device="cuda", dtype=torch.int32)

    q, k, v, d_o = (
        make_random_tensor(
            SMALL_PROBLEM.batch, SMALL_PROBLEM.seq_q, SMALL_PROBLEM.heads, SMALL_PROBLEM.head_dim
        ).transpose(1, 2)
        for _ in range(4)
    )
    tokens = BATCH * LENGTH
    packed = (
        make_random_tensor(tokens, HEADS, HEAD_DIM),
        *(make_random_tensor(tokens, KEY_HEADS, HEAD_DIM) for _ in range(2)),
    )
    of_packed = make_random_tensor(tokens, HEADS, HEAD_DIM)
    cache = [make_random_tensor(BATCH * PAGES, PAGE, KEY_HEADS, HEAD_DIM) for _ in range(2)]
    table = torch.randperm(BATCH * PAGES, device="cuda").to(torch.int32).view(BATCH, PAGES)
    lengths = torch.full((BATCH,), PAGE * PAGES - 3, device="cuda", dtype=torch.int32)
    found, raised = {}, {}
    for way in PASS_NAMES:
        problems = {
            f"dense, {format_attention_problem(SMALL_PROBLEM)}": ((q, k, v), d_o, make_dense_attention_calls()),
            f"packed, b{BATCH} h{HEADS}/{KEY_HEADS} s{LENGTH} d{HEAD_DIM} causal f16": (
                packed,
                of_packed,
                make_packed_attention_calls(make_equal_offsets(LENGTH)),
            ),
        }
        if way == PASS_NAMES[0]:
            problems[f"paged, b{BATCH} h{HEADS}/{KEY_HEADS} 1 of {PAGE * PAGES} d{HEAD_DIM} f16"] = (
                (make_random_tensor(BATCH, 1, HEADS, HEAD_DIM), *cache),
                None,
                make_paged_attention_calls(table, lengths, make_equal_offsets(1)),
            )
        for problem, (tensors, gradient, calls) in problems.items():
            contenders, errors = prepare_timed_calls(way, tensors, gradient, calls)
            timed = {name: make_batch_in_context(*made) for name, made in contenders.items()}
            if problem.startswith("packed") and way == PASS_NAMES[0] and load_compiled_library() is not None:
                timed["C loop"] = make_packed_attention_c_loop()
            times = measure_host_times(timed, batches, calls_each)
            found[f"{problem}: {way}"] = {name: summarize_microseconds(timing) for name, timing in times.items()}
            if errors:
                raised[f"{problem}: {way}"] = errors
    return found, raised


def _compute_time_ratio(record: Mapping[str, Any], problem: str, way: str, other: str) -> float | None:
    """Return the ratio of our time to another implementation's, for the problem with this name prefix."""
    for name, row in record["us"].items():
        if name.startswith(problem) and name.endswith(f": {way}") and "ours" in row and other in row:
            return float(row["ours"]["median_us"] / row[other]["median_us"])
    return None


# problem, pass, the other implementation, and the largest accepted ratio of our time to its time
RATIO_LIMITS = (
    *(("dense", way, other, 1.0) for way in PASS_NAMES for other in ("torch cudnn", "torch flash")),
    ("packed", PASS_NAMES[0], "torch varlen", 0.5),
    ("packed", PASS_NAMES[0], "C loop", 1.6),
)
ACCEPTANCE_LIMITS = tuple(
    MeasuredValueLimit(
        f"{problem}, {way}: ours / {other}", limit, partial(_compute_time_ratio, problem=problem, way=way, other=other)
    )
    for problem, way, other, limit in RATIO_LIMITS
)


def print_time_table(record: dict[str, Any], console: Console) -> None:
    """Print a row per problem and pass with a column per implementation."""
    names = list(dict.fromkeys(name for row in record["us"].values() for name in row))
    table = BorderlessTextTable(title="Host time per call, microseconds")
    for name in ("", *names):
        table.add_column(name, justify="right" if name else "left")
    for problem, row in record["us"].items():
        table.add_row(problem, *(f"{row[name]['median_us']:.1f}" if name in row else "" for name in names))
    console.print(table)
    for problem, errors in record["raised"].items():
        for name, error in errors.items():
            console.print(f"not timed: {name}, {problem}: {error}", markup=False)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the numbers of calls and batches."""
    parser.add_argument(
        "--calls", type=int, default=100, help="number of calls in a batch, fewer than the launch queue holds"
    )
    parser.add_argument("--batches", type=int, default=28, help="number of batches of calls per implementation")


def run(options: argparse.Namespace) -> None:
    """Measure the calls of all implementations, print a table, and write the record."""
    torch = torch_ops.operators.load_torch()
    state = prepare_torch_operators()
    times, raised = measure_all_attention_calls(options.batches, options.calls)
    record: dict[str, Any] = {
        **make_measurement_record_header("torch-calls", ENVIRONMENT_FACTS),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "extension": state,
        "us": times,
        "raised": raised,
    }
    record["accepted"] = compare_record_with_limits(record, ACCEPTANCE_LIMITS)
    print_time_table(record, open_console())
    for line in format_limit_lines(record):
        print(line)
    if options.output is not None:
        write_record(record, options.output)
    else:
        print(json.dumps(record, indent=1))
