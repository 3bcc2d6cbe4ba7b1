"""Each loss against its formula, written out independently."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from finflow.agent.losses import critic_losses, offline_losses, quantiles


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_expectile_loss_and_its_slope_are_the_closed_form(expectile: float) -> None:
    target, value = normal(40), normal(40, seed=1).requires_grad_()
    loss = offline_losses.expectile_loss(target, value, expectile)
    (slope,) = torch.autograd.grad(loss, value)
    expected_loss, expected_slope = 0.0, []
    for aim, guess in zip(target.tolist(), value.tolist(), strict=True):
        weight = expectile if aim > guess else 1.0 - expectile
        expected_loss += weight * (aim - guess) ** 2 / 40
        expected_slope.append(-2.0 * weight * (aim - guess) / 40)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), expected_slope, rtol=1e-12)


def test_advantage_weights_are_clipped_at_a_hundred() -> None:
    weights = offline_losses.advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 50.0]), 3.0)
    np.testing.assert_allclose(weights.numpy(), [math.exp(-3), 1.0, math.exp(3), 100.0], rtol=1e-6)


def test_bellman_target_bootstraps_at_truncation_but_not_at_termination() -> None:
    rewards, values = torch.tensor([1.0, 1.0]), torch.tensor([10.0, 10.0])
    target = critic_losses.bellman_target(rewards, torch.tensor([0.0, 1.0]), values, 0.9)
    assert target.tolist() == pytest.approx([10.0, 1.0])


def test_truncation_is_switched_on_gradually_and_only_lowers_values() -> None:
    mean, spread = normal(2, 6), normal(2, 6, 8, seed=1)
    spread = spread - spread.mean(dim=-1, keepdim=True)
    off, half, on = (quantiles.pessimistic_value(mean, spread, 2, share) for share in (0.0, 0.5, 1.0))
    assert torch.equal(off, mean.min(dim=0).values)
    assert (on < half).all()
    assert (half < off).all()
    kept = np.sort(spread.numpy(), axis=-1)[..., :6].mean(axis=-1)
    np.testing.assert_allclose(on.numpy(), (mean.numpy() + kept).min(axis=0), rtol=1e-12)


def test_several_choices_of_a_state_are_valued_by_one_critic() -> None:
    """By that which values them least on average: what the critics disagree about is charged to no single choice."""
    mean = torch.tensor([[1.0, 5.0, 2.0, 2.0], [3.0, 1.0, 4.0, 1.0]])  # two critics; two states of two choices
    spread = torch.zeros(2, 4, 6)
    assert quantiles.pessimistic_value(mean, spread, 0, 0.0, choices=2).tolist() == [3.0, 1.0, 2.0, 2.0]
    assert quantiles.pessimistic_value(mean, spread, 0, 0.0).tolist() == [1.0, 1.0, 2.0, 1.0]
    wide = torch.stack([torch.zeros(4, 6), torch.linspace(-9.0, 9.0, 6).expand(4, 6)])
    cut = quantiles.truncated_spread(wide, 2)  # a critic without spread, and one whose cut makes it the least of both
    assert torch.equal(quantiles.pessimistic_value(mean, wide, 2, 1.0, choices=2), mean[1] + cut[1])


@pytest.mark.parametrize("dimensions", [1, 4])
def test_conservative_loss_equals_its_formula(dimensions: int) -> None:
    proposals, log_density, data = normal(2, 5, 6), normal(5, 6, seed=1), normal(2, 5, seed=2)
    drawn = torch.tensor([False, False, True, True, True, True])
    calibration = normal(5, seed=3)
    found = critic_losses.conservative_loss(proposals, log_density, data, drawn, calibration, dimensions).item()
    expected = 0.0
    for critic in range(2):
        for state in range(5):
            terms = []
            for p in range(6):
                value = proposals[critic, state, p].item()
                if drawn[p]:
                    value = max(value, calibration[state].item())
                terms.append(math.exp(dimensions * value - log_density[state, p].item()))
            expected += (math.log(sum(terms) / 6) / dimensions - data[critic, state].item()) / 5
    assert found == pytest.approx(expected, rel=1e-12)
