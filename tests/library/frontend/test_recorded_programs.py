"""Nodes, ports and names of every operation equal those of cudnn-frontend 1.32 for the same programs."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import DataType, DescriptorType
from cudnn_backend_py.cli.graph_file import load_graph_file
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.known_issues import KnownIssue, find
from cudnn_backend_py.system.version import VersionRange
from tests.compat.programs import ATTENTION_DIMS, PROGRAMS, GraphMaker, read_node_fields, run_program
from tests.compat.surface import read_stored_public_api

FRONTEND_RESULTS: dict[str, Any] = read_stored_public_api()["answers"]


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_and_ports_have_the_names_of_cudnn_frontend(name: str) -> None:
    theirs = json.loads(json.dumps(FRONTEND_RESULTS[name]))
    assert json.loads(json.dumps(run_program(GraphMaker(cudnn), PROGRAMS[name]))) == theirs


def test_every_program_has_a_recorded_result_of_cudnn_frontend() -> None:
    assert set(FRONTEND_RESULTS) == set(PROGRAMS)


def test_a_tensor_has_only_a_weak_reference_to_its_graph() -> None:
    m = GraphMaker(cudnn)
    x, w = m.add_tensor(2, 8, 16, name="x"), m.add_tensor(2, 16, 4, name="w")
    y = m.graph.matmul(x, w)
    scalar = m.graph.tensor_scalar(1.5)
    assert [item.owner() for item in (x, w, y, scalar) if item.owner is not None] == [m.graph] * 4
    del m
    gc.collect()
    assert y.owner is not None
    assert y.owner() is None


def test_build_ignores_arguments_of_frontend_kernels() -> None:
    m = GraphMaker(cudnn)
    m.graph.matmul(m.add_tensor(2, 8, 16), m.add_tensor(2, 16, 8)).set_output(True)
    m.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK], ctx=object())
    assert m.graph.get_execution_plan_count() > 0


def test_an_unset_type_is_shown_as_none() -> None:
    shown = cudnn.pygraph()
    shown.tensor(dim=[2, 2], name="x")
    described = shown.inspect()
    assert described["context"] == {"io_data_type": "None", "compute_data_type": "None"}
    assert described["tensors"]["x"]["dtype"] == "None"


SETTER_CALLS: dict[str, Callable[[Any], Any]] = {
    "set_dim": lambda item: item.set_dim([1, 8, 16]),
    "set_stride": lambda item: item.set_stride([64, 1, 8]),
    "set_name": lambda item: item.set_name("other"),
    "set_uid": lambda item: item.set_uid(77),
    "set_data_type": lambda item: item.set_data_type(cudnn.data_type.FLOAT),
    "set_output": lambda item: item.set_output(False),
    "set_is_virtual": lambda item: item.set_is_virtual(True),
    "set_is_pass_by_value": lambda item: item.set_is_pass_by_value(True),
    "set_ragged_offset": lambda item: item.set_ragged_offset(cudnn.tensor()),
    "set_ragged_offset_multiplier": lambda item: item.set_ragged_offset_multiplier(2),
    "set_alignment_value": lambda item: item.set_alignment_value(2),
    "set_reordering_type": lambda item: item.set_reordering_type(cudnn.tensor_reordering.F8_128x4),
    "set_alignment": lambda item: item.set_alignment(8),
    "set_vector_count_and_dimension": lambda item: item.set_vector_count_and_dimension(4, 1),
}


def test_every_tensor_setter_is_tested() -> None:
    assert set(SETTER_CALLS) == {name for name in dir(cudnn.tensor) if name.startswith("set_")}


def make_matmul_graph() -> tuple[Any, Any]:
    m = GraphMaker(cudnn)
    c = m.graph.matmul(m.add_tensor(1, 8, 8, name="a"), m.add_tensor(1, 8, 8, name="b"), name="mm")
    return m.graph, c.set_output(True)


def test_changing_a_tensor_of_a_finalized_graph_raises_an_error() -> None:
    g, c = make_matmul_graph()
    g.build_operation_graph()
    before = g.inspect()
    for name, change in SETTER_CALLS.items():
        with pytest.raises(RuntimeError, match=f"{name} of tensor 'mm::C' changes a graph that is already finalized"):
            change(c)
    assert g.inspect() == before
    c.set_output(True).set_dim([1, 8, 8]).set_stride([64, 8, 1]).set_name("mm::C").set_uid(c.get_uid())  # no change
    g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])


def test_operations_added_after_an_inspection_are_in_the_graph() -> None:
    g, c = make_matmul_graph()
    g.validate()
    assert len(g.graph().ops) == 1
    g.relu(c, name="r").set_output(True)
    c.set_data_type(cudnn.data_type.FLOAT)
    g.build_operation_graph()
    kinds = {item.name: item.data_type.name for item in g.graph().variant_pack_tensors}
    assert kinds == {"a": "HALF", "b": "HALF", "mm::C": "FLOAT", "r::OUT_0": "HALF"}


def test_dims_of_results_are_known_before_validation() -> None:
    """As in 1.32: inferred values are readable, and do not count as set by the program."""
    m = GraphMaker(cudnn)
    q, k, v = (m.add_tensor(2, 4, 64, 32, name=name) for name in "qkv")
    o, stats = m.graph.sdpa(q, k, v, generate_stats=True, attn_scale=0.5)
    y = m.graph.relu(m.graph.matmul(m.add_tensor(2, 8, 16, name="a"), m.add_tensor(2, 16, 4, name="b"), name="mm"))
    assert (o.get_dim(), stats.get_dim()) == ([2, 4, 64, 32], [2, 4, 64, 1])
    assert (y.get_dim(), y.get_stride()) == ([2, 8, 4], [32, 4, 1])
    assert m.graph.inspect()["tensors"]["mm::C"]["dim"] == [2, 8, 4]
    assert (o.dim, o.stride, o.data_type) == ([2, 4, 64, 32], [8192, 2048, 32, 1], cudnn.data_type.NOT_SET)
    assert not o.dim_assigned
    assert m.graph.reshape(q).get_dim() == []
    assert m.graph.relu(m.add_tensor(2, 8)).get_dim() == [2, 8]
    loose = m.graph.relu(m.graph.tensor(name="x", dim=[], stride=[]))
    assert (loose.get_dim(), loose.get_stride()) == ([], [])
    assert y.get_dim() == [2, 8, 4]
    assert cudnn.tensor().get_dim() == []


def test_results_of_backward_attention_are_row_major_by_default() -> None:
    """As in cudnn-frontend: a program can allocate the gradients by their dims and strides with either package."""
    m = GraphMaker(cudnn)
    rows = [4 * 64 * 64, 64 * 64, 64, 1]
    q, k, v, o, do = (m.add_tensor(*ATTENTION_DIMS).set_stride([4 * 64 * 64, 64, 4 * 64, 1]) for _ in range(5))
    made = m.graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=do, stats=m.add_float_tensor(2, 4, 64, 1))
    for item in made:
        item.set_output(True)
    assert [item.get_stride() for item in made] == [rows] * 3
    m.graph.validate()
    assert [item.get_stride() for item in made] == [rows] * 3


def test_a_graph_without_types_computes_in_float32() -> None:
    g = cudnn.pygraph()
    half = cudnn.data_type.HALF
    x = g.tensor([1, 64, 64], [4096, 64, 1], half)
    y = g.relu(g.matmul(x, g.tensor([1, 64, 64], [4096, 64, 1], half)))
    y.set_output(True).set_data_type(half)
    assert g.inspect()["context"] == {"io_data_type": "None", "compute_data_type": "None"}
    assert g.inspect()["tensors"]["matmul.0::C"]["dtype"] == "None"
    g.build()
    mm, relu = g.graph().ops
    assert [mm.compute_type, relu.compute_type, mm.c.data_type] == [DataType.FLOAT] * 3


def test_a_ragged_offset_multiplier_without_offsets_has_no_effect() -> None:
    m = GraphMaker(cudnn)
    q = m.add_tensor(*ATTENTION_DIMS, ragged_offset_multiplier=64)
    made = m.graph.sdpa(q=q, k=m.add_tensor(*ATTENTION_DIMS), v=m.add_tensor(*ATTENTION_DIMS), generate_stats=False)[
        0
    ].set_output(True)
    m.graph.build_operation_graph()
    assert {item.ragged_offset_multiplier for item in m.graph.graph().tensors} == {1}
    assert made.get_dim() == list(ATTENTION_DIMS)


def test_a_slice_has_the_type_of_its_input_at_once() -> None:
    m = GraphMaker(cudnn)
    part = m.graph.slice(m.add_tensor(2, 8, 16, kind="FLOAT"), [slice(0, 1), slice(2, 6), slice(0, 16)])
    assert part.get_data_type() is cudnn.data_type.FLOAT


def test_a_tensor_that_is_renamed_is_listed_last() -> None:
    m = GraphMaker(cudnn)
    y, mean, _ = m.graph.layernorm(
        norm_forward_phase=cudnn.norm_forward_phase.TRAINING,
        input=m.add_tensor(8, 32, 4, 4),
        scale=m.add_float_tensor(1, 32, 4, 4),
        bias=m.add_float_tensor(1, 32, 4, 4),
        epsilon=m.add_scalar(),
    )
    for item in (y, mean):
        item.set_output(True)
    y.set_name("y")
    assert [item.name for item in m.graph.get_outputs()] == ["layernorm.0::MEAN", "y"]
    assert list(m.graph.tensors)[-1] == "y"


def test_a_uid_belongs_to_one_tensor() -> None:
    """A uid set by a program stays; another tensor that has it by default gets a new uid at once."""
    g = GraphMaker(cudnn).graph
    place = {"dim": [2, 2], "stride": [2, 1]}
    given, first, second = g.tensor(uid=2, name="given", **place), g.tensor(**place), g.tensor(**place)
    assert (given.uid, first.uid, second.uid) == (2, 1, 3)
    taker = g.tensor(uid=3, name="taker", **place)
    assert (taker.uid, taker.uid_assigned) == (3, True)
    assert second.uid not in (1, 2, 3)
    assert not second.uid_assigned
    for take in (lambda: g.tensor(uid=2, **place), lambda: first.set_uid(3)):
        with pytest.raises(ValueError, match="is already user-assigned to tensor"):
            take()
    assert g.find_tensor(3) is taker
    g.relu(given).set_output(True)
    g.validate()
    assert [item.uid for item in g.graph().variant_pack_tensors].count(2) == 1  # the refused one left no trace


@pytest.mark.parametrize(
    "take",
    [
        lambda m, result: result.set_uid(1),
        lambda m, result: m.add_tensor(2, 8, 16).set_uid(1),
        lambda m, result: m.add_tensor(2, 8, 16, uid=1),
    ],
)
def test_tensor_uids_of_a_built_graph_cannot_change(take: Callable[[GraphMaker, Any], Any]) -> None:
    """A refused change of a uid must leave the uids of all tensors as they were."""
    m = GraphMaker(cudnn)
    x = m.add_tensor(2, 8, 16, name="x")
    result = m.graph.relu(x).set_output(True)
    m.graph.build_operation_graph()
    with pytest.raises(RuntimeError, match="already finalized"):
        take(m, result)
    assert (x.get_uid(), result.get_uid()) == (1, 2)
    assert m.graph.find_tensor(1) is x


def test_cyclic_ragged_offsets_are_refused() -> None:
    m = GraphMaker(cudnn)
    first, second = m.add_tensor(2, 8, 16, name="first"), m.add_tensor(3, kind="INT32", name="second")
    with pytest.raises(RuntimeError, match="ragged_offset of tensor 'first' is 'first', which refers back"):
        first.set_ragged_offset(first)
    first.set_ragged_offset(second)
    with pytest.raises(RuntimeError, match="ragged_offset of tensor 'second' is 'first', which refers back"):
        second.set_ragged_offset(first)


def test_tensor_like_gives_a_dense_tensor_in_memory_by_default() -> None:
    """As in cudnn-frontend 1.32, tensor_like copies dims, strides, type and the by-value flag."""
    m = GraphMaker(cudnn)
    x = m.add_tensor(2, 8, 16, ragged_offset=m.add_tensor(3, kind="INT32"), ragged_offset_multiplier=4)
    inner = m.graph.relu(x)
    like, like_inner = m.graph.tensor_like(x), m.graph.tensor_like(inner)
    assert (like.get_dim(), like.get_stride(), like.get_ragged_offset()) == (x.get_dim(), x.get_stride(), None)
    assert like.get_ragged_offset_multiplier() == 1
    assert (inner.get_is_virtual(), like_inner.get_is_virtual()) == (True, False)
    assert m.graph.tensor_like(inner, is_virtual=True).get_is_virtual()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stride": [1]}, "dims not set"),
        ({"dim": [1]}, "strides not set"),
        ({"dim": [1, 2], "stride": [1]}, "mismatch"),
        ({"dim": [1], "stride": [1], "is_virtual": True, "is_pass_by_value": True}, "can't be both virtual and"),
    ],
)
def test_invalid_tensors_are_reported_with_cudnn_frontends_messages(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cudnn.tensor(name="t", **fields).validate()


def test_nodes_tensors_inputs_and_outputs_of_a_graph_can_be_read() -> None:
    m = GraphMaker(cudnn)
    x, w = m.add_tensor(2, 8, 16, name="x"), m.add_tensor(2, 16, 4, name="w")
    y = m.graph.relu(m.graph.matmul(x, w, name="mm"), name="act").set_output(True)
    assert [node.name for node in m.graph.nodes] == ["mm", "act"]
    assert [node.node_type for node in m.graph.nodes] == [cudnn.NodeType.MATMUL, cudnn.NodeType.POINTWISE]
    assert m.graph.get_inputs() == [x, w]
    assert m.graph.get_outputs() == [y]
    assert m.graph.find_tensor("mm::C") is m.graph.find_tensor(3) is m.graph.nodes[0].outputs["C"]
    assert m.graph.find_tensor("none") is m.graph.get_node("none") is None
    assert m.graph.get_node("act") is m.graph.nodes[1]
    m.add_tensor(1, 1, 1, name="x")
    with pytest.raises(ValueError, match="ambiguous"):
        m.graph.find_tensor("x")


def test_uids_exist_from_the_start_and_a_program_may_set_them() -> None:
    m = GraphMaker(cudnn)
    first, second = m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16)
    assert (first.get_uid(), second.get_uid()) == (1, 2)
    second.set_uid(1)
    out = m.graph.add(first, second).set_output(True)
    m.graph.validate()
    assert second.get_uid() == 1
    assert len({item.get_uid() for item in (first, second, out)}) == 3
    m.graph.build_operation_graph()
    assert {item.uid for item in m.graph.graph().variant_pack_tensors} == {first.uid, second.uid, out.uid}


def test_handles_of_other_modules_are_refused() -> None:
    for use in (cudnn.get_stream, cudnn.destroy_handle, lambda handle: cudnn.set_stream(handle, 0)):
        with pytest.raises(TypeError, match="create_handle"):
            use(1)
    device = cudnn.create_device_properties(json.dumps(cudnn.create_handle().device._known_properties))
    with pytest.raises(TypeError, match="create_handle"):
        cudnn.pygraph(device_property=device, handle=1)
    handle = cudnn.Handle(7, 0, 3)  # for a described GPU, which runs nothing
    assert isinstance(handle, cudnn.Handle)
    assert (handle.backend_handle, cudnn.get_stream(handle), handle.device.sm_version) == (7, 3, 90)
    cudnn.destroy_handle(handle)
    assert handle.backend_handle is None
    set_default_target(None)
    with pytest.raises(NotImplementedError, match="another cuDNN"):
        cudnn.Handle(7)


def test_elementwise_operations_accept_the_name_before_the_compute_type() -> None:
    m = GraphMaker(cudnn)
    x, half = m.add_tensor(2, 8, 16), cudnn.data_type.HALF
    made = [
        m.graph.relu(x, 0.1, None, None, "one", half),
        m.graph.relu(x, 0.1, None, None, half, "two"),
        m.graph.swish(x, 0.5, "three"),
        m.graph.gen_index(x, 1, name="four"),
    ]
    assert [item.name for item in made] == [f"{name}::OUT_0" for name in ("one", "two", "three", "four")]
    assert [node.compute_data_type for node in m.graph.nodes] == [half, half, *[cudnn.data_type.FLOAT] * 2]
    with pytest.raises(TypeError, match="compute_data_type is 'five'"):
        m.graph.relu(x, compute_data_type="five")


@pytest.mark.parametrize("method", ["layernorm", "rmsnorm"])
def test_layernorm_and_rmsnorm_need_neither_scale_nor_bias(method: str) -> None:
    phase = cudnn.norm_forward_phase
    for given in ((), ("scale",)):
        m = GraphMaker(cudnn)
        more = {name: m.add_float_tensor(1, 1024, 1, 1) for name in given}
        y, *kept = getattr(m.graph, method)(
            norm_forward_phase=phase.TRAINING, input=m.add_tensor(64, 1024, 1, 1), epsilon=m.add_scalar(), **more
        )
        for item in (y, *kept):
            item.set_output(True)
        m.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        assert [item.get_dim() for item in kept] == [[64, 1, 1, 1]] * len(kept)
    m = GraphMaker(cudnn)
    mean = {"mean": m.add_float_tensor(64, 1, 1, 1)} if method == "layernorm" else {"has_dbias": False}
    grad, x, inverse = m.add_tensor(64, 1024, 1, 1), m.add_tensor(64, 1024, 1, 1), m.add_float_tensor(64, 1, 1, 1)
    dx, *none = getattr(m.graph, f"{method}_backward")(grad=grad, input=x, inv_variance=inverse, **mean)
    assert none == [None, None]
    dx.set_output(True)
    m.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    for options, words in (
        ({"bias": m.add_float_tensor(1, 1024, 1, 1)}, "a bias but no scale"),
        ({}, "the normalized dims are unknown"),
    ):
        m = GraphMaker(cudnn)
        dims = (64, 1024, 1, 1) if options else (8, 32, 16, 16)
        made = getattr(m.graph, method)(
            norm_forward_phase=phase.INFERENCE, input=m.add_tensor(*dims), epsilon=m.add_scalar(), **options
        )
        made[0].set_output(True)
        with pytest.raises(RuntimeError, match=words):
            m.graph.validate()
    m = GraphMaker(cudnn)
    y, *kept = getattr(m.graph, method)(
        norm_forward_phase=phase.TRAINING, input=m.add_tensor(8, 32, 16, 16), epsilon=m.add_scalar()
    )
    kept[-1].set_dim([8, 32, 1, 1])
    m.graph.validate()
    assert [item.get_dim() for item in kept] == [[8, 32, 1, 1]] * len(kept)


def test_norms_accept_the_phase_before_or_after_the_tensors() -> None:
    shown = []
    for order in (0, 1):
        m = GraphMaker(cudnn)
        phase, tensors = (
            cudnn.norm_forward_phase.TRAINING,
            [
                m.add_tensor(8, 32, 4, 4),
                m.add_float_tensor(1, 32, 4, 4),
                m.add_float_tensor(1, 32, 4, 4),
                m.add_scalar(),
            ],
        )
        m.graph.layernorm(*([phase, *tensors] if order == 0 else [*tensors, phase]))
        shown.append(m.graph.inspect()["nodes"])
    assert shown[0] == shown[1]


def test_reduction_accepts_a_group_offset_as_second_argument() -> None:
    g = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, compute_data_type=cudnn.data_type.FLOAT)
    x, offset = g.tensor(dim=(1, 8, 32), stride=(256, 32, 1)), g.tensor(dim=(2, 1, 1), stride=(1, 1, 1))
    for arguments in ((), (None,), (offset,)):
        g.reduction(x, *arguments, cudnn.reduction_mode.ADD, name=f"sum of {len(arguments)} {arguments == (offset,)}")
    g.block_scale_quantize(x, 32, 2)
    g.block_scale_quantize(x, None, 32, 2)
    assert [set(node.inputs) - {"input"} for node in g.nodes] == [set(), set(), {"group_offset"}, set(), set()]
    assert [node.params.get("block_size") for node in g.nodes] == [None, None, None, 32, 32]
    assert {node.params["mode"] for node in g.nodes[:3]} == {cudnn.reduction_mode.ADD}
    with pytest.raises(NotImplementedError, match="group_offset of block_scale_quantize"):
        g.block_scale_quantize(x, offset, 32, 2)


@pytest.mark.parametrize("name", [5, b"x", ["y"]])
def test_the_name_of_an_operation_must_be_a_string(name: Any) -> None:
    g = cudnn.pygraph(io_data_type=cudnn.data_type.HALF)
    x = g.tensor(dim=(1, 8, 8), stride=(64, 8, 1))
    for add in (g.relu, lambda item, **given: g.matmul(item, item, **given), g.genstats):
        with pytest.raises(TypeError, match="the name of an operation is"):
            add(x, name=name)
    assert not g.nodes


def test_plans_can_be_listed_by_name_and_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    m = GraphMaker(cudnn)
    m.graph.matmul(m.add_tensor(1, 64, 64), m.add_tensor(1, 64, 64)).set_output(True)
    m.graph.validate()
    m.graph.build_operation_graph()
    with pytest.raises(RuntimeError, match="no plans"):
        m.graph.select_plan(0)
    m.graph.create_execution_plans()
    plans = m.graph.plans
    assert len(plans) == m.graph.get_execution_plan_count() > 1
    assert [(one.engine_id, one.knobs) for one in plans[:2]] == [
        m.graph.get_engine_and_knobs_at_index(at) for at in (0, 1)
    ]
    with pytest.raises(IndexError):
        m.graph.select_plan(len(plans))
    m.graph.select_plan(1).build_plans()
    assert m.graph.get_workspace_size() == m.graph.get_workspace_size_plan_at_index(1)
    assert (m.graph.selected_engine, m.graph.backend_plan_entries()) == (None, plans)
    other_dims = [1], [[1, 32, 64]], [[2048, 64, 1]]
    assert (
        m.graph.get_workspace_size(None, *other_dims) == m.graph.get_workspace_size()
    )  # cuDNN needs a device's handle
    with monkeypatch.context() as older:
        older.setattr("cudnn_backend_py.frontend.graphs.MIN_WORKSPACE_QUERY_VERSION", (99, 0, 0))
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="other dims"):
            m.graph.get_workspace_size(None, *other_dims)
    blob = m.graph.serialize(as_bytes=True)
    assert isinstance(blob, bytes)
    other = GraphMaker(cudnn).graph
    other.deserialize(pyobj=blob, enforce_precompiled=True)
    assert other.get_workspace_size() == m.graph.get_workspace_size()


CUDNN_FRONTEND_JSON = json.dumps(
    {
        "context": {"name": "text", "io_data_type": "HALF", "intermediate_data_type": "FLOAT",
                    "compute_data_type": "FLOAT"},
        "nodes": [
            {"tag": "MATMUL", "name": "mm", "compute_data_type": "FLOAT", "inputs": {"A": "a", "B": "b"},
             "outputs": {"C": "c"}},
        ],
        "tensors": {
            name: {"name": name, "dim": [1, 64, 64], "stride": [4096, 64, 1], "data_type": "HALF", "is_virtual": False,
                   "is_pass_by_value": False, "uid": uid, "uid_assigned": True}
            for uid, name in enumerate("abc", 1)
        },
    }
)  # fmt: skip


def test_a_graph_is_built_from_its_json() -> None:
    g = GraphMaker(cudnn).graph
    g.deserialize(CUDNN_FRONTEND_JSON)
    g.build_operation_graph()
    g.create_execution_plans([cudnn.heur_mode.A])
    g.check_support()
    assert g.get_execution_plan_count() > 0
    assert sorted(item.uid for item in g.graph().variant_pack_tensors) == [1, 2, 3]
    with pytest.raises(RuntimeError, match="frontend-json"):
        GraphMaker(cudnn).graph.deserialize('{"nodes": 1}')


def make_comparable_json(g: cudnn.pygraph) -> Any:
    """Return a graph's JSON without its name, and without the uid_assigned and alignment fields of tensors."""
    with suppress(Exception):  # some programs are names only
        g.validate()
    data = json.loads(repr(g))
    del data["context"]["name"]
    for item in data["tensors"]:
        del item["uid_assigned"], item["alignment"]
    data["tensors"].sort(key=lambda item: item["uid"])
    return data


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_survives_a_round_trip_through_json(name: str) -> None:
    m = GraphMaker(cudnn)
    PROGRAMS[name](m)
    want = make_comparable_json(m.graph)
    for tensors in (want["tensors"], {str(item["uid"]): item for item in want["tensors"]}):
        again = cudnn.pygraph()
        again.deserialize(json.dumps({**want, "tensors": tensors}))
        assert make_comparable_json(again) == want


def _add_per_channel_tensors(m: GraphMaker, count: int) -> list[cudnn.tensor]:
    return [m.graph.tensor([1, 8, 1, 1], data_type=cudnn.data_type.FLOAT) for _ in range(count)]


def _add_half_scalars(m: GraphMaker, count: int) -> list[cudnn.tensor]:
    return [m.graph.tensor_scalar(0.5) for _ in range(count)]


def _add_int32_tensor(m: GraphMaker, *dims: int) -> cudnn.tensor:
    return m.graph.tensor(list(dims), data_type=cudnn.data_type.INT32)


def _add_batchnorm_with_peer_stats(m: GraphMaker) -> Any:
    peers = [m.graph.tensor([2, 16, 1, 1], data_type=cudnn.data_type.FLOAT) for _ in range(2)]
    return m.graph.batchnorm(
        m.add_tensor(2, 8, 4, 4), *_add_per_channel_tensors(m, 4), *_add_half_scalars(m, 2), peer_stats=peers
    )


def _add_batchnorm_backward_with_peer_stats(m: GraphMaker) -> Any:
    peers = [m.graph.tensor([2, 16, 1, 1], data_type=cudnn.data_type.FLOAT) for _ in range(2)]
    return m.graph.batchnorm_backward(
        m.add_tensor(2, 8, 4, 4), m.add_tensor(2, 8, 4, 4), *_add_per_channel_tensors(m, 3), peer_stats=peers
    )


def _add_relu_of_a_slice(m: GraphMaker) -> Any:
    return m.graph.relu(m.graph.slice(m.add_tensor(2, 8, 16), [slice(1), slice(2, None, 2), slice(None)]))


def _add_paged_cache_load(m: GraphMaker) -> Any:
    loaded = m.graph.paged_cache_load(
        m.add_tensor(8, 2, 16, 64), _add_int32_tensor(m, 2, 1, 1, 1), _add_int32_tensor(m, 2, 1, 4, 1)
    )
    return loaded.set_dim([2, 2, 64, 64]).set_stride([8192, 4096, 64, 1])


#: Graphs with more parts in their text than those of `PROGRAMS`.
MORE_PROGRAMS: dict[str, Callable[[GraphMaker], Any]] = {
    "pooling with an index": lambda m: m.graph.resample(
        m.add_tensor(2, 8, 16, 16), [2, 2], [2, 2], [0, 0], [0, 0], generate_index=True
    ),
    "reshape": lambda m: m.graph.reshape(m.add_tensor(2, 8, 16)).set_dim([16, 16]).set_stride([16, 1]),
    "slice": _add_relu_of_a_slice,
    "random numbers": lambda m: m.graph.rng(
        _add_int32_tensor(m, 1, 1, 1), _add_int32_tensor(m, 1, 1, 1), bernoulli_probability=0.5
    ).set_dim([2, 8, 8]).set_stride([64, 8, 1]),
    "statistics of other GPUs": _add_batchnorm_with_peer_stats,
    "statistics of other GPUs, backward": _add_batchnorm_backward_with_peer_stats,
    "sums to a norm": lambda m: m.graph.bn_finalize(
        *_add_per_channel_tensors(m, 4), *_add_half_scalars(m, 2),
        *_add_per_channel_tensors(m, 2), *_add_half_scalars(m, 1)
    ),
    "pages": _add_paged_cache_load,
    "elements in fours": lambda m: m.graph.relu(m.add_tensor(2, 8, 16).set_vector_count_and_dimension(4, 1)),
    "less alignment": lambda m: m.graph.relu(m.add_tensor(2, 8, 16).set_alignment(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE_PROGRAMS)
@pytest.mark.parametrize("checked", [False, True])
def test_a_graph_is_restored_completely_from_its_json(name: str, checked: bool) -> None:
    m = GraphMaker(cudnn, name="mine", is_override_shape_enabled=True, is_dynamic_shape_enabled=True, sm_count=7)
    made = MORE_PROGRAMS[name](m)
    for item in made if isinstance(made, list) else [made]:
        if item is not None:
            item.set_output(True)
    if checked:
        m.graph.validate()
    text = repr(m.graph)
    again = cudnn.pygraph()
    again.deserialize(text)
    assert (again.name, again.sm_count) == ("mine", 7)
    assert json.loads(repr(again))["context"] == json.loads(text)["context"]
    assert again.graph() == m.graph.graph()


def test_dims_of_a_reshape_may_be_set_only_at_the_operation() -> None:
    m = GraphMaker(cudnn)
    m.graph.reshape(m.add_tensor(2, 8, 16)).set_dim([16, 16]).set_stride([16, 1]).set_output(True)
    text = json.loads(repr(m.graph))
    text["tensors"][1] |= {"dim": [], "stride": []}
    again = cudnn.pygraph()
    again.deserialize(json.dumps(text))
    assert again.graph() == m.graph.graph()


def test_json_does_not_contain_score_functions() -> None:
    m = GraphMaker(cudnn)
    _add_attention(m, score_mod=lambda g, score: g.relu(score))
    with pytest.raises(RuntimeError, match="has a score function, which JSON does not contain"):
        cudnn.pygraph().deserialize(repr(m.graph))


JSON_WITH_TENSOR_LIST = {
    "json_version": "2.0",
    "context": {"io_data_type": "HALF", "intermediate_data_type": "FLOAT", "compute_data_type": "FLOAT"},
    "nodes": [
        {
            "tag": "CONV_FPROP",
            "name": "conv",
            "inputs": {"X": 1, "W": 2},
            "outputs": {"Y": 3},
            "compute_data_type": "FLOAT",
            "math_mode": "CROSS_CORRELATION",
            **{side: [1, 1] for side in ("pre_padding", "post_padding", "stride", "dilation")},
        },
        {"tag": "POINTWISE", "name": "cut", "inputs": {"IN_0": 3}, "outputs": {"OUT_0": 4}, "mode": "RELU_FWD",
         "relu_lower_clip": "3F000000", "compute_data_type": "FLOAT"},
    ],
    "tensors": [
        {"uid": uid, "name": name, "dim": dims, "stride": strides, "data_type": kind, "is_virtual": name == "response"}
        for uid, name, dims, strides, kind in (
            (1, "image", [8, 32, 16, 16], [8192, 1, 512, 32], "HALF"),
            (2, "weights", [64, 32, 3, 3], [288, 1, 96, 32], "HALF"),
            (3, "response", [8, 64, 16, 16], [16384, 1, 1024, 64], "FLOAT"),
            (4, "out", [8, 64, 16, 16], [16384, 1, 1024, 64], "HALF"),
        )
    ],
}  # fmt: skip


def test_nodes_in_json_have_every_key_of_cudnn_frontend() -> None:
    """cudnn-frontend reads each key by name, and refuses the whole JSON if one is missing."""
    ours, theirs = read_node_fields(cudnn), read_stored_public_api()["nodes in JSON"]
    assert {tag: lacks for tag in theirs if (lacks := set(theirs[tag]) - set(ours[tag]))} == {}


def _add_attention(m: GraphMaker, **options: Any) -> Any:
    return m.graph.sdpa(
        *(m.add_tensor(*ATTENTION_DIMS) for _ in "qkv"), attn_scale=0.125, generate_stats=False, **options
    )


def test_the_score_function_is_part_of_the_graph_key() -> None:
    def compute_key(name: str, modify: Any) -> int:
        m = GraphMaker(cudnn, name=name)
        _add_attention(m, score_mod=modify)[0].set_output(True)
        return m.graph.key()

    keys = [compute_key("one", lambda g, score: g.relu(score)), compute_key("two", lambda g, score: g.relu(score))]
    assert keys[0] == keys[1] != compute_key("one", lambda g, score: g.tanh(score))


@pytest.mark.parametrize(
    ("requested", "said"), [("AUTO", "UNIFIED"), ("UNIFIED", "UNIFIED"), ("COMPOSITE", "COMPOSITE")]
)
def test_json_contains_the_implementation_chosen_by_auto(requested: str, said: str) -> None:
    """cudnn-frontend cannot read the JSON of attention without an implementation."""
    m = GraphMaker(cudnn)
    _add_attention(m, implementation=cudnn.attention_implementation[requested])
    assert json.loads(repr(m.graph))["nodes"][0]["implementation"] == said


@pytest.mark.parametrize("number", [2.5, 3, True])
def test_by_value_numbers_are_unchanged_in_json(number: float) -> None:
    m = GraphMaker(cudnn)
    x, scalar = m.add_tensor(2, 8, 16), m.graph.tensor_scalar(number)
    m.graph.mul(x, scalar).set_output(True)
    text = json.loads(repr(m.graph))
    (said,) = [item["pass_by_value"] for item in text["tensors"] if item["is_pass_by_value"]]
    assert said == {2.5: {"index": 3, "value": "40200000"}, 3: {"index": 1, "value": 3}}.get(
        number, {"index": 3, "value": "3F800000"}
    )
    again = cudnn.pygraph()
    again.deserialize(json.dumps(text))
    again.build_operation_graph()
    assert [item.value for item in again.graph().tensors if item.by_value] == [number]


def test_json_of_a_graph_built_by_cudnn_frontend_is_read() -> None:
    """In such JSON, the scale is a tensor too, and K of the composite implementation is transposed."""
    m = GraphMaker(cudnn)
    for item in _add_attention(m, implementation=cudnn.attention_implementation.COMPOSITE):
        if item is not None:
            item.set_output(True)
    m.graph.validate()
    text = json.loads(repr(m.graph))
    text["nodes"][0]["inputs"]["Attn_scale"] = 99
    scale = {"uid": 99, "dim": [1], "stride": [1], "data_type": "FLOAT", "is_virtual": False, "is_pass_by_value": True,
             "pass_by_value": {"index": 3, "value": "3E000000"}, "reordering_type": "NONE"}  # fmt: skip
    text["tensors"].append(scale)
    k = next(item for item in text["tensors"] if item["uid"] == text["nodes"][0]["inputs"]["K"])
    for sizes in (k["dim"], k["stride"]):
        sizes[2:] = sizes[:1:-1]
    again = cudnn.pygraph()
    again.deserialize(json.dumps(text))
    assert [op.kind for op in again.graph().ops] == [op.kind for op in m.graph.graph().ops]
    assert [item.dims for item in again.graph().variant_pack_tensors] == [
        item.dims for item in m.graph.graph().variant_pack_tensors
    ]


def test_json_with_a_list_of_tensors_is_read() -> None:
    """In the newer JSON form, tensors are a list, ports refer to uids, and numbers may be hexadecimal bytes."""
    g = cudnn.pygraph()
    g.deserialize(json.dumps(JSON_WITH_TENSOR_LIST))
    assert [node.name for node in g.nodes] == ["conv", "cut"]
    g.build()
    conv, cut = g.graph().ops
    assert (conv.kind, cut.relu_lower_clip) == (DescriptorType.OPERATION_CONVOLUTION_FORWARD, 0.5)
    assert sorted(item.uid for item in g.graph().variant_pack_tensors) == [1, 2, 4]
    assert g.find_tensor("out").get_dim() == [8, 64, 16, 16]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tag": "CONV_FPROP", "inputs": {"X": 1, "W": 9}}, "no tensor '9'"),
        ({"math_mode": "SIDEWAYS"}, "where a convolution_mode is needed"),
        ({"outputs": {"Y": 3, "Z": 4}}, "the unknown output 'Z'"),
        ({"inputs": {"X": 1}}, "cannot be read"),
        ({"inputs": {"X": 1, "W": 2, "V": 2}}, "V"),
        ({"inputs": None}, "no inputs"),
        ({"inputs": {"X": [1], "W": 2}}, r"no tensor '\[1\]'"),
        ({"tag": "SLICE", "inputs": {"X": 1}}, "'conv' of the JSON cannot be read: 'slices'"),
        ({"tag": "SLICE", "inputs": {"X": 1}, "slices": [3]}, "'conv' of the JSON cannot be read"),
        (
            {"tag": "TRANSPOSE", "inputs": {"X": 1}, "permutation": 3},
            "'conv' of the JSON cannot be read: permutation is 3",
        ),
        (
            {"tag": "SDPA", "inputs": {"X": 1}, "outputs": {"O": 3}},
            "the attention node of the JSON has the unknown port 'X'",
        ),
        ({"tag": "POINTWISE", "inputs": {"IN_0": 1}, "mode": "FLY"}, "not an elementwise operation"),
        ({"compute_data_type": "SOFT"}, "where a data_type is needed"),
    ],
)
def test_invalid_nodes_in_json_are_refused(change: dict[str, Any], words: str) -> None:
    nodes = [{**JSON_WITH_TENSOR_LIST["nodes"][0], **change}]  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match=words):
        cudnn.pygraph().deserialize(json.dumps({**JSON_WITH_TENSOR_LIST, "nodes": nodes}))


def test_a_deserialized_graph_gives_the_same_warnings_as_a_built_one(monkeypatch: pytest.MonkeyPatch) -> None:
    row = KnownIssue(
        "made-up",
        what="any attention",
        effect="nothing",
        fix="nothing",
        source="a test",
        versions=VersionRange((9, 0, 0)),
        attention=lambda use: True,
    )
    monkeypatch.setattr(find, "FAULTS", (row,))
    m = GraphMaker(cudnn)
    out, _ = m.graph.sdpa(
        q=m.add_tensor(*ATTENTION_DIMS),
        k=m.add_tensor(*ATTENTION_DIMS),
        v=m.add_tensor(*ATTENTION_DIMS),
        attn_scale=0.125,
        is_inference=True,
    )
    out.set_output(True)
    for entry_point in (lambda: m.graph.build(), lambda: GraphMaker(cudnn).graph.deserialize(m.graph.serialize())):
        monkeypatch.setattr(find, "_warned", set())
        with pytest.warns(cudnn.FrontendKnownIssueWarning, match="made-up"):
            entry_point()


def test_buffers_may_be_given_by_tensor_by_name_or_as_a_list() -> None:
    m = GraphMaker(cudnn)
    x, w = m.add_tensor(1, 64, 64, name="x"), m.add_tensor(1, 64, 64, name="w")
    y = m.graph.matmul(x, w, name="mm").set_output(True)
    m.graph.build()
    runner = m.graph._current
    assert runner is not None
    by_tensor = runner.resolve_addresses({x: 16, w: 32, y: 48}, 64)
    assert by_tensor == runner.resolve_addresses({"x": 16, "w": 32, "mm::C": 48}, 64)
    uids = [item.get_uid() for item in (y, x, w)]
    assert by_tensor == runner.resolve_addresses(m.graph._make_variant_pack([48, 16, 32], uids), 64)
    assert by_tensor == runner.resolve_addresses(m.graph._make_variant_pack([16, 32, 48], None), 64)
    for given, named in (([1, 2], uids), ([1, 2, 3], [1, 1, 2]), ({x: 1}, uids)):
        with pytest.raises(ValueError, match=r"one is needed for each|applies to a list of buffers"):
            m.graph._make_variant_pack(given, named)


def test_an_array_given_to_an_operation_becomes_a_tensor_and_its_buffer() -> None:
    np = pytest.importorskip("numpy")
    m = GraphMaker(cudnn)
    half = np.full((1, 1, 1), 0.5, np.float32)
    y = m.graph.mul(m.add_tensor(1, 8, 16, name="x"), half, name="scaled").set_output(True)
    (node,) = m.graph.nodes
    made = node.inputs["IN_1"]
    assert (made.get_name(), made.get_dim(), made.get_is_pass_by_value()) == ("scaled::IN_1", [1, 1, 1], True)
    assert m.graph._make_variant_pack({y: 1}, None)[made] is half


def test_passing_none_is_the_same_as_omitting_the_argument() -> None:
    m = GraphMaker(cudnn)
    offset = m.add_tensor(4, 1, 1, kind="INT32")
    m.graph.moe_grouped_matmul(
        m.add_tensor(1, 8, 16), m.add_tensor(4, 16, 8), offset, mode=None, top_k=None
    ).set_output(True)
    m.graph.conv_fprop(m.add_tensor(2, 8, 8, 8), m.add_tensor(4, 8, 3, 3), padding=[1, 1], stride=None, dilation=[1, 1])
    assert m.graph.nodes[0].params == {}
    with pytest.raises(ValueError, match=r"stride of conv_fprop 'conv_fprop\.0' is not set"):
        m.graph.validate()
    m.graph.conv_fprop(
        m.add_tensor(2, 8, 8, 8), m.add_tensor(4, 8, 3, 3), padding=[1, 1], stride=[0, 1], dilation=[1, 1]
    )
    with pytest.raises(TypeError, match="padding is None"):
        m.graph.matmul(m.add_tensor(2, 8, 16), m.add_tensor(2, 16, 8), padding=None)
    for method, operands in (
        ("conv_fprop", [m.add_tensor(2, 8, 8, 8), m.add_tensor(4, 8, 3, 3)]),
        ("genstats", [m.add_tensor(2, 8, 8, 8)]),
    ):
        with pytest.raises(TypeError, match="groups"):
            getattr(m.graph, method)(*operands, groups=None)


def test_the_error_for_an_unexpected_argument_names_the_operation() -> None:
    m = GraphMaker(cudnn)
    for arguments, words in (({"nope": 1}, "unexpected keyword argument 'nope'"), ({}, "missing a required argument")):
        with pytest.raises(TypeError, match=rf"^sdpa_backward\(\): .*{words}"):
            m.graph.sdpa_backward(
                **dict.fromkeys(("q", "k", "v", "o", "dO", "stats") if arguments else ()), **arguments
            )
    assert m.graph.nodes == []


def test_out_dims_are_accepted_only_if_they_are_not_inferred() -> None:
    m = GraphMaker(cudnn)
    assert m.graph.reduction(m.add_tensor(2, 8, 16), mode=cudnn.reduction_mode.ADD, out_dims=[2, 8, 1]).get_dim() == [
        2,
        8,
        1,
    ]
    with pytest.raises(TypeError, match=r"matmul\(\) takes no out_dims"):
        m.graph.matmul(m.add_tensor(2, 8, 16), m.add_tensor(2, 16, 8), out_dims=[2, 8, 8])


def test_an_image_gradient_has_the_dims_of_the_smallest_image_at_once() -> None:
    m = GraphMaker(cudnn)
    window = {"padding": [1, 1], "stride": [2, 2], "dilation": [1, 1]}
    made = m.graph.conv_dgrad(m.add_tensor(2, 4, 8, 8), m.add_tensor(4, 8, 3, 3), **window)
    assert made.get_dim() == [2, 8, 15, 15]
    made.set_dim([2, 8, 16, 16])
    m.graph.validate()
    assert made.get_dim() == [2, 8, 16, 16]


def test_plan_errors_are_runtime_and_not_supported_errors() -> None:
    for make in (
        lambda m: m.graph.relu(m.add_tensor(2, 8, 16)).set_dim([2, 8, 1]).set_stride([8, 1, 1]),
        lambda m: m.graph.relu(m.add_tensor(2, 8, 16, is_virtual=True)),
        lambda m: m.graph.relu(m.graph.slice(m.add_tensor(2, 8, 16), [slice(2, 2), slice(0, 8), slice(0, 16)])),
    ):
        m = GraphMaker(cudnn)
        make(m).set_output(True)
        m.graph.validate()
        with pytest.raises(cudnn.cudnnGraphNotSupportedError) as refused:
            m.graph.build_operation_graph()
        assert isinstance(refused.value, RuntimeError)
    for call in ("create_execution_plans", "check_support", "build_plans"):
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"^empty-graph: the graph has no operations"):
            getattr(GraphMaker(cudnn).graph, call)()
    with pytest.raises(RuntimeError) as plain:
        GraphMaker(cudnn).graph.build_operation_graph()
    assert not isinstance(plain.value, cudnn.cudnnGraphNotSupportedError)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no nodes or no tensors"):
        GraphMaker(cudnn).graph.deserialize("{}")


@pytest.mark.parametrize("built", [False, True])
def test_the_json_of_a_graph_is_read_as_a_graph_file(built: bool, tmp_path: Path) -> None:
    m = GraphMaker(cudnn)
    m.graph.relu(m.graph.matmul(m.add_tensor(2, 8, 16), m.add_tensor(2, 16, 4), name="mm")).set_output(True)
    attention = GraphMaker(cudnn)
    q, k, v = (attention.add_tensor(2, 4, 128, 64, name=name) for name in "qkv")
    o, _ = attention.graph.sdpa(q=q, k=k, v=v, generate_stats=False, attn_scale=0.125, use_causal_mask=True)
    o.set_output(True).set_dim([2, 4, 128, 64]).set_stride([32768, 8192, 64, 1])
    paths = tmp_path / "matmul.json", tmp_path / "attention.json"
    for graph, path in zip((m.graph, attention.graph), paths, strict=True):
        if built:
            graph.build()
        path.write_text(repr(graph))
    product, causal = (load_graph_file(str(path)) for path in paths)
    assert [op.name for op in product.ops] == ["mm", "relu.0"]
    assert [item.dims for item in product.outputs] == [(2, 8, 4)]
    assert [causal.tensor(name).dims for name in "qkv"] == [(2, 4, 128, 64)] * 3


def test_the_graph_key_depends_on_compute_types_but_not_names() -> None:
    graphs = [GraphMaker(cudnn, name=name) for name in ("one", "two")]
    for m in graphs:
        m.graph.relu(m.add_tensor(2, 8, 16)).set_output(True)
        m.graph.validate()
    assert graphs[0].graph.key() == graphs[1].graph.key()
    graphs[1].graph.relu(graphs[1].add_tensor(2, 8, 16), compute_data_type=cudnn.data_type.HALF)
    assert graphs[0].graph.key() != graphs[1].graph.key()
    text = repr(graphs[1].graph)
    assert [node["compute_data_type"] for node in json.loads(text)["nodes"]] == ["FLOAT", "HALF"]
    assert text.startswith('{\n    "context"')


def test_an_unused_slice_needs_no_buffer() -> None:
    m = GraphMaker(cudnn)
    x, whole = m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16)
    m.graph.slice(whole, [slice(0, 1), slice(0, 8), slice(0, 16)])
    y = m.graph.relu(x).set_output(True)
    m.graph.build()
    assert m.graph._get_variant_pack_uids_sorted() == [x.uid, y.uid]
    with pytest.raises(RuntimeError, match="plan-without-device"):  # another tensor's buffer is allowed
        m.graph.execute({x: 1 << 20, y: 1 << 21, whole: 1 << 22}, 0)
