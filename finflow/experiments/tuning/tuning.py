"""A hyperparameter search, run until all its trials are finished, and its report; or a dry run of one."""

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
from finflow.experiments.tasks import ComputeResources, Task, connected, run_tasks
from finflow.experiments.tuning.optuna_storage import display_url, is_sqlite, storage_errors
from finflow.experiments.tuning.study import SCRATCH, Tuning, begin, open_study, space_of
from finflow.experiments.tuning.study_report import report_study
from finflow.experiments.tuning.study_results import ATTRIBUTES, BEST, describe_outcome, write_best
from finflow.experiments.tuning.trial_store import LOST
from finflow.experiments.tuning.trial_training import trial_context
from finflow.experiments.tuning.trial_worker import TrialDisplay, run_waiting_trials, work
from finflow.training.phases.stopping import stopping_at_once


class StudyOutcome(NamedTuple):
    """Outcome of a search."""

    folder: Path
    report: Path
    best: Path | None
    lines: list[str]


def tune(
    config: Config, resume: Path | None, resources: ComputeResources, log: Callable[[str], None] = print
) -> StudyOutcome:
    """Search until all trials are finished, and report.

    Raises
    ------
    KeyboardInterrupt
        With a line that says how to go on.
    """
    _check_reach(config, resources)
    tuning = begin(config, resume)
    settings, store = config.tune, tuning.store
    log(f"study {store.study.study_name} in {tuning.folder}, its trials in {tuning.where}")
    if len(settings.objective) > 1 and settings.pruner != "none":
        log(f"several objectives cannot be pruned: tune.pruner {settings.pruner} is ignored")
    before = tuning.counts
    if before.finished:
        log(f"{before.finished} of {before.all} trials are over")
    if before.finished < before.all:
        try:
            _work(tuning, resources, log)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_resume_hint(tuning)) from None
    with stopping_at_once():
        return conclude(tuning)


def _resume_hint(tuning: Tuning) -> str:
    command = f"python main.py --mode tune --resume {shlex.quote(str(tuning.folder))}"
    try:
        counts = tuning.counts
    except ConfigError:  # the command is shown even where the storage is lost
        return f"stopped; to continue: {command}"
    return f"stopped; {counts.finished} of {counts.all} trials are over; to continue: {command}"


def _check_reach(config: Config, resources: ComputeResources) -> None:
    """Refuse a storage that workers on other machines would not see."""
    if resources.cluster is None or not is_sqlite(config.tune.storage):
        return
    with connected(resources.cluster) as ray:
        count = len({node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]})
    if count > 1:
        raise ConfigError(
            f"the cluster has {count} machines, and SQLite keeps trials on one: name a storage that all reach: "
            "tune.storage postgresql+psycopg://USER@HOST/DATABASE, or journal:PATH on a folder that they share"
        )


def _work(tuning: Tuning, resources: ComputeResources, log: Callable[[str], None]) -> None:
    context, counts = tuning.context, tuning.counts
    waiting = counts.all - counts.finished
    if resources.in_process:
        with TrialDisplay("trials", waiting) as display:
            run_waiting_trials(tuning, display.line if log is print else log, display.show_trial)
        return
    arguments = {"config": tuning.config, "folder": tuning.folder, "folds": context.folds, "tries": context.tries}
    count = min(resources.workers or waiting, waiting)
    tasks = [Task(f"worker {number}", work, arguments) for number in range(1, count + 1)]
    lasting = replace(resources, retries=max(resources.retries, waiting))  # a trial has retries of its own
    run_tasks(tasks, lasting, shared={"panel": context.panel}, kind="workers")


def conclude(tuning: Tuning) -> StudyOutcome:
    """Write the best configuration and the report, and describe the outcome.

    Raises
    ------
    TrainingError
        If not one trial has values.
    """
    with storage_errors(tuning.where):
        store = tuning.store
        trials, counts = store.trials, store.counts
    best = write_best(tuning.folder, tuning.config, trials)
    report = report_study(tuning.config, tuning.context, tuning.folder, store.study.study_name, trials)
    if counts.finished == counts.all:
        shutil.rmtree(tuning.folder / SCRATCH, ignore_errors=True)
    if best is None:
        reasons = [trial.user_attrs.get(ATTRIBUTES.reason, LOST) for trial in trials if trial.state == TrialState.FAIL]
        first = f": the first because {reasons[0]}" if reasons else ""
        raise TrainingError(f"none of {counts.finished} trials completed{first}; the report is {report}")
    objective = tuning.config.tune.objective
    lines = [
        f"{counts.all} trials: {counts.complete} completed, {counts.pruned} stopped early, {counts.failed} failed",
        f"best: trial {best.number}, {describe_outcome(best, objective)}",
        f"to train with it: python main.py --mode train --config {shlex.quote(str(tuning.folder / BEST))}",
    ]
    return StudyOutcome(tuning.folder, report, tuning.folder / BEST, lines)


def describe_plan(config: Config, folder: Path | None = None) -> str:
    space = space_of(config)
    context = trial_context(config, tuple(space), config.tune.n_trials)
    trials, over = config.tune.n_trials, 0
    if folder is not None:
        store, _ = open_study(config, folder, context, create=False)
        with storage_errors(display_url(config.tune.storage, folder)):
            counts = store.counts
        trials, over = max(trials, counts.all), counts.finished
    units, done = len(context.units), f", {over} of them over" if over else ""
    return (
        f"{trials} trials of {units} trainings each ({config.tune.folds} folds, {config.tune.seeds} seeds){done}: "
        f"{(trials - over) * units:,} trainings over {len(space)} searched keys"
    )
