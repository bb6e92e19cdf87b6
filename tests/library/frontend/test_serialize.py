"""Serialized graphs in cudnn-frontend's format, for described targets."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.frontend.ubjson import read_ubjson, write_ubjson
from tests.compat.programs import ATTENTION_DIMS, PROGRAMS, GraphMaker

A = cudnn.heur_mode.A


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


def build_graph(write: Callable[[GraphMaker], Any]) -> cudnn.pygraph:
    m = GraphMaker(cudnn)
    made = write(m)
    for item in made if isinstance(made, (list, tuple)) else [made]:
        item.set_output(True)
    m.graph.build([A, cudnn.heur_mode.FALLBACK])
    return m.graph


def _add_attention_with_alibi(m: GraphMaker) -> Any:
    """Add attention with ALiBi slopes at the start of the workspace, and return its output."""
    made, _ = m.graph.sdpa(
        q=m.add_tensor(*ATTENTION_DIMS),
        k=m.add_tensor(*ATTENTION_DIMS),
        v=m.add_tensor(*ATTENTION_DIMS),
        attn_scale=0.5,
        generate_stats=False,
        use_causal_mask=True,
        use_alibi_mask=True,
    )
    return made.set_dim(list(ATTENTION_DIMS)).set_stride([16384, 4096, 64, 1])


def _add_matmul_of_a_slice(m: GraphMaker) -> Any:
    x = m.add_tensor(4, 64, 64, name="whole")
    return m.graph.matmul(m.graph.slice(x, [slice(1, 3), slice(0, 64), slice(0, 64)]), m.add_tensor(2, 64, 64))


def _add_matmul_of_two_slices(m: GraphMaker) -> Any:
    x = m.add_tensor(4, 64, 64, name="whole")
    first, second = (m.graph.slice(x, [slice(at, at + 2), slice(0, 64), slice(0, 64)]) for at in (0, 2))
    return m.graph.matmul(first, second)


def _add_grouped_convolution_gradient(m: GraphMaker) -> Any:
    loss, weight = m.add_tensor(1, 64, 14, 20, last=True), m.add_tensor(64, 16, 5, 1, last=True)
    made = m.graph.conv_dgrad(loss, weight, padding=[2, 2], stride=[1, 1], dilation=[1, 1])
    return made.set_dim([1, 32, 14, 16])


SERIALIZED_PROGRAMS: dict[str, Callable[[GraphMaker], Any]] = {
    "a product": PROGRAMS["matmul"],
    "scratch and scalars": PROGRAMS["sdpa_backward"],
    "a scalar that is given": PROGRAMS["rmsnorm"],
    "slopes": _add_attention_with_alibi,
    "a slice": _add_matmul_of_a_slice,
    "a convolution of two groups": _add_grouped_convolution_gradient,
}


@pytest.mark.parametrize("name", SERIALIZED_PROGRAMS)
def test_serialized_graphs_of_cudnn_frontend_are_read(name: str) -> None:
    """Bytes serialized by cudnn-frontend have none of this package's data: the graph is read from cuDNN's plan."""
    g = build_graph(SERIALIZED_PROGRAMS[name])
    content = read_ubjson(g.serialize(as_bytes=True))
    theirs = {key: item for key, item in content.items() if not key.startswith("cudnn_backend_py")}
    assert len(theirs) == len(content) - 2
    read = cudnn.pygraph()
    read.deserialize(write_ubjson(theirs))
    assert read._get_variant_pack_uids_sorted() == g._get_variant_pack_uids_sorted()
    assert read._memory is not None
    assert g._memory is not None
    slopes = content["fe_workspace_size"] - g._memory.scratch_bytes  # which are before the workspace there
    assert read.get_workspace_size() == g.get_workspace_size() + slopes
    assert read._memory.offsets == g._memory.offsets
    assert read.get_plan_name_at_index(0).startswith(g.get_plan_name_at_index(0).split("_")[0])
    assert (read._memory.constants, read._memory.slices) == (g._memory.constants, g._memory.slices)
    scalars = [{item.uid: item.value for item in each._memory.tensors if item.by_value} for each in (read, g)]
    assert scalars[0] == pytest.approx(scalars[1])


def test_serialized_graphs_have_the_layout_of_cudnn_frontends_cpp() -> None:
    content = read_ubjson(build_graph(PROGRAMS["sdpa_backward"]).serialize(as_bytes=True))
    assert content["json_version"] == "2.0"
    kinds = {item["index"] for item in content["pass_by_values"].values()}
    assert kinds == {3}  # float
    assert {struct.unpack(">f", bytes.fromhex(item["value"]))[0] for item in content["pass_by_values"].values()} >= {
        0.125
    }
    places = content["workspace_modifications"].values()
    assert all(how == 2 and offset < content["fe_workspace_size"] for how, offset, _ in places)
    assert len({offset for _, offset, _ in places}) == len(places) > 0
    uids = {item["uid"] for item in content["tensors"]}
    assert uids == set(content["variant_pack_uids"])
    assert content["behavior_notes"][0]
    slopes = read_ubjson(build_graph(_add_attention_with_alibi).serialize(as_bytes=True))
    ((how, offset, values),) = slopes["workspace_modifications"].values()
    assert (how, offset, values) == (0, 0, ["3E800000", "3D800000", "3C800000", "3B800000"])  # floats, as in C++
    assert slopes["fe_workspace_size"] == 128
    ((whole, (part, start)),) = read_ubjson(build_graph(_add_matmul_of_a_slice).serialize(as_bytes=True))[
        "variant_pack_replacements"
    ]
    assert (whole, start) == (1, 2 * 4096)
    assert part != whole


def test_graphs_that_cudnn_frontend_cannot_read_have_no_format_version() -> None:
    """Without a format version, cudnn-frontend refuses the bytes, but this package reads them."""
    g = build_graph(_add_matmul_of_two_slices)
    data = g.serialize(as_bytes=True)
    assert "json_version" not in read_ubjson(data)
    read = cudnn.pygraph()
    read.deserialize(data)
    assert read._get_variant_pack_uids_sorted() == g._get_variant_pack_uids_sorted()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workspace_modifications": {"3": [1, 0, ["42800000"]]}}, r"clears memory before each launch \(uids \[3\]\)"),
        ({"workspace_modifications": None}, "workspace_modifications is None, an object is needed"),
        ({"workspace_modifications": {"4711": [0, 0, []]}}, r"memory locations for the uids \[4711\]"),
        ({"fe_workspace_size": None}, "fe_workspace_size is None, an integer of 64 bits is needed"),
        ({"fe_workspace_size": float("inf")}, "fe_workspace_size is inf, an integer of 64 bits is needed"),
        (
            {"workspace_modifications": {"3": [2, 64, []]}},
            "128 bytes from byte 64 of the scratch memory, but the scratch memory has only 0 bytes",
        ),
        ({"pass_by_values": {"3": {"index": 2, "value": 1}}}, "has the scalar 1 of type"),
        ({"pass_by_values": {"inf": {"index": 0, "value": 1}}}, "a key of pass_by_values is 'inf'"),
        ({"workspace_modifications": {"3": [0, 0, [64.0]]}}, r"workspace_modifications.3\[2\]\[0\] is 64.0, a text"),
        ({"workspace_modifications": {"3": [0, 0, ["42"]]}}, "'42' is not a float"),
        ({"cudnn_backend_data": "{}"}, "the data lacks engine, cudnnVersion"),
        ({"cudnn_backend_data": 5}, "does not contain an execution plan"),
        ({"variant_pack_replacements": [[1]]}, r"variant_pack_replacements\[0\] is \[1\], a list of 2"),
        ({"variant_pack_replacements": [[1, [3, -1]]]}, "a tensor slice with the start -1"),
    ],
)
def test_unreadable_parts_of_cudnn_frontends_bytes_are_reported(change: dict[str, Any], message: str) -> None:
    content = read_ubjson(build_graph(PROGRAMS["matmul"]).serialize(as_bytes=True))
    theirs = {key: item for key, item in content.items() if not key.startswith("cudnn_backend_py")}
    with pytest.raises(RuntimeError, match=message) as caught:
        cudnn.pygraph().deserialize(write_ubjson(theirs | change))
    assert isinstance(caught.value, cudnn.errors.FrontendRuntimeError)


@pytest.mark.parametrize("field", ["cudnn_backend_data", "cudnn_backend_py", "cudnn_backend_py_sha256"])
def test_a_changed_field_of_a_serialized_graph_is_detected(field: str) -> None:
    content = read_ubjson(build_graph(PROGRAMS["matmul"]).serialize(as_bytes=True))
    content[field] = content[field].replace("1", "2", 1)
    with pytest.raises(RuntimeError, match="was changed since it was serialized"):
        cudnn.pygraph().deserialize(write_ubjson(content))


@pytest.mark.parametrize("kind", [RuntimeError, cudnn.cudnnGraphNotSupportedError])
@pytest.mark.parametrize("change", [{"cudnnVersion": 91900}, {"smVersion": 800}])
def test_a_serialized_plan_of_another_cudnn_or_gpu_is_refused(change: dict[str, int], kind: type[Exception]) -> None:
    """The error has the type that cudnn-frontend raises, so programs that catch it build the graph again."""
    content = read_ubjson(build_graph(PROGRAMS["matmul"]).serialize(as_bytes=True))
    theirs = {key: item for key, item in content.items() if not key.startswith("cudnn_backend_py")}
    plan = json.loads(theirs["cudnn_backend_data"])
    (plan if "cudnnVersion" in change else plan["engine"]).update(change)
    with pytest.raises(kind, match="mismatch"):
        cudnn.pygraph().deserialize(write_ubjson(theirs | {"cudnn_backend_data": json.dumps(plan)}))


def test_json_is_refused_if_a_plan_is_requested() -> None:
    g = build_graph(PROGRAMS["matmul"])
    data, text = g.serialize(as_bytes=True), repr(g)
    ways: list[tuple[tuple[Any, ...], dict[str, bool]]] = [
        ((True,), {}),
        ((), {"enforce_precompiled": True}),
    ]
    for more, named in ways:
        for first in ((), (None,)):
            with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="enforce_precompiled needs a serialized plan"):
                cudnn.pygraph().deserialize(*first, text, *more, **named)
            read = cudnn.pygraph()
            read.deserialize(*first, data, *more, **named)
            assert read.get_workspace_size() == g.get_workspace_size()


def test_deserialize_errors_show_a_wrong_argument_truncated() -> None:
    """The error message quotes only the beginning of a wrong argument, which may be as long as a plan."""
    data = build_graph(PROGRAMS["matmul"]).serialize(as_bytes=True)
    for call in (lambda: cudnn.pygraph().deserialize(data, 5), lambda: cudnn.pygraph().tensor(dim=data)):
        with pytest.raises(TypeError) as caught:
            call()
        assert len(str(caught.value)) < 500


def test_the_sm_count_of_a_graph_is_read_from_json() -> None:
    """As in cudnn-frontend 1.32, a graph deserialized from JSON gets the SM count stored there."""
    m = GraphMaker(cudnn, sm_count=66)
    PROGRAMS["matmul"](m).set_output(True)
    m.graph.build_operation_graph()
    read = cudnn.pygraph()
    read.deserialize(repr(m.graph))
    assert read.to_json()["context"]["sm_count"] == 66


@pytest.mark.parametrize("has_dbias", [True, False])
def test_json_has_a_bias_gradient_only_if_it_is_requested(has_dbias: bool) -> None:
    m = GraphMaker(cudnn)
    grad, x = m.add_images(2)
    made = m.graph.rmsnorm_backward(
        grad=grad,
        input=x,
        scale=m.add_float_tensor(1, 32, 4, 4),
        inv_variance=m.add_float_tensor(8, 1, 1, 1),
        has_dbias=has_dbias,
    )
    for item in made:
        if item is not None:
            item.set_output(True)
    m.graph.build_operation_graph()
    read = cudnn.pygraph()
    read.deserialize(repr(m.graph))
    read.build_operation_graph()
    assert len(read.nodes[0].outputs) == 2 + has_dbias
