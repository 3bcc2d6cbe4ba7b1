"""Losses of learning from recorded decisions: of critics, of their conservative penalty, and of the offline methods.

Outcomes of several actions on the same prices are known exactly. Errors that the actions of a state share say how well
the state is valued, their differences say how well a move is valued, and each is weighed in its own unit. That of moves
is ``sigma_A``, the standard deviation of exact advantages: on stocks a twentieth of a day's.

Symbols: m is a critic's mean, q its quantiles, V IQL's value, A = m - V, r a scaled reward, d the termination flag, E
critics, B states, P actions or proposals, n quantiles, K weights.

References
----------
Mao et al. (2019), Variance Reduction for Reinforcement Learning in Input-Driven Environments.
Kumar et al. (2020), Conservative Q-Learning, equation 4 and appendix F (the Lagrange version).
Nakamoto et al. (2023), Cal-QL, equation 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.agent.losses.quantiles import pinball_loss
from finflow.agent.networks.critic import CRITICS, Valuation
from finflow.agent.networks.distributions import mean_per_dimension
from finflow.config import BCellConfig

LARGEST_WEIGHT = 1e6  # of a tuned penalty, as in the code of the paper


def bellman_target(rewards: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """``r + gamma * (1 - d) * V(s')``, (...): truncation bootstraps, termination does not."""
    return rewards + gamma * (1.0 - terminated) * next_value


class CriticTarget(NamedTuple):
    """Regression target of distributional critics."""

    mean: Tensor  # (B, P): of every m
    samples: Tensor  # (E, B, P' <= P, n): of the distribution that each q learns, of the first actions
    weights: Tensor | None = None  # (B,): of the squared error that the actions of a state share; 1 where left out


def critic_target(batch: Batch, next_value: Tensor, next_spread: Tensor, gamma: float) -> CriticTarget:
    """Target of each state's actions from values of the next states (B, P), and the spread of the first ones' returns.

    ``next_spread``, (E, B, P' <= P, n), are centred quantiles of the next decision after each action.
    """
    outcomes, known = batch.outcomes, next_spread.shape[2]
    mean = bellman_target(outcomes.rewards, outcomes.terminated, next_value, gamma)
    discount = gamma * (1.0 - outcomes.terminated[:, :known])
    whole = mean[:, :known] if batch.references is None else mean[:, :known] + batch.references.unsqueeze(-1)
    return CriticTarget(mean, whole.unsqueeze(-1) + discount.unsqueeze(-1) * next_spread)


def mean_loss(mean: Tensor, target: Tensor) -> Tensor:
    """``sum over critics of mean (m - target)^2``, with m (E, B) and the target (B,)."""
    return (mean - target).square().mean(dim=1).sum()


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


def calibration(critics: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Agreement of the critics' values (batch, actions) with exact returns (batch, actions): slope and correlation.

    The slope is that of the exact advantages on the critics', through zero: under 1 where the critics exaggerate.
    """
    predicted, exact = advantages(critics), advantages(exact)
    product = (predicted * exact).mean()
    size = predicted.square().mean().clamp(min=1e-12)
    return product / size, product / (size * exact.square().mean().clamp(min=1e-12)).sqrt()


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
        slope, correlation = calibration(values.mean.detach().mean(dim=0), target.mean)
        metrics |= {"advantage_loss": of_moves, "advantage_slope": slope, "advantage_correlation": correlation}
        loss = loss + of_moves
    of_spread = torch.zeros_like(q_loss)
    if known > 0:
        of_spread = pinball_loss(values.quantiles.flatten(1, 2), target.samples[:, :, :known].flatten(1, 2))
    metrics["quantile_loss"] = of_spread
    return loss + of_spread, {name: value.detach() for name, value in metrics.items()}


class CoverageProposals(NamedTuple):
    """Portfolios (batch, P, K) from the coverage mixture, proposed to CQL, with their log densities (batch, P)."""

    portfolios: Tensor
    log_density: Tensor

    @classmethod
    def joined(cls, parts: Sequence[CoverageProposals]) -> CoverageProposals:
        """All proposals of several parts, without their gradients."""
        return cls(*(torch.cat([one.detach() for one in tensors], dim=1) for tensors in zip(*parts, strict=True)))


def conservative_loss(
    proposals: Tensor,
    log_density: Tensor,
    data: Tensor,
    policy_drawn: Tensor,
    calibration: Tensor,
    n_dimensions: int | Tensor = 1,
) -> Tensor:
    """CQL(H), importance-corrected and calibrated, with entropy per free dimension as in the actor's loss.

    Densities of twenty dimensions differ by tens of nats in all: without the division by D, uniform portfolios alone
    would determine the soft maximum, until their values were that far too low.

    Parameters
    ----------
    proposals, data : Tensor, (E, B, P) and (E, B)
        m at the proposed actions, and at those of the data.
    log_density : Tensor, (B, P)
        Log density that each proposal was drawn with.
    policy_drawn : bool Tensor, (P,)
        True for proposals drawn from the policy: these are not pushed under the calibration.
    calibration : Tensor, (B,)
        Value of the behaviour at the state; minus infinity turns the calibration off.
    n_dimensions : int, or Tensor (B,)
        D = K - 1, or that of each state where assets are not listed; with 1 the published form.

    Returns
    -------
    Tensor, ()
        ``sum_E mean_B [log mean_P exp(D m - log density) / D - m(data)]``.
    """
    calibrated = torch.where(policy_drawn, torch.maximum(proposals, calibration[:, None]), proposals)
    of_each = n_dimensions.unsqueeze(-1) if isinstance(n_dimensions, Tensor) else n_dimensions
    soft_maximum = torch.logsumexp(of_each * calibrated - log_density, dim=-1) - math.log(proposals.shape[-1])
    return (soft_maximum / n_dimensions - data).mean(dim=1).sum()


def indifferent_penalty(log_density: Tensor, n_dimensions: int | Tensor) -> Tensor:
    """Penalty, (), that a critic with the same value for every action has for proposals of log densities (B, P).

    ``mean_B log mean_P exp(- log density) / D``. With many proposals it is ``H_max / D``, the entropy of the uniform
    law a dimension; with few it lies below, as the log of a mean of uneven weights does.
    """
    proposals = log_density.shape[-1]
    return mean_per_dimension(torch.logsumexp(-log_density, dim=-1) - math.log(proposals), n_dimensions)


def conservative_penalty(
    values: Tensor,
    proposals: CoverageProposals,
    batch: Batch,
    config: BCellConfig,
    log_weight: Tensor | None,
    n_dimensions: int | Tensor,
    unit: float = 1.0,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Conservative penalty of the critics, weighted; the loss of a tuned weight; and figures for the log.

    Parameters
    ----------
    values : Tensor, (E, B, 1 + P)
        m at the action of the data, then at the proposals.
    proposals : CoverageProposals
        The first ``bcell.cql_samples`` are from the coverage mixture, the others from the policy.
    log_weight : Tensor, (), or None
        Log of a tuned weight, whose loss raises it while there is an excess; None for ``bcell.cql_alpha``.
    n_dimensions : int, or Tensor (batch,)
        Free dimensions of an action.
    unit, scale : float
        Unit of the weight, and of values in the penalty, in scaled rewards.
    """
    data, proposed = values[..., 0] / scale, values[..., 1:] / scale
    policy_drawn = torch.arange(proposed.shape[-1], device=values.device) >= config.cql_samples
    bound = torch.full_like(data[0], float("-inf")) if config.calibration == "none" else batch.calibrations / scale
    penalty = conservative_loss(proposed, proposals.log_density, data, policy_drawn, bound, n_dimensions)
    metrics = {"cql_loss": penalty.detach()}
    if log_weight is None:
        effective = unit * config.cql_alpha
        return effective * penalty, None, metrics | {"effective_cql_alpha": penalty.new_tensor(effective)}
    tuned = log_weight.exp().clamp(max=LARGEST_WEIGHT)
    weight = tuned.detach().clone()
    # soft maximum of a critic less its value of the data, and less that of one that knows nothing
    excess = penalty.detach() / CRITICS - indifferent_penalty(proposals.log_density, n_dimensions)
    metrics |= {"cql_alpha": weight, "cql_excess": excess, "effective_cql_alpha": unit * weight}
    return unit * weight * penalty, -tuned * excess, metrics


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


def ddpg_bc_loss(value: Tensor, advantage: Tensor, cloning: Tensor, cloning_weight: float) -> Tensor:
    """``- mean Q(s, mu(s)) / mean |A| - alpha * mean log pi(a | s)``.

    The value, (B,), is of the policy's own actions, less a baseline that no action changes; the advantage, (B,), of the
    data's. The paper divides by the mean of |Q|; only the advantages are the part of Q that actions can change, so
    alpha means the same however much of the value lies in the state.

    Park et al. (2024), Is Value Learning Really the Main Bottleneck in Offline RL?, equation 5.
    """
    return -value.mean() / advantage.abs().mean().clamp(min=1e-6) + cloning_weight * cloning


def td3bc_loss(value: Tensor, distance: Tensor) -> Tensor:
    """``mean [distance - lambda * value]`` with ``lambda = 2.5 / mean |value|``, held fixed.

    ``value``, (B,), is of the policy's own action, ``distance``, (B,), its mean squared difference from the data's.

    Fujimoto and Gu (2021), A Minimalist Approach to Offline Reinforcement Learning, equations 3 and 5.
    """
    scale = TD3BC_ALPHA / value.detach().abs().mean().clamp(min=1e-6)
    return (distance - scale * value).mean()
