"""The public names of cudnn-frontend 1.32, recorded in a file: the docs give a reason for each difference."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

import cudnn_backend_py.frontend as ours
from cudnn_backend_py.frontend.errors import cudnnGraphNotSupportedError
from cudnn_backend_py.frontend.kernels import KERNELS, OPERATIONS
from cudnn_backend_py.frontend.recorded import OPERATIONS as RECORDED
from tests.compat.programs import PROGRAMS
from tests.compat.surface import _parse_help_text, find_differences, read_stored_public_api

RECORDED_FACTS = read_stored_public_api()


def test_every_difference_from_cudnn_frontend_has_a_reason() -> None:
    assert [one for one in find_differences(RECORDED_FACTS, ours) if not one.reason] == []


def test_missing_and_changed_api_names_are_found() -> None:
    """An empty module lacks every name; another value, default or parameter is reported too."""
    nothing = ModuleType("nothing")
    found = {(one.area, one.name): one.description for one in find_differences(RECORDED_FACTS, nothing)}
    assert found["module", "pygraph"] == "missing"
    assert found["data_type", "HALF"] == "3, here None"
    facts = {
        **RECORDED_FACTS,
        "enums": {"heur_mode": {"A": 7}},
        "signatures": {"pygraph.matmul": [["A", None], ["padding", "1.0"], ["other", None]]},
    }
    (value, default, parameter) = (one for one in find_differences(facts, ours) if one.area != "module")
    assert (value.name, value.description) == ("A", "7, here 0")
    assert (default.name, default.description) == ("matmul(padding)", "default 1.0, here 0.0")
    assert (parameter.name, parameter.description) == ("matmul(other)", "missing")


def test_every_operation_of_cudnn_frontend_has_a_test_program() -> None:
    in_python = {name for name in RECORDED if f"pygraph.{name}" in RECORDED_FACTS["signatures"]}
    block_scaled_attention = {"sdpa_mxfp8", "sdpa_mxfp8_backward"}  # their scales need a Blackwell GPU
    assert in_python - {name.partition(",")[0] for name in PROGRAMS} == block_scaled_attention


def test_kernels_of_cudnn_frontend_raise_not_implemented_error() -> None:
    assert set(RECORDED_FACTS["kernels"]) <= KERNELS | {"engines"}  # has its numbers here, see its own test
    for name in KERNELS - {"ops"}:  # a folder of ours; the module called cudnn refuses it, too
        with pytest.raises(NotImplementedError, match=f"cudnn.{name} is a kernel of cudnn-frontend's own"):
            getattr(ours, name)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations_that_need_cudnn_frontends_kernels_raise_graph_not_supported_error(name: str) -> None:
    graph = object.__new__(ours.pygraph)
    with pytest.raises(cudnnGraphNotSupportedError, match=rf"pygraph\.{name} needs a kernel"):
        getattr(graph, name)(1, 2)


def test_signatures_are_parsed_from_help_text() -> None:
    text = "make(self, dim: list[int], kind: m.data_type = <cudnn.m.data_type.HALF: 3>, name: str = '') -> a[b, c]"
    assert _parse_help_text(text, "make") == [["dim", None], ["kind", "data_type.HALF"], ["name", "''"]]


def test_every_listed_submodule_can_be_imported() -> None:
    from cudnn_backend_py.frontend.as_cudnn import SUBMODULES

    for name, module in SUBMODULES.items():
        if not name.startswith("_") and not name.startswith("engines."):  # the facts are of public names
            assert name in RECORDED_FACTS["modules"]
        assert import_module(module).__doc__


def test_engine_ids_and_knob_names_equal_cudnn_frontends() -> None:
    from cudnn_backend_py.frontend import engines

    bases = (engines.BACKEND_ENGINE_ID_BASE, engines.CPP_OSS_ENGINE_ID_BASE, engines.PYTHON_ENGINE_ID_BASE)
    assert [engines.is_backend_engine(number) for number in (*bases, engines.BACKEND_HEURISTIC_ENGINE_ID)] == [
        True,
        False,
        False,
        False,
    ]
    assert [engines.is_python_engine(number) for number in bases] == [False, False, True]
    kind = ours.knob_type
    assert engines.public_knobs_repr({kind.TILE_N: 2, 99: 1, kind.TILE_M: 3}) == "99=1, TILE_M=3, TILE_N=2"
    assert engines.public_knobs_repr({}) == ""
    assert engines.PlanConfig(4).knobs is None


def test_a_tensor_has_every_field_of_cudnn_frontends_tensor() -> None:
    constant = ours.scalar_type.COMPILE_TIME_CONST
    made = ours.Tensor(
        name="t",
        is_pass_by_value=True,
        pass_by_value=2.5,
        uid=7,
        uid_assigned=True,
        dim_assigned=True,
        stride_assigned=True,
        ragged_offset_multiplier=4,
        alignment_value=8,
        scalar_type=constant,
    )
    assert (made.pass_by_value, made.uid, made.uid_assigned, made.scalar_type) == (2.5, 7, True, constant)
    assert (made.dim_assigned, made.stride_assigned) == (True, True)
    assert (made.ragged_offset_multiplier, made.alignment_value, made.owner) == (4, 8, None)
    plain = ours.Tensor()
    assert (plain.uid_assigned, plain.dim_assigned, plain.stride_assigned) == (False, False, False)
    assert (plain.scalar_type, plain.pass_by_value) == (ours.scalar_type.RUNTIME_PARAM, None)


def test_device_info_compares_equal_to_its_ordinal() -> None:
    assert ours.DeviceInfo(ordinal=3) == 3
    assert ours.DeviceInfo(3).ordinal == 3


@pytest.mark.parametrize("name", sorted(set(RECORDED_FACTS["enums"]) - {"NodeType"}))
def test_enum_members_are_not_integers(name: str) -> None:
    """As in 1.32, every member is true, even with value 0, and equals neither a number nor a member of another enum."""
    for member in getattr(ours, name):
        assert member
        assert not isinstance(member, int)
        assert member != member.value
        assert type(member)(int(member)) is member
    assert ours.heur_mode.A != ours.build_plan_policy.HEURISTICS_CHOICE
