"""Host time of the torch operators: dense, packed and paged, beside torch's own and the C loop over the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from .. import torch_ops
from ..execution.executable import Bound, Executable
from ..graph.attention import Attention, sdpa_forward
from ..graph.data_types import DATA_TYPES
from ..plans.build import build
from ..target import Target
from .contenders import differentiate, make_buffers, torch_calls, torch_varlen
from .shapes import SMALL, Effort
from .timing import fresh, host_times, microseconds, same, within

__all__ = ["PACKED", "bench_operators"]

# A problem of packed tokens with grouped heads, all sequences as long as the longest.
PACKED: dict[str, Any] = {"batch": 4, "heads": 8, "kv_heads": 2, "seq_q": 128, "head_dim": 64}
Run = Callable[[int, int], float]


def bench_operators(
    target: Target, effort: Effort, c_loop: Callable[[Bound], Run] | None
) -> dict[str, dict[str, dict[str, float]]]:
    """Return host microseconds per call, by section and contender; without `c_loop` that floor is left out."""
    sections = {f"dense, {way}": made for way, made in _dense().items()}
    sections["packed tokens"] = dict(_packed(target, effort, c_loop))
    sections["pages"] = {"ours": same(_paged())}
    return {
        name: {contender: microseconds(timing) for contender, timing in host_times(made, effort).items()}
        for name, made in sections.items()
    }


def _dense() -> dict[str, dict[str, Run]]:
    """Return contenders without gradients, with, and of the backward pass."""
    (buffers,) = make_buffers(SMALL, "backward")
    found: dict[str, dict[str, Run]] = {"no gradients": {}, "gradients": {}, "backward": {}}
    for shapes in ("adaptive", "exact"):
        name = "ours" if shapes == "adaptive" else f"ours, {shapes}"
        q, k, v = (buffers[x].detach().clone() for x in "qkv")
        call = partial(torch_ops.attention, q, k, v, causal=True, shapes=shapes)
        found["no gradients"][name] = same(call)
        found["gradients"][name], found["backward"][name] = _with_gradients(call, buffers)
    for name, call, context in torch_calls(SMALL, "forward", buffers):
        found["no gradients"][name] = within(context, call)
    for name, call, context in torch_calls(SMALL, "backward", buffers):
        found["backward"][name] = within(context, call)
        forward = _of_torch(buffers)
        found["gradients"][name] = within(context, forward)
    return found


def _with_gradients(call: Any, buffers: Mapping[str, Any]) -> tuple[Run, Run]:
    """Return a forward pass whose inputs need gradients, and its backward pass."""
    inputs = tuple(x.detach().clone().requires_grad_(True) for x in call.args)
    forward: Callable[[], Any] = partial(call.func, *inputs, **call.keywords)
    return same(forward), same(differentiate(forward, inputs, buffers))


def _of_torch(buffers: Mapping[str, Any]) -> Callable[[], Any]:
    import torch

    q, k, v = (buffers[name].detach().clone().requires_grad_(True) for name in "qkv")
    return partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)


def _packed(target: Target, effort: Effort, c_loop: Callable[[Bound], Run] | None) -> Iterator[tuple[str, Run]]:
    """Yield the ragged plan by itself, our operator and torch's, on the same packed tokens."""
    problem = Attention(**PACKED, causal=True, ragged=True, ragged_stats=True, stats=True)
    executable = Executable(build(sdpa_forward(problem, version=target.library.version, sm=target.sm), target))
    sets = [_ragged_buffers(executable, problem) for _ in range(effort.host_calls)]
    bound = executable.bind(**sets[0])
    if c_loop is not None:
        yield "C loop", c_loop(bound)
    yield "bound", same(bound)
    rows = [tuple(one[name] for name in executable.names) for one in sets]
    yield "by position", same(partial(executable, *rows[0]))
    yield "fresh and checked", fresh(executable, rows * effort.host_batches)
    for heads, name in ((problem.kv_heads, "ours"), (problem.heads, "ours, equal heads")):
        packed = _varlen(problem, heads)
        yield name, same(partial(torch_ops.attention_varlen, **packed, causal=True))
        inputs = {x: packed[x].clone().requires_grad_(True) for x in "qkv"}
        yield f"{name}, gradients", same(partial(torch_ops.attention_varlen, **{**packed, **inputs}, causal=True))
    theirs = torch_varlen()
    if theirs is not None:
        call, options = theirs
        yield "torch varlen, equal heads", same(partial(call, *packed.values(), **options))


def _varlen(problem: Attention, kv_heads: int) -> dict[str, Any]:
    """Return packed tokens with so many heads of K and V, by the names our operator gives them."""
    import torch

    seq, dim = problem.seq_q, problem.head_dim
    tokens = problem.batch * seq
    made = {
        name: torch.randn(tokens, heads, dim, device="cuda").to(torch.half)
        for name, heads in (("q", problem.heads), ("k", kv_heads), ("v", kv_heads))
    }
    cu = torch.arange(problem.batch + 1, device="cuda", dtype=torch.int32) * seq
    return {**made, "cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": seq, "max_seqlen_k": seq}


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


def _paged() -> Callable[[], Any]:
    """Return a step of decoding: 16 sequences of up to 512 tokens in pages of 64."""
    import torch

    batch, pages, page = 16, 8, 64
    place: dict[str, Any] = {"device": "cuda", "dtype": torch.half}
    q = torch.randn(batch, 1, PACKED["heads"], PACKED["head_dim"], **place)
    k, v = (torch.randn(batch * pages, page, PACKED["kv_heads"], PACKED["head_dim"], **place) for _ in range(2))
    table = torch.randperm(batch * pages, device="cuda").to(torch.int32).view(batch, pages)
    lengths = torch.randint(1, pages * page, (batch,), device="cuda", dtype=torch.int32)
    return partial(torch_ops.attention_with_kvcache, q, k, v, table, lengths)
