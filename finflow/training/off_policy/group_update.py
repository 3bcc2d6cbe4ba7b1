"""One update of learners side by side: critics by the outcomes of stored states, actors by exact decisions.

Learners of a group are computed together whatever the number of cores. Both gradients are taken at the same parameters.

References
----------
Xu et al. (2022), Accelerated Policy Learning with Parallel Differentiable Simulation: short windows, ended by a critic.
Madeka et al. (2022), Deep Inventory Management. Alvo et al. (2023), Neural Inventory Control in Networks via Hindsight
Differentiable Policy Optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import compute_gradients, no_denormals
from finflow.agent.learners.soft_actor_critic import (
    Coefficients,
    Draws,
    Expansion,
    UpdatePoint,
    ascent,
    critics_losses,
    held_back,
    is_conservative,
    minimum_value,
    target_value,
    temperature_loss,
)
from finflow.agent.losses.off_policy_losses import CoverageProposals, discounted_return
from finflow.agent.networks.decision import MarketReading
from finflow.agent.networks.distributions import LogisticNormal, standard_normal
from finflow.agent.networks.policy_ensemble import BatchedPolicies, joined_readings
from finflow.config import Config
from finflow.env.decision_process import RUIN, DecisionProcess
from finflow.env.portfolio_state import PortfolioState, join_states, rows_of
from finflow.training.data.fused_rollout import can_follow, followed_path
from finflow.training.data.replay import CoveragePool, join_rows, make_batch
from finflow.training.data.rollouts import PathwiseRollout, RolloutMarket, as_tensors, decided
from finflow.training.off_policy.exact_decisions import ACTIONS, counterfactual_batch
from finflow.training.off_policy.learners import Learner

Metrics = dict[str, Tensor]
Steps = dict[str, NDArray[Any]]  # (horizon, batch, ...), by `STEPS`
STEPS = ("alive", "bar", "portfolio", "action", "reward", "next_portfolio", "terminated", "simple_return")
FIRST_SHARE, LAST_SHARE = 0.75, 0.25  # of the behaviour's data in the first and the last batch


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
    market: RolloutMarket, learners: Sequence[Learner], starts: Sequence[Start], point: UpdatePoint, config: Config
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
    rollout = market.roll_out(policies, reading.rows(0, horizon * rows), state, horizon, noise=noise[:horizon])
    portfolio = market.process.observed_portfolio(rollout.state).float()
    distribution = decided(policies, portfolio, reading.rows(horizon * rows, (horizon + 1) * rows))
    action, density = distribution.sample(noise[-1].unsqueeze(1))
    densities = (density[:, 0] / distribution.dimensions).unsqueeze(0)
    if rollout.log_density is not None:
        densities = torch.cat([rollout.log_density, densities])
    ended = portfolio, action[:, 0], distribution.entropy_density(noise[-1])
    size = rows // len(learners)
    return [
        _objective(market, one, point, config, rollout, densities, ended, slice(place * size, (place + 1) * size))
        for place, one in enumerate(learners)
    ]


def _objective(
    market: RolloutMarket,
    learner: Learner,
    point: UpdatePoint,
    config: Config,
    rollout: PathwiseRollout,
    densities: Tensor,
    ended: tuple[Tensor, Tensor, Tensor],
    rows: slice,
) -> Ahead:
    """Objective of the learner whose rows these are: tables, one after the other, of its portfolios.

    ``densities`` (H + 1, batch): of all decisions, per free dimension. ``ended``: portfolios at the end, the decisions
    there, and their densities of log ratios.
    """
    bcell, agent = config.bcell, learner.agent
    portfolio, action, entropy_density = (part[rows] for part in ended)
    bars = torch.as_tensor(rollout.state.bar[rows], device=action.device) % len(market.tensors.market)
    states, rewards = market.tensors.states(bars, portfolio), rollout.rewards[:, rows]
    density = densities[:, rows].contiguous()  # sums in the same order however many learners there are
    with torch.no_grad():
        encoding = agent.critic.encode(states)
    value = minimum_value(agent.critic, encoding, states, action, bcell)
    coefficients = Coefficients.of(agent, action, states, point)
    parts = ascent(rewards, density, value, coefficients.effective_alpha, bcell.gamma)
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
        agent.log_alpha, entropy_density, coefficients.target_entropy, coefficients.dimensions
    )
    expansion = None
    if bcell.expansion > 0 and bcell.counterfactual:
        ahead, spread = target_value(agent, states, action.detach().unsqueeze(1), point)
        discount = bcell.gamma**bcell.expansion
        value = discounted_return(rewards.detach(), bcell.gamma) + discount * ahead
        before = torch.arange(bcell.expansion, device=bars.device).unsqueeze(1) + bars[:half] - bcell.expansion
        known = market.units.references(before.flatten())
        references = None if known is None else discounted_return(known.view(before.shape), bcell.gamma)
        mixed = shares @ value.view(len(shares), half)
        expansion = Expansion(mixed, discount * spread[:, :half], references, bcell.expansion**-2)
    return Ahead(earned, end, of_temperature, metrics, expansion)


class Material(NamedTuple):
    """Data that the learners of a training share; ``market``: with their mirrored bars."""

    market: RolloutMarket
    coverage: CoveragePool
    config: Config


class Drawn(NamedTuple):
    """States that one learner learns from, with all random numbers.

    ``own``: the policy's decisions in its states, where they are known. ``start``: portfolios that the actor looks
    ahead from, where it learns: the first states of the batch among them.
    """

    batch: Batch
    own: LogisticNormal | None
    coverage: CoverageProposals
    draws: Draws
    start: Start | None


def draw(material: Material, learner: Learner, point: UpdatePoint, actor: bool) -> Drawn:
    """Draw states of the behaviour and of the learner's own, their shares annealed.

    The actor decides as often as critics have transitions: it looks ahead from ``online_batch_size / H`` states.
    """
    config, market = material.config, material.market
    bcell, size, noise = config.bcell, config.train.online_batch_size, config.train.observation_noise
    count = max(size // (ACTIONS if bcell.counterfactual else 1), 2)  # each action is a transition
    starts = max(size // max(bcell.expansion, 1), 1) if actor else 0
    may_start = torch.from_numpy(learner.portfolios.may_start).to(learner.noise.device)
    parts = [_mixed(learner, starts, point, may_start)] if starts else []
    if count > starts:
        parts.append(_mixed(learner, count - starts, point))
    rows, own = {name: column[:count] for name, column in join_rows(parts).items()}, None
    start = Start.of(market, learner, market.resumed(parts[0]), config) if starts else None
    if bcell.counterfactual:
        portfolios, policy = learner.portfolios, learner.agent.policy
        batch, own = counterfactual_batch(market, rows, policy, portfolios.rng, learner.noise, portfolios.mirror, noise)
    else:
        batch = make_batch(rows, market.tensors, market.units, learner.noise, noise)
    coverage = material.coverage.draw(batch.states, bcell.cql_samples, learner.noise)
    draws = Draws.of(learner.agent, batch, learner.noise, is_conservative(bcell, coverage))
    return Drawn(batch, own, coverage, draws, start)


def _mixed(learner: Learner, count: int, point: UpdatePoint, allowed: Tensor | None = None) -> dict[str, Tensor]:
    share = FIRST_SHARE + (LAST_SHARE - FIRST_SHARE) * point.progress
    behaviour = round(share * count) if len(learner.replay) else count
    parts = ((learner.behaviour, behaviour), (learner.replay, count - behaviour))
    return join_rows([store.draw(size, learner.noise, allowed) for store, size in parts if size > 0])


@no_denormals()
def update_group(
    material: Material,
    learners: Sequence[Learner],
    point: UpdatePoint,
    actor: bool,
    accepts: Callable[[Batch], bool] = lambda _: True,
) -> list[Metrics]:
    """Take one step of critics, policies and temperatures of the learners of a group.

    Where ``accepts`` refuses a batch, nobody in the group takes a step.

    Returns figures of each; none where no step was taken.
    """
    config, device = material.config, material.market.tensors.market.device
    drawn = [draw(material, one, point, actor) for one in learners]
    if not all(accepts(its.batch) for its in drawn):
        return [{} for _ in learners]
    steps = []
    with torch.autocast(device.type, torch.bfloat16, enabled=config.bcell.mixed_precision, cache_enabled=False):
        ahead = _actors(material, learners, drawn, point) if actor else [None for _ in learners]
        for one, its, own in zip(learners, drawn, ahead, strict=True):
            coefficients = Coefficients.of(one.agent, its.batch.actions, its.batch.states, point)
            expansion = None if own is None else own.expansion
            of_critics = critics_losses(
                one.agent, its.batch, its.coverage, its.draws, coefficients, point, None, its.own, expansion
            )
            compute_gradients(of_critics.loss, one.agent.critic_optimiser)
            steps.append((one.agent, own, of_critics, coefficients))
    found: list[Metrics] = []
    for agent, own, of_critics, coefficients in steps:
        if of_critics.level_error is not None:
            agent.move_level(of_critics.level_error, point)
        metrics = of_critics.metrics | agent.step_critics(of_critics.cql_weight) | agent.logged(coefficients)
        if own is not None:
            metrics |= own.metrics | agent.step_policy(own.temperature, point)
        found.append(metrics)
    return found


def _actors(material: Material, learners: Sequence[Learner], drawn: Sequence[Drawn], point: UpdatePoint) -> list[Ahead]:
    """Objectives of the actors; their gradients are computed."""
    config, anchor = material.config, material.config.bcell.anchor
    starts = [its.start for its in drawn if its.start is not None]
    ahead = look_ahead(material.market, learners, starts, point, config)
    loss = -torch.stack([one.earned + one.end for one in ahead]).sum()
    if max(anchor.weight, anchor.final or 0.0) > 0.0:
        for its, one, start, own in zip(drawn, learners, starts, ahead, strict=True):
            decision = one.agent.policy(its.batch.states, start.dropout)
            penalty, figures = held_back(one.agent, decision, its.batch, point)
            own.metrics.update(figures)
            loss = loss + penalty / one.agent.advantage_scale
    compute_gradients(loss, *(one.agent.policy_optimiser for one in learners))
    return ahead


@torch.no_grad()
def step_portfolios(market: RolloutMarket, learners: Sequence[Learner], config: Config) -> list[dict[str, np.ndarray]]:
    """Move every portfolio of a group by a step of exact decisions drawn from its policy; the transitions of each.

    Portfolios that are ruined on the way have no transitions after that.
    """
    horizon, tensors = max(config.bcell.expansion, 1), market.tensors
    device = tensors.market.device
    states = [one.portfolios.state for one in learners]
    readings = [market.read(one.agent.policy, state, horizon) for one, state in zip(learners, states, strict=True)]
    policies, reading = BatchedPolicies([one.agent.policy for one in learners]), joined_readings(readings, horizon)
    state, count = join_states(states), len(states[0].bar)
    size = (horizon, count, tensors.n_weights - 1)
    noise = torch.cat([torch.randn(size, generator=one.noise, device=device) for one in learners], dim=1)
    if can_follow(policies, market.process, reading):
        state, stacked = _followed_steps(market.process, policies, reading, state, noise)
    else:
        state, stacked = _stepped(market.process, policies, reading, state, noise)
    found = []
    for place, one in enumerate(learners):
        own = slice(place * count, (place + 1) * count)
        one.portfolios.move_on(rows_of(state, own))
        found.append({name: part[:, own] for name, part in stacked.items()})
    return found


def _stepped(
    process: DecisionProcess, policies: BatchedPolicies, reading: MarketReading, state: PortfolioState, noise: Tensor
) -> tuple[PortfolioState, Steps]:
    """State after drawn decisions, and their transitions, one decision after the other."""
    rows, steps = len(state.bar), []
    alive, before = np.ones(rows, dtype=np.bool_), process.observed_portfolio(state)
    for h in range(len(noise)):
        portfolio = torch.as_tensor(before, dtype=torch.float32, device=noise.device)
        distribution = decided(policies, portfolio, reading.rows(h * rows, (h + 1) * rows))
        action = distribution.draw(noise[h]).exp().cpu().numpy()
        step = process.step(state, action.astype(np.float64))
        after = process.observed_portfolio(step.state)
        steps.append((alive, state.bar, before, action, step.reward, after, step.terminated, step.simple_return))
        alive, state, before = alive & ~step.terminated, step.state, after
    return state, {name: np.stack(parts) for name, parts in zip(STEPS, zip(*steps, strict=True), strict=True)}


def _followed_steps(
    process: DecisionProcess, policies: BatchedPolicies, reading: MarketReading, state: PortfolioState, noise: Tensor
) -> tuple[PortfolioState, Steps]:
    """The same by compiled loops."""
    path, horizon = followed_path(process, policies, reading, state, noise), len(noise)
    rewards, _, _, growth = path.outcome
    wealth = state.wealth * growth.cumprod(axis=0)
    ruined = wealth <= RUIN * process.env.initial_capital
    alive = np.concatenate([np.ones_like(ruined[:1]), ~np.logical_or.accumulate(ruined)[:-1]])
    portfolios = np.concatenate([path.weights, process.objective.observe(path.objective[:-1])], axis=-1)
    bars = state.bar + np.arange(horizon)[:, None]
    action = path.action.astype(np.float32)
    parts = (alive, bars, portfolios[:-1], action, rewards, portfolios[1:], ruined, growth - 1.0)
    after = PortfolioState(state.bar + horizon, path.weights[-1], wealth[-1], path.objective[-1], path.objective[-2])
    return after, dict(zip(STEPS, parts, strict=True))
