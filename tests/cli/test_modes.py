"""Modes: what is called with what, and what is refused. The application behind them is stood in for."""

from __future__ import annotations

import importlib
import signal
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finflow.cli import main
from finflow.config import Config, MarketConfig, config_hash, load_config
from finflow.experiments.jobs.training_jobs import SeedJob
from finflow.market.panel import MarketPanel
from tests.cli.test_output import SUMMARY, Outcome
from tests.commands import refusal

ROOT = Path(__file__).parents[2]
PANEL = MarketPanel(  # whose prices give nothing to remark on
    dates=np.arange("2020-01-01", "2020-01-04", dtype="datetime64[D]"),
    assets=("A", "B"),
    close=np.ones((3, 2)),
    cash_returns=np.zeros(3),
)


class Application:
    """Stands in for training and evaluation, and notes how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcome = Outcome(folder / "run", folder / "run" / "reports" / "report.html", SUMMARY)
        self.stored = Config()  # in every checkpoint
        self.calls: list[tuple[str, Any]] = []
        self.during_training: Callable[[], None] = lambda: None
        self.stop_requested = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        application = self

        class Trainer:
            def __init__(self, config: Config, resume: Path | None = None, pretrained: Path | None = None) -> None:
                application.calls.append(("trainer", (config, resume, pretrained)))
                self.run_folder = application.outcome.run_folder

            def collect_offline_data(self, path: Path | None = None, recollect: bool = False) -> None:
                application.calls.append(("collect", (path, recollect)))

            def train(self) -> Outcome:
                application.calls.append(("train", None))
                application.during_training()
                return application.outcome

            def discard_if_unused(self) -> None:
                pass

            def train_offline(self) -> Outcome:
                application.calls.append(("train_offline", None))
                return application.outcome

        def request_stop() -> None:
            application.stop_requested = True

        def evaluate(
            path: Path, overrides: Mapping[str, object], output: Path | None = None, with_backtest: bool = False
        ) -> Outcome:
            application.calls.append(("evaluate", (path, dict(overrides), output)))
            application.calls.append(("with_backtest", with_backtest))
            return application.outcome

        def backtest(config: Config, names: Sequence[str], output: Path | None = None) -> Outcome:
            application.calls.append(("backtest", (config, list(names))))
            return application.outcome

        def stored(path: Path) -> Config:
            of_a_job = (path / "job.json").is_file()
            return load_config(path / "config.yaml", {}, environ={}) if of_a_job else application.stored

        for name in ("jobs.independent_trainings", "tuning.trial_training"):  # imported later, they would keep the fake
            importlib.import_module(f"finflow.experiments.{name}")
        for name, fake in {
            "trainer.FinFlowTrainer": Trainer,
            "phases.stopping.request_stop": request_stop,
            "judging.evaluations.evaluate_checkpoint": evaluate,
            "judging.evaluations.backtest_strategies": backtest,
            "checkpoints.checkpoint_reader.configuration_of": stored,
        }.items():
            monkeypatch.setattr(f"finflow.training.{name}", fake)

    @property
    def config(self) -> Config:
        """What the trainer was given."""
        (given,) = (values for name, values in self.calls if name == "trainer")
        config: Config = given[0]
        return config

    def called(self, name: str) -> Any:
        (values,) = (values for called, values in self.calls if called == name)
        return values


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Application:
    fake = Application(tmp_path)
    fake.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    return fake


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a checkpoint; the application stands in for what is in it."""
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    (models / "checkpoint_latest.safetensors").touch()
    return tmp_path / "run"


def test_train_trains_and_shows_the_summary_and_the_report(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mode", "train", "--seed", "4"]) == 0
    assert [name for name, _ in application.calls] == ["trainer", "train"]
    assert application.called("trainer") == (load_config(None, {"train.seed": 4}, {}), None, None)
    shown = capsys.readouterr().out
    assert "finflow" in shown
    assert shown.rstrip().endswith(f"report: {application.outcome.report}")


@pytest.mark.parametrize("mode", ["train", "demo"])
def test_behaviour_data_are_collected_anew_on_request(application: Application, mode: str) -> None:
    assert main(["--mode", mode, "--recollect"]) == 0
    assert [name for name, _ in application.calls] == ["trainer", "collect", "train"]
    assert application.called("collect") == (None, True)


def test_demo_trains_with_its_own_configuration(application: Application) -> None:
    assert main(["--mode", "demo", "--seed", "4"]) == 0
    assert application.config == load_config(ROOT / "configs" / "demo.yaml", {"train.seed": 4}, {})


def test_a_resumed_run_has_the_configuration_in_its_checkpoint(application: Application, run: Path) -> None:
    application.stored = load_config(
        None, {"bcell.gamma": 0.9, "market.test_end": "2014-01-01", "market.validation_end": "2012-06-30"}, {}
    )
    assert main(["--mode", "train", "--resume", str(run)]) == 0
    assert application.called("trainer") == (application.stored, run, None)


def test_every_value_in_a_checkpoint_survives_as_it_is(application: Application, run: Path) -> None:
    awkward: Any = {"source": "csv", "path": Path("null"), "benchmark": "[x]", "tickers": ("NO", "123", "1e5", "null")}
    application.stored = Config(market=MarketConfig(**awkward))
    assert main(["--mode", "train", "--resume", str(run)]) == 0
    assert application.config == application.stored


def test_a_resumed_run_may_be_given_its_own_options_again(
    application: Application, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.stored = load_config(None, {"bcell.gamma": 0.9, "bcell.tau": 0.1, "train.seed": 3}, {})
    file = tmp_path / "mine.yaml"
    file.write_text("bcell: {gamma: 0.9}\n", encoding="utf-8")
    monkeypatch.setenv("FINFLOW_BCELL", "{tau: 0.1}")
    assert main(["--mode", "train", "--resume", str(run), "--config", str(file), "--seed", "3"]) == 0
    assert application.config == application.stored


@pytest.mark.parametrize("level", ["command line", "environment", "section in the environment", "file"])
def test_a_resumed_run_refuses_what_would_change_its_results(
    level: str,
    application: Application,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--mode", "train", "--resume", str(run)]
    if level == "command line":
        arguments += ["--set", "bcell.gamma=0.95"]
    elif level == "environment":
        monkeypatch.setenv("FINFLOW_BCELL__GAMMA", "0.95")
    elif level == "section in the environment":
        monkeypatch.setenv("FINFLOW_BCELL", "{gamma: 0.95}")
    else:
        (tmp_path / "mine.yaml").write_text("bcell: {gamma: 0.95}\n", encoding="utf-8")
        arguments += ["--config", "mine.yaml"]
    said = refusal(capsys, *arguments)
    assert said.startswith(f"error: bcell.gamma is 0.95, but the run in {run} has 0.99; a resumed run keeps")
    assert application.calls == []


def test_a_resumed_run_may_change_what_decides_nothing(application: Application, run: Path) -> None:
    changed = ["--set", "train.max_checkpoints=2", "--no-cache", "--set", "output.offline_dir=elsewhere"]
    assert main(["--mode", "train", "--resume", str(run), *changed]) == 0
    assert application.config.train.max_checkpoints == 2
    assert config_hash(application.config) == config_hash(application.stored)


def test_evaluate_judges_a_checkpoint_where_it_lies(application: Application, run: Path) -> None:
    checkpoint = run / "models" / "checkpoint_latest.safetensors"
    assert main(["--mode", "evaluate", "--resume", str(checkpoint)]) == 0
    assert application.called("evaluate") == (checkpoint, {}, None)


@pytest.mark.parametrize(
    ("mode", "sweeps"), [(["evaluate"], False), (["evaluate", "--protocol", "holdout"], False), (["backtest"], True)]
)
def test_a_backtest_of_an_agent_is_its_evaluation_always_with_the_sweeps(
    application: Application, run: Path, mode: list[str], sweeps: bool
) -> None:
    assert main(["--mode", *mode, "--resume", str(run)]) == 0
    assert application.called("evaluate") == (run, {}, None)
    assert application.called("with_backtest") is sweeps


def test_an_evaluation_under_other_conditions_leaves_the_report_of_the_run_alone(
    application: Application, run: Path
) -> None:
    assert main(["--mode", "evaluate", "--resume", str(run), "--set", "env.commission_bps=30"]) == 0
    _, overrides, folder = application.called("evaluate")
    assert overrides == {"env.commission_bps": 30.0}
    assert folder.parent == run / "evaluations"


def test_an_evaluation_can_be_written_elsewhere(application: Application, run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert main(["--mode", "evaluate", "--resume", str(run), "--set", f"output.logs_dir={elsewhere}"]) == 0
    assert application.called("evaluate")[2] == elsewhere / run.name


def test_an_evaluation_takes_the_market_of_a_file_and_leaves_its_learning_aside(
    application: Application, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.stored = load_config(None, {"bcell.hidden_dim": 64, "env.slippage_bps": 2}, {})
    file = tmp_path / "mine.yaml"
    file.write_text("bcell: {hidden_dim: 128}\nenv: {slippage_bps: 9}\n", encoding="utf-8")
    monkeypatch.setenv("FINFLOW_TRAIN__SEED", "7")
    assert main(["--mode", "evaluate", "--resume", str(run), "--config", str(file), "--device", "cpu"]) == 0
    assert application.called("evaluate")[1] == {"env.slippage_bps": 9.0, "train.device": "cpu"}


def test_an_evaluation_hands_on_what_the_command_line_says_of_learning_to_be_refused(
    application: Application, run: Path
) -> None:
    assert main(["--mode", "evaluate", "--resume", str(run), "--seed", "7"]) == 0
    assert application.called("evaluate")[1] == {"train.seed": 7}


def test_an_evaluation_is_checked_against_the_dates_of_its_checkpoint(application: Application, run: Path) -> None:
    application.stored = load_config(
        None, {"market.train_end": "2000-01-01", "market.validation_end": "2002-01-01"}, {}
    )
    assert main(["--mode", "evaluate", "--resume", str(run), "--set", "market.test_end=2004-01-01"]) == 0


def test_an_agent_is_evaluated_on_other_tickers(application: Application, run: Path) -> None:
    assert main(["--mode", "evaluate", "--resume", str(run), "--tickers", "TSLA", "KO"]) == 0
    assert application.called("evaluate")[1] == {"market.source": "yfinance", "market.tickers": ("TSLA", "KO")}


def test_backtest_of_a_named_strategy(application: Application) -> None:
    assert main(["--mode", "backtest", "--strategy", "momentum", "mine:Own", "--set", "env.slippage_bps=9"]) == 0
    assert application.called("backtest") == (load_config(None, {"env.slippage_bps": 9}, {}), ["momentum", "mine:Own"])


def test_open_shows_the_report_when_it_is_written(
    application: Application, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: not opened.append(url))
    assert main(["--mode", "backtest", "--resume", str(run)]) == 0
    assert opened == []
    assert main(["--mode", "backtest", "--resume", str(run), "--open"]) == 0
    assert opened == [application.outcome.report.resolve().as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert main(["--mode", "backtest", "--resume", str(run), "--open"]) == 0
    assert "found no web browser" in capsys.readouterr().out
    assert "--open belongs to --mode train or demo" in refusal(capsys, "--mode", "inspect", str(run), "--open")


class Trainings:
    """Stands in for the trainings of protocols and jobs."""

    def __init__(self, application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
        self.application = application
        self.planned: list[tuple[Config, str, Path | None]] = []
        self.jobs: list[tuple[Config, Path, str]] = []
        self.where: Any = None
        self.folders: list[str] = []
        self.during: Callable[[], None] = lambda: None
        for name, fake in {
            "experiments.jobs.protocols.make_protocol_job": self.make_protocol_job,
            "experiments.jobs.training_jobs.make_seed_job": self.make_seed_job,
            "experiments.jobs.training_jobs.run_all": self.run,
            "experiments.jobs.independent_trainings.describe_trainings": self.describe,
            "training.trainer.new_run_folder": self.new_folder,
        }.items():
            monkeypatch.setattr(f"finflow.{name}", fake)

    def new_folder(self, logs: Path) -> Path:
        self.folders.append(str(logs))
        return logs / "new"

    def make_protocol_job(self, config: Config, protocol: str, parent: Path | None) -> Any:
        self.planned.append((config, protocol, parent))
        trainings = [SimpleNamespace(config=config)]
        return SimpleNamespace(config=config, trainings=trainings, market="", folder=Path("plan"), panel=PANEL)

    def make_seed_job(self, config: Config, folder: Path, market: str = "") -> FakeJob:
        self.jobs.append((config, folder, market))
        return FakeJob(config, folder, market)

    def run(self, jobs: Sequence[Any], where: Any) -> list[Outcome]:
        self.where = where
        self.during()
        return [self.application.outcome for _ in jobs]

    def describe(self, config: Config, trainings: Sequence[Any], panels: Any) -> list[str]:
        return ["12 trainings"]


@dataclass(frozen=True)
class FakeJob:
    config: Config
    folder: Path
    market: str
    panel: MarketPanel = PANEL

    @property
    def trainings(self) -> list[Any]:
        return [SimpleNamespace(config=self.config)]


@pytest.fixture
def protocols(application: Application, monkeypatch: pytest.MonkeyPatch) -> Trainings:
    return Trainings(application, monkeypatch)


def test_a_protocol_trains_by_the_configuration_that_is_given(
    protocols: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mode", "evaluate", "--protocol", "walk-forward", "--seed", "4", "--seeds", "3"]) == 0
    given = {"train.seed": 4, "evaluation.protocol.seeds": 3}
    assert protocols.planned == [(load_config(None, given, {}), "walk-forward", None)]
    assert "over the evaluated windows, in the path of median Sharpe ratio, net of costs" in capsys.readouterr().out


def test_a_protocol_trains_as_an_agent_was_trained_and_may_change_that(protocols: Trainings, run: Path) -> None:
    protocols.application.stored = load_config(None, {"bcell.gamma": 0.9}, {})
    assert main(["--mode", "evaluate", "--protocol", "cpcv", "--resume", str(run), "--sac-episodes", "7"]) == 0
    given = {"bcell.gamma": 0.9, "train.online_episodes": 7}
    assert protocols.planned == [(load_config(None, given, {}), "cpcv", run / "protocols")]


def test_a_dry_run_only_counts(protocols: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    protocols.during = lambda: pytest.fail("trained")
    assert main(["--mode", "evaluate", "--protocol", "cpcv", "--dry-run"]) == 0
    assert capsys.readouterr().out == "12 trainings\n"
    assert main(["--mode", "train", "--seeds", "3", "--dry-run"]) == 0
    assert protocols.folders == [], "a dry run of a job makes no folder"


def press() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["evaluate", "--protocol", "cpcv"], "stopped; the same command continues from there\n"),
        (["train", "--seeds", "3"], "stopped; to continue: python main.py --mode train --resume logs/new\n"),
        (["train"], "stopped before the first checkpoint: nothing to continue from\n"),
    ],
)
def test_ctrl_c_says_how_to_go_on(
    command: list[str], said: str, protocols: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    protocols.during = protocols.application.during_training = press
    assert refusal(capsys, "--mode", *command, status=130) == said


# --- several trainings


def test_several_seeds_are_a_job_shared_out_among_workers(
    protocols: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mode", "train", "--seeds", "3", "--workers", "2", "--set", "train.threads=1"]) == 0
    assert protocols.jobs == [(load_config(None, {"train.seeds": 3}, {}), Path(), "")]
    assert (protocols.where.workers, protocols.where.cluster, protocols.where.threads) == (2, None, 1)
    assert protocols.folders == ["logs"]


def begun(folder: Path, seeds: int) -> Path:
    """The folder of a job of some agents, none of them made."""
    config = load_config(None, {"bcell.gamma": 0.9, "train.seeds": seeds}, {})
    SeedJob(config, None, folder).begin()  # type: ignore[arg-type]
    return folder


def test_a_job_goes_on_in_its_folder_as_it_was_begun_and_may_grow(protocols: Trainings, tmp_path: Path) -> None:
    job = begun(tmp_path / "job", 3)
    assert main(["--mode", "train", "--resume", str(job), "--seeds", "5", "--workers", "2"]) == 0
    config = load_config(None, {"bcell.gamma": 0.9, "train.seeds": 5}, {})
    assert protocols.jobs == [(config, job, "")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "2"], "has 3 agents, and --seeds is 2: to leave some out would be to choose among them"),
        (["--seed", "7"], "train.seed is 7, but the run in"),
        (["--universe", "u.yaml"], "leave --universe and --recollect out"),
    ],
)
def test_a_job_that_goes_on_stays_what_it_is(
    arguments: list[str], words: str, protocols: Trainings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = begun(tmp_path / "job", 3)
    assert words in refusal(capsys, "--mode", "train", "--resume", str(job), *arguments)
    assert protocols.jobs == []


def test_agents_that_are_missing_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = begun(tmp_path / "job", 3)
    said = refusal(capsys, "--mode", "evaluate", "--resume", str(job))
    assert f"{job} has 0 of 3 agents; make the others with --mode train --resume {job}" in said


def test_a_universe_file_is_a_job_in_each_of_them(protocols: Trainings, tmp_path: Path) -> None:
    (tmp_path / "u.yaml").write_text("one: AAPL MSFT  # two\ntwo: [JPM, KO]\n")
    command = ["--mode", "train", "--universe", "u.yaml", "--dry-run", "--set", "market.source=embedded"]
    assert main(command) == 0
    assert [(config.market.tickers, name) for config, _, name in protocols.jobs] == [
        (("AAPL", "MSFT"), "one"),
        (("JPM", "KO"), "two"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no universe; write lines such as tech: AAPL MSFT NVDA"),
        ("one: AAPL MSFT\none: JPM KO\n", "line 2: not valid YAML: one is given twice"),
        ("one: AAPL MSFT AAPL\n", "line 1: universe 'one' names AAPL twice"),
        ("a: JPM KO\nb: JPM\n", "line 2: universe 'b' has 1 ticker, and needs at least two"),
        ("../x: JPM KO\n", "universe '../x' cannot be the name of a folder"),
        ("a: {b: 3}\n", "universe 'a' must be a list of tickers"),
        ("AAPL MSFT\n", "line 1: must hold sections"),
    ],
)
def test_a_universe_file_that_cannot_be_used(
    text: str, words: str, protocols: Trainings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.yaml").write_text(text)
    assert words in refusal(capsys, "--mode", "train", "--universe", "u.yaml")


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--mode", "trian"],
            "is not one of train, evaluate, backtest, tune, explain, compare, decide, paper, retrain, audit, inspect, "
            "prefer, demo; did you mean train",
        ),
        (["--mode", "train", "--sed", "3"], "unknown argument --sed; did you mean --seed?"),
        (["--mode", "train", "--sead=3"], "unknown argument --sead=3; did you mean --seed?"),
        (["train"], "did you mean --mode train?"),
        (["--mode", "train", "bcell.gamma=0.9"], "did you mean --set bcell.gamma=0.9?"),
        (["--mode", "train", "--set", "bcell.gamma"], "needs key=value"),
        (["--mode", "train", "--set", "=3"], "needs key=value"),
        (["--mode", "train", "--seed"], "--seed: expected one argument"),
        (["--mode", "train", "--tickers"], "--tickers: expected at least one argument"),
        (["--mode", "train", "--tickers", ","], "market.tickers = []: at least one asset is needed"),
        (["--mode", "train", "--set", "bcell.gama=1"], "unknown key bcell.gama (command line): the nearest valid"),
        (["--mode", "train", "--set", "bcell.gamma=1.5"], "bcell.gamma = 1.5 (command line): must be a number above 0"),
        (["--mode", "train", "--seed", "9" * 5000], "must be a whole number"),
        (
            ["--mode", "train", "--set", "market.path=a\0b"],
            "market.path = 'a\\x00b' (command line): has a character that",
        ),
        (["--mode", "train", "--seed", "x"], "train.seed = 'x' (command line): must be a whole number"),
        (["--mode", "train", "--config", "none.yaml"], "configuration file none.yaml does not exist"),
        (["--mode", "train", "--resume", "none"], "none does not exist: name a run folder"),
        (["--seed", "3"], "--mode is missing"),
        (["--batch-size", "64"], "type python main.py --mode train --batch-size 64"),
        (["--date", "2020-03-16", "--resume", "a b"], "--mode explain --date 2020-03-16 --resume 'a b'"),
        (["--n-trials", "5"], "--mode tune --n-trials 5"),
        (["--mode", "evaluate"], "--mode evaluate needs --resume"),
        (["--mode", "backtest"], "needs one of --resume"),
        (["--mode", "backtest", "--resume", "r", "--strategy", "s"], "needs one of --resume"),
        (["--mode", "train", "--strategy", "momentum"], "--strategy belongs to --mode backtest or audit"),
        (["--mode", "evaluate", "--resume", "r", "--recollect"], "--recollect belongs to --mode train or demo"),
        (["--mode", "explain", "--resume", "r"], "--mode explain needs --resume with a run folder or checkpoint, and"),
        (["--mode", "compare", "r"], "--mode compare needs two run folders or more"),
        (
            ["--mode", "train", "--output", "x"],
            "--output belongs to --mode explain or compare or prefer, not",
        ),
        (["--mode", "train", "--date", "2020-03-16"], "--date belongs to --mode explain"),
        (["--mode", "demo", "--resume", "r"], "--mode train --resume RUN"),
        (["--mode", "demo", "--config", "c.yaml"], "--mode train --config FILE"),
        (
            ["--mode", "evaluate", "--protocol", "walkforward"],
            "not one of holdout, walk-forward, cpcv; did you mean walk",
        ),
        (["--mode", "evaluate", "--protocol", "holdout"], "--mode evaluate needs --resume"),
        (["--mode", "evaluate", "--resume", "r", "--dry-run"], "--dry-run belongs to --protocol walk-forward or cpcv"),
        (["--mode", "evaluate", "--protocol", "cpcv", "--resume", "none"], "none does not exist: name a run folder"),
        (["--mode", "train", "--protocol", "cpcv"], "--protocol belongs to --mode evaluate, not to --mode train"),
        (
            ["--mode", "backtest", "--strategy", "s", "--dry-run"],
            "--dry-run belongs to --mode train or demo or evaluate or tune or decide or retrain, not to",
        ),
        (["--mode", "train", "--seeds", "0"], "train.seeds = 0 (command line): must be a whole number of at least 1"),
        (["--mode", "train", "--seeds", "3", "--workers", "0"], "--workers: '0' must be a whole number, 1 or more"),
        (["--mode", "train", "--seeds", "3", "--workers", "two"], "--workers: 'two' must be a whole number, 1 or more"),
        (["--mode", "train", "--workers", "2"], "--workers has one training to share out"),
        (["--mode", "train", "--universe", "none.yaml"], "universe file none.yaml does not exist"),
        (["--mode", "explain", "--resume", "a", "b", "--date", "2020-01-02"], "--resume takes one run folder"),
        (["--mode", "evaluate", "--resume", "r", "--workers", "2"], "--workers belongs to --protocol walk-forward"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    arguments: list[str], words: str, application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *arguments)
    assert said.startswith("error: ")
    assert words in said
    assert application.calls == []


def test_a_dry_run_of_one_training_that_goes_on_is_answered_by_what_was_given(
    application: Application, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "--mode", "train", "--resume", str(run), "--dry-run")
    assert "goes on as one: leave --dry-run out" in said


# --- Ctrl-C


def test_ctrl_c_in_a_run_says_how_to_go_on(
    application: Application, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def press() -> None:
        signal.raise_signal(signal.SIGINT)
        assert application.stop_requested
        raise KeyboardInterrupt  # as the trainer does once its checkpoint is written

    application.during_training = press
    assert main(["--mode", "train"]) == 130
    assert f"stopped; to continue: python main.py --mode train --resume {run}" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("finflow ")
