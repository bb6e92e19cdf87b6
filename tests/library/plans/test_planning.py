"""``build`` and the plan cache: equal requests share a plan; unfit stored plans are not loaded."""

from __future__ import annotations

import gc
import json
import random
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import (
    EnvironmentNotReady,
    Graph,
    GraphBuilder,
    HeurMode,
    NotSupported,
    OperationGraph,
    Status,
    UsageError,
    find_profile,
    load_plan,
    open_target,
)
from cudnn_backend_py.errors import NotSupportedStatus
from cudnn_backend_py.execution.plan import plan
from cudnn_backend_py.generated.enums import BehaviorNote, KnobType
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.plans import build as planning_module
from cudnn_backend_py.plans.build import build, build_plans, forget_plans, parse_knobs, shared_target
from cudnn_backend_py.plans.cache import PlanCache, PlanCacheWarning, make_plan_key, open_plan_files
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.plans.select import Selection, make_cache_key_options_of_tuned_plan
from cudnn_backend_py.target import Target
from tests.support.child import make_older_cudnn_environment, run_python

pytestmark = pytest.mark.usefixtures("cache")
KEY_OPTIONS: Mapping[str, Any] = {"mode": HeurMode.A}


def make_flash_forward_graph(seq: int = 128, **options: Any) -> Graph:
    return sdpa_forward(batch=1, heads=2, seq_q=seq, head_dim=64, causal=True, **options)


@pytest.fixture(scope="module")
def target() -> Target:
    return shared_target("h100")


@pytest.fixture(scope="module")
def built_plan(target: Target) -> Plan:
    return build(make_flash_forward_graph(), target, cache=False)


@pytest.fixture(scope="module")
def plan_cache_key(target: Target) -> str:
    return make_plan_key(make_flash_forward_graph(), target, KEY_OPTIONS)


@pytest.fixture
def stored_plan(cache: PlanCache, built_plan: Plan, target: Target) -> Plan:
    """Put the plan of ``build(make_flash_forward_graph(), "h100")`` into the cache."""
    cache.put(
        make_plan_key(make_flash_forward_graph(), target, {"selection": Selection(modes=(HeurMode.A,)).to_dict()}),
        built_plan,
    )
    return built_plan


def split_plan_tag(plan: Plan) -> set[str]:
    """Return the parts of a plan's tag as a set, because the order of its knobs may differ."""
    return set(plan.tag.split("_"))


# keys


def make_keys_differing_in_one_plan_property(target: Target) -> dict[str, str]:
    h200 = shared_target("h200")
    more = {**target.profile.properties, "multiProcessorCount": 78}
    small = shared_target(replace(target.profile, properties=more))
    return {
        "shape": make_plan_key(make_flash_forward_graph(192), target, KEY_OPTIONS),
        "name": make_plan_key(replace(make_flash_forward_graph(), name="other"), target, KEY_OPTIONS),
        "option": make_plan_key(make_flash_forward_graph(), target, {"mode": HeurMode.B}),
        "one more option": make_plan_key(make_flash_forward_graph(), target, {**KEY_OPTIONS, "engine": 2}),
        "architecture": make_plan_key(make_flash_forward_graph(), shared_target("l40s"), KEY_OPTIONS),
        "multiprocessors": make_plan_key(make_flash_forward_graph(), small, KEY_OPTIONS),
        "bus width": make_plan_key(make_flash_forward_graph(), h200, KEY_OPTIONS),
    }


def test_plan_keys_include_everything_that_affects_a_plan(target: Target, plan_cache_key: str) -> None:
    others = make_keys_differing_in_one_plan_property(target)
    if target.library.version < (9, 27, 0):
        assert others.pop("bus width") == plan_cache_key, (
            "H200 and H100 run the same code: architecture and limits are equal"
        )
    assert len({plan_cache_key, *others.values()}) == 1 + len(others)
    assert make_plan_key(make_flash_forward_graph(), open_target("sm90"), dict(KEY_OPTIONS)) == plan_cache_key


def test_gpus_share_a_key_if_each_can_load_the_others_plan(
    built_plan: Plan, target: Target, plan_cache_key: str, tmp_path: Path
) -> None:
    """The plan cache keys of two GPUs differ only if cuDNN refuses the other's plan or the GPUs' limits differ."""
    path = tmp_path / "plan.json"
    built_plan.save(path)
    for name in ("h200", "h100-pcie", "gh200"):
        other = shared_target(name)
        try:
            load_plan(path, other)
        except EnvironmentNotReady:
            assert make_plan_key(make_flash_forward_graph(), other, KEY_OPTIONS) != plan_cache_key
        else:
            limits = ("multiProcessorCount", "memoryBusWidth")
            differs = any(other.profile.properties[item] != target.profile.properties[item] for item in limits)
            assert differs or make_plan_key(make_flash_forward_graph(), other, KEY_OPTIONS) == plan_cache_key


def test_keys_of_tuned_plans_distinguish_gpus_by_name(target: Target) -> None:
    """GPUs that share a cache key for other plans have different keys for tuned plans, as timings may differ."""
    named = {**target.profile.properties, "deviceName": "another H100"}
    nameless = {name: value for name, value in named.items() if name != "deviceName"}
    targets = [
        target,
        *(Target(replace(target.profile, properties=given), library=target.library) for given in (named, nameless)),
    ]
    assert len({make_plan_key(make_flash_forward_graph(), one, KEY_OPTIONS) for one in targets}) == 1
    assert (
        len(
            {
                make_plan_key(make_flash_forward_graph(), one, make_cache_key_options_of_tuned_plan(None, one))
                for one in targets
            }
        )
        == 3
    )
    assert make_cache_key_options_of_tuned_plan(None, targets[2])["gpu"] is None


def test_plan_keys_ignore_properties_that_profiles_lack(target: Target, plan_cache_key: str) -> None:
    here = {**target.profile.properties, "pciDeviceId": 6, "driverVer": 12080, "smClockRateKHz": 1755000}
    if target.library.version < (9, 27, 0):
        del here["memoryBusWidth"]  # missing in cuDNN 9.19
    live = Target(replace(target.profile, name="gpu", properties=here), library=target.library)
    assert make_plan_key(make_flash_forward_graph(), live, KEY_OPTIONS) == plan_cache_key


def test_plan_keys_are_equal_across_processes_but_not_versions(plan_cache_key: str, target: Target) -> None:
    code = (
        "from tests.library.plans.test_planning import *\n"
        "target = open_target('h100')\n"
        "print(make_plan_key(make_flash_forward_graph(), target, KEY_OPTIONS), target.library.version_text)"
    )
    assert run_python(["-c", code], check=True).stdout.split() == [plan_cache_key, target.library.version_text]
    other, version = run_python(["-c", code], environment=make_older_cudnn_environment(), check=True).stdout.split()
    assert version == "9.19.0"
    assert (other == plan_cache_key) == (version == target.library.version_text)


def test_options_of_a_plan_key_must_be_plain_data(target: Target) -> None:
    wanted = Selection(engine=2, knobs={KnobType.KERNEL_CFG: 1})
    options = {"selection": wanted, "set": {3, 1}, "map": {"b": 1, "a": (1, 2)}}
    assert make_plan_key(make_flash_forward_graph(), target, options) == make_plan_key(
        make_flash_forward_graph(), target, dict(reversed(options.items()))
    )
    with pytest.raises(UsageError) as caught:
        make_plan_key(make_flash_forward_graph(), target, {"function": print})
    assert caught.value.code == "plan-option"


# plans on disk


def test_a_plan_is_stored_with_its_measured_times(
    cache: PlanCache, built_plan: Plan, plan_cache_key: str, target: Target
) -> None:
    assert cache.get(plan_cache_key, target) is None
    assert cache.evidence(plan_cache_key) is None
    cache.put(plan_cache_key, built_plan, {"microseconds": {"eng2": 12.5}})
    for given in (None, make_flash_forward_graph()):
        found = cache.get(plan_cache_key, target, graph=given)
        assert found is not None
        assert (found.tag, found.graph, found.workspace_bytes) == (
            built_plan.tag,
            built_plan.graph,
            built_plan.workspace_bytes,
        )
        assert json.loads(found.json()) == json.loads(built_plan.json())
    assert cache.evidence(plan_cache_key) == {"microseconds": {"eng2": 12.5}}
    (entry,) = cache.entries()
    assert (entry.key, entry.graph, entry.tag, entry.sm) == (
        plan_cache_key,
        "sdpa_forward",
        built_plan.tag,
        90,
    )
    assert (entry.cudnn, entry.target) == (target.library.build_text, target.name)
    assert entry.size_bytes == (cache.folder / f"{plan_cache_key}.plan").stat().st_size
    assert cache.clear() == 1
    assert cache.entries() == ()


def test_a_cached_plan_with_a_changed_byte_is_rebuilt(
    cache: PlanCache, builds: list[str], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(make_flash_forward_graph(), target)
    assert builds == [first.tag]
    (path,) = cache.folder.glob("*.plan")
    good = path.read_bytes()
    plan_cache_key = path.stem

    def fail_if_called(*_arguments: Any) -> Any:
        raise AssertionError("a damaged entry must not be given to cuDNN")

    chance = random.Random(2)
    with monkeypatch.context() as patch:
        patch.setattr("cudnn_backend_py.plans.cache.restore_plan", fail_if_called)
        for place in chance.sample(range(len(good)), 300):
            wrong = bytearray(good)
            wrong[place] ^= 1 << chance.randrange(8)
            path.write_bytes(wrong)
            with pytest.warns(PlanCacheWarning, match="is ignored"):
                assert cache.get(plan_cache_key, target) is None
    forget_plans()
    with pytest.warns(PlanCacheWarning, match="changed since it was written"):
        again = build(make_flash_forward_graph(), target)
    assert builds == [first.tag, again.tag]
    forget_plans()
    assert build(make_flash_forward_graph(), target).tag == first.tag  # the entry is good again
    assert len(builds) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cudnn": "9.99.0"}, "saved by cuDNN 9.99.0"),
        ({"sm": 80}, "has code for sm_80"),
        ({"plan": "{}"}, "cudnnBackendFinalize"),
        ({"graph": {"schema": "else"}}, "not a graph JSON"),
        ({"plan": None}, "is ignored"),
    ],
    ids=["version", "architecture", "plan", "graph", "type"],
)
def test_invalid_cache_entries_and_those_of_other_gpus_are_ignored(
    cache: PlanCache, built_plan: Plan, plan_cache_key: str, target: Target, change: dict[str, Any], words: str
) -> None:
    """The hash of each entry is right, so that only its contents can be refused."""
    cache.put(plan_cache_key, built_plan)
    files = open_plan_files(cache.folder, 1 << 24)
    record = files.read(plan_cache_key)
    assert record is not None
    del record["key"]
    files.write(plan_cache_key, record | change)
    with pytest.warns(PlanCacheWarning, match=words):
        assert cache.get(plan_cache_key, target) is None


def test_a_cache_entry_without_a_plan_is_ignored(cache: PlanCache, plan_cache_key: str, target: Target) -> None:
    open_plan_files(cache.folder, 1 << 24).write(plan_cache_key, {"evidence": None})
    with pytest.warns(PlanCacheWarning, match="is ignored"):
        assert cache.get(plan_cache_key, target) is None
    with pytest.warns(PlanCacheWarning, match="is ignored"):
        assert cache.entries() == ()


# build


def test_equal_build_calls_return_the_same_plan(builds: list[str]) -> None:
    first = build(make_flash_forward_graph(), "h100")
    assert build(make_flash_forward_graph(), "sm90") is first
    assert build(make_flash_forward_graph(), "h100", mode="a") is first
    assert builds == [first.tag]
    forget_plans()
    second = build(make_flash_forward_graph(), "h100")
    assert second is not first
    assert second.tag == first.tag
    assert builds == [first.tag], "the second plan must come from the disk"


def test_a_closed_plan_is_not_returned_again(stored_plan: Plan) -> None:
    first = build(make_flash_forward_graph(), "h100")
    first.close()
    second = build(make_flash_forward_graph(), "h100")
    assert second is not first
    assert second.json()


def test_a_second_plan_cache_is_filled_without_another_build(
    tmp_path: Path, builds: list[str], stored_plan: Plan
) -> None:
    other = PlanCache(tmp_path / "other")
    build(make_flash_forward_graph(), "h100")
    build(make_flash_forward_graph(), "h100", cache=other)
    assert len(builds) == 1
    assert len(other.entries()) == 1


def test_without_a_cache_a_plan_is_built_again(cache: PlanCache, builds: list[str]) -> None:
    assert build(make_flash_forward_graph(), "h100", cache=False) is not build(
        make_flash_forward_graph(), "h100", cache=False
    )
    assert len(builds) == 2
    assert not cache.folder.exists()


def test_without_a_disk_cache_the_process_still_keeps_its_plans(
    cache: PlanCache, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_PLAN_CACHE", "")
    assert build(make_flash_forward_graph(), "h100") is build(make_flash_forward_graph(), "h100")
    assert len(builds) == 1
    assert not cache.folder.exists()


def test_a_cache_folder_writable_by_others_is_refused(cache: PlanCache) -> None:
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    with pytest.raises(EnvironmentNotReady) as caught:
        build(make_flash_forward_graph(), "h100")
    assert caught.value.code == "cache-folder-not-private"


def test_threads_do_not_build_the_same_plan_twice(builds: list[str]) -> None:
    """Eight threads request two plans at the same time; each plan is built once."""
    start = threading.Barrier(8)

    def build_in_thread(number: int) -> Plan:
        start.wait()
        return build(make_flash_forward_graph(128 + 64 * (number % 2)), "h100")

    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(build_in_thread, range(8)))
    assert len(builds) == 2
    assert len({id(one) for one in plans}) == 2


def test_the_refusal_of_a_graph_is_not_cached(builds: list[str]) -> None:
    wide = sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=20)
    for _ in range(2):
        with pytest.raises(NotSupported) as caught:
            build(wide, "h100")
        assert caught.value.code == "nothing-selected"
    assert builds == []


def test_the_number_of_kept_plans_is_bounded(monkeypatch: pytest.MonkeyPatch, stored_plan: Plan) -> None:
    monkeypatch.setattr(planning_module, "MAX_KEPT_PLANS", 1)
    first = build(make_flash_forward_graph(), "h100")
    build(make_flash_forward_graph(192), "h100")
    assert build(make_flash_forward_graph(), "h100") is first, "a live plan must be found even if it is not kept"
    build(make_flash_forward_graph(192), "h100")
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_build_applies_engine_knobs_and_selection(target: Target) -> None:
    configs = OperationGraph(make_flash_forward_graph(), target).heuristics("A").configs
    last = configs[-1]
    first = build(make_flash_forward_graph(), target, engine=last.engine, knobs=last.knobs)
    assert split_plan_tag(first) == set(last.tag.split("_"))
    wanted = Selection(engine=last.engine, knobs=last.knobs)  # type: ignore[arg-type]
    assert split_plan_tag(build(make_flash_forward_graph(), target, selection=wanted)) == set(last.tag.split("_"))
    chosen = build(
        make_flash_forward_graph(), target, selection=Selection(wanted_behavior=(BehaviorNote.RUNTIME_COMPILATION,))
    )
    assert chosen.tag == configs[0].tag
    with pytest.raises(UsageError) as caught:
        build(make_flash_forward_graph(), target, knobs={KnobType.KERNEL_CFG: 1})
    assert caught.value.code == "selection-knobs"


@pytest.mark.parametrize("workers", [1, 3])
def test_build_plans_returns_plans_and_errors_in_order(
    target: Target, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN refuses to build the second of three configs; the others are built."""
    configs = OperationGraph(make_flash_forward_graph(), target).heuristics("A").configs[:3]
    real = planning_module.build_plan

    def build_all_but_the_second(config: Any) -> Plan:
        if config is configs[1]:
            raise NotSupportedStatus("no", status=Status.NOT_SUPPORTED, function="cudnnBackendFinalize")
        return real(config)

    monkeypatch.setattr(planning_module, "build_plan", build_all_but_the_second)
    first, refused, second = build_plans(configs, workers=workers)
    assert isinstance(refused, NotSupported)
    assert [one.tag for one in (first, second) if isinstance(one, Plan)] == [configs[0].tag, configs[2].tag]
    assert build_plans([]) == []


def test_a_tuned_plan_is_preferred_to_the_first_heuristics_plan(cache: PlanCache, target: Target) -> None:
    last = OperationGraph(make_flash_forward_graph(), target).heuristics("A").configs[-1]
    tuned = build(make_flash_forward_graph(), target, engine=last.engine, knobs=last.knobs, cache=False)
    cache.put(
        make_plan_key(make_flash_forward_graph(), target, make_cache_key_options_of_tuned_plan(None, target)),
        tuned,
        {"why": "fastest"},
    )
    assert build(make_flash_forward_graph(), target).tag == tuned.tag
    assert split_plan_tag(build(make_flash_forward_graph(), target, mode="B")) != split_plan_tag(tuned)
    assert split_plan_tag(build(make_flash_forward_graph(), "h200")) != split_plan_tag(tuned), (
        "a plan tuned on another GPU must not be used"
    )


def test_a_tag_selects_an_engine_config(target: Target) -> None:
    last = OperationGraph(make_flash_forward_graph(), target).heuristics("A").configs[-1]
    assert build(make_flash_forward_graph(), target, engine=last.tag, cache=False).tag == last.tag
    numbered = {int(knob): value for knob, value in last.knobs.items()}
    assert build(make_flash_forward_graph(), target, engine=last.engine, knobs=numbered, cache=False).tag == last.tag
    with pytest.raises(UsageError, match="engine-tag"):
        build(make_flash_forward_graph(), target, engine="engine 2")


def test_parse_knobs_reads_names_and_numbers() -> None:
    assert parse_knobs(["tile_m=3", "k41=2", "24=7"]) == {
        KnobType.TILE_M: 3,
        KnobType.TILE_N: 2,
        KnobType.KERNEL_CFG: 7,
    }
    for wrong in ("TILE_M", "TILE_M=", "NO_SUCH=1", "99999=1", "=1"):
        with pytest.raises(UsageError) as caught:
            parse_knobs([wrong])
        assert caught.value.code == "knob-choice"


def test_plan_builds_share_a_target_until_it_is_closed(stored_plan: Plan) -> None:
    first = shared_target("h100")
    assert shared_target(find_profile("sm90")) is first
    assert shared_target(first) is first
    first.close()
    assert shared_target("h100") is not first
    assert build(make_flash_forward_graph(), "h100").json()


def test_a_plan_of_a_described_target_cannot_be_called() -> None:
    g = GraphBuilder("matmul")
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False)
    with pytest.raises(EnvironmentNotReady) as caught:
        plan(g.graph(), "h100")
    assert caught.value.code == "plan-without-device"


FORK_PROGRAM = """
import os
from tests.library.plans.test_planning import *
parent = build(make_flash_forward_graph(), "h100")
child = os.fork()
if not child:
    assert build(make_flash_forward_graph(), "h100") is not parent
    assert build(make_flash_forward_graph(), "h100").tag == parent.tag
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_its_own_plans(stored_plan: Plan) -> None:
    assert run_python(["-c", FORK_PROGRAM], check=True).stdout == "0\n"


FRESH_PROCESS_PROGRAM = """
import cudnn_backend_py.plans.build as planning
from tests.library.plans.test_planning import *
counted, real = [], planning.build_plan
planning.build_plan = lambda config: counted.append(config.tag) or real(config)
print(build(make_flash_forward_graph(), "h100").tag, len(counted))
"""


def test_a_new_process_loads_a_stored_plan_without_building(stored_plan: Plan) -> None:
    assert run_python(["-c", FRESH_PROCESS_PROGRAM], check=True).stdout.split() == [stored_plan.tag, "0"]
