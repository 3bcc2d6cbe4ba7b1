"""The market as on-policy learning sees it: the B-Cell's distributions and values, and rollouts of its decisions.

An observation is a bar and a portfolio; the features are looked up by bar. An action is the vector of a portfolio's log
ratios, which the policy is normal in: densities there and those of weights differ by a Jacobian that is the same for
every policy, and drops out of every ratio and KL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.logistic_normal import (
    ENTROPY_OF_NORMAL,
    LOG_DENSITY_AT_CENTRE,
    count_dimensions,
    log_portfolio,
    mean_listed,
    standard_normal,
    sum_listed,
)
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.on_policy_losses import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import Observations, Rollout
from finflow.config import Config
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits


@dataclass(frozen=True)
class PortfolioDistribution:
    """A batch of logistic-normal distributions, with actions in additive log ratios."""

    location: Tensor  # (batch, K - 1)
    log_scale: Tensor  # (batch, K - 1)
    listed: Tensor | None = None  # (batch, K - 1): assets whose ratios have a density; all of them when left out

    @property
    def dimensions(self) -> int | Tensor:
        """Free dimensions of an action: K - 1, or the number of listed assets, (batch,), at least one."""
        return count_dimensions(self.location, self.listed)

    @torch.no_grad()
    def sample(self, generator: Generator) -> Tensor:
        """Draw log ratios, (batch, K - 1)."""
        noise = standard_normal(tuple(self.location.shape), generator, self.location)
        return torch.addcmul(self.location, noise, self.log_scale.exp())

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log of the joint density of log ratios (batch, K - 1), (batch,)."""
        standard = (actions - self.location) * (-self.log_scale).exp()
        return sum_listed(LOG_DENSITY_AT_CENTRE - 0.5 * standard.square() - self.log_scale, self.listed)

    def entropy(self) -> Tensor:
        """Entropy of the portfolio per free dimension, nats (batch,), with the Jacobian's mean taken at the centre."""
        spread = mean_listed(self.log_scale + ENTROPY_OF_NORMAL, self.listed)
        log_weights = log_portfolio(self.location)
        if self.listed is None:
            return spread + log_weights.sum(dim=-1) / self.dimensions
        return spread + (sum_listed(log_weights[..., :-1], self.listed) + log_weights[..., -1]) / self.dimensions

    def kl(self, other: PortfolioDistribution) -> Tensor:
        """``KL(self || other)``, nats (batch,): `kl_per_dimension` in an order of operations of its own, summed."""
        change = self.log_scale - other.log_scale
        shift = (self.location - other.location) * (-other.log_scale).exp()
        return sum_listed(0.5 * ((2.0 * change).exp() + shift.square() - 1.0) - change, self.listed)

    def rows(self, index: Tensor) -> PortfolioDistribution:
        listed = None if self.listed is None else self.listed[index]
        return PortfolioDistribution(self.location[index], self.log_scale[index], listed)


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

    def distribution(self, observations: Observations) -> PortfolioDistribution:
        return distribution_of(self.policy, self.states(observations))

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


def distribution_of(policy: ExpertPolicy, states: States) -> PortfolioDistribution:
    normal = policy(states).distribution
    return PortfolioDistribution(normal.location, normal.log_scale, normal.listed)


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


class _Step(NamedTuple):
    """Decisions of one vector step, each tensor (portfolios, ...)."""

    observations: Observations
    next_observations: Observations  # before a new episode began
    actions: Tensor  # log ratios
    log_prob: Tensor
    charge: Tensor  # scaled reward that the reference takes
    terminated: Tensor
    ended: Tensor
    reward: NDArray[np.float64]  # raw
    state: PortfolioState
    divergence: float
    episodes: list[EndedEpisode]


class MarketDecisions(NamedTuple):
    """Decisions of several portfolios together, each tensor (steps, portfolios, ...)."""

    observations: Observations  # to decide at
    next_observations: Observations
    actions: Tensor
    log_prob: Tensor
    terminated: Tensor
    ended: Tensor
    rewards: Tensor  # in scaled units, less what the reference takes
    kept: Tensor  # decisions to learn from
    divergence: float  # mean KL to the reference in nats per free dimension; 0 without one
    episodes: list[EndedEpisode]

    def learnable(self, advantages: Tensor, values: Tensor) -> Rollout:
        """The decisions to learn from in one dimension, with targets ``advantages + values``."""
        kept, parts = self.kept.flatten(), (self.actions, self.log_prob, values, advantages, advantages + values)
        observations = tuple(part.flatten(0, 1) for part in self.observations)
        flat = Rollout(observations, *(part.flatten(0, 1) for part in parts))
        return flat if bool(kept.all()) else flat.rows(kept.nonzero().squeeze(1))


class RolloutCollector:
    """Collects rollouts of a policy; rewards that workers compute are fetched at the end of each.

    ``accept``: which of the environments' rewards may be learned from; None for all. ``by_segment``: moves scaled
    rewards, with the ends of episodes, both (steps, portfolios), to the ends of their segments.
    """

    def __init__(
        self,
        env: PortfolioVectorEnv,
        agent: MarketActorCritic,
        units: RewardUnits,
        config: Config,
        generator: Generator,
        accept: Callable[[NDArray[np.float64]], NDArray[np.bool_] | None],
        queue: RewardQueue | None = None,
        by_segment: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.env = env
        self.agent = agent
        self.units = units
        self.config = config
        self.generator = generator
        self.accept = accept
        self.queue = queue
        self.by_segment = by_segment

    def collect(self, reference: Reference | None = None) -> tuple[Rollout, MarketDecisions]:
        """Collect one rollout. ``reference``: each reward is less ``beta (log pi - log pi_ref)`` per free dimension."""
        online = self.config.online
        decisions = self.decide(online.rollout // online.portfolios, reference)
        values, following = self._values(decisions.observations), self._values(decisions.next_observations)
        if online.algorithm == "reinforce":  # no baseline
            values, following = torch.zeros_like(values), torch.zeros_like(following)
        advantages = generalised_advantages(
            decisions.rewards,
            values,
            following,
            decisions.terminated,
            decisions.ended,
            self.config.bcell.gamma,
            1.0 if online.algorithm in ("a2c", "reinforce") else online.gae_lambda,
        )
        return decisions.learnable(advantages, values), decisions

    @torch.no_grad()
    def decide(self, steps: int, reference: Reference | None = None) -> MarketDecisions:
        """Take so many vector steps from the present state of the environments, and scale their rewards.

        Raises TrainingError if a reward cannot be computed; the guard has seen none of the rollout then.
        """
        taken = [self._step(reference) for _ in range(steps)]
        raw = [step.reward for step in taken] if self.queue is None else self.queue.collect()
        scaled, kept = zip(*(self._scaled(step, reward) for step, reward in zip(taken, raw, strict=True)), strict=True)
        rewards, ended = torch.stack(scaled), torch.stack([step.ended for step in taken])
        if self.by_segment is not None:
            rewards = self.by_segment(rewards, ended)
        return MarketDecisions(
            tuple(torch.stack(parts) for parts in zip(*(step.observations for step in taken), strict=True)),
            tuple(torch.stack(parts) for parts in zip(*(step.next_observations for step in taken), strict=True)),
            torch.stack([step.actions for step in taken]),
            torch.stack([step.log_prob for step in taken]),
            torch.stack([step.terminated for step in taken]),
            ended,
            rewards - torch.stack([step.charge for step in taken]),
            torch.stack(kept),
            sum(step.divergence / steps for step in taken),
            [episode for step in taken for episode in step.episodes],
        )

    def _step(self, reference: Reference | None) -> _Step:
        env, state = self.env, self.env.state
        observations = self._observed(state, state.bar)
        states = self.agent.states(observations)
        distribution = distribution_of(self.agent.policy, states)
        actions = distribution.sample(self.generator)
        log_prob = distribution.log_prob(actions)
        _, reward, terminated, truncated, info = env.step(log_portfolio(actions).exp().cpu().numpy())
        following = self._observed(info.get("final_state", env.state), state.bar + 1)
        charge, divergence = torch.zeros_like(log_prob), 0.0
        if reference is not None:
            other, dimensions = distribution_of(reference.policy, states), distribution.dimensions
            charge = reference.beta * (log_prob - other.log_prob(actions)) / dimensions
            divergence = _mean_per_dimension(distribution.kl(other), dimensions)
        ended, capital = terminated | truncated, env.process.env.initial_capital
        episodes = [
            EndedEpisode(float(info["wealth"][place]) / capital - 1.0, float(info["sharpe"][place]))
            for place in np.flatnonzero(ended)
        ]
        died, over = (torch.as_tensor(flags, device=actions.device).float() for flags in (terminated, ended))
        return _Step(
            observations, following, actions, log_prob, charge, died, over, reward, state, divergence, episodes
        )

    def _observed(self, state: PortfolioState, bars: NDArray[np.int64]) -> Observations:
        device = self.agent.market.assets.device
        portfolio = self.env.process.observed_portfolio(state)
        return torch.as_tensor(bars, device=device), torch.as_tensor(portfolio, dtype=torch.float32, device=device)

    def _scaled(self, step: _Step, reward: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Rewards of a vector step in the learners' units, 0 where they are not accepted; and which are."""
        bars, kept = step.observations[0], self.accept(reward)
        accepted = np.ones(len(reward), dtype=np.bool_) if kept is None else kept
        self.units.remember(reward[accepted], step.state.bar[accepted])
        known = torch.as_tensor(accepted, device=bars.device)
        raw = torch.as_tensor(np.where(accepted, reward, 0.0), dtype=torch.float32, device=bars.device)
        return torch.where(known, self.units.scaled(raw, bars), torch.zeros_like(raw)), known

    @torch.no_grad()
    def _values(self, observations: Observations) -> Tensor:
        steps, portfolios = observations[0].shape
        return self.agent.value(tuple(part.flatten(0, 1) for part in observations)).view(steps, portfolios)


def _mean_per_dimension(divergence: Tensor, dimensions: int | Tensor) -> float:
    if isinstance(dimensions, Tensor):
        return float((divergence / dimensions).mean())
    return float(divergence.mean()) / dimensions
