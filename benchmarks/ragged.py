"""Host time per call of a ragged attention plan, with reused or new buffers, compared with C and cudnn-frontend.

cudnn-frontend executes the same graph. The implementations take turns; medians with quartiles are shown.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from cudnn_backend_py.cli.compare.contenders import prepare_torch_operators
from cudnn_backend_py.cli.compare.timing import measure_host_times, summarize_microseconds
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.execution.timing import Batch, make_repeated_batch
from cudnn_backend_py.graph.attention import Attention, sdpa_forward
from cudnn_backend_py.graph.data_types import DATA_TYPES
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.native.fast_call import load_compiled_library
from cudnn_backend_py.plans.build import build, shared_target
from cudnn_backend_py.target import Target
from cudnn_backend_py.terminal import open_console

from .contenders import FrontendContender, load_frontend, make_batch_with_new_arguments, make_c_execute_loop_batch
from .judge import ACCEPTANCE_LIMITS, compare_record_with_limits, format_limit_lines
from .problems import RepetitionCounts
from .tables import make_ragged_table

__all__ = ["add_options", "measure_ragged_calls", "run"]

RAGGED_SIZES: dict[str, Any] = {"batch": 4, "heads": 8, "kv_heads": 2, "seq_q": 128, "head_dim": 64, "causal": True}


def measure_ragged_calls(
    target: Target, frontend: FrontendContender | None, effort: RepetitionCounts
) -> dict[str, dict[str, float]]:
    """Return host microseconds per call of a forward pass with statistics, by available implementation."""
    problem = Attention(**RAGGED_SIZES, ragged=True, ragged_stats=True, stats=True)
    executable = Executable(build(sdpa_forward(problem, version=target.library.version, sm=target.sm), target))
    sets = [_make_ragged_buffers(executable, problem) for _ in range(effort.host_calls)]
    bound = executable.bind(**sets[0])
    rows = [tuple(one[name] for name in executable.names) for one in sets]
    contenders: dict[str, Batch] = (
        {} if load_compiled_library() is None else {"C loop": make_c_execute_loop_batch(bound)}
    )
    contenders["same pointers"] = make_repeated_batch(bound)
    contenders["same buffers, by position"] = make_repeated_batch(partial(executable, *rows[0]))
    contenders["fresh pointers"] = make_batch_with_new_arguments(executable, rows * effort.host_batches)
    if frontend is not None:
        graph, tensors = frontend.build(problem, "forward")
        contenders |= frontend.contenders("cudnn-frontend", graph, tensors, sets * effort.host_batches)
    times = measure_host_times(contenders, effort.host_batches, effort.host_calls)
    return {name: summarize_microseconds(timing) for name, timing in times.items()}


def _make_ragged_buffers(executable: Executable, p: Attention) -> dict[str, Any]:
    """Return buffers for the ragged plan, as large as for dense tensors, with all sequences at full length."""
    import torch

    made: dict[str, Any] = {}
    for name in executable.names:
        tensor = executable.plan.graph.tensor(name)
        kind = getattr(torch, DATA_TYPES[tensor.data_type].torch[0])
        if name.startswith("seq_len"):
            made[name] = torch.full(tensor.dims, p.seq_q, device="cuda", dtype=kind)
        elif name.startswith("ragged"):
            step = p.strides(name.removeprefix("ragged_"))[0]
            made[name] = (torch.arange(p.batch + 1, device="cuda") * step).to(kind).view(tensor.dims)
        else:
            memory = torch.zeros(tensor.span_elements, device="cuda", dtype=kind)
            made[name] = memory.as_strided(tensor.dims, tensor.strides)
    return made


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the number of calls and the folder of cudnn-frontend."""
    parser.add_argument("--batches", type=int, default=28, help="number of batches of calls per implementation")
    parser.add_argument(
        "--calls",
        type=int,
        default=300,
        help="number of calls in a batch; many, so that the first ones have little weight",
    )
    parser.add_argument(
        "--cudnn-frontend", metavar="FOLDER", help="folder with the package cudnn of cudnn-frontend, if not installed"
    )


def run(options: argparse.Namespace) -> None:
    """Measure the calls of the ragged plan, print a table, and write the record."""
    import torch

    torch.zeros(1, device="cuda")
    frontend, said = load_frontend(options.cudnn_frontend)
    effort = RepetitionCounts(host_batches=options.batches, host_calls=options.calls)
    record: dict[str, Any] = {
        **make_measurement_record_header(
            "ragged", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "gpu_name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn-frontend": said,
        "extension": prepare_torch_operators(),  # with it, the compiled call can read torch's tensors
        "ragged": measure_ragged_calls(shared_target(), frontend, effort),
    }
    record["accepted"] = compare_record_with_limits(
        record, [item for item in ACCEPTANCE_LIMITS if item.name.startswith("host, ragged")]
    )
    console = open_console()
    console.print(make_ragged_table(record))
    for line in format_limit_lines(record):
        console.print(line, style="red" if line.startswith("FAIL") else None)
    write_record(record, options.output)
