"""Equal calls give bitwise equal results: after other calls, in checkpoints, CUDA graphs and deterministic mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from benchmarks.same_bits import compare_group_of_problems, make_random_problems
from cudnn_backend_py.torch_ops import attention, attention_varlen, attention_with_kvcache, clear_plans
from tests.support.figures import append_measurement_to_run_record
from tests.support.torch_reference import copy_sequences_to_shuffled_pages

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
TensorTuple = tuple[Any, ...]
RANDOM_PROBLEMS = make_random_problems(40, seed=7)
CALL_COUNT = 100
SHAPE_ORDERS = (((2, 70),), ((8, 1000), (2, 70)), ((2, 128), (2, 65), (2, 70)), ((1, 20), (8, 1000), (3, 90), (2, 70)))


@pytest.fixture
def deterministic_torch() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_random_inputs(b: int, s: int, *, heads: int = 4, dim: int = 64, packed: bool = False) -> list[Any]:
    """Return q, k, v that require gradients, and the gradient of the output."""
    torch.manual_seed(s)
    dims = (b * s, heads, dim) if packed else (b, s, heads, dim)
    made = [torch.randn(dims, device="cuda", dtype=torch.half) for _ in range(4)]
    return [(x if packed else x.transpose(1, 2)).detach().requires_grad_(n < 3) for n, x in enumerate(made)]


def run_forward_and_backward(b: int, s: int, *, packed: bool = False, **options: Any) -> TensorTuple:
    """Return the output and the gradients of a causal call."""
    q, k, v, d_o = make_random_inputs(b, s, packed=packed)
    if packed:
        starts = torch.arange(0, (b + 1) * s, s, device="cuda", dtype=torch.int32)
        o = attention_varlen(q, k, v, starts, None, s, causal=True, **options)
    else:
        o = attention(q, k, v, causal=True, **options)
    return (o.detach(), *torch.autograd.grad(o, (q, k, v), d_o))


def have_equal_bits(found: TensorTuple, want: TensorTuple) -> bool:
    return all(torch.equal(x, y) for x, y in zip(found, want, strict=True))


def call_attention_with_several_shapes() -> None:
    """Call smaller and larger shapes, and one shape ten times, so that plans of other shapes are built."""
    for b, s in ((1, 30), (6, 700), *[(2, 210)] * 10):
        run_forward_and_backward(b, s)


@pytest.mark.parametrize("first", range(0, len(RANDOM_PROBLEMS), 10))
def test_equal_calls_give_bitwise_equal_results(first: int) -> None:
    clear_plans()
    problems = RANDOM_PROBLEMS[first : first + 10]
    rows, refused = compare_group_of_problems(problems, CALL_COUNT)
    several = [row for row in rows if " s1x" not in row["problem"]]
    single = [row for row in rows if " s1x" in row["problem"]]
    append_measurement_to_run_record(
        "bits of equal calls",
        problems=len(rows),
        refused=refused,
        single_queries_changed=sum(row.get("forward", {}).get("changed", 0) > 0 for row in single),
    )
    assert not [row for row in several if row.get("forward", {}).get("changed")]
    assert not [row for row in rows if row.get("training", {}).get("changed")]
    assert sum("forward" in row for row in rows) >= len(problems) // 2, refused


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("policy", ["any", "exact"])
def test_earlier_calls_do_not_change_the_output_bits(policy: str, packed: bool) -> None:
    found = []
    for order in SHAPE_ORDERS:
        clear_plans()
        *_, last = [run_forward_and_backward(b, s, packed=packed, deterministic=True, shapes=policy) for b, s in order]
        found.append(last)
    assert all(have_equal_bits(one, found[0]) for one in found[1:])


def test_results_of_a_repeated_shape_keep_their_bits() -> None:
    clear_plans()
    q, k, v = (x.detach() for x in make_random_inputs(2, 333)[:3])
    want = attention(q, k, v, causal=True)
    for _ in range(300):
        assert torch.equal(attention(q, k, v, causal=True), want)


@pytest.mark.usefixtures("deterministic_torch")
@pytest.mark.parametrize("packed", [False, True])
def test_deterministic_algorithms_make_training_repeatable(packed: bool) -> None:
    want = run_forward_and_backward(3, 260, packed=packed)
    for _ in range(10):
        call_attention_with_several_shapes()
        assert have_equal_bits(run_forward_and_backward(3, 260, packed=packed), want)


@pytest.mark.parametrize("policy", ["any", "exact"])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 160])
def test_calls_with_one_query_are_repeatable_if_deterministic(dim: int, policy: str) -> None:
    torch.manual_seed(dim)
    b, s = 60, 239
    q = torch.randn(b, 1, 4, dim, device="cuda", dtype=torch.half).transpose(1, 2)
    k, v = (torch.randn(b, s, 4, dim, device="cuda", dtype=torch.half).transpose(1, 2) for _ in "kv")

    def count_calls_with_different_output(**options: Any) -> int:
        want = attention(q, k, v, shapes=policy, **options)
        return sum(not torch.equal(attention(q, k, v, shapes=policy, **options), want) for _ in range(250))

    append_measurement_to_run_record(
        f"single queries, d {dim}, {policy}", changed_by_default=count_calls_with_different_output()
    )
    assert count_calls_with_different_output(deterministic=True) == 0


@pytest.mark.usefixtures("deterministic_torch")
def test_paged_decoding_is_repeatable_with_deterministic_algorithms() -> None:
    torch.manual_seed(1)
    b, longest = 8, 320
    many = [320, 1, 17, 64, 300, 239, 100, 5]
    q = torch.randn(b, 1, 8, 64, device="cuda", dtype=torch.half)
    k, v = (torch.randn(b, 2, longest, 64, device="cuda", dtype=torch.half) for _ in "kv")
    (k_pages, table), (v_pages, _) = (copy_sequences_to_shuffled_pages(x, many, 16, 8, 3) for x in (k, v))
    lengths = torch.tensor(many, device="cuda", dtype=torch.int32)
    call = partial(attention_with_kvcache, q, k_pages, v_pages, table, lengths, causal=True)
    want = call()
    assert all(torch.equal(call(), want) for _ in range(100))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    want = run_forward_and_backward(2, 333, deterministic=True)
    q, k, v, d_o = make_random_inputs(2, 333)

    def compute_checkpointed_attention(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, causal=True, deterministic=True)

    for _ in range(3):
        o = checkpoint(compute_checkpointed_attention, q, k, v, use_reentrant=reentrant)
        call_attention_with_several_shapes()  # plans that are built between the passes
        o.backward(d_o)
        assert have_equal_bits(tuple(x.grad for x in (q, k, v)), want[1:])
        for x in (q, k, v):
            x.grad = None


def test_cuda_graph_replays_are_bitwise_equal_to_direct_calls() -> None:
    q, k, v, d_o = make_random_inputs(2, 300)

    def run_attention_and_gradients() -> TensorTuple:
        o = attention(q, k, v, causal=True, deterministic=True)
        return (o.detach(), *torch.autograd.grad(o, (q, k, v), d_o))

    want = run_attention_and_gradients()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run_attention_and_gradients()
    for _ in range(5):
        graph.replay()
        assert have_equal_bits(found, want)
        call_attention_with_several_shapes()
        assert have_equal_bits(run_attention_and_gradients(), want)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torch_compile_is_bitwise_equal_to_direct_calls() -> None:
    torch._dynamo.reset()
    q, k, v, _ = make_random_inputs(2, 300)
    call: Callable[..., Any] = torch.compile(lambda *x: attention(*x, causal=True), fullgraph=True, backend="aot_eager")
    want = attention(q, k, v, causal=True)
    for _ in range(3):
        assert torch.equal(call(q, k, v), want)
        call_attention_with_several_shapes()
