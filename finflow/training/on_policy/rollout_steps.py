"""Decisions of a policy in portfolios that step together, with raw rewards."""

from __future__ import annotations

from collections.abc import Mapping
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
from finflow.env.portfolio_state import PortfolioState
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
    charge : Tensor or None
        Scaled reward that the reference takes; None without one.
    rewards, turnover : array
        Raw.
    divergence : float
        Mean KL to the reference in nats per free dimension; 0 without one.
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
    turnover: NDArray[np.float64]
    divergence: float
    episodes: list[EndedEpisode]
    states: list[PortfolioState]


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
    generator : Generator
        Draws the actions.
    """
    taken = [_step(env, policy, market, generator, reference) for _ in range(steps)]
    charges = [step.charge for step in taken if step.charge is not None]
    return RolloutDecisions(
        tuple(torch.stack(pieces) for pieces in zip(*(step.observations for step in taken), strict=True)),
        tuple(torch.stack(pieces) for pieces in zip(*(step.next_observations for step in taken), strict=True)),
        torch.stack([step.actions for step in taken]),
        torch.stack([step.log_prob for step in taken]),
        torch.stack(charges) if charges else None,
        torch.stack([step.terminated for step in taken]),
        torch.stack([step.ended for step in taken]),
        np.stack([step.rewards for step in taken]),
        np.stack([step.turnover for step in taken]),
        sum(step.divergence / steps for step in taken),
        [episode for step in taken for episode in step.episodes],
        [step.states[0] for step in taken],
    )


def _step(
    env: PortfolioVectorEnv,
    policy: ExpertPolicy,
    market: MarketTensors,
    generator: Generator,
    reference: Reference | None,
) -> RolloutDecisions:
    """Take one decision in every portfolio; tensors and arrays are (portfolios, ...)."""
    state = env.state
    observations = observed(env.process, market, state, state.bar)
    states = market.states(observations[0], observations[1])
    distribution = distribution_of(policy, states)
    actions = distribution.sample(generator)
    log_prob = distribution.log_prob(actions)
    _, reward, terminated, truncated, info = env.step(log_portfolio(actions).exp().cpu().numpy())
    following = observed(env.process, market, info.get("final_state", env.state), state.bar + 1)
    charge, divergence = None, 0.0
    if reference is not None:
        other = distribution_of(reference.policy, states)
        charge = reference.beta * (log_prob - other.log_prob(actions)) / distribution.dimensions
        divergence = _mean_divergence(distribution, other)
    ended = terminated | truncated
    return RolloutDecisions(
        observations,
        following,
        actions,
        log_prob,
        charge,
        torch.as_tensor(terminated, device=actions.device).float(),
        torch.as_tensor(ended, device=actions.device).float(),
        reward,
        info["turnover"],
        divergence,
        ended_episodes(info, ended, env.process.env.initial_capital),
        [state],
    )


def observed(
    process: DecisionProcess, market: MarketTensors, state: PortfolioState, bars: NDArray[np.int64]
) -> Observations:
    """Observations of portfolios at bars."""
    device = market.assets.device
    portfolio = torch.as_tensor(process.observed_portfolio(state), dtype=torch.float32, device=device)
    return torch.as_tensor(bars, device=device), portfolio


def _mean_divergence(distribution: PortfolioDistribution, other: PortfolioDistribution) -> float:
    """Mean KL of a batch in nats per free dimension of each action."""
    divergence, dimensions = distribution.kl(other), distribution.dimensions
    if isinstance(dimensions, Tensor):
        return float((divergence / dimensions).mean())
    return float(divergence.mean()) / dimensions
