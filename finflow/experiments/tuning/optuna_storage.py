"""Optuna's storages of trials, with heartbeats: opened by URL, and their faults in one line.

Optuna has heartbeats in databases alone, and notices a lost worker after a grace period. Here a journal file has them,
too, and a worker of this machine counts as lost as soon as its process has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from finflow.config import TuneConfig
from finflow.errors import ConfigError, one_line
from finflow.experiments.task_progress import start_time_of, this_host

JOURNAL = "journal:"
DATABASE = "study.db"
SQLITE = "sqlite"
GRACE = 4  # heartbeats
WRITE_TIMEOUT = 60.0  # seconds for a storage that others are writing to, or a study that is being created
WORKER = "worker"
"""Attribute of a trial: the machine, the process and its start time."""


def open_storage(tune: TuneConfig, folder: Path, callback: Callable[[Study, FrozenTrial], None]) -> BaseStorage:
    """Open the storage that is named, or SQLite in the study's folder.

    Raises
    ------
    ConfigError
        If the name is no URL.
    """
    if tune.storage is not None and tune.storage.startswith(JOURNAL):
        return JournalWithHeartbeat(Path(tune.storage.removeprefix(JOURNAL)).absolute(), tune.heartbeat, callback)
    try:
        url = sql.make_url(tune.storage or f"{SQLITE}:///{(folder / DATABASE).absolute()}")
    except (sql.exc.ArgumentError, ValueError):
        shown = display_url(tune.storage, folder)
        raise ConfigError(
            f"cannot use the storage {shown}: it is not the URL of a database; see tune.storage"
        ) from None
    backend = url.get_backend_name()
    servers = {name: {"connect_timeout": 10} for name in ("postgresql", "mysql")}
    arguments = {SQLITE: {"timeout": WRITE_TIMEOUT}, **servers}
    storage = DatabaseWithLocalWorkers(
        url.render_as_string(hide_password=False),
        engine_kwargs={"connect_args": arguments.get(backend, {})},
        heartbeat_interval=tune.heartbeat,
        grace_period=GRACE * tune.heartbeat,
        heartbeat_stale_trial_callback=callback,
    )
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


class DatabaseWithLocalWorkers(RDBStorage):
    """Optuna's storage in a database, which also notices that a process of this machine has ended."""

    def record_heartbeat(self, trial_id: int) -> None:
        """Record that a trial's worker is alive; a database that is away for a while is tried again later."""
        with suppress(Exception):
            super().record_heartbeat(trial_id)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        lost = _lost_trials(self, study_id, self.grace_period or 0, lambda trial: False)
        return sorted({*super()._get_stale_trial_ids(study_id), *lost})


class JournalWithHeartbeat(JournalStorage, BaseHeartbeat):
    """Optuna's storage in a journal file, with heartbeats: for each trial a file that is touched."""

    def __init__(self, path: Path, interval: int, callback: Callable[[Study, FrozenTrial], None]) -> None:
        self._folder = path.with_name(f"{path.name}.alive")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._interval, self._callback = interval, callback
        super().__init__(JournalFileBackend(str(path)))

    def heartbeat_file(self, trial_id: int) -> Path:
        return self._folder / f"trial-{trial_id}"

    def record_heartbeat(self, trial_id: int) -> None:
        """Touch the trial's file; a folder that is away for a while is tried again later."""
        with suppress(OSError):
            self.heartbeat_file(trial_id).touch()

    def get_heartbeat_interval(self) -> int:
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> Callable[[Study, FrozenTrial], None]:
        return self._callback

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        grace = GRACE * self._interval
        return _lost_trials(self, study_id, grace, lambda trial: self._silence(trial._trial_id) > grace)

    def _silence(self, trial_id: int) -> float:
        """Seconds since a trial's last heartbeat, by the file system's clock; infinite where there is none."""
        probe = self._folder / f".now-{os.getpid()}"
        try:
            probe.touch()
            return probe.stat().st_mtime - self.heartbeat_file(trial_id).stat().st_mtime
        except FileNotFoundError:
            return float("inf")
        finally:
            probe.unlink(missing_ok=True)


def _lost_trials(storage: BaseStorage, study_id: int, grace: float, silent: Callable[[FrozenTrial], bool]) -> list[int]:
    """Running trials that have lost their worker: its process has ended, it never had a heartbeat, or has none now."""
    lost = []
    for trial in storage.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
        worker, started = trial.user_attrs.get(WORKER), trial.datetime_start
        if isinstance(worker, dict) and worker.get("host") == this_host():
            is_lost = start_time_of(int(worker["pid"])) != worker.get("born")
        elif worker is None:  # claimed, and its worker was lost before the first heartbeat
            is_lost = started is not None and datetime.now() - started > timedelta(seconds=grace)
        else:
            is_lost = silent(trial)
        if is_lost:
            lost.append(trial._trial_id)
    return lost


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


def is_sqlite(url: str | None) -> bool:
    """True for a file of SQLite's, which processes of one machine can use."""
    return url is None or url.partition(":")[0].partition("+")[0] == SQLITE
