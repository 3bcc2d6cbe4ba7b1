"""Losses of PPO against their definitions, one decision at a time."""

from __future__ import annotations

import pytest
import torch

from finflow.agent.on_policy.clipped_objective import (
    approximate_kl,
    clip_fraction,
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


def test_clipped_decisions_have_no_gradient() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.1], requires_grad=True)
    clipped_policy_loss(ratio, torch.tensor([1.0, -1.0, 1.0]), 0.2).backward()  # type: ignore[no-untyped-call]
    assert ratio.grad is not None
    torch.testing.assert_close(ratio.grad, torch.tensor([0.0, 0.0, -1.0 / 3.0]))


def test_penalised_loss_charges_beta_times_the_divergence() -> None:
    ratio, advantages, divergence = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0]), torch.tensor([0.1, 0.3])
    assert float(penalised_policy_loss(ratio, advantages, divergence, 0.5)) == pytest.approx(-0.5 + 0.1)
    assert float(surrogate_loss(ratio, advantages)) == pytest.approx(-0.5)


def test_approximate_kl_and_clip_fraction() -> None:
    log_ratio = torch.tensor([0.0, 0.5])
    assert float(approximate_kl(log_ratio)) == pytest.approx((torch.tensor(0.5).exp() - 1.5).item() / 2)
    assert float(clip_fraction(log_ratio.exp(), 0.2)) == 0.5
