"""Recorded transitions: decisions, their outcomes in money, and lambda-returns along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.strategies.behaviour import FAMILIES

FloatArray = NDArray[np.float64]
SOURCES = (*FAMILIES, "coverage", "decisions")
"""Sources of decisions: the five families, the coverage mixture, and the user's own files."""
COVERAGE, DECISIONS = SOURCES.index("coverage"), SOURCES.index("decisions")

Rows = dict[str, NDArray[Any]]
"""Columns of transitions, an episode's rows after one another; and ``net_return``, ``cash_return``, ``cost`` and
``turnover`` of each, for the data card alone."""

COLUMNS = {
    "bar": np.int32,
    "portfolio": np.float32,
    "action": np.float32,
    "reward": np.float32,
    "next_portfolio": np.float32,
    "next_action": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "episode": np.int32,
    "family": np.int8,
}
"""Columns of a dataset and their types."""


class Recorder:
    """Collects the steps of N portfolios that step together."""

    def __init__(self, process: DecisionProcess) -> None:
        self.process = process
        self._steps: dict[str, list[NDArray[Any]]] = {}

    def add(self, before: PortfolioState, after: PortfolioState, **values: NDArray[Any]) -> None:
        """Add one step of every portfolio: the states around it, and the other columns as they are, (N, ...)."""
        recorded = {
            "bar": before.bar,
            "portfolio": self.process.observed_portfolio(before),
            "next_portfolio": self.process.observed_portfolio(after),
            "net_return": after.wealth / before.wealth - 1.0,
            "cash_return": self.process.growth[before.bar + 1, -1] - 1.0,
            **values,
        }
        for name, value in recorded.items():
            self._steps.setdefault(name, []).append(np.asarray(value))

    def replace(self, name: str, values: Sequence[NDArray[Any]]) -> None:
        """Replace a column by the values of each step, (N, ...), that were computed later."""
        if len(values) != len(self._steps[name]):
            raise ValueError(f"{len(values)} values of {name} for {len(self._steps[name])} steps")
        self._steps[name] = [np.asarray(value) for value in values]

    def rows(self) -> Rows:
        """All steps, those of the first portfolio first."""
        stacked = {name: np.stack(steps, axis=1) for name, steps in self._steps.items()}
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in stacked.items()}


def join_rows(parts: list[Rows]) -> Rows:
    """Rows of several recordings, one after the other; episodes are numbered on."""
    first = 0
    numbered = []
    for part in parts:
        numbered.append({**part, "episode": part["episode"] + first})
        first = int(numbered[-1]["episode"].max()) + 1
    return {name: np.concatenate([part[name] for part in numbered]) for name in parts[0]}


def lambda_returns(
    rewards: FloatArray,
    next_values: FloatArray,
    terminated: NDArray[np.bool_],
    last: NDArray[np.bool_],
    gamma: float,
    trace: float,
) -> FloatArray:
    """``G_t = r_t + gamma (1 - d_t) ((1 - lambda) V(s_{t+1}) + lambda G_{t+1})``, within each episode, (n,).

    Parameters
    ----------
    rewards, next_values : array, (n,)
        ``next_values`` are V of the state after each transition.
    terminated, last : bool array, (n,)
        d: nothing follows; and the rows at whose end an episode ends otherwise: there G bootstraps from V alone.
    gamma, trace : float
        Discount and lambda.

    References
    ----------
    Sutton and Barto (2018), Reinforcement Learning, equation 12.2 in its recursive form.
    """
    returns = np.empty(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        ahead = next_values[t] if last[t] else (1.0 - trace) * next_values[t] + trace * following
        following = rewards[t] + (0.0 if terminated[t] else gamma * ahead)
        returns[t] = following
    return returns


def episode_ends(episode: NDArray[np.int32], terminated: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows after which another episode begins, (n,)."""
    ends = np.ones(len(episode), dtype=np.bool_)
    ends[:-1] = episode[1:] != episode[:-1]
    return ends | terminated
