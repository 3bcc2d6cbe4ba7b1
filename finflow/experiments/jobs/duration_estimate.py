"""Duration of trainings, estimated by a probe of a few updates of each phase."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from finflow.config import Config, EvaluationConfig, replace_values
from finflow.experiments.jobs.independent_trainings import Training, is_finished
from finflow.experiments.jobs.training_jobs import TrainingJob
from finflow.experiments.tasks.task_progress import NullStream
from finflow.experiments.tasks.task_runner import ComputeResources, tasks_at_once
from finflow.market.panel import MarketPanel
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.off_policy.learners import online_updates
from finflow.training.on_policy.on_policy_state import rollouts_of, steps_per_rollout
from finflow.training.trainer import FinFlowTrainer

PROBE_UPDATES = 20  # of each phase
OFFLINE, ONLINE = range(2)
NEVER = 10**9


@dataclass(frozen=True)
class DurationEstimate:
    """Duration of trainings.

    Attributes
    ----------
    trainings : int
    finished : int
        Trainings that are finished already.
    offline_updates, online_updates : int
        Of each training.
    seconds : float
        For what is not there yet, trainings alone.
    at_once : int
        Trainings side by side.
    patience : int
        Updates without a better validation after which the offline phase ends early; 0 for none.
    """

    trainings: int
    finished: int
    offline_updates: int
    online_updates: int
    seconds: float
    at_once: int = 1
    patience: int = 0

    def lines(self) -> list[str]:
        """Lines to print."""
        if self.finished == self.trainings:
            return [f"{self.trainings} trainings, all of them finished already; only their evaluation is left"]
        updates = f"about {self.offline_updates:,} offline and {self.online_updates:,} online updates each"
        if 0 < self.patience < self.offline_updates:
            updates += f", fewer if validation does not improve for {self.patience:,} offline updates"
        there = f", {self.finished} of them finished already" if self.finished else ""
        side = f", {self.at_once} at once" if self.at_once > 1 else ""
        plural = "s" if self.trainings > 1 else ""
        return [
            f"{self.trainings} training{plural}{there}; {updates}",
            f"about {describe_duration(self.seconds)} for the missing ones{side}, by a probe of {PROBE_UPDATES} "
            "updates of each phase on this machine; plus their evaluation",
        ]


def estimate_all(jobs: Sequence[TrainingJob], resources: ComputeResources | None = None) -> DurationEstimate:
    """Estimate the duration of the missing trainings of all jobs."""
    trainings = [training for job in jobs for training in job.trainings]
    return estimate(trainings, {job.market: job.panel for job in jobs}, resources)


def estimate(
    trainings: Sequence[Training], panels: Mapping[str, MarketPanel], resources: ComputeResources | None = None
) -> DurationEstimate:
    """Count the trainings, and time a few updates of the last one's in a folder that is removed again."""
    count = len(trainings)
    missing = [one for one in trainings if not is_finished(one, panels[one.market])]
    if not missing:
        return DurationEstimate(count, count, 0, 0, 0.0)
    last = trainings[-1]
    with tempfile.TemporaryDirectory(prefix="finflow-probe-") as folder:
        probe = _probe(last, panels[last.market], Path(folder))
    updates = Updates.of(last.config, probe.rows)
    if last.warm_start is not None:
        updates = replace(updates, offline=0, validated=updates.validated[1:])
    seconds = probe.collecting + updates.offline * probe.watch.update(OFFLINE)
    seconds += updates.of_folds * probe.watch.update(OFFLINE) + updates.online * probe.watch.update(ONLINE)
    validations = 3 + sum(updates.validated) // last.config.train.validation_updates
    seconds += validations * probe.watch.validation
    at_once = min(tasks_at_once(resources or ComputeResources()), len(missing))
    rounds = -(-len(missing) // at_once)
    return DurationEstimate(
        count,
        count - len(missing),
        updates.offline,
        updates.online,
        seconds * rounds,
        at_once,
        last.config.offline.patience,
    )


@dataclass(frozen=True)
class Updates:
    """Numbers of updates of a training.

    Attributes
    ----------
    offline : int
    of_folds : int
        Of offline learning without each block of the training years.
    online : int
    validated : tuple of int
        Updates of phases that validate on their way.
    """

    offline: int
    of_folds: int
    online: int
    validated: tuple[int, ...]

    @classmethod
    def of(cls, config: Config, rows: int) -> Updates:
        """Those of a configuration, with data of so many transitions."""
        train = config.train
        learns = config.offline.method != "none"
        an_epoch = max(rows // train.offline_batch_size, 1)
        offline = train.offline_training_epochs * an_epoch * learns
        if config.online.on_policy:
            online = rollouts_of(config) * steps_per_rollout(config)
            return cls(offline, 0, online, (offline, online))
        of_folds = config.fold_epochs * an_epoch * max(config.out_of_fold.blocks - 1, 0)  # each lacks one block of them
        online = online_updates(config)
        return cls(offline, of_folds, online, (offline, online))


@dataclass(frozen=True)
class TimingProbe:
    """Times of a few updates; the seconds that collecting all data takes, and its number of transitions."""

    watch: Stopwatch
    collecting: float
    rows: int


def _probe(training: Training, panel: MarketPanel, folder: Path) -> TimingProbe:
    """Train for a few updates of each phase."""
    config, train = training.config, training.config.train
    length = config.env.episode_length
    episodes = min(train.offline_episodes, -(-PROBE_UPDATES * train.offline_batch_size // length))
    changes = {
        "train.offline_episodes": episodes,
        "train.offline_training_epochs": 1,
        "train.warmup_episodes": 1,
        "train.critic_only_updates": 0,
        "train.validation_updates": NEVER,
        "train.checkpoint_updates": NEVER,
        "offline.evaluation_updates": 0,
        "out_of_fold.pretraining_epochs": 0,
        "output.logs_dir": folder,
        "output.offline_dir": folder,
        "evaluation": EvaluationConfig(),
    }
    small, watch = replace_values(config, changes), Stopwatch(PROBE_UPDATES)
    trainer = FinFlowTrainer(small, training_data=training.training_data(panel, small), progress=watch)
    began = time.monotonic()
    rows = len(trainer.collect_offline_data())
    collecting = (time.monotonic() - began) * train.offline_episodes / episodes
    trainer.train_iql()
    with suppress(EnoughUpdatesError):
        trainer.finetune()
    return TimingProbe(watch, collecting, round(rows * train.offline_episodes / episodes))


class EnoughUpdatesError(Exception):
    """The online phase has been timed."""


class Stopwatch(ProgressDisplay):
    """Display that shows nothing, times updates and validations, and ends the online phase after a few updates.

    Parameters
    ----------
    enough : int
        Updates of the online phase.

    Raises
    ------
    EnoughUpdatesError
        After that many.
    """

    def __init__(self, enough: int) -> None:
        super().__init__(stream=NullStream())
        self.enough = enough
        self._phases: list[list[float]] = []
        self._validations: list[float] = []
        self._updates = 0
        self._latest = time.monotonic()

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin to time another phase."""
        self._phases.append([])
        self._updates = 0
        self._latest = time.monotonic()

    def advance(self, n: int = 1, **facts: object) -> None:
        """Note the time since the last call: that of ``n`` updates, or of a validation where ``n`` is 0."""
        now = time.monotonic()
        if n > 0:
            self._phases[-1].append((now - self._latest) / n)
            self._updates += n
        elif n == 0:  # a rollback counts back
            self._validations.append(now - self._latest)
        self._latest = now
        if len(self._phases) > ONLINE and self._updates >= self.enough:
            raise EnoughUpdatesError

    def update(self, phase: int) -> float:
        """Median seconds of an update; the first few, in which everything is still being set up, do not count."""
        times = self._phases[phase]
        return float(np.median(times[len(times) // 4 :])) if times else 0.0

    @property
    def validation(self) -> float:
        """Median seconds of a validation."""
        return float(np.median(self._validations)) if self._validations else 0.0


def describe_duration(seconds: float) -> str:
    """Describe a number of seconds."""
    if seconds < 90.0:
        return f"{max(round(seconds), 1)} seconds"
    return f"{seconds / 60.0:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} hours"
