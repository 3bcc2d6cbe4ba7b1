"""Decisions of a policy in portfolios that step together, with raw rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.networks.logistic_normal import log_portfolio
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.policy_interface import Observations
from finflow.config import OnlineConfig
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, WorldState, universe_of
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.replay import MarketTensors
from finflow.training.on_policy.market_actor_critic import PortfolioDistribution, distribution_of


class EndedEpisode(NamedTuple):
    """An episode that ended.

    Attributes
    ----------
    net_return : float
        Net simple return of the whole episode.
    sharpe : float
        Sharpe ratio of its returns in excess of cash, a year.
    """

    net_return: float
    sharpe: float


def ended_episodes(info: Mapping[str, Any], ended: NDArray[np.bool_], capital: float) -> list[EndedEpisode]:
    """Episodes that ended in a step of the vector environment, by its info; ``capital`` is what each began with."""
    return [
        EndedEpisode(float(info["wealth"][place]) / capital - 1.0, float(info["sharpe"][place]))
        for place in np.flatnonzero(ended)
    ]


class Reference(NamedTuple):
    """Frozen policy that decisions are charged for leaving.

    Attributes
    ----------
    policy : ExpertPolicy
    beta : float
        Scaled reward per nat and free dimension.
    """

    policy: ExpertPolicy
    beta: float


class RolloutDecisions(NamedTuple):
    """Decisions of several portfolios together, each tensor and array (steps, portfolios, ...).

    Attributes
    ----------
    observations, next_observations : tuple of Tensor
        The second before a new episode began.
    actions : Tensor
        Log ratios.
    log_prob : Tensor
    charge : Tensor or None
        Scaled reward that the reference takes; None without one.
    terminated, ended : Tensor
    rewards, constrained, turnover : array
        Raw; of the reward with a limit zeros where there is none.
    divergence : float
        Mean KL to the reference in nats per free dimension; 0 without one.
    episodes : list of EndedEpisode
    states : list of PortfolioState
        Of the environments before each step.
    """

    observations: Observations
    next_observations: Observations
    actions: Tensor
    log_prob: Tensor
    charge: Tensor | None
    terminated: Tensor
    ended: Tensor
    rewards: NDArray[np.float64]
    constrained: NDArray[np.float64]
    turnover: NDArray[np.float64]
    divergence: float
    episodes: list[EndedEpisode]
    states: list[PortfolioState]

    def map_tensors(self, convert: Callable[[Any], Any]) -> RolloutDecisions:
        """The same decisions with each tensor converted, or each array that a worker sent in place of one."""
        changes: dict[str, Any] = {name: convert(getattr(self, name)) for name in ("actions", "log_prob")}
        changes |= {name: convert(getattr(self, name)) for name in ("terminated", "ended")}
        for name in ("observations", "next_observations"):
            changes[name] = tuple(convert(part) for part in getattr(self, name))
        return self._replace(charge=None if self.charge is None else convert(self.charge), **changes)


def start_groups(env: PortfolioVectorEnv, online: OnlineConfig) -> None:
    """Reset all portfolios: those of a group to one bar and one portfolio."""
    rng, groups = env.np_random, env.num_envs // online.group_size
    bars = rng.choice(env.starts, size=groups)
    weights, _ = draw_coverage(rng, groups, env.process.n_weights)
    env.reset(
        options={
            "bars": np.repeat(bars, online.group_size),
            "weights": np.repeat(weights, online.group_size, axis=0),
        }
    )


@torch.no_grad()
def decide(
    env: PortfolioVectorEnv,
    policy: ExpertPolicy,
    market: MarketTensors,
    generator: Generator,
    steps: int,
    reference: Reference | None = None,
) -> RolloutDecisions:
    """Step the environments so many times from their present state, by actions drawn from a policy.

    Parameters
    ----------
    env : PortfolioVectorEnv
    policy : ExpertPolicy
    market : MarketTensors
    generator : Generator
        Draws the actions.
    steps : int
    reference : Reference, optional
    """
    taken = [_step(env, policy, market, generator, reference) for _ in range(steps)]
    joined = join_decisions(taken, [step.states[0] for step in taken], dim=0)
    return joined._replace(divergence=sum(step.divergence / steps for step in taken))


def join_decisions(parts: Sequence[RolloutDecisions], states: list[PortfolioState], dim: int) -> RolloutDecisions:
    """Join decisions of consecutive steps (``dim`` 0) or of several portfolios (``dim`` 1), with the states given."""

    def joined(pieces: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(pieces), dim=dim)

    charges = [part.charge for part in parts if part.charge is not None]
    return RolloutDecisions(
        tuple(joined(pieces) for pieces in zip(*(part.observations for part in parts), strict=True)),
        tuple(joined(pieces) for pieces in zip(*(part.next_observations for part in parts), strict=True)),
        joined(part.actions for part in parts),
        joined(part.log_prob for part in parts),
        joined(charges) if charges else None,
        joined(part.terminated for part in parts),
        joined(part.ended for part in parts),
        np.concatenate([part.rewards for part in parts], axis=dim),
        np.concatenate([part.constrained for part in parts], axis=dim),
        np.concatenate([part.turnover for part in parts], axis=dim),
        fmean(part.divergence for part in parts),
        [episode for part in parts for episode in part.episodes],
        states,
    )


def _step(
    env: PortfolioVectorEnv,
    policy: ExpertPolicy,
    market: MarketTensors,
    generator: Generator,
    reference: Reference | None,
) -> RolloutDecisions:
    """Take one decision in every portfolio."""
    state = env.state
    observations = observed(env.process, market, state, state.bar)
    bars, portfolio, *universe = observations
    states = market.states(bars, portfolio, universe=universe[0] if universe else None)
    distribution = distribution_of(policy, states)
    actions = distribution.sample(generator)
    log_prob = distribution.log_prob(actions)
    targets = market.scatter_assets(log_portfolio(actions).exp(), universe[0] if universe else None)
    _, reward, terminated, truncated, info = env.step(targets.cpu().numpy())
    members = universe_of(state)
    following = observed(env.process, market, info.get("final_state", env.state), state.bar + 1, members)
    charge, divergence = None, 0.0
    if reference is not None:
        other = distribution_of(reference.policy, states)
        charge = (reference.beta * (log_prob - other.log_prob(actions)) / distribution.dimensions)[None]
        divergence = _mean_divergence(distribution, other)
    ended = terminated | truncated
    return RolloutDecisions(
        tuple(part[None] for part in observations),
        tuple(part[None] for part in following),
        actions[None],
        log_prob[None],
        charge,
        torch.as_tensor(terminated, device=actions.device).float()[None],
        torch.as_tensor(ended, device=actions.device).float()[None],
        reward[None],
        info.get("constraint", np.zeros_like(reward))[None],
        info["turnover"][None],
        divergence,
        ended_episodes(info, ended, env.process.env.initial_capital),
        [state],
    )


def observed(
    process: DecisionProcess,
    market: MarketTensors,
    state: PortfolioState,
    bars: NDArray[np.int64],
    universe: NDArray[np.int64] | None = None,
) -> Observations:
    """Observations of portfolios at bars, of the sub-universes given, or else of the states'."""
    device = market.assets.device
    portfolio = torch.as_tensor(process.observed_portfolio(state), dtype=torch.float32, device=device)
    parts = (torch.as_tensor(bars, device=device), portfolio)
    if market.members is None or not isinstance(state, WorldState):
        return parts
    return (*parts, torch.as_tensor(state.universe if universe is None else universe, device=device))


def _mean_divergence(distribution: PortfolioDistribution, other: PortfolioDistribution) -> float:
    """Mean KL of a batch in nats per free dimension of each action."""
    divergence, dimensions = distribution.kl(other), distribution.dimensions
    if isinstance(dimensions, Tensor):
        return float((divergence / dimensions).mean())
    return float(divergence.mean()) / dimensions
