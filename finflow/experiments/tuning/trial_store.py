"""Trials of a study in an Optuna storage: claimed once, with a heartbeat, and retried where their worker is lost.

All trials are put into the storage at the beginning, waiting. A worker takes one by setting its state, which one
worker alone can do; so each runs once, and their number is exact. Heartbeats, the search for lost trials and their
retries are Optuna's (`fail_stale_trials`, `RetryHeartbeatStaleTrialCallback`). `Study.optimize` is not used, because it
counts trials as they end, so that several workers would make too many.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages._heartbeat import BaseHeartbeat, get_heartbeat_thread
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from finflow.config import TuneConfig
from finflow.errors import ConfigError
from finflow.experiments.task_progress import start_time_of, this_host
from finflow.experiments.tuning.optuna_storage import (
    WORKER,
    WRITE_TIMEOUT,
    JournalWithHeartbeat,
    damaged_study,
    display_url,
    open_storage,
    storage_errors,
)

LOST = "its worker was lost"
FIRST_PRUNED = 3  # level: earlier ones are noise
_IDENTITY, _READY, _STOPS = "identity", "ready", "stops"
_RUNG = "completed_rung_"  # Hyperband's notes on a trial's course


@dataclass(frozen=True)
class Counts:
    """Number of trials in each state; one that is retried counts once."""

    complete: int
    pruned: int
    failed: int
    running: int
    waiting: int

    @property
    def finished(self) -> int:
        return self.complete + self.pruned + self.failed

    @property
    def all(self) -> int:
        """Those that are or will be."""
        return self.finished + self.running + self.waiting


class TrialStore:
    """The trials of one study."""

    def __init__(self, study: Study, storage: BaseStorage, tune: TuneConfig, levels: int) -> None:
        self.study, self.storage, self.tune = study, storage, tune
        self.study.pruner = pruner_of(tune, levels)

    @property
    def trials(self) -> list[FrozenTrial]:
        """Every trial but those that were retried under another number."""
        with damaged_study(f"of the study {self.study.study_name}"):
            trials = self.study.get_trials(deepcopy=False)
            retried = _retried(trials)
            for trial in trials:
                _check_values(trial, len(self.tune.objective))
        return [trial for trial in trials if trial.number not in retried]

    @property
    def counts(self) -> Counts:
        states = [trial.state for trial in self.trials]
        order = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING)
        return Counts(*(states.count(state) for state in order))

    def current_number(self, number: int) -> int:
        """Number of the latest retry of a trial; its own where it has none."""
        later = [trial.number for trial in self.trials if number in _numbers(trial)]
        return later[0] if later else number

    def fill(self, first: Mapping[str, Any]) -> None:
        """Add trials until there are ``n_trials``, the first of them with the values given."""
        for number in range(self.counts.all, self.tune.n_trials):
            self.study.enqueue_trial(dict(first) if number == 0 else {})
        if not self.study.user_attrs.get(_READY):
            self.study.set_user_attr(_READY, True)

    def wait_until_filled(self) -> None:
        """Wait until the process that began the study has put its trials into the storage.

        Raises
        ------
        ConfigError
            If it does not.
        """
        _wait_for(
            lambda: self.study.user_attrs.get(_READY),
            f"the study {self.study.study_name} was not created completely; start it again where it was started, with "
            "--resume",
        )

    def discard(self) -> None:
        """Remove the study from its storage, as far as that can be reached."""
        with suppress(Exception):
            optuna.delete_study(study_name=self.study.study_name, storage=self.storage)

    def claim(self) -> Trial | None:
        """Claim the first waiting trial, for this worker alone; None where none waits."""
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        for trial in sorted(waiting, key=first_number):
            if self._set_state(trial._trial_id, TrialState.RUNNING):
                self.study.sampler = sampler_of(self.tune, first_number(trial))
                return Trial(self.study, trial._trial_id)
        return None

    @contextmanager
    def heartbeat(self, trial: Trial) -> Iterator[None]:
        """Record that a trial's worker is alive, from the beginning of the block to its end."""
        if isinstance(self.storage, BaseHeartbeat):
            self.storage.record_heartbeat(trial._trial_id)  # before others look for it
        trial.set_user_attr(WORKER, {"host": this_host(), "pid": os.getpid(), "born": start_time_of(os.getpid())})
        try:
            with get_heartbeat_thread(trial._trial_id, self.storage):
                yield
        finally:
            if isinstance(self.storage, JournalWithHeartbeat):
                self.storage.heartbeat_file(trial._trial_id).unlink(missing_ok=True)

    def requeue_lost(self) -> list[int]:
        """Have trials whose worker is lost wait again, and return their numbers."""
        before = _retried(self.study.get_trials(deepcopy=False))
        optuna.storages.fail_stale_trials(self.study)
        return sorted(_retried(self.study.get_trials(deepcopy=False)) - before)

    def requeue(self, trial: Trial) -> None:
        """Have a trial that was stopped on purpose wait again, unless another worker has done so."""
        if self._set_state(trial._trial_id, TrialState.FAIL):
            _retry(self.study, self.storage.get_trial(trial._trial_id), None)

    def is_running(self) -> bool:
        return bool(self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))

    def _set_state(self, trial_id: int, state: TrialState) -> bool:
        """Set the state of a trial; false where another worker was first."""
        with suppress(UpdateFinishedTrialError):
            return self.storage.set_trial_state_values(trial_id, state)
        return False


def _retry(study: Study, trial: FrozenTrial, retries: int | None) -> None:
    """Have a trial wait again under another number: with its values, and nothing of its course.

    It may lose its worker ``retries`` times; None for a stop on purpose, which does not count.
    """
    stops = int(trial.user_attrs.get(_STOPS, 0))
    fresh = copy.deepcopy(trial)
    fresh.user_attrs = {_STOPS: stops + (retries is None)}
    fresh.system_attrs = {name: value for name, value in fresh.system_attrs.items() if not name.startswith(_RUNG)}
    RetryHeartbeatStaleTrialCallback(None if retries is None else retries + stops)(study, fresh)


def open_store(
    tune: TuneConfig, folder: Path, name: str, identity: Mapping[str, str], levels: int, create: bool
) -> tuple[TrialStore, bool]:
    """Open a study in its storage; the second value says whether it was made just now.

    Raises
    ------
    ConfigError
        If the storage cannot be used, or has a study of that name that is another.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    shown = display_url(tune.storage, folder)
    with storage_errors(shown), damaged_study(shown):
        storage = open_storage(tune, folder, partial(_retry, retries=tune.retries))
        created = False
        if create:
            try:
                study_id = storage.create_new_study([StudyDirection.MAXIMIZE] * len(tune.objective), name)
                storage.set_study_user_attr(study_id, _IDENTITY, dict(identity))
                created = True
            except DuplicatedStudyError:
                pass
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError:
            raise ConfigError(f"{shown} has no study {name}: it was moved, or begun in another tune.storage") from None
        complaint = f"the study {name} was not created completely: use another tune.name"
        kept = _wait_for(lambda: study.user_attrs.get(_IDENTITY), complaint)  # another process may be writing it
        stored = {str(what): str(value) for what, value in kept.items()}
        for what, now in identity.items():
            if stored.get(what) != now:
                difference = _describe_difference(what, stored.get(what), now)
                advice = "leave that as it was, or start a new study"
                raise ConfigError(f"the study {name} in {shown} was begun with {difference}; {advice}")
    return TrialStore(study, storage, tune, levels), created


def _check_values(trial: FrozenTrial, count: int) -> None:
    """Refuse a trial at its end without its values, or with what is no number: a ValueError or TypeError."""
    values = trial.values if trial.state == TrialState.COMPLETE else [0.0] * count
    if values is None or len(values) != count or any(math.isnan(value) for value in values):
        raise ValueError(f"trial {trial.number} came to its end without {count} values")
    for level, value in trial.intermediate_values.items():
        if not (isinstance(level, int) and isinstance(value, float | int)):
            raise TypeError(f"trial {trial.number} reported {value!r} at level {level!r}")
    if not isinstance(trial.user_attrs, Mapping):
        raise TypeError(f"attributes of trial {trial.number} are no mapping")


def sampler_of(tune: TuneConfig, number: int) -> BaseSampler:
    """Sampler of one trial, with random numbers of its own: a study that was stopped draws what it would have drawn."""
    seed = (tune.seed * 1_000_003 + number) % 2**32
    if tune.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=tune.startup_trials)


def pruner_of(tune: TuneConfig, levels: int) -> BasePruner:
    """Pruner of trials that fall behind; none with several objectives, which have no order to fall behind in."""
    if tune.pruner == "none" or len(tune.objective) > 1:
        return NopPruner()
    if tune.pruner == "hyperband":
        return HyperbandPruner(min_resource=1, max_resource=levels, reduction_factor=3)
    return MedianPruner(n_startup_trials=tune.pruned_after, n_warmup_steps=FIRST_PRUNED)


def _wait_for(read: Callable[[], Any], complaint: str) -> Any:
    """Wait for another process to write something; a `ConfigError` with the complaint where it does not."""
    until = time.monotonic() + WRITE_TIMEOUT
    while not (value := read()):
        if time.monotonic() > until:
            raise ConfigError(complaint)
        time.sleep(0.2)
    return value


def _describe_difference(what: str, before: str | None, now: str) -> str:
    if what != "space" or before is None:
        return f"another {what} ({before}, now {now})" if len(f"{before}{now}") < 150 else f"another {what}"
    old, new = (dict(json.loads(text)) for text in (before, now))
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            return f"another space ({key}: {old.get(key, 'not searched')}, now {new.get(key, 'not searched')})"
    return "another space"


def first_number(trial: FrozenTrial) -> int:
    """Number that a trial had when it was drawn, before any retry."""
    return _numbers(trial)[0]


def _numbers(trial: FrozenTrial) -> list[int]:
    """All numbers that a trial had, its own last."""
    return [*RetryHeartbeatStaleTrialCallback.retry_history(trial), trial.number]


def _retried(trials: Sequence[FrozenTrial]) -> set[int]:
    return {number for trial in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
