"""YaRN frequencies and angles of rotary embeddings, compared with the formula of the paper."""

from __future__ import annotations

import math

import pytest

from cudnn_backend_py.frontend.yarn import compute_yarn_freqs, compute_yarn_inv_freq, yarn_get_mscale

torch = pytest.importorskip("torch")


def compute_expected_frequency(pair: int, head_dim: int, factor: float, length: int, fast: float, slow: float) -> float:
    plain = 10000.0 ** (-2 * pair / head_dim)
    if factor <= 1:
        return plain

    def compute_pair_index_of_rotation_count(turns: float) -> float:
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(10000.0))

    first, last = (
        max(math.floor(compute_pair_index_of_rotation_count(fast)), 0),
        min(math.ceil(compute_pair_index_of_rotation_count(slow)), head_dim - 1),
    )
    share = min(max((pair - first) / (last - first), 0.0), 1.0)
    return plain / factor * share + plain * (1 - share)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0, 40.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_equal_the_formula_of_the_paper(head_dim: int, factor: float) -> None:
    found = compute_yarn_inv_freq(head_dim, scaling_factor=factor, device="cpu")
    want = [compute_expected_frequency(pair, head_dim, factor, 4096, 32, 1) for pair in range(head_dim // 2)]
    assert found.tolist() == pytest.approx(want, rel=1e-6)


def test_angles_have_the_layout_that_rope_needs() -> None:
    angles, scale = compute_yarn_freqs(300, 64, scaling_factor=40.0, device="cpu")
    per_position = compute_yarn_inv_freq(64, scaling_factor=40.0, device="cpu")
    assert (tuple(angles.shape), angles.dtype) == ((300, 1, 1, 64), torch.float32)
    assert not angles[..., 32:].any()
    assert torch.equal(angles[7, 0, 0, :32], 7 * per_position)
    assert scale == yarn_get_mscale(40.0) == pytest.approx(0.1 * math.log(40) + 1)
    assert compute_yarn_freqs(8, 64, scaling_factor=40.0, mscale_all_dim_factor=1.0, device="cpu")[1] == 1
    assert yarn_get_mscale(1.0) == yarn_get_mscale(0.5) == 1


def test_an_odd_head_dim_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim is 63"):
        compute_yarn_inv_freq(63, device="cpu")
