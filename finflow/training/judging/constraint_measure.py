"""Validations where one reward has a limit: its mean as a policy is deployed, and the score that heeds it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.evaluation.backtest import FloatArray, History, simulate, targets_of
from finflow.strategies.strategy import Strategy
from finflow.training.data.reward_choice import constrained
from finflow.training.data.reward_constraint import constrained_score
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy


def measure_constraint(training_data: TrainingData, policy: ExpertPolicy, device: torch.device) -> dict[str, float]:
    """Mean of the reward with a limit in the validation window, as ``constraint``; nothing where none has one."""
    process = constrained(training_data.config, training_data.process)
    if process.constraint is None:
        return {}
    agent = AgentStrategy(policy, device, acting=training_data.config.acting)
    return {"constraint": mean_constrained(process, training_data.split.validation, agent)}


def score_of(metrics: Mapping[str, float], config: Config) -> float:
    """Score of a validation, by ``train.best_by``; a policy within the limit scores above any that is not."""
    by = config.train.best_by
    score = metrics["risk_value" if by == "value" and "risk_value" in metrics else by]
    if "constraint" not in metrics:
        return score
    return constrained_score(score, metrics["constraint"], config.objectives.constraint)


def mean_constrained(process: DecisionProcess, window: range, strategy: Strategy) -> float:
    """Mean per decision of the reward with a limit, in a backtest of its own.

    Parameters
    ----------
    process : DecisionProcess
        With a constraint.
    window : range
        Decisions whose reward reaches beyond it are left out.
    strategy : Strategy
        Fresh; begins in cash.
    """
    bars, history = process.decision_bars(window), History(process.panel.close)

    def decide(step: int, state: PortfolioState) -> FloatArray:
        return targets_of(process, state, [strategy], step, bars[step], history)

    start = process.start(np.array([bars.start], dtype=np.int64))
    played = simulate(process, start, np.array([len(bars)]), decide)
    return float(np.mean([outcome.constrained[0] for _, outcome in played]))
