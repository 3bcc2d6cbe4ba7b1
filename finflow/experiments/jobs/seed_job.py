"""A job: several agents of one configuration, one a seed, trained anywhere and judged together; in one market or more.

A job has a folder of its own, in which every training has one, and goes on from it with what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from finflow.config import Config
from finflow.experiments.jobs.duration_estimate import Estimate, estimate
from finflow.experiments.jobs.independent_trainings import Training, own_settings, train_all
from finflow.experiments.jobs.job_folder import begin
from finflow.experiments.tasks.task_runner import Where
from finflow.files import check_writable
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.manifest import write_manifest
from finflow.training.data.training_data import device_here, prepare_from
from finflow.training.judging.ensemble import judge_ensemble
from finflow.training.judging.held_out import Outcome, evaluate_agent
from finflow.training.phases.stopping import stopping_at_once

__all__ = ["Job", "Judged", "estimate_all", "job_of", "run_all"]


class Judged(Protocol):
    """Trainings in one market, and what is made of them: a job, or the plan of a protocol."""

    @property
    def market(self) -> str:
        """Which of several markets it is."""

    @property
    def panel(self) -> MarketPanel:
        """What the trainings may learn from is part of it."""

    @property
    def folder(self) -> Path:
        """Of the trainings and the report."""

    @property
    def trainings(self) -> list[Training]:
        """In the order that they are made in."""

    def begin(self) -> list[str]:
        """Write what is to be written before they are made; what to tell then."""

    def judge(self, checkpoints: Sequence[Path]) -> Outcome:
        """Judge the best checkpoint of each training, and write the report."""


@dataclass(frozen=True)
class Job:
    """Agents of several seeds in one market.

    Attributes
    ----------
    config : Config
        With the number of agents as ``train.seeds``.
    panel : MarketPanel
    folder : Path
    market : str
        Which of several markets this is.
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
        """Make the folder that of a job; the display says all there is to tell."""
        begin(self.folder, self.config)
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


def job_of(config: Config, folder: Path, market: str = "") -> Job:
    """Load the prices of a job, and see that an agent can be trained and judged.

    Parameters
    ----------
    config : Config
    folder : Path
        Of the job, new or not.
    market : str
        Which of several markets the configuration is of.

    Raises
    ------
    FinflowError
        If a setting or the prices cannot be used; nothing has been written then.
    """
    panel = load_panel(config.market)
    prepare_from(panel, config)
    return Job(config, panel, folder, market)


def run_all(jobs: Sequence[Judged], where: Where | None = None, tell: Callable[[str], None] = print) -> list[Outcome]:
    """Make the trainings that are missing, of all jobs side by side, and judge each job.

    Raises
    ------
    FinflowError, KeyboardInterrupt
        What was finished is kept: the same jobs go on from there.
    """
    for job in jobs:
        check_writable(job.folder, keep=False)
        for line in job.begin():
            tell(line)
    panels = {job.market: job.panel for job in jobs}
    checkpoints = train_all([training for job in jobs for training in job.trainings], panels, where, tell)
    outcomes = []
    for job in jobs:
        count = len(job.trainings)
        tell(f"judging {job.market or 'the trainings'}" if count > 1 else f"judging {job.market or 'the agent'}")
        with stopping_at_once():
            outcomes.append(job.judge(checkpoints[:count]))
        checkpoints = checkpoints[count:]
    return outcomes


def estimate_all(jobs: Sequence[Judged], where: Where | None = None) -> Estimate:
    """How long the missing trainings of all jobs will take."""
    trainings = [training for job in jobs for training in job.trainings]
    return estimate(trainings, {job.market: job.panel for job in jobs}, where)
