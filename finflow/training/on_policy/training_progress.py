"""State of an on-policy training in a task, as rollback and resume restore it, and its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import CheckpointError
from finflow.guard.state_capture import capture, restore
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.on_policy.checkpoint_manager import CheckpointManager
from finflow.training.phases.schedules import EntropyScheduler

RETURNS_KEPT = 100  # newest episodes whose returns are averaged


@dataclass
class Learning:
    """State that a rollback goes back to.

    Attributes
    ----------
    learner : OnPolicyLearner
        Networks, optimiser, coefficient of the penalty and generator.
    returns : list of float
        Of the newest episodes.
    steps : int
        Gradient updates.
    constant_entropy : float or None
        Entropy coefficient in place of the schedule's.
    """

    learner: OnPolicyLearner
    entropy: EntropyScheduler
    rewards: RewardNormalizer
    returns: list[float] = field(default_factory=list)
    steps: int = 0
    constant_entropy: float | None = None

    @property
    def agent(self) -> TaskActorCritic:
        """Policy and value function."""
        return cast(TaskActorCritic, self.learner.agent)

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture all fields."""
        return capture(self)

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore all fields."""
        restore(self, tensors, state)

    @property
    def entropy_coefficient(self) -> float:
        """Coefficient of the next update."""
        return self.entropy.value if self.constant_entropy is None else self.constant_entropy

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest episodes; None before the first ended."""
        return float(np.mean(self.returns)) if self.returns else None


@dataclass
class TrainingProgress:
    """All that a resume restores.

    Attributes
    ----------
    training_step, episode_count, decisions : int
        Rollouts learned from, episodes that ended, and decisions taken; a rollback does not turn them back.
    """

    learning: Learning
    checkpoints: CheckpointManager
    training_step: int = 0
    episode_count: int = 0
    decisions: int = 0

    def save(self, path: Path, facts: Mapping[str, int]) -> None:
        """Write a checkpoint, with facts that `load` asks for."""
        tensors, state = capture(self)
        write_tensors(path, tensors, {"trainer": dict(facts), "progress": state})

    def load(self, path: Path, facts: Mapping[str, int]) -> None:
        """Restore a checkpoint.

        Raises
        ------
        CheckpointError
            If it is missing or damaged, or has other facts.
        """
        tensors, content = read_tensors(path)
        if content.get("trainer") != facts or not isinstance(content.get("progress"), dict):
            found = str(content.get("trainer"))[:120]
            raise CheckpointError(f"{path} is of another trainer: it has {found}, this one {dict(facts)}")
        restore(self, tensors, content["progress"])

    def statistics(self) -> dict[str, Any]:
        """Counts, and the statistics of each part: of the part ``entropy`` as ``entropy.progress``, too."""
        parts: dict[str, dict[str, Any]] = {
            "entropy": self.learning.entropy.get_info(),
            "reward_normalizer": self.learning.rewards.get_statistics(),
            "checkpoint": self.checkpoints.get_statistics(),
        }
        return {
            "training_step": self.training_step,
            "episode_count": self.episode_count,
            "decisions": self.decisions,
            "gradient_steps": self.learning.steps,
            "mean_return": self.learning.mean_return,
            **parts,
            **{f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()},
        }


def task_seed(seed: int, count: int) -> int:
    """Seed of the ``count``-th restart of a training: independent of all others."""
    return int(np.random.SeedSequence([seed, count]).generate_state(1)[0])
