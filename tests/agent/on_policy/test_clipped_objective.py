"""Losses of PPO, clipped and with a KL penalty, and the penalty's controllers, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from finflow.agent.on_policy.on_policy_losses import (
    DoublingKL,
    ProportionalKL,
    clipped_policy_loss,
    penalised_policy_loss,
    surrogate_loss,
)


@pytest.mark.parametrize("advantage", [0.5, 1.0, 2.0])
def test_gains_end_at_the_limit_and_losses_do_not(advantage: float) -> None:
    def objective(ratio: float, of: float) -> float:
        return -float(clipped_policy_loss(torch.tensor([ratio]), torch.tensor([of]), 0.2))

    assert objective(1.5, advantage) == pytest.approx(1.2 * advantage)
    assert objective(0.5, advantage) == pytest.approx(0.5 * advantage)
    assert objective(0.5, -advantage) == pytest.approx(-0.8 * advantage)
    assert objective(1.5, -advantage) == pytest.approx(-1.5 * advantage)


def test_penalised_loss_charges_beta_times_the_divergence() -> None:
    ratio, advantages, divergence = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0]), torch.tensor([0.1, 0.3])
    assert float(penalised_policy_loss(ratio, advantages, divergence, 0.5)) == pytest.approx(-0.5 + 0.1)
    assert float(surrogate_loss(ratio, advantages)) == pytest.approx(-0.5)


@given(st.lists(st.floats(1e-6, 1.0), max_size=20))
def test_doubling_rule_counts_powers_of_two(divergences: list[float]) -> None:
    controller = DoublingKL(0.01, target=0.01)
    for one in divergences:
        controller.update(one)
    ups = sum(one > 0.015 for one in divergences)
    downs = sum(one < 0.01 / 1.5 for one in divergences)
    assert controller.beta == pytest.approx(0.01 * 2.0 ** (ups - downs))


@given(st.floats(0.0, 100.0), st.integers(1, 9999))
def test_proportional_controller_is_that_of_ziegler(divergence: float, decisions: int) -> None:
    controller = ProportionalKL(0.2, target=6.0, horizon=10_000)
    error = max(-0.2, min(0.2, divergence / 6.0 - 1.0))
    assert controller.update(divergence, decisions) == pytest.approx(0.2 * (1.0 + error * decisions / 10_000))


def test_betas_survive_a_divergence_that_is_no_number() -> None:
    assert DoublingKL(0.1, target=0.01).update(math.nan) == 0.1
    assert ProportionalKL(0.1, target=6.0).update(math.nan, 64) == 0.1
