"""A whole on-policy training in a task: rollouts and updates in turn, logged, saved and resumed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.agent.on_policy.schedules import EntropyScheduleConfig
from finflow.config import RollbackConfig
from finflow.errors import CheckpointError, ConfigError
from finflow.files import write_atomically
from finflow.guard.checkpoint_folder import LATEST, SUFFIX
from finflow.json_text import parse_json
from finflow.training.data.reward_normalizer import RewardNormalizerConfig
from finflow.training.on_policy.advanced_trainer import AdvancedPPOTrainer
from finflow.training.on_policy.checkpoint_manager import CheckpointManager
from finflow.training.on_policy.task_rollouts import Environment
from finflow.training.on_policy.vector_tasks import VectorTask

METRICS = "metrics.jsonl"
Row = dict[str, Any]


def train_advanced_ppo(
    env: Environment,
    n_iterations: int = 1000,
    n_steps_per_iteration: int = 2048,
    n_ppo_epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    entropy_config: EntropyScheduleConfig | None = None,
    reward_config: RewardNormalizerConfig | None = None,
    checkpoint_config: RollbackConfig | CheckpointManager | None = None,
    *,
    settings: OnPolicySettings | None = None,
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
    n_steps_per_iteration : int
        Decisions of all environments in one rollout.
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
        if count < 1:
            raise ConfigError(f"{name} is a whole number of at least 1, not {count}")
    spaces = VectorTask(env).spaces
    trainer = AdvancedPPOTrainer(
        spaces.observations,
        spaces.actions,
        lr,
        entropy_config,
        reward_config,
        checkpoint_config,
        settings=settings,
        seed=seed,
    )
    trainer.begin(env)
    log = TrainingLog(None if folder is None else Path(folder), [])
    if resume:
        log.resume(trainer, env)
    while trainer.progress.training_step < n_iterations:
        reward = trainer.collect_rollout(env, n_steps_per_iteration)
        row = log.add(trainer, reward, trainer.train_step(n_ppo_epochs, batch_size))
        if watch is not None:
            watch(trainer, row)
        if trainer.progress.training_step % save_every == 0 or trainer.progress.training_step == n_iterations:
            log.save(trainer)
    return trainer


@dataclass
class TrainingLog:
    """Figures and checkpoints of a training, in a folder or nowhere."""

    folder: Path | None
    rows: list[Row]

    def add(self, trainer: AdvancedPPOTrainer, reward: float, figures: Mapping[str, float]) -> Row:
        """Log an iteration; what is no number is left out of the row."""
        statistics = trainer.get_full_statistics()
        row: Row = {"iteration": trainer.progress.training_step, "mean_reward": reward}
        row |= {name: statistics[name] for name in ("decisions", "episode_count", "mean_return")}
        row |= dict(figures)
        row |= {"entropy_progress": statistics["entropy.progress"], "reward_std": statistics["reward_normalizer.std"]}
        row |= {f"checkpoint_{name}": value for name, value in statistics["checkpoint"].items()}
        row = {name: value for name, value in row.items() if value is not None and math.isfinite(value)}
        self.rows.append(row)
        return row

    def save(self, trainer: AdvancedPPOTrainer) -> None:
        """Write the log, then the checkpoint, both whole; episodes begin anew, also where there is no folder."""
        if self.folder is None:
            trainer.begin_episodes()
            return
        write_atomically(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows))
        trainer.save(self.checkpoint)

    def resume(self, trainer: AdvancedPPOTrainer, env: Environment) -> None:
        """Go on from the checkpoint, and drop the rows after it; from the beginning where there is none."""
        if self.folder is None:
            raise ConfigError("to resume a training, name the folder that it was saved in")
        if not self.checkpoint.is_file():
            return
        trainer.load(self.checkpoint, env)
        try:
            lines = (self.folder / METRICS).read_text("utf-8").splitlines()
            rows = [parse_json(line) for line in lines]
            self.rows = [row for row in rows if row["iteration"] <= trainer.progress.training_step]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.folder / METRICS} cannot be read: {error}") from None

    @property
    def checkpoint(self) -> Path:
        return (self.folder or Path()) / f"{LATEST}{SUFFIX}"
