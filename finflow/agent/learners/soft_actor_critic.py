"""Losses of distributional soft actor-critic: of its actor, of the temperature and of its critics.

The actor maximises, over ``H = bcell.expansion`` exact decisions and the critics' value of where they end,

    ``E [ sum_{h<H} gamma^h (r_h + alpha entropy_h) + gamma^H (min_e Q_e(s_H, a_H) + alpha entropy_H) ]``,

with ``a_H`` drawn from the policy. With ``H = 0`` it is the published soft actor-critic. An anchor penalises distance
of the aim from equal weight: a policy that only maximises its critics overfits the years of its training.

The critics learn temporal differences. A state has the logged action, as published, or several whose rewards and next
portfolios the ledger gives (`Choices`). Where the actor has looked ahead from a state, all its targets are moved by
what that says of the level of its value (`Expansion`): a target one decision ahead carries a value over a hundred
decisions in so many updates of the target critics.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications.
Feinberg et al. (2018), Model-Based Value Estimation for Efficient Model-Free Reinforcement Learning.
Kuznetsov et al. (2020), Truncated Quantile Critics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.batch import OWN, Batch, States, repeat_groups
from finflow.agent.gradient_steps import linearised
from finflow.agent.learners.acting import ActingAgent
from finflow.agent.losses.off_policy_losses import (
    CoverageProposals,
    CriticTarget,
    choice_loss,
    conservative_penalty,
    critic_target,
)
from finflow.agent.losses.quantiles import needs_quantiles, pessimistic_value, risk_adjusted_value
from finflow.agent.networks.critic import CriticEnsemble
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.distributions import (
    LogisticNormal,
    kl_from_equal_weight,
    mean_per_dimension,
    standard_normal,
)
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, BCellConfig

WITH_QUANTILES = 3  # actions of each state whose distribution is learned: the logged one, holding, the policy's own
CQL_UNIT = 0.01  # of the penalty's weight, where both errors and values are in sigma_A

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
    held = decision.aim.detach()
    aim = held + decision.trade_rate.detach() * (decision.aim - held)  # with its gradient as a part of the centre
    distance = kl_from_equal_weight(aim, repeat_groups(batch.states.listed, batch.states)).mean()
    return weight * distance, {"anchor_loss": distance.detach(), "effective_anchor": distance.new_tensor(weight)}


def anchor_weight(config: AnchorConfig, update: int, total: int) -> float:
    """Weight of the anchor after ``update`` of the ``total`` updates of the online phase."""
    final = config.weight if config.final is None else config.final
    return config.weight + (final - config.weight) * min(update / (config.updates or total), 1.0)


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
    return policy(states).distribution


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


class Draws(NamedTuple):
    """Random numbers of the critics' part of an update."""

    own: Tensor  # (batch, n, D): standard normal, of the policy's proposals in the states
    following: Tensor  # (batch * P, 1 + n, D): of its decisions after the actions, then of proposals there, if any
    dropout: Generator | None = None

    @classmethod
    def of(cls, agent: ActingAgent, batch: Batch, noise: Generator, conservative: bool) -> Draws:
        count = agent.config.cql_samples * int(conservative)
        own = (len(batch.actions), count, agent.policy.coordinate_count(batch.actions))
        ahead = count * int(batch.choices is None)
        after = (batch.outcomes.rewards.numel(), 1 + ahead, own[-1])
        dropout = None
        if agent.config.dropout > 0.0:
            seed = torch.randint(2**62, (), generator=noise, device=noise.device)
            dropout = Generator(device=noise.device).manual_seed(int(seed))
        return cls(standard_normal(own, noise, batch.actions), standard_normal(after, noise, batch.actions), dropout)


class Expansion(NamedTuple):
    """Values of the first states of a batch by the actor's exact decisions."""

    value: Tensor  # (n,): discounted rewards of the policy's decisions, and the target critics' value of where they end
    spread: Tensor  # (E, n, n_quantiles): of the value at the end, discounted
    references: Tensor | None  # (n,): discounted sum of the references of the rewards, where the spread is of the whole
    weight: float  # of the squared errors that the actions of a state share: errors count per decision


class CriticLosses(NamedTuple):
    """Losses of an update, each ()."""

    loss: Tensor
    cql_weight: Tensor | None  # of a tuned weight of the penalty
    metrics: Metrics
    level_error: Tensor | None  # the values' mean error where the actor looked ahead


def is_conservative(config: BCellConfig, coverage: CoverageProposals | None) -> bool:
    """Return True where there is a penalty: proposals that cover the simplex, and a weight."""
    return coverage is not None and config.cql_alpha > 0.0


def critics_losses(
    agent: ActingAgent,
    batch: Batch,
    coverage: CoverageProposals | None,
    draws: Draws,
    coefficients: Coefficients,
    point: UpdatePoint,
    encoding: Encoding | None = None,
    own: LogisticNormal | None = None,
    expansion: Expansion | None = None,
) -> CriticLosses:
    """Loss of the critics on a batch: temporal differences of its actions, and the conservative penalty.

    ``encoding`` is that of the states, and ``own`` the policy's distribution in them, where they are known.
    """
    config, states, outcomes = agent.config, batch.states, batch.outcomes
    count = outcomes.rewards.shape[1]
    following = action_distribution(agent.policy, outcomes.next_states)
    next_actions, next_density = following.sample(draws.following)
    target, looked = _target(agent, batch, following, next_actions, draws, coefficients, point), 0
    if expansion is not None and config.entropy_backup != "relative":
        target, looked = expanded(target, expansion), len(expansion.value)
    encoding = agent.critic.encode(states) if encoding is None else encoding
    portfolios, proposals = outcomes.actions, None
    if coverage is not None and is_conservative(config, coverage):
        own = action_distribution(agent.policy, states) if own is None else own
        drawn = [coverage, CoverageProposals(*own.sample(draws.own))]
        if batch.choices is None:
            drawn.append(CoverageProposals(next_actions[:, 1:], _density_here(batch, next_density[:, 1:])))
        proposals = CoverageProposals.joined(drawn)
        portfolios = torch.cat([portfolios, proposals.portfolios], dim=1)
    with_quantiles = min(WITH_QUANTILES, count) if config.n_quantiles > 1 else 0
    values = agent.critic.value(encoding, states, portfolios, with_quantiles, draws.dropout)
    # in a batch of transitions alone, errors and values are in rewards, and the weight of the penalty in sigma_A
    scale, unit = (1.0, agent.advantage_scale) if batch.choices is None else (agent.advantage_scale, CQL_UNIT)
    loss, metrics = choice_loss(values._replace(mean=values.mean[..., :count]), target, scale)
    cql_weight = None
    if proposals is not None:
        compared = torch.cat([values.mean[..., :1], values.mean[..., count:]], dim=-1)
        penalty, cql_weight, figures = conservative_penalty(
            compared, proposals, batch, config, agent.log_cql_alpha, coefficients.dimensions, unit, scale
        )
        loss, metrics = loss + penalty, metrics | figures
    level_error = (target.mean - values.mean[..., :count].detach())[:, :looked].mean() if looked else None
    return CriticLosses(loss, cql_weight, metrics, level_error)


@torch.no_grad()
def _target(
    agent: ActingAgent,
    batch: Batch,
    following: LogisticNormal,
    next_actions: Tensor,
    draws: Draws,
    coefficients: Coefficients,
    point: UpdatePoint,
) -> CriticTarget:
    """``r + gamma (1 - d) min_e m_e`` of the target critics at the next decision, for every action.

    With ``bcell.entropy_backup`` relative, entropy of the next decision over its target is part of its value.
    """
    config, outcomes = agent.config, batch.outcomes
    shape = outcomes.rewards.shape
    value, spread = target_value(agent, outcomes.next_states, next_actions[:, :1], point, shape[1])
    if config.entropy_backup == "relative":
        density = following.entropy_density(draws.following[:, 0])
        ahead = agent.policy.free_dimensions(next_actions[:, 0], outcomes.next_states)
        target = agent.policy.target_entropy(coefficients.target_share, ahead)
        value = value + coefficients.effective_alpha * (-density - target) / ahead
    return critic_target(batch, value.view(shape), spread.view(len(spread), *shape, -1), config.gamma)


@torch.no_grad()
def target_value(
    agent: ActingAgent, states: States, actions: Tensor, point: UpdatePoint, choices: int = 1
) -> tuple[Tensor, Tensor]:
    """``min_e m_e`` of the target critics, (B,), and their spread, (E, B, n), for one action (B, 1, K) a state.

    ``choices`` consecutive ones are of one state.
    """
    config, critic = agent.config, agent.target_critic
    distributional = config.n_quantiles > 1
    ahead = critic.value(critic.encode(states), states, actions, int(distributional))
    spread = ahead.spread[:, :, 0] if distributional else ahead.mean.new_zeros(*ahead.mean.shape[:2], 1)
    dropped = min(config.dropped_quantiles, config.n_quantiles - 1)
    return pessimistic_value(ahead.mean[..., 0], spread, dropped, point.progress, choices), spread


def expanded(target: CriticTarget, expansion: Expansion) -> CriticTarget:
    """Targets (B, P) of which those of the first states are moved to what was found by looking ahead.

    All actions of a state by the same, the difference for the policy's own: their differences stay those of one exact
    decision.
    """
    count = min(len(expansion.value), len(target.mean))
    moved = target.mean[:count] + (expansion.value[:count] - target.mean[:count, OWN]).unsqueeze(-1)
    whole = moved if expansion.references is None else moved + expansion.references[:count].unsqueeze(-1)
    samples = whole.unsqueeze(-1) + expansion.spread[:, :count].unsqueeze(2)
    weights = torch.ones(len(target.mean), device=moved.device)
    weights[:count] = expansion.weight
    means, of_all = torch.cat([moved, target.mean[count:]]), torch.cat([samples, target.samples[:, count:]], dim=1)
    return CriticTarget(means, of_all, weights)


def _density_here(batch: Batch, log_density: Tensor) -> Tensor:
    """Log density (batch, P) of proposals for the next state as proposals for the state.

    Infinite where an asset lists or ends between the two: such proposals lie on another simplex and have no weight.
    """
    if batch.both.complete:
        return log_density
    states, following = batch.states, batch.next_states
    changed = repeat_groups((states.listed != following.listed).any(dim=-1, keepdim=True), states)
    return log_density.masked_fill(changed, float("inf"))
