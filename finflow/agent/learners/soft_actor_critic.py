"""Losses of the actor and of the temperature of distributional soft actor-critic; those of its critics: `sac_critics`.

The actor maximises, over ``H = bcell.expansion`` exact decisions and the critics' value of where they end,

    ``E [ sum_{h<H} gamma^h (r_h + alpha entropy_h) + gamma^H (min_e Q_e(s_H, a_H) + alpha entropy_H) ]``,

with ``a_H`` drawn from the policy. With ``H = 0`` it is the published soft actor-critic. An anchor penalises distance
of the aim from equal weight: a policy that only maximises its critics overfits the years of its training.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications.
Feinberg et al. (2018), Model-Based Value Estimation for Efficient Model-Free Reinforcement Learning.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States, repeat_groups
from finflow.agent.gradient_steps import linearised
from finflow.agent.learners.acting import ActingAgent
from finflow.agent.losses.quantiles import needs_quantiles, risk_adjusted_value
from finflow.agent.networks.critic import CriticEnsemble
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.logistic_normal import SMALLEST_WEIGHT, LogisticNormal, mean_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, BCellConfig

Metrics = dict[str, Tensor]


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
    def of(cls, agent: ActingAgent, actions: Tensor, states: States, point: UpdatePoint) -> Coefficients:
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


def policy_losses(
    agent: ActingAgent,
    batch: Batch,
    drawn: Tensor,
    coefficients: Coefficients,
    point: UpdatePoint,
    encoding: Encoding,
    noise: Generator | None,
) -> tuple[Tensor, Tensor, Metrics]:
    """Losses of the policy and of the temperature in the states of a batch, by the critics alone (``H = 0``).

    ``drawn``, (batch, D), is standard normal; the encoding of the states is the critics'; ``noise`` switches dropout
    on. Returns figures for the log as well.
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
    density = decision.distribution.entropy_density(drawn)
    temperature = temperature_loss(agent.log_alpha, density, coefficients.target_entropy, coefficients.dimensions)
    metrics |= {"actor_loss": loss.detach(), "entropy": -log_density.mean().detach()}
    return loss + penalty, temperature, metrics | decision.figures()


def held_back(
    agent: ActingAgent, decision: Decision, batch: Batch, point: UpdatePoint
) -> tuple[Tensor | float, Metrics]:
    """Penalty of decisions in the states of a batch, the anchor's; with figures for the log."""
    weight = agent.advantage_scale * anchor_weight(agent.config.anchor, point.update, point.total)
    if weight <= 0.0:
        return 0.0, {}
    distance = kl_from_equal_weight(decision.traded_aim, repeat_groups(batch.states.listed, batch.states)).mean()
    return weight * distance, {"anchor_loss": distance.detach(), "effective_anchor": distance.new_tensor(weight)}


def anchor_weight(config: AnchorConfig, update: int, total: int) -> float:
    """Weight of the anchor after ``update`` of the ``total`` updates of the online phase."""
    final = config.weight if config.final is None else config.final
    return config.weight + (final - config.weight) * min(update / (config.updates or total), 1.0)


def kl_from_equal_weight(aim: Tensor, listed: Tensor) -> Tensor:
    """``KL(u || aim)``, (batch,), of aims (batch, K): u is equal weight over the assets that are ``listed``.

    It grows without bound as the aim leaves an asset out.
    """
    count = listed.sum(dim=-1).clamp(min=1).to(aim.dtype)
    missing = -(aim[:, :-1].clamp(min=SMALLEST_WEIGHT).log() + count.log().unsqueeze(-1))
    return torch.where(listed, missing, torch.zeros_like(missing)).sum(dim=-1) / count


def temperature_loss(
    log_alpha: Tensor, log_density: Tensor, target: float | Tensor, n_dimensions: int | Tensor
) -> Tensor:
    """``- log alpha * mean (log pi + H_target) / D``; equation 18 of Haarnoja et al. (2018), in log alpha.

    Densities, (batch,), are of log ratios.
    """
    excess = log_density.detach() + target
    if isinstance(n_dimensions, Tensor):
        return -(log_alpha * mean_per_dimension(excess, n_dimensions))
    return -(log_alpha * excess.mean() / n_dimensions)


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
