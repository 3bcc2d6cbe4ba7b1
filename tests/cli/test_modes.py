"""Modes: what is called with what. The application behind them is stood in for."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

import finflow
from finflow.cli import main
from finflow.config import Config, config_hash, load_config
from finflow.evaluation.page.whole_page import Headline, Page
from finflow.experiments.jobs.independent_trainings import SeedJob
from finflow.training.checkpoints.run_folder import resolve_run
from tests.cli.test_options import numbers_of_a_report
from tests.commands import refusal

ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """As the application has it."""

    run_folder: Path
    report: Path
    page: Page


class Application:
    """Stands in for training and evaluation, and notes by name with what they were called, in order."""

    def __init__(self, folder: Path) -> None:
        page = Page("", "", Headline("", "Beats equal weight: no"), [], numbers_of_a_report())
        self.outcome = Outcome(folder / "run", folder / "run" / "reports" / "report.html", page)
        self.stored = Config()  # in every checkpoint
        self.calls: dict[str, Any] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        application = self

        class Trainer:
            run_folder = application.outcome.run_folder

            def __init__(self, config: Config, resume: Path | None = None, pretrained: Path | None = None) -> None:
                application.calls["trainer"] = (config, resume, pretrained)

            def collect_offline_data(self, path: Path | None = None, recollect: bool = False) -> None:
                application.calls["collect"] = (path, recollect)

            def train(self) -> Outcome:
                application.calls["train"] = None
                return application.outcome

            def discard_if_unused(self) -> None:
                pass

        def load(paths: Sequence[Path], overrides: Mapping[str, object]) -> SimpleNamespace:
            return SimpleNamespace(paths=paths, overrides=dict(overrides), folder=resolve_run(paths[0]).folder)

        def evaluate(agents: SimpleNamespace, folder: Path, with_backtest: bool) -> Outcome:
            application.calls["evaluate"] = (*agents.paths, agents.overrides, folder, with_backtest)
            return application.outcome

        def backtest(config: Config, names: Sequence[str]) -> Outcome:
            application.calls["backtest"] = (config, list(names))
            return application.outcome

        for name in ("jobs.independent_trainings", "tuning.trial_training"):  # imported later, they would keep the fake
            importlib.import_module(f"finflow.experiments.{name}")
        for name, fake in {
            "trainer.FinFlowTrainer": Trainer,
            "judging.agent_strategy.load_agents": load,
            "judging.evaluations.evaluate_agents": evaluate,
            "judging.evaluations.backtest_strategies": backtest,
            "checkpoints.checkpoint_reader.configuration_of": lambda path: application.stored,
        }.items():
            monkeypatch.setattr(f"finflow.training.{name}", fake)

    @property
    def config(self) -> Config:
        """What the trainer was given."""
        return self.calls["trainer"][0]


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
    assert application.calls == {"trainer": (load_config(None, {"train.seed": 4}, {}), None, None), "train": None}
    shown = capsys.readouterr().out
    assert "finflow" in shown
    assert shown.rstrip().endswith(f"report: {application.outcome.report}")


def test_options_of_training_alone_train_and_none_at_all_print_help(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: ")
    assert application.calls == {}
    assert main(["--batch-size", "64", "--gradient-checkpointing", "--mixed-precision", "--seed", "4"]) == 0
    assert (application.config.train.online_batch_size, application.config.bcell.mixed_precision) == (64, True)
    assert capsys.readouterr().out.startswith("training, as --mode train does")


def test_demo_trains_with_its_own_configuration_and_data_are_collected_anew_on_request(
    application: Application,
) -> None:
    assert main(["--mode", "demo", "--seed", "4", "--recollect"]) == 0
    assert application.config == load_config(ROOT / "configs" / "demo.yaml", {"train.seed": 4}, {})
    assert list(application.calls) == ["trainer", "collect", "train"]
    assert application.calls["collect"] == (None, True)


def test_a_resumed_run_has_the_configuration_in_its_checkpoint_every_value_as_it_is(
    application: Application, run: Path
) -> None:
    market = {"source": "csv", "path": Path("null"), "benchmark": "[x]", "tickers": ("NO", "123", "1e5", "null")}
    market |= {"test_end": "2014-01-01", "validation_end": "2012-06-30"}
    application.stored = Config.model_validate({"market": market, "bcell": {"gamma": 0.9}})
    assert main(["--mode", "train", "--resume", str(run)]) == 0
    assert application.calls["trainer"] == (application.stored, run, None)


def test_a_resumed_run_may_be_given_its_own_options_again(
    application: Application, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.stored = load_config(None, {"bcell.gamma": 0.9, "bcell.tau": 0.1, "train.seed": 3}, {})
    (tmp_path / "mine.yaml").write_text("bcell: {gamma: 0.9}\n", encoding="utf-8")
    monkeypatch.setenv("FINFLOW_BCELL", "{tau: 0.1}")
    assert main(["--mode", "train", "--resume", str(run), "--config", "mine.yaml", "--seed", "3"]) == 0
    assert application.config == application.stored


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--set", "bcell.gamma=0.95"], {}),
        (["--config", "mine.yaml"], {}),
        ([], {"FINFLOW_BCELL__GAMMA": "0.95"}),
        ([], {"FINFLOW_BCELL": "{gamma: 0.95}"}),
    ],
)
def test_a_resumed_run_refuses_what_would_change_its_results(
    arguments: list[str],
    environment: dict[str, str],
    application: Application,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.yaml").write_text("bcell: {gamma: 0.95}\n", encoding="utf-8")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = refusal(capsys, "--mode", "train", "--resume", str(run), *arguments)
    assert said.startswith(f"error: bcell.gamma is 0.95, but the run in {run} has 0.99; a resumed run keeps")
    assert application.calls == {}


def test_a_resumed_run_may_change_what_decides_nothing(application: Application, run: Path) -> None:
    changed = ["--set", "train.max_checkpoints=2", "--no-cache", "--set", "output.offline_dir=elsewhere"]
    assert main(["--mode", "train", "--resume", str(run), *changed]) == 0
    assert application.config.train.max_checkpoints == 2
    assert config_hash(application.config) == config_hash(application.stored)


@pytest.mark.parametrize(
    ("mode", "sweeps"), [(["evaluate"], False), (["evaluate", "--protocol", "holdout"], False), (["backtest"], True)]
)
@pytest.mark.parametrize("within", ["", "models/checkpoint_latest.safetensors"])
def test_a_backtest_of_an_agent_is_its_evaluation_always_with_the_sweeps(
    application: Application, run: Path, mode: list[str], sweeps: bool, within: str
) -> None:
    assert main(["--mode", *mode, "--resume", str(run / within)]) == 0
    assert application.calls == {"evaluate": (run / within, {}, run, sweeps)}


@pytest.mark.parametrize(
    ("arguments", "changed", "folder"),
    [
        (["--set", "env.commission_bps=30"], {"env.commission_bps": 30.0}, "run/evaluations"),
        (["--config", "mine.yaml"], {"env.slippage_bps": 9.0}, "run/evaluations"),  # its learning is left aside
        (["--set", "market.test_end=2004-01-01"], {"market.test_end": dt.date(2004, 1, 1)}, "run/evaluations"),
        (
            ["--tickers", "TSLA", "KO"],
            {"market.source": "yfinance", "market.tickers": ("TSLA", "KO")},
            "run/evaluations",
        ),
        (["--device", "cpu"], {"train.device": "cpu"}, "."),
        (["--seed", "8"], {"train.seed": 8}, "."),  # handed on to be refused
        (["--set", "output.logs_dir=elsewhere"], {"output.logs_dir": Path("elsewhere")}, "elsewhere"),
    ],
)
def test_an_evaluation_under_other_conditions_leaves_the_report_of_the_run_alone(
    arguments: list[str],
    changed: dict[str, object],
    folder: str,
    application: Application,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {"bcell.hidden_dim": 64, "market.train_end": "2000-01-01", "market.validation_end": "2002-01-01"}
    application.stored = load_config(None, keys, {})
    Path("mine.yaml").write_text("bcell: {hidden_dim: 128}\nenv: {slippage_bps: 9}\n", encoding="utf-8")
    monkeypatch.setenv("FINFLOW_TRAIN__SEED", "7")
    assert main(["--mode", "evaluate", "--resume", "run", *arguments]) == 0
    _, overrides, place, _ = application.calls["evaluate"]
    assert overrides == changed
    assert os.path.relpath(place.parent) == folder


def test_backtest_of_a_named_strategy(application: Application) -> None:
    assert main(["--mode", "backtest", "--strategy", "momentum", "mine:Own", "--set", "env.slippage_bps=9"]) == 0
    assert application.calls["backtest"] == (load_config(None, {"env.slippage_bps": 9}, {}), ["momentum", "mine:Own"])


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


# --- several trainings


@dataclass(frozen=True)
class Job:
    """Stands in for a job or a protocol's plan."""

    config: Config
    folder: Path
    market: str = ""
    panel: None = None

    @property
    def trainings(self) -> list[Any]:
        return [SimpleNamespace(config=self.config)]

    def lines(self) -> list[str]:
        return []


class Trainings:
    """Stands in for the trainings of protocols and jobs."""

    def __init__(self, application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
        self.application = application
        self.planned: list[tuple[Config, str, Path | None]] = []
        self.jobs: list[Job] = []
        self.where: Any = None
        self.folders: list[str] = []
        self.during: Callable[[], None] = lambda: None
        for name, fake in {
            "experiments.jobs.protocols.make_protocol_job": self.plan,
            "experiments.jobs.independent_trainings.make_seed_job": self.make_job,
            "experiments.jobs.independent_trainings.run_all": self.run,
            "experiments.jobs.independent_trainings.describe_trainings": lambda *given: ["12 trainings"],
            "market.plausibility.price_notes.opening_lines": lambda panel: [],
            "training.trainer.new_run_folder": self.new_folder,
        }.items():
            monkeypatch.setattr(f"finflow.{name}", fake)

    def new_folder(self, logs: Path) -> Path:
        self.folders.append(str(logs))
        return logs / "new"

    def plan(self, config: Config, protocol: str, parent: Path | None, market: str) -> Job:
        self.planned.append((config, protocol, parent))
        return Job(config, Path("plan"))

    def make_job(self, config: Config, folder: Path, market: str = "") -> Job:
        self.jobs.append(Job(config, folder, market))
        return self.jobs[-1]

    def run(self, jobs: Sequence[Any], where: Any) -> list[Outcome]:
        self.where = where
        self.during()
        return [self.application.outcome for _ in jobs]


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["evaluate", "--protocol", "cpcv"], "stopped; the same command continues from there\n"),
        (["train", "--seeds", "3"], "stopped; to continue: python main.py --mode train --resume logs/new\n"),
    ],
)
def test_ctrl_c_says_how_to_go_on(
    command: list[str], said: str, protocols: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    protocols.during = Mock(side_effect=KeyboardInterrupt)
    assert refusal(capsys, "--mode", *command, status=130) == said


def test_several_seeds_are_a_job_shared_out_among_workers(
    protocols: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mode", "train", "--seeds", "3", "--workers", "2", "--set", "train.threads=1"]) == 0
    assert protocols.jobs == [Job(load_config(None, {"train.seeds": 3}, {}), Path())]
    assert (protocols.where.workers, protocols.where.cluster, protocols.where.threads) == (2, None, 1)
    assert protocols.folders == ["logs"]


def test_a_job_goes_on_in_its_folder_as_it_was_begun_and_may_grow(protocols: Trainings, tmp_path: Path) -> None:
    before, after = (load_config(None, {"bcell.gamma": 0.9, "train.seeds": seeds}, {}) for seeds in (3, 5))
    protocols.application.stored = before
    SeedJob(before, None, tmp_path / "job").begin()  # type: ignore[arg-type]
    assert main(["--mode", "train", "--resume", str(tmp_path / "job"), "--seeds", "5", "--workers", "2"]) == 0
    assert protocols.jobs == [Job(after, tmp_path / "job")]


def test_a_universe_file_is_a_job_in_each_of_them(protocols: Trainings, tmp_path: Path) -> None:
    (tmp_path / "u.yaml").write_text("one: AAPL MSFT  # two\ntwo: [JPM, KO]\n")
    command = ["--mode", "train", "--universe", "u.yaml", "--dry-run", "--set", "market.source=embedded"]
    assert main(command) == 0
    tickers = {job.market: job.config.market.tickers for job in protocols.jobs}
    assert tickers == {"one": ("AAPL", "MSFT"), "two": ("JPM", "KO")}


def test_a_dry_run_of_one_training_that_goes_on_is_answered_by_what_was_given(
    application: Application, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "--mode", "train", "--resume", str(run), "--dry-run")
    assert "goes on as one: leave --dry-run out" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"finflow {finflow.__version__}\n"
