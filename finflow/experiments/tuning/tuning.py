"""A search for better values of keys: done until its trials are there, and told of."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from optuna.trial import TrialState

from finflow.config import Config
from finflow.errors import ConfigError, TrainingError
from finflow.experiments.tasks.task_runner import Task, Where, run_tasks
from finflow.experiments.tuning.study_folder import SCRATCH, Tuning, begin
from finflow.experiments.tuning.study_report import report_study
from finflow.experiments.tuning.study_result import ATTRIBUTES, said_of, write_best
from finflow.experiments.tuning.trial_store import LOST, is_sqlite, reaching
from finflow.experiments.tuning.trial_worker import TrialsShown, take_trials, work
from finflow.training.phases.stopping import stopping_at_once

__all__ = ["StudyOutcome", "tune"]


class StudyOutcome(NamedTuple):
    """What a search leaves behind.

    Attributes
    ----------
    folder : Path
    report : Path
    best : Path or None
        The configuration to train with; None where no trial was finished.
    lines : list of str
        What to tell.
    """

    folder: Path
    report: Path
    best: Path | None
    lines: list[str]


def tune(config: Config, resume: Path | None, where: Where, tell: Callable[[str], None] = print) -> StudyOutcome:
    """Search until the number of trials is there, and report.

    Parameters
    ----------
    config : Config
        Of ``tune`` the settings, of the rest where the search starts from.
    resume : Path, optional
        Folder of a study to go on with.
    where : Where
        Who does the trials.
    tell : callable
        Takes lines.

    Raises
    ------
    KeyboardInterrupt
        With a line that says how to go on.
    """
    _check_reach(config, where)
    tuning = begin(config, resume)
    settings, book = config.tune, tuning.book
    tell(f"study {book.study.study_name} in {tuning.folder}, its trials in {tuning.where}")
    if len(settings.objective) > 1 and settings.pruner != "none":
        tell(f"several objectives have no order to fall behind in: tune.pruner {settings.pruner} is left aside")
    before = tuning.counts
    if before.finished:
        tell(f"{before.finished} of {before.all} trials are over")
    if before.finished < before.all:
        try:
            _work(tuning, where, tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(tuning)) from None
    with stopping_at_once():
        return conclude(tuning)


def _how_to_go_on(tuning: Tuning) -> str:
    command = f"python main.py --mode tune --resume {shlex.quote(str(tuning.folder))}"
    try:
        counts = tuning.counts
    except ConfigError:  # a lost storage is no reason to keep the command back
        return f"stopped; to go on: {command}"
    return f"stopped; {counts.finished} of {counts.all} trials are over; to go on: {command}"


def _check_reach(config: Config, where: Where) -> None:
    """Refuse a storage that workers on other machines would not see.

    Raises
    ------
    ConfigError
    """
    if where.cluster is None or not is_sqlite(config.tune.storage):
        return
    from finflow.experiments.tasks.ray_cluster import connected, machines

    with connected(where) as ray:
        found = machines(ray)
    if len(found) > 1:
        raise ConfigError(
            f"the cluster has {len(found)} machines, and SQLite keeps trials on one: name a storage that all reach: "
            "tune.storage postgresql+psycopg://USER@HOST/DATABASE, or journal:PATH on a folder that they share"
        )


def _work(tuning: Tuning, where: Where, tell: Callable[[str], None]) -> None:
    """Have the trials done here, or by workers."""
    arena, counts = tuning.arena, tuning.counts
    waiting = counts.all - counts.finished
    if where.in_process:
        with TrialsShown("trials", waiting) as shown:
            take_trials(tuning, shown.line if tell is print else tell, shown.showing)
        return
    given = {"config": tuning.config, "folder": tuning.folder, "folds": arena.folds, "tries": arena.tries}
    count = min(where.workers or waiting, waiting)
    tasks = [Task(f"worker {number}", work, given) for number in range(1, count + 1)]
    lasting = replace(where, retries=max(where.retries, waiting))  # a trial has retries of its own
    run_tasks(tasks, lasting, shared={"panel": arena.panel}, kind="workers")


def conclude(tuning: Tuning) -> StudyOutcome:
    """Write the best configuration and the report, and say what came of it.

    Raises
    ------
    TrainingError
        If not one trial has values.
    """
    with reaching(tuning.where):
        book = tuning.book
        trials, counts = book.trials, book.counts
    best = write_best(tuning.folder, tuning.config, trials)
    report = report_study(tuning.config, tuning.arena, tuning.folder, book.study.study_name, trials)
    if counts.finished == counts.all:
        shutil.rmtree(tuning.folder / SCRATCH, ignore_errors=True)
    if best is None:
        reasons = [trial.user_attrs.get(ATTRIBUTES.reason, LOST) for trial in trials if trial.state == TrialState.FAIL]
        first = f": the first because {reasons[0]}" if reasons else ""
        raise TrainingError(f"none of {counts.finished} trials came to its end{first}; the report is {report}")
    objective = tuning.config.tune.objective
    lines = [
        f"{counts.all} trials: {counts.complete} to their end, {counts.pruned} stopped early, {counts.failed} failed",
        f"best: trial {best.number}, {said_of(best, objective)}",
        f"to train with it: python main.py --mode train --config {shlex.quote(str(tuning.folder / 'best.yaml'))}",
    ]
    return StudyOutcome(tuning.folder, report, tuning.folder / "best.yaml", lines)
