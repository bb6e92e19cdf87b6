"""Ten million calls of one executable by eight threads, each with its own stream and changing buffers (needs a GPU).

Expected: no growth of host and device memory, right results at the end, no deadlock.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from typing import Any

from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.plans.engine import OperationGraph
from cudnn_backend_py.plans.plan import build_plan
from cudnn_backend_py.target import open_target
from cudnn_backend_py.torch_ops.operators import load_torch

from ..problems import SMALL_PROBLEM
from .memory import read_resident_bytes

__all__ = ["add_options", "run"]

THREAD_COUNT = 8
BUFFER_SETS = 400  # sets of buffers per thread, used in turn, more than the number of cached variant packs
SYNCHRONIZE_EVERY = 2000  # calls between synchronizations; streams would queue without bound otherwise


class CallingThread(threading.Thread):
    """A thread with its own stream and buffers, and its share of the calls."""

    def __init__(self, executable: Executable, calls: int, seed: int) -> None:
        import torch

        super().__init__()
        self.executable, self.calls, self.done = executable, calls, 0
        self.failure: BaseException | None = None
        self.error = 0.0
        self.stream = torch.cuda.Stream()
        generator = torch.Generator("cuda").manual_seed(seed)
        dims = SMALL_PROBLEM.batch, SMALL_PROBLEM.seq_q, SMALL_PROBLEM.heads, SMALL_PROBLEM.head_dim
        self.inputs = torch.randn(BUFFER_SETS, 3, *dims, device="cuda", dtype=torch.half, generator=generator)
        self.outputs = torch.full((BUFFER_SETS, *dims), torch.nan, device="cuda", dtype=torch.half)

    def run(self) -> None:
        """Make the calls, and store an exception if one is raised."""
        import torch

        try:
            with torch.cuda.stream(self.stream):
                self._call_and_check()
        except BaseException as error:
            self.failure = error

    def _call_and_check(self) -> None:
        import torch

        sets = [(*self.inputs[index], self.outputs[index]) for index in range(BUFFER_SETS)]
        for index in range(self.calls):
            self.executable(*sets[index % BUFFER_SETS])
            self.done = index + 1
            if not self.done % SYNCHRONIZE_EVERY:
                self.stream.synchronize()
        self.stream.synchronize()
        for q, k, v, o in sets[:: BUFFER_SETS // 8]:
            want = torch.nn.functional.scaled_dot_product_attention(
                *(item.transpose(1, 2).float() for item in (q, k, v)), is_causal=True
            )
            error = torch.linalg.norm(o.transpose(1, 2).float() - want) / torch.linalg.norm(want)
            self.error = max(self.error, float(error))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for the number of calls and the time limit."""
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which the run counts as a deadlock")


def run(options: argparse.Namespace) -> None:
    """Run all threads and write the record; exit with 1 if a call failed or a thread still runs."""
    torch = load_torch()
    graph = sdpa_forward(SMALL_PROBLEM)
    executable = Executable(build_plan(OperationGraph(graph, open_target()).heuristics().configs[0]))
    workers = [CallingThread(executable, options.calls // THREAD_COUNT, seed) for seed in range(THREAD_COUNT)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    samples: list[dict[str, Any]] = []
    while any(worker.is_alive() for worker in workers) and time.perf_counter() - start < options.limit:
        time.sleep(1.0)
        free, total = torch.cuda.mem_get_info()
        sample = {
            "calls": sum(worker.done for worker in workers),
            "kib": read_resident_bytes() // 1024,
            "gpu_kib": (total - free) // 1024,
        }
        if all(worker.done < worker.calls for worker in workers):  # the final comparison allocates memory
            samples.append(sample)
    seconds = time.perf_counter() - start
    calls = sum(worker.done for worker in workers)
    later = [sample for sample in samples if sample["calls"] > calls // 10] or samples[-1:]
    failures = [repr(worker.failure) for worker in workers if worker.failure is not None]
    record = {
        **make_measurement_record_header("ten-million-calls"),
        "gpu": torch.cuda.get_device_name(),
        "calls": calls,
        "threads": THREAD_COUNT,
        "buffer_sets_per_thread": BUFFER_SETS,
        "seconds": round(seconds, 1),
        "still_running": sum(worker.is_alive() for worker in workers),
        "faults": failures,
        "largest_relative_error": max(worker.error for worker in workers),
        "host_growth_kib_after_first_tenth": later[-1]["kib"] - later[0]["kib"],
        "gpu_growth_kib_after_first_tenth": later[-1]["gpu_kib"] - later[0]["gpu_kib"],
        "samples": samples[:: max(1, len(samples) // 20)],
    }
    write_record(record, options.output)
    print({key: value for key, value in record.items() if key != "samples"}, flush=True)
    os._exit(1 if failures or record["still_running"] else 0)  # a hanging thread would keep the process alive
