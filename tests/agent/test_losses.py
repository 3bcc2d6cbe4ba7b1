"""Each loss of critics and of offline methods against its formula, written out independently."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from finflow.agent.losses.critic_losses import (
    CriticTarget,
    advantage_scale,
    advantages,
    bellman_target,
    calibration,
    choice_loss,
    conservative_loss,
    discounted_return,
)
from finflow.agent.losses.offline_losses import advantage_weights, ddpg_bc_loss, expectile_loss
from finflow.agent.losses.quantiles import pinball_loss
from finflow.agent.networks.critic import Valuation
from tests.agent.helpers import generator

DOUBLE = torch.float64


def test_the_return_of_decisions_is_their_discounted_sum() -> None:
    rewards = torch.tensor([[1.0, -2.0], [0.5, 4.0], [3.0, 0.0]])
    expected = torch.tensor([1.0 + 0.9 * 0.5 + 0.81 * 3.0, -2.0 + 0.9 * 4.0])
    torch.testing.assert_close(discounted_return(rewards, 0.9), expected)


def test_what_all_actions_share_is_no_advantage() -> None:
    """A day's luck, common to the actions of a state, changes neither advantages nor their scale."""
    returns = torch.randn(50, 4, generator=generator(), dtype=DOUBLE)
    luck = 100.0 * torch.randn(50, 1, generator=generator(1), dtype=DOUBLE)
    # luck of a hundred leaves fourteen of the sixteen digits
    torch.testing.assert_close(advantages(returns + luck), advantages(returns), rtol=0.0, atol=1e-12)
    expected = (returns - returns.mean(dim=1, keepdim=True)).square().mean().sqrt()
    assert advantage_scale(returns + luck).item() == pytest.approx(expected.item(), rel=1e-12)


def test_calibration_is_one_where_advantages_are_as_predicted_and_shrinks_with_exaggeration() -> None:
    predicted = torch.randn(4000, 6, generator=generator(2))
    noise = torch.randn(4000, 6, generator=generator(3))
    slope, correlation = calibration(predicted, predicted + 3.0 * noise)
    assert slope.item() == pytest.approx(1.0, abs=0.1)  # error of a slope: 3 / sqrt(20 000) = .02
    assert correlation.item() == pytest.approx(1.0 / math.sqrt(10.0), abs=0.03)  # its error: .006
    assert calibration(10.0 * predicted, predicted)[0].item() == pytest.approx(0.1, rel=1e-5)  # float32
    assert calibration(-predicted, predicted)[1].item() == pytest.approx(-1.0, rel=1e-5)


def test_what_actions_share_is_weighed_in_rewards_and_differences_in_sigma_a() -> None:
    """Errors (3, 1) of one state: 2 is shared, plus and minus 1 are of the moves; two critics, one of them exact."""
    returns = torch.tensor([[1.0, 5.0]])
    mean = torch.stack([returns, returns + torch.tensor([[3.0, 1.0]])])
    values = Valuation(mean, mean.new_zeros(2, 1, 0, 0))
    loss, metrics = choice_loss(values, CriticTarget(returns, returns.new_zeros(2, 1, 2, 1)), 0.5)
    assert metrics["q_loss"].item() == pytest.approx(4.0)
    assert metrics["advantage_loss"].item() == pytest.approx(1.0 / 0.25)
    assert metrics["quantile_loss"].item() == 0.0
    assert loss.item() == pytest.approx(8.0)
    target = CriticTarget(returns, returns.new_zeros(2, 1, 2, 1), torch.tensor([0.25]))
    assert choice_loss(values, target, 0.5)[0].item() == pytest.approx(5.0)  # a quarter of what is shared


def test_the_loss_of_several_actions_is_its_formula() -> None:
    """Two critics, five actions, quantiles of the first three: every sum written out."""
    critics, states, actions, known, unit = 2, 6, 5, 3, 0.2
    noise = generator(critics + actions)
    mean = torch.randn(critics, states, actions, generator=noise, dtype=DOUBLE)
    spread = torch.randn(critics, states, known, 4, generator=noise, dtype=DOUBLE)
    values, returns = Valuation(mean, spread), torch.randn(states, actions, generator=noise, dtype=DOUBLE)
    samples = torch.randn(critics, states, actions, 4, generator=noise, dtype=DOUBLE)
    target = CriticTarget(returns, returns.unsqueeze(-1) + samples)
    loss, metrics = choice_loss(values, target, unit)
    expected = 0.0
    for critic in range(critics):
        for state in range(states):
            errors = [values.mean[critic, state, p].item() - returns[state, p].item() for p in range(actions)]
            shared = sum(errors) / actions
            apart = sum((error - shared) ** 2 for error in errors) / actions
            expected += (shared**2 + apart / unit**2) / states
    ordered = [
        pinball_loss(values.quantiles[:, :, p], target.samples[:, :, p]).item() for p in range(known)
    ]  # each is a mean over states: together the mean over states and actions
    assert loss.item() == pytest.approx(expected + sum(ordered) / known, rel=1e-12)
    assert metrics["q_largest"].item() == pytest.approx(values.mean.abs().max().item())
    slope, correlation = calibration(values.mean.mean(dim=0), returns)
    assert metrics["advantage_slope"].item() == pytest.approx(slope.item())
    assert metrics["advantage_correlation"].item() == pytest.approx(correlation.item())


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_expectile_loss_and_its_slope_are_the_closed_form(expectile: float) -> None:
    target, value = normal(40), normal(40, seed=1).requires_grad_()
    loss = expectile_loss(target, value, expectile)
    (slope,) = torch.autograd.grad(loss, value)
    expected_loss, expected_slope = 0.0, []
    for aim, guess in zip(target.tolist(), value.tolist(), strict=True):
        weight = expectile if aim > guess else 1.0 - expectile
        expected_loss += weight * (aim - guess) ** 2 / 40
        expected_slope.append(-2.0 * weight * (aim - guess) / 40)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), expected_slope, rtol=1e-12)


def test_advantage_weights_are_clipped_at_a_hundred() -> None:
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 50.0]), 3.0)
    np.testing.assert_allclose(weights.numpy(), [math.exp(-3), 1.0, math.exp(3), 100.0], rtol=1e-6)


def test_bellman_target_bootstraps_at_truncation_but_not_at_termination() -> None:
    rewards, values = torch.tensor([1.0, 1.0]), torch.tensor([10.0, 10.0])
    target = bellman_target(rewards, torch.tensor([0.0, 1.0]), values, 0.9)
    assert target.tolist() == pytest.approx([10.0, 1.0])


@pytest.mark.parametrize("dimensions", [1, 4])
def test_conservative_loss_equals_its_formula(dimensions: int) -> None:
    proposals, log_density, data = normal(2, 5, 6), normal(5, 6, seed=1), normal(2, 5, seed=2)
    drawn = torch.tensor([False, False, True, True, True, True])
    calibration = normal(5, seed=3)
    found = conservative_loss(proposals, log_density, data, drawn, calibration, dimensions).item()
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


def test_ascent_with_cloning_is_its_formula() -> None:
    value, advantage = torch.tensor([1.0, 3.0]), torch.tensor([-1.0, 0.5])
    loss = ddpg_bc_loss(value, advantage, torch.tensor(4.0), 0.1)
    assert loss.item() == pytest.approx(-2.0 / 0.75 + 0.4)
