"""Logs that can be resumed without a trace of the interruption, trackers beside them, and progress to follow."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from finflow.config import Config, config_hash, hyperparameters, load_config
from finflow.errors import CheckpointError, ConfigError, OutputError
from finflow.training.logs.progress_display import ProgressDisplay, remaining_seconds
from finflow.training.logs.run_log import RunLog
from finflow.training.logs.trackers import WandbRun, check_tracker
from tests.training.whole_trainings import Make, train_through


def write_rows(log: RunLog, updates: range, phase: str = "online") -> None:
    for update in updates:
        log.record(phase, update, {"critic_loss": 1 / (update + 1), "sharpe": 0.1 * update, "cvar": -0.02})


def events_in(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """The points that TensorBoard shows."""
    return [(point.step, round(point.value, 6)) for point in events_in(folder).Scalars(tag)]


# --- metrics.jsonl


def test_a_row_is_one_line_of_json_with_sorted_keys_and_no_time(tmp_path: Path) -> None:
    """It is on the disk as soon as it is recorded; what is not a finite number is null."""
    values = {"z": 1.0, "a": float("nan"), "b": np.float32("inf"), "c": torch.tensor(-float("inf")), "d": np.int64(3)}
    with closing(RunLog(tmp_path)) as log:
        log.record("online", 3, {**values, "ok": True})
        log.console("started")
        assert (tmp_path / "metrics.jsonl").read_text() == (
            '{"a": null, "b": null, "c": null, "d": 3, "ok": true, "phase": "online", "update": 3, "z": 1.0}\n'
        )
        assert (tmp_path / "console.log").read_text().endswith("  started\n")
        assert curve(tmp_path, "online/z") == [(3, 1.0)]


# --- resuming


@pytest.mark.parametrize("kept", [0, 6])
def test_a_resumed_log_is_the_log_of_a_run_never_stopped(tmp_path: Path, kept: int) -> None:
    """But for the diary, which goes on."""
    with closing(RunLog(tmp_path / "whole")) as log:
        write_rows(log, range(10))
    with closing(RunLog(tmp_path / "stopped")) as log:
        write_rows(log, range(kept))
        position = log.position()
        log.console("before")
        write_rows(log, range(kept, 8))  # after the checkpoint, and then killed
    with (tmp_path / "stopped" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"half a ro')
    with closing(RunLog(tmp_path / "stopped", resume_at=position)) as log:
        assert log.position() == position
        log.console("after\nthat")
        write_rows(log, range(kept, 10))
    whole, stopped = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "stopped"))
    assert stopped == whole
    for tag in ("online/sharpe", "online/critic_loss"):
        assert curve(tmp_path / "stopped", tag) == curve(tmp_path / "whole", tag)
    lines = (tmp_path / "stopped" / "console.log").read_text().splitlines()
    assert [line[21:] for line in lines] == ["before", "after that"]


def test_a_branch_carries_the_rows_and_curves_that_led_to_it(tmp_path: Path) -> None:
    with closing(RunLog(tmp_path / "old")) as log:
        write_rows(log, range(3))
        position = log.position()
        write_rows(log, range(3, 6))
    before = (tmp_path / "old" / "metrics.jsonl").read_bytes()
    with closing(RunLog(tmp_path / "new", resume_at=position, branch_from=tmp_path / "old")) as log:
        assert log.position()["metrics.jsonl"] == position["metrics.jsonl"]
        write_rows(log, range(3, 4))
    assert (tmp_path / "old" / "metrics.jsonl").read_bytes() == before
    assert before.startswith((tmp_path / "new" / "metrics.jsonl").read_bytes())
    assert [step for step, _ in curve(tmp_path / "new", "online/sharpe")] == [0, 1, 2, 3]


@pytest.mark.parametrize("left", [b"", b'{"a": 1}\n'])
def test_a_log_shorter_than_its_checkpoint_is_refused_and_left_alone(tmp_path: Path, left: bytes) -> None:
    with closing(RunLog(tmp_path)) as log:
        write_rows(log, range(5))
        position = log.position()
    (tmp_path / "metrics.jsonl").write_bytes(left)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl holds"):
        RunLog(tmp_path, resume_at=position)
    assert (tmp_path / "metrics.jsonl").read_bytes() == left


# --- places that cannot be written


@pytest.mark.parametrize("name", ["metrics.jsonl", "run/metrics.jsonl"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").write_text("")  # a file in the place of the folder
    (tmp_path / "metrics.jsonl").mkdir()
    folder = (tmp_path / name).parent
    with pytest.raises(OutputError, match=rf"cannot write {re.escape(str(folder))}.*output\.logs_dir"):
        RunLog(folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_stops_no_training_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows wait in memory; make_durable(), which every checkpoint asks for, says in one line why they do."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = RunLog(tmp_path)
    write_rows(log, range(2))
    held = [log._files["metrics.jsonl"].fileno(), log._console.fileno()]
    monkeypatch.setattr(RecordWriter, "write", fail)
    spare = [os.dup(number) for number in held]
    full = os.open("/dev/full", os.O_WRONLY)
    for number in held:
        os.dup2(full, number)
    write_rows(log, range(2, 4))
    log.console("hello")
    with pytest.raises(OutputError, match=r"cannot write .*metrics\.jsonl: No space left") as caught:
        log.make_durable()
    assert "\n" not in str(caught.value)
    for number, other in zip(held, spare, strict=True):
        os.dup2(other, number)
        os.close(other)
    os.close(full)
    monkeypatch.undo()
    waiting = log.position()
    log.make_durable()
    assert waiting["metrics.jsonl"] == (tmp_path / "metrics.jsonl").stat().st_size
    write_rows(log, range(4, 5))
    assert log.position()["metrics.jsonl"] == (tmp_path / "metrics.jsonl").stat().st_size
    log.close()
    log.close()
    whole = RunLog(tmp_path / "whole")
    write_rows(whole, range(5))
    assert (tmp_path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2  # the first may end in half a record
    assert curve(tmp_path, "online/sharpe") == [(0, 0.0), (1, 0.1), (4, 0.4)]
    assert capfd.readouterr().err == ""


# --- progress


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_lines_are_plain_and_seconds_apart() -> None:
    clock, stream, diary = Clock(), io.StringIO(), list[str]()
    with ProgressDisplay(diary.append, stream=stream, interval=5.0, clock=clock) as progress:
        progress.start_phase("online training", total=1000)
        for _ in range(100):
            clock.now += 0.125
            progress.advance(10, sharpe=0.41)
        progress.message("checkpoint written")
        progress.end_phase()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "online training: 1,000 steps"
    assert lines[1] == "online training: 400 of 1,000  40 %  80 steps/s  7.5 s left  validation Sharpe 0.41"
    assert lines[-2:] == [
        "checkpoint written",
        "online training: 1,000 steps in 12 s, 80 steps/s, validation Sharpe 0.41",
    ]
    assert 4 <= len(lines) <= 5
    assert lines == diary
    assert "\x1b" not in stream.getvalue()


def test_the_speed_is_that_of_the_last_half_minute_and_of_no_step_before_a_resume() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressDisplay(stream=stream, interval=25.0, clock=clock) as progress:
        progress.start_phase("offline", total=1000, done=900)
        for _ in range(25):
            clock.now += 1.0
            progress.advance()
        progress.end_phase()
        progress.start_phase("online", total=10_000)
        for second in range(100):
            clock.now += 1.0
            progress.advance(100 if second < 50 else 20)
    assert "online: 6,000 of 10,000  60 %  20 steps/s" in stream.getvalue()
    assert "offline: 925 of 1,000  92 %  1.0 steps/s  1:15 min left" in stream.getvalue()
    assert "offline: 25 steps in 25 s" in stream.getvalue()


@pytest.mark.parametrize(
    "seconds",
    [
        [20.0] + [0.2] * 199,  # the first step loads what the others only use
        [2.0] * 5 + [0.25] * 195,
        [0.1] * 199 + [0.2],
        [0.2, 0.2, 3.0] * 66,
    ],
)
def test_a_remaining_time_is_right_within_a_factor_of_two_or_not_shown(seconds: list[float]) -> None:
    clock, told = Clock(), list[tuple[float, float]]()
    with ProgressDisplay(stream=io.StringIO(), clock=clock) as progress:
        progress.start_phase("offline", total=len(seconds))
        for step, one in enumerate(seconds, 1):
            clock.now += one
            progress.advance()
            if (left := remaining_seconds(progress._reports, len(seconds))) is not None and left > 0.0:
                told.append((left, sum(seconds[step:])))
    wrong = [(left, true) for left, true in told if not 0.45 * true <= left <= 2.2 * true and true > 5.0]
    assert told
    assert wrong == []


def test_a_terminal_shows_a_bar_and_keeps_messages() -> None:
    clock, stream, diary = Clock(), Terminal(), list[str]()
    with ProgressDisplay(diary.append, stream=stream, clock=clock) as progress:
        progress.start_phase("online", total=10)
        for _ in range(10):
            clock.now += 1.0
            progress.advance(1, sharpe=0.41)
        progress.message("see [path] reports/report.html")
    shown = stream.getvalue()
    assert "━" in shown
    assert "validation Sharpe 0.41" in shown
    assert "see [path] reports/report.html" in shown
    assert any("5 of 10" in line for line in diary)
    assert "5 of 10" not in shown


def test_an_interrupted_phase_is_not_called_finished() -> None:
    stream = io.StringIO()
    with suppress(KeyboardInterrupt), ProgressDisplay(stream=stream) as progress:
        progress.start_phase("online", total=10)
        raise KeyboardInterrupt
    assert stream.getvalue() == "online: 10 steps\n"


WITH_WANDB = load_config(None, {"output.log_with": "wandb"}, environ={})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Stands in for the package, and for the run that it begins."""
    fake = MagicMock(summary={})
    fake.init.return_value = fake
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def rows_in(wandb: MagicMock) -> list[tuple[int, dict[str, Any]]]:
    return [(call.kwargs["step"], call.args[0]) for call in wandb.log.call_args_list]


def logged(folder: Path, tell: Callable[[str], None] = print) -> None:
    """A log of two rows, an event and a result."""
    with closing(RunLog(folder)) as log:
        log.trackers.append(WandbRun(WITH_WANDB, folder, tell))
        log.record("offline", 50, {"v_loss": 0.5, "reason": "validation"})
        log.record("online", 60, {"sharpe": 0.25})
        log.event({"update": 60, "phase": "online", "level": "warning", "signal": "loss", "message": "high"})
        log.result(
            {"train.seed": 3, "bcell.alpha_mode": "auto", "market.start": None}, {"sharpe": 1.5, "psr": float("nan")}
        )


def test_hyperparameters_and_final_metrics_are_read_back_from_the_event_file(tmp_path: Path, wandb: MagicMock) -> None:
    logged(tmp_path)
    events = events_in(tmp_path)
    assert curve(tmp_path, "hparams/sharpe") == [(60, 1.5)]
    assert "hparams/psr" not in events.Tags()["scalars"]
    content = events.PluginTagToContent("hparams")
    start = plugin_data_pb2.HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info
    shown = {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in start.hparams.items()}
    assert shown == {"train.seed": 3.0, "bcell.alpha_mode": "auto", "market.start": "None"}
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content["_hparams_/experiment"]).experiment
    assert [metric.name.tag for metric in experiment.metric_infos] == ["hparams/sharpe"]


def test_rows_events_and_the_result_go_to_wandb_too(
    tmp_path: Path, wandb: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(tmp_path / "runs" / "20260131_120000")
    assert rows_in(wandb) == [
        (50, {"offline/v_loss": 0.5}),
        (60, {"online/sharpe": 0.25}),
        (60, {"guard/loss": "warning: high"}),
    ]
    assert wandb.summary == {"test/sharpe": 1.5}
    assert wandb.finish.call_count == 1
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    logged(tmp_path / "runs" / "20260131_120000")
    logged(tmp_path / "runs" / "20260131_130000")
    begun, again, other = (call.kwargs for call in wandb.init.call_args_list)
    assert (begun["project"], begun["name"], begun["group"]) == ("finflow", "20260131_120000", "runs")
    assert begun["config"]["bcell.gamma"] == 0.99
    json.dumps(begun["config"])
    assert begun["id"] == again["id"] != other["id"]  # a resumed training goes on in the same run
    assert (again["resume"], again["project"]) == ("allow", "mine")


def test_a_failure_of_the_service_ends_the_tracking_and_not_the_training(tmp_path: Path, wandb: MagicMock) -> None:
    told: list[str] = []
    wandb.log.side_effect = ConnectionError("no answer\nsecond line")
    logged(tmp_path, told.append)
    assert told == ["Weights & Biases failed, and is left out from here on: no answer second line"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    wandb.init.side_effect = wandb.log.side_effect
    with pytest.raises(OutputError, match=r"did not start \(no answer second line\).*WANDB_MODE=offline"):
        WandbRun(WITH_WANDB, tmp_path, told.append)


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
from finflow.training.logs.trackers import WandbRun

class Owner:
    pass

owner, folder = Owner(), Path(sys.argv[1])
weakref.finalize(owner, print, "first finalizer of the process")
log = RunLog(folder)
weakref.finalize(owner, log.close)
log.trackers.append(WandbRun(load_config(None, {"output.log_with": "wandb"}, {}), folder, log.console))
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


def test_where_curves_go_decides_no_result() -> None:
    assert config_hash(WITH_WANDB) == config_hash(Config())
    assert "train.seeds" not in hyperparameters(Config())
    assert hyperparameters(Config())["bcell.cql_alpha"] == 5.0
    sections = {key.partition(".")[0] for key in hyperparameters(load_config(None, {}, environ={}))}
    assert sections.isdisjoint({"output", "evaluation", "trading", "tune"})
    assert sections >= {"market", "env", "train", "offline", "bcell", "online"}


@pytest.mark.usefixtures("quick_reports")
def test_a_training_reports_its_final_metrics(wandb: MagicMock, tiny: Make) -> None:
    trainer = train_through(tiny(output__log_with="wandb", train__online_episodes=4))
    outcome = trainer.train()
    sharpe = outcome.summary["finflow"]["sharpe"]
    assert wandb.summary["test/sharpe"] == sharpe
    assert {"online/validation_sharpe"} <= {name for _, values in rows_in(wandb) for name in values}
    assert curve(trainer.run_folder, "hparams/sharpe")[0][1] == pytest.approx(sharpe, abs=1e-5)
