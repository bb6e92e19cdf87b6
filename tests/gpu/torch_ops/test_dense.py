"""Dense attention on the GPU, compared with torch's math backend in float32; autograd, compile, streams.

All tests run with the plan of the exact shape, and with that of a shape class.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cudnn_backend_py import GraphError, UsageError
from cudnn_backend_py.torch_ops import attention, clear_plans, scaled_dot_product_attention, set_shapes
from cudnn_backend_py.torch_ops.arguments import SCALES, TENSORS
from cudnn_backend_py.torch_ops.compiled import STEP
from tests.support.figures import append_measurement_to_run_record
from tests.support.streams import block_stream

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning")  # torch's own
MAX_FROBENIUS_ERRORS = {
    "float16": (1e-3, 3e-3),
    "bfloat16": (8e-3, 2e-2),
}  # relative Frobenius: of the output, of gradients
B, H, S, D = 2, 8, 384, 64


@pytest.fixture(autouse=True, params=["exact", "any"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    former = set_shapes(request.param)
    yield request.param
    set_shapes(former)


def make_random_inputs(
    kind: str, *, kv_heads: int = H, seq_kv: int = S, layout: str = "bhsd", head_dim: int = D
) -> list[Any]:
    """Return q, k, v and the gradient of the output; q, k, v need gradients."""
    torch.manual_seed(7)
    found = []
    for heads, seq in ((H, S), (kv_heads, seq_kv), (kv_heads, seq_kv), (H, S)):
        if layout == "bshd":
            x = torch.randn(B, seq, heads, head_dim, device="cuda", dtype=getattr(torch, kind)).transpose(1, 2)
        else:
            x = torch.randn(B, heads, seq, head_dim, device="cuda", dtype=getattr(torch, kind))
        found.append(x)
    return [x.requires_grad_(True) for x in found[:3]] + found[3:]


def compute_float32_reference(inputs: list[Any], d_o: Any, **options: Any) -> list[Any]:
    """Return the output and the gradients of torch's math backend in float32."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wide = [x.detach().float().requires_grad_(True) for x in inputs]
    mask = wide[3] if len(wide) > 3 else options.pop("attn_mask", None)
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(*wide[:3], attn_mask=mask, **options)
    return [o.detach(), *torch.autograd.grad(o, wide, d_o.float())]


def compute_relative_error(found: Any, want: Any) -> float:
    return float((found.detach().float() - want).norm() / want.norm())


def check_relative_errors(kind: str, found: list[Any], want: list[Any], name: str) -> None:
    errors = [compute_relative_error(mine, other) for mine, other in zip(found, want, strict=True)]
    append_measurement_to_run_record(f"torch operator, {name}, {kind}", relative_frobenius=errors)
    forward, backward = MAX_FROBENIUS_ERRORS[kind]
    assert errors[0] < forward, errors
    assert max(errors[1:]) < backward, errors


DENSE_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "causal": ({}, {"is_causal": True}),
    "causal, rows before heads": ({"layout": "bshd"}, {"is_causal": True}),
    "grouped heads": ({"kv_heads": 2, "layout": "bshd"}, {"is_causal": True, "enable_gqa": True}),
    "other lengths, scale": ({"seq_kv": 512}, {"scale": 0.05}),
    "d 128": ({"head_dim": 128}, {"is_causal": True}),
}


@pytest.mark.parametrize("kind", MAX_FROBENIUS_ERRORS)
@pytest.mark.parametrize("case", DENSE_CASES)
def test_output_and_gradients_agree_with_float32(case: str, kind: str) -> None:
    how, options = DENSE_CASES[case]
    *inputs, d_o = make_random_inputs(kind, **how)
    o = scaled_dot_product_attention(*inputs, **options)
    assert (o.dtype, o.stride(1) > o.stride(2)) == (inputs[0].dtype, inputs[0].stride(1) > inputs[0].stride(2))
    check_relative_errors(
        kind, [o, *torch.autograd.grad(o, inputs, d_o)], compute_float32_reference(inputs, d_o, **options), case
    )


def test_slices_of_one_buffer_are_used_in_place() -> None:
    whole = torch.randn(B, S, 3, H, D, device="cuda", dtype=torch.half, requires_grad=True)
    d_o = torch.randn(B, H, S, D, device="cuda", dtype=torch.half)
    inputs = [x.transpose(1, 2) for x in whole.unbind(2)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o = scaled_dot_product_attention(*inputs, is_causal=True)
    # Memory for the output and its statistics, but not for copies of the inputs.
    assert torch.cuda.max_memory_allocated() - before < 2 * o.numel() * o.element_size()
    want = compute_float32_reference(inputs, d_o, is_causal=True)
    check_relative_errors("float16", [o, *torch.autograd.grad(o, inputs, d_o)], want, "slices of one buffer")


@pytest.mark.parametrize("how", ["expanded", "misaligned", "scattered"])
def test_layouts_cudnn_cannot_read_are_copied(how: str) -> None:
    *inputs, d_o = make_random_inputs("float16")
    q, k, v = (x.detach() for x in inputs)
    if how == "expanded":
        v = v[:, :1].expand(-1, H, -1, -1)
    elif how == "misaligned":
        v = torch.randn(v.numel() + 1, device="cuda", dtype=torch.half)[1:].view(v.shape)
    else:
        v = torch.randn(B, H, D, S, device="cuda", dtype=torch.half).transpose(2, 3)
    found = [x.requires_grad_(True) for x in (q, k, v)]
    o = scaled_dot_product_attention(*found)
    check_relative_errors(
        "float16", [o, *torch.autograd.grad(o, found, d_o)], compute_float32_reference(found, d_o), how
    )
    o = scaled_dot_product_attention(*found)
    (gradient,) = torch.autograd.grad(o.sum(), found[:1])  # a gradient of the output that is one number, expanded
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dims", [(S, S), (B, 1, S, S), (1, H, S, S), (1, 1, 1, S)], ids=str)
def test_dense_attention_applies_a_bool_mask(dims: tuple[int, ...]) -> None:
    *inputs, d_o = make_random_inputs("float16")
    mask = torch.rand(dims, device="cuda") > 0.3
    o = scaled_dot_product_attention(*inputs, attn_mask=mask)
    want = compute_float32_reference(inputs, d_o, attn_mask=mask)
    check_relative_errors("float16", [o, *torch.autograd.grad(o, inputs, d_o)], want, f"bool mask {dims}")


def test_dense_attention_computes_the_gradient_of_a_float_mask() -> None:
    *inputs, d_o = make_random_inputs("float16")
    inputs.append(torch.randn(1, H, S, S, device="cuda", dtype=torch.half, requires_grad=True))
    o = scaled_dot_product_attention(*inputs[:3], attn_mask=inputs[3])
    check_relative_errors(
        "float16", [o, *torch.autograd.grad(o, inputs, d_o)], compute_float32_reference(inputs, d_o), "float mask"
    )


def test_gradients_of_dense_attention_agree_with_finite_differences() -> None:
    """Measure with the operator itself how much a step along the gradient changes the result."""
    *inputs, d_o = make_random_inputs("float16")
    o = scaled_dot_product_attention(*inputs, is_causal=True)
    gradients = torch.autograd.grad(o, inputs, d_o)
    for index, gradient in enumerate(gradients):
        compiled_attention = gradient.float() / gradient.float().norm()
        ends, places = [], []
        for sign in (1, -1):
            moved = [x.detach() for x in inputs]
            moved[index] = (moved[index].float() + sign * compiled_attention).half()
            places.append(moved[index].double())
            ends.append((scaled_dot_product_attention(*moved, is_causal=True).double() * d_o.double()).sum())
        # The actual steps, not the intended ones: float16 rounds each element.
        want = float((gradient.double() * (places[0] - places[1])).sum())
        assert math.isclose(float(ends[0] - ends[1]), want, rel_tol=0.02)


def test_stats_padding_and_sink_are_right() -> None:
    q, k, v, d_o = make_random_inputs("float16")
    lens = torch.tensor([S, 100], device="cuda", dtype=torch.int32)
    o, stats = attention(q, k, v, seq_len_q=lens, seq_len_kv=lens, return_stats=True)
    scores = (q.detach().float() @ k.detach().float().transpose(2, 3)) / math.sqrt(D)
    want = scores[1, :, :100, :100].logsumexp(-1)
    assert (stats[1, :, :100, 0] - want).abs().max() < 2e-3
    sink = torch.randn(H, device="cuda", requires_grad=True)
    o = attention(q, k, v, sink=sink)
    wide = [x.detach().float().requires_grad_(True) for x in (q, k, v, sink)]
    logits = torch.cat(
        [(wide[0] @ wide[1].transpose(2, 3)) / math.sqrt(D), wide[3].view(1, H, 1, 1).expand(B, H, S, 1)], -1
    )
    other = logits.softmax(-1)[..., :-1] @ wide[2]
    want_all = [other.detach(), *torch.autograd.grad(other, wide, d_o.float())]
    check_relative_errors("float16", [o, *torch.autograd.grad(o, (q, k, v, sink), d_o)], want_all, "sink")


def test_dropout_uses_the_generator_of_torch_and_repeats_in_the_backward_pass() -> None:
    q, k, _, d_o = make_random_inputs("float16")
    v = torch.eye(S, D, device="cuda", dtype=torch.half).expand(B, H, S, D).contiguous().requires_grad_(True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        o = scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        results.append((o, torch.autograd.grad(o, v, d_o, retain_graph=True)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[2][0])
    o = results[0][0]
    share = float((o == 0).float().mean())  # o is the first columns of the probabilities
    assert 0.45 < share < 0.55
    # dV = P^T dO: dO is 1 for elements that the forward pass kept, else 0; another mask would lose half of them.
    (dv,) = torch.autograd.grad(o, v, (o > 0).half())
    assert math.isclose(float((dv.double() * v.detach()).sum()), float(o.detach().double().sum()), rel_tol=0.02)


def test_deterministic_backward_is_repeatable() -> None:
    q, k, v, d_o = make_random_inputs("float16", layout="bshd")
    torch.use_deterministic_algorithms(True)
    try:
        runs = [torch.autograd.grad(scaled_dot_product_attention(q, k, v), (q, k, v), d_o) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(mine, other) for run in runs[1:] for mine, other in zip(run, runs[0], strict=True))


# compile, checks, graphs


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_dense_attention_compiles_as_one_graph(dynamic: bool) -> None:
    @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")
    def compute_compiled_attention(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    torch._dynamo.reset()
    *inputs, d_o = make_random_inputs("float16", layout="bshd")
    o = compute_compiled_attention(*inputs)
    plain = scaled_dot_product_attention(inputs[0] * 2, *inputs[1:], is_causal=True) + 1
    assert torch.equal(o, plain)
    found, want = (torch.autograd.grad(x, inputs, d_o) for x in (o, plain))
    assert all(compute_relative_error(mine, other.float()) < 2e-3 for mine, other in zip(found, want, strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_operators_pass_opcheck(dropout: float, policy: str) -> None:
    q, k, v, _ = make_random_inputs("float16", kv_heads=2, layout="bshd")
    rng = torch.zeros(4, dtype=torch.int64, device="cuda") if dropout else None
    empty = [None] * (len(TENSORS) - 4)
    options = (None, dropout, None, 0, False, None, True, None, None, policy)
    arguments = (q, k, v, *empty, rng, *[None] * len(SCALES), *options, True)
    torch.library.opcheck(torch.ops.cudnn_backend.sdpa_forward.default, arguments)


def test_calls_are_captured_in_a_cuda_graph() -> None:
    q, k, v, _ = (x.detach() for x in make_random_inputs("float16"))
    scaled_dot_product_attention(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = scaled_dot_product_attention(q, k, v)
    q.copy_(torch.randn_like(q))
    graph.replay()
    assert torch.equal(o, scaled_dot_product_attention(q, k, v))


# streams and threads


def test_dense_attention_runs_on_the_current_stream() -> None:
    q, k, v, _ = (x.detach() for x in make_random_inputs("float16"))
    want = scaled_dot_product_attention(q, k, v)
    fresh = torch.zeros_like(q)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), block_stream(torch, stream):  # a call on another stream would read zeros
        fresh.copy_(q)
        found = scaled_dot_product_attention(fresh, k, v)
        assert not stream.query()
    torch.cuda.synchronize()
    assert torch.equal(found, want)


def test_threads_use_separate_streams() -> None:
    failed: list[str] = []

    def call_in_thread(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.full((B, H, S, D), float(seed), device="cuda", dtype=torch.half)
                for _ in range(200):
                    o = scaled_dot_product_attention(x, x, x)
                    x = o.clone()
                torch.cuda.current_stream().synchronize()
                if not torch.allclose(x, torch.full_like(x, float(seed)), rtol=1e-2):
                    failed.append(f"{seed}: {x.flatten()[:4]}")
        except Exception as error:  # reported by the main thread
            failed.append(repr(error))

    threads = [threading.Thread(target=call_in_thread, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# with and without the dispatcher


def test_operators_and_the_compiled_step_give_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    *inputs, d_o = make_random_inputs("float16", layout="bshd")
    found = []
    for way in ("short", "operator"):
        if way == "operator":
            monkeypatch.setattr("cudnn_backend_py.torch_ops.operators.is_eager", lambda *_: False)
            monkeypatch.setattr(STEP, "call", None)  # it may have learned the call from the first one
        o, stats = attention(*inputs, causal=True, deterministic=True, return_stats=True)
        assert ("Generated" in o.grad_fn.name()) == (way == "operator")
        found.append([o.detach(), stats, *torch.autograd.grad(o, inputs, d_o)])
    assert all(map(torch.equal, *found))


def test_dispatch_modes_and_transforms_see_the_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class RecordingMode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    q, k, v, _ = (x.detach() for x in make_random_inputs("float16"))
    want = attention(q, k, v)
    assert not names
    with RecordingMode():
        assert torch.equal(attention(q, k, v), want)
    assert "cudnn_backend::sdpa_forward" in names
    both = torch.stack([q, q])
    assert torch.equal(torch.func.vmap(lambda x: attention(x, k, v))(both)[1], want)


# refusals


def test_unsupported_arguments_are_reported() -> None:
    q, k, v, _ = (x.detach() for x in make_random_inputs("float16"))
    wrong: list[tuple[type[Exception], str, Any]] = [
        (UsageError, "one CUDA device", lambda: scaled_dot_product_attention(q.cpu(), k.cpu(), v.cpu())),
        (UsageError, "k is on cpu, q on cuda:0", lambda: scaled_dot_product_attention(q, k.cpu(), v)),
        (UsageError, "float16 for all", lambda: scaled_dot_product_attention(q.float(), k.float(), v.float())),
        (UsageError, "enable_gqa|heads", lambda: scaled_dot_product_attention(q, k[:, :2], v[:, :2])),
        (UsageError, "attn_mask", lambda: scaled_dot_product_attention(q, k, v, q[0, 0, :3, :1] > 0)),
        (UsageError, r"k is float16 \[2, 8, 384, 32\]", lambda: scaled_dot_product_attention(q, k[..., :32], v)),
        (GraphError, "attention-heads", lambda: scaled_dot_product_attention(q, k[:, :3], v[:, :3], enable_gqa=True)),
        (
            UsageError,
            "seq_len_q is given without seq_len_kv",
            lambda: attention(q, k, v, seq_len_q=torch.ones(B).cuda()),
        ),
    ]
    for kind, words, call in wrong:
        with pytest.raises(kind, match=words or None):
            call()
    assert torch.isfinite(scaled_dot_product_attention(q, k, v)).all(), "the CUDA context must stay usable"


def test_a_second_derivative_is_refused() -> None:
    q, k, v, _ = make_random_inputs("float16")
    (gradient,) = torch.autograd.grad(scaled_dot_product_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(UsageError, match="no second derivative"):
        gradient.sum().backward()


def test_plans_of_dense_attention_can_be_released() -> None:
    q, k, v, _ = (x.detach() for x in make_random_inputs("float16"))
    want = scaled_dot_product_attention(q, k, v)
    clear_plans()
    assert torch.equal(scaled_dot_product_attention(q, k, v), want)
