"""The trials of a study in an Optuna storage: claimed once, shown to be alive, and retried where their worker is lost.

All trials are put into the storage at the beginning, waiting. A worker takes one by setting its state, which one
worker alone can do; so each is done once, and their number is exact. A trial whose worker is gone (its process, where
that was on this machine; its signs of life, anywhere) is marked as failed, and waits again under another number.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import optuna
import sqlalchemy as sql
from optuna.exceptions import DuplicatedStudyError, StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from finflow.config import TuneConfig
from finflow.errors import ConfigError

__all__ = ["LOST", "Book", "Counts", "Pulse", "is_sqlite", "open_book", "reaching", "shown_url", "wait_until_filled"]

JOURNAL = "journal:"
DATABASE = "study.db"
SQLITE = "sqlite"
GRACE = 4  # heartbeats
LOST = "its worker was lost"
FIRST_PRUNED = 3  # level: earlier ones are noise
PATIENCE = 60.0  # seconds for a storage that others are writing to, or a study that is being begun
_IDENTITY, _READY, _WORKER, _STOPS = "identity", "ready", "worker", "stops"
_RUNG = "completed_rung_"  # what Hyperband notes of a trial's course
_NO_MORE = (UpdateFinishedTrialError,)


@dataclass(frozen=True)
class Counts:
    """How many trials there are; one that is retried counts once."""

    complete: int
    pruned: int
    failed: int
    running: int
    waiting: int

    @property
    def finished(self) -> int:
        """Those that are over, however they ended."""
        return self.complete + self.pruned + self.failed

    @property
    def all(self) -> int:
        """Those that are or will be."""
        return self.finished + self.running + self.waiting


class Requeue:
    """Has a trial that was begun wait again, under another number: with its values, and nothing of its course.

    Parameters
    ----------
    retries : int
        How often a trial may lose its worker; stops on purpose do not count.
    """

    def __init__(self, retries: int) -> None:
        self.retries = retries

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        """Have a trial that lost its worker wait again, or give it up."""
        stops = int(trial.user_attrs.get(_STOPS, 0))
        if len(_tries(trial)) <= self.retries + stops:
            self._add(study, trial, stops)

    def put_back(self, study: Study, trial: FrozenTrial) -> None:
        """Have a trial that was stopped on purpose wait again."""
        self._add(study, trial, int(trial.user_attrs.get(_STOPS, 0)) + 1)

    def _add(self, study: Study, trial: FrozenTrial, stops: int) -> None:
        tries = _tries(trial)
        kept = {name: value for name, value in trial.system_attrs.items() if not name.startswith(_RUNG)}
        study.add_trial(
            optuna.create_trial(
                state=TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={_STOPS: stops},
                system_attrs={**kept, "failed_trial": tries[0], "retry_history": tries},
            )
        )


class Book:
    """The trials of one study.

    Parameters
    ----------
    study : Study
    storage : BaseStorage
    tune : TuneConfig
    levels : int
        At which a trial may be pruned.
    alive : Path or None
        Folder of signs of life, for a storage that keeps none.
    """

    def __init__(
        self, study: Study, storage: BaseStorage, tune: TuneConfig, levels: int, alive: Path | None = None
    ) -> None:
        self.study, self.storage, self.tune, self.alive = study, storage, tune, alive
        self.study.pruner = pruner_of(tune, levels)
        self._retry = Requeue(tune.retries)

    @property
    def trials(self) -> list[FrozenTrial]:
        """Every trial but those that were retried under another number."""
        found = self.study.get_trials(deepcopy=False)
        again = _retried(found)
        return [trial for trial in found if trial.number not in again]

    @property
    def counts(self) -> Counts:
        """How far the study is."""
        states = [trial.state for trial in self.trials]
        order = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING)
        return Counts(*(states.count(state) for state in order))

    def number_now(self, number: int) -> int:
        """The number that a trial has now, however often it waited again since it had the one given."""
        later = [trial.number for trial in self.trials if number in _tries(trial)]
        return later[0] if later else number

    def fill(self, first: Mapping[str, Any]) -> None:
        """See that there are ``n_trials``, the first of them with the values given."""
        before = self.counts.all
        for number in range(before, self.tune.n_trials):
            self.study.enqueue_trial(dict(first) if number == 0 else {})
        if not self.study.user_attrs.get(_READY):
            self.study.set_user_attr(_READY, True)

    def discard(self) -> None:
        """Remove the study from its storage, as far as that can be reached."""
        with suppress(Exception):
            optuna.delete_study(study_name=self.study.study_name, storage=self.storage)

    def claim(self) -> Trial | None:
        """Take the first trial that waits; None where there is none. Nobody else takes the same."""
        found = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        for waiting in sorted(found, key=first_number):
            try:
                won = self.storage.set_trial_state_values(waiting._trial_id, TrialState.RUNNING)
            except _NO_MORE:
                continue
            if won:
                self.study.sampler = sampler_of(self.tune, first_number(waiting))
                return Trial(self.study, waiting._trial_id)
        return None

    def revive(self) -> list[int]:
        """Have trials whose worker is lost wait again, and return their numbers."""
        before = _retried(self.study.get_trials(deepcopy=False))
        if self.alive is None:
            optuna.storages.fail_stale_trials(self.study)
        for trial in self._running():
            if self._is_lost(trial):
                try:
                    if not self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL):
                        continue
                except _NO_MORE:
                    continue
                self._retry(self.study, self.storage.get_trial(trial._trial_id))
        return sorted(_retried(self.study.get_trials(deepcopy=False)) - before)

    def put_back(self, trial: Trial) -> None:
        """Have a trial that was stopped on purpose wait again."""
        try:
            if self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL):
                self._retry.put_back(self.study, self.storage.get_trial(trial._trial_id))
        except _NO_MORE:
            return  # somebody else did so

    def is_running(self) -> bool:
        """Whether any trial is being done."""
        return bool(self._running())

    def _running(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def _is_lost(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(_WORKER)
        if isinstance(worker, dict) and worker.get("host") == _host():
            return _born(int(worker["pid"])) != worker.get("born")
        grace = GRACE * self.tune.heartbeat
        if worker is None:  # it was taken, and its worker was lost before the first sign of life
            started = trial.datetime_start
            return started is not None and datetime.now() - started > timedelta(seconds=grace)
        return self.alive is not None and _silence(self.alive, trial._trial_id) > grace


class Pulse:
    """Shows that a trial's worker is alive, from the beginning of a ``with`` block to its end.

    Parameters
    ----------
    book : Book
    trial : Trial
    """

    def __init__(self, book: Book, trial: Trial) -> None:
        self.book, self.trial = book, trial
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._sign()
        self.trial.set_user_attr(_WORKER, {"host": _host(), "pid": os.getpid(), "born": _born(os.getpid())})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self.book.alive is not None:
            _sign_of(self.book.alive, self.trial._trial_id).unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(self.book.tune.heartbeat):
            with suppress(Exception):  # the storage may be away for a while: the next sign may get through
                self._sign()

    def _sign(self) -> None:
        if self.book.alive is not None:
            _sign_of(self.book.alive, self.trial._trial_id).touch()
        elif isinstance(self.book.storage, RDBStorage):
            self.book.storage.record_heartbeat(self.trial._trial_id)


def open_book(
    tune: TuneConfig, folder: Path, name: str, identity: Mapping[str, str], levels: int, create: bool
) -> tuple[Book, bool]:
    """Open a study in its storage; the second value says whether it was made just now.

    Parameters
    ----------
    tune : TuneConfig
    folder : Path
        Of the study, for the storage that is used where none is named.
    name : str
    identity : mapping
        What makes the study what it is, in words: it must be the same in the storage.
    levels : int
    create : bool
        Make it where it is not there.

    Raises
    ------
    ConfigError
        If the storage cannot be used, or has a study of that name that is another.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    shown = shown_url(tune.storage, folder)
    with reaching(shown):
        storage, alive = _open(tune, folder)
        made = False
        if create:
            try:
                study_id = storage.create_new_study([StudyDirection.MAXIMIZE] * len(tune.objective), name)
                storage.set_study_user_attr(study_id, _IDENTITY, dict(identity))
                made = True
            except DuplicatedStudyError:
                pass
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError:
            raise ConfigError(f"{shown} has no study {name}: it was moved, or begun in another tune.storage") from None
        begun = _identity_of(study)
        for what, now in identity.items():
            if begun.get(what) != now:
                raise ConfigError(
                    f"the study {name} in {shown} was begun with {_differing(what, begun.get(what), now)}; leave that "
                    "as it was, or begin a new study"
                )
    return Book(study, storage, tune, levels, alive), made


@contextmanager
def reaching(shown: str) -> Iterator[None]:
    """Turn the faults of a storage into one line.

    Raises
    ------
    ConfigError
    """
    try:
        yield
    except (sql.exc.SQLAlchemyError, StorageInternalError, ImportError, OSError, RuntimeError) as error:
        if isinstance(error, UpdateFinishedTrialError):
            raise
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        said = " ".join(str(root).split())
        if isinstance(error, ImportError):
            said = f"{said} (pip install 'finflow[postgres]' brings the one for PostgreSQL)"
        raise ConfigError(f"cannot use the storage {shown}: {said[:200]}; see tune.storage") from error


def shown_url(url: str | None, folder: Path) -> str:
    """A storage for people: without its password, wherever in the URL that may be."""
    if url is None:
        return str(folder / DATABASE)
    if url.startswith(JOURNAL):
        return url
    try:
        return sql.make_url(url).set(query={}).render_as_string(hide_password=True)
    except (sql.exc.ArgumentError, ValueError):  # a port that is no number
        return repr(url if set(url).isdisjoint(":@") else f"{url.partition(':')[0]}:...")


def is_sqlite(url: str | None) -> bool:
    """Whether a storage is a file of SQLite's, which processes of one machine can use."""
    return url is None or url.partition(":")[0].partition("+")[0] == SQLITE


def sampler_of(tune: TuneConfig, number: int) -> BaseSampler:
    """What draws a trial: with random numbers of its own, so that a study that was stopped draws what it would have."""
    seed = (tune.seed * 1_000_003 + number) % 2**32
    if tune.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=tune.startup_trials)


def pruner_of(tune: TuneConfig, levels: int) -> BasePruner:
    """What stops trials that fall behind; several objectives have no order to fall behind in."""
    if tune.pruner == "none" or len(tune.objective) > 1:
        return NopPruner()
    if tune.pruner == "hyperband":
        return HyperbandPruner(min_resource=1, max_resource=levels, reduction_factor=3)
    return MedianPruner(n_startup_trials=tune.pruned_after, n_warmup_steps=FIRST_PRUNED)


def _open(tune: TuneConfig, folder: Path) -> tuple[BaseStorage, Path | None]:
    """The storage, and where signs of life go if not into it."""
    if tune.storage is not None and tune.storage.startswith(JOURNAL):
        path = Path(tune.storage.removeprefix(JOURNAL)).absolute()
        alive = path.with_name(f"{path.name}.alive")
        alive.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path))), alive
    try:
        url = sql.make_url(tune.storage or f"{SQLITE}:///{(folder / DATABASE).absolute()}")
    except (sql.exc.ArgumentError, ValueError):
        shown = shown_url(tune.storage, folder)
        raise ConfigError(f"cannot use the storage {shown}: it is no URL of a database; see tune.storage") from None
    backend = url.get_backend_name()
    arguments = {SQLITE: {"timeout": PATIENCE}, "postgresql": {"connect_timeout": 10}, "mysql": {"connect_timeout": 10}}
    storage = RDBStorage(
        url.render_as_string(hide_password=False),
        engine_kwargs={"connect_args": arguments.get(backend, {})},
        heartbeat_interval=tune.heartbeat,
        grace_period=GRACE * tune.heartbeat,
        heartbeat_stale_trial_callback=Requeue(tune.retries),
    )
    if backend == SQLITE:
        _take_turns(storage.engine)
    return storage, None


def _take_turns(engine: sql.Engine) -> None:
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


def _identity_of(study: Study) -> dict[str, str]:
    """What a study was begun with; another process may be writing it just now."""
    until = time.monotonic() + PATIENCE
    while not isinstance(found := study.user_attrs.get(_IDENTITY), dict):
        if time.monotonic() > until:
            raise ConfigError(f"the study {study.study_name} was never begun properly: use another tune.name")
        time.sleep(0.2)
    return {str(name): str(value) for name, value in found.items()}


def _differing(what: str, before: str | None, now: str) -> str:
    """How two identities differ, in a few words."""
    if what != "space" or before is None:
        return f"another {what} ({before}, now {now})" if len(f"{before}{now}") < 150 else f"another {what}"
    old, new = (dict(json.loads(text)) for text in (before, now))
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            return f"another space ({key}: {old.get(key, 'not searched')}, now {new.get(key, 'not searched')})"
    return "another space"


def wait_until_filled(book: Book) -> None:
    """Wait until whoever began the study has put its trials into the storage."""
    until = time.monotonic() + PATIENCE
    while not book.study.user_attrs.get(_READY):
        if time.monotonic() > until:
            raise ConfigError(
                f"the study {book.study.study_name} was not begun to the end; begin it again where it was begun, with "
                "--resume"
            )
        time.sleep(0.2)


def first_number(trial: FrozenTrial) -> int:
    """The number that a trial had when it was drawn, however often it waited again since."""
    return _tries(trial)[0]


def _tries(trial: FrozenTrial) -> list[int]:
    """All numbers that a trial had, its own last."""
    return [*RetryHeartbeatStaleTrialCallback.retry_history(trial), trial.number]


def _retried(trials: Sequence[FrozenTrial]) -> set[int]:
    """Numbers of the trials that others were put into the place of."""
    return {number for trial in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}


def _host() -> str:
    """This machine since it was started, and the processes that can be seen on it."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _born(pid: int) -> str | None:
    """When a process of this machine was started; None where there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        return "unknown"
    else:
        return None if status[0] in ("Z", "X") else status[19]
    if os.name != "posix":
        return "unknown"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return "unknown"


def _sign_of(alive: Path, trial_id: int) -> Path:
    return alive / f"trial-{trial_id}"


def _silence(alive: Path, trial_id: int) -> float:
    """Seconds since a trial's last sign of life, by the clock of the file system; infinite where there is none."""
    probe = alive / f".now-{os.getpid()}"
    try:
        probe.touch()
        return probe.stat().st_mtime - _sign_of(alive, trial_id).stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    finally:
        probe.unlink(missing_ok=True)
