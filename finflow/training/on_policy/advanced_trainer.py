"""The advanced trainer: on-policy learning in any gymnasium task, with schedules, normalised rewards and rollback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings, Rollout
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner, check_minibatch
from finflow.agent.on_policy.schedules import EntropyScheduleConfig, EntropyScheduler
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.config import RollbackConfig
from finflow.errors import ConfigError
from finflow.training.data.reward_normalizer import RewardNormalizer, RewardNormalizerConfig
from finflow.training.on_policy.checkpoint_manager import CheckpointManager
from finflow.training.on_policy.task_rollouts import Environment, TaskCollector, most_probable, rollout_of
from finflow.training.on_policy.training_progress import Learning, TrainingProgress, guarded_update
from finflow.training.on_policy.vector_tasks import TaskSpaces


class AdvancedPPOTrainer:
    """On-policy learning in a gymnasium task, rollout by rollout.

    The entropy coefficient follows a schedule, rewards are normalised, and a failed update is rolled back.

    Parameters
    ----------
    state_dim : int
        Numbers in one observation, all its parts together.
    action_dim : int
        Actions of a Discrete space, or dimensions of a Box; the first environment says which.
    lr : float, optional
        Learning rate; the settings' by default.
    entropy_config : EntropyScheduleConfig, optional
        By default the usual schedule, and where there are settings their constant coefficient.
    reward_config : RewardNormalizerConfig, optional
        By default rewards are divided by their deviation and the mean is not subtracted, since that would change the
        objective where the length of an episode depends on the actions.
    checkpoint_config : RollbackConfig or CheckpointManager, optional
        By default ``robust`` thresholds, and checkpoints in memory alone. Intervals are in gradient updates.
    settings : OnPolicySettings, optional
        ``OnPolicySettings.of("trpo")`` trains by TRPO.
    seed : int
        Of weights, actions, the order of decisions and the environments.

    Examples
    --------
    >>> trainer = AdvancedPPOTrainer(4, 2)
    >>> import gymnasium as gym
    >>> trainer.collect_rollout(gym.make("CartPole-v1"), n_steps=128)
    1.0
    >>> statistics = trainer.train_step()
    >>> statistics["current_entropy_coef"] < 0.01, statistics["rollback_count"]
    (True, 0)
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        lr: float | None = None,
        entropy_config: EntropyScheduleConfig | None = None,
        reward_config: RewardNormalizerConfig | None = None,
        checkpoint_config: RollbackConfig | CheckpointManager | None = None,
        *,
        settings: OnPolicySettings | None = None,
        seed: int = 0,
    ) -> None:
        self.state_dim, self.action_dim = _size("state_dim", state_dim), _size("action_dim", action_dim)
        self.seed = seed
        used = settings or OnPolicySettings()
        self.settings = used if lr is None else replace(used, learning_rate=lr)
        self.entropy = EntropyScheduler(entropy_config)
        self.rewards = RewardNormalizer(reward_config or RewardNormalizerConfig(shift=False))
        if not isinstance(checkpoint_config, CheckpointManager):
            checkpoint_config = CheckpointManager(checkpoint_config or RollbackConfig(), folder=None)
        self.checkpoints: CheckpointManager = checkpoint_config
        self._constant = self.settings.entropy_coefficient if settings and entropy_config is None else None
        self._progress: TrainingProgress | None = None
        self._collector: TaskCollector | None = None
        self._rollout: Rollout | None = None
        self._collected = False

    @property
    def progress(self) -> TrainingProgress:
        """All that changes as it learns; ConfigError before an environment is known."""
        if self._progress is None:
            raise ConfigError("the trainer has no networks yet: collect a rollout first, or call begin(env)")
        return self._progress

    @property
    def agent(self) -> TaskActorCritic:
        """Policy and value function."""
        return self.progress.learning.agent

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam over policy and value function; with TRPO over the value function alone."""
        return self.progress.learning.learner.optimiser

    def begin(self, env: Environment) -> TaskCollector:
        """Make the networks for an environment, or check that it fits the present ones.

        Raises
        ------
        ConfigError
            If its spaces are not of ``state_dim`` and ``action_dim``, or the action space is neither Discrete nor Box.
        """
        if self._collector is not None and env is self._collector.env:
            return self._collector
        collector = TaskCollector(env, self.seed)
        spaces = collector.task.spaces
        spaces.check(self.state_dim, self.action_dim)
        if self._progress is None:
            self._progress = TrainingProgress(_new_learning(self, spaces, self._constant), self.checkpoints)
        elif self.agent.kind != spaces.kind:
            raise ConfigError(f"the policy's actions are {self.agent.kind}, the environment's are {spaces.kind}")
        self._collector = collector
        return collector

    def collect_rollout(self, env: Environment, n_steps: int = 2048) -> float:
        """Collect a rollout of the policy for `train_step`.

        Parameters
        ----------
        n_steps : int
            Decisions of all environments together.

        Returns
        -------
        float
            Mean reward of a decision, as the task gave it; what is learned from is normalised.

        Raises
        ------
        ConfigError
            As of `begin`; or if there are fewer steps than environments.
        """
        trajectories = self.begin(env).collect(self.progress, n_steps)
        self._collected, self._rollout = True, None
        if trajectories.finite:
            unit = self.progress.learning.rewards.normalize_batch
            self._rollout = rollout_of(trajectories, self.agent, self.settings, unit)
        return trajectories.mean_reward

    def train_step(self, n_epochs: int | None = None, batch_size: int | None = None) -> dict[str, float]:
        """Learn from the collected rollout, and roll back where the update fails the guard's checks.

        Parameters
        ----------
        n_epochs, batch_size : int, optional
            Passes over the rollout and decisions in a minibatch; the settings' by default, for PPO 10 and 64.

        Returns
        -------
        dict
            Figures of `OnPolicyLearner.update` where there was an update, and ``current_entropy_coef``,
            ``reward_normalizer_mean``, ``rollback_count`` and ``rolled_back``.

        Raises
        ------
        ConfigError
            If there is no rollout, or it is shorter than a minibatch.
        TrainingError
            If rolling back does not help.
        """
        if not self._collected:
            raise ConfigError("there is no rollout to learn from: call collect_rollout first")
        epochs, minibatch = n_epochs or self.settings.epochs, batch_size or self.settings.minibatch
        settings = replace(self.settings, epochs=epochs, minibatch=minibatch)
        if self._rollout is not None:
            check_minibatch(settings, len(self._rollout.log_prob))
        progress, rollout = self.progress, self._rollout
        self._collected, self._rollout = False, None
        figures, reason = guarded_update(progress, rollout, settings, self.seed)
        if reason:
            self.begin_episodes()
        return figures | {
            "current_entropy_coef": progress.learning.entropy_coefficient,
            "reward_normalizer_mean": progress.learning.rewards.get_statistics()["mean"],
            "rollback_count": self.checkpoints.manager.rollback_count,
            "rolled_back": float(bool(reason)),
        }

    def get_full_statistics(self) -> dict[str, Any]:
        """``training_step``, ``episode_count``, and the statistics of each part.

        ``entropy.progress``, ``reward_normalizer.mean`` and ``checkpoint.best_reward`` are some of them.
        """
        return self.progress.statistics()

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """The policy's modes for observations, (n, state_dim), as the environment takes actions."""
        if self._collector is None:
            raise ConfigError("the trainer has no environment yet: collect a rollout first, or call begin(env)")
        return self._collector.task.spaces.bounded(most_probable(self.agent, observations))

    def begin_episodes(self) -> None:
        """Have all episodes begin anew at the next rollout, with a new seed."""
        if self._collector is not None:
            self._collector.resets = True

    def save(self, path: str | Path) -> None:
        """Write all that a resume needs; the episodes of the environments begin anew, here and after a resume."""
        self.progress.save(Path(path), _facts(self))
        self.begin_episodes()

    def load(self, path: str | Path, env: Environment) -> None:
        """Go on from what `save` wrote, in an environment like the one before.

        Raises
        ------
        CheckpointError
            If it is missing or damaged, or of another trainer.
        """
        self.begin(env)
        self.progress.load(Path(path), _facts(self))
        self._collected, self._rollout = False, None
        self.begin_episodes()


def _new_learning(trainer: AdvancedPPOTrainer, spaces: TaskSpaces, constant_entropy: float | None) -> Learning:
    generator = torch.Generator().manual_seed(trainer.seed)
    agent = TaskActorCritic(spaces.observations, spaces.actions, spaces.kind, generator)
    learner = OnPolicyLearner(agent, trainer.settings, generator, flat=True)
    return Learning(learner, trainer.entropy, trainer.rewards, constant_entropy=constant_entropy)


def _size(name: str, size: int) -> int:
    if not isinstance(size, int | np.integer) or size < 1:
        raise ConfigError(f"{name} is a whole number of at least 1, not {size}")
    return int(size)


def _facts(trainer: AdvancedPPOTrainer) -> dict[str, int]:
    return {"state_dim": trainer.state_dim, "action_dim": trainer.action_dim, "seed": trainer.seed}
