"""Exact outcomes of decisions: further actions of stored states, and what the actor earns with decisions in a row.

Prices do not react to trades and costs are known, so the rewards of any action, and of the next decisions, are computed
by the ledger itself, with their gradient. What a policy reads of the market does not depend on its portfolio and is
read once.

References
----------
Xu et al. (2022), Accelerated Policy Learning with Parallel Differentiable Simulation: short windows, ended by a critic.
Madeka et al. (2022), Deep Inventory Management. Alvo et al. (2023), Neural Inventory Control in Networks via Hindsight
Differentiable Policy Optimization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, Choices, States
from finflow.agent.learners.soft_actor_critic import (
    Coefficients,
    Expansion,
    UpdatePoint,
    action_distribution,
    ascent,
    minimum_value,
    target_value,
    temperature_loss,
)
from finflow.agent.losses.critic_losses import discounted_return
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.distributions import LogisticNormal, standard_normal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import BatchedPolicies, joined_readings
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState, Step, join_states
from finflow.training.data.replay import make_batch
from finflow.training.data.rollouts import Mirror, PathwiseRollout, RolloutMarket, as_tensors, decide, repeated
from finflow.training.off_policy.learners import Learner

ACTIONS = 8  # of each state: the logged one, holding, the policy's own, and moves


class Comparison(NamedTuple):
    """Policy and random numbers by which further actions of states are drawn."""

    policy: ExpertPolicy
    rng: np.random.Generator
    noise: Generator
    mirror: Mirror


@torch.no_grad()
def compared_actions(
    own: Tensor | None, states: States, count: int, rng: np.random.Generator, size: float | None = None
) -> Tensor:
    """Actions to compare in each state, (batch, count, n): hold, the policy's own, and moves toward any portfolio.

    ``own`` (batch, n): the policy's own, where it is among them. ``size``: share of the way that every move goes; drawn
    from 0..1 for each when left out.
    """
    held = states.weights
    named = [held] if own is None else [held, own]
    (batch, width), moves = held.shape, count - len(named)
    drawn, _ = draw_coverage(rng, batch * moves, width)
    toward = torch.as_tensor(drawn, dtype=torch.float32, device=held.device).view(batch, moves, width)
    listed = torch.cat([states.listed, torch.ones_like(states.listed[:, :1])], dim=1).unsqueeze(1)
    toward = toward * listed
    toward = toward / toward.sum(dim=-1, keepdim=True)
    shares = rng.random((batch, moves, 1)) if size is None else np.full((batch, moves, 1), size)
    share = torch.as_tensor(shares, dtype=torch.float32, device=held.device)
    return torch.cat([torch.stack(named, dim=1), held.unsqueeze(1).lerp(toward, share)], dim=1)


def counterfactual_batch(
    market: RolloutMarket,
    rows: dict[str, Tensor],
    state: PortfolioState,
    compared: Comparison,
    observation_noise: float,
) -> tuple[Batch, LogisticNormal]:
    """Stored states, each with `ACTIONS` actions, the stored one first, and exact outcomes; the policy's own decisions.

    ``market``: with mirrored bars, where there are: rewards are means over both.
    """
    device = market.tensors.market.device
    observed = torch.as_tensor(market.process.observed_portfolio(state), dtype=torch.float32, device=device)
    rows = {**rows, "portfolio": observed}
    batch = make_batch(rows, market.tensors, market.units, compared.noise, observation_noise)
    own = action_distribution(compared.policy, batch.states)
    others = compared_actions(own.centre(), batch.states, ACTIONS - 1, compared.rng)
    actions = torch.cat([batch.actions.unsqueeze(1), others], dim=1)
    many, bars = repeated(state, ACTIONS), rows["bar"].repeat_interleave(ACTIONS)
    targets = actions.flatten(0, 1).double().cpu().numpy()

    def scaled(step: Step) -> Tensor:
        return market.units.scaled(torch.as_tensor(step.reward, device=device).float(), bars)

    step = market.process.step(many, targets)
    rewards = scaled(step)
    if compared.mirror.weight > 0.0:
        other = market.process.step(replace(many, bar=many.bar + compared.mirror.offset), targets)
        rewards = rewards.lerp(scaled(other), compared.mirror.weight)
    after = torch.as_tensor(market.process.observed_portfolio(step.state), dtype=torch.float32, device=device)
    following = batch.next_states._replace(portfolio=after)
    ended = torch.as_tensor(step.terminated, device=device).float()
    shape = (len(observed), ACTIONS)
    return batch._replace(choices=Choices(actions, rewards.view(shape), ended.view(shape), following)), own


@torch.no_grad()
def exact_bounds(
    market: RolloutMarket, behaviour_value: ValueNetwork, rows: Mapping[str, NDArray[Any]], gamma: float
) -> NDArray[np.float32]:
    """Exact returns of a vector step's decisions to its end with the behaviour's value there, (H, n_envs).

    Cal-QL's bound (Nakamoto et al. 2023) of values that were simulated.
    """
    device = market.tensors.market.device
    bars = torch.as_tensor(rows["bar"], device=device)
    portfolio = torch.as_tensor(rows["next_portfolio"][-1], dtype=torch.float32, device=device)
    value = behaviour_value.of_behaviour(market.tensors.states(bars[-1] + 1, portfolio))
    rewards = torch.as_tensor(rows["reward"], device=device).float().flatten()
    earned = market.units.scaled(rewards, bars.flatten())
    going = torch.as_tensor(gamma * ~rows["terminated"], dtype=torch.float32, device=device)
    bounds = [value]
    for reward, discount in zip(earned.view(len(bars), -1).flip(0), going.flip(0), strict=True):
        bounds.append(reward + discount * bounds[-1])
    exact: NDArray[np.float32] = torch.stack(bounds[:0:-1]).cpu().numpy()
    return exact


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
    horizon = config.bcell.expansion
    tables = 2 if learners[0].portfolios.mirror.offset else 1
    readings = [
        market.read(one.agent.policy, start.state, horizon + 1, start.dropout, config.train.observation_noise)
        for one, start in zip(learners, starts, strict=True)
    ]
    policies = BatchedPolicies([one.agent.policy for one in learners])
    reading = joined_readings(readings, horizon + 1, tables)
    begun = join_states(
        [
            replace(start.state, bar=start.state.bar + table * one.portfolios.mirror.offset)
            for one, start in zip(learners, starts, strict=True)
            for table in range(tables)
        ]
    )
    noise, rows = torch.cat([start.noise for start in starts], dim=1), len(begun.bar)
    state = as_tensors(begun, market.tensors.market.device)
    rollout = market.roll_out(policies, reading.rows(0, horizon * rows), state, horizon, noise=noise)
    portfolio = market.process.observed_portfolio(rollout.state).float()
    distribution = decide(policies, portfolio, reading.rows(horizon * rows, (horizon + 1) * rows))
    action, density = distribution.sample(noise[-1].unsqueeze(1))
    ended = _End(
        portfolio, action[:, 0], density[:, 0] / distribution.dimensions, distribution.entropy_density(noise[-1])
    )
    size = rows // len(learners)
    return [
        _objective(market, one, point, rollout, ended, slice(place * size, (place + 1) * size), config)
        for place, one in enumerate(learners)
    ]


class _End(NamedTuple):
    portfolio: Tensor
    action: Tensor
    log_density: Tensor
    entropy_density: Tensor


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
    bars = torch.as_tensor(rollout.state.bar[rows], device=ended.action.device) % len(market.tensors.market)
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
