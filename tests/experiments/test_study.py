"""The trials of a study: each is taken once, and none is lost, whatever happens to those who do them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sql
from optuna.trial import Trial, TrialState

from finflow.config import TuneConfig
from finflow.errors import ConfigError
from finflow.experiments.tuning import trial_store as study
from finflow.experiments.tuning.trial_store import Book, Pulse, open_book

IDENTITY = {"objective": "sharpe", "space": '{"a": "0 to 1"}'}
WORKER = """
import sys, time
from pathlib import Path
from finflow.config import TuneConfig
from finflow.experiments.tuning.trial_store import Pulse, open_book
storage, folder, name, hang = sys.argv[1:]
tune = TuneConfig(storage=storage, heartbeat=1)
book, _ = open_book(tune, Path(folder), name, {"objective": "sharpe", "space": '{"a": "0 to 1"}'}, 10, create=False)
print("ready", flush=True)
while (trial := book.claim()) is not None:
    with Pulse(book, trial):
        value = trial.suggest_float("a", 0.0, 1.0)
        print(trial.number, flush=True)
        if hang == "hang":
            time.sleep(600)
        book.study.tell(trial, value)
"""

Opens = Callable[..., Book]


@pytest.fixture(params=["sqlite", "journal", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where trials are kept."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres")
        return url
    return f"sqlite:///{tmp_path / 'trials.db'}" if request.param == "sqlite" else f"journal:{tmp_path / 'trials.log'}"


@pytest.fixture
def opens(storage: str, tmp_path: Path) -> Opens:
    """Opens a study of its own in the storage, or the same once more."""
    name = f"study-{tmp_path.name}"

    def make(create: bool = True, identity: dict[str, str] = IDENTITY, **settings: object) -> Book:
        tune = TuneConfig.model_validate({"storage": storage, "heartbeat": 1, "n_trials": 6, **settings})
        book, made = open_book(tune, tmp_path, name, identity, 10, create)
        if made:
            book.fill({"a": 0.5})
        return book

    return make


@pytest.fixture
def workers(storage: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that do trials."""
    started: list[subprocess.Popen[str]] = []

    def start(hang: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, storage, str(tmp_path), f"study-{tmp_path.name}"]
        root = Path(__file__).parents[2]
        process = subprocess.Popen([*command, "hang" if hang else "go"], stdout=subprocess.PIPE, text=True, cwd=root)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def taken(book: Book) -> Trial:
    trial = book.claim()
    assert trial is not None
    return trial


def test_several_workers_do_each_trial_once(opens: Opens, workers: Callable[..., subprocess.Popen[str]]) -> None:
    book = opens(n_trials=16)
    processes = [workers() for _ in range(2)]
    done = []
    for process in processes:
        said, _ = process.communicate(timeout=120)
        done += [int(word) for word in said.split()[1:]]
    assert sorted(done) == list(range(16))
    counts = opens(create=False, n_trials=16).counts
    assert (counts.complete, counts.finished, counts.all) == (16, 16, 16)
    assert book.study.trials[0].params == {"a": 0.5}


def test_a_killed_workers_trial_waits_again_and_nothing_that_was_finished_is_lost(
    opens: Opens, workers: Callable[..., subprocess.Popen[str]]
) -> None:
    book = opens()
    first = taken(book)
    with Pulse(book, first):
        first.suggest_float("a", 0.0, 1.0)
        book.study.tell(first, 0.25)
    process = workers(hang=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    number = int(process.stdout.readline())
    assert book.revive() == []  # it is alive
    process.send_signal(signal.SIGKILL)
    process.wait()
    lost = book.study.trials[number].params
    assert book.revive() == [number]
    assert book.revive() == []
    counts = book.counts
    assert (counts.complete, counts.running, counts.waiting, counts.all) == (1, 0, 5, 6)
    assert book.study.trials[0].values == [0.25]
    while (trial := book.claim()) is not None:
        with Pulse(book, trial):
            book.study.tell(trial, trial.suggest_float("a", 0.0, 1.0))
    again = book.study.trials[-1]
    assert (again.params, again.state) == (lost, TrialState.COMPLETE)
    assert (book.counts.complete, book.counts.all) == (6, 6)


def test_a_worker_elsewhere_that_shows_no_sign_of_life_is_lost(opens: Opens, storage: str) -> None:
    book = opens()
    trial = taken(book)
    pulse = Pulse(book, trial)
    with pulse:
        trial.set_user_attr("worker", {"host": "elsewhere", "pid": 1, "born": "1"})
        assert book.revive() == []
        pulse._over.set()  # it falls silent
        pulse._thread.join()
        _age(book, trial, storage)
        assert book.revive() == [trial.number]
    assert (book.counts.waiting, book.counts.all) == (6, 6)


def _age(book: Book, trial: Trial, storage: str) -> None:
    """Put the last sign of life back by an hour."""
    if book.alive is not None:
        path = book.alive / f"trial-{trial._trial_id}"
        os.utime(path, (time.time() - 3600, time.time() - 3600))
        return
    with sql.create_engine(storage).begin() as connection:
        table = sql.Table("trial_heartbeats", sql.MetaData(), autoload_with=connection)
        connection.execute(sql.update(table).values(heartbeat=datetime.now() - timedelta(days=2)))


def test_a_worker_that_is_taken_for_lost_does_not_change_the_count(opens: Opens) -> None:
    book = opens()
    trial = taken(book)
    assert book.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    book._retry(book.study, book.storage.get_trial(trial._trial_id))
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.report(1.0, 1)
    assert (book.counts.all, book.counts.waiting) == (6, 6)


def test_a_trial_that_was_stopped_on_purpose_waits_again(opens: Opens) -> None:
    book = opens(retries=0)
    trial = taken(book)
    book.put_back(trial)
    book.put_back(trial)
    assert (book.counts.all, book.counts.waiting) == (6, 6)


def lose_worker(book: Book, trial: Trial) -> list[int]:
    """Have a trial's worker be gone, and find that out."""
    trial.set_user_attr("worker", {"host": study._host(), "pid": os.getpid(), "born": "before"})
    return book.revive()


def test_stops_on_purpose_use_up_no_retries(opens: Opens) -> None:
    book = opens(retries=1)
    for _ in range(3):
        book.put_back(taken(book))
    trial = taken(book)
    assert lose_worker(book, trial) == [trial.number]
    assert lose_worker(book, taken(book)) == []
    assert (book.counts.failed, book.counts.waiting, book.counts.all) == (1, 5, 6)


def test_a_trial_that_waits_again_keeps_nothing_of_its_course(opens: Opens) -> None:
    """Its worker of before, who is gone, is none of the next one's."""
    book = opens()
    trial = taken(book)
    trial.suggest_float("a", 0.0, 1.0)
    trial.set_user_attr("reason", "the guard gave up")
    book.storage.set_trial_system_attr(trial._trial_id, "completed_rung_0", 0.5)
    assert lose_worker(book, trial) == [0]
    again = taken(book)
    assert book.revive() == []
    frozen = book.study.trials[again.number]
    assert frozen.params == {"a": 0.5}
    assert "reason" not in frozen.user_attrs
    assert "completed_rung_0" not in frozen.system_attrs


def test_a_trial_that_waits_again_comes_before_those_that_were_not_begun(opens: Opens) -> None:
    book = opens()
    book.study.tell(taken(book), 1.0)
    book.put_back(taken(book))
    assert [study.first_number(book.study.trials[taken(book).number]) for _ in range(3)] == [1, 2, 3]


def test_a_trial_that_loses_every_worker_is_given_up(opens: Opens) -> None:
    book = opens(retries=1)
    assert lose_worker(book, taken(book)) == [0]
    assert lose_worker(book, taken(book)) == []
    assert book.counts.failed == 1
    assert book.counts.all == 6


def test_more_trials_are_added_and_none_twice(opens: Opens) -> None:
    opens().study.tell(taken(opens()), 1.0)
    for _ in range(2):
        more = opens(create=False, n_trials=9)
        more.fill({})
        assert (more.counts.all, more.counts.complete) == (9, 1)


def test_what_is_drawn_depends_on_the_trials_before_and_not_on_stops(opens: Opens, tmp_path: Path) -> None:
    def draw(book: Book) -> float:
        trial = taken(book)
        value = trial.suggest_float("a", 0.0, 1.0)
        book.study.tell(trial, value)
        return value

    steady = TuneConfig(storage=f"sqlite:///{tmp_path / 'other.db'}", n_trials=6, startup_trials=2)
    whole, _ = open_book(steady, tmp_path, "steady", IDENTITY, 10, True)
    whole.fill({"a": 0.5})
    found = [draw(opens(startup_trials=2)) for _ in range(3)]
    opens().put_back(taken(opens(startup_trials=2)))
    found += [draw(opens(startup_trials=2)) for _ in range(3)]
    assert found == [draw(whole) for _ in range(6)]


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({**IDENTITY, "objective": "calmar"}, "another objective (sharpe, now calmar)"),
        ({**IDENTITY, "space": '{"a": "0 to 2"}'}, "another space (a: 0 to 1, now 0 to 2)"),
        ({**IDENTITY, "space": '{"a": "0 to 1", "b": "0 to 2"}'}, "another space (b: not searched, now 0 to 2)"),
    ],
)
def test_a_study_that_is_another_is_refused(identity: dict[str, str], words: str, tmp_path: Path) -> None:
    open_book(TuneConfig(), tmp_path, "mine", IDENTITY, 10, True)
    with pytest.raises(ConfigError) as caught:
        open_book(TuneConfig(), tmp_path, "mine", identity, 10, False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "storage",
    [
        "postgresql+psycopg://me:secret@127.0.0.1:1/none",
        "nonsense",
        "postgresql+psycopg://me:secret@127.0.0.1:port/none",
        "postgresql+psycopg://127.0.0.1:1/none?user=me&password=secret",
        "postgresql:me:secret@127.0.0.1/none",
        "postgresql://me:secret",
        "sqlite:////none/such/folder/trials.db",
        "oracle://me:secret@127.0.0.1/none",
        "journal:/dev/null/trials.log",
    ],
)
def test_a_storage_that_cannot_be_used_is_named_without_its_password(storage: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_book(TuneConfig(storage=storage), tmp_path, "mine", IDENTITY, 10, True)
    said = str(caught.value)
    assert said.startswith("cannot use the storage ")
    assert "secret" not in said
    assert "\n" not in said


def test_a_study_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no study mine"):
        open_book(TuneConfig(), tmp_path, "mine", IDENTITY, 10, False)


@pytest.mark.parametrize("pruner", ["median", "hyperband", "none"])
def test_pruning_has_no_meaning_for_several_objectives(pruner: str) -> None:
    one, both = (
        study.pruner_of(TuneConfig.model_validate({"pruner": pruner, "objective": names}), 20)
        for names in ("sharpe", "sharpe,cvar")
    )
    assert isinstance(both, optuna.pruners.NopPruner)
    assert isinstance(one, optuna.pruners.NopPruner) == (pruner == "none")
