"""Huge, endless and mistyped arguments raise errors of this package before they are copied or printed."""

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

HUGE_AND_ENDLESS_VALUES: list[Callable[[], Any]] = [
    lambda: range(10**12),
    lambda: itertools.repeat(1),
    lambda: np.ones(10**7, np.int8),
]
TOO_LARGE_NUMBER = 10**5000  # Python does not even print it


def make_builder() -> GraphBuilder:
    return GraphBuilder("ones")


BUILDER_CALLS: dict[str, Callable[[Any], object]] = {
    "dims": lambda given: make_builder().tensor("x", given),
    "strides": lambda given: make_builder().tensor("x", (4, 8), strides=given),
    "reshape": lambda given: (g := make_builder()).reshape(g.tensor("x", (4, 8)), given),
    "transpose": lambda given: (g := make_builder()).transpose(g.tensor("x", (4, 8)), given),
    "slice": lambda given: (g := make_builder()).slice(g.tensor("x", (4, 8)), given),
    "padding": lambda given: (g := make_builder()).convolution(
        g.tensor("x", (2, 8, 9, 9)), g.tensor("w", (8, 8, 3, 3)), padding=given
    ),
    "result": lambda given: (g := make_builder()).pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (4, 8)), dims=given),
}


@pytest.mark.parametrize("entry_point", BUILDER_CALLS)
@pytest.mark.parametrize(
    "given",
    [*HUGE_AND_ENDLESS_VALUES, lambda: "48", lambda: b"48", lambda: {4, 8}, lambda: {4: 8}, lambda: TOO_LARGE_NUMBER],
)
def test_sizes_that_are_not_sequences_are_refused_without_reading_them(
    entry_point: str, given: Callable[[], Any]
) -> None:
    with pytest.raises(GraphError) as error:
        BUILDER_CALLS[entry_point](given())
    assert len(error.value.render()) < 2000


@pytest.mark.parametrize("field", ["uid", "alignment", "dims", "strides", "vector_count"])
def test_tensor_fields_beyond_64_bits_are_refused(field: str) -> None:
    given: dict[str, Any] = {"name": "x", "uid": 1, "dims": (4, 8), "strides": (8, 1), "data_type": DataType.HALF}
    given[field] = (TOO_LARGE_NUMBER, 1) if isinstance(given.get(field), tuple) else TOO_LARGE_NUMBER
    for value in (given[field], [4] * 10**6):
        with pytest.raises(GraphError) as error:
            Tensor(**{**given, field: value})
        assert len(error.value.render()) < 2000


def build_sdpa_forward(**options: Any) -> Graph:
    return attention.sdpa_forward(**{"batch": 1, "heads": 2, "seq_q": 64, "head_dim": 64} | options)


@pytest.mark.parametrize("option", ["left_bound", "right_bound", "page_size", "pages_k", "max_total_seq_q"])
@pytest.mark.parametrize(
    "value", ["16", 1.5, float("nan"), True, pytest.param(TOO_LARGE_NUMBER, id="beyond"), (16,), np.ones(3)]
)
def test_integer_options_of_attention_need_int64_values(option: str, value: Any) -> None:
    with pytest.raises(GraphError, match=f"attention-option: {option} is .*, an int of 64 bits is needed"):
        build_sdpa_forward(padding=True, ragged=True, **{option: value})


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
        pytest.param("scale", TOO_LARGE_NUMBER, "a number", id="beyond"),
        ("bias", 4, "a tuple of int"),
        ("bias", ("1", "1", "1", "1"), "a tuple of int"),
        ("layout", (1, 2, 3, 4), "a mapping"),
        ("layout", None, "a mapping"),
        ("layout", {4: "bshd"}, "known are q, k, v, o"),
        ("data_type", "halves", "a DataType"),
        ("seed_type", 3, "a DataType"),
    ],
)
def test_options_of_attention_refuse_values_of_other_types(option: str, value: Any, needed: str) -> None:
    with pytest.raises(GraphError, match=needed) as error:
        build_sdpa_forward(**{option: value})
    assert option in str(error.value)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("option", [{"causal": np.True_}, {"dropout": np.float32(0.1)}, {"bias": [1, 1, 64, 64]}])
def test_options_of_attention_accept_numpy_scalars(option: dict[str, Any]) -> None:
    assert build_sdpa_forward(**option).ops


@pytest.mark.parametrize("window", ["3", ("3", "3"), True, (2, TOO_LARGE_NUMBER)])
def test_pooling_windows_that_are_not_numbers_are_refused(window: Any) -> None:
    g = make_builder()
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
def test_arguments_that_are_not_graphs_are_refused(entry_point: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(GraphError, match=r"not-a-graph: .* is not a Graph"):
        entry_point(given)


@pytest.mark.parametrize("version", [9.2, 9, None, b"9.19"])
def test_versions_that_are_not_text_are_refused(version: Any) -> None:
    with pytest.raises(UsageError, match=r"cudnn-version-malformed: cuDNN version must be a str, got a .*"):
        find_installed(version)
