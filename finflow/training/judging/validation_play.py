"""The play of a policy on the validation window, as it is deployed, and everything that is measured of it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from finflow.agent.losses.risk import discounted_means, needs_quantiles, sample_risk
from finflow.agent.networks.policy import ExpertPolicy
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.judging.constraint_measure import measure_constraint
from finflow.training.judging.hacking_measure import measure_score


class ValidationPlay(NamedTuple):
    """A play with its metrics.

    Attributes
    ----------
    backtest : Backtest
    metrics : dict
        Of the validation window, net of costs. ``value`` is the mean built-in reward of a decision. Where the policy
        climbs a risk measure, ``risk_value`` is that of the returns from each day on, in units of a day's reward. Where
        a reward has a limit, ``constraint`` is its mean; where a reward model pays, ``score`` is that of its score.
    """

    backtest: Backtest
    metrics: dict[str, float]


def play_validation(training_data: TrainingData, policy: ExpertPolicy, device: torch.device) -> ValidationPlay:
    """Backtest a policy, acting as configured, on the validation window."""
    config = training_data.config
    agent = AgentStrategy(policy, device, acting=config.acting)
    (backtest,) = run_backtests(training_data.process, training_data.split.validation, [agent])
    if backtest.rewards is None:
        raise ValueError("a backtest of the agent has rewards")
    value = {"value": float(backtest.rewards.mean())}
    if needs_quantiles(config.bcell):
        value["risk_value"] = sample_risk(discounted_means(backtest.rewards, config.bcell.gamma), config.bcell)
    value |= measure_constraint(training_data, policy, device)
    value |= measure_score(training_data, policy, device)
    return ValidationPlay(backtest, {**value, **summarise(backtest, config.objectives.cvar_alpha)})
