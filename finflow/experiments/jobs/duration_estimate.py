"""Number and duration of trainings, estimated by a probe of a few updates."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finflow.config import EvaluationConfig
from finflow.experiments.jobs.independent_trainings import Training, is_finished
from finflow.experiments.tasks.task_runner import ComputeResources
from finflow.experiments.tasks.worker import NullStream
from finflow.market.panel import MarketPanel
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.phases.finetune import vector_steps
from finflow.training.trainer import FinFlowTrainer

__all__ = ["Estimate", "estimate", "tasks_at_once"]

PROBE_UPDATES = 20  # of each phase


@dataclass(frozen=True)
class Estimate:
    """Duration of trainings.

    Attributes
    ----------
    trainings : int
    finished : int
        Trainings that are there already.
    offline_updates, online_updates : int
        Of each training.
    seconds : float
        For what is not there yet, trainings alone.
    at_once : int
        Trainings side by side.
    """

    trainings: int
    finished: int
    offline_updates: int
    online_updates: int
    seconds: float
    at_once: int = 1

    def lines(self) -> list[str]:
        """Lines to print."""
        if self.finished == self.trainings:
            return [f"{self.trainings} trainings, all of them there already; only judging them is left"]
        updates = f"about {self.offline_updates:,} offline and {self.online_updates:,} online updates each"
        there = f", {self.finished} of them there already" if self.finished else ""
        side = f", {self.at_once} at once" if self.at_once > 1 else ""
        plural = "s" if self.trainings > 1 else ""
        return [
            f"{self.trainings} training{plural}{there}; {updates}",
            f"about {_duration(self.seconds)} for those that are missing{side}, by a probe of {PROBE_UPDATES} updates "
            "of each phase on this machine; judging them comes on top",
        ]


def estimate(
    trainings: Sequence[Training], panels: Mapping[str, MarketPanel], resources: ComputeResources | None = None
) -> Estimate:
    """Count the trainings, and time a few updates of the last one's in a folder that is removed again."""
    count = len(trainings)
    missing = [one for one in trainings if not is_finished(one, panels[one.market])]
    if not missing:
        return Estimate(count, count, 0, 0, 0.0)
    last = trainings[-1]
    config, train = last.config, last.config.train
    length = config.env.episode_length
    episodes = min(train.offline_episodes, -(-PROBE_UPDATES * train.offline_batch_size // length))
    short = {
        "offline_episodes": episodes,
        "offline_training_epochs": 1,
        "online_episodes": max(1, PROBE_UPDATES * train.n_envs // length),
        "warmup_episodes": 1,
        "critic_only_updates": 0,
        "validation_updates": 10**9,
        "checkpoint_updates": 10**9,
    }
    with tempfile.TemporaryDirectory(prefix="finflow-probe-") as folder:
        output = config.output.model_copy(update={"logs_dir": Path(folder), "offline_dir": Path(folder)})
        changes = {"train": train.model_copy(update=short), "output": output, "evaluation": EvaluationConfig()}
        small = config.model_copy(update=changes)
        watch = Stopwatch()
        training_data = last.training_data(panels[last.market], small)
        trainer = FinFlowTrainer(small, training_data=training_data, progress=watch)
        began = time.monotonic()
        rows = len(trainer.collect_offline_data())
        collecting = (time.monotonic() - began) * train.offline_episodes / episodes
        trainer.train_iql()
        trainer.finetune()
        del trainer
    rows = round(rows * train.offline_episodes / episodes)
    offline = train.offline_training_epochs * max(rows // train.offline_batch_size, 1)
    online = vector_steps(config, train.online_episodes) * train.updates_per_vector_step
    checks = offline // train.validation_updates + online // train.validation_updates + 3
    one = collecting + offline * watch.update(0) + online * watch.update(1) + checks * watch.validation
    at_once = min(tasks_at_once(resources or ComputeResources()), len(missing))
    rounds = -(-len(missing) // at_once)
    return Estimate(count, count - len(missing), offline, online, one * rounds, at_once)


def tasks_at_once(resources: ComputeResources) -> int:
    """Number of tasks that run side by side."""
    if resources.cluster is None:
        return resources.workers or 1
    from finflow.experiments.tasks.ray_cluster import connected, slots

    with connected(resources) as ray:
        return slots(ray, resources)


class Stopwatch(ProgressDisplay):
    """Display that shows nothing, and times updates and validations."""

    def __init__(self) -> None:
        super().__init__(stream=NullStream())
        self._phases: list[list[float]] = []
        self._validations: list[float] = []
        self._latest = time.monotonic()

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin to time another phase."""
        self._phases.append([])
        self._latest = time.monotonic()

    def advance(self, n: int = 1, **facts: object) -> None:
        """Note the time since the last call: an update where ``n`` is 1, a validation where it is 0."""
        now = time.monotonic()
        (self._phases[-1] if n else self._validations).append(now - self._latest)
        self._latest = now

    def update(self, phase: int) -> float:
        """Median seconds of an update; the first few, in which everything is still being set up, do not count."""
        times = self._phases[phase]
        return float(np.median(times[len(times) // 4 :])) if times else 0.0

    @property
    def validation(self) -> float:
        """Median seconds of a validation."""
        return float(np.median(self._validations)) if self._validations else 0.0


def _duration(seconds: float) -> str:
    """Describe seconds in words."""
    if seconds < 90.0:
        return f"{max(round(seconds), 1)} seconds"
    return f"{seconds / 60.0:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} hours"
