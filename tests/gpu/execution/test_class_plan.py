"""A shape-class plan serves every batch and length within its bounds, with results compared with float64."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py import DataType, UsageError, open_target
from cudnn_backend_py.execution.shape_class_plan import Sequences, ShapeClassPlan
from cudnn_backend_py.graph.attention.shape_class import (
    ShapeClassBounds,
    find_best_shape_class_bounds,
    make_shape_class_problem,
)
from cudnn_backend_py.target import Target
from tests.support.ragged_attention import (
    BatchLayout,
    ShapeClassCall,
    ShapeClassCallProperties,
    compute_reference_results,
    compute_relative_error,
    make_int32_tensor,
)

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
BOUNDS, SMALL_BOUNDS = (
    ShapeClassBounds(8, 384, 512),
    ShapeClassBounds(8, 128, 256),
)  # small ones use another engine in the forward pass
CALL_KINDS = {
    "plain": ShapeClassCallProperties(kv_heads=4),
    "groups": ShapeClassCallProperties(causal=True),
    "bfloat16": ShapeClassCallProperties(causal=True, heads=8, dim=128, data_type=DataType.BFLOAT16),
    "bottom-right": ShapeClassCallProperties(causal=True, bottom_right=True),
    "window": ShapeClassCallProperties(causal=True, bottom_right=True, left_bound=65),
    "top-left-window": ShapeClassCallProperties(causal=True, left_bound=33),
    "cap": ShapeClassCallProperties(cap=5.0),
    "sink": ShapeClassCallProperties(causal=True, sink=True),
    "alibi": ShapeClassCallProperties(causal=True, alibi=True),
    "d40": ShapeClassCallProperties(dim=40),
    "d128": ShapeClassCallProperties(dim=128, kv_heads=1),
}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Target]:
    target = open_target()
    yield target
    target.close()


def make_shape_class_plan(
    kind: ShapeClassCallProperties, gpu: Target, *, backward: bool, bounds: ShapeClassBounds = BOUNDS, **options: Any
) -> ShapeClassPlan:
    return ShapeClassPlan(
        make_shape_class_problem(kind.make_problem_of_call(1, 2, 2), bounds, backward=backward),
        gpu,
        backward=backward,
        **options,
    )


def make_random_lengths(rng: random.Random, batch: int, most: int) -> list[int]:
    """Return random sequence lengths; 0, 1 and the bound `most` are frequent."""
    return [rng.choice((0, 1, most, rng.randint(2, most), rng.randint(2, most))) for _ in range(batch)]


def make_random_calls(
    kind: ShapeClassCallProperties, count: int, bounds: ShapeClassBounds = BOUNDS
) -> Iterator[ShapeClassCall]:
    rng = random.Random(repr(kind))
    modes: tuple[BatchLayout, ...] = ("packed", "dense", "padded")
    for number in range(count):
        batch, mode = rng.randint(1, bounds.batch), rng.choice(modes)
        lens_q = make_random_lengths(rng, batch, bounds.q)
        # With a bottom-right mask, rows beyond all keys attend to none; without keys, statistics ignore the sink.
        least = [own if kind.bottom_right else int(kind.sink) for own in lens_q]
        lens_kv = [rng.randint(own, bounds.kv) for own in least]
        if mode == "dense":
            lens_q, lens_kv = [max(1, max(lens_q))] * batch, [max(1, max(lens_kv))] * batch
        if max(lens_q) and max(lens_kv):
            yield ShapeClassCall(kind, mode, lens_q, lens_kv, number)


def run_shape_class_call(call: ShapeClassCall, plan: ShapeClassPlan) -> None:
    plan(call.buffers, call.sequences, call.offset_multipliers)


def check_attention_results(call: ShapeClassCall, *, backward: bool) -> None:
    for name, found in call.iterate_result_errors(backward=backward):
        assert found < call.kind.result_tolerance, (
            f"{name} of {call.mode} {call.lens_q} {call.lens_kv} is off by {found}"
        )


@pytest.mark.parametrize("bounds", [BOUNDS, SMALL_BOUNDS], ids=["large", "small"])
@pytest.mark.parametrize("name", CALL_KINDS)
def test_a_forward_and_a_backward_plan_serve_all_shapes(gpu: Target, name: str, bounds: ShapeClassBounds) -> None:
    kind = CALL_KINDS[name]
    forward, backward = (make_shape_class_plan(kind, gpu, backward=way, bounds=bounds) for way in (False, True))
    for call in make_random_calls(kind, 12, bounds):
        run_shape_class_call(call, forward)
        run_shape_class_call(call, backward)
        check_attention_results(call, backward=False)
        check_attention_results(call, backward=True)


@pytest.mark.parametrize("mode", ["packed", "dense", "padded"])
def test_shape_class_plans_with_32_bit_offsets_are_right(gpu: Target, mode: BatchLayout) -> None:
    kind = CALL_KINDS["groups"]
    for way in (False, True):
        problem = make_shape_class_problem(kind.make_problem_of_call(1, 2, 2), BOUNDS, backward=way)
        plan = ShapeClassPlan(replace(problem, offset_type=DataType.INT32), gpu, backward=way)
        call = ShapeClassCall(kind, mode, [100] * 3, [200] * 3)
        if way:
            run_shape_class_call(call, make_shape_class_plan(kind, gpu, backward=False))
        run_shape_class_call(call, plan)
        check_attention_results(call, backward=way)


@pytest.mark.parametrize(
    ("mode", "lens_q", "rows"), [("padded", [1, 1, 1], [0, 1, 2, 2, 3]), ("packed", [1, 1, 0], [0, 1, 1, 1, 2])]
)
def test_decoding_does_not_read_beyond_the_end_of_q(
    gpu: Target, mode: BatchLayout, lens_q: list[int], rows: list[int]
) -> None:
    """Kernels read one row of Q per sequence of the plan; offsets of absent sequences must not exceed Q's end."""
    held: list[Any] = []

    def allocate(size: int) -> Any:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return held[-1]

    kind = CALL_KINDS["plain"]
    plan = make_shape_class_plan(kind, gpu, backward=False, bounds=ShapeClassBounds(4, 1, 128), workspace=allocate)
    call = ShapeClassCall(kind, mode, lens_q, [100, 1, 50])
    run_shape_class_call(call, plan)
    check_attention_results(call, backward=False)
    at = plan.tables["ragged_q"]
    begins = held[-1][at : at + 8 * len(rows)].view(torch.int64).tolist()
    assert begins == [row * call.offset_multipliers["q"] for row in rows]


def test_offset_tables_are_rewritten_when_the_shape_changes(gpu: Target) -> None:
    """Change shapes in one and several threads, on several streams, and next to a captured graph of another shape."""
    kind = CALL_KINDS["groups"]
    plan = make_shape_class_plan(kind, gpu, backward=False)
    made = [ShapeClassCall(kind, "dense", [s] * b, [s] * b, s) for b, s in ((2, 100), (2, 300), (8, 100))]
    for call in made:
        run_shape_class_call(call, plan)
        check_attention_results(call, backward=False)
    captured = ShapeClassCall(kind, "dense", [200] * 3, [200] * 3, 7)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_shape_class_call(captured, plan)

    found: list[tuple[str, float]] = []

    def call_in_thread(seed: int) -> None:
        rng = random.Random(seed)
        mine = [ShapeClassCall(kind, "dense", [s] * b, [s] * b, seed) for b, s in ((2, 100), (2, 300), (8, 100))]
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                call = rng.choice(mine)
                call.buffers["o"].fill_(float("nan"))
                run_shape_class_call(call, plan)
                found.extend(call.iterate_result_errors(backward=False))

    threads = [threading.Thread(target=call_in_thread, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for call in made * 3:
        captured.buffers["o"].fill_(float("nan"))
        graph.replay()
        call.buffers["o"].fill_(float("nan"))
        run_shape_class_call(call, plan)
        torch.cuda.synchronize()
        check_attention_results(call, backward=False)
        check_attention_results(captured, backward=False)
    for thread in threads:
        thread.join()
    assert len(found) >= 3 * 30 * 2
    assert max(worst for _, worst in found) < kind.result_tolerance


def copy_k_and_v_to_pages(lens: list[int], page: int, cols: int) -> tuple[Any, Any, Any, list[tuple[Any, Any]]]:
    """Return pages in random order, a block table with -1 for missing pages, and K and V of each sequence."""
    pages = 4 * cols
    k, v = (torch.randn(pages, page, 2, 64, device="cuda", dtype=torch.half) for _ in "kv")
    order, table = torch.randperm(pages, device="cuda").int(), torch.full((len(lens), cols), -1, device="cuda").int()
    whole, start = [], 0
    for i, own in enumerate(lens):
        count = -(-own // page)
        table[i, :count] = order[start : start + count]
        start += count
        whole.append(tuple(x[table[i, :count].long()].flatten(0, 1)[:own] for x in (k, v)))
    return k, v, table, whole


@pytest.mark.parametrize("lens_q", [[64, 1, 30, 5], [1, 1, 1, 1]])
def test_paged_attention_with_packed_queries_is_right(gpu: Target, lens_q: list[int]) -> None:
    lens, page = [500, 1, 77, 512], 16
    k, v, table, whole = copy_k_and_v_to_pages(lens, page, 40)
    kind = ShapeClassCallProperties(causal=max(lens_q) > 1, bottom_right=max(lens_q) > 1)
    base = replace(
        kind.make_problem_of_call(8, max(lens_q), 1000), padding=True, page_size=page, pages_k=len(k), pages_v=len(v)
    )
    bounds = find_best_shape_class_bounds(base)
    plan = ShapeClassPlan(make_shape_class_problem(base, bounds, backward=False), gpu, backward=False)
    q = torch.randn(sum(lens_q), 4, 64, device="cuda", dtype=torch.half)
    o, stats = torch.full_like(q, torch.nan), torch.full((len(q), 4), torch.nan, device="cuda")
    cu = make_int32_tensor([0, *[sum(lens_q[: i + 1]) for i in range(4)]])
    sequences = Sequences(
        4, max(lens_q), 512, cu_q=cu, len_kv=make_int32_tensor(lens), block_table=table, total_q=len(q)
    )
    plan({"q": q, "k": k, "v": v, "o": o, "stats": stats}, sequences, {"q": 256, "o": 256, "stats": 4})
    for i, (own_k, own_v) in enumerate(whole):
        rows = slice(int(cu[i]), int(cu[i + 1]))
        call = ShapeClassCall(kind, "dense", [1], [1])
        want = compute_reference_results(kind, {"q": q[rows], "k": own_k, "v": own_v, "do": q[rows]}, call)
        assert compute_relative_error(o[rows], want["o"]) < 6e-3
        assert compute_relative_error(stats[rows], want["stats"]) < 6e-3


def test_a_captured_call_reads_lengths_and_tensors_at_each_replay(gpu: Target) -> None:
    kind = CALL_KINDS["groups"]
    plans = {way: make_shape_class_plan(kind, gpu, backward=way) for way in (False, True)}
    call = ShapeClassCall(kind, "padded", [100] * 3, [100] * 3, most=(100, 100))
    sequences = call.sequences
    for plan in plans.values():
        plan(call.buffers, sequences, call.offset_multipliers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for plan in plans.values():
            plan(call.buffers, sequences, call.offset_multipliers)
    assert all(plan.captured for plan in plans.values())
    for lens in ([50, 1, 77], [0, 100, 3], [100, 100, 100]):
        for name in ("q", "k", "v", "do"):
            call.buffers[name].normal_()
        call.lens_q = call.lens_kv = lens
        for given in (sequences.len_q, sequences.len_kv):
            given.copy_(make_int32_tensor(lens))
        graph.replay()
        torch.cuda.synchronize()
        for way in (False, True):
            check_attention_results(call, backward=way)


def test_workspace_grows_with_call_size_and_not_class_bounds(gpu: Target) -> None:
    requested: list[int] = []

    def allocate(size: int) -> Any:
        requested.append(size)
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    plan = make_shape_class_plan(
        CALL_KINDS["groups"], gpu, backward=True, bounds=ShapeClassBounds(64, 16384, 16384), workspace=allocate
    )
    for batch, length in ((2, 100), (8, 384)):
        call = ShapeClassCall(CALL_KINDS["groups"], "dense", [length] * batch, [length] * batch)
        run_shape_class_call(call, make_shape_class_plan(CALL_KINDS["groups"], gpu, backward=False))
        run_shape_class_call(call, plan)
        check_attention_results(call, backward=True)
        tokens = batch * length
        assert requested[-1] < tokens * 4 * (4 * 64 + 2 * 2 * 64 + 8) + (1 << 20)
    assert requested[-1] < 32 << 20


def test_a_plan_that_allocates_its_own_workspace_serves_growing_calls(gpu: Target) -> None:
    kind = CALL_KINDS["groups"]
    plan = make_shape_class_plan(kind, gpu, backward=False, workspace=None)
    for length in (10, 300, 20):
        call = ShapeClassCall(kind, "dense", [length] * 2, [length] * 2)
        run_shape_class_call(call, plan)
        check_attention_results(call, backward=False)
    plan.close()


def test_threads_and_streams_share_a_shape_class_plan(gpu: Target) -> None:
    kind = CALL_KINDS["groups"]
    plan = make_shape_class_plan(kind, gpu, backward=False)
    wrong: list[str] = []

    def call_in_thread(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for number in range(5):
                length = 50 + 10 * seed + number
                call = ShapeClassCall(kind, "dense", [length] * 2, [length] * 2, seed)
                run_shape_class_call(call, plan)
                stream.synchronize()
                wrong.extend(
                    name
                    for name, found in call.iterate_result_errors(backward=False)
                    if not found < kind.result_tolerance
                )

    threads = [threading.Thread(target=call_in_thread, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(plan.streams) == 4


@pytest.mark.parametrize("needed", [(9, 10, 10), (1, 385, 10), (1, 10, 513)])
def test_a_call_beyond_the_bounds_is_refused(gpu: Target, needed: tuple[int, int, int]) -> None:
    plan = make_shape_class_plan(CALL_KINDS["plain"], gpu, backward=False)
    call = ShapeClassCall(CALL_KINDS["plain"], "dense", [10], [10])
    with pytest.raises(UsageError, match="class-bounds"):
        plan(call.buffers, Sequences(*needed), call.offset_multipliers)


def test_a_missing_buffer_is_reported(gpu: Target) -> None:
    plan = make_shape_class_plan(CALL_KINDS["plain"], gpu, backward=False)
    call = ShapeClassCall(CALL_KINDS["plain"], "dense", [10], [10])
    del call.buffers["v"]
    with pytest.raises(UsageError, match=r"missing-buffer.*v"):
        run_shape_class_call(call, plan)
