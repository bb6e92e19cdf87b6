"""Hostile values at the entry points for graphs must be refused with our errors before they are copied or printed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, GraphError, PointwiseMode, UsageError, attention, interpret
from cudnn_backend_py.diagnose import explain, matrix, since, whatif
from cudnn_backend_py.generated.enums import ResampleMode
from cudnn_backend_py.graph import Tensor, graph_to_json
from cudnn_backend_py.versions.store import find_installed

ENDLESS: list[Callable[[], Any]] = [lambda: range(10**12), lambda: itertools.repeat(1), lambda: np.ones(10**7, np.int8)]
BEYOND = 10**5000  # Python does not even print it


def ones() -> GraphBuilder:
    return GraphBuilder("ones")


DOORS: dict[str, Callable[[Any], object]] = {
    "dims": lambda given: ones().tensor("x", given),
    "strides": lambda given: ones().tensor("x", (4, 8), strides=given),
    "reshape": lambda given: (g := ones()).reshape(g.tensor("x", (4, 8)), given),
    "transpose": lambda given: (g := ones()).transpose(g.tensor("x", (4, 8)), given),
    "slice": lambda given: (g := ones()).slice(g.tensor("x", (4, 8)), given),
    "padding": lambda given: (g := ones()).convolution(
        g.tensor("x", (2, 8, 9, 9)), g.tensor("w", (8, 8, 3, 3)), padding=given
    ),
    "result": lambda given: (g := ones()).pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (4, 8)), dims=given),
}


@pytest.mark.parametrize("entry_point", DOORS)
@pytest.mark.parametrize(
    "given", [*ENDLESS, lambda: "48", lambda: b"48", lambda: {4, 8}, lambda: {4: 8}, lambda: BEYOND]
)
def test_sizes_that_are_no_sequence_are_refused_unread(entry_point: str, given: Callable[[], Any]) -> None:
    with pytest.raises(GraphError) as error:
        DOORS[entry_point](given())
    assert len(error.value.render()) < 2000


@pytest.mark.parametrize("field", ["uid", "alignment", "dims", "strides", "vector_count"])
def test_numbers_out_of_bounds_are_refused(field: str) -> None:
    given: dict[str, Any] = {"name": "x", "uid": 1, "dims": (4, 8), "strides": (8, 1), "data_type": DataType.HALF}
    given[field] = (BEYOND, 1) if isinstance(given.get(field), tuple) else BEYOND
    for value in (given[field], [4] * 10**6):
        with pytest.raises(GraphError) as error:
            Tensor(**{**given, field: value})
        assert len(error.value.render()) < 2000


def forward(**options: Any) -> Graph:
    return attention.sdpa_forward(**{"batch": 1, "heads": 2, "seq_q": 64, "head_dim": 64} | options)


@pytest.mark.parametrize("option", ["left_bound", "right_bound", "page_size", "pages_k", "max_total_seq_q"])
@pytest.mark.parametrize("value", ["16", 1.5, float("nan"), True, pytest.param(BEYOND, id="beyond"), (16,), np.ones(3)])
def test_options_of_attention_that_count_are_integers(option: str, value: Any) -> None:
    with pytest.raises(GraphError, match=f"attention-option: {option} is .*, an int of 64 bits is needed"):
        forward(padding=True, ragged=True, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("causal", "false", "a bool"),
        ("padding", 2, "a bool"),
        ("dropout", "0.1", "a number"),
        ("dropout", (0.1,), "a number"),
        ("dropout", np.ones(2), "a number"),
        ("scale", b"48", "a number"),
        ("scale", float("nan"), "a number"),
        pytest.param("scale", BEYOND, "a number", id="beyond"),
        ("bias", 4, "a tuple of int"),
        ("bias", ("1", "1", "1", "1"), "a tuple of int"),
        ("layout", (1, 2, 3, 4), "a mapping"),
        ("layout", None, "a mapping"),
        ("layout", {4: "bshd"}, "known are q, k, v, o"),
        ("data_type", "halves", "a DataType"),
        ("seed_type", 3, "a DataType"),
    ],
)
def test_options_of_attention_have_their_annotated_types(option: str, value: Any, needed: str) -> None:
    with pytest.raises(GraphError, match=needed) as error:
        forward(**{option: value})
    assert option in str(error.value)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("option", [{"causal": np.True_}, {"dropout": np.float32(0.1)}, {"bias": [1, 1, 64, 64]}])
def test_numbers_of_numpy_are_options_too(option: dict[str, Any]) -> None:
    assert forward(**option).ops


@pytest.mark.parametrize("window", ["3", ("3", "3"), True, (2, BEYOND)])
def test_windows_of_pools_are_numbers(window: Any) -> None:
    g = ones()
    x = g.tensor("x", (2, 8, 16, 16))
    with pytest.raises(GraphError):
        g.resample(ResampleMode.MAXPOOL, x, window=window)


@pytest.mark.parametrize(
    "entry_point",
    [
        explain,
        whatif,
        partial(since, target="h100"),
        partial(interpret, inputs={}),
        graph_to_json,
        lambda graph: matrix([graph], ["h100"]),
    ],
)
@pytest.mark.parametrize("given", ["graph.json", None, (1, 2)])
def test_arguments_that_are_no_graph_are_refused(entry_point: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(GraphError, match=r"not-a-graph: .* is no Graph"):
        entry_point(given)


@pytest.mark.parametrize("version", [9.2, 9, None, b"9.19"])
def test_versions_are_texts(version: Any) -> None:
    with pytest.raises(UsageError, match=r"cudnn-version-malformed: cuDNN version is a .*, a text is needed"):
        find_installed(version)
