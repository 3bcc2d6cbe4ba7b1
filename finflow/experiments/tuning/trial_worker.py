"""Trials are taken from a study and done, one after another, until none is left.

What came of each is recorded: its values, a stop before its end, or why it failed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from optuna.exceptions import StorageInternalError, TrialPruned, UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from finflow.config import Config
from finflow.errors import FinflowError, OutputError
from finflow.experiments.jobs.folds import Fold
from finflow.experiments.tasks.task_display import Overview
from finflow.experiments.tasks.worker import Reporter, task_folder, task_progress
from finflow.experiments.tuning.search_space import configured, draw, space_of
from finflow.experiments.tuning.study_folder import SCRATCH, STUDY, Tuning, open_study
from finflow.experiments.tuning.study_result import ATTRIBUTES, packed, said_of, write_best
from finflow.experiments.tuning.trial_store import LOST, Pulse, reaching
from finflow.experiments.tuning.trial_training import Arena, run_trial
from finflow.market.panel import MarketPanel
from finflow.provenance import code_hash
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.phases.stopping import stopping_at_once

__all__ = ["TrialsShown", "do_trial", "reason_of", "take_trials", "work"]

MOST_SAID = 500  # characters of a reason
POLL = 1.0  # seconds between looks at a trial that another worker is doing


Showing = Callable[[int], AbstractContextManager[ProgressDisplay | None]]
"""Gives a trial's display, by the trial's number."""


@contextmanager
def unseen(number: int) -> Iterator[None]:
    """Show nothing of a trial's course."""
    yield


def work(panel: MarketPanel, config: Config, folder: Path, folds: tuple[Fold, ...], tries: int) -> dict[str, Any]:
    """A worker's task: take trials until there are none.

    Parameters
    ----------
    panel : MarketPanel
        Cut before the test window.
    config : Config
    folder : Path
        Of the study; on another machine, where it is not, a temporary one stands in for it.
    folds : tuple of Fold
    tries : int
    """
    seeds = tuple(range(config.train.seed, config.train.seed + config.tune.seeds))
    arena = Arena(config, panel, folds, seeds, tuple(space_of(config)), tries)
    book, _ = open_study(config, folder, arena, create=False)

    @contextmanager
    def showing(number: int) -> Iterator[ProgressDisplay | None]:
        yield task_progress()

    here = (folder / STUDY).is_file()
    with nullcontext(folder) if here else task_folder("study") as place:
        return {"trials": take_trials(Tuning(config, place, arena, book), print, showing)}


def take_trials(tuning: Tuning, tell: Callable[[str], None], showing: Showing = unseen) -> int:
    """Do trials until none waits and nobody else is doing one; the number of those done here."""
    done, book = 0, tuning.book
    while True:
        with reaching(tuning.where):
            for number in book.revive():
                shutil.rmtree(scratch_of(tuning, number), ignore_errors=True)
                tell(f"trial {number}: {LOST}; it waits to be done again")
            trial = book.claim()
            if trial is None and not book.is_running():
                return done
        if trial is None:
            with stopping_at_once():
                time.sleep(POLL)
            continue
        with showing(trial.number) as display:
            do_trial(tuning, trial, tell, display)
        done += 1


def do_trial(tuning: Tuning, trial: Trial, tell: Callable[[str], None], display: ProgressDisplay | None = None) -> None:
    """Do one trial, and record what came of it: values, a stop before its end, or why it failed.

    Raises
    ------
    KeyboardInterrupt, OutputError
        When the trial waits again: it was stopped, or the disk is at fault and not the trial.
    """
    book, arena = tuning.book, tuning.arena
    with reaching(tuning.where), _dropping(tuning, trial, tell), Pulse(book, trial):
        values = draw(trial, space_of(tuning.config))
        trial.set_user_attr(ATTRIBUTES.seeds, list(arena.seeds))
        trial.set_user_attr(ATTRIBUTES.code, code_hash())
        found, state = None, TrialState.FAIL
        report = Reporting(trial, arena.levels, len(tuning.config.tune.objective) == 1)
        try:
            result = run_trial(
                arena, configured(tuning.config, values), scratch_of(tuning, trial.number), report, display
            )
        except TrialPruned:
            state, updates = TrialState.PRUNED, report.updates
        except (KeyboardInterrupt, OutputError):
            book.put_back(trial)
            raise
        except (UpdateFinishedTrialError, StorageInternalError, sql.exc.SQLAlchemyError):
            raise
        except Exception as error:
            trial.set_user_attr(ATTRIBUTES.reason, reason_of(error))
            updates = report.updates
        else:
            found, state, updates = list(result.values), TrialState.COMPLETE, result.updates
            trial.set_user_attr(ATTRIBUTES.units, result.units)
            trial.set_user_attr(ATTRIBUTES.excess, packed(result.excess))
        trial.set_user_attr(ATTRIBUTES.updates, updates)
        book.study.tell(trial, found, state, skip_if_finished=True)
    with reaching(tuning.where):
        write_best(tuning.folder, tuning.config, book.trials)
        counts = book.counts
        said = said_of(book.study.trials[trial.number], tuning.config.tune.objective)
        tell(f"trial {trial.number}: {said} ({counts.finished} of {counts.all})")


class _dropping:
    """Lets a trial go that another worker has taken for lost meanwhile."""

    def __init__(self, tuning: Tuning, trial: Trial, tell: Callable[[str], None]) -> None:
        self.tuning, self.trial, self.tell = tuning, trial, tell

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, UpdateFinishedTrialError):
            return False
        self.tell(f"trial {self.trial.number}: nothing was heard of it for too long; another takes its place")
        return True


class Reporting:
    """Reports the course of a trial to Optuna, and stops it where it falls behind.

    Parameters
    ----------
    trial : Trial
    levels : int
        Of a whole trial: at the last there is nothing left to save.
    ordered : bool
        Whether there is one objective, and so an order.
    """

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


class TrialsShown(Overview):
    """How far the trials are that are done in this process; what comes of them is told elsewhere."""

    def say(self, name: str, text: str, quiet_when_live: bool = False) -> None:
        """Show nothing."""

    @contextmanager
    def showing(self, number: int) -> Iterator[ProgressDisplay]:
        """Show how far a trial is."""
        name = f"trial {number}"
        self.begin(name)
        try:
            yield Reporter(lambda kind, content: self.news(name, kind, content))
        finally:
            self.end(name)


def scratch_of(tuning: Tuning, number: int) -> Path:
    return tuning.folder / SCRATCH / f"trial-{number}"


def reason_of(error: Exception) -> str:
    said = str(error) if isinstance(error, FinflowError) else f"{type(error).__name__}: {error}"
    return " ".join(said.split())[:MOST_SAID]
