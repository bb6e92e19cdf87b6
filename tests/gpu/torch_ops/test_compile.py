"""The operators within torch: opcheck, gradient checks, compile with dynamic shapes, autocast, streams, devices."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py.torch_ops import (
    attention,
    attention_varlen,
    attention_with_kvcache,
    scaled_dot_product_attention,
)
from cudnn_backend_py.torch_ops.arguments import SCALES, TENSORS, OperatorOptions
from cudnn_backend_py.torch_ops.operators import load_torch
from tests.support.gpu_requirements import needs_two_gpus
from tests.support.streams import block_stream
from tests.support.torch_reference import (
    Masks,
    compute_frobenius_error,
    compute_reference_attention,
    compute_reference_gradients,
    copy_sequences_to_shuffled_pages,
    pack_tokens,
    unpack_tokens,
)

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning")  # torch's own


load_torch()


def make_int32_tensor(values: list[int], device: str = "cuda") -> Any:
    return torch.tensor(values, device=device, dtype=torch.int32)


def make_random_half(*dims: int, device: str = "cuda") -> Any:
    return torch.randn(dims, device=device, dtype=torch.half)


def make_operator_arguments(stats: bool, options: OperatorOptions, **tensors: Any) -> tuple[Any, ...]:
    return (*[tensors.get(name) for name in (*TENSORS, *SCALES)], *options, stats)


PLAIN_OPTIONS = OperatorOptions(None, 0.0, None, None, False, None, True, None, None, "any")


@pytest.mark.parametrize("form", ["dense", "packed", "paged", "fp8"])
def test_operators_pass_opcheck(form: str) -> None:
    operator = torch.ops.cudnn_backend.sdpa_forward.default
    if form == "dense":
        q, k, v = (make_random_half(2, 100, 4, 64).transpose(1, 2).requires_grad_(True) for _ in range(3))
        given = make_operator_arguments(
            True, PLAIN_OPTIONS._replace(right_bound=0), q=q, k=k, v=v, sink=torch.randn(4, device="cuda")
        )
    elif form == "packed":
        q, k, v = (make_random_half(100, 4, 64).requires_grad_(True) for _ in range(3))
        cu = make_int32_tensor([0, 30, 30, 100])
        options = PLAIN_OPTIONS._replace(right_bound=0, max_q=70, max_kv=70)
        given = make_operator_arguments(True, options, q=q, k=k, v=v, cu_seqlens_q=cu, cu_seqlens_k=cu)
    elif form == "paged":
        q, k = make_random_half(2, 1, 4, 64).transpose(1, 2), make_random_half(9, 2, 16, 64)
        table, lens = make_int32_tensor([1, 2, 5, 7]).view(2, 2), make_int32_tensor([30, 2])
        given = make_operator_arguments(True, PLAIN_OPTIONS, q=q, k=k, v=k, block_table=table, seq_len_kv=lens)
    else:
        q = make_random_half(2, 64, 4, 128).to(torch.float8_e4m3fn).transpose(1, 2)
        given = make_operator_arguments(
            True, PLAIN_OPTIONS, q=q, k=q, v=q, **dict.fromkeys(SCALES, torch.ones(1, device="cuda"))
        )
    utilities = ["test_faketensor"]
    if form != "fp8":  # torch cannot compare such tensors
        utilities += ["test_schema", "test_autograd_registration"]
    if form in ("dense", "packed"):
        utilities.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, given, test_utils=utilities)


def test_backward_operators_pass_opcheck() -> None:
    q, k, v, d_o = (make_random_half(2, 100, 4, 64).transpose(1, 2) for _ in range(4))
    sink = torch.randn(4, device="cuda")
    options = PLAIN_OPTIONS._replace(right_bound=0)
    forward = torch.ops.cudnn_backend.sdpa_forward(*make_operator_arguments(True, options, q=q, k=k, v=v, sink=sink))
    tensors = [{"q": q, "k": k, "v": v, "sink": sink}.get(name) for name in TENSORS]
    torch.library.opcheck(
        torch.ops.cudnn_backend.sdpa_backward.default,
        (d_o, *forward[:2], *tensors, *options, False, True),
        test_utils=["test_schema", "test_faketensor"],
    )


def test_gradients_of_packed_attention_agree_with_finite_differences() -> None:
    """A small step along each gradient must change the result of packed attention as the gradient predicts."""
    many = [60, 0, 1, 100]
    q, k, v, d_o = (make_random_half(161, 4, 64) for _ in range(4))
    cu = make_int32_tensor([0, 60, 60, 61, 161])
    inputs = [x.requires_grad_(True) for x in (q, k, v)]

    def compute_packed_attention(*given: Any) -> Any:
        return attention_varlen(*given, cu, None, max(many), causal=True)

    grads = torch.autograd.grad(compute_packed_attention(*inputs), inputs, d_o)
    for index, gradient in enumerate(grads):
        step = gradient.float() / gradient.float().norm()
        ends, places = [], []
        for sign in (1, -1):
            moved = [x.detach() for x in inputs]
            moved[index] = (moved[index].float() + sign * step).half()
            places.append(moved[index].double())
            ends.append((compute_packed_attention(*moved).double() * d_o.double()).sum())
        want = float((gradient.double() * (places[0] - places[1])).sum())
        assert abs(float(ends[0] - ends[1]) - want) < 0.02 * abs(want)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_packed_tokens_compile_once_for_all_lengths(backend: str) -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def compute_scaled_packed_attention(q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        return attention_varlen(q * 2, k, v, cu, None, longest, causal=True) + 1

    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    for many in ([60, 3, 100], [7, 200, 33], [1, 2, 300]):
        inputs = [make_random_half(sum(many), 4, 64).requires_grad_(True) for _ in range(3)]
        d_o = make_random_half(sum(many), 4, 64)
        o = compute_scaled_packed_attention(*inputs, make_int32_tensor([sum(many[:i]) for i in range(4)]), max(many))
        grads = torch.autograd.grad(o, inputs, d_o)
        wide = {name: unpack_tokens(x.detach(), many, max(many)) for name, x in zip("qkv", inputs, strict=True)}
        wide["q"] = wide["q"] * 2
        lens = {"len_q": make_int32_tensor(many), "len_kv": make_int32_tensor(many)}
        want = compute_reference_gradients(wide, unpack_tokens(d_o, many, max(many)), Masks(right_bound=0), **lens)
        assert compute_frobenius_error(o - 1, pack_tokens(want["o"], many)) < 4e-3
        for x, name, factor in zip(grads, ("dq", "dk", "dv"), (2, 1, 1), strict=True):
            assert compute_frobenius_error(x, factor * pack_tokens(want[name], many)) < 4e-3
    assert graphs["unique_graphs"] == 1


def test_dense_and_decoding_compile_with_dynamic_shapes() -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def compute_dense_attention(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, causal=True, shapes="any")

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def decode_attention(q: Any, k: Any, v: Any, table: Any, lens: Any) -> Any:
        return attention_with_kvcache(q, k, v, table, lens, causal=True)

    for b, s in ((2, 50), (3, 70), (5, 200)):
        q, k, v = (make_random_half(b, s, 4, 64).transpose(1, 2) for _ in range(3))
        want, _ = compute_reference_attention(*(x.double() for x in (q, k, v)), Masks(right_bound=0))
        assert compute_frobenius_error(compute_dense_attention(q, k, v), want) < 2e-3
        many = [s] * b
        k_pages, table = copy_sequences_to_shuffled_pages(k, many, 16, 3, 1)
        v_pages, _ = copy_sequences_to_shuffled_pages(v, many, 16, 3, 1)
        q = make_random_half(b, 1, 4, 64)
        want, _ = compute_reference_attention(*(x.double() for x in (q.transpose(1, 2), k, v)), Masks())
        assert (
            compute_frobenius_error(
                decode_attention(q, k_pages, v_pages, table, make_int32_tensor(many)).transpose(1, 2), want
            )
            < 2e-3
        )


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of torch, which makes its memory pool by one
@pytest.mark.parametrize("policy", ["any", "adaptive"])
def test_torch_compile_with_cudagraphs_captures_the_operators(policy: str) -> None:
    """The warm-up before the capture accounts for all memory that torch allocates and keeps."""
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, causal=True, shapes=policy) * 2, backend="cudagraphs", dynamic=False
    )
    for _ in range(5):
        q, k, v = (make_random_half(2, 150, 4, 64).transpose(1, 2) for _ in range(3))
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            found = compiled(q, k, v).clone()
        assert (
            compute_frobenius_error(
                found / 2, compute_reference_gradients({"q": q, "k": k, "v": v}, q, Masks(right_bound=0))["o"]
            )
            < 4e-3
        )


def test_compiled_operators_write_the_out_tensor() -> None:
    torch._dynamo.reset()
    q, k, v = (make_random_half(2, 50, 4, 64).transpose(1, 2) for _ in range(3))
    out = torch.empty_like(q)
    compiled = torch.compile(
        lambda q, k, v, out: attention(q, k, v, out=out, shapes="any"), fullgraph=True, backend="aot_eager"
    )
    compiled(q, k, v, out)
    assert (
        compute_frobenius_error(out, compute_reference_attention(*(x.double() for x in (q, k, v)), Masks())[0]) < 2e-3
    )


def test_autocast_casts_the_inputs_of_the_operators() -> None:
    q, k, v = (torch.randn(2, 4, 64, 64, device="cuda", requires_grad=True) for _ in range(3))
    with torch.autocast("cuda", torch.bfloat16):
        o = attention(q, k, v, causal=True)
        packed = attention_varlen(
            *(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)), make_int32_tensor([0, 64, 128]), None, 64
        )
        paged = attention_with_kvcache(
            q[:, :, :1].transpose(1, 2),
            *(make_random_half(8, 16, 4, 64) for _ in range(2)),
            make_int32_tensor([0, 1, 2, 3]).view(2, 2),
            make_int32_tensor([9, 20]),
        )
    assert (o.dtype, packed.dtype, paged.dtype) == (torch.bfloat16, torch.bfloat16, torch.half)
    grads = torch.autograd.grad(o.float().sum(), (q, k, v))
    assert [x.dtype for x in grads] == [torch.float32] * 3
    want = compute_reference_gradients(
        dict(zip("qkv", (x.bfloat16() for x in (q, k, v)), strict=True)), torch.ones_like(o), Masks(right_bound=0)
    )
    assert compute_frobenius_error(o, want["o"]) < 1.6e-2
    assert max(compute_frobenius_error(x, want[name]) for x, name in zip(grads, ("dq", "dk", "dv"), strict=True)) < 3e-2


def test_operators_run_on_the_current_stream() -> None:
    q, k, v = (make_random_half(300, 4, 64) for _ in range(3))
    cu = make_int32_tensor([0, 100, 300])
    want = attention_varlen(q, k, v, cu, None, 200, causal=True)
    fresh, fresh_cu = torch.zeros_like(q), torch.zeros_like(cu)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), block_stream(torch, stream):  # a call on another stream would read zeros
        fresh.copy_(q)
        fresh_cu.copy_(cu)
        found = attention_varlen(fresh, k, v, fresh_cu, None, 200, causal=True)
        assert not stream.query()
    torch.cuda.synchronize()
    assert torch.equal(found, want)


def test_streams_do_not_share_scratch_memory() -> None:
    """Many calls of one shape class are in flight on several streams, each with its own lengths."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    cases = []
    for i in range(4):
        many = [50 * (i + 1), 300 - 50 * i]
        q, k, v = (make_random_half(sum(many), 4, 64) for _ in range(3))
        cu = make_int32_tensor([0, many[0], sum(many)])
        cases.append((many, q, k, v, cu, attention_varlen(q, k, v, cu, None, 300, causal=True)))
    torch.cuda.synchronize()
    found: list[list[Any]] = [[] for _ in cases]
    for _ in range(50):
        for stream, case, mine in zip(streams, cases, found, strict=True):
            with torch.cuda.stream(stream):
                mine.append(attention_varlen(*case[1:5], None, 300, causal=True))
    torch.cuda.synchronize()
    for case, mine in zip(cases, found, strict=True):
        assert all(torch.equal(x, case[5]) for x in mine)


@needs_two_gpus
@pytest.mark.parametrize("shapes", ["exact", "any"])
def test_operators_run_on_two_gpus(shapes: str) -> None:
    """Each call runs on the GPU of its tensors, regardless of the current GPU."""
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        q, k, v, d_o = (make_random_half(2, 100, 4, 64, device=device).transpose(1, 2) for _ in range(4))
        inputs = [x.requires_grad_(True) for x in (q, k, v)]
        o = attention(*inputs, causal=True, shapes=shapes)
        grads = torch.autograd.grad(o, inputs, d_o)
        want = compute_reference_gradients(dict(zip("qkv", inputs, strict=True)), d_o, Masks(right_bound=0))
        assert o.device == torch.device(device)
        for x, name in zip((o, *grads), ("o", "dq", "dk", "dv"), strict=True):
            assert compute_frobenius_error(x, want[name]) < 4e-3
        many = [30, 70]
        packed = [make_random_half(100, 4, 64, device=device) for _ in range(3)]
        o = attention_varlen(*packed, make_int32_tensor([0, 30, 100], device), None, 70, shapes=shapes)
        wide = [unpack_tokens(x, many, 70).double() for x in packed]
        lens = make_int32_tensor(many, device)
        assert (
            compute_frobenius_error(
                o, pack_tokens(compute_reference_attention(*wide, Masks(), len_q=lens, len_kv=lens)[0], many)
            )
            < 2e-3
        )


@needs_two_gpus
def test_tensors_of_two_gpus_are_refused() -> None:
    from cudnn_backend_py import UsageError

    q = make_random_half(2, 4, 64, 64)
    with pytest.raises(UsageError, match="k is on cuda:1, q on cuda:0"):
        attention(q, q.to("cuda:1"), q)
    packed = q.transpose(1, 2).flatten(0, 1)
    with pytest.raises(UsageError, match="cu_seqlens_q is int32"):
        attention_varlen(packed, packed, packed, make_int32_tensor([0, 64, 128], "cuda:1"), None, 64)


def test_the_sdpa_replacement_follows_the_shape_policy() -> None:
    q, k, v = (make_random_half(2, 4, 77, 64) for _ in range(3))
    want, _ = compute_reference_attention(*(x.double() for x in (q, k, v)), Masks(right_bound=0))
    assert compute_frobenius_error(scaled_dot_product_attention(q, k, v, is_causal=True), want) < 2e-3
