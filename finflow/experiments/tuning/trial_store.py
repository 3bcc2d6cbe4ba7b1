"""Trials of a study in an Optuna storage: claimed once, with a heartbeat, and retried where their worker is lost.

All trials are put into the storage at the beginning, waiting, each with its slot. A worker takes one by setting its
state, which one worker alone can do; so each runs once, and their number is exact. A trial that waits again is another
trial of Optuna's in the same slot. `Study.optimize` is not used, because it counts trials as they end, so that several
workers would make too many. Optuna's heartbeats are in databases alone; here every storage has them, as an attribute of
the trial, and a worker of this machine counts as lost as soon as its process has ended, where ``/proc`` tells.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sql
from optuna.exceptions import DuplicatedStudyError, StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from finflow.config import TuneConfig
from finflow.errors import ConfigError, one_line
from finflow.experiments.task_progress import start_time_of, this_host

LOST = "its worker was lost"
FIRST_PRUNED = 3  # level: earlier ones are noise
PRUNED_AFTER = 5  # complete trials
RETRIES = 3  # times that a trial may lose its worker
HEARTBEAT = 30.0  # seconds
GRACE = 4  # heartbeats
JOURNAL, DATABASE, SQLITE = "journal:", "study.db", "sqlite"
WRITE_TIMEOUT = 60.0  # seconds for a storage that others are writing to, or a study that is being created
WORKER, ALIVE, GIVEN, SLOT, LOSSES = "worker", "alive", "given", "slot", "losses"
"""Attributes of a trial: its process; heartbeats; values that are not drawn; first number; workers lost."""
TRIES, _IDENTITY = "tries", "identity"
"""Attributes of a study: trials that it was begun with; settings that make its trials comparable."""


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
    """The trials of one study; ``name`` is that of its storage, for messages."""

    def __init__(self, study: Study, storage: BaseStorage, tune: TuneConfig, levels: int, name: str) -> None:
        self.study, self.storage, self.tune, self.name = study, storage, tune, name
        self.study.pruner = pruner_of(tune, levels)
        self._seen: dict[int, tuple[Any, float]] = {}  # by trial, its latest heartbeat and since when it is known

    @property
    def trials(self) -> list[FrozenTrial]:
        """Every trial but those that were retried under another number; a ConfigError if they cannot be read."""
        latest: dict[int, FrozenTrial] = {}
        with storage_errors(self.name), damaged_study(f"of the study {self.study.study_name}"):
            for trial in self.study.get_trials(deepcopy=False):
                check_values(trial, len(self.tune.objective))
                latest[slot_of(trial)] = trial
        return sorted(latest.values(), key=lambda trial: trial.number)

    @property
    def counts(self) -> Counts:
        states = [trial.state for trial in self.trials]
        order = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING)
        return Counts(*(states.count(state) for state in order))

    @property
    def tries(self) -> int:
        """Trials that the study was begun with."""
        return int(self.study.user_attrs.get(TRIES, self.tune.n_trials))

    def fill(self, first: Mapping[str, Any]) -> None:
        """Add trials until there are ``n_trials``, the first of them with the values given."""
        begun = len(self.study.get_trials(deepcopy=False))
        for slot in range(begun, begun + self.tune.n_trials - self.counts.all):
            self._enqueue(first if slot == 0 else {}, slot, 0)

    def claim(self) -> Trial | None:
        """Claim the first waiting trial, for this worker alone; None where none waits."""
        for trial in sorted(self._in_state(TrialState.WAITING), key=slot_of):
            if self._set_state(trial.number, TrialState.RUNNING):
                self.study.sampler = sampler_of(self.tune, slot_of(trial))
                return Trial(self.study, self._id(trial.number))
        return None

    @contextmanager
    def heartbeat(self, trial: Trial) -> Iterator[None]:
        """Record that a trial's worker is alive, from the beginning of the block to its end."""
        trial.set_user_attr(WORKER, {"host": this_host(), "pid": os.getpid(), "born": start_time_of(os.getpid())})
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(trial.number, ended), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()

    def _beat(self, number: int, ended: threading.Event) -> None:
        for beat in count():
            with suppress(Exception):  # a storage that is away for a while is tried again later
                self.storage.set_trial_user_attr(self._id(number), ALIVE, beat)
            if ended.wait(HEARTBEAT):
                return

    def requeue_lost(self) -> list[int]:
        """Have trials whose worker is lost wait again, and return their numbers; some have lost too many."""
        lost = [trial for trial in self._in_state(TrialState.RUNNING) if self._is_lost(trial)]
        return [trial.number for trial in lost if self._requeue(trial, trial.user_attrs.get(LOSSES, 0) + 1)]

    def requeue(self, trial: Trial) -> None:
        """Have a trial that was stopped on purpose wait again, unless another worker has done so."""
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        self._requeue(frozen, frozen.user_attrs.get(LOSSES, 0))

    def _requeue(self, trial: FrozenTrial, losses: int) -> bool:
        """Have a trial wait again under another number: with its values, and nothing of its course."""
        if not self._set_state(trial.number, TrialState.FAIL) or losses > RETRIES:
            return False
        self._enqueue({**trial.user_attrs.get(GIVEN, {}), **trial.params}, slot_of(trial), losses)
        return True

    def _enqueue(self, values: Mapping[str, Any], slot: int, losses: int) -> None:
        self.study.enqueue_trial(dict(values), {GIVEN: dict(values), SLOT: slot, LOSSES: losses})

    def _is_lost(self, trial: FrozenTrial) -> bool:
        """Return True where a trial's process has ended, or sends no heartbeat that this process would see."""
        worker, beat, now = trial.user_attrs.get(WORKER), trial.user_attrs.get(ALIVE), time.monotonic()
        if isinstance(worker, dict) and worker.get("host") == this_host() and worker.get("born"):
            return start_time_of(int(worker["pid"])) != worker.get("born")
        if self._seen.setdefault(trial.number, (beat, now))[0] != beat:
            self._seen[trial.number] = beat, now
        return now - self._seen[trial.number][1] > GRACE * HEARTBEAT

    def _in_state(self, state: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(state,))

    def _id(self, number: int) -> int:
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)

    def _set_state(self, number: int, state: TrialState) -> bool:
        """Return False where another worker was first."""
        with suppress(UpdateFinishedTrialError):
            return self.storage.set_trial_state_values(self._id(number), state)
        return False


def slot_of(trial: FrozenTrial) -> int:
    """Number that a trial had when it was drawn, before any retry."""
    return int(trial.user_attrs.get(SLOT, trial.number))


def open_store(
    tune: TuneConfig, folder: Path, name: str, identity: Mapping[str, str], levels: int, first: Mapping[str, Any] | None
) -> TrialStore:
    """Open a study in its storage.

    With the values of its ``first`` trial, one that is not there is made; its identity is written after its trials.

    Raises ConfigError if the storage cannot be used, or has a study of that name that is another.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    shown, created = display_url(tune.storage, folder), False
    with storage_errors(shown), damaged_study(shown):
        storage = _open_storage(tune.storage, folder)
        if first is not None:
            with suppress(DuplicatedStudyError):
                storage.create_new_study([StudyDirection.MAXIMIZE] * len(tune.objective), name)
                created = True
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError:
            raise ConfigError(f"{shown} has no study {name}: it was moved, or begun in another tune.storage") from None
        store = TrialStore(study, storage, tune, levels, shown)
        if created and first is not None:
            try:
                store.fill(first)
                study.set_user_attr(TRIES, tune.n_trials)
                study.set_user_attr(_IDENTITY, dict(identity))
            except BaseException:
                with suppress(Exception):  # as far as the storage can be reached
                    optuna.delete_study(study_name=name, storage=storage)
                raise
        until = time.monotonic() + WRITE_TIMEOUT
        while not (kept := study.user_attrs.get(_IDENTITY)):  # another process is putting trials into it
            if time.monotonic() > until:
                raise ConfigError(f"the study {name} was not created completely: use another tune.name")
            time.sleep(0.2)
        for what, now in identity.items():
            if (before := kept.get(what)) != now:
                difference = _describe_difference(what, before, now)
                advice = "leave that as it was, or start a new study"
                raise ConfigError(f"the study {name} in {shown} was begun with {difference}; {advice}")
    return store


def _open_storage(name: str | None, folder: Path) -> BaseStorage:
    """Open the storage that is named, or SQLite in the study's folder; a ConfigError where the name is no URL."""
    if name is not None and name.startswith(JOURNAL):
        path = Path(name.removeprefix(JOURNAL)).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))
    try:
        url = sql.make_url(name or f"{SQLITE}:///{(folder / DATABASE).absolute()}")
    except (sql.exc.ArgumentError, ValueError):
        raise ConfigError(
            f"cannot use the storage {display_url(name, folder)}: it is not the URL of a database; see tune.storage"
        ) from None
    backend, server = url.get_backend_name(), {"connect_timeout": 10.0}
    arguments = {SQLITE: {"timeout": WRITE_TIMEOUT}, "postgresql": server, "mysql": server}.get(backend, {})
    storage = RDBStorage(url.render_as_string(hide_password=False), {"connect_args": arguments})
    if backend == SQLITE:
        _lock_at_begin(storage.engine)
    return storage


def _lock_at_begin(engine: sql.Engine) -> None:
    """Have every transaction on SQLite take the file's lock when it begins.

    By itself SQLite locks when something is first written: two workers could then read that the same trial waits, and
    both take it.
    """
    engine.dispose()

    @sql.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @sql.event.listens_for(engine, "begin")
    def begin(connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def check_values(trial: FrozenTrial, number: int) -> None:
    """Refuse a trial at its end without its values, or with what is no number: a ValueError or TypeError."""
    values = trial.values if trial.state == TrialState.COMPLETE else [0.0] * number
    if values is None or len(values) != number or any(math.isnan(value) for value in values):
        raise ValueError(f"trial {trial.number} came to its end without {number} values")
    course = trial.intermediate_values.items()
    if not all(isinstance(level, int) and isinstance(value, float | int) for level, value in course):
        raise TypeError(f"trial {trial.number} reported {trial.intermediate_values!r}")
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
    return MedianPruner(n_startup_trials=PRUNED_AFTER, n_warmup_steps=FIRST_PRUNED)


def _describe_difference(what: str, before: str | None, now: str) -> str:
    if what != "space" or before is None:
        return f"another {what} ({before}, now {now})" if len(f"{before}{now}") < 150 else f"another {what}"
    old, new = (dict(json.loads(text)) for text in (before, now))
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            return f"another space ({key}: {old.get(key, 'not searched')}, now {new.get(key, 'not searched')})"
    return "another space"


@contextmanager
def storage_errors(shown: str) -> Iterator[None]:
    """Turn the faults of a storage into one line."""
    try:
        yield
    except (sql.exc.SQLAlchemyError, StorageInternalError, ImportError, OSError, RuntimeError) as error:
        if isinstance(error, UpdateFinishedTrialError):
            raise
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = str(root)
        if isinstance(error, ImportError):
            reason += " (pip install 'finflow[postgres]' brings the one for PostgreSQL)"
        raise ConfigError(f"cannot use the storage {shown}: {one_line(reason, 200)}; see tune.storage") from error


@contextmanager
def damaged_study(shown: str) -> Iterator[None]:
    """Turn what Optuna raises over a storage that something else has written to into one line."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError) as error:
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(
            f"cannot use the storage {shown}: what it holds is no study, or a damaged one ({reason}); see tune.storage"
        ) from error


def display_url(url: str | None, folder: Path) -> str:
    """Name of a storage for messages: without its password, wherever in the URL that may be."""
    if url is None:
        return str(folder / DATABASE)
    if url.startswith(JOURNAL):
        return url
    try:
        return sql.make_url(url).set(query={}).render_as_string(hide_password=True)
    except (sql.exc.ArgumentError, ValueError):  # a port that is no number
        return repr(url if set(url).isdisjoint(":@") else f"{url.partition(':')[0]}:...")
