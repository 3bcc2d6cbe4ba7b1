"""The actor's objective: exact decisions of several learners side by side, and the critics' value of where they end.

Prices do not react to trades and costs are known, so the rewards of the next decisions are computed by the ledger
itself, with their gradient. What a policy reads of the market does not depend on its portfolio and is read once.

References
----------
Xu et al. (2022), Accelerated Policy Learning with Parallel Differentiable Simulation: short windows, ended by a critic.
Madeka et al. (2022), Deep Inventory Management. Alvo et al. (2023), Neural Inventory Control in Networks via Hindsight
Differentiable Policy Optimization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.learners.soft_actor_critic import (
    Coefficients,
    Expansion,
    UpdatePoint,
    ascent,
    minimum_value,
    target_value,
    temperature_loss,
)
from finflow.agent.losses.critic_losses import discounted_return
from finflow.agent.networks.decision import MarketReading
from finflow.agent.networks.logistic_normal import LogisticNormal, standard_normal
from finflow.agent.networks.policy_ensemble import BatchedPolicies, joined_readings
from finflow.config import Config
from finflow.env.portfolio_state import PortfolioState, rows_of
from finflow.training.data.rollouts import PathwiseRollout, RolloutMarket, as_tensors, decide, joined_states
from finflow.training.off_policy.learners import Learner


class Ahead(NamedTuple):
    """Objective of one learner.

    ``earned``, ``end``: its two parts, a decision, in sigma_A: rewards with entropies, and the value at the end.
    """

    earned: Tensor
    end: Tensor
    temperature: Tensor
    metrics: dict[str, Tensor]
    expansion: Expansion | None


class Start(NamedTuple):
    """Portfolios that a learner looks ahead from, and the random numbers of its decisions.

    ``noise`` (H + 1, tables * batch, n - 1): standard normal; the same for mirrored bars with the opposite sign.
    """

    state: PortfolioState
    noise: Tensor
    dropout: Generator | None

    @classmethod
    def of(cls, market: RolloutMarket, learner: Learner, state: PortfolioState, config: Config) -> Start:
        like = market.tensors.market
        size = (config.bcell.expansion + 1, len(state.bar), market.tensors.n_weights - 1)
        noise = standard_normal(size, learner.noise, like)
        if learner.portfolios.mirror.offset:
            noise = torch.cat([noise, -noise], dim=1)
        dropout = None
        if config.bcell.dropout > 0.0 or config.train.observation_noise > 0.0:
            seed = torch.randint(2**62, (), generator=learner.noise, device=like.device)
            dropout = Generator(device=like.device).manual_seed(int(seed))
        return cls(state, noise, dropout)


def look_ahead(
    market: RolloutMarket,
    learners: Sequence[Learner],
    starts: Sequence[Start],
    point: UpdatePoint,
    config: Config,
) -> list[Ahead]:
    """Objectives of learners that look ahead from portfolios of their own, in the same operations."""
    horizon, device = config.bcell.expansion, market.tensors.market.device
    tables = 2 if learners[0].portfolios.mirror.offset else 1
    states = [as_tensors(start.state, device) for start in starts]
    readings = [
        market.read(one.agent.policy, state, horizon + 1, start.dropout, config.train.observation_noise)
        for one, start, state in zip(learners, starts, states, strict=True)
    ]
    policies = BatchedPolicies([one.agent.policy for one in learners])
    reading = joined_readings(readings, horizon + 1, tables)
    begun = joined_states(
        [
            replace(state, bar=state.bar + table * one.portfolios.mirror.offset)
            for one, state in zip(learners, states, strict=True)
            for table in range(tables)
        ]
    )
    noise = torch.cat([start.noise for start in starts], dim=1)
    rows = len(begun.bar)
    rollout = market.roll_out(policies, reading.rows(0, horizon * rows), begun, horizon, noise=noise)
    ended = _End.of(market, policies, reading.rows(horizon * rows, (horizon + 1) * rows), rollout.state, noise[-1])
    size = rows // len(learners)
    return [
        _objective(market, one, point, rollout, ended, slice(place * size, (place + 1) * size), config)
        for place, one in enumerate(learners)
    ]


class _End(NamedTuple):
    state: PortfolioState
    portfolio: Tensor
    action: Tensor
    log_density: Tensor
    entropy_density: Tensor

    @classmethod
    def of(
        cls,
        market: RolloutMarket,
        policies: BatchedPolicies,
        reading: MarketReading,
        state: PortfolioState,
        noise: Tensor,
    ) -> _End:
        portfolio = market.process.observed_portfolio(state).float()
        distribution: LogisticNormal = decide(policies, portfolio, reading)
        action, density = distribution.sample(noise.unsqueeze(1))
        of_scale = distribution.entropy_density(noise)
        return cls(state, portfolio, action[:, 0], density[:, 0] / distribution.dimensions, of_scale)


def _objective(
    market: RolloutMarket,
    learner: Learner,
    point: UpdatePoint,
    rollout: PathwiseRollout,
    ended: _End,
    rows: slice,
    config: Config,
) -> Ahead:
    """Objective of the learner whose rows these are: tables, one after the other, of its portfolios."""
    bcell, agent = config.bcell, learner.agent
    state = rows_of(ended.state, rows)
    bars = torch.as_tensor(state.bar, device=ended.action.device) % len(market.tensors.market)
    states = market.tensors.states(bars, ended.portfolio[rows])
    with torch.no_grad():
        encoding = agent.critic.encode(states)
    value = minimum_value(agent.critic, encoding, states, ended.action[rows], bcell)
    coefficients = Coefficients.of(agent, ended.action[rows], states, point)
    density = ended.log_density[rows].unsqueeze(0)
    if rollout.log_density is not None:
        density = torch.cat([rollout.log_density[:, rows], density])
    parts = ascent(rollout.rewards[:, rows], density, value, coefficients.effective_alpha, bcell.gamma)
    unit = max(bcell.expansion, 1) * agent.advantage_scale
    own = learner.portfolios.mirror.weight
    shares = parts[0].new_tensor([1.0 - own, own] if learner.portfolios.mirror.offset else [1.0])
    earned, end = (shares @ part.view(len(shares), -1).mean(dim=1) / unit for part in parts)
    half = len(bars) // len(shares)
    metrics = {
        "actor_loss": -(earned + end).detach(),
        "entropy": -density.mean().detach(),
        "end_value": value.detach().mean(),
        "turnover": rollout.turnover[rows][:half].float().mean(),
    }
    of_temperature = temperature_loss(
        agent.log_alpha, ended.entropy_density[rows], coefficients.target_entropy, coefficients.dimensions
    )
    expansion = None
    if bcell.expansion > 0 and bcell.counterfactual:
        ahead, spread = target_value(agent, states, ended.action[rows].detach().unsqueeze(1), point)
        discount = bcell.gamma**bcell.expansion
        value = discounted_return(rollout.rewards[:, rows].detach(), bcell.gamma) + discount * ahead
        before = torch.arange(bcell.expansion, device=bars.device).unsqueeze(1) + bars[:half] - bcell.expansion
        known = market.units.references(before.flatten())
        references = None if known is None else discounted_return(known.view(before.shape), bcell.gamma)
        mixed = shares @ value.view(len(shares), half)
        expansion = Expansion(mixed, discount * spread[:, :half], references, bcell.expansion**-2)
    return Ahead(earned, end, of_temperature, metrics, expansion)
