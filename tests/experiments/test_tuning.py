"""A search: its trials see no test window and come out the same again; it goes on where it was stopped."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from optuna.trial import TrialState

from finflow.cli import main
from finflow.config import OBJECTIVES, RANKING_OBJECTIVES, Config, dump_config, load_config
from finflow.errors import ConfigError, OutputError, TrainingError
from finflow.evaluation.analysis.decision_quality import rank
from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.backtest_overfitting import overfitting
from finflow.evaluation.statistics.significance_tests import track_of
from finflow.experiments.tasks import ComputeResources
from finflow.experiments.tuning import trial_store, trial_training as trials, tuning
from finflow.experiments.tuning.study import BEST, EXCESS, REASON, UPDATES, begin, decode_returns, stored_study
from finflow.experiments.tuning.study_report import REPORTS, RETURNS
from finflow.experiments.tuning.trial_store import TrialStore
from finflow.experiments.tuning.trial_training import (
    TrialContext,
    cautious_mean,
    measure_objectives,
    run_trial,
    trial_context,
)
from finflow.experiments.tuning.tuning import StudyOutcome, rerun, run_waiting_trials, tune, work
from finflow.training.phases.stopping import request_stop
from finflow.training.trainer import FinFlowTrainer
from tests.commands import refusal
from tests.evaluation.made_up import returns_of
from tests.experiments.test_study import taken
from tests.short_trainings import SHORT, config_in, write_prices

pytestmark = pytest.mark.usefixtures("quick_reports")
GAMMA = {"bcell.gamma": {"low": 0.9, "high": 0.99}}
SPACE = {
    "bcell.actor_lr": {"low": 1e-4, "high": 1e-2, "log": True},
    **GAMMA,
    "bcell.n_quantiles": {"choices": [4, 2]},  # 2 is refused: there would be none left of those that are kept
}
SMALL = {
    **SHORT,
    "market.source": "csv",
    "market.train_end": "2011-06-30",
    "market.validation_end": "2011-10-31",
    "market.test_end": "2012-02-29",
    "train.validation_updates": 8,
    "evaluation.protocol.validation_share": 0.05,  # a month: backtests of longer windows are most of a training
    "bcell.dropped_quantiles": 2,
    "evaluation.protocol.purge": 5,
    "tune.folds": 1,
    "tune.seeds": 1,
    "tune.n_trials": 6,
    "tune.pruner": "none",
    "tune.space": SPACE,
}
BARS = 900
HERE = ComputeResources()
RUNNING = """select number, value_json from trials join trial_user_attributes using (trial_id)
where key = 'worker' and state = 'RUNNING'"""


def made(folder: Path, **changes: object) -> Config:
    """A search whose trials take a second; keys in keyword form."""
    path = write_prices(folder / "prices.csv", BARS)
    return config_in(folder, {**SMALL, "market.path": str(path)}, **changes)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, StudyOutcome, list[str]]:
    """A search that is over, with pictures in its report, and what it told."""
    config = made(tmp_path_factory.mktemp("study"))
    said: list[str] = []
    return config, tune(config, None, HERE, said.append), said


@pytest.fixture(scope="module")
def outcome(found: tuple[Config, StudyOutcome, list[str]]) -> StudyOutcome:
    return found[1]


def course(
    context: TrialContext, config: Config, scratch: Path
) -> tuple[tuple[float, ...], list[tuple[int, tuple[float, ...]]]]:
    """Values of a trial, and what it was worth on its way."""
    told: list[tuple[int, tuple[float, ...]]] = []
    result = run_trial(context, config, scratch, lambda level, values, updates: told.append((level, values)))
    return result.values, told


# --- what a trial may see


def test_no_bar_of_the_test_window_moves_a_bit_of_a_trial(tmp_path: Path) -> None:
    def changed_from(bar: int, name: str) -> Config:
        path = write_prices(tmp_path / name, BARS, changed=np.arange(bar, BARS))
        return made(tmp_path, tune__objective="sharpe,dsr,ndcg,rank_ic", market__path=str(path))

    config = made(tmp_path, tune__objective="sharpe,dsr,ndcg,rank_ic")
    context = trial_context(config, ("bcell.gamma",), 6)
    first = course(context, config, tmp_path / "a")
    cut = context.panel.n_bars
    assert str(context.panel.dates[-1]) <= "2011-10-31"
    hidden = changed_from(cut, "hidden.csv")
    assert course(trial_context(hidden, ("bcell.gamma",), 6), hidden, tmp_path / "b") == first
    told = changed_from(cut - 9, "told.csv")
    assert course(trial_context(told, ("bcell.gamma",), 6), told, tmp_path / "c") != first


def test_a_trial_that_reaches_for_the_test_window_is_stopped(tmp_path: Path) -> None:
    config = made(tmp_path)
    context = trial_context(config, (), 6)
    training_data = context.folds[0].training_data(context.panel, config)
    with pytest.raises(ValueError, match="no test window"):
        training_data.held_out_process()
    with pytest.raises(ValueError, match="no test window"):
        FinFlowTrainer(config, training_data=training_data).train()
    with pytest.raises(IndexError):
        _ = context.panel.close[context.panel.n_bars]


def test_a_trial_is_judged_after_what_it_learned_from_and_chose_by(tmp_path: Path) -> None:
    for folds in (1, 2):
        config = made(tmp_path, tune__folds=folds, evaluation__protocol__first_share=0.6)
        context = trial_context(config, (), 6)
        assert len(context.folds) == folds
        for fold in context.folds:
            (seen,), (judged,) = fold.pieces, fold.tests
            assert seen.stop + 5 == judged.start
            assert fold.validation > 0
        assert context.folds[-1].tests[0].stop == context.panel.n_bars
    alone = trial_context(made(tmp_path), (), 6).folds[0].tests[0]
    assert str(context.panel.dates[alone.start]) == "2011-07-01"


# --- a study


def test_every_trial_is_there_once_and_those_that_cannot_be_trained_say_why(
    found: tuple[Config, StudyOutcome, list[str]],
) -> None:
    _, outcome, said = found
    store = begin(stored_study(outcome.folder), outcome.folder).store
    assert [trial.number for trial in store.trials] == list(range(6))
    failed = [trial for trial in store.trials if trial.state == TrialState.FAIL]
    for trial in failed:
        assert trial.params["bcell.n_quantiles"] == 2
        assert "bcell.dropped_quantiles = 2 must be below" in trial.user_attrs[REASON]
    assert 0 < len(failed) < 6
    assert store.counts.complete == 6 - len(failed)
    assert store.trials[0].params == {"bcell.actor_lr": 3e-3, "bcell.gamma": 0.99, "bcell.n_quantiles": 4}
    assert sum(line.startswith("trial ") for line in said) == 6
    assert f"6 trials: {6 - len(failed)} completed, 0 stopped early, {len(failed)} failed" in outcome.lines
    assert not (outcome.folder / "scratch").exists()
    assert (outcome.folder / "study.yaml").stat().st_mode & 0o777 == 0o600  # it may name a storage


def test_any_trial_done_again_alone_gives_the_same_bits(outcome: StudyOutcome) -> None:
    config = stored_study(outcome.folder)
    states = {trial.number: trial.state for trial in begin(config, outcome.folder).store.trials}
    done = [number for number, state in states.items() if state == TrialState.COMPLETE]
    failed = [number for number, state in states.items() if state == TrialState.FAIL]
    for number in (done[0], done[-1], failed[0]):
        (line,) = rerun(config, outcome.folder, number)
        assert line.endswith("bit for bit as recorded")
    assert not (outcome.folder / "scratch").exists()
    with pytest.raises(ConfigError, match="no such trial"):
        rerun(config, outcome.folder, 99)


def test_a_trial_that_was_not_recorded_to_its_end_is_not_done_again(tmp_path: Path) -> None:
    begun = begin(made(tmp_path))
    begun.store.requeue(taken(begun.store))
    with pytest.raises(ConfigError, match=r"--trial 0: it was stopped .* waited again as trial 6: name that"):
        rerun(begun.context.config, begun.folder, 0)
    begun.store.study.tell(taken(begun.store), state=TrialState.FAIL)
    with pytest.raises(ConfigError, match="--trial 6: its worker was lost each time, and nothing was recorded"):
        rerun(begun.context.config, begun.folder, 6)


def test_a_trial_is_done_again_here_and_now_and_one_that_comes_out_otherwise_is_told(
    outcome: StudyOutcome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--workers", "2"], ["--cluster", "auto"], ["--dry-run"]):
        again = ("--mode", "tune", "--resume", str(outcome.folder), "--trial", "0", *option)
        assert "--trial does one trial again, here" in refusal(capsys, *again)
    honest = trials.measure_objectives
    monkeypatch.setattr(
        trials, "measure_objectives", lambda *given: tuple(np.nextafter(value, 9.0) for value in honest(*given))
    )
    with pytest.raises(TrainingError, match="trial 0 gave another result: "):
        rerun(stored_study(outcome.folder), outcome.folder, 0)


def test_the_best_says_among_how_many_it_was_chosen_and_is_taken_by_a_training(
    found: tuple[Config, StudyOutcome, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, outcome, _ = found
    best = load_config(outcome.folder / BEST, environ={})
    done = [trial for trial in begin(stored_study(outcome.folder), outcome.folder).store.trials if trial.values]
    chosen = max(done, key=lambda trial: trial.values[0])
    assert best.evaluation.configurations_tried == len(done)
    assert best.bcell.gamma == chosen.params["bcell.gamma"]
    assert best.bcell.actor_lr == chosen.params["bcell.actor_lr"]
    assert best.train == config.train
    monkeypatch.chdir(tmp_path)
    command = ["--mode", "train", "--config", str(outcome.folder / BEST), "--set", "evaluation.sweeps=false"]
    assert main([*command, "--set", f"output.logs_dir={tmp_path / 'logs'}"]) == 0
    (report,) = tmp_path.glob("logs/*/reports/metrics.json")
    tries = json.loads(report.read_text("utf-8"))["verdict"]["tries"]
    assert tries["configurations"] == len(done)


def test_the_report_shows_the_study_and_the_luck_of_its_choice(outcome: StudyOutcome) -> None:
    page = outcome.report.read_text("utf-8")
    for anchor in ("history", "slices", "parallel", "courses", "choice", "failed", "space", "settings"):
        assert f'id="{anchor}"' in page
    assert "http" not in page.replace("http-equiv", "")
    numbers = json.loads((outcome.folder / REPORTS / "study.json").read_text("utf-8"))
    with np.load(outcome.folder / REPORTS / RETURNS) as kept:
        excess, which = kept["excess"], kept["trials"].tolist()
    assert numbers["choice"]["overfitting"]["pbo"] == overfitting(excess).pbo
    study = begin(stored_study(outcome.folder), outcome.folder).store
    context = trial_context(stored_study(outcome.folder), (), 6)
    for column, number in enumerate(which):
        own = excess[:, column]
        trial = study.study.trials[number]
        np.testing.assert_array_equal(own, decode_returns(trial.user_attrs[EXCESS]))
        sharpe = np.sqrt(252) * own.mean() / own.std(ddof=1)
        assert sharpe == pytest.approx(trial.values[0], rel=1e-5)
    assert len(excess) == len(context.folds[0].tests[0]) - 1
    assert numbers["summary"]["tried"] == len(which)


# --- going on


@pytest.mark.usefixtures("no_study_pictures")
def test_a_study_goes_on_to_a_greater_number(outcome: StudyOutcome) -> None:
    before = stored_study(outcome.folder)
    more = load_config(outcome.folder / "study.yaml", {"tune.n_trials": 7}, environ={})
    again = tune(more, outcome.folder, HERE, lambda line: None)
    assert again.folder == outcome.folder
    assert begin(more, outcome.folder).store.counts.finished == 7
    assert tune(before, outcome.folder, HERE, lambda line: None).lines[0].startswith("7 trials: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tune.space={bcell.gamma: {low: 0.5, high: 0.99}}", "another space (bcell.actor_lr: 0.0001 to 0.01, log"),
        ("tune.objective=calmar", "another objective (sharpe, now calmar)"),
        ("market.start=2009-08-03", "another market ("),
        ("tune.seeds=2", "another tune.seeds (1 from 0, now 2 from 0)"),
        ("train.online_episodes=5", "another configuration ("),
    ],
)
def test_a_study_keeps_what_makes_its_trials_comparable(
    change: str, words: str, outcome: StudyOutcome, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = (outcome.folder / "study.yaml").read_bytes()
    said = refusal(capsys, "--mode", "tune", "--resume", str(outcome.folder), "--set", change)
    assert words in said
    assert (outcome.folder / "study.yaml").read_bytes() == kept


@pytest.mark.usefixtures("no_study_pictures")
def test_ctrl_c_leaves_a_study_that_goes_on(tmp_path: Path) -> None:
    config = made(tmp_path, tune__n_trials=1)
    request_stop()
    with pytest.raises(KeyboardInterrupt, match=r"0 of 1 trials are over; to continue: .* --resume .*/logs/studies/"):
        tune(config, None, HERE, lambda line: None)
    (folder,) = (tmp_path / "logs" / "studies").iterdir()
    again = tune(stored_study(folder), folder, HERE, lambda line: None)
    assert again.lines[0] == "1 trials: 1 completed, 0 stopped early, 0 failed"


@pytest.mark.timeout(600)  # where others take the processor
def test_workers_that_are_killed_lose_no_finished_trial_and_the_count_is_exact(tmp_path: Path) -> None:
    """One worker is killed in the middle of a trial, then everything is, and then the study goes on."""
    config = made(tmp_path, tune__n_trials=3, train__online_episodes=8, tune__space=GAMMA)
    (tmp_path / "tune.yaml").write_text(dump_config(config))
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "main.py"), "--mode", "tune", "--config", str(tmp_path / "tune.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen([*command, "--workers", "2"], env=environment, stdout=said, stderr=said)
        try:
            first = _wait_for(tmp_path, lambda states, workers: len(workers) > 0)
            victim = next(iter(first[1].values()))
            os.kill(victim, signal.SIGKILL)
            states, _ = _wait_for(tmp_path, lambda states, workers: "COMPLETE" in states.values())
        finally:
            process.kill()
            process.wait()
    kept = {number for number, state in states.items() if state == "COMPLETE"}
    (folder,) = (tmp_path / "logs" / "studies").iterdir()
    tuning_again = begin(stored_study(folder), folder)
    before = {trial.number: trial.values for trial in tuning_again.store.trials if trial.state == TrialState.COMPLETE}
    assert kept <= before.keys()
    until = time.monotonic() + 30.0
    while tuning_again.store.counts.running and time.monotonic() < until:  # workers end with their parent
        tuning_again.store.requeue_lost()
        time.sleep(0.1)
    run_waiting_trials(tuning_again, lambda line: None)
    counts = tuning_again.store.counts
    assert (counts.complete, counts.all) == (3, 3)
    after = {trial.number: trial.values for trial in tuning_again.store.trials}
    assert {number: after[number] for number in before} == before
    slots = [trial.user_attrs["slot"] for trial in tuning_again.store.trials]
    assert sorted(slots) == list(range(3))


def _wait_for(
    folder: Path, ready: Callable[[dict[int, str], dict[int, int]], bool]
) -> tuple[dict[int, str], dict[int, int]]:
    """Look into the storage from outside until it is as wanted: trial -> state, running trial -> process."""
    until = time.monotonic() + 240.0
    while time.monotonic() < until:
        time.sleep(0.2)
        for path in folder.glob("logs/studies/*/study.db"):
            try:
                with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as connection:
                    states = dict(connection.execute("select number, state from trials"))
                    workers = {number: json.loads(text)["pid"] for number, text in connection.execute(RUNNING)}
            except sqlite3.OperationalError:
                continue
            if ready(states, workers):
                return states, workers
    pytest.fail((folder / "said.txt").read_text())


def test_a_study_that_was_not_begun_to_the_end_can_be_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = made(tmp_path, tune__storage=f"sqlite:///{tmp_path / 'trials.db'}", tune__name="mine")

    def stop(store: TrialStore, first: object) -> None:
        store.study.enqueue_trial({})
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrialStore, "fill", stop)
        with pytest.raises(KeyboardInterrupt):
            begin(config)
    assert not list(tmp_path.glob("logs/studies/*"))
    assert begin(config).store.counts.all == 6


# --- other machines


def test_a_storage_that_other_machines_do_not_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["here", "there", "there", "gone"]
    nodes = [{"NodeManagerHostname": name, "Alive": name != "gone"} for name in names]
    joined = nullcontext(SimpleNamespace(nodes=lambda: nodes))
    monkeypatch.setattr(tuning, "connected", lambda resources: joined)
    for storage in (None, f"sqlite:///{tmp_path / 'trials.db'}"):
        with pytest.raises(ConfigError, match="the cluster has 2 machines, and SQLite keeps trials on one"):
            tune(made(tmp_path, tune__storage=storage), None, ComputeResources(cluster="auto"))
    assert not (tmp_path / "logs").exists()


def test_a_worker_elsewhere_leaves_nothing_there(tmp_path: Path) -> None:
    config = made(tmp_path, tune__storage=f"journal:{tmp_path / 'trials.log'}", tune__n_trials=1, tune__space=GAMMA)
    begun = begin(config)
    elsewhere = tmp_path / "elsewhere"
    assert work(begun.context, elsewhere) == {"trials": 1}
    assert begun.store.counts.complete == 1
    assert not elsewhere.exists()


# --- what goes wrong in a trial


class Failing:
    """Trials that fail, one after another, before others are done as ever."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self, *given: Any) -> trials.TrialResult:
        if self.errors:
            raise self.errors.pop(0)
        return run_trial(*given)


@pytest.mark.usefixtures("no_study_pictures")
def test_a_trial_that_fails_is_recorded_and_the_study_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(tmp_path, tune__n_trials=4, tune__space=GAMMA)
    errors = (TrainingError("the guard gave up"), RuntimeError("a fault\nof torch"), FloatingPointError("nan"))
    monkeypatch.setattr(tuning, "run_trial", Failing(*errors))
    outcome = tune(config, None, HERE, lambda line: None)
    assert outcome.lines[0] == "4 trials: 1 completed, 0 stopped early, 3 failed"
    found = begin(stored_study(outcome.folder), outcome.folder).store.trials
    reasons = [trial.user_attrs.get("reason") for trial in found]
    assert reasons == ["the guard gave up", "RuntimeError: a fault of torch", "FloatingPointError: nan", None]


def test_a_disk_at_fault_fails_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(tmp_path, tune__n_trials=1)
    monkeypatch.setattr(tuning, "run_trial", Failing(OutputError("cannot write: no space")))
    with pytest.raises(OutputError, match="no space"):
        tune(config, None, HERE, lambda line: None)
    (folder,) = (tmp_path / "logs" / "studies").iterdir()
    counts = begin(stored_study(folder), folder).store.counts
    assert (counts.waiting, counts.all) == (1, 1)


def test_an_objective_that_is_no_number_is_a_failure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = made(tmp_path, tune__n_trials=1)
    monkeypatch.setattr(trials, "measure_objectives", lambda *given: (float("nan"),))
    with pytest.raises(TrainingError, match="none of 1 trials completed: the first because sharpe of fold 1"):
        tune(config, None, HERE, lambda line: None)


# --- pruning, several objectives


@pytest.mark.usefixtures("no_study_pictures")
def test_a_trial_that_falls_behind_is_stopped_and_comes_to_the_same_point_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials are worth less and less, by their number alone."""
    worth = iter(range(100, 0, -1))
    now = {"worth": 0.0}
    honest = trials.TrialRun.__init__

    def count(self: trials.TrialRun, *given: Any) -> None:
        now["worth"] = float(next(worth))
        honest(self, *given)

    monkeypatch.setattr(trials.TrialRun, "__init__", count)
    monkeypatch.setattr(trials, "measure_objectives", lambda *given: (now["worth"],))
    monkeypatch.setattr(trial_store, "PRUNED_AFTER", 2)
    changes = {"tune__pruner": "median", "tune__startup_trials": 2, "tune__n_trials": 4}
    config = made(tmp_path, **changes, tune__space=GAMMA)
    outcome = tune(config, None, HERE, lambda line: None)
    assert outcome.lines[0] == "4 trials: 2 completed, 2 stopped early, 0 failed"
    store = begin(stored_study(outcome.folder), outcome.folder).store
    whole, cut = (store.trials[number].user_attrs[UPDATES] for number in (0, 3))
    assert 0 < cut < whole
    assert load_config(outcome.folder / BEST, environ={}).evaluation.configurations_tried == 4
    worth = iter([97.0])
    assert "stopped at level" in rerun(stored_study(outcome.folder), outcome.folder, 3)[0]


@pytest.mark.usefixtures("no_study_pictures")
def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    changes = {"tune__n_trials": 3, "tune__pruner": "median", "tune__space": None}
    config = made(tmp_path, tune__objective="sharpe,calmar", **changes)
    said: list[str] = []
    outcome = tune(config, None, HERE, said.append)
    assert any("cannot be pruned" in line for line in said)
    front = [load_config(path, environ={}) for path in (outcome.folder / "pareto").iterdir()]
    assert front
    assert all(one.evaluation.configurations_tried == 3 for one in front)
    assert load_config(outcome.folder / BEST, environ={}) in front


# --- the command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--storage", "postgresql://me:secret@db:port/none"], "'postgresql:...': it is not the URL of a database"),
        (["--set", "tune.space={bcell.gama: {low: 0.9, high: 0.99}}"], "the nearest valid key is bcell.gamma"),
        (["--trial", "3"], "--trial belongs to --mode tune with --resume"),
        (["--universe", "some.txt"], "--universe belongs to --mode train"),
        (["--resume", "nowhere"], "nowhere is not the folder of a study"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune.yaml").write_text(dump_config(made(tmp_path)))
    config = [] if "--resume" in arguments else ["--config", "tune.yaml"]
    said = refusal(capsys, "--mode", "tune", *config, *arguments)
    assert words in said
    assert "secret" not in said
    assert not list(tmp_path.glob("logs/studies/*"))


def test_the_seeds_of_a_search_are_those_of_its_trials_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Config] = []

    def search(config: Config, *others: object) -> StudyOutcome:
        given.append(config)
        return StudyOutcome(tmp_path, tmp_path / "report.html", [])

    monkeypatch.setattr(tuning, "tune", search)
    assert main(["--mode", "tune", "--seeds", "4"]) == 0
    assert given == [load_config(None, {"tune.seeds": 4}, environ={})]


def test_a_dry_run_counts_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tune.yaml").write_text(dump_config(made(tmp_path, tune__seeds=3)))
    before = sorted(tmp_path.rglob("*"))
    assert main(["--mode", "tune", "--config", str(tmp_path / "tune.yaml"), "--dry-run", "--workers", "2"]) == 0
    said = capsys.readouterr().out
    assert said == "6 trials of 3 trainings each (1 folds, 3 seeds): 18 trainings over 3 searched keys\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_stop_tells_a_command_that_a_shell_takes_also_where_the_storage_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["main.py"])
    begun = begin(made(tmp_path, tune__name="mine", output__logs_dir=str(tmp_path / "my logs")))
    command = f"python main.py --mode tune --resume '{begun.folder}'"
    assert tuning._resume_hint(begun) == f"stopped; 0 of 6 trials are over; to continue: {command}"
    assert command in (begun.folder / "study.yaml").read_text()
    monkeypatch.setattr(begun.store.study, "get_trials", Mock(side_effect=OSError("the server is gone")))
    assert tuning._resume_hint(begun) == f"stopped; to continue: {command}"
    with pytest.raises(ConfigError, match=r"cannot use the storage .*: the server is gone"):
        tuning._work(begun, HERE, print)


def test_a_fault_of_the_report_is_none_of_the_storage(outcome: StudyOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(stored_study(outcome.folder), outcome.folder)
    monkeypatch.setattr(tuning, "report_study", Mock(side_effect=OSError("no font")))
    with pytest.raises(OSError, match="no font"):
        tuning.conclude(begun)


backtest = partial(returns_of, "mine", cash=1e-4)


def test_objectives_are_the_metrics_of_the_report_in_the_order_asked_for() -> None:
    rng = np.random.default_rng(0)
    run, base = (backtest(rng.normal(5e-4, 0.01, 300)) for _ in range(2))
    found = measure_objectives(OBJECTIVES, run, 0.05, base, 20)
    assert found[:4] == (
        metrics.sharpe(run.returns, run.cash_returns),
        metrics.sortino(run.returns, run.cash_returns),
        metrics.calmar(run.returns),
        metrics.cvar(run.returns, 0.05),
    )
    assert found[4] == track_of(run.returns - base.returns).dsr(20, 1 / 299)
    assert measure_objectives(("cvar", "sharpe"), run, 0.05) == (found[3], found[0])
    with pytest.raises(ValueError, match="over equal weight"):
        measure_objectives(("dsr",), run, 0.05)


def test_weights_are_judged_as_a_ranking() -> None:
    """Weights that foretell every order measure 1; equal weights have no rank correlation; without a ranking none."""
    rng = np.random.default_rng(2)
    forward = rng.normal(0.0, 0.01, (40, 5))
    foretold = rank(forward - forward.min(), forward, 2)
    run = backtest(rng.normal(5e-4, 0.01, 300))
    assert measure_objectives(RANKING_OBJECTIVES, run, 0.05, ranking=foretold) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    alike = measure_objectives(RANKING_OBJECTIVES, run, 0.05, ranking=rank(np.full((40, 5), 0.2), forward, 2))
    assert np.isfinite(alike[:3]).all()
    assert math.isnan(alike[3])
    assert all(math.isnan(value) for value in measure_objectives(RANKING_OBJECTIVES, run, 0.05))


def test_what_has_no_risk_is_no_number() -> None:
    run = backtest(np.full(300, 1e-4))
    assert all(math.isnan(value) for value in measure_objectives(("sharpe", "calmar", "dsr"), run, 0.05, run, 3))


def test_several_trainings_count_by_their_mean_less_half_a_deviation() -> None:
    assert cautious_mean([1.0, 3.0]) == pytest.approx(2.0 - 0.5 * math.sqrt(2.0))
    assert cautious_mean([1.5]) == 1.5
    assert math.isnan(cautious_mean([1.0, math.nan]))
