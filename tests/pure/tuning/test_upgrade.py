"""An upgrade comparison does not compare the results of graphs with very large tensors; they are only timed."""

from __future__ import annotations

import pytest

from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.tuning.upgrade import _MAX_COMPARED_ELEMENTS, _compute_largest_tensor_size


@pytest.mark.parametrize("implementation", ["composite", "unified"])
def test_largest_tensor_size_of_attention_counts_the_scores(implementation: str) -> None:
    graph = sdpa_forward(batch=2, heads=3, seq_q=512, head_dim=64, implementation=implementation, version=(9, 28, 0))  # type: ignore[arg-type]
    assert _compute_largest_tensor_size(graph) == 2 * 3 * 512 * 512


def test_upgrade_compares_results_of_512_but_not_of_8192_tokens() -> None:
    assert (
        _compute_largest_tensor_size(sdpa_backward(batch=2, heads=16, seq_q=8192, head_dim=128))
        > _MAX_COMPARED_ELEMENTS
    )
    assert (
        _compute_largest_tensor_size(sdpa_backward(batch=2, heads=16, seq_q=512, head_dim=128))
        <= _MAX_COMPARED_ELEMENTS
    )
