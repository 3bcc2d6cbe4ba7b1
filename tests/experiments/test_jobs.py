"""Agents of several seeds: shared out, killed, stopped, gone on with, the result is that of the serial run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.cli import main
from finflow.config import dump_config
from finflow.errors import CheckpointError, OutputError
from finflow.experiments.jobs.independent_trainings import (
    SeedJob,
    Training,
    describe_trainings,
    finished_best,
    make_seed_job,
    run_all,
    train_all,
    train_one,
)
from finflow.experiments.tasks import ComputeResources
from finflow.strategies.strategy import Information
from finflow.training.checkpoints.run_folder import resolve_run
from finflow.training.judging.agent_strategy import EnsembleStrategy, load_agents
from finflow.training.judging.evaluations import evaluate_agents
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.durability import small_config
from tests.commands import is_alive, refusal
from tests.evaluation.made_up import Planned
from tests.short_trainings import bits_of

pytestmark = pytest.mark.usefixtures("quick_reports", "ready_workers")
ROOT = Path(__file__).parents[2]
SEEDS = 3
QUICK = {"train.seeds": SEEDS, "evaluation.bootstrap_samples": 100, "evaluation.sweeps": False}
QUICK |= {"train.offline_training_epochs": 1, "train.online_episodes": 6, "train.validation_updates": 1000}
QUICK |= {"out_of_fold.blocks": 1}
# Short windows to judge on, and few refits there: playing the compared strategies is most of a report.
QUICK |= {"market.validation_end": "2021-01-29", "market.test_end": "2021-07-30"}
QUICK |= {"evaluation.lookback": 60, "evaluation.rebalance_every": 60}


@pytest.fixture(scope="module", autouse=True)
def quick_phases() -> None:
    """Shorten nothing: processes of their own, which no patch reaches, have to give the same bits."""


def runs_of(training: Training) -> list[Path]:
    return [path for path in training.folder.iterdir() if path.is_dir()]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory, quick_reports: None) -> SeedJob:
    """A job that was done here, one agent after another, and judged."""
    folder = tmp_path_factory.mktemp("serial")
    job = make_seed_job(small_config(folder, QUICK), folder / "logs" / "job")
    run_all([job])
    return job


def copy(serial: SeedJob, folder: Path, **changes: object) -> SeedJob:
    """The same job elsewhere, with nothing done; ``changes`` are keys of the training."""
    keys = {f"train.{name}": value for name, value in changes.items()}
    return SeedJob(small_config(folder, {**QUICK, **keys}), serial.panel, folder / "logs" / "job")


def test_two_workers_one_of_them_killed_give_the_serial_run_bit_for_bit(
    serial: SeedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The killed training goes on from its last checkpoint, in the folder that it had."""
    job, killed = copy(serial, tmp_path), threading.Event()

    def kill() -> None:
        first = job.trainings[0].folder
        while not list(first.glob("*/models/checkpoint_latest*")):
            time.sleep(0.02)
        for process in multiprocessing.active_children():
            if process.pid is not None and opens(process.pid, first):
                os.kill(process.pid, signal.SIGKILL)
                killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    train_all(job.trainings, {job.market: job.panel}, ComputeResources(workers=2))
    killer.join(5.0)
    assert killed.is_set()
    assert "its process was killed (SIGKILL); it is done again" in capsys.readouterr().out
    assert bits_of(job.trainings) == bits_of(serial.trainings)
    assert [len(runs_of(training)) for training in job.trainings] == [1] * SEEDS


def opens(process: int, folder: Path) -> bool:
    """Whether a process has a file of a folder open, such as its log."""
    try:
        return any(str(folder) in os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False


def test_a_training_that_was_killed_before_its_first_latest_checkpoint_is_made_anew_in_one_folder(
    serial: SeedJob, tmp_path: Path
) -> None:
    """The best so far may have been written by then; nothing goes on from it."""
    training, panels = copy(serial, tmp_path, online_episodes=2).trainings[0], {"": serial.panel}
    train_one(panels, training)
    (run,) = runs_of(training)
    (run / "models" / "checkpoint_latest.safetensors").unlink()
    note = training.folder / "training.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "finished": False}))
    (training.folder / "20200101_000000" / "models").mkdir(parents=True)  # killed before it was noted
    train_one(panels, training)
    assert len(runs_of(training)) == 1
    assert finished_best(training, serial.panel) is not None


def test_a_second_start_of_a_training_is_refused_and_leaves_the_first_alone(
    serial: SeedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its first latest checkpoint, a run that is being made looks like one that was killed."""
    training, panels = copy(serial, tmp_path, online_episodes=2).trainings[0], {"": serial.panel}
    honest = FinFlowTrainer.train_iql

    def begin_again(trainer: FinFlowTrainer) -> dict[str, float]:
        monkeypatch.setattr(FinFlowTrainer, "train_iql", honest)
        for where in (ComputeResources(), ComputeResources(cluster="auto")):
            with pytest.raises(OutputError, match=r"another process is training in .*seed-0; wait for it"):
                train_all([training], panels, where)
        return trainer.train_iql()

    monkeypatch.setattr(FinFlowTrainer, "train_iql", begin_again)
    train_one(panels, training)
    assert len(runs_of(training)) == 1
    assert finished_best(training, serial.panel) is not None
    assert not list(training.folder.glob(".*"))


def test_the_folder_of_a_job_keeps_no_password(serial: SeedJob, tmp_path: Path) -> None:
    config = small_config(tmp_path, {"tune.storage": "postgresql://me:secret@db/none"})
    SeedJob(config, serial.panel, tmp_path / "job").begin()
    assert "secret" not in (tmp_path / "job" / "config.yaml").read_text()


def test_a_job_whose_processes_were_all_killed_goes_on_with_what_is_missing(serial: SeedJob, tmp_path: Path) -> None:
    job = copy(serial, tmp_path)
    job.begin()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(tmp_path), changes=QUICK))
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as other:
        while not any(finished_best(one, job.panel) for one in job.trainings):
            assert other.poll() is None
            time.sleep(0.02)
        threads = Path(f"/proc/{other.pid}/task").glob("*/children")  # each worker is that of a thread
        workers = [int(word) for children in threads for word in children.read_text().split()]
        other.kill()
    end = time.monotonic() + 30.0
    while any(is_alive(worker) for worker in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert workers
    assert not any(is_alive(worker) for worker in workers)
    done = [one for one in job.trainings if finished_best(one, job.panel)]
    assert 0 < len(done) < SEEDS
    kept = agents(done)
    with pytest.raises(
        CheckpointError, match=rf"has {len(done)} of {SEEDS} agents; make the others with --mode train --resume"
    ):
        resolve_run(job.folder).find_agents()
    told = describe_trainings([job])
    assert told[0].startswith(f"{SEEDS} trainings, {len(done)} of them finished already; to run: seed ")
    run_all([job])
    assert bits_of(job.trainings) == bits_of(serial.trainings)
    assert agents(done) == kept
    assert [len(runs_of(training)) for training in job.trainings] == [1] * SEEDS
    numbers = [json.loads((one.folder / "reports" / "metrics.json").read_text()) for one in (job, serial)]
    assert numbers[0] == numbers[1]


SCRIPT = """\
from pathlib import Path

from scripts.evidence.durability import small_config
from finflow.experiments.tasks import ComputeResources
from finflow.experiments.jobs.independent_trainings import make_seed_job, train_all

if __name__ == "__main__":
    folder = Path({folder!r})
    job = make_seed_job(small_config(folder, {changes!r}), folder / "logs" / "job")
    train_all(job.trainings, {{"": job.panel}}, ComputeResources(workers=2))
"""


def agents(trainings: Sequence[Training]) -> dict[str, int]:
    """Checkpoints of some agents, and when they were written."""
    return {str(path): path.stat().st_mtime_ns for one in trainings for path in one.folder.glob("*/models/*")}


def test_a_job_reports_its_agents_together_and_the_ensemble_beside_them(
    serial: SeedJob,
    fits_schema: Callable[[Any], list[str]],
    read_page: Callable[[str], Any],
    numbers_hold: Callable[..., int],
) -> None:
    content = json.loads((serial.folder / "reports" / "metrics.json").read_text())
    assert fits_schema(content) == []
    assert content["agent"] == f"ensemble of {SEEDS}"
    found = content["seeds"]
    assert list(found["agents"]) == ["seed 0", "seed 1", "seed 2"]
    spread = found["of_agents"]["sharpe"]
    assert spread["count"] == SEEDS
    assert spread["interval_low"] <= spread["interquartile_mean"] <= spread["interval_high"]
    assert found["ensemble"]["sharpe"] == content["strategies"][content["agent"]]["sharpe"]
    assert found["optimality"]["seed 1"] is not None
    page = read_page((serial.folder / "reports" / "report.html").read_text())
    assert numbers_hold(page, content) > 100
    lines = (serial.config.output.logs_dir / "readings.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"] for line in lines].count(str(serial.folder)) == 1  # read once, by all of them


def test_a_job_is_judged_again_from_its_folder_from_its_checkpoints_or_from_run_folders(
    serial: SeedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = json.loads((serial.folder / "reports" / "metrics.json").read_text())
    elsewhere = ["--set", f"output.logs_dir={tmp_path}"]
    assert main(["--mode", "evaluate", "--resume", str(serial.folder), *elsewhere]) == 0
    again = json.loads((tmp_path / serial.folder.name / "reports" / "metrics.json").read_text())
    assert again["strategies"] == first["strategies"]
    assert "3 agents, equal but for the seed" in capsys.readouterr().out
    two = [str(path) for path in resolve_run(serial.folder).find_agents()[:2]]
    assert main(["--mode", "evaluate", "--resume", *two, *elsewhere]) == 0
    (folder,) = (tmp_path / "ensembles").iterdir()
    together = json.loads((folder / "reports" / "metrics.json").read_text())
    assert together["agent"] == "ensemble of 2"
    assert [Path(path).stem for path in two] == ["checkpoint_best"] * 2  # of run folders the best are judged, too
    outcome = evaluate_agents(load_agents([resolve_run(Path(path)).folder for path in two], {}), tmp_path / "folders")
    named = json.loads(outcome.report.with_name("metrics.json").read_text())
    assert named["strategies"] == together["strategies"]
    assert "is the same agent as" in refusal(capsys, "--mode", "evaluate", "--resume", two[0], two[0], *elsewhere)


def test_agents_that_see_other_things_do_not_act_as_one(serial: SeedJob, tmp_path: Path) -> None:
    job = copy(serial, tmp_path)
    env = job.config.env.model_copy(update={"commission_bps": 77.0})
    train = job.config.train.model_copy(update={"seeds": 1, "offline_training_epochs": 0, "online_episodes": 1})
    other = replace(job, config=job.config.model_copy(update={"env": env, "train": train}))
    (dear,) = train_all(other.trainings, {other.market: other.panel})
    with pytest.raises(CheckpointError, match="was trained with another env section than"):
        load_agents([*resolve_run(serial.folder).find_agents(), dear], {})


def test_an_ensemble_decides_by_the_mean_of_portfolios() -> None:
    ensemble = EnsembleStrategy([Planned([[1.0, 0.0, 0.0]]), Planned([[0.0, 0.5, 0.5]])])
    information = Information(0, np.ones((1, 2)), np.ones(2, dtype=bool), np.array([0.0, 0.0, 1.0]), {})
    assert ensemble.name == "ensemble of 2"
    np.testing.assert_array_equal(ensemble.decide(information), [0.5, 0.25, 0.25])


def test_two_universes_are_trained_side_by_side_and_reported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"market.source": "embedded", "market.start": "2008-01-01", "market.train_end": "2011-12-31"}
    changes |= {"market.validation_end": "2012-01-31", "market.test_end": "2012-06-29"}
    config = small_config(tmp_path, {**QUICK, **changes, "train.seeds": 1})
    (tmp_path / "c.yaml").write_text(dump_config(config))
    (tmp_path / "u.yaml").write_text("banks: JPM, BAC, KO\nothers:\n- AAPL\n- MSFT\n")
    command = ["--mode", "train", "--config", "c.yaml", "--universe", "u.yaml", "--set", "market.source=embedded"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "others, seed 0 (2 of 2)" in said
    (job,) = (path for path in (tmp_path / "logs").iterdir() if path.is_dir())
    together = json.loads((job / "reports" / "metrics.json").read_text())
    for name in ("banks", "others"):
        own = json.loads((job / name / "reports" / "metrics.json").read_text())
        assert together["universes"][name]["sharpe"] == own["strategies"]["finflow"]["sharpe"]
    assert "needs 2 runs or more" in (job / "reports" / "report.html").read_text()
    (tmp_path / "u.yaml").write_text("banks: JPM, BAC\nothers: AAPL NOSUCH\n")
    assert main(command) == 2
    assert "universe 'others': " in capsys.readouterr().err
