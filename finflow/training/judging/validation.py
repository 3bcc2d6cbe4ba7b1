"""Validation of a policy as deployed: its backtest, the metrics, and the score that ranks checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.batch import States, states_of
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.quantiles import discounted_means, needs_quantiles, sample_risk
from finflow.agent.networks.logistic_normal import kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.chosen_reward import with_reward
from finflow.evaluation.backtest import Backtest, FloatArray, run_backtests, simulate
from finflow.evaluation.statistics.metrics import summarise
from finflow.guard.guard_state import RewardHackingMonitor, ScoredValidation
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


def _rewards(backtest: Backtest) -> FloatArray:
    if backtest.rewards is None:
        raise ValueError("a backtest of the agent has rewards")
    return backtest.rewards


PREFIX = "generalisation_"


def generalisation_figures(data: TrainingData, policy: ExpertPolicy, device: torch.device) -> dict[str, float]:
    """Figures of a policy where it learned and where it did not, for a row of metrics.

    All windows are backtested in pieces of about an episode that each begin in cash, so that figures differ by the
    market alone.

    Returns ``value`` (mean reward of a decision) and ``sharpe`` (a year, net, in excess of cash) in the training window
    and the validation window; ``gap``, the value in training less that in validation. All names begin with
    ``generalisation_``.
    """
    process = data.process
    starts, sizes, names = [], [], []
    for name, window in (*(("train", one) for one in data.train_segments), ("validation", data.split.validation)):
        first, size = pieces(process.decision_bars(window), data.config.env.episode_length)
        starts.append(first)
        sizes.append(np.full(len(first), size))
        names += [name] * len(first)
    state = process.start(np.concatenate(starts))
    rewards, excess = backtest_pieces(process, policy, state, np.concatenate(sizes), device)
    figures: dict[str, float] = {}
    for name in ("train", "validation"):
        own = np.array(names) == name
        returns = excess[:, own][np.isfinite(excess[:, own])]
        deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
        year = math.sqrt(process.panel.bars_per_year)
        figures[f"{name}_value"] = float(np.nanmean(rewards[:, own]))
        figures[f"{name}_sharpe"] = float(returns.mean()) / deviation * year if deviation > 1e-12 else math.nan
    figures["gap"] = figures["train_value"] - figures["validation_value"]
    return {PREFIX + name: value for name, value in figures.items()}


@torch.no_grad()
def mean_kl(policy: ExpertPolicy, prior: ExpertPolicy, states: States) -> float:
    """Mean KL divergence of a policy from another on given states, in nats per free dimension."""
    return float(kl_per_dimension(policy(states).distribution, prior(states).distribution).mean())


def pieces(bars: range, length: int) -> tuple[NDArray[np.int64], int]:
    """Cut a window into pieces; returns their first bars and their common length, an episode at most."""
    count = max(math.ceil(len(bars) / length), 1)
    size = len(bars) // count
    return bars.start + size * np.arange(count), size


def backtest_pieces(
    process: DecisionProcess,
    policy: ExpertPolicy,
    state: PortfolioState,
    sizes: NDArray[np.int64],
    device: torch.device,
) -> tuple[FloatArray, FloatArray]:
    """Backtest a policy in many pieces at once, each with its own number of decisions.

    Returns ``rewards, excess``, (steps, N): excess of the net return over cash; not a number after a portfolio's last
    decision.
    """
    rewards, excess = np.full((2, int(sizes.max()), len(sizes)), np.nan)

    def decide(step: int, state: PortfolioState) -> FloatArray:
        with torch.no_grad():
            states = states_of(process.observe(state), device)
            weights = policy(states).distribution.centre().double().cpu().numpy()
        normalised: FloatArray = weights / weights.sum(axis=1, keepdims=True)
        return normalised

    for step, (rows, outcome) in enumerate(simulate(process, state, sizes, decide)):
        rewards[step, rows] = outcome.reward
        excess[step, rows] = outcome.simple_return - (process.growth[outcome.state.bar, -1] - 1.0)
    return rewards, excess
