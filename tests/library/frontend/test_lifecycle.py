"""Tests of a ``pygraph`` with the real cuDNN and described targets: building, plans, filters, files, exceptions."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import Attr, CudnnStatusError, find_profile
from cudnn_backend_py.frontend.errors import FrontendRuntimeError
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.frontend.ubjson import read_ubjson
from cudnn_backend_py.importers.files import open_graph_file
from cudnn_backend_py.importers.graphs import read_graphs
from cudnn_backend_py.known_issues import find, find_known_issues
from cudnn_backend_py.native import Handle, library
from cudnn_backend_py.native.descriptor import _NativeOwner
from cudnn_backend_py.native.launch import make_std_vectors_of_int64
from cudnn_backend_py.native.libcudnn import HandlePointer
from tests.support.child import ROOT, make_older_cudnn_environment, run_code, run_python
from tests.support.issue_warnings import list_issue_warning_categories

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


def make_empty_half_graph(**options: Any) -> cudnn.pygraph:
    types = {"io_data_type": HALF, "intermediate_data_type": FLOAT, "compute_data_type": FLOAT}
    return cudnn.pygraph(**(types | options))


def make_matmul(n: int = 64, **options: Any) -> tuple[cudnn.pygraph, cudnn.tensor]:
    g = make_empty_half_graph(**options)
    a = g.tensor(name="A", dim=[1, n, 64], stride=[n * 64, 64, 1])
    b = g.tensor(name="B", dim=[1, 64, n], stride=[n * 64, n, 1])
    c = g.matmul(A=a, B=b, name="mm")
    c.set_output(True)
    return g, c


def make_causal_attention(**options: Any) -> tuple[cudnn.pygraph, list[Any]]:
    """Return a forward pass that cuDNN refuses for an odd head dim, and supports otherwise."""
    d = options.pop("d", 64)
    g = make_empty_half_graph(**options)
    q, k, v = (g.tensor(name=name, dim=[1, 2, 128, d], stride=[256 * d, 128 * d, d, 1]) for name in "qkv")
    outputs = g.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=True, attn_scale=0.125, use_causal_mask=True)
    outputs[0].set_output(True).set_dim([1, 2, 128, d]).set_stride([256 * d, 128 * d, d, 1])
    outputs[1].set_output(True).set_data_type(FLOAT)
    return g, outputs


def test_a_built_graph_has_plan_names_notes_and_knobs() -> None:
    g, c = make_matmul()
    assert g.get_execution_plan_count() == 0
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    count = g.get_execution_plan_count()
    assert count >= 2
    engine, *knobs = g.get_plan_name_at_index(0).split("_")
    assert engine.startswith("eng")
    numbers = [int(knob[1:].partition("=")[0]) for knob in knobs]
    assert numbers == sorted(numbers) != []
    assert cudnn.behavior_note.RUNTIME_COMPILATION in g.get_behavior_notes()
    engine, knobs = g.get_engine_and_knobs_at_index(0)
    assert g.get_plan_name_at_index(0).startswith(f"eng{engine}_")
    assert knobs
    assert all(isinstance(item, cudnn.knob_type) for item in knobs)
    assert c.get_uid() != 0
    assert g.query_tensor_attributes_of_uid(c.get_uid()) is c
    assert c.get_dim() == [1, 64, 64]


def test_build_steps_run_the_earlier_steps_and_queries_name_the_missing_step() -> None:
    """As in cudnn-frontend 1.32: plans need an operation graph, and an execution needs a built plan."""
    g, _ = make_matmul()
    with pytest.raises(RuntimeError, match="Plan index -1 is invalid"):
        g.get_workspace_size()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="nothing to serialize"):
        g.serialize()
    g.create_execution_plans([cudnn.heur_mode.A])
    count = g.get_execution_plan_count()
    with pytest.raises(RuntimeError, match="no plan is built"):
        g.get_behavior_notes()
    g.build()
    assert g.get_execution_plan_count() == count
    for step in ("check_support", "build_plans"):
        fresh, _ = make_matmul()
        getattr(fresh, step)()
        assert fresh.get_execution_plan_count() >= count
    run, _ = make_matmul()
    with pytest.raises(RuntimeError, match="cannot run"):
        run.execute({1: 1024, 2: 2048, 3: 4096}, 0)
    assert run.get_workspace_size() == g.get_workspace_size()


def test_execute_names_missing_buffers_on_a_described_device() -> None:
    g, c = make_matmul()
    g.build()
    with pytest.raises(ValueError, match=r"missing a buffer for tensor uid 2 \('B'\)"):
        g.execute({1: 1024, c: 4096}, 0)
    with pytest.raises(ValueError, match="2"):
        g.execute({1: 1024, 2: 0.5, c: 4096}, 0)
    with pytest.raises(KeyError, match="no tensor 'zz'"):
        g.execute({"A": 1024, "B": 2048, "zz": 4096}, 0)


def test_a_deserialized_graph_has_its_plan_and_tensors() -> None:
    g, c = make_matmul()
    g.build()
    again = make_empty_half_graph()
    again.deserialize(g.serialize())
    assert again.get_execution_plan_count() == 1
    assert again.get_behavior_notes() == g.get_behavior_notes()
    assert again.get_plan_name_at_index(0) == g.get_plan_name_at_index(0)
    assert again.query_tensor_attributes_of_uid(c.get_uid()).get_dim() == c.get_dim()


@pytest.mark.parametrize("step", ["check_support", "build_plans", "build"])
def test_build_steps_keep_a_deserialized_plan(step: str) -> None:
    """A program may run the same build steps for a new graph and for a deserialized one."""
    saved = _build_graph(make_matmul).serialize(as_bytes=True)
    for g in (make_empty_half_graph(), make_matmul()[0], _build_graph(lambda: make_matmul(32))):
        g.deserialize(saved)
        getattr(g, step)()
        assert g.serialize(as_bytes=True) == saved
        g.deselect_engines([g.get_plan_name_at_index(0)])
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="is deselected by the name"):
            getattr(g, step)()


def test_a_graph_with_a_deserialized_plan_accepts_no_operations() -> None:
    g, c = make_matmul()
    g.deserialize(_build_graph(make_matmul).serialize())
    with pytest.raises(RuntimeError, match="relu is added to a graph"):
        g.relu(c)
    assert g.serialize()


def test_torch_dtypes_are_accepted_and_finalized_graphs_accept_no_operations() -> None:
    class half:  # the name of torch.float16 itself
        def __str__(self) -> str:
            return "torch.float16"

    g = cudnn.pygraph(io_data_type=half(), compute_data_type=cudnn.data_type.FLOAT)
    a = g.tensor([1, 64, 64], [])
    assert (a.get_data_type(), a.get_stride()) == (cudnn.data_type.HALF, [4096, 64, 1])
    g.matmul(a, a, compute_data_type=half()).set_output(True)
    g.build_operation_graph()
    with pytest.raises(RuntimeError, match="relu is added to a graph"):
        g.relu(a)
    wrong = make_empty_half_graph()
    x, y = (wrong.tensor(dim=[1, 64, k], stride=[64 * k, k, 1]) for k in (32, 64))
    wrong.matmul(x, y)
    with pytest.raises(ValueError, match="mismatch"):
        wrong.validate()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="said by a program"):
        raise cudnn.cudnnGraphNotSupportedError("said by a program")


def test_a_plan_of_several_heuristics_modes_is_listed_once() -> None:
    g, _ = make_matmul()
    modes = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
    g.create_execution_plans([*modes, *modes])
    names = [g.get_plan_name_at_index(at) for at in range(g.get_execution_plan_count())]
    assert len(names) == len(set(names)) > 1
    g.create_execution_plans([])  # the same two
    assert g.get_execution_plan_count() == len(names)


def test_empty_graph_validates_and_cannot_be_built() -> None:
    g = make_empty_half_graph()
    g.validate()
    with pytest.raises(RuntimeError, match="no operations"):
        g.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no operations"):
        g.build()  # which requests plans, and a RuntimeError, too


@pytest.mark.parametrize("step", ["create_execution_plans", "check_support", "build_plans", "build"])
@pytest.mark.parametrize("kind", [RuntimeError, cudnn.cudnnGraphNotSupportedError])
def test_invalid_graphs_raise_not_supported_at_each_plan_step(step: str, kind: type[Exception]) -> None:
    """cudnn-frontend raises the error in validate or, for some graphs, when plans are created."""
    g = make_empty_half_graph()
    x = g.tensor(dim=[2, 8, 16], stride=[128, 16, 1])
    g.transpose(x, permutation=[0, 0, 1]).set_output(True)
    with pytest.raises(kind, match="permutation"):
        getattr(g, step)()


def test_backend_plan_entries_creates_the_plans_it_lists() -> None:
    g, _ = make_matmul()
    assert len(g.backend_plan_entries()) == g.get_execution_plan_count() > 0
    assert make_causal_attention(d=63)[0].backend_plan_entries() == []


@pytest.mark.parametrize("given", [None, 5, 10**12, 1.5, {}, object()])
def test_a_serialized_graph_of_a_wrong_type_raises_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match="the serialized graph is"):
        make_empty_half_graph().deserialize(given)


def test_a_missing_plan_raises_an_index_error_and_a_runtime_error() -> None:
    """cudnn-frontend raises an IndexError after the creation of plans, another error before it."""
    for kind in (IndexError, RuntimeError):
        with pytest.raises(kind, match="Plan index 0 is invalid"):
            make_matmul()[0].get_engine_and_knobs_at_index(0)


def test_operation_graph_is_built_without_validate() -> None:
    g, _ = make_matmul()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    assert g.get_execution_plan_count() >= 1


def test_a_not_supported_error_contains_the_verdict() -> None:
    """cuDNN 9.25 and later have no engine for two consecutive plain matmuls."""
    g = make_empty_half_graph()
    a, b, c = (g.tensor(name=name, dim=[1, 64, 64], stride=[4096, 64, 1]) for name in "abc")
    g.matmul(A=g.matmul(A=a, B=b, name="first"), B=c, name="second").set_output(True)
    g.validate()
    g.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as caught:
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    error = caught.value
    assert not isinstance(error, (RuntimeError, ValueError))
    assert "CUDNN_STATUS_NOT_SUPPORTED; Reason:" in error.sections["cudnn"]
    assert error.verdict.outcome == "not supported"
    assert error.verdict is error.verdict


REFUSED_PROGRAM = """\
import cudnn
F8, FLOAT = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
graph = cudnn.pygraph(io_data_type=F8, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
a = graph.tensor(name="a", dim=[1, 64, 64], stride=[4096, 64, 1])
b = graph.tensor(name="b", dim=[1, 64, 64], stride=[4096, 1, 64])
graph.matmul(a, b, name="mm").set_output(True).set_data_type(cudnn.data_type.HALF)
"""
DESELECTED_PROGRAM = """\
import cudnn
HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT
graph = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
graph.relu(graph.tensor(name="x", dim=[8, 64, 64], stride=[4096, 64, 1])).set_output(True)
graph.create_execution_plans([cudnn.heur_mode.A])
graph.deselect_engines([f"eng{number}" for number in range(200)])
graph.check_support()
"""
RULE_PROGRAM = """\
import cudnn
F8, FLOAT = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
graph = cudnn.pygraph(io_data_type=F8, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
q, k, v = (graph.tensor(name=name, dim=[2, 4, 128, 64], stride=[32768, 8192, 64, 1]) for name in "qkv")
names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
scales = {name: graph.tensor(dim=[1, 1, 1, 1], data_type=FLOAT) for name in names}
graph.sdpa_fp8(q=q, k=k, v=v, **scales, generate_stats=False)[0].set_output(True); graph.validate()
"""


def run_failing_frontend_program(text: str, folder: Path, *options: str, **environment: str) -> list[str]:
    """Run a program that fails for a described A100, and return the lines of its standard error."""
    (folder / "program.py").write_text(text)
    words = ["-m", "cudnn_backend_py", "frontend", *options, "--target", "a100", "program.py"]
    done = run_python(words, cwd=folder, environment={**os.environ, "PYTHONPATH": str(ROOT), **environment})
    assert (done.code, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_an_uncaught_refusal_prints_the_line_of_the_program_and_a_short_verdict(tmp_path: Path) -> None:
    if "/nvidia/cudnn_jit/" in library().path:
        pytest.skip("a JIT wheel cannot refuse this graph for certain: it lacks some engines")
    program = f"{REFUSED_PROGRAM}graph.build()\n"
    lines = run_failing_frontend_program(program, tmp_path)
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "program.py", line 7, in <module>',
        "    graph.build()",
    ]
    headline = (
        "cudnnGraphNotSupportedError: heuristics-empty: no engine config of cuDNN supports this graph on a100-80gb"
    )
    assert lines[3].startswith(headline)
    assert lines[4].startswith("NOT SUPPORTED: graph 'test_graph' on ")
    assert lines[5].startswith("cause    a, b have data type fp8 (e4m3)")
    assert any(line.startswith("remedy   judge for sm_90") for line in lines)
    assert "graph    a, b f8e4m3[1,64,64] -> matmul -> mm::C f16[1,64,64]" in lines
    assert len(lines) < 15
    assert lines[-1] == "-v before the program prints the whole traceback and all messages of cuDNN"
    assert len(run_failing_frontend_program(program, tmp_path, "-v")) > 100


def test_the_short_error_adds_no_graph_to_the_log_of_cudnn(tmp_path: Path) -> None:
    log = {"CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(tmp_path / "%i.log")}
    lines = run_failing_frontend_program(f"{REFUSED_PROGRAM}graph.build()\n", tmp_path, **log)
    assert any(line.startswith("  cudnn:  Warning: CUDNN_STATUS_NOT_SUPPORTED") for line in lines)
    assert len(lines) < 8
    (path,) = tmp_path.glob("*.log")
    assert [graph.count for graph in read_graphs(open_graph_file(str(path)))] == [1]


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (
            DESELECTED_PROGRAM,
            (
                "  fix:    choose other plans of graph.plans, or remove a filter",
                "SUPPORTED, not built: graph 'test_graph'",
            ),
        ),
        (
            RULE_PROGRAM,
            (
                "cudnnGraphNotSupportedError: frontend-not-supported: sdpa fp8 forward operation is only",
                "  fix:    take a GPU with sm_90 or sm_100",
            ),
        ),
    ],
    ids=["deselected", "rule"],
)
def test_an_uncaught_error_other_than_a_refusal_is_printed_briefly(
    program: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    lines = run_failing_frontend_program(program, tmp_path)
    assert '  File "program.py", line 7, in <module>' in lines
    assert not [words for words in shown if not any(line.startswith(words) for line in lines)]
    assert len(lines) <= 11


def test_an_error_of_a_library_without_some_engines_agrees_with_its_verdict() -> None:
    program = (
        f"import cudnn_backend_py.frontend\ncudnn_backend_py.frontend.install('a100')\n{REFUSED_PROGRAM}"
        "try:\n    graph.build()\nexcept cudnn.cudnnGraphNotSupportedError as error:\n"
        "    print(error.verdict.outcome, error, sep='|')"
    )
    outcome, text = run_code(program, environment=make_older_cudnn_environment()).stdout.split("|", 1)
    assert outcome == "could not be judged"
    assert text.startswith("heuristics-empty: the JIT wheel of this cuDNN refuses the graph")


def test_plans_are_filtered_by_note_name_workspace_and_shared_memory() -> None:
    def build_with_filters(**filters: Any) -> cudnn.pygraph:
        g, _ = make_causal_attention()
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        for name, value in filters.items():
            getattr(g, name)(value)
        g.check_support()
        g.build_plans()
        return g

    first = build_with_filters().get_plan_name_at_index(0)
    engine = first.split("_")[0]
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no execution plan supports"):
        build_with_filters(deselect_behavior_notes=[cudnn.behavior_note.RUNTIME_COMPILATION])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no execution plan supports") as caught:
        build_with_filters(deselect_workspace_greater_than=-1)
    assert "-1 are allowed" in caught.value.sections["cudnn"]
    with pytest.raises(cudnn.cudnnGraphNotSupportedError):
        build_with_filters(deselect_shared_mem_greater_than=1024)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError):
        build_with_filters(select_numeric_notes=[cudnn.numerical_note.WINOGRAD])
    build_with_filters(select_behavior_notes=[cudnn.behavior_note.RUNTIME_COMPILATION])
    g = build_with_filters(deselect_engines=[first])
    assert g._plans.candidate > 0
    assert engine


def _make_graph_without_plans() -> cudnn.pygraph:
    g, _ = make_matmul()
    g.deselect_engines(["eng"])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError):
        g.build()
    return g


def _build_graph(make: Callable[[], tuple[cudnn.pygraph, Any]]) -> cudnn.pygraph:
    g, _ = make()
    g.build([cudnn.heur_mode.A])
    return g


def _deserialize_graph() -> cudnn.pygraph:
    g = make_empty_half_graph()
    g.deserialize(_build_graph(make_matmul).serialize())
    return g


@pytest.mark.parametrize(
    "make",
    [
        make_empty_half_graph,
        lambda: make_matmul()[0],
        lambda: _build_graph(make_matmul),
        lambda: _build_graph(make_causal_attention),
        _make_graph_without_plans,
        _deserialize_graph,
    ],
)
def test_a_graph_is_freed_with_its_last_reference(make: Callable[[], cudnn.pygraph]) -> None:
    """A graph does not wait for the cycle collector, which may run while a CUDA graph is captured."""
    gc.collect()
    gc.disable()
    try:
        graph = make()
        found = weakref.ref(graph)
        del graph
        assert found() is None
    finally:
        gc.enable()


def test_an_unused_tensor_of_a_built_graph_may_still_change() -> None:
    """The change affects no operation of the built graph, and another graph may use the tensor."""
    g = _build_graph(make_matmul)
    before = g.serialize()
    one = g.tensor(name="n", dim=[1, 1, 1], stride=[1, 1, 1], data_type=cudnn.data_type.FLOAT)
    one.set_name("one").set_uid(99).set_dim([1, 64, 1]).set_stride([64, 1, 1])
    assert g.serialize() == before
    other = make_empty_half_graph()
    x = other.tensor(name="x", dim=[1, 64, 64], stride=[4096, 64, 1])
    other.add(a=x, b=one).set_output(True)
    other.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert 99 in other._get_variant_pack_uids_sorted()
    with pytest.raises(RuntimeError, match="set_name of tensor 'A' changes a graph that is already finalized"):
        next(iter(g.record.tensors)).set_name("b")


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("offset", [False, True])
def test_a_tensor_of_another_graph_with_a_used_uid_is_reported(given: bool, offset: bool) -> None:
    g, other = make_empty_half_graph(), make_empty_half_graph()
    x = g.tensor(name="x", dim=[1, 64, 64], stride=[4096, 64, 1])
    y = other.tensor(name="y", dim=[1, 64, 64], stride=[4096, 64, 1])
    if given:
        x.set_uid(7)
        y.set_uid(7)
    words = r"tensor 'y' belongs to another graph, and its uid [17] is the uid of tensor 'x' in this graph"
    if offset:
        g.relu(x.set_ragged_offset(y)).set_output(True)
        with pytest.raises(ValueError, match=words):
            g.validate()
        return
    with pytest.raises(ValueError, match=words):
        g.add(a=x, b=y)
    assert not g.nodes
    with pytest.raises(RuntimeError, match="empty-graph"):
        g.graph()


def test_new_uids_differ_from_uids_used_by_other_graphs() -> None:
    g, other = make_empty_half_graph(), make_empty_half_graph()
    x = g.tensor(name="x", dim=[1, 64, 64], stride=[4096, 64, 1])
    other.tensor(name="z", dim=[1, 64, 64], stride=[4096, 64, 1])
    y = other.tensor(name="y", dim=[1, 64, 64], stride=[4096, 64, 1])
    g.add(a=x, b=y).set_output(True)
    assert sorted(item.uid for item in g.graph().tensors) == [1, 2, 3]


def make_matmul_with_plans(*modes: Any) -> cudnn.pygraph:
    g, _ = make_matmul()
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans(list(modes) or [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    return g


def test_plan_filters_apply_to_plans_created_later() -> None:
    g, _ = make_matmul()
    g.validate()
    g.build_operation_graph()
    g.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
    g.create_execution_plans([cudnn.heur_mode.A])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no execution plan could be built"):
        g.build_plans()
    engine, knobs = g.get_engine_and_knobs_at_index(0)
    g.create_execution_plan(engine, knobs)
    with pytest.raises(ValueError, match="deselected by its notes"):
        g.build_plan_at_index(g.get_execution_plan_count() - 1)


@pytest.mark.parametrize(
    "run_query",
    [
        lambda g: g.build_plan_at_index(0),
        lambda g: g.get_workspace_size_plan_at_index(0),
        lambda g: g.execute_plan_at_index({}, 0, 0),
        lambda g: g.select_plan(0).build_plans(),
    ],
)
def test_a_deselected_plan_is_refused_at_every_entry_point(run_query: Callable[[cudnn.pygraph], Any]) -> None:
    g = make_matmul_with_plans()
    name = g.get_plan_name_at_index(0)
    g.build_plans()
    g.deselect_engines([name])
    with pytest.raises(ValueError, match=f"plan 0: {name} is deselected by the name") as caught:
        run_query(g)
    assert isinstance(caught.value, cudnn.cudnnGraphNotSupportedError)


def test_a_workspace_limit_keeps_the_size_of_an_already_built_plan() -> None:
    g = make_matmul_with_plans(cudnn.heur_mode.A)
    g.build_plan_at_index(0)
    g.deselect_workspace_greater_than(-1)
    assert g.get_workspace_size_plan_at_index(0) == 0
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="-1 are allowed"):
        g.get_workspace_size_plan_at_index(1)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="-1 are allowed"):
        g.build_plan_at_index(0)


def test_plans_inherit_cuda_graph_retention_from_their_graph() -> None:
    is_reported = library().version >= (9, 28)
    for retention in (*cudnn.cuda_graph_retention, None):
        g, _ = make_matmul(cuda_graph_retention=retention)
        g.build([cudnn.heur_mode.A])
        assert g.get_cuda_graph_retention() is (retention or cudnn.cuda_graph_retention.PER_GRAPH)
        if is_reported:
            found = g._plans.get_built_plan(0).descriptor.get(Attr.EXECUTION_PLAN_CUDA_GRAPH_RETENTION)
            assert found.name == (retention or cudnn.cuda_graph_retention.PER_GRAPH).name
    with pytest.raises(TypeError, match=r"a cudnn\.cuda_graph_retention is needed"):
        make_empty_half_graph(cuda_graph_retention="NONE")


def test_deselected_engine_names_accumulate() -> None:
    g = make_matmul_with_plans()
    g.deselect_engines([g.get_plan_name_at_index(0)])
    g.deselect_engines([g.get_plan_name_at_index(1)]).deselect_engines([])
    g.build_plans()
    assert g._plan_index == 2


def test_numpy_numbers_are_accepted() -> None:
    g = make_matmul_with_plans()
    engine, knobs = g.get_engine_and_knobs_at_index(np.int64(0))  # type: ignore[arg-type]
    g.deselect_workspace_greater_than(np.int64(1 << 30))  # type: ignore[arg-type]
    assert g.get_knobs_for_engine(np.int32(engine))  # type: ignore[arg-type]
    g.create_execution_plan(np.int64(engine), {item: np.int64(value) for item, value in knobs.items()})  # type: ignore[arg-type, misc]
    assert g.get_plan_name_at_index(g.get_execution_plan_count() - 1) == g.get_plan_name_at_index(0)


def test_deselecting_the_built_plan_selects_the_next_plan() -> None:
    g = make_matmul_with_plans()
    g.build_plans()
    g.deselect_engines([g.get_plan_name_at_index(0)])
    with pytest.raises(RuntimeError, match="no plan is built"):
        g.get_workspace_size()
    g.build_plans()
    assert g._plan_index == 1
    g.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
    assert g.get_workspace_size() == 0  # the built one stays, as in cudnn-frontend, until plans are built again
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no execution plan could be built"):
        g.build_plans()


def test_building_all_plans_keeps_the_selected_plan() -> None:
    g = make_matmul_with_plans(cudnn.heur_mode.A)
    g.select_plan(1)
    g.build_plans(cudnn.build_plan_policy.ALL)
    assert g._plan_index == 1
    assert all(g._plans.is_built(index) for index in range(g.get_execution_plan_count()))
    g.build_plan_at_index(2)  # which is used from now on, regardless of the selection
    g.build_plans()
    g.build_plans(cudnn.build_plan_policy.ALL)
    assert g._plan_index == 2


@pytest.mark.parametrize("index", ["x", None, 1.0, -1, 10**6])
def test_an_invalid_plan_index_raises_an_index_error(index: Any) -> None:
    g = make_matmul_with_plans()
    for run_query in (g.get_plan_name_at_index, g.get_behavior_notes_for_plan_at_index, g.build_plan_at_index):
        with pytest.raises(IndexError, match="out of range"):
            run_query(index)


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        ("create_execution_plans", ["A"], "'A' is not a heuristics mode"),
        ("create_execution_plan", ("4", {}), "'4' is no number of an engine"),
        ("create_execution_plan", (4, 5), "knobs are 5, {cudnn.knob_type: int} is needed"),
        ("create_execution_plan", (4, {"TILE_M": 64}), "'TILE_M' is no knob"),
        ("create_execution_plan", (4, {12: 1.5}), "1.5 is no value of 12"),
        ("get_knobs_for_engine", "x", "'x' is no number of an engine"),
        ("select_behavior_notes", [5], "a list of cudnn.behavior_note is needed"),
        ("deselect_behavior_notes", [cudnn.numerical_note.TENSOR_CORE], "a list of cudnn.behavior_note is needed"),
        ("deselect_workspace_greater_than", None, "None is no number of bytes"),
        ("deselect_shared_mem_greater_than", 1.5, "1.5 is no number of bytes"),
        ("deselect_engines", "eng0", "engine_names must be a list of str, got 'eng0'"),
        ("deselect_engines", [3], r"engine_names must be a list of str, got \[3\]"),
    ],
)
def test_arguments_of_a_wrong_type_raise_type_errors(call: str, given: Any, message: str) -> None:
    g = make_matmul_with_plans()
    with pytest.raises(TypeError, match=message):
        getattr(g, call)(*(given if isinstance(given, tuple) else (given,)))


def test_knobs_and_engines_that_cudnn_lacks_are_refused_by_name() -> None:
    g = make_matmul_with_plans(cudnn.heur_mode.A)
    engine, _ = g.get_engine_and_knobs_at_index(0)
    with pytest.raises(RuntimeError, match=r"has the knob SPLIT_KV \(in .*convert_to_backend_knob_type"):
        g.create_execution_plan(engine, {cudnn.knob_type.SPLIT_KV: 1})
    with pytest.raises(ValueError, match="engine 20500 is one of cudnn-frontend's own"):
        g.create_execution_plan(20500, {})


def test_build_plans_by_index_or_all_at_once() -> None:
    g, _ = make_causal_attention()
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    g.build_plan_at_index(1)
    assert g._plans.candidate == 1
    assert g.get_workspace_size() == g.get_workspace_size_plan_at_index(1)
    with pytest.raises(RuntimeError, match="plan 0 is not built"):
        g.execute_plan_at_index({}, 0, 0)
    with pytest.raises(IndexError, match="plan index 99 is out of range"):
        g.get_plan_name_at_index(99)


def test_a_plan_of_one_engine_with_knobs_is_built() -> None:
    g, _ = make_matmul()
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    engine, knobs = g.get_engine_and_knobs_at_index(0)
    assert engine < g.get_engine_count()
    ranges = {item.type: item for item in g.get_knobs_for_engine(engine)}
    assert all(ranges[item].min_value <= value <= ranges[item].max_value for item, value in knobs.items())

    again, _ = make_matmul()
    again.validate()
    again.build_operation_graph()
    again.create_execution_plan(engine, knobs)
    again.build_plans()
    assert again.get_plan_name_at_index(0).split("_")[0] == f"eng{engine}"
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=f"engine {engine}.* answered CUDNN_STATUS_NOT_SUPP"):
        again.create_execution_plan(engine, {cudnn.knob_type.KERNEL_CFG: 12345})


def test_a_serialized_graph_is_read_back_and_corruption_is_detected() -> None:
    g, _ = make_causal_attention()
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    data = g.serialize()
    assert all(isinstance(item, int) for item in data[:10])
    again = cudnn.pygraph(handle=cudnn.create_handle())
    again.deserialize(data)
    assert again.get_workspace_size() == g.get_workspace_size()
    assert again._get_variant_pack_uids_sorted() == g._get_variant_pack_uids_sorted()
    damaged = data.copy()
    damaged[-10] ^= 1
    with pytest.raises(RuntimeError, match="changed since"):
        cudnn.pygraph(handle=cudnn.create_handle()).deserialize(damaged)
    with pytest.raises(RuntimeError, match="not a serialized graph"):
        cudnn.pygraph(handle=cudnn.create_handle()).deserialize([1, 2, 3])


def test_serialized_graphs_of_earlier_versions_are_read() -> None:
    """Graphs of earlier versions have all parts of the plan except the target's name."""
    g, _ = make_causal_attention()
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    now = read_ubjson(g.serialize(as_bytes=True))
    earlier = {**json.loads(now["cudnn_backend_py"]), "plan": now["cudnn_backend_data"]}
    del earlier["target"]
    again = cudnn.pygraph(handle=cudnn.create_handle())
    again.deserialize(serialize_json_with_checksum(earlier))
    assert again.get_workspace_size() == g.get_workspace_size()
    for changed, what in (({"plan": 1}, "'plan' is of type int"), ({"sm": "90"}, "'sm' is of type str")):
        with pytest.raises(RuntimeError, match=f"the serialized graph is not a plan file: {what}"):
            again.deserialize(serialize_json_with_checksum(earlier | changed))
    with pytest.raises(RuntimeError, match="not a serialized graph of this version"):
        again.deserialize(serialize_json_with_checksum([]))


def serialize_json_with_checksum(content: Any) -> bytes:
    data = json.dumps(content).encode()
    return hashlib.sha256(data).digest() + data


def test_scratch_memory_is_part_of_the_workspace() -> None:
    """dq_accum (float32 of Q) and softmax_sum precede the plan's own workspace."""
    g = make_empty_half_graph()
    dims, strides = [1, 2, 128, 64], [16384, 8192, 64, 1]
    q, k, v, o, do = (g.tensor(name=name, dim=dims, stride=strides) for name in ("q", "k", "v", "o", "dO"))
    stats = g.tensor(name="stats", dim=[1, 2, 128, 1], stride=[256, 128, 1, 1], data_type=FLOAT)
    gradients = g.sdpa_backward(name="b", q=q, k=k, v=v, o=o, dO=do, stats=stats, attn_scale=0.125)
    for item in gradients:
        item.set_output(True).set_dim(dims).set_stride(strides)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    scratch = 128 * 64 * 2 * 4 + 128 * 2 * 4
    assert g._memory is not None
    assert g._memory.scratch_bytes == scratch
    assert g.get_workspace_size() == scratch + g._plans.get_built_plan(0).workspace_bytes
    assert len(g._get_variant_pack_uids_sorted()) == 9


def test_variant_packs_are_checked_before_cudnn_is_called() -> None:
    g, outputs = make_causal_attention()
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    uids = g._get_variant_pack_uids_sorted()
    full: dict[Any, Any] = {uid: 4096 * uid for uid in uids}
    runner = g._current
    assert runner is not None
    short = dict.fromkeys(uids[1:], 4096)
    with pytest.raises(ValueError, match="missing a buffer for tensor uid") as caught:
        runner._check_pack(short, runner.resolve_addresses(short, 1 << 20))
    assert f"uid {uids[0]}" in str(caught.value)
    with pytest.raises(ValueError, match="no DLPack"):
        runner.resolve_addresses(full | {uids[0]: "text"}, 1 << 20)
    assert runner.resolve_addresses(full | {None: 1, 99999: 7}, 1 << 20) == runner.resolve_addresses(full, 1 << 20)
    with pytest.raises(TypeError, match="create_handle"):
        g.execute(full, 1 << 20, handle=77)
    with pytest.raises(RuntimeError, match="described target"):
        g.execute(full | {None: 1, 99999: 7}, 1 << 20)
    assert outputs[0].get_uid() in uids


def make_null_handle(device: int = 0) -> Handle:
    """Return a handle with a null pointer: cuDNN itself refuses it, with a status."""
    handle = object.__new__(Handle)
    handle._library, handle._pid, handle.device = library(), os.getpid(), device
    handle._owner = _NativeOwner(HandlePointer(), library().get_destructor_type("cudnnDestroy"))
    handle._owner.device = device
    return handle


def build_graph_and_variant_pack() -> tuple[cudnn.pygraph, dict[Any, Any]]:
    """Return a built graph and a variant pack of addresses that are never read."""
    g, _ = make_causal_attention()
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    return g, {uid: 4096 * uid for uid in g._get_variant_pack_uids_sorted()}


def test_refused_launch_is_a_runtime_error_with_cudnns_message() -> None:
    g, full = build_graph_and_variant_pack()
    for _ in range(2):  # with a new variant pack, and with the kept one
        with pytest.raises(RuntimeError, match="the launch: cudnnBackendExecute answered") as caught:
            g.execute(full, 1 << 20, handle=make_null_handle())
        error, cause = caught.value, caught.value.__cause__
        assert isinstance(error, FrontendRuntimeError)
        assert isinstance(cause, CudnnStatusError)
        assert "CUDNN_STATUS_BAD_PARAM" in error.sections["cudnn"]
        assert cause.last_error.rstrip() in error.sections["cudnn"]


def test_compiled_execute_raises_the_errors_of_python_execute() -> None:
    """The compiled call is normally enabled by a launch on a GPU; here the test enables it."""
    g, full = build_graph_and_variant_pack()
    runner, handle = g._current, make_null_handle()
    assert runner is not None
    runner._enable_fast_path(full, 1 << 20)
    assert runner._mapped is not None
    for pack in (
        full,
        {**full, min(full): 64},
        {item: full[item.uid] for item in g._list_used_tensors() if item.uid in full},
    ):
        with pytest.raises(RuntimeError, match="the launch: cudnnBackendExecute answered") as caught:
            g.execute(pack, 1 << 20, handle)
        assert isinstance(caught.value, FrontendRuntimeError)
        assert "CUDNN_STATUS_BAD_PARAM" in caught.value.sections["cudnn"]
    assert not runner.launcher._packs  # none was stored: Python was not called
    with pytest.raises(ValueError, match="missing a buffer for tensor uid"):
        g.execute(dict(list(full.items())[1:]), 1 << 20, handle)
    with pytest.raises(ValueError, match="no DLPack"):
        g.execute(full | {min(full): "text"}, 1 << 20, handle)
    with pytest.raises(RuntimeError, match="the launch"):  # parts that the graph does not have are ignored
        g.execute(full | {None: 1, 99999: 7}, 1 << 20, handle)
    assert len(runner.launcher._packs) == 1
    handle.close()
    with pytest.raises(RuntimeError, match="the handle: this handle is closed"):
        g.execute(full, 1 << 20, handle)


LAUNCH_BEFORE_FORK_PROGRAM = """
import os
from cudnn_backend_py.frontend.handles import set_default_target
from tests.library.frontend.test_lifecycle import make_null_handle, build_graph_and_variant_pack
set_default_target("h100")
(g, full), handle = build_graph_and_variant_pack(), make_null_handle()
def launch():
    try:
        g.execute(full, 1 << 20, handle)
    except RuntimeError as error:
        print(error.code, flush=True)
launch()
child = os.fork()
if not child:
    launch()
    os._exit(0)
os.waitpid(child, 0)
launch()
"""


def test_a_handle_that_launched_before_a_fork_is_refused_in_the_child() -> None:
    assert run_code(LAUNCH_BEFORE_FORK_PROGRAM).stdout.split() == ["cudnn-status", "handle-after-fork", "cudnn-status"]


def test_a_missing_workspace_is_reported() -> None:
    g, full = build_graph_and_variant_pack()
    runner = g._current
    assert runner is not None
    runner._has_workspace = True
    with pytest.raises(ValueError, match=f"requires a {runner.workspace_bytes}-byte workspace but received null"):
        g.execute(full, None, make_null_handle())


def test_the_workspace_for_other_dims_is_queried_from_cudnn() -> None:
    g, full = build_graph_and_variant_pack()
    runner, uid = g._current, min(full)
    assert runner is not None
    with pytest.raises(RuntimeError, match="the workspace for other dims and strides: cudnn") as caught:
        runner.query_workspace_with_overrides(make_null_handle(), ([uid], [[1, 2, 128, 64]], [[16384, 8192, 64, 1]]))
    assert "CUDNN_STATUS_" in caught.value.sections["cudnn"]
    with pytest.raises(RuntimeError, match="1 uids, 2 dims and 1 strides"):
        runner.query_workspace_with_overrides(make_null_handle(), ([uid], [[1], [2]], [[1]]))


def test_shape_overrides_of_different_counts_raise_a_runtime_error() -> None:
    g, full = build_graph_and_variant_pack()
    with pytest.raises(RuntimeError, match="2 override_shapes and 1 override_strides"):
        g.execute(full, 1 << 20, make_null_handle(), [min(full)], [[1], [2]], [[1]])


def test_a_refused_launch_with_shape_overrides_raises_a_runtime_error() -> None:
    g, full = build_graph_and_variant_pack()
    uid = min(full)
    with pytest.raises(RuntimeError, match="the launch with other dims and strides: cudnnBackend") as caught:
        g.execute(full, 1 << 20, make_null_handle(), [uid], [[1, 2, 128, 64]], [[16384, 8192, 64, 1]])
    assert isinstance(caught.value, FrontendRuntimeError)
    assert "CUDNN_STATUS_" in caught.value.sections["cudnn"]
    with pytest.raises(RuntimeError, match="2 override_shapes and 1 override_strides"):
        g.execute(full, 1 << 20, make_null_handle(), [uid], [[1], [2]], [[1]])


def test_wrong_handles_are_refused_also_with_a_cached_variant_pack() -> None:
    g, full = build_graph_and_variant_pack()
    runner = g._current
    assert runner is not None
    runner.plan.descriptor.owner.device = 0
    mine = make_null_handle()
    with pytest.raises(RuntimeError, match="the launch"):
        g.execute(full, 1 << 20, mine)
    with pytest.raises(RuntimeError, match="the handle: this plan is bound to GPU 0, the handle to GPU 1"):
        g.execute(full, 1 << 20, make_null_handle(1))
    with pytest.raises(RuntimeError, match="the handle: this plan is bound to GPU 0, the handle to GPU 1"):
        runner.populate_cuda_graph(full, 1 << 20, make_null_handle(1), 0)
    mine.close()
    with pytest.raises(RuntimeError, match="this handle is closed"):
        g.execute(full, 1 << 20, mine)


def test_graph_is_built_for_a_given_device_description() -> None:
    text = json.dumps(find_profile("a100").properties)
    properties = cudnn.create_device_properties(text)
    assert properties.serialize() == text
    g, _ = make_matmul(device_property=properties)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert g.target.sm == 80
    with pytest.raises(RuntimeError, match="not JSON"):
        cudnn.create_device_properties("{")
    for value in ("[]", "5", "null", '"x"'):
        with pytest.raises(RuntimeError, match="a JSON object is needed"):
            cudnn.create_device_properties(value)


def test_a_graph_of_a_device_description_cannot_be_autotuned() -> None:
    """A graph for a described GPU has no handle: autotune raises the same error as execute."""
    set_default_target(None)
    g, _ = make_matmul(device_property=cudnn.create_device_properties(json.dumps(find_profile("a100").properties)))
    with pytest.raises(RuntimeError, match="no plan is built"):
        g.autotune({}, 0)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    messages = []
    for call in (g.autotune, g.execute):
        with pytest.raises(FrontendRuntimeError, match="described target") as caught:
            call({1: 1024, 2: 2048, 3: 4096}, 0)
        assert caught.value.code == "plan-without-device"
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    with pytest.raises(TypeError, match="create_handle"):
        g.autotune({}, 0, handle=77)


def test_deserializing_a_plan_drops_the_earlier_plans() -> None:
    g, _ = make_matmul()
    g.build()
    data = g.serialize(as_bytes=True)
    g.create_execution_plans([cudnn.heur_mode.FALLBACK])
    g.build_plans(cudnn.build_plan_policy.ALL)
    assert len(g.plans) > 1
    g._get_runner(1)
    g.deserialize(data)
    with pytest.raises(RuntimeError, match="Plan index 1 is invalid"):
        g.execute_plan_at_index({}, 0, 1)


def test_deselected_plans_are_not_autotuned() -> None:
    g, _ = make_matmul()
    g.create_execution_plans()
    g.build_plans(cudnn.build_plan_policy.ALL)
    names = [g.get_plan_name_at_index(index) for index in g._list_runnable_plans()]
    assert len(names) > 1
    g.deselect_engines(names[:1])
    assert names[0] not in [g.get_plan_name_at_index(index) for index in g._list_runnable_plans()]
    g.deselect_engines(names)
    with pytest.raises(RuntimeError, match="no plan is built"):
        g.autotune({}, 0)


def test_autotune_and_cuda_graphs_accept_a_list_of_buffers() -> None:
    g, full = build_graph_and_variant_pack()
    for run in (
        lambda pack: g.autotune(pack, 0),
        lambda pack: g.populate_cuda_graph(None, pack, 0, 0),
        lambda pack: g.update_cuda_graph(None, pack, 0, 0),
    ):
        with pytest.raises(ValueError, match="1 buffers were given for the uids"):
            run([4096])
        with pytest.raises(RuntimeError, match="plan-without-device"):
            run(list(full.values()))


def test_a_graph_with_a_handle_of_a_described_gpu_is_not_autotuned() -> None:
    g, _ = make_matmul(handle=cudnn.create_handle())
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    with pytest.raises(FrontendRuntimeError, match="described target") as caught:
        g.autotune({}, 0)
    assert caught.value.code == "plan-without-device"


def test_kernel_cache_serves_other_shapes_and_is_saved() -> None:
    cache = cudnn.create_kernel_cache()
    with pytest.raises(RuntimeError, match="no graph was built"):
        cache.serialize()
    make_matmul(64, kernel_cache=cache)[0].build([cudnn.heur_mode.FALLBACK])
    text = cache.serialize()
    again = cudnn.create_kernel_cache()
    for given in (None, b"{}", 5):
        with pytest.raises(TypeError, match="the serialized kernel cache is"):
            again.deserialize(given)  # type: ignore[arg-type]
    again.deserialize(text)
    with pytest.raises(RuntimeError, match="already in use"):
        again.deserialize(text)
    g, _ = make_matmul(128, kernel_cache=again)
    assert g.context.is_dynamic_shape_enabled
    g.build([cudnn.heur_mode.FALLBACK])
    kernels = [len(json.loads(item.serialize())["kernel_cache"]) for item in (cache, again)]
    assert kernels == [1, 1]


def test_override_shapes_reach_the_operation_graph() -> None:
    g, _ = make_matmul(is_override_shape_enabled=True)
    g.validate()
    g.build_operation_graph()


def test_override_shape_rows_are_laid_out_as_cpp_vectors() -> None:
    rows = make_std_vectors_of_int64([[1, 2, 3], [], [4]])
    words = (ctypes.c_void_p * 3).from_address(ctypes.addressof(rows))
    assert words[1] == words[2] == words[0] + 3 * 24
    inner = (ctypes.c_void_p * 9).from_address(words[0])
    assert [(inner[3 * i + 1] - inner[3 * i]) // 8 for i in range(3) if inner[3 * i] is not None] == [3, 0, 1]
    assert list((ctypes.c_int64 * 3).from_address(inner[0])) == [1, 2, 3]


def test_an_unwritable_frontend_log_file_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_INFO", "1")
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_FILE", str(tmp_path / "none" / "log"))
    g, _ = make_matmul()
    with pytest.warns(
        UserWarning, match="CUDNN_FRONTEND_LOG_FILE is .*, which cannot be written .*: name another file"
    ):
        g.build_operation_graph()


def test_graph_is_logged_as_json_if_the_environment_requests_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_INFO", "1")
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_FILE", str(log))
    g, _ = make_causal_attention()
    g.validate()
    g.build_operation_graph()
    content = json.loads(log.read_text())
    assert content["nodes"][0]["tag"] == "SDPA"
    assert content["context"]["io_data_type"] == "HALF"


def test_graph_key_depends_only_on_graph_content() -> None:
    assert make_matmul()[0].key() == make_matmul()[0].key() != make_matmul(128)[0].key()


def test_cute_dsl_kernels_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="CuTe DSL"):
        _ = cudnn.GemmSwigluSm100
    g, _ = make_matmul()
    g.validate()
    g.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="not part of cuDNN's backend"):
        g.create_execution_plans([cudnn.heur_mode.OPENSOURCE])
    g.create_execution_plans([cudnn.heur_mode.OPENSOURCE, cudnn.heur_mode.A])
    assert g.get_execution_plan_count()


def test_a_missing_gpu_is_reported_with_a_fix() -> None:
    set_default_target(None)
    with pytest.raises(RuntimeError, match="no GPU") as caught:
        cudnn.create_handle()
    assert "--target h100" in caught.value.sections["fix"]


FORK_PROGRAM = """
import os, select, signal, threading
from cudnn_backend_py.frontend import handles
from tests.library.frontend.test_lifecycle import make_null_handle
device = 0
held, let_go = threading.Event(), threading.Event()

def made(lib):
    if device == 1:
        held.set()
        let_go.wait()
    return make_null_handle(device)

handles._require_gpu, handles.current_device, handles._new_handle = lambda lib: None, lambda: device, made
parents = handles.get_shared_handle()
assert handles.get_shared_handle() is parents
device = 1
other = threading.Thread(target=handles.get_shared_handle)
other.start()
held.wait()
device = 0
reads, writes = os.pipe()
child = os.fork()
if not child:
    mine = handles.get_shared_handle()
    mine.owner  # raises for a handle of another process
    assert handles.get_shared_handle() is mine is not parents
    os.write(writes, b"done")
    os._exit(0)
os.close(writes)
if not select.select([reads], [], [], 20)[0]:
    os.kill(child, signal.SIGKILL)
print(os.read(reads, 4).decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
let_go.set()
other.join()
assert handles.get_shared_handle() is parents
"""


def test_a_forked_child_makes_its_own_handle_while_the_parent_makes_one() -> None:
    """In the child, the lock of shared handles stays held by a thread that only the parent has."""
    assert run_code(FORK_PROGRAM).stdout == "done 0\n"


@pytest.mark.parametrize(
    ("option", "code", "window"),
    [
        ("is_dynamic_shape_enabled", "kernel-cache-of-attention", ((9, 18, 0), (9, 21, 0))),
        ("is_override_shape_enabled", "override-shapes-of-attention", ((9, 21, 0), (9, 99, 0))),
    ],
)
def test_a_known_issue_of_attention_plans_for_several_shapes_is_reported(
    option: str, code: str, window: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_warned", set())
    plain, _ = make_causal_attention()
    plain.validate()
    assert list_issue_warning_categories(plain.build_operation_graph, code) == []
    shared, _ = make_causal_attention(**{option: True})
    shared.validate()
    seen = list_issue_warning_categories(shared.build_operation_graph, code)
    assert seen == [cudnn.FrontendKnownIssueWarning] * (window[0] <= library().version < window[1])


@pytest.mark.skipif(library().version < (9, 21, 0), reason="did not run: it needs cuDNN 9.21")
def test_override_shapes_with_a_known_issue_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_warned", set())
    g, _ = make_causal_attention(is_override_shape_enabled=True)
    with pytest.warns(cudnn.FrontendKnownIssueWarning):
        g.build()
    full = {uid: 4096 * uid for uid in g._get_variant_pack_uids_sorted()}
    built = next(item for item in g.graph().variant_pack_tensors if item.uid == min(full))
    same = [built.uid], [list(built.dims)], [list(built.strides)]
    with pytest.raises(RuntimeError, match="the launch with other dims and strides"):
        g.execute(full, 1 << 20, make_null_handle(), *same)
    other = [1, *built.dims[1:2], 64, *built.dims[3:]]
    for run in (g.execute, lambda *given: g.execute_plan_at_index(*given[:2], 0, *given[2:])):
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="override-shapes-of-attention") as caught:
            run(full, 1 << 20, make_null_handle(), same[0], [other], same[2])
        assert str(other) in caught.value.sections["where"]
    again = cudnn.pygraph(is_override_shape_enabled=True)
    again.deserialize(g.serialize(as_bytes=True))
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="override-shapes-of-attention"):
        again.execute(full, 1 << 20, make_null_handle(), same[0], [other], same[2])


def test_a_kernel_cache_of_attention_serves_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_warned", set())
    cache = cudnn.create_kernel_cache()
    (issue,) = find_known_issues(make_causal_attention()[0].graph(), 90, (9, 19, 0), "kernel cache")
    cache.check_dims([(2, 4, 64, 64)], issue)
    cache.check_dims([(2, 4, 64, 64)], issue)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="kernel-cache-of-attention"):
        cache.check_dims([(3, 4, 64, 64)], issue)
    for run_query in (cache.size, cache.revision, cache.serialize):
        with pytest.raises(RuntimeError, match="no graph was built"):
            run_query()


def build_matmul_with_cache(cache: Any, rows: int = 32) -> Any:
    g = cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT, kernel_cache=cache)
    a, b = g.tensor([1, rows, 32], [rows * 32, 32, 1]), g.tensor([1, 32, 32], [1024, 32, 1])
    g.matmul(a, b).set_output(True)
    g.build_operation_graph()
    return g


@pytest.mark.skipif(library().version < (9, 27, 0), reason="did not run: it needs cuDNN 9.27")
def test_a_kernel_cache_has_cudnns_counts_and_keeps_its_kernels() -> None:
    cache = cudnn.create_kernel_cache()
    g = build_matmul_with_cache(cache)
    assert (cache.size(), cache.revision()) == (0, 0)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert (cache.size(), cache.revision()) == (1, 1)
    loaded = cudnn.create_kernel_cache()
    loaded.deserialize(cache.serialize())
    for run_query in (loaded.size, loaded.revision, loaded.serialize):
        with pytest.raises(RuntimeError, match="no graph was built"):
            run_query()
    with pytest.raises(RuntimeError, match="already in use"):
        loaded.deserialize(cache.serialize())
    g = build_matmul_with_cache(loaded)
    assert (loaded.size(), loaded.revision()) == (1, 1)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert (loaded.size(), loaded.revision()) == (1, 1)  # the kernel was found, none was compiled


@pytest.mark.skipif(library().version >= (9, 27, 0), reason="did not run: it needs a cuDNN before 9.27")
def test_the_counts_of_a_kernel_cache_need_cudnn_927() -> None:
    cache = cudnn.create_kernel_cache()
    build_matmul_with_cache(cache)
    with pytest.raises(RuntimeError, match=r"needs cuDNN 9\.27"):
        cache.size()
