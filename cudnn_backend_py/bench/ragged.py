"""Host time of a ragged plan, whose calls take many small tensors: bound, fresh and checked, beside the C loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..execution.executable import Bound, Executable
from ..graph.attention import Attention, sdpa_forward
from ..graph.data_types import DATA_TYPES
from ..plans.build import build
from ..target import Target
from .shapes import Effort
from .timing import fresh, host_times, microseconds, same

__all__ = ["bench_ragged"]

RAGGED: dict[str, Any] = {"batch": 4, "heads": 8, "kv_heads": 2, "seq_q": 128, "head_dim": 64, "causal": True}
Run = Callable[[int, int], float]


def bench_ragged(target: Target, effort: Effort, c_loop: Callable[[Bound], Run] | None) -> dict[str, dict[str, float]]:
    """Return host microseconds per call of a forward pass with statistics; without `c_loop` that floor is left out."""
    problem = Attention(**RAGGED, ragged=True, ragged_stats=True, stats=True)
    executable = Executable(build(sdpa_forward(problem, version=target.library.version, sm=target.sm), target))
    sets = [_ragged_buffers(executable, problem) for _ in range(effort.host_calls)]
    bound = executable.bind(**sets[0])
    rows = [tuple(one[name] for name in executable.names) for one in sets]
    contenders: dict[str, Run] = {} if c_loop is None else {"C loop": c_loop(bound)}
    contenders["same pointers"] = same(bound)
    contenders["same buffers, by position"] = same(partial(executable, *rows[0]))
    contenders["fresh pointers"] = fresh(executable, rows * effort.host_batches)
    return {name: microseconds(timing) for name, timing in host_times(contenders, effort).items()}


def _ragged_buffers(executable: Executable, p: Attention) -> dict[str, Any]:
    """Return memory for the ragged plan: as many numbers as dense tensors have, and sequences of full length."""
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
