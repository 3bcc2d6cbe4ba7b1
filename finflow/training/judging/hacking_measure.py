"""Validations on a reward model: what is true of the same decisions, and the reference that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.policy import ExpertPolicy
from finflow.env.rewards.chosen_reward import with_reward
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.guard.reward_hacking import RewardHackingMonitor, ScoredValidation
from finflow.preferences.preference_reward import PREFERENCE
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy


def measure_score(training_data: TrainingData, policy: ExpertPolicy, device: torch.device) -> dict[str, float]:
    """Mean score of a decision by the reward model in the validation window, as ``score``; nothing without one.

    No decision depends on what it is paid: the play is that of the validation, which the built-in reward judges.
    """
    config = training_data.config
    reward = training_data.learning.process.reward
    if config.objectives.reward != PREFERENCE or reward is None:
        return {}
    agent = AgentStrategy(policy, device, acting=config.acting)
    (run,) = run_backtests(with_reward(training_data.process, reward), training_data.split.validation, [agent])
    return {"score": _mean_reward(run)}


def look_at_score(
    training_data: TrainingData,
    watch: RewardHackingMonitor | None,
    bcell: BCell | None,
    run: Backtest,
    metrics: Mapping[str, float],
) -> dict[str, float]:
    """Let the guard look at a validation play; figures for its row of metrics, none but in the online phase."""
    if watch is None or bcell is None:
        return {}
    if watch.reference is None:
        watch.reference = look_of_reference(training_data, bcell)
    found = look_of(run, metrics)
    watch.check(found)
    return {"validation_concentration": found.concentration, "score_correlation": watch.correlation}


def look_of(run: Backtest, metrics: Mapping[str, float]) -> ScoredValidation:
    """Figures of a validation play with its metrics, ``score`` among them."""
    return ScoredValidation(
        score=float(metrics["score"]),
        sharpe=float(metrics["sharpe"]),
        utility=_mean_reward(run),
        turnover=float(metrics["annual_turnover"]),
        concentration=float(np.square(run.weights).sum(axis=1).mean()),
    )


def look_of_reference(training_data: TrainingData, bcell: BCell) -> ScoredValidation | None:
    """Look at the policy of ``online.reference`` where it is a file; None where it is the one that was handed over."""
    config = training_data.config
    if not isinstance(config.online.reference, Path):
        return None
    agent = AgentStrategy(bcell.held_to, bcell.device, acting=config.acting)
    (run,) = run_backtests(training_data.process, training_data.split.validation, [agent])
    metrics = {
        **summarise(run, config.objectives.cvar_alpha),
        **measure_score(training_data, bcell.held_to, bcell.device),
    }
    return look_of(run, metrics)


def _mean_reward(run: Backtest) -> float:
    if run.rewards is None:
        raise ValueError("a backtest of the agent has rewards")
    return float(run.rewards.mean())
