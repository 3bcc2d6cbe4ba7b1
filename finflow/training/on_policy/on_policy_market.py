"""On-policy learning on the market: environments, policy and value function, rewards, and what a training saves.

An observation is a bar and a portfolio; the features are looked up by bar. An action is the vector of a portfolio's log
ratios.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.distributions import LogisticNormal, log_portfolio
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.on_policy_settings import ActorCritic, Observations, OnPolicySettings, Rollout
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from finflow.arrays import FloatArray, IntArray
from finflow.config import Config, PreferenceConfig
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import check_portfolios
from finflow.training.data.training_data import TrainingData
from finflow.training.on_policy.on_policy_rollouts import (
    Environments,
    Flags,
    Outcome,
    Rewards,
    Trajectories,
    rollout_of,
    take_steps,
)


class SegmentRewards:
    """Scores of portfolios whose segments are not over.

    ``waiting`` (portfolios,): score of the segments so far. ``age`` (portfolios,): decisions of the segments so far.
    """

    SAVED = ("waiting", "age")

    def __init__(self, keys: PreferenceConfig, portfolios: int, device: torch.device) -> None:
        self._length = keys.segment
        self.waiting = torch.zeros(portfolios, device=device)
        self.age = torch.zeros(portfolios, dtype=torch.int64, device=device)

    def assign(self, scores: Tensor, ended: Tensor) -> Tensor:
        """Move scores of consecutive decisions to the ends of their segments; those of open segments are kept.

        Parameters
        ----------
        scores : Tensor, (steps, portfolios)
        ended : Tensor, (steps, portfolios)
            1 at the last decision of an episode.

        Returns (steps, portfolios): the segment's score at its last decision, zero at the others.
        """
        rewards = torch.zeros_like(scores)
        for step in range(len(scores)):
            self.waiting += scores[step]
            self.age += 1
            due = (self.age >= self._length) | (ended[step] > 0.0)
            rewards[step] = torch.where(due, self.waiting, rewards[step])
            self.waiting.masked_fill_(due, 0)
            self.age.masked_fill_(due, 0)
        return rewards


SEED = 5  # added to the training's seed for the environments


class EndedEpisode(NamedTuple):
    """An episode that ended.

    ``net_return``: net simple return of the whole episode. ``sharpe``: Sharpe ratio of its returns in excess of cash, a
    year.
    """

    net_return: float
    sharpe: float


class MarketEnvironments:
    """Portfolios of the online phase that step together, saved in mid-episode.

    ``episodes`` that ended, and the ``earned`` net returns with their bars, both since they were last taken, are not.
    """

    def __init__(self, env: PortfolioVectorEnv, device: torch.device) -> None:
        self.env = env
        self.device = device
        self.episodes: list[EndedEpisode] = []
        self.earned: list[tuple[FloatArray, IntArray]] = []

    @property
    def observed(self) -> Observations:
        """Bars and portfolios to decide at."""
        return self._observations(self.env.state, self.env.state.bar)

    def step(self, actions: Tensor) -> Outcome:
        """Take log ratios of portfolios, (n, K - 1)."""
        env, bar, before = self.env, self.env.state.bar, self.env.state.wealth
        _, rewards, terminated, truncated, info = env.step(log_portfolio(actions).exp().cpu().numpy())
        following = self._observations(info.get("final_state", env.state), bar + 1)
        ended, capital = terminated | truncated, env.process.env.initial_capital
        self.episodes += [
            EndedEpisode(float(info["wealth"][place]) / capital - 1.0, float(info["sharpe"][place]))
            for place in np.flatnonzero(ended)
        ]
        self.earned.append((info["wealth"] / before - 1.0, bar + 1))
        return Outcome(rewards, following, terminated, ended, np.ones_like(ended))

    def _observations(self, state: PortfolioState, bars: IntArray) -> Observations:
        portfolio = self.env.process.observed_portfolio(state)
        known = torch.as_tensor(portfolio, dtype=torch.float32, device=self.device)
        return torch.as_tensor(bars, device=self.device), known

    def reseed(self, words: list[int]) -> None:
        arrays, _ = self.env.get_state()
        drawn = np.random.default_rng(np.random.SeedSequence(words))
        self.env.set_state(arrays, dict(drawn.bit_generator.state))

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays, generator = self.env.get_state()
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, {"generator": generator}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore both, if each environment is where an episode can be."""
        fresh, _ = self.capture()
        check_portfolios(tensors, fresh, self.env.bars)
        if not all(bool(tensors[name].isfinite().all()) for name in fresh):
            raise ValueError("an environment holds what is not a number")
        age = tensors["age"]
        if not bool(((age >= 0) & (age < self.env.episode_length)).all()):
            raise ValueError("the age of an environment is out of its range")
        self.env.set_state({name: tensors[name].numpy() for name in fresh}, state["generator"])


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


@torch.no_grad()
def market_rollout(taken: Trajectories, earnings: Earnings, agent: ActorCritic, settings: OnPolicySettings) -> Rollout:
    values, following = (
        agent.value(tuple(part.flatten(0, 1) for part in observations)).view_as(earnings.rewards)
        for observations in (taken.observations, taken.following)
    )
    return rollout_of(taken, earnings.rewards, earnings.kept, values, following, settings)


#: Keys of ``sac`` by which a user may expect to change what is learned online.
UNREAD = (
    *("bcell.alpha_init", "bcell.target_entropy", "bcell.entropy_backup", "bcell.cql_alpha", "bcell.cql_mode"),
    *("bcell.calibration", "bcell.dropped_quantiles"),
    *("bcell.memory_capacity", "bcell.anchor", "train.n_envs", "train.updates_per_vector_step"),
    *("train.online_batch_size", "train.warmup_episodes", "train.critic_only_updates"),
)
GRADIENT_NORM = 0.5  # with every algorithm
CRITIC_RATE = 3.0  # of the value function, in multiples of the policy's


def on_policy_settings(config: Config) -> OnPolicySettings:
    """Settings of the configured algorithm; keys that are left out have the algorithm's usual values."""
    online = config.online
    given: dict[str, Any] = {"epochs": online.epochs, "minibatch": online.minibatch}
    if online.algorithm not in ("a2c", "reinforce"):
        given["gae_lambda"] = online.gae_lambda
    return OnPolicySettings.of(
        online.algorithm,
        clip=online.clip,
        gamma=config.bcell.gamma,
        entropy_coefficient=online.entropy_coefficient,
        gradient_norm=GRADIENT_NORM,
        learning_rate=online.learning_rate,
        critic_rate_multiple=CRITIC_RATE,
        **{name: value for name, value in given.items() if value is not None},
    )


def steps_per_rollout(config: Config) -> int:
    """Gradient steps that a rollout is counted as: all its epochs' minibatches."""
    settings = on_policy_settings(config)
    return settings.epochs * math.ceil(config.online.rollout / min(settings.minibatch, config.online.rollout))


def rollouts_of(config: Config) -> int:
    """Rollouts of the online phase, rounded up."""
    return math.ceil(config.train.online_episodes * config.env.episode_length / config.online.rollout)


class OnPolicyState:
    def __init__(self, config: Config, training_data: TrainingData, bcell: BCell, noise: Generator) -> None:
        learning, length = training_data.learning, config.env.episode_length
        env = PortfolioVectorEnv(
            learning, training_data.train, config.online.portfolios, length, random_portfolios=True
        )
        env.reset(seed=config.train.seed + SEED)
        self.played = MarketEnvironments(env, bcell.device)
        self.value = copy.deepcopy(bcell.behaviour_value).requires_grad_(True)
        self.value.behaviour.requires_grad_(False)
        market = MarketTensors.of(training_data.learning, bcell.device)
        self.agent = MarketActorCritic(bcell.policy, self.value, market)
        self.learner = OnPolicyLearner(self.agent, on_policy_settings(config), noise)
        self.optimiser, self.penalty = self.learner.optimiser, self.learner.penalty
        preference = config.objectives.preference
        by_segment = preference.paid == "segment"
        self.pay = SegmentRewards(preference, config.online.portfolios, bcell.device) if by_segment else None
        self.episodes = 0
