"""Losses and measures over several actions of each state, whose outcomes on the same prices are known exactly.

Errors that the actions of a state share say how well the state is valued, their differences say how well a move is
valued, and each is weighed in its own unit. That of moves is ``sigma_A``, the standard deviation of exact advantages:
on stocks a twentieth of a day's.

References
----------
Mao et al. (2019), Variance Reduction for Reinforcement Learning in Input-Driven Environments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.losses.losses import CriticTarget
from finflow.agent.losses.pinball import pinball_loss
from finflow.agent.networks.critic import Valuation


def discounted_return(rewards: Tensor, gamma: float) -> Tensor:
    """``sum_h gamma^h r_h`` of rewards (horizon, batch), (batch,)."""
    powers = gamma ** torch.arange(len(rewards), device=rewards.device, dtype=rewards.dtype)
    return (powers.unsqueeze(-1) * rewards).sum(dim=0)


def advantages(values: Tensor) -> Tensor:
    """Values (..., actions) less their mean over the actions of a state."""
    return values - values.mean(dim=-1, keepdim=True)


def advantage_scale(returns: Tensor) -> Tensor:
    """``sigma_A``, (): standard deviation of exact advantages of returns (batch, actions)."""
    return advantages(returns).square().mean().sqrt()


class Calibration(NamedTuple):
    """Agreement of critics' advantages with exact ones.

    ``slope``, (), is that of the exact advantages on the critics', through zero: under 1 where the critics exaggerate.
    """

    slope: Tensor
    correlation: Tensor


def calibration(critics: Tensor, exact: Tensor) -> Calibration:
    """Agreement of the critics' values (batch, actions) with exact returns (batch, actions)."""
    predicted, exact = advantages(critics), advantages(exact)
    product = (predicted * exact).mean()
    size = predicted.square().mean().clamp(min=1e-12)
    return Calibration(product / size, product / (size * exact.square().mean().clamp(min=1e-12)).sqrt())


def choice_loss(values: Valuation, target: CriticTarget, advantage_scale: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of critics against the targets of the actions of each state.

    ``sum_E mean_B [ weight e_bar^2 + mean_P (e - e_bar)^2 / sigma_A^2 ]``, ``e = m - target``, with the mean ``e_bar``
    over the P actions of a state: both are least where m is the expected value. With one action a state this is the
    squared loss as published. The quantiles, of the first actions, learn by the pinball loss.
    """
    error = values.mean - target.mean
    shared = error.mean(dim=-1, keepdim=True)
    weights = 1.0 if target.weights is None else target.weights.unsqueeze(-1)
    q_loss = (weights * shared.square()).mean(dim=(1, 2)).sum()
    metrics = {"q_loss": q_loss, "q": values.mean.mean(), "q_largest": values.mean.abs().max()}
    loss, known = q_loss, values.quantiles.shape[2]
    if error.shape[-1] > 1:
        of_moves = (error - shared).square().mean(dim=(1, 2)).sum() / advantage_scale**2
        agreement = calibration(values.mean.detach().mean(dim=0), target.mean)
        metrics |= {"advantage_loss": of_moves, "advantage_slope": agreement.slope}
        metrics["advantage_correlation"] = agreement.correlation
        loss = loss + of_moves
    of_spread = torch.zeros_like(q_loss)
    if known > 0:
        of_spread = pinball_loss(values.quantiles.flatten(1, 2), target.samples[:, :, :known].flatten(1, 2))
    metrics["quantile_loss"] = of_spread
    return loss + of_spread, {name: value.detach() for name, value in metrics.items()}
