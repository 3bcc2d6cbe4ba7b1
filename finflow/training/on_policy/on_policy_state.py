"""State that on-policy learning adds to a training: environments, value function, optimiser, coefficients."""

from __future__ import annotations

import copy
import math
from typing import Any

from torch import Generator

from finflow.agent.learners.bcell import BCell
from finflow.agent.on_policy.natural_gradient import TrustRegion
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from finflow.config import Config
from finflow.training.data.replay import MarketTensors
from finflow.training.data.training_data import TrainingData
from finflow.training.on_policy.market_actor_critic import MarketActorCritic
from finflow.training.rollouts.online_environments import Environments, make_environments
from finflow.training.rollouts.segment_rewards import SegmentRewards

#: Keys of ``sac`` by which a user may expect to change what is learned online.
UNREAD = (
    *("bcell.alpha_init", "bcell.target_entropy", "bcell.entropy_backup", "bcell.cql_alpha", "bcell.cql_mode"),
    *("bcell.calibration", "bcell.dropped_quantiles"),
    *("bcell.memory_capacity", "bcell.anchor", "train.n_envs", "train.updates_per_vector_step"),
    *("train.online_batch_size", "train.warmup_episodes", "train.critic_only_updates"),
)
VALUE_COEFFICIENT, GRADIENT_NORM = 0.5, 0.5  # with every algorithm
CRITIC_RATE = 3.0  # of the value function, in multiples of the policy's


def on_policy_settings(config: Config) -> OnPolicySettings:
    """Settings of the configured algorithm; keys that are left out have the algorithm's usual values."""
    online = config.online
    given = {"epochs": online.epochs, "minibatch": online.minibatch}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    without_critic = online.advantages == "group" or online.algorithm == "reinforce"
    return OnPolicySettings.of(
        online.algorithm,
        clip=online.clip,
        gamma=discount_of(config),
        gae_lambda=online.gae_lambda,
        value_coefficient=0.0 if without_critic else VALUE_COEFFICIENT,
        entropy_coefficient=online.entropy_coefficient,
        gradient_norm=GRADIENT_NORM,
        learning_rate=online.learning_rate,
        critic_rate_multiple=CRITIC_RATE,
        target_kl=online.target_kl,
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


class OnPolicyState:
    """Everything that on-policy learning adds to the agent.

    Parameters
    ----------
    bcell : BCell
        Its policy learns.
    noise : Generator
        Draws the order of decisions in the epochs.

    Attributes
    ----------
    value : ValueNetwork
        Starts from IQL's V.
    optimiser : SkippingAdam
        The learner's.
    penalty : DoublingKL
        The learner's.
    pay : SegmentRewards or None
        Where rewards are given by the segment.
    episodes : int
        Episodes that ended so far.
    """

    def __init__(self, config: Config, training_data: TrainingData, bcell: BCell, noise: Generator) -> None:
        self.played = Environments(make_environments(config, training_data, config.online.portfolios))
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

    def begin(self, bcell: BCell) -> None:
        """Take the value function of the offline phase, bit for bit, where the phase begins."""
        self.value.load_state_dict(bcell.behaviour_value.state_dict())
