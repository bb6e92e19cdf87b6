"""Inputs, tensors and assertions for tests of the NumPy interpreter and for comparisons with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import DataType, ResampleMode
from cudnn_backend_py.graph import Graph, GraphBuilder, Tensor, packed_strides
from cudnn_backend_py.graph.formats import round_to_data_type
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.run import Numbers

__all__ = [
    "Array",
    "assert_graph_error",
    "make_double_tensor",
    "make_random_array",
    "make_sequence_length_array",
    "make_typical_inputs",
]

Array = NDArray[Any]


def make_random_array(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *dims]).normal(size=dims)


def make_sequence_length_array(*values: int) -> Array:
    return np.array(values).reshape(-1, 1, 1, 1)


def assert_graph_error(code: str, match: str, call: Callable[[], object]) -> None:
    with pytest.raises(GraphError, match=match) as error:
        call()
    assert error.value.code == code


def make_double_tensor(
    name: str, dims: tuple[int, ...], strides: tuple[int, ...] | None = None, **options: Any
) -> Tensor:
    fields: dict[str, Any] = {"name": name, "uid": sum(name.encode()), "dims": dims, "data_type": DataType.DOUBLE}
    return Tensor(**{**fields, "strides": packed_strides(dims) if strides is None else strides, **options})


def make_typical_inputs(graph: Graph, seed: int = 0) -> dict[str | int, Numbers]:
    """Return random values for the input tensors of a typical graph."""
    random = np.random.default_rng(seed)
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    given: dict[str | int, Numbers] = {}
    for tensor in graph.variant_pack_tensors:
        if tensor.uid in written or tensor.value is not None:
            continue
        if tensor.name == "offsets":
            value: Numbers = np.sort(random.integers(0, 256, tensor.dims), axis=0)
            value[0] = 0
        elif tensor.name == "token_ks":
            value = np.arange(256).reshape(tensor.dims) % 2
        elif tensor.name == "token_index":
            value = np.arange(256).reshape(tensor.dims) // 2
        elif tensor.name == "idx":  # indices in a 3 x 3 window that are never padding
            value = random.choice([4, 5, 7, 8], tensor.dims)
        elif tensor.name == "rows":
            value = np.full(tensor.dims, 128)
        elif tensor.name == "columns":
            value = random.integers(64, 129, tensor.dims)
        elif tensor.data_type in (DataType.INT8, DataType.INT32, DataType.INT64):
            value = random.integers(0, 8, tensor.dims)
        elif tensor.name.startswith(("inv", "running_var", "sqsum", "scale")):
            value = random.uniform(0.5, 2.0, tensor.dims)
        else:
            value = random.normal(size=tensor.dims)
        given[tensor.name] = value
    if "x" in given and "y" in given:  # gradient of max pooling: y is the largest element
        given["x"] = round_to_data_type(given["x"], graph.tensor("x").data_type)
        given["y"] = interpret(_make_pool_graph(graph.tensor("x")), {"x": given["x"]})["y"]
    return given


def _make_pool_graph(x: Tensor) -> Graph:
    g = GraphBuilder("pool")
    g.resample(ResampleMode.MAXPOOL, g.tensor("x", x.dims), window=3, stride=2, padding=1, name="y", virtual=False)
    return g.graph()
