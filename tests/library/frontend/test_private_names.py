"""Private names that programs of cudnn-frontend 1.32 use to inspect graphs: their values before and after a build."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.frontend.as_cudnn import NotOfferedError, install, uninstall
from cudnn_backend_py.frontend.handles import create_handle, set_default_target, to_backend_handle

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT


@pytest.fixture(autouse=True)
def installed_frontend() -> Iterator[None]:
    set_default_target("h100")
    install("h100")
    yield
    uninstall()


def make_empty_graph_without_handle() -> Any:
    return cudnn.pygraph(io_data_type=HALF, intermediate_data_type=FLOAT, compute_data_type=FLOAT)


def add_matmul(g: Any) -> Any:
    a, b = g.tensor(dim=[1, 64, 64], name="a"), g.tensor(dim=[1, 64, 64], name="b")
    return g.matmul(a, b).set_output(True)


def test_graph_modules_have_the_names_of_cudnn_frontend() -> None:
    assert importlib.import_module("cudnn._pygraph").pygraph is cudnn.pygraph
    assert importlib.import_module("cudnn._pygraph").GraphContext is cudnn.GraphContext
    assert importlib.import_module("cudnn.nodes")._row_major_stride([4, 8, 16]) == [128, 16, 1]
    assert importlib.import_module("cudnn._handle").to_backend_handle(None) is None
    assert cudnn._pybind_module.data_type is cudnn.data_type
    assert cudnn._pybind_module.backend_graph is cudnn.pygraph


def test_every_operation_of_the_pointwise_table_can_be_called() -> None:
    table = importlib.import_module("cudnn._pygraph").pygraph._POINTWISE_TENSOR_ARGS
    assert table["binary_select"] == ("input0", "input1", "mask")
    assert "relu" not in table
    for name, arguments in table.items():
        g = make_empty_graph_without_handle()
        out = getattr(g, name)(**{argument: g.tensor(dim=[4, 8]) for argument in arguments})
        g.validate()
        assert out.dim == [4, 8]


def test_cudnn_engines_are_distinguished_from_python_engines() -> None:
    ids = importlib.import_module("cudnn.engines.engine_ids")
    assert [ids.is_backend_engine(each) for each in (0, 9_999, 10_000, 20_500, -1)] == [True, True, False, False, False]
    assert ids.is_python_engine(ids.PYTHON_ENGINE_ID_BASE)
    assert not ids.is_python_engine(9_999)
    with pytest.raises(NotOfferedError, match=r"cudnn\.engines\.BaseEngine is not part"):
        exec("from cudnn.engines import BaseEngine")
    with pytest.raises(ImportError, match=r"cudnn\.engines\.heuristics"):
        importlib.import_module("cudnn.engines.heuristics")


def test_the_engine_manifest_lists_but_offers_no_python_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    from cudnn.engines import manifest

    assert importlib.import_module("cudnn.engines.manifest") is manifest
    monkeypatch.setenv("CUDNN_FRONTEND_ENABLE_FROST_ENGINES", "1")
    assert not manifest.opt_in_engines_enabled()
    assert [(family.offered_ids(), family.slots) for family in manifest.MANIFEST] == [({}, {})] * 11
    attention = next(family for family in manifest.MANIFEST if family.name == "frost_sdpa_fwd")
    assert [attention.owns(number) for number in (20_499, 20_500, attention.id_end - 1, attention.id_end)] == [
        False,
        True,
        True,
        False,
    ]
    numbers = [family.engine_id for family in manifest.MANIFEST]
    assert sorted(numbers) == list(range(20_100, 21_200, 100))


def test_enum_members_are_not_integers_but_convert_to_their_number() -> None:
    for name in ("data_type", "heur_mode", "knob_type", "reduction_mode", "norm_forward_phase", "tensor_reordering"):
        for member in getattr(cudnn, name):
            assert not isinstance(member, int)
            assert member != member.value
            assert type(member)(json.loads(json.dumps(int(member)))) is member


def test_a_number_is_refused_as_a_handle() -> None:
    for call in (lambda: cudnn.set_stream(1, 0), lambda: cudnn.get_stream(1), lambda: cudnn.destroy_handle(1)):
        with pytest.raises(TypeError, match=r"cudnn\.Handle"):
            call()
    with pytest.raises(TypeError, match=r"cudnn\.Handle"):
        to_backend_handle(1)  # type: ignore[arg-type]
    assert to_backend_handle(create_handle()) is None


def test_private_attributes_show_the_build_stage_of_a_graph() -> None:
    g = make_empty_graph_without_handle()
    add_matmul(g)
    g.validate()
    assert g._lowered_graph is None
    assert not g._planning_done
    assert not g._is_built
    g.create_execution_plans([cudnn.heur_mode.A])
    assert g._lowered_graph is g
    assert g._planning_done
    assert g._cpp_plans_created
    assert not g._is_built
    g.build_plans()
    assert g._is_built
    assert g.plans[g._plan_index].cpp_index == g._plan_index
    assert g._variant_pack_uids() == sorted(g._tensor_by_uid)


def test_bound_buffers_follow_their_tensor_to_its_new_uid() -> None:
    g = make_empty_graph_without_handle()
    a = g.tensor(dim=[2, 2])
    g._data_bindings[a.uid] = "buffer"
    b = g.tensor(dim=[2, 2])
    b.set_uid(a.uid)
    assert a.uid != b.uid
    assert dict(g._data_bindings) == {a.uid: "buffer"}
    del g._data_bindings[a.uid]
    assert not g._data_bindings
    for wrong in (b.uid, 99):
        with pytest.raises(KeyError):
            g._data_bindings[wrong]


def test_nodes_created_by_hand_infer_their_dims() -> None:
    nodes = importlib.import_module("cudnn.nodes")
    for kind, port, ins, dim in (
        (cudnn.NodeType.MATMUL, "C", {"A": [8, 64, 128], "B": [8, 128, 256]}, [8, 64, 256]),
        (cudnn.NodeType.POINTWISE, "OUT_0", {"IN_0": [8, 64], "IN_1": [1, 64]}, [8, 64]),
    ):
        node = nodes.Node("n", kind)
        node.inputs = {name: cudnn.Tensor(size, nodes._row_major_stride(size)) for name, size in ins.items()}
        node.outputs[port] = cudnn.Tensor(is_virtual=True)
        node.infer_properties(cudnn.GraphContext())
        assert node.outputs[port].dim == dim
        assert node.outputs[port].stride == nodes._row_major_stride(dim)


def test_dims_of_results_are_inferred_at_once_and_follow_the_inputs() -> None:
    g = make_empty_graph_without_handle()
    x, w = g.tensor(dim=[4, 16, 32, 32], name="x"), g.tensor(dim=[32, 16, 3, 3], name="w")
    y = g.conv_fprop(image=x, weight=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    assert y.dim == y.get_dim() == [4, 32, 32, 32]
    x.set_dim([2, 16, 32, 32])
    assert y.get_dim() == [2, 32, 32, 32]
    assert not y.dim_assigned
    g.validate()
    assert y.dim == [2, 32, 32, 32]
    assert y.stride == [32 * 32 * 32, 1, 32 * 32, 32]
    q = g.tensor(dim=[2, 8, 128, 64])
    o, stats = g.sdpa(q, q, q, generate_stats=True)
    assert o.dim == [2, 8, 128, 64]
    assert stats.dim == [2, 8, 128, 1]


def test_data_types_are_a_plain_enum() -> None:
    assert issubclass(cudnn.data_type, Enum)
    assert bool(cudnn.data_type.NOT_SET)
    g = make_empty_graph_without_handle()
    assert g.tensor(dim=[2], data_type=cudnn.data_type.NOT_SET).data_type is HALF


@pytest.mark.parametrize("given", [{}, {"compute_data_type": FLOAT}, {"intermediate_data_type": FLOAT}])
def test_unset_types_are_float(given: Any) -> None:
    g = cudnn.pygraph(**given)
    a, b = (g.tensor(dim=[1, 64, 64], data_type=HALF) for _ in range(2))
    c = g.matmul(a, b)
    g.relu(c).set_output(True).set_data_type(HALF)
    g.build_operation_graph()
    assert (c.data_type, g.context.compute_type) == (FLOAT, FLOAT)


def test_a_gradient_may_become_an_output_after_its_dims_were_read() -> None:
    g = make_empty_graph_without_handle()
    x, scale = g.tensor(dim=[8, 32, 4, 4]), g.tensor(dim=[8, 1, 4, 4], data_type=FLOAT)
    statistics = [g.tensor(dim=[8, 32, 1, 1], data_type=FLOAT) for _ in range(2)]
    dbias = g.adalayernorm_backward(x, x, scale, *statistics)[2]
    assert dbias.get_dim() == [8, 1, 4, 4]
    dbias.set_output(True)
    g.validate()
    assert "DBIAS" in g.to_json()["nodes"][0]["outputs"]
