"""Attention problems read from graphs of other programs: invalid fields are kept, and missing sizes inferred."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cudnn_backend_py import DataType, GraphError, attention
from cudnn_backend_py.graph.attention.problem import Attention, UncheckedAttention
from cudnn_backend_py.graph.attention.recognize import read_attention

SIZES: dict[str, Any] = {"batch": 2, "heads": 3, "seq_q": 64, "head_dim": 32}


@pytest.mark.parametrize(
    "options",
    [{"kv_heads": 2}, {"left_bound": 0}, {"dropout": 1.0}, {"dbias": True}, {"page_size": 24}, {"mx": True}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_an_invalid_attention_problem_are_kept(options: dict[str, Any]) -> None:
    with pytest.raises(GraphError):
        Attention(**SIZES, **options)
    problem = UncheckedAttention(**SIZES, **options)
    assert {name: getattr(problem, name) for name in options} == options


def test_unchecked_and_checked_problems_infer_equal_sizes() -> None:
    data_type = DataType.BFLOAT16
    unchecked, checked = (kind(**SIZES, data_type=data_type) for kind in (UncheckedAttention, Attention))
    assert dataclasses.asdict(unchecked) == dataclasses.asdict(checked)
    assert (unchecked.seq_kv, unchecked.v_heads, unchecked.output_type) == (64, 3, data_type)


def test_an_unchecked_ragged_problem_does_not_imply_padding() -> None:
    """A ragged graph of another program may have no lengths, and some known issues of cuDNN depend on that."""
    assert Attention(**SIZES, ragged=True).padding
    assert not UncheckedAttention(**SIZES, ragged=True).padding


@pytest.mark.parametrize("implementation", ["composite", "unified"])
def test_reading_a_graph_gives_the_unchecked_problem(implementation: Any) -> None:
    graph = attention.sdpa_forward(**SIZES, implementation=implementation, version=(9, 21, 0))
    use = read_attention(graph)
    assert use is not None
    assert type(use.problem) is UncheckedAttention
    assert (use.problem.batch, use.problem.heads, use.problem.seq_kv) == (2, 3, 64)
