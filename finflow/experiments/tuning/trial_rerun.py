"""A recorded trial is done again, alone, and compared: every value bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optuna.exceptions import TrialPruned
from optuna.trial import FrozenTrial, TrialState

from finflow.config import Config
from finflow.errors import ConfigError, FinflowError, TrainingError
from finflow.experiments.tuning.search_space import configured, space_of
from finflow.experiments.tuning.study_folder import SCRATCH, TRIES, open_study
from finflow.experiments.tuning.study_result import ATTRIBUTES, said_of
from finflow.experiments.tuning.trial_store import LOST, Book, reaching, shown_url
from finflow.experiments.tuning.trial_training import arena_of, run_trial
from finflow.experiments.tuning.trial_worker import reason_of
from finflow.files import remove_empty
from finflow.provenance import code_hash

__all__ = ["rerun"]


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
    book, _ = open_study(config, folder, arena, create=False)
    with reaching(shown_url(config.tune.storage, folder)):
        trial = _recorded(book, number)
        tries = int(book.study.user_attrs.get(TRIES, config.tune.n_trials))
    again = Comparing(trial)
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
        reason = reason_of(error)
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


class Comparing:
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
