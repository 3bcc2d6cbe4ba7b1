"""Workers of a study, which run its waiting trials one after another, and the rerun of a single trial.

The outcome of each is recorded: its values, a stop before its end, or why it failed. A trial that runs again is
compared with its record bit for bit.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from optuna.exceptions import StorageInternalError, TrialPruned, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from finflow.config import Config, changed_config
from finflow.errors import ConfigError, FinflowError, OutputError, TrainingError, one_line
from finflow.experiments.jobs.folds import Fold
from finflow.experiments.task_progress import Reporter, TaskDisplay, task_folder, task_progress
from finflow.experiments.tuning.optuna_storage import display_url, storage_errors
from finflow.experiments.tuning.study import SCRATCH, TRIES, Tuning, open_study, space_of, suggest_values
from finflow.experiments.tuning.study_results import ATTRIBUTES, describe_outcome, encode_returns, write_best
from finflow.experiments.tuning.trial_store import LOST, TrialStore
from finflow.experiments.tuning.trial_training import TrialContext, run_trial, trial_context
from finflow.files import remove_empty
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash
from finflow.training.checkpoints.run_folder import STUDY
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.phases.stopping import stopping_at_once

LONGEST_REASON = 500  # characters
POLL_INTERVAL = 1.0  # seconds between checks of a trial that another worker is running

DisplayFactory = Callable[[int], AbstractContextManager[ProgressDisplay | None]]
"""Gives a trial's display, by the trial's number."""


def work(panel: MarketPanel, config: Config, folder: Path, folds: tuple[Fold, ...], tries: int) -> dict[str, Any]:
    """Run trials until none waits: the task of one worker."""
    seeds = tuple(range(config.train.seed, config.train.seed + config.tune.seeds))
    context = TrialContext(config, panel, folds, seeds, tuple(space_of(config)), tries)
    store, _ = open_study(config, folder, context, create=False)

    here = (folder / STUDY).is_file()
    with nullcontext(folder) if here else task_folder("study") as place:
        return {
            "trials": run_waiting_trials(
                Tuning(config, place, context, store), print, lambda number: nullcontext(task_progress())
            )
        }


def run_waiting_trials(tuning: Tuning, log: Callable[[str], None], show: DisplayFactory | None = None) -> int:
    """Run trials until none waits and no other worker runs one; the number of those run here."""
    done, store = 0, tuning.store
    while True:
        with storage_errors(tuning.where):
            for number in store.requeue_lost():
                shutil.rmtree(_scratch_folder(tuning, number), ignore_errors=True)
                log(f"trial {number}: {LOST}; it waits to be run again")
            trial = store.claim()
            if trial is None and not store.is_running():
                return done
        if trial is None:
            with stopping_at_once():
                time.sleep(POLL_INTERVAL)
            continue
        with show(trial.number) if show else nullcontext() as display:
            run_claimed_trial(tuning, trial, log, display)
        done += 1


def run_claimed_trial(
    tuning: Tuning, trial: Trial, log: Callable[[str], None], display: ProgressDisplay | None = None
) -> None:
    """Run one trial, and record its outcome: values, a stop before its end, or why it failed.

    Raises
    ------
    KeyboardInterrupt, OutputError
        When the trial waits again: it was stopped, or the disk is at fault and not the trial.
    """
    store = tuning.store
    try:
        with storage_errors(tuning.where), store.heartbeat(trial):
            _run_and_record(tuning, trial, display)
    except UpdateFinishedTrialError:  # another worker has declared it lost meanwhile
        log(f"trial {trial.number}: its heartbeat was missed for too long; another worker runs it again")
    with storage_errors(tuning.where):
        write_best(tuning.folder, tuning.config, store.trials)
        counts = store.counts
        outcome = describe_outcome(store.study.trials[trial.number], tuning.config.tune.objective)
        log(f"trial {trial.number}: {outcome} ({counts.finished} of {counts.all})")


def _run_and_record(tuning: Tuning, trial: Trial, display: ProgressDisplay | None) -> None:
    context, objectives, state = tuning.context, None, TrialState.FAIL
    values = suggest_values(trial, space_of(tuning.config))
    trial.set_user_attr(ATTRIBUTES.seeds, list(context.seeds))
    trial.set_user_attr(ATTRIBUTES.code, code_hash())
    report = PruningReporter(trial, context.levels, len(tuning.config.tune.objective) == 1)
    try:
        config = changed_config(tuning.config, values)
        result = run_trial(context, config, _scratch_folder(tuning, trial.number), report, display)
    except TrialPruned:
        state, updates = TrialState.PRUNED, report.updates
    except (KeyboardInterrupt, OutputError):
        tuning.store.requeue(trial)
        raise
    except (UpdateFinishedTrialError, StorageInternalError, sql.exc.SQLAlchemyError):
        raise
    except Exception as error:
        trial.set_user_attr(ATTRIBUTES.reason, _failure_reason(error))
        updates = report.updates
    else:
        objectives, state, updates = list(result.values), TrialState.COMPLETE, result.updates
        trial.set_user_attr(ATTRIBUTES.units, result.units)
        trial.set_user_attr(ATTRIBUTES.excess, encode_returns(result.excess))
    trial.set_user_attr(ATTRIBUTES.updates, updates)
    tuning.store.study.tell(trial, objectives, state, skip_if_finished=True)


def rerun(config: Config, folder: Path, number: int) -> list[str]:
    """Run a recorded trial again, alone, and compare its values with the record.

    Returns
    -------
    list of str
        Lines to print, where every value is the same, bit for bit.

    Raises
    ------
    FinflowError
        If there is no such trial, nothing was recorded of it, or its values differ.
    """
    context = trial_context(config, tuple(space_of(config)), config.tune.n_trials)
    store, _ = open_study(config, folder, context, create=False)
    with storage_errors(display_url(config.tune.storage, folder)):
        trial = _recorded(store, number)
        tries = int(store.study.user_attrs.get(TRIES, config.tune.n_trials))
    comparison, scratch = TrialReplay(trial), folder / SCRATCH / f"again-{number}"
    values: Sequence[float] | None = None
    reason = None
    try:
        seeds = tuple(trial.user_attrs[ATTRIBUTES.seeds])
        settings = changed_config(config, trial.params)
        values = run_trial(replace(context, seeds=seeds, tries=tries), settings, scratch / "trial", comparison).values
    except TrialPruned:
        pass
    except (KeyError, FinflowError, RuntimeError, ValueError, ArithmeticError) as error:
        reason = _failure_reason(error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        remove_empty([folder / SCRATCH])
    recorded = trial.values if trial.state == TrialState.COMPLETE else None
    same = (list(values) if values is not None else None) == recorded and comparison.same
    same = same and reason == trial.user_attrs.get(ATTRIBUTES.reason)
    if same:
        return [f"trial {number} again: {describe_outcome(trial, config.tune.objective)}, bit for bit as recorded"]
    other = trial.user_attrs.get(ATTRIBUTES.code) not in (None, code_hash())
    why = "the code has changed since" if other else "train.threads, the device or a library may be another"
    listed = [", ".join(map(repr, one)) if one else "no value" for one in (recorded, values)]
    raise TrainingError(f"trial {number} gave another result: {listed[0]} recorded, {reason or listed[1]} now; {why}")


def _recorded(store: TrialStore, number: int) -> FrozenTrial:
    known = {trial.number: trial for trial in store.study.get_trials(deepcopy=False)}
    trial, current = known.get(number), store.current_number(number)
    if current != number:
        raise ConfigError(f"--trial {number}: it was stopped or {LOST}, and waited again as trial {current}: name that")
    if trial is None or not trial.state.is_finished():
        raise ConfigError(f"--trial {number}: the study has no such trial that is over, of {len(store.trials)}")
    if trial.state == TrialState.FAIL and ATTRIBUTES.reason not in trial.user_attrs:
        raise ConfigError(f"--trial {number}: {LOST} each time, and nothing was recorded to compare with")
    return trial


class TrialReplay:
    """Compares the course of a trial with its record, and stops where that was stopped."""

    def __init__(self, trial: FrozenTrial) -> None:
        self.recorded: Mapping[int, float] = trial.intermediate_values
        self.pruned = trial.state == TrialState.PRUNED
        self.same = True

    def __call__(self, level: int, values: tuple[float, ...], updates: int) -> None:
        if self.recorded:
            self.same = self.same and self.recorded.get(level) == values[0]
        if self.pruned and level >= max(self.recorded, default=0):
            raise TrialPruned


class PruningReporter:
    """Reports the course of a trial to Optuna, and stops it where it falls behind."""

    def __init__(self, trial: Trial, levels: int, ordered: bool) -> None:
        self.trial, self.levels, self.ordered = trial, levels, ordered
        self.updates = 0

    def __call__(self, level: int, values: tuple[float, ...], updates: int) -> None:
        self.updates = updates
        if not self.ordered:
            return
        self.trial.report(values[0], level)
        if level < self.levels and self.trial.should_prune():
            raise TrialPruned


class TrialDisplay(TaskDisplay):
    """Progress of the trials that run in this process; their outcomes are printed elsewhere."""

    def task_line(self, name: str, text: str, quiet_when_live: bool = False) -> None:
        """Show nothing."""

    @contextmanager
    def show_trial(self, number: int) -> Iterator[ProgressDisplay]:
        name = f"trial {number}"
        self.begin(name)
        try:
            yield Reporter(lambda kind, content: self.update(name, kind, content))
        finally:
            self.end(name)


def _scratch_folder(tuning: Tuning, number: int) -> Path:
    return tuning.folder / SCRATCH / f"trial-{number}"


def _failure_reason(error: Exception) -> str:
    return one_line(error if isinstance(error, FinflowError) else f"{type(error).__name__}: {error}", LONGEST_REASON)
