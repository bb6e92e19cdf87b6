"""The interval of a median, which the cost of a watch is told with."""

from __future__ import annotations

import random
import statistics

import pytest

from cudnn_backend_py.why.cost import median_interval


def test_it_is_the_median_and_two_of_the_values() -> None:
    values = [float(number) for number in range(101)]
    random.Random(1).shuffle(values)
    low, middle, high = median_interval(values)
    assert (low, middle, high) == (40.0, 50.0, 60.0)  # 1.96 * sqrt(101) / 2 = 9.8 ranks to either side
    assert median_interval([3.0]) == (3.0, 3.0, 3.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0]) == (1.0, 2.5, 4.0)


@pytest.mark.parametrize("draw", ["gauss", "expovariate"])
def test_the_true_median_lies_in_nearly_all_intervals(draw: str) -> None:
    """Whatever the shape of the noise, outliers of steps that were interrupted included."""
    rng = random.Random(7)
    held = 0
    for _ in range(400):
        found = [getattr(rng, draw)(*((0.0, 1.0) if draw == "gauss" else (1.0,))) for _ in range(60)]
        low, middle, high = median_interval(found)
        assert low <= middle <= high
        assert middle == statistics.median(found)
        held += low <= (0.0 if draw == "gauss" else 0.6931) <= high
    assert held >= 0.93 * 400
