"""A hyperparameter search: its workers, which run the study's waiting trials, its conclusion, and reruns of a trial.

The outcome of each trial is recorded: its values, a stop before its end, or why it failed. A trial that runs again is
compared with its record bit for bit.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import sqlalchemy as sql
from optuna.exceptions import StorageInternalError, TrialPruned, UpdateFinishedTrialError
from optuna.pruners import NopPruner, ThresholdPruner
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from finflow.config import Config, changed_config
from finflow.errors import ConfigError, FinflowError, OutputError, TrainingError, command, one_line
from finflow.experiments.task_progress import Reporter, TaskDisplay, task_folder, task_progress
from finflow.experiments.tasks import ComputeResources, Task, connected, run_tasks
from finflow.experiments.tuning.study import (
    BEST,
    CODE,
    EXCESS,
    REASON,
    SCRATCH,
    SEEDS,
    UPDATES,
    Tuning,
    begin,
    describe_outcome,
    encode_returns,
    open_study,
    reason_of,
    space_of,
    suggest_values,
    write_best,
)
from finflow.experiments.tuning.study_report import report_study
from finflow.experiments.tuning.trial_store import LOST, SQLITE, TrialStore, slot_of, storage_errors
from finflow.experiments.tuning.trial_training import TrialContext, run_trial, trial_context
from finflow.files import remove_empty
from finflow.market.plausibility.price_notes import opening_lines
from finflow.provenance import code_hash
from finflow.training.checkpoints.run_folder import STUDY
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.phases.stopping import stopping_at_once

LONGEST_REASON = 500  # characters
POLL_INTERVAL = 1.0  # seconds between checks of a trial that another worker is running


class StudyOutcome(NamedTuple):
    """Outcome of a search."""

    folder: Path
    report: Path
    lines: list[str]


def tune(
    config: Config, resume: Path | None, resources: ComputeResources, log: Callable[[str], None] = print
) -> StudyOutcome:
    """Search until all trials are finished, and report.

    Raises KeyboardInterrupt with a line that says how to go on.
    """
    _check_reach(config, resources)
    tuning = begin(config, resume)
    settings, store = config.tune, tuning.store
    log("\n".join(opening_lines(tuning.context.panel)))
    log(f"study {store.study.study_name} in {tuning.folder}, its trials in {store.name}")
    if len(settings.objective) > 1 and settings.pruner != "none":
        log(f"several objectives cannot be pruned: tune.pruner {settings.pruner} is ignored")
    before = store.counts
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
    goes_on = command("tune", "--resume", tuning.folder)
    try:
        counts = tuning.store.counts
    except ConfigError:  # the command is shown even where the storage is lost
        return f"stopped; to continue: {goes_on}"
    return f"stopped; {counts.finished} of {counts.all} trials are over; to continue: {goes_on}"


def _check_reach(config: Config, resources: ComputeResources) -> None:
    """Refuse a storage that workers on other machines would not see."""
    if resources.cluster is None or not (config.tune.storage or SQLITE).startswith(SQLITE):
        return
    with connected(resources.cluster) as ray:
        count = len({node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]})
    if count > 1:
        raise ConfigError(
            f"the cluster has {count} machines, and SQLite keeps trials on one: name a storage that all reach: "
            "tune.storage postgresql+psycopg://USER@HOST/DATABASE, or journal:PATH on a folder that they share"
        )


def _work(tuning: Tuning, resources: ComputeResources, log: Callable[[str], None]) -> None:
    context, counts = tuning.context, tuning.store.counts
    waiting = counts.all - counts.finished
    if resources.in_process:
        with closing(TaskDisplay("trials", waiting, of_tasks=False)) as display:
            run_waiting_trials(tuning, display.line if log is print else log, display)
        return
    count = min(resources.workers or waiting, waiting)
    tasks = [Task(f"worker {number}", work, {"folder": tuning.folder}) for number in range(1, count + 1)]
    lasting = replace(resources, retries=max(resources.retries, waiting))  # a trial has retries of its own
    run_tasks(tasks, lasting, shared={"context": context}, kind="workers")


def work(context: TrialContext, folder: Path) -> dict[str, Any]:
    """Run trials until none waits: the task of one worker."""
    store = open_study(context.config, folder, context)
    with nullcontext(folder) if (folder / STUDY).is_file() else task_folder("study") as place:
        return {"trials": run_waiting_trials(Tuning(Path(place), context, store), print)}


def run_waiting_trials(tuning: Tuning, log: Callable[[str], None], display: TaskDisplay | None = None) -> int:
    """Run trials until none waits and no other worker runs one; the number of those run here."""
    done, store = 0, tuning.store
    while True:
        with storage_errors(store.name):
            for number in store.requeue_lost():
                shutil.rmtree(_scratch_folder(tuning, number), ignore_errors=True)
                log(f"trial {number}: {LOST}; it waits to be run again")
            trial = store.claim()
            if trial is None and not store.counts.running:
                return done
        if trial is None:
            with stopping_at_once():
                time.sleep(POLL_INTERVAL)
            continue
        if display is None:
            run_claimed_trial(tuning, trial, log, task_progress())
        else:
            name = f"trial {trial.number}"
            display.begin(name)
            run_claimed_trial(tuning, trial, log, Reporter(partial(display.update, name)))
            display.end(name)
        done += 1


def run_claimed_trial(
    tuning: Tuning, trial: Trial, log: Callable[[str], None], display: ProgressDisplay | None
) -> None:
    """Run one trial, and record its outcome: values, a stop before its end, or why it failed.

    Raises KeyboardInterrupt or OutputError when the trial waits again: it was stopped, or the disk is at fault and not
    the trial.
    """
    store = tuning.store
    try:
        with storage_errors(store.name), store.heartbeat(trial):
            _run_and_record(tuning, trial, display)
    except UpdateFinishedTrialError:  # another worker has declared it lost meanwhile
        log(f"trial {trial.number}: its heartbeat was missed for too long; another worker runs it again")
    with storage_errors(store.name):
        write_best(tuning.folder, tuning.context.config, store.study)
        counts = store.counts
        outcome = describe_outcome(store.study.trials[trial.number], tuning.context.config.tune.objective)
        log(f"trial {trial.number}: {outcome} ({counts.finished} of {counts.all})")


def _run_and_record(tuning: Tuning, trial: Trial, display: ProgressDisplay | None) -> None:
    context, objectives, state, updates = tuning.context, None, TrialState.FAIL, 0

    def report(level: int, values: tuple[float, ...], made: int) -> None:
        nonlocal updates
        updates = made
        if len(values) == 1:
            trial.report(values[0], level)
            if level < context.levels and trial.should_prune():
                raise TrialPruned

    values = suggest_values(trial, space_of(tuning.context.config))
    trial.set_user_attr(SEEDS, list(context.seeds))
    trial.set_user_attr(CODE, code_hash())
    try:
        config = changed_config(tuning.context.config, values)
        result = run_trial(context, config, _scratch_folder(tuning, trial.number), report, display)
    except TrialPruned:
        state = TrialState.PRUNED
    except (KeyboardInterrupt, OutputError):
        tuning.store.requeue(trial)
        raise
    except (UpdateFinishedTrialError, StorageInternalError, sql.exc.SQLAlchemyError):
        raise
    except Exception as error:
        reason = error if isinstance(error, FinflowError) else f"{type(error).__name__}: {error}"
        trial.set_user_attr(REASON, one_line(reason, LONGEST_REASON))
    else:
        objectives, state, updates = list(result.values), TrialState.COMPLETE, result.updates
        trial.set_user_attr(EXCESS, encode_returns(result.excess))
    trial.set_user_attr(UPDATES, updates)
    tuning.store.study.tell(trial, objectives, state, skip_if_finished=True)


def _scratch_folder(tuning: Tuning, number: int) -> Path:
    return tuning.folder / SCRATCH / f"trial-{number}"


def conclude(tuning: Tuning) -> StudyOutcome:
    """Write the best configuration and the report, and describe the outcome.

    Raises TrainingError if not one trial has values.
    """
    store = tuning.store
    trials, counts = store.trials, store.counts
    with storage_errors(store.name):
        best = write_best(tuning.folder, tuning.context.config, store.study)
    report = report_study(tuning.context.config, tuning.context, tuning.folder, store)
    if counts.finished == counts.all:
        shutil.rmtree(tuning.folder / SCRATCH, ignore_errors=True)
    if best is None:
        reasons = [reason_of(trial) for trial in trials if trial.state == TrialState.FAIL]
        first = f": the first because {reasons[0]}" if reasons else ""
        raise TrainingError(f"none of {counts.finished} trials completed{first}; the report is {report}")
    lines = [
        f"{counts.all} trials: {counts.complete} completed, {counts.pruned} stopped early, {counts.failed} failed",
        f"best: trial {best.number}, {describe_outcome(best, tuning.context.config.tune.objective)}",
        f"to train with it: {command('train', '--config', tuning.folder / BEST)}",
    ]
    return StudyOutcome(tuning.folder, report, lines)


def describe_plan(config: Config, folder: Path | None = None) -> str:
    space = space_of(config)
    context = trial_context(config, tuple(space), config.tune.n_trials)
    trials, over = config.tune.n_trials, 0
    if folder is not None:
        counts = open_study(config, folder, context).counts
        trials, over = max(trials, counts.all), counts.finished
    units, done = len(context.units), f", {over} of them over" if over else ""
    return (
        f"{trials} trials of {units} trainings each ({config.tune.folds} folds, {config.tune.seeds} seeds){done}: "
        f"{(trials - over) * units:,} trainings over {len(space)} searched keys"
    )


def rerun(config: Config, folder: Path, number: int) -> list[str]:
    """Run a recorded trial again, alone, and compare its values with the record.

    Raises FinflowError if there is no such trial, nothing was recorded of it, or its values differ.

    Returns
    -------
    list of str
        Lines to print, where every value is the same, bit for bit.
    """
    context = trial_context(config, tuple(space_of(config)), config.tune.n_trials)
    store = open_study(config, folder, context)
    with storage_errors(store.name):
        trial, tries = _recorded(store, number), store.tries
    seeds = tuple(trial.user_attrs.get(SEEDS, context.seeds))
    storage, scratch = InMemoryStorage(), folder / SCRATCH / f"again-{number}"
    study = optuna.create_study(storage=storage, directions=store.study.directions)
    alone = TrialStore(study, storage, config.tune, context.levels, "memory")
    last = max(trial.intermediate_values, default=0)
    pruned = trial.state == TrialState.PRUNED
    study.pruner = ThresholdPruner(upper=-math.inf, n_warmup_steps=last) if pruned else NopPruner()
    study.enqueue_trial(trial.params)
    try:
        _run_and_record(Tuning(scratch, replace(context, seeds=seeds, tries=tries), alone), study.ask(), None)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        remove_empty([folder / SCRATCH])
    again, reason = study.trials[0], REASON
    recorded, now = (
        (one.state, one.values, one.intermediate_values, one.user_attrs.get(reason)) for one in (trial, again)
    )
    if recorded == now:
        return [f"trial {number} again: {describe_outcome(trial, config.tune.objective)}, bit for bit as recorded"]
    other = trial.user_attrs.get(CODE) not in (None, code_hash())
    why = "the code has changed since" if other else "train.threads, the device or a library may be another"
    listed = [", ".join(map(repr, one.values)) if one.values else "no value" for one in (trial, again)]
    result = again.user_attrs.get(reason, listed[1])
    raise TrainingError(f"trial {number} gave another result: {listed[0]} recorded, {result} now; {why}")


def _recorded(store: TrialStore, number: int) -> FrozenTrial:
    trial = next((one for one in store.study.get_trials(deepcopy=False) if one.number == number), None)
    if trial is None or not trial.state.is_finished():
        raise ConfigError(f"--trial {number}: the study has no such trial that is over, of {len(store.trials)}")
    current = next(one.number for one in store.trials if slot_of(one) == slot_of(trial))
    if current != number:
        raise ConfigError(f"--trial {number}: it was stopped or {LOST}, and waited again as trial {current}: name that")
    if trial.state == TrialState.FAIL and REASON not in trial.user_attrs:
        raise ConfigError(f"--trial {number}: {LOST} each time, and nothing was recorded to compare with")
    return trial
