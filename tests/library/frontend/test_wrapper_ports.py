"""``cudnn.Graph`` and ``cudnn.jit`` on a described H100: named ports, tensor orders, dicts, and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from cudnn_backend_py import frontend as cudnn
from cudnn_backend_py.frontend import handles, wrapper
from tests.library.frontend.test_lifecycle import make_null_handle
from tests.support.torch_substitute import DTYPES, Tensor

GRAPH_TYPES = {
    "io_data_type": cudnn.data_type.HALF,
    "intermediate_data_type": cudnn.data_type.FLOAT,
    "compute_data_type": cudnn.data_type.FLOAT,
}


@pytest.fixture(autouse=True, scope="module")
def target_h100() -> Iterator[None]:
    handles.set_default_target("h100")
    yield
    handles.set_default_target(None)


def make_half_tensor(*shape: int, **options: Any) -> Tensor:
    return Tensor(shape, dtype=DTYPES["float16"], device="cuda", **options)


A, B, BIAS = make_half_tensor(2, 64, 128), make_half_tensor(2, 128, 32), make_half_tensor(1, 64, 32)


def build_linear_graph(**options: Any) -> cudnn.Graph:
    """Return a built graph of a @ b + bias; the product is virtual."""
    with cudnn.Graph(**GRAPH_TYPES, **options) as graph:
        product = graph.matmul(A, B=B, name="mm")
        graph.add(a=product, b=BIAS).set_output(True).set_name("y")
    return graph


@pytest.fixture(scope="module")
def graph(target_h100: None) -> cudnn.Graph:
    return build_linear_graph(inputs=["mm::0", "mm::B", "add.0::b"], outputs=["y"], workspace_alloc=False)


def test_ports_are_named_after_nodes_and_arguments(graph: cudnn.Graph) -> None:
    assert list(graph._ports_in) == ["mm::0", "mm::B", "add.0::a", "add.0::b"]
    assert list(graph._ports_out) == ["mm::C", "add.0::OUT_0"]
    assert repr(graph) == "<cudnn.Graph built: inputs ['mm::0', 'mm::B', 'add.0::b'], outputs ['add.0::OUT_0']>"
    assert "MATMUL" in str(graph)


def test_a_torch_tensor_used_twice_becomes_one_graph_tensor() -> None:
    square = make_half_tensor(2, 64, 64, requires_grad=True)
    with cudnn.Graph(**GRAPH_TYPES) as graph:
        graph.matmul(name="mm", A=square, B=square).set_output(True)
    assert graph._ports_in["mm::A"] is graph._ports_in["mm::B"]
    assert graph._ports_in["mm::A"].dim == [2, 64, 64]
    graph.set_io_tuples([square], ["mm::C"])


def test_the_order_of_tensors_may_use_ports_names_and_uids(graph: cudnn.Graph) -> None:
    a, b, bias = (graph._ports_in[port] for port in ("mm::0", "mm::B", "add.0::b"))
    y = graph._ports_out["add.0::OUT_0"]
    for which in (["mm::0", "mm::B", "add.0::b"], [A, B, BIAS], [a, b, bias], [a.uid, b.uid, bias.uid]):
        for output in ("add.0::OUT_0", "y", y):
            graph.set_io_tuples(which, [output])
            assert graph._order == ([a, b, bias], [y])


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["mm::Z", "mm::B", "add.0::b"], ["y"], r"input 0 \('mm::Z'\) not found among the inputs"),
        (["mm::0", "mm::B"], ["y"], "the tensors add.0::b are in memory, but specified neither as input nor as output"),
        (["mm::0", "mm::0", "add.0::b"], ["y"], "is a duplicate: it is named twice"),
        (["mm::0", "mm::B", "add.0::b"], ["y", "mm::C"], r"output 1 \('mm::C'\) is a virtual tensor"),
        ([make_half_tensor(2, 64, 128), "mm::B", "add.0::b"], ["y"], r"input 0 .* not found"),
        ("mm::0", ["y"], "inputs is a str"),
    ],
)
def test_invalid_orders_of_tensors_are_refused(graph: cudnn.Graph, inputs: Any, outputs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        graph.set_io_tuples(inputs, outputs)


def test_explicit_tensors_may_be_named_as_inputs() -> None:
    with cudnn.Graph(**GRAPH_TYPES, inputs=["X", "W"], outputs=["Y"]) as graph:
        x = graph.tensor(name="X", dim=(1, 64, 128), stride=(8192, 128, 1))
        w = graph.tensor(name="W", dim=(1, 128, 32), stride=(4096, 32, 1))
        graph.matmul(name="mm", A=x, B=w).set_output(True).set_name("Y")
    assert graph._order is not None
    assert graph._order[0] == [x, w]


def test_ports_of_listed_tensors_are_named_after_their_positions() -> None:
    graph = cudnn.Graph(**GRAPH_TYPES).__enter__()
    listed = graph._convert_argument("node::inputs", [A, B])
    assert [item.dim for item in listed] == [[2, 64, 128], [2, 128, 32]]
    assert graph._convert_argument("node::dropout", (0.5, A)) == (0.5, listed[0])
    assert graph._convert_argument("node::padding", [1, 1]) == [1, 1]
    assert list(graph._ports_in) == ["node::inputs::0", "node::inputs::1", "node::dropout::1"]


def test_a_convolution_accepts_tensors_by_position_and_by_name() -> None:
    with cudnn.Graph(**GRAPH_TYPES) as graph:
        image, weight = (make_half_tensor(n, 3, 3, 64).permute(0, 3, 1, 2) for n in (8, 32))
        graph.conv_fprop(image, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1]).set_output(True)
    assert {port: item.dim for port, item in graph._ports_in.items()} == {
        "conv_fprop.0::0": [8, 64, 3, 3],
        "conv_fprop.0::weight": [32, 64, 3, 3],
    }
    assert list(graph._ports_out) == ["conv_fprop.0::Y"]


def test_an_exception_in_the_with_block_leaves_no_graph() -> None:
    with pytest.raises(KeyError), cudnn.Graph(**GRAPH_TYPES) as graph:
        raise KeyError
    assert not hasattr(graph, "matmul")


def test_node_names_must_be_unique() -> None:
    graph = cudnn.Graph(**GRAPH_TYPES).__enter__()
    graph.matmul(name="mm", A=A, B=B)
    with pytest.raises(ValueError, match="node name 'mm' is used already"):
        graph.matmul(name="mm", A=A, B=B)


@pytest.mark.parametrize("name", ["validate", "execute", "build_plans", "get_execution_plan_count"])
def test_build_steps_of_a_wrapped_graph_are_not_callable(graph: cudnn.Graph, name: str) -> None:
    with pytest.raises(RuntimeError, match=f"Calling {name} via wrapper is not allowed"):
        getattr(graph, name)


def test_a_graph_cannot_be_entered_twice(graph: cudnn.Graph) -> None:
    with pytest.raises(RuntimeError, match="already built"):
        graph.__enter__()


def test_dict_keys_may_be_ports_tensors_names_and_uids(graph: cudnn.Graph) -> None:
    y, b = graph._ports_out["add.0::OUT_0"], graph._ports_in["mm::B"]
    for keys in (
        ("mm::0", "mm::B", "add.0::b", "add.0::OUT_0"),
        ("mm::0", b, "add.0::b", "y"),
        ("mm::0", b.uid, "add.0::b", y),
    ):
        values = (A, B, BIAS, make_half_tensor(2, 64, 32))
        pack = graph._make_variant_pack(dict(zip(keys, values, strict=True)))
        assert [pack[graph._ports_in[port]] for port in ("mm::0", "mm::B", "add.0::b")] == [A, B, BIAS]
        assert pack[y] is values[3]


def test_a_dict_without_an_input_is_refused(graph: cudnn.Graph) -> None:
    with pytest.raises(RuntimeError, match=r"the dict has no tensors for the inputs mm::B, add\.0::b"):
        graph._make_variant_pack({"mm::0": A})
    with pytest.raises(RuntimeError, match=r"tensor 'mm::0' is a int, one with DLPack is needed"):
        graph._make_variant_pack({"mm::0": 1 << 40})


def test_a_call_needs_a_handle_a_workspace_and_an_order_of_tensors(
    monkeypatch: pytest.MonkeyPatch, graph: cudnn.Graph
) -> None:
    with pytest.raises(RuntimeError, match="Need to specify cudnn handle to execute graph"):
        graph(A, B, BIAS)
    with pytest.raises(
        RuntimeError, match=r"plan-without-device: .* the described target h100-sxm, on which plans cannot run"
    ):
        graph(A, B, BIAS, handle=cudnn.create_handle(), workspace=1)
    with pytest.raises(RuntimeError, match="Need to specify workspace to execute graph: no workspace was given"):
        graph(A, B, BIAS, handle=cudnn.create_handle())
    with pytest.raises(ValueError, match="2 tensors were given, but the graph has 3 inputs"):
        graph(A, B)
    monkeypatch.setattr(graph, "_order", None)
    with pytest.raises(ValueError, match="the order of inputs and outputs is not set"):
        graph(A, B, BIAS)


def test_the_default_handle_is_of_the_described_target(monkeypatch: pytest.MonkeyPatch, graph: cudnn.Graph) -> None:
    monkeypatch.setattr(graph, "_handle", "auto")
    with pytest.raises(RuntimeError, match="plan-without-device"):
        graph({"mm::0": A, "mm::B": B, "add.0::b": BIAS}, workspace=1)


def test_each_thread_has_a_default_handle_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that shared a handle would set the stream of each other's launches."""
    streams = threading.local()
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            current_device=lambda: 0, current_stream=lambda: SimpleNamespace(cuda_stream=streams.value)
        )
    )
    set_streams: list[tuple[Any, int]] = []
    monkeypatch.setattr(handles, "_default_target", None)
    monkeypatch.setattr(handles, "_require_gpu", lambda lib: None)
    monkeypatch.setattr(handles, "_new_handle", lambda lib: make_null_handle())
    monkeypatch.setattr(wrapper, "_import_torch", lambda purpose: torch)
    monkeypatch.setattr(wrapper, "set_stream", lambda handle, stream: set_streams.append((handle, stream)))
    monkeypatch.setattr(wrapper, "_default_handles", {})

    def get_handle_on_stream(stream: int) -> Any:
        streams.value = stream
        return wrapper.get_default_handle()

    mine = get_handle_on_stream(1)
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(get_handle_on_stream, 2).result()
        assert pool.submit(get_handle_on_stream, 2).result() is others is not mine
    assert get_handle_on_stream(1) is mine
    assert set_streams == [(mine, 1), (others, 2), (others, 2), (mine, 1)]
    mine.close()
    assert get_handle_on_stream(1) is not mine
    wrapper.destroy_default_handle()
    assert others.closed


def test_jit_builds_once_and_returns_uids() -> None:
    built = []

    @cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    @cudnn.graph_cache(key_fn=lambda handle, rows: rows)
    def build_matmul(handle: Any, rows: int) -> tuple[cudnn.pygraph, list[cudnn.tensor]]:
        with cudnn.graph(handle) as (graph, tensors):
            assert tensors == []
            a = graph.tensor(name="a", dim=(1, rows, 64), stride=(rows * 64, 64, 1), uid=7)
            b = graph.tensor(name="b", dim=(1, 64, 32), stride=(2048, 32, 1), uid=9)
            c = graph.matmul(A=a, B=b).set_output(True)
        built.append(rows)
        return graph, [a, b, c]

    handle = cudnn.create_handle()
    graph, uids = build_matmul(handle, 64)
    assert uids[:2] == [7, 9]
    assert uids[2] not in (0, 7, 9)
    plans = graph.get_execution_plan_count()
    assert plans > 0
    again, same = build_matmul(handle, 64)
    assert again is graph
    assert (same, again.get_execution_plan_count(), built) == (uids, plans, [64])


def test_jit_accepts_a_single_heuristics_mode() -> None:
    @cudnn.jit(heur_modes=cudnn.heur_mode.FALLBACK)
    def build_matmul(handle: Any) -> Any:
        with cudnn.graph(handle) as (graph, _):
            a = graph.tensor_like(make_half_tensor(1, 64, 64))
            graph.matmul(A=a, B=a).set_output(True)
        return graph, [a]

    graph, uids = build_matmul(cudnn.create_handle())
    assert graph.get_workspace_size() >= 0
    assert len(uids) == 1


def test_public_attributes_of_a_wrapped_graph_are_accessible(graph: cudnn.Graph) -> None:
    assert [node.name for node in graph.nodes] == ["mm", "add.0"]
    assert graph.inspect()["nodes"][0]["name"] == "mm"
    assert graph.find_tensor("y") is graph.tensors["y"]
