"""Overhead of a search over its trainings, and the speed-up by a second worker."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from benchmark_tools import Seconds, seconds_of

from finflow.config import Config, TuneConfig, load_config
from finflow.experiments.tasks.task_runner import ComputeResources
from finflow.experiments.tuning.study import Tuning, begin, stored_study
from finflow.experiments.tuning.trial_training import StepTimer
from finflow.experiments.tuning.trial_worker import run_claimed_trial
from finflow.experiments.tuning.tuning import tune
from finflow.training.trainer import FinFlowTrainer

DEMO = Path(__file__).resolve().parents[1] / "configs" / "demo.yaml"
SPACE = {"bcell.gamma": {"low": 0.98, "high": 0.99}}  # trainings of one length


def benchmark_tune(given: argparse.Namespace) -> None:
    """Print a trial and the same training alone, in turn, and the rates of one worker and of two."""
    with tempfile.TemporaryDirectory() as folder:
        _overhead(Path(folder) / "overhead", given.rounds)
        _workers(Path(folder) / "workers", 2 * given.rounds)


def _config(folder: Path, trials: int) -> Config:
    keys: dict[str, object] = {
        "output.logs_dir": f"{folder}/logs",
        "output.offline_dir": f"{folder}/offline",
        "tune.folds": 1,
        "tune.seeds": 1,
        "tune.pruner": "none",
        "tune.n_trials": trials,
        "tune.space": SPACE,
    }
    return load_config(DEMO, keys, environ={})


def _overhead(folder: Path, rounds: int) -> None:
    tuning = begin(_config(folder, rounds + 1))
    trials: list[Seconds] = []
    alone: list[Seconds] = []
    for number in range(rounds + 1):
        trial = tuning.store.claim()
        if trial is None:
            raise ValueError("there are as many trials as rounds")
        took = seconds_of(partial(run_claimed_trial, tuning, trial, lambda line: None))
        bare = _bare(tuning, folder)
        if number:  # in the first, everything is still being set up, and the data are collected
            trials.append(took)
            alone.append(bare)
    for place, name in enumerate(("clock", "processor")):
        whole, training = (statistics.median(times[place] for times in found) for found in (trials, alone))
        print(
            f"{name:10} a trial {whole:6.2f} s, its training alone {training:6.2f} s: {whole / training - 1.0:+.1%} "
            f"(medians of {rounds})"
        )


def _bare(tuning: Tuning, folder: Path) -> Seconds:
    """Duration of the same training without a study; its market is there."""
    (fold,) = tuning.context.folds
    output = tuning.config.output.model_copy(
        update={"logs_dir": folder / "alone", "offline_dir": tuning.folder / "scratch" / "offline"}
    )
    rare = {"save_latest": False, "max_checkpoints": 0, "checkpoint_interval": 10**9, "checkpoint_updates": 10**9}
    train = tuning.config.train.model_copy(update=rare)
    config = tuning.config.model_copy(update={"output": output, "train": train, "tune": TuneConfig()})
    training_data = tuning.context.training_data(fold, config)

    def train_alone() -> None:
        trainer = FinFlowTrainer(config, training_data=training_data, progress=StepTimer(None))
        trainer.train_iql()
        trainer.finetune()

    return seconds_of(train_alone)


def _workers(folder: Path, trials: int) -> None:
    rates = {}
    for workers in (1, 2):
        outcome = tune(_config(folder / str(workers), trials), None, ComputeResources(workers), lambda line: None)
        found = begin(stored_study(outcome.folder), outcome.folder).store.trials
        starts = [trial.datetime_start for trial in found if trial.datetime_start is not None]
        ends = [trial.datetime_complete for trial in found if trial.datetime_complete is not None]
        rates[workers] = trials / (max(ends) - min(starts)).total_seconds()
    one, two = rates[1] * 3600.0, rates[2] * 3600.0
    print(f"one worker {one:.0f} trials an hour, two {two:.0f}: {two / one:.2f} times as many ({trials} trials each)")
