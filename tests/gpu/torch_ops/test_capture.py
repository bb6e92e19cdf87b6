"""CUDA graphs of the operators replay with new numbers and lengths; no plan is built during a capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.torch_ops import attention, attention_varlen, attention_with_kvcache, clear_plans
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


def make_int32_tensor(values: list[int]) -> Any:
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def capture_cuda_graph(call: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a CUDA graph of a call after a warm-up, and the result of the call."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


def test_a_graph_of_packed_attention_replays_with_other_lengths() -> None:
    t, longest = 512, 300
    q, k, v, d_o = (torch.randn(t, 4, 64, device="cuda", dtype=torch.half) for _ in range(4))
    inputs = [x.requires_grad_(True) for x in (q, k, v)]
    cu = make_int32_tensor([0, 100, 200, 300, 512])

    def run_forward_and_backward() -> Any:
        o = attention_varlen(*inputs, cu, None, longest, causal=True)
        return (o, *torch.autograd.grad(o, inputs, d_o))

    graph, found = capture_cuda_graph(run_forward_and_backward)
    for many in ([100, 100, 100, 212], [1, 0, 300, 211], [300, 200, 12, 0]):
        with torch.no_grad():
            cu.copy_(make_int32_tensor([sum(many[:i]) for i in range(5)]))
            for x in inputs:
                x.copy_(torch.randn_like(x))
        graph.replay()
        wide = {name: unpack_tokens(x.detach(), many, longest) for name, x in zip("qkv", inputs, strict=True)}
        lens = {"len_q": make_int32_tensor(many), "len_kv": make_int32_tensor(many)}
        want = compute_reference_gradients(wide, unpack_tokens(d_o, many, longest), Masks(right_bound=0), **lens)
        for x, name in zip(found, ("o", "dq", "dk", "dv"), strict=True):
            assert compute_frobenius_error(x, pack_tokens(want[name], many)) < 4e-3, (many, name)


@pytest.mark.parametrize("shapes", ["exact", "any", "adaptive"])
def test_a_graph_of_decoding_replays_with_other_lengths_and_pages(shapes: str) -> None:
    b, s, longest = 4, 1, 320
    q = torch.randn(b, s, 8, 64, device="cuda", dtype=torch.half)
    lens, table = make_int32_tensor([1] * b), torch.zeros(b, longest // 16, device="cuda", dtype=torch.int32)
    pages = [torch.zeros(200, 16, 2, 64, device="cuda", dtype=torch.half) for _ in range(2)]
    graph, o = capture_cuda_graph(lambda: attention_with_kvcache(q, *pages, table, lens, causal=True, shapes=shapes))
    for many in ([320, 1, 17, 64], [5, 200, 1, 1]):
        k, v = (torch.randn(b, 2, longest, 64, device="cuda", dtype=torch.half) for _ in range(2))
        for x, whole in zip(pages, (k, v), strict=True):
            filled, order = copy_sequences_to_shuffled_pages(whole, many, 16, 200 - b * longest // 16, sum(many))
            x.copy_(filled)
        table.copy_(order)
        lens.copy_(make_int32_tensor(many))
        q.copy_(torch.randn_like(q))
        graph.replay()
        want, _ = compute_reference_attention(*(x.double() for x in (q.transpose(1, 2), k, v)), Masks(), len_kv=lens)
        assert compute_frobenius_error(o.transpose(1, 2), want) < 2e-3


@pytest.mark.parametrize("shapes", ["exact", "any", "adaptive"])
def test_a_graph_of_dense_attention_replays_with_other_numbers(shapes: str) -> None:
    q, k, v = (torch.randn(2, 100, 4, 64, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(3))
    graph, o = capture_cuda_graph(lambda: attention(q, k, v, causal=True, shapes=shapes))
    q.copy_(torch.randn_like(q))
    graph.replay()
    want, _ = compute_reference_attention(*(x.double() for x in (q, k, v)), Masks(right_bound=0))
    assert compute_frobenius_error(o, want) < 2e-3


@pytest.mark.parametrize("shapes", ["exact", "any", "adaptive"])
def test_no_plan_is_built_while_capturing(shapes: str) -> None:
    clear_plans()
    q, k, v = (torch.randn(2, 120, 4, 64, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(3))
    kept = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept += 1
        with pytest.raises(UsageError, match="before the capture") as caught:
            attention(q, k, v, causal=True, shapes=shapes)
        kept += 1
    assert caught.value.code == "plan-in-capture"
    graph.replay()
    assert float(kept[0]) == 2, "the capture must stay valid"
    graph, o = capture_cuda_graph(lambda: attention(q, k, v, causal=True, shapes=shapes))
    graph.replay()
    want, _ = compute_reference_attention(*(x.double() for x in (q, k, v)), Masks(right_bound=0))
    assert compute_frobenius_error(o, want) < 2e-3


def test_captures_succeed_while_other_threads_use_new_shapes() -> None:
    """Plans that other threads build, directly or in the background, leave a capture valid."""
    stop, failed = threading.Event(), []

    def call_new_shapes() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                s = 64
                while not stop.is_set():
                    q = torch.zeros(1, s, 2, 64, device="cuda", dtype=torch.half).transpose(1, 2)  # no generator
                    for _ in range(3):
                        attention(q, q, q, shapes="adaptive")
                    s += 8
        except Exception as error:  # reported by the main thread
            failed.append(repr(error))

    q, k, v = (torch.randn(2, 100, 4, 64, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(3))
    attention(q, k, v)
    thread = threading.Thread(target=call_new_shapes)
    thread.start()
    try:
        for _ in range(20):
            torch.cuda.current_stream().synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                o = attention(q, k, v)
            graph.replay()
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    want, _ = compute_reference_attention(*(x.double() for x in (q, k, v)), Masks())
    assert compute_frobenius_error(o, want) < 2e-3


def test_a_graph_replays_after_its_plan_has_been_evicted() -> None:
    q, k, v = (torch.randn(2, 100, 4, 64, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(3))
    graph, o = capture_cuda_graph(lambda: attention(q, k, v, shapes="any"))
    for s in range(1, 40):  # plans of other shapes replace it
        x = torch.randn(1, 7 * s, 4, 64, device="cuda", dtype=torch.half).transpose(1, 2)
        attention(x, x, x, shapes="any")
    q.copy_(torch.randn_like(q))
    graph.replay()
    want, _ = compute_reference_attention(*(x.double() for x in (q, k, v)), Masks())
    assert compute_frobenius_error(o, want) < 2e-3
