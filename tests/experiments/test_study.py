"""The trials of a study: each is taken once, and none is lost, whatever happens to those who do them."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from finflow.config import TuneConfig, load_config
from finflow.config.loading import values_by_key
from finflow.errors import ConfigError
from finflow.evaluation.page.page_numbers import look_up
from finflow.experiments.task_progress import this_host
from finflow.experiments.tuning import study_report, trial_store
from finflow.experiments.tuning.study import EXCESS, REASON, UPDATES, encode_returns, space_of
from finflow.experiments.tuning.study_report import NUMBERS, PAGE, StudyData, draw_study_figures, study_files
from finflow.experiments.tuning.trial_store import TrialStore, open_store

pytestmark = pytest.mark.usefixtures("no_study_pictures")
IDENTITY = {"objective": "sharpe", "space": '{"a": "0 to 1"}'}
Opens = Callable[..., TrialStore]
EACH_STORAGE = pytest.mark.parametrize("storage", ["sqlite", "journal", "postgresql"], indirect=True)


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where trials are kept: SQLite, unless a test asks for each."""
    kind = getattr(request, "param", "sqlite")
    if kind == "postgresql":
        return request.getfixturevalue("postgres")
    return f"journal:{tmp_path / 'trials.log'}" if kind == "journal" else f"sqlite:///{tmp_path / 'trials.db'}"


@pytest.fixture
def opens(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Opens a study of its own in the storage, or the same once more."""
    monkeypatch.setattr(trial_store, "HEARTBEAT", 1.0)
    name = f"study-{tmp_path.name}"

    def make(create: bool = True, identity: dict[str, str] = IDENTITY, **settings: object) -> TrialStore:
        tune = TuneConfig.model_validate({"storage": storage, "n_trials": 6, **settings})
        return open_store(tune, tmp_path, name, identity, 10, {"a": 0.5} if create else None)

    return make


Workers = Callable[..., tuple[multiprocessing.Process, Connection]]


def work(storage: str, folder: Path, hang: bool, told: Connection) -> None:
    """Do trials until none waits, and tell the number of each; or hang in the first."""
    store = open_store(TuneConfig(storage=storage), folder, f"study-{folder.name}", IDENTITY, 10, None)
    while (trial := store.claim()) is not None:
        with store.heartbeat(trial):
            value = trial.suggest_float("a", 0.0, 1.0)
            told.send(trial.number)
            if hang:
                time.sleep(600)
            store.study.tell(trial, value)


@pytest.fixture
def workers(storage: str, tmp_path: Path) -> Iterator[Workers]:
    """Starts processes that do trials, each with what it tells."""
    started: list[multiprocessing.Process] = []

    def start(hang: bool = False) -> tuple[multiprocessing.Process, Connection]:
        copied = multiprocessing.get_context("fork")  # which has imported everything already
        said, told = copied.Pipe(duplex=False)
        process = copied.Process(target=work, args=(storage, tmp_path, hang, told))
        process.start()
        told.close()
        started.append(process)
        return process, said

    yield start
    for process in started:
        process.kill()
        process.join()


def numbers_of(said: Connection) -> Iterator[int]:
    """Numbers of the trials that a worker does, until it ends."""
    with contextlib.suppress(EOFError):
        while True:
            yield said.recv()


def taken(store: TrialStore) -> Trial:
    trial = store.claim()
    assert trial is not None
    return trial


@EACH_STORAGE
def test_several_workers_do_each_trial_once(opens: Opens, workers: Workers) -> None:
    store = opens(n_trials=8)
    told = [said for _, said in (workers(), workers())]
    assert sorted(number for said in told for number in numbers_of(said)) == list(range(8))
    counts = opens(create=False, n_trials=8).counts
    assert (counts.complete, counts.finished, counts.all) == (8, 8, 8)
    assert store.study.trials[0].params == {"a": 0.5}


@EACH_STORAGE
def test_a_killed_workers_trial_waits_again_and_nothing_that_was_finished_is_lost(
    opens: Opens, workers: Workers
) -> None:
    store = opens()
    first = taken(store)
    with store.heartbeat(first):
        first.suggest_float("a", 0.0, 1.0)
        store.study.tell(first, 0.25)
    process, said = workers(hang=True)
    number = said.recv()
    assert store.requeue_lost() == []  # it is alive
    process.kill()
    process.join()
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
ON_POLICY = {"online.clip", "online.gae_lambda", "online.entropy_coefficient"}


@pytest.mark.parametrize("algorithm", ["sac", "ppo", "trpo", "a2c"])
def test_an_algorithm_is_searched_over_what_it_reads_around_its_defaults(algorithm: str) -> None:
    """Every default lies in its range, so that a study can begin with the configuration as it is."""
    config = load_config(None, {"online.algorithm": algorithm}, {})
    space, read, other = space_of(config), OFF_POLICY, ON_POLICY
    if algorithm != "sac":
        read, other = other, read
    assert set(space) >= read | {"bcell.actor_lr", "bcell.critic_lr", "bcell.n_quantiles"}
    assert not set(space) & other
    assert list(space) == sorted(space)
    values = values_by_key(config)
    for key, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            assert values[key] in distribution.choices, key
        else:
            assert isinstance(distribution, FloatDistribution | IntDistribution)
            assert distribution.low <= values[key] <= distribution.high, key


def test_a_space_that_is_given_is_the_whole_space() -> None:
    given = {"tune.space": {"bcell.expansion": {"low": 0, "high": 32, "step": 8}}}
    space = space_of(load_config(None, given, {}))  # type: ignore[arg-type]
    assert list(space) == ["bcell.expansion"]
    assert space["bcell.expansion"] == IntDistribution(0, 32, step=8)


SPACE: dict[str, BaseDistribution] = {
    "bcell.hidden_dim": CategoricalDistribution([8, 16]),
    "bcell.tau": FloatDistribution(0.01, 0.1, log=True),
}


def trial(number: int, state: TrialState, **known: Any) -> FrozenTrial:
    made = create_trial(state=state, **known)
    made.number = number
    return made


def study(objective: tuple[str, ...] = ("sharpe",), count: int = 8) -> StudyData:
    rng = np.random.default_rng(2)
    trials = [
        trial(
            number,
            TrialState.COMPLETE,
            values=rng.normal(size=len(objective)).tolist(),
            params={"bcell.tau": float(rng.uniform(0.01, 0.1)), "bcell.hidden_dim": int(rng.choice([8, 16]))},
            distributions=SPACE,
            intermediate_values={1: 0.1, 2: float(rng.normal())} if len(objective) == 1 else {},
            user_attrs={UPDATES: 100, EXCESS: encode_returns(rng.normal(size=320))},
        )
        for number in range(count)
    ]
    params = {"bcell.tau": 0.05, "bcell.hidden_dim": 8}
    stopped = {"params": params, "distributions": SPACE, "user_attrs": {UPDATES: 20}}
    values = {} if len(objective) > 1 else {"intermediate_values": {1: -1.0}}
    trials.append(trial(count, TrialState.PRUNED, **stopped, **values))
    reason = {REASON: "<script>the guard gave up</script>"}
    trials.append(trial(count + 1, TrialState.FAIL, user_attrs=reason))
    return StudyData(
        title="Search for <b>sharpe</b>",
        subtitle="10 trials",
        objective=objective,
        trials=tuple(trials),
        space=SPACE,
        tried=9,
        facts={"code": "c0de"},
    )


def test_every_number_on_the_page_is_in_the_file() -> None:
    files = study_files(study())
    page, numbers = str(files[PAGE]), json.loads(files[NUMBERS])
    cells = re.findall(r'data-path="([^"]+)" data-value="([^"]+)"', page)
    assert len(cells) > 15
    for path, value in cells:
        assert value == repr(look_up(numbers, tuple(path.split("/"))))
    counts = {"all": 10, "complete": 8, "failed": 1, "pruned": 1, "tried": 9, "updates": 820}
    best = int(np.argmax([one.values[0] for one in study().complete]))
    assert numbers["summary"] == {**counts, "best": best}
    assert numbers["trials"][8]["course"] == {"1": -1.0}


def test_the_page_stands_alone_and_believes_nobody() -> None:
    page = str(study_files(study())[PAGE])
    assert "<script>" not in page
    assert "<b>sharpe" not in page
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize(
    ("objective", "views"),
    [
        (("sharpe",), {"history", "importances", "slices", "parallel", "courses", "choice-logits"}),
        (("sharpe", "cvar"), {"history", "history-2", "front", "importances-2", "slices", "parallel"}),
    ],
)
def test_there_is_a_figure_for_each_view(
    monkeypatch: pytest.MonkeyPatch, objective: tuple[str, ...], views: set[str]
) -> None:
    monkeypatch.setattr(study_report, "draw_study_figures", draw_study_figures)
    files = study_files(study(objective))
    assert {f"{view}.png" for view in views} <= {name for name in files if name.endswith(".png")}
    shown = re.findall(r'id="([^"]+)"', str(files[PAGE]))
    assert len(shown) == len(set(shown))
    assert views <= set(shown)


def test_a_study_without_a_result_has_a_page_that_says_so() -> None:
    data = study()
    empty = replace(data, trials=data.trials[-1:])
    page = str(study_files(empty)[PAGE])
    assert "No trial has a value" in page
    assert "The probability of backtest overfitting cannot be computed" in page
    assert "the guard gave up" in page
