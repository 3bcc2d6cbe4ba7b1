"""State that on-policy learning adds to a training: environments, value function, optimiser, coefficients."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.distributions import log_portfolio
from finflow.agent.on_policy.on_policy_settings import Observations, OnPolicySettings
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from finflow.config import Config, PreferenceConfig
from finflow.env.portfolio_state import PortfolioState
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rollouts import check_portfolios
from finflow.training.data.training_data import TrainingData
from finflow.training.on_policy.on_policy_rollouts import MarketActorCritic, Outcome


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
    """Portfolios of the online phase that step together, saved in mid-episode; ``episodes`` that ended are not."""

    def __init__(self, env: PortfolioVectorEnv, device: torch.device) -> None:
        self.env = env
        self.device = device
        self.episodes: list[EndedEpisode] = []

    @property
    def observed(self) -> Observations:
        """Bars and portfolios to decide at."""
        return self._observations(self.env.state, self.env.state.bar)

    def step(self, actions: Tensor) -> Outcome:
        """Take log ratios of portfolios, (n, K - 1)."""
        env, bar = self.env, self.env.state.bar
        _, rewards, terminated, truncated, info = env.step(log_portfolio(actions).exp().cpu().numpy())
        following = self._observations(info.get("final_state", env.state), bar + 1)
        ended, capital = terminated | truncated, env.process.env.initial_capital
        self.episodes += [
            EndedEpisode(float(info["wealth"][place]) / capital - 1.0, float(info["sharpe"][place]))
            for place in np.flatnonzero(ended)
        ]
        return Outcome(rewards, following, terminated, ended, np.ones_like(ended))

    def _observations(self, state: PortfolioState, bars: NDArray[np.int64]) -> Observations:
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
