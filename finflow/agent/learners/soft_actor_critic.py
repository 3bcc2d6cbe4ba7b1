"""Losses of the actor and of the temperature of distributional soft actor-critic; those of its critics: `sac_critics`.

The actor maximises, over ``H = bcell.expansion`` exact decisions and the critics' value of where they end,

    ``E [ sum_{h<H} gamma^h (r_h + alpha entropy_h) + gamma^H (min_e Q_e(s_H, a_H) + alpha entropy_H) ]``,

with ``a_H`` drawn from the policy. With ``H = 0`` it is the published soft actor-critic.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications.
Feinberg et al. (2018), Model-Based Value Estimation for Efficient Model-Free Reinforcement Learning.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import linearised
from finflow.agent.losses.losses import temperature_loss
from finflow.agent.losses.regularisers import (
    anchor_weight,
    policy_regulariser,
)
from finflow.agent.losses.risk import needs_quantiles, risk_adjusted_value
from finflow.agent.networks.critic import CriticEnsemble
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.logistic_normal import LogisticNormal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import BCellConfig

Metrics = dict[str, Tensor]


class SacNetworks(Protocol):
    """Parameters and settings that the losses read."""

    policy: ExpertPolicy
    critic: CriticEnsemble
    target_critic: CriticEnsemble
    prior: ExpertPolicy
    log_alpha: Tensor
    log_cql_alpha: Tensor | None
    config: BCellConfig
    advantage_scale: float


class UpdatePoint(NamedTuple):
    """Position of an update in the schedules: updates of the phase done before it, and all of them.

    ``alpha`` and ``target_entropy`` are scheduled, in place of the tuned coefficient and of ``bcell.target_entropy``.
    """

    update: int = 1
    total: int = 1
    alpha: float | None = None
    target_entropy: float | None = None

    @property
    def progress(self) -> float:
        return min(self.update / self.total, 1.0)


class Coefficients(NamedTuple):
    """Weights of an update."""

    alpha: Tensor  # (): entropy coefficient, as configured
    effective_alpha: Tensor  # (): the same in scaled rewards per nat of a free dimension
    target_share: float  # target entropy as configured or scheduled
    target_entropy: float | Tensor
    dimensions: int | Tensor  # (batch,): free dimensions of an action

    @classmethod
    def of(cls, agent: SacNetworks, actions: Tensor, states: States, point: UpdatePoint) -> Coefficients:
        """The coefficients of an agent for actions (batch, K) in states, at a point of the schedules."""
        policy, config = agent.policy, agent.config
        share = config.target_entropy if point.target_entropy is None else point.target_entropy
        dimensions = policy.free_dimensions(actions, states)
        alpha = agent.log_alpha.detach().exp()
        if point.alpha is not None:
            alpha = torch.tensor(point.alpha, device=alpha.device)
        unit = agent.advantage_scale * policy.entropy_unit
        return cls(alpha, unit * alpha, share, policy.target_entropy(share, dimensions), dimensions)


def ascent(
    rewards: Tensor, log_density: Tensor, end: Tensor, effective_alpha: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Two parts of the actor's objective, each (batch,): rewards with entropies, and the value at the end.

    The exact decisions have scaled rewards (H, batch); densities (H + 1, batch) are per free dimension, that at the end
    last; ``end``, (batch,), is the value of the decision there.
    """
    powers = gamma ** torch.arange(len(log_density), device=end.device, dtype=end.dtype)
    earned = (powers[:-1].unsqueeze(-1) * rewards).sum(dim=0)
    entropy = -(powers.unsqueeze(-1) * log_density).sum(dim=0)
    return earned + effective_alpha * entropy, powers[-1] * end


class PolicyLosses(NamedTuple):
    """Loss of the policy, (); that of the temperature, (); the decisions; and figures for the log."""

    loss: Tensor
    temperature: Tensor
    decision: Decision
    metrics: Metrics


def policy_losses(
    agent: SacNetworks,
    batch: Batch,
    drawn: Tensor,
    coefficients: Coefficients,
    point: UpdatePoint,
    encoding: Encoding,
    noise: Generator | None,
) -> PolicyLosses:
    """Loss of the policy in the states of a batch, by the critics alone (``H = 0``).

    ``drawn``, (batch, D), is standard normal; the encoding of the states is the critics'; ``noise`` switches dropout
    on.
    """
    config, states = agent.config, batch.states
    decision = agent.policy(states, noise)
    actions, log_density = decision.distribution.sample(drawn.unsqueeze(1))
    end = minimum_value(agent.critic, encoding.detach(), states, actions[:, 0], config)
    density = log_density[:, 0] / coefficients.dimensions
    none = density.new_zeros(0, len(density))
    earned, ahead = ascent(none, density.unsqueeze(0), end, coefficients.effective_alpha, config.gamma)
    loss = -(earned + ahead).mean()
    penalty, metrics = held_back(agent, decision, batch, point)
    of_temperature = temperature(agent, decision.distribution.entropy_density(drawn), coefficients)
    metrics |= {"actor_loss": loss.detach(), "entropy": -log_density.mean().detach()}
    return PolicyLosses(loss + penalty, of_temperature, decision, metrics)


def held_back(
    agent: SacNetworks, decision: Decision, batch: Batch, point: UpdatePoint
) -> tuple[Tensor | float, Metrics]:
    """Penalty of decisions in the states of a batch: the anchor's."""
    anchor = agent.config.anchor
    weight = anchor_weight(anchor, point.update, point.total)
    return policy_regulariser(decision, batch, agent.prior, weight, anchor, agent.advantage_scale)


def temperature(agent: SacNetworks, log_density: Tensor, coefficients: Coefficients) -> Tensor:
    """Loss of the temperature on decisions with these densities in log ratios, (batch,)."""
    return temperature_loss(agent.log_alpha, log_density, coefficients.target_entropy, coefficients.dimensions)


@torch.no_grad()
def action_distribution(policy: ExpertPolicy, states: States) -> LogisticNormal:
    """Distribution of a policy's actions, without gradients."""
    distribution: LogisticNormal = policy(states).distribution
    return distribution


def minimum_value(
    critic: CriticEnsemble, encoding: Encoding, states: States, actions: Tensor, config: BCellConfig
) -> Tensor:
    """Least value over critics of actions (B, K) under the risk measure, (B,).

    Gradients reach the action and the portfolio of the state, and no parameter of the critics.
    """

    def value_of(portfolio: Tensor, action: Tensor) -> Tensor:
        there = states._replace(portfolio=portfolio)
        valuation = critic.value(encoding, there, action.unsqueeze(1), int(needs_quantiles(config)))
        return risk_adjusted_value(valuation, config).min(dim=0).values[:, 0]

    return linearised(value_of, states.portfolio, actions)
