"""Plans, and the engines, knobs, notes and configs from which they are built; changed plan files are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import (
    CudnnStatusError,
    EnvironmentNotReady,
    GraphBuilder,
    GraphError,
    NotSupported,
    OperationGraph,
    UsageError,
    build_plan,
    library,
    load_plan,
    open_target,
)
from cudnn_backend_py.generated.enums import BehaviorNote, KnobType, NumericalNote
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.plans.engine import EngineConfig
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.plans.record import add_hash
from tests.support.child import make_older_cudnn_environment, run_code


def matmul() -> Graph:
    g = GraphBuilder("matmul")
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False)
    return g.graph()


def flash_forward() -> Graph:
    return sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)


@pytest.fixture(scope="module")
def operation_graph() -> OperationGraph:
    return OperationGraph(matmul(), open_target("sm90"))


@pytest.fixture(scope="module")
def configs(operation_graph: OperationGraph) -> list[EngineConfig]:
    return operation_graph.heuristics("A").configs


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(OperationGraph(flash_forward(), open_target("sm90")).heuristics("A").configs[0])


@pytest.fixture
def saved_plan(plan: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    plan.save(path)
    return path


# engines and knobs


def test_engines_are_counted_and_include_those_of_the_heuristics(
    operation_graph: OperationGraph, configs: list[EngineConfig]
) -> None:
    assert operation_graph.engine_count > 1
    assert configs
    assert {config.engine for config in configs} <= set(range(operation_graph.engine_count))


@pytest.mark.parametrize("index", [-1, 10**6])
def test_an_engine_that_does_not_exist_is_not_supported(operation_graph: OperationGraph, index: int) -> None:
    with pytest.raises(NotSupported, match="ENGINE_DESCRIPTOR"):
        operation_graph.engine(index)


def test_knob_values_of_the_heuristics_are_in_the_knobs_ranges(
    operation_graph: OperationGraph, configs: list[EngineConfig]
) -> None:
    seen = 0
    for config in configs:
        ranges = {knob.type: knob for knob in operation_graph.knobs(config.engine)}
        assert config.knobs
        for knob, value in config.knobs.items():
            assert isinstance(knob, KnobType)
            assert ranges[knob].minimum <= value <= ranges[knob].maximum
            assert ranges[knob].stride >= 0
            seen += 1
    assert seen >= len(configs)


def test_an_engine_and_its_knobs_give_the_config_of_the_heuristics(
    operation_graph: OperationGraph, configs: list[EngineConfig]
) -> None:
    for config in configs:
        again = operation_graph.config(config.engine, config.knobs)  # type: ignore[arg-type]
        assert (again.engine, again.knobs, again.tag) == (config.engine, config.knobs, config.tag)
        assert again.workspace_bytes == config.workspace_bytes


def test_a_config_without_knobs_can_be_built(operation_graph: OperationGraph, configs: list[EngineConfig]) -> None:
    config = operation_graph.config(configs[0].engine)
    assert config.engine == configs[0].engine
    assert build_plan(config).workspace_bytes >= 0


def test_a_knob_out_of_range_is_refused(operation_graph: OperationGraph, configs: list[EngineConfig]) -> None:
    knob = next(iter(configs[0].knobs))
    assert isinstance(knob, KnobType)
    highest = next(item.maximum for item in operation_graph.knobs(configs[0].engine) if item.type is knob)
    with pytest.raises(CudnnStatusError):
        build_plan(operation_graph.config(configs[0].engine, {knob: highest + 1}))


def test_an_engine_that_does_not_support_the_graph_is_reported() -> None:
    wide = OperationGraph(sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=20), open_target("sm90"))
    assert wide.heuristics("A").configs == []
    assert wide.engine_count > 0
    for index in range(wide.engine_count):
        with pytest.raises(NotSupported) as caught:
            wide.config(index)
        assert caught.value.function == "cudnnBackendFinalize"


def test_notes_are_enum_members(configs: list[EngineConfig]) -> None:
    behavior = {note for config in configs for note in config.behavior_notes}
    numerical = {note for config in configs for note in config.numerical_notes}
    assert BehaviorNote.RUNTIME_COMPILATION in behavior
    assert NumericalNote.TENSOR_CORE in numerical
    assert {type(note) for note in behavior | numerical} <= {BehaviorNote, NumericalNote}


def test_different_engine_configs_have_different_tags(configs: list[EngineConfig]) -> None:
    assert len({config.tag for config in configs}) == len(configs)
    assert configs[0].tag.startswith(f"eng{configs[0].engine}_k")


def test_repeated_heuristics_queries_give_the_same_configs(
    operation_graph: OperationGraph, configs: list[EngineConfig]
) -> None:
    assert [config.tag for config in operation_graph.heuristics("a").configs] == [config.tag for config in configs]


# plans and files


def test_a_plan_has_its_workspace_size_and_graph(plan: Plan) -> None:
    assert plan.workspace_bytes >= 0
    assert plan.graph == flash_forward()
    assert repr(plan).startswith(f"<Plan {plan.tag} of 'sdpa_forward' for ")
    record = json.loads(plan.json())
    assert record["cudnnVersion"] == library().cudnnGetVersion()
    shown = plan._repr_html_()
    assert shown is not None
    assert all(text in shown for text in (plan.tag, "sm_90", f"{plan.workspace_bytes} bytes", '<svg class="graph"'))


def test_a_saved_plan_loads_on_the_same_target(plan: Plan, saved_plan: Path) -> None:
    loaded = load_plan(saved_plan, "sm90")
    assert (loaded.tag, loaded.workspace_bytes, loaded.graph) == (plan.tag, plan.workspace_bytes, plan.graph)
    assert json.loads(loaded.json()) == json.loads(plan.json())
    loaded.close()
    loaded.close()
    assert "closed" in (loaded._repr_html_() or "")
    assert repr(load_plan(saved_plan, "sm90")).endswith(" bytes>")
    with pytest.raises(UsageError, match="closed"):
        loaded.json()


def test_a_plan_saved_again_is_the_same_file(plan: Plan, saved_plan: Path, tmp_path: Path) -> None:
    load_plan(saved_plan, "sm90").save(tmp_path / "again.json")
    first, second = (json.loads(path.read_text()) for path in (saved_plan, tmp_path / "again.json"))
    assert first == second


@pytest.mark.parametrize("seed", range(5))
def test_every_changed_byte_of_a_saved_plan_is_detected(saved_plan: Path, seed: int) -> None:
    """Change forty random bytes per seed, anywhere in the file: code, graph, version, hash or punctuation."""
    good = saved_plan.read_bytes()
    chance = random.Random(seed)
    for _ in range(40):
        place = chance.randrange(len(good) - 1)  # not the last newline
        wrong = bytearray(good)
        wrong[place] ^= 1 << chance.randrange(8)
        saved_plan.write_bytes(wrong)
        with pytest.raises(GraphError) as caught:
            load_plan(saved_plan, "sm90")
        assert caught.value.code == "plan-file"


def _change_plan_file_with_valid_hash(path: Path, **changes: Any) -> None:
    """Change fields of a saved plan and correct its hash, as an attacker or another package version could."""
    path.write_text(json.dumps(add_hash(json.loads(path.read_text()) | changes)))


def test_a_plan_of_another_cudnn_version_is_refused(saved_plan: Path) -> None:
    _change_plan_file_with_valid_hash(saved_plan, cudnn="9.99.0")
    with pytest.raises(EnvironmentNotReady, match=r"saved by cuDNN 9\.99\.0") as caught:
        load_plan(saved_plan, "sm90")
    assert caught.value.code == "plan-version-mismatch"


def test_a_plan_saved_by_an_older_cudnn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "older.json"
    run_code(
        "from tests.library.plans.test_plan import *\n"
        f"config = OperationGraph(flash_forward(), open_target('sm90')).heuristics('A').configs[0]\n"
        f"build_plan(config).save({str(path)!r})",
        environment=make_older_cudnn_environment(),
    )
    with pytest.raises(EnvironmentNotReady, match=r"saved by cuDNN 9\.19\.0\+cu12, the loaded library is") as caught:
        load_plan(path, "sm90")
    assert caught.value.code == "plan-version-mismatch"


@pytest.mark.parametrize("target", ["sm80", "sm89", "sm100"])
def test_a_plan_of_another_architecture_is_refused(saved_plan: Path, target: str) -> None:
    with pytest.raises(EnvironmentNotReady, match="has code for sm_90") as caught:
        load_plan(saved_plan, target)
    assert caught.value.code == "plan-architecture-mismatch"


@pytest.mark.parametrize(
    ("target", "why"),
    [("h200", "memoryBusWidth is 5120 there, 6016 here"), ("h100-pcie", "multiProcessorCount is 132 there, 114 here")],
)
def test_a_plan_of_another_gpu_of_the_architecture_names_the_difference(
    saved_plan: Path, target: str, why: str
) -> None:
    with pytest.raises(
        EnvironmentNotReady, match=f"was built for h100-sxm, and cuDNN refuses it for {target}: .*{why}"
    ) as caught:
        load_plan(saved_plan, target)
    assert caught.value.code == "plan-architecture-mismatch"
    assert "NOT_SUPPORTED_ARCH_MISMATCH" in caught.value.render()


def test_a_plan_with_a_wrong_architecture_is_refused_by_cudnn(saved_plan: Path) -> None:
    _change_plan_file_with_valid_hash(saved_plan, sm=80)
    with pytest.raises(EnvironmentNotReady, match="deviceVer is 900 there, 800 here"):
        load_plan(saved_plan, "sm80")


@pytest.mark.parametrize("target", [None, "NVIDIA somewhere else"])
def test_load_plan_without_gpu_uses_the_target_in_the_plan_file(
    plan: Plan, saved_plan: Path, target: str | None
) -> None:
    if target is not None:  # a GPU without a description: its architecture has one
        _change_plan_file_with_valid_hash(saved_plan, target=target)
    loaded = load_plan(saved_plan)
    assert (loaded.target.sm, loaded.target.handle, loaded.tag) == (90, None, plan.tag)


INVALID_PLAN_FILES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no JSON": lambda: b"plan",
    "not UTF-8": lambda: b"\xff\xfe",
    "a list": lambda: b"[]",
    "a number": lambda: b"1",
    "another schema": lambda: b'{"schema": "other", "version": 1}',
    "another version": lambda: b'{"schema": "cudnn-backend-py/plan", "version": 99}',
    "nothing in it": lambda: b'{"schema": "cudnn-backend-py/plan", "version": 1}',
    "nested too deep": lambda: b"[" * 100_000,
}


@pytest.mark.parametrize("content", INVALID_PLAN_FILES.values(), ids=INVALID_PLAN_FILES)
def test_an_invalid_plan_is_refused(tmp_path: Path, content: Callable[[], bytes]) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content())
    with pytest.raises(GraphError) as caught:
        load_plan(path, "sm90")
    assert caught.value.code == "plan-file"
