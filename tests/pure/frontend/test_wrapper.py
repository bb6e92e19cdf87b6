"""Tests of ``Graph`` before any library is loaded, and of the helpers of ``jit``."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import frontend as cudnn
from cudnn_backend_py.frontend import wrapper
from cudnn_backend_py.frontend.enums import TORCH_NAMES, to_data_type
from cudnn_backend_py.frontend.tensors import tensor


@pytest.mark.parametrize("argument", ["inputs", "outputs", "heuristics"])
def test_a_text_instead_of_a_list_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} is a str, a list or tuple is needed"):
        cudnn.Graph(**{argument: "conv::image"})


def test_a_single_heuristic_mode_instead_of_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match="heuristics is a heur_mode, a list or tuple is needed"):
        cudnn.Graph(heuristics=cudnn.heur_mode.A)


def test_a_data_type_given_as_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"is neither a cudnn\.data_type nor a torch dtype"):
        cudnn.Graph(io_data_type="half")


def test_a_graph_has_no_operations_outside_its_with_block() -> None:
    graph = cudnn.Graph()
    assert not hasattr(graph, "matmul")
    with pytest.raises(RuntimeError, match="not built yet: call it after its with block"):
        graph()
    assert repr(graph) == str(graph) == "<cudnn.Graph empty: inputs [], outputs []>"


def test_arrays_of_a_graph_are_compared_by_identity_and_not_kept_alive() -> None:
    sources = wrapper._FrameworkTensors()
    first, second = np.zeros(2), np.zeros(2)
    made = sources.add_tensor(first, tensor(name="first"))
    assert sources.find_tensor(first) is made
    assert sources.find_tensor(second) is None
    sources._known[id(second)] = sources._known[id(first)]  # as if `first` were freed and `second` had its address
    assert sources.find_tensor(second) is None
    del first
    assert [get_source_if_alive() for get_source_if_alive, _ in sources._known.values()] == [None, None]


def test_the_tensor_of_an_object_without_weak_reference_support_is_stored() -> None:
    sources = wrapper._FrameworkTensors()
    number = 10**9
    made = sources.add_tensor(number, tensor())
    assert sources.find_tensor(number) is made


@pytest.mark.parametrize(("kind", "name"), TORCH_NAMES.items())
def test_names_of_torch_dtypes_are_converted_to_cudnn_types(kind: cudnn.data_type, name: str) -> None:
    assert to_data_type(f"torch.{name}") is kind


@pytest.mark.parametrize("use", [wrapper.get_default_handle, lambda: wrapper._allocate_output(tensor([1], [1]))])
def test_functions_that_need_torch_raise_an_error_without_it(monkeypatch: pytest.MonkeyPatch, use: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match="torch cannot be imported, and") as caught:
        use()
    assert caught.value.code == "frontend-torch-missing"  # type: ignore[attr-defined]


# jit


def test_graph_cache_keeps_results_by_key_and_drops_the_oldest() -> None:
    made: list[int] = []

    @cudnn.graph_cache(key_fn=lambda handle, size: size, maxsize=2)
    def build_graph(handle: Any, size: int) -> list[int]:
        """Build a graph."""
        made.append(size)
        return [size]

    assert build_graph("one", 1) is build_graph("two", size=1)
    build_graph("one", 2)
    build_graph("one", 1)
    assert made == [1, 2]
    build_graph("one", 3)  # 1 was the oldest
    build_graph("one", 2)
    assert made == [1, 2, 3]
    build_graph("one", 1)
    assert made == [1, 2, 3, 1]
    assert (build_graph.__name__, build_graph.__doc__) == ("build_graph", "Build a graph.")


def test_graph_cache_returns_a_result_that_another_call_drops_meanwhile() -> None:
    class ReentrantKey(int):
        seen = 0

        def __hash__(self) -> int:
            self.seen += 1
            if self.seen == 3:  # as another thread may run between any two lookups in the cache
                build_graph(2)
            return int(self)

    @cudnn.graph_cache(key_fn=lambda size: size, maxsize=1)
    def build_graph(size: int) -> list[int]:
        return [size]

    assert build_graph(ReentrantKey(1)) == [1]
