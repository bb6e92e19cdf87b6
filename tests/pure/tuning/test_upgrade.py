"""An upgrade comparison only times graphs that are too large to compare their results."""

from __future__ import annotations

import pytest

from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.tuning.upgrade import _MAX_COMPARED_ELEMENTS, _compute_largest_tensor_size


@pytest.mark.parametrize("implementation", ["composite", "unified"])
def test_attention_scores_count_as_the_largest_tensor(implementation: str) -> None:
    graph = sdpa_forward(batch=2, heads=3, seq_q=512, head_dim=64, implementation=implementation, version=(9, 28, 0))  # type: ignore[arg-type]
    assert _compute_largest_tensor_size(graph) == 2 * 3 * 512 * 512


def test_attention_results_are_compared_at_512_not_8192_tokens() -> None:
    assert (
        _compute_largest_tensor_size(sdpa_backward(batch=2, heads=16, seq_q=8192, head_dim=128))
        > _MAX_COMPARED_ELEMENTS
    )
    assert (
        _compute_largest_tensor_size(sdpa_backward(batch=2, heads=16, seq_q=512, head_dim=128))
        <= _MAX_COMPARED_ELEMENTS
    )
