"""Losses of learning from exact rollouts, against their formulas and against linear problems solved by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator

from finflow.agent.learners.pathwise import (
    advantage_scale,
    advantages,
    calibration,
    counterfactual_loss,
    discounted_return,
    rollout_loss,
)
from finflow.agent.networks.critic import Valuation


def test_the_loss_of_a_rollout_is_its_discounted_return_a_decision_in_units_of_advantages() -> None:
    rewards = torch.tensor([[1.0, -2.0], [0.5, 4.0], [3.0, 0.0]])
    expected = torch.tensor([1.0 + 0.9 * 0.5 + 0.81 * 3.0, -2.0 + 0.9 * 4.0])
    assert torch.allclose(discounted_return(rewards, 0.9), expected)
    assert rollout_loss(rewards, 0.9, torch.tensor(0.25)).item() == pytest.approx(-expected.mean().item() / (3 * 0.25))


def test_what_all_actions_share_is_no_advantage() -> None:
    """A day's luck, common to the actions of a state, changes neither advantages nor their scale."""
    returns = torch.randn(50, 4, generator=Generator().manual_seed(0), dtype=torch.float64)
    luck = 100.0 * torch.randn(50, 1, generator=Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(advantages(returns + luck), advantages(returns), atol=1e-12)
    expected = (returns - returns.mean(dim=1, keepdim=True)).square().mean().sqrt()
    assert advantage_scale(returns + luck).item() == pytest.approx(expected.item(), rel=1e-12)


def test_calibration_is_one_where_advantages_are_as_predicted_and_shrinks_with_exaggeration() -> None:
    predicted = torch.randn(4000, 6, generator=Generator().manual_seed(2))
    noise = torch.randn(4000, 6, generator=Generator().manual_seed(3))
    found = calibration(predicted, predicted + 3.0 * noise)
    assert found.slope.item() == pytest.approx(1.0, abs=0.1)  # error of a slope: 3 / sqrt(20 000) = .02
    assert found.correlation.item() == pytest.approx(1.0 / math.sqrt(10.0), abs=0.03)
    assert calibration(10.0 * predicted, predicted).slope.item() == pytest.approx(0.1, rel=1e-5)
    assert calibration(-predicted, predicted).correlation.item() == pytest.approx(-1.0, rel=1e-5)


def test_the_critics_loss_weighs_states_and_moves_each_in_its_unit() -> None:
    """Errors (3, 1) of one state: 2 is shared, plus and minus 1 are of the moves; two critics, one of them exact."""
    returns = torch.tensor([[1.0, 5.0]])
    mean = torch.stack([returns, returns + torch.tensor([[3.0, 1.0]])])
    loss, metrics = counterfactual_loss(Valuation(mean, mean.new_zeros(2, 1, 0, 0)), returns, torch.tensor(0.5), False)
    assert metrics["q_loss"].item() == pytest.approx(4.0)
    assert metrics["advantage_loss"].item() == pytest.approx(1.0 / 0.25)
    assert loss.item() == pytest.approx(8.0)


def test_least_loss_is_at_the_mean_return_and_quantiles_at_its_quantiles() -> None:
    """The same two actions on many prices: m learns their mean returns, q the spread of what they returned."""
    luck = torch.randn(2000, 1, generator=Generator().manual_seed(4)) * torch.tensor([[1.0, 3.0]])
    returns = torch.tensor([[0.2, -0.1]]) + luck
    mean = torch.zeros(1, 1, 2, requires_grad=True)
    quantiles = torch.zeros(1, 1, 2, 4, requires_grad=True)
    optimiser = torch.optim.Adam([mean, quantiles], lr=0.1)
    for _ in range(300):
        values = Valuation(mean.expand(1, 2000, 2), quantiles.expand(1, 2000, 2, 4))
        loss, _ = counterfactual_loss(values, returns, torch.tensor(1.0), True)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert torch.allclose(mean[0, 0], returns.mean(dim=0), atol=0.02)  # Adam's last steps are that long
    levels = torch.tensor([0.125, 0.375, 0.625, 0.875])
    expected = torch.quantile(returns, levels, dim=0).T
    assert torch.allclose(quantiles[0, 0], expected, atol=0.15)  # the pinball loss is flat near its least
