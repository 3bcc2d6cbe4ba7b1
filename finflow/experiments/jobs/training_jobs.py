"""Jobs: several trainings of one configuration and the evaluation of their agents, in one market or more.

A job has a folder of its own, in which every training has one; `--resume` of the folder runs what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from finflow.config import Config, dump_run
from finflow.evaluation.multi_run.comparison_page import universes_page
from finflow.experiments.jobs.independent_trainings import Training, train_all, training_config
from finflow.experiments.tasks import ComputeResources
from finflow.files import check_writable, write_atomically, write_together
from finflow.json_text import format_json
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.run_folder import CONFIG, JOB, write_manifest
from finflow.training.data.training_data import device_here, prepare_from
from finflow.training.judging.agent_strategy import Agents
from finflow.training.judging.evaluations import judge_agents
from finflow.training.judging.held_out import REPORTS, EvaluationOutcome
from finflow.training.phases.stopping import stopping_at_once

if TYPE_CHECKING:
    from finflow.experiments.jobs.protocols import ProtocolJob


@dataclass(frozen=True)
class SeedJob:
    """Agents of several seeds in one market."""

    config: Config
    panel: MarketPanel
    folder: Path
    market: str = ""

    @property
    def trainings(self) -> list[Training]:
        first, of = self.config.train.seed, f"{self.market}, " if self.market else ""
        seeds = range(first, first + self.config.train.seeds)
        folders = {seed: self.folder / f"seed-{seed}" for seed in seeds}
        return [
            Training(
                f"{of}seed {seed}",
                folder,
                training_config(self.config, folder, seed, self.config.evaluation),
                self.market,
            )
            for seed, folder in folders.items()
        ]

    def begin(self) -> list[str]:
        """Write the configuration and the note that make a folder a job's; there is nothing to print."""
        note = {"seed": self.config.train.seed, "seeds": self.config.train.seeds}
        write_together({self.folder / CONFIG: dump_run(self.config), self.folder / JOB: format_json(note)})
        return []

    def judge(self, checkpoints: Sequence[Path]) -> EvaluationOutcome:
        """Evaluate the agents together on the test window; a single one like any run."""
        training_data = prepare_from(self.panel, self.config)
        device = device_here(self.config.train.device)
        agents = Agents.of([read_checkpoint(path) for path in checkpoints], training_data.config, device)
        outcome = judge_agents(training_data, agents, self.folder)
        seeds = [one.config.train.seed for one in self.trainings]
        write_manifest(self.folder, training_data, device, seeds=seeds)
        return outcome


TrainingJob: TypeAlias = "SeedJob | ProtocolJob"
"""Trainings in one market and the evaluation of their agents: those of seeds, or of the folds of a protocol."""


def make_seed_job(config: Config, folder: Path, market: str = "") -> SeedJob:
    """Load the prices of a job, and check that an agent can be trained and evaluated.

    Raises
    ------
    FinflowError
        If a setting or the prices cannot be used; nothing has been written then.
    """
    panel = load_panel(config.market)
    prepare_from(panel, config)
    return SeedJob(config, panel, folder, market)


def run_all(jobs: Sequence[TrainingJob], resources: ComputeResources | None = None) -> list[EvaluationOutcome]:
    """Run the trainings that are missing, of all jobs side by side, and evaluate each job.

    Raises
    ------
    FinflowError, KeyboardInterrupt
        Finished trainings are kept: the same jobs continue from there.
    """
    for job in jobs:
        check_writable(job.folder, keep=False)
        for line in job.begin():
            print(line)
    panels = {job.market: job.panel for job in jobs}
    checkpoints = train_all([training for job in jobs for training in job.trainings], panels, resources)
    outcomes = []
    for job in jobs:
        count = len(job.trainings)
        print(f"evaluating {job.market or 'the trainings'}" if count > 1 else f"evaluating {job.market or 'the agent'}")
        with stopping_at_once():
            outcomes.append(job.judge(checkpoints[:count]))
        checkpoints = checkpoints[count:]
    return outcomes


def write_universes(folder: Path, names: Sequence[str]) -> None:
    """Write the note of a folder that holds the same job in several universes, each in a folder of its name."""
    write_atomically(folder / JOB, format_json({"universes": list(names)}))


def report_universes(
    names: Sequence[str], outcomes: Sequence[EvaluationOutcome], folder: Path
) -> tuple[list[str], Path]:
    """Report the universes together, from the numbers of each one's own report."""
    page = universes_page({name: one.page.document for name, one in zip(names, outcomes, strict=True)})
    write_together({folder / REPORTS / file: content for file, content in page.files().items()})
    return page.text(), folder / REPORTS / "report.html"
