"""Value of a policy where it learned and where it did not, measured at every validation.

All windows are backtested in pieces of about an episode that each begin in cash, so that figures differ by the market
alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.batch import States, states_of
from finflow.agent.networks.logistic_normal import kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.evaluation.backtest import simulate
from finflow.training.data.training_data import TrainingData

FloatArray = NDArray[np.float64]

PREFIX = "generalisation_"


class GeneralisationMeasure:
    """Figures of a policy in the training window and the validation window."""

    def __init__(self, config: Config, data: TrainingData, device: torch.device) -> None:
        self.config = config
        self.data = data
        self.device = device

    def measure(self, policy: ExpertPolicy) -> dict[str, float]:
        """Figures for a row of metrics; empty where ``train.generalisation`` is off.

        Parameters
        ----------
        policy : ExpertPolicy
            The one that would be deployed.

        Returns
        -------
        dict
            ``value`` (mean reward of a decision) and ``sharpe`` (a year, net, in excess of cash) in the training window
            and the validation window; ``gap``, the value in training less that in validation. All names begin with
            ``generalisation_``.
        """
        if not self.config.train.generalisation:
            return {}
        figures = self._windows(policy)
        figures["gap"] = figures["train_value"] - figures["validation_value"]
        return {PREFIX + name: value for name, value in figures.items()}

    def _windows(self, policy: ExpertPolicy) -> dict[str, float]:
        """The training window and the validation window, side by side."""
        data, process = self.data, self.data.process
        train = [data.train] if isinstance(data.train, range) else list(data.train)
        starts, sizes, names = [], [], []
        for name, window in (*(("train", one) for one in train), ("validation", data.split.validation)):
            first, size = pieces(process.decision_bars(window), self.config.env.episode_length)
            starts.append(first)
            sizes.append(np.full(len(first), size))
            names += [name] * len(first)
        state = process.start(np.concatenate(starts))
        rewards, excess = backtest_pieces(process, policy, state, np.concatenate(sizes), self.device)
        figures: dict[str, float] = {}
        year = process.panel.bars_per_year
        for name in ("train", "validation"):
            own = np.array(names) == name
            figures |= _figures(name, rewards[:, own], excess[:, own], year)
        return figures


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

    Returns
    -------
    rewards, excess : array, (steps, N)
        Excess of the net return over cash; not a number after a portfolio's last decision.
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


def _figures(name: str, rewards: FloatArray, excess: FloatArray, bars_per_year: int) -> dict[str, float]:
    """Mean reward and annual Sharpe ratio."""
    returns = excess[np.isfinite(excess)]
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    sharpe = float(returns.mean()) / deviation * math.sqrt(bars_per_year) if deviation > 1e-12 else math.nan
    return {f"{name}_value": float(np.nanmean(rewards)), f"{name}_sharpe": sharpe}
