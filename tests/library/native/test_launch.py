"""The cache of variant packs by buffer addresses: bounded, reused and thread-safe. No kernel is launched."""

from __future__ import annotations

import resource
import threading
from typing import Any

import pytest

from cudnn_backend_py import OperationGraph, UsageError, build_plan, open_target
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.native.launch import Launcher
from cudnn_backend_py.plans.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)
    return build_plan(OperationGraph(graph, open_target("h100")).heuristics().configs[0])


@pytest.fixture
def launcher(plan: Plan) -> Launcher:
    return Launcher(plan.descriptor, [tensor.uid for tensor in plan.graph.variant_pack_tensors], kept=4)


def make_cache_key(launcher: Launcher, number: int) -> tuple[int, ...]:
    return (4096, *(number * 65536 + 256 * (index + 1) for index in range(len(launcher.uids))))


def cache_pack(launcher: Launcher, number: int) -> Any:
    return cache_variant_pack_of_addresses(launcher, make_cache_key(launcher, number))


def cache_variant_pack_of_addresses(launcher: Launcher, wanted: tuple[int, ...]) -> Any:
    return launcher.cache_pack(wanted, launcher.row(*wanted[1:]), wanted[0])


def test_equal_addresses_reuse_the_cached_variant_pack(launcher: Launcher) -> None:
    first = cache_pack(launcher, 1)
    assert launcher.find(make_cache_key(launcher, 1)) is first
    assert launcher.find(make_cache_key(launcher, 2)) is None


def test_the_oldest_variant_pack_is_reused_for_new_addresses(launcher: Launcher) -> None:
    addresses = [cache_pack(launcher, number).pointer.value for number in range(4)]
    again = cache_pack(launcher, 4)
    assert again.pointer.value == addresses[0]
    assert launcher.find(make_cache_key(launcher, 0)) is None
    assert all(launcher.find(make_cache_key(launcher, number)) for number in range(1, 5))


def test_a_variant_pack_in_use_is_not_changed(launcher: Launcher) -> None:
    running = cache_pack(launcher, 0)
    for number in range(1, 10):
        assert cache_pack(launcher, number).pointer.value != running.pointer.value


def test_the_memory_of_cached_variant_packs_is_bounded(launcher: Launcher) -> None:
    def cache_many_variant_packs(start: int) -> None:
        for number in range(start, start + 50_000):
            cache_pack(launcher, number)

    cache_many_variant_packs(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache_many_variant_packs(50_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512  # KiB


def test_threads_share_a_launcher(launcher: Launcher) -> None:
    errors: list[str] = []

    def find_or_cache_variant_packs(seed: int) -> None:
        for number in range(3000):
            wanted = make_cache_key(launcher, (number * seed) % 7)
            pack = launcher.find(wanted) or cache_variant_pack_of_addresses(launcher, wanted)
            if not pack.pointer:
                errors.append("no address")

    threads = [threading.Thread(target=find_or_cache_variant_packs, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_shape_overrides_of_different_counts_are_refused(launcher: Launcher) -> None:
    with pytest.raises(UsageError, match="1 uids, 2 dims and 1 strides"):
        launcher.pack(launcher.row(*make_cache_key(launcher, 0)[1:]), 0, ([1], [[1], [2]], [[1]]))
