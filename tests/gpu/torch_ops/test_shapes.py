"""What a new shape costs, by policy: the same results, whichever plan computes them."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.execution.any_shape import OFTEN
from cudnn_backend_py.execution.plan_pool import shared_pool
from cudnn_backend_py.torch_ops import attention, clear_plans, set_shapes
from tests.support.figures import add_figure
from tests.support.torch_reference import Masks, error, gradients

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
POLICIES = ("exact", "any", "adaptive")
H, D = 4, 64
CASES: dict[str, tuple[dict[str, Any], Masks]] = {
    "plain": ({}, Masks()),
    "causal": ({"causal": True}, Masks(right_bound=0)),
    "window": ({"causal": True, "left_bound": 40}, Masks(right_bound=0, left_bound=40)),
    "causal, bottom right": (
        {"causal": True, "alignment": "bottom_right"},
        Masks(right_bound=0, bottom_right=True),
    ),
    "soft cap, scale": ({"soft_cap": 3.0, "scale": 0.2}, Masks(soft_cap=3.0, scale=0.2)),
}


def make(b: int, s: int, *, layout: str = "bshd", kv_heads: int = H) -> list[Any]:
    """Return q, k, v that need gradients, and the gradient of the output."""
    torch.manual_seed(b * 1000 + s)
    found = []
    for heads in (H, kv_heads, kv_heads, H):
        if layout == "bshd":
            found.append(torch.randn(b, s, heads, D, device="cuda", dtype=torch.half).transpose(1, 2))
        else:
            found.append(torch.randn(b, heads, s, D, device="cuda", dtype=torch.half))
    return [x.requires_grad_(True) for x in found[:3]] + found[3:]


def check(inputs: dict[str, Any], found: list[Any], d_o: Any, masks: Masks, **others: Any) -> None:
    want = gradients(inputs, d_o, masks, **others)
    errors = {"o": error(found[0], want["o"])}
    errors |= {name: error(x, want[f"d{name}"]) for name, x in zip(inputs, found[1:], strict=True)}
    assert max(errors.values()) < 4e-3, errors


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("case", CASES)
def test_policies_agree(case: str, kv_heads: int, layout: str) -> None:
    options, masks = CASES[case]
    for b, s in ((3, 77), (1, 200), (4, 130)):
        *inputs, d_o = make(b, s, layout=layout, kv_heads=kv_heads)
        for policy in POLICIES:
            o = attention(*inputs, **options, shapes=policy)
            assert o.stride() == inputs[0].stride()
            grads = torch.autograd.grad(o, inputs, d_o)
            check(dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, masks)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_rows_beyond_the_lengths_are_zero(policy: str, layout: str) -> None:
    b, s = 6, 150
    *inputs, d_o = make(b, s, layout=layout)
    len_q = torch.tensor([150, 100, 1, 0, 0, 5], device="cuda", dtype=torch.int32)
    len_kv = torch.tensor([90, 150, 1, 3, 0, 0], device="cuda", dtype=torch.int32)
    # What torch's allocator hands out next was something else before.
    spoiled = [torch.full_like(inputs[0], float("nan")) for _ in range(4)]
    del spoiled
    o = attention(*inputs, seq_len_q=len_q, seq_len_kv=len_kv, shapes=policy)
    grads = torch.autograd.grad(o, inputs, d_o)
    for x, lens in ((o, len_q), (grads[0], len_q), (grads[1], len_kv), (grads[2], len_kv)):
        for i, n in enumerate(lens.tolist()):
            assert not x[i, :, n:].any(), (policy, i, n)
    check(dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(), len_q=len_q, len_kv=len_kv)


@pytest.mark.parametrize("policy", ["exact", "any"])
@pytest.mark.parametrize("how", ["slices of one buffer", "part of a longer buffer", "heads of a longer buffer"])
@pytest.mark.parametrize("s", [1, 40])
def test_tensors_with_gaps(how: str, s: int, policy: str) -> None:
    b = 22
    if how == "slices of one buffer":
        whole = torch.randn(b, s, 3, H, D, device="cuda", dtype=torch.half)
        inputs = [x.transpose(1, 2) for x in whole.unbind(2)]
    elif how == "part of a longer buffer":
        inputs = [torch.randn(b, 64, H, D, device="cuda", dtype=torch.half)[:, :s].transpose(1, 2) for _ in range(3)]
    else:
        inputs = [torch.randn(b, H, 64, D, device="cuda", dtype=torch.half)[:, :, :s] for _ in range(3)]
    inputs = [x.detach().requires_grad_(True) for x in inputs]
    d_o = torch.randn(b, s, H, D, device="cuda", dtype=torch.half).transpose(1, 2)
    o = attention(*inputs, causal=True, shapes=policy)
    grads = torch.autograd.grad(o, inputs, d_o)
    check(dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(right_bound=0))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_one_sequence_with_a_length(layout: str) -> None:
    *inputs, d_o = make(1, 300, layout=layout)
    len_q, len_kv = (torch.tensor([n], device="cuda", dtype=torch.int32) for n in (2, 270))
    o = attention(*inputs, seq_len_q=len_q, seq_len_kv=len_kv, shapes="any")
    grads = torch.autograd.grad(o, inputs, d_o)
    check(dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(), len_q=len_q, len_kv=len_kv)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dims", [(1, 1), (3, 1), (1, H), (3, H)], ids=str)
def test_bias_and_its_gradient(policy: str, dims: tuple[int, int]) -> None:
    for s in (64, 200):
        *inputs, d_o = make(3, s)
        bias = torch.randn(*dims, s, s, device="cuda", dtype=torch.half, requires_grad=True)
        o = attention(*inputs, bias=bias, shapes=policy)
        named = dict(zip(("q", "k", "v", "bias"), (*inputs, bias), strict=True))
        check(named, [o, *torch.autograd.grad(o, list(named.values()), d_o)], d_o, Masks())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kv_heads", [H, 2])
def test_sink_and_its_gradient(policy: str, kv_heads: int) -> None:
    *inputs, d_o = make(2, 140, kv_heads=kv_heads)
    sink = torch.randn(H, device="cuda", requires_grad=True)
    o = attention(*inputs, sink=sink, causal=True, shapes=policy)
    named = dict(zip(("q", "k", "v", "sink"), (*inputs, sink), strict=True))
    check(named, [o, *torch.autograd.grad(o, list(named.values()), d_o)], d_o, Masks(right_bound=0))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_statistics(policy: str, layout: str) -> None:
    *inputs, d_o = make(3, 99, layout=layout)
    _, stats = attention(*inputs, causal=True, shapes=policy, return_stats=True)
    want = gradients(dict(zip("qkv", inputs, strict=True)), d_o, Masks(right_bound=0))["stats"]
    assert stats.shape == (3, H, 99, 1)
    assert (stats.squeeze(-1) - want).abs().max() < 2e-3


@pytest.mark.parametrize("policy", POLICIES)
def test_dropout_is_the_same_backward(policy: str) -> None:
    b, s = 2, 200
    q, k, _, _ = make(b, s)
    v = torch.eye(s, D, device="cuda", dtype=torch.half).expand(b, H, s, D).contiguous().requires_grad_(True)
    for _ in range(6):  # also where the exact plan is ready meanwhile
        o = attention(q, k, v, dropout=0.5, shapes=policy)
        # dV = P^T dO: where dO is 1 for what the forward pass kept, another mask would lose half of it.
        (dv,) = torch.autograd.grad(o, v, (o > 0).half())
        kept, whole = float((dv.double() * v.detach()).sum()), float(o.detach().double().sum())
        assert abs(kept - whole) < 0.02 * whole
        time.sleep(0.2)


def test_exact_plan_takes_over() -> None:
    clear_plans()
    q, k, v, _ = (x.detach() for x in make(2, 210))
    runs = [attention(q, k, v, causal=True) for _ in range(OFTEN)]
    assert all(torch.equal(x, runs[0]) for x in runs), "one plan of a class at first"
    assert shared_pool().wait()
    kinds = [key[0] for key in shared_pool().keys_there()]
    assert kinds.count("exact") == 1
    found = attention(q, k, v, causal=True)
    assert len(shared_pool()) == len(kinds)
    assert torch.equal(found, attention(q, k, v, causal=True, shapes="exact"))
    assert error(found, runs[0]) < 1e-3


def test_results_repeat_where_they_must() -> None:
    clear_plans()
    q, k, v, d_o = make(2, 333)
    runs = []
    for _ in range(6):
        o = attention(q, k, v, deterministic=True, shapes="adaptive")
        runs.append((o.detach(), *torch.autograd.grad(o, (q, k, v), d_o)))
        time.sleep(0.2)
    assert all(torch.equal(mine, other) for run in runs[1:] for mine, other in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_to_attend_to(policy: str) -> None:
    for b, s_q, s_kv in ((0, 10, 10), (2, 0, 10), (2, 10, 0)):
        q = torch.randn(b, s_q, H, D, device="cuda", dtype=torch.half, requires_grad=True)
        k = torch.randn(b, s_kv, H, D, device="cuda", dtype=torch.half, requires_grad=True)
        o, stats = attention(*(x.transpose(1, 2) for x in (q, k, k)), shapes=policy, return_stats=True)
        assert o.shape == (b, H, s_q, D)
        assert not o.any()
        assert (stats == float("-inf")).all()
        dq, dk = torch.autograd.grad(o.sum(), (q, k))
        assert not dq.any()
        assert not dk.any()


@pytest.mark.parametrize("policy", POLICIES)
def test_out_is_written_in_place(policy: str) -> None:
    q, k, v, _ = (x.detach() for x in make(2, 100))
    want = attention(q, k, v, shapes=policy)
    out = torch.full_like(want, 7)
    assert attention(q, k, v, shapes=policy, out=out) is out
    assert torch.equal(out, want)
    wide = torch.zeros(2, 100, 2, H, D, device="cuda", dtype=torch.half)
    part = wide[:, :, 1].transpose(1, 2)
    attention(q, k, v, shapes=policy, out=part)
    assert torch.equal(part, want)
    assert not wide[:, :, 0].any()
    with pytest.raises(UsageError, match="no gradient"):
        attention(q.requires_grad_(True), k, v, out=out)
    for wrong in (out[:1], out.float(), out.cpu(), out[..., ::2]):
        with torch.no_grad(), pytest.raises(UsageError, match=r"^torch-tensor: out"):
            attention(q, k, v, out=wrong)


@pytest.mark.alone
def test_a_new_shape_of_a_known_class_does_not_wait() -> None:
    torch.manual_seed(1)
    attention(*(x.detach() for x in make(4, 1024)[:3]), causal=True, shapes="any")
    lengths = torch.randperm(900)[:100].add(100).tolist()
    inputs = [[x.detach() for x in make(2, s)[:3]] for s in lengths]
    torch.cuda.synchronize()
    gc.collect()
    times = []
    for q, k, v in inputs:
        begin = time.perf_counter()
        attention(q, k, v, causal=True, shapes="any")
        times.append((time.perf_counter() - begin) * 1e3)
    times.sort()
    add_figure("torch operator, first call of a shape in a known class, ms", median=times[50], p99=times[98])
    assert times[98] < 30, "a plan was built"


def test_memory_is_flat_over_many_shapes() -> None:
    whole = torch.randn(4, 512, 3, H, D, device="cuda", dtype=torch.half)
    torch.manual_seed(3)
    sizes = torch.randint(1, 512, (4000,)).tolist()

    def run(sizes: list[int]) -> tuple[int, int]:
        for i, s in enumerate(sizes):
            attention(*(x.transpose(1, 2) for x in whole[: i % 4 + 1, :s].unbind(2)), shapes="any")
        torch.cuda.synchronize()
        gc.collect()
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    runs = [run([s % most + 1 for s in sizes]) for most in (512, 500, 490)]
    assert runs[-1][0] <= runs[0][0] + (1 << 20)
    # Other processes use the GPU's memory too: what is kept is missing after each.
    assert min(one[1] - two[1] for one, two in pairwise(runs)) <= 64 << 20


def test_policy_is_checked() -> None:
    q, k, v, _ = make(1, 32)
    with pytest.raises(UsageError, match="'some', one of exact, any, adaptive"):
        attention(q, k, v, shapes="some")
    with pytest.raises(UsageError, match="'some'"):
        set_shapes("some")
    assert set_shapes("any") == "adaptive"
    assert set_shapes("adaptive") == "any"
