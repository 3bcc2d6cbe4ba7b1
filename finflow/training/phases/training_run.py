"""One training in progress: its data, its state, its folder, and what both phases do between updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.losses.risk import discounted_means, needs_quantiles, sample_risk
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config, OutputConfig, config_hash, dump_run
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.guard.checkpoint_folder import BEST, MODELS, CheckpointFolder, CheckpointWriter
from finflow.guard.state_capture import capture
from finflow.training.checkpoints.checkpoint_reader import feature_names
from finflow.training.checkpoints.runtime import runtime
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.logs.profiling import UpdateProfiler
from finflow.training.logs.progress_display import ProgressDisplay
from finflow.training.logs.run_log import EVENTS, METRICS, RunLog
from finflow.training.phases import generalisation_measure as generalisation
from finflow.training.phases.run_guard import RunGuard
from finflow.training.phases.stopping import stop_requested
from finflow.training.phases.training_state import TrainingState

LOG_EVERY = 50  # updates between two rows of metrics


@dataclass(frozen=True)
class Validation:
    """What a training was worth at one point of it, on its validation window.

    Attributes
    ----------
    phase : str
    update, phase_update : int
        Updates so far, over both phases and in this one.
    score : float
        Of ``train.best_by``: what the best checkpoint has most of.
    best : bool
        Whether it is the best so far.
    backtest : Backtest
    """

    phase: str
    update: int
    phase_update: int
    score: float
    best: bool
    backtest: Backtest


OnValidation = Callable[[Validation], None]
"""Is told of every validation; what it raises ends the training."""


@dataclass
class TrainingRun:
    """A training and everything around it.

    Attributes
    ----------
    config : Config
    training_data : TrainingData
    device : torch.device
    state : TrainingState
    folder : Path
    log : RunLog
    progress : ProgressDisplay
    probe : States or None
        Recorded states on which policies are compared, from the beginning of a phase on.
    on_validation : callable, optional
        Is told of every validation.
    """

    config: Config
    training_data: TrainingData
    device: torch.device
    state: TrainingState
    folder: Path
    log: RunLog
    progress: ProgressDisplay
    probe: States | None = None
    on_validation: OnValidation | None = None

    @cached_property
    def profiler(self) -> UpdateProfiler:
        """Writes traces into the run folder."""
        return UpdateProfiler(self.folder)

    @cached_property
    def guard(self) -> RunGuard:
        """Watches every update, and takes the state back where it must."""
        return RunGuard(self)

    @cached_property
    def checkpoints(self) -> CheckpointFolder:
        """The run's checkpoints."""
        train = self.config.train
        return CheckpointFolder(self.folder / MODELS, train.max_checkpoints, train.save_best, train.save_latest)

    @cached_property
    def writer(self) -> CheckpointWriter:
        """Writes them; learning goes on where that fails."""
        return CheckpointWriter(self.checkpoints, self.progress.message)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """The state as tensors and JSON, with what is needed to use or resume it."""
        tensors, state = capture(self.state)
        position = {name: place for name, place in self.log.position().items() if name in (METRICS, EVENTS, "step")}
        return tensors, {
            "training": state,
            "config": dump_run(self.config.model_copy(update={"output": OutputConfig()})),
            "config_hash": config_hash(self.config),
            "market": self.training_data.process.panel.sha256,
            "shape": self.training_data.shape._asdict(),
            "features": feature_names(self.training_data.features),
            "bcell": self.config.bcell.model_dump(mode="json"),
            "log": position,
            "runtime": runtime(self.device),
        }

    def checkpoint(self) -> None:
        """Write the latest and a numbered checkpoint."""
        self.writer.save(self.state.counters.update, self.snapshot)

    def count_update(self, metrics: Mapping[str, Tensor], facts: Mapping[str, float] | None = None) -> bool:
        """Count an update; write a row of metrics now and then, and have the guard look at it.

        Parameters
        ----------
        metrics : mapping of Tensor
            Empty for an update that was skipped.

        Returns
        -------
        bool
            Whether the guard took the state back to an earlier one.
        """
        counters = self.state.counters
        counters.update += 1
        counters.phase_update += 1
        if metrics and counters.phase_update % LOG_EVERY == 0:
            row = {name: float(value) for name, value in metrics.items()}
            self.log.record(counters.phase, counters.update, {**row, **(facts or {})})
        self.progress.advance(1)
        if self.config.train.profile:
            self.profiler.after_update(counters.phase, counters.phase_update)
        return self.guard.after_update(metrics)

    def stop_if_asked(self) -> None:
        """Write the latest checkpoint and raise KeyboardInterrupt after ``request_stop``."""
        if stop_requested():
            self.checkpoint()
            raise KeyboardInterrupt

    def validate(self, policy: ExpertPolicy, facts: Mapping[str, float] | None = None) -> dict[str, float]:
        """Backtest the deterministic policy on the validation window; keep it if it is the best so far.

        Returns
        -------
        dict
            Metrics of the validation window, net of costs; ``value`` is the mean reward of a decision. Where the policy
            climbs a risk measure, ``risk_value`` is that of the returns from each day on, in units of a day's reward,
            and stands in for the value in the choice of the best.
        """
        counters = self.state.counters
        agent = AgentStrategy(policy, self.device)
        (backtest,) = run_backtests(self.training_data.process, self.training_data.split.validation, [agent])
        if backtest.rewards is None:
            raise ValueError("a backtest of the agent has rewards")
        value, bcell = {"value": float(backtest.rewards.mean())}, self.config.bcell
        if needs_quantiles(bcell):
            value["risk_value"] = sample_risk(discounted_means(backtest.rewards, bcell.gamma), bcell)
        metrics = {**value, **summarise(backtest, self.config.objectives.cvar_alpha)}
        sharpe = metrics["sharpe"]  # not a number for a policy that only ever held cash
        row = {**{f"validation_{name}": value for name, value in metrics.items()}, **(facts or {})}
        row |= generalisation.measure(self, policy)
        self.log.record(counters.phase, counters.update, {**row, "sharpe": sharpe, "cvar": metrics["cvar"]})
        by = self.config.train.best_by
        score = metrics["risk_value" if by == "value" and "risk_value" in metrics else by]
        best = math.isfinite(score) and (counters.best_score is None or score > counters.best_score)
        if best:
            counters.best_score, counters.best_update = float(score), counters.update
            self.writer.save_as(BEST, self.snapshot())
        self.progress.advance(0, sharpe=sharpe)
        self.guard.after_validation(sharpe, score)
        if self.on_validation is not None:
            told = Validation(counters.phase, counters.update, counters.phase_update, score, best, backtest)
            self.on_validation(told)
        return metrics
