"""Ten million calls of one executable from eight threads on streams of their own, buffers changing; needs a GPU, torch.

What must be seen: host and device memory flat, right results at the end, no deadlock. Written as JSON:

    python benchmarks/ten_million_calls.py --output logs/ten-million-calls.json
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

from cudnn_backend_py import OperationGraph, build_plan, library, open_target
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.graph.attention import sdpa_forward

B, H, S, D = 1, 2, 128, 64
THREADS = 8
SETS = 400  # sets of buffers a thread takes in turn, more than variant packs are kept
SYNCHRONIZE_EVERY = 2000  # calls; streams would queue without bound otherwise


def resident_kib() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Worker(threading.Thread):
    """One thread: its stream, its buffers, its share of the calls."""

    def __init__(self, run: Executable, calls: int, seed: int) -> None:
        super().__init__()
        self.run_plan, self.calls, self.done = run, calls, 0
        self.fault: BaseException | None = None
        self.error = 0.0
        self.stream = torch.cuda.Stream()
        generator = torch.Generator("cuda").manual_seed(seed)
        self.inputs = torch.randn(SETS, 3, B, S, H, D, device="cuda", dtype=torch.half, generator=generator)
        self.outputs = torch.full((SETS, B, S, H, D), torch.nan, device="cuda", dtype=torch.half)

    def run(self) -> None:
        """Call, and keep what went wrong."""
        try:
            with torch.cuda.stream(self.stream):
                self._work()
        except BaseException as error:
            self.fault = error

    def _work(self) -> None:
        sets = [(*self.inputs[index], self.outputs[index]) for index in range(SETS)]
        for index in range(self.calls):
            self.run_plan(*sets[index % SETS])
            self.done = index + 1
            if not self.done % SYNCHRONIZE_EVERY:
                self.stream.synchronize()
        self.stream.synchronize()
        for q, k, v, o in sets[:: SETS // 8]:
            want = torch.nn.functional.scaled_dot_product_attention(
                *(item.transpose(1, 2).float() for item in (q, k, v)), is_causal=True
            )
            error = torch.linalg.norm(o.transpose(1, 2).float() - want) / torch.linalg.norm(want)
            self.error = max(self.error, float(error))


def main() -> None:
    """Run, watch memory, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which it counts as a deadlock")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    graph = sdpa_forward(batch=B, heads=H, seq_q=S, head_dim=D, causal=True)
    run = Executable(build_plan(OperationGraph(graph, open_target()).heuristics().configs[0]))
    workers = [Worker(run, options.calls // THREADS, seed) for seed in range(THREADS)]
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
            "kib": resident_kib(),
            "gpu_kib": (total - free) // 1024,
        }
        if all(worker.done < worker.calls for worker in workers):  # comparing results afterwards takes memory
            samples.append(sample)
    seconds = time.perf_counter() - start
    calls = sum(worker.done for worker in workers)
    later = [sample for sample in samples if sample["calls"] > calls // 10] or samples[-1:]
    faults = [repr(worker.fault) for worker in workers if worker.fault is not None]
    record = {
        "schema": "cudnn-backend-py/ten-million-calls",
        "version": 1,
        "gpu": torch.cuda.get_device_name(),
        "cudnn": library().version_text,
        "commit": os.environ.get("CUDNN_BACKEND_COMMIT", "unknown"),
        "calls": calls,
        "threads": THREADS,
        "buffer_sets_per_thread": SETS,
        "seconds": round(seconds, 1),
        "still_running": sum(worker.is_alive() for worker in workers),
        "faults": faults,
        "largest_relative_error": max(worker.error for worker in workers),
        "host_growth_kib_after_first_tenth": later[-1]["kib"] - later[0]["kib"],
        "gpu_growth_kib_after_first_tenth": later[-1]["gpu_kib"] - later[0]["gpu_kib"],
        "samples": samples[:: max(1, len(samples) // 20)],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print({key: value for key, value in record.items() if key != "samples"})
    os._exit(1 if faults or record["still_running"] else 0)  # a thread that hangs would keep the process


if __name__ == "__main__":
    main()
