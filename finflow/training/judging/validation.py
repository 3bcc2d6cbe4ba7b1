"""Validation of a policy as deployed: its backtest, the metrics, and the score that ranks checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from finflow.agent.batch import States, states_of
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.quantiles import discounted_means, needs_quantiles, sample_risk
from finflow.agent.networks.distributions import kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import FloatArray
from finflow.config import Config
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.chosen_reward import with_reward
from finflow.evaluation.backtest import Backtest, run_backtests, simulate
from finflow.evaluation.statistics.metrics import summarise
from finflow.guard.signals import RewardHackingMonitor, ScoredValidation
from finflow.preferences.preference_reward import PREFERENCE
from finflow.training.data.training_data import TrainingData
from finflow.training.judging.agent_strategy import AgentStrategy


class ValidationBacktest(NamedTuple):
    """A backtest on the validation window with its metrics.

    ``metrics``: of the validation window, net of costs. ``value`` is the mean built-in reward of a decision. Where the
    policy maximises a risk measure, ``risk_value`` is that of the returns from each day on, in units of a day's reward.
    Where a reward model pays, ``score`` is the mean of its score.
    """

    backtest: Backtest
    metrics: dict[str, float]


def backtest_validation(training_data: TrainingData, policy: ExpertPolicy, device: torch.device) -> ValidationBacktest:
    config, process, window = training_data.config, training_data.process, training_data.split.validation

    def agent() -> AgentStrategy:
        return AgentStrategy(policy, device, acting=config.acting)

    (backtest,) = run_backtests(process, window, [agent()])
    rewards = np.asarray(backtest.rewards, dtype=np.float64)
    metrics = {"value": float(rewards.mean())}
    if needs_quantiles(config.bcell):
        metrics["risk_value"] = sample_risk(discounted_means(rewards, config.bcell.gamma), config.bcell)
    model = training_data.learning.reward
    if config.objectives.reward == PREFERENCE and model is not None:  # decisions do not depend on their rewards
        (scored,) = run_backtests(with_reward(process, model), window, [agent()])
        metrics["score"] = float(np.asarray(scored.rewards, dtype=np.float64).mean())
    return ValidationBacktest(backtest, metrics | summarise(backtest, config.objectives.cvar_alpha))


def score_of(metrics: Mapping[str, float], config: Config) -> float:
    by = config.train.best_by
    return metrics["risk_value" if by == "value" and "risk_value" in metrics else by]


def check_reward_model(
    training_data: TrainingData, watch: RewardHackingMonitor | None, bcell: BCell | None, validation: ValidationBacktest
) -> dict[str, float]:
    """Let the guard compare the reward model's score with the metrics of a validation.

    The reference is the policy of ``online.reference`` where that is a file, else the first validation.
    """
    if watch is None or bcell is None:
        return {}
    if watch.reference is None and isinstance(training_data.config.online.reference, Path):
        watch.reference = _figures(backtest_validation(training_data, bcell.held_to, bcell.device))
    figures = _figures(validation)
    watch.check(figures)
    return {"validation_concentration": figures.concentration, "score_correlation": watch.correlation}


def _figures(validation: ValidationBacktest) -> ScoredValidation:
    metrics = validation.metrics
    return ScoredValidation(
        score=float(metrics["score"]),
        sharpe=float(metrics["sharpe"]),
        utility=metrics["value"],
        turnover=float(metrics["annual_turnover"]),
        concentration=float(np.square(validation.backtest.weights).sum(axis=1).mean()),
    )


def generalisation_figures(
    data: TrainingData, policy: ExpertPolicy, device: torch.device, prior: ExpertPolicy | None, probe: States | None
) -> dict[str, float]:
    """Figures of a policy where it learned and where it did not, for a row of metrics.

    All windows are backtested in pieces of about an episode that each begin in cash, so that figures differ by the
    market alone.

    Returns ``value`` (mean reward of a decision) and ``sharpe`` (a year, net, in excess of cash) in the training window
    and the validation window; ``gap``, the value in training less that in validation; and, where there is a policy to
    compare with on given states, ``kl``, the mean divergence from it in nats per free dimension. All names begin with
    ``generalisation_``.
    """
    process, length = data.process, data.config.env.episode_length
    windows = [process.decision_bars(one) for one in (*data.train_segments, data.split.validation)]
    counts = [max(math.ceil(len(bars) / length), 1) for bars in windows]
    whole = [len(bars) // count for bars, count in zip(windows, counts, strict=True)]
    pieces = zip(windows, counts, whole, strict=True)
    starts = np.concatenate([bars.start + size * np.arange(count) for bars, count, size in pieces])
    sizes = np.repeat(whole, counts)
    rewards, excess = np.full((2, int(sizes.max()), len(sizes)), np.nan)  # not a number after a piece's last decision

    @torch.no_grad()
    def decide(step: int, state: PortfolioState) -> FloatArray:
        states = states_of(process.observe(state), device)
        weights = policy(states).distribution.centre().double().cpu().numpy()
        normalised: FloatArray = weights / weights.sum(axis=1, keepdims=True)
        return normalised

    for step, (rows, outcome) in enumerate(simulate(process, process.start(starts), sizes, decide)):
        rewards[step, rows] = outcome.reward
        excess[step, rows] = outcome.simple_return - (process.growth[outcome.state.bar, -1] - 1.0)
    figures: dict[str, float] = {}
    learned = np.arange(len(sizes)) < len(sizes) - counts[-1]
    for name, own in (("train", learned), ("validation", ~learned)):
        returns = excess[:, own][np.isfinite(excess[:, own])]
        deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
        year = math.sqrt(process.panel.bars_per_year)
        figures[f"{name}_value"] = float(np.nanmean(rewards[:, own]))
        figures[f"{name}_sharpe"] = float(returns.mean()) / deviation * year if deviation > 1e-12 else math.nan
    figures["gap"] = figures["train_value"] - figures["validation_value"]
    if prior is not None and probe is not None:
        with torch.no_grad():
            divergence = kl_per_dimension(policy(probe).distribution, prior(probe).distribution)
        figures["kl"] = float(divergence.mean())
    return {f"generalisation_{name}": value for name, value in figures.items()}
