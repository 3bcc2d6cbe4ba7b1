"""Losses of learning from exact rollouts, as pure functions of tensors.

The policy follows the exact gradient of what it would have earned on stored bars. The critics learn what many actions
in the same state would have earned on the same prices: errors that the actions of a state share say how well the state
is valued, their differences say how well a move is valued, and each is weighed in its own unit. That of moves is
``sigma_A``, the standard deviation of exact advantages: on stocks a twentieth of a day's.

References
----------
Mao et al. (2019), Variance Reduction for Reinforcement Learning in Input-Driven Environments: what all actions in a
state have in common is no part of an advantage.
Xu et al. (2022), Accelerated Policy Learning with Parallel Differentiable Simulation: short windows of rollouts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.losses.pinball import pinball_loss
from finflow.agent.networks.critic import Valuation


def discounted_return(rewards: Tensor, gamma: float) -> Tensor:
    """``sum_h gamma^h r_h`` of rewards (horizon, batch), (batch,)."""
    powers = gamma ** torch.arange(len(rewards), device=rewards.device, dtype=rewards.dtype)
    return (powers.unsqueeze(-1) * rewards).sum(dim=0)


def rollout_loss(rewards: Tensor, gamma: float, advantage_scale: Tensor) -> Tensor:
    """``- mean_B sum_h gamma^h r_h / (H sigma_A)``, (): a decision's value in units of what actions can change.

    Parameters
    ----------
    rewards : Tensor, (horizon, batch)
        Scaled, with gradients for the policy.
    gamma : float
    advantage_scale : Tensor, ()
        ``sigma_A``, in the units of the rewards.
    """
    return -discounted_return(rewards, gamma).mean() / (len(rewards) * advantage_scale)


def advantages(values: Tensor) -> Tensor:
    """Values (..., actions) less their mean over the actions of a state."""
    return values - values.mean(dim=-1, keepdim=True)


def advantage_scale(returns: Tensor) -> Tensor:
    """``sigma_A``, (): standard deviation of exact advantages of returns (batch, actions)."""
    return advantages(returns).square().mean().sqrt()


class Calibration(NamedTuple):
    """Agreement of critics' advantages with exact ones.

    Attributes
    ----------
    slope : Tensor, ()
        Of the exact advantages on the critics', through zero: 1 where advantages that are predicted as x are x on
        average; under 1 where the critics exaggerate.
    correlation : Tensor, ()
    """

    slope: Tensor
    correlation: Tensor


def calibration(critics: Tensor, exact: Tensor) -> Calibration:
    """Agreement of the critics' values (batch, actions) with exact returns (batch, actions)."""
    predicted, exact = advantages(critics), advantages(exact)
    product = (predicted * exact).mean()
    size = predicted.square().mean().clamp(min=1e-12)
    return Calibration(product / size, product / (size * exact.square().mean().clamp(min=1e-12)).sqrt())


def counterfactual_loss(
    values: Valuation, returns: Tensor, advantage_scale: Tensor, quantiles: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of critics against the exact returns of many actions in each state.

    ``sum_E mean_B [ e_bar^2 + mean_P (e - e_bar)^2 / sigma_A^2 ]``, ``e = m - return``, its mean over the P actions of
    a state ``e_bar``: on average over the prices of all bars, both are least where m is the expected return.

    Parameters
    ----------
    values : Valuation
        Of the actions, m (E, B, P).
    returns : Tensor, (B, P)
        Exact, scaled.
    advantage_scale : Tensor, ()
    quantiles : bool
        Whether the critics have a distribution, which then learns from the returns too.
    """
    error = values.mean - returns
    shared = error.mean(dim=-1, keepdim=True)
    of_moves = (error - shared).square().mean(dim=(1, 2)).sum() / advantage_scale.square()
    q_loss = shared.square().mean(dim=(1, 2)).sum()
    spread_loss = torch.zeros_like(q_loss)
    if quantiles:
        rows = values.quantiles.flatten(1, 2)
        spread_loss = pinball_loss(rows, returns.flatten().expand(len(rows), -1).unsqueeze(-1))
    agreement = calibration(values.mean.detach().mean(dim=0), returns)
    metrics = {
        "q_loss": q_loss,
        "advantage_loss": of_moves,
        "quantile_loss": spread_loss,
        "q": values.mean.mean(),
        "q_largest": values.mean.abs().max(),
        "advantage_slope": agreement.slope,
        "advantage_correlation": agreement.correlation,
    }
    return q_loss + of_moves + spread_loss, {name: value.detach() for name, value in metrics.items()}
