"""What a run logs beside its own files: TensorBoard's table of hyperparameters, and Weights & Biases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from finflow.config import Config, config_hash, hyperparameters, load_config
from finflow.errors import ConfigError, OutputError
from finflow.training.logs.run_log import RunLog
from finflow.training.logs.trackers import check_tracker, open_tracker
from tests.training.whole_trainings import Make, train_through

WITH_WANDB = load_config(None, {"output.log_with": "wandb"}, environ={})


class FakeWandb(ModuleType):
    """Stands in for the package, and keeps what it is told; `fails` names a function that raises."""

    fails, finished = "", 0

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, float] = {}

    def init(self, **settings: Any) -> FakeWandb:
        self._check("init")
        self.begun.append(settings)
        return self

    def log(self, values: dict[str, Any], step: int) -> None:
        self._check("log")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1

    def _check(self, name: str) -> None:
        if self.fails == name:
            raise ConnectionError("no answer\nsecond line")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def logged(folder: Path, tell: Callable[[str], None] = print) -> None:
    """A log of two rows, an event and a result."""
    with RunLog(folder) as log:
        tracker = open_tracker(WITH_WANDB, folder, tell)
        assert tracker is not None
        log.follow(tracker)
        log.record("offline", 50, {"v_loss": 0.5, "reason": "validation"})
        log.record("online", 60, {"sharpe": 0.25})
        log.event({"update": 60, "phase": "online", "level": "warning", "signal": "loss", "message": "high"})
        log.result(
            {"train.seed": 3, "bcell.alpha_mode": "auto", "market.start": None}, {"sharpe": 1.5, "psr": float("nan")}
        )


def test_hyperparameters_and_final_metrics_are_read_back_from_the_event_file(tmp_path: Path, wandb: FakeWandb) -> None:
    logged(tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("hparams/sharpe")] == [(60, 1.5)]
    assert "hparams/psr" not in events.Tags()["scalars"]
    content = events.PluginTagToContent("hparams")
    start = plugin_data_pb2.HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info
    shown = {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in start.hparams.items()}
    assert shown == {"train.seed": 3.0, "bcell.alpha_mode": "auto", "market.start": "None"}
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content["_hparams_/experiment"]).experiment
    assert [metric.name.tag for metric in experiment.metric_infos] == ["hparams/sharpe"]


def test_rows_events_and_the_result_go_to_wandb_too(
    tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(tmp_path / "runs" / "20260131_120000")
    assert wandb.logged == [
        (50, {"offline/v_loss": 0.5}),
        (60, {"online/sharpe": 0.25}),
        (60, {"guard/loss": "warning: high"}),
    ]
    assert wandb.summary == {"test/sharpe": 1.5}
    assert wandb.finished == 1
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    logged(tmp_path / "runs" / "20260131_120000")
    logged(tmp_path / "runs" / "20260131_130000")
    begun, again, other = wandb.begun
    assert (begun["project"], begun["name"], begun["group"]) == ("finflow", "20260131_120000", "runs")
    assert begun["config"]["bcell.gamma"] == 0.99
    json.dumps(begun["config"])
    assert begun["id"] == again["id"] != other["id"]  # a resumed training goes on in the same run
    assert (again["resume"], again["project"]) == ("allow", "mine")


def test_a_failure_of_the_service_ends_the_tracking_and_not_the_training(tmp_path: Path, wandb: FakeWandb) -> None:
    told: list[str] = []
    wandb.fails = "log"
    logged(tmp_path, told.append)
    assert told == ["Weights & Biases failed, and is left out from here on: no answer second line"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    wandb.fails = "init"
    with pytest.raises(OutputError, match=r"did not start \(no answer second line\).*WANDB_MODE=offline"):
        open_tracker(WITH_WANDB, tmp_path, told.append)


#: As the package behaves when the interpreter exits: its own exit ends the service, and a run finished later fails.
LEAVING = """
import atexit

class Run:
    def __init__(self): self.over = False; self.summary = {}
    def log(self, values, step): pass
    def finish(self):
        if self.over: raise ConnectionResetError("Connection lost")
        print("finished")

def init(**settings):
    run = Run()
    atexit.register(lambda: setattr(run, "over", True))
    return run
"""

TRAINING = """
import sys, weakref
from pathlib import Path
from finflow.config import load_config
from finflow.training.logs.run_log import RunLog
from finflow.training.logs.trackers import open_tracker

class Owner:
    pass

owner, folder = Owner(), Path(sys.argv[1])
weakref.finalize(owner, print, "first finalizer of the process")
log = RunLog(folder)
weakref.finalize(owner, log.close)
log.follow(open_tracker(load_config(None, {"output.log_with": "wandb"}, {}), folder, log.console))
log.record("offline", 50, {"v_loss": 0.5})
"""


def test_a_run_is_finished_before_the_package_leaves(tmp_path: Path) -> None:
    """A script of a user's own that ends without closing anything: the run is whole, and nothing is said."""
    (tmp_path / "wandb.py").write_text(LEAVING, "utf-8")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stdout.count("finished") == 1
    assert "failed" not in (tmp_path / "run" / "console.log").read_text("utf-8")


def test_a_package_that_is_not_installed_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'finflow\[wandb\]'") as caught:
        check_tracker(WITH_WANDB)
    assert "\n" not in str(caught.value)
    check_tracker(Config())
    assert open_tracker(Config(), Path(), print) is None


def test_where_curves_go_decides_no_result() -> None:
    assert config_hash(WITH_WANDB) == config_hash(Config())
    assert "train.seeds" not in hyperparameters(Config())
    assert hyperparameters(Config())["bcell.cql_alpha"] == 5.0
    sections = {key.partition(".")[0] for key in hyperparameters(load_config(None, {}, environ={}))}
    assert sections.isdisjoint({"output", "evaluation", "trading", "tune"})
    assert sections >= {"market", "env", "train", "offline", "bcell", "online"}


@pytest.mark.usefixtures("quick_reports")
def test_a_training_reports_its_final_metrics(wandb: FakeWandb, tiny: Make) -> None:
    trainer = train_through(tiny(output__log_with="wandb", train__online_episodes=4))
    outcome = trainer.train()
    sharpe = outcome.summary["finflow"]["sharpe"]
    assert wandb.summary["test/sharpe"] == sharpe
    assert {"online/validation_sharpe"} <= {name for _, values in wandb.logged for name in values}
    events = EventAccumulator(str(trainer.run_folder))
    events.Reload()
    assert events.Scalars("hparams/sharpe")[0].value == pytest.approx(sharpe)
