"""Selection of an engine config on described targets; refusals report the value found and the value allowed."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from cudnn_backend_py import (
    CudnnStatusError,
    Graph,
    HeurMode,
    NotSupported,
    OperationGraph,
    UsageError,
    open_target,
)
from cudnn_backend_py.generated.enums import BehaviorNote, KnobType, NumericalNote
from cudnn_backend_py.graph import attention
from cudnn_backend_py.plans.choice import EngineChoice
from cudnn_backend_py.plans.select import (
    NothingSelected,
    Selection,
    candidates,
    make_cache_key_options_of_tuned_plan,
    select,
)
from tests.support.typical_graphs import TYPICAL_GRAPHS


def make_causal_forward_graph() -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)


def make_causal_backward_graph(**options: Any) -> Graph:
    shape: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 512, "head_dim": 64, "causal": True}
    return attention.sdpa_backward(**shape | options)


@pytest.fixture(scope="module")
def operation_graph() -> OperationGraph:
    return OperationGraph(make_causal_forward_graph(), open_target("h100"))


def test_by_default_the_first_config_of_mode_a_is_chosen(operation_graph: OperationGraph) -> None:
    proposed = [config.tag for config in operation_graph.heuristics("A").configs]
    chosen = select(operation_graph)
    assert chosen.config.tag == proposed[0]
    assert [config.tag for config in chosen.alternatives] == proposed[1:]


def test_a_selection_lists_the_configs_that_cudnn_refused(operation_graph: OperationGraph) -> None:
    answer = operation_graph.heuristics("A")
    assert answer.candidates > len(answer.configs) or operation_graph.target.library.version < (9, 19, 0)
    refused = select(operation_graph).refused
    assert len(refused) == answer.candidates - len(answer.configs)
    assert all(item.mode == "A" and item.tag.startswith("eng") for item in refused)
    assert all(item.reason in item.words.splitlines() for item in refused)


def test_configs_over_a_limit_report_their_value_and_the_limit(operation_graph: OperationGraph) -> None:
    first = select(operation_graph).config
    limit = first.shared_memory_bytes - 1
    chosen = select(operation_graph, shared_memory_bytes=limit)
    assert chosen.config.shared_memory_bytes <= limit
    reasons = {item.tag: item.reason for item in chosen.refused}
    assert reasons[first.tag] == (
        f"it needs {first.shared_memory_bytes} bytes of shared memory per block, {limit} are allowed"
    )


def test_workspace_limit_applies_to_the_choice_and_all_alternatives(operation_graph: OperationGraph) -> None:
    chosen = select(operation_graph, workspace_bytes=0)
    assert {config.workspace_bytes for config in (chosen.config, *chosen.alternatives)} == {0}
    assert any("bytes of workspace, 0 are allowed" in item.reason for item in chosen.refused)


def test_each_config_excluded_for_lack_of_a_note_has_a_reason(operation_graph: OperationGraph) -> None:
    with pytest.raises(NothingSelected, match="nothing-selected") as caught:
        select(operation_graph, wanted_behavior="CUBLASLT_DEPENDENCY", modes="A")
    proposed = {config.tag for config in operation_graph.heuristics("A").configs}
    by_filter = {item.tag: item.reason for item in caught.value.refused if not item.words}
    assert set(by_filter) == proposed
    assert all(reason.endswith("CUBLASLT_DEPENDENCY is wanted") for reason in by_filter.values())
    assert all(tag in caught.value.render() for tag in proposed)


def test_reasons_for_excluded_configs_do_not_quote_cudnn(operation_graph: OperationGraph) -> None:
    """cuDNN accepted the config, so the error that excludes it has no status, function or message of cuDNN."""
    first = operation_graph.heuristics("A").configs[0]
    with pytest.raises(NothingSelected) as caught:
        select(operation_graph, engine=first.engine, knobs=first.knobs, shared_memory_bytes=0)
    error = caught.value
    assert not isinstance(error, CudnnStatusError)
    assert not hasattr(error, "status")
    assert error.headline.endswith(": 1 refused by the selection")
    assert error.last_error == ""
    assert "cudnn" not in error.sections
    assert "CUDNN_STATUS" not in error.render()
    assert not any(item.refused_by_cudnn for item in error.refused)


def test_configs_refused_by_cudnn_or_selection_are_counted_apart(operation_graph: OperationGraph) -> None:
    with pytest.raises(NothingSelected) as caught:
        select(operation_graph, shared_memory_bytes=0, modes="A")
    error = caught.value
    theirs = [item for item in error.refused if item.refused_by_cudnn]
    ours = [item for item in error.refused if not item.refused_by_cudnn]
    assert len(ours) == len(operation_graph.heuristics("A").configs)
    said = [f"{len(theirs)} refused by cuDNN"] if theirs else []
    assert error.headline.endswith(": " + ", ".join([*said, f"{len(ours)} refused by the selection"]))
    assert all(item.reason.partition(": ")[2] in error.last_error for item in theirs)
    assert error.sections.get("cudnn", "") == error.last_error


def test_the_error_names_an_unwanted_note(operation_graph: OperationGraph) -> None:
    with pytest.raises(NotSupported) as caught:
        select(operation_graph, unwanted_numerical=NumericalNote.TENSOR_CORE, modes="A")
    assert "TENSOR_CORE is not wanted" in caught.value.sections["cause"]
    assert "unwanted_numerical ['TENSOR_CORE']" in caught.value.sections["where"]


def test_refused_configs_of_an_error_survive_pickling(operation_graph: OperationGraph) -> None:
    with pytest.raises(NothingSelected) as caught:
        select(operation_graph, workspace_bytes=0, shared_memory_bytes=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.refused == caught.value.refused
    assert again.refused


def test_an_engine_without_knobs_selects_among_its_heuristics_configs(operation_graph: OperationGraph) -> None:
    engine = operation_graph.heuristics("A").configs[-1].engine
    chosen = select(operation_graph, engine=engine)
    assert chosen.config.engine == engine
    assert any(item.reason.endswith(f"{engine} is wanted") for item in chosen.refused)


def test_a_given_engine_and_its_knobs_are_used(operation_graph: OperationGraph) -> None:
    last = operation_graph.heuristics("A").configs[-1]
    chosen = select(operation_graph, engine=last.engine, knobs=last.knobs)
    assert (chosen.config.engine, chosen.config.knobs) == (last.engine, last.knobs)
    assert chosen.alternatives == ()


def test_a_knob_value_that_cudnn_refuses_is_reported_with_its_message(operation_graph: OperationGraph) -> None:
    last = operation_graph.heuristics("A").configs[-1]
    knobs = {**last.knobs, KnobType.KERNEL_CFG: 36}
    with pytest.raises(NothingSelected) as caught:
        select(operation_graph, engine=last.engine, knobs=knobs)
    (refused,) = caught.value.refused
    assert refused.mode == "named"
    assert f"k{int(KnobType.KERNEL_CFG)}=36" in refused.tag
    assert refused.words
    assert refused.refused_by_cudnn
    assert all(reason.text in caught.value.last_error for reason in refused.reasons)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({KnobType.KERNEL_CFG: 10**6}, r"knob KERNEL_CFG \(k24\) is 1000000, engine \d+ takes 0 to \d+$"),
        ({KnobType.TILE_SIZE: 1}, r"has no knob TILE_SIZE \(k2\), its knobs are .*KERNEL_CFG \(k24\)"),
    ],
)
def test_a_knob_that_an_engine_does_not_have_so_is_reported_with_its_range(
    operation_graph: OperationGraph, knobs: dict[KnobType, int], said: str
) -> None:
    engine = operation_graph.heuristics("A").configs[0].engine
    with pytest.raises(NothingSelected) as caught:
        select(operation_graph, engine=engine, knobs=knobs)
    (refused,) = caught.value.refused
    assert re.search(said, refused.reason), refused.reason


def test_a_refused_engine_config_is_reported_with_the_reason_in_cudnns_log() -> None:
    """The last-error text of an engine config is empty; cuDNN only logs the reason."""
    graph = OperationGraph(TYPICAL_GRAPHS["matmul"].make(), open_target("l40s"))
    with pytest.raises(NothingSelected, match="cuDNN: FORT_NATIVE_9X engine is only supported") as caught:
        select(graph, engine=4, knobs={KnobType.KERNEL_CFG: 3})
    assert caught.value.refused[0].reasons[0].status == "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"


def test_an_unknown_engine_is_reported_with_the_number_of_engines(operation_graph: OperationGraph) -> None:
    count = operation_graph.engine_count
    with pytest.raises(NothingSelected, match=f"has no engine {count} for .*, only 0 to {count - 1}") as caught:
        select(operation_graph, engine=count)
    assert caught.value.sections["fix"] == "select an engine that explain(graph) lists, or none"


def test_the_error_of_an_unsupported_graph_has_cudnns_messages() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)
    with pytest.raises(NothingSelected) as caught:
        select(graph, "t4")
    assert "NOT_SUPPORTED" in caught.value.last_error
    assert all(item.words for item in caught.value.refused)


def test_heuristics_modes_are_queried_in_order_and_each_config_is_listed_once(operation_graph: OperationGraph) -> None:
    found = candidates(operation_graph, Selection(modes=("A", "B")))
    tags = [config.tag for config in found.configs]
    assert tags[: len(operation_graph.heuristics("A").configs)] == [
        c.tag for c in operation_graph.heuristics("A").configs
    ]
    assert len(set(tags)) == len(tags)
    assert set(found.origins) <= {"A", "B"}


# determinism


def test_the_first_attention_forward_config_is_deterministic(operation_graph: OperationGraph) -> None:
    assert select(operation_graph, deterministic=True).config.tag == select(operation_graph).config.tag


@pytest.mark.parametrize("target", ["sm80", "h100"])
def test_a_backward_graph_with_unordered_dq_sums_is_not_deterministic(target: str) -> None:
    with pytest.raises(NothingSelected) as caught:
        select(make_causal_backward_graph(), target, deterministic=True)
    ours = [item.reason for item in caught.value.refused if not item.words]
    assert ours
    assert all("'dq_accum' in no fixed order" in reason for reason in ours)
    assert select(make_causal_backward_graph(deterministic=True), target, deterministic=True).config.engine >= 0


def test_the_unified_backward_operation_is_not_deterministic() -> None:
    target = open_target("h100")
    graph = make_causal_backward_graph(implementation="unified", version=target.library.version)
    if target.library.version < (9, 21, 0):
        with pytest.raises(UsageError, match="newer-than-library"):
            select(graph, target, deterministic=True)
        return
    with pytest.raises(NothingSelected, match="refused") as caught:
        select(graph, target, deterministic=True)
    assert "the deterministic graph is the composite one" in caught.value.sections["cause"]


def test_blackwell_uses_a_deterministic_config_outside_the_heuristics() -> None:
    target = open_target("b200")
    known = attention.deterministic_config(target.library.version, 100)
    if known is None:
        with pytest.raises(NothingSelected, match="refused") as caught:
            select(make_causal_backward_graph(deterministic=True), target, deterministic=True)
        assert "has no deterministic attention backward for sm_100" in caught.value.sections["cause"]
        return
    chosen = select(make_causal_backward_graph(deterministic=True), target, deterministic=True)
    assert chosen.config.engine == known[0]
    assert chosen.config.knobs.items() >= known[1].items()
    assert chosen.alternatives == ()
    configs = OperationGraph(make_causal_backward_graph(deterministic=True), target).heuristics().configs
    other = next(config.engine for config in configs if config.engine != known[0])
    with pytest.raises(NothingSelected) as caught:
        select(make_causal_backward_graph(deterministic=True), target, engine=other, deterministic=True)
    tag = EngineChoice(*known).tag
    assert any(item.reason.endswith(f"known to be deterministic with {tag}") for item in caught.value.refused)


# the value


def test_selections_with_equal_names_enums_and_mappings_are_equal() -> None:
    one = Selection(wanted_behavior="runtime_compilation", engine=3, knobs={"STAGES": 2, KnobType.TILE_M: 1})
    two = Selection(
        wanted_behavior=(BehaviorNote.RUNTIME_COMPILATION,),
        engine=3,
        knobs=((KnobType.TILE_M, 1), (KnobType.STAGES, 2)),
    )
    assert one == two
    assert hash(one) == hash(two)


def test_selection_to_dict_contains_only_changed_values() -> None:
    assert Selection().to_dict() == {}
    assert Selection(workspace_bytes=0, modes="B", engine=0, knobs={"STAGES": 2}).to_dict() == {
        "workspace_bytes": 0,
        "modes": ["B"],
        "engine": 0,
        "knobs": {"STAGES": 2},
    }


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"workspace_bytes": -1}, "selection-limit"),
        ({"shared_memory_bytes": 1.5}, "selection-limit"),
        ({"engine": True}, "selection-limit"),
        ({"knobs": {"STAGES": 1}}, "selection-knobs"),
        ({"engine": 1, "knobs": {"STAGES": "1"}}, "selection-knobs"),
        ({"engine": 1, "knobs": {"NO_SUCH": 1}}, "unknown-enumerator"),
        ({"wanted_numerical": "FAST"}, "unknown-enumerator"),
        ({"modes": ("A", "C")}, "unknown-enumerator"),
    ],
)
def test_an_invalid_selection_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        Selection(**options)


def test_heuristics_modes_keep_their_order() -> None:
    assert Selection(modes=("FALLBACK", "A")).modes == (HeurMode.FALLBACK, HeurMode.A)


def test_keys_of_tuned_plans_depend_on_the_selection_but_not_on_modes() -> None:
    h100 = open_target("h100")
    assert (
        make_cache_key_options_of_tuned_plan(None, h100)
        == make_cache_key_options_of_tuned_plan(Selection(), h100)
        == make_cache_key_options_of_tuned_plan(Selection(modes="B"), h100)
    )
    assert make_cache_key_options_of_tuned_plan(
        Selection(deterministic=True), h100
    ) != make_cache_key_options_of_tuned_plan(None, h100)
