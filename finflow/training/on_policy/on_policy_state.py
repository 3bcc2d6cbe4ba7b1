"""State that on-policy learning adds to a training: environments, value function, optimiser, coefficients."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.learners.bcell import BCell
from finflow.agent.on_policy.natural_gradient import TrustRegion
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from finflow.config import Config
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.guard.state_capture import check_like
from finflow.training.data.replay import MarketTensors
from finflow.training.data.training_data import TrainingData
from finflow.training.data.training_worlds import episode_worlds
from finflow.training.on_policy.market_actor_critic import MarketActorCritic
from finflow.training.playing.segment_pay import SegmentPay

ONLINE = "online"
WORLD_SEED = 5  # added to the training's seed for the environments, as for soft actor-critic
#: Keys of ``sac`` by which a user may expect to change what is learned online.
UNREAD = (
    *("bcell.alpha_init", "bcell.target_entropy", "bcell.entropy_backup", "bcell.cql_alpha", "bcell.cql_mode"),
    *("bcell.calibration", "bcell.gate_balance", "bcell.least_pull", "bcell.dropped_quantiles"),
    *("bcell.memory_capacity", "bcell.anchor", "train.n_envs", "train.updates_per_vector_step"),
    *("train.online_batch_size", "train.warmup_episodes", "train.critic_only_updates"),
)


def on_policy_settings(config: Config) -> OnPolicySettings:
    """Settings of the configured algorithm; keys that are left out have the algorithm's usual values."""
    online = config.online
    given = {"epochs": online.epochs, "minibatch": online.minibatch, "normalise": online.normalise}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    without_critic = online.advantages == "group" or online.algorithm == "reinforce"
    return OnPolicySettings.of(
        online.algorithm,
        clip=online.clip,
        value_clip=online.value_clip,
        gamma=discount_of(config),
        gae_lambda=online.gae_lambda,
        value_coefficient=0.0 if without_critic else online.value_coefficient,
        entropy_coefficient=online.entropy_coefficient,
        gradient_norm=online.gradient_norm,
        learning_rate=config.bcell.actor_lr,
        critic_rate_multiple=online.critic_rate,
        target_kl=online.target_kl,
        kl_beta=online.kl_beta,
        kl_target=online.kl_target,
        trust_region=TrustRegion(delta=online.trust_region),
        **changes,
    )


def discount_of(config: Config) -> float:
    """Discount of rollouts."""
    return config.bcell.gamma if config.online.discount is None else config.online.discount


def steps_per_rollout(config: Config) -> int:
    """Gradient steps that a rollout is counted as: all its epochs' minibatches."""
    settings = on_policy_settings(config)
    return settings.epochs * math.ceil(config.online.rollout / min(settings.minibatch, config.online.rollout))


def rollouts_of(config: Config) -> int:
    """Rollouts of the online phase, rounded up."""
    return math.ceil(config.train.online_episodes * config.env.episode_length / config.online.rollout)


class PlayedEnvironments:
    """The environments of on-policy learning, saved in mid-episode.

    Parameters
    ----------
    env : PortfolioVectorEnv
    """

    def __init__(self, env: PortfolioVectorEnv) -> None:
        self.env = env

    def reseed(self, words: list[int]) -> None:
        """Other random numbers from here on."""
        arrays, _ = self.env.get_state()
        drawn = np.random.default_rng(np.random.SeedSequence(words))
        self.env.set_state(arrays, dict(drawn.bit_generator.state))

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the environments and their generator."""
        arrays, generator = self.env.get_state()
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, {"generator": generator}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore both."""
        fresh, _ = self.env.get_state()
        for name, array in fresh.items():
            check_like(tensors[name], torch.from_numpy(array))
            if not bool(tensors[name].isfinite().all()):
                raise ValueError("an environment holds what is not a number")
        if not bool(np.isin(tensors["bar"].numpy(), self.env.bars).all()):
            raise ValueError("an environment is at a bar outside of its window")
        weights, age = tensors["weights"], tensors["age"]
        if bool(
            (weights < -1e-9).any() | ((weights.sum(dim=1) - 1).abs() > 1e-6).any() | (tensors["wealth"] <= 0).any()
        ):
            raise ValueError("an environment holds what is no portfolio")
        if not bool(((age >= 0) & (age < self.env.episode_length)).all()):
            raise ValueError("an environment is beyond the end of its episode")
        self.env.set_state({name: tensors[name].numpy() for name in fresh}, state["generator"])


class OnPolicyState:
    """Everything that on-policy learning adds to the agent.

    Parameters
    ----------
    config : Config
    training_data : TrainingData
    bcell : BCell
        Its policy learns.
    noise : Generator
        Draws the order of decisions in the epochs.

    Attributes
    ----------
    played : PlayedEnvironments
    value : ValueNetwork
        Starts from IQL's V.
    learner : OnPolicyLearner
    optimiser : SkippingAdam
        The learner's.
    penalty : DoublingKL
        The learner's.
    pay : SegmentPay or None
        Where scores are paid by the segment.
    episodes : int
        Episodes that ended so far.
    """

    def __init__(self, config: Config, training_data: TrainingData, bcell: BCell, noise: Generator) -> None:
        process = training_data.learning.process
        worlds = episode_worlds(config, process, ONLINE)
        window, length = training_data.windows(ONLINE), config.env.episode_length
        env = PortfolioVectorEnv(
            process, window, config.online.portfolios, length, random_portfolios=True, worlds=worlds
        )
        env.reset(seed=config.train.seed + WORLD_SEED)
        self.played = PlayedEnvironments(env)
        self.value = copy.deepcopy(bcell.behaviour_value).requires_grad_(True)
        self.value.behaviour.requires_grad_(False)
        market = MarketTensors.of(process, bcell.device)
        self.agent = MarketActorCritic(bcell.policy, self.value, market)
        self.learner = OnPolicyLearner(self.agent, on_policy_settings(config), noise)
        self.optimiser, self.penalty = self.learner.optimiser, self.learner.penalty
        preference = config.objectives.preference
        by_segment = preference.paid == "segment"
        self.pay = SegmentPay(preference, config.online.portfolios, bcell.device) if by_segment else None
        self.episodes = 0

    def begin(self, bcell: BCell) -> None:
        """Take the value function of the offline phase, bit for bit, where the phase begins."""
        self.value.load_state_dict(bcell.behaviour_value.state_dict())
