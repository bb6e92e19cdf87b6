"""New shapes give the same results with each `shapes` option: a plan for a class of shapes, or for one shape."""

from __future__ import annotations

import gc
import math
import random
import time
from itertools import pairwise
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.execution.any_shape import CALLS_IN_A_ROW
from cudnn_backend_py.execution.plan_pool import get_shared_pool
from cudnn_backend_py.torch_ops import attention, attention_varlen, clear_plans, set_shapes, strategies
from cudnn_backend_py.torch_ops.extension import EXTENSION, describe_extension
from tests.support.figures import append_measurement_to_run_record
from tests.support.torch_reference import Masks, compute_frobenius_error, compute_reference_gradients

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
SHAPE_POLICIES = ("exact", "any", "adaptive")
H, D = 4, 64
DENSE_CASES: dict[str, tuple[dict[str, Any], Masks]] = {
    "plain": ({}, Masks()),
    "causal": ({"causal": True}, Masks(right_bound=0)),
    "window": ({"causal": True, "left_bound": 40}, Masks(right_bound=0, left_bound=40)),
    "causal, bottom right": (
        {"causal": True, "alignment": "bottom_right"},
        Masks(right_bound=0, bottom_right=True),
    ),
    "soft cap, scale": ({"soft_cap": 3.0, "scale": 0.2}, Masks(soft_cap=3.0, scale=0.2)),
}


def make_random_inputs(b: int, s: int, *, layout: str = "bshd", kv_heads: int = H) -> list[Any]:
    """Return q, k, v that require gradients, and the gradient of the output."""
    torch.manual_seed(b * 1000 + s)
    found = []
    for heads in (H, kv_heads, kv_heads, H):
        if layout == "bshd":
            found.append(torch.randn(b, s, heads, D, device="cuda", dtype=torch.half).transpose(1, 2))
        else:
            found.append(torch.randn(b, heads, s, D, device="cuda", dtype=torch.half))
    return [x.requires_grad_(True) for x in found[:3]] + found[3:]


def check_attention_results(
    inputs: dict[str, Any], found: list[Any], d_o: Any, masks: Masks, summed: int = 1, **others: Any
) -> None:
    """Compare results with the reference; an element of a bias gradient is a sum over `summed` rows."""
    want = compute_reference_gradients(inputs, d_o, masks, **others)
    floor = 0.3  # the floor of `error`
    floors = {"bias": floor * summed**0.5}
    errors = {"o": compute_frobenius_error(found[0], want["o"])}
    for name, x in zip(inputs, found[1:], strict=True):
        errors[name] = compute_frobenius_error(x, want[f"d{name}"], floors.get(name, floor))
    assert max(errors.values()) < 4e-3, errors


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("case", DENSE_CASES)
def test_shape_policies_give_equal_results(case: str, kv_heads: int, layout: str) -> None:
    options, masks = DENSE_CASES[case]
    for b, s in ((3, 77), (1, 200), (4, 130)):
        *inputs, d_o = make_random_inputs(b, s, layout=layout, kv_heads=kv_heads)
        for policy in SHAPE_POLICIES:
            o = attention(*inputs, **options, shapes=policy)
            assert o.stride() == inputs[0].stride()
            grads = torch.autograd.grad(o, inputs, d_o)
            check_attention_results(dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, masks)


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_output_rows_beyond_the_lengths_are_zero(policy: str, layout: str) -> None:
    b, s = 6, 150
    *inputs, d_o = make_random_inputs(b, s, layout=layout)
    len_q = torch.tensor([150, 100, 1, 0, 0, 5], device="cuda", dtype=torch.int32)
    len_kv = torch.tensor([90, 150, 1, 3, 0, 0], device="cuda", dtype=torch.int32)
    # The memory that torch's allocator returns next held other data.
    spoiled = [torch.full_like(inputs[0], float("nan")) for _ in range(4)]
    del spoiled
    o = attention(*inputs, seq_len_q=len_q, seq_len_kv=len_kv, shapes=policy)
    grads = torch.autograd.grad(o, inputs, d_o)
    for x, lens in ((o, len_q), (grads[0], len_q), (grads[1], len_kv), (grads[2], len_kv)):
        for i, n in enumerate(lens.tolist()):
            assert not x[i, :, n:].any(), (policy, i, n)
    check_attention_results(
        dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(), len_q=len_q, len_kv=len_kv
    )


@pytest.mark.parametrize("policy", ["exact", "any"])
@pytest.mark.parametrize("how", ["slices of one buffer", "part of a longer buffer", "heads of a longer buffer"])
@pytest.mark.parametrize("s", [1, 40])
def test_tensors_with_gaps_between_rows_are_right(how: str, s: int, policy: str) -> None:
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
    check_attention_results(dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(right_bound=0))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_single_sequence_with_lengths_is_right(layout: str) -> None:
    *inputs, d_o = make_random_inputs(1, 300, layout=layout)
    len_q, len_kv = (torch.tensor([n], device="cuda", dtype=torch.int32) for n in (2, 270))
    o = attention(*inputs, seq_len_q=len_q, seq_len_kv=len_kv, shapes="any")
    grads = torch.autograd.grad(o, inputs, d_o)
    check_attention_results(
        dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(), len_q=len_q, len_kv=len_kv
    )


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
@pytest.mark.parametrize("dims", [(1, 1), (3, 1), (1, H), (3, H)], ids=str)
def test_bias_and_its_gradient_are_right(policy: str, dims: tuple[int, int]) -> None:
    for s in (64, 200):
        *inputs, d_o = make_random_inputs(3, s)
        bias = torch.randn(*dims, s, s, device="cuda", dtype=torch.half, requires_grad=True)
        o = attention(*inputs, bias=bias, shapes=policy)
        named = dict(zip(("q", "k", "v", "bias"), (*inputs, bias), strict=True))
        check_attention_results(named, [o, *torch.autograd.grad(o, list(named.values()), d_o)], d_o, Masks())


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
@pytest.mark.parametrize("dims", [(1, H, 0, 1), (3, H, 1, 0), (1, 1, 1, 1)], ids=["keys", "rows", "all"])
def test_gradient_of_a_bias_shared_by_rows_or_keys_is_right(policy: str, dims: tuple[int, ...]) -> None:
    for s in (64, 200):
        *inputs, d_o = make_random_inputs(3, s)
        bias = torch.randn(*[dim or s for dim in dims], device="cuda", dtype=torch.half, requires_grad=True)
        o = attention(*inputs, bias=bias, shapes=policy)
        named = dict(zip(("q", "k", "v", "bias"), (*inputs, bias), strict=True))
        summed = 3 * H * s // math.prod(bias.shape[:3])
        check_attention_results(named, [o, *torch.autograd.grad(o, list(named.values()), d_o)], d_o, Masks(), summed)


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
@pytest.mark.parametrize("kv_heads", [H, 2])
def test_attention_sink_and_its_gradient_are_right(policy: str, kv_heads: int) -> None:
    *inputs, d_o = make_random_inputs(2, 140, kv_heads=kv_heads)
    sink = torch.randn(H, device="cuda", requires_grad=True)
    o = attention(*inputs, sink=sink, causal=True, shapes=policy)
    named = dict(zip(("q", "k", "v", "sink"), (*inputs, sink), strict=True))
    check_attention_results(named, [o, *torch.autograd.grad(o, list(named.values()), d_o)], d_o, Masks(right_bound=0))


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_statistics_are_right_with_each_policy(policy: str, layout: str) -> None:
    *inputs, d_o = make_random_inputs(3, 99, layout=layout)
    _, stats = attention(*inputs, causal=True, shapes=policy, return_stats=True)
    want = compute_reference_gradients(dict(zip("qkv", inputs, strict=True)), d_o, Masks(right_bound=0))["stats"]
    assert stats.shape == (3, H, 99, 1)
    assert (stats.squeeze(-1) - want).abs().max() < 2e-3


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
def test_the_backward_pass_uses_the_dropout_of_the_forward_pass(policy: str) -> None:
    b, s = 2, 200
    q, k, _, _ = make_random_inputs(b, s)
    v = torch.eye(s, D, device="cuda", dtype=torch.half).expand(b, H, s, D).contiguous().requires_grad_(True)
    for _ in range(6):  # also if the exact plan is ready in the meantime
        o = attention(q, k, v, dropout=0.5, shapes=policy)
        # dV = P^T dO: with dO 1 for elements that the forward pass kept, another mask would lose half of it.
        (dv,) = torch.autograd.grad(o, v, (o > 0).half())
        kept, whole = float((dv.double() * v.detach()).sum()), float(o.detach().double().sum())
        assert abs(kept - whole) < 0.02 * whole
        time.sleep(0.2)


def test_adaptive_policy_switches_to_the_exact_plan_on_repeats() -> None:
    clear_plans()
    q, k, v, _ = (x.detach() for x in make_random_inputs(2, 210))
    runs = [attention(q, k, v, causal=True, shapes="adaptive") for _ in range(CALLS_IN_A_ROW)]
    assert all(torch.equal(x, runs[0]) for x in runs), "the first calls must use one class plan"
    assert get_shared_pool().wait()
    kinds = [key[0] for key in get_shared_pool().list_keys()]
    assert kinds.count("exact") == 1
    found = attention(q, k, v, causal=True, shapes="adaptive")
    assert len(get_shared_pool()) == len(kinds)
    assert torch.equal(found, attention(q, k, v, causal=True, shapes="exact"))
    assert compute_frobenius_error(found, runs[0]) < 1e-3


def test_deterministic_attention_is_repeatable() -> None:
    clear_plans()
    q, k, v, d_o = make_random_inputs(2, 333)
    runs = []
    for _ in range(6):
        o = attention(q, k, v, deterministic=True, shapes="adaptive")
        runs.append((o.detach(), *torch.autograd.grad(o, (q, k, v), d_o)))
        time.sleep(0.2)
    assert all(torch.equal(mine, other) for run in runs[1:] for mine, other in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
def test_output_rows_without_keys_are_zero(policy: str) -> None:
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


@pytest.mark.parametrize("policy", SHAPE_POLICIES)
def test_attention_writes_the_out_tensor(policy: str) -> None:
    q, k, v, _ = (x.detach() for x in make_random_inputs(2, 100))
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
def test_a_new_shape_of_a_built_shape_class_needs_no_build() -> None:
    torch.manual_seed(1)
    attention(*(x.detach() for x in make_random_inputs(4, 1024)[:3]), causal=True, shapes="any")
    lengths = torch.randperm(480)[:100].add(520).tolist()
    inputs = [[x.detach() for x in make_random_inputs(4, s)[:3]] for s in lengths]
    torch.cuda.synchronize()
    gc.collect()
    times = []
    for q, k, v in inputs:
        begin = time.perf_counter()
        attention(q, k, v, causal=True, shapes="any")
        times.append((time.perf_counter() - begin) * 1e3)
    times.sort()
    append_measurement_to_run_record(
        "torch operator, first call of a shape in a known class, ms", median=times[50], p99=times[98]
    )
    assert times[98] < 30, "a call waited for the build of a plan"


@pytest.fixture
def wait_for_compiled_step() -> None:
    """Wait until the operators' C++ code is compiled, which happens in the background after a first call."""
    attention(*(x.detach() for x in make_random_inputs(1, 64)[:3]), shapes="any")
    if not EXTENSION.wait(300):
        pytest.skip(f"did not run: there is no compiled step ({describe_extension()})")


def make_random_inputs_or_slices(b: int, s: int, layout: str) -> list[Any]:
    """Return the tensors of :func:`make_random_inputs`; with layout "parts", k and v are slices of longer tensors."""
    if layout != "parts":
        return make_random_inputs(b, s, layout=layout)
    q, _, _, d_o = make_random_inputs(b, s)
    found = [torch.randn(b, s + 9, H, D, device="cuda", dtype=torch.half)[:, :s].transpose(1, 2) for _ in "kv"]
    return [q, *(x.detach().requires_grad_(True) for x in found), d_o]


@pytest.mark.usefixtures("wait_for_compiled_step")
@pytest.mark.parametrize("policy", ["any", "adaptive"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "parts"])
def test_the_compiled_step_runs_new_shapes_of_a_shape_class(layout: str, policy: str) -> None:
    clear_plans()
    rng = random.Random(layout)
    shapes = [(rng.choice((5, 6)), rng.randint(257, 512)) for _ in range(40)]

    def call_attention_and_gradients(b: int, s: int) -> Any:
        *inputs, d_o = make_random_inputs_or_slices(b, s, layout)
        o = attention(*inputs, causal=True, shapes=policy)
        return inputs, d_o, [o, *torch.autograd.grad(o, inputs, d_o)]

    for shape in ((6, 500), (6, 501), (5, 499), (6, 502)):
        call_attention_and_gradients(*shape)
    known = len(strategies._strategies)
    for b, s in shapes:
        inputs, d_o, found = call_attention_and_gradients(b, s)
        check_attention_results(dict(zip("qkv", inputs, strict=True)), found, d_o, Masks(right_bound=0))
    returned = len(shapes) - len(set(shapes))
    assert len(strategies._strategies) <= known + (2 * returned if policy == "adaptive" else 0)


@pytest.mark.usefixtures("wait_for_compiled_step")
def test_the_compiled_step_accepts_new_lengths_in_a_shape_class() -> None:
    for number, (b, s) in enumerate([(4, 120), (4, 100), (4, 65), (4, 128), (4, 77), (4, 99)]):
        *inputs, d_o = make_random_inputs(b, s)
        len_q, len_kv = (torch.randint(1, s + 1, (b,), device="cuda", dtype=torch.int32) for _ in "qk")
        spoiled = [torch.full_like(inputs[0], float("nan")) for _ in range(4)]
        del spoiled
        o = attention(*inputs, seq_len_q=len_q, seq_len_kv=len_kv, shapes="any")
        grads = torch.autograd.grad(o, inputs, d_o)
        check_attention_results(
            dict(zip("qkv", inputs, strict=True)), [o, *grads], d_o, Masks(), len_q=len_q, len_kv=len_kv
        )
        for i, n in enumerate(len_q.tolist()):
            assert not o[i, :, n:].any(), (number, i, n)


@pytest.mark.usefixtures("wait_for_compiled_step")
def test_decoding_token_by_token_uses_one_shape_class() -> None:
    """Decode dense tensors with one query, and one key more at each step."""
    clear_plans()
    b = 3
    keys, values = (torch.randn(b, 200, H, D, device="cuda", dtype=torch.half) for _ in "kv")
    known = 0
    for s in range(130, 200):
        q = torch.randn(b, 1, H, D, device="cuda", dtype=torch.half).transpose(1, 2)
        k, v = (x[:, :s].transpose(1, 2) for x in (keys, values))
        found = attention(q, k, v, shapes="any")
        assert (
            compute_frobenius_error(
                found, torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (q, k, v)))
            )
            < 2e-3
        )
        known = known or len(strategies._strategies)
    assert len(strategies._strategies) <= known + 1


@pytest.mark.usefixtures("wait_for_compiled_step")
def test_each_call_uses_the_offset_tables_of_its_own_lengths() -> None:
    """Alternate shapes on two streams, with two operators and in a captured graph."""
    clear_plans()
    inputs = {s: [x.detach() for x in make_random_inputs(2, s)[:3]] for s in (300, 400)}
    want = {s: attention(*given, causal=True, shapes="exact") for s, given in inputs.items()}
    for s in (300, 400):
        attention(*inputs[s], causal=True, shapes="any")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention(*inputs[300], causal=True, shapes="any")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    rng, found = random.Random(0), []
    for _ in range(200):
        s, stream = rng.choice((300, 400)), rng.choice(streams)
        with torch.cuda.stream(stream):
            if rng.random() < 0.2:
                graph.replay()
                found.append((300, captured.clone()))
            for _ in range(rng.randint(1, 3)):
                found.append((s, attention(*inputs[s], causal=True, shapes="any")))
            torch.cuda.synchronize()  # one graph is not replayed on two streams at once
    for s, o in found:
        assert compute_frobenius_error(o, want[s]) < 2e-3


@pytest.mark.usefixtures("wait_for_compiled_step")
def test_a_larger_shape_class_plan_serves_during_the_build() -> None:
    clear_plans()
    attention(*(x.detach() for x in make_random_inputs(4, 1024)[:3]), causal=True, shapes="adaptive")
    for s in (100, 101, 102, 103):
        q, k, v, d_o = make_random_inputs(2, s)
        o = attention(q.detach(), k.detach(), v.detach(), causal=True, shapes="adaptive")
        assert (
            compute_frobenius_error(
                o, compute_reference_gradients({"q": q, "k": k, "v": v}, d_o, Masks(right_bound=0))["o"]
            )
            < 4e-3
        )
    assert get_shared_pool().wait()
    there = [get_shared_pool().find(key) for key in get_shared_pool().list_keys()]
    better = next(held.plan for held in there if held is not None and held.plan.bounds.q == 128)
    for s in (104, 105, 106):
        q, k, v = (x.detach() for x in make_random_inputs(2, s)[:3])
        attention(q, k, v, causal=True, shapes="adaptive")
    assert better.streams, "the compiled step must use the closer class plan too"
    known = len(strategies._strategies)
    q, k, v = (x.detach() for x in make_random_inputs(2, 107)[:3])
    attention(q, k, v, causal=True, shapes="adaptive")
    assert len(strategies._strategies) == known


def test_layers_of_a_training_step_do_not_trigger_an_exact_plan() -> None:
    clear_plans()

    def count_exact_plans() -> int:
        assert get_shared_pool().wait()
        return [key[0] for key in get_shared_pool().list_keys()].count("exact")

    for s in range(200, 210):
        q, k, v, d_o = make_random_inputs(2, s)
        for _ in range(12):
            o = attention(q, k, v, causal=True, shapes="adaptive")
        for _ in range(12):
            torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)
    assert count_exact_plans() == 2, "only the first shape has exact plans, forward and backward"
    for _ in range(2):
        for s in (220, 230):
            q, k, v = (x.detach() for x in make_random_inputs(2, s)[:3])
            attention(q, k, v, causal=True, shapes="adaptive")
    before = count_exact_plans()
    for s in (220, 230):
        q, k, v = (x.detach() for x in make_random_inputs(2, s)[:3])
        want = attention(q, k, v, causal=True, shapes="exact")
        attention(q, k, v, causal=True, shapes="adaptive")
        assert count_exact_plans() >= before + 2, "the third visit of a shape must build its exact plans"
        assert torch.equal(attention(q, k, v, causal=True, shapes="adaptive"), want)
        before = count_exact_plans()


def test_strides_of_a_single_token_are_not_used_for_more_tokens() -> None:
    """A single token's stride has no meaning: the operators' C++ code must not use it for several tokens."""
    whole = torch.randn(8, 3, H, D, device="cuda", dtype=torch.half)
    for rows in (1, 1, 1, 1, 5):
        q, k, v = (x[:rows] for x in whole.unbind(1))
        cu = torch.tensor([0, rows], device="cuda", dtype=torch.int32)
        o = attention_varlen(q, k, v, cu, None, rows, shapes="any")
        want = torch.nn.functional.scaled_dot_product_attention(*(x.double().transpose(0, 1) for x in (q, k, v)))
        assert o.shape == q.shape
        assert compute_frobenius_error(o, want.transpose(0, 1)) < 2e-3


@pytest.mark.alone
def test_memory_stays_constant_over_many_shapes() -> None:
    whole = torch.randn(4, 512, 3, H, D, device="cuda", dtype=torch.half)
    torch.manual_seed(3)
    sizes = torch.randint(1, 512, (4000,)).tolist()

    def measure_memory_after_calls(sizes: list[int]) -> tuple[int, int]:
        for i, s in enumerate(sizes):
            attention(*(x.transpose(1, 2) for x in whole[: i % 4 + 1, :s].unbind(2)), shapes="any")
        torch.cuda.synchronize()
        gc.collect()
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    runs = [measure_memory_after_calls([s % most + 1 for s in sizes]) for most in (512, 500, 490)]
    assert runs[-1][0] <= runs[0][0] + (1 << 20)
    # Other processes use the GPU's memory too: a leak would show after each.
    assert min(one[1] - two[1] for one, two in pairwise(runs)) <= 64 << 20


def test_an_invalid_shape_policy_is_refused() -> None:
    q, k, v, _ = make_random_inputs(1, 32)
    with pytest.raises(UsageError, match="shapes must be one of exact, any, adaptive, got 'some'"):
        attention(q, k, v, shapes="some")
    with pytest.raises(UsageError, match="'some'"):
        set_shapes("some")
    assert set_shapes("adaptive") == "any"
    assert set_shapes("any") == "adaptive"
