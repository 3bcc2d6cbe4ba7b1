"""Losses of one update of distributional soft actor-critic with a calibrated conservative penalty.

A pure function of networks, batch and noise: it changes no parameter. `BCell.update_sac` takes the gradient steps.
Another target of the critics is another function with the signature of `truncated_target`.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications.
Kuznetsov et al. (2020), Truncated Quantile Critics.
Kumar et al. (2020), Conservative Q-Learning. Nakamoto et al. (2023), Cal-QL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States, repeat_groups
from finflow.agent.gradient_steps import linearised_value
from finflow.agent.losses.losses import (
    CriticTarget,
    actor_loss,
    critic_loss,
    critic_target,
    pessimistic_value,
    temperature_loss,
)
from finflow.agent.losses.regularisers import CoverageProposals, conservative_penalty, policy_regulariser
from finflow.agent.losses.risk import needs_quantiles, risk_adjusted_value
from finflow.agent.networks.critic import CriticEnsemble
from finflow.agent.networks.decision import Decision
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.logistic_normal import LogisticNormal, kl_per_dimension, standard_normal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import BCellConfig
from finflow.cores import run_both

TRUNCATION_UPDATES = 2000  # over which the truncation of top quantiles grows from none, as in IQL, to its full size

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
    device: torch.device
    reference_beta: float
    advantage_scale: float

    @property
    def held_to(self) -> ExpertPolicy:
        """Policy that the penalty for leaving a reference is about."""
        ...


class UpdatePoint(NamedTuple):
    """Position of an update in the schedules.

    Attributes
    ----------
    update : int
        Updates done before this one.
    alpha : float or None
        Scheduled entropy coefficient, in place of the tuned one.
    target_entropy : float or None
        Scheduled target entropy, in place of ``bcell.target_entropy``.
    """

    update: int = TRUNCATION_UPDATES
    alpha: float | None = None
    target_entropy: float | None = None


class SacLosses(NamedTuple):
    """Losses of one update.

    Attributes
    ----------
    critic : Tensor, ()
    policy : callable
        Returns the policy's loss, (), and its metrics. On demand, to be computed together with the critics' gradients.
    temperature : Tensor, ()
    cql_weight : Tensor, (), or None
        Of the conservative penalty's weight, where it is tuned.
    decision : Decision
    metrics : dict of Tensor, ()
        Among them the entropy coefficient in use, ``sigma_A``, and the weights that are counted in it.
    """

    critic: Tensor
    policy: Callable[[], tuple[Tensor, Metrics]]
    temperature: Tensor
    cql_weight: Tensor | None
    decision: Decision
    metrics: Metrics


def sac_losses(
    agent: SacNetworks,
    batch: Batch,
    coverage: CoverageProposals | None,
    noise: Generator,
    point: UpdatePoint,
) -> SacLosses:
    """Losses of critics, policy and temperature on a batch.

    Parameters
    ----------
    agent : SacNetworks
    batch : Batch
    coverage : CoverageProposals, optional
        For the conservative penalty; there is none without them, or where its weight is zero.
    noise : Generator
        Draws the actions and dropout.
    point : UpdatePoint
    """
    config, states, policy = agent.config, batch.states, agent.policy
    dropout_noise = noise if config.dropout > 0.0 else None
    conservative = coverage is not None and config.cql_alpha > 0.0
    # the policy's actions now and next
    decision, next_distribution = run_both(
        lambda: policy(states, dropout_noise, least_pull=config.least_pull),
        lambda: action_distribution(policy, batch.next_states),
        agent.device,
    )
    size, coordinates = next_distribution.location.shape
    draws = (size, 1 + config.cql_samples * int(conservative), coordinates)
    drawn, next_drawn = (standard_normal(draws, noise, batch.actions) for _ in range(2))
    actions, log_density = decision.distribution.sample(drawn)
    next_actions, next_log_density = next_distribution.sample(next_drawn)
    entropy_density = decision.distribution.entropy_density(drawn[:, 0])
    # temperature
    share = config.target_entropy if point.target_entropy is None else point.target_entropy
    dimensions = policy.free_dimensions(batch.actions, states)
    target_entropy = policy.target_entropy(share, dimensions)
    alpha = agent.log_alpha.detach().exp()
    if point.alpha is not None:
        alpha = torch.tensor(point.alpha, device=alpha.device)
    temperature = temperature_loss(agent.log_alpha, entropy_density, target_entropy, dimensions)
    unit = agent.advantage_scale
    effective_alpha = unit * alpha
    # critics
    bonus = None
    if config.entropy_backup == "relative":
        following = next_distribution.entropy_density(next_drawn[:, 0])
        ahead = policy.free_dimensions(batch.actions, batch.next_states)
        bonus = effective_alpha * (-following - policy.target_entropy(share, ahead)) / ahead
    if agent.reference_beta > 0.0:
        charge = agent.reference_beta * reference_divergence(agent.held_to, batch.next_states, next_distribution)
        bonus = -charge if bonus is None else bonus - charge
    encoding, target = run_both(
        lambda: agent.critic.encode(states),
        lambda: truncated_target(agent.target_critic, batch, next_actions[:, :1], bonus, point.update, config),
        agent.device,
    )
    portfolios, proposals = batch.actions.unsqueeze(1), None
    if coverage is not None and conservative:
        ahead_density = _density_here(batch, next_log_density[:, 1:])
        proposals = coverage.joined((actions[:, 1:], next_actions[:, 1:]), (log_density[:, 1:], ahead_density))
        portfolios = torch.cat([portfolios, proposals.portfolios], dim=1)
    values = agent.critic.value(encoding, states, portfolios, noise=dropout_noise)
    quantiles = values.quantiles[:, :, 0] if config.n_quantiles > 1 else None
    of_critics, metrics = critic_loss(values.mean[..., 0], quantiles, target)
    # conservative penalty
    cql_weight = None
    if proposals is not None:
        penalty = conservative_penalty(values.mean, proposals, batch, config, agent.log_cql_alpha, dimensions, unit)
        of_critics, cql_weight = of_critics + penalty.loss, penalty.weight_loss
        metrics |= penalty.metrics

    def of_policy() -> tuple[Tensor, Metrics]:
        value = minimum_value(agent.critic, encoding.detach(), states, actions[:, :1], config)
        loss = actor_loss(entropy_density, value, effective_alpha, dimensions)
        regulariser, penalties = policy_regulariser(policy, decision, batch, agent.prior, point.update, config, unit)
        if agent.reference_beta > 0.0:
            divergence = reference_divergence(agent.held_to, states, decision.distribution).mean()
            regulariser = regulariser + agent.reference_beta * divergence
            penalties["reference_divergence"] = divergence.detach()
        entropy = -log_density[:, 0].mean().detach()
        return loss + regulariser, {"actor_loss": loss.detach(), "entropy": entropy, **penalties}

    metrics |= {"alpha": alpha, "advantage_scale": alpha.new_tensor(unit), "effective_alpha": effective_alpha}
    return SacLosses(of_critics, of_policy, temperature, cql_weight, decision, metrics)


def _density_here(batch: Batch, log_density: Tensor) -> Tensor:
    """Log density (batch, P) of proposals for the next state as proposals for the state.

    Infinite where an asset lists or ends between the two, so that such proposals, which lie on another simplex, have no
    weight.
    """
    if batch.both.complete:
        return log_density
    states, following = batch.states, batch.next_states
    changed = repeat_groups((states.listed != following.listed).any(dim=-1, keepdim=True), states)
    return log_density.masked_fill(changed, float("inf"))


@torch.no_grad()
def action_distribution(policy: ExpertPolicy, states: States) -> LogisticNormal:
    """Distribution of a policy's actions, without gradients."""
    decision: Decision = policy(states)
    return decision.distribution


def reference_divergence(reference: ExpertPolicy, states: States, distribution: LogisticNormal) -> Tensor:
    """KL of a distribution from that of a frozen reference in the states, nats per free dimension, (batch,)."""
    return kl_per_dimension(distribution, action_distribution(reference, states))


@torch.no_grad()
def truncated_target(
    target_critic: CriticEnsemble,
    batch: Batch,
    next_actions: Tensor,
    bonus: Tensor | None,
    update: int,
    config: BCellConfig,
) -> CriticTarget:
    """Target from the least truncated mean of the target critics at the next action.

    Parameters
    ----------
    target_critic : CriticEnsemble
    batch : Batch
    next_actions : Tensor, (B, 1, K)
    bonus : Tensor, (B,), optional
        Of entropy, added to the next value.
    update : int
        Updates done: truncation grows over the first of them.
    config : BCellConfig
    """
    ahead = target_critic.value(target_critic.encode(batch.next_states), batch.next_states, next_actions)
    spread = ahead.spread[:, :, 0]
    dropped = min(config.dropped_quantiles, config.n_quantiles - 1)
    next_value = pessimistic_value(ahead.mean[..., 0], spread, dropped, min(update / TRUNCATION_UPDATES, 1.0))
    return critic_target(batch, next_value if bonus is None else next_value + bonus, spread, config.gamma)


def minimum_value(
    critic: CriticEnsemble, encoding: Encoding, states: States, actions: Tensor, config: BCellConfig
) -> Tensor:
    """Least value over critics of actions (B, 1, K) under the risk measure, (B,); gradients reach the action alone."""

    def value_of(action: Tensor) -> Tensor:
        valuation = critic.value(encoding, states, action, int(needs_quantiles(config)))
        return risk_adjusted_value(valuation, config).min(dim=0).values

    return linearised_value(actions, value_of)[:, 0]
