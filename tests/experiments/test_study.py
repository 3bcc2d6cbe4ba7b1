"""The trials of a study: each is taken once, and none is lost, whatever happens to those who do them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, TrialState

from finflow.config import Config, TuneConfig, load_config
from finflow.config.loading import values_by_key
from finflow.errors import ConfigError
from finflow.experiments.task_progress import this_host
from finflow.experiments.tuning import trial_store
from finflow.experiments.tuning.study import space_of
from finflow.experiments.tuning.trial_store import TrialStore, open_store

IDENTITY = {"objective": "sharpe", "space": '{"a": "0 to 1"}'}
WORKER = """
import sys, time
from pathlib import Path
from finflow.config import TuneConfig
from finflow.experiments.tuning import trial_store
from finflow.experiments.tuning.trial_store import open_store
storage, folder, name, hang = sys.argv[1:]
trial_store.HEARTBEAT = 1.0
tune = TuneConfig(storage=storage)
store = open_store(tune, Path(folder), name, {"objective": "sharpe", "space": '{"a": "0 to 1"}'}, 10, None)
print("ready", flush=True)
while (trial := store.claim()) is not None:
    with store.heartbeat(trial):
        value = trial.suggest_float("a", 0.0, 1.0)
        print(trial.number, flush=True)
        if hang == "hang":
            time.sleep(600)
        store.study.tell(trial, value)
"""

Opens = Callable[..., TrialStore]


EACH_STORAGE = pytest.mark.parametrize("storage", ["sqlite", "journal", "postgresql"], indirect=True)


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where trials are kept: SQLite, unless a test asks for each."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'trials.db'}"
    return (
        request.getfixturevalue("postgres") if request.param == "postgresql" else f"journal:{tmp_path / 'trials.log'}"
    )


@pytest.fixture
def opens(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Opens a study of its own in the storage, or the same once more."""
    monkeypatch.setattr(trial_store, "HEARTBEAT", 1.0)
    name = f"study-{tmp_path.name}"

    def make(create: bool = True, identity: dict[str, str] = IDENTITY, **settings: object) -> TrialStore:
        tune = TuneConfig.model_validate({"storage": storage, "n_trials": 6, **settings})
        return open_store(tune, tmp_path, name, identity, 10, {"a": 0.5} if create else None)

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


def taken(store: TrialStore) -> Trial:
    trial = store.claim()
    assert trial is not None
    return trial


@EACH_STORAGE
def test_several_workers_do_each_trial_once(opens: Opens, workers: Callable[..., subprocess.Popen[str]]) -> None:
    store = opens(n_trials=8)
    processes = [workers() for _ in range(2)]
    done = []
    for process in processes:
        said, _ = process.communicate(timeout=120)
        done += [int(word) for word in said.split()[1:]]
    assert sorted(done) == list(range(8))
    counts = opens(create=False, n_trials=8).counts
    assert (counts.complete, counts.finished, counts.all) == (8, 8, 8)
    assert store.study.trials[0].params == {"a": 0.5}


@EACH_STORAGE
def test_a_killed_workers_trial_waits_again_and_nothing_that_was_finished_is_lost(
    opens: Opens, workers: Callable[..., subprocess.Popen[str]]
) -> None:
    store = opens()
    first = taken(store)
    with store.heartbeat(first):
        first.suggest_float("a", 0.0, 1.0)
        store.study.tell(first, 0.25)
    process = workers(hang=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    number = int(process.stdout.readline())
    assert store.requeue_lost() == []  # it is alive
    process.send_signal(signal.SIGKILL)
    process.wait()
    lost = store.study.trials[number].params
    assert store.requeue_lost() == [number]
    assert store.requeue_lost() == []
    counts = store.counts
    assert (counts.complete, counts.running, counts.waiting, counts.all) == (1, 0, 5, 6)
    assert store.study.trials[0].values == [0.25]
    while (trial := store.claim()) is not None:
        with store.heartbeat(trial):
            store.study.tell(trial, trial.suggest_float("a", 0.0, 1.0))
    again = store.study.trials[-1]
    assert (again.params, again.state) == (lost, TrialState.COMPLETE)
    assert (store.counts.complete, store.counts.all) == (6, 6)


@EACH_STORAGE
def test_a_worker_elsewhere_that_sends_no_heartbeat_is_lost(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    store, elsewhere, now = opens(), opens(create=False), [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr(trial_store, "time", clock)
    trial = taken(elsewhere)
    with elsewhere.heartbeat(trial):
        trial.set_user_attr("worker", {"host": "elsewhere", "pid": 1, "born": "1"})
        for _ in range(3):
            assert store.requeue_lost() == []
            beat = alive(store, trial)
            until = time.monotonic() + 30.0
            while alive(store, trial) == beat and time.monotonic() < until:
                time.sleep(0.05)
            now[0] += 3600.0
    assert store.requeue_lost() == []
    now[0] += 5.0
    assert store.requeue_lost() == [trial.number]
    assert (store.counts.waiting, store.counts.all) == (6, 6)


def alive(store: TrialStore, trial: Trial) -> int:
    return int(store.study.trials[trial.number].user_attrs.get("alive", -1))


def test_a_worker_that_is_taken_for_lost_does_not_change_the_count(opens: Opens) -> None:
    store = opens()
    trial = taken(store)
    assert lose_worker(opens(create=False), trial) == [0]
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.report(1.0, 1)
    assert (store.counts.all, store.counts.waiting) == (6, 6)


def lose_worker(store: TrialStore, trial: Trial) -> list[int]:
    """Have a trial's worker be gone, and find that out."""
    trial.set_user_attr("worker", {"host": this_host(), "pid": os.getpid(), "born": "before"})
    return store.requeue_lost()


def test_a_trial_that_loses_every_worker_is_given_up_and_stops_on_purpose_use_up_no_retries(opens: Opens) -> None:
    store = opens()
    for _ in range(5):
        store.requeue(taken(store))
    for _ in range(3):
        trial = taken(store)
        assert lose_worker(store, trial) == [trial.number]
    assert lose_worker(store, taken(store)) == []
    assert (store.counts.failed, store.counts.waiting, store.counts.all) == (1, 5, 6)


def test_a_trial_that_waits_again_keeps_nothing_of_its_course(opens: Opens) -> None:
    """Its worker of before, who is gone, is none of the next one's."""
    store = opens()
    trial = taken(store)
    trial.suggest_float("a", 0.0, 1.0)
    trial.set_user_attr("reason", "the guard gave up")
    assert lose_worker(store, trial) == [0]
    again = taken(store)
    assert store.requeue_lost() == []
    frozen = store.study.trials[again.number]
    assert "reason" not in frozen.user_attrs
    store.requeue(again)  # before it has drawn
    assert taken(store).suggest_float("a", 0.0, 1.0) == 0.5


def test_a_trial_that_waits_again_comes_before_those_that_were_not_begun(opens: Opens) -> None:
    store = opens()
    store.study.tell(taken(store), 1.0)
    store.requeue(taken(store))
    assert [trial_store.slot_of(store.study.trials[taken(store).number]) for _ in range(3)] == [1, 2, 3]


def test_more_trials_are_added_and_none_twice(opens: Opens) -> None:
    opens().study.tell(taken(opens()), 1.0)
    for _ in range(2):
        more = opens(create=False, n_trials=9)
        more.fill({})
        assert (more.counts.all, more.counts.complete) == (9, 1)


def test_what_is_drawn_depends_on_the_trials_before_and_not_on_stops(opens: Opens, tmp_path: Path) -> None:
    def draw(store: TrialStore) -> float:
        trial = taken(store)
        value = trial.suggest_float("a", 0.0, 1.0)
        store.study.tell(trial, value)
        return value

    steady = TuneConfig(storage=f"sqlite:///{tmp_path / 'other.db'}", n_trials=6, startup_trials=2)
    whole = open_store(steady, tmp_path, "steady", IDENTITY, 10, {"a": 0.5})
    store = opens(startup_trials=2)
    found = [draw(store) for _ in range(3)]
    store.requeue(taken(store))
    again = opens(startup_trials=2)
    found += [draw(again) for _ in range(3)]
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
    open_store(TuneConfig(), tmp_path, "mine", IDENTITY, 10, {})
    with pytest.raises(ConfigError) as caught:
        open_store(TuneConfig(), tmp_path, "mine", identity, 10, None)
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
        open_store(TuneConfig(storage=storage), tmp_path, "mine", IDENTITY, 10, {})
    said = str(caught.value)
    assert said.startswith("cannot use the storage ")
    assert "secret" not in said
    assert "\n" not in said


def test_a_study_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no study mine"):
        open_store(TuneConfig(), tmp_path, "mine", IDENTITY, 10, None)


OFF_POLICY = {"bcell.alpha_init", "bcell.cql_alpha", "bcell.expansion", "bcell.tau", "train.online_batch_size"}


def of(algorithm: str) -> Config:
    return load_config(None, {"online.algorithm": algorithm}, {})


def test_soft_actor_critic_is_searched_with_the_decisions_that_it_looks_ahead() -> None:
    space = space_of(of("sac"))
    assert set(space) >= OFF_POLICY | {"bcell.actor_lr", "bcell.critic_lr", "bcell.n_quantiles"}
    assert not any(key.startswith("online.") for key in space)
    assert list(space) == sorted(space)


@pytest.mark.parametrize("algorithm", ["ppo", "trpo", "a2c"])
def test_on_policy_learning_is_searched_without_what_it_does_not_read(algorithm: str) -> None:
    space = space_of(of(algorithm))
    assert not OFF_POLICY & set(space)
    assert {"online.clip", "online.gae_lambda", "online.entropy_coefficient"} <= set(space)


@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_every_default_lies_in_its_range(algorithm: str) -> None:
    """So that a study can begin with the configuration as it is."""
    config = of(algorithm)
    values = values_by_key(config)
    for key, distribution in space_of(config).items():
        assert isinstance(distribution, CategoricalDistribution | FloatDistribution | IntDistribution)
        if isinstance(distribution, CategoricalDistribution):
            assert values[key] in distribution.choices, key
        else:
            assert distribution.low <= values[key] <= distribution.high, key


def test_a_space_that_is_given_is_the_whole_space() -> None:
    given = {"tune.space": {"bcell.expansion": {"low": 0, "high": 32, "step": 8}}}
    space = space_of(load_config(None, given, {}))  # type: ignore[arg-type]
    assert list(space) == ["bcell.expansion"]
    assert space["bcell.expansion"] == IntDistribution(0, 32, step=8)
