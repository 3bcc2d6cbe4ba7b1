"""Rollouts of a policy, on the market and in tasks: its decisions, what followed them, and advantages.

On the market an observation is a bar and a portfolio; the features are looked up by bar. An action is the vector of a
portfolio's log ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.distributions import LogisticNormal
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.on_policy_losses import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import ActorCritic, Observations, OnPolicySettings, Rollout
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits

Flags = NDArray[np.bool_]
Rewards = NDArray[np.float64]


class Outcome(NamedTuple):
    """Outcome of one step of n environments."""

    rewards: Rewards  # (n,): as the environment gave them
    following: Observations  # of what followed the actions; where an episode ended, its own last observation
    terminated: Flags  # (n,): ended for good
    ended: Flags  # (n,): ended at all
    counted: Flags  # (n,): false where the environment only began an episode, and took no action


class Environments(Protocol):
    """Environments that step together."""

    @property
    def observed(self) -> Observations:
        """Observations to decide at, each (n, ...)."""
        ...

    def step(self, actions: Tensor) -> Outcome: ...


class Trajectories(NamedTuple):
    """Decisions of n environments, each tensor (steps, n, ...)."""

    observations: Observations
    following: Observations
    actions: Tensor
    log_prob: Tensor
    terminated: Tensor
    ended: Tensor
    rewards: Rewards  # as the environments gave them
    counted: Flags

    @property
    def finite(self) -> bool:
        """True where all rewards and observations are numbers."""
        parts = (*self.observations, *self.following)
        return bool(np.isfinite(self.rewards).all() and all(part.isfinite().all() for part in parts))


@torch.no_grad()
def take_steps(environments: Environments, agent: ActorCritic, steps: int, generator: Generator) -> Trajectories:
    """Take so many steps by actions drawn from a policy."""
    taken, outcomes = [], []
    for _ in range(steps):
        observed = environments.observed
        distribution = agent.distribution(observed)
        actions = distribution.draw_action(generator)
        taken.append((observed, actions, distribution.log_prob(actions)))
        outcomes.append(environments.step(actions))
    every_action = torch.stack([actions for _, actions, _ in taken])
    terminated, ended = (
        torch.as_tensor(np.stack(flags), device=every_action.device).float()
        for flags in ([one.terminated for one in outcomes], [one.ended for one in outcomes])
    )
    return Trajectories(
        _stacked([observed for observed, _, _ in taken]),
        _stacked([one.following for one in outcomes]),
        every_action,
        torch.stack([log_prob for _, _, log_prob in taken]),
        terminated,
        ended,
        np.stack([one.rewards for one in outcomes]),
        np.stack([one.counted for one in outcomes]),
    )


def _stacked(observations: Sequence[Observations]) -> Observations:
    return tuple(torch.stack(parts) for parts in zip(*observations, strict=True))


def rollout_of(
    taken: Trajectories, rewards: Tensor, kept: Tensor, values: Tensor, following: Tensor, settings: OnPolicySettings
) -> Rollout:
    """Estimate advantages and returns of decisions, with targets ``advantages + values``.

    Rewards in the learner's units, decisions to learn from, values, and values of what followed are (steps, n). With a
    value coefficient of 0 there is no value function: values are 0, also where an episode was cut.
    """
    if settings.value_coefficient == 0.0:
        values, following = torch.zeros_like(values), torch.zeros_like(following)
    advantages = generalised_advantages(
        rewards, values, following, taken.terminated, taken.ended, settings.gamma, settings.gae_lambda
    )
    parts = (taken.actions, taken.log_prob, values, advantages, advantages + values)
    return Rollout(tuple(part[kept] for part in taken.observations), *(part[kept] for part in parts))


@torch.no_grad()
def market_rollout(taken: Trajectories, earnings: Earnings, agent: ActorCritic, settings: OnPolicySettings) -> Rollout:
    values, following = (
        agent.value(tuple(part.flatten(0, 1) for part in observations)).view_as(earnings.rewards)
        for observations in (taken.observations, taken.following)
    )
    return rollout_of(taken, earnings.rewards, earnings.kept, values, following, settings)


@torch.no_grad()
def task_rollout(
    taken: Trajectories, observed: Tensor, rewards: Rewards, agent: ActorCritic, settings: OnPolicySettings
) -> Rollout:
    """Rollout of decisions in a task, in which only the ends of episodes are observed twice.

    ``observed``, (n, observations), is what comes after the last step. Values and densities are computed in whole
    batches, as by the update: products of few rows round otherwise.
    """
    (observations,), (following,), ended = taken.observations, taken.following, taken.ended.bool()
    values = agent.value((torch.cat([observations, observed.unsqueeze(0)]),))
    ahead = values[1:].clone()
    if ended.any():
        ahead[ended] = agent.value((following[ended],))
    kept = torch.from_numpy(taken.counted)
    rollout = rollout_of(taken, torch.from_numpy(rewards).float(), kept, values[:-1], ahead, settings)
    return rollout._replace(log_prob=agent.distribution(rollout.observations).log_prob(rollout.actions))


class MarketActorCritic:
    """A policy of experts and a value function over one market."""

    def __init__(self, policy: ExpertPolicy, value_network: ValueNetwork, market: MarketTensors) -> None:
        self.policy = policy
        self.value_network = value_network
        self.market = market

    def states(self, observations: Observations) -> States:
        """The observations with the market's features, one row of the market for each portfolio."""
        bars, portfolio = observations
        return self.market.states(bars, portfolio)

    def distribution(self, observations: Observations) -> LogisticNormal:
        return self.policy(self.states(observations)).distribution

    def value(self, observations: Observations) -> Tensor:
        """Discounted scaled rewards expected from each observation, (batch,)."""
        value: Tensor = self.value_network(self.states(observations))
        return value

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return self.policy.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the value function; the behaviour's value does not learn."""
        yield from self.value_network.encoder.parameters()
        yield from self.value_network.own.parameters()


class Reference(NamedTuple):
    """Frozen policy that decisions are charged for leaving. ``beta``: scaled reward per nat and free dimension."""

    policy: ExpertPolicy
    beta: float


class Earnings(NamedTuple):
    """Rewards of decisions on the market, (steps, portfolios)."""

    rewards: Tensor  # in scaled units, less what the reference takes
    kept: Tensor  # decisions to learn from
    divergence: float  # mean KL to the reference in nats per free dimension; 0 without one


@dataclass
class RolloutCollector:
    """Collects rollouts on the market; rewards that workers compute are fetched at the end of each.

    ``accept``: which of the environments' rewards may be learned from; None for all. ``by_segment``: moves scaled
    rewards, with the ends of episodes, both (steps, portfolios), to the ends of their segments.
    """

    environments: Environments
    agent: MarketActorCritic
    units: RewardUnits
    generator: Generator
    accept: Callable[[Rewards], Flags | None]
    queue: RewardQueue | None = None
    by_segment: Callable[[Tensor, Tensor], Tensor] | None = None

    @torch.no_grad()
    def collect(self, steps: int, reference: Reference | None = None) -> tuple[Trajectories, Earnings]:
        """Take so many vector steps from the present state of the environments, and scale their rewards.

        ``reference``: each reward is less ``beta (log pi - log pi_ref)`` per free dimension. Raises TrainingError if a
        reward cannot be computed; the guard has seen none of the rollout then.
        """
        taken = take_steps(self.environments, self.agent, steps, self.generator)
        raw = taken.rewards if self.queue is None else self.queue.collect()
        scaled, kept = zip(*(self._scaled(*one) for one in zip(raw, taken.observations[0], strict=True)), strict=True)
        rewards = torch.stack(scaled)
        if self.by_segment is not None:
            rewards = self.by_segment(rewards, taken.ended)
        divergence = 0.0 if reference is None else self._charge(taken, rewards, reference)
        return taken, Earnings(rewards, torch.stack(kept), divergence)

    def _charge(self, taken: Trajectories, rewards: Tensor, reference: Reference) -> float:
        """Charge rewards, in place, for leaving the reference; returns the mean KL to it, per free dimension."""
        divergence = 0.0
        for step, log_prob in enumerate(taken.log_prob):
            observed = tuple(part[step] for part in taken.observations)
            own = self.agent.distribution(observed)
            other = reference.policy(self.agent.states(observed)).distribution
            rewards[step] -= reference.beta * (log_prob - other.log_prob(taken.actions[step])) / own.dimensions
            divergence += _mean_per_dimension(own.kl(other), own.dimensions) / len(rewards)
        return divergence

    def _scaled(self, reward: Rewards, bars: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards of a vector step in the learners' units, 0 where they are not accepted; and which are."""
        kept = self.accept(reward)
        accepted = np.ones(len(reward), dtype=np.bool_) if kept is None else kept
        self.units.remember(reward[accepted], bars.cpu().numpy()[accepted])
        known = torch.as_tensor(accepted, device=bars.device)
        raw = torch.as_tensor(np.where(accepted, reward, 0.0), dtype=torch.float32, device=bars.device)
        return torch.where(known, self.units.scaled(raw, bars), torch.zeros_like(raw)), known


def _mean_per_dimension(divergence: Tensor, dimensions: int | Tensor) -> float:
    if isinstance(dimensions, Tensor):
        return float((divergence / dimensions).mean())
    return float(divergence.mean()) / dimensions
