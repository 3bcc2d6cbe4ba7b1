"""Jobs: several trainings of one configuration and the judgement of their agents, in one market or more.

A job has a folder of its own, in which every training has one; `--resume` of the folder runs what is missing. How long
the trainings take is estimated by a probe of a few updates.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from finflow.config import Config, EvaluationConfig, dump_run
from finflow.evaluation.multi_run import universes_page
from finflow.evaluation.multi_run.universes_page import Universe
from finflow.experiments.jobs.independent_trainings import Training, is_finished, own_settings, train_all
from finflow.experiments.tasks.task_progress import NullStream
from finflow.experiments.tasks.task_runner import ComputeResources, tasks_at_once
from finflow.files import check_writable, write_atomically, write_together
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.manifest import write_manifest
from finflow.training.checkpoints.run_resolver import CONFIG, JOB
from finflow.training.data.training_data import device_here, prepare_from
from finflow.training.judging.evaluations import evaluate_agent, judge_ensemble
from finflow.training.judging.held_out import REPORTS, Outcome
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.phases.finetune import vector_steps
from finflow.training.phases.stopping import stopping_at_once
from finflow.training.trainer import FinFlowTrainer

__all__ = [
    "Estimate",
    "SeedJob",
    "TrainingJob",
    "describe_duration",
    "estimate",
    "estimate_all",
    "make_seed_job",
    "report_universes",
    "run_all",
    "write_universes",
]

PROBE_UPDATES = 20  # of each phase


class TrainingJob(Protocol):
    """Trainings in one market and the judgement of their agents: those of seeds, or of the folds of a protocol."""

    @property
    def market(self) -> str:
        """Name of the market among several; empty for a single one."""

    @property
    def panel(self) -> MarketPanel:
        """Prices, of which each training may see a part."""

    @property
    def folder(self) -> Path:
        """Folder of the trainings and the report."""

    @property
    def trainings(self) -> list[Training]:
        """All trainings, in the order that they run in."""

    def begin(self) -> list[str]:
        """Write the job's own files before the trainings begin, and return lines to print."""

    def judge(self, checkpoints: Sequence[Path]) -> Outcome:
        """Judge the best checkpoint of each training, and write the report."""


@dataclass(frozen=True)
class SeedJob:
    """Agents of several seeds in one market.

    Attributes
    ----------
    config : Config
        With the number of agents as ``train.seeds``.
    panel : MarketPanel
    folder : Path
    market : str
        Name among several markets.
    """

    config: Config
    panel: MarketPanel
    folder: Path
    market: str = ""

    @property
    def trainings(self) -> list[Training]:
        """One for each seed."""
        first, of = self.config.train.seed, f"{self.market}, " if self.market else ""
        seeds = range(first, first + self.config.train.seeds)
        places = {seed: self.folder / f"seed-{seed}" for seed in seeds}
        return [
            Training(
                f"{of}seed {seed}", place, own_settings(self.config, place, seed, self.config.evaluation), self.market
            )
            for seed, place in places.items()
        ]

    def begin(self) -> list[str]:
        """Write the configuration and the note that make a folder a job's; there is nothing to print."""
        note = {"seed": self.config.train.seed, "seeds": self.config.train.seeds}
        write_together({self.folder / CONFIG: dump_run(self.config), self.folder / JOB: _note_text(note)})
        return []

    def judge(self, checkpoints: Sequence[Path]) -> Outcome:
        """Judge the agents together on the test window; a single one like any run."""
        training_data = prepare_from(self.panel, self.config)
        device = device_here(self.config.train.device)
        found = [read_checkpoint(path) for path in checkpoints]
        if len(found) == 1:
            outcome = evaluate_agent(training_data, found[0], device, self.folder)
        else:
            outcome = judge_ensemble(training_data, found, device, self.folder)
        seeds = [one.config.train.seed for one in self.trainings]
        write_manifest(self.folder, training_data, device, seeds=seeds)
        return outcome


def make_seed_job(config: Config, folder: Path, market: str = "") -> SeedJob:
    """Load the prices of a job, and see that an agent can be trained and judged.

    Parameters
    ----------
    config : Config
    folder : Path
        Of the job, new or not.
    market : str
        Name of the configuration's market among several.

    Raises
    ------
    FinflowError
        If a setting or the prices cannot be used; nothing has been written then.
    """
    panel = load_panel(config.market)
    prepare_from(panel, config)
    return SeedJob(config, panel, folder, market)


def run_all(
    jobs: Sequence[TrainingJob], resources: ComputeResources | None = None, tell: Callable[[str], None] = print
) -> list[Outcome]:
    """Run the trainings that are missing, of all jobs side by side, and judge each job.

    Raises
    ------
    FinflowError, KeyboardInterrupt
        Finished trainings are kept: the same jobs continue from there.
    """
    for job in jobs:
        check_writable(job.folder, keep=False)
        for line in job.begin():
            tell(line)
    panels = {job.market: job.panel for job in jobs}
    checkpoints = train_all([training for job in jobs for training in job.trainings], panels, resources, tell)
    outcomes = []
    for job in jobs:
        count = len(job.trainings)
        tell(f"judging {job.market or 'the trainings'}" if count > 1 else f"judging {job.market or 'the agent'}")
        with stopping_at_once():
            outcomes.append(job.judge(checkpoints[:count]))
        checkpoints = checkpoints[count:]
    return outcomes


def estimate_all(jobs: Sequence[TrainingJob], resources: ComputeResources | None = None) -> Estimate:
    """Estimate the duration of the missing trainings of all jobs."""
    trainings = [training for job in jobs for training in job.trainings]
    return estimate(trainings, {job.market: job.panel for job in jobs}, resources)


def write_universes(folder: Path, names: Sequence[str]) -> None:
    """Write the note of a folder that holds the same job in several universes, each in a folder of its name."""
    write_atomically(folder / JOB, _note_text({"universes": list(names)}))


def _note_text(note: Mapping[str, object]) -> str:
    return json.dumps(note, indent=2, sort_keys=True) + "\n"


def report_universes(names: Sequence[str], outcomes: Sequence[Outcome], folder: Path) -> list[str]:
    """Report the universes together, from the numbers of each one's own report.

    Returns
    -------
    list of str
        Lines to print, with the path of the page.
    """
    found = []
    for name, outcome in zip(names, outcomes, strict=True):
        content = json.loads(outcome.report.with_name("metrics.json").read_text("utf-8"))
        found.append(Universe.of(name, content))
    made = universes_page.make(found)
    write_together({folder / REPORTS / file: content for file, content in made.files.items()})
    return [*made.lines, f"report: {folder / REPORTS / 'report.html'}"]


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
            f"about {describe_duration(self.seconds)} for those that are missing{side}, by a probe of {PROBE_UPDATES} "
            "updates of each phase on this machine; judging them comes on top",
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


def describe_duration(seconds: float) -> str:
    """Describe seconds in words."""
    if seconds < 90.0:
        return f"{max(round(seconds), 1)} seconds"
    return f"{seconds / 60.0:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} hours"
