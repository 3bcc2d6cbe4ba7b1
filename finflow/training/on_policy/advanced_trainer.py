"""The advanced trainer: on-policy learning in any gymnasium task, with schedules, normalised rewards and rollback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.on_policy.on_policy_settings import (
    PPO_PRESETS,
    EntropyScheduleConfig,
    EntropyScheduler,
    OnPolicySettings,
    Rollout,
    TaskActorCritic,
    TaskPreset,
)
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner, check_minibatch
from finflow.errors import CheckpointError, ConfigError, refuse
from finflow.files import write_atomically
from finflow.guard.checkpoint_folder import LATEST, SUFFIX
from finflow.guard.checkpoint_manager import CheckpointManager
from finflow.guard.checkpoint_settings import CheckpointConfig
from finflow.json_text import parse_json
from finflow.training.data.reward_normalizer import ReturnScale, RewardNormalizerConfig, task_normalizer
from finflow.training.on_policy.guarded_learning import Learning, TrainingProgress, task_seed
from finflow.training.on_policy.on_policy_rollouts import Environment, VectorTask, take_steps, task_rollout

METRICS, CHECKPOINT = "metrics.jsonl", f"{LATEST}{SUFFIX}"
RETURNS_KEPT = 100  # newest episodes whose returns are averaged
Row = dict[str, Any]


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
        Divides rewards by the deviation of discounted returns; ``form="windowed"`` is `RewardNormalizer`.
    checkpoint_config : CheckpointConfig, optional
        By default ``robust`` thresholds, and checkpoints in memory alone. Intervals are in gradient updates.
    settings : OnPolicySettings, TaskPreset or str, optional
        ``OnPolicySettings.of("trpo")`` trains by TRPO; a name is one of ``PPO_PRESETS``.
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
        checkpoint_config: CheckpointConfig | None = None,
        *,
        settings: OnPolicySettings | TaskPreset | str | None = None,
        seed: int = 0,
    ) -> None:
        for name, size in (("state_dim", state_dim), ("action_dim", action_dim)):
            if not isinstance(size, int | np.integer) or size < 1:
                raise ConfigError(f"{name} is a whole number of at least 1, not {size}")
        self.state_dim, self.action_dim = int(state_dim), int(action_dim)
        self.seed = seed
        self._facts = {"state_dim": self.state_dim, "action_dim": self.action_dim, "seed": seed}
        used, self.n_steps = _preset_of(settings)
        self.settings = used if lr is None else replace(used, learning_rate=lr)
        self.entropy = EntropyScheduler(entropy_config)
        self.rewards = task_normalizer(reward_config)
        self.checkpoints = CheckpointManager(checkpoint_config or CheckpointConfig(None, mode="robust"))
        self._constant = self.settings.entropy_coefficient if settings and entropy_config is None else None
        self._progress: TrainingProgress | None = None
        self._task: VectorTask | None = None
        self._rollout: Rollout | None = None
        self._running = self._discounted = np.zeros(0)  # returns so far of the running episodes
        self._collected, self._resets = False, True

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

    def begin(self, env: Environment) -> VectorTask:
        """Make the networks for an environment, or check that it fits the present ones.

        Raises ConfigError if its spaces are not of ``state_dim`` and ``action_dim``, or the action space is neither
        Discrete nor Box.
        """
        if self._task is not None and env is self._task.given:
            return self._task
        task = VectorTask(env)
        for name in ("state_dim", "action_dim"):
            if getattr(self, name) != getattr(task, name):
                raise ConfigError(f"{name} is {getattr(self, name)}, and the environment has {getattr(task, name)}")
        if self._progress is None:
            generator = torch.Generator().manual_seed(self.seed)
            agent = TaskActorCritic(task.state_dim, task.action_dim, task.kind, generator)
            learner = OnPolicyLearner(agent, self.settings, generator, flat=True)
            learning = Learning(learner, self.entropy, self.rewards, constant_entropy=self._constant)
            self._progress = TrainingProgress(learning, self.checkpoints)
        elif self.agent.kind != task.kind:
            raise ConfigError(f"the policy's actions are {self.agent.kind}, the environment's are {task.kind}")
        self._task, self._resets = task, True
        return task

    def collect_rollout(self, env: Environment, n_steps: int | None = None) -> float:
        """Collect a rollout for `train_step`, of so many decisions of all environments together.

        By default 2048, or as many as the preset has. Returns the mean reward of a decision, as the task gave it.
        Raises ConfigError as `begin` does; or if there are fewer steps than environments.
        """
        task = self.begin(env)
        progress, learning = self.progress, self.progress.learning
        n_steps = self.n_steps if n_steps is None else n_steps
        if n_steps < task.size:
            raise ConfigError(f"a rollout of {n_steps} steps is shorter than one step of all {task.size} environments")
        if self._resets:
            task.reset(task_seed(self.seed, progress.training_step))
            self._running, self._discounted, self._resets = np.zeros(task.size), np.zeros(task.size), False
        taken = take_steps(task, self.agent, n_steps // task.size, learning.learner.generator)
        returns, counted = taken.ended_returns(self._running), taken.counted
        progress.episode_count += len(returns)
        progress.decisions += int(counted.sum())
        self._collected, self._rollout = True, None
        if taken.finite:
            learning.returns = [*learning.returns, *returns][-RETURNS_KEPT:]
            units = np.zeros_like(taken.rewards)
            discounted = taken.discounted_returns(self._discounted, self.settings.gamma)
            of = (discounted[counted],) if isinstance(learning.rewards, ReturnScale) else ()
            units[counted] = learning.rewards.normalize_batch(taken.rewards[counted], *of)
            self._rollout = task_rollout(taken, task.observed[0], units, self.agent, self.settings)
        return float(taken.rewards[counted].mean())

    def train_step(self, n_epochs: int | None = None, batch_size: int | None = None) -> dict[str, float]:
        """Learn from the collected rollout, and roll back where the update fails the guard's checks.

        ``n_epochs``, ``batch_size``: passes over the rollout and decisions in a minibatch; the settings' by default.
        Returns figures of `OnPolicyLearner.update` where there was an update, and ``current_entropy_coef``,
        ``reward_normalizer_mean``, ``rollback_count`` and ``rolled_back``. Raises ConfigError if there is no rollout,
        or it is shorter than a minibatch, and TrainingError if rolling back does not help.
        """
        refuse(not self._collected, "there is no rollout to learn from: call collect_rollout first", ConfigError)
        epochs = self.settings.epochs if n_epochs is None else n_epochs
        minibatch = self.settings.minibatch if batch_size is None else batch_size
        settings = replace(self.settings, epochs=epochs, minibatch=minibatch)
        if self._rollout is not None:
            check_minibatch(settings, len(self._rollout.log_prob))
        progress, rollout = self.progress, self._rollout
        self._collected, self._rollout = False, None
        figures, reason = progress.guarded_update(rollout, settings, self.seed)
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
        if self._task is None:
            raise ConfigError("the trainer has no environment yet: collect a rollout first, or call begin(env)")
        if np.ndim(observations) != 2 or np.shape(observations)[1] != self.state_dim:
            raise ConfigError(f"observations have the shape {np.shape(observations)}, not (n, {self.state_dim})")
        with torch.no_grad():
            distribution = self.agent.distribution((torch.as_tensor(observations, dtype=torch.float32),))
        return self._task.bounded(distribution.mode().numpy())

    def begin_episodes(self) -> None:
        """Have all episodes begin anew at the next rollout, with a new seed."""
        self._resets = True

    def save(self, path: str | Path) -> None:
        """Write all that a resume needs; the episodes of the environments begin anew, here and after a resume."""
        self.progress.save(Path(path), self._facts)
        self.begin_episodes()

    def load(self, path: str | Path, env: Environment) -> None:
        """Go on from what `save` wrote, in an environment like the one before.

        Raises CheckpointError if it is missing or damaged, or of another trainer.
        """
        self.begin(env)
        self.progress.load(Path(path), self._facts)
        self._collected, self._rollout = False, None
        self.begin_episodes()


def _preset_of(settings: OnPolicySettings | TaskPreset | str | None) -> TaskPreset:
    if isinstance(settings, str):
        if settings not in PPO_PRESETS:
            raise ConfigError(f"there is no preset {settings!r} of PPO; there are {', '.join(PPO_PRESETS)}")
        return PPO_PRESETS[settings]
    return settings if isinstance(settings, TaskPreset) else TaskPreset(settings or OnPolicySettings(), 2048)


def train_advanced_ppo(
    env: Environment,
    n_iterations: int = 1000,
    n_steps_per_iteration: int | None = None,
    n_ppo_epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    entropy_config: EntropyScheduleConfig | None = None,
    reward_config: RewardNormalizerConfig | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    *,
    settings: OnPolicySettings | TaskPreset | str | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    save_every: int = 50,
    resume: bool = False,
    watch: Callable[[AdvancedPPOTrainer, Row], None] | None = None,
) -> AdvancedPPOTrainer:
    """Train a policy in any gymnasium environment.

    Parameters
    ----------
    n_iterations : int
        Rollouts, each followed by an update.
    n_steps_per_iteration : int, optional
        Decisions of all environments in one rollout; 2048 by default, or as many as the preset has.
    n_ppo_epochs, batch_size : int, optional
        The settings' by default, for PPO 10 and 64.
    lr, entropy_config, reward_config, checkpoint_config, settings, seed
        As of `AdvancedPPOTrainer`.
    folder : str or Path, optional
        Where ``metrics.jsonl`` and ``checkpoint_latest.safetensors`` go.
    save_every : int
        Iterations between two saves. Episodes begin anew at each, so that a resumed training is bitwise the same.
    resume : bool
        Go on from the folder's checkpoint, if there is one.
    watch : callable, optional
        Called with the trainer and the logged figures after each iteration.

    Raises
    ------
    ConfigError
        For arguments that cannot be, before anything is written.
    TrainingError
        If rolling back does not help.
    """
    counts = {"n_iterations": n_iterations, "n_steps_per_iteration": n_steps_per_iteration, "save_every": save_every}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name} is a whole number of at least 1, not {count}")
    task = VectorTask(env)
    trainer = AdvancedPPOTrainer(
        task.state_dim,
        task.action_dim,
        lr,
        entropy_config,
        reward_config,
        checkpoint_config,
        settings=settings,
        seed=seed,
    )
    trainer.begin(env)
    home = None if folder is None else Path(folder)
    written = trainer.checkpoints.folder
    if home is not None and written is not None and written.folder.resolve() == home.resolve():
        raise ConfigError(f"folder and checkpoint_dir are both {home}: name another one for the checkpoints")
    rows = _resumed(trainer, env, home) if resume else []
    while trainer.progress.training_step < n_iterations:
        reward = trainer.collect_rollout(env, n_steps_per_iteration)
        row = _row(trainer, reward, trainer.train_step(n_ppo_epochs, batch_size))
        rows.append(row)
        if watch is not None:
            watch(trainer, row)
        if trainer.progress.training_step % save_every == 0 or trainer.progress.training_step == n_iterations:
            if home is not None:
                write_atomically(home / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
                trainer.save(home / CHECKPOINT)
            trainer.begin_episodes()
    return trainer


def _row(trainer: AdvancedPPOTrainer, reward: float, figures: Mapping[str, float]) -> Row:
    """Figures of an iteration; what is no number is left out."""
    statistics = trainer.get_full_statistics()
    row: Row = {"iteration": trainer.progress.training_step, "mean_reward": reward}
    row |= {name: statistics[name] for name in ("decisions", "episode_count", "mean_return")}
    row |= dict(figures)
    row |= {"entropy_progress": statistics["entropy.progress"], "reward_std": statistics["reward_normalizer.std"]}
    row |= {f"checkpoint_{name}": value for name, value in statistics["checkpoint"].items()}
    return {name: value for name, value in row.items() if value is not None and math.isfinite(value)}


def _resumed(trainer: AdvancedPPOTrainer, env: Environment, folder: Path | None) -> list[Row]:
    """Go on from the checkpoint, if there is one; returns the logged rows before it."""
    if folder is None:
        raise ConfigError("to resume a training, name the folder that it was saved in")
    if not (folder / CHECKPOINT).is_file():
        return []
    trainer.load(folder / CHECKPOINT, env)
    try:
        rows = [parse_json(line) for line in (folder / METRICS).read_text("utf-8").splitlines()]
        return [row for row in rows if row["iteration"] <= trainer.progress.training_step]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / METRICS} cannot be read: {error}") from None
