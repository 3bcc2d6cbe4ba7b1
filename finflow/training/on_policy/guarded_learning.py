"""State of an on-policy training in a task, and its updates: each is checked, kept as a checkpoint, or rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from finflow.agent.gradient_steps import set_learning_rate
from finflow.agent.on_policy.on_policy_settings import EntropyScheduler, OnPolicySettings, Rollout, TaskActorCritic
from finflow.agent.on_policy.on_policy_update import Figures, OnPolicyLearner
from finflow.errors import CheckpointError, TrainingError
from finflow.guard.checkpoint_folder import capture, restore
from finflow.guard.checkpoint_manager import CheckpointManager
from finflow.guard.checkpoint_settings import CheckpointMetrics
from finflow.guard.rollback import STOP
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.data.reward_normalizer import ReturnScale, RewardNormalizer

SMALLEST_SQUARE = 1e-8
LARGEST_STEP = 10.0  # of one update, in multiples of the KL threshold; a step of PPO or TRPO is a fraction of it
NO_TIME = 0.0  # two trainings with one seed save the same bytes


@dataclass
class Learning:
    """State that a rollback goes back to."""

    learner: OnPolicyLearner
    entropy: EntropyScheduler
    rewards: RewardNormalizer | ReturnScale
    returns: list[float] = field(default_factory=list)
    steps: int = 0
    constant_entropy: float | None = None

    @property
    def agent(self) -> TaskActorCritic:
        return cast(TaskActorCritic, self.learner.agent)

    @property
    def entropy_coefficient(self) -> float:
        return self.entropy.value if self.constant_entropy is None else self.constant_entropy

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest episodes; None before the first ended."""
        return float(np.mean(self.returns)) if self.returns else None


@dataclass
class TrainingProgress:
    """All that a resume restores.

    ``training_step``, ``episode_count``, ``decisions``: rollouts learned from, episodes that ended, and decisions
    taken; a rollback does not turn them back.
    """

    learning: Learning
    checkpoints: CheckpointManager
    training_step: int = 0
    episode_count: int = 0
    decisions: int = 0

    def save(self, path: Path, facts: Mapping[str, int]) -> None:
        """Write a checkpoint, with facts that `load` asks for."""
        tensors, state = capture(self)
        write_tensors(path, tensors, {"trainer": facts, "progress": state})

    def load(self, path: Path, facts: Mapping[str, int]) -> None:
        """Restore a checkpoint; raises CheckpointError if it is missing or damaged, or has other facts."""
        tensors, content = read_tensors(path)
        if content.get("trainer") != facts or not isinstance(content.get("progress"), dict):
            found = str(content.get("trainer"))[:120]
            raise CheckpointError(f"{path} is of another trainer: it has {found}, this one {facts}")
        restore(self, tensors, content["progress"])

    def statistics(self) -> dict[str, Any]:
        """Counts, and the statistics of each part: of the part ``entropy`` as ``entropy.progress``, too."""
        learning = self.learning
        parts: dict[str, dict[str, Any]] = {
            "entropy": learning.entropy.get_info(),
            "reward_normalizer": learning.rewards.get_statistics(),
            "checkpoint": self.checkpoints.get_statistics(),
        }
        counts = {name: getattr(self, name) for name in ("training_step", "episode_count", "decisions")}
        figures = {"gradient_steps": learning.steps, "mean_return": learning.mean_return}
        named = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return counts | figures | parts | named

    def guarded_update(self, rollout: Rollout | None, settings: OnPolicySettings, seed: int) -> tuple[Figures, str]:
        """Learn from a rollout, None where it is not finite; keep a checkpoint where one is due, or roll back to one.

        Returns figures, and the reason for a rollback. Raises TrainingError if rolling back does not help.
        """
        learning, checkpoints = self.learning, self.checkpoints
        manager, optimiser = checkpoints.manager, learning.learner.optimiser
        if checkpoints.last_saved is None:
            self._keep(None)
        self.training_step += 1
        if rollout is None:
            share = manager.share
            if not checkpoints.suspicious:  # nothing was learned from what is not finite
                self._keep(None)
            reason = "a reward or an observation is not a finite number"
            self._roll_back(settings, reason, seed)
            manager.share = share
            set_learning_rate(optimiser, settings.learning_rate * share)
            return {}, reason
        learning.learner.settings = settings
        figures = learning.learner.update(rollout, learning.entropy_coefficient)
        learning.steps += int(figures["policy_steps"])
        learning.entropy.step(int(figures["policy_steps"]))
        metrics = metrics_of(figures, rollout, learning)
        _, reason = checkpoints.should_rollback(metrics)
        limit, moved = LARGEST_STEP * checkpoints.config.rollback_on_kl_threshold, metrics.kl_divergence or 0.0
        if not reason and moved > limit:  # so far that no second check is needed
            reason = f"one update moved the policy {moved:.3g} nats per free dimension, the limit is {limit:.3g}"
        if reason:
            self._roll_back(settings, reason, seed)
        else:
            if checkpoints.should_save_checkpoint(learning.steps):
                self._keep(metrics)
            if manager.advance(learning.steps, alarmed=False):
                set_learning_rate(optimiser, settings.learning_rate * manager.share)
        return figures, reason

    def _keep(self, metrics: CheckpointMetrics | None) -> None:
        """Keep a checkpoint, which a check of its figures has found healthy, or from which nothing was learned."""
        steps = self.learning.steps
        known = metrics or CheckpointMetrics(steps, NO_TIME, None, None, None, None, None)
        self.checkpoints.save_state(steps, *capture(self.learning), known)
        self.checkpoints.confirm()

    def _roll_back(self, settings: OnPolicySettings, reason: str, seed: int) -> None:
        """Restore the last healthy state, with lower learning rates and other random numbers."""
        learner, manager = self.learning.learner, self.checkpoints.manager
        if manager.respond(gently=False) == STOP:
            raise TrainingError(
                f"{reason}, and {manager.phase_rollbacks} rollbacks have not helped; "
                "lower the learning rate, or look for rewards that are not finite in the environment"
            )
        self.checkpoints.failed = self.learning.steps
        step, tensors, state = self.checkpoints.rollback_state(reason, older=manager.retries > 0)
        restore(self.learning, tensors, state)
        manager.last_alarm = step
        learner.generator.manual_seed(task_seed(seed, manager.rollback_count))
        set_learning_rate(learner.optimiser, settings.learning_rate * manager.share)


def task_seed(seed: int, count: int) -> int:
    """Seed of the ``count``-th restart of a training: independent of all others."""
    return int(np.random.SeedSequence([seed, count]).generate_state(1)[0])


def metrics_of(figures: Figures, rollout: Rollout, learning: Learning) -> CheckpointMetrics:
    """Figures of an update as the guard compares them.

    The loss is the value function's, over the mean square of the returns, and the policy's is over the size of the
    advantages that it was computed with: returns that grow are no alarm. The KL is in nats per free dimension of the
    action: those of a Box, or the number of actions less one.
    """
    normalised, actions = learning.learner.settings.normalise, rollout.actions
    size = 1.0 if normalised else max(_mean_square(rollout.advantages) ** 0.5, SMALLEST_SQUARE)
    free_dimensions = actions.shape[1] if actions.ndim > 1 else max(learning.agent.actions - 1, 1)
    return CheckpointMetrics(
        step=learning.steps,
        timestamp=NO_TIME,
        policy_loss=figures["policy_loss"] / size,
        value_loss=figures.get("value_loss", 0.0) / max(_mean_square(rollout.returns), SMALLEST_SQUARE),
        kl_divergence=figures["kl"] / free_dimensions,
        mean_reward=learning.mean_return if learning.mean_return is not None else float(rollout.returns.mean()),
        explained_variance=figures["explained_variance"],
        entropy=figures["entropy"],
    )


def _mean_square(values: Tensor) -> float:
    return float(values.square().mean())
