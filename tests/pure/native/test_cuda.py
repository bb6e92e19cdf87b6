"""CUDA objects of the package with a fake driver: they free their resources when they are closed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.execution.cuda_graph import CudaGraph
from cudnn_backend_py.native import cuda
from cudnn_backend_py.native.cuda import CudaGraphHandle


class FakeDriver:
    """A fake CUDA driver: its functions record their name and first argument."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []

    def __getitem__(self, name: str) -> Callable[..., int]:
        def record_call(first: ctypes.c_void_p, *_others: object) -> int:
            self.calls.append((name, first.value))
            return 0

        return record_call

    __getattr__ = __getitem__


@pytest.fixture
def graph() -> CudaGraphHandle:
    made = object.__new__(CudaGraphHandle)
    made._cuda, made.graph, made.executable = FakeDriver(), ctypes.c_void_p(8), ctypes.c_void_p(16)
    return made


def test_the_launch_function_of_a_closed_cuda_graph_passes_a_null_handle(graph: CudaGraphHandle) -> None:
    launch = graph.bind_launch(0)
    launch()
    graph.close()
    graph.close()
    launch()
    destroyed = [("cuGraphExecDestroy", 16), ("cuGraphDestroy", 8)]
    assert graph._cuda.calls == [("cuGraphLaunch", 16), *destroyed, ("cuGraphLaunch", None)]


def test_methods_of_a_closed_cuda_graph_raise_an_error(graph: CudaGraphHandle) -> None:
    made = object.__new__(CudaGraph)
    made._graph, made._held, made._may_need_context_switch = graph, [], False
    made.close()
    for use in (made, made.launch, made.update, lambda: made.launch(7)):
        with pytest.raises(UsageError, match="cuda-graph-closed: this CUDA graph is closed"):
            use()
    assert graph._cuda.calls == [("cuGraphExecDestroy", 16), ("cuGraphDestroy", 8)]


def test_a_cuda_graph_that_fails_to_instantiate_again_is_destroyed_once(
    graph: CudaGraphHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_fake_driver_failing_to_instantiate(name: str, first: object, *_others: object) -> None:
        if name == "cuGraphInstantiateWithFlags":
            raise RuntimeError(name)
        graph._cuda[name](first)

    monkeypatch.setattr(cuda, "call_driver", call_fake_driver_failing_to_instantiate)
    monkeypatch.setattr(FakeDriver, "cuGraphExecUpdate_v2", lambda *_: 1, raising=False)
    with pytest.raises(RuntimeError, match="cuGraphInstantiateWithFlags"):
        graph.update()
    graph.close()
    assert graph._cuda.calls == [("cuGraphExecDestroy", 16), ("cuGraphDestroy", 8)]
