"""A search for better values of keys: begun, gone on with, and told of.

A study has a folder: `study.yaml`, by which it goes on; `best.yaml`, which a training takes as it is; `reports/`. Its
trials are in an Optuna storage, from which any number of workers take them.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sql
from optuna.exceptions import StorageInternalError, TrialPruned, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from finflow.config import Config, EvaluationConfig, config_hash, dump_config, load_config
from finflow.errors import ConfigError, FinflowError, OutputError, TrainingError
from finflow.experiments.best import ATTRIBUTES, packed, said_of, write_best
from finflow.experiments.engine import Task, Where, run_tasks
from finflow.experiments.estimates import estimate, tasks_at_once
from finflow.experiments.folds import Fold
from finflow.experiments.overview import Overview
from finflow.experiments.search_space import configured, described, draw, of_configuration, space_of
from finflow.experiments.study import (
    LOST,
    Book,
    Counts,
    Pulse,
    is_sqlite,
    open_book,
    reaching,
    shown_url,
    wait_until_filled,
)
from finflow.experiments.study_report import report_study
from finflow.experiments.trainings import Cut, Training, own_settings
from finflow.experiments.trials import Arena, arena_of, run_trial
from finflow.experiments.worker import Reporter, task_folder, task_progress
from finflow.files import LOCK, check_writable, exclusively, remove_empty, write_atomically
from finflow.market.panel import MarketPanel
from finflow.training.code import code_hash
from finflow.training.progress import ProgressDisplay
from finflow.training.stopping import stopping_at_once
from finflow.training.trainer import new_run_folder

__all__ = ["STUDY", "StudyOutcome", "Tuning", "begin", "lines_of_plan", "rerun", "stored_study", "take_trials", "tune"]

STUDY = "study.yaml"
STUDIES = "studies"
SCRATCH = "scratch"
TRIES = "tries"
MOST_SAID = 500  # characters of a reason
POLL = 1.0  # seconds between looks at a trial that another worker is doing
HEAD = "# A search for better values; it goes on with: python main.py --mode tune --resume {folder}\n"


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


@dataclass(frozen=True)
class Tuning:
    """A study that is open.

    Attributes
    ----------
    config : Config
    folder : Path
    arena : Arena
    book : Book
    """

    config: Config
    folder: Path
    arena: Arena
    book: Book

    @property
    def where(self) -> str:
        """The storage, for people."""
        return shown_url(self.config.tune.storage, self.folder)

    @property
    def counts(self) -> Counts:
        """How far it is.

        Raises
        ------
        ConfigError
            If the storage cannot be reached.
        """
        with reaching(self.where):
            return self.book.counts


def stored_study(folder: Path) -> Config:
    """The configuration that a study was begun with.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if not (folder / STUDY).is_file():
        raise ConfigError(f"{folder} is no folder of a study: it has no {STUDY}; name one such as logs/{STUDIES}/...")
    return load_config(folder / STUDY, environ={})


def begin(config: Config, folder: Path | None = None) -> Tuning:
    """Open a study: that of a folder, or a new one, with all its trials.

    Parameters
    ----------
    config : Config
    folder : Path, optional
        Of a study that goes on; a new one under ``output.logs_dir`` when left out.

    Raises
    ------
    FinflowError
        If the storage cannot be used, the study is another, or there is too little data for its folds. A folder and a
        study that were made are removed then.
    """
    space = space_of(config)
    arena = arena_of(config, tuple(space), config.tune.n_trials)
    made = folder is None
    folder = (new_run_folder(config.output.logs_dir / STUDIES) if folder is None else folder).absolute()
    book, fresh = None, False
    try:
        check_writable(folder)
        book, fresh = _open(config, folder, arena, create=made)
        name = book.study.study_name
        tune = config.tune.model_copy(update={"name": name})
        config = config.model_copy(update={"tune": tune})
        with reaching(shown_url(tune.storage, folder)), exclusively(folder / LOCK):
            head = HEAD.format(folder=shlex.quote(str(folder)))
            write_atomically(folder / STUDY, head + dump_config(config), mode=0o600)
            if fresh:
                book.study.set_user_attr(TRIES, tune.n_trials)
            if fresh or not made:
                book.fill(of_configuration(config, space))
            else:
                wait_until_filled(book)
            arena = replace(arena, config=config, tries=int(book.study.user_attrs.get(TRIES, tune.n_trials)))
    except BaseException:
        if book is not None and fresh:
            book.discard()
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Tuning(config, folder, arena, book)


def _open(config: Config, folder: Path, arena: Arena, create: bool) -> tuple[Book, bool]:
    name = config.tune.name or folder.resolve().name
    return open_book(config.tune, folder, name, _identity(config, arena), arena.levels, create)


def _identity(config: Config, arena: Arena) -> dict[str, str]:
    """What makes a study what it is: what may not change while its trials are compared with each other."""
    tune = config.tune
    learning = config.model_copy(update={"evaluation": EvaluationConfig(protocol=config.evaluation.protocol)})
    return {
        "objective": ", ".join(tune.objective),
        "space": json.dumps({key: described(values) for key, values in space_of(config).items()}, sort_keys=True),
        "market": f"{arena.panel.sha256[:16]}, {arena.panel.dates[0]} to {arena.panel.dates[-1]}",
        "tune.folds": str(tune.folds),
        "tune.seeds": f"{tune.seeds} from {config.train.seed}",
        "tune.aggregate": f"{tune.aggregate}, {tune.deviations:g} deviations",
        "configuration": config_hash(learning)[:16],
    }


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
    from finflow.experiments.ray_cluster import connected, machines

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
        with _TrialsShown("trials", waiting) as shown:
            take_trials(tuning, shown.line if tell is print else tell, shown.showing)
        return
    given = {"config": tuning.config, "folder": tuning.folder, "folds": arena.folds, "tries": arena.tries}
    count = min(where.workers or waiting, waiting)
    tasks = [Task(f"worker {number}", work, given) for number in range(1, count + 1)]
    lasting = replace(where, retries=max(where.retries, waiting))  # a trial has retries of its own
    run_tasks(tasks, lasting, shared={"panel": arena.panel}, kind="workers")


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
    book, _ = _open(config, folder, arena, create=False)

    @contextmanager
    def showing(number: int) -> Iterator[ProgressDisplay | None]:
        yield task_progress()

    here = (folder / STUDY).is_file()
    with nullcontext(folder) if here else task_folder("study") as place:
        return {"trials": take_trials(Tuning(config, place, arena, book), print, showing)}


Showing = Callable[[int], AbstractContextManager[ProgressDisplay | None]]
"""Gives a trial's display, by the trial's number."""


class _TrialsShown(Overview):
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


@contextmanager
def unseen(number: int) -> Iterator[None]:
    """Show nothing of a trial's course."""
    yield


def take_trials(tuning: Tuning, tell: Callable[[str], None], showing: Showing = unseen) -> int:
    """Do trials until none waits and nobody else is doing one; the number of those done here."""
    done, book = 0, tuning.book
    while True:
        with reaching(tuning.where):
            for number in book.revive():
                shutil.rmtree(_scratch(tuning, number), ignore_errors=True)
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
                arena, configured(tuning.config, values), _scratch(tuning, trial.number), report, display
            )
        except TrialPruned:
            state, updates = TrialState.PRUNED, report.updates
        except (KeyboardInterrupt, OutputError):
            book.put_back(trial)
            raise
        except (UpdateFinishedTrialError, StorageInternalError, sql.exc.SQLAlchemyError):
            raise
        except Exception as error:
            trial.set_user_attr(ATTRIBUTES.reason, _reason(error))
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


def _scratch(tuning: Tuning, number: int) -> Path:
    return tuning.folder / SCRATCH / f"trial-{number}"


def _reason(error: Exception) -> str:
    said = str(error) if isinstance(error, FinflowError) else f"{type(error).__name__}: {error}"
    return " ".join(said.split())[:MOST_SAID]


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


def rerun(config: Config, folder: Path, number: int) -> list[str]:
    """Do a recorded trial again, alone, and compare.

    Returns
    -------
    list of str
        What to tell, where every value came out the same, bit for bit.

    Raises
    ------
    FinflowError
        If there is no such trial, nothing was recorded of it, or it came out otherwise.
    """
    arena = arena_of(config, tuple(space_of(config)), config.tune.n_trials)
    book, _ = _open(config, folder, arena, create=False)
    with reaching(shown_url(config.tune.storage, folder)):
        trial = _recorded(book, number)
        tries = int(book.study.user_attrs.get(TRIES, config.tune.n_trials))
    again = Again(trial)
    values: Sequence[float] | None = None
    reason = None
    try:
        seeds = tuple(trial.user_attrs[ATTRIBUTES.seeds])
        settings = configured(config, trial.params)
        with _own_scratch(folder, number) as scratch:
            values = run_trial(replace(arena, seeds=seeds, tries=tries), settings, scratch, again).values
    except TrialPruned:
        pass
    except (KeyError, FinflowError, RuntimeError, ValueError, ArithmeticError) as error:
        reason = _reason(error)
    recorded = trial.values if trial.state == TrialState.COMPLETE else None
    same = (list(values) if values is not None else None) == recorded and again.same
    same = same and reason == trial.user_attrs.get(ATTRIBUTES.reason)
    if same:
        return [f"trial {number} again: {said_of(trial, config.tune.objective)}, bit for bit as recorded"]
    other = trial.user_attrs.get(ATTRIBUTES.code) not in (None, code_hash())
    why = "the code has changed since" if other else "train.threads, the device or a library may be another"
    raise TrainingError(
        f"trial {number} came out otherwise: {_listed(recorded)} recorded, {reason or _listed(values)} now; {why}"
    )


def _recorded(book: Book, number: int) -> FrozenTrial:
    """A trial of which there is something to compare with.

    Raises
    ------
    ConfigError
    """
    known = {trial.number: trial for trial in book.study.get_trials(deepcopy=False)}
    trial, now = known.get(number), book.number_now(number)
    if now != number:
        raise ConfigError(f"--trial {number}: it was stopped or {LOST}, and it waited again as trial {now}: name that")
    if trial is None or not trial.state.is_finished():
        raise ConfigError(f"--trial {number}: the study has no such trial that is over, of {len(book.trials)}")
    if trial.state == TrialState.FAIL and ATTRIBUTES.reason not in trial.user_attrs:
        raise ConfigError(f"--trial {number}: {LOST} each time, and nothing was recorded to compare with")
    return trial


@contextmanager
def _own_scratch(folder: Path, number: int) -> Iterator[Path]:
    """Where a trial that is done again writes, data included; nothing is left of it."""
    parent = folder / SCRATCH / f"again-{number}"
    try:
        yield parent / "trial"
    finally:
        shutil.rmtree(parent, ignore_errors=True)
        remove_empty([folder / SCRATCH])


class Again:
    """Compares the course of a trial with what was recorded of it, and stops where that was stopped."""

    def __init__(self, trial: FrozenTrial) -> None:
        self.recorded: Mapping[int, float] = trial.intermediate_values
        self.pruned = trial.state == TrialState.PRUNED
        self.same = True

    def __call__(self, level: int, values: tuple[float, ...], updates: int) -> None:
        if self.recorded:
            self.same = self.same and self.recorded.get(level) == values[0]
        if self.pruned and level >= max(self.recorded, default=0):
            raise TrialPruned


def _listed(values: Sequence[float] | None) -> str:
    return "no value" if values is None else ", ".join(repr(value) for value in values)


def lines_of_plan(config: Config, where: Where, folder: Path | None = None) -> list[str]:
    """How many trainings a search makes, and about how long that takes: what a dry run tells.

    Parameters
    ----------
    config : Config
    where : Where
    folder : Path, optional
        Of a study that goes on: of its trials, those that are over take no more time.
    """
    space = space_of(config)
    arena = arena_of(config, tuple(space), config.tune.n_trials)
    trials, over = _counted(config, arena, folder)
    left, units, done = trials - over, len(arena.units), f", {over} of them over" if over else ""
    counted = (
        f"{trials} trials of {units} trainings each ({config.tune.folds} folds, {config.tune.seeds} seeds){done}: "
        f"{left * units:,} trainings over {len(space)} searched keys"
    )
    if not left:
        return [counted]
    workers = min(tasks_at_once(where), left)
    seconds = _seconds_of_a_trial(config, arena) * -(-left // workers)
    took = f"{seconds / 3600.0:.1f} hours" if seconds >= 3600.0 else f"{max(seconds / 60.0, 1.0):.0f} minutes"
    pruned = "" if config.tune.pruner == "none" or len(config.tune.objective) > 1 else ", less what pruning saves"
    return [
        counted,
        f"about {took} on {workers} worker{'s' if workers > 1 else ''}{pruned}, by a probe of the configuration as it "
        "is; larger networks and batches take longer",
    ]


def _counted(config: Config, arena: Arena, folder: Path | None) -> tuple[int, int]:
    """How many trials there will be, and how many of them are over."""
    if folder is None:
        return config.tune.n_trials, 0
    book, _ = _open(config, folder, arena, create=False)
    with reaching(shown_url(config.tune.storage, folder)):
        counts = book.counts
    return max(config.tune.n_trials, counts.all), counts.finished


def _seconds_of_a_trial(config: Config, arena: Arena) -> float:
    nowhere = config.output.logs_dir / STUDIES / "dry-run"
    trainings = [
        Training(
            f"fold {fold.number}", nowhere, own_settings(config, nowhere, seed), cut=Cut(fold.pieces, fold.validation)
        )
        for fold, seed in arena.units
    ]
    return estimate(trainings, {"": arena.panel}).seconds
