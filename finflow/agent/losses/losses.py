"""Losses of critics, policy and temperature as pure functions of tensors: each is one formula of its paper.

Symbols: m is a critic's mean, q its quantiles, V IQL's value, A = m - V the advantage, r a scaled reward, d the
termination flag, E critics, B transitions, P proposals, n quantiles, K weights.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.batch import Batch

ADVANTAGE_WEIGHT_LIMIT = 100.0
TD3BC_ALPHA = 2.5


def expectile_loss(target: Tensor, value: Tensor, expectile: float) -> Tensor:
    """``mean |tau - 1(u < 0)| u^2`` with ``u = target - value``, (); tau is the expectile, and a half the mean.

    Kostrikov, Nair and Levine (2022), Offline Reinforcement Learning with Implicit Q-Learning, equation 5.
    """
    difference = target - value
    above = difference.new_full((), expectile)  # in the type of the inputs: plain numbers are float32
    weight = torch.where(difference < 0.0, difference.new_full((), 1.0 - expectile), above)
    return (weight * difference.square()).mean()


def expectile_of(values: Tensor, expectile: float) -> Tensor:
    """Expectile of each row of values (B, P), (B, 1): where `expectile_loss` is least.

    ``e = (sum_p w_p x_p) / sum_p w_p`` with ``w_p`` tau above e and 1 - tau below: of the k largest values that may lie
    above, the right k gives the largest e for tau over a half, and the smallest under it.

    Newey and Powell (1987), Asymmetric Least Squares Estimation and Testing, section 2.
    """
    ordered = values.sort(dim=-1, descending=True).values
    count = values.shape[-1]
    above = torch.arange(1, count + 1, device=values.device, dtype=values.dtype)
    sums = ordered.cumsum(dim=-1)
    weight = expectile * above + (1.0 - expectile) * (count - above)
    candidates = (expectile * sums + (1.0 - expectile) * (sums[..., -1:] - sums)) / weight
    return candidates.amax(dim=-1, keepdim=True) if expectile >= 0.5 else candidates.amin(dim=-1, keepdim=True)


def advantage_weights(advantage: Tensor, temperature: float) -> Tensor:
    """``min(exp(beta * A), 100)``, (...); equation 7 of IQL's paper, with the clip of its code."""
    limit = math.log(ADVANTAGE_WEIGHT_LIMIT)
    return (temperature * advantage).clamp(max=limit).exp()


def mean_per_dimension(values: Tensor, n_dimensions: int | Tensor) -> Tensor:
    """Mean of values (B,) per free dimension, (); of one number for all of them, or of each its own, (B,)."""
    return (values / n_dimensions).mean() if isinstance(n_dimensions, Tensor) else values.mean() / n_dimensions


def weighted_likelihood_loss(log_density: Tensor, weights: Tensor, n_dimensions: int | Tensor) -> Tensor:
    """``- mean weight * log pi(a | s)`` per free dimension of the action, which may be each decision's own, (B,)."""
    return -mean_per_dimension(weights * log_density, n_dimensions)


def td3bc_loss(value: Tensor, distance: Tensor) -> Tensor:
    """``mean [distance - lambda * value]`` with ``lambda = 2.5 / mean |value|``, held fixed.

    ``value``, (B,), is of the policy's own action, ``distance``, (B,), its mean squared difference from the data's.

    Fujimoto and Gu (2021), A Minimalist Approach to Offline Reinforcement Learning, equations 3 and 5.
    """
    scale = TD3BC_ALPHA / value.detach().abs().mean().clamp(min=1e-6)
    return (distance - scale * value).mean()


class PathwiseGradient(NamedTuple):
    """Deterministic actions of a policy for a batch, with the losses that hold the policy to the data."""

    action: Tensor  # (batch, K): with gradients for the policy
    cloning: Tensor  # (): likelihood loss of the data's actions, all weighted alike
    others: Tensor  # (): the policy's other losses
    metrics: dict[str, Tensor]


def ddpg_bc_loss(value: Tensor, advantage: Tensor, cloning: Tensor, cloning_weight: float) -> Tensor:
    """``- mean Q(s, mu(s)) / mean |A| - alpha * mean log pi(a | s)``.

    The value, (B,), is of the policy's own actions, less a baseline that no action changes; the advantage, (B,), of the
    data's. The paper divides by the mean of |Q|; only the advantages are the part of Q that actions can change, so
    alpha means the same however much of the value lies in the state.

    Park et al. (2024), Is Value Learning Really the Main Bottleneck in Offline RL?, equation 5.
    """
    return -value.mean() / advantage.abs().mean().clamp(min=1e-6) + cloning_weight * cloning


def bellman_target(rewards: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """``r + gamma * (1 - d) * V(s')``, (...): truncation bootstraps, termination does not."""
    return rewards + gamma * (1.0 - terminated) * next_value


class CriticTarget(NamedTuple):
    """Regression target of distributional critics."""

    mean: Tensor  # (B, P): of every m
    samples: Tensor  # (E, B, P' <= P, n): of the distribution that each q learns, of the first actions
    weights: Tensor | None = None  # (B,): of the squared error that the actions of a state share; 1 where left out


def critic_target(batch: Batch, next_value: Tensor, next_spread: Tensor, gamma: float) -> CriticTarget:
    """Target of each state's actions from values of the next states (B, P), and the spread of the logged one's return.

    ``next_spread``, (E, B, n), are centred quantiles of the next decision after the logged action.
    """
    outcomes = batch.outcomes
    mean = bellman_target(outcomes.rewards, outcomes.terminated, next_value, gamma)
    discount = gamma * (1.0 - outcomes.terminated[:, :1])
    samples = batch.with_reference(mean[:, 0]).unsqueeze(-1) + discount * next_spread
    return CriticTarget(mean, samples.unsqueeze(2))


def mean_loss(mean: Tensor, target: Tensor) -> Tensor:
    """``sum over critics of mean (m - target)^2``, with m (E, B) and the target (B,)."""
    return (mean - target).square().mean(dim=1).sum()


def truncated_spread(spread: Tensor, dropped: int) -> Tensor:
    """Mean of centred quantiles (..., n) without the largest ``dropped``, (...): at most zero, a pessimism to add to m.

    Kuznetsov et al. (2020), Truncated Quantile Critics, equation 4.
    """
    if dropped == 0:
        return torch.zeros_like(spread[..., 0])
    kept = spread.sort(dim=-1).values[..., : spread.shape[-1] - dropped]
    return kept.mean(dim=-1)


def pessimistic_value(mean: Tensor, spread: Tensor, dropped: int, share: float, choices: int = 1) -> Tensor:
    """Least value over critics, ``min_e m_e + share * truncated spread_e``, of means (E, B) and spreads (E, B, n).

    At a ``share`` of zero it is IQL's own aggregation. Of several choices of a state, which are consecutive, all are
    valued by the critic that values them least on average: the least of each would count the critics' disagreement
    about a choice against it, and differences between choices add up over the decisions that they last.
    """
    value = mean if share == 0.0 else mean + share * truncated_spread(spread, dropped)
    if choices == 1:
        return value.min(dim=0).values
    of_states = value.view(len(value), -1, choices)
    least = of_states.mean(dim=-1, keepdim=True).argmin(dim=0, keepdim=True).expand(-1, -1, choices)
    return of_states.gather(0, least).flatten()


def temperature_loss(
    log_alpha: Tensor, log_density: Tensor, target: float | Tensor, n_dimensions: int | Tensor
) -> Tensor:
    """``- log alpha * mean (log pi + H_target) / (K - 1)``; equation 18 of Haarnoja et al. (2018), in log alpha."""
    excess = log_density.detach() + target
    if isinstance(n_dimensions, Tensor):
        return -(log_alpha * mean_per_dimension(excess, n_dimensions))
    return -(log_alpha * excess.mean() / n_dimensions)
