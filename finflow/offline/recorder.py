"""Decisions as they are recorded while they are played, and what came of them in money."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, WorldState
from finflow.strategies.behaviour import FAMILIES

SOURCES = (*FAMILIES, "coverage", "decisions")
"""Who decided: one of the five families, the coverage mixture, or a user in a file of theirs."""
COVERAGE, DECISIONS = SOURCES.index("coverage"), SOURCES.index("decisions")

Rows = dict[str, NDArray[Any]]
"""Columns of transitions, an episode's rows after one another; and ``net_return``, ``cash_return``, ``cost`` and
``turnover`` of each, which no learner reads but the data card does."""

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
    "universe": np.int16,
}
"""What a dataset stores, and in which precision."""


class Recorder:
    """Collects the steps of N portfolios that step together.

    Parameters
    ----------
    process : DecisionProcess
    """

    def __init__(self, process: DecisionProcess) -> None:
        self.process = process
        self._steps: dict[str, list[NDArray[Any]]] = {}

    def add(self, before: PortfolioState, after: PortfolioState, **values: NDArray[Any]) -> None:
        """Add one step of every portfolio: the states around it, and the other columns as they are, (N, ...)."""
        alike = np.zeros(len(before.bar), dtype=np.int64)
        recorded = {
            "bar": before.bar,
            "portfolio": self.process.observed_portfolio(before),
            "next_portfolio": self.process.observed_portfolio(after),
            "net_return": after.wealth / before.wealth - 1.0,
            "universe": before.universe if isinstance(before, WorldState) else alike,
            "cash_return": self.process.growth[before.bar + 1, -1] - 1.0,
            **values,
        }
        for name, value in recorded.items():
            self._steps.setdefault(name, []).append(np.asarray(value))

    def rows(self) -> Rows:
        """All steps, those of the first portfolio first."""
        stacked = {name: np.stack(steps, axis=1) for name, steps in self._steps.items()}
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in stacked.items()}


def joined(parts: list[Rows]) -> Rows:
    """Rows of several plays, one after the other; episodes are numbered on."""
    first = 0
    numbered = []
    for part in parts:
        numbered.append({**part, "episode": part["episode"] + first})
        first = int(numbered[-1]["episode"].max()) + 1
    return {name: np.concatenate([part[name] for part in numbered]) for name in parts[0]}
