"""Rollouts on the market: decisions of the policy in several portfolios, and their advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.networks.logistic_normal import log_portfolio
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.on_policy_losses import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import Observations, Rollout
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.market_actor_critic import MarketActorCritic, PortfolioDistribution, distribution_of
from finflow.training.on_policy.on_policy_state import SegmentRewards


class EndedEpisode(NamedTuple):
    """An episode that ended.

    ``net_return``: net simple return of the whole episode. ``sharpe``: Sharpe ratio of its returns in excess of cash, a
    year.
    """

    net_return: float
    sharpe: float


class Reference(NamedTuple):
    """Frozen policy that decisions are charged for leaving. ``beta``: scaled reward per nat and free dimension."""

    policy: ExpertPolicy
    beta: float


class RolloutDecisions(NamedTuple):
    """Decisions of several portfolios together, each tensor and array (steps, portfolios, ...)."""

    observations: Observations  # to decide at
    next_observations: Observations  # before a new episode began
    actions: Tensor  # log ratios
    log_prob: Tensor
    charge: Tensor | None  # scaled reward that the reference takes; None without one
    terminated: Tensor
    ended: Tensor
    rewards: NDArray[np.float64]  # raw
    divergence: float  # mean KL to the reference in nats per free dimension; 0 without one
    episodes: list[EndedEpisode]
    states: list[PortfolioState]


@torch.no_grad()
def decide(
    env: PortfolioVectorEnv,
    policy: ExpertPolicy,
    market: MarketTensors,
    generator: Generator,
    steps: int,
    reference: Reference | None = None,
) -> RolloutDecisions:
    """Step the environments so many times from their present state, by actions drawn from a policy."""
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
    ended, capital = terminated | truncated, env.process.env.initial_capital
    return RolloutDecisions(
        observations,
        following,
        actions,
        log_prob,
        charge,
        torch.as_tensor(terminated, device=actions.device).float(),
        torch.as_tensor(ended, device=actions.device).float(),
        reward,
        divergence,
        [
            EndedEpisode(float(info["wealth"][place]) / capital - 1.0, float(info["sharpe"][place]))
            for place in np.flatnonzero(ended)
        ],
        [state],
    )


def observed(
    process: DecisionProcess, market: MarketTensors, state: PortfolioState, bars: NDArray[np.int64]
) -> Observations:
    device = market.assets.device
    portfolio = torch.as_tensor(process.observed_portfolio(state), dtype=torch.float32, device=device)
    return torch.as_tensor(bars, device=device), portfolio


def _mean_divergence(distribution: PortfolioDistribution, other: PortfolioDistribution) -> float:
    divergence, dimensions = distribution.kl(other), distribution.dimensions
    if isinstance(dimensions, Tensor):
        return float((divergence / dimensions).mean())
    return float(divergence.mean()) / dimensions


Accept = Callable[[NDArray[np.float64]], NDArray[np.bool_] | None]
"""Which of the environments' rewards may be learned from; None for all."""


class RewardedDecisions(NamedTuple):
    """Decisions with the rewards that are learned from, each tensor (steps, portfolios).

    ``rewards``: in scaled units, less what the reference takes. ``kept``: decisions to learn from.
    """

    decisions: RolloutDecisions
    rewards: Tensor
    kept: Tensor

    def learnable(self, advantages: Tensor, values: Tensor) -> Rollout:
        """The decisions to learn from in one dimension, with targets ``advantages + values``."""
        decisions, kept = self.decisions, self.kept.flatten()
        parts = (decisions.actions, decisions.log_prob, values, advantages, advantages + values)
        observations = tuple(part.flatten(0, 1) for part in decisions.observations)
        flat = Rollout(observations, *(part.flatten(0, 1) for part in parts))
        return flat if bool(kept.all()) else flat.rows(kept.nonzero().squeeze(1))


class RolloutCollector:
    """Collects rollouts of a policy; rewards that workers compute are fetched at the end of each."""

    def __init__(
        self,
        env: PortfolioVectorEnv,
        agent: MarketActorCritic,
        units: RewardUnits,
        config: Config,
        generator: Generator,
        accept: Accept,
        queue: RewardQueue | None = None,
        by_segment: SegmentRewards | None = None,
    ) -> None:
        self.env = env
        self.agent = agent
        self.units = units
        self.config = config
        self.generator = generator
        self.accept = accept
        self.queue = queue
        self.by_segment = by_segment

    def collect(self, reference: Reference | None = None) -> tuple[Rollout, RewardedDecisions]:
        """Collect one rollout. ``reference``: each reward is less ``beta (log pi - log pi_ref)`` per free dimension."""
        online = self.config.online
        steps = online.rollout // online.portfolios
        rewarded = self.decide(steps, reference)
        decisions = rewarded.decisions
        values, following = self._values(decisions.observations), self._values(decisions.next_observations)
        if online.algorithm == "reinforce":  # no baseline
            values, following = torch.zeros_like(values), torch.zeros_like(following)
        advantages = generalised_advantages(
            rewarded.rewards,
            values,
            following,
            decisions.terminated,
            decisions.ended,
            self.config.bcell.gamma,
            1.0 if online.algorithm in ("a2c", "reinforce") else online.gae_lambda,
        )
        return rewarded.learnable(advantages, values), rewarded

    @torch.no_grad()
    def decide(self, steps: int, reference: Reference | None = None) -> RewardedDecisions:
        """Take so many vector steps from the present state of the environments, and scale their rewards.

        Raises TrainingError if a reward cannot be computed; the guard has seen none of the rollout then.
        """
        decisions = decide(self.env, self.agent.policy, self.agent.market, self.generator, steps, reference)
        raw = decisions.rewards if self.queue is None else self.queue.collect()
        scaled, kept = zip(*(self._scaled(decisions, step, reward) for step, reward in enumerate(raw)), strict=True)
        rewards = torch.stack(scaled)
        if self.by_segment is not None:
            rewards = self.by_segment.assign(rewards, decisions.ended)
        return RewardedDecisions(
            decisions,
            rewards if decisions.charge is None else rewards - decisions.charge,
            torch.stack(kept),
        )

    def _scaled(self, decisions: RolloutDecisions, step: int, reward: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        bars = decisions.observations[0][step]
        state, kept = decisions.states[step], self.accept(reward)
        accepted = np.ones(len(reward), dtype=np.bool_) if kept is None else kept
        self.units.remember(reward[accepted], state.bar[accepted])
        known = torch.as_tensor(accepted, device=bars.device)
        raw = torch.as_tensor(np.where(accepted, reward, 0.0), dtype=torch.float32, device=bars.device)
        scaled = self.units.scaled(raw, bars)
        return torch.where(known, scaled, torch.zeros_like(raw)), known

    @torch.no_grad()
    def _values(self, observations: Observations) -> Tensor:
        steps, portfolios = observations[0].shape
        return self.agent.value(tuple(part.flatten(0, 1) for part in observations)).view(steps, portfolios)
