"""One training in progress: its data, its state, its folder, and what both phases do between updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import FloatArray, IntArray
from finflow.config import Config, OutputConfig, config_hash, dump_run
from finflow.errors import FinflowError, TrainingError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.statistics.metrics import cvar, sharpe
from finflow.files import write_atomically
from finflow.guard.checkpoint_folder import BEST, MODELS, CheckpointFolder, CheckpointWriter, capture
from finflow.guard.signals import ALARM, WARNING, Event, advice_on, crossed, stop_report
from finflow.offline.dataset import OfflineDataset
from finflow.training.checkpoints.checkpoint_reader import feature_names
from finflow.training.checkpoints.run_folder import runtime
from finflow.training.data.mirrored_growth import Predictions
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.validation import (
    backtest_validation,
    check_reward_model,
    generalisation_figures,
    score_of,
)
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.logs.run_log import RunLog, UpdateProfiler
from finflow.training.phases.run_guard import RunGuard
from finflow.training.phases.stopping import stop_requested
from finflow.training.phases.training_state import TrainingState

GUARD_REPORT = "guard-report.md"
LOG_EVERY = 50  # updates between two rows of metrics


@dataclass(frozen=True)
class Validation:
    """Result of a training so far on its validation window."""

    phase: str
    update: int  # updates so far, over both phases
    phase_update: int  # in this one
    score: float  # figure of ``train.best_by``, which the best checkpoint has most of
    best: bool  # true for the best so far
    backtest: Backtest


OnValidation = Callable[[Validation], None]
"""Receives every validation; an exception that it raises ends the training."""


@dataclass
class TrainingRun:
    config: Config
    training_data: TrainingData
    dataset: OfflineDataset
    device: torch.device
    state: TrainingState
    folder: Path
    log: RunLog
    progress: ProgressDisplay
    probe: States | None = None
    on_validation: OnValidation | None = None
    pretrained_blocks: list[dict[str, NDArray[np.float32]]] = field(default_factory=list)
    predictions: Predictions = field(default_factory=dict)  # of the market that is learned in

    @cached_property
    def profiler(self) -> UpdateProfiler:
        return UpdateProfiler(self.folder)

    @cached_property
    def guard(self) -> RunGuard:
        return RunGuard(self.config, self.state, self._announce, self._abort)

    @cached_property
    def checkpoints(self) -> CheckpointFolder:
        train = self.config.train
        return CheckpointFolder(self.folder / MODELS, train.max_checkpoints, train.save_best, train.save_latest)

    @cached_property
    def writer(self) -> CheckpointWriter:
        return CheckpointWriter(self.checkpoints, self.progress.message, self.log.make_durable)

    @cached_property
    def _unchanging(self) -> dict[str, object]:
        return {
            "config": dump_run(self.config.model_copy(update={"output": OutputConfig()})),
            "config_hash": config_hash(self.config),
            "market": self.training_data.process.panel.sha256,
            "shape": self.training_data.shape._asdict(),
            "features": feature_names(self.training_data.features),
            "bcell": self.config.bcell.model_dump(mode="json"),
            "runtime": runtime(self.device),
        }

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """The state as tensors and JSON, with what is needed to use or resume it."""
        tensors, state = capture(self.state)
        return tensors, {"training": state, "log": self.log.position(), **self._unchanging}

    def checkpoint(self) -> None:
        self.writer.save(self.state.counters.update, self.snapshot)

    def count_update(
        self, metrics: Mapping[str, Tensor], facts: Mapping[str, float] | None = None, steps: int = 1
    ) -> bool:
        """Count an update, log a row of metrics every few of them, and let the guard check it."""
        counters = self.state.counters
        counters.update += steps
        counters.phase_update += steps
        if metrics and crossed(counters.phase_update, steps, LOG_EVERY):
            entropies = self.guard.probe.entropies()
            row = {name: float(value) for name, value in metrics.items()} | entropies
            self.log.record(counters.phase, counters.update, {**row, **(facts or {})})
        self.progress.advance(steps)
        if self.config.train.profile:
            self.profiler.after_update(counters.phase, counters.phase_update, self.progress.total)
        done = counters.phase_update
        rolled_back = self.guard.after_update(metrics, steps)
        if rolled_back:
            self.progress.advance(counters.phase_update - done)
        return rolled_back

    def running_figures(self, returns: FloatArray, bars: IntArray) -> dict[str, float]:
        """Sharpe ratio a year and CVaR of net returns of the training's own portfolios, earned at bars, if finite."""
        process, earned = self.training_data.learning, returns.ravel()
        if not earned.size:
            return {}
        ratio = sharpe(earned, process.growth[bars.ravel(), -1] - 1.0, process.panel.bars_per_year)
        found = {"sharpe": float(ratio), "cvar": float(cvar(earned, self.config.objectives.cvar_alpha))}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def check_reference(self, divergence: float, decisions: int) -> None:
        """Take the mean KL to the reference, in nats per free dimension, over decisions; may end the phase early."""
        reference = self.state.reference
        if reference is not None and (reason := reference.update(divergence, decisions)):
            if self.state.watch.hacking is not None:
                self._stop_hacked(reason)
            self.guard.say(WARNING, "reference", reason)

    @property
    def is_out_of_patience(self) -> bool:
        """Return True after a validation of the offline phase where the best is ``offline.patience`` updates old.

        Never without a method: a policy that stands still has no better validation.
        """
        counters, offline, patience = self.state.counters, self.config.offline, self.config.offline.patience
        if offline.method == "none" or not patience or counters.best_update is None or counters.phase_update == 0:
            return False
        is_validated = counters.phase_update % self.config.train.validation_updates == 0
        return is_validated and counters.update - counters.best_update >= patience

    def stop_if_asked(self) -> None:
        """Write the latest checkpoint and raise KeyboardInterrupt after ``request_stop``."""
        if stop_requested():
            self.checkpoint()
            raise KeyboardInterrupt

    def validate(self, policy: ExpertPolicy, facts: Mapping[str, float | str] | None = None) -> dict[str, float]:
        """Backtest the policy, acting as configured, on the validation window; keep it if it is the best so far.

        Returns the metrics. ``risk_value`` stands in for the value in the choice of the best where there is one, and a
        policy within the limit of a reward is better than any that is not. Where a reward model pays, the guard
        compares its score with the metrics, and may end the training.
        """
        counters = self.state.counters
        backtest, metrics = validation = backtest_validation(self.training_data, policy, self.device)
        sharpe = metrics["sharpe"]  # not a number for a policy that only ever held cash
        row = {**{f"validation_{name}": value for name, value in metrics.items()}, **(facts or {})}
        prior = None if self.state.bcell is None else self.state.bcell.prior
        row |= generalisation_figures(self.training_data, policy, self.device, prior, self.probe)
        watch = self.state.watch.hacking
        row |= check_reward_model(self.training_data, watch, self.state.bcell, validation)
        self.log.record(counters.phase, counters.update, {**row, "sharpe": sharpe, "cvar": metrics["cvar"]})
        score = score_of(metrics, self.config)
        best = math.isfinite(score) and (counters.best_score is None or score > counters.best_score)
        if best:
            counters.best_score, counters.best_update = float(score), counters.update
            self.writer.save_as(BEST, self.snapshot())
        self.progress.advance(0, sharpe=sharpe)
        self.guard.after_validation(sharpe, score)
        if self.on_validation is not None:
            self.on_validation(
                Validation(counters.phase, counters.update, counters.phase_update, score, best, backtest)
            )
        if watch is not None and watch.reasons:
            self._stop_hacked("; ".join(watch.reasons))
        return metrics

    def _announce(self, event: Event) -> None:
        self.log.event(event.row())
        self.progress.message(f"guard, {event.level}: {event.message} (update {event.update:,})")

    def _stop_hacked(self, reason: str) -> NoReturn:
        counters, event = self.state.counters, self.guard.say(ALARM, "hacking", f"reward hacking: {reason}")
        self._abort(
            f"training stopped at update {counters.update} of the {counters.phase} phase: {event.message}", [event]
        )

    def _abort(self, reason: str, alarms: Sequence[Event]) -> NoReturn:
        """Write the state and a report on the alarms that ended the training, and raise TrainingError."""
        self.checkpoint()
        advice, report = advice_on(alarms), self.folder / GUARD_REPORT
        manager = self.state.watch.manager
        figures = {**manager.get_statistics(), "learning_rate_share": manager.share}
        write_atomically(report, stop_report(reason, advice, figures))
        raise TrainingError(f"{reason}; {', or '.join(advice)}; {report} says more")


def validate_and_save(
    run: TrainingRun,
    policy: ExpertPolicy,
    metrics: Mapping[str, Tensor] | Mapping[str, float],
    facts: Mapping[str, float],
    last: bool = False,
    steps: int = 1,
    new_episodes: float = 0.0,
) -> dict[str, float]:
    """Validate and write checkpoints where they are due; ``facts`` are logged with a validation.

    ``new_episodes``: of the online phase, since the update before; ``facts`` have the ``episode`` then.

    Returns the update's metrics and the validation's; empty where no validation was due.
    """
    train, updates, episode = run.config.train, run.state.counters.phase_update, facts.get("episode", 0.0)
    result: dict[str, float] = {}
    if last or crossed(updates, steps, train.validation_updates):
        validated = run.validate(policy, facts)
        result = {**{name: float(value) for name, value in metrics.items()}, **validated}
    interval = train.checkpoint_interval
    due = math.floor(episode / interval) > math.floor((episode - new_episodes) / interval)
    if last or due or crossed(updates, steps, train.checkpoint_updates):
        run.checkpoint()
    return result


@contextmanager
def kept_on_failure(run: TrainingRun, restore: Callable[[], None]) -> Iterator[None]:
    """Write a checkpoint of the state before the block, where an error ends the block that a user can mend."""
    drawn = run.state.exploration.get_state()
    try:
        yield
    except FinflowError:
        run.state.exploration.set_state(drawn)
        restore()
        run.checkpoint()
        run.progress.message(f"nothing is lost: --resume {run.folder} goes on before the decisions that failed")
        raise
