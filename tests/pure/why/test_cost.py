"""Confidence interval of a median, and the verdict whether watching calls slows down a program too much."""

from __future__ import annotations

import random
import statistics

import pytest

from cudnn_backend_py.why.cost import (
    StepTime,
    find_median_and_confidence_interval,
    format_overhead,
    judge_overhead_of_paired_runs,
)


def test_median_interval_has_the_median_and_two_order_statistics() -> None:
    values = [float(number) for number in range(101)]
    random.Random(1).shuffle(values)
    low, middle, high = find_median_and_confidence_interval(values)
    assert (low, middle, high) == (40.0, 50.0, 60.0)  # 1.96 * sqrt(101) / 2 = 9.8 ranks to either side
    assert find_median_and_confidence_interval([3.0]) == (3.0, 3.0, 3.0)
    assert find_median_and_confidence_interval([1.0, 2.0, 3.0, 4.0]) == (1.0, 2.5, 4.0)


@pytest.mark.parametrize("draw", ["gauss", "expovariate"])
def test_median_interval_contains_the_true_median(draw: str) -> None:
    """The interval holds for any distribution of noise; the test draws from two."""
    rng = random.Random(7)
    held = 0
    for _ in range(400):
        found = [getattr(rng, draw)(*((0.0, 1.0) if draw == "gauss" else (1.0,))) for _ in range(60)]
        low, middle, high = find_median_and_confidence_interval(found)
        assert low <= middle <= high
        assert middle == statistics.median(found)
        held += low <= (0.0 if draw == "gauss" else 0.6931) <= high
    assert held >= 0.93 * 400


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.01] * 50, "passed"),
        ([0.08] * 50, "failed"),
        ([-0.1, 0.02, 0.12] * 5, "not shown"),
        ([0.01] * 40 + [3.0] * 10, "passed"),  # interrupted ones
        ([0.01, 3.0], "not shown"),
    ],
)
def test_overhead_verdict_follows_from_the_median_interval_of_step_time_pairs(
    shares: list[float], verdict: str
) -> None:
    plain = [StepTime(0.010 + number * 1e-5, 0.004) for number in range(len(shares))]  # a drift affects both
    other = [StepTime(one.clock * (1 + share), 0.005) for one, share in zip(plain, shares, strict=True)]
    found = judge_overhead_of_paired_runs(plain, other, 0.05)
    assert found["verdict"] == verdict
    assert found["pairs"] == len(shares)
    assert found["clock"]["share"] == pytest.approx(statistics.median(shares), abs=1e-5)
    assert (found["thread"]["share"], found["thread"]["more_us"]) == (0.25, [1000.0, 1000.0, 1000.0])
    assert format_overhead(found).endswith(f"{len(shares)} pairs; under 5%: {verdict}")
