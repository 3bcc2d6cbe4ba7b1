"""Validation of a policy as deployed: its backtest, the metrics, and the score that ranks checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.risk import discounted_means, needs_quantiles, sample_risk
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.rewards.chosen_reward import with_reward
from finflow.evaluation.backtest import Backtest, FloatArray, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.guard.reward_hacking import RewardHackingMonitor, ScoredValidation
from finflow.preferences.preference_reward import PREFERENCE
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy


class ValidationBacktest(NamedTuple):
    """A backtest on the validation window with its metrics.

    Attributes
    ----------
    metrics : dict
        Of the validation window, net of costs. ``value`` is the mean built-in reward of a decision. Where the policy
        maximises a risk measure, ``risk_value`` is that of the returns from each day on, in units of a day's reward.
        Where a reward model pays, ``score`` is the mean of its score.
    """

    backtest: Backtest
    metrics: dict[str, float]


def backtest_validation(training_data: TrainingData, policy: ExpertPolicy, device: torch.device) -> ValidationBacktest:
    """Backtest a policy, acting as configured, on the validation window."""
    config, process, window = training_data.config, training_data.process, training_data.split.validation

    def agent() -> AgentStrategy:
        return AgentStrategy(policy, device, acting=config.acting)

    (backtest,) = run_backtests(process, window, [agent()])
    rewards = _rewards(backtest)
    metrics = {"value": float(rewards.mean())}
    if needs_quantiles(config.bcell):
        metrics["risk_value"] = sample_risk(discounted_means(rewards, config.bcell.gamma), config.bcell)
    model = training_data.learning.reward
    if config.objectives.reward == PREFERENCE and model is not None:  # decisions do not depend on their rewards
        (scored,) = run_backtests(with_reward(process, model), window, [agent()])
        metrics["score"] = float(_rewards(scored).mean())
    return ValidationBacktest(backtest, metrics | summarise(backtest, config.objectives.cvar_alpha))


def score_of(metrics: Mapping[str, float], config: Config) -> float:
    """Score of a validation, by ``train.best_by``."""
    by = config.train.best_by
    return metrics["risk_value" if by == "value" and "risk_value" in metrics else by]


def check_reward_model(
    training_data: TrainingData, watch: RewardHackingMonitor | None, bcell: BCell | None, validation: ValidationBacktest
) -> dict[str, float]:
    """Let the guard compare the reward model's score with the metrics of a validation.

    The reference is the policy of ``online.reference`` where that is a file, else the first validation.

    Returns
    -------
    dict
        Figures for the validation's row; none but in the online phase.
    """
    if watch is None or bcell is None:
        return {}
    if watch.reference is None and isinstance(training_data.config.online.reference, Path):
        watch.reference = _figures(backtest_validation(training_data, bcell.held_to, bcell.device))
    figures = _figures(validation)
    watch.check(figures)
    return {"validation_concentration": figures.concentration, "score_correlation": watch.correlation}


def _figures(validation: ValidationBacktest) -> ScoredValidation:
    """Figures that the guard compares."""
    metrics = validation.metrics
    return ScoredValidation(
        score=float(metrics["score"]),
        sharpe=float(metrics["sharpe"]),
        utility=metrics["value"],
        turnover=float(metrics["annual_turnover"]),
        concentration=float(np.square(validation.backtest.weights).sum(axis=1).mean()),
    )


def _rewards(backtest: Backtest) -> FloatArray:
    if backtest.rewards is None:
        raise ValueError("a backtest of the agent has rewards")
    return backtest.rewards
