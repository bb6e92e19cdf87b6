"""The time budget of an audit: samples stay within their share of the program's time."""

from __future__ import annotations

import random

import pytest

from cudnn_backend_py.audit import budget
from cudnn_backend_py.audit.budget import UNKNOWN_S, Budget


@pytest.fixture(autouse=True)
def _reset_known_sample_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_kinds", {})


class SimulatedProgram:
    """A simulated program with its own clock, on which an audit takes samples."""

    def __init__(self, share: float) -> None:
        self.now = 100.0
        self.budget = Budget(share, lambda: self.now)
        self.budget.start()

    def take_sample(self, seconds: float) -> bool:
        """Take a sample if the budget allows it, and return whether it was taken."""
        if self.budget.elapsed_s < self.budget.find_elapsed_s_when_samples_are_affordable("a"):
            return False
        account = self.budget.start_sample("a")
        account.add_seconds(seconds / 4)
        account.add_seconds(3 * seconds / 4, on_gpu=True)
        self.now += seconds
        return True


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_audit_samples_stay_within_their_share_of_the_time(share: float) -> None:
    program, rng = SimulatedProgram(share), random.Random(3)
    taken = 0
    for _ in range(20_000):
        program.now += 0.01
        taken += program.take_sample(0.004 if rng.random() < 0.8 else 0.02)
        spent = program.budget.host_s + program.budget.gpu_s
        assert spent <= share * program.budget.elapsed_s + 0.02
    assert program.budget.gpu_s == pytest.approx(3 * program.budget.host_s)
    assert spent >= 0.9 * share * program.budget.elapsed_s
    assert taken > 1


@pytest.mark.parametrize("counting", [0.0, 0.004, 0.02])
def test_time_spent_counting_calls_is_charged_to_audit_budget(counting: float) -> None:
    """Counting calls uses the audit's share of the time; samples get the rest, but at least a quarter of the share."""
    share = 0.01
    program = SimulatedProgram(share)
    for _ in range(20_000):
        program.now += 0.01
        program.budget.add_call_counting_seconds(0.01 * counting)
        program.take_sample(0.004)
    budget = program.budget
    spent = budget.host_s + budget.gpu_s
    left = max(share - counting, share / 4)
    assert 0.9 * left * budget.elapsed_s <= spent <= left * budget.elapsed_s + 0.02


def test_first_sample_of_each_call_kind_is_charged_as_setup_once() -> None:
    program = SimulatedProgram(0.1)
    assert not program.take_sample(0.5)
    program.now += 2 * UNKNOWN_S / 0.1
    assert program.take_sample(0.5)
    assert (program.budget.setup_s, program.budget.host_s, program.budget.gpu_s) == (0.5, 0.0, 0.0)
    assert program.take_sample(0.2)
    assert program.budget.find_elapsed_s_when_samples_are_affordable("a") == pytest.approx(
        4.0
    )  # 0.2 s were taken, and the next is expected to take as much
    other = SimulatedProgram(0.1)
    other.budget.start_sample("a").add_seconds(0.4)
    assert other.budget.setup_s == 0.0
    assert other.budget.find_elapsed_s_when_samples_are_affordable("a") == pytest.approx(7.0)
    assert other.budget.find_elapsed_s_when_samples_are_affordable("b") == pytest.approx((0.4 + UNKNOWN_S) / 0.1)


def test_paused_time_adds_no_audit_budget() -> None:
    program = SimulatedProgram(0.1)
    program.now += 3.0
    program.budget.pause()
    program.now += 100.0
    assert program.budget.elapsed_s == 3.0
    program.budget.start()
    program.now += 1.0
    assert program.budget.elapsed_s == 4.0
