"""The shared pool of built plans on a GPU: eviction while work is in flight, captures, background builds."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from cudnn_backend_py import UsageError, attention, plan
from cudnn_backend_py.execution.any_shape import CALLS_IN_A_ROW, AnyShapeAttention
from cudnn_backend_py.execution.executable import Executable
from cudnn_backend_py.execution.plan_pool import PlanPool
from cudnn_backend_py.execution.shape_class_plan import Sequences, ShapeClassPlan
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.graph.attention.shape_class import ShapeClassBounds, make_shape_class_problem
from cudnn_backend_py.plans.build import build, forget_plans, shared_target
from cudnn_backend_py.target import Target
from tests.support.ragged_attention import ShapeClassCall, ShapeClassCallProperties

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
CALL_KIND = ShapeClassCallProperties(causal=True)


@pytest.fixture
def gpu() -> Target:
    torch.zeros(1, device="cuda")
    return shared_target()


@pytest.fixture
def pool() -> Iterator[PlanPool]:
    made = PlanPool(most=3)
    yield made
    assert made.wait()
    torch.cuda.synchronize()
    made.clear()


def build_exact_plan(length: int, gpu: Target, **options: Any) -> Executable:
    graph = attention.sdpa_forward(
        batch=2, heads=4, seq_q=length, head_dim=64, causal=True, version=gpu.library.version, sm=gpu.sm
    )
    return Executable(build(graph, gpu, **options), workspace="torch", check=False)


def make_random_tensors(length: int, batch: int = 2, heads: int = 4, dim: int = 64) -> dict[str, Any]:
    """Return q, k, v and o [b, h, s, d] stored as b, s, h, d, and statistics stored as b, s, h."""

    def make_strided_random_tensor() -> Any:
        return torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.half).transpose(1, 2)

    made = {name: make_strided_random_tensor() for name in ("q", "k", "v")}
    made["o"] = torch.full_like(made["q"], torch.nan)
    made["stats"] = torch.full((batch, length, heads), torch.nan, device="cuda").transpose(1, 2).unsqueeze(-1)
    return made


def compute_reference_output(given: dict[str, Any]) -> Any:
    q, k, v = (given[name].float() for name in "qkv")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def is_right_output(given: dict[str, Any]) -> bool:
    return bool(torch.allclose(given["o"].float(), compute_reference_output(given), atol=4e-3))


def test_plans_are_evicted_while_their_work_is_in_flight(pool: PlanPool, gpu: Target) -> None:
    results = []
    for length in range(64, 96):
        held = pool.get_or_build(length, lambda length=length: build_exact_plan(length, gpu, cache=False))  # type: ignore[misc]
        given = make_random_tensors(length)
        torch.cuda._sleep(2_000_000)  # so that no work has run when the plan is to be evicted
        held.plan(given["q"], given["k"], given["v"], given["o"])
        results.append(given)
    assert len(pool) == 3
    torch.cuda.synchronize()
    assert all(map(is_right_output, results))


@pytest.mark.alone
def test_a_plan_is_destroyed_after_its_stream_has_finished(pool: PlanPool, gpu: Target) -> None:
    held = pool.get_or_build(64, lambda: build_exact_plan(64, gpu, cache=False))
    gone = weakref.ref(held.plan)
    given = make_random_tensors(64)
    others = [build_exact_plan(length, gpu) for length in (65, 66, 67)]
    held.plan(given["q"], given["k"], given["v"], given["o"])  # loads the kernel, for which CUDA may wait for the GPU
    torch.cuda.synchronize()
    torch.cuda._sleep(3_000_000_000)  # longer than a busy host takes for the next steps
    held.plan(given["q"], given["k"], given["v"], given["o"])
    for number in range(3):
        pool.get_or_build(number, others.pop)
    assert held.plan is None
    assert not torch.cuda.current_stream().query()
    assert gone() is not None
    torch.cuda.synchronize()
    pool.get_or_build(68, lambda: build_exact_plan(68, gpu))
    assert gone() is None
    assert is_right_output(given)


def test_an_evicted_shape_class_plan_is_destroyed(pool: PlanPool, gpu: Target) -> None:
    problem = make_shape_class_problem(
        ShapeClassCallProperties(kv_heads=4, causal=True).make_problem_of_call(1, 2, 2),
        ShapeClassBounds(4, 128, 128),
        backward=False,
    )
    held = pool.get_or_build("class", lambda: ShapeClassPlan(problem, gpu, backward=False))
    gone = weakref.ref(held.plan)
    given = make_random_tensors(100)
    strides = {name: given[name].stride(0) for name in ("q", "k", "v", "o", "stats")}
    held.plan({name: given[name] for name in held.plan.names}, Sequences(2, 100, 100), strides)
    torch.cuda.synchronize()
    for length in range(64, 68):
        pool.get_or_build(length, lambda length=length: build_exact_plan(length, gpu))  # type: ignore[misc]
    assert held.plan is None
    assert gone() is None
    assert is_right_output(given)


def test_a_plan_captured_in_a_cuda_graph_is_not_evicted(pool: PlanPool, gpu: Target) -> None:
    problem = make_shape_class_problem(
        CALL_KIND.make_problem_of_call(1, 2, 2), ShapeClassBounds(4, 128, 128), backward=False
    )
    held = pool.get_or_build("class", lambda: ShapeClassPlan(problem, gpu, backward=False))
    call = ShapeClassCall(CALL_KIND, "dense", [100] * 2, [100] * 2)
    held.plan(call.buffers, call.sequences, call.offset_multipliers)
    graph, sequences = torch.cuda.CUDAGraph(), call.sequences
    with torch.cuda.graph(graph):
        held.plan(call.buffers, sequences, call.offset_multipliers)
    for length in range(64, 72):
        pool.get_or_build(length, lambda length=length: build_exact_plan(length, gpu))  # type: ignore[misc]
    assert held.plan is not None
    call.buffers["o"].fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert all(found < CALL_KIND.result_tolerance for _, found in call.iterate_result_errors(backward=False))


def test_no_plan_is_built_in_a_capture_and_the_capture_stays_valid(gpu: Target) -> None:
    run = plan(CALL_KIND.make_problem_of_call(1, 2, 2), shapes="any", workspace="torch")
    assert isinstance(run, AnyShapeAttention)
    run.pool = PlanPool()
    given, other = make_random_tensors(100), make_random_tensors(300)
    given["k"], given["v"] = (given[name][:, :2] for name in "kv")
    other["k"], other["v"] = (other[name][:, :2] for name in "kv")
    run(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(UsageError, match="plan-in-capture"):
            run(**other)
        run(**given)
    given["o"].fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    whole = given | {name: given[name].repeat_interleave(2, 1) for name in "kv"}
    assert is_right_output(whole)
    assert bool(other["o"].isnan().all())


def test_a_build_in_the_background_leaves_a_capture_valid(pool: PlanPool, gpu: Target) -> None:
    """While plans are built, a capture in mode "global" fails if another thread makes a call unsafe in captures."""
    x = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        x += 1
        for length in range(200, 206):
            pool.build_in_background(length, lambda length=length: build_exact_plan(length, gpu, cache=False), 0)  # type: ignore[misc]
        assert pool.wait()
        x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert float(x[0]) == 2
    assert len(pool) == 3
    held = pool.find(205)
    assert held is not None
    given = make_random_tensors(205)
    held.plan(given["q"], given["k"], given["v"], given["o"])
    assert is_right_output(given)


@pytest.mark.parametrize("shapes", ["exact", "any", "adaptive"])
def test_one_callable_accepts_any_shape(gpu: Target, shapes: Any) -> None:
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, stats=True)
    run = AnyShapeAttention(problem, gpu, shapes=shapes, workspace="torch", pool=PlanPool(8))
    assert run.why_exact == ""
    for batch, length in ((1, 64), (3, 100), (2, 700), (5, 1), (3, 100)):
        given = make_random_tensors(length, batch)
        run(**given)
        assert is_right_output(given)
        assert not bool(given["stats"].isnan().any())


def test_a_repeated_shape_gets_its_exact_plan(gpu: Target) -> None:
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, stats=True)
    pool = PlanPool(8)
    run = AnyShapeAttention(problem, gpu, shapes="adaptive", workspace="torch", pool=pool)
    for _ in range(CALLS_IN_A_ROW + 1):
        given = make_random_tensors(123)
        run(**given)
    assert pool.wait()
    run(**given)
    run(**given)
    by_class, by_shape = (pool.find(key) for key in pool.list_keys())
    assert by_class is not None
    assert by_shape is not None
    assert isinstance(by_class.plan, ShapeClassPlan)
    assert isinstance(by_shape.plan, Executable)
    assert by_shape.plan.streams
    assert is_right_output(given)


def test_a_larger_shape_class_plan_serves_during_the_build(gpu: Target) -> None:
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, stats=True)
    pool = PlanPool(8)
    run = AnyShapeAttention(problem, gpu, shapes="adaptive", workspace="torch", pool=pool)
    run(**make_random_tensors(1000, 8))
    given = make_random_tensors(70)
    run(**given)
    assert is_right_output(given)
    assert pool.wait()
    assert len(pool) == 2
    run(**given)
    better = pool.find(pool.list_keys()[1])
    assert better is not None
    assert better.plan.streams
    assert better.plan.bounds == ShapeClassBounds(2, 128, 128)


def test_results_of_bhsd_tensors_are_right(gpu: Target) -> None:
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True)
    run = AnyShapeAttention(problem, gpu, workspace="torch", pool=PlanPool(8))
    q, k, v = (torch.randn(2, 4, 100, 64, device="cuda", dtype=torch.half) for _ in range(3))
    given = {"q": q, "k": k, "v": v, "o": torch.full_like(q, torch.nan)}
    run(**given)
    assert is_right_output(given)


def test_mismatched_dims_and_missing_tensors_are_refused(gpu: Target) -> None:
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, stats=True)
    run = AnyShapeAttention(problem, gpu, workspace="torch", pool=PlanPool(8))
    with pytest.raises(UsageError, match="buffer-dims"):
        run(**make_random_tensors(100, heads=2))
    with pytest.raises(UsageError, match="buffer-dims"):
        run(**make_random_tensors(100) | {"v": make_random_tensors(90)["v"]})
    with pytest.raises(UsageError, match="missing-buffer"):
        run(**{name: x for name, x in make_random_tensors(100).items() if name != "k"})


@pytest.mark.alone
def test_memory_stays_constant_over_many_shapes(gpu: Target) -> None:
    problem = Attention(batch=1, heads=2, seq_q=64, head_dim=64, causal=True, stats=True)
    pool = PlanPool(16)
    run = AnyShapeAttention(problem, gpu, shapes="any", workspace="torch", pool=pool)
    seen = []
    for number in range(4000):
        length, batch = 1 + number * 7919 % 997, 1 + number % 4
        given = make_random_tensors(length, batch, 2)
        run(**given)
        if number in (1000, 2000, 3000, 3999):
            torch.cuda.synchronize()
            seen.append(torch.cuda.mem_get_info()[0])
            assert is_right_output(given)
    assert len(pool) <= 16 + 1
    # Other processes use the GPU's memory too: a leak would show after each thousand.
    assert min(one - two for one, two in pairwise(seen)) < (64 << 20) // 3


@pytest.mark.alone
def test_a_call_of_a_new_shape_does_not_wait_for_a_build(gpu: Target) -> None:
    problem = Attention(batch=1, heads=2, seq_q=64, head_dim=64, causal=True, stats=True)
    run = AnyShapeAttention(problem, gpu, shapes="any", workspace="torch", pool=PlanPool(16))
    run(**make_random_tensors(1024, 3, 2))
    took = []
    for length in range(900, 1000):
        given = make_random_tensors(length, 3, 2)
        start = time.perf_counter()
        run(**given)
        took.append(time.perf_counter() - start)
    assert sorted(took)[50] < 1e-3
    torch.cuda.synchronize()
    assert is_right_output(given)


def test_threads_share_a_pool(gpu: Target) -> None:
    problem = Attention(batch=1, heads=4, seq_q=64, head_dim=64, causal=True, stats=True)
    run = AnyShapeAttention(problem, gpu, workspace="torch", pool=PlanPool(4))
    wrong: list[int] = []

    def call_in_thread(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for number in range(30):
                length = 40 + (seed * 31 + number * 17) % 200
                given = make_random_tensors(length)
                run(**given)
                torch.cuda.current_stream().synchronize()
                if not is_right_output(given):
                    wrong.append(length)

    threads = [threading.Thread(target=call_in_thread, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    forget_plans()
